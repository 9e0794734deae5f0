//! The command line: global flags, nouns and verbs.
//!
//! **Rule:** a command's own flags stand in its own file; every command's help ends with examples.

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use quorate_faults::{Code, Exit, Fault};

use crate::commands::{
    audit, backup, box_, ca, cluster, completions, ctl, data, demo, drain, enter, exec, explain, fence, logs, man,
    peer, pg, pid, plan, ps, run, self_, shell, shim, sidecar, status, stop, trace, wrap,
};
use crate::printer::Printer;

/// Brings clusters of etcd and PostgreSQL to quorum, and keeps them there.
#[derive(Debug, Parser)]
#[command(name = "quorate", version, max_term_width = 100, subcommand_required = true, arg_required_else_help = true)]
#[command(after_help = "\
Examples:
  quorate demo                                 three members on this machine
  quorate run --config cluster.yaml --name n1  keep this machine's member alive
  quorate run --standalone                     a cluster of one, to grow by hand
  quorate cluster recover                      the quorum is lost: the way back
  quorate data inspect /var/lib/etcd           what is in a data dir or snapshot
  quorate explain Q0203                        what a fault code means

Exit codes:
  0 done   1 cannot be met   2 we failed   3 still waiting   4 bad configuration
  5 refused for safety   6 unreachable   64 usage   75 temporary, try again")]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Flags that every command takes.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Output")]
pub(crate) struct Global {
    /// table, or json: one document on stdout
    // The document is the result or `{"error": …}`; warnings stay on stderr as text.
    #[arg(long, global = true, value_enum, default_value_t, value_name = "FORMAT", hide_possible_values = true)]
    pub(crate) output: Output,

    /// auto, always or never; auto honours NO_COLOR
    #[arg(long, global = true, value_enum, default_value_t, value_name = "WHEN", hide_possible_values = true)]
    pub(crate) color: Color,

    /// Only the result, warnings and errors
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,
}

/// The form of a result.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// Text for people.
    #[default]
    Table,
    /// One JSON document.
    Json,
}

/// When to colour.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Color {
    /// On a terminal, unless NO_COLOR is set.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// What can be asked for.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Found, inspect and verify etcd data dirs, offline
    #[command(subcommand)]
    Data(data::Verb),
    /// Backup stores: what is in them, whether it is whole, and clusters restored from them
    #[command(subcommand)]
    Backup(backup::Verb),
    /// Clusters as one file declares them
    #[command(subcommand)]
    Cluster(cluster::Verb),
    /// Authorities and certificates: who may talk to whom
    #[command(subcommand)]
    Ca(ca::Verb),
    /// Clusters by hand: invite a node, join, list, detach
    #[command(subcommand)]
    Peer(peer::Verb),
    /// Groups of PostgreSQL servers that replicate to each other
    #[command(subcommand)]
    Pg(pg::Verb),
    /// The agent: keep one member alive on this machine
    Run(run::Args),
    /// What the agent's next turn would do, and why
    Plan(plan::Args),
    /// What the agent of this machine does
    Status(status::Args),
    /// End the agent of this machine, and etcd with it
    Stop(stop::Args),
    /// Before a stop: hand leadership over, or leave; for BOSH and Kubernetes
    Drain(drain::Args),
    /// Every process that agents of this machine keep, and what it uses
    Ps(ps::Args),
    /// The number of one process, for scripts
    Pid(pid::Args),
    /// The log of a member's etcd: filtered, followed across rotation
    Logs(logs::Args),
    /// Programs in a box: few files, few ports, few system calls, limits
    #[command(subcommand)]
    Box(box_::Verb),
    /// The system calls of a process, for a limited time
    Trace(trace::Args),
    /// A command where a process is, with its rights
    Exec(exec::Args),
    /// A shell where a process is, with its rights
    Shell(shell::Args),
    /// etcdctl with the right certificates and the endpoints that there are now
    Ctl(ctl::Args),
    /// Who ran which privileged command
    Audit(audit::Args),
    /// A three-member etcd cluster on this machine, to try things on
    Demo(demo::Args),
    /// Stand in for Gardener's etcd-wrapper: run etcd beside a sidecar
    Wrap(wrap::Args),
    /// Stand in for Gardener's etcd-backup-restore: validate, restore, back up
    Sidecar(sidecar::Args),
    /// Check this machine before the first start of a node
    #[command(name = "self", subcommand)]
    SelfCheck(self_::Verb),
    /// What a fault code means and what to do about it
    Explain(explain::Args),
    /// A completion script for your shell
    Completions(completions::Args),
    /// Manual pages, one for each command
    Man(man::Args),
    /// The process between the agent and etcd; the agent starts it
    #[command(name = "__shim", hide = true)]
    Shim(shim::Args),
    /// The process between the shim and the pooler; the agent starts it
    #[command(name = "__fence", hide = true)]
    Fence(fence::Args),
    /// The second half of `exec` and `shell`
    #[command(name = "__enter", hide = true)]
    Enter(enter::Args),
}

/// The end of a run that never became a command: help, version, or a command line that was not understood.
pub(crate) struct Stop {
    error: clap::Error,
    global: Global,
}

