//! Stores that die, come back, forget or are not there at all.

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

#[path = "suite/keys.rs"]
#[allow(dead_code, reason = "the suite is run by another program")]
mod keys;
mod support;
#[path = "suite/watches.rs"]
#[allow(dead_code, reason = "the suite is run by another program")]
mod watches;

use std::collections::BTreeMap;
use std::time::Duration;

use quorate_coordination::{
    ConsulSettings, Event, Health, Instance, Lease, LeaseLost, Memory, Place, Position, Scope, Settings, Store, Turn,
};
use quorate_etcd::client;
use quorate_faults::{Code, Fault};
use quorate_testkit::{Cluster, Launch, Seat, Server, VERSIONS, etcd, free_port};
use tempfile::TempDir;

use support::{ConsulServer, EtcdServer, Kind, LIMIT, World};
use watches::{shown, take, watch_all};

/// Writes through an outage: each value until the store has taken it.
async fn write_all(store: &Store, keys: std::ops::Range<usize>) {
    for i in keys {
        let start = std::time::Instant::now();
        while let Err(fault) = store.put(format!("w/{i:03}"), "x").await {
            assert_eq!(fault.code(), Code::CoordinationSilent, "{fault}");
            assert!(start.elapsed() < LIMIT, "{fault}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// Each key is told, in order. A write whose answer was lost is written again, and may be told again as a newer one.
async fn every_key_is_told(watch: &mut quorate_coordination::Watch, count: usize) {
    let mut newest = BTreeMap::new();
    let mut last = 0;
    let start = std::time::Instant::now();
    while newest.len() < count {
        assert!(start.elapsed() < LIMIT, "only {} of {count}", newest.len());
        for event in take(watch, 1).await {
            assert!(matches!(event, Event::Put(_)), "{event:?}");
            assert!(event.revision().0 > last, "{event:?} came after revision {last}");
            last = event.revision().0;
            newest.insert(event.key().to_vec(), event.revision());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_on_etcd_survives_its_server_being_killed_amid_writes() {
    for version in VERSIONS {
        let mut server = EtcdServer::start(version);
        let store = Store::open(&Settings::new(server.place(), "t/")).await.unwrap();
        let mut watch = watch_all(&store, Scope::prefix("w/")).await;
        let mut on_all = watch_all(&store, Scope::prefix("")).await;
        let writing = {
            let store = store.clone();
            tokio::spawn(async move { write_all(&store, 0..120).await })
        };
        take(&mut watch, 10).await;
        for _ in 0..2 {
            server.kill();
            server.revive();
        }
        writing.await.unwrap();
        every_key_is_told(&mut on_all, 120).await;
        // Both were cut off at other moments, and end at the same.
        store.put("w/end", "x").await.unwrap();
        let (one, two) = (until_end(&mut watch).await, until_end(&mut on_all).await);
        assert_eq!(one, two, "{version}");
    }
}

async fn until_end(watch: &mut quorate_coordination::Watch) -> Event {
    loop {
        let events = take(watch, 1).await;
        if let Some(end) = events.into_iter().find(|event| event.key() == b"w/end") {
            return end;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_on_consul_survives_its_server_being_killed() {
    let World::Consul(mut server) = World::own_consul() else { unreachable!() };
    let store = Store::open(&Settings::new(server.place(), "t/")).await.unwrap();
    store.put("w/deleted", "x").await.unwrap();
    let mut watch = watch_all(&store, Scope::prefix("w/")).await;
    let writing = {
        let store = store.clone();
        tokio::spawn(async move { write_all(&store, 0..60).await })
    };
    take(&mut watch, 1).await;
    server.kill();
    server.revive();
    writing.await.unwrap();
    let listing = store.list(&Scope::prefix("w/")).await.unwrap();
    assert_eq!(listing.entries.len(), 61);
    store.delete("w/deleted").await.unwrap();
    let mut seen: BTreeMap<Vec<u8>, u64> = BTreeMap::new();
    loop {
        let events = take(&mut watch, 1).await;
        let deleted = events.iter().any(|event| matches!(event, Event::Delete { .. }));
        for event in events.iter().filter(|event| matches!(event, Event::Put(_))) {
            let last = seen.insert(event.key().to_vec(), event.revision().0).unwrap_or(0);
            assert!(event.revision().0 > last, "told twice: {event:?}");
        }
        if deleted {
            break;
        }
    }
    let position = watch.position().known.unwrap();
    assert_eq!(position.len(), 60, "what the watch knows is what is there");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn history_that_is_gone_is_said_to_be_compacted() {
    for world in [World::own_memory(), World::own_etcd("3.4.23"), World::own_etcd("sid")] {
        let store = world.store_at("t/").await;
        let first = store.put("k", "1").await.unwrap();
        let last = {
            store.put("k", "2").await.unwrap();
            store.put("k", "3").await.unwrap()
        };
        world.compact(last);
        let mut late = store.watch(&Scope::key("k"), Position::at(first)).unwrap();
        assert_eq!(late.next(LIMIT).await.unwrap(), Turn::Compacted { oldest: Some(last) }.normal(&world));
        assert!(matches!(late.next(LIMIT).await.unwrap(), Turn::Compacted { .. }), "it stays so");
        // From there on everything is told.
        let listing = store.list(&Scope::key("k")).await.unwrap();
        let mut fresh = store.watch(&Scope::key("k"), listing.position()).unwrap();
        store.put("k", "4").await.unwrap();
        assert_eq!(shown(&take(&mut fresh, 1).await[0]), "put k=4");
    }
}

/// The store in memory counts what it can tell, etcd what it can read.
trait Normal {
    fn normal(self, world: &World) -> Turn;
}

impl Normal for Turn {
    fn normal(self, world: &World) -> Turn {
        match (self, world) {
            (Turn::Compacted { oldest: Some(oldest) }, World::Memory(_)) => {
                Turn::Compacted { oldest: Some(quorate_coordination::Revision(oldest.0 + 1)) }
            }
            (turn, _) => turn,
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_etcd_that_lost_its_data_is_not_taken_for_a_quiet_one() {
    let mut server = EtcdServer::start("3.5.16");
    let store = Store::open(&Settings::new(server.place(), "t/")).await.unwrap();
    for i in 0..10 {
        store.put("k", i.to_string()).await.unwrap();
    }
    let mut watch = watch_all(&store, Scope::prefix("")).await;
    assert_eq!(watch.next(Duration::from_millis(300)).await.unwrap(), Turn::Quiet);
    server.kill();
    server.lose_data();
    server.revive();
    let start = std::time::Instant::now();
    loop {
        assert!(start.elapsed() < LIMIT);
        match watch.next(Duration::from_secs(5)).await {
            Ok(Turn::Compacted { oldest: None }) => break,
            Ok(Turn::Quiet) | Err(_) => {}
            Ok(other) => panic!("{other:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consul_whose_index_goes_back_is_compared_anew() {
    let mut server = ConsulServer::start(Kind::Fleeting, "");
    let store = Store::open(&Settings::new(server.place(), "t/")).await.unwrap();
    for i in 0..30 {
        store.put("w/old", i.to_string()).await.unwrap();
    }
    let mut watch = watch_all(&store, Scope::prefix("w/")).await;
    assert_eq!(watch.next(Duration::from_millis(300)).await.unwrap(), Turn::Quiet);
    let before = watch.position().revision;
    server.kill();
    // It keeps nothing, so it begins again with low indexes.
    server.revive();
    let new = store.put("w/new", "x").await.unwrap();
    assert!(new < before, "{new} is not below {before}, so the test shows nothing");
    let mut told: Vec<String> = Vec::new();
    while told.len() < 2 {
        told.extend(take(&mut watch, 1).await.iter().map(shown));
    }
    told.sort();
    assert_eq!(told, ["gone w/old", "put w/new=x"]);
    store.put("w/new", "y").await.unwrap();
    assert_eq!(shown(&take(&mut watch, 1).await[0]), "put w/new=y");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_whose_store_stays_away_is_lost_and_its_lock_with_it() {
    let memory = Memory::new(100);
    let mut etcd = EtcdServer::start("3.5.16");
    let in_memory = Store::in_memory(&memory, "t/").unwrap();
    let on_etcd = Store::open(&Settings::new(etcd.place(), "t/")).await.unwrap();
    let mut held = Vec::new();
    for store in [&in_memory, &on_etcd] {
        let lease = store.lease(Duration::from_secs(5)).await.unwrap();
        let lock = store.lock("l", &lease, "one", LIMIT).await.unwrap();
        assert!(lock.is_held());
        held.push((lease, lock));
    }
    memory.set_away(true);
    etcd.kill();
    // Nothing is renewed from here on, so when its time has passed nobody may believe in the lease, however busy we are.
    tokio::time::sleep(Duration::from_secs(5)).await;
    for (lease, lock) in &held {
        assert!(!lock.is_held() && !lease.is_alive());
        let lost = tokio::time::timeout(LIMIT, lease.lost()).await.expect("the loss is noticed");
        assert_eq!(lost, LeaseLost::NotRenewed);
        tokio::time::timeout(LIMIT, lock.lost()).await.expect("the loss is noticed");
    }
}

/// Renews a lease; a leader that was just elected may need a moment.
async fn renewed(store: &Store, lease: &Lease) -> Option<Duration> {
    let start = std::time::Instant::now();
    loop {
        match store.renew(lease.id()).await {
            Ok(renewed) => return renewed,
            Err(fault) => assert!(start.elapsed() < LIMIT, "{fault}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_survives_a_short_outage_and_its_lock_too() {
    let mut server = EtcdServer::start("3.5.16");
    let store = Store::open(&Settings::new(server.place(), "t/")).await.unwrap();
    let lease = store.lease(LIMIT).await.unwrap();
    let lock = store.lock("l", &lease, "one", LIMIT).await.unwrap();
    server.kill();
    server.revive();
    write_all(&store, 0..1).await;
    assert_eq!(renewed(&store, &lease).await, Some(LIMIT));
    assert!(lock.is_held());
    let fenced = quorate_coordination::Txn { when: vec![lock.fence()], then: Vec::new() };
    assert!(matches!(store.txn(&fenced).await.unwrap(), quorate_coordination::Outcome::Committed(_)));
    lock.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_of_three_members_goes_on_without_one() {
    let (seats, dir) = (Seat::many(3), TempDir::new().unwrap());
    let all: Vec<String> = seats.iter().map(|seat| format!("{}={}", seat.name, seat.peer_url())).collect();
    let launch = |seat: &Seat| {
        Launch::new(&etcd("3.5.16"), seat, &dir.path().join(&seat.name))
            .arg(format!("--initial-advertise-peer-urls={}", seat.peer_url()))
            .arg(format!("--initial-cluster={}", all.join(",")))
    };
    let mut servers: Vec<Option<Server>> =
        Cluster::launch(seats.iter().map(launch).collect()).servers.into_iter().map(Some).collect();
    let place = Place::Etcd(client::Settings::new(seats.iter().map(Seat::client_url)));
    let store = Store::open(&Settings::new(place, "t/")).await.unwrap();
    let lease = store.lease(LIMIT).await.unwrap();
    let lock = store.lock("l", &lease, "one", LIMIT).await.unwrap();
    let mut watch = watch_all(&store, Scope::prefix("w/")).await;
    for (round, seat) in seats.iter().enumerate() {
        // One of the three led, and one was asked first.
        servers[round].take().unwrap().kill();
        write_all(&store, round * 20..(round + 1) * 20).await;
        assert_eq!(renewed(&store, &lease).await, Some(LIMIT));
        servers[round] = Some(launch(seat).start());
    }
    every_key_is_told(&mut watch, 60).await;
    assert!(lock.is_held());
    lock.release().await.unwrap();
}

/// What every question to a store that is not there leads to.
async fn everything_is_silent(store: &Store) {
    let silent = |what: &str, fault: Option<Fault>| {
        let fault = fault.unwrap_or_else(|| panic!("{what}: an answer of nobody"));
        assert_eq!(fault.code(), Code::CoordinationSilent, "{what}: {fault}");
        assert!(fault.hint_text().is_some(), "{what}: no way out");
    };
    let second = Duration::from_secs(1);
    let instance =
        Instance { service: "s".into(), id: "i".into(), address: "h".into(), port: 1, meta: BTreeMap::new() };
    silent("ready", store.ready().await.err());
    silent("get", store.get("k").await.err());
    silent("list", store.list(&Scope::prefix("")).await.err());
    silent("put", store.put("k", "x").await.err());
    silent("create", store.create("k", "x").await.err());
    silent("delete", store.delete("k").await.err());
    silent("lease", store.lease(second).await.err());
    silent("instances", store.instances("s").await.err());
    silent("register", store.register(&instance, Health::Passing, second).await.err());
    let position = Position { known: Some(BTreeMap::new()), ..Position::at(quorate_coordination::Revision(1)) };
    let mut watch = store.watch(&Scope::prefix(""), position).unwrap();
    silent("watch", watch.next(second).await.err());
    silent("watch again", watch.next(Duration::ZERO).await.err());
    silent("services", store.watch_instances("s").unwrap().next(second).await.err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_is_not_there_is_a_fault_and_never_empty() {
    let nobody = free_port();
    let url = format!("http://127.0.0.1:{nobody}");
    let etcd = Place::Etcd(client::Settings::new([url.clone()]));
    let consul = Place::Consul(ConsulSettings::new(url));
    for place in [etcd, consul] {
        everything_is_silent(&Store::open(&Settings::new(place, "t/")).await.unwrap()).await;
    }
    let memory = Memory::new(10);
    memory.set_away(true);
    everything_is_silent(&Store::in_memory(&memory, "t/").unwrap()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_takes_connections_and_says_nothing_is_given_up_in_time() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let silence = tokio::spawn(async move {
        let mut open = Vec::new();
        loop {
            open.push(listener.accept().await.unwrap());
        }
    });
    let etcd = Place::Etcd(client::Settings::new([url.clone()]));
    let consul = Place::Consul(ConsulSettings::new(url));
    for place in [etcd, consul] {
        let settings = Settings { limit: Duration::from_secs(1), ..Settings::new(place, "t/") };
        let store = Store::open(&settings).await.unwrap();
        let asked = tokio::time::timeout(LIMIT, store.get("k")).await.expect("it ends by itself");
        assert_eq!(asked.unwrap_err().code(), Code::CoordinationSilent);
        let put = tokio::time::timeout(LIMIT, store.put("k", "x")).await.expect("it ends by itself").unwrap_err();
        let hint = put.hint_text().unwrap_or_default();
        assert!(hint.starts_with("it is not known whether the change took effect"), "{hint}");
    }
    silence.abort();
}
