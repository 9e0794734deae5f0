//! Object names: `v2/Full-00000000-00000033-1794773646.gz`, `v2/Incr-00000034-00000066-1794773650.gz`.

/// How an object is compressed, as its name says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// Not at all.
    None,
    /// `.gz`
    Gzip,
    /// `.zlib`
    Zlib,
    /// `.Z`: Go's LZW, least significant bit first, literals of 8 bits.
    Lzw,
    /// `.zst`
    Zstd,
}

/// What a name says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Name {
    /// The object's path, without the part number of a chunk.
    pub object: String,
    /// Whether it is a full backup.
    pub full: bool,
    /// First revision of a delta; 0 for a full.
    pub first: u64,
    /// Last revision.
    pub last: u64,
    /// When it was made, in seconds since 1970.
    pub created_s: i64,
    /// How it is compressed.
    pub compression: Compression,
    /// Whether the cluster was meant to end with it.
    pub is_final: bool,
    /// Number of the part, if this is one part of an object.
    pub chunk: Option<u64>,
}

impl Name {
    /// Reads a path inside a store. `None`: it is none of this layout's names.
    pub fn parse(path: &str) -> Option<Name> {
        let parts: Vec<&str> = path.split('/').collect();
        let version = parts.iter().rposition(|part| matches!(*part, "v1" | "v2"))?;
        // v1 has a folder per full backup.
        let skip = if parts.get(version) == Some(&"v1") { 2usize } else { 1 };
        let at = version.checked_add(skip)?;
        let name = parts.get(at)?;
        let rest = parts.get(at.checked_add(1)?..)?;
        let chunk = match rest {
            [] => None,
            [number] => Some(digits(number)?),
            _ => return None,
        };
        let object = parts.get(..=at)?.join("/");
        let tokens: Vec<&str> = name.split('-').collect();
        let [kind, first, last, tail] = tokens.as_slice() else { return None };
        let full = match *kind {
            "Full" => true,
            "Incr" => false,
            _ => return None,
        };
        let (first, last) = (digits(first)?, digits(last)?);
        let (tail, is_final) = tail.strip_suffix(".final").map_or((*tail, false), |tail| (tail, true));
        let (created, compression) = match tail.split_once('.') {
            None => (tail, Compression::None),
            Some((created, "gz")) => (created, Compression::Gzip),
            Some((created, "zlib")) => (created, Compression::Zlib),
            Some((created, "Z")) => (created, Compression::Lzw),
            Some(_) => return None,
        };
        let created_s = i64::try_from(digits(created)?).ok()?;
        (first <= last).then_some(Name { object, full, first, last, created_s, compression, is_final, chunk })
    }
}

/// Decimal digits and nothing else.
pub(in crate::delta) fn digits(text: &str) -> Option<u64> {
    (!text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())).then(|| text.parse().ok()).flatten()
}
