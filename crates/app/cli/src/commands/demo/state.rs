//! The demo's directory: what is in it, and the one file that says how it was founded.
//!
//! ```text
//! .demo/demo.json      ports and token; written once, before anything else
//! .demo/cluster.yaml   the cluster file, as `quorate run` takes it
//! .demo/ca             the authorities of this demo
//! .demo/pki/n1         n1's certificates and keys
//! .demo/n1/data        n1's data dir
//! .demo/n1/agent.log   what n1's agent has said since it was founded
//! .demo/state/n1       n1's ledger, exit record and etcd's log
//! .demo/backups        where backups go
//! ```

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use quorate_etcd::ledger::{FILE_NAME, observe_ledger};
use quorate_etcd_formats::membership::ClusterId;
use quorate_faults::{Code, Fault};
use quorate_host::durable::{Access, Disk, DiskFile, RealDisk, partial_path};
use quorate_host::locks::{Lock, exclusive_lock};
use quorate_plan::ledger::LedgerSeen;
use quorate_plan::spec::Spec;
use serde::{Deserialize, Serialize};

use crate::render::for_shell;

/// The members' names.
const NAMES: [&str; 3] = ["n1", "n2", "n3"];

/// Ports of each member: for clients, members, agents and health.
const PORTS_EACH: usize = 4;

/// The form of the directory; another one was made by another version of this program.
const FORM: u32 = 2;

/// How the demo was founded.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    #[serde(default)]
    form: u32,
    base_port: u16,
    token: String,
}

/// A founded demo, running or not.
#[derive(Debug)]
pub(super) struct Demo {
    /// Its directory, as the operator calls it.
    pub(super) shown: PathBuf,
    /// Its directory, absolute.
    pub(super) dir: PathBuf,
    /// First of its ports.
    pub(super) base_port: u16,
    /// Its members in the order of their names.
    pub(super) seats: Vec<Seat>,
    /// What the cluster is called.
    pub(super) token: String,
    /// The id that its file declares.
    declared_id: ClusterId,
}

/// A member's place.
#[derive(Debug, Clone)]
pub(super) struct Seat {
    pub(super) name: &'static str,
    first_port: u16,
    demo: PathBuf,
}

impl Seat {
    /// For clients, members, agents and health.
    pub(super) fn ports(&self) -> [u16; PORTS_EACH] {
        let first = self.first_port;
        [first, first + 1, first + 2, first + 3]
    }

    pub(super) fn client_url(&self) -> String {
        url(self.ports()[0])
    }

    pub(super) fn peer_url(&self) -> String {
        url(self.ports()[1])
    }

    pub(super) fn dir(&self) -> PathBuf {
        self.demo.join(self.name)
    }

    pub(super) fn data_dir(&self) -> PathBuf {
        self.dir().join("data")
    }

    pub(super) fn log(&self) -> PathBuf {
        self.dir().join("agent.log")
    }

    pub(super) fn state_dir(&self) -> PathBuf {
        self.demo.join("state").join(self.name)
    }

    pub(super) fn pki_dir(&self) -> PathBuf {
        self.demo.join("pki").join(self.name)
    }
}

fn url(port: u16) -> String {
    format!("https://127.0.0.1:{port}")
}

/// The seats of a demo at `dir`.
pub(super) fn seats(dir: &Path, base_port: u16) -> Vec<Seat> {
    let ports = (base_port..).step_by(PORTS_EACH);
    NAMES.iter().zip(ports).map(|(name, first_port)| Seat { name, first_port, demo: dir.to_owned() }).collect()
}

