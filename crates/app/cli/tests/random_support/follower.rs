//! `quorate backup follow` as a process, and what its log says.
//!
//! **Rule:** every line that a follower ever said is kept, also of one that was killed: its announcements bind.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use quorate_testkit::{Port, Running, free_port, quorate};
use serde_json::Value;

use crate::backup_support::put;

/// How a hole is announced that only a full to be taken will close.
const FULL_FOLLOWS: &str = "a full backup is taken, moments in between cannot be restored";

/// A running follower.
pub(crate) struct Follower {
    pub(crate) running: Running,
    pub(crate) spool: usize,
    port: Port,
    log: PathBuf,
}

/// How a follower ended.
#[derive(Debug, Clone)]
pub(crate) struct End {
    /// `None`: by a signal.
    pub(crate) exit: Option<i32>,
    /// What it said last of all, with the fault.
    pub(crate) words: String,
}

/// How followers are started.
pub(crate) struct Orders {
    pub(crate) root: PathBuf,
    pub(crate) store: String,
    pub(crate) endpoints: String,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) more: Vec<String>,
    pub(crate) started: usize,
}

impl Orders {
    /// Starts one with the spool of that number.
    pub(crate) fn start(&mut self, spool: usize) -> Follower {
        let port = free_port();
        let mut args: Vec<String> =
            ["backup", "follow", "--log-format", "json", "--log-level", "debug"].map(str::to_owned).to_vec();
        let pairs = [
            ("--store", self.store.clone()),
            ("--endpoints", self.endpoints.clone()),
            ("--spool", self.root.join(format!("spool-{spool}")).display().to_string()),
            ("--delta-period", "1s".to_owned()),
            ("--delta-size", "512KiB".to_owned()),
            ("--full-schedule", "*/6 * * * * *".to_owned()),
            ("--flush-timeout", "6s".to_owned()),
            ("--metrics-listen", format!("http://127.0.0.1:{port}")),
        ];
        for (flag, value) in pairs {
            args.extend([flag.to_owned(), value]);
        }
        args.extend(self.more.clone());
        self.started += 1;
        let log = self.root.join(format!("logs/{:03}-spool-{spool}.log", self.started));
        Follower { running: Running::start(&quorate(), &args, &self.env), spool, port, log }
    }
}

impl Follower {
    /// SIGKILL.
    pub(crate) fn kill(mut self) {
        self.running.kill();
    }

    /// SIGTERM, and how it ended.
    pub(crate) fn stop(mut self) -> End {
        let status = self.running.stop();
        End { exit: status.code(), words: self.running.log_tail(4) }
    }

    /// How it ended by itself, if it has.
    pub(crate) fn ended(&mut self) -> Option<End> {
        let status = self.running.ended()?;
        Some(End { exit: status.code(), words: self.running.log_tail(4) })
    }

    /// A number of its metrics.
    pub(crate) fn metric(&self, name: &str) -> Option<f64> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port.number())).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        let line = text.lines().find(|line| line.starts_with(name))?;
        line.rsplit(' ').next()?.parse().ok()
    }

    /// Whether a hole that it announced waits for its full.
    pub(crate) fn has_open_hole(&self) -> bool {
        let log = self.running.log();
        log.rfind(FULL_FOLLOWS).is_some_and(|at| !log[at..].contains("stored a full"))
    }

    /// Whether a line of its log says so.
    pub(crate) fn said(&self, words: &str) -> bool {
        self.running.log().contains(words)
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        if self.running.ended().is_none() {
            self.running.kill();
        }
        put(&self.log, self.running.log().as_bytes());
    }
}

/// One line of a log.
#[derive(Debug, Clone)]
pub(crate) struct Line {
    pub(crate) time: String,
    pub(crate) said: Value,
}

/// All lines of all followers in the order of time.
pub(crate) fn lines(root: &Path) -> Vec<Line> {
    let mut lines = Vec::new();
    for entry in std::fs::read_dir(root.join("logs")).unwrap() {
        let text = String::from_utf8_lossy(&std::fs::read(entry.unwrap().path()).unwrap()).into_owned();
        lines.extend(text.lines().filter_map(|line| {
            let said: Value = serde_json::from_str(line).ok()?;
            Some(Line { time: said["timestamp"].as_str()?.to_owned(), said })
        }));
    }
    lines.sort_by(|one, other| one.time.cmp(&other.time));
    lines
}

/// Revisions that a follower said cannot be restored, each with what it said: from the first missing one to before the
/// full that closed the hole.
pub(crate) fn announced_holes(lines: &[Line]) -> Vec<(u64, u64)> {
    let mut holes: Vec<(u64, u64)> = Vec::new();
    let mut open: Option<(u64, u64)> = None;
    for line in lines {
        let message = line.said["message"].as_str().unwrap_or_default();
        if line.said["code"] == "Q0845" {
            let numbers: Vec<u64> = message.split_whitespace().filter_map(|word| word.parse().ok()).collect();
            let (first, last) = (numbers[0], numbers[1]);
            if !message.contains(FULL_FOLLOWS) {
                // The full is there already.
                holes.push((first, last));
                continue;
            }
            open = Some(open.map_or((first, last), |(from, to)| (from.min(first), to.max(last))));
        }
        if message.contains("stored a full")
            && let Some((from, to)) = open
        {
            let full = line.said["revision"].as_u64().unwrap_or(0);
            if full >= to {
                holes.push((from, full.max(to) - 1));
                open = None;
            }
        }
    }
    // A full never came: the hole is still open.
    holes.extend(open.map(|(from, _)| (from, u64::MAX)));
    holes
}
