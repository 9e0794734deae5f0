//! What the shim is told, and what it writes down about what it started.
//!
//! **Rule:** both files are readable by their owner alone: the program's environment may hold secrets.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use quorate_plan::boxes::BoxPlan;
use quorate_plan::server_log::Level;
use serde::{Deserialize, Serialize};

use crate::logs::Rotation;
use crate::process::Identity;
use crate::sandbox::Held;
use crate::sealed::{read_small, seal, unseal};
use crate::state::StateDir;

/// What etcd 3.5 and later, and 3.4 say when SIGTERM has reached their orderly way out. Before that way is open (while the
/// WAL is read), SIGTERM simply kills.
pub const ETCD_STOPPING: [&str; 2] = ["received signal; shutting down", "received terminated signal, shutting down"];

/// Linux takes no longer variable.
const VALUE_BYTES_MAX: u64 = 128 << 10;

/// What is to be run, and how.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShimSpec {
    /// What the program is called; its log is `<name>.log`.
    pub name: String,
    /// The program, an executable and not a script: it is known again by its file.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<String>,
    /// All of its environment.
    pub env: Vec<(String, String)>,
    /// Variables whose values stand in files, which are read right before it is started: no secret is in these orders.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env_files: Vec<(String, PathBuf)>,
    /// Its working directory.
    pub dir: PathBuf,
    /// Where its log goes; made if missing.
    pub log_dir: PathBuf,
    /// When log files are rotated.
    pub rotation: Rotation,
    /// The hash of its configuration.
    pub config_hash: String,
    /// Its version.
    pub etcd_version: String,
    /// Words one of which it says when it stops in its orderly way; none: its exit status says enough.
    pub stopping_words: Vec<String>,
    /// Lines of etcd's that are less grave than this are read and not kept; `None`: all are kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept_level: Option<Level>,
    /// How it is stopped when nobody says how.
    pub ladder: Vec<Rung>,
}

/// One step of a stop: what is sent, and how long it may take to work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rung {
    /// What is sent.
    pub send: Send,
    /// How long to wait before the next step.
    pub wait_ms: u64,
}

/// A signal of the ladder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Send {
    /// SIGTERM to the program.
    Term,
    /// SIGINT to the program: PostgreSQL ends its clients' transactions and stops in order.
    Int,
    /// SIGQUIT to the program: a Go program writes down what it is doing, and dies.
    Quit,
    /// SIGKILL to the whole process group.
    Kill,
}

impl ShimSpec {
    /// The whole environment, with what stands in files.
    pub(super) fn environment(&self) -> io::Result<Vec<(OsString, OsString)>> {
        let mut found: Vec<(OsString, OsString)> =
            self.env.iter().map(|(name, value)| (name.into(), value.into())).collect();
        for (name, path) in &self.env_files {
            let fail = |why: &str| io::Error::other(format!("the value of `{name}` in `{}`: {why}", path.display()));
            let mut bytes = Vec::new();
            let file = File::open(path).map_err(|error| fail(&error.to_string()))?;
            file.take(VALUE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(|error| fail(&error.to_string()))?;
            if bytes.len() as u64 > VALUE_BYTES_MAX {
                return Err(fail("it is too long for a variable"));
            }
            // Editors end a file with a line feed.
            let value = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
            if value.contains(&0) {
                return Err(fail("it is no text"));
            }
            found.push((name.into(), OsStr::from_bytes(value).to_owned()));
        }
        Ok(found)
    }
}

impl Rung {
    /// Half a minute for an orderly end, a few seconds for the dump, then the end.
    pub fn usual() -> Vec<Rung> {
        let rung = |send, wait_ms| Rung { send, wait_ms };
        vec![rung(Send::Term, 30_000), rung(Send::Quit, 5_000), rung(Send::Kill, 10_000)]
    }
}

/// The file that the shim reads: the specification, and the word by which the two know each other.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Orders {
    pub(super) spec: ShimSpec,
    pub(super) token: String,
    /// The box that it runs in, with every choice made; `None`: no box.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) boxed: Option<BoxPlan>,
}

/// Which processes run, as the shim wrote it down.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RunningFile {
    pub(super) shim: Identity,
    pub(super) child: Identity,
    /// Device and inode of the program's file.
    pub(super) file: (u64, u64),
    pub(super) token: String,
    pub(super) config_hash: String,
    pub(super) started_at_ms: u64,
    /// It was not started by a shim but taken over while it ran; then `shim` is the program itself.
    #[serde(default)]
    pub(super) taken: bool,
    /// What it was boxed with, so that others can be held in the same way; `None`: it has no box.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) held: Option<Box<Held>>,
}

impl RunningFile {
    /// `Ok(None)`: there is none. The inner error says why one cannot be read.
    pub(super) fn read(path: &Path) -> io::Result<Option<Result<RunningFile, String>>> {
        Ok(read_small(path)?.map(|bytes| unseal(&bytes)))
    }

    pub(super) fn write(&self, path: &Path) -> io::Result<()> {
        put(path, &seal(self)?)
    }
}

impl Orders {
    pub(super) fn read(path: &Path) -> Result<Orders, String> {
        let bytes = read_small(path).map_err(|error| error.to_string())?.ok_or("it is not there")?;
        unseal(&bytes)
    }

    pub(super) fn write(&self, path: &Path) -> io::Result<()> {
        put(path, &seal(self)?)
    }
}

/// What the program of a state dir is called, as its shim was told.
pub fn program_name(state: &StateDir) -> Option<String> {
    Orders::read(&state.spec()).ok().map(|orders| orders.spec.name)
}

/// Replaces a small private file in one step. It need not outlive a power cut: what it speaks of does not either.
pub(super) fn put(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(format!("{}{}", crate::durable::PARTIAL_MARK, std::process::id()));
    let partial = PathBuf::from(name);
    let mut file = std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&partial)?;
    file.write_all(bytes)?;
    Ok(rustix::fs::rename(&partial, path)?)
}

pub(super) fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis().try_into().unwrap_or(u64::MAX))
}
