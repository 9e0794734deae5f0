//! What is answered over HTTP: routes, codes and bodies are the original's to the letter.
//!
//! **Rule:** from elsewhere than this machine, everything but health and metrics needs a certificate, unless the operator
//! said otherwise. A method that only looks changes nothing.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE, STRICT_TRANSPORT_SECURITY};
use axum::http::{HeaderValue, Method, StatusCode};
use axum::response::Response;
use quorate_backup::store::Store;
use quorate_etcd_formats::verify::Mode;
use quorate_faults::{Code, Fault, Result};
use serde::Serialize;
use tokio::sync::oneshot;
use tracing::warn;

use super::backups::{Answer, Demand};
use super::settings::Elsewhere;
use super::snapshots::{self, Snapshot};
use super::{Shared, in_words, unblock};
use crate::gardener::flags::parse_bool;
use crate::serve::Peer;

const TEXT: &str = "text/plain; charset=utf-8";
const METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

pub(super) fn router(shared: Arc<Shared>) -> Router {
    Router::new().fallback(handle).with_state(shared)
}

async fn handle(State(shared): State<Arc<Shared>>, ConnectInfo(peer): ConnectInfo<Peer>, request: Request) -> Response {
    let path = request.uri().path().to_owned();
    let query = request.uri().query().unwrap_or_default();
    let method = request.method();
    let acts = method == Method::GET || method == Method::POST;
    if !acts && method != Method::HEAD {
        return answer(StatusCode::METHOD_NOT_ALLOWED, "");
    }
    if !may_ask(&shared.settings.elsewhere, &peer, &path) {
        warn!(from = %peer.from, path, "somebody without a certificate was turned away");
        return answer(StatusCode::FORBIDDEN, "");
    }
    let ip = peer.from.ip().to_canonical();
    let mut response = match path.as_str() {
        "/initialization/start" => {
            if acts {
                shared.start_initialization(ip, mode(query));
            }
            answer(StatusCode::OK, "")
        }
        "/initialization/status" => answer(StatusCode::OK, shared.read_status(ip, acts).word()),
        "/config" => return config(&shared).await,
        "/snapshot/full" if acts => full(&shared, query).await,
        "/snapshot/delta" if acts => on_demand(&shared, |answer| Demand::Delta { answer }).await,
        "/snapshot/latest" => latest(&shared).await,
        "/snapshot/full" | "/snapshot/delta" => answer(StatusCode::OK, ""),
        "/healthz" => health(&shared),
        "/metrics" => return typed(StatusCode::OK, METRICS, shared.metrics.text()),
        _ => answer(StatusCode::NOT_FOUND, "404 page not found\n"),
    };
    if shared.settings.tls.is_some() {
        let headers = response.headers_mut();
        headers.insert(STRICT_TRANSPORT_SECURITY, HeaderValue::from_static("max-age=31536000"));
        headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static("default-src 'self'"));
    }
    response
}

fn may_ask(elsewhere: &Elsewhere, peer: &Peer, path: &str) -> bool {
    if peer.is_loopback() || peer.certified || matches!(path, "/healthz" | "/metrics") {
        return true;
    }
    match elsewhere {
        Elsewhere::Anybody => true,
        Elsewhere::Certified(_) | Elsewhere::Nobody => false,
    }
}

/// The value of a key of the query.
fn value<'q>(query: &'q str, key: &str) -> Option<&'q str> {
    query.split('&').find_map(|part| part.strip_prefix(key)?.strip_prefix('='))
}

fn mode(query: &str) -> Mode {
    match value(query, "mode") {
        Some("sanity") => Mode::Sanity,
        Some(_) | None => Mode::Full,
    }
}

async fn config(shared: &Shared) -> Response {
    match shared.config().await {
        Ok(text) => answer(StatusCode::OK, text),
        Err(fault) => {
            warn!(code = %fault.code(), "{}", in_words(&fault));
            answer(StatusCode::INTERNAL_SERVER_ERROR, "")
        }
    }
}

