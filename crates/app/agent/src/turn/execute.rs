//! Takes the steps of a plan, one after the other.
//!
//! **Invariant:** one exhaustive match over the steps; what a step needs to be true is written down durably before the next
//! one; and whoever asks for the end is heard between steps and during long ones, but never between etcd's start and our
//! knowing of it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use jiff::Timestamp;
use quorate_etcd::aside::{ensure_set_aside, ensure_tail_cut};
use quorate_etcd::init::{self, Request};
use quorate_etcd_formats::founding::Founding;
use quorate_etcd_formats::membership::{ClusterId, MemberId};
use quorate_faults::{Code, Exit, Fault};
use quorate_host::durable::RealDisk;
use quorate_host::shim::Running;
use quorate_plan::ledger::{Ledger, LedgerSeen, State};
use quorate_plan::phase::Phase;
use quorate_plan::spec::duration_text;
use quorate_plan::start::{Depth, Halt, Mode, Observed, StartPlan, Step, Verdict};
use tracing::{info, warn};

use super::data::{self, in_words};
use super::etcd::{self, Program};
use super::listen::Wish;
use super::node::Node;
use super::publish::now_ms;
use super::restore;
use super::status::CheckedNow;
use super::{Agent, Hindered};
use crate::certificates;
use crate::peering::point;
use crate::recover::{Exported, export_writes};

/// What came of a plan.
pub(super) enum Did {
    /// etcd runs.
    Started(Box<Running>),
    /// Something changed: look again.
    Again,
    /// etcd was to be executed, and was not.
    NotStarted(Fault),
    /// Nothing more can be done now.
    Halted(Phase, Halt),
    /// Someone asked for the end.
    Wished(Wish),
}

impl Agent {
    /// Takes the steps.
    pub(super) async fn execute(&mut self, plan: &StartPlan, seen: &Observed) -> Did {
        if let Err(fault) = self.audit(plan, seen) {
            return Did::Halted(Phase::Waiting, halt_of(&fault));
        }
        for (at, step) in plan.steps.iter().enumerate() {
            if is_overtaken(&seen.ledger, &self.book.read()) {
                info!("this node was asked for something else meanwhile: looking again");
                return Did::Again;
            }
            // Others wait for this very word, and hear it with our next question.
            if matches!(step, Step::Wait(_)) && plan.steps.iter().take(at).any(is_promise) {
                return Did::Again;
            }
            let restores_next = matches!(plan.steps.get(at + 1), Some(Step::Restore { .. }));
            match self.step(step, restores_next, seen).await {
                Ok(None) => {}
                Ok(Some(did)) => return did,
                Err(fault) => return Did::Halted(phase_of(&fault), halt_of(&fault)),
            }
        }
        Did::Again
    }

    async fn step(&mut self, step: &Step, restores_next: bool, seen: &Observed) -> Result<Option<Did>, Fault> {
        match step {
            Step::Validate(depth) => self.validate(depth).await,
            Step::RepairTail => self.repair().await,
            Step::Archive => self.archive(restores_next).await,
            Step::Restore { revision, .. } => self.restore(*revision).await,
            Step::Init { cluster, member } => self.init(*cluster, *member).await,
            Step::Write(state) => {
                self.write(state.clone()).await?;
                if matches!(state, State::Inited(_)) {
                    point("inited");
                }
                Ok(None)
            }
            Step::WriteGeneration(number) => {
                let number = *number;
                self.write_beside(move |ledger| *ledger = ledger.of_generation(number)).await.map(|()| None)
            }
            Step::WriteRolledBack(it, why) => {
                let it = *it;
                warn!(member = %it.member, "the data of this member is an older copy: {why}");
                self.write_beside(move |ledger| ledger.rolled_back = Some(it)).await.map(|()| None)
            }
            Step::WriteOutdated(newer) => {
                let newer = *newer;
                self.write_beside(move |ledger| *ledger = ledger.outdated_by(newer)).await.map(|()| None)
            }
            Step::TellPeers => self.tell_peers().await,
            Step::RemoveMember(member) => self.remove_member(*member, seen).await,
            Step::AddLearner => self.add_learner().await,
            // What is left is done beside a running etcd: whoever learns is promoted when it has caught up.
            Step::Promote => Ok(None),
            Step::Start { joining: false } => match self.hold_name(seen).await {
                Some(did) => Ok(Some(did)),
                None => self.start(None, seen).await.map(Some),
            },
            Step::Start { joining: true } => {
                let join = self.initial_cluster().await?;
                self.start(Some(join), seen).await.map(Some)
            }
            Step::Wait(halt) => Ok(Some(Did::Halted(Phase::Waiting, halt.clone()))),
            Step::Refuse(halt) => {
                let halt = self.with_export(halt.clone()).await;
                Ok(Some(Did::Halted(Phase::Refused, halt)))
            }
        }
    }

