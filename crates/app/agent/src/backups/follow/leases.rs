//! Looks up leases when writes first refer to them, beside the watch.
//!
//! **Rule:** few questions at a time, each with a limit. A lease that is gone is an answer; no answer is not.

use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::Run;
use super::keeper::Told;

/// Questions that may wait; more are asked when their leases are seen again.
pub(super) const QUEUE: usize = 4096;

/// Questions at a time.
const AT_ONCE: usize = 16;

/// One question, with its second attempt.
const LIMIT: Duration = Duration::from_secs(3);

pub(super) async fn run(run: Arc<Run>, mut ids: mpsc::Receiver<i64>, keeper: Sender<Told>, quit: CancellationToken) {
    let mut asking = JoinSet::new();
    loop {
        tokio::select! {
            id = ids.recv(), if asking.len() < AT_ONCE => match id {
                Some(id) => {
                    let (run, keeper) = (Arc::clone(&run), keeper.clone());
                    asking.spawn(async move { ask(&run, id, &keeper).await });
                }
                None => break,
            },
            _ = asking.join_next(), if !asking.is_empty() => {}
            () = quit.cancelled() => break,
        }
    }
    // Those that are under way may still come before the last cut.
    let rest = async { while asking.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(Duration::from_secs(1), rest).await;
}

async fn ask(run: &Run, id: i64, keeper: &Sender<Told>) {
    let answer = tokio::time::timeout(LIMIT, run.client.lease_time_to_live(id)).await;
    let told = match answer {
        Ok(Ok(granted)) => Told::Lease { id, ttl: granted.map(|granted| granted.ttl), asked: true },
        Ok(Err(fault)) => {
            debug!(lease = format!("{id:x}"), "a lease could not be looked up: {fault}");
            Told::Lease { id, ttl: None, asked: false }
        }
        Err(_) => Told::Lease { id, ttl: None, asked: false },
    };
    let _ = keeper.send(told);
}
