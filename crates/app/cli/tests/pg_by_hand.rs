//! `quorate pg` in hands that err: each mistake is named, with a way out and the right exit code. And what is changed below a
//! group that runs: certificates, databases, members.

#![expect(clippy::print_stderr, clippy::unwrap_used, reason = "it says how long it took, and where it cannot go on")]

mod pg_support;

use std::time::{Duration, Instant};

use jiff::Timestamp;
use pg_support::{Group, LIMIT, POOLER, WRITE, count, eventually, once, put, runtime, said};
use quorate_pki::{Authorities, Keys, NodeNames, Policy, ensure_authorities, ensure_installed, ensure_requests, issue};
use quorate_postgres::Secret;
use quorate_postgres::group::Member;
use quorate_postgres::server::TlsFiles;
use quorate_postgres::sql::{Client, Limits, Place, Way};
use quorate_testkit::kill_hard;
use rustix::process::Signal;

/// Runs a command that ends with this exit code, and says all of this.
#[track_caller]
fn ends(group: &Group, args: &[&str], code: i32, words: &[&str]) {
    let output = group.pg(args);
    let text = said(&output);
    assert_eq!(output.status.code(), Some(code), "{args:?}: {text}");
    for word in words {
        assert!(text.contains(word), "{args:?}: {word:?} is not in {text}");
    }
    assert!(!text.contains("panicked"), "{text}");
}

/// Writes the cluster file; on a slow machine too the write master keeps its place.
fn declare(group: &Group) {
    let file = group.file();
    let text = std::fs::read_to_string(&file).unwrap();
    put(&file, text.replace("lease-ttl: 6s", "lease-ttl: 30s").as_bytes());
}

#[test]
fn mistakes_are_named_and_what_changes_is_followed() {
    let mut group = Group::new("role: service, manager: main");
    let third = group.nodes.pop().unwrap();
    let whole = std::fs::read_to_string(group.path("cluster.yaml")).unwrap();
    before_there_is_a_group(&group, &whole);
    declare(&group);
    group.start_all();
    group.wait_ready();
    let runtime = runtime();
    runtime
        .block_on(eventually(&group.door(0, WRITE), "INSERT INTO rdpg.events (host, key, msg) VALUES ('h', 'k', '1')"));
    what_is_shown(&group, &runtime);
    certificates_are_renewed(&group, &runtime);
    what_depends_on_a_table_follows_it(&group, &runtime);

    // The third node is declared from here on, and comes late.
    group.nodes.push(third);
    declare(&group);
    let writer = group.writer().unwrap();
    let (me, other) = (group.nodes[writer].name.clone(), group.nodes[1 - writer].name.clone());
    members(&group, &me, &other);
    the_schema(&group);
    ends(&group, &["conflicts", "list"], 0, &["no row was ever lost"]);
    ends(&group, &["conflicts", "repair"], 0, &["all nodes have the same rows"]);
    ends(&group, &["conflicts", "repair", "--from", "n9"], 5, &["Q1303", "n1, n2"]);
    ends(&group, &["stop", "--name", &other], 5, &["another agent keeps", "quorate stop"]);
    a_node_that_is_declared_later(&mut group, &runtime, writer);

    // A member that was taken out of the file is still let go, and its proxies follow.
    group.kill_node(1 - writer);
    ends(&group, &["switchover", "--to", &other], 75, &["Q1307"]);
    let text = std::fs::read_to_string(group.path("cluster.yaml")).unwrap();
    let gone = group.nodes.remove(1 - writer);
    group.nodes.retain(|node| node.name != "n3");
    declare(&group);
    ends(&group, &["status"], 3, &["it is in the group, and not in the cluster file"]);
    ends(&group, &["detach", &gone.name], 0, &["all rows are the same", "is no longer in the group"]);
    put(&group.path("cluster.yaml"), text.as_bytes());
    let file = group.path(&format!("pg/{me}.run/proxy/haproxy.cfg"));
    group.wait("the proxy leads to nobody who left", |_| {
        !std::fs::read_to_string(&file).unwrap().contains(&format!("server {} ", gone.name))
    });
    ends(&group, &["detach", &me], 5, &["Q1310"]);

    // Without the store it is still shown how the nodes are.
    let pg_support::Store::Etcd(store) = &group.store else { panic!("no etcd") };
    kill_hard(store.pid());
    group.wait("it is said", |group| {
        let output = group.pg(&["status"]);
        said(&output).contains("the store does not say who writes") && output.status.code() == Some(3)
    });
}

