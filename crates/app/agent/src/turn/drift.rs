//! Whether the cluster is as declared: one cluster under one name, the same data at one revision, the same file everywhere.
//!
//! **Rule:** what differs is shown with its page; nothing is repaired here.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use quorate_etcd::client::Client;
use quorate_etcd_formats::membership::{ClusterId, MemberId};
use quorate_faults::Code;
use quorate_plan::change::differing;
use quorate_plan::etcd_config::Minor;
use quorate_plan::retention::CLOCK_AHEAD_MAX_MS;
use quorate_plan::roster::names;
use quorate_plan::spec::duration_text;
use tokio::task::JoinSet;

use super::beside::{Beside, Survey};
use super::cluster::Heard;
use super::publish::now_ms;
use super::status::Notice;
use crate::certificates;
use crate::peers::{FoundingAnswer, NodeAnswer, PeerError};

/// Between two comparisons of hashes: each reads all keys of every member.
const HASHES_EVERY: Duration = Duration::from_secs(10 * 60);
/// And while they differ.
const HASHES_AGAIN: Duration = Duration::from_secs(60);
/// How long a member may take to hash all its keys.
const HASH_LIMIT: Duration = Duration::from_secs(60);

/// The part of `join-timeout` (5 minutes) within which a learner becomes a voter: it is promoted as soon as it has caught up, and
/// taken out again after all of it.
const LEARNS_WITHIN: u32 = 5;

/// Looks, and shows what differs.
pub(super) async fn look(beside: &mut Beside, survey: &Survey, heard: &Heard) {
    let stuck = stuck(beside, survey);
    let notices = [
        clusters(beside, survey, heard),
        members(beside, survey),
        files(beside, heard),
        stuck,
        renewers(beside, heard),
    ];
    let mut notices: Vec<Notice> = notices.into_iter().flatten().collect();
    // Users and roles have the same code, and are looked at elsewhere.
    notices.extend(beside.shared.auth());
    beside.shared.warnings(
        &[Code::SplitBrain, Code::OtherMembers, Code::Drift, Code::LearnerStuck, Code::NobodyRenews],
        notices,
    );
    clocks(beside, heard);
    // Who found a difference looks again until it is gone: changes wait for it.
    let found = !beside.shared.differing().is_empty();
    let every = if found { HASHES_AGAIN } else { HASHES_EVERY };
    let due = beside.hashed.is_none_or(|at| at.elapsed() >= every);
    let all_answer = survey.members.len() > 1 && survey.members.iter().all(|(_, status)| status.is_ok());
    // One of them is enough, and the leader is always there.
    if due && all_answer && (survey.me == survey.leader || found) {
        beside.hashed = Some(Instant::now());
        if let Some(groups) = hashes(beside, survey).await {
            let (notices, wrong) = told(survey, groups, &beside.known_rollbacks(heard));
            beside.shared.set_differing(wrong);
            beside.shared.warnings(&[Code::HashesDiffer], notices);
        }
    }
}

/// How far this clock is ahead of the other agents': backups are not removed by one that is.
fn clocks(beside: &Beside, heard: &Heard) {
    let now = now_ms();
    let told = heard.iter().filter_map(|(name, answer)| Some((name, answer.as_ref().ok()?.clock_ms?)));
    let ahead = told.map(|(name, theirs)| (i64::try_from(now.saturating_sub(theirs)).unwrap_or(i64::MAX), name));
    let farthest = ahead.max();
    let notice = farthest.filter(|(ms, _)| *ms > CLOCK_AHEAD_MAX_MS).map(|(ms, name)| {
        let what = format!("the clock of this node is {} s ahead of that of `{name}`: no backup is removed", ms / 1000);
        Notice::new(Code::ClocksApart, what)
    });
    beside.shared.warnings(&[Code::ClocksApart], notice.into_iter().collect());
}

