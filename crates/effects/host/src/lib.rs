//! The machine below us: durable files, the locks on them, and processes.
//!
//! **Invariant:** what must survive a power cut is written through [`durable`], and nowhere else.

pub mod durable;
pub mod locks;
pub mod process;
