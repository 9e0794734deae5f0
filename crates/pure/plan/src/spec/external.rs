//! Reads an etcd that is somebody else's: `etcd: {mode: external, endpoints: …}`.
//!
//! **Rule:** what is not ours is neither started, founded, backed up nor given users; a key that would ask for that is a mistake.

use serde::Serialize;

use super::places::host_of;
use super::read::{Reader, Section};
use super::sections::secret_or_path;
use super::{At, Spec, members};
use crate::roster::quoted;

/// What all keys of ours begin with, where nothing else is said.
pub const NAMESPACE: &str = "quorate/";
/// A namespace is a word or two, and part of every key.
const NAMESPACE_BYTES_MAX: usize = 128;

/// An etcd that others run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "mode", rename = "external", rename_all = "kebab-case")]
pub struct External {
    /// Client URLs.
    pub endpoints: Vec<String>,
    /// What all keys of ours begin with; it ends with a slash.
    pub namespace: String,
    /// How it is known, and what it is shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<ExternalTls>,
}

/// Certificates towards an etcd that others run. Paths may hold `{name}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct ExternalTls {
    /// Who signed its certificate.
    pub trusted_ca_file: String,
    /// What we show, where it asks for that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cert_file: Option<String>,
    /// The key to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_file: Option<String>,
}

impl Spec {
    /// What all keys of ours begin with, in whosever etcd.
    pub fn namespace(&self) -> &str {
        self.external.as_ref().map_or(NAMESPACE, |external| external.namespace.as_str())
    }
}

/// Where it stands, and what it says. None: etcd is ours.
pub(super) fn section(reader: &mut Reader<'_>, section: &mut Section) -> Option<(External, At)> {
    let at = section.at;
    let mut external = false;
    section.word(reader, "mode", &[("internal", false), ("external", true)], &mut external);
    if !external {
        return None;
    }
    let below = section.below("endpoints");
    let mut endpoints = Vec::new();
    for (text, at) in section.texts(reader, "endpoints").unwrap_or_default() {
        endpoints.extend(members::one_url(reader, &below, "endpoints", &text, at));
    }
    if endpoints.is_empty() && !reader.has_mistakes() {
        let hint = "write `endpoints: [https://etcd-1.example.com:2379]`".to_owned();
        reader.wrong(at, &below, "an external `etcd` has no `endpoints`", Some(hint));
    }
    let namespace = match section.text(reader, "namespace") {
        None => NAMESPACE.to_owned(),
        Some((text, at)) => {
            if !is_namespace(&text) {
                let hint = "write a path that ends with a slash, such as `quorate/blue/`".to_owned();
                reader.wrong(at, "etcd.namespace", format!("{} is no namespace", quoted(&text)), Some(hint));
            }
            text
        }
    };
    let tls = section.section(reader, "tls").and_then(|files| tls(reader, files));
    let secure = |url: &String| url.starts_with("https://");
    if endpoints.iter().any(secure) && tls.is_none() && !reader.has_mistakes() {
        let hint = "write `tls: {trusted-ca-file: /etc/quorate/etcd-ca.crt}`".to_owned();
        reader.wrong(at, "etcd.tls", "`endpoints` with TLS need `tls`", Some(hint));
    }
    Some((External { endpoints, namespace, tls }, at))
}

fn is_namespace(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/');
    text.ends_with('/')
        && !text.starts_with('/')
        && !text.contains("//")
        && text.len() <= NAMESPACE_BYTES_MAX
        && text.chars().all(plain)
}

fn tls(reader: &mut Reader<'_>, mut section: Section) -> Option<ExternalTls> {
    let mut file = |reader: &mut Reader<'_>, key: &'static str| {
        let given = section.text(reader, key);
        if let Some((text, at)) = &given {
            secret_or_path(reader, &section.below(key), text, *at);
        }
        given.map(|(text, _)| text)
    };
    let (trusted_ca_file, cert_file, key_file) =
        (file(reader, "trusted-ca-file"), file(reader, "cert-file"), file(reader, "key-file"));
    let at = section.at;
    if trusted_ca_file.is_none() {
        reader.wrong(at, "etcd.tls.trusted-ca-file", "`etcd.tls` has no `trusted-ca-file`", None);
    }
    if cert_file.is_some() != key_file.is_some() {
        reader.wrong(at, "etcd.tls", "of `cert-file` and `key-file` one is missing", Some("give both".into()));
    }
    section.close(reader);
    Some(ExternalTls { trusted_ca_file: trusted_ca_file?, cert_file, key_file })
}

