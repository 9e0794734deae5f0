//! People and machines that operate a cluster: their roles, and the name in the certificate that says so.
//!
//! **Invariant:** the operators' authority signs no node, and the authorities of nodes sign no operator; a name alone proves nothing.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::names::{SUFFIX, is_host_name};

/// The files of the operators' authority, in the folder of authorities; nodes have its certificate and its list of revoked ones. The names
/// do not end in `-ca`, so that a command which copies the issuing keys of nodes leaves this key where it is.
pub mod operator_files {
    /// Its certificate.
    pub const CERTIFICATE: &str = "operators.crt";
    /// Its issuing key. It belongs on no node.
    pub const KEY: &str = "operators.key";
    /// The list of revoked certificates.
    pub const REVOKED: &str = "operators.crl";
}

/// What an operator may do. Each role includes those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OperatorRole {
    /// Reads status, plans and files.
    Viewer,
    /// Drains, restarts and backs up, and changes tunables.
    Operator,
    /// Changes everything else: members, store, URLs, users, programs.
    Admin,
}

impl OperatorRole {
    /// All of them, the weakest first.
    pub const ALL: [OperatorRole; 3] = [OperatorRole::Viewer, OperatorRole::Operator, OperatorRole::Admin];

    /// As commands and certificates call it.
    pub fn word(self) -> &'static str {
        match self {
            OperatorRole::Viewer => "viewer",
            OperatorRole::Operator => "operator",
            OperatorRole::Admin => "admin",
        }
    }

    /// The role of that name.
    pub fn parse(text: &str) -> Option<OperatorRole> {
        OperatorRole::ALL.into_iter().find(|role| role.word() == text)
    }
}

impl fmt::Display for OperatorRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// The name that the certificate of an operator carries; none where the text cannot be part of one.
pub fn operator_hostname(name: &str, role: OperatorRole, token: &str) -> Option<String> {
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let made = format!("{name}.{}.operator.{token}.{SUFFIX}", role.word()).to_ascii_lowercase();
    (!name.is_empty() && name.chars().all(fits) && is_host_name(&made)).then_some(made)
}

/// The operator whose certificate carries `hostname`, if it is such a name.
pub fn operator_of_hostname(hostname: &str, token: &str) -> Option<(String, OperatorRole)> {
    let rest = format!(".operator.{token}.{SUFFIX}").to_ascii_lowercase();
    let lower = hostname.to_ascii_lowercase();
    let (name, role) = lower.strip_suffix(&rest)?.rsplit_once('.')?;
    let role = OperatorRole::parse(role)?;
    (operator_hostname(name, role, token)? == lower).then(|| (name.to_owned(), role))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_carries_operator_and_role_and_is_of_one_cluster() {
        for role in OperatorRole::ALL {
            let name = operator_hostname("alice", role, "Prod-1").unwrap();
            assert_eq!(operator_of_hostname(&name, "prod-1"), Some(("alice".to_owned(), role)));
            assert_eq!(operator_of_hostname(&name, "prod-2"), None);
        }
        assert!(OperatorRole::Viewer < OperatorRole::Operator && OperatorRole::Operator < OperatorRole::Admin);
    }

    #[test]
    fn names_of_nodes_and_odd_texts_are_no_operators() {
        for text in ["", "a.b", "A", "ä", "-a", "a_b", "*"] {
            assert_eq!(operator_hostname(text, OperatorRole::Admin, "t"), None, "{text:?}");
        }
        let node = super::super::agent_hostname("alice.admin", "t");
        assert_eq!(operator_of_hostname(&node, "t"), None);
        for text in [
            "alice.root.operator.t.quorate.internal",
            "admin.operator.t.quorate.internal",
            ".admin.operator.t.quorate.internal",
            "a.b.admin.operator.t.quorate.internal",
        ] {
            assert_eq!(operator_of_hostname(text, "t"), None, "{text}");
        }
    }
}
