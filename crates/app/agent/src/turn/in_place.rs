//! Takes over an etcd that someone else started, while it runs and without a restart.
//!
//! **Invariant:** the process that is tended from then on is the one that holds the lock on the declared data, and that data is
//! of the member that answered at the declared client URL. Nothing is sent to it but reads.

use std::io::Read;
use std::path::Path;
use std::time::Duration;

use quorate_etcd::client::Client;
use quorate_etcd::datadir::{self, Found};
use quorate_etcd_formats::dir::InUse;
use quorate_etcd_formats::membership::{ClusterId, MemberId};
use quorate_etcd_formats::wal;
use quorate_faults::Fault;
use quorate_host::shim::{self, Process};
use quorate_host::state::StateDir;
use quorate_plan::taken::{Difference, Given, config_file};

use super::data::in_words;
use super::etcd;
use super::node::Node;

/// No config file of etcd is longer.
const CONFIG_BYTES_MAX: u64 = 1 << 20;

/// When a process was started is known in whole seconds only.
const CLOCK_SLACK: Duration = Duration::from_secs(2);

/// The ids of a member.
pub(super) type Ids = (ClusterId, MemberId);

/// Who works on the data, and whose it is.
#[derive(Debug)]
pub(super) struct Holder {
    /// The process, where the kernel tells.
    pub(super) pid: Option<u32>,
    /// What the WAL says, where it can be read.
    pub(super) ids: Option<Ids>,
}

/// A process that is tended from now on.
#[derive(Debug)]
pub(super) struct Tended {
    pub(super) pid: u32,
    /// What the next start will change.
    pub(super) differences: Vec<Difference>,
    /// The unit of systemd that started it.
    pub(super) unit: Option<String>,
}

/// Looks who works on the data.
pub(super) fn holder(node: &Node) -> Option<Holder> {
    let Ok(Found::DataDir(open)) = datadir::open(node.target.data_dir(), node.target.wal_dir()) else { return None };
    let view = open.view();
    let InUse::Yes { pid } = view.in_use else { return None };
    let files = view.wal_files();
    let metadata = files.first().and_then(|file| wal::head(file.source).ok()?.metadata);
    let ids = metadata.map(|metadata| (ClusterId(metadata.cluster_id()), MemberId(metadata.node_id())));
    Some(Holder { pid, ids })
}

/// Takes it over. The outer error: it should have worked. The inner one: why it cannot be.
pub(super) async fn take_over(
    node: &Node,
    state: &StateDir,
    holder: &Holder,
    client: &Client,
) -> Result<Result<Tended, String>, Fault> {
    let Some(pid) = holder.pid else { return Ok(Err("which process it is cannot be found out".to_owned())) };
    let process = match Process::read(pid) {
        Ok(process) => process,
        Err(error) => return Ok(Err(format!("process {pid} cannot be looked at: {error}"))),
    };
    let version = match client.status().await {
        Ok(status) => status.version,
        Err(fault) => return Ok(Err(format!("its version is not known: {}", in_words(&fault)))),
    };
    let (given, changed) = match given(&process) {
        Ok(given) => given,
        Err(why) => return Ok(Err(format!("what process {pid} was started with cannot be read: {why}"))),
    };
    if let Some(why) = given.obstacle() {
        return Ok(Err(why.to_owned()));
    }
    let (text, mut hash) = etcd::declared_config(node, &version)?;
    let level = etcd::level_mark(node);
    // Of its log, what runs keeps itself what our own would be kept of by the shim.
    let asked = if level.is_empty() { text } else { text.replace("log-level: \"info\"\n", &level) };
    let file = match Given::by_file(&asked) {
        Ok(file) => file,
        Err(why) => return Ok(Err(why)),
    };
    let mut differences = given.differences(&file);
    differences.extend(changed);
    differences.extend(binary(node, &process));
    if !differences.is_empty() {
        hash = etcd::taken_with_others(node, &hash);
    }
    shim::take_over(state, &process, &hash)?;
    Ok(Ok(Tended { pid, differences, unit: process.unit }))
}

/// What it was started with; and whether that can have changed since.
fn given(process: &Process) -> Result<(Given, Option<Difference>), String> {
    let Some(path) = config_file(&process.args, &process.env) else {
        return Ok((Given::by_flags(&process.args, &process.env)?, None));
    };
    let place = process.path(&path);
    let (text, changed) = read(&place).map_err(|error| format!("`{}`: {error}", place.display()))?;
    let started = std::time::UNIX_EPOCH + Duration::from_millis(process.started_at_ms()) + CLOCK_SLACK;
    let later = changed.is_some_and(|changed| changed > started);
    let difference = later.then(|| Difference {
        key: "config-file".to_owned(),
        runs: Some(format!("`{path}` as it was when etcd was started")),
        file: Some("it was changed since".to_owned()),
    });
    Ok((Given::by_file(&text)?, difference))
}

fn read(path: &Path) -> std::io::Result<(String, Option<std::time::SystemTime>)> {
    let file = std::fs::File::open(path)?;
    let changed = file.metadata()?.modified().ok();
    let mut text = String::new();
    file.take(CONFIG_BYTES_MAX).read_to_string(&mut text)?;
    Ok((text, changed))
}

/// Another program than the one that the next start will use.
fn binary(node: &Node, process: &Process) -> Option<Difference> {
    let named = node.spec.agent.etcd_binary.as_ref()?;
    let runs = &process.identity.executable;
    let wanted = Path::new(named).canonicalize().unwrap_or_else(|_| named.into());
    (*runs != wanted).then(|| Difference {
        key: "etcd-binary".to_owned(),
        runs: Some(runs.display().to_string()),
        file: Some(wanted.display().to_string()),
    })
}
