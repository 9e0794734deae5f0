//! Joins the cgroups of a process, of both versions.
//!
//! **Rule:** a hierarchy in which we are already is not touched.

use std::fs::File;
use std::io::{self, Write};

/// Joins every cgroup of `theirs`, the content of its `/proc/PID/cgroup`, by its path in our own mounts.
pub(super) fn join(theirs: &str) -> io::Result<()> {
    let ours = std::fs::read_to_string("/proc/self/cgroup")?;
    if ours == theirs {
        return Ok(());
    }
    let mounts = std::fs::read_to_string("/proc/self/mountinfo")?;
    for line in theirs.lines().filter(|line| !ours.lines().any(|our| our == *line)) {
        let Some(dir) = dir_of(line, &mounts) else {
            return Err(io::Error::other(format!("`{line}` is not mounted here")));
        };
        // Zero stands for whoever writes it, in every pid namespace.
        let procs = File::options().write(true).open(format!("{dir}/cgroup.procs"));
        procs.and_then(|mut file| file.write_all(b"0"))?;
    }
    Ok(())
}

/// The dir of `ID:CONTROLLERS:PATH`, as some line of `mountinfo` shows it.
fn dir_of(cgroup: &str, mounts: &str) -> Option<String> {
    let mut parts = cgroup.splitn(3, ':');
    let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
    mounts.lines().find_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let mut before = before.split(' ').skip(3);
        let (root, point) = (before.next()?, before.next()?);
        let mut after = after.split(' ');
        let (kind, options) = (after.next()?, after.nth(1)?);
        let fits = match (kind, controllers) {
            ("cgroup2", "") => true,
            ("cgroup", "") | ("cgroup2", _) => false,
            ("cgroup", some) => some.split(',').all(|name| options.split(',').any(|option| option == name)),
            _ => false,
        };
        let inner = if root == "/" { path } else { path.strip_prefix(root)? };
        // Outside of what we may see.
        (fits && !inner.starts_with("/..")).then(|| format!("{point}{}", inner.trim_end_matches('/')))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
25 1 0:22 / /sys rw - sysfs sysfs rw
30 25 0:26 / /sys/fs/cgroup/unified rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate
31 25 0:27 / /sys/fs/cgroup/memory rw shared:10 - cgroup cgroup rw,memory
32 25 0:28 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
33 25 0:29 /sub /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd
";

    #[test]
    fn each_hierarchy_is_found_where_it_is_mounted() {
        let dir = |line: &str| dir_of(line, MOUNTS);
        assert_eq!(dir("0::/quorate/n1").as_deref(), Some("/sys/fs/cgroup/unified/quorate/n1"));
        assert_eq!(dir("0::/").as_deref(), Some("/sys/fs/cgroup/unified"));
        assert_eq!(dir("5:memory:/q").as_deref(), Some("/sys/fs/cgroup/memory/q"));
        assert_eq!(dir("4:cpu,cpuacct:/q").as_deref(), Some("/sys/fs/cgroup/cpu,cpuacct/q"));
        assert_eq!(dir("1:name=systemd:/sub/a").as_deref(), Some("/sys/fs/cgroup/systemd/a"));
        assert_eq!(dir("1:name=systemd:/other"), None);
        assert_eq!(dir("9:pids:/q"), None);
        assert_eq!(dir("0::/../up"), None);
        assert_eq!(dir("junk"), None);
    }

    #[test]
    fn where_we_are_already_nothing_is_joined() {
        join(&std::fs::read_to_string("/proc/self/cgroup").unwrap()).unwrap();
    }
}
