//! `consul:URL/SERVICE`: the healthy instances of a Consul service.
//!
//! An instance's name is its meta `name`, else its service id where that differs from the service's name, else its node's
//! name. Its peer URLs are its meta `peer_urls` (or `peer_url`), else `SCHEME://ADDRESS:PORT`.
//!
//! **Invariant:** an unknown service is an empty list; a Consul that has no leader or hides instances from us is no answer.

use std::collections::BTreeMap;

use quorate_faults::{Code, Fault, Result};
use quorate_plan::Warning;
use quorate_plan::roster::{Absent, Answer, RawMember, Roster, quoted};
use reqwest::{Client, Url};
use serde::Deserialize;

use super::credentials::{Credentials, Secret, or_env};
use super::uri::Parts;
use super::web::{self, Redirects};
use super::{Asked, Source, SourceOptions, http, silent};

/// Where Consul wants its token.
const TOKEN_HEADER: &str = "X-Consul-Token";

/// How newer Consuls say that the token may not see everything.
const FILTERED_HEADER: &str = "X-Consul-Results-Filtered-By-ACLs";

/// A service in a Consul catalogue.
pub(super) struct Consul {
    url: Url,
    client: Client,
    credentials: Credentials,
    provenance: String,
    scheme: String,
}

impl Consul {
    pub(super) fn open(rest: &str, options: &SourceOptions) -> Result<Consul> {
        let parts = Parts::parse("consul", rest, &["dc", "ns", "tag", "scheme"])?;
        let place = match parts.place.contains("://") {
            true => parts.place.to_owned(),
            false => format!("http://{}", parts.place),
        };
        let mut url = web::parse(&place)?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(parts
                .invalid("Consul speaks `http` and `https`")
                .hint("write `consul:http://127.0.0.1:8500/SERVICE`"));
        }
        let scheme = parts.get("scheme").unwrap_or("http").to_owned();
        if !matches!(scheme.as_str(), "http" | "https") {
            return Err(parts.invalid("option `scheme` is not `http` or `https`").hint("write `scheme=https`"));
        }
        let path = url.path().trim_end_matches('/').to_owned();
        let Some((base, service)) = path.rsplit_once('/').filter(|(_, service)| !service.is_empty()) else {
            return Err(parts.invalid("it names no service").hint("write `consul:http://127.0.0.1:8500/SERVICE`"));
        };
        url.set_path(&format!("{base}/v1/health/service/{service}"));
        for key in ["dc", "ns", "tag"] {
            if let Some(value) = parts.get(key) {
                url.query_pairs_mut().append_pair(key, value);
            }
        }
        let credentials = read_credentials(options)?;
        let client = web::client(&url, &credentials, Redirects::Refuse)?;
        let provenance = format!("consul:{}", parts.place);
        Ok(Consul { url, client, credentials, provenance, scheme })
    }

    async fn answer(&self) -> Result<Answer> {
        let mut request = self.client.get(self.url.clone());
        if let Some(token) = &self.credentials.token {
            request = request.header(TOKEN_HEADER, token.reveal());
        }
        let (headers, body) = web::fetch(request, &self.provenance).await?;
        if headers.get(FILTERED_HEADER).is_some_and(|value| value == "true") {
            let fault = silent(&self.provenance, "Consul hides instances that our token may not see");
            return Err(fault.hint("give a token with `service:read` and `node:read` with `--source-token-file`"));
        }
        let mut instances: Vec<Instance> = serde_json::from_slice(&body).map_err(|error| {
            self.not_a_list("it is not what Consul answers").caused_by(error).hint("check the URL: is this Consul?")
        })?;
        // Consul's order changes from answer to answer; ours must not.
        instances.sort_by_cached_key(Instance::name);
        let (healthy, sick): (Vec<_>, Vec<_>) = instances.iter().partition(|instance| instance.trouble().is_none());
        let members = healthy.into_iter().map(|instance| self.member(instance)).collect::<Result<Vec<_>>>()?;
        let absent = sick
            .into_iter()
            .map(|instance| Absent { name: instance.name(), why: instance.trouble().unwrap_or_default() })
            .collect();
        Ok(Answer { roster: Roster::build(&self.provenance, members)?, absent })
    }

    fn member(&self, instance: &Instance) -> Result<RawMember> {
        let urls = |keys: [&str; 2]| -> Vec<String> {
            let text = keys.iter().find_map(|key| instance.meta(key));
            text.map(|text| text.split(',').map(|url| url.trim().to_owned()).collect()).unwrap_or_default()
        };
        let mut peer_urls = urls(["peer_urls", "peer_url"]);
        if peer_urls.is_empty() {
            peer_urls.push(self.peer_url(instance)?);
        }
        Ok(RawMember { name: instance.name(), peer_urls, client_urls: urls(["client_urls", "client_url"]) })
    }

    fn peer_url(&self, instance: &Instance) -> Result<String> {
        let address = match instance.service.address.as_str() {
            "" => instance.node.address.as_str(),
            own => own,
        };
        if address.is_empty() || instance.service.port == 0 {
            let fault = self.not_a_list(format!("instance {} has no address or port", quoted(&instance.service.id)));
            return Err(fault.hint("register it with its port, or with the meta `peer_urls`"));
        }
        let host = if address.contains(':') { format!("[{address}]") } else { address.to_owned() };
        Ok(format!("{}://{host}:{}", self.scheme, instance.service.port))
    }

    fn not_a_list(&self, why: impl std::fmt::Display) -> Fault {
        let attempt = format!("cannot read the list from {}: {why}", quoted(&self.provenance));
        Fault::new(Code::SourceNotAList, attempt)
    }
}

