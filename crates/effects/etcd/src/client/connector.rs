//! Opens TCP connections to etcd and records this process's ends of them, so that an agent can tell its own short connections from those
//! of clients.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use http::Uri;
use hyper_util::client::legacy::connect::{HttpConnector, HttpInfo};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tower_service::Service;

/// More are not remembered; the newest are.
const OPENED_MAX: usize = 4096;

/// Own ends of the connections that this process opened, the newest last. One list for the process, as the kernel has one table of
/// connections.
static OPENED: Mutex<VecDeque<(SocketAddr, Instant)>> = Mutex::new(VecDeque::new());

/// Own ends of the connections to etcd that this process opened within the last `limit`.
pub fn recently_opened(limit: Duration) -> Vec<SocketAddr> {
    let opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    opened.iter().filter(|(_, at)| at.elapsed() <= limit).map(|(end, _)| *end).collect()
}

/// Records the connection of another HTTP client of this process to etcd, from the extensions of its response.
pub fn record_opened(extensions: &http::Extensions) {
    if let Some(info) = extensions.get::<HttpInfo>() {
        record(info.local_addr());
    }
}

fn record(end: SocketAddr) {
    let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    if opened.len() >= OPENED_MAX {
        opened.pop_front();
    }
    let end = SocketAddr::new(end.ip().to_canonical(), end.port());
    opened.push_back((end, Instant::now()));
}

/// Connects as tonic does by itself, and records the connection.
#[derive(Debug, Clone)]
pub(super) struct Connector {
    http: HttpConnector,
}

impl Connector {
    pub(super) fn new(connect_timeout: Duration) -> Connector {
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        http.set_nodelay(true);
        http.set_connect_timeout(Some(connect_timeout));
        Connector { http }
    }
}

impl Service<Uri> for Connector {
    type Response = TokioIo<TcpStream>;
    type Error = <HttpConnector as Service<Uri>>::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.http.poll_ready(context)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let connecting = self.http.call(uri);
        Box::pin(async move {
            let stream = connecting.await?;
            if let Ok(end) = stream.inner().local_addr() {
                record(end);
            }
            Ok(stream)
        })
    }
}