fn before_there_is_a_group(group: &Group, whole: &str) {
    let file = group.path("cluster.yaml");
    ends(group, &["status"], 3, &["not made yet", "no write master", "service, managed by main"]);
    ends(group, &["conflicts", "list"], 3, &["Q1304", "quorate pg bootstrap"]);
    ends(group, &["switchover", "--to", "n1"], 3, &["Q1304"]);
    ends(group, &["switchover", "--to", "n9"], 4, &["Q1300"]);
    ends(group, &["bootstrap", "--name", "n9"], 4, &["Q1300", "the nodes are n1, n2"]);
    ends(group, &["bootstrap"], 4, &["Q1300", "--name NODE"]);
    ends(group, &["stop", "--name", "n1"], 0, &["nothing runs here"]);
    // PostgreSQL 15 is refused at once.
    let old = quorate_testkit::postgres(15).display().to_string();
    let new = quorate_testkit::postgres(group.major).display().to_string();
    put(&file, whole.replace(&new, &old).as_bytes());
    ends(group, &["bootstrap", "--name", "n1"], 1, &["Q1250", "PostgreSQL 15", "16 or newer"]);
    put(&file, whole.replace("/pki/", "/nowhere/").as_bytes());
    ends(group, &["bootstrap", "--name", "n1"], 1, &["Q1256", "quorate ca"]);
    put(&file, whole.split("postgres:").next().unwrap().as_bytes());
    ends(group, &["status"], 4, &["Q1300", "no section `postgres`"]);
    // An agent that cannot have its port says so, and is not waited for.
    put(&file, whole.as_bytes());
    let taken = tokio::net::TcpSocket::new_v4().unwrap();
    taken.bind(std::net::SocketAddr::from(([127, 0, 0, 1], group.nodes[0].ports[2].number()))).unwrap();
    ends(group, &["bootstrap", "--name", "n1"], 2, &["Q1311", "its last words are in"]);
    drop(taken);
}

fn what_is_shown(group: &Group, runtime: &tokio::runtime::Runtime) {
    group.wait("all of it is shown", |group| {
        let output = group.pg(&["status"]);
        let shown = said(&output);
        let words = ["ROLE", "LAG", "CONFLICTS", "PROXIES", "writer", "reader", "1 of 1", "up", "managed by main"];
        output.status.success() && words.iter().all(|word| shown.contains(word))
    });
    let manager = "SELECT count(*) FROM rdpg.config WHERE key = 'ManagerClusterID' AND value = 'main'";
    assert_eq!(runtime.block_on(count(&group.inside(1), manager)), 1);
    let remote = "SELECT count(*) FROM tasks.schedules WHERE enabled AND action = 'FindFilesToCopyToS3'";
    assert_eq!(runtime.block_on(count(&group.inside(1), remote)), 0, "there is no bucket");
}

/// A node gets certificates of another authority: whoever trusts that one alone is let in as soon as they are shown.
fn certificates_are_renewed(group: &Group, runtime: &tokio::runtime::Runtime) {
    let (node, dir) = (&group.nodes[0], group.path("other-pki"));
    let server = |group: &Group| {
        let status = group.status(0)?;
        let parts = status["parts"].as_array()?;
        parts.iter().find(|part| part["name"] == "postgres")?["pid"].as_u64()
    };
    let (ca, now) = (group.path("other-ca"), Timestamp::now());
    ensure_authorities(&ca, "t", None, now).unwrap();
    std::fs::create_dir(&dir).unwrap();
    let names = NodeNames::new("t", "n1", ["127.0.0.1"]).unwrap();
    let bundle = ensure_requests(&dir, &names, Keys::Keep).unwrap().bundle;
    let authorities = Authorities::open(&ca, None).unwrap();
    let signed = issue(&authorities, &bundle, &Policy { days: 1, allowed: None }, now).unwrap();
    ensure_installed(&dir, &names, &signed, now).unwrap();

    let files = TlsFiles { cert: dir.join("peer.crt"), key: dir.join("peer.key"), ca: dir.join("peer-ca.crt") };
    let way =
        |which: usize| Way::Tls { host: node.address.clone(), port: node.ports[which].number(), files: files.clone() };
    let member = Member { id: 1, name: "n1".to_owned(), host: node.address.clone(), port: node.ports[0].number() };
    let places = [Place::peer(&member, &files, "rdpg"), Place { way: way(POOLER), ..group.door(0, POOLER) }];
    let refused = |place: &Place| runtime.block_on(Client::connect(place, Limits::default())).err();
    for place in &places {
        assert!(refused(place).is_some(), "the old certificate is shown");
    }
    group.wait("the server runs", |group| server(group).is_some());
    let before = server(group);
    // First everybody trusts both, then one shows the new one.
    let both = [&group.path("pki/n1"), &dir].map(|dir| std::fs::read(dir.join("peer-ca.crt")).unwrap()).concat();
    for name in ["n1", "n2", "n3"] {
        put(&group.path("pki").join(name).join("peer-ca.crt"), &both);
    }
    for file in ["peer.key", "peer.crt"] {
        put(&group.path("pki/n1").join(file), &std::fs::read(dir.join(file)).unwrap());
    }
    for place in &places {
        group.wait("the new certificate is shown", |_| refused(place).is_none());
    }
    assert_eq!(server(group), before, "it was not restarted");
    group.wait("it is told", |group| group.log(0).contains("have read their certificates anew"));
    group.wait("all is well", |group| group.pg(&["status"]).status.success());
}

