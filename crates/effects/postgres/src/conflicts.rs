//! Conflicts: what lost, and making nodes the same again where they are not.
//!
//! **Invariant:** a repair is not sent on: it runs under an origin of its own, and links carry only what was made at its node.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use quorate_faults::{Code, Fault};

use crate::group::{Seat, link_name, myself, part_of, parts_of};
use crate::sql::{Client, ident, state_of};

/// A row that lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConflictRow {
    /// Its number on this node.
    pub id: i64,
    /// When it lost, in UTC.
    pub at: String,
    /// The table.
    pub relation: String,
    /// `lost`: both were made without knowledge of each other; `overtaken`: it came after one that may have known it.
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

/// Which rows are right.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// Of each row the newest version; for tables in which the last write wins.
    Newest,
    /// All of them as one node has them; applications must not write meanwhile.
    Node(String),
}

/// What was changed on a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repaired {
    /// The node.
    pub node: String,
    /// The table.
    pub table: String,
    /// Rows that were put there.
    pub put: u64,
    /// Rows that were taken away.
    pub removed: u64,
}

#[derive(Debug, Clone)]
struct Table {
    name: String,
    key: String,
    lww: bool,
}

#[derive(Debug, Clone)]
struct Found {
    text: String,
    stamp: (i64, i32),
}

/// Makes all replicated tables the same on all seats. Returns what was changed; nothing: they were the same.
pub async fn repair(seats: &[Seat], source: &Source) -> Result<Vec<Repaired>, Fault> {
    let mut repaired = Vec::new();
    let Some(first) = seats.first() else { return Ok(repaired) };
    if let Source::Node(name) = source
        && !seats.iter().any(|seat| seat.member.name == *name)
    {
        let names = seats.iter().map(|seat| seat.member.name.as_str()).collect::<Vec<_>>().join(", ");
        return Err(Fault::new(Code::PgNotMember, format!("`{name}` is no member of the group"))
            .hint(format!("the members are {names}")));
    }
    let mut differences = Vec::new();
    for table in tables(&first.client).await? {
        let parts = differing(seats, &table).await?;
        // Before anything is changed.
        if !parts.is_empty() && *source == Source::Newest && !table.lww {
            return Err(Fault::new(Code::PgDiverged, format!("which rows of {} are right cannot be told", table.name))
                .hint("name the node whose rows are right: `quorate pg conflicts repair --from NODE`"));
        }
        differences.extend(parts.into_iter().map(|part| (table.clone(), part)));
    }
    for (table, part) in differences {
        for change in repair_part(seats, source, &table, part).await? {
            let same = |known: &&mut Repaired| (&known.node, &known.table) == (&change.node, &change.table);
            match repaired.iter_mut().find(same) {
                Some(known) => {
                    known.put += change.put;
                    known.removed += change.removed;
                }
                None => repaired.push(change),
            }
        }
    }
    Ok(repaired)
}

async fn tables(client: &Client) -> Result<Vec<Table>, Fault> {
    let sql = "SELECT format('%I.%I', t.schema, t.name), (SELECT string_agg(quote_ident(a.attname), ', ' ORDER BY a.attnum) \
               FROM pg_catalog.pg_index i JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey) \
               WHERE i.indrelid = t.relation AND i.indisprimary), t.lww FROM mesh.tables t WHERE t.keyed ORDER BY 1";
    let rows = client.query(sql, &[]).await?;
    rows.iter()
        .map(|row| Ok(Table { name: client.read(row, 0)?, key: client.read(row, 1)?, lww: client.read(row, 2)? }))
        .collect()
}

/// The parts of a table that are not the same on all seats.
async fn differing(seats: &[Seat], table: &Table) -> Result<BTreeSet<i32>, Fault> {
    let mut all: Vec<BTreeMap<i32, String>> = Vec::new();
    for seat in seats {
        all.push(parts_of(&seat.client, &table.name, &table.key).await?);
    }
    let parts: BTreeSet<i32> = all.iter().flat_map(|found| found.keys().copied()).collect();
    let differs = |part: &i32| all.iter().any(|found| found.get(part) != all[0].get(part));
    Ok(parts.into_iter().filter(differs).collect())
}

async fn rows_of(seat: &Seat, table: &Table, part: i32) -> Result<BTreeMap<String, Found>, Fault> {
    let stamp =
        if table.lww { "(extract(epoch FROM t.updated_at) * 1000000)::int8, t.updated_by" } else { "0::int8, 0::int4" };
    let sql = format!(
        "SELECT ROW({})::text, t::text, {stamp} FROM {} t WHERE {} = $1",
        table.key,
        table.name,
        part_of(&table.key)
    );
    let client = &seat.client;
    let rows = client.query(&sql, &[&part]).await?;
    let read = |row| {
        Ok((
            client.read(row, 0)?,
            Found { text: client.read(row, 1)?, stamp: (client.read(row, 2)?, client.read(row, 3)?) },
        ))
    };
    rows.iter().map(read).collect()
}

