//! The configuration of a server: three files, all of them ours.
//!
//! **Invariant:** a file that says the same already is not touched; one that is replaced is replaced in one step.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use quorate_faults::{Code, Fault};
use quorate_host::durable::{Access, Disk, DiskFile, Owner, RealDisk, partial_path};
use quorate_host::owners::{May, ensure_may, user_with_number};

use super::ServerVersion;
use super::render::{INSTANCES, is_ours, is_setting_name, render_conf, render_hba, render_ident, render_instances};

/// Certificates, as PEM files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate chain that is shown.
    pub cert: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// The authorities of whoever is on the other side.
    pub ca: PathBuf,
}

/// How a server is set up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerConfig {
    /// The node's name; shown by `SHOW cluster_name`.
    pub node: String,
    /// Addresses to listen at. Without certificates there is no network.
    pub listen: Vec<String>,
    /// The port, also part of the socket's name.
    pub port: u16,
    /// The directory of the socket.
    pub socket_dir: PathBuf,
    /// The names in the certificates of those who may come as peers: all members, this one too.
    pub peer_names: Vec<String>,
    /// How many members the group may grow to without a restart.
    pub members: u16,
    /// What it shows as a server and as a peer of others, and whose certificates it takes.
    pub tls: Option<TlsFiles>,
    /// The list of revoked certificates as PEM, by every authority in `tls`; `None`: there is none.
    pub revoked: Option<PathBuf>,
    /// Who runs the server; `None`: whoever runs this.
    pub owner: Option<Owner>,
    /// The database of the group.
    pub database: String,
    /// Settings of the operator.
    pub extra: BTreeMap<String, String>,
    /// It connects to no other node, and no other node to it: only its socket is open.
    pub isolated: bool,
}

impl ServerConfig {
    /// A server with a socket alone.
    pub fn new(node: &str, port: u16, socket_dir: &Path) -> ServerConfig {
        ServerConfig {
            node: node.to_owned(),
            listen: Vec::new(),
            port,
            socket_dir: socket_dir.to_owned(),
            peer_names: Vec::new(),
            members: 3,
            tls: None,
            revoked: None,
            owner: None,
            database: "rdpg".to_owned(),
            extra: BTreeMap::new(),
            isolated: false,
        }
    }
}

/// Whether the files changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConfigChange {
    /// They said the same already.
    Same,
    /// A running server has to be told: [`super::reload`], then [`super::pending_restart`] names what needs a restart.
    Changed,
}

/// Writes the three files, makes the socket's directory, and opens the certificates to the server's user.
pub fn ensure_config(dir: &Path, config: &ServerConfig, version: ServerVersion) -> Result<ConfigChange, Fault> {
    check(config)?;
    let me = rustix::process::geteuid().as_raw();
    let Some(me) = user_with_number(me) else {
        return Err(Fault::new(Code::PgConfig, format!("user number {me} has no name here"))
            .hint("PostgreSQL knows who comes by the socket by name; run the agent as a user of `/etc/passwd`"));
    };
    if let (Some(tls), Some(owner)) = (&config.tls, config.owner) {
        for file in [&tls.cert, &tls.key, &tls.ca].into_iter().chain(&config.revoked) {
            ensure_may(file, owner, May::Read)?;
        }
    }
    ensure_socket_dir(config)?;
    let files = [
        ("postgresql.conf", render_conf(config, version)),
        ("pg_hba.conf", render_hba(config)),
        ("pg_ident.conf", render_ident(config, &me)),
    ];
    let mut change = ConfigChange::Same;
    for (name, text) in files {
        if put(&dir.join(name), &text, config.owner)? {
            change = ConfigChange::Changed;
        }
    }
    Ok(change)
}

/// Writes down who may enter which database that was given to somebody. `pairs`: database and user.
pub fn ensure_instances(dir: &Path, pairs: &[(String, String)], owner: Option<Owner>) -> Result<ConfigChange, Fault> {
    let odd =
        |text: &String| text.is_empty() || text.contains(['"', '\'', '\\', ',']) || text.contains(char::is_control);
    if let Some((database, user)) = pairs.iter().find(|(database, user)| odd(database) || odd(user)) {
        let attempt =
            format!("database `{database}` of `{user}` cannot be written into the configuration of PostgreSQL");
        return Err(Fault::new(Code::PgConfig, attempt));
    }
    let file = dir.join(INSTANCES);
    // Without any there is no file, as long as there never was one.
    if pairs.is_empty() && !file.exists() {
        return Ok(ConfigChange::Same);
    }
    let changed = put(&file, &render_instances(pairs), owner)?;
    Ok(if changed { ConfigChange::Changed } else { ConfigChange::Same })
}

