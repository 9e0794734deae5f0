//! Reads `processes` of the cluster file: programs that the agent keeps beside etcd.
//!
//! **Invariant:** what a process waits for is declared for the same members, and nothing waits for itself.

use std::time::Duration;

use serde::{Serialize, Serializer};

use super::boxes::{self, BoxLimits, CallList};
use super::read::{Reader, Section};
use super::sections::secret_or_path;
use super::settings::{Logs, as_duration, usual_logs};
use super::tree::{Kind, Node};
use super::{At, Member};
use crate::boxes::{Escape, Level};
use crate::processes::{ETCD, Tangle, start_order};
use crate::roster::{names, nearest, quoted};

/// Longer names do not fit where they are shown.
const NAME_MAX: usize = 64;

/// One declared process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct ProcessSpec {
    /// What it is called.
    #[serde(skip)]
    pub name: String,
    /// The program.
    pub executable: String,
    /// Its arguments. `{name}` stands for the member's name, here and in all that follows.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// All of its environment.
    #[serde(skip_serializing_if = "Vec::is_empty", serialize_with = "as_pairs")]
    pub env: Vec<(String, String)>,
    /// More of it, whose values stand in files of the machine.
    #[serde(skip_serializing_if = "Vec::is_empty", serialize_with = "as_pairs")]
    pub env_files: Vec<(String, String)>,
    /// The members beside which it runs; none: all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub members: Vec<String>,
    /// Whom it runs as.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The level of its box; by default `strict` where the agent runs as root, else `basic`.
    #[serde(rename = "box", skip_serializing_if = "Option::is_none")]
    pub level: Option<Level>,
    /// How much it may use.
    #[serde(skip_serializing_if = "BoxLimits::is_none")]
    pub limits: BoxLimits,
    /// Files and directories that it sees.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<Volume>,
    /// TCP ports.
    #[serde(skip_serializing_if = "ProcessPorts::is_none")]
    pub ports: ProcessPorts,
    /// Capabilities that it keeps.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub capabilities: Vec<String>,
    /// What becomes of system calls that are on no list.
    #[serde(skip_serializing_if = "CallList::is_usual")]
    pub syscalls: CallList,
    /// Holes of its box, by name.
    #[serde(rename = "unsafe", skip_serializing_if = "Vec::is_empty")]
    pub escapes: Vec<Escape>,
    /// What is run before and after, in boxes of the same kind.
    pub hooks: Hooks,
    /// What must be ready before it is started.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<String>,
    /// When it is started again.
    pub restart: RestartSpec,
    /// How it is asked whether it is well.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub health: Option<HealthSpec>,
    /// How it is stopped.
    pub stop: ProcessStop,
    /// Its logs.
    pub logs: Logs,
}

/// Files that a process sees.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Volume {
    /// Where.
    pub path: String,
    /// What it may do with them.
    pub access: VolumeAccess,
    /// Whether a directory that is missing is made, for its user alone.
    pub create: bool,
}

/// What may be done with files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum VolumeAccess {
    /// Read.
    Read,
    /// Change, and never execute.
    Write,
    /// Read and execute.
    Execute,
}

/// TCP ports of a process.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct ProcessPorts {
    /// Where it may listen.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub bind: Vec<u16>,
    /// Where it may connect to, on any host.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub connect: Vec<u16>,
}

/// Commands, each a program and its arguments; none: nothing is run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Hooks {
    /// Before it is started; if it fails, it is not.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pre_start: Vec<String>,
    /// After it was started; it is ready only then.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub post_start: Vec<String>,
    /// Before it is stopped.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pre_stop: Vec<String>,
    /// How long each may take.
    #[serde(serialize_with = "as_duration")]
    pub timeout: Duration,
}

/// When a process is started again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct RestartSpec {
    /// After which end.
    pub when: RestartWhen,
    /// The wait after the second failure in a row; the first is met at once. Doubled each time.
    #[serde(serialize_with = "as_duration")]
    pub first_wait: Duration,
    /// The longest wait.
    #[serde(serialize_with = "as_duration")]
    pub max_wait: Duration,
}

/// After which end a process is started again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum RestartWhen {
    /// Every one.
    Always,
    /// Any but exit code 0.
    OnFailure,
    /// None.
    Never,
}

