//! Letting a node go, whether it answers or not.
//!
//! **Invariant:** when it returns, no survivor keeps its log for the node, and none follows it. Of a node that answers nothing is
//! dropped before every survivor has what was written there, and nobody writes there any more.

use std::time::Duration;

use quorate_faults::{Code, Fault};

use super::go_on;
use super::journal::{Journal, Kind, Record, Step};
use crate::group::{
    Member, Seat, caught_up, drop_link, end_sessions, forget_member, link_name, mark_left, slot_lost,
    subscription_exists,
};
use crate::sql::{Client, literal};

/// Whether this node may be let go now: nothing else is under way. Asks nobody but the journal.
pub async fn may_detach<J: Journal>(journal: &J, node: u16) -> Result<(), Fault> {
    open_of(journal, node).await.map(drop)
}

/// What was begun with this node and is not finished.
async fn open_of<J: Journal>(journal: &J, node: u16) -> Result<Option<Record>, Fault> {
    let open = Record::load(journal).await?.filter(|record| record.step != Step::Done);
    match open {
        Some(record) if record.node != node => {
            Err(Fault::new(Code::PgChangeUnderWay, format!("{} is not finished", record.shown()))
                .hint(record.way_out()))
        }
        open => Ok(open),
    }
}

/// Lets a node go. `gone`: with a connection to it, if it answers; `survivors`: every other member; `limit`: how long these may take
/// to get what it wrote. May be called again. A join of the very node that is not finished is given up. Returns what was done.
pub async fn detach<J: Journal>(
    journal: &J,
    (gone, gone_client): (&Member, Option<Client>),
    survivors: &[Seat],
    limit: Duration,
) -> Result<Vec<String>, Fault> {
    if survivors.iter().any(|seat| seat.member.id == gone.id) {
        return Err(Fault::new(Code::PgChangeUnderWay, format!("`{}` cannot be both let go and kept", gone.name)));
    }
    let mut done = Vec::new();
    let open = open_of(journal, gone.id).await?;
    // One that was never taken in whole has nothing that nobody else has.
    let joins = open.as_ref().is_some_and(|record| record.kind == Kind::Join);
    let again = open.is_some() && !joins;
    if let Some(record) = open.filter(|_| joins)
        && let Some(donor) = go_on(&record, survivors).await?
    {
        done.push(format!("{} is given up; the links of `{donor}` go on", record.shown()));
    }
    let mut record = Record {
        kind: Kind::Detach,
        node: gone.id,
        name: gone.name.clone(),
        donor: 0,
        step: Step::Preparing,
        system: String::new(),
        positions: Default::default(),
    };
    journal.save(&record.write()?).await?;
    if let Some(client) = gone_client {
        let seat = Seat { member: gone.clone(), client };
        match if joins { Ok(Vec::new()) } else { hand_out(&seat, survivors, limit).await } {
            Ok(said) => done.extend(said),
            Err(fault) => {
                // Nothing was changed, unless by an earlier call: then that is to be finished.
                if !again {
                    record.step = Step::Done;
                    journal.save(&record.write()?).await?;
                }
                return Err(fault);
            }
        }
        let client = &seat.client;
        // While it lives it would take its slots again every half a second.
        for seat in survivors {
            if drop_subscription(client, gone.id, seat.member.id).await? {
                done.push(format!("`{}` follows `{}` no more", gone.name, seat.member.name));
            }
        }
        for seat in survivors {
            drop_slot(client, &link_name(gone.id, seat.member.id)).await?;
        }
    }
    for seat in survivors {
        if drop_subscription(&seat.client, seat.member.id, gone.id).await? {
            done.push(format!("`{}` follows `{}` no more", seat.member.name, gone.name));
        }
        if drop_slot(&seat.client, &link_name(seat.member.id, gone.id)).await? {
            done.push(format!("`{}` keeps nothing for `{}` any more", seat.member.name, gone.name));
        }
        for name in left_by_copies(&seat.client, gone.id).await? {
            drop_slot(&seat.client, &name).await?;
        }
        forget_member(&seat.client, gone.id).await?;
    }
    record.step = Step::Done;
    journal.save(&record.write()?).await?;
    Ok(done)
}

