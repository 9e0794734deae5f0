//! Both halves against each other over TLS, with a real etcd, through good and bad days.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod gardener_support;

use std::path::Path;

use gardener_support::{LIMIT, Pki, Pod};
use quorate_testkit::{Hosts, Running, quorate, wait_until};
use serde_json::Value;

/// A pod with certificates for everything.
struct Secure {
    pod: Pod,
    pki: Pki,
}

impl Secure {
    fn new() -> Secure {
        let (pod, pki) = (Pod::new("3.5.16"), Pki::new());
        let client = pod.seat.client_url().replace("http://127.0.0.1", "https://localhost");
        let listen = pod.seat.client_url().replace("http", "https");
        let peer = pod.seat.peer_url();
        let config = format!(
            "name: etcd-config\ndata-dir: {data}\nlisten-client-urls: {listen}\nlisten-peer-urls: {peer}\n\
             initial-cluster: etcd-main-0={peer}\ninitial-cluster-state: new\ninitial-cluster-token: etcd-cluster\n\
             initial-advertise-peer-urls:\n  etcd-main-0:\n  - {peer}\nadvertise-client-urls:\n  etcd-main-0:\n  - {client}\n\
             client-transport-security:\n  cert-file: {cert}\n  key-file: {key}\n  client-cert-auth: true\n  \
             trusted-ca-file: {ca}\n  auto-tls: false\n",
            data = pod.data_dir().display(),
            cert = pki.path("server.pem"),
            key = pki.path("server.key"),
            ca = pki.path("ca.pem"),
        );
        pod.write("etcd.conf.yaml", &config);
        std::fs::create_dir(pod.path("home-sidecar/bucket")).unwrap();
        Secure { pod, pki }
    }

    fn sidecar(&self) -> Running {
        self.pod.sidecar(&self.sidecar_flags(), &[])
    }

    fn sidecar_flags(&self) -> Vec<String> {
        let pki = |name: &str| self.pki.path(name);
        vec![
            format!("--server-cert={}", pki("server.pem")),
            format!("--server-key={}", pki("server.key")),
            format!("--server-client-ca={}", pki("ca.pem")),
            format!("--endpoints=https://localhost:{}", self.pod.client_port()),
            format!("--cacert={}", pki("ca.pem")),
            format!("--cert={}", pki("client.pem")),
            format!("--key={}", pki("client.key")),
            "--storage-provider=Local".to_owned(),
            "--store-container=bucket".to_owned(),
            "--store-prefix=etcd-main".to_owned(),
            "--schedule=0 0 1 1 *".to_owned(),
            "--delta-snapshot-period=1s".to_owned(),
        ]
    }

    fn wrap(&self) -> Running {
        let pki = |name: &str| self.pki.path(name);
        self.pod.wrap(&[
            "--backup-restore-tls-enabled=true".to_owned(),
            format!("--backup-restore-host-port=localhost:{}", self.pod.sidecar),
            format!("--backup-restore-ca-cert-bundle-path={}", pki("ca.pem")),
            "--etcd-server-name=localhost".to_owned(),
            format!("--etcd-client-cert-path={}", pki("client.pem")),
            format!("--etcd-client-key-path={}", pki("client.key")),
        ])
    }

    #[track_caller]
    fn wait_ready(&self, wrap: &mut Running, sidecar: &Running) {
        wait_until("etcd to be ready", LIMIT, || {
            assert!(wrap.ended().is_none(), "wrap ended:\n{}\n{}", wrap.log_tail(30), sidecar.log_tail(30));
            self.pki.ask("GET", self.pod.wrapper.number(), "/readyz").is_some_and(|answer| answer.code == 200)
        });
    }

    fn ask(&self, path: &str) -> Value {
        let answer = self.pki.ask("GET", self.pod.sidecar.number(), path).unwrap();
        assert_eq!(answer.code, 200, "{path}");
        assert!(
            answer.head.contains("max-age=31536000") && answer.head.contains("default-src 'self'"),
            "{}",
            answer.head
        );
        serde_json::from_str(&answer.body).unwrap()
    }

