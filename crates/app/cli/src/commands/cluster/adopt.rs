//! `quorate cluster adopt`: takes over a member that others made, stopped or running.

use quorate_agent::turn::{Adopted, adopt_member};
use quorate_faults::{Exit, Fault};

use crate::commands::run::{NodeArgs, runtime};
use crate::printer::Printer;
use crate::render::{Page, Report};

/// Flags of `cluster adopt`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  quorate cluster adopt --config cluster.yaml --name n1

The data must be the declared member: its name, its peer URLs and its cluster's members
are compared with the file. Neither data nor etcd is touched. An etcd that runs goes on
as it is: `quorate run` tends it without a restart, and its next start is the agent's.")]
pub(crate) struct Args {
    #[command(flatten)]
    node: NodeArgs,
}

/// Adopts it.
pub(crate) fn run(args: &Args, printer: &mut Printer) -> Result<Exit, Fault> {
    let node = args.node.node(printer)?;
    let adopted = runtime()?.block_on(adopt_member(&node))?;
    printer.report(&adopted);
    Ok(Exit::Done)
}

impl Report for Adopted {
    fn render(&self, page: &mut Page) {
        let what = if self.already { "was this node's already" } else { "is this node's now" };
        page.line(format!("member {} of cluster {} {what}", self.member_id, self.cluster_id));
        let Some(pid) = self.tended else {
            match &self.not_tended {
                None => page.line("`quorate run` starts it"),
                Some(why) => {
                    page.line(format!("its etcd cannot be taken over while it runs: {why}"));
                    page.line("it goes on as it is; stop it, and `quorate run` starts it under the agent");
                }
            }
            return;
        };
        page.line(format!("its etcd (process {pid}) goes on as it is; `quorate run` tends it without a restart"));
        page.line("until its next start its log is not kept, and nobody can record how it ends");
        if let Some(unit) = &self.unit {
            page.line(format!("systemd runs it as `{unit}`: disable that unit, or it will be started twice"));
        }
        if self.differences.is_empty() {
            return;
        }
        page.gap();
        page.line("it is not started again for that; its next start, or the next file that is applied, changes what it runs with:");
        for difference in &self.differences {
            let show = |value: &Option<String>| value.clone().unwrap_or_else(|| "etcd's default".to_owned());
            page.line(format!("  {}: {}, then {}", difference.key, show(&difference.runs), show(&difference.file)));
        }
    }
}
