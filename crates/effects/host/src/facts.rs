//! What the kernel says of a running process: what it uses, and what it may.
//!
//! **Rule:** what may not be seen is `None`, never zero; nothing here is taken from what was meant to be.

use std::io;

use quorate_plan::boxes::{BoxPlan, Part};
use serde::Serialize;

use crate::process::Identity;

/// Ticks per second of the times in `/proc`. The kernel fixes it for programs, whatever its own clock does.
const TICKS_PER_SECOND: u64 = 100;

/// The namespaces that a process can have for itself.
const NAMESPACES: [&str; 7] = ["user", "mnt", "pid", "ipc", "uts", "net", "cgroup"];

/// What a process uses and may.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Facts {
    /// Memory in RAM, with what it shares.
    pub rss_bytes: Option<u64>,
    /// The same with shared memory divided among its users.
    pub pss_bytes: Option<u64>,
    /// Processor time so far.
    pub cpu_ms: u64,
    /// Its threads.
    pub threads: Option<u64>,
    /// Its open files.
    pub open_files: Option<u64>,
    /// How it is held.
    pub confinement: Confinement,
}

/// How a process is held.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Confinement {
    /// Whose it is.
    pub uid: u32,
    /// Whether it can never gain rights.
    pub no_new_privs: bool,
    /// Whether its system calls are filtered.
    pub seccomp: bool,
    /// The capabilities that it has.
    pub capabilities: u64,
    /// The namespaces that it does not share with us.
    pub namespaces: Vec<&'static str>,
    /// Whether its namespaces may not be seen.
    #[serde(skip)]
    pub hidden: bool,
}

impl Confinement {
    /// Parts of the box that it was started in and that the kernel does not show of it now. What the kernel does not show to us
    /// is not claimed to be missing.
    pub fn lacks(&self, plan: &BoxPlan) -> Vec<Part> {
        let apart = |name: &str| self.namespaces.contains(&name) || self.hidden;
        let shown = |part: Part| match part {
            Part::Privileges => self.no_new_privs,
            Part::Capabilities => self.capabilities == 0 || !plan.spec.capabilities.is_empty(),
            Part::Root => apart("mnt"),
            Part::Processes => apart("pid"),
            Part::Ipc => apart("ipc"),
            Part::Hostname => apart("uts"),
            Part::Syscalls => self.seccomp,
            // Of these the kernel tells nothing about another process.
            Part::User | Part::Proc | Part::Files | Part::Ports | Part::Scope | Part::Rlimits => true,
            Part::Memory | Part::Pids | Part::Cpu | Part::OomScore => true,
        };
        Part::ALL.into_iter().filter(|part| plan.has(*part) && !shown(*part)).collect()
    }
}

/// Looks at a process. `None`: it has ended.
pub fn observe_facts(identity: &Identity) -> io::Result<Option<Facts>> {
    let facts = match facts_of(identity.pid) {
        Ok(facts) => facts,
        // The file is gone, or its reader outlived the process.
        Err(error) if error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH) => {
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    // Asked last: if it is still the same one now, it was when the rest was read.
    Ok(crate::process::stat(identity.pid).is_ok_and(|now| now.started_ticks == identity.started_ticks).then_some(facts))
}

fn facts_of(pid: u32) -> io::Result<Facts> {
    let read = |name: &str| std::fs::read_to_string(format!("/proc/{pid}/{name}"));
    let status = read("status")?;
    let number = |name: &str| field(&status, name).and_then(|text| text.split_whitespace().next()?.parse::<u64>().ok());
    let capabilities = field(&status, "CapPrm").and_then(|text| u64::from_str_radix(text, 16).ok());
    let uid = number("Uid").and_then(|uid| u32::try_from(uid).ok());
    let missing = || io::Error::new(io::ErrorKind::InvalidData, format!("/proc/{pid}/status lacks a line"));
    Ok(Facts {
        rss_bytes: number("VmRSS").map(|kib| kib * 1024),
        pss_bytes: read("smaps_rollup").ok().and_then(|text| kib_in(&text, "Pss")),
        cpu_ms: cpu_ms(&read("stat")?).ok_or_else(missing)?,
        threads: number("Threads"),
        open_files: std::fs::read_dir(format!("/proc/{pid}/fd")).ok().map(|entries| entries.count() as u64),
        confinement: Confinement {
            uid: uid.ok_or_else(missing)?,
            no_new_privs: number("NoNewPrivs") == Some(1),
            seccomp: number("Seccomp").is_some_and(|mode| mode > 0),
            capabilities: capabilities.ok_or_else(missing)?,
            namespaces: NAMESPACES.into_iter().filter(|name| is_apart(pid, name)).collect(),
            hidden: std::fs::read_link(format!("/proc/{pid}/ns/mnt")).is_err(),
        },
    })
}

/// Whether a process has another namespace of this kind than we. One that may not be seen is not claimed.
fn is_apart(pid: u32, name: &str) -> bool {
    let link = |of: &str| std::fs::read_link(format!("/proc/{of}/ns/{name}")).ok();
    match (link(&pid.to_string()), link("self")) {
        (Some(its), Some(ours)) => its != ours,
        _ => false,
    }
}

/// The value of `Name:\tvalue`.
pub(crate) fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

fn kib_in(text: &str, name: &str) -> Option<u64> {
    field(text, name)?.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib * 1024)
}

