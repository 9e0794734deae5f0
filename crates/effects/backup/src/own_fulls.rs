//! The record of the fulls that this node wrote, beside its spool: etcd-backup-restore's layout records no cluster.
//!
//! **Rule:** a record that cannot be read is none: then the members that fulls list are compared.

use std::io::Read;
use std::path::Path;

use quorate_faults::{Fault, Result};
use quorate_host::durable::{Access, Disk, DiskFile, RealDisk, partial_path};
use quorate_plan::follow::OwnFulls;

/// Its name in the directory of the spool.
pub const OWN_FULLS: &str = "own-fulls";

/// More than the names of any number of fulls that rules keep.
const BYTES_MAX: u64 = 1 << 20;

/// Reads it.
pub fn read(spool: &Path) -> OwnFulls {
    let Ok(file) = std::fs::File::open(spool.join(OWN_FULLS)) else { return OwnFulls::default() };
    let mut bytes = Vec::new();
    let read = file.take(BYTES_MAX).read_to_end(&mut bytes);
    read.ok().and_then(|_| serde_json::from_slice(&bytes).ok()).unwrap_or_default()
}

/// Replaces it durably. Whoever has the spool writes it.
pub fn write(spool: &Path, record: &OwnFulls) -> Result<()> {
    let path = spool.join(OWN_FULLS);
    let missing = || Fault::io(format!("cannot write `{}`", path.display()), std::io::ErrorKind::InvalidInput.into());
    let partial = partial_path(&path, std::process::id()).ok_or_else(missing)?;
    RealDisk.remove_partial(&partial)?;
    let mut file = RealDisk.create_file(&partial, Access::mode(0o600))?;
    file.write_all(&serde_json::to_vec(record).unwrap_or_default())?;
    file.sync()?;
    drop(file);
    match RealDisk.rename_new(&partial, &path) {
        Ok(()) => {}
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => RealDisk.replace_file(&partial, &path)?,
        Err(error) => return Err(error.into()),
    }
    Ok(RealDisk.sync_dir(spool)?)
}
