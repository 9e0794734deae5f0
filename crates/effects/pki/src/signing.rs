//! Signs bytes with the agent key of a node, and names the node that made such a signature.
//!
//! **Invariant:** a signature counts for a node only if its certificate comes from an authority that is trusted here, names that node in
//! this cluster, is within its validity period and is not revoked. An authority's own certificate signs nothing.

use std::collections::BTreeSet;
use std::path::Path;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use jiff::Timestamp;
use quorate_faults::{Code, Fault};
use quorate_plan::peering::{Signature, Signers};
use rcgen::SigningKey;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::files;
use crate::keys;
use crate::read::{Certificate, node_of, read_certificates};
use crate::revoked::{decimal, read_revoked};

/// Far more than a certificate or a signature has, in base64.
const TEXT_MAX: usize = 16 << 10;

/// Signs with the key and the certificate of a node's agent. Reads both: not for async code.
pub fn sign_as_node(cert: &Path, key: &Path, bytes: &[u8]) -> Result<Signature, Fault> {
    let fail = |why: String| {
        Fault::new(Code::CertificateMissing, format!("cannot sign with the key `{}`", key.display()))
            .hint("it must be the ECDSA P-256 key of this node's agent, as `quorate ca` makes it")
            .caused_by(why)
    };
    let certificate = own_certificate(cert)?;
    let text = files::read(key).map(zeroize::Zeroizing::new).map_err(|error| fail(error.to_string()))?;
    let pair = keys::decode(&text, key, None)?;
    let signature = pair.sign(bytes).map_err(|error| fail(error.to_string()))?;
    // The halves of a pair are replaced one after the other.
    if !certificate.verifies(bytes, &signature) {
        return Err(fail(format!("it does not belong to `{}`", cert.display())));
    }
    Ok(Signature {
        certificate: BASE64_STANDARD.encode(&certificate.der),
        signature: BASE64_STANDARD.encode(signature),
    })
}

/// Whether a signature was made with this very certificate.
pub fn is_signed_with(cert: &Path, signature: &Signature) -> Result<bool, Fault> {
    Ok(BASE64_STANDARD.encode(&own_certificate(cert)?.der) == signature.certificate)
}

fn own_certificate(cert: &Path) -> Result<Certificate, Fault> {
    let leaf = read_certificates(cert)?.into_iter().next();
    leaf.ok_or_else(|| Fault::new(Code::CertificateMissing, format!("there is no certificate in `{}`", cert.display())))
}

/// The authorities of a cluster's agents, and the certificates that they have revoked.
#[derive(Debug, Clone)]
pub struct Verifier {
    token: String,
    trusted: Vec<Certificate>,
    revoked: BTreeSet<String>,
    now: Timestamp,
}

impl Verifier {
    /// Reads them, with the list beside them. Not for async code.
    pub fn read(authorities: &Path, token: &str, now: Timestamp) -> Result<Verifier, Fault> {
        let revoked = read_revoked(authorities, now)?.serials;
        Ok(Verifier { token: token.to_owned(), trusted: read_certificates(authorities)?, revoked, now })
    }

    /// The nodes that signed these bytes.
    pub fn signers(&self, bytes: &[u8], signatures: &[Signature]) -> Signers {
        let mut signers = Signers::default();
        for signature in signatures {
            match self.signer(bytes, signature) {
                Ok(name) => drop(signers.names.insert(name)),
                Err(why) => signers.unfit.push(why),
            }
        }
        signers
    }

    fn signer(&self, bytes: &[u8], signature: &Signature) -> Result<String, String> {
        let decode = |text: &str| {
            let short = text.len() <= TEXT_MAX;
            BASE64_STANDARD.decode(text).ok().filter(|_| short).ok_or_else(|| "a signature cannot be read".to_owned())
        };
        let (der, made) = (decode(&signature.certificate)?, decode(&signature.signature)?);
        let certificate = Certificate::parse(&der).map_err(|why| format!("its certificate cannot be read: {why}"))?;
        if certificate.is_ca || !self.trusted.iter().any(|authority| certificate.is_signed_by(authority)) {
            return Err("its certificate is not of the agents' authority".to_owned());
        }
        let name = node_of(&certificate, &self.token).filter(|_| self.is_of_cluster(&certificate));
        let name = name.ok_or_else(|| "its certificate names no node of this cluster".to_owned())?;
        let shown = name.escape_debug();
        let life = certificate.life;
        if self.now < life.from || self.now >= life.until {
            return Err(format!("the certificate of `{shown}` holds from {} until {}", life.from, life.until));
        }
        let serial = X509Certificate::from_der(&der).map(|(_, parsed)| decimal(parsed.raw_serial()));
        if serial.map_or(true, |serial| self.revoked.contains(&serial)) {
            return Err(format!("the certificate of `{shown}` is revoked"));
        }
        match certificate.verifies(bytes, &made) {
            true => Ok(name),
            false => Err(format!("the signature of `{shown}` does not fit")),
        }
    }

    /// Certificates from elsewhere may name no cluster.
    fn is_of_cluster(&self, certificate: &Certificate) -> bool {
        certificate.organization.as_ref().is_none_or(|token| *token == self.token)
    }
}
