//! What stands before PostgreSQL: pgbouncer on every node, and haproxy in front of all of them.
//!
//! **Rule:** who is the write master is asked of the agents' health endpoints at every moment; no configuration names it.

mod console;
mod haproxy;
mod pgbouncer;

pub use console::Console;
pub use haproxy::{HaproxyNode, HaproxySpec, haproxy_states, keep_states, render_haproxy};
pub use pgbouncer::{PgbouncerSpec, PoolTarget, render_pgbouncer, render_userlist};

use std::path::Path;

use quorate_faults::Fault;
use quorate_host::durable::Owner;

/// Writes a file of a proxy for its user alone, if it says something else; `true`: it did.
pub fn ensure_file(path: &Path, text: &str, owner: Option<Owner>) -> Result<bool, Fault> {
    crate::server::put(path, text, owner)
}
