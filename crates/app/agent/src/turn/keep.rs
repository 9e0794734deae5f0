//! What goes on beside a serving etcd: upkeep of its database, and backups.
//!
//! **Rule:** neither ever stops etcd or keeps the agent from noticing its end; whatever fails is tried again later, slower
//! each time.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use quorate_etcd::client::messages::{Alarm, AlarmKind};
use quorate_etcd::client::{Client, Settings};
use quorate_etcd::ledger::observe_ledger;
use quorate_faults::{Code, Fault};
use quorate_plan::chain;
use quorate_plan::ledger::{LedgerSeen, Origin, State};
use quorate_plan::retention::Policy;
use quorate_plan::schedule::Schedule;
use quorate_plan::spec::{self, Backup, Keep, Value};
use quorate_plan::upkeep::{QUOTA_DEFAULT, Upkeep, UpkeepSeen, plan_upkeep};
use tokio_util::sync::CancellationToken;
use tracing::info;

use super::cluster::hear;
use super::data::in_words;
use super::node::Node;
use super::publish::{Shared, now_ms};
use super::role::{Leader, Turns};
use super::status::Notice;
use crate::backups::PeerClocks;
use crate::backups::follow::{FollowSettings, TakeOver, follow};
use crate::backups::metrics::{CLOCK_AHEAD, CLOCK_UNKNOWN};
use crate::peers::Peers;

/// How often the database's size is asked for.
const UPKEEP_EVERY: Duration = Duration::from_secs(10);
/// How long a leader that would pause waits for others to find that they would too: all have looked by then.
const LEADER_WAITS: Duration = Duration::from_secs(12);
/// And while etcd takes no writes.
const UPKEEP_URGENT: Duration = Duration::from_secs(2);
/// Between two attempts to follow.
const FOLLOW_AGAIN: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(300));
/// How often it is checked whether backups reach the store.
const WATCH_EVERY: Duration = Duration::from_secs(1);
/// Uploads that fail for longer than this are no hiccup of the store.
const TROUBLE_LASTS: Duration = Duration::from_secs(15);
/// How long the end of the agent may be put off for uploads.
const FLUSH: Duration = Duration::from_secs(5);

/// What is remembered from one look to the next.
#[derive(Debug, Default)]
struct Memory {
    defragmented_ms: Option<u64>,
    /// Since when this member would pause.
    wanted: Option<Instant>,
}

/// Looks after the database until it is dropped.
pub(super) async fn upkeep(turns: Turns) {
    let mut memory = Memory::default();
    loop {
        let urgent = match look_after(&turns, &mut memory).await {
            Ok(urgent) => urgent,
            // A user without the right to ask is a choice; that reads fail is told by the phase.
            Err(fault) => {
                tracing::debug!(code = %fault.code(), "upkeep: {}", in_words(&fault));
                false
            }
        };
        tokio::time::sleep(if urgent { UPKEEP_URGENT } else { UPKEEP_EVERY }).await;
    }
}

