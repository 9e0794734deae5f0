//! What every store promises, shown on a folder and on a real server of the S3 protocol by the same test.
#![expect(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::io::{Read, Write};
use std::sync::Barrier;
use std::time::{Duration, Instant};

use quorate_backup::store::{Deleted, Patience, Store, is_temporary};
use quorate_faults::{Code, Fault};
use quorate_testkit::{FaultyS3, Mishap, S3, S3_SECRET, Weather, s3, s3_locked, s3_strict};
use tempfile::TempDir;

fn quick() -> Patience {
    Patience {
        connect: Duration::from_secs(1),
        request: Duration::from_millis(700),
        retry: Duration::from_secs(3),
        retries: 2,
    }
}

fn bucket(s3: &S3, prefix: &str) -> Store {
    Store::open_in(&s3.url(prefix), false, Patience::default(), &s3.env()).unwrap()
}

/// The whole text that an operator could see of a fault.
fn told(fault: &Fault) -> String {
    let mut text = format!("{fault} {fault:?} {}", fault.hint_text().unwrap_or_default());
    let mut cause = std::error::Error::source(fault);
    while let Some(next) = cause {
        text.push_str(&format!(" {next} {next:?}"));
        cause = next.source();
    }
    text
}

fn put(store: &Store, name: &str, bytes: &[u8]) {
    let mut upload = store.upload(name).unwrap();
    upload.write_all(bytes).unwrap();
    upload.finish().unwrap();
}

fn get(store: &Store, name: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    store.reader(name).unwrap().read_to_end(&mut bytes).unwrap();
    bytes
}