impl Demo {
    /// Reads what is at `dir`; `None` when nothing was founded there.
    pub(super) fn open(dir: &Path) -> Result<Option<Demo>, Fault> {
        let absolute = absolute(dir)?;
        let path = absolute.join("demo.json");
        let text = match std::fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Fault::io(format!("cannot read `{}`", path.display()), error)),
        };
        let settings: Settings = serde_json::from_slice(&text).map_err(|error| {
            Fault::new(Code::Io, format!("cannot understand `{}`", path.display()))
                .hint(format!("move `{}` away and run `quorate demo` again", dir.display()))
                .caused_by(error)
        })?;
        Demo::new(dir, absolute, settings).map(Some)
    }

    /// Writes down how the demo is founded; from here on it is one.
    pub(super) fn create(dir: &Path, base_port: u16, token: String) -> Result<Demo, Fault> {
        let absolute = absolute(dir)?;
        let settings = Settings { form: FORM, base_port, token };
        let demo = Demo::new(dir, absolute.clone(), settings.clone())?;
        let text = serde_json::to_vec_pretty(&settings)
            .map_err(|error| Fault::new(Code::Internal, "cannot write down the demo's settings").caused_by(error))?;
        let path = absolute.join("demo.json");
        let partial = partial_path(&path, std::process::id()).unwrap_or_else(|| path.clone());
        let disk = RealDisk;
        disk.remove_partial(&partial)?;
        let mut file = disk.create_file(&partial, Access::mode(0o600))?;
        file.write_all(&text)?;
        file.sync()?;
        disk.rename_new(&partial, &path)?;
        disk.sync_dir(&absolute)?;
        Ok(demo)
    }

    fn new(dir: &Path, absolute: PathBuf, settings: Settings) -> Result<Demo, Fault> {
        if settings.form != FORM {
            let attempt = format!("`{}` was made by another version of quorate", dir.display());
            return Err(Fault::new(Code::InitNotEmpty, attempt)
                .hint("stop what runs in it with that version, and give another `--dir`"));
        }
        let seats = seats(&absolute, settings.base_port);
        let Settings { base_port, token, .. } = settings;
        let text = cluster_file(&absolute, &token, &seats, Path::new("etcd"));
        let (spec, _) = Spec::parse(text.as_bytes(), "cluster.yaml").map_err(|mistakes| mistakes.fault())?;
        let ids = spec.founding_ids().ok_or_else(|| Fault::new(Code::Internal, "the demo declares no founding"))?;
        Ok(Demo { shown: dir.to_owned(), dir: absolute, base_port, seats, token, declared_id: ids.cluster })
    }

    /// The cluster that its members are of, as the newest of their ledgers says: a recovery gives it another id. Before there is
    /// one, the cluster that is declared.
    pub(super) fn cluster_id(&self) -> ClusterId {
        let ledgers = self.seats.iter().filter_map(|seat| match observe_ledger(&seat.state_dir().join(FILE_NAME)) {
            LedgerSeen::There(ledger) => Some((ledger.generation, ledger.ids()?.0)),
            LedgerSeen::Absent | LedgerSeen::Unreadable(_) => None,
        });
        ledgers.max_by_key(|(generation, _)| *generation).map_or(self.declared_id, |(_, cluster)| cluster)
    }

    /// The cluster file's path.
    pub(super) fn file(&self) -> PathBuf {
        self.dir.join("cluster.yaml")
    }

    /// What stands in the cluster file.
    pub(super) fn text(&self, etcd: &Path) -> String {
        cluster_file(&self.dir, &self.token, &self.seats, etcd)
    }

    /// Where the authorities are.
    pub(super) fn ca_dir(&self) -> PathBuf {
        self.dir.join("ca")
    }

    /// Whether any member was ever started. The log is made by the first start.
    pub(super) fn was_started(&self) -> bool {
        self.seats.iter().any(|seat| seat.log().exists())
    }

    /// The client URLs.
    pub(super) fn endpoints(&self) -> Vec<String> {
        self.seats.iter().map(Seat::client_url).collect()
    }

    /// The member's place, as the operator calls it.
    pub(super) fn shown_log(&self, seat: &Seat) -> PathBuf {
        self.shown.join(seat.name).join("agent.log")
    }

    /// Another command line of this program.
    pub(super) fn other_command(&self, words: &str, more: &str) -> String {
        let file = self.shown.join("cluster.yaml");
        format!("{} {words} --config {}{more}", own_name(), for_shell(&file.to_string_lossy()))
    }

    /// A `quorate demo …` command line for this demo.
    pub(super) fn command(&self, words: &str) -> String {
        match self.shown == Path::new(".demo") {
            true => format!("{} demo {words}", own_name()),
            false => format!("{} demo {words} --dir {}", own_name(), for_shell(&self.shown.to_string_lossy())),
        }
    }
}

