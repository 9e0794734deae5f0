//! The members' processes: looked for, started, and never mistaken for others.

use std::ffi::OsString;
use std::net::{Ipv4Addr, TcpListener};

use quorate_etcd::binary::Binary;
use quorate_faults::{Code, Fault};
use quorate_host::process::{self, Handle, Identity, Launch, Seen, Started};

use super::state::{Demo, Seat};

/// A member and its process, if it runs.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) seat: Seat,
    pub(super) process: Option<Identity>,
}

impl Member {
    /// Looks for every member's process.
    pub(super) fn observe_all(demo: &Demo) -> Result<Vec<Member>, Fault> {
        demo.seats.iter().map(|seat| Ok(Member { process: find(seat)?, seat: seat.clone() })).collect()
    }

    /// A handle to the running process, to stop it with.
    pub(super) fn handle(&self) -> Result<Option<Handle>, Fault> {
        match self.process.as_ref().map(Identity::look) {
            None | Some(Seen::Gone) => Ok(None),
            Some(Seen::Running(handle)) => Ok(Some(handle)),
            Some(Seen::Unknown(error)) => {
                Err(Fault::io(format!("cannot find out whether member `{}` runs", self.seat.name), error))
            }
        }
    }
}

/// The argument by which a member's process is known.
fn mark(seat: &Seat) -> String {
    format!("--data-dir={}", seat.data_dir().display())
}

fn find(seat: &Seat) -> Result<Option<Identity>, Fault> {
    let found = process::find_by_argument(&mark(seat));
    let found = found.map_err(|error| Fault::io("cannot list the processes of this machine", error))?;
    Ok(found.into_iter().next())
}

/// Starts a member, detached from this command.
pub(super) fn start(seat: &Seat, etcd: &Binary) -> Result<Started, Fault> {
    let flags = [
        format!("--name={}", seat.name),
        mark(seat),
        format!("--listen-peer-urls={}", seat.peer_url()),
        format!("--listen-client-urls={}", seat.client_url()),
        format!("--advertise-client-urls={}", seat.client_url()),
    ];
    let log = seat.log();
    let launch = Launch {
        program: &etcd.path,
        args: flags.into_iter().map(OsString::from).collect(),
        env: Vec::new(),
        env_remove: foreign_settings(),
        dir: seat.dir(),
        log: &log,
    };
    process::start_detached(&launch)
        .map_err(|error| Fault::io(format!("cannot start `{}` for member `{}`", etcd.path.display(), seat.name), error))
}

/// etcd takes every flag from the environment too; what the operator set for another etcd must not leak in here.
fn foreign_settings() -> Vec<OsString> {
    let names = std::env::vars_os().map(|(name, _)| name);
    names.filter(|name| name.to_string_lossy().starts_with("ETCD_") && name != "ETCD_UNSUPPORTED_ARCH").collect()
}

/// Refuses when someone else listens on a port that a member needs.
pub(super) fn refuse_busy_ports<'a>(seats: impl IntoIterator<Item = &'a Seat>, hint: &str) -> Result<(), Fault> {
    for seat in seats {
        for port in [seat.client_port, seat.peer_port] {
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
