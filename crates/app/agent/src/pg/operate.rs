//! What operators do to a group that stands: its schema, its members, its conflicts.
//!
//! **Invariant:** one such operation at a time, by a lock of the store; what is begun is written down there before the first
//! change, and each later line of that journal depends on the lock.

use std::time::Duration;

use quorate_coordination::{Change, Compare, Lease, Lock, Outcome, Store, Txn};
use quorate_faults::{Code, Fault};
use quorate_plan::postgres::{Group, Records, change_group, keys};
use quorate_postgres::conflicts::{self, ConflictRow, Repaired, Source, Stopped, Way};
use quorate_postgres::group::{self, Member};
use quorate_postgres::join::{self, JoinLimits, JoinOrder, Journal};
use quorate_postgres::schema::{self, Applied, Ddl};
use quorate_postgres::sql::Client;

use super::execute::seats;
use super::here::Here;
use super::observe;
use crate::turn::in_words;

/// How long an operation that is silent keeps the lock.
const LOCK: Duration = Duration::from_secs(10);
/// How long another operation is waited for: longer than one that was killed keeps the lock, which with Consul is twice as long.
const LOCK_WAIT: Duration = Duration::from_secs(30);
/// Between two looks.
const AGAIN: Duration = Duration::from_millis(100);
/// How long equal rows are looked for after a change of members: they may be written all the time.
const EQUAL: Duration = Duration::from_secs(30);

/// How long the agent of a node that joins may take to be seen in the store.
const SEEN: Duration = Duration::from_secs(5);
/// How long the agents of the others may take to have their servers let it in.
const KNOWN: Duration = Duration::from_secs(2);

/// An operation that has the lock.
pub(super) struct Operation {
    pub(super) store: Store,
    pub(super) lock: Lock,
    _lease: Lease,
}

impl Operation {
    pub(super) async fn begin(here: &Here, what: &str) -> Result<Operation, Fault> {
        let store = here.store().await?;
        let lease = store.lease(LOCK).await?;
        let lock = store.lock("operation", &lease, what, LOCK_WAIT).await?;
        Ok(Operation { store, lock, _lease: lease })
    }

    pub(super) async fn group(&self) -> Result<(Records, Group), Fault> {
        known(&self.store).await
    }

    async fn change(&self, records: &Records, group: &Group) -> Result<(), Fault> {
        let mut txn = change_group(records, group);
        txn.when.push(self.lock.fence());
        match self.store.txn(&txn).await? {
            Outcome::Committed(_) => Ok(()),
            Outcome::Conflict => Err(Fault::new(Code::LockTaken, "the group was changed by somebody else meanwhile")
                .hint("look at it with `quorate pg status`, and try again")),
        }
    }

    /// Ends it, however it went: nobody waits for the lock of one that failed.
    pub(super) async fn end<T>(self, done: Result<T, Fault>) -> Result<T, Fault> {
        // One that cannot be given back ends with its lease.
        let _ = self.lock.release().await;
        done
    }
}

impl Journal for Operation {
    async fn load(&self) -> Result<Option<String>, Fault> {
        let entry = self.store.get(keys::OPERATION).await?;
        Ok(entry.map(|entry| String::from_utf8_lossy(&entry.value).into_owned()))
    }

    async fn save(&self, text: &str) -> Result<(), Fault> {
        let when: Vec<Compare> = vec![self.lock.fence()];
        let then = vec![Change::Put(keys::OPERATION.as_bytes().to_vec(), text.as_bytes().to_vec())];
        match self.store.txn(&Txn { when, then }).await? {
            Outcome::Committed(_) => Ok(()),
            Outcome::Conflict => Err(Fault::new(Code::LeaseGone, "the lock of the operation was lost")
                .hint("run the command again: it goes on where it stood")),
        }
    }
}

/// What became of a change of the schema.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Changed {
    /// The version.
    pub version: u32,
    /// Who took it.
    pub applied: Applied,
    /// What could be better about the tables of the group, a sentence each.
    pub warnings: Vec<String>,
}

/// Brings a version of the schema to every member. The same text again is the same version.
pub async fn apply_schema(here: &Here, name: &str, sql: &str, order: schema::Order) -> Result<Changed, Fault> {
    let operation = Operation::begin(here, "pg ddl apply").await?;
    let applied = apply_under(&operation, here, (name, sql), order).await;
    operation.end(applied).await
}

