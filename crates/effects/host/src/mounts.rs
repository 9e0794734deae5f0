//! Which file systems are mounted where, as this process sees it.
//!
//! **Rule:** a directory that is bound onto itself (as systemd does for `ReadWritePaths=` and `StateDirectory=`) is no file system
//! of its own: what counts is the mount below it.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// What the kernel shows of the mounts of this process.
const MOUNTINFO: &str = "/proc/self/mountinfo";

/// All mounts.
#[derive(Debug, Clone)]
pub struct Mounts(Vec<Mount>);

/// One mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    id: u64,
    parent: u64,
    device: String,
    /// The directory of the file system that is mounted.
    root: PathBuf,
    /// Where it is mounted.
    pub mount_point: PathBuf,
    /// The type of the file system.
    pub fs_type: String,
}

impl Mounts {
    /// Reads them.
    pub fn read() -> io::Result<Mounts> {
        Ok(Mounts::parse(&std::fs::read(MOUNTINFO)?))
    }

    /// Lines that cannot be understood are left out.
    fn parse(bytes: &[u8]) -> Mounts {
        Mounts(bytes.split(|byte| *byte == b'\n').filter_map(Mount::parse).collect())
    }

    /// The mount that holds `path`, which is absolute and without symbolic links.
    pub fn holder(&self, path: &Path) -> Option<&Mount> {
        let mut way = self.way_to(path);
        while let [.., below, top] = way.as_slice() {
            if !top.is_bound_onto_itself(below) {
                break;
            }
            way.pop();
        }
        way.pop()
    }

    /// Whether a file system is mounted at this very path.
    pub fn is_mounted(&self, path: &Path) -> bool {
        self.holder(path).is_some_and(|mount| mount.mount_point == path)
    }

    /// The mounts that a walk from the root to `path` enters, in its order. An automounter is not what it mounts.
    fn way_to(&self, path: &Path) -> Vec<&Mount> {
        let is_first =
            |mount: &&Mount| mount.mount_point == Path::new("/") && self.0.iter().all(|it| it.id != mount.parent);
        let mut way: Vec<&Mount> = self.0.iter().find(is_first).into_iter().collect();
        // Each mount is entered once at most.
        for _ in 0..self.0.len() {
            let Some(here) = way.last() else { break };
            let next =
                |mount: &&Mount| mount.parent == here.id && mount.id != here.id && path.starts_with(&mount.mount_point);
            // The first one on the way hides all that were mounted below it before.
            let next = self.0.iter().filter(next).min_by_key(|mount| mount.mount_point.components().count());
            let Some(next) = next else { break };
            way.push(next);
        }
        way.retain(|mount| mount.fs_type != "autofs");
        way
    }
}

impl Mount {
    /// `36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue`
    fn parse(line: &[u8]) -> Option<Mount> {
        let mut words = line.split(|byte| *byte == b' ');
        let mut number = || std::str::from_utf8(words.next()?).ok()?.parse().ok();
        let (id, parent) = (number()?, number()?);
        let device = String::from_utf8(words.next()?.to_vec()).ok()?;
        let (root, mount_point) = (path(words.next()?), path(words.next()?));
        let fs_type = words.skip_while(|word| *word != b"-").nth(1)?;
        Some(Mount { id, parent, device, root, mount_point, fs_type: String::from_utf8_lossy(fs_type).into_owned() })
    }

    fn is_bound_onto_itself(&self, below: &Mount) -> bool {
        let inside = self.mount_point.strip_prefix(&below.mount_point).map(|inside| below.root.join(inside));
        self.device == below.device && inside.is_ok_and(|inside| inside.components().eq(self.root.components()))
    }
}

