//! Roles, the database and its extensions: what every node needs before it can be part of a group.
//!
//! **Invariant:** the server hears verifiers of passwords, never passwords; a role that is right already is not touched.

use std::time::Duration;

use quorate_faults::{Code, Fault};

use crate::scram;
use crate::server::{APPS, MESH_USER, OWNERS, SUPERUSER};
use crate::sql::{Client, ident, literal, state_of};
use crate::{Outcome, Secret};

/// What a role is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UserKind {
    /// Owns the database, and changes data through the pooler.
    Owner,
    /// An application.
    App,
    /// Asks whether the server answers, and changes nothing.
    Health,
}

/// A role that logs in.
#[derive(Debug, Clone)]
pub struct UserSpec {
    /// Its name.
    pub name: String,
    /// Its password.
    pub password: Secret,
    /// What it is for.
    pub kind: UserKind,
}

/// What there is to be.
#[derive(Debug, Clone)]
pub struct Prepare {
    /// The database of the group.
    pub database: String,
    /// Roles that log in.
    pub users: Vec<UserSpec>,
}

/// Makes roles and the database. `client` is connected to the database `postgres`. Returns what was done.
pub async fn prepare(client: &Client, wanted: &Prepare) -> Result<Vec<String>, Fault> {
    let mut done = Vec::new();
    for (name, rights) in [(MESH_USER, "LOGIN REPLICATION"), (APPS, "NOLOGIN"), (OWNERS, "NOLOGIN")] {
        if ensure_role(client, name, rights).await? == Outcome::Done {
            done.push(format!("made role `{name}`"));
        }
    }
    for user in &wanted.users {
        check_name(&user.name)?;
        if ensure_role(client, &user.name, "LOGIN").await? == Outcome::Done {
            done.push(format!("made role `{}`", user.name));
        }
        if ensure_password(client, user).await? == Outcome::Done {
            done.push(format!("set the password of role `{}`", user.name));
        }
        if ensure_kind(client, user).await? == Outcome::Done {
            done.push(format!("gave role `{}` its place", user.name));
        }
    }
    let owner = wanted.users.iter().find(|user| user.kind == UserKind::Owner).map_or(SUPERUSER, |user| &user.name);
    if ensure_database(client, &wanted.database, owner).await? == Outcome::Done {
        done.push(format!("made database `{}`", wanted.database));
    }
    Ok(done)
}

/// Names of roles that need no thought anywhere they are written.
fn check_name(name: &str) -> Result<(), Fault> {
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '_' | '-');
    let ours = name.starts_with("pg_") || name.starts_with("quorate") || name == "postgres";
    if name.is_empty() || name.len() > 63 || ours || !name.chars().all(fits) {
        return Err(Fault::new(Code::PgConfig, format!("`{name}` cannot be the name of a role")).hint(
            "lower-case letters, digits, `_` and `-`; not `postgres`, and not beginning with `pg_` or `quorate`",
        ));
    }
    Ok(())
}

async fn ensure_role(client: &Client, name: &str, rights: &str) -> Result<Outcome, Fault> {
    let found = client.opt("SELECT 1 FROM pg_catalog.pg_roles WHERE rolname = $1", &[&name]).await?;
    if found.is_some() {
        return Ok(Outcome::AlreadyDone);
    }
    once(client.batch(&format!("CREATE ROLE {} {rights}", ident(name))).await, &["42710", "23505"])
}

/// Done, or done by someone else in this moment.
fn once(result: Result<(), Fault>, already: &[&str]) -> Result<Outcome, Fault> {
    match result {
        Ok(()) => Ok(Outcome::Done),
        Err(fault) if state_of(&fault).is_some_and(|state| already.contains(&state.as_str())) => {
            Ok(Outcome::AlreadyDone)
        }
        Err(fault) => Err(fault),
    }
}

async fn ensure_password(client: &Client, user: &UserSpec) -> Result<Outcome, Fault> {
    let stored: Option<String> =
        client.value("SELECT rolpassword FROM pg_catalog.pg_authid WHERE rolname = $1", &[&user.name]).await?;
    if stored.is_some_and(|stored| scram::fits(&stored, &user.password)) {
        return Ok(Outcome::AlreadyDone);
    }
    let verifier = scram::verifier(&user.password)?;
    client.batch(&format!("ALTER ROLE {} PASSWORD {}", ident(&user.name), literal(&verifier))).await?;
    Ok(Outcome::Done)
}

async fn ensure_kind(client: &Client, user: &UserSpec) -> Result<Outcome, Fault> {
    let groups: &[&str] = if user.kind == UserKind::Owner { &[APPS, OWNERS] } else { &[APPS] };
    let sql = "SELECT g.rolname::text FROM pg_catalog.pg_auth_members m JOIN pg_catalog.pg_roles g ON g.oid = m.roleid \
               JOIN pg_catalog.pg_roles u ON u.oid = m.member WHERE u.rolname = $1";
    let inside: Vec<String> = client.values(sql, &[&user.name]).await?;
    if groups.iter().all(|group| inside.iter().any(|there| there == group)) {
        return Ok(Outcome::AlreadyDone);
    }
    let mut sql = format!("GRANT {} TO {}", groups.join(", "), ident(&user.name));
    if user.kind == UserKind::Health {
        sql = format!("{sql}; ALTER ROLE {} SET default_transaction_read_only = on", ident(&user.name));
    }
    client.batch(&sql).await?;
    Ok(Outcome::Done)
}

