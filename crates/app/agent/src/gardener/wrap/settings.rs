//! The flags of `start-etcd`, with etcd-wrapper's names and defaults, and a few of ours.

use std::path::PathBuf;
use std::time::Duration;

use quorate_etcd::client;
use quorate_faults::{Code, Fault, Result};
use tracing::info;

use crate::gardener::etcd_yaml::EtcdYaml;
use crate::gardener::flags::{self, Flag, switch, value};

/// Where the exit-code file is, unless `QUORATE_EXIT_CODE_FILE` says otherwise.
const EXIT_CODE_FILE: &str = "/var/etcd/data/exit_code";

/// How long one probe of readiness may take.
const PROBE_LIMIT: Duration = Duration::from_secs(5);

/// What `--help` prints.
pub const HELP: &str = "\
Usage: quorate wrap start-etcd [flags]

Flags (etcd-wrapper's own; written -x, --x, --x=value or --x value):
  --etcd-wrapper-port int                     port of /readyz and /stop (default 9095)
  --backup-restore-tls-enabled                use https towards the sidecar (default false)
  --backup-restore-host-port string           host and port of the sidecar (default \":8080\")
  --backup-restore-ca-cert-bundle-path string authorities of the sidecar's certificate; needed with TLS
  --etcd-server-name string                   host, and name in the certificate, of this etcd
  --etcd-client-port int                      its client port (default 2379)
  --etcd-client-cert-path string              our certificate for it
  --etcd-client-key-path string               the key of that certificate
  --etcd-ready-timeout duration               say so when etcd is not ready by then (default 0: never)

Flags of this program:
  --etcd string                               the etcd program (default: etcd on the PATH)
  --backup-restore-client-cert-path string    our certificate for the sidecar, if it asks for one
  --backup-restore-client-key-path string     the key of that certificate

Environment:
  HOME                     etcd.conf.yaml is written there
  QUORATE_EXIT_CODE_FILE   another place than /var/etcd/data/exit_code
";

const FLAGS: [Flag; 12] = [
    value("etcd-wrapper-port"),
    switch("backup-restore-tls-enabled"),
    value("backup-restore-host-port"),
    value("backup-restore-ca-cert-bundle-path"),
    value("etcd-server-name"),
    value("etcd-client-port"),
    value("etcd-client-cert-path"),
    value("etcd-client-key-path"),
    value("etcd-ready-timeout"),
    value("etcd"),
    value("backup-restore-client-cert-path"),
    value("backup-restore-client-key-path"),
];

/// What a run needs to know.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Port of `/readyz` and `/stop`.
    pub port: u16,
    /// The other half.
    pub sidecar: SidecarPlace,
    /// How etcd is reached for probes.
    pub etcd_server_name: String,
    /// Its client port.
    pub etcd_client_port: u16,
    /// Our certificate for it, and its key.
    pub etcd_client: Option<(PathBuf, PathBuf)>,
    /// When to complain that it is not ready.
    pub ready_limit: Option<Duration>,
    /// The program, if one was named.
    pub etcd: Option<PathBuf>,
    /// Where its configuration is written.
    pub config_file: PathBuf,
    /// The note of how it ended.
    pub exit_code_file: PathBuf,
}

/// How the sidecar is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SidecarPlace {
    /// `http://localhost:8080`.
    pub url: String,
    /// The authorities of its certificate.
    pub ca: Option<PathBuf>,
    /// Our certificate and its key.
    pub client: Option<(PathBuf, PathBuf)>,
}

/// How etcd is probed.
#[derive(Debug, Clone)]
pub(super) struct Probe {
    pub(super) etcd: client::Settings,
    pub(super) complain_after: Option<Duration>,
}

impl Settings {
    /// Reads the words after `start-etcd`.
    pub fn read(words: &[String], environment: impl Fn(&str) -> Option<String>) -> Result<Settings> {
        let given = flags::read(&FLAGS, words)?;
        let tls = given.switch("backup-restore-tls-enabled", false)?;
        let ca = given.path("backup-restore-ca-cert-bundle-path");
        if tls && ca.is_none() {
            return Err(wrong("cannot use TLS towards the sidecar without its authorities")
                .hint("give `--backup-restore-ca-cert-bundle-path`"));
        }
        let home = environment("HOME").filter(|home| !home.is_empty());
        let home = home.ok_or_else(|| {
            wrong("cannot choose a place for etcd's configuration: HOME is not set")
                .hint("set HOME to a folder of ours")
        })?;
        let ready = given.duration("etcd-ready-timeout", Duration::ZERO)?;
        let exit_code_file = environment("QUORATE_EXIT_CODE_FILE").filter(|path| !path.is_empty());
        Ok(Settings {
            port: given.number("etcd-wrapper-port", 9095)?,
            sidecar: SidecarPlace {
                url: sidecar_url(given.text("backup-restore-host-port").unwrap_or(":8080"), tls)?,
                ca,
                client: pair(
                    "backup-restore-client",
                    given.path("backup-restore-client-cert-path"),
                    given.path("backup-restore-client-key-path"),
                )?,
            },
            etcd_server_name: given.text("etcd-server-name").unwrap_or_default().to_owned(),
            etcd_client_port: given.number("etcd-client-port", 2379)?,
            etcd_client: pair("etcd-client", given.path("etcd-client-cert-path"), given.path("etcd-client-key-path"))?,
            ready_limit: Some(ready).filter(|limit| !limit.is_zero()),
            etcd: given.path("etcd"),
            config_file: PathBuf::from(home).join("etcd.conf.yaml"),
            exit_code_file: exit_code_file.map_or_else(|| PathBuf::from(EXIT_CODE_FILE), PathBuf::from),
        })
    }

