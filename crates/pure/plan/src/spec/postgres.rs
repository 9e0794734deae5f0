//! Reads `postgres` of the cluster file: a group of PostgreSQL servers, beside members of the cluster or on hosts without etcd.
//!
//! **Invariant:** every node has an address, its member's or its own, and no two servers, poolers, proxies or health endpoints of one address
//! share a port. Passwords do not stand in the file, only the paths of the files that hold them.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Serialize, Serializer};

use super::boxes::{self, BoxLimits};
use super::members::bare;
use super::places::host_of;
use super::read::{Reader, Section};
use super::sections::secret_or_path;
use super::settings::as_duration;
use super::tree::Kind;
use super::{At, Member, Security, Spec, for_member};
use crate::boxes::Escape;
use crate::roster::{check_url, quoted};

/// The number of nodes that a mesh bears: each has a link to every other.
const NODES_MAX: usize = 16;
/// A lease must outlive a renewal by the second that the fence keeps, and a lost renewal.
const LEASE_MIN: Duration = Duration::from_secs(2);

/// A group of PostgreSQL servers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct PgSpec {
    /// What the group is called.
    pub group: String,
    /// What it is for.
    pub role: PgRole,
    /// The group that manages it, where it is a service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub manager: Option<String>,
    /// The servers, in the order of their numbers.
    pub nodes: Vec<PgNode>,
    /// Where its nodes agree.
    #[serde(flatten)]
    pub store: PgStore,
    /// Where `postgres` and `initdb` are; by default the newest that is installed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bin_dir: Option<String>,
    /// pgbouncer.
    pub pooler_binary: String,
    /// haproxy.
    pub proxy_binary: String,
    /// Whom the programs run as, where the agent runs as root.
    pub user: String,
    /// Who may come in.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub users: Vec<PgUser>,
    /// Extensions of the database.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub extensions: Vec<String>,
    /// Settings of the server, under its own names.
    #[serde(skip_serializing_if = "Vec::is_empty", serialize_with = "as_pairs")]
    pub settings: Vec<(String, String)>,
    /// How much the server may use.
    #[serde(skip_serializing_if = "BoxLimits::is_none")]
    pub limits: BoxLimits,
    /// Holes of the server's box, by name.
    #[serde(rename = "unsafe", skip_serializing_if = "Vec::is_empty")]
    pub escapes: Vec<Escape>,
    /// Where writes are let in.
    pub writers: PgWriters,
    /// How long the write master keeps its place without a word.
    #[serde(serialize_with = "as_duration")]
    pub lease_ttl: Duration,
    /// How long one step may take.
    #[serde(serialize_with = "as_duration")]
    pub step_timeout: Duration,
    /// After so long without progress another node leads the bootstrap.
    #[serde(serialize_with = "as_duration")]
    pub leader_timeout: Duration,
}

/// What a group is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PgRole {
    /// It manages the others.
    Manager,
    /// It serves databases.
    Service,
}

/// Where writes are let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PgWriters {
    /// At the write master alone.
    One,
    /// At every node: the last write of a row wins.
    All,
}

/// One server, and what stands before it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct PgNode {
    /// The member that it runs beside.
    pub name: String,
    /// Its host.
    pub address: String,
    /// Its data dir.
    pub data_dir: String,
    /// The port of PostgreSQL, for other nodes.
    pub port: u16,
    /// The port of its pooler: the way in for applications.
    pub pooler_port: u16,
    /// The port on which it says whether it takes writes and reads.
    pub health_port: u16,
    /// The port of its proxy that leads to the write master.
    pub write_port: u16,
    /// The port of its proxy that leads to any node.
    pub read_port: u16,
}

/// Where the nodes agree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PgStore {
    /// Which kind.
    #[serde(rename = "store")]
    pub kind: PgStoreKind,
    /// Where it is.
    #[serde(rename = "store-urls")]
    pub urls: Vec<String>,
    /// The file with Consul's token.
    #[serde(rename = "store-token-file", skip_serializing_if = "Option::is_none")]
    pub token_file: Option<String>,
}

/// The kinds of stores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PgStoreKind {
    /// etcd.
    Etcd,
    /// Consul.
    Consul,
}

