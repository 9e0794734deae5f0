//! A load that never pauses: writes one key after the other and watches them all, and knows afterwards whether any was lost.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use quorate_etcd::client::{Client, KeyRange, Settings, WatchFrom, WatchTurn};
use quorate_faults::{Code, Fault};
use quorate_testkit::Hosts;

use super::{ELECTION_MS, LIMIT};

/// A write that nobody answers is written again after this: what was sent to a leader that just handed over is lost, and etcd says so
/// only after seven seconds.
const AGAIN: Duration = Duration::from_millis(ELECTION_MS);

/// Writes one key after the other and watches them all, through one member.
pub(crate) struct Load {
    stop: Arc<AtomicBool>,
    written: Arc<AtomicU64>,
    work: Option<JoinHandle<Seen>>,
    /// Whether the watch may break, since the member that it goes through may be restarted.
    may_break: bool,
}

/// What a load saw.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// Keys `w/0` to `w/<n-1>` were acknowledged.
    pub(crate) acknowledged: u64,
    /// The longest time between two acknowledged writes.
    pub(crate) longest: Duration,
    /// Revisions that the watch told, in its order.
    pub(crate) revisions: Vec<i64>,
    /// Keys that it told.
    pub(crate) keys: BTreeSet<String>,
    /// Keys that are there at the end.
    pub(crate) kept: BTreeSet<String>,
    /// How often the watch broke, and went on where it was.
    pub(crate) breaks: u32,
    /// Errors that a client of etcd does not try again after: it was not let in, or not heard.
    pub(crate) refusals: Vec<String>,
}

impl Load {
    pub(crate) fn start(hosts: Arc<Hosts>, at: usize, settings: Settings, may_break: bool) -> Load {
        Load::run(may_break, move |stop, written| hosts[at].within(|| work(settings, stop, written)))
    }

    /// The same on this machine itself, where the watch may break.
    pub(crate) fn start_here(settings: Settings) -> Load {
        Load::run(true, move |stop, written| work(settings, stop, written))
    }

    fn run(may_break: bool, work: impl FnOnce(&AtomicBool, &AtomicU64) -> Seen + Send + 'static) -> Load {
        let (stop, written) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (ends, counts) = (Arc::clone(&stop), Arc::clone(&written));
        let work = std::thread::spawn(move || work(&ends, &counts));
        Load { stop, written, work: Some(work), may_break }
    }

