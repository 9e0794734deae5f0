//! What really happened: every write of the cluster, told by a watch of our own that misses none.
//!
//! **Invariant:** the history up to `seen` is whole. Nothing that was not seen is ever compacted, because whoever compacts
//! asks here first.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use quorate_etcd::client::messages::Event;
use quorate_etcd::client::{Client, WatchFrom, WatchTurn};

use crate::backup_support::OneWrite;

/// The state of the keys at a revision: the newest write of each.
pub(crate) type State = BTreeMap<Vec<u8>, OneWrite>;

/// The history so far.
#[derive(Default)]
pub(crate) struct Truth {
    writes: Mutex<Vec<OneWrite>>,
    seen: AtomicU64,
    ended: AtomicBool,
    wrong: Mutex<Option<String>>,
}

impl Truth {
    /// The newest revision that was seen whole.
    pub(crate) fn seen(&self) -> u64 {
        self.seen.load(Ordering::SeqCst)
    }

    /// No more is wanted.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::SeqCst);
    }

    /// The whole history, in order.
    pub(crate) fn writes(&self) -> Vec<OneWrite> {
        if let Some(wrong) = self.wrong.lock().unwrap().as_ref() {
            panic!("the truth itself cannot be told: {wrong}");
        }
        let seen = self.seen();
        self.writes.lock().unwrap().iter().filter(|write| write.at.0 <= seen).cloned().collect()
    }

    /// Watches until the end, at whichever member answers.
    pub(crate) async fn watch(self: Arc<Truth>, client: Client) {
        let members: Vec<Client> = client.each().collect();
        let mut turn = 0;
        while !self.ended.load(Ordering::SeqCst) {
            self.writes.lock().unwrap().retain(|write| write.at.0 <= self.seen());
            if let Err(wrong) = self.watch_one(&members[turn % members.len()]).await {
                *self.wrong.lock().unwrap() = Some(wrong);
                return;
            }
            turn += 1;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// One watch on one member, until it ends or falls silent; an error is the end of all certainty.
    async fn watch_one(&self, member: &Client) -> Result<(), String> {
        let from = self.seen() + 1;
        let Ok(mut watch) = member.watch(WatchFrom { revision: from as i64, progress: false }).await else {
            return Ok(());
        };
        while !self.ended.load(Ordering::SeqCst) {
            // A member that lost the others stays silent; another one may know more.
            let Ok(turn) = tokio::time::timeout(Duration::from_millis(700), watch.next()).await else { return Ok(()) };
            match turn {
                Ok(WatchTurn::Events { events, more, .. }) => self.take(&events, more)?,
                Ok(WatchTurn::Progress { .. }) => {}
                Ok(WatchTurn::Compacted { oldest }) => return Err(format!("{from} was compacted, {oldest} is left")),
                Err(_) => return Ok(()),
            }
        }
        Ok(())
    }

    fn take(&self, events: &[Event], more: bool) -> Result<(), String> {
        let mut writes = self.writes.lock().unwrap();
        for event in events {
            let kv = event.kv.as_ref().ok_or("an event without a key")?;
            let revision = kv.mod_revision as u64;
            let last = writes.last().map_or((1, 0), |write| write.at);
            let at = match revision {
                same if same == last.0 => (same, last.1 + 1),
                next if next == last.0 + 1 => (next, 0),
                other => return Err(format!("revision {other} came after {last:?}")),
            };
            let tombstone = event.is_delete();
            let kept = |number: i64| if tombstone { 0 } else { number };
            writes.push(OneWrite {
                at,
                tombstone,
                key: kv.key.to_vec(),
                value: kv.value.to_vec(),
                create_revision: kept(kv.create_revision),
                version: kept(kv.version),
                lease: kept(kv.lease),
            });
        }
        let last = writes.last().map_or(0, |write| write.at.0);
        // etcd tells a transaction whole; only the pieces of one answer divide it.
        let whole = if more { last.saturating_sub(1) } else { last };
        self.seen.fetch_max(whole, Ordering::SeqCst);
        Ok(())
    }
}

/// The keys as they were after a revision.
pub(crate) fn state_at(writes: &[OneWrite], revision: u64) -> State {
    let mut state = State::new();
    for write in writes.iter().take_while(|write| write.at.0 <= revision) {
        match write.tombstone {
            true => state.remove(&write.key),
            false => state.insert(write.key.clone(), write.clone()),
        };
    }
    state
}
