//! The words between keeper, init and program: one packet of JSON each, through a pair of sockets.
//!
//! **Invariant:** the program is known by the number that the kernel attached to its word, not by what the word says.

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;

use rustix::net::sockopt::set_socket_passcred;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, SocketFlags, SocketType, recvmsg,
    send, socketpair,
};
use serde::{Deserialize, Serialize};

/// Longer words are cut; a failure is a sentence.
const WORD_MAX: usize = 4 << 10;

/// How the program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum End {
    /// It exited.
    Code(i32),
    /// It died from a signal.
    Signal(i32),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Word {
    /// To the init: its limits and its user map are set, it may begin.
    Go,
    /// From the program: all that is left is to be executed.
    Ready,
    /// To the program: it has been written down, it may run.
    Run,
    /// From the init: the program has been executed.
    Started,
    /// From either: this part could not be done.
    Failed { what: String, error: String },
    /// From the init, last of all.
    Ended(End),
}

/// Both ends: the keeper's, and the box's.
pub(super) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    set_socket_passcred(&ours, true)?;
    Ok((ours, theirs))
}

pub(super) fn say(socket: &OwnedFd, word: &Word) -> io::Result<()> {
    let bytes = serde_json::to_vec(word)?;
    send(socket, &bytes[..bytes.len().min(WORD_MAX)], SendFlags::NOSIGNAL)?;
    Ok(())
}

/// The next word, and who said it. `None`: everyone on the other side is gone (or, with `DONTWAIT`, nothing was said).
pub(super) fn hear(socket: &OwnedFd, flags: RecvFlags) -> io::Result<Option<(Word, u32)>> {
    let mut bytes = [0; WORD_MAX];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmCredentials(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let read = loop {
        match recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, flags) {
            Ok(message) => break message.bytes,
            // Said once when the other side ends and has not heard us out: what it said before is still there.
            Err(rustix::io::Errno::INTR | rustix::io::Errno::CONNRESET) => {}
            Err(rustix::io::Errno::AGAIN) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        }
    };
    if read == 0 {
        return Ok(None);
    }
    let sender = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmCredentials(credentials) => u32::try_from(credentials.pid.as_raw_nonzero().get()).ok(),
        _ => None,
    });
    let word = serde_json::from_slice(&bytes[..read])?;
    Ok(Some((word, sender.unwrap_or_default())))
}
