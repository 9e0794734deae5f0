//! What the commands that change a living cluster have in common: a look at all of it, the plan, a person's yes, the file for
//! every node, and following what the agents do.
//!
//! **Rule:** the agents act; a command asks, shows and waits. Killed at any point and run again, it goes on from what it sees.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io::IsTerminal;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use quorate_agent::peers::{
    FileRequest, FileTold, FileTrial, FoundingAnswer, NodeAnswer, OperatorFiles, PeerError, Peers,
    check_agent_addresses, text_hash,
};
use quorate_agent::turn::look;
use quorate_agent::{cluster_file, declared};
use quorate_faults::{Code, Exit, Fault};
use quorate_plan::change::{ChangePlan, ClusterView, NodeSeen, plan_change};
use quorate_plan::file_order::{FileOrder, HOLDS_MS, REPLACES_MAX, SignedFileOrder};
use quorate_plan::roster::names;
use quorate_plan::spec::Spec;
use serde::Serialize;

use crate::args::duration;
use crate::commands::run::runtime;
use crate::printer::Printer;
use crate::render::{Page, Report};

/// Between two looks.
const AGAIN: Duration = Duration::from_millis(400);

/// Flags of every command that changes a cluster.
#[derive(Debug, clap::Args)]
pub(crate) struct ChangeArgs {
    /// Only what was approved: the hash that `cluster plan` shows
    #[arg(long, value_name = "HASH")]
    pub(crate) plan: Option<String>,

    /// Do not ask
    #[arg(long)]
    pub(crate) yes: bool,

    /// How long to follow what the agents do
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = duration)]
    pub(crate) wait: Duration,

    /// Ask with this member's certificate [default: the first that can be read here]
    #[arg(long, env = "QUORATE_NAME")]
    pub(crate) name: Option<String>,
}

/// A cluster, and the file that it is to be like.
pub(crate) struct Living {
    /// The file's text.
    pub(crate) text: String,
    /// What it declares.
    pub(crate) spec: Spec,
    peers: Arc<Peers>,
    files_of: String,
    runtime: tokio::runtime::Runtime,
    /// The signature over the file, once it was made.
    order: RefCell<Option<SignedFileOrder>>,
}

/// One look.
pub(crate) struct Look {
    pub(crate) view: ClusterView,
    pub(crate) plan: ChangePlan,
    pub(crate) answers: BTreeMap<String, Result<NodeAnswer, Fault>>,
    /// Why nodes that were shown the file would not take it.
    pub(crate) objection: Option<Fault>,
}

impl Look {
    /// Only if every node would take the file.
    pub(crate) fn if_taken(mut self) -> Result<Look, Fault> {
        self.objection.take().map_or(Ok(self), Err)
    }
}

impl Living {
    /// Reads and checks the file.
    pub(crate) fn open(file: &Path, name: Option<&str>, printer: &mut Printer) -> Result<Living, Fault> {
        Living::of(file, cluster_file::text(file)?, name, printer)
    }

    /// The same with a text that is not in the file yet.
    pub(crate) fn of(file: &Path, text: String, name: Option<&str>, printer: &mut Printer) -> Result<Living, Fault> {
        let (spec, warnings) = cluster_file::parse(text.as_bytes(), &file.display().to_string())?;
        let (spec, more) = declared::resolve_now(spec, name, declared::ASKED_WITHIN)?;
        for warning in warnings.into_iter().chain(more) {
            printer.warning(warning.code, &warning.text);
        }
        check_agent_addresses(&spec)?;
        let (peers, files_of) = Peers::for_operator_with(&spec, name);
        let peers = peers.with_operator(OperatorFiles::find(&spec.token)?);
        let runtime = runtime()?;
        let order = RefCell::default();
        let mut living = Living { text, spec, peers: Arc::new(peers), files_of, runtime, order };
        living.find_leaving();
        Ok(living)
    }

