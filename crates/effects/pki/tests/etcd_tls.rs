//! Real etcd with our certificates: three members serve, no other certificate makes a peer, and a renewal is taken at the next
//! handshake without a restart.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use quorate_pki::tls::{self, ClientFiles};
use quorate_pki::{Authority, Role, read_certificates};
use quorate_testkit::{Running, Seat, Tools, VERSIONS, etcd, wait_until};
use rustls::pki_types::ServerName;
use support::{Place, TOKEN, days, put};

const LIMIT: Duration = Duration::from_secs(60);

fn port(url: &str) -> &str {
    url.rsplit_once(':').unwrap().1
}

fn https(url: &str) -> String {
    url.replace("http://", "https://")
}

/// Three members that were started the plain way, with certificates of ours.
struct Cluster {
    place: Place,
    seats: Vec<Seat>,
    running: Vec<Running>,
    tools: Tools,
}

impl Cluster {
    /// The certificates are two thirds through their life.
    fn start(version: &str) -> Cluster {
        let tools = etcd(version);
        let began = Timestamp::now() - days(61);
        let place = Place::began(began);
        let seats = Seat::many(3);
        let all = seats.iter().map(|seat| format!("{}={}", seat.name, https(&seat.peer_url())));
        let all = all.collect::<Vec<_>>().join(",");
        let mut running = Vec::new();
        for seat in &seats {
            place.install(&seat.name, began);
            running.push(start_one(&tools, &place, seat, &all, !version.starts_with("3.4")));
        }
        let cluster = Cluster { place, seats, running, tools };
        for index in 0..3 {
            wait_until("a member that serves", LIMIT, || cluster.ctl(index, &["get", "k"]).is_ok());
        }
        cluster
    }

    fn dir(&self, index: usize) -> PathBuf {
        self.place.node(&self.seats[index].name)
    }

    /// `etcdctl` with the certificate of member `index`'s administrator, against that member.
    fn ctl(&self, index: usize, words: &[&str]) -> Result<String, String> {
        let at = |name: &str| self.dir(index).join(name).display().to_string();
        let (ca, cert, key) = (at("client-ca.crt"), at("admin.crt"), at("admin.key"));
        let mut args = vec!["--cacert", &ca, "--cert", &cert, "--key", &key, "--command-timeout", "2s"];
        args.extend(words);
        self.tools.try_ctl(&https(&self.seats[index].client_url()), &args)
    }

    /// What a request to the peer port of member 0 leads to, with the certificate of `role`.
    fn peer_port(&self, role: Role) -> Result<String, String> {
        let dir = self.dir(1);
        let files = ClientFiles {
            cert: dir.join(role.cert_file()),
            key: dir.join(role.key_file()),
            ca: dir.join(Authority::Peer.cert_file()),
        };
        ask(port(&self.seats[0].peer_url()), files, "/members").map(|(answer, _)| answer)
    }
}

fn start_one(tools: &Tools, place: &Place, seat: &Seat, all: &str, asks_for_name: bool) -> Running {
    let dir = place.node(&seat.name);
    let at = |name: &str| dir.join(name).display().to_string();
    let (peer, client) = (https(&seat.peer_url()), https(&seat.client_url()));
    let data = place.dir.path().join(format!("data-{}", seat.name));
    let mut args = vec![
        format!("--name={}", seat.name),
        format!("--data-dir={}", data.display()),
        format!("--listen-peer-urls={peer}"),
        format!("--initial-advertise-peer-urls={peer}"),
        format!("--listen-client-urls={client}"),
        format!("--advertise-client-urls={client}"),
        format!("--initial-cluster={all}"),
        format!("--initial-cluster-token={TOKEN}"),
        format!("--cert-file={}", at("client.crt")),
        format!("--key-file={}", at("client.key")),
        format!("--trusted-ca-file={}", at("client-ca.crt")),
        "--client-cert-auth".to_owned(),
        format!("--peer-cert-file={}", at("peer.crt")),
        format!("--peer-key-file={}", at("peer.key")),
        format!("--peer-trusted-ca-file={}", at("peer-ca.crt")),
        "--peer-client-cert-auth".to_owned(),
        "--heartbeat-interval=20".to_owned(),
        "--election-timeout=200".to_owned(),
    ];
    if asks_for_name {
        args.push(format!("--peer-cert-allowed-hostname=peer.{TOKEN}.quorate.internal"));
    }
    Running::start(&tools.etcd, &args, &[])
}

