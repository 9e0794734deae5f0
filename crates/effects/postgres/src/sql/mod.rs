//! SQL: one connection to one server, with limits that nobody has to remember.
//!
//! **Invariant:** every connection has a `statement_timeout` and a `lock_timeout`, every call a limit of its own beyond that,
//! and no fault holds a parameter or a row. No session resolves a name in a schema that another role can write to.

mod fault;
mod place;
mod tls;

use std::collections::BTreeMap;
use std::time::Duration;

use quorate_faults::{Code, Fault};
use tokio_postgres::types::{FromSql, ToSql};
use tokio_postgres::{Config, NoTls, Row, SimpleQueryMessage};

pub(crate) use fault::{fault_of, state_of};
pub use place::{Place, Way};
use tls::Tls;

/// How much longer than the server's own limit a call may take, for the way there and back.
const GRACE: Duration = Duration::from_secs(5);

/// How long a transaction of ours may stand still. Whoever is stopped in the middle of one must not keep its locks from the one
/// that takes over.
const IDLE_MAX: Duration = Duration::from_secs(10);

/// Where names without a schema are resolved. It is part of the connection's first message, so it holds for the first statement and
/// overrides what the owner of a database sets for it: else a function or operator of `public` would run with our rights.
const SEARCH_PATH: &str = "pg_catalog,pg_temp";

/// Limits of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// To be let in.
    pub connect: Duration,
    /// For one statement.
    pub statement: Duration,
    /// To wait for a lock.
    pub lock: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { connect: Duration::from_secs(5), statement: Duration::from_secs(30), lock: Duration::from_secs(5) }
    }
}

impl Limits {
    /// The same with another limit for statements.
    pub fn statement(self, statement: Duration) -> Limits {
        Limits { statement, ..self }
    }
}

/// A connection.
pub struct Client {
    node: String,
    inner: tokio_postgres::Client,
    limit: Duration,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("node", &self.node).finish_non_exhaustive()
    }
}

impl Client {
    /// Connects and is let in.
    pub async fn connect(place: &Place, limits: Limits) -> Result<Client, Fault> {
        let ms = |span: Duration| span.as_millis();
        let options = format!(
            "-c statement_timeout={} -c lock_timeout={} -c idle_in_transaction_session_timeout={} \
             -c timezone=UTC -c client_min_messages=error -c search_path={SEARCH_PATH}",
            ms(limits.statement),
            ms(limits.lock),
            ms((limits.statement * 2).min(IDLE_MAX))
        );
        let mut config = place.config();
        config.options(&options);
        Client::open(place, &config, limits).await
    }

    /// Connects to something that speaks the protocol and knows no settings: the console of a pooler.
    pub(crate) async fn connect_bare(place: &Place, limits: Limits) -> Result<Client, Fault> {
        Client::open(place, &place.config(), limits).await
    }

    async fn open(place: &Place, config: &Config, limits: Limits) -> Result<Client, Fault> {
        let opened = tokio::time::timeout(limits.connect, dial(place, config)).await;
        let inner = opened.map_err(|_| {
            Fault::new(Code::PgSilent, format!("PostgreSQL of `{}` does not answer", place.node))
                .hint(format!("is it running at {}?", place.shown()))
                .caused_by(format!("nothing within {:?}", limits.connect))
        })??;
        Ok(Client { node: place.node.clone(), inner, limit: limits.statement + GRACE })
    }

    /// The node that it leads to.
    pub fn node(&self) -> &str {
        &self.node
    }

    /// Whether it is over.
    pub fn is_closed(&self) -> bool {
        self.inner.is_closed()
    }

