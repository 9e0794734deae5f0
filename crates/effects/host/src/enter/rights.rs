//! The rights and limits of a process, read from `/proc` and taken on.
//!
//! **Invariant:** rights only become fewer: the bounding set and groups first, while there is the right to change them, then
//! group, user, capabilities, and last that none can be gained.

use std::io;

use rustix::fs::{Gid, Mode, Uid};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, capability_is_in_bounding_set, clear_ambient_capability_set,
    configure_capability_in_ambient_set, remove_capability_from_bounding_set, set_capabilities, set_keep_capabilities,
    set_no_new_privs, set_thread_groups, set_thread_res_gid, set_thread_res_uid,
};

use crate::facts::field;

/// Who a process is and what it may.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rights {
    uids: [u32; 3],
    gids: [u32; 3],
    groups: Vec<u32>,
    inheritable: u64,
    permitted: u64,
    effective: u64,
    bounding: u64,
    ambient: u64,
    no_new_privs: bool,
    filters: u64,
    umask: u32,
}

impl Rights {
    /// Reads `/proc/PID/status`.
    pub(super) fn parse(status: &str) -> Option<Rights> {
        let mask = |name: &str| u64::from_str_radix(field(status, name)?, 16).ok();
        let three = |name: &str| -> Option<[u32; 3]> {
            let numbers: Vec<u32> = field(status, name)?.split_whitespace().filter_map(|n| n.parse().ok()).collect();
            numbers.get(..3)?.try_into().ok()
        };
        let mut groups: Vec<u32> = field(status, "Groups")?.split_whitespace().filter_map(|n| n.parse().ok()).collect();
        groups.sort_unstable();
        Some(Rights {
            uids: three("Uid")?,
            gids: three("Gid")?,
            groups,
            inheritable: mask("CapInh")?,
            permitted: mask("CapPrm")?,
            effective: mask("CapEff")?,
            bounding: mask("CapBnd")?,
            ambient: mask("CapAmb")?,
            no_new_privs: field(status, "NoNewPrivs") == Some("1"),
            filters: field(status, "Seccomp_filters").and_then(|n| n.parse().ok()).unwrap_or(0),
            umask: u32::from_str_radix(field(status, "Umask")?, 8).ok()?,
        })
    }

    /// Those of a process.
    pub(super) fn of(pid: u32) -> io::Result<Rights> {
        Rights::read(&format!("/proc/{pid}/status"))
    }

    /// Our own.
    pub(super) fn of_us() -> io::Result<Rights> {
        Rights::read("/proc/self/status")
    }

