//! Follows the steps of a plan on paper: how ledger, data and members would stand before each one, and whether it may be taken.

use quorate_etcd_formats::membership::{ClusterId, MemberId};

use super::Audit;
use crate::ledger::{IntentKind, Ledger, Promise, State};
use crate::start::{
    ClusterSeen, DataFacts, DataSeen, Health, Held, ListedMember, PeerFounding, PlaceState, Step, StoreSeen, Verdict,
};

/// What stands on the disk.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Data {
    None,
    /// Whose, and whether it was found good.
    Of(Option<(ClusterId, MemberId)>, bool),
    /// A restore gives it new ids, and writes them down itself.
    Restored,
}

pub(super) struct Paper {
    ledger: Ledger,
    data: Data,
    /// Every peer has written our start down, or had to before this plan.
    told: bool,
    members: Vec<ListedMember>,
    cluster: Option<ClusterId>,
}

/// Whether anything known of this member is newer than its data.
fn rolled_back(audit: &Audit<'_>, facts: &DataFacts) -> bool {
    let Some((_, member)) = facts.ids.filter(|ids| audit.ledger.ids() == Some(*ids)) else { return false };
    let recorded = audit.ledger.rolled_back.is_some_and(|it| it.member == member && !it.by_store);
    let own = audit.ledger.progress_of(member).map(|known| known.index);
    let seen = audit.answers().filter_map(|(_, peer)| peer.acknowledged).chain(own).max();
    let behind = facts.last_index.is_some_and(|last| seen.is_some_and(|seen| last < seen));
    let terms = audit.answers().filter_map(|(_, peer)| peer.acknowledged_term);
    let term = terms.chain(audit.ledger.progress_of(member).map(|known| known.term)).max();
    let stale = facts.last_term.zip(term).is_some_and(|(last, seen)| last < seen);
    let started = |peer: &crate::start::PeerAnswer| {
        peer.my_start.zip(audit.ledger.last_start).is_some_and(|(theirs, own)| {
            let newer = theirs.number > own.number || (theirs.number == own.number && theirs.nonce != own.nonce);
            theirs.series == own.series && newer
        })
    };
    let fresh = matches!(audit.ledger.state, State::Promised(_) | State::Inited(_));
    let listed = match &audit.seen.cluster {
        ClusterSeen::Confirmed { members, .. } => members.iter().any(|listed| listed.id == member && listed.started),
        ClusterSeen::Unreachable(_) => false,
    };
    let told = audit.answers().any(|(_, peer)| peer.rolled_back.is_some());
    recorded
        || told
        || behind
        || stale
        || is_behind_store(audit, facts, member)
        || audit.answers().any(|(_, peer)| started(peer))
        || (fresh && listed)
}

/// Whether the only member is to start with less than was backed up of its cluster, and nobody has accepted that.
fn is_behind_store(audit: &Audit<'_>, facts: &DataFacts, member: MemberId) -> bool {
    let alone = audit.spec.members.iter().all(|member| member.name == audit.name)
        && audit.ledger.confirmed.as_ref().is_none_or(|list| list.members.len() <= 1)
        && audit.members().len() <= 1;
    let (State::Started(own), false) = (&audit.ledger.state, audit.ledger.taken_over || !alone) else { return false };
    let stored = match &audit.seen.store {
        StoreSeen::Chain { cluster: Some(cluster), revision: Some(revision), .. } if *cluster == own.cluster => {
            *revision
        }
        StoreSeen::Chain { .. } | StoreSeen::NotDeclared | StoreSeen::Unknown(_) | StoreSeen::Empty => 0,
    };
    let before = audit.ledger.rolled_back.filter(|it| it.member == member && it.by_store);
    match facts.reach {
        Some(reach) => reach < stored || before.is_some_and(|it| reach < it.seen),
        None => before.is_some() && facts.verdict != Verdict::Unchecked,
    }
}

