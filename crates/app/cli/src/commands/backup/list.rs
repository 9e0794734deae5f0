//! `quorate backup list`: the objects of a store, the chain to its newest state, and what can be restored.

use quorate_backup::catalog::Catalog;
use quorate_backup::session::Session;
use quorate_faults::{Code, Exit, Fault};
use quorate_plan::chain::{Chain, EpochStart, Kind, Layout, Span, State, Target};
use quorate_plan::estimate::{Cost, Inside, Rates, restore_time, rpo};
use quorate_plan::lineage::Lineage;
use quorate_plan::restore_point::{Content, RestorePoint};
use serde::Serialize;

use super::{ClusterArg, Row, StoreArgs, now_ms, spans, tell, time};
use crate::commands::fresh_nonce;
use crate::printer::Printer;
use crate::render::{Page, Report, bytes, duration};

/// Flags of `backup list`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  quorate backup list --store file:///backups
  quorate backup list --store file:///backups --output json

It goes by names, sizes, manifests and the newest full backup. `backup verify` reads
all of it. The restore point is for several members that must restore the same.
How long a restore takes is estimated for this machine, without starting etcd. Clusters
that have nothing in common are listed one after the other.")]
pub(crate) struct Args {
    #[command(flatten)]
    store: StoreArgs,

    #[command(flatten)]
    cluster: ClusterArg,
}

/// Lists it.
pub(crate) fn run(args: &Args, printer: &mut Printer) -> Result<Exit, Fault> {
    let scratch = std::env::temp_dir();
    let mut session = Session::open(&args.store.store, &scratch)?;
    let mut all = session.catalog.lineages(&[]);
    all.retain(|lineage| !lineage.objects.is_empty());
    if args.cluster.cluster.is_some() || all.len() <= 1 {
        let lineage = session.narrow(&args.cluster.whose())?;
        let listing = listing(args, session, lineage.as_ref(), printer)?;
        printer.report(&listing);
        return Ok(Exit::Done);
    }
    // They have nothing in common: what can be restored of one says nothing about the other.
    let mut lineages = Vec::new();
    for lineage in &all {
        let mut session = Session::open(&args.store.store, &scratch)?;
        session.catalog.narrow(lineage);
        if !lineages.is_empty() {
            // Said once for all of them.
            session.learned.clear();
        }
        lineages.push(listing(args, session, Some(lineage), printer)?);
    }
    let titles: Vec<String> = all.iter().map(Lineage::title).collect();
    let what = format!("the store holds backups of several clusters: {}", titles.join("; "));
    printer.warning(Code::LineageNotNamed, &what);
    printer.report(&Shared { store: args.store.store.clone(), lineages });
    Ok(Exit::Done)
}

/// What a store that several clusters write to is printed as.
#[derive(Serialize)]
struct Shared {
    store: String,
    lineages: Vec<Listing>,
}

impl Report for Shared {
    fn render(&self, page: &mut Page) {
        for (number, listing) in self.lineages.iter().enumerate() {
            if number > 0 {
                page.gap();
            }
            listing.render(page);
        }
    }
}

