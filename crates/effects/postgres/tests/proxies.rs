//! pgbouncer and haproxy take what is rendered for them.

mod support;

use std::process::Command;
use std::time::Duration;

use quorate_postgres::Secret;
use quorate_postgres::group::pool_users;
use quorate_postgres::proxies::{
    Console, HaproxyNode, HaproxySpec, PgbouncerSpec, PoolTarget, ensure_file, keep_states, render_haproxy,
    render_pgbouncer, render_userlist,
};
use quorate_postgres::server::ensure_config;
use quorate_postgres::sql::{Client, Limits, Place};
use quorate_testkit::{Running, free_port, haproxy, pgbouncer, start_unprivileged, wait_until};
use support::{DATABASE, LIMIT, PASSWORD, Servers, owner};

#[tokio::test(flavor = "multi_thread")]
async fn an_application_enters_through_the_pooler_and_waits_while_it_is_paused() {
    let servers = Servers::start(&[18]).await;
    let node = &servers.nodes[0];
    let (root, port) = (servers.root.path(), free_port());
    let mut users = pool_users(&node.own("postgres").await).await.unwrap();
    assert_eq!(users.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["app", "health", "rdpg"]);
    users.push(("pool-admin".to_owned(), "admin-secret".to_owned()));
    // Its own socket lies beside the server's.
    let socket_dir = root.join("run1");
    ensure_config(&node.data, &node.config, node.installation.version).unwrap();
    let spec = PgbouncerSpec {
        database: DATABASE.to_owned(),
        instances: Vec::new(),
        target: PoolTarget::Own { socket_dir: node.config.socket_dir.clone(), port: node.config.port },
        listen: "127.0.0.1".to_owned(),
        port: port.number(),
        socket_dir: socket_dir.clone(),
        auth_file: root.join("users"),
        admin: "pool-admin".to_owned(),
        cert: None,
        clients_max: 100,
        pool_size: 5,
    };
    let ini = root.join("pgbouncer.ini");
    assert!(ensure_file(&spec.auth_file, &render_userlist(&users), owner()).unwrap());
    assert!(ensure_file(&ini, &render_pgbouncer(&spec), owner()).unwrap());
    assert!(!ensure_file(&ini, &render_pgbouncer(&spec), owner()).unwrap());
    let _pooler = start_unprivileged(&pgbouncer(), &[ini.display().to_string()]);
    let admin = Secret::new("admin-secret".to_owned());
    let begun = std::time::Instant::now();
    let console = loop {
        match Console::connect("n1", &socket_dir, spec.port, "pool-admin", &admin, Duration::from_secs(20)).await {
            Ok(console) => break console,
            Err(fault) => assert!(begun.elapsed() < LIMIT, "{fault}: {:?}", std::error::Error::source(&fault)),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    let place = |password: &str| Place {
        password: Some(Secret::new(password.to_owned())),
        ..Place::socket("n1", &socket_dir, spec.port, "app", DATABASE)
    };
    assert!(Client::connect(&place("wrong"), Limits::default()).await.is_err());
    let app = Client::connect(&place(PASSWORD), Limits::default()).await.unwrap();
    app.batch("SELECT 1").await.unwrap();
    assert_eq!(console.is_paused(DATABASE).await.unwrap(), Some(false));
    console.pause(DATABASE).await.unwrap();
    assert_eq!(console.is_paused(DATABASE).await.unwrap(), Some(true));
    let waiting = tokio::spawn(async move { app.batch("SELECT 2").await });
    console.reload().await.unwrap();
    assert!(!waiting.is_finished());
    console.resume(DATABASE).await.unwrap();
    waiting.await.unwrap().unwrap();
    assert_eq!(console.is_paused("other").await.unwrap(), None);
}

#[test]
fn haproxy_takes_its_configuration_and_tells_the_states_of_its_servers() {
    let root = support::open_dir();
    let ports = [free_port(), free_port(), free_port(), free_port()];
    let path = |name: &str| root.path().join(name);
    let spec = HaproxySpec {
        nodes: vec![HaproxyNode {
            name: "n1".to_owned(),
            host: "127.0.0.1".to_owned(),
            port: ports[0].number(),
            health_port: ports[1].number(),
        }],
        listen: "127.0.0.1".to_owned(),
        write_port: ports[2].number(),
        read_port: ports[3].number(),
        socket: path("ha.sock"),
        state_file: path("ha.state"),
        connections_max: 100,
    };
    let config = path("haproxy.cfg");
    ensure_file(&config, &render_haproxy(&spec), None).unwrap();
    let checked = Command::new(haproxy()).arg("-c").arg("-f").arg(&config).output().unwrap();
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
    let _proxy = Running::start(&haproxy(), &["-db".to_owned(), "-f".to_owned(), config.display().to_string()], &[]);
    // Nobody answers at the health port, so the server is down, and the kept state says so.
    let is_down = || {
        keep_states(&spec.socket, &spec.state_file, None).is_ok()
            && std::fs::read_to_string(&spec.state_file).is_ok_and(|text| {
                let servers: Vec<Vec<&str>> = text.lines().map(|line| line.split(' ').collect()).collect();
                servers.iter().any(|line| line.get(1) == Some(&"write") && line.get(5) == Some(&"0"))
            })
    };
    wait_until("haproxy sees that the server is down", LIMIT, is_down);
}
