//! A store: what can be asked of it, whichever it is.
//!
//! **Rule:** everything is checked before it is sent, and every call has a limit.

use std::time::Duration;

use quorate_faults::{Code, Fault, Result};
use quorate_kv::{Change, Compare, Entry, LeaseId, Listing, Outcome, Position, Revision, Scope, Txn};

use crate::consul::{self, Consul};
use crate::errors::Attempt;
use crate::etcd::{self, Etcd};
use crate::limits::{Limits, check_key, check_scope};
use crate::memory::{self, Memory};
use crate::namespace::Namespace;
use crate::settings::{Place, Settings};
use crate::watch::{Inner, Watch};

/// Limit of a call of the store in memory, which answers at once.
const MEMORY_LIMIT: Duration = Duration::from_secs(10);

/// How a store tells what happened between two looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum History {
    /// Every write is told, also to who comes back later, until it is compacted.
    EveryWrite,
    /// Of several writes of one key only the last is told, and who comes back must bring along what it knew.
    LastWrites,
}

/// A connection to a store, and our part of it. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Store {
    pub(crate) backend: Backend,
    pub(crate) namespace: Namespace,
    limit: Duration,
}

#[derive(Debug, Clone)]
pub(crate) enum Backend {
    Etcd(Etcd),
    Consul(Consul),
    Memory(Memory),
}

impl Store {
    /// Reads certificates and tokens. Nothing is sent yet, except that a user of etcd logs in; see [`Store::ready`].
    pub async fn open(settings: &Settings) -> Result<Store> {
        let namespace = Namespace::new(&settings.namespace)?;
        let backend = match &settings.place {
            Place::Etcd(etcd) => {
                let place = etcd.endpoints.join(",");
                let open = Etcd::open(etcd, settings.limit);
                Backend::Etcd(Attempt::LOOK.within(settings.limit, &place, open).await?)
            }
            Place::Consul(consul) => Backend::Consul(Consul::open(consul, settings.limit)?),
        };
        Ok(Store { backend, namespace, limit: settings.limit })
    }

    /// A part of a store in memory.
    pub fn in_memory(memory: &Memory, namespace: &str) -> Result<Store> {
        let namespace = Namespace::new(namespace)?;
        Ok(Store { backend: Backend::Memory(memory.clone()), namespace, limit: MEMORY_LIMIT })
    }

    /// What it takes in one transaction.
    pub fn limits(&self) -> Limits {
        match self.backend {
            Backend::Etcd(_) => etcd::LIMITS,
            Backend::Consul(_) => consul::LIMITS,
            Backend::Memory(_) => memory::LIMITS,
        }
    }

    /// How it tells what happened.
    pub fn history(&self) -> History {
        match self.backend {
            Backend::Etcd(_) | Backend::Memory(_) => History::EveryWrite,
            Backend::Consul(_) => History::LastWrites,
        }
    }

    /// Limit of one call.
    pub fn limit(&self) -> Duration {
        self.limit
    }

    /// Where it is, for messages.
    pub fn place(&self) -> &str {
        match &self.backend {
            Backend::Etcd(etcd) => etcd.place(),
            Backend::Consul(consul) => consul.place(),
            Backend::Memory(_) => "memory",
        }
    }

    /// Whether the store answers and lets us read our namespace.
    pub async fn ready(&self) -> Result<()> {
        self.list(&Scope::key("ready")).await.map(|_| ())
    }

    /// One key, as a quorum knows it.
    pub async fn get(&self, key: impl Into<Vec<u8>>) -> Result<Option<Entry>> {
        Ok(self.list(&Scope::Key(key.into())).await?.entries.pop())
    }

    /// Some keys, all as they were at one revision, as a quorum knows them.
    pub async fn list(&self, scope: &Scope) -> Result<Listing> {
        check_scope(scope)?;
        let full = self.namespace.scope(scope);
        let look = async {
            match &self.backend {
                Backend::Etcd(etcd) => etcd.look(&full).await,
                Backend::Consul(consul) => consul.look(&full).await,
                Backend::Memory(memory) => memory.look(&full),
            }
        };
        let listing = Attempt::LOOK.within(self.limit, self.place(), look).await?;
        Ok(self.namespace.own_listing(listing))
    }

    /// Writes a key, whatever it was. A lease that holds it goes on holding it.
    pub async fn put(&self, key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) -> Result<Revision> {
        let then = vec![Change::Put(key.into(), value.into())];
        match self.txn(&Txn { when: Vec::new(), then }).await? {
            Outcome::Committed(Some(revision)) => Ok(revision),
            Outcome::Committed(None) | Outcome::Conflict => {
                Err(Attempt::TXN.unreadable(self.place(), "it does not say what became of the write"))
            }
        }
    }

