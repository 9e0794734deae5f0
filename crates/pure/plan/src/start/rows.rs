//! The rows of the start decision, from the first to the last.

use quorate_faults::Code;

use super::halts::{refuse, refuse_losing, wait};
use super::{
    ClusterSeen, DataFacts, DataSeen, Depth, ListedMember, Mode, Observed, PeerFounding, PeerSeen, Row, StartPlan,
    Step, StoreSeen, Verdict, plan_validation,
};
use crate::ledger::{Identity, Ledger, LedgerSeen, Origin, PendingAdd, Promise, State};
use crate::roster::names;
use crate::spec::Spec;

const RESET: &str =
    "`quorate data reset --yes` renames the data dir and clears the ledger, so that the node can join anew";

pub(super) fn decide(spec: &Spec, name: &str, seen: &Observed) -> StartPlan {
    if let DataSeen::Unknown(why) = &seen.data {
        let why = format!("cannot tell what the data dir holds: {why}");
        return StartPlan::new(
            Row::DataUnknown,
            wait(Code::StartUnknown, why, "what cannot be seen is not taken for empty"),
        );
    }
    let ledger = match &seen.ledger {
        LedgerSeen::Absent => &Ledger::default(),
        LedgerSeen::There(ledger) => ledger.as_ref(),
        LedgerSeen::Unreadable(why) => {
            let why = format!("the ledger cannot be read: {why}");
            let way_out = "bring it back, or see `quorate explain Q0935`; it is not taken for empty";
            return StartPlan::new(Row::LedgerUnknown, refuse(Code::LedgerUnreadable, why, way_out));
        }
    };
    let case = Case { spec, name, seen, ledger };
    let rows = [Case::tombstone, Case::foreign, Case::newer_generation, Case::not_ours_yet, Case::removed];
    if let Some(plan) = rows.iter().find_map(|row| row(&case)) {
        return plan;
    }
    match &seen.data {
        DataSeen::There(facts) => case.with_data(facts),
        DataSeen::Absent | DataSeen::Unknown(_) => case.without_data(),
    }
}

struct Case<'a> {
    spec: &'a Spec,
    name: &'a str,
    seen: &'a Observed,
    ledger: &'a Ledger,
}

