//! `quorate ca revoke`: calls certificates back, and tells every node.
//!
//! **Rule:** the lists are durable in the folder of authorities before any node gets them, and every node gets all of them.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use jiff::Timestamp;
use quorate_agent::trust::{TrustAnswer, TrustRequest};
use quorate_faults::{Code, Exit, Fault};
use quorate_pki::{
    Authorities, RevocationLists, Rotation, ensure_operator_revoked, ensure_revoked, fingerprint, needs_passphrase,
    observe_issued, observe_rotation, operators_need_passphrase, read_certificates, read_issued, read_lists,
};
use serde::Serialize;

use super::passphrase::PassphraseArgs;
use super::rotate::time;
use crate::commands::cluster::ask::Cluster;
use crate::printer::Printer;
use crate::render::{Page, Report};

/// Between two looks at the nodes.
const LOOK: Duration = Duration::from_millis(500);

/// Flags of `ca revoke`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  quorate ca revoke n3 --dir prod-1-ca --config cluster.yaml
  quorate ca revoke n3 --certificate n3-peer.crt --dir prod-1-ca --config c.yaml
  quorate ca revoke --refresh --dir prod-1-ca --config cluster.yaml
  quorate ca revoke --operator alice --dir prod-1-ca --config cluster.yaml

etcd and the agents refuse revoked certificates from the next handshake on; members
are restarted in turn, so that open connections end too.")]
pub(crate) struct Args {
    /// Whose certificates, as they were issued
    #[arg(value_name = "NAME", required_unless_present_any = ["refresh", "operator"])]
    whose: Option<String>,

    /// Revoke the certificates of an operator instead
    #[arg(long, value_name = "NAME", conflicts_with_all = ["whose", "refresh", "certificate"])]
    operator: Option<String>,

    /// The folder of `ca init`
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,

    /// The cluster file; every node that it declares gets the lists
    #[arg(long, value_name = "FILE", env = "QUORATE_CONFIG")]
    config: PathBuf,

    /// Ask with this member's certificate [default: the first that can be read here]
    #[arg(long, env = "QUORATE_NAME")]
    name: Option<String>,

    /// A certificate that is to be revoked, beside those on record
    #[arg(long, value_name = "FILE")]
    certificate: Vec<PathBuf>,

    /// Only make the lists anew, and bring them to every node
    #[arg(long, conflicts_with = "whose")]
    refresh: bool,

    /// How long to wait for nodes
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = time)]
    wait: Duration,

    #[command(flatten)]
    passphrase: PassphraseArgs,
}

/// Revokes.
pub(crate) fn run(args: &Args, printer: &mut Printer) -> Result<Exit, Fault> {
    if observe_rotation(&args.dir)?.as_ref().is_some_and(Rotation::is_open) {
        return Err(Fault::new(Code::RotationOther, "a rotation of authorities is under way")
            .hint("finish it first: it ends what the old authorities signed"));
    }
    let cluster = Cluster::open(&args.config, args.name.as_deref(), printer)?;
    if let Some(operator) = &args.operator {
        return revoke_operator(args, &cluster, operator, printer);
    }
    let passphrase = match needs_passphrase(&args.dir)? {
        true => Some(args.passphrase.get(&format!("the issuing keys in `{}`", args.dir.display()), false)?),
        false => None,
    };
    let (now, authorities) = (Timestamp::now(), Authorities::open(&args.dir, passphrase.as_ref())?);
    let whose = args.whose.as_deref().unwrap_or_default();
    let mut certificates = if args.refresh { Vec::new() } else { observe_issued(&args.dir, whose, now)? };
    for file in &args.certificate {
        let found = read_certificates(file)?;
        let first = found.first().ok_or_else(|| Fault::new(Code::Internal, "a file without certificates"))?;
        certificates.push(read_issued(&authorities, first, whose)?);
    }
    if certificates.is_empty() && !args.refresh {
        return Err(Fault::new(Code::NothingToRevoke, format!("no certificate of `{whose}` is on record"))
            .hint("give one with `--certificate`; see `quorate explain Q1025`"));
    }
    let revoked = ensure_revoked(&args.dir, &authorities, &certificates, now)?;
    let lists = read_lists(&args.dir)?.unwrap_or_default();
    distribute(args, &cluster, &lists, whose)?;
    printer.report(&Done { name: args.whose.clone(), revoked, known: certificates.len() - revoked });
    Ok(Exit::Done)
}