    /// Exports what was written to a recovered cluster that lost against another, and names the file.
    async fn with_export(&mut self, mut halt: Halt) -> Halt {
        if halt.code != Code::GenerationsFork {
            return halt;
        }
        let (node, ledger) = (Arc::clone(&self.node), self.book.read());
        match self.long(move || export_writes(&node, &ledger)).await {
            Ok(Ok(Some(Exported { path, missing }))) => {
                halt.why += &format!("; its writes since the recovery are in `{}`", path.display());
                if !missing.is_empty() {
                    halt.why += &format!(", without {}", missing.join(", and without "));
                }
            }
            Ok(Ok(None)) | Err(_) => {}
            Ok(Err(fault)) => halt.why += &format!("; its writes are not exported yet: {}", in_words(&fault)),
        }
        halt
    }

    async fn validate(&mut self, depth: &Depth) -> Result<Option<Did>, Fault> {
        self.shared.phase(Phase::Validating, format!("checking the data ({}): {}", depth.mode, depth.why));
        let (node, mode) = (Arc::clone(&self.node), depth.mode);
        let checked = match self.long(move || data::validate(&node.target, mode)).await {
            Ok(checked) => checked?,
            Err(wish) => return Ok(Some(Did::Wished(wish))),
        };
        let (word, text) = match &checked.verdict {
            Verdict::Valid => match &checked.cut {
                None => ("valid", "valid".to_owned()),
                Some(how_far) => {
                    ("valid", format!("valid, as far as time allowed: {how_far}; the rest was not looked at"))
                }
            },
            Verdict::RepairableTail(what) => ("torn", format!("whole but for its end: {what}")),
            Verdict::Corrupt(what) | Verdict::Half(what) => ("corrupt", format!("damaged: {what}")),
            Verdict::Unchecked => ("unchecked", "not checked".to_owned()),
        };
        // What fitted into its time was checked in full.
        let (mode, shown) = match (depth.mode, &checked.cut) {
            (Mode::Sanity, _) => ("sanity", depth.mode.to_string()),
            (Mode::Full, _) | (Mode::Within(_), None) => ("full", Mode::Full.to_string()),
            (Mode::Within(budget), Some(_)) => ("within", format!("what fits into {}", duration_text(budget))),
        };
        info!(took_ms = millis(checked.took), "the data is {text}");
        self.shared.measures.checked(mode, word, checked.took);
        let now = CheckedNow { mode: shown, why: depth.why.clone(), verdict: text, took_ms: millis(checked.took) };
        self.shared.change(|status| status.checked = Some(now));
        self.memory.checked = Some(checked);
        Ok(None)
    }

    async fn repair(&mut self) -> Result<Option<Did>, Fault> {
        let Some((file, length)) = self.memory.checked.as_ref().and_then(|checked| checked.torn.clone()) else {
            return Err(Fault::new(Code::Internal, "cannot cut a torn end off: nobody knows where it is"));
        };
        if let Some(did) = self.overtaken_data()? {
            return Ok(Some(did));
        }
        let cut = {
            let file = file.clone();
            self.long(move || ensure_tail_cut(&RealDisk, &file, length, &stamp())).await
        };
        let kept = match cut {
            Ok(kept) => kept?,
            Err(wish) => return Ok(Some(Did::Wished(wish))),
        };
        self.shared.done(format!(
            "cut the torn end off `{}` at byte {length}; the file as it was is `{}`",
            file.display(),
            kept.display()
        ));
        // What was good stays good; only the torn end is gone.
        let which = data::Which::of(&self.node.target);
        if let Some(checked) = &mut self.memory.checked {
            checked.which = which;
            checked.verdict = Verdict::Valid;
            checked.torn = None;
        }
        Ok(None)
    }

    /// Whether the data is no longer what the plan was made for: someone works on it, or has put other data in its place.
    fn overtaken_data(&mut self) -> Result<Option<Did>, Fault> {
        data::must_be_idle(&self.node.target)?;
        let now = data::Which::of(&self.node.target);
        if self.memory.checked.as_ref().is_none_or(|checked| checked.which == now) {
            return Ok(None);
        }
        info!("the data is not what was checked: looking again");
        self.memory.checked = None;
        Ok(Some(Did::Again))
    }

