//! What a certificate says.
//!
//! **Invariant:** no bytes panic, and an unreadable certificate is an answer of its own.

use std::net::IpAddr;
use std::path::Path;

use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1, UnparsedPublicKey};
use jiff::Timestamp;
use quorate_faults::Fault;
use quorate_plan::certificates::{Life, is_host_name, node_of_hostname};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate, X509Name};

use crate::files;

/// More in one file are no chain.
const CERTIFICATES_MAX: usize = 64;

/// One certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certificate {
    /// Its bytes.
    pub der: Vec<u8>,
    /// Whose it is.
    pub subject: String,
    /// Who signed it.
    pub issuer: String,
    /// The common name of whose it is.
    pub common_name: Option<String>,
    /// The organisation of whose it is; for us, the cluster's token.
    pub organization: Option<String>,
    /// Host names that it is for.
    pub dns: Vec<String>,
    /// Addresses that it is for.
    pub ips: Vec<IpAddr>,
    /// When it holds.
    pub life: Life,
    /// Whether it may sign others.
    pub is_ca: bool,
    /// Whether a server may show it.
    pub server_auth: bool,
    /// Whether a client may show it.
    pub client_auth: bool,
    /// The public key, as it stands there.
    pub public_key: Vec<u8>,
}

impl Certificate {
    /// Reads one.
    pub fn parse(der: &[u8]) -> Result<Certificate, String> {
        let (rest, parsed) = X509Certificate::from_der(der).map_err(|error| format!("it cannot be read: {error}"))?;
        if !rest.is_empty() {
            return Err("more follows behind it".to_owned());
        }
        let (dns, ips) = names(&parsed)?;
        let usage = parsed.extended_key_usage().map_err(|error| format!("its usages cannot be read: {error}"))?;
        let usage = usage.map(|usage| (usage.value.any, usage.value.server_auth, usage.value.client_auth));
        // Without the list, it is good for everything.
        let (any, server_auth, client_auth) = usage.unwrap_or((true, true, true));
        let time = |time: &x509_parser::time::ASN1Time| {
            Timestamp::from_second(time.timestamp()).unwrap_or(if time.timestamp() < 0 {
                Timestamp::MIN
            } else {
                Timestamp::MAX
            })
        };
        let validity = parsed.validity();
        Ok(Certificate {
            der: der.to_vec(),
            subject: shown(parsed.subject()),
            issuer: shown(parsed.issuer()),
            common_name: text(parsed.subject().iter_common_name().next()),
            organization: text(parsed.subject().iter_organization().next()),
            dns,
            ips,
            life: Life { from: time(&validity.not_before), until: time(&validity.not_after) },
            is_ca: parsed.is_ca(),
            server_auth: any || server_auth,
            client_auth: any || client_auth,
            public_key: parsed.public_key().raw.to_vec(),
        })
    }

    /// Whether `authority` signed this one and may do so.
    pub fn is_signed_by(&self, authority: &Certificate) -> bool {
        let (Ok((_, own)), Ok((_, other))) =
            (X509Certificate::from_der(&self.der), X509Certificate::from_der(&authority.der))
        else {
            return false;
        };
        let may = other.is_ca() && own.issuer().as_raw() == other.subject().as_raw();
        may && own.verify_signature(Some(other.public_key())).is_ok()
    }

    /// Whether its key made this signature: ECDSA over P-256 with SHA-256, as our keys do.
    pub fn verifies(&self, message: &[u8], signature: &[u8]) -> bool {
        let Ok((_, own)) = X509Certificate::from_der(&self.der) else { return false };
        let key = own.public_key().subject_public_key.data.as_ref();
        UnparsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, key).verify(message, signature).is_ok()
    }

    /// Whether it is for this host, as Go and rustls decide it: exactly, or by a `*` that stands for one label.
    pub fn covers(&self, host: &str) -> bool {
        if let Ok(ip) = host.parse::<IpAddr>() {
            return self.ips.contains(&ip);
        }
        let host = host.to_ascii_lowercase();
        self.dns.iter().any(|name| {
            let name = name.to_ascii_lowercase();
            match (name.strip_prefix("*."), host.split_once('.')) {
                (Some(rest), Some((first, above))) => !first.is_empty() && rest == above,
                (Some(_), None) => false,
                (None, _) => name == host,
            }
        })
    }

    /// Names and addresses, as a table shows them.
    pub fn names(&self) -> Vec<String> {
        self.dns.iter().cloned().chain(self.ips.iter().map(ToString::to_string)).collect()
    }
}

