//! TLS for servers and clients, made of files and made anew when they change.
//!
//! **Invariant:** files that do not fit together, because they are just being replaced, never take the place of what works.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use quorate_faults::{Code, Fault};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tracing::warn;

pub use crate::expired::EXPIRED_DAYS_MAX;
use crate::expired::EndedVerifier;
use crate::operators::list_of;
use crate::revoke::observe_list;

/// Certificates of a listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// PEM file with the certificate chain.
    pub cert: PathBuf,
    /// PEM file with its key.
    pub key: PathBuf,
    /// PEM file with the authorities of clients. With it, a client without a certificate is turned away.
    pub client_ca: Option<PathBuf>,
    /// PEM file with the operators' authority, whose certificates clients may show as well; it need not be there.
    pub operators: Option<PathBuf>,
}

/// Certificates of whoever connects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientFiles {
    /// PEM file with the certificate chain.
    pub cert: PathBuf,
    /// PEM file with its key.
    pub key: PathBuf,
    /// PEM file with the authorities of servers.
    pub ca: PathBuf,
}

/// Whom a listener with authorities lets in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admit {
    /// Only clients with a certificate.
    Certified,
    /// The same, and those whose certificate is not valid yet or ended at most [`EXPIRED_DAYS_MAX`] days ago, and holds otherwise; whoever answers
    /// looks at that, and lets them renew and nothing else.
    CertifiedOrEnded,
    /// Clients without one too; whoever answers looks at who asks.
    Everyone,
}

/// What changes when a file is replaced or rewritten.
type Stamp = Option<(u64, u64, u64, i64, i64)>;

/// A configuration, and the files that it came from.
pub struct Reloading<C> {
    files: Vec<PathBuf>,
    load: Box<dyn Fn() -> Result<C, Fault> + Send + Sync>,
    loaded: Mutex<(Vec<Stamp>, Arc<C>)>,
}

impl<C> std::fmt::Debug for Reloading<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reloading").field("files", &self.files).finish_non_exhaustive()
    }
}

impl<C> Reloading<C> {
    fn new(
        files: Vec<PathBuf>,
        load: impl Fn() -> Result<C, Fault> + Send + Sync + 'static,
    ) -> Result<Reloading<C>, Fault> {
        // Looked at before they are read: what changes in between is read once more.
        let stamps = stamps(&files);
        let first = Arc::new(load()?);
        Ok(Reloading { files, load: Box::new(load), loaded: Mutex::new((stamps, first)) })
    }

    /// The newest that can be used. Files that do not fit together yet are tried again with the next call.
    pub fn current(&self) -> Arc<C> {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        let now = stamps(&self.files);
        if loaded.0 != now {
            match (self.load)() {
                Ok(config) => *loaded = (now, Arc::new(config)),
                Err(fault) => warn!(code = fault.code().as_str(), %fault, "still using the certificate from before"),
            }
        }
        Arc::clone(&loaded.1)
    }
}

/// For a listener.
pub fn server(files: TlsFiles, admit: Admit) -> Result<Reloading<ServerConfig>, Fault> {
    let revoked = files.client_ca.as_deref().and_then(list_beside);
    let of_operators = files.operators.as_deref().map(operator_list);
    let paths = [Some(&files.cert), Some(&files.key), files.client_ca.as_ref(), revoked.as_ref()];
    let paths = paths.into_iter().chain([files.operators.as_ref(), of_operators.as_ref()]);
    let paths = paths.flatten().cloned().collect();
    // A list that this process has heeded is heeded until there is another.
    let heeded = AtomicBool::new(false);
    Reloading::new(paths, move || load_server(&files, admit, &heeded))
}

/// For whoever connects.
pub fn client(files: ClientFiles) -> Result<Reloading<ClientConfig>, Fault> {
    let paths = vec![files.cert.clone(), files.key.clone(), files.ca.clone()];
    Reloading::new(paths, move || load_client(&files))
}

fn stamps(files: &[PathBuf]) -> Vec<Stamp> {
    let stamp = |path: &PathBuf| {
        let meta = std::fs::metadata(path).ok()?;
        Some((meta.dev(), meta.ino(), meta.len(), meta.mtime(), meta.mtime_nsec()))
    };
    files.iter().map(stamp).collect()
}

