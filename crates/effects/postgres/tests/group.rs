//! A group of real servers, from empty data dirs on.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use quorate_faults::Code;
use quorate_faults::Fault;
use quorate_postgres::conflicts::{self, Source};
use quorate_postgres::group::{
    Seat, Writers, compare, end_sessions, ensure_gate, ensure_member, ensure_mesh, hashes, observe_links, position,
    revive_link, round_trip, same_everywhere,
};
use quorate_postgres::join::{JoinLimits, JoinOrder, Joined, Journal, MemoryJournal, detach, join, unfinished};
use quorate_postgres::schema::{self, ClusterRole, Ddl, Order, SeedValues};
use support::{DATABASE, LIMIT, Node, Servers};

const LIMITS: JoinLimits = JoinLimits { copy: LIMIT, step: LIMIT };

fn seeds() -> SeedValues {
    SeedValues {
        cluster_id: "rdpgmc".into(),
        role: ClusterRole::Manager,
        cluster_service: "mesh".into(),
        backups_path: "/backups".into(),
        port: 7432,
        pg_dump: "/usr/bin/pg_dump".into(),
        manager: None,
    }
}

fn table(version: u32, sql: &str) -> Ddl {
    Ddl { version, name: format!("v{version}.sql"), sql: sql.to_owned() }
}

async fn bootstrap(servers: &Servers) -> Vec<Seat> {
    let seats = servers.link().await;
    let applied = schema::apply(&seats, Some("n1"), &schema::v1(), Order::Adds, LIMIT).await.unwrap();
    assert_eq!((applied.done.len(), applied.done.last().map(String::as_str)), (seats.len(), Some("n1")));
    assert!(schema::seed_v1(&seats[0].client, &seeds()).await.unwrap() > 10);
    round_trip(&seats, LIMIT).await.unwrap();
    seats
}

