//! `quorate cluster bootstrap`: whether all is ready to found what a file declares, what will happen, and waiting for it.
//!
//! **Rule:** the file's `bootstrap` is what declares a founding; this command changes nothing. Agents found by themselves.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use quorate_agent::peers::{FoundingAnswer, NodeAnswer};
use quorate_etcd_formats::membership::ClusterId;
use quorate_faults::{Code, Exit, Fault, Severity};
use quorate_pki::{PreflightInput, node_name, preflight, read_certificates};
use quorate_plan::certificates::host_of;
use quorate_plan::roster::names;
use quorate_plan::spec::{Member, Spec, Tls, for_member};
use serde::Serialize;

use super::ask::Cluster;
use super::status;
use crate::args::duration;
use crate::printer::Printer;
use crate::render::{Page, Report};

/// Between two looks.
const AGAIN: Duration = Duration::from_millis(250);

/// Flags of `cluster bootstrap`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  quorate cluster bootstrap cluster.yaml
  quorate cluster bootstrap cluster.yaml --wait 0s     look once, do not wait

Every declared agent is asked. Who is ready is said at once, then what changes. The cluster is
founded by the agents themselves, as soon as all have promised the same. Exit code 0: it is
founded and serves. 3: it still waits, and it says for whom. 5: nodes disagree.")]
pub(crate) struct Args {
    /// The cluster file
    file: PathBuf,

    /// How long to wait until it is founded
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = duration)]
    wait: Duration,

    /// Ask with this member's certificate [default: the first that can be read here]
    #[arg(long, env = "QUORATE_NAME")]
    name: Option<String>,
}

/// Looks, shows and waits.
pub(crate) fn run(args: &Args, printer: &mut Printer) -> Result<Exit, Fault> {
    let cluster = Cluster::open(&args.file, args.name.as_deref(), printer)?;
    let shown = args.file.display();
    if cluster.spec.founding_ids().is_none() {
        return Err(Fault::new(Code::SpecMistake, format!("`{shown}` declares no founding"))
            .hint("write `bootstrap: {id: 1}`, and another number for each founding"));
    }
    certificates(&cluster, args.name.as_deref(), printer)?;
    let begun = Instant::now();
    let mut said: BTreeMap<String, String> = BTreeMap::new();
    let mut progress = None;
    loop {
        let nodes = look(&cluster);
        tell(&nodes, &mut said, printer);
        progress.get_or_insert_with(|| printer.progress("waiting for every node", None));
        let disagree: Vec<&str> = nodes.iter().filter(|node| node.disagrees).map(|node| node.name.as_str()).collect();
        if !disagree.is_empty() {
            drop(progress);
            let attempt = format!("cannot found what `{shown}` declares: {} disagrees", names(disagree));
            let why = nodes.iter().filter(|node| node.disagrees).map(|node| format!("{}: {}", node.name, node.state));
            return Err(Fault::new(Code::StartDisagree, attempt)
                .hint("give every node the same `members`, `token` and `bootstrap`")
                .caused_by(why.collect::<Vec<_>>().join("; ")));
        }
        let serves = nodes.iter().all(|node| node.founded) && status::look(&cluster).all_serve();
        if serves || begun.elapsed() >= args.wait {
            drop(progress);
            let missing = nodes.iter().filter(|node| !node.founded).map(|node| node.name.clone()).collect();
            let waits = match serves {
                true => Vec::new(),
                false => status::look(&cluster).waits().map(|(name, why)| format!("{name}: {why}")).collect(),
            };
            printer.report(&Shown {
                cluster_id: nodes.iter().find_map(|node| node.cluster_id.clone()),
                founded: serves,
                nodes,
                missing,
                waits,
            });
            return Ok(if serves { Exit::Done } else { Code::BootstrapWaiting.exit() });
        }
        std::thread::sleep(AGAIN.min(args.wait.saturating_sub(begun.elapsed())));
    }
}

/// Says the first look at once, and from then on what is news. With no time to wait, the result says it all.
fn tell(nodes: &[Node], said: &mut BTreeMap<String, String>, printer: &mut Printer) {
    if said.is_empty() {
        let ready = nodes.iter().filter(|node| node.answers).count();
        let missing: Vec<&str> = nodes.iter().filter(|node| !node.answers).map(|node| node.name.as_str()).collect();
        let missing = if missing.is_empty() { String::new() } else { format!("; no answer of {}", names(missing)) };
        printer.note(&format!("{ready} of {} agents answer{missing}", nodes.len()));
        if !nodes.iter().all(|node| node.founded) {
            printer.note("the cluster is founded, once, as soon as every node has promised it");
        }
    }
    for node in nodes {
        if said.get(&node.name) != Some(&node.state) {
            printer.note(&format!("{}: {}", node.name, node.state));
            said.insert(node.name.clone(), node.state.clone());
        }
    }
}

/// Checks the certificates that are on this machine, of whichever members they are.
fn certificates(cluster: &Cluster, name: Option<&str>, printer: &mut Printer) -> Result<(), Fault> {
    let Some(tls) = cluster.spec.tls_files() else { return Ok(()) };
    let own = tls_owner(&cluster.spec, tls, name);
    let mut elsewhere = Vec::new();
    for member in &cluster.spec.members {
        let other = own.as_ref().is_some_and(|own| *own != member.name);
        if other || std::fs::File::open(for_member(&tls.peer.key_file, &member.name)).is_err() {
            elsewhere.push(member.name.as_str());
            continue;
        }
        let input = PreflightInput { spec: &cluster.spec, member, etcd: None };
        for finding in preflight(&input, Timestamp::now()) {
            if finding.severity == Severity::Error {
                let attempt = format!("`{}` is not ready: {} at {}", member.name, finding.what, finding.place);
                return Err(Fault::new(finding.code, attempt).hint(finding.remedy));
            }
            printer.warning(finding.code, &format!("{}: {} at {}", member.name, finding.what, finding.place));
        }
    }
    if !elsewhere.is_empty() {
        let who = names(elsewhere);
        printer
            .note(&format!("certificates of {who} are not on this machine, and were not checked: their agents do so"));
    }
    Ok(())
}

