//! Requests to Consul's HTTP API, with our credentials and our limits.
//!
//! **Rule:** 404 is an answer only of a Consul, which is told by its index; whatever else is no answer is a fault.

use std::error::Error;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use quorate_faults::{Code, Fault, Result};
use reqwest::redirect::Policy;
use reqwest::{Certificate, Client, Identity, Method, StatusCode, Url};

use super::token::Token;
use crate::errors::Attempt;
use crate::limits::LISTING_BYTES_MAX;
use crate::settings::ConsulSettings;

/// Bytes of one answer: the largest listing in base64, and as much again for keys escaped within JSON.
const ANSWER_BYTES_MAX: usize = LISTING_BYTES_MAX / 3 * 4 * 2;

const INDEX_HEADER: &str = "X-Consul-Index";
const TOKEN_HEADER: &str = "X-Consul-Token";

/// How newer Consuls say that the token may not see everything.
const FILTERED_HEADER: &str = "X-Consul-Results-Filtered-By-ACLs";

/// What Consul answered.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) index: Option<u64>,
    pub(super) body: Vec<u8>,
}

/// A connection to an agent.
#[derive(Debug)]
pub(super) struct Web {
    client: Client,
    base: Url,
    place: String,
    datacenter: Option<String>,
    token: Token,
    limit: Duration,
}

impl Web {
    pub(super) fn open(settings: &ConsulSettings, limit: Duration) -> Result<Web> {
        let base = parse(&settings.url)?;
        if settings.lock_delay > Duration::from_secs(60) {
            return Err(Fault::new(Code::CoordinationInvalid, "cannot use a lock delay of more than 60 s")
                .hint("Consul takes up to a minute"));
        }
        let token = Token::read(settings.token_file.as_deref())?;
        let client = client(&base, settings)?;
        let place = base.as_str().trim_end_matches('/').to_owned();
        Ok(Web { client, base, place, datacenter: settings.datacenter.clone(), token, limit })
    }

    pub(super) fn place(&self) -> &str {
        &self.place
    }

    /// Reads. `waits` is how long Consul itself may wait before it answers.
    pub(super) async fn get(
        &self,
        attempt: Attempt,
        path: &str,
        query: &[(&str, String)],
        waits: Duration,
    ) -> Result<Answer> {
        self.send(attempt, Method::GET, path, query, None, waits).await
    }

    /// Changes.
    pub(super) async fn put(&self, attempt: Attempt, path: &str, body: Option<Vec<u8>>) -> Result<Answer> {
        self.send(attempt, Method::PUT, path, &[], body, Duration::ZERO).await
    }

    /// Sends, and once more with another token if there is one.
    async fn send(
        &self,
        attempt: Attempt,
        method: Method,
        path: &str,
        query: &[(&str, String)],
        body: Option<Vec<u8>>,
        waits: Duration,
    ) -> Result<Answer> {
        let url = self.url(path, query)?;
        // Consul adds up to a sixteenth to the wait, so that not everybody comes back at once.
        let limit = self.limit + waits + waits / 16;
        let once = || attempt.within(limit, &self.place, self.exchange(attempt, &method, &url, body.clone()));
        let mut answer = once().await?;
        if answer.status == StatusCode::FORBIDDEN && self.token.renewed()? {
            answer = once().await?;
        }
        self.judged(attempt, answer)
    }

