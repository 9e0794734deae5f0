//! Ports that no other test uses.
//!
//! **Rule:** a port is ours while its lock file is locked, so that test processes running at once never share one even
//! in the gap between choosing it and a server binding it. Ports lie below the range that the kernel hands out itself.

use std::collections::hash_map::RandomState;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::hash::BuildHasher;
use std::net::TcpListener;
use std::path::PathBuf;

const FIRST: u16 = 18_000;
const LAST: u16 = 32_000;
const TRIES: u32 = 500;

/// A port of 127.0.0.1 (TCP and UDP) that is reserved until this value is dropped.
#[derive(Debug)]
pub struct Port {
    number: u16,
    _lock: File,
}

impl Port {
    /// The port's number.
    pub fn number(&self) -> u16 {
        self.number
    }
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.number.fmt(f)
    }
}

/// Reserves a port that nobody listens on.
pub fn free_port() -> Port {
    let dir = lock_dir();
    let random = RandomState::new();
    for attempt in 0..TRIES {
        let pick = random.hash_one(attempt) % u64::from(LAST - FIRST);
        let number = FIRST + u16::try_from(pick).expect("a remainder of a u16");
        if let Some(port) = reserve(&dir, number) {
            return port;
        }
    }
    panic!("no free port between {FIRST} and {LAST} after {TRIES} tries; see the locks in `{}`", dir.display());
}

fn lock_dir() -> PathBuf {
    // One directory for all checkouts and target dirs of this machine: they share the ports.
    let dir = std::env::temp_dir().join(format!("quorate-test-ports-{}", rustix::process::getuid().as_raw()));
    std::fs::create_dir_all(&dir).unwrap_or_else(|e| panic!("cannot create `{}`: {e}", dir.display()));
    dir
}

fn reserve(dir: &std::path::Path, number: u16) -> Option<Port> {
    let path = dir.join(number.to_string());
    let lock = OpenOptions::new().create(true).append(true).open(&path);
    let lock = lock.unwrap_or_else(|e| panic!("cannot open `{}`: {e}", path.display()));
    lock.try_lock().ok()?;
    let tcp = TcpListener::bind(("127.0.0.1", number)).ok()?;
    let udp = std::net::UdpSocket::bind(("127.0.0.1", number)).ok()?;
    drop((tcp, udp));
    Some(Port { number, _lock: lock })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn no_port_is_given_twice_while_it_is_held() {
        let ports: Vec<Port> = (0..200).map(|_| free_port()).collect();
        let distinct: BTreeSet<u16> = ports.iter().map(Port::number).collect();
        assert_eq!(distinct.len(), ports.len());
    }
}
