//! Children that never outlive the test, programs run to their end, and waiting with a limit.
//!
//! **Rule:** every child is started through `setpriv --pdeathsig KILL` by one thread that lives as long as the test
//! process: the kernel sends that signal when the *thread* that started the child ends, and test threads end early.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::programs::program;

/// A started program. Dropped, it is killed; in a failing test its last log lines are shown first.
#[derive(Debug)]
pub struct Running {
    child: Child,
    what: String,
    log: PathBuf,
    _log_dir: TempDir,
}

impl Running {
    /// Starts `path` with `args` and `env` added to ours; its output goes to a log file of its own.
    pub fn start(path: &Path, args: &[String], env: &[(String, String)]) -> Running {
        let what = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        let log_dir = TempDir::with_prefix("quorate-log-").expect("a temporary directory can be made");
        let log = log_dir.path().join(format!("{what}.log"));
        let out = File::create(&log).expect("a log file can be made in a fresh directory");
        let err = out.try_clone().expect("a file handle can be duplicated");
        let mut command = Command::new(program("setpriv"));
        command.args(["--pdeathsig", "KILL"]).arg(path).args(args);
        command.envs(env.iter().map(|(k, v)| (k, v)));
        command.stdin(Stdio::null()).stdout(out).stderr(err);
        let child =
            spawn_from_lasting_thread(command).unwrap_or_else(|e| panic!("cannot start `{}`: {e}", path.display()));
        Running { child, what, log, _log_dir: log_dir }
    }

    /// The process id (`setpriv` becomes the program, so it is the program's).
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// All it has written so far.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// Its last `lines` log lines.
    pub fn log_tail(&self, lines: usize) -> String {
        let log = self.log();
        let all: Vec<&str> = log.lines().collect();
        all[all.len().saturating_sub(lines)..].join("\n")
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("one may wait for one's own child")
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        // It may have ended by itself; then there is nobody left to tell.
        let _ = kill_process(pid, signal);
    }

    /// SIGTERM, then waits for the end (SIGKILL after 20 s).
    pub fn stop(&mut self) -> ExitStatus {
        self.signal(Signal::TERM);
        let limit = Instant::now() + Duration::from_secs(20);
        while Instant::now() < limit {
            if let Some(status) = self.ended() {
                return status;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        self.kill()
    }

    /// SIGKILL, as a power cut for the process alone.
    pub fn kill(&mut self) -> ExitStatus {
        self.signal(Signal::KILL);
        self.child.wait().expect("one may wait for one's own child")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.ended().is_none() {
            self.kill();
        }
        if std::thread::panicking() {
            let tail = self.log_tail(30);
            let what = &self.what;
            #[expect(clippy::print_stderr, reason = "a failing test shows what its servers said")]
            {
                eprintln!("--- last lines of {what} ---\n{tail}\n--- end of {what} ---");
            }
        }
    }
}

/// SIGKILL to a process that something under test has started.
pub fn kill_hard(pid: u32) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).expect("a process id");
    let _ = kill_process(pid, Signal::KILL);
}

/// Runs a program to its end and returns what it printed; panics with its words when it fails.
pub fn run(command: &mut Command) -> String {
    let output = output(command);
    assert!(
        output.status.success(),
        "{command:?} failed ({}):\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Runs a program to its end, whichever that is.
pub(crate) fn output(command: &mut Command) -> Output {
    command.stdin(Stdio::null());
    command.output().unwrap_or_else(|e| panic!("cannot run {command:?}: {e}"))
}

/// Asks `ready` again and again until it says yes; panics with `what` when `limit` has passed.
pub fn wait_until(what: &str, limit: Duration, mut ready: impl FnMut() -> bool) {
    let start = Instant::now();
    while !ready() {
        assert!(start.elapsed() < limit, "waited {limit:?} in vain for: {what}");
        std::thread::sleep(Duration::from_millis(30));
    }
}

type Order = (Command, Sender<std::io::Result<Child>>);

fn spawn_from_lasting_thread(command: Command) -> std::io::Result<Child> {
    static ORDERS: OnceLock<Mutex<Sender<Order>>> = OnceLock::new();
    let orders = ORDERS.get_or_init(|| {
        let (sender, receiver) = channel::<Order>();
        std::thread::spawn(move || {
            for (mut command, reply) in receiver {
                let _ = reply.send(command.spawn());
            }
        });
        Mutex::new(sender)
    });
    let (reply, answer) = channel();
    let sender = orders.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone();
    sender.send((command, reply)).expect("the spawning thread never ends");
    answer.recv().expect("the spawning thread answers every order")
}
