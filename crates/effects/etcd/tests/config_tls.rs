//! The TLS part of the config file, on real servers: it serves those with a certificate and refuses everyone else.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::time::Duration;

use quorate_etcd::client::{Client, Consistency, Settings, Tls};
use quorate_etcd::init::{Request, Target, ensure_member};
use quorate_etcd_formats::founding::{Form, Founding};
use quorate_host::durable::RealDisk;
use quorate_plan::etcd_config::{EtcdConfig, Minor, render};
use quorate_plan::spec::Spec;
use quorate_testkit::{Running, Seat, Tools, VERSIONS, etcd, wait_until};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair};

fn put(path: &Path, text: &str) {
    use std::io::Write;
    std::fs::File::create(path).unwrap().write_all(text.as_bytes()).unwrap();
}

/// An authority, and what it signs, in a folder of its own.
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
        put(&dir.join("ca.crt"), &issuer.pem());
        Authority { dir, issuer }
    }

    fn issue(&self, who: &str, names: &[&str]) {
        let mut params = CertificateParams::new(names.iter().map(ToString::to_string).collect::<Vec<_>>()).unwrap();
        params.distinguished_name.push(rcgen::DnType::CommonName, who);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().unwrap();
        let cert = params.signed_by(&key, &self.issuer).unwrap();
        put(&self.dir.join(format!("{who}.crt")), &cert.pem());
        put(&self.dir.join(format!("{who}.key")), &key.serialize_pem());
    }

    fn tls(&self, who: Option<&str>) -> Tls {
        let file = |end: &str| who.map(|who| self.dir.join(format!("{who}.{end}")));
        Tls { ca: Some(self.dir.join("ca.crt")), cert: file("crt"), key: file("key"), server_name: None }
    }
}

/// Three members that were founded offline, with what each is started with.
struct Cluster {
    dir: tempfile::TempDir,
    seats: Vec<Seat>,
    peers: Authority,
    clients: Authority,
    spec: Spec,
}

const PEER_NAME: &str = "peer.t.internal";

impl Cluster {
    fn new(hostname: bool) -> Cluster {
        let dir = tempfile::tempdir().unwrap();
        let (peers, clients) = (Authority::new(dir.path(), "peers"), Authority::new(dir.path(), "clients"));
        let seats = Seat::many(3);
        let mut members = String::new();
        for seat in &seats {
            peers.issue(&seat.name, &["127.0.0.1", PEER_NAME]);
            clients.issue(&seat.name, &["127.0.0.1"]);
            members += &format!(
                "  - {{name: {}, peer-urls: ['{}'], client-urls: ['{}'], data-dir: '{}/data-{{name}}', listen-agent-url: \
                 'https://{0}:2382', listen-health-url: 'https://{0}:2383'}}\n",
                seat.name,
                https(&seat.peer_url()),
                https(&seat.client_url()),
                dir.path().display()
            );
        }
        // The client's certificate is of the same CA as the servers', but no peer's.
        clients.issue("admin", &[]);
        let files = |authority: &Authority| {
            let dir = authority.dir.display();
            format!(
                "{{cert-file: '{dir}/{{name}}.crt', key-file: '{dir}/{{name}}.key', trusted-ca-file: '{dir}/ca.crt'}}"
            )
        };
        let name = if hostname { format!("  peer-allowed-hostname: {PEER_NAME}\n") } else { String::new() };
        let text = format!(
            "token: t\nbootstrap: {{id: 1}}\nmembers:\n{members}tls:\n  peer: {}\n  client: {}\n{name}",
            files(&peers),
            files(&clients)
        );
        let (spec, _) = Spec::parse(text.as_bytes(), "c.yaml").map_err(|mistakes| mistakes.render()).unwrap();
        Cluster { dir, seats, peers, clients, spec }
    }