    async fn exchange(&self, attempt: Attempt, method: &Method, url: &Url, body: Option<Vec<u8>>) -> Result<Answer> {
        let mut request = self.client.request(method.clone(), url.clone());
        if let Some(token) = self.token.reveal() {
            request = request.header(TOKEN_HEADER, token);
        }
        if let Some(body) = body {
            request = request.header("Content-Type", "application/json").body(body);
        }
        let mut response = request.send().await.map_err(|error| self.no_connection(attempt, error))?;
        if response.headers().get(FILTERED_HEADER).is_some_and(|value| value == "true") {
            return Err(attempt.refused(&self.place, "Consul hides what our token may not see"));
        }
        let index = response.headers().get(INDEX_HEADER).and_then(|value| value.to_str().ok()?.parse().ok());
        let mut content = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|error| self.no_connection(attempt, error))? {
            content.extend_from_slice(&chunk);
            if content.len() > ANSWER_BYTES_MAX {
                return Err(attempt.too_much(&self.place));
            }
        }
        Ok(Answer { status: response.status(), index, body: content })
    }

    /// Turns what is no answer to anybody into a fault.
    fn judged(&self, attempt: Attempt, answer: Answer) -> Result<Answer> {
        let said = || {
            let text = String::from_utf8_lossy(&answer.body);
            let text: String = text.trim().chars().take(300).collect();
            format!("`{}`: {}", answer.status, text.escape_debug())
        };
        match answer.status {
            StatusCode::OK | StatusCode::NOT_FOUND | StatusCode::CONFLICT => Ok(answer),
            StatusCode::FORBIDDEN | StatusCode::UNAUTHORIZED => Err(attempt.refused(&self.place, said())),
            StatusCode::PAYLOAD_TOO_LARGE => Err(attempt.too_large(&self.place, said())),
            StatusCode::INTERNAL_SERVER_ERROR if said().contains("does not have associated TTL") => Ok(answer),
            StatusCode::INTERNAL_SERVER_ERROR if said().contains("ermission denied") || said().contains("ACL not") => {
                Err(attempt.refused(&self.place, said()))
            }
            status if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS => {
                Err(attempt.silent(&self.place, "cannot serve now").caused_by(said()))
            }
            status if status.is_client_error() => Err(attempt.refused(&self.place, said())),
            _ => Err(attempt.unreadable(&self.place, said())),
        }
    }

    /// `path` is what comes after `/v1/`, with keys as Consul has them.
    fn url(&self, path: &str, query: &[(&str, String)]) -> Result<Url> {
        let mut url = self.base.clone();
        let before = self.base.path().trim_end_matches('/');
        url.set_path(&format!("{before}/v1/{}", path.replace('%', "%25")));
        let mut pairs = url.query_pairs_mut();
        for (name, value) in query {
            match value.is_empty() {
                true => pairs.append_key_only(name),
                false => pairs.append_pair(name, value),
            };
        }
        if let Some(datacenter) = &self.datacenter {
            pairs.append_pair("dc", datacenter);
        }
        drop(pairs);
        Ok(url)
    }

    fn no_connection(&self, attempt: Attempt, error: reqwest::Error) -> Fault {
        let error = error.without_url();
        let chain = chain(&error);
        if chain.contains("certificate") || chain.contains("fatal alert") {
            return attempt
                .silent(&self.place, "cannot be reached: TLS failed")
                .hint("name the CA that signed Consul's certificate, and give a client certificate if it asks for one")
                .caused_by(error);
        }
        let why = if error.is_connect() { "cannot be reached" } else { "broke the connection" };
        attempt.silent(&self.place, why).caused_by(error)
    }
}

fn parse(text: &str) -> Result<Url> {
    let invalid = |why: &str| {
        Fault::new(Code::CoordinationInvalid, format!("cannot use the address of Consul: {why}"))
            .hint("write `http://HOST:PORT` or `https://HOST:PORT`")
    };
    let url = Url::parse(text).map_err(|error| invalid("it is not a URL").caused_by(error))?;
    if !url.username().is_empty() || url.password().is_some() {
        return Err(invalid("it contains a user name or password, which every user of this host could read"));
    }
    if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none_or(str::is_empty) {
        return Err(invalid("it names no host, or is neither http nor https"));
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err(invalid("it has a query"));
    }
    Ok(url)
}

fn client(url: &Url, settings: &ConsulSettings) -> Result<Client> {
    let mut builder = Client::builder().user_agent(concat!("quorate/", env!("CARGO_PKG_VERSION")));
    builder = builder.https_only(url.scheme() == "https").redirect(Policy::none());
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    if host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback()) {
        builder = builder.no_proxy();
    }
    if let Some(path) = &settings.ca {
        let certificates = Certificate::from_pem_bundle(&pem(path)?).map_err(|error| bad_pem(path, error))?;
        if certificates.is_empty() {
            return Err(bad_pem(path, "it holds no certificate"));
        }
        builder = builder.tls_certs_only(certificates);
    }
    match (&settings.cert, &settings.key) {
        (Some(cert), Some(key)) => {
            let both = [pem(cert)?, b"\n".to_vec(), pem(key)?].concat();
            builder = builder.identity(Identity::from_pem(&both).map_err(|error| bad_pem(cert, error))?);
        }
        (None, None) => {}
        (Some(path), None) | (None, Some(path)) => {
            return Err(bad_pem(path, "certificate and key only work together").hint("give both files, or neither"));
        }
    }
    builder.build().map_err(|error| {
        Fault::new(Code::CoordinationInvalid, "cannot set up TLS for Consul")
            .hint("see that the certificate and the key belong together")
            .caused_by(error.without_url())
    })
}

fn pem(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|error| Fault::io(format!("cannot read `{}`", path.display()), error))
}

fn bad_pem(path: &Path, cause: impl Into<Box<dyn Error + Send + Sync>>) -> Fault {
    Fault::new(Code::CoordinationInvalid, format!("cannot use `{}`", path.display()))
        .hint("give PEM files")
        .caused_by(cause)
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
