//! Who may change a cluster from another machine: operators with a role, by their certificates and signatures, and no node.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod cluster_support;
mod operator_support;

use std::path::PathBuf;

use cluster_support::{Declared, LIMIT, Wire};
use jiff::Timestamp;
use operator_support::{Office, order_for, signed};
use quorate_pki::ensure_operator_revoked;
use quorate_plan::certificates::OperatorRole;
use quorate_plan::file_order::{FileOrder, SignedFileOrder};
use quorate_testkit::wait_until;
use reqwest::{Certificate, Client, Identity, Method};
use serde_json::{Value, json};

/// A request as any machine on the network could send it.
fn send(
    cluster: &Declared,
    at: usize,
    files: &[PathBuf; 2],
    method: &str,
    path: &str,
    body: &Value,
) -> Option<(u16, Value)> {
    let ca = Certificate::from_pem(&std::fs::read(cluster.path("ca.pem")).unwrap()).unwrap();
    let [cert, key] = files.each_ref().map(|path| std::fs::read(path).unwrap());
    let identity = Identity::from_pem(&[cert, b"\n".to_vec(), key].concat()).unwrap();
    let client = Client::builder().tls_certs_only([ca]).identity(identity).build().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let method = Method::from_bytes(method.to_uppercase().as_bytes()).unwrap();
        let request = client.request(method, format!("{}{path}", cluster.api_url(at))).header("quorate-cluster", "t");
        let request = request.header("quorate-generation", "1").header("quorate-from", "operator");
        let answer = request.header("content-type", "application/json").body(body.to_string()).send().await.ok()?;
        let code = answer.status().as_u16();
        Some((code, serde_json::from_str(&answer.text().await.ok()?).unwrap_or(Value::Null)))
    })
}

/// What a node tells, by its own certificate.
fn node(cluster: &Declared, at: usize) -> Value {
    let mut answer = None;
    // An agent that takes another file is silent for a moment.
    wait_until("an answer", LIMIT, || {
        answer = send(cluster, at, &of_node(cluster), "get", "/v1/node", &Value::Null);
        answer.is_some()
    });
    answer.unwrap().1
}

fn of_node(cluster: &Declared) -> [PathBuf; 2] {
    [cluster.path("n1.pem"), cluster.path("n1.key")]
}

fn order(cluster: &Declared, text: &str, serial: u64) -> FileOrder {
    order_for(&node(cluster, 0), text, serial)
}

fn request(cluster: &Declared, text: &str, signed: Option<&SignedFileOrder>) -> Value {
    json!({ "text": text, "replaces": node(cluster, 0)["file"], "order": signed })
}

