//! The audit mode: what the filter would have denied is done, and said.
//!
//! **Rule:** each call of each program is said once; a program that makes one a million times does not fill the log.

use std::collections::BTreeSet;
use std::io::{self, IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};

use quorate_plan::boxes::{DANGEROUS, DEFAULT, MORE};

use super::numbers::{name_of, number_of};

/// Receive a question; send an answer. The kernel's numbers for structures of 80 and 24 bytes.
const RECEIVE: libc::c_ulong = 0xc050_2100;
const ANSWER: libc::c_ulong = 0xc018_2101;
/// Let the call happen.
const CONTINUE: u32 = 1;

/// Hands the listener from the program, which has it, to the init, which will listen.
pub(super) fn hand_over(socket: &OwnedFd, listener: &OwnedFd) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let fds = [listener.as_fd()];
    ancillary.push(SendAncillaryMessage::ScmRights(&fds));
    sendmsg(socket, &[IoSlice::new(b"l")], &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}

pub(super) fn take_over(socket: &OwnedFd) -> io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0; 1];
    recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    let fds = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => fds.into_iter().next(),
        _ => None,
    });
    fds.ok_or_else(|| io::Error::other("the program did not hand over its listener"))
}

/// Listens.
pub(super) struct Audit {
    pub(super) listener: OwnedFd,
    said: BTreeSet<(String, i32)>,
}

impl Audit {
    pub(super) fn new(listener: OwnedFd) -> Audit {
        Audit { listener, said: BTreeSet::new() }
    }

    /// Answers one question; `false`: nobody is left to ask.
    pub(super) fn answer(&mut self) -> bool {
        // SAFETY: both structures may be all zeros, the kernel demands it of the first, and each is as large as the number
        // of its request says.
        #[expect(unsafe_code, reason = "no safe wrapper for the questions of a filter")]
        let (got, pid, number, id) = unsafe {
            let mut asked: libc::seccomp_notif = std::mem::zeroed();
            let got = libc::ioctl(self.listener.as_raw_fd(), RECEIVE, &raw mut asked);
            (got, asked.pid, asked.data.nr, asked.id)
        };
        if got != 0 {
            // The asking process died meanwhile, or we were interrupted: there may be others.
            let again = [libc::ENOENT, libc::EINTR, libc::EAGAIN];
            return io::Error::last_os_error().raw_os_error().is_some_and(|errno| again.contains(&errno));
        }
        // This one is never allowed: libraries fall back, and are not to be bothered about it.
        let unknown = number_of("clone3") == Some(i64::from(number));
        if !unknown {
            self.say(pid, number);
        }
        // SAFETY: as above; the answer is to the question that was just received.
        #[expect(unsafe_code, reason = "no safe wrapper for the questions of a filter")]
        unsafe {
            let mut answer: libc::seccomp_notif_resp = std::mem::zeroed();
            answer.id = id;
            if unknown {
                answer.error = -libc::ENOSYS;
            } else {
                answer.flags = CONTINUE;
            }
            libc::ioctl(self.listener.as_raw_fd(), ANSWER, &raw mut answer);
        }
        true
    }

    /// What would have to be written to allow all of it, once there is nothing more to be seen.
    pub(super) fn sum_up(&self) {
        let numbers: BTreeSet<i32> = self.said.iter().map(|(_, number)| *number).collect();
        let names: BTreeSet<String> = numbers.into_iter().map(|number| name_of(number.into())).collect();
        let _ = io::stderr().write_all(to_allow(&names).as_bytes());
    }

    fn say(&mut self, pid: u32, number: i32) {
        let comm = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        let comm = comm.trim().to_owned();
        if self.said.insert((comm.clone(), number)) {
            let line = format!("quorate: the box would deny `{}` to {comm} (process {pid})\n", name_of(number.into()));
            let _ = io::stderr().write_all(line.as_bytes());
        }
    }
}

/// The lines that a declaration takes, and what none takes.
fn to_allow(names: &BTreeSet<String>) -> String {
    let is = |list: &[&str], name: &str| list.contains(&name);
    let pick = |keep: &dyn Fn(&str) -> bool| {
        names.iter().map(String::as_str).filter(|name| keep(name)).collect::<Vec<&str>>().join(", ")
    };
    let allowed = pick(&|name| is(DEFAULT, name) || is(MORE, name));
    let never = pick(&|name| is(DANGEROUS, name) || name.starts_with("number "));
    let mut lines = String::new();
    if !allowed.is_empty() {
        lines += &format!("quorate: to allow them: `syscalls: {{allow: [{allowed}]}}`\n");
    }
    if !never.is_empty() {
        lines += &format!("quorate: not to be allowed by name: {never}\n");
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_seen_is_summed_up_as_a_declaration_takes_it() {
        let names = |names: &[&str]| names.iter().map(ToString::to_string).collect::<BTreeSet<String>>();
        assert_eq!(to_allow(&names(&[])), "");
        assert_eq!(
            to_allow(&names(&["wait4", "mount", "execveat", "number 999"])),
            "quorate: to allow them: `syscalls: {allow: [execveat, wait4]}`\n\
             quorate: not to be allowed by name: mount, number 999\n"
        );
    }
}
