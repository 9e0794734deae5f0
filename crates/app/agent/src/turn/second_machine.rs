//! What this agent tells of its own machine, what it last saw of the members, and whether another machine asks in its name.
//!
//! **Rule:** all of it is memory that may be lost: it is seen again.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use quorate_etcd_formats::membership::MemberId;
use quorate_faults::Code;

use super::publish::Shared;
use super::status::Notice;

/// What was seen so long ago is not told any more.
const FRESH: Duration = Duration::from_secs(10);
/// So long after it last asked, another machine is not warned of any more.
const WARNED: Duration = Duration::from_secs(60);

/// The memory.
#[derive(Debug, Default)]
pub(super) struct Machines {
    /// This machine, in words.
    own: Mutex<Option<String>>,
    /// The members that answered at the last look.
    seen: Mutex<Option<(Instant, Vec<MemberId>)>>,
    /// Another machine asked in this node's name: when last.
    second: Mutex<Option<Instant>>,
}

impl Shared {
    /// This machine, in words.
    pub(crate) fn machine(&self) -> Option<String> {
        lock(&self.machines.own).clone()
    }

    pub(super) fn set_machine(&self, machine: String) {
        *lock(&self.machines.own) = Some(machine);
    }

    /// The members that answered a moment ago. None: this agent has not looked.
    pub(crate) fn sees(&self) -> Option<Vec<MemberId>> {
        let seen = lock(&self.machines.seen);
        seen.as_ref().filter(|(at, _)| at.elapsed() < FRESH).map(|(_, members)| members.clone())
    }

    pub(super) fn saw_members(&self, members: Vec<MemberId>) {
        *lock(&self.machines.seen) = Some((Instant::now(), members));
    }

    /// An agent at this address asked in the name of this node, from another machine.
    pub(crate) fn saw_second_machine(self: &Arc<Self>, at: &str) {
        let before = lock(&self.machines.second).replace(Instant::now());
        if before.is_none() {
            tokio::spawn(Arc::clone(self).forget_second_machine());
        }
        let text =
            format!("another machine, at {at}, starts with the name of this node; it waits, and this one goes on");
        self.warnings(&[Code::SecondMachine], vec![Notice::new(Code::SecondMachine, text)]);
    }

    /// Ends that warning, once the other machine has been silent for a while.
    async fn forget_second_machine(self: Arc<Self>) {
        let left = || lock(&self.machines.second).and_then(|at| WARNED.checked_sub(at.elapsed()));
        while let Some(left) = left() {
            tokio::time::sleep(left).await;
        }
        *lock(&self.machines.second) = None;
        self.warnings(&[Code::SecondMachine], Vec::new());
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
