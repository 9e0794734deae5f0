//! Brings etcd up: takes over what already runs, or decides and acts until something does.

use std::hash::BuildHasher;
use std::time::{Duration, Instant};

use quorate_faults::{Code, Fault};
use quorate_host::shim::{self, Adoption};
use quorate_plan::ledger::{LedgerSeen, State};
use quorate_plan::peering::Role;
use quorate_plan::phase::Phase;
use quorate_plan::quorum;
use quorate_plan::spec::duration_text;
use quorate_plan::start::{
    Ended, Halt, Observed, Restart, RestartPolicy, Run, StartPlan, Step, is_mended_by_files, plan_restart, plan_start,
};
use tracing::{debug, info};

use super::etcd;
use super::execute::{Did, halt_of, halted, phase_of};
use super::observe::{end_words, observe};
use super::publish::now_ms;
use super::{Agent, Finish, Found, Hindered, Wish, inputs};
use crate::cluster_file;
use crate::peers::PlanAnswer;

/// Between two looks at something that does not change, at first and at most.
const LOOK_AGAIN: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// The same where others are involved, at first: they may be a moment behind us.
const FIRST_AMONG_PEERS: Duration = Duration::from_millis(50);
/// The same for a node that was just invited, and for how long: its inviter is about to take the file that declares it.
const INVITED: (Duration, Duration) = (Duration::from_millis(25), Duration::from_secs(2));
/// And at most: who was down tells us nothing, and is asked.
const AMONG_PEERS: Duration = Duration::from_secs(2);

/// How often an agent that cannot start etcd checks whether its file was changed.
const FILE_EVERY: Duration = Duration::from_secs(1);

pub(super) enum Adopted {
    Running(Found),
    Nothing,
    Finish(Finish),
}

/// What became of the wait before a start.
enum Gate {
    /// There was none.
    Open,
    /// It is over.
    Waited,
    Finish(Finish),
}

pub(super) enum Up {
    Running(Found),
    /// It ran already: nobody had seen it when it was started.
    Found(Found),
    /// This node runs no etcd, and carries its clients to those that do.
    Client,
    Finish(Finish),
}

impl Agent {
    /// Takes over what an earlier agent started, if it is beyond doubt the same.
    pub(super) async fn adopt(&mut self) -> Result<Adopted, Fault> {
        let mut wait = LOOK_AGAIN.0;
        loop {
            let state = self.state.clone();
            let found = tokio::task::spawn_blocking(move || shim::adopt(&state)).await.map_err(halted)?;
            let halt = match found {
                Ok(Adoption::None) => return Ok(Adopted::Nothing),
                Ok(Adoption::Gone(record)) => {
                    let how = end_words(&record);
                    info!("etcd has ended meanwhile: {how}");
                    self.shared.change(|status| status.last_end = Some(how));
                    return Ok(Adopted::Nothing);
                }
                Ok(Adoption::Lost(why)) => {
                    info!("nobody recorded how etcd ended: {why}");
                    self.shared.change(|status| status.last_end = Some(format!("not recorded: {why}")));
                    return Ok(Adopted::Nothing);
                }
                Ok(Adoption::Running(running)) => match self.is_ours() {
                    Ok(()) => {
                        info!(pid = running.child().pid, "etcd runs already, and is taken over");
                        return Ok(Adopted::Running(Box::new(running)));
                    }
                    Err(why) => stranger(running.child().pid, &why),
                },
                Ok(Adoption::Stranger(why)) => Halt {
                    code: Code::StrangerRuns,
                    why: format!("something runs that this node did not start: {why}"),
                    way_out: "it is neither adopted nor touched; see `quorate explain Q0974`".to_owned(),
                    lost: None,
                },
                Err(fault) => {
                    self.shared.halt(phase_of(&fault), &halt_of(&fault));
                    if let Some(finish) = self.pause(&mut wait, fault.code(), true).await {
                        return Ok(Adopted::Finish(finish));
                    }
                    continue;
                }
            };
            self.shared.halt(Phase::Refused, &halt);
            if let Some(finish) = self.pause(&mut wait, halt.code, true).await {
                return Ok(Adopted::Finish(finish));
            }
        }
    }

