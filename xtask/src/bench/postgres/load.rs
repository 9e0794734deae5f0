//! Writers, and the first write that is taken again after a loss.
//!
//! **Rule:** what counts as written is what the server acknowledged; each row has a number of its own, so that a lost one is found.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use quorate_postgres::sql::{Client, Limits, Place};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

/// How a row with a number is written, and how all numbers are read.
#[derive(Clone, Copy)]
pub(super) struct Table {
    pub(super) insert: fn(u64) -> String,
    pub(super) numbers: &'static str,
}

/// A writer at work.
pub(super) struct Load {
    stop: Arc<AtomicBool>,
    task: JoinHandle<Written>,
}

/// What a writer did.
#[derive(Default)]
pub(super) struct Written {
    pub(super) acknowledged: Vec<u64>,
    pub(super) failed: Vec<String>,
    /// The longest that one transaction took, with its connection.
    pub(super) longest: Duration,
}

/// Whether a writer keeps its connection.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Connections {
    /// One for all transactions.
    Kept,
    /// A new one for each.
    New,
}

impl Load {
    pub(super) fn begin(runtime: &Runtime, place: Place, table: Table, how: Connections, first: u64) -> Load {
        let stop = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&stop);
        Load { stop, task: runtime.spawn(async move { write(&place, table, how, first, &ends).await }) }
    }

    pub(super) fn end(self, runtime: &Runtime) -> Result<Written> {
        self.stop.store(true, Ordering::Relaxed);
        Ok(runtime.block_on(self.task)?)
    }
}

async fn write(place: &Place, table: Table, how: Connections, first: u64, stop: &AtomicBool) -> Written {
    let seconds = Duration::from_secs;
    let limits = Limits { connect: seconds(2), statement: seconds(20), lock: seconds(5) };
    let (mut written, mut kept, mut number) = (Written::default(), None, first);
    while !stop.load(Ordering::Relaxed) {
        number += 1;
        let begun = Instant::now();
        let done = async {
            let client = match kept.take() {
                Some(client) => client,
                None => Client::connect(place, limits).await?,
            };
            client.batch(&(table.insert)(number)).await.map(|()| client)
        };
        match done.await {
            Ok(client) => {
                written.acknowledged.push(number);
                kept = Some(client).filter(|_| how == Connections::Kept);
            }
            Err(fault) => {
                let cause = std::error::Error::source(&fault).map(ToString::to_string).unwrap_or_default();
                written.failed.push(format!("{fault}: {cause}"));
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
        written.longest = written.longest.max(begun.elapsed());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    written
}

/// Tries to write until one is taken; how long that took from `since` on.
pub(super) fn first_write(runtime: &Runtime, place: &Place, sql: &str, since: Instant, limit: Duration) -> Result<f64> {
    let limits =
        Limits { connect: Duration::from_secs(1), statement: Duration::from_secs(2), lock: Duration::from_secs(2) };
    runtime.block_on(async {
        loop {
            let tried = async { Client::connect(place, limits).await?.batch(sql).await };
            match tokio::time::timeout(Duration::from_secs(2), tried).await {
                Ok(Ok(())) => return Ok(since.elapsed().as_secs_f64()),
                Ok(Err(fault)) if since.elapsed() > limit => bail!("no write within {limit:?}: {fault}"),
                Err(_) if since.elapsed() > limit => bail!("no write within {limit:?}"),
                Ok(Err(_)) | Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    })
}

/// How many of these rows a server lacks once `limit` has passed, or as soon as it lacks none.
pub(super) fn lost(runtime: &Runtime, place: &Place, table: Table, rows: &[u64], limit: Duration) -> Result<usize> {
    let begun = Instant::now();
    loop {
        let there: Result<Vec<i64>> = runtime.block_on(async {
            let client = Client::connect(place, Limits::default()).await?;
            Ok(client.values::<i64>(table.numbers, &[]).await?)
        });
        let there: BTreeSet<u64> = match there {
            Ok(there) => there.into_iter().filter_map(|number| number.try_into().ok()).collect(),
            Err(error) if begun.elapsed() > limit => return Err(error),
            Err(_) => BTreeSet::new(),
        };
        let missing = rows.iter().filter(|row| !there.contains(row)).count();
        if missing == 0 || begun.elapsed() > limit {
            return Ok(missing);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}
