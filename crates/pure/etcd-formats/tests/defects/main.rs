//! One good member, one thing spoiled: each defect is reported as itself, with its severity, and as nothing else.
//!
//! **Rule:** a test names every finding that a defect may cause, down to notes, and says whether a quick look sees it.

#![expect(clippy::unwrap_used, reason = "a test ends where its member is not as it should be")]

mod agreement;
mod content;
mod draft;
mod good;
mod layout;
mod log;
mod pages;
mod surgery;
