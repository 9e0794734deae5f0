//! Short join codes: both sides prove that they have the code, since it names no authority that could be pinned.
//!
//! ```text
//!   newcomer ── challenge? ─────────────────────────────────────────────► inviter     TLS, certificate not verified
//!            ◄─ nonce ───────────────────────────────────────────────────
//!            ── own nonce, HMAC(newcomer: both nonces, leaf, authority) ─►            strikes for a wrong one
//!            ◄─ terms, HMAC(inviter: both nonces, leaf, authority, terms)
//!            ── join, as with a code that pins this authority ───────────►
//! ```
//!
//! **Invariant:** the code is never sent, and nothing is from which it could be computed with fewer than 2^80 attempts. The proofs hold
//! for the certificates of the connection in which they are sent: who ends TLS in between has other ones, and is refused by both.

use std::collections::VecDeque;

use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::JsonRejection;
use axum::extract::{ConnectInfo, State};
use axum::http::StatusCode;
use quorate_etcd_formats::hex::hex;
use quorate_faults::{Code, Fault};
use quorate_pki::read_certificates;
use quorate_pki::token::{AgentToken, nonce};
use quorate_plan::peering::{JoinCode, Role, ShortCode};
use serde::{Deserialize, Serialize};
use tracing::info;

use super::DOOR_PORT;
use super::door::{Away, CHAIN, away};
use super::pinned::{ShownChain, ask_unproven};
use super::store::lock;
use crate::peers::Api;
use crate::serve::Peer;
use crate::turn::now_ms;

/// Where a newcomer gets a nonce.
pub(super) const CHALLENGE: &str = "/v1/join/challenge";
/// Where both prove the code.
pub(super) const PROVE: &str = "/v1/join/prove";
/// How long a nonce may be used: one round trip, and two handshakes on a slow machine.
const CHALLENGE_MS: u64 = 30_000;
/// Nonces that are remembered at once; the oldest is forgotten first.
const CHALLENGES_MAX: usize = 1024;
/// Longer texts are no nonces.
const NONCE_MAX: usize = 64;
/// An agent that begins anew has forgotten the nonces that it gave out.
const ATTEMPTS: u32 = 3;

/// Nonces that were given out, each for one proof.
#[derive(Debug, Default)]
pub(super) struct Challenges(VecDeque<(String, u64)>);

impl Challenges {
    fn add(&mut self, nonce: String, now_ms: u64) {
        self.0.drain(..self.0.len().saturating_sub(CHALLENGES_MAX - 1));
        self.0.push_back((nonce, now_ms.saturating_add(CHALLENGE_MS)));
    }

    /// Whether it was given out; it is not any more.
    fn take(&mut self, nonce: &str, now_ms: u64) -> bool {
        let found = self.0.iter().position(|(known, _)| known == nonce);
        let taken = found.and_then(|at| self.0.remove(at));
        taken.is_some_and(|(_, until)| now_ms < until)
    }
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Challenge {
    nonce: String,
}

/// A newcomer proves that it has a code.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Proof {
    /// The nonce of the inviting node.
    nonce: String,
    /// The nonce of the newcomer.
    own: String,
    proof: String,
}

/// The inviting node proves the same, and says what the code is for.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Proven {
    cluster: String,
    inviter: String,
    role: Role,
    expires_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    proof: String,
}

fn words_of_newcomer(proof: &Proof, shown: &ShownChain) -> [String; 5] {
    let words = ["quorate short code newcomer 1", &proof.nonce, &proof.own];
    let [one, two, three] = words.map(str::to_owned);
    [one, two, three, hex(&shown.leaf), hex(&shown.authority)]
}

fn words_of_inviter(proof: &Proof, shown: &ShownChain, terms: &Proven) -> Vec<String> {
    let Proven { cluster, inviter, role, expires_ms, name, .. } = terms;
    let [_, rest @ ..] = words_of_newcomer(proof, shown);
    let mut words = vec!["quorate short code inviter 1".to_owned()];
    words.extend(rest);
    words.extend([cluster.clone(), inviter.clone(), role.to_string(), expires_ms.to_string()]);
    // An absent name is another list of words than an empty one.
    words.extend(name.clone());
    words
}

fn refs(words: &[String]) -> Vec<&str> {
    words.iter().map(String::as_str).collect()
}

fn nobody() -> Away {
    away(StatusCode::FORBIDDEN, Code::JoinTurnedAway, "this code lets nobody in")
}