    /// Sets the data aside. Where a backup is to take its place, that is proven first.
    async fn archive(&mut self, restores_next: bool) -> Result<Option<Did>, Fault> {
        if restores_next {
            if let Some(did) = self.flush_spool().await? {
                return Ok(Some(did));
            }
            self.shared.phase(Phase::Restoring, "reading the backup to its end before anything is set aside");
            let node = Arc::clone(&self.node);
            match self.long(move || restore::prove(&node)).await {
                Ok(proven) => proven?,
                Err(wish) => return Ok(Some(Did::Wished(wish))),
            };
        }
        // Reading a backup takes minutes, in which someone else may have seen to the data.
        if let Some(did) = self.overtaken_data()? {
            return Ok(Some(did));
        }
        let stamp = stamp();
        self.set_archiving(true).await?;
        // One that cannot be renamed is found before anything was.
        let dirs = self.node.target.wal_dir().into_iter().chain([self.node.target.data_dir()]);
        let mut renamed = Vec::new();
        for dir in dirs {
            match ensure_set_aside(&RealDisk, dir, &stamp) {
                Ok(Some(new)) => {
                    point("set-aside");
                    renamed.push(format!("renamed `{}` to `{}`", dir.display(), new.display()));
                }
                Ok(None) => {}
                Err(fault) => {
                    if renamed.is_empty() {
                        self.set_archiving(false).await?;
                    }
                    return Err(fault);
                }
            }
        }
        for what in renamed {
            self.shared.done(what);
        }
        self.set_archiving(false).await?;
        self.memory.checked = None;
        Ok(None)
    }

    /// What was recorded and waits in the spool is part of what is restored.
    async fn flush_spool(&mut self) -> Result<Option<Did>, Fault> {
        // Whoever follows has the spool; and what is recorded from here on is of another cluster.
        self.rest().await;
        self.shared.phase(Phase::Restoring, "storing what waits in the spool, so that the restore has it");
        let node = Arc::clone(&self.node);
        let stored = match self.long(move || restore::flush(&node)).await {
            Ok(stored) => stored?,
            Err(wish) => return Ok(Some(Did::Wished(wish))),
        };
        if let Some(span) = stored {
            self.shared.done(format!("stored revisions {} to {}, which waited in the spool", span.from, span.to));
        }
        Ok(None)
    }

    async fn restore(&mut self, revision: u64) -> Result<Option<Did>, Fault> {
        let store = self.node.spec.backup.as_ref().map_or("the store", |backup| backup.store.as_str()).to_owned();
        let form = self.program()?.form();
        if let Some(did) = self.flush_spool().await? {
            return Ok(Some(did));
        }
        self.shared.phase(Phase::Restoring, format!("restoring revision {revision} or a later one from `{store}`"));
        let (node, begun) = (Arc::clone(&self.node), Instant::now());
        let shared = Arc::clone(&self.shared);
        let restored = match self.long(move || restore::restore(&node, form, &shared)).await {
            Ok(restored) => restored,
            Err(wish) => return Ok(Some(Did::Wished(wish))),
        };
        let result = if restored.is_ok() { "done" } else { "failed" };
        self.shared.measures.restored(result, begun.elapsed());
        let outcome = restored?;
        self.record_places().await;
        self.memory.fresh = true;
        self.memory.checked = None;
        let short = outcome.short.map(|why| format!("; the store mentions more and cannot prove it: {why}"));
        let (revision, short) = (outcome.revision, short.unwrap_or_default());
        self.shared.done(format!("restored revision {revision} from `{store}`{short}"));
        for warning in outcome.warnings {
            self.shared.done(warning.text);
        }
        Ok(None)
    }

    async fn init(&mut self, cluster: ClusterId, member: MemberId) -> Result<Option<Did>, Fault> {
        self.shared.phase(Phase::Starting, format!("founding cluster {cluster}"));
        let form = self.program()?.form();
        let node = Arc::clone(&self.node);
        let nonces = match self.book.read() {
            LedgerSeen::There(ledger) => match ledger.state {
                State::Promised(promise) | State::Inited(promise) => promise.nonces,
                State::Empty | State::Started(_) | State::PendingAdd(_) | State::Tombstone(_) => BTreeMap::new(),
            },
            LedgerSeen::Absent | LedgerSeen::Unreadable(_) => BTreeMap::new(),
        };
        let made = self.long(move || found(&node, form, &nonces, cluster, member)).await;
        match made {
            Ok(made) => made?,
            Err(wish) => return Ok(Some(Did::Wished(wish))),
        }
        self.record_places().await;
        self.memory.fresh = true;
        Ok(None)
    }