/// Looks once. Returns whether to look again soon.
async fn look_after(turns: &Turns, memory: &mut Memory) -> Result<bool, Fault> {
    let (node, shared) = (turns.node.as_ref(), turns.shared.as_ref());
    let client = Client::connect(&node.client()?).await?;
    let status = client.status().await?;
    let alarms = client.alarms().await?.alarms;
    let no_space = |alarm: &&Alarm| alarm.alarm == AlarmKind::NoSpace as i32;
    let mut seen = UpkeepSeen {
        db_bytes: u64::try_from(status.db_size).unwrap_or(0),
        used_bytes: u64::try_from(status.db_size_in_use).unwrap_or(0),
        quota_bytes: quota(node, status.db_size_quota),
        no_space: alarms.iter().any(|alarm| no_space(&alarm)),
        defragmented_ms: memory.defragmented_ms,
        // Whether it may is asked only where it would.
        may_pause: true,
    };
    shared.measures.sizes(seen.db_bytes, seen.used_bytes, seen.quota_bytes);
    let revision = status.header.and_then(|header| u64::try_from(header.revision).ok());
    shared.change(|now| {
        if let Some(etcd) = &mut now.etcd {
            etcd.version = Some(status.version.clone());
            etcd.revision = revision;
            etcd.db_bytes = Some(seen.db_bytes);
            etcd.db_used_bytes = Some(seen.used_bytes);
            etcd.quota_bytes = Some(seen.quota_bytes);
        }
    });
    let notice = match shared.backups.position.clock_doubt.load(Ordering::Relaxed) {
        CLOCK_AHEAD => {
            let what = "the clock of this node is ahead of the store's or of other agents': no backup is removed";
            Some(Notice::new(Code::ClockAhead, what))
        }
        CLOCK_UNKNOWN => {
            let what = "the clock of this node cannot be compared with other agents': no backup is removed";
            Some(Notice::new(Code::ClockUnknown, what))
        }
        _ => None,
    };
    shared.warnings(&[Code::ClockAhead, Code::ClockUnknown], notice.into_iter().collect());
    let done = shared.backups.position.take_over_done.load(Ordering::Relaxed) != 0;
    let what = "the take-over that `backup` orders was carried out: it has no effect any more";
    let notice =
        done.then(|| Notice::new(Code::TakeOverDone, what).way_out("remove `take-over` from the cluster file"));
    shared.warnings(&[Code::TakeOverDone], notice.into_iter().collect());
    let defrag = &node.spec.maintenance.defrag;
    let would = plan_upkeep(defrag, &seen, now_ms()).0;
    if would.iter().any(|step| matches!(step, Upkeep::Defragment(_))) {
        let waited = memory.wanted.get_or_insert_with(Instant::now).elapsed() >= LEADER_WAITS;
        seen.may_pause = turns.take(seen.no_space, waited).await;
    } else {
        memory.wanted = None;
        turns.give_back();
    }
    let waits = !seen.may_pause;
    let (steps, warnings) = plan_upkeep(defrag, &seen, now_ms());
    let notices = warnings.into_iter().map(|warning| Notice::new(warning.code, warning.text)).collect();
    shared.warnings(&[Code::NoSpace, Code::QuotaNear], notices);
    for step in steps {
        match step {
            Upkeep::Defragment(why) => {
                info!("defragmenting: {why}");
                *memory = Memory { defragmented_ms: Some(now_ms()), wanted: None };
                let done = client.defragment().await;
                turns.give_back();
                shared.measures.defragmented(if done.is_ok() { "done" } else { "failed" });
                done?;
                info!("defragmented");
            }
            Upkeep::ClearNoSpace(why) => {
                for alarm in alarms.iter().filter(no_space) {
                    client.disarm(*alarm).await?;
                }
                info!("cleared the alarm NOSPACE: {why}");
                shared.warnings(&[Code::NoSpace], Vec::new());
            }
        }
    }
    Ok(seen.no_space || waits)
}

fn quota(node: &Node, told: i64) -> u64 {
    let set = node.spec.etcd.iter().find(|setting| setting.key == "quota-backend-bytes");
    let set = set.and_then(|setting| if let Value::Number(bytes) = setting.value { Some(bytes) } else { None });
    let bytes = if told > 0 { Some(told) } else { set };
    bytes.and_then(|bytes| u64::try_from(bytes).ok()).filter(|bytes| *bytes > 0).unwrap_or(QUOTA_DEFAULT)
}

