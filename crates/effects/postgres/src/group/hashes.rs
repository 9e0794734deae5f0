//! Fingerprints of replicated tables, to prove that nodes hold the same.
//!
//! **Invariant:** a fingerprint depends on the rows alone, not on their order or place.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures_util::future::{try_join, try_join_all};
use quorate_faults::{Code, Fault};
use tokio::time::Instant;

use super::{Seat, round_trip};
use crate::sql::Client;

/// Into how many parts a table is divided to find rows that differ.
const PARTS: i32 = 4096;

/// The replicated tables that have a key, and the columns of it.
const KEYED_TABLES: &str = "SELECT format('%I.%I', t.schema, t.name), (SELECT string_agg(quote_ident(a.attname), ', ' \
    ORDER BY a.attnum) FROM pg_catalog.pg_index i JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey) \
    WHERE i.indrelid = t.relation AND i.indisprimary) FROM mesh.tables t WHERE t.keyed ORDER BY 1";

/// The fingerprint of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableHash {
    /// How many rows.
    pub rows: u64,
    /// Of all rows.
    pub hash: String,
}

/// The replicated tables of a node, as SQL takes their names.
pub async fn tables(client: &Client) -> Result<Vec<String>, Fault> {
    client.values("SELECT pg_catalog.format('%I.%I', schema, name) FROM mesh.tables ORDER BY 1", &[]).await
}

/// Fingerprints of all replicated tables of a node, by their names.
pub async fn hashes(client: &Client) -> Result<BTreeMap<String, TableHash>, Fault> {
    let mut found = BTreeMap::new();
    for name in tables(client).await? {
        let sql = format!(
            "SELECT count(*), coalesce(sum(h)::text, '-') || ':' || coalesce(bit_xor(h)::text, '-') FROM \
             (SELECT pg_catalog.hashtextextended(t::text, 7) AS h FROM {name} t) x"
        );
        let row = client.one(&sql, &[]).await?;
        let rows: i64 = client.read(&row, 0)?;
        let hash = TableHash { rows: u64::try_from(rows).unwrap_or_default(), hash: client.read(&row, 1)? };
        found.insert(name, hash);
    }
    Ok(found)
}

