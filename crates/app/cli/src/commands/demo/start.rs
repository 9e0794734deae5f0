//! `quorate demo start`: founds what is not there, starts what does not run, waits, and shows that it works.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use quorate_etcd::binary::{Binary, Places};
use quorate_etcd::init::{self, Request, Target};
use quorate_etcd_formats::founding::Form;
use quorate_faults::{Code, Exit, Fault};
use quorate_host::durable::{Access, Disk, RealDisk};
use quorate_host::process::Started;

use super::health::{self, Health};
use super::members::{self, Member};
use super::report::{DemoReport, State, Write};
use super::state::{self, Demo};
use super::{StartArgs, log, on_runtime};
use crate::printer::Printer;

const DEFAULT_BASE_PORT: u16 = 23790;
const DEFAULT_WAIT: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(100);

/// Brings the demo up.
pub(super) fn run(dir: &Path, flags: &StartArgs, printer: &mut Printer) -> Result<Exit, Fault> {
    let mut etcd = None;
    if Demo::open(dir)?.is_none() {
        // Before anything is made: without etcd and ports there is nothing to show.
        etcd = Some(find_etcd(flags)?);
        let hint = "choose six free ports with `--base-port`, for example `quorate demo --base-port 24790`";
        members::refuse_busy_ports(&state::seats(dir, base_port(flags)), hint)?;
    }
    let _lock = state::enter(dir)?;
    let demo = match Demo::open(dir)? {
        Some(demo) => demo,
        None => found(dir, flags)?,
    };
    refuse_other_port(&demo, flags)?;

    let members = Member::observe_all(&demo)?;
    let missing: Vec<&Member> = members.iter().filter(|member| member.process.is_none()).collect();
    let state = match (!demo.was_started(), missing.len()) {
        (true, _) => State::Founded,
        (false, 0) => State::AlreadyUp,
        (false, 3) => State::Resumed,
        (false, _) => State::Repaired,
    };
    let mut started = BTreeMap::new();
    if !missing.is_empty() {
        let etcd = match etcd.take() {
            Some(etcd) => etcd,
            None => find_etcd(flags)?,
        };
        started = bring_up(&demo, &missing, &etcd, state, printer)?;
    }

    let limit = flags.wait.unwrap_or(DEFAULT_WAIT);
    let (health, writes) = on_runtime(async {
        let health = wait_until_healthy(&demo, &mut started, limit, printer).await?;
        let writes = if state == State::AlreadyUp { Vec::new() } else { write_through_each(&demo).await? };
        Ok((health, writes))
    })?;
    let members = Member::observe_all(&demo)?;
    printer.report(&DemoReport::new(&demo, &members, &health).after_start(state, writes));
    Ok(Exit::Done)
}

fn find_etcd(flags: &StartArgs) -> Result<Binary, Fault> {
    let path = std::env::var_os("PATH");
    let beside_us = std::env::current_exe().ok().and_then(|exe| exe.parent().map(Path::to_owned));
    let near: Vec<PathBuf> = std::env::current_dir().ok().into_iter().chain(beside_us).collect();
    Binary::find(&Places { named: flags.etcd.as_deref(), path: path.as_deref(), near })
}

/// A new demo: settled on paper, nothing else yet.
fn found(dir: &Path, flags: &StartArgs) -> Result<Demo, Fault> {
    state::refuse_strangers(dir)?;
    // Unlike any other demo's, so that members of two of them never take each other for their own.
    let token = format!("quorate-demo-{}", Timestamp::now().as_millisecond());
    Demo::create(dir, base_port(flags), token)
}

fn base_port(flags: &StartArgs) -> u16 {
    flags.base_port.unwrap_or(DEFAULT_BASE_PORT)
}

fn refuse_other_port(demo: &Demo, flags: &StartArgs) -> Result<(), Fault> {
    match flags.base_port {
        Some(port) if port != demo.base_port => {
            let (shown, there) = (demo.shown.display(), demo.base_port);
            Err(Fault::new(
                Code::PortBusy,
                format!("the demo in `{shown}` lives on the ports from {there}, not from {port}"),
            )
            .hint(format!(
                "leave out `--base-port`; or first `{}`; or use another `--dir`",
                demo.command("stop --forget")
            )))
        }
        _ => Ok(()),
    }
}

/// Founds and starts the members that do not run.
fn bring_up(
    demo: &Demo,
    missing: &[&Member],
    etcd: &Binary,
    state: State,
    printer: &mut Printer,
) -> Result<BTreeMap<&'static str, Started>, Fault> {
    let hint = format!(
        "see who listens there with `ss -ltnp`; or set this demo aside with `{}` and give the next one other ports with \
         `--base-port`",
        demo.command("stop --forget")
    );
    members::refuse_busy_ports(missing.iter().map(|member| &member.seat), &hint)?;
    let names: Vec<&str> = missing.iter().map(|member| member.seat.name).collect();
    match state {
        State::Founded => {
            printer.note(&format!("founding {} in {}", names.join(", "), demo.shown.display()));
            found_members(demo, printer)?;
        }
        State::Resumed | State::Repaired | State::AlreadyUp => refuse_lost_data(demo)?,
    }
    printer.note(&format!("starting etcd {} as {}", etcd.version, names.join(", ")));
    missing.iter().map(|member| Ok((member.seat.name, members::start(&member.seat, etcd)?))).collect()
}

