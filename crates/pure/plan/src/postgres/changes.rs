//! Reads what a slot of PostgreSQL has for its subscriber: the messages of `pgoutput`, protocol 1.
//!
//! **Invariant:** no length is used before it was compared with what is there; what is not understood is an error, not nothing.

use std::collections::BTreeMap;

/// A place in the log of a server.
type Position = u64;

/// A position as PostgreSQL writes it.
pub fn position_text(at: Position) -> String {
    format!("{:X}/{:X}", at >> 32, at & 0xFFFF_FFFF)
}

/// The value of a column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// None.
    Null,
    /// As it was before; it is not sent again.
    Unchanged,
    /// As text.
    Text(String),
}

/// What is done with a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deed {
    /// It is new.
    Insert,
    /// It is there, in another version.
    Update,
    /// It is taken away; only its key is known.
    Delete,
}

/// A row that comes with a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowChange {
    /// The schema of its table.
    pub schema: String,
    /// Its table.
    pub table: String,
    /// What is done with it.
    pub deed: Deed,
    /// Its columns, in their order.
    pub columns: Vec<(String, Value)>,
}

/// A transaction as its subscriber gets it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transaction {
    /// By this position it is skipped, and the server's log names it as where it finished.
    pub finish: Position,
    /// Its changes, in their order.
    pub changes: Vec<RowChange>,
}

/// The first whole transaction that a subscriber has not applied which is at `applied`. `None`: all that is here it has.
pub fn first_after<'a>(
    messages: impl IntoIterator<Item = &'a [u8]>,
    applied: Position,
) -> Result<Option<Transaction>, String> {
    let mut relations: BTreeMap<u32, Relation> = BTreeMap::new();
    let mut open: Option<Transaction> = None;
    for message in messages {
        let mut bytes = Bytes(message);
        match bytes.byte()? {
            b'B' => open = Some(Transaction { finish: bytes.u64()?, changes: Vec::new() }),
            b'C' => {
                // Whoever has applied a transaction stands at its end, which lies behind the position of its commit.
                if let Some(whole) = open.take().filter(|open| open.finish >= applied) {
                    return Ok(Some(whole));
                }
            }
            b'R' => {
                let (id, relation) = Relation::read(&mut bytes)?;
                relations.insert(id, relation);
            }
            kind @ (b'I' | b'U' | b'D') => {
                let id = bytes.u32()?;
                let relation = relations.get(&id).ok_or_else(|| format!("relation {id} was not told"))?;
                let change = relation.change(kind, &mut bytes)?;
                let open = open.as_mut().ok_or("a change outside of a transaction")?;
                open.changes.push(change);
            }
            // Where it came from, types, truncations and messages: none of them is a row.
            b'O' | b'Y' | b'T' | b'M' => {}
            other => return Err(format!("message {:?} is not known", char::from(other))),
        }
    }
    Ok(None)
}

struct Relation {
    schema: String,
    table: String,
    columns: Vec<String>,
}

impl Relation {
    fn read(bytes: &mut Bytes<'_>) -> Result<(u32, Relation), String> {
        let id = bytes.u32()?;
        let (schema, table) = (bytes.text()?, bytes.text()?);
        bytes.byte()?;
        let mut columns = Vec::new();
        for _ in 0..bytes.u16()? {
            bytes.byte()?;
            columns.push(bytes.text()?);
            bytes.take(8)?;
        }
        // The system's own schema has no name there.
        let schema = if schema.is_empty() { "pg_catalog".to_owned() } else { schema };
        Ok((id, Relation { schema, table, columns }))
    }

    fn change(&self, kind: u8, bytes: &mut Bytes<'_>) -> Result<RowChange, String> {
        let mut part = bytes.byte()?;
        let mut columns = self.row(bytes)?;
        // An update may tell the old row, or its key, before the new one.
        if kind == b'U' && part != b'N' {
            part = bytes.byte()?;
            columns = self.row(bytes)?;
        }
        if (part == b'N') == (kind == b'D') {
            return Err(format!("a row of kind {:?} is not known", char::from(part)));
        }
        let deed = match kind {
            b'I' => Deed::Insert,
            b'U' => Deed::Update,
            _ => Deed::Delete,
        };
        Ok(RowChange { schema: self.schema.clone(), table: self.table.clone(), deed, columns })
    }

    fn row(&self, bytes: &mut Bytes<'_>) -> Result<Vec<(String, Value)>, String> {
        let count = usize::from(bytes.u16()?);
        if count != self.columns.len() {
            return Err(format!("{count} values for {} columns", self.columns.len()));
        }
        let mut row = Vec::with_capacity(count);
        for name in &self.columns {
            let value = match bytes.byte()? {
                b'n' => Value::Null,
                b'u' => Value::Unchanged,
                b't' => {
                    let length = bytes.u32()?;
                    let text = bytes.take(usize::try_from(length).unwrap_or(usize::MAX))?;
                    Value::Text(String::from_utf8(text.to_vec()).map_err(|_| "a value is no text".to_owned())?)
                }
                other => return Err(format!("a value of kind {:?} is not known", char::from(other))),
            };
            row.push((name.clone(), value));
        }
        Ok(row)
    }
}

