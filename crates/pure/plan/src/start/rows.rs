//! The rows of the start decision, from the first to the last: what is the same for every node, then data, then its absence.

use quorate_faults::Code;

use super::guards::{Guard, Guards};
use super::halts::{refuse, refuse_losing, wait};
use super::{
    ClusterSeen, DataFacts, DataSeen, Depth, ListedMember, Mode, Observed, PeerAnswer, PeerFounding, PeerSeen, Row,
    StartPlan, Step, StoreSeen, Verdict, plan_validation,
};
use crate::ledger::{Confirmed, Identity, IntentKind, Ledger, LedgerSeen, Origin, PendingAdd, State, Tombstone};
use crate::spec::Spec;

pub(super) const RESET: &str =
    "`quorate data reset --yes` renames the data dir and clears the ledger, so that the node can join anew";

const REJOIN: &str =
    "it joins again when the cluster file declares it, or by a new code (`quorate peer join`); its data was renamed";

pub(super) fn decide<G: Guards>(spec: &Spec, name: &str, seen: &Observed, guards: &G) -> StartPlan {
    if let DataSeen::Unknown(why) = &seen.data
        && guards.hold(Guard::UnknownData)
    {
        let why = format!("cannot tell what the data dir holds: {why}");
        return StartPlan::new(
            Row::DataUnknown,
            wait(Code::StartUnknown, why, "what cannot be seen is not taken for empty"),
        );
    }
    let ledger = match &seen.ledger {
        LedgerSeen::There(ledger) => ledger.as_ref(),
        LedgerSeen::Unreadable(why) if guards.hold(Guard::UnreadableLedger) => {
            let why = format!("the ledger cannot be read: {why}");
            let way_out = "bring it back, or see `quorate explain Q0935`; it is not taken for empty";
            return StartPlan::new(Row::LedgerUnknown, refuse(Code::LedgerUnreadable, why, way_out));
        }
        LedgerSeen::Absent | LedgerSeen::Unreadable(_) => &Ledger::default(),
    };
    let case = Case { spec, name, seen, ledger, guards };
    let rows = [
        Case::not_mounted,
        Case::torn_down,
        Case::tombstone,
        Case::foreign,
        Case::newer_generation,
        Case::not_ours_yet,
        Case::other_cluster,
        Case::undeclared,
        Case::removed,
        Case::another_machine,
    ];
    if let Some(plan) = rows.iter().find_map(|row| row(&case)) {
        return plan;
    }
    match &seen.data {
        DataSeen::There(facts) => case.with_data(facts),
        DataSeen::Absent | DataSeen::Unknown(_) => case.without_data(),
    }
}

pub(super) struct Case<'a, G> {
    pub(super) spec: &'a Spec,
    pub(super) name: &'a str,
    pub(super) seen: &'a Observed,
    pub(super) ledger: &'a Ledger,
    pub(super) guards: &'a G,
}

