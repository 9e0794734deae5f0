//! Subscriptions that are stopped because the writer has changed, and what the log of an old writer holds beyond its cutoff.
//!
//! **Invariant:** whoever stops a subscription writes that down in the same transaction, so no other part of the agent lets it go
//! on.

use std::collections::BTreeSet;
use std::time::Duration;

use quorate_faults::{Code, Fault};
use quorate_plan::postgres::{Unsent, position_text, read_unsent};
use tokio::time::Instant;

use super::mesh::link_name;
use super::{PUBLICATION, myself, position};
use crate::sql::{Client, ident, literal, state_of};

/// Between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// A subscription that has not moved for so long has applied what it had received.
const SETTLED: Duration = Duration::from_millis(100);
/// So long what was received is applied before the subscription is stopped.
const DRAIN: Duration = Duration::from_millis(500);
/// So many changes of a log are read.
const READ_MAX: i32 = 1_000_000;

async fn name_of(client: &Client, from: u16) -> Result<String, Fault> {
    Ok(link_name(from, myself(client).await?.map(|me| me.id).unwrap_or_default()))
}

/// Whether changes of a member may have been applied after newer ones of the writer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// They were not.
    Known,
    /// They may have been: rows are compared before this node takes part.
    Unknown,
}

/// Stops the subscription to a member until [`release_link`].
pub async fn hold_link(client: &Client, from: u16, order: Order) -> Result<(), Fault> {
    let name = name_of(client, from).await?;
    let mark = match order {
        Order::Known => String::new(),
        Order::Unknown => format!("INSERT INTO mesh.unordered VALUES ({}) ON CONFLICT DO NOTHING; ", literal(&name)),
    };
    let sql = format!(
        "{mark}INSERT INTO mesh.held VALUES ({}) ON CONFLICT DO NOTHING; ALTER SUBSCRIPTION {} DISABLE",
        literal(&name),
        ident(&name)
    );
    client.batch(&sql).await
}

/// Rows were compared with those of the writer, which has the log of a member up to `to`: the subscription skips it up to there.
/// Where it has applied as much, only the mark is removed.
pub async fn skip_link(client: &Client, from: u16, to: u64) -> Result<(), Fault> {
    let name = literal(&name_of(client, from).await?);
    let at = literal(&position_text(to));
    // A transaction with a number is on disk when it has ended, and with it the position that was written before.
    let sql = format!(
        "SELECT pg_catalog.pg_current_xact_id(); SELECT pg_catalog.pg_replication_origin_advance('pg_' || s.oid, {at}::pg_lsn) \
         FROM pg_catalog.pg_subscription s LEFT JOIN pg_catalog.pg_replication_origin_status o ON o.external_id = 'pg_' || s.oid \
         WHERE s.subname = {name} AND coalesce(o.remote_lsn, '0/0') < {at}::pg_lsn; \
         DELETE FROM mesh.unordered WHERE subname = {name}"
    );
    client.batch(&sql).await
}

/// Lets the subscription to a member go on, unless it is paused by a change of members.
pub async fn release_link(client: &Client, from: u16) -> Result<(), Fault> {
    let name = name_of(client, from).await?;
    let sql = format!(
        "DO $release$ BEGIN LOCK TABLE mesh.paused, mesh.held IN SHARE ROW EXCLUSIVE MODE; DELETE FROM mesh.held WHERE subname = {0}; \
         IF NOT EXISTS (SELECT FROM mesh.paused WHERE subname = {0}) THEN ALTER SUBSCRIPTION {1} ENABLE; END IF; END $release$",
        literal(&name),
        ident(&name)
    );
    client.batch(&sql).await
}

/// Applies what was received of a member, stops the subscription, and waits until nothing applies any more.
pub async fn settle_link(client: &Client, from: u16, limit: Duration) -> Result<(), Fault> {
    let begun = Instant::now();
    let mut last = (applied(client, from).await?, Instant::now());
    while is_applying(client, from).await? && last.1.elapsed() < SETTLED && begun.elapsed() < DRAIN {
        tokio::time::sleep(LOOK_EVERY).await;
        let now = applied(client, from).await?;
        if now != last.0 {
            last = (now, Instant::now());
        }
    }
    hold_link(client, from, Order::Known).await?;
    while is_applying(client, from).await? {
        if begun.elapsed() >= limit {
            let name = name_of(client, from).await?;
            return Err(Fault::new(Code::PgTimeout, format!("subscription `{name}` does not stop within {limit:?}"))
                .hint("a long transaction may be holding it"));
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    Ok(())
}

async fn applied(client: &Client, from: u16) -> Result<u64, Fault> {
    Ok(position(client).await?.applied.get(&from).copied().unwrap_or_default())
}

async fn is_applying(client: &Client, from: u16) -> Result<bool, Fault> {
    let name = name_of(client, from).await?;
    let sql = "SELECT EXISTS (SELECT FROM pg_catalog.pg_stat_subscription WHERE subname = $1 AND pid IS NOT NULL)";
    client.value(sql, &[&name]).await
}

/// Whether nothing of a member is applied: its subscription is held and no process applies, or there is none.
pub async fn is_held(client: &Client, from: u16) -> Result<bool, Fault> {
    let name = name_of(client, from).await?;
    let sql = "SELECT NOT EXISTS (SELECT FROM pg_catalog.pg_subscription WHERE subname = $1) \
               OR EXISTS (SELECT FROM mesh.held WHERE subname = $1)";
    Ok(client.value::<bool>(sql, &[&name]).await? && !is_applying(client, from).await?)
}

/// What the own log holds beyond a position, of tables in which a late change is not decided by its stamp. `to`: the member that
/// stands at that position, whose slot keeps the log.
pub async fn unsent(client: &Client, to: u16, applied: u64) -> Result<Unsent, Fault> {
    let me = myself(client).await?.map(|me| me.id).unwrap_or_default();
    let merged: Vec<String> = client.values("SELECT schema || '.' || name FROM mesh.tables WHERE lww", &[]).await?;
    let merged: BTreeSet<String> = merged.into_iter().chain(["mesh_sync.tokens".to_owned()]).collect();
    // Rows are cut off behind the number of their table: no value is read.
    let sql = "SELECT CASE WHEN pg_catalog.get_byte(data, 0) IN (68, 73, 85) THEN substring(data FOR 5) ELSE data END \
               FROM pg_catalog.pg_logical_slot_peek_binary_changes($1::text::name, NULL, $2, 'proto_version', '1', \
               'publication_names', $3, 'origin', 'none')";
    let slot = link_name(me, to);
    let messages: Vec<Vec<u8>> = client.values(sql, &[&slot, &READ_MAX, &PUBLICATION]).await.map_err(|fault| {
        let why = match state_of(&fault).as_deref() {
            Some("55006") => "is in use",
            Some("42704") => "does not exist",
            _ => "cannot be read",
        };
        Fault::new(Code::PgUnproven, format!("slot `{slot}` {why}")).caused_by(fault)
    })?;
    let found = read_unsent(messages.iter().map(Vec::as_slice), applied, &merged);
    let found = found.map_err(|why| {
        Fault::new(Code::PgUnproven, format!("cannot understand what slot `{slot}` keeps")).caused_by(why)
    })?;
    let whole = messages.len() < usize::try_from(READ_MAX).unwrap_or_default();
    if found.transactions == 0 && !whole {
        return Err(Fault::new(Code::PgUnproven, format!("slot `{slot}` keeps more changes than are read")));
    }
    Ok(found)
}
