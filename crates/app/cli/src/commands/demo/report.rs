//! What the demo shows: who is healthy, the member table, the writes, and what to do next.

use std::path::PathBuf;

use owo_colors::OwoColorize;
use quorate_etcd_formats::membership::ClusterId;
use serde::Serialize;

use super::health::Health;
use super::members::Member;
use super::state::Demo;
use crate::render::{self, Page, Report};

/// The width that the member table needs in one piece.
const WIDE_COLUMNS: u16 = 120;

/// How a start found things.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum State {
    /// A new cluster was founded.
    Founded,
    /// All members were down; they went on where they stopped.
    Resumed,
    /// Some members were down.
    Repaired,
    /// Nothing had to be done.
    AlreadyUp,
}

/// A key that was written through one member and read from another.
#[derive(Debug, Serialize)]
pub(super) struct Write {
    pub(super) key: String,
    pub(super) value: String,
    pub(super) through: &'static str,
    pub(super) read_from: &'static str,
}

/// The demo as it is.
#[derive(Debug, Serialize)]
pub(super) struct DemoReport {
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<State>,
    healthy: usize,
    cluster_id: ClusterId,
    dir: PathBuf,
    endpoints: Vec<String>,
    members: Vec<Row>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    writes: Vec<Write>,
    #[serde(skip)]
    next: Next,
}

/// The commands that follow.
#[derive(Debug)]
struct Next {
    read: String,
    cluster: String,
    status: String,
    start: String,
    stop: String,
}

#[derive(Debug, Serialize)]
struct Row {
    name: &'static str,
    member_id: Option<String>,
    peer_url: String,
    client_url: String,
    /// etcd's process.
    pid: Option<u32>,
    agent_pid: Option<u32>,
    phase: String,
    healthy: bool,
    complaint: Option<String>,
    is_leader: bool,
    version: Option<String>,
    db_size: Option<i64>,
    raft_term: Option<u64>,
    raft_index: Option<u64>,
    log: PathBuf,
}

impl DemoReport {
    pub(super) fn new(demo: &Demo, members: &[Member], health: &[Health]) -> DemoReport {
        let rows: Vec<Row> = members.iter().zip(health).map(|(member, health)| row(demo, member, health)).collect();
        let endpoints = demo.endpoints();
        let next = Next {
            read: demo.other_command("ctl --name n1", " get --prefix /demo/"),
            cluster: demo.other_command("cluster status", ""),
            status: demo.command("status"),
            start: demo.command("start"),
            stop: demo.command("stop"),
        };
        DemoReport {
            state: None,
            healthy: rows.iter().filter(|row| row.healthy).count(),
            cluster_id: demo.cluster_id(),
            dir: demo.shown.clone(),
            endpoints,
            members: rows,
            writes: Vec::new(),
            next,
        }
    }

    /// Adds what a start did.
    pub(super) fn after_start(self, state: State, writes: Vec<Write>) -> DemoReport {
        DemoReport { state: Some(state), writes, ..self }
    }

    pub(super) fn all_healthy(&self) -> bool {
        self.healthy == self.members.len()
    }
}

/// What is wrong with a member, if anything is.
pub(super) fn complaint(member: &Member, health: &Health) -> Option<String> {
    let status = &member.status;
    match (member.agent(), member.etcd()) {
        (None, None) => return Some("not running".to_owned()),
        (None, Some(_)) => return Some("etcd runs, and no agent keeps it".to_owned()),
        (Some(_), _) => {}
    }
    if status.phase != "serving" {
        return Some(format!("{}: {}", status.phase, status.cause));
    }
    health.complaint.clone()
}