/// Follows until `stop`, again and again.
pub(super) async fn backups(turns: Turns, stop: CancellationToken) {
    let Turns { node, peers, shared, .. } = turns;
    let clocks = peer_clocks(&node, &peers);
    let Some(backup) = &node.spec.backup else { return };
    let state = |text: String| {
        shared.change(|status| {
            if let Some(backup) = &mut status.backup {
                backup.state = text;
            }
        });
    };
    let mut wait = FOLLOW_AGAIN.0;
    let mut leaders = shared.leaders();
    let mut stopped: Option<Notice> = None;
    while !stop.is_cancelled() {
        // The leader's agent backs up, and no other: a store has one writer at a time. Epochs hold where two believe to lead.
        let leader = leaders.borrow_and_update().clone();
        if !leader.is_me() {
            stopped = None;
            shared.warnings(&[Code::BackupsStopped], Vec::new());
            state(match leader {
                Leader::Other(name) => format!("`{name}` leads, and its agent backs up"),
                Leader::Me | Leader::Unknown => "waiting for a leader".to_owned(),
            });
            tokio::select! {
                changed = leaders.changed() => if changed.is_ok() { continue } else { break },
                () = stop.cancelled() => break,
            }
        }
        // What has failed counts as stopped until it is seen to work.
        if stopped.is_none() {
            state("following".to_owned());
        }
        let begun = Instant::now();
        let watched =
            Watched { shared: &shared, before: stopped.take(), since_ms: now_ms(), limit: behind_limit(backup) };
        let followed = match node.client().and_then(|etcd| settings(&node, backup, etcd, clocks.clone())) {
            Ok(settings) => tokio::select! {
                followed = follow_while_leading(settings, &shared, stop.child_token()) => followed,
                () = watched.run() => Ok(()),
            },
            Err(fault) => Err(fault),
        };
        let Err(fault) = followed else { continue };
        if begun.elapsed() > FOLLOW_AGAIN.1 {
            // It went well for long: this is another trouble than the last one.
            wait = FOLLOW_AGAIN.0;
        }
        let words = in_words(&fault);
        state(format!("stopped for now: {words} [{}]", fault.code()));
        let notice = backups_stopped(&words, fault.code(), fault.hint_text());
        shared.warnings(&[Code::BackupsStopped], vec![notice.clone()]);
        stopped = Some(notice);
        tokio::select! { () = tokio::time::sleep(wait) => {}, () = stop.cancelled() => break }
        wait = (wait * 2).min(FOLLOW_AGAIN.1);
    }
    state("stopped".to_owned());
}

fn backups_stopped(why: &str, code: Code, hint: Option<&str>) -> Notice {
    let notice = Notice::new(Code::BackupsStopped, format!("backups have stopped: {why} [{code}]"));
    notice.way_out(hint.filter(|hint| !hint.is_empty()).unwrap_or("see `quorate explain Q0969`"))
}

/// How far backups may be behind before that is a degraded cluster: several deltas are missing then.
fn behind_limit(backup: &Backup) -> Duration {
    backup.delta_period * 3 + Duration::from_secs(60)
}

/// Whether backups that are under way reach the store.
struct Watched<'a> {
    shared: &'a Shared,
    /// Why they stopped before this attempt.
    before: Option<Notice>,
    since_ms: u64,
    limit: Duration,
}

impl Watched<'_> {
    /// Shows it for as long as it is polled.
    async fn run(mut self) {
        loop {
            tokio::time::sleep(WATCH_EVERY).await;
            let heard = self.shared.backups.position.heard_ms.load(std::sync::atomic::Ordering::Relaxed);
            let trouble = self.shared.backups.trouble();
            if trouble.is_none() && u64::try_from(heard).is_ok_and(|heard| heard > self.since_ms) {
                self.before = None;
            }
            let lag = self.shared.backups.position.lag();
            let now = match trouble.filter(|trouble| trouble.since.elapsed() > TROUBLE_LASTS) {
                Some(trouble) => Some(backups_stopped(&trouble.text, trouble.code, trouble.hint.as_deref())),
                None if self.before.is_some() => self.before.clone(),
                None if lag > self.limit => Some(behind(lag)),
                None => None,
            };
            let state = now.as_ref().map_or_else(|| "following".to_owned(), |notice| notice.text.clone());
            self.shared.change(|status| {
                if let Some(backup) = &mut status.backup {
                    backup.state = state;
                }
            });
            self.shared.warnings(&[Code::BackupsStopped], now.into_iter().collect());
        }
    }
}

