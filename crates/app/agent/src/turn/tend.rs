//! Tends an etcd that runs: knows whether it serves, notices its end, and ends it when asked.
//!
//! **Invariant:** ready is only what has just answered a read as the member that the ledger names.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use quorate_faults::{Code, Fault};
use quorate_host::shim::{Ended, Running, StopOrder};
use quorate_plan::ledger::{LedgerSeen, State};
use quorate_plan::phase::Phase;
use quorate_plan::start::Halt;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::{info, warn};

use super::etcd::{RESTART_PENDING, TAKEN_WITH_OTHERS};
use super::observe::end_words;
use super::probe::{Answer, Probe};
use super::publish::now_ms;
use super::role::Turns;
use super::status::{EtcdNow, Notice};
use super::{Agent, Finish, Hindered, beside, boxed, etcd, keep, probe, role};

/// How long backups may take to notice that they are to end, beyond their own time for uploads.
const BACKUPS_LIMIT: Duration = Duration::from_secs(7);
/// A program that ends so soon has said why in its last line, also where that is no line of etcd's.
const AT_ONCE: Duration = Duration::from_secs(10);
/// After this much service, what was needed to start is not needed any more.
const SETTLED: Duration = Duration::from_secs(5);
/// How long the end may take to be recorded once the program is gone.
const RECORD_LIMIT: Duration = Duration::from_secs(10);

/// What goes on beside a serving etcd, and waits for it while it does not serve.
pub(super) struct Keepers {
    upkeep: JoinHandle<()>,
    backups: JoinHandle<()>,
    stop: CancellationToken,
}

impl Agent {
    /// Tends it until it has ended (`None`), or until we are to end.
    pub(super) async fn tend(&mut self, mut running: Running, adopted: bool) -> Result<Option<Finish>, Fault> {
        let began = Instant::now();
        self.show(&running, adopted);
        if adopted {
            self.shared
                .phase(Phase::Starting, format!("etcd (process {}) is asked whether it serves", running.child().pid));
            self.log_before = etcd::log_length(&self.node);
        }
        let (told, mut probes) = watch::channel(Probe::None);
        let prober = tokio::spawn(probe::run(Arc::clone(&self.node), told));
        let (beside, shared) = (self.begin_beside(), Arc::clone(&self.shared));
        let mut noted = None;
        let tended = loop {
            let end = watched(&running)?;
            tokio::select! {
                _ = end.readable() => {
                    drop(end);
                    // The shim's end is not etcd's: then it is etcd itself that is watched from here on.
                    match running.wait(Duration::from_millis(100))? {
                        Some(ended) => {
                            let before = now_ms().saturating_sub(running.started_at_ms());
                            let lasted = if adopted { Duration::from_millis(before) } else { began.elapsed() };
                            self.over(&running, &ended, lasted);
                            break None;
                        }
                        None if !running.is_kept() => self.orphaned(&running),
                        None => {}
                    }
                }
                changed = probes.changed() => {
                    let probe = probes.borrow_and_update().clone();
                    let serves = changed.is_ok() && self.take(probe, (!adopted).then_some(began));
                    self.note(&running, &mut noted);
                    if serves && self.once {
                        break Some(Finish::Left);
                    }
                }
                wish = self.wished() => {
                    prober.abort();
                    drop(beside);
                    return self.stop(running, &wish).await.map(Some);
                }
                why = shared.restart_order() => {
                    drop(end);
                    self.shared.phase(Phase::Draining, format!("etcd is being stopped, to be started again: {why}"));
                    self.shared.read(false);
                    self.rest().await;
                    if self.end_etcd(&mut running, &format!("the agent: {why}")).await?.is_some() {
                        break None;
                    }
                    // Someone wants more than that, and the shim goes on stopping etcd.
                    break Some(Finish::Stopped);
                }
            }
        };
        prober.abort();
        drop(beside);
        self.shared.read(false);
        // A member that does not run does not lead.
        if self.node.has_peers() {
            self.shared.saw_leader(role::Leader::Unknown);
        }
        Ok(tended)
    }