async fn apply_under(
    operation: &Operation,
    here: &Here,
    (name, sql): (&str, &str),
    order: schema::Order,
) -> Result<Changed, Fault> {
    let (records, group) = operation.group().await?;
    let seats = seats(here, &group).await?;
    let first = seats.first().ok_or_else(|| Fault::new(Code::PgRecords, "the group has no nodes"))?;
    let journal = longest(&seats).await?;
    let next = journal.last().map_or(1, |last| last.version + 1);
    let known = journal.iter().find(|known| known.sql == sql).map(|known| known.version);
    let ddl = Ddl { version: known.unwrap_or(next), name: name.to_owned(), sql: sql.to_owned() };
    let writer = records.writer.as_ref().map(|(writer, _)| writer.node.clone());
    if known.is_none_or(|known| known + 1 < next) {
        // What was cut off half-way comes first.
        schema::level(&seats, writer.as_deref(), here.pg.step_timeout).await?;
    }
    let applied = schema::apply(&seats, writer.as_deref(), &ddl, order, here.pg.step_timeout).await?;
    Ok(Changed { version: ddl.version, applied, warnings: schema::lint(&first.client).await? })
}

/// The journal of the node that has most.
async fn longest(seats: &[group::Seat]) -> Result<Vec<Ddl>, Fault> {
    let mut longest = Vec::new();
    for seat in seats {
        let journal = schema::read_journal(&seat.client).await?;
        if journal.len() > longest.len() {
            longest = journal;
        }
    }
    Ok(longest)
}

/// What is known of conflicts.
#[derive(Debug)]
pub struct ConflictsSeen {
    /// The rows that lost, by node. One that does not answer says nothing of the others.
    pub rows: Vec<(String, Result<Vec<ConflictRow>, Fault>)>,
    /// The links that errors have stopped, among those who answer.
    pub stopped: Result<Vec<Stopped>, Fault>,
}

/// The rows that lost, and the links that are stopped.
pub async fn list_conflicts(here: &Here, limit: u32) -> Result<ConflictsSeen, Fault> {
    let (_, group) = known(&here.store().await?).await?;
    let (mut rows, mut seats) = (Vec::new(), Vec::new());
    for member in here.members(&group) {
        let name = member.name.clone();
        let ask = async {
            let client = Client::connect(&here.place(&member)?, here.limits()).await?;
            let found = conflicts::list(&client, limit).await?;
            seats.push(group::Seat { member, client });
            Ok(found)
        };
        rows.push((name, ask.await));
    }
    Ok(ConflictsSeen { rows, stopped: conflicts::stopped(&seats).await })
}

/// What a repair did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RepairDone {
    /// Links that were stopped and go on.
    pub ways: Vec<Way>,
    /// Rows that were put and taken away.
    pub repaired: Vec<Repaired>,
}

/// What a repair does with links that rows have stopped which are there already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoppedLinks {
    /// They stay.
    Leave,
    /// They leave out what stops them.
    Skip,
}

/// Makes all nodes the same.
pub async fn repair_conflicts(here: &Here, source: &Source, links: StoppedLinks) -> Result<RepairDone, Fault> {
    let operation = Operation::begin(here, "pg conflicts repair").await?;
    let repaired = async {
        let (_, group) = operation.group().await?;
        let seats = seats(here, &group).await?;
        let mut ways = Vec::new();
        if links == StoppedLinks::Skip {
            ways = conflicts::skip(&seats, source, here.pg.step_timeout).await?;
            // What waited behind is here too, before rows are compared.
            group::round_trip(&seats, here.pg.step_timeout).await?;
        }
        let repaired = conflicts::repair(&seats, source).await?;
        conflicts::forget_found(&seats, &mut ways).await?;
        Ok(RepairDone { ways, repaired })
    };
    let repaired = repaired.await;
    operation.end(repaired).await
}

/// Removes lines of the log of conflicts that are older than this, on every node. Returns how many, by node.
pub async fn purge_conflicts(here: &Here, older: Duration) -> Result<Vec<(String, Result<u64, Fault>)>, Fault> {
    let (_, group) = known(&here.store().await?).await?;
    let mut removed = Vec::new();
    for member in here.members(&group) {
        let purge = async {
            let client = Client::connect(&here.place(&member)?, here.limits()).await?;
            conflicts::purge_log(&client, older).await
        };
        removed.push((member.name.clone(), purge.await));
    }
    Ok(removed)
}

