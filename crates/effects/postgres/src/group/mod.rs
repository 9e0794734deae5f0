//! The group: servers of which each replicates to each.
//!
//! **Rule:** a slot is made before its subscription and by itself (`create_slot = false`): two nodes that subscribe to each
//! other at once would otherwise wait for each other for ever, and no server would notice.

mod barrier;
mod hashes;
mod held;
mod links;
mod member;
mod mesh;
mod users;

pub use barrier::{RoundTrip, Subscribers, all_caught_up, caught_up, round_trip};
pub use hashes::{Compared, TableHash, compare, count_differing, hashes, same_everywhere, tables};
pub(crate) use hashes::{part_of, parts_of};
pub use held::{Order, hold_link, is_held, release_link, settle_link, skip_link, unsent};
pub use links::{
    Conflicts, Incoming, Links, Outgoing, Position, known_lost, note_lost, observe_links, position, revive_link,
    slot_lost,
};
pub use member::{
    Myself, Writers, ensure_gate, ensure_known, ensure_member, ensure_parts, forget_member, gate_is_open, mark_left,
    members, myself,
};
pub(crate) use mesh::{
    Start, drop_link, ensure_slot, ensure_subscription, link_name, slot_is_for, subscription_exists, system_id,
};
pub use mesh::{ensure_links_to, ensure_mesh, has_rows};
pub(crate) use mesh::{pause_link, resume_link};
pub use users::{
    Prepare, UserKind, UserSpec, end_revoked, end_sessions, ensure_extensions, knows_peer, pool_users, prepare,
};

use crate::sql::Client;

/// The publication, the same on every node.
pub const PUBLICATION: &str = "mesh";

/// One server of the group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its number: 1 to 999, never given twice.
    pub id: u16,
    /// Its name.
    pub name: String,
    /// Where its peers reach it.
    pub host: String,
    /// Its port.
    pub port: u16,
}

/// A member that answers, connected to the database of the group.
#[derive(Debug)]
pub struct Seat {
    /// Who it is.
    pub member: Member,
    /// The connection, as the role of the mesh: what a stolen certificate of a node can do is what is done through it.
    pub client: Client,
}
