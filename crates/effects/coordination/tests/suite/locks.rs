//! Locks: who holds them, who may not, and who must know.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use quorate_coordination::{Change, LockLost, Outcome, Revision, Txn};
use quorate_faults::Code;

use crate::keys::committed;
use crate::support::{LIMIT, World};

pub(crate) async fn contenders_exclude_each_other_and_tokens_grow(world: &World) {
    let store = world.store().await;
    let inside = Arc::new(AtomicUsize::new(0));
    let contend = |who: usize| {
        let (store, inside, ttl) = (store.clone(), Arc::clone(&inside), world.ttl());
        tokio::spawn(async move {
            let lease = store.lease(ttl).await.unwrap();
            let mut tokens = Vec::new();
            for _ in 0..3 {
                let lock = store.lock("shared", &lease, &format!("contender {who}"), LIMIT).await.unwrap();
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two hold the lock");
                tokens.push(lock.token());
                tokio::time::sleep(Duration::from_millis(5)).await;
                assert_eq!(inside.fetch_sub(1, Ordering::SeqCst), 1, "two hold the lock");
                lock.release().await.unwrap();
            }
            lease.end().await.unwrap();
            tokens
        })
    };
    let tasks: Vec<_> = (0..5).map(contend).collect();
    let mut all: Vec<Revision> = Vec::new();
    for task in tasks {
        let tokens = task.await.unwrap();
        assert!(tokens.windows(2).all(|pair| pair[0] < pair[1]), "{tokens:?}");
        all.extend(tokens);
    }
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 15, "every holder has a token of its own");
}

pub(crate) async fn a_lock_is_lost_with_its_lease_and_that_is_noticed(world: &World) {
    let store = world.store().await;
    let lease = store.lease(world.ttl()).await.unwrap();
    let lock = store.lock("l", &lease, "one", LIMIT).await.unwrap();
    assert!(lock.is_held());
    world.end_lease(lease.id());
    // By the watch on the key, or by the next renewal: whichever comes first.
    let lost = tokio::time::timeout(LIMIT, lock.lost()).await.expect("the loss is noticed");
    assert!(matches!(lost, LockLost::Taken | LockLost::Lease(_)), "{lost:?}");
    assert!(!lock.is_held());
    let other = store.lease(world.ttl()).await.unwrap();
    let next = store.lock("l", &other, "two", LIMIT).await.unwrap();
    assert!(next.token() > lock.token());
    // Giving back what is lost takes nothing from the new holder.
    lock.release().await.unwrap();
    assert!(matches!(
        store.txn(&Txn { when: vec![next.fence()], then: Vec::new() }).await.unwrap(),
        Outcome::Committed(_)
    ));
    next.release().await.unwrap();
}

pub(crate) async fn a_lock_that_someone_deleted_is_noticed(world: &World) {
    let store = world.store().await;
    let lease = store.lease(world.ttl()).await.unwrap();
    let lock = store.lock("l", &lease, "one", LIMIT).await.unwrap();
    store.delete("locks/l").await.unwrap();
    let lost = tokio::time::timeout(LIMIT, lock.lost()).await.expect("the loss is noticed");
    assert_eq!(lost, LockLost::Taken);
    assert!(lease.is_alive());
}

pub(crate) async fn who_lost_a_lock_changes_nothing_behind_its_fence(world: &World) {
    let store = world.store().await;
    let (one, two) = (store.lease(world.ttl()).await.unwrap(), store.lease(world.ttl()).await.unwrap());
    let old = store.lock("l", &one, "one", LIMIT).await.unwrap();
    let write = |value: &str| vec![Change::Put("primary".into(), value.into())];
    committed(store.txn(&Txn { when: vec![old.fence()], then: write("one") }).await.unwrap());
    world.end_lease(one.id());
    let new = store.lock("l", &two, "two", LIMIT).await.unwrap();
    committed(store.txn(&Txn { when: vec![new.fence()], then: write("two") }).await.unwrap());
    let late = store.txn(&Txn { when: vec![old.fence()], then: write("one again") }).await.unwrap();
    assert_eq!(late, Outcome::Conflict);
    assert_eq!(store.get("primary").await.unwrap().unwrap().value, b"two");
    new.release().await.unwrap();
    let free = store.txn(&Txn { when: vec![old.fence()], then: write("nobody") }).await.unwrap();
    assert_eq!(free, Outcome::Conflict);
}

pub(crate) async fn waiting_for_a_lock_ends_with_the_holders_name(world: &World) {
    let store = world.store().await;
    let (one, two) = (store.lease(world.ttl()).await.unwrap(), store.lease(world.ttl()).await.unwrap());
    let lock = store.lock("l", &one, "node n1, bootstrapping", LIMIT).await.unwrap();
    for wait in [Duration::ZERO, Duration::from_millis(300)] {
        let fault = store.lock("l", &two, "node n2", wait).await.unwrap_err();
        assert_eq!(fault.code(), Code::LockTaken);
        assert_eq!(fault.to_string(), "cannot take lock `l`: `node n1, bootstrapping` holds it");
    }
    let other = store.lock("another", &two, "node n2", LIMIT).await.unwrap();
    other.release().await.unwrap();
    lock.release().await.unwrap();
    let fault = store.lock("a/b", &two, "node n2", LIMIT).await.unwrap_err();
    assert_eq!(fault.code(), Code::CoordinationKey);
}

pub(crate) async fn a_released_lock_goes_to_who_waits(world: &World) {
    let store = world.store().await;
    let lease = store.lease(world.ttl()).await.unwrap();
    let lock = store.lock("l", &lease, "one", LIMIT).await.unwrap();
    let waiting = {
        let (store, ttl) = (store.clone(), world.ttl());
        tokio::spawn(async move {
            let lease = store.lease(ttl).await.unwrap();
            let lock = store.lock("l", &lease, "two", LIMIT).await.unwrap();
            let token = lock.token();
            lock.release().await.unwrap();
            token
        })
    };
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!waiting.is_finished());
    let token = lock.token();
    lock.release().await.unwrap();
    assert!(waiting.await.unwrap() > token);
}

pub(crate) async fn one_lease_takes_a_lock_once(world: &World) {
    let store = world.store().await;
    let lease = store.lease(world.ttl()).await.unwrap();
    let lock = store.lock("l", &lease, "task 1", LIMIT).await.unwrap();
    let fault = store.lock("l", &lease, "task 1", Duration::ZERO).await.unwrap_err();
    assert_eq!(fault.code(), Code::LockTaken, "two tasks of one process exclude each other too");
    lock.release().await.unwrap();
    store.lock("l", &lease, "task 2", LIMIT).await.unwrap().release().await.unwrap();
}

pub(crate) async fn waiting_ends_when_the_lease_is_lost(world: &World) {
    let store = world.store().await;
    let (one, two) = (store.lease(world.ttl()).await.unwrap(), store.lease(world.ttl()).await.unwrap());
    let lock = store.lock("l", &one, "one", LIMIT).await.unwrap();
    world.end_lease(two.id());
    let fault = store.lock("l", &two, "two", LIMIT).await.unwrap_err();
    assert_eq!(fault.code(), Code::LeaseGone, "{fault}");
    lock.release().await.unwrap();
}
