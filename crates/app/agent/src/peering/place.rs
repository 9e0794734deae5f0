//! Where a node keeps what it knows of its own part: one folder in the state dir, with the cluster file and the role in it.

use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use quorate_etcd::aside::ensure_file;
use quorate_faults::{Code, Fault};
use quorate_host::durable::RealDisk;
use quorate_plan::certificates::is_host_name;
use quorate_plan::peering::LocalState;

/// The role of the node, in its folder.
const STATE: &str = "node";
/// The cluster file that agents write themselves.
const FILE: &str = "cluster.yaml";
/// In the names of folders that an earlier membership of the node left behind.
const QUARANTINED: &str = ".replaced-";

/// The folder of one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Where all state is kept.
    pub state_dir: PathBuf,
    /// The node.
    pub name: String,
}

impl Place {
    /// The folder.
    pub fn dir(&self) -> PathBuf {
        self.state_dir.join(&self.name)
    }

    /// The cluster file.
    pub fn file(&self) -> PathBuf {
        self.dir().join(FILE)
    }

    /// What the node is; none: it was never part of a cluster by hand.
    pub fn local(&self) -> Result<Option<LocalState>, Fault> {
        read(&self.dir())
    }

    /// Writes down what the node is.
    pub fn ensure_local(&self, state: &LocalState) -> Result<(), Fault> {
        write(&self.dir(), state)
    }
}

/// What the node of a folder is.
pub(super) fn read(dir: &Path) -> Result<Option<LocalState>, Fault> {
    let path = dir.join(STATE);
    let fail = |cause: Box<dyn std::error::Error + Send + Sync>| {
        Fault::new(Code::NodeStateUnreadable, format!("cannot read what this node is from `{}`", path.display()))
            .hint("see `quorate explain Q1216`; nothing was changed")
            .caused_by(cause)
    };
    let file = match std::fs::File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(fail(error.into())),
    };
    let mut bytes = Vec::new();
    let limit = u64::try_from(LocalState::BYTES_MAX).unwrap_or(u64::MAX).saturating_add(1);
    file.take(limit).read_to_end(&mut bytes).map_err(|error| fail(error.into()))?;
    LocalState::decode(&bytes).map(Some).map_err(|error| fail(error.into()))
}

/// Writes down what the node of a folder is.
pub(super) fn write(dir: &Path, state: &LocalState) -> Result<(), Fault> {
    ensure_file(&RealDisk, &dir.join(STATE), state.encode().as_bytes())
}

/// The node of this machine, by its name or because it is the only one.
pub fn find(state_dir: &Path, name: Option<&str>) -> Result<Option<(Place, LocalState)>, Fault> {
    let at = |name: &str| Place { state_dir: state_dir.to_owned(), name: name.to_owned() };
    if let Some(name) = name {
        let place = at(checked(name)?);
        return Ok(place.local()?.map(|state| (place, state)));
    }
    let mut found = all(state_dir)?;
    match found.len() {
        0 | 1 => Ok(found.pop()),
        several => Err(Fault::new(Code::Usage, format!("`{}` holds {several} nodes", state_dir.display()))
            .hint("say which one: `--name NAME`")),
    }
}

/// Every node of this machine.
pub(super) fn all(state_dir: &Path) -> Result<Vec<(Place, LocalState)>, Fault> {
    let at = |name: &str| Place { state_dir: state_dir.to_owned(), name: name.to_owned() };
    let mut found = Vec::new();
    let entries = match std::fs::read_dir(state_dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(found),
        Err(error) => return Err(Fault::io(format!("cannot list `{}`", state_dir.display()), error)),
    };
    for entry in entries.flatten() {
        // A quarantined folder has the time in its name.
        let name = entry.file_name().to_string_lossy().into_owned();
        if checked(&name).is_err() || name.contains(QUARANTINED) || !entry.path().join(STATE).is_file() {
            continue;
        }
        let place = at(&name);
        if let Some(state) = place.local()? {
            found.push((place, state));
        }
    }
    Ok(found)
}

/// A name that can be a folder and stand in a certificate.
pub(super) fn checked(name: &str) -> Result<&str, Fault> {
    if is_host_name(name) {
        return Ok(name);
    }
    Err(Fault::new(Code::Usage, format!("`{}` is no name for a node", name.escape_debug()))
        .hint("use letters, digits, `-` and `_`, parted by dots, as in a host name"))
}

/// The machine's name, where nobody gives the node another.
pub fn hostname() -> Result<String, Fault> {
    let fail = |error| Fault::io("cannot read the name of this machine", error);
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").map_err(fail)?;
    let name = name.trim().to_ascii_lowercase();
    checked(&name).map(str::to_owned).map_err(|fault| fault.hint("name the node: `--name n1`"))
}
