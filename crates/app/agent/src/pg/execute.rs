//! Takes one step. Each looks before it acts and may be repeated.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::try_join_all;
use quorate_coordination::{Health, Instance, Outcome, Txn};
use quorate_faults::{Code, Fault};
use quorate_host::state::StateDir;
use quorate_plan::postgres::{
    Group, PgStep, Records, SchemaNote, note_bound, note_joined, note_schema, take_group, take_lead,
};
use quorate_plan::spec::PgRole;
use quorate_postgres::group::{self, Member, Prepare, Seat};
use quorate_postgres::schema;
use quorate_postgres::server::{self, DataSeen, observe_data};
use quorate_postgres::sql::{Client, Place};

use super::background::end_part;
use super::boxed::server_box;
use super::here::{DATABASE, Here};
use super::lagging;
use super::life::{Life, Shared, state_of};
use super::observe::{self, SERVICE};
use super::proxy::running;
use super::returning;
use super::upkeep::ensure_server_files;

/// How long a node stays registered without a word.
const REGISTERED: Duration = Duration::from_secs(5);
/// How long the lock of the bootstrap is waited for at a time.
const LOCK_WAIT: Duration = Duration::from_secs(5);
/// How long the holder of the lock keeps it without a word.
const LOCK_TTL: Duration = Duration::from_secs(5);
/// Every how often it is looked whether a server that is being started has ended.
const ENDED_EVERY: Duration = Duration::from_millis(250);
/// Every how often it is looked whether the first write master is there, where no change in the store tells.
const AGAIN: Duration = Duration::from_millis(250);

impl Life {
    pub(super) async fn take(&mut self, step: PgStep) -> Result<(), Fault> {
        let shared = Arc::clone(&self.shared);
        match step {
            PgStep::InitData => init_data(&shared.here).await,
            PgStep::StartServer => start_server(&shared.here, Network::Open).await,
            PgStep::StartIsolated => start_server(&shared.here, Network::Isolated).await,
            PgStep::EndIsolation => {
                stop_server(&shared.here, "the agent: this node takes part again").await?;
                start_server(&shared.here, Network::Open).await
            }
            PgStep::HoldLink { from, unordered } => {
                let order = if unordered { group::Order::Unknown } else { group::Order::Known };
                returning::hold(&shared, &from, order).await
            }
            PgStep::TakeRows { writer, skip } => self.take_rows(writer, skip).await,
            PgStep::ConfirmFloor { from } => lagging::confirm_floor(&shared, &from).await,
            PgStep::ReleaseLink { from } => returning::release(&shared, &from).await,
            PgStep::ClearCutoff { epoch } => returning::clear_cutoff(&shared, epoch).await,
            PgStep::NoteDiverged(diverged) => returning::note_diverged(&shared, &diverged).await,
            PgStep::CompareRows => returning::compare_rows(&shared).await,
            PgStep::ReplaceData => {
                self.prepared = false;
                returning::replace_data(&shared).await?;
                // Others see that it is bound to no group.
                self.register().await
            }
            PgStep::Prepare => {
                prepare(&shared.here).await?;
                self.prepared = true;
                Ok(())
            }
            PgStep::Register => self.register().await,
            PgStep::TakeLock => self.take_lock().await,
            PgStep::Lead { epoch } => {
                let fence = self.lock.as_ref().map(|(_, lock)| lock.fence());
                let records = observe::records(&shared.store).await?;
                let leads = records.leader.as_ref().map_or(0, |(leader, _)| leader.epoch);
                // Somebody was faster.
                if leads + 1 != epoch {
                    return Ok(());
                }
                write(&shared, &take_lead(&records, shared.here.name(), epoch, fence)).await
            }
            PgStep::CreateGroup { epoch, id, nodes } => {
                let records = observe::records(&shared.store).await?;
                if !leads(&records, shared.here.name(), epoch) {
                    return Ok(());
                }
                let id = id.map_or_else(super::fence::fresh_token, Ok)?;
                let last_id = nodes.values().copied().max().unwrap_or_default();
                write(&shared, &take_group(&records, &Group { id, nodes, last_id, epoch })).await
            }
            PgStep::ReleaseLock => match self.lock.take() {
                Some((_lease, lock)) => lock.release().await,
                None => Ok(()),
            },
            PgStep::Bind { group } => {
                bind(&shared, &group).await?;
                // Pooler and proxy come up beside the links; whether they did is seen when it is their turn.
                let early = Arc::clone(&shared);
                self.early.spawn(async move {
                    let _ = early.doors.ensure().await;
                });
                // Others see which group it is bound to.
                self.register().await
            }
            PgStep::Link { .. } => link(&shared).await,
            PgStep::NoteLinked { group } => {
                let records = observe::records(&shared.store).await?;
                write(&shared, &note_joined(&records, shared.here.name(), &group)).await
            }
            PgStep::LaySchema { epoch } => lay_schema(&shared, epoch).await,
            PgStep::ClaimWriter => claim_first(&shared).await,
            PgStep::Configure => shared.doors.ensure().await,
            PgStep::Offer => self.offer().await,
        }
    }

