//! One change of peers, from its reservation to its record: what is done next, given what is seen.
//!
//! ```text
//!   join:    reserved ──► given ──► joined          detach:  reserved ──► given ──► detached
//!                           └──► undoing ──► undone
//! ```
//!
//! **Invariant:** every state is on disk before it is acted on, and every act may be repeated; so whoever is killed goes on, and a
//! newcomer that does not come in its time leaves no trace.

use serde::{Deserialize, Serialize};

use super::Newcomer;

/// A change of peers that was begun.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operation {
    /// Tells two operations apart.
    pub id: String,
    /// What is done.
    pub kind: Kind,
    /// The cluster file that it leads to.
    pub text: String,
    /// The hash of the file that it began with.
    pub before: String,
    /// When it was begun, in ms since 1970.
    pub at_ms: u64,
    /// A newcomer that does not vote by then is taken out again.
    pub deadline_ms: u64,
    /// How far it is.
    pub step: Step,
}

/// What is done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A node becomes a member.
    Join(Newcomer),
    /// A member becomes none.
    Detach {
        /// Which.
        name: String,
    },
}

impl Kind {
    /// The node that it is about.
    pub fn name(&self) -> &str {
        match self {
            Kind::Join(newcomer) => &newcomer.name,
            Kind::Detach { name } => name,
        }
    }
}

/// How far it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Step {
    /// Nothing was changed yet.
    Reserved,
    /// The file is being given to every node, and the agents act on it.
    Given,
    /// The file without the newcomer is being given to every node.
    Undoing,
    /// It is over.
    Done(Outcome),
}

/// How it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// The node votes.
    Joined,
    /// The node did not come, and is not a member.
    Undone,
    /// The node is no member any more.
    Detached,
}

/// What is seen of it now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// Now, in ms since 1970.
    pub now_ms: u64,
    /// Whether every node that answers, and this one, holds the file of the operation.
    pub held: bool,
    /// The node in the member list that a quorum confirmed since: whether it votes; none: it is not in it.
    pub listed: Option<bool>,
    /// Whether that list is known, and of after the file was given.
    pub confirmed: bool,
    /// Whether all that was written before it began is in the store, or there is no store.
    pub backed_up: bool,
}

/// What to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// Nothing: it is over.
    Nothing,
    /// Wait, and for what.
    Wait(String),
    /// Write this step down, then look again.
    Write(Step),
    /// Give the file to whoever does not hold it.
    Give,
    /// Make the file without the newcomer, write it down as the one to be given, and go on with that.
    Undo,
    /// Write the record and close it.
    Close(Outcome),
}

/// Decides.
pub fn next(operation: &Operation, seen: &Seen) -> Next {
    let name = operation.kind.name();
    let late = matches!(operation.kind, Kind::Join(_)) && seen.now_ms >= operation.deadline_ms;
    match (operation.step, &operation.kind) {
        (Step::Done(_), _) => Next::Nothing,
        (Step::Reserved, _) if late => Next::Close(Outcome::Undone),
        (Step::Reserved, _) if !seen.backed_up => Next::Wait("what was written so far to be backed up".to_owned()),
        (Step::Reserved, _) => Next::Write(Step::Given),
        (Step::Given, Kind::Join(_)) if seen.confirmed && seen.listed == Some(true) && seen.held => {
            Next::Close(Outcome::Joined)
        }
        (Step::Given, Kind::Join(_)) if late && seen.listed != Some(true) => Next::Undo,
        (Step::Given | Step::Undoing, _) if !seen.held => Next::Give,
        (Step::Given, Kind::Join(_)) => Next::Wait(match seen.listed {
            Some(_) => format!("`{name}` to catch up and vote"),
            None => format!("the agent of `{name}` to start and to join"),
        }),
        (Step::Given, Kind::Detach { .. }) | (Step::Undoing, _) if seen.confirmed && seen.listed.is_none() => {
            Next::Close(match operation.kind {
                Kind::Join(_) => Outcome::Undone,
                Kind::Detach { .. } => Outcome::Detached,
            })
        }
        (Step::Given, Kind::Detach { .. }) | (Step::Undoing, _) => {
            Next::Wait(format!("the members to take `{name}` out of their list"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn join(step: Step) -> Operation {
        let newcomer = Newcomer { name: "n2".to_owned(), address: "10.0.0.2".to_owned(), data_dir: "/d".to_owned() };
        let (id, text, before) = ("x".to_owned(), String::new(), String::new());
        Operation { id, kind: Kind::Join(newcomer), text, before, at_ms: 10, deadline_ms: 100, step }
    }

    fn detach(step: Step) -> Operation {
        Operation { kind: Kind::Detach { name: "n2".to_owned() }, ..join(step) }
    }

    fn seen() -> Seen {
        Seen { now_ms: 50, held: true, listed: None, confirmed: true, backed_up: true }
    }

    #[test]
    fn a_join_ends_joined_or_undone() {
        let late = Seen { now_ms: 100, ..seen() };
        assert_eq!(next(&join(Step::Reserved), &seen()), Next::Write(Step::Given));
        assert!(matches!(next(&join(Step::Reserved), &Seen { backed_up: false, ..seen() }), Next::Wait(_)));
        assert_eq!(next(&join(Step::Reserved), &late), Next::Close(Outcome::Undone));
        assert_eq!(next(&join(Step::Given), &Seen { held: false, ..seen() }), Next::Give);
        assert!(matches!(next(&join(Step::Given), &seen()), Next::Wait(_)));
        let votes = Seen { listed: Some(true), ..late.clone() };
        assert_eq!(next(&join(Step::Given), &votes), Next::Close(Outcome::Joined), "late, and there");
        assert_eq!(next(&join(Step::Given), &late), Next::Undo);
        assert_eq!(next(&join(Step::Given), &Seen { listed: Some(false), ..late.clone() }), Next::Undo);
        assert!(matches!(next(&join(Step::Undoing), &Seen { listed: Some(false), ..late.clone() }), Next::Wait(_)));
        assert_eq!(next(&join(Step::Undoing), &late), Next::Close(Outcome::Undone));
        assert_eq!(next(&join(Step::Done(Outcome::Joined)), &late), Next::Nothing);
    }

    #[test]
    fn a_detach_is_done_when_the_list_says_so_and_is_never_undone_by_time() {
        let late = Seen { now_ms: 1000, listed: Some(true), ..seen() };
        assert!(matches!(next(&detach(Step::Given), &late), Next::Wait(_)));
        assert_eq!(next(&detach(Step::Given), &Seen { held: false, ..late }), Next::Give);
        assert_eq!(next(&detach(Step::Given), &seen()), Next::Close(Outcome::Detached));
        assert!(matches!(next(&detach(Step::Given), &Seen { confirmed: false, ..seen() }), Next::Wait(_)));
    }
}
