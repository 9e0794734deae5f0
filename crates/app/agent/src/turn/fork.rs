//! What a recovered cluster records about itself when it meets another one of the same generation, and what follows of both records.
//!
//! **Invariant:** what is recorded against another cluster is recorded once, by a transaction of the own etcd: every member of the cluster
//! reports the same. A cluster without a quorum records nothing, and serves nothing either.

use std::sync::Arc;
use std::time::{Duration, Instant};

use quorate_etcd::client::messages::{Compare, PutRequest, RangeRequest, Request, TxnRequest};
use quorate_etcd::client::{Client, KeyRange, WatchFrom, WatchTurn};
use quorate_etcd_formats::membership::{ClusterId, MemberId};
use quorate_faults::{Code, Fault};
use quorate_plan::check::check_fork;
use quorate_plan::fork::{Fact, Fork, Forks, Recovered, Report, Sealed, Verdict, decide_late};
use quorate_plan::ledger::{Generation, Ledger, LedgerSeen, RecoveredAt};
use quorate_plan::peers::Told;
use quorate_plan::phase::Phase;
use tracing::{info, warn};

use super::beside::{Beside, Survey};
use super::cluster::Heard;
use super::data::in_words;
use super::execute::halted;
use super::node::Node;
use super::status::Notice;
use crate::peers::{FoundingAnswer, NodeAnswer};
use crate::recover::recovered_at;

/// How long another cluster that serves may take to record what it is. Its agents survey it every two seconds.
const LATE: Duration = Duration::from_secs(30);
/// How long it may take to read what was written since the recovery; the first write of a client ends it.
const READ_LIMIT: Duration = Duration::from_secs(10);
/// Keys per request, where the history since the recovery is compacted.
const PAGE_KEYS: i64 = 1000;

impl Beside {
    /// Records where the history of this recovered cluster begins: the node that began it has it, and the others learn it from the
    /// cluster itself, so that any of them can tell what was written since.
    pub(super) async fn learn_recovery(&mut self, client: &Client, survey: &Survey) -> Result<(), Fault> {
        let LedgerSeen::There(ledger) = self.book.read() else { return Ok(()) };
        if self.began || ledger.generation == 0 || ledger.cluster() != Some(survey.cluster) {
            return Ok(());
        }
        let begun = match ledger.recovered_at() {
            Some(known) => Some(known),
            // A recovery by an earlier release recorded it in its journal alone.
            None => {
                let (node, ledger) = (Arc::clone(&self.node), ledger.clone());
                tokio::task::spawn_blocking(move || recovered_at(&node, &ledger)).await.map_err(halted)??
            }
        };
        let key = key(&self.node, &format!("began/{}", survey.cluster));
        let revision = match begun {
            Some(revision) => create(client, &key, &revision.to_string()).await?.parse().ok(),
            None => client.get(key).await?.and_then(|there| text(&there.value).parse().ok()),
        };
        let Some(revision) = revision else { return Ok(()) };
        let recovered = RecoveredAt { cluster: survey.cluster, revision };
        if ledger.recovered != Some(recovered) {
            self.write(move |ledger| ledger.recovered = Some(recovered)).await?;
        }
        self.began = true;
        Ok(())
    }

    /// Records what this cluster is against others of its generation that were reported, and shows those that nothing is decided with.
    pub(super) async fn meet_forks(&mut self, client: &Client, survey: &Survey, heard: &Heard) {
        let LedgerSeen::There(ledger) = self.book.read() else { return };
        let reports: Vec<Report> = heard.values().flatten().map(report).collect();
        let forks = Forks::of(&ledger, &reports);
        let mut open = Vec::new();
        for (rival, verdict) in forks.verdicts(survey.cluster) {
            let since = *self.met.entry(rival).or_insert_with(Instant::now);
            if ledger.cluster() == Some(survey.cluster) && !ledger.forks.iter().any(|fork| fork.rival == rival) {
                let late = since.elapsed() > LATE;
                match self.seal(client, &ledger, rival, supports(heard, survey), late).await {
                    Ok(Some(sealed)) => {
                        info!(rival = %rival, ?sealed, "another recovered cluster of this generation was met");
                        let recorded = self.write(move |ledger| *ledger = ledger.with_fork(Fork { rival, sealed }));
                        if let Err(fault) = recorded.await {
                            warn!(code = %fault.code(), "cannot record it: {}", in_words(&fault));
                        }
                    }
                    Ok(None) => {}
                    Err(fault) => {
                        let text =
                            format!("cannot record whether clients wrote since the recovery: {}", in_words(&fault));
                        self.shared.log(&Notice::new(fault.code(), text));
                    }
                }
            }
            if verdict == Verdict::Undecided {
                open.push(notice(survey.cluster, rival));
            }
        }
        self.shared.warnings(&[Code::GenerationsFork], open);
    }

