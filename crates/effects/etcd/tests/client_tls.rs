//! The client against servers that ask for certificates.

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

use std::error::Error;
use std::path::{Path, PathBuf};
use std::time::Duration;

use quorate_etcd::client::{Client, Consistency, Settings, Tls, WatchFrom, WatchTurn};
use quorate_etcd_formats::passing::Passing;
use quorate_faults::{Code, Fault};
use quorate_testkit::{Launch, Seat, Server, VERSIONS, etcd, wait_until};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair};
use tempfile::TempDir;

/// An authority and what it signed, as files.
struct Authority {
    dir: PathBuf,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    fn new(dir: &Path, name: &str) -> Authority {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let dir = dir.join(name);
        std::fs::create_dir(&dir).unwrap();
        put(&dir.join("ca.pem"), &issuer.pem());
        Authority { dir, issuer }
    }

    fn ca(&self) -> PathBuf {
        self.dir.join("ca.pem")
    }

    /// A certificate for these names, good for servers and clients.
    fn issue(&self, who: &str, names: &[&str]) -> (PathBuf, PathBuf) {
        let mut params = CertificateParams::new(names.iter().map(ToString::to_string).collect::<Vec<_>>()).unwrap();
        params.distinguished_name.push(rcgen::DnType::CommonName, who);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().unwrap();
        let cert = params.signed_by(&key, &self.issuer).unwrap();
        let paths = (self.dir.join(format!("{who}.pem")), self.dir.join(format!("{who}.key")));
        put(&paths.0, &cert.pem());
        put(&paths.1, &key.serialize_pem());
        paths
    }
}

fn put(path: &Path, text: &str) {
    use std::io::Write;
    std::fs::File::create(path).unwrap().write_all(text.as_bytes()).unwrap();
}

struct Secured {
    dir: TempDir,
    ours: Authority,
    url: String,
    _server: Server,
}

/// A server that asks every client for a certificate.
fn secured(version: &str, names: &[&str]) -> Secured {
    let dir = TempDir::new().unwrap();
    let ours = Authority::new(dir.path(), "ours");
    let (cert, key) = ours.issue("server", names);
    let seat = Seat::new("n1");
    let url = seat.client_url().replace("http://", "https://");
    let server = Launch::new(&etcd(version), &seat, &dir.path().join("data"))
        .arg(format!("--listen-client-urls={url}"))
        .arg(format!("--advertise-client-urls={url}"))
        .arg(format!("--cert-file={}", cert.display()))
        .arg(format!("--key-file={}", key.display()))
        .arg(format!("--trusted-ca-file={}", ours.ca().display()))
        .arg("--client-cert-auth")
        .spawn();
    let address = url.replace("https://", "");
    wait_until("the server listens", Duration::from_secs(30), || std::net::TcpStream::connect(&address).is_ok());
    Secured { dir, ours, url, _server: server }
}

async fn ask(url: &str, tls: Tls) -> Result<usize, Fault> {
    let client = Client::connect(&Settings { tls, ..Settings::new([url]) }).await?;
    let answer = client.member_list(Consistency::Local).await?;
    Ok(answer.members.len())
}

fn tls(ca: &Path, identity: Option<(PathBuf, PathBuf)>) -> Tls {
    let (cert, key) = identity.unzip();
    Tls { ca: Some(ca.to_owned()), cert, key, server_name: None }
}

#[track_caller]
fn expect(fault: Fault, code: Code, hint: &str) {
    let cause = fault.source().map(ToString::to_string);
    assert_eq!(fault.code(), code, "{fault}: {cause:?}");
    assert!(fault.hint_text().unwrap_or_default().contains(hint), "{:?}: {cause:?}", fault.hint_text());
}

