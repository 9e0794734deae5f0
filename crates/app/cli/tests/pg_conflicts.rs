//! Rows that cannot both be there, and changes of the schema that one node refuses: links stop, commands say why, nothing is lost.

#![expect(clippy::unwrap_used, reason = "scenery that is thrown away")]

mod pg_support;

use std::process::{Child, Output, Stdio};

use pg_support::{Group, LIMIT, POOLER, count, eventually, once, put, runtime, said, well};
use quorate_postgres::group::{round_trip, same_everywhere};
use quorate_postgres::schema;
use quorate_postgres::sql::{Client, Limits};
use serde_json::Value;

#[test]
fn what_stops_links_is_shown_and_left_out_by_command_and_refused_schemas_are_kept_by_nobody() {
    let mut group = Group::new("writers: all");
    group.start_all();
    group.wait_ready();
    let runtime = runtime();
    let sql = "CREATE SCHEMA shop;\n\
               CREATE TABLE shop.u (id int4 PRIMARY KEY, name text NOT NULL UNIQUE, v text);\nSELECT mesh.last_write_wins('shop.u');\n\
               CREATE TABLE shop.p (id int4 PRIMARY KEY, v text);\nGRANT USAGE ON SCHEMA shop TO quorate_apps;\n\
               GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA shop TO quorate_apps;\n";
    well(&apply(&group, "shop.sql", sql));
    two_rows_with_one_name(&group, &runtime);
    two_rows_change_to_one_name(&group, &runtime);
    two_rows_with_one_key_and_no_rule(&group, &runtime);
    old_lines_go(&group, &runtime);
    a_schema_that_one_node_refuses(&group, &runtime);
    a_node_that_is_lost_while_others_take_a_schema(&group, &runtime);
    a_schema_that_was_cut_off_half_way(&group, &runtime);
    a_schema_whose_command_is_killed_while_nodes_keep_it(&group, &runtime);
}

fn apply(group: &Group, name: &str, sql: &str) -> Output {
    let file = group.path(name);
    put(&file, sql.as_bytes());
    group.pg(&["ddl", "apply", &file.display().to_string()])
}

