//! What a node is, in one small file that decides at its start: a line of words, and the checksum over it.
//!
//! **Rule:** a file that cannot be read is a fault, never a new node.

use quorate_etcd_formats::hex::hex;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// What a node is to its cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// A cluster of one, made here.
    Standalone,
    /// A member of etcd.
    Server,
    /// No member: it has the addresses of the members.
    Client,
    /// etcd is somebody else's.
    External,
    /// It was a member, and is none any more.
    Detached,
}

impl Role {
    /// The word.
    pub fn word(self) -> &'static str {
        match self {
            Role::Standalone => "standalone",
            Role::Server => "server",
            Role::Client => "client",
            Role::External => "external",
            Role::Detached => "detached",
        }
    }

    /// Whether a node that joins with this role gets what servers have: the cluster's data and its issuing keys.
    pub fn is_server(self) -> bool {
        match self {
            Role::Standalone | Role::Server | Role::External => true,
            Role::Client | Role::Detached => false,
        }
    }

    pub(super) fn number(self) -> u8 {
        match self {
            Role::Standalone => 0,
            Role::Server => 1,
            Role::Client => 2,
            Role::External => 3,
            Role::Detached => 4,
        }
    }

    /// Only those that someone can be invited as.
    pub(super) fn of_number(number: u8) -> Option<Role> {
        match number {
            1 => Some(Role::Server),
            2 => Some(Role::Client),
            3 => Some(Role::External),
            _ => None,
        }
    }
}

impl std::fmt::Display for Role {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.word())
    }
}

/// What the file says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocalState {
    /// What this node is.
    pub role: Role,
    /// Its name.
    pub name: String,
    /// The cluster's token.
    pub cluster: String,
    /// Where others reach it.
    pub address: String,
    /// Since when, in ms since 1970.
    pub since_ms: u64,
    /// What was taken over from elsewhere.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// Why a file is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LocalError {
    /// It is longer than any.
    #[error("it is too long")]
    Long,
    /// It was not written by us, or is cut short.
    #[error("it is not whole")]
    Damaged,
    /// A newer program wrote it.
    #[error("a newer program wrote it")]
    Newer,
}

const HEAD: &str = "quorate node 1 ";

impl LocalState {
    /// More than any has.
    pub const BYTES_MAX: usize = 64 << 10;

    /// The file's text.
    pub fn encode(&self) -> String {
        // Words and numbers alone; that cannot fail.
        let body = serde_json::to_string(self).unwrap_or_default();
        format!("{HEAD}{}\n{body}\n", hex(&Sha256::digest(body.as_bytes())))
    }

    /// Reads it.
    pub fn decode(bytes: &[u8]) -> Result<LocalState, LocalError> {
        if bytes.len() > LocalState::BYTES_MAX {
            return Err(LocalError::Long);
        }
        let text = std::str::from_utf8(bytes).map_err(|_| LocalError::Damaged)?;
        let (head, body) = text.split_once('\n').ok_or(LocalError::Damaged)?;
        let Some(sum) = head.strip_prefix(HEAD) else {
            return Err(if head.starts_with("quorate node ") { LocalError::Newer } else { LocalError::Damaged });
        };
        let body = body.strip_suffix('\n').ok_or(LocalError::Damaged)?;
        if hex(&Sha256::digest(body.as_bytes())) != sum {
            return Err(LocalError::Damaged);
        }
        serde_json::from_str(body).map_err(|_| LocalError::Newer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn no_bytes_make_the_reader_panic(bytes: Vec<u8>, body: String) {
            let _ = LocalState::decode(&bytes);
            let summed = format!("{HEAD}{}\n{body}\n", hex(&Sha256::digest(body.as_bytes())));
            if let Ok(state) = LocalState::decode(summed.as_bytes()) {
                assert_eq!(LocalState::decode(state.encode().as_bytes()), Ok(state));
            }
        }
    }

    #[test]
    fn a_state_is_read_back_and_every_change_of_a_byte_is_noticed() {
        let state = LocalState {
            role: Role::Server,
            name: "n1".to_owned(),
            cluster: "t".to_owned(),
            address: "10.0.0.1".to_owned(),
            since_ms: 5,
            notes: vec!["a note".to_owned()],
        };
        let text = state.encode();
        assert_eq!(LocalState::decode(text.as_bytes()), Ok(state));
        for at in 0..text.len() {
            let mut bytes = text.clone().into_bytes();
            bytes[at] ^= 1;
            assert!(LocalState::decode(&bytes).is_err(), "byte {at}");
            assert!(LocalState::decode(&text.as_bytes()[..at]).is_err(), "cut at {at}");
        }
        assert_eq!(LocalState::decode(b"quorate node 2 x\n{}\n"), Err(LocalError::Newer));
    }
}