    /// Learns from the nodes whom their present file declares and the new one does not.
    fn find_leaving(&mut self) {
        let told: BTreeMap<String, Result<FileTold, Fault>> =
            self.runtime.block_on(self.peers.ask_all("/v1/file", None));
        let mut leaving = BTreeMap::new();
        for told in told.into_values().flatten() {
            let Ok((present, _)) = cluster_file::parse(told.text.as_bytes(), "the present file") else { continue };
            let gone = present.members.into_iter().filter(|member| self.spec.member(&member.name).is_none());
            leaving.extend(gone.map(|member| (member.name.clone(), member)));
        }
        let leaving: Vec<_> = leaving.into_values().collect();
        let (peers, _) = Peers::for_operator_with(&self.spec, Some(&self.files_of));
        let peers = peers.with_operator(self.peers.operator().cloned());
        self.peers = Arc::new(peers.and_leaving(&self.spec, &leaving));
    }

    /// Asks every node and a quorum, and decides what would be done.
    pub(crate) fn look(&self) -> Look {
        let (view, answers) = self.runtime.block_on(look(&self.spec, &self.files_of, &self.peers));
        let plan = plan_change(&view, &self.spec);
        Look { view, plan, answers, objection: None }
    }

    /// The same for a file that nodes do not hold yet: it is shown to them, and what it would mean for each is part of the plan.
    /// A file that one of them would not take is given to none. `will_send`: one that lacks a signature counts as such as well.
    pub(crate) fn look_ahead(&self, will_send: bool) -> Result<Look, Fault> {
        let mut seen = self.look();
        let order = if will_send { self.sign(&seen)? } else { None };
        let trial = FileTrial { text: self.text.clone(), order, will_be_sent: will_send };
        let hash = self.spec.hash();
        let other = |answer: &Result<NodeAnswer, Fault>| answer.as_ref().is_ok_and(|answer| answer.file != hash);
        let nodes = seen.answers.iter().filter(|(_, answer)| other(answer)).map(|(name, _)| name.clone()).collect();
        let (mut objections, mut unknown) = (Vec::new(), Vec::new());
        for (node, tried) in self.runtime.block_on(self.peers.try_file(nodes, &trial)) {
            match tried {
                Ok(tried) => {
                    if let Some(NodeSeen::Answered(now)) = seen.view.nodes.get_mut(&node) {
                        now.restart = tried.restart;
                    }
                }
                // Agents from before this question take it for another one.
                Err(PeerError::Refused(fault)) if fault.code() != Code::PeerRequest => objections.push(fault),
                Err(error) => unknown.push(format!("what the file means for `{node}` is not known: {error}")),
            }
        }
        if let Some(first) = objections.first() {
            let all: Vec<String> = objections.iter().map(ToString::to_string).collect();
            let objection = Fault::new(first.code(), format!("nobody was given the file: {}", all.join("; ")));
            seen.objection = Some(objection.hint(format!("see `quorate explain {}`", first.code())));
        }
        seen.plan = plan_change(&seen.view, &self.spec);
        seen.plan.remarks.extend(unknown);
        Ok(seen)
    }

    /// Signs the file with the certificate of the operator who runs this, for the place of those that nodes have; `None`: whoever runs
    /// this has none. One signature is used for as long as it holds.
    fn sign(&self, seen: &Look) -> Result<Option<SignedFileOrder>, Fault> {
        let Some(operator) = self.peers.operator() else { return Ok(None) };
        let now = u64::try_from(Timestamp::now().as_millisecond()).unwrap_or_default();
        let mut order = self.order.borrow_mut();
        if let Some(known) = order.as_ref().filter(|known| now < known.order.expires_ms.saturating_sub(HOLDS_MS / 2)) {
            return Ok(Some(known.clone()));
        }
        let answers = || seen.answers.values().flatten();
        let serial =
            answers().filter_map(|answer| answer.file_serial).chain(order.iter().map(|it| it.order.serial)).max();
        let own = self.spec.hash();
        let mut replaces: Vec<String> =
            answers().map(|answer| answer.file.clone()).filter(|file| *file != own).collect();
        replaces.sort_unstable();
        replaces.dedup();
        replaces.truncate(REPLACES_MAX);
        let cluster = answers().find_map(|answer| match answer.founding {
            FoundingAnswer::Founded { cluster } => Some(cluster),
            FoundingAnswer::Nothing | FoundingAnswer::Promised(_) | FoundingAnswer::Removed => None,
        });
        let next = FileOrder {
            token: self.spec.token.clone(),
            cluster,
            replaces,
            serial: serial.unwrap_or(0).saturating_add(1),
            signed_ms: now,
            expires_ms: now.saturating_add(HOLDS_MS),
            text: text_hash(&self.text),
        };
        let signed = operator.sign(&next)?;
        *order = Some(signed.clone());
        Ok(Some(signed))
    }

