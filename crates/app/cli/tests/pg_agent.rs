//! `postgres:` in the file of the agent: hosts without etcd, and a host with both.

#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "scenery that is thrown away; a test fails where it stands"
)]

mod pg_support;

use std::time::Instant;

use pg_support::{Group, LIMIT, POOLER, WRITE, count, eventually, once, open_to_all, runtime};
use quorate_testkit::{Running, free_port};
use rustix::process::Signal;
use serde_json::Value;

/// The section, with nodes that have addresses of their own.
fn section(group: &Group, nodes: usize, more: &str) -> String {
    let root = group.root.path().display();
    let mut text = format!(
        "postgres:\n  user: nobody\n  bin-dir: {}\n  lease-ttl: 6s\n  data-dir: \"{root}/pg/{{name}}\"\n  users: [{{name: app, \
         password-file: {root}/app.password}}]\n{more}  nodes:\n",
        quorate_testkit::postgres(18).display()
    );
    for node in group.nodes.iter().take(nodes) {
        let [server, pooler, health, write, read] = &node.ports;
        text += &format!(
            "    - {{name: {}, address: 127.0.0.1, port: {server}, pooler-port: {pooler}, health-port: {health}, write-port: \
             {write}, read-port: {read}}}\n",
            node.name
        );
    }
    text
}

fn head(group: &Group) -> String {
    let root = group.root.path().display();
    format!("token: t\ntls: {{dir: \"{root}/pki/{{name}}\"}}\n")
}

fn write(group: &Group, text: &str) {
    std::fs::write(group.path("cluster.yaml"), text).unwrap();
}

/// Starts the agent of a host: the one of etcd.
fn start(group: &mut Group, at: usize) {
    let file = group.path("cluster.yaml").display().to_string();
    let name = group.nodes[at].name.clone();
    let args = ["run", "--config", &file, "--name", &name].map(str::to_owned);
    group.nodes[at].agent = Some(Running::start(&open_to_all(), &args, &[]));
}

/// A command about one host, as JSON.
fn json(group: &Group, at: usize, words: &[&str]) -> Value {
    let name = group.nodes[at].name.clone();
    let words: Vec<&str> =
        ["--output", "json"].into_iter().chain(words.iter().copied()).chain(["--name", &name]).collect();
    let output = group.command(&words).output().unwrap();
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)))
}

/// The processes of a host, by name.
fn pids(group: &Group, at: usize) -> Vec<(String, u64)> {
    let list = json(group, at, &["ps"]);
    let rows = list["processes"].as_array().unwrap().iter();
    rows.filter_map(|row| Some((row["process"].as_str()?.to_owned(), row["pid"].as_u64()?))).collect()
}

/// No part is root's, each has a box, and below a root agent it is the strict one.
fn all_are_held(group: &Group, at: usize) {
    let root = rustix::process::geteuid().is_root();
    let list = json(group, at, &["ps"]);
    for row in list["processes"].as_array().unwrap() {
        let uid = row["confinement"]["uid"].as_u64();
        assert!(uid.is_some_and(|uid| uid != 0), "{row}");
        assert_eq!(row["box"], if root { "strict" } else { "basic" }, "{row}");
        assert_eq!((&row["box_lacks"], &row["confinement"]["seccomp"]), (&Value::Null, &true.into()), "{row}");
        // It is the program itself that is shown, and not who keeps it.
        let exe = std::fs::read_link(format!("/proc/{}/exe", row["pid"])).unwrap();
        assert!(exe.to_string_lossy().ends_with(row["process"].as_str().unwrap()), "{exe:?} {row}");
    }
}

/// What is answered at a path of the health port.
fn get(group: &Group, at: usize, path: &str) -> (u16, String) {
    let url = format!("http://127.0.0.1:{}{path}", group.nodes[at].ports[2]);
    runtime().block_on(async {
        match reqwest::get(url).await {
            Ok(answer) => (answer.status().as_u16(), answer.text().await.unwrap_or_default()),
            Err(_) => (0, String::new()),
        }
    })
}

