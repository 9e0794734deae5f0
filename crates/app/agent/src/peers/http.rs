//! The HTTP client of agents, with the files of mutual TLS.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::Duration;

use quorate_faults::{Code, Fault};
use reqwest::{Certificate, Client, Identity};

/// How long a connection may take: agents are near each other.
const CONNECT_LIMIT: Duration = Duration::from_millis(1500);
/// Connections that nobody used for so long are closed.
const IDLE: Duration = Duration::from_secs(60);

/// A certificate, its key and the authorities of the other side.
#[derive(Debug)]
pub(super) struct Files {
    pub(super) cert: PathBuf,
    pub(super) key: PathBuf,
    pub(super) ca: PathBuf,
}

/// What changes when a file is replaced or rewritten.
pub(super) type Stamp = Option<(u64, u64, i64, i64)>;

/// A client that shows this certificate with this key, and believes these authorities.
pub(crate) fn http_client(files: Option<[PathBuf; 3]>) -> Result<Client, Fault> {
    build(files.map(|[cert, key, ca]| Files { cert, key, ca }).as_ref())
}

pub(super) fn build(files: Option<&Files>) -> Result<Client, Fault> {
    let fail = |what: &str, path: &std::path::Path, cause: Box<dyn std::error::Error + Send + Sync>| {
        Fault::new(Code::PeerSilent, format!("cannot use the {what} in `{}`", path.display()))
            .hint("agents show each other certificates: see `tls` in the cluster file")
            .caused_by(cause)
    };
    let mut builder = Client::builder()
        .user_agent(concat!("quorate/", env!("CARGO_PKG_VERSION")))
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(CONNECT_LIMIT)
        .pool_idle_timeout(IDLE)
        .tcp_nodelay(true);
    if let Some(Files { cert, key, ca }) = files {
        let read = |what: &str, path: &PathBuf| std::fs::read(path).map_err(|error| fail(what, path, error.into()));
        let authorities = Certificate::from_pem_bundle(&read("authorities", ca)?);
        let authorities = authorities.map_err(|error| fail("authorities", ca, error.into()))?;
        let both = [read("certificate", cert)?, b"\n".to_vec(), read("key", key)?].concat();
        let identity = Identity::from_pem(&both).map_err(|error| fail("certificate", cert, error.into()))?;
        builder = builder.https_only(true).tls_certs_only(authorities).identity(identity);
    }
    builder.build().map_err(|error| {
        Fault::new(Code::PeerSilent, "cannot prepare to ask other agents")
            .hint("see that the files under `tls` belong together")
            .caused_by(error)
    })
}

pub(super) fn stamps(files: &Files) -> Vec<Stamp> {
    let stamp = |path: &PathBuf| {
        let meta = std::fs::metadata(path).ok()?;
        Some((meta.ino(), meta.len(), meta.mtime(), meta.mtime_nsec()))
    };
    [&files.cert, &files.key, &files.ca].map(stamp).to_vec()
}
