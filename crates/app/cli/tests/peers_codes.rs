//! What a join code is worth: alone it makes no server, a bound one is for one node, and a short one is proven by both sides.

#![expect(clippy::unwrap_used, reason = "a test that cannot continue names the place")]

mod change_support;
mod cluster_support;
mod peers_support;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::sync::{Arc, Mutex};

use cluster_support::said;
use peers_support::{ByHand, LIMIT, forged};
use quorate_pki::read_certificates;
use quorate_pki::token::AgentToken;
use quorate_plan::peering::{ShortCode, TypedCode};
use quorate_testkit::{AtTerminal, quorate, wait_until};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

fn put(path: &Path, text: &str) -> String {
    std::fs::File::create(path).unwrap().write_all(text.as_bytes()).unwrap();
    path.display().to_string()
}

/// A node with a state dir of its own at the place that all nodes share, as on a machine of its own, that calls itself what it likes.
struct Other {
    at: usize,
    state: PathBuf,
    words: Vec<String>,
}

impl Other {
    fn new(net: &ByHand, at: usize, dir: &str, more: &[&str]) -> Other {
        let root = net.root.path().join(dir);
        let state = root.join("state");
        std::fs::create_dir_all(&state).unwrap();
        let data = root.join("data").display().to_string();
        let binary = net.tools.etcd.display().to_string();
        let own = ["peer", "join", "--wait", "0s", "--data-dir", &data, "--etcd-binary", &binary, "--state-dir"];
        let mut words: Vec<String> = own.map(str::to_owned).to_vec();
        words.push(net.shown("state"));
        words.extend(more.iter().map(|word| (*word).to_owned()));
        Other { at, state, words }
    }