async fn known(store: &Store) -> Result<(Records, Group), Fault> {
    let records = observe::records(store).await?;
    let group = records.group.as_ref().map(|(group, _)| group.clone());
    let group = group.ok_or_else(|| {
        Fault::new(Code::PgWaiting, "there is no group yet").hint("bring it up with `quorate pg bootstrap`")
    })?;
    Ok((records, group))
}

/// What a comparison of all rows on all nodes found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rows {
    /// Every row was seen to be the same everywhere, in so many tables.
    Same(u32),
    /// Rows of these tables were written whenever they were looked at; all others are the same.
    Moving(Vec<String>),
    /// Rows of these tables that nobody writes are not the same.
    Differ(Vec<String>),
    /// They could not be compared, and why.
    Unknown(String),
}

async fn compare(seats: &[group::Seat]) -> Rows {
    match group::compare(seats, EQUAL).await {
        Ok(found) if found.is_same() => Rows::Same(found.tables),
        Ok(found) if found.differ.is_empty() => Rows::Moving(found.moving),
        Ok(found) => Rows::Differ(found.differ),
        Err(fault) => Rows::Unknown(in_words(&fault)),
    }
}

/// What became of a join.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taken {
    /// The node's number.
    pub id: u16,
    /// What its rows are compared with those of the others; `None`: it was a member before, and nothing was done.
    pub rows: Option<Rows>,
}

/// Takes a node in whose agent runs and waits for it. `donor`: whose rows it gets; by default not the write master.
pub async fn join_node(
    here: &Here,
    node: &str,
    donor: Option<&str>,
    wait: Duration,
    tell: impl FnMut(&str),
) -> Result<Taken, Fault> {
    if here.pg.node(node).is_none() {
        return Err(Fault::new(Code::PgNotDeclared, format!("`{node}` is not declared"))
            .hint("add it to `postgres.nodes`, on every node"));
    }
    let operation = Operation::begin(here, "pg join").await?;
    let taken = join_under(&operation, here, (node, donor), wait, tell).await;
    operation.end(taken).await
}

async fn join_under(
    operation: &Operation,
    here: &Here,
    (node, donor): (&str, Option<&str>),
    wait: Duration,
    mut tell: impl FnMut(&str),
) -> Result<Taken, Fault> {
    let (records, mut group) = operation.group().await?;
    let unfinished = match operation.load().await? {
        Some(text) => join::unfinished(&text)?,
        None => None,
    };
    if let Some(id) = group.nodes.get(node).copied()
        && records.joined.contains_key(node)
        && unfinished.is_none_or(|seen| seen.node != node)
    {
        return Ok(Taken { id, rows: None });
    }
    if let Some(donor) = donor.filter(|donor| *donor == node || !group.nodes.contains_key(*donor)) {
        let members = group.nodes.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
        return Err(Fault::new(Code::PgNotMember, format!("`{node}` cannot get its rows from `{donor}`"))
            .hint(format!("name another member of the group: {members}")));
    }
    if !group.nodes.contains_key(node) {
        // Before it is written down: the group would wait for one that does not come.
        wait_seen(operation, node).await?;
        group.last_id += 1;
        group.nodes.insert(node.to_owned(), group.last_id);
        operation.change(&records, &group).await?;
    }
    tell("its agent binds its database to the group");
    wait_bound(operation, node, &group.id, wait).await?;
    let seats = seats(here, &group).await?;
    let all = here.members(&group);
    // Before anything stands still: a server that does not know the newcomer would refuse its links.
    for seat in seats.iter().filter(|seat| seat.member.name != node) {
        wait_known(seat, node).await?;
    }
    for seat in &seats {
        group::ensure_known(&seat.client, &all).await?;
    }
    let writer = records.writer.map(|(writer, _)| writer.node);
    let others = group.nodes.keys().filter(|name| *name != node);
    let quiet = others.clone().find(|name| Some(*name) != writer.as_ref());
    let donor = donor.map(str::to_owned).or(quiet.or(others.clone().next()).cloned());
    let donor = donor.ok_or_else(|| Fault::new(Code::PgNotMember, "there is nobody whose rows it could get"))?;
    let order = JoinOrder { node: node.to_owned(), donor };
    let limits = JoinLimits { copy: wait, step: here.pg.step_timeout };
    join::join(operation, &order, &seats, limits, &mut tell).await?;
    tell("all rows are compared");
    Ok(Taken { id: group.nodes.get(node).copied().unwrap_or_default(), rows: Some(compare(&seats).await) })
}

