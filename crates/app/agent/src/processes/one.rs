//! Keeps one process: finds or starts it, knows whether it is well, notices its end, and ends it when asked.
//!
//! **Invariant:** an order is heard at every step; between the start of the process and our knowing of it nothing is awaited
//! but the shim.

use std::hash::BuildHasher;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quorate_faults::{Code, Exit, Fault};
use quorate_host::exit_record::{self, ExitRecord, Recorded};
use quorate_host::shim::{self, Ended, Running, StopOrder};
use quorate_host::state::StateDir;
use quorate_plan::boxes::BoxPlan;
use quorate_plan::processes::{AfterEnd, HealthSeen, Launch, RunEnd, Verdict, judge, plan_after_end, plan_launch};
use quorate_plan::spec::{Check, HealthSpec, ProcessSpec, duration_text};
use tokio::sync::watch;
use tracing::{info, warn};

use super::board::Board;
use super::find::Found;
use super::hook::Hook;
use super::{Order, health, launch};
use crate::turn::{end_words, in_words, level_of, now_ms, watched};

/// Between two looks at etcd, and at what does not change by itself.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Between two looks at something that only a person can mend.
pub(super) const LOOK_LATER: Duration = Duration::from_secs(5);
/// While a process starts it is asked at least so often.
const ASK_SOON: Duration = Duration::from_millis(500);
/// How long an end may take to be recorded once the program is gone.
const RECORD_MS: u64 = 10_000;
/// Runs that are remembered; more of them say nothing more.
const RUNS_MAX: usize = 64;

/// The keeper of one process.
pub(super) struct Keeper {
    pub(super) spec: ProcessSpec,
    /// Its state dir.
    pub(super) dir: PathBuf,
    shim: PathBuf,
    board: Arc<Board>,
    pub(super) orders: watch::Receiver<Option<Order>>,
    runs: Vec<(Duration, RunEnd)>,
}

impl Keeper {
    pub(super) fn new(
        spec: ProcessSpec,
        dir: PathBuf,
        shim: PathBuf,
        board: Arc<Board>,
        orders: watch::Receiver<Option<Order>>,
    ) -> Keeper {
        Keeper { spec, dir, shim, board, orders, runs: Vec::new() }
    }

    /// Keeps it until there is an order.
    pub(super) async fn live(mut self) {
        let mut found = match self.adopt().await {
            Found::Running(running) => Some((*running, true)),
            Found::Nothing => None,
            Found::Ordered => return self.tell("stopped", None, None),
        };
        loop {
            let (running, adopted) = match found.take() {
                Some(found) => found,
                None => match self.bring_up().await {
                    Some(running) => (running, false),
                    None => return self.tell("stopped", None, None),
                },
            };
            if !self.tend(running, adopted).await {
                return;
            }
        }
    }

    pub(super) fn tell(&self, state: &str, cause: Option<String>, code: Option<Code>) {
        self.board.change(&self.spec.name, |row| {
            row.state = state.to_owned();
            row.cause = cause;
            row.code = code.map(|code| code.as_str().to_owned());
        });
    }

    /// Waits for an order.
    async fn ordered(&mut self) -> Order {
        let mut orders = self.orders.clone();
        match orders.wait_for(Option::is_some).await {
            Ok(order) => order.clone().unwrap_or(Order::Leave),
            // Nobody is left who could give one.
            Err(_) => Order::Leave,
        }
    }

    /// Waits a while; `false`: there is an order.
    pub(super) async fn pause(&mut self, span: Duration) -> bool {
        tokio::select! {
            () = tokio::time::sleep(span) => true,
            _ = self.ordered() => false,
        }
    }

    /// Waits until it may be started, and starts it. `None`: there is an order.
    async fn bring_up(&mut self) -> Option<Running> {
        loop {
            match plan_after_end(&self.spec.restart, &self.runs, jitter()) {
                AfterEnd::Rest => {
                    self.board.change(&self.spec.name, |row| row.state = "finished".to_owned());
                    self.ordered().await;
                    return None;
                }
                AfterEnd::Again { wait, .. } if wait.is_zero() => {}
                AfterEnd::Again { wait, crash_loop } => {
                    self.tell_wait(wait, crash_loop);
                    if !self.pause(wait).await {
                        return None;
                    }
                }
            }
            if !self.wait_for_others().await {
                return None;
            }
            self.tell("starting", None, None);
            match self.start().await {
                Ok(running) => return Some(running),
                Err(fault) if fault.code() == Code::EndedAtOnce => self.ended_at_once(&fault),
                Err(fault) => self.not_started(&fault),
            }
            if self.orders.borrow().is_some() {
                return None;
            }
        }
    }