/// Waits until all seats hold the same rows. While others write, it may never be so: then they are only nearly the same.
pub async fn same_everywhere(seats: &[Seat], limit: Duration) -> Result<BTreeMap<String, TableHash>, Fault> {
    let begun = Instant::now();
    loop {
        let mut all = Vec::new();
        for seat in seats {
            all.push((seat.member.name.as_str(), hashes(&seat.client).await?));
        }
        let Some(difference) = difference(&all) else {
            return Ok(all.pop().map(|(_, found)| found).unwrap_or_default());
        };
        if begun.elapsed() >= limit {
            return Err(Fault::new(Code::PgDiverged, difference)
                .hint("`quorate pg conflicts repair` makes them the same again and tells what it changed"));
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// The SQL that says to which part of its table a row belongs, by its key.
pub(crate) fn part_of(key: &str) -> String {
    format!("(pg_catalog.hashtextextended(ROW({key})::text, 3) & {})::int4", PARTS - 1)
}

/// The fingerprint of each part of a table that has rows.
pub(crate) async fn parts_of(client: &Client, table: &str, key: &str) -> Result<BTreeMap<i32, String>, Fault> {
    let sql = format!(
        "SELECT {}, count(*)::text || ':' || sum(pg_catalog.hashtextextended(t::text, 7))::text FROM {table} t GROUP BY 1",
        part_of(key)
    );
    let rows = client.query(&sql, &[]).await?;
    rows.iter().map(|row| Ok((client.read(row, 0)?, client.read(row, 1)?))).collect()
}

/// What a comparison of rows that may be written meanwhile found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Compared {
    /// How many tables were compared.
    pub tables: u32,
    /// Tables with rows that nobody writes and that are not the same everywhere.
    pub differ: Vec<String>,
    /// Tables with rows that were written in every moment in which they were looked at.
    pub moving: Vec<String>,
}

impl Compared {
    /// Whether every row was seen to be the same everywhere.
    pub fn is_same(&self) -> bool {
        self.differ.is_empty() && self.moving.is_empty()
    }
}

/// Compares the rows of all seats while others write. A table is looked at in parts: each is the same once all seats said the
/// same of it; it differs if they said different things twice, each the same as before, and what was written in between has
/// come to everyone.
pub async fn compare(seats: &[Seat], limit: Duration) -> Result<Compared, Fault> {
    let begun = Instant::now();
    let mut compared = Compared::default();
    let Some(first) = seats.first() else { return Ok(compared) };
    for row in first.client.query(KEYED_TABLES, &[]).await? {
        let (table, key): (String, String) = (first.client.read(&row, 0)?, first.client.read(&row, 1)?);
        compared.tables += 1;
        let mut open = Open::default();
        loop {
            let all = try_join_all(seats.iter().map(|seat| parts_of(&seat.client, &table, &key))).await?;
            match open.look(all) {
                Verdict::Same => break,
                Verdict::Differs => {
                    compared.differ.push(table);
                    break;
                }
                Verdict::Open if begun.elapsed() >= limit => {
                    compared.moving.push(table);
                    break;
                }
                // What is under way has time to arrive.
                Verdict::Open => {
                    round_trip(seats, limit).await?;
                }
            }
        }
    }
    Ok(compared)
}

/// So many rows of a table are counted as different; there may be more.
const DIFFERING_MAX: usize = 1000;

/// Counts the rows of a node that are not the same on another one, by table; tables without such rows are left out. Rows are
/// compared by their hashes: no value leaves its server.
pub async fn count_differing(own: &Client, other: &Client) -> Result<BTreeMap<String, u64>, Fault> {
    let mut found = BTreeMap::new();
    for row in own.query(KEYED_TABLES, &[]).await? {
        let (table, key): (String, String) = (own.read(&row, 0)?, own.read(&row, 1)?);
        let (mine, its) = try_join(parts_of(own, &table, &key), parts_of(other, &table, &key)).await?;
        let parts: BTreeSet<i32> = mine.keys().chain(its.keys()).copied().collect();
        let parts: Vec<i32> = parts.into_iter().filter(|part| mine.get(part) != its.get(part)).collect();
        let mut differing = 0;
        for part in parts {
            let (mine, its) =
                try_join(row_hashes(own, &table, &key, part), row_hashes(other, &table, &key, part)).await?;
            let keys: BTreeSet<&String> = mine.keys().chain(its.keys()).collect();
            differing += keys.into_iter().filter(|key| mine.get(*key) != its.get(*key)).count();
            if differing >= DIFFERING_MAX {
                break;
            }
        }
        if differing > 0 {
            found.insert(table, u64::try_from(differing).unwrap_or(u64::MAX));
        }
    }
    Ok(found)
}

/// The hash of each row in a part of a table, by the hash of its key.
async fn row_hashes(client: &Client, table: &str, key: &str, part: i32) -> Result<BTreeMap<String, String>, Fault> {
    let sql = format!(
        "SELECT pg_catalog.hashtextextended(ROW({key})::text, 5)::text, pg_catalog.hashtextextended(t::text, 7)::text \
         FROM {table} t WHERE {} = $1",
        part_of(key)
    );
    let rows = client.query(&sql, &[&part]).await?;
    rows.iter().map(|row| Ok((client.read(row, 0)?, client.read(row, 1)?))).collect()
}

#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Same,
    Differs,
    Open,
}

/// The parts of a table that were not yet seen to be the same; `None`: none was looked at.
#[derive(Debug, Default)]
struct Open(Option<BTreeMap<i32, Vec<Option<String>>>>);

impl Open {
    fn look(&mut self, all: Vec<BTreeMap<i32, String>>) -> Verdict {
        let parts: BTreeSet<i32> = match &self.0 {
            None => all.iter().flat_map(|found| found.keys().copied()).collect(),
            Some(open) => open.keys().copied().collect(),
        };
        let said = |part: i32| all.iter().map(|found| found.get(&part).cloned()).collect::<Vec<_>>();
        let unequal = |said: &Vec<Option<String>>| said.iter().any(|one| *one != said[0]);
        let now: BTreeMap<_, _> =
            parts.into_iter().map(|part| (part, said(part))).filter(|(_, said)| unequal(said)).collect();
        let stands = |(part, said): (&i32, &Vec<Option<String>>)| {
            self.0.as_ref().is_some_and(|before| before.get(part) == Some(said))
        };
        let verdict = match () {
            () if now.is_empty() => Verdict::Same,
            () if now.iter().any(stands) => Verdict::Differs,
            () => Verdict::Open,
        };
        self.0 = Some(now);
        verdict
    }
}

fn difference(all: &[(&str, BTreeMap<String, TableHash>)]) -> Option<String> {
    let ((first, wanted), rest) = all.split_first()?;
    for (node, found) in rest {
        for name in wanted.keys().chain(found.keys()) {
            let (a, b) = (wanted.get(name), found.get(name));
            if a != b {
                let rows =
                    |hash: Option<&TableHash>| hash.map_or("no table".to_owned(), |hash| format!("{} rows", hash.rows));
                return Some(format!("table {name} differs: {} on `{first}`, {} on `{node}`", rows(a), rows(b)));
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_that_moves_is_looked_at_again_and_one_that_stands_still_and_differs_is_told() {
        let of = |entries: &[(i32, &str)]| entries.iter().map(|(part, said)| (*part, (*said).to_owned())).collect();
        let mut open = Open::default();
        assert_eq!(open.look(vec![of(&[(1, "a"), (2, "b")]), of(&[(1, "a"), (2, "c")])]), Verdict::Open);
        // Part 1 was the same once, whatever is written into it later.
        assert_eq!(open.look(vec![of(&[(1, "x"), (2, "d")]), of(&[(1, "y"), (2, "e")])]), Verdict::Open);
        assert_eq!(open.look(vec![of(&[(2, "f")]), of(&[(2, "f")])]), Verdict::Same);
        let mut open = Open::default();
        assert_eq!(open.look(vec![of(&[(1, "a")]), of(&[])]), Verdict::Open);
        assert_eq!(open.look(vec![of(&[(1, "a")]), of(&[])]), Verdict::Differs);
        assert_eq!(Open::default().look(vec![of(&[]), of(&[])]), Verdict::Same);
    }

    #[test]
    fn a_difference_names_the_table_and_both_nodes() {
        let hash = |rows, hash: &str| TableHash { rows, hash: hash.to_owned() };
        let of = |entries: &[(&str, TableHash)]| {
            entries.iter().map(|(name, hash)| ((*name).to_owned(), hash.clone())).collect()
        };
        let a: BTreeMap<_, _> = of(&[("a.t", hash(2, "x"))]);
        assert_eq!(difference(&[("n1", a.clone()), ("n2", a.clone())]), None);
        let said = difference(&[("n1", a.clone()), ("n2", of(&[("a.t", hash(2, "y"))]))]).unwrap();
        assert_eq!(said, "table a.t differs: 2 rows on `n1`, 2 rows on `n2`");
        assert!(difference(&[("n1", a), ("n2", BTreeMap::new())]).unwrap().contains("no table on `n2`"));
    }
}
