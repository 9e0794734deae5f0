//! Looks at this machine and at the store.
//!
//! **Rule:** looking changes nothing but what is remembered of it, and what cannot be looked at is told as that.

use std::collections::BTreeMap;
use std::time::Duration;

use quorate_coordination::{Health, Lock, Scope, Store};
use quorate_faults::{Code, Fault};
use quorate_plan::postgres::{
    DataNow, Group, LinkNow, LockNow, Mine, Records, Seen, StoreNow, StoreSeen, UnsentNow, keys, read_records,
};
use quorate_postgres::conflicts;
use quorate_postgres::group::{self, Links, Member, Seat};
use quorate_postgres::schema;
use quorate_postgres::server::{self, DataSeen, observe_data};
use quorate_postgres::sql::{Client, Limits};

use super::here::{DATABASE, Here};
use super::returning::read_own_log;
use super::status::LinkStatus;

/// The service that nodes register as.
pub(super) const SERVICE: &str = "postgres";
/// A look is short.
const LOOK: Duration = Duration::from_secs(3);
/// A question to another node is shorter: it may be away.
const ASK: Duration = Duration::from_secs(1);
/// Two segments of PostgreSQL's log: with less it may not be able to write the next one.
const FREE_MIN: u64 = 32 << 20;
/// So much is kept for a node that is away without a word about it.
const KEPT_QUIETLY: u64 = 256 << 20;

/// The records of the group, as they are now.
pub async fn records(store: &Store) -> Result<Records, Fault> {
    let listing = store.list(&Scope::prefix(keys::ALL)).await?;
    read_records(&listing).map_err(|why| {
        Fault::new(Code::PgRecords, format!("cannot understand the records of the group: {why}"))
            .hint("somebody else may write into the namespace; see `quorate explain Q1309`")
    })
}

/// The nodes that are registered and well, and the group that each is bound to.
pub async fn registered(store: &Store) -> Result<BTreeMap<String, Option<String>>, Fault> {
    let seen = store.instances(SERVICE).await?;
    let well = seen.into_iter().filter(|seen| seen.health != Health::Critical);
    Ok(well
        .map(|seen| {
            let group = seen.instance.meta.get("group").filter(|group| !group.is_empty()).cloned();
            (seen.instance.id, group)
        })
        .collect())
}

/// What was seen of the own server beyond what decides.
#[derive(Debug, Default)]
pub(super) struct Details {
    pub(super) links: Vec<LinkStatus>,
    pub(super) server: String,
    pub(super) troubles: Vec<String>,
    /// The links that bring changes here.
    pub(super) incoming: Vec<IncomingSeen>,
    /// Rows that lost, and those that were overtaken; `None`: they were not counted.
    pub(super) counts: Option<(u64, u64)>,
    /// Whether the database takes writes of applications, if that is known.
    pub(super) gate_open: Option<bool>,
    /// `None`: not known, and what was known holds.
    pub(super) instances: Option<Vec<PoolInstance>>,
}

/// The connection to the own database, over all looks: a new one for each would be a new process of the server.
#[derive(Debug)]
pub(super) struct Kept {
    client: Client,
    /// The same without a superuser's rights, once there were rows to read.
    rows: Option<Client>,
    /// The server's version.
    version: String,
    /// Whether the server runs without connections to other nodes.
    isolated: bool,
}

/// What this process knows from before.
#[derive(Debug, Clone, Default)]
pub(super) struct Known {
    /// Users, database and extensions were made or checked.
    pub(super) prepared: bool,
    /// Whether rows that lost are to be counted.
    pub(super) count: bool,
}

/// A link that brings changes here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct IncomingSeen {
    /// The member that they come from.
    pub(super) from: u16,
    /// Its name, as far as it is known.
    pub(super) name: String,
    /// An error has stopped it.
    pub(super) stopped: bool,
}

/// A database that was given to somebody: the pooler lets its user in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PoolInstance {
    pub(super) database: String,
    pub(super) user: String,
    /// The verifier of its password.
    pub(super) verifier: String,
}

