//! Peers that use an etcd which others run, with TLS and users: no etcd of theirs, and no right beyond their own prefix.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod change_support;
mod cluster_support;
mod peers_support;
mod scan_support;

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use cluster_support::{authority, leaf, said};
use peers_support::{ByHand, LIMIT, write_hook};
use quorate_testkit::{Running, wait_until};

/// The host where the etcd of others runs.
const THERE: usize = 2;
const PASSWORD: &str = "a password of ours";

/// An etcd on a host of its own, and the peers that use it.
struct Others {
    etcd: Option<Running>,
    net: ByHand,
}

impl Others {
    fn new() -> Others {
        let mut net = ByHand::new(3);
        let address = net.hosts[THERE].address().to_string();
        let ca = authority("the others' ca");
        let (cert, key) = leaf(&ca, &[&address, "127.0.0.1"]);
        let (own_cert, own_key) = leaf(&ca, &["quorate"]);
        for (name, text) in [
            ("ca.pem", ca.pem()),
            ("etcd.pem", cert),
            ("etcd.key", key),
            ("own.pem", own_cert),
            ("own.key", own_key),
            ("password", PASSWORD.into()),
        ] {
            put(&net.root.path().join(name), &text);
        }
        net.more = [
            ("--etcd-endpoints", format!("https://{address}:2379")),
            ("--etcd-ca", net.shown("ca.pem")),
            ("--etcd-cert", net.shown("own.pem")),
            ("--etcd-key", net.shown("own.key")),
            ("--etcd-namespace", "quorate/blue/".to_owned()),
            ("--etcd-user", "quorate".to_owned()),
            ("--etcd-password-file", net.shown("password")),
        ]
        .into_iter()
        .flat_map(|(flag, value)| [flag.to_owned(), value])
        .collect();
        let mut others = Others { etcd: None, net };
        others.start();
        others.protect();
        others
    }

    fn start(&mut self) {
        let address = self.net.hosts[THERE].address();
        let words = [
            ("name", "others".to_owned()),
            ("data-dir", self.net.shown("others")),
            ("listen-client-urls", format!("https://{address}:2379")),
            ("advertise-client-urls", format!("https://{address}:2379")),
            ("cert-file", self.net.shown("etcd.pem")),
            ("key-file", self.net.shown("etcd.key")),
            // Nobody is heard without a certificate.
            ("client-cert-auth", "true".to_owned()),
            ("trusted-ca-file", self.net.shown("ca.pem")),
            // The cheapest hash of passwords: none of these is worth more.
            ("bcrypt-cost", "4".to_owned()),
        ];
        let words: Vec<String> = words.iter().map(|(key, value)| format!("--{key}={value}")).collect();
        self.etcd = Some(self.net.hosts[THERE].start(&self.net.tools.etcd, &words, &[]));
        let asked = || self.ctl("root:root", &["get", "x"]).is_ok() || self.ctl("", &["get", "x"]).is_ok();
        wait_until("the etcd of others answers", LIMIT, asked);
    }

    /// The role that the guide names.
    fn protect(&self) {
        for words in [
            &["user", "add", "root:root"][..],
            &["user", "grant-role", "root", "root"],
            &["role", "add", "quorate"],
            &["role", "grant-permission", "quorate", "--prefix=true", "readwrite", "quorate/blue/"],
            &["user", "add", &format!("quorate:{PASSWORD}")],
            &["user", "grant-role", "quorate", "quorate"],
            &["auth", "enable"],
        ] {
            self.ctl("", words).unwrap();
        }
    }

    fn ctl(&self, user: &str, args: &[&str]) -> Result<String, String> {
        let mut command = self.net.hosts[THERE].command(&self.net.tools.etcdctl);
        let endpoint = format!("https://{}:2379", self.net.hosts[THERE].address());
        command.env("ETCDCTL_API", "3").args(["--endpoints", &endpoint, "--cacert", &self.net.shown("ca.pem")]);
        command.args(["--cert", &self.net.shown("own.pem"), "--key", &self.net.shown("own.key")]);
        if !user.is_empty() {
            command.args(["--user", user]);
        }
        let output = command.args(args).output().unwrap();
        if output.status.success() {
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        } else {
            Err(said(&output))
        }
    }

    fn keys(&self) -> String {
        self.ctl("root:root", &["get", "", "--from-key", "--keys-only"]).unwrap()
    }
}

fn put(path: &Path, text: &str) {
    std::fs::File::create(path).unwrap().write_all(text.as_bytes()).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
}