/// Makes every member's data dir, by the same code as `quorate data init`.
fn found_members(demo: &Demo, printer: &mut Printer) -> Result<(), Fault> {
    for seat in &demo.seats {
        match RealDisk.create_dir(seat.dir(), Access::mode(0o700)) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return Err(error.into()),
            _ => {}
        }
        let local = demo.founding.member(seat.name);
        let local = local.ok_or_else(|| Fault::new(Code::Internal, format!("`{}` is not in the demo", seat.name)))?;
        let target = Target::new(&seat.data_dir(), None)?;
        let request = Request { founding: &demo.founding, local, form: Form::Any };
        let done = init::ensure_member(&RealDisk, &target, request)?;
        for warning in done.warnings {
            printer.warning(warning.code, &warning.text);
        }
    }
    Ok(())
}

/// A member that once ran and has no data now must not come back empty: it would vote on what it has forgotten.
fn refuse_lost_data(demo: &Demo) -> Result<(), Fault> {
    match demo.seats.iter().find(|seat| !seat.data_dir().exists()) {
        None => Ok(()),
        Some(seat) => Err(Fault::new(
            Code::DataMissingPart,
            format!("the data dir of `{}` is gone: `{}`", seat.name, seat.data_dir().display()),
        )
        .hint(format!("put it back; or set the demo aside with `{}` and start afresh", demo.command("stop --forget")))),
    }
}

async fn wait_until_healthy(
    demo: &Demo,
    started: &mut BTreeMap<&'static str, Started>,
    limit: Duration,
    printer: &mut Printer,
) -> Result<Vec<Health>, Fault> {
    let deadline = Instant::now() + limit;
    let mut progress = printer.progress("waiting for the members", None);
    loop {
        let health = Health::ask_all(demo).await;
        let sick: Vec<usize> = (0..health.len()).filter(|at| !health[*at].is_healthy()).collect();
        if sick.is_empty() {
            return Ok(health);
        }
        let ended = refuse_ended(demo, started);
        let names: Vec<&str> = sick.iter().map(|at| demo.seats[*at].name).collect();
        progress.say(&format!("waiting for {} to become healthy", names.join(", ")));
        ended?;
        if Instant::now() >= deadline {
            return Err(not_healthy(demo, &sick, &health, limit));
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Ends the wait early when a member that was just started has died.
fn refuse_ended(demo: &Demo, started: &mut BTreeMap<&'static str, Started>) -> Result<(), Fault> {
    for seat in &demo.seats {
        let Some(process) = started.get_mut(seat.name) else { continue };
        if let Ok(Some(status)) = process.ended() {
            return Err(with_log(
                Fault::new(
                    Code::DemoNotHealthy,
                    format!("member `{}` ended right after its start ({status})", seat.name),
                ),
                demo,
                seat,
            ));
        }
    }
    Ok(())
}

fn not_healthy(demo: &Demo, sick: &[usize], health: &[Health], limit: Duration) -> Fault {
    let why = |at: &usize| {
        let complaint = health[*at].complaint.as_deref().unwrap_or_default();
        format!("`{}` ({complaint})", demo.seats[*at].name)
    };
    let names: Vec<String> = sick.iter().map(why).collect();
    let fault = Fault::new(
        Code::DemoNotHealthy,
        format!("not healthy within {}: {}", crate::render::duration(limit), names.join(", ")),
    );
    match sick.first() {
        Some(first) => with_log(fault, demo, &demo.seats[*first]),
        None => fault,
    }
}

fn with_log(fault: Fault, demo: &Demo, seat: &state::Seat) -> Fault {
    let path = demo.shown.join(seat.name).join("etcd.log");
    let words = log::last_words(&seat.log());
    let fault = fault.hint(format!("its log is `{}`; `{}` tries again", path.display(), demo.command("start")));
    if words.is_empty() {
        fault
    } else {
        fault.caused_by(format!("the log of `{}` says\n{}", seat.name, words.join("\n")))
    }
}

/// Writes a key through each member and reads it back from the next.
async fn write_through_each(demo: &Demo) -> Result<Vec<Write>, Fault> {
    let mut writes = Vec::new();
    for (at, seat) in demo.seats.iter().enumerate() {
        let reader = &demo.seats[(at + 1) % demo.seats.len()];
        let key = format!("/demo/{}", seat.name);
        let value = format!("written through {} at {:.0}", seat.name, Timestamp::now());
        health::client(seat).await?.put(key.clone(), value.clone()).await?;
        let read = health::client(reader).await?.get(key.clone()).await?;
        if read.as_ref().map(|kv| kv.value.as_slice()) != Some(value.as_bytes()) {
            let what = format!("`{key}`, written through `{}`, does not read back from `{}`", seat.name, reader.name);
            return Err(Fault::new(Code::DemoNotHealthy, what).hint("look at both logs; this must not happen"));
        }
        writes.push(Write { key, value, through: seat.name, read_from: reader.name });
    }
    Ok(writes)
}