impl Case<'_> {
    fn tombstone(&self) -> Option<StartPlan> {
        let at_peer = self.answers().find(|(_, answer)| answer.my_tombstone).map(|(peer, _)| peer);
        let why = match (&self.ledger.state, at_peer) {
            (State::Tombstone(stone), _) => format!("this member was removed for good: {}", stone.why),
            (_, Some(peer)) => format!("`{peer}` remembers that this member was removed for good"),
            (_, None) => return None,
        };
        let mut steps = self.archive();
        steps.extend(refuse(Code::StartRemoved, why, RESET));
        Some(StartPlan::new(Row::Tombstone, steps))
    }

    fn foreign(&self) -> Option<StartPlan> {
        let DataSeen::There(DataFacts { ids: Some((cluster, member)), .. }) = &self.seen.data else { return None };
        let (ours, mine) = self.ledger.ids()?;
        if (*cluster, *member) == (ours, mine) {
            return None;
        }
        let why =
            format!("the data is member `{member}` of cluster `{cluster}`, and this node is `{mine}` of `{ours}`");
        let way_out = "mount the right disk or correct `data-dir`; see `quorate data inspect`";
        Some(StartPlan::new(Row::Foreign, refuse(Code::StartForeign, why, way_out)))
    }

    fn newer_generation(&self) -> Option<StartPlan> {
        // A node that holds nothing and remembers nothing has no generation to be behind with.
        if self.ledger.state == State::Empty && self.seen.data == DataSeen::Absent {
            return None;
        }
        let (peer, answer) = self.answers().find(|(_, answer)| answer.generation > self.ledger.generation)?;
        let (theirs, ours) = (answer.generation, self.ledger.generation);
        let why = format!("`{peer}` has generation {theirs} of this cluster, and this node has {ours}");
        Some(StartPlan::new(Row::NewerGeneration, refuse(Code::StartOutdated, why, RESET)))
    }

    fn not_ours_yet(&self) -> Option<StartPlan> {
        if self.ledger.state != State::Empty || self.seen.data == DataSeen::Absent {
            return None;
        }
        let why = "there is etcd data, and this node has never run it";
        let way_out = "`quorate cluster adopt` takes it over, running or stopped; see `quorate data inspect`";
        Some(StartPlan::new(Row::NotOursYet, refuse(Code::StartNotOurs, why, way_out)))
    }

    /// Only what ran can have been removed: a founding member that never started may not be listed by name yet.
    fn removed(&self) -> Option<StartPlan> {
        let State::Started(identity) = &self.ledger.state else { return None };
        let members = self.confirmed()?;
        if members.iter().any(|member| member.id == identity.member) {
            return None;
        }
        let why = format!("the cluster does not list member `{}` any more", identity.member);
        Some(StartPlan::new(Row::Removed, refuse(Code::StartRemoved, why, RESET)))
    }

    fn with_data(&self, facts: &DataFacts) -> StartPlan {
        let repair = match self.verdict(facts) {
            Verdict::Unchecked => return StartPlan::new(Row::Check, vec![Step::Validate(self.depth())]),
            Verdict::Corrupt(what) => return self.corrupt(&what),
            Verdict::RepairableTail(_) => Some(Step::RepairTail),
            Verdict::Valid => None,
        };
        let mut steps: Vec<Step> = repair.into_iter().collect();
        let row = match &self.ledger.state {
            State::Promised(promise) | State::Inited(promise) => {
                steps.extend(self.finish_founding(promise));
                Row::FinishFounding
            }
            State::PendingAdd(add) => {
                let member = add.member.or(facts.ids.map(|(_, member)| member));
                if let Some(member) = member {
                    let identity = Identity { cluster: add.cluster, member, origin: Origin::Joined };
                    steps.push(Step::Write(State::Started(identity)));
                }
                steps.extend([Step::Start { joining: false }, Step::Promote]);
                Row::Run
            }
            // Empty and tombstone were met by earlier rows.
            State::Started(_) | State::Empty | State::Tombstone(_) => {
                steps.push(Step::Start { joining: false });
                Row::Run
            }
        };
        StartPlan::new(row, steps)
    }

    fn corrupt(&self, what: &str) -> StartPlan {
        let State::Started(identity) = &self.ledger.state else {
            // etcd never ran on it, so nothing is lost by making it anew at the next look.
            return StartPlan::new(Row::RedoInit, vec![Step::Archive]);
        };
        if self.only_member() {
            return self.restore_only(&format!("the data of the only member is damaged ({what})"));
        }
        if self.confirmed().is_some() {
            let mut steps = vec![Step::Archive, Step::RemoveMember(identity.member)];
            steps.extend(self.join_steps());
            return StartPlan::new(Row::ReplaceCorrupt, steps);
        }
        let why = format!("the data is damaged ({what}), and the other members do not answer");
        let way_out = "bring the others back; if most of them are lost, `quorate cluster recover`";
        StartPlan::new(Row::CorruptAlone, wait(Code::StartAlone, why, way_out))
    }

    fn without_data(&self) -> StartPlan {
        match &self.ledger.state {
            State::Started(identity) => {
                if self.only_member() {
                    return self.restore_only("the data of the only member is gone");
                }
                if self.confirmed().is_some() {
                    let mut steps = vec![Step::RemoveMember(identity.member)];
                    steps.extend(self.join_steps());
                    return StartPlan::new(Row::DiskLost, steps);
                }
                self.lost_alone()
            }
            State::PendingAdd(add) => self.resume_add(add),
            State::Empty | State::Promised(_) | State::Inited(_) | State::Tombstone(_) => self.never_started(),
        }
    }

    fn resume_add(&self, add: &PendingAdd) -> StartPlan {
        let Some(members) = self.confirmed() else { return self.wait_for_cluster("the cluster that this node joins") };
        let mine = members.iter().find(|member| Some(member.id) == add.member || self.is_mine(member));
        match mine {
            Some(member) if member.started => {
                let mut steps = vec![Step::RemoveMember(member.id)];
                steps.extend(self.join_steps());
                StartPlan::new(Row::DiskLost, steps)
            }
            Some(member) => StartPlan::new(Row::ResumeAdd, self.resume_steps(member)),
            None => StartPlan::new(Row::Join, self.join_steps()),
        }
    }

    /// No data, and by its own ledger this node never ran. Others may know better.
    fn never_started(&self) -> StartPlan {
        let remembered = self.answers().any(|(_, answer)| answer.remembers_me_started);
        let listed = self.confirmed().and_then(|members| members.iter().find(|member| self.is_mine(member)));
        match (self.confirmed(), listed) {
            (Some(_), Some(member)) if member.started || remembered => {
                let mut steps = vec![Step::RemoveMember(member.id)];
                steps.extend(self.join_steps());
                return StartPlan::new(Row::DiskLost, steps);
            }
            (Some(_), None) if remembered => return StartPlan::new(Row::DiskLost, self.join_steps()),
            (None, _) if remembered => return self.lost_alone(),
            _ => {}
        }
        self.founding(listed)
    }

    fn founding(&self, listed: Option<&ListedMember>) -> StartPlan {
        let promise = match self.wanted_promise() {
            Ok(Some(promise)) => promise,
            Ok(None) => return self.join_or_wait(listed),
            Err(plan) => return plan,
        };
        let (mut waiting, mut disagreeing, mut elsewhere) = (Vec::new(), Vec::new(), false);
        for peer in self.spec.members.iter().map(|member| member.name.as_str()).filter(|peer| *peer != self.name) {
            let founding = match self.seen.peers.get(peer) {
                None | Some(PeerSeen::Unknown(_)) => {
                    waiting.push(peer);
                    continue;
                }
                Some(PeerSeen::Answered(answer)) => &answer.founding,
            };
            match founding {
                PeerFounding::Nothing | PeerFounding::Removed => waiting.push(peer),
                PeerFounding::Promised(theirs)
                    if theirs.declaration == promise.declaration && theirs.cluster == promise.cluster => {}
                PeerFounding::Promised(_) => disagreeing.push(peer),
                PeerFounding::Founded(cluster) if *cluster == promise.cluster => {}
                PeerFounding::Founded(_) => {
                    elsewhere = true;
                    disagreeing.push(peer);
                }
            }
        }
        // Others have long founded their cluster, and this node is new in the file: it joins.
        if elsewhere && self.ledger.state == State::Empty && self.confirmed().is_some() {
            return self.join_or_wait(listed);
        }
        if !disagreeing.is_empty() {
            let why = format!("{} did not promise what this node's file declares", names(disagreeing));
            let way_out = "give every node the same `members`, `token` and `bootstrap`";
            return StartPlan::new(Row::Disagree, refuse(Code::StartDisagree, why, way_out));
        }
        if let Some(plan) = self.store_objects(&promise) {
            return plan;
        }
        let mut steps = Vec::new();
        if self.ledger.state == State::Empty {
            steps.push(Step::Write(State::Promised(promise.clone())));
        }
        if !waiting.is_empty() {
            let why = format!("waiting for {} to promise the same founding", names(waiting));
            steps.extend(wait(
                Code::StartWaiting,
                why,
                "start their agents; a cluster is founded when all have promised",
            ));
            return StartPlan::new(Row::WaitForCluster, steps);
        }
        steps.push(Step::Init { cluster: promise.cluster, member: promise.member });
        steps.push(Step::Write(State::Inited(promise.clone())));
        steps.extend(self.finish_founding(&promise));
        StartPlan::new(Row::Found, steps)
    }

    /// What this node may promise: nothing where nothing is declared or the declaration has been used.
    fn wanted_promise(&self) -> Result<Option<Promise>, StartPlan> {
        let (Some(bootstrap), Some(ids)) = (self.spec.bootstrap, self.spec.founding_ids()) else { return Ok(None) };
        let Some(member) = ids.members.get(self.name) else { return Ok(None) };
        let declaration = self.spec.declaration_hash();
        let promise = Promise {
            bootstrap: bootstrap.id,
            declaration,
            cluster: ids.cluster,
            member: *member,
            members: self.spec.members.iter().map(|member| member.name.clone()).collect(),
        };
        match &self.ledger.state {
            State::Promised(earlier) | State::Inited(earlier) if *earlier != promise => {
                let why = format!("this node promised founding {} of another declaration", earlier.bootstrap);
                let way_out = "bring the old file back, or `quorate data reset --yes` and declare another `bootstrap`";
                Err(StartPlan::new(Row::Disagree, refuse(Code::StartDisagree, why, way_out)))
            }
            State::Empty
            | State::Promised(_)
            | State::Inited(_)
            | State::Started(_)
            | State::PendingAdd(_)
            | State::Tombstone(_) => Ok((!self.ledger.consumed.contains(&bootstrap.id)).then_some(promise)),
        }
    }

    fn store_objects(&self, promise: &Promise) -> Option<StartPlan> {
        match &self.seen.store {
            StoreSeen::NotDeclared | StoreSeen::Empty => None,
            StoreSeen::Chain { cluster: Some(cluster), .. } if *cluster != promise.cluster => None,
            StoreSeen::Chain { .. } => Some(self.backup_exists()),
            StoreSeen::Unknown(why) => {
                let why = format!("cannot tell whether a backup of this cluster exists: {why}");
                let steps = wait(Code::StartWaiting, why, "a store that does not answer is not taken for empty");
                Some(StartPlan::new(Row::WaitForCluster, steps))
            }
        }
    }

    fn join_or_wait(&self, listed: Option<&ListedMember>) -> StartPlan {
        match (self.confirmed(), listed) {
            (Some(_), Some(member)) => StartPlan::new(Row::ResumeAdd, self.resume_steps(member)),
            (Some(_), None) => StartPlan::new(Row::Join, self.join_steps()),
            (None, _) if self.only_member() && matches!(self.seen.store, StoreSeen::Chain { .. }) => {
                self.backup_exists()
            }
            (None, _) => match self.spec.bootstrap {
                Some(bootstrap) if self.ledger.consumed.contains(&bootstrap.id) => {
                    self.wait_for_cluster(&format!("a cluster; founding {} has been used here", bootstrap.id))
                }
                Some(_) | None => self.wait_for_cluster("a cluster, or for `bootstrap: {id: 1}` to declare one"),
            },
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
                if Some(*cluster) != mine && !self.ledger.was.contains(cluster) =>
            {
                nothing(format!("{what}, and the store holds cluster `{cluster}`, which is another one"))
            }
            StoreSeen::Chain { revision: Some(revision), .. } => {
                let mut steps = self.archive();
                steps.push(Step::Restore { revision: *revision });
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

    fn backup_exists(&self) -> StartPlan {
        let why = "there is no data, but a backup of this cluster";
        let way_out =
            "`quorate backup restore` brings it back; to begin with nothing, declare `bootstrap` with a new id";
        StartPlan::new(Row::BackupExists, refuse(Code::StartBackupExists, why, way_out))
    }

    fn lost_alone(&self) -> StartPlan {
        let why = "the data of this member is gone, and the other members do not answer";
        StartPlan::new(Row::LostAlone, wait(Code::StartDiskLost, why, "mount the disk, or bring the others back"))
    }

    fn wait_for_cluster(&self, what: &str) -> StartPlan {
        let steps = wait(Code::StartWaiting, format!("waiting for {what}"), "see `quorate explain Q0950`");
        StartPlan::new(Row::WaitForCluster, steps)
    }

    /// Written down by this node and by every peer before etcd first runs.
    fn finish_founding(&self, promise: &Promise) -> Vec<Step> {
        let identity = Identity { cluster: promise.cluster, member: promise.member, origin: Origin::Founded };
        let mut steps = Vec::new();
        if self.spec.members.len() > 1 {
            steps.push(Step::TellPeers);
        }
        steps.extend([Step::Write(State::Started(identity)), Step::Start { joining: false }]);
        steps
    }

    /// The ledger first, so that an answer that is lost is found again.
    fn join_steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        if let ClusterSeen::Confirmed { cluster, .. } = &self.seen.cluster {
            let add = PendingAdd {
                cluster: *cluster,
                member: None,
                peer_urls: self.peer_urls().to_vec(),
                replaces: None,
                generation: 0,
            };
            steps.push(Step::Write(State::PendingAdd(add)));
        }
        steps.extend([Step::AddLearner, Step::Start { joining: true }, Step::Promote]);
        steps
    }

    fn resume_steps(&self, member: &ListedMember) -> Vec<Step> {
        let mut steps = Vec::new();
        if let ClusterSeen::Confirmed { cluster, .. } = &self.seen.cluster {
            let add = PendingAdd {
                cluster: *cluster,
                member: Some(member.id),
                peer_urls: member.peer_urls.clone(),
                replaces: None,
                generation: 0,
            };
            steps.push(Step::Write(State::PendingAdd(add)));
        }
        steps.extend([Step::Start { joining: true }, Step::Promote]);
        steps
    }

    fn archive(&self) -> Vec<Step> {
        if matches!(self.seen.data, DataSeen::There(_)) { vec![Step::Archive] } else { Vec::new() }
    }

    /// A disk that ends before what this member has acknowledged was rolled back: as good as damaged.
    fn verdict(&self, facts: &DataFacts) -> Verdict {
        let acknowledged = self.answers().filter_map(|(_, answer)| answer.acknowledged).max();
        match (&facts.verdict, facts.last_index, acknowledged) {
            (Verdict::Valid | Verdict::RepairableTail(_), Some(last), Some(acknowledged)) if last < acknowledged => {
                Verdict::Corrupt(format!("its log ends at {last}, and this member acknowledged {acknowledged}"))
            }
            (verdict, ..) => verdict.clone(),
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

    fn answers(&self) -> impl Iterator<Item = (&str, &super::PeerAnswer)> {
        self.seen.peers.iter().filter_map(|(name, peer)| match peer {
            PeerSeen::Answered(answer) => Some((name.as_str(), answer)),
            PeerSeen::Unknown(_) => None,
        })
    }

    fn confirmed(&self) -> Option<&[ListedMember]> {
        match &self.seen.cluster {
            ClusterSeen::Confirmed { members, .. } => Some(members),
            ClusterSeen::Unreachable(_) => None,
        }
    }

    fn peer_urls(&self) -> &[String] {
        self.spec.member(self.name).map_or(&[], |member| member.peer_urls.as_slice())
    }

    fn is_mine(&self, member: &ListedMember) -> bool {
        member.name == self.name || member.peer_urls.iter().any(|url| self.peer_urls().contains(url))
    }

    /// Nobody else is declared, was ever confirmed, or is listed now.
    fn only_member(&self) -> bool {
        let declared = self.spec.members.iter().all(|member| member.name == self.name);
        let confirmed = self.ledger.confirmed.as_ref().is_none_or(|confirmed| confirmed.members.len() <= 1);
        declared && confirmed && self.confirmed().is_none_or(|members| members.len() <= 1)
    }
}
