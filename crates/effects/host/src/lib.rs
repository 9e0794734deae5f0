//! The machine below us: durable files, the locks on them, processes, and the shim that keeps one.
//!
//! **Invariant:** what must survive a power cut is written through [`durable`], and nowhere else; the lines of [`audit`] are
//! appended and synced by that.

pub mod audit;
pub mod connections;
pub mod durable;
pub mod enter;
pub mod exit_record;
pub mod facts;
pub mod locks;
pub mod logs;
pub mod memory;
pub mod mounts;
pub mod owners;
pub mod process;
pub mod root;
pub mod sandbox;
mod sealed;
pub mod shim;
pub mod state;
