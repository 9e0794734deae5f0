//! Locks with fencing tokens, whose loss is noticed.
//!
//! A lock is one key that a lease holds. Its revision is the fencing token: every later holder has a higher one, and
//! [`Lock::fence`] makes any transaction depend on it, so that who lost the lock without noticing changes nothing.
//!
//! **Invariant:** at most one lock of a name is held in the store; who believes to hold one that it has lost is told so, at
//! the latest when its lease's time has passed.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use quorate_faults::{Code, Fault, Result};
use quorate_kv::{Compare, Entry, Event, Listing, Outcome, Revision, Scope};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep};

use crate::lease::{Lease, LeaseLost, LeaseSignal};
use crate::limits::check_name;
use crate::store::{Store, own_key};
use crate::watch::Turn;

/// Where locks are.
const FOLDER: &str = "locks";

/// How long one look at a lock may last before it is tried again.
const LOOK: Duration = Duration::from_secs(10);

/// The pause before a lock that is free but was not given (Consul's lock delay, a race) is tried again.
const PAUSE: Duration = Duration::from_millis(100);

/// Tells apart the attempts of one process.
static ATTEMPTS: AtomicU64 = AtomicU64::new(0);

/// Why a lock is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockLost {
    /// With its lease.
    Lease(LeaseLost),
    /// Someone deleted or took it.
    Taken,
}

impl std::fmt::Display for LockLost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            LockLost::Lease(lost) => lost.fmt(f),
            LockLost::Taken => f.write_str("someone took the lock away"),
        }
    }
}

/// What stands in a lock.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    /// Who holds it, in its own words.
    holder: String,
    /// Which attempt it was, so that one whose answer got lost finds out.
    attempt: String,
}

/// A lock that we hold. Dropped without [`Lock::release`], it stays until its lease ends.
#[derive(Debug)]
pub struct Lock {
    store: Store,
    key: Vec<u8>,
    token: Revision,
    lease: LeaseSignal,
    taken: watch::Receiver<bool>,
    watcher: AbortHandle,
}

impl Store {
    /// Takes a lock, and waits for it if need be. `holder` says who we are, to those who wait for us. After a fault of a store
    /// that did not answer the lock may be held all the same, until the lease ends: end it, or ask again.
    pub async fn lock(&self, name: &str, lease: &Lease, holder: &str, wait: Duration) -> Result<Lock> {
        check_name("lock", name)?;
        let key = own_key(FOLDER, name)?;
        let attempt = format!("{}-{}-{}", lease.id(), std::process::id(), ATTEMPTS.fetch_add(1, Ordering::Relaxed));
        let record = Record { holder: holder.chars().take(200).collect(), attempt };
        let value = serde_json::to_vec(&record)
            .map_err(|error| Fault::new(Code::Internal, "cannot write down who holds a lock").caused_by(error))?;
        let mut asking = Asking { store: self, name, key, value, lease, unsure: false };
        tokio::select! {
            held = asking.until(Instant::now() + wait) => held,
            lost = lease.lost() => Err(gone(name, lost)),
        }
    }
}

struct Asking<'a> {
    store: &'a Store,
    name: &'a str,
    key: Vec<u8>,
    value: Vec<u8>,
    lease: &'a Lease,
    /// An attempt got no answer, so it may have succeeded.
    unsure: bool,
}

