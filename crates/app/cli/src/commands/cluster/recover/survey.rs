//! Asks every agent what is left.

use std::collections::{BTreeMap, BTreeSet};

use quorate_agent::recover::{ProbeAnswer, ProbeRequest, Remains, Seen, Standing};
use quorate_backup::claims::{self, Claim};
use quorate_backup::store::Store;
use quorate_etcd_formats::membership::ClusterId;
use quorate_faults::Fault;
use quorate_plan::change::recover::{
    ClaimSeen, Evidence, Point, Probe, RecoverStep, Recovery, Reply, RowSeen, Source, SpoolPart, SpoolSeen,
    StoreNewest, StoreWatch, SurveyRow, Survivor, WatchLine,
};
use quorate_plan::spec::Spec;
use quorate_plan::start::Verdict;
use serde::Serialize;

use super::super::ask::Cluster;
use super::store::{StoreSurvey, ask_store, own_clusters};
use crate::render::{Page, Report};

/// What was found.
pub(super) struct Survey {
    pub(super) answers: BTreeMap<String, Result<Remains, String>>,
    pub(super) rows: Vec<SurveyRow>,
    pub(super) store: StoreNewest,
    /// How far the store reaches, whatever point is wanted.
    pub(super) end: Option<u64>,
    /// The token and the clusters of the backups in it that are used.
    pub(super) lineage: Option<String>,
    /// What the survivors received from members whose agents are silent.
    pub(super) probes: Vec<Probe>,
    /// What they saw in the store since the first survey.
    pub(super) watches: Vec<(String, StoreWatch)>,
    /// What waits in the spools of the nodes that answer.
    pub(super) spools: Vec<SpoolSeen>,
    /// Generations that recoveries claimed in the store.
    pub(super) claims: Vec<ClaimSeen>,
    /// The clusters that the nodes belong to, and those that these were restored from.
    pub(super) belongs: Vec<ClusterId>,
    /// Those that they left by a reset.
    pub(super) left: Vec<ClusterId>,
    /// A store is declared.
    pub(super) has_store: bool,
    /// The highest revision that any node or the store has seen.
    pub(super) above: u64,
}

impl Survey {
    /// What is known of the members that do not answer.
    pub(super) fn evidence(&self) -> Evidence<'_> {
        let uploaded = self.answers.values().flatten().filter_map(|remains| remains.uploaded).max().unwrap_or(0);
        let Survey { probes, watches, spools, claims, belongs, left, .. } = self;
        Evidence { probes, watches, spools, claims, uploaded, newest: self.end, belongs, left }
    }

    /// Whose backups are used.
    fn title(&self) -> String {
        self.lineage.as_ref().map_or_else(String::new, |lineage| format!(" ({lineage})"))
    }

    /// How far the data of a node reaches.
    pub(super) fn standing(&self, node: &str) -> Option<&Standing> {
        match &self.answers.get(node)?.as_ref().ok()?.seen {
            Seen::There(standing) => Some(standing),
            Seen::Absent | Seen::Damaged { .. } | Seen::Unknown { .. } => None,
        }
    }
}

/// Queries all of them, and the store, also where the operator named a node: the recovered cluster begins above its revisions. `point`: an
/// earlier state is wanted.
pub(super) fn survey(cluster: &Cluster, point: Option<Point>, without_store: bool) -> Result<Survey, Fault> {
    let names: Vec<String> = cluster.spec.members.iter().map(|member| member.name.clone()).collect();
    let answers = cluster.order_all::<(), Remains>(&names, "/v1/remains", &());
    let answers: BTreeMap<String, Result<Remains, String>> =
        answers.into_iter().map(|(name, answer)| (name, answer.map_err(|fault| fault.to_string()))).collect();
    let (probes, watches) = probe(cluster, &answers);
    let StoreSurvey { newest: store, highest: claimed, end, lineage } = match without_store {
        true => StoreSurvey::without(StoreNewest::NotDeclared),
        false => ask_store(&cluster.spec, &answers, point)?,
    };
    let serves = |answer: &Result<Remains, String>| answer.as_ref().is_ok_and(|remains| remains.serves);
    let rows = answers.iter().map(|(node, answer)| SurveyRow {
        node: node.clone(),
        seen: row(answer, &store),
        serves: serves(answer),
    });
    let spools = answers.values().flatten().filter_map(spool).collect();
    let above = highest(&answers).max(claimed);
    let (has_store, claims) = (cluster.spec.backup.is_some(), claims(&cluster.spec, without_store));
    let (rows, remains) = (rows.collect(), || answers.values().flatten());
    let (own, _) = own_clusters(&answers);
    let belongs = own.into_iter().map(ClusterId).chain(remains().flat_map(|it| it.was.iter().copied())).collect();
    let left = remains().flat_map(|it| it.left.iter().copied()).collect();
    Ok(Survey { rows, store, end, lineage, probes, watches, spools, claims, belongs, left, has_store, above, answers })
}

