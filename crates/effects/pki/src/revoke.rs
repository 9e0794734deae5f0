//! Certificates that are called back: which were issued, which are revoked, and the lists that servers read.
//!
//! etcd reads a list at each handshake, looks at serial numbers alone, and refuses everybody where the file is missing or is no
//! list. So lists are made for all authorities at once, are replaced in one step, and are never removed.
//!
//! A node that has no list lets revoked certificates in. So lists go with the certificates of a node that is new, agents bring
//! them to each other, and a node that ever had one remembers that: without it, it opens nothing.
//!
//! **Invariant:** a list is durable before anything names it, and one that a node takes was signed by an authority that it
//! trusts and is not older than the one that it has.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use jiff::{SignedDuration, Timestamp};
use quorate_faults::{Code, Fault};
use quorate_plan::certificates::{Authority, Role, SignedBundle};
use rcgen::{CertificateRevocationListParams, Issuer, KeyIdMethod, KeyPair, RevokedCertParams, SerialNumber};
use serde::{Deserialize, Serialize};
use x509_parser::prelude::{CertificateRevocationList, FromDer, X509Certificate};

use crate::authority::{Authorities, later, since_1970};
use crate::expired::EXPIRED_DAYS_MAX;
use crate::files::{self, Folder, PUBLIC};
use crate::read::{Certificate, parse_pem};

/// What was signed, one line each.
const ISSUED: &str = "issued.txt";
/// What was revoked.
const REVOKED: &str = "revoked.txt";

/// What lies beside a list once there is one, instead of the ending of the authority.
const EXPECTED: &str = "crl.expected";

/// A list holds so long; nobody asks, and a new one is made with each revocation.
const LIST_LIFE: Duration = Duration::from_secs(10 * 365 * 86_400);

/// A certificate that was signed here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IssuedCertificate {
    /// The authority that signed it.
    pub authority: Authority,
    /// Its serial number, in hex.
    pub serial: String,
    /// Whose it is.
    pub name: String,
    /// What it is for.
    pub what: String,
    /// When it ends.
    pub until: Timestamp,
}

impl IssuedCertificate {
    /// Whether it holds, or ended so short a time ago that it may be renewed with: until then it needs revoking.
    fn can_be_used(&self, now: Timestamp) -> bool {
        now.duration_since(self.until) <= SignedDuration::from_hours(24 * i64::from(EXPIRED_DAYS_MAX))
    }
}

/// The lists of all authorities, as they travel: DER in base64, by `peer-ca`, `client-ca` and `agent-ca`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RevocationLists {
    /// By authority.
    pub lists: BTreeMap<String, String>,
}

impl RevocationLists {
    /// What names each list, by authority.
    pub fn prints(&self) -> BTreeMap<String, String> {
        let print = |text: &String| BASE64_STANDARD.decode(text).map(|der| crate::trust::fingerprint(&der));
        self.lists.iter().filter_map(|(authority, text)| Some((authority.clone(), print(text).ok()?))).collect()
    }
}

/// The file of the list of an authority.
pub fn crl_file(authority: Authority) -> String {
    format!("{}.crl", authority.word())
}

/// Writes down what was signed, so that it can be revoked.
pub fn record_issued(dir: &Path, signed: &SignedBundle, now: Timestamp) -> Result<(), Fault> {
    let folder = Folder::open(dir, 0o700)?;
    let mut lines = lines(dir, ISSUED)?;
    lines.retain(|line| parse_issued(line).is_none_or(|known| known.can_be_used(now)));
    for role in Role::ALL {
        let certificate =
            Certificate::parse(signed.certificate(role)).map_err(|why| Fault::new(Code::Internal, why))?;
        let (authority, serial) = (role.authority().word(), serial_of(&certificate.der)?);
        lines.push(format!("{authority} {serial} {} {} {}", certificate.life.until, signed.name, role.word()));
    }
    folder.write(ISSUED, text(&lines).as_bytes(), PUBLIC)
}

/// What was signed for `name` and still holds, or may still be renewed with.
pub fn observe_issued(dir: &Path, name: &str, now: Timestamp) -> Result<Vec<IssuedCertificate>, Fault> {
    let all = lines(dir, ISSUED)?.into_iter().filter_map(|line| parse_issued(&line));
    Ok(all.filter(|issued| issued.name == name && issued.can_be_used(now)).collect())
}