    /// What this cluster recorded against another one, or records now. None: not yet.
    async fn seal(
        &self,
        client: &Client,
        ledger: &Ledger,
        rival: ClusterId,
        supported: bool,
        late: bool,
    ) -> Result<Option<Sealed>, Fault> {
        let key = key(&self.node, &format!("met/{rival}"));
        if let Some(there) = client.get(key.clone()).await? {
            return Ok(Some(parse(&text(&there.value))));
        }
        let sealed = match ledger.recovered_at() {
            Some(since) if supported && !late => {
                let namespace = self.node.spec.namespace().as_bytes();
                let asked = key.iter().chain(b"/asked").copied().collect();
                let read = written_since(client, since, namespace, asked);
                let silent =
                    |_| Fault::new(Code::EtcdUnreachable, "the writes since the recovery could not be read in time");
                tokio::time::timeout(READ_LIMIT, read).await.map_err(silent)??
            }
            // A member may know where the history begins, and answer soon.
            None if supported && !late => return Ok(None),
            Some(_) | None => Sealed::ById,
        };
        create(client, &key, word(sealed)).await.map(|there| Some(parse(&there)))
    }

    /// Notes since when other clusters of this generation are reported: also without a quorum, since a member that can record nothing
    /// about its cluster has to come to a late verdict too.
    pub(super) fn note_rivals(&mut self, heard: &Heard, ledger: &LedgerSeen) {
        let LedgerSeen::There(ledger) = ledger else { return };
        let reports: Vec<Report> = heard.values().flatten().map(report).collect();
        let rivals = Forks::of(ledger, &reports).rivals;
        self.met.retain(|rival, _| rivals.contains_key(rival));
        for rival in rivals.into_keys() {
            self.met.entry(rival).or_insert_with(Instant::now);
        }
    }

    /// Decides where another cluster serves and a fact about one of the two is missing, although it was waited for.
    pub(super) fn late_verdict(&self, heard: &Heard, ledger: &LedgerSeen) -> Option<Told> {
        let LedgerSeen::There(ledger) = ledger else { return None };
        let own = ledger.cluster()?;
        let reports: Vec<Report> = heard.values().flatten().map(report).collect();
        let serves = |rival: ClusterId| {
            let its = |answer: &&NodeAnswer| answer.founding == FoundingAnswer::Founded { cluster: rival };
            heard.values().flatten().filter(its).any(|answer| answer.phase == Phase::Serving.word())
        };
        let forks = Forks::of(ledger, &reports);
        let late = |rival: &ClusterId| self.met.get(rival).is_some_and(|since| since.elapsed() > LATE * 2);
        let waited = forks.rivals.iter().filter(|(rival, _)| late(rival) && serves(**rival));
        let mut lost = waited.filter(|(rival, (known, theirs))| {
            let (own, rival) =
                (Recovered { cluster: own, fact: *known }, Recovered { cluster: **rival, fact: *theirs });
            decide_late(own, rival) == Verdict::Loses && check_fork(own, rival, Verdict::Loses, true).is_ok()
        });
        lost.next().map(|(rival, _)| Told::Newer(Generation { number: ledger.generation, cluster: Some(*rival) }))
    }
}

/// Whether the independent rules agree that this cluster stops for another one of its generation.
pub(super) fn is_in_order(heard: &Heard, ledger: &LedgerSeen, newer: Generation) -> Result<(), String> {
    let LedgerSeen::There(ledger) = ledger else { return Ok(()) };
    let (Some(own), Some(rival)) = (ledger.cluster(), newer.cluster) else { return Ok(()) };
    if newer.number != ledger.generation {
        return Ok(());
    }
    let reports: Vec<Report> = heard.values().flatten().map(report).collect();
    let forks = Forks::of(ledger, &reports);
    let (known, theirs) = forks.rivals.get(&rival).copied().unwrap_or((Fact::Unknown, Fact::Unknown));
    match forks.lost_to == Some(rival) {
        true => Ok(()),
        false => {
            let (own, rival) = (Recovered { cluster: own, fact: known }, Recovered { cluster: rival, fact: theirs });
            check_fork(own, rival, Verdict::Loses, false)
        }
    }
}