fn behind(lag: Duration) -> Notice {
    // In steps, so that the same cause is not a new line each time.
    let minutes = Duration::from_secs(lag.as_secs() / 60 * 60);
    let text = format!("backups have stopped: nothing reached the store for {}", spec::duration_text(minutes));
    Notice::new(Code::BackupsStopped, text)
        .way_out("see whether the store takes writes: `quorate backup list`, and the agent's log")
}

async fn follow_while_leading(settings: FollowSettings, shared: &Shared, stop: CancellationToken) -> Result<(), Fault> {
    let mut leaders = shared.leaders();
    let led = async move {
        // Nobody left to tell is no other leader.
        if leaders.wait_for(|leader| !leader.is_me()).await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    let follow = follow(settings, shared.backups.clone(), stop.clone());
    tokio::pin!(follow);
    tokio::select! {
        followed = &mut follow => return followed.map(|_| ()),
        () = led => stop.cancel(),
        // Its end puts what is recorded into the store; then it goes on where it was.
        () = shared.backup_order() => stop.cancel(),
    }
    follow.await.map(|_| ())
}

/// How the clocks of the other nodes are read; `None`: there are no others.
fn peer_clocks(node: &Arc<Node>, peers: &Arc<Peers>) -> Option<PeerClocks> {
    if peers.others().is_empty() {
        return None;
    }
    let (node, peers) = (Arc::clone(node), Arc::clone(peers));
    Some(PeerClocks::new(move || {
        let (node, peers) = (Arc::clone(&node), Arc::clone(&peers));
        async move {
            let heard = hear(&peers, &observe_ledger(&node.ledger())).await;
            let reported = heard.values().filter_map(|answer| answer.as_ref().ok()?.clock_ms);
            reported.min().and_then(|earliest| i64::try_from(earliest).ok())
        }
    }))
}

fn settings(node: &Node, backup: &Backup, etcd: Settings, peers: Option<PeerClocks>) -> Result<FollowSettings, Fault> {
    // What this member was restored from is its own history, so it may go on in the same store.
    let ledger = observe_ledger(&node.ledger());
    let restored = matches!(&ledger, LedgerSeen::There(ledger)
        if matches!(&ledger.state, State::Started(identity) if identity.origin == Origin::Restored));
    let taken_over = matches!(&ledger, LedgerSeen::There(ledger) if ledger.taken_over);
    let was = match &ledger {
        LedgerSeen::There(ledger) => ledger.ancestors().iter().map(|cluster| cluster.0).collect(),
        LedgerSeen::Absent | LedgerSeen::Unreadable(_) => Vec::new(),
    };
    Ok(FollowSettings {
        store: backup.store.clone(),
        etcd,
        spool: node.spool(),
        spool_max_bytes: backup.spool_max,
        delta_period: backup.delta_period,
        delta_bytes: backup.delta_size,
        full_schedule: Schedule::parse(&backup.full_schedule)?,
        layout: match backup.layout {
            spec::Layout::Quorate => chain::Layout::Quorate,
            spec::Layout::Gardener => chain::Layout::Gardener,
        },
        max_restore_time: Some(backup.max_restore_time),
        keep: Some(policy(&backup.keep)),
        flush_timeout: FLUSH,
        take_over: backup.take_over.map_or(TakeOver::No, |cluster| TakeOver::Of(cluster.0)),
        restored,
        taken_over,
        was,
        declared: Some(node.spec.declared()),
        peers,
        scratch: node.scratch(),
    })
}

fn policy(keep: &Keep) -> Policy {
    let Keep { last, hourly, daily, weekly, monthly, history } = keep.clone();
    Policy { last, hourly, daily, weekly, monthly, history_ms: i64::try_from(history.as_millis()).unwrap_or(i64::MAX) }
}
