//! Orders from other machines are on record before they are carried out, with the certificate that gave them, and the record shows
//! whether it was changed.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod cluster_support;
mod operator_support;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::{Duration, Instant};

use cluster_support::{Declared, LIMIT, Wire, authority};
use operator_support::{Office, order_for, signed};
use quorate_plan::certificates::OperatorRole;
use quorate_testkit::wait_until;
use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, KeyPair, SerialNumber};
use reqwest::{Certificate, Client, Identity, Method};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

const SERIAL: [u8; 4] = [0x12, 0x34, 0xab, 0xcd];

/// A file that an administrator has signed for the place of the one that a node has.
fn signed_file(cluster: &Declared, node: &Value, text: &str, serial: u64) -> Value {
    let office = Office::new(cluster.path("office"));
    let admin = office.operator("alice", OperatorRole::Admin, 0);
    office.install(cluster.root.path());
    json!({ "text": text, "replaces": node["file"], "order": signed(&admin, &order_for(node, text, serial)) })
}

/// A member whose agent has a certificate with its name. Returns the fingerprint of the authority too.
fn named() -> (Declared, String) {
    let cluster = Declared::new("3.5.16", 1, Wire::Tls);
    let ca = authority("the agents' authority");
    let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, "n1");
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    params.serial_number = Some(SerialNumber::from_slice(&SERIAL));
    let key = KeyPair::generate().unwrap();
    let certificate = params.signed_by(&key, &ca).unwrap();
    for (name, text) in [("ca.pem", ca.pem()), ("n1.pem", certificate.pem()), ("n1.key", key.serialize_pem())] {
        std::fs::File::create(cluster.path(name)).unwrap().write_all(text.as_bytes()).unwrap();
    }
    (cluster, hex(&Sha256::digest(ca.der())))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What is needed to send requests from another thread.
#[derive(Clone)]
struct Sender {
    dir: PathBuf,
    url: String,
}

impl Sender {
    fn of(cluster: &Declared) -> Sender {
        Sender { dir: cluster.root.path().to_owned(), url: cluster.api_url(0) }
    }

    /// Sends a request that claims to come from somebody else. `None`: there was no answer.
    fn send(&self, method: Method, path: &str, body: &Value) -> Option<(u16, Value)> {
        let read = |name: &str| std::fs::read(self.dir.join(name)).unwrap();
        let ca = Certificate::from_pem(&read("ca.pem")).unwrap();
        let identity = Identity::from_pem(&[read("n1.pem"), read("n1.key")].concat()).unwrap();
        let client = Client::builder().tls_certs_only([ca]).identity(identity).build().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let request = client.request(method, format!("{}{path}", self.url)).header("quorate-cluster", "t");
            let request = request.header("quorate-generation", "1").header("quorate-from", "operator");
            let request = request.header("content-type", "application/json");
            let answer = request.body(body.to_string()).send().await.ok()?;
            let code = answer.status().as_u16();
            Some((code, serde_json::from_str(&answer.text().await.ok()?).unwrap_or(Value::Null)))
        })
    }
}

fn log(cluster: &Declared) -> PathBuf {
    cluster.state(0).join("audit.log")
}

