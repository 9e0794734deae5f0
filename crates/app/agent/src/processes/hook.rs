//! Runs a command that belongs to a process: a hook, or the question of its health. In a box of the same kind, to its end.
//!
//! **Invariant:** when it returns, nothing of the command runs any more; one that a killed agent left behind is ended first.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use quorate_faults::{Code, Fault};
use quorate_host::exit_record::{self, ExitRecord, Recorded};
use quorate_host::shim::{self, Adoption, Ended, Running, StopOrder};
use quorate_host::state::StateDir;
use quorate_plan::boxes::BoxPlan;
use quorate_plan::spec::ProcessSpec;
use tokio::sync::watch;

use super::Order;
use super::launch;
use crate::turn::end_words;

/// How often an order is looked for.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How long a command may take to die from SIGKILL.
const KILL_LIMIT: Duration = Duration::from_secs(15);

/// A command, and what it needs.
pub(super) struct Hook {
    pub(super) process: ProcessSpec,
    /// The state dir of the process.
    pub(super) dir: PathBuf,
    pub(super) shim: PathBuf,
    pub(super) boxed: Option<BoxPlan>,
    /// `pre-start` and the like.
    pub(super) which: &'static str,
    pub(super) command: Vec<String>,
    pub(super) timeout: Duration,
    /// Given up when an order comes; `None`: it is part of following one.
    pub(super) orders: Option<watch::Receiver<Option<Order>>>,
}

impl Hook {
    fn state(&self) -> Result<StateDir, Fault> {
        StateDir::open(&self.dir.join("hooks").join(self.which))
    }

    /// Whether it ended well after a moment.
    pub(super) fn is_done_since(&self, ms: u64) -> bool {
        let path = self.dir.join("hooks").join(self.which).join("exit-record");
        matches!(exit_record::read(&path), Recorded::Record(record) if record.code == Some(0) && record.ended_at_ms >= ms)
    }

    /// Runs it. Takes as long as it takes: not for async code.
    pub(super) fn run(self) -> Result<(), Fault> {
        let state = self.state()?;
        if let Adoption::Running(mut left) = shim::adopt(&state)? {
            end(&mut left, "the agent, which was started anew");
        }
        let orders = launch::command_orders(&self.process, &self.dir, self.which, &self.command);
        let record = match shim::spawn_boxed(&self.shim, &state, &orders, self.boxed.clone()) {
            Ok(running) => self.wait(running)?,
            Err(fault) if fault.code() == Code::EndedAtOnce => match exit_record::read(&state.record()) {
                Recorded::Record(record) => record,
                Recorded::Absent | Recorded::Unreadable(_) => return Err(fault),
            },
            Err(fault) => return Err(fault),
        };
        match record.code {
            Some(0) => Ok(()),
            _ => Err(self.failed(&end_words(&record))),
        }
    }

    fn failed(&self, how: &str) -> Fault {
        let log = self.dir.join("logs").join(format!("{}-{}.log", self.process.name, self.which));
        Fault::new(Code::HookFailed, format!("`{}` of `{}` failed: it {how}", self.which, self.process.name))
            .hint(format!("what it said is in `{}`", log.display()))
    }

    fn wait(&self, mut running: Running) -> Result<ExitRecord, Fault> {
        let begun = Instant::now();
        loop {
            match running.wait(LOOK_EVERY)? {
                Some(Ended::Record(record)) => return Ok(record),
                Some(Ended::NoRecord(why)) => return Err(self.failed(&format!("ended, and nobody knows how: {why}"))),
                None => {}
            }
            if self.orders.as_ref().is_some_and(|orders| orders.borrow().is_some()) {
                end(&mut running, "the agent, which has other orders");
                return Err(self.failed("was given up"));
            }
            if begun.elapsed() >= self.timeout {
                end(&mut running, "the agent, after its time was over");
                return Err(self.failed(&format!("took longer than {:?}", self.timeout)));
            }
        }
    }
}

fn end(running: &mut Running, asked_by: &str) {
    let ladder = vec![shim::Rung { send: shim::Send::Kill, wait_ms: 10_000 }];
    let order = StopOrder { asked_by: asked_by.to_owned(), ladder, last_revision: None };
    // What does not end now is ended before the next run of it.
    let _ = running.stop(&order).and_then(|()| running.wait(KILL_LIMIT));
}
