//! The JSON Schema of the cluster file agrees with the reader: about every example of the guide, about every default, and about
//! what is of the wrong kind.

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use quorate_plan::spec::Spec;
use quorate_testkit::project_root;
use regex::Regex;
use serde_json::{Value, json};

fn schema() -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_quorate")).args(["cluster", "schema"]).output().unwrap();
    assert!(output.status.success());
    serde_json::from_slice(&output.stdout).unwrap()
}

/// What is wrong with a value, in the words of the schema. Knows the keywords that the schema uses, and no others.
fn objections(schema: &Value, value: &Value, place: &str, found: &mut Vec<String>) {
    let fits = |schema: &Value| {
        let mut found = Vec::new();
        objections(schema, value, place, &mut found);
        found.is_empty()
    };
    let mut wrong = |what: &str| found.push(format!("{place}: {what}"));
    for (keyword, wanted) in schema.as_object().unwrap() {
        let good = match keyword.as_str() {
            "$schema" | "title" | "description" | "default" | "properties" | "items" | "additionalProperties" => true,
            "type" => {
                let wanted: Vec<&str> = wanted.as_array().map_or_else(
                    || vec![wanted.as_str().unwrap()],
                    |all| all.iter().filter_map(Value::as_str).collect(),
                );
                wanted.contains(&kind(value))
            }
            "required" => value
                .as_object()
                .is_none_or(|map| wanted.as_array().unwrap().iter().all(|key| map.contains_key(key.as_str().unwrap()))),
            "minLength" => value.as_str().is_none_or(|text| text.chars().count() as u64 >= wanted.as_u64().unwrap()),
            "minimum" => value.as_i64().is_none_or(|number| number >= wanted.as_i64().unwrap()),
            "maximum" => value.as_i64().is_none_or(|number| number <= wanted.as_i64().unwrap()),
            "enum" => wanted.as_array().unwrap().contains(value),
            "const" => value == wanted,
            "pattern" => value.as_str().is_none_or(|text| matches(wanted.as_str().unwrap(), text)),
            "anyOf" => wanted.as_array().unwrap().iter().any(fits),
            "oneOf" => wanted.as_array().unwrap().iter().filter(|one| fits(one)).count() == 1,
            "allOf" => wanted.as_array().unwrap().iter().all(fits),
            "not" => !fits(wanted),
            "propertyNames" => value.as_object().is_none_or(|map| {
                map.keys().all(|name| {
                    let mut found = Vec::new();
                    objections(wanted, &json!(name), place, &mut found);
                    found.is_empty()
                })
            }),
            other => panic!("this test does not know the keyword `{other}`"),
        };
        if !good {
            wrong(&format!("{keyword}: {wanted}"));
        }
    }
    let properties = schema.get("properties").and_then(Value::as_object);
    for (key, value) in value.as_object().into_iter().flatten() {
        match properties.and_then(|properties| properties.get(key)) {
            Some(schema) => objections(schema, value, &format!("{place}.{key}"), found),
            None if schema.get("additionalProperties") == Some(&json!(false)) => {
                found.push(format!("{place}.{key}: unknown"))
            }
            None => {
                if let Some(schema) = schema.get("additionalProperties").filter(|schema| schema.is_object()) {
                    objections(schema, value, &format!("{place}.{key}"), found);
                }
            }
        }
    }
    if let (Some(items), Some(list)) = (schema.get("items"), value.as_array()) {
        for (at, value) in list.iter().enumerate() {
            objections(items, value, &format!("{place}[{at}]"), found);
        }
    }
}

/// Patterns are few, and reading one takes longer than all that is done with it.
fn matches(pattern: &str, text: &str) -> bool {
    static READ: Mutex<BTreeMap<String, Regex>> = Mutex::new(BTreeMap::new());
    let mut read = READ.lock().unwrap();
    read.entry(pattern.to_owned()).or_insert_with(|| Regex::new(pattern).unwrap()).is_match(text)
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn refused(schema: &Value, value: &Value) -> Vec<String> {
    let mut found = Vec::new();
    objections(schema, value, "", &mut found);
    found
}

/// Every cluster file in the docs and among what is deployed, with where it stands.
fn examples() -> Vec<(String, String)> {
    let mut files = Vec::new();
    for folder in ["docs", "deploy"] {
        walk(&project_root().join(folder), &mut files);
    }
    let mut found = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        let blocks: Vec<String> = if file.extension().is_some_and(|end| end == "md") {
            text.split("```yaml\n").skip(1).map(|rest| rest.split("```").next().unwrap().to_owned()).collect()
        } else {
            vec![text]
        };
        let whole = |block: &String| block.lines().any(|line| line.starts_with("token:"));
        found.extend(blocks.into_iter().filter(whole).map(|block| (file.display().to_string(), block)));
    }
    found
}

fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            walk(&path, found);
        } else if path.extension().is_some_and(|end| end == "md" || end == "yaml") {
            found.push(path);
        }
    }
}