    /// Every node, those that leave included.
    pub(crate) fn nodes(&self) -> Vec<String> {
        self.peers.others().into_iter().chain(self.peers.leaving()).collect()
    }

    /// Asks one node for something.
    pub(crate) fn block_on<T>(&self, work: impl Future<Output = T>) -> T {
        self.runtime.block_on(work)
    }

    /// How agents are asked.
    pub(crate) fn peers(&self) -> &Arc<Peers> {
        &self.peers
    }

    /// Gives the file to every node, first to those that leave by it. Returns who could not be reached, and why.
    pub(crate) fn distribute(&self, seen: &Look) -> Result<BTreeMap<String, String>, Fault> {
        self.hand_out(seen, &mut BTreeMap::new())
    }

    /// Gives the file out by a plan that was approved. Agents act from then on, each by what it sees: it is looked once more
    /// whether that is what was approved.
    pub(crate) fn distribute_approved(&self, seen: &Look) -> Result<(), Fault> {
        let mut kept = BTreeMap::new();
        self.hand_out(seen, &mut kept).map_err(|fault| match way_back(&kept) {
            Some(back) => fault.hint(back),
            None => fault,
        })?;
        let now = self.look();
        let other: Vec<String> = now.plan.unapproved(&seen.plan).iter().map(|step| step.act.to_string()).collect();
        if other.is_empty() {
            return Ok(());
        }
        let what =
            format!("the cluster changed while the file was given out, and nobody approved: {}", other.join("; "));
        let back = way_back(&kept).unwrap_or_else(|| "see `quorate cluster plan`".to_owned());
        Err(Fault::new(Code::PlanDiffers, what).hint(back))
    }

    /// Notes of each node that took the file where it keeps the one from before.
    fn hand_out(&self, seen: &Look, kept: &mut BTreeMap<String, String>) -> Result<BTreeMap<String, String>, Fault> {
        let hash = self.spec.hash();
        let order = self.sign(seen)?;
        let mut silent = BTreeMap::new();
        for node in self.peers.leaving().into_iter().chain(self.peers.others()) {
            let replaces = match seen.answers.get(&node) {
                Some(Ok(answer)) if answer.file == hash => continue,
                Some(Ok(answer)) => answer.file.clone(),
                Some(Err(fault)) => {
                    silent.insert(node, fault.to_string());
                    continue;
                }
                None => continue,
            };
            let request = FileRequest { order: order.clone(), ..FileRequest::new(self.text.clone(), replaces) };
            match self.runtime.block_on(self.peers.put_file(&node, &request)) {
                Ok(answer) => kept.extend(answer.kept.map(|path| (node, path))),
                // Its agent may just be starting anew.
                Err(PeerError::Silent(fault)) => drop(silent.insert(node, fault.to_string())),
                Err(error) => return Err(error.fault(&node)),
            }
        }
        Ok(silent)
    }

    /// Whether every node that answers holds the file: then nothing new is decided by going on.
    pub(crate) fn is_begun(&self, seen: &Look) -> bool {
        let hash = self.spec.hash();
        let mut answers = seen.answers.values().flatten().peekable();
        answers.peek().is_some() && answers.all(|answer| answer.file == hash)
    }

    /// Whether a node is declared, or a member still. One that left and whose machine is gone is waited for by nobody.
    fn takes_part(&self, seen: &Look, node: &str) -> bool {
        let listed = seen.view.members().is_none_or(|(_, members)| members.iter().any(|member| member.name == node));
        listed || self.spec.member(node).is_some()
    }

