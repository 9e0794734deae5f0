//! Small files, read with a limit and written so that they are there whole or not at all.
//!
//! **Rule:** whoever writes holds the folder's lock; new files belong to whoever the folder belongs to, so that root can work
//! for the user that etcd runs as.

use std::io::{ErrorKind, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use quorate_faults::{Code, Fault};
use quorate_host::durable::{Access, Disk, DiskFile, Owner, RealDisk, SPENT_MARK, is_partial_of, partial_path};
use quorate_host::locks::{Lock, exclusive_lock};

/// Keys and chains of certificates are far below this.
pub(crate) const BYTES_MAX: u64 = 1 << 20;

/// Others hold the lock for a few writes.
const PATIENCE: Duration = Duration::from_secs(20);

/// Who may read a private key.
pub(crate) const SECRET: u32 = 0o600;
/// Who may read a certificate.
pub(crate) const PUBLIC: u32 = 0o644;

/// A folder that nobody else writes into while this lives.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    owner: Option<Owner>,
    _lock: Lock,
}

/// Reads a whole file.
pub(crate) fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.take(BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > BYTES_MAX {
        return Err(std::io::Error::new(ErrorKind::FileTooLarge, "it is far too long for a key or a certificate"));
    }
    Ok(bytes)
}

/// Reads a whole file; `None` if there is none.
pub(crate) fn read_if_there(path: &Path) -> Result<Option<Vec<u8>>, Fault> {
    match read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Fault::io(format!("cannot read `{}`", path.display()), error)),
    }
}

impl Folder {
    /// Makes the folder if it is missing, and waits until nobody else writes into it.
    pub(crate) fn open(path: &Path, mode: u32) -> Result<Folder, Fault> {
        make(path, mode)?;
        let fail = |error| Fault::io(format!("cannot use the folder `{}`", path.display()), error);
        let began = Instant::now();
        let lock = loop {
            match exclusive_lock(path).map_err(fail)? {
                Some(lock) => break lock,
                None if began.elapsed() < PATIENCE => std::thread::sleep(Duration::from_millis(20)),
                None => {
                    return Err(Fault::new(
                        Code::CertificatesBusy,
                        format!("`{}` is being written to", path.display()),
                    )
                    .hint("run it again"));
                }
            }
        };
        let meta = lock.as_file().metadata().map_err(fail)?;
        let ours = rustix::process::geteuid().as_raw();
        // Only root can give a file away.
        let owner = (ours == 0 && meta.uid() != ours).then(|| Owner { uid: meta.uid(), gid: meta.gid() });
        Ok(Folder { path: path.to_owned(), owner, _lock: lock })
    }

    /// The path of a file in it.
    pub(crate) fn at(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Writes a file, in the place of the one before. When it returns, what it wrote survives a power cut.
    pub(crate) fn write(&self, name: &str, bytes: &[u8], mode: u32) -> Result<(), Fault> {
        let path = self.at(name);
        self.remove_partials(name)?;
        let invalid = || Fault::io(format!("cannot write `{}`", path.display()), ErrorKind::InvalidInput.into());
        let partial = partial_path(&path, std::process::id()).ok_or_else(invalid)?;
        let mut file = RealDisk.create_file(&partial, self.access(&path, mode))?;
        file.write_all(bytes)?;
        file.sync()?;
        drop(file);
        match RealDisk.rename_new(&partial, &path) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::AlreadyExists => RealDisk.replace_file(&partial, &path)?,
            Err(error) => return Err(error.into()),
        }
        Ok(RealDisk.sync_dir(&self.path)?)
    }

    /// For whom a file is written. One that root replaces keeps its owner and group, and what the group may: etcd may run as
    /// another user than the one that writes its keys.
    fn access(&self, path: &Path, mode: u32) -> Access {
        let before = path.metadata().ok().filter(|meta| meta.is_file() && rustix::process::geteuid().is_root());
        match (self.owner, before) {
            (None, Some(meta)) => {
                let owner = Some(Owner { uid: meta.uid(), gid: meta.gid() });
                Access { mode: mode | (meta.mode() & 0o040), owner }
            }
            (owner, _) => Access { mode, owner },
        }
    }

    /// Removes a file whose content lies elsewhere too.
    pub(crate) fn drop_copy(&self, name: &str) -> Result<(), Fault> {
        let spent = self.spent(name);
        RealDisk.remove_partial(&spent)?;
        match RealDisk.rename_new(&self.at(name), &spent) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        RealDisk.remove_partial(&spent)?;
        Ok(RealDisk.sync_dir(&self.path)?)
    }

    /// Removes what a removal that was cut off has left.
    pub(crate) fn drop_spent(&self, name: &str) -> Result<(), Fault> {
        Ok(RealDisk.remove_partial(&self.spent(name))?)
    }

    fn spent(&self, name: &str) -> PathBuf {
        self.at(&format!("{name}{SPENT_MARK}"))
    }

    /// Removes what a run that was killed has left of this file: it may be a part of a key.
    fn remove_partials(&self, name: &str) -> Result<(), Fault> {
        let fail = |error| Fault::io(format!("cannot list `{}`", self.path.display()), error);
        for entry in std::fs::read_dir(&self.path).map_err(fail)? {
            let found = entry.map_err(fail)?.file_name();
            if is_partial_of(&found, name.as_ref()) {
                RealDisk.remove_partial(&self.path.join(found))?;
            }
        }
        Ok(())
    }
}

/// Makes a folder, and what is missing above it.
fn make(path: &Path, mode: u32) -> Result<(), Fault> {
    if path.is_dir() {
        return Ok(());
    }
    let parent = match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => Path::new("/"),
    };
    make(parent, 0o755)?;
    match RealDisk.create_dir(path, Access::mode(mode)) {
        Ok(()) => Ok(RealDisk.sync_dir(parent)?),
        Err(error) if error.kind() == ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        Err(error) => Err(error.into()),
    }
}