    /// Founds every member and starts it with the rendered file, which `edit` may change.
    fn start(&self, tools: &Tools, edit: impl Fn(&str, String) -> String) -> Vec<Running> {
        let minor = Minor::parse(&tools.version).unwrap();
        let all = self.spec.members.iter().map(|member| (member.name.clone(), member.peer_urls.clone())).collect();
        let founding = Founding::new(all, &self.spec.etcd_token().unwrap()).unwrap();
        let start = |member: &quorate_plan::spec::Member| {
            let target = Target::new(Path::new(&member.data_dir), None).unwrap();
            let local = founding.member(&member.name).unwrap();
            ensure_member(&RealDisk, &target, Request { founding: &founding, local, form: Form::Any }).unwrap();
            let config = EtcdConfig { spec: &self.spec, member, join: None };
            let file = self.dir.path().join(format!("{}.yaml", member.name));
            put(&file, &edit(&member.name, render(&config, minor).unwrap()));
            Running::start(&tools.etcd, &[format!("--config-file={}", file.display())], &[])
        };
        self.spec.members.iter().map(start).collect()
    }

    fn url(&self, index: usize) -> String {
        https(&self.seats[index].client_url())
    }

    async fn ask(&self, index: usize, tls: Tls) -> Result<usize, String> {
        let settings = Settings { tls, ..Settings::new([self.url(index)]) };
        let client = Client::connect(&settings).await.map_err(|fault| fault.to_string())?;
        let list = client.member_list(Consistency::Linearizable).await;
        list.map(|list| list.members.len()).map_err(|fault| fault.hint_text().unwrap_or_default().to_owned())
    }

    /// Waits until member `index` answers a read that needs a quorum, or says why it never will.
    async fn serves(&self, index: usize, running: &mut [Running]) {
        let began = std::time::Instant::now();
        loop {
            let answer = self.ask(index, self.clients.tls(Some("admin"))).await;
            if answer == Ok(3) {
                return;
            }
            let log = running[index].log_tail(20);
            assert!(running[index].ended().is_none(), "it ended:\n{log}");
            assert!(began.elapsed() < Duration::from_secs(60), "{answer:?}:\n{log}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

fn https(url: &str) -> String {
    url.replace("http://", "https://")
}

#[tokio::test]
async fn every_etcd_serves_with_certificates_and_refuses_without() {
    for version in VERSIONS {
        let tools = etcd(version);
        // 3.4 has no setting for the name; the next test shows what that would come to.
        let cluster = Cluster::new(!version.starts_with("3.4"));
        let mut running = cluster.start(&tools, |_, text| text);
        for index in 0..3 {
            cluster.serves(index, &mut running).await;
        }
        let nobody = cluster.ask(0, cluster.clients.tls(None)).await.unwrap_err();
        assert!(nobody.contains("wants a client certificate"), "{version}: {nobody}");
        // A certificate of the peers' CA is none for clients: the server's own is not trusted either, so only it is swapped.
        let peer = Tls { ca: Some(cluster.clients.dir.join("ca.crt")), ..cluster.peers.tls(Some("n1")) };
        let stranger = cluster.ask(0, peer).await.unwrap_err();
        assert!(stranger.contains("wants a client certificate"), "{version}: {stranger}");
        for running in &mut running {
            running.stop();
        }
    }
}

#[tokio::test]
async fn a_peer_without_the_name_is_refused_by_every_etcd_that_has_the_setting() {
    for version in ["3.5.16", "sid"] {
        let tools = etcd(version);
        let cluster = Cluster::new(true);
        // The third one has a certificate of the right CA, for the right address, but without the name.
        cluster.peers.issue("n3", &["127.0.0.1"]);
        let mut running = cluster.start(&tools, |_, text| text);
        cluster.serves(0, &mut running).await;
        cluster.serves(1, &mut running).await;
        wait_until("a refusal of n3's certificate", Duration::from_secs(30), || {
            running[0].log_tail(2000).contains("does not match any allowed")
                || running[0].log_tail(2000).contains("client certificate authentication failed")
                || running[0].log_tail(2000).contains("rejected connection")
        });
        let answer = cluster.ask(2, cluster.clients.tls(Some("admin"))).await;
        assert!(answer.is_err(), "{version}: n3 reads through a quorum that refuses it: {answer:?}");
    }
}

#[test]
fn an_etcd_without_the_setting_is_not_started_as_if_it_had_it() {
    let cluster = Cluster::new(true);
    let config = EtcdConfig { spec: &cluster.spec, member: &cluster.spec.members[0], join: None };
    let fault = render(&config, Minor::V3_4).unwrap_err();
    assert!(fault.to_string().contains("has no `peer-allowed-hostname`"), "{fault}");
}