/// Bytes that differ from place to place.
fn noise(length: usize) -> Vec<u8> {
    (0..length as u64).map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

fn keeps_the_contract(store: &Store) {
    assert_eq!(store.list().unwrap(), []);
    assert!(store.create("q/epoch/1.json", b"one".to_vec()).unwrap());
    assert!(!store.create("q/epoch/1.json", b"two".to_vec()).unwrap(), "nothing is overwritten");
    assert!(!store.create("q/epoch/1.json", b"one".to_vec()).unwrap(), "the same bytes are not a new object either");
    assert_eq!(store.read_small("q/epoch/1.json").unwrap(), b"one");
    put(store, "q/full/a", b"");
    assert_eq!(get(store, "q/full/a"), b"");
    put(store, "q/full/b", b"short");
    assert_eq!(get(store, "q/full/b"), b"short");
    let names = |listed: Vec<quorate_backup::store::Listed>| -> Vec<(String, u64)> {
        listed.into_iter().map(|listed| (listed.name, listed.bytes)).collect()
    };
    let full = vec![("q/full/a".to_owned(), 0), ("q/full/b".to_owned(), 5)];
    assert_eq!(names(store.list_under("q/full").unwrap()), full);
    assert_eq!(names(store.list_under("q/full/").unwrap()), full);
    assert_eq!(names(store.list_under("q/none").unwrap()), []);
    assert_eq!(store.list().unwrap().len(), 3);
    let seen = store.head("q/full/b").unwrap().unwrap();
    assert_eq!(seen.bytes, 5);
    assert!(seen.modified_ms > 1_700_000_000_000);
    assert_eq!(store.head("q/full/none").unwrap(), None);
    let Err(missing) = store.reader("q/full/none") else { panic!("read what is not there") };
    assert_eq!(missing.code(), Code::StoreUnreachable);
    let mut abandoned = store.upload("q/full/c").unwrap();
    abandoned.write_all(&noise(9 << 20)).unwrap();
    abandoned.abandon();
    assert_eq!(store.head("q/full/c").unwrap(), None, "an upload that was not finished is not seen");
    assert_eq!(store.delete("q/full/b").unwrap(), Deleted::Gone);
    assert_eq!(store.delete("q/full/b").unwrap(), Deleted::Gone, "gone is gone");
    assert_eq!(store.head("q/full/b").unwrap(), None);
    assert!(store.staged().unwrap().is_empty());
}

fn one_of_two_writers_wins(one: &Store, other: &Store) {
    for round in 0..10 {
        let (name, start) = (format!("race/{round}.json"), Barrier::new(2));
        let write = |store: &Store, who: &str| {
            start.wait();
            store.create(&name, who.as_bytes().to_vec()).unwrap()
        };
        let (first, second) = std::thread::scope(|scope| {
            let first = scope.spawn(|| write(one, "first"));
            let second = write(other, "second");
            (first.join().unwrap(), second)
        });
        assert!(first ^ second, "round {round}: exactly one wins, not {first} and {second}");
        let winner: &[u8] = if first { b"first" } else { b"second" };
        assert_eq!(one.read_small(&name).unwrap(), winner, "what is there is what the winner wrote");
    }
}

fn large_objects_pass_in_bounded_memory(store: &Store) {
    let piece = noise(1 << 20);
    let before = resident_peak();
    let mut upload = store.upload("large").unwrap();
    for _ in 0..50 {
        upload.write_all(&piece).unwrap();
    }
    upload.finish().unwrap();
    assert_eq!(store.head("large").unwrap().unwrap().bytes, 50 << 20);
    let mut reader = store.reader("large").unwrap();
    let mut back = vec![0; 1 << 20];
    for _ in 0..50 {
        reader.read_exact(&mut back).unwrap();
        assert!(back == piece);
    }
    assert_eq!(reader.read(&mut back).unwrap(), 0);
    let grown = resident_peak().saturating_sub(before);
    assert!(grown < 45 << 20, "50 MiB passed and memory grew by {} MiB", grown >> 20);
}

fn resident_peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

// One after the other: the memory of the whole process is measured.
#[test]
fn folders_and_buckets_keep_the_same_promises() {
    let folder = TempDir::new().unwrap();
    let url = format!("file://{}", folder.path().display());
    let local = Store::open(&url, false).unwrap();
    keeps_the_contract(&local);
    one_of_two_writers_wins(&local, &Store::open(&url, false).unwrap());
    large_objects_pass_in_bounded_memory(&local);
    let s3 = s3();
    keeps_the_contract(&bucket(&s3, "deep/prefix"));
    keeps_the_contract(&bucket(&s3, "other"));
    let root = bucket(&s3, "");
    assert!(
        root.list().unwrap().iter().all(|listed| listed.name.starts_with("deep/") || listed.name.starts_with("other/"))
    );
    one_of_two_writers_wins(&root, &bucket(&s3, ""));
    large_objects_pass_in_bounded_memory(&bucket(&s3, "large"));
}

#[test]
fn a_store_can_be_let_go_of_inside_a_runtime() {
    let store = bucket(&s3(), "");
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let clone = store.clone();
    let listed = runtime.block_on(async move {
        let listed = tokio::task::spawn_blocking(move || clone.list()).await.unwrap();
        drop(store);
        listed
    });
    assert_eq!(listed.unwrap(), []);
}

#[test]
fn left_overs_of_killed_uploads_are_hidden_and_named() {
    let folder = TempDir::new().unwrap();
    let store = Store::open(&format!("file://{}", folder.path().display()), false).unwrap();
    put(&store, "v2/whole", b"whole");
    std::fs::copy(folder.path().join("v2/whole"), folder.path().join("v2/half#1")).unwrap();
    assert_eq!(store.list().unwrap().len(), 1);
    let staged = store.staged().unwrap();
    assert_eq!(staged.len(), 1);
    assert_eq!(staged[0].0, "v2/half#1");
    store.remove_staged("v2/whole").unwrap();
    store.remove_staged("v2/half#1").unwrap();
    assert_eq!(store.staged().unwrap(), []);
    assert_eq!(store.list().unwrap().len(), 1, "only left-overs are removed");
}

#[test]
fn a_folder_that_went_away_is_not_an_empty_one() {
    let folder = TempDir::new().unwrap();
    let store = Store::open(&format!("file://{}", folder.path().display()), false).unwrap();
    drop(folder);
    let fault = store.list().unwrap_err();
    assert!(is_temporary(&fault));
    assert!(store.head("any").is_err());
}

#[test]
fn missing_buckets_and_wrong_keys_are_told_apart() {
    let s3 = s3();
    let none = Store::open_in("s3://no-such-bucket/x", false, quick(), &s3.env()).unwrap();
    for fault in [none.list().unwrap_err(), none.head("a").unwrap_err(), none.create("a", vec![1]).unwrap_err()] {
        assert_eq!(fault.code(), Code::BucketAbsent, "{}", told(&fault));
        assert!(!is_temporary(&fault));
    }
    let strict = s3_strict();
    let right = Store::open_in(&strict.s3.url("p"), false, quick(), &strict.env(true)).unwrap();
    assert_eq!(right.list().unwrap(), []);
    let wrong = Store::open_in(&strict.s3.url("p"), false, quick(), &strict.env(false)).unwrap();
    for fault in [wrong.list().unwrap_err(), wrong.create("a", vec![1]).unwrap_err(), wrong.delete("a").unwrap_err()] {
        assert_eq!(fault.code(), Code::StoreDenied, "{}", told(&fault));
        let text = told(&fault).to_lowercase();
        assert!(
            !text.contains(S3_SECRET) && !text.contains("signatureprovided") && !text.contains("?list-type"),
            "{text}"
        );
    }
}

#[test]
fn credentials_that_were_rotated_in_their_file_are_used_by_the_next_request() {
    let strict = s3_strict();
    let dir = TempDir::new().unwrap();
    let (file, new) = (dir.path().join("credentials"), dir.path().join("new"));
    let write = |id: &str, secret: &str| {
        let text = format!("[default]\naws_access_key_id = {id}\naws_secret_access_key = {secret}\n");
        std::fs::File::create(&new).unwrap().write_all(text.as_bytes()).unwrap();
        #[expect(clippy::disallowed_methods, reason = "a test's own file")]
        std::fs::rename(&new, &file).unwrap();
    };
    let (first, second) = (strict.key().clone(), strict.another_key());
    write(&first.id, &first.secret);
    let keyless = strict.env(true).into_iter().filter(|(name, _)| !name.contains("_KEY"));
    let named = ("AWS_SHARED_CREDENTIALS_FILE".to_owned(), file.display().to_string());
    let env: Vec<(String, String)> = keyless.chain([named]).collect();
    let store = Store::open_in(&strict.s3.url("p"), false, quick(), &env).unwrap();
    put(&store, "one", b"1");
    assert!(!store.has_new_credentials());
    write(&second.id, &second.secret);
    assert!(store.has_new_credentials());
    strict.revoke(&first);
    put(&store, "two", b"2");
    assert!(store.create("three", b"3".to_vec()).unwrap(), "requests without retries use them as well");
    assert!(!store.has_new_credentials());
    // Revoked first and written later, as it should not be: denied until then.
    let third = strict.another_key();
    strict.revoke(&second);
    let fault = store.list().unwrap_err();
    assert_eq!(fault.code(), Code::StoreDenied, "{}", told(&fault));
    write(&third.id, "half-of-a-secret");
    let fault = store.list().unwrap_err();
    assert_eq!(fault.code(), Code::StoreDenied, "{}", told(&fault));
    for secret in [&first.secret, &second.secret, &third.secret, "half-of-a-secret"] {
        assert!(!told(&fault).contains(secret), "{}", told(&fault));
    }
    std::fs::remove_file(&file).unwrap();
    assert_eq!(store.list().unwrap_err().code(), Code::StoreDenied, "a file that is gone changes nothing");
    write(&third.id, &third.secret);
    assert_eq!(store.list().unwrap().len(), 3);
}

#[test]
fn endpoints_that_are_down_or_slow_are_given_up_in_time() {
    let s3 = s3();
    let proxy = FaultyS3::start(&s3, 1, Weather::Down);
    let store = Store::open_in(&s3.url("p"), false, quick(), &s3.env_at(&proxy.endpoint())).unwrap();
    let check = |what: &str, result: Result<(), Fault>| {
        let fault = result.unwrap_err();
        assert_eq!(fault.code(), Code::StoreUnreachable, "{what}: {}", told(&fault));
        assert!(is_temporary(&fault) && !told(&fault).contains(S3_SECRET) && !told(&fault).contains("list-type"));
    };
    let begun = Instant::now();
    check("down", store.list().map(drop));
    check("down", store.create("a", vec![1]).map(drop));
    check("down", store.upload("a").map(drop));
    proxy.set(Weather::Healthy);
    assert_eq!(store.list().unwrap(), []);
    proxy.set_hang(Duration::from_secs(2));
    proxy.next(&[Mishap::Hang; 8]);
    check("slow", store.list().map(drop));
    check("slow", store.reader("a").map(drop));
    assert!(begun.elapsed() < Duration::from_secs(40), "{:?}", begun.elapsed());
}

#[test]
fn answers_that_are_lost_do_not_change_who_made_an_object() {
    let s3 = s3();
    let proxy = FaultyS3::start(&s3, 1, Weather::Healthy);
    let store = Store::open_in(&s3.url("p"), false, quick(), &s3.env_at(&proxy.endpoint())).unwrap();
    for (round, mishap) in
        [Mishap::DoneThenError, Mishap::DoneThenDropped, Mishap::Error, Mishap::Busy, Mishap::CutAnswer]
            .into_iter()
            .enumerate()
    {
        let name = format!("epoch/{round}.json");
        proxy.next(&[mishap]);
        assert!(store.create(&name, b"mine".to_vec()).unwrap(), "{mishap:?}: it was made by this very call");
        proxy.next(&[mishap]);
        assert!(!store.create(&name, b"other".to_vec()).unwrap(), "{mishap:?}: another's bytes are there");
        assert_eq!(store.read_small(&name).unwrap(), b"mine");
    }
}

#[test]
fn bad_days_neither_lose_nor_invent_objects() {
    let s3 = s3();
    let proxy = FaultyS3::start(&s3, 7, Weather::Flaky(20));
    proxy.set_hang(Duration::from_millis(900));
    let patience = Patience { retries: 8, retry: Duration::from_secs(30), ..quick() };
    let store = Store::open_in(&s3.url("p"), false, patience, &s3.env_at(&proxy.endpoint())).unwrap();
    let honest = bucket(&s3, "p");
    let mut made = Vec::new();
    for number in 0..20 {
        let name = format!("o/{number:02}");
        if store.create(&name, name.clone().into_bytes()).is_ok_and(|made| made) {
            made.push(name);
        }
    }
    let there: Vec<String> = honest.list().unwrap().into_iter().map(|listed| listed.name).collect();
    assert!(made.iter().all(|name| there.contains(name)), "what was said to be made is there");
    assert!(made.len() > 10, "{made:?}");
    let (requests, mishaps) = proxy.counts();
    assert!(mishaps > 0 && mishaps < requests, "{mishaps} of {requests}");
    // Pages and their order only.
    proxy.set(Weather::Flaky(0));
    let listed: Vec<String> = store.list().unwrap().into_iter().map(|listed| listed.name).collect();
    assert_eq!(listed, there, "small pages in any order give the same listing");
    assert!(
        proxy.seen().iter().filter(|line| line.contains("continuation-token")).count() > 0,
        "there was a second page"
    );
}

#[test]
fn a_protected_object_stays_and_that_is_said() {
    let s3 = s3_locked();
    let store = bucket(&s3, "");
    let until = "x-amz-sdk-checksum-algorithm: SHA256\r\nx-amz-object-lock-mode: COMPLIANCE\r\nx-amz-object-lock-retain-until-date: 2099-01-01T00:00:00Z\r\n";
    let put = s3.raw("PUT", "kept", until, b"kept");
    assert!(put.starts_with("HTTP/1.1 200"), "{put}");
    // As in the real one, removing a name without its version hides it; every version stays.
    assert_eq!(store.delete("kept").unwrap(), Deleted::Gone);
    assert_eq!(store.head("kept").unwrap(), None);
    let versions = s3.raw("GET", "?versions", "", b"");
    assert!(versions.contains("<Key>kept</Key>") && versions.contains("<DeleteMarker>"), "{versions}");
}

/// Answers every request with the same words, as servers do that are not at hand here.
fn stand_in(answer: &'static str) -> (Vec<(String, String)>, quorate_testkit::Port) {
    let port = quorate_testkit::free_port();
    let listener = std::net::TcpListener::bind(("127.0.0.1", port.number())).unwrap();
    std::thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            let mut request = [0; 8192];
            let _ = client.read(&mut request);
            let _ = client.write_all(answer.as_bytes());
        }
    });
    let s3 = S3 { port: port.number(), bucket: "b".to_owned() };
    (s3.env(), port)
}

