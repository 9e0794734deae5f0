//! Makes the rows of a node those of the writer, while the writer is written to.
//!
//! **Invariant:** a row is replaced only if the writer's version was the same before and after this node had applied all that the
//! writer had written, and while nothing is applied to its table here. What the writer changes later comes through its link.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures_util::future::try_join;
use quorate_faults::{Code, Fault};
use tokio::time::Instant;

use super::repair::{Change, Repaired, Table, in_the_way, put, tables};
use super::within_origin;
use crate::group::{Seat, caught_up, part_of, parts_of};
use crate::sql::Client;

/// So many rows are compared by their keys at a time: they are in memory.
const ROWS_AT_ONCE: u64 = 200_000;
/// So many rows are replaced in one transaction, while nothing else is applied to their table.
const REPLACED_AT_ONCE: usize = 2_000;

/// A version of a row: its hash, and the transaction that made it on its node.
type Version = (String, String);

#[derive(Debug)]
struct Row {
    text: String,
    version: Version,
    stamp: (i64, i32),
}

/// Makes all replicated tables of a node those of the writer. Returns what was changed; nothing: they were the same. `limit`: for
/// how long rows may be written whenever they are looked at.
pub async fn take_rows(own: &Seat, writer: &Seat, limit: Duration) -> Result<Vec<Repaired>, Fault> {
    let mut taken = Vec::new();
    for table in tables(&own.client).await? {
        let (mine, its) =
            try_join(parts_of(&own.client, &table.name, &table.key), parts_of(&writer.client, &table.name, &table.key))
                .await?;
        let mut changed = Repaired { node: own.member.name.clone(), table: table.name.clone(), put: 0, removed: 0 };
        for parts in in_groups(&table, &mine, &its) {
            take_parts((own, writer), &table, &parts, limit, &mut changed).await?;
        }
        if changed.put + changed.removed > 0 {
            taken.push(changed);
        }
    }
    Ok(taken)
}

/// The parts that are not the same, as many at a time as memory allows. Rows with a second unique index may be in each other's way:
/// they are looked at together.
fn in_groups(table: &Table, mine: &BTreeMap<i32, String>, its: &BTreeMap<i32, String>) -> Vec<Vec<i32>> {
    let rows = |said: Option<&String>| {
        said.and_then(|said| said.split_once(':')).and_then(|(rows, _)| rows.parse::<u64>().ok()).unwrap_or_default()
    };
    let parts: BTreeSet<i32> = mine.keys().chain(its.keys()).copied().collect();
    let (mut groups, mut size) = (Vec::<Vec<i32>>::new(), u64::MAX);
    for part in parts.into_iter().filter(|part| mine.get(part) != its.get(part)) {
        let more = rows(mine.get(&part)).max(rows(its.get(&part)));
        match groups.last_mut() {
            Some(group) if !table.unique.is_empty() || size.saturating_add(more) <= ROWS_AT_ONCE => {
                group.push(part);
                size = size.saturating_add(more);
            }
            Some(_) | None => {
                groups.push(vec![part]);
                size = more;
            }
        }
    }
    groups
}

async fn take_parts(
    (own, writer): (&Seat, &Seat),
    table: &Table,
    parts: &[i32],
    limit: Duration,
    changed: &mut Repaired,
) -> Result<(), Fault> {
    let begun = Instant::now();
    let mut open: Option<Vec<String>> = None;
    loop {
        let (mine, its) = try_join(
            versions(&own.client, table, parts, open.as_deref()),
            versions(&writer.client, table, parts, open.as_deref()),
        )
        .await?;
        let keys: BTreeSet<&String> = mine.keys().chain(its.keys()).collect();
        let hash = |rows: &BTreeMap<String, Version>, key: &String| rows.get(key).map(|version| version.0.clone());
        let keys: Vec<String> = keys.into_iter().filter(|key| hash(&mine, key) != hash(&its, key)).cloned().collect();
        if keys.is_empty() {
            return Ok(());
        }
        // What is under way arrives first.
        caught_up(writer, &own.member, limit).await?;
        let mut left = Vec::new();
        let at_once = if table.unique.is_empty() { REPLACED_AT_ONCE } else { keys.len() };
        for keys in keys.chunks(at_once) {
            left.extend(replace((own, writer), table, &its, keys, changed).await?);
        }
        if left.is_empty() {
            return Ok(());
        }
        if begun.elapsed() >= limit {
            let what = format!("{} rows of {} are written whenever they are looked at", left.len(), table.name);
            return Err(Fault::new(Code::PgDiverged, what).hint("it is tried again; fewer writes to them help"));
        }
        open = Some(left);
    }
}

