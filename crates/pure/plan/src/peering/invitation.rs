//! Invitations: one-time tokens by their hashes, and how often someone may be wrong.
//!
//! **Invariant:** a token itself is never kept; one that was used belongs to whoever used it first, and lets nobody else in. A node
//! becomes a server only with the second secret or an approval, and what an invitation is bound to holds for every use of it.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{ApprovalSecret, Newcomer, Role};
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
/// Before the hash of a token with terms: a release that does not enforce them does not find it, and refuses.
const WITH_TERMS: &str = "terms:";

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
    /// What else is required.
    #[serde(flatten)]
    pub terms: Terms,
    /// The node that was approved, by its fingerprint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approved: Option<String>,
}

/// What an invitation requires beside its token.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terms {
    /// The name of the only node that may use it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The address of the only node that may use it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
    /// The hash of the second secret, which takes the place of an approval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
    /// The key of proofs of a short code, in hex. It lies beside the issuing keys, which are worth more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// How a node is not the one that an invitation is for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Mismatch {
    /// It has another name.
    #[error("the code is for another node than `{0}`")]
    Name(String),
    /// It declares another address.
    #[error("the code is for a node at another address than `{0}`")]
    Address(String),
    /// Its connection comes from elsewhere.
    #[error("the code is for a node at another address than `{0}`, from which this request came")]
    Source(IpAddr),
}

/// Whether a node may become what it was invited as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// Yes.
    Admitted,
    /// Once an operator has approved it.
    Awaits,
    /// The second secret is wrong.
    WrongSecret,
}

impl Invitation {
    /// How the node is not the one that this is for. `from`: where its connection comes from.
    pub fn mismatch(&self, newcomer: &Newcomer, from: IpAddr) -> Option<Mismatch> {
        let Terms { name, address, .. } = &self.terms;
        if name.as_ref().is_some_and(|name| *name != newcomer.name) {
            return Some(Mismatch::Name(shown(&newcomer.name)));
        }
        let address = address.as_ref()?.to_canonical();
        let declared: Option<IpAddr> = newcomer.address.parse().ok();
        if declared.map(|declared| declared.to_canonical()) != Some(address) {
            return Some(Mismatch::Address(shown(&newcomer.address)));
        }
        (from.to_canonical() != address).then(|| Mismatch::Source(from.to_canonical()))
    }

    /// Whether the node with this claim (its hash) and fingerprint may become what it was invited as.
    pub fn admission(&self, claim: &str, print: &str, secret: Option<&ApprovalSecret>) -> Admission {
        if !self.role.is_server() {
            return Admission::Admitted;
        }
        match (&self.terms.secret, secret) {
            (Some(hash), Some(secret)) if *hash == secret.hash() => return Admission::Admitted,
            (Some(_), Some(_)) => return Admission::WrongSecret,
            (_, None) | (None, Some(_)) => {}
        }
        let admitted = self.approved.as_deref() == Some(print) || self.used_by.as_deref() == Some(claim);
        if admitted { Admission::Admitted } else { Admission::Awaits }
    }

    fn is_of(&self, hash: &str) -> bool {
        self.token.strip_prefix(WITH_TERMS).unwrap_or(&self.token) == hash
    }
}

