//! The doors of a node: its pooler below the fence, and its proxy.
//!
//! **Invariant:** before a door is open for writers, the fence knows until when; before it is open for readers alone, the
//! database refuses writes. What runs is found again, not remembered, and what the database lets in is looked at again and again:
//! a server that crashed has forgotten it.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use quorate_faults::{Code, Fault};
use quorate_host::shim;
use quorate_host::state::StateDir;
use quorate_plan::spec::PgWriters;
use quorate_postgres::Secret;
use quorate_postgres::group::{self, Writers};
use quorate_postgres::proxies::{Console, ensure_file};
use quorate_postgres::sql::{Client, Limits};
use tokio::sync::Mutex as AsyncMutex;
use tracing::info;

use super::boxed::pooler_box;
use super::execute::blocking;
use super::fence::{self, FenceSpec, Until, boot_now, ensure_deadline, ensure_orders, fresh_token, read_deadline};
use super::here::{DATABASE, Here};
use super::life::state_of;
use super::observe::PoolInstance;
use super::proxy::{end, ensure_dir, ensure_proxy, hash, orders, proxy_state, running};
use super::status::Board;
use super::told::{self, ADMIN};

/// How long the console may take.
const CONSOLE: Duration = Duration::from_secs(2);
/// How long a pooler may take to listen.
const LISTENS: Duration = Duration::from_secs(10);
/// How long sessions may take to end when the place is lost.
const SESSIONS: Duration = Duration::from_secs(5);

/// How long the last write master says yes after it was left: longer than proxies take to ask twice.
const LINGER: Duration = Duration::from_secs(1);
/// Every how often it is looked whether somebody is still led on.
const LED_ON: Duration = Duration::from_secs(1);

/// What a door is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Door {
    /// Writers and readers, until this moment of [`boot_now`].
    Writer(Duration),
    /// Readers.
    Reader,
    /// Those who were connected when the place was handed over are led on to this node.
    Forward(String),
    /// Nobody: this node does not belong to the group.
    Closed,
}

impl Door {
    fn word(&self) -> &'static str {
        match self {
            Door::Writer(_) => "writer",
            Door::Reader => "reader",
            Door::Forward(_) => "forward",
            Door::Closed => "closed",
        }
    }

    /// Whether applications may write in this moment through such a door.
    fn lets_write(&self, writers: PgWriters) -> bool {
        match (self, writers) {
            (Door::Writer(_), PgWriters::All) => true,
            // A time that is over opens nothing, whoever asks for it.
            (Door::Writer(until), PgWriters::One) => boot_now() < *until,
            (Door::Reader | Door::Forward(_), PgWriters::All) => true,
            (Door::Reader | Door::Forward(_), PgWriters::One) | (Door::Closed, _) => false,
        }
    }
}

#[derive(Debug)]
struct Now {
    door: Door,
    /// Transactions wait at the door while the place is handed over.
    paused: bool,
    /// The word of the fence that runs.
    token: Option<String>,
}

/// Those who were connected when the place was handed over.
#[derive(Debug)]
struct Led {
    looked: Instant,
    /// By what the pooler tells them apart; `None`: not looked yet.
    clients: Option<BTreeSet<String>>,
}

/// Pooler and proxy.
#[derive(Debug)]
pub(super) struct Doors {
    here: Here,
    board: Arc<Board>,
    /// The console's password.
    secret: String,
    now: Mutex<Now>,
    /// Who belongs to the group, once that is known.
    members: Mutex<Option<BTreeSet<String>>>,
    /// Databases that were given to somebody.
    instances: Mutex<Vec<PoolInstance>>,
    /// Who is led on to another node.
    led: Mutex<Led>,
    /// Both have come up once.
    settled: AtomicBool,
    /// One change at a time; `true` once the bootstrap asked for doors.
    wanted: AsyncMutex<bool>,
    /// One change of the proxy at a time; it does not wait for the pooler.
    proxy: AsyncMutex<()>,
}

