//! Watches: order, resuming, nothing lost, nothing twice.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use quorate_coordination::{Event, History, Position, Revision, Scope, Store, Turn, Watch};

use crate::support::{LIMIT, World};

const SHORT: Duration = Duration::from_millis(300);

/// Events as text: `put k=v`, `gone k`.
pub(crate) fn shown(event: &Event) -> String {
    match event {
        Event::Put(entry) => format!("put {}={}", entry.key.escape_ascii(), entry.value.escape_ascii()),
        Event::Delete { key, .. } => format!("gone {}", key.escape_ascii()),
    }
}

/// Takes events until `count` came; panics when they do not come.
pub(crate) async fn take(watch: &mut Watch, count: usize) -> Vec<Event> {
    let (mut seen, start) = (Vec::new(), Instant::now());
    while seen.len() < count {
        assert!(start.elapsed() < LIMIT, "only {} of {count} events came: {seen:?}", seen.len());
        match watch.next(Duration::from_secs(5)).await {
            Ok(Turn::Events(events)) => seen.extend(events),
            Ok(Turn::Quiet) | Err(_) => {}
            Ok(gone @ Turn::Compacted { .. }) => panic!("{gone:?}"),
        }
    }
    seen
}

/// The next events, as text.
async fn told(watch: &mut Watch, count: usize) -> Vec<String> {
    take(watch, count).await.iter().map(shown).collect()
}

/// Nothing comes for a moment.
async fn nothing_more(watch: &mut Watch) {
    assert_eq!(watch.next(SHORT).await.unwrap(), Turn::Quiet);
}

pub(crate) async fn watch_all(store: &Store, scope: Scope) -> Watch {
    let listing = store.list(&scope).await.unwrap();
    store.watch(&scope, listing.position()).unwrap()
}

pub(crate) async fn a_watch_tells_what_happens_after_a_list_in_order(world: &World) {
    let store = world.store().await;
    store.put("w/old", "1").await.unwrap();
    let mut watch = watch_all(&store, Scope::prefix("w/")).await;
    // One at a time, so that a store without history tells each.
    for (key, value) in [("w/a", "1"), ("w/b", "2"), ("w/a", "3")] {
        let revision = store.put(key, value).await.unwrap();
        let events = take(&mut watch, 1).await;
        assert_eq!(events.iter().map(shown).collect::<Vec<_>>(), [format!("put {key}={value}")]);
        assert_eq!(events[0].revision(), revision);
    }
    nothing_more(&mut watch).await;
}

pub(crate) async fn a_watch_on_a_key_tells_of_no_other(world: &World) {
    let store = world.store().await;
    let mut watch = watch_all(&store, Scope::key("k")).await;
    store.put("k2", "x").await.unwrap();
    store.put("k/1", "x").await.unwrap();
    store.put("j", "x").await.unwrap();
    store.put("k", "1").await.unwrap();
    assert_eq!(told(&mut watch, 1).await, ["put k=1"]);
    store.delete("k2").await.unwrap();
    store.delete("k").await.unwrap();
    assert_eq!(told(&mut watch, 1).await, ["gone k"]);
    store.put("k", "2").await.unwrap();
    assert_eq!(told(&mut watch, 1).await, ["put k=2"]);
    nothing_more(&mut watch).await;
}

pub(crate) async fn a_watch_on_a_prefix_tells_deletions(world: &World) {
    let store = world.store().await;
    let kept = store.put("w/kept", "1").await.unwrap();
    store.put("w/gone", "1").await.unwrap();
    store.put("other", "1").await.unwrap();
    let mut watch = watch_all(&store, Scope::prefix("w/")).await;
    store.delete("other").await.unwrap();
    store.delete("w/gone").await.unwrap();
    let events = take(&mut watch, 1).await;
    assert_eq!(shown(&events[0]), "gone w/gone");
    assert!(events[0].revision() > kept);
    // Deleted and made again is a new key.
    store.delete("w/kept").await.unwrap();
    assert_eq!(told(&mut watch, 1).await, ["gone w/kept"]);
    store.put("w/kept", "1").await.unwrap();
    assert_eq!(told(&mut watch, 1).await, ["put w/kept=1"]);
    nothing_more(&mut watch).await;
}

