//! `quorate cluster check`: whether a cluster file can be used, with the line of every mistake.

use std::path::PathBuf;

use quorate_faults::{Exit, Fault};
use quorate_plan::Warning;
use quorate_plan::spec::{Mistakes, Spec};
use serde::Serialize;

use crate::printer::Printer;
use crate::render::{Page, Report};

/// Flags of `cluster check`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  quorate cluster check cluster.yaml
  quorate cluster check cluster.yaml --output json

Exit code 0: it can be used. 4: it has mistakes, which are all shown. Nobody is asked and nothing is changed.")]
pub(crate) struct Args {
    /// The cluster file
    pub(crate) file: PathBuf,
}

/// Checks it.
pub(crate) fn run(args: &Args, printer: &mut Printer) -> Result<Exit, Fault> {
    let shown = args.file.display().to_string();
    let bytes = std::fs::read(&args.file).map_err(|error| Fault::io(format!("cannot read `{shown}`"), error))?;
    match Spec::parse(&bytes, &shown) {
        Ok((spec, warnings)) => {
            for Warning { code, text } in &warnings {
                printer.warning(*code, text);
            }
            printer.report(&Good::of(shown, &spec));
            Ok(Exit::Done)
        }
        Err(mistakes) => {
            let exit = mistakes.fault().code().exit();
            printer.report(&Bad { valid: false, mistakes });
            Ok(exit)
        }
    }
}

/// A file that can be used.
#[derive(Serialize)]
struct Good<'a> {
    file: String,
    valid: bool,
    members: usize,
    declaration: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    cluster_id: Option<String>,
    spec: &'a Spec,
}

impl Good<'_> {
    fn of(file: String, spec: &Spec) -> Good<'_> {
        let cluster_id = spec.founding_ids().map(|ids| ids.cluster.to_string());
        Good { file, valid: true, members: spec.members.len(), declaration: spec.declaration_hash(), cluster_id, spec }
    }
}

impl Report for Good<'_> {
    fn render(&self, page: &mut Page) {
        let founds = match &self.cluster_id {
            Some(id) => format!("declares the founding of cluster {id}"),
            None => "declares no founding".to_owned(),
        };
        let members = if self.members == 1 { "1 member".to_owned() } else { format!("{} members", self.members) };
        page.line(format!("{}: can be used; {members}, {founds}", self.file));
    }
}

/// A file that cannot.
#[derive(Serialize)]
struct Bad {
    valid: bool,
    #[serde(flatten)]
    mistakes: Mistakes,
}

impl Report for Bad {
    fn render(&self, page: &mut Page) {
        for line in self.mistakes.render().lines() {
            page.line(line);
        }
    }
}
