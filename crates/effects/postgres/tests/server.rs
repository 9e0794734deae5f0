//! One server: its data dir, its configuration, and who gets in.

mod support;

use quorate_faults::Code;
use quorate_postgres::Outcome;
use quorate_postgres::server::{
    ConfigChange, DataMark, DataSeen, Installation, TlsFiles, ensure_config, ensure_data, observe_data,
    pending_restart, reload,
};
use quorate_postgres::sql::{Client, Limits, Place};
use quorate_testkit::postgres;
use support::{Authority, DATABASE, Node, open_dir, owner};

#[test]
fn postgresql_15_is_refused_by_name() {
    let fault = Installation::at(&postgres(15)).unwrap_err();
    assert_eq!(fault.code(), Code::PgTooOld);
    assert!(fault.to_string().starts_with("PostgreSQL 15."), "{fault}");
}

#[test]
fn a_data_dir_is_made_once_and_a_foreign_one_is_left_alone() {
    let root = open_dir();
    let authority = Authority::new();
    let node = Node::new(root.path(), &authority, 1, 18);
    let (dir, mark) = (&node.data, node.mark());
    // What a killed attempt left behind.
    let partial = root.path().join("data1.partial-1");
    std::fs::create_dir(&partial).unwrap();
    std::fs::File::create(partial.join("PG_VERSION")).unwrap();
    std::fs::create_dir(dir).unwrap();
    assert_eq!(ensure_data(&node.installation, dir, &mark, owner()).unwrap(), Outcome::Done);
    assert_eq!(observe_data(dir), DataSeen::Ours { mark: mark.clone(), major: 18 });
    assert!(!partial.exists());
    assert_eq!(ensure_data(&node.installation, dir, &mark, owner()).unwrap(), Outcome::AlreadyDone);
    let other = DataMark { node: "n2".into(), ..mark.clone() };
    assert_eq!(ensure_data(&node.installation, dir, &other, owner()).unwrap_err().code(), Code::PgForeignData);
    let older = Installation::at(&postgres(17)).unwrap();
    assert_eq!(ensure_data(&older, dir, &mark, owner()).unwrap_err().code(), Code::PgDataVersion);
    assert_eq!(ensure_data(&older, root.path(), &mark, owner()).unwrap_err().code(), Code::PgForeignData);
    if owner().is_some() {
        let closed = root.path().join("closed");
        std::fs::DirBuilder::new().create(&closed).unwrap();
        std::fs::set_permissions(&closed, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
        let fault = ensure_data(&older, &closed.join("data"), &mark, owner()).unwrap_err();
        assert!(fault.to_string().contains("may not enter"), "{fault}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn peers_enter_by_their_certificate_and_nobody_else_by_the_network() {
    let root = open_dir();
    let authority = Authority::new();
    let mut node = Node::new(root.path(), &authority, 1, 17);
    node.init();
    node.start();
    node.prepare(std::slice::from_ref(&node.member)).await;
    assert!(node.prepare(std::slice::from_ref(&node.member)).await.is_empty(), "the second time nothing is left to do");
    let client = node.own(DATABASE).await;
    let name: String = client.value("SHOW cluster_name", &[]).await.unwrap();
    assert_eq!(name, "n1");
    let limits: String = client.value("SHOW statement_timeout", &[]).await.unwrap();
    assert_eq!(limits, "30s");
    node.peer(&authority.files(root.path(), "n2")).await;
    let refused = |files: TlsFiles| {
        let place = Place::peer(&node.member, &files, DATABASE);
        async move { Client::connect(&place, Limits::default()).await.unwrap_err() }
    };
    let stranger = refused(authority.files(root.path(), "stranger")).await;
    assert_eq!(stranger.code(), Code::PgAuth, "a name that is no member's: {stranger}");
    let other = Authority::new().files(root.path(), "n3");
    let forged = refused(TlsFiles { ca: node.files.ca.clone(), ..other }).await;
    assert_ne!(forged.code(), Code::Internal, "{forged}");
    let app = Place { user: "app".into(), ..Place::peer(&node.member, &node.files, DATABASE) };
    assert_eq!(Client::connect(&app, Limits::default()).await.unwrap_err().code(), Code::PgAuth);
    // By the socket, where the pooler stands, an application gets in with its password.
    let app = node.app().await;
    assert_eq!(app.value::<i32>("SELECT 1", &[]).await.unwrap(), 1);
    let fault = app.batch("CREATE ROLE evil SUPERUSER").await.unwrap_err();
    assert_eq!(fault.code(), Code::PgSql);

    let mut config = node.config.clone();
    config.extra.insert("max_connections".into(), "50".into());
    config.extra.insert("work_mem".into(), "8MB".into());
    let version = node.installation.version;
    assert_eq!(ensure_config(&node.data, &config, version).unwrap(), ConfigChange::Changed);
    assert_eq!(ensure_config(&node.data, &config, version).unwrap(), ConfigChange::Same);
    reload(&client).await.unwrap();
    let begun = std::time::Instant::now();
    while pending_restart(&client).await.unwrap() != ["max_connections"] {
        assert!(begun.elapsed() < support::LIMIT, "a reload is not seen");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    // A statement that takes too long ends by the server's own limit.
    let place = Place::own(&node.config, DATABASE);
    let hasty =
        Client::connect(&place, Limits::default().statement(std::time::Duration::from_millis(50))).await.unwrap();
    assert_eq!(hasty.batch("SELECT pg_sleep(30)").await.unwrap_err().code(), Code::PgTimeout);
    assert_eq!(hasty.value::<i32>("SELECT 2", &[]).await.unwrap(), 2, "the connection is still good");
}
