//! Finds what an earlier agent started, and takes it over if it is beyond doubt the same.
//!
//! **Invariant:** a process is adopted only if its number, start time, boot and executable file are what was written down
//! about it; one that a shim started also has that group and session, and its shim, if there still is one, knows the token
//! of the run.

use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use quorate_faults::{Code, Fault};

use super::control::{Answer, Ask, WRONG_TOKEN, ask};
use super::running::Running;
use super::spec::RunningFile;
use crate::exit_record::{ExitRecord, Recorded, read};
use crate::locks::is_flocked;
use crate::process::{Identity, Seen, stat};
use crate::state::StateDir;

/// How long a shim that is just starting, or just ending, may take to be clear about it.
const SETTLE_LIMIT: Duration = Duration::from_secs(5);
/// How long a process may take from writing down who it will be to being it.
const EXEC_LIMIT: Duration = Duration::from_millis(500);

/// What was found.
#[derive(Debug)]
pub enum Adoption {
    /// It runs, and is ours now.
    Running(Running),
    /// It has ended, and this is how.
    Gone(ExitRecord),
    /// It has ended and nobody recorded how, or the record cannot be read: a power cut, or the shim was killed too.
    Lost(String),
    /// Something runs that is not what was written down.
    Stranger(String),
    /// Nothing was ever started here, or its end has been dealt with.
    None,
}

