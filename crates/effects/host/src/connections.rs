//! TCP connections of this machine, as the kernel lists them: who is connected to a port, and which sockets a process has.
//!
//! **Rule:** reads `/proc` alone; a line that cannot be read is left out, never guessed.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The state of a connection that both sides have opened, in the kernel's table.
const ESTABLISHED: &str = "01";

/// One open connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Connection {
    /// This end.
    pub local: SocketAddr,
    /// The other end.
    pub remote: SocketAddr,
    /// The socket of this end; 0: no process has taken it yet.
    pub inode: u64,
}

/// Every open connection in this network namespace.
pub fn observe_connections() -> io::Result<Vec<Connection>> {
    let mut found = parse(&std::fs::read_to_string("/proc/net/tcp")?);
    match std::fs::read_to_string("/proc/net/tcp6") {
        Ok(text) => found.extend(parse(&text)),
        // A kernel without IPv6 has no such table.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    Ok(found)
}

/// The sockets of a process.
pub fn observe_sockets(pid: u32) -> io::Result<BTreeSet<u64>> {
    let mut found = BTreeSet::new();
    for entry in std::fs::read_dir(format!("/proc/{pid}/fd"))? {
        // A file that was closed since it was listed.
        let Ok(target) = std::fs::read_link(entry?.path()) else { continue };
        let inode = target.to_str().and_then(|text| text.strip_prefix("socket:[")?.strip_suffix(']'));
        found.extend(inode.and_then(|inode| inode.parse::<u64>().ok()));
    }
    Ok(found)
}

fn parse(table: &str) -> Vec<Connection> {
    table.lines().filter_map(line).collect()
}

fn line(line: &str) -> Option<Connection> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let (local, remote) = (address(words.get(1)?)?, address(words.get(2)?)?);
    if *words.get(3)? != ESTABLISHED {
        return None;
    }
    Some(Connection { local, remote, inode: words.get(9)?.parse().ok()? })
}

/// An address as the kernel writes it: groups of four bytes, each in the order of this machine.
fn address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let group = |at: usize| u32::from_str_radix(ip.get(at..at + 8)?, 16).ok().map(u32::to_ne_bytes);
    let ip = match ip.len() {
        8 => IpAddr::V4(Ipv4Addr::from(group(0)?)),
        32 => {
            let mut bytes = [0_u8; 16];
            for (number, part) in bytes.chunks_exact_mut(4).enumerate() {
                part.copy_from_slice(&group(number * 8)?);
            }
            Ipv6Addr::from(bytes).to_canonical()
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn finds_both_ends_of_an_open_connection_and_whose_they_are() {
        for host in ["127.0.0.1", "[::1]"] {
            let Ok(listener) = TcpListener::bind(format!("{host}:0")) else { continue };
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (_server, remote) = listener.accept().unwrap();
            let all = observe_connections().unwrap();
            let own = observe_sockets(std::process::id()).unwrap();
            let end = all.iter().find(|one| one.local == client.local_addr().unwrap()).unwrap();
            assert_eq!(end.remote, listener.local_addr().unwrap());
            assert!(own.contains(&end.inode));
            let other = all.iter().find(|one| one.local == listener.local_addr().unwrap()).unwrap();
            assert_eq!(other.remote, remote);
        }
    }

    #[test]
    fn broken_tables_give_nothing() {
        for text in
            ["", "x", "0: 0100007F:01 0100007F:02 01", "1: 0100007F 0:0 01 a b c d e f g", "0: é:1 é:2 01 1 2 3 4 5 6"]
        {
            assert_eq!(parse(text), [], "{text}");
        }
        let listening =
            "   0: 0100007F:0947 00000000:0000 0A 00000000:00000000 00:00000000 00000000  0 0 42 1 0 100 0 0 10 0";
        assert_eq!(parse(listening), []);
    }
}
