//! Users and roles of real clusters become what the cluster file declares, and stay so.

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use quorate_agent::auth::{Reconciled, look, reconcile};
use quorate_etcd::client::{Client, Credentials, Settings, Tls, Tried};
use quorate_faults::{Code, Fault};
use quorate_plan::spec::{AuthSpec, Spec};
use quorate_testkit::{Launch, Running, Seat, Server, etcd};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair};
use tempfile::TempDir;

const RELEASES: [&str; 2] = ["3.4.23", "sid"];

fn put(path: &Path, text: &str) {
    std::fs::File::create(path).unwrap().write_all(text.as_bytes()).unwrap();
}

/// A folder with the passwords, and an etcd beside it.
struct Place {
    dir: TempDir,
    server: Server,
}

impl Place {
    fn new(version: &str) -> Place {
        let dir = TempDir::new().unwrap();
        put(&dir.path().join("root"), "root's own\n");
        put(&dir.path().join("alice"), "alice's own\n");
        let launch = Launch::new(&etcd(version), &Seat::new("n1"), &dir.path().join("data"));
        // The cheapest hash of passwords: none of these is worth more.
        let server = launch.arg("--bcrypt-cost=4").start();
        Place { dir, server }
    }

    /// The `auth` of a cluster file; DIR stands for our folder.
    fn spec(&self, auth: &str) -> AuthSpec {
        let text = format!(
            "token: t\nplaintext: true\nmembers: [{{name: n1, address: 127.0.0.1}}]\nagent: {{etcd-user: root, \
             etcd-password-file: DIR/root}}\nauth:\n{auth}"
        );
        parse(&text.replace("DIR", self.dir.path().to_str().unwrap()))
    }

    async fn client(&self, user: &str, password: &str) -> Result<Client, Fault> {
        let credentials = Some(Credentials { name: user.to_owned(), password: password.to_owned() });
        Client::connect(&Settings { credentials, ..Settings::new([self.server.seat.client_url()]) }).await
    }

    async fn root(&self) -> Client {
        self.client("root", "root's own").await.unwrap()
    }
}

fn parse(text: &str) -> AuthSpec {
    Spec::parse(text.as_bytes(), "c.yaml").map_err(|mistakes| mistakes.render()).unwrap().0.auth.unwrap()
}

const APP: &str = "  roles: [{name: app, permissions: [{prefix: /app/, access: readwrite}, {key: /motd}]}]
  users: [{name: alice, password-file: DIR/alice, roles: [app]}]
";

#[tokio::test]
async fn users_and_roles_become_what_is_declared_and_a_second_run_changes_nothing() {
    for version in RELEASES {
        let place = Place::new(version);
        let spec = place.spec(APP);
        let root = place.root().await;
        let first = reconcile(&root, &spec).await.unwrap();
        assert_eq!(first.done.first().map(String::as_str), Some("add role `root`"), "{version}");
        assert_eq!(first.done.last().map(String::as_str), Some("enable auth"), "{version}");
        assert!(first.remarks.iter().all(|remark| remark.starts_with("everyone on this machine")), "{first:?}");
        let quiet = |done: &Reconciled| done.done.is_empty();
        assert!(quiet(&reconcile(&root, &spec).await.unwrap()), "{version}: the same client logs in by itself");
        assert!(quiet(&reconcile(&place.root().await, &spec).await.unwrap()), "{version}");

        let alice = place.client("alice", "alice's own").await.unwrap();
        alice.put("/app/k", "v").await.unwrap();
        root.put("/motd", "hello").await.unwrap();
        assert_eq!(alice.get("/motd").await.unwrap().unwrap().value, b"hello");
        assert_eq!(alice.put("/motd", "mine").await.unwrap_err().code(), Code::EtcdRefused);
        assert_eq!(alice.get("/other").await.unwrap_err().code(), Code::EtcdRefused);
        let anyone = Client::connect(&Settings::new([place.server.seat.client_url()])).await.unwrap();
        assert_eq!(anyone.get("/motd").await.unwrap_err().code(), Code::EtcdRefused);
    }
}

