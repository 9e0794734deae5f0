//! Watches that are told how far they are, and that are waited for in small steps.

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

use std::time::{Duration, Instant};

use quorate_etcd::client::messages::{PutRequest, Request, TxnRequest};
use quorate_etcd::client::{Client, Settings, WatchFrom, WatchTurn};
use quorate_testkit::{Launch, Seat, Server, VERSIONS, etcd};
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(20);

async fn lone(version: &str, dir: &TempDir, flag: &str) -> (Server, Client) {
    let server = Launch::new(&etcd(version), &Seat::new("n1"), &dir.path().join("data")).arg(flag).start();
    let client = Client::connect(&Settings::new([server.seat.client_url()])).await.unwrap();
    (server, client)
}

#[tokio::test]
async fn an_idle_watch_tells_how_far_it_is_when_asked_to() {
    for version in VERSIONS {
        let dir = TempDir::new().unwrap();
        let (_server, client) = lone(version, &dir, "--experimental-watch-progress-notify-interval=300ms").await;
        client.put("/k", "1").await.unwrap();
        let mut told = client.watch(WatchFrom { revision: 2, progress: true }).await.unwrap();
        let mut silent = client.watch(WatchFrom { revision: 2, progress: false }).await.unwrap();
        for revision in 2..=3 {
            // What was written comes first; only then does the watch say that it is there.
            for watch in [&mut told, &mut silent] {
                let turn = tokio::time::timeout(LIMIT, watch.next()).await.unwrap().unwrap();
                let WatchTurn::Events { events, more: false, .. } = turn else { panic!("{version}: {turn:?}") };
                assert_eq!(events[0].kv.as_ref().unwrap().mod_revision, revision, "{version}");
            }
            let header = client.header().await.unwrap();
            let turn = tokio::time::timeout(LIMIT, told.next()).await.unwrap().unwrap();
            let WatchTurn::Progress { revision: reached, header: by } = turn else { panic!("{version}: {turn:?}") };
            assert_eq!((reached, by.cluster_id, by.member_id), (revision, header.cluster_id, header.member_id));
            let turn = tokio::time::timeout(Duration::from_millis(1), silent.next()).await;
            assert!(turn.is_err(), "{version}: nobody asked to be told: {turn:?}");
            client.put("/k", "2").await.unwrap();
        }
    }
}

#[tokio::test]
async fn waiting_for_a_watch_can_be_given_up_anywhere_without_loss() {
    const ROUNDS: i64 = 60;
    for version in VERSIONS {
        let dir = TempDir::new().unwrap();
        let (_server, client) = lone(version, &dir, "--max-request-bytes=12582912").await;
        let mut watch = client.watch(WatchFrom { revision: 2, progress: false }).await.unwrap();
        let writer = client.clone();
        let writing = tokio::spawn(async move {
            for n in 0..ROUNDS {
                // Some are larger than one message, so that what is given up may be half of one.
                let keys = if n % 10 == 0 { 6 } else { 1 };
                let bytes = if n % 10 == 0 { 600_000 } else { 100 };
                let put = |key: i64| {
                    let (key, value) = (format!("/{key}").into_bytes(), vec![n as u8; bytes]);
                    Request::Put(PutRequest { key, value, ..PutRequest::default() }).into()
                };
                writer
                    .txn(TxnRequest { success: (0..keys).map(put).collect(), ..TxnRequest::default() })
                    .await
                    .unwrap();
            }
        });
        let (mut seen, mut given_up, start) = (Vec::new(), 0, Instant::now());
        let wanted: Vec<i64> =
            (0..ROUNDS).flat_map(|n| std::iter::repeat_n(n + 2, if n % 10 == 0 { 6 } else { 1 })).collect();
        while seen.len() < wanted.len() {
            assert!(start.elapsed() < LIMIT, "{version}: {} of {} after {given_up} waits", seen.len(), wanted.len());
            match tokio::time::timeout(Duration::from_micros(200), watch.next()).await {
                Ok(Ok(WatchTurn::Events { events, .. })) => {
                    seen.extend(events.iter().map(|event| event.kv.as_ref().unwrap().mod_revision));
                }
                Ok(other) => panic!("{version}: {other:?}"),
                Err(_) => given_up += 1,
            }
        }
        writing.await.unwrap();
        assert_eq!(seen, wanted, "{version}");
        assert!(given_up > 20, "{version}: only {given_up} waits were given up");
    }
}

/// Connections to a port of this machine that are open now.
fn connections(port: u16) -> usize {
    let text = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let (to, established) = (format!("0100007F:{port:04X}"), "01");
    text.lines().filter(|line| matches!(line.split_whitespace().collect::<Vec<_>>()[..], [_, _, remote, state, ..] if remote == to && state == established)).count()
}

#[tokio::test]
async fn a_watch_that_is_dropped_leaves_no_connection() {
    for version in VERSIONS {
        let dir = TempDir::new().unwrap();
        let (server, client) = lone(version, &dir, "--max-request-bytes=12582912").await;
        let port = server.seat.client_url().rsplit(':').next().unwrap().parse().unwrap();
        client.put("/k", "1").await.unwrap();
        let before = connections(port);
        let watch = client.watch(WatchFrom { revision: 2, progress: true }).await.unwrap();
        assert_eq!(connections(port), before + 1, "{version}");
        drop(watch);
        let start = Instant::now();
        while connections(port) > before {
            assert!(start.elapsed() < LIMIT, "{version}: the connection of the watch is still there");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        // An etcd that is asked to stop waits for open connections, up to its own limit.
        drop(client);
        server.stop();
    }
}
