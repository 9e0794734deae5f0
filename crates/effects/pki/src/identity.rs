//! What identifies a certificate that was shown in a handshake, for records that outlive the connection.
//!
//! **Rule:** everything comes from the verified certificate and from the authorities that verified it, nothing from the request.

use std::path::Path;

use x509_parser::prelude::{FromDer, X509Certificate};

use crate::read::{Certificate, node_of, observe_certificates};
use crate::trust::fingerprint;

/// A certificate in a record.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CertificateIdentity {
    /// The node that it names, in the cluster of the token.
    pub name: Option<String>,
    /// Its subject.
    pub subject: Option<String>,
    /// Its serial number, in hex, as `quorate ca` lists it.
    pub serial: Option<String>,
    /// The SHA-256 of the certificate of the authority that signed it; none: that authority is not in `authorities` any more.
    pub issuer: Option<String>,
}

/// Reads it. `authorities`: the PEM file that the listener verifies with. Reads a file: not for async code.
pub fn identity_of(der: &[u8], token: &str, authorities: &Path) -> CertificateIdentity {
    let Ok(certificate) = Certificate::parse(der) else { return CertificateIdentity::default() };
    let known = observe_certificates(authorities).unwrap_or_default();
    let issuer = known.iter().find(|authority| certificate.is_signed_by(authority));
    CertificateIdentity {
        name: node_of(&certificate, token),
        serial: serial_of(der),
        issuer: issuer.map(|authority| fingerprint(&authority.der)),
        subject: Some(certificate.subject),
    }
}

/// The serial number of a certificate, in hex.
pub(crate) fn serial_of(der: &[u8]) -> Option<String> {
    let (_, parsed) = X509Certificate::from_der(der).ok()?;
    Some(parsed.raw_serial().iter().map(|byte| format!("{byte:02x}")).collect())
}
