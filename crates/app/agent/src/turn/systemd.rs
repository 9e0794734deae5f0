//! Tells systemd how far we are, where it asked (`Type=notify`).
//!
//! **Rule:** nobody waits for systemd: what it does not take is lost.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use quorate_plan::phase::Phase;

/// Tells the phase.
pub(super) fn tell(phase: Phase, cause: &str) {
    let Some(name) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let cause = cause.replace('\n', " ");
    let mut message = format!("STATUS={phase}: {cause}\n");
    match phase {
        Phase::Serving => message.push_str("READY=1\n"),
        Phase::Draining | Phase::Stopped => message.push_str("STOPPING=1\n"),
        Phase::Observing | Phase::Validating | Phase::Restoring | Phase::Starting | Phase::Waiting | Phase::Refused => {
        }
    }
    let bytes = name.as_bytes();
    let address = match bytes.strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(&name),
    };
    let Ok(address) = address else { return };
    if let Ok(socket) = UnixDatagram::unbound() {
        let _ = socket.set_nonblocking(true);
        let _ = socket.send_to_addr(message.as_bytes(), &address);
    }
}
