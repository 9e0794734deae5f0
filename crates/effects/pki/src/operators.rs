//! The operators' authority: its key, the certificates of people and machines that operate a cluster, and what they sign.
//!
//! ```text
//!   where authorities are kept: operators.{crt,key}  ── ensure_operator_certificate ──►  FOLDER/operator.{crt,key} of a person
//!   on each node: operators.crt, operators.crl       ── identify_operator, verify_order ──►  who it is, and with which role
//! ```
//!
//! **Invariant:** a certificate counts as an operator's only if this authority signed it, it is within its validity period and no list
//! revokes it. What cannot be read is no operator. The key of the authority is on no node.

use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use jiff::Timestamp;
use quorate_faults::{Code, Fault};
use quorate_plan::certificates::{
    Life, NodeNames, OperatorRole, operator_files, operator_hostname, operator_of_hostname, pem,
};
use quorate_plan::file_order::{FileOrder, SignedFileOrder};
use rcgen::{
    CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, KeyUsagePurpose, PublicKeyData,
    SanType, SigningKey,
};
use x509_parser::prelude::{CertificateRevocationList, FromDer};

use crate::authority::{self, Opened, later, open_pair, serial, set_life};
use crate::files::{self, Folder, PUBLIC, SECRET};
use crate::identity::serial_of;
use crate::issue::BACKDATED;
use crate::keys;
use crate::passphrase::Passphrase;
use crate::read::{Certificate, parse_pem};
use crate::revoke::{is_signed, lines, make_list, number_of, text};

/// The word in the authority's own name, and in lists.
const WORD: &str = "operators";
/// What was signed, one line each, and what was revoked.
const ISSUED: &str = "operators-issued.txt";
const REVOKED: &str = "operators-revoked.txt";
/// The files of a person.
pub const OPERATOR_CERTIFICATE: &str = "operator.crt";
/// The key of a person.
pub const OPERATOR_KEY: &str = "operator.key";
/// More in one file are no authorities.
const SIGNED_BYTES_MAX: usize = 64 * 1024;

/// Makes the operators' authority in a folder of authorities, where there is none. Returns whether it was made.
pub fn ensure_operator_authority(
    dir: &Path,
    token: &str,
    passphrase: Option<&Passphrase>,
    now: Timestamp,
) -> Result<bool, Fault> {
    NodeNames::new(token, "n", [])?;
    let folder = Folder::open(dir, 0o700)?;
    let (cert, key) = (folder.at(operator_files::CERTIFICATE), folder.at(operator_files::KEY));
    let key = match (files::read_if_there(&cert)?, files::read_if_there(&key)?) {
        (Some(_), Some(_)) => return Ok(false),
        (Some(_), None) => {
            return Err(Fault::new(
                Code::CaOther,
                format!("`{}` is there, and its issuing key is elsewhere", cert.display()),
            )
            .hint("nothing was changed; name the folder that holds both"));
        }
        (None, Some(bytes)) => keys::decode(&bytes, &key, passphrase)?,
        (None, None) => {
            let made = keys::generate()?;
            folder.write(operator_files::KEY, keys::encode(&made, passphrase)?.as_bytes(), SECRET)?;
            made
        }
    };
    let certificate = authority::certificate(WORD, token, &key, now)?;
    folder.write(operator_files::CERTIFICATE, certificate.as_bytes(), PUBLIC)?;
    Ok(true)
}

/// Whether a folder has the operators' authority with its key.
pub fn has_operator_authority(dir: &Path) -> bool {
    [operator_files::CERTIFICATE, operator_files::KEY].iter().all(|name| dir.join(name).is_file())
}

/// Whether the key of the operators' authority in a folder is encrypted. A key that is not there needs no passphrase.
pub fn operators_need_passphrase(dir: &Path) -> Result<bool, Fault> {
    let bytes = files::read_if_there(&dir.join(operator_files::KEY))?;
    Ok(bytes.is_some_and(|bytes| keys::is_encrypted(&bytes)))
}

fn open(dir: &Path, passphrase: Option<&Passphrase>) -> Result<(Opened, String), Fault> {
    let opened = open_pair(&dir.join(operator_files::CERTIFICATE), &dir.join(operator_files::KEY), passphrase)?;
    let token = opened.certificate.organization.clone().unwrap_or_default();
    Ok((opened, token))
}

