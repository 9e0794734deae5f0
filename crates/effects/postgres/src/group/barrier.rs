//! Proof that what is written arrives: a row that is written and seen, not a word for a state.
//!
//! **Rule:** a link is good when a token of this moment has come through it.

use std::collections::BTreeSet;
use std::time::Duration;

use quorate_faults::{Code, Fault};
use tokio::time::Instant;

use super::mesh::link_name;
use super::{Member, Seat};

/// Between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// A round trip.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RoundTrip {
    /// From the first token to the last one seen.
    pub took: Duration,
}

/// Writes a token at every seat, and waits until every other has it.
pub async fn round_trip(seats: &[Seat], limit: Duration) -> Result<RoundTrip, Fault> {
    let begun = Instant::now();
    let mut tokens: Vec<(i32, i64)> = Vec::new();
    for seat in seats {
        let id = i32::from(seat.member.id);
        let sql = "INSERT INTO mesh_sync.tokens AS t (node_id, token) VALUES ($1, (extract(epoch FROM clock_timestamp()) * 1000)::int8) \
                   ON CONFLICT (node_id) DO UPDATE SET token = greatest(t.token + 1, EXCLUDED.token), at = clock_timestamp() \
                   RETURNING token";
        tokens.push((id, seat.client.value(sql, &[&id]).await?));
    }
    let (ids, wanted): (Vec<i32>, Vec<i64>) = tokens.into_iter().unzip();
    for seat in seats {
        loop {
            let sql = "SELECT w.id FROM unnest($1::int4[], $2::int8[]) AS w (id, token) LEFT JOIN mesh_sync.tokens t \
                       ON t.node_id = w.id WHERE t.token IS NULL OR t.token < w.token";
            let late: Vec<i32> = seat.client.values(sql, &[&ids, &wanted]).await?;
            if late.is_empty() {
                break;
            }
            if begun.elapsed() >= limit {
                return Err(not_arrived(seats, &seat.member, &late, limit));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
    Ok(RoundTrip { took: begun.elapsed() })
}

fn not_arrived(seats: &[Seat], at: &Member, late: &[i32], limit: Duration) -> Fault {
    let name = |id: &i32| {
        let found = seats.iter().find(|seat| i32::from(seat.member.id) == *id);
        found.map_or_else(|| id.to_string(), |seat| format!("`{}`", seat.member.name))
    };
    let from = late.iter().map(name).collect::<Vec<_>>().join(", ");
    Fault::new(Code::PgNotReplicated, format!("what {from} wrote has not come to `{}` within {limit:?}", at.name))
        .hint("`quorate pg status` shows the links; a link that stopped by an error says why in the log of PostgreSQL")
}

/// The subscribers that a handover waits for.
#[derive(Debug, Clone)]
pub struct Subscribers<'a> {
    /// The one that must confirm.
    pub next: &'a Member,
    /// The others, and whether each of them is waited for.
    pub others: Vec<(Member, bool)>,
}

/// Waits until a subscriber has confirmed all that a member had written when this was called.
pub async fn caught_up(from: &Seat, to: &Member, limit: Duration) -> Result<(), Fault> {
    all_caught_up(from, &Subscribers { next: to, others: Vec::new() }, limit).await.map(drop)
}

/// Waits until every subscriber that is waited for has confirmed all that a member had written when this was called. Returns the
/// numbers of those that have not; an error: `next` is one of them.
pub async fn all_caught_up(from: &Seat, to: &Subscribers<'_>, limit: Duration) -> Result<BTreeSet<u16>, Fault> {
    let begun = Instant::now();
    let client = &from.client;
    let target: i64 = client.value("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::int8", &[]).await?;
    loop {
        let confirmed = confirmed(from, to, target).await?;
        let has = |member: &Member| confirmed.contains(&link_name(from.member.id, member.id));
        let late = |(member, awaited): &(Member, bool)| *awaited && !has(member);
        let ended = begun.elapsed() >= limit;
        if has(to.next) && (ended || !to.others.iter().any(late)) {
            let others = to.others.iter().map(|(member, _)| member);
            return Ok(others.filter(|member| !has(member)).map(|member| member.id).collect());
        }
        if ended {
            return Err(Fault::new(
                Code::PgNotReplicated,
                format!("`{}` has not confirmed what `{}` wrote within {limit:?}", to.next.name, from.member.name),
            )
            .hint("`quorate pg status` shows the links and how far behind they are"));
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// The links of those that have confirmed a position.
async fn confirmed(from: &Seat, to: &Subscribers<'_>, target: i64) -> Result<BTreeSet<String>, Fault> {
    // Moves over what is not published too, by the messages that keep the link alive. What was applied there is enough: until
    // it is on that disk too, the slot here keeps it.
    let sql = "SELECT s.slot_name::text FROM pg_catalog.pg_replication_slots s \
               LEFT JOIN pg_catalog.pg_stat_replication r ON r.pid = s.active_pid \
               WHERE s.slot_name = ANY ($1::text[]) \
               AND pg_wal_lsn_diff(greatest(s.confirmed_flush_lsn, r.replay_lsn), '0/0')::int8 >= $2";
    let members = std::iter::once(to.next).chain(to.others.iter().map(|(member, _)| member));
    let links: Vec<String> = members.map(|member| link_name(from.member.id, member.id)).collect();
    Ok(from.client.values(sql, &[&links, &target]).await?.into_iter().collect())
}
