//! etcd at work, in rounds: votes, logs, what a majority of synced disks holds, and changes of members with etcd's own refusals.

use quorate_etcd_formats::membership::{ClusterId, MemberId};

use crate::etcd::{Config, Data, Entry, Op};
use crate::world::World;

impl World {
    /// One round.
    pub(crate) fn raft(&mut self) {
        for node in 0..self.nodes.len() {
            if self.nodes[node].runs && self.nodes[node].leads && !self.has_quorum(node) {
                self.nodes[node].leads = false;
            }
        }
        let first = self.random.below(self.nodes.len());
        for step in 0..self.nodes.len() {
            let node = (first + step) % self.nodes.len();
            if self.nodes[node].runs && self.leader_near(node).is_none() && self.random.permille(400) {
                self.campaign(node);
            }
        }
        for node in 0..self.nodes.len() {
            if self.nodes[node].runs && self.nodes[node].leads {
                self.replicate(node, false);
                self.publish(node);
                if self.random.permille(250) {
                    let write = Op::Write(self.number());
                    self.propose(node, write);
                }
            }
        }
        self.end_removed();
    }

    /// Where a member runs, as far as others find it under its address.
    fn at(&self, cluster: ClusterId, id: MemberId, node: usize) -> Option<&Data> {
        let it = &self.nodes[node];
        it.data.as_ref().filter(|data| it.runs && data.cluster == cluster && data.member == id)
    }

    /// Whether two servers of a cluster talk: one of them has to know where the other one is.
    pub(crate) fn meets(&self, from: usize, to: usize, config: &Config) -> bool {
        let right = |node: usize| {
            let member = config.members.iter().find(|member| member.node == node);
            member.is_none_or(|member| member.at == self.nodes[node].listens)
        };
        from == to || self.linked(from, to) && self.are_peers(from, to) && (right(from) || right(to))
    }

    /// Whether a leader reaches a quorum of its voters.
    fn has_quorum(&self, leader: usize) -> bool {
        let Some(data) = &self.nodes[leader].data else { return false };
        let config = data.config();
        let near = config.voters().filter(|voter| {
            let met = self.meets(leader, voter.node, &config);
            let there = met.then(|| self.at(data.cluster, voter.id, voter.node)).flatten();
            there.is_some_and(|there| there.term <= data.term)
        });
        near.count() >= config.quorum()
    }

    /// The leader that a node reaches, of its own cluster.
    fn leader_near(&self, node: usize) -> Option<usize> {
        let mine = self.nodes[node].data.as_ref()?;
        (0..self.nodes.len()).find(|leader| {
            let it = &self.nodes[*leader];
            it.runs
                && it.leads
                && it.data.as_ref().is_some_and(|data| {
                    data.cluster == mine.cluster && data.term >= mine.term && self.meets(node, *leader, &data.config())
                })
        })
    }

    /// Whether the etcd of a node follows a leader, or leads.
    pub(crate) fn knows_leader(&self, node: usize) -> bool {
        self.leader_near(node).is_some_and(|leader| self.has_quorum(leader))
    }

    /// A leader with a quorum, asked through any server that `from` reaches. Whether it is ours is for the asker to say.
    pub(crate) fn leader_for(&self, from: usize, through: usize) -> Option<usize> {
        if !self.nodes[through].runs || !self.reaches(from, through) {
            return None;
        }
        self.leader_near(through).filter(|leader| self.has_quorum(*leader))
    }

    pub(crate) fn campaign(&mut self, node: usize) {
        let Some(mine) = self.nodes[node].data.clone() else { return };
        let config = mine.config();
        if config.get(mine.member).is_none_or(|me| me.learner) {
            return;
        }
        let near: Vec<usize> = config
            .voters()
            .filter(|voter| {
                let met = self.meets(node, voter.node, &config);
                met && self.at(mine.cluster, voter.id, voter.node).is_some()
            })
            .map(|voter| voter.node)
            .collect();
        let data = |voter: &usize| self.nodes[*voter].data.as_ref();
        let term = near.iter().filter_map(data).map(|data| data.term).max().unwrap_or(0) + 1;
        let voters = near.iter().filter(|voter| data(voter).is_some_and(|data| mine.is_up_to_date(data)));
        if voters.count() < config.quorum() {
            return;
        }
        for voter in &near {
            self.nodes[*voter].leads = false;
            if let Some(data) = &mut self.nodes[*voter].data {
                data.term = term;
            }
        }
        self.nodes[node].leads = true;
        self.tell(Some(node), format!("leads cluster {} in term {term}", mine.cluster));
        let word = Op::Noop(self.number());
        self.propose(node, word);
    }

