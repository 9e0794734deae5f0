//! What an agent knows, in the words of its log, its pages and `quorate status`.
//!
//! **Rule:** one document for all of them; whoever shows it adds nothing.

use quorate_faults::{Code, Fault};
use serde::{Deserialize, Serialize};

use super::data::in_words;
use crate::pg::{PartStatus, PgStatus};
use crate::proxy::ProxyNow;

/// The document.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The member's name.
    pub name: String,
    /// The cluster's token.
    pub token: String,
    /// What the agent is doing, in one word; `none`: no agent runs.
    pub phase: String,
    /// Why.
    pub cause: String,
    /// Since when, in ms since 1970; 0: not known.
    pub since_ms: u64,
    /// The page that says more, where something is wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// What to do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub way_out: Option<String>,
    /// What would be lost by going on, where something would.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost: Option<String>,
    /// When etcd is started again, in ms since 1970, while that is waited for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_try_ms: Option<u64>,
    /// How long ago a read that a quorum confirms last succeeded through this member, in ms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_age_ms: Option<u64>,
    /// How far the ledger says that this node has come.
    pub ledger: String,
    /// The cluster that it is in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_id: Option<String>,
    /// Which member it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub member_id: Option<String>,
    /// etcd, while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etcd: Option<EtcdNow>,
    /// How it last ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_end: Option<String>,
    /// How often it was started again since the agent runs.
    #[serde(default)]
    pub restarts: u64,
    /// How its data was last checked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checked: Option<CheckedNow>,
    /// What was renamed, repaired or restored since the agent runs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub done: Vec<String>,
    /// Backups, where the cluster file declares them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backup: Option<BackupNow>,
    /// What runs beside etcd, where the cluster file declares it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub processes: Vec<ProcessNow>,
    /// The node of a group of PostgreSQL servers, where the cluster file declares it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub postgres: Option<PgStatus>,
    /// What an operator should look at.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<Notice>,
    /// The whole cluster, as this member last saw it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<ClusterNow>,
    /// The certificates of the node, where the whole cluster is asked.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub certificates: Vec<CertificateNow>,
    /// What a client carries, and to whom.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<ProxyNow>,
    /// The agent, while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<AgentNow>,
}

/// A certificate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CertificateNow {
    /// What it is for: `peer`, `client`, `agent`, `admin`, or an authority.
    pub which: String,
    /// When it ends, in ms since 1970.
    pub ends_ms: u64,
}

/// The whole cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterNow {
    /// When a quorum last confirmed the list of members, in ms since 1970; 0: not since the agent runs.
    pub seen_ms: u64,
    /// When every member was last polled, in ms since 1970.
    #[serde(default)]
    pub polled_ms: u64,
    /// How long ago that was when this document was made, in ms, by a clock that cannot be set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub age_ms: Option<u64>,
    /// Its members.
    pub members: Vec<MemberNow>,
}

/// A member of a cluster, as another one sees it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberNow {
    /// Its id.
    pub id: String,
    /// Its name; empty while it never started.
    pub name: String,
    /// `leader`, `voter` or `learner`.
    pub role: String,
    /// Whether it answered when it was last polled.
    pub answers: bool,
    /// Whether it answered and sees a leader.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub takes_part: Option<bool>,
    /// Its raft term.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub term: Option<u64>,
    /// How long ago it last answered, in ms, where it does not now and has before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub silent_ms: Option<u64>,
    /// Why not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Its version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Its newest revision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<u64>,
    /// Raft entries that it is behind the furthest member.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lag: Option<u64>,
    /// Bytes of its database.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub db_bytes: Option<u64>,
}

/// etcd, while it runs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct EtcdNow {
    /// Its process.
    pub pid: u32,
    /// Its version, where it has been asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// When it was started, in ms since 1970.
    pub started_ms: u64,
    /// Whether it was running before this agent.
    pub adopted: bool,
    /// Whether its settings are those of the cluster file.
    pub settings_current: bool,
    /// The level of the box that it was started in.
    #[serde(default, rename = "box", skip_serializing_if = "Option::is_none")]
    pub level: Option<String>,
    /// Its newest revision, as last heard.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<u64>,
    /// Bytes of its database.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub db_bytes: Option<u64>,
    /// Bytes of it in use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub db_used_bytes: Option<u64>,
    /// Bytes that it may have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota_bytes: Option<u64>,
}

