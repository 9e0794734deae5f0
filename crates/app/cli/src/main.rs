//! The one binary: reads the command line, runs one command, says how it went.
//!
//! **Rule:** nothing but this file decides the exit code, and nothing but the printer writes. The shim, which is no command of
//! an operator, is begun before the command line is read.

mod args;
mod commands;
mod errors;
mod logging;
mod markdown;
mod panics;
mod printer;
mod progress;
mod render;
mod wrap;

use std::process::ExitCode;

use printer::Printer;

fn main() -> ExitCode {
    panics::install();
    if let Some(exit) = commands::shim::begin() {
        return exit;
    }
    let (mut printer, outcome) = match args::read() {
        Ok(cli) => {
            let mut printer = Printer::new(&cli.global);
            let outcome = panics::guard(|| commands::run(cli.command, &mut printer));
            (printer, outcome)
        }
        Err(stop) => return stop.conclude(),
    };
    let exit = match outcome {
        Ok(exit) => exit,
        Err(fault) => printer.fault(&fault),
    };
    match printer.finish() {
        Ok(()) => ExitCode::from(printer.passed_on().unwrap_or(exit as u8)),
        Err(fault) => ExitCode::from(printer.fault(&fault) as u8),
    }
}
