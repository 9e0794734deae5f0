//! The start decision: what a node does about its data, its ledger and what others say. The first matching row wins.
//!
//! **Invariants:** what was ever started is never founded again; what is unknown is never taken for absent; nothing is deleted;
//! a plan makes a data dir at most once and starts etcd at most once, as its last act on this node.

mod founding;
mod generations;
pub(crate) mod guards;
mod halts;
mod last_words;
mod machines;
mod members;
mod observed;
mod place;
mod restart;
mod rollback;
mod rows;
mod seals;
mod sightings;
mod step;

use std::fmt::Write as _;

use crate::spec::{Spec, Validation};

#[doc(hidden)]
pub use guards::Guard;
pub use last_words::{classify, hindrance, is_mended_by_files, out_of_range};
pub use machines::objection_to_removal;
pub use observed::{
    ClusterSeen, DataFacts, DataSeen, EndSeen, Health, Held, ListedMember, Observed, PeerAnswer, PeerFounding,
    PeerSeen, PlaceState, StoreSeen, Verdict,
};
pub use restart::{Ended, Restart, RestartPolicy, Run, plan_restart};
pub use sightings::{AgentSeen, Answering, Holder, LeasesSeen, ObservedLease, Sightings, connected_in};
pub use step::{Depth, Halt, Mode, Step};

/// The rows of the table, in its order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "`Row::text` says what each one is")]
pub enum Row {
    DataUnknown,
    LedgerUnknown,
    NotMounted,
    Tombstone,
    TornDown,
    Foreign,
    NewerGeneration,
    OwnGeneration,
    NotOursYet,
    OtherCluster,
    Undeclared,
    Left,
    Removed,
    AnotherMachine,
    Check,
    FinishFounding,
    Run,
    ReplaceCorrupt,
    RestoreOnly,
    CorruptAlone,
    ReplaceRolledBack,
    RolledBackAlone,
    HalfOnly,
    RedoInit,
    SetAside,
    GiveUp,
    ResumeAdd,
    DiskLost,
    LostAlone,
    OtherFileSystem,
    Disagree,
    BackupExists,
    Found,
    Join,
    AnotherChange,
    Unproven,
    WaitForCluster,
}

impl Row {
    /// The row in words.
    pub fn text(self) -> &'static str {
        match self {
            Row::DataUnknown => "the data cannot be seen",
            Row::LedgerUnknown => "the ledger cannot be read",
            Row::NotMounted => "the file system that held the data is not mounted",
            Row::Tombstone => "this node was removed for good",
            Row::TornDown => "the cluster was torn down",
            Row::Foreign => "the data is not this member's",
            Row::OwnGeneration => "this node belongs to the cluster, and did not know its generation",
            Row::NewerGeneration => "there is a newer generation of the cluster",
            Row::NotOursYet => "there is data that the ledger does not know",
            Row::OtherCluster => "the others belong to another cluster",
            Row::Check => "the data has not been checked since etcd last ended",
            Row::FinishFounding => "the data dir is made, and etcd never ran on it",
            Row::Undeclared => "this node is not declared, or was asked to leave",
            Row::Left => "this node was to leave, and the cluster does not list it any more",
            Row::Removed => "the cluster does not list this member",
            Row::AnotherMachine => "this node may run on another machine",
            Row::Run => "the data is good and ours",
            Row::ReplaceCorrupt => "the data is damaged, and the others have a quorum",
            Row::RestoreOnly => "the data of the only member is damaged or gone",
            Row::CorruptAlone => "the data is damaged, and the others do not answer",
            Row::ReplaceRolledBack => "the data was put back to an older copy, and the others have a quorum",
            Row::RolledBackAlone => "the data was put back to an older copy, and no quorum of others answers",
            Row::HalfOnly => "one of the two directories of the only member holds nothing",
            Row::RedoInit => "the data is damaged, and etcd never ran on it",
            Row::SetAside => "the data is of no use to the member that this node is to be",
            Row::GiveUp => "nobody has started on what was promised, and something else is declared, promised or there",
            Row::ResumeAdd => "the cluster has added this node, and it has not started",
            Row::DiskLost => "the data of a member that ran is gone",
            Row::LostAlone => "the data of a member that ran is gone, and the others do not answer",
            Row::OtherFileSystem => {
                "the only member has no data, and its directory is in another file system than before"
            }
            Row::Disagree => "nodes disagree on what is to be founded",
            Row::BackupExists => "there is no data, but a backup of this cluster",
            Row::Found => "a founding is declared, and everyone agrees",
            Row::Join => "the cluster is there, and this node is not in it yet",
            Row::AnotherChange => "the members of the cluster are being changed",
            Row::Unproven => "a change of members might cost the quorum",
            Row::WaitForCluster => "there is no data, and no cluster to join",
        }
    }
}

/// What is done next, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartPlan {
    /// The row that matched.
    pub row: Row,
    /// The steps, in their order. The last one may be to wait or to refuse.
    pub steps: Vec<Step>,
}

impl StartPlan {
    fn new(row: Row, steps: Vec<Step>) -> StartPlan {
        StartPlan { row, steps }
    }

    /// Why nothing more is done for now.
    pub fn waiting(&self) -> Option<&Halt> {
        self.steps.iter().find_map(|step| if let Step::Wait(halt) = step { Some(halt) } else { None })
    }

    /// Why nothing is done until a person has decided.
    pub fn refused(&self) -> Option<&Halt> {
        self.steps.iter().find_map(|step| if let Step::Refuse(halt) = step { Some(halt) } else { None })
    }

    /// The text of `quorate plan`.
    pub fn render(&self) -> String {
        let mut text = format!("because {}:\n", self.row.text());
        for (index, step) in self.steps.iter().enumerate() {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "  {}. {step}", index + 1);
        }
        text
    }
}

/// Decides what the node `name` does next.
pub fn plan_start(spec: &Spec, name: &str, seen: &Observed) -> StartPlan {
    rows::decide(spec, name, &seen.without_rival(), &guards::Every)
}

/// The same without one of its guards: for tests that show what each is for.
#[doc(hidden)]
pub fn plan_start_without(guard: Guard, spec: &Spec, name: &str, seen: &Observed) -> StartPlan {
    rows::decide(spec, name, &seen.without_rival(), &guards::Without(guard))
}

/// How deep the data is checked, from how etcd last ended.
pub fn plan_validation(spec: &Spec, seen: &Observed) -> Depth {
    let depth = |mode, why: &str| Depth { mode, why: why.to_owned() };
    match spec.maintenance.validation {
        Validation::Sanity => return depth(Mode::Sanity, "the cluster file asks for it"),
        Validation::Full => return depth(Mode::Full, "the cluster file asks for it"),
        Validation::Auto => {}
    }
    let why = match &seen.end {
        EndSeen::Clean => return depth(Mode::Sanity, "etcd closed it cleanly"),
        EndSeen::NeverRan => return depth(Mode::Sanity, "etcd never ran on it"),
        EndSeen::Unclean(how) => format!("etcd did not end cleanly ({how})"),
        EndSeen::Absent => "nothing says how etcd ended".to_owned(),
        EndSeen::Unreadable(why) => format!("the record of how etcd ended cannot be read ({why})"),
    };
    // How long it will take is not known before: disks differ by a factor of a hundred.
    Depth { mode: Mode::Within(spec.maintenance.validation_budget), why }
}

#[cfg(test)]
mod tests;
