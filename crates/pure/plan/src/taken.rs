//! What a running etcd was started with, compared with what the cluster file would start it with.
//!
//! etcd takes its settings from one config file, or else from flags and, behind them, `ETCD_…` variables. All three are
//! brought to the names of flags, values to one form (spans in nanoseconds, lists in order), and what is not given to etcd's
//! defaults.
//!
//! **Rule:** what proves itself (data dir, name, peer URLs: the member list and the lock on the data tell) is not compared
//! here, nor what only counts for a member without data.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

/// A setting that runs with another value than the cluster file has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// Its name as a flag.
    pub key: String,
    /// What runs; `None`: etcd's default.
    pub runs: Option<String>,
    /// What the next start will use; `None`: etcd's default.
    pub file: Option<String>,
}

/// Settings by their names as flags.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Given {
    keys: BTreeMap<String, String>,
}

/// Settings that say nothing about a member which has data, or that are proven by other means.
const PASSED_OVER: [&str; 16] = [
    "config-file",
    "data-dir",
    "initial-advertise-peer-urls",
    "initial-cluster",
    "initial-cluster-state",
    "initial-cluster-token",
    "log-outputs",
    "log-output",
    "log-format",
    "logger",
    "name",
    "strict-reconfig-check",
    "wal-dir",
    // Variables that are no settings.
    "unsupported-arch",
    "verify",
    "enable-log-rotation",
];

/// What etcd takes where nothing is given. Only what is the same in all releases.
const DEFAULTS: [(&str, &str); 20] = [
    ("advertise-client-urls", "http://localhost:2379"),
    ("auto-compaction-mode", "periodic"),
    ("auto-compaction-retention", "0"),
    ("auto-tls", "false"),
    ("client-cert-auth", "false"),
    ("election-timeout", "1000"),
    ("enable-pprof", "false"),
    ("force-new-cluster", "false"),
    ("heartbeat-interval", "100"),
    ("listen-client-urls", "http://localhost:2379"),
    ("listen-peer-urls", "http://localhost:2380"),
    ("log-level", "info"),
    ("max-request-bytes", "1572864"),
    ("max-snapshots", "5"),
    ("max-txn-ops", "128"),
    ("max-wals", "5"),
    ("peer-auto-tls", "false"),
    ("peer-client-cert-auth", "false"),
    ("proxy", "off"),
    ("quota-backend-bytes", "0"),
];

/// Settings of a file's sections, and what they are called as flags.
const SECTIONS: [(&str, &str); 2] = [("client-transport-security", ""), ("peer-transport-security", "peer-")];

/// With these a process cannot be tended: the next start could not be like it, or it is no member at all.
const OBSTACLES: [(&str, &str, &str); 7] = [
    ("auto-tls", "false", "it makes its own certificates for clients"),
    ("peer-auto-tls", "false", "it makes its own certificates for peers"),
    ("discovery", "", "it was started with a discovery service"),
    ("discovery-endpoints", "", "it was started with a discovery service"),
    ("discovery-srv", "", "it was started with DNS discovery"),
    ("force-new-cluster", "false", "it was started with `--force-new-cluster`"),
    ("proxy", "off", "it is a proxy"),
];

/// The config file that a process was told to read.
pub fn config_file(args: &[String], env: &[(String, String)]) -> Option<String> {
    let told = by_flags(args, env).ok()?;
    told.keys.get("config-file").filter(|path| !path.is_empty()).cloned()
}

impl Given {
    /// By flags and environment.
    pub fn by_flags(args: &[String], env: &[(String, String)]) -> Result<Given, String> {
        by_flags(args, env)
    }

