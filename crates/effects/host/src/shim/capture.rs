//! The program's output on its way into the log files.
//!
//! The program writes into one end of a pair of *datagram* sockets. A reader that dies gives the writer an error and no
//! SIGPIPE, which a Go program would die from; one that hangs costs the writer [`WRITE_LIMIT`] for a line and no more.
//!
//! **Invariant:** neither the death nor the sleep of the reader ends or blocks the program.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use quorate_plan::server_log::{self, Level};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_send_buffer_size, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, recv, socketpair};

use super::spec::{ShimSpec, now_ms};
use crate::logs::{Lines, LogCounts, LogFiles};

/// How long a write of the program waits for a reader that does not read. Less loses lines on a machine so busy that the
/// reader is not let run for a while.
const WRITE_LIMIT: Duration = Duration::from_millis(250);
/// The largest piece that one write may carry.
const PIECE_MAX: usize = 416 << 10;
/// How long the last lines may take after the program has ended.
const DRAIN_LIMIT: Duration = Duration::from_secs(5);
/// A dump of all goroutines is some megabytes.
const DUMP_MAX: u64 = 64 << 20;
/// How many dumps are kept.
const DUMPS_KEPT: usize = 5;

/// What the reader of the output and the keeper tell each other.
#[derive(Debug, Default)]
pub(super) struct Shared {
    /// Set when a stop was asked for: from now on the words of an orderly end count.
    pub(super) stopping: AtomicBool,
    /// Those words were said.
    pub(super) said_stopping: AtomicBool,
    /// Set before SIGQUIT: from now on the output is kept in a file of its own too.
    pub(super) dumping: AtomicBool,
    pub(super) counts: Mutex<LogCounts>,
}

/// Both ends: ours, and the one that becomes the program's stdout and stderr.
pub(super) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    set_socket_timeout(&theirs, Timeout::Send, Some(WRITE_LIMIT))?;
    // The system's limit applies; less only means that the program waits for us earlier.
    let _ = set_socket_send_buffer_size(&theirs, PIECE_MAX);
    Ok((ours, theirs))
}

/// Reads until `over` is closed, then what is left.
pub(super) struct Reader {
    pub(super) socket: OwnedFd,
    /// Its other end is closed when the program is gone.
    pub(super) over: OwnedFd,
    pub(super) shared: Arc<Shared>,
    files: LogFiles,
    lines: Lines,
    words: Vec<String>,
    kept_level: Option<Level>,
    /// Whether the last line was kept: what begins nothing belongs to it.
    kept_last: bool,
    log_dir: PathBuf,
    name: String,
    dump: Option<(File, u64)>,
}

impl Reader {
    pub(super) fn new(socket: OwnedFd, over: OwnedFd, shared: Arc<Shared>, spec: &ShimSpec) -> Reader {
        let files = LogFiles::new(&spec.log_dir.join(format!("{}.log", spec.name)), spec.rotation);
        let words = spec.stopping_words.clone();
        let (log_dir, name) = (spec.log_dir.clone(), spec.name.clone());
        let (kept_level, lines) = (spec.kept_level, Lines::default());
        Reader { socket, over, shared, files, lines, words, kept_level, kept_last: true, log_dir, name, dump: None }
    }

    pub(super) fn run(mut self) {
        let mut piece = vec![0; PIECE_MAX];
        let mut over = None;
        loop {
            while let Some(length) = self.receive(&mut piece) {
                self.take(&piece[..length]);
                if over.is_some_and(|since: Instant| since.elapsed() > DRAIN_LIMIT) {
                    break;
                }
            }
            self.publish();
            if over.is_some() {
                break;
            }
            let mut fds = [PollFd::new(&self.socket, PollFlags::IN), PollFd::new(&self.over, PollFlags::IN)];
            // An interrupted wait is tried again like an ended one.
            let _ = poll(&mut fds, None);
            if !fds[1].revents().is_empty() {
                over = Some(Instant::now());
            }
        }
        let mut rest = Vec::new();
        self.lines.finish(|line| rest.extend_from_slice(line));
        if !rest.is_empty() {
            self.line(&rest);
        }
        self.publish();
    }

    fn receive(&self, piece: &mut [u8]) -> Option<usize> {
        loop {
            match recv(&self.socket, &mut *piece, RecvFlags::DONTWAIT) {
                Ok((length, _)) => return Some(length),
                Err(Errno::INTR) => {}
                Err(_) => return None,
            }
        }
    }

    fn take(&mut self, bytes: &[u8]) {
        let mut lines = std::mem::take(&mut self.lines);
        lines.push(bytes, |line| self.line(line));
        self.lines = lines;
    }

    fn line(&mut self, line: &[u8]) {
        if self.is_kept(line) {
            self.files.write(line);
        }
        if self.shared.stopping.load(Ordering::Acquire) && self.words.iter().any(|word| contains(line, word.as_bytes()))
        {
            self.shared.said_stopping.store(true, Ordering::Release);
        }
        if self.shared.dumping.load(Ordering::Acquire) {
            self.keep_dump(line);
        }
    }

    fn is_kept(&mut self, line: &[u8]) -> bool {
        let Some(least) = self.kept_level else { return true };
        let text = String::from_utf8_lossy(line);
        if let Some(line) = server_log::parse(text.trim_end()) {
            self.kept_last = line.level >= least;
        }
        self.kept_last
    }

    fn keep_dump(&mut self, line: &[u8]) {
        if self.dump.is_none() {
            // A dump that cannot be kept is still in the log.
            let Ok(file) = new_dump(&self.log_dir, &self.name) else { return };
            self.dump = Some((file, 0));
        }
        if let Some((file, bytes)) = self.dump.as_mut().filter(|(_, bytes)| *bytes < DUMP_MAX) {
            *bytes += line.len() as u64;
            let _ = file.write_all(line);
        }
    }

    fn publish(&self) {
        let mut counts = self.shared.counts.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        counts.clone_from(self.files.counts());
    }
}

fn contains(line: &[u8], word: &[u8]) -> bool {
    !word.is_empty() && line.windows(word.len()).any(|window| window == word)
}

fn new_dump(dir: &Path, name: &str) -> io::Result<File> {
    let prefix = format!("{name}-dump-");
    let entries = std::fs::read_dir(dir)?.flatten().map(|entry| entry.path());
    let is_dump = |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&prefix));
    let mut old: Vec<PathBuf> = entries.filter(is_dump).collect();
    old.sort();
    for path in old.iter().take((old.len() + 1).saturating_sub(DUMPS_KEPT)) {
        rustix::fs::unlink(path)?;
    }
    let path = dir.join(format!("{prefix}{:013}.txt", now_ms()));
    std::fs::OpenOptions::new().create_new(true).write(true).mode(0o640).open(path)
}
