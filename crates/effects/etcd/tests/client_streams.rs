//! Watches, snapshots and leases of real servers of every supported release.

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

use std::time::{Duration, Instant};

use quorate_etcd::client::messages::{PutRequest, Request, TxnRequest};
use quorate_etcd::client::{Client, Credentials, Settings, Watch, WatchFrom, WatchTurn};
use quorate_etcd_formats::passing::{Passed, Passing, PassingError};
use quorate_faults::Code;
use quorate_testkit::{FIXTURE_VERSIONS, Launch, Seat, Server, VERSIONS, etcd, expected, snapshot_bytes};
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(20);

fn pass(bytes: &[u8], piece: usize) -> Result<Passed, PassingError> {
    let mut passing = Passing::new();
    bytes.chunks(piece).for_each(|piece| passing.push(piece));
    passing.finish()
}

async fn lone(version: &str, dir: &TempDir) -> (Server, Client) {
    let launch = Launch::new(&etcd(version), &Seat::new("n1"), &dir.path().join("data"));
    let server = launch.arg("--max-request-bytes=12582912").start();
    let client = Client::connect(&Settings::new([server.seat.client_url()])).await.unwrap();
    (server, client)
}

async fn snapshot(client: &Client) -> Vec<u8> {
    let mut stream = client.snapshot().await.unwrap();
    let mut bytes = Vec::new();
    while let Some(piece) = stream.next().await.unwrap() {
        bytes.extend_from_slice(&piece);
    }
    bytes
}