impl Doors {
    pub(super) fn new(here: &Here, board: Arc<Board>) -> Result<Doors, Fault> {
        let token = std::fs::read(state_of(here, "pooler").join("fence.json"))
            .ok()
            .and_then(|bytes| serde_json::from_slice::<FenceSpec>(&bytes).ok())
            .map(|spec| spec.token);
        let now = Mutex::new(Now { door: Door::Reader, paused: false, token });
        Ok(Doors {
            here: here.clone(),
            board,
            secret: told::console_secret(here)?,
            now,
            members: Mutex::new(None),
            instances: Mutex::default(),
            led: Mutex::new(Led { looked: Instant::now(), clients: None }),
            settled: AtomicBool::new(false),
            wanted: AsyncMutex::new(false),
            proxy: AsyncMutex::new(()),
        })
    }

    fn now(&self) -> (Door, Option<String>) {
        let now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        (now.door.clone(), now.token.clone())
    }

    /// What the pooler is told: its users, and all else.
    fn pooler_files(&self, door: &Door) -> Result<[(std::path::PathBuf, String); 2], Fault> {
        let instances = self.instances.lock().unwrap_or_else(PoisonError::into_inner).clone();
        told::pooler_files(&self.here, &self.dir(), &self.secret, door, &instances)
    }

    fn proxy_text(&self) -> String {
        let members = self.members.lock().unwrap_or_else(PoisonError::into_inner).clone();
        told::proxy_text(&self.here, members.as_ref())
    }

    fn note_paused(&self, paused: bool) {
        self.now.lock().unwrap_or_else(PoisonError::into_inner).paused = paused;
    }

    fn is_paused(&self) -> bool {
        self.now.lock().unwrap_or_else(PoisonError::into_inner).paused
    }

    /// Whether the database lets in whom the door does: a server that crashed takes no writes until it is told again.
    pub(super) fn gate_is_right(&self, open: Option<bool>) -> bool {
        let now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        now.paused || open.is_none_or(|open| open == now.door.lets_write(self.here.pg.writers))
    }

    fn note(&self, door: &Door) {
        self.now.lock().unwrap_or_else(PoisonError::into_inner).door = door.clone();
    }

    fn state(&self) -> Result<StateDir, Fault> {
        StateDir::open(&state_of(&self.here, "pooler"))
    }

    fn deadline(&self) -> std::path::PathBuf {
        state_of(&self.here, "pooler").join("deadline")
    }

    /// Whether pooler and proxy run with what they should run with.
    pub(super) async fn are_as_they_should(&self) -> bool {
        let wanted = match self.settled.load(Ordering::Relaxed) {
            true => self.wanted.lock().await,
            // While they come up for the first time they are not, and nobody waits for it.
            false => match self.wanted.try_lock() {
                Ok(wanted) => wanted,
                Err(_) => return false,
            },
        };
        if !*wanted {
            return false;
        }
        let (pooler, proxy) = tokio::join!(self.pooler(), self.proxy_running());
        let open = matches!(pooler, Ok(Some(_))) && is_open(&self.deadline(), self.now().1.as_deref());
        if !open {
            self.board.door("closed", false, None);
        }
        let is = |file: std::path::PathBuf, text: &str| std::fs::read_to_string(file).is_ok_and(|there| there == text);
        let told = self
            .pooler_files(&self.now().0)
            .is_ok_and(|[(users, list), (ini, text)]| is(users, &list) && is(ini, &text));
        let file = self.here.run_dir().join("proxy").join("haproxy.cfg");
        let shown = self.is_paused() || self.board.shows(self.now().0.word());
        let right = open && told && shown && matches!(proxy, Ok(Some(_))) && is(file, &self.proxy_text());
        self.settled.fetch_or(right, Ordering::Relaxed);
        right
    }

    /// Databases that were given to somebody: the pooler offers these too.
    pub(super) fn set_instances(&self, instances: &[PoolInstance]) {
        *self.instances.lock().unwrap_or_else(PoisonError::into_inner) = instances.to_vec();
    }

    /// Who belongs to the group: the proxy leads to these.
    pub(super) fn set_members(&self, members: BTreeSet<String>) {
        *self.members.lock().unwrap_or_else(PoisonError::into_inner) = Some(members);
    }

    /// The pooler's fence, if it runs.
    async fn pooler(&self) -> Result<Option<shim::Running>, Fault> {
        let state = state_of(&self.here, "pooler");
        blocking(move || running(&StateDir::open(&state)?)).await
    }

