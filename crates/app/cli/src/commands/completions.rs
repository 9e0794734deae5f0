//! `quorate completions`: a completion script for a shell.

use clap::CommandFactory;
use clap_complete::Shell;
use quorate_faults::{Exit, Fault};
use serde::Serialize;

use crate::args::Cli;
use crate::printer::Printer;
use crate::render::{Page, Report};

/// Flags of `completions`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  quorate completions bash > ~/.local/share/bash-completion/completions/quorate
  quorate completions zsh > ~/.zfunc/_quorate
  quorate completions fish > ~/.config/fish/completions/quorate.fish")]
pub(crate) struct Args {
    /// The shell to complete in
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

#[derive(Serialize)]
struct Script {
    shell: String,
    script: String,
}

impl Report for Script {
    fn render(&self, page: &mut Page) {
        page.line(self.script.trim_end());
    }
}

/// Prints the script.
pub(crate) fn run(args: &Args, printer: &mut Printer) -> Result<Exit, Fault> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "quorate", &mut script);
    printer.report(&Script { shell: args.shell.to_string(), script: String::from_utf8_lossy(&script).into_owned() });
    Ok(Exit::Done)
}