/// Rows that lost, over all nodes.
async fn lost(seats: &[Seat]) -> Vec<String> {
    let mut all = Vec::new();
    for seat in seats {
        all.extend(conflicts::list(&seat.client, 100).await.unwrap().into_iter().map(|row| row.lost));
    }
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_of_18_from_nothing_to_conflicts_and_repair() {
    story(&[18, 18, 18]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_of_16_17_and_18_does_the_same() {
    story(&[17, 18, 16]).await;
}

async fn story(majors: &[u32]) {
    let servers = Servers::start(majors).await;
    let seats = bootstrap(&servers).await;
    let same = same_everywhere(&seats, LIMIT).await.unwrap();
    assert_eq!((same.len(), same["cfsb.plans"].rows, same["tasks.schedules"].rows), (12, 2, 14));
    let links = observe_links(&seats[0]).await.unwrap();
    assert_eq!((links.incoming.len(), links.outgoing.len()), (2, 2));
    assert!(
        links.incoming.values().all(|link| link.enabled && link.errors == 0 && link.tables_ready == 13),
        "{links:?}"
    );
    assert!(position(&seats[0].client).await.unwrap().wal > 0);

    a_second_bootstrap_changes_nothing(&servers, &seats).await;
    the_schema_has_one_way_in(&servers, &seats).await;
    the_gate_is_closed_until_it_is_opened(&servers, &seats).await;
    conflicts_converge_and_are_kept(&servers, &seats).await;
    what_differs_is_repaired_without_echo(&seats).await;
    an_error_stops_a_link_until_it_is_mended(&seats).await;
}

async fn a_second_bootstrap_changes_nothing(servers: &Servers, seats: &[Seat]) {
    assert!(ensure_mesh(seats).await.unwrap().is_empty());
    for node in &servers.nodes {
        assert!(node.prepare(&servers.members()).await.is_empty());
    }
    let before = hashes(&seats[0].client).await.unwrap();
    let again = schema::apply(seats, Some("n1"), &schema::v1(), Order::Adds, LIMIT).await.unwrap();
    assert_eq!((again.done.len(), again.already.len()), (0, seats.len()));
    assert_eq!(schema::seed_v1(&seats[0].client, &seeds()).await.unwrap(), 0);
    assert_eq!(hashes(&seats[0].client).await.unwrap(), before);
    let (node, all) = (&servers.nodes[0], servers.members());
    let client = node.own(DATABASE).await;
    let other = ensure_member(&client, "green", &node.member, &all, &node.files);
    assert_eq!(other.await.unwrap_err().code(), Code::PgOtherGroup);
}

async fn the_schema_has_one_way_in(servers: &Servers, seats: &[Seat]) {
    let alone = servers.nodes[0].own(DATABASE).await;
    for sql in [
        "ALTER TABLE cfsb.plans ADD COLUMN x int4",
        "DROP TABLE cfsb.plans",
        "CREATE TABLE rdpg.mine (id int4 PRIMARY KEY)",
    ] {
        let fault = alone.batch(sql).await.unwrap_err();
        let cause = std::error::Error::source(&fault).unwrap().to_string();
        assert!(cause.contains("whose schema is changed on all nodes at once"), "{sql}: {cause}");
    }
    alone.batch("CREATE TEMP TABLE fine (id int4); DROP TABLE fine").await.unwrap();
    let apply = |ddl: Ddl| async move { schema::apply(seats, Some("n1"), &ddl, Order::Adds, LIMIT).await };
    let fault = apply(table(2, "CREATE TABLE rdpg.bad (id int4)")).await.unwrap_err();
    assert_eq!(fault.code(), Code::PgNoKey);
    let fault = apply(table(2, "CREATE TABL rdpg.bad (id int4)")).await.unwrap_err();
    assert_eq!(fault.code(), Code::PgSchemaInvalid);
    assert_eq!(apply(table(3, "SELECT 1")).await.unwrap_err().code(), Code::PgSchemaDiffers);
    assert_eq!(apply(table(1, "SELECT 1")).await.unwrap_err().code(), Code::PgSchemaDiffers);
    let fault = schema::apply(&seats[..2], None, &table(2, "SELECT 1"), Order::Adds, LIMIT).await.unwrap_err();
    assert_eq!(fault.code(), Code::PgSchemaWaits, "{fault}");
    let good = "CREATE SCHEMA shop; CREATE TABLE shop.c (id int4 PRIMARY KEY, v text NOT NULL); SELECT mesh.last_write_wins('shop.c'); \
                CREATE TABLE shop.load (id uuid PRIMARY KEY DEFAULT mesh.uuidv7(), node text NOT NULL DEFAULT current_setting('cluster_name'), \
                n int4 NOT NULL DEFAULT 0); GRANT USAGE ON SCHEMA shop TO quorate_apps; GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA shop TO quorate_apps -- no end";
    apply(table(2, good)).await.unwrap();
    assert_eq!(schema::version(&seats[2].client).await.unwrap(), 2);
    let lint = schema::lint(&seats[0].client).await.unwrap();
    assert_eq!(lint.len(), 1, "{lint:?}");
    seats[1].client.execute("INSERT INTO shop.load DEFAULT VALUES", &[]).await.unwrap();
    round_trip(seats, LIMIT).await.unwrap();
    assert_eq!(same_everywhere(seats, LIMIT).await.unwrap()["shop.load"].rows, 1);
}

async fn the_gate_is_closed_until_it_is_opened(servers: &Servers, seats: &[Seat]) {
    let (app, own) = (servers.nodes[0].app().await, servers.nodes[0].own(DATABASE).await);
    let write = "INSERT INTO shop.load DEFAULT VALUES";
    let far = 4_102_444_800_000;
    for (writers, open) in [
        (None, false),
        (Some(Writers::Open), true),
        (Some(Writers::Until(1)), false),
        (Some(Writers::Until(far)), true),
    ] {
        if let Some(writers) = writers {
            ensure_gate(&own, writers).await.unwrap();
            assert!(ensure_gate(&seats[0].client, writers).await.is_err(), "other nodes open none");
        }
        let written = app.execute(write, &[]).await;
        assert_eq!(written.is_ok(), open, "{writers:?}: {written:?}");
    }
    assert_eq!(app.value::<i64>("SELECT count(*) FROM shop.load", &[]).await.unwrap(), 3, "reads are open");
    let truncated = seats[0].client.batch("TRUNCATE shop.load").await;
    assert!(
        truncated.is_err() && seats[0].client.batch("DELETE FROM shop.c").await.is_ok(),
        "nothing is there to delete"
    );
    assert_eq!(end_sessions(&servers.nodes[0].own("postgres").await, LIMIT).await.unwrap(), 1);
    assert!(app.execute(write, &[]).await.is_err());
    ensure_gate(&own, Writers::Closed).await.unwrap();
}

/// Lets links go on that an error has stopped, as agents do.
async fn keep_links(seats: &[Seat]) {
    loop {
        for seat in seats {
            for (from, link) in observe_links(seat).await.unwrap().incoming {
                if !link.enabled {
                    revive_link(&seat.client, from).await.unwrap();
                }
            }
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// All nodes insert and then change the same row while no link runs.
async fn conflicts_converge_and_are_kept(servers: &Servers, seats: &[Seat]) {
    let every = |word: &'static str| async move {
        for node in &servers.nodes {
            let client = node.own(DATABASE).await;
            let names: Vec<String> = client.values("SELECT subname::text FROM pg_subscription", &[]).await.unwrap();
            for name in names {
                client.batch(&format!("ALTER SUBSCRIPTION {name} {word}")).await.unwrap();
            }
        }
    };
    every("DISABLE").await;
    // A link that is told to stop does so a moment later, and could meet a row of that moment.
    let running = "SELECT count(*) FROM pg_stat_subscription WHERE pid IS NOT NULL";
    for seat in seats {
        let begun = std::time::Instant::now();
        while seat.client.value::<i64>(running, &[]).await.unwrap() > 0 {
            assert!(begun.elapsed() < LIMIT, "links do not stop");
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    }
    for seat in seats {
        let name = &seat.member.name;
        seat.client.execute("INSERT INTO shop.c (id, v) VALUES (1, $1)", &[name]).await.unwrap();
    }
    let changed = "UPDATE shop.c SET v = v || '-changed' WHERE id = 1";
    seats[0].client.execute(changed, &[]).await.unwrap();
    every("ENABLE").await;
    // Two links that bring the same new row at the same moment: one of them is stopped by it.
    tokio::select! {
        arrived = round_trip(seats, LIMIT) => drop(arrived.unwrap()),
        () = keep_links(seats) => {}
    }
    same_everywhere(seats, LIMIT).await.unwrap();
    let v: String = seats[2].client.value("SELECT v FROM shop.c WHERE id = 1", &[]).await.unwrap();
    assert_eq!(v, "n1-changed", "it was the last");
    let lost = lost(seats).await;
    for loser in ["\"n2\"", "\"n3\""] {
        assert!(lost.iter().any(|row| row.contains(loser)), "{loser} is kept: {lost:?}");
    }
    for seat in seats {
        let links = observe_links(seat).await.unwrap();
        assert!(links.incoming.values().all(|link| link.enabled && link.running), "{links:?}");
    }
    // One after the other, with knowledge of each other: no conflict.
    let before = conflicts::counts(&seats[0].client).await.unwrap();
    for seat in seats.iter().take(2) {
        seat.client.execute(changed, &[]).await.unwrap();
        round_trip(seats, LIMIT).await.unwrap();
    }
    assert_eq!(conflicts::counts(&seats[0].client).await.unwrap(), before);
    let deleted = seats[0].client.execute("DELETE FROM shop.c", &[]).await.unwrap_err();
    assert!(std::error::Error::source(&deleted).unwrap().to_string().contains("are not deleted"));
}

async fn what_differs_is_repaired_without_echo(seats: &[Seat]) {
    let quietly =
        |sql: &'static str| format!("SET session_replication_role = replica; {sql}; RESET session_replication_role");
    // Behind everybody's back, and not sent on.
    let behind = &seats[1].client;
    behind.execute("SELECT pg_replication_origin_session_setup('mesh_repair')", &[]).await.unwrap();
    behind.batch(&quietly("DELETE FROM shop.c WHERE id = 1")).await.unwrap();
    behind.batch(&quietly("DELETE FROM rdpg.config")).await.unwrap();
    behind.batch(&quietly("UPDATE shop.load SET n = 7")).await.unwrap();
    behind.execute("SELECT pg_replication_origin_session_reset()", &[]).await.unwrap();
    assert_eq!(same_everywhere(seats, Duration::from_millis(200)).await.unwrap_err().code(), Code::PgDiverged);
    let undecided = conflicts::repair(seats, &Source::Newest).await;
    assert_eq!(undecided.unwrap_err().code(), Code::PgDiverged, "nobody can tell which rows of shop.load are newer");
    let repaired = conflicts::repair(seats, &Source::Node("n1".into())).await.unwrap();
    assert!(repaired.iter().all(|repaired| repaired.node == "n2"), "{repaired:?}");
    round_trip(seats, LIMIT).await.unwrap();
    same_everywhere(seats, LIMIT).await.unwrap();
    assert!(conflicts::repair(seats, &Source::Newest).await.unwrap().is_empty());
    conflicts::purge(&seats[0].client, Duration::from_secs(3600)).await.unwrap();
}

/// Does something at a seat that no link carries.
async fn quietly(seat: &Seat, sql: &str) {
    seat.client.execute("SELECT pg_replication_origin_session_setup('mesh_repair')", &[]).await.unwrap();
    let sql = format!("SET session_replication_role = replica; {sql}; RESET session_replication_role");
    seat.client.batch(&sql).await.unwrap();
    seat.client.execute("SELECT pg_replication_origin_session_reset()", &[]).await.unwrap();
}

/// Waits until the link from a member is stopped, or goes on.
async fn link_is(seat: &Seat, from: u16, enabled: bool) {
    let begun = std::time::Instant::now();
    while observe_links(seat).await.unwrap().incoming[&from].enabled != enabled {
        assert!(begun.elapsed() < LIMIT, "the link from {from} to {} does not change", seat.member.name);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// In a table without a rule for it, a row that is there already stops a link; nothing is tried in haste.
async fn an_error_stops_a_link_until_it_is_mended(seats: &[Seat]) {
    let (row, id) = ("00000000-0000-7000-8000-000000000001", seats[0].member.id);
    quietly(&seats[1], &format!("INSERT INTO shop.load (id) VALUES ('{row}')")).await;
    seats[0].client.batch(&format!("INSERT INTO shop.load (id, n) VALUES ('{row}', 1)")).await.unwrap();
    link_is(&seats[1], id, false).await;
    // Let go on, it meets the same again, maybe before one looks; mended, it goes on for good.
    let _ = revive_link(&seats[1].client, id).await.unwrap();
    link_is(&seats[1], id, false).await;
    let found = compare(&seats[..2], Duration::ZERO).await.unwrap();
    assert!(!found.is_same(), "{found:?}");
    quietly(&seats[1], &format!("DELETE FROM shop.load WHERE id = '{row}'")).await;
    assert!(revive_link(&seats[1].client, id).await.unwrap());
    round_trip(seats, LIMIT).await.unwrap();
    let found = compare(seats, LIMIT).await.unwrap();
    assert!(found.is_same() && found.tables > 12, "{found:?}");
    quietly(&seats[1], "UPDATE shop.load SET n = n + 1").await;
    let found = compare(seats, LIMIT).await.unwrap();
    assert_eq!((found.differ, found.moving), (vec!["shop.load".to_owned()], vec![]));
    conflicts::repair(seats, &Source::Node("n1".into())).await.unwrap();
}

/// Writes at all nodes until it is told to stop; returns how many statements failed.
fn load(servers: &Servers, stop: &Arc<AtomicBool>) -> Vec<tokio::task::JoinHandle<(u64, u64)>> {
    let writer = |node: &Node| {
        let (stop, place) = (Arc::clone(stop), quorate_postgres::sql::Place::own(&node.config, DATABASE));
        tokio::spawn(async move {
            let (mut done, mut failed) = (0, 0);
            let client = quorate_postgres::sql::Client::connect(&place, Default::default()).await.unwrap();
            while !stop.load(Ordering::Relaxed) {
                let sql = "WITH new AS (INSERT INTO shop.load DEFAULT VALUES RETURNING id), old AS (SELECT id FROM shop.load \
                           WHERE node = current_setting('cluster_name') ORDER BY id DESC OFFSET 5 LIMIT 1), \
                           gone AS (DELETE FROM shop.load WHERE n > 0 AND node = current_setting('cluster_name') AND id IN \
                           (SELECT id FROM shop.load WHERE node = current_setting('cluster_name') AND n > 0 ORDER BY id DESC OFFSET 20 LIMIT 1)) \
                           UPDATE shop.load SET n = n + 1 WHERE id IN (SELECT id FROM old)";
                match client.execute(sql, &[]).await {
                    Ok(_) => done += 1,
                    Err(_) => failed += 1,
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            (done, failed)
        })
    };
    servers.nodes.iter().filter(|node| node.process.is_some() && node.member.id <= 3).map(writer).collect()
}

/// A journal that loses its right to write at the n-th save, as a coordinator does that is killed.
struct Dying {
    inner: MemoryJournal,
    left: std::sync::Mutex<u32>,
}

impl Journal for Dying {
    async fn load(&self) -> Result<Option<String>, Fault> {
        self.inner.load().await
    }

    async fn save(&self, text: &str) -> Result<(), Fault> {
        {
            let mut left = self.left.lock().unwrap();
            if *left == 0 {
                return Err(Fault::new(Code::LeaseGone, "killed"));
            }
            *left -= 1;
        }
        self.inner.save(text).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_come_and_go_and_die_while_all_write() {
    let mut servers = Servers::start(&[18, 18, 18]).await;
    let mut seats = bootstrap(&servers).await;
    let ddl = "CREATE SCHEMA shop; CREATE TABLE shop.load (id uuid PRIMARY KEY DEFAULT mesh.uuidv7(), \
               node text NOT NULL DEFAULT current_setting('cluster_name'), n int4 NOT NULL DEFAULT 0)";
    schema::apply(&seats, None, &table(2, ddl), Order::Adds, LIMIT).await.unwrap();
    seats[0].client.execute("INSERT INTO shop.load (n) SELECT 0 FROM generate_series(1, 20000)", &[]).await.unwrap();

    // A fourth joins, and whoever sees to it is killed after every step.
    let mut fourth = Node::new(servers.root.path(), &servers.authority, 4, 18);
    fourth.init();
    fourth.start();
    servers.nodes.push(fourth);
    let all = servers.members();
    for node in &servers.nodes {
        node.prepare(&all).await;
    }
    seats = servers.seats().await;
    let refused = ensure_mesh(&seats).await.unwrap_err();
    assert_eq!(refused.code(), Code::PgJoinInstead, "{refused}");
    let stop = Arc::new(AtomicBool::new(false));
    let writers = load(&servers, &stop);
    let journal = Dying { inner: MemoryJournal::default(), left: 0.into() };
    let order = JoinOrder { node: "n4".into(), donor: "n1".into() };
    let mut kills = 0;
    let joined: Joined = loop {
        *journal.left.lock().unwrap() = 1;
        match join(&journal, &order, &seats, LIMITS, |_| {}).await {
            Ok(joined) => break joined,
            Err(fault) => assert_eq!(
                fault.code(),
                Code::LeaseGone,
                "{fault}: {:?}",
                std::error::Error::source(&fault).map(ToString::to_string)
            ),
        }
        kills += 1;
        assert!(kills < 10, "every kill is one step further");
        let text = journal.load().await.unwrap().unwrap();
        if kills == 3 {
            assert!(unfinished(&text).unwrap().is_some());
            let other = detach(&journal.inner, (&seats[1].member, None), &[], LIMIT).await.unwrap_err();
            assert_eq!(other.code(), Code::PgChangeUnderWay);
        }
    };
    assert_eq!(joined, Joined::default(), "the last call found all done");
    assert_eq!(kills, 5);
    stop.store(true, Ordering::Relaxed);
    for writer in writers {
        let (done, failed) = writer.await.unwrap();
        assert!(done > 0 && failed == 0, "{done} done, {failed} failed");
    }
    round_trip(&seats, LIMIT).await.unwrap();
    let same = same_everywhere(&seats, LIMIT).await.unwrap();
    assert!(same["shop.load"].rows > 20_000);

    kill_9_of_a_server_that_writes(&mut servers).await;
    a_dead_node_is_let_go_and_comes_back(&mut servers).await;
}

async fn kill_9_of_a_server_that_writes(servers: &mut Servers) {
    let stop = Arc::new(AtomicBool::new(false));
    let client = servers.nodes[2].own(DATABASE).await;
    let writing = Arc::clone(&stop);
    let writer = tokio::spawn(async move {
        let mut acknowledged = Vec::new();
        while !writing.load(Ordering::Relaxed) {
            match client.value::<String>("INSERT INTO shop.load (node) VALUES ('k9') RETURNING id::text", &[]).await {
                Ok(id) => acknowledged.push(id),
                Err(_) => break,
            }
        }
        acknowledged
    });
    let watch = servers.nodes[0].own(DATABASE).await;
    let begun = std::time::Instant::now();
    while watch.value::<i64>("SELECT count(*) FROM shop.load WHERE node = 'k9'", &[]).await.unwrap() < 50 {
        assert!(begun.elapsed() < LIMIT, "nothing arrives");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    servers.nodes[2].kill();
    let acknowledged = writer.await.unwrap();
    stop.store(true, Ordering::Relaxed);
    servers.nodes[2].start_after_kill().await;
    let seats = servers.seats().await;
    // A lost connection is an error too: what an agent does is to let the links go on.
    let gone = seats[2].member.id;
    link_is(&seats[0], gone, false).await;
    for seat in seats.iter().filter(|seat| seat.member.id != gone) {
        let begun = std::time::Instant::now();
        while !observe_links(seat).await.unwrap().incoming[&gone].running {
            assert!(begun.elapsed() < LIMIT, "the link to {} does not go on", seat.member.name);
            revive_link(&seat.client, gone).await.unwrap();
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    round_trip(&seats, LIMIT).await.unwrap();
    same_everywhere(&seats, LIMIT).await.unwrap();
    let found: Vec<String> =
        seats[0].client.values("SELECT id::text FROM shop.load WHERE node = 'k9'", &[]).await.unwrap();
    let missing = acknowledged.iter().filter(|id| !found.contains(id)).count();
    assert_eq!(missing, 0, "of {} acknowledged inserts", acknowledged.len());
}

async fn a_dead_node_is_let_go_and_comes_back(servers: &mut Servers) {
    let journal = MemoryJournal::default();
    servers.nodes[3].kill();
    let gone = servers.nodes[3].member.clone();
    servers.nodes.truncate(4);
    let dead = servers.nodes.pop().unwrap();
    let seats = servers.seats().await;
    let done = detach(&journal, (&gone, None), &seats, LIMIT).await.unwrap();
    assert_eq!(done.len(), 6, "{done:?}");
    assert!(detach(&journal, (&gone, None), &seats, LIMIT).await.unwrap().is_empty());
    for seat in &seats {
        let links = observe_links(seat).await.unwrap();
        assert_eq!((links.incoming.len(), links.outgoing.len()), (2, 2));
    }
    // Its successor is a new member with a new number, and the coordinator of its join is lost for good half-way.
    drop(dead);
    let mut fifth = Node::new(servers.root.path(), &servers.authority, 5, 18);
    fifth.init();
    fifth.start();
    servers.nodes.push(fifth);
    let all = servers.members();
    for node in &servers.nodes {
        node.prepare(&all).await;
    }
    let seats = servers.seats().await;
    let dying = Dying { inner: MemoryJournal::default(), left: 3.into() };
    let order = JoinOrder { node: "n5".into(), donor: "n2".into() };
    join(&dying, &order, &seats, LIMITS, |_| {}).await.unwrap_err();
    let donor = observe_links(&seats[1]).await.unwrap();
    assert!(!donor.incoming[&1].enabled && !donor.incoming[&3].enabled, "{donor:?}");
    // What stands still on purpose is not let go on by an agent that sees to errors.
    assert!(donor.incoming[&1].paused && !revive_link(&seats[1].client, 1).await.unwrap());
    servers.nodes[3].kill();
    // The join of another node is not given up by the way; that of this very one is.
    let other = detach(&dying.inner, (&servers.nodes[0].member, None), &seats[1..3], LIMIT).await.unwrap_err();
    assert_eq!(other.code(), Code::PgChangeUnderWay);
    let done = detach(&dying.inner, (&servers.nodes[3].member, None), &seats[..3], LIMIT).await.unwrap();
    assert!(done[0].contains("is given up"), "{done:?}");
    let donor = observe_links(&seats[1]).await.unwrap();
    assert!(donor.incoming.values().all(|link| link.enabled) && donor.outgoing.len() == 2, "{donor:?}");
    round_trip(&seats[..3], LIMIT).await.unwrap();
    same_everywhere(&seats[..3], LIMIT).await.unwrap();
    let sync: i64 = seats[1].client.value("SELECT count(*) FROM pg_replication_slots", &[]).await.unwrap();
    assert_eq!(sync, 2, "copies leave nothing behind");
}
