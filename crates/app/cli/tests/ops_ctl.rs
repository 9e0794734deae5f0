//! An operator uses etcdctl through `quorate ctl`: real, missing, and as a login shell finds it.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod agent_support;
mod ops_support;

use std::os::unix::fs::symlink;
use std::process::{Command, Stdio};

use agent_support::Place;
use ops_support::{
    LIMIT, audited, code, command, err, failed, file, good, json, operate, out, put, rooted, script, state,
};
use quorate_testkit::{Launch, Seat, Server, project_root, quorate, wait_until};
use serde_json::Value;

/// With etcd's own times: a second member is to join, and a busy machine is to cost no leader.
fn calm() -> Place {
    let mut place = rooted("3.5.16");
    let quick = "etcd: {heartbeat-interval: 10, election-timeout: 100}\n";
    let text = place.raw.take().unwrap().replace(quick, "");
    put(&place.path("etc/quorate/cluster.yaml"), &text);
    place.raw = Some(text);
    place
}

/// A second member, which the cluster file does not know.
fn second(place: &Place) -> Server {
    let seat = Seat::new("n2");
    good(&operate(place, &["ctl", "member", "add", "n2", &format!("--peer-urls={}", seat.peer_url())]));
    let initial = format!("n1={},n2={}", place.seat.peer_url(), seat.peer_url());
    Launch::new(&place.tools, &seat, &place.path("second"))
        .arg("--initial-cluster")
        .arg(initial)
        .arg("--initial-cluster-state")
        .arg("existing")
        .start()
}

