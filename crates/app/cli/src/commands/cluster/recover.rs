//! `quorate cluster recover`: guides through the recovery of a cluster that has lost its quorum for good.
//!
//! **Rule:** first the survey, then the plan with every step and what may be lost, then the question; and what was ordered is
//! followed to its end, or gone on with by the same command.

mod follow;
mod store;
mod survey;

use std::time::Duration;

use quorate_agent::recover::{Order, Role, Source as OrderSource, Uploaded};
use quorate_faults::{Code, Exit, Fault};
use quorate_host::audit::Who;
use quorate_plan::change::ChangeHalt;
use quorate_plan::change::recover::{
    Point, RecoverStep, Recovery, RowSeen, Said, Source, StoreNewest, SurveyRow, extend, plan_recovery,
};
use quorate_plan::spec::{Spec, parse_duration};

use super::ask::{Cluster, ClusterArgs};
use crate::commands::backup::restore::parse_time;
use crate::commands::ca::passphrase::Terminal;
use crate::commands::fresh_nonce;
use crate::printer::Printer;
use follow::{follow, under_way};
use survey::{Shown, Survey, joins, survey};

/// Flags of `cluster recover`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  quorate cluster recover --config cluster.yaml --dry-run
  quorate cluster recover --config cluster.yaml --fenced n2 --fenced n3
  quorate cluster recover --config cluster.yaml --fenced n2 --from backup
  quorate cluster recover --config cluster.yaml --to-time 2026-11-15T14:05:00Z

Every agent that answers reports how far its data reaches, running or not, and queries the
etcd of every member whose agent is silent. An answer of such a member is a refusal. The
furthest data begins the new cluster, or the backup if that reaches further; the others
join it. Data is copied and renamed, never deleted. Run again, it continues.

Exit code 3: the order is taken and not carried out within --wait. The agents continue;
`quorate cluster status` shows progress, and the same command follows it further.")]
pub(crate) struct Args {
    #[command(flatten)]
    cluster: ClusterArgs,

    /// State that the machine of this node is powered off; for each silent one
    #[arg(long, value_name = "NODE")]
    fenced: Vec<String>,

    /// State that this node never returns by itself; included in --fenced, not enough alone
    #[arg(long, value_name = "NODE")]
    confirm_dead: Vec<String>,

    /// Go on without what this node holds, which cannot be looked at; for each one
    #[arg(long, value_name = "NODE")]
    pass_over: Vec<String>,

    /// Recover from this node's data, or from `backup` [default: what reaches furthest]
    #[arg(long, value_name = "NODE")]
    from: Option<String>,

    /// Do without the declared store: no backup is used, and the generation is not claimed
    #[arg(long, conflicts_with_all = ["to_time", "to_revision"])]
    without_store: bool,

    /// Recover the state at this time from the backup, also of a cluster that serves
    #[arg(long, value_name = "TIME", value_parser = parse_time, conflicts_with_all = ["to_revision", "from"])]
    to_time: Option<i64>,

    /// Recover the state after this revision from the backup, also of a cluster that serves
    #[arg(long, value_name = "N", conflicts_with = "from")]
    to_revision: Option<u64>,

    /// Show what is left and what would be done, and change nothing
    #[arg(long)]
    dry_run: bool,

    /// Do it without asking for the cluster's name
    #[arg(long)]
    yes: bool,

    /// Follow the nodes for this long; they continue after that
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = time)]
    wait: Duration,
}

fn time(text: &str) -> Result<Duration, String> {
    parse_duration(text).ok_or_else(|| "a time is written like `30s` or `10m`".to_owned())
}

impl Args {
    /// The earlier state that is wanted.
    fn point(&self) -> Option<Point> {
        self.to_time.map(Point::Time).or(self.to_revision.map(Point::Revision))
    }
}

/// Recovers.
pub(crate) fn run(args: &Args, printer: &mut Printer) -> Result<Exit, Fault> {
    let cluster = Cluster::open(&args.cluster.file()?, args.cluster.name.as_deref(), printer)?;
    let found = survey(&cluster, args.point(), args.without_store)?;
    if let Some((founder, order)) = under_way(&found) {
        printer.note(&format!("a recovery of generation {} was ordered at `{founder}`; going on", order.generation));
        return follow(&cluster, &founder, &order, args.wait, printer);
    }
    let plan = plan(&cluster.spec, &found, args)?;
    let refused = plan.halt.as_ref().map(refusal);
    let shown = Shown::new(&cluster.spec, &found, &plan);
    if args.dry_run || refused.is_some() {
        printer.report(&shown);
        return refused.map_or(Ok(Exit::Done), Err);
    }
    printer.note(&shown.text());
    confirm(&cluster.spec, args)?;
    let (founder, mut order) = order(&found, &plan, args)?;
    order.uploaded = upload(&cluster, &plan, printer)?.max(Some(plan.held));
    let _: quorate_agent::recover::RecoveryNow = cluster.order(&founder, "/v1/recover", &order)?;
    follow(&cluster, &founder, &order, args.wait, printer)
}