/// The member whose files are on this machine, where the file names the same paths for all of them: the one that is given, else
/// the one that the certificate names, else the one whose address it is for. `None`: each member has paths of its own.
fn tls_owner(spec: &Spec, tls: &Tls, name: Option<&str>) -> Option<String> {
    let files = tls.agent.as_ref().unwrap_or(&tls.peer);
    if files.cert_file.contains("{name}") || tls.peer.key_file.contains("{name}") {
        return None;
    }
    if let Some(name) = name {
        return Some(name.to_owned());
    }
    let leaf = read_certificates(Path::new(&files.cert_file)).ok()?.into_iter().next()?;
    let named = node_name(&leaf.der, &spec.token).filter(|name| spec.member(name).is_some());
    let at = |member: &&Member| host_of(&spec.agent_url_of(member)).is_some_and(|host| leaf.covers(host));
    named.or_else(|| spec.members.iter().find(at).map(|member| member.name.clone()))
}

fn look(cluster: &Cluster) -> Vec<Node> {
    let answers: BTreeMap<String, Result<NodeAnswer, Fault>> = cluster.ask("/v1/node");
    let declared = declared(&cluster.spec, answers.values().flatten());
    let one = |name: &str| -> Node {
        let (state, founded, disagrees) = match answers.get(name) {
            None => ("it was not asked".to_owned(), false, false),
            // An agent of another cluster, or with another file, says so.
            Some(Err(fault)) => (fault.to_string(), false, fault.code() == Code::PeerOtherCluster),
            Some(Ok(answer)) => state(cluster, answer, &declared),
        };
        let answer = answers.get(name).and_then(|answer| answer.as_ref().ok());
        let member_id = answer.and_then(|answer| answer.member).map(|member| member.to_string());
        let cluster_id = answer.and_then(|answer| answer.seal.as_ref()).map(|seal| seal.cluster.to_string());
        let answers = matches!(answers.get(name), Some(Ok(_)));
        Node {
            name: name.to_owned(),
            agent: cluster.url(name),
            state,
            answers,
            founded,
            disagrees,
            member_id,
            cluster_id,
        }
    };
    cluster.spec.members.iter().map(|member| one(&member.name)).collect()
}

/// The clusters that come of the file: what nodes sealed, and the ids that earlier releases computed from the file alone.
fn declared<'a>(spec: &Spec, answers: impl Iterator<Item = &'a NodeAnswer>) -> Vec<ClusterId> {
    let hash = spec.declaration_hash();
    let seals = answers.filter_map(|answer| answer.seal.as_ref()).filter(|seal| seal.declaration == hash);
    seals.map(|seal| seal.cluster).chain(spec.founding_ids().map(|ids| ids.cluster)).collect()
}

/// How far a node is, whether it has founded, and whether it wants something else.
fn state(cluster: &Cluster, answer: &NodeAnswer, declared: &[ClusterId]) -> (String, bool, bool) {
    let spec = &cluster.spec;
    match &answer.founding {
        FoundingAnswer::Nothing if answer.declaration != spec.declaration_hash() => {
            ("its file declares another founding".to_owned(), false, true)
        }
        FoundingAnswer::Nothing => ("ready, has not promised yet".to_owned(), false, false),
        FoundingAnswer::Promised(promise) if promise.declaration == spec.declaration_hash() => {
            (format!("has promised founding {}", promise.bootstrap), false, false)
        }
        FoundingAnswer::Promised(promise) => {
            (format!("has promised founding {} of another declaration", promise.bootstrap), false, true)
        }
        FoundingAnswer::Founded { cluster } if declared.contains(cluster) => ("has started".to_owned(), true, false),
        FoundingAnswer::Founded { cluster } => (format!("is a member of cluster {cluster}"), true, true),
        FoundingAnswer::Removed => ("was removed for good".to_owned(), false, true),
    }
}

#[derive(Serialize)]
struct Node {
    name: String,
    agent: String,
    state: String,
    answers: bool,
    founded: bool,
    disagrees: bool,
    /// Known once every node has promised.
    member_id: Option<String>,
    cluster_id: Option<String>,
}

/// What is printed.
#[derive(Serialize)]
struct Shown {
    /// Known once every node has promised.
    cluster_id: Option<String>,
    founded: bool,
    nodes: Vec<Node>,
    /// Who has not started yet.
    missing: Vec<String>,
    /// Who does not serve, and what it waits for.
    waits: Vec<String>,
}

impl Report for Shown {
    fn render(&self, page: &mut Page) {
        page.table(
            ["node", "agent", "member", "state"],
            self.nodes.iter().map(|node| {
                let member = node.member_id.clone().unwrap_or_else(|| "-".to_owned());
                [node.name.clone(), node.agent.clone(), member, node.state.clone()]
            }),
        );
        page.gap();
        if self.founded {
            let id = self.cluster_id.as_deref().map(|id| format!(" {id}")).unwrap_or_default();
            page.line(format!("cluster{id} is founded, and every member serves"));
            return;
        }
        page.line("the cluster is founded as soon as every node has promised it:");
        page.line("  1. each node promises with a nonce, makes its data dir offline, and has every other write down that it starts");
        page.line("  2. each node starts etcd on what it made; nothing is ever founded twice");
        for wait in &self.waits {
            page.line(format!("waiting for {wait}"));
        }
    }
}