/// Reads the process's command line.
pub(crate) fn read() -> Result<Cli, Stop> {
    let words: Vec<OsString> = std::env::args_os().collect();
    if let Some(cli) = read_box(&words) {
        return Ok(cli);
    }
    Cli::command()
        .try_get_matches_from(&words)
        .and_then(|matches| Cli::from_arg_matches(&matches))
        .map_err(|error| Stop { error, global: global_flags_in(&words) })
}

/// A command line for boxes alone.
#[derive(Debug, Parser)]
#[command(name = "quorate")]
struct BoxLine {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: BoxCommand,
}

#[derive(Debug, Subcommand)]
enum BoxCommand {
    #[command(subcommand)]
    Box(box_::Verb),
}

/// A box is made in milliseconds, and the tree of all commands takes more than one of them to build; so it is built only if
/// this is not the beginning of a command line for boxes, or one that needs words.
fn read_box(words: &[OsString]) -> Option<Cli> {
    words.get(1).filter(|word| *word == "box")?;
    let BoxLine { global, command: BoxCommand::Box(verb) } = BoxLine::try_parse_from(words).ok()?;
    Some(Cli { global, command: Command::Box(verb) })
}

impl Stop {
    /// Prints what clap has to say and gives the exit code.
    pub(crate) fn conclude(self) -> ExitCode {
        let mut printer = Printer::new(&self.global);
        let text = self.error.render().ansi().to_string();
        let exit = match self.error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
                printer.text(&text);
                Exit::Done
            }
            _ if self.global.output == Output::Json => printer.fault(&self.as_fault()),
            _ => {
                printer.aside(&text);
                Exit::Usage
            }
        };
        match printer.finish() {
            Ok(()) => ExitCode::from(exit as u8),
            Err(fault) => ExitCode::from(printer.fault(&fault) as u8),
        }
    }

    /// The same as a fault, for machines.
    fn as_fault(&self) -> Fault {
        let text = self.error.render().to_string();
        let first = text.split("\n\n").next().unwrap_or_default().trim_start_matches("error: ");
        let message = match self.error.kind() {
            ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => "no command was given".to_owned(),
            _ => first.split_whitespace().collect::<Vec<_>>().join(" "),
        };
        Fault::new(Code::Usage, message).hint("run it with `--help`")
    }
}

/// The output flags of a command line that did not parse, so that the complaint takes the form that was asked for.
fn global_flags_in(words: &[OsString]) -> Global {
    let words: Vec<&str> = words.iter().filter_map(|word| word.to_str()).collect();
    let value = |flag: &str| {
        words.iter().enumerate().find_map(|(at, word)| {
            let rest = word.strip_prefix(flag)?;
            rest.strip_prefix('=').or_else(|| words.get(at + 1).copied().filter(|_| rest.is_empty()))
        })
    };
    Global {
        output: value("--output").and_then(|text| Output::from_str(text, false).ok()).unwrap_or_default(),
        color: value("--color").and_then(|text| Color::from_str(text, false).ok()).unwrap_or_default(),
        quiet: false,
    }
}

/// Reads a duration as people write it: `90s`, `2m`, `1h 30m`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let parsed: jiff::SignedDuration =
        text.parse().map_err(|_| "not a duration; write it as `90s`, `2m` or `1h 30m`".to_owned())?;
    Duration::try_from(parsed).map_err(|_| "a duration cannot be negative".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_ends_its_help_with_examples() {
        fn check(command: &clap::Command) {
            for sub in command.get_subcommands().filter(|sub| sub.get_name() != "help") {
                let after = sub.get_after_help().map(ToString::to_string).unwrap_or_default();
                assert!(after.starts_with("Examples:\n"), "`{}` has no examples", sub.get_name());
                // Prose is wrapped to the terminal; commands are not.
                let commands = after.lines().filter(|line| line.starts_with(' '));
                let widest = commands.map(|line| line.chars().count()).max();
                assert!(widest <= Some(80), "`{}`: an example is too wide", sub.get_name());
                check(sub);
            }
        }
        check(&Cli::command());
    }

    #[test]
    fn durations_are_read_as_people_write_them() {
        assert_eq!(duration("2m"), Ok(Duration::from_secs(120)));
        assert_eq!(duration("1h 30m"), Ok(Duration::from_secs(5400)));
        assert!(duration("soon").is_err());
        assert!(duration("-5s").is_err());
    }

    #[test]
    fn boxes_are_read_by_themselves_as_they_are_among_all() {
        let words = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>();
        for line in [
            "quorate box run -- /bin/true",
            "quorate box run --output json -q --level off -- ls -l",
            "quorate box explain etcd",
        ] {
            let all = Cli::try_parse_from(words(line)).map(|cli| format!("{cli:?}")).expect("a good line");
            assert_eq!(read_box(&words(line)).map(|cli| format!("{cli:?}")), Some(all), "{line}");
        }
        // Help and complaints are left to the whole.
        for line in ["quorate box --help", "quorate box run", "quorate --quiet box run -- ls", "quorate ps"] {
            assert!(read_box(&words(line)).is_none(), "{line}");
        }
    }

    #[test]
    fn output_flags_are_found_in_a_line_that_does_not_parse() {
        let words = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>();
        assert_eq!(global_flags_in(&words("quorate dat --output json")).output, Output::Json);
        assert_eq!(global_flags_in(&words("quorate --output=json dat")).output, Output::Json);
        assert_eq!(global_flags_in(&words("quorate --output xml")).output, Output::Table);
    }
}
