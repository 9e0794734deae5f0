//! Takes over a program that someone else started and that goes on running: reads what it was started with, and writes down
//! who it is, so that it is found again like one that lost its shim.
//!
//! **Invariant:** nothing is sent to the process, and nothing of it is changed; what is written is who it is, after every
//! record of an earlier run was taken away.

use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use quorate_faults::{Code, Fault};

use super::adopt::shim_holds;
use super::spec::{RunningFile, now_ms};
use crate::durable::RealDisk;
use crate::exit_record;
use crate::process::Identity;
use crate::state::StateDir;

/// The kernel's limit for arguments and environment together is far below this on most machines.
const WORDS_MAX: u64 = 4 << 20;

/// A process that someone else started.
#[derive(Debug, Clone)]
pub struct Process {
    /// Which one it is.
    pub identity: Identity,
    /// Its arguments, without its own name.
    pub args: Vec<String>,
    /// Its environment when it was started. It may hold secrets: do not show it.
    pub env: Vec<(String, String)>,
    /// Its working directory.
    pub dir: PathBuf,
    /// The unit of systemd that it belongs to, if any.
    pub unit: Option<String>,
    file: (u64, u64),
}

impl Process {
    /// Reads it from the kernel.
    pub fn read(pid: u32) -> io::Result<Process> {
        let of = |name: &str| PathBuf::from(format!("/proc/{pid}/{name}"));
        let identity = Identity::of(pid)?;
        let meta = std::fs::metadata(of("exe"))?;
        let process = Process {
            args: words(&of("cmdline"))?.into_iter().skip(1).collect(),
            env: words(&of("environ"))?.iter().filter_map(|word| pair(word)).collect(),
            dir: std::fs::read_link(of("cwd"))?,
            unit: std::fs::read_to_string(of("cgroup")).ok().and_then(|text| unit(&text)),
            file: (meta.dev(), meta.ino()),
            identity,
        };
        // Whatever was read is of this process only if it was still this one at the end.
        match Identity::of(pid)? == process.identity {
            true => Ok(process),
            false => Err(io::Error::new(io::ErrorKind::NotFound, "it became another process meanwhile")),
        }
    }

    /// When it was started, in milliseconds of Unix time, within a second or two.
    pub fn started_at_ms(&self) -> u64 {
        started_at_ms(self.identity.started_ticks)
    }

    /// A path as the process means it.
    pub fn path(&self, path: &str) -> PathBuf {
        self.dir.join(path)
    }
}

/// Writes down that this process is the member's program from now on. The next agent finds it with [`super::adopt`].
pub fn take_over(state: &StateDir, process: &Process, config_hash: &str) -> Result<(), Fault> {
    let attempt = format!("cannot take over process {}", process.identity.pid);
    if shim_holds(state)? {
        return Err(Fault::new(Code::AlreadyRunning, format!("{attempt}: a shim of this state dir runs"))
            .hint("it is tended already; see `quorate status`"));
    }
    // What was recorded is of an earlier run, and must not be taken for the end of this one.
    exit_record::consume(&RealDisk, &state.record())?;
    let about = RunningFile {
        shim: process.identity.clone(),
        child: process.identity.clone(),
        file: process.file,
        token: String::new(),
        config_hash: config_hash.to_owned(),
        started_at_ms: process.started_at_ms(),
        taken: true,
        held: None,
    };
    about.write(&state.running()).map_err(|error| Fault::io(attempt, error))
}

/// Words with a zero byte behind each.
fn words(path: &Path) -> io::Result<Vec<String>> {
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.take(WORDS_MAX).read_to_end(&mut bytes)?;
    let text = bytes.strip_suffix(&[0]).unwrap_or(&bytes);
    if text.is_empty() {
        return Ok(Vec::new());
    }
    Ok(text.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect())
}

fn pair(word: &str) -> Option<(String, String)> {
    let (name, value) = word.split_once('=')?;
    Some((name.to_owned(), value.to_owned()))
}

/// The innermost service that a process belongs to, from its cgroups.
fn unit(cgroups: &str) -> Option<String> {
    let service = |line: &str| line.rsplit('/').find(|part| part.ends_with(".service")).map(str::to_owned);
    // Services of a user's own manager lie below that manager, which is none that anyone stops.
    cgroups.lines().find_map(service).filter(|unit| !unit.starts_with("user@"))
}

/// When a process was started: ticks are hundredths of a second since the machine was.
fn started_at_ms(ticks: u64) -> u64 {
    let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let booted = text.lines().find_map(|line| line.strip_prefix("btime ")?.trim().parse::<u64>().ok());
    booted.map_or_else(now_ms, |seconds| seconds.saturating_mul(1000).saturating_add(ticks.saturating_mul(10)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shim::{Adoption, Ended, Rung, Send, StopOrder, adopt};
    use std::time::Duration;

    #[test]
    fn a_unit_is_found_in_the_cgroups() {
        assert_eq!(unit("0::/system.slice/etcd.service\n").as_deref(), Some("etcd.service"));
        assert_eq!(unit("12:pids:/system.slice/etcd.service/x\n1:name=systemd:/\n").as_deref(), Some("etcd.service"));
        assert_eq!(unit("0::/user.slice/user-0.slice/session-1.scope\n"), None);
        assert_eq!(unit("0::/user.slice/user@0.service\n"), None);
        assert_eq!(unit("0::/\n"), None);
    }

    #[test]
    fn a_process_of_someone_else_is_taken_over_found_again_and_stopped() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::open(dir.path()).unwrap();
        let mut command = std::process::Command::new("/bin/sleep");
        let mut foreign = command.arg("61").env("ETCD_NAME", "n1").spawn().unwrap();
        // For a moment after its start a process has no arguments.
        let process = loop {
            match Process::read(foreign.id()).unwrap() {
                process if process.args.is_empty() => std::thread::yield_now(),
                process => break process,
            }
        };
        assert_eq!(process.args, ["61"]);
        assert!(process.env.contains(&("ETCD_NAME".to_owned(), "n1".to_owned())));
        assert!(matches!(adopt(&state).unwrap(), Adoption::None));
        take_over(&state, &process, "hash").unwrap();
        let Adoption::Running(mut running) = adopt(&state).unwrap() else { panic!("it is not found again") };
        assert!(running.is_taken_over() && !running.is_kept());
        assert!(now_ms().abs_diff(running.started_at_ms()) < 600_000, "{}", running.started_at_ms());
        assert_eq!(running.wait(Duration::ZERO).unwrap(), None);
        let ladder = vec![Rung { send: Send::Kill, wait_ms: 1000 }];
        running.stop(&StopOrder { asked_by: "test".to_owned(), ladder, last_revision: None }).unwrap();
        // It shares its process group with this test, which is still there.
        foreign.wait().unwrap();
        let Some(Ended::NoRecord(why)) = running.wait(Duration::from_secs(10)).unwrap() else { panic!("no end") };
        assert!(why.contains("taken over"), "{why}");
        assert!(matches!(adopt(&state).unwrap(), Adoption::Lost(_)));
    }
}
