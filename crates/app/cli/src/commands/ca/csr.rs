//! `quorate ca csr`: makes the keys of a node, and asks for its certificates.

use std::path::PathBuf;

use quorate_agent::certificates::folder;
use quorate_faults::{Exit, Fault};
use quorate_pki::{Keys, NodeNames, ensure_requests};
use serde::Serialize;

use super::write_text;
use crate::commands::run::NodeArgs;
use crate::printer::Printer;
use crate::render::{Page, Report};

/// Flags of `ca csr`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  quorate ca csr --config cluster.yaml --name n1 > n1.csr
  quorate ca csr --config cluster.yaml --name n1 | ssh ca quorate ca issue \\
    --dir prod-1-ca --config cluster.yaml --passphrase-file ca.pass |
    quorate ca install --config cluster.yaml --name n1

Four keys are made in the folder of `tls: {dir: …}` and stay there; those that are there are
used again. The text holds no secret. It asks for every address of the member's URLs.")]
pub(crate) struct Args {
    #[command(flatten)]
    node: NodeArgs,

    /// Make new keys; those in use are replaced when the answer is installed
    #[arg(long)]
    renew: bool,

    /// Write the text into a file instead of stdout
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// Asks.
pub(crate) fn run(args: &Args, printer: &mut Printer) -> Result<Exit, Fault> {
    let node = args.node.node(printer)?;
    let dir = folder(&node)?;
    let names = NodeNames::of(&node.spec, &node.member)?;
    let which = if args.renew { Keys::Fresh } else { Keys::Keep };
    let made = ensure_requests(&dir, &names, which)?;
    let words: Vec<&'static str> = made.made.iter().map(|role| role.word()).collect();
    printer.note(&match words.is_empty() {
        true => format!("asked with the keys in `{}`", dir.display()),
        false => format!("made keys in `{}`: {}", dir.display(), words.join(", ")),
    });
    let requests = made.bundle.encode();
    if let Some(out) = &args.out {
        write_text(out, &requests)?;
    }
    printer.report(&Asked { token: names.token, name: names.name, dir, made: words, file: args.out.clone(), requests });
    Ok(Exit::Done)
}

#[derive(Serialize)]
struct Asked {
    token: String,
    name: String,
    dir: PathBuf,
    made: Vec<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<PathBuf>,
    requests: String,
}

impl Report for Asked {
    fn render(&self, page: &mut Page) {
        match &self.file {
            Some(file) => page.line(format!("the requests of `{}` are in `{}`", self.name, file.display())),
            None => self.requests.lines().for_each(|line| page.line(line)),
        }
    }
}
