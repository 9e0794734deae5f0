//! `quorate ca rotate`: takes new authorities into use on every node, while the cluster serves.
//!
//! **Rule:** the folder of authorities knows the phase; a phase ends when every declared node has finished it and nobody else belongs
//! to the cluster, which `plan` decides; and what was cut off is gone on with by the same command.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use quorate_agent::trust::{TrustAnswer, TrustRequest};
use quorate_faults::{Code, Exit, Fault};
use quorate_pki::{
    Authorities, Authority, CsrBundle, LEAF_DAYS, NodeNames, Passphrase, Policy, Rotation, RotationPhase, TrustOrder,
    ensure_advanced, ensure_order_kept, ensure_rotation, fingerprint, issue, needs_passphrase, observe_kept_order,
    observe_rotation, record_issued, trusted_now,
};
use quorate_plan::certificates::{Goal, Need, Standing, phase_of_all, strangers};
use quorate_plan::spec::parse_duration;
use serde::Serialize;

use super::outside::{ClientReport, Clients, UNSEEN, now_ms};
use super::passphrase::PassphraseArgs;
use crate::commands::cluster::ask::Cluster;
use crate::commands::cluster::status as cluster_status;
use crate::printer::Printer;
use crate::render::{Page, Report};

/// Between two looks at the nodes.
const LOOK: Duration = Duration::from_millis(500);

/// Flags of `ca rotate`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  quorate ca rotate --dir prod-1-ca --config cluster.yaml
  quorate ca rotate --dir prod-1-ca --config cluster.yaml --authority client
  quorate ca rotate --dir prod-1-ca --config cluster.yaml --pause-after trust
  quorate ca rotate --dir prod-1-ca --status

First every node trusts the old authority and the new one, then every node gets
certificates of the new one, then the old one is dropped. Agents restart their members
in turn where etcd needs it. Stopped at any point, the same command goes on. While clients
other than agents are connected, a rotation of the client authority stops before `issue` and
before `drop`, and lists them: give them their part, then add --clients-updated. It always
stops before `drop` while clients are connected, also with that flag: run the command once more.
That refuses while a connection is open since before the end of `issue`: its client shows a
certificate of the old authority. Connections are sampled every 10 s; shorter ones are not seen.")]
pub(crate) struct Args {
    /// The folder of `ca init`
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,

    /// The cluster file; every node that it declares has to take part
    #[arg(long, value_name = "FILE", env = "QUORATE_CONFIG", required_unless_present = "status")]
    config: Option<PathBuf>,

    /// Ask with this member's certificate [default: the first that can be read here]
    #[arg(long, env = "QUORATE_NAME")]
    name: Option<String>,

    /// Which authorities are changed [default: all three]
    #[arg(long, value_name = "WHICH", value_enum)]
    authority: Vec<Which>,

    /// Stop when this phase is done, so that clients can be given their part
    #[arg(long, value_name = "PHASE", value_enum)]
    pause_after: Option<Pause>,

    /// State that every outside client is prepared for the next phase: it has the new authority before `issue`, a new certificate before `drop`
    #[arg(long)]
    clients_updated: bool,

    /// Begin `drop` also while connections are open since before the end of `issue`: their clients load new certificates when they reconnect
    #[arg(long, requires = "clients_updated")]
    allow_old_connections: bool,

    /// How many days the certificates of nodes hold
    #[arg(long, default_value_t = LEAF_DAYS)]
    days: u32,

    /// How long to wait for nodes in each phase
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = time)]
    wait: Duration,

    /// Show how far a rotation is, and change nothing
    #[arg(long, conflicts_with_all = ["authority", "pause_after"])]
    status: bool,

    #[command(flatten)]
    passphrase: PassphraseArgs,
}

/// An authority, as a flag names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Which {
    Peer,
    Client,
    Agent,
}

/// A phase after which one may pause.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Pause {
    Trust,
    Issue,
}

pub(super) fn time(text: &str) -> Result<Duration, String> {
    parse_duration(text).ok_or_else(|| "a time is written like `30s` or `10m`".to_owned())
}