#[tokio::test]
async fn mutual_tls_works_and_every_wrong_file_is_named() {
    let secured = secured("sid", &["127.0.0.1", "localhost"]);
    let (ca, url) = (secured.ours.ca(), secured.url.as_str());
    let ours = secured.ours.issue("client", &[]);
    let theirs = Authority::new(secured.dir.path(), "theirs");

    assert_eq!(ask(url, tls(&ca, Some(ours.clone()))).await.unwrap(), 1);
    assert_eq!(ask(&url.replace("127.0.0.1", "localhost"), tls(&ca, Some(ours.clone()))).await.unwrap(), 1);

    let unreachable = Code::EtcdUnreachable;
    let wrong_ca = ask(url, tls(&theirs.ca(), Some(ours.clone()))).await.unwrap_err();
    expect(wrong_ca, unreachable, "not signed by a trusted CA");
    let system_ca = ask(url, Tls::default()).await.unwrap_err();
    assert_eq!(system_ca.code(), unreachable);
    let no_client = ask(url, tls(&ca, None)).await.unwrap_err();
    expect(no_client, unreachable, "wants a client certificate");
    let stranger = ask(url, tls(&ca, Some(theirs.issue("client", &[])))).await.unwrap_err();
    expect(stranger, unreachable, "wants a client certificate");
    let plain = ask(&url.replace("https", "http"), Tls::default()).await.unwrap_err();
    expect(plain, unreachable, "use `https://`");

    let half = Tls { cert: Some(ours.0.clone()), ..tls(&ca, None) };
    expect(ask(url, half).await.unwrap_err(), unreachable, "give the key file too");
    let absent = tls(Path::new("/no/such/ca.pem"), None);
    expect(ask(url, absent).await.unwrap_err(), Code::Io, "");
    let not_pem = tls(Path::new("/bin/true"), None);
    expect(ask(url, not_pem).await.unwrap_err(), unreachable, "PEM");
    let swapped = tls(&ca, Some((ours.0, theirs.issue("other", &[]).1)));
    expect(ask(url, swapped).await.unwrap_err(), unreachable, "key belongs to the certificate");
}

#[tokio::test]
async fn a_certificate_for_another_host_is_refused_unless_the_name_is_given() {
    let secured = secured("sid", &["etcd.example"]);
    let tls = tls(&secured.ours.ca(), Some(secured.ours.issue("client", &[])));
    let fault = ask(&secured.url, tls.clone()).await.unwrap_err();
    expect(fault, Code::EtcdUnreachable, "made out to another name");
    let named = Tls { server_name: Some("etcd.example".to_owned()), ..tls };
    assert_eq!(ask(&secured.url, named).await.unwrap(), 1);
}

#[tokio::test]
async fn https_to_a_plain_server_says_so() {
    let dir = TempDir::new().unwrap();
    let ours = Authority::new(dir.path(), "ours");
    let server = Server::start(&etcd("sid"), &Seat::new("n1"), &dir.path().join("data"));
    let url = server.seat.client_url().replace("http", "https");
    expect(ask(&url, tls(&ours.ca(), None)).await.unwrap_err(), Code::EtcdUnreachable, "try `http://`");
}

#[tokio::test]
async fn streams_are_as_guarded_as_calls() {
    for version in VERSIONS {
        let secured = secured(version, &["127.0.0.1"]);
        let ours = tls(&secured.ours.ca(), Some(secured.ours.issue("client", &[])));
        let client = Client::connect(&Settings { tls: ours, ..Settings::new([&secured.url]) }).await.unwrap();
        let from = WatchFrom { revision: 2, progress: false };
        let mut watch = client.watch(from).await.unwrap();
        // Larger than a record of TLS and a window of HTTP/2.
        client.put("/large", vec![7; 1 << 20]).await.unwrap();
        let WatchTurn::Events { events, more: false, header } = watch.next().await.unwrap() else {
            panic!("{version}")
        };
        assert_eq!((events.len(), events[0].kv.as_ref().unwrap().value.len(), header.revision), (1, 1 << 20, 2));

        let (mut stream, mut passing) = (client.snapshot().await.unwrap(), Passing::new());
        while let Some(piece) = stream.next().await.unwrap() {
            passing.push(&piece);
        }
        let passed = passing.finish().unwrap();
        assert!(passed.revision == 2 && passed.bytes > 1 << 20, "{version}: {passed:?}");

        let settings = Settings { tls: tls(&secured.ours.ca(), None), ..Settings::new([&secured.url]) };
        let stranger = Client::connect(&settings).await.unwrap();
        expect(stranger.watch(from).await.unwrap_err(), Code::EtcdUnreachable, "wants a client certificate");
        expect(stranger.snapshot().await.unwrap_err(), Code::EtcdUnreachable, "wants a client certificate");
    }
}
