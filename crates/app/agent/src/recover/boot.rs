//! Starts etcd on a copy, alone, so that it applies its log, and stops it again.
//!
//! It is told to go on without its other members, listens on two sockets in a directory that only this user may enter, and
//! is ended before anything else happens. One that an earlier attempt has left running is ended first.
//!
//! **Invariant:** nobody else can reach it, and it never sees the original; it is ended once it says that the last entry of the
//! log is applied, and in an orderly way, so that its database holds that.

use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use quorate_faults::{Code, Fault};
use quorate_host::logs::Rotation;
use quorate_host::shim::{self, Adoption, ETCD_STOPPING, Ended, Rung, Running, ShimSpec, StopOrder};
use quorate_host::state::StateDir;
use quorate_plan::boxes::BoxPlan;

use super::carry::Tools;

/// The client's socket, as etcd takes it: a host and a port that become the name of a file in its directory.
const CLIENT: &str = "localhost:1";
/// The peers' socket, on which nobody calls.
const PEER: &str = "localhost:2";

/// Between two looks whether it serves.
const LOOK: Duration = Duration::from_millis(50);
/// How long an orderly end may take beyond the steps of the ladder.
const END_LIMIT: Duration = Duration::from_secs(60);
/// More than its metrics ever were.
const ANSWER_BYTES_MAX: u64 = 8 << 20;
/// The index of the last entry that etcd has applied, as its metrics call it.
const APPLIED: &str = "etcd_server_proposals_applied_total ";
/// How much of its log is quoted.
const WORDS_BYTES: usize = 2048;

/// Applies the log of the data dir `copy/data` up to the entry `last`, in a box if there is a plan for one. `run`: where its
/// process is looked after.
pub(super) fn apply_log(
    tools: &Tools,
    name: &str,
    boxed: Option<BoxPlan>,
    copy: &Path,
    run: &Path,
    last: u64,
) -> Result<(), Fault> {
    let state = StateDir::open(run)?;
    end_earlier(&state)?;
    let logs = run.join("logs");
    let mut running = shim::spawn_boxed(&tools.shim, &state, &spec(tools, name, copy, &logs), boxed)?;
    let begun = Instant::now();
    let mut applied = None;
    while applied.is_none_or(|applied| applied < last) && begun.elapsed() <= tools.boot_limit {
        if let Some(ended) = running.wait(LOOK)? {
            return Err(failed(&logs, &format!("it ended: {}", how(&ended))));
        }
        applied = observe_applied(copy).or(applied);
    }
    let ended = stop(&mut running)?;
    let limit = tools.boot_limit.as_secs();
    match applied {
        None => Err(failed(&logs, &format!("it did not serve within {limit} s"))),
        Some(applied) if applied < last => {
            let why =
                format!("etcd applied entry {applied} of the copy within {limit} s, and the log ends with {last}");
            Err(Fault::new(Code::RecoverIncomplete, why).hint("nothing was changed; see `quorate explain Q1072`"))
        }
        Some(_) if !is_orderly(&ended) => {
            let why = format!("etcd did not close the copy's database: {}", how(&ended));
            Err(Fault::new(Code::RecoverIncomplete, why).hint("nothing was changed; see `quorate explain Q1072`"))
        }
        Some(_) => Ok(()),
    }
}

/// Whether etcd closed its database.
fn is_orderly(ended: &Ended) -> bool {
    matches!(ended, Ended::Record(record) if record.clean)
}

fn spec(tools: &Tools, name: &str, copy: &Path, logs: &Path) -> ShimSpec {
    let (client, peer, nowhere) = (format!("unix://{CLIENT}"), format!("unix://{PEER}"), "http://127.0.0.1:2");
    let cluster = format!("{name}={nowhere}");
    let flags = [
        ("name", name),
        ("data-dir", "data"),
        ("force-new-cluster", "true"),
        ("listen-client-urls", client.as_str()),
        ("advertise-client-urls", "http://127.0.0.1:1"),
        ("listen-peer-urls", peer.as_str()),
        ("initial-advertise-peer-urls", nowhere),
        ("initial-cluster", cluster.as_str()),
        // It elects itself, and nobody is slow.
        ("heartbeat-interval", "10"),
        ("election-timeout", "100"),
        // Writes that were taken once are not to be refused now.
        ("quota-backend-bytes", "-1"),
        ("logger", "zap"),
        ("log-outputs", "stderr"),
    ];
    ShimSpec {
        name: "recovery".to_owned(),
        program: tools.etcd.clone(),
        args: flags.iter().map(|(flag, value)| format!("--{flag}={value}")).collect(),
        env: std::env::var("PATH").ok().map(|path| ("PATH".to_owned(), path)).into_iter().collect(),
        env_files: Vec::new(),
        dir: copy.to_owned(),
        log_dir: logs.to_owned(),
        rotation: Rotation { bytes_max: 16 << 20, age_max_s: 24 * 3600, keep: 3 },
        config_hash: "recovery".to_owned(),
        etcd_version: tools.version.clone(),
        stopping_words: ETCD_STOPPING.map(str::to_owned).to_vec(),
        kept_level: None,
        ladder: Rung::usual(),
    }
}

