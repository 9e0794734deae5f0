//! Clients that are silent or slow, by the hundred and by the thousand: agents answer everyone else, and do their work.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod cluster_support;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cluster_support::{Declared, LIMIT, Wire};
use quorate_testkit::{Running, kill_hard, quorate, wait_until};
use reqwest::{Certificate, Client, Identity};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::runtime::Runtime;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// A probe of a kubelet gives up after a second or a few; a machine of two busy cores gets more.
const PATIENCE: Duration = Duration::from_secs(8);
/// More than the 64 handshakes, and than the connections of one address, that were ever allowed at a time.
const HUNDREDS: u16 = 200;

/// One member, and what attacks its agent.
struct Target {
    health: &'static str,
    cluster: Declared,
    runtime: Runtime,
    tls: TlsConnector,
    client: Client,
}

impl Target {
    /// Below a limit of descriptors it has the health port in the clear, where every connection is past its handshake.
    fn start(files: Option<u64>) -> Target {
        let mut cluster = Declared::new("3.5.16", 1, Wire::Tls);
        let mut text = cluster.text();
        if files.is_none() {
            text = text.replace("listen-health-url: \"http://", "listen-health-url: \"https://");
        }
        let file = cluster.file_as("cluster.yaml", &text).display().to_string();
        let mut words = vec![quorate().display().to_string(), "run".into(), "--config".into(), file];
        words.extend(["--name".to_owned(), "n1".to_owned()]);
        if let Some(files) = files {
            words.insert(0, format!("--nofile={files}:{files}"));
            words.insert(0, "/usr/bin/prlimit".to_owned());
        }
        cluster.members[0].agent = Some(Running::start(words[0].as_ref(), &words[1..], &[]));
        cluster.wait_phase(0, "serving");
        let read = |name: &str| std::fs::read(cluster.path(name)).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(&read("ca.pem")).unwrap()).unwrap();
        let (chain, key) = (read("n1.pem"), read("n1.key"));
        let config = ClientConfig::builder().with_root_certificates(roots).with_client_auth_cert(
            CertificateDer::pem_slice_iter(&chain).map(Result::unwrap).collect(),
            PrivateKeyDer::from_pem_slice(&key).unwrap(),
        );
        let identity = Identity::from_pem(&[chain, b"\n".to_vec(), key].concat()).unwrap();
        let builder = Client::builder().tls_certs_only([Certificate::from_pem(&read("ca.pem")).unwrap()]);
        let client = builder.identity(identity).pool_max_idle_per_host(0).timeout(PATIENCE).build().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let health = if files.is_none() { "https" } else { "http" };
        Target { health, runtime, tls: TlsConnector::from(Arc::new(config.unwrap())), client, cluster }
    }

    fn ports(&self) -> [u16; 2] {
        [self.cluster.members[0].health.number(), self.cluster.members[0].api.number()]
    }

    /// Connects `count` times to a port, from that many addresses.
    fn connect(&self, port: u16, count: u16, addresses: u8) -> Vec<TcpStream> {
        let at = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let connect = async |number: u16| {
            let socket = TcpSocket::new_v4().unwrap();
            let last = u8::try_from(number % u16::from(addresses)).unwrap();
            socket.bind(SocketAddr::from(([127, 0, 7, 1 + last], 0))).unwrap();
            tokio::time::timeout(PATIENCE, socket.connect(at)).await.ok()?.ok()
        };
        let all = async {
            let mut open = Vec::new();
            for number in 0..count {
                open.extend(connect(number).await);
            }
            open
        };
        self.runtime.block_on(all)
    }

    /// The same through the handshake, and then with these bytes.
    fn connect_tls(&self, port: u16, count: u16, then: &str) -> Vec<TlsStream<TcpStream>> {
        let plain = self.connect(port, count, 1);
        self.runtime.block_on(async {
            let mut open = Vec::new();
            for stream in plain {
                let name = ServerName::try_from("127.0.0.1").unwrap();
                let shaken = tokio::time::timeout(PATIENCE, self.tls.connect(name, stream)).await;
                // Another one may have got its place.
                if let Ok(Ok(mut stream)) = shaken
                    && stream.write_all(then.as_bytes()).await.is_ok()
                {
                    open.push(stream);
                }
            }
            open
        })
    }

    /// Health and agents answer whoever asks now.
    #[track_caller]
    fn assert_answers(&self, during: &str) {
        let [health, api] = self.ports();
        for (url, code) in [
            (format!("{}://127.0.0.1:{health}/readyz", self.health), 200),
            (format!("https://127.0.0.1:{api}/v1/node"), 400),
        ] {
            let begun = Instant::now();
            let answer = self.runtime.block_on(async { self.client.get(&url).send().await });
            let answer =
                answer.unwrap_or_else(|error| panic!("{during}: {url} after {:?}: {error:?}", begun.elapsed()));
            assert_eq!(answer.status(), code, "{during}: {url}");
        }
    }
}

#[test]
fn silent_and_slow_clients_keep_nobody_from_an_answer() {
    let target = Target::start(None);
    target.assert_answers("nothing else");
    let held = target.ports().map(|port| target.connect(port, HUNDREDS, 1));
    target.assert_answers("silence before the handshake");
    drop(held);
    let body =
        "POST /v1/started HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{";
    for (what, then) in
        [("silence after the handshake", ""), ("half a header", "GET /readyz HTTP/1.1\r\nHo"), ("half a body", body)]
    {
        let held = target.ports().map(|port| target.connect_tls(port, HUNDREDS, then));
        assert!(held.iter().all(|open| open.len() > 64), "{what}: {:?}", held.each_ref().map(Vec::len));
        target.assert_answers(what);
    }
    // A silent connection ends by itself.
    let [health, _] = target.ports();
    for mut stream in target.connect(health, 1, 1) {
        let mut one = [0];
        let ended = target.runtime.block_on(async { tokio::time::timeout(LIMIT, stream.read(&mut one)).await });
        assert!(matches!(ended, Ok(Ok(0) | Err(_))), "{ended:?}");
    }
}

#[test]
fn ten_thousand_silent_connections_change_nothing() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    assert!(limit.maximum.is_none_or(|files| files > 11_000), "run this with `ulimit -n 20000`");
    let target = Target::start(None);
    let mut held = Vec::new();
    for round in 0..5 {
        held.extend(target.ports().map(|port| target.connect(port, 1_000, 40)));
        target.assert_answers(&format!("{} connections", (round + 1) * 2_000));
    }
    assert_eq!(held.iter().map(Vec::len).sum::<usize>(), 10_000);
    let files = std::fs::read_dir(format!("/proc/{}/fd", target.cluster.members[0].agent.as_ref().unwrap().pid()));
    let files = files.unwrap().count();
    assert!(files < 1_500, "the agent holds {files} descriptors");
}

#[test]
fn a_thousand_idle_connections_leave_descriptors_to_restart_etcd() {
    let mut target = Target::start(Some(1024));
    let pid = |status: &serde_json::Value| status["etcd"]["pid"].as_u64();
    let before = pid(&target.cluster.status(0)).unwrap();
    let [health, _] = target.ports();
    let held = target.connect(health, 1_000, 20);
    assert_eq!(held.len(), 1_000);
    kill_hard(u32::try_from(before).unwrap());
    let again =
        |status: &serde_json::Value| status["phase"] == "serving" && pid(status).is_some_and(|now| now != before);
    target.cluster.wait_status(0, "etcd that was started again", again);
    wait_until("it answers", LIMIT, || target.cluster.try_ctl(0, &["put", "k", "v"]).is_ok());
    target.assert_answers("a thousand idle connections");
    drop(held);
}