#[test]
fn peers_of_an_etcd_of_others_come_and_go_below_their_prefix_alone() {
    let mut others = Others::new();
    others.net.standalone(0, "30s");
    let net = &others.net;
    assert_eq!(net.role(0), "external");
    assert!(net.status(0)["etcd"].is_null());
    let address = net.hosts[0].address();
    let listens = |port: u16| net.hosts[THERE].within(|| std::net::TcpStream::connect((address, port)).is_ok());
    assert!(!listens(2379) && !listens(2380) && listens(2382), "no etcd, and an agent");
    let authorities = ["peer", "client", "agent"].map(|which| net.state(0).join(format!("pki/{which}-ca.crt")));
    let told = scan_support::told(&net.hosts, 0, 1, &authorities);
    scan_support::assert_only_the_phase(&told, "{\"phase\":\"serving\"}");
    net.refused(0, &["peer", "detach", "n1"], "", "Q0955");
    joins_after_every_check(&mut others);
    let net = &others.net;
    let listed = net.peers(0);
    for node in listed["nodes"].as_array().unwrap() {
        assert_eq!((node["role"].as_str(), node["answers"].as_bool()), (Some("external"), Some(true)), "{listed:#}");
    }
    let keys = others.keys();
    assert!(keys.lines().all(|key| key.is_empty() || key.starts_with("quorate/blue/")), "{keys}");
    assert!(keys.contains("/node/n2") && !keys.contains("/operation"), "{keys}");
    let us = format!("quorate:{PASSWORD}");
    assert!(others.ctl(&us, &["get", "quorate/blue/", "--prefix"]).is_ok());
    assert!(others.ctl(&us, &["get", "elsewhere"]).unwrap_err().contains("permission denied"));
    goes_on_without_and_with_the_store(&mut others);
    leaves_alive_and_dead(&mut others);
    for secret in [PASSWORD, "quorate-join-"] {
        for agent in others.net.agents.iter().flatten() {
            assert!(!agent.log().contains(secret), "a secret is in the log");
        }
    }
}

fn joins_after_every_check(others: &mut Others) {
    let net = &mut others.net;
    let code = net.invite(0, "10m");
    let hooks = net.state(1).join("hooks");
    std::fs::create_dir_all(&hooks).unwrap();
    std::fs::set_permissions(net.state(1), std::fs::Permissions::from_mode(0o700)).unwrap();
    write_hook(&hooks.join("veto"), "echo two volumes are here; exit 1");
    net.hosts.cut(1, THERE);
    let text = net.join_refused(1, &code, "Q1213");
    for word in ["two volumes are here", "cannot be used from here"] {
        assert!(text.contains(word), "all reasons at once: {word}: {text}");
    }
    write_hook(&hooks.join("veto"), "exit 0");
    net.hosts.heal();
    assert_eq!(net.peers(0)["nodes"].as_array().unwrap().len(), 1);
    net.join(1, &code);
    net.start(1, &[]);
    net.wait_operation(0, "n2", "joined");
    assert_eq!(net.role(1), "external");
    // Any of them can invite.
    wait_until("n2 has the issuing keys", LIMIT, || net.state(1).join("pki/agent-ca.key").is_file());
    net.invite(1, "1m");
}

fn goes_on_without_and_with_the_store(others: &mut Others) {
    others.etcd.take().unwrap().kill();
    let net = &others.net;
    let status = net.wait(0, "the silence", |status| status["phase"] == "waiting");
    assert!(status["cause"].as_str().unwrap().contains("external etcd"), "{status:#}");
    assert_eq!(net.peers(0)["role"], "external", "the agent answers without the store");
    others.start();
    others.net.wait(0, "service", |status| status["phase"] == "serving");
    others.net.wait(1, "service", |status| status["phase"] == "serving");
}

fn leaves_alive_and_dead(others: &mut Others) {
    let net = &mut others.net;
    net.done(0, &["peer", "detach", "n2"], "");
    wait_until("n2 knows that it is detached", LIMIT, || net.role(1) == "detached");
    let status = net.wait(1, "its end", |status| status["phase"] == "refused");
    assert_eq!(status["code"], "Q0941");
    let keys = others.keys();
    assert!(!keys.contains("/node/n2") && keys.contains("/gone/n2"), "{keys}");
    // It comes again, dies, is taken out, and finds its tombstone.
    let net = &mut others.net;
    net.kill_agent(1);
    let code = net.invite(0, "10m");
    net.join(1, &code);
    net.start(1, &[]);
    net.wait_operation(0, "n2", "joined");
    net.kill_agent(1);
    net.refused(0, &["peer", "detach", "n2"], "", "Q1220");
    net.done(0, &["peer", "detach", "n2", "--force"], "");
    net.start(1, &[]);
    wait_until("n2 knows that it is detached", LIMIT, || net.role(1) == "detached");
    let keys = others.keys();
    assert!(keys.contains("/gone/n2") && !keys.contains("/node/n2"), "{keys}");
}
