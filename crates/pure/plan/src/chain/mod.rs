//! Which objects of a backup store form the chain that leads to a revision, and why the others do not.
//!
//! Names and manifests are claims. A decision is made on claims, carried out, and made again with what reading proved:
//! an object that turns out to be damaged, shorter or newer than it says changes the decision, never the data.
//!
//! **Invariant:** a chain covers every revision from its full backup to its end, and believes one writer at a time.

mod decide;
#[cfg(test)]
mod tests;

pub use decide::decide;
pub(crate) use decide::{chains, unusable};

use serde::Serialize;

/// What an object is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A snapshot of the whole database.
    Full,
    /// A stretch of history.
    Delta,
}

/// Whose names and forms an object has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Layout {
    /// etcd-backup-restore's.
    Gardener,
    /// Ours.
    Quorate,
}

/// How far an object is believed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Its name or manifest says what it holds.
    Claimed,
    /// It was read: `first` and `last` are what it holds.
    Proven,
    /// It was read and cannot be used, because.
    Bad(String),
}

/// One object of a store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Object {
    /// Its path in the store.
    pub name: String,
    /// What it is.
    pub kind: Kind,
    /// Its form.
    pub layout: Layout,
    /// First revision; of a full, the same as `last`.
    pub first: u64,
    /// Last revision.
    pub last: u64,
    /// When it was made, in milliseconds since 1970.
    pub created_ms: i64,
    /// Bytes in the store.
    pub bytes: u64,
    /// The writer's epoch; 0 where there are none.
    pub epoch: u64,
    /// The cluster that it is from; 0 if unknown.
    pub cluster_id: u64,
    /// How far it is believed.
    pub state: State,
}

/// A writer took over: from `begins_at` on, older epochs are not believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct EpochStart {
    /// Its number.
    pub epoch: u64,
    /// The first revision that is its own.
    pub begins_at: u64,
}

/// The state that is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// The newest that can be proven.
    Newest,
    /// After this revision.
    Revision(u64),
    /// After the last write that was recorded at or before this time, in milliseconds since 1970.
    Time(i64),
}

/// What a decision makes of one object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Use {
    /// The chain begins with it.
    Base,
    /// The chain replays these revisions of it.
    Replayed {
        /// First one.
        from: u64,
        /// Last one.
        to: u64,
    },
    /// It is not needed, because.
    NotNeeded(String),
    /// It would be needed and cannot be used, because.
    Unusable(String),
}

/// One full backup and the deltas behind it, as indexes into the objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain {
    /// The full.
    pub base: usize,
    /// The deltas in order, each with the last revision that is taken from it.
    pub deltas: Vec<(usize, u64)>,
    /// The revision that it leads to.
    pub reach: u64,
}

/// First and last revision that can be restored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Span {
    /// First one.
    pub from: u64,
    /// Last one.
    pub to: u64,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// The chain; `None` if the target cannot be reached.
    pub chain: Option<Chain>,
    /// What became of each object, in their order.
    pub uses: Vec<Use>,
    /// What can be restored at all, ascending.
    pub recoverable: Vec<Span>,
    /// The newest revision that any object mentions.
    pub newest_claimed: u64,
    /// Why the chain ends before the newest revision that is mentioned, or why there is none.
    pub short: Option<String>,
}

impl Decision {
    /// The newest revision that can be restored.
    pub fn newest_provable(&self) -> Option<u64> {
        self.recoverable.last().map(|span| span.to)
    }
}
