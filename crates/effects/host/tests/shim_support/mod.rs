//! A state dir, a log dir and programs to run through a real shim.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::path::PathBuf;
use std::time::Duration;

use quorate_faults::Fault;
use quorate_host::exit_record::ExitRecord;
use quorate_host::logs::Rotation;
use quorate_host::shim::{Adoption, Ended, Rung, Running, Send, ShimSpec, StopOrder, adopt, spawn};
use quorate_host::state::StateDir;
use tempfile::TempDir;

pub(crate) const LIMIT: Duration = Duration::from_secs(30);

pub(crate) struct Place {
    pub(crate) dir: TempDir,
    pub(crate) state: StateDir,
}

impl Place {
    pub(crate) fn new() -> Place {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::open(&dir.path().join("state")).unwrap();
        Place { dir, state }
    }

    pub(crate) fn log_dir(&self) -> PathBuf {
        self.dir.path().join("log")
    }

    pub(crate) fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(self.log_dir().join("etcd.log")).unwrap_or_default()).into_owned()
    }

    pub(crate) fn sh(&self, script: &str) -> ShimSpec {
        ShimSpec {
            name: "etcd".to_owned(),
            program: "/bin/sh".into(),
            args: vec!["-c".to_owned(), script.to_owned()],
            env: vec![("PATH".to_owned(), "/usr/bin:/bin".to_owned())],
            env_files: Vec::new(),
            dir: self.dir.path().to_owned(),
            log_dir: self.log_dir(),
            rotation: Rotation::default(),
            config_hash: "hash".to_owned(),
            etcd_version: "3.5.16".to_owned(),
            stopping_words: vec![],
            kept_level: None,
            ladder: Rung::usual(),
        }
    }

    pub(crate) fn start(&self, spec: &ShimSpec) -> Running {
        self.try_start(spec).unwrap()
    }

    pub(crate) fn try_start(&self, spec: &ShimSpec) -> Result<Running, Fault> {
        spawn(&quorate_testkit::quorate(), &self.state, spec)
    }

    pub(crate) fn run(&self, script: &str) -> Running {
        self.start(&self.sh(script))
    }

    /// A program that does nothing until it is stopped.
    pub(crate) fn idle(&self) -> Running {
        let mut spec = self.sh("");
        spec.program = "/bin/sleep".into();
        spec.args = vec!["100".to_owned()];
        self.start(&spec)
    }

    /// The same program, found again as a new agent would.
    pub(crate) fn adopted(&self) -> Running {
        match adopt(&self.state).unwrap() {
            Adoption::Running(running) => running,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn wait_log(&self, text: &str) {
        quorate_testkit::wait_until(text, LIMIT, || self.log().contains(text));
    }
}

impl Drop for Place {
    /// Whatever a test started dies with it.
    fn drop(&mut self) {
        if let Ok(Adoption::Running(mut running)) = adopt(&self.state) {
            let _ = running.stop(&order(&[(Send::Kill, 1000)]));
            let _ = running.wait(LIMIT);
        }
    }
}

pub(crate) fn order(ladder: &[(Send, u64)]) -> StopOrder {
    let ladder = ladder.iter().map(|(send, wait_ms)| Rung { send: *send, wait_ms: *wait_ms }).collect();
    StopOrder { asked_by: "the test".to_owned(), ladder, last_revision: Some(42) }
}

pub(crate) fn patient() -> StopOrder {
    order(&[(Send::Term, 20_000), (Send::Quit, 5_000), (Send::Kill, 5_000)])
}

pub(crate) fn ended(running: &mut Running) -> Ended {
    running.wait(LIMIT).unwrap().expect("it ends in time")
}

pub(crate) fn record(running: &mut Running) -> ExitRecord {
    match ended(running) {
        Ended::Record(record) => record,
        Ended::NoRecord(why) => panic!("no record: {why}"),
    }
}

pub(crate) fn alive(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

pub(crate) fn signal(pid: u32, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_raw(pid.cast_signed()).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
}
