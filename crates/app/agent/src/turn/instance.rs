//! Which machine this is: a nonce of this state dir on this boot of this kernel, so that a copy of the machine has another one.
//!
//! **Invariant:** two agents have the same instance only if one runs after the other on the same state dir, which is locked while an agent
//! runs. A copy of the state dir lies in other inodes, and a copy of its disk is mounted elsewhere or in another boot.

use std::net::{ToSocketAddrs, UdpSocket};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::UNIX_EPOCH;

use quorate_etcd::aside::ensure_file;
use quorate_faults::{Code, Fault};
use quorate_host::durable::RealDisk;
use quorate_plan::certificates::host_of;
use sha2::{Digest, Sha256};

use super::node::Node;
use crate::peering::{fill_random, hostname};

/// In the state dir.
const FILE: &str = "instance";
/// It holds 32 hex digits.
const FILE_BYTES_MAX: u64 = 256;

/// The instance of the agent that has this state dir, made if it is missing.
pub(super) fn ensure(state: &Path) -> Result<String, Fault> {
    if let Some(instance) = read(state) {
        return Ok(instance);
    }
    let mut random = [0_u8; 16];
    fill_random(&mut random)?;
    ensure_file(&RealDisk, &state.join(FILE), format!("{}\n", hex(&random)).as_bytes())?;
    read(state).ok_or_else(|| {
        Fault::new(Code::Internal, format!("cannot read `{}` back", state.join(FILE).display()))
            .hint("see that the state dir is on a file system of this machine")
    })
}

/// The same, where it is there.
pub(super) fn read(state: &Path) -> Option<String> {
    let path = state.join(FILE);
    let about = std::fs::metadata(&path).ok().filter(|about| about.is_file() && about.len() <= FILE_BYTES_MAX)?;
    let random = std::fs::read(&path).ok().filter(|bytes| !bytes.is_empty())?;
    let boot = std::fs::read("/proc/sys/kernel/random/boot_id").ok()?;
    let made = about.created().ok().and_then(|made| made.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
    let mut hash = Sha256::new();
    hash.update(&random);
    hash.update(&boot);
    for number in [about.dev(), about.ino(), made.as_secs(), u64::from(made.subsec_nanos())] {
        hash.update(number.to_be_bytes());
    }
    hash.finalize().get(..16).map(hex)
}

/// This machine, in words for an operator: its host name, and the address from which the other members see it.
pub(super) fn machine(node: &Node) -> String {
    let name = hostname().unwrap_or_else(|_| "a host without a name".to_owned());
    let others = node.spec.members.iter().filter(|member| member.name != node.name());
    let urls = others.chain([&node.member]).flat_map(|member| &member.peer_urls);
    let address = urls.filter_map(|url| host_of(url)).find_map(source_address);
    address.map_or(name.clone(), |address| format!("{name} at {address}"))
}

/// The address of this machine on its way to a host. Nothing is sent.
fn source_address(host: &str) -> Option<String> {
    let to = (host.trim_matches(['[', ']']), 9).to_socket_addrs().ok()?.next()?;
    let from = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(from).ok()?;
    socket.connect(to).ok()?;
    socket.local_addr().ok().map(|address| address.ip().to_string())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stays_the_same_on_a_machine_and_is_another_one_in_a_copy() {
        let place = tempfile::tempdir().unwrap();
        let (one, copy) = (place.path().join("one"), place.path().join("copy"));
        std::fs::create_dir(&one).unwrap();
        assert_eq!(read(&one), None);
        let instance = ensure(&one).unwrap();
        assert_eq!(ensure(&one).unwrap(), instance, "the next agent is on the same machine");
        quorate_testkit::run(std::process::Command::new("cp").arg("-a").arg(&one).arg(&copy));
        assert_ne!(ensure(&copy).unwrap(), instance, "the same bytes in another place");
        assert_eq!(read(&one), Some(instance));
    }
}