    /// Whether the ledger knows of a member that may run here.
    fn is_ours(&self) -> Result<(), String> {
        match self.book.read() {
            LedgerSeen::There(ledger) if matches!(ledger.state, State::Started(_)) => Ok(()),
            LedgerSeen::There(ledger) if matches!(&ledger.state, State::PendingAdd(add) if add.member.is_some()) => {
                Ok(())
            }
            LedgerSeen::There(ledger) => Err(format!("the ledger says `{}`", ledger.state.word())),
            LedgerSeen::Absent => Err("there is no ledger".to_owned()),
            LedgerSeen::Unreadable(why) => Err(format!("the ledger cannot be read: {why}")),
        }
    }

    /// Looks, decides and acts until etcd runs.
    pub(super) async fn bring_up(&mut self) -> Result<Up, Fault> {
        let (mut wait, mut first, mut unseen, begun) = (LOOK_AGAIN.0, true, false, Instant::now());
        loop {
            let late = std::mem::take(&mut unseen);
            if late && let Some(running) = self.find_unseen().await {
                return Ok(Up::Found(running));
            }
            if self.is_client() {
                return Ok(Up::Client);
            }
            if let Some(finish) = self.recover().await {
                return Ok(Up::Finish(finish));
            }
            match self.restart_gate().await {
                Gate::Open => {}
                Gate::Waited if !late => {}
                // Its shim had all that time to say so.
                Gate::Waited => {
                    if let Some(running) = self.find_unseen().await {
                        return Ok(Up::Found(running));
                    }
                }
                Gate::Finish(finish) => return Ok(Up::Finish(finish)),
            }
            if !matches!(self.shared.readiness().0, Phase::Waiting | Phase::Refused) {
                self.shared.phase(Phase::Observing, "looking at data and ledger");
            }
            let node = std::sync::Arc::clone(&self.node);
            let (peers, memory) = (std::sync::Arc::clone(&self.peers), self.memory.clone());
            // Asking etcd for its version takes as long as all the rest, so both are done at once.
            self.ask_program();
            let seen = tokio::select! {
                seen = observe(&node, &peers, &memory) => seen,
                wish = self.wished() => return Ok(Up::Finish(self.leave(&wish))),
            };
            self.memory.keep_for(&seen.data);
            let plan = plan_start(&self.node.spec, self.node.name(), &seen);
            debug!("{}", plan.render());
            self.tell_plan(&plan, &seen);
            if plan.steps.iter().any(needs_program)
                && let Some(wish) = self.hear_program().await
            {
                return Ok(Up::Finish(self.leave(&wish)));
            }
            match self.execute(&plan, &seen).await {
                Did::Started(running) => {
                    if let Some(program) = self.program.clone() {
                        let node = std::sync::Arc::clone(&self.node);
                        // Nothing waits for it: what is not kept is asked again.
                        drop(tokio::task::spawn_blocking(move || program.remember(&node)));
                    }
                    return Ok(Up::Running(running));
                }
                Did::Again => (wait, first) = (LOOK_AGAIN.0, true),
                // When it is tried again is decided like after an end.
                Did::NotStarted(fault) => {
                    self.note_unstarted(&fault);
                    self.shared.halt(phase_of(&fault), &halt_of(&fault));
                    unseen = true;
                }
                Did::Wished(wish) => return Ok(Up::Finish(self.leave(&wish))),
                Did::Halted(phase, halt) => {
                    self.shared.halt(phase, &halt);
                    unseen = true;
                    if std::mem::take(&mut first) && self.node.has_peers() {
                        wait = FIRST_AMONG_PEERS;
                    }
                    if begun.elapsed() < INVITED.1 && self.was_invited() {
                        wait = INVITED.0;
                    }
                    // What was found in the data may be another thing the next time; only a verdict that led nowhere stays.
                    // What this node cannot do may be mended by another file; what it waits for is no fault of its file.
                    let may_mend = phase == Phase::Refused || plan.waiting().is_none();
                    if let Some(finish) = self.pause(&mut wait, halt.code, may_mend).await {
                        return Ok(Up::Finish(finish));
                    }
                }
            }
        }
    }

    /// Has etcd asked for its version, unless that is under way.
    fn ask_program(&mut self) {
        if self.asked.is_none() {
            self.asked = Some(etcd::ask(&self.node, self.program.as_ref()));
        }
    }

    /// Waits for what it says. Returns who wants the end meanwhile.
    async fn hear_program(&mut self) -> Option<Wish> {
        let asked = self.asked.take()?;
        tokio::select! {
            // Whoever needs one that is not there says so.
            program = asked => self.program = program.ok().and_then(Result::ok),
            wish = self.wished() => return Some(wish),
        }
        None
    }

