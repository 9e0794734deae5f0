//! Changes what this node trusts, when the holder of the issuing keys says so: other authorities, new certificates, and those
//! that are called back.
//!
//! **Invariant:** every part of a request proves itself: an order and a list by a signature of an authority that is trusted
//! here, certificates by the keys that lie here. Who carries it does not matter.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use jiff::Timestamp;
use quorate_faults::{Code, Fault};
use quorate_pki::{
    Keys, NodeNames, RevocationLists, SignedBundle, TrustOrder, TrustSeen, ensure_installed, ensure_lists,
    ensure_newer_lists, ensure_operator_list, ensure_requests, ensure_trusted, fingerprint, observe_trust,
    read_known_lists, read_operator_list, read_order_after,
};
use quorate_plan::certificates::{NodeKnows, Others, parts_nobody, strangers};
use quorate_plan::ledger::LedgerSeen;
use quorate_plan::spec::Spec;
use serde::{Deserialize, Serialize};
use tracing::{debug, info, warn};

use crate::certificates::folder;
use crate::peers::Peers;
use crate::turn::{ClientConnections, Node, Shared, trust_is_current};

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
    /// The number of the last order that the asking node carried out: a later one is wanted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order_after: Option<u64>,
    /// The list of revoked operators: DER in base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operators: Option<String>,
    /// The list of revoked operators that the asking node has, by its fingerprint, empty where it has none: another one is wanted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operators_but: Option<String>,
    /// Whether the connections to client ports are wanted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub wants_clients: bool,
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
    /// The last order that it carried out, where it was asked for a later one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<TrustOrder>,
    /// Its list of revoked operators, where it was asked for another one: DER in base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operators: Option<String>,
    /// The fingerprint of that list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operators_revoked: Option<String>,
    /// Whether it has the operators' authority.
    #[serde(default)]
    pub knows_operators: bool,
    /// Whom its cluster file declares.
    #[serde(default)]
    pub declares: Vec<String>,
    /// The members of the cluster, by name, as it sees or remembers them; none: it has no etcd of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub members: Option<Vec<String>>,
    /// Whether a quorum confirms them now.
    #[serde(default)]
    pub members_confirmed: bool,
    /// Connections to client ports, where they were asked for and could be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clients: Option<ClientConnections>,
}

impl TrustAnswer {
    /// Whom the node knows, for a rotation.
    pub fn knows(&self) -> NodeKnows {
        let (declares, members) = (self.declares.clone(), self.members.clone());
        NodeKnows { declares, members, confirmed: self.members_confirmed }
    }
}

/// Whether this node trusts more than one authority of a kind: they are being rotated. Reads files: not for async code.
pub(crate) fn rotates(node: &Node) -> bool {
    folder(node).is_ok_and(|dir| observe_trust(&dir).trusts.values().any(|authorities| authorities.len() > 1))
}

/// What this node trusts now, and whom it knows. Reads files: not for async code.
fn observe(node: &Node, shared: &Shared, ledger: &LedgerSeen) -> Result<TrustAnswer, Fault> {
    let (seen, name) = (observe_trust(&folder(node)?), node.name().to_owned());
    let confirmed = shared.readiness().1.then(|| shared.status().cluster).flatten();
    let members: Vec<String> = match (&confirmed, ledger) {
        (Some(now), _) => now.members.iter().map(|member| member.name.clone()).collect(),
        (None, LedgerSeen::There(ledger)) => {
            let remembered = ledger.confirmed.iter().flat_map(|confirmed| &confirmed.members);
            remembered.map(|member| member.name.clone()).collect()
        }
        (None, LedgerSeen::Absent | LedgerSeen::Unreadable(_)) => Vec::new(),
    };
    Ok(TrustAnswer {
        name,
        seen,
        etcd_current: trust_is_current(node, shared),
        requests: None,
        lists: None,
        order: None,
        operators: None,
        operators_revoked: operators_file(node)
            .and_then(|path| read_operator_list(&path))
            .map(|list| fingerprint(&list)),
        knows_operators: operators_file(node).is_some_and(|path| path.exists()),
        declares: node.spec.members.iter().map(|member| member.name.clone()).collect(),
        members: node.spec.external.is_none().then_some(members),
        members_confirmed: confirmed.is_some(),
        clients: None,
    })
}

/// Asks every other agent for lists of revoked certificates that are newer than those here, and for a later order to trust others, and
/// takes them: who was away or came later hears of both. Returns whether all of them answered.
pub(crate) async fn fetch_trust(node: &Arc<Node>, peers: &Peers, dir: &Path) -> bool {
    let at = dir.to_owned();
    let Ok(seen) = tokio::task::spawn_blocking(move || observe_trust(&at)).await else { return false };
    let (lists_but, order_after) = (Some(seen.revoked), Some(seen.number));
    let known = operators_file(node).and_then(|path| read_operator_list(&path));
    let operators_but = Some(known.map(|list| fingerprint(&list)).unwrap_or_default());
    let request = TrustRequest { lists_but, order_after, operators_but, ..TrustRequest::default() };
    let mut answers = Vec::new();
    for peer in peers.others() {
        let answer = peers.order::<_, TrustAnswer>(&peer, PATH, &request).await.ok();
        answers.push((peer, answer));
    }
    for (peer, answer) in &mut answers {
        if let Some(lists) = answer.as_mut().and_then(|answer| answer.lists.take()) {
            take_lists(node, dir, peer, lists).await;
        }
        if let Some(list) = answer.as_mut().and_then(|answer| answer.operators.take()) {
            take_operators(node, peer, &list).await;
        }
    }
    let order = |(peer, answer): &(String, Option<TrustAnswer>)| Some((peer.clone(), answer.as_ref()?.order.clone()?));
    let mut orders: Vec<(String, TrustOrder)> = answers.iter().filter_map(order).collect();
    orders.sort_by_key(|(_, order)| order.number);
    let heard: Vec<Option<TrustAnswer>> = answers.into_iter().map(|(_, answer)| answer).collect();
    let all = heard.iter().all(Option::is_some);
    let heard = Arc::new(heard);
    for (peer, order) in orders {
        take_order(node, dir, &peer, order, &heard).await;
    }
    all
}

