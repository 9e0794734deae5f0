//! What a stolen certificate and a hostile owner of the database can do to a group.

#![expect(clippy::unwrap_used, reason = "a failed step panics")]

mod pg_support;

use std::path::{Path, PathBuf};

use jiff::Timestamp;
use pg_support::{Group, WRITE, count, eventually, once, put, runtime, well};
use quorate_pki::{
    Authorities, Keys, NodeNames, Policy, ensure_authorities, ensure_installed, ensure_lists, ensure_requests,
    ensure_revoked, issue, read_certificates, read_issued, read_lists,
};
use quorate_postgres::group::Member;
use quorate_postgres::server::TlsFiles;
use quorate_postgres::sql::{Client, Limits, Place};

/// Certificates of a node, signed once more: as good as those that were copied from its disk.
fn signed_for(group: &Group, ca: &str, node: &str, dir: &str) -> TlsFiles {
    let (ca, dir, now) = (group.path(ca), group.path(dir), Timestamp::now());
    if !ca.exists() {
        ensure_authorities(&ca, "t", None, now).unwrap();
    }
    std::fs::create_dir(&dir).unwrap();
    let names = NodeNames::new("t", node, ["127.0.0.1"]).unwrap();
    let bundle = ensure_requests(&dir, &names, Keys::Keep).unwrap().bundle;
    let authorities = Authorities::open(&ca, None).unwrap();
    let signed = issue(&authorities, &bundle, &Policy { days: 1, allowed: None }, now).unwrap();
    ensure_installed(&dir, &names, &signed, now).unwrap();
    let file = |name: &str| dir.join(name);
    // The server's certificate is checked by the authority of the group, whoever has signed ours.
    TlsFiles { cert: file("peer.crt"), key: file("peer.key"), ca: group.path("pki/n1/peer-ca.crt") }
}

/// Revokes it, and brings the lists to every node.
fn revoke(group: &Group, files: &TlsFiles) {
    let (ca, now) = (group.path("ca"), Timestamp::now());
    let authorities = Authorities::open(&ca, None).unwrap();
    let certificate = read_certificates(&files.cert).unwrap().remove(0);
    let issued = read_issued(&authorities, &certificate, "n2").unwrap();
    assert_eq!(ensure_revoked(&ca, &authorities, &[issued], now).unwrap(), 1);
    let lists = read_lists(&ca).unwrap().unwrap();
    for name in ["n1", "n2", "n3"] {
        ensure_lists(&group.path("pki").join(name), &lists).unwrap();
    }
}

fn peer(group: &Group, at: usize, files: &TlsFiles) -> Place {
    let node = &group.nodes[at];
    let member = Member {
        id: u16::try_from(at + 1).unwrap(),
        name: node.name.clone(),
        host: node.address.clone(),
        port: node.ports[0].number(),
    };
    Place::peer(&member, files, "rdpg")
}

/// Whether a session with these files lasts: one that is ended does not.
async fn lasts(place: &Place) -> bool {
    match Client::connect(place, Limits::default()).await {
        Ok(client) => client.batch("SELECT pg_sleep(0.5)").await.is_ok(),
        Err(_) => false,
    }
}

/// When the server was started; a restart is seen.
fn started(group: &Group, runtime: &tokio::runtime::Runtime) -> Vec<i64> {
    let sql = "SELECT (extract(epoch FROM pg_postmaster_start_time()) * 1000)::int8";
    (0..3).map(|at| runtime.block_on(count(&group.inside(at), sql))).collect()
}

fn writes_arrive(group: &Group, runtime: &tokio::runtime::Runtime, key: &str) {
    let sql = format!("INSERT INTO rdpg.events (host, key, msg) VALUES ('h', '{key}', 'm')");
    runtime.block_on(eventually(&group.door(0, WRITE), &sql));
    let sql = format!("SELECT count(*) FROM rdpg.events WHERE key = '{key}'");
    group.wait("rows arrive everywhere", |group| (0..3).all(|at| runtime.block_on(count(&group.inside(at), &sql)) > 0));
}

fn has_list(group: &Group, at: usize) -> bool {
    let conf = group.data_dir(at).join("postgresql.conf");
    std::fs::read_to_string(conf).is_ok_and(|text| text.contains("ssl_crl_file"))
}

