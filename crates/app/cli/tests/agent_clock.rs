//! A clock that is stepped by an hour, forward and back, below an agent that serves.
//!
//! The agent's own clock is stepped in every run of the tests; the machine's, and with it etcd's, by `make test-clock`.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod agent_support;

use std::path::Path;
use std::time::{Duration, Instant};

use agent_support::{LIMIT, Place};
use jiff::{SignedDuration, Timestamp};
use quorate_pki::{Authorities, Keys, NodeNames, Policy, ensure_authorities, ensure_installed, ensure_requests, issue};
use quorate_testkit::{FakeClock, MachineClock, Running, run, wait_until};

const HOUR: i64 = 3600;
/// Every full but the newest may go.
const KEEP_ONE: &str = "keep: {last: 1, hourly: 0, daily: 0, weekly: 0, monthly: 0, history: 0s}";

/// Certificates of a node, and the authorities to renew them, made at `at`.
fn equip(pki: &Path, at: Timestamp) {
    let names = NodeNames::new("t", "n1", ["127.0.0.1"]).unwrap();
    ensure_authorities(pki, "t", None, at).unwrap();
    let bundle = ensure_requests(pki, &names, Keys::Keep).unwrap().bundle;
    let policy = Policy { days: 90, allowed: None };
    let signed = issue(&Authorities::open(pki, None).unwrap(), &bundle, &policy, at).unwrap();
    ensure_installed(pki, &names, &signed, at).unwrap();
}

fn file(place: &Place) -> String {
    let dir = place.root.path().display();
    let https = |url: String| url.replace("http://", "https://");
    format!(
        "token: t\nbootstrap: {{id: 1}}\ntls: {{dir: \"{dir}/pki\"}}\nmembers:\n  - {{name: n1, peer-urls: [\"{}\"], client-urls: \
         [\"{}\"], data-dir: {dir}/data}}\nagent:\n  health-listen: http://127.0.0.1:{}\n  api-listen: https://127.0.0.1:{}\n  \
         state-dir: {dir}/state\n  etcd-binary: {}\netcd: {{heartbeat-interval: 10, election-timeout: 100}}\n\
         backup: {{store: \"{}\", delta-period: 200ms, full-schedule: every 30m}}\n",
        https(place.seat.peer_url()),
        https(place.seat.client_url()),
        place.health,
        place.api,
        place.tools.etcd.display(),
        place.store(),
    )
}

fn put(place: &Place, key: &str) {
    let url = place.seat.client_url().replace("http://", "https://");
    let at = |name: &str| place.path(&format!("pki/{name}")).display().to_string();
    let (ca, cert, key_file) = (at("client-ca.crt"), at("admin.crt"), at("admin.key"));
    let args = ["--cacert", &ca, "--cert", &cert, "--key", &key_file, "put", key, "v"];
    run(&mut place.tools.ctl_command(&url, &args));
}

/// The certificates as they are.
fn certificates(place: &Place) -> Vec<Vec<u8>> {
    ["peer", "client", "agent", "admin"]
        .map(|name| std::fs::read(place.path(&format!("pki/{name}.crt"))).unwrap())
        .to_vec()
}

/// For how long a step of a clock is looked at before anything is written: a lag of nothing that is new is seen at once or never.
const LOOKED_AT: Duration = Duration::from_millis(2500);

