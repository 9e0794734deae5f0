//! Where this node, or a member that it is about to replace, was seen to run on another machine.
//!
//! **Rule:** silence is a value of its own. A machine is taken for gone only where everyone who would have to know was asked and
//! answered that it is.

use std::collections::{BTreeMap, BTreeSet};

use quorate_etcd_formats::membership::{ClusterId, MemberId};

/// What was seen of other machines with this node's name, address or member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sightings {
    /// The leases by which agents hold the names of their nodes.
    pub leases: LeasesSeen,
    /// The agent at this node's own address.
    pub agent: AgentSeen,
    /// Servers that answer at the client or peer URLs of this node, or of a member in its place. This machine runs none of them.
    pub answering: Vec<Answering>,
    /// The members that each voter is connected with, by the voter's id. One that is missing here did not tell: unknown.
    pub views: BTreeMap<MemberId, BTreeSet<MemberId>>,
}

/// The leases of node names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeasesSeen {
    /// They could not be read, and why.
    Unknown(String),
    /// By node name; one that is missing here is held by no agent.
    Held(BTreeMap<String, Holder>),
}

/// The agent that holds the lease of a node name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Holder {
    /// An agent on this very machine, with this state dir.
    ThisMachine,
    /// Another one, and what it says of itself.
    Another(String),
}

/// The lease by which another machine holds the name of this node, as it was observed once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObservedLease {
    /// Its id.
    pub lease: i64,
    /// The revision at which the name was last written.
    pub written: u64,
    /// The term of the cluster while it was observed.
    pub term: u64,
    /// Seconds that the lease has left.
    pub left: i64,
}

impl ObservedLease {
    /// Whether another machine runs as this node: between both it wrote the name again, or renewed its lease. A lease that is left
    /// behind only runs out, but for a new leader, which lets every lease live for its whole time again.
    pub fn is_kept_since(&self, before: &ObservedLease) -> bool {
        let renewed = self.lease == before.lease && self.term == before.term && self.left > before.left;
        renewed || self.written > before.written
    }
}

/// The agent at this node's own address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AgentSeen {
    /// None answered, and why.
    Silent(String),
    /// This very agent, or one of another name.
    ThisMachine,
    /// An agent of this name on another machine, and what it says of itself.
    Another(String),
}

/// A server that answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answering {
    /// Where.
    pub url: String,
    /// Its cluster.
    pub cluster: ClusterId,
    /// Which member of it.
    pub member: MemberId,
    /// The name of that member.
    pub name: String,
    /// Where peers reach it.
    pub peer_urls: Vec<String>,
}

impl Sightings {
    /// Nothing was seen, and nobody was asked.
    pub fn none(why: &str) -> Sightings {
        Sightings {
            leases: LeasesSeen::Unknown(why.to_owned()),
            agent: AgentSeen::Silent(why.to_owned()),
            answering: Vec::new(),
            views: BTreeMap::new(),
        }
    }
}

/// The voter whose metrics these are, and the members that it is connected with. None: it is no page of an etcd that knows a leader.
pub fn connected_in(metrics: &str) -> Option<(MemberId, BTreeSet<MemberId>)> {
    let label = |line: &str, name: &str| {
        let (_, rest) = line.split_once(&format!("{name}=\""))?;
        let (id, _) = rest.split_once('"')?;
        u64::from_str_radix(id, 16).ok().map(MemberId)
    };
    let is_one = |line: &&str| line.rsplit_once(' ').is_some_and(|(_, value)| value == "1");
    let lines = || metrics.lines().filter(is_one);
    lines().find(|line| line.starts_with("etcd_server_has_leader "))?;
    let voter = lines().find_map(|line| label(line.strip_prefix("etcd_server_id{")?, "server_id"))?;
    let active = lines().filter_map(|line| line.strip_prefix("etcd_network_active_peers{"));
    let active = active.filter(|line| label(line, "Local") == Some(voter));
    Some((voter, active.filter_map(|line| label(line, "Remote")).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_from_the_metrics_of_a_voter_whom_it_is_connected_with() {
        let page = |leader: u8| {
            format!(
                "# HELP etcd_network_active_peers The current number of active peer connections.\n\
                 etcd_network_active_peers{{Local=\"64aee1ecd2cd09aa\",Remote=\"4fa144323b14869d\"}} 0\n\
                 etcd_network_active_peers{{Local=\"64aee1ecd2cd09aa\",Remote=\"d040b8b9ac19669\"}} 1\n\
                 etcd_network_active_peers{{Local=\"1\",Remote=\"2\"}} 1\n\
                 etcd_server_has_leader {leader}\netcd_server_id{{server_id=\"64aee1ecd2cd09aa\"}} 1\n"
            )
        };
        let with = BTreeSet::from([MemberId(0x0d04_0b8b_9ac1_9669)]);
        assert_eq!(connected_in(&page(1)), Some((MemberId(0x64ae_e1ec_d2cd_09aa), with)));
        assert_eq!(connected_in(&page(0)), None, "one without a leader tells nothing");
        assert_eq!(connected_in("etcd_server_has_leader 1\n"), None);
        assert_eq!(connected_in("etcd_server_id{server_id=\"zz\"} 1\netcd_server_has_leader 1"), None);
    }

    #[test]
    fn a_lease_that_runs_out_is_not_kept_and_a_new_leader_does_not_keep_it() {
        let first = ObservedLease { lease: 7, written: 40, term: 3, left: 4 };
        for left in [4, 3, 0] {
            assert!(!ObservedLease { left, ..first }.is_kept_since(&first));
        }
        assert!(!ObservedLease { left: 6, term: 4, ..first }.is_kept_since(&first), "of a new leader");
        assert!(ObservedLease { left: 5, ..first }.is_kept_since(&first));
        assert!(ObservedLease { lease: 8, written: 41, ..first }.is_kept_since(&first));
    }
}
