//! The flags that describe a box.
//!
//! **Rule:** what is not named is not given; the default level is the highest that the user can have.

use std::path::{Path, PathBuf};

use quorate_faults::{Code, Fault};
use quorate_host::sandbox::{expect_machine, observe_machine};
use quorate_plan::boxes::{
    BoxPlan, BoxSpec, Escape, Level, Limits, List, Machine, Ports, Syscalls, parse_bytes, plan_box,
};

/// A box, as flags.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Box")]
pub(super) struct Flags {
    /// strict: all of it or no start; basic: what can be had; off [default: strict for root, else basic]
    #[arg(long, value_name = "LEVEL", value_parser = level)]
    level: Option<Level>,

    /// It may read this file, or all below this directory
    #[arg(long, value_name = "PATH")]
    read: Vec<PathBuf>,

    /// It may change this file, or all below this directory; never execute from there
    #[arg(long, value_name = "PATH")]
    write: Vec<PathBuf>,

    /// It may execute this file, or all below this directory
    #[arg(long, value_name = "PATH")]
    exec: Vec<PathBuf>,

    /// It may listen on this TCP port
    #[arg(long, value_name = "PORT")]
    bind: Vec<u16>,

    /// It may connect to this TCP port, on any host
    #[arg(long, value_name = "PORT")]
    connect: Vec<u16>,

    /// Memory of all its processes: 512MiB
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    memory: Option<u64>,

    /// Processes and threads [default: 512 in strict]
    #[arg(long, value_name = "COUNT")]
    pids: Option<u32>,

    /// Hundredths of a processor: 150 is one and a half
    #[arg(long, value_name = "PERCENT")]
    cpu: Option<u32>,

    /// Open files of each of its processes
    #[arg(long, value_name = "COUNT")]
    open_files: Option<u64>,

    /// How readily it is ended when memory runs out, -1000 to 1000
    #[arg(long, value_name = "SCORE", allow_negative_numbers = true, value_parser = clap::value_parser!(i32).range(-1000..=1000))]
    oom_score: Option<i32>,

    /// Whom it runs as [default: nobody in strict, else you]
    #[arg(long, value_name = "NAME")]
    user: Option<String>,

    /// Its system calls: etcd or default; with audit (also `etcd,audit`) none is denied and others are logged
    #[arg(long, value_name = "LIST", value_parser = syscalls)]
    seccomp: Option<Syscalls>,

    /// A capability that it keeps, such as NET_BIND_SERVICE
    #[arg(long, value_name = "NAME")]
    capability: Vec<String>,

    /// A hole: all-files, all-syscalls, all-ports or executable-data
    #[arg(long = "unsafe", value_name = "HOLE", value_parser = escape)]
    escapes: Vec<Escape>,
}

fn level(text: &str) -> Result<Level, String> {
    Level::parse(text).ok_or_else(|| "it is strict, basic or off".to_owned())
}

fn bytes(text: &str) -> Result<u64, String> {
    parse_bytes(text).ok_or_else(|| "write it as `512MiB` or `2GiB`".to_owned())
}

fn syscalls(text: &str) -> Result<Syscalls, String> {
    Syscalls::parse(text).ok_or_else(|| "it is etcd, default, audit or `etcd,audit`".to_owned())
}

fn escape(text: &str) -> Result<Escape, String> {
    Escape::parse(text).ok_or_else(|| {
        let names = Escape::ALL.map(Escape::name).join(", ");
        format!("it is one of {names}")
    })
}

impl Flags {
    /// The box that they describe. `list`: the system calls unless they say otherwise.
    pub(super) fn spec(&self, list: List) -> Result<BoxSpec, Fault> {
        Ok(BoxSpec {
            level: self.level.unwrap_or_else(default_level),
            user: self.user.clone(),
            reads: absolute(&self.read)?,
            writes: absolute(&self.write)?,
            execs: absolute(&self.exec)?,
            ports: Ports { bind: self.bind.clone(), connect: self.connect.clone(), ..Ports::default() },
            syscalls: self.seccomp.clone().unwrap_or_else(|| Syscalls::of(list)),
            limits: Limits {
                memory_bytes: self.memory,
                pids: self.pids,
                cpu_percent: self.cpu,
                open_files: self.open_files,
                oom_score: self.oom_score,
            },
            capabilities: self.capability.clone(),
            escapes: self.escapes.clone(),
        })
    }
}

impl Flags {
    /// Whether none of them was given.
    pub(super) fn is_empty(&self) -> Result<bool, Fault> {
        Ok(self.level.is_none() && self.spec(List::Default)? == BoxSpec::new(default_level()))
    }
}

fn default_level() -> Level {
    if rustix::process::geteuid().is_root() { Level::Strict } else { Level::Basic }
}

/// Paths as the box takes them: absolute, and text.
fn absolute(paths: &[PathBuf]) -> Result<Vec<String>, Fault> {
    let one = |path: &PathBuf| {
        let whole =
            std::path::absolute(path).map_err(|error| Fault::io(format!("cannot find `{}`", path.display()), error))?;
        let text = whole.to_str().map(str::to_owned);
        text.ok_or_else(|| Fault::new(Code::BoxPath, format!("cannot put `{}` into the box", path.display())))
    };
    paths.iter().map(one).collect()
}

/// The plan for a box on this machine.
pub(super) fn plan(spec: &BoxSpec) -> Result<(BoxPlan, Machine), Fault> {
    let machine = observe_machine();
    let refused = |why: quorate_plan::boxes::Refused| {
        let parts = why.parts.iter().map(|(part, _)| part.name()).collect::<Vec<_>>().join(", ");
        let whys = why.parts.iter().map(|(part, why)| format!("{}: {why}", part.name()));
        Fault::new(Code::BoxRefused, format!("a strict box cannot be had here; it lacks: {parts}"))
            .hint("ask for less with `--level basic`, or see `quorate explain Q1100`")
            .caused_by(whys.collect::<Vec<_>>().join("; "))
    };
    Ok((plan_box(spec, &machine).map_err(refused)?, machine))
}

/// The plan for a box that is made at once: a strict one is its own trial, and [`plan`] says why when it fails.
pub(super) fn plan_at_once(spec: &BoxSpec) -> Result<BoxPlan, Fault> {
    if spec.level == Level::Strict
        && let Ok(plan) = plan_box(spec, &expect_machine())
    {
        return Ok(plan);
    }
    plan(spec).map(|(plan, _)| plan)
}

/// Finds a program as a shell does.
pub(super) fn find_program(name: &Path) -> Result<PathBuf, Fault> {
    if name.components().count() > 1 || name.is_absolute() {
        return std::path::absolute(name)
            .map_err(|error| Fault::io(format!("cannot find `{}`", name.display()), error));
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|dir| dir.join(name)).find(|file| file.is_file()).ok_or_else(|| {
        Fault::new(Code::NotExecuted, format!("there is no program `{}` on the PATH", name.display()))
            .hint("give its path")
    })
}