/// Declared members that belong to another cluster.
fn clusters(beside: &Beside, survey: &Survey, heard: &Heard) -> Option<Notice> {
    let mut elsewhere: BTreeMap<ClusterId, BTreeSet<&str>> = BTreeMap::new();
    for (name, answer) in heard {
        if let Ok(answer) = answer
            && let FoundingAnswer::Founded { cluster } = &answer.founding
            && *cluster != survey.cluster
        {
            elsewhere.entry(*cluster).or_default().insert(name);
        }
    }
    for (member, status) in &survey.members {
        let cluster = status.as_ref().ok().and_then(|status| status.header.as_ref()).map(|header| header.cluster_id);
        if let Some(cluster) = cluster.map(ClusterId).filter(|cluster| *cluster != survey.cluster) {
            elsewhere.entry(cluster).or_default().insert(&member.name);
        }
    }
    let (cluster, who) = elsewhere.into_iter().next()?;
    let (who, ours, token) = (names(who), survey.cluster, &beside.node.spec.token);
    let text = format!("two clusters are called `{token}`: this member is in `{ours}`, and {who} in `{cluster}`");
    Some(
        Notice::new(Code::SplitBrain, text)
            .way_out("decide which one holds what clients wrote: `quorate explain Q0980`"),
    )
}

/// Listed members that the file does not declare, and declared ones that are not listed.
fn members(beside: &Beside, survey: &Survey) -> Option<Notice> {
    let spec = &beside.node.spec;
    let listed = |name: &str| survey.members.iter().any(|(member, _)| member.name == name);
    let known =
        |urls: &[String]| spec.members.iter().any(|member| urls.iter().any(|url| member.peer_urls.contains(url)));
    let strange: Vec<String> = survey
        .members
        .iter()
        .filter(|(member, _)| spec.member(&member.name).is_none() && !known(&member.peer_urls))
        .map(|(member, _)| match member.name.is_empty() {
            true => MemberId(member.id).to_string(),
            false => member.name.clone(),
        })
        .collect();
    let urls_listed = |urls: &[String]| {
        survey.members.iter().any(|(member, _)| member.peer_urls.iter().any(|url| urls.contains(url)))
    };
    let missing = spec.members.iter().filter(|member| !listed(&member.name) && !urls_listed(&member.peer_urls));
    let missing: Vec<&str> = missing.map(|member| member.name.as_str()).collect();
    let text = match (strange.is_empty(), missing.is_empty()) {
        (true, true) => return None,
        (false, true) => {
            format!("members that are not declared: {}", names(strange.iter().map(String::as_str)))
        }
        (true, false) => format!("declared, and no members yet: {}", names(missing)),
        (false, false) => format!(
            "members that are not declared: {}; declared, and no members yet: {}",
            names(strange.iter().map(String::as_str)),
            names(missing)
        ),
    };
    Some(
        Notice::new(Code::OtherMembers, text)
            .way_out("see `quorate cluster plan`, and apply the file that is meant: `quorate cluster apply`"),
    )
}

/// A learner that does not become a voter.
fn stuck(beside: &mut Beside, survey: &Survey) -> Option<Notice> {
    let learner = survey.members.iter().find(|(member, _)| member.is_learner).map(|(member, _)| member);
    let Some(learner) = learner else {
        beside.learner = None;
        return None;
    };
    let id = MemberId(learner.id);
    let since = match beside.learner {
        Some((known, since)) if known == id => since,
        _ => beside.learner.insert((id, Instant::now())).1,
    };
    let within = beside.node.spec.maintenance.join_timeout / LEARNS_WITHIN;
    if since.elapsed() < within {
        return None;
    }
    let minutes = Duration::from_secs(since.elapsed().as_secs() / 60 * 60);
    let name = if learner.name.is_empty() { "which never started" } else { learner.name.as_str() };
    let text =
        format!("learner {id} ({name}) has not become a voter for {} or more", duration_text(minutes.max(within)));
    Some(
        Notice::new(Code::LearnerStuck, text)
            .way_out("start its node, or take it out of the cluster file and apply that"),
    )
}