/// A cluster file for three members of one machine, with mutual TLS and backups.
fn cluster_file(dir: &Path, token: &str, seats: &[Seat], etcd: &Path) -> String {
    // JSON's way to write text is YAML's too.
    let quoted = |text: String| serde_json::Value::String(text).to_string();
    let path = |below: &str| quoted(dir.join(below).display().to_string());
    let mut text = format!("# Made by `quorate demo`.\ntoken: {token}\nbootstrap: {{id: 1}}\nmembers:\n");
    for seat in seats {
        let [_, _, agent, health] = seat.ports();
        text.push_str(&format!(
            "  - name: {}\n    peer-urls: [{}]\n    client-urls: [{}]\n    agent-url: {agent_url}\n    \
             listen-agent-url: {agent_url}\n    listen-health-url: {}\n    data-dir: {}\n",
            seat.name,
            seat.peer_url(),
            seat.client_url(),
            url(health),
            quoted(seat.data_dir().display().to_string()),
            agent_url = url(agent),
        ));
    }
    text.push_str(&format!("tls: {{dir: {}}}\n", path("pki/{name}")));
    text.push_str(&format!("backup: {{store: {}}}\n", quoted(format!("file://{}", dir.join("backups").display()))));
    let etcd = quoted(etcd.display().to_string());
    text.push_str(&format!("agent:\n  state-dir: {}\n  etcd-binary: {etcd}\n", path("state")));
    text
}

/// How this program was called, so that the commands it suggests work when they are pasted.
fn own_name() -> String {
    let called = std::env::args_os().next().map(|name| name.to_string_lossy().into_owned());
    called.filter(|name| name.contains('/')).map_or_else(|| "quorate".to_owned(), |name| for_shell(&name))
}

/// Makes the directory if need be, and takes the lock that keeps a second command out.
pub(super) fn enter(dir: &Path) -> Result<Lock, Fault> {
    let path = absolute(dir)?;
    match RealDisk.create_dir(&path, Access::mode(0o700)) {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return Err(Fault::new(
                Code::NotFound,
                format!("cannot make `{}`: its parent does not exist", dir.display()),
            )
            .hint("make the parent directory first, or give another `--dir`"));
        }
        Err(error) => return Err(error.into()),
    }
    lock(&path, dir)
}

/// Takes the lock of a directory that is there.
pub(super) fn lock(path: &Path, shown: &Path) -> Result<Lock, Fault> {
    let held = exclusive_lock(path).map_err(|error| Fault::io(format!("cannot lock `{}`", shown.display()), error))?;
    held.ok_or_else(|| {
        Fault::new(Code::InitBusy, format!("another `quorate demo` is working on `{}`", shown.display()))
            .hint("wait until it has finished, then run this again")
    })
}

/// Refuses a directory that holds something else.
pub(super) fn refuse_strangers(dir: &Path) -> Result<(), Fault> {
    let path = absolute(dir)?;
    let list = std::fs::read_dir(&path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let entries = list.map_err(|error| Fault::io(format!("cannot list `{}`", dir.display()), error))?;
    let stranger = entries.iter().map(|entry| entry.file_name()).find(|name| {
        // What an interrupted first run leaves behind is ours.
        !name.to_string_lossy().starts_with("demo.json.partial-")
    });
    match stranger {
        None => Ok(()),
        Some(name) => {
            let name = name.to_string_lossy().into_owned();
            Err(Fault::new(
                Code::InitNotEmpty,
                format!("`{}` is not empty (it holds `{name}`) and holds no demo", dir.display()),
            )
            .hint("give an empty or new directory with `--dir`"))
        }
    }
}

pub(super) fn absolute(dir: &Path) -> Result<PathBuf, Fault> {
    let place = |error| Fault::io(format!("cannot find out where `{}` is", dir.display()), error);
    let absolute = std::path::absolute(dir).map_err(place)?;
    // Spelled the same way on every run, because members are found by it; the last part need not exist yet.
    match (absolute.canonicalize(), absolute.parent(), absolute.file_name()) {
        (Ok(real), _, _) => Ok(real),
        (Err(_), Some(parent), Some(name)) => Ok(parent.canonicalize().map(|real| real.join(name)).unwrap_or(absolute)),
        (Err(_), _, _) => Ok(absolute),
    }
}
