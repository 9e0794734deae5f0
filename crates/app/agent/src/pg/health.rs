//! What a node says over HTTP: whether it takes writes, whether it takes reads, and how it is.
//!
//! **Invariant:** `/writer` is answered with 200 only while the lease surely lives; nothing is changed by asking. Strangers
//! learn these two words and nothing else: how the node is, is for this machine and for who shows a certificate of a node.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::{ConnectInfo, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use quorate_faults::Fault;
use tokio_util::sync::CancellationToken;

use super::here::Here;
use super::status::Board;
use crate::serve::{Bound, Peer, TlsFiles, bind_either};

/// Takes the port. Proxies ask in clear text, other nodes and operators with a certificate.
pub(super) async fn bind(here: &Here) -> Result<Bound, Fault> {
    let (address, port) = (&here.node.address, here.node.health_port);
    let at = match address.parse::<std::net::IpAddr>() {
        Ok(ip) if ip.is_loopback() => SocketAddr::new(ip, port),
        // The name of a host may lead elsewhere from here; the port is what counts.
        Ok(_) | Err(_) => SocketAddr::from(([0, 0, 0, 0], port)),
    };
    let files = here.files()?;
    bind_either(at, TlsFiles { cert: files.cert, key: files.key, client_ca: Some(files.ca), operators: None }).await
}

/// Answers until it is told to stop; `more`: what else is answered here.
pub(super) async fn serve(bound: Bound, board: Arc<Board>, more: Router, stop: CancellationToken) {
    let router = Router::new()
        .route("/writer", get(writer).options(writer))
        .route("/reader", get(reader).options(reader))
        .route("/v1/pg", get(status))
        .with_state(board)
        .merge(more);
    // It ends with the node.
    let _ = bound.serve(router, stop).await;
}

fn yes_or_no(yes: bool, what: &'static str) -> Response {
    match yes {
        true => (StatusCode::OK, what).into_response(),
        false => (StatusCode::SERVICE_UNAVAILABLE, "no\n").into_response(),
    }
}

async fn writer(State(board): State<Arc<Board>>) -> Response {
    yes_or_no(board.takes_writes(), "writer\n")
}

async fn reader(State(board): State<Arc<Board>>) -> Response {
    yes_or_no(board.takes_reads(), "reader\n")
}

async fn status(State(board): State<Arc<Board>>, ConnectInfo(peer): ConnectInfo<Peer>) -> Response {
    match peer.certified || peer.is_here() {
        true => axum::Json(board.status()).into_response(),
        false => StatusCode::FORBIDDEN.into_response(),
    }
}
