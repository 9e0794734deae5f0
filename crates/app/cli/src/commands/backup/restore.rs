//! `quorate backup restore`: makes a member's data dir from a store, at any revision or time, without a server.
//!
//! **Rule:** one of several members is restored from a point that names the very objects, or not at all.

use std::path::{Path, PathBuf};

use jiff::Timestamp;
use quorate_agent::backups::restore::{LEASE_TTL, Progress, Restore};
use quorate_backup::Base;
use quorate_backup::events::ChainEvents;
use quorate_backup::session::{Planned, Session, Wanted};
use quorate_etcd::restore::{self, Restored};
use quorate_etcd_formats::database::Facts;
use quorate_etcd_formats::founding::Founding;
use quorate_etcd_formats::rebuild::Rebuilt;
use quorate_faults::{Code, Exit, Fault};
use quorate_plan::chain::{Layout, Target};
use quorate_plan::lineage::Lineage;
use quorate_plan::restore_point::{Content, RestorePoint};
use serde::Serialize;

use super::{ClusterArg, StoreArgs, open_one, tell, time, warn_short};
use crate::commands::data::init::report::InitReport;
use crate::commands::data::members::{self, Members, Site, SourceAccess};
use crate::commands::data::{init, watched};
use crate::commands::fresh_nonce;
use crate::printer::Printer;
use crate::render::{Page, Report};

/// Flags of `backup restore`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  quorate backup restore --store file:///backups --data-dir ./n1
  quorate backup restore --store file:///backups --data-dir ./n1 \\
      --to-time 2026-11-15T14:05:00Z
  quorate backup restore --store file:///backups --name n2 --data-dir ./n2 \\
      --restore-point 81234:9f3c0a… \\
      --member n1=https://10.0.0.1:2380 --member n2=https://10.0.0.2:2380

A store that holds backups of several clusters needs `--cluster ID`; `backup list` shows
them. Several members need one restore point: `backup list` prints it, and so does this
command before it stops. Clients never see revisions go back, and watchers notice,
unless you ask for --exact.")]
pub(crate) struct Args {
    #[command(flatten)]
    store: StoreArgs,

    #[command(flatten)]
    cluster: ClusterArg,

    /// Up to this revision [default: the newest]
    #[arg(long, value_name = "N", conflicts_with_all = ["to_time", "restore_point"])]
    to_revision: Option<u64>,

    /// Up to the last write at or before this time, as 2026-11-15T14:05:00Z
    #[arg(long, value_name = "TIME", conflicts_with = "restore_point", value_parser = parse_time)]
    to_time: Option<i64>,

    /// Exactly this, or nothing; as printed by `backup list`
    #[arg(long, value_name = "POINT", conflicts_with_all = ["bump_revision", "mark_compacted", "exact"])]
    restore_point: Option<String>,

    /// Stop if the store mentions writes that it cannot prove
    #[arg(long)]
    strict: bool,

    #[command(flatten)]
    place: members::Place,

    /// The new cluster's token [default: derived from the restore point]
    #[arg(long)]
    token: Option<String>,

    /// By how much to raise the revision [default: 1000000000 above the highest one that the store has seen]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    bump_revision: Option<u64>,

    /// Call all history compacted, so that watchers begin anew; on by default
    #[arg(long)]
    mark_compacted: bool,

    /// Neither raise the revision nor mark history compacted
    #[arg(long, conflicts_with_all = ["bump_revision", "mark_compacted"])]
    exact: bool,

    #[command(flatten)]
    members: Members,

    #[command(flatten)]
    access: SourceAccess,
}

/// Restores the member.
pub(crate) fn run(args: Args, printer: &mut Printer) -> Result<Exit, Fault> {
    let site = Site::settle(&args.place, &args.members, &args.access, printer)?;
    let given = args.restore_point.as_deref().map(parse_point).transpose()?;
    let (mut session, lineage) = open_one(&args.store, &scratch(site.target.data_dir()), &args.cluster)?;
    let whose = Origin::of(lineage.as_ref());
    let highest = session.catalog.highest_revision();
    let wanted = match given {
        Some(point) => Wanted::Point(point),
        None => Wanted::Target(args.target()),
    };
    if let Wanted::Point(point) = &wanted {
        check_point(&mut session, point, &args, &site)?;
    }
    let nonce = match &wanted {
        Wanted::Point(point) => point.nonce,
        Wanted::Target(_) => Some(fresh_nonce()),
    };
    let wanted = settle(&mut session, wanted, &args, site.roster.members.len(), nonce, printer)?;
    let agreed = match &wanted {
        Wanted::Point(point) => Some(point.content),
        Wanted::Target(_) => None,
    };
    let build = |base: &Base, events: &mut ChainEvents, planned: &Planned| {
        refuse_short(&args, planned)?;
        let content = agreed.map_or_else(|| args.content(planned.revision, highest), Ok)?;
        let point = point(planned, nonce, content);
        let token = args.token.clone().unwrap_or_else(|| point.token());
        let founding = site.founding(&token)?;
        let work = Restore { place: &site.target, founding: &founding, name: &site.local, form: site.form, content };
        let restored = make(&work, base, events, printer)?;
        Ok((restored, founding, token, point, base.facts.clone()))
    };
    let proven = session.run(&wanted, build)?;
    let (restored, founding, token, point, facts) = proven.result;
    tell(&mut session, printer);
    warn_short(proven.decision.short.as_ref(), proven.revision, printer);
    let Restored { done, rebuilt } = restored;
    let ending = init::ending(done, printer);
    if let Some(rebuilt) = &rebuilt {
        for warning in restore::warnings(&facts, rebuilt, LEASE_TTL) {
            printer.warning(warning.code, &warning.text);
        }
    }
    let member = site.report(ending, &founding, &token)?;
    let object = |index: usize| session.catalog.objects[index].name.clone();
    printer.report(&RestoreReport {
        store: args.store.store.clone(),
        origin: whose,
        full: object(proven.base),
        deltas: proven.used.iter().map(|used| object(used.object)).collect(),
        events: proven.events,
        last_write_revision: proven.revision,
        last_write_time: proven.last_time_ms.map(time),
        restore_point: point.to_string(),
        written: rebuilt.map(Written::of),
        member,
    });
    Ok(Exit::Done)
}

