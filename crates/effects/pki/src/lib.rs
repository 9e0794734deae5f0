//! Certificates: authorities and their issuing keys, the keys and certificates of a node, and TLS made of them.
//!
//! ```text
//!   ensure_authorities ─► DIR/{peer,client,agent}-ca.{crt,key}            where certificates are issued
//!   ensure_requests ─► CsrBundle ─► issue ─► SignedBundle ─► ensure_installed   on the node, there, and on the node again
//!   ensure_rotation ─► TrustOrder ─► ensure_trusted                              other authorities, one after the other
//!   ensure_revoked ─► RevocationLists ─► ensure_lists                            certificates that are called back
//!   operators.crt signs people and their orders; nodes know it, and its key is on no node
//!   preflight, observe_*: what would fail whom                            tls: configurations that notice new files
//! ```
//!
//! **Invariant:** a private key is written for its owner alone, never leaves its folder (but for issuing keys, which the servers of
//! a cluster by hand share), and is never replaced without being asked for; a pair of certificate and key that fit each other never gives way to one that does not.

mod authority;
mod check;
mod expired;
mod files;
mod hand_on;
mod identity;
mod install;
mod issue;
mod keys;
mod operators;
mod passphrase;
mod preflight;
mod read;
mod request;
mod revoke;
mod revoked;
mod rotation;
mod signing;
mod status;
pub mod tls;
pub mod token;
mod trust;

pub use authority::{Authorities, MadeAuthorities, ensure_authorities, has_issuing_keys, needs_passphrase};
pub use hand_on::{IssuingKeys, ensure_issuing_keys, ensure_no_issuing_keys, read_issuing_keys};
pub use identity::{CertificateIdentity, identity_of};
pub use install::{Installed, ensure_begun, ensure_installed, ensure_swaps_finished};
pub use issue::{Asked, BACKDATED, LEAF_DAYS, Policy, issue, read_requests};
pub use operators::{
    MadeOperator, OPERATOR_CERTIFICATE, OPERATOR_KEY, OperatorIdentity, OperatorRequest, claims_operator,
    ensure_operator_authority, ensure_operator_certificate, ensure_operator_list, ensure_operator_revoked,
    ensure_operators_known, has_operator_authority, identify_operator, operators_need_passphrase, read_operator_list,
    sign_order, verify_order,
};
pub use passphrase::{ENVIRONMENT, Passphrase};
pub use preflight::{PreflightInput, preflight};
pub use quorate_plan::certificates::{Authority, CsrBundle, NodeNames, Role, RotationPhase, SignedBundle};
pub use read::{Certificate, covers, is_current, node_name, read_certificates};
pub use request::{Keys, MadeRequests, ensure_requests};
pub use revoke::{
    IssuedCertificate, RevocationLists, crl_file, ensure_list_expected, ensure_lists, ensure_newer_lists,
    ensure_revoked, observe_issued, observe_list, read_issued, read_known_lists, read_lists, record_issued, with_lists,
};
pub use revoked::{Revoked, read_revoked};
pub use rotation::{
    Rotation, ensure_advanced, ensure_order_kept, ensure_rotation, observe_kept_order, observe_rotation, trusted_now,
    with_trust,
};
pub use signing::{Verifier, is_signed_with, sign_as_node};
pub use status::{CertStatus, observe_authorities, observe_node};
pub use trust::{
    TrustChange, TrustOrder, TrustSeen, ensure_trusted, fingerprint, observe_trust, read_order_after, trust_hash,
};
