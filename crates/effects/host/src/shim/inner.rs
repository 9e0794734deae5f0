//! A box that a kept program has made for its own child: written down, so that the child is found and entered as if the shim had
//! boxed it.
//!
//! **Invariant:** what is found belongs to the very program that runs now, and runs itself.

use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::running::Running;
use super::spec::put;
use crate::process::{Identity, Seen, stat};
use crate::sandbox::{Held, Waiting};
use crate::sealed::{read_small, seal, unseal};

/// The file in the state dir.
pub(super) const INNER: &str = "inner";

/// A child in a box.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inner {
    keeper: u32,
    keeper_ticks: u64,
    /// Which process it is.
    pub identity: Identity,
    /// What it is held by.
    pub held: Box<Held>,
}

/// Writes down whom this process is about to run in a box. `state`: the state dir of its own shim.
pub fn note_inner(state: &Path, waiting: &Waiting, program: &Path) -> io::Result<()> {
    let (own, pid) = (Identity::of(std::process::id())?, waiting.program());
    let identity = Identity {
        pid,
        started_ticks: stat(pid)?.started_ticks,
        boot_id: own.boot_id,
        executable: program.canonicalize()?,
    };
    let held = Box::new(waiting.held().clone());
    let inner = Inner { keeper: own.pid, keeper_ticks: own.started_ticks, identity, held };
    put(&state.join(INNER), &seal(&inner)?)
}

impl Running {
    /// The child that it has put into a box, if it runs.
    pub fn inner(&self) -> Option<Inner> {
        let bytes = read_small(&self.state.path().join(INNER)).ok()??;
        let inner: Inner = unseal(&bytes).ok()?;
        let child = self.child();
        let ours = (inner.keeper, inner.keeper_ticks) == (child.pid, child.started_ticks);
        (ours && matches!(inner.identity.look(), Seen::Running(_))).then_some(inner)
    }
}
