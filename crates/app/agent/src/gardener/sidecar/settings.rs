//! The flags of `etcdbrctl server` with their defaults, a few of ours, and what the environment adds.
//!
//! **Rule:** a flag that has no meaning here is accepted and named in the log; one that would be unsafe to pass over is refused.

use std::path::{Path, PathBuf};
use std::time::Duration;

use quorate_etcd::client::{Credentials, Settings as EtcdSettings, Tls};
use quorate_faults::{Code, Fault, Result};
use quorate_plan::retention::Policy;
use quorate_plan::schedule::Schedule;

use super::provider::{self, Provided};
use crate::gardener::flags::{self, Flag, Given, switch, value};

/// What `--help` prints.
pub const HELP: &str = "\
Usage: quorate sidecar [server] [flags]

Flags (those of `etcdbrctl server` that have a meaning here):
  -p, --server-port int                     (default 8080)
      --server-cert, --server-key file      TLS of the listener; without them only this machine is listened to
  -e, --endpoints urls                      this etcd (default http://127.0.0.1:2379)
      --service-endpoints urls              the cluster
      --cacert, --cert, --key file          certificates towards etcd
      --etcd-username, --etcd-password      user of etcd; better: the password in QUORATE_ETCD_PASSWORD
      --etcd-connection-timeout duration    (default 30s)
      --etcd-defrag-timeout duration        (default 8m)
      --defragmentation-schedule cron       (default \"0 0 */3 * *\")
  -d, --data-dir dir                        (default default.etcd)
  -s, --schedule cron                       of fulls (default \"0 */1 * * *\")
      --delta-snapshot-period duration      (default 20s)
      --delta-snapshot-memory-limit bytes   (default 10485760)
      --garbage-collection-period duration  1s or less: nothing is removed (default 1m)
      --garbage-collection-policy string    Exponential or LimitBased (default Exponential)
  -m, --max-backups int                     of LimitBased (default 7)
      --delta-snapshot-retention-period duration
      --storage-provider string             S3, ABS, GCS or Local; without one there are no backups
      --store-container, --store-prefix     where in it (or STORAGE_CONTAINER)
      --store-endpoint-override url         another server of the same protocol

Flags of this program:
      --server-client-ca file               whose certificates may ask from elsewhere
      --insecure-no-client-auth             with TLS: anybody may ask from elsewhere
      --insecure-http                       without TLS: anybody may ask from elsewhere
      --spool-max bytes                     that may wait for the store (default 2147483648)

Environment: POD_NAME, POD_NAMESPACE, ETCD_CONF, STORAGE_CONTAINER, HOME, and the credentials of the provider.
";

/// Flags with a meaning here.
const MEANT: [Flag; 31] = [
    Flag { name: "server-port", short: Some('p'), switch: false },
    value("server-cert"),
    value("server-key"),
    value("server-client-ca"),
    switch("insecure-no-client-auth"),
    switch("insecure-http"),
    Flag { name: "endpoints", short: Some('e'), switch: false },
    value("service-endpoints"),
    value("cacert"),
    value("cert"),
    value("key"),
    value("etcd-username"),
    value("etcd-password"),
    value("etcd-connection-timeout"),
    value("etcd-defrag-timeout"),
    value("defragmentation-schedule"),
    Flag { name: "data-dir", short: Some('d'), switch: false },
    Flag { name: "schedule", short: Some('s'), switch: false },
    value("delta-snapshot-period"),
    value("delta-snapshot-memory-limit"),
    value("garbage-collection-period"),
    value("garbage-collection-policy"),
    Flag { name: "max-backups", short: Some('m'), switch: false },
    value("delta-snapshot-retention-period"),
    value("storage-provider"),
    value("store-container"),
    value("store-prefix"),
    value("store-endpoint-override"),
    value("spool-max"),
    value("config-file"),
    value("log-level"),
];

/// Flags of the original that change nothing here.
const IDLE: [Flag; 44] = [
    value("etcd-snapshot-timeout"),
    switch("insecure-transport"),
    switch("insecure-skip-tls-verify"),
    switch("enable-profiling"),
    value("max-parallel-chunk-uploads"),
    value("min-chunk-size"),
    value("snapstore-temp-directory"),
    switch("compress-snapshots"),
    value("compression-policy"),
    value("initial-cluster"),
    value("initial-cluster-token"),
    value("restoration-temp-snapshots-dir"),
    value("initial-advertise-peer-urls"),
    value("name"),
    switch("skip-hash-check"),
    value("max-fetchers"),
    value("max-call-send-message-size"),
    value("max-request-bytes"),
    value("max-txn-ops"),
    value("embedded-etcd-quota-bytes"),
    value("auto-compaction-mode"),
    value("auto-compaction-retention"),
    switch("enable-snapshot-lease-renewal"),
    switch("enable-member-lease-renewal"),
    value("k8s-heartbeat-duration"),
    value("full-snapshot-lease-name"),
    value("delta-snapshot-lease-name"),
    value("reelection-period"),
    value("etcd-connection-timeout-leader-election"),
    value("backoff-multiplier"),
    value("backoff-attempt-limit"),
    value("backoff-threshold-time"),
    switch("use-etcd-wrapper"),
    switch("enable-etcd-member-gc"),
    value("k8s-member-gc-duration"),
    switch("secondary-backup-sync-enabled"),
    value("secondary-backup-sync-period"),
    value("secondary-storage-provider"),
    value("secondary-store-container"),
    value("secondary-store-prefix"),
    value("secondary-store-endpoint-override"),
    value("secondary-max-parallel-chunk-uploads"),
    value("secondary-min-chunk-size"),
    value("secondary-snapstore-temp-directory"),
];

/// Idle flags that go without saying: what they ask for is so anyway, or is only about how the original works inside.
const SILENT: [&str; 9] = [
    "etcd-snapshot-timeout",
    "insecure-transport",
    "use-etcd-wrapper",
    "compress-snapshots",
    "snapstore-temp-directory",
    "restoration-temp-snapshots-dir",
    "embedded-etcd-quota-bytes",
    "auto-compaction-mode",
    "auto-compaction-retention",
];

/// Who may ask from elsewhere than this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Elsewhere {
    /// Nobody: it is not listened there.
    Nobody,
    /// Whoever shows a certificate of these authorities. `None`: nobody but for health and metrics.
    Certified(Option<PathBuf>),
    /// Anybody.
    Anybody,
}

/// What a run needs to know.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Port of the listener.
    pub port: u16,
    /// Its certificate and key.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// Who may ask.
    pub elsewhere: Elsewhere,
    /// This etcd.
    pub etcd: EtcdSettings,
    /// The cluster.
    pub service_endpoints: Vec<String>,
    /// How long a defragmentation may take.
    pub defrag_limit: Duration,
    /// When it is done.
    pub defrag_schedule: Schedule,
    /// etcd's data.
    pub data_dir: PathBuf,
    /// Where writes wait for the store.
    pub spool: PathBuf,
    /// Bytes of it.
    pub spool_max_bytes: u64,
    /// When fulls are taken.
    pub full_schedule: Schedule,
    /// Age and size at which deltas are cut.
    pub delta_period: Duration,
    /// See above.
    pub delta_bytes: u64,
    /// What stays in the store.
    pub keep: Option<Policy>,
    /// The store.
    pub store: Option<Provided>,
    /// The mounted configuration of etcd.
    pub config_file: PathBuf,
    /// This pod.
    pub pod: Option<String>,
    /// Its namespace.
    pub namespace: Option<String>,
    /// What an operator should know about the flags.
    pub notes: Vec<String>,
}

impl Settings {
    /// Reads the words after `sidecar`.
    pub fn read(words: &[String], environment: impl Fn(&str) -> Option<String>) -> Result<Settings> {
        let environment = |name: &str| environment(name).filter(|text| !text.is_empty());
        let words = if words.first().is_some_and(|word| word == "server") { &words[1..] } else { words };
        let table: Vec<Flag> = MEANT.iter().chain(&IDLE).copied().collect();
        let given = flags::read(&table, words)?;
        if given.filled("config-file").is_some() {
            return Err(wrong("cannot use `--config-file`").hint("give flags; etcd's own file is named by ETCD_CONF"));
        }
        let mut notes = notes(&given)?;
        let tls = pair(&given, "server-cert", "server-key")?;
        let elsewhere = elsewhere(&given, tls.is_some())?;
        let data_dir = given.path("data-dir").unwrap_or_else(|| PathBuf::from("default.etcd"));
        let data_dir = std::path::absolute(&data_dir)
            .map_err(|error| Fault::io(format!("cannot find out where `{}` is", data_dir.display()), error))?;
        let provided = provider::of(&given, &environment)?;
        notes.extend(provided.iter().flat_map(|provided| provided.notes.clone()));
        let second = Duration::from_secs(1);
        let mut delta_period = given.duration("delta-snapshot-period", 20 * second)?;
        if delta_period < second {
            notes.push("deltas cannot be turned off: they are cut every 20 s".to_owned());
            delta_period = 20 * second;
        }
        Ok(Settings {
            port: given.number("server-port", 8080)?,
            tls,
            elsewhere,
            etcd: etcd(&given, &environment, &mut notes)?,
            service_endpoints: list(given.text("service-endpoints").unwrap_or_default()),
            defrag_limit: given.duration("etcd-defrag-timeout", Duration::from_secs(480))?,
            defrag_schedule: Schedule::parse(given.text("defragmentation-schedule").unwrap_or("0 0 */3 * *"))?,
            spool: data_dir.parent().unwrap_or(Path::new("/")).join("quorate-spool"),
            data_dir,
            spool_max_bytes: given.number("spool-max", 2 << 30)?,
            full_schedule: Schedule::parse(given.text("schedule").unwrap_or("0 */1 * * *"))?,
            delta_period,
            delta_bytes: given.number("delta-snapshot-memory-limit", 10 << 20)?,
            keep: keep(&given)?,
            store: provided,
            config_file: PathBuf::from(
                environment("ETCD_CONF").unwrap_or_else(|| "/var/etcd/config/etcd.conf.yaml".to_owned()),
            ),
            pod: environment("POD_NAME"),
            namespace: environment("POD_NAMESPACE"),
            notes,
        })
    }
}

fn notes(given: &Given) -> Result<Vec<String>> {
    let idle = IDLE.iter().map(|flag| flag.name).filter(|name| !SILENT.contains(name));
    let mut notes: Vec<String> = idle
        .filter(|name| given.text(name).is_some_and(|text| text != "false"))
        .map(|name| format!("`--{name}` changes nothing here"))
        .collect();
    if given.filled("compression-policy").is_some_and(|policy| policy != "gzip")
        || !given.switch("compress-snapshots", true)?
    {
        notes.push("backups are written with gzip, whatever the flags say; all forms are read".to_owned());
    }
    Ok(notes)
}

fn elsewhere(given: &Given, tls: bool) -> Result<Elsewhere> {
    let (http, anybody) = (given.switch("insecure-http", false)?, given.switch("insecure-no-client-auth", false)?);
    match (tls, http, anybody, given.path("server-client-ca")) {
        (true, true, ..) => Err(wrong("cannot use `--insecure-http` with a certificate").hint("leave one of them out")),
        (true, false, true, Some(_)) => {
            Err(wrong("cannot use `--insecure-no-client-auth` with `--server-client-ca`").hint("leave one of them out"))
        }
        (true, false, true, None) => Ok(Elsewhere::Anybody),
        (true, false, false, ca) => Ok(Elsewhere::Certified(ca)),
        (false, _, true, _) | (false, _, _, Some(_)) => {
            Err(wrong("cannot tell clients apart without TLS").hint("give `--server-cert` and `--server-key`"))
        }
        (false, true, false, None) => Ok(Elsewhere::Anybody),
        (false, false, false, None) => Ok(Elsewhere::Nobody),
    }
}

fn etcd(given: &Given, environment: &impl Fn(&str) -> Option<String>, notes: &mut Vec<String>) -> Result<EtcdSettings> {
    let mut settings = EtcdSettings::new(list(given.filled("endpoints").unwrap_or("http://127.0.0.1:2379")));
    let (cert, key) = pair(given, "cert", "key")?.unzip();
    settings.tls = Tls { ca: given.path("cacert"), cert, key, server_name: None };
    // The original waits this long for a connection; ours comes back sooner and asks again.
    let limit = given.duration("etcd-connection-timeout", Duration::from_secs(30))?;
    settings.timeout = limit.clamp(Duration::from_secs(1), Duration::from_secs(5));
    if let Some(name) = given.filled("etcd-username") {
        let shown = given.filled("etcd-password").map(str::to_owned);
        if shown.is_some() {
            notes.push("a password on the command line can be read by others: use QUORATE_ETCD_PASSWORD".to_owned());
        }
        let password = environment("QUORATE_ETCD_PASSWORD").or(shown);
        let password = password.ok_or_else(|| {
            wrong("cannot log in to etcd without a password").hint("set QUORATE_ETCD_PASSWORD in the environment")
        })?;
        settings.credentials = Some(Credentials { name: name.to_owned(), password });
    }
    Ok(settings)
}

/// The same rules by other means: what they would keep is kept, and at times more.
fn keep(given: &Given) -> Result<Option<Policy>> {
    if given.duration("garbage-collection-period", Duration::from_secs(60))? <= Duration::from_secs(1) {
        return Ok(None);
    }
    let history = given.duration("delta-snapshot-retention-period", Duration::ZERO)?;
    let history_ms = i64::try_from(history.as_millis()).unwrap_or(i64::MAX);
    match given.filled("garbage-collection-policy").unwrap_or("Exponential") {
        "Exponential" => Ok(Some(Policy { last: 1, hourly: 24, daily: 7, weekly: 5, monthly: 0, history_ms })),
        "LimitBased" => {
            let last = given.number("max-backups", 7u32)?.max(1);
            Ok(Some(Policy { last, hourly: 0, daily: 0, weekly: 0, monthly: 0, history_ms }))
        }
        other => Err(wrong(format!("cannot use `--garbage-collection-policy={other}`"))
            .hint("write `Exponential` or `LimitBased`")),
    }
}

fn list(text: &str) -> Vec<String> {
    text.split(',').map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned).collect()
}