fn health(shared: &Shared) -> Response {
    match shared.health() {
        true => answer(StatusCode::OK, "{\"health\":true}"),
        false => answer(StatusCode::SERVICE_UNAVAILABLE, "{\"health\":false}"),
    }
}

async fn full(shared: &Shared, query: &str) -> Response {
    let is_final = match value(query, "final").filter(|text| !text.is_empty()).map(parse_bool) {
        None => false,
        Some(Some(is_final)) => is_final,
        Some(None) => return answer(StatusCode::BAD_REQUEST, ""),
    };
    on_demand(shared, |answer| Demand::Full { is_final, answer }).await
}

async fn on_demand(shared: &Shared, demand: impl FnOnce(Answer) -> Demand) -> Response {
    if shared.settings.store.is_none() {
        return answer(StatusCode::METHOD_NOT_ALLOWED, "");
    }
    let (sender, outcome) = oneshot::channel();
    let sent = shared.demands.send(demand(sender)).await;
    let outcome = match sent {
        Ok(()) => outcome.await.unwrap_or_else(|_| Err(ended())),
        Err(_) => Err(ended()),
    };
    said(outcome)
}

fn ended() -> Fault {
    Fault::new(Code::CutShort, "the sidecar is ending")
}

fn said(outcome: Result<Option<Snapshot>>) -> Response {
    match outcome {
        Ok(snapshot) => json(&snapshot),
        Err(_) => answer(StatusCode::INTERNAL_SERVER_ERROR, ""),
    }
}

async fn latest(shared: &Shared) -> Response {
    let Some(store) = &shared.settings.store else { return answer(StatusCode::METHOD_NOT_ALLOWED, "") };
    let (url, root) = (store.url.clone(), store.root.clone());
    let listed = unblock(move || Ok(snapshots::latest(&snapshots::names(&Store::open(&url, false)?)?, &root)));
    match listed.await {
        Ok(latest) => json(&latest),
        Err(fault) => {
            warn!(code = %fault.code(), "{}", in_words(&fault));
            answer(StatusCode::INTERNAL_SERVER_ERROR, "")
        }
    }
}

fn json(what: &impl Serialize) -> Response {
    match serde_json::to_string(what) {
        Ok(text) => answer(StatusCode::OK, text),
        Err(_) => answer(StatusCode::INTERNAL_SERVER_ERROR, ""),
    }
}

fn answer(code: StatusCode, body: impl Into<String>) -> Response {
    typed(code, TEXT, body)
}

fn typed(code: StatusCode, kind: &'static str, body: impl Into<String>) -> Response {
    let body = body.into();
    let empty = body.is_empty();
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = code;
    if !empty {
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn from_elsewhere_a_certificate_is_needed_unless_said_otherwise() {
        let peer = |from: &str, certified| Peer::new(from.parse().unwrap(), certified);
        let (here, away, known) = (peer("127.0.0.1:1", false), peer("10.0.0.1:1", false), peer("10.0.0.1:1", true));
        let certified = Elsewhere::Certified(None);
        for path in ["/initialization/start", "/initialization/status", "/config", "/snapshot/full", "/snapshot/latest"]
        {
            assert!(may_ask(&certified, &here, path) && may_ask(&certified, &known, path));
            assert!(!may_ask(&certified, &away, path), "{path}");
            assert!(may_ask(&Elsewhere::Anybody, &away, path));
        }
        assert!(may_ask(&certified, &away, "/healthz") && may_ask(&certified, &away, "/metrics"));
    }

    #[test]
    fn whatever_is_not_sanity_is_full() {
        assert_eq!(mode("mode=sanity"), Mode::Sanity);
        for query in ["", "mode=full", "mode=Sanity", "mode", "amode=sanity", "mode=sanity2"] {
            assert_eq!(mode(query), Mode::Full, "{query}");
        }
    }
}