    /// By a config file, beside which etcd passes over all else.
    pub fn by_file(text: &str) -> Result<Given, String> {
        let tree: Value = serde_saphyr::from_str(text).map_err(|_| "it is not YAML".to_owned())?;
        let Value::Object(map) = tree else { return Err("it holds no settings".to_owned()) };
        let mut keys = BTreeMap::new();
        for (key, value) in map {
            match SECTIONS.iter().find(|(section, _)| *section == key) {
                Some((_, prefix)) => {
                    let Value::Object(inner) = value else { continue };
                    for (name, value) in inner {
                        keys.insert(as_flag(prefix, &name), normal(&name, &plain(&value)));
                    }
                }
                None => {
                    let value = normal(&key, &plain(&value));
                    keys.insert(key, value);
                }
            }
        }
        Ok(Given { keys })
    }

    /// Why a process with these settings cannot be taken over while it runs.
    pub fn obstacle(&self) -> Option<&'static str> {
        let stands = |(key, harmless, _): &&(&str, &str, &str)| {
            self.keys.get(*key).is_some_and(|value| !value.is_empty() && value != harmless)
        };
        OBSTACLES.iter().find(stands).map(|(_, _, why)| *why)
    }

    /// What is not as the text of a config file says.
    pub fn differences(&self, file: &Given) -> Vec<Difference> {
        let mut names: Vec<&String> = self.keys.keys().chain(file.keys.keys()).collect();
        names.sort();
        names.dedup();
        let default = |key: &str| DEFAULTS.iter().find(|(name, _)| *name == key).map(|(_, value)| *value);
        let differs = |key: &&String| {
            let (runs, wanted) = (self.keys.get(*key).map(String::as_str), file.keys.get(*key).map(String::as_str));
            !PASSED_OVER.contains(&key.as_str()) && runs.or(default(key)) != wanted.or(default(key))
        };
        let difference = |key: &String| Difference {
            key: key.clone(),
            runs: self.keys.get(key).cloned(),
            file: file.keys.get(key).cloned(),
        };
        names.into_iter().filter(differs).map(difference).collect()
    }
}

fn by_flags(args: &[String], env: &[(String, String)]) -> Result<Given, String> {
    let mut keys = BTreeMap::new();
    for (name, value) in env {
        if let Some(name) = name.strip_prefix("ETCD_") {
            let name = name.to_lowercase().replace('_', "-");
            let value = normal(&name, value);
            keys.insert(name, value);
        }
    }
    let mut args = args.iter().peekable();
    while let Some(arg) = args.next() {
        let Some(flag) = arg.strip_prefix("--").or_else(|| arg.strip_prefix('-')) else {
            return Err(format!("`{arg}` is no flag of a member"));
        };
        let (name, value) = match flag.split_once('=') {
            Some((name, value)) => (name, value.to_owned()),
            // A flag that is on or off stands alone; etcd does not start with a word that belongs to no flag.
            None => match args.peek().filter(|next| !next.starts_with('-')) {
                Some(value) => {
                    let value = (*value).clone();
                    args.next();
                    (flag, value)
                }
                None => (flag, "true".to_owned()),
            },
        };
        keys.insert(name.to_owned(), normal(name, &value));
    }
    Ok(Given { keys })
}

/// The flag that stands for a key of a section.
fn as_flag(prefix: &str, name: &str) -> String {
    match (prefix, name) {
        ("peer-", "allowed-hostname" | "allowed-cn") => format!("peer-cert-{name}"),
        _ => format!("{prefix}{name}"),
    }
}

fn plain(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(list) => list.iter().map(plain).collect::<Vec<_>>().join(","),
        Value::Bool(_) | Value::Number(_) | Value::Object(_) => value.to_string(),
    }
}

/// One form for values that mean the same.
fn normal(key: &str, value: &str) -> String {
    let value = value.trim();
    if key.ends_with("-urls") || key == "cipher-suites" {
        let mut parts: Vec<&str> = value.split(',').map(|part| part.trim().trim_end_matches('/')).collect();
        parts.sort_unstable();
        return parts.join(",");
    }
    match span(value) {
        Some(nanos) => nanos.to_string(),
        None => value.to_owned(),
    }
}

