//! A box in the foreground: the terminal is the program's, signals are handed on, its end is ours.
//!
//! **Invariant:** it returns when nothing of the box is left.

use std::path::Path;

use quorate_faults::Fault;
use quorate_plan::boxes::BoxPlan;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

use super::raw::{Signals, hold_all_signals, usual_signals};
use super::start::{Launch, prepare};
use super::talk::End;

/// Runs a program in a box, to its end.
pub fn foreground(plan: &BoxPlan, launch: Launch) -> Result<End, Fault> {
    let shown = launch.program.clone();
    // Before there is a program that could need a signal.
    hold_all_signals();
    let end = run(plan, launch, &shown);
    usual_signals();
    end
}

fn run(plan: &BoxPlan, launch: Launch, shown: &Path) -> Result<End, Fault> {
    let fail = |error| Fault::io("cannot wait for the box", error);
    let signals = Signals::new().map_err(fail)?;
    let kept = prepare(plan, launch)?.run(shown)?;
    let init = i32::try_from(kept.init()).ok().and_then(Pid::from_raw);
    loop {
        while let Some(caught) = signals.next().map_err(fail)? {
            let signal = Signal::from_named_raw(caught.signal);
            // What the terminal sends reaches the program by itself.
            if let (Some(init), Some(signal), true) = (init, signal, caught.sent && caught.signal != libc::SIGCHLD) {
                let _ = kill_process(init, signal);
            }
        }
        match waitpid(init, WaitOptions::NOHANG) {
            Ok(Some((_, status))) => {
                let own = status.terminating_signal().map_or(End::Code(125), End::Signal);
                return Ok(kept.ended().unwrap_or(own));
            }
            Ok(None) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(fail(errno.into())),
        }
        let _ = poll(&mut [PollFd::new(signals.fd(), PollFlags::IN)], None);
    }
}