/// Right after a clock was set, and before a write would end any lag: the step itself is none.
#[track_caller]
fn no_lag(place: &Place, round: &str) {
    let begun = Instant::now();
    while begun.elapsed() < LOOKED_AT {
        let lag = lag(place);
        assert!(lag < 600.0, "{round}: a step of the clock is no lag: {lag} s");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn lag(place: &Place) -> f64 {
    let (_, metrics) = place.health("/metrics").unwrap();
    let lag = metrics.lines().find_map(|line| line.strip_prefix("quorate_backup_lag_seconds ")).unwrap();
    lag.parse().unwrap()
}

/// What must hold at any time.
#[track_caller]
fn all_is_well(place: &Place, agent: &mut Running, etcd: u32, round: &str) {
    let stored = || place.status()["backup"]["stored_revision"].as_u64().unwrap();
    let before = stored();
    put(place, &format!("{round} one"));
    wait_until(&format!("{round}: a write is stored"), LIMIT, || stored() > before);
    assert!(agent.ended().is_none(), "{round}: {}", agent.log());
    let status = place.status();
    assert_eq!((&status["phase"], &status["restarts"]), (&"serving".into(), &0.into()), "{round}: {status}");
    // A clock that is ahead of the store's removes nothing, and that is said; nothing else is wrong.
    let warnings = status["warnings"].as_array().cloned().unwrap_or_default();
    assert!(warnings.iter().all(|one| one["code"] == "Q1429"), "{round}: {status}");
    assert!(lag(place) < 600.0, "{round}: a step of the clock is no lag");
    assert_eq!(place.etcd_pid(), etcd, "{round}");
    assert!(place.is_ready(), "{round}");
    let shown = place.quorate(&["status"]);
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    let since = shown.lines().next().unwrap().rsplit_once('(').unwrap().1.trim_end_matches(')').to_owned();
    assert!(!since.contains(['h', 'd']), "{round}: it serves for less than an hour\n{shown}");
}

/// Steps a clock below an agent, forward, back, behind, and right again.
fn step(place: &mut Place, made_ahead: i64, set: &dyn Fn(i64)) {
    std::fs::create_dir(place.path("store")).unwrap();
    equip(&place.path("pki"), Timestamp::now() + SignedDuration::from_secs(made_ahead));
    place.raw = Some(file(place));
    let mut agent = place.start();
    let (etcd, before) = (place.etcd_pid(), certificates(place));
    all_is_well(place, &mut agent, etcd, "right");
    for (at, seconds) in [HOUR, 0, -HOUR, 0].into_iter().enumerate() {
        let round = format!("step {at} to {seconds:+} s");
        set(seconds);
        no_lag(place, &round);
        all_is_well(place, &mut agent, etcd, &round);
    }
    assert_eq!(certificates(place), before, "none was renewed");
    assert!(!agent.log().contains("renewed"), "{}", agent.log());
    // Another agent, and the end, find everything as it should be.
    set(HOUR);
    assert!(place.quorate(&["stop", "--keep-running"]).status.success());
    wait_until("the agent has ended", LIMIT, || agent.ended().is_some());
    let mut agent = place.start();
    all_is_well(place, &mut agent, etcd, "another agent");
    set(0);
    all_is_well(place, &mut agent, etcd, "and back");
    assert!(agent.stop().success(), "{}", agent.log());
    assert_eq!(place.status()["last_end"], "stopped as asked by SIGTERM to the agent");
    // All of it can be restored, in the order in which it was written.
    let store = place.store();
    let backup = |word: &str| {
        let mut command = std::process::Command::new(quorate_testkit::quorate());
        command.args(["backup", word, "--store", &store, "--output", "json"]);
        let said: serde_json::Value = serde_json::from_str(&run(&mut command)).unwrap();
        said
    };
    backup("verify");
    let listed = backup("list");
    let deltas = listed["objects"].as_array().unwrap().iter().filter(|object| object["kind"] == "delta");
    let spans: Vec<(u64, u64)> =
        deltas.map(|delta| (delta["first"].as_u64().unwrap(), delta["last"].as_u64().unwrap())).collect();
    // Writes that came soon after each other may share a delta.
    assert!(spans.len() >= 3 && spans.windows(2).all(|pair| pair[0].1 + 1 == pair[1].0), "{spans:?}");
    assert_eq!(listed["newest_revision"].as_u64(), spans.last().map(|(_, last)| *last), "{listed}");
}

#[test]
fn what_runs_on_a_clock_that_is_stepped_by_an_hour_goes_on() {
    if std::env::var("QUORATE_CLOCK").is_ok_and(|which| which == "machine") {
        for version in ["3.4.23", "3.5.16", "sid"] {
            let mut place = Place::new(version);
            let clock = MachineClock::new();
            // etcd and its clients are an hour behind too, for a while: certificates hold from 90 minutes before they were made.
            step(&mut place, 0, &|seconds| clock.set(seconds));
        }
        return;
    }
    let mut place = Place::new("3.5.16");
    let clock = FakeClock::new(place.root.path());
    place.env = clock.env();
    // Certificates are made by a clock that is an hour ahead, as one that is set back afterwards: they hold already.
    step(&mut place, HOUR, &|seconds| clock.set(seconds));
}

#[test]
fn removes_no_backup_of_the_other_layout_by_a_clock_that_is_ahead() {
    let mut place = Place::new("3.5.16");
    let clock = FakeClock::new(place.root.path());
    place.env = clock.env();
    std::fs::create_dir(place.path("store")).unwrap();
    equip(&place.path("pki"), Timestamp::now());
    let text = file(&place);
    assert!(text.contains("backup: {store: "));
    place.raw = Some(
        text.replace("backup: {store: ", &format!("backup: {{{KEEP_ONE}, layout: gardener, store: "))
            .replace("every 30m", "every 1m"),
    );
    let reported = |place: &Place| {
        let status = place.status();
        status["warnings"].as_array().is_some_and(|all| all.iter().any(|one| one["code"] == "Q1429"))
    };
    let mut agent = place.start();
    wait_until("a removal by a right clock", LIMIT, || {
        place.health("/metrics").is_some_and(|(_, text)| text.contains("kind=\"prune\""))
    });
    // By a right clock the rules remove what is older than the newest.
    let first = fulls(&place);
    put(&place, "right");
    assert!(agent.stop().success(), "{}", agent.log());
    clock.set(120);
    let mut agent = place.start();
    wait_until("the first full is removed", LIMIT, || {
        let now = fulls(&place);
        !now.is_empty() && first.iter().all(|full| !now.contains(full))
    });
    assert!(agent.log().contains("stored a full backup") && !agent.log().contains("Q1429"), "{}", agent.log());
    assert!(agent.stop().success(), "{}", agent.log());
    let earlier = fulls(&place);
    assert!(!earlier.is_empty());
    // The next full is due at once, and no rule keeps the earlier ones.
    clock.set(3 * 24 * HOUR);
    let mut agent = place.start();
    wait_until("the agent reports that nothing is removed", LIMIT, || reported(&place));
    let names: Vec<String> = std::fs::read_dir(place.path("store"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert!(names.iter().all(|name| !name.contains("clock")), "{names:?}");
    let now = fulls(&place);
    assert!(now.len() > earlier.len() && earlier.iter().all(|full| now.contains(full)), "{earlier:?}\n{now:?}");
    assert!(agent.stop().success(), "{}", agent.log());
}

/// The names of the full backups in etcd-backup-restore's layout.
fn fulls(place: &Place) -> Vec<String> {
    let mut found = Vec::new();
    let mut left = vec![place.path("store")];
    while let Some(dir) = left.pop() {
        for entry in std::fs::read_dir(dir).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            if entry.path().is_dir() {
                left.push(entry.path());
            } else if name.starts_with("Full-") {
                found.push(name);
            }
        }
    }
    found.sort();
    found
}

#[test]
fn by_a_clock_that_was_days_ahead_no_backup_is_removed_and_what_it_signed_is_replaced() {
    const AHEAD: i64 = 65 * 24 * HOUR;
    let mut place = Place::new("3.5.16");
    let clock = FakeClock::new(place.root.path());
    place.env = clock.env();
    std::fs::create_dir(place.path("store")).unwrap();
    equip(&place.path("pki"), Timestamp::now());
    place.raw = Some(file(&place));
    let life = |place: &Place| {
        let mut found = quorate_pki::read_certificates(&place.path("pki/peer.crt")).unwrap();
        found.remove(0).life
    };
    // Certificates hold by both clocks, and the store's is right.
    clock.set(3 * 24 * HOUR);
    let mut agent = place.start();
    wait_until("the agent reports that nothing is removed", LIMIT, || {
        let status = place.status();
        status["warnings"].as_array().is_some_and(|all| all.iter().any(|one| one["code"] == "Q1429"))
    });
    assert!(agent.stop().success(), "{}", agent.log());
    clock.set(AHEAD);
    let mut agent = place.run(&[]);
    wait_until("renewed by a clock that is ahead", LIMIT, || life(&place).from > Timestamp::now());
    assert!(place.path("pki/peer.crt.previous").exists() && place.path("pki/peer.key.previous").exists());
    let _ = agent.stop();
    clock.set(0);
    let mut agent = place.start();
    wait_until("replaced by one that holds", LIMIT, || life(&place).from <= Timestamp::now());
    put(&place, "after");
    assert!(agent.stop().success(), "{}", agent.log());
}
