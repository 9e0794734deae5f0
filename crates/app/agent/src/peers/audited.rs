//! Writes every order that another machine gives this node to the audit log, before it is carried out, and its result afterwards.
//!
//! **Invariant:** an order whose record is not on disk is refused ([`Code::AuditFailed`]) and changes nothing. Who gave it comes from the
//! certificate of the connection, never from the request. What this agent does by itself, to start or recover its own member, is
//! no order, and no full disk keeps it from that.

use std::path::PathBuf;
use std::sync::Arc;

use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{ConnectInfo, Request};
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use quorate_faults::{Code, Fault};
use quorate_host::audit::{self, Entry, Link, Remote, Who};
use quorate_pki::identity_of;
use quorate_plan::ledger::IntentKind;
use quorate_plan::spec::for_member;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};
use tracing::{error, warn};

use super::messages::{FileRequest, IntentRequest};
use super::server::{Api, No, refuse};
use super::{BODY_MAX, TRIAL};
use crate::certificates::{self, CertificatesRequest};
use crate::peering::{self, ApproveRequest, CountersignRequest, DetachRequest, InviteRequest, RoleRequest};
use crate::recover::{self, Order, Progress};
use crate::serve::Peer;
use crate::trust::{self, TrustRequest};
use crate::turn::Node;

/// What is sent with a body and changes nothing, or only what this node remembers of the sender. The issuing keys have their record
/// in the handler, once it is decided that the caller gets them: agents without keys ask again and again.
const NO_ORDERS: [&str; 6] = ["/v1/started", TRIAL, recover::REMAINS, recover::PROBE, peering::VETO, peering::KEYS];
/// A record has so many words at most, each so long at most.
const WORDS_MAX: usize = 64;
const WORD_CHARS_MAX: usize = 256;

/// The code of a refusal, for the record of its result.
#[derive(Debug, Clone)]
pub(super) struct RefusedWith(pub(super) String);

/// Passes a request on. An order is recorded before and after.
pub(super) async fn carry_out(api: &Api, request: Request, next: Next) -> Response {
    if request.method().is_safe() || NO_ORDERS.contains(&request.uri().path()) {
        return next.run(request).await;
    }
    let (parts, body) = request.into_parts();
    let Ok(body) = to_bytes(body, BODY_MAX).await else {
        return refuse(StatusCode::BAD_REQUEST, Code::PeerRequest, "the request cannot be read", None).into_response();
    };
    let peer = parts.extensions.get::<ConnectInfo<Peer>>().map(|info| info.0.clone());
    let recorded = match words_of(api, parts.uri.path(), &body) {
        Some(words) => match record(&api.node, peer.as_ref(), words).await {
            Ok(link) => Some(link),
            Err(refusal) => return refusal.into_response(),
        },
        None => None,
    };
    let response = next.run(Request::from_parts(parts, Body::from(body))).await;
    if let Some(link) = recorded {
        let mut words = vec![response.status().as_u16().to_string()];
        words.extend(response.extensions().get::<RefusedWith>().map(|RefusedWith(code)| code.clone()));
        record_result(&api.node, &link, words).await;
    }
    response
}

/// Records an order that is about to be carried out; if that fails, it must not be.
pub(super) async fn record(node: &Arc<Node>, peer: Option<&Peer>, words: Vec<String>) -> Result<Link, No> {
    record_order(node, peer, words).await.map_err(|fault| {
        refuse(StatusCode::SERVICE_UNAVAILABLE, fault.code(), &format!("{fault}: the order was refused"), None)
    })
}

/// The same for other listeners.
pub(crate) async fn record_order(node: &Arc<Node>, peer: Option<&Peer>, words: Vec<String>) -> Result<Link, Fault> {
    let (node, peer) = (Arc::clone(node), peer.cloned());
    let written = tokio::task::spawn_blocking(move || {
        let entry = Entry { remote: Some(remote_of(&node, peer.as_ref())), ..entry(&node, "order", words) };
        audit::record(node.state_path(), &entry)
    });
    let written =
        written.await.unwrap_or_else(|_| Err(Fault::new(Code::Internal, "cannot record an order: the task failed")));
    written.inspect_err(|fault| {
        error!(code = %fault.code(), cause = ?std::error::Error::source(fault), "refused an order that could not be recorded: {fault}");
    })
}

/// Records how an order ended. The order is on record, so that a failure is only logged.
async fn record_result(node: &Arc<Node>, order: &Link, words: Vec<String>) {
    let (node, seq) = (Arc::clone(node), order.seq);
    let written = tokio::task::spawn_blocking(move || {
        audit::record(node.state_path(), &Entry { result_of: Some(seq), ..entry(&node, "result", words) })
    });
    if let Ok(Err(fault)) = written.await {
        warn!(code = %fault.code(), order = seq, "cannot record the result of an order: {fault}");
    }
}

fn entry(node: &Node, command: &str, words: Vec<String>) -> Entry {
    let cut = |word: String| word.chars().take(WORD_CHARS_MAX).collect();
    Entry {
        at: jiff::Timestamp::now().to_string(),
        command: command.to_owned(),
        words: words.into_iter().take(WORDS_MAX).map(cut).collect(),
        member: node.name().to_owned(),
        process: None,
        target_pid: None,
        who: Who::us(None),
        remote: None,
        result_of: None,
    }
}