/// SIGTERM, and the end.
fn stop(group: &mut Group, at: usize) {
    let mut agent = group.nodes[at].agent.take().unwrap();
    agent.signal(Signal::TERM);
    let begun = Instant::now();
    while agent.ended().is_none() {
        assert!(begun.elapsed() < LIMIT, "the agent does not end\n{}", agent.log_tail(30));
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

#[test]
fn hosts_without_etcd_keep_a_group_and_their_agents_come_and_go() {
    let mut group = Group::new("role: manager");
    let pg_support::Store::Etcd(server) = &group.store else { panic!("no etcd") };
    let url = server.seat.client_url();
    let root = group.root.path().display().to_string();
    let text = format!(
        "{}agent: {{state-dir: \"{root}/state\"}}\n{}",
        head(&group),
        section(&group, 3, &format!("  store-urls: [\"{url}\"]\n"))
    );
    write(&group, &text);
    for at in 0..3 {
        start(&mut group, at);
    }
    group.wait_ready();
    let runtime = runtime();
    runtime
        .block_on(eventually(&group.door(0, WRITE), "INSERT INTO rdpg.events (host, key, msg) VALUES ('h', 'k', '1')"));

    // It is shown everywhere.
    let writer = group.writer().unwrap();
    group.wait("the agent serves", |group| json(group, writer, &["status"])["phase"] == "serving");
    let status = json(&group, writer, &["status"]);
    assert_eq!(
        (&status["postgres"]["door"], &status["postgres"]["ready"]),
        (&"writer".into(), &true.into()),
        "{status}"
    );
    let running = pids(&group, writer);
    assert_eq!(running.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["haproxy", "pgbouncer", "postgres"]);
    all_are_held(&group, writer);
    let (code, ready) = get(&group, writer, "/readyz");
    assert_eq!((code, ready.contains("\"postgres\":\"writer\"")), (200, true), "{ready}");
    let (_, metrics) = get(&group, writer, "/metrics");
    for line in ["quorate_pg_ready 1", "quorate_pg_writer 1", "quorate_pg_part_ready{part=\"haproxy\"} 1"] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
    let logs = group.command(&["logs", "postgres", "--name", &group.nodes[writer].name]).output().unwrap();
    assert!(String::from_utf8_lossy(&logs.stdout).contains("ready to accept connections"), "{logs:?}");

    // An agent that is killed leaves everything running, and the next one takes it over.
    group.kill_agent(writer);
    start(&mut group, writer);
    group.wait_ready();
    assert_eq!(pids(&group, writer), running);

    // A planned move leads connections on; when the last of them is gone the pooler is a plain reader again.
    let before = group.writer().unwrap();
    let target = group.nodes[(before + 1) % 3].name.clone();
    group.wait("the write master moves", |group| group.pg(&["switchover", "--to", &target]).status.success());
    group.wait("a reader again", |group| group.status(before).is_some_and(|status| status["door"] == "reader"));
    let said = runtime
        .block_on(once(&group.door(before, POOLER), "INSERT INTO rdpg.events (host, key, msg) VALUES ('h', 'k', '2')"));
    assert!(said.unwrap_err().contains("25006"));

    // SIGTERM hands the place over and ends all that runs on the host.
    let writer = group.writer().unwrap();
    stop(&mut group, writer);
    let next = group.writer().expect("the place was handed over, not left to its lease");
    assert_ne!(next, writer);
    assert_eq!(pids(&group, writer), []);
    runtime.block_on(eventually(
        &group.door(next, WRITE),
        "INSERT INTO rdpg.events (host, key, msg) VALUES ('h', 'k', '3')",
    ));
    start(&mut group, writer);
    group.wait_ready();
    let rows = "SELECT count(*) FROM rdpg.events WHERE host = 'h'";
    group.wait("both rows", |group| runtime.block_on(count(&group.inside(writer), rows)) == 2);
}

#[test]
fn one_agent_keeps_etcd_and_postgresql_and_ends_them_in_order() {
    let mut group = Group::new("role: manager");
    let root = group.root.path().display().to_string();
    let [client, peer, agent, health] = std::array::from_fn(|_| free_port());
    let etcd = quorate_testkit::etcd("3.5.16").etcd;
    let text = format!(
        "{}bootstrap: {{id: 1}}\nagent: {{state-dir: \"{root}/state\", etcd-binary: {}}}\nmembers:\n  - {{name: n1, client-urls: \
         [\"https://127.0.0.1:{client}\"], peer-urls: [\"https://127.0.0.1:{peer}\"], listen-agent-url: \
         \"https://127.0.0.1:{agent}\", listen-health-url: \"https://127.0.0.1:{health}\", data-dir: {root}/data-n1}}\n{}",
        head(&group),
        etcd.display(),
        section(&group, 1, "")
    );
    write(&group, &text);
    group.nodes.truncate(1);
    start(&mut group, 0);
    group.wait_ready();
    let runtime = runtime();
    let sql = "INSERT INTO rdpg.events (host, key, msg) VALUES ('h', 'k', '1')";
    runtime.block_on(eventually(&group.door(0, WRITE), sql));
    group.wait("etcd serves", |group| json(group, 0, &["status"])["phase"] == "serving");
    let names = |group: &Group| pids(group, 0).into_iter().map(|(name, _)| name).collect::<Vec<_>>();
    assert_eq!(names(&group), ["etcd", "haproxy", "pgbouncer", "postgres"]);
    all_are_held(&group, 0);
    stop(&mut group, 0);
    assert_eq!(names(&group), [] as [&str; 0]);
    start(&mut group, 0);
    group.wait_ready();
    runtime.block_on(eventually(&group.door(0, WRITE), sql));
    assert_eq!(runtime.block_on(count(&group.inside(0), "SELECT count(*) FROM rdpg.events WHERE host = 'h'")), 2);

    // It has a word before the host is detached, joins another cluster or becomes a client, until the file has no server here.
    let registered = group.path("state/n1/hooks/services/postgresql");
    let words = std::fs::read_to_string(&registered).unwrap();
    assert!(words.contains("quorate pg detach n1") && words.contains("to-client"), "{words}");
    stop(&mut group, 0);
    write(&group, text.split("postgres:").next().unwrap());
    start(&mut group, 0);
    group.wait("it has no word any more", |_| !registered.exists());
}
