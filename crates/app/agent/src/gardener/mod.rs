//! Both halves of Gardener's handshake: [`wrap`] stands in for etcd-wrapper, [`sidecar`] for etcd-backup-restore's server.
//!
//! ```text
//!  wrap (runs etcd)                          sidecar (validates, restores, backs up)
//!    GET /initialization/status       ──►      New
//!    GET /initialization/start?mode=  ──►      200, and works
//!    GET /initialization/status       ──►      Progress … Successful | Failed
//!    GET /config                      ──►      YAML for this member
//! ```
//!
//! **Rule:** what travels is theirs to the letter; what it leads to is ours. Neither half trusts a word of the other's
//! beyond what is written down.

pub mod etcd_yaml;
pub mod flags;
pub mod sidecar;
mod signals;
mod small_file;
pub mod wrap;

pub use signals::{Asked, Signals};

/// A fault with what lies below it, on one line.
fn in_words(fault: &quorate_faults::Fault) -> String {
    let mut text = fault.to_string();
    let mut next = std::error::Error::source(fault);
    while let Some(cause) = next {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        next = cause.source();
    }
    text
}
