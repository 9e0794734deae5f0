//! Clients outside of a rotation of the client authority: the reports of all nodes, and which clients a phase would lock out.
//!
//! **Rule:** connections of agents are no clients; a connection whose age is not known is as old as it can be.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use jiff::Timestamp;
use quorate_agent::turn::{ClientConnection, ClientConnections};
use quorate_pki::RotationPhase;
use serde::Serialize;

use crate::render::Page;

/// What samples cannot show.
pub(super) const UNSEEN: &str = "agents sample connections every 10 s: no client but agents was seen in the last ten minutes, \
                                 and one that connects for a shorter time now and then is not seen";

/// What one node reports.
pub(super) struct ClientReport {
    pub(super) node: String,
    /// When it was queried, in ms since 1970, on the clock of this machine.
    pub(super) asked_ms: u64,
    /// Who is connected to it, or why that is not known.
    pub(super) clients: Result<ClientConnections, String>,
}

/// Clients that are not agents.
#[derive(Default, Serialize)]
pub(super) struct Clients {
    /// Those that were connected in the last ten minutes, or those with connections from before the end of `issue`.
    connected: Vec<Outside>,
    /// Nodes that do not report who is connected to them.
    unknown: Vec<String>,
    /// Whether these are the connections that are open since before the end of `issue`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    older: bool,
}

/// One address that clients connect from.
#[derive(Serialize)]
struct Outside {
    from: IpAddr,
    /// The nodes that it is connected to.
    to: BTreeSet<String>,
    /// When its oldest connection was first seen, in ms since 1970; 0: before the agents began to sample.
    since_ms: u64,
}

impl Clients {
    /// Those that were connected in the last ten minutes.
    pub(super) fn recent(reports: &[ClientReport]) -> Clients {
        Clients::of(reports, |_, _| true)
    }

    /// Those with a connection that is open since before the end of `issue`; where that is not on record, every open one counts.
    pub(super) fn older(reports: &[ClientReport], issued: Option<Timestamp>) -> Clients {
        let issued_ms = issued.and_then(|at| u64::try_from(at.as_millisecond()).ok());
        let counts = |report: (u64, u64), one: &ClientConnection| {
            let (asked_ms, now_ms) = report;
            // On the clock of the node, which may differ from that of this machine.
            let issued_there =
                issued_ms.filter(|_| now_ms > 0).map(|issued| issued.saturating_add(now_ms).saturating_sub(asked_ms));
            let newer = one.opened_after_ms.zip(issued_there).is_some_and(|(after, issued)| after >= issued);
            one.open && !newer
        };
        Clients { older: true, ..Clients::of(reports, counts) }
    }

    /// Those that count: by the times of the query and of the report, and the connection.
    fn of(reports: &[ClientReport], counts: impl Fn((u64, u64), &ClientConnection) -> bool) -> Clients {
        let known = || reports.iter().filter_map(|one| Some((one, one.clients.as_ref().ok()?)));
        let own: BTreeSet<&SocketAddr> = known().flat_map(|(_, clients)| &clients.own).collect();
        let mut connected: BTreeMap<IpAddr, Outside> = BTreeMap::new();
        for (report, clients) in known() {
            let times = (report.asked_ms, clients.now_ms);
            let outside = clients.incoming.iter().filter(|one| !own.contains(&one.from));
            for one in outside.filter(|one| counts(times, one)) {
                let from = one.from.ip();
                let new = Outside { from, to: BTreeSet::new(), since_ms: u64::MAX };
                let known = connected.entry(from).or_insert(new);
                known.to.insert(report.node.clone());
                known.since_ms = known.since_ms.min(one.since_ms.unwrap_or(0));
            }
        }
        let unknown = reports.iter().filter(|one| one.clients.is_err()).map(|one| one.node.clone());
        Clients { connected: connected.into_values().collect(), unknown: unknown.collect(), older: false }
    }

