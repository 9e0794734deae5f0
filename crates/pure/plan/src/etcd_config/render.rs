//! Writes the config file that etcd is started with.
//!
//! **Invariant:** what is written parses as YAML and as JSON (every value is JSON), and every key is in the table of that version.

use std::collections::BTreeMap;

use quorate_faults::{Code, Fault, Result};
use serde_json::{Value as Json, json};

use super::table::GATES;
use super::{
    CHECKS, CHOSEN, COMPACTION_MODE, COMPACTION_RETENTION, Chosen, INITIAL_CHECK, Minor, Placed, check_release,
    has_allowed_hostname, has_sound_hashes, kept_level, place,
};
use crate::spec::{Member, Spec, TlsFiles, for_member};

/// What one start of etcd is told.
#[derive(Debug, Clone)]
pub struct EtcdConfig<'a> {
    /// The cluster file.
    pub spec: &'a Spec,
    /// The member that is started.
    pub member: &'a Member,
    /// Set for a member without data that joins: `NAME=URL,…` of the whole cluster. A data dir that is there says it all itself.
    pub join: Option<String>,
}

/// Whether what the file does not say is chosen, or left to etcd.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Unsaid {
    /// Chosen, with etcd's own comparisons of data.
    Checked,
    Chosen,
    Left,
    /// The same, with the comparisons that need no peers at the start.
    CheckedLater,
}

/// The text of the file for one very release of etcd, such as `3.5.16`. Refuses what it does not have, or would pass over.
pub fn render_for(config: &EtcdConfig<'_>, release: &str) -> Result<String> {
    of_release(config, release, Unsaid::Chosen)
}

/// The same without what Quorate chooses: what etcd must run with for not to be started again for the sake of its settings.
pub fn render_plain_for(config: &EtcdConfig<'_>, release: &str) -> Result<String> {
    of_release(config, release, Unsaid::Left)
}

/// The same as [`render_for`], and with etcd's own comparisons of data where the release can be relied on for them. For members that
/// run one release: the hashes of another one may differ for the same data.
/// `at_start`: whether it also compares before it serves. It asks its peers for that, each for seconds, so that members that start at
/// the same time would wait for each other.
pub fn render_checked_for(config: &EtcdConfig<'_>, release: &str, at_start: bool) -> Result<String> {
    let unsaid = match (has_sound_hashes(release), at_start) {
        (false, _) => Unsaid::Chosen,
        (true, false) => Unsaid::CheckedLater,
        (true, true) => Unsaid::Checked,
    };
    of_release(config, release, unsaid)
}

fn of_release(config: &EtcdConfig<'_>, release: &str, unsaid: Unsaid) -> Result<String> {
    check_release(config.spec, release)?;
    let Some(version) = Minor::parse(release) else {
        let attempt = format!("cannot start etcd {release}: its settings are not known");
        return Err(Fault::new(Code::EtcdKeyVersion, attempt).hint("use etcd 3.4, 3.5, 3.6 or 3.7"));
    };
    text(config, version, has_allowed_hostname(release), unsaid)
}

/// The text of the file for the latest release of `version`. Refuses what that version does not have.
pub fn render(config: &EtcdConfig<'_>, version: Minor) -> Result<String> {
    text(config, version, version >= Minor::V3_5, Unsaid::Chosen)
}

