//! One connection: handshake, requests and answers, until it ends or has to.
//!
//! **Rule:** every step that waits for the client is recorded in its [`Seat`], which ends the connection when the step takes too long
//! or a new connection needs the place.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use bytes::Bytes;
use hyper::Request;
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use quorate_pki::tls::Reloading;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_util::sync::CancellationToken;

use super::Peer;
use super::room::{Seat, Stage};

/// The first byte of a TLS handshake; no request in clear text begins with it.
const TLS_BEGINS: u8 = 0x16;
/// Of each connection, for the header of a request. Ours have less than a kilobyte.
const BUFFER_MAX: usize = 64 << 10;

/// Certificates that notice when their files change.
pub(super) type Keys = Arc<Reloading<ServerConfig>>;

/// How connections begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Begin {
    /// All in the same way.
    Alike,
    /// With TLS, or in clear text: the first byte tells.
    Either,
}

/// Where connections come from.
#[derive(Debug)]
pub(super) enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Socket {
    pub(super) async fn accept(&self) -> io::Result<(Stream, SocketAddr)> {
        match self {
            Socket::Tcp(listener) => listener.accept().await.map(|(stream, from)| (Stream::Tcp(stream), from)),
            // Whoever may open the socket is on this machine.
            Socket::Unix(listener) => {
                let here = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
                listener.accept().await.map(|(stream, _)| (Stream::Unix(stream), here))
            }
        }
    }
}

/// A connection as it came.
#[derive(Debug)]
pub(super) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// A connection, secured or not.
trait Wire: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Wire for T {}

/// How the connections of one listener are served.
#[derive(Clone)]
pub(super) struct Serving {
    pub(super) keys: Option<Keys>,
    pub(super) begin: Begin,
    pub(super) router: Router,
    pub(super) stop: CancellationToken,
}

/// Serves one connection to its end.
pub(super) async fn serve(stream: Stream, from: SocketAddr, seat: Seat, serving: Serving) {
    let seat = Arc::new(seat);
    let closing = Arc::clone(&seat);
    tokio::select! {
        biased;
        () = closing.closed() => {}
        () = converse(stream, from, seat, serving) => {}
    }
}

async fn converse(stream: Stream, from: SocketAddr, seat: Arc<Seat>, serving: Serving) {
    let Serving { keys, begin, router, stop } = serving;
    // A client that has not even opened its connection is not waited for.
    let Some(Some((wire, peer))) = stop.run_until_cancelled(secure(stream, from, keys, begin)).await else { return };
    if peer.certified {
        seat.certify();
    }
    seat.set(Stage::Header);
    let wire = TokioIo::new(Watched { wire, seat: Arc::clone(&seat) });
    let (router, watched) = (TowerToHyperService::new(router), Arc::clone(&seat));
    let answer = service_fn(move |request: Request<Incoming>| {
        let (mut request, seat) = (request.map(|body| watch_body(body, &watched)), Arc::clone(&watched));
        request.extensions_mut().insert(ConnectInfo(peer.clone()));
        let answered = router.call(request);
        async move {
            let answer = answered.await;
            seat.set(Stage::Idle);
            answer
        }
    });
    let connection = http1::Builder::new().max_buf_size(BUFFER_MAX).serve_connection(wire, answer);
    let mut connection = std::pin::pin!(connection);
    tokio::select! {
        _ = &mut connection => return,
        () = stop.cancelled() => {}
    }
    // Answers that have begun are finished; half a header is not waited for.
    if seat.stage() != Stage::Header {
        connection.as_mut().graceful_shutdown();
        let _ = connection.await;
    }
}

/// Brings a connection through its handshake.
async fn secure(stream: Stream, from: SocketAddr, keys: Option<Keys>, begin: Begin) -> Option<(Box<dyn Wire>, Peer)> {
    let stream = match stream {
        Stream::Tcp(stream) => stream,
        Stream::Unix(stream) => return Some((Box::new(stream), Peer::new(from, false))),
    };
    let _ = stream.set_nodelay(true);
    let same = stream.local_addr().is_ok_and(|at| at.ip() == from.ip());
    let peer = Peer { same, ..Peer::new(from, false) };
    let Some(keys) = keys else { return Some((Box::new(stream), peer)) };
    if begin == Begin::Either && !begins_tls(&stream).await? {
        return Some((Box::new(stream), peer));
    }
    // A client without the right certificate learns so from its own side of the handshake.
    let wire = TlsAcceptor::from(keys.current()).accept(stream).await.ok()?;
    // What it shows has been verified, or there would be no connection.
    let certificate = wire.get_ref().1.peer_certificates().and_then(|shown| shown.first());
    let certificate = certificate.map(|shown| Arc::from(shown.as_ref()));
    Some((Box::new(wire), Peer { certified: certificate.is_some(), certificate, ..peer }))
}

/// Whether what comes is a handshake; `None`: nothing comes.
async fn begins_tls(stream: &TcpStream) -> Option<bool> {
    let mut first = [0];
    match stream.peek(&mut first).await {
        Ok(1) => Some(first == [TLS_BEGINS]),
        Ok(_) | Err(_) => None,
    }
}

/// Bytes of a client, each of which may begin a step.
struct Watched {
    wire: Box<dyn Wire>,
    seat: Arc<Seat>,
}

impl AsyncRead for Watched {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        let polled = Pin::new(&mut this.wire).poll_read(cx, buffer);
        if buffer.filled().len() > before && this.seat.stage() == Stage::Idle {
            this.seat.set(Stage::Header);
        }
        polled
    }
}

impl AsyncWrite for Watched {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.wire).poll_write(cx, bytes);
        // A long answer may take long, as long as it is read.
        if matches!(polled, Poll::Ready(Ok(_))) && this.seat.stage() == Stage::Idle {
            this.seat.set(Stage::Idle);
        }
        polled
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().wire).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().wire).poll_shutdown(cx)
    }
}

/// What is left of a request after its header.
fn watch_body(body: Incoming, seat: &Arc<Seat>) -> Body {
    if hyper::body::Body::is_end_stream(&body) {
        seat.set(Stage::Handling);
        return Body::empty();
    }
    seat.set(Stage::Body);
    Body::new(WatchedBody { body, seat: Arc::clone(seat) })
}

struct WatchedBody {
    body: Incoming,
    seat: Arc<Seat>,
}

impl hyper::body::Body for WatchedBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<hyper::Result<Frame<Bytes>>>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.body).poll_frame(cx);
        let ended = matches!(polled, Poll::Ready(None)) || this.body.is_end_stream();
        if ended && this.seat.stage() == Stage::Body {
            this.seat.set(Stage::Handling);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