/// What is left of a message.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], String> {
        let (head, rest) = self.0.split_at_checked(count).ok_or("a message ends too early")?;
        self.0 = rest;
        Ok(head)
    }

    fn number(&mut self, count: usize) -> Result<u64, String> {
        Ok(self.take(count)?.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
    }

    fn byte(&mut self) -> Result<u8, String> {
        Ok(self.number(1)? as u8)
    }

    fn u16(&mut self) -> Result<u16, String> {
        Ok(self.number(2)? as u16)
    }

    fn u32(&mut self) -> Result<u32, String> {
        Ok(self.number(4)? as u32)
    }

    fn u64(&mut self) -> Result<u64, String> {
        self.number(8)
    }

    fn text(&mut self) -> Result<String, String> {
        let end = self.0.iter().position(|byte| *byte == 0).ok_or("a name does not end")?;
        let text = String::from_utf8(self.take(end)?.to_vec()).map_err(|_| "a name is no text".to_owned())?;
        self.take(1)?;
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn delete() -> Vec<u8> {
        b"D\0\0\0\x07K\0\x02t\0\0\0\x012n".to_vec()
    }

    fn begin(finish: u64) -> Vec<u8> {
        [b"B".as_slice(), &finish.to_be_bytes(), &[0; 12]].concat()
    }

    fn relation() -> Vec<u8> {
        let column = |name: &[u8]| [&[1_u8][..], name, &[0], &[0; 8]].concat();
        [b"R\0\0\0\x07shop\0u\0d\0\x02".to_vec(), column(b"id"), column(b"v")].concat()
    }

    fn insert() -> Vec<u8> {
        b"I\0\0\0\x07N\0\x02t\0\0\0\x0242n".to_vec()
    }

    fn update() -> Vec<u8> {
        b"U\0\0\0\x07K\0\x02t\0\0\0\x011nN\0\x02t\0\0\0\x012u".to_vec()
    }

    fn commit() -> Vec<u8> {
        [b"C".as_slice(), &[0; 25]].concat()
    }

    fn read(messages: &[Vec<u8>], applied: u64) -> Result<Option<Transaction>, String> {
        first_after(messages.iter().map(Vec::as_slice), applied)
    }

    #[test]
    fn what_was_applied_is_passed_over_and_the_next_transaction_is_whole() {
        let all = [begin(10), relation(), insert(), commit(), begin(30), insert(), update(), commit()];
        let first = read(&all, 0).unwrap().unwrap();
        assert_eq!((first.finish, first.changes.len()), (10, 1));
        let next = read(&all, 20).unwrap().unwrap();
        assert_eq!(next.finish, 30);
        let text = |text: &str| Value::Text(text.to_owned());
        let columns = |a: Value, b: Value| vec![("id".to_owned(), a), ("v".to_owned(), b)];
        assert_eq!(next.changes[0].columns, columns(text("42"), Value::Null));
        assert_eq!(
            (next.changes[1].deed, &next.changes[1].columns),
            (Deed::Update, &columns(text("2"), Value::Unchanged))
        );
        assert_eq!((next.changes[1].schema.as_str(), next.changes[1].table.as_str()), ("shop", "u"));
        assert_eq!(read(&all, 31).unwrap(), None);
        assert_eq!(read(&all[..7], 20).unwrap(), None, "one that has not ended is none");
        assert_eq!(position_text(0x1_07E8_A288), "1/7E8A288");
    }

    #[test]
    fn what_is_cut_off_or_unknown_is_an_error() {
        for message in [relation(), insert(), update()] {
            for end in 0..message.len() {
                let all = [begin(1), relation(), message[..end].to_vec(), commit()];
                let found = read(&all, 0);
                assert!(found.is_err(), "{end} bytes of {message:?}: {found:?}");
            }
        }
        assert!(read(&[insert()], 0).is_err(), "a relation that was not told");
        assert!(read(&[b"Z".to_vec()], 0).is_err());
        assert!(read(&[begin(1), relation(), b"I\0\0\0\x07N\0\x02t\xff\xff\xff\xff4".to_vec()], 0).is_err());
    }
    proptest! {
        #[test]
        fn no_bytes_make_it_panic(messages in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..6), applied in any::<u64>()) {
            let _ = read(&messages, applied);
            for message in messages {
                let _ = read(&[begin(1), relation(), message, commit()], 0);
            }
        }

        #[test]
        fn a_byte_that_is_another_makes_it_panic_nowhere(which in 0_usize..7, at in any::<prop::sample::Index>(), byte in any::<u8>()) {
            let mut all = [begin(10), relation(), insert(), update(), delete(), commit(), begin(30)];
            let at = at.index(all[which].len());
            all[which][at] = byte;
            for applied in [0, 10, u64::MAX] {
                if let Ok(Some(found)) = read(&all, applied) {
                    prop_assert!(found.finish >= applied);
                }
            }
        }
    }
}
