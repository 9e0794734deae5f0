//! `quorate data restore`: makes a member's data dir from a snapshot file, without a server.
//!
//! **Rule:** members that restore the same snapshot with the same options and list agree on everything, without talking to
//! each other.

use std::path::PathBuf;
use std::sync::atomic::AtomicU64;

use quorate_etcd::engine::Ingredients;
use quorate_etcd::restore::{self, Snapshot};
use quorate_etcd_formats::database::Facts;
use quorate_etcd_formats::hex::hex;
use quorate_etcd_formats::rebuild::{BUMP_DEFAULT, Options, Rebuilt};
use quorate_faults::{Code, Exit, Fault};
use quorate_host::durable::RealDisk;
use quorate_plan::restore_point::{Content, PointError, RestorePoint};
use serde::Serialize;

use super::init::report::{Ending, InitReport};
use super::members::{Members, Place, Site, SourceAccess};
use super::{init, watched};
use crate::commands::fresh_nonce;
use crate::printer::Printer;
use crate::render::{Page, Report, bytes};

/// Seconds that an unknown lease is given.
const LEASE_TTL: i64 = 3600;

/// Flags of `data restore`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  quorate data restore --snapshot snap.db --data-dir ./n1
  quorate data restore --snapshot snap.db --name n1 --data-dir /var/lib/etcd \\
      --member n1=https://10.0.0.1:2380 --member n2=https://10.0.0.2:2380 \\
      --member n3=https://10.0.0.3:2380
  quorate data restore --snapshot snap.db --data-dir ./n1 --dry-run
  quorate data restore --snapshot old/member/snap/db --skip-hash --data-dir ./n1

Every machine runs it by itself, with its own --name, the same list and a copy of
the same snapshot, and all agree: the new cluster's token comes from the snapshot
and the options. Clients never see revisions go back, and watchers notice, unless
you ask for --exact. Run again, it says that the member is there already.")]
pub(crate) struct Args {
    /// A file that `etcdctl snapshot save` wrote
    #[arg(long, value_name = "FILE")]
    snapshot: PathBuf,

    #[command(flatten)]
    place: Place,

    /// The new cluster's token [default: derived from the restore point]
    #[arg(long)]
    token: Option<String>,

    /// Restore exactly this, or stop; as printed by --dry-run
    #[arg(long, value_name = "POINT")]
    restore_point: Option<String>,

    /// By how much to raise the revision [default: 1000000000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    bump_revision: Option<u64>,

    /// Call all history compacted, so that watchers begin anew; on by default
    #[arg(long)]
    mark_compacted: bool,

    /// Neither raise the revision nor mark history compacted
    #[arg(long, conflicts_with_all = ["bump_revision", "mark_compacted"])]
    exact: bool,

    /// Take a database without a SHA-256, such as a copied `member/snap/db`
    #[arg(long)]
    skip_hash: bool,

    #[command(flatten)]
    members: Members,

    /// Print what would be written and a restore point, and write nothing
    #[arg(long)]
    dry_run: bool,

    #[command(flatten)]
    access: SourceAccess,
}

/// Restores the member.
pub(crate) fn run(args: Args, printer: &mut Printer) -> Result<Exit, Fault> {
    let site = Site::settle(&args.place, &args.members, &args.access, printer)?;
    let snapshot = Snapshot::open(&args.snapshot, args.skip_hash)?;
    let facts = snapshot.facts()?;
    let point = point(&args, &snapshot, &facts)?;
    let token = args.token.clone().unwrap_or_else(|| point.token());
    let founding = site.founding(&token)?;
    let request = site.request(&founding)?;
    let (ending, rebuilt) = if args.dry_run {
        (with_size(init::plan(&site.target, request, printer)?, snapshot.bytes()), None)
    } else {
        let progress = AtomicU64::new(0);
        let options = Options {
            up_to: None,
            bump: point.content.bump,
            mark_compacted: point.content.mark_compacted,
            membership: Some((&founding, request.form)),
            lease_ttl_default: LEASE_TTL,
        };
        let base = Some(snapshot.base());
        let ingredients = Ingredients { base, events: None, options, progress: &progress };
        let restored = watched(printer, "restoring", snapshot.bytes(), &progress, || {
            restore::ensure_restored(&RealDisk, &site.target, request, ingredients)
        })??;
        (init::ending(restored.done, printer), restored.rebuilt)
    };
    if let Some(rebuilt) = &rebuilt {
        for warning in restore::warnings(&facts, rebuilt, LEASE_TTL) {
            printer.warning(warning.code, &warning.text);
        }
    }
    let member = site.report(ending, &founding, &token)?;
    let restore_point = point.to_string();
    printer.report(&RestoreReport {
        snapshot: args.snapshot.display().to_string(),
        snapshot_bytes: snapshot.bytes(),
        restore_point,
        restored: rebuilt.map(Restored::of),
        dry_run: args.dry_run,
        member,
    });
    Ok(Exit::Done)
}

