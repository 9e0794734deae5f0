//! How the links of one node are: those that come in (subscriptions) and those that go out (slots).

use std::collections::BTreeMap;

use quorate_faults::Fault;

use super::mesh::link_name;
use super::{Seat, myself};
use crate::sql::Client;

/// What a node says of its links.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Links {
    /// Those that bring changes, by the member they come from.
    pub incoming: BTreeMap<u16, Incoming>,
    /// Those that carry changes away, by the member they go to.
    pub outgoing: BTreeMap<u16, Outgoing>,
}

/// A subscription.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Incoming {
    /// Not enabled: it was paused, or stopped by an error.
    pub enabled: bool,
    /// It stands still on purpose.
    pub paused: bool,
    /// It is stopped because the writer has changed; then it is paused too.
    pub held: bool,
    /// Its changes may have been applied after newer ones of the writer: rows are to be compared.
    pub unordered: bool,
    /// Whether a process applies changes.
    pub running: bool,
    /// Errors so far, of changes and of copies.
    pub errors: u64,
    /// Tables that take part.
    pub tables_ready: u32,
    /// Tables that are still being copied.
    pub tables_waiting: u32,
    /// Counted by the server; `None`: it does not count (before PostgreSQL 18).
    pub conflicts: Option<Conflicts>,
}

/// What the server counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Conflicts {
    /// A row that came was there already.
    pub insert_exists: u64,
    /// A change came for a row that another node had changed last.
    pub update_origin_differs: u64,
    /// A change came for a row that is not there, and was left out.
    pub update_missing: u64,
    /// A row to be deleted was not there.
    pub delete_missing: u64,
    /// All others.
    pub others: u64,
}

/// A slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outgoing {
    /// Whether the subscriber is connected.
    pub active: bool,
    /// What it has not confirmed yet.
    pub lag_bytes: u64,
    /// What is kept for it.
    pub kept_bytes: u64,
    /// It is worth nothing any more, and why: the subscriber has to join again.
    pub lost: Option<String>,
}

/// How far a node is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Position {
    /// The end of its own log.
    pub wal: u64,
    /// What it has of each other member's log.
    pub applied: BTreeMap<u16, u64>,
}

fn number(value: i64) -> u64 {
    u64::try_from(value).unwrap_or_default()
}

/// `mesh_n2_from_n1` at node 2: 1.
fn other_end(name: &str, me: u16) -> Option<(u16, bool)> {
    let (to, from) = name.strip_prefix("mesh_n")?.split_once("_from_n")?;
    let (to, from): (u16, u16) = (to.parse().ok()?, from.parse().ok()?);
    match () {
        () if to == me => Some((from, true)),
        () if from == me => Some((to, false)),
        () => None,
    }
}

/// Asks a node about its links.
pub async fn observe_links(seat: &Seat) -> Result<Links, Fault> {
    let client = &seat.client;
    let mut links = Links::default();
    let version: i32 = client.value("SELECT current_setting('server_version_num')::int4", &[]).await?;
    let counted = match version >= 180_000 {
        true => {
            "t.confl_insert_exists, t.confl_update_origin_differs, t.confl_update_missing, t.confl_delete_missing, \
             t.confl_update_exists + t.confl_delete_origin_differs + t.confl_multiple_unique_conflicts"
        }
        false => "0::int8, 0::int8, 0::int8, 0::int8, 0::int8",
    };
    let sql = format!(
        "SELECT s.subname::text, s.subenabled, EXISTS (SELECT FROM pg_catalog.pg_stat_subscription w WHERE w.subid = s.oid \
         AND w.relid IS NULL AND w.pid IS NOT NULL), t.apply_error_count + t.sync_error_count, \
         (SELECT count(*) FROM pg_catalog.pg_subscription_rel r WHERE r.srsubid = s.oid AND r.srsubstate = 'r'), \
         (SELECT count(*) FROM pg_catalog.pg_subscription_rel r WHERE r.srsubid = s.oid AND r.srsubstate <> 'r'), {counted}, \
         EXISTS (SELECT FROM mesh.paused p WHERE p.subname = s.subname), EXISTS (SELECT FROM mesh.held h WHERE h.subname = s.subname), \
         EXISTS (SELECT FROM mesh.unordered u WHERE u.subname = s.subname) \
         FROM pg_catalog.pg_subscription s JOIN pg_catalog.pg_stat_subscription_stats t ON t.subid = s.oid \
         WHERE s.subdbid = (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database())"
    );
    for row in client.query(&sql, &[]).await? {
        let count = |column| client.read::<i64>(&row, column).map(number);
        let Some((from, true)) = other_end(&client.read::<String>(&row, 0)?, seat.member.id) else { continue };
        let conflicts = Conflicts {
            insert_exists: count(6)?,
            update_origin_differs: count(7)?,
            update_missing: count(8)?,
            delete_missing: count(9)?,
            others: count(10)?,
        };
        let incoming = Incoming {
            enabled: client.read(&row, 1)?,
            paused: client.read::<bool>(&row, 11)? || client.read(&row, 12)?,
            held: client.read(&row, 12)?,
            unordered: client.read(&row, 13)?,
            running: client.read(&row, 2)?,
            errors: count(3)?,
            tables_ready: u32::try_from(count(4)?).unwrap_or(u32::MAX),
            tables_waiting: u32::try_from(count(5)?).unwrap_or(u32::MAX),
            conflicts: (version >= 180_000).then_some(conflicts),
        };
        links.incoming.insert(from, incoming);
    }
    let reason = if version >= 170_000 { "invalidation_reason::text" } else { "NULL::text" };
    let sql = format!(
        "SELECT slot_name::text, active, coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), confirmed_flush_lsn), 0)::int8, \
         coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn), 0)::int8, \
         CASE WHEN wal_status = 'lost' THEN coalesce({reason}, 'too much had to be kept for it') END \
         FROM pg_catalog.pg_replication_slots WHERE slot_type = 'logical' AND database = pg_catalog.current_database()"
    );
    for row in client.query(&sql, &[]).await? {
        let Some((to, false)) = other_end(&client.read::<String>(&row, 0)?, seat.member.id) else { continue };
        let outgoing = Outgoing {
            active: client.read(&row, 1)?,
            lag_bytes: number(client.read(&row, 2)?),
            kept_bytes: number(client.read(&row, 3)?),
            lost: client.read(&row, 4)?,
        };
        links.outgoing.insert(to, outgoing);
    }
    Ok(links)
}

