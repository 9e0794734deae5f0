//! What a node says over HTTP: whether it takes writes, whether it takes reads, and how it is.
//!
//! **Invariant:** `/writer` is answered with 200 only while the lease surely lives; nothing is changed by asking.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use quorate_faults::{Code, Fault};
use tokio::net::TcpListener;

use super::status::Board;
use crate::serve::Peer;

/// Takes the port.
pub(super) async fn bind(address: &str, port: u16) -> Result<TcpListener, Fault> {
    let at = match address.parse::<std::net::IpAddr>() {
        Ok(ip) if ip.is_loopback() => SocketAddr::new(ip, port),
        // The name of a host may lead elsewhere from here; the port is what counts.
        Ok(_) | Err(_) => SocketAddr::from(([0, 0, 0, 0], port)),
    };
    TcpListener::bind(at).await.map_err(|error| {
        Fault::new(Code::ListenFailed, format!("cannot listen on `{at}`"))
            .hint(format!("see who does: `ss -ltnp sport = :{port}`"))
            .caused_by(error)
    })
}

/// Answers for ever; `more`: what else is answered here.
pub(super) async fn serve(listener: TcpListener, board: Arc<Board>, more: Router) {
    let router = Router::new()
        .route("/writer", get(writer).options(writer))
        .route("/reader", get(reader).options(reader))
        .route("/v1/pg", get(status))
        .with_state(board)
        .merge(more);
    // It ends with the process.
    let _ = axum::serve(listener, router.into_make_service_with_connect_info::<Peer>()).await;
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

async fn status(State(board): State<Arc<Board>>) -> Response {
    axum::Json(board.status()).into_response()
}
