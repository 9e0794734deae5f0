//! A group that is written to on all nodes at once: conflicts, changes of the schema, nodes that leave and come, by command.

#![expect(clippy::disallowed_methods, clippy::unwrap_used, reason = "scenery that is thrown away")]

mod pg_support;

use std::collections::{BTreeMap, BTreeSet};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pg_support::{Group, LIMIT, Load, POOLER, Part, all_arrive, count, eventually, once, put, runtime, said, well};
use quorate_postgres::conflicts::counts;
use quorate_postgres::group::{round_trip, same_everywhere};
use quorate_postgres::sql::{Client, Limits};
use serde_json::Value;

#[test]
fn all_nodes_write_and_the_group_changes_meanwhile() {
    let mut group = Group::new("writers: all");
    group.start_all();
    group.wait_ready();
    let runtime = runtime();
    the_schema_grows(&group, &runtime);
    the_last_write_wins_and_the_losers_are_kept(&group, &runtime);
    repair_does_not_echo(&group, &runtime);
    a_server_that_crashed_is_opened_again(&mut group, &runtime);
    a_living_node_leaves_and_joins_under_load(&mut group, &runtime);
    let away = a_dead_node_leaves(&mut group, &runtime);
    a_node_that_dies_while_it_joins_is_let_go(&mut group, &runtime, away);
}

/// By command alone, and not past it.
fn the_schema_grows(group: &Group, runtime: &tokio::runtime::Runtime) {
    let file = group.path("shop.sql");
    let sql = "CREATE SCHEMA shop;\nCREATE TABLE shop.c (id int4 PRIMARY KEY, v text NOT NULL);\n\
               SELECT mesh.last_write_wins('shop.c');\nGRANT USAGE ON SCHEMA shop TO quorate_apps;\n\
               GRANT SELECT, INSERT, UPDATE ON shop.c TO quorate_apps;\n";
    put(&file, sql.as_bytes());
    let text = well(&group.pg(&["ddl", "apply", &file.display().to_string()]));
    assert!(text.starts_with("version 2 is on every node"), "{text}");
    runtime.block_on(async {
        let refused = once(&group.inside(0), "ALTER TABLE shop.c ADD COLUMN w text").await.unwrap_err();
        assert!(refused.contains("whose schema is changed on all nodes at once"), "{refused}");
        let refused = once(&group.inside(1), "DROP TABLE shop.c").await.unwrap_err();
        assert!(refused.contains("whose schema is changed on all nodes at once"), "{refused}");
        same_everywhere(&group.seats().await, LIMIT).await.unwrap();
    });
}

/// The conflicts that the command lists.
fn listed(group: &Group) -> Vec<Value> {
    let output = group.command(&["--output", "json", "pg", "conflicts", "list", "--limit", "1000"]).output().unwrap();
    let found: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    found["conflicts"].as_array().unwrap().clone()
}

/// Every node inserts a row of its own under the same key, at the same moment, and those who succeed remember it.
fn the_last_write_wins_and_the_losers_are_kept(group: &Group, runtime: &tokio::runtime::Runtime) {
    let moment = Arc::new(tokio::sync::Barrier::new(3));
    let writer = |at: usize| {
        let (place, moment) = (group.door(at, POOLER), Arc::clone(&moment));
        runtime.spawn(async move {
            let client = Client::connect(&place, Limits::default()).await.unwrap();
            let mut acknowledged = Vec::new();
            for id in 1..=40 {
                moment.wait().await;
                let word = format!("{id}-from-n{}", at + 1);
                // One that is there already was faster.
                if client.batch(&format!("INSERT INTO shop.c (id, v) VALUES ({id}, '{word}')")).await.is_ok() {
                    acknowledged.push((id, word));
                }
            }
            acknowledged
        })
    };
    let writers: Vec<_> = (0..3).map(writer).collect();
    let mut acknowledged: BTreeMap<i32, BTreeSet<String>> = BTreeMap::new();
    runtime.block_on(async {
        for writer in writers {
            for (id, word) in writer.await.unwrap() {
                acknowledged.entry(id).or_default().insert(word);
            }
        }
        let seats = group.seats().await;
        round_trip(&seats, LIMIT).await.unwrap();
        same_everywhere(&seats, LIMIT).await.unwrap();
    });
    assert_eq!(acknowledged.len(), 40);
    let log = listed(group);
    let in_log = |word: &str| {
        let wanted = format!("\"v\": \"{word}\"");
        log.iter().any(|row| row["lost"].as_str().is_some_and(|lost| lost.contains(&wanted)))
    };
    let mut lost = 0;
    for (id, words) in &acknowledged {
        let kept: String = runtime.block_on(async {
            let client = Client::connect(&group.inside(0), Limits::default()).await.unwrap();
            client.value("SELECT v FROM shop.c WHERE id = $1", &[id]).await.unwrap()
        });
        assert!(words.contains(&kept), "{id}: {kept} of {words:?}");
        for word in words.iter().filter(|word| **word != kept) {
            assert!(in_log(word), "{word} lost to {kept} and is in no log: {log:?}");
            lost += 1;
        }
    }
    assert!(lost > 0, "nobody met anybody");
    // Changes of rows that everybody has: all end with the same.
    let change = |at: usize| {
        let place = group.door(at, POOLER);
        runtime.spawn(async move {
            let client = Client::connect(&place, Limits::default()).await.unwrap();
            for round in 0..40 {
                let sql = format!("UPDATE shop.c SET v = 'n{}-{round}' WHERE id = {}", at + 1, round % 5 + 1);
                client.batch(&sql).await.unwrap();
            }
        })
    };
    let writers: Vec<_> = (0..3).map(change).collect();
    runtime.block_on(async {
        for writer in writers {
            writer.await.unwrap();
        }
        let seats = group.seats().await;
        round_trip(&seats, LIMIT).await.unwrap();
        same_everywhere(&seats, LIMIT).await.unwrap();
    });
}

