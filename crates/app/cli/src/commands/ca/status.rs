//! `quorate ca status`: who ends when, and what is wrong.

use std::path::PathBuf;
use std::time::Duration;

use jiff::Timestamp;
use quorate_agent::cluster_file;
use quorate_agent::turn::{CertificateNow, Notice, Status};
use quorate_faults::{Code, Exit, Fault, Severity};
use quorate_pki::{CertStatus, observe_authorities, observe_node};
use serde::Serialize;

use crate::commands::cluster::ask::{Cluster, file_or_default};
use crate::commands::run::NodeArgs;
use crate::printer::Printer;
use crate::render::{Page, Report};

/// Flags of `ca status`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  quorate ca status                          every node, as its agent tells
  quorate ca status --config cluster.yaml --name n1
  quorate ca status --dir prod-1-ca --output json

With --name the files of that member on this machine are looked at; without it, and with
several members in the file, every agent is asked. Exit code 0: all is well. 1: something has
ended, ends soon or does not fit. 6: an agent does not answer. Certificates that came from
elsewhere (`tls: {peer: …}`) are shown too.")]
pub(crate) struct Args {
    /// The cluster file [default: /etc/quorate/cluster.yaml]
    #[arg(long, value_name = "FILE", env = "QUORATE_CONFIG")]
    config: Option<PathBuf>,

    /// This member's name in it [default: the only one, else all are asked]
    #[arg(long, env = "QUORATE_NAME")]
    name: Option<String>,

    /// A folder of `ca init`, instead of a node
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// Shows it.
pub(crate) fn run(args: &Args, printer: &mut Printer) -> Result<Exit, Fault> {
    let now = Timestamp::now();
    let certificates = match &args.dir {
        Some(dir) => observe_authorities(dir, now),
        None => {
            let config = file_or_default(args.config.as_deref(), args.name.as_deref())?;
            let (spec, _) = cluster_file::read(&config)?;
            if args.name.is_none() && spec.members.len() > 1 && spec.tls_files().is_some() {
                return everywhere(&Cluster::open(&config, None, printer)?, now, printer);
            }
            let node = NodeArgs::new(config, args.name.clone()).node(printer)?;
            observe_node(&node.spec, &node.member, now)
        }
    };
    let serious = |status: &CertStatus| {
        let problems = status.problems.iter();
        problems.into_iter().any(|found| found.severity == Severity::Error || found.code == Code::CertificateEnding)
    };
    let exit = if certificates.iter().any(serious) { Exit::CannotMeet } else { Exit::Done };
    printer.report(&Shown { certificates, now });
    Ok(exit)
}

/// Of every node, as its agent tells.
fn everywhere(cluster: &Cluster, now: Timestamp, printer: &mut Printer) -> Result<Exit, Fault> {
    let answers = cluster.ask::<Status>("/v1/status");
    let node = |name: &str| match answers.get(name) {
        Some(Ok(status)) => NodeEnds {
            name: name.to_owned(),
            silent: None,
            certificates: status.certificates.clone(),
            warnings: status.warnings.iter().filter(|notice| is_of_certificates(&notice.code)).cloned().collect(),
        },
        Some(Err(fault)) => NodeEnds::silent(name, fault.to_string()),
        None => NodeEnds::silent(name, "it was not asked".to_owned()),
    };
    let nodes: Vec<NodeEnds> = cluster.spec.members.iter().map(|member| node(&member.name)).collect();
    let ended = |node: &NodeEnds| {
        node.certificates.iter().any(|cert| cert.ends_ms <= now.as_millisecond().unsigned_abs())
            || !node.warnings.is_empty()
    };
    let exit = match () {
        () if nodes.iter().any(ended) => Exit::CannotMeet,
        () if nodes.iter().any(|node| node.silent.is_some()) => Exit::Unreachable,
        () => Exit::Done,
    };
    printer.report(&Everywhere { nodes, now });
    Ok(exit)
}

/// Codes of certificates and authorities.
fn is_of_certificates(code: &str) -> bool {
    code.starts_with("Q101") || code.starts_with("Q102")
}

#[derive(Serialize)]
struct NodeEnds {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    silent: Option<String>,
    certificates: Vec<CertificateNow>,
    warnings: Vec<Notice>,
}

impl NodeEnds {
    fn silent(name: &str, why: String) -> NodeEnds {
        NodeEnds { name: name.to_owned(), silent: Some(why), certificates: Vec::new(), warnings: Vec::new() }
    }
}

#[derive(Serialize)]
struct Everywhere {
    nodes: Vec<NodeEnds>,
    #[serde(skip)]
    now: Timestamp,
}

impl Report for Everywhere {
    fn render(&self, page: &mut Page) {
        let mut rows: Vec<[String; 4]> = Vec::new();
        for node in &self.nodes {
            if let Some(why) = &node.silent {
                rows.push([node.name.clone(), "-".to_owned(), "-".to_owned(), why.clone()]);
            }
            for cert in &node.certificates {
                let until = i64::try_from(cert.ends_ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
                let day = until.map_or_else(|| "-".to_owned(), |time| time.strftime("%Y-%m-%d").to_string());
                let left = until.map_or_else(|| "-".to_owned(), |until| left(until, self.now));
                rows.push([node.name.clone(), cert.which.clone(), day, left]);
            }
        }
        page.table(["NODE", "WHICH", "ENDS", "LEFT"], rows);
        page.gap();
        for node in &self.nodes {
            for notice in &node.warnings {
                page.line(format!("warning: {} [{}] ({})", notice.text, notice.code, node.name));
            }
        }
    }
}

#[derive(Serialize)]
struct Shown {
    certificates: Vec<CertStatus>,
    #[serde(skip)]
    now: Timestamp,
}

impl Report for Shown {
    fn render(&self, page: &mut Page) {
        if self.certificates.is_empty() {
            page.line("the cluster file asks for `plaintext: true`: there are no certificates");
            return;
        }
        let rows = self.certificates.iter().map(|status| {
            let until = status.not_after.map_or_else(|| "-".to_owned(), |time| time.strftime("%Y-%m-%d").to_string());
            let left = status.not_after.map_or_else(|| "-".to_owned(), |until| left(until, self.now));
            let names = if status.names.is_empty() { "-".to_owned() } else { status.names.join(" ") };
            let state = if status.problems.is_empty() { "good" } else { "see below" };
            [status.which.clone(), state.to_owned(), until, left, status.issuer.clone(), names]
        });
        page.table(["WHICH", "STATE", "ENDS", "LEFT", "SIGNED BY", "FOR"], rows);
        page.gap();
        for finding in self.certificates.iter().flat_map(|status| &status.problems) {
            page.finding(finding);
        }
    }
}

fn left(until: Timestamp, now: Timestamp) -> String {
    match until.duration_since(now) {
        left if left.is_negative() || left.is_zero() => "ended".to_owned(),
        left if left.as_hours() >= 48 => format!("{} days", left.as_hours() / 24),
        left => quorate_plan::spec::duration_text(Duration::from_secs(left.as_secs().unsigned_abs() / 60 * 60)),
    }
}
