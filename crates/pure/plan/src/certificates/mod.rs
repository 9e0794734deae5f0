//! Certificates on paper: who gets which, what stands in them, the text they travel in, when they are renewed, and how authorities
//! are rotated.
//!
//! **Rule:** nothing here reads a certificate, a clock or a disk; what a certificate says comes in as values.

mod bundle;
mod names;
mod operators;
mod renewal;
mod rotation;

pub use bundle::{BYTES_MAX, BundleError, CsrBundle, SignedBundle, pem};
pub use names::{NodeNames, agent_hostname, host_of, is_host_name, node_of_hostname, peer_hostname};
pub use operators::{OperatorRole, operator_files, operator_hostname, operator_of_hostname};
pub use renewal::{Life, Renewal, ends_soon, plan_renewal};
pub use rotation::{
    Goal, Lack, LastOrder, Need, NodeKnows, OrderRefused, Others, RotationPhase, Standing, TrustShown, may_follow,
    may_trust, parts_nobody, phase_of_all, strangers,
};

/// An authority: whoever trusts it trusts all that it signed, so each group has its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Authority {
    /// Of members among each other.
    Peer,
    /// Of etcd's clients, and of what etcd shows them.
    Client,
    /// Of agents among each other.
    Agent,
}

impl Authority {
    /// All of them.
    pub const ALL: [Authority; 3] = [Authority::Peer, Authority::Client, Authority::Agent];

    /// As files and tables call it.
    pub fn word(self) -> &'static str {
        match self {
            Authority::Peer => "peer-ca",
            Authority::Client => "client-ca",
            Authority::Agent => "agent-ca",
        }
    }

    /// The file of its certificate.
    pub fn cert_file(self) -> String {
        format!("{}.crt", self.word())
    }

    /// The file of its issuing key.
    pub fn key_file(self) -> String {
        format!("{}.key", self.word())
    }
}

/// A certificate of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Shown to and by other members.
    Peer,
    /// Shown to clients of etcd.
    Client,
    /// Shown to and by other agents.
    Agent,
    /// Shown to etcd by the agent and by operators.
    Admin,
}

impl Role {
    /// All of them.
    pub const ALL: [Role; 4] = [Role::Peer, Role::Client, Role::Agent, Role::Admin];

    /// As files and tables call it.
    pub fn word(self) -> &'static str {
        match self {
            Role::Peer => "peer",
            Role::Client => "client",
            Role::Agent => "agent",
            Role::Admin => "admin",
        }
    }

    /// Who signs it.
    pub fn authority(self) -> Authority {
        match self {
            Role::Peer => Authority::Peer,
            Role::Client | Role::Admin => Authority::Client,
            Role::Agent => Authority::Agent,
        }
    }

    /// Whether it serves. Members dial each other with what they serve with, and etcd's HTTP gateway dials etcd with the
    /// server's certificate, so these need both usages.
    pub fn serves(self) -> bool {
        match self {
            Role::Peer | Role::Client | Role::Agent => true,
            Role::Admin => false,
        }
    }

    /// The file of the certificate.
    pub fn cert_file(self) -> String {
        format!("{}.crt", self.word())
    }

    /// The file of its key.
    pub fn key_file(self) -> String {
        format!("{}.key", self.word())
    }
}