/// What is to be restored: as given, or as the flags say.
fn point(args: &Args, snapshot: &Snapshot, facts: &Facts) -> Result<RestorePoint, Fault> {
    let bump = (!args.exact).then(|| args.bump_revision.unwrap_or(BUMP_DEFAULT));
    let flags = RestorePoint {
        revision: facts.revision_now(),
        digest: hex(&snapshot.sha256()?),
        nonce: None,
        content: Content { bump, mark_compacted: !args.exact },
    };
    let Some(text) = &args.restore_point else {
        // A point to hand around is used once.
        return Ok(RestorePoint { nonce: args.dry_run.then(fresh_nonce), ..flags });
    };
    let attempt = || format!("cannot restore `{}` to the restore point `{text}`", args.snapshot.display());
    let refuse = |why: &str| Fault::new(Code::RestorePoint, attempt()).caused_by(why.to_owned());
    let point: RestorePoint = text
        .trim()
        .parse()
        .map_err(|error: PointError| refuse(&error.to_string()).hint("copy it whole, as `--dry-run` printed it"))?;
    if (point.revision, &point.digest) != (flags.revision, &flags.digest) {
        return Err(refuse("the point is of another snapshot")
            .hint("every member restores a copy of the same file; compare with `sha256sum`"));
    }
    let asks = args.exact || args.bump_revision.is_some() || args.mark_compacted;
    if asks && point.content != flags.content {
        return Err(refuse("the flags ask for something else than the point says")
            .hint("leave out `--bump-revision`, `--mark-compacted` and `--exact`: the point carries them"));
    }
    Ok(point)
}

/// The database takes about as much room as the snapshot.
fn with_size(ending: Ending, snapshot_bytes: u64) -> Ending {
    let Ending::WouldMake(mut paths) = ending else { return ending };
    for new in paths.iter_mut().filter(|new| new.path.ends_with("snap/db")) {
        new.size = Some(snapshot_bytes);
    }
    Ending::WouldMake(paths)
}

/// What is printed.
#[derive(Serialize)]
struct RestoreReport {
    snapshot: String,
    snapshot_bytes: u64,
    restore_point: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    restored: Option<Restored>,
    #[serde(skip)]
    dry_run: bool,
    #[serde(flatten)]
    member: InitReport,
}

/// What was written.
#[derive(Serialize)]
struct Restored {
    revision: u64,
    last_write: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    compact_revision: Option<u64>,
    revisions: u64,
    leases_created: u64,
    hash: u32,
}

impl Restored {
    fn of(rebuilt: Rebuilt) -> Restored {
        Restored {
            revision: rebuilt.revision,
            last_write: rebuilt.last_write,
            compact_revision: rebuilt.compact_revision,
            revisions: rebuilt.revisions,
            leases_created: rebuilt.leases_created,
            hash: rebuilt.hash,
        }
    }
}

impl Report for RestoreReport {
    fn render(&self, page: &mut Page) {
        self.member.render(page);
        page.gap();
        let mut pairs = vec![("snapshot", format!("{} ({})", self.snapshot, bytes(self.snapshot_bytes)))];
        if let Some(restored) = &self.restored {
            pairs.push(("newest write", format!("revision {}", restored.last_write)));
            if restored.revision != restored.last_write {
                pairs
                    .push(("begins at", format!("revision {}; what is before counts as compacted", restored.revision)));
            }
        }
        pairs.push(("restore point", self.restore_point.clone()));
        page.pairs(pairs);
        if self.dry_run {
            page.gap();
            page.line("to set this restore apart from others of the same snapshot, give every member");
            page.line("that point as --restore-point");
        }
    }
}