/// Looks into the state dir.
pub fn adopt(state: &StateDir) -> Result<Adoption, Fault> {
    let start = Instant::now();
    loop {
        let waited = start.elapsed();
        let held = shim_holds(state)?;
        match look(state) {
            // A shim holds the dir and has nothing to show for it: it starts, or it writes the record.
            Ok(Adoption::Stranger(_)) if held && waited < EXEC_LIMIT => {}
            Ok(Adoption::Gone(_) | Adoption::Lost(_) | Adoption::None) if held && waited < SETTLE_LIMIT => {}
            Ok(Adoption::Gone(_) | Adoption::Lost(_) | Adoption::None) if held => {
                return Err(silent(state, "it holds the dir and shows no program"));
            }
            Err(fault) if fault.code() == Code::ShimSilent && held && waited < SETTLE_LIMIT => {}
            found => return found,
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Whether some shim has the state dir. Asked before anything else, so that what it left is read after it left.
pub(super) fn shim_holds(state: &StateDir) -> Result<bool, Fault> {
    let path = state.shim_lock();
    let fail = |error| Fault::io(format!("cannot ask for the lock `{}`", path.display()), error);
    let file = match std::fs::File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(fail(error)),
    };
    is_flocked(&file).map_err(fail)
}

fn look(state: &StateDir) -> Result<Adoption, Fault> {
    let fail = |error| Fault::io(format!("cannot read `{}`", state.running().display()), error);
    let about = match RunningFile::read(&state.running()).map_err(fail)? {
        None => return Ok(ended(state, None)),
        Some(Err(why)) => return Ok(ended(state, Some(format!("what ran cannot be read: {why}")))),
        Some(Ok(about)) => about,
    };
    let unknown = |pid: u32, error| Fault::io(format!("cannot look at process {pid}"), error);
    // The shim first: if it is gone by now, the record says so already when the program is looked at.
    let shim = match about.shim.look() {
        Seen::Running(_) if about.taken => None,
        Seen::Running(handle) => Some(handle.into_pidfd()),
        Seen::Gone => None,
        Seen::Unknown(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Seen::Unknown(error) => return Err(unknown(about.shim.pid, error)),
    };
    let child = match about.child.look() {
        Seen::Running(handle) => handle.into_pidfd(),
        Seen::Gone => return Ok(gone(state, &about)),
        Seen::Unknown(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(gone(state, &about)),
        Seen::Unknown(error) => return Err(unknown(about.child.pid, error)),
    };
    Ok(match doubt(state, &about, shim.as_ref())? {
        Some(why) => Adoption::Stranger(format!("process {}: {why}", about.child.pid)),
        None => Adoption::Running(Running { state: state.clone(), about, child, shim }),
    })
}

/// The process is not the one that was written down. Either it ended, or it turned into another program.
fn gone(state: &StateDir, about: &RunningFile) -> Adoption {
    let now = Identity::of(about.child.pid);
    if now.is_ok_and(|now| now.started_ticks == about.child.started_ticks && now.boot_id == about.child.boot_id) {
        return Adoption::Stranger(format!("process {}: it runs another executable now", about.child.pid));
    }
    ended(state, Some("it is gone, and no one recorded how it ended".to_owned()))
}

/// `lost`: what to say when there is no record; `None`: then nothing was started.
fn ended(state: &StateDir, lost: Option<String>) -> Adoption {
    match (read(&state.record()), lost) {
        (Recorded::Record(record), _) => Adoption::Gone(record),
        (Recorded::Unreadable(why), _) => Adoption::Lost(format!("its record cannot be read: {why}")),
        (Recorded::Absent, Some(why)) => Adoption::Lost(why),
        (Recorded::Absent, None) => Adoption::None,
    }
}

/// A shim that says nothing is not a stranger; it is unknown.
fn silent(state: &StateDir, why: impl Into<String>) -> Fault {
    Fault::new(Code::ShimSilent, format!("the shim of `{}` does not answer", state.path().display()))
        .hint("look again in a moment; etcd does not depend on it")
        .caused_by(why.into())
}

/// Why the running process is not ours after all.
fn doubt(state: &StateDir, about: &RunningFile, shim: Option<&OwnedFd>) -> Result<Option<String>, Fault> {
    let doubt = |why: &str| Ok(Some(why.to_owned()));
    let pid = about.child.pid;
    let file = std::fs::metadata(format!("/proc/{pid}/exe")).map(|meta| (meta.dev(), meta.ino()));
    if file.map_err(|error| Fault::io(format!("cannot look at the executable of process {pid}"), error))? != about.file
    {
        return doubt("its executable is another file");
    }
    if about.taken {
        return Ok(None);
    }
    let stat = stat(pid).map_err(|error| Fault::io(format!("cannot look at process {pid}"), error))?;
    if stat.group != pid {
        return doubt("it does not lead its process group");
    }
    if stat.session != about.shim.pid {
        return doubt("it is not in the session of its shim");
    }
    if shim.is_none() {
        return Ok(None);
    }
    match ask(state.path(), about.shim.pid, &about.token, Ask::Status) {
        Ok(Answer::Ok(status)) if status.child == about.child && status.config_hash == about.config_hash => Ok(None),
        Ok(Answer::Ok(_)) => doubt("its shim speaks of another program"),
        Ok(Answer::Refused(why)) if why == WRONG_TOKEN => doubt("its shim was given another token"),
        Ok(Answer::Refused(why)) => Err(silent(state, why)),
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => doubt("its shim is not who listens"),
        Err(error) => Err(silent(state, error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::CommandExt;

    fn note(child: Identity, shim: Identity) -> RunningFile {
        let meta = std::fs::metadata(&child.executable).unwrap();
        RunningFile {
            shim,
            child,
            file: (meta.dev(), meta.ino()),
            token: "t".to_owned(),
            config_hash: "c".to_owned(),
            started_at_ms: 1,
            taken: false,
            held: None,
        }
    }

    #[test]
    fn a_process_that_fits_the_note_but_was_not_started_by_a_shim_is_a_stranger() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::open(dir.path()).unwrap();
        let mut command = std::process::Command::new("/bin/sleep");
        let mut foreign = command.arg("60").process_group(0).spawn().unwrap();
        let child = Identity::of(foreign.id()).unwrap();
        let dead = Identity { started_ticks: 0, ..Identity::of(std::process::id()).unwrap() };
        note(child.clone(), dead.clone()).write(&state.running()).unwrap();
        let found = adopt(&state).unwrap();
        assert!(matches!(&found, Adoption::Stranger(why) if why.contains("session")), "{found:?}");
        // The same number with another start time is another process: what ran is gone, and nobody knows how it ended.
        let earlier = Identity { started_ticks: child.started_ticks - 1, ..child };
        note(earlier, dead).write(&state.running()).unwrap();
        assert!(matches!(adopt(&state).unwrap(), Adoption::Lost(_)));
        // A damaged note is no proof that nothing ran.
        std::fs::File::create(state.running()).unwrap();
        assert!(matches!(adopt(&state).unwrap(), Adoption::Lost(_)));
        foreign.kill().unwrap();
        foreign.wait().unwrap();
    }
}
