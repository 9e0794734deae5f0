//! `quorate cluster status`: every member as its agent shows it, and what the cluster waits for.
//!
//! **Rule:** what is shown comes from the agents alone; one that does not answer is shown as such.

mod verdict;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use jiff::Timestamp;
use owo_colors::OwoColorize;
use quorate_agent::turn::{BackupNow, MemberNow, Notice, Status};
use quorate_faults::{Code, Exit, Fault};
use quorate_plan::spec::{Spec, duration_text, size_text};
use serde::Serialize;

pub(super) use self::verdict::{State, Verdict};
use super::ask::{Cluster, ClusterArgs};
use crate::printer::Printer;
use crate::render::{Page, Report};

/// Certificates that end within so long are named for every node: those of 90 days have been renewed by then.
const NEAR_MS: u64 = 27 * 24 * 3600 * 1000;

/// Flags of `cluster status`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  quorate cluster status
  quorate cluster status --config cluster.yaml
  quorate cluster status --config cluster.yaml --output json

Every declared agent is queried over mutual TLS, and each polls all members. The first line says how
the cluster is, the next one what to do.

Exit code 0: healthy. 1: all serve, and something is degraded. 3: some do not serve.
5: one refuses to start. 6: the quorum is lost, or no agent answers.")]
pub(crate) struct Args {
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// Shows it.
pub(crate) fn run(args: &Args, printer: &mut Printer) -> Result<Exit, Fault> {
    let cluster = Cluster::open(&args.cluster.file()?, args.cluster.name.as_deref(), printer)?;
    let shown = look(&cluster);
    let exit = shown.verdict.state.exit();
    printer.report(&shown);
    Ok(exit)
}

/// Asks all of them.
pub(crate) fn look(cluster: &Cluster) -> Shown {
    shown(&cluster.spec, &cluster.file, &cluster.ask("/v1/status"))
}

/// Puts their answers together.
pub(super) fn shown(spec: &Spec, file: &Path, answers: &BTreeMap<String, Result<Status, Fault>>) -> Shown {
    let mut nodes = Vec::new();
    for member in &spec.members {
        let node = match answers.get(&member.name) {
            Some(Ok(status)) => Node::of(status.clone()),
            Some(Err(fault)) => Node::silent(&member.name, fault.code(), fault.to_string()),
            None => Node::silent(&member.name, Code::PeerSilent, "it was not asked".to_owned()),
        };
        nodes.push(node);
    }
    let statuses: Vec<&Status> = nodes.iter().filter_map(|node| node.status.as_ref()).collect();
    let members = verdict::merged(&statuses);
    let mut warnings: Vec<Warned> = Vec::new();
    for status in statuses {
        for notice in &status.warnings {
            match warnings.iter_mut().find(|known| known.notice == *notice) {
                Some(known) => known.by.push(status.name.clone()),
                None => warnings.push(Warned { by: vec![status.name.clone()], notice: notice.clone() }),
            }
        }
    }
    // What each node sees of the quorum is said once, by the verdict.
    warnings.retain(|warned| warned.notice.code != Code::QuorumLost.as_str());
    warnings.sort_by_key(|warned| warned.notice.degrades().is_none());
    let healthy = Verdict { state: State::Healthy, text: String::new(), code: None, way_out: None, command: None };
    let mut shown = Shown { verdict: healthy, token: spec.token.clone(), nodes, members, warnings };
    shown.verdict = verdict::verdict(&shown, file);
    shown
}

/// What is printed.
#[derive(Serialize)]
pub(crate) struct Shown {
    /// How the cluster is.
    pub(super) verdict: Verdict,
    pub(super) token: String,
    /// The declared nodes.
    pub(super) nodes: Vec<Node>,
    /// The members that a quorum last confirmed to one of the agents, as observed within seconds.
    pub(super) members: Vec<MemberNow>,
    pub(super) warnings: Vec<Warned>,
}

#[derive(Serialize)]
pub(crate) struct Node {
    pub(super) name: String,
    /// `silent` where the agent does not answer.
    pub(super) phase: String,
    pub(super) cause: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) code: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) status: Option<Status>,
}

#[derive(Serialize)]
pub(super) struct Warned {
    pub(super) by: Vec<String>,
    #[serde(flatten)]
    pub(super) notice: Notice,
}

impl Node {
    fn of(status: Status) -> Node {
        Node {
            name: status.name.clone(),
            phase: status.phase.clone(),
            cause: status.cause.clone(),
            code: status.code.clone(),
            status: Some(status),
        }
    }

    pub(super) fn silent(name: &str, code: Code, cause: String) -> Node {
        let (name, phase) = (name.to_owned(), "silent".to_owned());
        Node { name, phase, cause, code: Some(code.as_str().to_owned()), status: None }
    }
}

