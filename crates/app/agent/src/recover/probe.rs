//! Queries the etcd of members whose agents are silent, and watches the store of backups for writes of theirs.
//!
//! **Rule:** bytes that come back from a client or peer URL are an answer, whatever they say: TLS records, an alert, HTTP. An
//! accepted connection that sends nothing is none, because a proxy accepts for a dead machine too. Every query has a limit.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use quorate_backup::catalog::Catalog;
use quorate_backup::store::Store;
use quorate_etcd::aside::ensure_file;
use quorate_etcd_formats::membership::ClusterId;
use quorate_faults::{Code, Fault};
use quorate_host::durable::RealDisk;
use quorate_plan::change::recover::{Probe, Reply, StoreWatch};
use quorate_plan::ledger::{Ledger, LedgerSeen};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::aws_lc_rs::default_provider;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore};

use crate::turn::{Node, now_ms};

/// Queries of each URL.
const ATTEMPTS: u32 = 3;
/// Between two of them.
const PAUSE: Duration = Duration::from_millis(300);
/// For connection and answer together.
const LIMIT: Duration = Duration::from_millis(1200);
/// Members and URLs of one request; more are not queried.
const MEMBERS_MAX: usize = 64;
const URLS_MAX: usize = 16;
/// A watch that nobody repeated for so long begins again.
const WATCH_GAP_MS: u64 = 3_600_000;
/// The watch, in the state dir.
const WATCH_FILE: &str = "recovery-watch.json";

/// Which members are to be queried.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeRequest {
    /// Their names.
    pub members: Vec<String>,
}

/// What was observed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeAnswer {
    /// A line for each member.
    pub probes: Vec<Probe>,
    /// What is new in the store, where one is declared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<StoreWatch>,
}

/// Queries these members, and looks at the store.
pub(crate) async fn observe_absent(node: &Arc<Node>, ledger: &LedgerSeen, members: &[String]) -> ProbeAnswer {
    let known = match ledger {
        LedgerSeen::There(ledger) => ledger.as_ref().clone(),
        LedgerSeen::Absent | LedgerSeen::Unreadable(_) => Ledger::default(),
    };
    let watched = Arc::clone(node);
    let clusters: BTreeSet<ClusterId> = known.cluster().into_iter().chain(known.ancestors()).collect();
    let store = tokio::task::spawn_blocking(move || observe_store(&watched, &clusters));
    let mut queries = JoinSet::new();
    for member in members.iter().take(MEMBERS_MAX) {
        let (member, urls, from) = (member.clone(), urls_of(node, &known, member), node.name().to_owned());
        queries.spawn(async move { Probe { from, member, reply: query(urls).await } });
    }
    let mut probes = queries.join_all().await;
    probes.sort_by(|one, other| one.member.cmp(&other.member));
    ProbeAnswer { probes, store: store.await.ok().flatten() }
}

/// Every client and peer URL of a member: as declared, and as a quorum last confirmed it.
fn urls_of(node: &Node, ledger: &Ledger, member: &str) -> BTreeSet<String> {
    let declared = node.spec.members.iter().chain(&node.leaving).filter(|known| known.name == member);
    let declared = declared.flat_map(|known| known.client_urls.iter().chain(&known.peer_urls));
    let confirmed = ledger.confirmed.iter().flat_map(|list| &list.members);
    let confirmed = confirmed.filter(|known| known.name == member || known.id.to_string() == member);
    declared.chain(confirmed.flat_map(|known| &known.peer_urls)).take(URLS_MAX).cloned().collect()
}

/// The first answer of any of them, or silence of all in every attempt.
async fn query(urls: BTreeSet<String>) -> Reply {
    if urls.is_empty() {
        return Reply::Unknown { why: "no URL of it is known".to_owned() };
    }
    let tls = match connector() {
        Ok(tls) => tls,
        Err(error) => return Reply::Unknown { why: format!("cannot make a TLS connection: {error}") },
    };
    for attempt in 0..ATTEMPTS {
        if attempt > 0 {
            tokio::time::sleep(PAUSE).await;
        }
        let mut asked = JoinSet::new();
        for url in urls.clone() {
            let tls = tls.clone();
            asked.spawn(async move {
                let answered = tokio::time::timeout(LIMIT, answers(&url, &tls)).await;
                (url, answered.is_ok_and(|answered| answered))
            });
        }
        while let Some(asked) = asked.join_next().await {
            if let Ok((url, true)) = asked {
                return Reply::Answered { url };
            }
        }
    }
    Reply::Silent
}