async fn repair_part(seats: &[Seat], source: &Source, table: &Table, part: i32) -> Result<Vec<Repaired>, Fault> {
    let mut all = Vec::new();
    for seat in seats {
        all.push((seat, rows_of(seat, table, part).await?));
    }
    let right = right(source, &all);
    let mut repaired = Vec::new();
    for (seat, rows) in &all {
        let put: Vec<(&String, &String)> = right
            .iter()
            .filter(|(key, found)| rows.get(*key).is_none_or(|row| row.text != found.text))
            .map(|(key, found)| (key, &found.text))
            .collect();
        let removed: Vec<&String> = rows.keys().filter(|key| !right.contains_key(*key)).collect();
        if put.is_empty() && removed.is_empty() {
            continue;
        }
        // Where versions decide, the trigger judges once more; where a node decides, what was there makes room first.
        let room: Vec<&String> = match source {
            Source::Newest => removed.clone(),
            Source::Node(_) => removed.iter().copied().chain(put.iter().map(|(key, _)| *key)).collect(),
        };
        write(seat, table, &room, &put.iter().map(|(_, text)| *text).collect::<Vec<_>>()).await?;
        repaired.push(Repaired {
            node: seat.member.name.clone(),
            table: table.name.clone(),
            put: put.len() as u64,
            removed: removed.len() as u64,
        });
    }
    Ok(repaired)
}

fn right(source: &Source, all: &[(&Seat, BTreeMap<String, Found>)]) -> BTreeMap<String, Found> {
    match source {
        Source::Node(name) => {
            let of = all.iter().find(|(seat, _)| seat.member.name == *name);
            of.map(|(_, rows)| rows.clone()).unwrap_or_default()
        }
        Source::Newest => newest(all.iter().map(|(_, rows)| rows)),
    }
}

fn newest<'a>(all: impl Iterator<Item = &'a BTreeMap<String, Found>>) -> BTreeMap<String, Found> {
    let mut best: BTreeMap<String, Found> = BTreeMap::new();
    for (key, found) in all.flatten() {
        // The same stamp with another text is no version of ours; then at least everyone gets the same.
        let wins = best.get(key).is_none_or(|known| (found.stamp, &found.text) > (known.stamp, &known.text));
        if wins {
            best.insert(key.clone(), found.clone());
        }
    }
    best
}

/// Puts rows there without sending them on.
async fn write(seat: &Seat, table: &Table, room: &[&String], put: &[&String]) -> Result<(), Fault> {
    let client = &seat.client;
    within_origin(client, async {
        client.batch("BEGIN; SET LOCAL session_replication_role = replica").await?;
        let delete = format!("DELETE FROM {} t WHERE ROW({})::text = ANY ($1::text[])", table.name, table.key);
        client.execute(&delete, &[&room]).await?;
        let insert = format!("INSERT INTO {0} SELECT (x.r::{0}).* FROM unnest($1::text[]) AS x (r)", table.name);
        client.execute(&insert, &[&put]).await?;
        client.batch("COMMIT").await
    })
    .await
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

/// Leaves out the transaction that stops a link, and lets the link go on. `finished_at`: from the log, see
/// [`finish_position`]. All of the transaction is left out, so [`repair`] is due afterwards.
pub async fn skip(client: &Client, from: u16, finished_at: &str) -> Result<(), Fault> {
    let hex = |part: &str| (1..=8).contains(&part.len()) && part.chars().all(|c| c.is_ascii_hexdigit());
    if !finished_at.split_once('/').is_some_and(|(high, low)| hex(high) && hex(low)) {
        return Err(Fault::new(Code::PgSql, format!("`{finished_at}` is no position in a log"))
            .hint("it looks like `0/7E8A288`"));
    }
    let me = myself(client).await?.map(|me| me.id).unwrap_or_default();
    let name = ident(&link_name(from, me));
    client.batch(&format!("ALTER SUBSCRIPTION {name} SKIP (lsn = '{finished_at}')")).await?;
    client.batch(&format!("ALTER SUBSCRIPTION {name} ENABLE")).await
}

/// Where the transaction ends that stopped a link last, from the text of the server's log. `origin`: `pg_` and the number of
/// the subscription.
pub fn finish_position(log: &str, origin: &str) -> Option<String> {
    let quoted = format!("replication origin \"{origin}\"");
    let line = log.lines().rev().find(|line| line.contains(&quoted) && line.contains("finished at "))?;
    let at = line.rsplit("finished at ").next()?.trim();
    let end = at.find(|c: char| !c.is_ascii_hexdigit() && c != '/').unwrap_or(at.len());
    at.get(..end).filter(|at| at.contains('/')).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_version_of_each_row_is_right_everywhere() {
        let of = |entries: &[(&str, i64, i32)]| -> BTreeMap<String, Found> {
            let found = |(key, at, by): &(&str, i64, i32)| {
                (String::from(*key), Found { text: format!("{at}/{by}"), stamp: (*at, *by) })
            };
            entries.iter().map(found).collect()
        };
        let all = [of(&[("a", 1, 1), ("b", 5, 1)]), of(&[("a", 2, 1), ("b", 5, 2)]), of(&[("c", 1, 3)])];
        let best: Vec<String> =
            newest(all.iter()).into_iter().map(|(key, found)| format!("{key}={}", found.text)).collect();
        assert_eq!(best, ["a=2/1", "b=5/2", "c=1/3"]);
    }

    #[test]
    fn the_place_of_an_error_is_read_from_the_log() {
        let log = "CONTEXT:  processing remote data for replication origin \"pg_17493\" during message type \"INSERT\" for replication \
                   target relation \"rdpg.c\" in transaction 50682, finished at 0/7E8A288\nother line\n";
        assert_eq!(finish_position(log, "pg_17493").as_deref(), Some("0/7E8A288"));
        assert_eq!(finish_position(log, "pg_1"), None);
    }
}
