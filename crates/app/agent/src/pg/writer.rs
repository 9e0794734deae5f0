//! Keeps the place of the write master, or stands for it.
//!
//! **Invariant:** the door is held open no longer than a second before the lease ends, counted from before the renewal was
//! sent, on a clock that goes on while the machine sleeps. The fence closes it then, also if this task stands still.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use quorate_coordination::{LeaseId, Outcome};
use quorate_faults::{Code, Fault};
use quorate_plan::check::check_claim;
use quorate_plan::postgres::{
    Candidate, Cutoff, Records, Unconfirmed, Vacancy, WriterNote, WriterPlan, WriterSeen, keys, next_writer,
    note_candidate, position_text, take_writer,
};
use quorate_postgres::group::{self, Seat};
use quorate_postgres::sql::{Client, Limits};
use tracing::{info, warn};

use super::doors::Door;
use super::execute::group_of;
use super::fence::boot_now;
use super::here::DATABASE;
use super::lagging;
use super::life::Shared;
use super::observe;
use super::returning::{Applied, applied_here};
use crate::turn::in_words;

/// The fence acts so long before the lease ends.
const MARGIN: Duration = Duration::from_secs(1);
/// Between two looks while somebody else has the place.
const IDLE: Duration = Duration::from_millis(500);
/// Between two looks while nobody has it.
const VACANT: Duration = Duration::from_millis(25);
/// How long a question to the own server may take.
const PING: Duration = Duration::from_secs(1);
/// How long the parts of a planned handover may take: so long those wait who want to write. The lease is renewed meanwhile.
const PAUSE_LIMIT: Duration = Duration::from_millis(1000);
const CAUGHT_UP_LIMIT: Duration = Duration::from_millis(1500);
/// How long the subscription to the last writer may take to stop.
const SETTLE_LIMIT: Duration = Duration::from_secs(3);
/// How long the next write master may take to have its door open.
const TAKEN_LIMIT: Duration = Duration::from_secs(5);

/// The place, while we have it.
struct Held {
    lease: LeaseId,
    epoch: u64,
    /// Until when the store surely keeps it for us, by [`boot_now`].
    until: Duration,
    renew_at: Duration,
}

/// What became of a renewal.
enum Renewal {
    /// The place is ours, or was not before either.
    Kept,
    /// It is ours no more, and why.
    Lost(&'static str),
}

struct Keeper {
    shared: Arc<Shared>,
    held: Option<Held>,
    /// Whether it is known if an earlier agent of this node has the place.
    looked_back: bool,
    client: Option<Client>,
    vacant_since: Option<Instant>,
    well_at: Option<Instant>,
}

/// Keeps it until the node ends.
pub(super) async fn keep(shared: Arc<Shared>) {
    let mut keeper = Keeper { shared, held: None, looked_back: false, client: None, vacant_since: None, well_at: None };
    loop {
        let shared = Arc::clone(&keeper.shared);
        let woken = shared.changed.notified();
        if shared.ending.load(Ordering::Relaxed) {
            if let Err(fault) = keeper.end().await {
                warn!(code = %fault.code(), "write master: {}", in_words(&fault));
            }
            return;
        }
        if let Err(fault) = keeper.turn().await {
            warn!(code = %fault.code(), "write master: {}", in_words(&fault));
        }
        let pause = match (&keeper.held, keeper.vacant_since) {
            (Some(held), _) => held.renew_at.saturating_sub(boot_now()).min(IDLE),
            (None, Some(_)) => VACANT,
            (None, None) => IDLE,
        };
        tokio::select! {
            () = woken => {}
            () = tokio::time::sleep(pause) => {}
        }
    }
}

impl Keeper {
    fn ttl(&self) -> Duration {
        self.shared.here.pg.lease_ttl
    }