#[test]
fn a_file_from_the_network_needs_the_signature_of_an_operator() {
    let mut cluster = Declared::new("3.5.16", 1, Wire::Tls);
    let office = Office::new(cluster.path("office"));
    cluster.start_all();
    cluster.wait_serving();
    let admin = office.operator("alice", OperatorRole::Admin, 0);
    let (own, mark) = (cluster.text(), cluster.path("mark"));
    let stolen = of_node(&cluster);
    let tuned = own.replace("election-timeout: 500", "election-timeout: 700");
    let touch = format!("processes: {{x: {{executable: /usr/bin/touch, args: ['{}'], box: off}}}}\n", mark.display());
    let rooted = format!("{own}{touch}");
    let refused = |text: &str, order: Option<&SignedFileOrder>, code: &str, what: &str| {
        let (status, answer) = send(&cluster, 0, &stolen, "put", "/v1/file", &request(&cluster, text, order)).unwrap();
        assert!(status >= 400 && answer["code"] == code, "{what}: {status} {answer}");
        assert_eq!(std::fs::read_to_string(cluster.path("cluster.yaml")).unwrap(), own, "{what}");
    };
    let first = signed(&admin, &order(&cluster, &rooted, 1));
    refused(&rooted, None, "Q1501", "a stolen certificate of a node");
    refused(&rooted, Some(&first), "Q1502", "a node without the operators' authority");
    office.install(cluster.root.path());
    refused(&tuned, Some(&first), "Q1502", "the signature over another text");
    let other = FileOrder { token: "other".to_owned(), ..order(&cluster, &rooted, 1) };
    refused(&rooted, Some(&signed(&admin, &other)), "Q0976", "another cluster");
    let altered = SignedFileOrder { order: FileOrder { serial: 9, ..first.order.clone() }, ..first.clone() };
    refused(&rooted, Some(&altered), "Q1502", "an altered serial");
    let late = FileOrder { signed_ms: 1, expires_ms: 2, ..order(&cluster, &rooted, 1) };
    refused(&rooted, Some(&signed(&admin, &late)), "Q1502", "a signature that has ended");
    let elsewhere = FileOrder { replaces: vec!["another".to_owned()], ..order(&cluster, &rooted, 1) };
    refused(&rooted, Some(&signed(&admin, &elsewhere)), "Q0987", "the place of another file");
    let weak = office.operator("oscar", OperatorRole::Operator, 0);
    refused(&rooted, Some(&signed(&weak, &order(&cluster, &rooted, 1))), "Q1500", "a program by an operator");
    let viewer = office.operator("vera", OperatorRole::Viewer, 0);
    refused(&tuned, Some(&signed(&viewer, &order(&cluster, &tuned, 1))), "Q1500", "a viewer");
    let ended = office.operator("erik", OperatorRole::Admin, 9);
    refused(&rooted, Some(&signed(&ended, &order(&cluster, &rooted, 1))), "Q1502", "a certificate that has ended");
    let foreign = Office::new(cluster.path("elsewhere")).operator("alice", OperatorRole::Admin, 0);
    refused(&rooted, Some(&signed(&foreign, &order(&cluster, &rooted, 1))), "Q1502", "another authority");
    let revoked = office.operator("rob", OperatorRole::Admin, 0);
    ensure_operator_revoked(&office.dir, None, Some("rob"), Timestamp::now()).unwrap();
    office.install(cluster.root.path());
    refused(&rooted, Some(&signed(&revoked, &order(&cluster, &rooted, 1))), "Q1502", "a revoked certificate");
    assert!(!mark.exists(), "a program of a refused file ran");
    // Whoever carries it: the signature counts.
    let good = signed(&weak, &order(&cluster, &tuned, 1));
    let (status, answer) =
        send(&cluster, 0, &stolen, "put", "/v1/file", &request(&cluster, &tuned, Some(&good))).unwrap();
    assert_eq!(status, 200, "{answer}");
    assert_eq!(std::fs::read_to_string(cluster.path("cluster.yaml")).unwrap(), tuned);
    wait_until("the serial is known", LIMIT, || node(&cluster, 0)["file_serial"] == 1);
    // Sent once more after the file was brought back on the machine itself, it counts no more.
    let again = json!({ "text": own, "replaces": node(&cluster, 0)["file"], "order": signed(&admin, &order(&cluster, &own, 1)) });
    let (status, answer) = send(&cluster, 0, &stolen, "put", "/v1/file", &again).unwrap();
    assert!(status == 409 && answer["code"] == "Q1502", "{status} {answer}");
    let back = json!({ "text": own, "replaces": node(&cluster, 0)["file"], "order": signed(&admin, &order(&cluster, &own, 2)) });
    assert_eq!(send(&cluster, 0, &stolen, "put", "/v1/file", &back).unwrap().0, 200);
}

#[test]
fn a_node_that_was_away_follows_the_signed_file_of_the_others() {
    let mut cluster = Declared::new("3.5.16", 3, Wire::Tls);
    let office = Office::new(cluster.path("office"));
    let admin = office.operator("alice", OperatorRole::Admin, 0);
    office.install(cluster.root.path());
    for at in 0..3 {
        // Each machine has a file of its own.
        cluster.file_as(&format!("{at}.yaml"), &cluster.text());
        cluster.start_with(at, &["--config", &format!("{at}.yaml")]);
    }
    cluster.wait_serving();
    cluster.kill_agent(2);
    let tuned = cluster.text().replace("election-timeout: 500", "election-timeout: 700");
    let order = signed(&admin, &order(&cluster, &tuned, 1));
    for at in 0..2 {
        let sent = request(&cluster, &tuned, Some(&order));
        let (status, answer) = send(&cluster, at, &of_node(&cluster), "put", "/v1/file", &sent).unwrap();
        assert_eq!(status, 200, "{answer}");
    }
    cluster.start_with(2, &["--config", "2.yaml"]);
    wait_until("the file reaches the node that was away", LIMIT, || {
        std::fs::read_to_string(cluster.path("2.yaml")).unwrap() == tuned
    });
    wait_until("the node acts on it", LIMIT, || {
        send(&cluster, 2, &of_node(&cluster), "get", "/v1/node", &Value::Null)
            .is_some_and(|(_, node)| node["file_serial"] == 1)
    });
}