/// What a person gets.
#[derive(Debug, Clone)]
pub struct OperatorRequest<'a> {
    /// Who: lower-case letters, digits and `-`.
    pub name: &'a str,
    /// What for.
    pub role: OperatorRole,
    /// How many days the certificate holds.
    pub days: u32,
    /// The folder for it.
    pub out: &'a Path,
}

/// A certificate that was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MadeOperator {
    /// The cluster's token.
    pub token: String,
    /// Its serial number, in hex.
    pub serial: String,
    /// When it ends.
    pub until: Timestamp,
    /// The files.
    pub files: [PathBuf; 2],
}

/// Makes the key and the certificate of a person. A key that is there is used again.
pub fn ensure_operator_certificate(
    dir: &Path,
    passphrase: Option<&Passphrase>,
    request: &OperatorRequest<'_>,
    now: Timestamp,
) -> Result<MadeOperator, Fault> {
    let (opened, token) = open(dir, passphrase)?;
    let name = operator_hostname(request.name, request.role, &token).ok_or_else(|| {
        Fault::new(Code::CertificateName, format!("cannot make a certificate for `{}`", request.name.escape_debug()))
            .hint("use lower-case letters, digits and `-`")
    })?;
    let until = later(now, Duration::from_secs(u64::from(request.days) * 86_400)).min(opened.certificate.life.until);
    if until <= now {
        return Err(Fault::new(Code::CertificateExpired, "cannot sign: the operators' authority has ended")
            .hint("make another one, and bring it to every node"));
    }
    let folder = Folder::open(request.out, 0o700)?;
    let key = match files::read_if_there(&folder.at(OPERATOR_KEY))? {
        Some(bytes) => keys::decode(&bytes, &folder.at(OPERATOR_KEY), None)?,
        None => {
            let made = keys::generate()?;
            folder.write(OPERATOR_KEY, keys::encode(&made, None)?.as_bytes(), SECRET)?;
            made
        }
    };
    let fail = |error: rcgen::Error| Fault::new(Code::Internal, "cannot sign a certificate").caused_by(error);
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, token.as_str());
    params.distinguished_name.push(DnType::OrganizationalUnitName, format!("operator with role {}", request.role));
    params.subject_alt_names.push(SanType::DnsName(name.try_into().map_err(fail)?));
    params.is_ca = IsCa::ExplicitNoCa;
    params.serial_number = Some(serial()?);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    params.use_authority_key_identifier_extension = true;
    set_life(&mut params, Life { from: now.checked_sub(BACKDATED).unwrap_or(now), until });
    let signed = params.signed_by(&key, &opened.issuer).map_err(fail)?;
    let serial = serial_of(signed.der()).unwrap_or_default();
    // What is on record can be revoked by name: before anybody has it.
    let own = Folder::open(dir, 0o700)?;
    let mut known = lines(dir, ISSUED)?;
    known.push(format!("{WORD} {serial} {until} {} {}", request.name, request.role));
    own.write(ISSUED, text(&known).as_bytes(), PUBLIC)?;
    folder.write(OPERATOR_CERTIFICATE, pem(signed.der()).as_bytes(), PUBLIC)?;
    Ok(MadeOperator { token, serial, until, files: [folder.at(OPERATOR_CERTIFICATE), folder.at(OPERATOR_KEY)] })
}

/// Revokes every certificate of a person that is on record, and makes the list again. Returns how many were not revoked before, and the
/// list.
pub fn ensure_operator_revoked(
    dir: &Path,
    passphrase: Option<&Passphrase>,
    name: Option<&str>,
    now: Timestamp,
) -> Result<(usize, Vec<u8>), Fault> {
    let (opened, _) = open(dir, passphrase)?;
    let folder = Folder::open(dir, 0o700)?;
    let issued = lines(dir, ISSUED)?;
    let of = |line: &&String| name.is_some() && line.split(' ').nth(3) == name;
    let serials: Vec<&str> = issued.iter().filter(of).filter_map(|line| line.split(' ').nth(1)).collect();
    if let (Some(name), true) = (name, serials.is_empty()) {
        return Err(Fault::new(Code::NothingToRevoke, format!("no certificate of the operator `{name}` is on record"))
            .hint("see `operators-issued.txt` in the folder of authorities"));
    }
    let mut revoked = lines(dir, REVOKED)?;
    let before = revoked.len();
    for serial in serials {
        if !revoked.iter().any(|line| line.split(' ').nth(1) == Some(serial)) {
            revoked.push(format!("{WORD} {serial} {} {}", now.as_second(), name.unwrap_or_default()));
        }
    }
    folder.write(REVOKED, text(&revoked).as_bytes(), PUBLIC)?;
    let list = make_list(&opened.issuer, WORD, &revoked, now)?;
    folder.write(operator_files::REVOKED, &list, PUBLIC)?;
    Ok((revoked.len() - before, list))
}