    /// An earlier agent of this node may have the place still: its lease is gone on with.
    async fn look_back(&mut self) -> Result<(), Fault> {
        let asked = boot_now();
        let entry = self.shared.store.get(keys::WRITER).await?;
        let writer = entry.as_ref().and_then(|entry| serde_json::from_slice::<WriterNote>(&entry.value).ok());
        self.looked_back = true;
        let Some(writer) = writer.filter(|writer| writer.node == self.shared.here.name()) else { return Ok(()) };
        let Some(lease) = entry.and_then(|entry| entry.lease) else { return Ok(()) };
        if let Some(ttl) = self.shared.store.renew(&lease).await? {
            info!(epoch = writer.epoch, "this node is still the write master");
            let until = asked + ttl;
            self.held = Some(Held { lease, epoch: writer.epoch, until, renew_at: asked + ttl / 4 });
            self.shared.doors.set(Door::Writer(until.saturating_sub(MARGIN))).await?;
        }
        Ok(())
    }

    async fn turn(&mut self) -> Result<(), Fault> {
        if !self.looked_back {
            self.look_back().await?;
        }
        let renewed = self.renew().await;
        let records = observe::records(&self.shared.store).await;
        let me = self.shared.here.name().to_owned();
        let members = records.as_ref().ok().and_then(|records| records.group.as_ref()).map(|(group, _)| &group.nodes);
        // Before there is a group nobody asks how well the server is.
        if records.is_ok() && members.is_none() {
            return renewed;
        }
        if members.is_some_and(|members| !members.contains_key(&me)) {
            self.give_up("this node is no member of the group").await?;
            return self.shared.doors.close().await;
        }
        let well = self.is_well().await;
        renewed?;
        let records = records?;
        // Rows that the writer does not have are not read here either.
        if records.divergence(&me).is_some() {
            self.give_up("this node holds changes that the writer does not have").await?;
            return self.shared.doors.close().await;
        }
        self.note_vacancy(&records);
        self.check_held(&records).await;
        let alive = observe::registered(&self.shared.store).await?.into_keys().collect();
        let vacant = match self.vacant_since {
            Some(since) => Vacancy::Free(since.elapsed()),
            None => Vacancy::Taken,
        };
        let seen = match vacant {
            Vacancy::Free(_) => self.position(&records).await,
            Vacancy::Taken => Applied::default(),
        };
        // What was not looked at yet is no reason to give up what an earlier agent of this node was found fit for.
        let unknown = !self.shared.looked.load(Ordering::SeqCst);
        let fit = self.shared.fit.load(Ordering::SeqCst) || (unknown && self.held.is_some());
        let seen = WriterSeen {
            holds: self.held.is_some(),
            well: well && fit && self.may_stand() && (seen.known || vacant == Vacancy::Taken),
            records,
            alive,
            vacant,
            applied: seen.last,
            link_held: seen.link_held,
            positions: seen.positions,
        };
        // The very first one is made by the bootstrap.
        if seen.records.last_writer.is_none() {
            return match self.shared.first.load(Ordering::Relaxed) {
                true => self.claim(&seen.records, &BTreeMap::new()).await,
                false => Ok(()),
            };
        }
        let plan = next_writer(&self.shared.here.pg, &me, &seen);
        if let Err(broken) = check_claim(&self.shared.here.pg, &me, &seen, &plan) {
            return Err(Fault::new(Code::Internal, "the claim of the writer lease breaks a rule and is not made")
                .caused_by(broken.join("; ")));
        }
        match plan {
            WriterPlan::Keep => Ok(()),
            WriterPlan::Follow => self.follow(&seen.records).await,
            WriterPlan::Stand(candidate) => self.stand(&candidate).await,
            WriterPlan::HoldLink(from) => self.hold_link(&seen.records, &from).await,
            WriterPlan::Claim(cutoffs) => self.claim(&seen.records, &cutoffs).await,
            WriterPlan::HandOver(to) => self.hand_over(&to).await,
            WriterPlan::GiveUp => self.give_up("the server does not answer").await,
        }
    }

    /// One that lacks rows for ever does not become the write master; one that is it already goes on.
    fn may_stand(&self) -> bool {
        self.held.is_some() || !self.shared.board.is_behind()
    }

    fn note_vacancy(&mut self, records: &Records) {
        // The very first one is made by the bootstrap, and is not waited for here.
        let had = records.last_writer.is_some();
        self.vacant_since = match (&records.writer, self.vacant_since) {
            (Some(_), _) => None,
            (None, _) if !had => None,
            (None, Some(since)) => Some(since),
            (None, None) => Some(Instant::now()),
        };
    }

