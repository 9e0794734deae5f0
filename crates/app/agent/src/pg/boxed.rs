//! The boxes of what a node runs: PostgreSQL, its pooler and its proxy.
//!
//! **Invariant:** below a root agent none of them is root: where the file asks for no box each has the lower one, since only a box
//! makes a program another user.

use std::path::Path;

use quorate_faults::{Code, Fault};
use quorate_host::sandbox::{forget_machine, known_machine};
use quorate_plan::boxes::{BoxPlan, BoxSpec, Level, Ports, plan_box};
use quorate_postgres::server;
use rustix::process::{Resource, getrlimit};

use super::here::Here;
use crate::turn::usual_level;

/// Ports below this are root's.
const FIRST_FREE_PORT: u16 = 1024;
/// What haproxy opens for its connections: two for each, and some.
const PROXY_FILES: u64 = 16_384;

/// The level of a part: as for etcd, `strict` below a root agent unless the file asks for less.
fn level(here: &Here) -> Result<Level, Fault> {
    Ok(match here.spec.box_.level.unwrap_or_else(usual_level) {
        Level::Off if here.owner()?.is_some() => Level::Basic,
        level => level,
    })
}

fn plan(spec: &BoxSpec) -> Result<Option<BoxPlan>, Fault> {
    if spec.level == Level::Off {
        return Ok(None);
    }
    let plan = plan_box(spec, &known_machine()).map_err(|why| {
        // The next plan observes the machine again.
        forget_machine();
        let parts = why.parts.iter().map(|(part, why)| format!("{}: {why}", part.name())).collect::<Vec<_>>();
        Fault::new(Code::BoxRefused, "the box that the file asks for cannot be had here").caused_by(parts.join("; "))
    })?;
    Ok(Some(plan))
}

/// The box of the server, with the limits and holes of `postgres:`.
pub(super) fn server_box(
    here: &Here,
    installation: &server::Installation,
    config: &server::ServerConfig,
) -> Result<Option<BoxPlan>, Fault> {
    let mut spec = server::box_spec(installation, &here.data_dir(), config, level(here)?, &here.pg.user);
    if here.owner()?.is_none() {
        // Links of earlier releases name the node's own files.
        let own = here.files()?;
        spec.reads.extend([&own.cert, &own.key, &own.ca].map(|file| text(file)));
    }
    spec.limits = here.pg.limits.limits();
    spec.escapes.clone_from(&here.pg.escapes);
    if spec.level == Level::Strict {
        spec.limits.pids.get_or_insert_with(|| server::processes_max(config));
    }
    plan(&spec)
}

/// The box of a part that is neither the server nor to be root.
fn part(here: &Here) -> Result<BoxSpec, Fault> {
    let user = here.owner()?.map(|_| here.pg.user.clone());
    Ok(BoxSpec { user, ..BoxSpec::new(level(here)?) })
}

/// The box of the pooler: its own directory, the server's socket and the certificates. Whom it hands clients on to changes.
pub(super) fn pooler_box(here: &Here) -> Result<Option<BoxPlan>, Fault> {
    let mut spec = part(here)?;
    let files = here.given_files()?;
    let dirs = [&files.cert, &files.key, &files.ca].into_iter().filter_map(|file| file.parent());
    let run_dir = here.run_dir();
    let mut reads: Vec<String> = dirs.chain([run_dir.as_path()]).map(text).collect();
    reads.sort();
    reads.dedup();
    spec.reads = reads;
    spec.writes = vec![text(&run_dir.join("pooler"))];
    spec.ports = Ports { bind: vec![here.node.pooler_port], connect: Vec::new(), connect_any: true };
    with_low_ports(&mut spec);
    plan(&spec)
}

/// The box of the proxy: its own directory. It asks and reaches every node, wherever the next one will be.
pub(super) fn proxy_box(here: &Here) -> Result<Option<BoxPlan>, Fault> {
    let mut spec = part(here)?;
    spec.writes = vec![text(&here.run_dir().join("proxy"))];
    spec.ports =
        Ports { bind: vec![here.node.write_port, here.node.read_port], connect: Vec::new(), connect_any: true };
    // As root it would raise its limit itself.
    if spec.user.is_some() && getrlimit(Resource::Nofile).maximum.is_some_and(|most| most < PROXY_FILES) {
        spec.limits.open_files = Some(PROXY_FILES);
    }
    with_low_ports(&mut spec);
    plan(&spec)
}

/// Who is not root needs a right for these.
fn with_low_ports(spec: &mut BoxSpec) {
    if spec.user.is_some() && spec.ports.bind.iter().any(|port| *port < FIRST_FREE_PORT) {
        spec.capabilities = vec!["NET_BIND_SERVICE".to_owned()];
    }
}

fn text(path: &Path) -> String {
    path.display().to_string()
}