/// A role and its database on every node; returns what proves its password, the same everywhere.
async fn give(group: &Group, number: usize) -> String {
    let (user, database) = (format!("u{number}"), format!("d{number}"));
    let mut verifier = "a password".to_owned();
    for at in 0..group.nodes.len() {
        let own = Place { database: "postgres".to_owned(), ..group.inside(at) };
        let client = Client::connect(&own, Limits::default()).await.unwrap();
        client.batch(&format!("CREATE ROLE {user} LOGIN PASSWORD '{verifier}'")).await.unwrap();
        client.batch(&format!("CREATE DATABASE {database} OWNER {user}")).await.unwrap();
        verifier = client.value("SELECT rolpassword FROM pg_authid WHERE rolname = $1", &[&user]).await.unwrap();
    }
    verifier
}

/// A database that is given to somebody is offered where writes are, and its user gets in; of a few tries at least one comes within a
/// second on any machine. A row offers nothing that is ours, and not everybody writes such rows.
fn what_depends_on_a_table_follows_it(group: &Group, runtime: &tokio::runtime::Runtime) {
    let row = |database: &str, user: &str, verifier: &str| {
        format!(
            "INSERT INTO cfsb.instances (cluster_service, cluster_id, dbname, dbuser, dbpass, effective_at) VALUES ('mesh', 't', \
             '{database}', '{user}', '{verifier}', now())"
        )
    };
    let anything = "SCRAM-SHA-256$4096:c2FsdA==$c3RvcmVk:c2VydmVy";
    let broker = Place { user: "broker".to_owned(), ..group.door(0, WRITE) };
    let refused = runtime.block_on(once(&group.door(0, WRITE), &row("mine", "app", anything))).unwrap_err();
    assert!(refused.contains("42501"), "{refused}");
    for (database, user) in [("postgres", "postgres"), ("pgbouncer", "u0"), ("other", "postgres"), ("third", "app")] {
        runtime.block_on(eventually(&broker, &row(database, user, anything)));
    }
    let writer = group.writer().unwrap();
    let told = |at: usize, file: &str| {
        std::fs::read_to_string(group.path(&format!("pg/{}.run/pooler/{file}", group.nodes[at].name))).unwrap()
    };
    let mut best = LIMIT;
    for number in 0..5 {
        let verifier = runtime.block_on(give(group, number));
        runtime.block_on(eventually(&broker, &row(&format!("d{number}"), &format!("u{number}"), &verifier)));
        let begun = Instant::now();
        while !told(writer, "pgbouncer.ini").contains(&format!("\nd{number} = host=")) {
            assert!(begun.elapsed() < LIMIT, "d{number} is not offered");
            std::thread::sleep(Duration::from_millis(5));
        }
        best = best.min(begun.elapsed());
        if best < Duration::from_secs(1) {
            break;
        }
    }
    eprintln!("a database was offered after {best:?}");
    assert!(best < Duration::from_secs(1), "never within a second: {best:?}");
    let (ini, users) = (told(writer, "pgbouncer.ini"), told(writer, "users"));
    assert!(!ini.contains("\npostgres = ") && !ini.contains("\npgbouncer = ") && !ini.contains("\nthird = "), "{ini}");
    assert!(!users.contains("\"postgres\"") && users.contains("\"u0\""), "{users}");
    // By any node's write port; what it writes stays on that server, so no other one lets it in.
    let guest = |which: usize, at: usize| Place {
        user: "u0".to_owned(),
        password: Some(Secret::new("a password".to_owned())),
        database: "d0".to_owned(),
        ..group.door(at, which)
    };
    runtime.block_on(async {
        eventually(&guest(WRITE, 0), "CREATE TABLE notes (id int4)").await;
        eventually(&guest(WRITE, 1), "INSERT INTO notes VALUES (1)").await;
        assert!(once(&guest(POOLER, 1 - writer), "SELECT 1").await.is_err());
        // A move of the write master ends its sessions too.
        let inside = Client::connect(&guest(POOLER, writer), Limits::default()).await.unwrap();
        inside.batch("SELECT 1").await.unwrap();
    });
    let sessions = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'u0'";
    assert!(runtime.block_on(count(&group.inside(writer), sessions)) > 0);
    let to = group.nodes[1 - writer].name.clone();
    group.wait("the write master moves", |group| group.pg(&["switchover", "--to", &to]).status.success());
    group.wait("nobody is left", |group| runtime.block_on(count(&group.inside(writer), sessions)) == 0);
}