    /// Somebody else may have the place by the store's word, whatever we believe.
    async fn check_held(&mut self, records: &Records) {
        let ours = |held: &Held| {
            records
                .writer
                .as_ref()
                .is_some_and(|(writer, _)| writer.epoch == held.epoch && writer.node == self.shared.here.name())
        };
        if self.held.as_ref().is_some_and(|held| !ours(held)) {
            self.lose("the store has somebody else in the place").await;
        }
    }

    async fn renew(&mut self) -> Result<(), Fault> {
        match self.try_renew().await? {
            Renewal::Kept => {}
            Renewal::Lost(why) => self.lose(why).await,
        }
        Ok(())
    }

    /// Renews the lease if it is due, and touches no door where it is lost.
    async fn try_renew(&mut self) -> Result<Renewal, Fault> {
        let Some(held) = &mut self.held else { return Ok(Renewal::Kept) };
        let asked = boot_now();
        if asked >= held.until.saturating_sub(MARGIN) {
            return Ok(Renewal::Lost("the lease could not be renewed in time"));
        }
        if asked < held.renew_at {
            return Ok(Renewal::Kept);
        }
        match self.shared.store.renew(&held.lease).await {
            Ok(Some(ttl)) => {
                held.until = asked + ttl;
                held.renew_at = asked + ttl / 4;
                let until = held.until.saturating_sub(MARGIN);
                self.shared.doors.renew(until)?;
                self.shared.board.renewed(until);
                Ok(Renewal::Kept)
            }
            Ok(None) => Ok(Renewal::Lost("the store ended the lease")),
            Err(fault) => {
                held.renew_at = asked + Duration::from_millis(100);
                Err(fault)
            }
        }
    }

    /// A round trip to the own server; one that fails once is asked again before it counts.
    async fn is_well(&mut self) -> bool {
        let asked = tokio::time::timeout(PING, async {
            let client = self.own().await?;
            client.value::<i32>("SELECT 1", &[]).await
        });
        match asked.await {
            Ok(Ok(_)) => self.well_at = Some(Instant::now()),
            Ok(Err(_)) | Err(_) => self.client = None,
        }
        self.well_at.is_some_and(|at| at.elapsed() < self.ttl())
    }

    async fn own(&mut self) -> Result<&Client, Fault> {
        if self.client.as_ref().is_none_or(Client::is_closed) {
            let limits = Limits { connect: PING, statement: Duration::from_secs(10), lock: PING };
            self.client = Some(self.shared.here.own(DATABASE, limits).await?);
        }
        self.client.as_ref().ok_or_else(|| Fault::new(Code::Internal, "a connection got lost"))
    }

    /// How far we have applied what the other members wrote, the last writer among them.
    async fn position(&mut self, records: &Records) -> Applied {
        match self.own().await {
            Ok(client) => applied_here(client, records).await.unwrap_or_default(),
            Err(_) => Applied::default(),
        }
    }

    /// Nothing more of the last writer is applied here until it is known who takes over.
    async fn hold_link(&mut self, records: &Records, from: &str) -> Result<(), Fault> {
        let Some(id) = records.number(from) else { return Ok(()) };
        group::settle_link(self.own().await?, id, SETTLE_LIMIT).await
    }

    async fn stand(&self, candidate: &Candidate) -> Result<(), Fault> {
        self.shared.store.txn(&note_candidate(self.shared.here.name(), candidate)).await.map(drop)
    }

    async fn claim(&mut self, records: &Records, cutoffs: &BTreeMap<String, Cutoff>) -> Result<(), Fault> {
        let asked = boot_now();
        let (lease, ttl) = self.shared.store.grant(self.ttl()).await?;
        let claimed = self.shared.store.txn(&take_writer(records, self.shared.here.name(), &lease, cutoffs)).await;
        match claimed {
            Ok(Outcome::Committed(_)) => {}
            Ok(Outcome::Conflict) => {
                let _ = self.shared.store.end(&lease).await;
                return Ok(());
            }
            Err(fault) => {
                // It may be ours all the same: given back, so that somebody who knows has it.
                let _ = self.shared.store.end(&lease).await;
                return Err(fault);
            }
        }
        let epoch = records.last_writer.as_ref().map_or(0, |(last, _)| last.epoch) + 1;
        let until = asked + ttl;
        info!(epoch, "this node is the write master");
        for (from, cutoff) in cutoffs {
            let applied = position_text(cutoff.applied);
            info!(epoch, from, applied, "recorded how far the old writer was applied");
        }
        self.held = Some(Held { lease, epoch, until, renew_at: asked + ttl / 4 });
        self.vacant_since = None;
        self.shared.doors.set(Door::Writer(until.saturating_sub(MARGIN))).await
    }

