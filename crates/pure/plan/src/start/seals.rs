//! Sealing: the ids of a bootstrap are computed from the nonces of all its promises, so that the same file never leads to the same ids
//! twice.
//!
//! **Invariant:** a member starts on what it sealed only after every other one has sealed the same and written the start down; and what
//! any member may have begun is never unsealed. So of one declaration at most one set of nonces is ever run.

use std::collections::BTreeMap;

use quorate_etcd_formats::membership::{ClusterId, MemberId};

use super::guards::{Guard, Guards};
use super::rows::Case;
use super::{PeerAnswer, PeerFounding, Row, StartPlan, Step};
use crate::ledger::{Promise, State};

/// A set of nonces that a peer has sealed, or runs with.
struct SealSeen<'a> {
    nonces: &'a BTreeMap<String, String>,
    cluster: ClusterId,
    member: MemberId,
    /// A member said that it starts, or runs.
    begun: bool,
    /// How many peers hold it.
    holders: usize,
}

impl<G: Guards> Case<'_, G> {
    /// The promise with the nonces of all members, once they are known: those that a peer sealed together with this node's, or that
    /// a member has begun with and more than half of all hold; else those of all promises. An old copy of one member, which holds what
    /// every other one was wiped of, is not followed by that.
    pub(super) fn sealed(&self, promise: Promise) -> Promise {
        if promise.is_sealed() {
            return promise;
        }
        let own = self.ledger.state != State::Empty;
        let seals = self.seals(&promise);
        match seals.as_slice() {
            [seal]
                if (seal.begun && seal.holders * 2 > self.spec.members.len())
                    || (own && seal.nonces.get(self.name) == promise.nonce.as_ref()) =>
            {
                Promise {
                    nonce: seal.nonces.get(self.name).cloned(),
                    nonces: seal.nonces.clone(),
                    cluster: seal.cluster,
                    member: seal.member,
                    ..promise
                }
            }
            [] => self.sealed_by_all(&promise).unwrap_or(promise),
            _ => promise,
        }
    }

    /// The same plan, with the promise of this node sealed as a member has begun it: those who begin need every member to write their
    /// starts down, also one that is remembered to have started and lost its data and its promise.
    pub(super) fn sealed_first(&self, mut plan: StartPlan) -> StartPlan {
        let kept = match &self.ledger.state {
            State::Promised(kept) => Some(kept),
            State::Empty | State::Inited(_) | State::Started(_) | State::PendingAdd(_) | State::Tombstone(_) => None,
        };
        if kept.is_some_and(|kept| !kept.is_sealed())
            && let Some(sealed) = self.wanted().map(|promise| self.sealed(promise)).filter(Promise::is_sealed)
        {
            plan.steps.insert(0, Step::Write(State::Promised(sealed)));
        }
        plan
    }

    /// What every member has promised, with nobody having sealed it yet.
    fn sealed_by_all(&self, promise: &Promise) -> Option<Promise> {
        let mut nonces = BTreeMap::from([(self.name.to_owned(), promise.nonce.clone()?)]);
        for peer in self.others() {
            let theirs = match self.answer_of(peer).map(|answer| &answer.founding) {
                Some(PeerFounding::Promised(theirs)) if theirs.is_same_founding(promise) && !theirs.is_sealed() => {
                    theirs.nonce.clone()
                }
                Some(_) | None => None,
            };
            let unknown = || (!self.guards.hold(Guard::EveryonePromised)).then(String::new);
            nonces.insert(peer.to_owned(), theirs.or_else(unknown)?);
        }
        let ids = self.spec.founding_ids_of(&nonces)?;
        let member = *ids.members.get(self.name)?;
        Some(Promise { nonces, cluster: ids.cluster, member, ..promise.clone() })
    }

    /// What peers have sealed of the declaration of a promise.
    fn seals(&self, promise: &Promise) -> Vec<SealSeen<'_>> {
        let none = const { &BTreeMap::new() };
        let mut seals: Vec<SealSeen<'_>> = Vec::new();
        for answer in self.others().filter_map(|peer| self.answer_of(peer)) {
            let (nonces, cluster, runs) = match &answer.founding {
                PeerFounding::Promised(theirs) if theirs.is_same_founding(promise) && theirs.is_sealed() => {
                    (&theirs.nonces, theirs.cluster, false)
                }
                PeerFounding::Founded(cluster) => {
                    let seal = answer.seal.as_ref().filter(|seal| seal.cluster == *cluster);
                    (seal.map_or(none, |seal| &seal.nonces), *cluster, true)
                }
                PeerFounding::Promised(_) | PeerFounding::Nothing | PeerFounding::Removed => continue,
            };
            // Ids that are not those of this declaration are of something else.
            let ids = self.spec.founding_ids_of(nonces).filter(|ids| ids.cluster == cluster);
            let Some(member) = ids.and_then(|ids| ids.members.get(self.name).copied()) else { continue };
            let told = self.ledger.bound().any(|bound| bound == cluster);
            let begun = runs || told || !answer.started.is_empty();
            match seals.iter_mut().find(|seal| seal.cluster == cluster) {
                Some(seal) => seal.begun |= begun,
                None => seals.push(SealSeen { nonces, cluster, member, begun, holders: self.holders(cluster) }),
            }
        }
        seals
    }

    /// How many peers belong to a cluster, or have sealed it. One that joined it does not have its nonces.
    fn holders(&self, cluster: ClusterId) -> usize {
        let holds = |answer: &&PeerAnswer| match &answer.founding {
            PeerFounding::Promised(theirs) => theirs.is_sealed() && theirs.cluster == cluster,
            PeerFounding::Founded(theirs) => *theirs == cluster,
            PeerFounding::Nothing | PeerFounding::Removed => false,
        };
        self.others().filter_map(|peer| self.answer_of(peer)).filter(holds).count()
    }

    /// Another set of nonces than the one that was sealed here comes of a peer: it lost its promise, or sealed at the same moment. Where
    /// nobody can have begun, this node promises again with a new nonce. `None`: it keeps what it sealed.
    pub(super) fn unseal(&self, promise: &Promise) -> Option<StartPlan> {
        let declared = self.declared().filter(|declared| declared.is_same_founding(promise) && promise.is_sealed())?;
        let differs = |(peer, answer): (&str, &PeerAnswer)| match &answer.founding {
            PeerFounding::Promised(theirs) if !theirs.is_same_founding(promise) => false,
            PeerFounding::Promised(theirs) if theirs.is_sealed() => theirs.cluster != promise.cluster,
            PeerFounding::Promised(theirs) => promise.nonces.get(peer) != theirs.nonce.as_ref(),
            PeerFounding::Founded(cluster) => {
                let seal = answer.seal.as_ref().filter(|seal| seal.cluster == *cluster);
                *cluster != promise.cluster && seal.is_some_and(|seal| seal.declaration == promise.declaration)
            }
            PeerFounding::Nothing | PeerFounding::Removed => false,
        };
        let mut others = self.others().filter_map(|peer| Some((peer, self.answer_of(peer)?)));
        let begun = || self.seals(promise).iter().any(|seal| seal.cluster == promise.cluster && seal.begun);
        let runs = || self.is_run(promise) || self.confirmed_id() == Some(promise.cluster);
        if !others.any(differs) || self.given_up(promise) || !self.guards.hold(Guard::Nonces) {
            return None;
        }
        let safe = self.guards.hold(Guard::GiveUpUnstarted);
        if safe && (begun() || runs() || self.may_not_give_up(promise).is_some()) {
            return None;
        }
        let mut steps = self.archive();
        steps.push(Step::Write(State::Promised(declared)));
        Some(StartPlan::new(Row::GiveUp, steps))
    }
}
