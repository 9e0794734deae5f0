//! Finds what an earlier agent started, and takes it over if it is what is declared now.
//!
//! **Invariant:** what runs in another way than it is declared is ended before it is started anew; what is not ours is left alone.

use quorate_faults::Code;
use quorate_host::shim::{self, Adoption, Running};
use quorate_host::state::StateDir;
use tracing::info;

use super::one::{Keeper, LOOK_LATER, blocking};
use super::{Order, launch};
use crate::turn::in_words;

/// What was found at the beginning.
pub(super) enum Found {
    Running(Box<Running>),
    Nothing,
    Ordered,
}

impl Keeper {
    pub(super) async fn adopt(&mut self) -> Found {
        loop {
            if self.orders.borrow().as_ref().is_some_and(|order| *order == Order::Leave) {
                return Found::Ordered;
            }
            let dir = self.dir.clone();
            let found = blocking(move || StateDir::open(&dir).and_then(|state| shim::adopt(&state))).await;
            let (cause, code) = match found {
                Ok(Adoption::Running(running)) if running.config_hash() == launch::hash(&self.spec) => {
                    info!(process = self.spec.name, pid = running.child().pid, "it runs already, and is taken over");
                    return Found::Running(Box::new(running));
                }
                Ok(Adoption::Running(running)) => {
                    info!(process = self.spec.name, "it is declared in another way now, and is started anew");
                    match self.end(running, "the agent: it is declared in another way now").await {
                        Ok(_) => return Found::Nothing,
                        Err(fault) => (in_words(&fault), fault.code()),
                    }
                }
                Ok(Adoption::Gone(_) | Adoption::Lost(_) | Adoption::None) => return Found::Nothing,
                Ok(Adoption::Stranger(why)) => {
                    (format!("something runs that was not started here: {why}"), Code::StrangerRuns)
                }
                Err(fault) => (in_words(&fault), fault.code()),
            };
            self.tell("refused", Some(cause), Some(code));
            if !self.pause(LOOK_LATER).await {
                return Found::Ordered;
            }
        }
    }
}
