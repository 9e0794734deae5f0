//! What `cluster status` says first: healthy, degraded, or down, and the command that helps.
//!
//! **Rule:** only what was observed within seconds counts as current; an older observation is unknown.

use std::collections::BTreeMap;
use std::path::Path;

use quorate_agent::turn::{ClusterNow, MemberNow, Status};
use quorate_faults::{Code, Exit};
use quorate_plan::quorum::Count;
use serde::Serialize;

use super::{Node, Shown, Warned};
use crate::render::for_shell;

/// An observation of this age is current: agents poll their members when they are queried.
const CURRENT_MS: u64 = 5000;

/// A read that succeeded proves a quorum for this long.
const READ_MS: u64 = 3000;

/// How the cluster is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(in crate::commands) struct Verdict {
    pub(in crate::commands::cluster) state: State,
    /// Why, in a line; empty where it is healthy.
    pub(in crate::commands::cluster) text: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::commands::cluster) code: Option<String>,
    /// What to do, in a line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::commands::cluster) way_out: Option<String>,
    /// The command to run, ready to be pasted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::commands::cluster) command: Option<String>,
}

/// In a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(in crate::commands::cluster) enum State {
    Healthy,
    /// All members serve, and something is not as it should be.
    Degraded,
    /// Some members do not serve.
    Waiting,
    /// A member refuses to continue until an operator has decided.
    Refused,
    /// Voters answer, and have no leader.
    NoLeader,
    QuorumLost,
    /// No agent answers.
    Unreachable,
}

impl State {
    pub(in crate::commands::cluster) fn exit(self) -> Exit {
        match self {
            State::Healthy => Exit::Done,
            State::Degraded => Exit::CannotMeet,
            State::Waiting => Exit::Waiting,
            State::Refused => Exit::Refused,
            State::NoLeader | State::QuorumLost | State::Unreachable => Exit::Unreachable,
        }
    }

    /// As the first line has it.
    pub(in crate::commands::cluster) fn words(self) -> &'static str {
        match self {
            State::Healthy => "healthy",
            State::Degraded => "DEGRADED",
            State::Waiting => "NOT ALL MEMBERS SERVE",
            State::Refused => "A MEMBER REFUSES TO START",
            State::NoLeader => "NO LEADER",
            State::QuorumLost => "QUORUM LOST",
            State::Unreachable => "NO AGENT ANSWERS",
        }
    }
}

/// The members as the agents observe them now: each of them polls all members, and what one of them reaches is there.
pub(super) fn merged(statuses: &[&Status]) -> Vec<MemberNow> {
    let clusters = || statuses.iter().filter_map(|status| Some((*status, status.cluster.as_ref()?)));
    // The list that a quorum confirmed last.
    let Some((_, newest)) = clusters().max_by_key(|(_, seen)| seen.seen_ms) else { return Vec::new() };
    let current = |cluster: &ClusterNow| cluster.age_ms.is_none_or(|age| age <= CURRENT_MS);
    let mut views: BTreeMap<&str, Vec<(bool, &MemberNow)>> = BTreeMap::new();
    for (status, cluster) in clusters().filter(|(_, cluster)| current(cluster)) {
        for member in &cluster.members {
            let own = status.member_id.as_ref() == Some(&member.id);
            views.entry(&member.id).or_default().push((own, member));
        }
    }
    let one = |listed: &MemberNow| {
        let seen = views.get(listed.id.as_str()).map(Vec::as_slice).unwrap_or_default();
        // Its own agent is nearest to it.
        let best = seen.iter().filter(|(_, member)| member.answers).max_by_key(|(own, member)| (*own, member.term));
        let Some((_, best)) = best else { return silent(listed, seen) };
        let takes_part = seen.iter().any(|(_, member)| member.takes_part.unwrap_or(member.answers));
        MemberNow { takes_part: Some(takes_part), role: voter_role(listed), ..(*best).clone() }
    };
    let mut members: Vec<MemberNow> = newest.members.iter().map(one).collect();
    // A leader that is cut off believes so for a moment: the one with the higher term leads.
    let leaders = views.values().flatten().filter(|(_, member)| member.role == "leader");
    if let Some((_, leader)) = leaders.max_by_key(|(_, member)| member.term)
        && let Some(member) = members.iter_mut().find(|member| member.id == leader.id && member.answers)
    {
        member.role = "leader".to_owned();
    }
    members
}

fn voter_role(member: &MemberNow) -> String {
    let role = if member.role == "learner" { "learner" } else { "voter" };
    role.to_owned()
}

