//! The schema of the group: a journal of versions, the same on every node, and the one way to change it.
//!
//! **Invariant:** a version is a number and the hash of its text; a node that has the number with another hash is a fault, not
//! a difference to live with. A version and its line in the journal are one transaction.

mod gate;
mod seed;

use std::time::Duration;

use futures_util::future::join_all;
use quorate_etcd_formats::hex::hex;
use quorate_faults::{Code, Fault};
use sha2::{Digest, Sha256};

pub use gate::{apply_gate, refresh};
pub use seed::{ClusterRole, SeedValues, seed_v1};

use crate::Outcome;
use crate::group::{PUBLICATION, Seat, members};
use crate::sql::{Client, literal, state_of};

const V1: &str = include_str!("v1.sql");
/// One change of the schema at a time.
const LOCK: i64 = 0x51_7002;
/// How long a version may wait to be kept.
const HELD: Duration = Duration::from_secs(10);
/// A file of changes is text that people write.
const SQL_MAX: usize = 1 << 20;

/// One version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ddl {
    /// Its number: one more than the last.
    pub version: u32,
    /// What it is called, such as the name of its file.
    pub name: String,
    /// Its statements.
    pub sql: String,
}

impl Ddl {
    /// The hash by which nodes know that they have the same.
    pub fn hash(&self) -> String {
        hex(&Sha256::digest(self.sql.as_bytes()))
    }
}

/// The first version: ours.
pub fn v1() -> Ddl {
    Ddl { version: 1, name: "quorate-1".to_owned(), sql: V1.to_owned() }
}

/// In which order nodes are changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Something is added: first where changes arrive, last where they are made.
    Adds,
    /// Something is taken away: the other way round.
    Removes,
}

/// What became of a version.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Applied {
    /// Nodes that took it now.
    pub done: Vec<String>,
    /// Nodes that had it already.
    pub already: Vec<String>,
}

/// The newest version of a node; 0: none.
pub async fn version(client: &Client) -> Result<u32, Fault> {
    let there: bool = client.value("SELECT pg_catalog.to_regclass('mesh.ddl_log') IS NOT NULL", &[]).await?;
    if !there {
        return Ok(0);
    }
    let version: i32 = client.value("SELECT coalesce(max(version), 0) FROM mesh.ddl_log", &[]).await?;
    Ok(u32::try_from(version).unwrap_or_default())
}

/// All versions of a node, oldest first.
pub async fn read_journal(client: &Client) -> Result<Vec<Ddl>, Fault> {
    let rows = client.query("SELECT version, name, sql FROM mesh.ddl_log ORDER BY version", &[]).await?;
    let read = |row| {
        let version: i32 = client.read(row, 0)?;
        Ok(Ddl {
            version: u32::try_from(version).unwrap_or_default(),
            name: client.read(row, 1)?,
            sql: client.read(row, 2)?,
        })
    };
    rows.iter().map(read).collect()
}

/// Brings a version to every member, then to every link, and only then lets the new tables be written.
///
/// `seats`: all members, and `writer` is the one that applications write on. Every node has taken it before the first one keeps
/// it, so what one node refuses is kept by none. Killed anywhere, it is called again.
pub async fn apply(
    seats: &[Seat],
    writer: Option<&str>,
    ddl: &Ddl,
    order: Order,
    limit: Duration,
) -> Result<Applied, Fault> {
    check_everyone(seats).await?;
    let sorted = in_order(seats, writer, order);
    // Before anything is changed anywhere, everyone must be able to take it.
    for seat in &sorted {
        fits(&seat.client, ddl).await?;
    }
    let applied = take_everywhere(&sorted, writer, ddl, limit).await?;
    apply_gate(seats, limit).await?;
    Ok(applied)
}

/// `sorted`: in the order in which they keep it.
async fn take_everywhere(sorted: &[&Seat], writer: Option<&str>, ddl: &Ddl, limit: Duration) -> Result<Applied, Fault> {
    // Where changes are made it comes before or after all others, and these are beside each other.
    let writes = |seat: &Seat| writer == Some(seat.member.name.as_str());
    let (mut open, mut applied, mut failed) = (Vec::new(), Applied::default(), None);
    for together in sorted.chunk_by(|a, b| writes(a) == writes(b)) {
        let taken = join_all(together.iter().map(|seat| take_version(&seat.client, ddl, limit))).await;
        for (seat, taken) in together.iter().zip(taken) {
            match taken {
                Ok(Outcome::Done) => open.push(*seat),
                Ok(Outcome::AlreadyDone) => applied.already.push(seat.member.name.clone()),
                Err(fault) => failed = failed.or(Some(fault)),
            }
        }
        if failed.is_some() {
            break;
        }
    }
    if failed.is_none() {
        // Whoever was lost while the others were busy has not taken it.
        let still = join_all(open.iter().map(|seat| seat.client.batch("SELECT 1"))).await;
        failed = still.into_iter().find_map(Result::err);
    }
    if let Some(fault) = failed {
        // Whoever cannot be told ends its transaction with the connection.
        join_all(open.iter().map(|seat| seat.client.batch("ROLLBACK"))).await;
        return Err(fault);
    }
    for together in open.chunk_by(|a, b| writes(a) == writes(b)) {
        let kept = join_all(together.iter().map(|seat| seat.client.batch("COMMIT"))).await;
        for (seat, kept) in together.iter().zip(kept) {
            kept.map_err(|fault| lost(ddl, seat, fault))?;
            applied.done.push(seat.member.name.clone());
        }
    }
    Ok(applied)
}