fn row(demo: &Demo, member: &Member, health: &Health) -> Row {
    let (seat, now) = (&member.seat, &member.status);
    let complaint = complaint(member, health);
    let status = health.status.as_ref();
    let own_id = status.and_then(|status| status.header).map(|header| header.member_id);
    Row {
        name: seat.name,
        member_id: now.member_id.clone(),
        peer_url: seat.peer_url(),
        client_url: seat.client_url(),
        pid: member.etcd(),
        agent_pid: member.agent(),
        phase: now.phase.clone(),
        healthy: complaint.is_none(),
        complaint,
        is_leader: status.is_some_and(|status| Some(status.leader) == own_id),
        version: status.map(|status| status.version.clone()),
        db_size: status.map(|status| status.db_size),
        raft_term: status.map(|status| status.raft_term),
        raft_index: status.map(|status| status.raft_index),
        log: demo.shown_log(seat),
    }
}

impl Report for DemoReport {
    fn render(&self, page: &mut Page) {
        self.headline(page);
        page.gap();
        self.member_table(page);
        for row in self.members.iter().filter(|row| !row.healthy) {
            let complaint = row.complaint.as_deref().unwrap_or_default();
            page.line(format!("{} {complaint}; see {}", format_args!("{}:", row.name).red(), row.log.display()));
        }
        if !self.writes.is_empty() {
            page.gap();
            page.line("A key was written through each member and read back from another:");
            for write in &self.writes {
                page.line(format!("  {}  through {}, read from {}", write.key, write.through, write.read_from));
            }
        }
        page.gap();
        self.what_next(page);
    }
}

impl DemoReport {
    fn headline(&self, page: &mut Page) {
        let remark = match self.state {
            Some(State::AlreadyUp) => "The demo is already up. ",
            Some(State::Resumed) => "The demo goes on where it stopped. ",
            Some(State::Repaired) => "Members that were down were started again. ",
            Some(State::Founded) | None => "",
        };
        let count = format!("{}/{} members healthy", self.healthy, self.members.len());
        let line = match self.all_healthy() {
            true => format!("{remark}{}", count.green().bold()),
            false => format!("{remark}{}", count.red().bold()),
        };
        page.line(line);
        page.line(format!("cluster {}, in {}", self.cluster_id, self.dir.display()).dimmed());
    }

    /// One table where there is room, else one for who and one for how.
    fn member_table(&self, page: &mut Page) {
        if page.fits(WIDE_COLUMNS) {
            let rows = self.members.iter().map(|row| {
                let [name, id, client, peer] = row.who();
                let [_, role, version, size, term, index] = row.how();
                [name, id, peer, client, role, version, size, term, index]
            });
            let headers = ["NAME", "ID", "PEER URL", "CLIENT URL", "ROLE", "VERSION", "DB SIZE", "TERM", "INDEX"];
            return page.table(headers, rows);
        }
        page.table(["NAME", "ID", "CLIENT URL", "PEER URL"], self.members.iter().map(Row::who));
        page.gap();
        page.table(["NAME", "ROLE", "VERSION", "DB SIZE", "TERM", "INDEX"], self.members.iter().map(Row::how));
    }

    fn what_next(&self, page: &mut Page) {
        let nobody = self.members.iter().all(|row| row.pid.is_none());
        if !self.all_healthy() {
            page.step("Bring it up", &self.next.start);
        }
        if !nobody {
            page.step("Talk to it", &self.next.read);
            page.step("Look at it", &self.next.cluster);
            page.step("In short", &self.next.status);
            page.step("Stop it", &self.next.stop);
        }
    }
}

impl Row {
    fn who(&self) -> [String; 4] {
        let id = self.member_id.clone().unwrap_or_else(|| "-".to_owned());
        [self.name.to_owned(), id, self.client_url.clone(), self.peer_url.clone()]
    }

    fn how(&self) -> [String; 6] {
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        let role = match (self.healthy, self.is_leader) {
            (true, true) => "leader",
            (true, false) => "follower",
            (false, _) => "down",
        };
        [
            self.name.to_owned(),
            role.to_owned(),
            or_dash(self.version.clone()),
            or_dash(self.db_size.map(|size| render::bytes(size.try_into().unwrap_or_default()))),
            or_dash(self.raft_term.map(|term| term.to_string())),
            or_dash(self.raft_index.map(|index| index.to_string())),
        ]
    }
}
