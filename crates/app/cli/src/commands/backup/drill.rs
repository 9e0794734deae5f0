//! The drill: restores the newest state into a scratch dir, verifies it, starts etcd on it, compares, cleans up.

use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use quorate_agent::backups::restore::Restore;
use quorate_backup::drills::{self, Drill};
use quorate_backup::session::{Session, Wanted};
use quorate_etcd::binary::{Binary, Places};
use quorate_etcd::client::messages::RangeRequest;
use quorate_etcd::client::{Client, Settings};
use quorate_etcd::datadir::{self, Found};
use quorate_etcd::init::Target as Place;
use quorate_etcd_formats::founding::{Form, Founding};
use quorate_etcd_formats::inspect;
use quorate_etcd_formats::verify::{self, Mode};
use quorate_faults::{Code, Fault, Severity};
use quorate_plan::chain::{Layout, Target};
use quorate_plan::restore_point::Content;
use serde::Serialize;
use tempfile::TempDir;

use super::restore::make;
use super::tell;
use crate::commands::data::workers;
use crate::printer::Printer;

const READY_LIMIT: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(100);

/// How it went.
#[derive(Serialize)]
pub(super) struct Drilled {
    pub(super) etcd: String,
    pub(super) revision: u64,
    pub(super) keys: u64,
    pub(super) writes_replayed: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) failed: Option<String>,
}

/// Tries it. A store that cannot be read is a fault; a restored cluster that is not right is said in `failed`.
pub(super) fn run(session: &mut Session, named: Option<&Path>, printer: &mut Printer) -> Result<Drilled, Fault> {
    let etcd = find_etcd(named)?;
    let scratch = TempDir::with_prefix("quorate-drill.partial-")
        .map_err(|error| Fault::io("cannot make a scratch dir for the drill", error))?;
    let [client, peer] = free_ports()?;
    let peer_url = format!("http://127.0.0.1:{peer}");
    let founding = Founding::new(vec![("drill".to_owned(), vec![peer_url])], "quorate-drill")
        .map_err(|error| Fault::new(Code::Internal, "cannot found the drill's cluster").caused_by(error))?;
    let place = Place::new(&scratch.path().join("data"), None)?;
    let content = Content { bump: None, mark_compacted: false };
    let proven = session.run(&Wanted::Target(Target::Newest), |base, events, _| {
        let work = Restore { place: &place, founding: &founding, name: "drill", form: Form::Any, content };
        make(&work, base, events, printer)
    })?;
    tell(session, printer);
    let mut drilled = Drilled {
        etcd: etcd.version.clone(),
        revision: proven.revision,
        keys: 0,
        writes_replayed: proven.events,
        failed: None,
    };
    match verified_keys(place.data_dir(), proven.revision) {
        Ok(keys) => drilled.keys = keys,
        Err(why) => return Ok(Drilled { failed: Some(why), ..drilled }),
    }
    let running = Running::start(&etcd, &place, client, peer, scratch.path())?;
    drilled.failed = compare(running, client, drilled.revision, drilled.keys)?;
    Ok(drilled)
}

/// Notes in the store how it went, for those who watch it. A store that only reads is no reason to fail.
pub(super) fn remember(session: &Session, drilled: &Drilled, printer: &mut Printer) {
    // Others read a store of their layout, and find no names in it that they do not know.
    if !session.catalog.objects.iter().any(|object| object.layout == Layout::Quorate) {
        return;
    }
    let ended_ms = jiff::Timestamp::now().as_millisecond();
    let drill = Drill { ended_ms, revision: drilled.revision, good: drilled.failed.is_none() };
    if let Err(fault) = drills::record(&session.store, &drill) {
        printer.warning(fault.code(), &format!("the drill is not noted in the store: {fault}"));
    }
}

