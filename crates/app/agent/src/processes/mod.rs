//! The processes of the cluster file: started in their order, kept, asked how they are, and stopped in reverse.
//!
//! ```text
//!   adopt ──► wait for others ──► pre-start ──► start ──► post-start ──► tend: its end, its health
//!                ▲                                                              │
//!                └───────────────── plan_after_end (pure) ◄─────────────────────┘
//! ```
//!
//! **Invariant:** no process depends on the agent: its parent is its shim, and an agent that is killed at any point finds it
//! again. One that the file no longer declares is stopped.

mod board;
mod find;
mod health;
mod hook;
mod launch;
mod one;
mod quiet;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use quorate_plan::processes::stop_waves;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tracing::warn;

use crate::turn::{Node, Shared};
use board::Board;
use one::Keeper;
pub(crate) use quiet::stop_alone;

/// How long orders may take to be given when there is no time.
const HURRY: Duration = Duration::from_secs(2);

/// What a keeper is told.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Order {
    /// End the process, and say who wants it.
    Stop(String),
    /// Let go of it.
    Leave,
}

/// All processes of one member, being kept.
#[derive(Debug, Default)]
pub(crate) struct Processes {
    kept: Vec<Kept>,
    waves: Vec<Vec<String>>,
}

#[derive(Debug)]
struct Kept {
    name: String,
    order: watch::Sender<Option<Order>>,
    task: JoinHandle<()>,
}

/// Where the state dirs of the processes of a member lie.
fn place(node: &Node) -> PathBuf {
    node.state_path().join("processes")
}

impl Processes {
    /// Begins to keep those that are declared for this member.
    pub(crate) fn begin(node: &Arc<Node>, shared: &Arc<Shared>, shim: &std::path::Path) -> Processes {
        let declared: Vec<_> = launch::declared(node);
        let names = declared.iter().map(|process| process.name.clone()).collect();
        tokio::spawn(quiet::stop_undeclared(place(node), names));
        if declared.is_empty() {
            return Processes::default();
        }
        let waves = stop_waves(&declared);
        let board = Arc::new(Board::new(&declared, shared));
        let keep = |spec: quorate_plan::spec::ProcessSpec| {
            let (order, orders) = watch::channel(None);
            let name = spec.name.clone();
            let dir = place(node).join(&name);
            let keeper = Keeper::new(spec, dir, shim.to_owned(), Arc::clone(&board), orders);
            Kept { name, order, task: tokio::spawn(keeper.live()) }
        };
        Processes { kept: declared.into_iter().map(keep).collect(), waves }
    }

    /// Stops them, those first that nobody waits for any more.
    pub(crate) async fn stop(&mut self, asked_by: &str) {
        for wave in std::mem::take(&mut self.waves) {
            let (now, later): (Vec<Kept>, Vec<Kept>) =
                std::mem::take(&mut self.kept).into_iter().partition(|kept| wave.contains(&kept.name));
            // What is not awaited to its end is not forgotten either.
            self.kept = later;
            for kept in &now {
                kept.order.send_replace(Some(Order::Stop(asked_by.to_owned())));
            }
            for kept in now {
                let _ = kept.task.await;
            }
        }
    }

    /// Asks all that are left to stop, and does not wait for it.
    pub(crate) async fn hurry(&mut self, asked_by: &str) {
        for kept in &self.kept {
            kept.order.send_replace(Some(Order::Stop(asked_by.to_owned())));
        }
        self.end(HURRY).await;
    }

    /// Lets go of them; they run on.
    pub(crate) async fn leave(&mut self) {
        for kept in &self.kept {
            kept.order.send_replace(Some(Order::Leave));
        }
        self.end(Duration::from_secs(60)).await;
    }

    async fn end(&mut self, limit: Duration) {
        let deadline = tokio::time::Instant::now() + limit;
        self.waves.clear();
        for mut kept in std::mem::take(&mut self.kept) {
            if tokio::time::timeout_at(deadline, &mut kept.task).await.is_err() {
                kept.task.abort();
                warn!(process = kept.name, "the agent does not wait for it any longer");
            }
        }
    }
}