    /// Somebody else has the place, or nobody.
    async fn follow(&mut self, records: &Records) -> Result<(), Fault> {
        let writer = records.writer.as_ref().map(|(writer, _)| writer.node.clone());
        self.shared.doors.follow(writer.as_deref()).await
    }

    async fn lose(&mut self, why: &str) {
        let Some(held) = self.held.take() else { return };
        warn!(epoch = held.epoch, "this node is no longer the write master: {why}");
        if let Err(fault) = self.shared.doors.set(Door::Reader).await {
            warn!(code = %fault.code(), "{}", in_words(&fault));
        }
    }

    async fn give_up(&mut self, why: &str) -> Result<(), Fault> {
        let lease = self.held.as_ref().map(|held| held.lease.clone());
        // Closed first, then given away.
        self.lose(why).await;
        match lease {
            Some(lease) => self.shared.store.end(&lease).await,
            None => Ok(()),
        }
    }

    /// The node ends: whoever has everything and is well takes the place; if nobody does, it is given back.
    async fn end(&mut self) -> Result<(), Fault> {
        if self.held.is_none() {
            return Ok(());
        }
        let records = observe::records(&self.shared.store).await?;
        let alive = observe::registered(&self.shared.store).await?;
        let me = self.shared.here.name().to_owned();
        let may = |name: &str| name != me && records.number(name).is_some() && !records.is_out(name);
        let next = alive.into_keys().find(|name| may(name));
        if let Some(next) = next
            && let Err(fault) = self.hand_over(&next).await
        {
            warn!(code = %fault.code(), "the write master: {}", in_words(&fault));
        }
        self.give_up("this node ends").await
    }

    /// Hands the place over: no transaction is lost, none fails; new ones wait for the next write master.
    async fn hand_over(&mut self, to: &str) -> Result<(), Fault> {
        info!(to, "handing over");
        self.shared.board.change(|status| status.handover = None);
        let begun = Instant::now();
        if let Err(fault) = self.give(to).await {
            let why = in_words(&fault);
            warn!(code = %fault.code(), "nothing is handed over: {why}");
            self.shared.board.change(|status| status.handover = Some(why));
            // Whether those who wait may write is for the door to say, which is a reader's if the place was lost meanwhile.
            if let Err(fault) = self.renew_now().await {
                warn!(code = %fault.code(), "write master: {}", in_words(&fault));
            }
            self.shared.doors.go_on().await?;
            return self.forget_order(&observe::records(&self.shared.store).await?).await;
        }
        let taken = self.wait_taken(to).await;
        self.shared.doors.forward(taken.as_deref()).await?;
        info!(to, took = ?begun.elapsed(), "handed over");
        Ok(())
    }

    /// Gives the place to a node that has everything. An error: it was not given.
    async fn give(&mut self, to: &str) -> Result<(), Fault> {
        let unconfirmed = self.prepare_handover(to).await?;
        let records = observe::records(&self.shared.store).await?;
        let me = self.shared.here.name().to_owned();
        let ours = |held: &Held| matches!(&records.writer, Some((now, _)) if now.epoch == held.epoch && now.node == me);
        if !self.held.as_ref().is_some_and(ours) {
            self.lose("the store has somebody else in the place").await;
        }
        let txn =
            self.held.as_ref().and_then(|_| lagging::handover(&records, to, &unconfirmed).transpose()).transpose()?;
        let (Some(txn), Some(held)) = (txn, self.held.take()) else { return Err(lost_meanwhile()) };
        let given = self.shared.store.txn(&txn).await;
        let _ = self.shared.store.end(&held.lease).await;
        if let Err(fault) = given {
            // It may be given all the same, and it ends with its lease in any case: whoever takes it is found.
            warn!(code = %fault.code(), "{}", in_words(&fault));
        }
        Ok(())
    }

