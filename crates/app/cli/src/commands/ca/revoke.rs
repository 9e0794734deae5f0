//! `quorate ca revoke`: calls certificates back, and tells every node.
//!
//! **Rule:** the lists are durable in the folder of authorities before any node gets them, and every node gets all of them.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use quorate_agent::trust::{TrustAnswer, TrustRequest};
use quorate_faults::{Code, Exit, Fault};
use quorate_pki::{
    Authorities, RevocationLists, Rotation, ensure_revoked, needs_passphrase, observe_issued, observe_rotation,
    read_certificates, read_issued, read_lists,
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

etcd and the agents refuse revoked certificates from the next handshake on; members
are restarted in turn, so that open connections end too.")]
pub(crate) struct Args {
    /// Whose certificates, as they were issued
    #[arg(value_name = "NAME", required_unless_present = "refresh")]
    whose: Option<String>,

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

/// Brings the lists to every node but the one that is called back.
fn distribute(args: &Args, cluster: &Cluster, lists: &RevocationLists, whose: &str) -> Result<(), Fault> {
    let begun = Instant::now();
    loop {
        let mut lacks: BTreeMap<&str, String> = BTreeMap::new();
        for member in cluster.spec.members.iter().filter(|member| member.name != whose) {
            let request = TrustRequest { lists: Some(lists.clone()), ..TrustRequest::default() };
            let answer: Result<TrustAnswer, Fault> = cluster.order(&member.name, "/v1/trust", &request);
            match answer {
                Err(fault) => drop(lacks.insert(&member.name, fault.to_string())),
                Ok(answer) if !has(&answer, lists) => {
                    lacks.insert(&member.name, "it has other lists".to_owned());
                }
                Ok(TrustAnswer { etcd_current: Some(false), .. }) => {
                    lacks.insert(&member.name, "its etcd waits for its turn to be restarted".to_owned());
                }
                Ok(_) => {}
            }
        }
        if lacks.is_empty() {
            return Ok(());
        }
        if begun.elapsed() > args.wait {
            let list: Vec<String> = lacks.iter().map(|(node, lacking)| format!("`{node}`: {lacking}")).collect();
            let who = Vec::from_iter(lacks.keys().copied()).join(", ");
            return Err(Fault::new(Code::RotationWaiting, format!("the lists have not reached {who} yet"))
                .hint("run `quorate ca revoke --refresh` with the same folder and file")
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
