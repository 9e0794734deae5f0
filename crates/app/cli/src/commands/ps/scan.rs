//! Finds the processes that agents of this machine keep, by their state dirs, and the one that a name stands for.
//!
//! **Invariant:** a dir that may not be looked into is a fault, never an empty list; looking makes nothing.

use std::io;
use std::path::{Path, PathBuf};

use quorate_agent::cluster_file::{self, DEFAULT_STATE};
use quorate_agent::turn::{self, ProcessNow, Status};
use quorate_faults::{Code, Fault};
use quorate_host::process::Identity;
use quorate_host::sandbox::Held;
use quorate_host::shim::{self, Adoption};
use quorate_host::state::StateDir;
use quorate_plan::roster::nearest;

/// Any of these makes a dir one of a process.
const MARKS: [&str; 5] = ["shim.json", "running", "exit-record", "agent.lock", "ledger"];

/// Where to look.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct Place {
    /// The cluster file
    #[arg(long, value_name = "FILE", env = "QUORATE_CONFIG")]
    pub(crate) config: Option<PathBuf>,

    /// The member's name [default: every one on this machine]
    #[arg(long, env = "QUORATE_NAME")]
    pub(crate) name: Option<String>,

    /// A member's state dir, or the dir with those of all [default: /var/lib/quorate]
    #[arg(long, value_name = "DIR")]
    pub(crate) state_dir: Option<PathBuf>,
}

/// A process that is kept here.
#[derive(Debug)]
pub(crate) struct Process {
    /// The member that it belongs to.
    pub(crate) member: String,
    /// What it is called.
    pub(crate) name: String,
    /// The member's state dir.
    pub(crate) member_dir: PathBuf,
    /// Its own.
    pub(crate) dir: PathBuf,
    /// What it does.
    pub(crate) now: Now,
    /// What the member's agent says, where one runs.
    pub(crate) agent: Option<Status>,
    /// There is an agent, and it does not answer.
    pub(crate) silent: bool,
}

/// What a process does.
#[derive(Debug)]
pub(crate) enum Now {
    /// It runs.
    Running { identity: Identity, started_ms: u64, held: Option<Box<Held>> },
    /// It does not, and why.
    Ended { why: String, since_ms: u64, last_end: Option<String> },
    /// It could not be found out.
    Unknown(Fault),
}

impl Process {
    /// What its agent says of it, where it is one beside etcd.
    pub(crate) fn declared(&self) -> Option<&ProcessNow> {
        let rows = self.agent.as_ref().filter(|_| self.dir != self.member_dir)?;
        rows.processes.iter().find(|row| row.name == self.name)
    }

    /// What it was boxed with, if it runs in a box.
    pub(crate) fn held(&self) -> Option<&Held> {
        match &self.now {
            Now::Running { held, .. } => held.as_deref(),
            Now::Ended { .. } | Now::Unknown(_) => None,
        }
    }
}

impl Place {
    /// Everything that is kept.
    pub(crate) fn processes(&self) -> Result<Vec<Process>, Fault> {
        let mut found = Vec::new();
        for (member, dir) in self.members()? {
            let asked = turn::ask_status(&dir);
            let silent = asked.is_err();
            let agent = asked.ok().flatten();
            let mut dirs: Vec<PathBuf> = has_etcd(&dir).then(|| dir.clone()).into_iter().collect();
            for inner in ["processes", "pg"] {
                dirs.extend(below(&dir.join(inner), true)?.into_iter().map(|(_, inner)| inner));
            }
            for inner in dirs {
                found.push(Process { agent: agent.clone(), silent, ..look(&member, &dir, &inner) });
            }
            // Declared, and never started yet.
            for declared in agent.iter().flat_map(|agent| &agent.processes) {
                let inner = dir.join("processes").join(&declared.name);
                let is_it = |process: &Process| process.member == member && process.name == declared.name;
                if !found.iter().any(is_it) {
                    let why = declared.cause.clone().unwrap_or_else(|| "it was not started yet".to_owned());
                    let now = Now::Ended { why, since_ms: declared.since_ms, last_end: declared.last_end.clone() };
                    found.push(Process {
                        member: member.clone(),
                        name: declared.name.clone(),
                        member_dir: dir.clone(),
                        dir: inner,
                        now,
                        agent: agent.clone(),
                        silent,
                    });
                }
            }
        }
        found.sort_by(|a, b| (&a.member, &a.name).cmp(&(&b.member, &b.name)));
        Ok(found)
    }

