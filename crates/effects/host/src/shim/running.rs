//! The agent's side of a running program: starting it through a shim, watching it, asking for its end.
//!
//! **Invariant:** dropping it changes nothing for the program.

use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use quorate_faults::{Code, Fault};
use quorate_plan::boxes::BoxPlan;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open, pidfd_send_signal};

use super::adopt::{Adoption, adopt};
use super::control::{Answer, Ask, Status, StopOrder, ask};
use super::keeper::Greeting;
use super::spec::{Orders, Rung, RunningFile, Send, ShimSpec};
use super::stopping::Stopping;
use super::waiting::end_session;
use crate::exit_record::{ExitRecord, Recorded, read};
use crate::process::{Identity, Seen, has_ended};
use crate::sandbox::Held;
use crate::state::StateDir;

/// How long a shim may take to have started its program; it takes milliseconds unless the machine is in distress. One that
/// takes longer goes on, and is found later by [`adopt`].
const START_LIMIT: Duration = Duration::from_secs(10);

/// A program that runs and is ours.
#[derive(Debug)]
pub struct Running {
    pub(super) state: StateDir,
    pub(super) about: RunningFile,
    pub(super) child: OwnedFd,
    /// `None`: the shim is gone and the program runs alone.
    pub(super) shim: Option<OwnedFd>,
}

/// A shim that writes down the newest revision of its program, should that end.
#[derive(Debug, Clone)]
pub struct Notes {
    dir: PathBuf,
    shim: u32,
    token: String,
}

impl Notes {
    /// Tells it. One of an earlier version does not listen to this; nothing else depends on it.
    pub fn revision(&self, revision: u64) {
        let _ = ask(&self.dir, self.shim, &self.token, Ask::Note { revision });
    }
}

/// How it ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// As recorded.
    Record(ExitRecord),
    /// Nobody could record it, and why.
    NoRecord(String),
}

/// Starts a program through a shim, which is `shim_program __shim`.
pub fn spawn(shim_program: &Path, state: &StateDir, spec: &ShimSpec) -> Result<Running, Fault> {
    spawn_boxed(shim_program, state, spec, None)
}

/// The same in a box, if there is a plan for one.
pub fn spawn_boxed(
    shim_program: &Path,
    state: &StateDir,
    spec: &ShimSpec,
    boxed: Option<BoxPlan>,
) -> Result<Running, Fault> {
    let failed = |error: io::Error| Fault::new(Code::ShimFailed, "cannot start the shim").caused_by(error);
    let token = fresh_token().map_err(failed)?;
    Orders { spec: spec.clone(), token: token.clone(), boxed }.write(&state.spec()).map_err(failed)?;
    let mut command = Command::new(shim_program);
    // It begins a session of its own: asked for here, the agent would be copied for it with all of its memory.
    command.arg("__shim").arg(state.spec()).current_dir("/").env_clear();
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut shim = command.spawn().map_err(failed)?;
    let greeting = shim.stdout.take().map(OwnedFd::from).map_or(Ok(Vec::new()), read_greeting);
    // Nobody has buried it yet, so the number is its own.
    let (shim_pid, shim_fd) = (shim.id(), open(shim.id()));
    // Whoever starts a process must bury it; the shim outlives every handle to it.
    let burial = std::thread::Builder::new().name("shim".to_owned()).stack_size(64 << 10);
    burial.spawn(move || drop(shim.wait())).map_err(failed)?;
    match serde_json::from_slice(&greeting.map_err(failed)?) {
        Ok(Greeting::Started) => {}
        Ok(Greeting::Fault { code, said, cause }) => {
            let fault = told(&code, said, cause);
            if fault.code() == Code::BoxFailed {
                crate::sandbox::forget_machine();
            }
            return Err(fault);
        }
        Err(_) => return Err(failed(io::Error::other("it ended without a word"))),
    }
    if let Some(running) = just_started(state, shim_pid, shim_fd, &token) {
        return Ok(running);
    }
    match adopt(state)? {
        Adoption::Running(running) => Ok(running),
        // It was started, and is over already.
        Adoption::Gone(record) => {
            Err(Fault::new(Code::EndedAtOnce, format!("`{}` ended at once", spec.program.display()))
                .hint(format!("see its last lines in `{}`", spec.log_dir.display()))
                .caused_by(describe(&record)))
        }
        other => Err(failed(io::Error::other(format!("what was started cannot be found again: {other:?}")))),
    }
}