/// What would be done: from whatever reaches furthest, or from what was named.
fn plan(spec: &Spec, found: &Survey, args: &Args) -> Result<Recovery, Fault> {
    let said = Said {
        dead: &args.confirm_dead,
        fenced: &args.fenced,
        passed_over: &args.pass_over,
        without_store: args.without_store,
        point: args.point(),
    };
    let best = plan_recovery(spec, &found.rows, &found.store, found.evidence(), said);
    let Some(from) = &args.from else { return Ok(best) };
    // Whether it may be done at all is decided by all that is left.
    if best.halt.as_ref().is_some_and(|halt| halt.halt.code != Code::RecoverNothing) {
        return Ok(best);
    }
    let only = |row: &SurveyRow| match &row.seen {
        RowSeen::Holds(survivor) if row.node != *from => {
            let seen = RowSeen::Blank { generation: survivor.newest };
            SurveyRow { node: row.node.clone(), seen, serves: row.serves }
        }
        _ => row.clone(),
    };
    let rows: Vec<SurveyRow> = found.rows.iter().map(only).collect();
    let store = if from == "backup" { &found.store } else { &StoreNewest::NotDeclared };
    let mut plan = plan_recovery(spec, &rows, store, found.evidence(), said);
    let not_chosen = best.source.filter(|best| plan.source.as_ref() != Some(best));
    plan.loses.extend(not_chosen.map(|source| format!("what was not chosen: {source} reaches furthest")));
    Ok(plan)
}

fn refusal(halt: &ChangeHalt) -> Fault {
    Fault::new(halt.halt.code, format!("nothing was done: {}", halt.halt.why)).hint(halt.halt.way_out.clone())
}

fn confirm(spec: &Spec, args: &Args) -> Result<(), Fault> {
    if args.yes {
        return Ok(());
    }
    let not_asked = |why: &str| {
        Fault::new(Code::RecoverNotAsked, format!("nothing was done: {why}"))
            .hint("type the cluster's name on a terminal, or add `--yes`")
    };
    let terminal = Terminal::open().map_err(|error| not_asked("there is no terminal to ask on").caused_by(error))?;
    let typed = terminal.ask(&format!("type the name of the cluster (`{}`) to recover it: ", spec.token))?;
    match typed.trim() == spec.token {
        true => Ok(()),
        false => Err(not_asked("another name was typed")),
    }
}

/// Has nodes upload what waits in their spools, so that the backup has it. Returns the last revision of it.
fn upload(cluster: &Cluster, plan: &Recovery, printer: &mut Printer) -> Result<Option<u64>, Fault> {
    let mut uploaded = None;
    let mut nodes: Vec<&str> = Vec::new();
    for step in &plan.steps {
        let RecoverStep::Upload { node, last, .. } = step else { continue };
        uploaded = uploaded.max(Some(*last));
        if !nodes.contains(&node.as_str()) {
            nodes.push(node);
        }
    }
    for node in nodes {
        printer.note(&format!("`{node}` uploads what waits in its spool"));
        let _: Uploaded = cluster.order(node, "/v1/spool", &())?;
    }
    Ok(uploaded)
}

/// The order for the node that begins.
fn order(found: &Survey, plan: &Recovery, args: &Args) -> Result<(String, Order), Fault> {
    let nothing = || Fault::new(Code::RecoverNothing, "there is nothing to recover from");
    let (founder, source) = match plan.source.clone().ok_or_else(nothing)? {
        Source::Survivor { node, .. } => {
            let standing = found.standing(&node).ok_or_else(nothing)?;
            let at_least = match &found.store {
                // Named by a person: it is wanted whatever the backup has.
                _ if args.from.is_some() => None,
                // A backup of another cluster says nothing about this one.
                StoreNewest::Newest { cluster: Some(other), .. } if *other != standing.cluster => None,
                store => extend(store, &found.spools).map(|extended| extended.revision),
            };
            (node, OrderSource::Data { term: standing.term, index: standing.index, at_least })
        }
        Source::Backup { node, revision } => match args.point() {
            Some(point) => (node, OrderSource::Point(point)),
            None => (node, OrderSource::Backup { revision }),
        },
    };
    let joining = found.rows.iter().filter(|row| joins(row));
    let rejoin = joining.map(|row| row.node.clone()).filter(|node| *node != founder).collect();
    let order = Order {
        generation: plan.generation,
        nonce: fresh_nonce(),
        role: Role::Begin(source),
        rejoin,
        asked_by: "an operator".to_owned(),
        fenced: args.fenced.clone(),
        passed_over: args.pass_over.clone(),
        probes: found.probes.clone(),
        watches: found.watches.clone(),
        uploaded: None,
        above: Some(found.above),
        claimed: found.has_store && !args.without_store,
        without_store: args.without_store,
        who: Some(Who::us(std::env::var("SUDO_USER").ok())),
    };
    Ok((founder, order))
}