fn check(config: &ServerConfig) -> Result<(), Fault> {
    let bad = |what: String| {
        Fault::new(Code::PgConfig, what).hint("`quorate explain Q1259` lists what is set by Quorate and what is not")
    };
    for (name, value) in &config.extra {
        if !is_setting_name(name) {
            return Err(bad(format!("`{name}` is no name of a setting of PostgreSQL")));
        }
        if is_ours(name) {
            return Err(bad(format!("the setting `{name}` is made by Quorate and cannot be set")));
        }
        if value.chars().any(char::is_control) {
            return Err(bad(format!("the value of `{name}` has characters that cannot be written")));
        }
    }
    let texts = [&config.node, &config.database].into_iter().chain(&config.listen).chain(&config.peer_names);
    if let Some(text) =
        texts.into_iter().find(|text| text.contains(['"', '\'', '\\']) || text.contains(char::is_control))
    {
        return Err(bad(format!("`{text}` cannot be written into the configuration of PostgreSQL")));
    }
    let socket = config.socket_dir.join(format!(".s.PGSQL.{}", config.port));
    // The kernel's limit for the name of a socket is 107 bytes.
    if socket.as_os_str().len() > 107 {
        return Err(bad(format!("the path of the socket `{}` is longer than 107 bytes", socket.display())));
    }
    Ok(())
}

fn ensure_socket_dir(config: &ServerConfig) -> Result<(), Fault> {
    if config.socket_dir.is_dir() {
        return Ok(());
    }
    // The pooler beside it enters by the group.
    match RealDisk.create_dir(&config.socket_dir, Access { mode: 0o750, owner: config.owner }) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => Err(error.into()),
        _ => Ok(()),
    }
}

/// Writes a file if it says something else; `true`: it did.
pub(crate) fn put(path: &Path, text: &str, owner: Option<Owner>) -> Result<bool, Fault> {
    let exists = match std::fs::read(path) {
        Ok(bytes) if bytes == text.as_bytes() => return Ok(false),
        Ok(_) => true,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => false,
        Err(error) => return Err(Fault::io(format!("cannot read `{}`", path.display()), error)),
    };
    let (Some(parent), Some(partial)) = (path.parent(), partial_path(path, std::process::id())) else {
        return Err(Fault::new(Code::PgConfig, format!("`{}` is no place for a file", path.display())));
    };
    RealDisk.remove_partial(&partial)?;
    let mut file = RealDisk.create_file(&partial, Access { mode: 0o600, owner })?;
    file.write_all(text.as_bytes())?;
    file.sync()?;
    if exists {
        RealDisk.replace_file(&partial, path)?
    } else {
        RealDisk.rename_new(&partial, path)?
    }
    RealDisk.sync_dir(parent)?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_are_written_once_and_again_only_when_they_change() {
        let root = tempfile::tempdir().unwrap();
        let mut config = ServerConfig::new("n1", 5432, &root.path().join("run"));
        let version = ServerVersion { major: 18, minor: 4 };
        let ensure = |config: &ServerConfig| ensure_config(root.path(), config, version);
        assert_eq!(ensure(&config).unwrap(), ConfigChange::Changed);
        assert_eq!(ensure(&config).unwrap(), ConfigChange::Same);
        config.extra.insert("work_mem".into(), "8MB".into());
        assert_eq!(ensure(&config).unwrap(), ConfigChange::Changed);
        for (name, value) in [("wal_level", "minimal"), ("Bad Name", "1"), ("work_mem", "1\n2")] {
            let mut bad = config.clone();
            bad.extra.insert(name.into(), value.into());
            assert_eq!(ensure(&bad).unwrap_err().code(), Code::PgConfig, "{name}");
        }
        config.node = "n'1".into();
        assert_eq!(ensure(&config).unwrap_err().code(), Code::PgConfig);
    }
}
