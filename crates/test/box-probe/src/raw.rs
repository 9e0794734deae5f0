//! System calls by number, as an attacker makes them.
//!
//! **Rule:** only calls that read and write no memory but what is given for it.

use std::io;

/// Makes a system call with up to four plain arguments.
pub(crate) fn call(number: libc::c_long, arguments: [libc::c_long; 4]) -> io::Result<libc::c_long> {
    let [a, b, c, d] = arguments;
    call_five(number, [a, b, c, d, 0])
}

/// The same with a fifth one.
pub(crate) fn call_five(number: libc::c_long, arguments: [libc::c_long; 5]) -> io::Result<libc::c_long> {
    let [a, b, c, d, e] = arguments;
    // SAFETY: the callers pass numbers, null pointers, and pointers to structures that outlive the call.
    #[expect(unsafe_code, reason = "an attacker uses system calls that have no safe wrapper")]
    let answer = unsafe { libc::syscall(number, a, b, c, d, e, 0) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer) }
}

/// A new process that waits for its end; `None`: this is it.
pub(crate) fn fork() -> io::Result<Option<i32>> {
    // SAFETY: this program has one thread, so its copy may do whatever any process may.
    #[expect(unsafe_code, reason = "a fork bomb forks")]
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(None),
        pid => Ok(Some(pid)),
    }
}

/// Ends this process at once.
pub(crate) fn exit_now(code: i32) -> ! {
    // SAFETY: it has no condition, and never returns.
    #[expect(unsafe_code, reason = "a copy must not run what its original will run")]
    unsafe {
        libc::_exit(code)
    }
}
