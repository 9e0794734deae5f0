//! What a declared process, or a command of it, is started with: its shim's orders, and its box.
//!
//! **Invariant:** the process, its hooks and its health check have the same box, but for the program.

use std::path::{Path, PathBuf};
use std::time::Duration;

use quorate_etcd_formats::hex::hex;
use quorate_faults::{Code, Fault};
use quorate_host::durable::{Access, Disk, RealDisk};
use quorate_host::logs::Rotation;
use quorate_host::owners;
use quorate_host::sandbox::known_machine;
use quorate_host::shim::{Rung, Send, ShimSpec};
use quorate_plan::boxes::{BoxPlan, BoxSpec, Level, Part, Ports, plan_box};
use quorate_plan::spec::{Check, ProcessSpec, ProcessStop, VolumeAccess, for_member};
use sha2::{Digest, Sha256};

use crate::turn::{Node, usual_level};

/// A program looks for others there unless its declaration says otherwise.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The log of a hook or a health check: one file of this size, and one before it.
const COMMAND_LOG_BYTES: u64 = 1 << 20;

/// The processes that are declared for this member, with its name filled in.
pub(super) fn declared(node: &Node) -> Vec<ProcessSpec> {
    let here = node.spec.processes.iter().filter(|process| process.runs_at(node.name()));
    here.map(|process| filled(process.clone(), node.name())).collect()
}

fn filled(mut process: ProcessSpec, member: &str) -> ProcessSpec {
    let fill = |text: &mut String| *text = for_member(text, member);
    fill(&mut process.executable);
    process.args.iter_mut().for_each(fill);
    process.env.iter_mut().chain(&mut process.env_files).for_each(|(_, value)| fill(value));
    process.volumes.iter_mut().for_each(|volume| fill(&mut volume.path));
    let hooks = &mut process.hooks;
    [&mut hooks.pre_start, &mut hooks.post_start, &mut hooks.pre_stop].into_iter().flatten().for_each(fill);
    if let Some(health) = &mut process.health {
        match &mut health.check {
            Check::Exec(command) => command.iter_mut().for_each(fill),
            Check::Tcp(place) => fill(place),
            Check::Http(url) => fill(url),
        }
    }
    process
}

/// The hash of a declaration: another one is another process.
pub(super) fn hash(process: &ProcessSpec) -> String {
    // Nothing in it can fail to be written.
    hex(&Sha256::digest(serde_json::to_vec(process).unwrap_or_default()))
}

/// The orders for the shim of the process itself.
pub(super) fn orders(process: &ProcessSpec, dir: &Path) -> ShimSpec {
    let (program, args) = (process.executable.clone(), process.args.clone());
    with_command(process, dir, &process.name, program, args, ladder(&process.stop))
}

/// The orders for a command that belongs to it. It has no time of its own to end in.
pub(super) fn command_orders(process: &ProcessSpec, dir: &Path, which: &str, command: &[String]) -> ShimSpec {
    let (program, args) = (command.first().cloned().unwrap_or_default(), command.iter().skip(1).cloned().collect());
    let ladder = vec![rung(Send::Kill, Duration::from_secs(10))];
    let mut orders = with_command(process, dir, &format!("{}-{which}", process.name), program, args, ladder);
    // It says little, and is not to cost as much disk as the process again.
    orders.rotation.bytes_max = orders.rotation.bytes_max.min(COMMAND_LOG_BYTES);
    orders.rotation.keep = orders.rotation.keep.min(1);
    orders
}

fn with_command(
    process: &ProcessSpec,
    dir: &Path,
    name: &str,
    program: String,
    args: Vec<String>,
    ladder: Vec<Rung>,
) -> ShimSpec {
    let logs = &process.logs;
    let mut env = process.env.clone();
    if !env.iter().chain(&process.env_files).any(|(name, _)| name == "PATH") {
        env.push(("PATH".to_owned(), PATH.to_owned()));
    }
    ShimSpec {
        name: name.to_owned(),
        program: PathBuf::from(program),
        args,
        env,
        env_files: process.env_files.iter().map(|(name, path)| (name.clone(), PathBuf::from(path))).collect(),
        dir: PathBuf::from("/"),
        log_dir: dir.join("logs"),
        rotation: Rotation {
            bytes_max: logs.max_size,
            age_max_s: (logs.max_age / logs.max_files.max(1)).as_secs().max(1),
            // Beside the one that is being written.
            keep: logs.max_files.saturating_sub(1),
        },
        config_hash: hash(process),
        etcd_version: String::new(),
        stopping_words: Vec::new(),
        kept_level: None,
        ladder,
    }
}

/// The steps of a stop.
pub(super) fn ladder(stop: &ProcessStop) -> Vec<Rung> {
    let mut rungs = vec![rung(Send::Term, stop.term_timeout)];
    if !stop.dump_timeout.is_zero() {
        rungs.push(rung(Send::Quit, stop.dump_timeout));
    }
    rungs.push(rung(Send::Kill, Duration::from_secs(10)));
    rungs
}

fn rung(send: Send, wait: Duration) -> Rung {
    Rung { send, wait_ms: u64::try_from(wait.as_millis()).unwrap_or(u64::MAX) }
}

/// The box, with what it sees made where that was asked for. `None`: no box is asked for.
pub(super) fn ensure_box(process: &ProcessSpec) -> Result<Option<BoxPlan>, Fault> {
    let level = process.level.unwrap_or_else(usual_level);
    if level == Level::Off {
        return Ok(None);
    }
    let paths = |access: VolumeAccess| {
        let some = process.volumes.iter().filter(move |volume| volume.access == access);
        some.map(|volume| volume.path.clone()).collect::<Vec<_>>()
    };
    let spec = BoxSpec {
        level,
        user: process.user.clone(),
        reads: paths(VolumeAccess::Read),
        writes: paths(VolumeAccess::Write),
        execs: paths(VolumeAccess::Execute),
        ports: Ports { bind: process.ports.bind.clone(), connect: process.ports.connect.clone(), connect_any: false },
        syscalls: process.syscalls.syscalls(),
        limits: process.limits.limits(),
        capabilities: process.capabilities.clone(),
        escapes: process.escapes.clone(),
    };
    let plan = plan_box(&spec, &known_machine()).map_err(|why| {
        let parts = why.parts.iter().map(|(part, _)| part.name()).collect::<Vec<_>>().join(", ");
        let whys = why.parts.iter().map(|(part, why)| format!("{}: {why}", part.name())).collect::<Vec<_>>();
        Fault::new(Code::BoxRefused, format!("a strict box cannot be had here; it lacks: {parts}"))
            .hint(format!("to ask for less, write `box: basic` for `{}` in the cluster file", process.name))
            .caused_by(whys.join("; "))
    })?;
    ensure_volumes(process, &plan)?;
    Ok(Some(plan))
}

fn ensure_volumes(process: &ProcessSpec, plan: &BoxPlan) -> Result<(), Fault> {
    let missing = process.volumes.iter().filter(|volume| volume.create && !Path::new(&volume.path).exists());
    for volume in missing {
        let user = plan.spec.user.as_deref().filter(|_| plan.has(Part::User));
        let owner = user.map(owners::find_user).transpose()?;
        RealDisk.create_dir(Path::new(&volume.path), Access { mode: 0o700, owner })?;
    }
    Ok(())
}
