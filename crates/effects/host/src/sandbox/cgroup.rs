//! Limits of memory, processes and processor time, by the kernel's control groups: version 2, and 1 where that is there.
//!
//! **Invariant:** a group is named after the process that made it and the pid namespace in which that has its number; groups of
//! makers that are gone are removed by the next.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use quorate_plan::boxes::Limits;
use rustix::fs::{Access, AtFlags, CWD, access, unlinkat};

use super::raw::{clone_careless, clone_into, is_alone};
use crate::process::stat;

/// What our groups are called.
const PREFIX: &str = "quorate-box-";
/// How long a group may be busy after its last process has ended.
const REMOVE_LIMIT: Duration = Duration::from_secs(5);
/// A group from a pid namespace that is not ours may be about to be filled by a maker that we do not see; after this time not.
const FOREIGN_AGE: Duration = Duration::from_secs(600);
/// The span over which processor time is counted, in microseconds; the kernel's own default.
const PERIOD_US: u64 = 100_000;

/// What the last plan saw, for the box that is made of it.
static SEEN: Mutex<Option<Places>> = Mutex::new(None);

/// Where groups can be made, for each kind of limit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Places {
    pub(super) memory: Option<Place>,
    pub(super) pids: Option<Place>,
    pub(super) cpu: Option<Place>,
}

/// A directory in which groups can be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    dir: PathBuf,
    v2: bool,
}

impl Places {
    /// Looks at this machine.
    pub(super) fn observe() -> Places {
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let own = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        Places::read(&mounts, &own)
    }

    /// The same while a box is planned: what was seen is kept for whoever makes it.
    pub(super) fn observe_for_plan() -> Places {
        let places = Places::observe();
        *SEEN.lock().unwrap_or_else(PoisonError::into_inner) = Some(places.clone());
        places
    }

    /// What was seen when the box was planned, in the same process; else it is looked at now.
    pub(super) fn planned() -> Places {
        SEEN.lock().unwrap_or_else(PoisonError::into_inner).take().unwrap_or_else(Places::observe)
    }

    fn read(mounts: &str, own: &str) -> Places {
        let find = |name: &str| second(mounts, own, name).or_else(|| first(mounts, own, name));
        Places { memory: find("memory"), pids: find("pids"), cpu: find("cpu") }
    }
}

/// A hierarchy of version 1.
fn first(mounts: &str, own: &str, name: &str) -> Option<Place> {
    let mount = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>()).find(|words| {
        words.get(2) == Some(&"cgroup") && words.get(3).is_some_and(|options| options.split(',').any(|o| o == name))
    })?;
    let mine = own.lines().find_map(|line| {
        let mut words = line.splitn(3, ':');
        let controllers = words.nth(1)?;
        controllers.split(',').any(|controller| controller == name).then(|| words.next())?
    })?;
    let top = PathBuf::from(mount.get(1)?);
    // In a container the path may be one of the outside, which is not there.
    let dir = Some(top.join(mine.trim_start_matches('/'))).filter(|dir| dir.is_dir()).unwrap_or(top);
    writable(&dir).then_some(Place { dir, v2: false })
}

/// The hierarchy of version 2. A group that has processes cannot divide its share, so ours lies beside our own.
fn second(mounts: &str, own: &str, name: &str) -> Option<Place> {
    let mount = mounts
        .lines()
        .map(|line| line.split(' ').collect::<Vec<_>>())
        .find(|words| words.get(2) == Some(&"cgroup2"))?;
    let mine = own.lines().find_map(|line| line.strip_prefix("0::"))?;
    let top = PathBuf::from(mount.get(1)?);
    let mine = top.join(mine.trim_start_matches('/'));
    let dir = if mine == top { top.clone() } else { mine.parent()?.to_owned() };
    let lists = |file: &str| {
        let text = std::fs::read_to_string(dir.join(file)).unwrap_or_default();
        text.split_whitespace().any(|word| word == name)
    };
    if !writable(&dir) || !lists("cgroup.controllers") {
        return None;
    }
    if !lists("cgroup.subtree_control") {
        put(&dir.join("cgroup.subtree_control"), &format!("+{name}")).ok()?;
    }
    Some(Place { dir, v2: true })
}

