//! The declared box: a level, and what the program may have.
//!
//! **Rule:** whatever is not named is not given; what makes a hole is called by its name under `escapes`.

use serde::{Deserialize, Serialize};

/// How much of a box there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Level {
    /// Every part, or no start.
    Strict,
    /// What this machine and this user can give; what is missing is said.
    Basic,
    /// No box.
    Off,
}

/// A hole that is asked for by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Escape {
    /// It sees all files of the machine, as far as its user may.
    AllFiles,
    /// It may make every system call.
    AllSyscalls,
    /// It may bind and reach every port.
    AllPorts,
    /// What lies in the places that it writes to may be executed.
    ExecutableData,
}

/// Which list of system calls it may make.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum List {
    /// What etcd was seen to need, and what Go may fall back to.
    Etcd,
    /// What programs usually need: files, sockets, threads, children.
    Default,
}

/// The system calls that it may make.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Syscalls {
    /// The list.
    pub list: List,
    /// Nothing is denied; what would have been is logged.
    pub audit: bool,
    /// Calls that it may make besides.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow: Vec<String>,
    /// Calls of the list that it may not make.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deny: Vec<String>,
}

/// TCP ports.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ports {
    /// Where it may listen.
    pub bind: Vec<u16>,
    /// Where it may connect to, on any host.
    pub connect: Vec<u16>,
    /// Whether it may connect to every port.
    #[serde(default)]
    pub connect_any: bool,
}

/// How much it may use.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Memory of all its processes.
    pub memory_bytes: Option<u64>,
    /// Processes and threads.
    pub pids: Option<u32>,
    /// Hundredths of one processor: 150 is one and a half.
    pub cpu_percent: Option<u32>,
    /// Open files of each process.
    pub open_files: Option<u64>,
    /// How readily the kernel ends it when memory runs out: -1000 (never) to 1000 (first).
    pub oom_score: Option<i32>,
}

/// A declared box.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BoxSpec {
    /// How much of a box there is.
    pub level: Level,
    /// Whom it runs as; `None`: `nobody` in `strict`, else whoever starts it.
    pub user: Option<String>,
    /// Files and directories that it may read.
    pub reads: Vec<String>,
    /// Directories (or files) that it may change.
    pub writes: Vec<String>,
    /// Files and directories that it may execute besides itself.
    pub execs: Vec<String>,
    /// TCP ports.
    pub ports: Ports,
    /// System calls.
    pub syscalls: Syscalls,
    /// How much it may use.
    pub limits: Limits,
    /// Capabilities that it keeps, without `CAP_`, such as `NET_BIND_SERVICE`.
    pub capabilities: Vec<String>,
    /// Holes, by name.
    pub escapes: Vec<Escape>,
}

impl Level {
    /// Reads its name.
    pub fn parse(text: &str) -> Option<Level> {
        match text {
            "strict" => Some(Level::Strict),
            "basic" => Some(Level::Basic),
            "off" => Some(Level::Off),
            _ => None,
        }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Level::Strict => "strict",
            Level::Basic => "basic",
            Level::Off => "off",
        }
    }
}

impl Escape {
    /// All of them.
    pub const ALL: [Escape; 4] = [Escape::AllFiles, Escape::AllSyscalls, Escape::AllPorts, Escape::ExecutableData];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Escape::AllFiles => "all-files",
            Escape::AllSyscalls => "all-syscalls",
            Escape::AllPorts => "all-ports",
            Escape::ExecutableData => "executable-data",
        }
    }

    /// Reads its name.
    pub fn parse(text: &str) -> Option<Escape> {
        Escape::ALL.into_iter().find(|escape| escape.name() == text)
    }
}

impl List {
    /// The names on it.
    pub fn names(self) -> &'static [&'static str] {
        match self {
            List::Etcd => super::ETCD,
            List::Default => super::DEFAULT,
        }
    }

    /// What it is called.
    pub fn name(self) -> &'static str {
        match self {
            List::Etcd => "etcd",
            List::Default => "default",
        }
    }
}

impl Syscalls {
    /// A list as it is, enforced.
    pub fn of(list: List) -> Syscalls {
        Syscalls { list, audit: false, allow: Vec::new(), deny: Vec::new() }
    }

    /// All that may be called, by name.
    pub fn names(&self) -> Vec<&str> {
        let is_free = |name: &&str| !self.deny.iter().any(|denied| denied == name);
        let all = self.list.names().iter().copied().filter(is_free).chain(self.allow.iter().map(String::as_str));
        let mut all: Vec<&str> = all.collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Reads `etcd`, `default`, `audit`, or a list and `audit` with a comma between them.
    pub fn parse(text: &str) -> Option<Syscalls> {
        let mut syscalls = Syscalls::of(List::Default);
        for word in text.split(',') {
            match word {
                "etcd" => syscalls.list = List::Etcd,
                "default" => syscalls.list = List::Default,
                "audit" => syscalls.audit = true,
                _ => return None,
            }
        }
        Some(syscalls)
    }
}

impl BoxSpec {
    /// A box of a level, with nothing in it but the program.
    pub fn new(level: Level) -> BoxSpec {
        BoxSpec {
            level,
            user: None,
            reads: Vec::new(),
            writes: Vec::new(),
            execs: Vec::new(),
            ports: Ports::default(),
            syscalls: Syscalls::of(List::Default),
            limits: Limits::default(),
            capabilities: Vec::new(),
            escapes: Vec::new(),
        }
    }

    /// The box of an etcd: its data dir, its files, its listeners, and the ports of its peers.
    pub fn etcd(level: Level, data: &[String], reads: &[String], ports: Ports) -> BoxSpec {
        BoxSpec {
            reads: reads.to_vec(),
            writes: data.to_vec(),
            ports,
            syscalls: Syscalls::of(List::Etcd),
            ..BoxSpec::new(level)
        }
    }

    /// Whether a hole was asked for.
    pub fn has(&self, escape: Escape) -> bool {
        self.escapes.contains(&escape)
    }
}

/// Reads a number of bytes as people write it: `512MiB`, `2GiB`, `65536`.
pub fn parse_bytes(text: &str) -> Option<u64> {
    let at = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(at);
    let shift = match unit.trim() {
        "" | "B" => 0,
        "KiB" | "K" => 10,
        "MiB" | "M" => 20,
        "GiB" | "G" => 30,
        "TiB" | "T" => 40,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_names_are_read_as_people_write_them() {
        assert_eq!(parse_bytes("512MiB"), Some(512 << 20));
        assert_eq!(parse_bytes("65536"), Some(65536));
        assert_eq!(parse_bytes("99999999999999TiB"), None);
        assert_eq!(parse_bytes("much"), None);
        assert_eq!(Syscalls::parse("audit"), Some(Syscalls { audit: true, ..Syscalls::of(List::Default) }));
        assert_eq!(Syscalls::parse("etcd,audit"), Some(Syscalls { audit: true, ..Syscalls::of(List::Etcd) }));
        assert_eq!(Syscalls::parse("none"), None);
        let own = Syscalls { allow: vec!["seccomp".into()], deny: vec!["kill".into()], ..Syscalls::of(List::Etcd) };
        assert_eq!(own.names().len(), super::super::ETCD.len());
        assert!(own.names().contains(&"seccomp") && !own.names().contains(&"kill"));
        // What earlier versions have written down is read.
        let earlier: Syscalls = serde_json::from_str(r#"{"list": "etcd", "audit": false}"#).unwrap();
        assert_eq!(earlier, Syscalls::of(List::Etcd));
        assert!(Escape::ALL.into_iter().all(|escape| Escape::parse(escape.name()) == Some(escape)));
    }
}
