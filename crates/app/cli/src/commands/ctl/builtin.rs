//! What `quorate ctl` does itself where there is no etcdctl: who the members are, how they are, and moving the leader.

use quorate_etcd::client::{Client, Consistency, Settings};
use quorate_etcd_formats::membership::MemberId;
use quorate_faults::{Code, Exit, Fault};
use serde::Serialize;

use super::words::plain;
use crate::commands::run::runtime;
use crate::printer::Printer;
use crate::render::{Page, Report, bytes};

/// What can be asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ask<'a> {
    Members,
    Status,
    Health,
    MoveLeader(&'a str),
}

fn ask(words: &[String]) -> Option<Ask<'_>> {
    let plain: Vec<&str> = plain(words).into_iter().map(|(_, word)| word).collect();
    match plain.as_slice() {
        ["member", "list"] => Some(Ask::Members),
        ["endpoint", "status"] => Some(Ask::Status),
        ["endpoint", "health"] => Some(Ask::Health),
        ["move-leader", id] => Some(Ask::MoveLeader(id)),
        _ => None,
    }
}

/// Whether these words can be done without etcdctl.
pub(super) fn knows(words: &[String]) -> bool {
    ask(words).is_some()
}

/// Does it.
pub(super) fn run(words: &[String], settings: &Settings, printer: &mut Printer) -> Result<Exit, Fault> {
    let Some(ask) = ask(words) else { return Err(Fault::new(Code::CtlMissing, "cannot do this without etcdctl")) };
    if settings.endpoints.is_empty() {
        return Err(Fault::new(Code::CtlMissing, "flags of etcdctl need etcdctl")
            .hint("leave them out, or install it (Debian and Ubuntu: `apt install etcd-client`)"));
    }
    printer.note("etcdctl is not installed; quorate answers itself");
    runtime()?.block_on(async {
        let client = Client::connect(settings).await?;
        match ask {
            Ask::Members => {
                let listed = client.member_list(Consistency::Linearizable).await?;
                let members = listed.members.into_iter().map(|member| MemberRow {
                    id: MemberId(member.id).to_string(),
                    status: if member.name.is_empty() { "unstarted" } else { "started" },
                    name: member.name,
                    peer_urls: member.peer_urls,
                    client_urls: member.client_urls,
                    learner: member.is_learner,
                });
                printer.report(&Members { members: members.collect() });
                Ok(Exit::Done)
            }
            Ask::Status => Ok(each(&client, printer, true).await),
            Ask::Health => Ok(each(&client, printer, false).await),
            Ask::MoveLeader(id) => move_leader(&client, id, printer).await,
        }
    })
}

/// Asks each endpoint about itself; one that does not answer is a row too.
async fn each(client: &Client, printer: &mut Printer, status: bool) -> Exit {
    let mut rows = Vec::new();
    for client in client.each() {
        let endpoint = client.endpoints().next().unwrap_or_default().to_owned();
        let answer = match client.status().await {
            // A read through the quorum is what health means.
            Ok(answer) if !status => client.serves().await.map(|()| answer),
            answer => answer,
        };
        rows.push(match answer {
            Ok(answer) => EndpointRow {
                endpoint,
                healthy: answer.errors.is_empty() || status,
                id: answer.header.as_ref().map(|header| MemberId(header.member_id).to_string()),
                version: Some(answer.version),
                db_bytes: Some(answer.db_size.unsigned_abs()),
                leader: Some(answer.header.is_some_and(|header| header.member_id == answer.leader)),
                learner: Some(answer.is_learner),
                raft_term: Some(answer.raft_term),
                raft_index: Some(answer.raft_index),
                error: Some(answer.errors.join("; ")).filter(|errors| !errors.is_empty()),
            },
            Err(fault) => EndpointRow { endpoint, error: Some(fault.to_string()), ..EndpointRow::default() },
        });
    }
    let exit = if rows.iter().all(|row| row.healthy) { Exit::Done } else { Exit::CannotMeet };
    printer.report(&Endpoints { endpoints: rows, status });
    exit
}

async fn move_leader(client: &Client, id: &str, printer: &mut Printer) -> Result<Exit, Fault> {
    let to = u64::from_str_radix(id.trim_start_matches("0x"), 16).map_err(|_| {
        Fault::new(Code::Usage, format!("`{id}` is not a member id")).hint("see `quorate ctl member list`")
    })?;
    for member in client.each() {
        let Ok(status) = member.status().await else { continue };
        if status.header.as_ref().is_some_and(|header| header.member_id == status.leader) {
            member.move_leader(to).await?;
            printer.report(&Moved { from: MemberId(status.leader).to_string(), to: MemberId(to).to_string() });
            return Ok(Exit::Done);
        }
    }
    Err(Fault::new(Code::EtcdUnreachable, "no leader answers").hint("see `quorate ctl endpoint status`"))
}

#[derive(Serialize)]
struct Members {
    members: Vec<MemberRow>,
}

#[derive(Serialize)]
struct MemberRow {
    id: String,
    status: &'static str,
    name: String,
    peer_urls: Vec<String>,
    client_urls: Vec<String>,
    learner: bool,
}

impl Report for Members {
    fn render(&self, page: &mut Page) {
        let row = |m: &MemberRow| {
            let urls = (m.peer_urls.join(","), m.client_urls.join(","));
            [m.id.clone(), m.status.to_owned(), m.name.clone(), urls.0, urls.1, m.learner.to_string()]
        };
        page.table(["ID", "STATUS", "NAME", "PEER URLS", "CLIENT URLS", "LEARNER"], self.members.iter().map(row));
    }
}

#[derive(Serialize)]
struct Endpoints {
    endpoints: Vec<EndpointRow>,
    #[serde(skip)]
    status: bool,
}

#[derive(Default, Serialize)]
struct EndpointRow {
    endpoint: String,
    healthy: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    db_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    leader: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    learner: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    raft_term: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    raft_index: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

impl Report for Endpoints {
    fn render(&self, page: &mut Page) {
        fn text<T: ToString>(value: Option<&T>) -> String {
            value.map_or_else(|| "-".to_owned(), ToString::to_string)
        }
        let rows = self.endpoints.iter();
        if !self.status {
            let word = |row: &EndpointRow| if row.healthy { "healthy" } else { "unhealthy" }.to_owned();
            page.table(
                ["ENDPOINT", "HEALTH", "ERROR"],
                rows.map(|row| [row.endpoint.clone(), word(row), text(row.error.as_ref())]),
            );
            return;
        }
        let cells = |row: &EndpointRow| {
            let size = row.db_bytes.map_or_else(|| "-".to_owned(), bytes);
            let (id, version) = (text(row.id.as_ref()), text(row.version.as_ref()));
            let (leader, learner) = (text(row.leader.as_ref()), text(row.learner.as_ref()));
            let (term, index) = (text(row.raft_term.as_ref()), text(row.raft_index.as_ref()));
            [row.endpoint.clone(), id, version, size, leader, learner, term, index, text(row.error.as_ref())]
        };
        let headers = ["ENDPOINT", "ID", "VERSION", "DB", "LEADER", "LEARNER", "TERM", "INDEX", "ERROR"];
        page.table(headers, rows.map(cells));
    }
}

#[derive(Serialize)]
struct Moved {
    from: String,
    to: String,
}

impl Report for Moved {
    fn render(&self, page: &mut Page) {
        page.line(format!("leadership moved from {} to {}", self.from, self.to));
    }
}