/// What an agent reports of generations.
pub(super) fn report(answer: &NodeAnswer) -> Report {
    let newest = Generation { number: answer.generation, cluster: answer.generation_of };
    let cluster = match &answer.founding {
        FoundingAnswer::Founded { cluster } => Some(*cluster),
        FoundingAnswer::Nothing | FoundingAnswer::Promised(_) | FoundingAnswer::Removed => None,
    };
    Report { newest, cluster, forks: answer.forks.clone() }
}

/// Whether no member of this cluster that answers is of a release that compares ids alone.
fn supports(heard: &Heard, survey: &Survey) -> bool {
    let listed = |member: Option<MemberId>| survey.members.iter().any(|(one, _)| Some(MemberId(one.id)) == member);
    heard.values().flatten().filter(|answer| listed(answer.member)).all(|answer| answer.forks.is_some())
}

fn notice(own: ClusterId, rival: ClusterId) -> Notice {
    let text = format!(
        "two recoveries made this generation, `{own}` and `{rival}`, and it is not decided yet which of them stops"
    );
    Notice::new(Code::GenerationsFork, text)
        .way_out("nothing: it is decided once both have recorded whether clients wrote to them since their recovery")
}

fn key(node: &Node, name: &str) -> Vec<u8> {
    format!("{}recovery/{}/{name}", node.spec.namespace(), node.spec.token).into_bytes()
}

/// Creates a key unless it is there, and returns its value.
async fn create(client: &Client, key: &[u8], value: &str) -> Result<String, Fault> {
    let put = PutRequest { key: key.to_vec(), value: value.as_bytes().to_vec(), ..PutRequest::default() };
    let created =
        TxnRequest { compare: vec![Compare::absent(key)], success: vec![Request::Put(put).into()], failure: vec![] };
    if client.txn(created).await?.succeeded {
        return Ok(value.to_owned());
    }
    let there = client.get(key).await?;
    let gone = || Fault::new(Code::EtcdUnreachable, "a record of this cluster was removed while it was read");
    there.map(|there| text(&there.value)).ok_or_else(gone)
}

/// Whether a client has written since a revision. Keys of agents do not count. The first such write ends it; otherwise a write of our own,
/// behind all others, does.
async fn written_since(client: &Client, since: u64, namespace: &[u8], asked: Vec<u8>) -> Result<Sealed, Fault> {
    let since = i64::try_from(since).unwrap_or(i64::MAX);
    let header = client.put(asked, Vec::new()).await?.header;
    let end = header.map_or(i64::MAX, |header| header.revision);
    let from = WatchFrom { revision: since.saturating_add(1), progress: false };
    let mut watch = client.watch(from).await?;
    loop {
        match watch.next().await? {
            WatchTurn::Events { events, .. } => {
                for kv in events.iter().filter_map(|event| event.kv.as_ref()) {
                    if !kv.key.starts_with(namespace) {
                        return Ok(Sealed::Written);
                    }
                    if kv.mod_revision >= end {
                        return Ok(Sealed::Unwritten);
                    }
                }
            }
            WatchTurn::Progress { .. } => {}
            WatchTurn::Compacted { .. } => return written_keys(client, since, namespace).await,
        }
    }
}

/// The same by the keys that are there, where the history is compacted: what was deleted since is not seen.
async fn written_keys(client: &Client, since: i64, namespace: &[u8]) -> Result<Sealed, Fault> {
    let (mut key, range_end) = KeyRange::all().bounds();
    loop {
        let request = RangeRequest {
            key: key.clone(),
            range_end: range_end.clone(),
            limit: PAGE_KEYS,
            keys_only: true,
            ..RangeRequest::default()
        };
        let page = client.range(request).await?;
        if page.kvs.iter().any(|kv| kv.mod_revision > since && !kv.key.starts_with(namespace)) {
            return Ok(Sealed::Written);
        }
        match page.kvs.last() {
            Some(last) if page.more => key = last.key.iter().copied().chain([0]).collect(),
            Some(_) | None => return Ok(Sealed::Unwritten),
        }
    }
}

fn word(sealed: Sealed) -> &'static str {
    match sealed {
        Sealed::Written => "written",
        Sealed::Unwritten => "unwritten",
        Sealed::ById => "by-id",
    }
}

/// What cannot be understood was not written by this release.
fn parse(word: &str) -> Sealed {
    match word {
        "written" => Sealed::Written,
        "unwritten" => Sealed::Unwritten,
        _ => Sealed::ById,
    }
}

fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(value.get(..value.len().min(64)).unwrap_or_default()).into_owned()
}
