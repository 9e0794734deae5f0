//! Answers other agents and operators.
//!
//! **Invariant:** what is promised or remembered is on disk before it is told; a request that is not for this very cluster, or
//! of an older generation, or for a change and not from one of its nodes, is answered with nothing but no.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::body::to_bytes;
use axum::extract::rejection::JsonRejection;
use axum::extract::{ConnectInfo, DefaultBodyLimit, Request, State};
use axum::http::{HeaderMap, Method, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use axum::{Json, Router};
use jiff::Timestamp;
use quorate_faults::Code;
use quorate_pki::observe_node;
use quorate_pki::token::AgentToken;
use quorate_plan::certificates::host_of;
use quorate_plan::change::Stage;
use quorate_plan::ledger::{Generation, Ledger, LedgerSeen};
use quorate_plan::peering::Role;
use quorate_plan::peers::record_started;
use quorate_plan::spec::Member;

use super::access::{self, Caller, Standing};
use super::messages::{FoundingAnswer, NodeAnswer, PlanAnswer, Refusal, StartedAnswer, StartedRequest, nonces_of};
use super::plaintext::proves;
use super::{
    BODY_MAX, CLUSTER_HEADER, FROM_HEADER, GENERATION_HEADER, INSTANCE_HEADER, NO_GENERATION, OPERATOR, Peers,
    STATE_HEADER, TRIAL, UNNUMBERED, audited, care, change, file_orders, hand, openapi,
};
use crate::certificates::{self, CertificatesAnswer, CertificatesRequest};
use crate::peering::{self, Peering};
use crate::serve::Peer;
use crate::turn::{Book, CertificateNow, Node, Poll, Shared, Status, Wishes};
use crate::{recover, trust};

/// How long one request may take, from its last header on: a write to the ledger is the slowest.
const REQUEST_LIMIT: Duration = Duration::from_secs(15);

/// What answers are made of.
#[derive(Clone)]
pub(crate) struct Api {
    pub(crate) node: Arc<Node>,
    pub(crate) book: Arc<Book>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) wishes: Wishes,
    pub(crate) peers: Arc<Peers>,
    pub(crate) peering: Arc<Peering>,
    /// What proves that a caller may read the state dir of this agent, once the port is taken.
    pub(crate) local: Arc<OnceLock<AgentToken>>,
}

/// Every route that [`openapi::ROUTES`] describes, and no other.
pub(crate) fn router(api: &Api) -> Router {
    let mut router = Router::new();
    for (method, path, _) in openapi::ROUTES {
        router = match path {
            "/v1/node" => router.route(path, get(node)),
            "/v1/started" => router.route(path, post(started)),
            "/v1/status" => router.route(path, get(status)),
            "/v1/plan" => router.route(path, get(plan)),
            "/v1/file" if method == "get" => router.route(path, get(change::told)),
            "/v1/file" => router.route(path, put(change::file)),
            TRIAL => router.route(path, post(change::trial)),
            "/v1/intent" => router.route(path, post(change::intent)),
            "/v1/hand-over" => router.route(path, post(change::hand_over)),
            "/v1/restart" => router.route(path, post(change::restart)),
            certificates::PATH => router.route(path, post(sign)),
            trust::PATH => router.route(path, post(care::trust)),
            recover::REMAINS => router.route(path, post(care::remains)),
            recover::PROBE => router.route(path, post(care::probe)),
            recover::SPOOL => router.route(path, post(care::spool)),
            recover::RECOVER => router.route(path, post(care::order_recovery)),
            peering::PEERS => router.route(path, get(hand::peers)),
            peering::INVITE => router.route(path, post(hand::invite)),
            peering::APPROVE => router.route(path, post(hand::approve)),
            peering::DETACH => router.route(path, post(hand::detach)),
            peering::KEYS => router.route(path, post(hand::keys)),
            peering::VETO => router.route(path, post(hand::veto)),
            peering::COUNTERSIGN => router.route(path, post(hand::countersign)),
            peering::ROLE => router.route(path, post(hand::role)),
            "/openapi.json" => router.route(path, get(|| async { Json(openapi::document()) })),
            // A test asks for each of them, and finds one that is described and not there.
            _ => router,
        };
    }
    router.layer(DefaultBodyLimit::max(BODY_MAX)).layer(from_fn_with_state(api.clone(), guard)).with_state(api.clone())
}

