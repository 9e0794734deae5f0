//! Listens for HTTP: metrics, health, and whatever else this program answers.
//!
//! TLS is the rule; clear text has to be asked for by writing `http://`. Certificates are read again when their files
//! change, so that a rotation needs no restart.
//!
//! **Invariant:** a client that connects and says nothing keeps nobody else waiting, and not for ever.

use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use quorate_faults::{Code, Fault};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};
use tokio_util::sync::CancellationToken;
use tracing::warn;

/// How long a client may take for its handshake.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);

/// Handshakes at a time; more wait in the kernel's queue.
const HANDSHAKES_MAX: usize = 64;

/// Certificates of a listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// PEM file with the certificate chain.
    pub cert: PathBuf,
    /// PEM file with its key.
    pub key: PathBuf,
    /// PEM file with the authorities of clients. With it, a client without a certificate is turned away.
    pub client_ca: Option<PathBuf>,
}

/// Where to listen, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    at: SocketAddr,
    tls: Option<TlsFiles>,
    admits_unknown: bool,
}

impl Address {
    /// Reads `https://0.0.0.0:9979`, or `http://127.0.0.1:9979` for clear text.
    pub fn parse(text: &str, tls: Option<TlsFiles>) -> Result<Address, Fault> {
        let invalid = |why: &str, hint: &str| {
            Fault::new(Code::ServeInvalid, format!("cannot listen on `{text}`: {why}")).hint(hint.to_owned())
        };
        let form = "write `https://ADDRESS:PORT`, or `http://ADDRESS:PORT` for clear text";
        let (secure, rest) = match (text.strip_prefix("https://"), text.strip_prefix("http://")) {
            (Some(rest), _) => (true, rest),
            (None, Some(rest)) => (false, rest),
            (None, None) => return Err(invalid("it begins with neither `https://` nor `http://`", form)),
        };
        let at = rest.trim_end_matches('/').parse();
        let at = at.map_err(|_| invalid("it does not name an IP address and a port", form))?;
        match (secure, tls) {
            (true, Some(tls)) => Ok(Address { at, tls: Some(tls), admits_unknown: false }),
            (false, None) => Ok(Address { at, tls: None, admits_unknown: false }),
            (true, None) => Err(invalid("there is no certificate for it", "give a certificate and its key")),
            (false, Some(_)) => {
                Err(invalid("it asks for clear text and has a certificate", "write `https://`, or leave it out"))
            }
        }
    }

    /// Lets clients without a certificate in as well; whoever answers looks at [`Peer`].
    #[must_use]
    pub fn admit_unknown(self) -> Address {
        Address { admits_unknown: true, ..self }
    }

    /// Whether only this machine can reach it.
    pub fn is_loopback(&self) -> bool {
        self.at.ip().is_loopback()
    }

    /// Whether it is in clear text.
    pub fn is_plaintext(&self) -> bool {
        self.tls.is_none()
    }

    fn url(&self) -> String {
        let scheme = if self.is_plaintext() { "http" } else { "https" };
        format!("{scheme}://{}", self.at)
    }
}

/// A port that was taken, and not served yet.
#[derive(Debug)]
pub struct Bound {
    listener: TcpListener,
    keys: Option<Arc<Keys>>,
    url: String,
}

/// Takes the port, and reads the certificates.
pub async fn bind(address: &Address) -> Result<Bound, Fault> {
    let keys = address.tls.clone().map(|files| Keys::read(files, address.admits_unknown)).transpose()?.map(Arc::new);
    let listener = TcpListener::bind(address.at).await.map_err(|error| {
        Fault::new(Code::ListenFailed, format!("cannot listen on `{}`", address.url()))
            .hint(format!(
                "see who listens there with `ss -ltnp sport = :{}`, or choose another port",
                address.at.port()
            ))
            .caused_by(error)
    })?;
    Ok(Bound { listener, keys, url: address.url() })
}

impl Bound {
    /// The address, with the port that was given if any was asked for.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.listener.local_addr().ok()
    }

    /// Answers until told to stop; answers that have begun are finished. Handlers may ask for [`Peer`].
    pub async fn serve(self, router: Router, stop: CancellationToken) -> Result<(), Fault> {
        let (sender, incoming) = mpsc::channel(HANDSHAKES_MAX);
        let accepting = tokio::spawn(accept(self.listener, self.keys, sender, stop.clone()));
        let doors = Doors { incoming, stop: stop.clone() };
        let service = router.into_make_service_with_connect_info::<Peer>();
        let served = axum::serve(doors, service).with_graceful_shutdown(async move { stop.cancelled().await }).await;
        accepting.abort();
        served.map_err(|error| Fault::new(Code::ListenFailed, format!("`{}` ended", self.url)).caused_by(error))
    }
}

/// Who asks.
#[derive(Debug, Clone, Copy)]
pub struct Peer {
    /// From where.
    pub from: SocketAddr,
    /// Whether with a certificate of the authorities that this listener believes.
    pub certified: bool,
}

impl Peer {
    /// Whether from this machine.
    pub fn is_loopback(&self) -> bool {
        self.from.ip().to_canonical().is_loopback()
    }
}

impl Connected<IncomingStream<'_, Doors>> for Peer {
    fn connect_info(stream: IncomingStream<'_, Doors>) -> Peer {
        *stream.remote_addr()
    }
}

