//! Names that sort by revision and say enough to read a store from its listing alone.

use crate::delta::gardener::digits;

/// The folder that everything of this layout is in; a later version of the layout has another.
pub const ROOT: &str = "quorate-v1";

/// What a name says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Name {
    /// First revision of a delta; `None` for a full.
    pub first: Option<u64>,
    /// Last revision.
    pub last: u64,
    /// The writer's epoch.
    pub epoch: u64,
    /// When it was made, in milliseconds since 1970.
    pub created_ms: i64,
}

impl Name {
    /// The object's path.
    pub fn object(&self) -> String {
        format!("{}.zst", self.stem())
    }

    /// The path of the manifest beside it.
    pub fn manifest(&self) -> String {
        format!("{}.json", self.stem())
    }

    fn stem(&self) -> String {
        let Name { last, epoch, created_ms, .. } = self;
        match self.first {
            None => format!("{ROOT}/full/{last:020}-e{epoch:08}-{created_ms:014}"),
            Some(first) => format!("{ROOT}/delta/{first:020}-{last:020}-e{epoch:08}-{created_ms:014}"),
        }
    }

    /// Reads an object's path inside a store. `None`: it is none of this layout's objects (manifests are not).
    pub fn parse(path: &str) -> Option<Name> {
        let stem = path.strip_suffix(".zst")?;
        let mut parts = stem.rsplit('/');
        let (name, folder, root) = (parts.next()?, parts.next()?, parts.next()?);
        let tokens: Vec<&str> = name.split('-').collect();
        let (first, last, epoch, created) = match (folder, tokens.as_slice()) {
            ("full", [last, epoch, created]) => (None, last, epoch, created),
            ("delta", [first, last, epoch, created]) => (Some(digits(first)?), last, epoch, created),
            _ => return None,
        };
        let name = Name {
            first,
            last: digits(last)?,
            epoch: digits(epoch.strip_prefix('e')?)?,
            created_ms: i64::try_from(digits(created)?).ok()?,
        };
        (root == ROOT && first.is_none_or(|first| first <= name.last)).then_some(name)
    }
}

/// The path of the object that opens an epoch.
pub fn epoch_name(epoch: u64) -> String {
    format!("{ROOT}/epoch/{epoch:08}.json")
}
