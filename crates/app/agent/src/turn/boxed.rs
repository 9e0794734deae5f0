//! The box of etcd: its level, the user that it runs as, what it sees, and whose its files are.
//!
//! **Invariant:** a box is planned before anything is changed; then all that etcd needs belongs to its user, and nothing else
//! was touched. Cut off anywhere, the next start does the rest.

use std::path::{Path, PathBuf};

use quorate_faults::{Code, Fault};
use quorate_host::durable::{Access, Disk, Owner, RealDisk};
use quorate_host::owners::{self, May, ensure_may, ensure_owner};
use quorate_host::sandbox::{forget_machine, known_machine};
use quorate_host::shim::Running;
use quorate_plan::boxes::{BoxPlan, BoxSpec, Level, List, Machine, Offer, Part, Ports, Refused, Syscalls, plan_box};
use quorate_plan::spec::{Calls, TlsFiles, for_member};

use super::etcd_tls;
use super::node::Node;
use super::status::Notice;

/// Whom etcd runs as below an agent that is root, where there is such a user.
const USER: &str = "etcd";
/// And where there is none: a number that neither people nor services are given.
const NUMBER: u32 = 61_079;
/// Processes and threads, where the file does not say: Go has one for each processor, and one for each call that blocks.
const PIDS: u32 = 4096;

/// The warnings that are told here.
pub(super) const WARNINGS: [Code; 3] = [Code::BoxEarlier, Code::BoxWeaker, Code::BoxCertificates];

/// The level of a box whose declaration does not say.
pub(crate) fn usual_level() -> Level {
    if rustix::process::geteuid().is_root() { Level::Strict } else { Level::Basic }
}

/// The level that etcd's next start will have.
pub(super) fn level(node: &Node) -> Level {
    node.spec.box_.level.unwrap_or_else(usual_level)
}

/// Plans the box of etcd, and gives what it needs to its user. `None`: no box is asked for.
pub(super) fn ensure_box(node: &Node, joining: bool) -> Result<Option<BoxPlan>, Fault> {
    let level = level(node);
    if level == Level::Off {
        return Ok(None);
    }
    let machine = known_machine();
    let mut spec = declared(node, level, user(node, level, &machine)?);
    // Whether it can be had does not depend on what it sees.
    let plan = planned(&spec, &machine)?;
    let user = spec.user.as_deref().filter(|_| plan.has(Part::User));
    let owner = user.map(owners::find_user).transpose()?;
    spec.writes = ensure_data(node, owner, joining)?;
    spec.reads = readable(node, owner)?;
    if etcd_tls::is_used(node) {
        etcd_tls::ensure(node, owner)?;
    }
    planned(&spec, &machine).map(Some)
}

/// The box that etcd's next start would have by the file, with nothing changed for it.
pub fn describe_box(node: &Node) -> Result<BoxSpec, Fault> {
    let level = level(node);
    if level == Level::Off {
        return Ok(BoxSpec::new(level));
    }
    let mut spec = declared(node, level, user(node, level, &known_machine())?);
    let dirs = [Some(node.target.data_dir()), node.target.wal_dir()];
    spec.writes = dirs.into_iter().flatten().map(text).collect::<Result<_, _>>()?;
    spec.reads = readable(node, None)?;
    Ok(spec)
}

/// The box of the etcd that a recovery starts on a copy: it sees that copy alone, which is its user's, and no port.
pub(crate) fn ensure_recovery_box(node: &Node, copy: &Path) -> Result<Option<BoxPlan>, Fault> {
    let level = level(node);
    if level == Level::Off {
        return Ok(None);
    }
    let machine = known_machine();
    let mut spec = declared(node, level, user(node, level, &machine)?);
    spec.ports = Ports::default();
    spec.writes = vec![text(copy)?];
    let plan = planned(&spec, &machine)?;
    let user = spec.user.as_deref().filter(|_| plan.has(Part::User));
    if let Some(owner) = user.map(owners::find_user).transpose()? {
        ensure_owner(copy, owner)?;
    }
    Ok(Some(plan))
}