fn repair_does_not_echo(group: &Group, runtime: &tokio::runtime::Runtime) {
    assert_eq!(well(&group.pg(&["conflicts", "repair"])), "all nodes have the same rows\n");
    // Behind everybody's back, a row vanishes from one node and another one changes, and nobody is told.
    let sql = "SET session_replication_role = replica; CREATE TEMP TABLE old AS SELECT * FROM shop.c WHERE id = 8; \
               UPDATE old SET v = 'old', updated_at = updated_at - interval '1 hour'; DELETE FROM shop.c WHERE id IN (7, 8); \
               INSERT INTO shop.c SELECT * FROM old; RESET session_replication_role";
    let before = runtime.block_on(async {
        let behind = Client::connect(&group.inside(1), Limits::default()).await.unwrap();
        behind.execute("SELECT pg_replication_origin_session_setup('mesh_repair')", &[]).await.unwrap();
        behind.batch(sql).await.unwrap();
        behind.execute("SELECT pg_replication_origin_session_reset()", &[]).await.unwrap();
        let mut before = Vec::new();
        for seat in group.seats().await {
            before.push(counts(&seat.client).await.unwrap());
        }
        before
    });
    assert_eq!(well(&group.pg(&["conflicts", "repair"])), "shop.c on n2: 2 rows put, 0 removed\n");
    runtime.block_on(async {
        let seats = group.seats().await;
        round_trip(&seats, LIMIT).await.unwrap();
        same_everywhere(&seats, LIMIT).await.unwrap();
        for (seat, before) in seats.iter().zip(&before).filter(|(seat, _)| seat.member.name != "n2") {
            assert_eq!(counts(&seat.client).await.unwrap(), *before, "nothing of it came to {}", seat.member.name);
        }
    });
    assert_eq!(well(&group.pg(&["conflicts", "repair"])), "all nodes have the same rows\n");
}

/// Where everybody may write, one that is not the write master is told so again after a crash.
fn a_server_that_crashed_is_opened_again(group: &mut Group, runtime: &tokio::runtime::Runtime) {
    let other = (0..3).find(|at| group.writer() != Some(*at)).unwrap();
    group.kill_part(other, Part::Server);
    runtime.block_on(eventually(&group.door(other, POOLER), "UPDATE shop.c SET v = 'again' WHERE id = 9"));
    group.wait_ready();
}

fn slots(group: &Group, runtime: &tokio::runtime::Runtime, at: usize, of: &str) -> i64 {
    let sql = format!("SELECT count(*) FROM pg_replication_slots WHERE slot_name LIKE 'mesh_{of}_%'");
    runtime.block_on(count(&group.inside(at), &sql))
}

fn a_living_node_leaves_and_joins_under_load(group: &mut Group, runtime: &tokio::runtime::Runtime) {
    let leaves = (0..3).find(|at| group.writer() != Some(*at)).unwrap();
    let stay: Vec<usize> = (0..3).filter(|at| *at != leaves).collect();
    let name = group.nodes[leaves].name.clone();
    let number = |at: usize| 1_000_000 * u64::try_from(at + 1).unwrap();
    let loads: Vec<Load> =
        stay.iter().map(|at| Load::begin(runtime, group.door(*at, POOLER), true, number(*at))).collect();
    // Those who write on the very node that leaves are refused in the end, and what it took is kept by the others.
    let leaving = Load::begin(runtime, group.door(leaves, POOLER), true, number(leaves));
    std::thread::sleep(Duration::from_millis(300));
    let text = well(&group.pg(&["detach", &name]));
    let (mut rows, refused, _) = leaving.end(runtime);
    assert!(!rows.is_empty() && !refused.is_empty(), "{} rows, {refused:?}", rows.len());
    assert!(text.ends_with(&format!("{name} is no longer in the group\n")), "{text}");
    group.wait("it is told", |group| group.says(leaves, "fault", "Q1303"));
    group.wait("its door is closed", |group| group.says(leaves, "door", "closed"));
    group.wait("nobody comes in", |group| runtime.block_on(once(&group.door(leaves, POOLER), "SELECT 1")).is_err());
    assert_eq!(slots(group, runtime, stay[0], &format!("n{}", leaves + 1)), 0);
    group.kill_agent(leaves);
    well(&group.pg(&["stop", "--name", &name]));
    std::fs::rename(group.data_dir(leaves), group.path("left")).unwrap();
    // It comes back with nothing, while the others write; a change of the schema waits for nobody.
    let file = group.path("more.sql");
    put(&file, b"ALTER TABLE shop.c ADD COLUMN note text;\n");
    well(&group.pg(&["ddl", "apply", &file.display().to_string()]));
    group.start(leaves, &[]);
    group.wait("it is told to join", |group| group.says(leaves, "fault", "Q1303"));
    well(&group.pg(&["join", &name]));
    for load in loads {
        let (acknowledged, failed, _) = load.end(runtime);
        assert!(failed.is_empty(), "{failed:?}");
        rows.extend(acknowledged);
    }
    group.wait_ready();
    all_arrive(group, runtime, &rows);
    group.assert_one_group();
    runtime.block_on(eventually(&group.door(leaves, POOLER), "UPDATE shop.c SET note = 'back' WHERE id = 1"));
}