/// The versions of the rows in some parts of a table, or of some of their rows, by their keys.
async fn versions(
    client: &Client,
    table: &Table,
    parts: &[i32],
    keys: Option<&[String]>,
) -> Result<BTreeMap<String, Version>, Fault> {
    let sql = format!(
        "SELECT ROW({0})::text, pg_catalog.hashtextextended(t::text, 7)::text, t.xmin::text FROM {1} t WHERE {2} = ANY ($1) \
         AND ($2::text[] IS NULL OR ROW({0})::text = ANY ($2))",
        table.key,
        table.name,
        part_of(&table.key)
    );
    let rows = client.query(&sql, &[&parts, &keys]).await?;
    let read = |row| Ok((client.read(row, 0)?, (client.read(row, 1)?, client.read(row, 2)?)));
    rows.iter().map(read).collect()
}

async fn rows(client: &Client, table: &Table, keys: &[String]) -> Result<BTreeMap<String, Row>, Fault> {
    let stamp =
        if table.lww { "(extract(epoch FROM t.updated_at) * 1000000)::int8, t.updated_by" } else { "0::int8, 0::int4" };
    let sql = format!(
        "SELECT ROW({0})::text, t::text, pg_catalog.hashtextextended(t::text, 7)::text, t.xmin::text, {stamp} FROM {1} t \
         WHERE ROW({0})::text = ANY ($1)",
        table.key, table.name
    );
    let found = client.query(&sql, &[&keys]).await?;
    let read = |row| {
        let version = (client.read(row, 2)?, client.read(row, 3)?);
        let stamp = (client.read(row, 4)?, client.read(row, 5)?);
        Ok((client.read(row, 0)?, Row { text: client.read(row, 1)?, version, stamp }))
    };
    found.iter().map(read).collect()
}

/// Replaces rows that the writer has not changed since `before`. Returns the keys of those that it has.
async fn replace(
    (own, writer): (&Seat, &Seat),
    table: &Table,
    before: &BTreeMap<String, Version>,
    keys: &[String],
    changed: &mut Repaired,
) -> Result<Vec<String>, Fault> {
    let client = &own.client;
    let mut left = Vec::new();
    let replaced = within_origin(client, async {
        let lock = format!("LOCK TABLE {} IN SHARE ROW EXCLUSIVE MODE", table.name);
        client.batch(&format!("BEGIN; SET LOCAL session_replication_role = replica; {lock}")).await?;
        let its = rows(&writer.client, table, keys).await?;
        let mine = rows(client, table, keys).await?;
        let mut change = Change::default();
        for key in keys {
            let (mine, its) = (mine.get(key), its.get(key));
            match verdict(table, mine, its, before.get(key)) {
                Verdict::InStep => {}
                Verdict::Moving => left.push(key.clone()),
                Verdict::Replace => {
                    let text = its.map(|its| its.text.as_str());
                    change.put.extend(text);
                    change.removed += u64::from(text.is_none());
                    if mine.is_some() {
                        change.room.push((key, None, text, "replaced"));
                    }
                }
            }
        }
        put(client, table, &change).await?;
        client.batch("COMMIT").await?;
        changed.put += change.put.len() as u64;
        changed.removed += change.removed;
        Ok(())
    });
    replaced.await.map_err(|fault| in_the_way(client, table, fault))?;
    Ok(left)
}

