//! Every server of a cluster by hand has the issuing keys, so that any of them can invite, and the loss of one ends nothing.
//!
//! **Invariant:** keys go over mutual TLS, to the agent of a node that votes and that the certificate names; never to a learner,
//! an operator or a node that the file does not declare.

use quorate_faults::{Code, Fault};
use quorate_pki::{
    Authorities, IssuingKeys, ensure_issuing_keys, has_issuing_keys, needs_passphrase, read_issuing_keys,
};
use quorate_plan::peering::Role;
use tracing::info;

use super::KEYS;
use crate::certificates::folder;
use crate::peers::{Api, PeerError};

/// Hands them to the node whose certificate asks.
pub(crate) fn hand_keys(api: &Api, asking: Option<&str>) -> Result<IssuingKeys, Fault> {
    api.peering.by_hand()?;
    let declared = asking.filter(|name| api.node.spec.member(name).is_some() && *name != api.node.name());
    let votes = |name: &&str| {
        let cluster = api.shared.status().cluster;
        cluster.is_some_and(|seen| seen.members.iter().any(|one| one.name == **name && one.role != "learner"))
    };
    let Some(name) = declared.filter(|name| api.node.spec.external.is_some() || votes(name)) else {
        let who = asking.unwrap_or("nobody we know").escape_debug().to_string();
        return Err(Fault::new(Code::KeysWithheld, format!("the issuing keys are not for `{who}`"))
            .hint("a server gets them once it votes"));
    };
    let keys = read_issuing_keys(&folder(&api.node)?)?;
    let keys = keys.ok_or_else(|| Fault::new(Code::CaMissing, "there are no issuing keys here that lie open"))?;
    info!("handed the issuing keys to `{name}`, which is a server");
    Ok(keys)
}

/// Asks the others for them, where this node is a server and has none, or has some that no longer fit.
pub(super) async fn ensure_keys(api: &Api) -> Result<(), Fault> {
    let role = api.peering.local().map(|local| local.role);
    let server = matches!(role, Some(Role::Standalone | Role::Server | Role::External));
    if !server || !api.shared.readiness().1 || !api.node.is_declared() || !api.node.has_peers() {
        return Ok(());
    }
    let Ok(dir) = folder(&api.node) else { return Ok(()) };
    let at = dir.clone();
    let fits = tokio::task::spawn_blocking(move || {
        // A passphrase is nobody's but the operator's.
        Ok::<_, Fault>(has_issuing_keys(&at) && (needs_passphrase(&at)? || Authorities::open(&at, None).is_ok()))
    });
    if fits.await.map_err(halted)?? {
        return Ok(());
    }
    let mut last = None;
    for peer in api.peers.others() {
        let handed: Result<IssuingKeys, PeerError> = api.peers.order(&peer, KEYS, &serde_json::json!({})).await;
        match handed {
            Ok(handed) => {
                tokio::task::spawn_blocking(move || ensure_issuing_keys(&dir, &handed)).await.map_err(halted)??;
                info!("got the issuing keys from `{peer}`: this node can invite");
                return Ok(());
            }
            Err(error) => last = Some(error.fault(&peer)),
        }
    }
    last.map_or(Ok(()), Err)
}

fn halted(_: tokio::task::JoinError) -> Fault {
    Fault::new(Code::Internal, "the work on issuing keys came to a halt")
}
