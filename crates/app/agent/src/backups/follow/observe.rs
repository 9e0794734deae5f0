//! Looks at spool, store and etcd, and does what the plan says before anything is recorded.
//!
//! **Rule:** spool first, then store, then etcd: etcd's revision, asked for last, is behind the others only if its history
//! was replaced. A store that does not answer is unknown, never empty.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use jiff::Timestamp;
use quorate_backup::catalog::Catalog;
use quorate_backup::session::Session;
use quorate_backup::spool::{Spool, SpoolState};
use quorate_backup::store::Store;
use quorate_backup::write::About;
use quorate_backup::{epochs, own_fulls};
use quorate_etcd::client::messages::RangeRequest;
use quorate_etcd::client::{Client, Consistency, WatchFrom, WatchTurn};
use quorate_faults::{Code, Fault, Result};
use quorate_plan::chain::{Kind, Layout, Span, Target};
use quorate_plan::estimate::{Cost, Inside};
use quorate_plan::follow::{
    EpochPlan, EtcdSeen, FollowPlan, FollowSeen, Kin, Lists, Me, Order, SpoolPlan, SpoolSeen, StoreSeen, Verdict,
    compare_members, newest_full_ms, observe_lineage, observe_order, plan_follow,
};
use quorate_plan::lineage::Lineage;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::patience::in_words;
use super::run::{Origins, Run};
use super::{FollowSettings, TakeOver, halted, until};
use crate::backups::full::{Heard, ask_all};
use crate::backups::metrics::Metrics;
use crate::backups::{cluster_hex, size};

/// etcd says within a tenth of a second that a revision is gone.
const PROBE_LIMIT: Duration = Duration::from_secs(3);

/// What was seen, and what else is worth knowing about it.
pub(super) struct Seen {
    plan_of: FollowSeen,
    heard: Heard,
    store: Arc<Store>,
    holds: Option<Holds>,
    /// The lineage that the store's part in the plan is of.
    lineage: Option<Lineage>,
    /// The newest epoch of any lineage.
    newest_epoch: u64,
}

/// What a store amounts to for this cluster.
struct Looked {
    store: StoreSeen,
    holds: Option<Holds>,
    lineage: Option<Lineage>,
    take_over: Order,
}

/// The newest chain of the store.
#[derive(Clone, Default)]
struct Holds {
    reach: u64,
    full: Option<(u64, i64)>,
    delta: Option<(u64, i64)>,
    deltas: u64,
    cost: Option<Cost>,
}

/// Looks; waits for etcd, and for the store where nothing can begin without it. `None`: the end was asked for.
pub(super) async fn observe(
    settings: &Arc<FollowSettings>,
    client: &Client,
    metrics: &Metrics,
    spool: &mut Spool,
    oldest: Option<u64>,
    stop: &CancellationToken,
) -> Result<Option<Seen>> {
    let spooled = spool_seen(spool);
    let opened = until(stop, "open the store", || {
        let settings = Arc::clone(settings);
        async move { tokio::task::spawn_blocking(move || Store::open(&settings.store, true)).await.map_err(halted)? }
    });
    let Some(store) = opened.await? else { return Ok(None) };
    let store = Arc::new(store);
    let Some(catalog) = look_until(&store, spooled, stop).await? else { return Ok(None) };
    let Some(heard) = until(stop, "reach etcd", || ask_all(client)).await? else { return Ok(None) };
    let etcd = EtcdSeen { cluster_id: heard.origin.cluster_id, revision: heard.revision, oldest };
    let newest_epoch = catalog.as_ref().map_or(0, Catalog::newest_epoch);
    let me = me(settings, etcd.cluster_id);
    let Looked { store: store_seen, holds, lineage, take_over } = look(catalog, &me, settings.take_over);
    let done = settings.take_over != TakeOver::Any && take_over == Order::Done;
    metrics.position.take_over_done.store(u64::from(done), Ordering::Relaxed);
    let (layout, restored, taken_over) = (settings.layout, settings.restored, settings.taken_over);
    let lists = Lists::NotCompared;
    let mut plan_of =
        FollowSeen { etcd, store: store_seen, spool: spooled, lists, layout, take_over, restored, taken_over };
    if plan_of.depends_on_members(settings.is_descendant()) {
        let order = if take_over == Order::Due { Accept::Ordered } else { Accept::Compared };
        plan_of.lists = whose_fulls(settings, client, etcd.cluster_id, order).await?;
    }
    if oldest.is_none() {
        // An epoch that is taken for what etcd no longer has would disown what others have stored of it.
        let from = plan_follow(&plan_of)?.watch_from;
        plan_of.etcd.oldest = if from <= heard.revision { oldest_if_gone(client, from).await } else { None };
    }
    Ok(Some(Seen { plan_of, heard, store, holds, lineage, newest_epoch }))
}