fn a_dead_node_leaves(group: &mut Group, runtime: &tokio::runtime::Runtime) -> usize {
    let dies = (0..3).find(|at| group.writer() != Some(*at)).unwrap();
    let stays = (dies + 1) % 3;
    let name = group.nodes[dies].name.clone();
    let id = group.overview()["nodes"][dies]["id"].as_u64().unwrap();
    group.kill_node(dies);
    runtime.block_on(eventually(&group.door(stays, POOLER), "UPDATE shop.c SET note = 'without' WHERE id = 2"));
    // Those who answer are shown, and who does not is named.
    let text = said(&group.pg(&["conflicts", "list"]));
    assert!(text.contains(&format!("`{name}`")), "{text}");
    well(&group.pg(&["detach", &name]));
    assert_eq!(slots(group, runtime, stays, &format!("n{id}")), 0);
    runtime.block_on(async {
        let seats = group.seats().await;
        assert_eq!(seats.len(), 2);
        round_trip(&seats, LIMIT).await.unwrap();
        same_everywhere(&seats, LIMIT).await.unwrap();
    });
    dies
}

/// It dies for good in the middle of the copy: the group goes on without it by one command, and nobody was led to it meanwhile.
fn a_node_that_dies_while_it_joins_is_let_go(group: &mut Group, runtime: &tokio::runtime::Runtime, joins: usize) {
    let name = group.nodes[joins].name.clone();
    std::fs::rename(group.data_dir(joins), group.path("dead")).unwrap();
    // Its server copies nothing, for as long as it is not asked to.
    let file = group.path("cluster.yaml");
    let text = std::fs::read_to_string(&file).unwrap();
    put(
        &file,
        text.replace("writers: all", "writers: all, settings: {max_sync_workers_per_subscription: '0'}").as_bytes(),
    );
    group.start(joins, &[]);
    group.wait("it is told to join", |group| group.says(joins, "fault", "Q1303"));
    put(&file, text.as_bytes());
    let (url, read) =
        (format!("http://127.0.0.1:{}/reader", group.nodes[joins].ports[2]), Arc::<AtomicBool>::default());
    let seen = Arc::clone(&read);
    let asks = runtime.spawn(async move {
        loop {
            if reqwest::get(&url).await.is_ok_and(|answer| answer.status().is_success()) {
                seen.store(true, Ordering::Relaxed);
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    let mut command = group.command(&["pg", "join", &name]).stderr(Stdio::null()).spawn().unwrap();
    group.wait("rows are copied", |group| group.records().get("operation").is_some_and(|it| it["step"] == "copying"));
    // So long that its agent has looked at it a few times.
    group.wait("it is seen", |group| group.says(joins, "links", "n"));
    assert_eq!(group.overview()["writer"].as_str().map(|writer| writer == name), Some(false));
    group.kill_node(joins);
    assert!(!command.wait().unwrap().success());
    asks.abort();
    assert!(!read.load(Ordering::Relaxed), "readers were led to a node that was empty");

    let status = group.pg(&["status"]);
    assert!(said(&status).contains(&format!("the join of `{name}` is not finished")), "{}", said(&status));
    let writer = group.nodes[group.writer().unwrap()].name.clone();
    let other = group.nodes.iter().find(|node| ![&name, &writer].contains(&&node.name)).unwrap().name.clone();
    let refused = said(&group.pg(&["detach", &other]));
    assert!(refused.contains(&format!("quorate pg detach {name}")), "{refused}");
    let text = well(&group.pg(&["detach", &name]));
    assert!(text.contains(&format!("the join of `{name}` is given up")), "{text}");
    assert!(!said(&group.pg(&["status"])).contains("not finished"));
    runtime.block_on(async {
        let seats = group.seats().await;
        assert_eq!(seats.len(), 2);
        round_trip(&seats, LIMIT).await.unwrap();
        same_everywhere(&seats, LIMIT).await.unwrap();
    });
}
