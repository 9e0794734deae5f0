//! The body of a delta: a JSON array of writes, and 32 raw bytes of SHA-256 behind its last bracket.
//!
//! The scanner knows the few shapes that Go's encoder gives such an array and steps over what it does not know. It
//! keeps no more than one write and what was fed last.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use memchr::memchr2;
use sha2::{Digest, Sha256};

use super::parse_ms;
use crate::delta::batch::{Batch, Decoder, DeltaError, Entry, Order, Summary};

/// One write as JSON; etcd's own limit of a request is 1.5 MiB unless raised.
const ELEMENT_MAX: usize = 512 << 20;

/// Objects inside objects that are stepped over.
const DEPTH_MAX: usize = 32;

/// Reads one delta.
#[derive(Default)]
pub struct GardenerDecoder {
    /// What was fed and not yet used.
    buffer: Vec<u8>,
    /// Where the scanner stands in it.
    at: usize,
    /// Bytes that left the buffer.
    passed: u64,
    /// Do not try again below this length: the element in it is not whole yet.
    retry: usize,
    place: Place,
    hasher: Sha256,
    order: Order,
    batch: Batch,
}

#[derive(Default, PartialEq, Eq)]
enum Place {
    #[default]
    Begin,
    First,
    Element,
    Separator,
    Trailer,
}

/// Why the scanner stops inside an element.
enum Halt {
    /// More bytes may complete it.
    Short,
    /// No bytes can.
    Bad(&'static str),
}

impl Decoder for GardenerDecoder {
    fn feed(&mut self, bytes: &[u8]) -> Result<(), DeltaError> {
        self.forget();
        if self.place == Place::Trailer && self.buffer.len().saturating_add(bytes.len()) > 32 {
            return Err(DeltaError::TooLong);
        }
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() < self.retry {
            return Ok(());
        }
        self.scan()
    }

    fn take(&mut self, want_bytes: usize) -> Option<Batch> {
        (self.batch.bytes() >= want_bytes).then(|| std::mem::take(&mut self.batch))
    }

    fn finish(&mut self) -> Result<(Batch, Option<Summary>), DeltaError> {
        self.scan()?;
        self.forget();
        if self.place != Place::Trailer || self.buffer.len() < 32 {
            return Err(DeltaError::Truncated);
        }
        if self.hasher.finalize_reset().as_slice() != self.buffer.as_slice() {
            return Err(DeltaError::Hash);
        }
        Ok((std::mem::take(&mut self.batch), self.order.summary()))
    }
}

impl GardenerDecoder {
    /// Drops what was used.
    fn forget(&mut self) {
        self.passed = self.passed.saturating_add(self.at as u64);
        self.buffer.drain(..self.at.min(self.buffer.len()));
        self.at = 0;
    }

    fn scan(&mut self) -> Result<(), DeltaError> {
        let from = self.at;
        let outcome = self.elements();
        // The hash covers the array, and the array alone.
        self.hasher.update(self.buffer.get(from..self.at).unwrap_or_default());
        outcome
    }

    fn elements(&mut self) -> Result<(), DeltaError> {
        while self.place != Place::Trailer {
            let mut cursor = Cursor { bytes: self.buffer.get(self.at..).unwrap_or_default(), at: 0 };
            match self.place {
                Place::Begin => match cursor.token() {
                    Some(b'[') => self.step(cursor.at, Place::First),
                    Some(_) => return Err(self.malformed("the array does not begin")),
                    None => return Ok(()),
                },
                Place::First if cursor.peek() == Some(b']') => self.step(cursor.at.saturating_add(1), Place::Trailer),
                Place::First if cursor.peek().is_none() => return Ok(()),
                Place::First | Place::Element => {
                    let Some(used) = self.element()? else { return Ok(()) };
                    self.step(used, Place::Separator);
                }
                Place::Separator => match cursor.token() {
                    Some(b',') => self.step(cursor.at, Place::Element),
                    Some(b']') => self.step(cursor.at, Place::Trailer),
                    Some(_) => return Err(self.malformed("neither a comma nor the end of the array")),
                    None => return Ok(()),
                },
                Place::Trailer => {}
            }
        }
        let behind = self.buffer.len().saturating_sub(self.at);
        if behind > 32 { Err(DeltaError::TooLong) } else { Ok(()) }
    }

    fn step(&mut self, used: usize, place: Place) {
        self.at = self.at.saturating_add(used);
        self.place = place;
    }