impl Paper {
    pub(super) fn new(audit: &Audit<'_>) -> Paper {
        let (cluster, members) = match &audit.seen.cluster {
            ClusterSeen::Confirmed { cluster, members } => (Some(*cluster), members.clone()),
            ClusterSeen::Unreachable(_) => (None, Vec::new()),
        };
        let data = match &audit.seen.data {
            DataSeen::Absent | DataSeen::Unknown(_) => Data::None,
            DataSeen::There(facts) => {
                Data::Of(facts.ids, facts.verdict == Verdict::Valid && !rolled_back(audit, facts))
            }
        };
        let told = !matches!(audit.ledger.state, State::Empty | State::Promised(_) | State::Inited(_));
        Paper { ledger: audit.ledger.clone(), data, told, members, cluster }
    }

    pub(super) fn take(&mut self, audit: &mut Audit<'_>, step: &Step) {
        match step {
            Step::Validate(_)
            | Step::WriteGeneration(_)
            | Step::WriteOutdated(_)
            | Step::WriteRolledBack(..)
            | Step::Wait(_)
            | Step::Refuse(_) => {}
            Step::RepairTail => {
                if let DataSeen::There(facts) = &audit.seen.data
                    && let Data::Of(ids, _) = self.data
                {
                    audit.rule(matches!(facts.verdict, Verdict::RepairableTail(_)), "only a torn tail is cut");
                    self.data = Data::Of(ids, !rolled_back(audit, facts));
                }
            }
            Step::Archive => self.data = Data::None,
            Step::Restore { revision, .. } => self.restore(audit, *revision),
            Step::Init { cluster, member } => self.init(audit, *cluster, *member),
            Step::Write(state) => self.write(audit, state),
            Step::TellPeers => self.told = true,
            Step::RemoveMember(id) => self.remove(audit, *id),
            Step::AddLearner => self.add(audit),
            Step::Start { joining: false } => self.start(audit),
            Step::Start { joining: true } => self.start_joining(audit),
            Step::Promote => audit.rule(self.ledger.ids().is_some(), "only a member is promoted"),
        }
    }

    fn restore(&mut self, audit: &mut Audit<'_>, revision: u64) {
        let alone = audit.spec.members.len() <= 1
            && self.members.len() <= 1
            && audit.ledger.confirmed.as_ref().is_none_or(|confirmed| confirmed.members.len() <= 1);
        audit.rule(alone, "only the only member is restored from a backup");
        audit.rule(matches!(self.ledger.state, State::Started(_)), "only what has run is restored");
        audit.rule(self.data == Data::None, "data is set aside before other data takes its place");
        let accepted = match &audit.seen.place {
            PlaceState::OtherFileSystem { mount_point, .. } => {
                audit.ledger.accepted_empty.as_ref().is_some_and(|it| it.mount_point == *mount_point)
            }
            PlaceState::NotCompared | PlaceState::Same => true,
            PlaceState::NotMounted { .. } | PlaceState::Unknown(_) => false,
        };
        // Where there is data, the place of what was there before says nothing.
        let accepted = accepted || matches!(audit.seen.data, DataSeen::There(_));
        audit.rule(accepted, "the only member is restored on another file system only where that is accepted");
        let half = matches!(&audit.seen.data, DataSeen::There(facts) if matches!(facts.verdict, Verdict::Half(_)));
        audit.rule(!half, "half of the only member is not restored over");
        let proven = matches!(audit.seen.store, StoreSeen::Chain { revision: Some(_), .. });
        audit.rule(proven, "a backup is proven before it is restored");
        if let DataSeen::There(DataFacts { readable: Some(readable), .. }) = &audit.seen.data {
            audit.rule(*readable <= revision, "a backup that holds less than the damaged data does not replace it");
        }
        self.data = Data::Restored;
    }

