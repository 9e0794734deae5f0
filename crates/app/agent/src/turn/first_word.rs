//! The first word of a newcomer, and whether it was lost.
//!
//! A member serves nobody before it has seen its own name come back through the log. A newcomer says it as soon as it hears a
//! leader, and is then given a snapshot where the log of the others does not begin at its beginning. Usually the leader has
//! written the name down by then, so it lies in the snapshot and never comes through the log: etcd waits for it in vain, and says
//! it again only after seven seconds. Started again on what it was given, it says it at once.
//!
//! **Rule:** only a member that joins, once in a join, and only while the seconds saved are more than those that reading the
//! snapshot again may cost. etcd can be ended at any point of it, and goes on with what is on disk.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use quorate_etcd::datadir::FileSource;
use quorate_etcd_formats::membership::MemberId;
use quorate_etcd_formats::snap::{SnapFile, SnapName};
use quorate_etcd_formats::v2store::V2Store;
use quorate_plan::ledger::{LedgerSeen, State};

use super::node::Node;

/// Why etcd is started again.
pub(super) const WHY: &str = "it took a snapshot, and its first word will not come back to it";
/// Between two looks for a snapshot: one that is small is there within milliseconds of etcd's start.
const LOOK: Duration = Duration::from_millis(10);
/// How long etcd may be silent after it was given a small snapshot that lacks its name: usually it answers within milliseconds.
const SILENCE: Duration = Duration::from_millis(150);
/// How fast a snapshot is read into memory at least.
const BYTES_PER_MS: u64 = 100 << 10;
/// Beyond that its own second word comes soon enough.
const WORTH: Duration = Duration::from_secs(3);

/// Waits for it.
pub(super) struct FirstWord {
    folder: PathBuf,
    /// Who joins, as the ledger has it.
    member: Option<MemberId>,
    /// A newcomer that has been given nothing yet.
    waits: bool,
    given: Option<Given>,
}

/// A snapshot in its place.
struct Given {
    at: Instant,
    bytes: u64,
    /// The newcomer's name lies in it, so it comes through no log any more.
    has_name: bool,
}

