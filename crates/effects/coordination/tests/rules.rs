//! What each store is allowed and able to do: least rights, tokens, certificates, foreign keys, times.

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

mod support;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use quorate_coordination::{ConsulSettings, Health, Instance, Outcome, Place, Position, Scope, Settings, Store, Turn};
use quorate_etcd::client::{self, Credentials};
use quorate_faults::Code;
use quorate_testkit::run;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tempfile::TempDir;

use support::{ConsulServer, EtcdServer, Kind, LIMIT};

const NAMESPACE: &str = "quorate/blue/";
const ROOT_TOKEN: &str = "7a8ed4ac-6b7a-4b3c-8d1e-0f5a9d1c2b3a";
const ACL: &str = r#"acl { enabled = true default_policy = "deny" enable_token_persistence = false
    tokens { master = "7a8ed4ac-6b7a-4b3c-8d1e-0f5a9d1c2b3a" } }"#;

/// The policy of the guide, word for word.
const POLICY: &str = r#"
key_prefix "quorate/blue/" { policy = "write" }
session_prefix "" { policy = "write" }
service_prefix "quorate-blue-" { policy = "write" }
node_prefix "" { policy = "read" }
"#;

fn file(dir: &Path, name: &str, text: &str) -> PathBuf {
    let path = dir.join(name);
    std::fs::File::create(&path).unwrap().write_all(text.as_bytes()).unwrap();
    path
}

fn instance() -> Instance {
    let (service, id) = ("etcd".to_owned(), "n1".to_owned());
    Instance { service, id, address: "10.0.0.1".to_owned(), port: 1, meta: Default::default() }
}