    fn read(path: &str) -> io::Result<Rights> {
        Rights::parse(&std::fs::read_to_string(path)?).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Takes them on, coming from `ours`.
    pub(super) fn take(&self, ours: &Rights, missing: &mut Vec<String>) -> io::Result<()> {
        self.bound(missing)?;
        if self.groups != ours.groups {
            let groups: Vec<Gid> = self.groups.iter().map(|gid| Gid::from_raw(*gid)).collect();
            set_thread_groups(&groups)?;
        }
        if self.gids != ours.gids {
            let [real, effective, saved] = self.gids.map(Gid::from_raw);
            set_thread_res_gid(real, effective, saved)?;
        }
        if self.uids != ours.uids {
            set_keep_capabilities(self.permitted != 0)?;
            let [real, effective, saved] = self.uids.map(Uid::from_raw);
            set_thread_res_uid(real, effective, saved)?;
        }
        self.keep_capabilities()?;
        rustix::process::umask(Mode::from_raw_mode(self.umask));
        if self.no_new_privs {
            set_no_new_privs(true)?;
        }
        Ok(())
    }

    /// Becomes its user, in its groups, and keeps nothing of what we could do before.
    pub(super) fn become_user(&self) -> io::Result<()> {
        let groups: Vec<Gid> = self.groups.iter().map(|gid| Gid::from_raw(*gid)).collect();
        set_thread_groups(&groups)?;
        let [real, effective, saved] = self.gids.map(Gid::from_raw);
        set_thread_res_gid(real, effective, saved)?;
        let [real, effective, saved] = self.uids.map(Uid::from_raw);
        Ok(set_thread_res_uid(real, effective, saved)?)
    }

    /// Whether filters of system calls hold it that do not hold us.
    pub(super) fn is_filtered_more_than(&self, ours: &Rights) -> bool {
        self.filters > ours.filters
    }

    /// Cuts the bounding set down to its one.
    fn bound(&self, missing: &mut Vec<String>) -> io::Result<()> {
        for bit in (0..64).filter(|bit| self.bounding & (1 << bit) == 0) {
            let one = CapabilitySet::from_bits_retain(1 << bit);
            // Beyond the last one that the kernel knows, there is nothing to remove.
            if !capability_is_in_bounding_set(one).unwrap_or(false) {
                continue;
            }
            match remove_capability_from_bounding_set(one) {
                Ok(()) => {}
                // Without new privileges the set is never drawn from.
                Err(Errno::PERM) if self.no_new_privs => return Ok(()),
                Err(Errno::PERM) => {
                    missing.push("its bounding set of capabilities".to_owned());
                    return Ok(());
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn keep_capabilities(&self) -> io::Result<()> {
        let set = CapabilitySet::from_bits_retain;
        let now = capabilities(None)?;
        let wanted = CapabilitySets {
            effective: set(self.effective),
            permitted: set(self.permitted),
            inheritable: set(self.inheritable),
        };
        if now != wanted {
            set_capabilities(None, wanted)?;
        }
        clear_ambient_capability_set()?;
        for bit in (0..64).filter(|bit| self.ambient & (1 << bit) != 0) {
            configure_capability_in_ambient_set(set(1 << bit), true)?;
        }
        Ok(())
    }
}

/// Has a program that is executed next keep what we may: in a user namespace that we have just entered that is everything,
/// and whoever is not root there would lose it by the execution.
pub(super) fn hand_on_all() -> io::Result<()> {
    let now = capabilities(None)?;
    set_capabilities(None, CapabilitySets { inheritable: now.permitted, ..now })?;
    for capability in now.permitted.iter() {
        configure_capability_in_ambient_set(capability, true)?;
    }
    Ok(())
}

/// The limits of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Limits(Vec<(Resource, Option<u64>, Option<u64>)>);

/// As `/proc/PID/limits` calls them.
const NAMES: [(&str, Resource); 16] = [
    ("Max cpu time", Resource::Cpu),
    ("Max file size", Resource::Fsize),
    ("Max data size", Resource::Data),
    ("Max stack size", Resource::Stack),
    ("Max core file size", Resource::Core),
    ("Max resident set", Resource::Rss),
    ("Max processes", Resource::Nproc),
    ("Max open files", Resource::Nofile),
    ("Max locked memory", Resource::Memlock),
    ("Max address space", Resource::As),
    ("Max file locks", Resource::Locks),
    ("Max pending signals", Resource::Sigpending),
    ("Max msgqueue size", Resource::Msgqueue),
    ("Max nice priority", Resource::Nice),
    ("Max realtime priority", Resource::Rtprio),
    ("Max realtime timeout", Resource::Rttime),
];

impl Limits {
    /// Reads `/proc/PID/limits`; `None` in it: without limit.
    pub(super) fn parse(text: &str) -> Limits {
        let value = |word: &str| (word != "unlimited").then(|| word.parse().ok()).flatten();
        let found = NAMES.iter().filter_map(|(name, resource)| {
            let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
            let mut words = rest.split_whitespace();
            Some((*resource, value(words.next()?), value(words.next()?)))
        });
        Limits(found.collect())
    }

    /// Takes them on. A limit above ours cannot always be had; ours stays then.
    pub(super) fn apply(&self, missing: &mut Vec<String>) {
        for (resource, current, maximum) in &self.0 {
            let wanted = Rlimit { current: *current, maximum: *maximum };
            let ours = getrlimit(*resource);
            if ours != wanted && setrlimit(*resource, wanted).is_err() {
                missing.push(format!("its limit {resource:?}"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_rights_are_read_and_taking_them_changes_nothing() {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let ours = Rights::parse(&status).unwrap();
        assert_eq!(ours.uids[0], rustix::process::getuid().as_raw());
        let mut missing = Vec::new();
        ours.take(&ours, &mut missing).unwrap();
        Limits::parse(&std::fs::read_to_string("/proc/self/limits").unwrap()).apply(&mut missing);
        assert_eq!(missing, [""; 0]);
    }

    #[test]
    fn a_status_that_lacks_a_line_is_not_guessed() {
        assert_eq!(Rights::parse("Uid:\t0\t0\t0\t0\n"), None);
        assert_eq!(Rights::parse(""), None);
    }

    #[test]
    fn limits_are_read_by_their_names() {
        let text = "Limit                     Soft Limit           Hard Limit           Units\n\
                    Max open files            1024                 20000                files\n\
                    Max core file size        0                    unlimited            bytes\n\
                    Max something new         1                    2                    x\n";
        assert_eq!(
            Limits::parse(text).0,
            [(Resource::Core, Some(0), None), (Resource::Nofile, Some(1024), Some(20000))]
        );
    }
}