impl Source for Consul {
    fn provenance(&self) -> &str {
        &self.provenance
    }

    fn ask(&self) -> Asked<'_> {
        Box::pin(self.answer())
    }

    fn warnings(&self) -> Vec<Warning> {
        let mut warnings = self.credentials.warnings.clone();
        warnings.extend(http::clear_text(&self.url, &self.credentials, &self.provenance));
        warnings
    }
}

/// Our flags first, then the variables that Consul's own tools read.
fn read_credentials(options: &SourceOptions) -> Result<Credentials> {
    let both = options.cert.is_some() || options.key.is_some();
    let from_env = |path, variable| if both { None } else { or_env(path, options, variable) };
    let mut credentials = Credentials::read(&SourceOptions {
        cacert: or_env(&options.cacert, options, "CONSUL_CACERT"),
        cert: options.cert.clone().or_else(|| from_env(&None, "CONSUL_CLIENT_CERT")),
        key: options.key.clone().or_else(|| from_env(&None, "CONSUL_CLIENT_KEY")),
        token_file: or_env(&options.token_file, options, "CONSUL_HTTP_TOKEN_FILE"),
        ..options.clone()
    })?;
    if credentials.token.is_none()
        && let Some(token) = (options.env.0)("CONSUL_HTTP_TOKEN")
    {
        credentials.token = Some(Secret::new(token));
    }
    Ok(credentials)
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Instance {
    node: Node,
    service: Service,
    #[serde(default)]
    checks: Vec<Check>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Node {
    node: String,
    #[serde(default)]
    address: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Service {
    #[serde(rename = "ID")]
    id: String,
    service: String,
    #[serde(default)]
    address: String,
    #[serde(default)]
    port: u16,
    #[serde(default)]
    meta: Option<BTreeMap<String, String>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Check {
    name: String,
    status: String,
}

impl Instance {
    fn meta(&self, key: &str) -> Option<&str> {
        self.service.meta.as_ref()?.get(key).map(String::as_str).filter(|value| !value.is_empty())
    }

    fn name(&self) -> String {
        let id = Some(self.service.id.as_str()).filter(|id| *id != self.service.service);
        self.meta("name").or(id).unwrap_or(&self.node.node).to_owned()
    }

    /// Consul calls an instance healthy when every check of it and of its node passes.
    fn trouble(&self) -> Option<String> {
        let check = self.checks.iter().find(|check| check.status != "passing")?;
        Some(format!("its check {} is {}", quoted(&check.name), quoted(&check.status)))
    }
}
