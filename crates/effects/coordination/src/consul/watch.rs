//! A watch on Consul: blocking queries, and the difference between two looks.
//!
//! Consul keeps no history. It answers when something has changed, with all keys as they are now; what changed is found by
//! comparing with what was known. So of several writes of one key between two looks the last one is told, and a deletion is
//! told with the index of the look that missed the key.
//!
//! **Invariant:** the index only says when to look again. An index that goes back (tombstones were reaped, data was restored)
//! makes the next look immediate; nothing is ever concluded from it.

use std::collections::BTreeMap;
use std::time::Duration;

use quorate_faults::{Code, Result};
use quorate_kv::{Event, Listing, Position, Revision, Scope};
use tokio::time::{Instant, sleep};

use super::Consul;
use crate::errors::Attempt;
use crate::watch::Turn;

/// Consul waits for at most ten minutes; shorter waits notice a dead agent earlier.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// The pause after a failed look, or after one that came at once and showed nothing.
const PAUSE: Duration = Duration::from_millis(200);

/// A watch.
#[derive(Debug)]
pub(crate) struct ConsulWatch {
    consul: Consul,
    scope: Scope,
    /// What was there, and since when; nothing when that was not remembered.
    known: Option<BTreeMap<Vec<u8>, Revision>>,
    told: Revision,
    /// Wait for something newer than this; 0 for no wait.
    index: u64,
}

impl ConsulWatch {
    pub(super) fn new(consul: Consul, scope: Scope, position: Position) -> ConsulWatch {
        // The first look is immediate: an index that is remembered may be another Consul's, and then it would wait in vain.
        ConsulWatch { consul, scope, known: position.known, told: position.revision, index: 0 }
    }

    pub(crate) fn position(&self) -> Position {
        Position { revision: self.told, known: self.known.clone() }
    }

    pub(crate) async fn next(&mut self, limit: Duration) -> Result<Turn> {
        let end = Instant::now() + limit;
        loop {
            let Some(known) = &self.known else { return Ok(Turn::Compacted { oldest: None }) };
            let started = Instant::now();
            let wait = end.saturating_duration_since(started).min(WAIT_MAX);
            let after = (self.index > 0 && !wait.is_zero()).then_some((self.index, wait));
            let looked = match self.consul.look_after(Attempt::WATCH, &self.scope, after).await {
                Ok(looked) => looked,
                Err(fault) => {
                    self.index = 0;
                    if fault.code() != Code::CoordinationSilent || Instant::now() + PAUSE >= end {
                        return Err(fault);
                    }
                    sleep(PAUSE).await;
                    continue;
                }
            };
            let events = difference(known, &looked.listing, self.told);
            if events.iter().any(|event| matches!(event, Event::Delete { .. })) {
                // A token that lost its rights sees keys vanish. That is no deletion.
                self.consul.readable(Attempt::WATCH, &self.scope).await?;
            }
            self.index = if looked.index < self.index { 0 } else { looked.index };
            if let Some(last) = events.last() {
                self.told = last.revision();
                self.known = looked.listing.position().known;
                return Ok(Turn::Events(events));
            }
            if Instant::now() >= end {
                return Ok(Turn::Quiet);
            }
            if after.is_some() && started.elapsed() < PAUSE {
                sleep(PAUSE.min(end.saturating_duration_since(Instant::now()))).await;
            }
        }
    }
}

/// What happened between what was known and what is there, in the order of revisions.
fn difference(known: &BTreeMap<Vec<u8>, Revision>, now: &Listing, told: Revision) -> Vec<Event> {
    let changed = now.entries.iter().filter(|entry| known.get(&entry.key) != Some(&entry.revision));
    let mut events: Vec<Event> = changed.cloned().map(Event::Put).collect();
    events.sort_by_key(Event::revision);
    let here = |key: &Vec<u8>| now.entries.binary_search_by(|entry| entry.key.cmp(key)).is_ok();
    let newest = events.last().map_or(told, Event::revision).max(told).max(now.revision);
    let gone = known.keys().filter(|key| !here(key));
    events.extend(gone.map(|key| Event::Delete { key: key.clone(), revision: newest }));
    events
}

#[cfg(test)]
mod tests {
    use super::*;
    use quorate_kv::Entry;

    fn listing(revision: u64, keys: &[(&str, u64)]) -> Listing {
        let entry = |(key, at): &(&str, u64)| Entry {
            key: key.as_bytes().to_vec(),
            value: Vec::new(),
            created: Revision(1),
            revision: Revision(*at),
            lease: None,
        };
        Listing { revision: Revision(revision), entries: keys.iter().map(entry).collect() }
    }

    fn told(before: &Listing, now: &Listing) -> Vec<String> {
        let known = before.position().known.unwrap();
        let events = difference(&known, now, before.revision);
        let text = |event: &Event| {
            let kind = if matches!(event, Event::Put(_)) { "put" } else { "gone" };
            format!("{} {kind} {}", event.revision(), String::from_utf8_lossy(event.key()))
        };
        events.iter().map(text).collect()
    }

    #[test]
    fn a_difference_is_told_in_the_order_of_revisions_and_deletions_last() {
        let before = listing(9, &[("a", 3), ("b", 9), ("c", 5)]);
        let now = listing(14, &[("a", 13), ("b", 9), ("d", 11)]);
        assert_eq!(told(&before, &now), ["11 put d", "13 put a", "14 gone c"]);
        assert_eq!(told(&now, &now), Vec::<String>::new());
    }

    #[test]
    fn an_index_that_went_back_tells_only_what_is_really_different() {
        let before = listing(100, &[("a", 3)]);
        assert_eq!(told(&before, &listing(3, &[("a", 3)])), Vec::<String>::new());
        assert_eq!(told(&before, &listing(2, &[])), ["100 gone a"]);
        assert_eq!(told(&before, &listing(7, &[("a", 7)])), ["7 put a"]);
    }
}
