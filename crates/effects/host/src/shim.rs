//! The shim: a small process of ours that is the parent of etcd, so that etcd and the knowledge of how it ended do not
//! depend on the agent.
//!
//! The agent starts it with [`spawn`], finds it again with [`adopt`], and talks to it through a socket in the state dir.
//! In its own process it runs [`keep`]: it starts the program, keeps its output, stops it when asked, and writes the exit
//! record when all of it is gone.
//!
//! **Invariant:** nothing that happens to the agent or to the shim ends or blocks the program.

mod adopt;
mod capture;
mod control;
mod inner;
mod keeper;
mod running;
mod spec;
mod stopping;
mod take_over;
mod waiting;

pub use adopt::{Adoption, adopt};
pub use control::{Status, StopOrder};
pub use inner::{Inner, note_inner};
pub use keeper::keep;
pub use running::{Ended, Notes, Running, spawn, spawn_boxed};
pub use spec::{ETCD_STOPPING, Rung, Send, ShimSpec, program_name};
pub use take_over::{Process, take_over};
pub(crate) use waiting::end_all;
