//! A hole in the middle of the WAL, with intact records behind it, is corruption: nothing is cut, and etcd is not started.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod agent_support;

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Output};

use agent_support::Place;
use quorate_testkit::quorate;
use serde_json::Value;

fn verify(path: &Path, mode: &str) -> (Output, Value) {
    let args = ["data", "verify", "--output", "json", "--mode", mode];
    let output = Command::new(quorate()).args(args).arg(path).output().unwrap();
    let found = serde_json::from_slice(&output.stdout).unwrap();
    (output, found)
}

/// Zeroes a kibibyte at 60 % of what is used of the newest segment.
fn punch(place: &Place) -> Vec<u8> {
    let segment = place.last_segment();
    let bytes = std::fs::read(&segment).unwrap();
    let used = bytes.iter().rposition(|byte| *byte != 0).unwrap();
    let at = used * 6 / 10 / 512 * 512;
    let file = std::fs::OpenOptions::new().write(true).open(&segment).unwrap();
    file.write_all_at(&[0; 1024], at as u64).unwrap();
    std::fs::read(&segment).unwrap()
}

#[test]
fn records_behind_a_hole_are_neither_dropped_nor_called_a_torn_tail() {
    let place = Place::new("3.5.16");
    let mut agent = place.start();
    for number in 0..60 {
        place.put(&format!("k{number}"), &"x".repeat(900));
    }
    // Closed cleanly: the quick check before a start finds it as the full one does.
    assert!(agent.stop().success(), "{}", agent.log());
    let damaged = punch(&place);
    let (output, found) = verify(&place.data(), "full");
    assert_eq!(output.status.code(), Some(1), "{found}");
    let finding = &found["findings"][0];
    let what = finding["what"].as_str().unwrap();
    assert!(finding["code"] == "Q0332" && what.contains("intact records follow at"), "{found}");
    assert!(!found.to_string().contains("Q0333"), "{found}");

    let mut agent = place.run(&[]);
    let status = place.wait_phase("refused");
    let cause = status["cause"].as_str().unwrap();
    assert!(status["code"] == "Q0945" && cause.contains("the log has a hole here"), "{status}");
    assert!(cause.contains("intact records follow at") && cause.contains("with entries "), "{status}");
    assert!(agent.stop().success());
    assert!(std::fs::read(place.last_segment()).unwrap() == damaged, "a byte of the log was changed");
    assert_eq!(place.names(place.last_segment().parent().unwrap(), ".broken"), [] as [&str; 0]);
}