#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// What the writer changes brings it to what the writer has.
    InStep,
    /// The writer changes it right now.
    Moving,
    Replace,
}

/// What is to be done about a row. `before`: the writer's version before this node had applied all that was under way.
fn verdict(table: &Table, mine: Option<&Row>, its: Option<&Row>, before: Option<&Version>) -> Verdict {
    let hash = mine.map(|row| &row.version.0);
    if hash == its.map(|row| &row.version.0) || hash == before.map(|version| &version.0) {
        return Verdict::InStep;
    }
    // Where stamps decide, the newer version goes to the writer.
    let newer = |mine: &Row| its.is_none_or(|its| mine.stamp > its.stamp);
    if table.lww && mine.is_some_and(newer) {
        return Verdict::InStep;
    }
    if its.map(|row| &row.version) == before { Verdict::Replace } else { Verdict::Moving }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(text: &str, at: &str, stamp: i64) -> Row {
        Row { text: text.to_owned(), version: (text.to_owned(), at.to_owned()), stamp: (stamp, 1) }
    }

    #[test]
    fn a_row_is_replaced_only_where_the_writer_did_not_change_it_meanwhile() {
        let table = Table::of("t", false);
        let judge = |mine: Option<&Row>, its: Option<&Row>, before: Option<&Row>| {
            verdict(&table, mine, its, before.map(|row| &row.version))
        };
        let (old, new, newer) = (row("old", "5", 0), row("new", "7", 0), row("newer", "8", 0));
        assert_eq!(judge(Some(&old), Some(&new), Some(&new)), Verdict::Replace);
        assert_eq!(judge(None, Some(&new), Some(&new)), Verdict::Replace);
        assert_eq!(judge(Some(&old), None, None), Verdict::Replace);
        assert_eq!(judge(Some(&old), Some(&newer), Some(&new)), Verdict::Moving);
        assert_eq!(judge(Some(&old), None, Some(&new)), Verdict::Moving);
        // Deleted and made again with the same text: its insert may still be under way.
        assert_eq!(judge(None, Some(&row("new", "9", 0)), Some(&new)), Verdict::Moving);
        assert_eq!(judge(Some(&new), Some(&newer), Some(&new)), Verdict::InStep);
        assert_eq!(judge(None, Some(&new), None), Verdict::InStep, "its insert comes through the link");
        assert_eq!(judge(Some(&newer), Some(&newer), Some(&new)), Verdict::InStep);
    }

    #[test]
    fn where_stamps_decide_the_newer_version_stays() {
        let table = Table::of("t", true);
        let (older, newer) = (row("a", "5", 1), row("b", "7", 2));
        assert_eq!(verdict(&table, Some(&older), Some(&newer), Some(&newer.version)), Verdict::Replace);
        assert_eq!(verdict(&table, Some(&newer), Some(&older), Some(&older.version)), Verdict::InStep);
        assert_eq!(verdict(&table, Some(&newer), None, None), Verdict::InStep);
    }

    #[test]
    fn parts_are_compared_in_groups_that_fit_into_memory() {
        let of = |entries: &[(i32, &str)]| entries.iter().map(|(part, said)| (*part, (*said).to_owned())).collect();
        let mine: BTreeMap<i32, String> = of(&[(1, "150000:a"), (2, "9:b"), (3, "100000:c"), (4, "1:d")]);
        let its = of(&[(1, "150000:x"), (2, "9:b"), (3, "100000:x"), (4, "1:x"), (5, "1:e")]);
        assert_eq!(in_groups(&Table::of("t", false), &mine, &its), [vec![1], vec![3, 4, 5]]);
        let unique = Table { unique: vec!["u".to_owned()], ..Table::of("t", false) };
        assert_eq!(in_groups(&unique, &mine, &its), [vec![1, 3, 4, 5]]);
        assert!(in_groups(&unique, &mine, &mine).is_empty());
    }
}