    /// Has the shim know the newest revision, for the record of an end that nobody asks for.
    fn note(&self, running: &Running, noted: &mut Option<u64>) {
        let newest = self.shared.revision();
        if let (Some(revision), Some(notes)) = (newest.filter(|_| newest != *noted), running.notes()) {
            *noted = newest;
            // Nobody waits for a shim that is slow.
            drop(tokio::task::spawn_blocking(move || notes.revision(revision)));
        }
    }

    /// What came of a read. Returns whether the member serves.
    fn take(&mut self, probe: Probe, began: Option<Instant>) -> bool {
        match probe {
            Probe::None => false,
            Probe::Serves(answer) => match self.mistaken(answer) {
                None => {
                    self.shared.read(true);
                    self.shared.warnings(&[Code::QuorumLost], Vec::new());
                    if self.shared.readiness().0 != Phase::Serving {
                        if let Some(began) = began.filter(|_| self.shared.readiness().0 == Phase::Starting) {
                            self.shared.measures.ready(began.elapsed());
                        }
                        self.shared.phase(Phase::Serving, "reads through this member succeed");
                    }
                    self.begin_keeping();
                    true
                }
                Some(halt) => {
                    self.shared.read(false);
                    self.shared.halt(Phase::Refused, &halt);
                    false
                }
            },
            Probe::Fails(why) => {
                self.shared.read(false);
                // While it starts that is no news.
                if self.shared.readiness().0 != Phase::Starting {
                    let halt = self.reads_fail(&why);
                    self.shared.halt(Phase::Waiting, &halt);
                }
                false
            }
        }
    }

    /// Why reads fail: for want of a quorum, where that is known.
    fn reads_fail(&self, why: &str) -> Halt {
        let corrupt = || self.shared.warning(Code::CorruptAlarm);
        match self.shared.quorum_lost().or_else(corrupt) {
            Some(lost) if lost.code == Code::CorruptAlarm.as_str() => {
                Halt { code: Code::CorruptAlarm, why: lost.text, way_out: lost.way_out.unwrap_or_default(), lost: None }
            }
            Some(lost) => {
                Halt { code: Code::QuorumLost, why: lost.text, way_out: lost.way_out.unwrap_or_default(), lost: None }
            }
            None => Halt {
                code: Code::EtcdUnreachable,
                why: format!("reads through this member do not succeed: {why}"),
                way_out: format!("etcd runs; its log is in `{}`", self.node.log_dir().display()),
                lost: None,
            },
        }
    }

    /// Why who answered is not this member.
    fn mistaken(&self, answer: Option<Answer>) -> Option<Halt> {
        let answer = answer?;
        let ids = match self.book.read() {
            LedgerSeen::There(ledger) => ledger.ids(),
            LedgerSeen::Absent | LedgerSeen::Unreadable(_) => None,
        };
        if ids == Some((answer.cluster, answer.member)) {
            self.shared.change(|status| {
                if let Some(etcd) = &mut status.etcd {
                    etcd.revision = etcd.revision.max(Some(answer.revision));
                }
            });
            return None;
        }
        let url = self.node.member.client_urls.first().map_or("its client URL", String::as_str);
        let (member, cluster) = (answer.member, answer.cluster);
        Some(Halt {
            code: Code::AnotherAnswers,
            why: format!("`{url}` is answered by member {member} of cluster {cluster}, which is not this one"),
            way_out: "give each member its own address; see `quorate explain Q0965`".to_owned(),
            lost: None,
        })
    }

