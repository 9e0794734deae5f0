//! What this machine can give of a box, to whoever asks.
//!
//! **Invariant:** what can be tried is tried, in a process of its own, or by the box itself that is made next; nothing is
//! believed from a version number.

use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use quorate_plan::boxes::{Machine, Offer, Part};
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::process::{Pid, WaitOptions, waitpid};
use rustix::thread::{CapabilitySet, capabilities};

use super::cgroup::Places;
use super::raw::{clone_careless, exit_now, landlock_version};

/// What the first process of a box needs of its maker, without a user namespace.
const NEEDED: CapabilitySet =
    CapabilitySet::SYS_ADMIN.union(CapabilitySet::SETUID).union(CapabilitySet::SETGID).union(CapabilitySet::SETPCAP);

/// The namespaces of every box.
pub(super) const NAMESPACES: u64 =
    (libc::CLONE_NEWNS | libc::CLONE_NEWPID | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS) as u64;
/// Where only a user namespace gives the right to have the others.
pub(super) const USER_NAMESPACE: u64 = libc::CLONE_NEWUSER as u64;

/// From these versions on Landlock has rules about ports, and scopes.
const LANDLOCK_PORTS: i32 = 4;
const LANDLOCK_SCOPE: i32 = 6;

/// What this machine can give changes with its administrator's settings, seldom enough.
const BELIEVED: Duration = Duration::from_secs(300);

static KNOWN: Mutex<Option<(Instant, Machine)>> = Mutex::new(None);

const MAY_MOUNT: i32 = 1;
const MAY_PROC: i32 = 2;

/// Looks at this machine, as this user.
pub fn observe_machine() -> Machine {
    let root = may_all();
    machine(root, try_namespaces(if root { NAMESPACES } else { NAMESPACES | USER_NAMESPACE }))
}

/// The same for somebody who makes a strict box at once, and looks closely should that fail: who has the rights for namespaces
/// is believed to get them. To try takes as long as to make the box, and the box is a trial itself.
pub fn expect_machine() -> Machine {
    if may_all() { machine(true, Ok(MAY_MOUNT | MAY_PROC)) } else { observe_machine() }
}

/// The same for an agent that starts one program after the other: what was seen a while ago is believed, since looking takes as
/// long as making a box. A box that cannot be made has the next one look again.
pub fn known_machine() -> Machine {
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    match &*known {
        Some((seen, machine)) if seen.elapsed() < BELIEVED => machine.clone(),
        _ => known.insert((Instant::now(), observe_machine())).1.clone(),
    }
}

/// What was seen is not believed any longer.
pub fn forget_machine() {
    *KNOWN.lock().unwrap_or_else(PoisonError::into_inner) = None;
}

fn may_all() -> bool {
    capabilities(None).is_ok_and(|sets| sets.effective.contains(NEEDED))
}

fn machine(root: bool, namespaces: Result<i32, String>) -> Machine {
    let may = |bit: i32| namespaces.as_ref().is_ok_and(|bits| bits & bit != 0);
    let lack = |what: &str| match &namespaces {
        Err(why) => Offer::No(why.clone()),
        Ok(_) => Offer::No(what.to_owned()),
    };
    let when = |is: bool, no: Offer| if is { Offer::Full } else { no };
    let version = landlock_version();
    let landlock = |from: i32, kernel: &str| match version {
        0 => Offer::No("this kernel is built or booted without Landlock".to_owned()),
        _ => when(version >= from, Offer::No(format!("Landlock has it from kernel {kernel} on"))),
    };
    let groups = Places::observe_for_plan();
    let less = |why: &str| Offer::Less(why.to_owned());
    let no = |why: &str| Offer::No(why.to_owned());
    let offer = |part: Part| match part {
        Part::User => when(root, no("only root may start it as another user")),
        Part::Privileges | Part::Rlimits | Part::OomScore => Offer::Full,
        Part::Capabilities => when(root || may(MAY_MOUNT), less("the bounding set stays, and cannot be used")),
        Part::Root | Part::Processes | Part::Ipc | Part::Hostname => {
            when(may(MAY_MOUNT), lack("this user may not mount in a namespace of its own"))
        }
        Part::Proc => when(may(MAY_PROC), lack("the kernel lets no one mount a /proc here")),
        Part::Files => landlock(1, "5.13"),
        Part::Ports => landlock(LANDLOCK_PORTS, "6.7"),
        Part::Scope => landlock(LANDLOCK_SCOPE, "6.12"),
        Part::Syscalls => {
            let there = Path::new("/proc/sys/kernel/seccomp/actions_avail").exists();
            when(there, no("this kernel is built without seccomp filters"))
        }
        Part::Memory => when(groups.memory.is_some(), less("for each process by itself: no cgroup can be made")),
        Part::Pids => when(groups.pids.is_some(), less("of the user in the box: no cgroup can be made")),
        Part::Cpu => when(groups.cpu.is_some(), no("no cgroup can be made")),
    };
    Machine {
        kernel: kernel_release(),
        user_namespace: !root,
        offers: Part::ALL.map(|part| (part, offer(part))).to_vec(),
    }
}

/// What the running kernel calls itself.
pub fn kernel_release() -> String {
    rustix::system::uname().release().to_string_lossy().into_owned()
}

/// Makes the namespaces in a process that ends at once, and says what could be done in them.
fn try_namespaces(flags: u64) -> Result<i32, String> {
    let pid = match clone_careless(flags) {
        Ok(Some(pid)) => pid,
        // From here to its end only system calls: this may be a copy of a process with many threads.
        Ok(None) => {
            let alone = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
            let mut bits = 0;
            if mount_change(c"/", alone).is_ok() {
                bits |= MAY_MOUNT;
                let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
                if mount(c"proc", c"/proc", c"proc", flags, c"hidepid=2,subset=pid").is_ok() {
                    bits |= MAY_PROC;
                }
            }
            exit_now(bits)
        }
        Err(error) if flags & USER_NAMESPACE != 0 => {
            return Err(format!("this user may not have namespaces of its own ({error})"));
        }
        Err(error) => return Err(format!("no namespaces can be made ({error})")),
    };
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    loop {
        match waitpid(pid, WaitOptions::empty()) {
            Ok(Some((_, status))) => return Ok(status.exit_status().unwrap_or_default()),
            Ok(None) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(format!("a trial of namespaces was lost ({errno})")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_is_looked_at() {
        let machine = observe_machine();
        for part in Part::ALL {
            assert_ne!(machine.offer(part), Offer::No("it was not looked for".to_owned()), "{part:?}");
        }
        assert_eq!(machine, observe_machine());
        // Where boxes can be made at all, what is expected is what is there.
        if machine.offer(Part::Root) == Offer::Full {
            assert_eq!(machine, expect_machine());
        }
    }
}