/// No node can renew certificates: none that answers holds the issuing keys, and none is silent.
fn renewers(beside: &Beside, heard: &Heard) -> Option<Notice> {
    let dir = certificates::folder(&beside.node).ok()?;
    let by_hand = beside.node.spec.tls_files().is_some_and(|tls| tls.renewed_by_hand);
    if by_hand || certificates::can_issue(&dir) {
        return None;
    }
    let lacks = |answer: &Result<NodeAnswer, PeerError>| {
        answer.as_ref().is_ok_and(|answer| answer.issues_certificates == Some(false))
    };
    if !heard.values().all(lacks) {
        return None;
    }
    let text = "no node can renew the certificates: none holds the issuing keys";
    let way_out = format!(
        "copy the issuing keys (`*-ca.key`) into `{}` of a node, or renew by hand before they end: `quorate explain Q1443`",
        dir.display()
    );
    Some(Notice::new(Code::NobodyRenews, text).way_out(way_out))
}

/// Agents with another cluster file.
fn files(beside: &Beside, heard: &Heard) -> Option<Notice> {
    let ours = beside.node.spec.hash();
    let others = heard.iter().filter(|(_, answer)| answer.as_ref().is_ok_and(|answer| answer.file != ours));
    let others: Vec<&str> = others.map(|(name, _)| name.as_str()).collect();
    if others.is_empty() {
        return None;
    }
    let text = format!("{} runs with another cluster file than this node", names(others));
    Some(Notice::new(Code::Drift, text).way_out("give every node the same file: `quorate cluster apply FILE`"))
}

/// Members that have a hash in common, each with its hash.
type Groups = Vec<(u32, Vec<MemberId>)>;

/// The warning about members that hold different data, and whose data is in doubt: by evidence, never by majority.
fn told(survey: &Survey, groups: (i64, Groups), rolled_back: &BTreeSet<MemberId>) -> (Vec<Notice>, Vec<MemberId>) {
    let (revision, groups) = groups;
    if groups.len() < 2 {
        return (Vec::new(), Vec::new());
    }
    let name =
        |id: &MemberId| survey.members.iter().find(|(member, _)| member.id == id.0).map(|(member, _)| &*member.name);
    let shown = |(hash, group): &(u32, Vec<MemberId>)| {
        let newest = group.iter().filter_map(|id| revision_of(survey, *id)).max();
        let newest = newest.map_or(String::new(), |newest| format!(", now at revision {newest}"));
        let count = if group.len() == 1 { "1 member".to_owned() } else { format!("{} members", group.len()) };
        format!("{count} ({}) with hash {hash:08x}{newest}", names(group.iter().filter_map(name)))
    };
    let shown = groups.iter().map(shown).collect::<Vec<_>>().join("; ");
    let evident: Vec<MemberId> =
        groups.iter().flat_map(|(_, group)| group.iter().copied()).filter(|id| rolled_back.contains(id)).collect();
    let mut text = format!("members hold other data at revision {revision}: {shown}");
    text += &match evident.is_empty() {
        true => "; nothing shows which of them is wrong".to_owned(),
        false => format!("; put back to an older copy: {}", names(evident.iter().filter_map(name))),
    };
    let notice = Notice::new(Code::HashesDiffer, text)
        .way_out("find out which data is wrong before anything else: `quorate explain Q0981`");
    let groups: Vec<Vec<MemberId>> = groups.into_iter().map(|(_, group)| group).collect();
    (vec![notice], differing(&groups, rolled_back).into_iter().collect())
}

/// The revision that a member reported.
fn revision_of(survey: &Survey, id: MemberId) -> Option<i64> {
    let (_, status) = survey.members.iter().find(|(member, _)| member.id == id.0)?;
    status.as_ref().ok()?.header.as_ref().map(|header| header.revision)
}

