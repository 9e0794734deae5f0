//! `quorate backup prune`: removes what no rule keeps, after the newest chain has been read.
//!
//! **Rule:** nothing is removed before the newest chain was read to its last byte and held.

use quorate_agent::backups::clock_doubted;
use quorate_backup::clock;
use quorate_backup::prune::{self, STAGED_KEPT};
use quorate_backup::session::{Session, Wanted};
use quorate_faults::{Code, Exit, Fault};
use quorate_plan::chain::{Kind, Target};
use quorate_plan::retention::{OtherClock, Policy, PrunePlan, PruneSeen, Verdict, plan_prune};
use quorate_plan::schedule::parse_duration_ms;
use serde::Serialize;

use super::{ClusterArg, StoreArgs, now_ms, open_one, tell, time};
use crate::printer::Printer;
use crate::render::{Page, Report, bytes};

/// Flags of `backup prune`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  quorate backup prune --store file:///backups --dry-run
  quorate backup prune --store s3://bucket --keep-daily 14 --keep-history 3d

What any rule keeps stays; a rule of 0 keeps nothing. Hours, days, weeks and months
are those of UTC, and only those with a backup count. The newest chain stays whole
whatever the rules say, and is read before anything is removed. Backups of other
clusters in the same store are not touched. Exit code 1: the store protects objects
that should have gone.")]
pub(crate) struct Args {
    #[command(flatten)]
    store: StoreArgs,

    #[command(flatten)]
    cluster: ClusterArg,

    #[command(flatten)]
    keep: KeepArgs,

    /// Show what would stay and go, and remove nothing
    #[arg(long)]
    dry_run: bool,
}

/// What stays.
#[derive(Debug, clap::Args)]
pub(crate) struct KeepArgs {
    /// Keep the newest full backups
    #[arg(long, value_name = "N", default_value_t = Policy::DEFAULT.last)]
    keep_last: u32,

    /// Keep the newest full of each of so many hours
    #[arg(long, value_name = "N", default_value_t = Policy::DEFAULT.hourly)]
    keep_hourly: u32,

    /// Keep the newest full of each of so many days
    #[arg(long, value_name = "N", default_value_t = Policy::DEFAULT.daily)]
    keep_daily: u32,

    /// Keep the newest full of each of so many weeks
    #[arg(long, value_name = "N", default_value_t = Policy::DEFAULT.weekly)]
    keep_weekly: u32,

    /// Keep the newest full of each of so many months
    #[arg(long, value_name = "N", default_value_t = Policy::DEFAULT.monthly)]
    keep_monthly: u32,

    /// Keep every moment of this time restorable, such as 12h or 7d
    #[arg(long, value_name = "TIME", default_value = "1d")]
    keep_history: String,
}

impl KeepArgs {
    /// The policy that the flags ask for.
    pub(crate) fn policy(&self) -> Result<Policy, Fault> {
        let text = self.keep_history.as_str();
        let history_ms = match text {
            "0" => Some(0),
            text => parse_duration_ms(text),
        };
        let history_ms = history_ms.ok_or_else(|| {
            Fault::new(Code::ScheduleInvalid, format!("cannot use `--keep-history {text}`: it is not a length of time"))
                .hint("write a number with `m`, `h`, `d` or `w`, such as `12h` or `7d`")
        })?;
        Ok(Policy {
            last: self.keep_last,
            hourly: self.keep_hourly,
            daily: self.keep_daily,
            weekly: self.keep_weekly,
            monthly: self.keep_monthly,
            history_ms,
        })
    }
}

/// Prunes it.
pub(crate) fn run(args: &Args, printer: &mut Printer) -> Result<Exit, Fault> {
    let policy = args.keep.policy()?;
    let (mut session, _) = open_one(&args.store, &std::env::temp_dir(), &args.cluster)?;
    tell(&mut session, printer);
    let mut plan = plan_of(&session, &policy, &[]);
    if !args.dry_run && !plan.removals.is_empty() {
        prove(&mut session)?;
        tell(&mut session, printer);
        // Whatever the layout: what is written for it is in a folder of our own, and removed at once.
        let store = OtherClock::At(clock::observe_time(&session.store)?);
        // Reading may have taught that an object is not what it says; the plan goes by that.
        plan = plan_of(&session, &policy, &[store]);
    }
    if let Some(doubt) = plan.clock_doubt {
        return Err(clock_doubted(doubt));
    }
    if plan.newest.is_none() && !session.catalog.objects.is_empty() {
        return Err(unproven(&args.store.store));
    }
    let mut outcome = Outcome::of(args, policy, &session, &plan)?;
    if !args.dry_run {
        let mut progress = printer.progress("removing", Some(plan.removals.len() as u64));
        let removed =
            prune::remove(&session.store, &session.catalog, &plan.removals, |done| progress.set(done as u64))?;
        drop(progress);
        prune::remove_staged(&session.store)?;
        outcome.bytes_freed = removed.bytes;
        outcome.removed = removed.objects.len();
        outcome.locked = removed.locked;
    }
    for (name, why) in &outcome.locked {
        printer.warning(Code::PruneLocked, &format!("`{name}` stays: {why}"));
    }
    let whole = outcome.locked.is_empty();
    printer.report(&outcome);
    Ok(if whole { Exit::Done } else { Exit::CannotMeet })
}

