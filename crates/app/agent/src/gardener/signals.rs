//! The two signals that ask for an end, and what Go calls them.

use quorate_faults::{Fault, Result};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Who asked for the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// SIGTERM.
    Terminate,
    /// SIGINT.
    Interrupt,
}

impl Asked {
    /// What etcd-wrapper writes down for it.
    pub fn word(self) -> &'static str {
        match self {
            Asked::Terminate => "terminated",
            Asked::Interrupt => "interrupt",
        }
    }
}

/// Both signals, caught from now on.
#[derive(Debug)]
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    /// Begins to catch them. Must be called within a tokio runtime.
    pub fn listen() -> Result<Signals> {
        let listen = |kind| signal(kind).map_err(|error| Fault::io("cannot listen for signals", error));
        Ok(Signals { interrupt: listen(SignalKind::interrupt())?, terminate: listen(SignalKind::terminate())? })
    }

    /// Waits for the next one. May be dropped and called again.
    pub async fn next(&mut self) -> Asked {
        tokio::select! {
            _ = self.terminate.recv() => Asked::Terminate,
            _ = self.interrupt.recv() => Asked::Interrupt,
        }
    }
}
