//! Records of a peer-managed cluster that no server wrote: unsigned, signed by others, moved, old, forged. None of them is acted on. A fourth
//! server is taken in by the word of two.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod change_support;
mod cluster_support;
mod peers_support;

use std::collections::BTreeMap;
use std::path::Path;

use peers_support::{ByHand, LIMIT};
use quorate_agent::peers::{FileRequest, PeerError, Peers};
use quorate_faults::Code;
use quorate_pki::sign_as_node;
use quorate_plan::peering::{Newcomer, signed_bytes, with_member, with_signatures, without_member};
use quorate_plan::spec::Spec;
use quorate_testkit::wait_until;
use serde_json::{Value, json};

#[test]
fn records_that_no_server_vouches_for_are_not_acted_on() {
    let mut net = ByHand::new(4);
    net.standalone(0, "2m");
    for at in [1, 2] {
        let code = net.invite(0, "10m");
        net.join(at, &code);
        net.start(at, &[]);
        net.wait_operation(0, &format!("n{}", at + 1), "joined");
    }
    let before = all(&net);
    let code = net.done(0, &["peer", "invite", "--role", "client"], "").lines().next().unwrap().to_owned();
    net.join(3, &code);
    net.start(3, &[]);
    net.wait_operation(0, "n4", "joined");
    wait_until("n4 is a client", LIMIT, || net.role(3) == "client");
    vouched(&net, 4);
    let serial = file(&net)["serial"].as_u64().unwrap();
    forged_files(&net);
    a_forged_tombstone(&net);
    forged_operations(&net);
    what_a_restored_backup_brings_back_is_old(&net, &before, serial);
    files_of_one_server_alone(&net);
    a_fourth_server(&mut net);
}

fn key(net: &ByHand, name: &str) -> String {
    format!("quorate/peers/{}/{name}", net.peers(0)["cluster"].as_str().unwrap())
}

/// All records, by their keys: one line each.
fn all(net: &ByHand) -> BTreeMap<String, String> {
    let text = net.try_ctl(0, &["get", "--prefix", &key(net, "")]).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    lines.chunks(2).map(|pair| (pair[0].to_owned(), pair[1].to_owned())).collect()
}

fn file(net: &ByHand) -> Value {
    all(net).get(&key(net, "file")).map_or(Value::Null, |text| serde_json::from_str(text).unwrap())
}

/// The file of the record is signed by all three servers, and each has remembered it.
#[track_caller]
fn vouched(net: &ByHand, nodes: usize) {
    wait_until("all servers sign the file", LIMIT, || {
        let file = file(net);
        let held = |at: usize| {
            let text = std::fs::read_to_string(net.state(at).join("peering.json")).unwrap_or_default();
            serde_json::from_str::<Value>(&text).is_ok_and(|kept| kept["held"]["serial"] == file["serial"])
        };
        file["signatures"].as_array().is_some_and(|all| all.len() == 3) && (0..nodes).all(held)
    });
}

fn text(net: &ByHand, at: usize) -> String {
    std::fs::read_to_string(net.state(at).join("cluster.yaml")).unwrap()
}

fn hash(text: &str) -> String {
    Spec::parse(text.as_bytes(), "c.yaml").unwrap().0.hash()
}

/// The record with the signature of a node for a key.
fn signed(net: &ByHand, at: usize, name: &str, record: &Value) -> Value {
    let pki = net.state(at).join("pki");
    let bytes = signed_bytes(net.peers(0)["cluster"].as_str().unwrap(), name, record);
    with_signatures(record, &[sign_as_node(&pki.join("agent.crt"), &pki.join("agent.key"), &bytes).unwrap()])
}

/// The present record with another file, which follows on the present one.
fn with_file(net: &ByHand, text: &str, serial: u64) -> Value {
    let now = file(net);
    let earlier = json!([now["hash"]]);
    with_signatures(
        &json!({"hash": hash(text), "text": text, "earlier": earlier, "serial": serial, "pins": now["pins"]}),
        &[],
    )
}

#[track_caller]
fn put(net: &ByHand, name: &str, record: &Value) {
    net.try_ctl(0, &["put", &key(net, name), &record.to_string()]).unwrap();
}

/// A server has seen this file of the record, and does not act on it. Whoever sees it first writes the file again.
#[track_caller]
fn logged(net: &ByHand, why: &str) {
    wait_until("a server names the file", LIMIT, || {
        let says = |line: &str| line.contains("`file` of the cluster is not acted on") && line.contains(why);
        net.agents.iter().flatten().any(|agent| agent.log().lines().any(says))
    });
}

