//! `quorate ca rotate`: takes new authorities into use on every node, while the cluster serves.
//!
//! **Rule:** the folder of authorities knows the phase; a phase ends when every declared node has finished it, and what was cut
//! off is gone on with by the same command.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use quorate_agent::trust::{TrustAnswer, TrustRequest};
use quorate_faults::{Code, Exit, Fault};
use quorate_pki::{
    Authorities, Authority, CsrBundle, LEAF_DAYS, NodeNames, Passphrase, Policy, Role, Rotation, RotationPhase,
    TrustOrder, ensure_advanced, ensure_rotation, fingerprint, issue, needs_passphrase, observe_rotation,
    record_issued, trusted_now,
};
use quorate_plan::spec::parse_duration;
use serde::Serialize;

use super::passphrase::PassphraseArgs;
use crate::commands::cluster::ask::Cluster;
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
in turn where etcd needs it. Stopped at any point, the same command goes on.")]
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
    let work = Work { args, cluster: &cluster, passphrase: passphrase.as_ref() };
    while rotation.is_open() {
        printer.note(&format!("{}: {}", rotation.phase.word(), in_words(rotation.phase)));
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
    printer.report(&Shown { rotation: Some(rotation) });
    Ok(Exit::Done)
}

fn status(args: &Args, printer: &mut Printer) -> Result<Exit, Fault> {
    let rotation = observe_rotation(&args.dir)?;
    let exit = if rotation.as_ref().is_some_and(Rotation::is_open) { Exit::Waiting } else { Exit::Done };
    printer.report(&Shown { rotation });
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
}

impl Work<'_> {
    /// Brings every node through a phase.
    fn phase(&self, rotation: &Rotation) -> Result<(), Fault> {
        let trusted = trusted_now(&self.args.dir, rotation)?;
        let authorities = Authorities::open(&self.args.dir, self.passphrase)?;
        let order = TrustOrder::sign(&authorities, rotation.number, &trusted)?;
        let goal = Goal::of(rotation, &trusted);
        let begun = Instant::now();
        loop {
            let mut lacks: BTreeMap<&str, String> = BTreeMap::new();
            for member in &self.cluster.spec.members {
                let name = member.name.as_str();
                let done = match rotation.phase {
                    RotationPhase::Trust | RotationPhase::Drop => self.order(name, &order, &goal),
                    RotationPhase::Issue => self.equip(name, &authorities, &goal),
                    RotationPhase::Done => Ok(None),
                };
                match done {
                    Ok(None) => {}
                    Ok(Some(lacking)) => drop(lacks.insert(name, lacking)),
                    // What a node refuses will not be taken by asking again, unless it only is behind.
                    Err(fault) if fault.code() == Code::TrustRefused && rotation.phase == RotationPhase::Trust => {
                        return Err(fault);
                    }
                    Err(fault) => drop(lacks.insert(name, fault.to_string())),
                }
            }
            if lacks.is_empty() {
                return Ok(());
            }
            if begun.elapsed() > self.args.wait {
                return Err(waiting(rotation, &lacks));
            }
            std::thread::sleep(LOOK);
        }
    }

    fn tell(&self, node: &str, request: &TrustRequest) -> Result<TrustAnswer, Fault> {
        self.cluster.order(node, "/v1/trust", request)
    }

    /// Has a node trust what is to be trusted. Returns what it still lacks.
    fn order(&self, node: &str, order: &TrustOrder, goal: &Goal) -> Result<Option<String>, Fault> {
        let answer = self.tell(node, &TrustRequest::default())?;
        let answer = match goal.is_trusted_by(&answer) {
            true => answer,
            false => self.tell(node, &TrustRequest { order: Some(order.clone()), ..TrustRequest::default() })?,
        };
        Ok(match (goal.is_trusted_by(&answer), answer.etcd_current) {
            (false, _) => Some("it trusts others".to_owned()),
            // One that does not run reads the files when it starts.
            (true, None | Some(true)) => None,
            (true, Some(false)) => Some("its etcd runs with earlier trust, until its turn to be restarted".to_owned()),
        })
    }

    /// Has a node show certificates of the new authorities.
    fn equip(&self, node: &str, authorities: &Authorities, goal: &Goal) -> Result<Option<String>, Fault> {
        let answer = self.tell(node, &TrustRequest { wants_requests: true, ..TrustRequest::default() })?;
        if goal.is_shown_by(&answer) {
            return Ok(None);
        }
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
        let answer =
            self.tell(node, &TrustRequest { certificates: Some(signed.encode()), ..TrustRequest::default() })?;
        Ok((!goal.is_shown_by(&answer)).then(|| "it shows earlier certificates".to_owned()))
    }
}

/// What every node is to come to.
struct Goal {
    trusts: BTreeMap<String, Vec<String>>,
    signed_by: BTreeMap<&'static str, String>,
}

impl Goal {
    fn of(rotation: &Rotation, trusted: &[(Authority, Vec<quorate_pki::Certificate>)]) -> Goal {
        let mut goal = Goal { trusts: BTreeMap::new(), signed_by: BTreeMap::new() };
        for (authority, certificates) in trusted {
            let mut prints: Vec<String> = certificates.iter().map(|one| fingerprint(&one.der)).collect();
            // The issuing one stands first.
            if let Some(first) = prints.first().filter(|_| rotation.phase == RotationPhase::Issue) {
                for role in Role::ALL.into_iter().filter(|role| role.authority() == *authority) {
                    goal.signed_by.insert(role.word(), first.clone());
                }
            }
            prints.sort_unstable();
            goal.trusts.insert(authority.word().to_owned(), prints);
        }
        goal
    }

    fn is_trusted_by(&self, answer: &TrustAnswer) -> bool {
        self.trusts.iter().all(|(authority, prints)| answer.seen.trusts.get(authority) == Some(prints))
    }

    fn is_shown_by(&self, answer: &TrustAnswer) -> bool {
        let shown = |role: &str| answer.seen.signed_by.get(role).and_then(Option::as_ref);
        self.signed_by.iter().all(|(role, print)| shown(role) == Some(print))
    }
}

fn waiting(rotation: &Rotation, lacks: &BTreeMap<&str, String>) -> Fault {
    let who: BTreeSet<&str> = lacks.keys().copied().collect();
    let list: Vec<String> = lacks.iter().map(|(node, lacking)| format!("`{node}`: {lacking}")).collect();
    let who = Vec::from_iter(who).join(", ");
    Fault::new(Code::RotationWaiting, format!("the rotation waits in phase `{}` for {who}", rotation.phase.word()))
        .hint("run the same command again; see `quorate explain Q1023`")
        .caused_by(list.join("; "))
}

#[derive(Serialize)]
struct Shown {
    rotation: Option<Rotation>,
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
    }
}

fn phase_word(rotation: &Rotation) -> String {
    rotation.phase.word().to_owned()
}