#[tokio::test]
async fn a_changed_permission_and_a_changed_password_are_followed() {
    for version in RELEASES {
        let place = Place::new(version);
        let root = place.root().await;
        reconcile(&root, &place.spec(APP)).await.unwrap();
        let less = place.spec(&APP.replace("access: readwrite", "access: read"));
        let done = reconcile(&root, &less).await.unwrap().done;
        assert_eq!(done, ["let role `app` read keys from `/app/` up to `/app0`"], "{version}");
        let alice = place.client("alice", "alice's own").await.unwrap();
        assert_eq!(alice.put("/app/k", "v").await.unwrap_err().code(), Code::EtcdRefused);
        assert!(alice.get("/app/k").await.unwrap().is_none());

        put(&place.dir.path().join("alice"), "another");
        let done = reconcile(&root, &less).await.unwrap().done;
        assert_eq!(done, ["set the password of user `alice`"], "{version}");
        assert!(place.client("alice", "alice's own").await.is_err());
        place.client("alice", "another").await.unwrap();
        assert!(reconcile(&root, &less).await.unwrap().done.is_empty(), "{version}");

        let moved = place.spec(&APP.replace("prefix: /app/", "prefix: /new/"));
        let done = reconcile(&root, &moved).await.unwrap().done;
        let words = [
            "let role `app` read and write keys from `/new/` up to `/new0`",
            "take keys from `/app/` up to `/app0` from role `app`",
        ];
        assert_eq!(done, words, "{version}");
    }
}

#[tokio::test]
async fn strangers_are_named_and_removed_only_when_asked() {
    for version in RELEASES {
        let place = Place::new(version);
        let root = place.root().await;
        reconcile(&root, &place.spec(APP)).await.unwrap();
        root.role_add("odd").await.unwrap();
        root.user_add("bob", Some("x")).await.unwrap();
        root.user_grant("bob", "odd").await.unwrap();
        root.user_grant("alice", "odd").await.unwrap();
        let found = reconcile(&root, &place.spec(APP)).await.unwrap();
        assert_eq!(found.done, ["take role `odd` from user `alice`"], "{version}");
        assert!(found.remarks.contains(&"user `bob` is not declared".to_owned()), "{found:?}");
        assert!(found.remarks.contains(&"role `odd` is not declared".to_owned()), "{found:?}");
        let prune = place.spec(&format!("  prune: true\n{APP}"));
        assert_eq!(reconcile(&root, &prune).await.unwrap().done.len(), 2);
        assert_eq!(root.user_list().await.unwrap(), ["alice", "root"], "{version}");
        assert!(reconcile(&root, &prune).await.unwrap().done.is_empty(), "{version}");
    }
}

#[tokio::test]
async fn a_password_file_that_cannot_be_used_changes_nothing() {
    let place = Place::new("sid");
    let (root, file) = (place.root().await, place.dir.path().join("alice"));
    let missing = place.spec(&APP.replace("DIR/alice", "DIR/missing"));
    let mut faults = vec![reconcile(&root, &missing).await.unwrap_err()];
    for text in ["", "\n", &"x".repeat(73), "hunter2\u{0}".repeat(50).as_str()] {
        put(&file, text);
        faults.push(reconcile(&root, &place.spec(APP)).await.unwrap_err());
    }
    for fault in faults {
        assert_eq!(fault.code(), Code::PasswordFile, "{fault}");
        assert!(!format!("{fault} {fault:?}").contains("hunter2"), "no password is repeated");
    }
    assert!(root.user_list().await.unwrap().is_empty() && !root.auth_enabled().await.unwrap());
    put(&file, &"x".repeat(72));
    reconcile(&root, &place.spec(APP)).await.unwrap();
    place.client("alice", &"x".repeat(72)).await.unwrap();
}

#[tokio::test]
async fn auth_is_not_enabled_by_an_agent_that_would_lock_itself_out() {
    let place = Place::new("sid");
    let fault = reconcile(&place.client("someone", "x").await.unwrap(), &place.spec(APP)).await.unwrap_err();
    assert_eq!(fault.code(), Code::AuthLockOut, "{fault}");
    let root = place.root().await;
    assert!(!root.auth_enabled().await.unwrap());
    assert_eq!(reconcile(&root, &place.spec(APP)).await.unwrap().done.last().unwrap(), "enable auth");
}

#[tokio::test]
async fn users_may_be_made_before_anyone_is_asked_and_auth_is_never_disabled() {
    for version in RELEASES {
        let place = Place::new(version);
        let root = place.root().await;
        let off = place.spec(&format!("  enabled: false\n{APP}"));
        assert!(!reconcile(&root, &off).await.unwrap().done.is_empty());
        assert!(reconcile(&root, &off).await.unwrap().done.is_empty(), "{version}");
        assert!(!root.auth_enabled().await.unwrap(), "{version}");
        put(&place.dir.path().join("alice"), "changed meanwhile");
        let done = reconcile(&root, &place.spec(APP)).await.unwrap().done;
        let words = ["set the password of user `root`", "set the password of user `alice`", "enable auth"];
        assert_eq!(done, words, "{version}");
        assert!(root.auth_enabled().await.unwrap(), "{version}");
        place.client("alice", "changed meanwhile").await.unwrap();
        let plan = look(&root, &off).await.unwrap();
        assert!(plan.steps.is_empty() && plan.remarks.iter().any(|remark| remark.contains("etcdctl auth disable")));
    }
}