/// Blanks, tabs, line ends and backslashes are written as `\` and three octal digits.
fn path(text: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, behind)) = rest.split_first() {
        let octal = behind.get(..3).filter(|_| *first == b'\\');
        let octal = octal.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        bytes.push(octal.unwrap_or(*first));
        rest = behind.get(if octal.is_some() { 3 } else { 0 }..).unwrap_or_default();
    }
    PathBuf::from(OsString::from_vec(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(mounts: &str, path: &str) -> Option<String> {
        let mounts = Mounts::parse(mounts.as_bytes());
        mounts.holder(path.as_ref()).map(|mount| format!("{} {}", mount.mount_point.display(), mount.fs_type))
    }

    const PLAIN: &str = "\
22 1 8:1 / / rw - ext4 /dev/sda1 rw
30 22 8:17 / /var/lib/etcd rw shared:1 master:2 - xfs /dev/sdb1 rw
31 22 0:40 /@data /mnt/with\\040blank rw - btrfs /dev/sdc rw
no line at all
";

    #[test]
    fn the_mount_that_holds_a_path_is_the_last_one_on_the_way_to_it() {
        assert_eq!(holder(PLAIN, "/var/lib/etcd/n1").unwrap(), "/var/lib/etcd xfs");
        assert_eq!(holder(PLAIN, "/var/lib/etcd").unwrap(), "/var/lib/etcd xfs");
        assert_eq!(holder(PLAIN, "/var/lib/etcd2").unwrap(), "/ ext4");
        assert_eq!(holder(PLAIN, "/mnt/with blank/a").unwrap(), "/mnt/with blank btrfs");
        let mounts = Mounts::parse(PLAIN.as_bytes());
        assert!(mounts.is_mounted("/var/lib/etcd".as_ref()) && !mounts.is_mounted("/var/lib".as_ref()));
        assert_eq!(holder("", "/var"), None);
        assert!(Mounts::read().unwrap().is_mounted("/".as_ref()));
    }

    #[test]
    fn a_directory_that_is_bound_onto_itself_is_no_file_system_of_its_own() {
        let unmounted = "22 1 8:1 / / rw - ext4 a rw\n40 22 8:1 /var/lib/etcd /var/lib/etcd rw - ext4 a rw\n";
        assert_eq!(holder(unmounted, "/var/lib/etcd/n1").unwrap(), "/ ext4");
        let mounted = PLAIN.to_owned() + "40 30 8:17 / /var/lib/etcd rw - xfs /dev/sdb1 rw\n";
        assert_eq!(holder(&mounted, "/var/lib/etcd/n1").unwrap(), "/var/lib/etcd xfs");
        let elsewhere = "22 1 8:1 / / rw - ext4 a rw\n40 22 8:1 /srv/etcd /var/lib/etcd rw - ext4 a rw\n";
        assert_eq!(
            holder(elsewhere, "/var/lib/etcd").unwrap(),
            "/var/lib/etcd ext4",
            "a bind mount of another directory"
        );
        // Another subvolume of the same file system.
        let btrfs = "22 1 0:30 /@root / rw - btrfs a rw\n40 22 0:30 /@etcd /var/lib/etcd rw - btrfs a rw\n";
        assert_eq!(holder(btrfs, "/var/lib/etcd").unwrap(), "/var/lib/etcd btrfs");
    }

    #[test]
    fn what_a_later_mount_hides_and_what_an_automounter_only_promises_is_not_mounted() {
        let hidden = PLAIN.to_owned() + "50 22 0:9 / /var rw - tmpfs none rw\n";
        assert_eq!(holder(&hidden, "/var/lib/etcd/n1").unwrap(), "/var tmpfs");
        let automatic = "22 1 8:1 / / rw - ext4 a rw\n40 22 0:9 / /data rw - autofs systemd-1 rw\n";
        assert_eq!(holder(automatic, "/data/n1").unwrap(), "/ ext4");
        let done = automatic.to_owned() + "41 40 8:17 / /data rw - xfs b rw\n";
        assert_eq!(holder(&done, "/data/n1").unwrap(), "/data xfs");
    }
}
