//! The cluster file as a JSON Schema, and its defaults as a list.
//!
//! **Rule:** the schema never refuses a file that the reader accepts (but for keys with nothing behind them); what only the
//! reader can tell, such as two members with one address, it lets pass.

use serde::Serialize;
use serde_json::{Map as JsonMap, Value as Json, json};

use super::Spec;
use super::table::{EXTERNAL, FILE, Form, Key};
use crate::etcd_config;

/// A time span: the larger units first, each once.
const SPAN: &str = "^([0-9]+w)? *([0-9]+d)? *([0-9]+h)? *([0-9]+m)? *([0-9]+s)? *([0-9]+ms)? *$";
/// A size.
const SIZE: &str = "^ *[0-9]+ *(TiB|GiB|MiB|KiB|B)? *$";
/// A URL of ours or etcd's: no path, no user.
const URL: &str = "^ *([Hh][Tt][Tt][Pp][Ss]?|[Uu][Nn][Ii][Xx][Ss]?)://[^@?#]+$";

/// The name of a process.
const NAME: &str = "^[a-z0-9_][a-z0-9_-]{0,63}$";

/// A file with every section that has defaults.
const DEFAULTS: &str =
    "token: t\nmembers: [{name: n1, address: 127.0.0.1}]\ntls: {dir: /etc/quorate/pki}\nbackup: {store: 's3://b'}\n";

/// The JSON Schema of the cluster file, for editors and for tools that write it.
pub fn schema() -> String {
    let mut root = map(FILE, &["token"], "", &defaults());
    if let Some(root) = root.as_object_mut() {
        root.insert("$schema".into(), json!("https://json-schema.org/draft/2020-12/schema"));
        root.insert("title".into(), json!("The cluster file of Quorate"));
        let clear = json!({"required": ["plaintext"], "properties": {"plaintext": {"const": true}}});
        let tls = json!({"required": ["tls"], "properties": {"plaintext": {"const": false}}});
        let who = json!({"anyOf": [{"required": ["members"]}, {"required": ["source"]}, {"required": ["postgres"]}]});
        root.insert("allOf".into(), json!([{"oneOf": [tls, clear]}, who]));
    }
    // Nothing in it can fail to be written.
    serde_json::to_string_pretty(&root).unwrap_or_default() + "\n"
}

/// One key of the file, with its default.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DefaultValue {
    /// The keys that lead there, such as `backup.keep.last`.
    pub path: String,
    /// What holds where nothing is written, with mutual TLS. `None`: nothing is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default: Option<String>,
    /// What it is for.
    pub about: &'static str,
}

/// Every key that stands once in a file, in the file's order.
pub fn default_values() -> Vec<DefaultValue> {
    let mut found = Vec::new();
    gather(FILE, "", &defaults(), &mut found);
    found.extend(etcd_config::CHOSEN.iter().chain(&etcd_config::CHECKS).map(|chosen| DefaultValue {
        path: format!("etcd.{}", chosen.key),
        default: Some(chosen.value.to_owned()),
        about: chosen.about,
    }));
    found
}

fn gather(keys: &[Key], path: &str, defaults: &Json, found: &mut Vec<DefaultValue>) {
    for Key { name, form, about } in keys {
        let path = below(path, name);
        if let Form::Map(keys, _) = form {
            gather(keys, &path, defaults, found);
        } else {
            let default = default_of(defaults, &path);
            let default = default.map(|value| value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned));
            found.push(DefaultValue { path, default, about });
        }
    }
}

fn defaults() -> Json {
    // A test parses the same text.
    Spec::parse(DEFAULTS.as_bytes(), "").map_or(Json::Null, |(spec, _)| json!(spec))
}

/// The default of a key; what DEFAULTS itself says is none.
fn default_of<'a>(defaults: &'a Json, path: &str) -> Option<&'a Json> {
    let section = path.split('.').next().unwrap_or(path);
    if !matches!(section, "backup" | "maintenance" | "agent") || path == "backup.store" {
        return None;
    }
    path.split('.').try_fold(defaults, |value, key| value.get(key))
}

