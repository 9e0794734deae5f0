//! The door: where those who were invited knock, and nobody else is told anything. Open only while someone is invited.
//!
//! **Invariant:** without a token that holds, a request learns that it holds none, and changes nothing but the count of its
//! mistakes. With one, all objections are told at once, and the first change is the reservation on disk. Nobody becomes a server with
//! a token alone.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::rejection::JsonRejection;
use axum::extract::{ConnectInfo, DefaultBodyLimit, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use quorate_etcd::aside::ensure_file;
use quorate_etcd_formats::hex::hex;
use quorate_faults::{Code, Fault};
use quorate_host::durable::RealDisk;
use quorate_pki::{Certificate, read_certificates};
use quorate_plan::certificates::pem;
use quorate_plan::peering::{
    API_VERSIONS, Admission, ApprovalSecret, Invitation, Kind, Newcomer, Operation, Outcome, Role, Side, Step,
    TOKEN_BYTES, Turned, objections_to, token_of, with_member,
};
use quorate_plan::spec::{TlsFiles, for_member};
use sha2::{Digest, Sha256};
use tracing::{info, warn};

use super::approve::print_of;
use super::facts::declared_state;
use super::keep::begin;
use super::messages::{Approval, JoinAsk, JoinTerms, Turn};
use super::pinned::fill_random;
use super::short_code::{self, CHALLENGE, PROVE};
use super::store::lock;
use super::{DOOR_PORT, client, countersign, veto};
use crate::peers::{Api, record_order};
use crate::serve::{self, Address, Bound, Peer};
use crate::turn::{Node, now_ms};
use crate::{certificates, cluster_file};

/// Where whoever was invited joins.
pub(super) const JOIN: &str = "/v1/join";
/// Where it asks whether it was approved.
pub(super) const APPROVAL: &str = "/v1/join/approval";
/// Requests for four certificates are a few kilobytes.
const BODY_MAX: usize = 64 << 10;
/// The certificate of the agent with that of its authority, in the node's folder.
pub(super) const CHAIN: &str = "door.crt";
/// A request may take so long: the store is asked, and keys are opened.
const REQUEST_LIMIT: Duration = Duration::from_secs(35);

/// The agents' authority as it issues now, and the chain that the door shows.
pub(super) fn authority(node: &Node) -> Result<(Certificate, Certificate), Fault> {
    let missing = |why: &str| {
        Fault::new(Code::CaMissing, format!("this node cannot invite: {why}"))
            .hint("servers get the issuing keys from each other once they vote; try again, or invite from another one")
    };
    let Some(tls) = node.spec.tls_files() else { return Err(missing("the cluster is in the clear")) };
    if !quorate_pki::has_issuing_keys(&certificates::folder(node)?) {
        return Err(missing("there are no issuing keys here"));
    }
    let TlsFiles { cert_file, trusted_ca_file, .. } = tls.agent.as_ref().unwrap_or(&tls.peer);
    let path = |text: &str| std::path::PathBuf::from(for_member(text, node.name()));
    let leaf = read_certificates(&path(cert_file))?.into_iter().next();
    let leaf = leaf.ok_or_else(|| missing("its own certificate is missing"))?;
    let issuer = read_certificates(&path(trusted_ca_file))?.into_iter().find(|one| leaf.is_signed_by(one));
    let issuer = issuer.ok_or_else(|| missing("no authority here signed its own certificate"))?;
    Ok((leaf, issuer))
}

/// Takes the port.
pub(super) async fn open(api: &Api) -> Result<Bound, Fault> {
    let (leaf, issuer) = authority(&api.node)?;
    let chain = api.peering.dir().join(CHAIN);
    ensure_file(&RealDisk, &chain, format!("{}{}", pem(&leaf.der), pem(&issuer.der)).as_bytes())?;
    let tls = api.node.spec.tls_files().map(|tls| {
        let files = tls.agent.as_ref().unwrap_or(&tls.peer);
        let key = std::path::PathBuf::from(for_member(&files.key_file, api.node.name()));
        serve::TlsFiles { cert: chain, key, client_ca: None, operators: None }
    });
    serve::bind(&Address::parse(&format!("https://0.0.0.0:{DOOR_PORT}"), tls)?.of_both_kinds()).await
}

/// What it answers.
pub(super) fn router(api: &Api) -> Router {
    let router = Router::new().route(JOIN, post(join)).route(APPROVAL, post(approval));
    let router = router.route(CHALLENGE, post(short_code::challenge)).route(PROVE, post(short_code::prove));
    let router = router.fallback(|| async { StatusCode::NOT_FOUND });
    router.layer(DefaultBodyLimit::max(BODY_MAX)).with_state(api.clone())
}

/// No, and how it is said.
pub(super) struct Away(pub(super) StatusCode, pub(super) Turn);

impl IntoResponse for Away {
    fn into_response(self) -> Response {
        (self.0, Json(self.1)).into_response()
    }
}

pub(super) fn away(status: StatusCode, code: Code, why: &str) -> Away {
    Away(status, Turn { code: code.as_str().to_owned(), why: why.to_owned(), reasons: Vec::new() })
}

impl From<Fault> for Away {
    fn from(fault: Fault) -> Away {
        // Causes may name files of ours; who is invited learns the attempt.
        warn!(code = %fault.code(), "someone who was invited could not join: {fault}");
        away(StatusCode::CONFLICT, fault.code(), &fault.to_string())
    }
}

async fn join(
    State(api): State<Api>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    body: Result<Json<JoinAsk>, JsonRejection>,
) -> Result<Json<JoinTerms>, Away> {
    let (asking, invitation) = known(&api, peer, body)?;
    let admitted = admit(&api, &asking, &invitation);
    match tokio::time::timeout(REQUEST_LIMIT, admitted).await {
        Ok(answer) => answer.map(Json),
        Err(_) => Err(away(StatusCode::REQUEST_TIMEOUT, Code::PeerRequest, "it took too long; try again")),
    }
}

/// Whether one that waits was approved.
async fn approval(
    State(api): State<Api>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    body: Result<Json<JoinAsk>, JsonRejection>,
) -> Result<Json<Approval>, Away> {
    let (asking, invitation) = known(&api, peer, body)?;
    let awaits = admission(&api, &asking, &invitation).await? == Admission::Awaits;
    if awaits {
        wait(&api, &asking, &invitation);
    }
    Ok(Json(Approval { awaits }))
}

/// Somebody who holds a token, from an address that is listened to, and its invitation.
fn known(api: &Api, peer: Peer, body: Result<Json<JoinAsk>, JsonRejection>) -> Result<(Asking, Invitation), Away> {
    let from = peer.from.ip().to_canonical().to_string();
    let now = now_ms();
    if !lock(&api.peering.strikes).is_heard(&from, now) {
        return Err(away(StatusCode::TOO_MANY_REQUESTS, Code::JoinTooOften, "too many wrong tokens from this address"));
    }
    let asked = body.map(|Json(asked)| asked);
    let token = asked.as_ref().ok().and_then(|asked| token_of(&asked.token)).unwrap_or_default();
    let claim = asked.as_ref().ok().map(|asked| hex(&Sha256::digest(asked.claim.as_bytes())));
    let invitations = api.peering.kept().invitations;
    let invitation = match invitations.find(&token, claim.as_deref(), now) {
        Ok(invitation) => invitation.clone(),
        Err(turned) => {
            lock(&api.peering.strikes).note(&from, now);
            info!(from, "turned someone away at the door: {turned:?}");
            let why = match turned {
                Turned::Unknown => "this token lets nobody in",
                Turned::Expired => "the time of this token is over",
                Turned::Used => "this token was used by another node",
            };
            return Err(away(StatusCode::FORBIDDEN, Code::JoinTurnedAway, why));
        }
    };
    // Only who holds a token learns what was wrong with its request.
    let asked = asked.map_err(|rejection| away(StatusCode::BAD_REQUEST, Code::PeerRequest, &rejection.body_text()))?;
    let claim = claim.unwrap_or_default();
    Ok((Asking { asked, token, claim, at_ms: now, peer }, invitation))
}

/// Somebody who holds a token, and when it came: clocks are compared as of then, however long the answer takes.
struct Asking {
    asked: JoinAsk,
    token: [u8; TOKEN_BYTES],
    claim: String,
    at_ms: u64,
    peer: Peer,
}

/// Whether it is the one that was invited, and may become what it was invited as.
async fn admission(api: &Api, asking: &Asking, invitation: &Invitation) -> Result<Admission, Away> {
    let Asking { asked, claim, peer, .. } = asking;
    if asked.role != invitation.role {
        return Err(away(StatusCode::CONFLICT, Code::JoinTurnedAway, "the invitation is for another role"));
    }
    if let Some(mismatch) = invitation.mismatch(&asked.newcomer, peer.from.ip()) {
        return Err(refuse(api, asking, Code::JoinOtherNode, &mismatch.to_string()).await);
    }
    let secret = asked.secret.as_deref().map(ApprovalSecret::read).transpose();
    let admission = secret.map(|secret| invitation.admission(claim, &print_of(api, asked), secret.as_ref()));
    match admission {
        Ok(Admission::WrongSecret) | Err(_) => {
            Err(refuse(api, asking, Code::JoinSecretWrong, "the second secret is not the one of this code").await)
        }
        Ok(admission) => Ok(admission),
    }
}

/// Refuses somebody who holds a token and is not let in: counted, and on record.
async fn refuse(api: &Api, asking: &Asking, code: Code, why: &str) -> Away {
    let Asking { asked, peer, at_ms, .. } = asking;
    let from = peer.from.ip().to_canonical().to_string();
    lock(&api.peering.strikes).note(&from, *at_ms);
    info!(from, code = %code, "refused a node with a join code: {why}");
    let Newcomer { name, address, .. } = &asked.newcomer;
    let words = ["join-refused", name, &asked.role.to_string(), address, code.as_str()].map(str::to_owned);
    // Without a record it is refused all the same.
    let _ = record_order(&api.node, Some(peer), words.to_vec()).await;
    away(StatusCode::FORBIDDEN, code, why)
}

/// It is shown to operators, who may approve it.
fn wait(api: &Api, asking: &Asking, invitation: &Invitation) {
    let from = asking.peer.from.ip().to_canonical().to_string();
    let print = print_of(api, &asking.asked);
    lock(&api.peering.waiting).note(invitation, &asking.asked, print, from, asking.at_ms);
}

async fn admit(api: &Api, asking: &Asking, invitation: &Invitation) -> Result<JoinTerms, Away> {
    let Asking { asked, token, claim, at_ms, peer } = asking;
    let at_ms = *at_ms;
    let _one = api.peering.deciding.lock().await;
    let name = &asked.newcomer.name;
    let awaits = admission(api, asking, invitation).await? == Admission::Awaits;
    // Who did not hear the answer asks again, and gets it again.
    let kept = api.peering.kept();
    let begun = kept
        .operation
        .filter(|operation| invitation.used_by.as_ref() == Some(claim) && operation.kind == kind_of(asked));
    if let Some(operation) = begun {
        if matches!(operation.step, Step::Undoing | Step::Done(Outcome::Undone | Outcome::Detached)) {
            let why = "the node did not come up in its time, and was taken out again: ask for another code";
            return Err(away(StatusCode::CONFLICT, Code::JoinUndone, why));
        }
        if asked.requests.is_some() && countersign::is_wanted(api, &operation) {
            return Err(awaits_approval(name));
        }
        return granted(api, asked, &operation.text, at_ms).await;
    }
    client::read_clients(api).await?;
    let clients = api.peering.clients();
    if invitation.used_by.as_ref() == Some(claim) && clients.contains(&asked.newcomer) {
        return granted(api, asked, &api.node.text, at_ms).await;
    }
    // Who was let in and has gone since needs another one.
    if invitation.used_by.is_some() {
        return Err(away(StatusCode::FORBIDDEN, Code::JoinTurnedAway, "this token was used before"));
    }
    let side = here(&api.node, api, name, at_ms).await;
    let mut found = objections_to(asked.role, &side, &api.node.spec, &asked.side, &asked.newcomer);
    found.extend(meets(&clients, &asked.newcomer));
    if awaits && found.is_empty() {
        wait(api, asking, invitation);
    }
    if asked.requests.is_none() {
        return Ok(JoinTerms { side, file: api.node.text.to_string(), certificates: None, objections: found, awaits });
    }
    if !found.is_empty() {
        let code = Code::JoinObjections.as_str().to_owned();
        let turn = Turn { code, why: format!("`{name}` cannot join"), reasons: found };
        return Err(Away(StatusCode::CONFLICT, turn));
    }
    if awaits {
        let (on, print) = (api.node.name(), print_of(api, asked));
        let why = format!("`{name}` waits for `quorate peer approve {name}` on `{on}` (fingerprint {print})");
        return Err(away(StatusCode::CONFLICT, Code::JoinAwaitsApproval, &why));
    }
    let operation = reservation(api, asked)?;
    let words = ["enroll".to_owned(), name.clone(), asked.role.to_string(), asked.newcomer.address.clone()];
    record_order(&api.node, Some(peer), words.to_vec()).await?;
    let terms = match countersign::is_wanted(api, &operation) {
        true => None,
        false => Some(granted(api, asked, &operation.text, at_ms).await?),
    };
    begin(api, operation, Some((token.as_slice(), claim.as_str()))).await?;
    info!(node = name, "reserved a place for a newcomer");
    terms.ok_or_else(|| awaits_approval(name))
}

/// No certificate is signed before a second server has approved.
fn awaits_approval(name: &str) -> Away {
    let why = format!("`{name}` has a place once a second server approves: {}", countersign::wanted(name));
    away(StatusCode::CONFLICT, Code::ApprovalAwaited, &why)
}

fn kind_of(asked: &JoinAsk) -> Kind {
    match asked.role {
        Role::Client => Kind::Enrol(asked.newcomer.clone()),
        _ => Kind::Join(asked.newcomer.clone()),
    }
}

/// Clients are in no file, and their names and addresses are taken all the same.
fn meets(clients: &[Newcomer], newcomer: &Newcomer) -> Vec<String> {
    let taken = |what: &str, text: &str| format!("the {what} `{}` is that of a client", text.escape_debug());
    let name = clients.iter().any(|client| client.name == newcomer.name).then(|| taken("name", &newcomer.name));
    let at = clients.iter().any(|client| client.address == newcomer.address);
    name.into_iter().chain(at.then(|| taken("address", &newcomer.address))).collect()
}

/// This side of the matter.
async fn here(node: &Node, api: &Api, name: &str, at_ms: u64) -> Side {
    Side {
        api: API_VERSIONS,
        etcd: api.shared.status().etcd.and_then(|etcd| etcd.version),
        now_ms: at_ms,
        cluster: Some(node.spec.token.clone()),
        state_dir: declared_state(&node.spec),
        taken: Vec::new(),
        unfit: Vec::new(),
        fsync_ms: Some(0),
        veto: veto(api.peering.dir(), "join", name).await,
    }
}

/// The operation, and the file that it leads to. Nothing is changed yet.
fn reservation(api: &Api, asked: &JoinAsk) -> Result<Operation, Away> {
    let external = api.node.spec.external.is_some();
    let wanted = match asked.role {
        Role::External => external,
        Role::Server | Role::Client => !external,
        Role::Standalone | Role::Detached => false,
    };
    if !wanted {
        let why = format!("nobody is taken in here as {}", asked.role);
        return Err(away(StatusCode::CONFLICT, Code::JoinTurnedAway, &why));
    }
    if let Some(active) = api.peering.kept().active() {
        let why = format!("another change goes on: that of `{}`", active.kind.name());
        return Err(away(StatusCode::CONFLICT, Code::PeersBusy, &why));
    }
    let mut text = with_member(&api.node.text, &asked.newcomer).map_err(|error| error.fault())?;
    cluster_file::parse(text.as_bytes(), "the file with the newcomer")?;
    if asked.role == Role::Client {
        text = api.node.text.to_string();
    }
    let mut random = [0_u8; 8];
    fill_random(&mut random)?;
    let now = now_ms();
    let wait = u64::try_from(api.node.spec.maintenance.join_timeout.as_millis()).unwrap_or(u64::MAX);
    Ok(Operation {
        id: hex(&random),
        kind: kind_of(asked),
        text,
        before: api.node.spec.hash(),
        earlier: Vec::new(),
        taken: false,
        also: Vec::new(),
        at_ms: now,
        deadline_ms: now.saturating_add(wait),
        step: Step::Reserved,
    })
}

/// The file and the certificates.
async fn granted(api: &Api, asked: &JoinAsk, text: &str, at_ms: u64) -> Result<JoinTerms, Away> {
    let side = here(&api.node, api, &asked.newcomer.name, at_ms).await;
    let (file, node) = (text.to_owned(), Arc::clone(&api.node));
    let Some(requests) = asked.requests.clone() else {
        return Ok(JoinTerms { side, file, certificates: None, objections: Vec::new(), awaits: false });
    };
    let declared = with_member(text, &asked.newcomer).map_err(|error| error.fault())?;
    let (text, name) = (declared, asked.newcomer.name.clone());
    // Opening keys takes a while.
    let signed = tokio::task::spawn_blocking(move || {
        let (spec, _) = cluster_file::parse(text.as_bytes(), "the file with the newcomer")?;
        let member = spec.local(Some(&name), "the file with the newcomer")?;
        certificates::sign_for(&certificates::folder(&node)?, &spec, member, &requests)
    });
    let signed = signed.await.map_err(|_| Fault::new(Code::Internal, "signing came to a halt"))??;
    Ok(JoinTerms { side, file, certificates: Some(signed.encode()), objections: Vec::new(), awaits: false })
}
