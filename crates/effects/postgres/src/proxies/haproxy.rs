//! The text of `haproxy.cfg`, and the state that a reload must not forget.
//!
//! **Invariant:** after a reload no server is taken for healthy before it was asked: the state of before is loaded, and it is
//! written down right before.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use quorate_faults::{Code, Fault};
use quorate_host::durable::Owner;

/// A list of states is a line for each server.
const STATES_MAX: u64 = 1 << 20;
const TALK_LIMIT: Duration = Duration::from_secs(5);

/// One node behind the proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HaproxyNode {
    /// Its name.
    pub name: String,
    /// Where its pooler is.
    pub host: String,
    /// The pooler's port.
    pub port: u16,
    /// The port at which its agent says what it is.
    pub health_port: u16,
}

/// How the proxy is set up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HaproxySpec {
    /// The nodes.
    pub nodes: Vec<HaproxyNode>,
    /// The address to listen at.
    pub listen: String,
    /// The port that leads to the write master.
    pub write_port: u16,
    /// The port that leads to any node.
    pub read_port: u16,
    /// The socket by which it is asked.
    pub socket: PathBuf,
    /// Where states are kept over a reload.
    pub state_file: PathBuf,
    /// Connections.
    pub connections_max: u32,
}

/// `haproxy.cfg`.
pub fn render_haproxy(spec: &HaproxySpec) -> String {
    let mut text = format!(
        "# Written by Quorate; changes here are lost.\n\
         global\n  maxconn {}\n  stats socket {} mode 600 level admin expose-fd listeners\n  server-state-file {}\n  \
         hard-stop-after 10m\n\
         defaults\n  mode tcp\n  timeout connect 2s\n  timeout client 30m\n  timeout server 30m\n  timeout check 2s\n  \
         option clitcpka\n  option srvtcpka\n  option redispatch\n  retries 3\n  load-server-state-from-file global\n",
        spec.connections_max,
        spec.socket.display(),
        spec.state_file.display()
    );
    // Sessions of the node that was the write master are left: its pooler hands them on, or is closed by its fence.
    let lists = [
        ("write", spec.write_port, "/writer", "", ""),
        ("read", spec.read_port, "/reader", "  balance leastconn\n", " on-marked-down shutdown-sessions"),
    ];
    for (name, port, ask, more, down) in lists {
        let _ = write!(
            text,
            "listen {name}\n  bind {}:{port}\n{more}  option httpchk GET {ask}\n  http-check expect status 200\n  \
             default-server inter 200ms fastinter 100ms downinter 100ms fall 2 rise 1 tcp-ut 5s init-addr last,libc,none{down}\n",
            spec.listen
        );
        for node in &spec.nodes {
            let _ =
                writeln!(text, "  server {} {}:{} check port {}", node.name, node.host, node.port, node.health_port);
        }
    }
    text
}

/// Asks a running proxy for the states of its servers.
pub fn haproxy_states(socket: &Path) -> Result<String, Fault> {
    let failed = |error: std::io::Error| {
        Fault::new(Code::PgProxySilent, format!("haproxy does not answer at `{}`", socket.display()))
            .hint("is it running? its log says why not")
            .caused_by(error)
    };
    let mut stream = UnixStream::connect(socket).map_err(failed)?;
    stream.set_read_timeout(Some(TALK_LIMIT)).map_err(failed)?;
    stream.set_write_timeout(Some(TALK_LIMIT)).map_err(failed)?;
    stream.write_all(b"show servers state\n").map_err(failed)?;
    let mut text = String::new();
    stream.take(STATES_MAX).read_to_string(&mut text).map_err(failed)?;
    Ok(text)
}

/// Keeps the states for the reload that follows, for the proxy's user; `true`: they changed.
pub fn keep_states(socket: &Path, file: &Path, owner: Option<Owner>) -> Result<bool, Fault> {
    crate::server::put(file, &haproxy_states(socket)?, owner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_write_port_asks_who_writes_and_the_read_port_who_reads() {
        let node =
            |name: &str, port| HaproxyNode { name: name.into(), host: "10.0.0.1".into(), port, health_port: port + 1 };
        let text = render_haproxy(&HaproxySpec {
            nodes: vec![node("n1", 6432), node("n2", 6532)],
            listen: "127.0.0.1".into(),
            write_port: 5432,
            read_port: 5433,
            socket: "/run/q/ha.sock".into(),
            state_file: "/var/lib/q/ha.state".into(),
            connections_max: 2000,
        });
        assert_eq!(
            text,
            "# Written by Quorate; changes here are lost.\n\
             global\n  maxconn 2000\n  stats socket /run/q/ha.sock mode 600 level admin expose-fd listeners\n  \
             server-state-file /var/lib/q/ha.state\n  hard-stop-after 10m\n\
             defaults\n  mode tcp\n  timeout connect 2s\n  timeout client 30m\n  timeout server 30m\n  timeout check 2s\n  \
             option clitcpka\n  option srvtcpka\n  option redispatch\n  retries 3\n  load-server-state-from-file global\n\
             listen write\n  bind 127.0.0.1:5432\n  option httpchk GET /writer\n  http-check expect status 200\n  \
             default-server inter 200ms fastinter 100ms downinter 100ms fall 2 rise 1 tcp-ut 5s init-addr last,libc,none\n  \
             server n1 10.0.0.1:6432 check port 6433\n  server n2 10.0.0.1:6532 check port 6533\n\
             listen read\n  bind 127.0.0.1:5433\n  balance leastconn\n  option httpchk GET /reader\n  \
             http-check expect status 200\n  default-server inter 200ms fastinter 100ms downinter 100ms fall 2 rise 1 tcp-ut 5s \
             init-addr last,libc,none on-marked-down shutdown-sessions\n  server n1 10.0.0.1:6432 check port 6433\n  \
             server n2 10.0.0.1:6532 check port 6533\n"
        );
    }
}