impl Args {
    fn target(&self) -> Target {
        match (self.to_revision, self.to_time) {
            (Some(revision), _) => Target::Revision(revision),
            (None, Some(time)) => Target::Time(time),
            (None, None) => Target::Newest,
        }
    }

    /// What becomes of a restored revision, where `highest` is the highest one that the store has seen.
    fn content(&self, revision: u64, highest: u64) -> Result<Content, Fault> {
        if self.exact {
            return Ok(Content { bump: None, mark_compacted: false });
        }
        let Some(bump) = self.bump_revision else { return Ok(Content::above(revision, highest)) };
        let content = Content { bump: Some(bump), mark_compacted: true };
        match content.goes_back(revision, highest) {
            false => Ok(content),
            true => {
                let end = revision.saturating_add(bump);
                let what = format!(
                    "cannot restore revision {revision} raised by {bump}: it would end at {end}, and the store has seen \
                     revision {highest}"
                );
                Err(Fault::new(Code::RestoreGoesBack, what).hint("leave out `--bump-revision`"))
            }
        }
    }
}

/// A restore point that was handed out before a recovery ends below what clients have seen since. What the cluster wrote that this point
/// makes is left out: its members are restored one after the other.
fn check_point(session: &mut Session, point: &RestorePoint, args: &Args, site: &Site) -> Result<(), Fault> {
    let founding = site.founding(&args.token.clone().unwrap_or_else(|| point.token()))?;
    let highest = session.catalog.highest_revision_without(founding.cluster_id.0);
    if !point.content.goes_back(point.revision, highest) || wrote_newest(session, &founding) {
        return Ok(());
    }
    let (revision, bump) = (point.revision, point.content.bump.unwrap_or(0));
    let what = format!(
        "cannot restore by `{point}`: it would end at {}, and the store has seen revision {highest}",
        revision.saturating_add(bump)
    );
    let hint =
        format!("for a new point of the same state, run it with `--to-revision {revision}` in place of the point");
    Err(Fault::new(Code::RestoreGoesBack, what).hint(hint))
}

/// Whether the newest full lists the members of this cluster: objects of etcd-backup-restore's layout record no cluster.
fn wrote_newest(session: &mut Session, founding: &Founding) -> bool {
    let unrecorded = session.catalog.objects.iter().any(|object| object.layout == Layout::Gardener);
    let lists = |facts: Facts| {
        !facts.members.is_empty()
            && facts.members.iter().all(|member| founding.members.iter().any(|it| it.id == member.id))
    };
    unrecorded && session.newest_facts().is_ok_and(lists)
}

/// A time is turned into the point that it means, by reading; several members without a point are told theirs.
fn settle(
    session: &mut Session,
    wanted: Wanted,
    args: &Args,
    members: usize,
    nonce: Option<u64>,
    printer: &mut Printer,
) -> Result<Wanted, Fault> {
    let must_be_read = match wanted {
        Wanted::Target(Target::Time(_)) => true,
        Wanted::Target(Target::Newest | Target::Revision(_)) => members > 1,
        Wanted::Point(_) => false,
    };
    if !must_be_read {
        return Ok(wanted);
    }
    let proven = session.run(&wanted, |_, events, planned| {
        refuse_short(args, planned)?;
        // What goes wrong here is looked at by the session.
        let _ = events.drain();
        Ok(())
    })?;
    let content = args.content(proven.revision, session.catalog.highest_revision())?;
    let point = RestorePoint { revision: proven.revision, digest: proven.digest, nonce, content };
    if members == 1 {
        return Ok(Wanted::Point(point));
    }
    tell(session, printer);
    warn_short(proven.decision.short.as_ref(), proven.revision, printer);
    let attempt = format!("cannot restore one of {members} members without a restore point: it would be `{point}`");
    Err(Fault::new(Code::PointNeeded, attempt).hint(format!("restore every member with `--restore-point {point}`")))
}