    /// Appends to the leader's log and tries to have it committed. Says whether it was, as far as the asker can tell.
    pub(crate) fn propose(&mut self, leader: usize, op: Op) -> bool {
        let Some(data) = &mut self.nodes[leader].data else { return false };
        data.log.push(Entry { term: data.term, op });
        let index = data.log.len();
        self.replicate(leader, true);
        self.nodes[leader].data.as_ref().is_some_and(|data| data.commit >= index)
    }

    /// Sends the log to everyone near, and commits what a quorum has synced.
    pub(crate) fn replicate(&mut self, leader: usize, eager: bool) {
        let Some(mut mine) = self.nodes[leader].data.clone() else { return };
        mine.synced = mine.log.len();
        let config = mine.config();
        let mut holds: Vec<(MemberId, usize)> = vec![(mine.member, mine.synced)];
        for member in &config.members {
            let near = member.node != leader && self.meets(leader, member.node, &config);
            if !near || self.at(mine.cluster, member.id, member.node).is_none() {
                continue;
            }
            let slow = !eager && self.random.permille(200);
            let synced = eager || self.random.permille(800);
            if let Some(theirs) = &mut self.nodes[member.node].data
                && theirs.term <= mine.term
                && !slow
            {
                follow(theirs, &mine, synced);
                holds.push((member.id, theirs.synced));
                self.nodes[member.node].leads = false;
            }
        }
        let mut ends: Vec<usize> = Vec::new();
        for voter in config.voters() {
            ends.extend(holds.iter().find(|(id, _)| *id == voter.id).map(|(_, synced)| *synced));
        }
        ends.sort_unstable_by(|a, b| b.cmp(a));
        if let Some(end) = ends.get(config.quorum() - 1).copied()
            && end > mine.commit
            && mine.log.get(end - 1).is_some_and(|entry| entry.term == mine.term)
        {
            mine.commit = end;
        }
        let (cluster, committed) = (mine.cluster, mine.log.get(..mine.commit).unwrap_or_default().to_vec());
        self.nodes[leader].data = Some(mine);
        self.note_committed(leader, cluster, &committed);
    }

    /// Members tell that they have started.
    fn publish(&mut self, leader: usize) {
        let Some(data) = &self.nodes[leader].data else { return };
        let config = data.config();
        let silent = config.members.iter().copied().find(|member| {
            let near = self.meets(leader, member.node, &config);
            !member.started && near && self.at(data.cluster, member.id, member.node).is_some()
        });
        let pending = |id| data.log.iter().skip(data.commit).any(|entry| entry.op == Op::Publish(id));
        if let Some(member) = silent
            && !pending(member.id)
        {
            self.propose(leader, Op::Publish(member.id));
        }
    }