fn records(cluster: &Declared) -> Vec<Value> {
    let text = std::fs::read_to_string(log(cluster)).unwrap_or_default();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

fn verify(cluster: &Declared, more: &[&str]) -> Output {
    let file = cluster.path("cluster.yaml").display().to_string();
    cluster.quorate(&[&["audit", "verify", "--config", &file, "--name", "n1", "--output", "json"], more].concat())
}

/// The verdict on an untouched log.
fn verified(cluster: &Declared) -> Value {
    let output = verify(cluster, &[]);
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice::<Value>(&output.stdout).unwrap()["logs"][0].clone()
}

#[track_caller]
fn assert_broken(output: &Output, what: &str) {
    let (said, shown) = (String::from_utf8_lossy(&output.stderr), String::from_utf8_lossy(&output.stdout));
    assert_eq!(output.status.code(), Some(1), "{said}{shown}");
    assert!(said.contains("Q1480") && (said.contains(what) || shown.contains(what)), "{said}{shown}");
}

#[expect(clippy::disallowed_methods, reason = "nothing here has to survive a power cut")]
fn rename(from: &Path, to: &Path) {
    std::fs::rename(from, to).unwrap();
}

fn write(path: &Path, text: &str) {
    std::fs::File::create(path).unwrap().write_all(text.as_bytes()).unwrap();
}

#[test]
fn records_the_certificate_of_an_order_whatever_the_caller_claims() {
    let (mut cluster, issuer) = named();
    cluster.start_all();
    cluster.wait_serving();
    let sender = Sender::of(&cluster);
    let text = cluster.text();
    let other = text.replace("election-timeout: 500", "election-timeout: 700");
    let stale = json!({ "text": other, "replaces": "another" });
    assert_eq!(sender.send(Method::PUT, "/v1/file", &stale).unwrap().0, 409);
    let stay = json!({ "intent": null, "why": "mallory says so", "who": "mallory", "name": "mallory" });
    assert_eq!(sender.send(Method::POST, "/v1/intent", &stay).unwrap().0, 200);
    assert_eq!(sender.send(Method::POST, "/v1/restart", &json!({})).unwrap().0, 200);
    let order = json!({
        "generation": 1, "nonce": 7, "role": { "begin": { "backup": { "revision": 1 } } }, "asked_by": "mallory",
        "who": { "uid": 12, "pid": 3, "sudo_user": "mallory" }, "remote": { "address": "1.2.3.4:5", "name": "mallory" }
    });
    assert_eq!(sender.send(Method::POST, "/v1/recover", &order).unwrap().0, 409);
    // Questions are no orders.
    let trial = json!({ "text": text });
    assert_eq!(sender.send(Method::POST, "/v1/file/trial", &trial).unwrap().0, 200);
    sender.send(Method::POST, "/v1/trust", &json!({})).unwrap();

    let records = records(&cluster);
    let orders: Vec<&Value> = records.iter().filter(|record| record["command"] == "order").collect();
    let ordered: Vec<&str> = orders.iter().map(|order| order["words"][0].as_str().unwrap()).collect();
    assert_eq!(ordered, ["file", "intent", "restart", "recover"], "{records:#?}");
    for order in &orders {
        let remote = &order["remote"];
        assert_eq!(remote["name"], "n1", "{order}");
        assert_eq!(remote["serial"], hex(&SERIAL), "{order}");
        assert_eq!(remote["issuer"], issuer, "{order}");
        assert_eq!(remote["subject"], "CN=n1", "{order}");
        assert!(remote["address"].as_str().unwrap().starts_with("127.0.0.1:"), "{order}");
        assert_ne!(order["who"]["uid"], 12, "{order}");
    }
    assert_eq!(orders[0]["words"][1], format!("sha256 {}", hex(&Sha256::digest(&other))));
    let result = records.iter().find(|record| record["result_of"] == orders[0]["seq"]).unwrap();
    assert_eq!(result["words"], json!(["409", "Q1501"]), "{result}");
    let shown = cluster.quorate(&["audit", "--config", &cluster.path("cluster.yaml").display().to_string()]);
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.contains("n1 (serial 1234abcd) at 127.0.0.1:"), "{shown}");
    cluster.stop(0);
}

#[test]
fn a_changed_log_is_reported_with_its_place() {
    let (mut cluster, _) = named();
    cluster.start_all();
    cluster.wait_serving();
    let sender = Sender::of(&cluster);
    for _ in 0..3 {
        assert_eq!(sender.send(Method::POST, "/v1/restart", &json!({})).unwrap().0, 200);
    }
    cluster.stop(0);
    let (log, verdict) = (log(&cluster), verified(&cluster));
    assert_eq!((&verdict["records"], &verdict["breaks_total"]), (&json!(6), &json!(0)), "{verdict}");
    let head = verdict["head"].as_str().unwrap();
    assert!(verify(&cluster, &["--expect-head", head]).status.success());

    let whole = std::fs::read_to_string(&log).unwrap();
    write(&log, &whole.replacen("n1", "n2", 1));
    assert_broken(&verify(&cluster, &[]), "record 1 was changed");
    let lines: Vec<&str> = whole.lines().collect();
    write(&log, &format!("{}\n", [&lines[..2], &lines[3..]].concat().join("\n")));
    assert_broken(&verify(&cluster, &[]), "record 4 follows record 2");
    // Without its end it is a shorter log, which only a noted head tells from the whole one.
    write(&log, &format!("{}\n", lines[..4].join("\n")));
    assert!(verify(&cluster, &[]).status.success());
    assert_broken(&verify(&cluster, &["--expect-head", head]), "the expected head is not in the audit log");
    // A log of an earlier release in front is no fault, and one file can be checked alone.
    let old = r#"{"at":"2026-01-01T00:00:00Z","command":"exec","words":["a"],"member":"n1","who":{"uid":0,"pid":3}}"#;
    write(&log, &format!("{old}\n{whole}"));
    assert_eq!(verified(&cluster)["unchained"], 1);
    let alone = cluster.quorate(&["audit", "verify", &log.display().to_string(), "--expect-head", head]);
    assert!(alone.status.success(), "{alone:?}");
}

