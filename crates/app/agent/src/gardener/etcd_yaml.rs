//! etcd's own configuration file: what it says about this member, and how one is written.
//!
//! **Rule:** keys that we do not know are etcd's business and are passed on as they are.

use std::path::PathBuf;

use quorate_faults::{Code, Fault, Result};
use serde_json::{Map, Value};

/// Longest file that is read.
pub const BYTES_MAX: usize = 1 << 20;

/// Maps and lists inside each other; etcd has two.
const DEPTH_MAX: usize = 16;

/// A configuration file.
#[derive(Debug, Clone, PartialEq)]
pub struct EtcdYaml {
    keys: Map<String, Value>,
}

/// The certificates of one of etcd's two doors.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Certificates {
    /// The server's certificate.
    pub cert: Option<PathBuf>,
    /// Its key.
    pub key: Option<PathBuf>,
    /// The authorities that are believed.
    pub ca: Option<PathBuf>,
    /// etcd makes a certificate itself.
    pub auto: bool,
}

impl EtcdYaml {
    /// Reads the file. `whence` names it in faults.
    pub fn parse(text: &str, whence: &str) -> Result<EtcdYaml> {
        let unusable = |why: String| {
            Fault::new(Code::GardenerConfig, format!("cannot use the configuration of etcd from {whence}: {why}"))
                .hint("it must be etcd's own YAML, as in its `--config-file`")
        };
        if text.len() > BYTES_MAX {
            return Err(unusable(format!("it is longer than {BYTES_MAX} bytes")));
        }
        // The text may hold anything: of what the reader says, only the place is passed on.
        let read: std::result::Result<Value, _> = serde_saphyr::from_str(text);
        match read {
            Ok(Value::Object(keys)) => Ok(EtcdYaml { keys }),
            Ok(_) => Err(unusable("it is not a list of keys and values".to_owned())),
            Err(error) => {
                let place = error.location().map_or_else(String::new, |at| format!(" at line {}", at.line()));
                Err(unusable(format!("it is not YAML{place}")))
            }
        }
    }

    /// A text, or a number or switch in its spelling.
    pub fn text(&self, key: &str) -> Option<String> {
        match self.keys.get(key)? {
            Value::String(text) => Some(text.clone()).filter(|text| !text.is_empty()),
            Value::Number(number) => Some(number.to_string()),
            Value::Bool(switch) => Some(switch.to_string()),
            Value::Null | Value::Array(_) | Value::Object(_) => None,
        }
    }

    /// Anything.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.keys.get(key)
    }

    /// Puts a value there.
    pub fn set(&mut self, key: &str, value: impl Into<Value>) {
        self.keys.insert(key.to_owned(), value.into());
    }

    /// Where the data is.
    pub fn data_dir(&self) -> Option<PathBuf> {
        self.text("data-dir").map(PathBuf::from)
    }

    /// `client-transport-security` or `peer-transport-security`.
    pub fn certificates(&self, section: &str) -> Certificates {
        let Some(Value::Object(keys)) = self.keys.get(section) else { return Certificates::default() };
        let path = |key: &str| keys.get(key).and_then(Value::as_str).filter(|text| !text.is_empty()).map(PathBuf::from);
        Certificates {
            cert: path("cert-file"),
            key: path("key-file"),
            ca: path("trusted-ca-file"),
            auto: keys.get("auto-tls").and_then(Value::as_bool).unwrap_or(false),
        }
    }

    /// Whether clients must use TLS.
    pub fn client_tls(&self) -> bool {
        let certificates = self.certificates("client-transport-security");
        certificates.auto || (certificates.cert.is_some() && certificates.key.is_some())
    }

    /// As YAML. Every value stands as JSON writes it, so that no reader takes a text for a number or a switch.
    pub fn render(&self) -> String {
        let mut text = String::new();
        render(&mut text, &self.keys, 0);
        text
    }
}

fn render(text: &mut String, keys: &Map<String, Value>, depth: usize) {
    for (key, value) in keys {
        text.push_str(&"  ".repeat(depth));
        let plain = key.starts_with(|c: char| c.is_ascii_lowercase())
            && key.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-')
            && !["y", "n", "yes", "no", "on", "off", "true", "false", "null"].contains(&key.as_str());
        match plain {
            true => text.push_str(key),
            false => text.push_str(&Value::from(key.as_str()).to_string()),
        }
        match value {
            Value::Object(inner) if !inner.is_empty() && depth < DEPTH_MAX => {
                text.push_str(":\n");
                render(text, inner, depth + 1);
            }
            value => {
                text.push_str(": ");
                text.push_str(&value.to_string());
                text.push('\n');
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRUID: &str = "\
name: etcd-main
data-dir: /var/etcd/data/new.etcd
auto-compaction-retention: \"24\"
quota-backend-bytes: 8589934592
enable-grpc-gateway: true
client-transport-security:
  cert-file: /ssl/tls.crt
  key-file: /ssl/tls.key
  client-cert-auth: true
  trusted-ca-file: /ssl/ca.crt
  auto-tls: false
initial-advertise-peer-urls:
  etcd-main-0:
  - https://a:2380
";

    #[test]
    fn what_is_written_reads_the_same() {
        let read = EtcdYaml::parse(DRUID, "a test").unwrap();
        let again = EtcdYaml::parse(&read.render(), "a test").unwrap();
        assert_eq!(read, again);
        let text = read.render();
        assert!(text.contains("auto-compaction-retention: \"24\"\n"), "{text}");
        assert!(text.contains("quota-backend-bytes: 8589934592\n"), "{text}");
        assert!(text.contains("client-transport-security:\n  auto-tls: false\n"), "{text}");
    }

    #[test]
    fn doors_and_places_are_found() {
        let read = EtcdYaml::parse(DRUID, "a test").unwrap();
        assert_eq!(read.data_dir(), Some("/var/etcd/data/new.etcd".into()));
        assert!(read.client_tls());
        assert_eq!(read.certificates("client-transport-security").ca, Some("/ssl/ca.crt".into()));
        assert_eq!(read.certificates("peer-transport-security"), Certificates::default());
        assert!(!EtcdYaml::parse("name: x", "a test").unwrap().client_tls());
    }

    #[test]
    fn garbage_is_refused_without_being_repeated() {
        for text in ["", "just words", "- a\n- b", "a: [secret", "\u{0}\u{1}secret", "a: b: secret"] {
            let fault = EtcdYaml::parse(text, "a test").unwrap_err();
            assert!(!fault.to_string().contains("secret"), "{fault}");
        }
    }
}
