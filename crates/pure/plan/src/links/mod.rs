//! What consumers of a declared cluster need: endpoints, whom to trust, and which certificate to show.
//!
//! **Invariant:** a private key is in what is written only where it was handed in by name; certificates are cut out of their
//! files block by block, so that a key that stands beside one never comes along.

mod render;

use quorate_faults::{Code, Fault, Result};

pub use render::{Format, Secret, render};

use crate::spec::{Spec, TlsFiles, for_member};

/// Who consumes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Clients of etcd.
    Client,
    /// Members that join.
    Peer,
}

/// What they need.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// Who they are.
    pub kind: Kind,
    /// The cluster's name.
    pub cluster: String,
    /// Where to connect, one URL for each member at least.
    pub endpoints: Vec<String>,
    /// `NAME=URL,…` of all members, for peers.
    pub initial_cluster: Option<String>,
    /// The name that a peer's certificate must hold.
    pub allowed_hostname: Option<String>,
    /// The files of mutual TLS. `None`: plaintext.
    pub files: Option<TlsFiles>,
}

/// What stands in the files.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Contents {
    /// The certificates of the CAs.
    pub ca: String,
    /// The certificate, with those that lead to its CA.
    pub cert: String,
    /// Its private key, where it was asked for.
    pub key: Option<String>,
}

impl std::fmt::Debug for Contents {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Contents").field("ca", &self.ca).field("cert", &self.cert).finish_non_exhaustive()
    }
}

/// What clients or peers of a cluster need. `name`: the member whose files are meant, where paths depend on it.
pub fn link(spec: &Spec, kind: Kind, name: Option<&str>) -> Result<Link> {
    let files = spec.tls_files().map(|tls| match kind {
        Kind::Client => tls.admin.as_ref().unwrap_or(&tls.client),
        Kind::Peer => &tls.peer,
    });
    let files = files.map(|files| of_member(files, name)).transpose()?;
    let urls = spec.members.iter().flat_map(|member| match kind {
        Kind::Client => &member.client_urls,
        Kind::Peer => &member.peer_urls,
    });
    let pairs = spec.members.iter().flat_map(|member| {
        let name = &member.name;
        member.peer_urls.iter().map(move |url| format!("{name}={url}"))
    });
    let is_peer = kind == Kind::Peer;
    Ok(Link {
        kind,
        cluster: if is_peer { spec.etcd_token().unwrap_or_else(|| spec.token.clone()) } else { spec.token.clone() },
        endpoints: urls.cloned().collect(),
        initial_cluster: is_peer.then(|| pairs.collect::<Vec<_>>().join(",")),
        allowed_hostname: spec.tls_files().filter(|_| is_peer).and_then(|tls| tls.peer_allowed_hostname.clone()),
        files,
    })
}

fn of_member(files: &TlsFiles, name: Option<&str>) -> Result<TlsFiles> {
    let depends =
        [&files.cert_file, &files.key_file, &files.trusted_ca_file].iter().any(|path| path.contains("{name}"));
    let Some(name) = name.or(if depends { None } else { Some("") }) else {
        return Err(Fault::new(Code::Usage, "the files of each member are others, and no member is named")
            .hint("say whose files are meant: `--name n1`"));
    };
    Ok(TlsFiles {
        cert_file: for_member(&files.cert_file, name),
        key_file: for_member(&files.key_file, name),
        trusted_ca_file: for_member(&files.trusted_ca_file, name),
    })
}

/// What a block of a PEM file holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Block {
    /// A certificate.
    Certificate,
    /// A private key, of any kind.
    PrivateKey,
}

/// The blocks of one kind in a PEM file, and nothing else of it. `None`: there is none.
pub fn blocks(text: &str, wanted: Block) -> Option<String> {
    let mut found = String::new();
    let mut inside: Option<(String, String)> = None;
    for line in text.lines().map(str::trim_end) {
        if let Some(label) = line.strip_prefix("-----BEGIN ").and_then(|rest| rest.strip_suffix("-----")) {
            inside = Some((label.to_owned(), String::new()));
        }
        let Some((label, body)) = &mut inside else { continue };
        body.push_str(line);
        body.push('\n');
        if line != format!("-----END {label}-----") {
            continue;
        }
        let fits = match wanted {
            Block::Certificate => label == "CERTIFICATE",
            Block::PrivateKey => label.ends_with("PRIVATE KEY"),
        };
        if fits {
            found.push_str(body);
        }
        inside = None;
    }
    (!found.is_empty()).then_some(found)
}

#[cfg(test)]
mod tests;
