//! Programs of a node below their shims, and haproxy among them.

use std::path::Path;
use std::time::Duration;

use quorate_etcd_formats::hex::hex;
use quorate_faults::{Code, Fault};
use quorate_host::durable::{Access, Disk, Owner, RealDisk};
use quorate_host::logs::Rotation;
use quorate_host::shim::{self, Adoption, Rung, Running, Send, ShimSpec, StopOrder};
use quorate_host::state::StateDir;
use quorate_postgres::proxies::{ensure_file, haproxy_states, keep_states};
use rustix::process::{Pid, Signal, kill_process};
use sha2::{Digest, Sha256};

use super::boxed::proxy_box;
use super::here::Here;
use super::life::state_of;

/// How long a proxy or pooler may take to end.
const END_LIMIT: Duration = Duration::from_secs(15);

/// How long haproxy may take to ask every node once; it goes on without an answer, since a node may be away.
const ASKED_LIMIT: Duration = Duration::from_secs(5);

/// The hash of a command: another one is another process.
pub(super) fn hash(parts: &[&str]) -> String {
    hex(&Sha256::digest(parts.join("\0")))
}

/// What a shim is told about a small program.
pub(super) fn orders(name: &str, program: &Path, args: Vec<String>, state: &StateDir, config_hash: String) -> ShimSpec {
    let rung = |send, wait_ms| Rung { send, wait_ms };
    ShimSpec {
        name: name.to_owned(),
        program: program.to_owned(),
        args,
        env: vec![("PATH".to_owned(), "/usr/sbin:/usr/bin:/sbin:/bin".to_owned())],
        env_files: Vec::new(),
        dir: "/".into(),
        log_dir: state.path().join("logs"),
        rotation: Rotation { bytes_max: 16 << 20, age_max_s: 86_400, keep: 3 },
        config_hash,
        etcd_version: String::new(),
        stopping_words: Vec::new(),
        kept_level: None,
        ladder: vec![rung(Send::Term, 5_000), rung(Send::Kill, 5_000)],
    }
}

/// What runs in a state dir and is ours.
pub(super) fn running(state: &StateDir) -> Result<Option<Running>, Fault> {
    match shim::adopt(state)? {
        Adoption::Running(running) => Ok(Some(running)),
        Adoption::Gone(_) | Adoption::Lost(_) | Adoption::None => Ok(None),
        Adoption::Stranger(why) => {
            Err(Fault::new(Code::StrangerRuns, "something runs that was not started here").caused_by(why))
        }
    }
}

/// Ends what runs in a state dir.
pub(super) fn end(mut running: Running, asked_by: &str) -> Result<(), Fault> {
    let ladder = vec![Rung { send: Send::Term, wait_ms: 3_000 }, Rung { send: Send::Kill, wait_ms: 10_000 }];
    running.stop(&StopOrder { asked_by: asked_by.to_owned(), ladder, last_revision: None })?;
    match running.wait(END_LIMIT)? {
        Some(_) => Ok(()),
        None => Err(Fault::new(Code::NotEnding, format!("process {} does not end", running.child().pid))),
    }
}

/// Makes a directory for the programs' user.
pub(super) fn ensure_dir(path: &Path, owner: Option<Owner>) -> Result<(), Fault> {
    match RealDisk.create_dir(path, Access { mode: 0o700, owner }) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// haproxy of this node.
pub(super) fn proxy_state(here: &Here) -> Result<StateDir, Fault> {
    StateDir::open(&state_of(here, "proxy"))
}

/// Brings haproxy to a configuration: started, or told to read it again with the state of its servers kept.
pub(super) fn ensure_proxy(here: &Here, text: &str) -> Result<(), Fault> {
    let owner = here.owner()?;
    let dir = here.run_dir().join("proxy");
    ensure_dir(&dir, owner)?;
    let state = proxy_state(here)?;
    let running = running(&state)?;
    let file = dir.join("haproxy.cfg");
    let ports = format!("{} {}", here.node.write_port, here.node.read_port);
    let wanted = hash(&[&here.pg.proxy_binary, &ports]);
    // The ports of a box are those that it was made with.
    let running = match running {
        Some(running) if running.held().is_some() && running.config_hash() != wanted => {
            end(running, "the agent: its ports are others now")?;
            None
        }
        running => running,
    };
    let told = std::fs::read_to_string(&file).is_ok_and(|there| there == text);
    if let (Some(running), false) = (&running, told) {
        // After a reload all servers would count as up until they are first asked; without their states it works all the same,
        // with a moment of doubt.
        let _ = keep_states(&dir.join("proxy.sock"), &dir.join("proxy.state"), owner);
        ensure_file(&file, text, owner)?;
        let pid = i32::try_from(running.child().pid).ok().and_then(Pid::from_raw);
        let failed =
            |errno: rustix::io::Errno| Fault::io("cannot tell haproxy to read its configuration", errno.into());
        return pid.map_or(Ok(()), |pid| kill_process(pid, Signal::USR2).map_err(failed));
    }
    ensure_file(&file, text, owner)?;
    if !dir.join("proxy.state").exists() {
        ensure_file(&dir.join("proxy.state"), "\n", owner)?;
    }
    if running.is_some() {
        return Ok(());
    }
    // It executes itself again for a reload: by the name that its box knows, which is one without links.
    let named = Path::new(&here.pg.proxy_binary);
    let program = &named.canonicalize().unwrap_or_else(|_| named.to_owned());
    let args = ["-W", "-db", "-f"].map(str::to_owned).into_iter().chain([file.display().to_string()]).collect();
    let orders = orders("haproxy", program, args, &state, wanted);
    shim::spawn_boxed(&here.program, &state, &orders, proxy_box(here)?).map_err(|fault| {
        Fault::new(Code::PgProxyFailed, "cannot start haproxy")
            .hint("see `quorate explain Q1308`")
            .caused_by(crate::turn::in_words(&fault))
    })?;
    wait_asked(&dir.join("proxy.sock"));
    Ok(())
}

/// Waits until haproxy has asked every node once: until then it takes all of them for well.
fn wait_asked(socket: &Path) {
    let deadline = std::time::Instant::now() + ASKED_LIMIT;
    // The twelfth word of a line is what the last check found: 0 and 1 are nothing yet.
    let asked =
        |line: &str| line.split(' ').nth(11).and_then(|word| word.parse::<u8>().ok()).is_some_and(|found| found > 1);
    let all = |text: &str| {
        let mut servers =
            text.lines().skip(1).filter(|line| !line.starts_with('#') && !line.trim().is_empty()).peekable();
        servers.peek().is_some() && servers.all(asked)
    };
    while !haproxy_states(socket).is_ok_and(|text| all(&text)) && std::time::Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
    }
}
