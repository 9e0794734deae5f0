//! The two halves as processes, and a peer that follows a script in the place of either.

#![allow(dead_code, clippy::unwrap_used, reason = "each test file uses its part; one that cannot go on says where")]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use quorate_testkit::{Port, Running, Seat, Tools, free_port, quorate, wait_until};

pub(crate) const LIMIT: Duration = Duration::from_secs(40);

/// Where one test has its things: what is `/var/etcd/data` in a pod, and a home.
pub(crate) struct Pod {
    pub(crate) root: tempfile::TempDir,
    pub(crate) seat: Seat,
    pub(crate) tools: Tools,
    pub(crate) wrapper: Port,
    pub(crate) sidecar: Port,
}

impl Pod {
    pub(crate) fn new(version: &str) -> Pod {
        let root = tempfile::tempdir().unwrap();
        for dir in ["data", "home", "home-sidecar"] {
            std::fs::create_dir(root.path().join(dir)).unwrap();
        }
        let tools = quorate_testkit::etcd(version);
        Pod { root, seat: Seat::new("etcd-main-0"), tools, wrapper: free_port(), sidecar: free_port() }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        #[expect(clippy::disallowed_methods, reason = "a test's own file")]
        std::fs::write(&path, text).unwrap();
        path
    }

    pub(crate) fn data_dir(&self) -> PathBuf {
        self.path("data/new.etcd")
    }

    /// The word in the exit-code file.
    pub(crate) fn exit_code(&self) -> Option<String> {
        std::fs::read_to_string(self.path("data/exit_code")).ok()
    }

    /// `quorate sidecar server`, with what is mounted at `etcd.conf.yaml`.
    pub(crate) fn sidecar(&self, more: &[String], env: &[(&str, &str)]) -> Running {
        let (args, env) = self.sidecar_words(more, env);
        Running::start(&quorate(), &args, &env)
    }

    /// Its arguments and its environment.
    pub(crate) fn sidecar_words(&self, more: &[String], env: &[(&str, &str)]) -> (Vec<String>, Vec<(String, String)>) {
        let mut args = vec!["sidecar".to_owned(), "server".to_owned()];
        args.push(format!("--server-port={}", self.sidecar));
        args.push(format!("--data-dir={}", self.data_dir().display()));
        args.extend(more.iter().cloned());
        let mut all = vec![
            ("HOME".to_owned(), self.path("home-sidecar").display().to_string()),
            ("ETCD_CONF".to_owned(), self.path("etcd.conf.yaml").display().to_string()),
            ("POD_NAME".to_owned(), "etcd-main-0".to_owned()),
            ("POD_NAMESPACE".to_owned(), "shoot".to_owned()),
        ];
        all.extend(env.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())));
        (args, all)
    }

    /// Waits until the sidecar answers in clear text.
    #[track_caller]
    pub(crate) fn wait_sidecar(&self, sidecar: &mut Running) {
        wait_until("the sidecar to listen", LIMIT, || {
            assert!(sidecar.ended().is_none(), "the sidecar ended:\n{}", sidecar.log_tail(30));
            self.ask("GET", "/healthz").is_some()
        });
    }

    /// Asks the sidecar in clear text.
    pub(crate) fn ask(&self, method: &str, path: &str) -> Option<Answer> {
        ask(method, self.sidecar.number(), path)
    }

    /// What etcd is to be told, without TLS.
    pub(crate) fn etcd_config(&self) -> String {
        let (client, peer, data) = (self.seat.client_url(), self.seat.peer_url(), self.data_dir());
        format!(
            "name: etcd-main-0\ndata-dir: {}\nlisten-client-urls: {client}\nadvertise-client-urls: {client}\n\
             listen-peer-urls: {peer}\ninitial-advertise-peer-urls: {peer}\ninitial-cluster: etcd-main-0={peer}\n\
             initial-cluster-state: new\ninitial-cluster-token: etcd-cluster\nmember-name-prefix: \"\"\n",
            data.display()
        )
    }

    pub(crate) fn client_port(&self) -> String {
        self.seat.client_url().rsplit(':').next().unwrap().to_owned()
    }

    /// `quorate wrap start-etcd` with druid's way to write flags.
    pub(crate) fn wrap(&self, more: &[String]) -> Running {
        let etcd = if more.iter().any(|word| word.starts_with("--etcd=")) {
            vec![]
        } else {
            vec![format!("--etcd={}", self.tools.etcd.display())]
        };
        let flags =
            [format!("--etcd-wrapper-port={}", self.wrapper), format!("--etcd-client-port={}", self.client_port())];
        let mut args = vec!["wrap".to_owned(), "start-etcd".to_owned()];
        if !more.iter().any(|word| word.starts_with("--backup-restore-host-port")) {
            args.push(format!("--backup-restore-host-port=:{}", self.sidecar));
        }
        args.extend(flags.into_iter().chain(etcd).chain(more.iter().cloned()));
        let env = [("HOME", self.path("home")), ("QUORATE_EXIT_CODE_FILE", self.path("data/exit_code"))];
        let env: Vec<(String, String)> =
            env.iter().map(|(name, path)| ((*name).to_owned(), path.display().to_string())).collect();
        Running::start(&quorate(), &args, &env)
    }

    /// Waits for `/readyz` to say yes.
    #[track_caller]
    pub(crate) fn wait_ready(&self, wrap: &mut Running) {
        wait_until("etcd to be ready", LIMIT, || {
            assert!(wrap.ended().is_none(), "wrap ended:\n{}", wrap.log_tail(30));
            ask("GET", self.wrapper.number(), "/readyz").is_some_and(|answer| answer.code == 200)
        });
    }

    pub(crate) fn ctl(&self, args: &[&str]) -> String {
        self.tools.ctl(&self.seat.client_url(), args)
    }
}

