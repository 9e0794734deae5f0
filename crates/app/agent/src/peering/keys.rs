//! Every server of a cluster by hand has the issuing keys, so that any of them can invite, and the loss of one ends nothing.
//!
//! **Invariant:** keys go over mutual TLS, to the agent of a node that votes and that the certificate names; never to a learner,
//! an operator or a node that the file does not declare.

use std::time::Duration;

use quorate_faults::{Code, Fault};
use quorate_pki::{
    Authorities, IssuingKeys, ensure_issuing_keys, ensure_no_issuing_keys, has_issuing_keys, needs_passphrase,
    read_issuing_keys,
};
use quorate_plan::certificates::Authority;
use quorate_plan::peering::Role;
use tracing::info;

use super::messages::PeersAnswer;
use super::{KEYS, PEERS};
use crate::certificates::folder;
use crate::peers::{Api, PeerError};

/// How often a server that is to see another go asks for the keys, and how long it waits in between.
const ATTEMPTS: u32 = 8;
const AGAIN: Duration = Duration::from_millis(500);

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
    if fits(&dir).await? {
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

/// Before a server goes: some server that stays has the issuing keys, and be it this one. Nobody could be invited and no certificate
/// renewed if they went with it.
pub(super) async fn ensure_kept(api: &Api, leaves: &str) -> Result<(), Fault> {
    let Ok(dir) = folder(&api.node) else { return Ok(()) };
    let mut asked = Ok(());
    for _ in 0..ATTEMPTS {
        asked = ensure_keys(api).await;
        if fits(&dir).await? {
            return Ok(());
        }
        // Who has them may not have seen yet that this node votes.
        if !asked.as_ref().is_err_and(|fault| fault.code() == Code::KeysWithheld) {
            break;
        }
        tokio::time::sleep(AGAIN).await;
    }
    for peer in api.peers.others().into_iter().filter(|peer| peer != leaves) {
        let told: Result<PeersAnswer, PeerError> = api.peers.ask(&peer, PEERS, None).await;
        if told.is_ok_and(|told| told.issuing.is_some()) {
            return Ok(());
        }
    }
    match asked {
        // Where they do not lie open anywhere, they are the operator's to keep.
        Err(fault) if fault.code() == Code::CaMissing => Ok(()),
        Ok(()) => Err(would_go(leaves)),
        Err(fault) => Err(would_go(leaves).caused_by(fault)),
    }
}

fn would_go(leaves: &str) -> Fault {
    Fault::new(Code::KeysWouldGo, format!("no server but `{leaves}` is known to have the issuing keys"))
        .hint("a server gets them a few seconds after it votes: try again; see `quorate explain Q1240`")
}

/// Takes them away from a node that is no server any more, once a server says that it has the very same.
pub(super) async fn ensure_no_keys(api: &Api) -> Result<(), Fault> {
    if !matches!(api.peering.role(), Some(Role::Client | Role::Detached)) || api.node.is_declared() {
        return Ok(());
    }
    let Ok(dir) = folder(&api.node) else { return Ok(()) };
    if !Authority::ALL.iter().any(|authority| dir.join(authority.key_file()).exists()) {
        return Ok(());
    }
    for peer in api.peers.others() {
        let told: Result<PeersAnswer, PeerError> = api.peers.ask(&peer, PEERS, None).await;
        let held = told
            .ok()
            .filter(|told| told.role == Role::Server || told.role == Role::Standalone || told.role == Role::External);
        let Some(held) = held.and_then(|told| told.issuing) else { continue };
        let at = dir.clone();
        let gone = tokio::task::spawn_blocking(move || ensure_no_issuing_keys(&at, &held)).await.map_err(halted)??;
        if gone {
            info!("the issuing keys are taken away from this node, which is no server any more: `{peer}` has them");
            return Ok(());
        }
    }
    Ok(())
}

/// Tells the keys that lie open here apart from others, without telling them.
pub(super) async fn issuing(api: &Api) -> Option<String> {
    let dir = folder(&api.node).ok()?;
    let read = tokio::task::spawn_blocking(move || read_issuing_keys(&dir)?.map(|keys| keys.fingerprint()).transpose());
    read.await.ok()?.ok()?
}

/// Whether the keys are here, and are those of the authorities that are trusted.
async fn fits(dir: &std::path::Path) -> Result<bool, Fault> {
    let at = dir.to_owned();
    let fits = tokio::task::spawn_blocking(move || {
        // A passphrase is nobody's but the operator's.
        Ok::<_, Fault>(has_issuing_keys(&at) && (needs_passphrase(&at)? || Authorities::open(&at, None).is_ok()))
    });
    fits.await.map_err(halted)?
}

fn halted(_: tokio::task::JoinError) -> Fault {
    Fault::new(Code::Internal, "the work on issuing keys came to a halt")
}
