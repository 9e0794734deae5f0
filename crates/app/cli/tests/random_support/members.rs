//! Three real members that are killed, stopped and started again.
//!
//! **Rule:** a member is started with the flags and the data dir that it had.

use std::path::{Path, PathBuf};

use quorate_etcd::client::Client;
use quorate_testkit::{Launch, Seat, Server, Tools};

use super::dice::Dice;

/// The cluster.
pub(crate) struct Members {
    tools: Tools,
    seats: Vec<Seat>,
    dirs: Vec<PathBuf>,
    servers: Vec<Option<Server>>,
}

impl Members {
    /// Founds the cluster and waits until it serves.
    pub(crate) fn start(tools: &Tools, root: &Path) -> Members {
        let seats = Seat::many(3);
        let dirs = seats.iter().map(|seat| root.join(&seat.name)).collect();
        let mut members = Members { tools: tools.clone(), seats, dirs, servers: vec![None, None, None] };
        for index in 0..3 {
            members.spawn(index);
        }
        for server in members.servers.iter_mut().flatten() {
            server.wait_ready();
        }
        members
    }

    /// All client URLs.
    pub(crate) fn endpoints(&self) -> Vec<String> {
        self.seats.iter().map(Seat::client_url).collect()
    }

    /// Starts a member that does not run.
    pub(crate) fn spawn(&mut self, index: usize) {
        if self.servers[index].is_some() {
            return;
        }
        let urls: Vec<String> = self.seats.iter().map(|seat| format!("{}={}", seat.name, seat.peer_url())).collect();
        let mut launch = Launch::new(&self.tools, &self.seats[index], &self.dirs[index])
            .arg(format!("--initial-cluster={}", urls.join(",")))
            .arg(format!("--initial-advertise-peer-urls={}", self.seats[index].peer_url()));
        if !self.tools.version.starts_with("3.4.") {
            // The machine does not lose power here, only processes die; so the disk may be fast.
            launch = launch.arg("--unsafe-no-fsync");
        }
        self.servers[index] = Some(launch.spawn());
    }

    /// Ends a member, in order or not.
    pub(crate) fn end(&mut self, index: usize, in_order: bool) {
        if let Some(server) = self.servers[index].take() {
            match in_order {
                true => server.stop(),
                false => server.kill(),
            };
        }
    }

    /// Starts all that do not run, and waits for them.
    pub(crate) fn heal(&mut self) {
        for index in 0..3 {
            self.spawn(index);
        }
        for server in self.servers.iter_mut().flatten() {
            server.wait_ready();
        }
    }

    /// The leader's place in the list, if some member says.
    pub(crate) async fn leader(&self, client: &Client) -> Option<usize> {
        for (index, member) in client.each().enumerate() {
            let Ok(status) = member.status().await else { continue };
            if status.leader != 0 && status.header.unwrap_or_default().member_id == status.leader {
                return Some(index);
            }
        }
        None
    }

    /// Asks the leader to hand over to any other member.
    pub(crate) async fn move_leader(&self, client: &Client, dice: &mut Dice) -> bool {
        let Some(leader) = self.leader(client).await else { return false };
        let other = (leader + dice.between(1, 2) as usize) % 3;
        let members: Vec<Client> = client.each().collect();
        let Ok(status) = members[other].status().await else { return false };
        members[leader].move_leader(status.header.unwrap_or_default().member_id).await.is_ok()
    }
}
