//! Watching keys: what happened since, in order, without loss.
//!
//! **Invariant:** between two turns that told events nothing is left out: a watch that was cut off goes on where it was, and
//! one that cannot says [`Turn::Compacted`]. No event is told twice.

use std::time::Duration;

use quorate_faults::Result;
use quorate_kv::{Event, Position, Revision};

use crate::consul::ConsulWatch;
use crate::etcd::EtcdWatch;
use crate::memory::MemoryWatch;
use crate::namespace::Namespace;

/// What a watch tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Turn {
    /// Changes, oldest first.
    Events(Vec<Event>),
    /// The store answers, and nothing has happened.
    Quiet,
    /// What happened since is no longer kept. The watch has ended: list again, and watch from there.
    Compacted {
        /// The oldest revision that is kept, where the store says so.
        oldest: Option<Revision>,
    },
}

/// A running watch. Dropped, it ends.
#[derive(Debug)]
pub struct Watch {
    pub(crate) inner: Inner,
    pub(crate) namespace: Namespace,
}

#[derive(Debug)]
pub(crate) enum Inner {
    Etcd(Box<EtcdWatch>),
    Consul(Box<ConsulWatch>),
    Memory(MemoryWatch),
}

impl Watch {
    /// Waits for changes, for about as long as the limit says, and at most for one call's limit more. A fault says that the
    /// store does not answer; asked again, the watch goes on where it was. Can be dropped and called again without loss.
    pub async fn next(&mut self, limit: Duration) -> Result<Turn> {
        let turn = match &mut self.inner {
            Inner::Etcd(watch) => watch.next(limit).await?,
            Inner::Consul(watch) => watch.next(limit).await?,
            Inner::Memory(watch) => watch.next(limit).await?,
        };
        Ok(match turn {
            Turn::Events(events) => Turn::Events(self.namespace.own_events(events)),
            Turn::Quiet | Turn::Compacted { .. } => turn,
        })
    }

    /// How far it is: a watch that is opened there goes on from here.
    pub fn position(&self) -> Position {
        let position = match &self.inner {
            Inner::Etcd(watch) => watch.position(),
            Inner::Consul(watch) => watch.position(),
            Inner::Memory(watch) => watch.position(),
        };
        self.namespace.own_position(position)
    }
}
