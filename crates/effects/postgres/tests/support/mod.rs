//! Real servers on loopback for the tests of this crate: certificates, data dirs, processes and connections.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]
#![allow(dead_code, reason = "every test uses some of it")]

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use quorate_host::durable::Owner;
use quorate_postgres::Secret;
use quorate_postgres::group::{
    Member, Prepare, Seat, UserKind, UserSpec, ensure_extensions, ensure_member, ensure_mesh, prepare,
};
use quorate_postgres::schema;
use quorate_postgres::server::{
    DataMark, Installation, ServerConfig, TlsFiles, ensure_config, ensure_data, wait_ready,
};
use quorate_postgres::sql::{Client, Limits, Place};
use quorate_testkit::{Port, Running, free_port, postgres, start_unprivileged, unprivileged};
use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use tempfile::TempDir;

pub(crate) const DATABASE: &str = "rdpg";
pub(crate) const GROUP: &str = "blue";
pub(crate) const PASSWORD: &str = "app-secret";
/// Generous: a busy machine with two cores.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Authority {
    pub(crate) fn new() -> Authority {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "peers");
        let pem = params.self_signed(&key).unwrap().pem();
        Authority { issuer: Issuer::new(params, key), pem }
    }

    /// Files for a name, below a directory.
    pub(crate) fn files(&self, dir: &Path, name: &str) -> TlsFiles {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["localhost".to_owned(), "127.0.0.1".to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let cert = params.signed_by(&key, &self.issuer).unwrap();
        let put = |ending: &str, text: &str| {
            use std::io::Write;
            let path = dir.join(format!("{name}{ending}"));
            std::fs::File::create(&path).unwrap().write_all(text.as_bytes()).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
            path
        };
        TlsFiles {
            cert: put(".crt", &cert.pem()),
            key: put(".key", &key.serialize_pem()),
            ca: put("-ca.crt", &self.pem),
        }
    }
}

pub(crate) fn owner() -> Option<Owner> {
    unprivileged().map(|(uid, gid)| Owner { uid, gid })
}

/// A directory that everyone may enter.
pub(crate) fn open_dir() -> TempDir {
    let dir = TempDir::with_prefix("quorate-pg-").unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    dir
}

pub(crate) struct Node {
    pub(crate) member: Member,
    pub(crate) config: ServerConfig,
    pub(crate) installation: Installation,
    pub(crate) data: PathBuf,
    pub(crate) files: TlsFiles,
    pub(crate) process: Option<Running>,
    keeper: Option<Keeper>,
    _port: Port,
}

/// Does what the agent of a node does beside its steps, until it is dropped.
struct Keeper(tokio::task::JoinHandle<()>);

impl Drop for Keeper {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn keep_tables(place: Place) {
    let mut open: Option<Client> = None;
    loop {
        tokio::time::sleep(Duration::from_millis(50)).await;
        open = match open.take() {
            Some(client) => schema::refresh(&client).await.is_ok().then_some(client),
            None => Client::connect(&place, Limits::default()).await.ok(),
        };
    }
}

impl Node {
    pub(crate) fn new(root: &Path, authority: &Authority, id: u16, major: u32) -> Node {
        let name = format!("n{id}");
        let port = free_port();
        let files = authority.files(root, &name);
        let mut config = ServerConfig::new(&name, port.number(), &root.join(format!("run{id}")));
        config.listen = vec!["127.0.0.1".to_owned()];
        config.peer_names = (1..10).map(|id| format!("n{id}")).collect();
        config.members = 5;
        config.tls = Some(files.clone());
        config.owner = owner();
        config.extra.insert("shared_buffers".to_owned(), "16MB".to_owned());
        let installation = Installation::at(&postgres(major)).unwrap();
        let member = Member { id, name, host: "127.0.0.1".to_owned(), port: port.number() };
        Node {
            member,
            config,
            installation,
            data: root.join(format!("data{id}")),
            files,
            process: None,
            keeper: None,
            _port: port,
        }
    }

    pub(crate) fn mark(&self) -> DataMark {
        DataMark { group: GROUP.to_owned(), node: self.member.name.clone() }
    }

    pub(crate) fn init(&self) {
        ensure_data(&self.installation, &self.data, &self.mark(), self.config.owner).unwrap();
        ensure_config(&self.data, &self.config, self.installation.version).unwrap();
    }

