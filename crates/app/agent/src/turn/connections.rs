//! Who is connected to the client port of this node's etcd: sampled, so that a rotation of the client authority knows which
//! clients are outside.
//!
//! **Rule:** connections of agents and of etcd itself are not clients; those of other agents are subtracted by the command that
//! has the answers of all nodes.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use quorate_etcd::client::recently_opened;
use quorate_host::connections::{Connection, observe_connections, observe_sockets};
use serde::{Deserialize, Serialize};

use super::node::Node;
use super::publish::{Shared, now_ms};

/// Between two samples: clients of a control plane stay connected.
const EVERY: Duration = Duration::from_secs(10);
/// A connection that was not seen for so long is dropped from the list.
const REMEMBERED: Duration = Duration::from_secs(600);
/// More are not kept; the newest are.
const MAX: usize = 4096;

/// What a node has seen of connections to client ports.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientConnections {
    /// Connections to this node's etcd, without those of its own agent and of etcd itself.
    pub incoming: Vec<ClientConnection>,
    /// Own ends of this agent's connections to any etcd.
    pub own: Vec<SocketAddr>,
    /// The time on this node's clock, in ms since 1970; 0: the agent is of an earlier release.
    #[serde(default)]
    pub now_ms: u64,
}

/// One connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientConnection {
    /// The client's end.
    pub from: SocketAddr,
    /// When it was first seen, in ms since 1970; `None`: it was there when sampling began.
    pub since_ms: Option<u64>,
    /// The last sample that did not have it: it was opened later than that. `None`: it was there when sampling began.
    #[serde(default)]
    pub opened_after_ms: Option<u64>,
    /// Whether the last sample has it.
    pub open: bool,
}

/// The samples: by the client's end, or by the own end.
#[derive(Debug, Default)]
pub(super) struct Samples {
    incoming: BTreeMap<SocketAddr, Sample>,
    own: BTreeMap<SocketAddr, Sample>,
    /// When the last sample was taken.
    last_ms: Option<u64>,
}

#[derive(Debug, Clone, Copy)]
struct Sample {
    since_ms: Option<u64>,
    opened_after_ms: Option<u64>,
    last_ms: u64,
}

impl Samples {
    fn add(&mut self, incoming: Vec<SocketAddr>, own: Vec<SocketAddr>, now: u64) {
        let since_ms = self.last_ms.map(|_| now);
        let opened_after_ms = self.last_ms;
        let kept = u64::try_from(REMEMBERED.as_millis()).unwrap_or(u64::MAX);
        for (known, seen) in [(&mut self.incoming, incoming), (&mut self.own, own)] {
            for end in seen {
                let new = Sample { since_ms, opened_after_ms, last_ms: now };
                let sample = known.entry(end).or_insert(new);
                // Missing from the last sample, it is another connection from the same port.
                let same = Some(sample.last_ms) == opened_after_ms;
                *sample = if same { Sample { last_ms: now, ..*sample } } else { new };
            }
            known.retain(|_, sample| now.saturating_sub(sample.last_ms) <= kept);
            while known.len() > MAX {
                let oldest = known.iter().min_by_key(|(_, sample)| sample.last_ms).map(|(end, _)| *end);
                oldest.and_then(|end| known.remove(&end));
            }
        }
        self.last_ms = Some(now);
    }

    fn report(&self, now: u64) -> ClientConnections {
        let one = |(from, sample): (&SocketAddr, &Sample)| ClientConnection {
            from: *from,
            since_ms: sample.since_ms,
            opened_after_ms: sample.opened_after_ms,
            // Where no sample could be taken now, what was open stays open.
            open: Some(sample.last_ms) == self.last_ms,
        };
        let own = self.own.keys().copied().collect();
        ClientConnections { incoming: self.incoming.iter().map(one).collect(), own, now_ms: now }
    }
}