    fn join(&self, net: &ByHand, input: &str) -> Output {
        let mut command = net.hosts[self.at].command("unshare");
        command
            .args(["-m", "sh", "-c", "mount --bind \"$0\" \"$1\" && shift && exec \"$@\""])
            .arg(&self.state)
            .arg(net.shown("state"))
            .arg(quorate())
            .args(&self.words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
        child.wait_with_output().unwrap()
    }

    #[track_caller]
    fn refused(&self, net: &ByHand, input: &str, code: &str) -> String {
        let output = self.join(net, input);
        let text = said(&output);
        assert!(!output.status.success() && text.contains(code), "{}\n{text}\n{}", output.status, net.logs());
        assert!(!self.has_keys(), "it made keys");
        text
    }

    fn has_keys(&self) -> bool {
        let nodes = std::fs::read_dir(&self.state).into_iter().flatten().flatten();
        nodes.into_iter().any(|node| node.path().join("pki").exists())
    }
}

fn waiting(net: &ByHand) -> Vec<Value> {
    net.peers(0)["waiting"].as_array().cloned().unwrap_or_default()
}

fn prints_of(net: &ByHand, name: &str) -> Vec<String> {
    let all = waiting(net).into_iter().filter(|one| one["name"] == name);
    all.map(|one| one["fingerprint"].as_str().unwrap().to_owned()).collect()
}

#[track_caller]
fn members(net: &ByHand, wanted: &[&str]) {
    let peers = net.peers(0);
    let names: Vec<&str> =
        peers["nodes"].as_array().unwrap().iter().map(|node| node["name"].as_str().unwrap()).collect();
    assert_eq!(names, wanted, "{peers:#}");
}

#[test]
fn a_code_alone_makes_no_server_until_an_operator_approves_that_very_node() {
    let mut net = ByHand::new(4);
    net.standalone(0, "2m");
    let (code, secret) = net.invite_with(0, &["--ttl", "10m"]);
    let third = net.hosts[2].address().to_string();
    // Whoever has the code alone waits, and has changed nothing.
    let thief = Other::new(&net, 2, "thief", &["--name", "n2", "--listen", &third]);
    let output = thief.join(&net, &code);
    assert_eq!(output.status.code(), Some(3), "{}", said(&output));
    let text = thief.refused(&net, &code, "Q1506");
    let of_thief = prints_of(&net, "n2").pop().unwrap();
    assert!(text.contains(&of_thief), "{of_thief}: {text}");
    assert_eq!(waiting(&net).len(), 1, "asked twice, and the same node");
    members(&net, &["n1"]);

    // So does the right node; it is told apart from the other one by what both sides show.
    let code_file = put(&net.root.path().join("code"), &code);
    let mut words: Vec<String> = ["peer", "join", "--code-file"].map(str::to_owned).to_vec();
    words.extend([code_file].into_iter().chain(net.node(1)).chain(net.own(1)));
    let mut joining = net.hosts[1].start(&quorate(), &words, &[]);
    wait_until("both wait", LIMIT, || prints_of(&net, "n2").len() == 2);
    let of_node = prints_of(&net, "n2").into_iter().find(|print| *print != of_thief).unwrap();
    wait_until("the node shows its fingerprint", LIMIT, || joining.log().contains(&of_node));
    let listed = net.done(0, &["peer", "list"], "");
    assert!(listed.contains(&of_node) && listed.contains("quorate peer approve n2"), "{listed}");
    assert!(net.refused(0, &["peer", "approve", "n2"], "", "Q1508").contains("two hands"));
    net.refused(0, &["peer", "approve", "n3", "--fingerprint", &of_node], "", "Q1508");
    net.refused(0, &["peer", "approve", "n2", "--fingerprint", "0000-0000-0000-0000"], "", "Q1508");
    // The agent that invited is killed meanwhile: who waits says so again.
    net.kill_agent(0);
    net.start(0, &[]);
    net.wait(0, "service", |status| status["phase"] == "serving");
    wait_until("the node waits again", LIMIT, || prints_of(&net, "n2") == [of_node.clone()]);
    at_terminal(&net, &of_node);
    wait_until("it joins", LIMIT, || joining.ended().is_some());
    assert!(joining.ended().unwrap().success(), "{}\n{}", joining.log(), net.logs());

    // The other one gains nothing, neither by that approval nor with the secret: the code was used.
    thief.refused(&net, &code, "Q1211");
    let file = put(&net.root.path().join("stolen"), secret.as_deref().unwrap());
    let thief = Other::new(&net, 2, "thief", &["--name", "n2", "--listen", &third, "--secret-file", &file]);
    thief.refused(&net, &code, "Q1211");
    net.start(1, &[]);
    net.wait_operation(0, "n2", "joined");
    members(&net, &["n1", "n2"]);
    secrets(&net, &file);
    let audit = std::fs::read_to_string(net.state(0).join("audit.log")).unwrap();
    assert!(audit.contains("peers/approve") && audit.contains(&of_node), "{audit}");
    for secret in [&code, secret.as_ref().unwrap()] {
        assert!(!audit.contains(secret) && !net.logs().contains(secret), "secrets are in no log");
    }
}

/// The operator compares, and says yes.
fn at_terminal(net: &ByHand, print: &str) {
    let mut command = net.hosts[0].command(quorate());
    command.args(["peer", "approve", "n2"]).args(net.node(0));
    let args: Vec<&str> = command.get_args().map(|arg| arg.to_str().unwrap()).collect();
    let mut operator = AtTerminal::start(Path::new(command.get_program()), &args);
    operator.answer(0, "Does the new node show the same?", "y");
    let (status, _) = operator.wait();
    assert!(status.success() && operator.seen().contains(print), "{}", operator.seen());
}

/// A wrong secret is told as such and counted; the right one is enough, without anybody at the other side.
fn secrets(net: &ByHand, of_another: &str) {
    let (code, _) = net.invite_with(0, &["--ttl", "10m"]);
    let mut words = net.join_alone(2);
    words.extend(["--secret-file", of_another].map(str::to_owned));
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    net.refused(2, &words, &code, "Q1507");
    let mut mistyped = net.join_alone(2);
    mistyped.extend(["--secret-file".to_owned(), put(&net.root.path().join("typo"), "7XKD-29QM-A1BC-55TZ-0")]);
    net.refused(2, &mistyped.iter().map(String::as_str).collect::<Vec<_>>(), &code, "Q1210");
    // Five wrong ones within a minute, those from before included.
    wait_until("the address is not listened to", LIMIT, || {
        let text = said(&net.quorate(2, &words, &code));
        assert!(text.contains("Q1507") || text.contains("Q1212"), "{text}");
        text.contains("Q1212")
    });
    net.join_refused(2, &code, "Q1212");
    // Nobody else is shut out, and the code holds.
    net.join(3, &code);
    assert!(net.state(3).join("pki").exists());
    let (without, none) = net.invite_with(0, &["--ttl", "10m", "--no-secret"]);
    assert_eq!((none, TypedCode::read(&without).is_ok()), (None, true));
}

#[test]
fn a_code_for_one_node_is_of_no_use_to_another() {
    let mut net = ByHand::new(4);
    net.standalone(0, "2m");
    let (right, wrong) = (net.hosts[3].address().to_string(), net.hosts[1].address().to_string());
    let bound = ["--role", "client", "--ttl", "10m", "--for-name", "n4", "--for-address", &right];
    let (code, secret) = net.invite_with(0, &bound);
    assert_eq!(secret, None);
    let other = |more: &[&str]| Other::new(&net, 1, "other", more);
    let text = other(&["--name", "n5", "--listen", &wrong]).refused(&net, &code, "Q1505");
    assert!(text.contains("n5"), "{text}");
    // What the code itself says does not matter.
    let unnamed = forged(&code, |code| code.name = None);
    other(&["--name", "n5", "--listen", &wrong]).refused(&net, &unnamed, "Q1505");
    other(&["--name", "n4", "--listen", &wrong]).refused(&net, &code, "Q1505");
    let text = other(&["--name", "n4", "--listen", &right]).refused(&net, &code, "Q1505");
    assert!(text.contains(&wrong), "where it came from: {text}");
    let text = other(&["--listen", &wrong]).refused(&net, &code, "Q1505");
    assert!(text.contains("address"), "the name is that of the code: {text}");
    // All of it was counted and is on record.
    other(&["--name", "n4", "--listen", &wrong]).refused(&net, &code, "Q1212");
    let audit = std::fs::read_to_string(net.state(0).join("audit.log")).unwrap();
    let records: Vec<Value> = audit.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let refused = records.iter().filter(|one| one["words"][0] == "join-refused");
    assert_eq!(refused.filter(|one| one.to_string().contains(&format!("{wrong}:"))).count(), 5, "{audit}");
    members(&net, &["n1"]);
    // The right node needs no flags.
    net.join(3, &code);
    let bad = ["peer", "invite", "--for-address", "n4.example"];
    net.refused(0, &bad, "", "Q1226");
    net.refused(0, &["peer", "invite", "--for-name", "n 4"], "", "Q1226");
}

#[test]
fn a_short_code_is_proven_by_both_sides_and_never_sent() {
    let mut net = ByHand::new(4);
    net.standalone(0, "2m");
    let inviter = net.hosts[0].address().to_string();
    let (code, secret) = net.invite_with(0, &["--ttl", "10m", "--short"]);
    assert!(secret.is_some() && code.len() == 21, "{code}");
    let TypedCode::Short(short) = TypedCode::read(&code).unwrap() else { panic!("a short code") };
    // Mistyped, it is told so before anything is sent: nobody is at that address.
    let mut typo = code.clone();
    typo.replace_range(0..1, if code.starts_with('7') { "8" } else { "7" });
    let node = Other::new(&net, 1, "node", &["--name", "n2", "--inviter", "10.255.255.1"]);
    node.refused(&net, &typo, "Q1210");
    Other::new(&net, 1, "node", &["--name", "n2"]).refused(&net, &code, "--inviter");

    someone_in_the_middle(&net, &code, &short);
    replays(&net, &short);
    // Codes that nobody made are counted.
    let guess = ShortCode::new([9; 10]).encode();
    let guessing = Other::new(&net, 3, "guessing", &["--name", "n4", "--inviter", &inviter]);
    for _ in 0..5 {
        guessing.refused(&net, &guess, "Q1509");
    }
    guessing.refused(&net, &code, "Q1212");
    members(&net, &["n1"]);

    // Read aloud and typed, with the secret, it is as good as a long one; cut off and run again too.
    let mut words = net.join_words(1, &code);
    words.extend(["--inviter".to_owned(), inviter]);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let typed = code.to_lowercase().replace('-', " ").replace('0', "o").replace('1', "l");
    net.done(1, &words, &typed);
    net.done(1, &words, &code);
    net.start(1, &[]);
    net.wait_operation(0, "n2", "joined");
    net.assert_voters(0, &[0, 1]);
}

fn client() -> reqwest::Client {
    reqwest::Client::builder().tls_danger_accept_invalid_certs(true).build().unwrap()
}

async fn post(url: &str, body: String) -> (u16, String) {
    let request = client().post(url).header("content-type", "application/json").body(body);
    let answer = request.send().await.unwrap();
    (answer.status().as_u16(), answer.text().await.unwrap())
}

/// Ends TLS with a certificate of its own, passes everything on to the inviter, and keeps what it read.
fn listen_in_the_middle(net: &ByHand, at: usize, seen: &Arc<Mutex<String>>) {
    let (upstream, seen) = (format!("https://{}:7700", net.hosts[0].address()), Arc::clone(seen));
    let (ready, bound) = std::sync::mpsc::channel();
    net.hosts[at].within(move || {
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let made = rcgen::generate_simple_self_signed(vec!["n1.prod".to_owned()]).unwrap();
                let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
                let config = ServerConfig::builder_with_provider(Arc::new(
                    tokio_rustls::rustls::crypto::aws_lc_rs::default_provider(),
                ));
                let config = config.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
                let config = config.with_single_cert(vec![made.cert.der().clone()], key).unwrap();
                let (listener, tls) =
                    (tokio::net::TcpListener::bind("0.0.0.0:7700").await.unwrap(), TlsAcceptor::from(Arc::new(config)));
                ready.send(()).unwrap();
                loop {
                    let (stream, _) = listener.accept().await.unwrap();
                    let Ok(mut wire) = tls.accept(stream).await else { continue };
                    let request = read_request(&mut wire).await;
                    let path = request.split(' ').nth(1).unwrap_or("/").to_owned();
                    let body = request.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default();
                    let (status, answer) = post(&format!("{upstream}{path}"), body).await;
                    seen.lock().unwrap().push_str(&format!("{request}\n{answer}\n"));
                    let head =
                        format!("HTTP/1.1 {status} X\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", answer.len());
                    let _ = wire.write_all((head + &answer).as_bytes()).await;
                    let _ = wire.shutdown().await;
                }
            });
        });
    });
    bound.recv().unwrap();
}

