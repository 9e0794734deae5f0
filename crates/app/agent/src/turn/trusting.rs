//! What etcd reads of trust only when it starts, as a part of its settings: authorities, and lists of revoked certificates.
//!
//! **Rule:** a list is named in etcd's configuration only when it is there, since etcd without its list lets nobody in; and
//! whatever of it changes makes the settings others, so that the member is started again in its turn.

use std::path::{Path, PathBuf};

use quorate_pki::trust_hash;
use quorate_plan::etcd_config::revocations;
use quorate_plan::spec::for_member;

use super::node::Node;
use super::publish::Shared;

/// What parts trust from the rest in the hash of the settings.
const MARK: char = '+';

/// Enough to tell any two apart.
const DIGITS: usize = 16;

/// What trust adds to the settings.
pub(super) struct Trust {
    /// Lines for etcd's file.
    pub(super) lines: String,
    /// The end of the hash of the settings; empty where nothing is encrypted.
    pub(super) mark: String,
}

/// Looks at the files.
pub(super) fn observe(node: &Node) -> Trust {
    let Some(tls) = node.spec.tls_files() else { return Trust { lines: String::new(), mark: String::new() } };
    let path = |text: &str| PathBuf::from(for_member(text, node.name()));
    let authorities = [path(&tls.client.trusted_ca_file), path(&tls.peer.trusted_ca_file)];
    // Only what `quorate ca` keeps there is ours to name.
    let list = |authority: &Path| {
        let list = authority.with_extension("crl");
        (tls.dir.is_some() && list.is_file()).then_some(list)
    };
    let lists = authorities.each_ref().map(|authority| list(authority));
    let [client, peer] = lists.each_ref().map(|list| list.as_ref().map(|list| list.display().to_string()));
    let files = authorities.iter().chain(lists.iter().flatten()).map(PathBuf::as_path);
    let hash: String = trust_hash(files).chars().take(DIGITS).collect();
    Trust { lines: revocations(client.as_deref(), peer.as_deref()), mark: format!("{MARK}{hash}") }
}

/// Whether etcd runs with the trust that the files say now; `None`: it does not run.
pub(crate) fn is_current(node: &Node, shared: &Shared) -> Option<bool> {
    shared.status().etcd?;
    let running = shared.running_hash()?;
    let part = running.find(MARK).and_then(|at| running.get(at..)).unwrap_or_default();
    Some(part == observe(node).mark)
}
