//! The words between agent and shim: one line of JSON each way, through a socket that only the same user may use.
//!
//! **Invariant:** no order is followed without the token of this run and the right user behind the connection.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};

use super::keeper::Event;
use super::spec::Rung;
use crate::logs::LogCounts;
use crate::process::Identity;

/// Longer lines are refused; an order is a few hundred bytes.
const LINE_MAX: u64 = 64 << 10;
/// A client that says nothing for so long is left.
const PATIENCE: Duration = Duration::from_secs(2);

/// What whoever has the wrong token is told.
pub(super) const WRONG_TOKEN: &str = "not the token of this run";

/// A request to stop the program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopOrder {
    /// Who wants it and why, for the exit record.
    pub asked_by: String,
    /// What to send, and how long to wait for it to work.
    pub ladder: Vec<Rung>,
    /// The last revision that is known, for the exit record.
    pub last_revision: Option<u64>,
}

/// What the shim says about itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The program.
    pub child: Identity,
    /// The hash of the configuration that it runs with.
    pub config_hash: String,
    /// Who asked for the stop that is under way.
    pub stopping: Option<String>,
    /// What became of its output.
    pub log: LogCounts,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Ask {
    Status,
    Stop(StopOrder),
    /// The newest revision that is known, for the exit record of an end that nobody asks for.
    Note {
        revision: u64,
    },
    Dump {
        asked_by: String,
    },
}

#[derive(Debug, Serialize, Deserialize)]
struct Request {
    token: String,
    ask: Ask,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Answer {
    Ok(Status),
    Refused(String),
}

/// Listens in the state dir. The path is gone through a descriptor, because a socket's name may only have 107 bytes.
pub(super) fn listen(dir: &Path) -> io::Result<UnixListener> {
    let name = "shim.sock";
    match rustix::fs::unlink(dir.join(name)) {
        Ok(()) | Err(rustix::io::Errno::NOENT) => {}
        Err(errno) => return Err(errno.into()),
    }
    let listener = through(dir, name, |path| UnixListener::bind(path))?;
    rustix::fs::chmod(dir.join(name), Mode::from_raw_mode(0o600))?;
    Ok(listener)
}

/// Asks the shim. `shim_pid`: who must be listening there.
pub(super) fn ask(dir: &Path, shim_pid: u32, token: &str, ask: Ask) -> io::Result<Answer> {
    let stream = through(dir, "shim.sock", |path| UnixStream::connect(path))?;
    let peer = rustix::net::sockopt::socket_peercred(&stream)?;
    if u32::try_from(peer.pid.as_raw_nonzero().get()) != Ok(shim_pid) {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "another process listens there"));
    }
    stream.set_read_timeout(Some(PATIENCE * 2))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut line = serde_json::to_vec(&Request { token: token.to_owned(), ask })?;
    line.push(b'\n');
    (&stream).write_all(&line)?;
    Ok(serde_json::from_slice(&read_line(&stream)?)?)
}

/// Answers whoever connects, one after the other, for as long as the process lives.
pub(super) fn serve(listener: &UnixListener, token: &str, events: &Sender<Event>) {
    loop {
        let Ok((stream, _)) = listener.accept() else {
            // Out of descriptors or memory: it passes, and a busy loop would make it worse.
            std::thread::sleep(Duration::from_millis(100));
            continue;
        };
        let answer = answer(&stream, token, events).unwrap_or_else(|error| Answer::Refused(error.to_string()));
        if let Ok(mut line) = serde_json::to_vec(&answer) {
            line.push(b'\n');
            // Whoever asked may be gone.
            let _ = (&stream).write_all(&line);
        }
    }
}

fn answer(stream: &UnixStream, token: &str, events: &Sender<Event>) -> io::Result<Answer> {
    let refuse = |why: &str| Ok(Answer::Refused(why.to_owned()));
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let uid = rustix::net::sockopt::socket_peercred(stream)?.uid;
    if uid != rustix::process::geteuid() && !uid.is_root() {
        return refuse("another user");
    }
    let request: Request = serde_json::from_slice(&read_line(stream)?)?;
    if request.token != token {
        return refuse(WRONG_TOKEN);
    }
    let (reply, answer) = channel();
    if events.send(Event::Asked(request.ask, reply)).is_err() {
        return refuse("the program has ended");
    }
    match answer.recv_timeout(PATIENCE) {
        Ok(answer) => Ok(answer),
        Err(_) => refuse("the program has ended"),
    }
}

fn read_line(stream: &UnixStream) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    BufReader::new(stream.take(LINE_MAX)).read_until(b'\n', &mut line)?;
    Ok(line)
}

fn through<T>(dir: &Path, name: &str, with: impl FnOnce(&Path) -> io::Result<T>) -> io::Result<T> {
    let dir = rustix::fs::open(dir, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    with(Path::new(&format!("/proc/self/fd/{}/{name}", dir.as_raw_fd())))
}
