//! A node of a group of PostgreSQL servers: brings it up, keeps it, and knows who may write.
//!
//! ```text
//!   life    look ─► plan (pure) ─► one step ─► look again        a watch on the store wakes it
//!   writer  renew the lease ─► look ─► plan (pure) ─► keep, hand over, stand, claim
//!   fence   a process of its own: closes the pooler when the lease's time is over
//! ```
//!
//! **Invariant:** an agent that is killed anywhere leaves a server, a pooler and a proxy that the next one takes over, and a
//! door that closes by itself.

mod background;
mod boxed;
mod doors;
mod execute;
pub mod fence;
mod health;
mod here;
mod lagging;
mod life;
mod observe;
mod operate;
mod proxy;
mod rejoin;
mod returning;
mod status;
mod told;
mod upkeep;
mod writer;

pub use background::{check_agent, ensure_agent, stop_all};
pub(crate) use background::{order_end, stop_parts};
pub use here::Here;
pub use life::{Ending, PgRun, run};
pub(crate) use life::{run_on, stop_objecting};
pub use observe::{records, registered};
pub use operate::{
    Changed, ConflictsSeen, RepairDone, Rows, StoppedLinks, Taken, apply_schema, detach_node, join_node,
    list_conflicts, purge_conflicts, repair_conflicts, unfinished,
};
pub use quorate_postgres::conflicts::{Conflict, ConflictRow, Repaired, Source, Stopped, Way};
pub use quorate_postgres::schema::{Applied, Order as SchemaOrder};
pub use rejoin::{Rejoined, rejoin_node};
pub(crate) use status::Board;
pub use status::{LinkStatus, PartStatus, PgStatus};
