//! Programs that outlive the command that started them: started apart, found again, stopped with patience.
//!
//! A process is known by its pid, its start time, the boot it was started in, and its executable. A pid alone says nothing:
//! the kernel gives it to someone else once its owner is gone.
//!
//! **Invariant:** a signal goes through a pidfd that was opened before the identity was checked, so it never reaches a
//! stranger, not even one that takes over the pid between the check and the signal.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{
    DumpableBehavior, Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal, set_dumpable_behavior,
};
use serde::{Deserialize, Serialize};

/// How long a process may take to disappear after SIGKILL; longer means that the kernel cannot end it.
const KILL_LIMIT: Duration = Duration::from_secs(10);

/// What to start, and how.
#[derive(Debug)]
pub struct Launch<'a> {
    /// The program.
    pub program: &'a Path,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// Variables that it gets besides ours.
    pub env: Vec<(OsString, OsString)>,
    /// Variables of ours that it must not get.
    pub env_remove: Vec<OsString>,
    /// Its working directory.
    pub dir: &'a Path,
    /// Where its output is appended to; made with mode 0600.
    pub log: &'a Path,
}

/// Which process it is, beyond doubt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Its pid.
    pub pid: u32,
    /// Clock ticks between boot and its start.
    pub started_ticks: u64,
    /// The boot it was started in.
    pub boot_id: String,
    /// Its executable.
    pub executable: PathBuf,
}

/// Keeps the memory of this process, which holds private keys, out of core dumps, and away from other processes of its user.
/// Programs that it starts are not concerned: the kernel forgets this where another program begins.
pub fn forbid_dumps() -> io::Result<()> {
    Ok(set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}

/// A program that was just started.
#[derive(Debug)]
pub struct Started {
    /// Which process it is.
    pub identity: Identity,
    child: Child,
}

impl Started {
    /// How it ended, if it has.
    pub fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }
}

/// What became of a process.
#[derive(Debug)]
pub enum Seen {
    /// It runs; it can be stopped through this.
    Running(Handle),
    /// It has ended (its pid may be someone else's now).
    Gone,
    /// It could not be found out.
    Unknown(io::Error),
}

/// A running process whose identity was checked.
#[derive(Debug)]
pub struct Handle {
    pidfd: OwnedFd,
    pid: u32,
}

/// How a process was made to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stopped {
    /// It followed SIGTERM.
    Asked,
    /// It had to be killed.
    Killed,
}

/// Starts a program in a session of its own, so that neither Ctrl-C nor a closed terminal reaches it.
pub fn start_detached(launch: &Launch<'_>) -> io::Result<Started> {
    let log = OpenOptions::new().create(true).append(true).mode(0o600).open(launch.log)?;
    let errors = log.try_clone()?;
    let mut command = Command::new(launch.program);
    command.args(&launch.args).current_dir(launch.dir).stdin(Stdio::null()).stdout(log).stderr(errors);
    for name in &launch.env_remove {
        command.env_remove(name);
    }
    command.envs(launch.env.iter().map(|(name, value)| (name, value)));
    // SAFETY: between fork and exec only calls that are safe in a signal handler may be made; setsid is one system call
    // and allocates nothing.
    #[expect(unsafe_code, reason = "the standard library has no stable way to start a new session")]
    unsafe {
        command.pre_exec(|| rustix::process::setsid().map(drop).map_err(io::Error::from));
    }
    let child = command.spawn()?;
    let pid = child.id();
    let executable = match executable(pid) {
        // It has ended already, and a process that waits to be buried has no executable any more.
        Err(error) if error.kind() == io::ErrorKind::NotFound => launch.program.to_owned(),
        found => found?,
    };
    let identity = Identity { pid, started_ticks: stat(pid)?.started_ticks, boot_id: boot_id()?, executable };
    Ok(Started { identity, child })
}

