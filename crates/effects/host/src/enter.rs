//! Runs a command where a process is: in its namespaces, root and cgroup, as its user, with its capabilities and limits.
//!
//! A pid namespace is entered by one's children alone, so a command that crosses into one is run by a child of ours, our own
//! program again ([`Errand::arrive`]); any other takes our own place.
//!
//! **Invariant:** everything is opened before the process is checked to be the one that was meant, and nothing that it does
//! not have itself is left to the command. What cannot be had from the kernel is said, not passed over.

mod cgroup;
mod command;
mod rights;
mod terminal;

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};

use quorate_faults::{Code, Fault};
use rustix::fs::{Mode, OFlags};
use rustix::process::{Signal, set_parent_process_death_signal};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde::{Deserialize, Serialize};

use crate::process::{Identity, leave_keys_to_child, stat};
use crate::sandbox::{Held, Hold, Lent, lent_dirs};
use command::{Candidate, candidates};
use rights::{Limits, Rights};

/// In the order in which they are entered: rights over the others come from the first, and what is looked up by path
/// must be done before the last.
const NAMESPACES: [(&str, LinkNameSpaceType); 6] = [
    ("user", LinkNameSpaceType::User),
    ("cgroup", LinkNameSpaceType::ControlGroup),
    ("ipc", LinkNameSpaceType::InterProcessCommunication),
    ("uts", LinkNameSpaceType::HostNameAndNISDomainName),
    ("net", LinkNameSpaceType::Network),
    ("mnt", LinkNameSpaceType::Mount),
];

/// What is to be run, and where.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Errand {
    /// The process.
    pub identity: Identity,
    /// The commands; the first one that is there is run.
    pub commands: Vec<Vec<String>>,
    /// Variables besides those of the process.
    pub env: Vec<(String, String)>,
    /// Whether the command gets the terminal for itself.
    pub terminal: bool,
    /// What the process was boxed with; `None`: no box of ours, or none that was written down.
    #[serde(default)]
    pub held: Option<Held>,
    /// Whether the command gets the machine's programs too, where the box has none.
    #[serde(default)]
    pub tools: Tools,
}

/// Whether a command in a box gets the machine's programs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Tools {
    /// Only what the process has.
    #[default]
    Never,
    /// If the box has none of the commands.
    IfMissing,
    /// In any case.
    Always,
}

/// How it goes on.
#[derive(Debug)]
pub enum Way {
    /// We are there: say what is missing, then [`Arrived::execute`].
    Here(Box<Arrived>),
    /// A child of ours goes there.
    Child(Sent),
}

/// A child that has gone there.
#[derive(Debug)]
pub struct Sent {
    child: Child,
    terminal: bool,
}

/// We are where the process is, and have its rights.
#[derive(Debug)]
pub struct Arrived {
    /// What could not be made the same.
    pub missing: Vec<String>,
    /// Whether it has the machine's programs, and their system calls, which the process has not.
    pub has_tools: bool,
    wanted: String,
    candidates: Vec<Candidate>,
    env: Vec<(OsString, OsString)>,
    hold: Option<Hold>,
    pid: u32,
}

