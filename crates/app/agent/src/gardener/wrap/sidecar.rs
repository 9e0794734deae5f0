//! The three questions that are put to the sidecar.
//!
//! **Rule:** answers are short or refused, and nothing but 200, 201 and 202 is an answer.

use std::path::Path;
use std::time::Duration;

use quorate_faults::{Code, Fault, Result};
use reqwest::{Certificate, Client, Identity, redirect};

use super::Mode;
use super::settings::SidecarPlace;
use crate::gardener::etcd_yaml;

/// How long one question may take.
const REQUEST_LIMIT: Duration = Duration::from_secs(60);

/// Statuses are one word; what a stranger says is read no further.
const STATUS_BYTES_MAX: usize = 1024;

/// What the sidecar says about its initialization.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Status {
    New,
    Successful,
    /// Everything else, whatever it is.
    InProgress,
}

impl Status {
    pub(super) fn of(body: &[u8]) -> Status {
        match body {
            b"New" => Status::New,
            b"Successful" => Status::Successful,
            _ => Status::InProgress,
        }
    }
}

/// The sidecar.
#[derive(Debug)]
pub(super) struct Sidecar {
    client: Client,
    url: String,
}

impl Sidecar {
    pub(super) fn new(place: &SidecarPlace) -> Result<Sidecar> {
        let unusable = |error: reqwest::Error| {
            Fault::new(Code::GardenerFlag, "cannot set up TLS towards the sidecar")
                .hint("give PEM files, and a key that belongs to its certificate")
                .caused_by(error)
        };
        // It is on this machine, so no proxy has a part in this, and it has nowhere to send us.
        let mut builder = Client::builder().timeout(REQUEST_LIMIT).no_proxy().redirect(redirect::Policy::none());
        if place.url.starts_with("https:") {
            let ca = place.ca.as_deref().map(read_pem).transpose()?.unwrap_or_default();
            let certificates = Certificate::from_pem_bundle(&ca).map_err(unusable)?;
            if certificates.is_empty() {
                return Err(Fault::new(Code::GardenerFlag, "cannot use a bundle of authorities without a certificate")
                    .hint("see `--backup-restore-ca-cert-bundle-path`"));
            }
            builder = builder.https_only(true).tls_certs_only(certificates);
        }
        if let Some((cert, key)) = &place.client {
            let both = [read_pem(cert)?, b"\n".to_vec(), read_pem(key)?].concat();
            builder = builder.identity(Identity::from_pem(&both).map_err(unusable)?);
        }
        Ok(Sidecar { client: builder.build().map_err(unusable)?, url: place.url.clone() })
    }

    pub(super) async fn status(&self) -> Result<Status> {
        Ok(Status::of(&self.get("/initialization/status", STATUS_BYTES_MAX).await?))
    }

    pub(super) async fn start(&self, mode: Mode) -> Result<()> {
        self.get(&format!("/initialization/start?mode={}", mode.word()), STATUS_BYTES_MAX).await.map(|_| ())
    }

    pub(super) async fn config(&self) -> Result<String> {
        let body = self.get("/config", etcd_yaml::BYTES_MAX).await?;
        String::from_utf8(body).map_err(|_| self.fault("/config", "the answer is not text"))
    }

    async fn get(&self, path: &str, max_bytes: usize) -> Result<Vec<u8>> {
        let failed = |error: reqwest::Error| self.fault(path, "it does not answer").caused_by(error.without_url());
        let mut answer = self.client.get(format!("{}{path}", self.url)).send().await.map_err(failed)?;
        if !matches!(answer.status().as_u16(), 200..=202) {
            return Err(self.fault(path, &format!("it answered {}", answer.status().as_u16())));
        }
        let mut body = Vec::new();
        while let Some(piece) = answer.chunk().await.map_err(failed)? {
            body.extend_from_slice(&piece);
            if body.len() > max_bytes {
                return Err(self.fault(path, &format!("its answer is longer than {max_bytes} bytes")));
            }
        }
        Ok(body)
    }

    fn fault(&self, path: &str, why: &str) -> Fault {
        Fault::new(Code::SidecarSilent, format!("cannot ask the sidecar at `{}{path}`: {why}", self.url))
            .hint("see that it runs, and its log")
    }
}

fn read_pem(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|error| Fault::io(format!("cannot read `{}`", path.display()), error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_are_compared_to_the_letter() {
        assert_eq!(Status::of(b"New"), Status::New);
        assert_eq!(Status::of(b"Successful"), Status::Successful);
        for body in [&b"Progress"[..], b"Failed", b"new", b"New\n", b"Success", b"", b"\xff\x00"] {
            assert_eq!(Status::of(body), Status::InProgress, "{body:?}");
        }
    }
}