    /// The door waits, nobody writes, and the other node has everything. Returns what other members do not have.
    async fn prepare_handover(&mut self, to: &str) -> Result<Unconfirmed, Fault> {
        let here = self.shared.here.clone();
        let (records, group) = group_of(&self.shared).await?;
        let number = |name: &str| group.nodes.get(name).and_then(|id| here.member(name, *id));
        let (Some(me), Some(next)) = (number(here.name()), number(to)) else {
            return Err(Fault::new(Code::PgSwitchover, format!("`{to}` is no member of the group")));
        };
        // Nobody waits at the door for one that is gone and not yet missed.
        if !here.is(to, "reader").await {
            return Err(Fault::new(Code::PgSwitchover, format!("`{to}` does not answer, or takes no reads")));
        }
        lagging::check_target(&here, &records, &next).await?;
        let limits = Limits { connect: PING, statement: CAUGHT_UP_LIMIT, lock: PING };
        let client = here.own(DATABASE, limits).await?;
        // From here on somebody waits: the whole time of the lease is there.
        self.renew_now().await?;
        let shared = Arc::clone(&self.shared);
        // The pooler lets transactions end and keeps the next ones waiting.
        self.kept(shared.doors.pause(&client, PAUSE_LIMIT)).await?;
        let seat = Seat { member: me, client };
        let shared = Arc::clone(&self.shared);
        let unconfirmed = self.kept(lagging::settle_members(&shared, &seat, &next, CAUGHT_UP_LIMIT)).await?;
        self.renew_now().await?;
        Ok(unconfirmed)
    }

    /// Renews the lease whether it is due or not.
    async fn renew_now(&mut self) -> Result<(), Fault> {
        if let Some(held) = &mut self.held {
            held.renew_at = Duration::ZERO;
        }
        self.renew().await?;
        if self.held.is_some() { Ok(()) } else { Err(lost_meanwhile()) }
    }

    /// Does something that takes its time and renews the lease meanwhile; once that is lost it is given up.
    async fn kept<T>(&mut self, work: impl Future<Output = Result<T, Fault>>) -> Result<T, Fault> {
        let why = {
            let mut work = std::pin::pin!(work);
            loop {
                let held = self.held.as_ref().ok_or_else(lost_meanwhile)?;
                // Also where it cannot be renewed: then the door's time ends the work.
                let due = held.renew_at.min(held.until.saturating_sub(MARGIN)).saturating_sub(boot_now());
                tokio::select! {
                    done = &mut work => return done,
                    () = tokio::time::sleep(due) => {}
                }
                match self.try_renew().await {
                    Ok(Renewal::Kept) => {}
                    Ok(Renewal::Lost(why)) => break why,
                    Err(fault) => warn!(code = %fault.code(), "write master: {}", in_words(&fault)),
                }
            }
        };
        // The work has let go of the door: now it can be closed.
        self.lose(why).await;
        Err(lost_meanwhile())
    }

    async fn forget_order(&self, records: &Records) -> Result<(), Fault> {
        let Some((_, revision)) = &records.order else { return Ok(()) };
        self.shared.store.delete_unchanged(keys::ORDER, *revision).await.map(drop)
    }

    /// Waits until somebody has the place, and its door is open; says who.
    async fn wait_taken(&self, to: &str) -> Option<String> {
        let deadline = Instant::now() + TAKEN_LIMIT;
        let mut taken = None;
        while Instant::now() < deadline {
            if let Ok(records) = observe::records(&self.shared.store).await {
                taken = records.writer.map(|(writer, _)| writer.node);
            }
            let by = taken.as_deref().unwrap_or(to);
            if taken.is_some() && self.shared.here.is(by, "writer").await {
                return taken;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        taken
    }
}

fn lost_meanwhile() -> Fault {
    Fault::new(Code::PgSwitchover, "the place of the write master was lost meanwhile")
}
