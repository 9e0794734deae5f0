//! `quorate cluster upgrade`: brings every member to another release of etcd, one at a time, by changing one word of the file.
//!
//! **Rule:** nothing but `etcd-version` changes; what etcd forbids is refused before anything is touched.

use std::path::PathBuf;
use std::time::Duration;

use quorate_agent::{cluster_file, turn};
use quorate_faults::{Code, Exit, Fault};
use quorate_plan::change::upgrade::{Ask, Release, plan_upgrade, releases};
use quorate_plan::spec::Spec;

use super::operate::{ChangeArgs, Living, PlanShown, confirm};
use super::upgrade_offline;
use crate::printer::Printer;

/// The word of the file that names the release.
const KEY: &str = "etcd-version:";

/// Flags of `cluster upgrade`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  quorate cluster upgrade --check --to 3.7.1 --config cluster.yaml   a dry run
  quorate cluster upgrade --check --to 3.7.1 --data-dir /var/lib/etcd
  quorate cluster upgrade --to 3.5.30 --config cluster.yaml
  quorate cluster upgrade --to 3.5.30 --config cluster.yaml --plan 5f1c09ab
  quorate cluster upgrade --to 3.5.16 --config cluster.yaml     the way back

Releases lie side by side on each node: `etcd-binary: /opt/etcd/{version}/etcd`, and the file's
`etcd-version` says which one runs. Members change one at a time, the leader last, each only
while all others are healthy and, where `backup` is declared, backed up. The first member that
does not come back stops it; the same command with the earlier release is the way back.")]
pub(crate) struct Args {
    /// The release, such as 3.5.30
    #[arg(long, value_name = "VERSION")]
    to: String,

    /// Print what would be done, or why it is refused, and change nothing
    #[arg(long)]
    check: bool,

    /// The cluster file
    #[arg(long, value_name = "FILE", env = "QUORATE_CONFIG", required_unless_present = "data_dir")]
    config: Option<PathBuf>,

    /// Check the data dir of a stopped member instead of a running cluster
    #[arg(long, value_name = "DIR", requires = "check")]
    data_dir: Option<PathBuf>,

    /// The dir of its WAL, if it is a separate one
    #[arg(long, value_name = "DIR", requires = "data_dir")]
    wal_dir: Option<PathBuf>,

    /// Go on although no store of backups is declared
    #[arg(long)]
    without_backup: bool,

    #[command(flatten)]
    change: ChangeArgs,
}

/// Upgrades.
pub(crate) fn run(args: &Args, printer: &mut Printer) -> Result<Exit, Fault> {
    let Some(to) = Release::parse(&args.to) else {
        return Err(Fault::new(Code::Usage, format!("`{}` is not a release", args.to)).hint("write one such as 3.5.30"));
    };
    if let Some(dir) = &args.data_dir {
        return upgrade_offline::check(dir, args.wal_dir.as_deref(), to, printer);
    }
    let Some(config) = &args.config else {
        return Err(Fault::new(Code::Usage, "`--config` is missing").hint("name the cluster file"));
    };
    let text = cluster_file::text(config)?;
    let changed = with_release(&text, &to.to_string(), &config.display().to_string())?;
    let living = Living::of(config, changed, args.change.name.as_deref(), printer)?;
    let seen = living.look_ahead(!args.check)?;
    let ask = Ask { to, without_backup: args.without_backup };
    let plan = plan_upgrade(&seen.view, &living.spec, &ask)
        .map_err(|halt| Fault::new(halt.halt.code, halt.halt.why).hint(halt.halt.way_out))?;
    let seen = seen.if_taken()?;
    if args.check {
        printer.report(&PlanShown::of(&plan));
        return match &plan.halt {
            None => Ok(Exit::Done),
            Some(halt) => Err(Fault::new(halt.halt.code, halt.halt.why.clone()).hint(halt.halt.way_out.clone())),
        };
    }
    if !living.is_begun(&seen) {
        if !printer.is_json() {
            printer.report(&PlanShown::of(&plan));
        }
        if !confirm(&args.change, &plan, printer)? {
            printer.note("nothing was changed");
            return Ok(Exit::Done);
        }
        living.distribute(&seen)?;
    }
    keep(config, &text, &living)?;
    let outcome = living.follow(args.change.wait.max(Duration::from_secs(1)), printer)?;
    if !outcome.done {
        // The earliest that runs: the file may name the new one already.
        let runs = releases(&living.look().view).into_values().chain(releases(&seen.view).into_values()).min();
        let before =
            cluster_file::parse(text.as_bytes(), "the file").ok().and_then(|(spec, _)| spec.agent.etcd_version);
        let back = runs.map(|release| release.to_string()).or(before).unwrap_or_else(|| "RELEASE".to_owned());
        printer.warning(Code::UpgradeStopped, &format!("the way back: `quorate cluster upgrade --to {back}`"));
    }
    Ok(outcome.conclude(printer))
}

