//! An operator looks at what is kept on a machine: `ps`, `pid`, `logs`, with and without an agent.

mod agent_support;
mod ops_support;

use ops_support::{LIMIT, code, command, err, failed, file, good, json, operate, out, put, rooted, state, until};
use quorate_testkit::{kill_hard, quorate, wait_until};

#[test]
fn a_process_is_listed_found_by_name_and_told_from_one_that_does_not_run() {
    let place = rooted("3.5.16");
    failed(&operate(&place, &["pid", "etcd"]), 1, "Q1150");
    let empty = operate(&place, &["ps"]);
    assert_eq!((good(&empty).as_str(), err(&empty).contains("no process is kept here")), ("", true));

    let mut agent = place.start();
    let pid = place.etcd_pid();
    let list = json(&until(&place, &["ps", "--output", "json"], |text| text.contains("\"serving\"")));
    let row = &list["processes"][0];
    assert_eq!(list["processes"].as_array().unwrap().len(), 1, "{list}");
    assert_eq!((&row["member"], &row["process"], &row["state"]), (&"n1".into(), &"etcd".into(), &"serving".into()));
    assert_eq!(
        (row["running"].as_bool(), row["pid"].as_u64(), row["restarts"].as_u64()),
        (Some(true), Some(pid.into()), Some(0))
    );
    assert!(row["rss_bytes"].as_u64().unwrap() > 1 << 20, "{row}");
    assert!(row["cpu_percent"].is_number() && row["box"].is_string() && row["since_ms"].is_number(), "{row}");
    assert_eq!(row["agent_pid"].as_u64(), Some(agent.pid().into()));
    let table = good(&until(&place, &["ps"], |text| text.contains("serving")));
    assert!(table.starts_with("MEMBER") && table.contains(&pid.to_string()), "{table}");

    // By name, by member and name, by file, by state dir, by the dir of all.
    let (config, one, all) = (place.path("cluster.yaml"), state(&place), place.path("var/lib/quorate"));
    let (config, one, all) = (config.display().to_string(), one.display().to_string(), all.display().to_string());
    for args in [
        vec!["pid", "etcd"],
        vec!["pid", "n1/etcd"],
        vec!["pid", "etcd", "--name", "n1"],
        vec!["pid", "etcd", "--config", &config],
        vec!["pid", "etcd", "--state-dir", &one],
        vec!["pid", "etcd", "--state-dir", &all],
    ] {
        assert_eq!(good(&operate(&place, &args)), format!("{pid}\n"), "{args:?}");
    }
    assert_eq!(json(&operate(&place, &["pid", "etcd", "--output", "json"]))["pid"].as_u64(), Some(pid.into()));
    let wrong = failed(&operate(&place, &["pid", "etc"]), 1, "Q1150");
    assert!(wrong.contains("did you mean `etcd`?"), "{wrong}");
    failed(&operate(&place, &["pid", "n2/etcd"]), 1, "Q1150");
    failed(&operate(&place, &["pid", "etcd", "--name", "n2"]), 1, "Q1150");

    let logged = good(&operate(&place, &["logs", "etcd", "--since", "10m"]));
    assert!(logged.contains("ready to serve client requests"), "{logged}");
    let grave = good(&operate(&place, &["logs", "n1/etcd", "--level", "fatal"]));
    assert_eq!(grave, "");
    assert!(good(&operate(&place, &["logs", "--state-dir", &one])).contains("ready to serve"));
    failed(&operate(&place, &["logs", "etc"]), 1, "Q1150");
    // Where there is one etcd and the usual file, nothing has to be named.
    assert!(good(&operate(&place, &["logs"])).contains("ready to serve"));
    assert!(good(&operate(&place, &["status"])).starts_with("n1 serving"));

    // The agent is dead, and etcd lives.
    agent.kill();
    let list = json(&operate(&place, &["ps", "--output", "json"]));
    let row = &list["processes"][0];
    assert_eq!((&row["state"], &row["cause"]), (&"running".into(), &"no agent tends it".into()), "{row}");
    assert_eq!(good(&operate(&place, &["pid", "etcd"])), format!("{pid}\n"));
    // And without its shim, which leads its session.
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    kill_hard(stat.rsplit_once(") ").unwrap().1.split(' ').nth(3).unwrap().parse().unwrap());
    assert_eq!(good(&operate(&place, &["pid", "etcd"])), format!("{pid}\n"));

    let stopped = place.quorate(&["stop"]);
    assert_eq!(code(&stopped), 0, "{}", err(&stopped));
    let not = failed(&operate(&place, &["pid", "etcd"]), 1, "Q1151");
    assert!(not.contains("`n1/etcd` does not run"), "{not}");
    let list = operate(&place, &["ps"]);
    assert_eq!(code(&list), 3, "{}", out(&list));
    assert!(out(&list).contains("stopped"), "{}", out(&list));
}