#[tokio::test]
async fn a_user_made_without_password_is_said_to_stay_so() {
    for version in RELEASES {
        let place = Place::new(version);
        let root = place.root().await;
        reconcile(&root, &place.spec(&APP.replace("password-file: DIR/alice, ", ""))).await.unwrap();
        assert_eq!(root.try_password("alice", "x").await.unwrap(), Tried::HasNone, "{version}");
        let later = reconcile(&root, &place.spec(APP)).await.unwrap();
        assert!(later.done.is_empty(), "{later:?}");
        assert!(later.remarks.iter().any(|remark| remark.contains("etcdctl user delete alice")), "{later:?}");
        root.user_remove("alice").await.unwrap();
        assert_eq!(reconcile(&root, &place.spec(APP)).await.unwrap().done.len(), 2);
        place.client("alice", "alice's own").await.unwrap();
    }
}

/// An authority and its certificates in a folder.
struct Authority {
    dir: PathBuf,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    fn new(dir: &Path) -> Authority {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, "clients");
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        put(&dir.join("ca.crt"), &issuer.pem());
        Authority { dir: dir.to_owned(), issuer }
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

    fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    async fn client(&self, url: &str, who: &str) -> Client {
        let (cert, key) = (Some(self.file(&format!("{who}.crt"))), Some(self.file(&format!("{who}.key"))));
        let tls = Tls { ca: Some(self.file("ca.crt")), cert, key, server_name: None };
        Client::connect(&Settings { tls, ..Settings::new([url]) }).await.unwrap()
    }
}

#[tokio::test]
async fn users_are_who_their_certificates_say() {
    for version in RELEASES {
        let dir = TempDir::new().unwrap();
        let authority = Authority::new(dir.path());
        authority.issue("n1", &["127.0.0.1"]);
        for who in ["quorate-admin", "web.example.com", "stranger"] {
            authority.issue(who, &[]);
        }
        let seat = Seat::new("n1");
        let url = seat.client_url().replace("http://", "https://");
        let text = |name: &str| authority.file(name).display().to_string();
        let flags = [
            ("name", "n1".to_owned()),
            ("data-dir", text("data")),
            ("listen-client-urls", url.clone()),
            ("advertise-client-urls", url.clone()),
            ("listen-peer-urls", seat.peer_url()),
            ("cert-file", text("n1.crt")),
            ("key-file", text("n1.key")),
            ("trusted-ca-file", text("ca.crt")),
        ];
        let mut args = flags.map(|(flag, value)| format!("--{flag}={value}")).to_vec();
        args.push("--client-cert-auth".to_owned());
        let mut server = Running::start(&etcd(version).etcd, &args, &[]);
        let admin = authority.client(&url, "quorate-admin").await;
        let limit = tokio::time::Instant::now() + Duration::from_secs(60);
        while admin.get("ready").await.is_err() {
            assert!(server.ended().is_none() && tokio::time::Instant::now() < limit, "{}", server.log_tail(20));
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let spec = parse(
            "token: t\ntls: {dir: /pki}\nmembers: [{name: n1, address: 127.0.0.1}]\nauth:\n  roles: [{name: web, permissions: \
             [{prefix: /web/, access: readwrite}]}]\n  users: [{name: web.example.com, roles: [web]}]\n",
        );
        let other = authority.client(&url, "stranger").await;
        let fault = reconcile(&other, &spec).await.unwrap_err();
        assert_eq!(fault.code(), Code::AuthLockOut, "{version}: {fault}");
        assert!(fault.to_string().contains("asks as `stranger`, and `quorate-admin` is kept"), "{fault}");
        assert!(!admin.auth_enabled().await.unwrap(), "{version}");
        assert_eq!(reconcile(&admin, &spec).await.unwrap().done.last().unwrap(), "enable auth", "{version}");
        assert!(reconcile(&admin, &spec).await.unwrap().done.is_empty(), "{version}");
        let web = authority.client(&url, "web.example.com").await;
        web.put("/web/k", "v").await.unwrap();
        assert_eq!(web.get("/other").await.unwrap_err().code(), Code::EtcdRefused, "{version}");
        assert_eq!(web.user_list().await.unwrap_err().code(), Code::EtcdRefused, "{version}");
        let stranger = authority.client(&url, "stranger").await;
        assert_eq!(stranger.get("/web/k").await.unwrap_err().code(), Code::EtcdRefused, "{version}");
        admin.put("/anything", "v").await.unwrap();
    }
}
