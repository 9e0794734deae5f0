//! The ledger on disk: read as what it is, and replaced durably.
//!
//! **Rule:** no ledger and one that cannot be read are different answers. When a write returns, what it wrote survives a power
//! cut, and the one before was there until then.

use std::io::Read;
use std::path::Path;

use quorate_faults::Fault;
use quorate_host::durable::{Access, Disk, DiskFile, partial_path};
use quorate_plan::ledger::{BYTES_MAX, Ledger, LedgerSeen};

/// The ledger's name in a member's state dir.
pub const FILE_NAME: &str = "ledger";

/// Reads the ledger at `path`.
pub fn observe_ledger(path: &Path) -> LedgerSeen {
    let file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return LedgerSeen::Absent,
        Err(error) => return LedgerSeen::Unreadable(error.to_string()),
    };
    let mut bytes = Vec::new();
    // One byte more than the longest ledger, so that a longer file is noticed and not read.
    let limit = u64::try_from(BYTES_MAX).unwrap_or(u64::MAX).saturating_add(1);
    if let Err(error) = file.take(limit).read_to_end(&mut bytes) {
        return LedgerSeen::Unreadable(error.to_string());
    }
    match Ledger::decode(&bytes) {
        Ok(ledger) => LedgerSeen::There(Box::new(ledger)),
        Err(error) => LedgerSeen::Unreadable(error.to_string()),
    }
}

/// Replaces the ledger at `path`, whose directory must exist. Only one process writes it: whoever holds the state dir's lock.
pub fn ensure_ledger<D: Disk>(disk: &D, path: &Path, ledger: &Ledger) -> Result<(), Fault> {
    let missing = || Fault::io(format!("cannot write `{}`", path.display()), std::io::ErrorKind::InvalidInput.into());
    let partial = partial_path(path, std::process::id()).ok_or_else(missing)?;
    let parent = path.parent().ok_or_else(missing)?;
    disk.remove_partial(&partial)?;
    let mut file = disk.create_file(&partial, Access::mode(0o600))?;
    file.write_all(&ledger.encode())?;
    file.sync()?;
    drop(file);
    match disk.rename_new(&partial, path) {
        Ok(()) => {}
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => disk.replace_file(&partial, path)?,
        Err(error) => return Err(error.into()),
    }
    disk.sync_dir(parent)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use quorate_host::durable::RealDisk;

    use super::*;

    #[test]
    fn a_ledger_is_absent_there_or_unreadable() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join(FILE_NAME);
        assert_eq!(observe_ledger(&path), LedgerSeen::Absent);
        for generation in [1, 2] {
            let ledger = Ledger { generation, ..Ledger::default() };
            ensure_ledger(&RealDisk, &path, &ledger).expect("written");
            assert_eq!(observe_ledger(&path), LedgerSeen::There(Box::new(ledger)));
        }
        let names = std::fs::read_dir(dir.path()).expect("listed").count();
        assert_eq!(names, 1, "nothing is left behind");
        let file = std::fs::OpenOptions::new().write(true).open(&path).expect("opened");
        file.set_len(40).expect("cut");
        assert!(matches!(observe_ledger(&path), LedgerSeen::Unreadable(_)));
        assert!(matches!(observe_ledger(dir.path()), LedgerSeen::Unreadable(_)));
    }
}