async fn ensure_database(client: &Client, name: &str, owner: &str) -> Result<Outcome, Fault> {
    let find = "SELECT 1 FROM pg_catalog.pg_database WHERE datname = $1";
    let made = match client.opt(find, &[&name]).await? {
        Some(_) => Outcome::AlreadyDone,
        None => {
            let sql =
                format!("CREATE DATABASE {} OWNER {} TEMPLATE template0 ENCODING 'UTF8'", ident(name), ident(owner));
            once(client.batch(&sql).await, &["42P04", "23505"])?
        }
    };
    // In both cases: a kill may have come in between.
    client
        .batch(&format!(
            "REVOKE ALL ON DATABASE {name} FROM PUBLIC; GRANT CONNECT, TEMPORARY ON DATABASE {name} TO {APPS}; \
             GRANT CONNECT, TEMPORARY, CREATE ON DATABASE {name} TO {MESH_USER}",
            name = ident(name)
        ))
        .await?;
    Ok(made)
}

/// Whether the server lets a member in by the name in its certificate.
pub async fn knows_peer(client: &Client, name: &str) -> Result<bool, Fault> {
    let sql = "SELECT EXISTS (SELECT FROM pg_catalog.pg_ident_file_mappings WHERE map_name = 'quorate' AND sys_name = $1 \
               AND pg_username = $2 AND error IS NULL)";
    client.value(sql, &[&name, &MESH_USER]).await
}

/// Ends the sessions that came with revoked certificates, by their serial numbers in decimal: a server checks a certificate only when
/// a session begins. Returns how many there were.
pub async fn end_revoked(client: &Client, serials: &[String]) -> Result<u64, Fault> {
    let sql = "SELECT count(*) FILTER (WHERE pg_catalog.pg_terminate_backend(s.pid)) FROM pg_catalog.pg_stat_ssl s \
               WHERE s.client_serial::text = ANY ($1::text[])";
    let ended: i64 = client.value(sql, &[&serials]).await?;
    Ok(u64::try_from(ended).unwrap_or_default())
}

/// Makes extensions in the database that `client` is connected to. Returns what was done.
pub async fn ensure_extensions(client: &Client, names: &[String]) -> Result<Vec<String>, Fault> {
    let mut done = Vec::new();
    for name in names {
        let found = client.opt("SELECT 1 FROM pg_catalog.pg_extension WHERE extname = $1", &[name]).await?;
        if found.is_none() {
            // Sessions of ours create nothing without naming its schema; an extension may have one of its own.
            let made = client.batch(&format!("SET LOCAL search_path = public; CREATE EXTENSION {}", ident(name))).await;
            once(made, &["42710", "23505"]).map_err(|fault| match state_of(&fault).as_deref() {
                Some("0A000" | "58P01") => {
                    Fault::new(Code::PgExtension, format!("`{}` does not have the extension `{name}`", client.node()))
                        .hint("install it on every node, or take it out of `postgres.extensions`")
                        .caused_by(fault)
                }
                _ => fault,
            })?;
            done.push(format!("made extension `{name}`"));
        }
    }
    Ok(done)
}

/// What a pooler needs to know of applications: names, and the verifiers by which it checks them and logs in as them.
pub async fn pool_users(client: &Client) -> Result<Vec<(String, String)>, Fault> {
    let sql = "SELECT u.rolname::text, u.rolpassword FROM pg_catalog.pg_authid u WHERE u.rolcanlogin \
               AND u.rolpassword IS NOT NULL AND pg_catalog.pg_has_role(u.oid, $1::text::name, 'member') AND NOT u.rolsuper \
               ORDER BY 1";
    let rows = client.query(sql, &[&APPS]).await?;
    rows.iter().map(|row| Ok((client.read(row, 0)?, client.read(row, 1)?))).collect()
}

/// Ends every session that came through the pooler, whatever database it is in, and waits until none of them is left: of applications
/// and of whom a database was given to. Superusers and other nodes come another way. Who comes after the call finds what was written down before it,
/// and is let be. Returns how many there were.
pub async fn end_sessions(client: &Client, limit: Duration) -> Result<u64, Fault> {
    let deadline = tokio::time::Instant::now() + limit;
    let called: String = client.value("SELECT pg_catalog.clock_timestamp()::text", &[]).await?;
    let sql = "SELECT count(*) FILTER (WHERE pg_catalog.pg_terminate_backend(a.pid)), count(*) \
               FROM pg_catalog.pg_stat_activity a JOIN pg_catalog.pg_roles u ON u.oid = a.usesysid \
               WHERE NOT u.rolsuper AND u.rolname <> $2 AND a.backend_type = 'client backend' AND a.pid <> pg_catalog.pg_backend_pid() \
               AND a.backend_start <= $1::text::timestamptz";
    let mut ended: Option<i64> = None;
    loop {
        let row = client.one(sql, &[&called, &MESH_USER]).await?;
        let left: i64 = client.read(&row, 1)?;
        ended.get_or_insert(left);
        if left == 0 {
            return Ok(u64::try_from(ended.unwrap_or_default()).unwrap_or_default());
        }
        if tokio::time::Instant::now() >= deadline {
            return Err(Fault::new(Code::PgTimeout, format!("{left} sessions on `{}` do not end", client.node()))
                .hint("stop the server at once: what they still write would be written by nobody who may"));
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
