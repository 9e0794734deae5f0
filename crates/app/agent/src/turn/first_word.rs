//! The first word of a newcomer, and whether it was lost.
//!
//! A member serves nobody before the cluster has heard its name. A newcomer says it at once, and is then given a snapshot where
//! the log of the others does not begin at its beginning; taking it, etcd drops its connections and the word with them, and says
//! it again only after seven seconds. Started again on what it was given, it says it at once.
//!
//! **Rule:** only a member that joins, once in a join, and only while the seconds saved are more than those that reading the
//! snapshot again may cost. etcd can be ended at any point of it, and goes on with what is on disk.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use quorate_plan::ledger::{LedgerSeen, State};

use super::node::Node;

/// Why etcd is started again.
pub(super) const WHY: &str = "it took a snapshot, and its first word was lost meanwhile";
/// How long etcd may be silent after it was given a small snapshot: usually it answers within milliseconds.
const SILENCE: Duration = Duration::from_millis(150);
/// How fast a snapshot is read into memory at least.
const BYTES_PER_MS: u64 = 100 << 10;
/// Beyond that its own second word comes soon enough.
const WORTH: Duration = Duration::from_secs(3);

/// Waits for it.
pub(super) struct FirstWord {
    folder: PathBuf,
    /// A newcomer that has been given nothing yet.
    waits: bool,
    given: Option<Instant>,
}

impl FirstWord {
    pub(super) fn new(node: &Node, ledger: &LedgerSeen) -> FirstWord {
        let joins = matches!(ledger, LedgerSeen::There(ledger) if matches!(ledger.state, State::PendingAdd(_)));
        let mut word = FirstWord { folder: node.target.data_dir().join("member/snap"), waits: false, given: None };
        word.waits = joins && word.snapshot_bytes().is_none();
        word
    }

    /// Whether it may still come to be lost.
    pub(super) fn waits(&self) -> bool {
        self.waits
    }

    /// It was heard: this member serves.
    pub(super) fn heard(&mut self) {
        self.waits = false;
    }

    /// Asked while etcd does not answer. Says so once.
    pub(super) fn is_lost(&mut self) -> bool {
        let Some(bytes) = self.snapshot_bytes().filter(|_| self.waits) else { return false };
        let given = *self.given.get_or_insert_with(Instant::now);
        let patience = SILENCE + Duration::from_millis(bytes / BYTES_PER_MS);
        self.waits = patience < WORTH;
        let lost = self.waits && given.elapsed() >= patience;
        self.waits &= !lost;
        lost
    }

    /// The size of the database that came with a snapshot, once etcd has put it in its place.
    fn snapshot_bytes(&self) -> Option<u64> {
        let entries = std::fs::read_dir(&self.folder).ok()?.flatten();
        let names: Vec<_> = entries.map(|entry| entry.file_name()).collect();
        let ends = |end: &str| names.iter().any(|name| name.to_string_lossy().ends_with(end));
        // What is still being received or moved has another name.
        if !ends(".snap") || ends(".snap.db") {
            return None;
        }
        std::fs::metadata(self.folder.join("db")).ok().map(|db| db.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(folder: &std::path::Path, waits: bool) -> FirstWord {
        FirstWord { folder: folder.to_owned(), waits, given: None }
    }

    fn put(folder: &std::path::Path, name: &str, bytes: u64) {
        std::fs::File::create(folder.join(name)).unwrap().set_len(bytes).unwrap();
    }

    #[test]
    fn it_is_lost_once_and_only_by_a_newcomer_that_was_given_a_small_snapshot() {
        let dir = tempfile::tempdir().unwrap();
        let mut newcomer = word(dir.path(), true);
        put(dir.path(), "db", 1 << 20);
        assert!(!newcomer.is_lost() && newcomer.waits(), "it was given nothing yet");
        put(dir.path(), "000000000000000a.snap.db", 1 << 20);
        put(dir.path(), "0000000000000002-000000000000000a.snap", 1 << 10);
        assert!(!newcomer.is_lost() && newcomer.given.is_none(), "it is still being moved into its place");
        quorate_testkit::run(std::process::Command::new("rm").arg(dir.path().join("000000000000000a.snap.db")));
        assert!(!newcomer.is_lost() && newcomer.given.is_some(), "etcd has its time");
        newcomer.given = Instant::now().checked_sub(SILENCE * 2);
        assert!(newcomer.is_lost());
        assert!(!newcomer.is_lost() && !newcomer.waits(), "once");
        let mut member = word(dir.path(), true);
        member.given = Instant::now().checked_sub(SILENCE * 2);
        member.heard();
        assert!(!member.is_lost(), "who once served is another matter");
        put(dir.path(), "db", 1 << 30);
        let mut large = word(dir.path(), true);
        large.given = Instant::now().checked_sub(WORTH * 4);
        assert!(!large.is_lost() && !large.waits(), "to read it again would cost more");
    }
}
