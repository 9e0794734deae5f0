//! What a node tells of itself before anything is decided: looked at, not remembered.

use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::path::Path;
use std::time::{Duration, Instant};

use quorate_etcd::binary::{Binary, Places};
use quorate_host::durable::{Access, Disk, DiskFile, RealDisk, partial_path};
use quorate_plan::peering::{API_VERSIONS, Side};

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
    pub(super) etcd_binary: Option<&'a Path>,
    /// Whether it will run an etcd.
    pub(super) is_member: bool,
    pub(super) cluster: Option<String>,
    pub(super) veto: Option<String>,
}

/// Looks at this machine for a newcomer. Blocks for a moment.
pub(super) fn guest(guest: Guest<'_>) -> Side {
    let path = std::env::var_os("PATH");
    let places = Places { named: guest.etcd_binary, path: path.as_deref(), near: Vec::new() };
    let find = || Binary::find(&places).ok().map(|binary| binary.version);
    Side {
        api: API_VERSIONS,
        etcd: guest.is_member.then(find).flatten(),
        now_ms: now_ms(),
        cluster: guest.cluster,
        state_dir: guest.state_dir.display().to_string(),
        taken: match guest.is_member {
            true => {
                let ports = [&MEMBER_PORTS[..], &AGENT_PORTS[..]].concat();
                [taken(guest.address, &ports), taken("127.0.0.1", &[2379])].concat()
            }
            false => taken(guest.address, &AGENT_PORTS),
        },
        fsync_ms: fsync_ms(if guest.is_member { guest.data_dir } else { guest.state_dir }),
        veto: guest.veto,
    }
}

/// Addresses that are needed and not free. Etcd listens on the address itself, the agent on all.
pub(super) fn taken(address: &str, ports: &[u16]) -> Vec<String> {
    let Ok(ip) = address.parse::<IpAddr>() else { return Vec::new() };
    let needed: Vec<SocketAddr> = ports.iter().map(|port| SocketAddr::new(ip, *port)).collect();
    needed.iter().filter(|at| TcpListener::bind(at).is_err()).map(ToString::to_string).collect()
}

/// How long a synced write of a page takes in the nearest folder that is there.
fn fsync_ms(data_dir: &Path) -> Option<u64> {
    let dir = data_dir.ancestors().skip(1).find(|dir| dir.is_dir())?;
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