/// Plans a sandbox. After a refusal the next plan observes the machine again: its administrator may have changed it meanwhile.
fn planned(spec: &BoxSpec, machine: &Machine) -> Result<BoxPlan, Fault> {
    plan_box(spec, machine).map_err(|why| {
        forget_machine();
        refused(&why)
    })
}

pub(super) fn refused(why: &Refused) -> Fault {
    let parts = why.parts.iter().map(|(part, _)| part.name()).collect::<Vec<_>>().join(", ");
    let whys = why.parts.iter().map(|(part, why)| format!("{}: {why}", part.name()));
    Fault::new(Code::EtcdBoxRefused, format!("etcd is not started: a strict box cannot be had here; it lacks: {parts}"))
        .hint("to ask for less, write `box: {level: basic}` into the cluster file; see `quorate explain Q1106`")
        .caused_by(whys.collect::<Vec<_>>().join("; "))
}

/// The box as the file declares it, but for what it sees.
fn declared(node: &Node, level: Level, user: Option<String>) -> BoxSpec {
    let section = &node.spec.box_;
    let mut limits = section.limits.limits();
    if level == Level::Strict {
        limits.pids.get_or_insert(PIDS);
    }
    BoxSpec {
        user,
        ports: node.spec.etcd_ports(&node.member),
        syscalls: Syscalls { audit: section.syscalls == Calls::Audit, ..Syscalls::of(List::Etcd) },
        limits,
        escapes: section.escapes.clone(),
        ..BoxSpec::new(level)
    }
}

/// Whom etcd runs as; `None`: whoever runs the agent.
fn user(node: &Node, level: Level, machine: &Machine) -> Result<Option<String>, Fault> {
    if let Some(user) = &node.spec.box_.user {
        return Ok(Some(user.clone()));
    }
    // Without a root of its own another user would have to be let through every directory above its data.
    let gives = |part: Part| machine.offer(part) == Offer::Full;
    if !rustix::process::geteuid().is_root() || (level == Level::Basic && !(gives(Part::User) && gives(Part::Root))) {
        return Ok(None);
    }
    if owners::find_user(USER).is_ok() {
        return Ok(Some(USER.to_owned()));
    }
    match owners::user_with_number(NUMBER) {
        None => Ok(Some(NUMBER.to_string())),
        Some(name) => {
            Err(Fault::new(Code::BoxUser, format!("whom etcd runs as is not clear: {NUMBER} is `{name}` here")).hint(
                "make a user `etcd` (`useradd --system etcd`), or write `box: {user: NAME}` into the cluster file",
            ))
        }
    }
}

/// The directories that etcd writes to, made and given to its user.
fn ensure_data(node: &Node, owner: Option<Owner>, joining: bool) -> Result<Vec<String>, Fault> {
    let mut dirs = vec![node.target.data_dir().to_owned()];
    if !dirs[0].exists() {
        RealDisk.create_dir(&dirs[0], Access { mode: 0o700, owner })?;
    }
    match node.target.wal_dir() {
        Some(wal) if joining && !wal.exists() => dirs.extend(parent_of_wal(wal, owner)?),
        Some(wal) => dirs.push(wal.to_owned()),
        None => {}
    }
    let own = dirs.iter().filter(|dir| *dir == node.target.data_dir() || Some(dir.as_path()) == node.target.wal_dir());
    for dir in own {
        if let Some(owner) = owner {
            ensure_owner(dir, owner)?;
        }
    }
    dirs.iter().map(|dir| text(dir)).collect()
}

