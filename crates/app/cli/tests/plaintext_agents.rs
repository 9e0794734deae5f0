//! Agents in clear text: loopback alone, and a token for each request.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod cluster_support;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use cluster_support::{Declared, LIMIT, Wire};
use quorate_agent::peers::{FileRequest, PeerError};
use quorate_testkit::{run, wait_until};

/// What the config exit code is.
const CONFIG_INVALID: i32 = 4;
/// The user of others.
const NOBODY: u32 = 65_534;

fn token_file(cluster: &Declared, at: usize) -> PathBuf {
    cluster.state(at).join("agent.token")
}

fn token(cluster: &Declared, at: usize) -> String {
    std::fs::read_to_string(token_file(cluster, at)).unwrap().trim().to_owned()
}

/// Sends a request as any process of this machine can; returns the status code and the body.
fn send(port: u16, method: &str, path: &str, headers: &str, body: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\nquorate-cluster: t\r\nquorate-generation: 1\r\n\
         quorate-from: operator\r\ncontent-type: application/json\r\ncontent-length: {}\r\n{headers}\r\n{body}",
        body.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn rejects_requests_without_the_token_and_changes_nothing() {
    let mut cluster = Declared::new("3.5.16", 1, Wire::Clear);
    cluster.start_all();
    cluster.wait_serving();
    let port = cluster.members[0].api.number();
    let secret = std::fs::read_to_string(token_file(&cluster, 0)).unwrap_or_else(|_| "0".repeat(64));
    let secret = secret.trim();
    let file = cluster.path("cluster.yaml");
    let (before, ledger) = (std::fs::read(&file).unwrap(), std::fs::read(cluster.state(0).join("ledger")).unwrap());
    let sent = cluster.text() + "processes: {evil: {executable: /bin/sh}}\n";
    let bodies = [
        ("PUT", "/v1/file", serde_json::json!({ "text": sent, "replaces": "" }).to_string()),
        ("POST", "/v1/file/trial", serde_json::json!({ "text": sent }).to_string()),
        ("POST", "/v1/intent", r#"{"intent":"teardown","why":"evil"}"#.to_owned()),
        ("POST", "/v1/restart", String::new()),
        ("GET", "/v1/node", String::new()),
        ("GET", "/v1/file", String::new()),
        ("GET", "/openapi.json", String::new()),
        ("GET", "/v1/nothing", String::new()),
    ];
    let zeros = "0".repeat(64);
    let wrong = [
        String::new(),
        format!("quorate-nonce: 00\r\nquorate-proof: {zeros}\r\n"),
        // The token itself proves nothing: it is never sent.
        format!("quorate-nonce: 00\r\nquorate-proof: {secret}\r\n"),
        format!("quorate-proof: {zeros}\r\n"),
    ];
    for (method, path, body) in &bodies {
        for headers in &wrong {
            let (code, answer) = send(port, method, path, headers, body);
            assert_eq!(code, 401, "{method} {path}: {answer}");
            assert!(answer.contains("Q1472") && !answer.contains(secret), "{answer}");
        }
    }
    assert_eq!(std::fs::read(&file).unwrap(), before);
    assert_eq!(std::fs::read(cluster.state(0).join("ledger")).unwrap(), ledger);
    let names = std::fs::read_dir(cluster.root.path()).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(!names.into_iter().any(|name| name.to_string_lossy().contains(".replaced-")), "no file was replaced");
    // An operator who may read the token is answered, and it appears in no log.
    let status = cluster.json(&["cluster", "status", "--config", &file.display().to_string()]);
    assert_eq!(status["members"][0]["role"], "leader", "{status}");
    assert!(!cluster.log(0).contains(secret));
}

#[test]
fn no_other_user_of_the_machine_reads_the_token() {
    let mut cluster = Declared::new("3.5.16", 1, Wire::Clear);
    // The tests' own directory is closed to others; the state dir has to be on its own.
    set_mode(cluster.root.path(), 0o755);
    cluster.start_all();
    cluster.wait_serving();
    let path = token_file(&cluster, 0);
    let about = path.metadata().unwrap();
    assert_eq!((about.mode() & 0o7777, about.uid()), (0o600, rustix::process::geteuid().as_raw()));
    assert_eq!(token(&cluster, 0).len(), 64);
    assert!(rustix::process::geteuid().is_root(), "run the tests as root: they become another user");
    let read = Command::new("cat").arg(&path).uid(NOBODY).gid(NOBODY).output().unwrap();
    assert!(!read.status.success() && read.stdout.is_empty(), "{read:?}");
    // Nor does it operate the cluster: the command says what is missing.
    let file = cluster.path("cluster.yaml").display().to_string();
    let binary = quorate_testkit::quorate();
    let mut command = Command::new(&binary);
    command.args(["cluster", "restart", "--pending", "--config", &file]).uid(NOBODY).gid(NOBODY);
    match command.output() {
        Ok(output) => assert!(!output.status.success() && said(&output).contains("Q1472"), "{}", said(&output)),
        // The program itself lies in a directory that is closed to others.
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied),
    }
}

#[test]
fn a_token_file_that_others_may_read_is_refused() {
    let mut cluster = Declared::new("3.5.16", 1, Wire::Clear);
    cluster.start_all();
    cluster.wait_serving();
    cluster.stop(0);
    let file = cluster.path("cluster.yaml").display().to_string();
    let path = token_file(&cluster, 0);
    let other = cluster.path("other");
    std::fs::File::create(&other).unwrap();
    set_mode(&other, 0o600);
    for (what, spoil) in [
        ("mode 0644", &(|| set_mode(&path, 0o644)) as &dyn Fn()),
        ("mode 0620", &|| set_mode(&path, 0o620)),
        ("not a regular file", &|| {
            run(Command::new("mv").arg(&path).arg(cluster.path("moved")));
            std::os::unix::fs::symlink(&other, &path).unwrap();
        }),
    ] {
        spoil();
        for args in [&["run", "--config", &file, "--name", "n1"][..], &["cluster", "check", &file]] {
            let output = cluster.quorate(args);
            assert_eq!(output.status.code(), Some(CONFIG_INVALID), "{what}: {}", said(&output));
            assert!(said(&output).contains("Q1471") && said(&output).contains(what), "{}", said(&output));
        }
    }
    // By the page: without the file the agent makes another one.
    assert!(Command::new("rm").arg(&path).status().unwrap().success());
    assert_eq!(cluster.quorate(&["cluster", "check", &file]).status.code(), Some(0));
    cluster.start_all();
    cluster.wait_serving();
    assert_eq!(path.metadata().unwrap().mode() & 0o7777, 0o600);
}

#[test]
fn an_agent_in_clear_text_listens_on_loopback_alone() {
    let mut cluster = Declared::new("3.5.16", 1, Wire::Clear);
    let good = cluster.text();
    let api = cluster.api_url(0);
    let listen = format!("listen-agent-url: \"{api}\"");
    let all = listen.replace("127.0.0.1", "0.0.0.0");
    let elsewhere = format!(", agent-url: \"{api}\"");
    for text in [
        good.replace(&listen, &all),
        good.replace(&listen, &listen.replace("127.0.0.1", "[::]")),
        good.replace(&elsewhere, ", agent-url: \"http://agent.example:2382\""),
        good.replace("agent:\n", "agent:\n  api-listen: http://0.0.0.0:2382\n"),
    ] {
        assert_ne!(text, good);
        let file = cluster.file_as("exposed.yaml", &text).display().to_string();
        for args in [&["cluster", "check", &file][..], &["run", "--config", &file, "--name", "n1"]] {
            let output = cluster.quorate(args);
            assert_eq!(output.status.code(), Some(CONFIG_INVALID), "{}", said(&output));
            assert!(said(&output).contains("Q1470"), "{}", said(&output));
        }
    }
    assert!(!cluster.state(0).exists(), "nothing was started");
    // An agent that runs neither takes such a file from an operator nor from the disk.
    cluster.start_all();
    cluster.wait_serving();
    let exposed = good.replace(&listen, &all);
    let file = cluster.file_as("exposed.yaml", &exposed).display().to_string();
    let applied = cluster.quorate(&["cluster", "apply", &file, "--yes"]);
    assert_eq!(applied.status.code(), Some(CONFIG_INVALID), "{}", said(&applied));
    assert!(said(&applied).contains("Q1470"), "{}", said(&applied));
    let (spec, _) = quorate_agent::cluster_file::read(&cluster.path("cluster.yaml")).unwrap();
    let peers = quorate_agent::peers::Peers::for_operator(&spec, None);
    let request = FileRequest::new(exposed.clone(), spec.hash());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let Err(PeerError::Refused(fault)) = runtime.block_on(peers.put_file("n1", &request)) else {
        panic!("the agent did not refuse it")
    };
    assert_eq!(fault.code().as_str(), "Q1470", "{fault}");
    assert_eq!(std::fs::read_to_string(cluster.path("cluster.yaml")).unwrap(), good);
    cluster.file_as("cluster.yaml", &exposed);
    cluster.members[0].agent.as_ref().unwrap().signal(rustix::process::Signal::HUP);
    wait_until("the file is refused", LIMIT, || cluster.log(0).contains("Q1470"));
    cluster.file();
    cluster.wait_serving();
    let listeners = Command::new("ss").args(["-Hltn"]).output().unwrap();
    let port = format!(":{} ", cluster.members[0].api);
    let lines = String::from_utf8_lossy(&listeners.stdout).into_owned();
    let own: Vec<&str> = lines.lines().filter(|line| line.contains(&port)).collect();
    assert!(!own.is_empty() && own.iter().all(|line| line.contains("127.0.0.1")), "{lines}");
}

#[test]
fn a_program_on_the_port_of_a_stopped_agent_learns_nothing_and_is_not_believed() {
    let mut cluster = Declared::new("3.5.16", 3, Wire::Clear);
    cluster.start_all();
    cluster.wait_serving();
    let port = cluster.members[1].api.number();
    cluster.stop(1);
    let secret = token(&cluster, 1);
    // It says what would have others stop: a newer generation, and a node that has left.
    let forged = r#"{"code":"Q0977","why":"x","generation":900,"generation_of":"1"}"#;
    let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
    listener.set_nonblocking(true).unwrap();
    let (mut captured, begun) = (Vec::new(), Instant::now());
    while captured.len() < 3 {
        assert!(begun.elapsed() < LIMIT, "no request arrived");
        let Ok((mut stream, _)) = listener.accept() else {
            std::thread::sleep(Duration::from_millis(20));
            continue;
        };
        stream.set_nonblocking(false).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        let mut bytes = [0; 4096];
        let read = stream.read(&mut bytes).unwrap_or(0);
        let request = String::from_utf8_lossy(&bytes[..read]).into_owned();
        let _ = write!(stream, "HTTP/1.1 409 Conflict\r\ncontent-length: {}\r\n\r\n{forged}", forged.len());
        if request.contains("quorate-proof") {
            captured.push(request);
        }
    }
    drop(listener);
    assert!(captured.iter().all(|request| !request.contains(&secret)), "the token was sent");
    for at in [0, 2] {
        let status = cluster.wait_phase(at, "serving");
        assert!(!status.to_string().contains("900"), "{status}");
    }
    cluster.start(1);
    cluster.wait_serving();
    assert_ne!(token(&cluster, 1), secret, "an agent that takes its port makes another token");
    // What was captured is of no use now.
    let headers =
        captured[0].lines().filter(|line| line.starts_with("quorate-nonce") || line.starts_with("quorate-proof"));
    let headers: String = headers.map(|line| format!("{line}\r\n")).collect();
    let path = captured[0].split(' ').nth(1).unwrap();
    assert_eq!(send(port, "GET", path, &headers, "").0, 401);
}

#[test]
fn a_cluster_of_an_earlier_release_goes_on_after_an_upgrade_of_its_agents() {
    let mut cluster = Declared::new("3.5.16", 3, Wire::Clear);
    cluster.start_all();
    cluster.wait_serving();
    cluster.put(0, "k", "v");
    for at in 0..3 {
        cluster.stop(at);
        // Earlier releases made none.
        run(Command::new("mv").arg(token_file(&cluster, at)).arg(cluster.path(&format!("token-{at}"))));
    }
    cluster.start_all();
    cluster.wait_serving();
    cluster.assert_all_hold("k", "v");
    let file = cluster.path("cluster.yaml").display().to_string();
    // The status asks every agent: it is healthy only when all of them answer.
    wait_until("every agent answers", LIMIT, || {
        let status = cluster.quorate(&["cluster", "status", "--config", &file]);
        status.status.success() && said(&status).contains(": healthy") && !said(&status).contains("Q1472")
    });
    assert!((0..3).all(|at| token(&cluster, at).len() == 64));
}
