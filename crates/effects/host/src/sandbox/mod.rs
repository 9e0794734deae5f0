//! The box: a program with its own root, its own processes, a few files, a few ports, a few system calls, and limits.
//!
//! Three processes take part. The *keeper* (the shim, or `box run`) stays outside. It makes the box's first process, the
//! *init*, straight into new namespaces; the init builds the root, starts the *program*, hands it signals, buries what
//! is left to it, and says how the program ended. The program gives up its rights itself, last of all before it is executed.
//! Which parts there are is decided beforehand (`quorate_plan::boxes`); nothing is decided here.
//!
//! **Invariant:** whatever of the plan cannot be done ends the start; a program never runs in less than its plan.

mod audit;
mod cgroup;
mod filter;
mod foreground;
mod held;
mod init;
mod kernel;
mod lend;
mod needs;
mod numbers;
mod program;
mod raw;
mod rights;
mod root;
mod rules;
mod start;
mod syscalls;
mod talk;
mod view;

pub use foreground::foreground;
pub use held::Held;
pub use kernel::{expect_machine, forget_machine, kernel_release, known_machine, observe_machine};
pub use start::{Kept, Launch, Waiting, prepare};
pub use talk::End;

pub(crate) use held::Hold;
pub(crate) use lend::{Lent, lent_dirs};
pub(crate) use raw::{
    clone_process, close_on_exec_from, execute, exit_now, forget_pages, give_back_memory, share_heap, usual_signals,
};

/// Clears away after a keeper that is gone, once its program has ended: waits a moment for the last of the box.
pub(crate) fn clear_after(keeper: &crate::process::Identity) {
    // What stays is removed by whoever makes the next box.
    drop(cgroup::Groups::left_by(keeper.pid, keeper.started_ticks));
}
