//! Requests to Consul's HTTP API, with our credentials and our limits.
//!
//! **Rule:** 404 is an answer only of a Consul, which is told by its index; whatever else is no answer is a fault.

use std::path::{Path, PathBuf};
use std::time::Duration;

use quorate_faults::{Code, Fault, Result};
use reqwest::{Client, Method, StatusCode, Url};

use super::token::Token;
use crate::errors::Attempt;
use crate::limits::LISTING_BYTES_MAX;
use crate::settings::ConsulSettings;
use crate::web::{self, Cause, Failure, Trust, Unusable};

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
        let body = web::body(&mut response, ANSWER_BYTES_MAX).await;
        let body = body.map_err(|error| self.no_connection(attempt, error))?;
        let body = body.ok_or_else(|| attempt.too_much(&self.place))?;
        Ok(Answer { status: response.status(), index, body })
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
        let (failure, error) = web::failure(error);
        let silent = |why| attempt.silent(&self.place, why);
        let fault = match failure {
            Failure::Tls => silent("cannot be reached: TLS failed")
                .hint("name the CA that signed Consul's certificate, and give a client certificate if it asks for one"),
            Failure::Connect => silent("cannot be reached"),
            Failure::Redirect | Failure::Broke => silent("broke the connection"),
        };
        fault.caused_by(error)
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
    let ca = settings.ca.as_deref().map(pem).transpose()?;
    let identity = match (&settings.cert, &settings.key) {
        (Some(cert), Some(key)) => Some((pem(cert)?, pem(key)?)),
        (None, None) => None,
        (Some(path), None) | (None, Some(path)) => {
            return Err(bad_pem(path, "certificate and key only work together").hint("give both files, or neither"));
        }
    };
    let identity = identity.as_ref().map(|(cert, key)| (cert.as_slice(), key.as_slice()));
    let named = |path: &Option<PathBuf>| path.clone().unwrap_or_default();
    web::client(url, &Trust { ca: ca.as_deref(), identity }, 0).map_err(|unusable| match unusable {
        Unusable::Ca(cause) => bad_pem(&named(&settings.ca), cause),
        Unusable::Identity(cause) => bad_pem(&named(&settings.cert), cause),
        Unusable::Whole(cause) => Fault::new(Code::CoordinationInvalid, "cannot set up TLS for Consul")
            .hint("see that the certificate and the key belong together")
            .caused_by(cause),
    })
}

fn pem(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|error| Fault::io(format!("cannot read `{}`", path.display()), error))
}

fn bad_pem(path: &Path, cause: impl Into<Cause>) -> Fault {
    Fault::new(Code::CoordinationInvalid, format!("cannot use `{}`", path.display()))
        .hint("give PEM files")
        .caused_by(cause)
}