/// What is asked for.
struct Asked<'a> {
    method: &'a Method,
    path: &'a str,
    /// Not only to look.
    changes: bool,
    headers: &'a HeaderMap,
    peer: Option<&'a Peer>,
    /// The node that the certificate names; certificates of other authorities may name none.
    certified: Option<String>,
    /// Who sends it.
    caller: Caller,
}

/// Lets in who names this cluster and no older generation of it, and to change something only its nodes.
async fn guard(State(api): State<Api>, request: Request, next: Next) -> Response {
    let owner = api.local.get().is_some_and(|token| proves(token, &request));
    let caller = {
        let peer = request.extensions().get::<ConnectInfo<Peer>>().map(|info| info.0.clone());
        access::identify(&api, peer.as_ref(), owner).await
    };
    let mut request = request;
    request.extensions_mut().insert(caller.clone());
    let admitted = {
        let peer = request.extensions().get::<ConnectInfo<Peer>>().map(|info| &info.0);
        let asked = Asked {
            caller,
            method: request.method(),
            path: request.uri().path(),
            changes: !matches!(*request.method(), Method::GET | Method::HEAD),
            headers: request.headers(),
            peer,
            certified: peer.and_then(|peer| peer.node(&api.node.spec.token)),
        };
        admit_ended(&asked).and_then(|()| admit(&api, &asked)).and_then(|()| admit_right(&api, &asked))
    };
    if let Err(refusal) = admitted {
        // What was sent is read first: a connection that is closed on unread bytes may take the answer with it.
        let _ = tokio::time::timeout(REQUEST_LIMIT, to_bytes(request.into_body(), BODY_MAX)).await;
        return refusal.into_response();
    }
    listen_to(&api, request.headers());
    notice_second_machine(&api, &request);
    match tokio::time::timeout(REQUEST_LIMIT, audited::carry_out(&api, request, next)).await {
        Ok(response) => response,
        Err(_) => {
            refuse(StatusCode::REQUEST_TIMEOUT, Code::PeerRequest, "the request took too long", None).into_response()
        }
    }
}

/// How far another node says it is.
fn listen_to(api: &Api, headers: &HeaderMap) {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    if let (Some(from), Some(state)) = (text(FROM_HEADER), text(STATE_HEADER))
        && api.node.spec.member(from).is_some()
        && from != api.node.name()
    {
        api.shared.heard_from(from, state);
    }
}

/// A node that was off for longer than its certificates hold, or whose certificates were signed by a clock that was ahead, may renew
/// them, and do nothing else.
fn admit_ended(asked: &Asked<'_>) -> Result<(), No> {
    let ended = asked.peer.is_some_and(Peer::has_ended);
    match ended && asked.path != certificates::PATH {
        false => Ok(()),
        true => {
            let why = "the certificate has ended or is not valid yet: it may be renewed with, and nothing else";
            Err(refuse(StatusCode::FORBIDDEN, Code::RenewalOnly, why, None))
        }
    }
}

/// An agent on another machine asks in the name of this node.
fn notice_second_machine(api: &Api, request: &Request) {
    let text = |name: &str| request.headers().get(name).and_then(|value| value.to_str().ok());
    let (Some(from), Some(instance)) = (text(FROM_HEADER), text(INSTANCE_HEADER)) else { return };
    if from == api.node.name() && api.peers.instance().is_some_and(|own| own != instance) {
        let peer = request.extensions().get::<ConnectInfo<Peer>>();
        let at =
            peer.map_or_else(|| "an unknown address".to_owned(), |info| info.0.from.ip().to_canonical().to_string());
        api.shared.saw_second_machine(&at);
    }
}