/// A handshake and one request: the answer's first line, and the certificate that the server showed.
fn ask(port: &str, files: ClientFiles, path: &str) -> Result<(String, Vec<u8>), String> {
    let config = tls::client(files).map_err(|fault| fault.to_string())?.current();
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let connection = rustls::ClientConnection::new(config, name).map_err(|error| error.to_string())?;
    let socket = TcpStream::connect(format!("127.0.0.1:{port}")).map_err(|error| error.to_string())?;
    socket.set_read_timeout(Some(LIMIT)).unwrap();
    let mut stream = rustls::StreamOwned::new(connection, socket);
    let request = format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).map_err(|error| error.to_string())?;
    let mut answer = [0; 512];
    let length = stream.read(&mut answer).map_err(|error| error.to_string())?;
    let line = String::from_utf8_lossy(&answer[..length]).lines().next().unwrap_or_default().to_owned();
    let shown = stream.conn.peer_certificates().and_then(|chain| chain.first()).unwrap().to_vec();
    Ok((line, shown))
}

fn leaf(dir: &Path, role: Role) -> Vec<u8> {
    read_certificates(&dir.join(role.cert_file())).unwrap().remove(0).der
}

fn as_client(dir: &Path) -> ClientFiles {
    ClientFiles { cert: dir.join("admin.crt"), key: dir.join("admin.key"), ca: dir.join("client-ca.crt") }
}

#[test]
fn only_peers_are_peers_and_a_renewal_needs_no_restart() {
    for version in VERSIONS {
        let mut cluster = Cluster::start(version);
        cluster.ctl(0, &["put", "k", "v"]).unwrap();
        // A client's, an agent's and an administrator's certificate open no peer port; another member's does.
        assert_eq!(cluster.peer_port(Role::Peer).unwrap(), "HTTP/1.1 200 OK", "{version}");
        for role in [Role::Client, Role::Agent, Role::Admin] {
            let refused = cluster.peer_port(role);
            assert!(refused.is_err(), "{version}: {role:?} got {refused:?}");
        }
        // Renewed with the same keys while etcd runs.
        let (dir, client) = (cluster.dir(0), port(&cluster.seats[0].client_url()).to_owned());
        let before = leaf(&dir, Role::Client);
        assert_eq!(ask(&client, as_client(&dir), "/health").unwrap().1, before, "{version}");
        for index in 0..3 {
            let installed = cluster.place.install(&cluster.seats[index].name, Timestamp::now());
            assert_eq!(installed.replaced, Role::ALL);
        }
        let after = leaf(&dir, Role::Client);
        assert_ne!(before, after);
        let (line, shown) = ask(&client, as_client(&dir), "/health").unwrap();
        assert_eq!((line.as_str(), shown), ("HTTP/1.1 200 OK", after), "{version}");
        assert_eq!(cluster.peer_port(Role::Peer).unwrap(), "HTTP/1.1 200 OK", "{version}");
        for index in 0..3 {
            cluster.ctl(index, &["put", "k", "w"]).unwrap();
            assert!(cluster.running[index].ended().is_none(), "{version}: member {index} ended");
        }
        for running in &mut cluster.running {
            running.stop();
        }
    }
}

#[test]
fn an_ended_certificate_and_one_of_another_authority_are_refused() {
    let cluster = Cluster::start("3.5.16");
    let client = port(&cluster.seats[0].client_url()).to_owned();
    let dir = cluster.dir(0);
    ask(&client, as_client(&dir), "/health").unwrap();
    // Ended yesterday.
    let began = Timestamp::now() - days(91);
    let past = Place::began(began);
    past.install("n1", began);
    for file in ["peer-ca", "client-ca", "agent-ca"] {
        for end in ["crt", "key"] {
            let name = format!("{file}.{end}");
            put(&past.ca().join(&name), &support::read(&cluster.place.ca().join(&name)));
        }
    }
    let ended = past.sign("n2", quorate_pki::Keys::Keep, began);
    put(&past.node("n2").join("admin.crt"), &quorate_plan::certificates::pem(ended.certificate(Role::Admin)));
    let ca = dir.join("client-ca.crt");
    let files = |node: &Path| ClientFiles { ca: ca.clone(), ..as_client(node) };
    let refused = ask(&client, files(&past.node("n2")), "/health").unwrap_err();
    assert!(refused.contains("BadCertificate") || refused.contains("Expired"), "{refused}");
    // Of authorities that this cluster does not know, and the other way round.
    let stranger = Place::new();
    stranger.install("n1", stranger.now);
    let refused = ask(&client, files(&stranger.node("n1")), "/health").unwrap_err();
    assert!(refused.contains("BadCertificate") || refused.contains("UnknownCA"), "{refused}");
    let refused = ask(&client, as_client(&stranger.node("n1")), "/health").unwrap_err();
    assert!(refused.contains("UnknownIssuer"), "{refused}");
}