/// The operator's own copy of the file follows, unless an agent on this machine has replaced it already.
fn keep(file: &std::path::Path, before: &str, living: &Living) -> Result<(), Fault> {
    if cluster_file::text(file)? == before && living.text != before {
        cluster_file::ensure_replaced(file, living.text.as_bytes(), &turn::stamp())?;
    }
    Ok(())
}

/// The file's text with another release, and nothing else changed.
fn with_release(text: &str, to: &str, shown: &str) -> Result<String, Fault> {
    let cannot = |why: &str| {
        Fault::new(Code::ReleaseUndeclared, format!("cannot change the release in `{shown}`: {why}"))
            .hint("see `quorate explain Q0998`")
    };
    let (before, _) = cluster_file::parse(text.as_bytes(), shown)?;
    if !before.agent.etcd_binary.as_deref().is_some_and(|binary| binary.contains("{version}")) {
        return Err(cannot("`etcd-binary` has no `{version}`"));
    }
    if before.agent.etcd_version.is_none() {
        return Err(cannot("it has no `etcd-version`"));
    }
    // A comment may hold the word as well; what comes of a replacement is compared as a whole.
    let mut from = 0;
    while let Some(found) = text.get(from..).and_then(|rest| rest.find(KEY)) {
        let at = from + found + KEY.len();
        if let Some(changed) = replaced(text, at, to)
            && is_only_release(&before, &changed, to)
        {
            return Ok(changed);
        }
        from = at;
    }
    Err(cannot("the release stands where it cannot be changed alone"))
}

/// Replaces the word that stands at `at`.
fn replaced(text: &str, at: usize, to: &str) -> Option<String> {
    let (head, rest) = text.split_at_checked(at)?;
    let word = rest.trim_start_matches([' ', '\'', '"']);
    let (lead, _) = rest.split_at_checked(rest.len() - word.len())?;
    let end = word.find(|c: char| !c.is_ascii_alphanumeric() && c != '.').unwrap_or(word.len());
    let quote = if lead.contains(['\'', '"']) { "" } else { "'" };
    Some(format!("{head}{lead}{quote}{to}{quote}{}", word.get(end..)?))
}

fn is_only_release(before: &Spec, changed: &str, to: &str) -> bool {
    let Ok((after, _)) = cluster_file::parse(changed.as_bytes(), "") else { return false };
    let mut wanted = before.clone();
    wanted.agent.etcd_version = Some(to.to_owned());
    after == wanted
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(agent: &str) -> String {
        format!("token: t\nplaintext: true\nmembers:\n  - {{name: n1, address: 10.0.0.1}}\nagent: {agent}\n")
    }

    #[test]
    fn one_word_changes() {
        for (agent, wanted) in [
            (
                "{etcd-binary: '/o/{version}/etcd', etcd-version: 3.5.16}",
                "{etcd-binary: '/o/{version}/etcd', etcd-version: '3.5.30'}",
            ),
            (
                "\n  etcd-binary: /o/{version}/etcd\n  # etcd-version: 3.4\n  etcd-version: '3.5.16' # now",
                "\n  etcd-binary: /o/{version}/etcd\n  # etcd-version: 3.4\n  etcd-version: '3.5.30' # now",
            ),
        ] {
            assert_eq!(with_release(&file(agent), "3.5.30", "f").unwrap(), file(wanted));
        }
    }

    #[test]
    fn what_cannot_be_changed_is_said() {
        for agent in [
            "{etcd-version: 3.5.16}",
            "{etcd-binary: '/o/{version}/etcd'}",
            "{etcd-binary: /o/etcd, etcd-version: '3.5'}",
        ] {
            assert_eq!(
                with_release(&file(agent), "3.5.30", "f").unwrap_err().code(),
                Code::ReleaseUndeclared,
                "{agent}"
            );
        }
    }
}
