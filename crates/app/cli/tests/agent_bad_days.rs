//! Bad days: damaged data, missing programs, taken ports, silent stores. Nothing is lost, and everything is said.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod agent_support;

use std::fmt::Write as _;
use std::io::{Read, Seek, SeekFrom, Write};
use std::net::TcpListener;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::process::Stdio;

use agent_support::{LIMIT, Place};
use quorate_testkit::{Running, etcd, kill_hard, quorate, wait_until};
use serde_json::Value;

/// The agent and etcd end at the same moment, as when a machine loses its power.
fn cut_power(place: &Place, mut agent: Running) {
    let etcd = place.etcd_pid();
    agent.kill();
    kill_hard(etcd);
    wait_until("etcd is gone", LIMIT, || place.status()["etcd"].is_null());
}

/// Writes enough for the database to have many pages.
fn fill(place: &Place, rounds: usize) {
    for round in 0..rounds {
        let mut text = String::from("\n");
        for key in 0..100 {
            writeln!(text, "put fill/{key} {}", format!("{round}-{key}-").repeat(100)).unwrap();
        }
        text.push_str("\n\n");
        let mut command = place.tools.ctl_command(&place.seat.client_url(), &["txn"]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        assert!(child.wait().unwrap().success());
    }
}

/// Stops and starts, so that everything is in the database and not only in the log.
fn closed_once(place: &Place, mut agent: Running) -> Running {
    assert!(agent.stop().success(), "{}", agent.log());
    place.start()
}

/// Zeroes the middle of what is used of the database, which has more than 300 KiB and room for 16 MiB.
fn zero_middle(place: &Place) {
    let file = std::fs::OpenOptions::new().write(true).open(place.data().join("member/snap/db")).unwrap();
    file.write_all_at(&[0; 128 << 10], 64 << 10).unwrap();
}

fn code_and_cause(status: &Value) -> (String, String) {
    (status["code"].as_str().unwrap_or_default().to_owned(), status["cause"].as_str().unwrap().to_owned())
}

#[test]
fn a_torn_end_of_the_log_is_cut_off_and_kept() {
    let place = Place::new("3.5.16");
    let agent = place.start();
    place.put("k", "v");
    cut_power(&place, agent);
    // The beginning of a record that never reached the disk whole.
    let segment = place.last_segment();
    let mut file = std::fs::OpenOptions::new().read(true).write(true).open(&segment).unwrap();
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).unwrap();
    let end = bytes.iter().rposition(|byte| *byte != 0).unwrap() / 8 * 8 + 8;
    file.seek(SeekFrom::Start(end as u64)).unwrap();
    file.write_all(&[&200_u64.to_le_bytes()[..], &[7; 20]].concat()).unwrap();
    file.set_len(end as u64 + 28).unwrap();
    drop(file);
    let mut agent = place.start();
    place.assert_holds("k", "v");
    let status = place.status();
    let done = status["done"][0].as_str().unwrap_or_else(|| panic!("{status}"));
    assert!(done.starts_with("cut the torn end off") && done.contains(&format!("at byte {end}")), "{done}");
    let kept = place.names(segment.parent().unwrap(), ".broken");
    let kept = std::fs::metadata(segment.with_file_name(&kept[0])).unwrap();
    assert_eq!(kept.len(), end as u64 + 28);
    assert!(agent.stop().success());
}

