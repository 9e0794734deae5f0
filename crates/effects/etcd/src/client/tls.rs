//! Certificates for `https` endpoints, read from files.
//!
//! **Rule:** the server's certificate is always checked; there is no switch to turn that off.

use std::path::{Path, PathBuf};
use std::time::Duration;

use quorate_faults::{Code, Fault};
use tonic::transport::{Certificate, ClientTlsConfig, Identity};

/// Limit of one TLS handshake.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);

/// Which files to use.
#[derive(Debug, Clone, Default)]
pub struct Tls {
    /// PEM file with the certificates of the authorities that sign servers; without it, the system's are trusted.
    pub ca: Option<PathBuf>,
    /// PEM file with our own certificate, for servers that ask for one.
    pub cert: Option<PathBuf>,
    /// PEM file with its key.
    pub key: Option<PathBuf>,
    /// The name that the server's certificate must carry, when it is not the URL's host.
    pub server_name: Option<String>,
}

/// The files' content.
pub(super) struct Loaded {
    tls: Tls,
    ca: Option<Certificate>,
    identity: Option<Identity>,
}

impl Loaded {
    pub(super) fn read(tls: &Tls) -> Result<Loaded, Fault> {
        let ca = tls.ca.as_deref().map(|path| pem(path, "CA certificate")).transpose()?;
        let identity = match (tls.cert.as_deref(), tls.key.as_deref()) {
            (Some(cert), Some(key)) => {
                Some(Identity::from_pem(pem(cert, "client certificate")?, pem(key, "client key")?))
            }
            (None, None) => None,
            (Some(cert), None) => return Err(alone("certificate", cert, "key")),
            (None, Some(key)) => return Err(alone("key", key, "certificate")),
        };
        Ok(Loaded { tls: tls.clone(), ca: ca.map(Certificate::from_pem), identity })
    }

    /// The settings for one host.
    pub(super) fn config(&self, host: &str) -> ClientTlsConfig {
        // An IPv6 address stands in brackets in a URL, but not in a certificate.
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let name = self.tls.server_name.as_deref().unwrap_or(host);
        let config = ClientTlsConfig::new().domain_name(name).timeout(HANDSHAKE_LIMIT);
        let config = match &self.ca {
            Some(ca) => config.ca_certificate(ca.clone()),
            None => config.with_native_roots(),
        };
        match &self.identity {
            Some(identity) => config.identity(identity.clone()),
            None => config,
        }
    }

    /// The files were read, but cannot be used.
    pub(super) fn fault(&self, url: &str, error: tonic::transport::Error) -> Fault {
        let files = [&self.tls.ca, &self.tls.cert, &self.tls.key];
        let names: Vec<String> = files.into_iter().flatten().map(|path| format!("`{}`", path.display())).collect();
        let hint = match names.is_empty() {
            true => "this machine trusts no certificate authority; give a CA file".to_owned(),
            false => {
                format!("check that {} are PEM files and that the key belongs to the certificate", names.join(", "))
            }
        };
        Fault::new(Code::EtcdUnreachable, format!("cannot prepare TLS for `{url}`")).hint(hint).caused_by(error)
    }
}

fn pem(path: &Path, what: &str) -> Result<Vec<u8>, Fault> {
    let bytes =
        std::fs::read(path).map_err(|error| Fault::io(format!("cannot read {what} `{}`", path.display()), error))?;
    // rustls takes a file without certificates as an empty list and then trusts nobody, which reads as a wrong CA.
    match bytes.windows(11).any(|window| window == b"-----BEGIN ") {
        true => Ok(bytes),
        false => Err(Fault::new(Code::EtcdUnreachable, format!("cannot use {what} `{}`", path.display()))
            .hint("give a PEM file: text that holds a line `-----BEGIN …-----`")),
    }
}

fn alone(what: &str, path: &Path, missing: &str) -> Fault {
    Fault::new(Code::EtcdUnreachable, format!("cannot use client {what} `{}` without its {missing}", path.display()))
        .hint(format!("give the {missing} file too"))
}