/// What callers may do; a test of the agent compares this with the guide.
const READ: &[(&str, &str)] = &[
    ("get", "/v1/node"),
    ("get", "/v1/status"),
    ("get", "/v1/plan"),
    ("get", "/v1/file"),
    ("post", "/v1/file/trial"),
    ("post", "/v1/remains"),
    ("post", "/v1/probe"),
    ("get", "/openapi.json"),
];
const OF_NODES: &[(&str, &str)] =
    &[("post", "/v1/started"), ("post", "/v1/certificates"), ("post", "/v1/issuing-keys"), ("post", "/v1/veto")];
const OF_OPERATORS: &[(&str, &str)] =
    &[("post", "/v1/intent"), ("post", "/v1/hand-over"), ("post", "/v1/restart"), ("post", "/v1/spool")];
const OF_ADMINS: &[(&str, &str)] =
    &[("post", "/v1/recover"), ("post", "/v1/invite"), ("post", "/v1/detach"), ("post", "/v1/role")];

#[test]
fn each_certificate_opens_what_its_role_allows_and_nothing_else() {
    let mut cluster = Declared::new("3.5.16", 1, Wire::Tls);
    let office = Office::new(cluster.path("office"));
    cluster.start_all();
    cluster.wait_serving();
    let named: Vec<(&str, [PathBuf; 2])> =
        [("viewer", OperatorRole::Viewer), ("operator", OperatorRole::Operator), ("admin", OperatorRole::Admin)]
            .map(|(name, role)| (name, office.operator(name, role, 0)))
            .into();
    let revoked = office.operator("revoked", OperatorRole::Admin, 0);
    let ended = office.operator("ended", OperatorRole::Admin, 9);
    let foreign = Office::new(cluster.path("elsewhere")).operator("foreign", OperatorRole::Admin, 0);
    // The name of an administrator, by the agents' authority: nodes may have its key.
    let forged = [cluster.path("mallory.pem"), cluster.path("mallory.key")];
    ensure_operator_revoked(&office.dir, None, Some("revoked"), Timestamp::now()).unwrap();
    // Without the operators' authority, the certificate of a node gives orders as in earlier releases, and takes part in no change of peers.
    let allows = |files: &[PathBuf; 2], method: &str, path: &str| {
        let body = json!({ "name": "n2", "force": false, "role": "server", "ttl_ms": 1 });
        let answer = send(&cluster, 0, files, method, path, &body);
        answer.is_some_and(|(_, answer)| {
            answer["code"] != "Q1500" && answer["code"] != "Q1036" && answer["code"] != "Q1430"
        })
    };
    let node = of_node(&cluster);
    assert!(allows(&node, "post", "/v1/restart") && !allows(&node, "post", "/v1/invite"));
    office.install(cluster.root.path());
    let callers = [("node", node)].into_iter().chain(named).chain([
        ("revoked", revoked),
        ("ended", ended),
        ("foreign", foreign),
        ("forged", forged),
    ]);
    for (name, files) in callers {
        for (routes, callers) in [
            (READ, &["node", "viewer", "operator", "admin"][..]),
            (OF_NODES, &["node"]),
            (OF_OPERATORS, &["operator", "admin"]),
            (OF_ADMINS, &["admin"]),
        ] {
            for (method, path) in routes {
                let expected = callers.contains(&name);
                assert_eq!(allows(&files, method, path), expected, "{name}: {method} {path}");
            }
        }
        // A file needs a signature, whoever sends it.
        let own = cluster.text().replace("election-timeout: 500", "election-timeout: 800");
        let sent = json!({ "text": own, "replaces": "x" });
        let answer = send(&cluster, 0, &files, "put", "/v1/file", &sent);
        assert!(answer.is_none_or(|(status, _)| status >= 400), "{name}");
    }
    assert_eq!(std::fs::read_to_string(cluster.path("cluster.yaml")).unwrap(), cluster.text());
}