fn admit(api: &Api, asked: &Asked<'_>) -> Result<(), No> {
    let text = |name: &str| asked.headers.get(name).and_then(|value| value.to_str().ok());
    let bad = |why: &str| refuse(StatusCode::BAD_REQUEST, Code::PeerRequest, why, None);
    match text(CLUSTER_HEADER) {
        None => return Err(bad("the request does not name its cluster")),
        Some(cluster) if cluster == api.node.spec.token => {}
        // Which cluster this is, is not told.
        Some(_) => {
            let why = "the request is for another cluster";
            return Err(refuse(StatusCode::CONFLICT, Code::PeerOtherCluster, why, None));
        }
    }
    let from = text(FROM_HEADER).unwrap_or(OPERATOR);
    if asked.certified.as_ref().is_some_and(|name| name != from && from != OPERATOR) {
        return Err(bad("the node that asks is not the one that its certificate names"));
    }
    let generation = match text(GENERATION_HEADER) {
        None => return Err(bad("the request does not name its generation")),
        Some(NO_GENERATION) if asked.changes && !UNNUMBERED.contains(&asked.path) => {
            return Err(bad("what changes something names the generation that it was decided in"));
        }
        Some(NO_GENERATION) => return Ok(()),
        Some(number) => number.parse::<u64>().map_err(|_| bad("the generation is no number"))?,
    };
    let (_, newest) = ledger_and_newest(api)?;
    if generation < newest.number {
        let why = format!("the request is of generation {generation}, and this node knows {}", newest.number);
        return Err(refuse(StatusCode::CONFLICT, Code::PeerOutdated, &why, Some(newest)));
    }
    Ok(())
}

/// Whether the caller has the right that the route needs.
fn admit_right(api: &Api, asked: &Asked<'_>) -> Result<(), No> {
    let right = access::right_of(&asked.method.as_str().to_ascii_lowercase(), asked.path);
    match access::standing(&asked.caller, right, access::operators_file(api).is_some()) {
        Standing::Granted => Ok(()),
        Standing::AsNode | Standing::AsItself => admit_change(api, asked),
        Standing::Refused(why) => {
            // Whoever is no node of this cluster at all learns that.
            if asked.caller == Caller::Certified {
                admit_change(api, asked)?;
            }
            Err(refuse(StatusCode::FORBIDDEN, Code::OperatorNeeded, &why, None))
        }
    }
}

/// A certificate of the agents' authority is not enough: clients, nodes that were let go and, where one authority signs for all,
/// everyone has one.
fn admit_change(api: &Api, asked: &Asked<'_>) -> Result<(), No> {
    let spec = &api.node.spec;
    if !asked.changes || spec.tls_files().is_none() {
        return Ok(());
    }
    let no = |why: &str| Err(refuse(StatusCode::FORBIDDEN, Code::NotAdmitted, why, None));
    let Some(name) = &asked.certified else {
        // Certificates from elsewhere may bear addresses alone.
        let is_for = |member: &Member| {
            let url = spec.agent_url_of(member);
            host_of(&url).is_some_and(|host| asked.peer.is_some_and(|peer| peer.covers(host)))
        };
        return match spec.members.iter().any(is_for) {
            true => Ok(()),
            false => no("the certificate is for no node of this cluster, and changes nothing"),
        };
    };
    let buried = match api.book.read() {
        LedgerSeen::There(ledger) => ledger.peers.get(name).is_some_and(|memory| memory.tombstone),
        LedgerSeen::Absent | LedgerSeen::Unreadable(_) => false,
    };
    let declared = spec.member(name).is_some() || name == api.node.name();
    let renews =
        asked.path == certificates::PATH && peering::client_members(api).iter().any(|client| client.name == *name);
    match (declared && !buried) || renews {
        true => Ok(()),
        false => no(&format!("`{}` is no node of this cluster file, and changes nothing", name.escape_debug())),
    }
}