fn pair(given: &Given, cert: &str, key: &str) -> Result<Option<(PathBuf, PathBuf)>> {
    match (given.path(cert), given.path(key)) {
        (Some(cert), Some(key)) => Ok(Some((cert, key))),
        (None, None) => Ok(None),
        _ => {
            Err(wrong(format!("cannot use one of `--{cert}` and `--{key}` without the other"))
                .hint("give both, or none"))
        }
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

    /// What druid's StatefulSet gives its sidecar.
    const DRUID: &str = "server --server-port=8080 --etcd-defrag-timeout=15m --auto-compaction-mode=periodic \
        --auto-compaction-retention=30m --cacert=/ca --cert=/c --key=/k --insecure-transport=false \
        --insecure-skip-tls-verify=false --endpoints=https://etcd-main-local:2379 \
        --service-endpoints=https://etcd-main-client:2379 --server-cert=/sc --server-key=/sk \
        --data-dir=/var/etcd/data/new.etcd --restoration-temp-snapshots-dir=/var/etcd/data/restoration.temp \
        --snapstore-temp-directory=/var/etcd/data/temp --etcd-connection-timeout=5m --use-etcd-wrapper=true \
        --enable-member-lease-renewal=true --k8s-heartbeat-duration=10s --embedded-etcd-quota-bytes=8589934592 \
        --enable-snapshot-lease-renewal=true --full-snapshot-lease-name=etcd-main-full-snap \
        --delta-snapshot-lease-name=etcd-main-delta-snap --storage-provider=Local --store-container=bucket \
        --store-prefix=etcd-main --schedule=0_*/24_*_*_* --delta-snapshot-period=5m --max-backups=7 \
        --garbage-collection-policy=LimitBased --garbage-collection-period=12h --compress-snapshots=true \
        --compression-policy=gzip --etcd-snapshot-timeout=15m --delta-snapshot-memory-limit=104857600";

    #[test]
    fn druids_flags_are_understood() {
        let words: Vec<String> = DRUID.split_whitespace().map(|word| word.replace('_', " ")).collect();
        let settings = Settings::read(&words, |name| (name == "HOME").then(|| "/var/lib/nonroot".to_owned())).unwrap();
        assert_eq!(settings.spool, PathBuf::from("/var/etcd/data/quorate-spool"));
        assert_eq!(settings.store.unwrap().url, "file:///var/lib/nonroot/bucket/etcd-main");
        assert_eq!(settings.delta_period, Duration::from_secs(300));
        assert_eq!(settings.keep.unwrap().last, 7);
        assert_eq!(settings.elsewhere, Elsewhere::Certified(None));
        assert!(settings.notes.contains(&"`--enable-member-lease-renewal` changes nothing here".to_owned()));
        assert!(!settings.notes.iter().any(|note| note.contains("insecure")), "{:?}", settings.notes);
    }

    #[test]
    fn without_flags_everything_is_as_in_the_original_but_for_who_may_ask() {
        let settings = read("").unwrap();
        assert_eq!((settings.port, settings.delta_period), (8080, Duration::from_secs(20)));
        assert_eq!(settings.etcd.endpoints, ["http://127.0.0.1:2379"]);
        assert_eq!(settings.elsewhere, Elsewhere::Nobody);
        assert!(settings.store.is_none());
        assert_eq!(settings.config_file, PathBuf::from("/var/etcd/config/etcd.conf.yaml"));
        assert_eq!(read("--insecure-http").unwrap().elsewhere, Elsewhere::Anybody);
    }

    #[test]
    fn clear_text_and_strangers_must_be_asked_for() {
        let tls = "--server-cert=/c --server-key=/k";
        let of = |line: &str| read(line).map(|settings| settings.elsewhere).map_err(|fault| fault.code());
        assert_eq!(of(&format!("{tls} --server-client-ca=/a")), Ok(Elsewhere::Certified(Some("/a".into()))));
        assert_eq!(of(&format!("{tls} --insecure-no-client-auth")), Ok(Elsewhere::Anybody));
        for line in [
            &format!("{tls} --insecure-http"),
            &format!("{tls} --insecure-no-client-auth --server-client-ca=/a"),
            "--server-client-ca=/a",
            "--insecure-no-client-auth",
            "--server-cert=/c",
            "--config-file=/x",
            "--storage-provider=Swift --store-container=x",
            "--garbage-collection-policy=None",
            "--no-such-flag",
            "snapshot",
        ] {
            assert_eq!(of(line), Err(Code::GardenerFlag), "{line}");
        }
    }
}