#[test]
fn an_answer_that_speaks_of_object_lock_is_no_fault_and_is_not_asked_for_again() {
    let (env, _port) = stand_in(
        "HTTP/1.1 403 Forbidden\r\nConnection: close\r\nContent-Length: 136\r\n\r\n<?xml version=\"1.0\"?><Error>\
         <Code>AccessDenied</Code><Message>Access Denied because object protected by object lock.</Message></Error>  ",
    );
    let store = Store::open_in("s3://b/x", false, quick(), &env).unwrap();
    let begun = Instant::now();
    let Deleted::Locked(why) = store.delete("kept").unwrap() else { panic!("it was removed") };
    assert!(why.contains("protected by object lock"), "{why}");
    assert!(begun.elapsed() < Duration::from_secs(2));
}

#[test]
fn a_store_that_cannot_create_without_overwriting_is_named() {
    let (env, _port) = stand_in(
        "HTTP/1.1 501 Not Implemented\r\nConnection: close\r\nContent-Length: 63\r\n\r\n<?xml version=\"1.0\"?><Error>\
         <Code>NotImplemented</Code></Error>",
    );
    let store = Store::open_in("s3://b/x", false, quick(), &env).unwrap();
    let fault = store.create("epoch/1.json", vec![1]).unwrap_err();
    assert_eq!(fault.code(), Code::CreateUnsupported, "{}", told(&fault));
}

