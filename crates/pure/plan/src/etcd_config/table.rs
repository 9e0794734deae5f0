//! The capability table: which keys etcd's own config file has, in which minor version, and what stands behind them.
//!
//! Taken from the releases themselves: 3.4.23, 3.5.16, 3.5.30, 3.6.14 and 3.7.1.

use super::Minor;
use super::Minor::{V3_4, V3_5, V3_6, V3_7};

/// What stands behind a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    Flag,
    Number,
    Text,
    /// A time span; etcd's file wants it in nanoseconds.
    Span,
    /// A list of texts.
    List,
    /// Texts with commas between them.
    Commas,
}

/// A key, its first and last version, and its form.
pub(super) type Row = (&'static str, Minor, Minor, Form);

pub(super) const ROWS: &[Row] = &[
    ("auth-token", V3_4, V3_7, Form::Text),
    ("auth-token-ttl", V3_4, V3_7, Form::Number),
    ("auto-compaction-mode", V3_4, V3_7, Form::Text),
    ("auto-compaction-retention", V3_4, V3_7, Form::Text),
    ("backend-batch-interval", V3_4, V3_7, Form::Span),
    ("backend-batch-limit", V3_4, V3_7, Form::Number),
    ("backend-bbolt-freelist-type", V3_5, V3_7, Form::Text),
    ("bcrypt-cost", V3_4, V3_7, Form::Number),
    ("bootstrap-defrag-threshold-megabytes", V3_6, V3_7, Form::Number),
    ("cipher-suites", V3_4, V3_7, Form::List),
    ("compact-hash-check-time", V3_6, V3_7, Form::Span),
    ("compaction-batch-limit", V3_6, V3_7, Form::Number),
    ("compaction-sleep-interval", V3_6, V3_7, Form::Span),
    ("corrupt-check-time", V3_6, V3_7, Form::Span),
    ("cors", V3_4, V3_7, Form::Commas),
    ("debug", V3_4, V3_4, Form::Flag),
    ("distributed-tracing-address", V3_6, V3_7, Form::Text),
    ("distributed-tracing-instance-id", V3_6, V3_7, Form::Text),
    ("distributed-tracing-sampling-rate", V3_6, V3_7, Form::Number),
    ("distributed-tracing-service-name", V3_6, V3_7, Form::Text),
    ("downgrade-check-time", V3_6, V3_7, Form::Span),
    ("election-timeout", V3_4, V3_7, Form::Number),
    ("enable-distributed-tracing", V3_6, V3_7, Form::Flag),
    ("enable-grpc-gateway", V3_4, V3_7, Form::Flag),
    ("enable-pprof", V3_4, V3_7, Form::Flag),
    ("enable-v2", V3_4, V3_5, Form::Flag),
    ("experimental-backend-bbolt-freelist-type", V3_4, V3_4, Form::Text),
    ("experimental-bootstrap-defrag-threshold-megabytes", V3_5, V3_6, Form::Number),
    ("experimental-compact-hash-check-enabled", V3_5, V3_6, Form::Flag),
    ("experimental-compact-hash-check-time", V3_5, V3_6, Form::Span),
    ("experimental-compaction-batch-limit", V3_4, V3_6, Form::Number),
    ("experimental-compaction-sleep-interval", V3_5, V3_6, Form::Span),
    ("experimental-corrupt-check-time", V3_4, V3_6, Form::Span),
    ("experimental-distributed-tracing-address", V3_5, V3_6, Form::Text),
    ("experimental-distributed-tracing-instance-id", V3_5, V3_6, Form::Text),
    ("experimental-distributed-tracing-sampling-rate", V3_5, V3_6, Form::Number),
    ("experimental-distributed-tracing-service-name", V3_5, V3_6, Form::Text),
    ("experimental-downgrade-check-time", V3_5, V3_6, Form::Span),
    ("experimental-enable-distributed-tracing", V3_5, V3_6, Form::Flag),
    ("experimental-enable-lease-checkpoint", V3_4, V3_6, Form::Flag),
    ("experimental-enable-lease-checkpoint-persist", V3_4, V3_6, Form::Flag),
    ("experimental-enable-v2v3", V3_4, V3_5, Form::Text),
    ("experimental-initial-corrupt-check", V3_4, V3_6, Form::Flag),
    ("experimental-memory-mlock", V3_5, V3_6, Form::Flag),
    ("experimental-snapshot-catch-up-entries", V3_5, V3_6, Form::Number),
    ("experimental-stop-grpc-service-on-defrag", V3_5, V3_6, Form::Flag),
    ("experimental-txn-mode-write-with-shared-buffer", V3_5, V3_6, Form::Flag),
    ("experimental-warning-apply-duration", V3_4, V3_6, Form::Span),
    ("experimental-warning-unary-request-duration", V3_6, V3_6, Form::Span),
    ("experimental-watch-progress-notify-interval", V3_4, V3_6, Form::Span),
    ("feature-gates", V3_6, V3_7, Form::Commas),
    ("grpc-keepalive-interval", V3_4, V3_7, Form::Span),
    ("grpc-keepalive-min-time", V3_4, V3_7, Form::Span),
    ("grpc-keepalive-timeout", V3_4, V3_7, Form::Span),
    ("heartbeat-interval", V3_4, V3_7, Form::Number),
    ("host-whitelist", V3_4, V3_7, Form::Commas),
    ("initial-election-tick-advance", V3_4, V3_7, Form::Flag),
    ("listen-metrics-urls", V3_4, V3_7, Form::Commas),
    ("log-level", V3_4, V3_7, Form::Text),
    ("max-concurrent-streams", V3_4, V3_7, Form::Number),
    ("max-learners", V3_6, V3_7, Form::Number),
    ("max-request-bytes", V3_4, V3_7, Form::Number),
    ("max-snapshots", V3_4, V3_7, Form::Number),
    ("max-txn-ops", V3_4, V3_7, Form::Number),
    ("max-wals", V3_4, V3_7, Form::Number),
    ("memory-mlock", V3_6, V3_7, Form::Flag),
    ("metrics", V3_4, V3_7, Form::Text),
    ("pre-vote", V3_4, V3_7, Form::Flag),
    ("quota-backend-bytes", V3_4, V3_7, Form::Number),
    ("snapshot-catchup-entries", V3_6, V3_7, Form::Number),
    ("snapshot-count", V3_4, V3_7, Form::Number),
    ("socket-reuse-address", V3_5, V3_7, Form::Flag),
    ("socket-reuse-port", V3_5, V3_7, Form::Flag),
    ("tls-max-version", V3_4, V3_7, Form::Text),
    ("tls-min-version", V3_4, V3_7, Form::Text),
    ("v2-deprecation", V3_5, V3_7, Form::Text),
    ("warning-apply-duration", V3_6, V3_7, Form::Span),
    ("warning-unary-request-duration", V3_6, V3_7, Form::Span),
    ("watch-progress-notify-interval", V3_6, V3_7, Form::Span),
];

/// Keys with two names, the older one first. Others differ by `experimental-` alone.
pub(super) const RENAMED: &[(&str, &str)] = &[("experimental-snapshot-catch-up-entries", "snapshot-catchup-entries")];

/// Flags whose key in etcd's file is spelt another way.
pub(super) const SPELT: &[(&str, &str)] =
    &[("experimental-snapshot-catchup-entries", "experimental-snapshot-catch-up-entries")];

/// Flags that stand in etcd's file one level down, under `socket-options`.
pub(super) const SOCKET: &[(&str, &str)] =
    &[("socket-reuse-address", "reuse-address"), ("socket-reuse-port", "reuse-port")];

/// Flags that became feature gates in 3.6.
pub(super) const GATES: &[(&str, &str)] = &[
    ("experimental-compact-hash-check-enabled", "CompactHashCheck"),
    ("experimental-enable-lease-checkpoint", "LeaseCheckpoint"),
    ("experimental-enable-lease-checkpoint-persist", "LeaseCheckpointPersist"),
    ("experimental-initial-corrupt-check", "InitialCorruptCheck"),
    ("experimental-stop-grpc-service-on-defrag", "StopGRPCServiceOnDefrag"),
    ("experimental-txn-mode-write-with-shared-buffer", "TxnModeWriteWithSharedBuffer"),
];

const MEMBERS: &str = "it belongs to `members`: Quorate sets it for each member";
const FOUNDING: &str = "Quorate founds and joins clusters itself, from `members`, `token` and `bootstrap`";
const TLS: &str = "certificates belong to `tls`: Quorate sets it from there";
const LOGS: &str = "Quorate keeps etcd's logs; see `agent.logs`, and `log-level` here";

const PROXY: &str = "Quorate runs members, and no proxies of the old API";
const FLAG_ALONE: &str = "etcd takes it from its command line alone, and Quorate starts it with a file";

/// Keys that are not the operator's to set here, and where they belong.
pub(super) const OURS: &[(&str, &str)] = &[
    ("name", MEMBERS),
    ("data-dir", MEMBERS),
    ("wal-dir", MEMBERS),
    ("listen-peer-urls", MEMBERS),
    ("listen-client-urls", MEMBERS),
    ("listen-client-http-urls", MEMBERS),
    ("advertise-client-urls", MEMBERS),
    ("initial-advertise-peer-urls", MEMBERS),
    ("initial-cluster", FOUNDING),
    ("initial-cluster-state", FOUNDING),
    ("initial-cluster-token", FOUNDING),
    ("discovery", FOUNDING),
    ("discovery-config", FOUNDING),
    ("discovery-fallback", FOUNDING),
    ("discovery-proxy", FOUNDING),
    ("discovery-srv", FOUNDING),
    ("discovery-srv-name", FOUNDING),
    ("discovery-cacert", FOUNDING),
    ("discovery-cert", FOUNDING),
    ("discovery-dial-timeout", FOUNDING),
    ("discovery-endpoints", FOUNDING),
    ("discovery-insecure-skip-tls-verify", FOUNDING),
    ("discovery-insecure-transport", FOUNDING),
    ("discovery-keepalive-time", FOUNDING),
    ("discovery-keepalive-timeout", FOUNDING),
    ("discovery-key", FOUNDING),
    ("discovery-password", FOUNDING),
    ("discovery-request-timeout", FOUNDING),
    ("discovery-token", FOUNDING),
    ("discovery-user", FOUNDING),
    ("next-cluster-version-compatible", "Quorate starts no etcd on data of a later version"),
    ("proxy", PROXY),
    ("proxy-dial-timeout", PROXY),
    ("proxy-failure-wait", PROXY),
    ("proxy-read-timeout", PROXY),
    ("proxy-refresh-interval", PROXY),
    ("proxy-write-timeout", PROXY),
    ("raft-read-timeout", FLAG_ALONE),
    ("raft-write-timeout", FLAG_ALONE),
    ("version", "it is a question, and no setting"),
    ("strict-reconfig-check", "it is always on: without it a change could cost the quorum"),
    ("force-new-cluster", "it throws members away; `quorate data restore` keeps what there is"),
    ("unsafe-no-fsync", "without it etcd loses what it acknowledged; no cluster of Quorate runs so"),
    ("client-transport-security", TLS),
    ("peer-transport-security", TLS),
    ("cert-file", TLS),
    ("key-file", TLS),
    ("trusted-ca-file", TLS),
    ("client-cert-auth", TLS),
    ("client-cert-allowed-hostname", TLS),
    ("client-cert-file", TLS),
    ("client-crl-file", TLS),
    ("client-key-file", TLS),
    ("peer-client-cert-file", TLS),
    ("peer-client-key-file", TLS),
    ("peer-crl-file", TLS),
    ("peer-skip-client-san-verification", TLS),
    ("auto-tls", TLS),
    ("peer-auto-tls", TLS),
    ("peer-cert-file", TLS),
    ("peer-key-file", TLS),
    ("peer-trusted-ca-file", TLS),
    ("peer-client-cert-auth", TLS),
    ("peer-cert-allowed-cn", TLS),
    ("peer-cert-allowed-hostname", TLS),
    ("experimental-peer-skip-client-san-verification", TLS),
    ("self-signed-cert-validity", TLS),
    ("logger", LOGS),
    ("log-format", LOGS),
    ("log-output", LOGS),
    ("log-outputs", LOGS),
    ("log-package-levels", LOGS),
    ("enable-log-rotation", LOGS),
    ("log-rotation-config-json", LOGS),
    ("config-file", "Quorate writes that file, from this one"),
];
