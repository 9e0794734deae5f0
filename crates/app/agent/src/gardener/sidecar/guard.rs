//! Whose volume it is: `safe_guard` with the namespace, as etcd-backup-restore has it, and a file of ours with the pod.
//!
//! **Invariant:** nothing below a volume that belongs to somebody else is touched.

use std::path::Path;

use quorate_faults::{Code, Fault, Result};

use crate::gardener::small_file;

/// Names in Kubernetes have at most 253 letters.
const BYTES_MAX: u64 = 1024;

/// Compares, and writes what is not there yet. Without a namespace there is nothing to compare.
pub(super) fn check(volume: &Path, namespace: Option<&str>, pod: Option<&str>) -> Result<()> {
    let Some(namespace) = namespace else { return Ok(()) };
    compare(&volume.join("safe_guard"), namespace)?;
    // The namespace alone does not tell two members of one cluster apart.
    match pod {
        Some(pod) => compare(&volume.join("safe_guard.quorate"), &format!("{namespace}/{pod}")),
        None => Ok(()),
    }
}

fn compare(path: &Path, wanted: &str) -> Result<()> {
    let found = small_file::read(path, BYTES_MAX)
        .map_err(|error| Fault::io(format!("cannot tell whose volume this is by `{}`", path.display()), error))?;
    match found.as_deref().map(str::trim) {
        None => small_file::write(path, wanted.as_bytes()),
        Some(found) if found == wanted => Ok(()),
        Some(found) => {
            let what = format!("this volume belongs to `{found}` and not to `{wanted}`, as `{}` says", path.display());
            Err(Fault::new(Code::WrongVolume, what).hint("mount the right volume; nothing on this one was touched"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_of_another_namespace_or_pod_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let check = |namespace, pod| check(dir.path(), namespace, pod).map_err(|fault| fault.code());
        check(None, Some("etcd-0")).unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        for _ in 0..2 {
            check(Some("shoot"), Some("etcd-0")).unwrap();
        }
        assert_eq!(std::fs::read_to_string(dir.path().join("safe_guard")).unwrap(), "shoot");
        assert_eq!(check(Some("other"), Some("etcd-0")), Err(Code::WrongVolume));
        assert_eq!(check(Some("shoot"), Some("etcd-1")), Err(Code::WrongVolume));
    }
}
