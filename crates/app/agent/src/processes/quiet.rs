//! Stops processes that nobody keeps: those that are no longer declared, and all of them where no agent runs.

use std::path::{Path, PathBuf};
use std::time::Duration;

use quorate_faults::{Code, Fault};
use quorate_host::shim::{self, Adoption, Ended, Rung, StopOrder};
use quorate_host::state::StateDir;
use quorate_plan::processes::stop_waves;
use quorate_plan::spec::ProcessSpec;
use tracing::{info, warn};

use super::{launch, place};
use crate::turn::{Node, end_words};

/// How long an end may take to be recorded once the program is gone.
const RECORD_MS: u64 = 10_000;

/// Stops what runs in the state dir of a process. `None`: nothing does. Says how it ended.
pub(super) fn stop_one(dir: &Path, asked_by: &str, ladder: Vec<Rung>) -> Result<Option<String>, Fault> {
    let state = StateDir::open(dir)?;
    let mut running = match shim::adopt(&state)? {
        Adoption::Running(running) => running,
        Adoption::Gone(_) | Adoption::Lost(_) | Adoption::None => return Ok(None),
        Adoption::Stranger(why) => {
            let attempt = format!("cannot stop `{}`: something runs that was not started here: {why}", name_of(dir));
            return Err(Fault::new(Code::StrangerRuns, attempt).hint("end it yourself if it should not be there"));
        }
    };
    let limit = ladder.iter().map(|rung| rung.wait_ms).sum::<u64>() + RECORD_MS;
    running.stop(&StopOrder { asked_by: asked_by.to_owned(), ladder, last_revision: None })?;
    match running.wait(Duration::from_millis(limit))? {
        Some(Ended::Record(record)) => Ok(Some(end_words(&record))),
        Some(Ended::NoRecord(why)) => Ok(Some(format!("ended, and it is not recorded how: {why}"))),
        None => Err(Fault::new(
            Code::NotEnding,
            format!("`{}` (process {}) does not end", name_of(dir), running.child().pid),
        )
        .hint("see `quorate explain Q0906`")),
    }
}

/// Stops what earlier cluster files declared and this one does not.
pub(super) async fn stop_undeclared(place: PathBuf, declared: Vec<String>) {
    let left = move || {
        for dir in dirs(&place).into_iter().filter(|dir| !declared.contains(&name_of(dir))) {
            match stop_one(&dir, "the agent: it is not declared any more", Rung::usual()) {
                Ok(None) => {}
                Ok(Some(how)) => info!(process = name_of(&dir), "it is not declared any more, and {how}"),
                Err(fault) => warn!(process = name_of(&dir), code = %fault.code(), "it is not declared, and: {fault}"),
            }
        }
    };
    let _ = tokio::task::spawn_blocking(left).await;
}

/// Stops all processes of a member that no agent keeps. Says of each how it ended.
pub(crate) fn stop_alone(node: &Node, asked_by: &str) -> Result<Vec<String>, Fault> {
    let declared = launch::declared(node);
    let mut names: Vec<String> = stop_waves(&declared).into_iter().flatten().collect();
    let more =
        dirs(&place(node)).iter().map(|dir| name_of(dir)).filter(|name| !names.contains(name)).collect::<Vec<_>>();
    names.extend(more);
    let mut told = Vec::new();
    for name in names {
        let dir = place(node).join(&name);
        let find = |process: &&ProcessSpec| process.name == name;
        let ladder = declared.iter().find(find).map_or_else(Rung::usual, |process| launch::ladder(&process.stop));
        // Looking must not make it.
        if dir.is_dir()
            && let Some(how) = stop_one(&dir, asked_by, ladder)?
        {
            told.push(format!("`{name}` {how}"));
        }
    }
    Ok(told)
}

fn dirs(place: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(place).into_iter().flatten().flatten();
    let mut dirs: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
    dirs.sort();
    dirs
}

fn name_of(dir: &Path) -> String {
    dir.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}
