//! Services: who offers what, where, and how well it is.
//!
//! On Consul they are services of the agent with a TTL check, so that its DNS and everybody else see them, under the name
//! `NAMESPACE-SERVICE`; on the others they are keys that a lease holds.
//!
//! **Invariant:** an instance that is no longer kept stops being listed as passing within its time to live.

mod kept;
mod watching;

use std::collections::BTreeMap;
use std::time::Duration;

use quorate_faults::{Code, Fault, Result};
use quorate_kv::{Entry, Scope};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::task::AbortHandle;

use crate::errors::Attempt;
use crate::limits::{check_name, shown};
use crate::store::{Backend, Store, own_key};

pub use watching::{ServiceTurn, ServiceWatch};

/// Where services are.
const FOLDER: &str = "services";

/// Consul's limits of meta data, which all stores share.
const META_MAX: usize = 60;
const META_KEY_BYTES_MAX: usize = 128;
const META_VALUE_BYTES_MAX: usize = 512;

/// Bytes of a note.
const NOTE_BYTES_MAX: usize = 1000;

/// How well an instance is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Health {
    /// All is well.
    Passing,
    /// It works, but somebody should look.
    Warning,
    /// It does not work.
    Critical,
}

impl Health {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Health::Passing => "passing",
            Health::Warning => "warning",
            Health::Critical => "critical",
        }
    }
}

/// One that offers a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Instance {
    /// Which service.
    pub service: String,
    /// Which of those that offer it.
    pub id: String,
    /// Where.
    pub address: String,
    /// Where.
    pub port: u16,
    /// What else others should know.
    pub meta: BTreeMap<String, String>,
}

impl Instance {
    fn check(&self) -> Result<()> {
        check_name("service", &self.service)?;
        check_name("instance", &self.id)?;
        let name = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
        let bad = self.meta.iter().find(|(key, value)| {
            key.is_empty() || key.len() > META_KEY_BYTES_MAX || !name(key) || value.len() > META_VALUE_BYTES_MAX
        });
        if let Some((key, _)) = bad {
            return Err(self.cannot(format!("its meta `{}` is too long or has other letters", shown(key.as_bytes()))));
        }
        let address_fits = !self.address.is_empty() && self.address.len() <= 255;
        if self.meta.len() > META_MAX || !address_fits || !self.address.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(self.cannot("it has too much meta data, or no usable address"));
        }
        Ok(())
    }

    fn cannot(&self, why: impl std::fmt::Display) -> Fault {
        let attempt = format!("cannot register instance `{}` of service `{}`: {why}", self.id, self.service);
        Fault::new(Code::CoordinationKey, attempt)
            .hint("up to 60 meta keys of letters, digits, `-`, `_`, with values of up to 512 bytes")
    }
}

/// An instance, as it is seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// Which.
    pub instance: Instance,
    /// How well it is.
    pub health: Health,
    /// Why, in its own words or the store's.
    pub note: String,
}

/// What an instance says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) health: Health,
    pub(crate) note: String,
}

/// A registered instance, kept in the background. Dropped, it is no longer kept; see [`Registration::end`].
#[derive(Debug)]
pub struct Registration {
    store: Store,
    instance: Instance,
    wanted: watch::Sender<Wanted>,
    registered: watch::Receiver<bool>,
    keeper: AbortHandle,
    lease: watch::Receiver<Option<quorate_kv::LeaseId>>,
}

impl Store {
    /// Registers an instance and keeps it registered, also over losses of the store's memory of it. Must be called within a
    /// tokio runtime.
    pub async fn register(&self, instance: &Instance, health: Health, ttl: Duration) -> Result<Registration> {
        instance.check()?;
        let (wanted, wanted_now) = watch::channel(Wanted { health, note: String::new() });
        let (registered_now, registered) = watch::channel(true);
        let (lease_now, lease) = watch::channel(None);
        let (store, copy) = (self.clone(), instance.clone());
        let keeper = match &self.backend {
            Backend::Consul(consul) => {
                let consul = consul.clone();
                let service = self.service_name(&instance.service);
                consul.register(&service, instance, &wanted_now.borrow().clone(), ttl).await?;
                tokio::spawn(async move { consul.keep_service(service, copy, wanted_now, ttl, registered_now).await })
            }
            Backend::Etcd(_) | Backend::Memory(_) => {
                let key = own_key(FOLDER, &format!("{}/{}", instance.service, instance.id))?;
                let kept = kept::Kept::begin(store.clone(), key, copy, wanted_now, ttl, lease_now).await?;
                tokio::spawn(kept.keep(registered_now))
            }
        };
        let (instance, keeper) = (instance.clone(), keeper.abort_handle());
        Ok(Registration { store, instance, wanted, registered, keeper, lease })
    }