/// Fields 14 and 15 of the line; the name in parentheses may hold anything.
fn cpu_ms(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split(' ').skip(11);
    let (user, system): (u64, u64) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    Some(user.checked_add(system)?.checked_mul(1000)? / TICKS_PER_SECOND)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_process_is_seen_as_it_is() {
        let facts = observe_facts(&Identity::of(std::process::id()).unwrap()).unwrap().unwrap();
        assert!(facts.rss_bytes > Some(1 << 16), "{facts:?}");
        assert!(facts.pss_bytes <= facts.rss_bytes, "{facts:?}");
        assert!(facts.open_files >= Some(3), "{facts:?}");
        assert_eq!(facts.confinement.namespaces, [""; 0]);
        assert_eq!(facts.confinement.uid, rustix::process::getuid().as_raw());
    }

    #[test]
    fn one_that_ended_has_no_facts() {
        let mut child = std::process::Command::new("/bin/true").spawn().unwrap();
        let identity = Identity { pid: child.id(), started_ticks: 1, boot_id: String::new(), executable: "/x".into() };
        child.wait().unwrap();
        assert_eq!(observe_facts(&identity).unwrap(), None);
    }

    #[test]
    fn what_a_box_has_and_the_kernel_does_not_show_is_missing() {
        use quorate_plan::boxes::{BoxSpec, Level, Machine, Offer, plan_box};
        let offers = Part::ALL.map(|part| (part, Offer::Full)).to_vec();
        let machine = Machine { kernel: "6.18".to_owned(), user_namespace: false, offers };
        let plan = plan_box(&BoxSpec::new(Level::Strict), &machine).unwrap();
        let whole = Confinement {
            uid: 1,
            no_new_privs: true,
            seccomp: true,
            capabilities: 0,
            namespaces: vec!["mnt", "pid", "ipc", "uts"],
            hidden: false,
        };
        assert_eq!(whole.lacks(&plan), []);
        let less = Confinement { seccomp: false, capabilities: 1, namespaces: vec!["mnt"], ..whole };
        let missing = [Part::Capabilities, Part::Processes, Part::Ipc, Part::Hostname, Part::Syscalls];
        assert_eq!(less.lacks(&plan), missing);
        let unseen = Confinement { hidden: true, ..less };
        assert_eq!(unseen.lacks(&plan), [Part::Capabilities, Part::Syscalls]);
        assert_eq!(unseen.lacks(&plan_box(&BoxSpec::new(Level::Off), &machine).unwrap()), []);
    }

    #[test]
    fn processor_time_is_read_behind_any_name() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 1 2 3 4 250 50 0 0 20 0 1 0 99 1 1";
        assert_eq!(cpu_ms(stat), Some(3000));
        assert_eq!(cpu_ms("7 (x"), None);
    }
}
