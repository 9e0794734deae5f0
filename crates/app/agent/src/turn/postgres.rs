//! The node of a group of PostgreSQL servers in the life of the agent: begun with it, stopped before etcd, or left running.
//!
//! **Invariant:** an agent that ends by itself or is killed leaves server, pooler and proxy running; only who asks for the end of
//! all ends them, and then the place of the write master has gone to another node before.

use std::path::Path;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use axum::Router;
use quorate_faults::Fault;
use quorate_plan::phase::Phase;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::data::in_words;
use super::listen::{self, Wish};
use super::node::Node;
use super::publish::Shared;
use super::{Finish, Life};
use crate::pg::{self, Board, Ending, Here, PgRun};

/// Before another attempt, where something hinders it.
const AGAIN: Duration = Duration::from_secs(1);
/// How long a task may take to let go.
const LET_GO: Duration = Duration::from_secs(15);
/// Between two looks at how it is.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// The node, being kept. By default there is none.
#[derive(Debug, Default)]
pub(super) struct Postgres(Option<Kept>);

#[derive(Debug)]
struct Kept {
    here: Here,
    order: watch::Sender<Option<Ending>>,
    task: JoinHandle<()>,
}

impl Postgres {
    /// Begins to keep the node that the file declares for this host, if it does. `more`: what else its health port answers.
    pub(super) fn begin(node: &Node, shared: &Arc<Shared>, program: &Path, more: Router) -> Postgres {
        let Some(here) = here_of(node, program) else {
            if let Err(fault) = pg::stop_objecting(node.state_path()) {
                warn!(code = %fault.code(), "{}", in_words(&fault));
            }
            return Postgres::default();
        };
        let board = Arc::new(Board::of(&here));
        board.register(&mut shared.registry().write().unwrap_or_else(PoisonError::into_inner));
        shared.set_postgres(&board);
        let (order, orders) = watch::channel(None);
        let own = here.clone();
        // A thread of its own: no work on etcd's data may make a renewal of the lease late.
        let task = tokio::task::spawn_blocking(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            match runtime {
                Ok(runtime) => {
                    runtime.block_on(keep(own, board, more, orders));
                    runtime.shutdown_background();
                }
                Err(error) => warn!(%error, "PostgreSQL is not kept: cannot start the runtime"),
            }
        });
        Postgres(Some(Kept { here, order, task }))
    }

    /// Hands the place of the write master over, then stops proxy, pooler and server. `again`: somebody cannot wait for it.
    pub(super) async fn stop(&mut self, asked_by: &str, again: impl Future<Output = ()>) {
        let Some(mut kept) = self.0.take() else { return };
        kept.order.send_replace(Some(Ending::Stop));
        let (here, asked_by) = (kept.here.clone(), asked_by.to_owned());
        let stop = async {
            let _ = tokio::time::timeout(LET_GO, &mut kept.task).await;
            let (here, asked_by) = (here.clone(), asked_by.clone());
            match tokio::task::spawn_blocking(move || pg::stop_parts(&here, &asked_by)).await {
                Ok(Ok(ended)) if !ended.is_empty() => info!("PostgreSQL: ended {}", ended.join(", ")),
                Ok(Err(fault)) => warn!(code = %fault.code(), "PostgreSQL: {}", in_words(&fault)),
                Ok(Ok(_)) | Err(_) => {}
            }
        };
        tokio::select! {
            () = stop => return,
            () = again => {}
        }
        warn!("asked again: PostgreSQL is stopped at once");
        if let Err(fault) = pg::order_end(&here, &asked_by) {
            warn!(code = %fault.code(), "PostgreSQL: {}", in_words(&fault));
        }
    }

    /// Lets go of it; all runs on.
    pub(super) async fn leave(&mut self) {
        let Some(mut kept) = self.0.take() else { return };
        kept.order.send_replace(Some(Ending::Leave));
        if tokio::time::timeout(LET_GO, &mut kept.task).await.is_err() {
            kept.task.abort();
        }
    }
}

/// This host's node of the group, if it has one.
pub(super) fn here_of(node: &Node, program: &Path) -> Option<Here> {
    node.spec.postgres.as_ref()?.node(node.name())?;
    Here::of(node.spec.clone(), Some(node.name()), program.to_owned()).ok()
}

/// Keeps it until it is told to end; what hinders it may pass.
async fn keep(here: Here, board: Arc<Board>, more: Router, orders: watch::Receiver<Option<Ending>>) {
    let told = |mut orders: watch::Receiver<Option<Ending>>| async move {
        let ending = orders.wait_for(Option::is_some).await.ok().and_then(|ending| *ending);
        // An agent that forgot it leaves it running.
        ending.unwrap_or(Ending::Leave)
    };
    loop {
        let ended =
            pg::run_on(here.clone(), PgRun::default(), Arc::clone(&board), more.clone(), told(orders.clone())).await;
        let Err(fault) = ended else { return };
        let words = in_words(&fault);
        warn!(code = %fault.code(), "PostgreSQL: {words}");
        board.change(|status| (status.ready, status.fault) = (false, Some(format!("{words} [{}]", fault.code()))));
        tokio::select! {
            () = tokio::time::sleep(AGAIN) => {}
            _ = told(orders.clone()) => return,
        }
    }
}

impl Life<'_> {
    /// The life of an agent on a host without etcd: PostgreSQL alone.
    pub(super) async fn live_alone(self, node: Node) -> Result<Finish, Fault> {
        let shared = Shared::new(&node);
        let stop = CancellationToken::new();
        listen::api(self.state, &shared, None, self.wishes, stop.clone())?;
        let mut kept = Postgres::begin(&node, &shared, self.shim, listen::health(&shared, node.has_open_metrics()));
        info!(node = node.name(), file = %node.file.display(), "the agent runs, without etcd");
        let mut wished = self.wishes.subscribe();
        let wish = loop {
            tokio::select! {
                wishes = wished.wait_for(|wishes| !wishes.is_empty()) => {
                    break wishes.ok().and_then(|wishes| wishes.first().cloned());
                }
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
            if tell(&shared) && self.once {
                break None;
            }
        };
        let finish = match wish.filter(|wish| !wish.keep_running) {
            None => {
                kept.leave().await;
                Finish::Left
            }
            Some(Wish { asked_by, .. }) => {
                shared.phase(Phase::Draining, format!("asked by {asked_by}: PostgreSQL is being stopped"));
                let first = wished.borrow().len();
                let again = async {
                    let _ = wished.wait_for(|wishes| wishes.len() > first).await;
                };
                kept.stop(&asked_by, again).await;
                shared.phase(Phase::Stopped, "PostgreSQL was stopped");
                Finish::Stopped
            }
        };
        stop.cancel();
        Ok(finish)
    }
}

/// Shows how the node is; whether it is ready.
fn tell(shared: &Shared) -> bool {
    let Some(now) = shared.postgres() else { return false };
    shared.read(now.ready);
    match (now.ready, now.fault, now.waiting.or(now.doing)) {
        (true, ..) => shared.phase(Phase::Serving, format!("PostgreSQL serves, as {}", now.door)),
        (false, Some(fault), _) => shared.phase(Phase::Waiting, fault),
        (false, None, Some(what)) => shared.phase(Phase::Starting, what),
        (false, None, None) => shared.phase(Phase::Starting, "PostgreSQL is being started"),
    }
    now.ready
}
