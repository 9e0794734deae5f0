//! Clusters by hand: a node that makes its own cluster, invites others, takes them in and lets them go.
//!
//! ```text
//!   standalone ─► cluster file, authorities, certificates          invite ─► door (TLS, pinned) ◄─ join, on the other node
//!                                                                             │
//!   keep: door · operation · record ◄── the cluster file, one line more ◄─────┘
//! ```
//!
//! **Invariant:** members change only by the cluster file that all agents hold; what is kept here says which file that is to be,
//! and survives whoever is killed.

mod detach;
mod door;
mod facts;
mod join;
mod keep;
mod keys;
mod messages;
mod pinned;
mod place;
mod points;
mod probe;
mod record;
mod returned;
mod standalone;
mod store;
mod veto;

pub use join::{JoinSettings, Joined, join};
pub use messages::{
    DetachRequest, InviteAnswer, InviteRequest, NodeShown, OperationShown, PeersAnswer, VetoAnswer, VetoRequest,
};
pub use place::{Place, find, hostname};
pub use probe::{AcceptSettings, Probed, accept_probe, probe};
pub use standalone::{StandaloneSettings, Stands, ensure_standalone};

pub(crate) use detach::detach;
pub(crate) use keep::{invite, keep, shown};
pub(crate) use keys::hand_keys;
pub(crate) use record::Records;
pub(crate) use returned::before_first_start;
pub(crate) use store::Peering;
pub(crate) use veto::veto;

/// Where a node listens for those who were invited, while someone is.
pub const DOOR_PORT: u16 = 7700;

/// Between agents: who belongs to the cluster, and what is being changed.
pub const PEERS: &str = "/v1/peers";
/// For operators: makes a join code.
pub const INVITE: &str = "/v1/invite";
/// For operators: takes a node out.
pub const DETACH: &str = "/v1/detach";
/// Between servers: the issuing keys.
pub const KEYS: &str = "/v1/issuing-keys";
/// Between agents: whether something that runs on a node objects.
pub const VETO: &str = "/v1/veto";