/// The instances that are in use, from the table that every node has, as far as this server has them: a row gives nobody more
/// than its role has already. The role logs in by this very verifier and has no rights beyond its databases.
///
/// `rows` reads the table, without a superuser's rights: it belongs to the role of the mesh, which can replace it by a view that calls
/// functions. `client` reads the roles.
async fn instances(here: &Here, client: &Client, rows: &Client) -> Result<Vec<PoolInstance>, Fault> {
    let sql = "SELECT i.dbname, i.dbuser, i.dbpass FROM cfsb.instances i \
               WHERE i.effective_at IS NOT NULL AND i.ineffective_at IS NULL AND i.decommissioned_at IS NULL AND i.deleted_at IS NULL \
               AND i.dbpass LIKE 'SCRAM-SHA-256$%'";
    let (mut names, mut users, mut verifiers) = (Vec::new(), Vec::new(), Vec::new());
    for row in rows.query(sql, &[]).await? {
        names.push(rows.read::<String>(&row, 0)?);
        users.push(rows.read::<String>(&row, 1)?);
        verifiers.push(rows.read::<String>(&row, 2)?);
    }
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let sql = "SELECT i.dbname, i.dbuser, i.dbpass FROM unnest($1::text[], $2::text[], $3::text[]) AS i (dbname, dbuser, dbpass) \
               JOIN pg_catalog.pg_database d ON d.datname = i.dbname \
               JOIN pg_catalog.pg_authid u ON u.rolname = i.dbuser AND u.rolpassword = i.dbpass WHERE d.datallowconn AND NOT d.datistemplate AND u.rolcanlogin AND NOT u.rolsuper \
               AND NOT u.rolcreaterole AND NOT u.rolreplication AND NOT u.rolbypassrls AND NOT EXISTS (SELECT FROM pg_catalog.pg_roles g \
               WHERE (g.rolsuper OR g.rolname LIKE 'pg\\_%' OR g.rolname LIKE 'quorate%') AND pg_catalog.pg_has_role(u.oid, g.oid, 'member')) \
               ORDER BY i.dbname";
    let mut found = Vec::new();
    for row in client.query(sql, &[&names, &users, &verifiers]).await? {
        let text = |column| client.read::<String>(&row, column);
        let one = PoolInstance { database: text(0)?, user: text(1)?, verifier: text(2)? };
        if one.may_be_offered(here.pg.users.iter().map(|user| user.name.as_str())) {
            found.push(one);
        }
    }
    Ok(found)
}

async fn read_instances(here: &Here, client: &Client, rows: &mut Option<Client>) -> Result<Vec<PoolInstance>, Fault> {
    let open = match rows.take().filter(|rows| !rows.is_closed()) {
        Some(open) => open,
        None => here.own_mesh(Limits { connect: LOOK, statement: LOOK, lock: LOOK }).await?,
    };
    instances(here, client, rows.insert(open)).await
}

impl PoolInstance {
    /// Whether it can be named to pooler and server: both names become words of a configuration, and neither means something else
    /// there. `declared`: users of the group, whose passwords and databases the cluster file says.
    fn may_be_offered<'a>(&self, mut declared: impl Iterator<Item = &'a str>) -> bool {
        let is_word = |text: &str| {
            let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
            !text.is_empty() && text.len() <= 63 && text.chars().all(fits)
        };
        let (database, user) = (self.database.to_ascii_lowercase(), self.user.to_ascii_lowercase());
        let reserved = |name: &str| name == "postgres" || name.starts_with("pg_") || name.starts_with("quorate");
        let console = ["pgbouncer", DATABASE].contains(&database.as_str()) || database.starts_with("template");
        is_word(&self.database)
            && is_word(&self.user)
            && !console
            && !reserved(&database)
            && !reserved(&user)
            // Words of the server's list of who may enter.
            && !["all", "sameuser", "samerole", "samegroup", "replication"].contains(&database.as_str())
            && user != "all"
            && !declared.any(|name| name.eq_ignore_ascii_case(&user))
            && !self.verifier.chars().any(char::is_control)
    }
}