/// What was claimed in the store. The agent that begins reads it again, and refuses where the store is silent.
fn claims(spec: &Spec, without_store: bool) -> Vec<ClaimSeen> {
    let Some(backup) = spec.backup.as_ref().filter(|_| !without_store) else { return Vec::new() };
    let listed = Store::open(&backup.store, false).and_then(|store| claims::list(&store, &spec.token));
    let seen = |Claim { generation, node, at, cluster, .. }: Claim| ClaimSeen { generation, node, at, cluster };
    listed.unwrap_or_default().into_iter().map(seen).collect()
}

/// The highest revision that any node may have given out.
fn highest(answers: &BTreeMap<String, Result<Remains, String>>) -> u64 {
    let of = |remains: &Remains| {
        let held = match &remains.seen {
            Seen::There(it) => it.revision.unwrap_or(0).saturating_add(it.unapplied.unwrap_or(0)),
            Seen::Absent | Seen::Damaged { .. } | Seen::Unknown { .. } => 0,
        };
        let waits = remains.spool.iter().flat_map(|spool| &spool.parts).map(|part| part.1).max();
        held.max(waits.unwrap_or(0)).max(remains.highest)
    };
    answers.values().flatten().map(of).max().unwrap_or(0)
}

fn spool(remains: &Remains) -> Option<SpoolSeen> {
    let spool = remains.spool.as_ref()?;
    let part = |(first, last, epoch, cluster): &(u64, u64, u64, ClusterId)| SpoolPart {
        first: *first,
        last: *last,
        epoch: *epoch,
        cluster: cluster.0,
    };
    let parts = spool.parts.iter().map(part).collect();
    Some(SpoolSeen { node: remains.name.clone(), parts, unread: spool.unread.clone() })
}

/// Has every survivor query the etcd of every member whose agent is silent, or cannot tell what the member holds. A member that no survivor could query has no line,
/// which is silence.
fn probe(
    cluster: &Cluster,
    answers: &BTreeMap<String, Result<Remains, String>>,
) -> (Vec<Probe>, Vec<(String, StoreWatch)>) {
    let survivors: Vec<String> =
        answers.iter().filter(|(_, answer)| answer.is_ok()).map(|(name, _)| name.clone()).collect();
    let voters = answers.values().flatten().flat_map(|remains| match &remains.seen {
        Seen::There(standing) => standing.voters.iter().map(|voter| voter.name.clone()).collect(),
        Seen::Absent | Seen::Damaged { .. } | Seen::Unknown { .. } => Vec::new(),
    });
    // These may be passed over, and serve all the same.
    let open = answers.iter().filter(|(_, answer)| answer.as_ref().is_ok_and(is_open)).map(|(name, _)| name.clone());
    let silent = answers.keys().cloned().chain(voters).filter(|name| !survivors.contains(name) && !name.is_empty());
    let absent: BTreeSet<String> = silent.chain(open).collect();
    if absent.is_empty() {
        return (Vec::new(), Vec::new());
    }
    let request = ProbeRequest { members: absent.into_iter().collect() };
    let (mut probes, mut watches) = (Vec::new(), Vec::new());
    for (node, answer) in cluster.order_all::<_, ProbeAnswer>(&survivors, "/v1/probe", &request) {
        match answer {
            Ok(answer) => {
                probes.extend(answer.probes);
                watches.extend(answer.store.map(|store| (node, store)));
            }
            Err(fault) => probes.extend(request.members.iter().map(|member| Probe {
                from: node.clone(),
                member: member.clone(),
                reply: Reply::Unknown { why: fault.to_string() },
            })),
        }
    }
    (probes, watches)
}

/// Whether what a node holds is not known.
fn is_open(remains: &Remains) -> bool {
    remains.generation.is_none() || matches!(remains.seen, Seen::Unknown { .. })
}

/// What is left on one node. It may have to wait for an etcd without a quorum, and to read a long log.
pub(super) fn remains(cluster: &Cluster, node: &str) -> Result<Remains, Fault> {
    cluster.order(node, "/v1/remains", &())
}

