//! A link as text: for shells, for programs and for Kubernetes.
//!
//! **Invariant:** every value is quoted, so that no name or path becomes anything else than text.

use serde_json::{Value as Json, json};

use super::{Contents, Kind, Link};

/// How a link is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Lines that a shell or systemd reads: `ETCDCTL_ENDPOINTS=…`.
    Env,
    /// One JSON document.
    Json,
    /// The same as YAML.
    Yaml,
    /// A Secret of Kubernetes, with the contents of the files.
    KubernetesSecret,
}

/// Where a Secret of Kubernetes goes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Secret {
    /// Its name; by default made of the cluster's.
    pub name: Option<String>,
    /// Its namespace; by default the one that it is applied to.
    pub namespace: Option<String>,
}

/// Writes a link. With `contents` the certificates themselves are written, without it the paths of their files.
pub fn render(link: &Link, contents: Option<&Contents>, format: Format, secret: &Secret) -> String {
    match format {
        Format::Env => env(link),
        Format::Json => serde_json::to_string_pretty(&Json::Object(pairs(link, contents))).unwrap_or_default() + "\n",
        Format::Yaml => yaml(&pairs(link, contents), ""),
        Format::KubernetesSecret => kubernetes(link, contents, secret),
    }
}

fn env(link: &Link) -> String {
    let mut lines: Vec<(&str, String)> = Vec::new();
    match link.kind {
        Kind::Client => {
            lines.push(("ETCDCTL_ENDPOINTS", link.endpoints.join(",")));
        }
        Kind::Peer => {
            lines.push(("ETCD_INITIAL_CLUSTER", link.initial_cluster.clone().unwrap_or_default()));
            lines.push(("ETCD_INITIAL_CLUSTER_TOKEN", link.cluster.clone()));
            lines.push(("ETCD_INITIAL_CLUSTER_STATE", "existing".to_owned()));
        }
    }
    if let Some(files) = &link.files {
        let names = match link.kind {
            Kind::Client => ["ETCDCTL_CACERT", "ETCDCTL_CERT", "ETCDCTL_KEY"],
            Kind::Peer => ["ETCD_PEER_TRUSTED_CA_FILE", "ETCD_PEER_CERT_FILE", "ETCD_PEER_KEY_FILE"],
        };
        lines.extend(
            names.into_iter().zip([&files.trusted_ca_file, &files.cert_file, &files.key_file].map(Clone::clone)),
        );
    }
    if link.kind == Kind::Peer && link.files.is_some() {
        lines.push(("ETCD_PEER_CLIENT_CERT_AUTH", "true".to_owned()));
        lines.extend(link.allowed_hostname.clone().map(|name| ("ETCD_PEER_CERT_ALLOWED_HOSTNAME", name)));
    }
    lines.into_iter().map(|(name, value)| format!("{name}={}\n", shell_quoted(&value))).collect()
}

/// As a shell, and systemd's `EnvironmentFile`, take it: nothing in it means anything.
fn shell_quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@%+[]".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', "'\\''"))
    }
}

fn pairs(link: &Link, contents: Option<&Contents>) -> serde_json::Map<String, Json> {
    let mut map = serde_json::Map::new();
    let mut put = |key: &str, value: Json| map.insert(key.to_owned(), value);
    put(
        "kind",
        json!(match link.kind {
            Kind::Client => "client",
            Kind::Peer => "peer",
        }),
    );
    put("cluster", json!(link.cluster));
    put("endpoints", json!(link.endpoints));
    if let Some(list) = &link.initial_cluster {
        put("initial-cluster", json!(list));
    }
    if let Some(name) = &link.allowed_hostname {
        put("peer-allowed-hostname", json!(name));
    }
    match (contents, &link.files) {
        (Some(contents), _) => {
            put("ca", json!(contents.ca));
            put("cert", json!(contents.cert));
            if let Some(key) = &contents.key {
                put("key", json!(key));
            }
        }
        (None, Some(files)) => {
            put("trusted-ca-file", json!(files.trusted_ca_file));
            put("cert-file", json!(files.cert_file));
            put("key-file", json!(files.key_file));
        }
        (None, None) => {}
    }
    map
}

/// A map of texts and lists of texts, each value as JSON, which is YAML; certificates as blocks that people can read.
fn yaml(map: &serde_json::Map<String, Json>, indent: &str) -> String {
    let mut text = String::new();
    for (key, value) in map {
        match value.as_str().filter(|text| text.contains('\n')) {
            Some(block) => {
                text.push_str(&format!("{indent}{key}: |\n"));
                block.lines().for_each(|line| text.push_str(&format!("{indent}  {line}\n")));
            }
            None => text.push_str(&format!("{indent}{key}: {value}\n")),
        }
    }
    text
}

fn kubernetes(link: &Link, contents: Option<&Contents>, secret: &Secret) -> String {
    let kind = match link.kind {
        Kind::Client => "client",
        Kind::Peer => "peer",
    };
    let name = secret.name.clone().unwrap_or_else(|| format!("{}-etcd-{kind}", kubernetes_name(&link.cluster)));
    let mut data = serde_json::Map::new();
    let mut put = |key: &str, value: &str| data.insert(key.to_owned(), json!(value));
    put("endpoints", &link.endpoints.join(","));
    if let Some(list) = &link.initial_cluster {
        put("initial-cluster", list);
        put("initial-cluster-token", &link.cluster);
    }
    if let Some(contents) = contents {
        put("ca.crt", &contents.ca);
        put("tls.crt", &contents.cert);
        if let Some(key) = &contents.key {
            put("tls.key", key);
        }
    }
    let mut text = format!("apiVersion: v1\nkind: Secret\nmetadata:\n  name: {}\n", json!(name));
    if let Some(namespace) = &secret.namespace {
        text.push_str(&format!("  namespace: {}\n", json!(namespace)));
    }
    text + "type: Opaque\nstringData:\n" + &yaml(&data, "  ")
}

/// What Kubernetes takes as a name: small letters, digits and `-`.
fn kubernetes_name(token: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    token.chars().map(plain).collect::<String>().trim_matches('-').to_owned()
}
