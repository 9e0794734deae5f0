//! Takes the rows of the writer where this node lacks changes of a former writer, or may have applied them late.
//!
//! **Rule:** what is done was decided by `plan/postgres/lagging.rs`. Rows are equal before a log is skipped, and a log is skipped
//! before that is confirmed in the store; interrupted anywhere, it is done again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use quorate_faults::{Code, Fault};
use quorate_plan::check::check_handover;
use quorate_plan::postgres as plan;
use quorate_plan::spec::PgWriters;
use quorate_postgres::conflicts;
use quorate_postgres::group::{self, Member, Seat, Subscribers};
use quorate_postgres::sql::{Client, Limits};
use tracing::{info, warn};

use super::execute::{group_of, write};
use super::here::{DATABASE, Here};
use super::life::{Life, Shared};
use super::observe;

/// Statements read whole tables.
const LIMITS: Limits =
    Limits { connect: Duration::from_secs(3), statement: Duration::from_secs(1800), lock: Duration::from_secs(10) };
/// For how long rows may be written whenever they are looked at, and how long this node may need to apply what is under way.
const MOVING: Duration = Duration::from_secs(60);

impl Life {
    /// Takes the rows of the writer beside the reconcile loop: it may take longer than a step may. An error is that of the last
    /// attempt.
    pub(super) async fn take_rows(&mut self, writer: String, skip: BTreeMap<String, u64>) -> Result<(), Fault> {
        if let Some(ended) = self.taking.try_join_next() {
            return match ended {
                Ok(taken) => taken,
                Err(error) => Err(Fault::new(Code::Internal, "a part of the agent panicked").caused_by(error)),
            };
        }
        if self.taking.is_empty() {
            let shared = Arc::clone(&self.shared);
            self.taking.spawn(async move { take(&shared, &writer, &skip).await });
        }
        Ok(())
    }
}

async fn take(shared: &Shared, writer: &str, skip: &BTreeMap<String, u64>) -> Result<(), Fault> {
    let records = observe::records(&shared.store).await?;
    let member = |node: &str| -> Result<Member, Fault> {
        let found = records.number(node).and_then(|id| shared.here.member(node, id));
        found.ok_or_else(|| Fault::new(Code::PgNotDeclared, format!("`{node}` is no declared member of the group")))
    };
    let (me, from) = (member(shared.here.name())?, member(writer)?);
    let place = shared.here.place(&from)?;
    let own = Seat { member: me, client: shared.here.own_mesh(LIMITS).await? };
    let control = shared.here.own(DATABASE, LIMITS).await?;
    let from = Seat { member: from, client: Client::connect(&place, LIMITS).await? };
    // A process may still apply what was received before the subscription was stopped.
    for former in skip.keys().filter(|former| *former != writer) {
        let id = member(former)?.id;
        if !group::is_held(&own.client, id).await? {
            return Err(Fault::new(Code::PgWaiting, format!("changes of `{former}` are still being applied")));
        }
    }
    for taken in conflicts::take_rows(&own, &from, MOVING).await? {
        let (table, put, removed) = (&taken.table, taken.put, taken.removed);
        warn!(code = %Code::PgLacksRows, table, put, removed, writer, "rows were replaced by those of the writer");
    }
    // Another node may have taken over meanwhile: its rows are compared again.
    let now = observe::records(&shared.store).await?;
    if now.writer.as_ref().map(|(writer, _)| writer) != records.writer.as_ref().map(|(writer, _)| writer) {
        return Err(Fault::new(Code::PgWaiting, "the writer has changed while rows were compared"));
    }
    for (former, to) in skip {
        group::skip_link(&control, member(former)?.id, *to).await?;
        info!(former, position = plan::position_text(*to), "rows are those of the writer");
        confirm_floor(shared, former).await?;
    }
    Ok(())
}

/// Whether a node may be handed the lease: one that lacks changes of a former writer would not take it, and no node would write.
pub(super) async fn check_target(here: &Here, records: &plan::Records, to: &Member) -> Result<(), Fault> {
    let client = Client::connect(&here.place(to)?, here.limits()).await?;
    let applied = group::position(&client).await?.applied;
    let nodes = records.group.iter().flat_map(|(group, _)| &group.nodes);
    let positions = nodes.filter_map(|(name, id)| Some((name.clone(), applied.get(id).copied()?))).collect();
    if records.lacks(&to.name, &positions) {
        let what = format!("`{}` lacks changes of a former writer and takes the rows of this one first", to.name);
        return Err(Fault::new(Code::PgSwitchover, what).hint("try again when `quorate pg status` shows it well"));
    }
    Ok(())
}

/// Waits until the members that run have applied what this node wrote; the one that takes over must have. Returns what others had not.
pub(super) async fn settle_members(
    shared: &Shared,
    seat: &Seat,
    next: &Member,
    limit: Duration,
) -> Result<plan::Unconfirmed, Fault> {
    let here = &shared.here;
    let (_, group) = group_of(shared).await?;
    let alive = observe::registered(&shared.store).await?;
    // With several writers the order of their changes is nobody's to keep.
    let members = if here.pg.writers == PgWriters::One { here.members(&group) } else { Vec::new() };
    let others = members.into_iter().filter(|member| member.id != seat.member.id && member.id != next.id);
    let others = others.map(|member| (alive.contains_key(&member.name), member));
    let to = Subscribers { next, others: others.map(|(runs, member)| (member, runs)).collect() };
    let members = group::all_caught_up(seat, &to, limit).await?;
    if members.is_empty() {
        return Ok(plan::Unconfirmed::default());
    }
    // As its own server counts it: a position that members compare theirs with.
    let client = Client::connect(&here.place(next)?, here.limits()).await?;
    let applied = group::position(&client).await?.applied.get(&seat.member.id).copied().unwrap_or_default();
    Ok(plan::Unconfirmed { applied, members })
}

/// The writes of a planned handover: the floor that makes members take rows that they lack is one of them.
pub(super) fn handover(
    records: &plan::Records,
    to: &str,
    unconfirmed: &plan::Unconfirmed,
) -> Result<Option<plan::Write>, Fault> {
    let floor = plan::handover_floor(records, to, unconfirmed);
    if let Err(broken) = check_handover(records, to, unconfirmed, floor.as_ref()) {
        return Err(
            Fault::new(Code::Internal, "the handover breaks a rule and is not made").caused_by(broken.join("; "))
        );
    }
    if let Some(floor) = &floor {
        let members = format!("{:?}", floor.waiting);
        warn!(members, position = plan::position_text(floor.applied), "members take the rows of the next writer");
    }
    Ok(plan::hand_over(records, to, floor.as_ref()))
}

/// Confirms that this node holds all changes of a former writer below its floor.
pub(super) async fn confirm_floor(shared: &Shared, from: &str) -> Result<(), Fault> {
    let records = observe::records(&shared.store).await?;
    match plan::confirm_floor(&records, from, shared.here.name()) {
        Some(txn) => write(shared, &txn).await,
        None => Ok(()),
    }
}
