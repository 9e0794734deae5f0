//! Clients of a group: single statements, a load that remembers what was acknowledged, and waiting for rows.

use std::collections::BTreeSet;
use std::process::Output;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use quorate_postgres::sql::{Client, Limits, Place};

use super::{Group, LIMIT};

/// The write port of a node's proxy, its read port, and its pooler.
pub(crate) const WRITE: usize = 3;
pub(crate) const READ: usize = 4;
pub(crate) const POOLER: usize = 1;

/// Runs one statement over a connection of its own.
pub(crate) async fn once(place: &Place, sql: &str) -> Result<(), String> {
    let limits =
        Limits { connect: Duration::from_secs(2), statement: Duration::from_secs(5), lock: Duration::from_secs(5) };
    let client = Client::connect(place, limits).await.map_err(|fault| in_words(&fault))?;
    client.batch(sql).await.map_err(|fault| in_words(&fault))
}

/// The same until it succeeds: proxies ask a few times a second who writes.
pub(crate) async fn eventually(place: &Place, sql: &str) {
    let begun = Instant::now();
    while let Err(why) = once(place, sql).await {
        assert!(begun.elapsed() < LIMIT, "{sql}: {why}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

pub(crate) fn in_words(fault: &quorate_faults::Fault) -> String {
    format!("{fault}: {:?}", std::error::Error::source(fault).map(ToString::to_string))
}

/// One number from a server itself.
pub(crate) async fn count(place: &Place, sql: &str) -> i64 {
    let client = Client::connect(place, Limits::default()).await.unwrap();
    client.value(sql, &[]).await.unwrap()
}

pub(crate) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// A client that inserts one row after another, and remembers which were acknowledged.
pub(crate) struct Load {
    stop: Arc<AtomicBool>,
    acknowledged: Arc<Mutex<Vec<u64>>>,
    failed: Arc<Mutex<Vec<String>>>,
    longest: Arc<Mutex<Duration>>,
    task: tokio::task::JoinHandle<()>,
}

impl Load {
    /// One connection that stays, or a new one for each insert.
    pub(crate) fn begin(runtime: &tokio::runtime::Runtime, place: Place, stays: bool, base: u64) -> Load {
        let stop = Arc::<AtomicBool>::default();
        let acknowledged = Arc::<Mutex<Vec<u64>>>::default();
        let failed = Arc::<Mutex<Vec<String>>>::default();
        let longest = Arc::<Mutex<Duration>>::default();
        let load = (Arc::clone(&stop), Arc::clone(&acknowledged), Arc::clone(&failed), Arc::clone(&longest));
        let task = runtime.spawn(async move {
            let (stop, acknowledged, failed, longest) = load;
            let limits = Limits { connect: Duration::from_secs(2), statement: Duration::from_secs(20), lock: Duration::from_secs(5) };
            let mut kept: Option<Client> = None;
            let mut number = base;
            while !stop.load(Ordering::Relaxed) {
                number += 1;
                let begun = Instant::now();
                let sql = format!("INSERT INTO backups.file_history (cluster_id, dbname, node, file_name, action, status) VALUES ('t', 'd', 'n', '{number}', 'a', 's')");
                let connected = match kept.take() {
                    Some(client) => Ok(client),
                    None => Client::connect(&place, limits).await,
                };
                let done = match connected {
                    Ok(client) => {
                        let done = client.batch(&sql).await;
                        if stays && done.is_ok() {
                            kept = Some(client);
                        }
                        done
                    }
                    Err(fault) => Err(fault),
                };
                match done {
                    Ok(()) => acknowledged.lock().unwrap().push(number),
                    Err(fault) => failed.lock().unwrap().push(in_words(&fault)),
                }
                let mut longest = longest.lock().unwrap();
                *longest = (*longest).max(begun.elapsed());
            }
        });
        Load { stop, acknowledged, failed, longest, task }
    }

    pub(crate) fn end(self, runtime: &tokio::runtime::Runtime) -> (Vec<u64>, Vec<String>, Duration) {
        self.stop.store(true, Ordering::Relaxed);
        runtime.block_on(self.task).unwrap();
        let acknowledged = self.acknowledged.lock().unwrap().clone();
        let failed = self.failed.lock().unwrap().clone();
        let longest = *self.longest.lock().unwrap();
        (acknowledged, failed, longest)
    }
}

/// Waits until every acknowledged row is on every node.
pub(crate) fn all_arrive(group: &Group, runtime: &tokio::runtime::Runtime, rows: &[u64]) {
    for at in 0..group.nodes.len() {
        group.wait("every acknowledged row is on every node", |group| {
            runtime.block_on(async {
                let Ok(client) = Client::connect(&group.inside(at), Limits::default()).await else { return false };
                let Ok(there) = client.values::<String>("SELECT file_name FROM backups.file_history", &[]).await else {
                    return false;
                };
                let there: BTreeSet<u64> = there.iter().filter_map(|name| name.parse().ok()).collect();
                rows.iter().all(|row| there.contains(row))
            })
        });
    }
}

/// All that a command said.
pub(crate) fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// The same of one that went well.
#[track_caller]
pub(crate) fn well(output: &Output) -> String {
    assert!(output.status.success(), "{}", said(output));
    said(output)
}