/// Whether this address is listened to, and somebody was invited by a short code.
fn admit(api: &Api, from: &str, now: u64) -> Result<(), Away> {
    if !lock(&api.peering.strikes).is_heard(from, now) {
        return Err(away(StatusCode::TOO_MANY_REQUESTS, Code::JoinTooOften, "too many wrong tokens from this address"));
    }
    let invited = api.peering.kept().invitations.all.iter().any(|one| one.terms.key.is_some());
    if invited { Ok(()) } else { Err(nobody()) }
}

/// Gives a nonce out.
pub(super) async fn challenge(
    State(api): State<Api>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    // What was sent is read: a connection that is closed on unread bytes may take the answer with it.
    _: Bytes,
) -> Result<Json<Challenge>, Away> {
    let (from, now) = (peer.from.ip().to_canonical().to_string(), now_ms());
    admit(&api, &from, now)?;
    let nonce = nonce()?;
    lock(&api.peering.challenges).add(nonce.clone(), now);
    Ok(Json(Challenge { nonce }))
}

/// Verifies the proof of a newcomer, and answers with the own one.
pub(super) async fn prove(
    State(api): State<Api>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    body: Result<Json<Proof>, JsonRejection>,
) -> Result<Json<Proven>, Away> {
    let (from, now) = (peer.from.ip().to_canonical().to_string(), now_ms());
    admit(&api, &from, now)?;
    let proof = body.ok().map(|Json(proof)| proof).filter(|proof| proof.own.len() <= NONCE_MAX);
    let Some(proof) = proof else {
        lock(&api.peering.strikes).note(&from, now);
        return Err(nobody());
    };
    if !lock(&api.peering.challenges).take(&proof.nonce, now) {
        return Err(away(StatusCode::CONFLICT, Code::PeerRequest, "the challenge is over: begin again"));
    }
    let shown = shown_here(&api)?;
    let (kept, words) = (api.peering.kept(), words_of_newcomer(&proof, &shown));
    let key_of = |one: &quorate_plan::peering::Invitation| AgentToken::parse(one.terms.key.as_ref()?);
    let proven = kept.invitations.all.iter().find_map(|one| {
        let key = key_of(one)?;
        key.accepts(&refs(&words), &proof.proof).then_some((one, key))
    });
    let Some((invitation, key)) = proven else {
        lock(&api.peering.strikes).note(&from, now);
        info!(from, "a proof of a short join code is wrong");
        return Err(nobody());
    };
    let local = api.peering.by_hand()?;
    let terms = Proven {
        cluster: local.cluster,
        inviter: local.name,
        role: invitation.role,
        expires_ms: invitation.expires_ms,
        name: invitation.terms.name.clone(),
        proof: String::new(),
    };
    let proof = key.prove(&refs(&words_of_inviter(&proof, &shown, &terms)));
    Ok(Json(Proven { proof, ..terms }))
}

/// The certificates that the door shows.
fn shown_here(api: &Api) -> Result<ShownChain, Fault> {
    let chain = read_certificates(&api.peering.dir().join(CHAIN))?;
    let ders: Vec<&[u8]> = chain.iter().map(|one| one.der.as_ref()).collect();
    ShownChain::of(&ders).ok_or_else(|| Fault::new(Code::CaMissing, "there is no certificate to show to newcomers"))
}

/// Proves a short code to the node at `inviter` (`HOST` or `HOST:PORT`), has it prove the same, and returns the code that the join goes on
/// with: it pins the authority that was proven.
pub async fn prove_code(code: &ShortCode, inviter: &str) -> Result<JoinCode, Fault> {
    let address = with_port(inviter);
    let key =
        AgentToken::parse(&hex(&code.key())).ok_or_else(|| Fault::new(Code::Internal, "a short code has no key"))?;
    for _ in 0..ATTEMPTS {
        match prove_once(code, &address, &key).await {
            Err(fault) if fault.code() == Code::PeerRequest => {}
            ended => return ended,
        }
    }
    Err(unproven(&address, "it forgets every challenge".into()))
}

