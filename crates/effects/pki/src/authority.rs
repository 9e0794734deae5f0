//! The three authorities of a cluster: their certificates, and the issuing keys, encrypted.
//!
//! **Invariant:** an authority that is there is never replaced. A run that was killed is finished by the next one: the key
//! comes first, and a key without a certificate gets one.

use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use quorate_faults::{Code, Fault};
use quorate_plan::certificates::{Authority, Life, NodeNames};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    PublicKeyData, SerialNumber,
};
use rustls::pki_types::CertificateDer;

use crate::files::{self, Folder, PUBLIC, SECRET};
use crate::issue::BACKDATED;
use crate::keys;
use crate::passphrase::Passphrase;
use crate::read::{Certificate, parse_pem};

/// How long an authority holds: changing one touches every node.
const DAYS: u64 = 3650;

/// The three, opened for signing.
pub struct Authorities {
    token: String,
    opened: [Opened; 3],
}

impl std::fmt::Debug for Authorities {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authorities").field("token", &self.token).finish_non_exhaustive()
    }
}

/// One of them.
pub(crate) struct Opened {
    pub(crate) issuer: Issuer<'static, KeyPair>,
    pub(crate) certificate: Certificate,
}

/// What making them came to.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct MadeAuthorities {
    /// Where they lie.
    pub dir: PathBuf,
    /// Whose they are.
    pub token: String,
    /// Whether all of them were there before.
    pub already: bool,
    /// Whether the issuing keys are encrypted.
    pub encrypted: bool,
}

/// What is there of one.
enum Found {
    Nothing,
    KeyAlone(Vec<u8>),
    Both { encrypted: bool },
}

/// Makes the authorities in `dir`. `None` as passphrase: the keys are not encrypted, which has to be asked for by name.
pub fn ensure_authorities(
    dir: &Path,
    token: &str,
    passphrase: Option<&Passphrase>,
    now: Timestamp,
) -> Result<MadeAuthorities, Fault> {
    // Whether the names that will be made of the token can stand in certificates.
    NodeNames::new(token, "n", [])?;
    let folder = Folder::open(dir, 0o700)?;
    let mut found = Vec::new();
    for authority in Authority::ALL {
        found.push((authority, look(dir, authority, token)?));
    }
    let mut made = MadeAuthorities { dir: dir.to_owned(), token: token.to_owned(), already: true, encrypted: true };
    if let (Some(passphrase), true) = (passphrase, found.iter().any(|(_, found)| matches!(found, Found::Nothing))) {
        passphrase.check_strength()?;
    }
    for (authority, found) in found {
        let key = match found {
            Found::Both { encrypted } => {
                made.encrypted &= encrypted;
                continue;
            }
            Found::KeyAlone(bytes) => keys::decode(&bytes, &folder.at(&authority.key_file()), passphrase)?,
            Found::Nothing => {
                let key = keys::generate()?;
                folder.write(&authority.key_file(), keys::encode(&key, passphrase)?.as_bytes(), SECRET)?;
                key
            }
        };
        let certificate = certificate(authority.word(), token, &key, now)?;
        folder.write(&authority.cert_file(), certificate.as_bytes(), PUBLIC)?;
        made.already = false;
        made.encrypted &= passphrase.is_some();
    }
    Ok(made)
}

/// Whether `dir` holds every issuing key.
pub fn has_issuing_keys(dir: &Path) -> bool {
    Authority::ALL.iter().all(|authority| dir.join(authority.key_file()).is_file())
}

/// Whether an issuing key in `dir` is encrypted. Keys that are not there need none.
pub fn needs_passphrase(dir: &Path) -> Result<bool, Fault> {
    let mut needed = false;
    for authority in Authority::ALL {
        let bytes = files::read_if_there(&dir.join(authority.key_file()))?;
        needed |= bytes.is_some_and(|bytes| keys::is_encrypted(&bytes));
    }
    Ok(needed)
}

impl Authorities {
    /// Opens those in `dir`.
    pub fn open(dir: &Path, passphrase: Option<&Passphrase>) -> Result<Authorities, Fault> {
        let [peer, client, agent] = Authority::ALL.map(|authority| open_one(dir, authority, passphrase));
        let opened = [peer?, client?, agent?];
        let tokens = opened.each_ref().map(|opened| opened.certificate.organization.clone().unwrap_or_default());
        let [token, ..] = &tokens;
        if token.is_empty() || tokens.iter().any(|other| other != token) {
            return Err(Fault::new(
                Code::CaMissing,
                format!("the authorities in `{}` are not of one cluster", dir.display()),
            )
            .hint("take all six files from one `quorate ca init`"));
        }
        Ok(Authorities { token: token.clone(), opened })
    }

    /// The cluster's token.
    pub fn token(&self) -> &str {
        &self.token
    }

    pub(crate) fn get(&self, authority: Authority) -> &Opened {
        let [peer, client, agent] = &self.opened;
        match authority {
            Authority::Peer => peer,
            Authority::Client => client,
            Authority::Agent => agent,
        }
    }
}

