//! A cause that persists is one line a minute in the log of the agent.

mod agent_support;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use agent_support::{LIMIT, Place};
use quorate_testkit::wait_until;

/// Lines of warnings and errors, without what differs from time to time, and how often each came.
fn causes(log: &str) -> BTreeMap<String, usize> {
    let mut counted = BTreeMap::new();
    for line in log.lines().filter(|line| line.contains("WARN") || line.contains("ERROR")) {
        let words = line.split_whitespace().filter(|word| !word.contains(|c: char| c.is_ascii_digit()));
        *counted.entry(words.collect::<Vec<_>>().join(" ")).or_default() += 1;
    }
    counted
}

/// A store of a cloud without credentials, and without a service that distributes them.
fn without_credentials(place: &mut Place) {
    place.more = "backup: {store: \"s3://bucket/prod\", delta-period: 200ms}\n".to_owned();
    for (name, value) in [("AWS_REGION", "us-east-1"), ("AWS_METADATA_ENDPOINT", "http://127.0.0.1:9")] {
        place.env.push((name.to_owned(), value.to_owned()));
    }
}

/// Runs an agent for ten seconds after the store is in its log.
fn assert_logged_once(place: &Place) {
    let mut agent = place.run(&[]);
    wait_until("the store is reported", LIMIT, || agent.log().contains("s3://bucket"));
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(10) {
        assert!(agent.ended().is_none(), "{}", agent.log());
        std::thread::sleep(Duration::from_millis(200));
    }
    let log = agent.log();
    assert!(causes(&log).values().all(|count| *count == 1), "{:#?}\n{log}", causes(&log));
    assert!(causes(&log).values().sum::<usize>() <= 4, "{log}");
    assert!(agent.stop().success(), "{}", agent.log());
}

#[test]
fn logs_a_store_without_credentials_once() {
    // Before the bootstrap, where the store has to answer, and in a member that serves.
    let mut place = Place::new("3.5.16");
    without_credentials(&mut place);
    assert_logged_once(&place);
    let mut place = Place::new("3.5.16");
    let mut agent = place.start();
    assert!(agent.stop().success(), "{}", agent.log());
    without_credentials(&mut place);
    assert_logged_once(&place);
}
