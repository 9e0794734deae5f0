//! Data that was put back to an older copy: by a snapshot of the machine, a restored disk, or a clone.
//!
//! **Invariant:** a member that acknowledged more than its log holds votes no more. It is replaced through a learner where a quorum
//! confirms that it can be; otherwise nothing starts.

use quorate_etcd_formats::membership::MemberId;
use quorate_faults::Code;

use super::guards::{Guard, Guards};
use super::halts::{refuse, wait};
use super::rows::Case;
use super::{DataFacts, Row, StartPlan, Step, StoreSeen, Verdict};
use crate::ledger::{RolledBack, State};

/// What tells that data is an older copy.
pub(super) struct Evidence {
    member: MemberId,
    /// How far it was seen, and where its log ends.
    seen: u64,
    last: u64,
    by_store: bool,
    text: String,
}

impl<G: Guards> Case<'_, G> {
    /// What tells that the data is an older copy of this member's.
    pub(super) fn rolled_back(&self, facts: &DataFacts) -> Option<Evidence> {
        let (_, member) = self.ledger.ids()?;
        // Who is to become another member has data of the one before, if any.
        let same = facts.ids.is_some_and(|(_, its)| its == member);
        let damaged = matches!(facts.verdict, Verdict::Corrupt(_) | Verdict::Half(_));
        if !same || damaged || !self.guards.hold(Guard::RolledBack) {
            return None;
        }
        let last = facts.last_index.unwrap_or(0);
        let evidence = |seen: u64, text: String| Some(Evidence { member, seen, last, by_store: false, text });
        if let Some(known) = self.ledger.own_rollback().filter(|known| !known.by_store) {
            let text = format!("its log ended at {}, and this member was seen at {}", known.last, known.seen);
            return evidence(known.seen, text);
        }
        if let Some((peer, found)) = self.answers().find_map(|(peer, answer)| Some((peer, answer.rolled_back?))) {
            let text = format!("`{peer}` saw this member at {}, and it was started at {}", found.seen, found.last);
            return evidence(found.seen, text);
        }
        let by_peers = self.answers().filter_map(|(peer, answer)| Some((answer.acknowledged?, format!("`{peer}`"))));
        let own = self.ledger.progress_of(member).map(|known| (known.index, "this node".to_owned()));
        let furthest = by_peers.chain(own).max();
        if let Some((seen, who)) = furthest
            && facts.last_index.is_some_and(|last| last < seen)
        {
            return evidence(seen, format!("its log ends at {last}, and {who} saw this member at {seen}"));
        }
        if let Some(text) = self.stale_tail(member, facts) {
            return evidence(last, text);
        }
        let newer = self.answers().find_map(|(peer, answer)| {
            let (own, theirs) = (self.ledger.last_start?, answer.my_start?);
            theirs.is_unknown_to(&own).then_some((theirs.number, peer))
        });
        if let Some((number, peer)) = newer {
            let text = format!("`{peer}` knows of start {number} of this member, which this node knows nothing of");
            return evidence(last, text);
        }
        self.fresh_although_started(member)
            .and_then(|text| evidence(last, text))
            .or_else(|| self.behind_store(member, facts))
    }

    /// The log is long enough, but its last entry is of an older term than what this member had applied: its end was never committed,
    /// and a committed entry of the newer term is missing. Terms only grow along a log.
    fn stale_tail(&self, member: MemberId, facts: &DataFacts) -> Option<String> {
        let last = facts.last_term?;
        let by_peers =
            self.answers().filter_map(|(peer, answer)| Some((answer.acknowledged_term?, format!("`{peer}`"))));
        let own = self.ledger.progress_of(member).map(|known| (known.term, "this node".to_owned()));
        let (term, observer) = by_peers.chain(own).max()?;
        (last < term).then(|| format!("its log ends in term {last}, and {observer} saw this member in term {term}"))
    }

    /// The store has more of this cluster than the data of its only member leads to. Where there are others, a member may be behind
    /// the cluster, and its backups with it.
    fn behind_store(&self, member: MemberId, facts: &DataFacts) -> Option<Evidence> {
        let State::Started(identity) = &self.ledger.state else { return None };
        if !self.only_member() || self.ledger.taken_over {
            return None;
        }
        let now = match &self.seen.store {
            StoreSeen::Chain { cluster, revision, .. } if *cluster == Some(identity.cluster) => *revision,
            StoreSeen::Chain { .. } | StoreSeen::NotDeclared | StoreSeen::Unknown(_) | StoreSeen::Empty => None,
        };
        let recorded = self.ledger.own_rollback().filter(|known| known.by_store);
        let stored = now.max(recorded.map(|known| known.seen))?;
        // What was recorded holds until the right data is back.
        let last = match facts.reach {
            Some(reach) => reach,
            None if facts.verdict == Verdict::Unchecked => return None,
            None => recorded?.last,
        };
        let text = format!("it leads to revision {last} at most, and the store has revision {stored} of this cluster");
        (last < stored).then_some(Evidence { member, seen: stored, last, by_store: true, text })
    }

    /// Data on which etcd never ran, of a member that the cluster lists as started.
    fn fresh_although_started(&self, member: MemberId) -> Option<String> {
        if !matches!(self.ledger.state, State::Promised(_) | State::Inited(_)) {
            return None;
        }
        let listed = self.confirmed()?.iter().find(|listed| listed.id == member)?;
        listed.started.then(|| "etcd never ran on it, and the cluster lists this member as started".to_owned())
    }

    /// Replaces a member whose data is an older copy, or waits until that can be proven safe.
    pub(super) fn replace_rolled_back(&self, evidence: &Evidence) -> StartPlan {
        let Evidence { member, seen, last, by_store, text } = evidence;
        let recorded = RolledBack { member: *member, seen: *seen, last: *last, by_store: *by_store };
        // Whoever told it may be silent next time.
        let known = self.ledger.own_rollback().is_some_and(|known| !known.by_store || *by_store);
        let record = (!known).then_some(Step::WriteRolledBack(recorded, text.clone()));
        let mut steps: Vec<Step> = record.into_iter().collect();
        if self.only_member() {
            let why = format!("the data of the only member was put back to an older copy: {text}");
            let way_out = "put the right disk back; to go on with older data, see `quorate explain Q1411`";
            steps.extend(refuse(Code::RolledBackOnly, why, way_out));
            return StartPlan::new(Row::RolledBackAlone, steps);
        }
        if let Some(members) = self.confirmed() {
            let plan = self.replace(Row::ReplaceRolledBack, members, Some(*member));
            steps.extend(plan.steps);
            return StartPlan { steps, ..plan };
        }
        let why =
            format!("the data was put back to an older copy ({text}), and no quorum of the other members answers");
        let way_out = "put the right disk back, or bring the others back; see `quorate explain Q1410`";
        steps.extend(wait(Code::RolledBackAlone, why, way_out));
        StartPlan::new(Row::RolledBackAlone, steps)
    }
}
