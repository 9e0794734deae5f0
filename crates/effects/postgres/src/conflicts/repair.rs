//! Makes nodes the same again where they are not.
//!
//! **Invariant:** a row is taken away in the transaction that writes it down.

use std::collections::{BTreeMap, BTreeSet};

use quorate_faults::{Code, Fault};

use super::within_origin;
use crate::group::{Seat, part_of, parts_of};
use crate::sql::{Client, literal, state_of};

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
pub(super) struct Table {
    pub(super) name: String,
    pub(super) key: String,
    pub(super) lww: bool,
    /// The columns that are written; the server computes the others.
    pub(super) columns: String,
    /// For each unique index besides the key, the SQL of what no two rows may share; NULL where it binds nobody.
    pub(super) unique: Vec<String>,
}

#[cfg(test)]
impl Table {
    pub(super) fn of(name: &str, lww: bool) -> Table {
        let (key, columns) = ("id".to_owned(), "id, u".to_owned());
        Table { name: name.to_owned(), key, lww, columns, unique: Vec::new() }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Found {
    text: String,
    stamp: (i64, i32),
    unique: Vec<Option<String>>,
}

type Rows = BTreeMap<String, Found>;

/// Makes all replicated tables the same on all seats. Returns what was changed; nothing: they were the same.
pub async fn repair(seats: &[Seat], source: &Source) -> Result<Vec<Repaired>, Fault> {
    let mut repaired = Vec::new();
    let Some(first) = seats.first() else { return Ok(repaired) };
    known(seats, source)?;
    let mut differences = Vec::new();
    for table in tables(&first.client).await? {
        let parts = differing(seats, &table).await?;
        // Before anything is changed.
        if !parts.is_empty() && *source == Source::Newest && !table.lww {
            return Err(undecided(&table.name));
        }
        match table.unique.is_empty() {
            true => differences.extend(parts.into_iter().map(|part| (table.clone(), vec![part]))),
            // Rows of any two parts may be in each other's way.
            false if !parts.is_empty() => differences.push((table, parts.into_iter().collect())),
            false => {}
        }
    }
    for (table, parts) in differences {
        for change in repair_parts(seats, source, &table, &parts).await? {
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

/// Whether the node whose rows are right is a member.
pub(super) fn known(seats: &[Seat], source: &Source) -> Result<(), Fault> {
    match source {
        Source::Node(name) if !seats.iter().any(|seat| seat.member.name == *name) => {
            let names = seats.iter().map(|seat| seat.member.name.as_str()).collect::<Vec<_>>().join(", ");
            Err(Fault::new(Code::PgNotMember, format!("`{name}` is no member of the group"))
                .hint(format!("the members are {names}")))
        }
        Source::Node(_) | Source::Newest => Ok(()),
    }
}

pub(super) fn undecided(table: &str) -> Fault {
    Fault::new(Code::PgDiverged, format!("which rows of {table} are right cannot be told"))
        .hint("name the node whose rows are right: `quorate pg conflicts repair --from NODE`")
}

pub(super) async fn tables(client: &Client) -> Result<Vec<Table>, Fault> {
    let sql = "SELECT format('%I.%I', t.schema, t.name), (SELECT string_agg(quote_ident(a.attname), ', ' ORDER BY a.attnum) \
               FROM pg_catalog.pg_index i JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey) \
               WHERE i.indrelid = t.relation AND i.indisprimary), t.lww, \
               ARRAY(SELECT 'CASE WHEN ' || coalesce(pg_catalog.pg_get_expr(i.indpred, i.indrelid), 'true') \
               || CASE WHEN i.indnullsnotdistinct THEN '' ELSE string_agg(' AND (' || c.word || ') IS NOT NULL', '' ORDER BY c.n) END \
               || ' THEN ROW(' || string_agg(c.word, ', ' ORDER BY c.n) || ')::text END' FROM pg_catalog.pg_index i CROSS JOIN LATERAL \
               (SELECT n, pg_catalog.pg_get_indexdef(i.indexrelid, n, true) FROM generate_series(1, i.indnkeyatts) n) AS c (n, word) \
               WHERE i.indrelid = t.relation AND i.indisunique AND NOT i.indisprimary AND i.indisvalid \
               GROUP BY i.indexrelid, i.indpred, i.indrelid, i.indnullsnotdistinct ORDER BY i.indexrelid), \
               (SELECT string_agg(quote_ident(a.attname), ', ' ORDER BY a.attnum) FROM pg_catalog.pg_attribute a \
               WHERE a.attrelid = t.relation AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = '') \
               FROM mesh.tables t WHERE t.keyed ORDER BY 1";
    let rows = client.query(sql, &[]).await?;
    let read = |row| {
        Ok(Table {
            name: client.read(row, 0)?,
            key: client.read(row, 1)?,
            lww: client.read(row, 2)?,
            unique: client.read(row, 3)?,
            columns: client.read(row, 4)?,
        })
    };
    rows.iter().map(read).collect()
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

async fn rows_of(seat: &Seat, table: &Table, parts: &[i32]) -> Result<Rows, Fault> {
    let stamp =
        if table.lww { "(extract(epoch FROM t.updated_at) * 1000000)::int8, t.updated_by" } else { "0::int8, 0::int4" };
    let sql = format!(
        "SELECT ROW({})::text, t::text, {stamp}, ARRAY[{}]::text[] FROM {} t WHERE {} = ANY ($1)",
        table.key,
        table.unique.join(", "),
        table.name,
        part_of(&table.key)
    );
    let client = &seat.client;
    let rows = client.query(&sql, &[&parts]).await?;
    let read = |row| {
        let stamp = (client.read(row, 2)?, client.read(row, 3)?);
        Ok((client.read(row, 0)?, Found { text: client.read(row, 1)?, stamp, unique: client.read(row, 4)? }))
    };
    rows.iter().map(read).collect()
}

async fn repair_parts(seats: &[Seat], source: &Source, table: &Table, parts: &[i32]) -> Result<Vec<Repaired>, Fault> {
    let mut all = Vec::new();
    for seat in seats {
        all.push(rows_of(seat, table, parts).await?);
    }
    // A row that is the same everywhere is in nobody's way: each server has seen to that.
    let keys: BTreeSet<String> = all.iter().flat_map(|rows| rows.keys().cloned()).collect();
    for key in keys {
        if all.iter().all(|rows| rows.get(&key) == all[0].get(&key)) {
            all.iter_mut().for_each(|rows| drop(rows.remove(&key)));
        }
    }
    let right = match source {
        Source::Node(name) => {
            let of = seats.iter().position(|seat| seat.member.name == *name);
            of.map(|at| all[at].clone()).unwrap_or_default()
        }
        Source::Newest => newest(&all),
    };
    let mut repaired = Vec::new();
    for (seat, rows) in seats.iter().zip(&all) {
        let change = difference(source, table, rows, &right);
        if change.put.is_empty() && change.removed == 0 {
            continue;
        }
        write(seat, table, &change).await?;
        repaired.push(Repaired {
            node: seat.member.name.clone(),
            table: table.name.clone(),
            put: change.put.len() as u64,
            removed: change.removed,
        });
    }
    Ok(repaired)
}

/// Of each row the newest version that can be there beside the newer ones of others.
fn newest(all: &[Rows]) -> Rows {
    let mut versions: Vec<(&String, &Found)> = all.iter().flatten().collect();
    // The same stamp with another text is no version of ours; then at least everyone gets the same.
    versions.sort_by(|(a_key, a), (b_key, b)| (b.stamp, &b.text, b_key).cmp(&(a.stamp, &a.text, a_key)));
    let (mut best, mut taken) = (Rows::new(), BTreeSet::new());
    for (key, found) in versions {
        if best.contains_key(key) || places(found).any(|place| taken.contains(&place)) {
            continue;
        }
        taken.extend(places(found));
        best.insert(key.clone(), found.clone());
    }
    best
}

/// What no other row may share with this one.
fn places(found: &Found) -> impl Iterator<Item = (usize, &String)> {
    found.unique.iter().enumerate().filter_map(|(index, value)| value.as_ref().map(|value| (index, value)))
}

/// What is done on one node.
#[derive(Debug, Default)]
pub(super) struct Change<'a> {
    pub(super) put: Vec<&'a str>,
    pub(super) removed: u64,
    /// Rows that make room: key, text (any, if it is not said), what is there instead, and how that is called.
    pub(super) room: Vec<(&'a str, Option<&'a str>, Option<&'a str>, &'static str)>,
}

fn difference<'a>(source: &Source, table: &Table, rows: &'a Rows, right: &'a Rows) -> Change<'a> {
    let owners: BTreeMap<(usize, &String), &Found> =
        right.values().flat_map(|found| places(found).map(move |place| (place, found))).collect();
    let mut change = Change::default();
    for (key, found) in right {
        match rows.get(key) {
            Some(row) if row.text == found.text => continue,
            // Where versions decide, the trigger judges once more, unless rows could be in each other's way.
            Some(row) if *source != Source::Newest || !table.unique.is_empty() => {
                let (text, kind) = match source {
                    Source::Node(_) => (None, "replaced"),
                    Source::Newest if row.stamp > found.stamp => (Some(row.text.as_str()), "lost"),
                    Source::Newest => (Some(row.text.as_str()), "overtaken"),
                };
                change.room.push((key, text, Some(&found.text), kind));
            }
            Some(_) | None => {}
        }
        change.put.push(&found.text);
    }
    for (key, row) in rows.iter().filter(|(key, _)| !right.contains_key(*key)) {
        let instead = places(row).find_map(|place| owners.get(&place)).map(|found| found.text.as_str());
        let (text, kind) = match source {
            Source::Node(_) => (None, "replaced"),
            Source::Newest => (Some(row.text.as_str()), "lost"),
        };
        change.room.push((key, text, instead, kind));
        change.removed += 1;
    }
    change
}

/// Puts rows there without sending them on, and writes down those that made room.
async fn write(seat: &Seat, table: &Table, change: &Change<'_>) -> Result<(), Fault> {
    let client = &seat.client;
    let written = within_origin(client, async {
        client.batch("BEGIN; SET LOCAL session_replication_role = replica").await?;
        put(client, table, change).await?;
        client.batch("COMMIT").await
    });
    written.await.map_err(|fault| in_the_way(client, table, fault))
}

/// The same within a transaction of the origin that no link carries.
pub(super) async fn put(client: &Client, table: &Table, change: &Change<'_>) -> Result<(), Fault> {
    let keys: Vec<&str> = change.room.iter().map(|room| room.0).collect();
    let texts: Vec<Option<&str>> = change.room.iter().map(|room| room.1).collect();
    let kept: Vec<Option<&str>> = change.room.iter().map(|room| room.2).collect();
    let kinds: Vec<&str> = change.room.iter().map(|room| room.3).collect();
    let delete = format!(
        "WITH mesh_gone AS (DELETE FROM {0} t USING unnest($1::text[], $2::text[], $3::text[], $4::text[]) \
         AS mesh_x (mesh_key, mesh_text, mesh_kept, mesh_kind) WHERE ROW({1})::text = mesh_x.mesh_key \
         AND (mesh_x.mesh_text IS NULL OR t::text = mesh_x.mesh_text) \
         RETURNING pg_catalog.to_jsonb(t) AS lost, mesh_x.mesh_kept::{0} AS kept, mesh_x.mesh_kind AS kind) \
         INSERT INTO mesh.conflicts (relation, kind, came, kept, lost) \
         SELECT {2}, kind, 'here', coalesce(pg_catalog.to_jsonb(kept), 'null'), lost FROM mesh_gone",
        table.name,
        table.key,
        literal(&table.name)
    );
    client.execute(&delete, &[&keys, &texts, &kept, &kinds]).await?;
    let insert = format!(
        "INSERT INTO {0} ({1}) OVERRIDING SYSTEM VALUE SELECT {1} FROM (SELECT (x.r::{0}).* FROM unnest($1::text[]) AS x (r)) y",
        table.name, table.columns
    );
    client.execute(&insert, &[&change.put]).await.map(drop)
}

pub(super) fn in_the_way(client: &Client, table: &Table, fault: Fault) -> Fault {
    match state_of(&fault).as_deref() {
        Some("23505" | "23P01") => {
            let what = format!("rows of {} on `{}` are in the way of those that are right", table.name, client.node());
            Fault::new(Code::PgDiverged, what)
                .hint("they may be written right now: try again; `quorate pg conflicts list` shows links that such rows have stopped")
                .caused_by(fault)
        }
        _ => fault,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(entries: &[(&str, i64, i32, Option<&str>)]) -> Rows {
        let found = |(key, at, by, unique): &(&str, i64, i32, Option<&str>)| {
            let unique = vec![unique.map(str::to_owned)];
            (String::from(*key), Found { text: format!("{at}/{by}"), stamp: (*at, *by), unique })
        };
        entries.iter().map(found).collect()
    }

    fn shown(rows: &Rows) -> Vec<String> {
        rows.iter().map(|(key, found)| format!("{key}={}", found.text)).collect()
    }

    #[test]
    fn the_newest_version_of_each_row_is_right_everywhere() {
        let all = [
            of(&[("a", 1, 1, None), ("b", 5, 1, None)]),
            of(&[("a", 2, 1, None), ("b", 5, 2, None)]),
            of(&[("c", 1, 3, None)]),
        ];
        assert_eq!(shown(&newest(&all)), ["a=2/1", "b=5/2", "c=1/3"]);
    }

    #[test]
    fn of_two_rows_that_cannot_both_be_there_the_newer_one_is_right() {
        let all = [of(&[("a", 1, 1, Some("x"))]), of(&[("b", 2, 2, Some("x"))])];
        assert_eq!(shown(&newest(&all)), ["b=2/2"]);
        // A row loses the version that is in the way, not the one before it.
        let all = [
            of(&[("a", 5, 1, Some("x")), ("b", 2, 1, Some("z"))]),
            of(&[("a", 1, 1, Some("y")), ("b", 6, 2, Some("x"))]),
        ];
        let right = newest(&all);
        assert_eq!(shown(&right), ["a=1/1", "b=6/2"]);
        let table = Table { unique: vec!["u".into()], ..Table::of("t", true) };
        let change = difference(&Source::Newest, &table, &all[0], &right);
        assert_eq!(change.put, ["1/1", "6/2"]);
        assert_eq!(
            change.room,
            [("a", Some("5/1"), Some("1/1"), "lost"), ("b", Some("2/1"), Some("6/2"), "overtaken")]
        );
        let gone = [of(&[("a", 1, 1, Some("x"))]), of(&[("b", 2, 2, Some("x"))])];
        let (right, rows) = (newest(&gone), &gone[0]);
        let change = difference(&Source::Newest, &table, rows, &right);
        assert_eq!((change.removed, change.room), (1, vec![("a", Some("1/1"), Some("2/2"), "lost")]));
    }
}
