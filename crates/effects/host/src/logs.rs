//! The program's output: cut into lines, kept in files that are rotated.
//!
//! **Rule:** a log that cannot be written is counted, never waited for.

mod files;
mod lines;
mod reader;

pub use files::{LogCounts, LogFiles, Rotation};
pub use lines::{LINE_MAX, Lines};
pub use reader::{LogReader, Reached};
