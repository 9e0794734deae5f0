//! Taking a node into a group that has data and takes writes, and letting one go.
//!
//! The order of a join is the proof of it: the others subscribe to the new node while it is empty; every peer keeps its log
//! for it from then on; the donor catches up with the peers, stops applying their changes and so stands at one exact place in
//! each of their logs; its rows are copied; it goes on; and the new node follows each peer from that very place. Nobody's
//! writes wait, only the donor's links pause.
//!
//! **Invariant:** each step is written down before the first change that it makes, so that whoever comes next can finish it.

mod detach;
mod journal;

use std::collections::BTreeMap;
use std::time::Duration;

use quorate_faults::{Code, Fault};
use tokio::time::Instant;

pub use detach::{detach, may_detach};
use journal::Record;
pub use journal::{Journal, JournalSeen, Kind, MemoryJournal, Step, unfinished};

use crate::group::{
    Member, Seat, Start, caught_up, ensure_slot, ensure_subscription, has_rows, link_name, pause_link, resume_link,
    round_trip, slot_is_for, subscription_exists, system_id,
};
use crate::schema::{apply_gate, replay};
use crate::sql::Client;

/// Between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Who joins, and whose rows it gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoinOrder {
    /// The new node.
    pub node: String,
    /// The one whose rows are copied, and whose links pause meanwhile.
    pub donor: String,
}

/// How long steps may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JoinLimits {
    /// The copy of all rows.
    pub copy: Duration,
    /// Every other wait.
    pub step: Duration,
}

/// What became of a join.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Joined {
    /// How long the donor's links were paused, if it was in this call.
    pub paused: Option<Duration>,
    /// How many tables there are.
    pub tables: u32,
}

/// Takes a node in. `seats`: every member, the new one too, and all of them know it ([`crate::group::ensure_member`]).
///
/// Called again after a kill, it goes on where it stood.
pub async fn join<J: Journal>(
    journal: &J,
    order: &JoinOrder,
    seats: &[Seat],
    limits: JoinLimits,
    mut tell: impl FnMut(&str),
) -> Result<Joined, Fault> {
    let parts = Parts::new(order, seats)?;
    let mut record = begin(journal, &parts).await?;
    let mut joined = Joined::default();
    let mut paused_at = None;
    loop {
        match record.step {
            Step::Preparing => {
                tell("the new node gets the schema, and everyone a slot");
                parts.prepare(limits.step).await?;
            }
            Step::Pausing => {
                tell("the donor's links pause");
                paused_at = Some(Instant::now());
                record.positions = parts.pause(limits.step).await?;
            }
            Step::Copying => {
                tell("rows are copied");
                joined.tables = parts.copy(limits.copy).await?;
            }
            Step::Resuming => {
                tell("the donor's links go on");
                parts.resume().await?;
                joined.paused = paused_at.map(|at| at.elapsed());
            }
            Step::Following => {
                tell("the new node follows every peer");
                parts.follow(&record.positions).await?;
                apply_gate(seats, limits.step).await?;
                round_trip(seats, limits.step).await?;
            }
            Step::Done => return Ok(joined),
        }
        record.step = record.step.next();
        journal.save(&record.write()?).await?;
    }
}

/// Lets the links of a join's donor go on, whose new node is lost. Returns the donor's name; `None`: it has left since.
async fn go_on(record: &Record, survivors: &[Seat]) -> Result<Option<String>, Fault> {
    let Some(donor) = survivors.iter().find(|seat| seat.member.id == record.donor) else { return Ok(None) };
    for peer in survivors.iter().filter(|seat| seat.member.id != record.donor) {
        set_enabled(donor, &peer.member, true).await?;
    }
    Ok(Some(donor.member.name.clone()))
}

async fn begin<J: Journal>(journal: &J, parts: &Parts<'_>) -> Result<Record, Fault> {
    let (new, donor) = (&parts.new.member, &parts.donor.member);
    if let Some(record) = Record::load(journal).await? {
        if record.kind == Kind::Join && record.node == new.id && record.system == system_id(&parts.new.client).await? {
            if record.step == Step::Done || record.donor == donor.id {
                return Ok(record);
            }
            return Err(Fault::new(Code::PgChangeUnderWay, "this join was begun with another donor")
                .hint(format!("go on with node {} as the donor", record.donor)));
        }
        if record.step != Step::Done {
            return Err(Fault::new(Code::PgChangeUnderWay, format!("{} is not finished", record.shown()))
                .hint(record.way_out()));
        }
    }
    if has_rows(&parts.new.client).await? {
        return Err(Fault::new(Code::PgNotEmpty, format!("`{}` holds rows already", new.name))
            .hint("only an empty node can join: begin with an empty data dir"));
    }
    let record = Record {
        kind: Kind::Join,
        node: new.id,
        name: new.name.clone(),
        donor: donor.id,
        step: Step::Preparing,
        system: system_id(&parts.new.client).await?,
        positions: BTreeMap::new(),
    };
    journal.save(&record.write()?).await?;
    Ok(record)
}

fn missing(who: &str) -> Fault {
    Fault::new(Code::PgSilent, format!("{who} does not answer")).hint("every member has to take part in a join")
}

struct Parts<'a> {
    new: &'a Seat,
    donor: &'a Seat,
    /// All but the new node and the donor.
    peers: Vec<&'a Seat>,
}

