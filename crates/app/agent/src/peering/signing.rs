//! Signs the records of this node, and names the servers that signed others.
//!
//! **Rule:** in clear text there are no keys, and nothing is signed or verified; agents listen on loopback alone there.

use std::path::PathBuf;

use jiff::Timestamp;
use quorate_faults::{Code, Fault};
use quorate_pki::{Verifier, is_signed_with, sign_as_node};
use quorate_plan::peering::{Signature, Signers, signatures_of, signed_bytes, with_signatures};
use quorate_plan::spec::{Spec, TlsFiles, for_member};
use serde::Serialize;
use serde_json::Value;

/// The files of this node's agent.
#[derive(Debug, Clone)]
pub(super) struct Signing {
    token: String,
    cert: PathBuf,
    key: PathBuf,
    authorities: PathBuf,
}

impl Signing {
    /// Those of a node; none in clear text.
    pub(super) fn of(spec: &Spec, name: &str) -> Option<Signing> {
        let tls = spec.tls_files()?;
        let TlsFiles { cert_file, key_file, trusted_ca_file } = tls.agent.as_ref().unwrap_or(&tls.peer);
        let path = |text: &str| PathBuf::from(for_member(text, name));
        let (cert, key, authorities) = (path(cert_file), path(key_file), path(trusted_ca_file));
        Some(Signing { token: spec.token.clone(), cert, key, authorities })
    }

    /// The signature of this node for a record under a key.
    pub(super) async fn sign(&self, key: &str, record: &Value) -> Result<Signature, Fault> {
        let (bytes, own) = (signed_bytes(&self.token, key, record), self.clone());
        blocking(move || sign_as_node(&own.cert, &own.key, &bytes)).await
    }

    /// The nodes that signed a record under a key.
    pub(super) async fn signers(&self, key: &str, record: &Value) -> Result<Signers, Fault> {
        let (bytes, signatures) = (signed_bytes(&self.token, key, record), signatures_of(record));
        if signatures.is_empty() {
            return Ok(Signers::default());
        }
        let own = self.clone();
        blocking(move || {
            let verifier = Verifier::read(&own.authorities, &own.token, Timestamp::now())?;
            Ok(verifier.signers(&bytes, &signatures))
        })
        .await
    }

    /// Whether this node signed a record with the certificate that it has now.
    pub(super) async fn is_own(&self, record: &Value) -> Result<bool, Fault> {
        let (signatures, cert) = (signatures_of(record), self.cert.clone());
        blocking(move || {
            for signature in &signatures {
                if is_signed_with(&cert, signature)? {
                    return Ok(true);
                }
            }
            Ok(false)
        })
        .await
    }
}

/// A record with the signature of this node; without any in clear text.
pub(super) async fn signed(signing: Option<&Signing>, key: &str, record: &impl Serialize) -> Result<Value, Fault> {
    let record = serde_json::to_value(record)
        .map_err(|error| Fault::new(Code::Internal, "cannot write a record").caused_by(error))?;
    match signing {
        None => Ok(record),
        Some(signing) => Ok(with_signatures(&record, &[signing.sign(key, &record).await?])),
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T, Fault> + Send + 'static) -> Result<T, Fault> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|_| Err(Fault::new(Code::Internal, "the work on a signature panicked")))
}
