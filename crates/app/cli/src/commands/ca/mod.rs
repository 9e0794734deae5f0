//! `quorate ca`: authorities, requests and certificates, with no network in between.
//!
//! **Rule:** a text that travels between machines goes through stdin and stdout, so that `ssh` can carry it; what is asked of a
//! person is asked on the terminal, so that it does not get mixed up with that text.

pub(crate) mod csr;
pub(crate) mod init;
pub(crate) mod install;
pub(crate) mod issue;
mod outside;
pub(crate) mod passphrase;
pub(crate) mod revoke;
pub(crate) mod rotate;
pub(crate) mod status;

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;

use quorate_faults::{Code, Exit, Fault};
use quorate_plan::certificates::BYTES_MAX;

use super::run::forbid_dumps;
use crate::printer::Printer;

/// The verbs of `ca`.
#[derive(Debug, clap::Subcommand)]
#[command(after_help = "\
Examples:
  quorate ca init --dir prod-1-ca --token prod-1                     once
  quorate ca csr --config cluster.yaml --name n1 > n1.csr            on the node
  quorate ca issue --dir prod-1-ca --config cluster.yaml n1.csr > n1.bundle
  quorate ca install --config cluster.yaml --name n1 n1.bundle       on the node
  quorate ca status --config cluster.yaml --name n1
  quorate ca rotate --dir prod-1-ca --config cluster.yaml
  quorate ca revoke n3 --dir prod-1-ca --config cluster.yaml

Keys are made on the node and stay there. Agents renew by themselves afterwards.")]
pub(crate) enum Verb {
    /// Make the authorities of a cluster: for peers, for clients and for agents
    Init(init::Args),
    /// On a node: make its keys, and ask for its certificates
    Csr(csr::Args),
    /// Where the authorities are: sign what a node asks for
    Issue(issue::Args),
    /// On a node: check and install what was signed
    Install(install::Args),
    /// Who ends when, and what is wrong
    Status(status::Args),
    /// Take new authorities into use on every node, while the cluster serves
    Rotate(rotate::Args),
    /// Call the certificates of a node back
    Revoke(revoke::Args),
}

/// Runs a verb.
pub(crate) fn run(verb: Verb, printer: &mut Printer) -> Result<Exit, Fault> {
    forbid_dumps()?;
    match verb {
        Verb::Init(args) => init::run(&args, printer),
        Verb::Csr(args) => csr::run(&args, printer),
        Verb::Issue(args) => issue::run(&args, printer),
        Verb::Install(args) => install::run(&args, printer),
        Verb::Status(args) => status::run(&args, printer),
        Verb::Rotate(args) => rotate::run(&args, printer),
        Verb::Revoke(args) => revoke::run(&args, printer),
    }
}

/// Reads a text that came from another machine: a file, or stdin for `-`.
fn read_text(file: &Path) -> Result<Vec<u8>, Fault> {
    let shown = if is_stdin(file) { "stdin".to_owned() } else { format!("`{}`", file.display()) };
    let fail = |error| Fault::io(format!("cannot read {shown}"), error);
    let mut bytes = Vec::new();
    // One byte more than the longest text, so that a longer one is noticed and not read.
    let limit = BYTES_MAX as u64 + 1;
    match is_stdin(file) {
        true => std::io::stdin().lock().take(limit).read_to_end(&mut bytes).map_err(fail)?,
        false => File::open(file).map_err(fail)?.take(limit).read_to_end(&mut bytes).map_err(fail)?,
    };
    Ok(bytes)
}

fn is_stdin(file: &Path) -> bool {
    file.as_os_str() == "-"
}

/// The fault of a text that is none of ours.
fn unreadable(file: &Path, error: impl std::error::Error + Send + Sync + 'static) -> Fault {
    let shown = if is_stdin(file) { "from stdin".to_owned() } else { format!("`{}`", file.display()) };
    Fault::new(Code::BundleUnreadable, format!("cannot use the text {shown}"))
        .hint("bring it over once more, whole; see `quorate explain Q1004`")
        .caused_by(error)
}

/// Writes a text for another machine into a file that was asked for. It holds no secret.
fn write_text(file: &Path, text: &str) -> Result<(), Fault> {
    let fail = |error| Fault::io(format!("cannot write `{}`", file.display()), error);
    let mut out = File::create(file).map_err(fail)?;
    out.write_all(text.as_bytes()).and_then(|()| out.sync_all()).map_err(fail)
}
