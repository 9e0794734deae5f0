//! Uploads what waits in the spool of this node, so that a recovery from the backup has it.
//!
//! **Rule:** a spool that its writer works on is left to the writer; a segment stays until the store has it.

use quorate_faults::{Code, Fault};
use serde::{Deserialize, Serialize};

use crate::backups::spooled::flush;
use crate::turn::Node;

/// What was uploaded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Uploaded {
    /// First revision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first: Option<u64>,
    /// Last revision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<u64>,
}

/// Uploads all of it, or returns why the store did not take the rest.
pub(crate) fn upload(node: &Node) -> Result<Uploaded, Fault> {
    let Some(backup) = &node.spec.backup else {
        return Err(Fault::new(Code::RecoverNothing, "cannot upload a spool: no store is declared"));
    };
    let flushed = flush(&node.spool(), backup.spool_max, &backup.store)?;
    match flushed.refused {
        Some(fault) => Err(fault),
        None => Ok(Uploaded { first: flushed.stored.map(|span| span.from), last: flushed.stored.map(|span| span.to) }),
    }
}
