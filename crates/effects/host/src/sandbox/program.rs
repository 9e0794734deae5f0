//! The last steps of the process that becomes the program.
//!
//! **Invariant:** all that follows the word `Run` is the filter and the execution; whoever waits for that word knows
//! which process it will be.

use std::convert::Infallible;
use std::ffi::CString;
use std::io::{self, Write};
use std::os::fd::OwnedFd;

use quorate_plan::boxes::{BoxPlan, Part};
use rustix::net::RecvFlags;
use rustix::process::{Signal, set_parent_process_death_signal};
use rustix::thread::CapabilitySet;

use super::audit::hand_over;
use super::raw::{close_on_exec_from, execute, exit_now, usual_signals};
use super::rights::{User, give_up, limit};
use super::root::Step;
use super::rules::restrict;
use super::syscalls::Filter;
use super::talk::{Word, hear, say};
use super::view::View;

/// What every shell says when a program cannot be executed.
const NOT_EXECUTED: i32 = 126;

/// All that is needed to become the program, made before the first process is.
pub(super) struct Recipe {
    pub(super) plan: BoxPlan,
    pub(super) view: View,
    pub(super) user: Option<User>,
    pub(super) keep: CapabilitySet,
    pub(super) filter: Option<Filter>,
    pub(super) program: CString,
    pub(super) args: Vec<CString>,
    pub(super) env: Vec<CString>,
    pub(super) dir: CString,
    pub(super) output: Option<OwnedFd>,
    /// In a process group of its own, and without stdin.
    pub(super) apart: bool,
    /// The box ends when its keeper does.
    pub(super) with_keeper: bool,
}

/// The ways out of the process that becomes the program.
pub(super) struct Ways {
    /// To the keeper.
    pub(super) keeper: OwnedFd,
    /// To the init: closed by the execution, or says why there was none.
    pub(super) failure: io::PipeWriter,
    /// To the init: the listener of the audit.
    pub(super) audit: OwnedFd,
}

/// Becomes the program, in a process that has its memory from the init: what is made here and not given back stays with that.
pub(super) fn become_it(recipe: &Recipe, ways: &Ways) -> Infallible {
    let (what, error) = match steps(recipe, ways) {
        Err(failed) => failed,
        Ok(()) => (String::new(), execute(&recipe.program, &recipe.args, &recipe.env)),
    };
    let failed = Word::Failed { what, error: error.to_string() };
    if let Ok(bytes) = serde_json::to_vec(&failed) {
        let _ = (&ways.failure).write_all(&bytes);
    }
    exit_now(NOT_EXECUTED)
}

fn at<T, E: Into<io::Error>>(what: &str, done: Result<T, E>) -> Step<T> {
    done.map_err(|error| (what.to_owned(), error.into()))
}

fn steps(recipe: &Recipe, ways: &Ways) -> Step<()> {
    let plan = &recipe.plan;
    usual_signals();
    if recipe.apart {
        at("lead a process group", rustix::process::setpgid(None, None))?;
        let null = at("open /dev/null", std::fs::File::open("/dev/null"))?;
        at("close stdin", rustix::stdio::dup2_stdin(&null))?;
    }
    if let Some(output) = &recipe.output {
        at("join the output", rustix::stdio::dup2_stdout(output))?;
        at("join the output", rustix::stdio::dup2_stderr(output))?;
    }
    // A dir that is not in the box is no place to be.
    if rustix::process::chdir(recipe.dir.as_c_str()).is_err() {
        at("go to the root", rustix::process::chdir("/"))?;
    }
    limit(plan)?;
    give_up(plan, recipe.user, recipe.keep)?;
    if !plan.has(Part::Processes) {
        // After the change of user, which clears it. With processes of its own the kernel sees to it.
        at("end with the init", set_parent_process_death_signal(Some(Signal::KILL)))?;
    }
    restrict(plan, &recipe.view)
        .map_err(|why| ("apply the rules about files and ports".to_owned(), io::Error::other(why)))?;
    at("let no descriptor through", close_on_exec_from(3))?;
    at("speak to the keeper", say(&ways.keeper, &Word::Ready))?;
    match at("hear from the keeper", hear(&ways.keeper, RecvFlags::empty()))? {
        Some((Word::Run, _)) => {}
        // Nobody wants it any more.
        Some(_) | None => exit_now(NOT_EXECUTED),
    }
    if let Some(filter) = &recipe.filter
        && let Some(listener) = at("filter system calls", filter.install())?
    {
        at("hand over the listener", hand_over(&ways.audit, &listener))?;
    }
    Ok(())
}