    fn init(&mut self, audit: &mut Audit<'_>, cluster: ClusterId, member: MemberId) {
        audit.rule(self.data == Data::None, "data is made only where there is none");
        let (State::Promised(promise) | State::Inited(promise)) = self.ledger.state.clone() else {
            audit.rule(false, "what is founded has been promised before, and never ran");
            return;
        };
        let ids = audit.spec.founding_ids_of(&promise.nonces).filter(|_| promise.is_sealed());
        let declared = ids.is_some_and(|ids| ids.cluster == cluster && ids.members.get(audit.name) == Some(&member));
        let same = promise.cluster == cluster && promise.member == member;
        audit.rule(declared && same, "what is founded is what is declared and promised");
        audit.rule(!audit.ledger.consumed.contains(&promise.bootstrap), "a declaration is used once");
        let remembered = audit.answers().any(|(_, peer)| peer.remembers_me_started);
        audit.rule(!remembered, "a node that a peer remembers as started founds nothing");
        let listed = self.members.iter().any(|listed| listed.started && is_mine(audit, listed));
        audit.rule(!listed, "a node that is listed as started founds nothing");
        self.everyone_promised(audit, &promise);
        let founded = audit.answers().any(|(_, peer)| peer.founding == PeerFounding::Founded(cluster));
        let store = match &audit.seen.store {
            StoreSeen::NotDeclared | StoreSeen::Empty => true,
            StoreSeen::Unknown(_) => founded,
            StoreSeen::Chain { held, .. } => {
                founded || (!held.is_empty() && held.iter().all(|one| is_foreign(audit, one, &promise)))
            }
        };
        audit.rule(store, "nothing is founded while there may be a backup of it");
        self.data = Data::Of(Some((cluster, member)), true);
    }

    /// By their own word, or by that of someone of the same founding who remembers them.
    fn everyone_promised(&self, audit: &mut Audit<'_>, promise: &Promise) {
        let belongs = |founding: &PeerFounding| match founding {
            PeerFounding::Promised(theirs) => {
                theirs.is_sealed() && theirs.cluster == promise.cluster && theirs.declaration == promise.declaration
            }
            PeerFounding::Founded(cluster) => *cluster == promise.cluster,
            PeerFounding::Nothing | PeerFounding::Removed => false,
        };
        let remembers = |name: &str| {
            audit.ledger.peers.get(name).is_some_and(|memory| memory.started)
                || audit
                    .answers()
                    .any(|(_, peer)| belongs(&peer.founding) && peer.started.iter().any(|one| one == name))
        };
        // Nobody could run it without everyone's promise.
        let runs = audit.answers().any(|(_, peer)| peer.founding == PeerFounding::Founded(promise.cluster));
        let answer = |name: &str| audit.answers().find(|(peer, _)| *peer == name).map(|(_, answer)| answer);
        let agrees = |name: &str| {
            answer(name).is_some_and(|answer| {
                belongs(&answer.founding) || (answer.founding == PeerFounding::Nothing && (runs || remembers(name)))
            })
        };
        let all =
            audit.spec.members.iter().filter(|member| member.name != audit.name).all(|member| agrees(&member.name));
        audit.rule(all, "a cluster is founded when every declared peer has promised it");
        let member = |name: &str| promise.members.iter().any(|one| one == name);
        let dropped = audit.answers().any(|(peer, answer)| {
            member(peer) && answer.dropped.contains(&promise.bootstrap) && !belongs(&answer.founding)
        });
        // Nobody gives up what somebody runs: that was another declaration with the same number.
        audit.rule(!dropped || runs, "a founding that someone gave up is over");
    }

