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
    /// A number that may be below zero.
    Integer(i64, i64),
    /// A TCP port, or several.
    Ports,
    /// Names and texts.
    Pairs,
    Span,
    Size,
    Words(&'static [&'static str]),
    /// More keys, and those without which nothing works.
    Map(&'static [Key], &'static [&'static str]),
    /// A list of those.
    List(&'static [Key], &'static [&'static str]),
    /// Names, and the same keys behind each.
    Named(&'static [Key], &'static [&'static str]),
    /// Some of these words.
    SomeWords(&'static [&'static str]),
    /// The level of a box.
    Level,
    /// One of these words, or more keys.
    WordsOrMap(&'static [&'static str], &'static [Key]),
    /// etcd's own settings.
    Etcd,
}

use Form::{
    AnyText, Etcd, Flag, Integer, List, Map, Named, Number, Pairs, Path, Ports, Size, SomeWords, Span, Text, Texts,
    Url, Urls, Words, WordsOrMap,
};

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
    key(
        "plaintext",
        Flag,
        "`true`: nothing is encrypted, and whoever can connect to etcd may read and write everything; agents are on loopback",
    ),
    key("tls", Map(TLS, &[]), "The certificates of mutual TLS"),
    key("etcd", Etcd, "etcd's own settings, under its own names"),
    key("backup", Map(BACKUP, &["store"]), "Where backups go"),
    key("auth", Map(AUTH, &[]), "Users and roles of etcd"),
    key("maintenance", Map(MAINTENANCE, &[]), "How data is checked, kept small and stopped"),
    key("agent", Map(AGENT, &[]), "The agent of each node"),
    key("box", Map(BOX, &[]), "How etcd is held"),
    key("processes", Named(PROCESS, &["executable"]), "What the agent keeps beside etcd, by name"),
    key("postgres", Map(POSTGRES, &[]), "A group of PostgreSQL servers on the members"),
];

/// Beside etcd's own settings: an etcd that others run.
pub(super) const EXTERNAL: &[Key] = &[
    key("mode", Words(&["internal", "external"]), "Whose etcd it is; `external`: others run it; by default `internal`"),
    key("endpoints", Urls, "Where an external etcd is"),
    key("namespace", Text, "What our keys in an external etcd begin with; by default `quorate/`"),
    key("tls", Map(EXTERNAL_TLS, &["trusted-ca-file"]), "How an external etcd is known"),
];

const EXTERNAL_TLS: &[Key] = &[
    key("trusted-ca-file", Path, "Who signed its certificate"),
    key("cert-file", Path, "What is shown to it, where it asks for that"),
    key("key-file", Path, "The key to that"),
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
    key(
        "operators",
        Path,
        "The operators' authority, whose certificates sign cluster files; with `dir` its `operators.crt`",
    ),
    key(
        "renewal",
        Words(&["agents", "by-hand"]),
        "Who renews certificates in `dir`; `by-hand`: no node holds the issuing keys, on purpose",
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
    key("take-over", Text, "The id of another cluster whose backups this one continues; without it they are refused"),
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
    key("join-timeout", Span, "How long a new member may take to come up before it is taken out again"),
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
    key("health-listen", Url, "Where health is told to anyone, and metrics to whom `metrics` names"),
    key("api-listen", Url, "Where operators and other agents are answered"),
    key("state-dir", Path, "Where ledger, exit records and logs are kept, in a folder for each member"),
    key("etcd-binary", Text, "The etcd program; by default the one on the PATH"),
    key("etcd-version", Text, "The version that the program must have, such as `3.5` or `3.5.16`"),
    key("etcd-user", Text, "The user as which etcd is asked, where auth is on and certificates do not say"),
    key("etcd-password-file", Path, "The file with that user's password"),
    key(
        "metrics",
        Words(&["closed", "open"]),
        "Who may read metrics: `closed` is this machine and who has a client certificate, `open` anyone; by default `closed`",
    ),
    key("ready-timeout", Span, "How long a read through a member may take while it counts as ready"),
    key("logs", Map(LOGS, &[]), "etcd's logs"),
];

const LOGS: &[Key] = &[
    key("max-size", Size, "A file is closed at this size"),
    key("max-age", Span, "Closed files are kept so long"),
    key("max-files", Number(0, 10_000), "And so many, the one that is being written among them"),
];

const LEVELS: Form = Form::Level;
const CALLS: Form = Words(&["enforce", "audit"]);
const OWN_CALLS: Form = WordsOrMap(
    &["enforce", "audit"],
    &[
        key("mode", CALLS, "Whether other calls are denied or only logged; by default `enforce`"),
        key("list", Words(&["etcd", "default"]), "The list that it begins with; by default `default`"),
        key("allow", Texts, "Calls besides"),
        key("deny", Texts, "Calls of the list that are not allowed"),
    ],
);
const HOLES: Form = SomeWords(&["all-files", "all-syscalls", "all-ports", "executable-data"]);

const BOX: &[Key] = &[
    key("level", LEVELS, "How much of a box there is; by default `strict` where the agent runs as root, else `basic`"),
    key("user", Text, "Whom etcd runs as, where the agent runs as root; by default `etcd` if there is one"),
    key("limits", Map(LIMITS, &[]), "How much etcd may use"),
    key("connect", Ports, "TCP ports that it may connect to besides those of the members"),
    key("syscalls", CALLS, "Whether system calls that are on no list are denied or only logged"),
    key("unsafe", HOLES, "Holes of the box, by name"),
];

const LIMITS: &[Key] = &[
    key("memory", Size, "Memory of all its processes"),
    key("pids", Number(1, u32::MAX as u64), "Processes and threads"),
    key("cpu", Number(1, 1_000_000), "Hundredths of one processor: 150 is one and a half"),
    key("open-files", Number(1, u32::MAX as u64), "Open files of each process"),
    key("oom-score", Integer(-1000, 1000), "How readily the kernel ends it when memory runs out"),
];

const PROCESS: &[Key] = &[
    key("executable", Path, "The program: an executable, not a script"),
    key("args", Texts, "Its arguments; `{name}` stands for the member's name"),
    key("env", Pairs, "All of its environment; every node has this file, so secrets belong into `env-files`"),
    key("env-files", Pairs, "More of its environment: variables, and the files of this machine that hold their values"),
    key("members", Texts, "The members beside which it runs; by default all"),
    key("user", Text, "Whom it runs as, where the agent runs as root; by default `nobody` in `strict`"),
    key("box", LEVELS, "How much of a box there is; by default `strict` where the agent runs as root, else `basic`"),
    key("limits", Map(LIMITS, &[]), "How much it may use"),
    key("volumes", List(VOLUME, &["path"]), "Files and directories that it sees"),
    key("ports", Map(PORTS, &[]), "TCP ports"),
    key("capabilities", Texts, "Capabilities that it keeps, such as `NET_BIND_SERVICE`"),
    key(
        "syscalls",
        OWN_CALLS,
        "Its system calls: whether those that are on no list are denied or only logged, or a list of its own",
    ),
    key("unsafe", HOLES, "Holes of the box, by name"),
    key("hooks", Map(HOOKS, &[]), "Commands before and after, in boxes of the same kind"),
    key("after", Texts, "What must be ready before it is started: other processes, and `etcd`"),
    key("restart", Map(RESTART, &[]), "When it is started again"),
    key("health", Map(HEALTH, &[]), "How it is asked whether it is well"),
    key("stop", Map(PROCESS_STOP, &[]), "How it is stopped"),
    key("logs", Map(LOGS, &[]), "Its logs"),
];

const VOLUME: &[Key] = &[
    key("path", Path, "Where; the same inside and outside"),
    key("access", Words(&["read", "write", "execute"]), "What it may do there; by default `read`"),
    key("create", Flag, "Whether a directory that is missing is made, for its user alone"),
];

const PORTS: &[Key] =
    &[key("bind", Ports, "Where it may listen"), key("connect", Ports, "Where it may connect to, on any host")];

const HOOKS: &[Key] = &[
    key("pre-start", Texts, "A program and its arguments, run before each start; if it fails there is none"),
    key("post-start", Texts, "Run after each start; the process is ready only then"),
    key("pre-stop", Texts, "Run before each stop"),
    key("timeout", Span, "How long each may take; by default `30s`"),
];

const RESTART: &[Key] = &[
    key("when", Words(&["always", "on-failure", "never"]), "After which end; by default `always`"),
    key("first-wait", Span, "The wait after the second end in a row, doubled each time; by default `1s`"),
    key("max-wait", Span, "The longest wait; by default `1m`"),
];

const HEALTH: &[Key] = &[
    key("exec", Texts, "A program and its arguments; exit code 0 is a good answer"),
    key("tcp", Text, "`host:port` that accepts connections"),
    key("http", Text, "A plain HTTP URL that is answered with a code from 200 to 399"),
    key("every", Span, "How often; by default `10s`"),
    key("timeout", Span, "How long an answer may take; by default `5s`"),
    key("failures", Number(0, 1000), "So many bad answers in a row, and it is started anew; by default 3"),
    key("grace", Span, "For so long after its start bad answers do not count; by default `30s`"),
];

const PROCESS_STOP: &[Key] = &[
    key("term-timeout", Span, "From SIGTERM to the next step; by default `30s`"),
    key("dump-timeout", Span, "From SIGQUIT to SIGKILL; by default there is no SIGQUIT"),
];

const POSTGRES: &[Key] = &[
    key("group", Text, "What the group is called; by default the token"),
    key("role", Words(&["manager", "service"]), "What it is for; by default `manager`"),
    key("manager", Text, "The group that manages a service"),
    key(
        "nodes",
        List(PG_NODE, &["name"]),
        "The servers, in the order of their numbers; by default one beside each member",
    ),
    key("store", Words(&["etcd", "consul"]), "Where the nodes agree; by default `etcd`"),
    key("store-urls", Urls, "Where that is; by default the client URLs of the members, or Consul of this host"),
    key("store-token-file", Path, "The file with Consul's token"),
    key("bin-dir", Path, "Where `postgres` and `initdb` are; by default the newest that is installed"),
    key("pooler-binary", Path, "pgbouncer; by default `/usr/sbin/pgbouncer`"),
    key("proxy-binary", Path, "haproxy; by default `/usr/sbin/haproxy`"),
    key("user", Text, "Whom the programs run as, where the agent runs as root; by default `postgres`"),
    key("data-dir", Path, "The data dir; by default `/var/lib/quorate-pg/{name}`; `{name}` stands for the node's name"),
    key("users", List(PG_USER, &["name", "password-file"]), "Who may come in"),
    key("extensions", Texts, "Extensions of the database"),
    key("settings", Pairs, "Settings of the server, under its own names"),
    key(
        "limits",
        Map(LIMITS, &[]),
        "How much the server may use; processes by default as many as its settings let it have",
    ),
    key("unsafe", HOLES, "Holes of the server's box, by name"),
    key("writers", Words(&["one", "all"]), "Whether writes go to the write master alone; by default `one`"),
    key("lease-ttl", Span, "How long the write master keeps its place without a word; by default `3s`"),
    key("step-timeout", Span, "How long one step of the bootstrap may take; by default `1m`"),
    key("leader-timeout", Span, "After so long without progress another node leads; by default `30s`"),
    key("port", Ports, "The port of PostgreSQL; by default 7432"),
    key("pooler-port", Ports, "The port of the pooler; by default 6432"),
    key("health-port", Ports, "Where a node says whether it takes writes and reads; by default 7433"),
    key("write-port", Ports, "The proxy's port that leads to the write master; by default 5432"),
    key("read-port", Ports, "The proxy's port that leads to any node; by default 5433"),
];

const PG_NODE: &[Key] = &[
    key("name", Text, "The member that it runs beside, or the name of a host without etcd"),
    key("address", Text, "Its host; by default that of the member's client URL"),
    key("data-dir", Path, "Its data dir"),
    key("port", Ports, "The port of PostgreSQL"),
    key("pooler-port", Ports, "The port of the pooler"),
    key("health-port", Ports, "The port of its health"),
    key("write-port", Ports, "The proxy's port for writes"),
    key("read-port", Ports, "The proxy's port for reads"),
];

const PG_USER: &[Key] = &[
    key("name", Text, "The name"),
    key("password-file", Path, "The file with the password"),
    key("kind", Words(&["app", "owner", "health"]), "What it is for; by default `app`: in through the pooler alone"),
];