/// A member that no agent reaches: nothing that it reported before is current.
fn silent(listed: &MemberNow, seen: &[(bool, &MemberNow)]) -> MemberNow {
    let why = seen.iter().find_map(|(_, member)| member.why.clone());
    MemberNow {
        id: listed.id.clone(),
        name: listed.name.clone(),
        role: voter_role(listed),
        takes_part: Some(false),
        why: Some(why.unwrap_or_else(|| "no agent has observed it within seconds".to_owned())),
        silent_ms: seen.iter().filter_map(|(_, member)| member.silent_ms).min(),
        ..MemberNow::default()
    }
}

/// How many voters answer.
pub(super) fn count(members: &[MemberNow]) -> Option<Count> {
    let voters = members.iter().filter(|member| member.role != "learner");
    let count = Count { voters: voters.clone().count(), alive: voters.filter(|member| member.answers).count() };
    (count.voters > 0).then_some(count)
}

/// What is to be said first.
pub(super) fn verdict(shown: &Shown, file: &Path) -> Verdict {
    let plain = |state, text: String| Verdict { state, text, code: None, way_out: None, command: None };
    let not_serving: Vec<&Node> = shown.nodes.iter().filter(|node| node.phase != "serving").collect();
    let serving = shown.nodes.len() - not_serving.len();
    if !shown.nodes.is_empty() && shown.nodes.iter().all(|node| node.phase == "silent") {
        let text = format!("none of {} agents answers; whether the cluster serves is not known", shown.nodes.len());
        let way_out = "start the agents, or query from a machine that reaches them".to_owned();
        return Verdict { way_out: Some(way_out), ..plain(State::Unreachable, text) };
    }
    if let Some(lost) = quorum_lost(shown, serving, file) {
        return lost;
    }
    if let Some(refused) = not_serving.iter().find(|node| node.phase == "refused") {
        let way_out = refused.status.as_ref().and_then(|status| status.way_out.clone());
        let text = format!("{}: {}", refused.name, refused.cause);
        return Verdict { code: refused.code.clone(), way_out, ..plain(State::Refused, text) };
    }
    if let Some(first) = not_serving.first() {
        let text = format!("{serving} of {} members serve; {}: {}", shown.nodes.len(), first.name, first.cause);
        let way_out = first.status.as_ref().and_then(|status| status.way_out.clone());
        return Verdict { code: first.code.clone(), way_out, ..plain(State::Waiting, text) };
    }
    let mut degraded = shown.warnings.iter().filter(|warned| warned.notice.degrades().is_some());
    let Some(Warned { notice, .. }) = degraded.next() else { return plain(State::Healthy, String::new()) };
    let more = match degraded.count() {
        0 => String::new(),
        more => format!(" (and {more} more below)"),
    };
    let text = format!("all {serving} members serve, but {}{more}", notice.text);
    Verdict { code: Some(notice.code.clone()), way_out: notice.way_out.clone(), ..plain(State::Degraded, text) }
}

fn quorum_lost(shown: &Shown, serving: usize, file: &Path) -> Option<Verdict> {
    // Of a member alone, its phase says all.
    let count = count(&shown.members).filter(|count| count.voters > 1)?;
    let (alive, all, needed) = (count.alive, count.voters, count.needed());
    // Clients' addresses may be closed between nodes: a read that just succeeded proves a quorum.
    let read =
        |node: &Node| node.status.as_ref().and_then(|status| status.read_age_ms).is_some_and(|age| age < READ_MS);
    if shown.nodes.iter().any(read) {
        return None;
    }
    if !count.has_quorum() {
        let silent = shown.members.iter().filter(|member| member.role != "learner" && !member.answers);
        let names = silent.map(|member| member.name.as_str()).collect::<Vec<_>>();
        return Some(Verdict {
            state: State::QuorumLost,
            text: format!(
                "{alive} of {all} voters answer{}, {needed} are needed: no writes, no consistent reads",
                if alive == 1 { "s" } else { "" }
            ),
            code: Some(Code::QuorumLost.as_str().to_owned()),
            way_out: Some(format!(
                "bring {} back; only if that is impossible, make a new generation:",
                names.join(" or ")
            )),
            command: Some(command("cluster recover", file)),
        });
    }
    let part =
        shown.members.iter().filter(|member| member.role != "learner" && member.takes_part == Some(true)).count();
    // An election takes a moment, in which those that served a moment ago are still called serving.
    (part < needed && serving == 0).then(|| Verdict {
        state: State::NoLeader,
        text: format!("{alive} of {all} voters answer, and {part} of them see a leader, where {needed} are needed"),
        code: Some(Code::QuorumLost.as_str().to_owned()),
        way_out: Some(
            "mend the network between the members (their peer URLs); they elect a leader by themselves".to_owned(),
        ),
        command: None,
    })
}

/// A command about this very cluster.
pub(super) fn command(verb: &str, file: &Path) -> String {
    format!("quorate {verb} --config {}", for_shell(&file.display().to_string()))
}