    fn write(&mut self, audit: &mut Audit<'_>, state: &State) {
        match (&self.ledger.state, state) {
            (State::Empty, State::Promised(promise)) => {
                let used = self.ledger.consumed.iter().any(|used| *used >= promise.bootstrap);
                audit.rule(!used, "the numbers of foundings only grow");
                audit.rule(self.data == Data::None, "who has data promises nothing");
                let member = |name: &str| promise.members.iter().any(|one| one == name);
                let holding = audit.ledger.dropped.iter().any(|earlier| {
                    earlier.members.iter().filter(|name| member(name) && *name != audit.name).any(|name| {
                        let answer = audit.answers().find(|(peer, _)| peer == name).map(|(_, answer)| answer);
                        answer.is_none_or(|answer| match &answer.founding {
                            PeerFounding::Promised(theirs) => theirs.bootstrap <= earlier.bootstrap,
                            PeerFounding::Nothing => !answer.consumed.iter().any(|used| *used >= earlier.bootstrap),
                            PeerFounding::Founded(_) | PeerFounding::Removed => false,
                        })
                    })
                });
                audit.rule(!holding, "another founding is promised when every peer gave the earlier one up");
                audit.nonces(None, promise);
            }
            (State::Promised(old), State::Inited(new)) | (State::Inited(old), State::Inited(new)) => {
                audit.rule(Promise { over: false, ..old.clone() } == *new, "a promise is kept to the letter");
            }
            (State::Promised(old) | State::Inited(old), State::Promised(new)) if !new.over => {
                audit.rule(old.is_same_founding(new), "a promise is kept to the letter");
                audit.rule(self.data == Data::None, "who has data promises nothing");
                audit.nonces(Some(old), new);
            }
            (State::Promised(old) | State::Inited(old), State::Promised(new)) => {
                let gone = |name: &str, answer: &crate::start::PeerAnswer| {
                    old.members.iter().any(|one| one == name) && answer.dropped.contains(&old.bootstrap)
                };
                let over = audit.answers().any(|(peer, answer)| gone(peer, answer));
                audit.rule(old.is_same_founding(new) && over, "a promise is over only when a member of it gave it up");
            }
            (State::Promised(promise) | State::Inited(promise), State::Empty) => self.give_up(audit, promise),
            (State::Promised(promise) | State::Inited(promise), State::Started(identity)) => {
                let same = (promise.cluster, promise.member) == (identity.cluster, identity.member);
                audit.rule(same, "what is started is what was promised");
                audit.rule(
                    self.told || audit.spec.members.len() <= 1,
                    "every peer writes a start down before this node does",
                );
                audit.rule(
                    self.data == Data::Of(Some((identity.cluster, identity.member)), true),
                    "only data that is there, good and ours is started",
                );
            }
            (_, State::PendingAdd(add)) => {
                audit.rule(self.cluster == Some(add.cluster), "only a cluster that a quorum confirmed is joined");
                audit.rule(self.data == Data::None, "who has data does not join anew");
                let before = match &self.ledger.state {
                    State::Started(identity) => Some(identity.cluster),
                    State::PendingAdd(add) => Some(add.cluster),
                    State::Promised(_) | State::Inited(_) | State::Empty | State::Tombstone(_) => None,
                };
                audit.rule(
                    before.is_none_or(|before| before == add.cluster),
                    "a node joins no other cluster than its own",
                );
            }
            (State::Started(identity), State::Tombstone(stone)) => {
                let same = (identity.cluster, identity.member) == (stone.cluster, stone.member);
                let out = self.cluster == Some(identity.cluster)
                    && self.members.iter().all(|member| member.id != identity.member);
                audit.rule(same && out, "a node is buried when its cluster does not list it any more");
                let intent = audit.ledger.intent.as_ref().is_some_and(|intent| intent.kind == IntentKind::Leave);
                let asked = intent || audit.spec.member(audit.name).is_none();
                audit.rule(asked, "only who was to leave is buried");
            }
            (State::PendingAdd(add), State::Started(identity)) => {
                let known = Some(identity.member) == add.member || Some(identity.member) == add.replaces;
                audit.rule(identity.cluster == add.cluster && known, "what is started is what was added");
            }
            (
                State::Empty
                | State::Promised(_)
                | State::Inited(_)
                | State::Started(_)
                | State::PendingAdd(_)
                | State::Tombstone(_),
                State::Empty | State::Promised(_) | State::Inited(_) | State::Started(_) | State::Tombstone(_),
            ) => audit.rule(false, "the ledger never goes back, nor jumps"),
        }
        self.ledger = self.ledger.with(state.clone());
    }