impl Shown {
    /// Whether every declared node serves.
    pub(crate) fn all_serve(&self) -> bool {
        self.nodes.iter().all(|node| node.phase == "serving")
    }

    /// Whom it waits for, and why.
    pub(crate) fn waits(&self) -> impl Iterator<Item = (&str, &str)> {
        self.nodes.iter().filter(|node| node.phase != "serving").map(|node| (node.name.as_str(), node.cause.as_str()))
    }

    pub(super) fn listed(&self, node: &Node) -> Option<&MemberNow> {
        let id = node.status.as_ref().and_then(|status| status.member_id.as_ref());
        self.members
            .iter()
            .find(|member| Some(&member.id) == id)
            .or(self.members.iter().find(|member| id.is_none() && member.name == node.name))
    }

    pub(super) fn row(&self, node: &Node) -> [String; 7] {
        let none = || "–".to_owned();
        let listed = self.listed(node);
        // What a member reported before it fell silent is not how it is.
        let there = listed.is_none_or(|member| member.answers);
        let etcd = node.status.as_ref().and_then(|status| status.etcd.as_ref()).filter(|_| there);
        let version = listed.and_then(|member| member.version.clone());
        let db = listed.and_then(|member| member.db_bytes).or(etcd.and_then(|etcd| etcd.db_bytes));
        [
            node.name.clone(),
            listed.map_or_else(none, |member| member.role.clone()),
            node.phase.clone(),
            version.or(etcd.and_then(|etcd| etcd.version.clone())).unwrap_or_else(none),
            listed.and_then(|member| member.lag).map_or_else(none, |lag| lag.to_string()),
            db.map_or_else(none, size),
            match node.phase.as_str() {
                "serving" => String::new(),
                _ => node.cause.clone(),
            },
        ]
    }

    pub(super) fn quorum(&self) -> Option<String> {
        let count = verdict::count(&self.members)?;
        let (alive, all, needed) = (count.alive, count.voters, count.needed());
        let spare = alive.saturating_sub(needed);
        let failures = if spare == 1 { "failure" } else { "failures" };
        Some(match count.has_quorum() {
            true => format!("{alive} of {all} voters answer, {needed} are needed: tolerates {spare} more {failures}"),
            false => format!("{alive} of {all} voters answer, {needed} are needed: lost"),
        })
    }
}

impl Shown {
    /// The clusters that the agents are in: one, or something is wrong.
    pub(super) fn cluster_ids(&self) -> String {
        let ids = self.nodes.iter().filter_map(|node| node.status.as_ref()?.cluster_id.as_deref());
        ids.collect::<BTreeSet<&str>>().into_iter().collect::<Vec<_>>().join(", ")
    }

    /// The members that do not answer, when they last did, and why.
    pub(super) fn silent(&self) -> impl Iterator<Item = String> {
        self.members.iter().filter(|member| !member.answers).map(|member| {
            let why = member.why.as_deref().unwrap_or("no answer");
            let name = if member.name.is_empty() { "a member without a name" } else { member.name.as_str() };
            match member.silent_ms {
                Some(ms) => {
                    let ago = duration_text(Duration::from_secs(ms / 1000));
                    format!("{name} ({}): last seen {ago} ago; {why}", member.id)
                }
                None => format!("{name} ({}): {why}", member.id),
            }
        })
    }

    /// Who backs up, and how far that is.
    pub(super) fn backups(&self) -> Option<String> {
        let statuses = self.nodes.iter().filter_map(|node| node.status.as_ref());
        let mut all = statuses.filter_map(|status| Some((&status.name, status.backup.as_ref()?)));
        let follows = |(_, backup): &(_, &BackupNow)| backup.state == "following";
        let knows = |(_, backup): &(_, &BackupNow)| backup.knows_how_far();
        let (by, backup) = all.clone().find(follows).or_else(|| all.clone().find(knows)).or_else(|| all.next())?;
        let state = &backup.state;
        if !backup.knows_how_far() {
            return Some(format!("nobody says how far they are; {by}: {state}"));
        }
        let lag = duration_text(Duration::from_secs(backup.lag_seconds as u64));
        Some(format!("{state} by {by}, stored up to revision {}, {lag} behind", backup.stored_revision))
    }

