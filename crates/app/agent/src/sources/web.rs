//! One GET over HTTP(S), with our credentials and our limits.

use quorate_coordination::web::{self, Cause, Failure, Trust, Unusable};
use quorate_faults::{Code, Fault, Result};
use reqwest::header::{ACCEPT, HeaderMap, HeaderValue};
use reqwest::{Client, RequestBuilder, Response, StatusCode, Url};

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
    let identity = credentials.identity.as_ref().map(|(cert, key)| (cert.as_slice(), key.as_slice()));
    let trust = Trust { ca: credentials.cacert.as_deref(), identity };
    let redirects = match redirects {
        Redirects::Follow => REDIRECTS_MAX,
        Redirects::Refuse => 0,
    };
    web::client(url, &trust, redirects).map_err(|unusable| match unusable {
        Unusable::Ca(cause) => bad_pem("--source-cacert", cause),
        Unusable::Identity(cause) => bad_pem("--source-cert", cause),
        Unusable::Whole(cause) => Fault::new(Code::SourceInvalid, "cannot set up TLS for the source")
            .hint("see that the files of `--source-cacert`, `--source-cert` and `--source-key` belong together")
            .caused_by(cause),
    })
}

/// Sends the request and reads the answer, unless it is no answer or too long.
pub(super) async fn fetch(request: RequestBuilder, provenance: &str) -> Result<(HeaderMap, Vec<u8>)> {
    let accept = HeaderValue::from_static("application/json, application/yaml;q=0.9, */*;q=0.1");
    let sent = request.header(ACCEPT, accept).send().await;
    let mut response = sent.map_err(|error| no_connection(provenance, error))?;
    if !response.status().is_success() {
        return Err(no_success(provenance, &response));
    }
    let body = web::body(&mut response, BODY_MAX).await.map_err(|error| no_connection(provenance, error))?;
    let body = body.ok_or_else(|| too_long(provenance))?;
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
    let (failure, error) = web::failure(error);
    let (why, hint) = match failure {
        Failure::Redirect => {
            ("it sends us round in circles or from TLS to clear text", "name the server that answers itself")
        }
        Failure::Tls => (
            "TLS failed",
            "name who signed the server's certificate with `--source-cacert`, and ours with `--source-cert` and `--source-key`",
        ),
        Failure::Connect => {
            ("it cannot be reached", "see that it is up and that this host may reach it, then try again")
        }
        Failure::Broke => ("the connection broke", "see the cause, then try again"),
    };
    silent(provenance, why).hint(hint).caused_by(error)
}

fn bad_pem(flag: &str, cause: Cause) -> Fault {
    Fault::new(Code::SourceInvalid, format!("cannot use the file of `{flag}`")).hint("give PEM files").caused_by(cause)
}
