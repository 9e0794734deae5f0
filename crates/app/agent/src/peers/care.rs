//! Answers those who take care of a whole cluster: what a node trusts, and what is left of it.
//!
//! **Rule:** who asks has shown a certificate of the agents' authority; what is asked proves itself beyond that, or changes
//! nothing that cannot be undone.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::extract::{ConnectInfo, State};
use axum::http::StatusCode;
use quorate_faults::{Code, Fault};
use quorate_plan::ledger::LedgerSeen;
use quorate_plan::phase::Phase;
use tracing::{info, warn};

use super::audited::caller;
use super::change::own_etcd;
use super::server::{Api, No, refuse};
use crate::recover::{self, Order, ProbeAnswer, ProbeRequest, Progress, RecoveryNow, Remains, Role, Uploaded};
use crate::serve::Peer;
use crate::trust::{self, TrustAnswer, TrustRequest};

/// Changes what this node trusts, where the request says so, and tells what holds now.
pub(super) async fn trust(
    State(api): State<Api>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    body: Result<Json<TrustRequest>, JsonRejection>,
) -> Result<Json<TrustAnswer>, No> {
    let Json(request) = body.map_err(|rejection| unread(&rejection))?;
    let who = caller(&api, &peer);
    blocking(move || {
        let changed = trust::change(&api.node, &api.shared, &api.book.read(), &request, &who);
        if let Err(fault) = &changed {
            warn!(code = %fault.code(), "{who} asked for other trust: {fault}");
        }
        changed
    })
    .await
    .map(Json)
}

/// What is left on this node.
pub(super) async fn remains(State(api): State<Api>) -> Json<Remains> {
    let ledger = api.book.read();
    let recorded = match &ledger {
        LedgerSeen::There(ledger) => ledger.progress.clone(),
        LedgerSeen::Absent | LedgerSeen::Unreadable(_) => Vec::new(),
    };
    let seen = api.shared.acknowledged_with(&recorded);
    Json(recover::observe_remains(&api.node, &ledger, seen).await)
}

/// Queries the etcd of members whose agents are silent, and watches the store.
pub(super) async fn probe(
    State(api): State<Api>,
    body: Result<Json<ProbeRequest>, JsonRejection>,
) -> Result<Json<ProbeAnswer>, No> {
    let Json(request) = body.map_err(|rejection| unread(&rejection))?;
    Ok(Json(recover::observe_absent(&api.node, &api.book.read(), &request.members).await))
}

/// Uploads what waits in the spool of this node.
pub(super) async fn spool(State(api): State<Api>) -> Result<Json<Uploaded>, No> {
    own_etcd(&api)?;
    let node = Arc::clone(&api.node);
    let order_backup = move |revision| {
        api.shared.order_backup(revision);
    };
    blocking(move || recover::upload(&node, &order_backup)).await.map(Json)
}

/// Orders a recovery, and tells how far the one that was ordered is.
pub(super) async fn order_recovery(
    State(api): State<Api>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    body: Result<Json<Order>, JsonRejection>,
) -> Result<Json<RecoveryNow>, No> {
    own_etcd(&api)?;
    let Json(order) = body.map_err(|rejection| unread(&rejection))?;
    let (node, book) = (Arc::clone(&api.node), Arc::clone(&api.book));
    let known = recover::observe_progress(node.state_path()).ok().flatten();
    if matches!(order.role, Role::Begin(_)) && known.is_none_or(|known| known.order != order) {
        if api.shared.status().phase == Phase::Serving.word() && !recover::is_to_a_point(&order) {
            let why = "reads through this member succeed: a quorum is there";
            return Err(refuse(StatusCode::CONFLICT, Code::RecoverQuorum, why, None));
        }
        if let Err(fault) = recover::audit_order(&node, &book.read(), &order).await {
            warn!(code = %fault.code(), "a recovery was refused: {fault}");
            return Err(refuse(StatusCode::CONFLICT, fault.code(), &fault.to_string(), None));
        }
        let (node, order) = (Arc::clone(&node), order.clone());
        blocking(move || recover::claim(&node, &order)).await?;
    }
    let taken = blocking(move || recover::accept(&node, &book, &order)).await?;
    if matches!(taken.progress, Progress::Ordered) {
        let RecoveryNow { order, .. } = &taken;
        info!(generation = order.generation, "a recovery was ordered by {}", caller(&api, &peer));
        if api.shared.status().etcd.is_some() {
            api.shared.order_restart(format!("a recovery of generation {} was ordered", order.generation));
        }
        api.shared.wake();
    }
    Ok(Json(taken))
}

fn unread(rejection: &JsonRejection) -> No {
    refuse(StatusCode::BAD_REQUEST, Code::PeerRequest, &rejection.body_text(), None)
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T, Fault> + Send + 'static) -> Result<T, No> {
    match tokio::task::spawn_blocking(work).await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(fault)) => Err(refuse(StatusCode::CONFLICT, fault.code(), &fault.to_string(), None)),
        Err(_) => Err(refuse(StatusCode::SERVICE_UNAVAILABLE, Code::Internal, "the work came to a halt", None)),
    }
}