/// The certificate of the issuing key of one of them.
pub(crate) fn open_certificate(
    dir: &Path,
    authority: Authority,
    passphrase: Option<&Passphrase>,
) -> Result<Certificate, Fault> {
    open_one(dir, authority, passphrase).map(|opened| opened.certificate)
}

fn open_one(dir: &Path, authority: Authority, passphrase: Option<&Passphrase>) -> Result<Opened, Fault> {
    open_pair(&dir.join(authority.cert_file()), &dir.join(authority.key_file()), passphrase)
}

/// Opens an authority by its two files.
pub(crate) fn open_pair(cert_path: &Path, key_path: &Path, passphrase: Option<&Passphrase>) -> Result<Opened, Fault> {
    let missing = |path: &Path| {
        Fault::new(Code::CaMissing, format!("cannot issue certificates: there is no `{}`", path.display()))
            .hint("name the folder that `quorate ca init` was given")
    };
    let cert = files::read_if_there(cert_path)?.ok_or_else(|| missing(cert_path))?;
    let key = files::read_if_there(key_path)?.ok_or_else(|| missing(key_path))?;
    let unusable = |path: &Path, why: String| {
        Fault::new(Code::CaMissing, format!("cannot issue certificates with `{}`", path.display()))
            .hint("bring the file back from your copy of the authorities")
            .caused_by(why)
    };
    let trusted = parse_pem(&cert).map_err(|why| unusable(cert_path, why))?;
    let key = keys::decode(&key, key_path, passphrase)?;
    // While authorities are changed there are two, and the key says which one issues.
    let own = trusted.into_iter().find(|one| one.public_key == key.subject_public_key_info());
    let Some(certificate) = own else {
        return Err(unusable(key_path, format!("it does not belong to `{}`", cert_path.display())));
    };
    let der = CertificateDer::from(certificate.der.as_slice());
    let issuer = Issuer::from_ca_cert_der(&der, key).map_err(|error| unusable(cert_path, error.to_string()))?;
    Ok(Opened { issuer, certificate })
}

fn look(dir: &Path, authority: Authority, token: &str) -> Result<Found, Fault> {
    let (cert_path, key_path) = (dir.join(authority.cert_file()), dir.join(authority.key_file()));
    let (cert, key) = (files::read_if_there(&cert_path)?, files::read_if_there(&key_path)?);
    let other = |what: String| {
        Fault::new(Code::CaOther, what).hint("take a folder of its own for each cluster; nothing was changed")
    };
    match (cert, key) {
        (None, None) => Ok(Found::Nothing),
        (None, Some(key)) => Ok(Found::KeyAlone(key)),
        (Some(_), None) => Err(other(format!("`{}` is there, and its issuing key is elsewhere", cert_path.display()))),
        (Some(cert), Some(key)) => {
            let certificate = parse_pem(&cert).map(|mut all| all.swap_remove(0));
            match certificate.ok().and_then(|certificate| certificate.organization) {
                Some(found) if found == token => Ok(Found::Both { encrypted: keys::is_encrypted(&key) }),
                Some(found) => Err(other(format!("`{}` is of cluster `{found}`", cert_path.display()))),
                None => Err(other(format!("`{}` is of no cluster of ours", cert_path.display()))),
            }
        }
    }
}

pub(crate) fn certificate(word: &str, token: &str, key: &KeyPair, now: Timestamp) -> Result<String, Fault> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, token);
    // A few digits of the key tell an authority from its successor.
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, &key.subject_public_key_info());
    let mark: String = digest.as_ref().iter().take(3).map(|byte| format!("{byte:02x}")).collect();
    params.distinguished_name.push(DnType::CommonName, format!("{word} {mark}"));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.serial_number = Some(serial()?);
    let from = now.checked_sub(BACKDATED).unwrap_or(now);
    set_life(&mut params, Life { from, until: later(now, Duration::from_secs(DAYS * 86_400)) });
    let signed = params.self_signed(key);
    signed
        .map(|signed| signed.pem())
        .map_err(|error| Fault::new(Code::Internal, "cannot make an authority").caused_by(error))
}

/// A number that no other certificate has: 126 random bits, positive and never short.
pub(crate) fn serial() -> Result<SerialNumber, Fault> {
    let mut bytes = [0_u8; 16];
    aws_lc_rs::rand::fill(&mut bytes).map_err(|_| Fault::new(Code::Internal, "there are no random numbers"))?;
    if let Some(first) = bytes.first_mut() {
        *first = (*first & 0x3f) | 0x40;
    }
    Ok(SerialNumber::from_slice(&bytes))
}

/// Sets from when to when a certificate holds, in whole seconds.
pub(crate) fn set_life(params: &mut CertificateParams, life: Life) {
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    params.not_before = epoch + since_1970(life.from);
    params.not_after = epoch + since_1970(life.until);
}

/// A time in whole seconds, as certificates have it.
pub(crate) fn since_1970(time: Timestamp) -> Duration {
    Duration::from_secs(u64::try_from(time.as_second()).unwrap_or(0))
}

/// A time that is so much later, or the last one there is.
pub(crate) fn later(now: Timestamp, by: Duration) -> Timestamp {
    now.checked_add(by).unwrap_or(Timestamp::MAX)
}
