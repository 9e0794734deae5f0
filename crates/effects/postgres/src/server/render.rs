//! The text of `postgresql.conf`, `pg_hba.conf` and `pg_ident.conf`.
//!
//! **Rule:** over the network nobody enters without a certificate; applications enter by the socket alone, where the pooler of
//! this node stands, so that closing the pooler closes the database to them.

use std::fmt::Write;

use super::{APPS, MESH_USER, SUPERUSER, ServerConfig, ServerVersion};

/// Settings that the group stands on.
const OURS: [&str; 33] = [
    "listen_addresses",
    "port",
    "unix_socket_directories",
    "unix_socket_permissions",
    "cluster_name",
    "data_directory",
    "hba_file",
    "ident_file",
    "external_pid_file",
    "ssl",
    "ssl_cert_file",
    "ssl_key_file",
    "ssl_ca_file",
    "ssl_crl_file",
    "wal_level",
    "track_commit_timestamp",
    "max_replication_slots",
    "max_wal_senders",
    "max_logical_replication_workers",
    "max_active_replication_origins",
    "max_worker_processes",
    "password_encryption",
    "session_replication_role",
    "fsync",
    "full_page_writes",
    "logging_collector",
    "log_destination",
    "allow_alter_system",
    "event_triggers",
    "session_preload_libraries",
    "include",
    "include_dir",
    "include_if_exists",
];

/// The file of databases that were given to somebody, beside `pg_hba.conf`.
pub(super) const INSTANCES: &str = "quorate_instances.conf";

/// Whether a setting is made by us.
pub(super) fn is_ours(name: &str) -> bool {
    OURS.contains(&name)
}

/// `work_mem` or `pg_stat_statements.track`.
pub(super) fn is_setting_name(name: &str) -> bool {
    let part = |part: &str| {
        part.starts_with(|c: char| c.is_ascii_lowercase() || c == '_')
            && part.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
    };
    name.len() <= 127 && name.split('.').count() <= 2 && name.split('.').all(part)
}

fn quoted(value: &str) -> String {
    format!("'{}'", value.replace('\\', "\\\\").replace('\'', "''"))
}

/// `postgresql.conf`.
pub fn render_conf(config: &ServerConfig, version: ServerVersion) -> String {
    let members = u32::from(config.members.max(3));
    // Each link may take a slot, a sender and a worker here, and for a while several of each while tables are copied.
    let links = 8 * members;
    let workers = 2 * links + 16;
    let listen = if config.tls.is_some() && !config.isolated { config.listen.join(",") } else { String::new() };
    // Without one no subscription brings changes.
    let appliers = if config.isolated { 0 } else { links };
    let mut lines = vec![
        ("listen_addresses", quoted(&listen)),
        ("port", config.port.to_string()),
        ("unix_socket_directories", quoted(&config.socket_dir.display().to_string())),
        ("unix_socket_permissions", "0770".to_owned()),
        ("cluster_name", quoted(&config.node)),
        ("password_encryption", "scram-sha-256".to_owned()),
        ("wal_level", "logical".to_owned()),
        ("track_commit_timestamp", "on".to_owned()),
        ("max_replication_slots", links.to_string()),
        ("max_wal_senders", links.to_string()),
        ("max_logical_replication_workers", appliers.to_string()),
        ("max_sync_workers_per_subscription", "4".to_owned()),
        ("max_worker_processes", workers.to_string()),
        // How old "has it arrived?" may be, and how long a broken link waits before it is tried again.
        // What a link applied is confirmed once it is on disk: that soon.
        ("wal_writer_delay", "20ms".to_owned()),
        ("wal_receiver_status_interval", "1s".to_owned()),
        ("wal_retrieve_retry_interval", "500ms".to_owned()),
        ("wal_sender_timeout", "10s".to_owned()),
        ("wal_receiver_timeout", "10s".to_owned()),
        // A peer that never comes back must not fill the disk.
        ("max_slot_wal_keep_size", "4GB".to_owned()),
        // A client that is gone takes its transaction with it.
        ("client_connection_check_interval", "250ms".to_owned()),
        ("tcp_keepalives_idle", "5".to_owned()),
        ("tcp_keepalives_interval", "2".to_owned()),
        ("tcp_keepalives_count", "3".to_owned()),
        ("tcp_user_timeout", "10s".to_owned()),
        ("timezone", "'UTC'".to_owned()),
        ("log_timezone", "'UTC'".to_owned()),
        ("log_destination", "stderr".to_owned()),
        ("logging_collector", "off".to_owned()),
        ("log_line_prefix", "'%m [%p] %b '".to_owned()),
        ("log_statement", "none".to_owned()),
        ("log_parameter_max_length", "0".to_owned()),
        ("log_parameter_max_length_on_error", "0".to_owned()),
    ];
    if version.major >= 17 {
        lines.push(("allow_alter_system", "off".to_owned()));
    }
    if version.major >= 18 {
        lines.push(("max_active_replication_origins", links.to_string()));
    }
    match &config.tls {
        None => lines.push(("ssl", "off".to_owned())),
        Some(tls) => {
            lines.push(("ssl", "on".to_owned()));
            lines.push(("ssl_min_protocol_version", "'TLSv1.2'".to_owned()));
            lines.push(("ssl_cert_file", quoted(&tls.cert.display().to_string())));
            lines.push(("ssl_key_file", quoted(&tls.key.display().to_string())));
            lines.push(("ssl_ca_file", quoted(&tls.ca.display().to_string())));
            // Only where the file holds a list of every authority: the server rejects all other certificates.
            if let Some(revoked) = &config.revoked {
                lines.push(("ssl_crl_file", quoted(&revoked.display().to_string())));
            }
        }
    }
    let mut text = String::from(
        "# Written by Quorate; changes here are lost. Settings of your own go into `postgres.settings`.\n",
    );
    for (name, value) in lines.iter().filter(|(name, _)| !config.extra.contains_key(*name)) {
        let _ = writeln!(text, "{name} = {value}");
    }
    for (name, value) in &config.extra {
        let _ = writeln!(text, "{name} = {}", quoted(value));
    }
    text
}

