//! `quorate backup list`: the objects of a store, the chain to its newest state, and what can be restored.

use quorate_backup::session::Session;
use quorate_etcd_formats::rebuild::BUMP_DEFAULT;
use quorate_faults::{Code, Exit, Fault};
use quorate_plan::chain::{Kind, Layout, Span, Target};
use quorate_plan::restore_point::{Content, RestorePoint};
use serde::Serialize;

use super::{Row, StoreArgs, spans, tell, time};
use crate::commands::fresh_nonce;
use crate::printer::Printer;
use crate::render::{Page, Report, bytes};

/// Flags of `backup list`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  quorate backup list --store file:///backups
  quorate backup list --store file:///backups --output json

It goes by names, manifests and the newest full backup. `backup verify` reads all
of it. The restore point is for several members that must restore the same.")]
pub(crate) struct Args {
    #[command(flatten)]
    store: StoreArgs,
}

/// Lists it.
pub(crate) fn run(args: &Args, printer: &mut Printer) -> Result<Exit, Fault> {
    let mut session = Session::open(&args.store.store, &std::env::temp_dir())?;
    let point = match session.newest_point() {
        Ok((revision, digest)) => {
            let content = Content { bump: Some(BUMP_DEFAULT), mark_compacted: true };
            Some(RestorePoint { revision, digest, nonce: Some(fresh_nonce()), content }.to_string())
        }
        Err(fault) if matches!(fault.code(), Code::ChainNone | Code::ChainTarget) => None,
        Err(fault) => return Err(fault),
    };
    tell(&mut session, printer);
    let catalog = &session.catalog;
    for (name, why) in &catalog.notes {
        printer.warning(Code::ObjectUnknown, &format!("`{name}`: {why}"));
    }
    let decision = catalog.decide(Target::Newest);
    let used = decision.chain.iter().flat_map(|chain| chain.deltas.iter().map(|(index, _)| *index).chain([chain.base]));
    let newest_time = used.map(|index| catalog.objects[index].created_ms).max();
    let fulls = catalog.objects.iter().filter(|object| object.kind == Kind::Full);
    let oldest_time = fulls.map(|object| object.created_ms).min();
    printer.report(&Listing {
        store: args.store.store.clone(),
        bytes: catalog.objects.iter().map(|object| object.bytes).sum(),
        objects: Row::all(&catalog.objects, &decision),
        newest_revision: decision.newest_provable(),
        recoverable: decision.recoverable,
        oldest_time: oldest_time.map(time),
        newest_time: newest_time.map(time),
        newest_mentioned: decision.newest_claimed,
        short: decision.short,
        restore_point: point,
        unknown: catalog.unknown.clone(),
    });
    Ok(Exit::Done)
}

/// What is printed.
#[derive(Serialize)]
struct Listing {
    store: String,
    bytes: u64,
    objects: Vec<Row>,
    recoverable: Vec<Span>,
    #[serde(skip_serializing_if = "Option::is_none")]
    newest_revision: Option<u64>,
    newest_mentioned: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    oldest_time: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    newest_time: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    short: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    restore_point: Option<String>,
    unknown: Vec<String>,
}

impl Report for Listing {
    fn render(&self, page: &mut Page) {
        let rows = self.objects.iter().map(|row| {
            let kind = match row.object.kind {
                Kind::Full => "full",
                Kind::Delta => "delta",
            };
            let layout = match row.object.layout {
                Layout::Gardener => "gardener",
                Layout::Quorate => "quorate",
            };
            [
                kind.to_owned(),
                row.revisions(),
                row.created.clone(),
                bytes(row.object.bytes),
                layout.to_owned(),
                row.usage(),
            ]
        });
        page.table(["KIND", "REVISIONS", "MADE", "SIZE", "LAYOUT", "IN THE NEWEST CHAIN"], rows);
        page.gap();
        let mut pairs = vec![
            ("store", format!("{} ({} in {} objects)", self.store, bytes(self.bytes), self.objects.len())),
            ("recoverable", format!("revisions {}", spans(&self.recoverable))),
        ];
        if let (Some(oldest), Some(newest)) = (&self.oldest_time, &self.newest_time) {
            pairs.push(("times", format!("{oldest} to {newest}")));
        }
        if let Some(short) = &self.short {
            pairs.push(("not beyond", short.clone()));
        }
        if let Some(point) = &self.restore_point {
            pairs.push(("restore point", point.clone()));
        }
        for name in &self.unknown {
            pairs.push(("unknown", name.clone()));
        }
        page.pairs(pairs);
    }
}
