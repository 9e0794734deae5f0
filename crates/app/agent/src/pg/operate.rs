//! What operators do to a group that stands: its schema, its members, its conflicts.
//!
//! **Invariant:** one such operation at a time, by a lock of the store; what is begun is written down there before the first
//! change, and each later line of that journal depends on the lock.

use std::time::Duration;

use quorate_coordination::{Change, Compare, Lease, Lock, Outcome, Store, Txn};
use quorate_faults::{Code, Fault};
use quorate_plan::postgres::{Group, Records, change_group, keys};
use quorate_postgres::conflicts::{self, ConflictRow, Repaired, Source};
use quorate_postgres::group;
use quorate_postgres::join::{self, JoinLimits, JoinOrder, Journal};
use quorate_postgres::schema::{self, Applied, Ddl};
use quorate_postgres::sql::Client;

use super::execute::seats;
use super::here::Here;
use super::observe;

/// How long another operation is waited for, and how long one that is silent keeps the lock.
const LOCK: Duration = Duration::from_secs(10);
/// Between two looks.
const AGAIN: Duration = Duration::from_millis(100);
/// How long equal rows are waited for after a change of members: writes may be on their way.
const EQUAL: Duration = Duration::from_secs(30);

/// An operation that has the lock.
struct Operation {
    store: Store,
    lock: Lock,
    _lease: Lease,
}

impl Operation {
    async fn begin(here: &Here, what: &str) -> Result<Operation, Fault> {
        let store = here.store().await?;
        let lease = store.lease(LOCK).await?;
        let lock = store.lock("operation", &lease, what, LOCK).await?;
        Ok(Operation { store, lock, _lease: lease })
    }

    async fn group(&self) -> Result<(Records, Group), Fault> {
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

    async fn end(self) -> Result<(), Fault> {
        self.lock.release().await
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

/// Brings a version of the schema to every member. The same text again is the same version.
pub async fn apply_schema(here: &Here, name: &str, sql: &str, order: schema::Order) -> Result<(u32, Applied), Fault> {
    let operation = Operation::begin(here, "pg ddl apply").await?;
    let (records, group) = operation.group().await?;
    let seats = seats(here, &group).await?;
    let first = seats.first().ok_or_else(|| Fault::new(Code::PgRecords, "the group has no nodes"))?;
    let journal = schema::read_journal(&first.client).await?;
    let next = journal.last().map_or(1, |last| last.version + 1);
    let known = journal.iter().find(|known| known.sql == sql).map(|known| known.version);
    let ddl = Ddl { version: known.unwrap_or(next), name: name.to_owned(), sql: sql.to_owned() };
    let writer = records.writer.as_ref().map(|(writer, _)| writer.node.clone());
    let applied = schema::apply(&seats, writer.as_deref(), &ddl, order, here.pg.step_timeout).await?;
    operation.end().await?;
    Ok((ddl.version, applied))
}

/// The rows that lost, by node. One that does not answer says nothing of the others.
pub async fn list_conflicts(here: &Here, limit: u32) -> Result<Vec<(String, Result<Vec<ConflictRow>, Fault>)>, Fault> {
    let (_, group) = known(&here.store().await?).await?;
    let mut found = Vec::new();
    for member in here.members(&group) {
        let ask = async {
            let client = Client::connect(&here.place(&member)?, here.limits()).await?;
            conflicts::list(&client, limit).await
        };
        found.push((member.name.clone(), ask.await));
    }
    Ok(found)
}

/// Makes all nodes the same, and enables links that had stopped.
pub async fn repair_conflicts(here: &Here, source: &Source) -> Result<Vec<Repaired>, Fault> {
    let operation = Operation::begin(here, "pg conflicts repair").await?;
    let (_, group) = operation.group().await?;
    let repaired = conflicts::repair(&seats(here, &group).await?, source).await?;
    operation.end().await?;
    Ok(repaired)
}

async fn known(store: &Store) -> Result<(Records, Group), Fault> {
    let records = observe::records(store).await?;
    let group = records.group.as_ref().map(|(group, _)| group.clone());
    let group = group.ok_or_else(|| {
        Fault::new(Code::PgWaiting, "there is no group yet").hint("bring it up with `quorate pg bootstrap`")
    })?;
    Ok((records, group))
}

/// What became of a join.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taken {
    /// The node's number.
    pub id: u16,
    /// How many tables it got.
    pub tables: u32,
    /// Whether all rows were seen to be the same everywhere.
    pub same: bool,
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
    let (records, mut group) = operation.group().await?;
    if !group.nodes.contains_key(node) {
        group.last_id += 1;
        group.nodes.insert(node.to_owned(), group.last_id);
        operation.change(&records, &group).await?;
    }
    wait_bound(&operation, node, &group.id, wait).await?;
    let seats = seats(here, &group).await?;
    let all = here.members(&group);
    for seat in &seats {
        if let Some(known) = group::myself(&seat.client).await? {
            group::ensure_member(&seat.client, &group.id, &seat.member, &all, &known.files).await?;
        }
    }
    let writer = records.writer.map(|(writer, _)| writer.node);
    let others = group.nodes.keys().filter(|name| *name != node);
    let quiet = others.clone().find(|name| Some(*name) != writer.as_ref());
    let donor = donor.map(str::to_owned).or(quiet.or(others.clone().next()).cloned());
    let donor = donor.ok_or_else(|| Fault::new(Code::PgNotMember, "there is nobody whose rows it could get"))?;
    let order = JoinOrder { node: node.to_owned(), donor };
    let limits = JoinLimits { copy: wait, step: here.pg.step_timeout };
    let joined = join::join(&operation, &order, &seats, limits, tell).await?;
    let same = group::same_everywhere(&seats, EQUAL).await.is_ok();
    operation.end().await?;
    Ok(Taken { id: group.nodes.get(node).copied().unwrap_or_default(), tables: joined.tables, same })
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

/// Lets a node go, whether it answers or not. Returns what was done.
pub async fn detach_node(here: &Here, node: &str) -> Result<Vec<String>, Fault> {
    let operation = Operation::begin(here, "pg detach").await?;
    let (records, mut group) = operation.group().await?;
    if records.writer.as_ref().is_some_and(|(writer, _)| writer.node == node) {
        return Err(Fault::new(Code::PgSwitchover, format!("`{node}` is the write master"))
            .hint("make another one that first: `quorate pg switchover --to NODE`"));
    }
    let Some(gone) = group.nodes.get(node).copied().and_then(|id| here.member(node, id)) else {
        return Err(Fault::new(Code::PgNotMember, format!("`{node}` is no member of the group"))
            .hint("see `quorate pg status`"));
    };
    group.nodes.remove(node);
    if group.nodes.is_empty() {
        return Err(Fault::new(Code::PgNotMember, format!("`{node}` is the last node of the group")));
    }
    let survivors = seats(here, &group).await?;
    let client = Client::connect(&here.place(&gone)?, here.limits()).await.ok();
    let done = join::detach(&operation, &gone, client.as_ref(), &survivors).await?;
    operation.change(&records, &group).await?;
    operation.end().await?;
    Ok(done)
}
