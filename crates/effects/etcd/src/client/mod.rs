//! Talks to a running etcd cluster: our own thin gRPC client.
//!
//! A [`Client`] holds a list of endpoints and asks the one that answered last; when that one does not answer it tries the
//! others. Every call has a limit in time; streams have one for each silence. Messages are declared by hand in [`messages`], with etcd's published field
//! numbers, so that nothing is generated and nothing is hidden.
//!
//! **Invariant:** a request that may change something is never sent a second time unless the first surely did nothing.

mod auth;
mod call;
mod cluster;
mod connector;
mod errors;
mod kv;
mod leases;
mod maintenance;
pub mod messages;
mod snapshot;
mod stream;
mod tls;
mod users;
mod watch;

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use quorate_faults::{Code, Fault};
use tonic::transport::{Channel, Endpoint};

pub use auth::Credentials;
pub use cluster::{Consistency, Joins};
use connector::Connector;
pub use connector::{recently_opened, record_opened};
pub use kv::Listing;
pub use leases::Granted;
pub use maintenance::Downgrade;
pub use snapshot::SnapshotStream;
pub use tls::Tls;
pub use users::Tried;
pub use watch::{KeyRange, Watch, WatchFrom, WatchTurn};

/// How long one attempt at one endpoint may take, unless told otherwise.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);

/// Where and how to connect.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Client URLs, `http://…` or `https://…`; a bare `host:port` means http, as it does for etcdctl.
    pub endpoints: Vec<String>,
    /// Certificates for `https`.
    pub tls: Tls,
    /// Who we are, on a cluster that asks.
    pub credentials: Option<Credentials>,
    /// Limit of one attempt at one endpoint.
    pub timeout: Duration,
}

impl Settings {
    /// These endpoints, without certificates or credentials, with the default limit.
    pub fn new<S: Into<String>>(endpoints: impl IntoIterator<Item = S>) -> Settings {
        Settings {
            endpoints: endpoints.into_iter().map(Into::into).collect(),
            tls: Tls::default(),
            credentials: None,
            timeout: DEFAULT_TIMEOUT,
        }
    }
}

/// A connection to an etcd cluster. Cheap to clone; clones share connections and token.
#[derive(Debug, Clone)]
pub struct Client {
    shared: Arc<Shared>,
    /// The endpoints this client may ask, as positions in the shared list.
    allowed: Vec<usize>,
    /// Limit of one attempt at one endpoint.
    timeout: Duration,
}

#[derive(Debug)]
struct Shared {
    peers: Vec<Peer>,
    /// The endpoint that answered last.
    preferred: AtomicUsize,
    credentials: Option<Credentials>,
    /// The file of the certificate that is shown, if any.
    certificate: Option<PathBuf>,
    token: Mutex<Option<String>>,
}

#[derive(Debug)]
struct Peer {
    url: String,
    /// How to connect, for streams.
    endpoint: Endpoint,
    connector: Connector,
    /// The connection that all calls share.
    channel: Channel,
}

impl Client {
    /// Reads certificates and prepares the connections; with credentials it also logs in. Without them nothing is sent yet:
    /// the first call connects. Must be called within a tokio runtime.
    pub async fn connect(settings: &Settings) -> Result<Client, Fault> {
        if settings.endpoints.is_empty() {
            return Err(Fault::new(Code::EtcdUnreachable, "cannot reach etcd without an endpoint")
                .hint("name at least one client URL, such as `http://127.0.0.1:2379`"));
        }
        let tls = tls::Loaded::read(&settings.tls)?;
        let peers = settings.endpoints.iter().map(|url| peer(url, &tls, settings.timeout));
        let peers = peers.collect::<Result<Vec<Peer>, Fault>>()?;
        let client = Client {
            allowed: (0..peers.len()).collect(),
            shared: Arc::new(Shared {
                peers,
                preferred: AtomicUsize::new(0),
                credentials: settings.credentials.clone(),
                certificate: settings.tls.cert.clone(),
                token: Mutex::new(None),
            }),
            timeout: settings.timeout,
        };
        client.log_in().await?;
        Ok(client)
    }

    /// The endpoints that this client asks.
    pub fn endpoints(&self) -> impl Iterator<Item = &str> {
        self.allowed.iter().map(|at| self.shared.peers[*at].url.as_str())
    }

    /// One client per endpoint, in the order given: for questions that each member answers about itself.
    pub fn each(&self) -> impl Iterator<Item = Client> {
        self.allowed.iter().map(|at| Client { allowed: vec![*at], ..self.clone() })
    }

    /// The same client with another limit of one attempt at one endpoint.
    #[must_use]
    pub fn with_timeout(&self, timeout: Duration) -> Client {
        Client { timeout, ..self.clone() }
    }

    fn timeout(&self) -> Duration {
        self.timeout
    }

    /// The endpoints in the order to try them: the one that answered last, then the others in theirs.
    fn order(&self) -> Vec<usize> {
        let preferred = self.shared.preferred.load(Ordering::Relaxed);
        let first = self.allowed.iter().position(|at| *at == preferred).unwrap_or(0);
        let mut order = self.allowed.clone();
        order.rotate_left(first);
        order
    }

    fn prefer(&self, at: usize) {
        self.shared.preferred.store(at, Ordering::Relaxed);
    }

    fn token(&self) -> MutexGuard<'_, Option<String>> {
        // A token is replaced as a whole, so one left by a panicking thread is as good as any.
        self.shared.token.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

fn peer(url: &str, tls: &tls::Loaded, timeout: Duration) -> Result<Peer, Fault> {
    let url = if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
    let invalid = |cause: Box<dyn std::error::Error + Send + Sync>| {
        Fault::new(Code::EtcdUnreachable, format!("cannot use `{url}` as an etcd endpoint"))
            .hint("write it as `http://HOST:PORT` or `https://HOST:PORT`")
            .caused_by(cause)
    };
    // Parsed by ourselves first: the library also takes addresses that etcd does not listen on.
    let uri: http::Uri = url.parse().map_err(|error: http::uri::InvalidUri| invalid(error.into()))?;
    let Some(host) = uri.host().filter(|host| !host.is_empty()) else {
        return Err(invalid("it names no host".into()));
    };
    let endpoint = Endpoint::from(uri.clone());
    let endpoint = match uri.scheme_str() {
        Some("http") => endpoint,
        Some("https") => endpoint.tls_config(tls.config(host)).map_err(|error| tls.fault(&url, error))?,
        _ => return Err(invalid("it is neither http nor https".into())),
    };
    let connector = Connector::new(timeout);
    Ok(Peer { channel: endpoint.connect_with_connector_lazy(connector.clone()), endpoint, connector, url })
}
