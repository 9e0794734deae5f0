//! The life of a node: look, plan, take one step, look again; a change in the store wakes it.
//!
//! **Invariant:** there is no memory of which step was last: whoever starts anew sees the same and goes on.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use quorate_coordination::{Health, Lease, Lock, Registration, Scope, Store, Turn};
use quorate_faults::{Code, Fault};
use quorate_host::state::StateDir;
use quorate_plan::check::check_pg;
use quorate_plan::postgres::{PgPlan, PgStep, Records, Revival, StoreNow, keys, lacks_rows, next};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::doors::Doors;
use super::execute::blocking;
use super::here::Here;
use super::observe::{self, Details, Kept, Known};
use super::proxy::running;
use super::status::{Board, PartStatus};
use super::{execute, health, upkeep, writer};
use crate::peering::{Service, register, unregister};
use crate::turn::in_words;

/// By this name it has a word in changes of peers.
const SERVICE: &str = "postgresql";
/// Between two looks when nothing wakes us, while there is something to do.
const SOON: Duration = Duration::from_millis(200);
/// And when all is done: what depends on a table that is replicated follows it within a second.
const LATER: Duration = Duration::from_millis(500);
/// Between two attempts at a store that does not answer.
const STORE_PAUSE: Duration = Duration::from_millis(200);
/// Every how often rows that lost are counted: their log may be long.
const COUNT_EVERY: Duration = Duration::from_secs(5);
/// How long the place of the write master may take to find another node.
const HAND_OVER_LIMIT: Duration = Duration::from_secs(10);

/// What the parts of a node share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) here: Here,
    pub(super) store: Store,
    pub(super) board: Arc<Board>,
    pub(super) doors: Doors,
    /// The place of the write master was never taken, and this node may be the first.
    pub(super) first: AtomicBool,
    /// This node has its part of the group and could be the write master.
    pub(super) fit: AtomicBool,
    /// Whether that was looked at by this agent at all.
    pub(super) looked: AtomicBool,
    /// This agent ends, and the server with it: the place of the write master goes to another node.
    pub(super) ending: AtomicBool,
    /// Something has changed in the store.
    pub(super) changed: Notify,
    /// The serial numbers of revoked certificates.
    pub(super) revoked: Mutex<Vec<String>>,
}

/// The life itself.
pub(super) struct Life {
    pub(super) shared: Arc<Shared>,
    pub(super) registration: Option<Registration>,
    pub(super) lock: Option<(Lease, Lock)>,
    /// Users, database and extensions were made or checked by this process.
    pub(super) prepared: bool,
    /// What was begun before its turn.
    pub(super) early: JoinSet<()>,
    /// Takes the rows of the writer.
    pub(super) taking: JoinSet<Result<(), Fault>>,
    /// Pooler and proxy are offered by these.
    pub(super) offered: Vec<Registration>,
    /// The certificates that server and pooler were told of by this process.
    pub(super) told: Option<String>,
    /// Links that errors have stopped, by the member they come from.
    pub(super) revivals: BTreeMap<u16, Revival>,
    counted: Option<Instant>,
    /// Whether this node has its part of the group, as the store said last.
    joined: bool,
    /// The connection of all looks.
    kept: Option<Kept>,
    still: Option<(Records, Instant)>,
    taken: Option<PgStep>,
    /// The step that failed last, and why.
    failure: Option<(&'static str, String)>,
    said: String,
}

/// How a node is run.
#[derive(Debug, Clone, Default)]
pub struct PgRun {
    /// End once this node has done its part, and leave all running.
    pub once: bool,
    /// Stop before the step of this name until SIGUSR2, for tests of what comes after a kill and of steps that come late.
    pub halt_before: Option<String>,
}

/// How a node's agent ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// All goes on running; the next agent takes it over.
    Leave,
    /// The place of the write master is given to another node first: what runs is about to be stopped.
    Stop,
    /// The same agent goes on at once with a file that it reads anew.
    Anew,
}

/// Runs a node of the group until it is told to stop. `read`: the cluster file, when it is to be read anew.
pub async fn run<S: Future<Output = Ending>>(
    mut here: Here,
    settings: PgRun,
    mut stop: impl FnMut() -> S,
    read: impl Fn() -> Result<Here, Fault>,
) -> Result<(), Fault> {
    // What it shows stays: nobody who asks meanwhile is told that it takes no writes.
    let board = Arc::new(Board::of(&here));
    loop {
        let mut ending = Ending::Leave;
        let told = async {
            ending = stop().await;
            ending
        };
        run_on(here.clone(), settings.clone(), Arc::clone(&board), axum::Router::new(), told).await?;
        if ending != Ending::Anew {
            return Ok(());
        }
        match read() {
            Ok(now) => {
                info!(node = now.name(), "the cluster file was read anew");
                here = now;
            }
            Err(fault) => warn!(code = %fault.code(), "the file of before holds: {}", in_words(&fault)),
        }
    }
}

