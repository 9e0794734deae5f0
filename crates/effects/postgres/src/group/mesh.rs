//! Links: for every ordered pair of members a slot at the one and a subscription at the other.
//!
//! **Invariant:** a link without a copy is made only while there is nothing to copy, or where its slot was made then: what
//! a node wrote before its slot is never sent.

use futures_util::future::try_join_all;
use quorate_faults::{Code, Fault};

use super::{Member, Seat, ensure_known, myself};
use crate::Outcome;
use crate::sql::{Client, state_of};

/// The name of a slot and of its subscription.
pub(crate) fn link_name(from: u16, to: u16) -> String {
    format!("mesh_n{to}_from_n{from}")
}

/// How a subscription begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Start {
    /// With the changes behind the slot.
    Changes,
    /// With a copy of what is there.
    Copy,
    /// Not yet.
    Disabled,
}

/// Makes every link among the seats. Several nodes may do so at once. Returns what was done.
pub async fn ensure_mesh(seats: &[Seat]) -> Result<Vec<String>, Fault> {
    ensure_links(pairs(seats).collect()).await
}

/// Makes the links that bring changes to one member, and no other: where every node does so, they come up beside each other.
pub async fn ensure_links_to(seats: &[Seat], me: u16) -> Result<Vec<String>, Fault> {
    ensure_links(pairs(seats).filter(|(_, to)| to.member.id == me).collect()).await
}

async fn ensure_links(pairs: Vec<(&Seat, &Seat)>) -> Result<Vec<String>, Fault> {
    let slots = try_join_all(pairs.iter().map(|(from, to)| ensure_slot_for(from, to))).await?;
    let mut done: Vec<String> = slots.iter().flatten().flatten().cloned().collect();
    // Only now: a subscription that waits for a slot that waits for a subscription waits for ever.
    for ((from, to), _) in pairs.into_iter().zip(&slots).filter(|(_, slot)| slot.is_some()) {
        if ensure_subscription(&to.client, &from.member, Start::Changes).await? == Outcome::Done {
            done.push(format!("subscribed `{}` to `{}`", to.member.name, from.member.name));
        }
    }
    Ok(done)
}

/// The slot of a link; what was done, if anything was. `None`: the link is there already.
async fn ensure_slot_for(from: &Seat, to: &Seat) -> Result<Option<Option<String>>, Fault> {
    if subscription_exists(&to.client, from.member.id).await? {
        return Ok(None);
    }
    if slot_is_for(from, to).await? {
        return Ok(Some(None));
    }
    if let Some(full) = one_with_rows(from, to).await? {
        return Err(Fault::new(
            Code::PgJoinInstead,
            format!("`{}` holds rows, and there is no link from `{}` to `{}`", full, from.member.name, to.member.name),
        )
        .hint("join the node that has none: `quorate pg join`; what was written before a link is not sent by it"));
    }
    let made = ensure_slot(from, &to.member, &system_id(&to.client).await?).await? == Outcome::Done;
    let name = link_name(from.member.id, to.member.id);
    Ok(Some(made.then(|| format!("made slot `{name}` on `{}`", from.member.name))))
}

fn pairs(seats: &[Seat]) -> impl Iterator<Item = (&Seat, &Seat)> {
    seats
        .iter()
        .flat_map(move |from| seats.iter().filter(move |to| to.member.id != from.member.id).map(move |to| (from, to)))
}

async fn one_with_rows(from: &Seat, to: &Seat) -> Result<Option<String>, Fault> {
    for seat in [from, to] {
        if has_rows(&seat.client).await? {
            return Ok(Some(seat.member.name.clone()));
        }
    }
    Ok(None)
}