/// Whether fulls of other clusters are accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Accept {
    /// If they list members of this one.
    Compared,
    /// All that there are: the operator ordered that.
    Ordered,
}

/// Compares the members of the newest full that this node did not write with those of this cluster. `Others`: another cluster was
/// there first.
pub(super) async fn whose_fulls(
    settings: &Arc<FollowSettings>,
    client: &Client,
    cluster_id: u64,
    accept: Accept,
) -> Result<Lists> {
    let own: Vec<u64> =
        client.member_list(Consistency::Linearizable).await?.members.iter().map(|member| member.id).collect();
    let settings = Arc::clone(settings);
    let compared = tokio::task::spawn_blocking(move || {
        let mut session = Session::open(&settings.store, &settings.scratch)?;
        let record = own_fulls::read(&settings.spool).of(cluster_id);
        let unknown = record.newest_unknown(&session.catalog.objects).cloned();
        let Some(unknown) = unknown.filter(|_| accept == Accept::Compared) else {
            let up_to_ms = if accept == Accept::Ordered { newest_full_ms(&session.catalog.objects) } else { 0 };
            own_fulls::write(&settings.spool, &record.accepting(&session.catalog.objects, up_to_ms))?;
            return Ok(Lists::OwnMembers);
        };
        let Some(facts) = session.facts_of(&unknown.name)? else { return Ok(Lists::NotCompared) };
        let full: Vec<(u64, String)> = facts.members.iter().map(|member| (member.id.0, member.name.clone())).collect();
        let removed: Vec<u64> = facts.removed.iter().map(|id| id.0).collect();
        let objects = &session.catalog.objects;
        match record.judge(objects, &unknown, compare_members(&full, &removed, &own)) {
            Verdict::Own => {
                own_fulls::write(&settings.spool, &record.accepting(objects, unknown.created_ms))?;
                Ok(Lists::OwnMembers)
            }
            Verdict::Intruder(members) => {
                let name = &unknown.name;
                warn!(code = %Code::StoreBound, members, name, "another cluster writes to the store of this one");
                Ok(Lists::OwnMembers)
            }
            Verdict::Bound(members) => Ok(Lists::Others(members)),
        }
    });
    compared.await.map_err(halted)?
}

/// This cluster, as far as it knows itself.
fn me(settings: &FollowSettings, cluster_id: u64) -> Me {
    let token = settings.declared.as_ref().map(|declared| declared.token.clone());
    Me { cluster_id, was: settings.was.clone(), token }
}

/// The oldest revision that can be watched, if this one cannot. `None` also where nobody says: the watch will.
async fn oldest_if_gone(client: &Client, from: u64) -> Option<u64> {
    let revision = i64::try_from(from).ok()?;
    let before = RangeRequest { key: vec![0], keys_only: true, revision: revision - 1, ..RangeRequest::default() };
    let gone = client.range(before).await.err().is_some_and(|fault| in_words(&fault).contains("has been compacted"));
    if !gone {
        return None;
    }
    let mut watch = client.watch(WatchFrom { revision, progress: false }).await.ok()?;
    match tokio::time::timeout(PROBE_LIMIT, watch.next()).await {
        Ok(Ok(WatchTurn::Compacted { oldest })) => u64::try_from(oldest).ok(),
        _ => None,
    }
}

/// Looks into the store. A spool that knows its epoch need not wait for one that is away: it records, and looks again. The outer
/// `None`: the end was asked for; the inner one: the store does not answer.
async fn look_until(
    store: &Arc<Store>,
    spooled: Option<SpoolSeen>,
    stop: &CancellationToken,
) -> Result<Option<Option<Catalog>>> {
    let attempt = || {
        let store = Arc::clone(store);
        async move { tokio::task::spawn_blocking(move || Catalog::read(&store)).await.map_err(halted)? }
    };
    if spooled.is_some_and(|spool| spool.epoch.is_some()) {
        match attempt().await {
            Err(fault) if fault.code() == Code::StoreUnreachable => return Ok(Some(None)),
            looked => return looked.map(|catalog| Some(Some(catalog))),
        }
    }
    Ok(until(stop, "look into the store", attempt).await?.map(Some))
}