    fn tell_wait(&self, wait: Duration, crash_loop: Option<u32>) {
        let wait = duration_text(Duration::from_millis(u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)));
        let how = match self.runs.last() {
            Some((_, RunEnd::Failed(how))) => how.clone(),
            Some((_, RunEnd::Done)) | None => "ended with exit code 0".to_owned(),
        };
        let (code, times) = match crash_loop {
            Some(times) => (Code::ProcessLoop, format!("{times} times in a row")),
            None => (Code::ProcessEnded, "again".to_owned()),
        };
        let cause = format!("it failed or ended {times} ({how}); it is started again in {wait}");
        warn!(process = self.spec.name, code = %code, "{cause}");
        self.tell("waiting", Some(cause), Some(code));
    }

    /// Waits until all that it names in `after` is ready. `false`: there is an order.
    async fn wait_for_others(&mut self) -> bool {
        let mut rows = self.board.subscribe();
        loop {
            match plan_launch(&self.spec, &self.board.ready()) {
                Launch::Now => return self.orders.borrow().is_none(),
                Launch::WaitFor(names) => {
                    let cause = format!("it waits until {} is ready", names.join(" and "));
                    self.tell("waiting", Some(cause), Some(Code::ProcessWaits));
                }
            }
            rows.mark_unchanged();
            tokio::select! {
                _ = rows.changed() => {}
                // Nobody tells when etcd is.
                () = tokio::time::sleep(LOOK_EVERY) => {}
                _ = self.ordered() => return false,
            }
        }
    }

    /// It was over before anybody could look.
    fn ended_at_once(&mut self, fault: &Fault) {
        match exit_record::read(&self.dir.join("exit-record")) {
            Recorded::Record(record) => self.note_record(&record, Duration::ZERO),
            Recorded::Absent | Recorded::Unreadable(_) => self.not_started(fault),
        }
    }

    fn note_record(&mut self, record: &ExitRecord, lasted: Duration) {
        let how = end_words(record);
        warn!(process = self.spec.name, code = %Code::ProcessEnded, "process {} {how}", record.pid);
        self.note(lasted, if record.code == Some(0) { RunEnd::Done } else { RunEnd::Failed(how) });
        self.tell("waiting", None, Some(Code::ProcessEnded));
    }

    fn not_started(&mut self, fault: &Fault) {
        let how = in_words(fault);
        // What only a person can mend is shown as that, and tried again all the same.
        let refused =
            matches!(fault.code().exit(), Exit::ConfigInvalid | Exit::Refused | Exit::CannotMeet | Exit::Usage);
        warn!(process = self.spec.name, code = %fault.code(), "it cannot be started: {how}");
        let state = if refused { "refused" } else { "waiting" };
        self.tell(state, Some(how.clone()), Some(fault.code()));
        self.note(Duration::ZERO, RunEnd::Failed(how));
    }

    fn note(&mut self, lasted: Duration, end: RunEnd) {
        self.board.ended(&self.spec.name);
        let how = match &end {
            RunEnd::Done => "ended with exit code 0".to_owned(),
            RunEnd::Failed(how) => how.clone(),
        };
        self.board.change(&self.spec.name, |row| {
            row.pid = None;
            row.started_ms = None;
            row.level = None;
            row.last_end = Some(how);
            row.restarts += 1;
        });
        self.runs.push((lasted, end));
        if self.runs.len() > RUNS_MAX {
            self.runs.remove(0);
        }
    }

    async fn start(&mut self) -> Result<Running, Fault> {
        let process = self.spec.clone();
        let boxed = blocking(move || launch::ensure_box(&process)).await?;
        self.hook("pre-start", &self.spec.hooks.pre_start.clone(), boxed.clone()).await?;
        let (process, dir, shim) = (self.spec.clone(), self.dir.clone(), self.shim.clone());
        self.board.started(&self.spec.name);
        blocking(move || {
            let orders = launch::orders(&process, &dir);
            shim::spawn_boxed(&shim, &StateDir::open(&dir)?, &orders, boxed)
        })
        .await
    }

    fn as_hook(&self, which: &'static str, command: &[String], boxed: Option<BoxPlan>) -> Hook {
        Hook {
            process: self.spec.clone(),
            dir: self.dir.clone(),
            shim: self.shim.clone(),
            boxed,
            which,
            command: command.to_vec(),
            timeout: self.spec.hooks.timeout,
            orders: Some(self.orders.clone()),
        }
    }

    async fn hook(&self, which: &'static str, command: &[String], boxed: Option<BoxPlan>) -> Result<(), Fault> {
        if command.is_empty() {
            return Ok(());
        }
        let hook = self.as_hook(which, command, boxed);
        blocking(move || hook.run()).await
    }

    /// Tends it until it has ended (`true`), or until there is an order.
    async fn tend(&mut self, running: Running, adopted: bool) -> bool {
        self.board.change(&self.spec.name, |row| {
            row.state = "running".to_owned();
            row.cause = None;
            row.code = None;
            row.pid = Some(running.child().pid);
            row.started_ms = Some(running.started_at_ms());
            row.level = Some(level_of(&running).name().to_owned());
        });
        let boxed = running.held().map(|held| held.plan().clone());
        if let Err(fault) = self.after_start(&running, adopted, boxed.clone()).await {
            if self.orders.borrow().is_none() {
                warn!(process = self.spec.name, code = %fault.code(), "{}", in_words(&fault));
                return self.replace(running, &fault).await;
            }
        } else if self.spec.health.is_none() {
            info!(process = self.spec.name, pid = running.child().pid, "it is ready");
            self.tell("ready", None, None);
        }
        self.watch(running, boxed).await
    }

    /// The hook `post-start`, where it has not been run for this very run.
    async fn after_start(&mut self, running: &Running, adopted: bool, boxed: Option<BoxPlan>) -> Result<(), Fault> {
        let command = self.spec.hooks.post_start.clone();
        let hook = self.as_hook("post-start", &command, None);
        if command.is_empty() || (adopted && hook.is_done_since(running.started_at_ms())) {
            return Ok(());
        }
        self.hook("post-start", &command, boxed).await
    }

    async fn watch(&mut self, mut running: Running, boxed: Option<BoxPlan>) -> bool {
        let mut seen = HealthSeen::default();
        let mut next = tokio::time::Instant::now();
        loop {
            let end = match watched(&running) {
                Ok(end) => end,
                Err(fault) => {
                    warn!(process = self.spec.name, code = %fault.code(), "{}", in_words(&fault));
                    if !self.pause(LOOK_LATER).await {
                        return self.follow(running).await;
                    }
                    continue;
                }
            };
            let health = self.spec.health.clone();
            tokio::select! {
                _ = end.readable() => {
                    drop(end);
                    match running.wait(Duration::from_millis(100)) {
                        Ok(Some(ended)) => {
                            self.over(&running, &ended);
                            return true;
                        }
                        // Its shim is gone: from here on it is the process itself that is watched.
                        Ok(None) => {}
                        Err(fault) => warn!(process = self.spec.name, code = %fault.code(), "{}", in_words(&fault)),
                    }
                }
                () = tokio::time::sleep_until(next), if health.is_some() => {
                    drop(end);
                    let Some(health) = health else { continue };
                    let answer = self.ask(&health, boxed.clone()).await;
                    let Some(answer) = answer else { return self.follow(running).await };
                    let age = Duration::from_millis(now_ms().saturating_sub(running.started_at_ms()));
                    let (now, verdict) = judge(&health, seen, answer.is_ok(), age);
                    seen = now;
                    let every = if seen.ready { health.every } else { health.every.min(ASK_SOON) };
                    next = tokio::time::Instant::now() + every;
                    if let Some(fault) = self.heard(&health, verdict, answer) {
                        return self.replace(running, &fault).await;
                    }
                }
                _ = self.ordered() => {
                    drop(end);
                    return self.follow(running).await;
                }
            }
        }
    }

    /// Asks it. `None`: there is an order.
    async fn ask(&mut self, health: &HealthSpec, boxed: Option<BoxPlan>) -> Option<health::Answer> {
        if let Check::Exec(command) = &health.check {
            let hook = Hook { timeout: health.timeout, ..self.as_hook("health", command, boxed) };
            let answer = blocking(move || hook.run()).await;
            return self.orders.borrow().is_none().then(|| answer.map_err(|fault| in_words(&fault)));
        }
        tokio::select! {
            answer = health::ask(&health.check, health.timeout) => Some(answer),
            _ = self.ordered() => None,
        }
    }

    /// Shows an answer. A fault: it is to be started anew.
    fn heard(&self, health: &HealthSpec, verdict: Verdict, answer: health::Answer) -> Option<Fault> {
        let why = answer.err().unwrap_or_default();
        match verdict {
            Verdict::Ready => {
                if !self.board.ready().get(&self.spec.name).copied().unwrap_or_default() {
                    info!(process = self.spec.name, "it is ready");
                    self.tell("ready", None, None);
                }
                None
            }
            Verdict::NotReady => {
                self.tell("running", Some(why), Some(Code::ProcessUnhealthy));
                None
            }
            Verdict::Replace => {
                let what = format!("it is not well, {} answers in a row: {why}", health.failures);
                Some(Fault::new(Code::ProcessUnhealthy, what).hint("see its log"))
            }
        }
    }

    /// It has ended, and nobody of us asked.
    fn over(&mut self, running: &Running, ended: &Ended) {
        let lasted = Duration::from_millis(now_ms().saturating_sub(running.started_at_ms()));
        match ended {
            Ended::Record(record) => self.note_record(record, lasted),
            Ended::NoRecord(why) => {
                let how = format!("ended, and it is not recorded how: {why}");
                warn!(process = self.spec.name, code = %Code::ProcessEnded, "process {} {how}", running.child().pid);
                self.note(lasted, RunEnd::Failed(how));
                self.tell("waiting", None, Some(Code::ProcessEnded));
            }
        }
    }

    /// Stops it, so that it is started anew. Always `true`, unless it does not end.
    async fn replace(&mut self, running: Running, fault: &Fault) -> bool {
        let lasted = Duration::from_millis(now_ms().saturating_sub(running.started_at_ms()));
        let how = in_words(fault);
        self.tell("stopping", Some(how.clone()), Some(fault.code()));
        if let Err(fault) = self.end(running, &format!("the agent: {how}")).await {
            warn!(process = self.spec.name, code = %fault.code(), "{}", in_words(&fault));
            self.tell("refused", Some(in_words(&fault)), Some(fault.code()));
            // What does not end is found again.
            self.ordered().await;
            return false;
        }
        self.note(lasted, RunEnd::Failed(how.clone()));
        self.tell("waiting", Some(how), Some(fault.code()));
        true
    }

    /// Follows the order that there is. Always `false`.
    async fn follow(&mut self, running: Running) -> bool {
        let Order::Stop(asked_by) = self.ordered().await else { return false };
        self.tell("stopping", Some(format!("asked by {asked_by}")), None);
        let boxed = running.held().map(|held| held.plan().clone());
        let command = self.spec.hooks.pre_stop.clone();
        if !command.is_empty() {
            // It is part of following the order.
            let hook = Hook { orders: None, ..self.as_hook("pre-stop", &command, boxed) };
            if let Err(fault) = blocking(move || hook.run()).await {
                warn!(process = self.spec.name, code = %fault.code(), "{}; it is stopped all the same", in_words(&fault));
            }
        }
        let told = self.end(running, &asked_by).await;
        self.board.change(&self.spec.name, |row| (row.pid, row.started_ms, row.level) = (None, None, None));
        match told {
            Ok(how) => {
                info!(process = self.spec.name, "{how}");
                self.tell("stopped", Some(how), None);
            }
            Err(fault) => {
                warn!(process = self.spec.name, code = %fault.code(), "{}", in_words(&fault));
                self.tell("refused", Some(in_words(&fault)), Some(fault.code()));
            }
        }
        false
    }

    /// Climbs the ladder, and says how it ended.
    pub(super) async fn end(&self, mut running: Running, asked_by: &str) -> Result<String, Fault> {
        let ladder = launch::ladder(&self.spec.stop);
        let limit = ladder.iter().map(|rung| rung.wait_ms).sum::<u64>() + RECORD_MS;
        let order = StopOrder { asked_by: asked_by.to_owned(), ladder, last_revision: None };
        let name = self.spec.name.clone();
        let begun = Instant::now();
        blocking(move || {
            // One that ends by itself in this moment is as good.
            let asked = running.stop(&order);
            match running.wait(Duration::from_millis(limit).saturating_sub(begun.elapsed()))? {
                Some(Ended::Record(record)) => Ok(end_words(&record)),
                Some(Ended::NoRecord(why)) => Ok(format!("ended, and it is not recorded how: {why}")),
                None => {
                    asked?;
                    let attempt = format!("`{name}` (process {}) does not end", running.child().pid);
                    Err(Fault::new(Code::NotEnding, attempt).hint("see `quorate explain Q0906`"))
                }
            }
        })
        .await
    }
}

/// Seeded by the system: nodes that fail together do not come back together.
fn jitter() -> f64 {
    std::hash::RandomState::new().hash_one(now_ms()) as f64 / u64::MAX as f64
}

/// Work that blocks, on a thread of its own.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Fault> + Send + 'static,
) -> Result<T, Fault> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => Err(Fault::new(Code::Internal, "a part of the agent came to a halt").caused_by(error)),
    }
}