/// Why a member no longer keeps what another one has missed; `None`: it does, or there is no slot. `client`: to the member.
pub async fn slot_lost(client: &Client, from: u16, to: u16) -> Result<Option<String>, Fault> {
    let sql = "SELECT wal_status FROM pg_catalog.pg_replication_slots WHERE slot_name = $1";
    let row = client.opt(sql, &[&link_name(from, to)]).await?;
    let status: Option<String> = row.map(|row| client.read(&row, 0)).transpose()?.flatten();
    Ok(status.filter(|status| status == "lost"))
}

/// Where a node is in its own log, and in those of the others.
pub async fn position(client: &Client) -> Result<Position, Fault> {
    let me = myself(client).await?.map(|me| me.id).unwrap_or_default();
    let wal: i64 = client.value("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::int8", &[]).await?;
    let sql = "SELECT s.subname::text, coalesce(pg_wal_lsn_diff(o.remote_lsn, '0/0'), 0)::int8 FROM pg_catalog.pg_subscription s \
               LEFT JOIN pg_catalog.pg_replication_origin_status o ON o.external_id = 'pg_' || s.oid";
    let mut applied = BTreeMap::new();
    for row in client.query(sql, &[]).await? {
        if let Some((from, true)) = other_end(&client.read::<String>(&row, 0)?, me) {
            applied.insert(from, number(client.read(&row, 1)?));
        }
    }
    Ok(Position { wal: number(wal), applied })
}

/// Lets a link go on that was stopped by an error; one that stands still on purpose is left alone. Whether it goes on now.
pub async fn revive_link(client: &Client, from: u16) -> Result<bool, Fault> {
    let me = myself(client).await?.map(|me| me.id).unwrap_or_default();
    let name = link_name(from, me);
    // Whoever pauses a link writes that down in the transaction that stops it, and waits for this one.
    client.execute("SELECT mesh.revive($1)", &[&name]).await?;
    client.value("SELECT subenabled FROM pg_catalog.pg_subscription WHERE subname = $1", &[&name]).await
}

/// The nodes of which it is known that they no longer keep what this one has missed.
pub async fn known_lost(client: &Client) -> Result<Vec<u16>, Fault> {
    let ids: Vec<i32> = client.values("SELECT node_id FROM mesh.lost ORDER BY 1", &[]).await?;
    Ok(ids.into_iter().filter_map(|id| u16::try_from(id).ok()).collect())
}

/// Remembers that a node no longer keeps what this one has missed, or that it does again.
pub async fn note_lost(client: &Client, from: u16, lost: bool) -> Result<(), Fault> {
    let sql = match lost {
        true => "INSERT INTO mesh.lost (node_id) VALUES ($1) ON CONFLICT DO NOTHING",
        false => "DELETE FROM mesh.lost WHERE node_id = $1",
    };
    client.execute(sql, &[&i32::from(from)]).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_other_end_of_a_link_is_in_its_name() {
        assert_eq!(other_end(&link_name(1, 2), 2), Some((1, true)));
        assert_eq!(other_end(&link_name(1, 2), 1), Some((2, false)));
        assert_eq!(other_end(&link_name(1, 2), 3), None);
        assert_eq!(other_end("pg_16399_sync_16390_7", 3), None);
    }
}