async fn node(State(api): State<Api>) -> Result<Json<NodeAnswer>, No> {
    let (ledger, newest) = ledger_and_newest(&api)?;
    let (status, stage) = (api.shared.status(), Stage::of(&ledger));
    let (nonce, seal) = nonces_of(&ledger);
    Ok(Json(NodeAnswer {
        name: api.node.name().to_owned(),
        generation: newest.number,
        generation_of: newest.cluster,
        forks: Some(ledger.forks.clone()),
        declaration: api.node.spec.declaration_hash(),
        file: api.node.spec.hash(),
        founding: FoundingAnswer::of(&ledger),
        member: ledger.ids().map(|(_, member)| member),
        dropped: ledger.dropped.iter().map(|dropped| dropped.bootstrap).collect(),
        consumed: ledger.consumed,
        peers: ledger.peers,
        confirmed: ledger.confirmed,
        acknowledged: api.shared.acknowledged_with(&ledger.progress),
        start: ledger.last_start,
        phase: status.phase,
        leads: api.shared.leads(),
        upkeep: api.shared.upkeep(),
        stage: Some(stage),
        etcd: status.etcd.and_then(|etcd| etcd.version),
        storage: api.shared.storage(),
        v2_entries: api.shared.old_entries().map(|(count, _)| count),
        log: api.shared.old_entries().map(|(_, log)| log),
        restart: api.shared.restart(),
        settled: api.shared.settled(),
        intent: ledger.intent,
        backed_up_ms: api.shared.backed_up_ms(),
        stored_revision: api.shared.stored_revision(),
        since_revision: api.shared.since(),
        differing: api.shared.differing(),
        role: role(&api),
        clock_ms: u64::try_from(Timestamp::now().as_millisecond()).ok(),
        issues_certificates: certificates::folder(&api.node).ok().map(|dir| certificates::can_issue(&dir)),
        instance: api.peers.instance().map(str::to_owned),
        machine: api.shared.machine(),
        sees: api.shared.sees(),
        nonce,
        seal,
        file_serial: file_orders::followed(&api.node).ok().flatten().map(|followed| followed.signed.order.serial),
    }))
}

/// What this node is. It says so once it is that to those who connect: a client when its proxy has the port and leads somewhere,
/// a server when etcd has it.
fn role(api: &Api) -> Option<Role> {
    let serves = match api.peering.role()? {
        Role::Client => api.node.is_declared() || api.shared.is_client() && api.peering.proxy.is_up(),
        Role::Server => !api.node.is_passing() && api.shared.readiness().1,
        Role::Standalone | Role::External | Role::Detached => true,
    };
    api.peering.role().filter(|_| serves)
}

async fn status(State(api): State<Api>) -> Json<Status> {
    Poll::new(&api.node, &api.book, &api.shared).refresh().await;
    let mut status = api.shared.status();
    let node = Arc::clone(&api.node);
    let seen = tokio::task::spawn_blocking(move || observe_node(&node.spec, &node.member, Timestamp::now())).await;
    let ends = seen.unwrap_or_default().into_iter().filter_map(|seen| {
        let ends = u64::try_from(seen.not_after?.as_millisecond()).ok()?;
        Some(CertificateNow { which: seen.which, ends_ms: ends })
    });
    status.certificates = ends.collect();
    Json(status)
}

async fn plan(State(api): State<Api>) -> Json<PlanAnswer> {
    let plan = api.shared.plan();
    Json(PlanAnswer { name: api.node.name().to_owned(), file: api.node.spec.hash(), ..plan })
}

