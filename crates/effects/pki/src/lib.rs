//! Certificates: authorities and their issuing keys, the keys and certificates of a node, and TLS made of them.
//!
//! ```text
//!   ensure_authorities ─► DIR/{peer,client,agent}-ca.{crt,key}            where certificates are issued
//!   ensure_requests ─► CsrBundle ─► issue ─► SignedBundle ─► ensure_installed   on the node, there, and on the node again
//!   preflight, observe_*: what would fail whom                            tls: configurations that notice new files
//! ```
//!
//! **Invariant:** a private key is written for its owner alone, never leaves its folder, and is never replaced without being
//! asked for; a pair of certificate and key that fit each other never gives way to one that does not.

mod authority;
mod check;
mod files;
mod install;
mod issue;
mod keys;
mod passphrase;
mod preflight;
mod read;
mod request;
mod status;
pub mod tls;

pub use authority::{Authorities, MadeAuthorities, ensure_authorities, has_issuing_keys, needs_passphrase};
pub use install::{Installed, ensure_installed, ensure_swaps_finished};
pub use issue::{Asked, BACKDATED, LEAF_DAYS, Policy, issue, read_requests};
pub use passphrase::{ENVIRONMENT, Passphrase};
pub use preflight::{PreflightInput, preflight};
pub use quorate_plan::certificates::{Authority, CsrBundle, NodeNames, Role, SignedBundle};
pub use read::{Certificate, node_name, read_certificates};
pub use request::{Keys, MadeRequests, ensure_requests};
pub use status::{CertStatus, observe_authorities, observe_node};