/// How a program ended.
#[track_caller]
pub(crate) fn wait_end(running: &mut Running) -> Option<i32> {
    wait_until("the program to end", LIMIT, || running.ended().is_some());
    running.ended().unwrap().code()
}

/// An answer over HTTP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) code: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

/// One request in clear text; `None`: nobody answers.
pub(crate) fn ask(method: &str, port: u16, path: &str) -> Option<Answer> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    write!(stream, "{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        .ok()?;
    let mut text = Vec::new();
    stream.read_to_end(&mut text).ok()?;
    let text = String::from_utf8_lossy(&text).into_owned();
    let (head, body) = text.split_once("\r\n\r\n")?;
    let code = head.split(' ').nth(1)?.parse().ok()?;
    Some(Answer { code, head: head.to_ascii_lowercase(), body: body.to_owned() })
}

/// What the scripted sidecar says next.
pub(crate) enum Say {
    /// A code and a body.
    Answer(u16, String),
    /// It hangs up.
    Nothing,
}

/// A sidecar that says what it is told to, and remembers what it was asked.
pub(crate) struct Script {
    asked: Arc<Mutex<Vec<String>>>,
}

impl Script {
    /// Answers each request line by `say`.
    pub(crate) fn start(port: u16, mut say: impl FnMut(&str) -> Say + Send + 'static) -> Script {
        let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&asked);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { continue };
                let mut text = Vec::new();
                let mut piece = [0; 1024];
                while !text.windows(4).any(|four| four == b"\r\n\r\n") {
                    match stream.read(&mut piece) {
                        Ok(read) if read > 0 => text.extend_from_slice(&piece[..read]),
                        _ => break,
                    }
                }
                let text = String::from_utf8_lossy(&text).into_owned();
                let Some(line) = text.lines().next() else { continue };
                let line = line.trim_end_matches(" HTTP/1.1").to_owned();
                noted.lock().unwrap().push(line.clone());
                if let Say::Answer(code, body) = say(&line) {
                    let length = body.len();
                    let _ = write!(
                        stream,
                        "HTTP/1.1 {code} x\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
                    );
                }
            }
        });
        Script { asked }
    }

    /// A sidecar that is content at once: `New`, one start, `Successful`, the configuration.
    pub(crate) fn content(port: u16, config: String) -> Script {
        let mut started = false;
        Script::start(port, move |line| match line {
            "GET /initialization/status" if started => {
                started = false;
                Say::Answer(200, "Successful".to_owned())
            }
            "GET /initialization/status" => Say::Answer(200, "New".to_owned()),
            "GET /config" => Say::Answer(200, config.clone()),
            _ => {
                started = true;
                Say::Answer(200, String::new())
            }
        })
    }

    pub(crate) fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }

    /// The starts that were asked for.
    pub(crate) fn starts(&self) -> Vec<String> {
        self.asked().into_iter().filter(|line| line.contains("/start")).collect()
    }
}

