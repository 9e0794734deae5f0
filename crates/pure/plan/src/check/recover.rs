//! Reads the order of a recovery before it is carried out. Written from the rules, not from what made the order.

use crate::change::recover::{Evidence, Reply, StoreWatch};

/// Who takes part in a recovery, and what is known of the others.
#[derive(Debug, Clone, Copy)]
pub struct RecoveryParts<'a> {
    /// The node that begins.
    pub begins: &'a str,
    /// All members: declared, and voters of the cluster that was.
    pub members: &'a [String],
    /// Those that join.
    pub joins: &'a [String],
    /// Those whose agents answer and that stay as they are.
    pub passed_over: &'a [String],
    /// Those that the operator stated to be off.
    pub fenced: &'a [String],
    /// What the survey observed of the others, and what was observed since.
    pub evidence: Evidence<'a>,
}

/// Returns the rules that a recovery would break. It must not begin unless there is none.
pub fn check_recovery(parts: &RecoveryParts<'_>) -> Result<(), Vec<String>> {
    let mut broken = Vec::new();
    for probe in parts.evidence.probes {
        if let Reply::Answered { url } = &probe.reply {
            broken.push(format!(
                "no cluster is recovered while the etcd of an absent member answers: `{}` at `{url}`",
                probe.member
            ));
        }
    }
    for (node, watch) in parts.evidence.watches {
        if let StoreWatch::Grew { to, .. } = watch {
            broken.push(format!(
                "no cluster is recovered while its backups grow: `{node}` saw revision {to} in the store"
            ));
        }
    }
    let has = |list: &[String], name: &String| list.contains(name);
    for member in parts.members {
        let absent = *member != parts.begins && !has(parts.joins, member) && !has(parts.passed_over, member);
        if absent && !has(parts.fenced, member) {
            broken.push(format!("a member that takes no part in a recovery is fenced: `{member}` is not"));
        }
    }
    if broken.is_empty() { Ok(()) } else { Err(broken) }
}
