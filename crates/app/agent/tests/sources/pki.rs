//! Certificates for one test.

use std::path::PathBuf;
use std::sync::Arc;

use quorate_agent::sources::SourceOptions;
use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

/// One authority, a server certificate for 127.0.0.1, and a client certificate, as PEM files.
pub(crate) struct Pki {
    dir: tempfile::TempDir,
}

impl Pki {
    pub(crate) fn new() -> Pki {
        let pki = Pki { dir: tempfile::tempdir().unwrap() };
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        pki.write("ca.pem", &params.self_signed(&key).unwrap().pem());
        let issuer = Issuer::new(params, key);
        pki.issue(&issuer, "server", "127.0.0.1", ExtendedKeyUsagePurpose::ServerAuth);
        pki.issue(&issuer, "client", "client", ExtendedKeyUsagePurpose::ClientAuth);
        pki
    }

    fn issue(&self, issuer: &Issuer<'_, KeyPair>, file: &str, name: &str, usage: ExtendedKeyUsagePurpose) {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.extended_key_usages = vec![usage];
        let key = KeyPair::generate().unwrap();
        self.write(&format!("{file}.pem"), &params.signed_by(&key, issuer).unwrap().pem());
        self.write(&format!("{file}.key"), &key.serialize_pem());
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        super::consul::token_file(&self.path(name), text, "600");
    }

    /// A server that asks every client for a certificate of this authority.
    pub(crate) fn server(&self) -> Arc<ServerConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(self.path("ca.pem")).unwrap()).unwrap();
        let verifier = WebPkiClientVerifier::builder(Arc::new(roots)).build().unwrap();
        let chain = vec![CertificateDer::from_pem_file(self.path("server.pem")).unwrap()];
        let key = PrivateKeyDer::from_pem_file(self.path("server.key")).unwrap();
        Arc::new(ServerConfig::builder().with_client_cert_verifier(verifier).with_single_cert(chain, key).unwrap())
    }

    pub(crate) fn options(&self) -> SourceOptions {
        SourceOptions {
            cacert: Some(self.path("ca.pem")),
            cert: Some(self.path("client.pem")),
            key: Some(self.path("client.key")),
            ..SourceOptions::default()
        }
    }
}