#[test]
fn revoked_certificates_are_refused_without_a_restart_and_their_sessions_end() {
    let mut group = Group::new("role: manager");
    group.start_all();
    group.wait_ready();
    let runtime = runtime();
    let stolen = signed_for(&group, "ca", "n2", "stolen");
    let later = signed_for(&group, "ca", "n2", "stolen-later");
    let accepted = |group: &Group, at: usize, files: &TlsFiles| {
        runtime.block_on(Client::connect(&peer(group, at, files), Limits::default())).is_ok()
    };
    assert!((0..3).all(|at| accepted(&group, at, &stolen) && !has_list(&group, at)), "it is a node's certificate");
    let before = started(&group, &runtime);
    let session = runtime.block_on(Client::connect(&peer(&group, 0, &stolen), Limits::default())).unwrap();
    // The first list appears while servers run.
    revoke(&group, &stolen);
    for at in 0..3 {
        group.wait("it is refused", |group| has_list(group, at) && !accepted(group, at, &stolen));
        assert!(accepted(&group, at, &later), "the other certificates of the same node are accepted");
    }
    group.wait("its session is ended", |_| runtime.block_on(session.batch("SELECT 1")).is_err());
    writes_arrive(&group, &runtime, "revoked");
    // A list that is replaced is read again.
    revoke(&group, &later);
    for at in 0..3 {
        group.wait("both are refused", |group| !accepted(group, at, &later));
        assert!(!accepted(&group, at, &stolen));
    }
    assert_eq!(started(&group, &runtime), before, "no server was restarted");
    // A server that is restarted has the list before it accepts the first connection.
    group.kill_node(0);
    group.start(0, &[]);
    group.wait_ready();
    assert!(has_list(&group, 0) && !accepted(&group, 0, &stolen));
    during_a_rotation(&group, &runtime, &stolen);
}

/// Two authorities, and a list of one: other certificates are accepted, and a revoked one gets no session that lasts.
fn during_a_rotation(group: &Group, runtime: &tokio::runtime::Runtime, stolen: &TlsFiles) {
    let renewed = signed_for(group, "next-ca", "n3", "renewed");
    let next: PathBuf = group.path("renewed/peer-ca.crt");
    let read = |path: &Path| std::fs::read(path).unwrap();
    let both = [read(&group.path("pki/n1/peer-ca.crt")), read(&next)].concat();
    for name in ["n1", "n2", "n3"] {
        put(&group.path("pki").join(name).join("peer-ca.crt"), &both);
    }
    for at in 0..3 {
        group.wait("the new authority is accepted", |group| runtime.block_on(lasts(&peer(group, at, &renewed))));
        assert!(!runtime.block_on(lasts(&peer(group, at, stolen))), "at n{}", at + 1);
    }
    writes_arrive(group, runtime, "rotating");
    well(&group.pg(&["status"]));
}

#[test]
fn the_agents_call_no_function_and_no_operator_of_the_databases_owner() {
    let mut group = Group::new("role: manager");
    group.start_all();
    group.wait_ready();
    let (runtime, writer) = (runtime(), group.writer().unwrap());
    let broker = Place { user: "broker".to_owned(), ..group.door(writer, WRITE) };
    // Each fits the arguments of statements of ours better than what PostgreSQL has: these would be preferred.
    let trap = "CREATE SCHEMA trap; CREATE UNLOGGED TABLE trap.caught (who text, what text); GRANT USAGE ON SCHEMA trap TO PUBLIC; \
                GRANT INSERT ON trap.caught TO PUBLIC; \
                CREATE FUNCTION public.times(numeric, int4) RETURNS numeric LANGUAGE plpgsql AS $$ BEGIN \
                INSERT INTO trap.caught VALUES (current_user, 'operator'); RETURN $1 OPERATOR(pg_catalog.*) $2::numeric; END $$; \
                CREATE OPERATOR public.* (LEFTARG = numeric, RIGHTARG = int4, FUNCTION = public.times); \
                CREATE FUNCTION public.quote_ident(name) RETURNS text LANGUAGE plpgsql AS $$ BEGIN \
                INSERT INTO trap.caught VALUES (current_user, 'quote_ident'); RETURN pg_catalog.quote_ident($1::text); END $$";
    runtime.block_on(eventually(&broker, trap));
    let caught = |who: &str| format!("SELECT count(*) FROM trap.caught WHERE who {who} 'broker'");
    // What agents do all the time, at a start, and by order of operators.
    group.kill_agent(writer);
    group.start(writer, &[]);
    group.wait_ready();
    let file = group.path("change.sql");
    put(&file, b"CREATE TABLE rdpg.more (id int4 PRIMARY KEY);\n");
    well(&group.pg(&["ddl", "apply", &file.display().to_string()]));
    well(&group.pg(&["conflicts", "repair"]));
    well(&group.pg(&["status"]));
    writes_arrive(&group, &runtime, "trapped");
    assert_eq!(runtime.block_on(count(&group.inside(writer), &caught("<>"))), 0, "{}", group.log(writer));
    // The trap works: a session that looks into `public` falls into it.
    runtime.block_on(once(&broker, "SELECT 2::numeric * 3, quote_ident('a'::name)")).unwrap();
    assert_eq!(runtime.block_on(count(&group.inside(writer), &caught("="))), 2);
}