fn row(answer: &Result<Remains, String>, store: &StoreNewest) -> RowSeen {
    let remains = match answer {
        Ok(remains) => remains,
        Err(why) => return RowSeen::Silent(why.clone()),
    };
    let Some(generation) = remains.generation else {
        // A quorum is one whatever a ledger says; without one, a generation that is not known is not the first.
        return match &remains.seen {
            Seen::There(standing) if standing.serves => holds(standing, (0, 0), store),
            _ => RowSeen::Unknown("its ledger cannot be read".to_owned()),
        };
    };
    let newest = remains.outdated_by.unwrap_or(0).max(generation);
    match &remains.seen {
        Seen::There(standing) => holds(standing, (generation, newest), store),
        Seen::Absent => RowSeen::Blank { generation: newest },
        Seen::Damaged { why } => RowSeen::Damaged { generation: newest, why: why.clone() },
        Seen::Unknown { why } => RowSeen::Unknown(why.clone()),
    }
}

fn holds(standing: &Standing, (generation, newest_known): (u64, u64), store: &StoreNewest) -> RowSeen {
    let newest = match store {
        StoreNewest::Newest { revision, .. } => Some(*revision),
        StoreNewest::NotDeclared | StoreNewest::Unknown(_) | StoreNewest::Empty => None,
    };
    RowSeen::Holds(Box::new(Survivor {
        generation,
        newest: newest_known,
        cluster: standing.cluster,
        member: standing.member,
        verdict: Verdict::Valid,
        serves: standing.serves,
        term: standing.term,
        index: standing.index,
        revision: reach(standing, newest),
        hash: standing.hash.zip(standing.revision),
        voters: standing.voters.iter().map(|voter| (voter.id, voter.name.clone())).collect(),
        saw: standing.saw.iter().map(|seen| (seen.member, seen.index)).collect(),
    }))
}

/// The revision that a log leads to: sure where nothing is left to be applied, or where it does not matter for the choice.
fn reach(standing: &Standing, newest: Option<u64>) -> Option<u64> {
    // No database is at revision 0: an agent of an earlier release says that where it does not know.
    let revision = standing.revision.filter(|revision| *revision > 0)?;
    if newest.is_some_and(|newest| revision >= newest) {
        return Some(revision);
    }
    let most = revision.saturating_add(standing.unapplied?);
    match newest {
        _ if most == revision => Some(revision),
        Some(newest) if most < newest => Some(most),
        Some(_) | None => None,
    }
}

/// Whether a node joins what another one begins. What could not be looked at is left as it is.
pub(super) fn joins(row: &SurveyRow) -> bool {
    match &row.seen {
        RowSeen::Silent(_) | RowSeen::Unknown(_) => false,
        RowSeen::Blank { .. } | RowSeen::Damaged { .. } | RowSeen::Holds(_) => true,
    }
}

/// What the survivors observed of the others, one line for each.
fn absent(found: &Survey) -> Vec<String> {
    let probes = found.probes.iter().map(|Probe { from, member, reply }| match reply {
        Reply::Answered { url } => format!("etcd of `{member}`: `{url}` answers `{from}`"),
        Reply::Silent => format!("etcd of `{member}`: no URL answers `{from}`"),
        Reply::Unknown { why } => format!("etcd of `{member}`: not queried by `{from}` ({why})"),
    });
    let watches = found.watches.iter().map(|(node, watch)| format!("store: {}", WatchLine(node, watch)));
    probes.chain(watches).collect()
}

/// Every step, also of nodes whose data is of no use.
fn steps(found: &Survey, plan: &Recovery) -> Vec<String> {
    let mut steps: Vec<RecoverStep> = plan.steps.clone();
    let founder = plan.source.as_ref().map(|source| match source {
        Source::Survivor { node, .. } | Source::Backup { node, .. } => node.clone(),
    });
    for row in &found.rows {
        let step = RecoverStep::Rejoin { node: row.node.clone() };
        if founder.as_ref().is_some_and(|founder| *founder != row.node) && joins(row) && !steps.contains(&step) {
            steps.push(step);
        }
    }
    steps.iter().map(ToString::to_string).collect()
}

/// What is shown before anything is done.
#[derive(Serialize)]
pub(super) struct Shown {
    token: String,
    nodes: Vec<NodeShown>,
    backup: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    absent: Vec<String>,
    generation: u64,
    source: Option<String>,
    loses: Vec<String>,
    steps: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    unconfirmed: Vec<String>,
}

#[derive(Serialize)]
struct NodeShown {
    name: String,
    state: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    generation: Option<u64>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    standing: Option<Standing>,
}