/// A process beside etcd.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ProcessNow {
    /// What it is called.
    pub name: String,
    /// `waiting`, `starting`, `running` (and not ready), `ready`, `stopping`, `stopped`, `finished` or `refused`.
    pub state: String,
    /// Whether it runs and is well.
    pub ready: bool,
    /// Since when, in ms since 1970.
    pub since_ms: u64,
    /// Why, where it is not ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// The page that says more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// Its process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// When it was started, in ms since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_ms: Option<u64>,
    /// The level of the box that it was started in.
    #[serde(default, rename = "box", skip_serializing_if = "Option::is_none")]
    pub level: Option<String>,
    /// How it last ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_end: Option<String>,
    /// How often it was started again since the agent runs.
    #[serde(default)]
    pub restarts: u64,
}

impl ProcessNow {
    /// A program of a node of PostgreSQL.
    pub(super) fn of_part(part: &PartStatus) -> ProcessNow {
        let state = match (part.ready, part.pid) {
            (true, _) => "ready",
            (false, Some(_)) => "running",
            (false, None) => "stopped",
        };
        ProcessNow {
            name: part.name.clone(),
            state: state.to_owned(),
            ready: part.ready,
            since_ms: part.started_ms.unwrap_or_default(),
            pid: part.pid,
            started_ms: part.started_ms,
            ..ProcessNow::default()
        }
    }
}

/// How data was checked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CheckedNow {
    /// How much of it.
    pub mode: String,
    /// Why so much.
    pub why: String,
    /// What came of it.
    pub verdict: String,
    /// How long it took.
    pub took_ms: u64,
}

/// Backups.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BackupNow {
    /// The store.
    pub store: String,
    /// `following`, or why not.
    pub state: String,
    /// Everything up to here is in the store.
    pub stored_revision: u64,
    /// History that would be lost if all but the store were lost now.
    pub lag_seconds: f64,
}

impl BackupNow {
    /// Whether this agent can say how far backups are: it follows, or has followed, the cluster itself.
    pub fn knows_how_far(&self) -> bool {
        self.state == "following" || self.stored_revision > 0
    }
}

/// Something to look at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Notice {
    /// The page that says more.
    pub code: String,
    /// In a line.
    pub text: String,
    /// What to do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub way_out: Option<String>,
}

impl Notice {
    /// With its page.
    pub fn new(code: Code, text: impl Into<String>) -> Notice {
        Notice { code: code.as_str().to_owned(), text: text.into(), way_out: None }
    }

    /// A fault, with its hint.
    pub fn of(fault: &Fault) -> Notice {
        let notice = Notice::new(fault.code(), in_words(fault));
        Notice { way_out: fault.hint_text().map(str::to_owned), ..notice }
    }

    /// The same, with what to do about it.
    #[must_use]
    pub fn way_out(self, way_out: impl Into<String>) -> Notice {
        Notice { way_out: Some(way_out.into()), ..self }
    }

    /// Whether the cluster is not as it should be because of it, in one word for alerts: it serves, and something that it needs
    /// tomorrow is missing. `None`: worth a look, and no more.
    pub fn degrades(&self) -> Option<&'static str> {
        DEGRADED.iter().find(|(code, _)| code.as_str() == self.code).map(|(_, reason)| *reason)
    }
}

/// The warnings that make a cluster degraded, and the label `reason` of `quorate_degraded`.
pub const DEGRADED: &[(Code, &str)] = &[
    (Code::QuorumLost, "quorum_lost"),
    (Code::SplitBrain, "two_clusters"),
    (Code::GenerationsFork, "two_recoveries"),
    (Code::RolledBackRuns, "data_put_back"),
    (Code::HashesDiffer, "data_differs"),
    (Code::CorruptAlarm, "data_corrupt"),
    (Code::NoSpace, "no_space"),
    (Code::BackupsStopped, "backups_stopped"),
    (Code::RenewalFailed, "certificates_not_renewed"),
    (Code::NobodyRenews, "nobody_renews_certificates"),
    (Code::CertificateEnding, "certificates_end"),
    (Code::CertificateExpired, "certificates_ended"),
    (Code::OtherMembers, "members_unbalanced"),
    (Code::LearnerStuck, "learner_stuck"),
];

/// The agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentNow {
    /// Its process.
    pub pid: u32,
    /// Its version.
    pub version: String,
    /// When it was started, in ms since 1970.
    pub started_ms: u64,
}
