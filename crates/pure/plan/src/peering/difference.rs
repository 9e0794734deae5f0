//! Compares two cluster files: whether the second differs from the first by its list of members alone.
//!
//! **Invariant:** every setting is compared, also those that later releases add; what cannot be told apart as a member is another
//! difference.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::spec::{Member, Spec};

/// The members by which two files differ.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MemberDifference {
    /// Members that only the new file declares.
    pub added: Vec<Member>,
    /// Members that only the old file declares.
    pub removed: Vec<Member>,
}

impl MemberDifference {
    /// Whether both files declare the same members.
    pub fn is_empty(&self) -> bool {
        self.added.is_empty() && self.removed.is_empty()
    }
}

/// Two files differ by more than added and removed members.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("more than the list of members differs: {}", keys.join(", "))]
pub struct OtherDifference {
    /// The top-level keys that differ; `members.NAME` for a member that both files declare differently.
    pub keys: Vec<String>,
}

/// The members by which `new` differs from `old`, if nothing else differs. A bootstrap that the new file drops is no difference: it is
/// inert once there are several members.
pub fn only_members_differ(old: &Spec, new: &Spec) -> Result<MemberDifference, OtherDifference> {
    let only = |of: &Spec, other: &Spec| {
        of.members.iter().filter(|member| other.member(&member.name).is_none()).cloned().collect::<Vec<Member>>()
    };
    let changed = old.members.iter().filter(|member| new.member(&member.name).is_some_and(|now| now != *member));
    let mut keys: Vec<String> = changed.map(|member| format!("members.{}", member.name)).collect();
    let bootstrap = new.bootstrap.or(old.bootstrap);
    let rest = |spec: &Spec, bootstrap| Spec { members: Vec::new(), bootstrap, ..spec.clone() };
    let (before, after) = (rest(old, old.bootstrap), rest(new, bootstrap));
    if before != after {
        keys.extend(differing_keys(&before, &after));
    }
    match keys.is_empty() {
        true => Ok(MemberDifference { added: only(new, old), removed: only(old, new) }),
        false => Err(OtherDifference { keys }),
    }
}

fn differing_keys(before: &Spec, after: &Spec) -> Vec<String> {
    let map = |spec: &Spec| match serde_json::to_value(spec) {
        Ok(Value::Object(map)) => map,
        Ok(_) | Err(_) => serde_json::Map::new(),
    };
    let (before, after) = (map(before), map(after));
    let all: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    let differing: Vec<String> = all.into_iter().filter(|key| before.get(*key) != after.get(*key)).cloned().collect();
    // What is not written into the file, such as the root of the machine.
    if differing.is_empty() { vec!["settings".to_owned()] } else { differing }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "token: t\nbootstrap: {id: 1}\nplaintext: true\nmembers:\n  - {name: n1, address: 10.0.0.1}\n";

    fn spec(text: &str) -> Spec {
        Spec::parse(text.as_bytes(), "c.yaml").unwrap().0
    }

    fn names(members: &[Member]) -> Vec<&str> {
        members.iter().map(|member| member.name.as_str()).collect()
    }

    #[test]
    fn added_and_removed_members_are_the_only_difference() {
        let one = spec(FILE);
        let two = spec(&format!("{FILE}  - {{name: n2, address: 10.0.0.2}}\n").replace("bootstrap: {id: 1}\n", ""));
        assert!(only_members_differ(&one, &one).unwrap().is_empty());
        let grown = only_members_differ(&one, &two).unwrap();
        assert_eq!((names(&grown.added), names(&grown.removed)), (vec!["n2"], vec![]));
        let other = spec(&FILE.replace("n1", "n3").replace("10.0.0.1", "10.0.0.3").replace("bootstrap: {id: 1}\n", ""));
        let replaced = only_members_differ(&two, &other).unwrap();
        assert_eq!((names(&replaced.added), names(&replaced.removed)), (vec!["n3"], vec!["n1", "n2"]));
    }

    #[test]
    fn every_other_difference_is_named() {
        let one = spec(FILE);
        for (text, key) in [
            (format!("{FILE}processes: {{x: {{executable: /bin/sh}}}}\n"), "processes"),
            (format!("{FILE}agent: {{etcd-binary: /tmp/etcd}}\n"), "agent"),
            (format!("{FILE}agent: {{state-dir: /tmp/state}}\n"), "agent"),
            (format!("{FILE}etcd: {{quota-backend-bytes: 8589934592}}\n"), "etcd"),
            (format!("{FILE}box: {{level: off}}\n"), "box"),
            (FILE.replace("token: t", "token: u"), "token"),
            (FILE.replace("id: 1", "id: 2"), "bootstrap"),
            (FILE.replace("10.0.0.1", "10.0.0.9"), "members.n1"),
        ] {
            let other = only_members_differ(&one, &spec(&text)).unwrap_err();
            assert_eq!(other.keys, [key], "{text}");
        }
        let without = spec(&FILE.replace("bootstrap: {id: 1}\n", ""));
        assert_eq!(only_members_differ(&without, &one).unwrap_err().keys, ["bootstrap"]);
    }
}