impl Asking<'_> {
    async fn until(&mut self, end: Instant) -> Result<Lock> {
        loop {
            let fault = match self.once(end).await {
                Ok(Some(token)) => return Ok(self.held(token)),
                Ok(None) => continue,
                Err(fault) => fault,
            };
            if fault.code() != Code::CoordinationSilent || Instant::now() + PAUSE >= end {
                return Err(fault);
            }
            self.unsure = true;
            sleep(PAUSE).await;
        }
    }

    /// One attempt; then, if somebody else holds it, waits for a change.
    async fn once(&self, end: Instant) -> Result<Option<Revision>> {
        let outcome = match self.unsure {
            true => Outcome::Conflict,
            false => self.store.hold(self.key.clone(), self.value.clone(), self.lease.id()).await?,
        };
        let listing = match outcome {
            Outcome::Committed(Some(token)) => return Ok(Some(token)),
            Outcome::Committed(None) | Outcome::Conflict => self.look().await?,
        };
        let Some(entry) = listing.entries.first() else {
            // Free: given back meanwhile, or kept from everybody for Consul's lock delay.
            return match self.store.hold(self.key.clone(), self.value.clone(), self.lease.id()).await? {
                Outcome::Committed(Some(token)) => Ok(Some(token)),
                Outcome::Committed(None) | Outcome::Conflict if Instant::now() >= end => Err(self.taken(None)),
                Outcome::Committed(None) | Outcome::Conflict => {
                    sleep(PAUSE).await;
                    Ok(None)
                }
            };
        };
        if entry.value == self.value {
            return Ok(Some(entry.revision));
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(self.taken(Some(entry)));
        }
        self.store.watch(&Scope::key(self.key.clone()), listing.position())?.next(left.min(LOOK)).await?;
        Ok(None)
    }

    async fn look(&self) -> Result<Listing> {
        self.store.list(&Scope::key(self.key.clone())).await
    }

    fn taken(&self, by: Option<&Entry>) -> Fault {
        let holder = by.and_then(|entry| serde_json::from_slice::<Record>(&entry.value).ok());
        let who = match &holder {
            Some(record) => format!("`{}` holds it", record.holder.escape_debug()),
            None if by.is_some() => "someone holds it who does not say who".to_owned(),
            None => "Consul keeps it back for a while".to_owned(),
        };
        Fault::new(Code::LockTaken, format!("cannot take lock `{}`: {who}", self.name))
            .hint("wait for the holder, or end its lease")
    }

    fn held(&self, token: Revision) -> Lock {
        let (sender, taken) = watch::channel(false);
        let watcher = tokio::spawn(guard(self.store.clone(), self.key.clone(), token, sender)).abort_handle();
        let (store, key) = (self.store.clone(), self.key.clone());
        Lock { store, key, token, lease: self.lease.signal(), taken, watcher }
    }
}

fn gone(name: &str, lost: LeaseLost) -> Fault {
    Fault::new(Code::LeaseGone, format!("cannot take lock `{name}`: {lost}")).hint("get a new lease and try again")
}

impl Lock {
    /// The fencing token: higher than that of every earlier holder.
    pub fn token(&self) -> Revision {
        self.token
    }

    /// A condition that holds as long as the lock is ours in the store.
    pub fn fence(&self) -> Compare {
        Compare::Unchanged(self.key.clone(), self.token)
    }

    /// Whether nothing is known that speaks against holding it.
    pub fn is_held(&self) -> bool {
        self.lease.is_alive() && !*self.taken.borrow()
    }

    /// Waits until it is lost.
    pub async fn lost(&self) -> LockLost {
        let mut taken = self.taken.clone();
        let by_others = async {
            if taken.wait_for(|taken| *taken).await.is_err() {
                // The watcher is gone, and the lease will tell.
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            lost = self.lease.lost() => LockLost::Lease(lost),
            () = by_others => LockLost::Taken,
        }
    }

    /// Gives it back. One that was lost is left to whoever holds it now.
    pub async fn release(self) -> Result<()> {
        self.watcher.abort();
        self.store.delete_unchanged(self.key.clone(), self.token).await.map(|_| ())
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        self.watcher.abort();
    }
}

/// Watches the key of a lock, and says when it is no longer as we made it.
async fn guard(store: Store, key: Vec<u8>, token: Revision, taken: watch::Sender<bool>) {
    let scope = Scope::key(key);
    loop {
        // A store that does not answer is the lease's business.
        let Ok(listing) = store.list(&scope).await else {
            sleep(PAUSE).await;
            continue;
        };
        if listing.entries.first().is_none_or(|entry| entry.revision != token) {
            break;
        }
        let Ok(mut watch) = store.watch(&scope, listing.position()) else { return };
        let ours = |event: &Event| matches!(event, Event::Put(entry) if entry.revision == token);
        match watch.next(LOOK).await {
            Ok(Turn::Events(events)) if !events.iter().all(ours) => break,
            Ok(_) => {}
            Err(_) => sleep(PAUSE).await,
        }
    }
    // Nobody may be listening any more.
    let _ = taken.send(true);
}