    /// Says what was understood.
    pub fn say(&self) {
        info!(
            port = self.port,
            sidecar = self.sidecar.url,
            etcd_server_name = self.etcd_server_name,
            etcd_client_port = self.etcd_client_port,
            exit_code_file = %self.exit_code_file.display(),
            config_file = %self.config_file.display(),
            "starting"
        );
    }

    pub(super) fn probe(&self, config: &EtcdYaml) -> Probe {
        let named = Some(self.etcd_server_name.clone()).filter(|name| !name.is_empty());
        let host = named.clone().unwrap_or_else(|| "127.0.0.1".to_owned());
        let host = if host.contains(':') && !host.starts_with('[') { format!("[{host}]") } else { host };
        let scheme = if config.client_tls() { "https" } else { "http" };
        let mut etcd = client::Settings::new([format!("{scheme}://{host}:{}", self.etcd_client_port)]);
        etcd.timeout = PROBE_LIMIT;
        if config.client_tls() {
            let (cert, key) = self.etcd_client.clone().unzip();
            let ca = config.certificates("client-transport-security").ca;
            etcd.tls = client::Tls { ca, cert, key, server_name: named };
        }
        Probe { etcd, complain_after: self.ready_limit }
    }
}

/// `HOST:PORT` with an empty host for this machine.
fn sidecar_url(place: &str, tls: bool) -> Result<String> {
    let hint = "write `HOST:PORT`, or `:PORT` for this machine";
    let Some((host, port)) = place.rsplit_once(':').filter(|_| !place.starts_with("http:")) else {
        return Err(wrong(format!("cannot use `--backup-restore-host-port={place}`")).hint(hint));
    };
    let is_host = host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_[]:".contains(&byte));
    if place.starts_with("https:") || !is_host || port.parse::<u16>().is_err() {
        return Err(wrong(format!("cannot use `--backup-restore-host-port={place}`")).hint(hint));
    }
    let host = if host.is_empty() { "localhost" } else { host };
    Ok(format!("{}://{host}:{port}", if tls { "https" } else { "http" }))
}

fn pair(what: &str, cert: Option<PathBuf>, key: Option<PathBuf>) -> Result<Option<(PathBuf, PathBuf)>> {
    match (cert, key) {
        (Some(cert), Some(key)) => Ok(Some((cert, key))),
        (None, None) => Ok(None),
        _ => Err(wrong(format!("cannot use one of `--{what}-cert-path` and `--{what}-key-path` without the other"))
            .hint("give both, or none")),
    }
}

fn wrong(attempt: impl Into<String>) -> Fault {
    Fault::new(Code::GardenerFlag, attempt)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Settings> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        Settings::read(&words, |name| (name == "HOME").then(|| "/var/lib/nonroot".to_owned()))
    }

    #[test]
    fn without_flags_everything_is_as_etcd_wrapper_has_it() {
        let settings = read("").unwrap();
        assert_eq!((settings.port, settings.etcd_client_port), (9095, 2379));
        assert_eq!(settings.sidecar.url, "http://localhost:8080");
        assert_eq!(settings.config_file, PathBuf::from("/var/lib/nonroot/etcd.conf.yaml"));
        assert_eq!(settings.exit_code_file, PathBuf::from("/var/etcd/data/exit_code"));
        assert_eq!(settings.ready_limit, None);
        let probe = settings.probe(&EtcdYaml::parse("name: x", "a test").unwrap());
        assert_eq!(probe.etcd.endpoints, ["http://127.0.0.1:2379"]);
    }

    #[test]
    fn druids_flags_are_understood() {
        let settings = read(
            "--backup-restore-host-port=etcd-main-local:8080 --etcd-server-name=etcd-main-local \
             --backup-restore-tls-enabled=true --backup-restore-ca-cert-bundle-path=/var/etcdbr/ssl/ca/bundle.crt \
             --etcd-client-cert-path=/var/etcd/ssl/client/tls.crt --etcd-client-key-path=/var/etcd/ssl/client/tls.key \
             --etcd-client-port=2379 --etcd-wrapper-port=9095",
        );
        let settings = settings.unwrap();
        assert_eq!(settings.sidecar.url, "https://etcd-main-local:8080");
        let config = "client-transport-security: {cert-file: /c, key-file: /k, trusted-ca-file: /a}";
        let probe = settings.probe(&EtcdYaml::parse(config, "a test").unwrap());
        assert_eq!(probe.etcd.endpoints, ["https://etcd-main-local:2379"]);
        assert_eq!(probe.etcd.tls.ca, Some("/a".into()));
        assert_eq!(probe.etcd.tls.server_name.as_deref(), Some("etcd-main-local"));
    }

    #[test]
    fn what_cannot_work_is_refused_before_anything_is_done() {
        for line in [
            "--backup-restore-tls-enabled",
            "--backup-restore-host-port=http://a:8080",
            "--backup-restore-host-port=https://a:8080",
            "--backup-restore-host-port=8080",
            "--backup-restore-host-port=a:b",
            "--backup-restore-host-port=a/b:80",
            "--etcd-client-cert-path=/a",
            "--etcd-wrapper-port=70000",
            "--no-such-flag",
        ] {
            assert_eq!(read(line).unwrap_err().code(), Code::GardenerFlag, "{line}");
        }
        assert!(Settings::read(&[], |_| None).is_err());
    }
}
