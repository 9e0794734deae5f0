//! The fence: the parent of the pooler, which closes it when the write master's time is over, whatever became of the agent.
//!
//! It runs below the shim in a process of its own (`quorate __fence`). The agent writes into a small file until when the door
//! may stay open; the fence reads it again and again. When the time has passed it kills the pooler, ends the sessions that
//! applications have in the server, and sees that none is left; if it cannot see that, it kills the server.
//!
//! **Invariant:** the pooler never outlives the fence, and the door is never open after the time that was written last. Time is
//! counted by a clock that goes on while the machine sleeps, and that nobody sets.

use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use quorate_faults::{Code, Fault};
use quorate_host::process::die_with_us;
use quorate_host::sandbox::{End, Kept, Launch, prepare};
use quorate_host::shim::note_inner;
use quorate_plan::boxes::BoxPlan;
use quorate_postgres::group;
use quorate_postgres::server::SUPERUSER;
use quorate_postgres::sql::{Client, Limits, Place};
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};

/// How often the file is read.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How long the ending of sessions may take: with the kill of a server that does not answer it fits into the second that
/// the fence acts before the lease ends.
const SETTLE: Duration = Duration::from_millis(600);
/// Longer than any line of ours.
const LINE_MAX: usize = 200;
/// For how long the door may be held open at a time by one word, at most.
const OPEN: &str = "open";

/// What the fence is told when it is started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FenceSpec {
    /// The pooler and its arguments.
    pub command: Vec<String>,
    /// The box that the pooler runs in, as its user; `None`: in none, as whoever runs the fence.
    #[serde(default)]
    pub boxed: Option<BoxPlan>,
    /// The word that the file must hold to be meant for this very fence.
    pub token: String,
    /// The file that says how long.
    pub deadline: PathBuf,
    /// Where the server's socket is.
    pub socket_dir: PathBuf,
    /// The server's port, which is part of the socket's name.
    pub port: u16,
    /// The server's data dir.
    pub data_dir: PathBuf,
}

/// How long the door may be open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Until {
    /// As long as nothing else is written: nobody writes through it.
    Open,
    /// Until then, on the clock of [`boot_now`].
    At(Duration),
}

/// Time since the machine was started, sleep included.
pub fn boot_now() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or_default())
}

/// Says how long. A single write of a line that names its value twice: who reads half of it knows.
pub fn ensure_deadline(file: &Path, token: &str, until: Until) -> Result<(), Fault> {
    let fail = |error| Fault::io(format!("cannot write `{}`", file.display()), error);
    let word = match until {
        Until::Open => OPEN.to_owned(),
        Until::At(at) => at.as_nanos().to_string(),
    };
    let line = format!("{:<150}\n", format!("{token} {word} {word}"));
    let open = std::fs::OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(file);
    open.and_then(|file| file.write_all_at(line.as_bytes(), 0)).map_err(fail)
}

/// What the file says; `None`: nothing that is meant for this fence, or half a line.
pub fn read_deadline(file: &Path, token: &str) -> Option<Until> {
    let mut text = String::new();
    std::fs::File::open(file).ok()?.take(LINE_MAX as u64).read_to_string(&mut text).ok()?;
    let mut words = text.split_whitespace();
    let (whose, first, second) = (words.next()?, words.next()?, words.next()?);
    if whose != token || first != second {
        return None;
    }
    if first == OPEN {
        return Some(Until::Open);
    }
    first.parse::<u64>().ok().map(|nanos| Until::At(Duration::from_nanos(nanos)))
}

/// Is the fence. Returns what happened, in words.
pub fn keep(file: &Path) -> Result<String, Fault> {
    let fail = |error| Fault::io(format!("cannot read `{}`", file.display()), error);
    let bytes = std::fs::read(file).map_err(fail)?;
    let spec: FenceSpec = serde_json::from_slice(&bytes)
        .map_err(|error| Fault::new(Code::PgFence, "the orders of the fence cannot be read").caused_by(error))?;
    let mut last = read_deadline(&spec.deadline, &spec.token);
    if !is_open(last) {
        return Ok("the door may not be open: the pooler was not started".to_owned());
    }
    let mut pooler = start(&spec, file.parent().unwrap_or(Path::new("/")))?;
    loop {
        if let Some(how) = pooler.ended().map_err(|error| Fault::io("cannot wait for the pooler", error))? {
            return Err(Fault::new(Code::PgProxyFailed, format!("the pooler ended: {how}"))
                .hint("see its last lines above; `quorate explain Q1308`"));
        }
        // Half a line is read again; what was known holds until then.
        last = read_deadline(&spec.deadline, &spec.token).or(last);
        if !is_open(last) {
            return close(&spec, pooler);
        }
        std::thread::sleep(match last {
            Some(Until::At(at)) => LOOK_EVERY.min(at.saturating_sub(boot_now())),
            Some(Until::Open) | None => LOOK_EVERY,
        });
    }
}

