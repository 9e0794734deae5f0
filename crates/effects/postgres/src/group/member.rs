//! What a node knows of itself and of the group, in tables of its own that are not replicated.
//!
//! **Invariant:** a database belongs to one group and one member for as long as it lives.

use std::path::PathBuf;

use quorate_etcd_formats::hex::hex;
use quorate_faults::{Code, Fault};
use sha2::{Digest, Sha256};

use super::{Member, PUBLICATION};
use crate::Outcome;
use crate::server::{MESH_USER, TlsFiles};
use crate::sql::{Client, literal};

/// Tables and functions that every node has.
const MESH: &str = include_str!("../schema/mesh.sql");
/// What other nodes may do here.
const RIGHTS: &str = include_str!("../schema/rights.sql");
/// The function for keys, where the server has one.
const UUID_18: &str = include_str!("../schema/uuid-18.sql");
/// The same where it has none.
const UUID_OLD: &str = include_str!("../schema/uuid.sql");
/// One transaction at a time changes these tables.
const LOCK: i64 = 0x51_7001;

/// Who a database says that it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Myself {
    /// The group.
    pub group: String,
    /// The member's number.
    pub id: u16,
    /// The member's name.
    pub name: String,
    /// What its links show.
    pub files: TlsFiles,
}

/// Who may write on a node, apart from the links and from superusers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Writers {
    /// Nobody.
    Closed,
    /// Everybody, until this moment in milliseconds of Unix time.
    Until(i64),
    /// Everybody.
    Open,
}

/// Who the database is; `None`: nobody yet.
pub async fn myself(client: &Client) -> Result<Option<Myself>, Fault> {
    let there: bool = client.value("SELECT pg_catalog.to_regclass('mesh.self') IS NOT NULL", &[]).await?;
    if !there {
        return Ok(None);
    }
    let sql = "SELECT group_id, node_id, node, sslcert, sslkey, sslrootcert FROM mesh.self";
    let Some(row) = client.opt(sql, &[]).await? else { return Ok(None) };
    let id: i32 = client.read(&row, 1)?;
    let file = |column| client.read::<String>(&row, column).map(PathBuf::from);
    Ok(Some(Myself {
        group: client.read(&row, 0)?,
        id: u16::try_from(id).unwrap_or_default(),
        name: client.read(&row, 2)?,
        files: TlsFiles { cert: file(3)?, key: file(4)?, ca: file(5)? },
    }))
}

/// Makes the database one of this group and member: tables of its own, the publication, and who the others are.
///
/// `files`: the certificates that its links show, as its server sees them.
pub async fn ensure_member(
    client: &Client,
    group: &str,
    me: &Member,
    all: &[Member],
    files: &TlsFiles,
) -> Result<Outcome, Fault> {
    if let Some(known) = myself(client).await? {
        if known.group != group || known.id != me.id || known.name != me.name {
            return Err(Fault::new(
                Code::PgOtherGroup,
                format!(
                    "the database of `{}` is node {} (`{}`) of group `{}`",
                    client.node(),
                    known.id,
                    known.name,
                    known.group
                ),
            )
            .hint(format!(
                "it cannot become node {} (`{}`) of group `{group}`; begin with an empty data dir",
                me.id, me.name
            )));
        }
        if known.files == *files && members(client).await? == sorted(all) && has_parts(client).await? {
            return Ok(Outcome::AlreadyDone);
        }
    }
    let path = |path: &PathBuf| literal(&path.display().to_string());
    let mut sql = parts(client).await?;
    sql.push_str(&format!(
        "INSERT INTO mesh.self (group_id, node_id, node, sslcert, sslkey, sslrootcert) VALUES ({}, {}, {}, {}, {}, {}) \
         ON CONFLICT (one) DO UPDATE SET sslcert = EXCLUDED.sslcert, sslkey = EXCLUDED.sslkey, \
         sslrootcert = EXCLUDED.sslrootcert;\n",
        literal(group),
        me.id,
        literal(&me.name),
        path(&files.cert),
        path(&files.key),
        path(&files.ca)
    ));
    all.iter().for_each(|member| sql.push_str(&stored(member)));
    sql.push_str(&format!("SELECT mesh.publish({})", literal(PUBLICATION)));
    // Statements that come together are one transaction.
    client.batch(&sql).await.map(|()| Outcome::Done)
}

fn stored(member: &Member) -> String {
    format!(
        "INSERT INTO mesh.nodes (id, name, host, port) VALUES ({}, {}, {}, {}) ON CONFLICT (id) DO UPDATE \
         SET name = EXCLUDED.name, host = EXCLUDED.host, port = EXCLUDED.port;\n",
        member.id,
        literal(&member.name),
        literal(&member.host),
        member.port
    )
}

