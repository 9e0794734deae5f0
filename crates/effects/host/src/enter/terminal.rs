//! The terminal that a command in another pid namespace needs for itself, so that its shell can control jobs.

use std::io::IsTerminal;

use rustix::process::getpgrp;
use rustix::termios::{tcgetpgrp, tcsetpgrp};

/// Whether stdin is a terminal that is ours to give.
pub(super) fn is_ours() -> bool {
    let stdin = std::io::stdin();
    stdin.is_terminal() && tcgetpgrp(&stdin).is_ok_and(|group| group == getpgrp())
}

/// Makes our process group the one in front, from behind too.
pub(super) fn take() {
    if !std::io::stdin().is_terminal() {
        return;
    }
    // Whoever is behind is stopped by this signal when it reaches for the front.
    disposition(libc::SIGTTOU, libc::SIG_IGN);
    // Without it the shell has no job control, and says so itself.
    let _ = tcsetpgrp(std::io::stdin(), getpgrp());
    disposition(libc::SIGTTOU, libc::SIG_DFL);
}

fn disposition(signal: libc::c_int, to: libc::sighandler_t) {
    // SAFETY: only the two dispositions that run no code are set, for signals that nothing else in this process handles.
    #[expect(unsafe_code, reason = "no safe wrapper sets a signal's disposition")]
    unsafe {
        libc::signal(signal, to);
    }
}
