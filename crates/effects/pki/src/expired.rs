//! Accepts client certificates that have ended, for a while, so that a node that was off for long can renew its own; and those that are
//! not valid yet, because a clock was ahead when they were signed.
//!
//! **Rule:** nothing but the validity period is overlooked: chain, usage and revocation hold as they do in the certificate's last or
//! first second. Whoever answers such a connection lets it renew and nothing else.

use std::sync::Arc;
use std::time::Duration;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};

use crate::read::Certificate;

/// For how long an ended certificate may still be renewed with: as long again as it usually holds.
pub const EXPIRED_DAYS_MAX: u32 = 90;

/// The usual verifier, and tolerance of a validity period that has ended or has not begun.
#[derive(Debug)]
pub(crate) struct EndedVerifier {
    usual: Arc<dyn ClientCertVerifier>,
}

impl EndedVerifier {
    pub(crate) fn new(usual: Arc<dyn ClientCertVerifier>) -> EndedVerifier {
        EndedVerifier { usual }
    }
}

/// The last second of a certificate that ended at most so long ago; `None`: it is not one of those.
fn last_second(der: &[u8], now: UnixTime) -> Option<UnixTime> {
    let until = u64::try_from(Certificate::parse(der).ok()?.life.until.as_second()).ok()?;
    let ago = now.as_secs().checked_sub(until)?;
    let limit = u64::from(EXPIRED_DAYS_MAX) * 86_400;
    (ago <= limit).then(|| UnixTime::since_unix_epoch(Duration::from_secs(until.saturating_sub(1))))
}

/// The first second of a certificate that is not valid yet. How far ahead it lies is a matter of the clock that was wrong.
fn first_second(der: &[u8], now: UnixTime) -> Option<UnixTime> {
    let from = u64::try_from(Certificate::parse(der).ok()?.life.from.as_second()).ok()?;
    (from > now.as_secs()).then(|| UnixTime::since_unix_epoch(Duration::from_secs(from)))
}

/// The moment for which a refused certificate is verified again; `None`: it was refused for another reason.
fn moment(refused: &Error, der: &[u8], now: UnixTime) -> Option<UnixTime> {
    match refused {
        Error::InvalidCertificate(CertificateError::Expired | CertificateError::ExpiredContext { .. }) => {
            last_second(der, now)
        }
        Error::InvalidCertificate(CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. }) => {
            first_second(der, now)
        }
        _ => None,
    }
}

impl ClientCertVerifier for EndedVerifier {
    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let refused = match self.usual.verify_client_cert(end_entity, intermediates, now) {
            Ok(verified) => return Ok(verified),
            Err(refused) => refused,
        };
        // An intermediate may be what has ended; our own authorities sign without any.
        match moment(&refused, end_entity, now).filter(|_| intermediates.is_empty()) {
            Some(then) => self.usual.verify_client_cert(end_entity, intermediates, then),
            None => Err(refused),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.usual.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.usual.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.usual.supported_verify_schemes()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.usual.root_hint_subjects()
    }

    fn offer_client_auth(&self) -> bool {
        self.usual.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.usual.client_auth_mandatory()
    }
}