/// Every server says in its status that it does not act on this record.
#[track_caller]
fn named(net: &ByHand, servers: &[usize], name: &str, why: &str) {
    for at in servers {
        net.wait(*at, "warning", |status| {
            let about = |notice: &Value| {
                let text = notice["text"].as_str().unwrap_or_default();
                notice["code"] == "Q1495" && text.contains(&format!("`{name}`")) && text.contains(why)
            };
            status["warnings"].as_array().is_some_and(|warnings| warnings.iter().any(about))
        });
    }
}

/// A server has written the file again, all hold what they held, and all of them vote.
#[track_caller]
fn unchanged(net: &ByHand, before: &[String], runs: &Path) {
    wait_until("a server writes the file again", LIMIT, || {
        let file = file(net);
        file["hash"] == hash(&before[0]) && file["signatures"].as_array().is_some_and(|all| !all.is_empty())
    });
    for (at, before) in before.iter().enumerate() {
        assert_eq!(text(net, at), *before, "n{}\n{}", at + 1, net.logs());
    }
    assert!(!runs.exists(), "a program of a forged file runs\n{}", net.logs());
    net.assert_listed(0, &[0, 1, 2]);
}

fn forged_files(net: &ByHand) {
    let (now, runs) = (file(net), net.root.path().join("it-runs"));
    let own = text(net, 0);
    let holds: Vec<String> = (0..4).map(|at| text(net, at)).collect();
    let serial = |net: &ByHand| file(net)["serial"].as_u64().unwrap();
    let program =
        format!("{own}processes: {{x: {{executable: /bin/touch, args: [{:?}]}}}}\n", runs.display().to_string());
    // As today's release would have written it, and so would anybody who can write to etcd.
    put(net, "file", &with_file(net, &program, serial(net) + 1));
    logged(net, "it is not signed");
    unchanged(net, &holds, &runs);
    // Signed by a client of the cluster.
    let next = with_file(net, &program, serial(net) + 1);
    put(net, "file", &signed(net, 3, "file", &next));
    logged(net, "`n4` signed it");
    unchanged(net, &holds, &runs);
    // A server signed it, for another key.
    let next = with_file(net, &program, serial(net) + 1);
    put(net, "file", &signed(net, 0, "operation", &next));
    logged(net, "does not fit");
    unchanged(net, &holds, &runs);
    // A server signed it, some changes ago.
    let less = without_member(&own, "n3").unwrap();
    let old = with_file(net, &less, 2);
    put(net, "file", &signed(net, 0, "file", &old));
    logged(net, "older than what this node has held");
    unchanged(net, &holds, &runs);
    // One stolen server: what it signs adds and removes members, and nothing else.
    let next = with_file(net, &program, serial(net) + 1);
    put(net, "file", &signed(net, 0, "file", &next));
    net.wait(1, "warning", |status| {
        let about = |notice: &Value| notice["code"] == "Q1496" && notice.to_string().contains("processes");
        status["warnings"].as_array().is_some_and(|warnings| warnings.iter().any(about))
    });
    // What the servers hold is signed by one of them, also if an earlier release wrote it.
    put(net, "file", &json!({"hash": now["hash"], "text": own, "earlier": now["earlier"]}));
    unchanged(net, &holds, &runs);
}

fn a_forged_tombstone(net: &ByHand) {
    let holds: Vec<String> = (0..4).map(|at| text(net, at)).collect();
    let gone = json!({"name": "n2", "by": "n1", "at_ms": 1});
    put(net, "gone/n2", &gone);
    put(net, "gone/n4", &json!({"name": "n4", "by": "n1", "at_ms": 1}));
    let record = all(net).remove(&key(net, "node/n4")).unwrap();
    net.try_ctl(0, &["del", &key(net, "node/n4")]).unwrap();
    named(net, &[0, 1, 3], "gone/n2", "no server vouches for it");
    assert_eq!((net.role(1), net.role(3)), ("server".to_owned(), "client".to_owned()), "{}", net.logs());
    for name in ["gone/n2", "gone/n4"] {
        net.try_ctl(0, &["del", &key(net, name)]).unwrap();
    }
    net.try_ctl(0, &["put", &key(net, "node/n4"), &record]).unwrap();
    unchanged(net, &holds, &net.root.path().join("it-runs"));
}

