//! One GET over HTTP(S), with our credentials and our limits.

use std::error::Error;
use std::net::IpAddr;

use quorate_faults::{Code, Fault, Result};
use reqwest::header::{ACCEPT, HeaderMap, HeaderValue};
use reqwest::redirect::Policy;
use reqwest::{Certificate, Client, Identity, RequestBuilder, Response, StatusCode, Url};

use super::credentials::Credentials;
use super::{BODY_MAX, invalid, silent, too_long};

/// How many times a server may send us elsewhere.
const REDIRECTS_MAX: usize = 3;

/// Whether a server may send us elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Redirects {
    Follow,
    Refuse,
}

/// Reads a URL that names a server. What it must not hold is refused without being shown.
pub(super) fn parse(uri: &str) -> Result<Url> {
    let url = Url::parse(uri).map_err(|error| invalid(uri, error).hint("write `https://HOST/PATH`"))?;
    if !url.username().is_empty() || url.password().is_some() {
        let fault = invalid(uri, "it contains a user name or password, which every user of this host could read");
        return Err(fault.hint("put the secret into a file: `--source-token-file`"));
    }
    if url.host_str().is_none_or(str::is_empty) {
        return Err(invalid(uri, "it names no host").hint("write `https://HOST/PATH`"));
    }
    Ok(url)
}

/// Makes a client that verifies the server and shows our certificate.
pub(super) fn client(url: &Url, credentials: &Credentials, redirects: Redirects) -> Result<Client> {
    let mut builder = Client::builder().user_agent(concat!("quorate/", env!("CARGO_PKG_VERSION")));
    // A redirect may not lead from TLS to clear text.
    builder = builder.https_only(url.scheme() == "https").redirect(match redirects {
        Redirects::Follow => Policy::limited(REDIRECTS_MAX),
        Redirects::Refuse => Policy::none(),
    });
    if is_loopback(url) {
        builder = builder.no_proxy();
    }
    if let Some(pem) = &credentials.cacert {
        let certificates = Certificate::from_pem_bundle(pem).map_err(|error| bad_pem("--source-cacert", error))?;
        if certificates.is_empty() {
            return Err(bad_pem("--source-cacert", "it holds no certificate"));
        }
        builder = builder.tls_certs_only(certificates);
    }
    if let Some((cert, key)) = &credentials.identity {
        let both = [cert.as_slice(), b"\n", key.as_slice()].concat();
        builder = builder.identity(Identity::from_pem(&both).map_err(|error| bad_pem("--source-cert", error))?);
    }
    builder.build().map_err(|error| {
        let fault = Fault::new(Code::SourceInvalid, "cannot set up TLS for the source").caused_by(error.without_url());
        fault.hint("see that the files of `--source-cacert`, `--source-cert` and `--source-key` belong together")
    })
}

/// Whether a connection to it never leaves this host.
pub(super) fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Sends the request and reads the answer, unless it is no answer or too long.
pub(super) async fn fetch(request: RequestBuilder, provenance: &str) -> Result<(HeaderMap, Vec<u8>)> {
    let accept = HeaderValue::from_static("application/json, application/yaml;q=0.9, */*;q=0.1");
    let sent = request.header(ACCEPT, accept).send().await;
    let mut response = sent.map_err(|error| no_connection(provenance, error))?;
    if !response.status().is_success() {
        return Err(no_success(provenance, &response));
    }
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(|error| no_connection(provenance, error))? {
        body.extend_from_slice(&chunk);
        if body.len() > BODY_MAX {
            return Err(too_long(provenance));
        }
    }
    Ok((response.headers().clone(), body))
}

fn no_success(provenance: &str, response: &Response) -> Fault {
    let status = response.status();
    let fault = silent(provenance, format!("it answered `{status}`"));
    match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => fault
            .hint("give a token with `--source-token-file`, or a certificate with `--source-cert` and `--source-key`"),
        StatusCode::NOT_FOUND => fault.hint("check the path"),
        _ if status.is_redirection() => fault.hint("name the server that answers itself"),
        _ => fault.hint("see the server's log, then try again"),
    }
}

fn no_connection(provenance: &str, error: reqwest::Error) -> Fault {
    // The URL may hold a token in its query.
    let error = error.without_url();
    let chain = chain(&error);
    let (why, hint) = if error.is_redirect() {
        ("it sends us round in circles or from TLS to clear text", "name the server that answers itself")
    } else if chain.contains("certificate") || chain.contains("fatal alert") {
        (
            "TLS failed",
            "name who signed the server's certificate with `--source-cacert`, and ours with `--source-cert` and `--source-key`",
        )
    } else if error.is_connect() {
        ("it cannot be reached", "see that it is up and that this host may reach it, then try again")
    } else {
        ("the connection broke", "see the cause, then try again")
    };
    silent(provenance, why).hint(hint).caused_by(error)
}

fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string().to_lowercase();
    let mut next = error.source();
    while let Some(cause) = next {
        text.push_str(": ");
        text.push_str(&cause.to_string().to_lowercase());
        next = cause.source();
    }
    text
}

fn bad_pem(flag: &str, cause: impl Into<Box<dyn Error + Send + Sync>>) -> Fault {
    Fault::new(Code::SourceInvalid, format!("cannot use the file of `{flag}`")).hint("give PEM files").caused_by(cause)
}
