//! Reads `box` of the cluster file: how etcd is held, and the limits that processes have too.
//!
//! **Rule:** what only a box can enforce is a mistake where there is none.

use serde::Serialize;

use super::read::{Reader, Section};
use super::settings::as_maybe_size;
use super::{Member, Spec, Value, size_text};
use crate::boxes::{DANGEROUS, DEFAULT, Escape, Level, Limits, List, MORE, Ports, Syscalls};
use crate::roster::{check_url, names, nearest, quoted};

/// The levels, as they are written.
const LEVELS: [(&str, Option<Level>); 3] =
    [("strict", Some(Level::Strict)), ("basic", Some(Level::Basic)), ("off", Some(Level::Off))];

/// Names are looked up there where an answer is too long for a datagram.
const DNS: u16 = 53;
/// Less is a unit that was forgotten.
const MEMORY_MIN: u64 = 1 << 20;
/// Where members reach each other unless something else is said.
const PEERS: u16 = 2380;

/// How etcd is held.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct BoxSection {
    /// The level; by default `strict` where the agent runs as root, else `basic`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub level: Option<Level>,
    /// Whom etcd runs as, where the agent runs as root.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// How much it may use.
    #[serde(skip_serializing_if = "BoxLimits::is_none")]
    pub limits: BoxLimits,
    /// Ports that it may connect to besides those of the members.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub connect: Vec<u16>,
    /// What becomes of system calls that are on no list.
    #[serde(skip_serializing_if = "Calls::is_usual")]
    pub syscalls: Calls,
    /// Holes, by name.
    #[serde(rename = "unsafe", skip_serializing_if = "Vec::is_empty")]
    pub escapes: Vec<Escape>,
}

/// What becomes of system calls that are on no list.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Calls {
    /// They are denied.
    #[default]
    Enforce,
    /// They are let through and logged.
    Audit,
}

/// The system calls of a declared process: a word, or a list of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallList {
    /// What becomes of calls that are not on it.
    pub mode: Calls,
    /// What it begins with.
    pub list: List,
    /// Calls besides.
    pub allow: Vec<String>,
    /// Calls of the list that are not allowed.
    pub deny: Vec<String>,
}

impl Default for CallList {
    fn default() -> CallList {
        CallList { mode: Calls::Enforce, list: List::Default, allow: Vec::new(), deny: Vec::new() }
    }
}

impl CallList {
    pub(super) fn is_usual(&self) -> bool {
        *self == CallList::default()
    }

    /// Whether it says more than a word.
    pub(super) fn is_own(&self) -> bool {
        *self != CallList { mode: self.mode, ..CallList::default() }
    }

    /// As a box takes them.
    pub fn syscalls(&self) -> Syscalls {
        Syscalls {
            list: self.list,
            audit: self.mode == Calls::Audit,
            allow: self.allow.clone(),
            deny: self.deny.clone(),
        }
    }
}

impl Serialize for CallList {
    /// A word where that says all: so it was before there were lists, and a file must keep its hash.
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeMap;
        if !self.is_own() {
            return self.mode.serialize(serializer);
        }
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("mode", &self.mode)?;
        map.serialize_entry("list", &self.list)?;
        for (key, names) in [("allow", &self.allow), ("deny", &self.deny)] {
            if !names.is_empty() {
                map.serialize_entry(key, names)?;
            }
        }
        map.end()
    }
}

/// How much a program may use.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct BoxLimits {
    /// Memory of all its processes.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "as_maybe_size")]
    pub memory: Option<u64>,
    /// Processes and threads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pids: Option<u32>,
    /// Hundredths of one processor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<u32>,
    /// Open files of each process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub open_files: Option<u64>,
    /// How readily the kernel ends it when memory runs out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oom_score: Option<i32>,
}

