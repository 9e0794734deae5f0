//! Changes what this node trusts, when the holder of the issuing keys says so: other authorities, new certificates, and those
//! that are called back.
//!
//! **Invariant:** every part of a request proves itself: an order and a list by a signature of an authority that is trusted
//! here, certificates by the keys that lie here. Who carries it does not matter.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use jiff::Timestamp;
use quorate_faults::{Code, Fault};
use quorate_pki::{
    Keys, NodeNames, RevocationLists, SignedBundle, TrustOrder, TrustSeen, ensure_installed, ensure_lists,
    ensure_newer_lists, ensure_requests, ensure_trusted, observe_trust, read_known_lists,
};
use serde::{Deserialize, Serialize};
use tracing::{info, warn};

use crate::certificates::folder;
use crate::peers::Peers;
use crate::turn::{Node, Shared, trust_is_current};

/// Where it is asked and told.
pub(crate) const PATH: &str = "/v1/trust";

/// What is to change; all of it may be left out.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrustRequest {
    /// Which authorities to trust.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<TrustOrder>,
    /// New certificates: the text that `quorate ca install` takes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificates: Option<String>,
    /// Lists of revoked certificates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lists: Option<RevocationLists>,
    /// Whether requests for new certificates are wanted.
    #[serde(default)]
    pub wants_requests: bool,
    /// The lists of revoked certificates that the asking node has, by their fingerprints: others than these are wanted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lists_but: Option<BTreeMap<String, String>>,
}

/// What holds afterwards.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrustAnswer {
    /// The node.
    pub name: String,
    /// What it trusts.
    pub seen: TrustSeen,
    /// Whether its etcd runs with that; none: it does not run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etcd_current: Option<bool>,
    /// Requests for new certificates: the text of `quorate ca csr`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests: Option<String>,
    /// Its lists of revoked certificates, where it was asked for others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lists: Option<RevocationLists>,
}

/// What this node trusts now. Reads files: not for async code.
fn observe(node: &Node, shared: &Shared) -> Result<TrustAnswer, Fault> {
    let (seen, name) = (observe_trust(&folder(node)?), node.name().to_owned());
    Ok(TrustAnswer { name, seen, etcd_current: trust_is_current(node, shared), requests: None, lists: None })
}

/// Asks every other agent for lists of revoked certificates that are newer than those here, and takes them. Returns whether all of
/// them answered.
pub(crate) async fn fetch_lists(node: &Arc<Node>, peers: &Peers, dir: &Path) -> bool {
    let mut all = true;
    for peer in peers.others() {
        let at = dir.to_owned();
        let Ok(seen) = tokio::task::spawn_blocking(move || observe_trust(&at)).await else { return false };
        let request = TrustRequest { lists_but: Some(seen.revoked), ..TrustRequest::default() };
        let Ok(answer) = peers.order::<_, TrustAnswer>(&peer, PATH, &request).await else {
            all = false;
            continue;
        };
        let (Some(lists), at) = (answer.lists, dir.to_owned()) else { continue };
        match tokio::task::spawn_blocking(move || ensure_newer_lists(&at, &lists)).await {
            Ok(Ok(taken)) if !taken.is_empty() => {
                let words: Vec<&str> = taken.iter().map(|authority| authority.word()).collect();
                info!(
                    node = node.name(),
                    "`{peer}` has newer lists of revoked certificates, which are used now: {}",
                    words.join(", ")
                );
            }
            Ok(Err(fault)) => {
                warn!(code = %fault.code(), "cannot keep the lists of revoked certificates of `{peer}`: {fault}")
            }
            Ok(Ok(_)) | Err(_) => {}
        }
    }
    all
}

/// Changes it. Reads and writes files: not for async code.
pub(crate) fn change(
    node: &Arc<Node>,
    shared: &Shared,
    request: &TrustRequest,
    who: &str,
) -> Result<TrustAnswer, Fault> {
    let (dir, now) = (folder(node)?, Timestamp::now());
    let names = NodeNames::of(&node.spec, &node.member)?;
    if let Some(order) = &request.order {
        let changed = ensure_trusted(&dir, &node.spec.token, order, now)?;
        if !changed.is_empty() {
            let words: Vec<&str> = changed.iter().map(|authority| authority.word()).collect();
            info!(
                number = order.number,
                "{who} brought other authorities, which are trusted now: {}",
                words.join(", ")
            );
        }
    }
    if let Some(text) = &request.certificates {
        let bundle = SignedBundle::decode(text.as_bytes()).map_err(|error| {
            Fault::new(Code::BundleUnreadable, "cannot read the certificates")
                .hint("see `quorate explain Q1004`")
                .caused_by(error)
        })?;
        let installed = ensure_installed(&dir, &names, &bundle, now)?;
        if !installed.replaced.is_empty() {
            let words: Vec<&str> = installed.replaced.iter().map(|role| role.word()).collect();
            info!(until = %installed.until, "{who} brought certificates, which are in use now: {}", words.join(", "));
        }
    }
    if let Some(lists) = &request.lists {
        let changed = ensure_lists(&dir, lists)?;
        if !changed.is_empty() {
            let words: Vec<&str> = changed.iter().map(|authority| authority.word()).collect();
            info!("{who} brought lists of revoked certificates: {}", words.join(", "));
        }
    }
    let requests = match request.wants_requests {
        true => Some(ensure_requests(&dir, &names, Keys::Keep)?.bundle.encode()),
        false => None,
    };
    let now = observe(node, shared)?;
    let lists = match &request.lists_but {
        Some(known) if *known != now.seen.revoked => Some(read_known_lists(&dir)?),
        Some(_) | None => None,
    };
    Ok(TrustAnswer { requests, lists, ..now })
}