fn forged_operations(net: &ByHand) {
    let holds: Vec<String> = (0..4).map(|at| text(net, at)).collect();
    let less = without_member(&holds[0], "n2").unwrap();
    let serial = file(net)["serial"].as_u64().unwrap() + 1;
    let operation = json!({
        "id": "feed", "kind": {"detach": {"name": "n2"}}, "text": less, "before": hash(&holds[0]), "at_ms": 1,
        "deadline_ms": 2, "step": "given",
    });
    let claim = json!({"by": "n1", "operation": operation, "serial": serial});
    put(net, "operation", &claim);
    named(net, &[0, 1], "operation", "it is not signed");
    put(net, "operation", &signed(net, 3, "operation", &claim));
    named(net, &[0, 1], "operation", "`n4` signed it");
    unchanged(net, &holds, &net.root.path().join("it-runs"));
    // The next change replaces it.
    net.done(0, &["peer", "detach", "n4"], "");
    assert!(!all(net).contains_key(&key(net, "operation")));
    wait_until("n4 is detached by its own tombstone", LIMIT, || net.role(3) == "detached");
}

/// Records from before n4 was taken in and let go come back, with all that is gone since.
fn what_a_restored_backup_brings_back_is_old(net: &ByHand, before: &BTreeMap<String, String>, serial: u64) {
    vouched(net, 3);
    let held: Vec<String> = (0..3).map(|at| text(net, at)).collect();
    let now: Value = file(net);
    for name in all(net).keys().filter(|name| !before.contains_key(*name)) {
        net.try_ctl(0, &["del", name]).unwrap();
    }
    for (name, record) in before {
        net.try_ctl(0, &["put", name, record]).unwrap();
    }
    wait_until("the servers write the file again", LIMIT, || {
        file(net)["serial"].as_u64() > now["serial"].as_u64() && now["serial"].as_u64() > Some(serial)
    });
    for (at, held) in held.iter().enumerate() {
        assert_eq!(text(net, at), *held);
    }
    assert_eq!(net.role(3), "detached");
}

/// The certificate of one server does not change the files of others.
fn files_of_one_server_alone(net: &ByHand) {
    let own = text(net, 0);
    let spec = Spec::parse(own.as_bytes(), "c.yaml").unwrap().0;
    let give = |text: String| {
        let request = FileRequest::new(text, hash(&own));
        let peers = Peers::new(&spec, "n1", "n1").with_ledger(net.state(0).join("ledger"));
        net.hosts[0].within(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(peers.put_file("n2", &request)).unwrap_err()
        })
    };
    let refused = |error: PeerError, code: Code| match error {
        PeerError::Refused(fault) => assert_eq!(fault.code(), code, "{fault}"),
        other => panic!("{other}"),
    };
    refused(give(format!("{own}processes: {{x: {{executable: /bin/sh}}}}\n")), Code::FileOtherChange);
    let node = Newcomer { name: "n9".into(), address: "10.9.9.9".into(), data_dir: "/d".into() };
    refused(give(with_member(&own, &node).unwrap()), Code::Uncountersigned);
    assert_eq!(text(net, 1), own);
}

/// It waits until an operator has approved it on a server that does not take it in.
fn a_fourth_server(net: &mut ByHand) {
    net.kill_agent(3);
    let code = net.invite(0, "10m");
    std::thread::scope(|scope| {
        let net = &*net;
        let joining = scope.spawn(|| {
            let words = net.join_words(3, &code);
            net.quorate(3, &words.iter().map(String::as_str).collect::<Vec<_>>(), &code)
        });
        wait_until("n2 shows who waits", LIMIT, || net.peers(1)["approval"]["name"] == "n4");
        let text = net.done(1, &["peer", "list"], "");
        assert!(text.contains("`quorate peer countersign n4`"), "{text}");
        wait_until("n1 says what it waits for", LIMIT, || {
            net.peers(0)["operation"]["waits"].as_str().is_some_and(|waits| waits.contains("peer countersign n4"))
        });
        net.refused(0, &["peer", "countersign", "n4"], "", "Q1499");
        net.refused(1, &["peer", "countersign", "n9"], "", "Q1499");
        assert!(!text_has(net, "n4") && !joining.is_finished(), "{}", net.logs());
        net.done(1, &["peer", "countersign", "n4"], "");
        assert!(joining.join().unwrap().status.success(), "{}", net.logs());
    });
    net.start(3, &[]);
    net.wait_operation(0, "n4", "joined");
    net.assert_voters(0, &[0, 1, 2, 3]);
}

fn text_has(net: &ByHand, name: &str) -> bool {
    (0..3).any(|at| text(net, at).contains(&format!("\"{name}\"")))
}
