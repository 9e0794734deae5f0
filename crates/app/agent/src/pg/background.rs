//! The agent of a node in the background, below a shim, and the end of all that runs on a node.
//!
//! **Rule:** whatever runs is found by its state dir; what is not ours is left alone.

use std::path::Path;
use std::time::{Duration, Instant};

use quorate_faults::{Code, Fault};
use quorate_host::shim::{self, StopOrder};
use quorate_host::state::{StateDir, StateLock};
use quorate_postgres::server::{StopMode, stop_order};

use super::here::Here;
use super::life::state_of;
use super::proxy::{hash, orders, running};

/// How long a part may take to end: a server writes down all that is in memory.
const END_LIMIT: Duration = Duration::from_secs(90);

/// How long another command may take to start it.
const START_LIMIT: Duration = Duration::from_secs(30);
/// The parts of a node, those first that need the others.
const PARTS: [&str; 3] = ["proxy", "pooler", "server"];

/// Starts the agent of a node in the background, if it does not run. Says whether it was started now.
pub fn ensure_agent(here: &Here, file: &Path) -> Result<bool, Fault> {
    let state = StateDir::open(&state_of(here, "agent"))?;
    // Of two commands at once one starts it, and the other finds it.
    let _lock = lock(&state)?;
    if running(&state)?.is_some() {
        return Ok(false);
    }
    let file = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
    let args = ["pg", "run", "--config"].map(str::to_owned).into_iter();
    let args = args.chain([file.display().to_string(), "--name".to_owned(), here.name().to_owned()]).collect();
    let mut orders = orders("agent", &here.program, args, &state, hash(&["pg agent"]));
    // What it is configured by besides the file.
    orders.env.extend(std::env::var("QUORATE_ROOT").ok().map(|root| ("QUORATE_ROOT".to_owned(), root)));
    match shim::spawn(&here.program, &state, &orders) {
        Ok(_) => Ok(true),
        Err(fault) if fault.code() == Code::EndedAtOnce => Err(ended(here, &state).caused_by(fault)),
        Err(fault) => Err(fault),
    }
}

/// Says that the agent in the background has ended, if it has.
pub fn check_agent(here: &Here) -> Result<(), Fault> {
    let state = StateDir::open(&state_of(here, "agent"))?;
    if running(&state)?.is_some() { Ok(()) } else { Err(ended(here, &state)) }
}

fn ended(here: &Here, state: &StateDir) -> Fault {
    Fault::new(Code::PgAgentEnded, format!("the agent of `{}` ended right after it was started", here.name()))
        .hint(format!("its last words are in `{}`", state.path().join("logs").display()))
}

fn lock(state: &StateDir) -> Result<StateLock, Fault> {
    let deadline = Instant::now() + START_LIMIT;
    loop {
        match state.lock() {
            Err(fault) if fault.code() == Code::StateDirBusy && Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(20));
            }
            taken => return taken,
        }
    }
}

/// Ends all that runs on a node, in the order in which they depend on each other. Returns what was ended.
pub fn stop_all(here: &Here, asked_by: &str) -> Result<Vec<String>, Fault> {
    let mut ended = end_part(here, "agent", asked_by)?;
    // One that is kept by another agent would be brought up again at once.
    let _lock = StateDir::open(&here.state)?.lock().map_err(|fault| match fault.code() {
        Code::StateDirBusy => Fault::new(Code::StateDirBusy, format!("another agent keeps `{}`", here.name()))
            .hint("end that one: `quorate stop`, or SIGTERM to `quorate pg run` first")
            .caused_by(fault),
        _ => fault,
    })?;
    ended.extend(stop_parts(here, asked_by)?);
    Ok(ended)
}

/// The same without an agent in the background.
pub(crate) fn stop_parts(here: &Here, asked_by: &str) -> Result<Vec<String>, Fault> {
    let mut ended = Vec::new();
    for part in PARTS {
        ended.extend(end_part(here, part, asked_by)?);
    }
    Ok(ended)
}

/// Orders the end of all parts at once, and does not wait for it: their shims see to it.
pub(crate) fn order_end(here: &Here, asked_by: &str) -> Result<(), Fault> {
    for part in PARTS {
        let state = StateDir::open(&state_of(here, part))?;
        if let Some(found) = running(&state)? {
            found.stop(&order_of(part, asked_by))?;
        }
    }
    Ok(())
}

fn order_of(part: &str, asked_by: &str) -> StopOrder {
    match part {
        "server" => stop_order(asked_by, StopMode::Fast),
        _ => {
            let rung = |send, wait_ms| shim::Rung { send, wait_ms };
            let ladder = vec![rung(shim::Send::Term, 5_000), rung(shim::Send::Kill, 5_000)];
            StopOrder { asked_by: asked_by.to_owned(), ladder, last_revision: None }
        }
    }
}

pub(super) fn end_part(here: &Here, part: &str, asked_by: &str) -> Result<Vec<String>, Fault> {
    let state = StateDir::open(&state_of(here, part))?;
    let Some(mut found) = running(&state)? else { return Ok(Vec::new()) };
    found.stop(&order_of(part, asked_by))?;
    match found.wait(END_LIMIT)? {
        Some(_) => Ok(vec![part.to_owned()]),
        None => Err(Fault::new(Code::NotEnding, format!("`{part}` (process {}) does not end", found.child().pid))),
    }
}
