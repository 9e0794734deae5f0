//! Keys, values, revisions and transactions.

use quorate_coordination::{Change, Compare, Entry, Outcome, Revision, Scope, Store, Txn};
use quorate_faults::Code;

use crate::support::World;

pub(crate) fn committed(outcome: Outcome) -> Revision {
    match outcome {
        Outcome::Committed(Some(revision)) => revision,
        other => panic!("{other:?}"),
    }
}

async fn keys(store: &Store, prefix: &[u8]) -> Vec<Vec<u8>> {
    let listing = store.list(&Scope::prefix(prefix)).await.unwrap();
    listing.entries.into_iter().map(|entry| entry.key).collect()
}

async fn value(store: &Store, key: &str) -> Option<String> {
    let entry = store.get(key).await.unwrap();
    entry.map(|entry| String::from_utf8(entry.value).unwrap())
}

pub(crate) async fn an_absent_key_is_none_and_an_empty_list_an_answer(world: &World) {
    let store = world.store().await;
    store.ready().await.unwrap();
    assert_eq!(store.get("nothing").await.unwrap(), None);
    assert_eq!(store.list(&Scope::prefix("")).await.unwrap().entries, []);
    assert_eq!(store.list(&Scope::prefix("no/thing/")).await.unwrap().entries, []);
}

pub(crate) async fn what_was_put_is_read_back_with_its_revision(world: &World) {
    let store = world.store().await;
    let first = store.put("peers/n1", "one").await.unwrap();
    let entry = store.get("peers/n1").await.unwrap().unwrap();
    let expected = Entry { key: "peers/n1".into(), value: "one".into(), created: first, revision: first, lease: None };
    assert_eq!(entry, expected);
    let second = store.put("peers/n1", "two").await.unwrap();
    assert!(second > first);
    let listing = store.list(&Scope::prefix("peers/")).await.unwrap();
    assert!(listing.revision >= second);
    assert_eq!((listing.entries[0].revision, listing.entries[0].created), (second, first));
}

pub(crate) async fn a_key_remembers_when_it_was_made(world: &World) {
    let store = world.store().await;
    let first = store.put("k", "1").await.unwrap();
    store.put("k", "2").await.unwrap();
    assert_eq!(store.get("k").await.unwrap().unwrap().created, first);
    store.delete("k").await.unwrap();
    let again = store.put("k", "3").await.unwrap();
    assert_eq!(store.get("k").await.unwrap().unwrap().created, again);
    assert!(again > first);
}

pub(crate) async fn create_makes_a_key_once(world: &World) {
    let store = world.store().await;
    committed(store.create("k", "1").await.unwrap());
    assert_eq!(store.create("k", "2").await.unwrap(), Outcome::Conflict);
    assert_eq!(value(&store, "k").await.as_deref(), Some("1"));
}

pub(crate) async fn replace_needs_the_revision_that_was_seen(world: &World) {
    let store = world.store().await;
    assert_eq!(store.replace("k", "0", Revision(0)).await.unwrap(), Outcome::Conflict);
    assert_eq!(store.replace("k", "0", Revision(1)).await.unwrap(), Outcome::Conflict);
    let first = store.put("k", "1").await.unwrap();
    let second = committed(store.replace("k", "2", first).await.unwrap());
    assert_eq!(store.replace("k", "3", first).await.unwrap(), Outcome::Conflict);
    assert_eq!(value(&store, "k").await.as_deref(), Some("2"));
    committed(store.replace("k", "3", second).await.unwrap());
}

pub(crate) async fn delete_unchanged_needs_the_revision_that_was_seen(world: &World) {
    let store = world.store().await;
    let first = store.put("k", "1").await.unwrap();
    let second = store.put("k", "2").await.unwrap();
    assert_eq!(store.delete_unchanged("k", first).await.unwrap(), Outcome::Conflict);
    assert!(matches!(store.delete_unchanged("k", second).await.unwrap(), Outcome::Committed(_)));
    assert_eq!(value(&store, "k").await, None);
    assert_eq!(store.delete_unchanged("k", second).await.unwrap(), Outcome::Conflict);
}

pub(crate) async fn deleting_what_is_not_there_is_no_fault(world: &World) {
    let store = world.store().await;
    store.delete("never").await.unwrap();
    store.put("k", "1").await.unwrap();
    store.delete("k").await.unwrap();
    store.delete("k").await.unwrap();
    assert_eq!(value(&store, "k").await, None);
}