/// A connection, secured or not.
trait Wire: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Wire for T {}

/// Takes connections, and brings each through its handshake on its own.
async fn accept(
    listener: TcpListener,
    keys: Option<Arc<Keys>>,
    ready: mpsc::Sender<(Box<dyn Wire>, Peer)>,
    stop: CancellationToken,
) {
    let places = Arc::new(Semaphore::new(HANDSHAKES_MAX));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        let accepted = tokio::select! {
            () = stop.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            // Out of file descriptors, mostly: others may end meanwhile.
            Err(error) => {
                warn!(%error, "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let (keys, ready) = (keys.clone(), ready.clone());
        tokio::spawn(async move {
            if let Some((wire, certified)) = secure(stream, keys).await {
                let _ = ready.send((wire, Peer { from: peer, certified })).await;
            }
            drop(place);
        });
    }
}

async fn secure(stream: TcpStream, keys: Option<Arc<Keys>>) -> Option<(Box<dyn Wire>, bool)> {
    let _ = stream.set_nodelay(true);
    let Some(keys) = keys else { return Some((Box::new(stream), false)) };
    let handshake = TlsAcceptor::from(keys.current()).accept(stream);
    // A client without the right certificate learns so from its own side of the handshake.
    let wire = tokio::time::timeout(HANDSHAKE_LIMIT, handshake).await.ok()?.ok()?;
    // What it shows has been verified, or there would be no connection.
    let certified = wire.get_ref().1.peer_certificates().is_some_and(|shown| !shown.is_empty());
    Some((Box::new(wire), certified))
}

/// Connections that are through their handshake.
struct Doors {
    incoming: mpsc::Receiver<(Box<dyn Wire>, Peer)>,
    stop: CancellationToken,
}

impl Listener for Doors {
    type Io = Box<dyn Wire>;
    type Addr = Peer;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        match self.incoming.recv().await {
            Some(accepted) => accepted,
            None => {
                // Nobody accepts any more, which happens only when told to stop.
                self.stop.cancelled().await;
                std::future::pending().await
            }
        }
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        Err(io::Error::other("the listener is elsewhere"))
    }
}

/// Certificates, and the files they came from.
#[derive(Debug)]
struct Keys {
    files: TlsFiles,
    admits_unknown: bool,
    loaded: Mutex<(Vec<Stamp>, Arc<ServerConfig>)>,
}

/// What changes when a file is replaced or rewritten.
type Stamp = Option<(u64, u64, i64, i64)>;

impl Keys {
    fn read(files: TlsFiles, admits_unknown: bool) -> Result<Keys, Fault> {
        let stamps = stamps(&files);
        let config = load(&files, admits_unknown)?;
        Ok(Keys { files, admits_unknown, loaded: Mutex::new((stamps, config)) })
    }

    /// The newest that can be used. Files that are being replaced, and do not fit together yet, are tried again later.
    fn current(&self) -> Arc<ServerConfig> {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        let now = stamps(&self.files);
        if loaded.0 != now {
            match load(&self.files, self.admits_unknown) {
                Ok(config) => *loaded = (now, config),
                Err(fault) => warn!(code = fault.code().as_str(), %fault, "still using the certificate from before"),
            }
        }
        Arc::clone(&loaded.1)
    }
}

fn stamps(files: &TlsFiles) -> Vec<Stamp> {
    let stamp = |path: &Path| {
        let meta = std::fs::metadata(path).ok()?;
        Some((meta.ino(), meta.len(), meta.mtime(), meta.mtime_nsec()))
    };
    [Some(&files.cert), Some(&files.key), files.client_ca.as_ref()]
        .into_iter()
        .flatten()
        .map(|path| stamp(path))
        .collect()
}

fn load(files: &TlsFiles, admits_unknown: bool) -> Result<Arc<ServerConfig>, Fault> {
    let unusable = |what: &str, path: &Path, cause: Box<dyn std::error::Error + Send + Sync>| {
        Fault::new(Code::ServeInvalid, format!("cannot use the {what} in `{}`", path.display()))
            .hint("it must be a PEM file that this user can read, and the key must belong to the certificate")
            .caused_by(cause)
    };
    let cert = |error| unusable("certificate", &files.cert, error);
    let chain = CertificateDer::pem_file_iter(&files.cert).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let chain = chain.map_err(|error| cert(error.into()))?;
    let key = PrivateKeyDer::from_pem_file(&files.key).map_err(|error| unusable("key", &files.key, error.into()))?;
    let builder = ServerConfig::builder();
    let builder = match &files.client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let authority = |error| unusable("certificate authorities", path, error);
            let certs = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
            let mut roots = RootCertStore::empty();
            roots.add_parsable_certificates(certs.map_err(|error| authority(error.into()))?);
            let verifier = WebPkiClientVerifier::builder(Arc::new(roots));
            let verifier = if admits_unknown { verifier.allow_unauthenticated() } else { verifier };
            let verifier = verifier.build();
            builder.with_client_cert_verifier(verifier.map_err(|error| authority(error.into()))?)
        }
    };
    let config = builder.with_single_cert(chain, key).map_err(|error| cert(error.into()))?;
    Ok(Arc::new(config))
}