    async fn proxy_running(&self) -> Result<Option<shim::Running>, Fault> {
        let here = self.here.clone();
        blocking(move || running(&proxy_state(&here)?)).await
    }

    /// Brings pooler and proxy up, as the door is now, and has the database let in whom the door does.
    pub(super) async fn ensure(&self) -> Result<(), Fault> {
        // Beside each other: neither needs the other to come up.
        let proxy = async {
            let _one = self.proxy.lock().await;
            let (here, text) = (self.here.clone(), self.proxy_text());
            blocking(move || ensure_proxy(&here, &text)).await
        };
        let (pooler, proxy) = tokio::join!(self.ensure_pooler(), proxy);
        pooler.and(proxy)
    }

    async fn ensure_pooler(&self) -> Result<(), Fault> {
        let mut wanted = self.wanted.lock().await;
        let before = std::mem::replace(&mut *wanted, true);
        let (door, token) = self.now();
        // Whoever hands over has the door in hand, and lets it go on; one that is closed for good is not opened here.
        if (before && self.is_paused()) || door == Door::Closed {
            return Ok(());
        }
        let alive = self.pooler().await?.is_some() && is_open(&self.deadline(), token.as_deref());
        let shown = self.board.is_open() && self.board.shows(door.word());
        if before && alive && shown && self.gate_fits(&door).await? {
            // It stays what it is: nobody inside is disturbed.
            if self.write_files(&door)? {
                self.console(CONSOLE).await?.reload().await?;
            }
            return Ok(());
        }
        self.bring(&door).await
    }

    async fn gate_fits(&self, door: &Door) -> Result<bool, Fault> {
        let limits = Limits { connect: CONSOLE, statement: CONSOLE, lock: CONSOLE };
        let client = self.here.own(DATABASE, limits).await?;
        Ok(group::gate_is_open(&client).await? == door.lets_write(self.here.pg.writers))
    }

    /// Makes the door another one.
    pub(super) async fn set(&self, door: Door) -> Result<(), Fault> {
        let wanted = self.wanted.lock().await;
        self.note(&door);
        if *wanted { self.bring(&door).await } else { self.gate(&door).await }
    }

    /// Closes the door for good: this node does not belong to the group, or no longer.
    pub(super) async fn close(&self) -> Result<(), Fault> {
        let _one = self.wanted.lock().await;
        let (door, token) = self.now();
        if door == Door::Closed {
            return Ok(());
        }
        self.note(&Door::Closed);
        self.board.door(Door::Closed.word(), false, None);
        if let Some(token) = token {
            // The fence ends the pooler and whoever is inside.
            ensure_deadline(&self.deadline(), &token, Until::At(Duration::ZERO))?;
        }
        // One that was never bound to a group has nothing that could be open.
        let limits = Limits { connect: CONSOLE, statement: SESSIONS, lock: CONSOLE };
        let client = self.here.own(DATABASE, limits).await?;
        match group::myself(&client).await? {
            Some(_) => self.gate(&Door::Closed).await,
            None => Ok(()),
        }
    }

    /// Somebody else has the place, or nobody: those who were led on are led to whoever has it now.
    pub(super) async fn follow(&self, writer: Option<&str>) -> Result<(), Fault> {
        match (self.now().0, writer) {
            (Door::Writer(_), _) => self.set(Door::Reader).await,
            (Door::Forward(to), Some(writer)) if to != writer && writer != self.here.name() => {
                self.set(Door::Forward(writer.to_owned())).await
            }
            (Door::Forward(_), _) if self.leads_nobody().await? => self.set(Door::Reader).await,
            // It belongs to the group again; what runs is brought up when it is its turn.
            (Door::Closed, _) => {
                let wanted = self.wanted.lock().await;
                self.note(&Door::Reader);
                if *wanted { self.bring(&Door::Reader).await } else { Ok(()) }
            }
            (Door::Forward(_) | Door::Reader, _) => Ok(()),
        }
    }