    /// Whether every declared node serves, and has looked around since it has the file.
    fn is_settled(&self, seen: &Look) -> bool {
        let settled = |name: &str| match seen.answers.get(name) {
            // One that is about to restart may have told so before its etcd ended.
            Some(Ok(answer)) => answer.settled && answer.phase == "serving" && answer.restart.is_none(),
            Some(Err(_)) | None => false,
        };
        self.spec.members.iter().all(|member| settled(&member.name))
    }

    /// Follows what the agents do until the plan is done, giving the file to whoever comes up meanwhile.
    pub(crate) fn follow(&self, wait: Duration, printer: &mut Printer) -> Result<Outcome, Fault> {
        let (begun, mut told) = (Instant::now(), BTreeSet::new());
        let progress = printer.progress("following the agents", None);
        loop {
            let seen = self.look();
            let behind = self.distribute(&seen)?;
            let waits = behind.keys().any(|node| self.takes_part(&seen, node));
            if seen.plan.is_done() && !waits && self.is_begun(&seen) && self.is_settled(&seen) {
                drop(progress);
                return Ok(Outcome::of(self, &seen, true));
            }
            let refused = seen.plan.halt.as_ref().filter(|halt| halt.refused);
            if refused.is_some() || begun.elapsed() >= wait {
                drop(progress);
                return Ok(Outcome::of(self, &seen, false));
            }
            if let Some(step) = seen.plan.steps.first()
                && told.insert(step.act.to_string())
            {
                tracing::info!("{step}");
            }
            std::thread::sleep(AGAIN.min(wait.saturating_sub(begun.elapsed())));
        }
    }
}

/// The file was given out to these nodes, which keep the one from before.
fn way_back(kept: &BTreeMap<String, String>) -> Option<String> {
    let (node, path) = kept.first_key_value()?;
    let nodes = names(kept.keys().map(String::as_str));
    Some(format!(
        "the file was given to {nodes}, whose agents act on it by themselves; read the plan as it is now, or take it back by \
         the file from before, on `{node}`: `quorate cluster apply {path}`"
    ))
}

/// What was approved is the plan of this moment, or nothing is changed: a person takes time to say yes.
pub(crate) fn still_approved(living: &Living, approved: &ChangePlan) -> Result<Look, Fault> {
    let seen = living.look_ahead(true)?.if_taken()?;
    let (was, now) = (approved.hash(), seen.plan.hash());
    if was == now {
        return Ok(seen);
    }
    Err(Fault::new(Code::PlanDiffers, format!("the plan is now `{now}`, and `{was}` was shown"))
        .hint("nothing was changed; read the plan as it is now: `quorate cluster plan`"))
}

/// Asks the person at the terminal, unless the plan was approved.
pub(crate) fn confirm(args: &ChangeArgs, plan: &ChangePlan, printer: &mut Printer) -> Result<bool, Fault> {
    if let Some(approved) = &args.plan {
        let now = plan.hash();
        // As many digits as people compare.
        return if approved.len() >= 8 && now.starts_with(approved.as_str()) {
            Ok(true)
        } else {
            Err(Fault::new(Code::PlanDiffers, format!("the plan is now `{now}`, and `{approved}` was approved"))
                .hint("nothing was changed; read the plan as it is now: `quorate cluster plan`"))
        };
    }
    if args.yes {
        return Ok(true);
    }
    if !std::io::stdin().is_terminal() {
        return Err(Fault::new(Code::ChangeUnconfirmed, "nobody is at a terminal to say yes")
            .hint("nothing was changed; give `--plan HASH` or `--yes`"));
    }
    printer.aside("Do it? Type `yes`: ");
    let mut answer = String::new();
    let read = std::io::stdin().read_line(&mut answer);
    read.map_err(|error| Fault::io("cannot read the answer", error))?;
    Ok(answer.trim() == "yes")
}