fn below(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

fn map(keys: &[Key], required: &[&str], path: &str, defaults: &Json) -> Json {
    let mut properties = JsonMap::new();
    for Key { name, form, about } in keys {
        let path = below(path, name);
        let mut schema = of_form(form, &path, defaults);
        if let Some(schema) = schema.as_object_mut() {
            schema.insert("description".into(), json!(about));
            if let Some(default) = default_of(defaults, &path).filter(|_| !matches!(form, Form::Map(..))) {
                schema.insert("default".into(), default.clone());
            }
        }
        properties.insert((*name).to_owned(), schema);
    }
    let mut found = json!({"type": "object", "additionalProperties": false, "properties": properties});
    if let (Some(found), false) = (found.as_object_mut(), required.is_empty()) {
        found.insert("required".into(), json!(required));
    }
    found
}

fn of_form(form: &Form, path: &str, defaults: &Json) -> Json {
    let url = json!({"type": "string", "pattern": URL});
    match form {
        Form::Text => json!({"type": "string", "minLength": 1}),
        Form::AnyText => json!({"type": "string"}),
        Form::Path => json!({"type": "string", "pattern": "^/"}),
        Form::Url => url,
        Form::Urls => json!({"anyOf": [url, {"type": "array", "items": url}]}),
        Form::Texts => json!({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}),
        Form::Flag => json!({"type": "boolean"}),
        Form::Number(min, max) => json!({"type": "integer", "minimum": min, "maximum": max}),
        // `off` without quotes is `false` to YAML.
        Form::Level => json!({"enum": ["strict", "basic", "off", false]}),
        Form::Integer(min, max) => json!({"type": "integer", "minimum": min, "maximum": max}),
        Form::Ports => {
            let port = json!({"type": "integer", "minimum": 1, "maximum": 65535});
            json!({"anyOf": [port, {"type": "array", "items": port}]})
        }
        Form::Pairs => json!({"type": "object", "additionalProperties": {"type": "string"}}),
        Form::SomeWords(words) => {
            let word = json!({"enum": words});
            json!({"anyOf": [word, {"type": "array", "items": word}]})
        }
        Form::Named(keys, required) => {
            let each = map(keys, required, &format!("{path}[]"), defaults);
            let names = json!({"pattern": NAME, "not": {"const": "etcd"}});
            json!({"type": "object", "propertyNames": names, "additionalProperties": each})
        }
        Form::Span => json!({"type": "string", "minLength": 2, "pattern": SPAN}),
        Form::Size => json!({"anyOf": [{"type": "string", "pattern": SIZE}, {"type": "integer", "minimum": 0}]}),
        Form::Words(words) => json!({"enum": words}),
        Form::WordsOrMap(words, keys) => json!({"anyOf": [{"enum": words}, map(keys, &[], path, defaults)]}),
        Form::Map(keys, required) => map(keys, required, path, defaults),
        Form::List(keys, required) => {
            json!({"type": "array", "items": map(keys, required, &format!("{path}[]"), defaults)})
        }
        Form::Etcd => etcd(),
    }
}

fn etcd() -> Json {
    let mut properties = JsonMap::new();
    for setting in etcd_config::settings() {
        let text = json!({"type": "string"});
        let mut schema = match setting.takes {
            etcd_config::Takes::Flag => json!({"type": "boolean"}),
            etcd_config::Takes::Number => json!({"type": "integer", "minimum": 0}),
            etcd_config::Takes::Text => json!({"type": ["string", "integer"]}),
            etcd_config::Takes::Span => json!({"type": "string", "minLength": 2, "pattern": SPAN}),
            etcd_config::Takes::Texts => json!({"anyOf": [text, {"type": "array", "items": text}]}),
        };
        if let Some(schema) = schema.as_object_mut() {
            let (first, last) = (setting.first, setting.last);
            let versions = if first == last { format!("etcd {first}") } else { format!("etcd {first} to {last}") };
            schema.insert("description".into(), json!(versions));
        }
        properties.insert(setting.key.to_owned(), schema);
    }
    if let Json::Object(more) = of_form(&Form::Map(EXTERNAL, &[]), "etcd", &Json::Null)["properties"].take() {
        properties.extend(more);
    }
    json!({"type": "object", "additionalProperties": false, "properties": properties})
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::spec::sections;

    /// Every section, so that the reader asks for every key.
    const EVERY: &str = "\
token: t
bootstrap: {id: 1}
source: {uri: 'file:/m', size: 1}
members: [{name: n1}]
tls: {dir: /p, peer: &f {cert-file: /c, key-file: /k, trusted-ca-file: /t}, client: *f, agent: *f, admin: *f}
backup: {store: 's3://b', keep: {last: 1}}
auth: {roles: [{name: r, permissions: [{range: {from: a}}]}], users: [{name: u}]}
maintenance: {defrag: {free-percent: 1}, stop: {term-timeout: 1m}}
agent: {logs: {max-files: 1}}
box: {limits: {pids: 9}}
processes: {p: {executable: /p, limits: {pids: 9}, volumes: [{path: /v}], ports: {bind: 1}, syscalls: {list: etcd}, hooks: {timeout: 1s}, restart: {when: \
never}, health: {tcp: 'h:1'}, stop: {term-timeout: 1s}, logs: {max-files: 1}}}
postgres: {limits: {pids: 9}, store-urls: ['http://h:1'], nodes: [{name: n1, address: h}], users: [{name: u, password-file: /u}]}
etcd: {}
";

    fn listed(keys: &[Key], path: &str, found: &mut BTreeSet<String>) {
        for key in keys {
            let path = below(path, key.name);
            match &key.form {
                Form::Map(keys, _) | Form::WordsOrMap(_, keys) => listed(keys, &path, found),
                Form::List(keys, _) | Form::Named(keys, _) => listed(keys, &format!("{path}[]"), found),
                _ => {}
            }
            found.insert(path);
        }
    }

    #[test]
    fn the_table_has_the_keys_that_the_reader_asks_for_and_no_other() {
        let mut table = BTreeSet::new();
        listed(FILE, "", &mut table);
        let asked = sections::asked_keys(EVERY);
        assert_eq!(asked.difference(&table).collect::<Vec<_>>(), Vec::<&String>::new(), "read, and not in the table");
        assert_eq!(table.difference(&asked).collect::<Vec<_>>(), Vec::<&String>::new(), "in the table, and not read");
    }

    #[test]
    fn the_defaults_are_those_of_a_file_that_says_nothing() {
        assert!(Spec::parse(DEFAULTS.as_bytes(), "").is_ok());
        let values = default_values();
        let of = |path: &str| values.iter().find(|value| value.path == path).unwrap().default.clone();
        assert_eq!(of("backup.delta-period").as_deref(), Some("10s"));
        assert_eq!(of("maintenance.defrag.free-percent").as_deref(), Some("45"));
        assert_eq!(of("agent.health-listen").as_deref(), Some("https://0.0.0.0:2383"));
        assert_eq!((of("token"), of("backup.store"), of("agent.etcd-binary")), (None, None, None));
    }

    #[test]
    fn the_schema_names_every_setting_of_etcd() {
        let schema: Json = serde_json::from_str(&schema()).unwrap();
        let etcd = schema["properties"]["etcd"]["properties"].as_object().unwrap();
        assert_eq!(etcd.len(), etcd_config::settings().count() + EXTERNAL.len());
        assert_eq!(etcd["quota-backend-bytes"]["description"], "etcd 3.4 to 3.7");
    }
}
