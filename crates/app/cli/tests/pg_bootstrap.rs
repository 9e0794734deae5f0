//! A group of PostgreSQL servers comes to be: in any order, killed anywhere, twice.

mod pg_support;

use pg_support::{Group, READ, WRITE, count, eventually, once, runtime};

/// The records that a bootstrap writes. Who writes is found out anew at any time.
fn records(group: &Group) -> Vec<(String, serde_json::Value)> {
    let lasts = |key: &str| !["writer", "candidates"].iter().any(|part| key.contains(part));
    group.records().into_iter().filter(|(key, _)| lasts(key)).collect()
}

#[test]
fn nodes_come_in_any_order_and_make_one_group_once() {
    let mut group = Group::new("extensions: [pg_trgm]");
    group.start(2, &[]);
    group.start(0, &[]);
    group.wait("n1 waits for n2", |group| {
        group.status(0).is_some_and(|status| status["waiting"].as_str() == Some("`n2`"))
    });
    group.start(1, &[]);
    group.wait_ready();
    let overview = group.overview();
    assert_eq!((&overview["epoch"], &overview["writer_epoch"]), (&1.into(), &1.into()), "{overview}");
    assert_eq!(overview["leader"], overview["writer"], "{overview}");
    let writer = group.writer().unwrap();
    let runtime = runtime();
    runtime.block_on(async {
        // In through any node's proxy, to the write master; readers see it everywhere.
        for at in 0..3 {
            let sql = format!("INSERT INTO rdpg.config (cluster_id, key, value) VALUES ('t', 'from-{at}', 'x')");
            eventually(&group.door(at, WRITE), &sql).await;
        }
        for at in 0..3 {
            let written = "SELECT count(*) FROM rdpg.config WHERE key LIKE 'from-%'";
            let deadline = std::time::Instant::now() + pg_support::LIMIT;
            while count(&group.inside(at), written).await != 3 {
                assert!(std::time::Instant::now() < deadline, "rows do not arrive at {at}");
                tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            }
            eventually(&group.door(at, READ), "SELECT count(*) FROM cfsb.plans").await;
            assert!(count(&group.inside(at), "SELECT count(*) FROM cfsb.plans").await > 0);
        }
        // A node that is not the write master refuses writes, in the database itself.
        let other = (0..3).find(|at| *at != writer).unwrap();
        let said = once(
            &group.door(other, pg_support::POOLER),
            "INSERT INTO rdpg.events (host, key, msg) VALUES ('h', 'k', 'm')",
        )
        .await
        .unwrap_err();
        assert!(said.contains("25006"), "{said}");
    });
    // The second time nothing changes.
    let before = records(&group);
    let again = group.pg(&["bootstrap", "--name", "n1", "--wait", "60s"]);
    assert!(again.status.success(), "{}", String::from_utf8_lossy(&again.stderr));
    assert!(String::from_utf8_lossy(&again.stdout).contains("n1 had its part of group t already"), "{again:?}");
    // An agent that is killed and started anew finds all running, and the write master stays.
    for at in 0..3 {
        group.kill_agent(at);
        group.start(at, &[]);
    }
    group.wait_ready();
    assert_eq!(records(&group), before);
    group.wait("all is well", |group| group.pg(&["status"]).status.success());
    let writer = group.writer().unwrap();
    // All of a node ends by one command, and comes back by one.
    let other = (0..3).find(|at| *at != writer).unwrap();
    group.kill_agent(other);
    let name = group.nodes[other].name.clone();
    let stopped = group.pg(&["stop", "--name", &name]);
    assert!(stopped.status.success(), "{stopped:?}");
    assert_eq!(String::from_utf8_lossy(&stopped.stdout), "ended: proxy, pooler, server\n");
    let back = group.pg(&["bootstrap", "--name", &name, "--wait", "60s"]);
    assert!(back.status.success(), "{back:?}");
}

#[test]
fn consul_does_as_a_store_too() {
    let mut group = Group::on_consul("role: service, manager: main");
    group.start_all();
    group.wait_ready();
    let overview = group.overview();
    assert_eq!((&overview["epoch"], &overview["leader"]), (&1.into(), &overview["writer"]), "{overview}");
    let sql = "INSERT INTO rdpg.events (host, key, msg) VALUES ('h', 'k', 'm')";
    let runtime = runtime();
    runtime.block_on(eventually(&group.door(0, WRITE), sql));

    // All of the write master's node dies: another takes the place, later than with etcd.
    let first = group.writer().unwrap();
    group.kill_node(first);
    let killed = std::time::Instant::now();
    runtime.block_on(eventually(&group.door((first + 1) % 3, WRITE), sql));
    eprintln!("with Consul: first write after the loss of the write master's node: {:?}", killed.elapsed());
    group.wait("another writes", |group| group.writer().is_some_and(|at| at != first));
    group.start(first, &[]);
    group.wait_ready();
    group.assert_one_group();
}