/// How a change ended.
#[derive(Debug, Serialize)]
pub(crate) struct Outcome {
    pub(crate) done: bool,
    /// The members that there are now.
    pub(crate) members: Vec<MemberShown>,
    /// What is still to be done.
    pub(crate) steps: Vec<String>,
    /// What is waited for.
    pub(crate) waits: Vec<String>,
    #[serde(skip)]
    pub(crate) code: Option<Code>,
}

/// A member, as the list has it.
#[derive(Debug, Serialize)]
pub(crate) struct MemberShown {
    name: String,
    id: String,
    role: String,
}

impl Outcome {
    fn of(living: &Living, seen: &Look, done: bool) -> Outcome {
        let listed = seen.view.members().map(|(_, members)| members).unwrap_or_default();
        let members = listed.iter().map(|member| MemberShown {
            name: member.name.clone(),
            id: member.id.to_string(),
            role: match () {
                () if member.learner => "learner",
                () if Some(member.id) == seen.view.leader => "leader",
                () => "voter",
            }
            .to_owned(),
        });
        let mut waits = Vec::new();
        if !done {
            waits.extend(seen.plan.halt.as_ref().map(|halt| format!("{}; {}", halt.halt.why, halt.halt.way_out)));
            for node in living.nodes() {
                match seen.answers.get(&node) {
                    Some(Ok(answer)) if answer.phase == "waiting" || answer.phase == "refused" => {
                        waits.push(format!("`{node}`: {}", living.cause(&node)));
                    }
                    Some(Err(fault)) => waits.push(format!("`{node}`: {fault}")),
                    Some(Ok(_)) | None => {}
                }
            }
        }
        Outcome {
            done,
            members: members.collect(),
            steps: seen.plan.steps.iter().map(ToString::to_string).collect(),
            waits,
            code: seen.plan.halt.as_ref().filter(|halt| halt.refused).map(|halt| halt.halt.code),
        }
    }

    /// Prints it, and says how the command ends.
    pub(crate) fn conclude(&self, printer: &mut Printer) -> Exit {
        printer.report(self);
        match (self.done, self.code) {
            (true, _) => Exit::Done,
            (false, Some(code)) => code.exit(),
            (false, None) => {
                printer.warning(Code::ChangeUnfinished, "it is not done yet; the agents go on by themselves");
                Code::ChangeUnfinished.exit()
            }
        }
    }
}

impl Living {
    fn cause(&self, node: &str) -> String {
        match self.runtime.block_on(self.peers.status(node, None)) {
            Ok(status) => status.cause,
            Err(error) => error.to_string(),
        }
    }
}

impl Report for Outcome {
    fn render(&self, page: &mut Page) {
        let row = |member: &MemberShown| [member.name.clone(), member.id.clone(), member.role.clone()];
        page.table(["MEMBER", "ID", "ROLE"], self.members.iter().map(row));
        if self.done {
            page.line("the cluster is as its file declares it");
            return;
        }
        for (at, step) in self.steps.iter().enumerate() {
            page.line(format!("  {}. {step}", at + 1));
        }
        for wait in &self.waits {
            page.line(format!("waiting: {wait}"));
        }
    }
}

/// A plan, as it is printed.
#[derive(Debug, Serialize)]
pub(crate) struct PlanShown {
    pub(crate) steps: Vec<String>,
    pub(crate) proofs: Vec<Option<String>>,
    pub(crate) halt: Option<String>,
    pub(crate) remarks: Vec<String>,
    pub(crate) hash: String,
    #[serde(skip)]
    text: String,
}

impl PlanShown {
    pub(crate) fn of(plan: &ChangePlan) -> PlanShown {
        PlanShown {
            steps: plan.steps.iter().map(ToString::to_string).collect(),
            proofs: plan.steps.iter().map(|step| step.proof.as_ref().map(ToString::to_string)).collect(),
            halt: plan.halt.as_ref().map(|halt| halt.halt.to_string()),
            remarks: plan.remarks.clone(),
            hash: plan.hash(),
            text: plan.render(),
        }
    }
}

impl Report for PlanShown {
    fn render(&self, page: &mut Page) {
        for line in self.text.lines() {
            page.line(line);
        }
    }
}
