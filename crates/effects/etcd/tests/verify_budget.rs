//! A full check that is told to end early says how far it came, finds what lies on its way, and cries no wolf about the rest.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use quorate_etcd::client::{Client, Settings as Connection};
use quorate_etcd::datadir::{self, Found};
use quorate_etcd_formats::verify::{self, Mode, Report, Settings};
use quorate_testkit::{Launch, Seat, etcd, golden_dir};
use tempfile::TempDir;

/// Checks with as many asks as `limit`, and says how many there were.
fn checked(path: &Path, workers: usize, limit: u64) -> (Report, u64) {
    let Found::DataDir(dir) = datadir::open(path, None).expect("opens") else { panic!("a data dir") };
    let asked = AtomicU64::new(0);
    let settings = Settings { mode: Mode::Full, workers, progress: &AtomicU64::new(0) };
    let report = verify::data_dir_while(&dir.view(), &settings, &|| asked.fetch_add(1, Ordering::Relaxed) < limit);
    (report, asked.into_inner())
}

/// The data dir of a stopped etcd with some hundred pages of keys.
async fn filled() -> TempDir {
    let dir = TempDir::new().expect("a temporary directory");
    let launch = Launch::new(&etcd("3.5.16"), &Seat::new("n1"), &dir.path().join("data"));
    let server = launch.arg("--unsafe-no-fsync").start();
    let client = Client::connect(&Connection::new([server.seat.client_url()])).await.expect("connected");
    let tasks = (0..20).map(|task| {
        let client = client.clone();
        tokio::spawn(async move {
            for number in 0..100 {
                client.put(format!("/{task}/{number}"), vec![7; 900]).await.expect("written");
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.expect("written");
    }
    server.stop();
    dir
}

#[tokio::test]
async fn wherever_it_ends_a_sound_dir_has_no_findings_and_the_share_is_told() {
    let dir = filled().await;
    let data = dir.path().join("data");
    let (whole, asks) = checked(&data, 1, u64::MAX);
    assert!(whole.unfinished.is_none() && whole.hash.is_some() && asks > 200, "{asks} asks");
    let mut shares = Vec::new();
    for limit in (0..asks).step_by(7) {
        for workers in [1, 3] {
            let (report, _) = checked(&data, workers, limit);
            assert!(report.findings.is_empty(), "after {limit}: {:#?}", report.findings);
            let unfinished = report.unfinished.expect("it was told to end early");
            assert!(report.hash.is_none() && report.items.is_none());
            assert!(unfinished.db_bytes_checked < unfinished.db_bytes);
            if workers == 1 {
                shares.push((unfinished.wal_whole, unfinished.db_bytes_checked));
            }
        }
    }
    assert!(shares.is_sorted() && shares.first() == Some(&(false, 0)), "{shares:?}");
    assert!(shares.last().is_some_and(|(wal, bytes)| *wal && *bytes > 1 << 20), "{shares:?}");
    damage_on_the_way_is_found(&data);
}

#[test]
fn a_log_of_many_segments_is_read_whole_or_counts_as_not_read() {
    let dir = golden_dir("crash-multiseg-3.5.30");
    for limit in 0..12 {
        let (report, _) = checked(dir.path(), 1, limit);
        assert!(!report.has_errors(), "after {limit}: {:#?}", report.findings);
        let unfinished = report.unfinished.expect("it was told to end early");
        assert_eq!(unfinished.wal_whole, report.wal_entries.is_some(), "after {limit}");
    }
}

/// And what lies behind is not denied.
fn damage_on_the_way_is_found(data: &Path) {
    let db = data.join("member/snap/db");
    let mut bytes = std::fs::read(&db).expect("the database");
    // Leaves of the tree in the middle of the file: the page header says what is one.
    let is_leaf = |page: &usize| bytes[page * 4096 + 8] == 2 && bytes[page * 4096 + 10] > 1;
    let leaves: Vec<usize> = (2..bytes.len() / 4096).filter(is_leaf).collect();
    let page = leaves[leaves.len() / 2] * 4096;
    bytes[page..page + 4096].fill(0);
    std::io::Write::write_all(&mut std::fs::File::create(&db).expect("opened"), &bytes).expect("written");
    let (whole, asks) = checked(data, 1, u64::MAX);
    assert!(whole.has_errors(), "the page at {page} was not in use");
    let found: Vec<bool> = (0..asks).step_by(5).map(|limit| checked(data, 1, limit).0.has_errors()).collect();
    assert!(found.is_sorted(), "once found it stays found: {found:?}");
    assert!(found.contains(&false) && found.contains(&true), "{found:?}");
    let text = checked(data, 1, asks / 2).0.unfinished.expect("unfinished").to_string();
    assert!(text.starts_with("checked ") && text.ends_with(" % of the database and the whole WAL"), "{text}");
}