async fn take_lists(node: &Arc<Node>, dir: &Path, peer: &str, lists: RevocationLists) {
    let at = dir.to_owned();
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

/// Takes a newer list of revoked operators from another agent; the operators' authority has signed it.
async fn take_operators(node: &Arc<Node>, peer: &str, list: &str) {
    let (Some(path), Ok(list)) = (operators_file(node), BASE64_STANDARD.decode(list)) else { return };
    match tokio::task::spawn_blocking(move || ensure_operator_list(&path, &list)).await {
        Ok(Ok(true)) => info!(peer, "another node has a newer list of revoked operators, which is used now"),
        Ok(Err(fault)) => debug!(code = %fault.code(), peer, "the list of revoked operators is not taken: {fault}"),
        Ok(Ok(false)) | Err(_) => {}
    }
}

fn operators_file(node: &Node) -> Option<PathBuf> {
    node.spec.operators_file_of(node.name()).map(PathBuf::from)
}

/// Takes an order from another agent, as from anybody, unless it would part this node from another one. That one of them came too
/// early for this node is no fault: it is asked again.
async fn take_order(
    node: &Arc<Node>,
    dir: &Path,
    peer: &str,
    order: TrustOrder,
    heard: &Arc<Vec<Option<TrustAnswer>>>,
) {
    let (at, number) = (dir.to_owned(), order.number);
    let (of, heard) = (Arc::clone(node), Arc::clone(heard));
    let taken = tokio::task::spawn_blocking(move || {
        if !may_take(&of.spec, &at, &order, &heard) {
            debug!(number, "an order that was handed on waits: somebody may show certificates that it drops");
            return Ok(Vec::new());
        }
        ensure_trusted(&at, &of.spec.token, &order, Timestamp::now())
    });
    match taken.await {
        Ok(Ok(changed)) if !changed.is_empty() => {
            let words: Vec<&str> = changed.iter().map(|authority| authority.word()).collect();
            info!(number, "`{peer}` handed on other authorities, which are trusted now: {}", words.join(", "));
        }
        Ok(Err(fault)) => debug!(code = %fault.code(), number, "did not take the order that `{peer}` has: {fault}"),
        Ok(Ok(_)) | Err(_) => {}
    }
}

fn may_take(spec: &Spec, dir: &Path, order: &TrustOrder, heard: &[Option<TrustAnswer>]) -> bool {
    let told: Vec<NodeKnows> = heard.iter().flatten().map(TrustAnswer::knows).collect();
    let strange = strangers(&told, |name| spec.member(name).is_some()).is_none_or(|names| !names.is_empty());
    let signed_by: Vec<_> = heard.iter().map(|answer| answer.as_ref().map(|answer| &answer.seen.signed_by)).collect();
    parts_nobody(&observe_trust(dir).trusts, &order.trusts(), Others { signed_by: &signed_by, strange })
}

/// Changes it. Reads and writes files: not for async code.
pub(crate) fn change(
    node: &Arc<Node>,
    shared: &Shared,
    ledger: &LedgerSeen,
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
    if let Some(list) = &request.operators {
        let unusable = |what: &str| {
            Fault::new(Code::RevocationsUnusable, format!("cannot use a list of revoked operators: {what}"))
        };
        let path = operators_file(node).ok_or_else(|| unusable("this node has no operators' authority"))?;
        let list = BASE64_STANDARD.decode(list).map_err(|_| unusable("it is not base64"))?;
        if ensure_operator_list(&path, &list)? {
            info!("{who} brought a list of revoked operators");
        }
    }
    let requests = match request.wants_requests {
        true => Some(ensure_requests(&dir, &names, Keys::Keep)?.bundle.encode()),
        false => None,
    };
    let now = observe(node, shared, ledger)?;
    let lists = match &request.lists_but {
        Some(known) if *known != now.seen.revoked => Some(read_known_lists(&dir)?),
        Some(_) | None => None,
    };
    let operators = match &request.operators_but {
        Some(known) if now.operators_revoked.as_ref().is_some_and(|own| own != known) => {
            operators_file(node).and_then(|path| read_operator_list(&path)).map(|list| BASE64_STANDARD.encode(list))
        }
        Some(_) | None => None,
    };
    let order = request.order_after.and_then(|number| read_order_after(&dir, number));
    let clients = request.wants_clients.then(|| shared.client_connections(node)).flatten();
    Ok(TrustAnswer { requests, lists, order, operators, clients, ..now })
}