/// How a process is asked whether it is well.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct HealthSpec {
    /// What is asked.
    #[serde(flatten)]
    pub check: Check,
    /// How often.
    #[serde(serialize_with = "as_duration")]
    pub every: Duration,
    /// How long an answer may take.
    #[serde(serialize_with = "as_duration")]
    pub timeout: Duration,
    /// So many bad answers in a row, and it is stopped and started again.
    pub failures: u32,
    /// For so long after its start bad answers do not count.
    #[serde(serialize_with = "as_duration")]
    pub grace: Duration,
}

/// What is asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Check {
    /// A command in a box of the same kind; exit code 0 is a good answer.
    Exec(Vec<String>),
    /// Whether someone accepts connections at `host:port`.
    Tcp(String),
    /// Whether a GET is answered with a code from 200 to 399.
    Http(String),
}

/// The steps of a stop, and how long each may take.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct ProcessStop {
    /// From SIGTERM to the next step.
    #[serde(serialize_with = "as_duration")]
    pub term_timeout: Duration,
    /// From SIGQUIT to SIGKILL; zero: no SIGQUIT.
    #[serde(serialize_with = "as_duration")]
    pub dump_timeout: Duration,
}

impl ProcessPorts {
    fn is_none(&self) -> bool {
        *self == ProcessPorts::default()
    }
}

impl ProcessSpec {
    /// Whether it runs beside a member.
    pub fn runs_at(&self, member: &str) -> bool {
        self.members.is_empty() || self.members.iter().any(|name| name == member)
    }
}

pub(super) fn as_map<S: Serializer>(processes: &[ProcessSpec], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(processes.iter().map(|process| (&process.name, process)))
}

fn as_pairs<S: Serializer>(pairs: &[(String, String)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(pairs.iter().map(|(name, value)| (name, value)))
}

pub(super) fn section(reader: &mut Reader<'_>, file: &mut Section, members: &[Member]) -> Vec<ProcessSpec> {
    let Some(section) = file.section(reader, "processes") else { return Vec::new() };
    let (at, before) = (section.at, reader.count());
    let mut found = Vec::new();
    for (key, node) in section.rest() {
        let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '_');
        let named = !key.text.is_empty() && key.text.len() <= NAME_MAX && key.text.chars().all(good);
        if key.text == ETCD {
            let hint = "etcd itself is declared by the rest of the file; its box is `box`".to_owned();
            reader.wrong(key.at, "processes", "no process may be called `etcd`", Some(hint));
        } else if !named || key.text.starts_with('-') {
            let what = format!("{} is no name for a process", quoted(&key.text));
            reader.wrong(key.at, "processes", what, Some("use lower-case letters, digits, `-` and `_`".into()));
        } else if let Some(process) = process(reader, key.text, node) {
            found.push(process);
        }
    }
    if reader.count() == before {
        waits(reader, at, &found);
        places(reader, at, &found, members);
    }
    found
}

fn process(reader: &mut Reader<'_>, name: String, node: Node) -> Option<ProcessSpec> {
    let mut section = Section::open(reader, node, &format!("processes[{name}]"))?;
    let at = section.at;
    let executable = path(reader, &mut section, "executable");
    if executable.is_none() {
        let hint = "write its path: `executable: /usr/sbin/haproxy`".to_owned();
        reader.wrong(at, &section.below("executable"), format!("`{name}` has no `executable`"), Some(hint));
    }
    let mut found = ProcessSpec {
        name,
        executable: executable.unwrap_or_default(),
        args: texts(reader, &mut section, "args"),
        env: section.pairs(reader, "env"),
        env_files: env_files(reader, &mut section),
        members: texts(reader, &mut section, "members"),
        user: section.text(reader, "user").map(|(text, _)| text),
        level: None,
        limits: boxes::limits(reader, &mut section),
        volumes: volumes(reader, &mut section),
        ports: ports(reader, &mut section),
        capabilities: texts(reader, &mut section, "capabilities"),
        syscalls: boxes::calls(reader, &mut section),
        escapes: boxes::escapes(reader, &mut section),
        hooks: hooks(reader, &mut section),
        after: texts(reader, &mut section, "after"),
        restart: restart(reader, &mut section),
        health: health(reader, &mut section),
        stop: stop(reader, &mut section),
        logs: usual_logs(),
    };
    found.level = boxes::level(reader, &mut section, "box");
    super::sections::logs(reader, &mut section, &mut found.logs);
    let path = section.path.clone();
    section.close(reader);
    let asks = found.user.is_some()
        || !found.limits.is_none()
        || !found.ports.is_none()
        || !found.volumes.is_empty()
        || !found.capabilities.is_empty()
        || !found.escapes.is_empty()
        || found.syscalls.is_own();
    if found.level == Some(Level::Off) && asks {
        boxes::no_box(reader, at, &path);
    }
    Some(found)
}

