//! Answers about clusters by hand: who belongs to them, who may come, and who is to go.

use axum::extract::rejection::JsonRejection;
use axum::extract::{ConnectInfo, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use quorate_faults::{Code, Fault};
use quorate_pki::IssuingKeys;
use quorate_plan::peering::Role;

use super::access::Caller;
use super::audited::record;
use super::change::no;
use super::server::{Api, No, refuse};
use crate::peering::{
    self, ApprovalShown, ApproveRequest, CountersignRequest, DetachRequest, InviteAnswer, InviteRequest,
    OperationShown, PeersAnswer, RoleRequest, VetoAnswer, VetoRequest, WaitingShown,
};
use crate::serve::Peer;

/// Everyone.
pub(super) async fn peers(State(api): State<Api>) -> Result<Json<PeersAnswer>, No> {
    peering::shown(&api).await.map(Json).map_err(|fault| no(&fault))
}

/// Makes a join code.
pub(super) async fn invite(
    State(api): State<Api>,
    body: Result<Json<InviteRequest>, JsonRejection>,
) -> Result<Json<InviteAnswer>, No> {
    let Json(request) = body.map_err(|rejection| unread(&rejection))?;
    peering::invite(&api, &request).await.map(Json).map_err(|fault| no(&fault))
}

/// Lets a node that was invited and waits become a server.
pub(super) async fn approve(
    State(api): State<Api>,
    body: Result<Json<ApproveRequest>, JsonRejection>,
) -> Result<Json<WaitingShown>, No> {
    let Json(request) = body.map_err(|rejection| unread(&rejection))?;
    peering::approve(&api, &request).map(Json).map_err(|fault| no(&fault))
}

/// Takes a node out.
pub(super) async fn detach(
    State(api): State<Api>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    Extension(caller): Extension<Caller>,
    body: Result<Json<DetachRequest>, JsonRejection>,
) -> Result<Json<OperationShown>, No> {
    let Json(request) = body.map_err(|rejection| unread(&rejection))?;
    // A node leaves by its own certificate, and takes no other one with it.
    if caller == Caller::Certified && (request.force || peer.node(&api.node.spec.token).as_ref() != Some(&request.name))
    {
        let why =
            "the certificate of a node detaches that node alone; detach others with `quorate peer detach` on a server";
        return Err(refuse(StatusCode::FORBIDDEN, Code::OperatorNeeded, why, None));
    }
    if api.peering.role() == Some(Role::Client) && request.name != api.node.name() {
        let why = Fault::new(Code::PeersRefused, "this node is a client, and takes nobody out but itself");
        return Err(no(&why));
    }
    peering::detach(&api, &request).await.map(Json).map_err(|fault| no(&fault))
}

/// Approves a node as a second server. The right of the route is not that of a node: any other server could approve what it began itself.
pub(super) async fn countersign(
    State(api): State<Api>,
    body: Result<Json<CountersignRequest>, JsonRejection>,
) -> Result<Json<ApprovalShown>, No> {
    let Json(request) = body.map_err(|rejection| unread(&rejection))?;
    peering::countersign(&api, &request).await.map(Json).map_err(|fault| no(&fault))
}

/// Makes a client of a server, or a server of a client.
pub(super) async fn role(
    State(api): State<Api>,
    body: Result<Json<RoleRequest>, JsonRejection>,
) -> Result<Json<OperationShown>, No> {
    let Json(request) = body.map_err(|rejection| unread(&rejection))?;
    peering::set_role(&api, &request).await.map(Json).map_err(|fault| no(&fault))
}

/// Hands the issuing keys to another server.
pub(super) async fn keys(
    State(api): State<Api>,
    ConnectInfo(peer): ConnectInfo<Peer>,
) -> Result<Json<IssuingKeys>, No> {
    let asking = peer.node(&api.node.spec.token);
    let keys = peering::hand_keys(&api, asking.as_deref()).map_err(|fault| no(&fault))?;
    record(&api.node, Some(&peer), vec!["issuing-keys".to_owned()]).await?;
    Ok(Json(keys))
}

/// Asks what runs here whether it objects.
pub(super) async fn veto(
    State(api): State<Api>,
    body: Result<Json<VetoRequest>, JsonRejection>,
) -> Result<Json<VetoAnswer>, No> {
    let Json(request) = body.map_err(|rejection| unread(&rejection))?;
    if !matches!(request.what.as_str(), "join" | "detach" | peering::TO_CLIENT | peering::TO_SERVER) {
        return Err(refuse(StatusCode::BAD_REQUEST, Code::PeerRequest, "there is no such change", None));
    }
    Ok(Json(peering::answer_veto(&api, &request).await))
}

fn unread(rejection: &JsonRejection) -> No {
    refuse(StatusCode::BAD_REQUEST, Code::PeerRequest, &rejection.body_text(), None)
}
