//! A small program for tests of the box: an attacker, and a keeper of boxes that needs nothing but the host crate.
//!
//! **Rule:** it does no harm where nothing holds it back: it asks for what an attacker would ask for, and undoes or leaves
//! it at that when it gets it.

mod attack;
mod raw;

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use quorate_faults::Fault;
use quorate_host::sandbox::{End, Launch, foreground, observe_machine};
use quorate_host::shim::{ShimSpec, spawn_boxed};
use quorate_host::state::StateDir;
use quorate_plan::boxes::{BoxSpec, plan_box};

/// How it ends when there was no box.
const NO_BOX: u8 = 124;

fn main() -> ExitCode {
    let mut words = std::env::args_os().skip(1);
    let verb = words.next().unwrap_or_default();
    match verb.to_str() {
        Some("attack") => attack::run(&words.collect::<Vec<OsString>>()),
        Some("idle") => loop {
            std::thread::park();
        },
        Some("__shim") => match quorate_host::shim::keep(Path::new(&words.next().unwrap_or_default())) {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::from(2),
        },
        // start FILE: a program in a box below a shim, which goes on after us.
        Some("start") => match start(Path::new(&words.next().unwrap_or_default())) {
            Ok(()) => ExitCode::SUCCESS,
            Err(why) => {
                say(&why);
                ExitCode::from(NO_BOX)
            }
        },
        // keep SPEC PROGRAM ARGS: the same as `quorate box run`, from a file.
        Some("keep") => match keep(Path::new(&words.next().unwrap_or_default()), words.collect()) {
            Ok(End::Code(code)) => ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX)),
            Ok(End::Signal(signal)) => ExitCode::from(u8::try_from(128 + signal).unwrap_or(u8::MAX)),
            Err(why) => {
                say(&why);
                ExitCode::from(NO_BOX)
            }
        },
        _ => ExitCode::from(64),
    }
}

/// What `start` is told.
#[derive(serde::Deserialize)]
struct Start {
    /// The program that is the shim.
    shim: PathBuf,
    state: PathBuf,
    spec: ShimSpec,
    boxed: BoxSpec,
}

fn start(file: &Path) -> Result<(), String> {
    let bytes = std::fs::read(file).map_err(|error| error.to_string())?;
    let start: Start = serde_json::from_slice(&bytes).map_err(|error| error.to_string())?;
    let plan = plan_box(&start.boxed, &observe_machine()).map_err(|refused| format!("refused: {:?}", refused.parts))?;
    let state = StateDir::open(&start.state).map_err(told)?;
    spawn_boxed(&start.shim, &state, &start.spec, Some(plan)).map(drop).map_err(told)
}

fn told(fault: Fault) -> String {
    let cause = std::error::Error::source(&fault).map(ToString::to_string).unwrap_or_default();
    format!("{} {fault}: {cause}", fault.code())
}

fn keep(spec: &Path, command: Vec<OsString>) -> Result<End, String> {
    let bytes = std::fs::read(spec).map_err(|error| error.to_string())?;
    let spec: BoxSpec = serde_json::from_slice(&bytes).map_err(|error| error.to_string())?;
    let plan = plan_box(&spec, &observe_machine()).map_err(|refused| format!("refused: {:?}", refused.parts))?;
    for warning in plan.warnings() {
        say(&format!("warning: {warning}"));
    }
    let program = command.first().map(PathBuf::from).unwrap_or_default();
    let env = std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"PROBE_"));
    let launch = Launch {
        program,
        args: command,
        env: env.collect(),
        dir: PathBuf::from("/"),
        output: None,
        apart: false,
        with_keeper: true,
    };
    foreground(&plan, launch).map_err(told)
}

fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}