    /// Of every other node, the certificate that ends first, where that is near.
    pub(super) fn near_ends(&self, now: Timestamp) -> Vec<String> {
        let now = now.as_millisecond().unsigned_abs();
        let first = |node: &Node| {
            let certificates = node.status.as_ref().map(|status| status.certificates.as_slice()).unwrap_or_default();
            certificates.iter().min_by_key(|cert| cert.ends_ms).map(|cert| (cert.ends_ms, cert.which.clone()))
        };
        let mut ends: Vec<_> = self.nodes.iter().filter_map(|node| Some((first(node)?, &node.name))).collect();
        ends.sort();
        let near = ends.into_iter().skip(1).filter(|((ends_ms, _), _)| *ends_ms < now.saturating_add(NEAR_MS));
        near.map(|((ends_ms, which), name)| match ends_ms.saturating_sub(now) / 1000 / 3600 {
            0 if ends_ms <= now => format!("{which} of {name} has ended"),
            hours if hours >= 72 => format!("{which} of {name} ends in {} days", hours / 24),
            hours => format!("{which} of {name} ends in {hours} h"),
        })
        .collect()
    }

    /// The certificate that ends first.
    pub(super) fn first_end(&self, now: Timestamp) -> Option<String> {
        let now = now.as_millisecond().unsigned_abs();
        let statuses = self.nodes.iter().filter_map(|node| node.status.as_ref());
        let ends = statuses.flat_map(|status| status.certificates.iter().map(move |cert| (&status.name, cert)));
        let (name, cert) = ends.min_by_key(|(_, cert)| cert.ends_ms)?;
        let hours = cert.ends_ms.saturating_sub(now) / 1000 / 3600;
        let left = if hours >= 72 { format!("{} days", hours / 24) } else { format!("{hours} h") };
        let left = if cert.ends_ms > now { format!("ends first, in {left}") } else { "has ended".to_owned() };
        Some(format!("{} of {name} {left}", cert.which))
    }
}

impl Report for Shown {
    fn render(&self, page: &mut Page) {
        self.render_verdict(page);
        page.gap();
        let headers = ["member", "role", "phase", "etcd", "lag", "db", "waits for"];
        page.table(headers, self.nodes.iter().map(|node| self.row(node)));
        page.gap();
        let mut pairs: Vec<(&str, String)> = Vec::new();
        if let Some(quorum) = self.quorum() {
            pairs.push(("quorum", quorum));
        }
        pairs.extend(self.silent().map(|line| ("silent", line)));
        if let Some(backups) = self.backups() {
            pairs.push(("backups", backups));
        }
        let now = Timestamp::now().as_millisecond().unsigned_abs();
        if let Some(certificates) = self.first_end(Timestamp::now()) {
            pairs.push(("certificates", certificates));
        }
        pairs.extend(self.near_ends(Timestamp::now()).into_iter().map(|end| ("", end)));
        for node in self.nodes.iter().filter(|node| node.phase != "serving") {
            let since = node.status.as_ref().map_or(0, |status| status.since_ms);
            let age = duration_text(Duration::from_secs(now.saturating_sub(since) / 1000));
            let code = node.code.as_ref().map(|code| format!(" [{code}]")).unwrap_or_default();
            let age = if since > 0 { format!(" ({age})") } else { String::new() };
            pairs.push(("turn of", format!("{}: {}{code}{age}", node.name, node.cause)));
            let way_out = node.status.as_ref().and_then(|status| status.way_out.clone());
            pairs.extend(way_out.map(|way_out| ("", way_out)));
        }
        page.pairs(pairs);
        for Warned { by, notice } in &self.warnings {
            let what = if notice.degrades().is_some() { "degraded" } else { "warning" };
            page.line(format!("{}: {} [{}] ({})", what.yellow().bold(), notice.text, notice.code, by.join(", ")));
            if let Some(way_out) = &notice.way_out {
                page.line(format!("  do: {way_out}"));
            }
        }
    }
}

impl Shown {
    fn render_verdict(&self, page: &mut Page) {
        let ids = self.cluster_ids();
        let ids = if ids.is_empty() { String::new() } else { format!(" ({ids})") };
        let Verdict { state, text, code, way_out, command } = &self.verdict;
        let words = match state {
            State::Healthy => state.words().green().bold().to_string(),
            State::Degraded | State::Waiting => state.words().yellow().bold().to_string(),
            State::Refused | State::NoLeader | State::QuorumLost | State::Unreachable => {
                state.words().red().bold().to_string()
            }
        };
        let text = if text.is_empty() { String::new() } else { format!(": {text}") };
        let code = code.as_ref().map(|code| format!(" [{code}]")).unwrap_or_default();
        page.line(format!("cluster {}{ids}: {words}{text}{code}", self.token));
        if let Some(way_out) = way_out {
            page.line(format!("  do: {way_out}"));
        }
        if let Some(command) = command {
            page.line(format!("      {command}"));
        }
    }
}

pub(super) fn size(bytes: u64) -> String {
    if bytes >= 1 << 20 { format!("{}MiB", bytes >> 20) } else { size_text(bytes) }
}