/// A certificate from a file, as one that was signed here.
pub fn read_issued(
    authorities: &Authorities,
    certificate: &Certificate,
    name: &str,
) -> Result<IssuedCertificate, Fault> {
    let signer =
        Authority::ALL.into_iter().find(|authority| certificate.is_signed_by(&authorities.get(*authority).certificate));
    let authority = signer.ok_or_else(|| {
        Fault::new(Code::NothingToRevoke, format!("`{}` was signed by none of these authorities", certificate.subject))
            .hint("name the folder of authorities that signed it")
    })?;
    let (serial, until) = (serial_of(&certificate.der)?, certificate.life.until);
    Ok(IssuedCertificate { authority, serial, name: name.to_owned(), what: "a file".to_owned(), until })
}

/// Revokes certificates, and makes the lists anew. Returns how many were not revoked before.
pub fn ensure_revoked(
    dir: &Path,
    authorities: &Authorities,
    certificates: &[IssuedCertificate],
    now: Timestamp,
) -> Result<usize, Fault> {
    let folder = Folder::open(dir, 0o700)?;
    let mut lines = lines(dir, REVOKED)?;
    let before = lines.len();
    for one in certificates {
        let known = |line: &String| line.split(' ').nth(1) == Some(one.serial.as_str());
        if !lines.iter().any(known) {
            let (authority, second) = (one.authority.word(), now.as_second());
            lines.push(format!("{authority} {} {second} {}", one.serial, one.name));
        }
    }
    folder.write(REVOKED, text(&lines).as_bytes(), PUBLIC)?;
    for authority in Authority::ALL {
        let list = make_list(&authorities.get(authority).issuer, authority.word(), &lines, now)?;
        folder.write(&crl_file(authority), &list, PUBLIC)?;
    }
    Ok(lines.len() - before)
}

/// The lists in a folder of authorities; none where nothing was ever revoked.
pub fn read_lists(dir: &Path) -> Result<Option<RevocationLists>, Fault> {
    let mut lists = BTreeMap::new();
    for authority in Authority::ALL {
        match files::read_if_there(&dir.join(crl_file(authority)))? {
            Some(list) => drop(lists.insert(authority.word().to_owned(), BASE64_STANDARD.encode(list))),
            None => return Ok(None),
        }
    }
    Ok(Some(RevocationLists { lists }))
}

/// Puts lists into the folder of a node. Returns the authorities whose list is another now.
pub fn ensure_lists(dir: &Path, lists: &RevocationLists) -> Result<Vec<Authority>, Fault> {
    let folder = Folder::open(dir, 0o755)?;
    let mut writes = Vec::new();
    for authority in Authority::ALL {
        let word = authority.word();
        let text = lists.lists.get(word).ok_or_else(|| unusable(&format!("there is none for {word}")))?;
        let der = BASE64_STANDARD.decode(text).map_err(|_| unusable("it is not base64"))?;
        let number = check_list(&folder, authority, &der)?;
        let there = files::read_if_there(&folder.at(&crl_file(authority)))?;
        if there.as_deref() == Some(der.as_slice()) {
            continue;
        }
        if let Some(known) = there.as_deref().and_then(|known| number_of(known).ok())
            && known > number
        {
            return Err(Fault::new(
                Code::TrustRefused,
                format!("the list for {word} is older than the one that is here"),
            )
            .hint("use the newest copy of the folder of authorities"));
        }
        writes.push((authority, der));
    }
    for (authority, der) in &writes {
        write_list(&folder, *authority, der)?;
    }
    Ok(writes.into_iter().map(|(authority, _)| authority).collect())
}

/// Takes what is newer of the lists that another node has, and passes over the rest: after a rotation, there are lists of authorities
/// that nobody trusts any more. Returns the authorities whose list is another now.
pub fn ensure_newer_lists(dir: &Path, lists: &RevocationLists) -> Result<Vec<Authority>, Fault> {
    let folder = Folder::open(dir, 0o755)?;
    let mut taken = Vec::new();
    for authority in Authority::ALL {
        let Some(text) = lists.lists.get(authority.word()) else { continue };
        let Ok(der) = BASE64_STANDARD.decode(text) else { continue };
        if check_list(&folder, authority, &der).is_ok() && ensure_newer(&folder, authority, &der)? {
            taken.push(authority);
        }
    }
    Ok(taken)
}