impl Shown {
    pub(super) fn new(spec: &Spec, found: &Survey, plan: &Recovery) -> Shown {
        let node = |(name, answer): (&String, &Result<Remains, String>)| {
            let (state, generation, standing) = match answer {
                Err(why) => (format!("silent: {why}"), None, None),
                Ok(remains) => {
                    let (state, standing) = match &remains.seen {
                        Seen::Absent if remains.serves => ("serves; its data is not where it was".to_owned(), None),
                        Seen::Damaged { why } | Seen::Unknown { why } if remains.serves => {
                            (format!("serves; {why}"), None)
                        }
                        Seen::Absent => ("no data".to_owned(), None),
                        Seen::Damaged { why } => (format!("damaged: {why}"), None),
                        Seen::Unknown { why } => (format!("unknown: {why}"), None),
                        Seen::There(standing) if standing.serves => ("serves".to_owned(), Some(*standing.clone())),
                        Seen::There(standing) if standing.runs => ("no quorum".to_owned(), Some(*standing.clone())),
                        Seen::There(standing) => ("stopped".to_owned(), Some(*standing.clone())),
                    };
                    let state = match remains.generation {
                        Some(_) => state,
                        None => format!("{state}; its ledger cannot be read"),
                    };
                    (state, remains.generation, standing)
                }
            };
            NodeShown { name: name.clone(), state, generation, standing }
        };
        Shown {
            token: spec.token.clone(),
            nodes: found.answers.iter().map(node).collect(),
            backup: match &found.store {
                StoreNewest::NotDeclared if spec.backup.is_none() => "no store of backups is declared".to_owned(),
                StoreNewest::NotDeclared => "the store of backups was not queried: `--without-store`".to_owned(),
                StoreNewest::Unknown(why) => format!("the store of backups does not answer: {why}"),
                StoreNewest::Empty => "the store of backups holds nothing that can be proven".to_owned(),
                StoreNewest::Newest { revision, .. } => {
                    format!("the store of backups reaches revision {revision}{}", found.title())
                }
            },
            absent: absent(found),
            generation: plan.generation,
            source: plan.source.as_ref().map(|source| match source {
                Source::Backup { .. } => format!("{source}{}", found.title()),
                Source::Survivor { .. } => source.to_string(),
            }),
            loses: plan.loses.clone(),
            steps: steps(found, plan),
            unconfirmed: plan.unconfirmed.clone(),
        }
    }

    /// The same as text, for the terminal.
    pub(super) fn text(&self) -> String {
        let mut page = Page::new(None);
        self.render(&mut page);
        page.as_str().trim_end().to_owned()
    }
}

impl Report for Shown {
    fn render(&self, page: &mut Page) {
        let rows = self.nodes.iter().map(|node| {
            let text = |value: Option<u64>| value.map_or_else(|| "-".to_owned(), |value| value.to_string());
            let of = |get: fn(&Standing) -> u64| text(node.standing.as_ref().map(get));
            let revision = match node.standing.as_ref().map(|standing| (standing.revision, standing.unapplied)) {
                None => "-".to_owned(),
                Some((None, _)) => "?".to_owned(),
                Some((Some(revision), Some(0))) => revision.to_string(),
                Some((Some(revision), Some(more))) => format!("{revision}+{more}"),
                Some((Some(revision), None)) => format!("{revision}+?"),
            };
            let hash = node.standing.as_ref().and_then(|standing| standing.hash);
            let hash = hash.map_or_else(|| "-".to_owned(), |hash| format!("{hash:08x}"));
            [
                node.name.clone(),
                text(node.generation),
                of(|standing| standing.term),
                of(|standing| standing.index),
                revision,
                hash,
                node.state.clone(),
            ]
        });
        page.table(["NODE", "GENERATION", "TERM", "INDEX", "REVISION", "HASH", "STATE"], rows);
        page.line(self.backup.clone());
        for line in &self.absent {
            page.line(line.clone());
        }
        page.gap();
        if let Some(source) = &self.source {
            page.line(format!("generation {} of `{}` would be made of {source}", self.generation, self.token));
        }
        for lost in &self.loses {
            page.line(format!("  may be lost: {lost}"));
        }
        for (at, step) in self.steps.iter().enumerate() {
            page.line(format!("  {}. {step}", at + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn answers(remains: serde_json::Value) -> BTreeMap<String, Result<Remains, String>> {
        [("n1".to_owned(), Ok(serde_json::from_value(remains).unwrap()))].into()
    }

    #[test]
    fn revisions_go_on_above_what_any_ledger_has_recorded() {
        let remains = json!({"name": "n1", "generation": 0, "seen": {"state": "absent"}, "highest": 70});
        assert_eq!(highest(&answers(remains)), 70);
        let earlier = json!({"name": "n1", "generation": 0, "seen": {"state": "absent"}});
        assert_eq!(highest(&answers(earlier)), 0);
    }
}
