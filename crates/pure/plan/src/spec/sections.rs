//! Reads each section of the cluster file.

use quorate_faults::Code;

use super::members::{self, Addresses, MemberPlace};
use super::read::{Reader, Section, Show};
use super::tree::{BYTES_MAX, Kind, Node};
use super::{
    Agent, At, Bootstrap, External, Logs, Maintenance, Metrics, Mistakes, Security, Setting, Spec, Validation, Value,
    auth, backup, boxes, check, external, postgres, processes, source, tls,
};
use crate::Warning;
use crate::etcd_config;
use crate::roster::quoted;

pub(super) fn document(bytes: &[u8], provenance: &str) -> Result<(Spec, Vec<Warning>), Mistakes> {
    let unreadable = |at: At, what: String| {
        let mut reader = Reader::new("");
        let hint = Some("the file is YAML; see `quorate explain Q0930` for a whole one".to_owned());
        reader.note(Code::SpecUnreadable, at, "", what, hint, Show::Line);
        reader.finish(provenance)
    };
    if bytes.len() > BYTES_MAX {
        return Err(unreadable(At::default(), format!("it is longer than {BYTES_MAX} bytes")));
    }
    let text = std::str::from_utf8(bytes)
        .map_err(|error| unreadable(At::default(), format!("byte {} is not UTF-8 text", error.valid_up_to())))?;
    let text = text.trim_start_matches('\u{feff}');
    if text.trim().is_empty() {
        return Err(unreadable(At::default(), "it is empty".to_owned()));
    }
    let node = Node::parse(text).map_err(|(at, why)| unreadable(at, format!("it is not YAML: {why}")))?;
    let mut reader = Reader::new(text);
    let read = whole(&mut reader, node);
    let Some((spec, places)) = read else { return Err(reader.finish(provenance)) };
    let warnings = check::whole(&mut reader, &spec, &places);
    if reader.has_mistakes() { Err(reader.finish(provenance)) } else { Ok((spec, warnings)) }
}

/// Where the parts stand that are checked against each other.
pub(super) struct Places {
    pub(super) members: Vec<MemberPlace>,
    pub(super) agent: At,
}

impl Places {
    /// For what does not stand in a file.
    pub(super) fn nowhere(members: usize) -> Places {
        Places { members: vec![MemberPlace::default(); members], agent: At::default() }
    }
}

fn whole(reader: &mut Reader<'_>, node: Node) -> Option<(Spec, Places)> {
    let mut file = Section::open(reader, node, "")?;
    let token = file.text(reader, "token");
    if token.is_none() && !reader.has_mistakes() {
        let hint = "give the cluster a name of its own: `token: prod-1`".to_owned();
        reader.wrong(file.at, "token", "`token` is missing", Some(hint));
    }
    let (token, token_at) = token.unwrap_or_default();
    if !token.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.')) {
        reader.wrong(token_at, "token", "`token` holds more than letters, digits, `-`, `_` and `.`", None);
    }
    let bootstrap = bootstrap(reader, &mut file);
    let security = tls::security(reader, &mut file, &token);
    let plaintext = matches!(security, Some(Security::Plaintext(_)));
    let source = source::section(reader, &mut file);
    let addresses = match (&source, plaintext) {
        (Some(_), _) => Addresses::Elsewhere,
        (None, true) => Addresses::Plain,
        (None, false) => Addresses::Tls,
    };
    let (members, places) = members::section(reader, &mut file, addresses);
    let (agent, agent_at) = agent(reader, &mut file, plaintext);
    let (etcd, external) = etcd(reader, &mut file, agent.etcd_version.as_deref());
    let (external, external_at) = external.unzip();
    let backup = backup::section(reader, &mut file);
    let auth = auth::section(reader, &mut file, &agent, security.as_ref());
    let maintenance = maintenance(reader, &mut file);
    let box_ = boxes::section(reader, &mut file);
    let processes = processes::section(reader, &mut file, &members);
    let postgres = postgres::section(reader, &mut file, &token, &members, security.as_ref());
    file.close(reader);
    let security = security?;
    let spec = Spec {
        token,
        bootstrap,
        source,
        members,
        security,
        etcd,
        external,
        backup,
        auth,
        maintenance,
        agent,
        box_,
        processes,
        postgres,
        root: None,
    };
    external::alone(reader, &spec, external_at.unwrap_or_default());
    Some((spec, Places { members: places, agent: agent_at }))
}

fn bootstrap(reader: &mut Reader<'_>, file: &mut Section) -> Option<Bootstrap> {
    let mut section = file.section(reader, "bootstrap")?;
    let before = section.at;
    let id = section.number(reader, "id", u64::from(u32::MAX));
    if id.is_none_or(|id| id == 0) {
        let hint = "write `bootstrap: {id: 1}`, and another number for each founding".to_owned();
        reader.wrong(before, "bootstrap.id", "`bootstrap` has no `id` of 1 or more", Some(hint));
    }
    section.close(reader);
    id.map(|id| Bootstrap { id })
}

/// A path; never the thing itself.
pub(super) fn secret_or_path(reader: &mut Reader<'_>, path: &str, text: &str, at: At) {
    if text.contains('\n') || text.contains("-----BEGIN") {
        let hint = Some("write it to a file that only its user can read, and give the file's path".to_owned());
        reader.note(
            Code::SpecMistake,
            at,
            path,
            format!("`{path}` holds a key or certificate itself"),
            hint,
            Show::Before,
        );
    } else if !text.starts_with('/') {
        let hint = Some("write it from the root: every node reads the same file".to_owned());
        reader.wrong(at, path, format!("{} is not an absolute path", quoted(text)), hint);
    }
}

