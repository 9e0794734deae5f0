//! Clusters that are grown by hand, node by node: join codes, what both sides check, the file that comes of it, and what a node
//! remembers of its own part.
//!
//! ```text
//!   invite ─► JoinCode ─► objections (both sides) ─► Operation: reserved ─► file with one more member ─► joined, or undone
//! ```
//!
//! **Invariant:** peers are a second way to say what a cluster file says. Nothing here changes members: it changes the list of
//! members in the file that the agents hold, and they act on that as on any other.

mod check;
mod code;
mod difference;
mod edit;
mod envelope;
mod glusterd;
mod invitation;
mod judge;
mod local;
mod operation;
mod route;
mod short;

pub use check::{API_VERSIONS, CLOCK_MAX_MS, FSYNC_MAX_MS, Side, objections, objections_to, workload};
pub use code::{CodeError, JoinCode, TOKEN_BYTES, token_of};
pub use difference::{MemberDifference, OtherDifference, only_members_differ};
pub use edit::{
    EditError, ExternalFile, Newcomer, StandaloneFile, member_of, standalone_text, with_member, without_member,
};
pub use envelope::{Signature, digest_of, signatures_of, signed_bytes, with_signatures};
pub use glusterd::{GLUSTERD_TOKEN, GlusterdPlaces, Imported, Mode, glusterd_text, read_glusterd};
pub use invitation::{
    Admission, Invitation, Invitations, Mismatch, STRIKES_MAX, STRIKES_SPAN_MS, Strikes, TTL_MAX_MS, Terms, Turned,
};
pub use judge::{
    Approval, COUNTERSIGNED_FROM, Claimed, FileRecord, FileState, Reader, Signers, Unfit, approves, is_countersigned,
    judge_approval, judge_change, judge_claim, judge_file, judge_operation, needs_approval,
};
pub use local::{LocalError, LocalState, Role};
pub use operation::{Kind, Next, Operation, Outcome, Seen, Step, brought, next};
pub use route::{SAME_RTT_US, Upstream, is_drained, order};
pub use short::{ApprovalSecret, SHORT_BYTES, ShortCode, TypedCode, fingerprint, is_same_fingerprint};
