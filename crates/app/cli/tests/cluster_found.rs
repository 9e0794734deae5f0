//! Founding a declared cluster: in any order, exactly once, or not at all and with a reason.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod cluster_support;

use std::io::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use cluster_support::{Declared, LIMIT, Wire};
use quorate_testkit::{VERSIONS, quorate, wait_until};

#[test]
fn three_nodes_found_one_cluster_with_mutual_tls_on_every_release() {
    for version in VERSIONS {
        let mut cluster = Declared::new(version, 3, Wire::Tls);
        cluster.start_all();
        cluster.wait_serving();
        cluster.put(0, "k", version);
        cluster.assert_all_hold("k", version);
        cluster.assert_one_cluster();
    }
}

/// The cluster version in a database: key and value lie side by side.
const STORED: &[u8] = b"clusterVersion3.0.0";

/// What the etcd of a member answers in clear text.
fn said_by_etcd(cluster: &Declared, at: usize, path: &str) -> String {
    let url = cluster.client_url(at);
    let place = url.strip_prefix("http://").unwrap();
    let ask = || {
        let mut stream = std::net::TcpStream::connect(place)?;
        write!(stream, "GET {path} HTTP/1.0\r\nHost: {place}\r\n\r\n")?;
        std::io::read_to_string(stream)
    };
    ask().unwrap_or_default()
}

/// Until then their data says 3.0, since no member has learned which release the last one is.
#[test]
fn members_start_again_while_one_of_them_is_not_heard_of() {
    for version in VERSIONS {
        let mut cluster = Declared::new(version, 3, Wire::Clear);
        // The program of the third one has its release, and ends at each start.
        let (program, real) = (cluster.path("etcd"), cluster.tools.etcd.display().to_string());
        let text = format!("#!/bin/sh\ncase \"$1\" in --version) exec {real} --version;; esac\nexit 1\n");
        std::fs::File::create(&program).unwrap().write_all(text.as_bytes()).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        cluster.file_as("third.yaml", &cluster.text().replace(&real, &program.display().to_string()));
        cluster.start(0);
        cluster.start(1);
        cluster.start_with(2, &["--config", "third.yaml"]);
        for at in [0, 1] {
            cluster.wait_phase(at, "serving");
        }
        cluster.put(0, "k", version);
        for at in [0, 1] {
            wait_until("the first version", LIMIT, || {
                said_by_etcd(&cluster, at, "/version").contains("\"etcdcluster\":\"3.0.0\"")
            });
            // From 3.5 on it is in the database, as soon as that is written to disk.
            let stored = || std::fs::read(cluster.data(at).join("member/snap/db")).unwrap_or_default();
            let holds = |db: Vec<u8>| db.windows(STORED.len()).any(|bytes| bytes == STORED);
            wait_until("the first version on disk", LIMIT, || version.starts_with("3.4") || holds(stored()));
        }
        for at in [0, 1] {
            cluster.power_off(at);
            cluster.start(at);
            cluster.wait_phase(at, "serving");
        }
        assert!(
            said_by_etcd(&cluster, 0, "/version").contains("\"etcdcluster\":\"3.0.0\""),
            "it was started on another one"
        );
        cluster.power_off(2);
        cluster.start(2);
        cluster.wait_serving();
        cluster.assert_all_hold("k", version);
    }
}