fn writable(dir: &Path) -> bool {
    access(dir, Access::WRITE_OK | Access::EXEC_OK).is_ok()
}

fn put(file: &Path, value: &str) -> io::Result<()> {
    File::options().write(true).open(file)?.write_all(value.as_bytes())
}

/// The groups of one box; removed when dropped.
#[derive(Debug, Default)]
pub(super) struct Groups {
    dirs: Vec<Group>,
}

/// One of them. Whoever puts another process into a group waits until every processor has passed a quiet moment, which takes
/// many milliseconds; so a process is begun in its group, or puts itself in.
#[derive(Debug)]
struct Group {
    dir: PathBuf,
    /// Of version 1: where a process of one thread puts itself in.
    own_way: Option<File>,
    /// Of version 2: the process was begun in it.
    begun: bool,
}

impl Group {
    fn new(dir: PathBuf) -> Group {
        Group { dir, own_way: None, begun: false }
    }
}

impl Groups {
    /// Makes the groups that the limits need. What has no place is skipped: whether that is allowed was decided before.
    pub(super) fn make(places: &Places, limits: &Limits) -> io::Result<Groups> {
        let mut groups = Groups::default();
        let pid = std::process::id();
        let name = name_of(pid, stat(pid)?.started_ticks)?;
        if let (Some(place), Some(bytes)) = (&places.memory, limits.memory_bytes) {
            let dir = groups.dir(place, &name)?;
            put(&dir.join(if place.v2 { "memory.max" } else { "memory.limit_in_bytes" }), &bytes.to_string())?;
            // Without these files the machine does not swap what the group has.
            let (file, value) = if place.v2 { ("memory.swap.max", 0) } else { ("memory.memsw.limit_in_bytes", bytes) };
            let _ = put(&dir.join(file), &value.to_string());
        }
        if let (Some(place), Some(pids)) = (&places.pids, limits.pids) {
            // The init counts too.
            put(&groups.dir(place, &name)?.join("pids.max"), &pids.saturating_add(1).to_string())?;
        }
        if let (Some(place), Some(percent)) = (&places.cpu, limits.cpu_percent) {
            let (dir, quota) = (groups.dir(place, &name)?, u64::from(percent) * PERIOD_US / 100);
            if place.v2 {
                put(&dir.join("cpu.max"), &format!("{quota} {PERIOD_US}"))?;
            } else {
                put(&dir.join("cpu.cfs_period_us"), &PERIOD_US.to_string())?;
                put(&dir.join("cpu.cfs_quota_us"), &quota.to_string())?;
            }
        }
        Ok(groups)
    }

    /// The groups that a maker has left, which is gone.
    pub(super) fn left_by(pid: u32, started_ticks: u64) -> io::Result<Groups> {
        let (Places { memory, pids, cpu }, name) = (Places::observe(), name_of(pid, started_ticks)?);
        let dirs = [memory, pids, cpu].into_iter().flatten().map(|place| place.dir.join(&name));
        Ok(Groups { dirs: dirs.filter(|dir| dir.is_dir()).map(Group::new).collect() })
    }

