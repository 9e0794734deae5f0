//! Records durably how far every member was seen, and stops a member that runs on an older copy of its data.
//!
//! **Rule:** an index is recorded for a start that was known before it was observed; a new start is recorded at once.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use quorate_etcd_formats::membership::MemberId;
use quorate_faults::{Code, Fault};
use quorate_plan::ledger::{Ledger, LedgerSeen, Progress, RolledBack, StartMark};
use quorate_plan::peers::told_of_rollback;
use quorate_plan::start::{DataSeen, Observed, PeerAnswer, PeerSeen};
use tracing::warn;

use super::Agent;
use super::beside::{Beside, Survey};
use super::cluster::{Heard, seen};
use super::data::in_words;
use super::status::Notice;
use crate::peering::fill_random;

/// Indexes are recorded no more often than this.
const RECORD_EVERY: Duration = Duration::from_secs(5);

impl Beside {
    /// Records how far members are, and which start of each that is.
    pub(super) async fn record_progress(&mut self, survey: &Survey, heard: &Heard) {
        let LedgerSeen::There(ledger) = self.book.read() else { return };
        let listed: Vec<MemberId> = survey.members.iter().map(|(member, _)| MemberId(member.id)).collect();
        let observed: Vec<Progress> = survey
            .members
            .iter()
            .filter_map(|(member, status)| {
                let id = MemberId(member.id);
                let status = status.as_ref().ok()?;
                let start = if id == survey.me { ledger.last_start } else { start_of(heard, id)? };
                let position = self.shared.sure_position(id)?;
                let revision = status.header.as_ref().and_then(|header| u64::try_from(header.revision).ok());
                Some(Progress {
                    member: id,
                    index: position.index,
                    term: position.term,
                    revision: revision.unwrap_or(0),
                    start,
                    rolled_back: None,
                })
            })
            .collect();
        let next = ledger.with_progress(&listed, &observed);
        let urgent = starts(&next) != starts(&ledger);
        let due = self.recorded.is_none_or(|at| at.elapsed() >= RECORD_EVERY);
        if next.progress == ledger.progress || !(urgent || due) {
            return;
        }
        self.recorded = Some(Instant::now());
        let cluster = survey.cluster;
        let written = self.write(move |ledger| {
            // What another cluster says does not belong into this ledger.
            if ledger.ids().map(|(ours, _)| ours) == Some(cluster) {
                *ledger = ledger.with_progress(&listed, &observed);
            }
        });
        if let Err(fault) = written.await {
            let text = format!("cannot record how far the members are: {}", in_words(&fault));
            self.shared.log(&Notice::new(fault.code(), text));
        }
    }

    /// Whether this member runs on an older copy of its data, by what others recorded, and stops for it.
    pub(super) async fn heed_rollback(&self, survey: &Survey, heard: &Heard) -> bool {
        let LedgerSeen::There(mut ledger) = self.book.read() else { return false };
        let answers = seen(heard, self.node.name(), &LedgerSeen::There(ledger.clone()));
        let answers = answers.iter().filter_map(|(peer, answer)| match answer {
            PeerSeen::Answered(answer) => Some((peer.as_str(), answer)),
            PeerSeen::Unknown(_) => None,
        });
        let answers: Vec<(&str, &PeerAnswer)> = answers.collect();
        if let Some((peer, found)) = told_of_rollback(&ledger, answers) {
            warn!(code = %Code::RolledBackRuns, "`{peer}` saw this member at {}, and it started at {}", found.seen, found.last);
            match self.write(move |ledger| ledger.rolled_back = Some(found)).await {
                Ok(written) => *ledger = written,
                Err(fault) => warn!(code = %fault.code(), "cannot record it: {}", in_words(&fault)),
            }
        }
        // What the store told was compared before the start.
        let found = ledger.own_rollback().filter(|found| !found.by_store);
        let Some(RolledBack { seen, last, .. }) = found else {
            self.shared.warnings(&[Code::RolledBackRuns], Vec::new());
            return false;
        };
        let voters = survey.members.iter().filter(|(member, _)| !member.is_learner);
        let others = voters.clone().filter(|(member, _)| MemberId(member.id) != survey.me);
        let taking_part = others.filter(|(_, status)| status.as_ref().is_ok_and(|status| status.leader != 0)).count();
        let what = format!("its data was put back to an older copy: it was seen at {seen}, and started at {last}");
        if taking_part > voters.count() / 2 {
            self.shared.order_restart(what);
            return true;
        }
        let notice = Notice::new(Code::RolledBackRuns, format!("this member runs, and {what}"))
            .way_out("start the members that are down: it is replaced once they have a quorum without it");
        self.shared.warnings(&[Code::RolledBackRuns], vec![notice]);
        false
    }

