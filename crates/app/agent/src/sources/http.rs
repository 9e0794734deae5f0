//! `http://…` and `https://…`: a YAML or JSON list on a web server.

use quorate_faults::{Code, Result};
use quorate_plan::Warning;
use quorate_plan::roster::{parse_list, quoted};
use reqwest::{Client, Url};

use super::credentials::Credentials;
use super::web::{self, Redirects};
use super::{Asked, Source, SourceOptions};

/// A document on a web server.
pub(super) struct Http {
    url: Url,
    client: Client,
    credentials: Credentials,
    provenance: String,
}

impl Http {
    pub(super) fn open(uri: &str, options: &SourceOptions) -> Result<Http> {
        let url = web::parse(uri)?;
        let credentials = Credentials::read(options)?;
        let client = web::client(&url, &credentials, Redirects::Follow)?;
        let provenance = shown(&url);
        Ok(Http { url, client, credentials, provenance })
    }

    async fn fetch(&self) -> Result<Vec<u8>> {
        let mut request = self.client.get(self.url.clone());
        if let Some(token) = &self.credentials.token {
            request = request.bearer_auth(token.reveal());
        }
        if let Some((user, password)) = &self.credentials.user {
            request = request.basic_auth(user, Some(password.reveal()));
        }
        let (_, body) = web::fetch(request, &self.provenance).await?;
        Ok(body)
    }
}

impl Source for Http {
    fn provenance(&self) -> &str {
        &self.provenance
    }

    fn ask(&self) -> Asked<'_> {
        Box::pin(async { Ok(parse_list(&self.fetch().await?, &self.provenance)?.into()) })
    }

    fn warnings(&self) -> Vec<Warning> {
        let mut warnings = self.credentials.warnings.clone();
        warnings.extend(clear_text(&self.url, &self.credentials, &self.provenance));
        warnings
    }
}

/// A secret that everybody between us and the server can read.
pub(super) fn clear_text(url: &Url, credentials: &Credentials, provenance: &str) -> Option<Warning> {
    let exposed = url.scheme() == "http" && credentials.has_secret() && !quorate_coordination::web::is_loopback(url);
    let text = format!("the secret for {} is sent without encryption: use `https`", quoted(provenance));
    exposed.then(|| Warning::new(Code::SourceSecretOpen, text))
}

/// The URL without its query, which may hold a token.
fn shown(url: &Url) -> String {
    let mut bare = url.clone();
    bare.set_query(None);
    bare.set_fragment(None);
    match url.query() {
        Some(_) => format!("{bare}?…"),
        None => bare.to_string(),
    }
}