/// All that the crate does, once.
async fn uses_everything(store: &Store) {
    store.ready().await.unwrap();
    let listing = store.list(&Scope::prefix("")).await.unwrap();
    let mut watch = store.watch(&Scope::prefix(""), listing.position()).unwrap();
    store.put("k", "1").await.unwrap();
    assert!(matches!(watch.next(LIMIT).await.unwrap(), Turn::Events(_)));
    store.delete("k").await.unwrap();
    let lease = store.lease(Duration::from_secs(10)).await.unwrap();
    assert!(store.renew(lease.id()).await.unwrap().is_some());
    let lock = store.lock("l", &lease, "one", LIMIT).await.unwrap();
    lock.release().await.unwrap();
    let registration = store.register(&instance(), Health::Passing, Duration::from_secs(10)).await.unwrap();
    let start = Instant::now();
    while store.instances("etcd").await.unwrap().len() != 1 {
        assert!(start.elapsed() < LIMIT, "the instance is not listed");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    registration.end().await.unwrap();
    lease.end().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_documented_role_of_etcd_is_enough_and_no_more() {
    for version in ["3.4.23", "sid"] {
        let server = EtcdServer::start(version);
        for args in [
            "role add quorate-blue",
            "role grant-permission quorate-blue readwrite quorate/blue/ --prefix=true",
            "user add root:rootpass",
            "user add blue:bluepass",
            "user grant-role blue quorate-blue",
            "user grant-role root root",
            "auth enable",
        ] {
            server.server().ctl(&args.split(' ').collect::<Vec<_>>());
        }
        let mut settings = client::Settings::new([server.url()]);
        settings.credentials = Some(Credentials { name: "blue".to_owned(), password: "bluepass".to_owned() });
        let place = Place::Etcd(settings.clone());
        uses_everything(&Store::open(&Settings::new(place.clone(), NAMESPACE)).await.unwrap()).await;
        for outside in ["quorate/red/", "quorate/", "quorate/bluer/"] {
            let store = Store::open(&Settings::new(place.clone(), outside)).await.unwrap();
            for fault in [
                store.list(&Scope::prefix("")).await.unwrap_err(),
                store.get("k").await.unwrap_err(),
                store.put("k", "x").await.unwrap_err(),
                store
                    .watch(&Scope::prefix(""), Position::at(Default::default()))
                    .unwrap()
                    .next(LIMIT)
                    .await
                    .unwrap_err(),
            ] {
                assert_eq!(fault.code(), Code::CoordinationRefused, "{version} {outside}: {fault}");
            }
        }
        settings.credentials = Some(Credentials { name: "blue".to_owned(), password: "wrong".to_owned() });
        let fault = Store::open(&Settings::new(Place::Etcd(settings), NAMESPACE)).await.unwrap_err();
        assert_eq!(fault.code(), Code::CoordinationRefused, "{fault}");
        assert!(!format!("{fault:?}").contains("wrong"), "a password was shown");
    }
}

struct Guarded {
    server: ConsulServer,
    dir: TempDir,
}

impl Guarded {
    fn start() -> Guarded {
        let server = ConsulServer::start_with_token(Kind::Fleeting, ACL, Some(ROOT_TOKEN));
        Guarded { server, dir: TempDir::new().unwrap() }
    }

    /// A token with these rights.
    fn token(&self, name: &str, policy: &str) -> String {
        let rules = file(self.dir.path(), &format!("{name}.hcl"), policy);
        let rules = format!("@{}", rules.display());
        run(&mut self.server.command(&["acl", "policy", "create", "-name", name, "-rules", &rules]));
        let created =
            run(&mut self.server.command(&["acl", "token", "create", "-policy-name", name, "-format", "json"]));
        let found = created.lines().find(|line| line.contains("\"SecretID\"")).unwrap();
        found.split('"').nth(3).unwrap().to_owned()
    }

    fn settings(&self, token: Option<&str>) -> ConsulSettings {
        let token_file = token.map(|token| file(self.dir.path(), "token", &format!("{token}\n")));
        ConsulSettings { token_file, ..ConsulSettings::new(self.server.url()) }
    }

    async fn store(&self, token: Option<&str>, namespace: &str) -> Store {
        Store::open(&Settings::new(Place::Consul(self.settings(token)), namespace)).await.unwrap()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_documented_policy_of_consul_is_enough_and_no_more() {
    let guarded = Guarded::start();
    let token = guarded.token("blue", POLICY);
    uses_everything(&guarded.store(Some(&token), NAMESPACE).await).await;
    for (who, namespace) in [(Some(token.as_str()), "quorate/red/"), (None, NAMESPACE)] {
        let store = guarded.store(who, namespace).await;
        for fault in [
            // Consul itself would answer with an empty list here.
            store.list(&Scope::prefix("")).await.unwrap_err(),
            store.get("k").await.unwrap_err(),
            store.put("k", "x").await.unwrap_err(),
            store.register(&instance(), Health::Passing, Duration::from_secs(10)).await.unwrap_err(),
        ] {
            assert_eq!(fault.code(), Code::CoordinationRefused, "{namespace}: {fault}");
            assert!(!format!("{fault:?}").contains(&token), "a token was shown");
        }
    }
    let fault = guarded.store(None, NAMESPACE).await.lease(Duration::from_secs(10)).await.unwrap_err();
    assert_eq!(fault.code(), Code::CoordinationRefused, "{fault}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_that_loses_its_rights_sees_no_deletions() {
    let guarded = Guarded::start();
    let token = guarded.token("blue", POLICY);
    let store = guarded.store(Some(&token), NAMESPACE).await;
    store.put("k", "1").await.unwrap();
    let listing = store.list(&Scope::prefix("")).await.unwrap();
    let mut watch = store.watch(&Scope::prefix(""), listing.position()).unwrap();
    assert_eq!(watch.next(Duration::from_millis(200)).await.unwrap(), Turn::Quiet);
    let rules = file(guarded.dir.path(), "less.hcl", "session_prefix \"\" { policy = \"write\" }");
    let rules = format!("@{}", rules.display());
    run(&mut guarded.server.command(&["acl", "policy", "update", "-name", "blue", "-rules", &rules]));
    let start = Instant::now();
    // Consul remembers rights for a while.
    loop {
        assert!(start.elapsed() < LIMIT, "the token still has its rights");
        match watch.next(Duration::from_millis(200)).await {
            Ok(Turn::Quiet) => {}
            Ok(other) => panic!("{other:?}"),
            Err(fault) => {
                assert_eq!(fault.code(), Code::CoordinationRefused, "{fault}");
                break;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_token_in_the_file_is_used_once_the_old_one_is_refused() {
    let guarded = Guarded::start();
    let new = guarded.token("blue", POLICY);
    let store = guarded.store(Some("00000000-1111-2222-3333-444444444444"), NAMESPACE).await;
    let fault = store.put("k", "x").await.unwrap_err();
    assert_eq!(fault.code(), Code::CoordinationRefused, "{fault}");
    file(guarded.dir.path(), "token", &new);
    store.put("k", "x").await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn consul_over_mutual_tls_is_used_and_others_are_turned_away() {
    let dir = TempDir::new().unwrap();
    let made = |name: &str, issuer: &Issuer<'_, KeyPair>| {
        let key = KeyPair::generate().unwrap();
        let names = vec!["127.0.0.1".to_owned(), "localhost".to_owned()];
        let certificate = CertificateParams::new(names).unwrap().signed_by(&key, issuer).unwrap();
        let key = file(dir.path(), &format!("{name}.key"), &key.serialize_pem());
        (file(dir.path(), &format!("{name}.crt"), &certificate.pem()), key)
    };
    let authority = |name: &str| {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).unwrap();
        (file(dir.path(), &format!("{name}.crt"), &certificate.pem()), Issuer::new(params, key))
    };
    let (ca, issuer) = authority("ca");
    let (other_ca, other_issuer) = authority("other-ca");
    let (server_cert, server_key) = made("server", &issuer);
    let (cert, key) = made("client", &issuer);
    let (other_cert, other_key) = made("other", &other_issuer);
    let https = quorate_testkit::free_port();
    let config = format!(
        "ports {{ https = {https} }} verify_incoming_https = true ca_file = \"{}\" cert_file = \"{}\" key_file = \"{}\"",
        ca.display(),
        server_cert.display(),
        server_key.display()
    );
    let _server = ConsulServer::start(Kind::Fleeting, &config);
    let plain = ConsulSettings::new(format!("https://127.0.0.1:{https}"));
    let good =
        ConsulSettings { ca: Some(ca.clone()), cert: Some(cert.clone()), key: Some(key.clone()), ..plain.clone() };
    let open =
        |settings: ConsulSettings| async move { Store::open(&Settings::new(Place::Consul(settings), NAMESPACE)).await };
    uses_everything(&open(good.clone()).await.unwrap()).await;
    for bad in [
        ConsulSettings { ca: Some(other_ca), ..good.clone() },
        ConsulSettings { cert: Some(other_cert), key: Some(other_key), ..good.clone() },
        ConsulSettings { cert: None, key: None, ..good.clone() },
    ] {
        let fault = open(bad).await.unwrap().get("k").await.unwrap_err();
        assert_eq!(fault.code(), Code::CoordinationSilent, "{fault}");
    }
    for invalid in [
        ConsulSettings { key: None, ..good.clone() },
        ConsulSettings { ca: Some(key), ..good.clone() },
        ConsulSettings { token_file: Some(file(dir.path(), "token", "two\nlines\n")), ..good.clone() },
        ConsulSettings { lock_delay: Duration::from_secs(61), ..good },
        ConsulSettings::new("https://user:secret@127.0.0.1"),
        ConsulSettings::new("127.0.0.1:8500"),
        ConsulSettings::new("ftp://127.0.0.1"),
    ] {
        let fault = open(invalid).await.unwrap_err();
        assert_eq!(fault.code(), Code::CoordinationInvalid, "{fault}");
        assert!(!format!("{fault:?}").contains("secret"), "a password was shown");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn consuls_rules_of_sessions_are_as_the_guide_says() {
    let server = ConsulServer::start(Kind::Fleeting, "");
    let delayed = ConsulSettings { lock_delay: Duration::from_secs(8), ..ConsulSettings::new(server.url()) };
    let delayed = Store::open(&Settings::new(Place::Consul(delayed), NAMESPACE)).await.unwrap();
    let store = Store::open(&Settings::new(server.place(), NAMESPACE)).await.unwrap();
    // A session lives for 10 s at least, and up to twice its time without being renewed.
    let (left, granted) = store.grant(Duration::from_secs(1)).await.unwrap();
    assert_eq!(granted, Duration::from_secs(10));
    store.hold("left", "x", &left).await.unwrap();
    let granted_at = Instant::now();
    // With a lock delay, a lock that was lost is kept from everybody for that time; one that was given back is not.
    let (one, two) = (delayed.lease(granted).await.unwrap(), store.lease(granted).await.unwrap());
    let lost = delayed.lock("l", &one, "one", LIMIT).await.unwrap();
    let lost_at = Instant::now();
    one.end().await.unwrap();
    let fault = store.lock("l", &two, "two", Duration::from_millis(200)).await.unwrap_err();
    assert_eq!(fault.code(), Code::LockTaken, "{fault}");
    assert!(fault.to_string().contains("keeps it back"), "{fault}");
    let lock = store.lock("l", &two, "two", LIMIT).await.unwrap();
    assert!(lost_at.elapsed() >= Duration::from_secs(8), "after {:?}", lost_at.elapsed());
    assert!(lock.token() > lost.token());
    // Writing what is there already changes nothing, not even the revision.
    let first = store.put("same", "x").await.unwrap();
    assert_eq!(store.put("same", "x").await.unwrap(), first);
    while store.get("left").await.unwrap().is_some() {
        assert!(granted_at.elapsed() < LIMIT, "the session never ends");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let lived = granted_at.elapsed();
    assert!(lived >= Duration::from_secs(10), "{lived:?}");
    println!("a session of 10 s that nobody renewed lived for {lived:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_that_others_wrote_into_the_namespace_are_a_fault() {
    let server = ConsulServer::start(Kind::Fleeting, "");
    let store = Store::open(&Settings::new(server.place(), NAMESPACE)).await.unwrap();
    store.put("k", "x").await.unwrap();
    run(&mut server.command(&["kv", "put", "quorate/blue/two words", "x"]));
    let fault = store.list(&Scope::prefix("")).await.unwrap_err();
    assert_eq!(fault.code(), Code::CoordinationUnreadable);
    assert!(fault.to_string().contains("quorate/blue/two%20words"), "{fault}");
    run(&mut server.command(&["kv", "delete", "quorate/blue/two words"]));
    store.put("services/etcd/n1", "not a record").await.unwrap();
    assert_eq!(store.list(&Scope::prefix("")).await.unwrap().entries.len(), 2);

    let server = EtcdServer::start("sid");
    let store = Store::open(&Settings::new(server.place(), NAMESPACE)).await.unwrap();
    server.server().ctl(&["put", "quorate/blue/services/etcd/n1", "not a record"]);
    let fault = store.instances("etcd").await.unwrap_err();
    assert_eq!(fault.code(), Code::CoordinationUnreadable, "{fault}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_is_not_consuls_is_not_taken_for_an_empty_one() {
    for answer in [
        "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]",
        "HTTP/1.1 200 OK\r\nX-Consul-Index: 5\r\nContent-Length: 4\r\n\r\nnull",
        "HTTP/1.1 200 OK\r\nX-Consul-Index: 5\r\nContent-Length: 9\r\n\r\n[{\"a\":1}]",
        "HTTP/1.1 301 Moved\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n",
        "garbage\r\n\r\n",
    ] {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let serving = tokio::spawn(serve(listener, answer));
        let place = Place::Consul(ConsulSettings::new(url));
        let store = Store::open(&Settings::new(place, NAMESPACE)).await.unwrap();
        for asked in [
            store.list(&Scope::prefix("")).await.map(|_| ()),
            store.get("k").await.map(|_| ()),
            store.instances("s").await.map(|_| ()),
            store.put("k", "x").await.map(|_| ()),
            store.lease(Duration::from_secs(10)).await.map(|_| ()),
        ] {
            let fault = asked.expect_err(answer);
            let known = [Code::CoordinationUnreadable, Code::CoordinationSilent];
            assert!(known.contains(&fault.code()), "{answer}: {fault}");
        }
        serving.abort();
    }
}

/// Answers every request with the same text.
async fn serve(listener: tokio::net::TcpListener, answer: &'static str) {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    loop {
        let Ok((mut stream, _)) = listener.accept().await else { return };
        tokio::spawn(async move {
            let mut request = [0; 4096];
            while stream.read(&mut request).await.is_ok_and(|read| read > 0) {
                if stream.write_all(answer.as_bytes()).await.is_err() {
                    return;
                }
            }
        });
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_takes_less_says_so_with_the_same_fault() {
    let consul = ConsulServer::start(Kind::Fleeting, "limits { txn_max_req_len = 1000 kv_max_value_size = 1000 }");
    let store = Store::open(&Settings::new(consul.place(), NAMESPACE)).await.unwrap();
    let fault = store.put("k", vec![0; 2000]).await.unwrap_err();
    assert_eq!(fault.code(), Code::CoordinationTooLarge, "{fault}");
    assert_eq!(
        store.create("k", "x").await.unwrap(),
        Outcome::Committed(store.get("k").await.unwrap().map(|k| k.revision))
    );
}