/// Compares what members hold at one revision. `None`: it could not be told this time.
async fn hashes(beside: &Beside, survey: &Survey) -> Option<(i64, Groups)> {
    // etcd computes no hash on a learner. One that replaces a wrong member is promoted once its voters agree.
    let voters = || survey.members.iter().filter(|(member, _)| !member.is_learner);
    // What every member has by now.
    let revisions = voters().filter_map(|(_, status)| status.as_ref().ok()?.header.as_ref());
    let revision = revisions.map(|header| header.revision).min().filter(|revision| *revision > 1)?;
    let mut asked = JoinSet::new();
    for (member, status) in voters() {
        let (id, url) = (MemberId(member.id), member.client_urls.first().cloned()?);
        // How keys are hashed is a matter of the minor version.
        let version = Minor::parse(&status.as_ref().ok()?.version);
        let mut settings = beside.node.client_at(vec![url]).ok()?;
        settings.timeout = HASH_LIMIT;
        asked.spawn(async move {
            let hash = async { Client::connect(&settings).await?.hash_kv(revision).await };
            (id, version, hash.await.ok())
        });
    }
    let mut by_compaction: BTreeMap<_, BTreeMap<u32, BTreeSet<MemberId>>> = BTreeMap::new();
    while let Some(answer) = asked.join_next().await {
        let (id, version, answer) = answer.ok()?;
        let answer = answer?;
        let alike = by_compaction.entry((answer.compact_revision, version)).or_default();
        alike.entry(answer.hash).or_default().insert(id);
    }
    // Hashes of other compactions cannot be compared.
    let differ = by_compaction.into_values().find(|hashes| hashes.len() > 1).unwrap_or_default();
    Some((revision, differ.into_iter().map(|(hash, who)| (hash, who.into_iter().collect())).collect()))
}

#[cfg(test)]
mod tests {
    use quorate_etcd::client::messages::{Member, ResponseHeader, StatusResponse};

    use super::*;

    /// Three members at the given revisions.
    fn survey(revisions: [i64; 3]) -> Survey {
        let member = |(id, revision): (u64, i64)| {
            let header = ResponseHeader { revision, ..ResponseHeader::default() };
            let status = StatusResponse { header: Some(header), ..StatusResponse::default() };
            (Member { id, name: format!("n{id}"), ..Member::default() }, Ok(status))
        };
        let (cluster, me, leader) = (ClusterId(7), MemberId(1), MemberId(1));
        Survey { cluster, me, leader, revision: 60, members: (1..).zip(revisions).map(member).collect() }
    }

    fn ids(numbers: &[u64]) -> Vec<MemberId> {
        numbers.iter().copied().map(MemberId).collect()
    }

    /// Two of three were put back and hold 48 of 50 keys.
    #[test]
    fn a_majority_that_was_put_back_is_not_trusted() {
        let survey = survey([52, 52, 51]);
        let groups = || (49, vec![(0xaa, ids(&[1, 2])), (0xbb, ids(&[3]))]);
        let (notices, doubted) = told(&survey, groups(), &BTreeSet::new());
        assert_eq!(doubted, ids(&[1, 2, 3]), "nothing shows who is wrong");
        let text = &notices[0].text;
        assert!(text.contains("2 members (`n1` and `n2`) with hash 000000aa, now at revision 52"), "{text}");
        assert!(text.contains("1 member (`n3`) with hash 000000bb, now at revision 51"), "{text}");
        assert!(text.contains("nothing shows which"), "{text}");
        let (notices, doubted) = told(&survey, groups(), &ids(&[1, 2]).into_iter().collect());
        assert_eq!(doubted, ids(&[1, 2]), "both were put back");
        assert!(notices[0].text.contains("put back to an older copy: `n1` and `n2`"), "{}", notices[0].text);
        let (notices, doubted) = told(&survey, groups(), &ids(&[1]).into_iter().collect());
        assert_eq!(doubted, ids(&[1, 2]), "`n2` holds what `n1` holds");
        assert!(notices[0].text.ends_with("put back to an older copy: `n1`"), "{}", notices[0].text);
    }
}
