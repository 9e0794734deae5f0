//! The client against real servers of every supported release.

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

use std::time::{Duration, Instant};

use quorate_etcd::client::messages::{
    Compare, DeleteRangeRequest, PutRequest, RangeRequest, Request, Response, TxnRequest,
};
use quorate_etcd::client::{Client, Consistency, Downgrade, Settings};
use quorate_faults::Code;
use quorate_testkit::{Seat, Server, VERSIONS, etcd, free_port};
use tempfile::TempDir;

struct Lone {
    server: Server,
    _dir: TempDir,
}

fn lone(version: &str) -> Lone {
    let dir = TempDir::new().unwrap();
    let server = Server::start(&etcd(version), &Seat::new("n1"), &dir.path().join("data"));
    Lone { server, _dir: dir }
}

async fn connect(urls: &[String]) -> Client {
    Client::connect(&Settings::new(urls)).await.unwrap()
}

fn nobody() -> String {
    // Port 1 of loopback: nothing listens there, and the kernel says so at once.
    "http://127.0.0.1:1".to_owned()
}

#[tokio::test]
async fn every_release_takes_every_call() {
    for version in VERSIONS {
        let lone = lone(version);
        let client = connect(&[lone.server.seat.client_url()]).await;

        let revision = client.put("/a/1", "one").await.unwrap().header.unwrap().revision;
        client.put("/a/2", "two").await.unwrap();
        client.put("/b/1", "other").await.unwrap();
        let kv = client.get("/a/1").await.unwrap().unwrap();
        assert_eq!((kv.value.as_slice(), kv.mod_revision, kv.version), (b"one".as_slice(), revision, 1), "{version}");
        assert_eq!(client.get("/a/9").await.unwrap(), None);
        assert_eq!(lone.server.get("/a/2").as_deref(), Some("two"), "etcdctl reads what we wrote");

        let listing = client.list("/a/").await.unwrap();
        let keys: Vec<&[u8]> = listing.kvs.iter().map(|kv| kv.key.as_slice()).collect();
        assert_eq!(keys, [b"/a/1", b"/a/2"]);
        assert_eq!(client.list("").await.unwrap().kvs.len(), 3);

        let status = client.status().await.unwrap();
        assert_eq!(status.version, lone.server.tools.version);
        let header = status.header.unwrap();
        assert_eq!(status.leader, header.member_id);

        let members = client.member_list(Consistency::Linearizable).await.unwrap().members;
        assert_eq!((members.len(), members[0].id, members[0].name.as_str()), (1, header.member_id, "n1"));
        assert_eq!(members[0].client_urls, [lone.server.seat.client_url()]);

        let expected = lone.server.ctl_json(&["endpoint", "hashkv"]);
        let hash = client.hash_kv(0).await.unwrap();
        assert_eq!(u64::from(hash.hash), expected[0]["HashKV"]["hash"].as_u64().unwrap(), "{version}");

        assert_eq!(client.delete("/b/1").await.unwrap(), 1);
        assert!(client.alarms().await.unwrap().alarms.is_empty());
    }
}

#[tokio::test]
async fn an_earlier_release_is_prepared_where_etcd_can() {
    for version in VERSIONS {
        let lone = lone(version);
        let client = connect(&[lone.server.seat.client_url()]).await;
        let words = |fault: quorate_faults::Fault| {
            let cause = std::error::Error::source(&fault).map(ToString::to_string);
            format!("{fault}: {}", cause.unwrap_or_default())
        };
        if version.starts_with("3.4.") {
            let refused = words(client.downgrade(Downgrade::Validate, "3.3").await.unwrap_err());
            assert!(refused.contains("unknown method Downgrade"), "{refused}");
            continue;
        }
        // One minor version down, and neither two nor up.
        assert_eq!(client.downgrade(Downgrade::Validate, "3.4").await.unwrap().version, "3.5.0", "{version}");
        for other in ["3.3", "3.6", "nonsense"] {
            let refused = words(client.downgrade(Downgrade::Validate, other).await.unwrap_err());
            assert!(refused.contains("downgrade"), "{version} {other}: {refused}");
        }
        // 3.5 begins it, and never says so: that it was begun is seen by asking again.
        let begun = client.with_timeout(Duration::from_secs(2)).downgrade(Downgrade::Enable, "3.4").await;
        assert_eq!(begun.map_err(|fault| fault.code()), Err(Code::EtcdUnreachable), "{version}");
        let again = words(client.downgrade(Downgrade::Enable, "3.4").await.unwrap_err());
        assert!(again.contains("downgrade job in progress"), "{version}: {again}");
    }
}