    fn show(&mut self, running: &Running, adopted: bool) {
        // What cannot be rendered now was refused or will be at the next start; it is no reason to doubt what runs.
        self.shared.runs_with(running.config_hash());
        let wanted = self.program().and_then(|program| etcd::config(&self.node, &program));
        let current = wanted.as_ref().map_or(true, |config| config.is_current(running.config_hash()));
        let awaits = wanted.as_ref().is_ok_and(|config| config.awaits_a_word(&self.node, running.config_hash()));
        let now = EtcdNow {
            pid: running.child().pid,
            version: None,
            started_ms: running.started_at_ms(),
            adopted,
            settings_current: current,
            level: Some(boxed::level_of(running).name().to_owned()),
            ..EtcdNow::default()
        };
        self.shared.change(|status| status.etcd = Some(now));
        let notice = (!current).then(|| {
            let earlier =
                "etcd runs with earlier settings than the cluster file has now; it is started again in its turn";
            match awaits {
                true => Notice::new(Code::SettingsChanged, TAKEN_WITH_OTHERS).way_out(RESTART_PENDING),
                false => Notice::new(Code::SettingsChanged, earlier),
            }
        });
        let taken = running.is_taken_over().then(|| {
            let pid = running.child().pid;
            let text = format!(
                "etcd (process {pid}) was taken over while it ran: until its next start its log is not kept, nobody can \
                 record how it ends, and it has no box"
            );
            Notice::new(Code::TakenOver, text).way_out(RESTART_PENDING)
        });
        let held = boxed::notices(&self.node, running);
        let about = [Code::SettingsChanged, Code::ShimSilent, Code::TakenOver];
        let about = about.into_iter().chain(boxed::WARNINGS).collect::<Vec<_>>();
        self.shared.warnings(&about, notice.into_iter().chain(taken).chain(held).collect());
    }

    /// What is done because there are others; it ends with what is returned.
    fn begin_beside(&self) -> Option<DropGuard> {
        // With one turn only there is nothing beside it.
        if self.once {
            return None;
        }
        let stop = CancellationToken::new();
        let beside = beside::Beside::new(&self.node, &self.book, &self.peers, &self.shared);
        tokio::spawn(stop.clone().run_until_cancelled_owned(beside.run()));
        Some(stop.drop_guard())
    }

    fn begin_keeping(&mut self) {
        if self.keepers.is_some() || self.once {
            return;
        }
        let stop = CancellationToken::new();
        let (node, shared) = (Arc::clone(&self.node), Arc::clone(&self.shared));
        let turns = Turns {
            node: Arc::clone(&node),
            book: Arc::clone(&self.book),
            peers: Arc::clone(&self.peers),
            shared: Arc::clone(&shared),
        };
        let upkeep = tokio::spawn(keep::upkeep(turns.clone()));
        tokio::spawn(role::auth(node, shared, stop.clone()));
        let backups = tokio::spawn(keep::backups(turns, stop.clone()));
        tokio::spawn(stop.clone().run_until_cancelled_owned(async {
            tokio::time::sleep(SETTLED).await;
            tokio::task::spawn_blocking(quorate_host::memory::give_back).await
        }));
        self.keepers = Some(Keepers { upkeep, backups, stop });
    }

    /// Ends what goes on beside etcd; what was recorded is uploaded, within its time.
    pub(super) async fn rest(&mut self) {
        let Some(keepers) = self.keepers.take() else { return };
        keepers.upkeep.abort();
        keepers.stop.cancel();
        let mut backups = keepers.backups;
        if tokio::time::timeout(BACKUPS_LIMIT, &mut backups).await.is_err() {
            backups.abort();
            warn!(code = %Code::FlushIncomplete, "what is not uploaded yet stays in the spool");
        }
    }

    /// It has ended, and nobody of us asked.
    fn over(&mut self, running: &Running, ended: &Ended, lasted: Duration) {
        let words = etcd::last_words(&self.node, self.log_before);
        self.record_out_of_range(words.out_of_range);
        let mut how = match ended {
            Ended::Record(record) => end_words(record),
            Ended::NoRecord(why) => format!("not recorded: {why}"),
        };
        // Whoever was killed did not end for what it said.
        let by_itself = matches!(ended, Ended::Record(record) if record.code.is_some());
        let at_once = by_itself && lasted < AT_ONCE;
        if let Some(text) = words.text.or(words.last.filter(|_| at_once)) {
            how = format!("{how}: {text}");
        }
        warn!(code = %Code::EtcdEnded, "etcd (process {}) {how}", running.child().pid);
        self.hindered = words.passing.map(Hindered::Passing);
        // A member that was removed ends by itself, and what comes of that is decided by looking at the cluster again.
        let permanent = words.permanent.filter(|(code, _)| by_itself && *code != Code::StartRemoved);
        self.note_end(permanent, &how, lasted);
        self.shared.phase(Phase::Observing, format!("etcd {how}"));
    }