impl<G: Guards> Case<'_, G> {
    fn tombstone(&self) -> Option<StartPlan> {
        // What the cluster lists is not buried, whatever a peer remembers that may be out of it long since. A node whose ledger names
        // no member is the one that is listed under its name or at its address.
        let ours = self.ledger.ids().map(|(_, member)| member);
        let is_ours = |member: &ListedMember| ours.map_or_else(|| self.is_mine(member), |ours| member.id == ours);
        let listed = |members: &[ListedMember]| members.iter().any(is_ours);
        let listed = self.confirmed().is_some_and(listed);
        let buried = |answer: &PeerAnswer| answer.my_tombstone && answer.founding != PeerFounding::Removed;
        let at_peer = self.answers().find(|(_, answer)| buried(answer) && !listed).map(|(peer, _)| peer);
        // Its own word for it comes first, so that it holds when the others are gone.
        if let (State::Started(identity), Some(_), Some(members)) = (&self.ledger.state, at_peer, self.confirmed())
            && self.confirmed_id() == Some(identity.cluster)
            && members.iter().all(|member| member.id != identity.member)
            && !self.ledger.is_outdated()
            && !self.answers().any(|(_, answer)| answer.generation > self.ledger.generation)
            && !self.loses_to_a_peer()
            && let Some(plan) = self.left(identity).filter(|_| self.guards.hold(Guard::Tombstone))
        {
            return Some(plan);
        }
        let why = match (&self.ledger.state, at_peer) {
            _ if !self.guards.hold(Guard::Tombstone) => return None,
            // It was removed because it was not declared, and now it is: it joins anew, once its old data is out of the way.
            (State::Tombstone(stone), None) if stone.undeclared && self.spec.member(self.name).is_some() => {
                let there = matches!(self.seen.data, DataSeen::There(_));
                return there.then(|| StartPlan::new(Row::SetAside, vec![Step::Archive]));
            }
            (State::Tombstone(stone), _) => format!("this member was removed for good: {}", stone.why),
            (_, Some(peer)) => format!("`{peer}` remembers that this member was removed for good"),
            (_, None) => return None,
        };
        // By another's word nothing is touched, only refused.
        let (own, way_out) = match &self.ledger.state {
            State::Tombstone(stone) => (true, if stone.undeclared { REJOIN } else { RESET }),
            State::Empty | State::Promised(_) | State::Inited(_) | State::Started(_) | State::PendingAdd(_) => {
                (false, RESET)
            }
        };
        let mut steps = if own { self.archive() } else { Vec::new() };
        steps.extend(refuse(Code::StartRemoved, why, way_out));
        Some(StartPlan::new(Row::Tombstone, steps))
    }

    fn torn_down(&self) -> Option<StartPlan> {
        let intent = self.ledger.intent.as_ref().filter(|intent| intent.kind == IntentKind::Teardown)?;
        let why = format!("the cluster was torn down: {}", intent.why);
        let way_out = "`quorate cluster teardown --cancel` brings it back; nothing was removed or deleted";
        let plan = || StartPlan::new(Row::TornDown, refuse(Code::TornDown, why, way_out));
        self.guards.hold(Guard::TornDown).then(plan)
    }

    fn foreign(&self) -> Option<StartPlan> {
        let DataSeen::There(DataFacts { ids: Some((cluster, member)), .. }) = &self.seen.data else { return None };
        let earlier = match &self.ledger.state {
            State::PendingAdd(add) => add.replaces.map(|member| (add.cluster, member)),
            State::Empty | State::Promised(_) | State::Inited(_) | State::Started(_) | State::Tombstone(_) => None,
        };
        let ours = match &self.ledger.state {
            State::PendingAdd(add) => add.member.map(|member| (add.cluster, member)).or(earlier),
            State::Empty | State::Promised(_) | State::Inited(_) | State::Started(_) | State::Tombstone(_) => {
                self.ledger.ids()
            }
        };
        let its = (*cluster, *member);
        if !self.guards.hold(Guard::ForeignData) || Some(its) == earlier || Some(its) == ours {
            return None;
        }
        let why = match ours {
            Some((ours, mine)) => {
                format!("the data is member `{member}` of cluster `{cluster}`, and this node is `{mine}` of `{ours}`")
            }
            None if self.ledger.state == State::Empty => return None,
            None => format!("the data is member `{member}` of cluster `{cluster}`, and this node is to become another"),
        };
        let way_out = "mount the right disk or correct `data-dir`; see `quorate data inspect`";
        Some(StartPlan::new(Row::Foreign, refuse(Code::StartForeign, why, way_out)))
    }

    fn not_ours_yet(&self) -> Option<StartPlan> {
        let known = self.ledger.state != State::Empty || !matches!(self.seen.data, DataSeen::There(_));
        if known || !self.guards.hold(Guard::DataUnknownToLedger) {
            return None;
        }
        let why = "there is etcd data, and this node has never run it";
        let way_out = "`quorate cluster adopt` takes it over, running or stopped; see `quorate data inspect`";
        Some(StartPlan::new(Row::NotOursYet, refuse(Code::StartNotOurs, why, way_out)))
    }

    /// The others are another cluster: neither a place to come back to, nor one that could have removed us.
    fn other_cluster(&self) -> Option<StartPlan> {
        let ours = match &self.ledger.state {
            State::Started(identity) => identity.cluster,
            State::PendingAdd(add) => add.cluster,
            State::Empty | State::Promised(_) | State::Inited(_) | State::Tombstone(_) => return None,
        };
        let ClusterSeen::Confirmed { cluster, .. } = &self.seen.cluster else { return None };
        if *cluster == ours || !self.guards.hold(Guard::OtherCluster) {
            return None;
        }
        let why = format!("the members that answer are cluster `{cluster}`, and this node belongs to `{ours}`");
        Some(StartPlan::new(Row::OtherCluster, refuse(Code::StartDisagree, why, RESET)))
    }

    /// A node that the file does not declare begins nothing. One that runs goes on until the others have removed it.
    fn undeclared(&self) -> Option<StartPlan> {
        let data = matches!(self.seen.data, DataSeen::There(_));
        let ran = match self.ledger.state {
            State::Started(_) | State::Tombstone(_) => true,
            // It may have its vote already, and nothing but its ledger does not know.
            State::PendingAdd(_) => data,
            State::Empty | State::Promised(_) | State::Inited(_) => false,
        };
        if ran { None } else { self.undeclared_now() }
    }

    pub(super) fn undeclared_now(&self) -> Option<StartPlan> {
        if self.ledger.intent.as_ref().is_some_and(|intent| intent.kind == IntentKind::Leave) {
            let why = "this node was asked to leave, and joins no more";
            return Some(StartPlan::new(Row::Undeclared, refuse(Code::StartRemoved, why, RESET)));
        }
        if self.spec.member(self.name).is_some() {
            return None;
        }
        let why = "the cluster file does not declare this node";
        let way_out = "declare it under `members`, or stop its agent";
        Some(StartPlan::new(Row::Undeclared, refuse(Code::StartRemoved, why, way_out)))
    }

    /// Only what ran can have been removed: a founding member that never started may not be listed by name yet.
    fn removed(&self) -> Option<StartPlan> {
        let State::Started(identity) = &self.ledger.state else { return None };
        let members = self.confirmed()?;
        let listed = members.iter().any(|member| member.id == identity.member);
        if listed || !self.guards.hold(Guard::Removed) {
            return None;
        }
        if let Some(plan) = self.left(identity) {
            return Some(plan);
        }
        if self.never_voted(identity) && !members.iter().any(|member| self.is_mine(member)) {
            // A learner that was taken out again, since it was not up for too long. Nobody ever counted on it.
            let there = matches!(self.seen.data, DataSeen::There(_));
            return there.then(|| StartPlan::new(Row::SetAside, vec![Step::Archive]));
        }
        let why = format!("the cluster does not list member `{}` any more", identity.member);
        Some(StartPlan::new(Row::Removed, refuse(Code::StartRemoved, why, RESET)))
    }

    /// It was to leave, and has left.
    fn left(&self, identity: &Identity) -> Option<StartPlan> {
        let intent = self.ledger.intent.as_ref().filter(|intent| intent.kind == IntentKind::Leave);
        let undeclared = self.spec.member(self.name).is_none();
        let why = match intent {
            Some(intent) => intent.why.clone(),
            None if undeclared => "the cluster file does not declare it".to_owned(),
            None => return None,
        };
        let Identity { cluster, member, .. } = *identity;
        // When is for whoever writes it down to say.
        let stone = Tombstone { cluster, member, why, at_ms: 0, undeclared };
        Some(StartPlan::new(Row::Left, vec![Step::Write(State::Tombstone(stone))]))
    }

    /// Whether it joined and, as far as it knows, never had a vote.
    fn never_voted(&self, identity: &Identity) -> bool {
        let votes =
            |confirmed: &Confirmed| confirmed.members.iter().any(|one| one.id == identity.member && !one.learner);
        identity.origin == Origin::Joined && !self.ledger.confirmed.as_ref().is_some_and(votes)
    }

    fn with_data(&self, facts: &DataFacts) -> StartPlan {
        if let State::Promised(promise) | State::Inited(promise) = &self.ledger.state
            && let Some(plan) = self.superseded(promise)
        {
            return plan;
        }
        if let State::PendingAdd(add) = &self.ledger.state
            && let Some(plan) = self.data_of_before(add, facts)
        {
            return plan;
        }
        if let Some(evidence) = self.rolled_back(facts) {
            return self.replace_rolled_back(&evidence);
        }
        let repair = match Self::verdict(facts) {
            Verdict::Unchecked if self.guards.hold(Guard::CheckFirst) => {
                return StartPlan::new(Row::Check, vec![Step::Validate(self.depth())]);
            }
            Verdict::Corrupt(what) => return self.corrupt(&what),
            Verdict::Half(what) if self.is_only_started() => return self.half_only(&what),
            Verdict::Half(what) => return self.corrupt(&what),
            Verdict::RepairableTail(_) => Some(Step::RepairTail),
            Verdict::Valid | Verdict::Unchecked => None,
        };
        let mut steps: Vec<Step> = repair.into_iter().collect();
        let row = match &self.ledger.state {
            State::Promised(promise) | State::Inited(promise) => {
                // The cluster runs without this member: it was removed, and the ledger is older than that.
                let listed = |members: &[ListedMember]| members.iter().any(|member| member.id == promise.member);
                if self.confirmed().is_some_and(|members| !listed(members)) {
                    return StartPlan::new(Row::SetAside, vec![Step::Archive]);
                }
                if let Some(plan) = self.disagreement(promise, &self.stances(promise)) {
                    return plan;
                }
                steps.extend(self.finish_founding(promise));
                Row::FinishFounding
            }
            State::PendingAdd(add) => {
                let Some((_, member)) = facts.ids else { return StartPlan::new(Row::SetAside, vec![Step::Archive]) };
                let identity = Identity { cluster: add.cluster, member, origin: Origin::Joined };
                steps.push(Step::Write(State::Started(identity)));
                steps.extend(self.start(member, Origin::Joined));
                Row::Run
            }
            State::Started(identity) => {
                if let Some(plan) = self.unproven_start(identity.member) {
                    return plan;
                }
                steps.extend(self.start(identity.member, identity.origin));
                Row::Run
            }
            // Met by earlier rows.
            State::Empty | State::Tombstone(_) => {
                steps.push(Step::Start { joining: false });
                Row::Run
            }
        };
        StartPlan::new(row, steps)
    }

    /// Whoever joined may have been stopped before it was given its vote.
    fn start(&self, member: quorate_etcd_formats::membership::MemberId, origin: Origin) -> Vec<Step> {
        let listed = self.confirmed().and_then(|members| members.iter().find(|listed| listed.id == member));
        let learner = listed.map_or(origin == Origin::Joined, |listed| listed.learner);
        let promote = learner.then_some(Step::Promote);
        std::iter::once(Step::Start { joining: false }).chain(promote).collect()
    }

    /// The data of the member that this node was, found by the one that it is to become.
    fn data_of_before(&self, add: &PendingAdd, facts: &DataFacts) -> Option<StartPlan> {
        let (cluster, member) = facts.ids?;
        let aside = Some(StartPlan::new(Row::SetAside, vec![Step::Archive]));
        if Some(member) == add.member || Some(member) != add.replaces || cluster != add.cluster {
            let gone = |members: &[ListedMember]| members.iter().all(|listed| listed.id != member);
            return aside.filter(|_| self.confirmed().is_some_and(gone));
        }
        match self.confirmed() {
            _ if add.member.is_some() => aside,
            // The disk is back before anyone removed its member: it goes on as if nothing had been.
            Some(members) if members.iter().any(|listed| listed.id == member) => None,
            Some(_) => aside,
            None => {
                Some(self.wait_for_cluster("the cluster, to learn whether this node's earlier member is still in it"))
            }
        }
    }

    fn corrupt(&self, what: &str) -> StartPlan {
        let identity = match &self.ledger.state {
            State::Started(identity) => identity,
            // etcd never ran on it, so nothing is lost by making it anew at the next look.
            State::Promised(_) | State::Inited(_) => return StartPlan::new(Row::RedoInit, vec![Step::Archive]),
            State::PendingAdd(_) | State::Empty | State::Tombstone(_) => {
                return StartPlan::new(Row::SetAside, vec![Step::Archive]);
            }
        };
        if self.only_member() || !self.guards.hold(Guard::OnlyMemberRestores) {
            return self.restore_only(&format!("the data of the only member is damaged ({what})"));
        }
        if let Some(members) = self.confirmed() {
            return self.replace(Row::ReplaceCorrupt, members, Some(identity.member));
        }
        let why = format!("the data is damaged ({what}), and the other members do not answer");
        let way_out = "bring the others back; if most of them are lost, `quorate cluster recover`";
        StartPlan::new(Row::CorruptAlone, wait(Code::StartAlone, why, way_out))
    }

    fn without_data(&self) -> StartPlan {
        match &self.ledger.state {
            State::Started(identity) => {
                if self.only_member() || !self.guards.hold(Guard::OnlyMemberRestores) {
                    let restore = || self.restore_only("the data of the only member is gone");
                    return self.other_file_system().unwrap_or_else(restore);
                }
                match self.confirmed() {
                    Some(members) => self.replace(Row::DiskLost, members, Some(identity.member)),
                    None => self.lost_alone(),
                }
            }
            State::PendingAdd(add) => self.resume_add(add),
            State::Promised(promise) | State::Inited(promise) => {
                self.superseded(promise).unwrap_or_else(|| self.never_started())
            }
            // Declared again: whoever was removed founds nothing.
            State::Tombstone(_) => match self.confirmed() {
                Some(members) => self.elsewhere().unwrap_or_else(|| self.come_back(members)),
                None => self.wait_for_cluster("the cluster that this node is declared in again"),
            },
            State::Empty => self.never_started(),
        }
    }

    fn restore_only(&self, what: &str) -> StartPlan {
        let mine = self.ledger.ids().map(|(cluster, _)| cluster);
        let nothing = |why: String| {
            let lost = "everything that this cluster held";
            let way_out =
                "every byte is kept; `quorate data verify` says what is left, and see `quorate explain Q0945`";
            StartPlan::new(Row::RestoreOnly, refuse_losing(Code::StartNoBackup, why, lost, way_out))
        };
        match &self.seen.store {
            StoreSeen::Chain { cluster: Some(cluster), .. }
                if Some(*cluster) != mine && !self.ledger.ancestors().contains(cluster) =>
            {
                nothing(format!("{what}, and the store holds cluster `{cluster}`, which is another one"))
            }
            StoreSeen::Chain { revision: Some(revision), .. } if self.readable() > Some(*revision) => {
                self.backup_is_older(what, *revision)
            }
            StoreSeen::Chain { cluster, revision: Some(revision), held } => {
                let mut steps = self.archive();
                let writer = held.iter().find(|held| held.cluster == *cluster);
                let token = writer.and_then(|held| held.declared.as_ref()).map(|declared| declared.token.clone());
                steps.push(Step::Restore { revision: *revision, cluster: *cluster, token });
                StartPlan::new(Row::RestoreOnly, steps)
            }
            StoreSeen::Chain { revision: None, .. } => nothing(format!("{what}, and no backup can be proven whole")),
            StoreSeen::Empty => nothing(format!("{what}, and the store is empty")),
            StoreSeen::NotDeclared => nothing(format!("{what}, and no store of backups is declared")),
            StoreSeen::Unknown(why) => {
                let why = format!("{what}, and the store does not answer: {why}");
                let steps = wait(Code::StartWaiting, why, "a store that does not answer is not taken for empty");
                StartPlan::new(Row::RestoreOnly, steps)
            }
        }
    }

    pub(super) fn lost_alone(&self) -> StartPlan {
        let why = "the data of this member is gone, and the other members do not answer";
        StartPlan::new(Row::LostAlone, wait(Code::StartDiskLost, why, "mount the disk, or bring the others back"))
    }

    /// The newest revision that can be read of damaged data.
    fn readable(&self) -> Option<u64> {
        match &self.seen.data {
            DataSeen::There(facts) => facts.readable,
            DataSeen::Absent | DataSeen::Unknown(_) => None,
        }
    }

    /// Damaged data that holds more than the backup is not replaced by it: the operator decides which one counts.
    fn backup_is_older(&self, what: &str, backup: u64) -> StartPlan {
        let readable = self.readable().unwrap_or_default();
        let why = format!("{what}, and the newest backup holds revision {backup} only");
        let lost = format!("the writes of revisions {} to {readable}, at least", backup.saturating_add(1));
        let way_out =
            "every byte is kept; see `quorate explain Q1435` for how to keep these writes, or do without them";
        StartPlan::new(Row::RestoreOnly, refuse_losing(Code::StartBackupOlder, why, &lost, way_out))
    }

    pub(super) fn wait_for_cluster(&self, what: &str) -> StartPlan {
        let steps = wait(Code::StartWaiting, format!("waiting for {what}"), "see `quorate explain Q0950`");
        StartPlan::new(Row::WaitForCluster, steps)
    }

    pub(super) fn archive(&self) -> Vec<Step> {
        if matches!(self.seen.data, DataSeen::There(_)) { vec![Step::Archive] } else { Vec::new() }
    }

    /// What checking gave. Data that does not say whose it is is as good as damaged.
    fn verdict(facts: &DataFacts) -> Verdict {
        let known = matches!(facts.verdict, Verdict::Valid | Verdict::RepairableTail(_));
        match known && facts.ids.is_none() {
            true => Verdict::Corrupt("it does not say whose it is".to_owned()),
            false => facts.verdict.clone(),
        }
    }

    fn depth(&self) -> Depth {
        match &self.ledger.state {
            State::Promised(_) | State::Inited(_) => {
                Depth { mode: Mode::Sanity, why: "etcd never ran on it".to_owned() }
            }
            State::Empty | State::Started(_) | State::PendingAdd(_) | State::Tombstone(_) => {
                plan_validation(self.spec, self.seen)
            }
        }
    }

    pub(super) fn answers(&self) -> impl Iterator<Item = (&str, &PeerAnswer)> {
        self.seen.peers.iter().filter_map(|(name, peer)| match peer {
            PeerSeen::Answered(answer) => Some((name.as_str(), answer)),
            PeerSeen::Unknown(_) => None,
        })
    }

    pub(super) fn confirmed(&self) -> Option<&[ListedMember]> {
        match &self.seen.cluster {
            ClusterSeen::Confirmed { members, .. } => Some(members),
            ClusterSeen::Unreachable(_) => None,
        }
    }

    pub(super) fn peer_urls(&self) -> &[String] {
        self.spec.member(self.name).map_or(&[], |member| member.peer_urls.as_slice())
    }

    pub(super) fn is_mine(&self, member: &ListedMember) -> bool {
        member.name == self.name || member.peer_urls.iter().any(|url| self.peer_urls().contains(url))
    }

    /// It has run, and there is no other member that holds the same.
    fn is_only_started(&self) -> bool {
        matches!(self.ledger.state, State::Started(_)) && self.only_member()
    }

    /// Nobody else is declared, was ever confirmed, or is listed now.
    pub(super) fn only_member(&self) -> bool {
        let declared = self.spec.members.iter().all(|member| member.name == self.name);
        let confirmed = self.ledger.confirmed.as_ref().is_none_or(|confirmed| confirmed.members.len() <= 1);
        declared && confirmed && self.confirmed().is_none_or(|members| members.len() <= 1)
    }
}