    /// Writes how far we have come.
    /// Writes something else than its state into the ledger.
    pub(super) async fn write_beside(&self, with: impl FnOnce(&mut Ledger) + Send + 'static) -> Result<(), Fault> {
        let book = Arc::clone(&self.book);
        tokio::task::spawn_blocking(move || book.change(with)).await.map_err(halted)?.map(|_| ())
    }

    pub(super) async fn write(&mut self, mut state: State) -> Result<(), Fault> {
        if let State::Tombstone(stone) = &mut state
            && stone.at_ms == 0
        {
            stone.at_ms = now_ms();
        }
        let buried = matches!(state, State::Tombstone(_));
        let (book, hash) = (Arc::clone(&self.book), self.node.spec.hash());
        let written = tokio::task::spawn_blocking(move || {
            book.change(|ledger| {
                *ledger = ledger.with(state);
                ledger.spec_hash = Some(hash);
            })
        });
        written.await.map_err(halted)??;
        if buried {
            point("buried");
        }
        self.tell_ledger();
        Ok(())
    }

    async fn start(&mut self, join: Option<String>, seen: &Observed) -> Result<Did, Fault> {
        let program = self.program()?;
        program.check_data(&self.node)?;
        for finding in certificates::before_start(&self.node, Some(program.minor))? {
            info!(code = %finding.code, "{} at {}; {}", finding.what, finding.place, finding.remedy);
        }
        let version = program.binary.version.clone();
        self.shared.phase(Phase::Starting, format!("etcd {version} starts"));
        self.log_before = etcd::log_length(&self.node);
        self.record_places().await;
        self.count_start(seen).await?;
        self.take_port().await;
        let (node, state, shim) = (Arc::clone(&self.node), self.state.clone(), self.shim.clone());
        let confirmed = matches!(seen.cluster, quorate_plan::start::ClusterSeen::Confirmed { .. });
        let checks = match self.shared.another_release(&program.binary.version) {
            true => etcd::Checks::None,
            false if confirmed || !node.has_peers() => etcd::Checks::AtStart,
            false => etcd::Checks::Later,
        };
        let started =
            tokio::task::spawn_blocking(move || etcd::start(&node, &state, &program, &shim, join, checks)).await;
        // Whatever comes of it, etcd may have touched the data.
        self.memory = super::observe::Memory::default();
        self.tell_ledger();
        match started.map_err(halted).and_then(|started| started) {
            Ok(running) => {
                self.shared.measures.started();
                point("started");
                Ok(Did::Started(Box::new(running)))
            }
            Err(fault) if fault.code() == Code::EndedAtOnce => {
                self.shared.measures.started();
                self.over_at_once(&fault);
                Ok(Did::Again)
            }
            // Not a halt like others: what is looked at again would be checked again, as if something had changed.
            Err(fault) => Ok(Did::NotStarted(fault)),
        }
    }

    /// It ended before it could be looked at; what it said last is in its log.
    fn over_at_once(&mut self, fault: &Fault) {
        let words = etcd::last_words(&self.node, self.log_before);
        self.record_out_of_range(words.out_of_range);
        let mut how = in_words(fault);
        // Whoever was killed did not end for what it said.
        let by_itself = how.contains("exit code");
        if let Some(text) = words.text.or(words.last.filter(|_| by_itself)) {
            how = format!("{how}: {text}");
        }
        warn!(code = %Code::EtcdEnded, "{how}");
        self.hindered = words.passing.map(Hindered::Passing);
        self.note_end(words.permanent.filter(|_| by_itself), &how, std::time::Duration::ZERO);
    }

    /// The program that is to be run.
    pub(super) fn program(&mut self) -> Result<Program, Fault> {
        let program = Program::find(&self.node, self.program.as_ref())?;
        self.program = Some(program.clone());
        Ok(program)
    }

    /// Work that takes long, on a thread of its own. Whoever asks for the end does not wait for it: all of it can be cut off
    /// at any point.
    async fn long<T: Send + 'static>(
        &mut self,
        work: impl FnOnce() -> Result<T, Fault> + Send + 'static,
    ) -> Result<Result<T, Fault>, Wish> {
        let work = tokio::task::spawn_blocking(work);
        tokio::select! {
            done = work => Ok(done.map_err(halted).and_then(|done| done)),
            wish = self.wished() => Err(wish),
        }
    }
}