    fn orphaned(&self, running: &Running) {
        let pid = running.child().pid;
        let text = format!("the shim of etcd (process {pid}) is gone; etcd goes on, and its log is not kept any more");
        self.shared.warnings(
            &[Code::ShimSilent],
            vec![
                Notice::new(Code::ShimSilent, text)
                    .way_out("restart the member when that suits you: `quorate stop`, then `quorate run`"),
            ],
        );
    }

    /// Ends: backups first, then etcd, unless it is to go on.
    pub(super) async fn stop(&mut self, mut running: Running, wish: &super::Wish) -> Result<Finish, Fault> {
        self.record_progress_at_end().await;
        if wish.keep_running {
            self.rest().await;
            if wish.reload {
                info!("asked by {}: the cluster file is read again, and etcd goes on", wish.asked_by);
                return Ok(Finish::Left);
            }
            info!("asked by {}: the agent ends, and etcd (process {}) goes on", wish.asked_by, running.child().pid);
            return Ok(Finish::Left);
        }
        self.stop_processes(wish).await;
        self.shared.phase(Phase::Draining, format!("asked by {}: etcd is being stopped", wish.asked_by));
        self.shared.read(false);
        self.rest().await;
        if let Some(how) = self.end_etcd(&mut running, &wish.asked_by).await? {
            self.shared.phase(Phase::Stopped, format!("etcd {how}"));
        }
        Ok(Finish::Stopped)
    }

    /// Hands leadership over and ends etcd. Says how it ended; `None`: asked again meanwhile, and the shim goes on by itself.
    async fn end_etcd(&mut self, running: &mut Running, asked_by: &str) -> Result<Option<String>, Fault> {
        let joins =
            matches!(self.book.read(), LedgerSeen::There(ledger) if matches!(ledger.state, State::PendingAdd(_)));
        // Who does not vote yet does not lead, and one that does not serve yet cannot be asked.
        if !joins {
            beside::hand_over(&self.node, &self.shared).await;
        }
        let ladder = etcd::ladder(&self.node.spec.maintenance.stop);
        let limit: u64 = ladder.iter().map(|rung| rung.wait_ms).sum();
        let last_revision = self.shared.status().etcd.and_then(|etcd| etcd.revision);
        running.stop(&StopOrder { asked_by: asked_by.to_owned(), ladder, last_revision })?;
        let deadline = Instant::now() + Duration::from_millis(limit) + RECORD_LIMIT;
        let first = self.wished.borrow().len();
        loop {
            let end = watched(running)?;
            let rest = deadline.saturating_duration_since(Instant::now());
            tokio::select! {
                _ = end.readable() => {}
                () = tokio::time::sleep(rest) => {
                    return Err(Fault::new(Code::NotEnding, format!("etcd (process {}) does not end", running.child().pid))
                        .hint("the shim goes on trying; see `quorate explain Q0906`"));
                }
                _ = self.wished.wait_for(|wishes| wishes.len() > first) => {
                    warn!("asked again: the agent ends at once, and the shim goes on stopping etcd");
                    return Ok(None);
                }
            }
            drop(end);
            if let Some(ended) = running.wait(Duration::from_millis(100))? {
                let how = match &ended {
                    Ended::Record(record) => end_words(record),
                    Ended::NoRecord(why) => format!("not recorded: {why}"),
                };
                self.shared.measures.ended("asked");
                self.shared.change(|status| {
                    status.etcd = None;
                    status.last_end = Some(how.clone());
                });
                return Ok(Some(how));
            }
        }
    }
}

/// Something to wait on for the end.
#[expect(deprecated, reason = "the safe form of registering; an `OwnedFd` keeps what the unsafe one asks for")]
pub(crate) fn watched(running: &Running) -> Result<AsyncFd<OwnedFd>, Fault> {
    let watched = running.end_fd().as_fd().try_clone_to_owned();
    watched
        .and_then(|fd| AsyncFd::with_interest(fd, Interest::READABLE))
        .map_err(|error| Fault::io("cannot watch etcd's process", error))
}
