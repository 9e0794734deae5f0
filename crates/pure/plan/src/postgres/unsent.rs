//! Reads what the log of an old writer holds beyond its cutoff: which tables were changed, and how often.
//!
//! **Invariant:** only tables and counts are read; the values of rows are neither needed nor looked at. A message that is not
//! understood is an error, not nothing.

use std::collections::{BTreeMap, BTreeSet};

/// So many tables are named; there may be more.
const TABLES_MAX: usize = 16;

/// Transactions beyond a cutoff that cannot be merged: they changed tables whose rows have no stamp.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Unsent {
    /// How many.
    pub transactions: u64,
    /// The position of the first one.
    pub first: u64,
    /// How many rows they changed, by table.
    pub changes: BTreeMap<String, u64>,
}

impl Unsent {
    /// The tables with most changes; the others are not named.
    pub(super) fn bounded(&self) -> BTreeMap<String, u64> {
        let mut tables: Vec<(&String, &u64)> = self.changes.iter().collect();
        tables.sort_by_key(|(name, changes)| (std::cmp::Reverse(**changes), *name));
        tables.into_iter().take(TABLES_MAX).map(|(name, changes)| (name.clone(), *changes)).collect()
    }
}

/// `1 transaction`, `2 transactions`.
pub(super) fn counted(count: u64, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

/// Reads the messages of a slot (`pgoutput`, protocol 1; those of rows may end after the number of their table) behind a position.
/// `merged`: tables, as `schema.table`, in which a late change is decided by its stamp.
pub fn read_unsent<'a>(
    messages: impl IntoIterator<Item = &'a [u8]>,
    applied: u64,
    merged: &BTreeSet<String>,
) -> Result<Unsent, String> {
    let mut names: BTreeMap<u32, String> = BTreeMap::new();
    let mut found = Unsent::default();
    let mut open: Option<(u64, BTreeMap<String, u64>)> = None;
    for message in messages {
        let (kind, rest) = message.split_first().ok_or("an empty message")?;
        match kind {
            b'B' => open = Some((u64::from_be_bytes(head(rest)?), BTreeMap::new())),
            b'C' => {
                let (finish, changes) = open.take().ok_or("a commit outside of a transaction")?;
                // A node that has applied a transaction stands at its end, which lies behind the position of its commit.
                if finish >= applied && !changes.is_empty() {
                    found.first = if found.transactions == 0 { finish } else { found.first };
                    found.transactions += 1;
                    for (table, count) in changes {
                        *found.changes.entry(table).or_default() += count;
                    }
                }
            }
            b'R' => {
                let number = u32::from_be_bytes(head(rest)?);
                let mut texts = rest.get(4..).ok_or("a relation without a name")?.split(|byte| *byte == 0);
                let (schema, table) = (texts.next(), texts.next());
                let (Some(schema), Some(table)) = (schema, table) else {
                    return Err("a relation without a name".into());
                };
                let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                names.insert(number, format!("{}.{}", text(schema), text(table)));
            }
            b'I' | b'U' | b'D' => {
                let number = u32::from_be_bytes(head(rest)?);
                let name = names.get(&number).ok_or_else(|| format!("relation {number} was not sent"))?;
                let (_, changes) = open.as_mut().ok_or("a change outside of a transaction")?;
                if !merged.contains(name) {
                    *changes.entry(name.clone()).or_default() += 1;
                }
            }
            // Origins, types, truncations and logical messages: none of them is a row.
            b'O' | b'Y' | b'T' | b'M' => {}
            other => return Err(format!("message {:?} is not known", char::from(*other))),
        }
    }
    Ok(found)
}

fn head<const N: usize>(bytes: &[u8]) -> Result<[u8; N], String> {
    bytes.first_chunk::<N>().copied().ok_or_else(|| "a message ends too early".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begin(finish: u64) -> Vec<u8> {
        [&b"B"[..], &finish.to_be_bytes(), &[0; 12]].concat()
    }

    fn relation(number: u32, name: &str) -> Vec<u8> {
        [&b"R"[..], &number.to_be_bytes(), name.replace('.', "\0").as_bytes(), b"\0d\0\0"].concat()
    }

    fn row(kind: u8, number: u32) -> Vec<u8> {
        [&[kind][..], &number.to_be_bytes()].concat()
    }

    fn read(messages: &[Vec<u8>], applied: u64) -> Result<Unsent, String> {
        let merged = ["rdpg.events".to_owned()].into();
        read_unsent(messages.iter().map(Vec::as_slice), applied, &merged)
    }

    #[test]
    fn counts_changes_beyond_the_cutoff_in_tables_without_stamps() {
        let commit = b"C".to_vec();
        let log = [
            begin(100),
            relation(1, "public.t"),
            row(b'U', 1),
            commit.clone(),
            begin(200),
            relation(2, "rdpg.events"),
            row(b'I', 2),
            commit.clone(),
            begin(300),
            row(b'U', 1),
            row(b'D', 1),
            row(b'I', 2),
            commit.clone(),
        ];
        let beyond = Unsent { transactions: 1, first: 300, changes: [("public.t".to_owned(), 2)].into() };
        // Applied: the node stands behind the commit at 100.
        assert_eq!(read(&log, 108), Ok(beyond.clone()));
        assert_eq!(read(&log, 208), Ok(beyond));
        assert_eq!(read(&log, 308), Ok(Unsent::default()));
        assert_eq!(read(&log, 0).map(|found| (found.transactions, found.first)), Ok((2, 100)));
    }

    #[test]
    fn refuses_what_it_does_not_understand() {
        for bad in [vec![], b"Z".to_vec(), b"B\0".to_vec(), row(b'I', 9), b"C".to_vec(), b"R\0\0\0\x01x".to_vec()] {
            let said = read(&[begin(1), bad.clone(), b"C".to_vec()], 0);
            assert!(bad == b"C" || said.is_err(), "{bad:?}: {said:?}");
        }
        assert!(read(&[b"C".to_vec()], 0).is_err());
    }

    #[test]
    fn names_a_bounded_number_of_tables() {
        let changes = (0..40_u64).map(|number| (format!("s.t{number}"), number)).collect();
        let bounded = Unsent { transactions: 1, first: 1, changes }.bounded();
        assert_eq!(bounded.len(), TABLES_MAX);
        assert!(bounded.contains_key("s.t39") && !bounded.contains_key("s.t0"));
    }
}