pub(crate) async fn a_transaction_changes_all_or_nothing(world: &World) {
    let store = world.store().await;
    let seen = store.put("a", "1").await.unwrap();
    let then = || vec![Change::Put("b".into(), "2".into()), Change::Delete("a".into())];
    let wrong = Txn { when: vec![Compare::Unchanged("a".into(), seen), Compare::Absent("a".into())], then: then() };
    assert_eq!(store.txn(&wrong).await.unwrap(), Outcome::Conflict);
    assert_eq!((value(&store, "a").await.as_deref(), value(&store, "b").await), (Some("1"), None));
    let right = Txn { when: vec![Compare::Unchanged("a".into(), seen), Compare::Absent("b".into())], then: then() };
    committed(store.txn(&right).await.unwrap());
    assert_eq!((value(&store, "a").await, value(&store, "b").await.as_deref()), (None, Some("2")));
    assert_eq!(store.txn(&right).await.unwrap(), Outcome::Conflict);
}

pub(crate) async fn all_changes_of_a_transaction_have_one_revision(world: &World) {
    let store = world.store().await;
    let then = (0..20).map(|i| Change::Put(format!("k{i:02}").into_bytes(), "v".into())).collect();
    let revision = committed(store.txn(&Txn { when: Vec::new(), then }).await.unwrap());
    let listing = store.list(&Scope::prefix("k")).await.unwrap();
    assert_eq!(listing.entries.len(), 20);
    assert!(listing.entries.iter().all(|entry| entry.revision == revision && entry.created == revision));
}

pub(crate) async fn racing_swaps_lose_no_update(world: &World) {
    let store = world.store().await;
    store.put("counter", "0").await.unwrap();
    let racer = |store: Store| async move {
        for _ in 0..10 {
            loop {
                let entry = store.get("counter").await.unwrap().unwrap();
                let next = String::from_utf8(entry.value).unwrap().parse::<u32>().unwrap() + 1;
                if store.replace("counter", next.to_string(), entry.revision).await.unwrap() != Outcome::Conflict {
                    break;
                }
            }
        }
    };
    let racers: Vec<_> = (0..4).map(|_| tokio::spawn(racer(store.clone()))).collect();
    for racer in racers {
        racer.await.unwrap();
    }
    assert_eq!(value(&store, "counter").await.as_deref(), Some("40"));
}

pub(crate) async fn racing_creates_have_one_winner(world: &World) {
    let store = world.store().await;
    for round in 0..5 {
        let create = |who: usize| {
            let store = store.clone();
            tokio::spawn(async move { store.create(format!("k{round}"), who.to_string()).await.unwrap() })
        };
        let racers: Vec<_> = (0..6).map(create).collect();
        let mut winners = Vec::new();
        for (who, racer) in racers.into_iter().enumerate() {
            if racer.await.unwrap() != Outcome::Conflict {
                winners.push(who.to_string());
            }
        }
        assert_eq!(winners.len(), 1, "{winners:?}");
        assert_eq!(value(&store, &format!("k{round}")).await, winners.pop());
    }
}

pub(crate) async fn values_may_be_any_bytes(world: &World) {
    let store = world.store().await;
    let all: Vec<u8> = (0..=255).collect();
    for bytes in [Vec::new(), vec![0], all] {
        store.put("k", bytes.clone()).await.unwrap();
        assert_eq!(store.get("k").await.unwrap().unwrap().value, bytes);
    }
}

pub(crate) async fn keys_may_be_any_bytes(world: &World) {
    let store = world.store().await;
    let all: Vec<u8> = (0..=255).collect();
    let mut odd: Vec<Vec<u8>> = [
        &b"\xff"[..],
        b"\xff\xff",
        b"\0",
        b"/",
        b"//",
        b"a//b/",
        b"a/../b",
        b"..",
        b".",
        b"%",
        b"%41",
        b"A",
        b"a b?c#d&e=f",
        b"\xc3\xa9",
        b"\xc3",
        b"x+y",
    ]
    .iter()
    .map(|key| key.to_vec())
    .collect();
    odd.push(all);
    odd.push(vec![b'k'; quorate_coordination::KEY_BYTES_MAX]);
    for key in &odd {
        store.put(key.clone(), key.clone()).await.unwrap();
    }
    for key in &odd {
        assert_eq!(store.get(key.clone()).await.unwrap().unwrap().value, *key, "{}", key.escape_ascii());
    }
    let mut sorted = odd.clone();
    sorted.sort();
    assert_eq!(keys(&store, b"").await, sorted);
    for key in odd {
        store.delete(key).await.unwrap();
    }
    assert_eq!(keys(&store, b"").await, Vec::<Vec<u8>>::new());
}