/// Looks at everything. `still_ms`: for how long no record has changed.
pub(super) async fn look(
    here: &Here,
    store: &Store,
    lock: Option<&Lock>,
    (before, kept): (&Known, &mut Option<Kept>),
    still: impl FnOnce(&Records) -> Duration,
) -> (Seen, Details) {
    let store = match store_now(store, lock, still).await {
        Ok(seen) => StoreNow::Known(Box::new(seen)),
        Err(fault) => StoreNow::Unknown(format!("{fault} [{}]", fault.code())),
    };
    let (mine, details) = mine(here, &store, before, kept).await;
    (Seen { mine, store }, details)
}

async fn store_now(
    store: &Store,
    lock: Option<&Lock>,
    still: impl FnOnce(&Records) -> Duration,
) -> Result<StoreSeen, Fault> {
    let records = records(store).await?;
    let registered = registered(store).await?;
    let lock = if lock.is_some_and(Lock::is_held) { LockNow::Mine } else { LockNow::NotMine };
    let still_ms = u64::try_from(still(&records).as_millis()).unwrap_or(u64::MAX);
    Ok(StoreSeen { registered, lock, records, still_ms })
}

async fn mine(here: &Here, store: &StoreNow, before: &Known, kept: &mut Option<Kept>) -> (Mine, Details) {
    let mut mine = Mine {
        data: data(here),
        serves: false,
        prepared: false,
        bound: None,
        linked: false,
        lost: None,
        schema: 0,
        configured: false,
        offered: false,
        isolated: false,
        links: BTreeMap::new(),
        unsent: UnsentNow::NotRead,
    };
    let mut details = Details::default();
    if mine.data != DataNow::Ours {
        return (mine, details);
    }
    details.troubles.extend(disk(here));
    let mut known = None;
    if let Some(one) = kept.take().filter(|one| before.prepared && !one.client.is_closed()) {
        mine.serves = one.client.value::<i32>("SELECT 1", &[]).await.is_ok();
        known = Some(one).filter(|_| mine.serves);
    }
    let Kept { client, mut rows, version, isolated } = match known {
        Some(known) => known,
        None => {
            let limits = Limits { connect: LOOK, statement: LOOK, lock: LOOK };
            let Ok(client) = here.own("postgres", limits).await else { return (mine, details) };
            mine.serves = client.value::<i32>("SELECT 1", &[]).await.is_ok();
            details.server = client.value("SHOW server_version", &[]).await.unwrap_or_default();
            mine.isolated = server::is_isolated(&client).await.unwrap_or_default();
            if !before.prepared || !mine.serves {
                return (mine, details);
            }
            // Without the database it is not as declared, whatever was done before.
            let Ok(client) = here.own(DATABASE, limits).await else { return (mine, details) };
            Kept { client, rows: None, version: details.server.clone(), isolated: mine.isolated }
        }
    };
    (mine.prepared, mine.isolated) = (true, isolated);
    details.server = version.clone();
    // What cannot be asked is not there yet, and is asked over a new connection.
    *kept = database(here, (client, &mut rows), (store, before), &mut mine, &mut details)
        .await
        .ok()
        .map(|client| Kept { client, rows, version, isolated });
    (mine, details)
}

/// What the disk of the data dir has to say.
fn disk(here: &Here) -> Option<String> {
    let seen = rustix::fs::statvfs(here.data_dir()).ok()?;
    let free = seen.f_bavail.saturating_mul(seen.f_frsize);
    (free < FREE_MIN).then(|| format!("the disk of `{}` is full: {} MiB are left", here.node.data_dir, free >> 20))
}

fn data(here: &Here) -> DataNow {
    match observe_data(&here.data_dir()) {
        DataSeen::Absent | DataSeen::Empty => DataNow::Absent,
        DataSeen::Ours { mark, .. } if mark == here.mark() => DataNow::Ours,
        DataSeen::Ours { mark, .. } => DataNow::Foreign(format!("it is `{}` of group `{}`", mark.node, mark.group)),
        DataSeen::Foreign(why) => DataNow::Foreign(why),
        DataSeen::Unknown(why) => DataNow::Unknown(why),
    }
}