    /// Forgets that the data was taken over as it is, once it is backed up: from then on the store holds what this cluster has.
    pub(super) async fn finish_take_over(&self, survey: &Survey, heard: &Heard) {
        let told = heard.values().flatten().filter_map(|answer| answer.stored_revision);
        // Until then the store may show what this cluster had before.
        let stored = told.chain(self.shared.stored_revision()).any(|stored| stored <= survey.revision);
        if !stored || !matches!(self.book.read(), LedgerSeen::There(ledger) if ledger.taken_over) {
            return;
        }
        if let Err(fault) = self.write(|ledger| ledger.taken_over = false).await {
            let text = format!("cannot record that the data is backed up: {}", in_words(&fault));
            self.shared.log(&Notice::new(fault.code(), text));
        }
    }

    /// Members that are known to have been started on older copies of their data.
    pub(super) fn known_rollbacks(&self, heard: &Heard) -> BTreeSet<MemberId> {
        let own = match self.book.read() {
            LedgerSeen::There(ledger) => ledger.progress,
            LedgerSeen::Absent | LedgerSeen::Unreadable(_) => Vec::new(),
        };
        let own = own.iter().filter(|known| known.rolled_back.is_some()).map(|known| known.member);
        let told = heard.values().flatten().flat_map(|answer| answer.acknowledged.iter());
        own.chain(told.filter(|known| known.rolled_back.is_some()).map(|known| known.member)).collect()
    }
}

impl Agent {
    /// Counts a start of etcd, before it starts.
    pub(super) async fn count_start(&self, seen: &Observed) -> Result<(), Fault> {
        let from = match &seen.data {
            DataSeen::There(facts) => facts.last_index,
            DataSeen::Absent | DataSeen::Unknown(_) => None,
        };
        let mut nonce = [0_u8; 8];
        fill_random(&mut nonce)?;
        let nonce = u64::from_le_bytes(nonce);
        self.write_beside(move |ledger| ledger.last_start = Some(ledger.next_start(nonce, from))).await
    }

    /// Records that etcd itself found its log shorter than what the leader knows it to hold.
    pub(super) fn record_out_of_range(&self, out_of_range: Option<(u64, u64)>) {
        let Some((seen, last)) = out_of_range else { return };
        let recorded = self.book.change(|ledger| {
            if let Some((_, member)) = ledger.ids() {
                ledger.rolled_back = Some(RolledBack { member, seen, last, by_store: false });
            }
        });
        if let Err(fault) = recorded {
            warn!(code = %fault.code(), "cannot record that the data is an older copy: {}", in_words(&fault));
        }
    }

    /// Records how far members were when this agent or its etcd ends.
    pub(super) async fn record_progress_at_end(&self) {
        let shared = std::sync::Arc::clone(&self.shared);
        let recorded = self.write_beside(move |ledger| {
            for known in &mut ledger.progress {
                let Some(position) = shared.sure_position(known.member) else { continue };
                if position.index > known.index {
                    (known.index, known.term) = (position.index, known.term.max(position.term));
                }
            }
        });
        if let Err(fault) = recorded.await {
            let text = format!("cannot record how far the members are: {}", in_words(&fault));
            self.shared.log(&Notice::new(fault.code(), text));
        }
    }
}

/// The newest start of a member, as its agent tells it; `None`: its agent does not answer.
fn start_of(heard: &Heard, member: MemberId) -> Option<Option<StartMark>> {
    let answers = heard.values().filter_map(|answer| answer.as_ref().ok());
    answers.filter(|answer| answer.member == Some(member)).map(|answer| answer.start).next()
}

fn starts(ledger: &Ledger) -> Vec<(MemberId, Option<StartMark>, Option<RolledBack>)> {
    ledger.progress.iter().map(|known| (known.member, known.start, known.rolled_back)).collect()
}