    fn give_up(&self, audit: &mut Audit<'_>, promise: &Promise) {
        let member = |name: &str| promise.members.iter().any(|one| one == name);
        let higher = audit.spec.bootstrap.is_some_and(|bootstrap| bootstrap.id > promise.bootstrap);
        let wanted = audit.spec.founding_ids().map(|ids| ids.cluster);
        let declaration = audit.spec.declaration_hash();
        let there = audit.answers().any(|(_, peer)| match &peer.founding {
            PeerFounding::Founded(cluster) => {
                let seal = peer.seal.as_ref().filter(|seal| seal.cluster == *cluster);
                Some(*cluster) == wanted || seal.is_some_and(|seal| seal.declaration == declaration)
            }
            PeerFounding::Nothing | PeerFounding::Promised(_) | PeerFounding::Removed => false,
        });
        let elsewhere = self.cluster.is_some_and(|cluster| {
            let belongs = |peer: &crate::start::PeerAnswer| peer.founding == PeerFounding::Founded(cluster);
            cluster != promise.cluster && audit.answers().any(|(_, peer)| belongs(peer))
        });
        audit.rule(higher || there || elsewhere, "a promise is given up only for a later one, or for one that runs");
        let runs = audit.answers().any(|(_, peer)| peer.founding == PeerFounding::Founded(promise.cluster));
        audit.rule(!runs && self.cluster != Some(promise.cluster), "what someone runs is not given up");
        let proven = audit.answers().any(|(peer, answer)| member(peer) && answer.dropped.contains(&promise.bootstrap));
        // What a peer remembers is of the founding that it takes part in.
        let same = |founding: &PeerFounding| match founding {
            PeerFounding::Promised(theirs) => theirs.is_same_founding(promise),
            PeerFounding::Founded(cluster) => *cluster == promise.cluster,
            PeerFounding::Nothing | PeerFounding::Removed => true,
        };
        // Whoever runs a cluster knows what it came of.
        let other = |remembered: Option<ClusterId>| {
            let seals = audit.answers().filter_map(|(_, peer)| peer.seal.as_ref());
            let its: Vec<_> = seals.filter(|seal| Some(seal.cluster) == remembered).collect();
            !its.is_empty() && its.iter().all(|seal| seal.declaration != promise.declaration)
        };
        let began = audit.ledger.began(promise).next().is_some()
            || audit
                .answers()
                .any(|(_, peer)| peer.remembers_me_started && same(&peer.founding) && !other(peer.remembers_me_in));
        audit.rule(proven || !began, "what someone may have started is not given up");
        let declared = audit.spec.members.iter().filter(|one| one.name != audit.name && member(&one.name));
        let answered = declared.clone().all(|one| audit.answers().any(|(peer, _)| peer == one.name));
        audit.rule(answered, "a promise is given up when every declared peer of it has answered");
    }

    fn remove(&mut self, audit: &mut Audit<'_>, id: MemberId) {
        let listed = self.members.iter().find(|member| member.id == id);
        let own = audit.ledger.ids().map(|(_, member)| member) == Some(id);
        let mine = own || listed.is_some_and(|member| is_mine(audit, member));
        audit.rule(mine, "a node removes no member but its own");
        audit.rule(self.data == Data::None, "a member that still has its data is not removed");
        audit.rule(!audit.runs_elsewhere(id, true), "a member that runs on another machine is not removed");
        let gone = audit.heard_gone(id, &self.members);
        audit.rule(gone, "a member is removed when its lease and a quorum of the voters were asked for it");
        self.change(audit);
        let (before, alive) = self.voters();
        self.members.retain(|member| member.id != id);
        let (after, _) = self.voters();
        // The own member does not run: it is not one of those who are alive.
        audit.rule(
            alive.min(after) > before / 2 && alive.min(after) > after / 2,
            "a change of members keeps the quorum",
        );
    }