/// The database of the group: whose it is, and what is in it.
async fn database(
    here: &Here,
    (client, rows): (Client, &mut Option<Client>),
    (store, before): (&StoreNow, &Known),
    mine: &mut Mine,
    details: &mut Details,
) -> Result<Client, Fault> {
    details.troubles.extend(unapplied(&client).await);
    let Some(myself) = group::myself(&client).await? else { return Ok(client) };
    mine.bound = Some(myself.group.clone());
    details.gate_open = group::gate_is_open(&client).await.ok();
    let known = match store {
        StoreNow::Known(seen) => seen.records.group.as_ref().map(|(group, _)| group.clone()),
        StoreNow::Unknown(_) => None,
    };
    // Links are seen to without the store too.
    let member = Member { id: myself.id, name: myself.name.clone(), host: String::new(), port: 0 };
    let seat = Seat { member, client };
    let links = group::observe_links(&seat).await?;
    details.incoming = links.incoming.iter().map(|(from, link)| seen_link(known.as_ref(), *from, link)).collect();
    let Some(known) = known.filter(|known| known.nodes.contains_key(here.name())) else { return Ok(seat.client) };
    if let StoreNow::Known(seen) = store {
        mine.links = followed(&known, &links, &group::position(&seat.client).await?);
        mine.unsent = read_own_log(here, &seen.records).await;
        details.troubles.extend(ahead(&seen.records, &mine.links));
    }
    let mut others = known.nodes.iter().filter(|(name, _)| *name != here.name());
    // One that still copies brings no changes yet.
    let brings = |link: &group::Incoming| link.enabled && link.tables_waiting == 0;
    mine.linked = others.all(|(_, id)| links.incoming.get(id).is_some_and(brings));
    let waiting = links.incoming.values().any(|link| link.tables_waiting > 0);
    let version = schema::version(&seat.client).await?;
    // Known before this node counts as fit for anything.
    if version > 0 {
        mine.lost = lost(here, (&known, &seat), &links).await?;
    }
    mine.schema = if waiting { 0 } else { version };
    if version > 0 {
        details.instances = read_instances(here, &seat.client, rows).await.ok();
        if before.count {
            details.counts = conflicts::counts(&seat.client).await.ok();
        }
    }
    details.links = known.nodes.iter().filter_map(|(name, id)| shown(name, *id, &links)).collect();
    details.troubles.extend(known.nodes.iter().flat_map(|(name, id)| troubles(name, *id, &links)));
    Ok(seat.client)
}

/// The subscriptions of this node, by the member that they follow.
fn followed(group: &Group, links: &Links, position: &group::Position) -> BTreeMap<String, LinkNow> {
    let link = |(name, id): (&String, &u16)| {
        let (link, applied) = (links.incoming.get(id)?, position.applied.get(id).copied().unwrap_or_default());
        Some((name.clone(), LinkNow { held: link.held, applied, unordered: link.unordered }))
    };
    group.nodes.iter().filter_map(link).collect()
}

/// Nodes that were the writer, and of which this one has applied more than the writer has.
fn ahead(records: &Records, links: &BTreeMap<String, LinkNow>) -> Vec<String> {
    let ahead = |(name, link): (&String, &LinkNow)| {
        let (cutoff, _) = records.cutoff(name)?;
        (link.applied > cutoff.applied).then(|| {
            let writer = &cutoff.writer;
            format!(
                "more of `{name}` was applied here than `{writer}` has; it stays until `{name}` is back [{}]",
                Code::PgAhead
            )
        })
    };
    links.iter().filter_map(ahead).collect()
}

/// Settings that are in the files and not in the server: it has to be started anew for them.
async fn unapplied(client: &Client) -> Option<String> {
    let names = server::pending_restart(client).await.ok().filter(|names| !names.is_empty())?;
    Some(format!("settings wait for a restart of the server: {}", names.join(", ")))
}

fn seen_link(known: Option<&Group>, from: u16, link: &group::Incoming) -> IncomingSeen {
    let name = known.and_then(|known| known.nodes.iter().find(|(_, id)| **id == from));
    let name = name.map_or_else(|| format!("node {from}"), |(name, _)| name.clone());
    IncomingSeen { from, name, stopped: !link.enabled && !link.paused }
}

