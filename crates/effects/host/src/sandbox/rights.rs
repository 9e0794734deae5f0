//! What the program gives up before it is executed: limits, groups, user, capabilities, and every way to get more.
//!
//! **Invariant:** the order is such that nothing is given up that a later step needs, and the last steps cannot be undone.

use std::io;

use quorate_faults::{Code, Fault};
use quorate_plan::boxes::{BoxPlan, Limits, Part};
use rustix::process::{Gid, Resource, Rlimit, Uid, setrlimit};
use rustix::thread::{CapabilitySet, CapabilitySets};

use super::raw::drop_bounding_set;
use super::root::Step;

/// A user, as the machine knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct User {
    pub(super) uid: u32,
    pub(super) gid: u32,
}

impl User {
    /// Finds a user by name, or takes a number for one (its group has the same number then).
    pub(super) fn find(name: &str) -> Result<User, Fault> {
        crate::owners::find_user(name).map(|owner| User { uid: owner.uid, gid: owner.gid })
    }
}

/// The capabilities that are kept, as the kernel counts them.
pub(super) fn kept(names: &[String]) -> Result<CapabilitySet, Fault> {
    let mut kept = CapabilitySet::empty();
    for name in names {
        let plain = name.trim_start_matches("CAP_").to_ascii_uppercase();
        kept |= CapabilitySet::from_name(&plain).ok_or_else(|| {
            Fault::new(Code::BoxPath, format!("there is no capability `{name}`"))
                .hint("write it as in `man 7 capabilities`, for example NET_BIND_SERVICE")
        })?;
    }
    Ok(kept)
}

fn at<T, E: Into<io::Error>>(what: &str, done: Result<T, E>) -> Step<T> {
    done.map_err(|error| (what.to_owned(), error.into()))
}

/// Limits that a process sets itself.
pub(super) fn limit(plan: &BoxPlan) -> Step<()> {
    let Limits { memory_bytes, pids, open_files, .. } = plan.spec.limits;
    let both = |value: u64| Rlimit { current: Some(value), maximum: Some(value) };
    if plan.has(Part::Rlimits) {
        at("forbid core files", setrlimit(Resource::Core, both(0)))?;
        if let Some(files) = open_files {
            at(&format!("allow {files} open files"), setrlimit(Resource::Nofile, both(files)))?;
        }
    }
    // Where there is no cgroup: what one process, or one user, may have.
    if let (Some(bytes), true) = (memory_bytes, weaker(plan, Part::Memory)) {
        at("limit memory", setrlimit(Resource::Data, both(bytes)))?;
    }
    if let (Some(pids), true) = (pids, weaker(plan, Part::Pids)) {
        at("limit processes", setrlimit(Resource::Nproc, both(pids.into())))?;
    }
    Ok(())
}

fn weaker(plan: &BoxPlan, part: Part) -> bool {
    plan.has(part) && !plan.has_whole(part)
}

/// Becomes the user, and keeps nothing of what it could do before.
pub(super) fn give_up(plan: &BoxPlan, user: Option<User>, keep: CapabilitySet) -> Step<()> {
    if plan.has_whole(Part::Capabilities) {
        at("empty the bounding set", drop_bounding_set(keep.bits()))?;
    }
    if !keep.is_empty() {
        at("keep capabilities", rustix::thread::set_keep_capabilities(true))?;
    }
    if let (Some(user), true) = (user, plan.has(Part::User)) {
        let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
        at("leave all groups", rustix::thread::set_thread_groups(&[]))?;
        at("change the group", rustix::thread::set_thread_res_gid(gid, gid, gid))?;
        at("change the user", rustix::thread::set_thread_res_uid(uid, uid, uid))?;
    }
    let sets = CapabilitySets { effective: keep, permitted: keep, inheritable: keep };
    if plan.has(Part::Capabilities) {
        at("give up capabilities", rustix::thread::set_capabilities(None, sets))?;
    }
    for capability in keep.iter() {
        at("hand capabilities on", rustix::thread::configure_capability_in_ambient_set(capability, true))?;
    }
    at("give up new privileges", rustix::thread::set_no_new_privs(true))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_and_capabilities_are_found_by_name() {
        assert_eq!(User::find("root").unwrap(), User { uid: 0, gid: 0 });
        assert_eq!(User::find("4711").unwrap(), User { uid: 4711, gid: 4711 });
        assert_eq!(User::find("no-such-user").unwrap_err().code(), Code::BoxUser);
        let names = |name: &str| kept(&[name.to_owned()]);
        assert_eq!(names("NET_BIND_SERVICE").unwrap().bits(), 1 << 10);
        assert_eq!(names("cap_kill").unwrap_err().code(), Code::BoxPath);
        assert_eq!(names("CAP_KILL").unwrap().bits(), 1 << 5);
    }
}
