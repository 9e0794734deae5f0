//! `quorate ca status`: who ends when, and what is wrong.

use std::path::PathBuf;
use std::time::Duration;

use jiff::Timestamp;
use quorate_faults::{Code, Exit, Fault, Severity};
use quorate_pki::{CertStatus, observe_authorities, observe_node};
use serde::Serialize;

use crate::commands::run::NodeArgs;
use crate::printer::Printer;
use crate::render::{Page, Report};

/// Flags of `ca status`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  quorate ca status --config cluster.yaml --name n1
  quorate ca status --dir prod-1-ca --output json

Exit code 0: all is well. 1: something has ended, ends soon or does not fit. Certificates
that came from elsewhere (`tls: {peer: …}`) are shown too.")]
pub(crate) struct Args {
    /// The cluster file
    #[arg(long, value_name = "FILE", env = "QUORATE_CONFIG", required_unless_present = "dir")]
    config: Option<PathBuf>,

    /// This member's name in it [default: the only one]
    #[arg(long, env = "QUORATE_NAME")]
    name: Option<String>,

    /// A folder of `ca init`, instead of a node
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// Shows it.
pub(crate) fn run(args: &Args, printer: &mut Printer) -> Result<Exit, Fault> {
    let now = Timestamp::now();
    let certificates = match (&args.dir, &args.config) {
        (Some(dir), _) => observe_authorities(dir, now),
        (None, Some(config)) => {
            let node = NodeArgs::new(config.clone(), args.name.clone()).node(printer)?;
            observe_node(&node.spec, &node.member, now)
        }
        (None, None) => return Err(Fault::new(Code::Usage, "neither `--config` nor `--dir` is given")),
    };
    let serious = |status: &CertStatus| {
        let problems = status.problems.iter();
        problems.into_iter().any(|found| found.severity == Severity::Error || found.code == Code::CertificateEnding)
    };
    let exit = if certificates.iter().any(serious) { Exit::CannotMeet } else { Exit::Done };
    printer.report(&Shown { certificates, now });
    Ok(exit)
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