/// Rotates.
pub(crate) fn run(args: &Args, printer: &mut Printer) -> Result<Exit, Fault> {
    if args.status {
        return status(args, printer);
    }
    let Some(config) = &args.config else { return Err(Fault::new(Code::Usage, "`--config` is not given")) };
    let cluster = Cluster::open(config, args.name.as_deref(), printer)?;
    let passphrase = match needs_passphrase(&args.dir)? {
        true => Some(args.passphrase.get(&format!("the issuing keys in `{}`", args.dir.display()), false)?),
        false => None,
    };
    let which: Vec<Authority> = Authority::ALL
        .into_iter()
        .filter(|authority| {
            args.authority.iter().any(|which| match which {
                Which::Peer => *authority == Authority::Peer,
                Which::Client => *authority == Authority::Client,
                Which::Agent => *authority == Authority::Agent,
            })
        })
        .collect();
    let chosen = (!which.is_empty()).then_some(which.as_slice());
    let mut rotation = ensure_rotation(&args.dir, chosen, passphrase.as_ref(), Timestamp::now())?;
    let work = Work { args, cluster: &cluster, passphrase: passphrase.as_ref(), begun_in: rotation.phase };
    // Restarts of the first phase end connections: the nodes have to see who is connected before it.
    work.clients();
    while rotation.is_open() {
        if let Some(clients) = work.outside(&rotation)? {
            let exit = if rotation.phase == RotationPhase::Drop { Exit::Refused } else { Exit::Waiting };
            printer.report(&Shown { rotation: Some(rotation), clients });
            return Ok(exit);
        }
        printer.note(&format!("{}: {}", rotation.phase.word(), in_words(rotation.phase)));
        if work.relies_on_samples(&rotation) {
            printer.note(UNSEEN);
        }
        work.phase(&rotation)?;
        let pause = match (args.pause_after, rotation.phase) {
            (Some(Pause::Trust), RotationPhase::Trust) | (Some(Pause::Issue), RotationPhase::Issue) => true,
            (Some(_) | None, _) => false,
        };
        rotation = ensure_advanced(&args.dir, &rotation, passphrase.as_ref(), Timestamp::now())?;
        if pause {
            break;
        }
    }
    if !rotation.is_open() {
        work.all_serve()?;
    }
    printer.report(&Shown { rotation: Some(rotation), clients: Clients::default() });
    Ok(Exit::Done)
}

fn status(args: &Args, printer: &mut Printer) -> Result<Exit, Fault> {
    let rotation = observe_rotation(&args.dir)?;
    let exit = if rotation.as_ref().is_some_and(Rotation::is_open) { Exit::Waiting } else { Exit::Done };
    printer.report(&Shown { rotation, clients: Clients::default() });
    Ok(exit)
}

fn in_words(phase: RotationPhase) -> &'static str {
    match phase {
        RotationPhase::Trust => "every node comes to trust the old authorities and the new ones",
        RotationPhase::Issue => "every node gets certificates of the new authorities",
        RotationPhase::Drop => "every node comes to trust the new authorities alone",
        RotationPhase::Done => "the rotation is over",
    }
}

struct Work<'a> {
    args: &'a Args,
    cluster: &'a Cluster,
    passphrase: Option<&'a Passphrase>,
    /// The phase in which this command found the rotation.
    begun_in: RotationPhase,
}

/// What is said to nodes in a phase.
struct Words {
    goal: Goal,
    order: TrustOrder,
    /// That of the first phase, for who came after it.
    first: Option<TrustOrder>,
    authorities: Authorities,
}

/// What a look at all nodes came to.
struct Looked {
    nodes: BTreeMap<String, Standing>,
    /// Who belongs to the cluster, and is not declared by the file here; none: nobody knows.
    strangers: Option<BTreeSet<String>>,
}

impl Looked {
    /// The phase at which all of them stand together.
    fn phase(&self) -> RotationPhase {
        phase_of_all(self.nodes.values(), self.strangers.as_ref().is_none_or(|names| !names.is_empty()))
    }

    /// Whom the others wait for, and why.
    fn lacks(&self) -> BTreeMap<String, String> {
        let all = self.phase();
        let last = self.nodes.iter().filter(|(_, standing)| standing.phase() == all);
        let mut lacks: BTreeMap<String, String> = last
            .filter_map(|(node, standing)| match standing {
                Standing::Unknown(why) => Some((node.clone(), why.clone())),
                Standing::Lacks(lack) => Some((node.clone(), lack.text().to_owned())),
                Standing::Done => None,
            })
            .collect();
        for name in self.strangers.iter().flatten() {
            let why = "it belongs to the cluster, and this cluster file does not declare it";
            lacks.insert(name.clone(), why.to_owned());
        }
        if self.strangers.is_none() && lacks.is_empty() {
            lacks.extend(
                self.nodes.keys().map(|node| (node.clone(), "no quorum confirms to it who the members are".to_owned())),
            );
        }
        lacks
    }
}