/// Has a node that leaves take no writes any more, and everyone else get what it took. Where they do not, it stays a member and takes
/// writes again. Returns what is to be known.
async fn hand_out(gone: &Seat, survivors: &[Seat], limit: Duration) -> Result<Vec<String>, Fault> {
    mark_left(&gone.client, true).await?;
    let handed = async {
        // What had begun before may not end later.
        end_sessions(&gone.client, limit).await?;
        let mut said = Vec::new();
        for seat in survivors {
            match kept_for(gone, &seat.member).await? {
                true => caught_up(gone, &seat.member, limit).await?,
                false => said.push(format!("`{}` keeps nothing for `{}`", gone.member.name, seat.member.name)),
            }
        }
        Ok::<_, Fault>(said)
    };
    match handed.await {
        Ok(said) => Ok(said),
        Err(fault) => {
            // One that cannot be told now refuses writes until it is let go.
            let _ = mark_left(&gone.client, false).await;
            let attempt = format!("the others do not get what `{}` wrote, so it stays", gone.member.name);
            Err(Fault::new(fault.code(), attempt)
                .hint("mend the links that `quorate pg status` shows; to let it go without its last rows, stop it first: `quorate pg stop`")
                .caused_by(fault))
        }
    }
}

/// Whether a node keeps what another one has not confirmed yet.
async fn kept_for(from: &Seat, to: &Member) -> Result<bool, Fault> {
    let sql = "SELECT EXISTS (SELECT FROM pg_catalog.pg_replication_slots WHERE slot_name = $1)";
    let there: bool = from.client.value(sql, &[&link_name(from.member.id, to.id)]).await?;
    Ok(there && slot_lost(&from.client, from.member.id, to.id).await?.is_none())
}

/// Drops a subscription without asking its publisher, which may be gone.
async fn drop_subscription(client: &Client, me: u16, from: u16) -> Result<bool, Fault> {
    if !subscription_exists(client, from).await? {
        return Ok(false);
    }
    let name = link_name(from, me);
    drop_link(client, &name).await?;
    Ok(true)
}

/// Slots that copies of tables left behind: their names end with what tells the node's data dir from every other.
async fn left_by_copies(client: &Client, gone: u16) -> Result<Vec<String>, Fault> {
    let sql = "SELECT slot_name::text FROM pg_catalog.pg_replication_slots WHERE slot_name ~ '^pg_[0-9]+_sync_[0-9]+_[0-9]+$' \
               AND split_part(slot_name::text, '_', 5) IN (SELECT system_id FROM mesh.slots WHERE node_id = $1)";
    client.values(sql, &[&i32::from(gone)]).await
}

/// Drops a slot, and ends whoever holds it: in one loop on the server, because a node behind a partition comes back for it.
async fn drop_slot(client: &Client, name: &str) -> Result<bool, Fault> {
    let sql = "SELECT EXISTS (SELECT FROM pg_catalog.pg_replication_slots WHERE slot_name = $1)";
    if !client.value::<bool>(sql, &[&name]).await? {
        return Ok(false);
    }
    let drop = format!(
        "DO $drop$ DECLARE r record; BEGIN FOR i IN 1..100 LOOP \
         FOR r IN SELECT slot_name, active_pid FROM pg_catalog.pg_replication_slots WHERE slot_name = {0} LOOP BEGIN \
         IF r.active_pid IS NOT NULL THEN PERFORM pg_catalog.pg_terminate_backend(r.active_pid, 1000); END IF; \
         PERFORM pg_catalog.pg_drop_replication_slot(r.slot_name); \
         EXCEPTION WHEN object_in_use THEN NULL; WHEN undefined_object THEN NULL; END; END LOOP; \
         EXIT WHEN NOT EXISTS (SELECT FROM pg_catalog.pg_replication_slots WHERE slot_name = {0}); \
         PERFORM pg_catalog.pg_sleep(0.05); END LOOP; END $drop$",
        literal(name)
    );
    client.batch(&drop).await?;
    if client.value::<bool>(sql, &[&name]).await? {
        return Err(Fault::new(
            Code::PgTimeout,
            format!("slot `{name}` on `{}` is taken again and again", client.node()),
        )
        .hint("stop PostgreSQL of the node that is to go, or cut it off, and call it again"));
    }
    Ok(true)
}