impl Calls {
    pub(super) const WORDS: [(&'static str, Calls); 2] = [("enforce", Calls::Enforce), ("audit", Calls::Audit)];

    pub(super) fn is_usual(&self) -> bool {
        *self == Calls::Enforce
    }
}

impl BoxLimits {
    pub(super) fn is_none(&self) -> bool {
        *self == BoxLimits::default()
    }

    /// As a box takes them.
    pub fn limits(&self) -> Limits {
        Limits {
            memory_bytes: self.memory,
            pids: self.pids,
            cpu_percent: self.cpu,
            open_files: self.open_files,
            oom_score: self.oom_score,
        }
    }
}

impl BoxSection {
    /// Whether nothing is said.
    pub fn is_default(&self) -> bool {
        *self == BoxSection::default()
    }
}

impl Spec {
    /// The ports on which a member listens, and those that it connects to: where members and their clients are. Members that
    /// listen on several ports are of one machine, and the next one will have another port: then connections are not limited.
    pub fn etcd_ports(&self, member: &Member) -> Ports {
        let either = |listen: &[String], urls: &[String]| ports_of(if listen.is_empty() { urls } else { listen });
        let mut bind = either(&member.listen_peer_urls, &member.peer_urls);
        bind.extend(either(&member.listen_client_urls, &member.client_urls));
        bind.extend(self.etcd.iter().filter(|setting| setting.key == "listen-metrics-urls").flat_map(|setting| {
            match &setting.value {
                Value::Text(text) => ports_of(&text.split(',').map(str::to_owned).collect::<Vec<_>>()),
                Value::List(urls) => ports_of(urls),
                Value::Flag(_) | Value::Number(_) => Vec::new(),
            }
        }));
        let peers = sorted(self.members.iter().flat_map(|member| ports_of(&member.peer_urls)).collect());
        // A member alone with an odd port is a trial of one machine too.
        let one = match peers.as_slice() {
            [port] => self.members.len() > 1 || *port == PEERS,
            _ => false,
        };
        let tracing = self.etcd.iter().any(|setting| setting.key.ends_with("distributed-tracing-address"));
        let clients = self.members.iter().flat_map(|member| ports_of(&member.client_urls));
        let connect = peers.iter().copied().chain(clients).chain(bind.iter().copied()).chain([DNS]);
        let connect = sorted(connect.chain(self.box_.connect.iter().copied()).collect());
        Ports { bind: sorted(bind), connect, connect_any: !one || tracing }
    }
}

fn sorted(mut ports: Vec<u16>) -> Vec<u16> {
    ports.sort_unstable();
    ports.dedup();
    ports
}

fn ports_of(urls: &[String]) -> Vec<u16> {
    let port = |url: &String| check_url(url).ok()?.place.rsplit_once(':')?.1.parse().ok();
    urls.iter().filter_map(port).collect()
}

pub(super) fn section(reader: &mut Reader<'_>, file: &mut Section) -> BoxSection {
    let mut found = BoxSection::default();
    let Some(mut section) = file.section(reader, "box") else { return found };
    let at = section.at;
    found.level = level(reader, &mut section, "level");
    found.user = section.text(reader, "user").map(|(text, _)| text);
    found.limits = limits(reader, &mut section);
    found.connect = section.ports(reader, "connect");
    section.word(reader, "syscalls", &Calls::WORDS, &mut found.syscalls);
    found.escapes = escapes(reader, &mut section);
    section.close(reader);
    let only_boxed = BoxSection { level: None, ..found.clone() };
    if found.level == Some(Level::Off) && !only_boxed.is_default() {
        no_box(reader, at, "box");
    }
    found
}

/// A level. `off` is a word to us and `false` to YAML.
pub(super) fn level(reader: &mut Reader<'_>, section: &mut Section, key: &'static str) -> Option<Level> {
    if section.takes_off(key) {
        return Some(Level::Off);
    }
    let mut found = None;
    section.word(reader, key, &LEVELS, &mut found);
    found
}

/// Something was asked for that only a box can give.
pub(super) fn no_box(reader: &mut Reader<'_>, at: super::At, path: &str) {
    let hint = "take `strict` or `basic`, or leave the rest out".to_owned();
    reader.wrong(at, path, "without a box there is no other user, no limit and no hole", Some(hint));
}

pub(super) fn limits(reader: &mut Reader<'_>, section: &mut Section) -> BoxLimits {
    let mut found = BoxLimits::default();
    let Some(mut limits) = section.section(reader, "limits") else { return found };
    let mut memory = u64::MAX;
    limits.size(reader, "memory", &mut memory);
    if memory < MEMORY_MIN {
        let what = format!("no program runs in less than {}", size_text(MEMORY_MIN));
        reader.wrong(limits.at, &limits.below("memory"), what, None);
    }
    found.memory = (memory < u64::MAX).then_some(memory);
    let mut count = |limits: &mut Section, key, max: u32| {
        limits.integer(reader, key, 1, max.into()).and_then(|number| u32::try_from(number).ok())
    };
    found.pids = count(&mut limits, "pids", u32::MAX);
    found.cpu = count(&mut limits, "cpu", 1_000_000);
    found.open_files = count(&mut limits, "open-files", u32::MAX).map(u64::from);
    found.oom_score = limits.integer(reader, "oom-score", -1000, 1000).and_then(|score| i32::try_from(score).ok());
    limits.close(reader);
    found
}

/// The system calls of a process.
pub(super) fn calls(reader: &mut Reader<'_>, section: &mut Section) -> CallList {
    let mut found = CallList::default();
    if !section.has_map("syscalls") {
        section.word(reader, "syscalls", &Calls::WORDS, &mut found.mode);
        return found;
    }
    let Some(mut own) = section.section(reader, "syscalls") else { return found };
    own.word(reader, "mode", &Calls::WORDS, &mut found.mode);
    own.word(reader, "list", &[("etcd", List::Etcd), ("default", List::Default)], &mut found.list);
    for (text, at) in own.texts(reader, "allow").unwrap_or_default() {
        if DANGEROUS.contains(&text.as_str()) {
            let what = format!("{} reaches out of every box, and is not allowed by name", quoted(&text));
            let hint = "the name of that hole is `unsafe: [all-syscalls]`".to_owned();
            reader.wrong(at, &own.below("allow"), what, Some(hint));
        } else if known(reader, &own.below("allow"), &text, at, &[DEFAULT, MORE]) {
            found.allow.push(text);
        }
    }
    for (text, at) in own.texts(reader, "deny").unwrap_or_default() {
        if text == "execve" {
            let what = "without `execve` the program itself could not be executed".to_owned();
            reader.wrong(at, &own.below("deny"), what, Some("leave it out".to_owned()));
        } else if found.allow.contains(&text) {
            let what = format!("{} is allowed and denied", quoted(&text));
            reader.wrong(at, &own.below("deny"), what, Some("keep one of the two".to_owned()));
        } else if known(reader, &own.below("deny"), &text, at, &[DEFAULT]) {
            found.deny.push(text);
        }
    }
    for names in [&mut found.allow, &mut found.deny] {
        names.sort_unstable();
        names.dedup();
    }
    own.close(reader);
    found
}

fn known(reader: &mut Reader<'_>, path: &str, text: &str, at: super::At, lists: &[&[&'static str]]) -> bool {
    let all = || lists.iter().flat_map(|list| list.iter().copied());
    let is_known = all().any(|name| name == text);
    if !is_known {
        let hint = match nearest(text, all()) {
            Some(near) => format!("did you mean `{near}`?"),
            None => "`syscalls: audit` logs the names of what a program calls".to_owned(),
        };
        reader.wrong(at, path, format!("{} is no system call of a list", quoted(text)), Some(hint));
    }
    is_known
}

