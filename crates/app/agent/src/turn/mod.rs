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

mod beside;
mod book;
mod bring;
mod cluster;
mod data;
mod drift;
mod etcd;
mod execute;
mod in_place;
mod keep;
mod listen;
mod measure;
mod membership;
mod node;
mod observe;
mod preview;
mod probe;
mod publish;
mod restore;
mod role;
mod status;
mod systemd;
mod takeover;
mod talk;
mod tend;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use quorate_etcd::client::Client;
use quorate_faults::{Code, Fault};
use quorate_host::shim::Running;
use quorate_host::state::StateDir;
use quorate_plan::ledger::LedgerSeen;
use quorate_plan::start::{Ended, Run};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

pub(crate) use book::Book;
pub use listen::{Wish, ask_status, ask_stop};
pub use node::Node;
pub use preview::{Preview, offline_status, preview, stop_alone};
pub(crate) use publish::Shared;
pub use status::{AgentNow, BackupNow, CertificateNow, CheckedNow, ClusterNow, EtcdNow, MemberNow, Notice, Status};
pub use takeover::{Adopted, Reset, adopt_member, reset_member};

use crate::peers::{self, Peers};
use crate::{certificates, serve};
use etcd::Program;
use listen::Wishes;
use observe::Memory;

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

/// Runs until it is asked to end.
pub async fn run(settings: RunSettings) -> Result<Finish, Fault> {
    let RunSettings { node, once, keep_running, shim } = settings;
    let state = node.state()?;
    let lock = state.lock()?;
    let shared = Shared::new(&node);
    let stop = CancellationToken::new();
    let wishes: Wishes = watch::Sender::new(Vec::new());
    // Up from the first second, so that there is an honest answer while data is checked.
    let bound = serve::bind(&node.health()?).await?;
    tokio::spawn(bound.serve(listen::health(&shared), stop.clone()));
    listen::api(&state, &shared, &wishes, stop.clone())?;
    let book = Arc::new(Book::new(node.ledger()));
    let node = Arc::new(node);
    let peers = Arc::new(Peers::new(&node.spec, node.name(), node.name()));
    let api = peers::Api { node: Arc::clone(&node), book: Arc::clone(&book), shared: Arc::clone(&shared) };
    match serve::bind(&node.api()?).await {
        Ok(bound) => drop(tokio::spawn(bound.serve(peers::router(&api), stop.clone()))),
        // A member alone needs nobody; operators then ask its socket.
        Err(fault) if !node.has_peers() => warn!(code = %fault.code(), "nobody else can ask this agent: {fault}"),
        Err(fault) => return Err(fault),
    }
    tokio::spawn(certificates::keep(keep_certificates(&node, &book, &peers, &shared), stop.clone()));
    listen_for_signals(&wishes, keep_running)?;
    info!(member = node.name(), file = %node.file.display(), "the agent runs");
    let mut agent = Agent {
        node,
        book,
        peers,
        state,
        shared,
        wished: wishes.subscribe(),
        shim,
        once,
        program: None,
        memory: Memory::default(),
        runs: Vec::new(),
        passing: None,
        log_before: 0,
        keepers: None,
    };
    agent.tell_ledger();
    let finish = agent.live().await;
    agent.rest().await;
    stop.cancel();
    drop(lock);
    finish
}

fn keep_certificates(
    node: &Arc<Node>,
    book: &Arc<Book>,
    peers: &Arc<Peers>,
    shared: &Arc<Shared>,
) -> certificates::Keep {
    let (book, told) = (Arc::clone(book), Arc::clone(shared));
    certificates::Keep {
        node: Arc::clone(node),
        peers: Arc::clone(peers),
        generation: Box::new(move || match book.read() {
            LedgerSeen::There(ledger) => ledger.generation,
            LedgerSeen::Absent | LedgerSeen::Unreadable(_) => 0,
        }),
        registry: shared.backups.registry(),
        tell: Box::new(move |notices| told.warnings(certificates::WARNINGS, notices)),
    }
}

/// A connection to this very member.
pub(crate) async fn connect(node: &Node) -> Result<Client, Fault> {
    Client::connect(&node.client()?).await
}

/// A signal is a wish.
fn listen_for_signals(wishes: &Wishes, keep_running: bool) -> Result<(), Fault> {
    for (kind, name) in [(SignalKind::terminate(), "SIGTERM"), (SignalKind::interrupt(), "SIGINT")] {
        let mut signals = signal(kind).map_err(|error| Fault::io("cannot listen for signals", error))?;
        let wishes = wishes.clone();
        tokio::spawn(async move {
            while signals.recv().await.is_some() {
                let wish = Wish { asked_by: format!("{name} to the agent"), keep_running };
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
    state: StateDir,
    shared: Arc<Shared>,
    wished: watch::Receiver<Vec<Wish>>,
    shim: PathBuf,
    once: bool,
    program: Option<Program>,
    memory: Memory,
    /// The runs of etcd that are over, the last one at the end.
    runs: Vec<Run>,
    /// What hindered the last one and may pass, by its page.
    passing: Option<Code>,
    /// How long etcd's log was when it was started.
    log_before: u64,
    keepers: Option<tend::Keepers>,
}

impl Agent {
    async fn live(&mut self) -> Result<Finish, Fault> {
        let mut found = match self.adopt().await? {
            bring::Adopted::Running(running) => Some((running, true)),
            bring::Adopted::Nothing => None,
            bring::Adopted::Finish(finish) => return Ok(finish),
        };
        loop {
            let (running, adopted) = match found.take() {
                Some(found) => found,
                None => match self.bring_up().await? {
                    bring::Up::Running(running) => (running, false),
                    bring::Up::Finish(finish) => return Ok(finish),
                },
            };
            if let Some(finish) = self.tend(*running, adopted).await? {
                return Ok(finish);
            }
            if self.once {
                return Ok(Finish::Halted(Code::EtcdEnded));
            }
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
        self.runs.push(Run { lasted, ended });
        // More of them say nothing more.
        if self.runs.len() > 64 {
            self.runs.remove(0);
        }
    }
}

/// What runs, in a box: it is handed on by value.
type Found = Box<Running>;