    pub(crate) fn start(&mut self) {
        let args = vec!["-D".to_owned(), self.data.display().to_string()];
        self.process = Some(start_unprivileged(&self.installation.program("postgres"), &args));
        self.keeper = Some(Keeper(tokio::spawn(keep_tables(Place::own(&self.config, DATABASE)))));
    }

    pub(crate) async fn own(&self, database: &str) -> Client {
        wait_ready(&Place::own(&self.config, database), LIMIT).await.unwrap()
    }

    pub(crate) async fn peer(&self, as_whom: &TlsFiles) -> Client {
        wait_ready(&Place::peer(&self.member, as_whom, DATABASE), LIMIT).await.unwrap()
    }

    pub(crate) async fn seat(&self, as_whom: &TlsFiles) -> Seat {
        Seat { member: self.member.clone(), client: self.peer(as_whom).await }
    }

    /// As an application: only the pooler comes this way, and a test may stand for it.
    pub(crate) async fn app(&self) -> Client {
        let place = Place {
            password: Some(Secret::new(PASSWORD.to_owned())),
            ..Place::socket(&self.member.name, &self.config.socket_dir, self.config.port, "app", DATABASE)
        };
        Client::connect(&place, Limits::default()).await.unwrap()
    }

    /// Kills the postmaster; its children follow.
    pub(crate) fn kill(&mut self) {
        self.keeper = None;
        self.process = None;
    }

    /// Starts it again: as long as something of the killed one is left, the new one ends at once.
    pub(crate) async fn start_after_kill(&mut self) {
        let begun = std::time::Instant::now();
        self.start();
        while Client::connect(&Place::own(&self.config, DATABASE), Limits::default()).await.is_err() {
            assert!(begun.elapsed() < LIMIT, "it does not come back");
            tokio::time::sleep(Duration::from_millis(50)).await;
            if self.process.as_mut().is_none_or(|process| process.ended().is_some()) {
                self.start();
            }
        }
    }

    /// Users, database, extensions and membership.
    pub(crate) async fn prepare(&self, all: &[Member]) -> Vec<String> {
        let user =
            |name: &str, kind| UserSpec { name: name.to_owned(), password: Secret::new(PASSWORD.to_owned()), kind };
        let wanted = Prepare {
            database: DATABASE.to_owned(),
            users: vec![user("rdpg", UserKind::Owner), user("app", UserKind::App), user("health", UserKind::Health)],
        };
        let mut done = prepare(&self.own("postgres").await, &wanted).await.unwrap();
        let client = self.own(DATABASE).await;
        done.extend(ensure_extensions(&client, &["pgcrypto".to_owned()]).await.unwrap());
        let made = ensure_member(&client, GROUP, &self.member, all, &self.files).await.unwrap();
        done.extend((made == quorate_postgres::Outcome::Done).then(|| "made a member".to_owned()));
        done
    }
}

pub(crate) struct Servers {
    pub(crate) root: TempDir,
    pub(crate) authority: Authority,
    pub(crate) nodes: Vec<Node>,
}

impl Servers {
    /// Servers that run and are prepared, without links.
    pub(crate) async fn start(majors: &[u32]) -> Servers {
        let root = open_dir();
        let authority = Authority::new();
        let ids = (1..).zip(majors);
        let mut nodes: Vec<Node> = ids.map(|(id, major)| Node::new(root.path(), &authority, id, *major)).collect();
        std::thread::scope(|scope| {
            for node in &nodes {
                scope.spawn(|| node.init());
            }
        });
        for node in &mut nodes {
            node.start();
        }
        let servers = Servers { root, authority, nodes };
        let all = servers.members();
        for node in &servers.nodes {
            assert!(!node.prepare(&all).await.is_empty());
        }
        servers
    }

    pub(crate) fn members(&self) -> Vec<Member> {
        self.nodes.iter().map(|node| node.member.clone()).collect()
    }

    /// Everyone, as the first node's agent sees them.
    pub(crate) async fn seats(&self) -> Vec<Seat> {
        self.seats_as(0).await
    }

    pub(crate) async fn seats_as(&self, who: usize) -> Vec<Seat> {
        let mut seats = Vec::new();
        for node in &self.nodes {
            seats.push(node.seat(&self.nodes[who].files).await);
        }
        seats
    }

    /// The same with all links, made by two nodes at once.
    pub(crate) async fn link(&self) -> Vec<Seat> {
        let (first, second) = (self.seats_as(0).await, self.seats_as(1).await);
        let (a, b) = tokio::join!(ensure_mesh(&first), ensure_mesh(&second));
        a.unwrap();
        b.unwrap();
        first
    }
}
