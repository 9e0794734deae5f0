//! Everything Quorate can tell an operator went wrong: codes, pages, exit codes, faults and findings.
//!
//! A **fault** ends a command. A **finding** is one line of a report about data that was examined. Both carry a
//! [`Code`], and every code has a page in `docs/faults/` that is compiled in and shown by `quorate explain`.
//!
//! **Invariant:** a code without a page does not compile.

mod code;
mod exit;
mod fault;
mod finding;

pub use code::Code;
pub use exit::Exit;
pub use fault::{Fault, Result};
pub use finding::{Finding, Place, Severity};