/// Puts a list in place that was checked, unless there is a newer one. Returns whether it is another now.
pub(crate) fn ensure_newer(folder: &Folder, authority: Authority, der: &[u8]) -> Result<bool, Fault> {
    let there = files::read_if_there(&folder.at(&crl_file(authority)))?;
    let (known, number) = (there.as_deref().map(|known| number_of(known).unwrap_or(0)), number_of(der)?);
    // Two of one second would go to and fro between nodes.
    if known.is_some_and(|known| known >= number) {
        return Ok(false);
    }
    write_list(folder, authority, der)?;
    Ok(true)
}

/// Adds the lists in the folder of authorities to what was signed there, as far as the authorities of today have signed them.
pub fn with_lists(dir: &Path, authorities: &Authorities, signed: SignedBundle) -> Result<SignedBundle, Fault> {
    let mut found = BTreeMap::new();
    for authority in Authority::ALL {
        let list = files::read_if_there(&dir.join(crl_file(authority)))?;
        let ours = |list: &Vec<u8>| is_signed(list, std::slice::from_ref(&authorities.get(authority).certificate));
        found.extend(list.filter(ours).map(|list| (authority.word(), list)));
    }
    Ok(signed.with_lists(|authority| found.remove(authority.word())))
}

/// The lists that a node has, whatever others there are.
pub fn read_known_lists(dir: &Path) -> Result<RevocationLists, Fault> {
    let mut lists = BTreeMap::new();
    for authority in Authority::ALL {
        let list = files::read_if_there(&dir.join(crl_file(authority)))?;
        lists.extend(list.map(|list| (authority.word().to_owned(), BASE64_STANDARD.encode(list))));
    }
    Ok(RevocationLists { lists })
}

/// The list beside the certificate of an authority; `None`: there never was one. One that was there and is not, or that cannot be
/// looked at, is a fault: who went on without it would let everybody in that was called back.
pub fn observe_list(authority: &Path) -> Result<Option<PathBuf>, Fault> {
    let list = authority.with_extension("crl");
    let gone = |why: &str| {
        Fault::new(Code::RevocationsMissing, format!("the list of revoked certificates `{}` {why}", list.display()))
            .hint("bring it back with `quorate ca revoke --refresh`; see `quorate explain Q1073`")
    };
    let unseen = |error| gone("cannot be looked at").caused_by(error);
    match list.metadata() {
        Ok(meta) if meta.is_file() => return Ok(Some(list)),
        Ok(_) => return Err(gone("is no file")),
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(unseen(error)),
    }
    match authority.with_extension(EXPECTED).symlink_metadata() {
        Ok(_) => Err(gone("was here, and is gone")),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(unseen(error)),
    }
}

/// Remembers the list beside the certificate of an authority, where an earlier release has put one there.
pub fn ensure_list_expected(authority: &Path) -> Result<(), Fault> {
    let marker = authority.with_extension(EXPECTED);
    let (Some(dir), Some(name)) = (marker.parent(), marker.file_name().and_then(|name| name.to_str())) else {
        return Ok(());
    };
    if marker.symlink_metadata().is_ok() {
        return Ok(());
    }
    Folder::open(dir, 0o755)?.write(name, b"", PUBLIC)
}

/// The memory first: cut off in between, nothing opens until the list is there.
fn write_list(folder: &Folder, authority: Authority, der: &[u8]) -> Result<(), Fault> {
    let marker = Path::new(&authority.cert_file()).with_extension(EXPECTED);
    if folder.at(&marker.to_string_lossy()).symlink_metadata().is_err() {
        folder.write(&marker.to_string_lossy(), b"", PUBLIC)?;
    }
    folder.write(&crl_file(authority), der, PUBLIC)
}

pub(crate) fn is_signed(der: &[u8], trusted: &[Certificate]) -> bool {
    let Ok((rest, list)) = CertificateRevocationList::from_der(der) else { return false };
    rest.is_empty()
        && trusted.iter().any(|trusted| {
            X509Certificate::from_der(&trusted.der)
                .is_ok_and(|(_, parsed)| list.verify_signature(parsed.public_key()).is_ok())
        })
}

