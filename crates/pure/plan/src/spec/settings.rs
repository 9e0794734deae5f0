//! The sections of the cluster file that have defaults, and the defaults: what a careful operator would choose.

use std::time::Duration;

use quorate_etcd_formats::membership::ClusterId;
use serde::{Serialize, Serializer};

use super::Setting;
use super::units::{duration_text, size_text};
use crate::retention::Policy;

const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;
const GIB: u64 = 1024 * MIB;

/// Where backups go and how many are kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Backup {
    /// The store's URL. Credentials come from the environment of the agent, never from here.
    pub store: String,
    /// How objects are named and written.
    pub layout: Layout,
    /// How often what was written since is stored.
    #[serde(serialize_with = "as_duration")]
    pub delta_period: Duration,
    /// How large a delta may grow before it is stored early.
    #[serde(serialize_with = "as_size")]
    pub delta_size: u64,
    /// When full backups are taken: five fields of cron, or `every 6h`.
    pub full_schedule: String,
    /// How much may wait on local disk while the store is away.
    #[serde(serialize_with = "as_size")]
    pub spool_max: u64,
    /// How long a restore may be estimated to take before a new full is made.
    #[serde(serialize_with = "as_duration")]
    pub max_restore_time: Duration,
    /// How many fulls are kept.
    pub keep: Keep,
    /// The cluster whose backups this one continues, by the operator's word.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub take_over: Option<ClusterId>,
}

/// How objects of the store are named and written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Layout {
    /// Ours.
    Quorate,
    /// That of etcd-backup-restore.
    Gardener,
}

/// How many fulls are kept, with the deltas that belong to them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Keep {
    /// The newest so many.
    pub last: u32,
    /// One for each of so many hours.
    pub hourly: u32,
    /// One for each of so many days.
    pub daily: u32,
    /// One for each of so many weeks.
    pub weekly: u32,
    /// One for each of so many months.
    pub monthly: u32,
    /// Any time within it stays restorable.
    #[serde(serialize_with = "as_duration")]
    pub history: Duration,
}

impl Default for Keep {
    /// The same as every command that prunes.
    fn default() -> Keep {
        let Policy { last, hourly, daily, weekly, monthly, history_ms } = Policy::DEFAULT;
        Keep { last, hourly, daily, weekly, monthly, history: Duration::from_millis(history_ms.unsigned_abs()) }
    }
}

impl Keep {
    /// The same for whoever prunes.
    pub fn policy(&self) -> Policy {
        let Keep { last, hourly, daily, weekly, monthly, history } = *self;
        Policy {
            last,
            hourly,
            daily,
            weekly,
            monthly,
            history_ms: i64::try_from(history.as_millis()).unwrap_or(i64::MAX),
        }
    }
}

impl Backup {
    /// The defaults for a store.
    pub fn new(store: impl Into<String>) -> Backup {
        Backup {
            store: store.into(),
            layout: Layout::Quorate,
            delta_period: Duration::from_secs(10),
            delta_size: 16 * MIB,
            full_schedule: "0 */6 * * *".to_owned(),
            spool_max: 2 * GIB,
            max_restore_time: Duration::from_secs(300),
            keep: Keep::default(),
            take_over: None,
        }
    }
}

/// How data is checked, kept small and stopped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Maintenance {
    /// How much of the data is checked before a start.
    pub validation: Validation,
    /// How long the full check of `auto` may take.
    #[serde(serialize_with = "as_duration")]
    pub validation_budget: Duration,
    /// How long a new member may take to come up before it is taken out again.
    #[serde(serialize_with = "as_duration")]
    pub join_timeout: Duration,
    /// When the database is defragmented.
    pub defrag: Defrag,
    /// How etcd is stopped.
    pub stop: Stop,
}

/// How much of the data is checked before a start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Validation {
    /// Little after a clean end, everything after any other.
    Auto,
    /// What every start depends on.
    Sanity,
    /// Every page and record.
    Full,
}

/// When the database is defragmented: both limits must be passed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Defrag {
    /// Free pages as a share of the file, in percent; 0 never defragments.
    pub free_percent: u32,
    /// Free bytes in the file.
    #[serde(serialize_with = "as_size")]
    pub free_min: u64,
}

