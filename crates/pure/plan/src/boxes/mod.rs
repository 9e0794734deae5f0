//! The box around a program: what is declared, what this machine can give of it, and what follows from the two.
//!
//! **Invariant:** `strict` is whole or refused; the two parts that may be missing in it are the rules about ports and about
//! signals and abstract sockets, which older kernels do not have, and that is said. No part is left out in silence at any level.

mod explain;
mod lists;
mod plan;
mod spec;

pub use explain::{Explained, Row, explain};
pub use lists::{DANGEROUS, DEFAULT, ETCD, MORE};
pub use plan::{BoxPlan, Machine, Offer, Part, Planned, Refused, State, plan_box};
pub use spec::{BoxSpec, Escape, Level, Limits, List, Ports, Syscalls, parse_bytes};
