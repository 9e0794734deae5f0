//! The rights of other nodes on a server, and functions of the database's owner that its sessions do not call.

#![expect(clippy::unwrap_used, reason = "a failed step panics")]

mod support;

use quorate_faults::Code;
use quorate_postgres::Secret;
use quorate_postgres::group::{ensure_mesh, observe_links, round_trip, same_everywhere, tables};
use quorate_postgres::schema::{self, Ddl, Order};
use quorate_postgres::sql::{Client, Limits, Place};
use support::{DATABASE, LIMIT, Node, PASSWORD, Servers};

/// Statements that a superuser can run and another node has no need of.
const FORBIDDEN: [&str; 19] = [
    "COPY (SELECT 1) TO PROGRAM 'true'",
    "COPY (SELECT 1) TO '/tmp/quorate-test-stolen'",
    "SELECT pg_read_file('/etc/passwd')",
    "SELECT pg_ls_dir('/')",
    "SELECT rolpassword FROM pg_authid",
    "SELECT subconninfo FROM pg_subscription",
    "CREATE ROLE evil SUPERUSER",
    "ALTER ROLE quorate SUPERUSER",
    "SET ROLE postgres",
    "SET SESSION AUTHORIZATION postgres",
    "ALTER SYSTEM SET archive_command = 'true'",
    "CREATE FUNCTION mesh.publish(publication int4) RETURNS void LANGUAGE sql AS 'SELECT'",
    "CREATE OR REPLACE FUNCTION mesh.stamp() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'",
    "UPDATE mesh.self SET sslkey = '/etc/shadow'",
    "UPDATE mesh.gate SET open = true",
    "CREATE EVENT TRIGGER evil ON ddl_command_end EXECUTE FUNCTION mesh.on_ddl()",
    "CREATE SUBSCRIPTION evil CONNECTION 'host=/tmp' PUBLICATION mesh WITH (connect = false)",
    "ALTER SUBSCRIPTION mesh_n1_from_n2 CONNECTION 'host=/tmp'",
    "SELECT mesh.unsubscribe('evil')",
];

