//! The agent: keeps one member alive on this machine. Look, decide on paper, do one safe thing, look again.
//!
//! ```text
//!   observe ──► plan_start (pure) ──► execute ──► etcd runs ──► tend: probe, upkeep, backups, its end
//!      ▲                                 │                            │
//!      └────── look again ◄──────────────┴──── plan_restart (pure) ◄──┘
//! ```
//!
//! **Invariant:** etcd never depends on us: its parent is the shim, and an agent that is killed at any point finds it again.
//! Nothing that can be observed is remembered.

mod alone;
mod beside;
mod book;
mod boxed;
mod bring;
mod change;
mod client;
mod cluster;
mod compare;
mod connections;
mod data;
mod drift;
mod etcd;
mod etcd_tls;
mod execute;
mod external;
mod first_word;
mod fork;
mod in_place;
mod inputs;
mod instance;
mod keep;
mod learning;
mod listen;
mod look;
mod measure;
mod membership;
mod node;
mod node_lease;
mod observe;
mod old_entries;
mod place;
mod poll;
mod postgres;
mod preview;
mod probe;
mod programs;
mod progress;
mod publish;
mod recovering;
mod remembered;
mod repeats;
mod restore;
mod role;
mod second_machine;
mod self_check;
mod sightings;
mod silent_leader;
mod status;
mod systemd;
mod takeover;
mod talk;
mod tend;
mod trusting;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use quorate_etcd::client::Client;
use quorate_faults::{Code, Fault};
use quorate_host::shim::Running;
use quorate_host::state::StateDir;
use quorate_plan::ledger::{LedgerSeen, State};
use quorate_plan::peering::Role;
use quorate_plan::phase::Phase;
use quorate_plan::start::{Ended, Halt, Run};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

pub(crate) use beside::hand_over_now;
pub(crate) use book::Book;
pub use boxed::describe_box;
pub(crate) use boxed::{ensure_recovery_box, level_of, usual_level};
pub(crate) use compare::restart_by;
pub use connections::{ClientConnection, ClientConnections};
pub(crate) use data::{Presence, in_words, observe_presence};
pub(crate) use etcd::Asked;
pub use execute::stamp;
pub(crate) use listen::Wishes;
pub use listen::{Wish, ask_status, ask_stop};
pub use look::look;
pub(crate) use membership::may_remove;
pub use node::Node;
pub(crate) use node::client_of;
pub(crate) use observe::{end_words, own_clusters};
pub use place::{EmptyAccepted, accept_empty_member};
pub(crate) use place::{ensure_mounted, unmounted};
pub(crate) use poll::Poll;
pub use preview::{Preview, offline_status, offline_status_of, preview, stop_alone};
pub(crate) use publish::{Shared, now_ms};
pub use self_check::{CheckState, SelfCheck, self_check};
pub use status::{
    AgentNow, BackupNow, CertificateNow, CheckedNow, ClusterNow, DEGRADED, EtcdNow, MemberNow, Notice, ProcessNow,
    Status,
};
pub use takeover::{Adopted, Reset, adopt_member, reset_member};
pub(crate) use tend::watched;
pub(crate) use trusting::is_current as trust_is_current;

use crate::peering::{self, Peering};
use crate::peers::{self, Peers};
use crate::processes::Processes;
use crate::{certificates, cluster_file, declared, serve};
use etcd::Program;
use node_lease::NodeLease;
use observe::Memory;
use postgres::Postgres;

/// How long a port may be held by an earlier life of this agent.
const PORT_LIMIT: Duration = Duration::from_secs(2);

/// How to run.
#[derive(Debug)]
pub struct RunSettings {
    /// The member.
    pub node: Node,
    /// One turn only: etcd is left running.
    pub once: bool,
    /// Signals end the agent and not etcd.
    pub keep_running: bool,
    /// The program that is started as the shim: our own.
    pub shim: PathBuf,
}

/// How it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    /// etcd does not run.
    Stopped,
    /// etcd runs on.
    Left,
    /// One turn was asked for, and it led here.
    Halted(Code),
}

