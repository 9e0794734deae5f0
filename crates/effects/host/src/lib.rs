//! The machine below us: durable files and the locks on them.
//!
//! **Invariant:** what must survive a power cut is written through [`durable`], and nowhere else.

pub mod durable;
pub mod locks;