    /// Makes a key, if it is not there.
    pub async fn create(&self, key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) -> Result<Outcome> {
        let key = key.into();
        let when = vec![Compare::Absent(key.clone())];
        self.txn(&Txn { when, then: vec![Change::Put(key, value.into())] }).await
    }

    /// Writes a key, if it was last changed at this revision.
    pub async fn replace(
        &self,
        key: impl Into<Vec<u8>>,
        value: impl Into<Vec<u8>>,
        revision: Revision,
    ) -> Result<Outcome> {
        let key = key.into();
        let when = vec![Compare::Unchanged(key.clone(), revision)];
        self.txn(&Txn { when, then: vec![Change::Put(key, value.into())] }).await
    }

    /// Deletes a key, if it is there.
    pub async fn delete(&self, key: impl Into<Vec<u8>>) -> Result<()> {
        self.txn(&Txn { when: Vec::new(), then: vec![Change::Delete(key.into())] }).await.map(|_| ())
    }

    /// Deletes a key, if it was last changed at this revision.
    pub async fn delete_unchanged(&self, key: impl Into<Vec<u8>>, revision: Revision) -> Result<Outcome> {
        let key = key.into();
        self.txn(&Txn { when: vec![Compare::Unchanged(key.clone(), revision)], then: vec![Change::Delete(key)] }).await
    }

    /// Changes several keys at once, if all conditions hold.
    pub async fn txn(&self, txn: &Txn) -> Result<Outcome> {
        self.limits().check(txn)?;
        let full = self.namespace.txn(txn);
        let run = async {
            match &self.backend {
                Backend::Etcd(etcd) => etcd.txn(&full).await,
                Backend::Consul(consul) => consul.txn(&full).await,
                Backend::Memory(memory) => memory.txn(&full),
            }
        };
        Attempt::TXN.within(self.limit, self.place(), run).await
    }

    /// Watches keys from a position on: that of a [`Listing`], or where an earlier watch was.
    pub fn watch(&self, scope: &Scope, after: Position) -> Result<Watch> {
        check_scope(scope)?;
        let (full, position) = (self.namespace.scope(scope), self.namespace.position(after));
        let inner = match &self.backend {
            Backend::Etcd(etcd) => Inner::Etcd(Box::new(etcd.watch(&full, &position))),
            Backend::Consul(consul) => Inner::Consul(Box::new(consul.watch(full, position))),
            Backend::Memory(memory) => Inner::Memory(memory.watch(full, position)),
        };
        Ok(Watch { inner, namespace: self.namespace.clone() })
    }

    /// Makes a key that goes with a lease, if it is not there.
    pub async fn hold(&self, key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>, lease: &LeaseId) -> Result<Outcome> {
        let then = vec![Change::Hold(key.into(), value.into(), lease.clone())];
        self.txn(&Txn { when: Vec::new(), then }).await
    }

    /// Gets a lease that nobody keeps; [`Store::lease`] gets one that is kept. What the store grants may be longer.
    pub async fn grant(&self, ttl: Duration) -> Result<(LeaseId, Duration)> {
        if ttl.is_zero() {
            return Err(Fault::new(Code::CoordinationInvalid, "cannot get a lease of no time").hint("give it seconds"));
        }
        let grant = async {
            match &self.backend {
                Backend::Etcd(etcd) => etcd.grant(ttl).await,
                Backend::Consul(consul) => consul.grant(ttl).await,
                Backend::Memory(memory) => memory.grant(ttl),
            }
        };
        Attempt::GRANT.within(self.limit, self.place(), grant).await
    }

    /// Lets a lease live for its whole time again, which is returned; none when the lease is gone.
    pub async fn renew(&self, lease: &LeaseId) -> Result<Option<Duration>> {
        let renew = async {
            match &self.backend {
                Backend::Etcd(etcd) => etcd.renew(lease).await,
                Backend::Consul(consul) => consul.renew(lease).await,
                Backend::Memory(memory) => memory.renew(lease),
            }
        };
        Attempt::RENEW.within(self.limit, self.place(), renew).await
    }

    /// Ends a lease, and deletes what it holds. One that is gone is as good as ended.
    pub async fn end(&self, lease: &LeaseId) -> Result<()> {
        let end = async {
            match &self.backend {
                Backend::Etcd(etcd) => etcd.end(lease).await,
                Backend::Consul(consul) => consul.end(lease).await,
                Backend::Memory(memory) => memory.end(lease),
            }
        };
        Attempt::END.within(self.limit, self.place(), end).await
    }
}

/// A key of ours, checked.
pub(crate) fn own_key(folder: &str, name: &str) -> Result<Vec<u8>> {
    let key = format!("{folder}/{name}").into_bytes();
    check_key(&key)?;
    Ok(key)
}
