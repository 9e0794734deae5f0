//! How agents talk to each other: HTTP and JSON over mutual TLS, on `api-listen`.
//!
//! ```text
//!   n1: client ── quorate-cluster, quorate-generation, quorate-from ──► n2: server ── ledger, status
//! ```
//!
//! **Invariant:** every request names its cluster and its generation, and is refused where either is not the asked node's; what
//! changes something comes from a declared node; no answer is Unknown, never empty; and whoever shows no certificate of the
//! agents' authority learns nothing. In clear text agents listen on loopback, and a token takes the place of the certificate
//! (`plaintext`).

mod access;
mod audited;
mod care;
mod catch_up;
mod change;
mod client;
mod file_orders;
mod hand;
mod http;
mod messages;
mod openapi;
mod operator_files;
mod plaintext;
mod server;

pub(crate) use audited::record_order;
pub(crate) use catch_up::follow_signed_files;
pub(crate) use change::{Sender, take};
pub use client::{PeerError, Peers};
pub use file_orders::text_hash;
pub(crate) use http::http_client;
pub use messages::{
    Acknowledged, FileAnswer, FileRequest, FileTold, FileTrial, FileTried, FoundingAnswer, HandOverAnswer,
    IntentAnswer, IntentRequest, NodeAnswer, PlanAnswer, Refusal, RestartAnswer, StartedAnswer, StartedRequest, Upkeep,
};
pub use operator_files::OperatorFiles;
pub use plaintext::{check_agent_addresses, check_agent_tokens};
pub(crate) use plaintext::{check_token_file, keep as keep_token, renew as renew_token, require as require_token};
pub(crate) use server::{Api, router};

/// Names the cluster: the token of the cluster file.
pub const CLUSTER_HEADER: &str = "quorate-cluster";
/// Names the generation: a number, or [`NO_GENERATION`].
pub const GENERATION_HEADER: &str = "quorate-generation";
/// Names who asks: a member, or [`OPERATOR`].
pub const FROM_HEADER: &str = "quorate-from";
/// Names the machine of the agent that asks: a nonce, so that two machines with the same name are told apart.
pub const INSTANCE_HEADER: &str = "quorate-instance";
/// Names how far who asks has come, in one word, so that the other side looks again when it is news.
pub const STATE_HEADER: &str = "quorate-state";
/// Of a node that holds nothing yet, and of operators that look. Whoever changes something names a generation, but for
/// [`UNNUMBERED`].
pub const NO_GENERATION: &str = "none";
/// What is asked for without a generation though it is no GET: questions, certificates for a node that holds nothing yet, and a
/// recovery, whose order bears the generation that it makes.
pub(crate) const UNNUMBERED: [&str; 7] = [
    crate::certificates::PATH,
    crate::recover::REMAINS,
    crate::recover::PROBE,
    crate::recover::SPOOL,
    crate::recover::RECOVER,
    crate::peering::VETO,
    TRIAL,
];
/// Where a node is shown a cluster file, and says what it would mean.
pub(crate) const TRIAL: &str = "/v1/file/trial";
/// Who asks, where that is no member.
pub const OPERATOR: &str = "operator";
/// Requests and answers are a few kilobytes; certificates are the longest.
pub const BODY_MAX: usize = 256 << 10;