/// What cannot stand beside it.
pub(super) fn alone(reader: &mut Reader<'_>, spec: &Spec, at: At) {
    let Some(external) = &spec.external else { return };
    let beside = [
        ("bootstrap", spec.bootstrap.is_some(), "nothing is founded there"),
        ("source", spec.source.is_some(), "write the nodes under `members`"),
        ("backup", spec.backup.is_some(), "whoever runs it backs it up"),
        ("auth", spec.auth.is_some(), "whoever runs it keeps its users"),
        ("etcd", !spec.etcd.is_empty(), "whoever runs it sets it up"),
    ];
    for (key, _, hint) in beside.into_iter().filter(|(_, there, _)| *there) {
        let what = format!("`{key}` cannot stand beside an external etcd");
        reader.wrong(at, "etcd.mode", what, Some(hint.to_owned()));
    }
    let near = |url: &str| matches!(host_of(url), "localhost" | "127.0.0.1" | "[::1]");
    let clear = external.endpoints.iter().find(|url| url.starts_with("http://") && !near(url));
    if let Some(url) = clear.filter(|_| !spec.is_plaintext()) {
        let what = format!("{} is in the clear, and not on this machine", quoted(url));
        reader.wrong(at, "etcd.endpoints", what, Some("write `https://`, and `tls`".into()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(etcd: &str) -> Result<Spec, String> {
        let text = format!("token: t\nmembers: [{{name: n1, address: 10.0.0.1}}]\ntls: {{dir: /p}}\n{etcd}\n");
        Spec::parse(text.as_bytes(), "c").map(|(spec, _)| spec).map_err(|mistakes| mistakes.render())
    }

    #[test]
    fn an_etcd_of_others_is_declared_by_its_addresses_and_files() {
        let spec = read(
            "etcd: {mode: external, endpoints: [https://e1:2379, https://e2:2379], tls: {trusted-ca-file: /ca, \
             cert-file: \"/c-{name}\", key-file: /k}}",
        );
        let spec = spec.unwrap();
        assert_eq!(spec.namespace(), "quorate/");
        let external = spec.external.clone().unwrap();
        assert_eq!(external.endpoints, ["https://e1:2379", "https://e2:2379"]);
        assert_eq!(external.tls.unwrap().cert_file.as_deref(), Some("/c-{name}"));
        let shown = serde_json::to_value(&spec).unwrap();
        assert_eq!(shown["etcd"]["mode"], "external");
        let other =
            read("etcd: {mode: external, endpoints: 'http://127.0.0.1:2379', namespace: quorate/blue/}").unwrap();
        assert_eq!(other.namespace(), "quorate/blue/");
        let ours = read("etcd: {mode: internal, quota-backend-bytes: 5}").unwrap();
        assert_eq!((ours.external, ours.etcd.len()), (None, 1));
        let as_before = read("").unwrap();
        assert_eq!(as_before.namespace(), "quorate/");
    }

    #[test]
    fn what_asks_for_an_etcd_of_our_own_cannot_stand_beside_it() {
        let here = "endpoints: 'http://127.0.0.1:2379'";
        for (text, words) in [
            (format!("etcd: {{mode: external, {here}, quota-backend-bytes: 5}}"), "`etcd` cannot stand"),
            (format!("etcd: {{mode: external, {here}}}\nbackup: {{store: 's3://b'}}"), "`backup` cannot stand"),
            (format!("etcd: {{mode: external, {here}}}\nbootstrap: {{id: 1}}"), "`bootstrap` cannot stand"),
            (format!("etcd: {{mode: external, {here}, namespace: /x}}"), "no namespace"),
            (format!("etcd: {{mode: elsewhere, {here}}}"), "is no `mode`"),
            ("etcd: {mode: external}".to_owned(), "no `endpoints`"),
            ("etcd: {mode: external, endpoints: 'http://e1:2379'}".to_owned(), "in the clear"),
            ("etcd: {mode: external, endpoints: 'https://e1:2379'}".to_owned(), "need `tls`"),
            (
                "etcd: {mode: external, endpoints: 'https://e1:2379', tls: {trusted-ca-file: /a, key-file: /k}}"
                    .to_owned(),
                "one is missing",
            ),
            (format!("etcd: {{{here}}}"), "endpoints"),
        ] {
            let said = read(&text).unwrap_err();
            assert!(said.contains(words), "{text}: {said}");
        }
    }
}