#[test]
fn two_members_of_one_machine_are_told_apart() {
    let place = rooted("3.5.16");
    let mut agent = place.start();
    // A second one, which never ran, beside it.
    let other = place.path("var/lib/quorate/n2/agent.lock");
    put(&other, "");
    let both = failed(&operate(&place, &["pid", "etcd"]), 64, "Q1152");
    assert!(both.contains("`n1/etcd` or `n2/etcd`"), "{both}");
    assert_eq!(good(&operate(&place, &["pid", "n1/etcd"])), format!("{}\n", place.etcd_pid()));
    failed(&operate(&place, &["pid", "n2/etcd"]), 1, "Q1151");
    let list = operate(&place, &["ps"]);
    assert_eq!((code(&list), out(&list).lines().count()), (3, 4), "{}", out(&list));
    assert_eq!(code(&operate(&place, &["ps", "--name", "n1"])), 0);
    agent.stop();
}

#[test]
fn roots_keep_members_apart_and_explicit_dirs_stay() {
    let place = rooted("3.5.16");
    let mut agent = place.start();
    for dir in ["var/lib/etcd/member", "var/lib/quorate/n1"] {
        assert!(place.path(dir).is_dir(), "{dir}");
    }
    // Another root sees nothing of it.
    let elsewhere = tempfile::tempdir().unwrap();
    let other = command(&place, &["ps"]).env("QUORATE_ROOT", elsewhere.path()).output().unwrap();
    assert_eq!(good(&other), "");
    let relative = command(&place, &["ps"]).env("QUORATE_ROOT", "trial").output().unwrap();
    failed(&relative, 64, "Q0003");
    agent.stop();
    // A dir that the file names and that is not one of ours is not moved.
    let explicit = file(&place, &format!("  state-dir: {}\n", elsewhere.path().display()));
    put(&place.path("cluster.yaml"), &explicit);
    let plan = place.quorate(&["plan"]);
    assert!(code(&plan) != 2, "{}", err(&plan));
    let shown = json(&operate(
        &place,
        &["ps", "--config", &place.path("cluster.yaml").display().to_string(), "--output", "json"],
    ));
    assert_eq!(shown["processes"].as_array().unwrap().len(), 0);
}

#[test]
fn a_crash_is_seen_as_a_restart() {
    let place = rooted("3.5.16");
    let mut agent = place.start();
    let first = place.etcd_pid();
    kill_hard(first);
    let mut last = String::new();
    wait_until("another etcd", LIMIT, || {
        last = out(&operate(&place, &["ps", "--output", "json"]));
        let list: serde_json::Value = serde_json::from_str(&last).unwrap();
        let row = &list["processes"][0];
        row["restarts"].as_u64() >= Some(1)
            && row["state"] == "serving"
            && row["pid"].as_u64().is_some_and(|pid| pid != u64::from(first))
    });
    agent.stop();
}

#[test]
fn pages_of_the_manual_are_written_and_whole() {
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().join("man1");
    let written = std::process::Command::new(quorate()).arg("man").arg("--dir").arg(&to).output().unwrap();
    assert!(good(&written).contains("pages written"));
    let names: Vec<String> =
        std::fs::read_dir(&to).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    for name in ["quorate.1", "quorate-ps.1", "quorate-trace.1", "quorate-exec.1", "quorate-shell.1", "quorate-ctl.1"] {
        assert!(names.iter().any(|there| there == name), "{name} is not among {names:?}");
    }
    for name in &names {
        let text = std::fs::read_to_string(to.join(name)).unwrap();
        for section in ["NAME", "SYNOPSIS", "EXAMPLES"] {
            let body = text.split(&format!("\n.SH {section}\n")).nth(1).unwrap_or_else(|| panic!("{name}: {section}"));
            let body = body.split("\n.SH ").next().unwrap();
            assert!(
                body.lines().any(|line| !line.starts_with('.') && !line.trim().is_empty()),
                "{name}: {section} is empty"
            );
        }
    }
    // Completions know the commands too.
    let script = std::process::Command::new(quorate()).args(["completions", "bash"]).output().unwrap();
    for name in ["ps", "pid", "trace", "exec", "shell", "ctl", "audit"] {
        assert!(good(&script).contains(&format!("quorate__subcmd__{name}")), "{name}");
    }
}
