//! A rotation of authorities, as the folder of authorities remembers it.
//!
//! ```text
//!   trust: old and new are trusted     issue: the new one signs     drop: the new one alone is trusted     done
//! ```
//!
//! **Invariant:** a phase is written down before its work begins, its work can be repeated, and the next phase begins only when
//! every node has finished the one before. Nothing is deleted: what issued before is kept as `*.retired-*`.

use std::collections::BTreeMap;
use std::path::Path;

use jiff::Timestamp;
use quorate_faults::{Code, Fault};
use quorate_plan::certificates::{Authority, RotationPhase, SignedBundle, pem};
use rcgen::PublicKeyData;
use serde::{Deserialize, Serialize};

use crate::authority::{self, Authorities};
use crate::files::{self, Folder, PUBLIC, SECRET};
use crate::keys;
use crate::passphrase::Passphrase;
use crate::read::{Certificate, parse_pem};
use crate::revoke::with_lists;
use crate::trust::{TrustOrder, fingerprint};

/// The journal.
const FILE: &str = "rotation.json";

/// As many digits of a fingerprint as name what is kept.
const MARK: usize = 12;

/// The order of its first phase.
const FIRST_ORDER: &str = "rotation-order.json";

/// A rotation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rotation {
    /// Which authorities are changed: `peer-ca`, `client-ca`, `agent-ca`.
    pub authorities: Vec<String>,
    /// How far it is.
    pub phase: RotationPhase,
    /// The number of the order that belongs to the phase.
    pub number: u64,
    /// When it began.
    pub began: String,
    /// Fingerprints of those that go.
    pub old: Vec<String>,
    /// When `issue` ended: no client had a certificate of the new authority before it. Earlier releases do not record it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub issued: Option<String>,
}

impl Rotation {
    /// Whether it goes on.
    pub fn is_open(&self) -> bool {
        self.phase != RotationPhase::Done
    }

    /// The authorities that it changes.
    pub fn which(&self) -> Vec<Authority> {
        let named = |authority: &Authority| self.authorities.iter().any(|word| word == authority.word());
        Authority::ALL.into_iter().filter(named).collect()
    }

    /// When `issue` ended, where that is on record.
    pub fn issued(&self) -> Option<Timestamp> {
        self.issued.as_deref()?.parse().ok()
    }
}

/// The last rotation in a folder of authorities, if there ever was one.
pub fn observe_rotation(dir: &Path) -> Result<Option<Rotation>, Fault> {
    let path = dir.join(FILE);
    let Some(bytes) = files::read_if_there(&path)? else { return Ok(None) };
    serde_json::from_slice(&bytes).map(Some).map_err(|error| {
        Fault::new(Code::RotationOther, format!("cannot read `{}`", path.display()))
            .hint("bring it back from your copy of the authorities")
            .caused_by(error)
    })
}

/// Begins a rotation, or finds the one that is under way, and does what its phase asks of this folder.
pub fn ensure_rotation(
    dir: &Path,
    which: Option<&[Authority]>,
    passphrase: Option<&Passphrase>,
    now: Timestamp,
) -> Result<Rotation, Fault> {
    let folder = Folder::open(dir, 0o700)?;
    let known = observe_rotation(dir)?;
    let wanted: Option<Vec<String>> = which.map(|which| which.iter().map(|one| one.word().to_owned()).collect());
    let rotation = match known.filter(Rotation::is_open) {
        Some(open) => {
            if wanted.is_some_and(|wanted| wanted != open.authorities) {
                let attempt = format!("a rotation of {} is under way", open.authorities.join(", "));
                return Err(Fault::new(Code::RotationOther, attempt).hint("finish it first, with the same choice"));
            }
            open
        }
        None => {
            let token = Authorities::open(dir, passphrase)?.token().to_owned();
            let before = observe_rotation(dir)?.map_or(0, |before| before.number);
            let all = || Authority::ALL.map(|authority| authority.word().to_owned()).into();
            let mut rotation = Rotation {
                authorities: wanted.unwrap_or_else(all),
                phase: RotationPhase::Trust,
                number: before + 1,
                began: now.to_string(),
                old: Vec::new(),
                issued: None,
            };
            for authority in rotation.which() {
                rotation.old.push(fingerprint(&authority::open_certificate(dir, authority, passphrase)?.der));
            }
            tracing::info!(token, "a rotation of {} begins", rotation.authorities.join(", "));
            write(&folder, &rotation)?;
            rotation
        }
    };
    prepare(&folder, dir, &rotation, passphrase, now)?;
    Ok(rotation)
}

