//! `/readyz` for kubelets and load balancers, and `/stop` for the sidecar.
//!
//! **Rule:** only this machine may ask for the end.

use std::sync::Arc;

use axum::Router;
use axum::extract::{ConnectInfo, State};
use axum::http::StatusCode;
use axum::routing::{any, post};
use quorate_faults::{Code, Result};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::ready::Readiness;
use crate::gardener::etcd_yaml::EtcdYaml;
use crate::serve::{self, Address, Bound, Peer, TlsFiles};

/// Listens on all interfaces, with etcd's own certificate if it has one for clients.
pub(super) async fn bind(port: u16, config: &EtcdYaml) -> Result<Bound> {
    let certificates = config.certificates("client-transport-security");
    let tls = certificates.cert.zip(certificates.key).filter(|_| certificates.ca.is_some());
    let tls = tls.map(|(cert, key)| TlsFiles { cert, key, client_ca: None, operators: None });
    let scheme = if tls.is_some() { "https" } else { "http" };
    let both = serve::bind(&Address::parse(&format!("{scheme}://[::]:{port}"), tls.clone())?).await;
    let bound = match both {
        // A machine without IPv6 has no such address.
        Err(fault) if fault.code() == Code::ListenFailed => {
            serve::bind(&Address::parse(&format!("{scheme}://0.0.0.0:{port}"), tls)?).await?
        }
        other => other?,
    };
    info!(port, scheme, "answering /readyz and /stop");
    Ok(bound)
}

pub(super) fn router(readiness: Arc<Readiness>, stop: CancellationToken) -> Router {
    Router::new().route("/readyz", any(readyz).with_state(readiness)).route("/stop", post(end).with_state(stop))
}

async fn readyz(State(readiness): State<Arc<Readiness>>) -> StatusCode {
    if readiness.is() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
}

async fn end(State(stop): State<CancellationToken>, ConnectInfo(peer): ConnectInfo<Peer>) -> StatusCode {
    if !peer.is_loopback() {
        warn!(from = %peer.from, "somebody elsewhere asked for the end, and was turned away");
        return StatusCode::FORBIDDEN;
    }
    info!("asked to stop through /stop");
    stop.cancel();
    StatusCode::OK
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_this_machine_may_ask_for_the_end() {
        let answer = async |from: &str| {
            let stop = CancellationToken::new();
            let code = end(State(stop.clone()), ConnectInfo(Peer::new(from.parse().unwrap(), false))).await;
            (code.as_u16(), stop.is_cancelled())
        };
        for from in ["127.0.0.1:1", "127.3.2.1:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
            assert_eq!(answer(from).await, (200, true), "{from}");
        }
        for from in ["10.0.0.1:1", "[fe80::1]:1", "[::ffff:10.0.0.1]:1"] {
            assert_eq!(answer(from).await, (403, false), "{from}");
        }
    }
}
