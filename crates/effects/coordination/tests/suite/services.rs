//! Services: registered, watched, healthy, gone.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use quorate_coordination::{Health, Instance, Seen, ServiceTurn, ServiceWatch, Store};
use quorate_faults::Code;

use crate::support::{LIMIT, World};

/// How long an instance counts without being kept. Checks of Consul know shorter times than its sessions.
const TTL: Duration = Duration::from_secs(5);

fn instance(id: &str) -> Instance {
    Instance {
        service: "etcd".to_owned(),
        id: id.to_owned(),
        address: "10.0.0.1".to_owned(),
        port: 2379,
        meta: BTreeMap::from([("zone".to_owned(), "a".to_owned())]),
    }
}

fn shown(seen: &[Seen]) -> Vec<String> {
    seen.iter().map(|seen| format!("{} {:?} {}", seen.instance.id, seen.health, seen.note)).collect()
}

async fn until(store: &Store, what: &str, fits: impl Fn(&[Seen]) -> bool) {
    let start = Instant::now();
    loop {
        let seen = store.instances("etcd").await.unwrap();
        if fits(&seen) {
            return;
        }
        assert!(start.elapsed() < LIMIT, "waited in vain for: {what}; there are {:?}", shown(&seen));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn passing(seen: &[Seen]) -> Vec<&str> {
    let passing = seen.iter().filter(|seen| seen.health == Health::Passing);
    passing.map(|seen| seen.instance.id.as_str()).collect()
}

pub(crate) async fn an_instance_is_listed_as_it_was_registered(world: &World) {
    let store = world.store().await;
    assert_eq!(store.instances("etcd").await.unwrap(), []);
    let two = store.register(&instance("n2"), Health::Passing, TTL).await.unwrap();
    let one = store.register(&instance("n1"), Health::Warning, TTL).await.unwrap();
    until(&store, "both", |seen| seen.len() == 2 && passing(seen) == ["n2"]).await;
    let seen = store.instances("etcd").await.unwrap();
    assert_eq!((&seen[0].instance, seen[0].health), (&instance("n1"), Health::Warning));
    assert_eq!((&seen[1].instance, seen[1].health), (&instance("n2"), Health::Passing));
    assert!(one.is_registered() && two.is_registered());
    assert_eq!(store.instances("other").await.unwrap(), []);
    let bad = Instance { meta: BTreeMap::from([("a b".to_owned(), String::new())]), ..instance("n3") };
    for bad in [bad, instance("a/b"), Instance { address: String::new(), ..instance("n3") }] {
        let fault = store.register(&bad, Health::Passing, TTL).await.unwrap_err();
        assert_eq!(fault.code(), Code::CoordinationKey);
    }
}

async fn changed(watch: &mut ServiceWatch) -> Vec<Seen> {
    let start = Instant::now();
    loop {
        if let ServiceTurn::Changed(seen) = watch.next(Duration::from_secs(5)).await.unwrap() {
            return seen;
        }
        assert!(start.elapsed() < LIMIT, "nothing changes");
    }
}

/// Takes turns until one fits.
async fn told(watch: &mut ServiceWatch, wanted: &[&str]) {
    let start = Instant::now();
    loop {
        let seen = changed(watch).await;
        if shown(&seen) == wanted {
            return;
        }
        assert!(start.elapsed() < LIMIT, "waited in vain for {wanted:?}, last was {:?}", shown(&seen));
    }
}

pub(crate) async fn health_is_told_to_who_watches(world: &World) {
    let store = world.store().await;
    let mut watch = store.watch_instances("etcd").unwrap();
    assert_eq!(changed(&mut watch).await, []);
    let registration = store.register(&instance("n1"), Health::Passing, TTL).await.unwrap();
    told(&mut watch, &["n1 Passing "]).await;
    registration.set(Health::Critical, "no leader");
    told(&mut watch, &["n1 Critical no leader"]).await;
    registration.set(Health::Passing, "leader again");
    told(&mut watch, &["n1 Passing leader again"]).await;
    registration.end().await.unwrap();
    told(&mut watch, &[]).await;
    assert_eq!(watch.next(Duration::from_millis(300)).await.unwrap(), ServiceTurn::Quiet);
}

pub(crate) async fn an_instance_that_ends_is_gone(world: &World) {
    let store = world.store().await;
    let one = store.register(&instance("n1"), Health::Passing, TTL).await.unwrap();
    let _two = store.register(&instance("n2"), Health::Passing, TTL).await.unwrap();
    until(&store, "both", |seen| passing(seen) == ["n1", "n2"]).await;
    one.end().await.unwrap();
    until(&store, "one", |seen| seen.len() == 1 && passing(seen) == ["n2"]).await;
}

pub(crate) async fn an_instance_that_is_not_kept_is_no_longer_passing(world: &World) {
    let store = world.store().await;
    let kept = store.register(&instance("kept"), Health::Passing, TTL).await.unwrap();
    let left = store.register(&instance("left"), Health::Passing, TTL).await.unwrap();
    until(&store, "both", |seen| passing(seen) == ["kept", "left"]).await;
    drop(left);
    until(&store, "the kept one", |seen| passing(seen) == ["kept"]).await;
    assert!(kept.is_registered());
}

pub(crate) async fn an_instance_is_replaced_by_its_next_process(world: &World) {
    let store = world.store().await;
    let crashed = store.register(&instance("n1"), Health::Critical, Duration::from_secs(600)).await.unwrap();
    until(&store, "the first", |seen| seen.len() == 1).await;
    drop(crashed);
    let moved = Instance { address: "10.0.0.9".to_owned(), ..instance("n1") };
    let _next = store.register(&moved, Health::Passing, TTL).await.unwrap();
    until(&store, "the next", |seen| seen.len() == 1 && seen[0].instance == moved && passing(seen) == ["n1"]).await;
}

pub(crate) async fn an_instance_that_the_store_forgot_is_registered_again(world: &World) {
    let namespace = crate::support::fresh_namespace();
    let store = world.store_at(&namespace).await;
    let registration = store.register(&instance("n1"), Health::Passing, TTL).await.unwrap();
    until(&store, "it", |seen| passing(seen) == ["n1"]).await;
    match world {
        World::Consul(server) => {
            let id = format!("{}etcd-n1", namespace.replace('/', "-"));
            server.curl("PUT", &format!("agent/service/deregister/{id}"), "");
        }
        World::Memory(_) | World::Etcd(_) => {
            let lease = store.get("services/etcd/n1").await.unwrap().unwrap().lease.unwrap();
            world.end_lease(&lease);
        }
    }
    until(&store, "it to come back", |seen| passing(seen) == ["n1"]).await;
    assert!(registration.is_registered());
}

pub(crate) async fn services_of_other_namespaces_are_not_seen(world: &World) {
    let (blue, red) = (world.store().await, world.store().await);
    let _blue = blue.register(&instance("n1"), Health::Passing, TTL).await.unwrap();
    until(&blue, "it", |seen| passing(seen) == ["n1"]).await;
    assert_eq!(red.instances("etcd").await.unwrap(), []);
}