fn env_files(reader: &mut Reader<'_>, section: &mut Section) -> Vec<(String, String)> {
    let (at, path) = (section.at, section.below("env-files"));
    let files = section.pairs(reader, "env-files");
    files.iter().for_each(|(_, file)| secret_or_path(reader, &path, file, at));
    files
}

fn texts(reader: &mut Reader<'_>, section: &mut Section, key: &'static str) -> Vec<String> {
    section.texts(reader, key).unwrap_or_default().into_iter().map(|(text, _)| text).collect()
}

fn path(reader: &mut Reader<'_>, section: &mut Section, key: &'static str) -> Option<String> {
    let (text, at) = section.text(reader, key)?;
    secret_or_path(reader, &section.below(key), &text, at);
    Some(text)
}

fn volumes(reader: &mut Reader<'_>, section: &mut Section) -> Vec<Volume> {
    let below = section.below("volumes");
    let Some(node) = section.take("volumes") else { return Vec::new() };
    let (at, what) = (node.at, node.kind());
    let Kind::List(items) = node.kind else {
        reader.wrong(at, &below, format!("`volumes` is {what}, not a list"), None);
        return Vec::new();
    };
    let mut found = Vec::new();
    for (number, item) in items.into_iter().enumerate() {
        let Some(mut volume) = Section::open(reader, item, &format!("{below}[{}]", number + 1)) else { continue };
        let at = volume.at;
        let place = path(reader, &mut volume, "path");
        let words = [("read", VolumeAccess::Read), ("write", VolumeAccess::Write), ("execute", VolumeAccess::Execute)];
        let mut access = VolumeAccess::Read;
        volume.word(reader, "access", &words, &mut access);
        let create = volume.flag(reader, "create").is_some_and(|(flag, _)| flag);
        if create && access != VolumeAccess::Write {
            reader.wrong(at, &below, "what is not written to need not be made", Some("leave `create` out".into()));
        }
        volume.close(reader);
        match place {
            Some(path) => found.push(Volume { path, access, create }),
            None => reader.wrong(at, &below, "a volume has no `path`", None),
        }
    }
    found
}

fn ports(reader: &mut Reader<'_>, section: &mut Section) -> ProcessPorts {
    let Some(mut ports) = section.section(reader, "ports") else { return ProcessPorts::default() };
    let found = ProcessPorts { bind: ports.ports(reader, "bind"), connect: ports.ports(reader, "connect") };
    ports.close(reader);
    found
}

fn command(reader: &mut Reader<'_>, section: &mut Section, key: &'static str) -> Vec<String> {
    let path = section.below(key);
    let texts = section.texts(reader, key).unwrap_or_default();
    if let Some((program, at)) = texts.first().filter(|(program, _)| !program.starts_with('/')) {
        let hint = format!("write the path of a program, and its arguments: `{key}: [/bin/sh, -c, …]`");
        reader.wrong(*at, &path, format!("{} is not an absolute path", quoted(program)), Some(hint));
    }
    texts.into_iter().map(|(text, _)| text).collect()
}

fn hooks(reader: &mut Reader<'_>, section: &mut Section) -> Hooks {
    let timeout = Duration::from_secs(30);
    let mut found = Hooks { pre_start: vec![], post_start: vec![], pre_stop: vec![], timeout };
    let Some(mut hooks) = section.section(reader, "hooks") else { return found };
    found.pre_start = command(reader, &mut hooks, "pre-start");
    found.post_start = command(reader, &mut hooks, "post-start");
    found.pre_stop = command(reader, &mut hooks, "pre-stop");
    hooks.span(reader, "timeout", &mut found.timeout);
    hooks.close(reader);
    found
}

fn restart(reader: &mut Reader<'_>, section: &mut Section) -> RestartSpec {
    let (first_wait, max_wait) = (Duration::from_secs(1), Duration::from_secs(60));
    let mut found = RestartSpec { when: RestartWhen::Always, first_wait, max_wait };
    let Some(mut restart) = section.section(reader, "restart") else { return found };
    let words =
        [("always", RestartWhen::Always), ("on-failure", RestartWhen::OnFailure), ("never", RestartWhen::Never)];
    restart.word(reader, "when", &words, &mut found.when);
    restart.span(reader, "first-wait", &mut found.first_wait);
    restart.span(reader, "max-wait", &mut found.max_wait);
    restart.close(reader);
    found
}