pub(crate) async fn a_watch_on_everything_tells_keys_of_any_bytes(world: &World) {
    let store = world.store().await;
    let mut everything = watch_all(&store, Scope::prefix("")).await;
    let mut high = watch_all(&store, Scope::prefix(b"\xff")).await;
    for key in [&b"\xff"[..], b"\xff\xff", b"\xfe", b"/", b"a b"] {
        store.put(key, "x").await.unwrap();
    }
    let keys: BTreeSet<Vec<u8>> = take(&mut everything, 5).await.iter().map(|event| event.key().to_vec()).collect();
    assert_eq!(keys.len(), 5);
    assert_eq!(told(&mut high, 2).await, ["put \\xff=x", "put \\xff\\xff=x"]);
    nothing_more(&mut high).await;
}

pub(crate) async fn a_quiet_watch_says_so(world: &World) {
    let store = world.store().await;
    let mut watch = watch_all(&store, Scope::prefix("quiet/")).await;
    nothing_more(&mut watch).await;
    store.put("loud", "x").await.unwrap();
    nothing_more(&mut watch).await;
}

pub(crate) async fn a_watch_goes_on_where_another_was(world: &World) {
    let store = world.store().await;
    for key in ["w/1", "w/2", "w/3"] {
        store.put(key, "old").await.unwrap();
    }
    let mut first = watch_all(&store, Scope::prefix("w/")).await;
    store.put("w/4", "seen").await.unwrap();
    assert_eq!(told(&mut first, 1).await, ["put w/4=seen"]);
    let position = first.position();
    drop(first);
    store.put("w/1", "new").await.unwrap();
    store.delete("w/2").await.unwrap();
    store.delete("w/4").await.unwrap();
    // A position from a watch knows keys where that is needed, and only there.
    let mut second = store.watch(&Scope::prefix("w/"), position).unwrap();
    let mut told = told(&mut second, 3).await;
    told.sort();
    assert_eq!(told, ["gone w/2", "gone w/4", "put w/1=new"]);
    nothing_more(&mut second).await;
}

pub(crate) async fn a_revision_alone_resumes_or_is_compacted(world: &World) {
    let store = world.store().await;
    let first = store.put("w/1", "1").await.unwrap();
    store.put("w/1", "2").await.unwrap();
    store.put("w/2", "3").await.unwrap();
    store.delete("w/1").await.unwrap();
    let mut watch = store.watch(&Scope::prefix("w/"), Position::at(first)).unwrap();
    match store.history() {
        History::EveryWrite => {
            assert_eq!(told(&mut watch, 3).await, ["put w/1=2", "put w/2=3", "gone w/1"]);
            nothing_more(&mut watch).await;
        }
        // What was deleted since cannot be known, and is not passed over in silence.
        History::LastWrites => assert_eq!(watch.next(LIMIT).await.unwrap(), Turn::Compacted { oldest: None }),
    }
}

pub(crate) async fn waits_that_are_given_up_lose_nothing(world: &World) {
    let store = world.store().await;
    let mut watch = watch_all(&store, Scope::prefix("w/")).await;
    let writer = store.clone();
    let writing = tokio::spawn(async move {
        for i in 0..40 {
            writer.put(format!("w/{i:02}"), "x").await.unwrap();
        }
    });
    let (mut seen, start) = (Vec::new(), Instant::now());
    while seen.len() < 40 {
        assert!(start.elapsed() < LIMIT, "only {} came", seen.len());
        // Given up at another moment each time.
        let patience =
            Duration::from_micros(200 + 137 * (seen.len() as u64 % 97) + start.elapsed().as_micros() as u64 % 9000);
        match tokio::time::timeout(patience, watch.next(LIMIT)).await {
            Ok(Ok(Turn::Events(events))) => seen.extend(events.iter().map(shown)),
            Ok(other) => panic!("{other:?}"),
            Err(_) => {}
        }
    }
    writing.await.unwrap();
    assert_eq!(seen, (0..40).map(|i| format!("put w/{i:02}=x")).collect::<Vec<_>>());
}

/// What concurrent writers did, and what was told of it, must agree.
pub(crate) struct Ledger {
    written: Vec<(Vec<u8>, Revision)>,
}