/// All certificates of a PEM file, in their order; never none.
pub fn read_certificates(path: &Path) -> Result<Vec<Certificate>, Fault> {
    observe_certificates(path).map_err(|why| {
        Fault::new(quorate_faults::Code::CertificateMissing, format!("cannot use `{}`: {why}", path.display()))
            .hint("it must be a PEM file with certificates that this user can read")
    })
}

/// The same, with the reason in words.
pub(crate) fn observe_certificates(path: &Path) -> Result<Vec<Certificate>, String> {
    let bytes = files::read(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => "it does not exist".to_owned(),
        _ => error.to_string(),
    })?;
    parse_pem(&bytes)
}

pub(crate) fn parse_pem(bytes: &[u8]) -> Result<Vec<Certificate>, String> {
    let mut found = Vec::new();
    for der in CertificateDer::pem_slice_iter(bytes) {
        let der = der.map_err(|error| format!("it is no PEM file: {error}"))?;
        found.push(Certificate::parse(&der)?);
        if found.len() > CERTIFICATES_MAX {
            return Err(format!("it holds more than {CERTIFICATES_MAX} certificates"));
        }
    }
    if found.is_empty() { Err("it holds no certificate".to_owned()) } else { Ok(found) }
}

/// The node whose agent shows this certificate: the name that `quorate ca` gave it, else the common name.
///
/// Ask only about a certificate that has been verified.
pub fn node_name(der: &[u8], token: &str) -> Option<String> {
    node_of(&Certificate::parse(der).ok()?, token)
}

/// Whether a certificate, which has been verified, is within its validity period. One that cannot be read is not.
pub fn is_current(der: &[u8], now: Timestamp) -> bool {
    Certificate::parse(der).is_ok_and(|certificate| certificate.life.from <= now && now < certificate.life.until)
}

/// Whether a certificate, which has been verified, is for this host.
pub fn covers(der: &[u8], host: &str) -> bool {
    Certificate::parse(der).is_ok_and(|certificate| certificate.covers(host))
}

pub(crate) fn node_of(certificate: &Certificate, token: &str) -> Option<String> {
    let own = certificate.dns.iter().find_map(|name| node_of_hostname(name, token));
    match (own, &certificate.common_name) {
        // The host name lost its case, the common name did not.
        (Some(name), Some(common)) if common.eq_ignore_ascii_case(name) => Some(common.clone()),
        (Some(name), _) => Some(name.to_owned()),
        (None, Some(common)) => Some(common.clone()),
        (None, None) => None,
    }
}

fn names(parsed: &X509Certificate<'_>) -> Result<(Vec<String>, Vec<IpAddr>), String> {
    let (mut dns, mut ips) = (Vec::new(), Vec::new());
    let list = parsed.subject_alternative_name().map_err(|error| format!("its names cannot be read: {error}"))?;
    for name in list.iter().flat_map(|list| &list.value.general_names) {
        match name {
            GeneralName::DNSName(name) if is_host_name(name.strip_prefix("*.").unwrap_or(name)) => {
                dns.push((*name).to_owned());
            }
            GeneralName::IPAddress(bytes) => match (<[u8; 4]>::try_from(*bytes), <[u8; 16]>::try_from(*bytes)) {
                (Ok(four), _) => ips.push(IpAddr::from(four)),
                (_, Ok(sixteen)) => ips.push(IpAddr::from(sixteen)),
                (Err(_), Err(_)) => {}
            },
            // Names of other kinds are for others.
            _ => {}
        }
    }
    Ok((dns, ips))
}

fn text(attribute: Option<&x509_parser::x509::AttributeTypeAndValue<'_>>) -> Option<String> {
    attribute.and_then(|value| value.as_str().ok()).map(str::to_owned)
}

/// A name as people read it: nothing in it moves a terminal's cursor.
fn shown(name: &X509Name<'_>) -> String {
    let text = name.to_string();
    let clean: String = text.chars().map(|c| if c.is_control() { '?' } else { c }).take(200).collect();
    if clean.is_empty() { "(no name)".to_owned() } else { clean }
}
