//! Which authorities a node trusts, and how that is changed from afar.
//!
//! **Invariant:** trust changes only by an order that an issuing key of the very authority has signed, whose number is higher
//! than that of the last one, and under which the certificates of this node stay good. So whoever holds the certificate of a
//! node can make no other node trust anybody.

use std::collections::BTreeMap;
use std::path::Path;

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use jiff::Timestamp;
use quorate_faults::{Code, Fault};
use quorate_plan::certificates::{Authority, LastOrder, OrderRefused, Role, TrustShown, may_follow, may_trust, pem};
use rcgen::SigningKey;
use serde::{Deserialize, Serialize};

use crate::authority::Authorities;
use crate::files::{self, Folder, PUBLIC};
use crate::read::{Certificate, parse_pem};

/// The last order that was carried out, beside the certificates.
const ORDER_FILE: &str = "trust.json";

/// More authorities of one kind than two are never trusted at once; a bound for what is read.
const AUTHORITIES_MAX: usize = 8;

/// Says which authorities are to be trusted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrustOrder {
    /// The cluster's token.
    pub token: String,
    /// Grows with each order.
    pub number: u64,
    /// What changes; the others stay.
    pub changes: Vec<TrustChange>,
}

/// The authorities of one kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrustChange {
    /// `peer-ca`, `client-ca` or `agent-ca`.
    pub authority: String,
    /// All that are trusted from then on: DER in base64, the issuing one first.
    pub certificates: Vec<String>,
    /// By an issuing key that is trusted now, over all of it: in base64.
    pub signature: String,
}

/// What a node trusts, and what its certificates come from, by fingerprints (SHA-256 of the certificate, in hex).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrustSeen {
    /// The trusted authorities, by kind, sorted.
    pub trusts: BTreeMap<String, Vec<String>>,
    /// The authority that signed each certificate of the node, by role; none where no trusted one did.
    pub signed_by: BTreeMap<String, Option<String>>,
    /// The number of the last order that was carried out.
    #[serde(default)]
    pub number: u64,
    /// The list of revoked certificates of each kind, by its fingerprint.
    #[serde(default)]
    pub revoked: BTreeMap<String, String>,
}

impl TrustSeen {
    /// What a rotation asks of it. `etcd_current`: whether its etcd runs with that.
    pub fn shown(&self, etcd_current: Option<bool>) -> TrustShown<'_> {
        TrustShown { trusts: &self.trusts, signed_by: &self.signed_by, number: self.number, etcd_current }
    }
}

