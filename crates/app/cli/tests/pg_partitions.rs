//! A write master that is cut off: from clients, from other nodes, from the store; and one whose agent stands still.
//!
//! On every host somebody tries to write through the pooler of that very host all the time. Writes may move from one node to
//! another no more often than the write master was replaced.

#![expect(clippy::print_stderr, clippy::unwrap_used, reason = "it says how long it took, and where it cannot go on")]

mod pg_support;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use pg_support::{CLIENT_HOST, Group, LIMIT, POOLER, STORE_HOST, WRITE, once};
use quorate_postgres::group::{round_trip, same_everywhere};
use quorate_postgres::sql::{Client, Limits, Place};
use rustix::process::Signal;

/// A write that succeeded: which row, on which node, and between which moments.
#[derive(Debug, Clone, Copy)]
struct Written {
    row: u64,
    at: usize,
    from: Instant,
    until: Instant,
}

/// Writes through the pooler of a host until it is told to stop.
async fn write(at: usize, place: Place, stop: &AtomicBool, written: &Mutex<Vec<Written>>) {
    static ROWS: AtomicU64 = AtomicU64::new(0);
    let second = Duration::from_secs(1);
    let limits = Limits { connect: second, statement: 3 * second, lock: second };
    let mut kept: Option<Client> = None;
    while !stop.load(Ordering::Relaxed) {
        let row = ROWS.fetch_add(1, Ordering::Relaxed);
        let client = match kept.take() {
            Some(client) => Ok(client),
            None => Client::connect(&place, limits).await,
        };
        let from = Instant::now();
        if let Ok(client) = client {
            let sql = format!("INSERT INTO rdpg.events (host, key, msg) VALUES ('n{}', 'k', '{row}')", at + 1);
            if client.batch(&sql).await.is_ok() {
                written.lock().unwrap().push(Written { row, at, from, until: Instant::now() });
                // The same session goes on: one that was there before must not write after its time.
                kept = Some(client);
            }
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Somebody on every host who writes all the time.
struct Writers {
    stop: Arc<AtomicBool>,
    written: Arc<Mutex<Vec<Written>>>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Writers {
    fn begin(group: &Group) -> Writers {
        let (stop, written) = (Arc::<AtomicBool>::default(), Arc::<Mutex<Vec<Written>>>::default());
        let begin = |at: usize| {
            let (hosts, place) = (Arc::clone(group.hosts.as_ref().unwrap()), group.door(at, POOLER));
            let (stop, written) = (Arc::clone(&stop), Arc::clone(&written));
            std::thread::spawn(move || hosts[at].within(|| alone().block_on(write(at, place, &stop, &written))))
        };
        let threads = (0..3).map(begin).collect();
        Writers { stop, written, threads }
    }

    /// Whether a node has taken a write since.
    fn since(&self, begun: Instant) -> Option<usize> {
        self.written.lock().unwrap().iter().find(|written| written.from > begun).map(|written| written.at)
    }

    /// Whether another node has taken a write.
    fn others(&self, master: usize) -> bool {
        self.written.lock().unwrap().iter().any(|written| written.at != master)
    }

    /// Ends it. The place moved no more often than its epoch grew, so no two nodes took writes by turns.
    fn end(mut self, epochs: u64) -> Vec<u64> {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().unwrap();
        }
        let mut written = self.written.lock().unwrap().clone();
        written.sort_by_key(|written| written.until);
        let moves: Vec<&[Written]> = written.windows(2).filter(|pair| pair[0].at != pair[1].at).collect();
        assert!(moves.len() as u64 <= epochs, "the epoch grew by {epochs}, and writes moved: {moves:?}");
        written.iter().map(|written| written.row).collect()
    }
}

impl Drop for Writers {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn alone() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// Writes from the host of the clients until it succeeds.
fn a_client_writes(group: &Group, at: usize, which: usize) {
    let place = group.door(at, which);
    let sql = "INSERT INTO rdpg.events (host, key, msg) VALUES ('client', 'c', 'm')";
    let begun = Instant::now();
    while let Err(why) = group.hosts.as_ref().unwrap()[CLIENT_HOST].within(|| alone().block_on(once(&place, sql))) {
        assert!(begun.elapsed() < LIMIT, "a client cannot write through n{}: {why}", at + 1);
    }
}

/// All that was acknowledged is everywhere, once.
fn all_is_there(group: &Group, rows: &[u64]) {
    alone().block_on(async {
        let seats = group.seats().await;
        round_trip(&seats, LIMIT).await.unwrap();
        same_everywhere(&seats, LIMIT).await.unwrap();
        let there: Vec<String> =
            seats[0].client.values("SELECT msg FROM rdpg.events WHERE key = 'k'", &[]).await.unwrap();
        let there: BTreeSet<u64> = there.iter().filter_map(|row| row.parse().ok()).collect();
        let missing: Vec<&u64> = rows.iter().filter(|row| !there.contains(row)).collect();
        assert!(missing.is_empty(), "of {} rows are missing: {missing:?}", rows.len());
    });
}

/// What befalls the write master.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// No client reaches it.
    NoClients,
    /// No other node reaches it.
    NoPeers,
    /// It does not reach the store.
    NoStore,
    /// It reaches neither.
    Alone,
    /// Its agent stands still.
    Still,
}

fn befall(group: &mut Group, fate: Fate) {
    let hosts = Arc::clone(group.hosts.as_ref().unwrap());
    let master = group.writer().unwrap();
    let others: Vec<usize> = (0..3).filter(|at| *at != master).collect();
    eprintln!("n{} is the write master: {fate:?}", master + 1);
    let epoch = |group: &Group| group.overview()["writer_epoch"].as_u64().unwrap();
    let before = epoch(group);
    let writers = Writers::begin(group);
    let first = Instant::now();
    group.wait("somebody writes", |_| writers.since(first).is_some());
    match fate {
        Fate::NoClients => hosts.partition(CLIENT_HOST, &[master]),
        Fate::NoPeers => hosts.partition(master, &others),
        Fate::NoStore => hosts.partition(master, &[STORE_HOST]),
        Fate::Alone => hosts.partition(master, &[others[0], others[1], STORE_HOST]),
        Fate::Still => group.signal(master, Signal::STOP),
    }
    let begun = Instant::now();
    match fate {
        // It holds its place: who can reach a node that reaches it can write.
        Fate::NoClients => a_client_writes(group, others[0], WRITE),
        Fate::NoPeers => a_client_writes(group, master, WRITE),
        // Another one takes the place, and whoever comes is led to it.
        Fate::NoStore | Fate::Alone | Fate::Still => {
            group.wait("another takes the place", |_| writers.others(master));
            eprintln!("another one took a write {:?} later", begun.elapsed());
            a_client_writes(group, others[0], WRITE);
        }
    }
    if fate == Fate::Still {
        group.signal(master, Signal::CONT);
    }
    hosts.heal();
    group.wait_ready();
    a_client_writes(group, master, WRITE);
    let rows = writers.end(epoch(group) - before);
    all_is_there(group, &rows);
}

/// From another host, without a certificate: whether a node takes writes and reads, and nothing else.
fn strangers_learn_nothing_but_a_word(group: &Group) {
    let node = &group.nodes[group.writer().unwrap()];
    let get = |path: &str| {
        let url = format!("http://{}:{}{path}", node.address, node.ports[2]);
        group.hosts.as_ref().unwrap()[CLIENT_HOST].within(|| {
            alone().block_on(async {
                let answer = reqwest::get(url).await.unwrap();
                (answer.status().as_u16(), answer.text().await.unwrap())
            })
        })
    };
    assert_eq!(get("/reader"), (200, "reader\n".to_owned()));
    assert_eq!(get("/v1/pg"), (403, String::new()));
    // Whoever shows a certificate of a node is told, as `pg status` was.
    let told = group.overview();
    let server = told["nodes"][0]["status"]["server"].as_str();
    assert!(server.is_some_and(|server| server.starts_with(|first: char| first.is_ascii_digit())), "{told}");
}

#[test]
fn a_write_master_that_is_cut_off_is_never_a_second_one() {
    let mut group = Group::on_hosts("role: manager");
    group.start_all();
    group.wait_ready();
    strangers_learn_nothing_but_a_word(&group);
    for fate in [Fate::NoClients, Fate::NoPeers, Fate::NoStore, Fate::Still] {
        befall(&mut group, fate);
    }
    if std::env::var("QUORATE_SWEEP").is_ok_and(|sweep| sweep == "full") {
        for fate in [Fate::Alone, Fate::NoStore, Fate::Still, Fate::Alone, Fate::NoPeers, Fate::Still] {
            befall(&mut group, fate);
        }
    }
}
