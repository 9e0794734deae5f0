//! Where the store is and how to reach it.
//!
//! **Rule:** secrets come from files, never from arguments or URLs.

use std::path::PathBuf;
use std::time::Duration;

use quorate_etcd::client;

/// How long one call may take, unless told otherwise.
const LIMIT: Duration = Duration::from_secs(10);

/// A store, and the part of it that is ours.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Which store.
    pub place: Place,
    /// What all our keys begin with: a path that ends with a slash, such as `quorate/blue/`.
    pub namespace: String,
    /// Limit of one call, all attempts at all endpoints together.
    pub limit: Duration,
}

impl Settings {
    /// This store and namespace, with the default limit.
    pub fn new(place: Place, namespace: impl Into<String>) -> Settings {
        Settings { place, namespace: namespace.into(), limit: LIMIT }
    }
}

/// A store over the network.
#[derive(Debug, Clone)]
pub enum Place {
    /// An etcd cluster.
    Etcd(client::Settings),
    /// A Consul agent.
    Consul(ConsulSettings),
}

/// How to reach a Consul agent.
#[derive(Debug, Clone)]
pub struct ConsulSettings {
    /// Its HTTP API: `http://…` or `https://…`.
    pub url: String,
    /// PEM file with the certificates of the authorities that sign it; without it, the system's are trusted.
    pub ca: Option<PathBuf>,
    /// PEM file with our own certificate.
    pub cert: Option<PathBuf>,
    /// PEM file with its key.
    pub key: Option<PathBuf>,
    /// File with our ACL token alone. It is read again when Consul says no.
    pub token_file: Option<PathBuf>,
    /// The datacenter to ask, if not the agent's own.
    pub datacenter: Option<String>,
    /// How long Consul keeps a lock from others after its lease was lost. Fencing tokens make it needless; who guards
    /// something that cannot check tokens may want it. At most 60 s.
    pub lock_delay: Duration,
}

impl ConsulSettings {
    /// This agent, without certificates or token, without a lock delay.
    pub fn new(url: impl Into<String>) -> ConsulSettings {
        ConsulSettings {
            url: url.into(),
            ca: None,
            cert: None,
            key: None,
            token_file: None,
            datacenter: None,
            lock_delay: Duration::ZERO,
        }
    }
}
