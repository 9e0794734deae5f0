//! Gives a member the rows of the writer from scratch: it is detached, its data dir is renamed, and it joins again.
//!
//! **Invariant:** nothing is deleted. Interrupted anywhere, the same call again goes on: what was done is seen in the store.

use std::time::Duration;

use quorate_coordination::{Outcome, Txn};
use quorate_faults::{Code, Fault};
use quorate_plan::postgres::{Discard, order_discard};

use super::here::Here;
use super::observe;
use super::operate::{Operation, Taken, detach_under, join_node};

/// Between two looks.
const AGAIN: Duration = Duration::from_millis(100);
/// How long the agent of the node may take to rename its data dir and to be seen in the store again.
const REPLACED: Duration = Duration::from_secs(120);

/// What became of a rejoin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejoined {
    /// What was done to detach it.
    pub done: Vec<String>,
    /// How it joined.
    pub taken: Taken,
}

/// Has a member discard its data and join again with the rows of the writer.
pub async fn rejoin_node(
    here: &Here,
    node: &str,
    wait: Duration,
    mut tell: impl FnMut(&str),
) -> Result<Rejoined, Fault> {
    if here.group().node(node).is_none() {
        return Err(
            Fault::new(Code::PgNotDeclared, format!("`{node}` is not declared")).hint("name one of `postgres.nodes`")
        );
    }
    let operation = Operation::begin(here, "pg rejoin").await?;
    tell("it is detached from the group");
    let released = release(&operation, here, node).await;
    let done = operation.end(released).await?;
    tell("its agent renames its data dir");
    wait_replaced(here, node).await?;
    let store = here.store().await?;
    let writer = observe::records(&store).await?.writer.map(|(writer, _)| writer.node);
    let taken = join_node(here, node, writer.as_deref(), wait, tell).await?;
    Ok(Rejoined { done, taken })
}

/// Detaches the node, and has its agent replace its data.
async fn release(operation: &Operation, here: &Here, node: &str) -> Result<Vec<String>, Fault> {
    let (records, group) = operation.group().await?;
    let number = group.nodes.get(node).copied();
    // One that was taken in again and is not whole yet goes on with its join.
    if number.is_some() && !records.joined.contains_key(node) {
        return Ok(Vec::new());
    }
    // Its rows come from there, and nobody else has them all.
    let writer = records.writer.as_ref().ok_or_else(|| {
        Fault::new(Code::PgWaiting, "there is no writer whose rows it could get").hint("see `quorate pg status`")
    })?;
    let alive = observe::registered(&operation.store).await?;
    if !alive.contains_key(node) {
        return Err(Fault::new(Code::PgWaiting, format!("the agent of `{node}` is not seen in the store"))
            .hint(format!("start it there: `quorate pg bootstrap --name {node} --wait 0s`, or `quorate run`")));
    }
    let mut done = Vec::new();
    if number.is_some() && writer.0.node != node {
        done = detach_under(operation, here, node).await?.0;
    } else if number.is_some() {
        return Err(Fault::new(Code::PgIsWriter, format!("`{node}` is the writer, and keeps its data"))
            .hint("make another node the writer first: `quorate pg switchover --to NODE`"));
    }
    let id = number.unwrap_or_default();
    let then = vec![order_discard(node, &Discard { id })];
    match operation.store.txn(&Txn { when: vec![operation.lock.fence()], then }).await? {
        Outcome::Committed(_) => Ok(done),
        Outcome::Conflict => Err(Fault::new(Code::LeaseGone, "the lock of the operation was lost")
            .hint("run the command again: it goes on where it stood")),
    }
}

/// Waits until the agent of the node is seen with a database that is bound to no group, or until the node is a member.
async fn wait_replaced(here: &Here, node: &str) -> Result<(), Fault> {
    let store = here.store().await?;
    let deadline = tokio::time::Instant::now() + REPLACED;
    loop {
        let records = observe::records(&store).await?;
        let unbound = observe::registered(&store).await?.get(node).is_some_and(Option::is_none);
        if records.number(node).is_some() || unbound {
            return Ok(());
        }
        if tokio::time::Instant::now() >= deadline {
            return Err(Fault::new(Code::PgWaiting, format!("the agent of `{node}` has not replaced its data dir"))
                .hint(format!(
                    "see `quorate pg status`; its agent does so once it runs; then `quorate pg join {node}`"
                )));
        }
        tokio::time::sleep(AGAIN).await;
    }
}