/// Puts a list of revoked operators beside the authority on a node, where it is newer than the one there. Returns whether it is another
/// now. `authority`: the file of the authority.
pub fn ensure_operator_list(authority: &Path, list: &[u8]) -> Result<bool, Fault> {
    let unusable = |why: &str| {
        Fault::new(Code::RevocationsUnusable, format!("cannot use a list of revoked operators: {why}"))
            .hint("make it again with `quorate ca revoke --operator NAME`")
    };
    let trusted = read_authority(authority).map_err(|why| unusable(&why))?;
    if !is_signed(list, &trusted) {
        return Err(unusable("the operators' authority that this node has did not sign it"));
    }
    let number = number_of(list)?;
    let (dir, name) = list_of(authority);
    let folder = Folder::open(&dir, 0o755)?;
    let known = files::read_if_there(&folder.at(&name))?;
    if known.is_some_and(|known| number_of(&known).unwrap_or(0) >= number) {
        return Ok(false);
    }
    folder.write(&name, list, PUBLIC)?;
    Ok(true)
}

/// The list of revoked operators on a node; `None`: there is none.
pub fn read_operator_list(authority: &Path) -> Option<Vec<u8>> {
    let (dir, name) = list_of(authority);
    files::read_if_there(&dir.join(name)).ok().flatten()
}

/// The list lies beside the authority.
pub(crate) fn list_of(authority: &Path) -> (PathBuf, String) {
    let list = authority.with_extension("crl");
    let name = list.file_name().and_then(|name| name.to_str()).unwrap_or(operator_files::REVOKED).to_owned();
    (authority.parent().unwrap_or(Path::new("/")).to_owned(), name)
}

/// Installs the operators' authority on a node that has none. Returns whether it was installed; another one that is there stays.
pub fn ensure_operators_known(authority: &Path, text: &[u8]) -> Result<bool, Fault> {
    parse_pem(text).map_err(|why| {
        Fault::new(Code::BundleUnreadable, "cannot use the operators' authority that came with the certificates")
            .hint("bring the text over once more, whole")
            .caused_by(why)
    })?;
    if files::read_if_there(authority)?.is_some() {
        return Ok(false);
    }
    let name = authority.file_name().and_then(|name| name.to_str()).unwrap_or(operator_files::CERTIFICATE);
    let folder = Folder::open(authority.parent().unwrap_or(Path::new("/")), 0o755)?;
    folder.write(name, text, PUBLIC)?;
    Ok(true)
}

fn read_authority(path: &Path) -> Result<Vec<Certificate>, String> {
    match files::read_if_there(path) {
        Ok(Some(bytes)) => parse_pem(&bytes),
        Ok(None) => Err("this node has no operators' authority".to_owned()),
        Err(fault) => Err(fault.to_string()),
    }
}

/// A person or machine that operates the cluster, as its certificate proves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OperatorIdentity {
    /// Who.
    pub name: String,
    /// What for.
    pub role: OperatorRole,
    /// The serial number of the certificate, in hex.
    pub serial: String,
}

/// Whether a certificate claims to be an operator's; whether it is one, [`identify_operator`] says.
pub fn claims_operator(der: &[u8], token: &str) -> bool {
    Certificate::parse(der).is_ok_and(|certificate| named(&certificate, token).is_some())
}

fn named(certificate: &Certificate, token: &str) -> Option<(String, OperatorRole)> {
    certificate.dns.iter().find_map(|name| operator_of_hostname(name, token))
}