fn members(group: &Group, writer: &str, other: &str) {
    ends(group, &["switchover", "--to", writer], 0, &["is the write master already"]);
    ends(group, &["switchover", "--to", "n3"], 5, &["Q1303", "quorate pg join n3"]);
    ends(group, &["join", other], 0, &["of the group already; nothing was done", "quorate pg detach"]);
    ends(group, &["join", "n9"], 4, &["Q1300", "postgres.nodes"]);
    ends(group, &["join", "n3", "--from", "n9"], 5, &["Q1303", "n1, n2"]);
    ends(group, &["join", "n3"], 3, &["Q1304", "is not seen in the store", "quorate pg bootstrap --name n3"]);
    ends(group, &["detach", "n3"], 5, &["Q1303", "n1, n2"]);
    ends(group, &["detach", writer], 5, &["Q1310", "quorate pg switchover"]);
}

/// Those who run learn of a node that was added to the file by a signal, and nothing that runs is stopped for it.
fn a_node_that_is_declared_later(group: &mut Group, runtime: &tokio::runtime::Runtime, writer: usize) {
    group.start(2, &[]);
    group.wait("it is told to join", |group| group.says(2, "fault", "Q1303"));
    ends(group, &["join", "n3"], 3, &["Q1280", "SIGHUP"]);
    let epoch = group.overview()["writer_epoch"].clone();
    let server = |group: &Group| {
        runtime.block_on(count(&group.inside(writer), "SELECT extract(epoch FROM pg_postmaster_start_time())::int8"))
    };
    let before = server(group);
    for at in 0..2 {
        group.signal(at, Signal::HUP);
    }
    group.wait("they have read it", |group| (0..2).all(|at| group.log(at).contains("the cluster file was read anew")));
    group.wait("it joins", |group| group.pg(&["join", "n3"]).status.success());
    group.wait("it is led to", |group| {
        let name = &group.nodes[writer].name;
        std::fs::read_to_string(group.path(&format!("pg/{name}.run/proxy/haproxy.cfg"))).unwrap().contains("server n3 ")
    });
    assert_eq!((group.overview()["writer_epoch"].clone(), server(group)), (epoch, before));
    ends(group, &["detach", "n3"], 0, &["is no longer in the group"]);
    group.kill_node(2);
}

fn the_schema(group: &Group) {
    let file = group.path("change.sql");
    let path = file.display().to_string();
    ends(group, &["ddl", "apply", &path], 2, &["cannot read", "change.sql"]);
    for (text, words) in [
        (" \n", ["Q1269", "is empty"]),
        ("CREATE TABL x", ["Q1269", "syntax error"]),
        ("CREATE TABLE rdpg.x (id int4)", ["Q1270", "PRIMARY KEY"]),
        ("DROP TABLE rdpg.nothing", ["Q1269", "does not exist"]),
    ] {
        put(&file, text.as_bytes());
        ends(group, &["ddl", "apply", &path], 1, &words);
    }
    put(&file, b"CREATE TABLE rdpg.counted (id int8 GENERATED ALWAYS AS IDENTITY PRIMARY KEY)");
    ends(
        group,
        &["ddl", "apply", &path],
        0,
        &["version 2 is on every node\n  taken now by", "its key from a sequence"],
    );
    // The same file again changes nothing.
    ends(group, &["ddl", "apply", &path], 0, &["version 2 is on every node\n  there already on"]);
}