impl Errand {
    /// Goes there, or sends `program __enter`. The process must have one thread.
    pub fn go(&self, program: &Path) -> Result<Way, Fault> {
        let pid = self.identity.pid;
        let fail = |error| cannot(pid, error);
        if !is_apart(pid, "pid").map_err(fail)? {
            return Ok(Way::Here(Box::new(self.become_it(false)?)));
        }
        let open = |name: &str| File::open(format!("/proc/{pid}/ns/{name}"));
        let (user, pids) = (open("user").map_err(fail)?, open("pid").map_err(fail)?);
        let crosses = is_apart(pid, "user").map_err(fail)?;
        let cgroups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).map_err(fail)?;
        let owner = Rights::of(pid).map_err(fail)?;
        self.check()?;
        if crosses && rustix::process::geteuid().is_root() {
            // Root has no name in a user namespace of others: whoever made it goes there. What root must do itself is done
            // before; what could not be done is found, and said, by the child.
            let _ = cgroup::join(&cgroups);
            owner.become_user().map_err(fail)?;
        }
        if crosses {
            move_into_link_name_space(user.as_fd(), Some(LinkNameSpaceType::User)).map_err(|e| fail(e.into()))?;
        }
        move_into_link_name_space(pids.as_fd(), Some(LinkNameSpaceType::ProcessID)).map_err(|e| fail(e.into()))?;
        if crosses {
            rights::hand_on_all().map_err(fail)?;
        }
        let text = serde_json::to_string(self).map_err(|error| fail(error.into()))?;
        let mut command = Command::new(program);
        command.arg("__enter").arg(text);
        let terminal = self.terminal && terminal::is_ours();
        if terminal {
            command.process_group(0);
        }
        let child = command.spawn().map_err(fail)?;
        // Keys on the terminal are for the command.
        leave_keys_to_child();
        Ok(Way::Child(Sent { child, terminal }))
    }

    /// Reads what [`Errand::go`] hands to its child.
    pub fn read(text: &str) -> Result<Errand, Fault> {
        serde_json::from_str(text)
            .map_err(|error| Fault::new(Code::Internal, "cannot read where to go").caused_by(error))
    }

    /// The second half, in the child.
    pub fn arrive(&self) -> Result<Arrived, Fault> {
        self.become_it(true)
    }

    fn check(&self) -> Result<(), Fault> {
        match stat(self.identity.pid) {
            Ok(now) if now.started_ticks == self.identity.started_ticks => Ok(()),
            _ => Err(Fault::new(Code::ProcessNotRunning, format!("process {} has ended", self.identity.pid))
                .hint("see `quorate ps`, and try again")),
        }
    }

    fn become_it(&self, sent: bool) -> Result<Arrived, Fault> {
        let pid = self.identity.pid;
        let fail = |error: io::Error| cannot(pid, error);
        let mut missing = Vec::new();
        let seen = Surroundings::read(pid).map_err(fail)?;
        self.check()?;
        seen.join(&mut missing);
        let mut spaces = seen.spaces.iter().peekable();
        if let Some((kind, file)) = spaces.next_if(|(kind, _)| *kind == LinkNameSpaceType::User) {
            move_into_link_name_space(file.as_fd(), Some(*kind)).map_err(|e| fail(e.into()))?;
        }
        // Read from within the user namespace, where the numbers are those that hold there.
        let (rights, ours) = (Rights::of(pid).map_err(fail)?, Rights::of_us().map_err(fail)?);
        self.check()?;
        let lent = self.lendable().then(Lent::take).transpose().map_err(fail)?;
        let moved = spaces.peek().is_some();
        for (kind, file) in spaces {
            move_into_link_name_space(file.as_fd(), Some(*kind)).map_err(|e| fail(e.into()))?;
        }
        if moved || seen.is_rooted {
            let entered = rustix::process::fchdir(&seen.root).and_then(|()| rustix::process::chroot("."));
            entered.map_err(|e| fail(e.into()))?;
        }
        let env = variables(&seen.environ, &self.env);
        let has_tools = self.gets_tools(|held| candidates(&self.commands, &env, Some(held)).is_empty());
        let given = lent.filter(|_| has_tools);
        if let (Some(lent), Some(held)) = (&given, &self.held) {
            lent.give(held).map_err(fail)?;
        }
        seen.go_to_dir(given.is_some()).map_err(fail)?;
        let found = candidates(&self.commands, &env, None);
        seen.limits.apply(&mut missing);
        rights.take(&ours, &mut missing).map_err(fail)?;
        let lent = if has_tools { lent_dirs() } else { Vec::new() };
        let hold = self.held.as_ref().map(|held| held.hold(&lent)).transpose().map_err(fail)?;
        if rights.is_filtered_more_than(&ours) && !self.held.as_ref().is_some_and(Held::filters) {
            missing.push("its filter of system calls".to_owned());
        }
        if sent {
            let signal = set_parent_process_death_signal(Some(Signal::KILL));
            signal.map_err(|e| fail(e.into()))?;
            if self.terminal {
                terminal::take();
            }
        }
        let wanted = self.commands.last().and_then(|words| words.first()).cloned().unwrap_or_default();
        Ok(Arrived { missing, has_tools, wanted, candidates: found, env, hold, pid })
    }

    /// Whether there is a root that may lack programs, and they are wanted.
    fn lendable(&self) -> bool {
        self.tools != Tools::Never && self.held.as_ref().is_some_and(Held::has_root)
    }

    fn gets_tools(&self, lacks: impl FnOnce(&Held) -> bool) -> bool {
        match (&self.held, self.tools) {
            (None, _) | (_, Tools::Never) => false,
            (Some(_), Tools::Always) => true,
            (Some(held), Tools::IfMissing) => lacks(held),
        }
    }
}

/// What the kernel shows of a process, opened and read while it was that process.
struct Surroundings {
    spaces: Vec<(LinkNameSpaceType, File)>,
    root: OwnedFd,
    is_rooted: bool,
    dir: io::Result<OwnedFd>,
    dir_path: PathBuf,
    environ: Vec<u8>,
    limits: Limits,
    cgroups: String,
    oom: String,
}