#[test]
fn refuses_an_order_that_cannot_be_recorded_and_restarts_etcd_all_the_same() {
    let (mut cluster, _) = named();
    cluster.start_all();
    cluster.wait_serving();
    let sender = Sender::of(&cluster);
    // Nothing can be appended to a directory, as to a file on a full disk.
    std::fs::DirBuilder::new().create(log(&cluster)).unwrap();
    let (_, node) = sender.send(Method::GET, "/v1/node", &Value::Null).unwrap();
    let (own, next) = (cluster.text(), cluster.text().replace("election-timeout: 500", "election-timeout: 600"));
    let put = signed_file(&cluster, &node, &next, 1);
    let (code, answer) = sender.send(Method::PUT, "/v1/file", &put).unwrap();
    assert_eq!((code, answer["code"].as_str()), (503, Some("Q1157")), "{answer}");
    assert_eq!(std::fs::read_to_string(cluster.path("cluster.yaml")).unwrap(), own);

    let pid = |status: &Value| status["etcd"]["pid"].as_u64();
    let before = pid(&cluster.status(0)).unwrap();
    quorate_testkit::kill_hard(u32::try_from(before).unwrap());
    cluster.wait_status(0, "another etcd", |status| {
        status["phase"] == "serving" && pid(status).is_some_and(|now| now != before)
    });

    rename(&log(&cluster), &cluster.path("elsewhere"));
    let (code, answer) = sender.send(Method::PUT, "/v1/file", &put).unwrap();
    assert_eq!(code, 200, "{answer}");
    assert_eq!(std::fs::read_to_string(cluster.path("cluster.yaml")).unwrap(), next);
    assert_eq!(records(&cluster)[0]["words"][0], "file");
    cluster.power_off(0);
}

#[test]
fn the_record_is_there_when_the_agent_is_killed_at_once() {
    let (mut cluster, _) = named();
    cluster.start_all();
    cluster.wait_serving();
    for round in 0..4_u64 {
        let sender = Sender::of(&cluster);
        let (_, node) = sender.send(Method::GET, "/v1/node", &Value::Null).unwrap();
        let (own, known) = (std::fs::read_to_string(cluster.path("cluster.yaml")).unwrap(), records(&cluster).len());
        let next = cluster.text().replace("election-timeout: 500", &format!("election-timeout: {}", 600 + round));
        let put = signed_file(&cluster, &node, &next, round + 1);
        let sending = std::thread::spawn(move || sender.send(Method::PUT, "/v1/file", &put));
        // In turn: as soon as the record is there, and as soon as the file is another one.
        let (file, begun) = (cluster.path("cluster.yaml"), Instant::now());
        let is_time = |cluster: &Declared| match round % 2 {
            0 => records(cluster).len() > known,
            _ => std::fs::read_to_string(&file).is_ok_and(|text| text != own),
        };
        while !is_time(&cluster) {
            assert!(begun.elapsed() < LIMIT, "{}", cluster.log(0));
        }
        cluster.kill_agent(0);
        drop(sending.join().unwrap());
        let order = &records(&cluster)[known];
        assert_eq!(order["words"][1], format!("sha256 {}", hex(&Sha256::digest(&next))), "{order}");
        assert_eq!(verified(&cluster)["breaks_total"], 0);
        cluster.start(0);
        cluster.wait_serving();
        wait_until("an answer", Duration::from_secs(30), || {
            Sender::of(&cluster).send(Method::GET, "/v1/node", &Value::Null).is_some()
        });
    }
    cluster.power_off(0);
}