/// Has a word before this host joins a cluster by hand, is detached from one or made a client of it.
fn told_peers(here: &Here) {
    let Some(dir) = here.state.parent() else { return };
    let name = here.name();
    let objects = format!(
        "a server of PostgreSQL is kept here: `quorate pg detach {name}`, leave it out of the `nodes` of `postgres`, and `quorate \
         cluster apply` the file"
    );
    let to = ["join", "detach", crate::peering::TO_CLIENT].map(str::to_owned).to_vec();
    let service = Service { ask: None, objects: Some(objects), to: Some(to) };
    if let Err(fault) = register(dir, SERVICE, &service) {
        warn!(code = %fault.code(), "PostgreSQL has no word in changes of peers: {}", in_words(&fault));
    }
}

/// No server of PostgreSQL is kept on this host any more. `dir`: the folder of the node.
pub(crate) fn stop_objecting(dir: &Path) -> Result<(), Fault> {
    unregister(dir, SERVICE)
}

/// The same with a board that others look at too, and with more that is answered on the health port.
pub(crate) async fn run_on(
    here: Here,
    settings: PgRun,
    board: Arc<Board>,
    more: axum::Router,
    stop: impl Future<Output = Ending>,
) -> Result<(), Fault> {
    let state = StateDir::open(&here.state)?;
    let _lock = state.lock()?;
    told_peers(&here);
    let listener = health::bind(&here).await?;
    // All of them end with this function, however it ends.
    let mut tasks = JoinSet::new();
    let over = CancellationToken::new();
    let _over = over.clone().drop_guard();
    tasks.spawn(health::serve(listener, Arc::clone(&board), more, over));
    let mut stop = std::pin::pin!(stop);
    let begin = async {
        let early = settings.halt_before.is_none();
        tokio::join!(open_store(&here, &board), own_server(&here, early)).0
    };
    let store = tokio::select! {
        store = begin => store?,
        _ = &mut stop => return Ok(()),
    };
    let doors = Doors::new(&here, Arc::clone(&board))?;
    let shared = Arc::new(Shared {
        here,
        store,
        board,
        doors,
        first: AtomicBool::new(false),
        fit: AtomicBool::new(false),
        looked: AtomicBool::new(false),
        ending: AtomicBool::new(false),
        changed: Notify::new(),
        revoked: Mutex::default(),
    });
    tasks.spawn(wake(Arc::clone(&shared)));
    tasks.spawn(upkeep::keep_server(Arc::clone(&shared)));
    let mut keeper = tokio::spawn(writer::keep(Arc::clone(&shared)));
    let mut life = Life {
        shared: Arc::clone(&shared),
        registration: None,
        lock: None,
        prepared: false,
        early: JoinSet::new(),
        taking: JoinSet::new(),
        offered: Vec::new(),
        told: None,
        revivals: BTreeMap::new(),
        counted: None,
        joined: false,
        kept: None,
        still: None,
        taken: None,
        failure: None,
        said: String::new(),
    };
    let (ended, ending) = tokio::select! {
        ended = life.live(&settings) => (ended, Ending::Leave),
        ending = &mut stop => (Ok(()), ending),
    };
    if ending == Ending::Stop {
        shared.ending.store(true, Ordering::Relaxed);
        shared.changed.notify_waiters();
        // Whoever does not come to an end has a fence.
        let _ = tokio::time::timeout(HAND_OVER_LIMIT, &mut keeper).await;
    }
    keeper.abort();
    match ending {
        Ending::Leave | Ending::Stop => life.leave().await,
        // It stays registered; the lease lives until the next keeper finds it.
        Ending::Anew => drop(life),
    }
    // The port is free when this returns.
    tasks.shutdown().await;
    ended
}

/// Waits for the signal to go on.
async fn gone_on() {
    match signal(SignalKind::user_defined2()) {
        Ok(mut signal) => drop(signal.recv().await),
        Err(_) => std::future::pending().await,
    }
}

/// The store, once it answers.
async fn open_store(here: &Here, board: &Board) -> Result<Store, Fault> {
    loop {
        match here.store().await {
            Ok(store) => return Ok(store),
            Err(fault) if fault.code() == Code::CoordinationSilent => {
                board.change(|status| status.waiting = Some(format!("the store: {fault}")));
                tokio::time::sleep(STORE_PAUSE).await;
            }
            Err(fault) => return Err(fault),
        }
    }
}