    fn ctl(&self, args: &[&str]) -> String {
        let files = [
            "--cacert",
            &self.pki.path("ca.pem"),
            "--cert",
            &self.pki.path("client.pem"),
            "--key",
            &self.pki.path("client.key"),
        ];
        let all: Vec<&str> = files.into_iter().chain(args.iter().copied()).collect();
        self.pod.tools.ctl(&format!("https://localhost:{}", self.pod.client_port()), &all)
    }

    fn get(&self, key: &str) -> String {
        self.ctl(&["get", "--print-value-only", key]).trim().to_owned()
    }

    /// Waits until the newest full and the deltas that follow it hold the newest revision.
    #[track_caller]
    fn wait_stored(&self, revision: u64) {
        wait_until("the writes to be stored", LIMIT, || {
            let latest = self.ask("/snapshot/latest");
            let deltas = latest["deltaSnapshots"].as_array().cloned().unwrap_or_default();
            let mut stored = latest["fullSnapshot"]["lastRevision"].as_u64().unwrap_or_default();
            for delta in &deltas {
                let (first, last) = (delta["startRevision"].as_u64().unwrap(), delta["lastRevision"].as_u64().unwrap());
                stored = if first <= stored + 1 { stored.max(last) } else { stored };
            }
            stored >= revision
        });
    }

    fn revision(&self) -> u64 {
        let said: Value = serde_json::from_str(&self.ctl(&["get", "x", "-w", "json"])).unwrap();
        said["header"]["revision"].as_u64().unwrap()
    }
}

fn modes(sidecar: &Running) -> Vec<String> {
    let log = sidecar.log();
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.filter_map(|line| line["mode"].as_str().map(str::to_owned)).collect()
}

fn rename(from: &Path, to: &Path) {
    #[expect(clippy::disallowed_methods, reason = "a test's own folder")]
    std::fs::rename(from, to).unwrap();
}

#[test]
fn both_halves_carry_an_etcd_through_good_and_bad_days() {
    let secure = Secure::new();
    let pod = &secure.pod;
    let mut sidecar = secure.sidecar();
    let mut wrap = secure.wrap();
    secure.wait_ready(&mut wrap, &sidecar);
    secure.ctl(&["put", "first", "1"]);
    secure.wait_stored(secure.revision());
    // An end in order, and a quick look at the next start.
    assert_eq!(wrap.stop().code(), Some(0));
    let mut wrap = secure.wrap();
    secure.wait_ready(&mut wrap, &sidecar);
    // Killed, and everything is looked at.
    wrap.kill();
    let mut wrap = secure.wrap();
    secure.wait_ready(&mut wrap, &sidecar);
    assert_eq!(modes(&sidecar), ["full", "sanity", "full"]);
    assert_eq!(secure.get("first"), "1");
    // The data is damaged: it is restored with everything that was written, and kept.
    secure.ctl(&["put", "second", "2"]);
    secure.wait_stored(secure.revision());
    wrap.kill();
    let db = pod.data_dir().join("member/snap/db");
    let mut bytes = std::fs::read(&db).unwrap();
    let middle = bytes.len() / 2;
    bytes[..middle].fill(0);
    #[expect(clippy::disallowed_methods, reason = "a test's own file")]
    std::fs::write(&db, &bytes).unwrap();
    let mut wrap = secure.wrap();
    secure.wait_ready(&mut wrap, &sidecar);
    assert_eq!((secure.get("first").as_str(), secure.get("second").as_str()), ("1", "2"));
    let kept: Vec<_> = std::fs::read_dir(pod.path("data")).unwrap().flatten().map(|entry| entry.file_name()).collect();
    let kept = kept
        .iter()
        .find(|name| name.to_string_lossy().starts_with("new.etcd.replaced-"))
        .expect("what was there is kept");
    assert_eq!(std::fs::read(pod.path("data").join(kept).join("member/snap/db")).unwrap(), bytes);
    // The store goes away. Good data starts without it.
    secure.ctl(&["put", "third", "3"]);
    secure.wait_stored(secure.revision());
    let (bucket, away) = (pod.path("home-sidecar/bucket"), pod.path("home-sidecar/away"));
    rename(&bucket, &away);
    wrap.kill();
    let mut wrap = secure.wrap();
    secure.wait_ready(&mut wrap, &sidecar);
    assert_eq!(secure.get("third"), "3");
    // Without data and without the store nothing is founded; when the store is back, all is.
    assert_eq!(wrap.stop().code(), Some(0));
    rename(&pod.data_dir(), &pod.path("data/gone"));
    let mut wrap = secure.wrap();
    wait_until("the initialization to be refused", LIMIT, || {
        sidecar.log().contains("whether there is a backup cannot be seen")
    });
    assert!(!pod.data_dir().exists());
    // An upload that was under way when the store went away may have made its folder anew.
    if bucket.exists() {
        rename(&bucket, &pod.path("home-sidecar/under-way"));
    }
    rename(&away, &bucket);
    secure.wait_ready(&mut wrap, &sidecar);
    assert_eq!((secure.get("first").as_str(), secure.get("third").as_str()), ("1", "3"));
    assert_eq!(wrap.stop().code(), Some(0));
    assert_eq!(sidecar.stop().code(), Some(0));
}

