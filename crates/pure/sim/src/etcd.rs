//! What etcd keeps on a disk: a log with a synced and an unsynced half, its vote, and the members that its log leads to.

use quorate_etcd_formats::membership::{ClusterId, MemberId};

/// One entry of a log. Numbers make entries of different lives different.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) term: u32,
    pub(crate) op: Op,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Op {
    /// A new leader's first word.
    Noop(u32),
    /// A client's write.
    Write(u32),
    /// A founding member, or a learner.
    Add {
        id: MemberId,
        node: usize,
        learner: bool,
        /// Its address, of those that its machine may have.
        at: u8,
    },
    /// A member is found at another address.
    Move {
        id: MemberId,
        at: u8,
    },
    Promote(MemberId),
    Remove(MemberId),
    /// A member tells its client URLs: it has started.
    Publish(MemberId),
}

impl Op {
    pub(crate) fn changes_members(self) -> bool {
        matches!(self, Op::Add { .. } | Op::Move { .. } | Op::Promote(_) | Op::Remove(_))
    }
}

/// A data dir.
#[derive(Debug, Clone)]
pub(crate) struct Data {
    pub(crate) cluster: ClusterId,
    pub(crate) member: MemberId,
    pub(crate) log: Vec<Entry>,
    /// So much of it outlives a power cut.
    pub(crate) synced: usize,
    pub(crate) commit: usize,
    pub(crate) term: u32,
    pub(crate) torn: bool,
    pub(crate) corrupt: bool,
    /// The node that it was made on.
    pub(crate) made_for: usize,
}

/// A member, as a log leads to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) id: MemberId,
    pub(crate) node: usize,
    pub(crate) learner: bool,
    pub(crate) started: bool,
    /// The address that the others know.
    pub(crate) at: u8,
}

/// The members that a log leads to.
#[derive(Debug, Clone, Default)]
pub(crate) struct Config {
    pub(crate) members: Vec<Member>,
    pub(crate) removed: Vec<MemberId>,
}

impl Config {
    pub(crate) fn of(log: &[Entry]) -> Config {
        let mut config = Config::default();
        for entry in log {
            match entry.op {
                Op::Noop(_) | Op::Write(_) => {}
                Op::Add { id, node, learner, at } => {
                    config.members.push(Member { id, node, learner, started: false, at });
                }
                Op::Move { id, at } => config.each(id, |member| member.at = at),
                Op::Promote(id) => config.each(id, |member| member.learner = false),
                Op::Publish(id) => config.each(id, |member| member.started = true),
                Op::Remove(id) => {
                    config.members.retain(|member| member.id != id);
                    config.removed.push(id);
                }
            }
        }
        config
    }

    fn each(&mut self, id: MemberId, change: impl Fn(&mut Member)) {
        self.members.iter_mut().filter(|member| member.id == id).for_each(change);
    }

    pub(crate) fn voters(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|member| !member.learner)
    }

    pub(crate) fn quorum(&self) -> usize {
        self.voters().count() / 2 + 1
    }

    pub(crate) fn get(&self, id: MemberId) -> Option<&Member> {
        self.members.iter().find(|member| member.id == id)
    }
}

impl Data {
    /// What the offline init of a founding makes.
    pub(crate) fn founded(cluster: ClusterId, members: &[(MemberId, usize)], member: MemberId, node: usize) -> Data {
        let at_first: Vec<(MemberId, usize, u8)> = members.iter().map(|(id, node)| (*id, *node, 0)).collect();
        Data::made(cluster, at_first, member, node)
    }

    /// What a restore makes: one member alone.
    pub(crate) fn alone(cluster: ClusterId, member: MemberId, node: usize, at: u8) -> Data {
        Data::made(cluster, vec![(member, node, at)], member, node)
    }

    fn made(cluster: ClusterId, mut members: Vec<(MemberId, usize, u8)>, member: MemberId, node: usize) -> Data {
        members.sort_unstable();
        let add = |(id, node, at)| Entry { term: 1, op: Op::Add { id, node, learner: false, at } };
        let log: Vec<Entry> = members.into_iter().map(add).collect();
        let (synced, commit) = (log.len(), log.len());
        Data { cluster, member, log, synced, commit, term: 1, torn: false, corrupt: false, made_for: node }
    }

    /// What a server that joins begins with.
    pub(crate) fn joining(cluster: ClusterId, member: MemberId, node: usize) -> Data {
        let log = Vec::new();
        Data { cluster, member, log, synced: 0, commit: 0, term: 0, torn: false, corrupt: false, made_for: node }
    }

    /// The members that it knows of.
    pub(crate) fn config(&self) -> Config {
        Config::of(self.log.get(..self.commit).unwrap_or_default())
    }

    /// Whether its log is at least as far as the other one's.
    pub(crate) fn is_up_to_date(&self, other: &Data) -> bool {
        let last = |data: &Data| (data.log.last().map_or(0, |entry| entry.term), data.log.len());
        last(self) >= last(other)
    }

    /// The power is cut: what was not synced is gone, and may leave a torn record.
    pub(crate) fn power_cut(&mut self, torn: bool) {
        self.torn |= torn && self.log.len() > self.synced;
        self.log.truncate(self.synced);
        self.commit = self.commit.min(self.synced);
    }
}