/// Brings the own server up while the store is waited for. What does not succeed is tried again, and told, by the life.
async fn own_server(here: &Here, early: bool) {
    if early {
        let _ = tokio::time::timeout(here.pg.step_timeout, execute::bring_server(here)).await;
    }
}

/// Watches the records and the nodes, and wakes whoever waits.
async fn wake(shared: Arc<Shared>) {
    let nodes = {
        let shared = Arc::clone(&shared);
        tokio::spawn(async move {
            let Ok(mut watch) = shared.store.watch_instances(observe::SERVICE) else { return };
            loop {
                match watch.next(Duration::from_secs(30)).await {
                    Ok(_) => shared.changed.notify_waiters(),
                    Err(_) => tokio::time::sleep(STORE_PAUSE).await,
                }
            }
        })
    };
    let scope = Scope::prefix(keys::ALL);
    loop {
        let Ok(listing) = shared.store.list(&scope).await else {
            tokio::time::sleep(STORE_PAUSE).await;
            continue;
        };
        let Ok(mut watch) = shared.store.watch(&scope, listing.position()) else { break };
        shared.changed.notify_waiters();
        loop {
            match watch.next(Duration::from_secs(30)).await {
                Ok(Turn::Quiet) => {}
                Ok(Turn::Events(_)) => shared.changed.notify_waiters(),
                Ok(Turn::Compacted { .. }) => break,
                Err(_) => {
                    tokio::time::sleep(STORE_PAUSE).await;
                    break;
                }
            }
        }
    }
    nodes.abort();
}