/// A program that passes for etcd when asked for its version, and otherwise does this.
pub(crate) fn false_etcd(pod: &Pod, script: &str) -> String {
    let text = format!("#!/bin/sh\nif [ \"$1\" = --version ]; then echo 'etcd Version: 3.5.0'; exit; fi\n{script}\n");
    let path = pod.write("etcd.sh", &text);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).unwrap();
    format!("--etcd={}", path.display())
}

pub(crate) fn mode_of(path: &Path) -> u32 {
    path.metadata().unwrap().permissions().mode() & 0o777
}

/// One authority, a certificate for `localhost` and one for clients.
pub(crate) struct Pki {
    dir: tempfile::TempDir,
}

impl Pki {
    pub(crate) fn new() -> Pki {
        use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
        let pki = Pki { dir: tempfile::tempdir().unwrap() };
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        pki.write("ca.pem", &params.self_signed(&key).unwrap().pem());
        let issuer = Issuer::new(params, key);
        for (file, names) in
            [("server", vec!["localhost".to_owned(), "127.0.0.1".to_owned()]), ("client", vec!["client".to_owned()])]
        {
            let mut params = CertificateParams::new(names).unwrap();
            // etcd asks itself with its server certificate, too.
            params.extended_key_usages =
                vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth, rcgen::ExtendedKeyUsagePurpose::ClientAuth];
            let key = KeyPair::generate().unwrap();
            pki.write(&format!("{file}.pem"), &params.signed_by(&key, &issuer).unwrap().pem());
            pki.write(&format!("{file}.key"), &key.serialize_pem());
        }
        pki
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    fn write(&self, name: &str, text: &str) {
        #[expect(clippy::disallowed_methods, reason = "a test's own file")]
        std::fs::write(self.dir.path().join(name), text).unwrap();
    }

    /// One request over TLS, without a certificate of ours.
    pub(crate) fn ask(&self, method: &str, port: u16, path: &str) -> Option<Answer> {
        self.ask_at(([127, 0, 0, 1], port).into(), None, method, path)
    }

    /// The same at an address of another machine, which is called `localhost` all the same. `who`: whose certificate is shown.
    pub(crate) fn ask_at(
        &self,
        at: std::net::SocketAddr,
        who: Option<&Pki>,
        method: &str,
        path: &str,
    ) -> Option<Answer> {
        let port = at.port();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let ca = reqwest::Certificate::from_pem(&std::fs::read(self.path("ca.pem")).unwrap()).unwrap();
            let mut client = reqwest::Client::builder().tls_certs_only([ca]).no_proxy().resolve("localhost", at);
            if let Some(pki) = who {
                let read = |name: &str| std::fs::read(pki.path(name)).unwrap();
                let both = [read("client.pem"), read("client.key")].concat();
                client = client.identity(reqwest::Identity::from_pem(&both).unwrap());
            }
            let client = client.timeout(LIMIT).build().unwrap();
            let method = reqwest::Method::from_bytes(method.as_bytes()).unwrap();
            let answer = client.request(method, format!("https://localhost:{port}{path}")).send().await.ok()?;
            let head = format!("{:?}", answer.headers());
            Some(Answer { code: answer.status().as_u16(), head, body: answer.text().await.ok()? })
        })
    }
}