/// A node that took a version and did not say that it keeps it. Those that come after it in the order do not keep it yet.
fn lost(ddl: &Ddl, seat: &Seat, fault: Fault) -> Fault {
    let what = format!("version {} of the schema (`{}`) is not on every node", ddl.version, ddl.name);
    Fault::new(Code::PgSchemaWaits, format!("{what}: `{}` was lost before it kept it", seat.member.name))
        .hint("apply the same again when it answers: whoever lacks it gets it then")
        .caused_by(fault)
}

/// Brings versions that some members have to those that lack them, as after a change that was cut off half-way.
pub async fn level(seats: &[Seat], writer: Option<&str>, limit: Duration) -> Result<(), Fault> {
    check_everyone(seats).await?;
    let mut journal: Vec<Ddl> = Vec::new();
    let mut least = u32::MAX;
    for seat in seats {
        let found = read_journal(&seat.client).await?;
        least = least.min(found.last().map_or(0, |last| last.version));
        if found.len() > journal.len() {
            journal = found;
        }
    }
    journal.retain(|ddl| ddl.version > least);
    if journal.is_empty() {
        return Ok(());
    }
    // One that takes away was kept where changes are made before all others; so it is one that adds if that node lacks it.
    let sorted = in_order(seats, writer, Order::Adds);
    for ddl in journal {
        let lacks = |fault: Fault| {
            let what = format!("version {} of the schema (`{}`) is not on every node", ddl.version, ddl.name);
            Fault::new(Code::PgSchemaWaits, format!("{what}, and has to be before another comes"))
                .hint("mend what it meets on that node, and apply the same again; tables that are there everywhere take writes meanwhile")
                .caused_by(fault)
        };
        take_everywhere(&sorted, writer, &ddl, limit).await.map_err(lacks)?;
    }
    apply_gate(seats, limit).await
}

fn in_order<'a>(seats: &'a [Seat], writer: Option<&str>, order: Order) -> Vec<&'a Seat> {
    let mut sorted: Vec<&Seat> = seats.iter().collect();
    sorted.sort_by_key(|seat| {
        let writes = writer == Some(seat.member.name.as_str());
        (if order == Order::Adds { writes } else { !writes }, seat.member.id)
    });
    sorted
}

async fn check_everyone(seats: &[Seat]) -> Result<(), Fault> {
    let Some(first) = seats.first() else {
        return Err(Fault::new(Code::PgSchemaWaits, "no node answers"));
    };
    let missing: Vec<String> = members(&first.client)
        .await?
        .into_iter()
        .filter(|member| !seats.iter().any(|seat| seat.member.id == member.id))
        .map(|member| format!("`{}`", member.name))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(Fault::new(Code::PgSchemaWaits, format!("the schema cannot be changed without {}", missing.join(", ")))
        .hint("start the node, or detach it: a change that it misses would stop its links"))
}

/// Whether the version may come next on a node, or is there.
async fn fits(client: &Client, ddl: &Ddl) -> Result<Outcome, Fault> {
    if ddl.sql.len() > SQL_MAX || ddl.sql.contains('\0') || ddl.version == 0 {
        return Err(Fault::new(Code::PgSchemaInvalid, format!("version {} of the schema cannot be used", ddl.version))
            .hint("a file of changes is at most 1 MiB of text"));
    }
    if ddl.sql.trim().is_empty() {
        return Err(Fault::new(Code::PgSchemaInvalid, format!("`{}` is empty: it would change nothing", ddl.name))
            .hint("write SQL into it, such as `CREATE TABLE shop.orders (…);`"));
    }
    let number = i32::try_from(ddl.version).unwrap_or(i32::MAX);
    let found = client.opt("SELECT sha256 FROM mesh.ddl_log WHERE version = $1", &[&number]).await?;
    if let Some(row) = found {
        let hash: String = client.read(&row, 0)?;
        if hash == ddl.hash() {
            return Ok(Outcome::AlreadyDone);
        }
        return Err(Fault::new(
            Code::PgSchemaDiffers,
            format!("`{}` has another text for version {} of the schema", client.node(), ddl.version),
        )
        .hint("versions are never changed; give the change a new number"));
    }
    let last = version(client).await?;
    if last + 1 != ddl.version {
        return Err(Fault::new(
            Code::PgSchemaDiffers,
            format!("`{}` is at version {last} of the schema, so {} cannot come next", client.node(), ddl.version),
        )
        .hint(format!("the next version is {}", last + 1)));
    }
    Ok(Outcome::Done)
}

