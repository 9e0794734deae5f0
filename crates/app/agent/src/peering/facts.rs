//! What a node tells of itself before anything is decided: looked at, not remembered.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpListener, ToSocketAddrs, UdpSocket};
use std::path::Path;
use std::time::{Duration, Instant};

use quorate_host::durable::{Access, Disk, DiskFile, RealDisk, partial_path};
use quorate_plan::peering::{API_VERSIONS, Side};
use quorate_plan::spec::Spec;

use crate::cluster_file;
use crate::turn::now_ms;

/// Writes that are timed; the best of them counts, since a busy moment says nothing of a disk.
const WRITES: u32 = 5;
/// Ports that an agent listens on.
const AGENT_PORTS: [u16; 2] = [2382, 2383];
/// Ports that a member listens on.
const MEMBER_PORTS: [u16; 2] = [2379, 2380];

/// What a newcomer is.
pub(super) struct Guest<'a> {
    pub(super) address: &'a str,
    pub(super) data_dir: &'a Path,
    pub(super) state_dir: &'a Path,
    /// The version of its etcd, if it has one.
    pub(super) etcd: Option<String>,
    /// Whether it will run an etcd.
    pub(super) is_member: bool,
    pub(super) cluster: Option<String>,
    pub(super) veto: Option<String>,
}

/// Looks at this machine for a newcomer. Blocks for a moment.
pub(super) fn guest(guest: Guest<'_>) -> Side {
    let mut ports = Ports::look(guest.address, &AGENT_PORTS);
    if guest.is_member {
        ports.and(Ports::look(guest.address, &MEMBER_PORTS)).and(Ports::look("127.0.0.1", &[2379]));
    }
    Side {
        api: API_VERSIONS,
        etcd: guest.etcd,
        now_ms: now_ms(),
        cluster: guest.cluster,
        state_dir: declared_or_shown(guest.state_dir),
        taken: ports.taken,
        unfit: ports.unfit,
        fsync_ms: fsync_ms(if guest.is_member { guest.data_dir } else { guest.state_dir }),
        veto: guest.veto,
    }
}

/// Where agents keep their state, as the file declares it for nodes with any root.
pub(super) fn declared_state(spec: &Spec) -> String {
    declared_or_shown(Path::new(&spec.agent.state_dir))
}

/// A root that cannot be used was reported when the file was read.
fn declared_or_shown(path: &Path) -> String {
    cluster_file::declared_path(path).unwrap_or_else(|_| path.display().to_string())
}

/// What was found out about ports that are needed. Etcd listens on the address itself, the agent on all.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Ports {
    /// Somebody else listens on these.
    pub(crate) taken: Vec<String>,
    /// What else keeps a port from being used: what is not known is told.
    pub(crate) unfit: Vec<String>,
}

impl Ports {
    /// Tries them. A name is looked up first. Blocks for a moment.
    pub(crate) fn look(address: &str, ports: &[u16]) -> Ports {
        let mut found = Ports::default();
        for port in ports {
            let needed = match (address, *port).to_socket_addrs() {
                Ok(needed) => needed.collect::<std::collections::BTreeSet<SocketAddr>>(),
                Err(error) => {
                    found.unfit.push(format!("`{}` has no address that is known ({error})", address.escape_debug()));
                    break;
                }
            };
            if needed.is_empty() {
                found.unfit.push(format!("`{}` has no address that is known", address.escape_debug()));
                break;
            }
            for at in needed {
                match TcpListener::bind(at) {
                    Ok(_) => {}
                    Err(error) if error.kind() == ErrorKind::AddrInUse => found.taken.push(at.to_string()),
                    Err(error) => found.unfit.push(format!("nobody can listen on `{at}` ({error})")),
                }
            }
        }
        found
    }

    pub(crate) fn and(&mut self, more: Ports) -> &mut Ports {
        self.taken.extend(more.taken);
        self.unfit.extend(more.unfit);
        self
    }
}

/// How long a synced write of a page takes where the data is to lie: in that folder, or in the nearest one that is there.
pub(crate) fn fsync_ms(data_dir: &Path) -> Option<u64> {
    let dir = data_dir.ancestors().find(|dir| dir.is_dir())?;
    let path = partial_path(&dir.join(".quorate-fsync"), std::process::id())?;
    let mut best = None;
    RealDisk.remove_partial(&path).ok()?;
    let mut file = RealDisk.create_file(&path, Access::mode(0o600)).ok()?;
    for _ in 0..WRITES {
        let begun = Instant::now();
        let written = file.write_all(&[0; 4096]).and_then(|()| file.sync());
        if written.is_err() {
            best = None;
            break;
        }
        best = Some(best.map_or(begun.elapsed(), |known: Duration| known.min(begun.elapsed())));
    }
    drop(file);
    RealDisk.remove_partial(&path).ok()?;
    best.map(|best| u64::try_from(best.as_millis()).unwrap_or(u64::MAX))
}

/// The address from which this machine reaches others, where nobody names one; nothing is sent.
pub(super) fn own_address(towards: Option<SocketAddr>) -> Option<IpAddr> {
    let towards = towards.unwrap_or_else(|| SocketAddr::from(([192, 0, 2, 1], 9)));
    let any: SocketAddr = if towards.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0_u16; 8], 0).into() };
    let socket = UdpSocket::bind(any).ok()?;
    socket.connect(towards).ok()?;
    let ip = socket.local_addr().ok()?.ip();
    (!ip.is_unspecified()).then_some(ip)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_of_a_name_are_looked_at_and_a_name_without_an_address_is_told() {
        let held = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = held.local_addr().unwrap().port();
        assert!(Ports::look("localhost", &[port]).taken.contains(&format!("127.0.0.1:{port}")));
        assert_eq!(Ports::look("127.0.0.1", &[port]).taken, [format!("127.0.0.1:{port}")]);
        let unknown = Ports::look("no-such-host.invalid", &[port]);
        assert!(unknown.taken.is_empty() && unknown.unfit.len() == 1, "{unknown:?}");
        let elsewhere = Ports::look("192.0.2.1", &[port]);
        assert!(elsewhere.taken.is_empty() && elsewhere.unfit.len() == 1, "{elsewhere:?}");
    }

    #[test]
    fn the_disk_of_the_folder_itself_is_timed() {
        let root = tempfile::tempdir().unwrap();
        let data = root.path().join("data");
        assert!(fsync_ms(&data).is_some(), "the nearest one that is there");
        std::fs::create_dir(&data).unwrap();
        let seen = std::fs::metadata(root.path()).unwrap().modified().unwrap();
        assert!(fsync_ms(&data).is_some());
        assert_eq!(std::fs::metadata(root.path()).unwrap().modified().unwrap(), seen, "nothing was written beside it");
        assert_eq!(std::fs::read_dir(&data).unwrap().count(), 0);
    }
}