    /// Reads one write; none if it is not whole yet.
    fn element(&mut self) -> Result<Option<usize>, DeltaError> {
        let rest = self.buffer.get(self.at..).unwrap_or_default();
        let mut cursor = Cursor { bytes: rest, at: 0 };
        let mut write = Write::default();
        match write.read(&mut cursor) {
            Ok(()) => {}
            Err(Halt::Short) => {
                if rest.len() > ELEMENT_MAX {
                    return Err(DeltaError::TooLarge { limit: ELEMENT_MAX });
                }
                // Twice as much before the next try: an element of any size is looked at a few times, not each time.
                self.retry = self.buffer.len().saturating_sub(self.at).saturating_mul(2);
                return Ok(None);
            }
            Err(Halt::Bad(what)) => {
                return Err(DeltaError::Malformed { what, offset: self.passed.saturating_add(self.at as u64) });
            }
        }
        self.retry = 0;
        let used = cursor.at;
        let offset = self.passed.saturating_add(self.at as u64);
        let malformed = |what| DeltaError::Malformed { what, offset };
        let at = self.order.place(write.mod_revision)?;
        let tombstone = match write.kind {
            0 => false,
            1 => true,
            _ => return Err(malformed("neither a put nor a deletion")),
        };
        let key = push_base64(&mut self.batch.bytes, write.key).ok_or_else(|| malformed("a key that is not base64"))?;
        if key.is_empty() {
            return Err(malformed("a write without a key"));
        }
        let value =
            push_base64(&mut self.batch.bytes, write.value).ok_or_else(|| malformed("a value that is not base64"))?;
        if !tombstone && (write.create_revision <= 0 || write.version <= 0) {
            return Err(malformed("a put without a create revision or version"));
        }
        self.batch.entries.push(Entry {
            at,
            tombstone,
            key,
            value,
            create_revision: write.create_revision,
            version: write.version,
            lease: write.lease,
            time_ms: parse_ms(write.time),
        });
        Ok(Some(used))
    }

    fn malformed(&self, what: &'static str) -> DeltaError {
        DeltaError::Malformed { what, offset: self.passed.saturating_add(self.at as u64) }
    }
}

fn push_base64(bytes: &mut Vec<u8>, text: &[u8]) -> Option<std::ops::Range<usize>> {
    let from = bytes.len();
    let room = text.len().checked_div(4)?.checked_add(1)?.checked_mul(3)?;
    bytes.resize(from.checked_add(room)?, 0);
    let decoded = BASE64_STANDARD.decode_slice(text, bytes.get_mut(from..)?).ok()?;
    let end = from.checked_add(decoded)?;
    bytes.truncate(end);
    Some(from..end)
}

/// The fields of one element, still encoded.
#[derive(Default)]
struct Write<'a> {
    kind: i64,
    key: &'a [u8],
    value: &'a [u8],
    create_revision: i64,
    mod_revision: i64,
    version: i64,
    lease: i64,
    time: &'a [u8],
}

impl<'a> Write<'a> {
    fn read(&mut self, cursor: &mut Cursor<'a>) -> Result<(), Halt> {
        cursor.object(|cursor, name| match name {
            b"etcdEvent" => self.event(cursor),
            b"time" => cursor.string().map(|time| self.time = time),
            _ => cursor.skip(DEPTH_MAX),
        })
    }

    fn event(&mut self, cursor: &mut Cursor<'a>) -> Result<(), Halt> {
        cursor.object(|cursor, name| match name {
            b"kv" => self.kv(cursor),
            b"type" => cursor.number().map(|kind| self.kind = kind),
            _ => cursor.skip(DEPTH_MAX),
        })
    }

    fn kv(&mut self, cursor: &mut Cursor<'a>) -> Result<(), Halt> {
        cursor.object(|cursor, name| {
            match name {
                b"key" => self.key = cursor.string()?,
                b"value" => self.value = cursor.string()?,
                b"create_revision" => self.create_revision = cursor.number()?,
                b"mod_revision" => self.mod_revision = cursor.number()?,
                b"version" => self.version = cursor.number()?,
                b"lease" => self.lease = cursor.number()?,
                _ => cursor.skip(DEPTH_MAX)?,
            }
            Ok(())
        })
    }
}

