//! Leases: what they hold, when they end, and how that is noticed.

use std::time::{Duration, Instant};

use quorate_coordination::{Change, Compare, LeaseId, LeaseLost, Outcome, Scope, Store, Txn};
use quorate_faults::Code;

use crate::keys::committed;
use crate::support::{LIMIT, World};
use crate::watches::{shown, take, watch_all};

/// A lease that never was, in every store's form.
fn unknown(world: &World) -> LeaseId {
    LeaseId(match world {
        World::Consul(_) => "11111111-1111-1111-1111-111111111111".to_owned(),
        World::Memory(_) | World::Etcd(_) => "123456".to_owned(),
    })
}

pub(crate) async fn gone(store: &Store, key: &str) {
    let start = Instant::now();
    while store.get(key).await.unwrap().is_some() {
        assert!(start.elapsed() < LIMIT, "`{key}` is still there");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

pub(crate) async fn ending_a_lease_deletes_what_it_holds_and_a_watch_tells(world: &World) {
    let store = world.store().await;
    let lease = store.lease(world.ttl()).await.unwrap();
    let mut watch = watch_all(&store, Scope::prefix("")).await;
    let first = committed(store.hold("h/1", "x", lease.id()).await.unwrap());
    assert_eq!(shown(&take(&mut watch, 1).await[0]), "put h/1=x");
    let entry = store.get("h/1").await.unwrap().unwrap();
    assert_eq!((entry.lease.as_ref(), entry.revision), (Some(lease.id()), first));
    store.put("stays", "x").await.unwrap();
    assert_eq!(shown(&take(&mut watch, 1).await[0]), "put stays=x");
    lease.end().await.unwrap();
    assert_eq!(store.get("h/1").await.unwrap(), None);
    assert_eq!(shown(&take(&mut watch, 1).await[0]), "gone h/1");
    assert!(store.get("stays").await.unwrap().is_some());
}

/// One test for all that must wait for a lease to end, because Consul's take twenty seconds.
pub(crate) async fn a_lease_ends_with_its_time_and_a_kept_one_does_not(world: &World) {
    let store = world.store().await;
    let asked = Instant::now();
    let kept = store.lease(world.ttl()).await.unwrap();
    committed(store.hold("kept", "x", kept.id()).await.unwrap());
    let dropped = store.lease(world.ttl()).await.unwrap();
    committed(store.hold("dropped", "x", dropped.id()).await.unwrap());
    let dropped_id = dropped.id().clone();
    drop(dropped);
    let (left, granted) = store.grant(world.ttl()).await.unwrap();
    assert!(granted >= world.ttl());
    committed(store.hold("left", "x", &left).await.unwrap());
    let mut watch = watch_all(&store, Scope::prefix("")).await;
    let mut told: Vec<String> = take(&mut watch, 2).await.iter().map(shown).collect();
    told.sort();
    assert_eq!(told, ["gone dropped", "gone left"]);
    assert!(asked.elapsed() >= granted, "ended after {:?}", asked.elapsed());
    assert_eq!(store.renew(&left).await.unwrap(), None);
    assert_eq!(store.renew(&dropped_id).await.unwrap(), None);
    // Two leases of the same time ended meanwhile, so that this one lives because it is kept.
    assert!(kept.is_alive());
    assert_eq!(store.get("kept").await.unwrap().unwrap().lease.as_ref(), Some(kept.id()));
    kept.end().await.unwrap();
}

pub(crate) async fn a_key_that_is_there_is_not_held_again(world: &World) {
    let store = world.store().await;
    let (one, two) = (store.lease(world.ttl()).await.unwrap(), store.lease(world.ttl()).await.unwrap());
    store.put("plain", "x").await.unwrap();
    assert_eq!(store.hold("plain", "y", one.id()).await.unwrap(), Outcome::Conflict);
    committed(store.hold("held", "x", one.id()).await.unwrap());
    assert_eq!(store.hold("held", "y", one.id()).await.unwrap(), Outcome::Conflict);
    assert_eq!(store.hold("held", "y", two.id()).await.unwrap(), Outcome::Conflict);
    one.end().await.unwrap();
    committed(store.hold("held", "y", two.id()).await.unwrap());
    assert_eq!(store.get("plain").await.unwrap().unwrap().lease, None);
}

pub(crate) async fn a_lease_that_is_gone_holds_nothing(world: &World) {
    let store = world.store().await;
    for lease in [unknown(world), LeaseId("../../kv".to_owned()), LeaseId(String::new())] {
        let refused = store.hold("k", "x", &lease).await.unwrap_err();
        assert_eq!(refused.code(), Code::LeaseGone, "{refused}");
        assert_eq!(store.renew(&lease).await.unwrap(), None);
        store.end(&lease).await.unwrap();
    }
    assert_eq!(store.get("k").await.unwrap(), None);
}

pub(crate) async fn writing_a_held_key_keeps_its_lease(world: &World) {
    let store = world.store().await;
    let lease = store.lease(world.ttl()).await.unwrap();
    let first = committed(store.hold("k", "1", lease.id()).await.unwrap());
    committed(store.replace("k", "2", first).await.unwrap());
    store.put("k", "3").await.unwrap();
    // In a transaction too, beside keys that are there or not.
    store.put("there", "1").await.unwrap();
    let put = |key: &str| Change::Put(key.into(), "4".into());
    let then = vec![put("k"), put("there"), put("not there"), Change::Delete("nothing".into())];
    committed(store.txn(&Txn { when: vec![Compare::Absent("nothing".into())], then }).await.unwrap());
    let values: Vec<_> = store.list(&Scope::prefix("")).await.unwrap().entries;
    assert_eq!(values.iter().filter(|entry| entry.value == b"4").count(), 3);
    assert_eq!(store.get("k").await.unwrap().unwrap().lease.as_ref(), Some(lease.id()));
    lease.end().await.unwrap();
    assert_eq!(store.get("k").await.unwrap(), None);
}

pub(crate) async fn a_lease_that_someone_ended_is_noticed(world: &World) {
    let store = world.store().await;
    let lease = store.lease(world.ttl()).await.unwrap();
    committed(store.hold("k", "x", lease.id()).await.unwrap());
    world.end_lease(lease.id());
    gone(&store, "k").await;
    let lost = tokio::time::timeout(LIMIT, lease.lost()).await.expect("the loss is noticed");
    assert_eq!(lost, LeaseLost::Gone);
    assert!(!lease.is_alive());
}