#[test]
fn a_declared_node_that_is_missing_is_waited_for_by_name() {
    let mut cluster = Declared::new("3.5.16", 3, Wire::Clear);
    let file = cluster.path("cluster.yaml").display().to_string();
    // The last one first: the order does not matter.
    cluster.start(2);
    cluster.start(0);
    for at in [0, 2] {
        let status = cluster.wait_status(at, "wait for n2 alone", |status| {
            status["phase"] == "waiting" && status["cause"].as_str().unwrap().starts_with("waiting for `n2` to promise")
        });
        assert_eq!((&status["code"], &status["ledger"]), (&"Q0950".into(), &"promised".into()), "{status}");
    }
    assert!(!cluster.data(0).exists(), "nothing is made before all have promised");
    let asked = cluster.quorate(&["cluster", "bootstrap", &file, "--wait", "0s"]);
    let aside = String::from_utf8(asked.stderr).unwrap();
    assert!(aside.contains("2 of 3 agents answer; no answer of `n2`"), "{aside}");
    assert!(aside.contains("n1: has promised founding 1"), "{aside}");
    let text = String::from_utf8(asked.stdout).unwrap();
    assert_eq!(asked.status.code(), Some(3), "{text}");
    assert!(text.contains("waiting for n2: no answer from the agent of `n2`"), "{text}");
    assert!(text.contains("has promised founding 1"), "{text}");
    let shown = cluster.quorate(&["cluster", "status", "--config", &file]);
    assert_eq!(shown.status.code(), Some(3), "{}", String::from_utf8_lossy(&shown.stdout));
    let plan = cluster.quorate(&["cluster", "plan", "--config", &file]);
    let text = String::from_utf8(plan.stdout).unwrap();
    assert_eq!(plan.status.code(), Some(3), "{text}");
    assert!(text.contains("n1, because there is no data, and no cluster to join"), "{text}");
    cluster.start(1);
    let done = cluster.quorate(&["cluster", "bootstrap", &file, "--wait", "90s"]);
    let aside = String::from_utf8(done.stderr).unwrap();
    assert!(aside.contains("n2: has started"), "what changes is said: {aside}");
    let text = String::from_utf8(done.stdout).unwrap();
    assert_eq!(done.status.code(), Some(0), "{text}");
    assert!(text.contains("is founded, and every member serves"), "{text}");
    cluster.assert_one_cluster();
    wait_until("one leader", LIMIT, || {
        let shown = cluster.json(&["cluster", "status", "--config", &file]);
        let members = shown["members"].as_array().unwrap();
        members.len() == 3 && members.iter().filter(|member| member["role"] == "leader").count() == 1
    });
    let shown = cluster.quorate(&["cluster", "status", "--config", &file]);
    let text = String::from_utf8(shown.stdout).unwrap();
    assert!(
        shown.status.success() && text.contains("3 of 3 voters answer, 2 are needed: tolerates 1 more failure"),
        "{text}"
    );
    let plan = cluster.quorate(&["cluster", "plan", "--config", &file]);
    assert!(plan.status.success(), "{}", String::from_utf8_lossy(&plan.stdout));
    // As documented, without a flag: the usual file, below the root of this trial.
    let root = cluster.path("root");
    std::fs::create_dir_all(root.join("etc/quorate")).unwrap();
    let words: [&[&str]; 3] = [&["cluster", "status"], &["cluster", "plan"], &["cluster", "links", "client"]];
    for words in words {
        let plain = |root: &std::path::Path| {
            let mut command = std::process::Command::new(quorate());
            command.args(words).env_remove("QUORATE_CONFIG").env("QUORATE_ROOT", root).output().unwrap()
        };
        let missing = plain(&cluster.path("nowhere"));
        let text = String::from_utf8_lossy(&missing.stderr).into_owned();
        assert!(missing.status.code() == Some(4) && text.contains("Q1159"), "{words:?}: {text}");
        std::fs::copy(cluster.path("cluster.yaml"), root.join("etc/quorate/cluster.yaml")).unwrap();
        let found = plain(&root);
        assert!(found.status.success(), "{words:?}: {}", String::from_utf8_lossy(&found.stderr));
    }
}

#[test]
fn nodes_that_declare_something_else_refuse_and_say_who() {
    let mut cluster = Declared::new("3.5.16", 3, Wire::Clear);
    let file = cluster.path("cluster.yaml").display().to_string();
    let other = cluster.text().replace("bootstrap: {id: 1}", "bootstrap: {id: 2}");
    cluster.file_as("other.yaml", &other);
    cluster.start(0);
    cluster.start(1);
    cluster.start_with(2, &["--config", "other.yaml"]);
    let status = cluster.wait_phase(0, "refused");
    assert_eq!(status["code"], "Q0949", "{status}");
    assert!(status["cause"].as_str().unwrap().contains("n3"), "{status}");
    let asked = cluster.quorate(&["cluster", "bootstrap", &file, "--wait", "0s"]);
    let text = String::from_utf8(asked.stderr).unwrap();
    assert_eq!(asked.status.code(), Some(5), "{text}");
    assert!(text.contains("n3") && text.contains("Q0949"), "{text}");
    assert!((0..3).all(|at| !cluster.data(at).exists()));
}

#[test]
fn what_is_killed_anywhere_while_founding_founds_once() {
    let rounds = if std::env::var("QUORATE_SWEEP").as_deref() == Ok("full") { 60 } else { 4 };
    for round in 0..rounds {
        let version = VERSIONS[round % VERSIONS.len()];
        let mut cluster = Declared::new(version, 3, Wire::Clear);
        cluster.start_all();
        // From the first instant to well after the start, another node each time.
        let victim = round % 3;
        let after = Duration::from_millis(u64::try_from(round * 1171 % 1500).unwrap());
        std::thread::sleep(after);
        match round % 2 {
            0 => cluster.power_off(victim),
            _ => cluster.kill_agent(victim),
        }
        cluster.start(victim);
        cluster.wait_serving();
        cluster.put(victim, "k", "v");
        cluster.assert_all_hold("k", "v");
        cluster.assert_one_cluster();
        for at in 0..3 {
            let replaced = std::fs::read_dir(cluster.root.path()).unwrap().flatten();
            let replaced: Vec<_> =
                replaced.filter(|entry| entry.file_name().to_string_lossy().contains("replaced")).collect();
            assert!(replaced.is_empty(), "round {round}, n{at}: {replaced:?}");
        }
    }
}