fn health(reader: &mut Reader<'_>, section: &mut Section) -> Option<HealthSpec> {
    let mut health = section.section(reader, "health")?;
    let (at, path) = (health.at, health.path.clone());
    let exec = command(reader, &mut health, "exec");
    let tcp = health.text(reader, "tcp");
    let http = health.text(reader, "http");
    if let Some((text, at)) = tcp.as_ref().filter(|(text, _)| !is_place(text)) {
        reader.wrong(*at, &path, format!("{} is not `host:port`", quoted(text)), None);
    }
    if let Some((text, at)) = http.as_ref().filter(|(text, _)| !text.starts_with("http://")) {
        let hint = "write `http://127.0.0.1:8080/healthz`; for anything else use `exec`".to_owned();
        reader.wrong(*at, &path, format!("{} is no plain HTTP URL", quoted(text)), Some(hint));
    }
    let exec = (!exec.is_empty()).then_some(Check::Exec(exec));
    let tcp = tcp.map(|(text, _)| Check::Tcp(text));
    let mut checks = exec.into_iter().chain(tcp).chain(http.map(|(text, _)| Check::Http(text)));
    let (check, more) = (checks.next(), checks.next());
    if check.is_none() || more.is_some() {
        let hint = "give one of `exec`, `tcp` and `http`".to_owned();
        reader.wrong(at, &path, "`health` asks one question", Some(hint));
    }
    let mut found = HealthSpec {
        check: check.unwrap_or(Check::Exec(Vec::new())),
        every: Duration::from_secs(10),
        timeout: Duration::from_secs(5),
        failures: 3,
        grace: Duration::from_secs(30),
    };
    health.span(reader, "every", &mut found.every);
    health.span(reader, "timeout", &mut found.timeout);
    health.span(reader, "grace", &mut found.grace);
    if let Some(failures) = health.number(reader, "failures", 1000) {
        found.failures = u32::try_from(failures).unwrap_or(1).max(1);
    }
    if found.every.is_zero() || found.timeout.is_zero() {
        reader.wrong(at, &path, "`every` and `timeout` are longer than nothing", None);
    }
    health.close(reader);
    Some(found)
}

fn is_place(text: &str) -> bool {
    text.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0))
}

fn stop(reader: &mut Reader<'_>, section: &mut Section) -> ProcessStop {
    let mut found = ProcessStop { term_timeout: Duration::from_secs(30), dump_timeout: Duration::ZERO };
    let Some(mut stop) = section.section(reader, "stop") else { return found };
    stop.span(reader, "term-timeout", &mut found.term_timeout);
    stop.span(reader, "dump-timeout", &mut found.dump_timeout);
    stop.close(reader);
    found
}

fn waits(reader: &mut Reader<'_>, at: At, found: &[ProcessSpec]) {
    match start_order(found) {
        Ok(_) => {}
        Err(Tangle::Unknown { process, after }) => {
            let known = found.iter().map(|process| process.name.as_str()).chain([ETCD]);
            let hint = match nearest(&after, known.clone()) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("there are {}", names(known)),
            };
            let what = format!("`{process}` waits for {}, which is not declared", quoted(&after));
            reader.wrong(at, "processes", what, Some(hint));
        }
        Err(Tangle::Circle(circle)) => {
            let what = format!("{} wait for each other", names(circle.iter().map(String::as_str)));
            reader.wrong(at, "processes", what, Some("take one `after` away".into()));
        }
    }
}

/// A process and what it waits for run beside the same members.
fn places(reader: &mut Reader<'_>, at: At, found: &[ProcessSpec], members: &[Member]) {
    for process in found {
        for name in &process.members {
            if !members.is_empty() && !members.iter().any(|member| member.name == *name) {
                let what = format!("`{}` runs beside {}, which is no member", process.name, quoted(name));
                reader.wrong(at, "processes", what, None);
            }
        }
        for after in found.iter().filter(|other| process.after.contains(&other.name)) {
            let apart = members.iter().find(|member| process.runs_at(&member.name) && !after.runs_at(&member.name));
            if let Some(member) = apart {
                let what = format!(
                    "`{}` waits for `{}`, which does not run beside `{}`",
                    process.name, after.name, member.name
                );
                reader.wrong(at, "processes", what, Some("give both the same `members`".into()));
            }
        }
    }
}

#[cfg(test)]
mod tests;
