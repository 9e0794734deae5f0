//! What `data init` says when it is done, or would be.

use quorate_etcd::init::{NewPath, Target};
use quorate_etcd_formats::founding::Founding;
use quorate_etcd_formats::membership::{ClusterId, MemberId};
use quorate_plan::roster::{Roster, RosterMember};
use serde::Serialize;

use super::start_line::{for_shell, start_line};
use crate::render::{Page, Report, bytes};

/// How it ended.
pub(crate) enum Ending {
    Made,
    Finished,
    Already { other_name: Option<String>, running: bool },
    WouldMake(Vec<NewPath>),
}

/// The whole result.
#[derive(Serialize)]
pub(crate) struct InitReport {
    outcome: &'static str,
    data_dir: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    wal_dir: Option<String>,
    name: String,
    cluster_id: ClusterId,
    member_id: MemberId,
    token: String,
    source: String,
    members: Vec<MemberRow>,
    /// Whether etcd runs on it; only known of a member that was there already.
    #[serde(skip_serializing_if = "Option::is_none")]
    running: Option<bool>,
    /// The name on record, where it is another.
    #[serde(skip_serializing_if = "Option::is_none")]
    recorded_name: Option<String>,
    /// What would be written.
    #[serde(skip_serializing_if = "Option::is_none")]
    would_write: Option<Vec<PathRow>>,
    /// How to start etcd next, word by word.
    start: Vec<String>,
}

#[derive(Serialize)]
struct MemberRow {
    id: MemberId,
    name: String,
    peer_urls: Vec<String>,
    local: bool,
}

#[derive(Serialize)]
struct PathRow {
    path: String,
    kind: &'static str,
    /// Octal, as `chmod` takes it.
    mode: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<u64>,
}

impl InitReport {
    pub(crate) fn new(
        ending: Ending,
        target: &Target,
        roster: &Roster,
        local: &RosterMember,
        founding: &Founding,
        token: &str,
    ) -> InitReport {
        let id_of = |name: &str| founding.member(name).map_or(MemberId(0), |member| member.id);
        let row = |member: &RosterMember| MemberRow {
            id: id_of(&member.name),
            name: member.name.clone(),
            peer_urls: member.peer_urls.clone(),
            local: member.name == local.name,
        };
        let mut report = InitReport {
            outcome: "made",
            data_dir: target.data_dir().display().to_string(),
            wal_dir: target.wal_dir().map(|dir| dir.display().to_string()),
            name: local.name.clone(),
            cluster_id: founding.cluster_id,
            member_id: id_of(&local.name),
            token: token.to_owned(),
            source: roster.provenance.clone(),
            members: roster.members.iter().map(row).collect(),
            running: None,
            recorded_name: None,
            would_write: None,
            start: start_line(target, local),
        };
        match ending {
            Ending::Made => {}
            Ending::Finished => report.outcome = "finished",
            Ending::Already { other_name, running } => {
                report.outcome = "already";
                report.running = Some(running);
                report.recorded_name = other_name;
            }
            Ending::WouldMake(paths) => {
                report.outcome = "would_make";
                report.would_write = Some(paths.into_iter().map(PathRow::from).collect());
            }
        }
        report
    }

    fn headline(&self) -> String {
        let who = format!("member `{}` of {}", self.name, count(self.members.len()));
        let dir = &self.data_dir;
        match self.outcome {
            "already" if self.running == Some(true) => {
                format!("`{dir}` is already {who}, and etcd is running on it; nothing was changed")
            }
            "already" => format!("`{dir}` is already {who}; nothing was changed"),
            "finished" => format!("finished `{dir}`, which an interrupted run had begun: {who}"),
            "would_make" => format!("would make `{dir}`: {who}; nothing was written"),
            _ => format!("made `{dir}`: {who}"),
        }
    }
}

fn count(members: usize) -> String {
    if members == 1 { "a one-member cluster".to_owned() } else { format!("a cluster of {members}") }
}

impl From<NewPath> for PathRow {
    fn from(new: NewPath) -> PathRow {
        let kind = if new.size.is_some() { "file" } else { "dir" };
        PathRow { path: new.path.display().to_string(), kind, mode: format!("{:04o}", new.mode), size: new.size }
    }
}

impl Report for InitReport {
    fn render(&self, page: &mut Page) {
        page.line(self.headline());
        if let Some(name) = &self.recorded_name {
            page.line(format!("its name on record is `{name}`; etcd takes the one it is started with"));
        }
        page.gap();
        page.pairs([
            ("cluster id", self.cluster_id.to_string()),
            ("member id", self.member_id.to_string()),
            ("token", self.token.clone()),
            ("members from", self.source.clone()),
        ]);
        page.gap();
        let mark = |local: bool| if local { "this one" } else { "" };
        let rows = self.members.iter().map(|member| {
            [member.id.to_string(), member.name.clone(), member.peer_urls.join(","), mark(member.local).to_owned()]
        });
        page.table(["ID", "NAME", "PEER URLS", ""], rows);
        if let Some(paths) = &self.would_write {
            page.gap();
            let rows = paths.iter().map(|new| {
                let size = new.size.map_or_else(|| "-".to_owned(), bytes);
                [new.mode.clone(), size, new.path.clone()]
            });
            page.table(["MODE", "SIZE", "PATH"], rows);
        }
        if self.running != Some(true) {
            page.gap();
            page.line("start it with:");
            page.line(format!("  {}", for_shell(&self.start)));
        }
    }
}