    /// Whether none of those is left who were connected when the place was handed over. Who came later came to read.
    async fn leads_nobody(&self) -> Result<bool, Fault> {
        let led = || self.led.lock().unwrap_or_else(PoisonError::into_inner);
        if led().looked.elapsed() < LED_ON {
            return Ok(false);
        }
        let now = self.console(CONSOLE).await?.clients(DATABASE).await?;
        let mut led = led();
        led.looked = Instant::now();
        let Some(before) = &mut led.clients else {
            led.clients = Some(now);
            return Ok(false);
        };
        before.retain(|client| now.contains(client));
        Ok(before.is_empty())
    }

    /// The door may stay open until then.
    pub(super) fn renew(&self, until: Duration) -> Result<(), Fault> {
        let (door, token) = self.now();
        let Door::Writer(_) = door else { return Ok(()) };
        self.note(&Door::Writer(until));
        match token {
            Some(token) if self.here.pg.writers == PgWriters::One => {
                ensure_deadline(&self.deadline(), &token, Until::At(until))
            }
            Some(_) | None => Ok(()),
        }
    }

    /// What the database lets in.
    async fn gate(&self, door: &Door) -> Result<(), Fault> {
        let limits = Limits { connect: CONSOLE, statement: SESSIONS, lock: CONSOLE };
        let client = self.here.own(DATABASE, limits).await?;
        if door.lets_write(self.here.pg.writers) {
            return group::ensure_gate(&client, Writers::Open).await;
        }
        group::ensure_gate(&client, Writers::Closed).await?;
        // What had begun before may not end later.
        group::end_sessions(&client, SESSIONS).await.map(drop)
    }

    fn until(&self, door: &Door) -> Until {
        match (door, self.here.pg.writers) {
            (Door::Writer(until), PgWriters::One) => Until::At(*until),
            (Door::Writer(_), PgWriters::All) | (Door::Reader | Door::Forward(_), _) => Until::Open,
            (Door::Closed, _) => Until::At(Duration::ZERO),
        }
    }

    async fn bring(&self, door: &Door) -> Result<(), Fault> {
        if !matches!(door, Door::Writer(_)) {
            // Before the fence lets go of the time.
            self.gate(door).await?;
        }
        let changed = self.write_files(door)?;
        let token = self.now().1;
        let alive = self.pooler().await?;
        match (alive, token) {
            (Some(_), Some(token)) if is_open(&self.deadline(), Some(&token)) => {
                ensure_deadline(&self.deadline(), &token, self.until(door))?;
                if changed {
                    self.console(CONSOLE).await?.reload().await?;
                }
                // An agent that was killed while it handed over has left it waiting.
                if !self.is_paused() {
                    self.resume().await?;
                }
            }
            (alive, _) => {
                if let Some(alive) = alive {
                    blocking(move || end(alive, "the agent: its time is over")).await?;
                }
                self.start_pooler(door).await?;
            }
        }
        if matches!(door, Door::Writer(_)) {
            self.gate(door).await?;
        }
        let until = if let Door::Writer(until) = door { Some(*until) } else { None };
        self.board.door(door.word(), true, until);
        info!(door = door.word(), "the door is open");
        Ok(())
    }

    fn dir(&self) -> std::path::PathBuf {
        self.here.run_dir().join("pooler")
    }

    /// Writes the pooler's files; `true`: one of them is new.
    fn write_files(&self, door: &Door) -> Result<bool, Fault> {
        let owner = self.here.owner()?;
        ensure_dir(&self.dir(), owner)?;
        let mut changed = false;
        for (file, text) in self.pooler_files(door)? {
            changed |= ensure_file(&file, &text, owner)?;
        }
        Ok(changed)
    }