impl<'a> Parts<'a> {
    fn new(order: &JoinOrder, seats: &'a [Seat]) -> Result<Parts<'a>, Fault> {
        let find = |name: &str| {
            seats.iter().find(|seat| seat.member.name == name).ok_or_else(|| missing(&format!("`{name}`")))
        };
        let (new, donor) = (find(&order.node)?, find(&order.donor)?);
        if new.member.id == donor.member.id {
            return Err(Fault::new(Code::PgNotEmpty, "a node cannot get its own rows").hint("name another donor"));
        }
        let peers = seats.iter().filter(|seat| ![new.member.id, donor.member.id].contains(&seat.member.id)).collect();
        Ok(Parts { new, donor, peers })
    }

    async fn prepare(&self, limit: Duration) -> Result<(), Fault> {
        replay(&self.donor.client, &self.new.client).await?;
        let system = system_id(&self.new.client).await?;
        for other in self.peers.iter().chain([&self.donor]) {
            if !slot_is_for(self.new, other).await? {
                ensure_slot(self.new, &other.member, &system_id(&other.client).await?).await?;
            }
            ensure_subscription(&other.client, &self.new.member, Start::Changes).await?;
        }
        for other in self.peers.iter().chain([&self.donor]) {
            if !slot_is_for(other, self.new).await? {
                ensure_slot(other, &self.new.member, &system).await?;
            }
        }
        for peer in &self.peers {
            caught_up(peer, &self.donor.member, limit).await?;
        }
        Ok(())
    }

    /// Stops the donor's links, and says where it stands in each peer's log.
    async fn pause(&self, limit: Duration) -> Result<BTreeMap<u16, String>, Fault> {
        for peer in &self.peers {
            set_enabled(self.donor, &peer.member, false).await?;
        }
        let mut positions = BTreeMap::new();
        for peer in &self.peers {
            let name = link_name(peer.member.id, self.donor.member.id);
            self.wait_quiet(&name, limit).await?;
            let sql = "SELECT o.remote_lsn::text FROM pg_catalog.pg_replication_origin_status o \
                       JOIN pg_catalog.pg_subscription s ON o.external_id = 'pg_' || s.oid WHERE s.subname = $1";
            let row = self.donor.client.opt(sql, &[&name]).await?;
            let at: Option<String> = row.map(|row| self.donor.client.read(&row, 0)).transpose()?.flatten();
            // One that never brought a change has no place: then the slot's own beginning is right.
            if let Some(at) = at.filter(|at| at != "0/0") {
                positions.insert(peer.member.id, at);
            }
        }
        Ok(positions)
    }

    async fn wait_quiet(&self, name: &str, limit: Duration) -> Result<(), Fault> {
        let begun = Instant::now();
        let sql = "SELECT count(*) FROM pg_catalog.pg_stat_subscription WHERE subname = $1 AND pid IS NOT NULL";
        while self.donor.client.value::<i64>(sql, &[&name]).await? > 0 {
            if begun.elapsed() >= limit {
                return Err(Fault::new(Code::PgTimeout, format!("link `{name}` does not pause within {limit:?}"))
                    .hint("call it again; a long transaction may be holding it"));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        Ok(())
    }

    async fn copy(&self, limit: Duration) -> Result<u32, Fault> {
        let (new, begun) = (&self.new.client, Instant::now());
        ensure_subscription(new, &self.donor.member, Start::Copy).await?;
        let name = link_name(self.donor.member.id, self.new.member.id);
        loop {
            let sql = "SELECT count(*) FILTER (WHERE r.srsubstate <> 'r'), count(*) FROM pg_catalog.pg_subscription s \
                       JOIN pg_catalog.pg_subscription_rel r ON r.srsubid = s.oid WHERE s.subname = $1";
            let row = new.one(sql, &[&name]).await?;
            let (waiting, all): (i64, i64) = (new.read(&row, 0)?, new.read(&row, 1)?);
            if waiting == 0 && all > 0 {
                return Ok(u32::try_from(all).unwrap_or(u32::MAX));
            }
            if begun.elapsed() >= limit {
                return Err(Fault::new(
                    Code::PgTimeout,
                    format!("the copy is not finished after {limit:?}; {waiting} tables are left"),
                )
                .hint(
                    "call it again: the copy goes on meanwhile; the log of PostgreSQL of the new node tells of errors",
                ));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    async fn resume(&self) -> Result<(), Fault> {
        for peer in &self.peers {
            set_enabled(self.donor, &peer.member, true).await?;
        }
        Ok(())
    }

    async fn follow(&self, positions: &BTreeMap<u16, String>) -> Result<(), Fault> {
        let new = &self.new.client;
        for peer in &self.peers {
            if !subscription_exists(new, peer.member.id).await? {
                ensure_subscription(new, &peer.member, Start::Disabled).await?;
            }
            let name = link_name(peer.member.id, self.new.member.id);
            // One that went on once has a place of its own, also if an error has stopped it since.
            if !is_paused(new, &name).await? {
                continue;
            }
            if let Some(at) = positions.get(&peer.member.id) {
                new.execute("SELECT mesh.start_at($1, $2::text::pg_lsn)", &[&name, at]).await?;
            }
            set_enabled(self.new, &peer.member, true).await?;
        }
        Ok(())
    }
}

async fn is_paused(client: &Client, name: &str) -> Result<bool, Fault> {
    client.value("SELECT EXISTS (SELECT FROM mesh.paused WHERE subname = $1)", &[&name]).await
}

/// Lets the link from a member go on or stand still, if there is one.
async fn set_enabled(seat: &Seat, from: &Member, enabled: bool) -> Result<(), Fault> {
    if !subscription_exists(&seat.client, from.id).await? {
        return Ok(());
    }
    let name = link_name(from.id, seat.member.id);
    match enabled {
        true => resume_link(&seat.client, &name).await,
        false => pause_link(&seat.client, &name).await,
    }
}
