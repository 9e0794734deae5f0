//! A node whose etcd others run: nothing is started here; whether that etcd answers is asked, and told as of any other.
//!
//! **Invariant:** only keys of our namespace are read, so that a role for that prefix is enough.

use std::time::Duration;

use quorate_faults::{Code, Fault};
use quorate_plan::ledger::{LedgerSeen, State};
use quorate_plan::phase::Phase;
use quorate_plan::start::Halt;

use super::data::in_words;
use super::{Agent, Finish};
use crate::peering::Records;

/// Between two questions: readiness is told by the last one, and holds for longer than that.
const ASK_EVERY: Duration = Duration::from_secs(1);

impl Agent {
    /// Asks the etcd of others until someone wants the end.
    pub(super) async fn live_external(&mut self) -> Result<Finish, Fault> {
        let mut records: Option<Records> = None;
        loop {
            let answer = match self.has_none_of_its_own() {
                Some(halt) => Err((Phase::Refused, halt)),
                None => self.ask_external(&mut records).await.map_err(|fault| (Phase::Waiting, silent(&fault))),
            };
            self.shared.read(answer.is_ok());
            let code = match &answer {
                Ok(()) => {
                    let at = self.node.spec.external.as_ref().map(|known| known.endpoints.join(", "));
                    self.shared.phase(Phase::Serving, format!("etcd answers at {}", at.unwrap_or_default()));
                    None
                }
                Err((phase, halt)) => {
                    self.shared.halt(*phase, halt);
                    Some(halt.code)
                }
            };
            if self.once {
                return Ok(code.map_or(Finish::Left, Finish::Halted));
            }
            tokio::select! {
                () = tokio::time::sleep(ASK_EVERY) => {}
                wish = self.wished() => return Ok(self.leave(&wish)),
            }
        }
    }

    async fn ask_external(&self, records: &mut Option<Records>) -> Result<(), Fault> {
        let open = match records.take() {
            Some(open) => open,
            None => Records::open(&self.node).await?,
        };
        open.is_busy().await?;
        *records = Some(open);
        Ok(())
    }

    /// Why this node asks nobody: it was detached, or was a member of a cluster of its own.
    fn has_none_of_its_own(&self) -> Option<Halt> {
        let halt = |code, why: &str, way_out: &str| {
            Some(Halt { code, why: why.to_owned(), way_out: way_out.to_owned(), lost: None })
        };
        if !self.node.is_declared() {
            let way_out = "join again with a code, or begin anew: `quorate run --standalone`";
            return halt(Code::StartRemoved, "this node was detached", way_out);
        }
        let member = match self.book.read() {
            LedgerSeen::Absent => false,
            LedgerSeen::There(ledger) => ledger.state != State::Empty,
            LedgerSeen::Unreadable(_) => true,
        };
        if member {
            let way_out = "take it out of its own cluster first, or give this node another name";
            return halt(Code::ExternalEtcd, "this node is a member of a cluster of its own", way_out);
        }
        None
    }
}

fn silent(fault: &Fault) -> Halt {
    let way_out = fault.hint_text().unwrap_or("see to the etcd that the cluster file names").to_owned();
    Halt { code: fault.code(), why: format!("the external etcd: {}", in_words(fault)), way_out, lost: None }
}