    fn add(&mut self, audit: &mut Audit<'_>) {
        self.change(audit);
        audit.rule(audit.spec.member(audit.name).is_some(), "only a declared node joins");
        let replaces = matches!(&self.ledger.state, State::PendingAdd(add) if add.replaces.is_some());
        let declared = |member: &ListedMember| audit.spec.members.iter().any(|one| one.name == member.name);
        let down = self.members.iter().any(|member| {
            !member.learner && member.health != Health::Healthy && declared(member) && !is_mine(audit, member)
        });
        audit.rule(replaces || !down, "nobody new comes in while a voter is down");
        let accepted = |member: &ListedMember| audit.answers().any(|(peer, _)| peer == member.name);
        let voters = self.members.iter().filter(|one| !one.learner && declared(one) && !is_mine(audit, one));
        let accepted = voters.into_iter().all(accepted);
        audit.rule(
            replaces || !audit.seen.rotates || accepted,
            "while authorities are rotated, a node joins where the agent of every voter accepts it",
        );
        let there = self.members.iter().any(|member| is_mine(audit, member));
        audit.rule(!there, "who is a member already is not added again");
        let State::PendingAdd(add) = &self.ledger.state else { return };
        let before = audit.ledger.ids().map(|(_, member)| member).or(add.replaces);
        let elsewhere = before.map_or_else(|| audit.name_is_taken(), |id| audit.runs_elsewhere(id, false));
        audit.rule(!elsewhere, "a node that runs on another machine is not added");
        // The id is not known before the cluster gave it; any will do on paper.
        let add = crate::ledger::PendingAdd { member: add.member.or(Some(MemberId(0))), ..add.clone() };
        self.ledger = self.ledger.with(State::PendingAdd(add));
    }

    fn change(&self, audit: &mut Audit<'_>) {
        audit.rule(self.cluster.is_some(), "members are changed only with a quorum");
        let wished = matches!(self.ledger.state, State::PendingAdd(_));
        audit.rule(wished, "the ledger says what is wished before the cluster is asked");
        let other = self.members.iter().any(|member| member.learner && !is_mine(audit, member));
        audit.rule(!other, "one change of members at a time");
    }

    /// All voters, and how many at least take part: a quorum confirmed the list.
    fn voters(&self) -> (usize, usize) {
        let voters = self.members.iter().filter(|member| !member.learner).count();
        (voters, voters / 2 + 1)
    }

    fn start(&self, audit: &mut Audit<'_>) {
        let State::Started(identity) = &self.ledger.state else {
            audit.rule(false, "the ledger says `started` before etcd runs");
            return;
        };
        let ours = (identity.cluster, identity.member);
        let good = self.data == Data::Of(Some(ours), true);
        audit.rule(good, "only data that is there, good and ours is started");
        audit.rule(self.told || audit.spec.members.len() <= 1, "every peer writes a start down before etcd first runs");
        let listed = self.cluster != Some(identity.cluster) || self.members.iter().any(|one| one.id == identity.member);
        audit.rule(listed, "a member that was removed is not started");
        audit.rule(
            !audit.runs_elsewhere(identity.member, false),
            "a member that runs on another machine is not started beside it",
        );
        let elsewhere = self.cluster.is_some_and(|cluster| cluster != identity.cluster);
        audit.rule(!elsewhere, "who belongs to another cluster than the others is not started");
    }

    fn start_joining(&self, audit: &mut Audit<'_>) {
        audit.rule(self.data == Data::None, "who joins has no data");
        let State::PendingAdd(add) = &self.ledger.state else {
            audit.rule(false, "the ledger says what is joined before etcd runs");
            return;
        };
        audit.rule(add.member.is_some(), "who joins has been added");
        audit.rule(self.cluster == Some(add.cluster), "only a cluster that a quorum confirmed is joined");
        let ran = self.members.iter().any(|listed| Some(listed.id) == add.member && listed.started);
        audit.rule(!ran, "an id that has run is not started without its data");
    }
}

fn is_mine(audit: &Audit<'_>, member: &ListedMember) -> bool {
    let urls = audit.spec.member(audit.name).map_or(&[][..], |one| one.peer_urls.as_slice());
    member.name == audit.name || member.peer_urls.iter().any(|url| urls.contains(url))
}

/// Whether what a store holds is surely of another file, or of an earlier founding.
fn is_foreign(audit: &Audit<'_>, held: &Held, promise: &Promise) -> bool {
    let earlier = |number: u64| number < promise.bootstrap;
    held.cluster != Some(promise.cluster)
        && held
            .declared
            .as_ref()
            .is_some_and(|declared| declared.token != audit.spec.token || declared.bootstrap.is_some_and(earlier))
}