/// A list in a bundle of certificates: by the very authority that came with it, or one that is trusted here.
pub(crate) fn check_bundled(folder: &Folder, authority: Authority, der: &[u8], by: &Certificate) -> Result<(), Fault> {
    match is_signed(der, std::slice::from_ref(by)) {
        true => number_of(der).map(drop),
        false => check_list(folder, authority, der).map(drop),
    }
}

fn check_list(folder: &Folder, authority: Authority, der: &[u8]) -> Result<u64, Fault> {
    let number = number_of(der)?;
    let path = folder.at(&authority.cert_file());
    let trusted = files::read_if_there(&path)?.and_then(|bytes| parse_pem(&bytes).ok()).unwrap_or_default();
    match is_signed(der, &trusted) {
        true => Ok(number),
        false => Err(unusable(&format!("it was not signed by a {} that this node trusts", authority.word()))),
    }
}

/// The number of a list: the second it was made in.
pub(crate) fn number_of(der: &[u8]) -> Result<u64, Fault> {
    let (_, list) = CertificateRevocationList::from_der(der).map_err(|error| unusable(&error.to_string()))?;
    Ok(u64::try_from(list.last_update().timestamp()).unwrap_or(0))
}

/// Makes the list of an authority: the serial numbers of the lines that begin with its word.
pub(crate) fn make_list(
    issuer: &Issuer<'_, KeyPair>,
    authority: &str,
    lines: &[String],
    now: Timestamp,
) -> Result<Vec<u8>, Fault> {
    let fail = |error: rcgen::Error| Fault::new(Code::Internal, "cannot make a list of revocations").caused_by(error);
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    let mut revoked = Vec::new();
    for line in lines {
        let mut words = line.split(' ');
        let (Some(word), Some(serial), Some(second)) = (words.next(), words.next(), words.next()) else { continue };
        if word != authority {
            continue;
        }
        let (Some(bytes), Ok(second)) = (from_hex(serial), second.parse::<i64>()) else { continue };
        revoked.push(RevokedCertParams {
            serial_number: SerialNumber::from_slice(&bytes),
            revocation_time: epoch + since_1970(Timestamp::from_second(second).unwrap_or(now)),
            reason_code: None,
            invalidity_date: None,
        });
    }
    let number = u64::try_from(now.as_second()).unwrap_or(0);
    let params = CertificateRevocationListParams {
        this_update: epoch + since_1970(now),
        next_update: epoch + since_1970(later(now, LIST_LIFE)),
        crl_number: SerialNumber::from(number),
        issuing_distribution_point: None,
        revoked_certs: revoked,
        key_identifier_method: KeyIdMethod::Sha256,
    };
    let list = params.signed_by(issuer).map_err(fail)?;
    Ok(list.der().to_vec())
}

fn serial_of(der: &[u8]) -> Result<String, Fault> {
    let (_, parsed) = X509Certificate::from_der(der).map_err(|error| unusable(&error.to_string()))?;
    Ok(parsed.raw_serial().iter().map(|byte| format!("{byte:02x}")).collect())
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    if text.is_empty() || !text.len().is_multiple_of(2) || !text.is_ascii() {
        return None;
    }
    let digits: Vec<char> = text.chars().collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(&String::from_iter(pair), 16).ok()).collect()
}

fn parse_issued(line: &str) -> Option<IssuedCertificate> {
    let words: Vec<&str> = line.split(' ').collect();
    let [authority, serial, until, name, what] = words.as_slice() else { return None };
    let authority = Authority::ALL.into_iter().find(|known| known.word() == *authority)?;
    from_hex(serial)?;
    let (serial, name, what) = ((*serial).to_owned(), (*name).to_owned(), (*what).to_owned());
    Some(IssuedCertificate { authority, serial, name, what, until: until.parse().ok()? })
}

pub(crate) fn lines(dir: &Path, name: &str) -> Result<Vec<String>, Fault> {
    let bytes = files::read_if_there(&dir.join(name))?.unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes).into_owned();
    Ok(text.lines().map(str::to_owned).filter(|line| !line.trim().is_empty()).collect())
}

pub(crate) fn text(lines: &[String]) -> String {
    lines.iter().map(|line| format!("{line}\n")).collect()
}

fn unusable(why: &str) -> Fault {
    Fault::new(Code::RevocationsUnusable, format!("cannot use a list of revoked certificates: {why}"))
        .hint("make the lists again with `quorate ca revoke --refresh`")
}