async fn read_request(wire: &mut (impl AsyncReadExt + Unpin)) -> String {
    let mut bytes = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: ")).unwrap_or("0");
            if body.len() >= length.parse().unwrap() {
                return text;
            }
        }
        let mut piece = [0; 4096];
        match wire.read(&mut piece).await {
            Ok(length @ 1..) => bytes.extend_from_slice(&piece[..length]),
            Ok(_) | Err(_) => return text,
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn someone_in_the_middle(net: &ByHand, code: &str, short: &ShortCode) {
    let seen = Arc::new(Mutex::new(String::new()));
    listen_in_the_middle(net, 2, &seen);
    let between = net.hosts[2].address().to_string();
    let node = Other::new(net, 1, "node", &["--name", "n2", "--inviter", &between]);
    let text = node.refused(net, code, "Q1509");
    assert!(text.contains("between"), "{text}");
    let seen = seen.lock().unwrap().clone();
    assert!(
        seen.contains("/v1/join/prove") && seen.contains("lets nobody in"),
        "the proof came, and was worth nothing: {seen}"
    );
    let plain = code.replace('-', "");
    for secret in [code, &plain, &hex(&short.token()), &hex(&short.key())] {
        assert!(!seen.to_lowercase().contains(&secret.to_lowercase()), "{secret}: {seen}");
    }
    assert!(!seen.contains("members"), "nothing of the cluster was told: {seen}");
}

/// A proof holds once, for its nonces.
fn replays(net: &ByHand, short: &ShortCode) {
    let chain = read_certificates(&net.state(0).join("door.crt")).unwrap();
    let print = |at: usize| hex(&Sha256::digest(&chain[at].der));
    let key = AgentToken::parse(&hex(&short.key())).unwrap();
    let url = format!("https://{}:7700/v1/join", net.hosts[0].address());
    net.hosts[2].within(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let challenge = async || {
                let (status, text) = post(&format!("{url}/challenge"), "{}".to_owned()).await;
                assert_eq!(status, 200, "{text}");
                serde_json::from_str::<Value>(&text).unwrap()["nonce"].as_str().unwrap().to_owned()
            };
            let body = |nonce: &str, proof: &str| json!({ "nonce": nonce, "own": "mine", "proof": proof }).to_string();
            let nonce = challenge().await;
            let proof = key.prove(&["quorate short code newcomer 1", &nonce, "mine", &print(0), &print(1)]);
            let right = body(&nonce, &proof);
            let (status, text) = post(&format!("{url}/prove"), right.clone()).await;
            assert!(status == 200 && text.contains("\"inviter\":\"n1\""), "{status}: {text}");
            let (status, text) = post(&format!("{url}/prove"), right).await;
            assert!(status == 409 && !text.contains("inviter"), "{status}: {text}");
            let (status, text) = post(&format!("{url}/prove"), body(&challenge().await, &proof)).await;
            assert!(status == 403 && text.contains("Q1211"), "{status}: {text}");
        });
    });
}
