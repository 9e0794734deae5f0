//! Reads `source` of the cluster file, and fills in the members that it names.
//!
//! **Rule:** a list that is shorter or longer than declared is refused: a node that saw only itself must not found a cluster of
//! one.

use std::collections::BTreeSet;

use quorate_faults::{Code, Fault};
use serde::Serialize;

use super::read::{Reader, Section, Show};
use super::sections::{Places, secret_or_path};
use super::{Member, Spec, check, members};
use crate::roster::{Roster, names, quoted};

/// More members than this no cluster of etcd has: each write waits for more than half of them.
const MEMBERS_MAX: u64 = 99;

/// Where the addresses of the members come from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Source {
    /// As `--source` takes it, such as `dns-srv:example.com`.
    pub uri: String,
    /// How many members it names when it is complete.
    pub size: usize,
    /// Who signed the server's certificate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trusted_ca_file: Option<String>,
    /// Our certificate there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cert_file: Option<String>,
    /// Its key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_file: Option<String>,
    /// The file with a token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_file: Option<String>,
    /// The file with `user:password`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_file: Option<String>,
}

pub(super) fn section(reader: &mut Reader<'_>, file: &mut Section) -> Option<Source> {
    let mut section = file.section(reader, "source")?;
    let at = section.at;
    let uri = section.text(reader, "uri");
    match &uri {
        None => {
            let hint =
                Some("such as `uri: dns-srv:example.com`; `quorate data init --help` names all kinds".to_owned());
            reader.wrong(at, "source.uri", "`source` has no `uri`", hint);
        }
        Some((text, at)) if text.split_once("://").is_some_and(|(_, rest)| before_path(rest).contains('@')) => {
            let hint = Some("write it to a file, and give `token-file` or `user-file`".to_owned());
            let what = "`uri` holds a user name or password".to_owned();
            reader.note(Code::SpecMistake, *at, "source.uri", what, hint, Show::Before);
        }
        Some((text, at)) if !text.contains(':') => {
            let hint = Some("such as `dns-srv:example.com`, `consul:service/etcd` or `file:/etc/members`".to_owned());
            reader.wrong(*at, "source.uri", format!("{} is no source", quoted(text)), hint);
        }
        Some(_) => {}
    }
    let size = section.number(reader, "size", MEMBERS_MAX).filter(|size| *size > 0);
    if size.is_none() {
        let hint = Some("such as `size: 3`: a list with fewer is not complete yet".to_owned());
        reader.wrong(at, "source.size", "`source` does not say how many members there are", hint);
    }
    let mut file = |reader: &mut Reader<'_>, key: &'static str| {
        let (text, at) = section.text(reader, key)?;
        secret_or_path(reader, &section.below(key), &text, at);
        Some(text)
    };
    let trusted_ca_file = file(reader, "trusted-ca-file");
    let (cert_file, key_file) = (file(reader, "cert-file"), file(reader, "key-file"));
    let (token_file, user_file) = (file(reader, "token-file"), file(reader, "user-file"));
    section.close(reader);
    let size = usize::try_from(size?).ok()?;
    Some(Source { uri: uri?.0, size, trusted_ca_file, cert_file, key_file, token_file, user_file })
}

impl Source {
    /// Whether it queries the same place with the same files; how many members are expected may differ.
    pub fn is_same_place(&self, other: &Source) -> bool {
        let Source { uri, size: _, trusted_ca_file, cert_file, key_file, token_file, user_file } = self;
        let same = Source {
            uri: uri.clone(),
            size: other.size,
            trusted_ca_file: trusted_ca_file.clone(),
            cert_file: cert_file.clone(),
            key_file: key_file.clone(),
            token_file: token_file.clone(),
            user_file: user_file.clone(),
        };
        same == *other
    }
}

fn before_path(rest: &str) -> &str {
    rest.split('/').next().unwrap_or(rest)
}

impl Spec {
    /// Whether the addresses of all members are known: they stand in the file, or were filled in.
    pub fn is_resolved(&self) -> bool {
        !self.members.is_empty() && self.members.iter().all(|member| !member.peer_urls.is_empty())
    }

    /// The same with the addresses that its source named. Does nothing where the file has them itself.
    pub fn with_roster(&self, roster: &Roster) -> Result<Spec, Fault> {
        let Some(source) = &self.source else { return Ok(self.clone()) };
        let from = quoted(&roster.provenance);
        if roster.members.len() != source.size {
            let attempt = format!(
                "cannot use the list from {from}: it has {} members, and the cluster file says {}",
                roster.members.len(),
                source.size
            );
            return Err(Fault::new(Code::SourceSize, attempt).hint(
                "wait until all have registered, or change `source.size` when the cluster is to have another size",
            ));
        }
        let named: BTreeSet<&str> = roster.members.iter().map(|member| member.name.as_str()).collect();
        if let Some(member) = self.members.iter().find(|member| !named.contains(member.name.as_str())) {
            let attempt = format!("cannot use the list from {from}: it has no member {}", quoted(&member.name));
            return Err(Fault::new(Code::SourceSize, attempt)
                .hint(format!("it has {}; correct `members` in the file, or the list", names(named))));
        }
        let mut spec = self.clone();
        spec.members = Vec::new();
        for found in &roster.members {
            let declared = self.member(&found.name).cloned().unwrap_or_else(|| members::bare(&found.name));
            spec.members.push(filled(declared, &found.peer_urls, &found.client_urls));
        }
        // Sources answer in any order, and every node is to have the same file.
        spec.members.sort_by(|one, other| one.name.cmp(&other.name));
        let mut reader = Reader::new("");
        check::whole(&mut reader, &spec, &Places::nowhere(spec.members.len()));
        if reader.has_mistakes() { Err(reader.finish(&roster.provenance).fault()) } else { Ok(spec) }
    }
}

fn filled(mut member: Member, peer_urls: &[String], client_urls: &[String]) -> Member {
    member.peer_urls = peer_urls.to_vec();
    if member.client_urls.is_empty() {
        member.client_urls = client_urls.to_vec();
    }
    if member.client_urls.is_empty() {
        // A list of peers alone: etcd's own port, on the same host.
        let host = |url: &String| url.rsplit_once(':').map(|(host, _)| format!("{host}:2379"));
        member.client_urls = member.peer_urls.iter().take(1).filter_map(host).collect();
    }
    if member.listen_peer_urls.is_empty() {
        member.listen_peer_urls = member.peer_urls.clone();
    }
    if member.listen_client_urls.is_empty() {
        member.listen_client_urls = member.client_urls.clone();
    }
    member
}
