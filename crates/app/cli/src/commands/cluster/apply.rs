//! `quorate cluster apply`: brings a living cluster to what a file declares: what was approved, or nothing.

use std::path::PathBuf;

use quorate_faults::{Exit, Fault};

use super::operate::{ChangeArgs, Living, PlanShown, confirm, still_approved};
use crate::printer::Printer;

/// Flags of `cluster apply`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  quorate cluster plan  new.yaml               look first: steps, proofs, hash
  quorate cluster apply new.yaml --plan 5f1c09ab
  quorate cluster apply new.yaml --yes --wait 30m

The file is checked, every node is asked, and the plan is shown. Then every agent gets the file
in the place of the one that it has, which is kept, and the agents act by themselves: one change
at a time, each proven. The command follows them. Killed and run again, it goes on. What was
approved by --plan or at the terminal is compared with what is seen before the file is given out,
and once more afterwards.

Exit code 0: the cluster is as declared. 3: not yet, and it says what is waited for. 4: the file
has mistakes. 5: refused, also where the plan is not the approved one.")]
pub(crate) struct Args {
    /// The cluster file
    file: PathBuf,

    #[command(flatten)]
    change: ChangeArgs,
}

/// Plans, asks, distributes and follows.
pub(crate) fn run(args: &Args, printer: &mut Printer) -> Result<Exit, Fault> {
    let living = Living::open(&args.file, args.change.name.as_deref(), printer)?;
    apply(&living, &args.change, printer)
}

/// The same for a file that was made by a command.
pub(crate) fn apply(living: &Living, args: &ChangeArgs, printer: &mut Printer) -> Result<Exit, Fault> {
    let seen = living.look_ahead(true)?;
    if let Some(halt) = seen.plan.halt.as_ref().filter(|halt| halt.refused) {
        printer.report(&PlanShown::of(&seen.plan));
        return Err(Fault::new(halt.halt.code, halt.halt.why.clone()).hint(halt.halt.way_out.clone()));
    }
    let seen = seen.if_taken()?;
    // What every node holds was approved before: going on decides nothing.
    if !living.is_begun(&seen) {
        if !printer.is_json() {
            printer.report(&PlanShown::of(&seen.plan));
        }
        // A plan that only waits changes nothing, and asks nobody.
        let asks = !seen.plan.steps.is_empty() || args.plan.is_some();
        if asks && !confirm(args, &seen.plan, printer)? {
            printer.note("nothing was changed");
            return Ok(Exit::Done);
        }
        match (&args.plan, asks && !args.yes) {
            (Some(_), _) => living.distribute_approved(&seen)?,
            // Whoever read it took time for that.
            (None, true) => living.distribute_approved(&still_approved(living, &seen.plan)?)?,
            (None, false) => drop(living.distribute(&seen)?),
        }
    }
    let outcome = living.follow(args.wait, printer)?;
    Ok(outcome.conclude(printer))
}