/// The steps of the stop ladder, and how long each may take.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Stop {
    /// For leadership to move to another member.
    #[serde(serialize_with = "as_duration")]
    pub move_leader_timeout: Duration,
    /// From SIGTERM to the end.
    #[serde(serialize_with = "as_duration")]
    pub term_timeout: Duration,
    /// From SIGQUIT, which writes down what etcd was doing, to SIGKILL.
    #[serde(serialize_with = "as_duration")]
    pub dump_timeout: Duration,
}

impl Default for Maintenance {
    fn default() -> Maintenance {
        Maintenance {
            validation: Validation::Auto,
            // A full check reads about 5 GiB/s from memory and 0.5 from a disk: 15 GiB and more fit.
            validation_budget: Duration::from_secs(30),
            join_timeout: Duration::from_secs(300),
            defrag: Defrag { free_percent: 45, free_min: 256 * MIB },
            stop: Stop {
                move_leader_timeout: Duration::from_secs(5),
                term_timeout: Duration::from_secs(60),
                dump_timeout: Duration::from_secs(5),
            },
        }
    }
}

/// The agent of each node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Agent {
    /// Where health is told to anyone, and metrics to whom `metrics` names.
    pub health_listen: String,
    /// Where operators and other agents are answered.
    pub api_listen: String,
    /// Where ledger, exit records and logs are kept, in a folder for each member.
    pub state_dir: String,
    /// The etcd program; by default the one on the PATH.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub etcd_binary: Option<String>,
    /// The version that the program must have, such as `3.5` or `3.5.16`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub etcd_version: Option<String>,
    /// The user as which etcd is asked, where auth is on and certificates do not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub etcd_user: Option<String>,
    /// The file with that user's password.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub etcd_password_file: Option<String>,
    /// How long a read through this member may take while it counts as ready.
    #[serde(serialize_with = "as_duration")]
    pub ready_timeout: Duration,
    /// Who may read metrics.
    #[serde(skip_serializing_if = "Metrics::is_closed")]
    pub metrics: Metrics,
    /// etcd's logs.
    pub logs: Logs,
}

/// Who may read the metrics of an agent, at its health address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Metrics {
    /// This machine, and whoever shows a certificate of the clients' authority.
    Closed,
    /// Anyone who can connect.
    Open,
}

impl Metrics {
    fn is_closed(&self) -> bool {
        *self == Metrics::Closed
    }
}

/// How etcd's logs are kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Logs {
    /// A file is closed at this size.
    #[serde(serialize_with = "as_size")]
    pub max_size: u64,
    /// Closed files are kept so long.
    #[serde(serialize_with = "as_duration")]
    pub max_age: Duration,
    /// And so many.
    pub max_files: u32,
}

impl Agent {
    /// The defaults: all addresses with TLS, this machine alone without.
    pub fn new(plaintext: bool) -> Agent {
        let (scheme, host) = if plaintext { ("http", "127.0.0.1") } else { ("https", "0.0.0.0") };
        Agent {
            health_listen: format!("{scheme}://{host}:2383"),
            api_listen: format!("{scheme}://{host}:2382"),
            state_dir: "/var/lib/quorate".to_owned(),
            etcd_binary: None,
            etcd_version: None,
            etcd_user: None,
            etcd_password_file: None,
            ready_timeout: Duration::from_secs(5),
            metrics: Metrics::Closed,
            logs: usual_logs(),
        }
    }
}

/// How logs are kept where nothing is said.
pub(super) fn usual_logs() -> Logs {
    Logs { max_size: 64 * MIB, max_age: Duration::from_secs(14 * 24 * 3600), max_files: 10 }
}

pub(super) fn as_duration<S: Serializer>(span: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&duration_text(*span))
}

fn as_size<S: Serializer>(bytes: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&size_text(*bytes))
}

pub(super) fn as_maybe_size<S: Serializer>(bytes: &Option<u64>, serializer: S) -> Result<S::Ok, S::Error> {
    match bytes {
        Some(bytes) => as_size(bytes, serializer),
        None => serializer.serialize_none(),
    }
}

pub(super) fn as_map<S: Serializer>(settings: &[Setting], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(settings.iter().map(|setting| (&setting.key, &setting.value)))
}
