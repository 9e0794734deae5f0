//! What every request over HTTP(S) to a foreign server shares: whom a client trusts, how much of an answer is read, and what a
//! failure means.
//!
//! **Invariant:** no more of an answer is in memory than its limit and one piece, and no error that leaves here names a URL, whose
//! query may hold a token.

use std::error::Error;
use std::net::IpAddr;

use reqwest::redirect::Policy;
use reqwest::{Certificate, Client, Identity, Response, Url};

/// Whom a client trusts and as whom it comes, as PEM.
#[derive(Debug, Clone, Copy, Default)]
pub struct Trust<'a> {
    /// Who may have signed the server's certificate; `None`: whom the machine trusts.
    pub ca: Option<&'a [u8]>,
    /// Our certificate and its key.
    pub identity: Option<(&'a [u8], &'a [u8])>,
}

/// What of it cannot be used, and why.
#[derive(Debug)]
pub enum Unusable {
    /// The authorities.
    Ca(Cause),
    /// Certificate and key.
    Identity(Cause),
    /// All of it together.
    Whole(Cause),
}

/// Why.
pub type Cause = Box<dyn Error + Send + Sync>;

/// Makes a client that verifies the server and shows our certificate. `redirects`: how many times a server may send us
/// elsewhere; never from TLS to clear text.
pub fn client(url: &Url, trust: &Trust<'_>, redirects: usize) -> Result<Client, Unusable> {
    let mut builder = Client::builder().user_agent(concat!("quorate/", env!("CARGO_PKG_VERSION")));
    builder = builder.https_only(url.scheme() == "https").redirect(match redirects {
        0 => Policy::none(),
        most => Policy::limited(most),
    });
    if is_loopback(url) {
        builder = builder.no_proxy();
    }
    if let Some(pem) = trust.ca {
        let certificates = Certificate::from_pem_bundle(pem).map_err(|error| Unusable::Ca(error.into()))?;
        if certificates.is_empty() {
            return Err(Unusable::Ca("it holds no certificate".into()));
        }
        builder = builder.tls_certs_only(certificates);
    }
    if let Some((cert, key)) = trust.identity {
        let both = [cert, b"\n", key].concat();
        builder = builder.identity(Identity::from_pem(&both).map_err(|error| Unusable::Identity(error.into()))?);
    }
    builder.build().map_err(|error| Unusable::Whole(error.without_url().into()))
}

/// Whether a connection to it never leaves this host.
pub fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// The whole body of an answer; `None`: it is longer than `limit`, and the rest was not read.
pub async fn body(response: &mut Response, limit: usize) -> Result<Option<Vec<u8>>, reqwest::Error> {
    let mut body = Vec::new();
    while let Some(piece) = response.chunk().await? {
        body.extend_from_slice(&piece);
        if body.len() > limit {
            return Ok(None);
        }
    }
    Ok(Some(body))
}

/// What a failure means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// It sends us round in circles, or from TLS to clear text.
    Redirect,
    /// One of the two does not accept the other's certificate.
    Tls,
    /// Nobody answers there.
    Connect,
    /// It answered, and then no more.
    Broke,
}

/// What it means, and the error without its URL.
pub fn failure(error: reqwest::Error) -> (Failure, reqwest::Error) {
    let error = error.without_url();
    let words = words(&error);
    let failure = if error.is_redirect() {
        Failure::Redirect
    } else if words.contains("certificate") || words.contains("fatal alert") {
        Failure::Tls
    } else if error.is_connect() {
        Failure::Connect
    } else {
        Failure::Broke
    };
    (failure, error)
}

/// All that an error and its causes say, in small letters.
fn words(error: &dyn Error) -> String {
    let mut text = error.to_string().to_lowercase();
    let mut next = error.source();
    while let Some(cause) = next {
        text.push_str(": ");
        text.push_str(&cause.to_string().to_lowercase());
        next = cause.source();
    }
    text
}
