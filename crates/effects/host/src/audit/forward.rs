//! Sends a copy of each audit record to the journal or syslog of this machine, in the native datagram of `/dev/log`.
//!
//! **Rule:** the copy never blocks and never fails the command: a machine without syslog has the file alone.

use std::os::unix::net::UnixDatagram;
use std::path::Path;

use super::Link;

/// Where journald and syslog daemons receive.
pub(super) const SOCKET: &str = "/dev/log";
/// `authpriv.notice`: facility 10, severity 5.
const PRIORITY: u8 = 10 * 8 + 5;
/// What daemons take in one message by default; longer records are cut, and their hash comes first.
const BYTES_MAX: usize = 8000;

/// Sends a record without its line feed. Returns whether it was taken.
pub(super) fn forward(socket: &Path, link: &Link, line: &[u8]) -> bool {
    let text = String::from_utf8_lossy(line);
    let (pid, Link { seq, hash, .. }) = (std::process::id(), link);
    let mut message = format!("<{PRIORITY}>quorate[{pid}]: audit {seq} {hash} {}", text.trim_end());
    let end = (0..=BYTES_MAX.min(message.len())).rev().find(|end| message.is_char_boundary(*end));
    message.truncate(end.unwrap_or(0));
    let sent = UnixDatagram::unbound().and_then(|sender| {
        sender.set_nonblocking(true)?;
        sender.send_to(message.as_bytes(), socket)
    });
    sent.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link() -> Link {
        Link { seq: 7, prev: "0".repeat(64), hash: "a".repeat(64) }
    }

    #[test]
    fn a_record_is_sent_with_its_hash_and_cut_to_what_daemons_take() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let daemon = UnixDatagram::bind(&path).unwrap();
        assert!(forward(&path, &link(), b"{\"at\":\"now\"}\n"));
        let mut buffer = vec![0; 1 << 16];
        let length = daemon.recv(&mut buffer).unwrap();
        let expected = format!("<85>quorate[{}]: audit 7 {} {{\"at\":\"now\"}}", std::process::id(), "a".repeat(64));
        assert_eq!(String::from_utf8_lossy(&buffer[..length]), expected);
        assert!(forward(&path, &link(), "ä".repeat(9000).as_bytes()));
        assert_eq!(daemon.recv(&mut buffer).unwrap().div_ceil(2), BYTES_MAX / 2);
    }

    #[test]
    fn neither_a_missing_nor_a_stalled_daemon_holds_anything_up() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        assert!(!forward(&path, &link(), b"{}"));
        let _stalled = UnixDatagram::bind(&path).unwrap();
        let taken = (0..100_000).take_while(|_| forward(&path, &link(), &[b'x'; 4000])).count();
        assert!(taken < 100_000, "a full socket was to refuse");
    }
}