    async fn register(&mut self) -> Result<(), Fault> {
        let here = &self.shared.here;
        let bound = match here.own(DATABASE, here.limits()).await {
            Ok(client) => group::myself(&client).await?.map(|myself| myself.group),
            Err(_) => None,
        };
        let meta = [("group".to_owned(), bound.unwrap_or_default())].into();
        let instance = instance(here, SERVICE, here.node.port, meta);
        self.registration = Some(self.shared.store.register(&instance, Health::Passing, REGISTERED).await?);
        Ok(())
    }

    async fn offer(&mut self) -> Result<(), Fault> {
        let here = &self.shared.here;
        self.offered.clear();
        for (service, port) in [("pgbouncer", here.node.pooler_port), ("haproxy", here.node.write_port)] {
            let instance = instance(here, service, port, Default::default());
            self.offered.push(self.shared.store.register(&instance, Health::Passing, REGISTERED).await?);
        }
        Ok(())
    }

    async fn take_lock(&mut self) -> Result<(), Fault> {
        self.lock = None;
        let lease = self.shared.store.lease(LOCK_TTL).await?;
        let holder = format!("node {}", self.shared.here.name());
        let locked = tokio::select! {
            locked = self.shared.store.lock("bootstrap", &lease, &holder, LOCK_WAIT) => locked,
            // Whoever had it has done what it is for.
            () = written_down(&self.shared) => Err(Fault::new(Code::LockTaken, "the group is written down")),
        };
        match locked {
            Ok(lock) => {
                self.lock = Some((lease, lock));
                Ok(())
            }
            Err(fault) => {
                // Whatever became of the attempt ends with its lease.
                let _ = lease.end().await;
                if fault.code() == Code::LockTaken { Ok(()) } else { Err(fault) }
            }
        }
    }
}

/// Waits until the group is written down.
async fn written_down(shared: &Shared) {
    loop {
        let woken = shared.changed.notified();
        if observe::records(&shared.store).await.is_ok_and(|records| records.group.is_some()) {
            return;
        }
        tokio::select! {
            () = woken => {}
            () = tokio::time::sleep(LOCK_WAIT) => {}
        }
    }
}

fn instance(here: &Here, service: &str, port: u16, meta: std::collections::BTreeMap<String, String>) -> Instance {
    Instance { service: service.to_owned(), id: here.name().to_owned(), address: here.node.address.clone(), port, meta }
}

fn leads(records: &Records, me: &str, epoch: u64) -> bool {
    records.leader.as_ref().is_some_and(|(leader, _)| leader.node == me && leader.epoch == epoch)
}

/// A write that depends on what was seen; if that has changed, the next look tells.
pub(super) async fn write(shared: &Shared, txn: &Txn) -> Result<(), Fault> {
    match shared.store.txn(txn).await? {
        Outcome::Committed(_) | Outcome::Conflict => Ok(()),
    }
}

/// Work that blocks, on a thread of its own.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Fault> + Send + 'static,
) -> Result<T, Fault> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => Err(Fault::new(Code::Internal, "a part of the agent came to a halt").caused_by(error)),
    }
}

/// Data dir and server, where there is no data yet: whether a server that has data may connect to other nodes is for the store to
/// say.
pub(super) async fn bring_server(here: &Here) -> Result<(), Fault> {
    if !matches!(observe_data(&here.data_dir()), DataSeen::Absent | DataSeen::Empty) {
        return Ok(());
    }
    init_data(here).await?;
    start_server(here, Network::Open).await
}

/// Whether a server connects to other nodes, and they to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Network {
    Open,
    Isolated,
}

/// Stops the server in order.
pub(super) async fn stop_server(here: &Here, why: &'static str) -> Result<(), Fault> {
    let here = here.clone();
    blocking(move || end_part(&here, "server", why).map(drop)).await
}

async fn init_data(here: &Here) -> Result<(), Fault> {
    let here = here.clone();
    blocking(move || {
        let installation = here.installation()?;
        server::ensure_data(&installation, &here.data_dir(), &here.mark(), here.owner()?).map(drop)
    })
    .await
}

async fn start_server(own: &Here, network: Network) -> Result<(), Fault> {
    let here = own.clone();
    blocking(move || {
        // Before the configuration, which names what was given.
        here.ensure_given()?;
        let config = match network {
            Network::Open => here.server()?,
            Network::Isolated => here.isolated_server()?,
        };
        let installation = here.installation()?;
        let data = here.data_dir();
        server::ensure_config(&data, &config, installation.version)?;
        let state = StateDir::open(&state_of(&here, "server"))?;
        let orders = server::server_orders(&installation, &data, state.path());
        server::start(&here.program, &state, &orders, server_box(&here, &installation, &config)?).map(drop)
    })
    .await?;
    let place = Place::own(&own.server()?, "postgres");
    tokio::select! {
        ready = server::wait_ready(&place, own.pg.step_timeout) => ready.map(drop),
        () = server_ended(own) => Err(Fault::new(Code::PgSilent, "PostgreSQL ended while it was started")
            .hint(format!("its log says why: `{}`", state_of(own, "server").join("logs").display()))),
    }
}

