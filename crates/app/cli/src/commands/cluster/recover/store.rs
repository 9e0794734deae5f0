//! Queries the store of backups about a cluster that is to be recovered.
//!
//! **Rule:** backups of another cluster are nothing to recover from; whose they are is printed.

use std::collections::BTreeMap;

use quorate_agent::recover::{Remains, Seen};
use quorate_backup::session::{Session, Whose};
use quorate_etcd_formats::membership::ClusterId;
use quorate_faults::{Code, Fault};
use quorate_plan::chain::Target;
use quorate_plan::change::recover::{Point, StoreNewest};
use quorate_plan::lineage::Lineage;
use quorate_plan::spec::Spec;

/// What the store holds of this cluster.
pub(super) struct StoreSurvey {
    /// What it proves.
    pub(super) newest: StoreNewest,
    /// The highest revision that anything in it mentions.
    pub(super) highest: u64,
    /// How far it reaches, whatever point is wanted.
    pub(super) end: Option<u64>,
    /// The token and the clusters of these backups.
    pub(super) lineage: Option<String>,
}

impl StoreSurvey {
    pub(super) fn without(newest: StoreNewest) -> StoreSurvey {
        StoreSurvey { newest, highest: 0, end: None, lineage: None }
    }
}

/// The clusters that the nodes belong to, and all those whose backups may be theirs.
pub(super) fn own_clusters(answers: &BTreeMap<String, Result<Remains, String>>) -> (Vec<u64>, Vec<u64>) {
    let (mut current, mut known) = (Vec::new(), Vec::new());
    for remains in answers.values().flatten() {
        current.extend(remains.cluster.map(|cluster| cluster.0));
        if let Seen::There(standing) = &remains.seen {
            current.push(standing.cluster.0);
        }
        known.extend(remains.was.iter().chain(&remains.left).map(|cluster| cluster.0));
    }
    known.extend(&current);
    (current, known)
}

/// The backups of these nodes: those of a cluster that one of them belongs to come before those of one that it came from.
fn lineage_of<'a>(all: &'a [Lineage], answers: &BTreeMap<String, Result<Remains, String>>) -> Option<&'a Lineage> {
    let (current, known) = own_clusters(answers);
    let of = |clusters: &[u64]| all.iter().find(|lineage| lineage.has_any(clusters));
    of(&current).or_else(|| of(&known))
}

/// Queries the store.
pub(super) fn ask_store(
    spec: &Spec,
    answers: &BTreeMap<String, Result<Remains, String>>,
    point: Option<Point>,
) -> Result<StoreSurvey, Fault> {
    let Some(backup) = &spec.backup else { return Ok(StoreSurvey::without(StoreNewest::NotDeclared)) };
    let mut session = match Session::open(&backup.store, &std::env::temp_dir()) {
        Ok(session) => session,
        Err(fault) => return Ok(StoreSurvey::without(StoreNewest::Unknown(fault.to_string()))),
    };
    let (_, known) = own_clusters(answers);
    let all = session.catalog.lineages(&[]);
    // What the store holds of other clusters is nothing to recover from.
    let lineage = match lineage_of(&all, answers) {
        Some(mine) => {
            session.catalog.narrow(mine);
            Some(mine.clone())
        }
        None if known.is_empty() => session.narrow(&Whose::TheOnly)?,
        None => match session.narrow(&Whose::Of(known.clone())) {
            Err(fault) if fault.code() == Code::LineageMissing => {
                return Ok(StoreSurvey::without(StoreNewest::Empty));
            }
            narrowed => narrowed?,
        },
    };
    let own = all.iter().filter(|lineage| lineage.has_any(&known)).map(|lineage| lineage.highest_revision);
    let catalog = &session.catalog;
    let highest = own.max().unwrap_or(0).max(catalog.highest_revision());
    let end = catalog.decide(Target::Newest).chain.map(|chain| chain.reach);
    let wanted = match point {
        None => Target::Newest,
        Some(Point::Time(ms)) => Target::Time(ms),
        Some(Point::Revision(revision)) => Target::Revision(revision),
    };
    let waits = answers.values().flatten().filter_map(|remains| remains.spool.as_ref());
    let waits = waits.flat_map(|spool| &spool.parts).map(|part| part.1).max().unwrap_or(0);
    // The store may lead there once a spool was uploaded.
    let target = match point {
        Some(Point::Revision(revision)) if end.is_some_and(|end| end < revision) && revision <= waits => Target::Newest,
        Some(_) => {
            session.reach(wanted)?;
            wanted
        }
        None => wanted,
    };
    let lineage = lineage.map(|lineage| lineage.title());
    let Some(chain) = catalog.decide(target).chain else {
        return Ok(StoreSurvey { newest: StoreNewest::Empty, highest, end, lineage });
    };
    let id = catalog.objects.get(chain.base).map_or(0, |object| object.cluster_id);
    let cluster = (id != 0).then_some(ClusterId(id));
    // The backups of the cluster that a cluster was restored from are its own.
    let was = |remains: &Remains| cluster.is_some_and(|it| remains.was.contains(&it) || remains.left.contains(&it));
    let ours = answers.values().flatten().any(was);
    let (revision, epoch) = (chain.reach, catalog.newest_epoch());
    let newest = StoreNewest::Newest { cluster: cluster.filter(|_| !ours), revision, epoch };
    Ok(StoreSurvey { newest, highest, end, lineage })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn lineage(clusters: &[u64]) -> Lineage {
        Lineage {
            clusters: clusters.to_vec(),
            newest_cluster: clusters.last().copied().unwrap_or(0),
            tokens: Vec::new(),
            epochs: Vec::new(),
            objects: Vec::new(),
            highest_revision: 0,
        }
    }

    fn answers(remains: serde_json::Value) -> BTreeMap<String, Result<Remains, String>> {
        [("n1".to_owned(), Ok(serde_json::from_value(remains).unwrap()))].into()
    }

    #[test]
    fn the_ledger_tells_whose_backups_are_used_where_all_data_is_lost() {
        let all = [lineage(&[0xa]), lineage(&[0xb, 0xc])];
        let chosen = |remains| lineage_of(&all, &answers(remains)).map(|lineage| lineage.clusters.clone());
        let lost = |more: serde_json::Value| {
            let mut remains = json!({"name": "n1", "generation": 0, "seen": {"state": "absent"}});
            remains.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            remains
        };
        assert_eq!(chosen(lost(json!({"cluster": "c"}))), Some(vec![0xb, 0xc]));
        // The cluster that it belongs to counts more than one that it left.
        assert_eq!(chosen(lost(json!({"cluster": "c", "left": ["a"]}))), Some(vec![0xb, 0xc]));
        assert_eq!(chosen(lost(json!({"cluster": "d", "was": ["a"]}))), Some(vec![0xa]));
        assert_eq!(chosen(lost(json!({"cluster": "d"}))), None);
        assert_eq!(chosen(lost(json!({}))), None);
    }
}