#[test]
fn etcdctl_is_told_the_endpoints_that_there_are_now() {
    let place = calm();
    failed(
        &command(&place, &["ctl", "member", "list"]).env("QUORATE_ROOT", "/nonexistent").output().unwrap(),
        4,
        "Q1159",
    );
    let mut agent = place.start();
    assert!(good(&operate(&place, &["ctl", "member", "list"])).contains(&place.seat.client_url()));
    good(&operate(&place, &["ctl", "put", "key", "geheim"]));
    assert_eq!(good(&operate(&place, &["ctl", "get", "key", "--print-value-only"])), "geheim\n");
    // Flags and codes are etcdctl's.
    let wrong = operate(&place, &["ctl", "get"]);
    assert!(code(&wrong) != 0 && err(&wrong).contains("get command needs"), "{}", err(&wrong));
    let other = operate(&place, &["ctl", "--", "--endpoints=http://127.0.0.1:1", "--command-timeout=1s", "get", "key"]);
    assert!(code(&other) != 0, "{}", out(&other));

    let second = second(&place);
    wait_until("two members", LIMIT, || {
        let status = operate(&place, &["ctl", "--output", "json", "endpoint", "status"]);
        code(&status) == 0 && json(&status).as_array().is_some_and(|all| all.len() == 2)
    });
    let local = json(&operate(&place, &["ctl", "--local", "--output", "json", "endpoint", "status"]));
    assert_eq!(local[0]["Endpoint"], Value::from(place.seat.client_url()));
    assert_eq!(local.as_array().unwrap().len(), 1, "{local}");

    // What changes something, or reads more than a key, is on record, and no value is.
    good(&operate(&place, &["ctl", "get", "--keys-only", "--prefix", "k"]));
    good(&operate(&place, &["ctl", "get", "--from-key", ""]));
    let lines = audited(&state(&place));
    let words: Vec<String> = lines.iter().map(|line| line["words"].to_string()).collect();
    assert_eq!(lines.len(), 4, "{words:?}");
    assert_eq!(words[0], r#"["put","key","***"]"#);
    assert!(words[1].starts_with(r#"["member","add","n2","#), "{words:?}");
    assert_eq!(words[2..], [r#"["get","--keys-only","--prefix","k"]"#, r#"["get","--from-key",""]"#]);

    without_etcdctl(&place);
    drop(second);
    agent.stop();
}

/// The same member with etcd in a folder of its own: there is no etcdctl anywhere.
fn without_etcdctl(place: &Place) {
    std::fs::create_dir(place.path("alone")).unwrap();
    symlink(&place.tools.etcd, place.path("alone/etcd")).unwrap();
    let config = place.path("alone/cluster.yaml");
    let text =
        file(place, "").replace(&place.binary.display().to_string(), &place.path("alone/etcd").display().to_string());
    put(&config, &text);
    let config = config.display().to_string();
    let alone = |args: &[&str]| {
        let all = [&["ctl", "--config", &config], args].concat();
        command(place, &all).env("PATH", "/nonexistent").current_dir("/").output().unwrap()
    };
    let mut members = alone(&["member", "list"]);
    wait_until("both members", LIMIT, || {
        members = alone(&["member", "list"]);
        code(&members) == 0
    });
    assert!(good(&members).contains("n2") && err(&members).contains("etcdctl is not installed"), "{}", out(&members));
    wait_until("health", LIMIT, || code(&alone(&["endpoint", "health"])) == 0);
    wait_until("the status of both", LIMIT, || out(&alone(&["endpoint", "status"])).matches("3.5.16").count() == 2);
    failed(&alone(&["put", "a", "b"]), 1, "Q1158");
    let as_json = |args: &[&str]| {
        let all = [&["ctl", "--config", &config, "--output", "json"], args].concat();
        json(&command(place, &all).env("PATH", "/nonexistent").current_dir("/").output().unwrap())
    };
    let leader =
        |of: &Value| of["endpoints"].as_array().unwrap().iter().find(|e| e["leader"] == true).map(|e| e["id"].clone());
    wait_until("a leader", LIMIT, || leader(&as_json(&["endpoint", "status"])).is_some());
    // Once more where the leader changed by itself in between.
    wait_until("another leader", LIMIT, || {
        let now = as_json(&["endpoint", "status"]);
        let mut others = now["endpoints"].as_array().unwrap().iter().filter(|one| one["leader"] == false);
        let Some(to) = others.next().and_then(|one| one["id"].as_str()) else { return false };
        let moved = alone(&["move-leader", to]);
        code(&moved) == 0 && out(&moved).contains(&format!("to {to}"))
    });
    failed(&alone(&["move-leader", "not-an-id"]), 64, "Q0003");
}

#[test]
fn certificates_and_passwords_reach_etcdctl_through_its_environment_alone() {
    let mut place = rooted("3.5.16");
    // Beside the program that the file names lies one that says what it was given.
    std::fs::create_dir(place.path("bin")).unwrap();
    symlink(&place.tools.etcd, place.path("bin/etcd")).unwrap();
    script(&place.path("bin/etcdctl"), "#!/bin/sh\necho \"args: $*\"\nenv | grep ^ETCDCTL_\nexit 42\n");
    place.binary = place.path("bin/etcd");
    put(&place.path("password"), "geheim\n");
    let dir = place.root.path().display();
    let files =
        format!("{{cert-file: \"{dir}/{{name}}.pem\", key-file: {dir}/key.pem, trusted-ca-file: {dir}/ca.pem}}");
    let text = file(&place, &format!("  etcd-user: root\n  etcd-password-file: {dir}/password\n"))
        .replace("http://", "https://")
        .replace("plaintext: true", &format!("tls: {{peer: {files}, client: {files}}}"));
    put(&place.path("etc/quorate/cluster.yaml"), &text);
    let shown = operate(&place, &["ctl", "--output", "json", "member", "list"]);
    assert_eq!(code(&shown), 42, "{}{}", out(&shown), err(&shown));
    let said = out(&shown);
    assert!(said.starts_with("args: member list\n"), "{said}");
    for line in [
        format!("ETCDCTL_ENDPOINTS={}", place.seat.client_url().replace("http:", "https:")),
        format!("ETCDCTL_CERT={dir}/n1.pem"),
        format!("ETCDCTL_KEY={dir}/key.pem"),
        format!("ETCDCTL_CACERT={dir}/ca.pem"),
        "ETCDCTL_USER=root".to_owned(),
        "ETCDCTL_PASSWORD=geheim".to_owned(),
        "ETCDCTL_WRITE_OUT=json".to_owned(),
    ] {
        assert!(said.lines().any(|there| there == line), "{line} is not in {said}");
    }
    // etcdctl 3.6 warns on every call where this is set.
    assert!(!said.contains("ETCDCTL_API"), "{said}");
    // No member answers, and that is said.
    assert!(err(&shown).contains("asking those of the cluster file"), "{}", err(&shown));
    assert!(!err(&shown).contains("geheim"));
    // Flags that are given win; etcdctl would refuse to have both.
    let given =
        out(&operate(&place, &["ctl", "get", "k", "--user", "u:p", "--cert=c", "--endpoints", "e", "-w", "table"]));
    for name in ["USER", "PASSWORD", "CERT=", "ENDPOINTS", "WRITE_OUT"] {
        assert!(!given.contains(&format!("ETCDCTL_{name}")), "{name}: {given}");
    }
    // No member is kept here, so there is no log; a change says so.
    let change = operate(&place, &["ctl", "put", "k", "v"]);
    assert_eq!(code(&change), 42);
    assert!(err(&change).contains("[Q1160]"), "{}", err(&change));
}

#[test]
fn a_login_shell_has_quorate_and_an_etcdctl_that_knows_the_cluster() {
    let place = rooted("3.5.16");
    let mut agent = place.start();
    let (bin, deploy) = (place.path("usr/lib/quorate/bin"), project_root().join("deploy"));
    std::fs::create_dir_all(&bin).unwrap();
    symlink(quorate(), bin.join("quorate")).unwrap();
    symlink(deploy.join("bin/etcdctl"), bin.join("etcdctl")).unwrap();
    put(&place.path("home/.bash_profile"), &format!(". {}\n", deploy.join("profile.d/quorate.sh").display()));
    let login = |line: &str, env: &[(&str, &str)]| {
        let mut shell = Command::new("bash");
        shell.args(["-l", "-c", line]).env_clear().env("HOME", place.path("home")).env("PATH", "/usr/bin:/bin");
        shell.stdin(Stdio::null()).envs(place.env.iter().map(|(name, value)| (name, value)));
        shell.envs(env.iter().copied()).output().unwrap()
    };
    let found = good(&login("command -v quorate; command -v etcdctl", &[]));
    assert_eq!(found, format!("{0}/quorate\n{0}/etcdctl\n", bin.display()));
    assert_eq!(good(&login("quorate pid etcd", &[])), format!("{}\n", place.etcd_pid()));
    assert!(good(&login("etcdctl member list", &[])).contains(&place.seat.client_url()));
    // The helper is not taken for etcdctl itself, also where there is no other.
    let alone = place.path("alone.yaml");
    put(&alone, &file(&place, "").replace(&place.binary.display().to_string(), "/nonexistent/etcd"));
    let alone = alone.display().to_string();
    let put_it = login("cd / && PATH=${PATH%%:*} etcdctl put a b", &[("QUORATE_CONFIG", &alone)]);
    failed(&put_it, 1, "Q1158");
    // Twice changes nothing, and without the folder nothing is done. Shells may set a PATH of their own first.
    let twice = good(&login(". ~/.bash_profile; echo ${quorate_bin-unset}:$PATH", &[]));
    assert!(twice.starts_with(&format!("unset:{}:", bin.display())), "{twice}");
    assert_eq!(twice.matches("quorate/bin").count(), 1, "{twice}");
    let without = good(&login("echo $PATH", &[("QUORATE_ROOT", "/nonexistent")]));
    assert!(!without.contains("quorate"), "{without}");
    agent.stop();
}
