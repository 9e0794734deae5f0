//! Tells systemd how far we are, where it asked (`Type=notify`).
//!
//! **Rule:** nobody waits for systemd: what it does not take is lost. The end is told once, and only by an agent that ends.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use quorate_plan::phase::Phase;

/// Tells the phase. Its end is not told here: an etcd that is stopped to be started again is no end of the service, and who
/// says so is killed by systemd when its time to stop is over.
pub(super) fn tell(phase: Phase, cause: &str) {
    let ready = if phase == Phase::Serving { "READY=1\n" } else { "" };
    send(&format!("STATUS={phase}: {}\n{ready}", cause.replace('\n', " ")));
}

/// Tells that the agent itself is about to end.
pub(super) fn ending() {
    send("STOPPING=1\n");
}

fn send(message: &str) {
    let Some(name) = std::env::var_os("NOTIFY_SOCKET") else { return };
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