    /// The process that `asked` stands for: `etcd`, or `n1/etcd`.
    pub(crate) fn find(&self, asked: &str) -> Result<Process, Fault> {
        let (member, name) = match asked.split_once('/') {
            Some((member, name)) => (Some(member), name),
            None => (None, asked),
        };
        let all = self.processes()?;
        let known: Vec<String> = all.iter().map(|process| process.name.clone()).collect();
        let members: Vec<String> = all.iter().map(|process| process.member.clone()).collect();
        let is_it = |process: &Process| process.name == name && member.is_none_or(|member| process.member == member);
        let mut fitting: Vec<Process> = all.into_iter().filter(is_it).collect();
        match (fitting.pop(), fitting.is_empty()) {
            (Some(process), true) => Ok(process),
            (None, _) => Err(unknown(asked, name, &known, &members)),
            (Some(last), false) => {
                fitting.push(last);
                let choices: Vec<String> = fitting.iter().map(|p| format!("`{}/{}`", p.member, p.name)).collect();
                Err(Fault::new(Code::ProcessAmbiguous, format!("`{asked}` may be {}", choices.join(" or ")))
                    .hint("write one of these, or give --name"))
            }
        }
    }

    /// The same, which must run.
    pub(crate) fn running(&self, asked: &str) -> Result<(Process, Identity), Fault> {
        let process = self.find(asked)?;
        let fault = match process.now {
            Now::Running { ref identity, .. } => {
                let identity = identity.clone();
                return Ok((process, identity));
            }
            Now::Unknown(fault) => return Err(fault),
            Now::Ended { why, .. } => Fault::new(
                Code::ProcessNotRunning,
                format!("`{}/{}` does not run: {why}", process.member, process.name),
            ),
        };
        Err(fault.hint("see `quorate ps`, and `quorate logs` for what it said last"))
    }

    /// Names and state dirs of the members here.
    pub(crate) fn members(&self) -> Result<Vec<(String, PathBuf)>, Fault> {
        let wanted = |name: &str| self.name.as_deref().is_none_or(|wanted| wanted == name);
        let found: Vec<(String, PathBuf)> = match (&self.state_dir, &self.config) {
            (Some(dir), _) if is_member(dir)? => return Ok(vec![(name_of(dir), dir.clone())]),
            (Some(dir), _) => below(dir, false)?,
            (None, Some(config)) => {
                let (spec, _) = cluster_file::read(config)?;
                let mut found = Vec::new();
                let nodes = spec.postgres.iter().flat_map(|pg| &pg.nodes).map(|node| &node.name);
                let hosts = nodes.filter(|name| spec.member(name).is_none());
                for name in spec.members.iter().map(|member| &member.name).chain(hosts) {
                    let dir = PathBuf::from(spec.state_dir_of(name));
                    if is_member(&dir)? || dir.join("pg").is_dir() {
                        found.push((name.clone(), dir));
                    }
                }
                found
            }
            (None, None) => below(&cluster_file::place(DEFAULT_STATE)?, true)?,
        };
        Ok(found.into_iter().filter(|(name, _)| wanted(name)).collect())
    }
}