/// Who a certificate is of, or why it counts as nobody's. `authority`: the operators' authority on this node. Reads files: not for async
/// code.
pub fn identify_operator(
    der: &[u8],
    token: &str,
    authority: &Path,
    now: Timestamp,
) -> Result<OperatorIdentity, String> {
    let certificate = Certificate::parse(der)?;
    let (name, role) = named(&certificate, token).ok_or("it names no operator of this cluster")?;
    let trusted = read_authority(authority)?;
    let signer = trusted.iter().find(|signer| certificate.is_signed_by(signer));
    let signer = signer.ok_or("the operators' authority of this node did not sign it")?;
    let holds = |life: &Life| life.from <= now && now < life.until;
    if !holds(&certificate.life) || !holds(&signer.life) {
        return Err("it does not hold now".to_owned());
    }
    if certificate.is_ca || !certificate.client_auth {
        return Err("it is not for clients".to_owned());
    }
    let serial = serial_of(der).ok_or("its serial number cannot be read")?;
    match is_revoked(authority, &trusted, &serial) {
        Ok(false) => Ok(OperatorIdentity { name, role, serial }),
        Ok(true) => Err("it is revoked".to_owned()),
        Err(why) => Err(why),
    }
}

/// Whether the list beside the authority has this number. A list that cannot be used revokes everybody.
fn is_revoked(authority: &Path, trusted: &[Certificate], serial: &str) -> Result<bool, String> {
    let (dir, name) = list_of(authority);
    let bytes = files::read_if_there(&dir.join(&name)).map_err(|fault| fault.to_string())?;
    let Some(bytes) = bytes else { return Ok(false) };
    if !is_signed(&bytes, trusted) {
        return Err(format!("the list of revoked operators `{name}` cannot be used"));
    }
    let (_, list) = CertificateRevocationList::from_der(&bytes).map_err(|error| error.to_string())?;
    let hex = |raw: &[u8]| raw.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    Ok(list.iter_revoked_certificates().any(|revoked| hex(revoked.raw_serial()) == serial))
}

/// Signs an order with the files of a person.
pub fn sign_order(certificate: &Path, key: &Path, order: &FileOrder) -> Result<SignedFileOrder, Fault> {
    let unusable = |why: String| {
        Fault::new(Code::CertificateMissing, format!("cannot sign with `{}`", key.display()))
            .hint("use the two files that `quorate ca issue --role` made")
            .caused_by(why)
    };
    let leaf = crate::read::read_certificates(certificate)?.swap_remove(0);
    let bytes = files::read_if_there(key)?.ok_or_else(|| unusable("it does not exist".to_owned()))?;
    let pair = keys::decode(&bytes, key, None)?;
    if pair.subject_public_key_info() != leaf.public_key {
        return Err(unusable(format!("it does not belong to `{}`", certificate.display())));
    }
    let message = order.message().ok_or_else(|| unusable("the order cannot be written".to_owned()))?;
    let signature = pair.sign(&message).map_err(|error| unusable(error.to_string()))?;
    let (certificate, signature) = (BASE64_STANDARD.encode(&leaf.der), BASE64_STANDARD.encode(signature));
    Ok(SignedFileOrder { order: order.clone(), certificate, signature })
}

/// Who signed an order, or why nobody did. Reads files: not for async code.
pub fn verify_order(
    signed: &SignedFileOrder,
    token: &str,
    authority: &Path,
    now: Timestamp,
) -> Result<OperatorIdentity, String> {
    if signed.certificate.len() > SIGNED_BYTES_MAX || signed.signature.len() > SIGNED_BYTES_MAX {
        return Err("it is too long".to_owned());
    }
    let decode = |text: &str| BASE64_STANDARD.decode(text).map_err(|_| "it is not base64".to_owned());
    let (der, signature) = (decode(&signed.certificate)?, decode(&signed.signature)?);
    let identity = identify_operator(&der, token, authority, now)?;
    let message = signed.order.message().ok_or("it holds fields that cannot be signed")?;
    match Certificate::parse(&der)?.verifies(&message, &signature) {
        true => Ok(identity),
        false => Err("the signature is not of that certificate and this order".to_owned()),
    }
}
