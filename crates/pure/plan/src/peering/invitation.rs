//! Invitations: one-time tokens by their hashes, and how often someone may be wrong.
//!
//! **Invariant:** a token itself is never kept; one that was used belongs to whoever used it first, and lets nobody else in.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::Role;
use quorate_etcd_formats::hex::hex;

/// The longest time that a code may hold: a day.
pub const TTL_MAX_MS: u64 = 24 * 3600 * 1000;
/// Wrong tokens from one address, within [`STRIKES_SPAN_MS`], before it is not listened to.
pub const STRIKES_MAX: u32 = 5;
/// How long a wrong token is remembered.
pub const STRIKES_SPAN_MS: u64 = 60_000;
/// Addresses that are remembered at once; who is the longest ago is forgotten first.
const ADDRESSES_MAX: usize = 1024;
/// Invitations that are kept at once.
const KEPT_MAX: usize = 64;

/// One invitation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Invitation {
    /// SHA-256 of the token, in hex.
    pub token: String,
    /// As what.
    pub role: Role,
    /// Until when, in ms since 1970.
    pub expires_ms: u64,
    /// Who used it: what it asked to have signed, as a hash. The same one may ask again, in case it did not hear the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used_by: Option<String>,
}

/// All of them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Invitations {
    /// In the order in which they were made.
    pub all: Vec<Invitation>,
}

/// Why someone is turned away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turned {
    /// No such token.
    Unknown,
    /// Its time is over.
    Expired,
    /// Somebody else used it.
    Used,
}

impl Invitations {
    /// Keeps one more, and forgets those whose time is long over.
    pub fn add(&mut self, token: &[u8], role: Role, expires_ms: u64, now_ms: u64) {
        self.all.retain(|known| known.expires_ms.saturating_add(TTL_MAX_MS) > now_ms);
        self.all.drain(..self.all.len().saturating_sub(KEPT_MAX - 1));
        let expires_ms = expires_ms.min(now_ms.saturating_add(TTL_MAX_MS));
        self.all.push(Invitation { token: hashed(token), role, expires_ms, used_by: None });
    }

    /// Whether anyone may still come. `busy`: someone is being taken in, and may not have heard the answer yet. A client is taken in
    /// the moment it asks, so whether it has heard is not known before its time is over.
    pub fn is_open(&self, busy: bool, now_ms: u64) -> bool {
        let unheard = |known: &Invitation| busy || known.used_by.is_none() || known.role == Role::Client;
        self.all.iter().any(|known| now_ms < known.expires_ms && unheard(known))
    }

    /// The invitation of a token, for who asks for `asks` to be signed; `None`: it only looks.
    pub fn find(&self, token: &[u8], asks: Option<&str>, now_ms: u64) -> Result<&Invitation, Turned> {
        let hash = hashed(token);
        // Hashes of secrets: comparing them tells nothing that helps.
        let known = self.all.iter().find(|known| known.token == hash).ok_or(Turned::Unknown)?;
        match (&known.used_by, asks) {
            _ if now_ms >= known.expires_ms => Err(Turned::Expired),
            (Some(by), Some(asks)) if by != asks => Err(Turned::Used),
            (Some(_) | None, _) => Ok(known),
        }
    }

    /// Binds it to who uses it.
    pub fn use_up(&mut self, token: &[u8], asks: &str) {
        let hash = hashed(token);
        for known in self.all.iter_mut().filter(|known| known.token == hash && known.used_by.is_none()) {
            known.used_by = Some(asks.to_owned());
        }
    }
}

impl Invitations {
    /// Frees what was bound to `asks`: nothing came of it.
    pub fn release(&mut self, asks: &str) {
        for known in self.all.iter_mut().filter(|known| known.used_by.as_deref() == Some(asks)) {
            known.used_by = None;
        }
    }
}

fn hashed(token: &[u8]) -> String {
    hex(&Sha256::digest(token))
}

/// Who was wrong, and when.
#[derive(Debug, Clone, Default)]
pub struct Strikes {
    by: BTreeMap<String, Vec<u64>>,
}

impl Strikes {
    /// Whether this address is listened to.
    pub fn is_heard(&self, from: &str, now_ms: u64) -> bool {
        let fresh = |at: &&u64| at.saturating_add(STRIKES_SPAN_MS) > now_ms;
        let count = self.by.get(from).map_or(0, |wrong| wrong.iter().filter(fresh).count());
        u32::try_from(count).is_ok_and(|count| count < STRIKES_MAX)
    }

    /// It was wrong once more.
    pub fn note(&mut self, from: &str, now_ms: u64) {
        self.by.retain(|_, wrong| wrong.last().is_some_and(|at| at.saturating_add(STRIKES_SPAN_MS) > now_ms));
        if self.by.len() >= ADDRESSES_MAX {
            let oldest = self.by.iter().min_by_key(|(_, wrong)| wrong.last().copied()).map(|(from, _)| from.clone());
            oldest.map(|oldest| self.by.remove(&oldest));
        }
        let wrong = self.by.entry(from.to_owned()).or_default();
        wrong.retain(|at| at.saturating_add(STRIKES_SPAN_MS) > now_ms);
        if wrong.len() < STRIKES_MAX as usize {
            wrong.push(now_ms);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_holds_once_for_one_and_for_its_time() {
        let mut all = Invitations::default();
        all.add(b"secret", Role::Server, 2000, 1000);
        assert!(!serde_json::to_string(&all).unwrap().contains("secret"));
        assert_eq!(all.find(b"other", None, 1500), Err(Turned::Unknown));
        assert!(all.find(b"secret", Some("me"), 1500).is_ok());
        all.use_up(b"secret", "me");
        all.use_up(b"secret", "you");
        assert!(all.find(b"secret", Some("me"), 1500).is_ok(), "who did not hear the answer asks again");
        assert_eq!(all.find(b"secret", Some("you"), 1500), Err(Turned::Used));
        assert_eq!(all.find(b"secret", Some("me"), 2000), Err(Turned::Expired));
        assert!(all.is_open(true, 1999) && !all.is_open(false, 1999) && !all.is_open(true, 2000));
        let mut clients = Invitations::default();
        clients.add(b"secret", Role::Client, 2000, 1000);
        clients.use_up(b"secret", "me");
        assert!(
            clients.is_open(false, 1999) && !clients.is_open(false, 2000),
            "a client may not have heard the answer"
        );
        all.add(b"long", Role::Server, u64::MAX, 1000);
        assert_eq!(all.all[1].expires_ms, 1000 + TTL_MAX_MS);
    }

    #[test]
    fn who_is_wrong_too_often_is_not_heard_for_a_while_and_others_are() {
        let mut strikes = Strikes::default();
        for at in 0..u64::from(STRIKES_MAX) {
            assert!(strikes.is_heard("a", 1000 + at));
            strikes.note("a", 1000 + at);
        }
        assert!(!strikes.is_heard("a", 2000));
        assert!(strikes.is_heard("b", 2000), "nobody is shut out by another");
        assert!(strikes.is_heard("a", 1000 + STRIKES_SPAN_MS + 10));
        for at in 0..5000_u64 {
            strikes.note(&format!("x{at}"), 3000);
        }
        assert!(strikes.by.len() <= ADDRESSES_MAX);
    }
}