    /// An etcd of ours that runs and that nobody tends: its shim was slow to say so, when it was started or looked for.
    pub(super) async fn find_unseen(&mut self) -> Option<Found> {
        let state = self.state.clone();
        let found = tokio::task::spawn_blocking(move || shim::adopt(&state)).await.ok()?;
        match found {
            Ok(Adoption::Running(running)) if self.is_ours().is_ok() => {
                info!(pid = running.child().pid, "etcd runs already, and is taken over");
                Some(Box::new(running))
            }
            // What else there is, is told by what is decided about the data.
            Ok(_) => None,
            Err(fault) => {
                debug!(code = %fault.code(), "whether etcd runs is not known yet: {fault}");
                None
            }
        }
    }

    /// Whether this node joins a cluster by hand.
    fn was_invited(&self) -> bool {
        let joins = match self.book.read() {
            LedgerSeen::Absent => true,
            LedgerSeen::There(ledger) => matches!(ledger.state, State::Empty | State::PendingAdd(_)),
            LedgerSeen::Unreadable(_) => false,
        };
        joins && self.peering.role() == Some(Role::Server)
    }

    /// Shows what was decided.
    fn tell_plan(&self, plan: &StartPlan, seen: &Observed) {
        let proofs = quorum::proofs(self.node.name(), seen, plan);
        let step = |(at, step): (usize, &Step)| match proofs.iter().find(|(of, _)| *of == at) {
            Some((_, proof)) => format!("{step} ({proof})"),
            None => step.to_string(),
        };
        self.shared.set_plan(PlanAnswer {
            because: plan.row.text().to_owned(),
            steps: plan.steps.iter().enumerate().map(step).collect(),
            waiting: plan.waiting().is_some(),
            refused: plan.refused().is_some(),
            ..PlanAnswer::default()
        });
    }

    /// Waits as long as the runs so far demand before etcd is started again: once for each of them.
    async fn restart_gate(&mut self) -> Gate {
        let Some(last) = self.runs.last().filter(|_| !self.waited) else { return Gate::Open };
        let how = match &last.ended {
            Ended::Asked => "as asked".to_owned(),
            Ended::Failed(how) | Ended::NotStarted(how) | Ended::Permanent { why: how, .. } => how.clone(),
        };
        if self.once {
            let code = match &self.hindered {
                Some(Hindered::Start(_, halt)) => halt.code,
                Some(Hindered::Passing(_)) | None => Code::EtcdEnded,
            };
            return Gate::Finish(Finish::Halted(code));
        }
        // Seeded by the system: nodes that fail together do not come back together.
        let jitter = std::hash::RandomState::new().hash_one(now_ms()) as f64 / u64::MAX as f64;
        match plan_restart(&RestartPolicy::default(), &self.runs, jitter) {
            Restart::After { wait, crash_loop } => {
                self.waited = true;
                if wait.is_zero() {
                    return Gate::Open;
                }
                let wait = Duration::from_millis(u64::try_from(wait.as_millis()).unwrap_or(u64::MAX));
                let (phase, halt) = self.between_starts(&how, wait, crash_loop);
                self.shared.halt(phase, &halt);
                self.shared.next_try(Some(wait));
                let changed = self.file_changed();
                let finish = tokio::select! {
                    () = tokio::time::sleep(wait) => None,
                    () = changed => Some(self.reread()),
                    wish = self.wished() => Some(self.leave(&wish)),
                };
                self.shared.next_try(None);
                finish.map_or(Gate::Waited, Gate::Finish)
            }
            Restart::Never { code, why } => {
                let way_out = format!("another start would end the same way; see `quorate explain {code}`");
                self.shared.halt(Phase::Refused, &Halt { code, why, way_out, lost: None });
                let changed = self.file_changed();
                let mended = inputs::changed(std::sync::Arc::clone(&self.node));
                Gate::Finish(tokio::select! {
                    wish = self.wished() => self.leave(&wish),
                    () = changed => self.reread(),
                    () = mended, if is_mended_by_files(code) => {
                        info!("etcd's program or a file that it reads has changed: it is tried again");
                        self.reload("etcd's program or a file that it reads, which has changed")
                    }
                })
            }
            Restart::No => {
                let wish = self.wished().await;
                Gate::Finish(self.leave(&wish))
            }
        }
    }