#[test]
fn urls_carry_places_and_nothing_else() {
    let refused = |url: &str| Store::open(url, false).err().unwrap_or_else(|| panic!("{url} was taken"));
    for url in ["nonsense", "ftp://host/x", "s3://", "file://relative/path", "s3:///only-a-path"] {
        assert_eq!(refused(url).code(), Code::StoreInvalid, "{url}");
    }
    for url in ["s3://KEYID:topsecret@bucket/x", "az://container/x?sig=topsecret"] {
        let fault = refused(url);
        assert_eq!(fault.code(), Code::StoreInvalid);
        assert!(!told(&fault).contains("topsecret"), "{}", told(&fault));
    }
}

#[test]
fn clouds_are_opened_by_the_variables_that_their_own_tools_use() {
    let pairs = |list: &[(&str, &str)]| -> Vec<(String, String)> {
        list.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    };
    let open = |url: &str, env: &[(&str, &str)]| Store::open_in(url, false, quick(), &pairs(env));
    let azure = [("AZURE_STORAGE_ACCOUNT", "account"), ("AZURE_STORAGE_KEY", "c2VjcmV0LWtleQ==")];
    assert!(open("az://container/prefix", &azure).is_ok());
    let fault = open("az://container/prefix", &[]).err().unwrap();
    assert_eq!(fault.code(), Code::StoreInvalid, "{}", told(&fault));
    let fault = open("gs://bucket/x", &[("GOOGLE_SERVICE_ACCOUNT_KEY", "not-json-but-secret")]).err().unwrap();
    assert!(!told(&fault).contains("not-json-but-secret"), "{}", told(&fault));
    assert!(open("gs://bucket/x", &[("GOOGLE_SKIP_SIGNATURE", "true")]).is_ok());
    assert!(open("s3://bucket/x", &[("AWS_SKIP_SIGNATURE", "true")]).is_ok());
}

#[test]
fn plain_http_must_be_asked_for() {
    let s3 = s3();
    let env: Vec<(String, String)> = s3.env().into_iter().filter(|(key, _)| key != "AWS_ALLOW_HTTP").collect();
    let store = Store::open_in(&s3.url("p"), false, quick(), &env).unwrap();
    let fault = store.list().unwrap_err();
    assert!(fault.hint_text().unwrap_or_default().contains("AWS_ALLOW_HTTP"), "{}", told(&fault));
}
