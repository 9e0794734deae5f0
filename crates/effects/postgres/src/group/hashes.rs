//! Fingerprints of replicated tables, to prove that nodes hold the same.
//!
//! **Invariant:** a fingerprint depends on the rows alone, not on their order or place.

use std::collections::BTreeMap;
use std::time::Duration;

use quorate_faults::{Code, Fault};
use tokio::time::Instant;

use super::Seat;
use crate::sql::Client;

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
