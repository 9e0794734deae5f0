//! The first process of a box: builds its root, starts the program, hands it signals, buries, and says how it ended.
//!
//! **Invariant:** when it ends, all of the box ends: the kernel sees to it where the box has processes of its own, and
//! elsewhere it does so itself.

use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};

use quorate_plan::boxes::Part;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, socketpair};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, set_parent_process_death_signal, wait};

use super::audit::{Audit, take_over};
use super::cgroup::Groups;
use super::program::{Recipe, Ways, become_it};
use super::raw::{
    Caught, Signals, borrow_process, close_all_but, exit_now, give_back_memory, hold_all_signals, is_alone,
};
use super::root::{Rooms, Step, enter};
use super::syscalls::Filter;
use super::talk::{End, Word, hear, say};
use crate::shim::end_all;

/// What the machine is called inside.
const NAME: &[u8] = b"box";
/// How the init itself ends when the box could not be made.
const NOT_MADE: i32 = 125;

/// Is the first process, until the program has ended.
pub(super) fn be_init(recipe: &Recipe, keeper: OwnedFd, groups: Groups) -> ! {
    hold_all_signals();
    let ended = serve(recipe, keeper, groups);
    exit_now(if ended { 0 } else { NOT_MADE })
}

/// Lets go of what belongs to the process that this one is a copy of.
fn part(recipe: &Recipe, keeper: &OwnedFd) -> io::Result<()> {
    let mut keep = vec![keeper.as_fd()];
    if let Some(output) = &recipe.output {
        keep.push(output.as_fd());
        rustix::stdio::dup2_stdout(output)?;
        rustix::stdio::dup2_stderr(output)?;
    }
    close_all_but(&keep)
}

fn serve(recipe: &Recipe, keeper: OwnedFd, groups: Groups) -> bool {
    // Before anything takes memory or starts a process. What the groups were opened by is closed with the rest.
    let apart =
        at("go into its cgroups", groups.go_in()).and_then(|()| at("part from its keeper", part(recipe, &keeper)));
    if let Err((what, error)) = apart {
        let _ = say(&keeper, &Word::Failed { what, error: error.to_string() });
        return false;
    }
    if recipe.with_keeper {
        let _ = set_parent_process_death_signal(Some(Signal::KILL));
    }
    if !matches!(hear(&keeper, RecvFlags::empty()), Ok(Some((Word::Go, _)))) {
        return false;
    }
    match begin(recipe, &keeper) {
        Ok((program, audit)) => {
            give_back_memory();
            let end = watch(program, audit, recipe.plan.has(Part::Processes));
            if !recipe.plan.has(Part::Processes) {
                end_all(program);
            }
            say(&keeper, &Word::Ended(end)).is_ok()
        }
        Err((what, error)) => {
            let _ = say(&keeper, &Word::Failed { what, error: error.to_string() });
            false
        }
    }
}

fn at<T, E: Into<io::Error>>(what: &str, done: Result<T, E>) -> Step<T> {
    done.map_err(|error| (what.to_owned(), error.into()))
}

fn begin(recipe: &Recipe, keeper: &OwnedFd) -> Step<(u32, Option<Audit>)> {
    let plan = &recipe.plan;
    if plan.has(Part::Hostname) {
        at("name the box", rustix::system::sethostname(NAME))?;
    }
    if plan.has(Part::Root) {
        enter(&recipe.view, &Rooms { proc: plan.has(Part::Proc) })?;
    }
    if !plan.has(Part::Processes) {
        at("take in orphans", rustix::process::set_child_subreaper(Some(rustix::process::getpid())))?;
    }
    let (mut failures, failure) = at("make a pipe", io::pipe())?;
    let pair = socketpair(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None);
    let (ours, theirs) = at("make a socket", pair)?;
    let spoken = at("copy a descriptor", keeper.try_clone())?;
    // Without a /proc the threads cannot be counted; this process has never had a second one.
    if !plan.has(Part::Root) || plan.has(Part::Proc) {
        at("start a process", is_alone())?;
    }
    let ways = Ways { keeper: spoken, failure, audit: theirs };
    let program = at("start a process", borrow_process(|| become_it(recipe, &ways)))?;
    drop(ways);
    let mut said = Vec::new();
    at("read how the program started", failures.read_to_end(&mut said))?;
    if let Ok(Word::Failed { what, error }) = serde_json::from_slice(&said) {
        return Err((what, io::Error::other(error)));
    }
    let audit = match recipe.filter {
        Some(Filter::Ask(_)) => Some(Audit::new(at("take over the listener", take_over(&ours))?)),
        Some(Filter::Deny(_)) | None => None,
    };
    at("speak to the keeper", say(keeper, &Word::Started))?;
    Ok((program, audit))
}

/// Until the program has ended.
fn watch(program: u32, mut audit: Option<Audit>, apart: bool) -> End {
    let Ok(signals) = Signals::new() else { return End::Signal(libc::SIGKILL) };
    loop {
        while let Ok(Some(caught)) = signals.next() {
            hand_on(program, &caught, apart);
        }
        // After the signals: one that came before this is seen here, one after it wakes the poll.
        if let Some(end) = bury(program) {
            if let Some(audit) = &audit {
                audit.sum_up();
            }
            return end;
        }
        let mut fds = vec![PollFd::new(signals.fd(), PollFlags::IN)];
        if let Some(audit) = &audit {
            fds.push(PollFd::new(&audit.listener, PollFlags::IN));
        }
        let _ = poll(&mut fds, None);
        let asked = fds.get(1).map(PollFd::revents).unwrap_or(PollFlags::empty());
        drop(fds);
        let gone = asked.contains(PollFlags::HUP)
            || (asked.contains(PollFlags::IN) && !audit.as_mut().is_some_and(Audit::answer));
        // Nobody is left that could ask.
        if gone && let Some(audit) = audit.take() {
            audit.sum_up();
        }
    }
}

/// Signals that processes outside sent; those of the terminal reach the program by themselves.
fn hand_on(program: u32, caught: &Caught, apart: bool) {
    let from_outside = caught.sent && (!apart || caught.sender == 0);
    if caught.signal == libc::SIGCHLD || !from_outside {
        return;
    }
    let pid = i32::try_from(program).ok().and_then(Pid::from_raw);
    if let (Some(pid), Some(signal)) = (pid, Signal::from_named_raw(caught.signal)) {
        // It is our child and not buried yet, so the number is its own.
        let _ = kill_process(pid, signal);
    }
}

/// Buries whoever has ended; the end of the program, if it is among them.
fn bury(program: u32) -> Option<End> {
    let mut end = None;
    while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
        if u32::try_from(pid.as_raw_nonzero().get()) == Ok(program) {
            let code = status.exit_status().map(End::Code);
            end = code.or_else(|| status.terminating_signal().map(End::Signal));
        }
    }
    end
}
