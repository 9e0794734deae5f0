//! A store in memory: keys, a bounded history, and leases that end when told how much time has passed.
//!
//! **Invariant:** every change has a revision of its own transaction, and a lease takes all its keys in one revision.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::words::{Change, Compare, Entry, Event, LeaseId, Listing, Outcome, Revision, Scope, Txn};

/// A lease that is not, or no longer, there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseUnknown;

/// History that is no longer kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gone {
    /// The oldest revision that is.
    pub oldest: Revision,
}

#[derive(Debug, Clone)]
struct Granted {
    ttl: Duration,
    ends: Duration,
}

/// The store.
#[derive(Debug, Clone)]
pub struct Model {
    revision: u64,
    now: Duration,
    entries: BTreeMap<Vec<u8>, Entry>,
    /// The newest events, oldest first.
    history: VecDeque<Event>,
    history_max: usize,
    /// Everything up to here may be missing from the history.
    forgotten: u64,
    leases: BTreeMap<u64, Granted>,
    leases_granted: u64,
}

impl Model {
    /// An empty store that keeps at most so many events of its history.
    pub fn new(history_max: usize) -> Model {
        Model {
            revision: 0,
            now: Duration::ZERO,
            entries: BTreeMap::new(),
            history: VecDeque::new(),
            history_max,
            forgotten: 0,
            leases: BTreeMap::new(),
            leases_granted: 0,
        }
    }

    /// The revision of the newest change.
    pub fn revision(&self) -> Revision {
        Revision(self.revision)
    }

    /// The keys that are meant, as they are now.
    pub fn list(&self, scope: &Scope) -> Listing {
        let from = self.entries.range(scope.bytes().to_vec()..);
        let meant = from.take_while(|(key, _)| scope.contains(key));
        Listing { revision: self.revision(), entries: meant.map(|(_, entry)| entry.clone()).collect() }
    }

    /// Runs a transaction.
    pub fn txn(&mut self, txn: &Txn) -> Result<Outcome, LeaseUnknown> {
        let holds = txn.when.iter().all(|compare| match compare {
            Compare::Absent(key) => !self.entries.contains_key(key),
            Compare::Unchanged(key, revision) => self.entries.get(key).is_some_and(|entry| entry.revision == *revision),
        });
        let free = txn.then.iter().all(|change| match change {
            Change::Hold(key, _, _) => !self.entries.contains_key(key),
            Change::Put(..) | Change::Delete(_) => true,
        });
        if !holds || !free {
            return Ok(Outcome::Conflict);
        }
        for change in &txn.then {
            if let Change::Hold(_, _, lease) = change
                && self.granted(lease).is_none()
            {
                return Err(LeaseUnknown);
            }
        }
        let next = Revision(self.revision + 1);
        let mut changed = false;
        for change in &txn.then {
            changed |= self.apply(change, next);
        }
        self.revision += u64::from(changed);
        self.trim();
        Ok(Outcome::Committed(Some(self.revision())))
    }

    fn apply(&mut self, change: &Change, next: Revision) -> bool {
        let (key, value, lease) = match change {
            Change::Delete(key) => return self.remove(key, next),
            Change::Put(key, value) => (key, value, self.entries.get(key).and_then(|entry| entry.lease.clone())),
            Change::Hold(key, value, lease) => (key, value, Some(lease.clone())),
        };
        let created = self.entries.get(key).map_or(next, |entry| entry.created);
        let entry = Entry { key: key.clone(), value: value.clone(), created, revision: next, lease };
        self.entries.insert(key.clone(), entry.clone());
        self.history.push_back(Event::Put(entry));
        true
    }

    fn remove(&mut self, key: &[u8], revision: Revision) -> bool {
        let was_there = self.entries.remove(key).is_some();
        if was_there {
            self.history.push_back(Event::Delete { key: key.to_vec(), revision });
        }
        was_there
    }

    /// The changes after a revision, oldest first.
    pub fn events_after(&self, scope: &Scope, after: Revision) -> Result<Vec<Event>, Gone> {
        if after.0 < self.forgotten {
            return Err(Gone { oldest: Revision(self.forgotten + 1) });
        }
        let later = self.history.iter().filter(|event| event.revision() > after && scope.contains(event.key()));
        Ok(later.cloned().collect())
    }

    /// Forgets the history up to a revision.
    pub fn compact(&mut self, upto: Revision) {
        self.forgotten = self.forgotten.max(upto.0.min(self.revision));
        while self.history.front().is_some_and(|event| event.revision().0 <= self.forgotten) {
            self.history.pop_front();
        }
    }

    /// Keeps the history within its limit, by whole revisions.
    fn trim(&mut self) {
        while self.history.len() > self.history_max {
            let oldest = self.history.front().map_or(self.revision, |event| event.revision().0);
            self.compact(Revision(oldest));
        }
    }

    /// Grants a lease.
    pub fn grant(&mut self, ttl: Duration) -> LeaseId {
        self.leases_granted += 1;
        self.leases.insert(self.leases_granted, Granted { ttl, ends: self.now + ttl });
        LeaseId(self.leases_granted.to_string())
    }