#[tokio::test]
async fn a_transaction_creates_a_key_only_once() {
    let lone = lone("sid");
    let client = connect(&[lone.server.seat.client_url()]).await;
    let create = |value: &str| TxnRequest {
        compare: vec![Compare::absent("/lock")],
        success: vec![
            Request::Put(PutRequest { key: "/lock".into(), value: value.into(), ..PutRequest::default() }).into(),
        ],
        failure: vec![Request::Range(RangeRequest { key: "/lock".into(), ..RangeRequest::default() }).into()],
    };
    assert!(client.txn(create("first")).await.unwrap().succeeded);
    let second = client.txn(create("second")).await.unwrap();
    assert!(!second.succeeded);
    let Some(Response::Range(there)) = &second.responses[0].response else { panic!("{second:?}") };
    assert_eq!(there.kvs[0].value, b"first");
    let unchanged = Compare::unchanged_since("/lock", there.kvs[0].mod_revision);
    let delete = DeleteRangeRequest { key: "/lock".into(), prev_kv: true, ..DeleteRangeRequest::default() };
    let request =
        TxnRequest { compare: vec![unchanged], success: vec![Request::DeleteRange(delete).into()], failure: vec![] };
    assert!(client.txn(request).await.unwrap().succeeded);
}

#[tokio::test]
async fn a_long_listing_comes_in_pages_of_one_revision() {
    let lone = lone("3.5.16");
    let client = connect(&[lone.server.seat.client_url()]).await;
    for batch in 0..11 {
        let puts = (0..100).map(|at| {
            let key = format!("/many/{batch:02}{at:02}").into_bytes();
            Request::Put(PutRequest { key, value: "x".into(), ..PutRequest::default() }).into()
        });
        client.txn(TxnRequest { success: puts.collect(), ..TxnRequest::default() }).await.unwrap();
    }
    let listing = client.list("/many/").await.unwrap();
    assert_eq!(listing.kvs.len(), 1100);
    assert!(listing.kvs.is_sorted_by(|a, b| a.key < b.key));
    assert_eq!(listing.revision, 12);
}

#[tokio::test]
async fn a_dead_endpoint_is_passed_over_for_reads_and_writes() {
    let lone = lone("sid");
    let client = connect(&[nobody(), lone.server.seat.client_url()]).await;
    client.put("/k", "v").await.unwrap();
    assert_eq!(client.get("/k").await.unwrap().unwrap().value, b"v");
    assert_eq!(client.each().count(), 2);
    let dead = client.each().next().unwrap();
    assert_eq!(dead.status().await.unwrap_err().code(), Code::EtcdUnreachable);
}

#[tokio::test]
async fn when_nobody_answers_the_fault_names_every_endpoint() {
    let other = format!("http://localhost:{}", free_port());
    let client = connect(&[nobody(), other.clone()]).await;
    let fault = client.get("/k").await.unwrap_err();
    assert_eq!(fault.code(), Code::EtcdUnreachable);
    assert_eq!(fault.to_string(), format!("cannot read keys: etcd at `{}`, `{other}` did not answer", nobody()));
    let cause = std::error::Error::source(&fault).unwrap().to_string();
    assert!(cause.contains("Connection refused"), "{cause}");
}

#[tokio::test]
async fn a_silent_endpoint_is_given_up_after_the_limit() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let limit = Duration::from_millis(300);
    let client = Client::connect(&Settings { timeout: limit, ..Settings::new([url]) }).await.unwrap();
    let start = Instant::now();
    let fault = client.put("/k", "v").await.unwrap_err();
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
    assert_eq!(fault.code(), Code::EtcdUnreachable);
    assert!(fault.hint_text().unwrap().starts_with("it is not known whether the change took effect"));
}

#[tokio::test]
async fn a_write_that_may_have_arrived_is_not_sent_to_another_endpoint() {
    let lone = lone("sid");
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let urls = [format!("http://{}", silent.local_addr().unwrap()), lone.server.seat.client_url()];
    let settings = Settings { timeout: Duration::from_secs(1), ..Settings::new(urls) };
    let client = Client::connect(&settings).await.unwrap();
    client.put("/once", "v").await.unwrap_err();
    assert_eq!(lone.server.get("/once"), None);
    assert_eq!(client.get("/once").await.unwrap(), None, "a read goes on to the next endpoint");
}

#[tokio::test]
async fn a_server_that_comes_back_is_used_again() {
    let lone = lone("sid");
    let (tools, seat, data) = (lone.server.tools.clone(), lone.server.seat.clone(), lone.server.data_dir.clone());
    let client = connect(&[seat.client_url()]).await;
    client.put("/k", "v").await.unwrap();
    lone.server.kill();
    assert_eq!(client.get("/k").await.unwrap_err().code(), Code::EtcdUnreachable);
    let _again = Server::start(&tools, &seat, &data);
    assert_eq!(client.get("/k").await.unwrap().unwrap().value, b"v");
}

#[tokio::test]
async fn endpoints_that_cannot_be_are_refused() {
    for url in ["ftp://127.0.0.1:2379", "http://", "unix:///tmp/etcd", "http://a b"] {
        let fault = Client::connect(&Settings::new([url])).await.unwrap_err();
        assert!(fault.to_string().starts_with("cannot use `"), "{url}: {fault}");
    }
    assert!(Client::connect(&Settings::new(Vec::<String>::new())).await.is_err());
}