/// The same, and it is not waited for.
fn begin(group: &Group, name: &str, sql: &str) -> Child {
    let file = group.path(name);
    put(&file, sql.as_bytes());
    let file = file.display().to_string();
    group.command(&["pg", "ddl", "apply", &file]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// No link brings anything, until it is told to.
async fn links(group: &Group, held: bool) {
    for seat in group.seats().await {
        let client = &seat.client;
        for name in client.values::<String>("SELECT subname::text FROM pg_subscription", &[]).await.unwrap() {
            let sql = match held {
                true => format!("INSERT INTO mesh.paused VALUES ('{name}'); ALTER SUBSCRIPTION {name} DISABLE"),
                false => format!("DELETE FROM mesh.paused WHERE subname = '{name}'; ALTER SUBSCRIPTION {name} ENABLE"),
            };
            client.batch(&sql).await.unwrap();
        }
        let begun = std::time::Instant::now();
        let running = "SELECT count(*) FROM pg_stat_subscription WHERE pid IS NOT NULL";
        while held && client.value::<i64>(running, &[]).await.unwrap() > 0 {
            assert!(begun.elapsed() < LIMIT, "links do not stop");
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    }
}

/// What the command lists.
fn listed(group: &Group) -> Value {
    let output = group.command(&["--output", "json", "pg", "conflicts", "list", "--limit", "1000"]).output().unwrap();
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

/// Waits until so many links are listed as stopped.
fn stopped(group: &Group, wanted: usize) -> Vec<Value> {
    let mut found = Vec::new();
    group.wait("links are stopped", |group| {
        found = listed(group)["stopped"].as_array().unwrap().clone();
        found.len() == wanted
    });
    found
}

/// The lines of a node's log whose row that lost holds these words.
fn in_log(group: &Group, at: usize, words: &str) -> Vec<Value> {
    let lines = listed(group)["conflicts"].as_array().unwrap().clone();
    let node = group.nodes[at].name.as_str();
    lines.into_iter().filter(|line| line["node"] == node && line["lost"].as_str().unwrap().contains(words)).collect()
}

/// All links bring changes again, and all nodes have the same.
async fn all_is_the_same(group: &Group) {
    let seats = group.seats().await;
    round_trip(&seats, LIMIT).await.unwrap();
    same_everywhere(&seats, LIMIT).await.unwrap();
}

async fn ids(group: &Group, at: usize, table: &str) -> Vec<i32> {
    let client = Client::connect(&group.inside(at), Limits::default()).await.unwrap();
    client.values(&format!("SELECT id FROM {table} ORDER BY id"), &[]).await.unwrap()
}

/// Two nodes take rows with different keys and the same unique value: neither can be where the other is.
fn two_rows_with_one_name(group: &Group, runtime: &tokio::runtime::Runtime) {
    runtime.block_on(async {
        links(group, true).await;
        let first = "INSERT INTO shop.u (id, name, v) VALUES (10, 'beside', 'n1'), (1, 'same', 'older')";
        eventually(&group.door(0, POOLER), first).await;
        eventually(&group.door(0, POOLER), "INSERT INTO shop.u (id, name) VALUES (11, 'later on n1')").await;
        eventually(&group.door(1, POOLER), "INSERT INTO shop.u (id, name, v) VALUES (2, 'same', 'newer')").await;
        eventually(&group.door(1, POOLER), "INSERT INTO shop.u (id, name) VALUES (12, 'later on n2')").await;
        links(group, false).await;
    });
    // At n1, at n2, and at n3, wherever the second one came from.
    for link in stopped(group, 3) {
        assert_eq!((link["table"].as_str(), link["key"].as_str()), (Some("shop.u"), Some("(name)=(same)")), "{link}");
        assert!(link["lsn"].as_str().unwrap().contains('/'), "{link}");
        assert!(link["error"].as_str().unwrap().contains("violates unique constraint \"shop.u_name_key\""), "{link}");
        for row in ["comes", "there"] {
            assert!(link[row].as_str().unwrap().contains("\"name\": \"same\""), "{link}");
        }
    }
    let text = group.pg(&["conflicts", "list"]);
    assert_eq!(text.status.code(), Some(3), "{}", said(&text));
    assert!(said(&text).contains("to `n2` is stopped at") && said(&text).contains("repair --skip"), "{}", said(&text));
    group.wait("it is told where all is looked at", |group| said(&group.pg(&["status"])).contains("pg conflicts list"));
    let text = well(&group.pg(&["conflicts", "repair", "--skip"]));
    assert!(text.contains("the link from `n1` to `n2` goes on"), "{text}");
    runtime.block_on(async {
        all_is_the_same(group).await;
        for at in 0..3 {
            assert_eq!(ids(group, at, "shop.u").await, [2, 10, 11, 12], "n{}: the newer one stays", at + 1);
        }
    });
    for at in 0..3 {
        assert!(
            !in_log(group, at, "\"v\": \"older\"").is_empty(),
            "n{} has the one that lost: {}",
            at + 1,
            listed(group)
        );
        assert!(in_log(group, at, "\"beside\"").is_empty(), "one that is there is not lost: {}", listed(group));
    }
    assert!(stopped(group, 0).is_empty());
    assert_eq!(well(&group.pg(&["conflicts", "repair", "--skip"])), "all nodes have the same rows\n");
    group.wait("all is well", |group| group.pg(&["status"]).status.success());
}

/// Two rows that everybody has take the same name on two nodes: one of them keeps its old name, and is still there.
fn two_rows_change_to_one_name(group: &Group, runtime: &tokio::runtime::Runtime) {
    runtime.block_on(async {
        links(group, true).await;
        eventually(&group.door(0, POOLER), "UPDATE shop.u SET name = 'wanted', v = 'gives way' WHERE id = 10").await;
        eventually(&group.door(1, POOLER), "UPDATE shop.u SET name = 'wanted' WHERE id = 11").await;
        links(group, false).await;
    });
    stopped(group, 3);
    well(&group.pg(&["conflicts", "repair", "--skip"]));
    runtime.block_on(async {
        all_is_the_same(group).await;
        let name = "SELECT count(*) FROM shop.u WHERE (id = 10 AND name = 'beside') OR (id = 11 AND name = 'wanted')";
        assert_eq!(count(&group.inside(2), name).await, 2);
    });
    for at in 0..3 {
        assert!(!in_log(group, at, "gives way").is_empty(), "n{}: {}", at + 1, listed(group));
    }
}

/// Where no rule says which row is right, nothing is left out before somebody does.
fn two_rows_with_one_key_and_no_rule(group: &Group, runtime: &tokio::runtime::Runtime) {
    runtime.block_on(async {
        links(group, true).await;
        eventually(&group.door(0, POOLER), "INSERT INTO shop.p VALUES (1, 'of n1')").await;
        eventually(&group.door(1, POOLER), "INSERT INTO shop.p VALUES (1, 'of n2'), (2, 'only n2')").await;
        links(group, false).await;
    });
    stopped(group, 3);
    let undecided = group.pg(&["conflicts", "repair", "--skip"]);
    assert!(!undecided.status.success() && said(&undecided).contains("--from NODE"), "{}", said(&undecided));
    assert_eq!(stopped(group, 3).len(), 3);
    let unknown = said(&group.pg(&["conflicts", "repair", "--skip", "--from", "n9"]));
    assert!(unknown.contains("the members are n1, n2, n3"), "{unknown}");
    well(&group.pg(&["conflicts", "repair", "--skip", "--from", "n1"]));
    runtime.block_on(async {
        all_is_the_same(group).await;
        assert_eq!(count(&group.inside(2), "SELECT count(*) FROM shop.p WHERE id = 1 AND v = 'of n1'").await, 1);
        assert_eq!(count(&group.inside(1), "SELECT count(*) FROM shop.p").await, 1, "all as n1 has them");
    });
    // What n2 alone had is in its log, and in those of the nodes that left it out.
    for words in ["of n2", "only n2"] {
        for at in 0..2 {
            assert!(!in_log(group, at, words).is_empty(), "n{}, {words}: {}", at + 1, listed(group));
        }
    }
}

fn old_lines_go(group: &Group, runtime: &tokio::runtime::Runtime) {
    let lines = |at: usize| runtime.block_on(count(&group.inside(at), "SELECT count(*) FROM mesh.conflicts"));
    let (n1, n2) = (lines(0), lines(1));
    assert!(n1 > 0 && n2 > 1);
    let age = "UPDATE mesh.conflicts SET at = at - interval '100 days' WHERE id = (SELECT min(id) FROM mesh.conflicts)";
    runtime.block_on(once(&group.inside(1), age)).unwrap();
    let text = well(&group.pg(&["conflicts", "purge", "--older-than", "90d"]));
    assert_eq!(text, "n1: 0 lines removed\nn2: 1 lines removed\nn3: 0 lines removed\n");
    assert_eq!((lines(0), lines(1)), (n1, n2 - 1));
    let young = group.pg(&["conflicts", "purge", "--older-than", "5m"]);
    assert_eq!(young.status.code(), Some(64), "{}", said(&young));
}

fn versions(group: &Group, runtime: &tokio::runtime::Runtime) -> Vec<u32> {
    runtime.block_on(async {
        let mut versions = Vec::new();
        for seat in group.seats().await {
            versions.push(schema::version(&seat.client).await.unwrap());
        }
        versions
    })
}

/// An object of one node, rows of one node, a lock on one node: no node keeps anything of it, writes go on, and it can be mended.
fn a_schema_that_one_node_refuses(group: &Group, runtime: &tokio::runtime::Runtime) {
    let write = "INSERT INTO shop.p VALUES ((SELECT max(id) + 1 FROM shop.p), 'goes on')";
    let before = versions(group, runtime);
    runtime.block_on(once(&group.inside(1), "CREATE VIEW shop.orders AS SELECT 1 AS one")).unwrap();
    let orders = "CREATE TABLE shop.orders (id uuid PRIMARY KEY DEFAULT mesh.uuidv7(), v text);\n\
                  SELECT mesh.last_write_wins('shop.orders');\nGRANT SELECT, INSERT ON shop.orders TO quorate_apps;\n";
    let refused = apply(group, "orders.sql", orders);
    let text = said(&refused);
    assert!(!refused.status.success() && text.contains("Q1269") && text.contains("`n2`"), "{text}");
    assert!(text.contains("relation \"orders\" already exists"), "{text}");
    assert_eq!(versions(group, runtime), before, "nobody keeps it");
    runtime.block_on(eventually(&group.door(0, POOLER), write));
    // Another change is not kept from anybody by it.
    well(&apply(group, "note.sql", "ALTER TABLE shop.p ADD COLUMN note text;\n"));
    runtime.block_on(once(&group.inside(1), "DROP VIEW shop.orders")).unwrap();
    well(&apply(group, "orders.sql", orders));
    runtime.block_on(eventually(&group.door(1, POOLER), "INSERT INTO shop.orders (v) VALUES ('arrives')"));

    // Rows of one node that the change cannot be true of: a unique index is refused with the very code of a row that is there.
    let behind = "SELECT pg_replication_origin_session_setup('mesh_repair'); SET session_replication_role = replica; \
                  INSERT INTO shop.p (id, v) VALUES (100, 'twice'), (101, 'twice')";
    runtime.block_on(once(&group.inside(2), behind)).unwrap();
    let before = versions(group, runtime);
    let unique = "CREATE UNIQUE INDEX p_v ON shop.p (v) WHERE v = 'twice';\n";
    let refused = apply(group, "unique.sql", unique);
    let text = said(&refused);
    assert!(!refused.status.success() && text.contains("Q1269") && text.contains("`n3`"), "{text}");
    assert_eq!(versions(group, runtime), before);
    // The same as a rule that is looked at when a transaction ends.
    let late = "ALTER TABLE shop.p ADD COLUMN twin int4;\nALTER TABLE shop.p ADD CONSTRAINT twin FOREIGN KEY (twin) REFERENCES shop.p \
                DEFERRABLE INITIALLY DEFERRED;\nUPDATE shop.p SET twin = -1 WHERE v = 'twice';\n";
    let refused = apply(group, "late.sql", late);
    let text = said(&refused);
    assert!(!refused.status.success() && text.contains("Q1269") && text.contains("`n3`"), "{text}");
    assert_eq!(versions(group, runtime), before);
    well(&group.pg(&["conflicts", "repair", "--from", "n1"]));
    well(&apply(group, "unique.sql", unique));

    // Somebody who holds a table on one node for longer than a change waits for.
    let before = versions(group, runtime);
    runtime.block_on(async {
        let holder = Client::connect(&group.inside(2), Limits::default()).await.unwrap();
        holder.batch("SET idle_in_transaction_session_timeout = 0; BEGIN; SELECT count(*) FROM shop.p").await.unwrap();
        let refused = apply(group, "more.sql", "ALTER TABLE shop.p ADD COLUMN more text;\n");
        assert!(!refused.status.success() && said(&refused).contains("`n3`"), "{}", said(&refused));
        eventually(&group.door(0, POOLER), write).await;
        holder.batch("COMMIT").await.unwrap();
    });
    assert_eq!(versions(group, runtime), before);
    well(&apply(group, "more.sql", "ALTER TABLE shop.p ADD COLUMN more text;\n"));
    runtime.block_on(all_is_the_same(group));
}

/// One has taken it and is gone when the last one has: nobody keeps it.
fn a_node_that_is_lost_while_others_take_a_schema(group: &Group, runtime: &tokio::runtime::Runtime) {
    let before = versions(group, runtime);
    let writer = group.writer().unwrap();
    let lost = (writer + 1) % 3;
    let command = runtime.block_on(async {
        let inside = Client::connect(&group.inside(lost), Limits::default()).await.unwrap();
        let holder = Client::connect(&group.inside(writer), Limits::default()).await.unwrap();
        holder.batch("BEGIN; SELECT count(*) FROM shop.p").await.unwrap();
        let command = begin(group, "lost.sql", "ALTER TABLE shop.p ADD COLUMN lost text;\n");
        until(
            &inside,
            "SELECT coalesce(bool_or(pg_terminate_backend(pid)), false) FROM pg_stat_activity \
             WHERE state = 'idle in transaction' AND query LIKE '%ADD COLUMN lost text%'",
        )
        .await;
        holder.batch("COMMIT").await.unwrap();
        command
    });
    let refused = command.wait_with_output().unwrap();
    let text = said(&refused);
    assert!(!refused.status.success() && text.contains(&format!("`{}`", group.nodes[lost].name)), "{text}");
    assert_eq!(versions(group, runtime), before, "{text}");
    well(&apply(group, "lost.sql", "ALTER TABLE shop.p ADD COLUMN lost text;\n"));
    runtime.block_on(all_is_the_same(group));
}

async fn until(client: &Client, sql: &str) {
    let holds = async {
        while !client.value::<bool>(sql, &[]).await.unwrap() {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(LIMIT, holds).await.unwrap_or_else(|_| panic!("{sql}: not within {LIMIT:?}"));
}

/// One node is slow to say that it has kept a version; who writes comes after it, and the command is killed meanwhile.
fn a_schema_whose_command_is_killed_while_nodes_keep_it(group: &Group, runtime: &tokio::runtime::Runtime) {
    let next = versions(group, runtime)[0] + 1;
    let writer = group.writer().unwrap();
    let (slow, other) = ((writer + 1) % 3, (writer + 2) % 3);
    let settings = group.data_dir(slow).join("postgresql.auto.conf");
    let usual = std::fs::read(&settings).unwrap();
    let sql = "SET LOCAL synchronous_commit = on;\nCREATE TABLE shop.cut (id int4 PRIMARY KEY);\nGRANT INSERT ON shop.cut TO quorate_apps;\n";
    runtime.block_on(async {
        let inside = Client::connect(&group.inside(slow), Limits::default()).await.unwrap();
        let beside = Client::connect(&group.inside(other), Limits::default()).await.unwrap();
        // A transaction that asks for it waits for a copy that never comes.
        let waits = b"synchronous_standby_names = 'nobody'\nsynchronous_commit = 'local'\n";
        put(&settings, &[usual.as_slice(), waits].concat());
        inside.batch("SELECT pg_reload_conf()").await.unwrap();
        until(&inside, "SELECT current_setting('synchronous_standby_names') = 'nobody'").await;
        let mut command = begin(group, "cut.sql", sql);
        until(&inside, "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event = 'SyncRep')").await;
        until(&beside, &format!("SELECT EXISTS (SELECT FROM mesh.ddl_log WHERE version = {next})")).await;
        command.kill().unwrap();
        command.wait().unwrap();
        put(&settings, &usual);
        inside.batch("SELECT pg_reload_conf()").await.unwrap();
        until(&inside, &format!("SELECT EXISTS (SELECT FROM mesh.ddl_log WHERE version = {next})")).await;
    });
    let found = versions(group, runtime);
    assert_eq!((found[writer], found[slow], found[other]), (next - 1, next, next));
    let early = runtime.block_on(once(&group.door(other, POOLER), "INSERT INTO shop.cut VALUES (1)"));
    assert!(early.as_ref().is_err_and(|early| early.contains("is not on every node yet")), "{early:?}");
    well(&apply(group, "cut.sql", sql));
    assert_eq!(versions(group, runtime), vec![next; 3]);
    runtime.block_on(async {
        eventually(&group.door(other, POOLER), "INSERT INTO shop.cut VALUES (1)").await;
        all_is_the_same(group).await;
    });
}

/// A command that was killed between two nodes has left a version on one of them: the next one brings it to all first.
fn a_schema_that_was_cut_off_half_way(group: &Group, runtime: &tokio::runtime::Runtime) {
    let next = versions(group, runtime)[0] + 1;
    let sql = "CREATE TABLE shop.half (id int4 PRIMARY KEY);\nGRANT INSERT ON shop.half TO quorate_apps;\n";
    let taken = format!(
        "BEGIN; SELECT set_config('mesh.ddl', 'on', true); {sql} SELECT mesh.publish('mesh'), mesh.guard_tables(); \
         INSERT INTO mesh.ddl_log (version, name, sha256, sql) VALUES ({next}, 'half.sql', encode(sha256(convert_to('{sql}', 'UTF8')), 'hex'), \
         '{sql}'); COMMIT"
    );
    runtime.block_on(once(&group.inside(1), &taken)).unwrap();
    // The node that lacks it cannot take it: who, which version and why is said, and nothing else is gated.
    runtime.block_on(once(&group.inside(2), "CREATE VIEW shop.half AS SELECT 1 AS one")).unwrap();
    let waits = apply(group, "other.sql", "ALTER TABLE shop.p ADD COLUMN other text;\n");
    let text = said(&waits);
    assert_eq!(waits.status.code(), Some(75), "{text}");
    assert!(text.contains("Q1266") && text.contains("`half.sql`") && text.contains("`n3`"), "{text}");
    assert!(text.contains("already exists"), "{text}");
    runtime.block_on(eventually(&group.door(1, POOLER), "UPDATE shop.p SET note = 'goes on' WHERE id = 1"));
    runtime.block_on(once(&group.inside(2), "DROP VIEW shop.half")).unwrap();
    well(&apply(group, "other.sql", "ALTER TABLE shop.p ADD COLUMN other text;\n"));
    assert_eq!(versions(group, runtime), vec![next + 1; 3]);
    runtime.block_on(async {
        eventually(&group.door(0, POOLER), "INSERT INTO shop.half VALUES (1)").await;
        all_is_the_same(group).await;
    });
    group.wait("all is well", |group| group.pg(&["status"]).status.success());
}
