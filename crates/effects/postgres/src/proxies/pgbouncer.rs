//! The text of `pgbouncer.ini` and of its list of users.

use std::fmt::Write;
use std::path::PathBuf;

/// Where a pool leads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PoolTarget {
    /// The server of this node, by its socket.
    Own {
        /// The socket's directory.
        socket_dir: PathBuf,
        /// The server's port.
        port: u16,
    },
    /// The pooler of another node, which takes what still comes here after a switchover.
    Other {
        /// Its host.
        host: String,
        /// Its port.
        port: u16,
        /// The authorities that its certificate is checked by.
        ca: Option<PathBuf>,
    },
}

/// How a pooler is set up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PgbouncerSpec {
    /// The database of the group.
    pub database: String,
    /// Databases of instances, which lead to the same server.
    pub instances: Vec<String>,
    /// Where it leads.
    pub target: PoolTarget,
    /// The address to listen at.
    pub listen: String,
    /// The port to listen at.
    pub port: u16,
    /// The directory of its own socket, by which the console is reached.
    pub socket_dir: PathBuf,
    /// The file with users; see [`render_userlist`].
    pub auth_file: PathBuf,
    /// The user of the console.
    pub admin: String,
    /// What it shows to clients; `None`: they come without TLS.
    pub cert: Option<(PathBuf, PathBuf)>,
    /// Connections of clients.
    pub clients_max: u32,
    /// Connections to the server for each user.
    pub pool_size: u32,
}

/// `pgbouncer.ini`.
pub fn render_pgbouncer(spec: &PgbouncerSpec) -> String {
    let mut text = String::from("; Written by Quorate; changes here are lost.\n[databases]\n");
    let (host, port) = match &spec.target {
        PoolTarget::Own { socket_dir, port } => (socket_dir.display().to_string(), *port),
        PoolTarget::Other { host, port, .. } => (host.clone(), *port),
    };
    for database in [&spec.database].into_iter().chain(&spec.instances) {
        let _ = writeln!(text, "{database} = host={host} port={port} dbname={database}");
    }
    let mut line = |name: &str, value: &str| {
        let _ = writeln!(text, "{name} = {value}");
    };
    line("\n[pgbouncer]\nlisten_addr", &spec.listen);
    line("listen_port", &spec.port.to_string());
    line("unix_socket_dir", &spec.socket_dir.display().to_string());
    line("unix_socket_mode", "0770");
    line("auth_type", "scram-sha-256");
    line("auth_file", &spec.auth_file.display().to_string());
    line("admin_users", &spec.admin);
    line("pool_mode", "transaction");
    line("max_client_conn", &spec.clients_max.to_string());
    line("default_pool_size", &spec.pool_size.to_string());
    line("ignore_startup_parameters", "extra_float_digits,options");
    // A server that was away is tried again at once, and a dead one is noticed.
    line("server_login_retry", "1");
    line("server_connect_timeout", "3");
    line("server_check_delay", "5");
    line("server_reset_query_always", "0");
    line("tcp_keepalive", "1");
    line("tcp_keepidle", "5");
    line("tcp_keepintvl", "2");
    line("tcp_keepcnt", "3");
    line("tcp_user_timeout", "10000");
    line("log_connections", "0");
    line("log_disconnections", "0");
    if let Some((cert, key)) = &spec.cert {
        line("client_tls_sslmode", "require");
        line("client_tls_cert_file", &cert.display().to_string());
        line("client_tls_key_file", &key.display().to_string());
    }
    if let PoolTarget::Other { ca: Some(ca), .. } = &spec.target {
        line("server_tls_sslmode", "verify-full");
        line("server_tls_ca_file", &ca.display().to_string());
    }
    text
}

/// The list of users: a name, and a password or a verifier of one. A verifier lets a client in and, when it is the server's
/// own, lets the pooler in as that client; a password does for every target.
pub fn render_userlist(users: &[(String, String)]) -> String {
    let quoted = |text: &str| format!("\"{}\"", text.replace('"', "\"\""));
    users.iter().map(|(name, secret)| format!("{} {}\n", quoted(name), quoted(secret))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> PgbouncerSpec {
        PgbouncerSpec {
            database: "rdpg".into(),
            instances: Vec::new(),
            target: PoolTarget::Own { socket_dir: "/run/q/n1".into(), port: 7432 },
            listen: "10.0.0.1".into(),
            port: 6432,
            socket_dir: "/run/q/pool".into(),
            auth_file: "/run/q/users".into(),
            admin: "quorate-pool".into(),
            cert: None,
            clients_max: 500,
            pool_size: 20,
        }
    }

    #[test]
    fn the_pool_leads_to_the_own_socket() {
        let text = render_pgbouncer(&spec());
        let expected = "; Written by Quorate; changes here are lost.\n[databases]\n\
            rdpg = host=/run/q/n1 port=7432 dbname=rdpg\n\n[pgbouncer]\nlisten_addr = 10.0.0.1\nlisten_port = 6432\n\
            unix_socket_dir = /run/q/pool\nunix_socket_mode = 0770\nauth_type = scram-sha-256\nauth_file = /run/q/users\n\
            admin_users = quorate-pool\npool_mode = transaction\nmax_client_conn = 500\ndefault_pool_size = 20\n\
            ignore_startup_parameters = extra_float_digits,options\nserver_login_retry = 1\nserver_connect_timeout = 3\n\
            server_check_delay = 5\nserver_reset_query_always = 0\ntcp_keepalive = 1\ntcp_keepidle = 5\ntcp_keepintvl = 2\n\
            tcp_keepcnt = 3\ntcp_user_timeout = 10000\nlog_connections = 0\nlog_disconnections = 0\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn after_a_switchover_it_leads_to_another_pooler() {
        let target = PoolTarget::Other { host: "10.0.0.2".into(), port: 6432, ca: Some("/pki/ca.crt".into()) };
        let instances = vec!["d1".into()];
        let text =
            render_pgbouncer(&PgbouncerSpec { target, instances, cert: Some(("/c".into(), "/k".into())), ..spec() });
        assert!(text.contains("rdpg = host=10.0.0.2 port=6432 dbname=rdpg\nd1 = host=10.0.0.2 port=6432 dbname=d1\n"));
        assert!(text.contains("server_tls_sslmode = verify-full\n") && text.contains("client_tls_sslmode = require\n"));
    }

    #[test]
    fn users_cannot_break_out_of_their_line() {
        let users = [("app".to_owned(), "a\"b".to_owned())];
        assert_eq!(render_userlist(&users), "\"app\" \"a\"\"b\"\n");
    }
}
