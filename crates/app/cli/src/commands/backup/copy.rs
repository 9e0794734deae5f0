//! `quorate backup copy`: a store into another one, verified, and gone on with where it stopped.

use std::sync::atomic::AtomicU64;

use quorate_backup::copy::{Copied, Work};
use quorate_backup::store::Store;
use quorate_faults::{Code, Exit, Fault};
use serde::Serialize;

use super::StoreArgs;
use crate::commands::data::watched;
use crate::printer::Printer;
use crate::render::{Page, Report, bytes};

/// Flags of `backup copy`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  quorate backup copy --store file:///backups --to s3://bucket/prod
  quorate backup copy --store s3://bucket/prod --to gs://other/prod

Objects keep their names and bytes, and are read back from the target. Run it again
after it was stopped, or to bring over what is new: what is there is not copied twice.")]
pub(crate) struct Args {
    #[command(flatten)]
    store: StoreArgs,

    /// The store to copy to; a folder is made if it is not there, a bucket is not
    #[arg(long, value_name = "URL")]
    to: String,
}

/// Copies it.
pub(crate) fn run(args: &Args, printer: &mut Printer) -> Result<Exit, Fault> {
    let from = Store::open(&args.store.store, false)?;
    let to = Store::open(&args.to, true)?;
    let work = Work::plan(&from, &to)?;
    let done = AtomicU64::new(0);
    let outcome = watched(printer, "copying", work.bytes(), &done, || work.run(&from, &to, &done))??;
    for (name, why) in &outcome.left_out {
        printer.warning(Code::CopyLeftOut, &format!("`{name}` was left out: {why}"));
    }
    let whole = outcome.left_out.is_empty();
    printer.report(&CopyReport { store: args.store.store.clone(), to: args.to.clone(), outcome });
    Ok(if whole { Exit::Done } else { Exit::CannotMeet })
}

/// What is printed.
#[derive(Serialize)]
struct CopyReport {
    store: String,
    to: String,
    #[serde(flatten)]
    outcome: Copied,
}

impl Report for CopyReport {
    fn render(&self, page: &mut Page) {
        let Copied { copied, already, bytes: size, left_out } = &self.outcome;
        page.line(format!("`{}` is in `{}` now", self.store, self.to));
        page.table(
            ["COPIED", "SIZE", "THERE BEFORE", "LEFT OUT"],
            [[copied.to_string(), bytes(*size), already.to_string(), left_out.len().to_string()]],
        );
        page.gap();
        page.step("check it:", format!("quorate backup verify --store {}", self.to));
    }
}
