//! A recovery in words: what it is made of, its steps, and what an operator reads before anything is done.

use std::fmt::{self, Write as _};

use super::{ChangeHalt, RecoverStep, Recovery, Source};

impl Recovery {
    /// What an operator reads before anything is done.
    pub fn render(&self) -> String {
        let mut text = String::new();
        if let Some(source) = &self.source {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "generation {} is made of {source}", self.generation);
        }
        for lost in &self.loses {
            let _ = writeln!(text, "  may be lost: {lost}");
        }
        for (at, step) in self.steps.iter().enumerate() {
            let _ = writeln!(text, "  {}. {step}", at + 1);
        }
        if let Some(ChangeHalt { refused, halt }) = &self.halt {
            let _ = writeln!(text, "  {}: {halt}", if *refused { "refuse" } else { "wait" });
        }
        text
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Survivor { node, revision: Some(revision) } => {
                write!(f, "what `{node}` holds, revision {revision}")
            }
            Source::Survivor { node, revision: None } => write!(f, "what `{node}` holds"),
            Source::Backup { node, revision } => write!(f, "the backup, revision {revision}, on `{node}`"),
        }
    }
}

impl fmt::Display for RecoverStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RecoverStep::Claim { node, generation } => {
                write!(f, "{node}: stop etcd, and write down that generation {generation} is being made here")
            }
            RecoverStep::Replay { node } => {
                write!(f, "{node}: start etcd alone on a copy of the data, so that the whole log is applied")
            }
            RecoverStep::Upload { node, first, last } => {
                write!(f, "{node}: upload revisions {first} to {last}, which wait in its spool, into the store")
            }
            RecoverStep::Fetch { node, revision } => write!(f, "{node}: fetch the backup, up to revision {revision}"),
            RecoverStep::Rebuild { node } => {
                write!(f, "{node}: make the data of a new cluster of it, with bumped and compacted revisions")
            }
            RecoverStep::Swap { node, generation } => write!(
                f,
                "{node}: write generation {generation} into the ledger, rename the old data, put the new in its place"
            ),
            RecoverStep::Start { node } => write!(f, "{node}: start etcd, as the only member"),
            RecoverStep::Rejoin { node } => write!(f, "{node}: rename its data, and join the new cluster"),
        }
    }
}