/// Runs until it is asked to end. With another cluster file it begins anew, and finds the etcd that runs.
pub async fn run(settings: RunSettings) -> Result<Finish, Fault> {
    let RunSettings { mut node, once, keep_running, shim } = settings;
    peers::check_agent_addresses(&node.spec)?;
    let state = node.state()?;
    let lock = state.lock()?;
    if node.spec.is_plaintext() {
        peers::check_token_file(state.path())?;
    }
    let wishes: Wishes = watch::Sender::new(Vec::new());
    listen_for_signals(&wishes, keep_running)?;
    let ending = tokio::spawn(tell_the_end(wishes.subscribe()));
    let (mut done, mut ports) = (Vec::new(), Duration::ZERO);
    let peering = Arc::new(Peering::open(node.state_path()));
    let finish = loop {
        let life =
            Life { once, shim: &shim, state: &state, wishes: &wishes, peering: &peering, done: &mut done, ports };
        let finish = match node.keeps_etcd() {
            true => life.live(node.clone()).await,
            false => life.live_alone(node.clone()).await,
        };
        let reload = |wish: &Wish| wish.reload;
        let again = wishes.borrow().first().is_some_and(reload);
        if finish.is_err() || !again {
            break finish;
        }
        wishes.send_modify(|wishes| wishes.retain(|wish| !reload(wish)));
        (node, ports) = (reread(node).await, PORT_LIMIT);
    };
    ending.abort();
    drop(lock);
    finish
}

/// Tells systemd when someone wants the agent to end, and not merely its file to be read again.
async fn tell_the_end(mut wished: watch::Receiver<Vec<Wish>>) {
    if wished.wait_for(|wishes| wishes.iter().any(|wish| !wish.reload)).await.is_ok() {
        systemd::ending();
    }
}

/// The node by its file as it is now; a file that cannot be used changes nothing.
async fn reread(node: Node) -> Node {
    let before = node.clone();
    let read = move || {
        let changed = cluster_file::read(&before.file).is_ok_and(|(there, _)| there.hash() != before.written);
        if changed {
            before.ensure_remembered()?;
        }
        let read = Node::read(&before.file, Some(before.name()))?;
        peers::check_agent_addresses(&read.0.spec)?;
        Ok::<_, Fault>(read)
    };
    match tokio::task::spawn_blocking(read).await {
        Ok(Ok((new, warnings))) => {
            for warning in warnings {
                warn!(code = %warning.code, "{}", warning.text);
            }
            new
        }
        Ok(Err(fault)) => {
            warn!(code = %fault.code(), "the cluster file cannot be used, and the one from before holds: {fault}");
            node
        }
        Err(_) => node,
    }
}

/// The agent from one reading of its file to the next.
struct Life<'a> {
    once: bool,
    shim: &'a Path,
    state: &'a StateDir,
    wishes: &'a Wishes,
    peering: &'a Arc<Peering>,
    /// What was done to the data in lives before.
    done: &'a mut Vec<String>,
    /// How long ports may still be held by the life before.
    ports: Duration,
}

