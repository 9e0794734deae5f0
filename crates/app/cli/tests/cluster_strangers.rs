//! Who may ask an agent, and who learns nothing.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod cluster_support;

use std::collections::BTreeSet;

use cluster_support::{Declared, Wire, authority, leaf};
use reqwest::{Certificate, Client, Identity, Method};
use serde_json::{Value, json};

struct Asker {
    client: Client,
    base: String,
    runtime: tokio::runtime::Runtime,
}

impl Asker {
    fn new(cluster: &Declared, identity: Option<(String, String)>) -> Asker {
        let ca = Certificate::from_pem(&std::fs::read(cluster.path("ca.pem")).unwrap()).unwrap();
        let mut builder = Client::builder().tls_certs_only([ca]).pool_max_idle_per_host(0);
        if let Some((cert, key)) = identity {
            builder = builder.identity(Identity::from_pem(format!("{cert}\n{key}").as_bytes()).unwrap());
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        Asker { client: builder.build().unwrap(), base: cluster.api_url(0), runtime }
    }

    /// `None`: no connection.
    fn ask(&self, method: Method, path: &str, headers: &[(&str, &str)], body: Option<Value>) -> Option<(u16, Value)> {
        self.runtime.block_on(async {
            let mut request = self.client.request(method, format!("{}{path}", self.base));
            for (name, value) in headers {
                request = request.header(*name, *value);
            }
            if let Some(body) = body {
                request = request.header("content-type", "application/json").body(body.to_string());
            }
            let answer = request.send().await.ok()?;
            let code = answer.status().as_u16();
            let text = answer.text().await.ok()?;
            Some((code, serde_json::from_str(&text).unwrap_or(Value::String(text))))
        })
    }

    fn get(&self, path: &str, cluster: &str, generation: &str) -> (u16, Value) {
        let headers = [("quorate-cluster", cluster), ("quorate-generation", generation), ("quorate-from", "operator")];
        self.ask(Method::GET, path, &headers, None).unwrap()
    }
}

fn files(cluster: &Declared) -> (String, String) {
    let read = |name: &str| std::fs::read_to_string(cluster.path(name)).unwrap();
    (read("n2.pem"), read("n2.key"))
}

#[test]
fn a_stranger_learns_nothing_and_a_member_names_its_cluster_and_generation() {
    let mut cluster = Declared::new("3.5.16", 3, Wire::Tls);
    // A generation is what a recovery writes; here by hand.
    let ledger = quorate_plan_ledger(5);
    std::fs::create_dir_all(cluster.state(0)).unwrap();
    std::fs::copy(write(&cluster, &ledger), cluster.state(0).join("ledger")).unwrap();
    cluster.start(0);
    cluster.wait_phase(0, "waiting");
    // Without a certificate, and with one of another authority: no handshake, so no answer at all.
    for identity in [None, Some(leaf(&authority("another"), &["127.0.0.1"]))] {
        let stranger = Asker::new(&cluster, identity);
        for path in ["/v1/node", "/v1/status", "/openapi.json", "/"] {
            assert_eq!(stranger.ask(Method::GET, path, &[("quorate-cluster", "t")], None), None, "{path}");
        }
    }
    let member = Asker::new(&cluster, Some(files(&cluster)));
    assert_eq!(member.ask(Method::GET, "/v1/node", &[], None).unwrap().0, 400);
    let (code, refused) = member.get("/v1/node", "other", "5");
    assert_eq!((code, &refused["code"]), (409, &"Q0976".into()), "{refused}");
    assert!(!refused.to_string().contains("generation\":"), "{refused}");
    let (code, refused) = member.get("/v1/status", "t", "4");
    assert_eq!((code, &refused["code"], &refused["generation"]), (409, &"Q0977".into(), &5.into()), "{refused}");
    for generation in ["5", "6", "none"] {
        let (code, answer) = member.get("/v1/node", "t", generation);
        assert_eq!((code, &answer["generation"]), (200, &5.into()), "{answer}");
    }
    assert_eq!(member.get("/v1/nothing", "t", "5").0, 404);
    nobody_else_changes_anything(&cluster, &member);
    nothing_older_than_tls_1_2_is_spoken(&cluster);
    starts_are_written_down_for_members_alone(&member);
    openapi_has_every_route(&member);
}

/// One authority signs for all: who has a client's certificate may look, and change nothing. A member names its generation.
fn nobody_else_changes_anything(cluster: &Declared, member: &Asker) {
    let read = |name: &str| std::fs::read_to_string(cluster.path(name)).unwrap();
    let ask = |asker: &Asker, method: Method, path: &str, generation: &str| {
        let headers = [("quorate-cluster", "t"), ("quorate-generation", generation), ("quorate-from", "operator")];
        asker.ask(method, path, &headers, Some(json!({}))).unwrap()
    };
    for name in ["alice", "nobody"] {
        let client = Asker::new(cluster, Some((read(&format!("{name}.pem")), read(&format!("{name}.key")))));
        assert_eq!(client.get("/v1/node", "t", "5").0, 200);
        let (_, document) = client.get("/openapi.json", "t", "5");
        for (path, methods) in document["paths"].as_object().unwrap() {
            for method in methods.as_object().unwrap().keys().filter(|method| *method != "get") {
                let method = Method::from_bytes(method.to_uppercase().as_bytes()).unwrap();
                let (code, refused) = ask(&client, method.clone(), path, "5");
                assert_eq!((code, &refused["code"]), (403, &"Q1036".into()), "{name}: {method} {path}: {refused}");
            }
        }
    }
    for (method, path) in [(Method::PUT, "/v1/file"), (Method::POST, "/v1/intent"), (Method::POST, "/v1/hand-over")] {
        let (code, refused) = ask(member, method.clone(), path, "none");
        assert_eq!((code, &refused["code"]), (400, &"Q0978".into()), "{method} {path}: {refused}");
        assert!(refused["why"].as_str().unwrap().contains("names the generation"), "{refused}");
        let (code, refused) = ask(member, method.clone(), path, "4");
        assert_eq!((code, &refused["code"]), (409, &"Q0977".into()), "{method} {path}: {refused}");
    }
    // A question, though it is no GET.
    assert_eq!(ask(member, Method::POST, "/v1/remains", "none").0, 200);
}

fn nothing_older_than_tls_1_2_is_spoken(cluster: &Declared) {
    let ca = Certificate::from_pem(&std::fs::read(cluster.path("ca.pem")).unwrap()).unwrap();
    let (cert, key) = files(cluster);
    let identity = Identity::from_pem(format!("{cert}\n{key}").as_bytes()).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for version in [reqwest::tls::Version::TLS_1_2, reqwest::tls::Version::TLS_1_3] {
        let builder = Client::builder().tls_certs_only([ca.clone()]).identity(identity.clone());
        let client = builder.tls_version_min(version).tls_version_max(version).build().unwrap();
        let answer = runtime.block_on(client.get(format!("{}/v1/node", cluster.api_url(0))).send());
        assert_eq!(answer.unwrap().status(), 400, "{version:?}: it is asked, and says what is missing");
    }
    // The alerts that end a handshake: 70 says that the version is not spoken; what else 1.2 lacks here is another one.
    assert_eq!(alert(cluster, [3, 2]), Some(70));
    assert!(alert(cluster, [3, 3]).is_some_and(|alert| alert != 70));
}

/// Says hello in a version of TLS, and gives the alert that comes back.
fn alert(cluster: &Declared, version: [u8; 2]) -> Option<u8> {
    use std::io::{Read, Write};
    let mut hello = version.to_vec();
    hello.extend([7; 32]);
    // No session; two suites of TLS 1.1 that 1.2 still knew; no compression.
    hello.extend([0, 0, 4, 0xc0, 0x13, 0, 0x2f, 1, 0]);
    // Without signatures, groups and forms of points it is not looked at: ECDSA and RSA-PSS with SHA-256, X25519, uncompressed.
    hello.extend([0, 24, 0, 13, 0, 6, 0, 4, 4, 3, 8, 4, 0, 10, 0, 4, 0, 2, 0, 29, 0, 11, 0, 2, 1, 0]);
    let length = u8::try_from(hello.len()).unwrap();
    let mut record = vec![22, 3, 1, 0, length + 4, 1, 0, 0, length];
    record.extend(hello);
    let url = cluster.api_url(0);
    let mut stream = std::net::TcpStream::connect(url.strip_prefix("https://").unwrap()).unwrap();
    stream.set_read_timeout(Some(std::time::Duration::from_secs(20))).unwrap();
    stream.write_all(&record).unwrap();
    let mut answer = [0; 7];
    stream.read_exact(&mut answer).ok()?;
    (answer[0] == 21).then_some(answer[6])
}

fn starts_are_written_down_for_members_alone(member: &Asker) {
    let tell = |from: &str, generation: &str, body: Value| {
        let headers = [("quorate-cluster", "t"), ("quorate-generation", generation), ("quorate-from", from)];
        member.ask(Method::POST, "/v1/started", &headers, Some(body)).unwrap()
    };
    let body = |name: &str| json!({"name": name, "cluster": "abc", "member": "1"});
    assert_eq!(tell("n2", "none", body("n2")).0, 400, "who starts has a generation");
    assert_eq!(tell("n2", "5", body("n3")).0, 400, "nobody speaks for another");
    assert_eq!(tell("n9", "5", body("n9")).0, 400, "nobody else is a member");
    assert_eq!(tell("n2", "4", body("n2")).0, 409, "a lower generation");
    assert_eq!(tell("n2", "5", json!({"name": "n2"})).0, 400);
    // Bodies are bounded; a long one may be cut off before there is an answer.
    let headers = [("quorate-cluster", "t"), ("quorate-generation", "5"), ("quorate-from", "n2")];
    let long = json!({"name": "n2", "more": "x".repeat(1 << 20)});
    let answer = member.ask(Method::POST, "/v1/started", &headers, Some(long));
    assert!(answer.is_none_or(|(code, _)| matches!(code, 400 | 413)));
    // n1 has promised another cluster than that.
    let (code, refused) = tell("n2", "5", body("n2"));
    assert_eq!((code, &refused["code"]), (409, &"Q0976".into()), "{refused}");
    let (_, node) = member.get("/v1/node", "t", "5");
    assert_eq!(node["peers"], json!({}), "{node}");
    // Nobody starts before every member has the nonces of all: what the file alone leads to is never started.
    let early = json!({"name": "n2", "cluster": node["founding"]["cluster"], "member": "7"});
    let (code, refused) = tell("n2", "5", early);
    assert_eq!((code, &refused["code"]), (409, &"Q0976".into()), "{refused}");
    let (_, node) = member.get("/v1/node", "t", "5");
    assert_eq!(node["peers"], json!({}), "{node}");
}

fn openapi_has_every_route(member: &Asker) {
    let (code, document) = member.get("/openapi.json", "t", "5");
    assert_eq!((code, &document["openapi"]), (200, &"3.1.0".into()));
    for (path, methods) in document["paths"].as_object().unwrap() {
        for method in methods.as_object().unwrap().keys() {
            let method = Method::from_bytes(method.to_uppercase().as_bytes()).unwrap();
            let headers = [("quorate-cluster", "t"), ("quorate-generation", "5"), ("quorate-from", "operator")];
            let (code, answer) = member.ask(method.clone(), path, &headers, None).unwrap();
            assert!(!matches!(code, 404 | 405), "{method} {path}: {code} {answer}");
        }
    }
    // What an answer refers to is described.
    let text = document.to_string();
    let named: BTreeSet<&str> =
        text.split("#/components/schemas/").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    let described: BTreeSet<&str> =
        document["components"]["schemas"].as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(named, described);
}

/// A ledger of a generation, as text.
fn quorate_plan_ledger(generation: u64) -> Vec<u8> {
    let ledger = quorate_plan::ledger::Ledger { generation, ..Default::default() };
    ledger.encode()
}

fn write(cluster: &Declared, bytes: &[u8]) -> std::path::PathBuf {
    use std::io::Write;
    let path = cluster.path("a-ledger");
    std::fs::File::create(&path).unwrap().write_all(bytes).unwrap();
    path
}