    /// Whether there is nothing to stop for.
    pub(super) fn is_empty(&self) -> bool {
        self.connected.is_empty() && self.unknown.is_empty()
    }

    /// Why the rotation stopped before this phase, and how to continue it.
    pub(super) fn render(&self, phase: RotationPhase, page: &mut Page) {
        if self.is_empty() {
            return;
        }
        page.gap();
        let lose = match phase {
            RotationPhase::Drop if self.older => {
                "these connections are open since before the end of `issue`: their clients showed certificates of the old client \
                 authority, which stop working in the next phase"
            }
            RotationPhase::Drop => "certificates of the old client authority stop working in the next phase",
            RotationPhase::Trust | RotationPhase::Issue | RotationPhase::Done => {
                "clients without the new client authority lose etcd in the next phase"
            }
        };
        page.line(format!("stopped: {lose}"));
        page.table(["client", "connected to", "since"], self.connected.iter().map(Outside::row));
        for node in &self.unknown {
            page.line(format!("`{node}` does not report who is connected to it"));
        }
        page.line("connections are sampled every 10 s: clients that connect for a shorter time are not listed");
        if self.older {
            page.line("restart these clients with certificates of the new authority, then run the same command again;");
            page.line("where they load new certificates when they reconnect, add `--allow-old-connections`");
        } else {
            page.line("when every client is prepared, run the same command with `--clients-updated`");
        }
    }
}

impl Outside {
    fn row(&self) -> [String; 3] {
        let since =
            i64::try_from(self.since_ms).ok().filter(|ms| *ms > 0).and_then(|ms| Timestamp::from_millisecond(ms).ok());
        let since = since.map_or_else(|| "the start of the agent or earlier".to_owned(), |since| format!("{since:.0}"));
        let to: Vec<&str> = self.to.iter().map(String::as_str).collect();
        [self.from.to_string(), to.join(", "), since]
    }
}

/// The time on the clock of this machine, in ms since 1970.
pub(super) fn now_ms() -> u64 {
    u64::try_from(Timestamp::now().as_millisecond()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(last: u8) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, last], 4000))
    }

    fn connection(last: u8, opened_after_ms: Option<u64>, open: bool) -> ClientConnection {
        ClientConnection { from: at(last), since_ms: opened_after_ms.map(|ms| ms + 10), opened_after_ms, open }
    }

    fn report(now_ms: u64, incoming: Vec<ClientConnection>) -> ClientReport {
        let clients = Ok(ClientConnections { incoming, own: vec![at(1)], now_ms });
        ClientReport { node: "n1".to_owned(), asked_ms: 1_000_000, clients }
    }

    fn from(clients: &Clients) -> Vec<IpAddr> {
        clients.connected.iter().map(|one| one.from).collect()
    }

    #[test]
    fn finds_connections_from_before_the_end_of_issue_on_the_clock_of_the_node() {
        let issued = Timestamp::from_millisecond(900_000).ok();
        let old_and_new = |shift: u64| {
            vec![
                connection(1, None, true),
                connection(2, None, true),
                connection(3, Some(899_999 + shift), true),
                connection(4, Some(900_000 + shift), true),
                connection(5, Some(100 + shift), false),
            ]
        };
        for shift in [0, 5_000_000] {
            let reports = [report(1_000_000 + shift, old_and_new(shift))];
            assert_eq!(from(&Clients::older(&reports, issued)), [at(2).ip(), at(3).ip()]);
        }
        // By an agent or a command of an earlier release, every open one counts.
        for (now_ms, issued) in [(0, issued), (1_000_000, None)] {
            let reports = [report(now_ms, old_and_new(0))];
            assert_eq!(from(&Clients::older(&reports, issued)), [at(2).ip(), at(3).ip(), at(4).ip()]);
        }
        let all = Clients::recent(&[report(1_000_000, old_and_new(0))]);
        assert_eq!(from(&all), [2, 3, 4, 5].map(|last| at(last).ip()));
    }
}
