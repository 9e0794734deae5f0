//! Who ends when, and what is wrong: of a node, or of a folder of authorities.

use std::path::{Path, PathBuf};

use jiff::Timestamp;
use quorate_faults::{Code, Finding, Severity};
use quorate_plan::certificates::{Authority, Life};
use quorate_plan::spec::{Member, Security, Spec};
use serde::Serialize;

use crate::check::{finding, observe_pair, times};
use crate::preflight::pairs;
use crate::read::{Certificate, observe_certificates};

/// One certificate and what is wrong with it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CertStatus {
    /// `peer`, `client`, `agent`, `admin`, `peer-ca`, `client-ca` or `agent-ca`.
    pub which: String,
    /// Its file.
    pub file: PathBuf,
    /// Whose it is; empty where it could not be read, as are the next ones.
    pub subject: String,
    /// Who signed it.
    pub issuer: String,
    /// What it is for.
    pub names: Vec<String>,
    /// Its first second.
    #[serde(serialize_with = "as_text")]
    pub not_before: Option<Timestamp>,
    /// Its last.
    #[serde(serialize_with = "as_text")]
    pub not_after: Option<Timestamp>,
    /// What is wrong.
    pub problems: Vec<Finding>,
}

impl CertStatus {
    /// From when to when it holds, where it could be read.
    pub fn life(&self) -> Option<Life> {
        Some(Life { from: self.not_before?, until: self.not_after? })
    }

    fn of(which: &str, file: &Path, certificate: Option<&Certificate>, problems: Vec<Finding>) -> CertStatus {
        CertStatus {
            which: which.to_owned(),
            file: file.to_owned(),
            subject: certificate.map(|found| found.subject.clone()).unwrap_or_default(),
            issuer: certificate.map(|found| found.issuer.clone()).unwrap_or_default(),
            names: certificate.map(Certificate::names).unwrap_or_default(),
            not_before: certificate.map(|found| found.life.from),
            not_after: certificate.map(|found| found.life.until),
            problems,
        }
    }
}

/// The certificates of a member, and the authorities that it trusts.
pub fn observe_node(spec: &Spec, member: &Member, now: Timestamp) -> Vec<CertStatus> {
    let Security::Tls(tls) = &spec.security else { return Vec::new() };
    let (mut leaves, mut authorities) = (Vec::new(), Vec::<CertStatus>::new());
    for pair in pairs(spec, member, tls) {
        let seen = observe_pair(&pair, now);
        leaves.push(CertStatus::of(pair.which, &pair.cert, seen.leaf.as_ref(), seen.findings));
        if authorities.iter().any(|known| known.file == pair.ca) {
            continue;
        }
        for certificate in &seen.trusted {
            let mut problems = Vec::new();
            times(&pair.ca, "the authority", certificate, now, &mut problems);
            authorities.push(CertStatus::of(&format!("{}-ca", pair.which), &pair.ca, Some(certificate), problems));
        }
    }
    leaves.extend(authorities);
    leaves
}

/// The authorities in a folder of `ca init`.
pub fn observe_authorities(dir: &Path, now: Timestamp) -> Vec<CertStatus> {
    let status = |authority: Authority| {
        let path = dir.join(authority.cert_file());
        let mut problems = Vec::new();
        let certificate = match observe_certificates(&path) {
            Ok(all) => all.into_iter().next(),
            Err(why) => {
                let what = format!("the {} cannot be used: {why}", authority.word());
                let remedy = "name the folder that `quorate ca init` was given";
                problems.push(finding(Code::CertificateMissing, Severity::Error, &path, what, remedy));
                None
            }
        };
        if let Some(certificate) = &certificate {
            times(&path, &format!("the {}", authority.word()), certificate, now, &mut problems);
        }
        CertStatus::of(authority.word(), &path, certificate.as_ref(), problems)
    };
    Authority::ALL.map(status).into()
}

fn as_text<S: serde::Serializer>(time: &Option<Timestamp>, serializer: S) -> Result<S::Ok, S::Error> {
    time.map(|time| time.to_string()).serialize(serializer)
}