/// Where a request came from, as its connection shows it. Reads a file: not for async code.
fn remote_of(node: &Node, peer: Option<&Peer>) -> Remote {
    let Some(peer) = peer else { return Remote { address: "unknown".to_owned(), ..Remote::default() } };
    let address = std::net::SocketAddr::new(peer.from.ip().to_canonical(), peer.from.port()).to_string();
    let files = node.spec.tls_files().map(|tls| tls.agent.as_ref().unwrap_or(&tls.peer));
    let (Some(certificate), Some(files)) = (peer.certificate(), files) else {
        return Remote { address, ..Remote::default() };
    };
    let authorities = PathBuf::from(for_member(&files.trusted_ca_file, node.name()));
    let shown = identity_of(certificate, &node.spec.token, &authorities);
    Remote { address, name: shown.name, subject: shown.subject, serial: shown.serial, issuer: shown.issuer }
}

/// Who sent a request, for log lines.
pub(super) fn caller(api: &Api, peer: &Peer) -> String {
    match peer.node(&api.node.spec.token) {
        Some(name) => format!("`{}` ({})", name.escape_debug(), peer.from.ip().to_canonical()),
        None => format!("a caller without a node's certificate ({})", peer.from.ip().to_canonical()),
    }
}

/// What is ordered, without what may be secret; none: nothing is, or the body is none that the handler takes.
fn words_of(api: &Api, path: &str, body: &Bytes) -> Option<Vec<String>> {
    let name = path.trim_start_matches("/v1/");
    let words = match path {
        "/v1/file" => read(body).map(|FileRequest { text, replaces, order, .. }| {
            let signed = order.map(|signed| format!("signed serial {}", signed.order.serial));
            [hash(&text), format!("replaces {replaces}")].into_iter().chain(signed).collect()
        }),
        "/v1/intent" => read(body).map(|IntentRequest { intent, why }| {
            let intent = match intent {
                Some(IntentKind::Leave) => "leave",
                Some(IntentKind::Teardown) => "teardown",
                None => "stay",
            };
            vec![intent.to_owned(), why]
        }),
        certificates::PATH => {
            let can_issue = certificates::folder(&api.node).is_ok_and(|dir| certificates::can_issue(&dir));
            let request: CertificatesRequest = read(body).filter(|_| can_issue)?;
            Some(vec![hash(&request.requests), format!("days {}", request.days)])
        }
        trust::PATH => words_of_trust(&read(body)?),
        recover::RECOVER => words_of_recovery(api, &read(body)?),
        peering::INVITE => read(body).map(words_of_invitation),
        peering::APPROVE => read(body).map(|ApproveRequest { name, fingerprint }| vec![name, fingerprint]),
        peering::DETACH => read(body)
            .map(|DetachRequest { name, force }| [name].into_iter().chain(force.then(|| "force".to_owned())).collect()),
        peering::COUNTERSIGN => read(body).map(|CountersignRequest { name }| vec![name]),
        peering::ROLE => read(body).map(|RoleRequest { name, role }| vec![name, role.to_string()]),
        // A route that is added later is recorded by its name.
        _ => Some(Vec::new()),
    };
    words.map(|words| [name.to_owned()].into_iter().chain(words).collect())
}

fn words_of_invitation(request: InviteRequest) -> Vec<String> {
    let InviteRequest { role, ttl_ms, address, for_name, for_address, short, secret } = request;
    let mut words = vec![role.to_string(), format!("ttl-ms {ttl_ms}")];
    words.extend(address.map(|address| format!("address {address}")));
    words.extend(for_name.map(|name| format!("for-name {name}")));
    words.extend(for_address.map(|address| format!("for-address {address}")));
    words.extend(short.then(|| "short".to_owned()));
    words.extend((secret && role.is_server()).then(|| "with a second secret".to_owned()));
    words
}

/// What changes; a request may only query.
fn words_of_trust(request: &TrustRequest) -> Option<Vec<String>> {
    let TrustRequest { order, certificates, lists, operators, .. } = request;
    let mut words = Vec::new();
    if let Some(order) = order {
        words.push(format!("order {}", order.number));
        words.extend(order.trusts().iter().map(|(kind, prints)| format!("{kind} {}", prints.join(" "))));
    }
    words.extend(certificates.as_ref().map(|text| format!("certificates {}", hash(text))));
    for (kind, print) in lists.iter().flat_map(|lists| lists.prints()) {
        words.push(format!("revocations {kind} {print}"));
    }
    words.extend(operators.as_ref().map(|list| format!("revocations operators {}", hash(list))));
    (!words.is_empty()).then_some(words)
}

/// The same order is sent again to learn how far it is; that is recorded only where it begins once more.
fn words_of_recovery(api: &Api, order: &Order) -> Option<Vec<String>> {
    let known = recover::observe_progress(api.node.state_path()).ok().flatten();
    let goes_on = |known: &recover::RecoveryNow| !matches!(known.progress, Progress::Failed { .. });
    if known.is_some_and(|known| known.order == *order && goes_on(&known)) {
        return None;
    }
    let mut words = vec![format!("generation {}", order.generation), format!("nonce {}", order.nonce)];
    words.extend(serde_json::to_string(&order.role));
    words.extend(order.rejoin.iter().map(|name| format!("rejoin {name}")));
    words.extend(order.fenced.iter().map(|name| format!("fenced {name}")));
    words.extend(order.passed_over.iter().map(|name| format!("passed-over {name}")));
    words.extend(order.without_store.then(|| "without-store".to_owned()));
    Some(words)
}

fn read<T: DeserializeOwned>(body: &Bytes) -> Option<T> {
    serde_json::from_slice(body).ok()
}

fn hash(text: &str) -> String {
    let hex: String = Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256 {hex}")
}