    /// Lets a lease live for its whole time again, which is returned.
    pub fn renew(&mut self, lease: &LeaseId) -> Result<Duration, LeaseUnknown> {
        let now = self.now;
        let granted = number(lease).and_then(|id| self.leases.get_mut(&id)).ok_or(LeaseUnknown)?;
        granted.ends = now + granted.ttl;
        Ok(granted.ttl)
    }

    /// Ends a lease, and deletes the keys that it holds.
    pub fn end(&mut self, lease: &LeaseId) -> Result<(), LeaseUnknown> {
        number(lease).and_then(|id| self.leases.remove(&id)).ok_or(LeaseUnknown)?;
        let held = self.entries.values().filter(|entry| entry.lease.as_ref() == Some(lease));
        let held: Vec<Vec<u8>> = held.map(|entry| entry.key.clone()).collect();
        let next = Revision(self.revision + 1);
        for key in &held {
            self.remove(key, next);
        }
        self.revision += u64::from(!held.is_empty());
        self.trim();
        Ok(())
    }

    /// Lets time pass, and ends the leases whose time is over, the one that ended first going first.
    pub fn pass(&mut self, time: Duration) {
        self.now += time;
        let mut over: Vec<(Duration, u64)> = self
            .leases
            .iter()
            .filter(|(_, lease)| lease.ends <= self.now)
            .map(|(id, lease)| (lease.ends, *id))
            .collect();
        over.sort_unstable();
        for (_, id) in over {
            // It was there a moment ago, and nobody else can have ended it.
            let _ = self.end(&LeaseId(id.to_string()));
        }
    }

    fn granted(&self, lease: &LeaseId) -> Option<&Granted> {
        self.leases.get(&number(lease)?)
    }
}

fn number(lease: &LeaseId) -> Option<u64> {
    lease.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(model: &mut Model, key: &str, value: &str) -> Revision {
        let then = vec![Change::Put(key.into(), value.into())];
        match model.txn(&Txn { when: Vec::new(), then }) {
            Ok(Outcome::Committed(Some(revision))) => revision,
            other => panic!("{other:?}"),
        }
    }

    fn told(model: &Model, after: u64) -> Result<Vec<String>, Gone> {
        let events = model.events_after(&Scope::prefix(""), Revision(after))?;
        let text = |event: &Event| match event {
            Event::Put(entry) => format!(
                "{} {}={}",
                entry.revision,
                String::from_utf8_lossy(&entry.key),
                String::from_utf8_lossy(&entry.value)
            ),
            Event::Delete { key, revision } => format!("{revision} {} gone", String::from_utf8_lossy(key)),
        };
        Ok(events.iter().map(text).collect())
    }

    #[test]
    fn a_transaction_is_one_revision_or_nothing() {
        let mut model = Model::new(100);
        let first = put(&mut model, "a", "1");
        let txn = Txn {
            when: vec![Compare::Unchanged("a".into(), first), Compare::Absent("b".into())],
            then: vec![Change::Put("b".into(), "2".into()), Change::Delete("a".into())],
        };
        assert_eq!(model.txn(&txn), Ok(Outcome::Committed(Some(Revision(2)))));
        assert_eq!(model.txn(&txn), Ok(Outcome::Conflict));
        assert_eq!(told(&model, 0).unwrap(), ["1 a=1", "2 b=2", "2 a gone"]);
    }

    #[test]
    fn a_lease_takes_its_keys_when_its_time_has_passed_and_not_before() {
        let mut model = Model::new(100);
        let lease = model.grant(Duration::from_secs(10));
        let hold = |key: &str| Change::Hold(key.into(), "x".into(), lease.clone());
        model.txn(&Txn { when: Vec::new(), then: vec![hold("l/1"), hold("l/2")] }).unwrap();
        put(&mut model, "l/1", "y");
        model.pass(Duration::from_secs(9));
        assert_eq!(model.renew(&lease), Ok(Duration::from_secs(10)));
        model.pass(Duration::from_secs(9));
        assert_eq!(model.list(&Scope::prefix("l/")).entries.len(), 2);
        model.pass(Duration::from_secs(1));
        assert_eq!(told(&model, 2).unwrap(), ["3 l/1 gone", "3 l/2 gone"]);
        assert_eq!(model.renew(&lease), Err(LeaseUnknown));
        assert_eq!(model.txn(&Txn { when: Vec::new(), then: vec![hold("l/3")] }), Err(LeaseUnknown));
    }

    #[test]
    fn history_is_bounded_and_what_is_gone_is_said() {
        let mut model = Model::new(3);
        for value in ["1", "2", "3", "4", "5"] {
            put(&mut model, "k", value);
        }
        assert_eq!(told(&model, 2).unwrap(), ["3 k=3", "4 k=4", "5 k=5"]);
        assert_eq!(told(&model, 1), Err(Gone { oldest: Revision(3) }));
        model.compact(Revision(4));
        assert_eq!(told(&model, 3), Err(Gone { oldest: Revision(5) }));
        assert_eq!(told(&model, 4).unwrap(), ["5 k=5"]);
    }
}
