//! The state dir of one member: the agent's lock, what the shim was told, what it started, and how that ended.
//!
//! **Invariant:** one agent at a time works on a state dir, and nobody else may look into it; a directory of other people's is
//! never made into one.

use std::fs::OpenOptions;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use quorate_faults::{Code, Fault};

use crate::locks::{Lock, LockState, exclusive_lock, probe_flock};

/// What the shim is told is called.
pub(crate) const ORDERS: &str = "shim.json";
/// What only state dirs hold.
const MARKS: [&str; 6] = ["agent.lock", "shim.lock", ORDERS, "running", "exit-record", "ledger"];

/// The directory, made and private.
#[derive(Debug, Clone)]
pub struct StateDir {
    path: PathBuf,
}

/// The right to act on a state dir; given back when dropped or when the process ends.
#[derive(Debug)]
pub struct StateLock {
    _lock: Lock,
}

impl StateDir {
    /// Makes the directory if it is missing, for the user who runs this alone.
    pub fn open(path: &Path) -> Result<StateDir, Fault> {
        let fail = |error| Fault::io(format!("cannot use the state dir `{}`", path.display()), error);
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(fail)?;
        let path = path.canonicalize().map_err(fail)?;
        if path.metadata().map_err(fail)?.permissions().mode() & 0o077 != 0 {
            if !is_for_us(&path).map_err(fail)? {
                let said =
                    format!("`{}` is no state dir: it is open to others, and holds other things", path.display());
                return Err(Fault::new(Code::StateDirForeign, said).hint("name a directory that is for this alone"));
            }
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).map_err(fail)?;
        }
        Ok(StateDir { path })
    }

    /// One that somebody else made, as it is.
    pub(crate) fn made(path: &Path) -> Result<StateDir, Fault> {
        let path = path.canonicalize();
        let path = path.map_err(|error| Fault::io("cannot find the state dir", error))?;
        Ok(StateDir { path })
    }

    /// The directory itself.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What the shim is told.
    pub fn spec(&self) -> PathBuf {
        self.path.join(ORDERS)
    }

    /// Which processes the shim and the program are.
    pub fn running(&self) -> PathBuf {
        self.path.join("running")
    }

    /// Where the shim listens.
    pub fn socket(&self) -> PathBuf {
        self.path.join("shim.sock")
    }

    /// How the program ended.
    pub fn record(&self) -> PathBuf {
        self.path.join("exit-record")
    }

    pub(crate) fn shim_lock(&self) -> PathBuf {
        self.path.join("shim.lock")
    }

    /// Takes the lock of the one agent that may act here.
    pub fn lock(&self) -> Result<StateLock, Fault> {
        let path = self.path.join("agent.lock");
        match take(&path)? {
            Ok(lock) => Ok(StateLock { _lock: lock }),
            Err(holder) => {
                let who = holder.map_or("another process".to_owned(), |pid| format!("process {pid}"));
                let said = format!("the state dir `{}` is in use by {who}", self.path.display());
                Err(Fault::new(Code::StateDirBusy, said)
                    .hint("stop the other agent first, or give this one its own dir"))
            }
        }
    }
}

/// Whether a directory is empty, or was a state dir before.
fn is_for_us(dir: &Path) -> std::io::Result<bool> {
    Ok(MARKS.iter().any(|name| dir.join(name).symlink_metadata().is_ok()) || dir.read_dir()?.next().is_none())
}

/// Takes the lock on a file that is made if need be; else says who holds it, where the kernel tells.
pub(crate) fn take(path: &Path) -> Result<Result<Lock, Option<u32>>, Fault> {
    let fail = |error| Fault::io(format!("cannot lock `{}`", path.display()), error);
    let file = OpenOptions::new().create(true).append(true).mode(0o600).open(path).map_err(fail)?;
    if let Some(lock) = exclusive_lock(path).map_err(fail)? {
        return Ok(Ok(lock));
    }
    match probe_flock(&file) {
        LockState::Held { pid } => Ok(Err(pid)),
        LockState::Free => Ok(Err(None)),
        LockState::Unknown(error) => Err(fail(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_agent_is_refused_and_told_who_the_first_is() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::open(&dir.path().join("a/b")).unwrap();
        assert_eq!(state.path().metadata().unwrap().permissions().mode() & 0o777, 0o700);
        let first = state.lock().unwrap();
        let refused = state.lock().unwrap_err();
        assert_eq!(refused.code(), Code::StateDirBusy);
        assert!(refused.to_string().contains(&format!("process {}", std::process::id())), "{refused}");
        drop(first);
        state.lock().unwrap();
    }

    #[test]
    fn a_directory_of_others_is_left_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
        let open = |path: &Path| std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
        std::fs::create_dir(dir.path().join("etc")).unwrap();
        open(dir.path());
        assert_eq!(StateDir::open(dir.path()).unwrap_err().code(), Code::StateDirForeign);
        assert_eq!(mode(dir.path()), 0o755);
        // An empty one becomes ours, and one that was ours is closed again.
        let own = dir.path().join("own");
        std::fs::create_dir(&own).unwrap();
        open(&own);
        let state = StateDir::open(&own).unwrap();
        drop(state.lock().unwrap());
        open(&own);
        StateDir::open(&own).unwrap();
        assert_eq!(mode(&own), 0o700);
    }
}