fn open(pid: u32) -> io::Result<OwnedFd> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidInput)?;
    Ok(pidfd_open(pid, PidfdFlags::empty())?)
}

/// What our own child has just told of: nobody else can have written this token down, so there is no one to be asked. `None`:
/// it is not as simple as that, for example because the program has ended already.
fn just_started(state: &StateDir, pid: u32, shim: io::Result<OwnedFd>, token: &str) -> Option<Running> {
    let about = RunningFile::read(&state.running()).ok()??.ok()?;
    if about.shim.pid != pid || about.token != token {
        return None;
    }
    match about.child.look() {
        Seen::Running(child) => {
            Some(Running { state: state.clone(), about, child: child.into_pidfd(), shim: Some(shim.ok()?) })
        }
        Seen::Gone | Seen::Unknown(_) => None,
    }
}

fn told(code: &str, said: String, cause: Option<String>) -> Fault {
    let fault = Fault::new(Code::parse(code).unwrap_or(Code::ShimFailed), said);
    match cause {
        Some(cause) => fault.caused_by(cause),
        None => fault,
    }
}

fn describe(record: &ExitRecord) -> String {
    match (record.code, record.signal) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => record.error.clone().unwrap_or_default(),
    }
}

fn read_greeting(pipe: OwnedFd) -> io::Result<Vec<u8>> {
    let limit = Timespec { tv_sec: START_LIMIT.as_secs().cast_signed(), tv_nsec: 0 };
    if poll(&mut [PollFd::new(&pipe, PollFlags::IN)], Some(&limit))? == 0 {
        return Err(io::Error::new(io::ErrorKind::TimedOut, format!("it said nothing for {START_LIMIT:?}")));
    }
    let mut said = Vec::new();
    std::fs::File::from(pipe).take(64 << 10).read_to_end(&mut said)?;
    Ok(said)
}