/// Waits until the server is gone: nobody waits for one that will not answer.
async fn server_ended(here: &Here) {
    loop {
        tokio::time::sleep(ENDED_EVERY).await;
        let state = state_of(here, "server");
        if let Ok(None) = blocking(move || running(&StateDir::open(&state)?)).await {
            return;
        }
    }
}

async fn prepare(here: &Here) -> Result<(), Fault> {
    // What was changed in the file since the server was started.
    let client = here.own("postgres", here.limits()).await?;
    here.ensure_given()?;
    ensure_server_files(here, server::is_isolated(&client).await?).await?;
    // Whoever wrote the files may have been cut off before the server was told, or found it running.
    server::reload(&client).await?;
    group::prepare(&client, &Prepare { database: DATABASE.to_owned(), users: here.users()? }).await?;
    let client = here.own(DATABASE, here.limits()).await?;
    group::ensure_parts(&client).await?;
    group::ensure_extensions(&client, &here.pg.extensions).await.map(drop)
}

pub(super) async fn group_of(shared: &Shared) -> Result<(Records, Group), Fault> {
    let records = observe::records(&shared.store).await?;
    let group = records.group.as_ref().map(|(group, _)| group.clone());
    let group = group.ok_or_else(|| Fault::new(Code::PgRecords, "the group is gone from the store"))?;
    Ok((records, group))
}

async fn bind(shared: &Shared, id: &str) -> Result<(), Fault> {
    let (records, group) = group_of(shared).await?;
    let here = &shared.here;
    let Some(me) = group.nodes.get(here.name()).and_then(|number| here.member(here.name(), *number)) else {
        return Ok(());
    };
    let client = here.own(DATABASE, here.limits()).await?;
    group::ensure_member(&client, id, &me, &here.members(&group), &here.given_files()?).await?;
    write(shared, &note_bound(&records, here.name(), id)).await
}

/// Every member, connected.
pub(super) async fn seats(here: &Here, group: &Group) -> Result<Vec<Seat>, Fault> {
    try_join_all(here.members(group).into_iter().map(|member| seat(here, member))).await
}

async fn seat(here: &Here, member: Member) -> Result<Seat, Fault> {
    let client = Client::connect(&here.place(&member)?, here.limits()).await?;
    Ok(Seat { member, client })
}

/// The links that bring changes here; every node sees to its own.
async fn link(shared: &Shared) -> Result<(), Fault> {
    let (_, group) = group_of(shared).await?;
    let Some(me) = group.nodes.get(shared.here.name()) else { return Ok(()) };
    group::ensure_links_to(&seats(&shared.here, &group).await?, *me).await.map(drop)
}

async fn lay_schema(shared: &Shared, epoch: u64) -> Result<(), Fault> {
    let (records, group) = group_of(shared).await?;
    let here = &shared.here;
    if !leads(&records, here.name(), epoch) {
        return Ok(());
    }
    let seats = seats(here, &group).await?;
    let first = schema::v1();
    // Nobody writes yet: all of them at once.
    schema::apply(&seats, None, &first, schema::Order::Adds, here.pg.step_timeout).await?;
    let own = seats.iter().find(|seat| seat.member.name == here.name());
    let own = own.ok_or_else(|| Fault::new(Code::PgNotMember, "this node is not among the members"))?;
    let values = schema::SeedValues {
        cluster_id: here.pg.group.clone(),
        role: match here.pg.role {
            PgRole::Manager => schema::ClusterRole::Manager,
            PgRole::Service => schema::ClusterRole::Service,
        },
        cluster_service: "mesh".to_owned(),
        backups_path: format!("/var/lib/quorate/backups/{}", here.pg.group),
        port: here.node.port,
        pg_dump: here.installation()?.program("pg_dump").display().to_string(),
        manager: here.pg.manager.clone(),
    };
    schema::seed_v1(&own.client, &values).await?;
    // Seen, not believed: rows of every node arrive at every other.
    group::round_trip(&seats, here.pg.step_timeout).await?;
    write(shared, &note_schema(&records, &SchemaNote { version: first.version, epoch })).await
}

/// Lets the keeper of the lease take the place, and waits until somebody has it.
async fn claim_first(shared: &Shared) -> Result<(), Fault> {
    shared.first.store(true, Ordering::Relaxed);
    shared.changed.notify_waiters();
    let deadline = tokio::time::Instant::now() + shared.here.pg.step_timeout;
    loop {
        let woken = shared.changed.notified();
        if observe::records(&shared.store).await?.last_writer.is_some() {
            return Ok(());
        }
        if tokio::time::Instant::now() >= deadline {
            return Err(Fault::new(Code::PgStepTimeout, "nobody became the write master in time"));
        }
        tokio::select! {
            () = woken => {}
            () = tokio::time::sleep(AGAIN) => {}
        }
    }
}