/// Who may come in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct PgUser {
    /// The name.
    pub name: String,
    /// The file with the password.
    pub password_file: String,
    /// What it is for.
    pub kind: PgUserKind,
}

/// What a user is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PgUserKind {
    /// Reads and writes through the pooler.
    App,
    /// Owns the database.
    Owner,
    /// Asks whether it is well.
    Health,
}

impl Spec {
    /// The host of a node of PostgreSQL that is no member, as a member that runs no etcd: for its names and its places.
    pub fn host_without_etcd(&self, name: &str) -> Option<Member> {
        let node = self.postgres.as_ref()?.node(name).filter(|_| self.member(name).is_none())?;
        let bare_ipv6 = node.address.contains(':') && !node.address.starts_with('[');
        let host = if bare_ipv6 { format!("[{}]", node.address) } else { node.address.clone() };
        let mut member = bare(name);
        member.peer_urls = vec![format!("https://{host}:2380")];
        member.client_urls = vec![format!("https://{host}:2379")];
        Some(member)
    }
}

impl PgSpec {
    /// The node with this name.
    pub fn node(&self, name: &str) -> Option<&PgNode> {
        self.nodes.iter().find(|node| node.name == name)
    }
}

fn as_pairs<S: Serializer>(pairs: &[(String, String)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(pairs.iter().map(|(name, value)| (name, value)))
}

/// Ports that hold for every node that has none of its own.
#[derive(Clone, Copy)]
struct Ports {
    server: u16,
    pooler: u16,
    health: u16,
    write: u16,
    read: u16,
}

const KEYS: [&str; 5] = ["port", "pooler-port", "health-port", "write-port", "read-port"];

pub(super) fn section(
    reader: &mut Reader<'_>,
    file: &mut Section,
    token: &str,
    members: &[Member],
    security: Option<&Security>,
) -> Option<PgSpec> {
    let mut section = file.section(reader, "postgres")?;
    let (at, before) = (section.at, reader.count());
    let usual = Ports { server: 7432, pooler: 6432, health: 7433, write: 5432, read: 5433 };
    let ports = ports(reader, &mut section, usual);
    let data_dir = path(reader, &mut section, "data-dir").unwrap_or_else(|| "/var/lib/quorate-pg/{name}".to_owned());
    let nodes = nodes(reader, &mut section, members, ports, &data_dir);
    let mut found = PgSpec {
        group: section.text(reader, "group").map_or_else(|| token.to_owned(), |(text, _)| text),
        role: PgRole::Manager,
        manager: section.text(reader, "manager").map(|(text, _)| text),
        nodes,
        store: store(reader, &mut section, members),
        bin_dir: path(reader, &mut section, "bin-dir"),
        pooler_binary: path(reader, &mut section, "pooler-binary").unwrap_or_else(|| "/usr/sbin/pgbouncer".to_owned()),
        proxy_binary: path(reader, &mut section, "proxy-binary").unwrap_or_else(|| "/usr/sbin/haproxy".to_owned()),
        user: section.text(reader, "user").map_or_else(|| "postgres".to_owned(), |(text, _)| text),
        users: users(reader, &mut section),
        extensions: texts(reader, &mut section, "extensions"),
        settings: section.pairs(reader, "settings"),
        limits: boxes::limits(reader, &mut section),
        escapes: boxes::escapes(reader, &mut section),
        writers: PgWriters::One,
        lease_ttl: Duration::from_secs(3),
        step_timeout: Duration::from_secs(60),
        leader_timeout: Duration::from_secs(30),
    };
    section.word(reader, "role", &[("manager", PgRole::Manager), ("service", PgRole::Service)], &mut found.role);
    section.word(reader, "writers", &[("one", PgWriters::One), ("all", PgWriters::All)], &mut found.writers);
    section.span(reader, "lease-ttl", &mut found.lease_ttl);
    section.span(reader, "step-timeout", &mut found.step_timeout);
    section.span(reader, "leader-timeout", &mut found.leader_timeout);
    section.close(reader);
    if reader.count() == before {
        whole(reader, at, &found, security);
    }
    Some(found)
}

fn path(reader: &mut Reader<'_>, section: &mut Section, key: &'static str) -> Option<String> {
    let (text, at) = section.text(reader, key)?;
    secret_or_path(reader, &section.below(key), &text, at);
    Some(text)
}

fn texts(reader: &mut Reader<'_>, section: &mut Section, key: &'static str) -> Vec<String> {
    section.texts(reader, key).unwrap_or_default().into_iter().map(|(text, _)| text).collect()
}

fn ports(reader: &mut Reader<'_>, section: &mut Section, usual: Ports) -> Ports {
    let mut found = usual;
    let places = [&mut found.server, &mut found.pooler, &mut found.health, &mut found.write, &mut found.read];
    for (key, place) in KEYS.into_iter().zip(places) {
        if let Some(port) = section.ports(reader, key).first() {
            *place = *port;
        }
    }
    found
}

fn nodes(
    reader: &mut Reader<'_>,
    section: &mut Section,
    members: &[Member],
    usual: Ports,
    data_dir: &str,
) -> Vec<PgNode> {
    let below = section.below("nodes");
    let node = |name: &str, address: Option<String>, data: Option<String>, ports: Ports| {
        let url = members.iter().find(|member| member.name == name).and_then(|member| member.client_urls.first());
        PgNode {
            name: name.to_owned(),
            address: address.or_else(|| url.map(|url| host_of(url).to_owned())).unwrap_or_default(),
            data_dir: for_member(&data.unwrap_or_else(|| data_dir.to_owned()), name),
            port: ports.server,
            pooler_port: ports.pooler,
            health_port: ports.health,
            write_port: ports.write,
            read_port: ports.read,
        }
    };
    let Some(list) = section.take("nodes") else {
        return members.iter().map(|member| node(&member.name, None, None, usual)).collect();
    };
    let (at, what) = (list.at, list.kind());
    let Kind::List(items) = list.kind else {
        reader.wrong(at, &below, format!("`nodes` is {what}, not a list"), Some("such as `- {name: n1}`".into()));
        return Vec::new();
    };
    let mut found: Vec<PgNode> = Vec::new();
    for (number, item) in items.into_iter().enumerate() {
        let Some(mut one) = Section::open(reader, item, &format!("{below}[{}]", number + 1)) else { continue };
        let (at, path_of) = (one.at, one.path.clone());
        let name = one.text(reader, "name");
        let address = one.text(reader, "address").map(|(text, _)| text);
        let data = path(reader, &mut one, "data-dir");
        let own = ports(reader, &mut one, usual);
        one.close(reader);
        let Some((name, name_at)) = name else {
            reader.wrong(at, &path_of, "a node has no `name`", Some("name a member of the cluster".into()));
            continue;
        };
        let beside = members.iter().any(|member| member.name == name);
        if !beside && address.is_none() {
            let hint = "name a member, or give the `address` of a host without etcd".to_owned();
            reader.wrong(
                name_at,
                &path_of,
                format!("{} is no member, and has no `address`", quoted(&name)),
                Some(hint),
            );
        } else if name.is_empty() || name.contains(['/', '{', '}']) || matches!(name.as_str(), "." | "..") {
            let hint = Some("use letters, digits, `-` and `.`".to_owned());
            reader.wrong(name_at, &path_of, format!("{} cannot be part of a path", quoted(&name)), hint);
        } else if found.iter().any(|other| other.name == name) {
            reader.wrong(name_at, &path_of, format!("{} is there twice", quoted(&name)), None);
        } else {
            found.push(node(&name, address, data, own));
        }
    }
    found
}

fn store(reader: &mut Reader<'_>, section: &mut Section, members: &[Member]) -> PgStore {
    let mut kind = PgStoreKind::Etcd;
    section.word(reader, "store", &[("etcd", PgStoreKind::Etcd), ("consul", PgStoreKind::Consul)], &mut kind);
    let below = section.below("store-urls");
    let mut urls = Vec::new();
    for (text, at) in section.texts(reader, "store-urls").unwrap_or_default() {
        if check_url(&text).is_err() {
            let hint = Some("such as `https://10.0.0.1:2379`".to_owned());
            reader.wrong(at, &below, format!("{} is no URL with a port", quoted(&text)), hint);
        }
        urls.push(text);
    }
    if urls.is_empty() {
        urls = match kind {
            PgStoreKind::Etcd => members.iter().flat_map(|member| member.client_urls.clone()).collect(),
            PgStoreKind::Consul => vec!["http://127.0.0.1:8500".to_owned()],
        };
    }
    PgStore { kind, urls, token_file: path(reader, section, "store-token-file") }
}

fn users(reader: &mut Reader<'_>, section: &mut Section) -> Vec<PgUser> {
    let below = section.below("users");
    let Some(list) = section.take("users") else { return Vec::new() };
    let (at, what) = (list.at, list.kind());
    let Kind::List(items) = list.kind else {
        reader.wrong(at, &below, format!("`users` is {what}, not a list"), None);
        return Vec::new();
    };
    let mut found: Vec<PgUser> = Vec::new();
    for (number, item) in items.into_iter().enumerate() {
        let Some(mut one) = Section::open(reader, item, &format!("{below}[{}]", number + 1)) else { continue };
        let (at, path_of) = (one.at, one.path.clone());
        let name = one.text(reader, "name").map(|(text, _)| text);
        let password_file = path(reader, &mut one, "password-file");
        let mut kind = PgUserKind::App;
        let kinds = [("app", PgUserKind::App), ("owner", PgUserKind::Owner), ("health", PgUserKind::Health)];
        one.word(reader, "kind", &kinds, &mut kind);
        one.close(reader);
        let (Some(name), Some(password_file)) = (name, password_file) else {
            reader.wrong(at, &path_of, "a user has a `name` and a `password-file`", None);
            continue;
        };
        let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        if !name.chars().all(good) || matches!(name.as_str(), "postgres" | "quorate") || name.starts_with("pg_") {
            let hint = "lower-case letters, digits and `_`; `postgres`, `quorate` and `pg_…` are taken".to_owned();
            reader.wrong(at, &path_of, format!("{} cannot be a user here", quoted(&name)), Some(hint));
        } else if found.iter().any(|user| user.name == name) {
            reader.wrong(at, &path_of, format!("{} is there twice", quoted(&name)), None);
        } else {
            found.push(PgUser { name, password_file, kind });
        }
    }
    found
}

fn whole(reader: &mut Reader<'_>, at: At, spec: &PgSpec, security: Option<&Security>) {
    let mut wrong = |what: String, hint: &str| reader.wrong(at, "postgres", what, Some(hint.to_owned()));
    if matches!(security, Some(Security::Plaintext(_))) {
        wrong("`postgres` and `plaintext` do not go together".into(), "nodes know each other by certificates: `tls`");
    }
    if spec.nodes.is_empty() {
        wrong("there are no `members`, and no `nodes`".into(), "such as `nodes: [{name: n1, address: 10.0.0.1}]`");
    }
    if spec.store.urls.is_empty() {
        wrong("there are no `members` to agree in, and no `store-urls`".into(), "name etcd's or Consul's");
    }
    if spec.nodes.len() > NODES_MAX {
        wrong(format!("{} nodes are more than {NODES_MAX}", spec.nodes.len()), "each has a link to every other");
    }
    match (spec.role, &spec.manager) {
        (PgRole::Service, None) => wrong("a service names its `manager`".into(), "such as `manager: main`"),
        (PgRole::Manager, Some(_)) => {
            wrong("a manager has no `manager`".into(), "leave it out, or write `role: service`")
        }
        (PgRole::Service, Some(_)) | (PgRole::Manager, None) => {}
    }
    if !spec.group.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_') {
        wrong(format!("{} cannot be a `group`", quoted(&spec.group)), "use letters, digits, `-` and `_`");
    }
    if spec.lease_ttl < LEASE_MIN {
        wrong("`lease-ttl` is shorter than 2s".into(), "the fence closes a second before it ends");
    }
    if spec.step_timeout.is_zero() || spec.leader_timeout.is_zero() {
        wrong("`step-timeout` and `leader-timeout` are longer than nothing".into(), "such as `30s`");
    }
    let mut taken: BTreeMap<(&str, u16), String> = BTreeMap::new();
    for node in &spec.nodes {
        let ports = [node.port, node.pooler_port, node.health_port, node.write_port, node.read_port];
        for (key, port) in KEYS.into_iter().zip(ports) {
            let what = format!("`{key}` of `{}`", node.name);
            if let Some(other) = taken.insert((node.address.as_str(), port), what.clone()) {
                wrong(format!("{other} and {what} are both {port}"), "give each a port of its own");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: &str = "token: t\ntls: {dir: /p}\nmembers: [{name: n1, address: h1}, {name: n2, address: h2}]\n";

    fn read(more: &str) -> Result<PgSpec, String> {
        let text = format!("{BASE}{more}");
        let found = Spec::parse(text.as_bytes(), "c").map_err(|mistakes| mistakes.render())?;
        Ok(found.0.postgres.unwrap())
    }

    #[test]
    fn a_few_words_declare_a_group_on_every_member() {
        let spec = read("postgres: {users: [{name: app, password-file: /s/app}]}\n").unwrap();
        assert_eq!((spec.group.as_str(), spec.role, spec.writers), ("t", PgRole::Manager, PgWriters::One));
        let n2 = spec.node("n2").unwrap();
        assert_eq!((n2.address.as_str(), n2.port, n2.pooler_port, n2.write_port), ("h2", 7432, 6432, 5432));
        assert_eq!(spec.store.urls, ["https://h1:2379", "https://h2:2379"]);
        assert_eq!(spec.users[0].kind, PgUserKind::App);
        // What says nothing about a box changes nothing.
        assert!(!serde_json::to_string(&spec).unwrap().contains("limits"));
        let own = read("postgres: {limits: {memory: 2GiB, pids: 900}, unsafe: [all-ports]}\n").unwrap();
        assert_eq!((own.limits.memory, own.limits.pids), (Some(2 << 30), Some(900)));
        assert_eq!(own.escapes, [Escape::AllPorts]);
    }

    #[test]
    fn nodes_may_be_hosts_without_etcd_with_a_store_elsewhere() {
        let spec = read("postgres: {nodes: [{name: n1}, {name: db, address: 10.0.0.9}]}\n").unwrap();
        assert_eq!(spec.node("db").unwrap().address, "10.0.0.9");
        let parse = |text: &str| Spec::parse(text.as_bytes(), "c").map_err(|mistakes| mistakes.render());
        let text = "token: t\ntls: {dir: /p}\npostgres: {store: consul, nodes: [{name: db, address: 'fd00::1'}]}\n";
        let (whole, warnings) = parse(text).unwrap();
        assert_eq!((whole.members.len(), warnings.len()), (0, 0));
        let host = whole.host_without_etcd("db").unwrap();
        assert_eq!(
            (host.name.as_str(), host.peer_urls.as_slice()),
            ("db", ["https://[fd00::1]:2380".to_owned()].as_slice())
        );
        assert_eq!(whole.host_without_etcd("n1"), None);
        for (text, said) in [
            ("postgres: {store: consul}\n", "no `members`, and no `nodes`"),
            ("postgres: {nodes: [{name: db, address: h}]}\n", "no `store-urls`"),
        ] {
            let found = parse(&format!("token: t\ntls: {{dir: /p}}\n{text}")).unwrap_err();
            assert!(found.contains(said), "{found}");
        }
    }

    #[test]
    fn what_cannot_be_is_refused_with_its_place() {
        for (more, said) in [
            ("postgres: {role: service}\n", "a service names its `manager`"),
            ("postgres: {manager: x}\n", "a manager has no `manager`"),
            ("postgres: {lease-ttl: 1s}\n", "shorter than 2s"),
            ("postgres: {nodes: [{name: n9}]}\n", "`n9` is no member, and has no `address`"),
            ("postgres: {nodes: [{name: a/b, address: h}]}\n", "cannot be part of a path"),
            ("postgres: {nodes: [{name: n1}, {name: n1}]}\n", "`n1` is there twice"),
            ("postgres: {port: 6432}\n", "are both 6432"),
            ("postgres: {users: [{name: postgres, password-file: /s}]}\n", "cannot be a user"),
            ("postgres: {users: [{name: app}]}\n", "a `name` and a `password-file`"),
            ("postgres: {store: zookeeper}\n", "is no `store`"),
            ("postgres: {ports: 1}\n", "means nothing"),
        ] {
            let found = read(more).unwrap_err();
            assert!(found.contains(said), "{more}: {found}");
        }
        let text = "token: t\nplaintext: true\nmembers: [{name: n1, address: h}]\npostgres: {port: 1}\n";
        assert!(Spec::parse(text.as_bytes(), "c").unwrap_err().render().contains("do not go together"));
    }
}