/// Brings a version to one node: statements, guards, lint and the line in the journal in one transaction.
pub(crate) async fn ensure_version(client: &Client, ddl: &Ddl) -> Result<Outcome, Fault> {
    let taken = take_version(client, ddl, HELD).await?;
    if taken == Outcome::Done {
        client.batch("COMMIT").await?;
    }
    Ok(taken)
}

/// The same, and if it was done now the transaction is still open, for so long at most.
async fn take_version(client: &Client, ddl: &Ddl, limit: Duration) -> Result<Outcome, Fault> {
    if fits(client, ddl).await? == Outcome::AlreadyDone {
        return Ok(Outcome::AlreadyDone);
    }
    let sql = format!(
        "BEGIN; SET LOCAL idle_in_transaction_session_timeout = {}; SELECT pg_catalog.pg_advisory_xact_lock({LOCK}), \
         pg_catalog.set_config('mesh.ddl', 'on', true), pg_catalog.set_config('search_path', 'public', true);\n{}\n;\n\
         SELECT pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', false); SELECT mesh.publish({}), mesh.guard_tables();\n\
         DO $lint$ DECLARE bad text; BEGIN SELECT string_agg(format('%I.%I', schema, name), ', ') INTO bad FROM mesh.tables WHERE NOT keyed; \
         IF bad IS NOT NULL THEN RAISE EXCEPTION 'no primary key: %', bad USING ERRCODE = 'QU001'; END IF; END $lint$;\n\
         INSERT INTO mesh.ddl_log (version, name, sha256, sql) VALUES ({}, {}, {}, {});\n\
         SET CONSTRAINTS ALL IMMEDIATE",
        limit.as_millis(),
        ddl.sql,
        literal(PUBLICATION),
        ddl.version,
        literal(&ddl.name),
        literal(&ddl.hash()),
        literal(&ddl.sql)
    );
    let done = client.batch(&sql).await;
    if done.is_err() {
        // What failed left its transaction open.
        client.batch("ROLLBACK").await?;
    }
    match done {
        Ok(()) => Ok(Outcome::Done),
        // Someone else brought the same in this moment; or the file ended the transaction by itself.
        Err(_) if fits(client, ddl).await? == Outcome::AlreadyDone => Ok(Outcome::AlreadyDone),
        Err(fault) => match state_of(&fault).as_deref() {
            Some("QU001") => {
                Err(Fault::new(Code::PgNoKey, format!("version {} makes a table without a primary key", ddl.version))
                    .hint("give every table a primary key, such as `id uuid PRIMARY KEY DEFAULT mesh.uuidv7()`")
                    .caused_by(fault))
            }
            _ => Err(Fault::new(
                Code::PgSchemaInvalid,
                format!("version {} of the schema cannot be applied on `{}`", ddl.version, client.node()),
            )
            .hint("nothing of it was kept; mend the file, or what it meets on this node, and apply it again")
            .caused_by(fault)),
        },
    }
}

/// Brings all versions of one node to another.
pub async fn replay(from: &Client, to: &Client) -> Result<u32, Fault> {
    let mut last = 0;
    for ddl in read_journal(from).await? {
        ensure_version(to, &ddl).await?;
        last = ddl.version;
    }
    Ok(last)
}

/// What could be better about the tables of the group, one sentence each.
pub async fn lint(client: &Client) -> Result<Vec<String>, Fault> {
    let sql = "SELECT format('%I.%I has no primary key: its rows cannot be changed', schema, name) FROM mesh.tables WHERE NOT keyed \
               UNION ALL SELECT format('%I.%I: the last write does not win; of two that meet, one stops a link', schema, name) \
               FROM mesh.tables WHERE keyed AND NOT lww \
               UNION ALL SELECT format('%I.%I takes its key from a sequence, which is not replicated', t.schema, t.name) \
               FROM mesh.tables t WHERE EXISTS (SELECT FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_index i ON i.indrelid = a.attrelid \
               AND i.indisprimary AND a.attnum = ANY (i.indkey) LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum \
               WHERE a.attrelid = t.relation AND (a.attidentity <> '' OR pg_catalog.pg_get_expr(d.adbin, d.adrelid) LIKE 'nextval(%')) \
               ORDER BY 1";
    client.values(sql, &[]).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_version_is_known_by_its_hash() {
        let mut other = v1();
        assert_eq!(v1().hash().len(), 64);
        other.sql.push(' ');
        assert_ne!(v1().hash(), other.hash());
    }
}
