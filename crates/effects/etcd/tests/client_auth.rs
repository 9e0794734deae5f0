//! The client against clusters with users.

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

use std::time::{Duration, Instant};

use quorate_etcd::client::{Client, Credentials, Settings, WatchFrom, WatchTurn};
use quorate_faults::Code;
use quorate_testkit::{Launch, Seat, Server, VERSIONS, etcd, wait_until};
use tempfile::TempDir;

fn guarded(version: &str, dir: &TempDir) -> Server {
    guard(Launch::new(&etcd(version), &Seat::new("n1"), &dir.path().join("data")))
}

fn guard(launch: Launch) -> Server {
    // The cheapest hash of passwords: none of these is worth more.
    let server = launch.arg("--bcrypt-cost=4").start();
    for words in [
        "user add root:secret",
        "user add reader:secret",
        "role add look",
        "role grant-permission look read /open/ --prefix=true",
        "user grant-role reader look",
        "user grant-role root root",
        "auth enable",
    ] {
        // 3.4 has no root role until it is added; later ones have it from the start.
        if words.ends_with("root root") {
            let _ = server.try_ctl(&["role", "add", "root"]);
        }
        server.ctl(&words.split(' ').collect::<Vec<_>>());
    }
    server
}

async fn connect(server: &Server, user: Option<(&str, &str)>) -> Result<Client, quorate_faults::Fault> {
    let credentials = user.map(|(name, password)| Credentials { name: name.to_owned(), password: password.to_owned() });
    Client::connect(&Settings { credentials, ..Settings::new([server.seat.client_url()]) }).await
}

#[tokio::test]
async fn a_cluster_with_users_asks_who_we_are() {
    for version in VERSIONS {
        let dir = TempDir::new().unwrap();
        let server = guarded(version, &dir);

        let root = connect(&server, Some(("root", "secret"))).await.unwrap();
        root.put("/open/k", "v").await.unwrap();
        assert_eq!(root.get("/open/k").await.unwrap().unwrap().value, b"v");

        let anonymous = connect(&server, None).await.unwrap();
        let fault = anonymous.get("/open/k").await.unwrap_err();
        assert_eq!(fault.code(), Code::EtcdRefused, "{version}");
        assert!(fault.hint_text().unwrap().contains("asks for a user and password"));
        assert!(fault.to_string().contains(&server.seat.client_url()));

        let wrong = connect(&server, Some(("root", "wrong"))).await.unwrap_err();
        assert_eq!((wrong.code(), wrong.to_string().ends_with("refused to log in")), (Code::EtcdRefused, true));
        assert!(!format!("{wrong:?}").contains("wrong\""), "the password is not repeated");

        let reader = connect(&server, Some(("reader", "secret"))).await.unwrap();
        assert_eq!(reader.list("/open/").await.unwrap().kvs.len(), 1);
        let fault = reader.put("/open/k", "w").await.unwrap_err();
        assert_eq!(fault.code(), Code::EtcdRefused);
        assert!(fault.hint_text().unwrap().contains("may not do that"), "{:?}", fault.hint_text());
    }
}

#[tokio::test]
async fn an_expired_token_is_renewed_without_a_word() {
    let dir = TempDir::new().unwrap();
    let server = guarded("sid", &dir);
    let client = connect(&server, Some(("root", "secret"))).await.unwrap();
    client.put("/k", "1").await.unwrap();
    let (tools, seat, data) = (server.tools.clone(), server.seat.clone(), server.data_dir.clone());
    // Simple tokens live in the server's memory, so a restart forgets them.
    server.stop();
    let _again = Launch::new(&tools, &seat, &data).spawn();
    let address = seat.client_url().replace("http://", "");
    let limit = Instant::now() + Duration::from_secs(30);
    while std::net::TcpStream::connect(&address).is_err() {
        assert!(Instant::now() < limit, "the server does not listen");
        // The wait lets the client notice that its old connection has ended.
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    client.put("/k", "2").await.unwrap();
    assert_eq!(client.get("/k").await.unwrap().unwrap().value, b"2");
}

#[test]
fn a_token_whose_time_is_over_is_renewed_by_calls_and_by_streams() {
    // Most of it is waiting for the tokens' time to be over, so the releases run side by side.
    std::thread::scope(|scope| {
        for version in VERSIONS {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            scope.spawn(move || runtime.block_on(renews_expired_tokens(version)));
        }
    });
}

async fn renews_expired_tokens(version: &str) {
    let dir = TempDir::new().unwrap();
    let launch = Launch::new(&etcd(version), &Seat::new("n1"), &dir.path().join("data"));
    // Only with the latter two do all releases say that a token has expired.
    let server = guard(launch.arg("--auth-token-ttl=1").arg("--logger=zap").arg("--log-level=debug"));
    let [call, watch, snapshot] = [(); 3].map(|()| connect(&server, Some(("root", "secret"))));
    let (call, watch, snapshot) = (call.await.unwrap(), watch.await.unwrap(), snapshot.await.unwrap());
    let from = WatchFrom { revision: 1, progress: false };
    let mut long = watch.watch(from).await.unwrap();
    wait_until("the tokens to expire", Duration::from_secs(20), || {
        server.running.log().lines().filter(|line| line.contains("deleted a simple token")).count() >= 3
    });
    call.put("/k", "v").await.unwrap();
    assert!(matches!(long.next().await.unwrap(), WatchTurn::Events { .. }), "{version}: an open watch goes on");
    assert!(matches!(watch.watch(from).await.unwrap().next().await.unwrap(), WatchTurn::Events { .. }));
    assert!(snapshot.snapshot().await.unwrap().next().await.unwrap().is_some(), "{version}");
}

#[tokio::test]
async fn credentials_for_a_cluster_without_users_do_no_harm() {
    let dir = TempDir::new().unwrap();
    let server = Server::start(&etcd("sid"), &Seat::new("n1"), &dir.path().join("data"));
    let client = connect(&server, Some(("root", "secret"))).await.unwrap();
    client.put("/k", "v").await.unwrap();
}
