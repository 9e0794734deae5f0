//! Listens for HTTP: metrics, health, and whatever else this program answers.
//!
//! TLS is the rule; clear text has to be asked for by writing `http://`. Certificates are read again when their files
//! change, so that a rotation needs no restart.
//!
//! **Invariant:** a client that connects and says nothing keeps nobody else waiting, and not for ever.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use jiff::Timestamp;
use quorate_faults::{Code, Fault};
use quorate_pki::tls::{self, Admit, Reloading};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_util::sync::CancellationToken;
use tracing::warn;

pub use quorate_pki::tls::TlsFiles;

/// How long a client may take for its handshake.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);

/// Handshakes at a time; more wait in the kernel's queue.
const HANDSHAKES_MAX: usize = 64;

/// The same where anyone may ask in clear text: whoever says nothing must not keep the proxies from asking.
const STRANGERS_MAX: usize = 512;
/// And how long such a one may take for its first byte.
const FIRST_BYTE_LIMIT: Duration = Duration::from_secs(2);
/// The first byte of a TLS handshake; no request in clear text begins with it.
const TLS_BEGINS: u8 = 0x16;

/// Where to listen, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    at: SocketAddr,
    tls: Option<TlsFiles>,
    admit: Admit,
    /// Of IPv6 too, where it stands for all addresses.
    both: bool,
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
            (true, Some(tls)) => Ok(Address { at, tls: Some(tls), admit: Admit::Certified, both: false }),
            (false, None) => Ok(Address { at, tls: None, admit: Admit::Certified, both: false }),
            (true, None) => Err(invalid("there is no certificate for it", "give a certificate and its key")),
            (false, Some(_)) => {
                Err(invalid("it asks for clear text and has a certificate", "write `https://`, or leave it out"))
            }
        }
    }

    /// Lets clients without a certificate in as well; whoever answers looks at [`Peer`].
    #[must_use]
    pub fn admit_unknown(self) -> Address {
        Address { admit: Admit::Everyone, ..self }
    }

    /// Lets clients in whose certificate has ended a while ago; whoever answers looks at [`Peer::has_ended`].
    #[must_use]
    pub fn admit_ended(self) -> Address {
        Address { admit: Admit::CertifiedOrEnded, ..self }
    }

    /// `0.0.0.0` is all addresses of this machine, those of IPv6 included.
    #[must_use]
    pub fn of_both_kinds(self) -> Address {
        Address { both: true, ..self }
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

/// How connections begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Begin {
    /// All in the same way.
    Alike,
    /// With TLS, or in clear text: the first byte tells.
    Either,
}

/// Certificates that notice when their files change.
type Keys = Arc<Reloading<ServerConfig>>;

/// A port that was taken, and not served yet.
#[derive(Debug)]
pub struct Bound {
    listener: TcpListener,
    keys: Option<Keys>,
    begin: Begin,
    url: String,
}

/// Takes the port, and reads the certificates.
pub async fn bind(address: &Address) -> Result<Bound, Fault> {
    let keys = address.tls.clone().map(|files| tls::server(files, address.admit)).transpose()?.map(Arc::new);
    let all = SocketAddr::from(([0_u16; 8], address.at.port()));
    let both = match address.both && address.at.ip() == IpAddr::V4(Ipv4Addr::UNSPECIFIED) {
        // A machine without IPv6 has no such address; who holds the port is told below.
        true => TcpListener::bind(all).await.ok(),
        false => None,
    };
    let bound = match both {
        Some(listener) => Ok(listener),
        None => TcpListener::bind(address.at).await,
    };
    let listener = bound.map_err(|error| {
        Fault::new(Code::ListenFailed, format!("cannot listen on `{}`", address.url()))
            .hint(format!(
                "see who listens there with `ss -ltnp sport = :{}`, or choose another port",
                address.at.port()
            ))
            .caused_by(error)
    })?;
    Ok(Bound { listener, keys, begin: Begin::Alike, url: address.url() })
}

/// The same for clients that show a certificate and for those who ask in clear text; whoever answers looks at [`Peer`].
pub async fn bind_either(at: SocketAddr, files: TlsFiles) -> Result<Bound, Fault> {
    let mut bound = bind(&Address { at, tls: Some(files), admit: Admit::Certified, both: false }).await?;
    bound.begin = Begin::Either;
    Ok(bound)
}