/// Looks until the store answers.
pub(super) async fn answers(store: &Arc<Store>, quit: &CancellationToken) -> Result<Option<()>> {
    let list = || {
        let store = Arc::clone(store);
        async move { tokio::task::spawn_blocking(move || store.list().map(|_| ())).await.map_err(halted)? }
    };
    until(quit, "look into the store", list).await
}

fn look(catalog: Option<Catalog>, me: &Me, ordered: TakeOver) -> Looked {
    let Some(mut catalog) = catalog else {
        return Looked { store: StoreSeen::Unknown, holds: None, lineage: None, take_over: Order::None };
    };
    let (store, lineage) = observe_lineage(&catalog.objects, &catalog.epochs, &catalog.opened, me);
    let take_over = observe_order(ordered, lineage.as_ref(), &catalog.opened, &catalog.objects, me);
    if let Some(lineage) = &lineage {
        catalog.narrow(lineage);
    }
    let holds = newest_chain(&catalog);
    Looked { store, holds, lineage, take_over }
}

fn newest_chain(catalog: &Catalog) -> Option<Holds> {
    let chain = catalog.decide(Target::Newest).chain?;
    let inside: Vec<Option<Inside>> = catalog
        .handles
        .iter()
        .map(|handle| handle.manifest.as_ref())
        .map(|manifest| manifest.map(|said| Inside { content_bytes: said.content.bytes, events: said.events }))
        .collect();
    let newest = |kind: Kind| {
        let of_kind = catalog.objects.iter().filter(|object| object.kind == kind && object.last <= chain.reach);
        of_kind.map(|object| (object.last, object.created_ms)).max()
    };
    let base = &catalog.objects[chain.base];
    Some(Holds {
        reach: chain.reach,
        full: Some((base.last, base.created_ms)).max(newest(Kind::Full)),
        delta: newest(Kind::Delta),
        deltas: chain.deltas.len() as u64,
        cost: Some(Cost::of(&catalog.objects, &inside, &chain)),
    })
}

fn spool_seen(spool: &Spool) -> Option<SpoolSeen> {
    let state = spool.state()?;
    let pending = spool.pending();
    let span = pending.first().zip(pending.last()).map(|(first, last)| Span { from: first.first, to: last.last });
    Some(SpoolSeen {
        cluster_id: state.cluster_id,
        epoch: (state.layout == Layout::Quorate && state.epoch > 0).then_some(state.epoch),
        pending: span,
        stored: Some(state.stored).filter(|stored| *stored > 0),
    })
}

/// Decides, and prepares what was decided: epoch and spool. `None`: another writer came in between, and what was seen no
/// longer holds.
pub(super) async fn begin(
    settings: &Arc<FollowSettings>,
    client: &Client,
    metrics: &Metrics,
    spool: &mut Spool,
    seen: Seen,
) -> Result<Option<(Arc<Run>, FollowPlan)>> {
    let plan = plan_follow(&seen.plan_of)?;
    for warning in &plan.warnings {
        warn!(code = %warning.code, "{}", warning.text);
    }
    let epoch = match plan.epoch {
        EpochPlan::Keep(epoch) => epoch,
        EpochPlan::None => 0,
        EpochPlan::Take { begins_at } => take_epoch(settings, &seen, begins_at).await?,
        // The store was waited for, so that it is known.
        EpochPlan::Later => return Err(Fault::new(Code::StoreNotSeen, "cannot begin before the store is known")),
    };
    if let SpoolPlan::SetAside(_) = &plan.spool {
        for segment in spool.pending() {
            let to = spool.set_aside(&segment)?;
            info!(first = segment.first, last = segment.last, "kept as `{}`", to.display());
        }
    }
    let (cluster_id, layout) = (seen.heard.origin.cluster_id, settings.layout);
    if matches!(plan.epoch, EpochPlan::Take { .. }) && epoch != seen.newest_epoch + 1 {
        // An epoch that was not seen may disown what the plan counts on. With one of our own we look again.
        info!(epoch, "another writer began at the same time: looking again");
        spool.reset(SpoolState { cluster_id, epoch, layout, stored: plan.watch_from.saturating_sub(1) })?;
        return Ok(None);
    }
    let next = spool.last().map_or(0, |last| last + 1);
    let same = spool.state().is_some_and(|state| {
        (state.cluster_id, state.epoch, state.layout) == (cluster_id, epoch, layout) && next == plan.watch_from
    });
    if !same || plan.spool != SpoolPlan::Use {
        spool.reset(SpoolState { cluster_id, epoch, layout, stored: plan.watch_from.saturating_sub(1) })?;
    }
    let holds = seen.holds.clone().unwrap_or_default();
    tell(metrics, spool, &holds, &plan);
    metrics.position.etcd.store(seen.heard.revision, Ordering::Relaxed);
    metrics.position.heard_ms.store(Timestamp::now().as_millisecond(), Ordering::Relaxed);
    info!(
        cluster = cluster_hex(cluster_id),
        from = plan.watch_from,
        epoch,
        etcd_revision = seen.heard.revision,
        stored = holds.reach,
        spooled = size(spool.bytes()),
        "following into `{}`",
        settings.store
    );
    let mut clusters = ancestors(settings, &seen);
    clusters.push(cluster_id);
    let last_full_ms = holds.full.map(|(_, ms)| ms);
    let of = Origins { origin: seen.heard.origin, clusters, epoch, last_full_ms, cost: holds.cost };
    let run = Run::new(Arc::clone(settings), client.clone(), seen.store, metrics.clone(), of);
    Ok(Some((Arc::new(run), plan)))
}

