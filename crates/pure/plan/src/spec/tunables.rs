//! Which settings of a cluster file a person with the role `operator` may change.
//!
//! **Rule:** the list names what may be changed. Whatever is not on it needs an administrator: a key that is added to the file later, and
//! everything that names a machine, a path, a program, a user or a place of data.

use serde_json::{Map, Value};

use super::Spec;

/// Settings that may be changed; a name that ends with a dot stands for all below it.
const TUNABLES: &[&str] = &[
    "agent.logs.",
    "agent.ready-timeout",
    "backup.delta-period",
    "backup.delta-size",
    "backup.full-schedule",
    "backup.max-restore-time",
    "backup.spool-max",
    "maintenance.",
    "postgres.lease-ttl",
    "postgres.leader-timeout",
    "postgres.step-timeout",
];

/// Settings of etcd that may be changed, without `experimental-`.
const OF_ETCD: &[&str] = &[
    "auto-compaction-mode",
    "auto-compaction-retention",
    "backend-batch-interval",
    "backend-batch-limit",
    "bootstrap-defrag-threshold-megabytes",
    "compact-hash-check-time",
    "compaction-batch-limit",
    "compaction-sleep-interval",
    "corrupt-check-time",
    "downgrade-check-time",
    "election-timeout",
    "grpc-keepalive-interval",
    "grpc-keepalive-min-time",
    "grpc-keepalive-timeout",
    "heartbeat-interval",
    "log-level",
    "max-concurrent-streams",
    "max-request-bytes",
    "max-txn-ops",
    "quota-backend-bytes",
    "snapshot-catch-up-entries",
    "snapshot-catchup-entries",
    "snapshot-count",
    "warning-apply-duration",
    "warning-unary-request-duration",
    "watch-progress-notify-interval",
];

/// The settings that differ between two files and are no tunables, by their paths, such as `backup.store`.
pub fn changes_beyond_tunables(old: &Spec, new: &Spec) -> Vec<String> {
    let mut changed = Vec::new();
    // Nothing in a Spec can fail to serialise.
    let value = |spec: &Spec| serde_json::to_value(spec).unwrap_or_default();
    differences("", &value(old), &value(new), &mut changed);
    changed.retain(|path| !is_tunable(path));
    changed
}

fn is_tunable(path: &str) -> bool {
    if let Some(key) = path.strip_prefix("etcd.") {
        return OF_ETCD.contains(&key.strip_prefix("experimental-").unwrap_or(key));
    }
    TUNABLES.iter().any(|tunable| match tunable.strip_suffix('.') {
        Some(section) => path.strip_prefix(section).is_some_and(|rest| rest.starts_with('.')),
        None => path == *tunable,
    })
}

fn differences(path: &str, old: &Value, new: &Value, changed: &mut Vec<String>) {
    let below = |key: &str| if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
    match (old, new) {
        (Value::Object(old), Value::Object(new)) => {
            let mut keys: Vec<&String> = old.keys().chain(new.keys()).collect();
            keys.sort_unstable();
            keys.dedup();
            for key in keys {
                match (old.get(key), new.get(key)) {
                    // A section that is added or removed is compared setting by setting.
                    (Some(only @ Value::Object(_)), None) => {
                        differences(&below(key), only, &Value::Object(Map::new()), changed);
                    }
                    (None, Some(only @ Value::Object(_))) => {
                        differences(&below(key), &Value::Object(Map::new()), only, changed);
                    }
                    (old, new) => {
                        differences(&below(key), old.unwrap_or(&Value::Null), new.unwrap_or(&Value::Null), changed)
                    }
                }
            }
        }
        (old, new) if old == new => {}
        _ => changed.push(path.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: &str = "token: t\nmembers: [{name: n1, address: 10.0.0.1}]\ntls: {dir: /p}\n\
                        backup: {store: 'file:///b'}\n";

    fn spec(text: &str) -> Spec {
        Spec::parse(text.as_bytes(), "c").map_err(|mistakes| mistakes.render()).unwrap().0
    }

    fn beyond(text: &str) -> Vec<String> {
        changes_beyond_tunables(&spec(BASE), &spec(text))
    }

    #[test]
    fn tunables_may_be_changed_added_and_removed() {
        assert_eq!(beyond(BASE), Vec::<String>::new());
        let tuned = format!(
            "{BASE}etcd: {{quota-backend-bytes: 8589934592, log-level: debug}}\n\
             maintenance: {{defrag: {{free-percent: 40}}}}\nagent: {{logs: {{max-files: 3}}, ready-timeout: 9s}}\n"
        )
        .replace("'file:///b'", "'file:///b', delta-period: 30s, full-schedule: 'every 3h'");
        assert_eq!(beyond(&tuned), Vec::<String>::new());
        assert_eq!(changes_beyond_tunables(&spec(&tuned), &spec(BASE)), Vec::<String>::new());
    }

    #[test]
    fn members_stores_programs_users_and_paths_need_an_administrator() {
        for (text, path) in [
            (BASE.replace("10.0.0.1", "10.0.0.9"), "members"),
            (BASE.replace("file:///b", "file:///other"), "backup.store"),
            (BASE.replace("'file:///b'", "'file:///b', keep: {last: 1}"), "backup.keep.last"),
            (format!("{BASE}processes: {{x: {{executable: /bin/x}}}}\n"), "processes.x."),
            (format!("{BASE}agent: {{etcd-binary: /tmp/etcd}}\n"), "agent.etcd-binary"),
            (format!("{BASE}agent: {{metrics: open}}\n"), "agent.metrics"),
            (format!("{BASE}box: {{level: off}}\n"), "box."),
            (format!("{BASE}etcd: {{listen-metrics-urls: 'https://0.0.0.0:1'}}\n"), "etcd.listen-metrics-urls"),
            (format!("{BASE}etcd: {{cors: '*'}}\n"), "etcd.cors"),
            (format!("{BASE}bootstrap: {{id: 2}}\n"), "bootstrap."),
            (BASE.replace("dir: /p", "dir: /q"), "dir"),
            (BASE.replace("dir: /p", "dir: /p, operators: /tmp/mine"), "operators"),
            (format!("{BASE}postgres: {{settings: {{archive_command: 'sh /tmp/x'}}}}\n"), "postgres."),
            (format!("{BASE}auth: {{enabled: false}}\n"), "auth."),
        ] {
            let found = beyond(&text);
            assert!(found.iter().any(|one| one.contains(path)), "{path}: {found:?}");
        }
    }
}