    /// Waits until so many more writes were acknowledged.
    #[track_caller]
    pub(crate) fn goes_on(&self, more: u64) {
        let (from, begun) = (self.written.load(Ordering::Relaxed), Instant::now());
        while self.written.load(Ordering::Relaxed) < from + more {
            assert!(begun.elapsed() < LIMIT, "writes do not go on");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Ends it: nothing acknowledged is lost, and the watch told every event once and in order.
    #[track_caller]
    pub(crate) fn finish(mut self) -> Seen {
        self.stop.store(true, Ordering::Relaxed);
        let seen = self.work.take().unwrap().join().unwrap();
        let wanted: BTreeSet<String> = (0..seen.acknowledged).map(key).collect();
        let lost: Vec<&String> = wanted.difference(&seen.kept).collect();
        assert!(lost.is_empty(), "acknowledged and lost: {lost:?}");
        let untold: Vec<&String> = wanted.difference(&seen.keys).collect();
        assert!(untold.is_empty(), "never told by the watch: {untold:?}");
        assert!(seen.revisions.windows(2).all(|two| two[0] < two[1]), "an event came twice, or out of order");
        assert!(seen.acknowledged > 0);
        assert!(self.may_break || seen.breaks == 0, "the watch broke {} times", seen.breaks);
        seen
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn key(number: u64) -> String {
    format!("w/{number:08}")
}

fn work(settings: Settings, stop: &AtomicBool, written: &AtomicU64) -> Seen {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(write_and_watch(settings, stop, written))
}

/// Notes an error that a client does not try again after. `fresh`: it has just read its certificates. One that was connected before
/// the authorities changed knows the old ones alone until it connects anew.
fn note(refusals: &RefCell<Vec<String>>, fault: &Fault, fresh: bool) {
    /// The server's certificate is not accepted, or that of the client is not.
    const STALE: [&str; 2] = ["invalid peer certificate", "fatal alert: unknownca"];
    const REFUSED: [&str; 3] = ["fatal alert", "permission denied", "unauthenticated"];
    /// What a member says that loses its leader at that moment.
    const AGAIN: &str = "raft proposal dropped";
    let mut text = fault.to_string();
    let mut cause = std::error::Error::source(fault);
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    let lower = text.to_lowercase();
    let refused = fault.code() == Code::EtcdRefused && !lower.contains(AGAIN);
    let stale = !fresh && STALE.iter().any(|word| lower.contains(word));
    let rejected = lower.contains(STALE[0]) || REFUSED.iter().any(|word| lower.contains(word));
    if refused || (rejected && !stale) {
        refusals.borrow_mut().push(text);
    }
}

async fn write_and_watch(settings: Settings, stop: &AtomicBool, written: &AtomicU64) -> Seen {
    let refusals = RefCell::new(Vec::new());
    let client = connect(&settings, &refusals).await;
    let range = KeyRange::prefix("w/");
    let mut from = client.header().await.unwrap().revision + 1;
    let mut seen = Seen::default();
    let writer = async {
        let mut client = client.with_timeout(AGAIN);
        let (mut number, mut longest, mut last) = (0, Duration::ZERO, Instant::now());
        let mut settings = settings.clone();
        while !stop.load(Ordering::Relaxed) {
            match client.put(key(number), "v").await {
                Ok(_) => {
                    longest = longest.max(last.elapsed());
                    (number, last) = (number + 1, Instant::now());
                    written.store(number, Ordering::Relaxed);
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                // No word is no promise: the same key is written again, and first to another, since this one may be cut off.
                Err(fault) => {
                    note(&refusals, &fault, false);
                    settings.endpoints.rotate_left(1);
                    client = connect(&settings, &refusals).await.with_timeout(AGAIN);
                }
            }
        }
        (number, longest)
    };
    let (told, breaks) = (RefCell::new((Vec::new(), BTreeSet::new())), Cell::new(0));
    {
        let watcher = async {
            loop {
                let client = connect(&settings, &refusals).await;
                let Ok(mut watch) = client.watch_range(&range, WatchFrom { revision: from, progress: false }).await
                else {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    continue;
                };
                while let Ok(turn) = watch.next().await {
                    match turn {
                        WatchTurn::Events { events, .. } => {
                            for event in events {
                                assert!(!event.is_delete());
                                let kv = event.kv.unwrap();
                                from = kv.mod_revision + 1;
                                let (revisions, keys) = &mut *told.borrow_mut();
                                revisions.push(kv.mod_revision);
                                keys.insert(String::from_utf8(kv.key.to_vec()).unwrap());
                            }
                        }
                        WatchTurn::Progress { .. } => {}
                        WatchTurn::Compacted { oldest } => panic!("compacted up to {oldest}"),
                    }
                }
                breaks.set(breaks.get() + 1);
            }
        };
        tokio::pin!(watcher);
        tokio::select! {
            ended = writer => (seen.acknowledged, seen.longest) = ended,
            () = &mut watcher => {}
        }
        // The last ones may still be under way.
        let begun = Instant::now();
        let last = seen.acknowledged.checked_sub(1).map(key);
        while last.as_ref().is_some_and(|last| !told.borrow().1.contains(last)) && begun.elapsed() < LIMIT {
            let _ = tokio::time::timeout(Duration::from_millis(20), &mut watcher).await;
        }
    }
    ((seen.revisions, seen.keys), seen.breaks) = (told.into_inner(), breaks.get());
    let listing = connect(&settings, &refusals).await.list("w/").await.unwrap();
    seen.refusals = refusals.into_inner();
    seen.kept = listing.kvs.into_iter().map(|kv| String::from_utf8(kv.key).unwrap()).collect();
    seen
}

async fn connect(settings: &Settings, refusals: &RefCell<Vec<String>>) -> Client {
    let begun = Instant::now();
    loop {
        match Client::connect(settings).await {
            Ok(client) => return client,
            Err(fault) => {
                note(refusals, &fault, true);
                assert!(begun.elapsed() < LIMIT, "{fault}");
            }
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
