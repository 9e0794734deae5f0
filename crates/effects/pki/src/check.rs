//! What is wrong with one certificate, its key and its authorities: each thing, whom it fails, and what to do.
//!
//! **Rule:** an error is what makes a connection fail; a warning is what makes one possible that should not be, or what will
//! fail later.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;
use quorate_faults::{Code, Finding, Place, Severity};
use quorate_plan::certificates::ends_soon;
use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

use crate::files;
use crate::read::{Certificate, observe_certificates};

/// Longest chain between a certificate and an authority.
const CHAIN_MAX: usize = 8;

/// Three files, and what they are for.
#[derive(Debug, Clone)]
pub(crate) struct Pair {
    /// `peer`, `client`, `agent` or `admin`.
    pub(crate) which: &'static str,
    pub(crate) cert: PathBuf,
    pub(crate) key: PathBuf,
    pub(crate) ca: PathBuf,
    /// Whom it fails: "other members".
    pub(crate) whom: &'static str,
    /// The hosts that it must name, and the URL that each comes from.
    pub(crate) hosts: Vec<(String, String)>,
    /// Whether it is shown by a server, and by a client. `Warning`: only something minor needs it.
    pub(crate) server: Option<Severity>,
    pub(crate) client: Option<Severity>,
}

/// What was read.
#[derive(Debug)]
pub(crate) struct Seen {
    /// The certificate; `None` where it could not be read.
    pub(crate) leaf: Option<Certificate>,
    /// The authorities; none where they could not be read.
    pub(crate) trusted: Vec<Certificate>,
    /// What is wrong.
    pub(crate) findings: Vec<Finding>,
}

pub(crate) fn finding(code: Code, severity: Severity, path: &Path, what: String, remedy: &str) -> Finding {
    Finding { code, severity, place: Place::file(path.display().to_string()), what, remedy: remedy.to_owned() }
}

/// Looks at a pair and everything that must hold of it.
pub(crate) fn observe_pair(pair: &Pair, now: Timestamp) -> Seen {
    let mut findings = Vec::new();
    let (which, whom) = (pair.which, pair.whom);
    let mut missing = |path: &Path, what: &str, why: String| {
        let what = format!("the {which} {what} cannot be used: {why}; {whom} cannot be reached without it");
        findings.push(finding(
            Code::CertificateMissing,
            Severity::Error,
            path,
            what,
            "bring the file, readable by this user",
        ));
    };
    let chain = observe_certificates(&pair.cert).map_err(|why| missing(&pair.cert, "certificate", why)).ok();
    let trusted = observe_certificates(&pair.ca).map_err(|why| missing(&pair.ca, "authority", why)).unwrap_or_default();
    let key = read_key(&pair.key).map_err(|why| missing(&pair.key, "key", why)).ok();
    exposed(pair, &mut findings);
    let Some(chain) = chain else { return Seen { leaf: None, trusted, findings } };
    let leaf = chain.first().cloned();
    if let Some(leaf) = &leaf {
        times(&pair.cert, &format!("the {which} certificate"), leaf, now, &mut findings);
        usages(pair, leaf, &mut findings);
        hosts(pair, leaf, &mut findings);
        if !trusted.is_empty() && !is_trusted(&chain, &trusted) {
            let what = format!(
                "the {which} certificate is not of the authority in `{}`, so {whom} refuse it: it was signed by `{}`",
                pair.ca.display(),
                leaf.issuer
            );
            let remedy = "have it signed by that authority; intermediates belong behind it into its file";
            findings.push(finding(Code::CertificateUntrusted, Severity::Error, &pair.cert, what, remedy));
        }
        if let Some(key) = key
            && !belongs(&key, leaf)
        {
            let what = format!("the {which} key does not belong to `{}`", pair.cert.display());
            let remedy = "bring the pair back together, or have a request with this key signed";
            findings.push(finding(Code::CertificateKeyOther, Severity::Error, &pair.key, what, remedy));
        }
    }
    Seen { leaf, trusted, findings }
}

