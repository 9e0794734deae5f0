//! Follows a recovery that was ordered: the node that begins, then those that join it.
//!
//! **Invariant:** nobody is told to join before the recovered cluster serves.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use quorate_agent::recover::{Order, Progress, RecoveryNow, Role, Seen};
use quorate_agent::turn::Status;
use quorate_faults::{Code, Exit, Fault};
use serde::Serialize;

use super::super::ask::Cluster;
use super::survey::{Survey, remains};
use crate::printer::Printer;
use crate::render::{Page, Report};

/// Between two looks.
const LOOK: Duration = Duration::from_millis(300);

/// A recovery that was begun and is not finished, and where.
pub(super) fn under_way(found: &Survey) -> Option<(String, Order)> {
    let answers = || found.answers.values().filter_map(|answer| answer.as_ref().ok());
    let generation = answers().filter_map(|remains| remains.generation).max()?;
    answers().find_map(|remains| {
        let now = remains.recovery.as_ref()?;
        if !matches!(now.order.role, Role::Begin(_)) || now.order.generation < generation {
            return None;
        }
        let behind = |name: &String| {
            let other = found.answers.get(name).and_then(|answer| answer.as_ref().ok());
            other.and_then(|other| other.generation).is_some_and(|generation| generation < now.order.generation)
        };
        let open = match (&now.progress, found.standing(&remains.name)) {
            (Progress::Ordered | Progress::Built { .. }, _) => true,
            (Progress::Done { .. }, Some(standing)) if standing.serves => now.order.rejoin.iter().any(behind),
            // It was just begun. With more voters it has lived since, and has lost its quorum again.
            (Progress::Done { .. }, Some(standing)) => standing.voters.len() <= 1,
            (Progress::Done { .. } | Progress::Failed { .. }, _) => false,
        };
        open.then(|| (remains.name.clone(), now.order.clone()))
    })
}

/// Waits for all of it.
pub(super) fn follow(
    cluster: &Cluster,
    founder: &str,
    order: &Order,
    wait: Duration,
    printer: &mut Printer,
) -> Result<Exit, Fault> {
    let begun = Instant::now();
    printer.note(&format!("`{founder}` begins generation {}", order.generation));
    let (revision, renamed) = begin(cluster, founder, order, begun, wait)?;
    printer.note(&format!("`{founder}` serves revision {revision} as the only member"));
    let mut missing: BTreeMap<String, String> =
        order.rejoin.iter().map(|node| (node.clone(), "it was not told yet".to_owned())).collect();
    while !missing.is_empty() {
        let statuses: BTreeMap<String, Result<Status, Fault>> = cluster.ask("/v1/status");
        let nodes: Vec<String> = missing.keys().cloned().collect();
        for node in nodes {
            match join(cluster, &node, order, statuses.get(&node)) {
                Ok(None) => drop(missing.remove(&node)),
                Ok(Some(why)) => drop(missing.insert(node, why)),
                Err(fault) => drop(missing.insert(node, fault.to_string())),
            }
        }
        if !missing.is_empty() && begun.elapsed() > wait {
            let who: Vec<&str> = missing.keys().map(String::as_str).collect();
            let why: Vec<String> = missing.iter().map(|(node, why)| format!("`{node}`: {why}")).collect();
            return Err(Fault::new(
                Code::RecoverWaiting,
                format!("`{founder}` serves, and {} is not in yet", who.join(", ")),
            )
            .hint(continues(cluster))
            .caused_by(why.join("; ")));
        }
        std::thread::sleep(LOOK);
    }
    printer.report(&Done {
        generation: order.generation,
        founder: founder.to_owned(),
        revision,
        joined: order.rejoin.clone(),
        renamed,
    });
    Ok(Exit::Done)
}

/// What an operator does about an order that is not carried out yet.
fn continues(cluster: &Cluster) -> String {
    format!(
        "the agents continue with what was ordered: `quorate cluster status --config {}` shows progress; run the same command again to \
         follow it and to have the other nodes join",
        cluster.file.display()
    )
}

/// Waits until the founder serves. Returns the recovered revision, and what was renamed.
fn begin(
    cluster: &Cluster,
    founder: &str,
    order: &Order,
    begun: Instant,
    wait: Duration,
) -> Result<(u64, Vec<(PathBuf, PathBuf)>), Fault> {
    loop {
        let why = match remains(cluster, founder) {
            Err(fault) => fault.to_string(),
            Ok(remains) => match remains.recovery.as_ref().filter(|now| now.order == *order) {
                None => return Err(Fault::new(Code::RecoverOther, format!("`{founder}` has another order"))),
                Some(RecoveryNow { progress: Progress::Failed { code, why }, .. }) => {
                    let code = Code::parse(code).unwrap_or(Code::RecoverBoot);
                    return Err(Fault::new(code, format!("`{founder}` gave it up: {why}"))
                        .hint(format!("nothing was changed; see `quorate explain {code}`")));
                }
                Some(RecoveryNow { progress: Progress::Done { revision, renamed, .. }, .. }) => match &remains.seen {
                    Seen::There(standing) if standing.serves => return Ok((revision.unwrap_or(0), renamed.clone())),
                    Seen::There(_) | Seen::Absent | Seen::Damaged { .. } | Seen::Unknown { .. } => {
                        "its etcd does not serve yet".to_owned()
                    }
                },
                Some(RecoveryNow { progress: Progress::Ordered | Progress::Built { .. }, .. }) => {
                    "its data is being made".to_owned()
                }
            },
        };
        if begun.elapsed() > wait {
            return Err(Fault::new(Code::RecoverWaiting, format!("`{founder}` has not begun the cluster yet"))
                .hint(continues(cluster))
                .caused_by(why));
        }
        std::thread::sleep(LOOK);
    }
}

/// Has a node join. Returns what is missing yet.
fn join(
    cluster: &Cluster,
    node: &str,
    order: &Order,
    status: Option<&Result<Status, Fault>>,
) -> Result<Option<String>, Fault> {
    let order = Order { role: Role::Join, rejoin: Vec::new(), ..order.clone() };
    let now: RecoveryNow = cluster.order(node, "/v1/recover", &order)?;
    Ok(match (&now.progress, status) {
        (Progress::Done { .. }, Some(Ok(status))) if status.phase == "serving" => None,
        (Progress::Done { .. }, Some(Ok(status))) => Some(status.cause.clone()),
        (Progress::Failed { why, .. }, _) => Some(why.clone()),
        (Progress::Done { .. } | Progress::Ordered | Progress::Built { .. }, _) => {
            Some("it sets its data aside".to_owned())
        }
    })
}

#[derive(Serialize)]
struct Done {
    generation: u64,
    founder: String,
    revision: u64,
    joined: Vec<String>,
    renamed: Vec<(PathBuf, PathBuf)>,
}

impl Report for Done {
    fn render(&self, page: &mut Page) {
        let Done { generation, founder, revision, joined, renamed } = self;
        page.line(format!("recovered: generation {generation}, begun by `{founder}` at revision {revision}"));
        match joined.is_empty() {
            true => page.line("no other node answered; new ones join when their agents run"),
            false => page.line(format!("joined: {}", joined.join(", "))),
        }
        for (from, to) in renamed {
            page.line(format!("kept: `{}`, as it was, is `{}`", from.display(), to.display()));
        }
        page.line("a node that was called dead and returns says so, and waits for `quorate data reset --yes`");
    }
}
