//! A node without etcd: it carries clients to the members, and says how that goes.
//!
//! **Rule:** ready is who listens and reaches a member that knows a leader; the proxy itself is not ours: it outlives this life.

use std::time::Duration;

use quorate_faults::Code;
use quorate_plan::ledger::{LedgerSeen, State};
use quorate_plan::peering::Role;
use quorate_plan::phase::Phase;
use quorate_plan::start::Halt;

use super::{Agent, Finish};
use crate::peering::{PASSING_PORT, point};

/// Between two looks at the proxy.
const LOOK: Duration = Duration::from_millis(300);
/// How long the proxy may take to let go of a port.
const RELEASE_LIMIT: Duration = Duration::from_secs(2);

impl Agent {
    /// Whether this node is a client, and all that was left of a member is out of the way.
    pub(super) fn is_client(&self) -> bool {
        let over = match self.book.read() {
            LedgerSeen::Absent => true,
            LedgerSeen::There(ledger) => match ledger.state {
                State::Empty | State::Tombstone(_) | State::PendingAdd(_) => true,
                State::Promised(_) | State::Inited(_) | State::Started(_) => false,
            },
            LedgerSeen::Unreadable(_) => false,
        };
        let data = self.node.target.data_dir().join("member").exists();
        self.peering.role() == Some(Role::Client) && !self.node.is_declared() && over && !data
    }

    /// Is one until something else is to be done (`None`), or until the end.
    pub(super) async fn be_client(&mut self) -> Option<Finish> {
        while self.is_client() {
            let now = self.peering.proxy.now();
            let serves = self.peering.proxy.serves();
            let listens = now.listens.join(", ");
            self.shared.change(|status| status.client = Some(now));
            self.shared.read(serves);
            match serves {
                true => self.shared.phase(Phase::Serving, format!("as a client: {listens} leads to the members")),
                false => self.shared.halt(Phase::Waiting, &waits(&listens)),
            }
            if self.once {
                return Some(Finish::Left);
            }
            tokio::select! {
                () = tokio::time::sleep(LOOK) => {}
                wish = self.wished() => return Some(self.leave(&wish)),
            }
        }
        self.shared.read(false);
        self.shared.change(|status| status.client = None);
        self.shared.phase(Phase::Observing, "this node is no client any more");
        None
    }

    /// etcd is about to be started: the port is its own, unless it answers elsewhere until it votes.
    pub(super) async fn take_port(&self) {
        let passing = format!(":{PASSING_PORT}");
        let elsewhere = self.node.member.client_urls.iter().any(|url| url.ends_with(&passing));
        if !elsewhere && !self.peering.proxy.listening().is_empty() {
            self.peering.proxy.release(RELEASE_LIMIT).await;
            point("port-released");
        }
    }
}

fn waits(listens: &str) -> Halt {
    let why = match listens.is_empty() {
        true => "the port where clients connect is not free".to_owned(),
        false => "no member of the cluster can be reached, or none knows a leader".to_owned(),
    };
    Halt { code: Code::NoUpstream, why, way_out: "see `quorate explain Q1227`".to_owned(), lost: None }
}