impl Identity {
    /// Reads the identity of a running process.
    pub fn of(pid: u32) -> io::Result<Identity> {
        Ok(Identity { pid, started_ticks: stat(pid)?.started_ticks, boot_id: boot_id()?, executable: executable(pid)? })
    }

    /// Looks whether this very process still runs.
    pub fn look(&self) -> Seen {
        self.try_look().unwrap_or_else(Seen::Unknown)
    }

    fn try_look(&self) -> io::Result<Seen> {
        if boot_id()? != self.boot_id {
            return Ok(Seen::Gone);
        }
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "not a process id"))?;
        let pidfd = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(pidfd) => pidfd,
            Err(Errno::SRCH) => return Ok(Seen::Gone),
            Err(error) => return Err(error.into()),
        };
        let checked = self.is_who_has_the_pid();
        // Whoever holds the pid was asked while this pidfd was open: if its process is still alive, it was asked itself.
        if has_ended(&pidfd, Duration::ZERO)? {
            return Ok(Seen::Gone);
        }
        Ok(if checked? { Seen::Running(Handle { pidfd, pid: self.pid }) } else { Seen::Gone })
    }

    fn is_who_has_the_pid(&self) -> io::Result<bool> {
        if stat(self.pid)?.started_ticks != self.started_ticks {
            return Ok(false);
        }
        Ok(executable(self.pid)? == self.executable)
    }
}

impl Handle {
    /// The pid.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The open process, which becomes readable when it ends.
    pub fn into_pidfd(self) -> OwnedFd {
        self.pidfd
    }

    /// Asks it to end, waits, and kills it when it does not.
    pub fn stop(self, patience: Duration) -> io::Result<Stopped> {
        self.signal(Signal::TERM)?;
        if has_ended(&self.pidfd, patience)? {
            return Ok(Stopped::Asked);
        }
        self.signal(Signal::KILL)?;
        if has_ended(&self.pidfd, KILL_LIMIT)? {
            return Ok(Stopped::Killed);
        }
        Err(io::Error::new(io::ErrorKind::TimedOut, format!("process {} does not end, not even by SIGKILL", self.pid)))
    }

    fn signal(&self, signal: Signal) -> io::Result<()> {
        match pidfd_send_signal(&self.pidfd, signal) {
            // It ended by itself in the meantime, which is what was wanted.
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// Has a command die with the thread that starts it, however that ends.
pub fn die_with_us(command: &mut Command) {
    let parent = rustix::process::getpid();
    // SAFETY: between fork and exec only calls that are safe in a signal handler may be made; both are single system calls
    // and allocate nothing.
    #[expect(unsafe_code, reason = "only the child itself can ask for it, and the standard library does not")]
    unsafe {
        command.pre_exec(move || {
            rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
            // The parent may have ended before the line above.
            match rustix::process::getppid() == Some(parent) {
                true => Ok(()),
                false => Err(Errno::SRCH.into()),
            }
        });
    }
}

/// Ctrl-C and Ctrl-\ are no longer for us, but for the child that has the terminal with us. It must run already, because
/// it would inherit this.
pub fn leave_keys_to_child() {
    for signal in [libc::SIGINT, libc::SIGQUIT] {
        // SAFETY: a disposition that runs no code is set, for signals that nothing else in such a command handles.
        #[expect(unsafe_code, reason = "no safe wrapper sets a signal's disposition")]
        unsafe {
            libc::signal(signal, libc::SIG_IGN);
        }
    }
}

/// Our own processes that have `argument` as one of their arguments. Finds a program whose starter died before it could
/// write down what it had started.
pub fn find_by_argument(argument: &str) -> io::Result<Vec<Identity>> {
    let me = rustix::process::geteuid().as_raw();
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc")?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        // Processes come and go while the list is read; one that cannot be read is not ours or no longer there.
        let Ok(meta) = entry.metadata() else { continue };
        let Ok(command_line) = std::fs::read(entry.path().join("cmdline")) else { continue };
        let has_it = command_line.split(|byte| *byte == 0).any(|word| word == argument.as_bytes());
        if meta.uid() == me && has_it && !stat(pid).is_ok_and(|stat| stat.ended) {
            found.extend(Identity::of(pid));
        }
    }
    Ok(found)
}

/// The last `lines` lines of a log, from at most its last 64 KiB.
pub fn log_tail(path: &Path, lines: usize) -> io::Result<Vec<String>> {
    use std::os::unix::fs::FileExt;
    const WINDOW: u64 = 64 << 10;
    let file = File::open(path)?;
    let length = file.metadata()?.len();
    let start = length.saturating_sub(WINDOW);
    let mut bytes = vec![0; usize::try_from(length - start).unwrap_or_default()];
    // The log may be shortened under our hands; then there is simply less of it.
    let mut filled = 0;
    while filled < bytes.len() {
        match file.read_at(&mut bytes[filled..], start + filled as u64)? {
            0 => break,
            read => filled += read,
        }
    }
    bytes.truncate(filled);
    let text = String::from_utf8_lossy(&bytes);
    let mut tail: Vec<String> = text.lines().rev().take(lines).map(str::to_owned).collect();
    tail.reverse();
    Ok(tail)
}

pub(crate) struct Stat {
    pub(crate) started_ticks: u64,
    /// Dead, but not yet buried by its parent.
    pub(crate) ended: bool,
    pub(crate) parent: u32,
    /// 0 if the process that leads the group is in a pid namespace that we do not see, as for what a container runtime
    /// starts.
    pub(crate) group: u32,
    /// 0 in the same case.
    pub(crate) session: u32,
}

pub(crate) fn stat(pid: u32) -> io::Result<Stat> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    parse_stat(&text).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("/proc/{pid}/stat: {text}")))
}