async fn prove_once(code: &ShortCode, address: &str, key: &AgentToken) -> Result<JoinCode, Fault> {
    let Challenge { nonce: theirs } = ask_unproven(address, CHALLENGE, |_| serde_json::json!({})).await?.0;
    let own = nonce()?;
    let proof_of = |shown: &ShownChain| {
        let proof = Proof { nonce: theirs.clone(), own: own.clone(), proof: String::new() };
        let made = key.prove(&refs(&words_of_newcomer(&proof, shown)));
        Proof { proof: made, ..proof }
    };
    let answered = ask_unproven::<_, Proven>(address, PROVE, &proof_of).await;
    let (terms, shown) = answered.map_err(|fault| match fault.code() {
        // Who has not proven anything may say anything.
        Code::JoinTurnedAway => unproven(address, fault.into()),
        _ => fault,
    })?;
    if !key.accepts(&refs(&words_of_inviter(&proof_of(&shown), &shown, &terms)), &terms.proof) {
        return Err(unproven(address, "its proof is wrong".into()));
    }
    let Proven { cluster, inviter, role, expires_ms, name, .. } = terms;
    let (token, pin) = (code.token(), shown.authority);
    Ok(JoinCode { address: address.to_owned(), cluster, inviter, role, token, pin, expires_ms, name })
}

fn unproven(address: &str, cause: Box<dyn std::error::Error + Send + Sync>) -> Fault {
    Fault::new(Code::JoinUnproven, format!("`{address}` does not prove the join code"))
        .hint("see that the code was made on that node; if it was, someone stands between the two: `quorate explain Q1509`")
        .caused_by(cause)
}

/// With the port of the door, if it has none.
fn with_port(inviter: &str) -> String {
    let bare = inviter.trim_start_matches('[').trim_end_matches(']');
    match (bare.parse::<std::net::IpAddr>(), inviter.rsplit_once(':')) {
        (Ok(std::net::IpAddr::V6(ip)), _) => format!("[{ip}]:{DOOR_PORT}"),
        (Err(_), Some((_, port))) if port.parse::<u16>().is_ok() => inviter.to_owned(),
        _ => format!("{inviter}:{DOOR_PORT}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nonce_is_used_once_and_in_its_time() {
        let mut all = Challenges::default();
        all.add("a".to_owned(), 1000);
        all.add("b".to_owned(), 1000);
        assert!(all.take("a", 1001) && !all.take("a", 1001) && !all.take("c", 1001));
        assert!(!all.take("b", 1000 + CHALLENGE_MS));
        for at in 0..5000 {
            all.add(format!("x{at}"), 2000);
        }
        assert!(all.0.len() <= CHALLENGES_MAX && all.take("x4999", 2001));
    }

    #[test]
    fn proofs_of_both_sides_differ_and_cover_every_term() {
        let shown = ShownChain { leaf: [1; 32], authority: [2; 32] };
        let proof = Proof { nonce: "n".to_owned(), own: "o".to_owned(), proof: String::new() };
        let terms = |cluster: &str, inviter: &str, role, expires_ms, name: Option<&str>| Proven {
            cluster: cluster.to_owned(),
            inviter: inviter.to_owned(),
            role,
            expires_ms,
            name: name.map(str::to_owned),
            proof: String::new(),
        };
        let all = [
            words_of_newcomer(&proof, &shown).to_vec(),
            words_of_newcomer(&proof, &ShownChain { leaf: [3; 32], ..shown }).to_vec(),
            words_of_inviter(&proof, &shown, &terms("t", "n1", Role::Server, 1, None)),
            words_of_inviter(&proof, &ShownChain { leaf: [3; 32], ..shown }, &terms("t", "n1", Role::Server, 1, None)),
            words_of_inviter(
                &proof,
                &ShownChain { authority: [3; 32], ..shown },
                &terms("t", "n1", Role::Server, 1, None),
            ),
            words_of_inviter(&proof, &shown, &terms("u", "n1", Role::Server, 1, None)),
            words_of_inviter(&proof, &shown, &terms("t", "n2", Role::Server, 1, None)),
            words_of_inviter(&proof, &shown, &terms("t", "n1", Role::Client, 1, None)),
            words_of_inviter(&proof, &shown, &terms("t", "n1", Role::Server, 2, None)),
            words_of_inviter(&proof, &shown, &terms("t", "n1", Role::Server, 1, Some(""))),
        ];
        for (at, one) in all.iter().enumerate() {
            assert!(all.iter().skip(at + 1).all(|other| one != other), "{one:?}");
        }
    }

    #[test]
    fn an_inviter_is_named_with_and_without_a_port() {
        let all = [
            ("10.0.0.1", "10.0.0.1:7700"),
            ("10.0.0.1:7701", "10.0.0.1:7701"),
            ("n1.example", "n1.example:7700"),
            ("n1.example:7701", "n1.example:7701"),
            ("fd00::1", "[fd00::1]:7700"),
            ("[fd00::1]", "[fd00::1]:7700"),
            ("[fd00::1]:7701", "[fd00::1]:7701"),
        ];
        for (given, address) in all {
            assert_eq!(with_port(given), address);
        }
    }
}