fn found(
    node: &Node,
    form: quorate_etcd_formats::founding::Form,
    nonces: &BTreeMap<String, String>,
    cluster: ClusterId,
    member: MemberId,
) -> Result<(), Fault> {
    let token = node.spec.founding_ids_of(nonces).map(|ids| ids.token).unwrap_or_default();
    let members = node.spec.members.iter().map(|member| (member.name.clone(), member.peer_urls.clone())).collect();
    let founding = Founding::new(members, &token)
        .map_err(|error| Fault::new(Code::RosterBadId, error.to_string()).hint("declare another `bootstrap` id"))?;
    let local = founding.member(node.name()).filter(|local| local.id == member && founding.cluster_id == cluster);
    let Some(local) = local else {
        return Err(Fault::new(Code::Internal, "cannot found: the ids are not those that were promised"));
    };
    let done = init::ensure_member(&RealDisk, &node.target, Request { founding: &founding, local, form })?;
    for warning in done.warnings {
        warn!(code = %warning.code, "{}", warning.text);
    }
    Ok(())
}

fn is_promise(step: &Step) -> bool {
    matches!(step, Step::Write(State::Promised(promise)) if !promise.over)
}

/// Whether an operator asked this node for something else after it was looked at: then the plan is one for another wish.
fn is_overtaken(before: &LedgerSeen, now: &LedgerSeen) -> bool {
    let intent = |seen: &LedgerSeen| match seen {
        LedgerSeen::There(ledger) => ledger.intent.clone(),
        LedgerSeen::Absent => None,
        // Who cannot read it now is told so by the step that needs it.
        LedgerSeen::Unreadable(_) => match before {
            LedgerSeen::There(ledger) => ledger.intent.clone(),
            LedgerSeen::Absent | LedgerSeen::Unreadable(_) => None,
        },
    };
    intent(before) != intent(now)
}

/// Where a fault leads: what only a person can change is refused, the rest is waited for.
pub(super) fn phase_of(fault: &Fault) -> Phase {
    match fault.code().exit() {
        Exit::ConfigInvalid | Exit::Refused | Exit::Usage => Phase::Refused,
        Exit::Done | Exit::CannotMeet | Exit::Failed | Exit::Waiting | Exit::Unreachable | Exit::Temporary => {
            Phase::Waiting
        }
    }
}

/// A fault as the reason for which nothing is done.
pub(super) fn halt_of(fault: &Fault) -> Halt {
    let way_out = fault.hint_text().map_or_else(|| format!("see `quorate explain {}`", fault.code()), str::to_owned);
    Halt { code: fault.code(), why: in_words(fault), way_out, lost: None }
}

pub(super) fn halted(error: tokio::task::JoinError) -> Fault {
    Fault::new(Code::Internal, "a part of the agent came to a halt").caused_by(error)
}

/// `20261116T021544Z`, for names of what was set aside.
pub fn stamp() -> String {
    let now = Timestamp::from_millisecond(i64::try_from(now_ms()).unwrap_or(0)).unwrap_or_default();
    now.strftime("%Y%m%dT%H%M%SZ").to_string()
}

fn millis(span: std::time::Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use quorate_plan::ledger::{Intent, IntentKind, Ledger};

    use super::*;

    #[test]
    fn a_wish_that_comes_while_a_plan_is_carried_out_ends_it() {
        let there = |kind: Option<IntentKind>| {
            let intent = kind.map(|kind| Intent { kind, why: "drained".to_owned(), at_ms: 1 });
            LedgerSeen::There(Box::new(Ledger { intent, ..Ledger::default() }))
        };
        let (none, leave, ends) = (there(None), there(Some(IntentKind::Leave)), there(Some(IntentKind::Teardown)));
        for (before, now) in [(&none, &leave), (&LedgerSeen::Absent, &ends), (&leave, &none), (&leave, &ends)] {
            assert!(is_overtaken(before, now), "{before:?} {now:?}");
        }
        let unread = LedgerSeen::Unreadable("input/output error".to_owned());
        for (before, now) in [(&none, &none), (&leave, &leave), (&LedgerSeen::Absent, &none), (&leave, &unread)] {
            assert!(!is_overtaken(before, now), "{before:?} {now:?}");
        }
    }
}
