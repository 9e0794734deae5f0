//! The rows of a founding: what a node promises, keeps, gives up and makes, by what every declared peer says.
//!
//! **Invariant:** a node gives a promise up only when nobody can have started on it; from then on it writes down nobody's start
//! on it, and no start goes ahead without having been written down by everyone. So of two foundings at most one is ever run.

use std::collections::BTreeMap;

use quorate_etcd_formats::membership::ClusterId;
use quorate_faults::Code;

use super::guards::{Guard, Guards};
use super::halts::{refuse, wait};
use super::rows::Case;
use super::{Held, ListedMember, PeerAnswer, PeerFounding, PeerSeen, Row, StartPlan, Step, StoreSeen};
use crate::ledger::{Identity, Origin, PeerMemory, Promise, State};
use crate::roster::names;

/// What the declared peers say to a founding.
#[derive(Default)]
pub(super) struct Stances<'a> {
    /// They have said nothing, or not yet promised it.
    waiting: Vec<&'a str>,
    /// They hold an earlier promise.
    holding: Vec<&'a str>,
    /// They will never found it, and why.
    against: Vec<(&'a str, String)>,
    /// Someone has founded it.
    founded: bool,
}

/// Whose backups lie in the store.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Whose {
    /// Of the declared founding, whatever became of its ids.
    Ours,
    /// Of an earlier founding, or of another file.
    Others,
    Unknown,
}