impl Life<'_> {
    async fn live(self, node: Node) -> Result<Finish, Fault> {
        let Life { once, shim, state, wishes, .. } = self;
        let shared = Shared::new(&node);
        shared.change(|status| status.done = std::mem::take(self.done));
        let stop = CancellationToken::new();
        let book = Arc::new(Book::new(node.ledger()));
        let node = Arc::new(node);
        // That takes longer than all else before there is anyone to talk to.
        let asked = etcd::ask(&node, None);
        let peers = Peers::new(&node.spec, node.name(), node.name()).and_leaving(&node.spec, &node.leaving);
        let instance = instance::ensure(state.path())?;
        let lease = NodeLease::new(&node, &shared, &instance);
        let (named, machine) = (Arc::clone(&shared), Arc::clone(&node));
        // Names may take long to be resolved, and nothing waits for it.
        drop(tokio::task::spawn_blocking(move || named.set_machine(instance::machine(&machine))));
        let peers = Arc::new(peers.with_ledger(node.ledger()).with_instance(Some(instance)));
        let api = peers::Api {
            node: Arc::clone(&node),
            book: Arc::clone(&book),
            shared: Arc::clone(&shared),
            wishes: wishes.clone(),
            peers: Arc::clone(&peers),
            peering: Arc::clone(self.peering),
            local: Arc::default(),
        };
        let served = self.serve(&api, &stop).await?;
        tokio::spawn(certificates::keep(keep_certificates(&api), stop.clone()));
        tokio::spawn(stop.clone().run_until_cancelled_owned(etcd_tls::keep(Arc::clone(&api.node))));
        let watched = connections::watch_clients(Arc::clone(&api.node), Arc::clone(&api.shared));
        tokio::spawn(stop.clone().run_until_cancelled_owned(watched));
        if !once {
            tokio::spawn(stop.clone().run_until_cancelled_owned(Poll::new(&node, &book, &shared).run()));
            peering::before_first_start(&api).await;
            tokio::spawn(stop.clone().run_until_cancelled_owned(peers::follow_signed_files(api.clone(), stop.clone())));
            tokio::spawn(peering::tend_proxy(api.clone(), stop.clone()));
            tokio::spawn(peering::keep(api, stop.clone()));
        }
        if node.spec.source.is_some() {
            tokio::spawn(stop.clone().run_until_cancelled_owned(ask_source(
                Arc::clone(&node),
                Arc::clone(&book),
                wishes.clone(),
            )));
        }
        if !once && node.spec.external.is_none() && node.has_peers() {
            tokio::spawn(Arc::clone(&lease).keep(stop.clone()));
        }
        info!(member = node.name(), file = %node.file.display(), "the agent runs");
        let mut agent = Agent {
            lease: Arc::clone(&lease),
            node,
            book,
            peers,
            peering: Arc::clone(self.peering),
            state: state.clone(),
            shared,
            wished: wishes.subscribe(),
            wishes: wishes.clone(),
            shim: shim.to_owned(),
            once,
            program: None,
            asked: Some(asked),
            memory: Memory::default(),
            runs: Vec::new(),
            hindered: None,
            waited: false,
            log_before: 0,
            keepers: None,
            processes: Processes::default(),
            postgres: Postgres::default(),
        };
        agent.tell_ledger();
        agent.begin_processes();
        let finish = agent.live().await;
        agent.end_processes(&finish).await;
        agent.rest().await;
        stop.cancel();
        if matches!(finish, Ok(Finish::Stopped)) {
            lease.release().await;
        }
        for listener in served {
            end_listener(listener).await;
        }
        *self.done = agent.shared.status().done;
        finish
    }

    /// Up from the first second, so that there is an honest answer while data is checked.
    async fn serve(&self, api: &peers::Api, stop: &CancellationToken) -> Result<Vec<Listening>, Fault> {
        let node = &api.node;
        let bound = bind(&node.health()?, self.ports).await?;
        let mut served =
            vec![tokio::spawn(bound.serve(listen::health(&api.shared, node.has_open_metrics()), stop.clone()))];
        let poll = Poll::new(&api.node, &api.book, &api.shared);
        listen::api(self.state, &api.shared, Some(poll), self.wishes, stop.clone())?;
        match bind(&node.api()?, self.ports).await {
            Ok(bound) => {
                let router = peers::router(api);
                // Only once the port is taken: see the module.
                let router = match node.spec.is_plaintext() {
                    true => peers::require_token(peers::renew_token(self.state.path())?, router),
                    false => {
                        let _ = api.local.set(peers::keep_token(self.state.path())?);
                        router
                    }
                };
                served.push(tokio::spawn(bound.serve(router, stop.clone())));
            }
            // A member alone needs nobody; operators then ask its socket.
            Err(fault) if !node.has_peers() => warn!(code = %fault.code(), "nobody else can ask this agent: {fault}"),
            Err(fault) => {
                stop.cancel();
                return Err(fault);
            }
        }
        Ok(served)
    }
}

