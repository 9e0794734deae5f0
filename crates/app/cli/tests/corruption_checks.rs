//! etcd's own comparisons of data are on by default where its release can be relied on, and what they find is shown with the way out.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod agent_support;

use std::io::{Read, Write};

use agent_support::{LIMIT, Place};
use quorate_testkit::wait_until;

const INITIAL: &str = "experimental-initial-corrupt-check: true";
const COMPACTION: &str = "experimental-compact-hash-check-enabled: true";

/// The settings that etcd was started with, and what it says of them itself.
fn settings(place: &Place) -> (String, String) {
    let read = |name: &str| std::fs::read_to_string(place.state().join(name)).unwrap();
    (read("etcd.yaml"), read("logs/etcd.log"))
}

#[test]
fn etcd_compares_its_data_unless_its_release_or_the_file_says_no() {
    for (release, checked) in [("3.4.23", false), ("3.5.16", true), ("sid", true)] {
        let mut place = Place::new(release);
        let mut agent = place.start();
        let (file, log) = settings(&place);
        assert_eq!((file.contains(INITIAL), file.contains(COMPACTION)), (checked, checked), "{release}: {file}");
        assert_eq!(log.contains("\"initial-corrupt-check\":true"), checked, "{release}: {log}");
        assert_eq!(log.contains("starting initial corruption check"), checked, "{release}: {log}");
        assert!(agent.stop().success());
        // The file has the last word, also for a release that is not trusted with it.
        place.more = format!("etcd: {{experimental-initial-corrupt-check: {}}}\n", !checked);
        let mut agent = place.start();
        let (file, _) = settings(&place);
        assert_eq!(file.contains(INITIAL), !checked, "{release}: {file}");
        assert!(agent.stop().success());
    }
}

#[test]
fn an_alarm_of_corruption_is_shown_with_the_way_out() {
    let place = Place::new("sid");
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