impl Shared {
    /// Samples now, and reports what was seen in the last minutes; `None`: nothing was ever seen. Blocks for a moment.
    pub(crate) fn client_connections(&self, node: &Node) -> Option<ClientConnections> {
        let process = || self.status().etcd.map(|etcd| etcd.pid);
        // A connection that is opened while the tables are read is missing from them: the sample is as old as its beginning.
        let (etcd, now) = (process(), now_ms());
        // Of an etcd that was replaced in between nothing is counted.
        let sampled = sample(node, etcd).filter(|_| process() == etcd);
        let mut samples = self.samples();
        if let Some((incoming, own)) = sampled {
            samples.add(incoming, own, now);
        }
        samples.last_ms.is_some().then(|| samples.report(now))
    }
}

/// Samples until the agent ends.
pub(super) async fn watch_clients(node: Arc<Node>, shared: Arc<Shared>) {
    loop {
        let (at, to) = (Arc::clone(&node), Arc::clone(&shared));
        // What cannot be read now is read at the next sample.
        let _ = tokio::task::spawn_blocking(move || to.client_connections(&at).is_some()).await;
        tokio::time::sleep(EVERY).await;
    }
}

/// The clients' ends of connections to this node's etcd, and the own ends of this agent's connections to client ports. `None`: they
/// cannot be told apart now, because etcd has just ended or been replaced.
fn sample(node: &Node, etcd: Option<u32>) -> Option<(Vec<SocketAddr>, Vec<SocketAddr>)> {
    let port_of = |url: &String| url.trim_end_matches('/').rsplit_once(':')?.1.parse::<u16>().ok();
    let here: Vec<u16> =
        node.member.listen_client_urls.iter().chain(&node.member.client_urls).filter_map(port_of).collect();
    let anywhere: Vec<u16> =
        node.spec.members.iter().flat_map(|member| &member.client_urls).filter_map(port_of).collect();
    let all = observe_connections().ok()?;
    let mut ours = observe_sockets(std::process::id()).ok()?;
    // etcd's HTTP gateway is a client of its own port.
    match etcd.map(observe_sockets) {
        Some(Ok(sockets)) => ours.extend(sockets),
        // The sockets of another user's process cannot be read.
        Some(Err(error)) if error.kind() == std::io::ErrorKind::PermissionDenied => {}
        None | Some(Err(_)) => return None,
    }
    let is_ours = |one: &&Connection| ours.contains(&one.inode);
    let mut own: Vec<SocketAddr> = all
        .iter()
        .filter(is_ours)
        .filter(|one| anywhere.contains(&one.remote.port()) && !here.contains(&one.local.port()))
        .map(|one| one.local)
        .collect();
    // Most of its connections are short: they end between two samples.
    own.extend(recently_opened(REMEMBERED));
    // One that has ended since the first look may have been etcd's own: its socket was gone when etcd's were listed.
    let still = observe_connections().ok()?;
    let incoming = all.iter().filter(|one| still.contains(one));
    let incoming = incoming.filter(|one| here.contains(&one.local.port()) && !own.contains(&one.remote));
    Some((incoming.map(|one| one.remote).collect(), own))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(port: u16) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, 9], port))
    }

    #[test]
    fn keeps_when_a_connection_was_first_seen_and_drops_old_ones() {
        let mut samples = Samples::default();
        samples.add(vec![at(1)], vec![at(9)], 1_000);
        samples.add(vec![at(1), at(2)], Vec::new(), 2_000);
        let report = samples.report(2_000);
        assert_eq!(report.own, [at(9)]);
        let shown: Vec<_> = report.incoming.iter().map(|one| (one.from.port(), one.since_ms, one.open)).collect();
        assert_eq!(shown, [(1, None, true), (2, Some(2_000), true)]);
        let after: Vec<_> = samples.report(2_500).incoming.iter().map(|one| (one.opened_after_ms, one.open)).collect();
        assert_eq!(after, [(None, true), (Some(1_000), true)], "without a new sample what was open stays open");
        samples.add(vec![at(2)], Vec::new(), 3_000);
        samples.add(vec![at(1), at(2)], Vec::new(), 4_000);
        let shown: Vec<_> = samples.report(4_000).incoming.iter().map(|one| one.opened_after_ms).collect();
        assert_eq!(shown, [Some(3_000), Some(1_000)], "another connection from the same port");
        samples.add(vec![at(2)], Vec::new(), 700_000);
        let shown: Vec<_> = samples.report(700_000).incoming.iter().map(|one| one.from.port()).collect();
        assert_eq!(shown, [2]);
    }
}
