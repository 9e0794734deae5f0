//! Conflicts: what lost, and making nodes the same again where they are not.
//!
//! **Invariant:** a repair is not sent on: it runs under an origin of its own, and links carry only what was made at its node.
//! No row is taken away that is not written down first.

mod repair;
mod stopped;
mod take;

use std::time::Duration;

use quorate_faults::{Code, Fault};

pub use repair::{Repaired, Source, repair};
pub use stopped::{Conflict, Stopped, Way, forget_found, skip, stopped};
pub use take::take_rows;

use crate::sql::{Client, state_of};

/// So many lines of the log are removed at a time: nobody waits for long.
const PURGE_AT_ONCE: i64 = 10_000;

/// A row that lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConflictRow {
    /// Its number on this node.
    pub id: i64,
    /// When it lost, in UTC.
    pub at: String,
    /// The table.
    pub relation: String,
    /// `lost`: both were made without knowledge of each other; `overtaken`: it came after one that may have known it; `skipped`: it
    /// came with a transaction that stopped a link; `replaced`: a repair took it away for the rows of another node.
    pub kind: String,
    /// Where the loser came from: `here` or `from elsewhere`.
    pub came: String,
    /// The row that is there now, as JSON.
    pub kept: String,
    /// The row that is not, as JSON.
    pub lost: String,
}

/// The newest rows that lost on a node.
pub async fn list(client: &Client, limit: u32) -> Result<Vec<ConflictRow>, Fault> {
    let sql = "SELECT id, to_char(at, 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"'), relation, kind, came, kept::text, lost::text \
               FROM mesh.conflicts ORDER BY id DESC LIMIT $1";
    let rows = client.query(sql, &[&i64::from(limit)]).await?;
    let read = |row| {
        Ok(ConflictRow {
            id: client.read(row, 0)?,
            at: client.read(row, 1)?,
            relation: client.read(row, 2)?,
            kind: client.read(row, 3)?,
            came: client.read(row, 4)?,
            kept: client.read(row, 5)?,
            lost: client.read(row, 6)?,
        })
    };
    rows.iter().map(read).collect()
}

/// How many rows of each kind were written down on a node: lost, overtaken.
pub async fn counts(client: &Client) -> Result<(u64, u64), Fault> {
    let sql =
        "SELECT count(*) FILTER (WHERE kind = 'lost'), count(*) FILTER (WHERE kind <> 'lost') FROM mesh.conflicts";
    let row = client.one(sql, &[]).await?;
    let number = |column| client.read::<i64>(&row, column).map(|value| u64::try_from(value).unwrap_or_default());
    Ok((number(0)?, number(1)?))
}

/// Does something under the origin that no link carries. Only one session of a node can at a time.
async fn within_origin(client: &Client, work: impl Future<Output = Result<(), Fault>>) -> Result<(), Fault> {
    let begun = client.execute("SELECT pg_catalog.pg_replication_origin_session_setup('mesh_repair')", &[]).await;
    begun.map_err(|fault| match state_of(&fault).as_deref() {
        Some("55006") => {
            Fault::new(Code::PgChangeUnderWay, format!("another repair is under way on `{}`", client.node()))
                .hint("try again in a moment")
                .caused_by(fault)
        }
        _ => fault,
    })?;
    let done = work.await;
    if done.is_err() {
        client.batch("ROLLBACK").await?;
    }
    client.execute("SELECT pg_catalog.pg_replication_origin_session_reset()", &[]).await?;
    done
}

/// Removes rows of a node that were marked as deleted longer ago than this. Every node does it for itself.
pub async fn purge(client: &Client, older: Duration) -> Result<(), Fault> {
    let seconds = i64::try_from(older.as_secs()).unwrap_or(i64::MAX);
    within_origin(client, async {
        let sql = "SELECT mesh.purge(make_interval(secs => $1::int8::float8))";
        client.execute(sql, &[&seconds]).await.map(drop)
    })
    .await
}

/// Removes lines of a node's log of conflicts that are older than this. Returns how many.
pub async fn purge_log(client: &Client, older: Duration) -> Result<u64, Fault> {
    let seconds = i64::try_from(older.as_secs()).unwrap_or(i64::MAX);
    let sql = "DELETE FROM mesh.conflicts WHERE id IN (SELECT id FROM mesh.conflicts \
               WHERE at < now() - make_interval(secs => $1::int8::float8) ORDER BY id LIMIT $2)";
    let mut removed = 0;
    loop {
        match client.execute(sql, &[&seconds, &PURGE_AT_ONCE]).await? {
            0 => return Ok(removed),
            more => removed += more,
        }
    }
}