pub(crate) async fn a_prefix_of_0xff_ends_where_it_should(world: &World) {
    let store = world.store().await;
    let all: [&[u8]; 7] = [b"a", b"a\xfe", b"a\xff", b"a\xff\xff", b"b", b"\xff", b"\xff\xffz"];
    for key in all {
        store.put(key, "x").await.unwrap();
    }
    assert_eq!(keys(&store, b"a\xff").await, [&b"a\xff"[..], b"a\xff\xff"]);
    assert_eq!(keys(&store, b"a").await, [&b"a"[..], b"a\xfe", b"a\xff", b"a\xff\xff"]);
    assert_eq!(keys(&store, b"\xff").await, [&b"\xff"[..], b"\xff\xffz"]);
    assert_eq!(keys(&store, b"\xff\xff").await, [&b"\xff\xffz"[..]]);
    assert_eq!(keys(&store, b"\xff\xff\xff").await, Vec::<Vec<u8>>::new());
}

pub(crate) async fn namespaces_do_not_see_each_other(world: &World) {
    let base = crate::support::fresh_namespace();
    let blue = world.store_at(&format!("{base}blue/")).await;
    let bluer = world.store_at(&format!("{base}bluer/")).await;
    blue.put("k", "blue").await.unwrap();
    bluer.put("k", "bluer").await.unwrap();
    bluer.put("only", "bluer").await.unwrap();
    assert_eq!(value(&blue, "k").await.as_deref(), Some("blue"));
    assert_eq!(keys(&blue, b"").await, [b"k"]);
    assert_eq!(keys(&bluer, b"").await, [&b"k"[..], b"only"]);
    bluer.delete("k").await.unwrap();
    assert_eq!(value(&blue, "k").await.as_deref(), Some("blue"));
}

pub(crate) async fn lists_are_whole_and_in_the_order_of_bytes(world: &World) {
    let store = world.store().await;
    let names: Vec<String> = (0..150).map(|i| format!("list/{i:03}")).collect();
    for chunk in names.chunks(50) {
        let then = chunk.iter().map(|name| Change::Put(name.clone().into(), name.clone().into())).collect();
        committed(store.txn(&Txn { when: Vec::new(), then }).await.unwrap());
    }
    store.put("lisu", "not this").await.unwrap();
    let listed = keys(&store, b"list/").await;
    assert_eq!(listed, names.iter().map(|name| name.clone().into_bytes()).collect::<Vec<_>>());
    assert_eq!(keys(&store, b"list/14").await.len(), 10);
}

pub(crate) async fn keys_and_transactions_that_cannot_be_are_refused(world: &World) {
    let store = world.store().await;
    let code = |fault: quorate_faults::Fault| fault.code();
    assert_eq!(store.put("", "x").await.map_err(code), Err(Code::CoordinationKey));
    assert_eq!(store.get("").await.map_err(code), Err(Code::CoordinationKey));
    assert_eq!(store.put(vec![b'k'; 1025], "x").await.map_err(code), Err(Code::CoordinationKey));
    let twice = vec![Change::Put("k".into(), "1".into()), Change::Delete("k".into())];
    let txn = Txn { when: Vec::new(), then: twice };
    assert_eq!(store.txn(&txn).await.map_err(code), Err(Code::CoordinationKey));
    let many = |count: usize| {
        let then = (0..count).map(|i| Change::Put(i.to_string().into_bytes(), "x".into())).collect();
        Txn { when: Vec::new(), then }
    };
    let most = store.limits().operations_max;
    assert_eq!(store.txn(&many(most + 1)).await.map_err(code), Err(Code::CoordinationTooLarge));
    committed(store.txn(&many(most)).await.unwrap());
}

pub(crate) async fn what_is_too_large_is_a_fault_and_the_largest_is_not(world: &World) {
    let store = world.store().await;
    let most = store.limits().bytes_max;
    let fault = store.put("big", vec![7; most]).await.unwrap_err();
    assert_eq!(fault.code(), Code::CoordinationTooLarge, "{fault}");
    assert_eq!(store.get("big").await.unwrap(), None);
    // Keys that are escaped as much as can be take the most room on the way.
    let key = vec![0xff; quorate_coordination::KEY_BYTES_MAX];
    let value = vec![0xff; most - key.len()];
    store.put(key.clone(), value.clone()).await.unwrap();
    assert_eq!(store.get(key).await.unwrap().unwrap().value, value);
}
