//! The programs beside etcd: in which order they start and stop, when they are started again, and what an answer about their
//! health means.
//!
//! **Invariant:** nothing is started before all that it waits for is ready, and nothing is stopped before what waits for it.

mod health;
mod order;
mod restart;

pub use health::{HealthSeen, Verdict, judge};
pub use order::{ETCD, Launch, Tangle, plan_launch, start_order, stop_waves};
pub use restart::{AfterEnd, RunEnd, plan_after_end};
