//! The console of pgbouncer: pausing, going on, and reading its configuration again.
//!
//! **Rule:** a pause has a limit; whoever pauses resumes, also when what was meant to happen in between did not.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use quorate_faults::{Code, Fault};

use crate::Secret;
use crate::sql::{Client, Limits, Place, ident};

/// A connection to the console.
#[derive(Debug)]
pub struct Console {
    client: Client,
}

impl Console {
    /// Connects by the pooler's own socket, as its administrator. `limit`: for each command, also for a pause.
    pub async fn connect(
        node: &str,
        socket_dir: &Path,
        port: u16,
        user: &str,
        password: &Secret,
        limit: Duration,
    ) -> Result<Console, Fault> {
        let place =
            Place { password: Some(password.clone()), ..Place::socket(node, socket_dir, port, user, "pgbouncer") };
        let limits = Limits { connect: Duration::from_secs(3), statement: limit, lock: limit };
        let client = Client::connect_bare(&place, limits).await.map_err(|fault| {
            Fault::new(Code::PgProxySilent, format!("the console of pgbouncer on `{node}` does not answer"))
                .hint("is it running? its log says why not")
                .caused_by(fault)
        })?;
        Ok(Console { client })
    }

    /// Waits until no transaction runs, and lets none begin: clients wait.
    pub async fn pause(&self, database: &str) -> Result<(), Fault> {
        self.tell(&format!("PAUSE {}", ident(database))).await
    }

    /// Lets transactions begin again.
    pub async fn resume(&self, database: &str) -> Result<(), Fault> {
        self.tell(&format!("RESUME {}", ident(database))).await
    }

    /// Has it read its files again.
    pub async fn reload(&self) -> Result<(), Fault> {
        self.tell("RELOAD").await
    }

    /// Has it make new connections to the server, each when its transaction is over.
    pub async fn reconnect(&self, database: &str) -> Result<(), Fault> {
        self.tell(&format!("RECONNECT {}", ident(database))).await
    }

    /// Cuts all connections of a database, and lets none begin until it is resumed.
    pub async fn kill(&self, database: &str) -> Result<(), Fault> {
        self.tell(&format!("KILL {}", ident(database))).await
    }

    /// Who is connected to a database, by words that tell one connection from any other.
    pub async fn clients(&self, database: &str) -> Result<BTreeSet<String>, Fault> {
        let rows = self.client.simple_named("SHOW CLIENTS").await?;
        let word =
            |row: &BTreeMap<String, Option<String>>, name: &str| row.get(name).cloned().flatten().unwrap_or_default();
        let here = rows.iter().filter(|row| word(row, "database") == database);
        Ok(here.map(|row| ["addr", "port", "connect_time", "ptr"].map(|name| word(row, name)).join(" ")).collect())
    }

    /// Whether a database is paused; `None`: the pooler does not know it.
    pub async fn is_paused(&self, database: &str) -> Result<Option<bool>, Fault> {
        // Which columns there are differs by version.
        let rows = self.client.simple_named("SHOW DATABASES").await?;
        let row = rows.into_iter().find(|row| row.get("name").is_some_and(|name| name.as_deref() == Some(database)));
        Ok(row.map(|row| row.get("paused").is_some_and(|paused| paused.as_deref() == Some("1"))))
    }

    async fn tell(&self, command: &str) -> Result<(), Fault> {
        self.client.batch(command).await
    }
}
