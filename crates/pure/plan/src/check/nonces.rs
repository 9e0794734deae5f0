//! Whether a promise may be written with its nonces: read from what peers said and from nothing that the planner made of it.

use std::collections::BTreeMap;

use super::Audit;
use crate::ledger::Promise;
use crate::start::{PeerAnswer, PeerFounding};

impl Audit<'_> {
    /// `old`: what the ledger holds of the same declaration.
    pub(super) fn nonces(&mut self, old: Option<&Promise>, new: &Promise) {
        let replaces = old.is_some_and(Promise::is_sealed);
        self.rule(
            !replaces || !new.is_sealed(),
            "what was sealed is replaced by a promise with a new nonce, and by nothing else",
        );
        if let Some(old) = old.filter(|_| replaces) {
            let may = self.may_be_unsealed(old);
            self.rule(may, "what a member may have begun is not unsealed");
        }
        if !new.is_sealed() {
            let drawn = new.nonce.as_ref() == Some(&self.seen.nonce) && new.nonces.is_empty();
            self.rule(drawn, "a promise that is not sealed has a nonce of its own");
            return;
        }
        let holds = |answer: &PeerAnswer| match &answer.founding {
            PeerFounding::Promised(theirs) => {
                let same = theirs.declaration == new.declaration && theirs.is_sealed();
                same && theirs.nonces == new.nonces && theirs.cluster == new.cluster
            }
            PeerFounding::Founded(cluster) => {
                let seal = answer.seal.as_ref().filter(|seal| seal.cluster == *cluster);
                let nonces = seal.map(|seal| seal.nonces.clone()).unwrap_or_default();
                *cluster == new.cluster && nonces == new.nonces
            }
            PeerFounding::Nothing | PeerFounding::Removed => false,
        };
        let began = |answer: &PeerAnswer| {
            let told = self.ledger.bound().any(|cluster| cluster == new.cluster);
            told || !answer.started.is_empty() || answer.founding == PeerFounding::Founded(new.cluster)
        };
        let holders = || self.answers().map(|(_, answer)| answer).filter(|answer| holds(answer));
        let belongs = |answer: &PeerAnswer| answer.founding == PeerFounding::Founded(new.cluster) || holds(answer);
        let hold = self.answers().filter(|(_, answer)| belongs(answer)).count();
        let begun = holders().any(began) && hold * 2 > self.spec.members.len();
        let own = old.is_some_and(|old| old.nonce.is_some() && old.nonce == new.nonce);
        let offered = begun || (own && holders().next().is_some());
        self.rule(
            offered || self.is_of_all_promises(old, new),
            "a promise is sealed with the nonces of all promises, or with those that a member has sealed",
        );
        let ids = self.spec.founding_ids_of(&new.nonces);
        let member = ids.as_ref().and_then(|ids| ids.members.get(self.name));
        let same = ids.as_ref().is_some_and(|ids| ids.cluster == new.cluster) && member == Some(&new.member);
        self.rule(same, "what is sealed has the ids of its nonces");
        self.rule(new.nonces.get(self.name) == new.nonce.as_ref(), "what is sealed holds the nonce of this node");
    }

    /// Every declared peer has promised its nonce, and has not sealed anything yet.
    fn is_of_all_promises(&self, old: Option<&Promise>, new: &Promise) -> bool {
        let own = old.map_or(Some(&self.seen.nonce), |old| old.nonce.as_ref());
        let mut nonces: BTreeMap<&str, &String> = BTreeMap::new();
        nonces.extend(own.map(|nonce| (self.name, nonce)));
        for (peer, answer) in self.answers() {
            if let PeerFounding::Promised(theirs) = &answer.founding
                && theirs.declaration == new.declaration
                && theirs.nonces.is_empty()
            {
                nonces.extend(theirs.nonce.as_ref().map(|nonce| (peer, nonce)));
            }
        }
        let declared = self.spec.members.iter().map(|member| member.name.as_str());
        let all = declared.map(|name| Some((name, *nonces.get(name)?))).collect::<Option<BTreeMap<_, _>>>();
        let sealed: BTreeMap<&str, &String> = new.nonces.iter().map(|(name, nonce)| (name.as_str(), nonce)).collect();
        all == Some(sealed)
    }

    /// All declared peers have answered, and none of them knows of a start on it.
    fn may_be_unsealed(&self, old: &Promise) -> bool {
        let runs = |answer: &PeerAnswer| answer.founding == PeerFounding::Founded(old.cluster);
        let begun = |answer: &PeerAnswer| match &answer.founding {
            PeerFounding::Promised(theirs) => {
                let sealed = theirs.is_sealed() && theirs.cluster == old.cluster;
                let begun = answer.remembers_me_started || (sealed && !answer.started.is_empty());
                theirs.declaration == old.declaration && begun
            }
            PeerFounding::Nothing | PeerFounding::Removed => answer.remembers_me_started,
            PeerFounding::Founded(_) => false,
        };
        let declared = self.spec.members.iter().filter(|member| member.name != self.name);
        let answered = declared.clone().all(|member| self.answers().any(|(peer, _)| peer == member.name));
        let confirmed = match &self.seen.cluster {
            crate::start::ClusterSeen::Confirmed { cluster, .. } => *cluster == old.cluster,
            crate::start::ClusterSeen::Unreachable(_) => false,
        };
        let told = self.ledger.began(old).next().is_some();
        answered && !told && !confirmed && !self.answers().any(|(_, answer)| runs(answer) || begun(answer))
    }
}