fn fresh_token() -> io::Result<String> {
    let mut bytes = [0; 16];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

impl Running {
    /// The program.
    pub fn child(&self) -> &Identity {
        &self.about.child
    }

    /// Its shim, dead or alive.
    pub fn shim(&self) -> &Identity {
        &self.about.shim
    }

    /// What it was boxed with; `None`: it has no box of ours.
    pub fn held(&self) -> Option<&Held> {
        self.about.held.as_deref()
    }

    /// Whether the shim lives: it keeps the log and will record the end.
    pub fn is_kept(&self) -> bool {
        self.shim.is_some()
    }

    /// Whether it was taken over while it ran: it never had a shim.
    pub fn is_taken_over(&self) -> bool {
        self.about.taken
    }

    /// The hash of the configuration that it runs with, which may no longer be the one that is wanted.
    pub fn config_hash(&self) -> &str {
        &self.about.config_hash
    }

    /// When it was started, in milliseconds of Unix time.
    pub fn started_at_ms(&self) -> u64 {
        self.about.started_at_ms
    }

    /// Becomes readable when [`Running::wait`] has something to say.
    pub fn end_fd(&self) -> BorrowedFd<'_> {
        self.shim.as_ref().unwrap_or(&self.child).as_fd()
    }

    /// Who can be told of the program's newest revision, from any thread. `None`: there is no shim that could record it.
    pub fn notes(&self) -> Option<Notes> {
        let to =
            || Notes { dir: self.state.path().to_owned(), shim: self.about.shim.pid, token: self.about.token.clone() };
        self.is_kept().then(to)
    }

    /// Asks the shim how it is.
    pub fn status(&self) -> Result<Status, Fault> {
        self.ask(Ask::Status)
    }

    /// Asks for the end. Returns at once; the ladder goes on in the shim, whatever becomes of the agent.
    pub fn stop(&self, order: &StopOrder) -> Result<(), Fault> {
        if self.is_kept() { self.ask(Ask::Stop(order.clone())).map(drop) } else { self.stop_alone(order) }
    }

    /// Has the program write down what it is doing, and die from it.
    pub fn dump(&self, asked_by: &str) -> Result<(), Fault> {
        if self.is_kept() {
            return self.ask(Ask::Dump { asked_by: asked_by.to_owned() }).map(drop);
        }
        let ladder = Rung::usual().into_iter().filter(|rung| rung.send != Send::Term).collect();
        self.stop_alone(&StopOrder { asked_by: asked_by.to_owned(), ladder, last_revision: None })
    }

    /// Waits for the end, at most `limit`. `None`: it still runs.
    pub fn wait(&mut self, limit: Duration) -> Result<Option<Ended>, Fault> {
        let fail = |error| Fault::io("cannot wait for the program", error);
        let deadline = Instant::now() + limit;
        if let Some(shim) = &self.shim {
            if !has_ended(shim, limit).map_err(fail)? {
                return Ok(None);
            }
            self.shim = None;
        }
        if !has_ended(&self.child, deadline.saturating_duration_since(Instant::now())).map_err(fail)? {
            return Ok(None);
        }
        let recorded = read(&self.state.record());
        if recorded == Recorded::Absent && !self.about.taken && !end_session(&self.about.shim) {
            return Err(Fault::new(Code::NotEnding, "something of the program does not end, not even by SIGKILL"));
        }
        if recorded == Recorded::Absent && self.about.held.is_some() {
            crate::sandbox::clear_after(&self.about.shim);
        }
        Ok(Some(match recorded {
            Recorded::Record(record) => Ended::Record(record),
            Recorded::Unreadable(why) => Ended::NoRecord(format!("its record cannot be read: {why}")),
            Recorded::Absent if self.about.taken => {
                Ended::NoRecord("it was taken over while it ran, and had no shim".to_owned())
            }
            Recorded::Absent => Ended::NoRecord("its shim was gone before it".to_owned()),
        }))
    }

    fn ask(&self, what: Ask) -> Result<Status, Fault> {
        let silent = |cause: String| {
            Fault::new(Code::ShimSilent, format!("the shim (process {}) does not follow", self.about.shim.pid))
                .hint("look again in a moment; `quorate explain Q0904` says what to do if it stays so")
                .caused_by(cause)
        };
        match ask(self.state.path(), self.about.shim.pid, &self.about.token, what) {
            Ok(Answer::Ok(status)) => Ok(status),
            Ok(Answer::Refused(why)) => Err(silent(why)),
            Err(error) => Err(silent(error.to_string())),
        }
    }

    /// The ladder without a shim, on a thread of ours.
    fn stop_alone(&self, order: &StopOrder) -> Result<(), Fault> {
        let failed = |error| Fault::io("cannot stop the program", error);
        let child = self.child.try_clone().map_err(failed)?;
        // One that was taken over may share its process group with whoever started it.
        let group = (!self.about.taken).then_some(self.about.child.pid);
        let pid = group.and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
        let mut stop = Stopping::new(order.clone(), Instant::now());
        let climb = move || {
            while let Some(send) = stop.next(Instant::now()) {
                let sent = match (send, pid) {
                    (Send::Term, _) => pidfd_send_signal(&child, Signal::TERM),
                    (Send::Int, _) => pidfd_send_signal(&child, Signal::INT),
                    (Send::Quit, _) => pidfd_send_signal(&child, Signal::QUIT),
                    (Send::Kill, Some(pid)) => kill_process_group(pid, Signal::KILL),
                    (Send::Kill, None) => pidfd_send_signal(&child, Signal::KILL),
                };
                let wait = stop.wait(Instant::now()).unwrap_or_default();
                if sent.is_err() || !matches!(has_ended(&child, wait), Ok(false)) {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("stop".to_owned()).stack_size(64 << 10);
        thread.spawn(climb).map(drop).map_err(failed)
    }
}