/// `pg_hba.conf`: who may enter, by which way, proven how.
pub fn render_hba(config: &ServerConfig) -> String {
    let mut text = String::from("# Written by Quorate; changes here are lost.\n");
    let mut line = |parts: [&str; 5]| {
        let _ = writeln!(text, "{}", parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" "));
    };
    for user in [SUPERUSER, MESH_USER] {
        line(["local", "all", user, "", "peer map=quorate"]);
    }
    line(["local", &format!("\"{}\"", config.database), &format!("+{APPS}"), "", "scram-sha-256"]);
    line(["include_if_exists", &format!("\"{INSTANCES}\""), "", "", ""]);
    line(["local", "all", "all", "", "reject"]);
    if config.tls.is_some() {
        for everywhere in ["0.0.0.0/0", "::/0"] {
            line(["hostssl", &format!("\"{}\"", config.database), MESH_USER, everywhere, "cert map=quorate"]);
        }
    }
    line(["host", "all", "all", "all", "reject"]);
    text
}

/// Who may enter which database that was given to somebody: a part of `pg_hba.conf` that follows a table.
pub fn render_instances(pairs: &[(String, String)]) -> String {
    let mut text = String::from("# Written by Quorate; changes here are lost.\n");
    for (database, user) in pairs {
        let _ = writeln!(text, "local \"{database}\" \"{user}\" scram-sha-256");
    }
    text
}

/// `pg_ident.conf`: the agent's user of this machine, and the names in the certificates of members.
pub fn render_ident(config: &ServerConfig, agent: &str) -> String {
    let mut text = String::from("# Written by Quorate; changes here are lost.\n");
    for user in [SUPERUSER, MESH_USER] {
        let _ = writeln!(text, "quorate \"{agent}\" {user}");
    }
    for name in &config.peer_names {
        let _ = writeln!(text, "quorate \"{name}\" {MESH_USER}");
    }
    text
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::server::TlsFiles;

    #[test]
    fn nobody_enters_over_the_network_without_a_certificate() {
        let mut config = ServerConfig::new("n1", 5432, Path::new("/run/q"));
        config.listen = vec!["10.0.0.1".into()];
        config.peer_names = vec!["n1".into(), "n2".into()];
        assert!(render_conf(&config, ServerVersion { major: 18, minor: 4 }).contains("listen_addresses = ''\n"));
        let file = |name: &str| Path::new("/pki").join(name);
        config.tls = Some(TlsFiles { cert: file("c.crt"), key: file("c.key"), ca: file("ca.crt") });
        let conf = render_conf(&config, ServerVersion { major: 16, minor: 1 });
        let isolated = ServerConfig { isolated: true, ..config.clone() };
        let alone = render_conf(&isolated, ServerVersion { major: 18, minor: 4 });
        assert!(alone.contains("listen_addresses = ''\n") && alone.contains("max_logical_replication_workers = 0\n"));
        assert!(conf.contains("listen_addresses = '10.0.0.1'\n") && conf.contains("ssl_ca_file = '/pki/ca.crt'\n"));
        assert!(!conf.contains("ssl_crl_file"), "the server does not start with a file that holds no list");
        let revoking = ServerConfig { revoked: Some(file("revoked.pem")), ..config.clone() };
        let revoking = render_conf(&revoking, ServerVersion { major: 18, minor: 4 });
        assert!(revoking.contains("ssl_crl_file = '/pki/revoked.pem'\n"));
        assert!(!conf.contains("allow_alter_system") && !conf.contains("max_active_replication_origins"));
        assert_eq!(
            render_hba(&config),
            "# Written by Quorate; changes here are lost.\n\
             local all postgres peer map=quorate\n\
             local all quorate peer map=quorate\n\
             local \"rdpg\" +quorate_apps scram-sha-256\n\
             include_if_exists \"quorate_instances.conf\"\n\
             local all all reject\n\
             hostssl \"rdpg\" quorate 0.0.0.0/0 cert map=quorate\n\
             hostssl \"rdpg\" quorate ::/0 cert map=quorate\n\
             host all all all reject\n"
        );
        assert!(
            render_instances(&[("d1".into(), "u1".into())]).ends_with("lost.\nlocal \"d1\" \"u1\" scram-sha-256\n")
        );
        assert!(render_ident(&config, "root").contains("quorate \"root\" postgres\n"));
        assert!(render_ident(&config, "root").ends_with("quorate \"n1\" quorate\nquorate \"n2\" quorate\n"));
    }

    #[test]
    fn an_operators_value_takes_the_place_of_a_usual_one() {
        let mut config = ServerConfig::new("n1", 5432, Path::new("/run/q"));
        config.extra.insert("max_slot_wal_keep_size".into(), "it's".into());
        let conf = render_conf(&config, ServerVersion { major: 18, minor: 4 });
        assert_eq!(conf.matches("max_slot_wal_keep_size").count(), 1);
        assert!(conf.ends_with("max_slot_wal_keep_size = 'it''s'\n"));
        assert!(is_setting_name("pg_stat_statements.track") && !is_setting_name("a.b.c") && !is_setting_name("A"));
    }
}
