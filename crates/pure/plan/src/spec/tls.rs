//! Reads `tls` and `plaintext` of the cluster file.

use super::read::{Reader, Section};
use super::sections::secret_or_path;
use super::{Security, Tls, TlsFiles};

pub(super) fn security(reader: &mut Reader<'_>, file: &mut Section, token: &str) -> Option<Security> {
    let plaintext = file.flag(reader, "plaintext");
    let tls = file.section(reader, "tls");
    match (plaintext, tls) {
        (Some((true, at)), Some(_)) => {
            reader.wrong(at, "plaintext", "`plaintext: true` stands beside `tls`", Some("keep one of the two".into()));
            None
        }
        (Some((true, _)), None) => Some(Security::Plaintext(true)),
        (_, Some(found)) => section(reader, found, token).map(|tls| Security::Tls(Box::new(tls))),
        (_, None) => {
            let hint = "give the certificates under `tls:`, or write `plaintext: true` where everyone who can connect \
                        may read and write everything";
            reader.wrong(file.at, "tls", "neither `tls` nor `plaintext: true` is given", Some(hint.to_owned()));
            None
        }
    }
}

fn section(reader: &mut Reader<'_>, mut section: Section, token: &str) -> Option<Tls> {
    let at = section.at;
    let dir = section.text(reader, "dir");
    if let Some((text, at)) = &dir {
        secret_or_path(reader, "tls.dir", text, *at);
    }
    let dir = dir.map(|(text, _)| text.trim_end_matches('/').to_owned());
    let mut files = |reader: &mut Reader<'_>, key: &'static str, ca: &str| match section.section(reader, key) {
        Some(files) => tls_files(reader, files),
        None => dir.as_ref().map(|dir| in_dir(dir, key, ca)),
    };
    let mut needed = |reader: &mut Reader<'_>, key: &'static str| {
        let before = reader.count();
        let found = files(reader, key, key);
        if found.is_none() && reader.count() == before {
            let hint =
                format!("give `dir: /etc/quorate/pki`, or `{key}: {{cert-file: …, key-file: …, trusted-ca-file: …}}`");
            reader.wrong(at, &format!("tls.{key}"), format!("`tls` has neither `dir` nor `{key}`"), Some(hint));
        }
        found
    };
    let (peer, client) = (needed(reader, "peer"), needed(reader, "client"));
    let (agent, admin) = (files(reader, "agent", "agent"), files(reader, "admin", "client"));
    let named = section.text(reader, "peer-allowed-hostname").map(|(text, _)| text);
    let operators = section.text(reader, "operators");
    if let Some((text, at)) = &operators {
        secret_or_path(reader, "tls.operators", text, *at);
    }
    let operators = operators.map(|(text, _)| text);
    let mut by_hand = false;
    section.word(reader, "renewal", &[("agents", false), ("by-hand", true)], &mut by_hand);
    section.close(reader);
    let peer_allowed_hostname = named.or_else(|| dir.as_ref().map(|_| default_hostname(token)));
    let (peer, client) = (peer?, client?);
    Some(Tls { dir, peer, client, agent, admin, operators, peer_allowed_hostname, renewed_by_hand: by_hand })
}

/// The files that `quorate ca` makes in a folder.
fn in_dir(dir: &str, which: &str, ca: &str) -> TlsFiles {
    TlsFiles {
        cert_file: format!("{dir}/{which}.crt"),
        key_file: format!("{dir}/{which}.key"),
        trusted_ca_file: format!("{dir}/{ca}-ca.crt"),
    }
}

/// The name that `quorate ca` writes into every peer's certificate, and into no other.
pub(super) fn default_hostname(token: &str) -> String {
    format!("peer.{token}.quorate.internal")
}

fn tls_files(reader: &mut Reader<'_>, mut section: Section) -> Option<TlsFiles> {
    let mut file = |reader: &mut Reader<'_>, key: &'static str| {
        let given = section.text(reader, key);
        match &given {
            None => reader.wrong(section.at, &section.below(key), format!("`{}` has no `{key}`", section.path), None),
            Some((text, at)) => secret_or_path(reader, &section.below(key), text, *at),
        }
        given.map(|(text, _)| text)
    };
    let (cert_file, key_file) = (file(reader, "cert-file"), file(reader, "key-file"));
    let trusted_ca_file = file(reader, "trusted-ca-file");
    section.close(reader);
    Some(TlsFiles { cert_file: cert_file?, key_file: key_file?, trusted_ca_file: trusted_ca_file? })
}
