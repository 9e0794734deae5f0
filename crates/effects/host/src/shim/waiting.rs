//! Waiting for children, ours and those that were left to us, and for signals.
//!
//! **Invariant:** a process is signalled by number only while it is our child and not yet buried, so its number is its own.

use std::io;
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal, kill_process, kill_process_group, pidfd_open, pidfd_send_signal};

use crate::process::{Identity, Stat, boot_id, stat};

/// How long what is left of a process group may take to die from SIGKILL.
const KILL_LIMIT: Duration = Duration::from_secs(10);

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Code(i32),
    Signal(i32),
}

impl From<crate::sandbox::End> for End {
    fn from(end: crate::sandbox::End) -> End {
        match end {
            crate::sandbox::End::Code(code) => End::Code(code),
            crate::sandbox::End::Signal(signal) => End::Signal(signal),
        }
    }
}

/// A child that has ended.
struct Dead {
    pid: i32,
    end: End,
}

/// Waits until the child `main` has ended, and leaves it unburied. Others that were left to us are buried on the way.
pub(super) fn wait_for(main: u32) -> io::Result<End> {
    loop {
        let Some(dead) = next_dead(libc::WNOWAIT)? else { continue };
        if u32::try_from(dead.pid) == Ok(main) {
            return Ok(dead.end);
        }
        bury(dead.pid);
    }
}

/// Kills and buries everything that is left: the process group of `main`, which is dead and unburied, and whatever else
/// became our child. `false`: the kernel could not end something.
pub(crate) fn end_all(main: u32) -> bool {
    if let Some(group) = i32::try_from(main).ok().and_then(Pid::from_raw) {
        // No one may be left in it, which is what is wanted.
        let _ = kill_process_group(group, Signal::KILL);
    }
    let start = Instant::now();
    while start.elapsed() < KILL_LIMIT {
        match next_dead(libc::WNOWAIT | libc::WNOHANG) {
            Ok(Some(dead)) => bury(dead.pid),
            Ok(None) => {
                kill_children();
                std::thread::sleep(Duration::from_millis(2));
            }
            Err(error) if error.raw_os_error() == Some(libc::ECHILD) => return true,
            Err(_) => return false,
        }
    }
    false
}

/// Kills what is left of the session of a shim that is gone, and waits for its end. What has begun a session of its own meanwhile
/// cannot be found: a box is what holds such programs. `false`: the kernel could not end something.
pub(super) fn end_session(shim: &Identity) -> bool {
    if !boot_id().is_ok_and(|boot| boot == shim.boot_id) {
        return true;
    }
    let start = Instant::now();
    loop {
        // Its number is given to nobody as long as the session has a process; once it is another's, so is the session.
        if stat(shim.pid).is_ok_and(|now| now.started_ticks != shim.started_ticks || !now.ended) {
            return true;
        }
        let left = members(shim);
        if left.is_empty() {
            return true;
        }
        if start.elapsed() > KILL_LIMIT {
            return false;
        }
        for pid in left {
            let Some(number) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { continue };
            let Ok(pidfd) = pidfd_open(number, PidfdFlags::empty()) else { continue };
            // Looked at again while it is held, so that it is this one that is killed.
            if stat(pid).is_ok_and(|stat| is_member(&stat, shim)) {
                let _ = pidfd_send_signal(&pidfd, Signal::KILL);
            }
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn is_member(stat: &Stat, shim: &Identity) -> bool {
    stat.session == shim.pid && stat.started_ticks >= shim.started_ticks && !stat.ended
}

fn members(shim: &Identity) -> Vec<u32> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| stat(*pid).is_ok_and(|stat| is_member(&stat, shim))).collect()
}

fn kill_children() {
    let me = std::process::id();
    let Ok(entries) = std::fs::read_dir("/proc") else { return };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    for pid in pids.filter(|pid| stat(*pid).is_ok_and(|stat| stat.parent == me)) {
        if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

fn next_dead(more: libc::c_int) -> io::Result<Option<Dead>> {
    // SAFETY: a zeroed siginfo is a valid one, the kernel writes exactly one, and the two fields that are read are those
    // that waitid fills in; si_pid is zero when no child has ended.
    #[expect(unsafe_code, reason = "no safe wrapper tells which child it is that ended")]
    let (answer, pid, code, status) = unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        let answer = libc::waitid(libc::P_ALL, 0, &raw mut info, libc::WEXITED | more);
        (answer, info.si_pid(), info.si_code, info.si_status())
    };
    if answer != 0 {
        let error = io::Error::last_os_error();
        return if error.kind() == io::ErrorKind::Interrupted { Ok(None) } else { Err(error) };
    }
    let end = if code == libc::CLD_EXITED { End::Code(status) } else { End::Signal(status) };
    Ok((pid != 0).then_some(Dead { pid, end }))
}

fn bury(pid: i32) {
    // Its end is known; there is nothing to learn from how the burial goes.
    let _ = rustix::process::waitpid(Pid::from_raw(pid), rustix::process::WaitOptions::NOHANG);
}

/// The signals that ask a process to end.
const ASKING: [libc::c_int; 3] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP];

/// Keeps the asking signals for [`next_signal`]; to be called before any thread is started.
pub(super) fn hold_signals() {
    // SAFETY: the set is initialised before use and outlives the call.
    #[expect(unsafe_code, reason = "no safe wrapper for the signal mask")]
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for signal in ASKING {
            libc::sigaddset(&raw mut set, signal);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
    }
}

/// Waits for one of the signals that are held, and names it.
pub(super) fn next_signal() -> &'static str {
    let mut signal = 0;
    // SAFETY: the set is initialised before use, and both outlive the call.
    #[expect(unsafe_code, reason = "no safe wrapper for sigwait")]
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for signal in ASKING {
            libc::sigaddset(&raw mut set, signal);
        }
        libc::sigwait(&raw const set, &raw mut signal);
    }
    match signal {
        libc::SIGINT => "SIGINT",
        libc::SIGHUP => "SIGHUP",
        _ => "SIGTERM",
    }
}