/// The fields after the program's name, which stands in parentheses and may itself hold blanks and parentheses.
fn parse_stat(text: &str) -> Option<Stat> {
    let (_, rest) = text.rsplit_once(") ")?;
    let mut fields = rest.split(' ');
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    let group = fields.next()?.parse().ok()?;
    let session = fields.next()?.parse().ok()?;
    // Field 22 of the whole line; the session was field 6.
    let started_ticks = fields.nth(15)?.parse().ok()?;
    Some(Stat { started_ticks, parent, group, session, ended: matches!(state, "Z" | "X" | "x") })
}

pub(crate) fn boot_id() -> io::Result<String> {
    Ok(std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

fn executable(pid: u32) -> io::Result<PathBuf> {
    let path = std::fs::read_link(format!("/proc/{pid}/exe"))?;
    // The kernel adds the remark when the file was replaced since; it is still the same program running.
    let text = path.to_string_lossy();
    Ok(text.strip_suffix(" (deleted)").map_or(path.clone(), PathBuf::from))
}

/// Waits for a process to end.
pub(crate) fn has_ended(pidfd: &OwnedFd, limit: Duration) -> io::Result<bool> {
    let deadline = Instant::now() + limit;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let wait =
            Timespec { tv_sec: left.as_secs().try_into().unwrap_or(i64::MAX), tv_nsec: left.subsec_nanos().into() };
        let mut fds = [PollFd::new(pidfd, PollFlags::IN)];
        match poll(&mut fds, Some(&wait)) {
            Ok(0) => return Ok(false),
            Ok(_) => return Ok(true),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn sh(script: &str, dir: &Path) -> Started {
        let log = dir.join("log");
        let args = vec!["-c".into(), script.into()];
        let launch = Launch { program: Path::new("/bin/sh"), args, env: vec![], env_remove: vec![], dir, log: &log };
        start_detached(&launch).expect("a shell starts")
    }

    fn running(identity: &Identity) -> Handle {
        match identity.look() {
            Seen::Running(handle) => handle,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_started_program_has_its_own_session_and_a_private_log() {
        let dir = tempfile::tempdir().unwrap();
        let started = sh("echo hello; echo oops >&2; exec sleep 60", dir.path());
        let pid = Pid::from_raw(started.identity.pid as i32).unwrap();
        assert_eq!(rustix::process::getsid(Some(pid)).unwrap(), pid);
        let log = dir.path().join("log");
        let limit = Instant::now() + Duration::from_secs(10);
        while log_tail(&log, 5).unwrap() != ["hello", "oops"] {
            assert!(Instant::now() < limit, "{:?}", log_tail(&log, 5));
        }
        assert_eq!(std::fs::metadata(&log).unwrap().permissions().mode() & 0o777, 0o600);
        // The shell becomes `sleep` by exec, so it is another executable then, and not signalled as if it were the shell.
        let shell = std::fs::canonicalize("/bin/sh").unwrap();
        let now = loop {
            let now = Identity::of(started.identity.pid).unwrap();
            if now.executable != shell {
                break now;
            }
            assert!(Instant::now() < limit, "{now:?}");
        };
        assert_eq!(running(&now).stop(Duration::from_secs(5)).unwrap(), Stopped::Asked);
        assert!(matches!(now.look(), Seen::Gone));
    }

    #[test]
    fn one_that_does_not_listen_is_killed() {
        let dir = tempfile::tempdir().unwrap();
        let mut started = sh("trap '' TERM; echo deaf; while :; do sleep 0.1; done", dir.path());
        let limit = Instant::now() + Duration::from_secs(10);
        while log_tail(&dir.path().join("log"), 1).unwrap().is_empty() {
            assert!(Instant::now() < limit);
        }
        let stopped = running(&started.identity).stop(Duration::from_millis(200)).unwrap();
        assert_eq!(stopped, Stopped::Killed);
        assert!(started.ended().unwrap().is_some());
    }

    #[test]
    fn a_recycled_pid_is_not_taken_for_the_old_process() {
        let mine = Identity::of(std::process::id()).unwrap();
        running(&mine);
        let earlier = Identity { started_ticks: mine.started_ticks - 1, ..mine.clone() };
        assert!(matches!(earlier.look(), Seen::Gone));
        let other_boot = Identity { boot_id: "another".to_owned(), ..mine.clone() };
        assert!(matches!(other_boot.look(), Seen::Gone));
        let other_program = Identity { executable: "/bin/true".into(), ..mine };
        assert!(matches!(other_program.look(), Seen::Gone));
    }

    #[test]
    fn a_process_that_ended_is_gone_even_before_it_is_buried() {
        let dir = tempfile::tempdir().unwrap();
        let started = sh("exit 3", dir.path());
        let limit = Instant::now() + Duration::from_secs(10);
        while !matches!(started.identity.look(), Seen::Gone) {
            assert!(Instant::now() < limit);
        }
    }

    #[test]
    fn a_program_is_found_by_its_arguments() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        let mark = log.display().to_string();
        // `tail` starts no other program, which for a moment would have the same arguments.
        let args = vec!["-f".into(), mark.clone().into()];
        let program = Path::new("/usr/bin/tail");
        let launch = Launch { program, args, env: vec![], env_remove: vec![], dir: dir.path(), log: &log };
        let started = start_detached(&launch).unwrap();
        assert_eq!(find_by_argument(&mark).unwrap(), std::slice::from_ref(&started.identity));
        running(&started.identity).stop(Duration::from_secs(5)).unwrap();
        assert_eq!(find_by_argument(&mark).unwrap(), []);
    }

    #[test]
    fn a_name_with_parentheses_does_not_confuse_the_reader() {
        let line = "7 (a) b) (c) S 1 5 6 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 12345 99 1";
        let stat = parse_stat(line).unwrap();
        assert_eq!((stat.started_ticks, stat.ended), (12345, false));
        assert_eq!((stat.parent, stat.group, stat.session), (1, 5, 6));
        assert!(parse_stat("nonsense").is_none());
    }
}