impl Bound {
    /// The address, with the port that was given if any was asked for.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.listener.local_addr().ok()
    }

    /// Answers until told to stop; answers that have begun are finished. Handlers may ask for [`Peer`].
    pub async fn serve(self, router: Router, stop: CancellationToken) -> Result<(), Fault> {
        let (sender, incoming) = mpsc::channel(HANDSHAKES_MAX);
        // In this very task: the port is free as soon as this ends, however it does.
        let accepting = std::pin::pin!(accept(self.listener, (self.keys, self.begin), sender, stop.clone()));
        let doors = Doors { incoming, stop: stop.clone() };
        let service = router.into_make_service_with_connect_info::<Peer>();
        let serving = axum::serve(doors, service).with_graceful_shutdown(async move { stop.cancelled().await });
        let mut serving = std::pin::pin!(serving.into_future());
        let served = tokio::select! {
            served = &mut serving => served,
            () = accepting => serving.await,
        };
        served.map_err(|error| Fault::new(Code::ListenFailed, format!("`{}` ended", self.url)).caused_by(error))
    }
}

/// Who asks.
#[derive(Debug, Clone)]
pub struct Peer {
    /// From where.
    pub from: SocketAddr,
    /// Whether with a certificate of the authorities that this listener believes.
    pub certified: bool,
    /// Whether from the very address that it came to.
    same: bool,
    /// That certificate.
    certificate: Option<Arc<[u8]>>,
}

impl Peer {
    /// Someone who shows no certificate, or one that is not told.
    pub fn new(from: SocketAddr, certified: bool) -> Peer {
        Peer { from, certified, same: false, certificate: None }
    }

    /// The node whose agent asks, by its certificate.
    pub fn node(&self, token: &str) -> Option<String> {
        self.certificate.as_ref().and_then(|certificate| quorate_pki::node_name(certificate, token))
    }

    /// Whether its certificate has ended: it may renew, and nothing else.
    pub fn has_ended(&self) -> bool {
        self.certificate.as_ref().is_some_and(|certificate| quorate_pki::has_ended(certificate, Timestamp::now()))
    }

    /// Whether its certificate is for this host.
    pub fn covers(&self, host: &str) -> bool {
        self.certificate.as_ref().is_some_and(|certificate| quorate_pki::covers(certificate, host))
    }

    /// Whether from this machine, through its own loopback.
    pub fn is_loopback(&self) -> bool {
        self.from.ip().to_canonical().is_loopback()
    }

    /// Whether from this machine, by whatever address of it.
    pub fn is_here(&self) -> bool {
        self.same || self.is_loopback()
    }
}

impl Connected<IncomingStream<'_, TcpListener>> for Peer {
    fn connect_info(stream: IncomingStream<'_, TcpListener>) -> Peer {
        Peer::new(*stream.remote_addr(), false)
    }
}

impl Connected<IncomingStream<'_, Doors>> for Peer {
    fn connect_info(stream: IncomingStream<'_, Doors>) -> Peer {
        stream.remote_addr().clone()
    }
}

/// A connection, secured or not.
trait Wire: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Wire for T {}

/// Takes connections, and brings each through its handshake on its own.
async fn accept(
    listener: TcpListener,
    (keys, begin): (Option<Keys>, Begin),
    ready: mpsc::Sender<(Box<dyn Wire>, Peer)>,
    stop: CancellationToken,
) {
    let places = Arc::new(Semaphore::new(match begin {
        Begin::Alike => HANDSHAKES_MAX,
        Begin::Either => STRANGERS_MAX,
    }));
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
            let same = stream.local_addr().is_ok_and(|at| at.ip() == peer.ip());
            if let Some((wire, certificate)) = secure(stream, keys, begin).await {
                let peer = Peer { from: peer, certified: certificate.is_some(), same, certificate };
                let _ = ready.send((wire, peer)).await;
            }
            drop(place);
        });
    }
}

async fn secure(stream: TcpStream, keys: Option<Keys>, begin: Begin) -> Option<(Box<dyn Wire>, Option<Arc<[u8]>>)> {
    let _ = stream.set_nodelay(true);
    let Some(keys) = keys else { return Some((Box::new(stream), None)) };
    if begin == Begin::Either && !begins_tls(&stream).await? {
        return Some((Box::new(stream), None));
    }
    let handshake = TlsAcceptor::from(keys.current()).accept(stream);
    // A client without the right certificate learns so from its own side of the handshake.
    let wire = tokio::time::timeout(HANDSHAKE_LIMIT, handshake).await.ok()?.ok()?;
    // What it shows has been verified, or there would be no connection.
    let certificate = wire.get_ref().1.peer_certificates().and_then(|shown| shown.first());
    let certificate = certificate.map(|shown| Arc::from(shown.as_ref()));
    Some((Box::new(wire), certificate))
}

/// Whether what comes is a handshake; `None`: nothing comes.
async fn begins_tls(stream: &TcpStream) -> Option<bool> {
    let mut first = [0];
    match tokio::time::timeout(FIRST_BYTE_LIMIT, stream.peek(&mut first)).await {
        Ok(Ok(1)) => Some(first == [TLS_BEGINS]),
        Ok(Ok(_) | Err(_)) | Err(_) => None,
    }
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