fn look(member: &str, member_dir: &Path, dir: &Path) -> Process {
    let state = StateDir::open(dir);
    let name = state.as_ref().ok().and_then(shim::program_name).unwrap_or_else(|| usual_name(member_dir, dir));
    let now = match state.and_then(|state| shim::adopt(&state)) {
        Ok(Adoption::Running(running)) => {
            let (identity, held) = match running.inner() {
                // What the pooler's fence keeps in a box is the pooler.
                Some(inner) => (inner.identity, Some(inner.held)),
                None => (running.child().clone(), running.held().cloned().map(Box::new)),
            };
            Now::Running { identity, started_ms: running.started_at_ms(), held }
        }
        Ok(Adoption::Stranger(why)) => Now::Unknown(
            Fault::new(Code::StrangerRuns, format!("something runs that was not started here: {why}"))
                .hint("see `quorate explain Q0974`"),
        ),
        Ok(Adoption::Gone(_) | Adoption::Lost(_) | Adoption::None) => ended(member, dir),
        Err(fault) => Now::Unknown(fault),
    };
    let (member, member_dir, dir) = (member.to_owned(), member_dir.to_owned(), dir.to_owned());
    Process { member, name, member_dir, dir, now, agent: None, silent: false }
}

/// Whether etcd was ever meant to run here: a host of PostgreSQL alone has nothing of it.
fn has_etcd(dir: &Path) -> bool {
    let marks = ["shim.json", "running", "exit-record", "ledger"];
    !dir.join("pg").is_dir() || marks.iter().any(|mark| dir.join(mark).exists())
}

fn usual_name(member_dir: &Path, dir: &Path) -> String {
    if dir == member_dir { "etcd".to_owned() } else { name_of(dir) }
}

fn ended(member: &str, dir: &Path) -> Now {
    match turn::offline_status(member, "", dir) {
        Ok(status) => {
            let why = status.cause.trim_start_matches("no agent runs; ").to_owned();
            Now::Ended { why, since_ms: status.since_ms, last_end: status.last_end }
        }
        Err(fault) => Now::Unknown(fault),
    }
}

fn is_member(dir: &Path) -> Result<bool, Fault> {
    for mark in MARKS {
        match dir.join(mark).symlink_metadata() {
            Ok(_) => return Ok(true),
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {}
            Err(error) => return Err(closed(dir, error)),
        }
    }
    Ok(false)
}

/// The dirs of members below `dir`, which may be missing where it is only a default.
fn below(dir: &Path, may_miss: bool) -> Result<Vec<(String, PathBuf)>, Fault> {
    let entries = match std::fs::read_dir(dir).and_then(Iterator::collect::<io::Result<Vec<_>>>) {
        Ok(entries) => entries,
        Err(error) if may_miss && error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(closed(dir, error)),
    };
    let mut found = Vec::new();
    for path in entries.into_iter().map(|entry| entry.path()).filter(|path| path.is_dir()) {
        if is_member(&path)? {
            found.push((name_of(&path), path));
        }
    }
    found.sort();
    Ok(found)
}

fn name_of(dir: &Path) -> String {
    let dir = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
    dir.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}

fn closed(dir: &Path, error: io::Error) -> Fault {
    let denied = error.kind() == io::ErrorKind::PermissionDenied;
    let fault = Fault::io(format!("cannot look into the state dir `{}`", dir.display()), error);
    if denied { fault.hint("run it as root, or as the user that the agent runs as") } else { fault }
}

fn unknown(asked: &str, name: &str, known: &[String], members: &[String]) -> Fault {
    let fault = Fault::new(Code::ProcessUnknown, format!("no process `{asked}` is kept here"));
    if known.is_empty() {
        return fault.hint("none is; give --config, --state-dir or QUORATE_ROOT if the agent's state is elsewhere");
    }
    let near = nearest(name, known.iter().map(String::as_str)).map(str::to_owned);
    match near.filter(|near| near != name) {
        Some(near) => fault.hint(format!("did you mean `{near}`?")),
        None => {
            let all: Vec<String> = members.iter().zip(known).map(|(m, p)| format!("`{m}/{p}`")).collect();
            fault.hint(format!("there is {}", all.join(", ")))
        }
    }
}
