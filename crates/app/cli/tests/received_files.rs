//! A cluster file that came from another machine is data: nothing that it names is run, read or queried.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod cluster_support;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use cluster_support::{Declared, Wire};
use reqwest::{Certificate, Client, Identity, Method};
use serde_json::{Value, json};

/// Sends a request with the agent certificate of a declared node, as an attacker that took it would.
fn send(cluster: &Declared, method: Method, path: &str, body: &Value) -> (u16, Value) {
    let read = |name: &str| std::fs::read(cluster.path(name)).unwrap();
    let ca = Certificate::from_pem(&read("ca.pem")).unwrap();
    let identity = Identity::from_pem(&[read("n1.pem"), read("n1.key")].concat()).unwrap();
    let client = Client::builder().tls_certs_only([ca]).identity(identity).build().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let request = client.request(method, format!("{}{path}", cluster.api_url(0)));
        let request = request.header("quorate-cluster", "t").header("quorate-generation", "1");
        let request = request.header("quorate-from", "operator").header("content-type", "application/json");
        let answer = request.body(body.to_string()).send().await.unwrap();
        let code = answer.status().as_u16();
        (code, serde_json::from_str(&answer.text().await.unwrap()).unwrap_or(Value::Null))
    })
}

/// A program that leaves a mark when it is run.
fn marking(cluster: &Declared, mark: &Path) -> String {
    let script = format!("#!/bin/sh\ntouch {}\necho 'etcd Version: 3.5.16'\n", mark.display());
    let path = cluster.file_as("program", &script);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path.display().to_string()
}

#[test]
fn runs_nothing_that_a_received_file_names() {
    let mut cluster = Declared::new("3.5.16", 1, Wire::Tls);
    cluster.start_all();
    cluster.wait_serving();
    let (own, mark) = (cluster.text(), cluster.path("mark"));
    let file_hash =
        || cluster.json(&["cluster", "plan", "--config", &cluster.path("cluster.yaml").display().to_string()]);
    let before = file_hash()["change"]["hash"].clone();
    let members = own.find("members:").unwrap()..own.find("agent:").unwrap();
    let with_source = {
        let mut text = own.clone();
        let uri = format!("exec+shell:touch {}; echo n1=https://127.0.0.1:1", mark.display());
        text.replace_range(members, &format!("source: {{uri: \"{uri}\", size: 1}}\n"));
        text
    };
    let binary = cluster.tools.etcd.display().to_string();
    let with_program = own.replace(&binary, &marking(&cluster, &mark));
    let traversing = own.replace(
        &format!("  etcd-binary: {binary}"),
        &format!("  etcd-version: 3.5.0/../../{}\n  etcd-binary: {binary}", cluster.path("program").display()),
    );
    for (text, code) in [(&with_source, Some("Q1460")), (&with_program, None), (&traversing, Some("Q0931"))] {
        assert_ne!(*text, own);
        let (status, answer) = send(&cluster, Method::POST, "/v1/file/trial", &json!({ "text": text }));
        assert_eq!(answer["code"].as_str(), code, "{status} {answer}");
        assert!(!mark.exists(), "a program of the received file ran: {text}");
    }
    // What differs is reported all the same.
    let (_, answer) = send(&cluster, Method::POST, "/v1/file/trial", &json!({ "text": with_program }));
    assert!(answer["restart"]["why"].as_str().unwrap().contains("etcd-binary"), "{answer}");
    let (_, node) = send(&cluster, Method::GET, "/v1/node", &Value::Null);
    let put = json!({ "text": with_source, "replaces": node["file"] });
    let (_, answer) = send(&cluster, Method::PUT, "/v1/file", &put);
    assert_eq!(answer["code"], "Q1460", "{answer}");
    assert!(!mark.exists(), "the source of the received file ran");
    assert_eq!(std::fs::read_to_string(cluster.path("cluster.yaml")).unwrap(), own);
    assert_eq!(file_hash()["change"]["hash"], before);
}
