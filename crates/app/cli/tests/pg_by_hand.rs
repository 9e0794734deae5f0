//! `quorate pg` in hands that err: each mistake is named, with a way out and the right exit code. And what is changed below a
//! group that runs: certificates, databases, members.

#![expect(clippy::print_stderr, clippy::unwrap_used, reason = "it says how long it took, and where it cannot go on")]

mod pg_support;

use std::process::Output;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use pg_support::{Group, LIMIT, POOLER, WRITE, count, eventually, put, runtime};
use quorate_pki::{Authorities, Keys, NodeNames, Policy, ensure_authorities, ensure_installed, ensure_requests, issue};
use quorate_postgres::group::Member;
use quorate_postgres::server::TlsFiles;
use quorate_postgres::sql::{Client, Limits, Place, Way};
use quorate_testkit::kill_hard;

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

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

    // The third node is declared from here on, and never comes.
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
    let new = quorate_testkit::postgres(18).display().to_string();
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
    for name in ["n1", "n2"] {
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

/// A database that is given to somebody is offered by every pooler; of a few tries at least one comes within a second on any machine.
fn what_depends_on_a_table_follows_it(group: &Group, runtime: &tokio::runtime::Runtime) {
    let mut best = LIMIT;
    for number in 0..5 {
        let given = format!(
            "INSERT INTO cfsb.instances (cluster_service, cluster_id, dbname, dbuser, dbpass, effective_at) VALUES ('mesh', 't', \
             'd{number}', 'u{number}', 'SCRAM-SHA-256$4096:c2FsdA==$c3RvcmVk:c2VydmVy', now())"
        );
        runtime.block_on(eventually(&group.door(0, WRITE), &given));
        let begun = Instant::now();
        let offers = |node: &pg_support::Node| {
            let file = group.path(&format!("pg/{}.run/pooler/pgbouncer.ini", node.name));
            std::fs::read_to_string(file).unwrap().contains(&format!("\nd{number} = host="))
        };
        while !group.nodes.iter().all(offers) {
            assert!(begun.elapsed() < LIMIT, "d{number} is not offered");
            std::thread::sleep(Duration::from_millis(5));
        }
        best = best.min(begun.elapsed());
        if best < Duration::from_secs(1) {
            break;
        }
    }
    eprintln!("a database was offered by every pooler after {best:?}");
    assert!(best < Duration::from_secs(1), "never within a second: {best:?}");
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
