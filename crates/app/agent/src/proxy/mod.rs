//! The proxy of a client node: listens where etcd would, and carries every connection to a member that is well.
//!
//! ```text
//!   clients ──► listener ──► order (plan/peering, pure) ──► connect, the next one if it fails ──► bytes, both ways ──► member
//!                                     ▲                                                            │
//!                 follow: member list, health, round trips ─────────── who is ill or gone ─────────┴──► drained
//! ```
//!
//! **Invariant:** bytes pass unread: TLS is between the client and the member. No byte of a client is taken before a member has
//! taken the connection, so one that fails to connect is tried elsewhere and the client sees nothing of it.

mod carry;
mod follow;
mod listen;
mod measure;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use quorate_faults::Fault;
use quorate_plan::peering::Upstream;
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, watch};
use tokio_util::sync::{CancellationToken, DropGuard};

pub use follow::{Follow, Known};
use measure::Measures;

/// After it was told to leave the port alone, the proxy takes it again no sooner than this.
const HELD_BACK: Duration = Duration::from_secs(3);

/// A proxy; it works on a thread of its own once it listens, so that nothing else of the agent keeps bytes waiting.
#[derive(Debug)]
pub struct Proxy {
    shared: Arc<Shared>,
    thread: OnceLock<()>,
    _stop: DropGuard,
}

/// What its parts share.
#[derive(Debug)]
struct Shared {
    members: watch::Sender<Arc<Vec<Upstream>>>,
    wanted: watch::Sender<Vec<SocketAddr>>,
    listening: watch::Sender<Vec<SocketAddr>>,
    /// Connections by the address of the member that carries them.
    carried: Mutex<BTreeMap<String, usize>>,
    /// Members that failed to connect, and when.
    suspects: Mutex<BTreeMap<String, Instant>>,
    /// When a quorum last confirmed the list.
    confirmed: Mutex<Option<Instant>>,
    released: Mutex<Option<Instant>>,
    trouble: Notify,
    measures: Measures,
    stop: CancellationToken,
}

/// What a proxy does, for those who look.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProxyNow {
    /// Where it listens.
    pub listens: Vec<String>,
    /// The members that it uses.
    pub members: Vec<UpstreamNow>,
    /// Seconds since a quorum confirmed that these are the members; none: not since the agent runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confirmed_s: Option<u64>,
}

/// A member, for those who look.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpstreamNow {
    /// Its name.
    pub name: String,
    /// Where it is.
    pub address: String,
    /// Whether it is used for new connections.
    pub healthy: bool,
    /// How long an answer takes, in µs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rtt_us: Option<u32>,
    /// Connections that it carries.
    pub connections: usize,
}

impl Default for Proxy {
    fn default() -> Proxy {
        let stop = CancellationToken::new();
        let shared = Shared {
            members: watch::Sender::new(Arc::default()),
            wanted: watch::Sender::default(),
            listening: watch::Sender::default(),
            carried: Mutex::default(),
            suspects: Mutex::default(),
            confirmed: Mutex::default(),
            released: Mutex::default(),
            trouble: Notify::new(),
            measures: Measures::default(),
            stop: stop.clone(),
        };
        Proxy { shared: Arc::new(shared), thread: OnceLock::new(), _stop: stop.drop_guard() }
    }
}

impl Proxy {
    /// Who there is; connections to those who are ill or gone are drained.
    pub fn set_members(&self, members: Vec<Upstream>) {
        self.shared.measures.members(&members);
        self.shared.members.send_if_modified(|known| {
            let other = **known != members;
            if other {
                *known = Arc::new(members);
            }
            other
        });
    }

    /// Who there is.
    pub fn members(&self) -> Arc<Vec<Upstream>> {
        self.shared.members.borrow().clone()
    }

    /// Listens at these addresses and at no others: each as soon as whoever holds it lets go. None: connections are drained.
    pub fn listen(&self, at: Vec<SocketAddr>) -> Result<(), Fault> {
        let held = lock(&self.shared.released).is_some_and(|at| at.elapsed() < HELD_BACK);
        if held && !at.is_empty() {
            return Ok(());
        }
        if !at.is_empty() && self.thread.get().is_none() {
            listen::begin(Arc::clone(&self.shared))?;
            let _ = self.thread.set(());
        }
        self.shared.measures.client(!at.is_empty());
        self.shared.wanted.send_if_modified(|known| {
            let other = *known != at;
            *known = at;
            other
        });
        Ok(())
    }

    /// Where it listens now.
    pub fn listening(&self) -> Vec<SocketAddr> {
        self.shared.listening.borrow().clone()
    }

    /// Lets go of the ports for somebody else, who takes them at once. Returns when they are free.
    pub async fn release(&self, limit: Duration) {
        *lock(&self.shared.released) = Some(Instant::now());
        self.shared.wanted.send_replace(Vec::new());
        let mut listening = self.shared.listening.subscribe();
        let _ = tokio::time::timeout(limit, listening.wait_for(Vec::is_empty)).await;
    }

    /// Waits until a connection failed: the members are worth a look.
    pub async fn trouble(&self) {
        self.shared.trouble.notified().await;
    }

    /// Whether a member can be reached, as far as is known.
    pub fn serves(&self) -> bool {
        !self.listening().is_empty() && self.members().iter().any(|member| member.healthy)
    }

    /// Whether it has every port that it wants, and leads somewhere.
    pub fn is_up(&self) -> bool {
        let (wanted, listening) = (self.shared.wanted.borrow().clone(), self.listening());
        self.serves() && wanted.iter().all(|at| listening.contains(at))
    }

    /// A quorum confirmed the list just now.
    pub(crate) fn confirmed(&self) {
        *lock(&self.shared.confirmed) = Some(Instant::now());
    }

    /// Where measures are registered.
    pub(crate) fn register(&self, registry: &std::sync::RwLock<prometheus_client::registry::Registry>) {
        self.shared.measures.register(registry);
    }

    /// What it does.
    pub fn now(&self) -> ProxyNow {
        let carried = lock(&self.shared.carried).clone();
        let members = self.members();
        let shown = members.iter().map(|member| UpstreamNow {
            name: member.name.clone(),
            address: member.address.clone(),
            healthy: member.healthy,
            rtt_us: member.rtt_us,
            connections: carried.get(&member.address).copied().unwrap_or(0),
        });
        let confirmed = *lock(&self.shared.confirmed);
        ProxyNow {
            listens: self.listening().iter().map(ToString::to_string).collect(),
            members: shown.collect(),
            confirmed_s: confirmed.map(|at| at.elapsed().as_secs()),
        }
    }
}

/// What is behind a lock is replaced as a whole, so what a panicking thread left is as good as any.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
