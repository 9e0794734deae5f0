//! What is written down of a join or a detach: small text that the caller keeps where all nodes find it.
//!
//! **Rule:** a text that cannot be read is a fault and never an absent one.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use quorate_faults::{Code, Fault};
use serde::{Deserialize, Serialize};

/// Where the text is kept. `save` fails when the caller may no longer act: then nothing more is changed.
pub trait Journal: Sync {
    /// What is kept; `None`: nothing was ever.
    fn load(&self) -> impl Future<Output = Result<Option<String>, Fault>> + Send;
    /// Keeps a text instead of the one before.
    fn save(&self, text: &str) -> impl Future<Output = Result<(), Fault>> + Send;
}

/// A journal that lives as long as the process: for tests.
#[derive(Debug, Default)]
pub struct MemoryJournal(Mutex<Option<String>>);

impl Journal for MemoryJournal {
    async fn load(&self) -> Result<Option<String>, Fault> {
        Ok(self.0.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }

    async fn save(&self, text: &str) -> Result<(), Fault> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(text.to_owned());
        Ok(())
    }
}

/// What is done to a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// It is taken in.
    Join,
    /// It is let go.
    Detach,
}

/// What is being done, or comes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Step {
    /// Schema, slots, and the links from the new node.
    Preparing,
    /// The donor's links are paused from here on.
    Pausing,
    /// Rows are copied.
    Copying,
    /// The donor's links go on.
    Resuming,
    /// The new node follows the peers.
    Following,
    /// Nothing is left to do.
    Done,
}

impl JournalSeen {
    /// What is not finished, where it stands, and what can be done about it.
    pub fn shown(&self) -> String {
        let (name, step) = (&self.node, self.step.word());
        match self.kind {
            Kind::Join => format!(
                "the join of `{name}` is not finished ({step}): run `quorate pg join {name}` again, or give it up: \
                 `quorate pg detach {name}`"
            ),
            Kind::Detach => format!("the detach of `{name}` is not finished: run `quorate pg detach {name}` again"),
        }
    }
}

impl Step {
    fn word(self) -> &'static str {
        match self {
            Step::Preparing => "preparing",
            Step::Pausing => "pausing the donor's links",
            Step::Copying => "copying rows",
            Step::Resuming => "letting the donor's links go on",
            Step::Following => "following every peer",
            Step::Done => "done",
        }
    }

    pub(super) fn next(self) -> Step {
        match self {
            Step::Preparing => Step::Pausing,
            Step::Pausing => Step::Copying,
            Step::Copying => Step::Resuming,
            Step::Resuming => Step::Following,
            Step::Following | Step::Done => Step::Done,
        }
    }
}

/// What a text says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalSeen {
    /// What is done.
    pub kind: Kind,
    /// To which node.
    pub node: String,
    /// The number of the node.
    pub node_id: u16,
    /// The number of the donor; 0 for a detach.
    pub donor_id: u16,
    /// Where it stands.
    pub step: Step,
}

/// Reads a text; `None`: what it speaks of is done.
pub fn unfinished(text: &str) -> Result<Option<JournalSeen>, Fault> {
    let record = Record::read(text)?;
    Ok((record.step != Step::Done).then_some(JournalSeen {
        kind: record.kind,
        node: record.name,
        node_id: record.node,
        donor_id: record.donor,
        step: record.step,
    }))
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) kind: Kind,
    pub(super) node: u16,
    pub(super) name: String,
    #[serde(default)]
    pub(super) donor: u16,
    pub(super) step: Step,
    /// Which data dir joins: another one begins anew.
    #[serde(default)]
    pub(super) system: String,
    /// Where the donor stood in each peer's log.
    #[serde(default)]
    pub(super) positions: BTreeMap<u16, String>,
}

impl Record {
    pub(super) async fn load<J: Journal>(journal: &J) -> Result<Option<Record>, Fault> {
        journal.load().await?.map(|text| Record::read(&text)).transpose()
    }

    fn read(text: &str) -> Result<Record, Fault> {
        serde_json::from_str(text).map_err(|error| {
            Fault::new(Code::PgJournal, "the journal of the group cannot be read")
                .hint("was it written by a newer Quorate? Update this one first")
                .caused_by(error)
        })
    }

    pub(super) fn write(&self) -> Result<String, Fault> {
        serde_json::to_string(self)
            .map_err(|error| Fault::new(Code::PgJournal, "the journal of the group cannot be written").caused_by(error))
    }

    pub(super) fn way_out(&self) -> String {
        let name = &self.name;
        match self.kind {
            Kind::Join => format!("finish it (`quorate pg join {name}`), or give it up (`quorate pg detach {name}`)"),
            Kind::Detach => format!("finish it: `quorate pg detach {name}`"),
        }
    }

    pub(super) fn shown(&self) -> String {
        match self.kind {
            Kind::Join => format!("the join of `{}`", self.name),
            Kind::Detach => format!("the detach of `{}`", self.name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_journal_says_where_things_stand_and_an_unreadable_one_is_a_fault() {
        let text = r#"{"kind":"join","node":4,"name":"n4","donor":1,"step":"copying","positions":{"2":"0/15"}}"#;
        let seen = unfinished(text).unwrap().unwrap();
        assert_eq!((seen.node.as_str(), seen.donor_id, seen.step), ("n4", 1, Step::Copying));
        assert!(seen.shown().contains("`n4` is not finished (copying rows)") && seen.shown().contains("pg detach n4"));
        assert_eq!(unfinished(r#"{"kind":"detach","node":4,"name":"n4","step":"done"}"#).unwrap(), None);
        assert_eq!(unfinished("{}").unwrap_err().code(), Code::PgJournal);
        let mut steps = vec![Step::Preparing];
        while steps.last() != Some(&Step::Done) {
            steps.push(steps.last().unwrap().next());
        }
        assert_eq!(steps.len(), 6);
    }
}
