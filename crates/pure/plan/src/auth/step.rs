//! One call that changes users or roles, and its words.
//!
//! **Rule:** a step names the file of a password, never the password.

use std::fmt;

use super::KeyRange;
use crate::roster::quoted;
use crate::spec::Access;

/// One change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AuthStep {
    /// Make a role that permits nothing yet.
    AddRole {
        /// Its name.
        role: String,
    },
    /// Let a role do something with some keys; replaces what it could do with the same keys.
    Grant {
        /// The role.
        role: String,
        /// The first key.
        key: Vec<u8>,
        /// The first key that is not meant; empty: one key alone; one zero byte: to the last.
        range_end: Vec<u8>,
        /// What may be done.
        access: Access,
    },
    /// Make a user that may do nothing yet.
    AddUser {
        /// The name.
        user: String,
        /// Where the password stands; without one a certificate is the only way in.
        password_file: Option<String>,
    },
    /// Give a user a role.
    GrantRole {
        /// The user.
        user: String,
        /// The role.
        role: String,
    },
    /// Set the declared password.
    SetPassword {
        /// The user.
        user: String,
        /// Where it stands.
        password_file: String,
    },
    /// Take a role from a user.
    RevokeRole {
        /// The user.
        user: String,
        /// The role.
        role: String,
    },
    /// Take a permission from a role.
    Revoke {
        /// The role.
        role: String,
        /// The first key.
        key: Vec<u8>,
        /// As with [`AuthStep::Grant`].
        range_end: Vec<u8>,
    },
    /// Remove a user that is not declared.
    RemoveUser {
        /// The name.
        user: String,
    },
    /// Remove a role that is not declared.
    RemoveRole {
        /// The name.
        role: String,
    },
    /// Ask everyone who they are from now on.
    Enable,
}

pub(super) fn grant(role: &str, keys: &KeyRange, access: Access) -> AuthStep {
    let (key, range_end) = keys.clone();
    AuthStep::Grant { role: role.to_owned(), key, range_end, access }
}

pub(super) fn revoke(role: &str, keys: &KeyRange) -> AuthStep {
    let (key, range_end) = keys.clone();
    AuthStep::Revoke { role: role.to_owned(), key, range_end }
}

impl fmt::Display for AuthStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AuthStep::AddRole { role } => write!(f, "add role {}", quoted(role)),
            AuthStep::Grant { role, key, range_end, access } => {
                let word = match access {
                    Access::Read => "read",
                    Access::Write => "write",
                    Access::ReadWrite => "read and write",
                };
                write!(f, "let role {} {word} {}", quoted(role), keys(key, range_end))
            }
            AuthStep::AddUser { user, password_file: Some(_) } => write!(f, "add user {}", quoted(user)),
            AuthStep::AddUser { user, password_file: None } => write!(f, "add user {} without password", quoted(user)),
            AuthStep::GrantRole { user, role } => write!(f, "give user {} role {}", quoted(user), quoted(role)),
            AuthStep::SetPassword { user, .. } => write!(f, "set the password of user {}", quoted(user)),
            AuthStep::RevokeRole { user, role } => write!(f, "take role {} from user {}", quoted(role), quoted(user)),
            AuthStep::Revoke { role, key, range_end } => {
                write!(f, "take {} from role {}", keys(key, range_end), quoted(role))
            }
            AuthStep::RemoveUser { user } => write!(f, "remove user {}, who is not declared", quoted(user)),
            AuthStep::RemoveRole { role } => write!(f, "remove role {}, which is not declared", quoted(role)),
            AuthStep::Enable => f.write_str("enable auth"),
        }
    }
}

fn keys(key: &[u8], range_end: &[u8]) -> String {
    let text = |bytes: &[u8]| quoted(&String::from_utf8_lossy(bytes));
    match (key, range_end) {
        ([0], [0]) => "all keys".to_owned(),
        (key, []) => format!("key {}", text(key)),
        (key, [0]) => format!("keys from {} on", text(key)),
        (key, end) => format!("keys from {} up to {}", text(key), text(end)),
    }
}
