//! A box in words: what the program may do, and which of it this machine enforces.
//!
//! **Rule:** the words come from the same plan that is carried out; nothing is explained that is not done.

use serde::Serialize;

use super::plan::{BoxPlan, Part, State};
use super::spec::{BoxSpec, Escape};

/// A box in words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Explained {
    /// The level.
    pub level: &'static str,
    /// One row for each part.
    pub rows: Vec<Row>,
    /// What was wanted and is not fully enforced here.
    pub warnings: Vec<String>,
}

/// One part in words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Row {
    /// What it is about.
    pub part: &'static str,
    /// What the program may do.
    pub may: String,
    /// `yes`, `in part`, `no`, or `-` where nothing was wanted.
    pub enforced: &'static str,
}

/// Puts a plan into words.
pub fn explain(plan: &BoxPlan) -> Explained {
    let row = |part: Part| {
        let state = plan.parts.iter().find(|planned| planned.part == part).map(|planned| &planned.state);
        let enforced = match state {
            Some(State::On) => "yes",
            Some(State::Weaker(_)) => "in part",
            Some(State::Missing(_)) | None => "no",
            Some(State::Unwanted(_)) => "-",
        };
        let may = match state {
            Some(State::Unwanted(by)) => format!("no limit ({by})"),
            Some(State::On | State::Weaker(_) | State::Missing(_)) | None => words(&plan.spec, part),
        };
        Row { part: part.name(), may, enforced }
    };
    Explained { level: plan.spec.level.name(), rows: Part::ALL.map(row).to_vec(), warnings: plan.warnings() }
}

fn words(spec: &BoxSpec, part: Part) -> String {
    let limits = &spec.limits;
    match part {
        Part::User => format!("runs as `{}`, in its group alone", spec.user.as_deref().unwrap_or("-")),
        Part::Privileges => "no file gives it more rights than it has".to_owned(),
        Part::Capabilities if spec.capabilities.is_empty() => "none, and none to be had".to_owned(),
        Part::Capabilities => format!("only {}", spec.capabilities.join(", ")),
        Part::Root => {
            "a read-only root with the program, its libraries, five files of /etc, and what is below".to_owned()
        }
        Part::Processes => "sees and signals its own processes only; all end with it".to_owned(),
        Part::Proc => "its own processes, nothing of the machine".to_owned(),
        Part::Ipc => "shared memory and queues of its own".to_owned(),
        Part::Hostname => "cannot see or change the machine's name".to_owned(),
        Part::Files => files(spec),
        Part::Ports => {
            let connect = if spec.ports.connect_any { "every port".to_owned() } else { ports(&spec.ports.connect) };
            format!("listens on {}; connects to {connect}", ports(&spec.ports.bind))
        }
        Part::Scope => "no signals to, and no abstract sockets of, what is outside".to_owned(),
        Part::Syscalls => {
            let (list, count) = (spec.syscalls.list.name(), spec.syscalls.names().len());
            let what = if spec.syscalls.audit { "all; logs those that are not of" } else { "only those of" };
            let more = |word: &str, names: &[String]| match names.is_empty() {
                true => String::new(),
                false => format!(", {word} {}", names.join(", ")),
            };
            let (with, without) = (more("with", &spec.syscalls.allow), more("without", &spec.syscalls.deny));
            format!("{what} the list `{list}`{with}{without} ({count})")
        }
        Part::Rlimits => format!(
            "no core files; {}",
            match limits.open_files {
                Some(files) => format!("{files} open files"),
                None => "open files as its starter".to_owned(),
            }
        ),
        Part::Memory => format!("{} bytes in all", limits.memory_bytes.unwrap_or_default()),
        Part::Pids => format!("{} in all", limits.pids.unwrap_or_default()),
        Part::Cpu => format!("{} % of one processor", limits.cpu_percent.unwrap_or_default()),
        Part::OomScore => format!("{}", limits.oom_score.unwrap_or_default()),
    }
}

fn files(spec: &BoxSpec) -> String {
    let mut words = Vec::new();
    let mut add = |verb: &str, paths: &[String]| {
        if !paths.is_empty() {
            words.push(format!("{verb} {}", paths.join(", ")));
        }
    };
    add("reads", &spec.reads);
    add("executes", &spec.execs);
    let data = if spec.has(Escape::ExecutableData) { "writes and executes" } else { "writes (never executes)" };
    add(data, &spec.writes);
    if words.is_empty() { "nothing but itself, and a private /tmp".to_owned() } else { words.join("; ") }
}

fn ports(ports: &[u16]) -> String {
    if ports.is_empty() {
        return "no port".to_owned();
    }
    ports.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::super::plan::{Machine, Offer, plan_box};
    use super::super::spec::{Level, Ports};
    use super::*;

    #[test]
    fn a_box_is_put_into_words() {
        let offer = |part: Part| match part {
            Part::Ports => (part, Offer::No("Landlock has rules about ports from kernel 6.7 on".to_owned())),
            _ => (part, Offer::Full),
        };
        let machine =
            Machine { kernel: "6.1".to_owned(), user_namespace: false, offers: Part::ALL.map(offer).to_vec() };
        let ports = Ports { bind: vec![2379, 2380], connect: vec![2380], connect_any: false };
        let data = ["/var/lib/etcd".to_owned()];
        let spec = BoxSpec::etcd(Level::Strict, &data, &["/etc/quorate/pki".to_owned()], ports);
        let explained = explain(&plan_box(&spec, &machine).unwrap());
        let said = |part: &str| explained.rows.iter().find(|row| row.part == part).unwrap();
        assert_eq!(said("ports").may, "listens on 2379, 2380; connects to 2380");
        assert_eq!(said("ports").enforced, "no");
        assert_eq!(said("files").may, "reads /etc/quorate/pki; writes (never executes) /var/lib/etcd");
        assert_eq!((said("user").may.as_str(), said("memory").enforced), ("runs as `nobody`, in its group alone", "-"));
        assert_eq!(explained.warnings.len(), 1);
    }
}
