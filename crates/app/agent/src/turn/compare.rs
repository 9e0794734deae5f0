//! Compares what etcd runs with, and what a cluster file asks for: the one that this node holds, or one that is only shown to it.
//!
//! **Rule:** nothing is written, and nothing that runs is touched.

use std::collections::BTreeSet;

use quorate_faults::Fault;
use quorate_plan::change::Restart;
use quorate_plan::spec::Spec;

use super::etcd::{self, Config, Program};
use super::node::Node;
use super::publish::Shared;
use super::trusting;

/// What came of it.
pub(super) struct Compared {
    /// Why etcd would have to be restarted, where it would.
    pub(super) restart: Option<Restart>,
    /// It was taken over with other settings, and waits for somebody's word.
    pub(super) awaits: bool,
}

/// Compares etcd that runs with what its next start would bring.
pub(super) fn compare(node: &Node, program: &Program, config: &Config, shared: &Shared) -> Compared {
    let runs = shared.status().etcd.and_then(|etcd| etcd.version);
    let release = runs.filter(|runs| *runs != program.binary.version).map(|_| program.binary.version.clone());
    let running = shared.running_hash();
    let other = running.as_ref().is_some_and(|hash| !config.is_current(hash));
    let awaits = !shared.may_restart() && running.as_ref().is_some_and(|hash| config.awaits_a_word(node, hash));
    let why = match (&release, other) {
        (Some(release), _) => Some(format!("etcd {release} is declared")),
        (None, true) => Some("its settings or its trust changed".to_owned()),
        (None, false) => None,
    };
    let trust = trusting::is_current(node, shared) == Some(false);
    let moves = node.moves_with(&config.text);
    Compared { restart: why.map(|why| Restart { why, release, trust, moves }), awaits }
}

/// Why the etcd that runs here would be restarted if its file had this content; `None`: it would not, or none runs.
///
/// A program or trust that only the other file names is neither run nor read: that it is another one is reason enough.
pub(crate) fn restart_by(node: &Node, shared: &Shared, spec: Spec) -> Result<Option<Restart>, Fault> {
    let Some(new) = node.with_spec(spec) else { return Ok(None) };
    if !new.keeps_etcd() || shared.running_hash().is_none() {
        return Ok(None);
    }
    if new.spec.agent.etcd_binary != node.spec.agent.etcd_binary || new.spec.security != node.spec.security {
        return Ok(Some(restart_unread(node, &new, shared)));
    }
    let program = Program::find(&new, None)?;
    let config = etcd::config(&new, &program)?;
    let Some(mut restart) = compare(&new, &program, &config, shared).restart else { return Ok(None) };
    if restart.release.is_none() {
        let release = program.binary.version.as_str();
        let ((before, _), (after, _)) = (etcd::declared_config(node, release)?, etcd::declared_config(&new, release)?);
        let keys = changed_keys(&before, &after);
        if !keys.is_empty() {
            restart.why = format!("other settings: {}", keys.into_iter().collect::<Vec<_>>().join(", "));
        }
    }
    Ok(Some(restart))
}

/// What a file with another program or other certificates means, by its words alone.
fn restart_unread(node: &Node, new: &Node, shared: &Shared) -> Restart {
    let runs = shared.status().etcd.and_then(|etcd| etcd.version);
    let declared = new.spec.agent.etcd_version.clone();
    let release = declared.filter(|declared| runs.as_ref().is_none_or(|runs| !etcd::is_version(runs, declared)));
    let trust = new.spec.security != node.spec.security;
    let why = if trust { "other certificates are declared" } else { "another `etcd-binary` is declared" };
    let urls = |node: &Node| (node.member.peer_urls.clone(), node.member.listen_peer_urls.clone());
    Restart { why: why.to_owned(), release, trust, moves: urls(node) != urls(new) }
}

/// The keys of the lines that only one of two rendered settings has.
fn changed_keys<'a>(before: &'a str, after: &'a str) -> BTreeSet<&'a str> {
    let lines = |text: &'a str| text.lines().collect::<BTreeSet<&'a str>>();
    let (before, after) = (lines(before), lines(after));
    let changed = before.symmetric_difference(&after).filter_map(|line| line.split_once(':'));
    changed.map(|(key, _)| key.trim_matches([' ', '"'])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_changed_lines_are_named_once() {
        let before = "name: n1\nsnapshot-count: 5000\nquota-backend-bytes: 1\n";
        let after = "name: n1\nsnapshot-count: 9000\n\"auto-compaction-mode\": periodic\n";
        let keys: Vec<&str> = changed_keys(before, after).into_iter().collect();
        assert_eq!(keys, ["auto-compaction-mode", "quota-backend-bytes", "snapshot-count"]);
        assert!(changed_keys(before, before).is_empty());
    }
}