/// `1h30m`, `100ms`: nanoseconds. A number without a unit is no span.
fn span(text: &str) -> Option<u64> {
    const UNITS: [(&str, u64); 6] = [
        ("ms", 1_000_000),
        ("us", 1_000),
        ("ns", 1),
        ("h", 3_600_000_000_000),
        ("m", 60_000_000_000),
        ("s", 1_000_000_000),
    ];
    let (mut rest, mut nanos) = (text, 0u64);
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).filter(|end| *end > 0)?;
        let (number, tail) = rest.split_at_checked(digits)?;
        let (unit, each) = UNITS.iter().find(|(unit, _)| tail.starts_with(unit))?;
        nanos = nanos.checked_add(number.parse::<u64>().ok()?.checked_mul(*each)?)?;
        rest = tail.get(unit.len()..)?;
    }
    (!text.is_empty()).then_some(nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    fn differences(given: &Given, file: &str) -> Vec<String> {
        let show = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
        let all = given.differences(&Given::by_file(file).unwrap());
        all.into_iter().map(|d| format!("{}: {} {}", d.key, show(d.runs), show(d.file))).collect()
    }

    #[test]
    fn flags_environment_and_file_mean_the_same() {
        let file = "name: n1\ndata-dir: /d\nlisten-client-urls: \"http://a:1,http://b:2\"\nheartbeat-interval: 50\n\
                    backend-batch-interval: 100000000\nclient-transport-security: {cert-file: /c, client-cert-auth: true}\n\
                    peer-transport-security: {cert-file: /p, allowed-hostname: h}\n";
        let flags = "--name=n1 --data-dir /d -listen-client-urls http://b:2,http://a:1/ --heartbeat-interval 50 \
                     --backend-batch-interval=100ms --client-cert-auth --cert-file /c --peer-cert-file=/p \
                     --peer-cert-allowed-hostname h --initial-cluster-state new";
        let given = Given::by_flags(&words(flags), &[]).unwrap();
        assert_eq!(differences(&given, file), [] as [&str; 0]);
        let env: Vec<_> = [("ETCD_HEARTBEAT_INTERVAL", "60"), ("ETCD_CERT_FILE", "/c"), ("HOME", "/")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .to_vec();
        // A flag counts before a variable.
        assert_eq!(Given::by_flags(&words(flags), &env).unwrap(), given);
        let file_again = Given::by_file(file).unwrap();
        assert_eq!(differences(&file_again, file), [] as [&str; 0]);
    }

    #[test]
    fn what_is_not_given_is_a_default_and_what_differs_is_named() {
        let given =
            Given::by_flags(&words("--election-timeout 500 --snapshot-count=7 --max-txn-ops 128"), &[]).unwrap();
        let file = "election-timeout: 1000\nquota-backend-bytes: 4\nheartbeat-interval: 100\n";
        assert_eq!(
            differences(&given, file),
            ["election-timeout: 500 1000", "quota-backend-bytes: - 4", "snapshot-count: 7 -"]
        );
    }

    #[test]
    fn what_cannot_be_tended_is_named() {
        for (flags, why) in [
            ("--auto-tls", "certificates for clients"),
            ("--peer-auto-tls=true", "certificates for peers"),
            ("--discovery https://x", "a discovery service"),
            ("--discovery-srv x", "DNS"),
            ("--force-new-cluster", "force-new-cluster"),
            ("--proxy on", "proxy"),
        ] {
            let given = Given::by_flags(&words(flags), &[]).unwrap();
            assert!(given.obstacle().is_some_and(|said| said.contains(why)), "{flags}");
        }
        assert_eq!(Given::by_flags(&words("--auto-tls=false --proxy off"), &[]).unwrap().obstacle(), None);
        assert!(Given::by_flags(&words("gateway start"), &[]).is_err());
        assert!(Given::by_file("[1, 2]").is_err());
        assert_eq!(config_file(&words("--config-file /e.yaml"), &[]), Some("/e.yaml".to_owned()));
        let env = [("ETCD_CONFIG_FILE".to_owned(), "/f.yaml".to_owned())];
        assert_eq!(config_file(&[], &env), Some("/f.yaml".to_owned()));
    }
}