impl Ledger {
    /// `writers` tasks write `each` values to keys of their own and to one that they share.
    pub(crate) async fn write(store: &Store, writers: usize, each: usize) -> Ledger {
        let writer = |who: usize| {
            let store = store.clone();
            tokio::spawn(async move {
                let mut written = Vec::new();
                for i in 0..each {
                    for key in [format!("w/{who}/{:02}", i % 7), "w/shared".to_owned()] {
                        let revision = store.put(key.clone(), format!("{who}-{i}")).await.unwrap();
                        written.push((key.into_bytes(), revision));
                    }
                }
                written
            })
        };
        let tasks: Vec<_> = (0..writers).map(writer).collect();
        let mut written = Vec::new();
        for task in tasks {
            written.extend(task.await.unwrap());
        }
        Ledger { written }
    }

    /// Takes events until the last write of each key was told, and checks them all.
    pub(crate) async fn check(mut self, watch: &mut Watch, history: History) {
        self.written.sort_by_key(|(_, revision)| *revision);
        let mut last: BTreeMap<Vec<u8>, Revision> = self.written.iter().cloned().collect();
        let mut told: Vec<(Vec<u8>, Revision)> = Vec::new();
        let start = Instant::now();
        while !last.is_empty() {
            assert!(start.elapsed() < LIMIT, "never told: {last:?}");
            let Ok(turn) = watch.next(Duration::from_secs(5)).await else { continue };
            let Turn::Events(events) = turn else {
                assert_eq!(turn, Turn::Quiet);
                continue;
            };
            for event in events {
                assert!(matches!(event, Event::Put(_)), "{event:?}");
                let write = (event.key().to_vec(), event.revision());
                if last.get(&write.0) == Some(&write.1) {
                    last.remove(&write.0);
                }
                told.push(write);
            }
        }
        assert!(told.windows(2).all(|pair| pair[0].1 < pair[1].1), "order, or repetition: {told:?}");
        match history {
            History::EveryWrite => assert_eq!(told, self.written),
            History::LastWrites => assert!(told.iter().all(|write| self.written.contains(write)), "{told:?}"),
        }
    }
}

pub(crate) async fn concurrent_writers_are_told_without_loss_or_repetition(world: &World) {
    let store = world.store().await;
    let mut watch = watch_all(&store, Scope::prefix("w/")).await;
    let (ledger, mut watch) = tokio::join!(Ledger::write(&store, 4, 10), async {
        // The watch is awake while they write; what it says then is thrown into the same check below.
        let early = watch.next(SHORT).await.unwrap();
        (watch, early)
    });
    let early = match std::mem::replace(&mut watch.1, Turn::Quiet) {
        Turn::Events(events) => events,
        Turn::Quiet => Vec::new(),
        gone @ Turn::Compacted { .. } => panic!("{gone:?}"),
    };
    let mut rest = ledger;
    let early: Vec<(Vec<u8>, Revision)> = early.iter().map(|event| (event.key().to_vec(), event.revision())).collect();
    assert!(early.iter().all(|write| rest.written.contains(write)), "{early:?}");
    let newest = early.iter().map(|(_, revision)| *revision).max().unwrap_or_default();
    // Everything up to what was told is told; of the rest nothing may be missing.
    let mut before: Vec<_> = rest.written.iter().filter(|(_, revision)| *revision <= newest).cloned().collect();
    before.sort_by_key(|(_, revision)| *revision);
    if store.history() == History::EveryWrite {
        assert_eq!(early, before);
    }
    let mut all = rest.written.clone();
    all.sort_by_key(|(_, revision)| *revision);
    let last: BTreeMap<Vec<u8>, Revision> = all.into_iter().collect();
    let due = last.into_iter().filter(|(_, revision)| *revision <= newest);
    assert!(due.into_iter().all(|write| early.contains(&write)), "left out of {early:?}");
    rest.written.retain(|(_, revision)| *revision > newest);
    rest.check(&mut watch.0, store.history()).await;
    nothing_more(&mut watch.0).await;
}

pub(crate) async fn several_watches_tell_the_same(world: &World) {
    let store = world.store().await;
    let mut watches = Vec::new();
    for _ in 0..5 {
        watches.push(watch_all(&store, Scope::prefix("w/")).await);
    }
    for i in 0..10 {
        store.put(format!("w/{i}"), "x").await.unwrap();
    }
    for watch in &mut watches {
        assert_eq!(told(watch, 10).await, (0..10).map(|i| format!("put w/{i}=x")).collect::<Vec<_>>());
    }
}
