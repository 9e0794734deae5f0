//! What etcd reads of trust only when it starts, as a part of its settings: authorities, and lists of revoked certificates.
//!
//! **Rule:** a list is named in etcd's configuration only when it is there, since etcd without its list lets nobody in; one that was
//! there and is gone, or cannot be looked at, is a reason not to start, since etcd without any lets everybody in that was called
//! back; and whatever of it changes makes the settings others, so that the member is started again in its turn.

use std::path::PathBuf;

use quorate_faults::Fault;
use quorate_pki::{ensure_list_expected, observe_list, trust_hash};
use quorate_plan::etcd_config::revocations;
use quorate_plan::spec::{Tls, for_member};
use tracing::warn;

use super::etcd_tls;
use super::node::Node;
use super::publish::Shared;

/// What parts trust from the rest in the hash of the settings.
const MARK: char = '+';

/// Enough to tell any two apart.
const DIGITS: usize = 16;

/// What trust adds to the settings.
pub(super) struct Trust {
    /// Lines for etcd's file, as the hash of the settings has them.
    pub(super) lines: String,
    /// The same lines as etcd is given them: in a box, with its copies of the lists.
    pub(super) shown: String,
    /// The end of the hash of the settings; empty where nothing is encrypted.
    pub(super) mark: String,
}

/// Looks at the files.
pub(super) fn observe(node: &Node) -> Result<Trust, Fault> {
    let Some(tls) = node.spec.tls_files() else {
        return Ok(Trust { lines: String::new(), shown: String::new(), mark: String::new() });
    };
    let (authorities, lists) = (authorities(node, tls), lists(node)?);
    let text = |list: &Option<PathBuf>| list.as_ref().map(|list| list.display().to_string());
    let [client, peer] = lists.each_ref().map(text);
    let copy = |list: &Option<PathBuf>, which| text(&list.as_ref().map(|list| etcd_tls::shown_list(node, which, list)));
    let shown = revocations(copy(&lists[0], "client").as_deref(), copy(&lists[1], "peer").as_deref());
    let files = authorities.iter().chain(lists.iter().flatten()).map(PathBuf::as_path);
    let hash: String = trust_hash(files).chars().take(DIGITS).collect();
    Ok(Trust { lines: revocations(client.as_deref(), peer.as_deref()), shown, mark: format!("{MARK}{hash}") })
}

/// The lists of revoked certificates that there are, of clients and of peers.
pub(super) fn lists(node: &Node) -> Result<[Option<PathBuf>; 2], Fault> {
    // Only what `quorate ca` keeps there is ours to name.
    let Some(tls) = node.spec.tls_files().filter(|tls| tls.dir.is_some()) else { return Ok([None, None]) };
    let [client, peer] = authorities(node, tls);
    Ok([observe_list(&client)?, observe_list(&peer)?])
}

/// The files of etcd's authorities, of clients and of peers.
fn authorities(node: &Node, tls: &Tls) -> [PathBuf; 2] {
    [&tls.client, &tls.peer].map(|files| PathBuf::from(for_member(&files.trusted_ca_file, node.name())))
}

/// Remembers which lists etcd is started with, so that it is never started without them. Whoever brought one has done that before,
/// unless it was an earlier release.
pub(super) fn remember(node: &Node) {
    let Some(tls) = node.spec.tls_files().filter(|tls| tls.dir.is_some()) else { return };
    for authority in authorities(node, tls) {
        if let Ok(Some(_)) = observe_list(&authority)
            && let Err(fault) = ensure_list_expected(&authority)
        {
            warn!(code = %fault.code(), "cannot write down that there is a list of revoked certificates: {fault}");
        }
    }
}

/// Whether etcd runs with the trust that the files say now; `None`: it does not run.
pub(crate) fn is_current(node: &Node, shared: &Shared) -> Option<bool> {
    shared.status().etcd?;
    let running = shared.running_hash()?;
    let part = running.find(MARK).and_then(|at| running.get(at..)).unwrap_or_default();
    Some(observe(node).is_ok_and(|trust| trust.mark == part))
}