/// Whether a replicated table has a row.
pub async fn has_rows(client: &Client) -> Result<bool, Fault> {
    let there: bool = client.value("SELECT pg_catalog.to_regclass('mesh.tables') IS NOT NULL", &[]).await?;
    if !there {
        return Ok(false);
    }
    let names: Vec<String> =
        client.values("SELECT pg_catalog.format('%I.%I', schema, name) FROM mesh.tables ORDER BY 1", &[]).await?;
    for name in names {
        if client.opt(&format!("SELECT 1 FROM {name} LIMIT 1"), &[]).await?.is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// What tells one data dir from every other.
pub(crate) async fn system_id(client: &Client) -> Result<String, Fault> {
    client.value("SELECT system_identifier::text FROM pg_catalog.pg_control_system()", &[]).await
}

pub(crate) async fn subscription_exists(client: &Client, from: u16) -> Result<bool, Fault> {
    let me = myself(client).await?.map(|me| me.id).unwrap_or_default();
    let sql = "SELECT EXISTS (SELECT FROM pg_catalog.pg_subscription WHERE subname = $1 AND subdbid = \
               (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database()))";
    client.value(sql, &[&link_name(from, me)]).await
}

/// Whether the slot for a node is there and was made for the very data that the node has.
pub(crate) async fn slot_is_for(from: &Seat, to: &Seat) -> Result<bool, Fault> {
    let name = link_name(from.member.id, to.member.id);
    let sql = "SELECT m.system_id FROM pg_catalog.pg_replication_slots s LEFT JOIN mesh.slots m USING (slot_name) \
               WHERE s.slot_name = $1";
    let Some(row) = from.client.opt(sql, &[&name]).await? else { return Ok(false) };
    let (made_for, is): (Option<String>, String) = (from.client.read(&row, 0)?, system_id(&to.client).await?);
    if made_for.as_deref() == Some(is.as_str()) {
        return Ok(true);
    }
    Err(Fault::new(
        Code::PgStaleSlot,
        format!("`{}` keeps slot `{name}` for an earlier life of `{}`", from.member.name, to.member.name),
    )
    .hint(format!("detach `{0}` first (`quorate pg detach {0}`), then join it", to.member.name)))
}

/// Makes a slot at `from` for a node, in a transaction of its own.
pub(crate) async fn ensure_slot(from: &Seat, to: &Member, system: &str) -> Result<Outcome, Fault> {
    let name = link_name(from.member.id, to.id);
    let client = &from.client;
    // Written first: a slot without its line is one that nobody knows.
    let note = "INSERT INTO mesh.slots (slot_name, node_id, system_id) VALUES ($1, $2, $3) ON CONFLICT (slot_name) \
                DO UPDATE SET system_id = EXCLUDED.system_id, made_at = now() WHERE NOT EXISTS \
                (SELECT FROM pg_catalog.pg_replication_slots s WHERE s.slot_name = EXCLUDED.slot_name)";
    client.execute(note, &[&name, &i32::from(to.id), &system]).await?;
    let found = client.opt("SELECT 1 FROM pg_catalog.pg_replication_slots WHERE slot_name = $1", &[&name]).await?;
    if found.is_some() {
        return Ok(Outcome::AlreadyDone);
    }
    let made = client
        .execute(
            "SELECT pg_catalog.pg_create_logical_replication_slot($1::text::name, 'pgoutput', false, false)",
            &[&name],
        )
        .await;
    match made {
        Ok(_) => Ok(Outcome::Done),
        Err(fault) if state_of(&fault).as_deref() == Some("42710") => Ok(Outcome::AlreadyDone),
        Err(fault) if fault.code() == Code::PgTimeout => Err(blocked(client, fault).await),
        Err(fault) => Err(fault),
    }
}

/// A slot waits for every transaction that writes; who they are helps.
async fn blocked(client: &Client, fault: Fault) -> Fault {
    let sql = "SELECT string_agg(a.pid::text, ', ' ORDER BY a.xact_start) FROM pg_catalog.pg_stat_activity a \
               WHERE a.backend_xid IS NOT NULL AND a.pid <> pg_catalog.pg_backend_pid()";
    let who: Option<String> = client.value(sql, &[]).await.ok().flatten();
    Fault::new(Code::PgTimeout, format!("`{}` cannot make a slot while transactions are open", client.node()))
        .hint(match who {
            Some(who) => format!("processes that write there: {who}; end or wait for them"),
            None => "look into its `pg_stat_activity` for open transactions".to_owned(),
        })
        .caused_by(fault)
}

/// Subscribes the node of `client` to a member whose slot is there.
pub(crate) async fn ensure_subscription(client: &Client, from: &Member, start: Start) -> Result<Outcome, Fault> {
    if myself(client).await?.is_none() {
        return Err(Fault::new(Code::PgOtherGroup, format!("the database of `{}` is in no group", client.node())));
    }
    if subscription_exists(client, from.id).await? {
        return Ok(Outcome::AlreadyDone);
    }
    ensure_known(client, std::slice::from_ref(from)).await?;
    let start = match start {
        Start::Changes => "changes",
        Start::Copy => "copy",
        Start::Disabled => "disabled",
    };
    match client.execute("SELECT mesh.subscribe($1, $2)", &[&i32::from(from.id), &start]).await {
        Ok(_) => Ok(Outcome::Done),
        // Another node did it in this moment.
        Err(fault) if matches!(state_of(&fault).as_deref(), Some("42710" | "23505")) => Ok(Outcome::AlreadyDone),
        Err(fault) => Err(fault),
    }
}

/// Stops a link on purpose: nobody but [`resume_link`] lets it go on.
pub(crate) async fn pause_link(client: &Client, name: &str) -> Result<(), Fault> {
    client.execute("SELECT mesh.pause($1)", &[&name]).await.map(drop)
}

/// Lets a link go on that was stopped on purpose, unless it is held because the writer has changed.
pub(crate) async fn resume_link(client: &Client, name: &str) -> Result<(), Fault> {
    client.execute("SELECT mesh.resume($1)", &[&name]).await.map(drop)
}

/// Drops a subscription without contacting its publisher, which may be gone.
pub(crate) async fn drop_link(client: &Client, name: &str) -> Result<(), Fault> {
    client.execute("SELECT mesh.unsubscribe($1)", &[&name]).await.map(drop)
}