/// Names and addresses of others may be long, and must not break our lines.
fn shown(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(100).collect()
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
        self.add_with(token, role, Terms::default(), expires_ms, now_ms);
    }

    /// The same with terms.
    pub fn add_with(&mut self, token: &[u8], role: Role, terms: Terms, expires_ms: u64, now_ms: u64) {
        self.all.retain(|known| known.expires_ms.saturating_add(TTL_MAX_MS) > now_ms);
        self.all.drain(..self.all.len().saturating_sub(KEPT_MAX - 1));
        let expires_ms = expires_ms.min(now_ms.saturating_add(TTL_MAX_MS));
        let enforced = role.is_server() || terms != Terms::default();
        let token = if enforced { format!("{WITH_TERMS}{}", hashed(token)) } else { hashed(token) };
        self.all.push(Invitation { token, role, expires_ms, used_by: None, terms, approved: None });
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
        let known = self.all.iter().find(|known| known.is_of(&hash)).ok_or(Turned::Unknown)?;
        match (&known.used_by, asks) {
            _ if now_ms >= known.expires_ms => Err(Turned::Expired),
            (Some(by), Some(asks)) if by != asks => Err(Turned::Used),
            (Some(_) | None, _) => Ok(known),
        }
    }

    /// Binds it to who uses it.
    pub fn use_up(&mut self, token: &[u8], asks: &str) {
        let hash = hashed(token);
        for known in self.all.iter_mut().filter(|known| known.is_of(&hash) && known.used_by.is_none()) {
            known.used_by = Some(asks.to_owned());
        }
    }

    /// Lets the node with this fingerprint become a server by the invitation with this token, as it is kept. False: there is none
    /// any more.
    pub fn approve(&mut self, token: &str, print: &str, now_ms: u64) -> bool {
        let open =
            |known: &&mut Invitation| known.token == token && known.used_by.is_none() && now_ms < known.expires_ms;
        let found = self.all.iter_mut().find(open);
        found.map(|known| known.approved = Some(print.to_owned())).is_some()
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

    fn newcomer(name: &str, address: &str) -> Newcomer {
        Newcomer { name: name.to_owned(), address: address.to_owned(), data_dir: "/d".to_owned() }
    }

    fn with(role: Role, terms: Terms) -> Invitation {
        let mut all = Invitations::default();
        all.add_with(b"secret", role, terms, 2000, 1000);
        all.find(b"secret", None, 1500).unwrap().clone()
    }

    #[test]
    fn binds_an_invitation_to_a_name_and_an_address() {
        let at = |text: &str| text.parse::<IpAddr>().unwrap();
        let node = newcomer("n4", "10.0.0.4");
        assert_eq!(with(Role::Client, Terms::default()).mismatch(&node, at("10.9.9.9")), None);
        let terms = Terms { name: Some("n4".to_owned()), ..Terms::default() };
        let named = with(Role::Client, terms);
        assert_eq!(named.mismatch(&node, at("10.9.9.9")), None);
        assert_eq!(
            named.mismatch(&newcomer("n5\n", "10.0.0.4"), at("10.0.0.4")),
            Some(Mismatch::Name("n5".to_owned()))
        );
        let placed = with(Role::Client, Terms { address: Some(at("10.0.0.4")), ..Terms::default() });
        assert_eq!(placed.mismatch(&node, at("::ffff:10.0.0.4")), None);
        assert_eq!(placed.mismatch(&node, at("10.0.0.5")), Some(Mismatch::Source(at("10.0.0.5"))));
        for other in ["10.0.0.5", "n4.example", ""] {
            let found = placed.mismatch(&newcomer("n4", other), at("10.0.0.4"));
            assert_eq!(found, Some(Mismatch::Address(other.to_owned())));
        }
        // An address in other words is the same address.
        let six = with(Role::Client, Terms { address: Some(at("fd00::4")), ..Terms::default() });
        assert_eq!(six.mismatch(&newcomer("n4", "fd00:0:0::4"), at("fd00::4")), None);
    }

    #[test]
    fn makes_a_server_only_with_the_second_secret_or_an_approval() {
        let (right, wrong) = (ApprovalSecret::new([1; 10]), ApprovalSecret::new([2; 10]));
        let terms = Terms { secret: Some(right.hash()), ..Terms::default() };
        for role in [Role::Server, Role::External] {
            let mut all = Invitations::default();
            all.add_with(b"secret", role, terms.clone(), 2000, 1000);
            let one = all.all[0].clone();
            assert_eq!(one.admission("me", "F", None), Admission::Awaits);
            assert_eq!(one.admission("me", "F", Some(&wrong)), Admission::WrongSecret);
            assert_eq!(one.admission("me", "F", Some(&right)), Admission::Admitted);
            assert!(!all.approve("other", "F", 1500) && !all.approve(&one.token, "F", 2000));
            assert!(all.approve(&one.token, "F", 1500));
            assert_eq!(all.all[0].admission("me", "F", None), Admission::Admitted);
            assert_eq!(all.all[0].admission("me", "G", None), Admission::Awaits, "an approval is for one node");
            all.use_up(b"secret", "me");
            assert_eq!(all.all[0].admission("me", "G", None), Admission::Admitted, "what was begun goes on");
            assert!(!all.approve(&one.token, "G", 1500), "it was used");
        }
        assert_eq!(with(Role::Client, Terms::default()).admission("me", "F", None), Admission::Admitted);
        // Without a secret of its own, an invitation takes none.
        let without = with(Role::Server, Terms::default());
        assert_eq!(without.admission("me", "F", Some(&right)), Admission::Awaits);
    }

    #[test]
    fn keeps_invitations_of_the_release_before_and_lets_it_find_none_with_terms() {
        let old = format!(r#"{{"all":[{{"token":"{}","role":"server","expires_ms":2000}}]}}"#, hashed(b"secret"));
        let mut all: Invitations = serde_json::from_str(&old).unwrap();
        let found = all.find(b"secret", Some("me"), 1500).unwrap();
        assert_eq!(found.admission("me", "F", None), Admission::Awaits, "an old code alone makes no server either");
        all.use_up(b"secret", "me");
        assert_eq!(all.all[0].admission("me", "F", None), Admission::Admitted, "a join that had begun goes on");
        let again: Invitations = serde_json::from_str(&serde_json::to_string(&all).unwrap()).unwrap();
        assert_eq!(again, all);
        for enforced in [
            with(Role::Server, Terms::default()),
            with(Role::Client, Terms { name: Some("n".to_owned()), ..Terms::default() }),
        ] {
            assert_ne!(enforced.token, hashed(b"secret"));
        }
        assert_eq!(with(Role::Client, Terms::default()).token, hashed(b"secret"));
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
