//! The members' agents: asked, started, stopped, and never mistaken for others.

use std::ffi::OsString;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use quorate_agent::turn::{self, Node, Status, Wish};
use quorate_etcd::aside::ensure_file;
use quorate_faults::{Code, Fault};
use quorate_host::durable::{Access, Disk, RealDisk};
use quorate_host::process::{self, Identity, Launch, Seen, Started};
use quorate_pki::{
    Authorities, Keys, LEAF_DAYS, NodeNames, Policy, ensure_authorities, ensure_installed, ensure_requests, issue,
};
use quorate_plan::spec::Spec;

use super::state::{Demo, Seat};
use crate::commands::run::own_program;

/// How long an agent may take to end etcd and itself.
const PATIENCE: Duration = Duration::from_secs(90);

/// A member, and what its agent or its state dir says of it.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) seat: Seat,
    pub(super) status: Status,
}

impl Member {
    /// Asks every member's agent.
    pub(super) fn observe_all(demo: &Demo) -> Result<Vec<Member>, Fault> {
        let look = |seat: &Seat| {
            let status = match turn::ask_status(&seat.state_dir())? {
                Some(status) => status,
                None => turn::offline_status(seat.name, &demo.token, &seat.state_dir())?,
            };
            Ok(Member { status, seat: seat.clone() })
        };
        demo.seats.iter().map(look).collect()
    }

    /// The agent's process, if it runs.
    pub(super) fn agent(&self) -> Option<u32> {
        self.status.agent.as_ref().map(|agent| agent.pid)
    }

    /// etcd's process, if it runs.
    pub(super) fn etcd(&self) -> Option<u32> {
        self.status.etcd.as_ref().map(|etcd| etcd.pid)
    }

    /// Whether its agent waits for the operator.
    pub(super) fn has_refused(&self) -> bool {
        self.status.phase == "refused"
    }

    /// Whether its agent runs, and no etcd.
    pub(super) fn is_idle(&self) -> bool {
        self.agent().is_some() && self.etcd().is_none()
    }
}

/// Makes authorities, certificates and the cluster file: all that the agents of these members need.
pub(super) fn prepare(demo: &Demo, missing: &[&Member], etcd: &Path) -> Result<(), Fault> {
    let text = demo.text(etcd);
    let now = Timestamp::now();
    let (spec, _) = Spec::parse(text.as_bytes(), "cluster.yaml").map_err(|mistakes| mistakes.fault())?;
    ensure_dir(&demo.dir.join("pki"))?;
    // A passphrase that lies beside what it protects would protect nothing.
    ensure_authorities(&demo.ca_dir(), &demo.token, None, now)?;
    let authorities = Authorities::open(&demo.ca_dir(), None)?;
    for member in missing {
        let seat = &member.seat;
        ensure_dir(&seat.dir())?;
        let declared = spec.member(seat.name);
        let declared = declared.ok_or_else(|| Fault::new(Code::Internal, format!("`{}` got lost", seat.name)))?;
        let names = NodeNames::of(&spec, declared)?;
        let asked = ensure_requests(&seat.pki_dir(), &names, Keys::Keep)?;
        let signed = issue(&authorities, &asked.bundle, &Policy { days: LEAF_DAYS, allowed: Some(&names) }, now)?;
        ensure_installed(&seat.pki_dir(), &names, &signed, now)?;
    }
    ensure_dir(&demo.dir.join("backups"))?;
    ensure_file(&RealDisk, &demo.file(), text.as_bytes())
}

fn ensure_dir(path: &Path) -> Result<(), Fault> {
    match RealDisk.create_dir(path, Access::mode(0o700)) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => Err(error.into()),
        _ => Ok(()),
    }
}

/// Starts a member's agent, detached from this command.
pub(super) fn start(demo: &Demo, seat: &Seat) -> Result<Started, Fault> {
    let program = own_program();
    let (dir, log) = (seat.dir(), seat.log());
    let args = ["run".into(), "--config".into(), demo.file().into_os_string(), "--name".into(), seat.name.into()];
    let launch = Launch {
        program: &program,
        args: args.into(),
        env: Vec::new(),
        env_remove: foreign_settings(),
        dir: &dir,
        log: &log,
    };
    process::start_detached(&launch)
        .map_err(|error| Fault::io(format!("cannot start the agent of member `{}`", seat.name), error))
}

/// etcd takes every flag from the environment too; what the operator set for another etcd must not leak in here.
fn foreign_settings() -> Vec<OsString> {
    let names = std::env::vars_os().map(|(name, _)| name);
    names.filter(|name| name.to_string_lossy().starts_with("ETCD_") && name != "ETCD_UNSUPPORTED_ARCH").collect()
}

/// Ends a member's etcd and its agent. Returns whether anything ran.
pub(super) fn stop(demo: &Demo, member: &Member) -> Result<bool, Fault> {
    let asked_by = "quorate demo stop";
    let Some(pid) = member.agent() else {
        if member.etcd().is_none() {
            return Ok(false);
        }
        let (node, _) = Node::read(&demo.file(), Some(member.seat.name))?;
        return Ok(turn::stop_alone(&node, asked_by)?.is_some());
    };
    let agent = Identity::of(pid);
    let wish = Wish { asked_by: asked_by.to_owned(), keep_running: false, reload: false };
    if turn::ask_stop(&member.seat.state_dir(), &wish)?.is_none() {
        return Ok(true);
    }
    let Ok(agent) = agent else { return Ok(true) };
    let deadline = Instant::now() + PATIENCE;
    while matches!(agent.look(), Seen::Running(_)) {
        if Instant::now() > deadline {
            let attempt = format!("the agent of `{}` (process {pid}) does not end", member.seat.name);
            let log = demo.shown_log(&member.seat);
            return Err(Fault::new(Code::NotEnding, attempt).hint(format!("its log is `{}`", log.display())));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(true)
}

/// Refuses when someone else listens on a port that a member needs.
pub(super) fn refuse_busy_ports<'a>(
    seats: impl IntoIterator<Item = (&'a Seat, bool)>,
    hint: &str,
) -> Result<(), Fault> {
    for (seat, etcd_runs) in seats {
        // What a killed agent left running has its ports, and is taken over.
        for port in seat.ports().into_iter().skip(if etcd_runs { 2 } else { 0 }) {
            if let Err(error) = TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
                return Err(Fault::new(
                    Code::PortBusy,
                    format!("port {port}, which member `{}` needs, is taken", seat.name),
                )
                .hint(hint)
                .caused_by(error));
            }
        }
    }
    Ok(())
}
