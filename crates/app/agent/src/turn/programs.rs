//! The processes beside etcd, and PostgreSQL, in the life of the agent: begun with it, stopped before etcd, or left running with it.

use axum::Router;
use quorate_faults::Fault;
use tracing::warn;

use super::postgres::Postgres;
use super::{Agent, Finish, Wish};
use crate::processes::Processes;

impl Agent {
    /// Begins to keep them, unless there is one turn only.
    pub(super) fn begin_processes(&mut self) {
        if !self.once {
            self.processes = Processes::begin(&self.node, &self.shared, &self.shim);
            self.postgres = Postgres::begin(&self.node, &self.shared, &self.shim, Router::new());
        }
    }

    /// Stops them, before etcd. Whoever asks again is not made to wait.
    pub(super) async fn stop_processes(&mut self, wish: &Wish) {
        let first = self.wished.borrow().len();
        let mut wished = self.wished.clone();
        let mut processes = std::mem::take(&mut self.processes);
        let hurry = tokio::select! {
            () = processes.stop(&wish.asked_by) => false,
            _ = wished.wait_for(|wishes| wishes.len() > first) => true,
        };
        if hurry {
            warn!("asked again: the processes beside etcd are stopped at once");
            processes.hurry(&wish.asked_by).await;
        }
        // It needs etcd to hand its place over.
        let again = async {
            let _ = wished.wait_for(|wishes| wishes.len() > first).await;
        };
        self.postgres.stop(&wish.asked_by, again).await;
    }

    /// What is left of them when the agent ends: stopped where etcd is, else left running.
    pub(super) async fn end_processes(&mut self, finish: &Result<Finish, Fault>) {
        let wish = self.wished.borrow().first().cloned();
        match (finish, wish) {
            (Ok(Finish::Stopped), Some(wish)) if !wish.keep_running => self.stop_processes(&wish).await,
            _ => {
                self.processes.leave().await;
                self.postgres.leave().await;
            }
        }
    }
}