/// Ended, not begun, or soon at its end.
pub(crate) fn times(path: &Path, what: &str, certificate: &Certificate, now: Timestamp, findings: &mut Vec<Finding>) {
    let life = certificate.life;
    let renew = "renew it: `quorate ca csr`, `ca issue`, `ca install`";
    if now >= life.until {
        let what = format!("{what} ended at {}", life.until);
        findings.push(finding(Code::CertificateExpired, Severity::Error, path, what, renew));
    } else if now < life.from {
        let what = format!("{what} does not hold before {}, and here it is {now:.0}", life.from);
        findings.push(finding(Code::CertificateExpired, Severity::Error, path, what, "set the clocks right"));
    } else if ends_soon(life, now) {
        let days = life.left(now).as_hours() / 24;
        let what = format!("{what} ends at {}, in {days} days", life.until);
        findings.push(finding(Code::CertificateEnding, Severity::Warning, path, what, renew));
    }
}

fn usages(pair: &Pair, leaf: &Certificate, findings: &mut Vec<Finding>) {
    let needed = [("serverAuth", pair.server, leaf.server_auth), ("clientAuth", pair.client, leaf.client_auth)];
    for (usage, severity, has) in needed {
        if let (Some(severity), false) = (severity, has) {
            let what = format!("the {} certificate lacks the usage `{usage}`, so {} refuse it", pair.which, pair.whom);
            let remedy = "have it issued with both usages, since etcd serves and dials with it";
            findings.push(finding(Code::CertificateUsage, severity, &pair.cert, what, remedy));
        }
    }
}

fn hosts(pair: &Pair, leaf: &Certificate, findings: &mut Vec<Finding>) {
    for (host, url) in &pair.hosts {
        if !leaf.covers(host) {
            let what =
                format!("the {} certificate does not name `{host}`, so {} cannot use {url}", pair.which, pair.whom);
            let remedy = "have one issued for every address in the cluster file";
            findings.push(finding(Code::CertificateAddress, Severity::Error, &pair.cert, what, remedy));
        }
    }
}

fn exposed(pair: &Pair, findings: &mut Vec<Finding>) {
    let mode = std::fs::metadata(&pair.key).map(|meta| meta.permissions().mode()).unwrap_or(0);
    if mode & 0o007 != 0 {
        let what = format!("every user of this machine can read the {} key (mode {:o})", pair.which, mode & 0o777);
        findings.push(finding(
            Code::KeyExposed,
            Severity::Warning,
            &pair.key,
            what,
            "chmod 600, and think of new keys",
        ));
    }
}

/// Whether the chain leads to an authority.
fn is_trusted(chain: &[Certificate], trusted: &[Certificate]) -> bool {
    let Some(mut current) = chain.first() else { return false };
    for _ in 0..CHAIN_MAX {
        if trusted.iter().any(|authority| current.is_signed_by(authority) || current.der == authority.der) {
            return true;
        }
        match chain.iter().find(|above| above.der != current.der && current.is_signed_by(above)) {
            Some(above) => current = above,
            None => return false,
        }
    }
    false
}

pub(crate) fn read_key(path: &Path) -> Result<PrivateKeyDer<'static>, String> {
    let bytes = zeroize::Zeroizing::new(files::read(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => "it does not exist".to_owned(),
        _ => error.to_string(),
    })?);
    PrivateKeyDer::from_pem_slice(&bytes).map_err(|_| "it holds no private key, or an encrypted one".to_owned())
}

fn belongs(key: &PrivateKeyDer<'_>, leaf: &Certificate) -> bool {
    let Ok(signer) = any_supported_type(key) else { return false };
    let certified = CertifiedKey::new(vec![CertificateDer::from(leaf.der.clone())], Arc::clone(&signer));
    // A signer that does not tell its public key is given the benefit of the doubt; ours tell.
    !matches!(certified.keys_match(), Err(rustls::Error::InconsistentKeys(rustls::InconsistentKeys::KeyMismatch)))
}