/// The clusters that this one descends from, and those that it takes over: the epoch links them for everyone who reads the store.
fn ancestors(settings: &FollowSettings, seen: &Seen) -> Vec<u64> {
    let mut was = settings.was.clone();
    let linked = match &seen.plan_of.store {
        StoreSeen::Holds(holds) => seen.plan_of.take_over == Order::Due || holds.kin == Kin::Own,
        StoreSeen::Unknown | StoreSeen::Empty => false,
    };
    was.extend(seen.lineage.iter().filter(|_| linked).flat_map(|lineage| lineage.clusters.iter().copied()));
    let mine = seen.heard.origin.cluster_id;
    was.retain(|cluster| *cluster != mine);
    was.sort_unstable();
    was.dedup();
    was
}

async fn take_epoch(settings: &FollowSettings, seen: &Seen, begins_at: u64) -> Result<u64> {
    let created_ms = Timestamp::now().as_millisecond();
    let (origin, declared) = (seen.heard.origin.clone(), settings.declared.clone());
    let mut was = ancestors(settings, seen);
    // An order about this cluster's own history is done with the first epoch that names it.
    was.extend(Some(origin.cluster_id).filter(|mine| settings.take_over == TakeOver::Of(*mine)));
    let about = About { origin, created_ms, declared, was, ..About::default() };
    let mut left = 10u32;
    loop {
        let (store, about) = (Arc::clone(&seen.store), about.clone());
        let taken = tokio::task::spawn_blocking(move || epochs::take(&store, &about, begins_at)).await;
        match taken.map_err(halted)? {
            Err(fault) if fault.code() == Code::StoreUnreachable && left > 0 => {
                left -= 1;
                warn!(code = %fault.code(), "cannot open an epoch yet: {fault}");
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            taken => return taken,
        }
    }
}

fn tell(metrics: &Metrics, spool: &Spool, holds: &Holds, plan: &FollowPlan) {
    let position = &metrics.position;
    let newest_ms = holds.full.max(holds.delta).map_or_else(|| Timestamp::now().as_millisecond(), |(_, ms)| ms);
    let missing = plan.take_full.is_some();
    position.full_missing_since_ms.store(if missing { newest_ms } else { 0 }, Ordering::SeqCst);
    let set = |number: &std::sync::atomic::AtomicU64, value: u64| number.store(value, Ordering::Relaxed);
    // Of a store that was not seen, the spool remembers how far it was.
    let remembered = spool.state().filter(|_| plan.ask_again).map_or(0, |state| state.stored);
    set(&position.stored, holds.reach.max(remembered));
    set(&position.recorded, spool.last().unwrap_or(0).max(plan.watch_from.saturating_sub(1)));
    set(&position.deltas, holds.deltas);
    if let Some((revision, ms)) = holds.full {
        set(&position.full_revision, revision);
        position.full_ms.store(ms, Ordering::Relaxed);
    }
    if let Some((revision, ms)) = holds.delta {
        set(&position.delta_revision, revision);
        position.delta_ms.store(ms, Ordering::Relaxed);
    }
}