/// Our own verification, and the keys that are to be there.
fn verified_keys(dir: &Path, revision: u64) -> Result<u64, String> {
    let Ok(Found::DataDir(dir)) = datadir::open(dir, None) else { return Err("nothing was restored".to_owned()) };
    let done = AtomicU64::new(0);
    let settings = verify::Settings { mode: Mode::Full, workers: workers(), progress: &done };
    let report = verify::data_dir(&dir.view(), &settings);
    if let Some(finding) = report.findings.iter().find(|finding| finding.severity == Severity::Error) {
        return Err(format!("what was restored does not verify: {} [{}]", finding.what, finding.code));
    }
    let settings = inspect::Settings { hash: Some(false), count: true, workers: workers(), progress: &done };
    let database = inspect::data_dir(&dir.view(), settings).database;
    match (database.revision, database.live_keys) {
        (Some(there), Some(keys)) if there == revision => Ok(keys),
        (there, _) => Err(format!("what was restored has revision {}, not {revision}", there.unwrap_or(0))),
    }
}

/// Asks the started etcd; says what differs.
fn compare(mut running: Running, port: u16, revision: u64, keys: u64) -> Result<Option<String>, Fault> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Fault::io("cannot set up the network", error))?;
    runtime.block_on(async {
        let client = Client::connect(&Settings::new([format!("http://127.0.0.1:{port}")])).await?;
        let begun = Instant::now();
        let all = RangeRequest { key: vec![0], range_end: vec![0], count_only: true, ..RangeRequest::default() };
        let answer = loop {
            match client.range(all.clone()).await {
                Ok(answer) => break answer,
                Err(_) if running.ended() => {
                    return Ok(Some("etcd ended by itself on what was restored".to_owned()));
                }
                Err(_) if begun.elapsed() < READY_LIMIT => tokio::time::sleep(PAUSE).await,
                Err(fault) => return Ok(Some(format!("etcd did not answer on what was restored: {fault}"))),
            }
        };
        let (there, found) = (answer.header.unwrap_or_default().revision, answer.count);
        Ok(match there as u64 == revision && found as u64 == keys {
            true => None,
            false => Some(format!("etcd shows revision {there} and {found} keys, not {revision} and {keys}")),
        })
    })
}

/// An etcd that ends with the drill.
struct Running {
    child: Child,
}

impl Running {
    fn start(etcd: &Binary, place: &Place, client: u16, peer: u16, dir: &Path) -> Result<Running, Fault> {
        let client = format!("http://127.0.0.1:{client}");
        let mut command = Command::new(&etcd.path);
        // What the operator set for another etcd must not leak in here.
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("ETCD_")) {
            if name != "ETCD_UNSUPPORTED_ARCH" {
                command.env_remove(name);
            }
        }
        command
            .arg("--name=drill")
            .arg(format!("--data-dir={}", place.data_dir().display()))
            .arg(format!("--listen-peer-urls=http://127.0.0.1:{peer}"))
            .arg(format!("--listen-client-urls={client}"))
            .arg(format!("--advertise-client-urls={client}"))
            .current_dir(dir)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let child = command.spawn();
        let attempt = || format!("cannot start `{}` for the drill", etcd.path.display());
        Ok(Running { child: child.map_err(|error| Fault::io(attempt(), error))? })
    }

    fn ended(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(Some(_)))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The scratch dir goes away with it, so there is nothing to save.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn find_etcd(named: Option<&Path>) -> Result<Binary, Fault> {
    let path = std::env::var_os("PATH");
    let beside_us = std::env::current_exe().ok().and_then(|exe| exe.parent().map(Path::to_owned));
    let near = std::env::current_dir().ok().into_iter().chain(beside_us).collect();
    Binary::find(&Places { named, path: path.as_deref(), near })
}

/// Two ports that nobody uses now.
fn free_ports() -> Result<[u16; 2], Fault> {
    let take = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
    let ports = take().and_then(|one| take().and_then(|two| Ok([one.local_addr()?.port(), two.local_addr()?.port()])));
    ports.map_err(|error| Fault::io("cannot find free ports for the drill", error))
}