pub(super) fn escapes(reader: &mut Reader<'_>, section: &mut Section) -> Vec<Escape> {
    let mut found = Vec::new();
    let path = section.below("unsafe");
    for (text, at) in section.texts(reader, "unsafe").unwrap_or_default() {
        match Escape::parse(&text) {
            Some(escape) if !found.contains(&escape) => found.push(escape),
            Some(_) => {}
            None => {
                let known = || Escape::ALL.into_iter().map(Escape::name);
                let hint = match nearest(&text, known()) {
                    Some(near) => format!("did you mean `{near}`?"),
                    None => format!("the holes are {}", names(known())),
                };
                reader.wrong(at, &path, format!("{} is no hole of a box", quoted(&text)), Some(hint));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(text: &str) -> Result<Spec, String> {
        Spec::parse(text.as_bytes(), "c").map(|(spec, _)| spec).map_err(|mistakes| mistakes.render())
    }

    const THREE: &str = "token: t\nplaintext: true\nmembers: [{name: n1, address: 10.0.0.1}, {name: n2, address: \
                         10.0.0.2}, {name: n3, address: 10.0.0.3}]\n";

    #[test]
    fn ports_come_from_the_file() {
        let text = format!("{THREE}etcd: {{listen-metrics-urls: 'http://10.0.0.1:2381'}}\nbox: {{connect: [4317]}}\n");
        let spec = spec(&text).unwrap();
        let ports = spec.etcd_ports(&spec.members[0]);
        assert_eq!(ports.bind, [2379, 2380, 2381]);
        assert_eq!((ports.connect, ports.connect_any), (vec![53, 2379, 2380, 2381, 4317], false));
    }

    #[test]
    fn members_of_one_machine_may_connect_anywhere() {
        let member = |name: &str, port: u16| {
            format!(
                "{{name: {name}, peer-urls: ['http://127.0.0.1:{port}'], client-urls: ['http://127.0.0.1:1{port}'], \
                     listen-peer-urls: ['http://0.0.0.0:{port}'], data-dir: /d/{name}, listen-agent-url: \
                     'http://127.0.0.1:2{port}', listen-health-url: 'http://127.0.0.1:3{port}'}}"
            )
        };
        let file = |members: String| format!("token: t\nplaintext: true\nmembers: [{members}]\n");
        let one = spec(&file(member("n1", 4001))).unwrap();
        assert!(one.etcd_ports(&one.members[0]).connect_any);
        let two = spec(&file(format!("{}, {}", member("n1", 4001), member("n2", 4002)))).unwrap();
        assert_eq!(two.etcd_ports(&two.members[1]).bind, [4002, 14002]);
        assert!(two.etcd_ports(&two.members[1]).connect_any);
        let usual = spec(&file("{name: n1, address: 127.0.0.1}".to_owned())).unwrap();
        assert!(!usual.etcd_ports(&usual.members[0]).connect_any);
    }

    #[test]
    fn a_box_is_read_strictly() {
        let good = spec(&format!(
            "{THREE}box: {{level: basic, user: etcd, limits: {{memory: 2GiB, pids: 900, cpu: 150, open-files: 4096, \
             oom-score: -500}}, syscalls: audit, unsafe: [all-ports]}}\n"
        ));
        let found = good.unwrap().box_;
        assert_eq!((found.level, found.limits.memory), (Some(Level::Basic), Some(2 << 30)));
        assert_eq!((found.limits.oom_score, found.escapes), (Some(-500), vec![Escape::AllPorts]));
        for (bad, said) in [
            ("{level: strickt}", "did you mean `strict`?"),
            ("{level: off, user: etcd}", "without a box there is no other user"),
            ("{unsafe: [all-file]}", "did you mean `all-files`?"),
            ("{limits: {oom-score: 1001}}", "is no whole number from -1000 to 1000"),
            ("{connect: [0]}", "is no port"),
            ("{limits: {pids: 0}}", "is no whole number from 1"),
            ("{limits: {memory: 512}}", "no program runs in less than 1MiB"),
            ("{lvl: basic}", "means nothing in `box`"),
        ] {
            let told = spec(&format!("{THREE}box: {bad}\n")).unwrap_err();
            assert!(told.contains(said), "{bad}: {told}");
        }
        // What says nothing changes nothing.
        let plain = spec(THREE).unwrap();
        assert_eq!(plain.hash(), spec(&format!("{THREE}box: {{}}\n")).unwrap().hash());
        assert!(plain.box_.is_default());
    }
}
