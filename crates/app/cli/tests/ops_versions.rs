//! The operator's commands on the oldest and the newest etcd: what they find, say and run does not depend on the release.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod agent_support;
mod ops_support;

use ops_support::{audited, code, failed, good, json, operate, operate_with, out, rooted, state, until};
use serde_json::Value;

#[test]
fn the_commands_work_on_3_4() {
    commands("3.4.23");
}

#[test]
fn the_commands_work_on_the_newest_3_5() {
    commands("sid");
}

fn commands(version: &str) {
    let place = rooted(version);
    let mut agent = place.start();
    let pid = place.etcd_pid();
    let list = json(&until(&place, &["ps", "--output", "json"], |text| text.contains("\"serving\"")));
    assert_eq!(list["processes"][0]["pid"].as_u64(), Some(pid.into()), "{list}");
    assert_eq!(good(&operate(&place, &["pid", "etcd"])), format!("{pid}\n"));

    // 3.4 may begin its log with lines of text; every line is a document all the same.
    let lines = good(&operate(&place, &["logs", "etcd", "--output", "json"]));
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let said = |word: &str| lines.iter().any(|line| line["msg"].as_str().is_some_and(|msg| msg.contains(word)));
    assert!(lines.len() > 10 && said("became leader"), "{lines:?}");
    assert!(good(&operate(&place, &["logs", "etcd", "--since", "10m"])).contains("became leader"));

    // The program itself is in every box, and what it says of itself is what was asked for.
    let program = place.binary.canonicalize().unwrap().display().to_string();
    let own = good(&operate(&place, &["exec", "etcd", "--", &program, "--version"]));
    assert!(own.contains(&format!("etcd Version: {}", place.tools.version)), "{own}");
    let shell = operate_with(&place, &["shell", "etcd"], "readlink /proc/self/ns/pid; exit 3\n");
    let space = std::fs::read_link(format!("/proc/{pid}/ns/pid")).unwrap();
    assert_eq!((code(&shell), out(&shell)), (3, format!("{}\n", space.display())));
    until(&place, &["trace", "etcd", "--duration", "1s", "--output", "json"], |text| text.contains("\"calls\": [\n"));

    assert!(good(&operate(&place, &["ctl", "member", "list"])).contains(&place.seat.client_url()));
    good(&operate(&place, &["ctl", "put", "k", "v"]));
    assert_eq!(good(&operate(&place, &["ctl", "get", "k", "--print-value-only"])), "v\n");
    let status = json(&operate(&place, &["ctl", "--output", "json", "endpoint", "status"]));
    assert_eq!(status[0]["Status"]["version"], Value::from(place.tools.version.as_str()), "{status}");
    let nowhere = place.path("none.yaml").display().to_string();
    failed(&operate(&place, &["ctl", "--config", &nowhere, "member", "list"]), 4, "Q1481");

    let commands: Vec<Value> = audited(&state(&place)).iter().map(|line| line["command"].clone()).collect();
    assert!(commands.starts_with(&["exec".into(), "shell".into(), "trace".into()]), "{commands:?}");
    assert_eq!(commands.last(), Some(&"ctl".into()));
    agent.stop();
    failed(&operate(&place, &["pid", "etcd"]), 1, "Q1151");
}