fn refuse_short(args: &Args, planned: &Planned) -> Result<(), Fault> {
    match planned.short.as_ref().filter(|_| args.strict) {
        None => Ok(()),
        Some(why) => {
            let attempt = format!(
                "cannot restore all that `{}` mentions, only revision {}: {why}",
                args.store.store, planned.revision
            );
            Err(Fault::new(Code::ChainShort, attempt)
                .hint("bring back what is missing, or leave out `--strict` to restore what can be proven"))
        }
    }
}

fn point(planned: &Planned, nonce: Option<u64>, content: Content) -> RestorePoint {
    RestorePoint { revision: planned.revision, digest: planned.digest.clone(), nonce, content }
}

fn parse_point(text: &str) -> Result<RestorePoint, Fault> {
    text.parse().map_err(|error| {
        Fault::new(Code::PointInvalid, format!("cannot use the restore point `{text}`"))
            .hint("copy it whole, as `quorate backup list` prints it")
            .caused_by(error)
    })
}

pub(crate) fn parse_time(text: &str) -> Result<i64, String> {
    let parsed: Result<Timestamp, _> = text.parse();
    parsed
        .map(Timestamp::as_millisecond)
        .map_err(|_| "not a time; write it as `2026-11-15T14:05:00Z` or with an offset, as `…+01:00`".to_owned())
}

/// Large files lie beside the data dir for a while: there is room for them, and it is the same disk.
fn scratch(data_dir: &Path) -> PathBuf {
    match data_dir.parent() {
        Some(parent) if parent.is_dir() => parent.to_owned(),
        _ => std::env::temp_dir(),
    }
}

/// Makes the data dir from a full and the writes behind it, with a bar that covers both.
pub(super) fn make(
    restore: &Restore<'_>,
    base: &Base,
    events: &mut ChainEvents,
    printer: &Printer,
) -> Result<Restored, Fault> {
    let progress = Progress::of(base, events);
    watched(printer, "restoring", progress.total, &progress.done, || restore.run(base, events))?
}

/// What is printed.
#[derive(Serialize)]
struct RestoreReport {
    store: String,
    origin: Origin,
    full: String,
    deltas: Vec<String>,
    events: u64,
    last_write_revision: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_write_time: Option<String>,
    restore_point: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    written: Option<Written>,
    #[serde(flatten)]
    member: InitReport,
}

/// Whose backup was restored.
#[derive(Serialize)]
struct Origin {
    /// The cluster that wrote last, in hex.
    cluster: Option<String>,
    /// The token of its file.
    token: Option<String>,
}

impl Origin {
    fn of(lineage: Option<&Lineage>) -> Origin {
        let cluster = lineage.map(|lineage| lineage.newest_cluster).filter(|id| *id != 0);
        let token = lineage.and_then(|lineage| lineage.tokens.last().cloned());
        Origin { cluster: cluster.map(|id| format!("{id:x}")), token }
    }

    fn shown(&self) -> String {
        let token = self.token.as_ref().map_or("no recorded token".to_owned(), |token| format!("token `{token}`"));
        let cluster = self.cluster.as_deref().unwrap_or("not recorded");
        format!("{cluster}, {token}")
    }
}

/// What was written.
#[derive(Serialize)]
struct Written {
    revision: u64,
    revisions: u64,
    leases_granted: u64,
    leases_created: u64,
    hash: u32,
}

impl Written {
    fn of(rebuilt: Rebuilt) -> Written {
        let Rebuilt { revision, revisions, leases_granted, leases_created, hash, .. } = rebuilt;
        Written { revision, revisions, leases_granted, leases_created, hash }
    }
}

impl Report for RestoreReport {
    fn render(&self, page: &mut Page) {
        self.member.render(page);
        page.gap();
        let whose = ("of cluster", self.origin.shown());
        let mut pairs = vec![("store", self.store.clone()), whose, ("full", self.full.clone())];
        if self.events > 0 {
            let (events, deltas) = (self.events, self.deltas.len());
            pairs.push((
                "replayed",
                format!("{events} writes from {deltas} delta{}", if deltas == 1 { "" } else { "s" }),
            ));
        }
        let time = self.last_write_time.as_ref().map_or_else(String::new, |time| format!(", recorded {time}"));
        pairs.push(("newest write", format!("revision {}{time}", self.last_write_revision)));
        if let Some(written) = self.written.as_ref().filter(|written| written.revision != self.last_write_revision) {
            pairs.push(("begins at", format!("revision {}; what is before counts as compacted", written.revision)));
        }
        pairs.push(("restore point", self.restore_point.clone()));
        page.pairs(pairs);
    }
}