/// Goes on to the next phase: every node has finished this one.
pub fn ensure_advanced(
    dir: &Path,
    rotation: &Rotation,
    passphrase: Option<&Passphrase>,
    now: Timestamp,
) -> Result<Rotation, Fault> {
    let folder = Folder::open(dir, 0o700)?;
    if observe_rotation(dir)?.as_ref() != Some(rotation) {
        return Err(Fault::new(Code::RotationOther, "the rotation went on meanwhile").hint("run it again"));
    }
    let number = rotation.phase.next_number(rotation.number);
    let issued = match rotation.phase {
        RotationPhase::Issue => Some(now.to_string()),
        RotationPhase::Trust | RotationPhase::Drop | RotationPhase::Done => rotation.issued.clone(),
    };
    let next = Rotation { phase: rotation.phase.next(), number, issued, ..rotation.clone() };
    write(&folder, &next)?;
    prepare(&folder, dir, &next, passphrase, now)?;
    Ok(next)
}

/// The authorities that nodes are to trust in this phase, the issuing one first.
pub fn trusted_now(dir: &Path, rotation: &Rotation) -> Result<Vec<(Authority, Vec<Certificate>)>, Fault> {
    rotation.which().into_iter().map(|authority| Ok((authority, bundle(dir, authority)?))).collect()
}

/// Keeps the order of the first phase: for nodes that come after it, when the key that signed it signs no more.
pub fn ensure_order_kept(dir: &Path, order: &TrustOrder) -> Result<(), Fault> {
    let mut text = serde_json::to_vec_pretty(order)
        .map_err(|error| Fault::new(Code::Internal, "cannot write an order down").caused_by(error))?;
    text.push(b'\n');
    Folder::open(dir, 0o700)?.write(FIRST_ORDER, &text, PUBLIC)
}

/// The order of the first phase of this rotation, where it was kept.
pub fn observe_kept_order(dir: &Path, rotation: &Rotation) -> Option<TrustOrder> {
    let bytes = files::read_if_there(&dir.join(FIRST_ORDER)).ok().flatten()?;
    let order: TrustOrder = serde_json::from_slice(&bytes).ok()?;
    // Of an earlier rotation it has another number, and leads to others.
    let first = rotation.number.saturating_sub(u64::from(rotation.phase == RotationPhase::Drop));
    (order.number == first).then_some(order)
}

/// Adds to what was signed in a folder of authorities what a node that is new needs beside it: the lists of revoked certificates, and
/// the other authorities that may be met until a rotation is over. Else it would not know those who still show certificates of the old
/// one; the order that drops it comes to the node as to all others.
pub fn with_trust(dir: &Path, authorities: &Authorities, signed: SignedBundle) -> Result<SignedBundle, Fault> {
    let dropping = observe_rotation(dir)?.filter(|rotation| rotation.phase == RotationPhase::Drop);
    let mut others = BTreeMap::new();
    for authority in Authority::ALL {
        let issuing = &authorities.get(authority).certificate.der;
        let mut met = bundle(dir, authority)?;
        if let Some(rotation) = &dropping {
            met.extend(retired(dir, authority, rotation)?);
        }
        let ders = met.into_iter().map(|one| one.der).filter(|der| der != issuing).collect();
        others.insert(authority.word(), ders);
    }
    let signed = with_lists(dir, authorities, signed)?;
    Ok(signed.with_others(|authority| others.remove(authority.word()).unwrap_or_default()))
}

/// Does what a phase asks of the folder. All of it can be repeated.
fn prepare(
    folder: &Folder,
    dir: &Path,
    rotation: &Rotation,
    passphrase: Option<&Passphrase>,
    now: Timestamp,
) -> Result<(), Fault> {
    for authority in rotation.which() {
        match rotation.phase {
            RotationPhase::Trust => make_next(folder, dir, authority, passphrase, now)?,
            RotationPhase::Issue => take_next(folder, dir, authority, passphrase)?,
            RotationPhase::Drop => drop_old(folder, dir, authority, passphrase)?,
            RotationPhase::Done => {}
        }
    }
    Ok(())
}

