//! Carries out a recovery that was ordered, before anything else is looked at.
//!
//! **Rule:** what cannot be done is written down and given up, and the node goes on as it was; what may pass is tried again.

use std::sync::Arc;
use std::time::Duration;

use quorate_faults::{Code, Fault};
use quorate_plan::fork::Report;
use quorate_plan::ledger::{Ledger, LedgerSeen};
use quorate_plan::peers::{Told, heed};
use quorate_plan::phase::Phase;
use tracing::warn;

use super::cluster::Heard;
use super::data::in_words;
use super::execute::{halt_of, halted, phase_of};
use super::fork::report;
use super::observe::Memory;
use super::{Agent, Finish};
use crate::peers::PeerError;
use crate::recover::{self, Progress, RecoveryNow, Tools};

/// How long etcd may take to apply the log of the copy: many gigabytes on a slow disk.
const BOOT_LIMIT: Duration = Duration::from_secs(30 * 60);

/// Between two attempts.
const AGAIN: Duration = Duration::from_secs(5);

impl Agent {
    /// Works off what was ordered. Returns how to end, where someone wants that meanwhile.
    pub(super) async fn recover(&mut self) -> Option<Finish> {
        loop {
            let fault = match recover::pending(self.node.state_path()) {
                Ok(None) => return None,
                Ok(Some(now)) => {
                    self.rest().await;
                    let tools = match self.recovery_tools() {
                        Ok(tools) => tools,
                        Err(fault) => {
                            if let Some(finish) = self.wait_for_recovery(&fault).await {
                                return Some(finish);
                            }
                            continue;
                        }
                    };
                    let mut wishes = self.wished.clone();
                    let done = tokio::select! {
                        done = self.carry_out(tools, now.clone()) => done,
                        // Cut off at any point, it goes on with the next start.
                        wish = wished(&mut wishes) => return Some(self.leave(&wish)),
                    };
                    match done {
                        Ok(progress) => {
                            self.recovered(&progress);
                            return None;
                        }
                        Err(fault) if self.may_give_up() && is_final(&fault) => {
                            self.give_up(&now, &fault);
                            return None;
                        }
                        Err(fault) => fault,
                    }
                }
                Err(fault) => fault,
            };
            if let Some(finish) = self.wait_for_recovery(&fault).await {
                return Some(finish);
            }
        }
    }

    fn recovery_tools(&mut self) -> Result<Tools, Fault> {
        let program = self.program()?;
        Ok(Tools {
            etcd: program.binary.path.clone(),
            version: program.binary.version.clone(),
            form: program.form(),
            shim: self.shim.clone(),
            boot_limit: BOOT_LIMIT,
        })
    }

    async fn carry_out(&self, tools: Tools, now: RecoveryNow) -> Result<Progress, Fault> {
        let (node, book, shared) = (Arc::clone(&self.node), Arc::clone(&self.book), Arc::clone(&self.shared));
        let work = tokio::task::spawn_blocking(move || {
            let tell = |what: String| shared.phase(Phase::Restoring, what);
            recover::carry_out(&tools, &node, &book, &now, &tell)
        });
        work.await.map_err(halted)?
    }

    fn recovered(&mut self, progress: &Progress) {
        // The runs before were of another cluster.
        self.runs.clear();
        self.memory = Memory { checked: None, fresh: true };
        self.tell_ledger();
        match progress {
            Progress::Done { revision: Some(revision), cluster, renamed, .. } => {
                let cluster = cluster.map(|id| id.to_string()).unwrap_or_default();
                self.shared.done(format!("recovered revision {revision} as cluster {cluster}"));
                self.tell_renamed(renamed);
            }
            Progress::Done { renamed, .. } => self.tell_renamed(renamed),
            Progress::Ordered | Progress::Built { .. } | Progress::Failed { .. } => {}
        }
    }

    fn tell_renamed(&self, renamed: &[(std::path::PathBuf, std::path::PathBuf)]) {
        for (from, to) in renamed {
            self.shared.done(format!("renamed `{}` to `{}`", from.display(), to.display()));
        }
    }

    /// Only before anything was changed.
    fn may_give_up(&self) -> bool {
        let now = recover::observe_progress(self.node.state_path());
        matches!(now, Ok(Some(RecoveryNow { progress: Progress::Ordered, .. })))
    }

    fn give_up(&mut self, now: &RecoveryNow, fault: &Fault) {
        let why = in_words(fault);
        warn!(code = %fault.code(), "the recovery cannot be carried out: {why}");
        self.shared.done(format!("the recovery of generation {} was given up: {why}", now.order.generation));
        if let Err(fault) = recover::write_failed(self.node.state_path(), now, fault, why) {
            warn!(code = %fault.code(), "cannot write that down: {}", in_words(&fault));
        }
    }

    async fn wait_for_recovery(&mut self, fault: &Fault) -> Option<Finish> {
        self.shared.halt(phase_of(fault), &halt_of(fault));
        if self.once {
            return Some(Finish::Halted(fault.code()));
        }
        tokio::select! {
            () = tokio::time::sleep(AGAIN) => None,
            wish = self.wished() => Some(self.leave(&wish)),
        }
    }
}

/// What others tell of a newer generation, where they do.
pub(super) fn told(heard: &Heard, ledger: &LedgerSeen) -> Option<Told> {
    let newer = heard.values().filter_map(|answer| match answer {
        Err(PeerError::Newer(newer)) => Some(Report::from(*newer)),
        // The same number may be that of another recovery.
        Ok(answer) => Some(report(answer)),
        Err(PeerError::Silent(_) | PeerError::Refused(_)) => None,
    });
    match ledger {
        LedgerSeen::There(ledger) => heed(ledger, newer),
        LedgerSeen::Absent | LedgerSeen::Unreadable(_) => heed(&Ledger::default(), newer),
    }
}

/// Whether another attempt would end the same way.
fn is_final(fault: &Fault) -> bool {
    matches!(
        fault.code(),
        Code::RecoverChanged
            | Code::RecoverBackupNewer
            | Code::RecoverBoot
            | Code::RecoverIncomplete
            | Code::RecoverNothing
            | Code::NotEtcdData
    )
}

async fn wished(wishes: &mut tokio::sync::watch::Receiver<Vec<super::Wish>>) -> super::Wish {
    match wishes.wait_for(|wishes| !wishes.is_empty()).await {
        Ok(wishes) => match wishes.first() {
            Some(wish) => wish.clone(),
            None => std::future::pending().await,
        },
        Err(_) => std::future::pending().await,
    }
}