/// Stores on a member who the members are, as another node may.
pub async fn ensure_known(client: &Client, all: &[Member]) -> Result<Outcome, Fault> {
    let known = members(client).await?;
    if all.iter().all(|member| known.contains(member)) {
        return Ok(Outcome::AlreadyDone);
    }
    client.batch(&all.iter().map(stored).collect::<String>()).await.map(|()| Outcome::Done)
}

/// The statements that make our own tables and functions, and note which ones these are.
async fn parts(client: &Client) -> Result<String, Fault> {
    let version: i32 = client.value("SELECT current_setting('server_version_num')::int4", &[]).await?;
    let uuid = if version >= 180_000 { UUID_18 } else { UUID_OLD };
    Ok(format!(
        "SELECT pg_advisory_xact_lock({LOCK}), set_config('mesh.ddl', 'on', true);\n{MESH}\n{uuid}\n{RIGHTS}\nCOMMENT ON SCHEMA mesh IS {};\n",
        literal(&parts_hash())
    ))
}

fn parts_hash() -> String {
    hex(&Sha256::digest([MESH, UUID_18, UUID_OLD, RIGHTS].concat()))
}

async fn has_parts(client: &Client) -> Result<bool, Fault> {
    // A role that has more rights than it needs is as good as older parts: both are written by the same statements.
    let sql = "SELECT pg_catalog.obj_description(oid, 'pg_namespace') FROM pg_catalog.pg_namespace WHERE nspname = 'mesh' \
               AND NOT EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.rolname = $1 AND (r.rolsuper OR r.rolcreaterole \
               OR r.rolcreatedb OR r.rolbypassrls)) AND NOT EXISTS (SELECT FROM pg_catalog.pg_subscription s \
               JOIN pg_catalog.pg_roles r ON r.oid = s.subowner WHERE r.rolname = $1)";
    let row = client.opt(sql, &[&MESH_USER]).await?;
    let noted: Option<String> = row.map(|row| client.read(&row, 0)).transpose()?.flatten();
    Ok(noted.is_some_and(|noted| noted == parts_hash()))
}

/// Brings our own tables and functions of a member, and the rights of other nodes, to those of this program, as after an upgrade.
pub async fn ensure_parts(client: &Client) -> Result<Outcome, Fault> {
    if myself(client).await?.is_none() || has_parts(client).await? {
        return Ok(Outcome::AlreadyDone);
    }
    client.batch(&parts(client).await?).await.map(|()| Outcome::Done)
}

fn sorted(all: &[Member]) -> Vec<Member> {
    let mut all = all.to_vec();
    all.sort_by_key(|member| member.id);
    all
}

/// The members that a node knows of.
pub async fn members(client: &Client) -> Result<Vec<Member>, Fault> {
    let rows = client.query("SELECT id, name, host, port FROM mesh.nodes ORDER BY id", &[]).await?;
    let read = |row| {
        let (id, port): (i32, i32) = (client.read(row, 0)?, client.read(row, 3)?);
        Ok(Member {
            id: u16::try_from(id).unwrap_or_default(),
            name: client.read(row, 1)?,
            host: client.read(row, 2)?,
            port: u16::try_from(port).unwrap_or_default(),
        })
    };
    rows.iter().map(read).collect()
}

/// Has a node know of a member no more.
pub async fn forget_member(client: &Client, id: u16) -> Result<(), Fault> {
    client.execute("DELETE FROM mesh.nodes WHERE id = $1", &[&i32::from(id)]).await?;
    client.execute("DELETE FROM mesh.slots WHERE node_id = $1", &[&i32::from(id)]).await.map(drop)
}

/// Has a node refuse writes of applications, whoever opens it to them: it leaves the group. Or has it go on after all.
pub async fn mark_left(client: &Client, left: bool) -> Result<(), Fault> {
    let sql =
        if left { "INSERT INTO mesh.left DEFAULT VALUES ON CONFLICT DO NOTHING" } else { "DELETE FROM mesh.left" };
    client.execute(sql, &[]).await.map(drop)
}

/// Whether a node takes writes of applications.
pub async fn gate_is_open(client: &Client) -> Result<bool, Fault> {
    let sql = "SELECT coalesce((SELECT open AND coalesce(until_ms > (extract(epoch FROM clock_timestamp()) * 1000)::int8, true) \
               FROM mesh.gate), false)";
    client.value(sql, &[]).await
}

/// Opens or closes a node to writes of applications. A server that crashed is closed until it is opened again.
pub async fn ensure_gate(client: &Client, writers: Writers) -> Result<(), Fault> {
    let (open, until) = match writers {
        Writers::Closed => (false, None),
        Writers::Until(ms) => (true, Some(ms)),
        Writers::Open => (true, None),
    };
    let sql = "INSERT INTO mesh.gate (open, until_ms) VALUES ($1, $2) ON CONFLICT (one) DO UPDATE \
               SET open = EXCLUDED.open, until_ms = EXCLUDED.until_ms";
    client.execute(sql, &[&open, &until]).await.map(drop)
}