    /// All instances of a service, in the order of their ids.
    pub async fn instances(&self, service: &str) -> Result<Vec<Seen>> {
        check_name("service", service)?;
        let mut seen = match &self.backend {
            Backend::Consul(consul) => consul.services(&self.service_name(service), service, None).await?.1,
            Backend::Etcd(_) | Backend::Memory(_) => {
                let listing = self.list(&service_scope(service)).await?;
                self.seen(service, &listing.entries)?
            }
        };
        seen.sort_by(|a, b| a.instance.id.cmp(&b.instance.id));
        Ok(seen)
    }

    /// Watches the instances of a service.
    pub fn watch_instances(&self, service: &str) -> Result<ServiceWatch> {
        check_name("service", service)?;
        Ok(ServiceWatch::new(self.clone(), service))
    }

    pub(crate) fn service_name(&self, service: &str) -> String {
        format!("{}{service}", self.namespace.dashed())
    }

    fn seen(&self, service: &str, entries: &[Entry]) -> Result<Vec<Seen>> {
        entries.iter().map(|entry| read(self.place(), service, entry)).collect()
    }
}

impl Registration {
    /// Says how well the instance is.
    pub fn set(&self, health: Health, note: &str) {
        let mut note = note.to_owned();
        while note.len() > NOTE_BYTES_MAX {
            note.pop();
        }
        let wanted = Wanted { health, note };
        self.wanted.send_if_modified(|now| std::mem::replace(now, wanted.clone()) != wanted);
    }

    /// Whether the store, when it last answered, had the instance as ours. It has not when another process registered the
    /// same one.
    pub fn is_registered(&self) -> bool {
        *self.registered.borrow()
    }

    /// Takes the instance out of the registry.
    pub async fn end(self) -> Result<()> {
        self.keeper.abort();
        if let Backend::Consul(consul) = &self.store.backend {
            let service = self.store.service_name(&self.instance.service);
            return consul.deregister(&service, &self.instance).await;
        }
        let lease = self.lease.borrow().clone();
        match lease {
            Some(lease) => self.store.end(&lease).await,
            None => Ok(()),
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.keeper.abort();
    }
}

/// What stands in the key of an instance.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    address: String,
    port: u16,
    #[serde(default)]
    meta: BTreeMap<String, String>,
    health: Health,
    #[serde(default)]
    note: String,
}

fn record(instance: &Instance, wanted: &Wanted) -> Result<Vec<u8>> {
    let record = Record {
        address: instance.address.clone(),
        port: instance.port,
        meta: instance.meta.clone(),
        health: wanted.health,
        note: wanted.note.clone(),
    };
    serde_json::to_vec(&record).map_err(|error| instance.cannot("it cannot be written down").caused_by(error))
}

fn read(place: &str, service: &str, entry: &Entry) -> Result<Seen> {
    let foreign = || Attempt::INSTANCES.unreadable(place, format!("no record of a service: `{}`", shown(&entry.key)));
    let prefix = format!("{FOLDER}/{service}/");
    let id = entry.key.strip_prefix(prefix.as_bytes()).and_then(|id| std::str::from_utf8(id).ok());
    let id = id.ok_or_else(foreign)?.to_owned();
    let record: Record = serde_json::from_slice(&entry.value).map_err(|error| foreign().caused_by(error))?;
    let Record { address, port, meta, health, note } = record;
    Ok(Seen { instance: Instance { service: service.to_owned(), id, address, port, meta }, health, note })
}

fn service_scope(service: &str) -> Scope {
    Scope::prefix(format!("{FOLDER}/{service}/"))
}