#[test]
fn every_example_of_the_guide_is_taken_by_reader_and_schema() {
    let schema = schema();
    let examples = examples();
    assert!(examples.len() >= 3, "{examples:?}");
    for (place, text) in examples {
        let spec = Spec::parse(text.as_bytes(), &place).map_err(|mistakes| mistakes.render()).unwrap().0;
        let value: Value = serde_saphyr::from_str(&text).unwrap();
        assert_eq!(refused(&schema, &value), Vec::<String>::new(), "{place}:\n{text}");
        assert_eq!(refused(&schema, &json!(spec)), Vec::<String>::new(), "{place}: what it is printed as");
    }
}

/// A file with every key.
const WHOLE: &str = r#"{
  "token": "t", "bootstrap": {"id": 1}, "plaintext": false,
  "members": [{"name": "n1", "peer-urls": ["https://a:1"], "client-urls": "https://a:2", "listen-peer-urls": ["https://a:1"],
    "listen-client-urls": ["https://a:2"], "data-dir": "/d", "wal-dir": "/w", "agent-url": "https://a:3",
    "listen-agent-url": "https://a:3", "listen-health-url": "https://a:4"}, {"name": "n2", "address": "10.0.0.1"}],
  "tls": {"dir": "/p", "peer": {"cert-file": "/c", "key-file": "/k", "trusted-ca-file": "/t"}, "peer-allowed-hostname": "p"},
  "etcd": {"quota-backend-bytes": 1, "pre-vote": true, "grpc-keepalive-timeout": "5s", "cors": ["a"], "metrics": "basic"},
  "backup": {"store": "s3://b", "layout": "gardener", "delta-period": "1m30s", "delta-size": "1 MiB", "full-schedule": "every 6h",
    "spool-max": 9000000, "max-restore-time": "1h", "keep": {"last": 1, "hourly": 0, "daily": 0, "weekly": 0, "monthly": 0,
    "history": "1w2d"}},
  "auth": {"enabled": true, "prune": false, "agent-user": "x", "roles": [{"name": "r", "permissions": [{"prefix": "", "access":
    "readwrite"}, {"key": "k"}, {"range": {"from": "a", "to": "b"}}]}], "users": [{"name": "u", "password-file": "/u", "roles":
    ["r"]}]},
  "maintenance": {"validation": "full", "validation-budget": "90s", "join-timeout": "5m", "defrag": {"free-percent": 30, "free-min": "1GiB"}, "stop":
    {"move-leader-timeout": "1s", "term-timeout": "250ms", "dump-timeout": "1s"}},
  "agent": {"health-listen": "http://127.0.0.1:1", "api-listen": "https://0.0.0.0:2", "state-dir": "/s", "etcd-binary": "/e",
    "etcd-version": "3.5", "etcd-user": "root", "etcd-password-file": "/r", "ready-timeout": "5s", "logs": {"max-size": "1MiB",
    "max-age": "7d", "max-files": 3}}
}"#;

/// Every place in a document.
fn places(value: &Value, here: Vec<String>, found: &mut Vec<Vec<String>>) {
    let children: Vec<(String, &Value)> = match value {
        Value::Object(map) => map.iter().map(|(key, value)| (key.clone(), value)).collect(),
        Value::Array(list) => list.iter().enumerate().map(|(at, value)| (at.to_string(), value)).collect(),
        _ => Vec::new(),
    };
    for (key, value) in children {
        let mut place = here.clone();
        place.push(key);
        places(value, place.clone(), found);
        found.push(place);
    }
}

#[test]
fn what_is_of_the_wrong_kind_is_refused_by_both_and_what_the_reader_takes_the_schema_takes() {
    let schema = schema();
    let whole: Value = serde_json::from_str(WHOLE).unwrap();
    assert_eq!(refused(&schema, &whole), Vec::<String>::new());
    Spec::parse(WHOLE.as_bytes(), "whole").map_err(|mistakes| mistakes.render()).unwrap();
    let mut all = Vec::new();
    places(&whole, Vec::new(), &mut all);
    assert!(all.len() > 90, "{}", all.len());
    let strange = [
        json!(true),
        json!(-1),
        json!(3),
        json!("some words"),
        json!(["/x"]),
        json!({"x": 1}),
        json!({}),
        json!([{"x": 1}]),
    ];
    for place in all {
        for value in &strange {
            let mut changed = whole.clone();
            let pointer = format!("/{}", place.join("/"));
            *changed.pointer_mut(&pointer).unwrap() = value.clone();
            let taken = Spec::parse(changed.to_string().as_bytes(), "changed");
            let words = refused(&schema, &changed);
            assert!(taken.is_err() || words.is_empty(), "{pointer} = {value}: the schema says {words:?}");
            let kinds = taken.err().map(|mistakes| mistakes.render()).unwrap_or_default();
            let of_wrong_kind =
                kinds.contains(", not a list") || kinds.contains(", not a map") || kinds.contains("means nothing");
            assert!(!of_wrong_kind || !words.is_empty(), "{pointer} = {value}: the reader says {kinds}");
        }
    }
}
