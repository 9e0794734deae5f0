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

mod adopt;
mod approve;
mod change_role;
mod client;
mod countersign;
mod detach;
mod door;
mod facts;
mod given;
mod invite;
mod join;
mod keep;
mod keys;
mod listing;
mod messages;
mod pinned;
mod place;
mod points;
mod probe;
mod record;
mod returned;
mod services;
mod short_code;
mod show;
mod signing;
mod standalone;
mod standalone_flags;
mod store;
mod veto;
mod vouch;

pub use join::{Awaited, JoinSettings, Joined, join};
pub use messages::{
    ApprovalShown, ApproveRequest, CountersignRequest, DetachRequest, InviteAnswer, InviteRequest, NodeShown,
    OperationShown, PeersAnswer, RoleRequest, VetoAnswer, VetoRequest, WaitingShown,
};
pub use place::{Place, find, hostname};
pub use probe::{AcceptSettings, Probed, accept_probe, probe};
pub use short_code::prove_code;
pub use standalone::{StandaloneSettings, Stands, ensure_standalone};

pub(crate) use approve::approve;
pub(crate) use change_role::{answer_veto, set_role};
pub(crate) use client::{PASSING_PORT, client_members, own_member, passing, passing_from, tend_proxy};
pub(crate) use countersign::countersign;
pub(crate) use detach::detach;
pub(crate) use facts::{Ports, fsync_ms};
pub(crate) use given::check_given;
pub(crate) use invite::invite;
pub(crate) use keep::keep;
pub(crate) use keys::hand_keys;
pub(crate) use pinned::fill_random;
pub(crate) use points::point;
pub(crate) use record::Records;
pub(crate) use returned::before_first_start;
pub(crate) use services::{Service, register, unregister};
pub(crate) use show::shown;
pub(crate) use store::Peering;
pub(crate) use veto::veto;

/// Where a node listens for those who were invited, while someone is.
pub const DOOR_PORT: u16 = 7700;

/// Between agents: who belongs to the cluster, and what is being changed.
pub const PEERS: &str = "/v1/peers";
/// For operators: makes a join code.
pub const INVITE: &str = "/v1/invite";
/// For operators: lets a node that was invited and waits become a server.
pub const APPROVE: &str = "/v1/peers/approve";
/// For operators: takes a node out.
pub const DETACH: &str = "/v1/detach";
/// Between servers: the issuing keys.
pub const KEYS: &str = "/v1/issuing-keys";
/// Between agents: whether something that runs on a node objects.
pub const VETO: &str = "/v1/veto";
/// For the operator of a server: approves that a node becomes a server.
pub const COUNTERSIGN: &str = "/v1/countersign";
/// For operators: makes a client of a server, or a server of a client.
pub const ROLE: &str = "/v1/role";

/// What is asked of a server that is to be a client.
pub(crate) const TO_CLIENT: &str = quorate_plan::peering::Kind::TO_CLIENT;
/// And of a client that is to be a server.
pub(crate) const TO_SERVER: &str = "to-server";