    /// A change of members, with etcd's refusals.
    pub(crate) fn change_members(&mut self, leader: usize, op: Op) -> Result<(), String> {
        let Some(data) = &self.nodes[leader].data else { return Err("no leader".to_owned()) };
        let config = data.config();
        if data.log.iter().skip(data.commit).any(|entry| entry.op.changes_members()) {
            return Err("another change is not committed yet".to_owned());
        }
        let alive =
            |id: MemberId, node: usize| self.meets(leader, node, &config) && self.at(data.cluster, id, node).is_some();
        match op {
            Op::Add { node, .. } if config.members.iter().any(|member| member.node == node) => {
                return Err("peer URL exists".to_owned());
            }
            Op::Add { .. } if self.old_etcd && !config.voters().all(|voter| alive(voter.id, voter.node)) => {
                return Err("unhealthy cluster".to_owned());
            }
            Op::Add { .. }
                // The new one is counted as a voter that is down, but for a cluster of one.
                if config.voters().count() > 1
                    && config.voters().filter(|voter| alive(voter.id, voter.node)).count()
                        < config.voters().count().div_ceil(2) + 1 =>
            {
                return Err("unhealthy cluster".to_owned());
            }
            Op::Add { learner: true, .. } if config.members.iter().any(|member| member.learner) => {
                return Err("too many learner members in cluster".to_owned());
            }
            Op::Remove(id) | Op::Move { id, .. } if config.get(id).is_none() => {
                return Err("member not found".to_owned());
            }
            Op::Remove(id) => {
                let rest: Vec<_> = config.voters().filter(|voter| voter.id != id).collect();
                let started = rest.iter().filter(|voter| alive(voter.id, voter.node)).count();
                if started < rest.len() / 2 + 1 {
                    return Err("unhealthy cluster".to_owned());
                }
            }
            Op::Promote(id) => {
                let learner = config.get(id).filter(|member| member.learner);
                let Some(member) = learner else { return Err("can only promote a learner member".to_owned()) };
                let theirs = self.at(data.cluster, id, member.node);
                if theirs.is_none_or(|theirs| theirs.synced * 10 < data.commit * 9 || !alive(id, member.node)) {
                    return Err("can only promote a learner member which is in sync with leader".to_owned());
                }
            }
            Op::Noop(_) | Op::Write(_) | Op::Publish(_) | Op::Add { .. } | Op::Move { .. } => {}
        }
        let before = self.live_quorum(data.cluster, &config);
        let cluster = data.cluster;
        if !self.propose(leader, op) {
            return Err("request timed out".to_owned());
        }
        let after = self.nodes[leader].data.as_ref().map(Data::config).unwrap_or_default();
        if before && !self.live_quorum(cluster, &after) {
            self.break_rule(format!("a change of members took the quorum of cluster {cluster} away"));
        }
        Ok(())
    }

    /// Whether enough voters run at all.
    fn live_quorum(&self, cluster: ClusterId, config: &Config) -> bool {
        let alive = config.voters().filter(|voter| self.at(cluster, voter.id, voter.node).is_some());
        config.voters().count() > 0 && alive.count() >= config.quorum()
    }

    /// Servers whose members were removed end when they hear of it.
    fn end_removed(&mut self) {
        for node in 0..self.nodes.len() {
            let Some(mine) = self.nodes[node].data.as_ref().filter(|_| self.nodes[node].runs) else { continue };
            let told = self.leader_near(node).and_then(|leader| self.nodes[leader].data.as_ref());
            let member = mine.member;
            if told.is_some_and(|told| told.config().removed.contains(&member)) {
                let it = &mut self.nodes[node];
                (it.runs, it.leads, it.checked) = (false, false, None);
                it.ended_removed += 1;
                let often = it.ended_removed;
                self.tell(Some(node), format!("etcd ends: member {member} was removed"));
                if often > 12 {
                    self.break_rule(format!("a removed member is started again and again on node {}", node + 1));
                }
            }
        }
    }
}

/// A follower takes over its leader's log.
fn follow(theirs: &mut Data, mine: &Data, synced: bool) {
    theirs.term = mine.term;
    let same = theirs.log.iter().zip(&mine.log).take_while(|(a, b)| a == b).count();
    if same < theirs.log.len() && same < mine.log.len() {
        theirs.log.truncate(same);
    }
    theirs.log.truncate(mine.log.len());
    let from = theirs.log.len();
    theirs.log.extend_from_slice(mine.log.get(from..).unwrap_or_default());
    theirs.synced = theirs.synced.min(same.max(from.min(theirs.synced)));
    if synced {
        theirs.synced = theirs.log.len();
    }
    // What is committed stays so, whoever leads next.
    theirs.commit = theirs.commit.max(mine.commit.min(theirs.synced)).min(theirs.log.len());
}