/// How the link from a node is.
fn shown(name: &str, id: u16, links: &Links) -> Option<LinkStatus> {
    let link = links.incoming.get(&id)?;
    let state = match (link.enabled, link.paused, link.running) {
        (false, true, _) if link.held => "held",
        (false, true, _) => "paused",
        (false, false, _) => "stopped",
        (true, _, false) => "waiting",
        (true, _, true) => "running",
    };
    Some(LinkStatus {
        from: name.to_owned(),
        state: state.to_owned(),
        lag_bytes: links.outgoing.get(&id).map(|slot| slot.lag_bytes),
        conflicts: link.conflicts.map_or(0, |seen| {
            seen.insert_exists + seen.update_origin_differs + seen.update_missing + seen.delete_missing + seen.others
        }),
        errors: link.errors,
    })
}

/// What is not well with the links between here and a node.
fn troubles(name: &str, id: u16, links: &Links) -> Vec<String> {
    let paused = links.incoming.get(&id).filter(|link| link.paused && !link.held);
    let paused = paused.map(|_| format!("the link from `{name}` is paused by a change of members"));
    let quiet = links.incoming.get(&id).filter(|link| !link.running && !link.paused);
    let quiet = quiet.map(|link| match link.enabled {
        true => format!("nothing comes from `{name}`; {} errors so far", link.errors),
        false => format!(
            "the link from `{name}` was stopped by an error, and is tried again; {} so far (`quorate pg conflicts list` shows it)",
            link.errors
        ),
    });
    let slot = links.outgoing.get(&id);
    let lost = slot.and_then(|slot| slot.lost.as_ref());
    let lost = lost.map(|why| format!("nothing is kept for `{name}` any more ({why}) [{}]", Code::PgSlotLost));
    let kept = slot.filter(|slot| !slot.active && slot.lost.is_none() && slot.kept_bytes > KEPT_QUIETLY);
    let kept = kept.map(|slot| format!("`{name}` is away, and {} MiB are kept for it", slot.kept_bytes >> 20));
    paused.into_iter().chain(quiet).chain(lost).chain(kept).collect()
}

/// Who no longer keeps what this node has missed. Only the other side knows; one that does not answer changes nothing of what it
/// said last, which the database remembers.
async fn lost(here: &Here, (group, own): (&Group, &Seat), links: &Links) -> Result<Option<String>, Fault> {
    let before = group::known_lost(&own.client).await?;
    let mut found = None;
    for (name, id) in group.nodes.iter().filter(|(_, id)| **id != own.member.id) {
        let quiet = links.incoming.get(id).is_some_and(|link| !link.running && !link.paused);
        let known = before.contains(id);
        if !quiet && !known {
            continue;
        }
        let ask = async {
            let member = here.member(name, *id)?;
            let limits = Limits { connect: ASK, statement: ASK, lock: ASK };
            let client = Client::connect(&here.place(&member).ok()?, limits).await.ok()?;
            group::slot_lost(&client, *id, own.member.id).await.ok()
        };
        let lost = ask.await.map_or(known, |answer| answer.is_some());
        if lost != known {
            // Where nothing can be written it is asked again.
            let _ = group::note_lost(&own.client, *id, lost).await;
        }
        found = found.or_else(|| lost.then(|| name.clone()));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_can_offer_a_database_and_nothing_that_is_ours() {
        let offered = |database: &str, user: &str| {
            let verifier = "SCRAM-SHA-256$4096:c2FsdA==$c3RvcmVk:c2VydmVy".to_owned();
            let one = PoolInstance { database: database.to_owned(), user: user.to_owned(), verifier };
            one.may_be_offered(["app", "broker"].into_iter())
        };
        assert!(offered("d1", "u1") && offered("D-1", "U_1"));
        for user in ["postgres", "Postgres", "quorate", "quorate_console", "pg_monitor", "app", "APP", "", "a b", "all"]
        {
            assert!(!offered("d1", user), "{user:?}");
        }
        for database in
            ["pgbouncer", "PgBouncer", "postgres", "rdpg", "template1", "all", "replication", "", "d=1", "*"]
        {
            assert!(!offered(database, "u1"), "{database:?}");
        }
    }
}