    fn dir(&mut self, place: &Place, name: &str) -> io::Result<PathBuf> {
        sweep(&place.dir);
        let dir = place.dir.join(name);
        if !self.dirs.iter().any(|group| group.dir == dir) {
            match std::fs::create_dir(&dir) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                Ok(()) | Err(_) => {}
            }
            self.dirs.push(Group::new(dir.clone()));
            if let (false, Some(group)) = (place.v2, self.dirs.last_mut()) {
                group.own_way = Some(File::options().write(true).open(dir.join("tasks"))?);
            }
        }
        Ok(dir)
    }

    /// Makes a process of one that has one thread; where the kernel can, it begins in its group of version 2.
    pub(super) fn clone_process(&mut self, namespaces: u64) -> io::Result<Option<u32>> {
        is_alone()?;
        if let Some(group) = self.dirs.iter_mut().find(|group| group.own_way.is_none())
            && let Ok(dir) = File::open(&group.dir)
            && let Ok(made) = clone_into(namespaces, dir.as_fd())
        {
            group.begun = true;
            return Ok(made);
        }
        clone_careless(namespaces)
    }

    /// Puts a process, and all it will start, into the groups that it is not in and cannot go into itself.
    pub(super) fn take_in(&self, pid: u32) -> io::Result<()> {
        let others = self.dirs.iter().filter(|group| group.own_way.is_none() && !group.begun);
        others.map(|group| &group.dir).try_for_each(|dir| put(&dir.join("cgroup.procs"), &pid.to_string()))
    }

    /// Puts this process, which has one thread, and all it will start into the other groups, and leaves them to their maker.
    pub(super) fn go_in(mut self) -> io::Result<()> {
        let groups = std::mem::take(&mut self.dirs);
        // 0: whoever writes it.
        groups.into_iter().filter_map(|group| group.own_way).try_for_each(|mut way| way.write_all(b"0"))
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        let start = Instant::now();
        for Group { dir, .. } in &self.dirs {
            while remove(dir) == Err(rustix::io::Errno::BUSY) && start.elapsed() < REMOVE_LIMIT {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

fn name_of(pid: u32, started_ticks: u64) -> io::Result<String> {
    Ok(format!("{PREFIX}{pid}-{started_ticks}-{}", pid_namespace()?))
}

fn remove(dir: &Path) -> Result<(), rustix::io::Errno> {
    unlinkat(CWD, dir, AtFlags::REMOVEDIR)
}

/// Removes the groups of makers that are gone; one that still has processes stays, as the kernel sees to.
fn sweep(place: &Path) {
    let (Ok(entries), Ok(ours)) = (std::fs::read_dir(place), pid_namespace()) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(maker) = name.to_str().and_then(|name| name.strip_prefix(PREFIX)) else { continue };
        let mut words = maker.split('-');
        let (pid, ticks, namespace) = (words.next(), words.next(), words.next());
        let lives = || {
            let pid = pid.and_then(|pid| pid.parse().ok());
            pid.is_some_and(|pid| stat(pid).is_ok_and(|stat| Some(stat.started_ticks.to_string().as_str()) == ticks))
        };
        let gone = if namespace == Some(ours.as_str()) { !lives() } else { is_older(&entry.path(), FOREIGN_AGE) };
        if gone {
            let _ = remove(&entry.path());
        }
    }
}

fn is_older(dir: &Path, age: Duration) -> bool {
    let made = dir.metadata().and_then(|meta| meta.modified());
    made.is_ok_and(|made| made.elapsed().is_ok_and(|since| since > age))
}

/// The number of the pid namespace in which we have our number: `pid:[4026531836]`.
fn pid_namespace() -> io::Result<String> {
    let link = std::fs::read_link("/proc/self/ns/pid")?;
    Ok(link.to_string_lossy().chars().filter(char::is_ascii_digit).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            File::create(path).unwrap().write_all(text.as_bytes()).unwrap();
        }
        dir
    }

    #[test]
    fn version_2_is_used_beside_our_own_group() {
        let dir = tree(&[
            ("system.slice/cgroup.controllers", "cpu memory pids\n"),
            ("system.slice/cgroup.subtree_control", "memory pids\n"),
            ("system.slice/quorate.service/cgroup.procs", ""),
        ]);
        let mounts = format!("cgroup2 {} cgroup2 rw,nosuid 0 0\n", dir.path().display());
        let places = Places::read(&mounts, "0::/system.slice/quorate.service\n");
        let place = Place { dir: dir.path().join("system.slice"), v2: true };
        assert_eq!((places.memory.as_ref(), places.pids.as_ref()), (Some(&place), Some(&place)));
        // What is not handed down yet is asked for.
        assert_eq!(places.cpu, Some(place));
        let asked = std::fs::read_to_string(dir.path().join("system.slice/cgroup.subtree_control")).unwrap();
        assert!(asked.starts_with("+cpu"), "{asked}");
        assert_eq!(Places::read("", ""), Places::default());
    }

    #[test]
    fn version_1_is_used_where_it_has_the_limits() {
        let dir = tree(&[("memory/own/x", ""), ("pids/x", ""), ("unified/cgroup.controllers", "hugetlb\n")]);
        let top = dir.path().display();
        let mounts = format!(
            "cgroup {top}/memory cgroup rw,memory 0 0\ncgroup {top}/pids cgroup rw,pids 0 0\n\
             cgroup2 {top}/unified cgroup2 rw 0 0\n"
        );
        let places = Places::read(&mounts, "4:memory:/own\n8:pids:/gone\n0::/\n");
        assert_eq!(places.memory, Some(Place { dir: dir.path().join("memory/own"), v2: false }));
        assert_eq!(places.pids, Some(Place { dir: dir.path().join("pids"), v2: false }));
        assert_eq!(places.cpu, None);
    }

    #[test]
    fn a_process_begins_in_its_group_of_version_2() {
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
        let words = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        let top = words.into_iter().find(|words| words[2] == "cgroup2").map(|words| PathBuf::from(words[1]));
        // Without limits it takes nothing but a tree of version 2 that is ours to write to.
        let Some(top) = top.filter(|top| writable(top)) else { return };
        let dir = top.join(format!("quorate-test-{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        let made = clone_into(0, File::open(&dir).unwrap().as_fd()).unwrap();
        let Some(pid) = made else {
            loop {
                let _ = rustix::event::poll(&mut [], None);
            }
        };
        let inside = std::fs::read_to_string(dir.join("cgroup.procs")).unwrap();
        let process = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
        rustix::process::kill_process(process, rustix::process::Signal::KILL).unwrap();
        rustix::process::waitpid(Some(process), rustix::process::WaitOptions::empty()).unwrap();
        drop(Groups { dirs: vec![Group::new(dir.clone())] });
        assert_eq!((inside.trim(), dir.exists()), (pid.to_string().as_str(), false));
    }

    #[test]
    fn groups_of_makers_that_are_gone_are_removed_and_no_others() {
        let dir = tempfile::tempdir().unwrap();
        let (pid, ours) = (std::process::id(), pid_namespace().unwrap());
        let ticks = stat(pid).unwrap().started_ticks;
        let make = |name: String| {
            std::fs::create_dir(dir.path().join(&name)).unwrap();
            name
        };
        let lives = make(format!("{PREFIX}{pid}-{ticks}-{ours}"));
        let gone = make(format!("{PREFIX}{pid}-{}-{ours}", ticks + 1));
        // Its maker has a number that says nothing here, and may be about to fill it.
        let foreign = make(format!("{PREFIX}{pid}-{}-1{ours}", ticks + 1));
        let old = make(format!("{PREFIX}{pid}-{}-2{ours}", ticks + 1));
        let other = make("system.slice".to_owned());
        let long_ago = std::time::SystemTime::now() - 2 * FOREIGN_AGE;
        File::open(dir.path().join(&old)).unwrap().set_modified(long_ago).unwrap();
        sweep(dir.path());
        let left = |name: &String| dir.path().join(name).exists();
        assert_eq!([&lives, &gone, &foreign, &old, &other].map(left), [true, false, true, false, true]);
    }
}
