//! The guide to a user for backups: its commands as they stand, and each line of its table.

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use quorate_etcd::client::messages::PutRequest;
use quorate_etcd::client::{Client, Credentials, Settings, Watch, WatchFrom, WatchTurn};
use quorate_faults::{Code, Fault};
use quorate_testkit::{Launch, Seat, Server, VERSIONS, etcd, project_root, run};
use tempfile::TempDir;

/// The blocks of commands, in order.
fn blocks() -> Vec<String> {
    let text = std::fs::read_to_string(project_root().join("docs/guide/backup-role.md")).unwrap();
    text.split("```").skip(1).step_by(2).map(|block| block.trim_start_matches("sh").to_owned()).collect()
}

fn shell(server: &Server, dir: &Path, commands: &str) {
    let tools = server.tools.etcdctl.parent().unwrap();
    run(Command::new("bash")
        .args(["-euo", "pipefail", "-c", commands])
        .current_dir(dir)
        .env("PATH", format!("{}:{}", tools.display(), std::env::var("PATH").unwrap()))
        // 3.4 speaks this by itself as well; the variable is for those before it.
        .env("ETCDCTL_API", "3")
        .env("ETCDCTL_ENDPOINTS", server.seat.client_url())
        .env("ETCDCTL_USER", "root:secret"));
}

async fn connect(server: &Server, name: &str, password: &str) -> Result<Client, Fault> {
    let credentials = Credentials { name: name.to_owned(), password: password.to_owned() };
    Client::connect(&Settings { credentials: Some(credentials), ..Settings::new([server.seat.client_url()]) }).await
}

fn password(dir: &Path, name: &str) -> String {
    use std::os::unix::fs::PermissionsExt;
    let path = dir.join(format!("{name}.password"));
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600, "only its owner reads it");
    std::fs::read_to_string(path).unwrap().trim_end().to_owned()
}

/// Which lines of the table a user may do, in their order.
async fn may(client: &Client, lease: i64) -> [bool; 6] {
    let refused = |fault: Fault| assert_eq!(fault.code(), Code::EtcdRefused, "{fault:?}");
    let watched = match client.watch(WatchFrom { revision: 2, progress: false }).await {
        Ok(mut watch) => matches!(watch.next().await.unwrap(), WatchTurn::Events { .. }),
        Err(fault) => panic!("{fault:?}"),
    };
    let granted = client.lease_time_to_live(lease).await.unwrap().unwrap().ttl == 300;
    let header = client.header().await.unwrap();
    [
        watched,
        granted,
        header.cluster_id != 0 && header.revision >= 2,
        client.status().await.map_err(refused).is_ok(),
        client.snapshot().await.map_err(refused).is_ok(),
        client.put("/written", "v").await.map_err(refused).is_ok(),
    ]
}

#[test]
fn the_guide_to_a_user_for_backups_is_true() {
    // Most of it is waiting for programs to start, so the releases run side by side.
    std::thread::scope(|scope| {
        for version in VERSIONS {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            scope.spawn(move || runtime.block_on(is_true(version)));
        }
    });
}

async fn is_true(version: &str) {
    let blocks = blocks();
    let [deltas, fulls, change] = blocks.as_slice() else { panic!("{} blocks of commands", blocks.len()) };
    let dir = TempDir::new().unwrap();
    let launch = Launch::new(&etcd(version), &Seat::new("n1"), &dir.path().join("data"));
    let server = launch.arg("--bcrypt-cost=4").start();
    // 3.4 has no root role until it is added; later ones have it from the start.
    let _ = server.try_ctl(&["role", "add", "root"]);
    for words in ["user add root:secret", "user grant-role root root", "auth enable"] {
        server.ctl(&words.split(' ').collect::<Vec<_>>());
    }
    let root = connect(&server, "root", "secret").await.unwrap();
    let lease = root.lease_grant(300, 0).await.unwrap();
    root.put_with(PutRequest { key: "/leased".into(), lease, ..PutRequest::default() }).await.unwrap();

    shell(&server, dir.path(), deltas);
    let follower = connect(&server, "follower", &password(dir.path(), "follower")).await.unwrap();
    let status = version != "sid";
    assert_eq!(may(&follower, lease).await, [true, true, true, status, false, false], "{version}");

    shell(&server, dir.path(), fulls);
    let old = password(dir.path(), "backup");
    let backup = connect(&server, "backup", &old).await.unwrap();
    assert_eq!(may(&backup, lease).await, [true; 6], "{version}");

    let mut watch = backup.watch(WatchFrom { revision: 2, progress: false }).await.unwrap();
    shell(&server, dir.path(), change);
    let new = password(dir.path(), "backup");
    assert_ne!(old, new);
    connect(&server, "backup", &old).await.unwrap_err();
    let renewed = connect(&server, "backup", &new).await.unwrap();
    let last = renewed.put("/last", "v").await.unwrap().header.unwrap().revision;
    assert!(sees(&mut watch, last).await, "{version}: the watch goes on");
    assert_eq!(backup.get("/leased").await.unwrap_err().code(), Code::EtcdRefused, "{version}");
}

/// Whether a watch comes to a revision.
async fn sees(watch: &mut Watch, wanted: i64) -> bool {
    loop {
        let turn = tokio::time::timeout(Duration::from_secs(10), watch.next()).await;
        let Ok(Ok(WatchTurn::Events { events, .. })) = turn else { return false };
        if events.iter().any(|event| event.kv.as_ref().unwrap().mod_revision == wanted) {
            return true;
        }
    }
}
