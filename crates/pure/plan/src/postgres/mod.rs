//! A group of PostgreSQL servers: what its nodes write down for each other, how it comes to be, and who may write.
//!
//! ```text
//!   everyone   data dir ─► server ─► users, database, extensions ─► registered ─► all nodes are there
//!   one        lock ─► leads (compare and swap) ─► the group is written down ─► lock given back
//!   everyone   bound to the group ─► linked with every other node
//!   one        schema, once everybody is linked ─► write master
//!   everyone   schema and rows are here ─► pooler and proxy ─► offered
//! ```
//!
//! **Invariant:** whoever is interrupted anywhere looks again and goes on; a group is written down once and for ever, and what
//! a leader that was replaced still tries is refused by the store.

mod changes;
mod claims;
mod decide;
mod lagging;
mod records;
mod returning;
mod revival;
mod seen;
mod step;
mod unsent;
mod writer;

pub use changes::{Deed, RowChange, Transaction, Value, first_after, position_text};
pub use claims::{
    Unconfirmed, Write, change_group, clear_cutoff, confirm_floor, hand_over, handover_floor, note_bound,
    note_candidate, note_diverged, note_joined, note_schema, order, order_discard, take_group, take_lead, take_writer,
};
pub use decide::{PgPlan, next};
pub use lagging::{is_lagging, lacks_rows, must_hold};
pub use records::{
    Candidate, Cutoff, Discard, Diverged, Floor, Group, Handover, Kept, Leader, Noted, Order, Records, SchemaNote,
    WriterNote, keys, read_records,
};
pub use revival::Revival;
pub use seen::{DataNow, LinkNow, LockNow, Mine, Seen, StoreNow, StoreSeen, UnsentNow};
pub use step::PgStep;
pub use unsent::{Unsent, read_unsent};
pub use writer::{Vacancy, WriterPlan, WriterSeen, next_writer};

#[cfg(test)]
mod lagging_tests;
#[cfg(test)]
mod lives;
#[cfg(test)]
mod returning_tests;
#[cfg(test)]
mod tests;