/// Trusts nobody: what an answer says is of no interest here.
fn connector() -> Result<TlsConnector, rustls::Error> {
    let config =
        ClientConfig::builder_with_provider(Arc::new(default_provider())).with_safe_default_protocol_versions()?;
    let config = config.with_root_certificates(RootCertStore::empty()).with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

/// Whether a byte comes back.
async fn answers(url: &str, tls: &TlsConnector) -> bool {
    let Ok(parsed) = reqwest::Url::parse(url) else { return false };
    let (Some(host), Some(port)) = (parsed.host_str(), parsed.port_or_known_default()) else { return false };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let Ok(mut stream) = TcpStream::connect((host, port)).await else { return false };
    if parsed.scheme() != "https" {
        let request = format!("GET /version HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        let mut byte = [0; 1];
        return stream.write_all(request.as_bytes()).await.is_ok()
            && stream.read(&mut byte).await.is_ok_and(|read| read > 0);
    }
    let Ok(name) = ServerName::try_from(host.to_owned()) else { return false };
    match tls.connect(name, stream).await {
        Ok(_) => true,
        // A fault of the protocol is one of bytes that came: a certificate, an alert.
        Err(error) => error.get_ref().is_some_and(|inner| inner.is::<rustls::Error>()),
    }
}

/// How far the store was when it was last read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Watch {
    since_ms: u64,
    read_ms: u64,
    revision: u64,
    epoch: u64,
    /// The last change: when, and the revision before.
    #[serde(default)]
    grew: Option<(u64, u64)>,
    /// With that change another writer took over.
    #[serde(default)]
    taken_over: bool,
}

impl Watch {
    /// The watch after another reading.
    fn next(earlier: Option<Watch>, (revision, epoch): (u64, u64), now: u64) -> Watch {
        let begun = Watch { since_ms: now, read_ms: now, revision, epoch, grew: None, taken_over: false };
        let Some(earlier) = earlier.filter(|it| now >= it.read_ms && now - it.read_ms < WATCH_GAP_MS) else {
            return begun;
        };
        if revision > earlier.revision || epoch > earlier.epoch {
            // What took over stays said while an upload follows on it.
            let taken_over = epoch > earlier.epoch || (earlier.taken_over && earlier.grew.is_some());
            return Watch { grew: Some((now, earlier.revision)), taken_over, ..begun };
        }
        Watch { read_ms: now, revision, epoch, ..earlier }
    }

    /// What it comes to.
    fn verdict(&self, needed_ms: u64, now: u64) -> StoreWatch {
        let ends = |from: u64| Some(from.saturating_add(needed_ms)).filter(|end| *end > now).map(time);
        if let Some((at, from)) = self.grew
            && let Some(until) = ends(at)
        {
            return StoreWatch::Grew { from, to: self.revision, until, taken_over: self.taken_over };
        }
        StoreWatch::Quiet { since: time(self.since_ms), until: ends(self.since_ms) }
    }
}

fn time(ms: u64) -> String {
    let at = i64::try_from(ms).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    at.map_or_else(|| "an unknown time".to_owned(), |at| at.to_string())
}

/// Reads the store, and compares it with the reading before, which is kept.
fn observe_store(node: &Node, clusters: &BTreeSet<ClusterId>) -> Option<StoreWatch> {
    let backup = node.spec.backup.as_ref()?;
    let needed = u64::try_from(backup.delta_period.as_millis()).unwrap_or(u64::MAX).saturating_mul(2);
    let watched = || -> Result<StoreWatch, Fault> {
        let catalog = Catalog::read(&Store::open(&backup.store, false)?)?;
        let ours = |id: u64| id == 0 || clusters.is_empty() || clusters.contains(&ClusterId(id));
        let objects = || catalog.objects.iter().filter(|object| ours(object.cluster_id));
        let revision = objects().map(|object| object.last).max().unwrap_or(0);
        let epoch = objects().map(|object| object.epoch).max().unwrap_or(0);
        let now = now_ms();
        let watch = Watch::next(read_watch(node.state_path()), (revision, epoch), now);
        let bytes = serde_json::to_vec(&watch)
            .map_err(|error| Fault::new(Code::Internal, "cannot write the watch down").caused_by(error))?;
        ensure_file(&RealDisk, &node.state_path().join(WATCH_FILE), &bytes)?;
        Ok(watch.verdict(needed, now))
    };
    Some(watched().unwrap_or_else(|fault| StoreWatch::Unknown { why: fault.to_string() }))
}

fn read_watch(state: &Path) -> Option<Watch> {
    serde_json::from_slice(&std::fs::read(state.join(WATCH_FILE)).ok()?).ok()
}

/// The names of all members: declared, and voters of the list that a quorum last confirmed.
pub(super) fn members_of(node: &Node, ledger: &Ledger) -> Vec<String> {
    let confirmed = ledger.confirmed.iter().flat_map(|list| &list.members).filter(|member| !member.learner);
    let confirmed = confirmed.map(|member| match member.name.is_empty() {
        true => member.id.to_string(),
        false => member.name.clone(),
    });
    let all: BTreeMap<String, ()> =
        node.spec.members.iter().map(|member| member.name.clone()).chain(confirmed).map(|name| (name, ())).collect();
    all.into_keys().collect()
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[test]
    fn a_store_that_grows_counts_for_two_periods_and_then_the_watch_begins_again() {
        let first = Watch::next(None, (100, 1), 1_000);
        assert!(matches!(first.verdict(400, 1_000), StoreWatch::Quiet { until: Some(_), .. }));
        let quiet = Watch::next(Some(first), (100, 1), 1_500);
        assert!(matches!(quiet.verdict(400, 1_500), StoreWatch::Quiet { until: None, .. }));
        let grown = Watch::next(Some(quiet), (103, 1), 1_600);
        assert!(matches!(grown.verdict(400, 1_600), StoreWatch::Grew { from: 100, to: 103, .. }));
        let again = Watch::next(Some(grown), (103, 1), 1_900);
        assert!(matches!(again.verdict(400, 1_900), StoreWatch::Grew { .. }), "still in its time");
        let over = Watch::next(Some(again), (103, 1), 2_100);
        assert!(matches!(over.verdict(400, 2_100), StoreWatch::Quiet { until: None, .. }));
        // Another writer took over, also without a newer revision.
        let taken_over = Watch::next(Some(over), (103, 2), 2_200).verdict(400, 2_200);
        assert!(matches!(taken_over, StoreWatch::Grew { taken_over: true, .. }) && !taken_over.is_own(200));
        assert!(grown.verdict(400, 1_600).is_own(103) && !grown.verdict(400, 1_600).is_own(102));
        // What was seen long ago says nothing about now.
        let late = 2_200 + WATCH_GAP_MS;
        assert!(matches!(Watch::next(Some(over), (900, 9), late).verdict(400, late), StoreWatch::Quiet { .. }));
    }

    #[tokio::test]
    async fn bytes_are_an_answer_and_an_accepted_connection_is_none() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let speaks = tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                // No TLS and no HTTP of any use.
                let _ = stream.write_all(b"\x15\x03\x01\x00\x02\x02\x28").await;
            }
        });
        for scheme in ["http", "https"] {
            let url = format!("{scheme}://{address}");
            assert_eq!(query(BTreeSet::from([url.clone()])).await, Reply::Answered { url });
        }
        speaks.abort();
        let mute = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{}", mute.local_addr().unwrap());
        assert_eq!(query(BTreeSet::from([url])).await, Reply::Silent);
        assert!(matches!(query(BTreeSet::new()).await, Reply::Unknown { .. }));
    }
}