/// The revision and key of each write up to a revision, and into how many turns they were cut.
async fn take_until(watch: &mut Watch, last: i64) -> (Vec<(i64, String)>, usize) {
    let (mut seen, mut turns) = (Vec::new(), 0);
    loop {
        match tokio::time::timeout(LIMIT, watch.next()).await.expect("events arrive").unwrap() {
            WatchTurn::Events { events, more, .. } => {
                turns += 1;
                for kv in events.iter().filter_map(|event| event.kv.as_ref()) {
                    seen.push((kv.mod_revision, String::from_utf8_lossy(&kv.key).into_owned()));
                }
                if !more && seen.last().is_some_and(|(revision, _)| *revision >= last) {
                    return (seen, turns);
                }
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn fixtures_pass_with_the_revision_that_etcd_says_in_pieces_of_any_size() {
    for version in FIXTURE_VERSIONS {
        let bytes = snapshot_bytes(version);
        let wanted = expected(version, "snapshot-status")["revision"].as_u64().unwrap();
        let whole = pass(&bytes, bytes.len()).unwrap();
        assert_eq!((whole.revision, whole.bytes), (wanted, bytes.len() as u64), "{version}");
        for piece in [1, 31, 33, 4097, 32 << 10] {
            assert_eq!(pass(&bytes, piece), Ok(whole), "{version} in pieces of {piece}");
        }
        let cut = pass(&bytes[..bytes.len() - 4096], 32 << 10);
        assert!(matches!(cut, Err(PassingError::Truncated { .. })), "{version}: {cut:?}");
        let mut flipped = bytes;
        flipped[20_000] ^= 1;
        assert_eq!(pass(&flipped, 32 << 10), Err(PassingError::Hash), "{version}");
    }
    assert_eq!(pass(&[7; 5000], 100), Err(PassingError::NotBolt));
}

#[tokio::test]
async fn a_watch_goes_on_from_a_revision_and_a_snapshot_tells_its_own() {
    for version in VERSIONS {
        let dir = TempDir::new().unwrap();
        let (_server, client) = lone(version, &dir).await;
        assert_eq!(pass(&snapshot(&client).await, 32 << 10).unwrap().revision, 1, "{version}: nothing was written");
        for n in 2..=5 {
            client.put(format!("/k{n}"), "v").await.unwrap();
        }
        let put = |n: u32, bytes| {
            let key = format!("/t{n}").into_bytes();
            Request::Put(PutRequest { key, value: vec![n as u8; bytes], ..PutRequest::default() }).into()
        };
        // More than fits in one message, and one value that is larger than a message by itself.
        let large: TxnRequest =
            TxnRequest { success: (0..8).map(|n| put(n, 1 << 20)).collect(), ..TxnRequest::default() };
        assert_eq!(client.txn(large).await.unwrap().header.unwrap().revision, 6);
        let huge = TxnRequest { success: vec![put(9, 5 << 20)], ..TxnRequest::default() };
        client.txn(huge).await.unwrap();

        let mut watch = client.watch(WatchFrom { revision: 4, progress: true }).await.unwrap();
        let (seen, turns) = take_until(&mut watch, 7).await;
        let revisions: Vec<i64> = seen.iter().map(|(revision, _)| *revision).collect();
        assert_eq!(revisions, [4, 5, 6, 6, 6, 6, 6, 6, 6, 6, 7], "{version}");
        assert!(turns > 1, "{version}: what is larger than a message comes in pieces");
        client.delete("/k2").await.unwrap();
        assert_eq!(take_until(&mut watch, 8).await.0, [(8, "/k2".to_owned())], "{version}");

        assert_eq!(pass(&snapshot(&client).await, 32 << 10).unwrap().revision, 8, "{version}");
        // The deletion was the last write; compacted away, only the compaction tells the revision.
        client.compact(8).await.unwrap();
        client.defragment().await.unwrap();
        assert_eq!(pass(&snapshot(&client).await, 32 << 10).unwrap().revision, 8, "{version}");
        let mut late = client.watch(WatchFrom { revision: 3, progress: false }).await.unwrap();
        assert_eq!(late.next().await.unwrap(), WatchTurn::Compacted { oldest: 8 }, "{version}");
    }
}

#[tokio::test]
async fn a_snapshot_taken_while_others_write_tells_its_own_revision() {
    let dir = TempDir::new().unwrap();
    let (server, client) = lone("3.5.16", &dir).await;
    let writer = {
        let client = client.clone();
        tokio::spawn(async move {
            for n in 0..u32::MAX {
                client.put(format!("/busy/{}", n % 500), vec![n as u8; 2000]).await.unwrap();
            }
        })
    };
    for round in 0..5 {
        let before = client.get("/none").await.map(|_| ()).and(client.list("/none").await).unwrap().revision;
        let mut bytes = snapshot(&client).await;
        let passed = pass(&bytes, 32 << 10).unwrap();
        assert!(passed.revision >= before as u64, "{passed:?} {before}");
        let file = dir.path().join(format!("{round}.db"));
        std::io::Write::write_all(&mut std::fs::File::create(&file).unwrap(), &bytes).unwrap();
        let said = server.tools.utl_json(&["snapshot", "status", file.to_str().unwrap()]);
        assert_eq!(passed.revision, said["revision"].as_u64().unwrap());
        bytes.truncate(bytes.len() - 32);
        assert!(pass(&bytes, 32 << 10).is_err(), "the hash is missing");
    }
    writer.abort();
}

#[tokio::test]
async fn a_role_that_reads_all_keys_may_watch_and_only_root_may_take_snapshots() {
    for version in VERSIONS {
        let dir = TempDir::new().unwrap();
        let (server, _) = lone(version, &dir).await;
        // 3.4 has no root role until it is added; later ones have it from the start.
        let _ = server.try_ctl(&["role", "add", "root"]);
        let words: [&[&str]; 8] = [
            &["user", "add", "root:secret"],
            &["user", "grant-role", "root", "root"],
            &["user", "add", "backup:secret"],
            &["role", "add", "backup"],
            &["role", "grant-permission", "backup", "read", "", "--prefix=true"],
            &["user", "grant-role", "backup", "backup"],
            &["put", "/k", "v"],
            &["auth", "enable"],
        ];
        words.iter().for_each(|words| drop(server.ctl(words)));
        let connect = |user: Option<&str>| {
            let credentials = user.map(|name| Credentials { name: name.to_owned(), password: "secret".to_owned() });
            let settings = Settings { credentials, ..Settings::new([server.seat.client_url()]) };
            async move { Client::connect(&settings).await.unwrap() }
        };
        let root = connect(Some("root")).await;
        let lease = root.lease_grant(300, 0).await.unwrap();
        root.put_with(PutRequest { key: "/leased".into(), lease, ..PutRequest::default() }).await.unwrap();
        assert_eq!(pass(&snapshot(&root).await, 4096).unwrap().revision, 3, "{version}");

        let backup = connect(Some("backup")).await;
        let mut watch = backup.watch(WatchFrom { revision: 2, progress: false }).await.unwrap();
        assert_eq!(take_until(&mut watch, 3).await.0.len(), 2, "{version}");
        assert_eq!(backup.lease_time_to_live(lease).await.unwrap().unwrap().ttl, 300, "{version}");
        backup.get("/k").await.unwrap();
        // The newest release asks for root here too.
        assert_eq!(backup.status().await.is_ok(), *version != *"sid", "{version}");
        let fault = backup.snapshot().await.unwrap_err();
        assert_eq!(fault.code(), Code::EtcdRefused, "{version}");

        let nobody = connect(None).await;
        let from = WatchFrom { revision: 2, progress: false };
        assert_eq!(nobody.watch(from).await.unwrap_err().code(), Code::EtcdRefused, "{version}");
        assert_eq!(nobody.snapshot().await.unwrap_err().code(), Code::EtcdRefused, "{version}");

        // A restart forgets tokens; streams are opened with a fresh one.
        let (tools, seat, data) = (server.tools.clone(), server.seat.clone(), server.data_dir.clone());
        server.stop();
        let again = Launch::new(&tools, &seat, &data).spawn();
        let start = Instant::now();
        while nobody.watch(from).await.is_err_and(|fault| fault.code() == Code::EtcdUnreachable) {
            assert!(start.elapsed() < LIMIT, "{version}: {}", again.running.log_tail(20));
        }
        let mut watch = backup.watch(from).await.unwrap();
        assert_eq!(take_until(&mut watch, 3).await.0.len(), 2, "{version}");
        assert_eq!(pass(&snapshot(&root).await, 4096).unwrap().revision, 3, "{version}");
    }
}

#[tokio::test]
async fn leases_tell_what_they_were_granted_for() {
    for version in VERSIONS {
        let dir = TempDir::new().unwrap();
        let (_server, client) = lone(version, &dir).await;
        let id = client.lease_grant(300, 0).await.unwrap();
        assert_eq!(client.lease_time_to_live(id).await.unwrap().unwrap().ttl, 300, "{version}");
        assert_eq!(client.leases().await.unwrap(), [id]);
        client.lease_revoke(id).await.unwrap();
        assert_eq!(client.lease_time_to_live(id).await.unwrap(), None, "{version}");
    }
}

#[tokio::test]
async fn a_server_that_dies_or_freezes_ends_the_watch_within_ten_seconds() {
    let dir = TempDir::new().unwrap();
    let (server, client) = lone("3.5.16", &dir).await;
    let mut watch = client.watch(WatchFrom { revision: 1, progress: false }).await.unwrap();
    server.running.signal(rustix::process::Signal::STOP);
    let start = Instant::now();
    let fault = watch.next().await.unwrap_err();
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    assert_eq!(fault.code(), Code::EtcdUnreachable);
    server.running.signal(rustix::process::Signal::CONT);
    let mut watch = client.watch(WatchFrom { revision: 1, progress: false }).await.unwrap();
    server.kill();
    assert_eq!(watch.next().await.unwrap_err().code(), Code::EtcdUnreachable);
}
