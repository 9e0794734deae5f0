//! One interface to a shared store: keys with revisions, transactions, watches, leases, locks and services, over etcd, over
//! Consul, or in memory.
//!
//! ```no_run
//! # async fn example() -> Result<(), quorate_faults::Fault> {
//! use std::time::Duration;
//! use quorate_coordination::{Place, Scope, Settings, Store, Txn, Change};
//!
//! let place = Place::Consul(quorate_coordination::ConsulSettings::new("http://127.0.0.1:8500"));
//! let store = Store::open(&Settings::new(place, "quorate/blue/")).await?;
//! let lease = store.lease(Duration::from_secs(10)).await?;
//! let lock = store.lock("bootstrap", &lease, "node n1", Duration::from_secs(30)).await?;
//! // Refused if the lock was lost meanwhile, whatever this process believes.
//! let txn = Txn { when: vec![lock.fence()], then: vec![Change::Put(b"primary".to_vec(), b"n1".to_vec())] };
//! store.txn(&txn).await?;
//! lock.release().await?;
//! # Ok(()) }
//! ```
//!
//! **Invariant:** a store that does not answer is a fault, never an empty one; and every call ends within its limit.

mod consul;
mod errors;
mod etcd;
mod lease;
mod limits;
mod lock;
mod memory;
mod namespace;
mod registry;
mod settings;
mod store;
mod watch;
pub mod web;

pub use lease::{Lease, LeaseLost};
pub use limits::{KEY_BYTES_MAX, LISTING_BYTES_MAX, Limits, NAME_BYTES_MAX};
pub use lock::{Lock, LockLost};
pub use memory::Memory;
pub use quorate_kv::{Change, Compare, Entry, Event, LeaseId, Listing, Outcome, Position, Revision, Scope, Txn};
pub use registry::{Health, Instance, Registration, Seen, ServiceTurn, ServiceWatch};
pub use settings::{ConsulSettings, Place, Settings};
pub use store::{History, Store};
pub use watch::{Turn, Watch};
