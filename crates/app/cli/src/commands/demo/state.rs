//! The demo's directory: what is in it, and the one file that says how it was founded.
//!
//! ```text
//! .demo/demo.json     ports and token; written once, before anything else
//! .demo/n1/data       n1's data dir
//! .demo/n1/etcd.log   what n1 has said since it was founded
//! ```

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use quorate_etcd_formats::founding::Founding;
use quorate_faults::{Code, Fault};
use quorate_host::durable::{Access, Disk, DiskFile, RealDisk, partial_path};
use quorate_host::locks::{Lock, exclusive_lock};
use serde::{Deserialize, Serialize};

use crate::render::for_shell;

/// The members' names.
const NAMES: [&str; 3] = ["n1", "n2", "n3"];

/// How the demo was founded.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
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
    /// Its ids.
    pub(super) founding: Founding,
}

/// A member's place.
#[derive(Debug, Clone)]
pub(super) struct Seat {
    pub(super) name: &'static str,
    pub(super) client_port: u16,
    pub(super) peer_port: u16,
    dir: PathBuf,
}

impl Seat {
    pub(super) fn client_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.client_port)
    }

    pub(super) fn peer_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.peer_port)
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(super) fn data_dir(&self) -> PathBuf {
        self.dir.join("data")
    }

    pub(super) fn log(&self) -> PathBuf {
        self.dir.join("etcd.log")
    }
}

/// The seats of a demo at `dir`.
pub(super) fn seats(dir: &Path, base_port: u16) -> Vec<Seat> {
    let ports = (base_port..).step_by(2);
    NAMES
        .iter()
        .zip(ports)
        .map(|(name, port)| Seat { name, client_port: port, peer_port: port + 1, dir: dir.join(name) })
        .collect()
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
        let settings = Settings { base_port, token };
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
        let seats = seats(&absolute, settings.base_port);
        let members = seats.iter().map(|seat| (seat.name.to_owned(), vec![seat.peer_url()])).collect();
        let founding = Founding::new(members, &settings.token)
            .map_err(|error| Fault::new(Code::RosterBadId, "cannot found the demo cluster").caused_by(error))?;
        Ok(Demo { shown: dir.to_owned(), dir: absolute, base_port: settings.base_port, seats, founding })
    }

    /// Whether any member was ever started. The log is made by the first start.
    pub(super) fn was_started(&self) -> bool {
        self.seats.iter().any(|seat| seat.log().exists())
    }

    /// The client URLs, as `etcdctl --endpoints` takes them.
    pub(super) fn endpoints(&self) -> Vec<String> {
        self.seats.iter().map(|seat| format!("127.0.0.1:{}", seat.client_port)).collect()
    }

    /// A `quorate demo …` command line for this demo.
    pub(super) fn command(&self, words: &str) -> String {
        match self.shown == Path::new(".demo") {
            true => format!("{} demo {words}", own_name()),
            false => format!("{} demo {words} --dir {}", own_name(), for_shell(&self.shown.to_string_lossy())),
        }
    }
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
