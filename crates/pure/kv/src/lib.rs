//! Keys with revisions: the words of coordination, and a store that is a value.
//!
//! A store holds keys. Each change has a revision, and revisions only grow. A key may be held by a lease and then goes with
//! it. [`Model`] is all of that in memory, for simulations and tests; the stores over a network are in
//! `crates/effects/coordination` and speak the same words.
//!
//! **Rule:** nothing here knows what time it is: who wants leases to end says how much time has passed.

mod escape;
mod model;
mod words;

pub use escape::{BadKey, escape, unescape};
pub use model::{Gone, LeaseUnknown, Model};
pub use words::{Change, Compare, Entry, Event, LeaseId, Listing, Outcome, Position, Revision, Scope, Txn};
