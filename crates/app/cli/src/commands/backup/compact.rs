//! `quorate backup compact`: one new full backup in place of a full and the deltas behind it.
//!
//! **Rule:** nothing old is touched. The new full goes into the store after it was compared with the chain, write by
//! write, and counts after it was read back from there.

use std::sync::atomic::AtomicU64;

use quorate_agent::backups::compact::{Onlooker, compact};
use quorate_faults::{Exit, Fault};
use serde::Serialize;

use super::{ClusterArg, StoreArgs, open_one, tell, warn_short};
use crate::commands::data::watched;
use crate::printer::Printer;
use crate::render::{Page, Report, bytes};

/// Flags of `backup compact`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  quorate backup compact --store file:///backups

A restore from the new full needs no delta up to its revision. The old objects
stay: they are what earlier revisions are restored from.")]
pub(crate) struct Args {
    #[command(flatten)]
    store: StoreArgs,

    #[command(flatten)]
    cluster: ClusterArg,
}

/// Compacts it.
pub(crate) fn run(args: &Args, printer: &mut Printer) -> Result<Exit, Fault> {
    let (mut session, _) = open_one(&args.store, &std::env::temp_dir(), &args.cluster)?;
    let done = compact(&mut session, &std::env::temp_dir(), &Shown(printer))?;
    tell(&mut session, printer);
    warn_short(done.short.as_ref(), done.revision, printer);
    printer.report(&Outcome {
        store: args.store.store.clone(),
        revision: done.revision,
        writes_merged: if done.full.is_some() { done.writes_merged } else { 0 },
        deltas: if done.full.is_some() { done.deltas } else { 0 },
        full: done.name(),
        bytes: done.full.as_ref().map_or(0, |manifest| manifest.stored.bytes),
        content_bytes: done.full.as_ref().map_or(0, |manifest| manifest.content.bytes),
        proven_equal: done.full.is_some(),
    });
    Ok(Exit::Done)
}

/// Shows the merge as a bar.
struct Shown<'p>(&'p Printer);

impl Onlooker for Shown<'_> {
    fn merging<T: Send>(&self, total: u64, done: &AtomicU64, work: impl FnOnce() -> T + Send) -> Result<T, Fault> {
        watched(self.0, "merging", total, done, work)
    }
}

/// What is printed.
#[derive(Serialize)]
struct Outcome {
    store: String,
    revision: u64,
    writes_merged: u64,
    deltas: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    full: Option<String>,
    bytes: u64,
    content_bytes: u64,
    proven_equal: bool,
}

impl Report for Outcome {
    fn render(&self, page: &mut Page) {
        let Some(full) = &self.full else {
            page.line(format!("nothing to do: revision {} is in a full backup of its own", self.revision));
            return;
        };
        page.line(format!("made `{full}` ({})", bytes(self.bytes)));
        let (writes, deltas) = (self.writes_merged, self.deltas);
        page.line(format!("  revision {}: one full and {writes} writes from {deltas} deltas", self.revision));
        page.line("  equal to the chain, write by write, and read back from the store");
    }
}
