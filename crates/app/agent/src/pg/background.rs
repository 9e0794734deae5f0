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
    shim::spawn(&here.program, &state, &orders)?;
    Ok(true)
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
    let mut ended = Vec::new();
    for part in ["agent", "proxy", "pooler", "server"] {
        let state = StateDir::open(&state_of(here, part))?;
        let Some(mut found) = running(&state)? else { continue };
        let order = match part {
            "server" => stop_order(asked_by, StopMode::Fast),
            _ => {
                let rung = |send, wait_ms| shim::Rung { send, wait_ms };
                let ladder = vec![rung(shim::Send::Term, 5_000), rung(shim::Send::Kill, 5_000)];
                StopOrder { asked_by: asked_by.to_owned(), ladder, last_revision: None }
            }
        };
        found.stop(&order)?;
        if found.wait(END_LIMIT)?.is_none() {
            return Err(Fault::new(Code::NotEnding, format!("`{part}` (process {}) does not end", found.child().pid)));
        }
        ended.push(part.to_owned());
    }
    Ok(ended)
}