impl Work<'_> {
    /// Clients outside that the next phase would lock out, unless the operator has stated that they are prepared. `None`: it may begin.
    ///
    /// A statement for `drop` is taken only by a command that begins there: before `issue` was done no client could have a new
    /// certificate. It does not cover a connection that is open since before that.
    fn outside(&self, rotation: &Rotation) -> Result<Option<Clients>, Fault> {
        let client = rotation.authorities.iter().any(|word| word == Authority::Client.word());
        let clients = match rotation.phase {
            RotationPhase::Trust | RotationPhase::Done => return Ok(None),
            RotationPhase::Issue | RotationPhase::Drop if !client => return Ok(None),
            RotationPhase::Issue if self.args.clients_updated => return Ok(None),
            RotationPhase::Drop if self.args.clients_updated && self.begun_in == RotationPhase::Drop => {
                if self.args.allow_old_connections {
                    return Ok(None);
                }
                Clients::older(&self.clients_of_all(rotation)?, rotation.issued())
            }
            RotationPhase::Issue | RotationPhase::Drop => Clients::recent(&self.clients()),
        };
        Ok(Some(clients).filter(|clients| !clients.is_empty()))
    }

    /// Who is connected, or was in the last minutes, and is no agent of a declared node.
    fn clients(&self) -> Vec<ClientReport> {
        let members = self.cluster.spec.members.iter();
        let report = |node: &String| {
            let asked_ms = now_ms();
            let request = TrustRequest { wants_clients: true, ..TrustRequest::default() };
            let clients = self.tell(node, &request).map_err(|fault| fault.to_string());
            let why = || "it does not report who is connected to it".to_owned();
            let clients = clients.and_then(|answer| answer.clients.ok_or_else(why));
            ClientReport { node: node.clone(), asked_ms, clients }
        };
        members.map(|member| report(&member.name)).collect()
    }

    /// Whether a phase begins because no client was seen, and not because the operator has stated that they are prepared.
    fn relies_on_samples(&self, rotation: &Rotation) -> bool {
        let client = rotation.authorities.iter().any(|word| word == Authority::Client.word());
        let locks_out = matches!(rotation.phase, RotationPhase::Issue | RotationPhase::Drop);
        client && locks_out && !self.args.clients_updated
    }

    /// The same before `drop` where the operator states that clients are prepared: every node has to report.
    fn clients_of_all(&self, rotation: &Rotation) -> Result<Vec<ClientReport>, Fault> {
        let begun = Instant::now();
        loop {
            let reports = self.clients();
            let silent = reports.iter().filter_map(|one| Some((one.node.clone(), one.clients.clone().err()?)));
            let silent: BTreeMap<String, String> = silent.collect();
            if silent.is_empty() {
                return Ok(reports);
            }
            if begun.elapsed() > self.args.wait {
                return Err(waiting(rotation, &silent));
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Brings every node through a phase: looks at all of them, tells one, and looks again. Whose turn it is, and when the phase
    /// is over, is for the decision to say.
    fn phase(&self, rotation: &Rotation) -> Result<(), Fault> {
        let trusted = trusted_now(&self.args.dir, rotation)?;
        let authorities = Authorities::open(&self.args.dir, self.passphrase)?;
        let order = TrustOrder::sign(&authorities, rotation.number, &trusted)?;
        let prints = |all: &Vec<quorate_pki::Certificate>| all.iter().map(|one| fingerprint(&one.der)).collect();
        let kinds = trusted.iter().map(|(authority, all)| (*authority, prints(all)));
        let goal = Goal::of(rotation.phase, rotation.number, kinds);
        let first = match rotation.phase {
            RotationPhase::Trust => {
                ensure_order_kept(&self.args.dir, &order)?;
                None
            }
            RotationPhase::Issue | RotationPhase::Drop | RotationPhase::Done => {
                observe_kept_order(&self.args.dir, rotation)
            }
        };
        let words = Words { goal, order, first, authorities };
        let (begun, mut tried) = (Instant::now(), BTreeSet::new());
        loop {
            let mut looked = self.look(&words.goal);
            let all = looked.phase();
            if all == RotationPhase::Done {
                return Ok(());
            }
            // One that could not do it lets the others go first.
            let next = looked.nodes.iter().filter(|(node, _)| !tried.contains(*node));
            let next = { next }.find_map(|(node, standing)| Some((node.clone(), standing.told_at(all)?)));
            if let Some((node, need)) = next.clone() {
                tried.insert(node.clone());
                let standing = match self.tell_node(&node, need, &words) {
                    Ok(standing) => standing,
                    // What a node refuses will not be taken by asking again, unless it only is behind.
                    Err(fault) if fault.code() == Code::TrustRefused && rotation.phase == RotationPhase::Trust => {
                        return Err(fault);
                    }
                    Err(fault) => Standing::Unknown(fault.to_string()),
                };
                looked.nodes.insert(node, standing);
            }
            if begun.elapsed() > self.args.wait {
                return Err(waiting(rotation, &looked.lacks()));
            }
            if next.is_none() {
                tried.clear();
                std::thread::sleep(LOOK);
            }
        }
    }

    /// Waits until every member serves: the last one may still be starting with its new files.
    fn all_serve(&self) -> Result<(), Fault> {
        let begun = Instant::now();
        loop {
            let shown = cluster_status::look(self.cluster);
            if shown.all_serve() {
                return Ok(());
            }
            if begun.elapsed() > self.args.wait {
                let waits: Vec<String> = shown.waits().map(|(name, why)| format!("`{name}`: {why}")).collect();
                let what = "the rotation is finished, and not every member serves";
                return Err(Fault::new(Code::RotationWaiting, what)
                    .hint("see `quorate cluster status`")
                    .caused_by(waits.join("; ")));
            }
            std::thread::sleep(LOOK);
        }
    }

    /// How every declared node stands.
    fn look(&self, goal: &Goal) -> Looked {
        let (mut nodes, mut told) = (BTreeMap::new(), Vec::new());
        for member in &self.cluster.spec.members {
            let standing = match self.tell(&member.name, &TrustRequest::default()) {
                Ok(answer) => {
                    told.push(answer.knows());
                    stands(goal, &answer)
                }
                Err(fault) => Standing::Unknown(fault.to_string()),
            };
            nodes.insert(member.name.clone(), standing);
        }
        let strangers = strangers(&told, |name| self.cluster.spec.member(name).is_some());
        let strangers = strangers.map(|names| names.into_iter().map(str::to_owned).collect());
        Looked { nodes, strangers }
    }

    fn tell(&self, node: &str, request: &TrustRequest) -> Result<TrustAnswer, Fault> {
        self.cluster.order(node, "/v1/trust", request)
    }

    /// Tells a node what it needs. Returns how it stands then.
    fn tell_node(&self, node: &str, need: Need, words: &Words) -> Result<Standing, Fault> {
        let answer = match need {
            Need::Order | Need::Hear => {
                let order = if need == Need::Hear { words.first.clone() } else { Some(words.order.clone()) };
                self.tell(node, &TrustRequest { order, ..TrustRequest::default() })?
            }
            Need::Certificates => self.equip(node, &words.authorities)?,
            Need::Restart => self.tell(node, &TrustRequest::default())?,
        };
        Ok(stands(&words.goal, &answer))
    }

    /// Has a node show certificates of the new authorities.
    fn equip(&self, node: &str, authorities: &Authorities) -> Result<TrustAnswer, Fault> {
        let answer = self.tell(node, &TrustRequest { wants_requests: true, ..TrustRequest::default() })?;
        let text = answer.requests.unwrap_or_default();
        let bundle = CsrBundle::decode(text.as_bytes()).map_err(|error| {
            Fault::new(Code::BundleUnreadable, format!("cannot read what `{node}` asks for")).caused_by(error)
        })?;
        let member = self.cluster.spec.member(node).ok_or_else(|| Fault::new(Code::Internal, "a member got lost"))?;
        let names = NodeNames::of(&self.cluster.spec, member)?;
        let policy = Policy { days: self.args.days, allowed: Some(&names) };
        let now = Timestamp::now();
        let signed = issue(authorities, &bundle, &policy, now)?;
        record_issued(&self.args.dir, &signed, now)?;
        self.tell(node, &TrustRequest { certificates: Some(signed.encode()), ..TrustRequest::default() })
    }
}

fn stands(goal: &Goal, answer: &TrustAnswer) -> Standing {
    goal.lacks(&answer.seen.shown(answer.etcd_current)).map_or(Standing::Done, Standing::Lacks)
}

fn waiting(rotation: &Rotation, lacks: &BTreeMap<String, String>) -> Fault {
    let list: Vec<String> = lacks.iter().map(|(node, lacking)| format!("`{node}`: {lacking}")).collect();
    let who = lacks.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
    Fault::new(Code::RotationWaiting, format!("the rotation waits in phase `{}` for {who}", rotation.phase.word()))
        .hint("run the same command again; see `quorate explain Q1023`")
        .caused_by(list.join("; "))
}

#[derive(Serialize)]
struct Shown {
    rotation: Option<Rotation>,
    clients: Clients,
}

impl Report for Shown {
    fn render(&self, page: &mut Page) {
        let Some(rotation) = &self.rotation else {
            page.line("no rotation was ever begun here");
            return;
        };
        let which = rotation.authorities.join(", ");
        match rotation.phase {
            RotationPhase::Done => page.line(format!("the rotation of {which} is done")),
            phase => {
                page.line(format!("a rotation of {which} is under way; next: {}", in_words(phase)));
                match phase {
                    RotationPhase::Issue => page.line("give clients outside the new `client-ca.crt` now"),
                    RotationPhase::Drop => page.line("give clients outside new certificates now"),
                    RotationPhase::Trust | RotationPhase::Done => {}
                }
            }
        }
        page.pairs([("phase", phase_word(rotation)), ("begun", rotation.began.clone())]);
        self.clients.render(rotation.phase, page);
    }
}

fn phase_word(rotation: &Rotation) -> String {
    rotation.phase.word().to_owned()
}
