//! Every key of the cluster file: what stands behind it, and what it is for. The schema and the list of defaults are made of it.
//!
//! **Invariant:** the reader asks for exactly these keys; a test compares the two.

/// A key.
pub(super) struct Key {
    pub(super) name: &'static str,
    pub(super) form: Form,
    pub(super) about: &'static str,
}

/// What stands behind a key.
pub(super) enum Form {
    /// Text that is not empty.
    Text,
    /// Text that may be empty.
    AnyText,
    /// An absolute path.
    Path,
    /// A URL with a port.
    Url,
    /// Several of those, or one.
    Urls,
    /// Several texts, or one.
    Texts,
    Flag,
    Number(u64, u64),
    Span,
    Size,
    Words(&'static [&'static str]),
    /// More keys, and those without which nothing works.
    Map(&'static [Key], &'static [&'static str]),
    /// A list of those.
    List(&'static [Key], &'static [&'static str]),
    /// etcd's own settings.
    Etcd,
}

use Form::{AnyText, Etcd, Flag, List, Map, Number, Path, Size, Span, Text, Texts, Url, Urls, Words};

const fn key(name: &'static str, form: Form, about: &'static str) -> Key {
    Key { name, form, about }
}

pub(super) const FILE: &[Key] = &[
    key("token", Text, "The cluster's name: letters, digits, `-`, `_` and `.`; etcd's token is made of it"),
    key(
        "bootstrap",
        Map(&[key("id", Number(1, u32::MAX as u64), "The declaration's number; one that was used is inert")], &["id"]),
        "Declares the founding of the cluster",
    ),
    key("source", Map(SOURCE, &["uri", "size"]), "Where the addresses of the members come from, if not from this file"),
    key("members", List(MEMBER, &["name"]), "Who belongs to the cluster"),
    key("plaintext", Flag, "`true`: nothing is encrypted, and whoever can connect may read and write everything"),
    key("tls", Map(TLS, &[]), "The certificates of mutual TLS"),
    key("etcd", Etcd, "etcd's own settings, under its own names"),
    key("backup", Map(BACKUP, &["store"]), "Where backups go"),
    key("auth", Map(AUTH, &[]), "Users and roles of etcd"),
    key("maintenance", Map(MAINTENANCE, &[]), "How data is checked, kept small and stopped"),
    key("agent", Map(AGENT, &[]), "The agent of each node"),
];

const SOURCE: &[Key] = &[
    key("uri", Text, "As `--source` takes it, such as `dns-srv:example.com`"),
    key("size", Number(1, 99), "How many members it names when it is complete"),
    key("trusted-ca-file", Path, "Who signed the server's certificate"),
    key("cert-file", Path, "Our certificate there"),
    key("key-file", Path, "Its key"),
    key("token-file", Path, "The file with a token"),
    key("user-file", Path, "The file with `user:password`"),
];

const MEMBER: &[Key] = &[
    key("name", Text, "The member's name"),
    key("address", Text, "Its host: peers at port 2380, clients at 2379"),
    key("peer-urls", Urls, "Where other members reach it, instead of `address`"),
    key("client-urls", Urls, "Where clients reach it, instead of `address`"),
    key("listen-peer-urls", Urls, "Where it listens for members; by default its peer URLs"),
    key("listen-client-urls", Urls, "Where it listens for clients; by default its client URLs"),
    key("data-dir", Path, "Its data dir; by default `/var/lib/etcd`. `{name}` stands for the member's name"),
    key("wal-dir", Path, "The dir of its WAL, if that is a separate one"),
    key(
        "agent-url",
        Url,
        "Where other agents reach its agent; by default the host of its peer URL, where the agent listens",
    ),
    key("listen-agent-url", Url, "Where its agent listens for agents and operators; by default `agent.api-listen`"),
    key("listen-health-url", Url, "Where its agent serves health and metrics; by default `agent.health-listen`"),
];

const FILES: &[Key] = &[
    key("cert-file", Path, "The certificate"),
    key("key-file", Path, "Its private key"),
    key("trusted-ca-file", Path, "The CAs that others' certificates must come from"),
];

const ALL_FILES: &[&str] = &["cert-file", "key-file", "trusted-ca-file"];

const TLS: &[Key] = &[
    key("dir", Path, "The folder that `quorate ca` fills; stands for all files below"),
    key("peer", Map(FILES, ALL_FILES), "Between members"),
    key("client", Map(FILES, ALL_FILES), "Towards clients"),
    key("agent", Map(FILES, ALL_FILES), "Between agents; by default as between members"),
    key("admin", Map(FILES, ALL_FILES), "What our agent shows etcd; by default the files of `client`"),
    key(
        "peer-allowed-hostname",
        Text,
        "The name that a peer's certificate must hold; with `dir` the one that `quorate ca` writes, where etcd knows such names",
    ),
];

const BACKUP: &[Key] = &[
    key("store", Text, "The store's URL, such as `s3://bucket/prefix`; credentials come from the agent's environment"),
    key("layout", Words(&["quorate", "gardener"]), "How objects are named and written"),
    key("delta-period", Span, "How often what was written since is stored"),
    key("delta-size", Size, "How large a delta may grow before it is stored early"),
    key("full-schedule", Text, "When full backups are taken: five fields of cron, or `every 6h`"),
    key("spool-max", Size, "How much may wait on local disk while the store is away"),
    key("max-restore-time", Span, "How long a restore may be estimated to take before a new full is made"),
    key("keep", Map(KEEP, &[]), "How many fulls are kept, with the deltas that belong to them"),
];

const KEEP: &[Key] = &[
    key("last", Number(0, 100_000), "The newest so many"),
    key("hourly", Number(0, 100_000), "One for each of so many hours"),
    key("daily", Number(0, 100_000), "One for each of so many days"),
    key("weekly", Number(0, 100_000), "One for each of so many weeks"),
    key("monthly", Number(0, 100_000), "One for each of so many months"),
    key("history", Span, "Any time within it stays restorable"),
];

const AUTH: &[Key] = &[
    key("enabled", Flag, "Whether etcd asks who somebody is; by default `true`"),
    key("prune", Flag, "Whether users and roles that are not declared are removed; by default `false`"),
    key(
        "agent-user",
        Text,
        "As whom the agent asks etcd: a login, or the common name in the certificate of `tls.admin`",
    ),
    key("roles", List(ROLE, &["name"]), "What may be done"),
    key("users", List(USER, &["name"]), "Who may do it"),
];

const ROLE: &[Key] = &[
    key("name", Text, "The role's name"),
    key("permissions", List(PERMISSION, &[]), "What it permits, and nothing else"),
];

const PERMISSION: &[Key] = &[
    key("key", Text, "One key"),
    key("prefix", AnyText, "All keys that begin so; empty: all there are"),
    key("range", Map(RANGE, &["from"]), "All keys from one on"),
    key("access", Words(&["read", "write", "readwrite"]), "What may be done with them; by default `read`"),
];

const RANGE: &[Key] = &[
    key("from", Text, "The first key"),
    key("to", Text, "The first key that is not meant; without it: to the last there is"),
];

const USER: &[Key] = &[
    key("name", Text, "The name: that of a login, or the common name of a certificate"),
    key("password-file", Path, "The file with the password; without one a certificate is the only way in"),
    key("roles", Texts, "What the user may do, and nothing else"),
];

const MAINTENANCE: &[Key] = &[
    key("validation", Words(&["auto", "sanity", "full"]), "How much of the data is checked before a start"),
    key("validation-budget", Span, "How long the full check of `auto` may take"),
    key("defrag", Map(DEFRAG, &[]), "When the database is defragmented: both limits must be passed"),
    key("stop", Map(STOP, &[]), "How etcd is stopped"),
];

const DEFRAG: &[Key] = &[
    key("free-percent", Number(0, 99), "Free pages as a share of the file, in percent; 0 never defragments"),
    key("free-min", Size, "Free bytes in the file"),
];

const STOP: &[Key] = &[
    key("move-leader-timeout", Span, "For leadership to move to another member"),
    key("term-timeout", Span, "From SIGTERM to the end"),
    key("dump-timeout", Span, "From SIGQUIT, which writes down what etcd was doing, to SIGKILL"),
];

const AGENT: &[Key] = &[
    key("health-listen", Url, "Where health and metrics are served, without client certificates"),
    key("api-listen", Url, "Where operators and other agents are answered"),
    key("state-dir", Path, "Where ledger, exit records and logs are kept, in a folder for each member"),
    key("etcd-binary", Text, "The etcd program; by default the one on the PATH"),
    key("etcd-version", Text, "The version that the program must have, such as `3.5` or `3.5.16`"),
    key("etcd-user", Text, "The user as which etcd is asked, where auth is on and certificates do not say"),
    key("etcd-password-file", Path, "The file with that user's password"),
    key("ready-timeout", Span, "How long a read through a member may take while it counts as ready"),
    key("logs", Map(LOGS, &[]), "etcd's logs"),
];

const LOGS: &[Key] = &[
    key("max-size", Size, "A file is closed at this size"),
    key("max-age", Span, "Closed files are kept so long"),
    key("max-files", Number(0, 10_000), "And so many"),
];
