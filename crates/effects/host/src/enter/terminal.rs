//! The terminal that a command in another pid namespace needs for itself, so that its shell can control jobs.

use std::io::IsTerminal;

use rustix::process::Pid;
use rustix::termios::{tcgetpgrp, tcsetpgrp};

/// Whether stdin is a terminal that is ours to give.
pub(super) fn is_ours() -> bool {
    let stdin = std::io::stdin();
    stdin.is_terminal() && tcgetpgrp(&stdin).is_ok_and(|group| Some(group) == own_group())
}

/// Makes our process group the one in front, from behind too.
pub(super) fn take() {
    if !std::io::stdin().is_terminal() {
        return;
    }
    // Whoever is behind is stopped by this signal when it reaches for the front.
    disposition(libc::SIGTTOU, libc::SIG_IGN);
    // Without it the shell has no job control, and says so itself.
    let _ = own_group().map(|group| tcsetpgrp(std::io::stdin(), group));
    disposition(libc::SIGTTOU, libc::SIG_DFL);
}

/// `None` if the process that leads it is in a pid namespace that we do not see.
fn own_group() -> Option<Pid> {
    // SAFETY: it takes nothing and cannot fail.
    #[expect(unsafe_code, reason = "rustix's wrapper does not expect the answer 0")]
    Pid::from_raw(unsafe { libc::getpgrp() })
}

fn disposition(signal: libc::c_int, to: libc::sighandler_t) {
    // SAFETY: only the two dispositions that run no code are set, for signals that nothing else in this process handles.
    #[expect(unsafe_code, reason = "no safe wrapper sets a signal's disposition")]
    unsafe {
        libc::signal(signal, to);
    }
}