    /// What is said between two starts.
    fn between_starts(&self, how: &str, wait: Duration, crash_loop: Option<u32>) -> (Phase, Halt) {
        let shown = duration_text(wait);
        if let Some(Hindered::Start(phase, halt)) = &self.hindered {
            let unstarted = |run: &&Run| matches!(run.ended, Ended::NotStarted(_));
            let times = match self.runs.iter().rev().take_while(unstarted).count() {
                0 | 1 => String::new(),
                times => format!(", {times} times in a row"),
            };
            let why = format!("etcd could not be started{times} ({how}); it is tried again in {shown}");
            return (*phase, Halt { why, ..halt.clone() });
        }
        let (code, again) = match (crash_loop, &self.hindered) {
            (Some(times), Some(Hindered::Passing(code @ Code::CorruptAtStart))) => {
                (*code, format!("etcd ended {times} times in a row"))
            }
            (Some(times), _) => (Code::CrashLoop, format!("etcd ended {times} times in a row")),
            (None, Some(Hindered::Passing(code))) => (*code, "etcd ended again".to_owned()),
            (None, _) => (Code::EtcdEnded, "etcd ended again".to_owned()),
        };
        let why = format!("{again} ({how}); it is started again in {shown}");
        let way_out = format!("see `quorate explain {code}`; its log is in `{}`", self.node.log_dir().display());
        (Phase::Waiting, Halt { code, why, way_out, lost: None })
    }

    /// Waits before the next look, each time longer. With `--once` there is none.
    async fn pause(&mut self, wait: &mut Duration, code: Code, may_mend: bool) -> Option<Finish> {
        if self.once {
            return Some(Finish::Halted(code));
        }
        let pause = *wait;
        *wait = (*wait * 2).min(LOOK_AGAIN.1);
        let pause = if self.node.has_peers() { pause.min(AMONG_PEERS) } else { pause };
        let shared = std::sync::Arc::clone(&self.shared);
        let changed = self.file_changed();
        tokio::select! {
            () = tokio::time::sleep(pause) => None,
            // Their news ends the wait; it does not make the next one shorter.
            () = shared.news() => None,
            () = changed, if may_mend => Some(self.reread()),
            wish = self.wished() => Some(self.leave(&wish)),
        }
    }

    /// Returns when the cluster file was changed and can be used: what was refused may be mended by that. Only an agent
    /// whose etcd could not be started reads it without being asked; one that serves has a file that was applied.
    fn file_changed(&self) -> impl Future<Output = ()> + use<> {
        let (file, written) = (self.node.file.clone(), self.node.written.clone());
        async move {
            loop {
                tokio::time::sleep(FILE_EVERY).await;
                let (file, written) = (file.clone(), written.clone());
                let read = move || cluster_file::read(&file).is_ok_and(|(spec, _)| spec.hash() != written);
                if tokio::task::spawn_blocking(read).await.is_ok_and(|changed| changed) {
                    return;
                }
            }
        }
    }

    /// Has the file read again.
    fn reread(&self) -> Finish {
        self.reload("the cluster file, which has changed")
    }

    fn reload(&self, because: &str) -> Finish {
        let wish = Wish::reload(because);
        self.wishes.send_modify(|wishes| wishes.push(wish.clone()));
        self.leave(&wish)
    }

    /// Ends without etcd having run.
    pub(super) fn leave(&self, wish: &Wish) -> Finish {
        if wish.reload {
            self.shared.phase(Phase::Observing, format!("asked by {}: reading the cluster file again", wish.asked_by));
            return Finish::Stopped;
        }
        self.shared.phase(Phase::Stopped, format!("asked by {}; no etcd is tended", wish.asked_by));
        Finish::Stopped
    }
}

/// Whether a step is taken with etcd's version in hand: what is promised, written or waited for needs none.
fn needs_program(step: &Step) -> bool {
    match step {
        Step::Restore { .. } | Step::Init { .. } | Step::Start { .. } => true,
        Step::Validate(_)
        | Step::RepairTail
        | Step::Archive
        | Step::Write(_)
        | Step::WriteGeneration(_)
        | Step::WriteOutdated(_)
        | Step::WriteRolledBack(..)
        | Step::TellPeers
        | Step::RemoveMember(_)
        | Step::AddLearner
        | Step::Promote
        | Step::Wait(_)
        | Step::Refuse(_) => false,
    }
}

fn stranger(pid: u32, why: &str) -> Halt {
    Halt {
        code: Code::StrangerRuns,
        why: format!("etcd runs as process {pid}, and this node does not remember it: {why}"),
        way_out: "it is left alone; `quorate cluster adopt` takes a member over".to_owned(),
        lost: None,
    }
}
