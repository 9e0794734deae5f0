//! Listens for HTTP: agents, health, metrics, enrollment, and whatever else this program answers. Every port is served from here.
//!
//! TLS is the rule; clear text has to be asked for by writing `http://`. Certificates are read again when their files
//! change, so that a rotation needs no restart. `descriptors` says how many connections a listener may have, `room` which ones,
//! `connection` serves one.
//!
//! **Invariant:** no number of clients that are silent or slow keeps another client from an answer, nor the agent from its work.

mod connection;
mod descriptors;
mod room;

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use jiff::Timestamp;
use quorate_faults::{Code, Fault};
use quorate_pki::tls::{self, Admit};
use tokio::net::{TcpListener, TcpSocket, UnixListener};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::warn;

pub use quorate_pki::tls::TlsFiles;

use connection::{Begin, Keys, Serving, Socket};
use descriptors::Share;
pub(crate) use descriptors::carried_max;
pub(crate) use room::{Limits, Room, Seat, Stage};

/// After a connection could not be accepted, for want of memory mostly.
const PAUSE: Duration = Duration::from_millis(100);
/// Connections that wait to be accepted; the kernel has a limit of its own, 4096 by default.
const BACKLOG: u32 = 4096;
/// How long answers that have begun may take once no more are wanted.
const FINISH_LIMIT: Duration = Duration::from_secs(20);

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

/// A port that was taken, and not served yet.
#[derive(Debug)]
pub struct Bound {
    socket: Socket,
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
        true => listen(all).ok(),
        false => None,
    };
    let bound = match both {
        Some(listener) => Ok(listener),
        None => listen(address.at),
    };
    let listener = bound.map_err(|error| {
        Fault::new(Code::ListenFailed, format!("cannot listen on `{}`", address.url()))
            .hint(format!(
                "see who listens there with `ss -ltnp sport = :{}`, or choose another port",
                address.at.port()
            ))
            .caused_by(error)
    })?;
    Ok(Bound { socket: Socket::Tcp(listener), keys, begin: Begin::Alike, url: address.url() })
}

/// The same at a socket of this machine, which only those who may open its file reach.
pub(crate) fn bind_unix(path: &Path) -> io::Result<Bound> {
    let socket = Socket::Unix(UnixListener::bind(path)?);
    Ok(Bound { socket, keys: None, begin: Begin::Alike, url: path.display().to_string() })
}

/// Connections of a burst wait here until they are accepted: what the kernel drops is tried again after a second only.
pub(crate) fn listen(at: SocketAddr) -> io::Result<TcpListener> {
    let socket = if at.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    socket.bind(at)?;
    socket.listen(BACKLOG)
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
        match &self.socket {
            Socket::Tcp(listener) => listener.local_addr().ok(),
            Socket::Unix(_) => None,
        }
    }

    /// Answers until told to stop; answers that have begun are finished. Handlers may ask for [`Peer`].
    pub async fn serve(self, router: Router, stop: CancellationToken) -> Result<(), Fault> {
        let Bound { socket, keys, begin, url } = self;
        let (share, room, served) = (Share::take(), Room::new(), TaskTracker::new());
        let limits = Limits { connections: share.connections(), of_one: share.connections() / 2 };
        let stop = stop.child_token();
        let _swept = stop.clone().drop_guard();
        tokio::spawn(Arc::clone(&room).sweep(url.clone(), stop.clone()));
        let serving = Serving { keys, begin, router, stop: stop.clone() };
        let accepting = async {
            loop {
                room.settled().await;
                let (stream, from) = match socket.accept().await {
                    Ok(accepted) => accepted,
                    Err(error) => {
                        warn!(%error, at = url, "cannot accept a connection");
                        tokio::time::sleep(PAUSE).await;
                        continue;
                    }
                };
                // Without a place it is closed: every other one is being answered.
                if let Some(seat) = room.admit(from.ip(), limits) {
                    drop(served.spawn(connection::serve(stream, from, seat, serving.clone())));
                }
            }
        };
        // In this very task: the port is free as soon as this ends, however it does.
        stop.run_until_cancelled(accepting).await;
        drop(socket);
        served.close();
        let _ = tokio::time::timeout(FINISH_LIMIT, served.wait()).await;
        Ok(())
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

    /// The certificate that it showed, which the handshake has verified.
    pub(crate) fn certificate(&self) -> Option<&[u8]> {
        self.certificate.as_deref()
    }

    /// Whether its certificate has ended, or is not valid yet: it may renew, and nothing else.
    pub fn has_ended(&self) -> bool {
        self.certificate.as_ref().is_some_and(|certificate| !quorate_pki::is_current(certificate, Timestamp::now()))
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