/// Revokes an operator, and brings the list to every node.
fn revoke_operator(args: &Args, cluster: &Cluster, name: &str, printer: &mut Printer) -> Result<Exit, Fault> {
    let passphrase = match operators_need_passphrase(&args.dir)? {
        true => Some(args.passphrase.get(&format!("the operators' authority in `{}`", args.dir.display()), false)?),
        false => None,
    };
    let (revoked, list) = ensure_operator_revoked(&args.dir, passphrase.as_ref(), Some(name), Timestamp::now())?;
    let (print, operators) = (fingerprint(&list), Some(BASE64_STANDARD.encode(&list)));
    let request = TrustRequest { operators, ..TrustRequest::default() };
    until_none_lacks(args, || {
        let mut lacks = BTreeMap::new();
        for member in &cluster.spec.members {
            let answer: Result<TrustAnswer, Fault> = cluster.order(&member.name, "/v1/trust", &request);
            match answer {
                Err(fault) => drop(lacks.insert(member.name.clone(), fault.to_string())),
                Ok(answer) if answer.operators_revoked.as_ref() != Some(&print) => {
                    lacks.insert(member.name.clone(), "it has another list".to_owned());
                }
                Ok(_) => {}
            }
        }
        lacks
    })?;
    printer.report(&Done { name: Some(name.to_owned()), revoked, known: 0 });
    Ok(Exit::Done)
}

/// Brings the lists to every node but the one that is called back.
fn distribute(args: &Args, cluster: &Cluster, lists: &RevocationLists, whose: &str) -> Result<(), Fault> {
    until_none_lacks(args, || {
        let mut lacks = BTreeMap::new();
        for member in cluster.spec.members.iter().filter(|member| member.name != whose) {
            let request = TrustRequest { lists: Some(lists.clone()), ..TrustRequest::default() };
            let answer: Result<TrustAnswer, Fault> = cluster.order(&member.name, "/v1/trust", &request);
            match answer {
                Err(fault) => drop(lacks.insert(member.name.clone(), fault.to_string())),
                Ok(answer) if !has(&answer, lists) => {
                    lacks.insert(member.name.clone(), "it has other lists".to_owned());
                }
                Ok(TrustAnswer { etcd_current: Some(false), .. }) => {
                    lacks.insert(member.name.clone(), "its etcd waits for its turn to be restarted".to_owned());
                }
                Ok(_) => {}
            }
        }
        lacks
    })
}

/// Repeats until no node lacks anything: nodes by name, and what they lack.
fn until_none_lacks(args: &Args, lacking: impl Fn() -> BTreeMap<String, String>) -> Result<(), Fault> {
    let begun = Instant::now();
    loop {
        let lacks = lacking();
        if lacks.is_empty() {
            return Ok(());
        }
        if begun.elapsed() > args.wait {
            let list: Vec<String> = lacks.iter().map(|(node, lacking)| format!("`{node}`: {lacking}")).collect();
            let nodes = Vec::from_iter(lacks.keys().map(String::as_str)).join(", ");
            let again = if args.operator.is_some() { "the same command" } else { "`quorate ca revoke --refresh`" };
            return Err(Fault::new(Code::RotationWaiting, format!("the lists have not reached {nodes} yet"))
                .hint(format!("run {again} with the same folder and file"))
                .caused_by(list.join("; ")));
        }
        std::thread::sleep(LOOK);
    }
}

fn has(answer: &TrustAnswer, lists: &RevocationLists) -> bool {
    lists.prints().into_iter().all(|(authority, print)| answer.seen.revoked.get(&authority) == Some(&print))
}

#[derive(Serialize)]
struct Done {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    revoked: usize,
    known: usize,
}

impl Report for Done {
    fn render(&self, page: &mut Page) {
        match &self.name {
            None => page.line("every node has the lists of revoked certificates"),
            Some(name) => {
                let before = if self.known > 0 { format!(", {} were before", self.known) } else { String::new() };
                page.line(format!("{} certificates of `{name}` are revoked{before}", self.revoked));
                page.line("no node takes them any more");
            }
        }
    }
}
