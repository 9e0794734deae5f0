//! Landlock: which files may be used how, which TCP ports, and nothing out of the box.
//!
//! **Invariant:** a kernel that has less than this asks for gets what it has; whether that is enough was decided before.

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, NetPort, PathBeneath, PathFd, Ruleset,
    RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};
use quorate_plan::boxes::{BoxPlan, Part};

use super::view::{Use, View};

/// The newest rules that are asked for.
const RULES: ABI = ABI::V6;
/// What is the box's own if it has a root of its own.
const OWN_DIRS: [&str; 2] = ["/tmp", "/dev/shm"];

/// Puts this thread, and what it becomes, under the rules.
pub(super) fn restrict(plan: &BoxPlan, view: &View) -> Result<(), String> {
    let (files, ports, scope) = (plan.has(Part::Files), plan.has(Part::Ports), plan.has(Part::Scope));
    if !files && !ports && !scope {
        return Ok(());
    }
    let status = rules(plan, view, files, ports, scope).map_err(|error| error.to_string())?;
    if status == RulesetStatus::NotEnforced {
        return Err("the kernel enforces none of the rules".to_owned());
    }
    Ok(())
}

fn rules(plan: &BoxPlan, view: &View, files: bool, ports: bool, scope: bool) -> Result<RulesetStatus, RulesetError> {
    let mut rules = Ruleset::default().set_compatibility(CompatLevel::BestEffort);
    if files {
        rules = rules.handle_access(AccessFs::from_all(RULES))?;
    }
    if ports {
        let any = plan.spec.ports.connect_any;
        let net = if any { AccessNet::BindTcp.into() } else { AccessNet::BindTcp | AccessNet::ConnectTcp };
        rules = rules.handle_access(net)?;
    }
    if scope {
        rules = rules.scope(Scope::Signal | Scope::AbstractUnixSocket)?;
    }
    let mut rules = rules.create()?;
    if files {
        rules = file_rules(plan, view, rules)?;
    }
    if ports {
        for port in &plan.spec.ports.bind {
            rules = rules.add_rule(NetPort::new(*port, AccessNet::BindTcp))?;
        }
        for port in plan.spec.ports.connect.iter().filter(|_| !plan.spec.ports.connect_any) {
            rules = rules.add_rule(NetPort::new(*port, AccessNet::ConnectTcp))?;
        }
    }
    Ok(rules.restrict_self()?.ruleset)
}

fn file_rules(plan: &BoxPlan, view: &View, mut rules: RulesetCreated) -> Result<RulesetCreated, RulesetError> {
    let add = |path: &std::path::Path, access: BitFlags<AccessFs>, rules: RulesetCreated| {
        // What vanished since it was looked at is not allowed either.
        let Ok(fd) = PathFd::new(path) else { return Ok(rules) };
        rules.add_rule(PathBeneath::new(fd, access))
    };
    for seen in &view.seen {
        let access = if seen.is_dir { access(seen.may) } else { access(seen.may) & AccessFs::from_file(RULES) };
        rules = add(&seen.path, access, rules)?;
    }
    if plan.has(Part::Root) {
        for dir in OWN_DIRS {
            rules = add(dir.as_ref(), access(Use::Write), rules)?;
        }
    }
    if plan.has(Part::Proc) {
        rules = add("/proc".as_ref(), access(Use::Read), rules)?;
    }
    Ok(rules)
}

fn access(may: Use) -> BitFlags<AccessFs> {
    let read = AccessFs::ReadFile | AccessFs::ReadDir;
    let nodes = AccessFs::MakeChar | AccessFs::MakeBlock;
    match may {
        Use::Execute => read | AccessFs::Execute,
        Use::Read | Use::Library => read,
        Use::Write => AccessFs::from_all(RULES) & !AccessFs::Execute & !nodes,
        Use::WriteAndExecute => AccessFs::from_all(RULES) & !nodes,
        Use::Device => AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::IoctlDev,
    }
}
