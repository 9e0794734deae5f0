//! What a process was boxed with, kept so that a command can later be held in the same way.
//!
//! **Invariant:** the files are those that were found when the box was made, not looked for again; what cannot be applied
//! ends the attempt, so that a command never has more than the process.

use std::io;
use std::path::{Path, PathBuf};

use quorate_plan::boxes::{BoxPlan, Escape, List, Part, Syscalls};
use serde::{Deserialize, Serialize};

use super::raw::close_on_exec_from;
use super::rules::restrict;
use super::syscalls::Filter;
use super::view::{Seen, Use, View};

/// What the kernel does not tell of a process in a box: its rules about files and ports, and its list of system calls.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    plan: BoxPlan,
    view: View,
}

/// The same for a command, made and not yet applied.
#[derive(Debug)]
pub(crate) struct Hold {
    plan: BoxPlan,
    view: View,
    filter: Option<Filter>,
}

impl Held {
    pub(super) fn new(plan: BoxPlan, view: View) -> Held {
        Held { plan, view }
    }

    /// The box, with every choice made.
    pub fn plan(&self) -> &BoxPlan {
        &self.plan
    }

    /// Whether it has a root of its own.
    pub(crate) fn has_root(&self) -> bool {
        self.plan.has(Part::Root)
    }

    /// Whether its system calls are filtered: not where they are only logged.
    pub(crate) fn filters(&self) -> bool {
        self.plan.has(Part::Syscalls) && !self.plan.spec.syscalls.audit
    }

    /// Whether the rules let a program be executed.
    pub(crate) fn may_execute(&self, program: &Path) -> bool {
        let executes = |seen: &Seen| matches!(seen.may, Use::Execute | Use::WriteAndExecute);
        let within = |seen: &Seen| executes(seen) && program.starts_with(&seen.path);
        !self.plan.has(Part::Files) || self.view.seen.iter().any(within)
    }

    pub(super) fn seen(&self) -> &[Seen] {
        &self.view.seen
    }

    /// Makes it for a command. `lent`: directories of programs that it may use besides.
    pub(crate) fn hold(&self, lent: &[PathBuf]) -> io::Result<Hold> {
        let mut view = self.view.clone();
        view.seen.extend(lent.iter().map(|dir| Seen { path: dir.clone(), is_dir: true, may: Use::Execute }));
        // Programs start others and wait for them, which a list for one server has no calls for.
        let own = &self.plan.spec.syscalls;
        let list = if lent.is_empty() { own.list } else { List::Default };
        let syscalls = Syscalls { list, audit: false, ..own.clone() };
        let filter = self.filters().then(|| Filter::new(&syscalls, self.plan.spec.has(Escape::ExecutableData)));
        let filter = filter.transpose()?;
        Ok(Hold { plan: self.plan.clone(), view, filter })
    }
}

impl Hold {
    /// Puts this thread, and what it becomes, under all of it. What follows can only be the execution.
    pub(crate) fn apply(&self) -> io::Result<()> {
        restrict(&self.plan, &self.view).map_err(io::Error::other)?;
        close_on_exec_from(3)?;
        if let Some(filter) = &self.filter {
            filter.install()?;
        }
        Ok(())
    }
}
