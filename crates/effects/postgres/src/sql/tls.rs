//! TLS for the protocol of PostgreSQL, by rustls.
//!
//! **Rule:** the server's certificate is always checked, and so is its name; there is no switch to turn that off.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use quorate_faults::{Code, Fault};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_postgres::tls::{ChannelBinding, TlsConnect, TlsStream};
use tokio_rustls::TlsConnector;

use crate::server::TlsFiles;

/// A connector for one host. Files are read for each connection, so that renewed ones are used.
pub(super) struct Tls {
    connector: TlsConnector,
    name: ServerName<'static>,
}

impl Tls {
    pub(super) fn load(files: &TlsFiles, host: &str) -> Result<Tls, Fault> {
        let unusable = |what: &str, path: &std::path::Path, cause: Box<dyn std::error::Error + Send + Sync>| {
            Fault::new(Code::PgAuth, format!("cannot use the {what} in `{}`", path.display()))
                .hint("it must be a PEM file that this user can read, and the key must belong to the certificate")
                .caused_by(cause)
        };
        let chain = |what: &str, path: &std::path::Path| {
            let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
            read.map_err(|error| unusable(what, path, error.into()))
        };
        let mut roots = RootCertStore::empty();
        for root in chain("authorities", &files.ca)? {
            roots.add(root).map_err(|error| unusable("authorities", &files.ca, error.into()))?;
        }
        let key =
            PrivateKeyDer::from_pem_file(&files.key).map_err(|error| unusable("key", &files.key, error.into()))?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| unusable("settings", &files.cert, error.into()))?
            .with_root_certificates(roots)
            .with_client_auth_cert(chain("certificate", &files.cert)?, key)
            .map_err(|error| unusable("certificate", &files.cert, error.into()))?;
        let name = ServerName::try_from(host.to_owned()).map_err(|error| {
            Fault::new(Code::PgSilent, format!("`{host}` is no name or address of a server")).caused_by(error)
        })?;
        Ok(Tls { connector: TlsConnector::from(Arc::new(config)), name })
    }
}

impl TlsConnect<TcpStream> for Tls {
    type Stream = Encrypted;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Encrypted>> + Send>>;

    fn connect(self, stream: TcpStream) -> Self::Future {
        Box::pin(
            async move { self.connector.connect(self.name, stream).await.map(|stream| Encrypted(Box::new(stream))) },
        )
    }
}

/// A connection after its handshake.
pub(super) struct Encrypted(Box<tokio_rustls::client::TlsStream<TcpStream>>);

impl TlsStream for Encrypted {
    fn channel_binding(&self) -> ChannelBinding {
        // Both sides show certificates; no password is sent that could be passed on.
        ChannelBinding::none()
    }
}

impl AsyncRead for Encrypted {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for Encrypted {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0).poll_shutdown(cx)
    }
}