impl<G: Guards> Case<'_, G> {
    /// No data, and by its own ledger this node never ran. Others may know better.
    pub(super) fn never_started(&self) -> StartPlan {
        let remembered = self.remembered() && self.guards.hold(Guard::Remembered);
        let Some(members) = self.confirmed() else {
            return if remembered { self.sealed_first(self.lost_alone()) } else { self.found(None) };
        };
        let listed = members.iter().find(|member| self.is_mine(member));
        let started = listed.is_some_and(|member| member.started) && self.guards.hold(Guard::ListedAsStarted);
        if started || remembered {
            return self
                .elsewhere()
                .unwrap_or_else(|| self.replace(Row::DiskLost, members, listed.map(|member| member.id)));
        }
        self.found(listed)
    }

    /// Whether a peer says that this node has run. It may have written that down for a start that never came to be: then a peer
    /// that gave the founding up proves it.
    fn remembered(&self) -> bool {
        let proven = match &self.ledger.state {
            State::Promised(promise) | State::Inited(promise) => self.given_up(promise),
            State::Empty | State::Started(_) | State::PendingAdd(_) | State::Tombstone(_) => false,
        };
        !proven && self.answers().any(|(_, answer)| answer.remembers_me_started)
    }

    /// Whether a member of that founding gave it up, which it may only do if nobody has started on it. Where somebody has, it was
    /// another declaration with the same number.
    pub(super) fn given_up(&self, promise: &Promise) -> bool {
        let member = |peer: &str| promise.members.iter().any(|name| name == peer);
        let dropped = |(peer, answer): (&str, &PeerAnswer)| member(peer) && answer.dropped.contains(&promise.bootstrap);
        !self.is_run(promise) && self.answers().any(dropped)
    }

    /// Whether a peer belongs to the cluster of a promise.
    pub(super) fn is_run(&self, promise: &Promise) -> bool {
        self.answers().any(|(_, answer)| runs(answer).is_some_and(|cluster| self.leads_to(promise, cluster)))
    }

    /// Whether a cluster comes of a promise. One that is not sealed yet may come to any that was bootstrapped from its declaration.
    fn leads_to(&self, promise: &Promise, cluster: ClusterId) -> bool {
        let of_it = |answer: &PeerAnswer| {
            let seal = answer.seal.as_ref().filter(|seal| seal.cluster == cluster);
            seal.is_some_and(|seal| seal.declaration == promise.declaration)
        };
        cluster == promise.cluster || (!promise.is_sealed() && self.answers().any(|(_, answer)| of_it(answer)))
    }

    /// What becomes of a promise that the file does not declare any more. `None`: it is kept.
    pub(super) fn superseded(&self, promise: &Promise) -> Option<StartPlan> {
        if let Some(plan) = self.unseal(promise).or_else(|| self.joins_instead(promise)) {
            return Some(plan);
        }
        let declared = self.declared();
        if declared.as_ref().is_some_and(|declared| declared.is_same_founding(promise)) {
            return self.not_the_promised(promise);
        }
        let runs = self.is_run(promise) || self.confirmed_id() == Some(promise.cluster);
        let safe = self.guards.hold(Guard::GiveUpUnstarted);
        if runs && safe {
            return self.not_the_promised(promise);
        }
        let number = promise.bootstrap;
        let Some(declared) = declared else {
            let what = format!("founding {number}, which this node promised, to be declared again");
            return Some(self.wait_for_cluster(&what));
        };
        // The numbers only grow, unless the declared one runs already: then this promise can come to nothing.
        let there = self.is_run(&declared);
        if declared.bootstrap <= number && !there {
            let why = format!("this node promised founding {number} of another declaration");
            let way_out = format!("bring the old file back, or declare `bootstrap: {{id: {}}}`", number + 1);
            return Some(StartPlan::new(Row::Disagree, refuse(Code::StartDisagree, why, &way_out)));
        }
        if safe && let Some(plan) = self.may_not_give_up(promise) {
            return Some(plan);
        }
        let mut steps = self.archive();
        // Then nobody's word that it began counts any more, nor one that comes meanwhile.
        if self.given_up(promise) {
            steps.push(Step::Write(State::Promised(Promise { over: true, ..promise.clone() })));
        }
        steps.push(Step::Write(State::Empty));
        Some(StartPlan::new(Row::GiveUp, steps))
    }

    /// The cluster that answers is another one, and a peer belongs to it. Nobody starts on a promise without this node writing it
    /// down, so where nobody has, nothing comes of it once it is given up. A node that was started before it could reach the
    /// cluster joins it all the same.
    fn joins_instead(&self, promise: &Promise) -> Option<StartPlan> {
        let other = self.confirmed_id().filter(|cluster| !self.leads_to(promise, *cluster))?;
        let belongs = self.answers().any(|(_, answer)| answer.founding == PeerFounding::Founded(other));
        let runs = self.is_run(promise);
        if runs || !belongs || !self.guards.hold(Guard::OtherCluster) {
            return None;
        }
        if self.guards.hold(Guard::GiveUpUnstarted)
            && let Some(plan) = self.may_not_give_up(promise)
        {
            return Some(plan);
        }
        let mut steps = self.archive();
        if self.given_up(promise) {
            steps.push(Step::Write(State::Promised(Promise { over: true, ..promise.clone() })));
        }
        steps.push(Step::Write(State::Empty));
        Some(StartPlan::new(Row::GiveUp, steps))
    }

    /// Another cluster answers than the one that was promised.
    fn not_the_promised(&self, promise: &Promise) -> Option<StartPlan> {
        let cluster = self.confirmed_id().filter(|cluster| !self.leads_to(promise, *cluster))?;
        let (number, ours) = (promise.bootstrap, promise.cluster);
        let why = format!("the members that answer are cluster `{cluster}`, and founding {number} leads to `{ours}`");
        let way_out = "give every node the same `members`, `token` and `bootstrap`; to join that cluster instead, `quorate data reset --yes`";
        let refuse = || StartPlan::new(Row::OtherCluster, refuse(Code::StartDisagree, why, way_out));
        self.guards.hold(Guard::OtherCluster).then(refuse)
    }

    pub(super) fn may_not_give_up(&self, promise: &Promise) -> Option<StartPlan> {
        let number = promise.bootstrap;
        if !self.given_up(promise) {
            let mut began: Vec<&str> = self.ledger.began(promise).collect();
            let remembers = |answer: &PeerAnswer| {
                answer.remembers_me_started
                    && !is_of_another(answer, promise)
                    && !self.came_of_another(answer.remembers_me_in, promise)
            };
            if self.answers().any(|(_, answer)| remembers(answer)) {
                began.push(self.name);
            }
            if !began.is_empty() {
                let why = format!("{} began founding {number}, and the file declares another", names(began));
                let way_out = "bring the old file back, so that the founding can be finished";
                return Some(StartPlan::new(Row::Disagree, wait(Code::StartDisagree, why, way_out)));
            }
        }
        let silent: Vec<&str> = self.others().filter(|peer| promise.members.iter().any(|name| name == peer)).collect();
        let silent: Vec<&str> = silent.into_iter().filter(|peer| self.answer_of(peer).is_none()).collect();
        if silent.is_empty() {
            return None;
        }
        let why = format!("waiting for {} to say how far founding {number} has come", names(silent));
        let steps = wait(Code::StartWaiting, why, "start their agents; another founding is declared meanwhile");
        Some(StartPlan::new(Row::WaitForCluster, steps))
    }

    /// Whether a cluster is known, by those who run it, to have come of another declaration than the one that was promised.
    fn came_of_another(&self, cluster: Option<ClusterId>, promise: &Promise) -> bool {
        let seals = self.answers().filter_map(|(_, answer)| answer.seal.as_ref());
        let mut its = seals.filter(|seal| Some(seal.cluster) == cluster).peekable();
        its.peek().is_some() && its.all(|seal| seal.declaration != promise.declaration)
    }

    fn found(&self, listed: Option<&ListedMember>) -> StartPlan {
        let Some(promise) = self.wanted().map(|promise| self.sealed(promise)) else { return self.join_or_wait(listed) };
        let mut stances = self.stances(&promise);
        stances.against.extend(self.started_in_another(&promise));
        // Others have long founded their cluster, and this node is new in it, or was replaced: it joins.
        let other = self.confirmed_id().is_some_and(|cluster| cluster != promise.cluster);
        let unlisted = |members: &[ListedMember]| members.iter().all(|member| member.id != promise.member);
        if (other && self.ledger.state == State::Empty) || self.confirmed().is_some_and(unlisted) {
            return self.join_or_wait(listed);
        }
        if let Some(plan) = self.disagreement(&promise, &stances) {
            return plan;
        }
        if let Some(plan) = self.earlier_promises() {
            return plan;
        }
        if !stances.founded
            && let Some(plan) = self.store_objects(&promise)
        {
            return plan;
        }
        let mut steps = Vec::new();
        // What is sealed is on disk before data is made with its ids, and every peer has sealed the same before that.
        let is_kept = match &self.ledger.state {
            State::Promised(kept) | State::Inited(kept) => Promise { over: false, ..kept.clone() } == promise,
            State::Empty | State::Started(_) | State::PendingAdd(_) | State::Tombstone(_) => false,
        };
        if !is_kept {
            steps.push(Step::Write(State::Promised(promise.clone())));
        }
        if !(stances.waiting.is_empty() && stances.holding.is_empty()) && self.guards.hold(Guard::EveryonePromised) {
            let why = match (stances.waiting.is_empty(), stances.holding.is_empty()) {
                (true, _) => format!("waiting for {} to give an earlier founding up", names(stances.holding)),
                (false, _) => format!("waiting for {} to promise the same founding", names(stances.waiting)),
            };
            let way_out = "start their agents with this file; a cluster is founded when all have promised";
            steps.extend(wait(Code::StartWaiting, why, way_out));
            return StartPlan::new(Row::WaitForCluster, steps);
        }
        steps.push(Step::Init { cluster: promise.cluster, member: promise.member });
        steps.push(Step::Write(State::Inited(promise.clone())));
        steps.extend(self.finish_founding(&promise));
        StartPlan::new(Row::Found, steps)
    }

    /// What the file declares, for this node.
    pub(super) fn declared(&self) -> Option<Promise> {
        let (bootstrap, ids) = (self.spec.bootstrap?.id, self.spec.founding_ids()?);
        let member = *ids.members.get(self.name)?;
        let members = self.spec.members.iter().map(|member| member.name.clone()).collect();
        let declaration = self.spec.declaration_hash();
        let nonce = self.guards.hold(Guard::Nonces).then(|| self.seen.nonce.clone());
        let (cluster, nonces) = (ids.cluster, BTreeMap::new());
        Some(Promise { bootstrap, declaration, cluster, member, members, over: false, nonce, nonces })
    }

    /// What this node may promise: nothing where nothing is declared, or the declaration has been used. Numbers only grow.
    pub(super) fn wanted(&self) -> Option<Promise> {
        let promise = self.declared()?;
        match &self.ledger.state {
            // Kept, but not what the file declares: its cluster is there, and is joined.
            State::Promised(kept) | State::Inited(kept) if !kept.is_same_founding(&promise) => None,
            State::Promised(kept) | State::Inited(kept) => {
                let used = self.ledger.consumed.contains(&promise.bootstrap);
                let kept = || Promise { over: false, ..kept.clone() };
                (!used || !self.guards.hold(Guard::UsedDeclaration)).then(kept)
            }
            State::Empty | State::Started(_) | State::PendingAdd(_) | State::Tombstone(_) => {
                let used = self.ledger.consumed.iter().any(|used| *used >= promise.bootstrap);
                (!used || !self.guards.hold(Guard::UsedDeclaration)).then_some(promise)
            }
        }
    }

    pub(super) fn stances(&self, promise: &Promise) -> Stances<'_> {
        let mut stances = Stances::default();
        for peer in self.others() {
            let Some(answer) = self.answer_of(peer) else {
                stances.waiting.push(peer);
                continue;
            };
            let number = promise.bootstrap;
            match &answer.founding {
                PeerFounding::Promised(theirs) if theirs.is_same_founding(promise) => {
                    let agrees = match promise.is_sealed() {
                        true => theirs.is_same_cluster(promise),
                        false => !theirs.is_sealed(),
                    };
                    stances.waiting.extend((!agrees).then_some(peer));
                }
                PeerFounding::Founded(cluster) if *cluster == promise.cluster && promise.is_sealed() => {
                    stances.founded = true;
                }
                PeerFounding::Founded(cluster) if *cluster == promise.cluster => stances.waiting.push(peer),
                // It runs with nonces that this node has not sealed, or not yet.
                PeerFounding::Founded(_) if is_sealed_of(answer, promise) => stances.waiting.push(peer),
                PeerFounding::Nothing if answer.dropped.contains(&number) && !self.is_run(promise) => {
                    stances.against.push((peer, format!("gave founding {number} up")));
                }
                PeerFounding::Nothing if self.vouched(peer, promise) => {}
                PeerFounding::Nothing if answer.consumed.iter().any(|used| *used >= number) => {
                    stances.against.push((peer, format!("has used founding {number}")));
                }
                PeerFounding::Nothing => stances.waiting.push(peer),
                PeerFounding::Promised(theirs) if theirs.bootstrap < number => stances.holding.push(peer),
                PeerFounding::Promised(theirs) => {
                    let what = format!("promised founding {} of another declaration", theirs.bootstrap);
                    stances.against.push((peer, what));
                }
                PeerFounding::Founded(cluster) => {
                    stances.against.push((peer, format!("belongs to cluster `{cluster}`")));
                }
                PeerFounding::Removed => stances.against.push((peer, "was removed for good".to_owned())),
            }
        }
        stances
    }

    /// A peer that lost all it knew, or was reset: it is remembered to have started in this very cluster, or someone runs it,
    /// and nobody could without everyone's promise.
    fn vouched(&self, peer: &str, promise: &Promise) -> bool {
        if !promise.is_sealed() {
            return false;
        }
        if self.is_run(promise) {
            return true;
        }
        let own = self.ledger.peers.get(peer).is_some_and(|memory| memory.started);
        let same = |answer: &PeerAnswer| match &answer.founding {
            PeerFounding::Founded(cluster) => *cluster == promise.cluster,
            PeerFounding::Promised(theirs) => theirs.is_same_cluster(promise),
            PeerFounding::Nothing | PeerFounding::Removed => false,
        };
        own || self.answers().any(|(_, answer)| same(answer) && answer.started.iter().any(|name| name == peer))
    }

    /// Peers that told this node, when it had promised nothing, that they started in another founding.
    fn started_in_another(&self, promise: &Promise) -> Vec<(&str, String)> {
        if self.ledger.state != State::Empty {
            return Vec::new();
        }
        let of_it = |memory: &PeerMemory| match promise.is_sealed() {
            true => memory.is_of(promise.cluster),
            false => memory.cluster.is_none(),
        };
        let other = |memory: &PeerMemory| memory.started && !of_it(memory);
        let told = self.ledger.peers.iter().filter(|(_, memory)| other(memory));
        told.map(|(name, _)| (name.as_str(), "started in another founding".to_owned())).collect()
    }

    pub(super) fn disagreement(&self, promise: &Promise, stances: &Stances<'_>) -> Option<StartPlan> {
        if stances.against.is_empty() || !self.guards.hold(Guard::Disagreement) {
            return None;
        }
        let said: Vec<String> = stances.against.iter().map(|(peer, what)| format!("`{peer}` {what}")).collect();
        let why = format!("cannot found as declared: {}", said.join(", "));
        let next = promise.bootstrap.saturating_add(1);
        let way_out = format!(
            "give every node the same `members`, `token` and `bootstrap`; a used one is replaced by `bootstrap: {{id: {next}}}`"
        );
        Some(StartPlan::new(Row::Disagree, refuse(Code::StartDisagree, why, &way_out)))
    }

    /// Whoever gave a promise up promises anew only when all others of that founding, as far as they are still declared, did too.
    fn earlier_promises(&self) -> Option<StartPlan> {
        if self.ledger.state != State::Empty || !self.guards.hold(Guard::OthersGaveUp) {
            return None;
        }
        for earlier in &self.ledger.dropped {
            let is_over = |peer: &&str| match self.answer_of(peer) {
                None => false,
                Some(answer) => match &answer.founding {
                    PeerFounding::Promised(theirs) => theirs.bootstrap > earlier.bootstrap,
                    PeerFounding::Founded(_) | PeerFounding::Removed => true,
                    PeerFounding::Nothing => answer.consumed.iter().any(|used| *used >= earlier.bootstrap),
                },
            };
            let members = self.others().filter(|peer| earlier.members.iter().any(|name| name == peer));
            let holding: Vec<&str> = members.filter(|peer| !is_over(peer)).collect();
            if !holding.is_empty() {
                let why = format!("waiting for {} to give founding {} up", names(holding), earlier.bootstrap);
                let steps = wait(Code::StartWaiting, why, "start their agents with this file");
                return Some(StartPlan::new(Row::WaitForCluster, steps));
            }
        }
        None
    }

    fn store_objects(&self, promise: &Promise) -> Option<StartPlan> {
        match &self.seen.store {
            StoreSeen::NotDeclared | StoreSeen::Empty => None,
            StoreSeen::Chain { cluster, held, .. } => {
                let newest = Held { cluster: *cluster, declared: None };
                let found: Vec<Whose> = match held.as_slice() {
                    [] => vec![self.whose(promise, &newest)],
                    held => held.iter().map(|one| self.whose(promise, one)).collect(),
                };
                let has = |whose: Whose| found.contains(&whose) && self.guards.hold(Guard::BackupExists);
                match () {
                    () if has(Whose::Ours) => Some(self.backup_exists()),
                    () if has(Whose::Unknown) => Some(self.backup_of_someone()),
                    () => None,
                }
            }
            StoreSeen::Unknown(why) => {
                let why = format!("cannot tell whether a backup of this cluster exists: {why}");
                let steps = wait(Code::StartWaiting, why, "a store that does not answer is not taken for empty");
                self.guards.hold(Guard::StoreUnknown).then(|| StartPlan::new(Row::WaitForCluster, steps))
            }
        }
    }

    /// Ids do not tell: a cluster that was restored or recovered has another one, and so has one whose members were changed.
    fn whose(&self, promise: &Promise, held: &Held) -> Whose {
        match &held.declared {
            _ if held.cluster == Some(promise.cluster) => Whose::Ours,
            None => Whose::Unknown,
            Some(declared) if declared.token != self.spec.token => Whose::Others,
            Some(declared) => match declared.bootstrap {
                Some(number) if number < promise.bootstrap => Whose::Others,
                Some(_) | None => Whose::Ours,
            },
        }
    }

    fn join_or_wait(&self, listed: Option<&ListedMember>) -> StartPlan {
        if let Some(members) = self.confirmed() {
            return self.elsewhere().unwrap_or_else(|| match listed {
                Some(member) => self.resume(member),
                None => self.join(members),
            });
        }
        if self.only_member() && matches!(self.seen.store, StoreSeen::Chain { .. }) {
            return self.backup_exists();
        }
        match self.spec.bootstrap {
            Some(bootstrap) if self.ledger.consumed.iter().any(|used| *used >= bootstrap.id) => {
                self.wait_for_cluster(&format!("a cluster; founding {} has been used here", bootstrap.id))
            }
            Some(_) | None => self.wait_for_cluster("a cluster, or for `bootstrap: {id: 1}` to declare one"),
        }
    }

    fn backup_exists(&self) -> StartPlan {
        let why = "there is no data, but a backup of this cluster";
        let way_out = format!("{}; to begin with nothing, declare `bootstrap` with a new id", self.back_from_backup());
        StartPlan::new(Row::BackupExists, refuse(Code::StartBackupExists, why, &way_out))
    }

    /// It may be this cluster's: nothing says that it is not.
    fn backup_of_someone(&self) -> StartPlan {
        let why = "there is no data, but a backup that does not say which declaration it is of";
        let way_out = format!("{}; to begin with nothing, give `backup.store` another prefix", self.back_from_backup());
        StartPlan::new(Row::BackupExists, refuse(Code::StartBackupExists, why, &way_out))
    }

    /// The agents of several members do not take restored data dirs for one cluster.
    fn back_from_backup(&self) -> &'static str {
        match self.spec.members.len() {
            0 | 1 => "`quorate backup restore` and then `quorate cluster adopt` bring it back",
            _ => "`quorate cluster recover` brings the whole cluster back",
        }
    }

    /// Written down by every peer and by this node before etcd first runs.
    pub(super) fn finish_founding(&self, promise: &Promise) -> Vec<Step> {
        let identity = Identity { cluster: promise.cluster, member: promise.member, origin: Origin::Founded };
        let mut steps = Vec::new();
        if self.spec.members.len() > 1 && self.guards.hold(Guard::TellPeers) {
            steps.push(Step::TellPeers);
        }
        if self.guards.hold(Guard::WriteStarted) {
            steps.push(Step::Write(State::Started(identity)));
        }
        steps.push(Step::Start { joining: false });
        steps
    }

    /// The other declared members.
    pub(super) fn others(&self) -> impl Iterator<Item = &str> {
        self.spec.members.iter().map(|member| member.name.as_str()).filter(|peer| *peer != self.name)
    }

    pub(super) fn answer_of(&self, peer: &str) -> Option<&PeerAnswer> {
        match self.seen.peers.get(peer) {
            Some(PeerSeen::Answered(answer)) => Some(answer),
            Some(PeerSeen::Unknown(_)) | None => None,
        }
    }
}

/// What a peer remembers is of the founding that it takes part in.
fn is_of_another(answer: &PeerAnswer, promise: &Promise) -> bool {
    match &answer.founding {
        PeerFounding::Promised(theirs) => !theirs.is_same_founding(promise),
        PeerFounding::Founded(cluster) => *cluster != promise.cluster,
        PeerFounding::Nothing | PeerFounding::Removed => false,
    }
}

/// The cluster that a peer belongs to.
fn runs(answer: &PeerAnswer) -> Option<ClusterId> {
    match &answer.founding {
        PeerFounding::Founded(cluster) => Some(*cluster),
        PeerFounding::Nothing | PeerFounding::Promised(_) | PeerFounding::Removed => None,
    }
}

/// Whether a peer runs a cluster that was bootstrapped from the declaration of a promise.
fn is_sealed_of(answer: &PeerAnswer, promise: &Promise) -> bool {
    let seal = answer.seal.as_ref().filter(|seal| Some(seal.cluster) == runs(answer));
    seal.is_some_and(|seal| seal.declaration == promise.declaration)
}