impl Life {
    async fn live(&mut self, settings: &PgRun) -> Result<(), Fault> {
        loop {
            let shared = Arc::clone(&self.shared);
            let woken = shared.changed.notified();
            let plan = self.look().await;
            self.tell(&plan);
            if let Some(step) = plan.steps.first().cloned() {
                if settings.halt_before.as_deref() == Some(step.name()) {
                    info!(step = step.name(), "halted before this step");
                    gone_on().await;
                    info!(step = step.name(), "goes on with this step");
                }
                match tokio::time::timeout(self.limit(), self.take(step.clone())).await {
                    // One that changed nothing is not repeated in haste.
                    Ok(Ok(())) if self.taken.as_ref() != Some(&step) => {
                        (self.taken, self.failure) = (Some(step), None);
                        continue;
                    }
                    Ok(Ok(())) => self.failure = None,
                    Ok(Err(fault)) => self.failed(step.name(), &fault),
                    Err(_) => {
                        let what = format!("`{step}` did not end within {:?}", self.shared.here.pg.step_timeout);
                        self.failed(step.name(), &Fault::new(Code::PgStepTimeout, what));
                    }
                }
            } else if plan.is_done() && settings.once {
                return Ok(());
            }
            let pause = if plan.is_done() { LATER } else { SOON };
            tokio::select! {
                () = woken => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// A little more than each step gives itself.
    fn limit(&self) -> Duration {
        self.shared.here.pg.step_timeout + Duration::from_secs(5)
    }

    async fn look(&mut self) -> PgPlan {
        let shared = Arc::clone(&self.shared);
        let lock = self.lock.as_ref().map(|(_, lock)| lock);
        let mut still = self.still.take();
        let since = |records: &Records| {
            // Candidates come and go without the bootstrap going on.
            let seen = Records { candidates: Default::default(), ..records.clone() };
            let (known, since) = still.get_or_insert_with(|| (seen.clone(), Instant::now()));
            if *known != seen {
                (*known, *since) = (seen, Instant::now());
            }
            since.elapsed()
        };
        let count = self.counted.is_none_or(|at| at.elapsed() >= COUNT_EVERY);
        let before = Known { prepared: self.prepared, count };
        let known = (&before, &mut self.kept);
        let (mut seen, details) = observe::look(&shared.here, &shared.store, lock, known, since).await;
        self.still = still;
        if details.counts.is_some() {
            self.counted = Some(Instant::now());
        }
        self.revive(&details, &seen).await;
        if let StoreNow::Known(store) = &seen.store {
            // A store that does not answer changes nothing of what it said.
            self.joined = store.records.joined.contains_key(shared.here.name());
            if let Some((group, _)) = &store.records.group {
                shared.doors.set_members(group.nodes.keys().cloned().collect());
            }
        }
        shared.board.set_joined(self.joined);
        if let Some(instances) = &details.instances {
            self.let_in(instances).await;
        }
        if seen.mine.serves {
            self.renew_files().await;
        }
        seen.mine.configured = shared.doors.are_as_they_should().await && shared.doors.gate_is_right(details.gate_open);
        seen.mine.offered = !self.offered.is_empty();
        let mut plan = next(&shared.here.pg, shared.here.name(), &seen);
        // One that joins has the schema before it has the rows.
        let fit = seen.mine.serves && seen.mine.bound.is_some() && seen.mine.schema > 0 && self.joined;
        // Whatever is due first: who lacks rows does not stand for the place. A look that did not come so far says nothing of it.
        if fit || seen.mine.lost.is_some() {
            let writes = matches!(&seen.store, StoreNow::Known(store)
                if store.records.writer.as_ref().is_some_and(|(writer, _)| writer.node == shared.here.name()));
            shared.board.set_behind((seen.mine.lost.is_some() || lacks_rows(shared.here.name(), &seen)) && !writes);
        }
        if let StoreNow::Known(store) = &seen.store {
            shared.board.set_out(store.records.is_out(shared.here.name()));
        }
        if let Err(broken) = check_pg(shared.here.name(), &seen, &plan) {
            let why = broken.join("; ");
            warn!(code = %Code::Internal, "the plan breaks a rule and is not taken: {why}");
            plan = PgPlan { waiting: Some(format!("a plan that breaks no rule: {why}")), ..PgPlan::default() };
        }
        shared.fit.store(fit, Ordering::SeqCst);
        // Before it was prepared nothing is known of its part in the group.
        if fit || self.prepared || !seen.mine.serves {
            shared.looked.store(true, Ordering::SeqCst);
        }
        self.say_health(seen.mine.serves, seen.mine.configured);
        self.show(&seen.mine.schema, details).await;
        plan
    }

    /// What the store tells others of this node's services.
    fn say_health(&self, serves: bool, configured: bool) {
        let say = |registration: &Registration, well: bool, why: &str| match well {
            true => registration.set(Health::Passing, ""),
            false => registration.set(Health::Critical, why),
        };
        if let Some(registration) = &self.registration {
            say(registration, serves, "PostgreSQL does not answer");
        }
        for registration in &self.offered {
            say(registration, serves && configured, "pooler, proxy or server are not as they should be");
        }
    }

    async fn show(&self, schema: &u32, details: Details) {
        let (here, open) = (self.shared.here.clone(), self.shared.board.is_open());
        let serves = !details.server.is_empty();
        let parts = blocking(move || {
            let part = |name: &str, dir: &str, ready: bool| {
                let found = StateDir::open(&state_of(&here, dir)).and_then(|state| running(&state)).ok().flatten();
                PartStatus {
                    name: name.to_owned(),
                    ready: ready && found.is_some(),
                    pid: found.as_ref().map(|found| found.child().pid),
                    started_ms: found.as_ref().map(|found| found.started_at_ms()),
                }
            };
            let postgres = part("postgres", "server", serves);
            Ok(vec![postgres, part("pgbouncer", "pooler", open), part("haproxy", "proxy", true)])
        });
        let parts = parts.await.unwrap_or_default();
        self.shared.board.change(|status| {
            (status.schema, status.links, status.server) = (*schema, details.links, details.server);
            status.troubles = details.troubles;
            if let Some((lost, overtaken)) = details.counts {
                (status.lost, status.overtaken) = (lost, overtaken);
            }
            status.parts = parts;
        });
    }

    fn tell(&mut self, plan: &PgPlan) {
        self.shared.board.plan(plan);
        // It is tried again, and the last word about it holds until then.
        if let (Some(step), Some((failed, why))) = (plan.steps.first(), &self.failure)
            && step.name() == *failed
        {
            self.shared.board.change(|status| status.fault = Some(why.clone()));
        }
        let text = plan.render();
        if text != self.said {
            for line in text.lines() {
                info!(node = self.shared.here.name(), "{line}");
            }
            self.said = text;
        }
    }

    pub(super) fn failed(&mut self, step: &'static str, fault: &Fault) {
        let words = in_words(fault);
        warn!(step, code = %fault.code(), "{words}");
        let words = format!("{words} [{}]", fault.code());
        self.failure = Some((step, words.clone()));
        self.shared.board.change(|status| status.fault = Some(words));
    }

    /// Takes the node out of the store; server and pooler stay, and the fence sees to the door.
    async fn leave(mut self) {
        let rest = async { while self.early.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(HAND_OVER_LIMIT, rest).await;
        for registration in self.registration.into_iter().chain(self.offered) {
            // A store that does not answer forgets by itself.
            let _ = registration.end().await;
        }
        if let Some((_, lock)) = self.lock {
            let _ = lock.release().await;
        }
    }
}

/// Where the parts of a node keep their state.
pub(super) fn state_of(here: &Here, part: &str) -> PathBuf {
    here.state.join(part)
}