async fn is_superuser(node: &Node) -> bool {
    let sql = "SELECT rolsuper FROM pg_catalog.pg_roles WHERE rolname = 'quorate'";
    node.own(DATABASE).await.value(sql, &[]).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_of_another_node_is_no_superuser() {
    let servers = Servers::start(&[18, 16]).await;
    let seats = servers.link().await;
    schema::apply(&seats, None, &schema::v1(), Order::Adds, LIMIT).await.unwrap();
    for node in &servers.nodes {
        let stolen = node.peer(&servers.nodes[1].files).await;
        let user: String = stolen.value("SELECT session_user::text", &[]).await.unwrap();
        assert!(user == "quorate" && !is_superuser(node).await);
        for sql in FORBIDDEN.map(|sql| {
            sql.replace("mesh_n1_from_n2", &format!("mesh_n{0}_from_n{1}", node.member.id, 3 - node.member.id))
        }) {
            let fault = stolen.batch(&sql).await.expect_err(&sql);
            let why = std::error::Error::source(&fault).map(ToString::to_string).unwrap_or_default();
            let denied = ["denied", "must be", "not allowed", "no subscription of the mesh"];
            assert!(denied.iter().any(|word| why.contains(word)), "{sql}: {why}");
        }
        // Databases of others, and the one that roles are kept in, are not its own.
        let elsewhere = Place { database: "postgres".to_owned(), ..Place::peer(&node.member, &node.files, DATABASE) };
        assert_eq!(Client::connect(&elsewhere, Limits::default()).await.unwrap_err().code(), Code::PgAuth);
    }
    // A mesh of an earlier release: the role was a superuser, and owned what other nodes had made through it.
    for (at, node) in servers.nodes.iter().enumerate() {
        let link = format!("mesh_n{}_from_n{}", node.member.id, 3 - node.member.id);
        let own = node.own(DATABASE).await;
        own.batch(&format!(
            "ALTER ROLE quorate SUPERUSER; ALTER SUBSCRIPTION {link} OWNER TO quorate; ALTER PUBLICATION mesh OWNER TO quorate; \
             ALTER SCHEMA mesh OWNER TO quorate; ALTER TABLE mesh.self OWNER TO quorate; ALTER FUNCTION mesh.guard() OWNER TO quorate"
        ))
        .await
        .unwrap();
        if at == 0 {
            own.batch(
                "SET mesh.ddl = 'on'; ALTER TABLE cfsb.plans OWNER TO postgres; ALTER SCHEMA cfsb OWNER TO postgres",
            )
            .await
            .unwrap();
        }
    }
    for node in &servers.nodes {
        node.prepare(&servers.members()).await;
        assert!(!is_superuser(node).await, "taken back by the node itself");
        let owned = "SELECT count(*) FROM pg_catalog.pg_subscription s JOIN pg_catalog.pg_roles r ON r.oid = s.subowner WHERE NOT r.rolsuper";
        assert_eq!(node.own(DATABASE).await.value::<i64>(owned, &[]).await.unwrap(), 0);
        assert!(node.prepare(&servers.members()).await.is_empty(), "and then nothing is left to do");
    }
    // The mesh still works: changes of the schema, rows, and subscriptions that are dropped and made.
    let seats = servers.seats().await;
    let sql = "ALTER TABLE cfsb.plans ADD COLUMN more text; CREATE TABLE later (id int4 PRIMARY KEY)";
    let ddl = Ddl { version: 2, name: "later".to_owned(), sql: sql.to_owned() };
    schema::apply(&seats, None, &ddl, Order::Adds, LIMIT).await.unwrap();
    seats[1].client.batch("INSERT INTO public.later VALUES (1)").await.unwrap();
    round_trip(&seats, LIMIT).await.unwrap();
    assert_eq!(same_everywhere(&seats, LIMIT).await.unwrap()["public.later"].rows, 1);
    assert!(ensure_mesh(&seats).await.unwrap().is_empty());
    let links = observe_links(&seats[0]).await.unwrap();
    assert!(links.incoming.values().all(|link| link.enabled && link.errors == 0), "{links:?}");
}

/// The owner of the database, as it comes through the pooler.
async fn owner(node: &Node) -> Client {
    let place = Place {
        password: Some(Secret::new(PASSWORD.to_owned())),
        ..Place::socket(&node.member.name, &node.config.socket_dir, node.config.port, "rdpg", DATABASE)
    };
    Client::connect(&place, Limits::default()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn functions_and_operators_of_the_databases_owner_are_not_called_by_ours() {
    let servers = Servers::start(&[18, 18]).await;
    let seats = servers.link().await;
    schema::apply(&seats, None, &schema::v1(), Order::Adds, LIMIT).await.unwrap();
    let node = &servers.nodes[0];
    let hostile = owner(node).await;
    // Each fits the arguments of statements of ours better than what PostgreSQL has: these would be preferred.
    hostile
        .batch(
            "CREATE SCHEMA trap; CREATE TABLE trap.caught (who text, what text); GRANT USAGE ON SCHEMA trap TO PUBLIC; \
             GRANT INSERT ON trap.caught TO PUBLIC; \
             CREATE FUNCTION public.times(numeric, int4) RETURNS numeric LANGUAGE plpgsql AS $$ BEGIN \
               INSERT INTO trap.caught VALUES (current_user, 'operator'); RETURN $1 OPERATOR(pg_catalog.*) $2::numeric; END $$; \
             CREATE OPERATOR public.* (LEFTARG = numeric, RIGHTARG = int4, FUNCTION = public.times); \
             CREATE FUNCTION public.quote_ident(name) RETURNS text LANGUAGE plpgsql AS $$ BEGIN \
               INSERT INTO trap.caught VALUES (current_user, 'quote_ident'); RETURN pg_catalog.quote_ident($1::text); END $$; \
             CREATE FUNCTION public.format(text, text, text) RETURNS text LANGUAGE plpgsql AS $$ BEGIN \
               INSERT INTO trap.caught VALUES (current_user, 'format'); RETURN $2 || '.' || $3; END $$; \
             CREATE FUNCTION public.format(text, name, name) RETURNS text LANGUAGE plpgsql AS $$ BEGIN \
               INSERT INTO trap.caught VALUES (current_user, 'format'); RETURN $2 || '.' || $3; END $$; \
             ALTER DATABASE rdpg SET search_path = public, pg_catalog",
        )
        .await
        .unwrap();
    // Sessions from here on, as an agent opens them: its own, and those of other nodes.
    for client in [node.own(DATABASE).await, node.peer(&servers.nodes[1].files).await] {
        let path: String = client.value("SHOW search_path", &[]).await.unwrap();
        assert_eq!(path, "pg_catalog,pg_temp");
        quorate_postgres::group::gate_is_open(&client).await.unwrap();
        tables(&client).await.unwrap();
        schema::lint(&client).await.unwrap();
        let seat = quorate_postgres::group::Seat { member: node.member.clone(), client };
        observe_links(&seat).await.unwrap();
    }
    node.prepare(&servers.members()).await;
    let seats = servers.seats().await;
    round_trip(&seats, LIMIT).await.unwrap();
    quorate_postgres::group::compare(&seats, LIMIT).await.unwrap();
    quorate_postgres::conflicts::repair(&seats, &quorate_postgres::conflicts::Source::Newest).await.unwrap();
    quorate_postgres::conflicts::counts(&seats[0].client).await.unwrap();
    let caught: Vec<String> = hostile.values("SELECT DISTINCT who || ' ' || what FROM trap.caught", &[]).await.unwrap();
    assert!(caught.is_empty(), "{caught:?}");
    // The trap works: a session that looks into `public` falls into it.
    hostile.batch("SET search_path = public, pg_catalog; SELECT 2::numeric * 3, quote_ident('a'::name), format('%s', 'a'::name, 'b'::name)").await.unwrap();
    let caught: i64 = hostile.value("SELECT count(*) FROM trap.caught WHERE who = 'rdpg'", &[]).await.unwrap();
    assert_eq!(caught, 3);
}