/// Waits until the server of a member lets a newcomer in: its agent has to have read the file that declares it.
async fn wait_known(seat: &group::Seat, node: &str) -> Result<(), Fault> {
    let deadline = tokio::time::Instant::now() + KNOWN;
    while !group::knows_peer(&seat.client, node).await? {
        if tokio::time::Instant::now() >= deadline {
            let name = &seat.member.name;
            return Err(Fault::new(Code::PgNotKnown, format!("the server of `{name}` does not let `{node}` in"))
                .hint(format!("declare `{node}` in the cluster file on `{name}` too, and have its agent read it (SIGHUP): `quorate explain Q1280`")));
        }
        tokio::time::sleep(AGAIN).await;
    }
    Ok(())
}

/// Waits until the agent of a node is seen in the store.
async fn wait_seen(operation: &Operation, node: &str) -> Result<(), Fault> {
    let deadline = tokio::time::Instant::now() + SEEN;
    while !observe::registered(&operation.store).await?.contains_key(node) {
        if tokio::time::Instant::now() >= deadline {
            return Err(Fault::new(Code::PgWaiting, format!("the agent of `{node}` is not seen in the store")).hint(
                format!("start it there, with an empty data dir: `quorate pg bootstrap --name {node} --wait 0s`"),
            ));
        }
        tokio::time::sleep(AGAIN).await;
    }
    Ok(())
}

async fn wait_bound(operation: &Operation, node: &str, group: &str, wait: Duration) -> Result<(), Fault> {
    let deadline = tokio::time::Instant::now() + wait;
    loop {
        let records = observe::records(&operation.store).await?;
        if records.bound.get(node).is_some_and(|noted| noted.group == group) {
            return Ok(());
        }
        if tokio::time::Instant::now() >= deadline {
            return Err(Fault::new(
                Code::PgWaiting,
                format!("the agent of `{node}` has not bound its database to the group"),
            )
            .hint(format!("start it: `quorate pg bootstrap --name {node} --wait 0s`, with an empty data dir")));
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// What was begun and is not finished, in words.
pub async fn unfinished(store: &Store) -> Result<Option<String>, Fault> {
    let Some(entry) = store.get(keys::OPERATION).await? else { return Ok(None) };
    Ok(join::unfinished(&String::from_utf8_lossy(&entry.value))?.map(|seen| seen.shown()))
}

/// Lets a node go, whether it answers or not: one that answers first gives everyone what it took. Returns what was done, and how the rows of those who stay are.
pub async fn detach_node(here: &Here, node: &str) -> Result<(Vec<String>, Rows), Fault> {
    let operation = Operation::begin(here, "pg detach").await?;
    let done = detach_under(&operation, here, node).await;
    operation.end(done).await
}

pub(super) async fn detach_under(operation: &Operation, here: &Here, node: &str) -> Result<(Vec<String>, Rows), Fault> {
    let (records, mut group) = operation.group().await?;
    if records.writer.as_ref().is_some_and(|(writer, _)| writer.node == node) {
        return Err(Fault::new(Code::PgIsWriter, format!("`{node}` is the write master, and stays"))
            .hint("make another one that first: `quorate pg switchover --to NODE`"));
    }
    let out = records.is_out(node);
    let Some(id) = group.nodes.remove(node) else {
        let members = group.nodes.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
        return Err(Fault::new(Code::PgNotMember, format!("`{node}` is no member of the group"))
            .hint(format!("the members are {members}")));
    };
    if group.nodes.is_empty() {
        return Err(Fault::new(Code::PgNotMember, format!("`{node}` is the last node of the group, and stays"))
            .hint("to end it, stop it: `quorate pg stop`"));
    }
    // Known before anybody is asked: one that died while it joined does not answer.
    join::may_detach(operation, id).await?;
    let survivors = seats(here, &group).await?;
    let (gone, client) = match here.member(node, id) {
        // What it holds beyond what the writer has is given to no other node.
        Some(gone) if out => (gone, None),
        Some(gone) => {
            let client = Client::connect(&here.place(&gone)?, here.limits()).await.ok();
            (gone, client)
        }
        // Whoever took it out of the file first lets it go all the same; it is not told.
        None => (Member { id, name: node.to_owned(), host: String::new(), port: 0 }, None),
    };
    let done = join::detach(operation, (&gone, client), &survivors, here.pg.step_timeout).await?;
    operation.change(&records, &group).await?;
    Ok((done, compare(&survivors).await))
}
