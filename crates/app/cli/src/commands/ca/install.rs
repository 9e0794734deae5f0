//! `quorate ca install`: checks and installs what was signed.

use std::path::{Path, PathBuf};

use jiff::Timestamp;
use quorate_agent::certificates::folder;
use quorate_faults::{Exit, Fault};
use quorate_pki::{NodeNames, SignedBundle, ensure_installed, ensure_operators_known};
use quorate_plan::certificates::pem;
use serde::Serialize;

use super::{read_text, unreadable};
use crate::commands::run::NodeArgs;
use crate::printer::Printer;
use crate::render::{Page, Report};

/// Flags of `ca install`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  quorate ca install --config cluster.yaml --name n1 n1.bundle
  quorate ca install --config cluster.yaml --name n1 < n1.bundle

Keys, chains, names, usages and times are checked first; if one does not hold, nothing
is changed. Neither etcd nor the agent has to be restarted for a renewal.")]
pub(crate) struct Args {
    #[command(flatten)]
    node: NodeArgs,

    /// What was signed, from `ca issue`; `-` is stdin
    #[arg(default_value = "-", value_name = "FILE")]
    file: PathBuf,
}

/// Installs it.
pub(crate) fn run(args: &Args, printer: &mut Printer) -> Result<Exit, Fault> {
    let node = args.node.node(printer)?;
    let dir = folder(&node)?;
    let names = NodeNames::of(&node.spec, &node.member)?;
    let bundle = SignedBundle::decode(&read_text(&args.file)?).map_err(|error| unreadable(&args.file, error))?;
    let installed = ensure_installed(&dir, &names, &bundle, Timestamp::now())?;
    if let (Some(path), false) = (node.spec.operators_file_of(node.name()), bundle.operators().is_empty()) {
        let text: String = bundle.operators().iter().map(|der| pem(der)).collect();
        if ensure_operators_known(Path::new(&path), text.as_bytes())? {
            printer.note(&format!("operators are known from now on, by `{path}`"));
        }
    }
    let replaced = installed.replaced.iter().map(|role| role.word()).collect();
    printer.report(&Done { name: names.name, dir, replaced, not_after: installed.until.to_string() });
    Ok(Exit::Done)
}

#[derive(Serialize)]
struct Done {
    name: String,
    dir: PathBuf,
    replaced: Vec<&'static str>,
    not_after: String,
}

impl Report for Done {
    fn render(&self, page: &mut Page) {
        let Done { name, dir, replaced, not_after } = self;
        match replaced.is_empty() {
            true => {
                page.line(format!("the certificates of `{name}` are in `{}` already, until {not_after}", dir.display()))
            }
            false => {
                let list = replaced.join(", ");
                page.line(format!("installed in `{}`: {list}; `{name}` is set until {not_after}", dir.display()));
            }
        }
    }
}
