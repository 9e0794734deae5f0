//! Reads a cluster file, for whoever acts on one.
//!
//! **Rule:** all dirs of it lie below `QUORATE_ROOT` where that is set, so that no command acts on another place than the
//! agent.

use std::path::{Path, PathBuf};

use quorate_faults::Fault;
use quorate_host::root::root;
use quorate_plan::Warning;
use quorate_plan::spec::{Spec, below_root};

/// Where the cluster file is when nobody says.
pub const DEFAULT_FILE: &str = "/etc/quorate/cluster.yaml";
/// Where state is kept when nobody says.
pub const DEFAULT_STATE: &str = "/var/lib/quorate";

/// Reads and checks it.
pub fn read(file: &Path) -> Result<(Spec, Vec<Warning>), Fault> {
    let shown = file.display().to_string();
    let bytes = std::fs::read(file).map_err(|error| Fault::io(format!("cannot read `{shown}`"), error))?;
    let (spec, warnings) = Spec::parse(&bytes, &shown).map_err(|mistakes| mistakes.fault())?;
    Ok(match root()? {
        Some(root) => (spec.below(&root), warnings),
        None => (spec, warnings),
    })
}

/// A path of ours, below the root where one is set.
pub fn place(path: &str) -> Result<PathBuf, Fault> {
    Ok(match root()? {
        Some(root) => PathBuf::from(below_root(path, &root)),
        None => PathBuf::from(path),
    })
}