fn is_open(until: Option<Until>) -> bool {
    match until {
        Some(Until::Open) => true,
        Some(Until::At(at)) => boot_now() < at,
        None => false,
    }
}

/// The pooler, which ends with the fence however that ends.
enum Pooler {
    Plain(Child),
    Boxed(Box<Kept>),
}

impl Pooler {
    fn ended(&mut self) -> std::io::Result<Option<String>> {
        Ok(match self {
            Pooler::Plain(child) => child.try_wait()?.map(|status| status.to_string()),
            Pooler::Boxed(kept) => kept.try_wait()?.map(|end| match end {
                End::Code(code) => format!("exit status: {code}"),
                End::Signal(signal) => format!("signal: {signal}"),
            }),
        })
    }

    /// One that is gone is as good.
    fn end(&mut self) {
        match self {
            Pooler::Plain(child) => {
                let _ = child.kill();
                let _ = child.wait();
            }
            Pooler::Boxed(kept) => kept.end(),
        }
    }
}

/// `state`: the fence's own state dir, where it is written down whom it has put into a box.
fn start(spec: &FenceSpec, state: &Path) -> Result<Pooler, Fault> {
    let failed = |error: std::io::Error| {
        Fault::new(Code::PgProxyFailed, "cannot start the pooler").hint("install pgbouncer").caused_by(error)
    };
    let (program, args) =
        spec.command.split_first().ok_or_else(|| failed(std::io::Error::other("there is no program")))?;
    if let Some(plan) = &spec.boxed {
        let launch = Launch {
            program: program.into(),
            args: spec.command.iter().map(Into::into).collect(),
            env: vec![("PATH".into(), "/usr/bin:/bin".into())],
            dir: "/".into(),
            output: None,
            apart: true,
            with_keeper: true,
        };
        let waiting = prepare(plan, launch)?;
        let program = Path::new(program);
        note_inner(state, &waiting, program).map_err(failed)?;
        return waiting.run(program).map(|kept| Pooler::Boxed(Box::new(kept)));
    }
    let mut command = Command::new(program);
    command.args(args).env_clear().env("PATH", "/usr/bin:/bin").current_dir("/").stdin(Stdio::null());
    // Before anything else of the child's: whoever kills the fence closes the door.
    die_with_us(&mut command);
    command.spawn().map(Pooler::Plain).map_err(failed)
}

/// Closes the door, and sees that nobody is left inside.
fn close(spec: &FenceSpec, mut pooler: Pooler) -> Result<String, Fault> {
    pooler.end();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let settled = match runtime {
        Ok(runtime) => runtime.block_on(async { tokio::time::timeout(SETTLE, end_sessions(spec)).await }),
        Err(error) => Ok(Err(Fault::io("cannot start the runtime", error))),
    };
    match settled {
        Ok(Ok(ended)) => {
            Ok(format!("the time of the write master is over: the door is closed, {ended} sessions ended"))
        }
        Ok(Err(fault)) if fault.code() == Code::PgSilent && !is_running(spec) => {
            Ok("the time of the write master is over: the door is closed, and the server does not run".to_owned())
        }
        Ok(Err(fault)) => Err(kill_server(spec, &fault.to_string())),
        Err(_) => Err(kill_server(spec, "sessions did not end in time")),
    }
}

/// Ends the sessions of applications until none is left.
async fn end_sessions(spec: &FenceSpec) -> Result<u64, Fault> {
    let place = Place::socket("this node", &spec.socket_dir, spec.port, SUPERUSER, "postgres");
    let limits = Limits { connect: SETTLE, statement: SETTLE, lock: SETTLE };
    let client = Client::connect(&place, limits).await?;
    group::end_sessions(&client, SETTLE).await
}