/// A place in JSON text.
struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    /// The next byte that is not white space.
    fn peek(&mut self) -> Option<u8> {
        while let Some(byte) = self.bytes.get(self.at) {
            if !matches!(byte, b' ' | b'\t' | b'\r' | b'\n') {
                return Some(*byte);
            }
            self.at = self.at.saturating_add(1);
        }
        None
    }

    fn token(&mut self) -> Option<u8> {
        let byte = self.peek()?;
        self.at = self.at.saturating_add(1);
        Some(byte)
    }

    fn expect(&mut self, wanted: u8, what: &'static str) -> Result<(), Halt> {
        match self.token() {
            Some(byte) if byte == wanted => Ok(()),
            Some(_) => Err(Halt::Bad(what)),
            None => Err(Halt::Short),
        }
    }

    fn object(&mut self, mut field: impl FnMut(&mut Self, &'a [u8]) -> Result<(), Halt>) -> Result<(), Halt> {
        self.expect(b'{', "no object where one belongs")?;
        if self.peek() == Some(b'}') {
            self.at = self.at.saturating_add(1);
            return Ok(());
        }
        loop {
            let name = self.string()?;
            self.expect(b':', "no colon behind a name")?;
            field(self, name)?;
            match self.token() {
                Some(b',') => {}
                Some(b'}') => return Ok(()),
                Some(_) => return Err(Halt::Bad("neither a comma nor the end of an object")),
                None => return Err(Halt::Short),
            }
        }
    }

    /// A string without escapes: base64, times and names have none. Go writes `null` for bytes that are none.
    fn string(&mut self) -> Result<&'a [u8], Halt> {
        if self.peek() == Some(b'n') {
            return self.word(b"null").map(|()| b"".as_slice());
        }
        self.expect(b'"', "no string where one belongs")?;
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let end = memchr2(b'"', b'\\', rest).ok_or(Halt::Short)?;
        if rest.get(end) == Some(&b'\\') {
            return Err(Halt::Bad("an escape where none belongs"));
        }
        self.at = self.at.saturating_add(end).saturating_add(1);
        Ok(rest.get(..end).unwrap_or_default())
    }

    fn number(&mut self) -> Result<i64, Halt> {
        self.peek().ok_or(Halt::Short)?;
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let (negative, mut digits) =
            rest.split_first().filter(|(sign, _)| **sign == b'-').map_or((false, rest), |(_, rest)| (true, rest));
        let mut value = 0i64;
        let mut count = 0usize;
        while let Some((byte, behind)) = digits.split_first().filter(|(byte, _)| byte.is_ascii_digit()) {
            let digit = i64::from(byte.wrapping_sub(b'0'));
            let signed = if negative { digit.wrapping_neg() } else { digit };
            let next = value.checked_mul(10).and_then(|value| value.checked_add(signed));
            value = next.ok_or(Halt::Bad("a number beyond 64 bits"))?;
            digits = behind;
            count = count.saturating_add(1);
        }
        match digits.first() {
            // The number may go on.
            None => Err(Halt::Short),
            Some(_) if count == 0 => Err(Halt::Bad("no number where one belongs")),
            Some(b'.' | b'e' | b'E') => Err(Halt::Bad("a fraction where a whole number belongs")),
            Some(_) => {
                self.at = self.bytes.len().saturating_sub(digits.len());
                Ok(value)
            }
        }
    }

    fn word(&mut self, word: &'static [u8]) -> Result<(), Halt> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        if rest.starts_with(word) {
            self.at = self.at.saturating_add(word.len());
            return Ok(());
        }
        if word.starts_with(rest) { Err(Halt::Short) } else { Err(Halt::Bad("an unknown word")) }
    }

    /// Steps over a value of any kind.
    fn skip(&mut self, depth: usize) -> Result<(), Halt> {
        let Some(below) = depth.checked_sub(1) else { return Err(Halt::Bad("objects nested too deep")) };
        match self.peek().ok_or(Halt::Short)? {
            b'"' => self.skip_string(),
            b'{' => self.object(|cursor, _| cursor.skip(below)),
            b'[' => self.skip_array(below),
            b't' => self.word(b"true"),
            b'f' => self.word(b"false"),
            b'n' => self.word(b"null"),
            _ => self.number().map(|_| ()),
        }
    }

    fn skip_array(&mut self, below: usize) -> Result<(), Halt> {
        self.expect(b'[', "no array where one belongs")?;
        if self.peek() == Some(b']') {
            self.at = self.at.saturating_add(1);
            return Ok(());
        }
        loop {
            self.skip(below)?;
            match self.token() {
                Some(b',') => {}
                Some(b']') => return Ok(()),
                Some(_) => return Err(Halt::Bad("neither a comma nor the end of an array")),
                None => return Err(Halt::Short),
            }
        }
    }

    fn skip_string(&mut self) -> Result<(), Halt> {
        self.expect(b'"', "no string where one belongs")?;
        loop {
            let rest = self.bytes.get(self.at..).unwrap_or_default();
            let end = memchr2(b'"', b'\\', rest).ok_or(Halt::Short)?;
            let escape = rest.get(end) == Some(&b'\\');
            self.at = self.at.saturating_add(end).saturating_add(if escape { 2 } else { 1 });
            if !escape {
                return Ok(());
            }
        }
    }
}
