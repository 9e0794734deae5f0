//! How far members were seen: what tells that a disk was put back to an older copy, after every agent has been restarted.
//!
//! **Invariant:** what is recorded was committed and on the member's disk when it was recorded; it only grows for one member id.

use quorate_etcd_formats::membership::MemberId;
use serde::{Deserialize, Serialize};

use super::Ledger;

/// How far a member was seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Progress {
    /// The member.
    pub member: MemberId,
    /// The highest index that it had committed.
    pub index: u64,
    /// The term at that time.
    #[serde(default)]
    pub term: u64,
    /// The revision at that time.
    #[serde(default)]
    pub revision: u64,
    /// Its newest start that this node knows of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<StartMark>,
    /// It was started on data that ended before what it had committed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rolled_back: Option<RolledBack>,
}

/// A start of etcd: counted, and told apart from another one with the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StartMark {
    /// Grows by one with each start.
    pub number: u64,
    /// A random number.
    pub nonce: u64,
    /// The random number of the first start that the ledger counted: those of another ledger cannot be compared.
    pub series: u64,
    /// Where the log ended when it started, where known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<u64>,
}

/// Why the data of a member is known to be an older copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RolledBack {
    /// The member.
    pub member: MemberId,
    /// How far it was seen before.
    pub seen: u64,
    /// Where its log ended when that was found out.
    pub last: u64,
    /// Both are revisions: the store of backups has more of this cluster than the data of its only member leads to.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub by_store: bool,
}

impl StartMark {
    /// Whether a ledger whose newest start is `own` is older than one that knows of this start.
    pub fn is_unknown_to(&self, own: &StartMark) -> bool {
        let newer = self.number > own.number || (self.number == own.number && self.nonce != own.nonce);
        self.series == own.series && newer
    }
}

impl Ledger {
    /// The highest revision that this node has recorded anywhere: of any member, of a recovery, of backups. What is restored ends above it.
    pub fn highest_revision(&self) -> u64 {
        let members = self.progress.iter().map(|progress| progress.revision).max();
        let recovered = self.recovered.map(|recovered| recovered.revision);
        let stored = self.backup.as_ref().map(|backup| backup.revision);
        members.max(recovered).max(stored).unwrap_or(0)
    }

    /// How far a member was seen.
    pub fn progress_of(&self, member: MemberId) -> Option<&Progress> {
        self.progress.iter().find(|known| known.member == member)
    }

    /// The evidence that the data of this node's own member was put back.
    pub fn own_rollback(&self) -> Option<RolledBack> {
        let own = self.ids().map(|(_, member)| member);
        self.rolled_back.filter(|it| Some(it.member) == own)
    }

    /// The same with what was seen of the listed members; whoever is not listed is forgotten.
    #[must_use]
    pub fn with_progress(&self, listed: &[MemberId], seen: &[Progress]) -> Ledger {
        let mut next = self.clone();
        next.progress.retain(|known| listed.contains(&known.member));
        for seen in seen.iter().filter(|seen| listed.contains(&seen.member)) {
            match next.progress.iter_mut().find(|known| known.member == seen.member) {
                Some(known) => *known = known.with(seen),
                None => next.progress.push(*seen),
            }
        }
        next.progress.sort_by_key(|known| known.member);
        next
    }

    /// The mark of the next start on this node.
    pub fn next_start(&self, nonce: u64, from: Option<u64>) -> StartMark {
        match self.last_start {
            Some(last) => StartMark { number: last.number.saturating_add(1), nonce, series: last.series, from },
            // The first one, or the ledger was lost and its member taken over.
            None => StartMark { number: 1, nonce, series: nonce, from },
        }
    }
}

impl Progress {
    /// What is known after another look. What was observed of the index counts only for a start that was known before: otherwise
    /// it may be of either one.
    fn with(&self, seen: &Progress) -> Progress {
        let newer = |known: &StartMark, told: &StartMark| known.series != told.series || told.is_unknown_to(known);
        let restarted = self.start.zip(seen.start).is_some_and(|(known, told)| newer(&known, &told));
        let from = seen.start.filter(|_| restarted).and_then(|start| start.from);
        let put_back = from.filter(|from| *from < self.index);
        let found = put_back.map(|last| RolledBack { member: self.member, seen: self.index, last, by_store: false });
        let further = if seen.index >= self.index && !restarted { seen } else { self };
        let start = if restarted { seen.start } else { self.start.or(seen.start) };
        Progress { start, rolled_back: self.rolled_back.or(found), ..*further }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMBER: MemberId = MemberId(7);

    fn seen(index: u64, number: u64, from: u64) -> Progress {
        let start = Some(StartMark { number, nonce: number, series: 1, from: Some(from) });
        Progress { member: MEMBER, index, term: 1, revision: index, start, rolled_back: None }
    }

    fn after(looks: &[Progress]) -> Progress {
        let none = Ledger::default();
        let ledger = looks.iter().fold(none, |ledger, seen| ledger.with_progress(&[MEMBER], &[*seen]));
        *ledger.progress_of(MEMBER).unwrap()
    }

    #[test]
    fn a_start_below_what_was_committed_is_a_rollback() {
        let back = after(&[seen(100, 1, 4), seen(150, 1, 4), seen(130, 2, 120)]);
        assert_eq!(back.rolled_back, Some(RolledBack { member: MEMBER, seen: 150, last: 120, by_store: false }));
        // It stays known, however far the member comes.
        let later = after(&[seen(150, 1, 4), seen(130, 2, 120), seen(400, 2, 120), seen(900, 3, 800)]);
        assert!(later.rolled_back.is_some(), "{later:?}");
    }

    #[test]
    fn a_ledger_that_was_lost_counts_anew() {
        let first = Ledger::default().next_start(5, None);
        let later = Ledger { last_start: Some(first), ..Ledger::default() }.next_start(6, None);
        assert!(later.is_unknown_to(&first) && !first.is_unknown_to(&later));
        let anew = Ledger::default().next_start(7, None);
        assert!(!later.is_unknown_to(&anew) && !anew.is_unknown_to(&later));
    }

    #[test]
    fn ordinary_restarts_and_late_news_are_none() {
        for looks in [
            &[seen(150, 1, 4), seen(150, 2, 150), seen(170, 2, 150)][..],
            // The index is of the new start already; that start is heard of in the same look.
            &[seen(150, 1, 4), seen(190, 2, 180), seen(190, 2, 180), seen(200, 3, 195)],
            // An old answer comes late.
            &[seen(150, 2, 140), seen(130, 1, 4), seen(160, 2, 140)],
        ] {
            assert_eq!(after(looks).rolled_back, None, "{looks:?}");
        }
        assert_eq!(Ledger::default().with_progress(&[], &[seen(1, 1, 1)]).progress, []);
    }
}
