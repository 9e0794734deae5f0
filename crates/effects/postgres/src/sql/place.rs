//! Where a server is, and as whom one comes.

use std::path::{Path, PathBuf};

use tokio_postgres::Config;
use tokio_postgres::config::SslMode;

use crate::Secret;
use crate::group::Member;
use crate::server::{MESH_USER, SUPERUSER, ServerConfig, TlsFiles};

/// The way to a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Way {
    /// A socket of this machine.
    Socket {
        /// Its directory.
        dir: PathBuf,
        /// The server's port, which is part of its name.
        port: u16,
    },
    /// The network, with certificates on both sides.
    Tls {
        /// A name or address that the server's certificate carries.
        host: String,
        /// Its port.
        port: u16,
        /// What we show, and whom we believe.
        files: TlsFiles,
    },
}

/// A server, a database and a user.
#[derive(Debug, Clone)]
pub struct Place {
    /// The node, for messages.
    pub node: String,
    /// How to get there.
    pub way: Way,
    /// As whom.
    pub user: String,
    /// The password, for those who need one.
    pub password: Option<Secret>,
    /// Which database.
    pub database: String,
}

impl Place {
    /// Our own server, by its socket, as its first superuser.
    pub fn own(config: &ServerConfig, database: &str) -> Place {
        Place::socket(&config.node, &config.socket_dir, config.port, SUPERUSER, database)
    }

    /// Our own server, by its socket, as other nodes come. For all that handles rows and objects of the replicated schemas: these belong
    /// to this role, so code in them never runs with more rights than its owner has.
    pub fn own_mesh(config: &ServerConfig, database: &str) -> Place {
        Place::socket(&config.node, &config.socket_dir, config.port, MESH_USER, database)
    }

    /// A socket of this machine.
    pub fn socket(node: &str, dir: &Path, port: u16, user: &str, database: &str) -> Place {
        Place {
            node: node.to_owned(),
            way: Way::Socket { dir: dir.to_owned(), port },
            user: user.to_owned(),
            password: None,
            database: database.to_owned(),
        }
    }

    /// A member of the group, as its peer.
    pub fn peer(member: &Member, files: &TlsFiles, database: &str) -> Place {
        Place {
            node: member.name.clone(),
            way: Way::Tls { host: member.host.clone(), port: member.port, files: files.clone() },
            user: MESH_USER.to_owned(),
            password: None,
            database: database.to_owned(),
        }
    }

    pub(super) fn config(&self) -> Config {
        let mut config = Config::new();
        config.user(&self.user).dbname(&self.database).application_name("quorate");
        if let Some(password) = &self.password {
            config.password(password.bytes());
        }
        config.ssl_mode(match self.way {
            Way::Socket { .. } => SslMode::Disable,
            Way::Tls { .. } => SslMode::Require,
        });
        config
    }

    pub(super) fn shown(&self) -> String {
        match &self.way {
            Way::Socket { dir, port } => format!("the socket `{}`", dir.join(format!(".s.PGSQL.{port}")).display()),
            Way::Tls { host, port, .. } => format!("`{host}` port {port}"),
        }
    }
}
