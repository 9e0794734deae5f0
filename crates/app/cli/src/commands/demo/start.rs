//! `quorate demo start`: makes what the agents need, starts those that do not run, waits, and shows that it works.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use quorate_etcd::binary::{Binary, Places};
use quorate_faults::{Code, Exit, Fault};
use quorate_host::process::Started;

use super::health::{self, Health};
use super::members::{self, Member};
use super::report::{self, DemoReport, State, Write};
use super::state::{self, Demo};
use super::{StartArgs, log, on_runtime};
use crate::printer::Printer;

const DEFAULT_BASE_PORT: u16 = 23790;
const DEFAULT_WAIT: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(100);
/// How long an agent takes at most to check again what it refused.
const BETWEEN_CHECKS: Duration = Duration::from_secs(3);

/// Brings the demo up.
pub(super) fn run(dir: &Path, flags: &StartArgs, printer: &mut Printer) -> Result<Exit, Fault> {
    let mut etcd = None;
    if Demo::open(dir)?.is_none() {
        // Before anything is made: without etcd and ports there is nothing to show.
        etcd = Some(find_etcd(flags)?);
        let hint = "choose twelve free ports with `--base-port`, for example `quorate demo --base-port 24790`";
        members::refuse_busy_ports(state::seats(dir, base_port(flags)).iter().map(|seat| (seat, false)), hint)?;
    }
    let _lock = state::enter(dir)?;
    let demo = match Demo::open(dir)? {
        Some(demo) => demo,
        None => found(dir, flags)?,
    };
    refuse_other_port(&demo, flags)?;

    let mut members = observe_decided(&demo)?;
    // An agent checks again what it has refused for good when it is restarted.
    let refused: Vec<&Member> = members.iter().filter(|member| member.has_refused()).collect();
    for member in &refused {
        members::stop(&demo, member)?;
    }
    if !refused.is_empty() {
        members = Member::observe_all(&demo)?;
    }
    let missing: Vec<&Member> = members.iter().filter(|member| member.agent().is_none()).collect();
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

/// Observes every member. An agent between two checks of what it refuses reports neither etcd nor a refusal: it gets a moment to report one of
/// them.
fn observe_decided(demo: &Demo) -> Result<Vec<Member>, Fault> {
    let deadline = Instant::now() + BETWEEN_CHECKS;
    loop {
        let members = Member::observe_all(demo)?;
        if Instant::now() >= deadline || !members.iter().any(|member| member.is_idle() && !member.has_refused()) {
            return Ok(members);
        }
        std::thread::sleep(PAUSE);
    }
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
    members::refuse_busy_ports(missing.iter().map(|member| (&member.seat, member.etcd().is_some())), &hint)?;
    let names = missing.iter().map(|member| member.seat.name).collect::<Vec<_>>().join(", ");
    if state == State::Founded {
        printer.note(&format!("making certificates and cluster.yaml in {}", demo.shown.display()));
    }
    members::prepare(demo, missing, &etcd.path)?;
    printer.note(&format!("starting the agents of {names}, with etcd {}", etcd.version));
    missing.iter().map(|member| Ok((member.seat.name, members::start(demo, &member.seat)?))).collect()
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
        let members = Member::observe_all(demo)?;
        let sick: Vec<(&Member, String)> = members
            .iter()
            .zip(&health)
            .filter_map(|(member, health)| report::complaint(member, health).map(|why| (member, why)))
            .collect();
        if sick.is_empty() {
            return Ok(health);
        }
        refuse_ended(demo, started)?;
        refuse_refusal(demo, &sick)?;
        let names: Vec<&str> = sick.iter().map(|(member, _)| member.seat.name).collect();
        progress.say(&format!("waiting for {} to become healthy", names.join(", ")));
        if Instant::now() >= deadline {
            return Err(not_healthy(demo, &sick, limit));
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Ends the wait early when an agent that was just started has ended.
fn refuse_ended(demo: &Demo, started: &mut BTreeMap<&'static str, Started>) -> Result<(), Fault> {
    for seat in &demo.seats {
        let Some(process) = started.get_mut(seat.name) else { continue };
        if let Ok(Some(status)) = process.ended() {
            let what = format!("the agent of `{}` ended right after its start ({status})", seat.name);
            return Err(with_log(Fault::new(Code::DemoNotHealthy, what), demo, seat));
        }
    }
    Ok(())
}

/// An agent that waits for a person ends the wait too.
fn refuse_refusal(demo: &Demo, sick: &[(&Member, String)]) -> Result<(), Fault> {
    let refused = sick.iter().find(|(member, _)| member.has_refused());
    let Some((member, why)) = refused else { return Ok(()) };
    let fault = Fault::new(Code::DemoNotHealthy, format!("the agent of `{}` does not go on: {why}", member.seat.name));
    Err(match &member.status.way_out {
        Some(way_out) => fault.hint(way_out),
        None => with_log(fault, demo, &member.seat),
    })
}

fn not_healthy(demo: &Demo, sick: &[(&Member, String)], limit: Duration) -> Fault {
    let names: Vec<String> = sick.iter().map(|(member, why)| format!("`{}` ({why})", member.seat.name)).collect();
    let fault = Fault::new(
        Code::DemoNotHealthy,
        format!("not healthy within {}: {}", crate::render::duration(limit), names.join(", ")),
    );
    match sick.first() {
        Some((first, _)) => with_log(fault, demo, &first.seat),
        None => fault,
    }
}

fn with_log(fault: Fault, demo: &Demo, seat: &state::Seat) -> Fault {
    let words = log::last_words(&seat.log());
    let path = demo.shown_log(seat);
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