/// etcd's own settings; or where an etcd of others is, and where that stands.
fn etcd(reader: &mut Reader<'_>, file: &mut Section, version: Option<&str>) -> (Vec<Setting>, Option<(External, At)>) {
    let Some(mut section) = file.section(reader, "etcd") else { return (Vec::new(), None) };
    let external = external::section(reader, &mut section);
    let mut settings = Vec::new();
    for (key, node) in section.rest() {
        let what = node.kind();
        let value = match node.kind {
            Kind::Flag(flag) => Value::Flag(flag),
            Kind::Number(number) => Value::Number(number),
            Kind::Text(text) => Value::Text(text),
            Kind::List(items) if items.iter().all(|item| matches!(item.kind, Kind::Text(_))) => {
                let texts = items
                    .into_iter()
                    .filter_map(|item| if let Kind::Text(text) = item.kind { Some(text) } else { None });
                Value::List(texts.collect())
            }
            Kind::Nothing | Kind::OddNumber | Kind::List(_) | Kind::Map(_) => {
                let what = format!("{} is {what}, not a value that etcd takes", quoted(&key.text));
                reader.wrong(node.at, "etcd", what, None);
                continue;
            }
        };
        let setting = Setting { key: key.text, value, at: key.at };
        let wanted = version.and_then(etcd_config::Minor::parse);
        match etcd_config::check(&setting, wanted) {
            Ok(()) => settings.push(setting),
            Err(objection) => {
                reader.note(objection.code, key.at, "etcd", objection.what, objection.hint, Show::Key);
            }
        }
    }
    (settings, external)
}

fn maintenance(reader: &mut Reader<'_>, file: &mut Section) -> Maintenance {
    let mut found = Maintenance::default();
    let Some(mut section) = file.section(reader, "maintenance") else { return found };
    let modes = [("auto", Validation::Auto), ("sanity", Validation::Sanity), ("full", Validation::Full)];
    section.word(reader, "validation", &modes, &mut found.validation);
    section.span(reader, "validation-budget", &mut found.validation_budget);
    section.span(reader, "join-timeout", &mut found.join_timeout);
    if let Some(mut defrag) = section.section(reader, "defrag") {
        if let Some(percent) = defrag.number(reader, "free-percent", 99) {
            found.defrag.free_percent = u32::try_from(percent).unwrap_or_default();
        }
        defrag.size(reader, "free-min", &mut found.defrag.free_min);
        defrag.close(reader);
    }
    if let Some(mut stop) = section.section(reader, "stop") {
        stop.span(reader, "move-leader-timeout", &mut found.stop.move_leader_timeout);
        stop.span(reader, "term-timeout", &mut found.stop.term_timeout);
        stop.span(reader, "dump-timeout", &mut found.stop.dump_timeout);
        stop.close(reader);
    }
    section.close(reader);
    found
}

fn agent(reader: &mut Reader<'_>, file: &mut Section, plaintext: bool) -> (Agent, At) {
    let mut found = Agent::new(plaintext);
    let Some(mut section) = file.section(reader, "agent") else { return (found, file.at) };
    let at = section.at;
    for (key, into) in [("health-listen", &mut found.health_listen), ("api-listen", &mut found.api_listen)] {
        let Some((text, at)) = section.text(reader, key) else { continue };
        if let Some(url) = members::one_url(reader, &section.below(key), key, &text, at) {
            *into = url;
        }
    }
    if let Some((text, at)) = section.text(reader, "state-dir") {
        secret_or_path(reader, "agent.state-dir", &text, at);
        found.state_dir = text;
    }
    found.etcd_binary = section.text(reader, "etcd-binary").map(|(text, _)| text);
    if let Some((text, at)) = section.text(reader, "etcd-version") {
        // It becomes part of a path: `{version}` in `etcd-binary`.
        let plain = text.chars().all(|letter| letter.is_ascii_alphanumeric() || matches!(letter, '.' | '-' | '+'));
        if etcd_config::Minor::parse(&text).is_none() || !plain {
            let hint = "Quorate knows 3.4 to 3.7; write `\"3.5\"` or `\"3.5.16\"`".to_owned();
            reader.wrong(at, "agent.etcd-version", format!("{} is no version of etcd", quoted(&text)), Some(hint));
        }
        found.etcd_version = Some(text);
    }
    found.etcd_user = section.text(reader, "etcd-user").map(|(text, _)| text);
    if let Some((text, at)) = section.text(reader, "etcd-password-file") {
        secret_or_path(reader, "agent.etcd-password-file", &text, at);
        found.etcd_password_file = Some(text);
    }
    section.span(reader, "ready-timeout", &mut found.ready_timeout);
    let words = [("closed", Metrics::Closed), ("open", Metrics::Open)];
    section.word(reader, "metrics", &words, &mut found.metrics);
    logs(reader, &mut section, &mut found.logs);
    section.close(reader);
    (found, at)
}

pub(super) fn logs(reader: &mut Reader<'_>, section: &mut Section, into: &mut Logs) {
    let Some(mut logs) = section.section(reader, "logs") else { return };
    logs.size(reader, "max-size", &mut into.max_size);
    logs.span(reader, "max-age", &mut into.max_age);
    if let Some(files) = logs.number(reader, "max-files", 10_000) {
        into.max_files = u32::try_from(files).unwrap_or_default();
    }
    logs.close(reader);
}

/// The keys that were asked for while a file was read.
#[cfg(test)]
pub(super) fn asked_keys(text: &str) -> std::collections::BTreeSet<String> {
    let mut reader = Reader::new(text);
    let _ = whole(&mut reader, Node::parse(text).unwrap_or(Node { at: At::default(), kind: Kind::Nothing }));
    assert_eq!(reader.count(), 0, "the file itself is without mistakes");
    reader.asked
}