fn postmaster(spec: &FenceSpec) -> Option<Pid> {
    let text = std::fs::read_to_string(spec.data_dir.join("postmaster.pid")).ok()?;
    Pid::from_raw(text.lines().next()?.trim().parse().ok()?)
}

/// Processes whose working directory is the data dir: all of a server's are.
fn processes_of(spec: &FenceSpec) -> Vec<Pid> {
    let Ok(dir) = spec.data_dir.canonicalize() else { return Vec::new() };
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| std::fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd == dir))
        .filter_map(Pid::from_raw)
        .collect()
}

fn is_running(spec: &FenceSpec) -> bool {
    !processes_of(spec).is_empty()
}

/// Kills the whole server: the postmaster first, so that it starts nothing more.
fn kill_server(spec: &FenceSpec, why: &str) -> Fault {
    for pid in postmaster(spec).into_iter().filter(|pid| processes_of(spec).contains(pid)) {
        // What is gone already is as good.
        let _ = kill_process(pid, Signal::KILL);
    }
    for pid in processes_of(spec) {
        let _ = kill_process(pid, Signal::KILL);
    }
    Fault::new(Code::PgFence, "the fence closed the door and killed the server, to be sure")
        .hint("PostgreSQL recovers when it is started again")
        .caused_by(why.to_owned())
}

/// A word that no other fence has.
pub(super) fn fresh_token() -> Result<String, Fault> {
    let mut bytes = [0; 16];
    let read = std::fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
    read.map_err(|error| Fault::io("cannot get random bytes", error))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Writes the orders of a fence.
pub(super) fn ensure_orders(file: &Path, spec: &FenceSpec) -> Result<(), Fault> {
    let fail = |error| Fault::io(format!("cannot write `{}`", file.display()), error);
    let bytes = serde_json::to_vec(spec).unwrap_or_default();
    let open = std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(file);
    open.and_then(|mut file| file.write_all(&bytes)).map_err(fail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_is_for_one_fence_and_half_a_line_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("deadline");
        assert_eq!(read_deadline(&file, "a"), None);
        ensure_deadline(&file, "a", Until::At(Duration::from_secs(7))).unwrap();
        assert_eq!(read_deadline(&file, "a"), Some(Until::At(Duration::from_secs(7))));
        assert_eq!(read_deadline(&file, "b"), None);
        ensure_deadline(&file, "a", Until::Open).unwrap();
        assert_eq!(read_deadline(&file, "a"), Some(Until::Open));
        for line in ["", "a", "a 1", "a 1 2", "a x x", "a -1 -1", "a 99999999999999999999999 99999999999999999999999"] {
            let mut half = std::fs::File::create(&file).unwrap();
            half.write_all(line.as_bytes()).unwrap();
            assert_eq!(read_deadline(&file, "a"), None, "{line:?}");
        }
    }

    fn spec(dir: &Path, seconds: u64) -> FenceSpec {
        let deadline = dir.join("deadline");
        ensure_deadline(&deadline, "t", Until::At(boot_now() + Duration::from_millis(seconds))).unwrap();
        FenceSpec {
            command: vec!["/bin/sleep".to_owned(), "100".to_owned()],
            boxed: None,
            token: "t".to_owned(),
            deadline,
            socket_dir: dir.to_owned(),
            port: 5432,
            data_dir: dir.to_owned(),
        }
    }

    #[test]
    fn the_door_closes_when_the_time_is_over_and_stays_open_while_it_is_renewed() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("fence.json");
        let orders = spec(dir.path(), 400);
        ensure_orders(&file, &orders).unwrap();
        let begun = boot_now();
        let renewed = boot_now() + Duration::from_millis(1500);
        let keeper = std::thread::spawn(move || keep(&file));
        std::thread::sleep(Duration::from_millis(100));
        ensure_deadline(&orders.deadline, "t", Until::At(renewed)).unwrap();
        let said = keeper.join().unwrap().unwrap();
        assert!(boot_now() >= renewed && begun < renewed);
        assert!(said.contains("the door is closed, and the server does not run"), "{said}");
    }

    #[test]
    fn a_door_whose_time_is_over_is_never_opened() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("fence.json");
        ensure_orders(&file, &spec(dir.path(), 0)).unwrap();
        assert_eq!(keep(&file).unwrap(), "the door may not be open: the pooler was not started");
    }
}