/// Writes down durably that a peer is about to start.
async fn started(
    State(api): State<Api>,
    headers: HeaderMap,
    body: Result<Json<StartedRequest>, JsonRejection>,
) -> Result<Json<StartedAnswer>, No> {
    let bad = |why: &str| refuse(StatusCode::BAD_REQUEST, Code::PeerRequest, why, None);
    let Json(request) = body.map_err(|rejection| bad(&rejection.body_text()))?;
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    if header(GENERATION_HEADER) == Some(NO_GENERATION) {
        return Err(bad("a node that starts has a generation"));
    }
    let declared = api.node.spec.member(&request.name).is_some() && request.name != api.node.name();
    if !declared || header(FROM_HEADER) != Some(request.name.as_str()) {
        return Err(bad("the node that asks is no other member of this cluster file"));
    }
    let book = Arc::clone(&api.book);
    let StartedRequest { name, cluster, member, declaration } = request;
    let written = tokio::task::spawn_blocking(move || {
        let mut objection = None;
        let written =
            book.change(|ledger| match record_started(ledger, &name, cluster, member, declaration.as_deref()) {
                Ok(next) => *ledger = next,
                Err(why) => objection = Some(why),
            });
        written.map(|_| objection)
    });
    match written.await {
        Ok(Ok(None)) => Ok(Json(StartedAnswer { recorded: true })),
        Ok(Ok(Some(why))) => Err(refuse(StatusCode::CONFLICT, Code::PeerOtherCluster, &why, None)),
        Ok(Err(fault)) => Err(refuse(StatusCode::SERVICE_UNAVAILABLE, fault.code(), &fault.to_string(), None)),
        Err(_) => {
            let why = "writing it down came to a halt";
            Err(refuse(StatusCode::SERVICE_UNAVAILABLE, Code::Internal, why, None))
        }
    }
}

/// Signs certificates for the node that asks, where the issuing keys are here.
async fn sign(
    State(api): State<Api>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    body: Result<Json<CertificatesRequest>, JsonRejection>,
) -> Result<Json<CertificatesAnswer>, No> {
    let Json(request) =
        body.map_err(|rejection| refuse(StatusCode::BAD_REQUEST, Code::PeerRequest, &rejection.body_text(), None))?;
    let asking = peer.node(&api.node.spec.token);
    let (node, clients) = (Arc::clone(&api.node), peering::client_members(&api));
    // Opening the keys takes time on purpose.
    let signed = tokio::task::spawn_blocking(move || {
        certificates::answer_request_of(&node, &clients, asking.as_deref(), &request)
    });
    let signed = signed.await;
    match signed {
        Ok(Ok(answer)) => Ok(Json(answer)),
        Ok(Err(fault)) => Err(refuse(StatusCode::CONFLICT, fault.code(), &fault.to_string(), None)),
        Err(_) => Err(refuse(StatusCode::SERVICE_UNAVAILABLE, Code::Internal, "signing came to a halt", None)),
    }
}

fn ledger(api: &Api) -> Result<Ledger, No> {
    match api.book.read() {
        LedgerSeen::Absent => Ok(Ledger::default()),
        LedgerSeen::There(ledger) => Ok(*ledger),
        // Not the same as empty: whoever asks must not take it for that.
        LedgerSeen::Unreadable(_) => {
            let why = "the ledger of this node cannot be read";
            Err(refuse(StatusCode::SERVICE_UNAVAILABLE, Code::LedgerUnreadable, why, None))
        }
    }
}

/// The ledger, and the newest generation that this node knows of. One that is being made here has no id yet: so it is asked before and
/// after the ledger was read whether one is, since a recovery may begin or end meanwhile.
fn ledger_and_newest(api: &Api) -> Result<(Ledger, Generation), No> {
    let none_is_made = || matches!(recover::pending(api.node.state_path()), Ok(None));
    let before = none_is_made();
    let ledger = ledger(api)?;
    let newest = ledger.newest();
    let made = newest.number == 0 || (before && none_is_made());
    Ok((ledger, Generation { cluster: newest.cluster.filter(|_| made), ..newest }))
}

/// A no, and how it is said in HTTP.
pub(super) struct No(StatusCode, Refusal);

impl IntoResponse for No {
    fn into_response(self) -> Response {
        let code = audited::RefusedWith(self.1.code.clone());
        let mut response = (self.0, Json(self.1)).into_response();
        response.extensions_mut().insert(code);
        response
    }
}

pub(super) fn refuse(status: StatusCode, code: Code, why: &str, newer: Option<Generation>) -> No {
    let (generation, generation_of) = (newer.map(|newer| newer.number), newer.and_then(|newer| newer.cluster));
    No(status, Refusal { code: code.as_str().to_owned(), why: why.to_owned(), generation, generation_of })
}
