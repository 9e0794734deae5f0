//! Reports stopped backups where the member that leads has no agent: only the agent of the leader backs up.
//!
//! **Rule:** this node reports what it observed of another one. Where this member leads, its own backups report.

use std::time::{Duration, Instant};

use quorate_etcd_formats::membership::MemberId;
use quorate_faults::Code;
use quorate_plan::spec::duration_text;

use super::beside::{Beside, Survey};
use super::cluster::Heard;
use super::status::Notice;

/// An agent that is restarted or replaced answers again within this time.
const SILENT_MAX: Duration = Duration::from_secs(30);

/// The leader's agent that does not answer, and since when.
#[derive(Debug)]
pub(super) struct Silent {
    name: String,
    since: Instant,
}

/// Compares the leader of the survey with the agents that answer.
pub(super) fn observe_leader(beside: &mut Beside, survey: &Survey, heard: &Heard) {
    let Some(backup) = &beside.node.spec.backup else { return };
    let Some(name) = other_leader(survey) else {
        beside.silent_leader = None;
        return;
    };
    let answers = matches!(heard.get(&name), Some(Ok(_)));
    let before = beside.silent_leader.take();
    let silent = (!answers).then(|| {
        let same = before.as_ref().filter(|before| before.name == name);
        Silent { since: same.map_or_else(Instant::now, |same| same.since), name: name.clone() }
    });
    if silent.is_none() && before.is_none() {
        return;
    }
    let limit = SILENT_MAX.max(backup.delta_period * 3);
    let notice = silent.as_ref().filter(|silent| silent.since.elapsed() > limit).map(|silent| {
        // In whole minutes, so that the text of one cause changes rarely.
        let elapsed = silent.since.elapsed();
        let steps = if elapsed < Duration::from_secs(60) { limit } else { whole_minutes(elapsed) };
        let (name, time) = (&silent.name, duration_text(steps));
        let text = format!(
            "backups have stopped: `{name}` leads the cluster, and its agent, which backs up, has not answered for {time}"
        );
        let way_out = format!("start the agent of `{name}`; a member whose agent answers backs up as soon as it leads");
        Notice::new(Code::BackupsStopped, text).way_out(way_out)
    });
    let state = match (&notice, &silent) {
        (Some(notice), _) => notice.text.clone(),
        (None, Some(_)) => format!("`{name}` leads, and its agent does not answer"),
        (None, None) => format!("`{name}` leads, and its agent backs up"),
    };
    beside.shared.change(|status| {
        if let Some(backup) = &mut status.backup {
            backup.state = state;
        }
    });
    beside.shared.warnings(&[Code::BackupsStopped], notice.into_iter().collect());
    beside.silent_leader = silent;
}

fn whole_minutes(elapsed: Duration) -> Duration {
    Duration::from_secs(elapsed.as_secs() / 60 * 60)
}

/// The name of the leader, where that is another member.
fn other_leader(survey: &Survey) -> Option<String> {
    let others = survey.members.iter().filter(|_| survey.leader != survey.me);
    let leader = others.map(|(member, _)| member).find(|member| MemberId(member.id) == survey.leader)?;
    (!leader.name.is_empty()).then(|| leader.name.clone())
}