fn next_key(authority: Authority) -> String {
    format!("{}.next.key", authority.word())
}

/// A new key beside the old one, and a certificate of it in the list of those that are trusted.
fn make_next(
    folder: &Folder,
    dir: &Path,
    authority: Authority,
    passphrase: Option<&Passphrase>,
    now: Timestamp,
) -> Result<(), Fault> {
    let name = next_key(authority);
    let key = match files::read_if_there(&folder.at(&name))? {
        Some(bytes) => keys::decode(&bytes, &folder.at(&name), passphrase)?,
        None => {
            let key = keys::generate()?;
            folder.write(&name, keys::encode(&key, passphrase)?.as_bytes(), SECRET)?;
            key
        }
    };
    let mut trusted = bundle(dir, authority)?;
    if trusted.iter().any(|known| known.public_key == key.subject_public_key_info()) {
        return Ok(());
    }
    let token = trusted.first().and_then(|first| first.organization.clone()).unwrap_or_default();
    let text = authority::certificate(authority.word(), &token, &key, now)?;
    trusted.extend(parse_pem(text.as_bytes()).map_err(|why| Fault::new(Code::Internal, why))?);
    write_bundle(folder, authority, &trusted)
}

/// From here on the new key signs; the old one is kept under another name.
fn take_next(folder: &Folder, dir: &Path, authority: Authority, passphrase: Option<&Passphrase>) -> Result<(), Fault> {
    let (name, issuing) = (next_key(authority), authority.key_file());
    folder.drop_spent(&name)?;
    let Some(next) = files::read_if_there(&folder.at(&name))? else { return Ok(()) };
    let key = keys::decode(&next, &folder.at(&name), passphrase)?;
    let before = files::read_if_there(&folder.at(&issuing))?.unwrap_or_default();
    if before != next {
        let old = authority::open_certificate(dir, authority, passphrase)?;
        let mark: String = fingerprint(&old.der).chars().take(MARK).collect();
        let word = authority.word();
        folder.write(&format!("{word}.retired-{mark}.crt"), pem(&old.der).as_bytes(), PUBLIC)?;
        folder.write(&format!("{word}.retired-{mark}.key"), &before, SECRET)?;
        // The issuing one stands first: whoever reads one certificate reads that.
        let mut trusted = bundle(dir, authority)?;
        trusted.sort_by_key(|one| one.public_key != key.subject_public_key_info());
        write_bundle(folder, authority, &trusted)?;
        folder.write(&issuing, &next, SECRET)?;
    }
    folder.drop_copy(&name)
}

/// The authority of this kind that goes with a rotation, where it is one of those.
fn retired(dir: &Path, authority: Authority, rotation: &Rotation) -> Result<Vec<Certificate>, Fault> {
    let mut found = Vec::new();
    for print in &rotation.old {
        let mark: String = print.chars().take(MARK).collect();
        let path = dir.join(format!("{}.retired-{mark}.crt", authority.word()));
        if files::read_if_there(&path)?.is_some() {
            found.extend(crate::read::read_certificates(&path)?);
        }
    }
    Ok(found)
}

fn drop_old(folder: &Folder, dir: &Path, authority: Authority, passphrase: Option<&Passphrase>) -> Result<(), Fault> {
    let issuing = authority::open_certificate(dir, authority, passphrase)?;
    write_bundle(folder, authority, &[issuing])
}

fn bundle(dir: &Path, authority: Authority) -> Result<Vec<Certificate>, Fault> {
    crate::read::read_certificates(&dir.join(authority.cert_file()))
}

fn write_bundle(folder: &Folder, authority: Authority, trusted: &[Certificate]) -> Result<(), Fault> {
    let text: String = trusted.iter().map(|one| pem(&one.der)).collect();
    let name = authority.cert_file();
    match files::read_if_there(&folder.at(&name))?.as_deref() == Some(text.as_bytes()) {
        true => Ok(()),
        false => folder.write(&name, text.as_bytes(), PUBLIC),
    }
}

fn write(folder: &Folder, rotation: &Rotation) -> Result<(), Fault> {
    let mut text = serde_json::to_vec_pretty(rotation)
        .map_err(|error| Fault::new(Code::Internal, "cannot write a rotation down").caused_by(error))?;
    text.push(b'\n');
    folder.write(FILE, &text, PUBLIC)
}