/// What names a certificate.
pub fn fingerprint(der: &[u8]) -> String {
    digest(&SHA256, der).as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

impl TrustOrder {
    /// Signs an order: `trusted` for each kind, by the issuing keys that are opened.
    pub fn sign(
        authorities: &Authorities,
        number: u64,
        trusted: &[(Authority, Vec<Certificate>)],
    ) -> Result<TrustOrder, Fault> {
        let token = authorities.token().to_owned();
        let mut changes = Vec::new();
        for (authority, certificates) in trusted {
            let ders: Vec<&[u8]> = certificates.iter().map(|certificate| certificate.der.as_slice()).collect();
            let message = message(&token, number, authority.word(), &ders);
            let key = authorities.get(*authority).issuer.key();
            let signature = key
                .sign(&message)
                .map_err(|error| Fault::new(Code::Internal, "cannot sign an order").caused_by(error))?;
            changes.push(TrustChange {
                authority: authority.word().to_owned(),
                certificates: ders.iter().map(|der| BASE64_STANDARD.encode(der)).collect(),
                signature: BASE64_STANDARD.encode(signature),
            });
        }
        Ok(TrustOrder { token, number, changes })
    }
}

impl TrustOrder {
    /// The authorities that are trusted by it, by kind, as fingerprints, sorted. What cannot be read is left out.
    pub fn trusts(&self) -> BTreeMap<String, Vec<String>> {
        let prints = |change: &TrustChange| {
            let ders = change.certificates.iter().filter_map(|text| BASE64_STANDARD.decode(text).ok());
            let mut prints: Vec<String> = ders.map(|der| fingerprint(&der)).collect();
            prints.sort_unstable();
            (change.authority.clone(), prints)
        };
        self.changes.iter().map(prints).collect()
    }

    /// Whether both lead to the same; signatures differ each time.
    fn says_the_same(&self, other: &TrustOrder) -> bool {
        let said = |order: &TrustOrder| -> Vec<(String, Vec<String>)> {
            order.changes.iter().map(|change| (change.authority.clone(), change.certificates.clone())).collect()
        };
        self.token == other.token && self.number == other.number && said(self) == said(other)
    }
}

/// What is signed: every certificate by its fingerprint, so that nothing can be read in two ways.
fn message(token: &str, number: u64, authority: &str, ders: &[&[u8]]) -> Vec<u8> {
    let mut text = format!("quorate trust 1\n{token}\n{number}\n{authority}\n{}\n", ders.len());
    for der in ders {
        text.push_str(&fingerprint(der));
        text.push('\n');
    }
    text.into_bytes()
}

/// Changes what the node with the folder `dir` trusts. Returns the kinds that changed.
pub fn ensure_trusted(dir: &Path, token: &str, order: &TrustOrder, now: Timestamp) -> Result<Vec<Authority>, Fault> {
    let folder = Folder::open(dir, 0o755)?;
    if order.token != token {
        return Err(refused(&format!("it is of cluster `{}`", order.token.escape_debug())));
    }
    let last = read_order(dir)?.map(|last| LastOrder { number: last.number, same: last.says_the_same(order) });
    may_follow(order.number, last).map_err(|why| in_words(why, order, ""))?;
    let mut writes = Vec::new();
    for change in &order.changes {
        let authority = Authority::ALL.into_iter().find(|authority| authority.word() == change.authority);
        let authority = authority.ok_or_else(|| refused("it is about an authority that nobody knows"))?;
        writes.push((authority, check(&folder, order, change, authority, now)?));
    }
    let mut changed = Vec::new();
    for (authority, text) in writes {
        let name = authority.cert_file();
        if files::read_if_there(&folder.at(&name))?.as_deref() != Some(text.as_bytes()) {
            folder.write(&name, text.as_bytes(), PUBLIC)?;
            changed.push(authority);
        }
    }
    let mut text = serde_json::to_vec_pretty(order)
        .map_err(|error| Fault::new(Code::Internal, "cannot write an order down").caused_by(error))?;
    text.push(b'\n');
    folder.write(ORDER_FILE, &text, PUBLIC)?;
    Ok(changed)
}

/// Looks at one change, and returns the text of the file that it leads to.
fn check(
    folder: &Folder,
    order: &TrustOrder,
    change: &TrustChange,
    authority: Authority,
    now: Timestamp,
) -> Result<String, Fault> {
    let word = authority.word();
    if change.certificates.is_empty() || change.certificates.len() > AUTHORITIES_MAX {
        return Err(refused(&format!("it leaves {} authorities for {word}", change.certificates.len())));
    }
    let unread = |what: &str| refused(&format!("its {word} cannot be read: {what}"));
    let mut new = Vec::new();
    for text in &change.certificates {
        let der = BASE64_STANDARD.decode(text).map_err(|_| unread("it is not base64"))?;
        new.push(Certificate::parse(&der).map_err(|why| unread(&why))?);
    }
    let path = folder.at(&authority.cert_file());
    let known = files::read_if_there(&path)?.ok_or_else(|| refused(&format!("there is no `{}`", path.display())))?;
    let known = parse_pem(&known).map_err(|why| refused(&format!("`{}`: {why}", path.display())))?;
    let ders: Vec<&[u8]> = new.iter().map(|certificate| certificate.der.as_slice()).collect();
    let message = message(&order.token, order.number, word, &ders);
    let signature = BASE64_STANDARD.decode(&change.signature).map_err(|_| unread("its signature is not base64"))?;
    let signed = known.iter().any(|trusted| trusted.verifies(&message, &signature));
    may_trust(signed, []).map_err(|why| in_words(why, order, word))?;
    for certificate in &new {
        if !certificate.is_ca || !certificate.is_signed_by(certificate) {
            return Err(refused(&format!("its {word} is no authority")));
        }
        if now >= certificate.life.until || now < certificate.life.from {
            return Err(refused(&format!("its {word} does not hold now")));
        }
    }
    let mut own = Vec::new();
    for role in Role::ALL.into_iter().filter(|role| role.authority() == authority) {
        own.extend(leaf(folder, role)?.map(|leaf| (role, new.iter().any(|authority| leaf.is_signed_by(authority)))));
    }
    may_trust(signed, own).map_err(|why| in_words(why, order, word))?;
    Ok(new.iter().map(|certificate| pem(&certificate.der)).collect())
}

fn in_words(why: OrderRefused, order: &TrustOrder, kind: &str) -> Fault {
    refused(&match why {
        OrderRefused::Older(last) => format!("it has number {}, and number {last} was carried out", order.number),
        OrderRefused::Unsigned => format!("its {kind} is not signed by an authority that this node trusts"),
        OrderRefused::LocksOut(role) => format!("the {} certificate of this node would not be trusted", role.word()),
    })
}

fn leaf(folder: &Folder, role: Role) -> Result<Option<Certificate>, Fault> {
    let bytes = files::read_if_there(&folder.at(&role.cert_file()))?;
    Ok(bytes.and_then(|bytes| parse_pem(&bytes).ok()).map(|mut all| all.swap_remove(0)))
}

fn read_order(dir: &Path) -> Result<Option<TrustOrder>, Fault> {
    let path = dir.join(ORDER_FILE);
    let Some(bytes) = files::read_if_there(&path)? else { return Ok(None) };
    serde_json::from_slice(&bytes).map(Some).map_err(|error| {
        Fault::new(Code::TrustRefused, format!("cannot read the last order in `{}`", path.display()))
            .hint("bring the file back from a copy; without it, old orders could be repeated")
            .caused_by(error)
    })
}

/// The last order that the node with the folder `dir` carried out, where its number is higher than this one: for another node, which
/// has not heard of it. One that does not say what is trusted here now is not handed on: a later one was cut off before it was
/// written down, or somebody put other files there.
pub fn read_order_after(dir: &Path, number: u64) -> Option<TrustOrder> {
    let last = read_order(dir).ok().flatten().filter(|last| last.number > number)?;
    let trusts = observe_trust(dir).trusts;
    last.trusts().iter().all(|(kind, said)| trusts.get(kind) == Some(said)).then_some(last)
}

/// What the node with the folder `dir` trusts now. What cannot be read is left out.
pub fn observe_trust(dir: &Path) -> TrustSeen {
    let read = |name: &str| files::read_if_there(&dir.join(name)).ok().flatten();
    let certificates = |name: &str| read(name).and_then(|bytes| parse_pem(&bytes).ok()).unwrap_or_default();
    let mut seen = TrustSeen::default();
    for authority in Authority::ALL {
        let trusted = certificates(&authority.cert_file());
        let mut prints: Vec<String> = trusted.iter().map(|one| fingerprint(&one.der)).collect();
        prints.sort_unstable();
        seen.trusts.insert(authority.word().to_owned(), prints);
        for role in Role::ALL.into_iter().filter(|role| role.authority() == authority) {
            let leaf = certificates(&role.cert_file()).into_iter().next();
            let by = leaf.and_then(|leaf| trusted.iter().find(|one| leaf.is_signed_by(one)).cloned());
            seen.signed_by.insert(role.word().to_owned(), by.map(|by| fingerprint(&by.der)));
        }
        if let Some(list) = read(&crate::revoke::crl_file(authority)) {
            seen.revoked.insert(authority.word().to_owned(), fingerprint(&list));
        }
    }
    seen.number = read_order(dir).ok().flatten().map_or(0, |order| order.number);
    seen
}

/// A number for everything that etcd reads only when it starts: the authorities that it trusts, and which lists of revoked
/// certificates are there. `files`: what its configuration names.
pub fn trust_hash<'a>(files: impl IntoIterator<Item = &'a Path>) -> String {
    let mut all = Vec::new();
    for path in files {
        let bytes = files::read_if_there(path).ok().flatten().unwrap_or_default();
        let mut parts: Vec<String> = match parse_pem(&bytes) {
            // Their order means nothing.
            Ok(certificates) => certificates.iter().map(|one| fingerprint(&one.der)).collect(),
            Err(_) => vec![fingerprint(&bytes)],
        };
        parts.sort_unstable();
        parts.dedup();
        all.push(parts.join(","));
    }
    fingerprint(all.join(";").as_bytes())
}

fn refused(why: &str) -> Fault {
    Fault::new(Code::TrustRefused, format!("did not change what this node trusts: {why}"))
        .hint("nothing was changed; use the folder of authorities that this cluster was set up with")
}