impl Surroundings {
    fn read(pid: u32) -> io::Result<Surroundings> {
        let read = |name: &str| std::fs::read_to_string(format!("/proc/{pid}/{name}"));
        let mut spaces = Vec::new();
        for (name, kind) in NAMESPACES {
            if is_apart(pid, name)? {
                spaces.push((kind, File::open(format!("/proc/{pid}/ns/{name}"))?));
            }
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let open = |name: &str| rustix::fs::open(format!("/proc/{pid}/{name}"), flags, Mode::empty());
        let root = open("root")?;
        Ok(Surroundings {
            spaces,
            is_rooted: is_other_root(&root)?,
            root,
            dir: open("cwd").map_err(io::Error::from),
            dir_path: std::fs::read_link(format!("/proc/{pid}/cwd")).unwrap_or_else(|_| PathBuf::from("/")),
            environ: std::fs::read(format!("/proc/{pid}/environ"))?,
            limits: Limits::parse(&read("limits")?),
            cgroups: read("cgroup")?,
            oom: read("oom_score_adj")?,
        })
    }

    /// Counts where the process does.
    fn join(&self, missing: &mut Vec<String>) {
        if let Err(error) = cgroup::join(&self.cgroups) {
            missing.push(format!("its cgroup ({error})"));
        }
        if std::fs::read_to_string("/proc/self/oom_score_adj").is_ok_and(|ours| ours != self.oom) {
            set_oom(&self.oom, missing);
        }
    }

    /// Goes to its working directory, which may be gone; then to the root of all it sees.
    fn go_to_dir(&self, by_path: bool) -> io::Result<()> {
        let there = match &self.dir {
            // In other mounts than those of the process the directory is found by its name.
            _ if by_path => rustix::process::chdir(&self.dir_path).is_ok(),
            Ok(dir) => rustix::process::fchdir(dir).is_ok(),
            Err(_) => false,
        };
        if there { Ok(()) } else { Ok(rustix::process::chdir("/")?) }
    }
}

impl Arrived {
    /// Becomes the command; returns only if there is none.
    pub fn execute(self) -> Fault {
        let held = match &self.hold {
            Some(hold) => hold.apply(),
            None => Ok(()),
        };
        if let Err(error) = held {
            return cannot(self.pid, error);
        }
        command::execute(&self.candidates, &self.env, &self.wanted, self.pid)
    }
}

impl Sent {
    /// Waits for its end.
    pub fn wait(mut self) -> Result<ExitStatus, Fault> {
        let ended = self.child.wait().map_err(|error| Fault::io("cannot wait for the command", error));
        if self.terminal {
            terminal::take();
        }
        ended
    }
}

/// Whether a process has another namespace of this kind than we.
fn is_apart(pid: u32, name: &str) -> io::Result<bool> {
    let ours = std::fs::read_link(format!("/proc/self/ns/{name}"));
    match (std::fs::read_link(format!("/proc/{pid}/ns/{name}")), ours) {
        (Ok(its), Ok(ours)) => Ok(its != ours),
        // A kernel without this kind of namespace.
        (Err(_), Err(_)) => Ok(false),
        (Err(error), _) | (_, Err(error)) => Err(error),
    }
}

fn is_other_root(root: &impl AsFd) -> io::Result<bool> {
    let (its, ours) = (rustix::fs::fstat(root)?, std::fs::metadata("/")?);
    Ok((its.st_dev, its.st_ino) != (ours.dev(), ours.ino()))
}

/// `NAME=value` with a zero byte behind each, and ours instead of those of the same name.
fn variables(environ: &[u8], more: &[(String, String)]) -> Vec<(OsString, OsString)> {
    let its = environ.split(|byte| *byte == 0).filter_map(|entry| {
        let at = entry.iter().position(|byte| *byte == b'=').filter(|at| *at > 0)?;
        let (name, value) = (entry.get(..at)?, entry.get(at + 1..)?);
        Some((OsString::from_vec(name.to_vec()), OsString::from_vec(value.to_vec())))
    });
    let ours = more.iter().map(|(name, value)| (OsString::from(name), OsString::from(value)));
    its.chain(ours).collect()
}

fn set_oom(value: &str, missing: &mut Vec<String>) {
    use std::io::Write;
    let set = File::options().write(true).open("/proc/self/oom_score_adj");
    if let Err(error) = set.and_then(|mut file| file.write_all(value.as_bytes())) {
        missing.push(format!("its rank when memory runs out ({error})"));
    }
}

fn cannot(pid: u32, error: io::Error) -> Fault {
    if error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH) {
        return Fault::new(Code::ProcessNotRunning, format!("process {pid} has ended"))
            .hint("see `quorate ps`, and try again");
    }
    Fault::new(Code::EnterFailed, format!("cannot go where process {pid} is"))
        .hint("run it as root, or as the user that the agent runs as")
        .caused_by(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_those_of_the_process_and_ours_last() {
        let more = [("TERM".to_owned(), "xterm".to_owned())];
        let all = variables(b"A=1\0B=x=y\0\0=odd\0novalue\0", &more);
        let expected =
            [("A", "1"), ("B", "x=y"), ("TERM", "xterm")].map(|(n, v)| (OsString::from(n), OsString::from(v)));
        assert_eq!(all, expected);
    }

    #[test]
    fn a_process_that_ended_or_another_with_its_number_is_not_entered() {
        let mut identity = Identity::of(std::process::id()).unwrap();
        identity.started_ticks += 1;
        let errand =
            Errand { identity, commands: vec![], env: vec![], terminal: false, held: None, tools: Tools::Never };
        assert_eq!(errand.go(Path::new("/none")).unwrap_err().code(), Code::ProcessNotRunning);
    }
}