fn text(config: &EtcdConfig<'_>, version: Minor, knows_hostnames: bool, unsaid: Unsaid) -> Result<String> {
    let (spec, member) = (config.spec, config.member);
    let mut keys: BTreeMap<&str, Json> = BTreeMap::new();
    let mut gates: Vec<String> = Vec::new();
    let mut sockets: BTreeMap<&str, bool> = BTreeMap::new();
    for setting in &spec.etcd {
        let placed = place(setting, version).map_err(|objection| {
            let at = setting.at;
            let attempt = format!("cannot start etcd {version}: {} (line {}:{})", objection.what, at.line, at.column);
            let fault = Fault::new(objection.code, attempt);
            match objection.hint {
                Some(hint) => fault.hint(hint),
                None => fault.hint("change it under `etcd` in the cluster file"),
            }
        })?;
        match placed {
            Placed::Key("feature-gates", super::Rendered::Text(text)) => gates.push(text),
            Placed::Key(key, value) => {
                if keys.insert(key, json!(value)).is_some() {
                    let attempt = format!("cannot start etcd {version}: `{key}` is set twice, under two names");
                    return Err(Fault::new(Code::EtcdKeyVersion, attempt).hint("keep one of the two under `etcd`"));
                }
            }
            Placed::Gate(gate, on) => gates.push(format!("{gate}={on}")),
            Placed::Socket(option, on) => drop(sockets.insert(option, on)),
        }
    }
    if kept_level(spec).is_some() {
        keys.insert("log-level", json!("info"));
    }
    if matches!(unsaid, Unsaid::Checked | Unsaid::CheckedLater) {
        check(version, unsaid == Unsaid::Checked, &mut keys, &mut gates);
    }
    if !gates.is_empty() {
        keys.insert("feature-gates", json!(gates.join(",")));
    }
    if !sockets.is_empty() {
        keys.insert("socket-options", json!(sockets));
    }
    if unsaid != Unsaid::Left {
        choose(version, &mut keys);
    }
    keys.insert("name", json!(member.name));
    keys.insert("data-dir", json!(member.data_dir));
    if let Some(wal_dir) = &member.wal_dir {
        keys.insert("wal-dir", json!(wal_dir));
    }
    keys.insert("listen-peer-urls", json!(member.listen_peer_urls.join(",")));
    keys.insert("listen-client-urls", json!(member.listen_client_urls.join(",")));
    keys.insert("advertise-client-urls", json!(member.client_urls.join(",")));
    keys.insert("initial-advertise-peer-urls", json!(member.peer_urls.join(",")));
    keys.insert("strict-reconfig-check", json!(true));
    keys.insert("logger", json!("zap"));
    keys.insert("log-outputs", json!(["stderr"]));
    let itself = format!("{}={}", member.name, member.peer_urls.join(&format!(",{}=", member.name)));
    keys.insert("initial-cluster", json!(config.join.as_ref().unwrap_or(&itself)));
    // A member never founds a cluster by being started: without data it can only join.
    keys.insert("initial-cluster-state", json!("existing"));
    security(spec, member, knows_hostnames, &mut keys).map_err(|what| {
        Fault::new(Code::EtcdKeyVersion, format!("cannot start etcd {version}: {what}")).hint(super::NO_HOSTNAME_HINT)
    })?;
    let lines = keys.iter().map(|(key, value)| format!("{key}: {value}\n"));
    let head = format!("# Written by Quorate for etcd {version}; changes here are lost. Edit the cluster file.\n");
    Ok(head + &lines.collect::<String>())
}

/// Has etcd compare its data with its peers', where the file does not say otherwise.
fn check(version: Minor, at_start: bool, keys: &mut BTreeMap<&str, Json>, gates: &mut Vec<String>) {
    for Chosen { key, .. } in CHECKS.iter().filter(|check| at_start || check.key != INITIAL_CHECK) {
        let key = *key;
        let gate =
            GATES.iter().find(|(flag, _)| *flag == key).map(|(_, gate)| *gate).filter(|_| version >= Minor::V3_6);
        match gate {
            Some(gate) => {
                let said = |text: &String| text.split(',').any(|one| one.trim().split('=').next() == Some(gate));
                if !gates.iter().any(said) && !keys.contains_key(key) {
                    gates.push(format!("{gate}=true"));
                }
            }
            None if version == Minor::V3_4 && key != INITIAL_CHECK => {}
            None => drop(keys.entry(key).or_insert(json!(true))),
        }
    }
}

/// Fills in what the file does not say.
fn choose(version: Minor, keys: &mut BTreeMap<&str, Json>) {
    // Mode and age belong together: an age says nothing to a mode that counts revisions.
    let compacts = keys.contains_key(COMPACTION_MODE) || keys.contains_key(COMPACTION_RETENTION);
    for Chosen { key, value, last, .. } in CHOSEN {
        let paired = matches!(key, COMPACTION_MODE | COMPACTION_RETENTION);
        if version > last || (paired && compacts) {
            continue;
        }
        let value = if value == "true" { json!(true) } else { json!(value) };
        keys.entry(key).or_insert(value);
    }
}

/// Lines that name lists of revoked certificates, to be put behind the text of [`render_for`]. A list must be there before etcd
/// is started with its name: without the file, nobody is let in.
///
/// etcd's file has no key for them. It is read into the structure that also its flags fill, and there they are.
pub fn revocations(client: Option<&str>, peer: Option<&str>) -> String {
    let line = |key: &str, list: Option<&str>| {
        list.map(|list| format!("{key}: {}\n", json!({ "CRLFile": list }))).unwrap_or_default()
    };
    line("ClientTLSInfo", client) + &line("PeerTLSInfo", peer)
}

fn security(
    spec: &Spec,
    member: &Member,
    knows_hostnames: bool,
    keys: &mut BTreeMap<&str, Json>,
) -> std::result::Result<(), &'static str> {
    let Some(tls) = spec.tls_files() else { return Ok(()) };
    let files = |files: &TlsFiles| {
        json!({
            "cert-file": for_member(&files.cert_file, &member.name),
            "key-file": for_member(&files.key_file, &member.name),
            "trusted-ca-file": for_member(&files.trusted_ca_file, &member.name),
            "client-cert-auth": true,
        })
    };
    let mut peer = files(&tls.peer);
    if !knows_hostnames && spec.required_hostname().is_some() {
        return Err("its config file has no `peer-allowed-hostname`");
    }
    if let Some(name) = tls.peer_allowed_hostname.as_ref().filter(|_| knows_hostnames)
        && let Some(map) = peer.as_object_mut()
    {
        map.insert("allowed-hostname".to_owned(), json!([name]));
    }
    keys.insert("client-transport-security", files(&tls.client));
    keys.insert("peer-transport-security", peer);
    Ok(())
}