    async fn start_pooler(&self, door: &Door) -> Result<(), Fault> {
        let token = fresh_token()?;
        self.note_paused(false);
        ensure_deadline(&self.deadline(), &token, self.until(door))?;
        let ini = self.dir().join("pgbouncer.ini").display().to_string();
        let spec = FenceSpec {
            command: vec![self.here.pg.pooler_binary.clone(), ini],
            boxed: pooler_box(&self.here)?,
            token: token.clone(),
            deadline: self.deadline(),
            socket_dir: self.here.run_dir(),
            port: self.here.node.port,
            data_dir: self.here.data_dir(),
        };
        let state = self.state()?;
        let file = state.path().join("fence.json");
        ensure_orders(&file, &spec)?;
        self.now.lock().unwrap_or_else(PoisonError::into_inner).token = Some(token.clone());
        let args = vec!["__fence".to_owned(), file.display().to_string()];
        let orders = orders("pgbouncer", &self.here.program, args, &state, hash(&[&token]));
        let program = self.here.program.clone();
        blocking(move || shim::spawn(&program, &state, &orders)).await.map_err(|fault| {
            Fault::new(Code::PgProxyFailed, "cannot start the pooler")
                .hint("see `quorate explain Q1308`")
                .caused_by(crate::turn::in_words(&fault))
        })?;
        let deadline = tokio::time::Instant::now() + LISTENS;
        while let Err(fault) = self.console(CONSOLE).await {
            if tokio::time::Instant::now() >= deadline {
                return Err(Fault::new(Code::PgProxyFailed, "the pooler does not listen").caused_by(fault));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    /// Has the pooler read its certificates again; `false`: it comes up in this moment, and is asked later.
    pub(super) async fn reload(&self) -> Result<bool, Fault> {
        let Ok(_one) = self.wanted.try_lock() else { return Ok(false) };
        if self.pooler().await?.is_none() {
            // One that is started reads them then.
            return Ok(true);
        }
        self.console(CONSOLE).await?.reload().await.map(|()| true)
    }

    async fn console(&self, limit: Duration) -> Result<Console, Fault> {
        let secret = Secret::new(self.secret.clone());
        Console::connect(self.here.name(), &self.dir(), self.here.node.pooler_port, ADMIN, &secret, limit).await
    }

    /// Has the pooler end transactions and keep the next ones waiting, and the database refuse what would still be written.
    pub(super) async fn pause(&self, client: &Client, limit: Duration) -> Result<(), Fault> {
        let _one = self.wanted.lock().await;
        self.note_paused(true);
        let console = self.console(limit).await?;
        match tokio::time::timeout(limit, console.pause(DATABASE)).await {
            Ok(done) => done?,
            Err(_) => {
                return Err(Fault::new(Code::PgSwitchover, format!("transactions do not end within {limit:?}"))
                    .hint("wait for long transactions, or end them"));
            }
        }
        group::ensure_gate(client, Writers::Closed).await
    }

    /// Nothing is handed over: the door goes on as what it is now, which is a reader's if the place was lost meanwhile.
    pub(super) async fn go_on(&self) -> Result<(), Fault> {
        let _one = self.wanted.lock().await;
        self.note_paused(false);
        let on = match self.gate(&self.now().0).await {
            Ok(()) => self.resume().await,
            failed => failed,
        };
        if on.is_err() {
            // Not as it should be: the next look sees that, and brings it up anew.
            self.board.door(Door::Closed.word(), false, None);
        }
        on
    }

    async fn resume(&self) -> Result<(), Fault> {
        self.note_paused(false);
        let console = self.console(CONSOLE).await?;
        match console.is_paused(DATABASE).await? {
            Some(true) => console.resume(DATABASE).await,
            Some(false) | None => Ok(()),
        }
    }

    /// The place is somebody else's: whoever waits at this door is led there.
    pub(super) async fn forward(&self, to: Option<&str>) -> Result<(), Fault> {
        let door = match to {
            Some(to) if to != self.here.name() => Door::Forward(to.to_owned()),
            Some(_) | None => Door::Reader,
        };
        self.set(door.clone()).await?;
        if matches!(door, Door::Forward(_)) {
            // Who still comes this way is led right; proxies have time to see the new write master before they lose this one.
            *self.led.lock().unwrap_or_else(PoisonError::into_inner) =
                Led { looked: Instant::now() + LINGER, clients: None };
            self.board.door(door.word(), true, Some(boot_now() + LINGER));
        }
        self.resume().await
    }
}

fn is_open(file: &std::path::Path, token: Option<&str>) -> bool {
    match token.and_then(|token| read_deadline(file, token)) {
        Some(Until::Open) => true,
        Some(Until::At(at)) => fence::boot_now() < at,
        None => false,
    }
}