fn plan_of(session: &Session, policy: &Policy, others: &[OtherClock]) -> PrunePlan {
    let catalog = &session.catalog;
    let finals: Vec<usize> = (0..catalog.handles.len()).filter(|index| catalog.handles[*index].is_final).collect();
    let (objects, epochs) = (&catalog.objects, &catalog.epochs);
    let seen = PruneSeen { objects, finals: &finals, epochs, now_ms: now_ms(), others };
    plan_prune(&seen, policy)
}

/// Reads the newest chain to its last byte. It must lead as far as its objects said it would.
fn prove(session: &mut Session) -> Result<(), Fault> {
    let url = session.store.url().to_owned();
    let claimed = session.catalog.decide(Target::Newest).chain.map(|chain| chain.reach);
    let proven = session.run(&Wanted::Target(Target::Newest), |_, _, _| Ok(()));
    match proven {
        Ok(proven) if Some(proven.revision) >= claimed => Ok(()),
        Ok(proven) => {
            let newest = claimed.unwrap_or(0);
            let why = format!("its objects speak of revision {newest}, and only {} can be proven", proven.revision);
            Err(unproven(&url).caused_by(why))
        }
        Err(fault) if fault.code() == Code::ChainNone => Err(unproven(&url).caused_by(fault.to_string())),
        Err(fault) => Err(fault),
    }
}

fn unproven(url: &str) -> Fault {
    Fault::new(Code::PruneUnproven, format!("cannot prune `{url}`: its newest chain is not proven"))
        .hint(format!("see what is wrong with each object: `quorate backup verify --store {url}`"))
}

/// What is printed.
#[derive(Serialize)]
struct Outcome {
    store: String,
    dry_run: bool,
    policy: Policy,
    objects: Vec<Row>,
    kept: usize,
    to_remove: usize,
    removed: usize,
    bytes_freed: u64,
    newest_revision: Option<u64>,
    locked: Vec<(String, String)>,
    left_overs: Vec<String>,
    unknown: Vec<String>,
}

/// One object, and what becomes of it.
#[derive(Serialize)]
struct Row {
    name: String,
    kind: Kind,
    first: u64,
    last: u64,
    created: String,
    bytes: u64,
    verdict: Verdict,
}

impl Outcome {
    fn of(args: &Args, policy: Policy, session: &Session, plan: &PrunePlan) -> Result<Outcome, Fault> {
        let row = |(object, verdict): (&quorate_plan::chain::Object, &Verdict)| Row {
            name: object.name.clone(),
            kind: object.kind,
            first: object.first,
            last: object.last,
            created: time(object.created_ms),
            bytes: object.bytes,
            verdict: verdict.clone(),
        };
        let staged = session.store.staged()?.into_iter();
        Ok(Outcome {
            store: args.store.store.clone(),
            dry_run: args.dry_run,
            policy,
            objects: session.catalog.objects.iter().zip(&plan.verdicts).map(row).collect(),
            kept: session.catalog.objects.len() - plan.removals.len(),
            to_remove: plan.removals.len(),
            removed: 0,
            bytes_freed: plan.bytes_freed,
            newest_revision: plan.newest.as_ref().map(|chain| chain.reach),
            locked: Vec::new(),
            left_overs: staged.filter(|(_, age)| *age >= STAGED_KEPT).map(|(name, _)| name).collect(),
            unknown: session.catalog.unknown.clone(),
        })
    }
}

impl Report for Outcome {
    fn render(&self, page: &mut Page) {
        let rows = self.objects.iter().map(|row| {
            let (kind, revisions) = match row.kind {
                Kind::Full => ("full", row.last.to_string()),
                Kind::Delta => ("delta", format!("{}-{}", row.first, row.last)),
            };
            let (verdict, why) = match &row.verdict {
                Verdict::Keep(why) => ("stays", why),
                Verdict::Remove(why) => ("goes", why),
            };
            [kind.to_owned(), revisions, row.created.clone(), bytes(row.bytes), verdict.to_owned(), why.clone()]
        });
        page.table(["KIND", "REVISIONS", "MADE", "SIZE", "", "WHY"], rows);
        page.gap();
        let freed = bytes(self.bytes_freed);
        let Policy { last, hourly, daily, weekly, monthly, history_ms } = self.policy;
        let history = crate::render::duration(std::time::Duration::from_millis(history_ms.unsigned_abs()));
        page.line(format!(
            "rules: last {last}, hourly {hourly}, daily {daily}, weekly {weekly}, monthly {monthly}, history {history}"
        ));
        match self.dry_run {
            true => page
                .line(format!("{} would stay, {} would go ({freed}); nothing was removed", self.kept, self.to_remove)),
            false => page.line(format!("{} stay, {} are gone ({freed})", self.kept, self.removed)),
        }
        if let Some(newest) = self.newest_revision.filter(|_| !self.dry_run && self.to_remove > 0) {
            page.line(format!("  revision {newest} was read and proven first"));
        }
        for name in &self.left_overs {
            page.line(format!("  left over by a killed upload: `{name}`"));
        }
    }
}