#[test]
fn from_another_machine_only_certificates_of_the_authority_may_ask() {
    let (hosts, secure, stranger) = (Hosts::new(2), Secure::new(), Pki::new());
    let (args, env) = secure.pod.sidecar_words(&secure.sidecar_flags(), &[]);
    let mut sidecar = hosts[0].start(&quorate(), &args, &env);
    let port = secure.pod.sidecar.number();
    let ask = |host: usize, who: Option<&Pki>, method: &str, path: &str| {
        // From the machine itself by its loopback address, from the other one over the wire.
        let at = if host == 0 { ([127, 0, 0, 1], port).into() } else { (hosts[0].address(), port).into() };
        hosts[host].within(|| secure.pki.ask_at(at, who, method, path)).map(|answer| (answer.code, answer.body))
    };
    wait_until("the sidecar to listen", LIMIT, || {
        assert!(sidecar.ended().is_none(), "the sidecar ended:\n{}", sidecar.log_tail(30));
        ask(0, None, "GET", "/healthz").is_some()
    });
    let fresh = Some((200, "New".to_owned()));
    assert_eq!(ask(0, None, "GET", "/initialization/status"), fresh, "who is on the machine shows none");
    // Probes and Prometheus come from elsewhere, and show none either.
    for open in ["/healthz", "/metrics"] {
        assert_ne!(ask(1, None, "GET", open).unwrap().0, 403, "{open}");
    }
    let closed = [
        ("GET", "/initialization/status"),
        ("GET", "/initialization/start?mode=full"),
        ("GET", "/config"),
        ("GET", "/snapshot/latest"),
        ("GET", "/snapshot/full"),
    ];
    for (method, path) in closed {
        assert_eq!(ask(1, None, method, path).unwrap().0, 403, "without a certificate: {path}");
        // One of another authority is turned away before a word is said, or counts for nothing.
        let answer = ask(1, Some(&stranger), method, path);
        assert!(answer.as_ref().is_none_or(|(code, _)| *code == 403), "with a foreign one: {path}: {answer:?}");
    }
    assert_eq!(ask(1, Some(&secure.pki), "GET", "/initialization/status"), fresh, "nobody has started anything");
    assert_eq!(ask(1, Some(&secure.pki), "GET", "/initialization/start?mode=full").unwrap().0, 200);
    wait_until("the initialization that was asked for", LIMIT, || {
        ask(1, Some(&secure.pki), "GET", "/initialization/status").is_some_and(|(_, said)| said == "Successful")
    });
}