impl FirstWord {
    pub(super) fn new(node: &Node, ledger: &LedgerSeen) -> FirstWord {
        let member = match ledger {
            LedgerSeen::There(ledger) => match &ledger.state {
                State::PendingAdd(add) => Some(add.member),
                _ => None,
            },
            LedgerSeen::Absent | LedgerSeen::Unreadable(_) => None,
        };
        let folder = node.target.data_dir().join("member/snap");
        let mut word = FirstWord { folder, member: member.flatten(), waits: false, given: None };
        word.waits = member.is_some() && word.look().is_none();
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

    /// Returns when it is lost; waits for ever where it is not.
    pub(super) async fn lost(&mut self) {
        while !self.is_lost() {
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Asked while etcd does not answer. Says so once.
    pub(super) fn is_lost(&mut self) -> bool {
        if !self.waits {
            return false;
        }
        if self.given.is_none() {
            self.given = self.look();
        }
        let Some(given) = &self.given else { return false };
        let patience = SILENCE + Duration::from_millis(given.bytes / BYTES_PER_MS);
        self.waits = patience < WORTH;
        let lost = self.waits && (given.has_name || given.at.elapsed() >= patience);
        self.waits &= !lost;
        lost
    }

    /// The snapshot, once etcd has put its database in its place.
    fn look(&self) -> Option<Given> {
        let entries = std::fs::read_dir(&self.folder).ok()?.flatten();
        let names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        // What is still being received or moved has another name.
        if names.iter().any(|name| name.ends_with(".snap.db")) {
            return None;
        }
        let newest = names.iter().filter_map(|name| Some((SnapName::parse(name)?.index, name))).max()?.1;
        let bytes = std::fs::metadata(self.folder.join("db")).ok()?.len();
        Some(Given { at: Instant::now(), bytes, has_name: self.is_named_in(newest).unwrap_or(false) })
    }

    /// Whether a snapshot knows the newcomer by its name: only its own word brings that.
    fn is_named_in(&self, snapshot: &str) -> Option<bool> {
        let me = self.member?;
        let file = SnapFile::read(&FileSource::open(&self.folder.join(snapshot)).ok()?).ok()?;
        let store = V2Store::read(file.store_json()).ok()?;
        Some(store.members.iter().any(|member| member.id == me && !member.name.is_empty()))
    }
}

#[cfg(test)]
mod tests {
    use quorate_etcd_formats::membership::Member;
    use quorate_etcd_formats::messages::RaftSnapshot;
    use quorate_etcd_formats::{snap, v2store};

    use super::*;

    const ME: MemberId = MemberId(0xa);
    const SNAP: &str = "0000000000000002-000000000000000a.snap";

    fn word(folder: &std::path::Path) -> FirstWord {
        FirstWord { folder: folder.to_owned(), member: Some(ME), waits: true, given: None }
    }

    fn put(folder: &std::path::Path, name: &str, bytes: u64) {
        std::fs::File::create(folder.join(name)).unwrap().set_len(bytes).unwrap();
    }

    /// A snapshot with this newcomer and another one, whose names are these.
    fn put_snapshot(folder: &std::path::Path, names: [Option<&str>; 2]) {
        let member = |id| Member {
            id,
            peer_urls: vec!["http://10.0.0.1:2380".to_owned()],
            is_learner: true,
            name: String::new(),
            client_urls: Vec::new(),
        };
        let ids = [ME, MemberId(0xb)];
        let mut store = String::from_utf8(v2store::encode(&ids.map(member))).unwrap();
        for (id, name) in ids.iter().zip(names) {
            let Some(name) = name else { continue };
            let before = format!("\"{id}\":{{");
            let at = store.find(&before).unwrap() + before.len();
            let at = at + store[at..].find("\"raftAttributes\":").unwrap();
            let value = format!("{{\\\"name\\\":\\\"{name}\\\"}}");
            store.insert_str(at, &format!("\"attributes\":{{\"Value\":\"{value}\"}},"));
        }
        let bytes = snap::encode(&RaftSnapshot { data: Some(store.into_bytes()), metadata: None });
        std::io::Write::write_all(&mut std::fs::File::create(folder.join(SNAP)).unwrap(), &bytes).unwrap();
    }

    fn given_long_ago(word: &mut FirstWord) {
        word.given.as_mut().unwrap().at = Instant::now().checked_sub(WORTH * 4).unwrap();
    }

    #[test]
    fn it_is_lost_once_and_only_by_a_newcomer_that_was_given_a_small_snapshot() {
        let dir = tempfile::tempdir().unwrap();
        let mut newcomer = word(dir.path());
        put(dir.path(), "db", 1 << 20);
        assert!(!newcomer.is_lost() && newcomer.waits(), "it was given nothing yet");
        put(dir.path(), "000000000000000a.snap.db", 1 << 20);
        put_snapshot(dir.path(), [None, Some("n3")]);
        assert!(!newcomer.is_lost() && newcomer.given.is_none(), "it is still being moved into its place");
        quorate_testkit::run(std::process::Command::new("rm").arg(dir.path().join("000000000000000a.snap.db")));
        assert!(!newcomer.is_lost() && newcomer.given.is_some(), "its name may come by the log: etcd has its time");
        given_long_ago(&mut newcomer);
        assert!(newcomer.is_lost());
        assert!(!newcomer.is_lost() && !newcomer.waits(), "once");
        let mut member = word(dir.path());
        assert!(!member.is_lost());
        given_long_ago(&mut member);
        member.heard();
        assert!(!member.is_lost(), "who once served is another matter");
        put(dir.path(), "db", 1 << 30);
        let mut large = word(dir.path());
        assert!(!large.is_lost() && !large.waits(), "to read it again would cost more");
    }

    #[test]
    fn a_name_that_lies_in_the_snapshot_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        put(dir.path(), "db", 1 << 20);
        put_snapshot(dir.path(), [Some("n2"), None]);
        let mut newcomer = word(dir.path());
        assert!(newcomer.is_lost() && !newcomer.waits(), "at once, and once");
        put(dir.path(), SNAP, 100);
        let mut torn = word(dir.path());
        assert!(!torn.is_lost() && torn.waits(), "what cannot be read says nothing");
    }
}
