//! etcd's own comparisons of data are on by default where its release can be relied on, and what they find is shown with the way out.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod agent_support;
mod cluster_support;

use std::io::{Read, Write};

use agent_support::{LIMIT, Place};
use cluster_support::{Declared, Wire, forge};
use quorate_plan::etcd_config::has_sound_hashes;
use quorate_testkit::{etcd, release_where, wait_until};

/// How the settings of a release name the comparisons, at its start and after compactions.
fn names(version: &str) -> [&'static str; 2] {
    match version.starts_with("3.4.") || version.starts_with("3.5.") {
        true => ["experimental-initial-corrupt-check: true", "experimental-compact-hash-check-enabled: true"],
        false => ["InitialCorruptCheck=true", "CompactHashCheck=true"],
    }
}

/// A release that is trusted with the checks: the one that the tests are run with, or the newest 3.5.
fn trusted() -> String {
    release_where(|tools| has_sound_hashes(&tools.version), "sid")
}

/// The settings that etcd was started with, and what it says of them itself.
fn settings(place: &Place) -> (String, String) {
    let read = |name: &str| std::fs::read_to_string(place.state().join(name)).unwrap();
    (read("etcd.yaml"), read("logs/etcd.log"))
}

#[test]
fn etcd_compares_its_data_unless_its_release_or_the_file_says_no() {
    let mut releases = vec!["3.4.23".to_owned(), "3.5.16".to_owned(), "sid".to_owned()];
    releases.extend(Some(trusted()).filter(|release| !releases.contains(release)));
    for release in releases {
        let mut place = Place::new(&release);
        let checked = release != "3.4.23";
        let [initial, compaction] = names(&place.tools.version);
        let mut agent = place.start();
        let (file, log) = settings(&place);
        assert_eq!((file.contains(initial), file.contains(compaction)), (checked, checked), "{release}: {file}");
        assert_eq!(log.contains("\"initial-corrupt-check\":true"), checked, "{release}: {log}");
        assert_eq!(log.contains("starting initial corruption check"), checked, "{release}: {log}");
        assert!(agent.stop().success());
        // The file has the last word, also for a release that is not trusted with it.
        place.more = format!("etcd: {{experimental-initial-corrupt-check: {}}}\n", !checked);
        let mut agent = place.start();
        let (file, _) = settings(&place);
        assert_eq!(file.contains(initial), !checked, "{release}: {file}");
        assert!(agent.stop().success());
    }
}

#[test]
fn an_alarm_of_corruption_is_shown_with_the_way_out() {
    let place = Place::new(&trusted());
    let mut agent = place.start();
    let member = u64::from_str_radix(place.status()["member_id"].as_str().unwrap(), 16).unwrap();
    let body = format!(r#"{{"action":"ACTIVATE","memberID":"{member}","alarm":"CORRUPT"}}"#);
    let url = place.seat.client_url();
    let mut stream = std::net::TcpStream::connect(url.trim_start_matches("http://")).unwrap();
    let head = format!(
        "POST /v3/maintenance/alarm HTTP/1.1\r\nHost: e\r\nConnection: close\r\nContent-Length: {}",
        body.len()
    );
    stream.write_all(format!("{head}\r\n\r\n{body}").as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let shown = || {
        let output = place.quorate(&["cluster", "status"]);
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    wait_until("the alarm is shown", LIMIT, || shown().1.contains("[Q1442]"));
    let (code, text) = shown();
    // Reads go on, and writes do not.
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("etcd has raised the alarm CORRUPT for `n1`, and takes no writes"), "{text}");
    assert!(text.contains("`quorate explain Q1442`"), "{text}");
    let (_, metrics) = place.health("/metrics").unwrap();
    assert!(metrics.contains("quorate_degraded{reason=\"data_corrupt\"} 1"), "{metrics}");
    place.ctl(&["alarm", "disarm"]);
    wait_until("it is well again", LIMIT, || shown().0 == Some(0));
    assert!(agent.stop().success());
}

/// Three members that hold the same.
fn three(more: &str) -> Declared {
    let mut cluster = Declared::new("sid", 3, Wire::Clear);
    cluster.tools = etcd(&trusted());
    cluster.more = more.to_owned();
    cluster.file();
    cluster.start_all();
    cluster.wait_serving();
    cluster.put(0, "k", "v");
    cluster.assert_all_hold("k", "v");
    cluster
}

#[test]
fn a_member_that_holds_other_data_than_its_peers_does_not_start_until_its_data_is_replaced() {
    let mut cluster = three("etcd: {heartbeat-interval: 50, election-timeout: 500}\n");
    cluster.stop(1);
    forge(&cluster.data(1).join("member/snap/db"));
    cluster.start(1);
    let status = cluster.wait_status(1, "what etcd found", |status| status["code"] == "Q1444");
    assert!(status["cause"].as_str().unwrap().contains("found data inconsistency with peers"), "{status}");
    assert!(status["way_out"].as_str().unwrap().contains("quorate explain Q1444"), "{status}");
    cluster.put(0, "after", "v");
    // The way out of its page.
    let file = cluster.path("cluster.yaml").display().to_string();
    cluster.stop(1);
    let reset = cluster.quorate(&["data", "reset", "--config", &file, "--name", "n2", "--yes"]);
    assert!(reset.status.success(), "{}", cluster_support::said(&reset));
    cluster.start(1);
    cluster.wait_serving();
    cluster.assert_all_hold("k", "v");
}

#[test]
fn a_difference_that_a_compaction_finds_stops_writes_and_is_shown() {
    let [initial, _] = names(&etcd(&trusted()).version);
    let prefix = if initial.starts_with("experimental-") { "experimental-" } else { "" };
    let mut cluster = three(&format!(
        "etcd: {{heartbeat-interval: 50, election-timeout: 500, experimental-initial-corrupt-check: false, \
         {prefix}compact-hash-check-time: 2s}}\n",
    ));
    for at in 0..3 {
        cluster.stop(at);
    }
    forge(&cluster.data(1).join("member/snap/db"));
    cluster.start_all();
    cluster.wait_serving();
    let revision = cluster.revision(0).to_string();
    cluster.ctl(0, &["compact", &revision]);
    let file = cluster.path("cluster.yaml").display().to_string();
    let mut text = String::new();
    wait_until("the alarm is shown", cluster_support::LIMIT, || {
        text = cluster_support::said(&cluster.quorate(&["cluster", "status", "--config", &file]));
        text.contains("[Q1442]")
    });
    // etcd does not say which member it is; the comparison by the agents does.
    assert!(text.contains("etcd has raised the alarm CORRUPT"), "{text}");
    wait_until("the member is named", cluster_support::LIMIT, || {
        let text = cluster_support::said(&cluster.quorate(&["cluster", "status", "--config", &file]));
        text.lines().any(|line| line.contains("[Q0981]") && line.contains("1 member (`n2`)"))
    });
    assert!(cluster.try_ctl(0, &["put", "k", "w"]).is_err(), "writes are stopped");
}