/// Where a source names the members, it is asked again for as long as nothing is founded here: a list that changes then is
/// taken like another file. What is founded has its members, whatever the source says.
async fn ask_source(node: Arc<Node>, book: Arc<Book>, wishes: Wishes) {
    let waits = || match book.read() {
        LedgerSeen::Absent => true,
        LedgerSeen::There(ledger) => matches!(ledger.state, State::Empty | State::Promised(_)),
        LedgerSeen::Unreadable(_) => false,
    };
    declared::changed(&node.file, &node.spec, node.name(), declared::ASKED_AGAIN, waits).await;
    info!("the source names other members: going on with these");
    wishes.send_modify(|wishes| wishes.push(Wish::reload("the source of members")));
}

/// Takes a port. The agent's own earlier life may take a moment to give it back.
async fn bind(address: &serve::Address, limit: Duration) -> Result<serve::Bound, Fault> {
    let begun = Instant::now();
    loop {
        match serve::bind(address).await {
            Err(fault) if fault.code() == Code::ListenFailed && begun.elapsed() < limit => {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            bound => return bound,
        }
    }
}

/// A listener at work.
type Listening = JoinHandle<Result<(), Fault>>;

/// Answers that have begun are finished, within their time.
async fn end_listener(mut listener: Listening) {
    if tokio::time::timeout(PORT_LIMIT, &mut listener).await.is_err() {
        listener.abort();
    }
}

fn keep_certificates(api: &peers::Api) -> certificates::Keep {
    let (book, told, peering) = (Arc::clone(&api.book), Arc::clone(&api.shared), Arc::clone(&api.peering));
    certificates::Keep {
        node: Arc::clone(&api.node),
        peers: Arc::clone(&api.peers),
        generation: Box::new(move || match book.read() {
            // Generations are counted by members; a client hears of none.
            _ if peering.role() == Some(Role::Client) => None,
            LedgerSeen::There(ledger) => Some(ledger.generation),
            LedgerSeen::Absent | LedgerSeen::Unreadable(_) => Some(0),
        }),
        registry: api.shared.backups.registry(),
        tell: Box::new(move |notices| told.warnings(certificates::WARNINGS, notices)),
    }
}

/// A connection to this very member.
pub(crate) async fn connect(node: &Node) -> Result<Client, Fault> {
    Client::connect(&node.client()?).await
}

/// A signal is a wish.
fn listen_for_signals(wishes: &Wishes, keep_running: bool) -> Result<(), Fault> {
    let kinds = [
        (SignalKind::terminate(), "SIGTERM"),
        (SignalKind::interrupt(), "SIGINT"),
        // As daemons do: read the file again.
        (SignalKind::hangup(), "SIGHUP"),
    ];
    for (kind, name) in kinds {
        let mut signals = signal(kind).map_err(|error| Fault::io("cannot listen for signals", error))?;
        let wishes = wishes.clone();
        tokio::spawn(async move {
            while signals.recv().await.is_some() {
                let asked_by = format!("{name} to the agent");
                let wish = match name {
                    "SIGHUP" => Wish::reload(&asked_by),
                    _ => Wish { asked_by, keep_running, reload: false },
                };
                wishes.send_modify(|wishes| wishes.push(wish));
            }
        });
    }
    Ok(())
}

/// The agent at work.
struct Agent {
    node: Arc<Node>,
    book: Arc<Book>,
    peers: Arc<Peers>,
    peering: Arc<Peering>,
    lease: Arc<NodeLease>,
    state: StateDir,
    shared: Arc<Shared>,
    wished: watch::Receiver<Vec<Wish>>,
    wishes: Wishes,
    shim: PathBuf,
    once: bool,
    program: Option<Program>,
    /// etcd is being asked for its version, and nothing has needed it yet.
    asked: Option<etcd::Asking>,
    memory: Memory,
    /// The runs of etcd that are over, the last one at the end.
    runs: Vec<Run>,
    /// What hindered the last one.
    hindered: Option<Hindered>,
    /// Whether the wait that the runs so far demand is over.
    waited: bool,
    /// How long etcd's log was when it was started.
    log_before: u64,
    keepers: Option<tend::Keepers>,
    /// What runs beside etcd.
    processes: Processes,
    /// The node of a group of PostgreSQL servers.
    postgres: Postgres,
}

impl Agent {
    async fn live(&mut self) -> Result<Finish, Fault> {
        if self.node.spec.external.is_some() {
            return self.live_external().await;
        }
        let mut found = match self.adopt().await? {
            bring::Adopted::Running(running) => Some((running, true)),
            bring::Adopted::Nothing => None,
            bring::Adopted::Finish(finish) => return self.end_untended(finish).await,
        };
        loop {
            let (running, adopted) = match found.take() {
                Some(found) => found,
                None => match self.bring_up().await? {
                    bring::Up::Running(running) => (running, false),
                    bring::Up::Found(running) => (running, true),
                    bring::Up::Client => match self.be_client().await {
                        Some(finish) => return Ok(finish),
                        None => continue,
                    },
                    bring::Up::Finish(finish) => return self.end_untended(finish).await,
                },
            };
            if adopted {
                // An agent of an earlier release started it, and recorded nothing.
                self.record_places().await;
            }
            if let Some(finish) = self.tend(*running, adopted).await? {
                return Ok(finish);
            }
            if self.once {
                return Ok(Finish::Halted(Code::EtcdEnded));
            }
        }
    }

    /// The end was asked for while no etcd was tended. One may run all the same, and it is then ended like any other.
    async fn end_untended(&mut self, finish: Finish) -> Result<Finish, Fault> {
        let wish = self.wished.borrow().first().cloned();
        let Some(wish) = wish.filter(|wish| !wish.reload && finish == Finish::Stopped) else { return Ok(finish) };
        match self.find_unseen().await {
            Some(running) => self.stop(*running, &wish).await,
            None => Ok(finish),
        }
    }

    /// Waits until someone wants the end.
    async fn wished(&mut self) -> Wish {
        match self.wished.wait_for(|wishes| !wishes.is_empty()).await {
            Ok(wishes) => match wishes.first() {
                Some(wish) => wish.clone(),
                None => std::future::pending().await,
            },
            // Nobody is left who could wish.
            Err(_) => std::future::pending().await,
        }
    }

    /// Shows what the ledger says.
    fn tell_ledger(&self) {
        let (word, ids) = match self.book.read() {
            LedgerSeen::Absent => ("empty".to_owned(), None),
            LedgerSeen::Unreadable(why) => (format!("cannot be read: {why}"), None),
            LedgerSeen::There(ledger) => (ledger.state.word().to_owned(), ledger.ids()),
        };
        self.shared.change(|status| {
            status.ledger = word;
            status.cluster_id = ids.map(|(cluster, _)| cluster.to_string());
            status.member_id = ids.map(|(_, member)| member.to_string());
        });
    }

    /// Remembers a run that is over, for whoever decides when the next one begins.
    fn note_end(&mut self, permanent: Option<(Code, &'static str)>, how: &str, lasted: Duration) {
        let ended = match permanent {
            Some((code, why)) => Ended::Permanent { code, why: format!("{why} ({how})") },
            None => Ended::Failed(how.to_owned()),
        };
        self.shared.measures.ended(if permanent.is_some() { "permanent" } else { "failed" });
        self.shared.change(|status| {
            status.etcd = None;
            status.last_end = Some(how.to_owned());
            status.restarts += 1;
        });
        self.note_run(Run { lasted, ended });
    }

    /// The same for a start that came to nothing.
    fn note_unstarted(&mut self, fault: &Fault) {
        let ended = Ended::NotStarted(in_words(fault));
        self.hindered = Some(Hindered::Start(execute::phase_of(fault), execute::halt_of(fault)));
        self.note_run(Run { lasted: Duration::ZERO, ended });
    }

    fn note_run(&mut self, run: Run) {
        self.runs.push(run);
        self.waited = false;
        // More of them say nothing more.
        if self.runs.len() > 64 {
            self.runs.remove(0);
        }
    }
}

/// What hindered a run of etcd, beyond how it ended.
#[derive(Debug, Clone)]
enum Hindered {
    /// It may pass, by its page.
    Passing(Code),
    /// It was not even executed: where that leads, and why.
    Start(Phase, Halt),
}

/// What runs, in a box: it is handed on by value.
type Found = Box<Running>;