    /// All rows.
    pub async fn query(&self, sql: &str, values: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>, Fault> {
        self.within(sql, self.inner.query(sql, values)).await
    }

    /// The one row.
    pub async fn one(&self, sql: &str, values: &[&(dyn ToSql + Sync)]) -> Result<Row, Fault> {
        let row = self.opt(sql, values).await?;
        row.ok_or_else(|| {
            Fault::new(Code::PgSql, format!("`{}` answered without a row", self.node)).caused_by(short(sql))
        })
    }

    /// One row or none.
    pub async fn opt(&self, sql: &str, values: &[&(dyn ToSql + Sync)]) -> Result<Option<Row>, Fault> {
        let mut rows = self.query(sql, values).await?;
        Ok(if rows.is_empty() { None } else { Some(rows.swap_remove(0)) })
    }

    /// One value.
    pub async fn value<T>(&self, sql: &str, values: &[&(dyn ToSql + Sync)]) -> Result<T, Fault>
    where
        T: for<'a> FromSql<'a>,
    {
        self.read(&self.one(sql, values).await?, 0)
    }

    /// One value of every row.
    pub async fn values<T>(&self, sql: &str, values: &[&(dyn ToSql + Sync)]) -> Result<Vec<T>, Fault>
    where
        T: for<'a> FromSql<'a>,
    {
        self.query(sql, values).await?.iter().map(|row| self.read(row, 0)).collect()
    }

    /// How many rows it touched.
    pub async fn execute(&self, sql: &str, values: &[&(dyn ToSql + Sync)]) -> Result<u64, Fault> {
        self.within(sql, self.inner.execute(sql, values)).await
    }

    /// Several statements as one transaction (unless they say otherwise), without values.
    pub async fn batch(&self, sql: &str) -> Result<(), Fault> {
        self.within(sql, self.inner.batch_execute(sql)).await
    }

    /// Rows as text by the names of their columns: the simple protocol is all that the console of a pooler knows.
    pub(crate) async fn simple_named(&self, sql: &str) -> Result<Vec<BTreeMap<String, Option<String>>>, Fault> {
        let messages = self.within(sql, self.inner.simple_query(sql)).await?;
        let rows = messages.into_iter().filter_map(|message| match message {
            SimpleQueryMessage::Row(row) => {
                let value = |column: usize| row.try_get(column).ok().flatten().map(str::to_owned);
                let names = row.columns().iter().map(|column| column.name().to_owned());
                Some(names.enumerate().map(|(column, name)| (name, value(column))).collect())
            }
            _ => None,
        });
        Ok(rows.collect())
    }

    /// A column of a row.
    pub fn read<T>(&self, row: &Row, column: usize) -> Result<T, Fault>
    where
        T: for<'a> FromSql<'a>,
    {
        row.try_get(column).map_err(|error| fault_of(&self.node, "an answer cannot be read", error))
    }

    async fn within<T>(
        &self,
        sql: &str,
        call: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T, Fault> {
        match tokio::time::timeout(self.limit, call).await {
            Ok(done) => done.map_err(|error| fault_of(&self.node, &short(sql), error)),
            Err(_) => Err(Fault::new(Code::PgTimeout, format!("PostgreSQL of `{}` does not answer", self.node))
                .hint("the connection may be cut; look again in a moment")
                .caused_by(format!("`{}` took longer than {:?}", short(sql), self.limit))),
        }
    }
}

async fn dial(place: &Place, config: &Config) -> Result<tokio_postgres::Client, Fault> {
    let refused = |error: std::io::Error| {
        Fault::new(Code::PgSilent, format!("cannot reach PostgreSQL of `{}`", place.node))
            .hint(format!("is it running at {}?", place.shown()))
            .caused_by(error)
    };
    let attempt = "the connection is refused";
    match &place.way {
        Way::Socket { dir, port } => {
            let path = dir.join(format!(".s.PGSQL.{port}"));
            let stream = tokio::net::UnixStream::connect(path).await.map_err(refused)?;
            let (client, connection) =
                config.connect_raw(stream, NoTls).await.map_err(|error| fault_of(&place.node, attempt, error))?;
            // It ends when the client is dropped, or with the connection; either way the client says so.
            tokio::spawn(async move { drop(connection.await) });
            Ok(client)
        }
        Way::Tls { host, port, files } => {
            let tls = Tls::load(files, host)?;
            let stream = tokio::net::TcpStream::connect((host.as_str(), *port)).await.map_err(refused)?;
            stream.set_nodelay(true).map_err(refused)?;
            let (client, connection) =
                config.connect_raw(stream, tls).await.map_err(|error| fault_of(&place.node, attempt, error))?;
            tokio::spawn(async move { drop(connection.await) });
            Ok(client)
        }
    }
}

/// The beginning of a statement: enough to know it.
fn short(sql: &str) -> String {
    let line = sql.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(80) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

/// A name as SQL takes it.
pub(crate) fn ident(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// A text as SQL takes it.
pub(crate) fn literal(text: &str) -> String {
    let quoted = text.replace('\'', "''");
    if text.contains('\\') { format!(" E'{}'", quoted.replace('\\', "\\\\")) } else { format!("'{quoted}'") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_texts_cannot_break_out() {
        assert_eq!(ident("a\"b"), "\"a\"\"b\"");
        assert_eq!(literal("it's"), "'it''s'");
        assert_eq!(literal("a\\'b"), " E'a\\\\''b'");
        assert_eq!(short("SELECT\n  1"), "SELECT 1");
        assert_eq!(short(&"é".repeat(100)).chars().count(), 81);
    }
}