/// etcd makes a WAL dir beside its place and renames it: what it needs is the directory above.
fn parent_of_wal(wal: &Path, owner: Option<Owner>) -> Result<Option<PathBuf>, Fault> {
    use std::os::unix::fs::MetadataExt;
    let parent = wal.parent().unwrap_or(Path::new("/")).to_owned();
    let meta = parent.metadata();
    let meta = meta.map_err(|error| Fault::io(format!("cannot look at `{}`", parent.display()), error))?;
    if owner.is_some_and(|owner| meta.uid() != owner.uid) {
        let who = owner.map_or(0, |owner| owner.uid);
        let attempt = format!("etcd cannot make `{}`: `{}` is not its user's", wal.display(), parent.display());
        return Err(Fault::new(Code::BoxJoining, attempt)
            .hint(format!("give it a parent of its own: `chown {who} DIR`; see `quorate explain Q1108`")));
    }
    Ok(Some(parent))
}

/// What etcd reads: its settings, and its copies of the certificates.
fn readable(node: &Node, owner: Option<Owner>) -> Result<Vec<String>, Fault> {
    let config = node.etcd_config();
    if let Some(owner) = owner {
        ensure_may(&config, owner, May::Read)?;
    }
    let copies = etcd_tls::is_used(node).then(|| etcd_tls::dir(node));
    [config].into_iter().chain(copies).map(|path| text(&path)).collect()
}

/// The files that etcd reads by the cluster file.
pub(super) fn certificate_files(node: &Node) -> Vec<PathBuf> {
    let Some(tls) = node.spec.tls_files() else { return Vec::new() };
    let each = [&tls.peer, &tls.client].into_iter();
    let files =
        each.flat_map(|TlsFiles { cert_file, key_file, trusted_ca_file }| [cert_file, key_file, trusted_ca_file]);
    let mut files: Vec<PathBuf> = files.map(|file| PathBuf::from(for_member(file, node.name()))).collect();
    files.sort();
    files.dedup();
    files
}

fn text(path: &Path) -> Result<String, Fault> {
    path.to_str().map(str::to_owned).ok_or_else(|| {
        Fault::new(Code::BoxPath, format!("cannot put `{}` into the box", path.display())).hint("its name is not text")
    })
}

/// The level of what runs.
pub(crate) fn level_of(running: &Running) -> Level {
    running.held().map_or(Level::Off, |held| held.plan().spec.level)
}

/// What is worth knowing about the box of a running etcd.
pub(super) fn notices(node: &Node, running: &Running) -> Vec<Notice> {
    let mut found = Vec::new();
    let (is, wanted) = (level_of(running), level(node));
    // Of one that was taken over its own notice tells.
    if is != wanted && !running.is_taken_over() {
        let text = format!("etcd runs in a box of level `{}`; its next start will have `{}`", is.name(), wanted.name());
        found.push(Notice::new(Code::BoxEarlier, text));
    }
    let Some(plan) = running.held().map(|held| held.plan()) else { return found };
    let (may, wants) = (&plan.spec.ports, node.spec.etcd_ports(&node.member));
    let closed = |port: &&u16| !may.connect.contains(port);
    if plan.has(Part::Ports)
        && !may.connect_any
        && (wants.connect_any || wants.connect.iter().any(|port| closed(&port)))
    {
        let ports: Vec<String> = wants.connect.iter().filter(closed).map(ToString::to_string).collect();
        let text = format!("etcd's box lets it reach no member at port {} before its next start", ports.join(", "));
        found.push(Notice::new(Code::BoxEarlier, text));
    }
    let warnings = plan.warnings();
    if !warnings.is_empty() {
        found.push(Notice::new(Code::BoxWeaker, format!("etcd's box is not whole: {}", warnings.join("; "))));
    }
    if let Some(dir) = other_certificates(node, plan).filter(|_| plan.has(Part::Root) || plan.has(Part::Files)) {
        let text = format!("etcd's box has `{dir}` and every key in it before its next start");
        found.push(Notice::new(Code::BoxEarlier, text));
    }
    found
}

/// What an earlier release put into the box: certificates with the directory that they lie in.
fn other_certificates<'a>(node: &Node, plan: &'a BoxPlan) -> Option<&'a String> {
    let files = certificate_files(node);
    plan.spec.reads.iter().find(|path| files.iter().any(|file| file.starts_with(path)))
}