/// Ends what an agent that was killed has left behind.
fn end_earlier(state: &StateDir) -> Result<(), Fault> {
    match shim::adopt(state)? {
        Adoption::Running(mut running) => stop(&mut running).map(drop),
        Adoption::None | Adoption::Gone(_) | Adoption::Lost(_) => Ok(()),
        Adoption::Stranger(why) => {
            Err(Fault::new(Code::StrangerRuns, format!("something runs in `{}`: {why}", state.path().display()))
                .hint("it is neither adopted nor touched; see `quorate explain Q0974`"))
        }
    }
}

fn stop(running: &mut Running) -> Result<Ended, Fault> {
    let ladder = Rung::usual();
    let limit = Duration::from_millis(ladder.iter().map(|rung| rung.wait_ms).sum()) + END_LIMIT;
    running.stop(&StopOrder { asked_by: "the recovery".to_owned(), ladder, last_revision: None })?;
    match running.wait(limit)? {
        Some(ended) => Ok(ended),
        None => Err(Fault::new(Code::NotEnding, format!("etcd (process {}) does not end", running.child().pid))
            .hint("the shim goes on trying; see `quorate explain Q0906`")),
    }
}

/// How far it has applied its log. etcd takes questions only once it has published itself, which is the last entry of its log;
/// before that nobody answers.
fn observe_applied(copy: &Path) -> Option<u64> {
    let ask = || -> std::io::Result<String> {
        // Through a descriptor, because a socket's name may only have 107 bytes.
        let dir = std::fs::File::open(copy)?;
        let mut stream = UnixStream::connect(format!("/proc/self/fd/{}/{CLIENT}", dir.as_raw_fd()))?;
        stream.set_read_timeout(Some(Duration::from_secs(2)))?;
        stream.set_write_timeout(Some(Duration::from_secs(2)))?;
        stream.write_all(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n")?;
        let mut text = String::new();
        stream.take(ANSWER_BYTES_MAX).read_to_string(&mut text)?;
        Ok(text)
    };
    applied_in(&ask().ok()?)
}

/// Reads a number that Go may write as `1.234567e+06`. Every index below 2^53 is exact in it.
fn applied_in(answer: &str) -> Option<u64> {
    let value: f64 = answer.lines().find_map(|line| line.strip_prefix(APPLIED))?.trim().parse().ok()?;
    (0.0..9e15).contains(&value).then_some(value as u64)
}

fn how(ended: &Ended) -> String {
    match ended {
        Ended::Record(record) => match (record.code, record.signal) {
            (Some(code), _) => format!("exit code {code}"),
            (None, Some(signal)) => format!("signal {signal}"),
            (None, None) => record.error.clone().unwrap_or_else(|| "no one knows how".to_owned()),
        },
        Ended::NoRecord(why) => why.clone(),
    }
}

fn failed(logs: &Path, why: &str) -> Fault {
    let path = logs.join("recovery.log");
    let text = std::fs::read(&path).unwrap_or_default();
    let tail = text.get(text.len().saturating_sub(WORDS_BYTES)..).unwrap_or_default();
    let tail: String = String::from_utf8_lossy(tail).lines().rev().take(3).collect::<Vec<_>>().join(" | ");
    Fault::new(Code::RecoverBoot, format!("etcd did not come up on the copy: {why}"))
        .hint(format!("its log is `{}`; recover from another node, or the backup", path.display()))
        .caused_by(tail.chars().filter(|c| !c.is_control()).take(600).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_applied_index_is_read_as_go_writes_it() {
        let answer =
            |value: &str| format!("HTTP/1.0 200 OK\r\n\r\n# HELP x\netcd_server_proposals_applied_total {value}\n");
        assert_eq!(applied_in(&answer("31")), Some(31));
        assert_eq!(applied_in(&answer("1.234567e+06")), Some(1_234_567));
        assert_eq!(applied_in(&answer("NaN")), None);
        assert_eq!(applied_in("HTTP/1.0 404 Not Found\r\n\r\n"), None);
    }
}