#[test]
fn damaged_data_without_a_backup_is_kept_and_refused() {
    let place = Place::new("3.5.16");
    let agent = place.start();
    fill(&place, 5);
    cut_power(&place, closed_once(&place, agent));
    zero_middle(&place);
    let before = std::fs::read(place.data().join("member/snap/db")).unwrap();
    let mut agent = place.run(&[]);
    let (code, cause) = code_and_cause(&place.wait_phase("refused"));
    assert_eq!(code, "Q0945");
    assert!(
        cause.starts_with("the data of the only member is damaged (")
            && cause.ends_with("no store of backups is declared"),
        "{cause}"
    );
    assert_eq!(place.health("/readyz").unwrap(), (503, r#"{"phase":"refused"}"#.to_owned()));
    assert!(agent.log().contains("going on would lose: everything that this cluster held"), "{}", agent.log());
    let lost = "everything that this cluster held";
    assert!(place.status()["lost"].as_str().unwrap().starts_with(lost), "{}", place.status());
    assert!(cause.contains("its newest readable revision is "), "{cause}");
    let shown = place.quorate(&["status"]);
    assert_eq!(shown.status.code(), Some(5));
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.contains(&format!("\n  going on would lose: {lost}")), "{shown}");
    assert!(agent.stop().success());
    assert!(std::fs::read(place.data().join("member/snap/db")).unwrap() == before, "a byte was changed");
    assert_eq!(place.names(place.root.path(), "replaced"), [] as [&str; 0]);
    let mut once = place.run(&["--once"]);
    wait_until("the turn is over", LIMIT, || once.ended().is_some());
    assert_eq!(once.ended().unwrap().code(), Some(5));
}

#[test]
fn damaged_data_is_replaced_by_the_newest_backup_and_backups_go_on() {
    let place = Place::with_store("3.5.16");
    let stored = |least: u64| {
        wait_until(&format!("revision {least} is stored"), LIMIT, || {
            place.status()["backup"]["stored_revision"].as_u64().unwrap_or(0) >= least
        });
    };
    let mut agent = place.start();
    place.put("k", "v1");
    // What this cluster restored is its own: a second loss is no different from the first.
    for (round, least) in [(1, 7), (2, 1_000_000_013)] {
        fill(&place, 5);
        stored(least);
        let id = place.status()["cluster_id"].clone();
        cut_power(&place, closed_once(&place, agent));
        zero_middle(&place);
        agent = place.start();
        place.assert_holds("k", &format!("v{round}"));
        place.assert_holds("fill/7", &"4-7-".repeat(100));
        let status = place.status();
        assert_ne!(status["cluster_id"], id, "{status}");
        let done: Vec<&str> = status["done"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
        assert!(done[0].starts_with("renamed") && done[1].starts_with("restored revision"), "{done:?}");
        place.assert_measured(&[
            ("quorate_validations_total{mode=\"full\",verdict=\"corrupt\"}", "counter", 1),
            ("quorate_restores_total{result=\"done\"}", "counter", 1),
            ("quorate_restore_seconds_count", "histogram", 1),
            ("quorate_etcd_starts_total", "counter", 1),
        ]);
        assert_eq!(place.names(place.root.path(), "data.replaced-").len(), round);
        place.put("k", &format!("v{}", round + 1));
    }
    assert!(agent.stop().success(), "{}", agent.log());
}

#[test]
fn what_waits_in_the_spool_is_part_of_what_is_restored() {
    let mut place = Place::with_store("3.5.16");
    place.more = format!("backup: {{store: \"{}\", delta-period: 1h}}\n", place.store());
    let agent = place.start();
    fill(&place, 5);
    // What was recorded is stored by the stop, so that the store has a base.
    let mut agent = closed_once(&place, agent);
    let spool = place.state().join("spool");
    let damaged = place.path("data.damaged");
    for (round, newest) in ["newest-one", "newest-two"].into_iter().enumerate() {
        place.put("k", newest);
        let holds = |name: &String| {
            let bytes = std::fs::read(spool.join(name)).unwrap_or_default();
            bytes.windows(newest.len()).any(|window| window == newest.as_bytes())
        };
        wait_until("it is in the spool", LIMIT, || place.names(&spool, "").iter().any(&holds));
        cut_power(&place, agent);
        match round {
            0 => zero_middle(&place),
            // The second time the whole disk is gone.
            _ => rename(&place.data(), &damaged),
        }
        agent = place.start();
        place.assert_holds("k", newest);
        let done = place.status()["done"][0].as_str().unwrap().to_owned();
        assert!(done.starts_with("stored revisions ") && done.ends_with(", which waited in the spool"), "{done}");
    }
    for mark in [".damaged-", ".set-aside-"] {
        assert_eq!(place.names(&spool, mark), [] as [&str; 0]);
    }
    assert!(agent.stop().success(), "{}", agent.log());
}

#[test]
fn good_data_that_is_put_back_is_believed_and_nothing_is_restored_over_it() {
    let place = Place::with_store("3.5.16");
    let agent = place.start();
    fill(&place, 5);
    cut_power(&place, closed_once(&place, agent));
    let db = place.data().join("member/snap/db");
    let good = std::fs::read(&db).unwrap();
    zero_middle(&place);
    rename(&place.path("store"), &place.path("store-away"));
    let mut agent = place.run(&[]);
    let (code, cause) = code_and_cause(&place.wait_phase("waiting"));
    assert_eq!(code, "Q0950", "{cause}");
    assert!(cause.contains("damaged"), "{cause}");
    // Someone brings the file back as it was. The verdict was on other bytes.
    std::fs::OpenOptions::new().write(true).open(&db).unwrap().write_all_at(&good, 0).unwrap();
    place.wait_ready(&mut agent);
    place.assert_holds("fill/7", &"4-7-".repeat(100));
    assert_eq!(place.names(place.root.path(), "replaced"), [] as [&str; 0]);
    assert_eq!(place.status()["done"], Value::Null);
    assert!(agent.stop().success(), "{}", agent.log());
}

#[test]
fn a_lost_disk_is_restored_and_never_founded_again() {
    let place = Place::with_store("3.5.16");
    let mut agent = place.start();
    place.put("k", "v");
    wait_until("stored", LIMIT, || place.status()["backup"]["stored_revision"].as_u64().unwrap_or(0) >= 2);
    assert!(agent.stop().success(), "{}", agent.log());
    rename(&place.data(), &place.path("lost"));
    let mut agent = place.start();
    place.assert_holds("k", "v");
    assert!(agent.stop().success());
    // Without the store there is no way back, and still nothing is founded.
    rename(&place.data(), &place.path("lost-again"));
    rename(&place.path("store"), &place.path("store-away"));
    let mut agent = place.run(&[]);
    let (code, cause) = code_and_cause(&place.wait_phase("waiting"));
    assert_eq!(code, "Q0950", "{cause}");
    assert!(cause.starts_with("the data of the only member is gone, and the store does not answer"), "{cause}");
    assert!(!place.data().exists());
    rename(&place.path("store-away"), &place.path("store"));
    place.wait_ready(&mut agent);
    place.assert_holds("k", "v");
}

fn rename(from: &Path, to: &Path) {
    assert!(std::process::Command::new("mv").arg("-T").arg(from).arg(to).status().unwrap().success());
}

#[test]
fn a_port_that_is_taken_is_named_and_waited_for() {
    let place = Place::new("3.5.16");
    let port = place.seat.client_url().replace("http://", "");
    let taken = TcpListener::bind(&port).unwrap();
    let mut agent = place.run(&[]);
    let mut status = Value::Null;
    wait_until("etcd has ended twice", LIMIT, || {
        status = place.status();
        status["restarts"].as_u64() >= Some(2) && status["phase"] == "waiting"
    });
    let (code, cause) = code_and_cause(&status);
    assert_eq!(code, "Q0961", "{cause}");
    assert!(cause.contains("address already in use") && cause.contains("it is started again in"), "{cause}");
    let log = agent.log();
    let mut ends = log.lines().filter(|line| line.contains("Q0964"));
    assert!(ends.all(|line| line.contains("address already in use")), "each end with its reason:\n{log}");
    drop(taken);
    place.wait_ready(&mut agent);
    assert!(agent.stop().success());
}

#[test]
fn data_that_may_not_be_read_is_unknown_and_not_damaged() {
    let place = Place::new("3.5.16");
    let mut agent = place.start();
    assert!(agent.stop().success());
    let file = place.file();
    for name in ["", "state", "state/n1"] {
        std::os::unix::fs::chown(place.path(name), Some(65534), Some(65534)).unwrap();
    }
    for name in place.names(&place.state(), "") {
        std::os::unix::fs::chown(place.state().join(name), Some(65534), Some(65534)).unwrap();
    }
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
    // As a user who does not own the data.
    let words = ["--reuid=65534", "--regid=65534", "--clear-groups"].map(str::to_owned);
    let rest = ["run", "--config", &file.display().to_string()].map(str::to_owned);
    let args = [&words[..], &[quorate().display().to_string()], &rest].concat();
    let mut agent = Running::start(Path::new("/usr/bin/setpriv"), &args, &[]);
    wait_until("an agent", LIMIT, || place.health("/livez").is_some() || agent.ended().is_some());
    let (code, cause) = code_and_cause(&place.wait_phase("waiting"));
    assert_eq!(code, "Q0940", "{cause}");
    assert!(cause.contains("Permission denied"), "{cause}");
    assert!(agent.stop().success());
}

#[test]
fn good_data_starts_while_the_store_is_away() {
    let mut place = Place::new("3.5.16");
    let mut agent = place.start();
    place.put("k", "v");
    cut_power(&place, agent);
    place.more = "backup: {store: \"s3://away/prefix\"}\n".to_owned();
    for (name, value) in [
        ("AWS_ACCESS_KEY_ID", "a"),
        ("AWS_SECRET_ACCESS_KEY", "b"),
        ("AWS_REGION", "c"),
        ("AWS_ENDPOINT_URL", "http://127.0.0.1:9"),
        ("AWS_ALLOW_HTTP", "true"),
    ] {
        place.env.push((name.to_owned(), value.to_owned()));
    }
    agent = place.start();
    place.assert_holds("k", "v");
    assert_eq!(place.status()["backup"]["stored_revision"], 0);
    assert!(agent.stop().success(), "{}", agent.log());
}

#[test]
fn nothing_is_founded_while_nobody_knows_whether_a_backup_exists() {
    let place = Place::with_store("3.5.16");
    rename(&place.path("store"), &place.path("away"));
    let mut agent = place.run(&[]);
    let (code, cause) = code_and_cause(&place.wait_phase("waiting"));
    assert_eq!(code, "Q0950");
    assert!(cause.starts_with("cannot tell whether a backup of this cluster exists"), "{cause}");
    assert!(!place.data().exists());
    rename(&place.path("away"), &place.path("store"));
    place.wait_ready(&mut agent);
}

/// Restored once, so that the backups bear an id that no file leads to; then the machine is lost, and one more takes its place.
#[test]
fn a_machine_that_was_lost_after_a_restore_founds_nothing_beside_its_backup() {
    let mut place = Place::with_store("3.5.16");
    let mut agent = place.start();
    place.put("k", "v");
    wait_until("the write is in the store", LIMIT, || place.status()["backup"]["stored_revision"].as_u64() >= Some(2));
    assert!(agent.stop().success(), "{}", agent.log());
    rename(&place.data(), &place.path("lost"));
    let mut agent = place.start();
    place.assert_holds("k", "v");
    place.put("k", "later");
    wait_until("it goes on in the store", LIMIT, || place.status()["backup"]["stored_revision"].as_u64() >= Some(3));
    assert!(agent.stop().success(), "{}", agent.log());
    rename(&place.data(), &place.path("lost-again"));
    rename(&place.path("state"), &place.path("state-lost"));
    let mut agent = place.run(&[]);
    let (code, cause) = code_and_cause(&place.wait_phase("refused"));
    assert_eq!(code, "Q0948", "{cause}");
    assert!(!place.data().exists());
    assert!(agent.stop().success(), "{}", agent.log());
    // Another founding, by the operator's word, begins with nothing.
    place.bootstrap = 2;
    let mut agent = place.start();
    assert!(!place.ctl(&["get", "k"]).contains("later"));
    assert!(agent.stop().success(), "{}", agent.log());
}

#[test]
fn an_etcd_that_is_missing_older_or_another_is_not_started() {
    let mut place = Place::new("3.5.16");
    place.binary = place.path("etcd");
    let mut agent = place.run(&[]);
    let (code, cause) = code_and_cause(&place.wait_phase("waiting"));
    assert_eq!(code, "Q0501", "{cause}");
    std::os::unix::fs::symlink(&place.tools.etcd, &place.binary).unwrap();
    place.wait_ready(&mut agent);
    // etcd writes the version that its cluster has agreed on a moment later.
    wait_until("the cluster has a version", LIMIT, || {
        place.health("/livez").is_some() && place.ctl(&["endpoint", "status"]).contains("3.5.16")
    });
    place.put("k", "v");
    assert!(agent.stop().success());
    place.binary = etcd("3.4.23").etcd;
    let mut agent = place.run(&[]);
    let (code, cause) = code_and_cause(&place.wait_phase("refused"));
    assert_eq!(code, "Q0962", "{cause}");
    assert!(cause.contains("the data is of version 3.5.0"), "{cause}");
    assert!(agent.stop().success());
    place.agent = "  etcd-version: \"3.5\"\n".to_owned();
    let mut agent = place.run(&["--once"]);
    wait_until("the turn is over", LIMIT, || agent.ended().is_some());
    assert_eq!(agent.ended().unwrap().code(), Some(4), "{}", agent.log());
    assert!(agent.log().contains("Q0963"), "{}", agent.log());
}

#[test]
fn a_stop_while_data_is_checked_leaves_it_as_it_was() {
    let place = Place::new("3.5.16");
    let agent = place.start();
    fill(&place, 3);
    cut_power(&place, agent);
    // Every read takes a fifth of a second.
    let mut agent = slowed(&place, "pread64", 200_000);
    wait_until("it is checked", LIMIT, || {
        place.health("/readyz").is_some_and(|(code, body)| (code, body.as_str()) == (503, r#"{"phase":"validating"}"#))
    });
    let begun = std::time::Instant::now();
    assert!(agent.stop().success(), "{}", agent.log());
    assert!(begun.elapsed() < std::time::Duration::from_secs(5));
    // What was not checked to its end is checked again, as deep.
    assert!(place.json(&["plan"])["steps"][0].as_str().unwrap().starts_with("check the data (full, "));
    let mut agent = place.start();
    place.assert_holds("fill/7", &"2-7-".repeat(100));
    assert!(agent.stop().success());
}

#[test]
fn a_full_database_is_explained_and_cleared_when_there_is_room() {
    let mut place = Place::new("3.5.16");
    place.more = "etcd: {heartbeat-interval: 10, election-timeout: 100, quota-backend-bytes: 4194304}\n".to_owned();
    let mut agent = place.start();
    let url = place.seat.client_url();
    let write = |bytes: usize| {
        let text = format!("\nput k {}\n\n\n", "x".repeat(bytes));
        let mut command = place.tools.ctl_command(&url, &["txn"]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        child.wait().unwrap().success()
    };
    // Before it is full, it is warned of; an agent that has just begun looks at once.
    // Its size is known ten times a second, and some writes fit between: each is small.
    wait_until("most of the quota is used", LIMIT, || {
        assert!(write(60_000));
        let status = place.tools.ctl_json(&url, &["endpoint", "status"]);
        status[0]["Status"]["dbSize"].as_u64().unwrap() * 100 / 4_194_304 >= 82
    });
    agent.kill();
    agent = place.start();
    wait_until("it is warned of", LIMIT, || place.status()["warnings"][0]["code"] == "Q0968");
    let warned = place.status()["warnings"][0]["text"].as_str().unwrap().to_owned();
    assert!(warned.contains("of its quota of 4MiB; when it is full, etcd takes no writes"), "{warned}");
    wait_until("the quota is used up", LIMIT, || !write(400_000));
    agent.kill();
    agent = place.start();
    // How many of its pages are free is etcd's affair: there may be room already without the compaction.
    wait_until("it is explained", LIMIT, || agent.log().contains("etcd takes no writes: its database has"));
    let revision = place.tools.ctl_json(&place.seat.client_url(), &["get", "k"])["header"]["revision"].to_string();
    place.ctl(&["compact", &revision]);
    wait_until("it is cleared", LIMIT, || place.tools.try_ctl(&place.seat.client_url(), &["put", "a", "b"]).is_ok());
    wait_until("and said so", LIMIT, || agent.log().contains("cleared the alarm NOSPACE"));
    assert!(place.health("/metrics").unwrap().1.contains("quorate_defragmentations_total{result=\"done\"} 1"));
    assert_eq!(place.status()["warnings"], Value::Null);
    assert!(agent.stop().success());
}

/// An agent whose calls of this kind take long.
fn slowed(place: &Place, call: &str, micros: u32) -> Running {
    let file = place.file().display().to_string();
    let inject = format!("inject={call}:delay_enter={micros}");
    let trace = format!("trace={call}");
    let words = ["-D", "-f", "-qq", "-o", "/dev/null", "-e", &trace, "-e", &inject];
    let program = quorate().display().to_string();
    let args = words.into_iter().chain([program.as_str(), "run", "--config", &file]).map(str::to_owned);
    Running::start(&quorate_testkit::strace(), &args.collect::<Vec<_>>(), &place.env)
}

#[test]
fn a_stop_while_data_is_restored_is_obeyed_and_the_next_run_restores_it() {
    let place = Place::with_store("3.5.16");
    let mut agent = place.start();
    place.put("k", "v");
    wait_until("stored", LIMIT, || place.status()["backup"]["stored_revision"].as_u64().unwrap_or(0) >= 2);
    assert!(agent.stop().success(), "{}", agent.log());
    rename(&place.data(), &place.path("lost"));
    let mut agent = slowed(&place, "fsync", 1_500_000);
    wait_until("it is restored", LIMIT, || place.health("/readyz").is_some_and(|(_, body)| body.contains("restoring")));
    let begun = std::time::Instant::now();
    assert!(agent.stop().success(), "{}", agent.log());
    assert!(begun.elapsed() < std::time::Duration::from_secs(5), "{:?}", begun.elapsed());
    assert!(!place.data().join("member").exists());
    let mut agent = place.start();
    place.assert_holds("k", "v");
    assert!(agent.stop().success());
    assert_eq!(place.names(&place.data(), ".partial-"), [] as [&str; 0]);
}

#[test]
fn a_check_that_would_take_too_long_is_cut_off_and_says_so() {
    let mut place = Place::new("3.5.16");
    place.more = "maintenance: {validation-budget: 500ms}\n".to_owned();
    let agent = place.start();
    fill(&place, 5);
    cut_power(&place, closed_once(&place, agent));
    // So little data is checked in a moment on any disk that works as it should; this one does not.
    let mut agent = slowed(&place, "pread64", 20_000);
    place.wait_ready(&mut agent);
    place.assert_holds("fill/7", &"4-7-".repeat(100));
    let checked = place.status()["checked"].clone();
    let verdict = checked["verdict"].as_str().unwrap();
    assert!(verdict.starts_with("valid, as far as time allowed: checked "), "{checked}");
    assert_eq!(checked["mode"], "what fits into 500ms", "{checked}");
    assert!(verdict.ends_with("; the rest was not looked at"), "{checked}");
    assert!(agent.stop().success());
}