type Cause = Box<dyn std::error::Error + Send + Sync>;

fn unusable(what: &str, path: &Path, cause: impl Into<Cause>) -> Fault {
    Fault::new(Code::ServeInvalid, format!("cannot use the {what} in `{}`", path.display()))
        .hint("it must be a PEM file that this user can read, and the key must belong to the certificate")
        .caused_by(cause)
}

fn chain(what: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>, Fault> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    read.map_err(|error| unusable(what, path, error))
}

fn key(path: &Path) -> Result<PrivateKeyDer<'static>, Fault> {
    PrivateKeyDer::from_pem_file(path).map_err(|error| unusable("key", path, error))
}

fn roots(path: &Path) -> Result<RootCertStore, Fault> {
    const WHAT: &str = "certificate authorities";
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(chain(WHAT, path)?);
    if roots.is_empty() { Err(unusable(WHAT, path, "it holds no authority")) } else { Ok(roots) }
}

/// The list of revoked certificates that `quorate ca` puts beside an authority, whether it is there or not.
pub(crate) fn list_beside(authority: &Path) -> Option<PathBuf> {
    let ours = authority.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.ends_with("-ca.crt"));
    ours.then(|| authority.with_extension("crl"))
}

fn operator_list(authority: &Path) -> PathBuf {
    let (dir, name) = list_of(authority);
    dir.join(name)
}

fn read_list(path: &Path) -> Result<CertificateRevocationListDer<'static>, Fault> {
    let bytes = crate::files::read(path).map_err(|error| unusable("list of revoked certificates", path, error))?;
    Ok(CertificateRevocationListDer::from(bytes))
}

/// The list that is to be heeded, if there ever was one.
fn list_to_heed(authority: &Path, heeded: &AtomicBool) -> Result<Option<PathBuf>, Fault> {
    let Some(list) = list_beside(authority) else { return Ok(None) };
    match observe_list(authority)? {
        None if heeded.load(Ordering::Relaxed) => {
            Err(unusable("list of revoked certificates", &list, "it was here, and is gone"))
        }
        there => Ok(there),
    }
}

fn load_server(files: &TlsFiles, admit: Admit, heeded: &AtomicBool) -> Result<ServerConfig, Fault> {
    let (certs, key) = (chain("certificate", &files.cert)?, key(&files.key)?);
    let builder = ServerConfig::builder();
    let builder = match &files.client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let list = list_to_heed(path, heeded)?;
            heeded.store(list.is_some(), Ordering::Relaxed);
            let mut lists = list.as_deref().map(read_list).transpose()?.into_iter().collect::<Vec<_>>();
            let mut roots = roots(path)?;
            // Whoever answers identifies operators once more: an authority that cannot be used admits nobody.
            if let Some(operators) = files.operators.as_deref().filter(|path| path.exists()) {
                roots.add_parsable_certificates(chain("operators' authority", operators)?);
                let list = operator_list(operators);
                lists.extend(list.exists().then(|| read_list(&list)).transpose()?);
            }
            let verifier = WebPkiClientVerifier::builder(Arc::new(roots));
            let verifier = match lists.is_empty() {
                true => verifier,
                // While authorities are changed, there is no list of the one that goes.
                false => verifier.with_crls(lists).only_check_end_entity_revocation().allow_unknown_revocation_status(),
            };
            let verifier = match admit {
                Admit::Certified | Admit::CertifiedOrEnded => verifier,
                Admit::Everyone => verifier.allow_unauthenticated(),
            };
            let verifier = verifier.build().map_err(|error| unusable("certificate authorities", path, error))?;
            builder.with_client_cert_verifier(match admit {
                Admit::Certified | Admit::Everyone => verifier,
                Admit::CertifiedOrEnded => Arc::new(EndedVerifier::new(verifier)),
            })
        }
    };
    builder.with_single_cert(certs, key).map_err(|error| unusable("certificate", &files.cert, error))
}

fn load_client(files: &ClientFiles) -> Result<ClientConfig, Fault> {
    let (certs, key) = (chain("certificate", &files.cert)?, key(&files.key)?);
    let builder = ClientConfig::builder().with_root_certificates(roots(&files.ca)?);
    builder.with_client_auth_cert(certs, key).map_err(|error| unusable("certificate", &files.cert, error))
}