/// What is listed of one lineage.
fn listing(
    args: &Args,
    mut session: Session,
    lineage: Option<&Lineage>,
    printer: &mut Printer,
) -> Result<Listing, Fault> {
    let highest = session.catalog.highest_revision();
    let point = match session.newest_point() {
        Ok((revision, digest)) => {
            let content = Content::above(revision, highest);
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
    let at_risk = decision.chain.as_ref().and_then(|chain| AtRisk::of(catalog, chain));
    let restore = decision.chain.as_ref().map(|chain| Estimate::of(catalog, chain, session.store.folder().is_some()));
    Ok(Listing {
        store: args.store.store.clone(),
        lineage: lineage.cloned(),
        bytes: catalog.objects.iter().map(|object| object.bytes).sum(),
        objects: Row::all(&catalog.objects, &decision),
        newest_revision: decision.newest_provable(),
        recoverable: decision.recoverable,
        oldest_time: oldest_time.map(time),
        newest_time: newest_time.map(time),
        newest_mentioned: decision.newest_claimed,
        short: decision.short,
        restore_point: point,
        at_risk,
        restore,
        epochs: catalog.epochs.clone(),
        unknown: catalog.unknown.clone(),
    })
}

/// What is printed.
#[derive(Serialize)]
struct Listing {
    store: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    lineage: Option<Lineage>,
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
    #[serde(skip_serializing_if = "Option::is_none")]
    at_risk: Option<AtRisk>,
    #[serde(skip_serializing_if = "Option::is_none")]
    restore: Option<Estimate>,
    epochs: Vec<EpochStart>,
    unknown: Vec<String>,
}

/// What would be missing if everything but the store were lost now.
#[derive(Serialize)]
struct AtRisk {
    /// The newest write that is surely stored, or when the newest object was begun.
    since: String,
    rpo_seconds: f64,
    #[serde(skip)]
    rpo: std::time::Duration,
}

impl AtRisk {
    fn of(catalog: &Catalog, chain: &Chain) -> Option<AtRisk> {
        let recorded = |index: usize| {
            let manifest = catalog.handles[index].manifest.as_ref();
            manifest.and_then(|manifest| manifest.last_write_ms).unwrap_or(catalog.objects[index].created_ms)
        };
        // Whoever was first to hold the newest revision: a full that was made of older objects says nothing about now.
        let holds = |index: &usize| {
            let object = &catalog.objects[*index];
            object.last >= chain.reach && !matches!(object.state, State::Bad(_))
        };
        let newest = (0..catalog.objects.len()).filter(holds).map(recorded).min()?;
        let rpo = rpo(now_ms(), newest);
        Some(AtRisk { since: time(newest), rpo_seconds: rpo.as_secs_f64(), rpo })
    }
}

/// How long a restore of the newest state would take, and what that was made from.
#[derive(Serialize)]
struct Estimate {
    estimated_seconds: f64,
    cost: Cost,
    rates: Rates,
    #[serde(skip)]
    time: std::time::Duration,
}

impl Estimate {
    fn of(catalog: &Catalog, chain: &Chain, local: bool) -> Estimate {
        let inside: Vec<Option<Inside>> = catalog
            .handles
            .iter()
            .map(|handle| handle.manifest.as_ref())
            .map(|manifest| manifest.map(|it| Inside { content_bytes: it.content.bytes, events: it.events }))
            .collect();
        let cost = Cost::of(&catalog.objects, &inside, chain);
        let rates = if local { Rates::local() } else { Rates::remote() };
        let time = restore_time(&cost, &rates);
        Estimate { estimated_seconds: time.as_secs_f64(), cost, rates, time }
    }

    fn shown(&self) -> String {
        let Cost { stored_bytes, database_bytes, events, gardener_events, assumed_objects } = self.cost;
        let mut text = format!(
            "about {}: {} to read at {}/s, a database of {}, {} writes to replay",
            shown(self.time),
            bytes(stored_bytes),
            bytes(self.rates.store_bytes_per_s as u64),
            bytes(database_bytes),
            events.saturating_add(gardener_events),
        );
        if assumed_objects > 0 {
            text.push_str(&format!("; the inside of {assumed_objects} objects without a manifest is assumed"));
        }
        text
    }
}

/// A duration without digits that mean nothing.
fn shown(time: std::time::Duration) -> String {
    match time.as_millis() {
        0..10 => "10ms".to_owned(),
        10..1000 => duration(std::time::Duration::from_millis(time.as_millis() as u64 / 10 * 10)),
        _ => duration(std::time::Duration::from_secs(time.as_secs_f64().round() as u64)),
    }
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
        if let Some(lineage) = &self.lineage {
            pairs.insert(1, ("whose", lineage.title()));
        }
        if let (Some(oldest), Some(newest)) = (&self.oldest_time, &self.newest_time) {
            pairs.push(("times", format!("{oldest} to {newest}")));
        }
        if let Some(short) = &self.short {
            pairs.push(("not beyond", short.clone()));
        }
        if let Some(AtRisk { since, rpo, .. }) = &self.at_risk {
            let ago = shown(*rpo);
            pairs.push(("at risk now", format!("if everything were lost now, writes since {since} ({ago} ago)")));
        }
        if let Some(estimate) = &self.restore {
            pairs.push(("restore takes", estimate.shown()));
        }
        for EpochStart { epoch, begins_at } in &self.epochs {
            pairs.push(("epoch", format!("{epoch} from revision {begins_at} on")));
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
