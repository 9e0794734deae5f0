//! Agents renew the certificates of their nodes by themselves: signed here, or by an agent that has the issuing keys.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod agent_support;
mod cluster_support;

use std::path::Path;

use agent_support::{LIMIT, Place};
use cluster_support::{Declared, Wire};
use jiff::{SignedDuration, Timestamp};
use quorate_agent::certificates::{CertificatesRequest, answer_request};
use quorate_agent::turn::Node;
use quorate_faults::Code;
use quorate_pki::{
    Authorities, IssuedCertificate, Keys, NodeNames, Passphrase, Policy, Role, SignedBundle, ensure_authorities,
    ensure_installed, ensure_requests, ensure_revoked, issue, observe_issued, read_certificates, record_issued,
};
use quorate_testkit::wait_until;

/// A day after renewal became due.
fn two_thirds_ago() -> Timestamp {
    Timestamp::now() - SignedDuration::from_hours(24 * 64)
}

/// Certificates of node `name` in `dir`, by the authorities in `ca`, issued at `at`.
fn equip(ca: &Path, dir: &Path, name: &str, passphrase: Option<&Passphrase>, at: Timestamp) -> SignedBundle {
    let names = NodeNames::new("t", name, ["127.0.0.1"]).unwrap();
    let bundle = ensure_requests(dir, &names, Keys::Keep).unwrap().bundle;
    let authorities = Authorities::open(ca, passphrase).unwrap();
    let signed = issue(&authorities, &bundle, &Policy { days: 90, allowed: None }, at).unwrap();
    ensure_installed(dir, &names, &signed, at).unwrap();
    signed
}

/// The days that a node's certificate has left.
fn days_left(dir: &Path, role: Role) -> i64 {
    let until = read_certificates(&dir.join(role.cert_file())).unwrap().remove(0).life.until;
    until.duration_since(Timestamp::now()).as_hours() / 24
}

fn file(place: &Place) -> String {
    let dir = place.root.path().display();
    let https = |url: String| url.replace("http://", "https://");
    format!(
        "token: t\nbootstrap: {{id: 1}}\ntls: {{dir: \"{dir}/pki\"}}\nmembers:\n  - {{name: n1, peer-urls: [\"{}\"], client-urls: \
         [\"{}\"], data-dir: {dir}/data}}\nagent:\n  health-listen: http://127.0.0.1:{}\n  api-listen: https://127.0.0.1:{}\n  \
         state-dir: {dir}/state\n  etcd-binary: {}\netcd: {{heartbeat-interval: 10, election-timeout: 100}}\n",
        https(place.seat.peer_url()),
        https(place.seat.client_url()),
        place.health,
        place.api,
        place.tools.etcd.display(),
    )
}

#[test]
fn a_node_with_the_issuing_keys_renews_its_own() {
    let mut place = Place::new("3.5.16");
    let (pki, began) = (place.path("pki"), two_thirds_ago());
    let secret = "correct horse battery";
    let passphrase = Passphrase::new(String::from(secret).into()).unwrap();
    ensure_authorities(&pki, "t", Some(&passphrase), began).unwrap();
    equip(&pki, &pki, "n1", Some(&passphrase), began);
    let key = std::fs::read(pki.join("peer.key")).unwrap();
    let file_of_it = place.path("pass");
    std::io::Write::write_all(&mut std::fs::File::create(&file_of_it).unwrap(), secret.as_bytes()).unwrap();
    place.env.push(("QUORATE_CA_PASSPHRASE_FILE".to_owned(), file_of_it.display().to_string()));
    place.raw = Some(file(&place));
    assert_eq!(days_left(&pki, Role::Peer), 25);
    let mut agent = place.start();
    wait_until("new certificates", LIMIT, || days_left(&pki, Role::Admin) == 89);
    assert!(Role::ALL.iter().all(|role| days_left(&pki, *role) == 89));
    assert_eq!(std::fs::read(pki.join("peer.key")).unwrap(), key, "the key stays");
    let pid = place.etcd_pid();
    wait_until("the metrics", LIMIT, || {
        let (_, text) = place.health("/metrics").unwrap_or_default();
        let line = |which: &str| format!("quorate_certificate_not_after_seconds{{which=\"{which}\"}}");
        text.contains(&line("peer")) && text.contains(&line("agent-ca")) && text.contains("result=\"done\"} 1")
    });
    wait_until("no warning", LIMIT, || place.status()["warnings"].as_array().is_none_or(Vec::is_empty));
    assert_eq!(place.etcd_pid(), pid, "etcd was not restarted");
    assert!(agent.log().contains("renewed the certificates: peer, client, agent, admin"), "{}", agent.log());
    assert!(!agent.log().contains(secret));
    assert!(agent.stop().success());
}

#[test]
fn where_nobody_can_sign_somebody_is_warned() {
    let mut place = Place::new("sid");
    // Renewal has been due for a while: less than a quarter is left.
    let began = two_thirds_ago() - SignedDuration::from_hours(24 * 12);
    let (ca, pki) = (place.path("ca"), place.path("pki"));
    ensure_authorities(&ca, "t", None, began).unwrap();
    equip(&ca, &pki, "n1", None, began);
    place.raw = Some(file(&place));
    let mut agent = place.start();
    let has = |code: &str| {
        let status = place.status();
        status["warnings"].as_array().is_some_and(|all| all.iter().any(|one| one["code"] == code))
    };
    wait_until("both warnings", LIMIT, || has("Q1018") && has("Q1019"));
    assert_eq!(place.phase(), "serving");
    assert!(agent.stop().success());
}

#[test]
fn an_agent_signs_for_the_others_and_for_no_stranger() {
    let mut cluster = Declared::new("3.4.23", 3, Wire::Tls);
    let began = two_thirds_ago();
    let pki = |cluster: &Declared, name: &str| cluster.path(&format!("pki-{name}"));
    let ca = pki(&cluster, "n1");
    ensure_authorities(&ca, "t", None, began).unwrap();
    for name in ["n1", "n2", "n3"] {
        equip(&ca, &pki(&cluster, name), name, None, began);
    }
    let text = cluster.text();
    let tls = text.lines().find(|line| line.starts_with("tls: ")).unwrap();
    let dir = cluster.root.path().display().to_string();
    cluster.file_as("cluster.yaml", &text.replace(tls, &format!("tls: {{dir: \"{dir}/pki-{{name}}\"}}")));
    cluster.start_all();
    cluster.wait_serving();
    for name in ["n1", "n2", "n3"] {
        wait_until("new certificates", cluster_support::LIMIT, || {
            Role::ALL.iter().all(|role| days_left(&pki(&cluster, name), *role) == 89)
        });
    }
    assert!(cluster.log(0).contains("signed certificates for another node"), "{}", cluster.log(0));
    assert!(!pki(&cluster, "n2").join("peer-ca.key").exists(), "the issuing keys stay where they are");
    // Nobody gets certificates of another node, and a node without the issuing keys signs for nobody.
    let answer = |at: &str, asking: Option<&str>| {
        let (node, _) = Node::read(&cluster.path("cluster.yaml"), Some(at)).unwrap();
        let names = NodeNames::new("t", "n2", ["127.0.0.1"]).unwrap();
        let bundle = ensure_requests(&pki(&cluster, "n2"), &names, Keys::Keep).unwrap().bundle;
        let request = CertificatesRequest { requests: bundle.encode(), days: 9 };
        answer_request(&node, asking, &request).map(|_| ()).map_err(|fault| fault.code())
    };
    assert_eq!(answer("n1", Some("n2")), Ok(()));
    for stranger in [None, Some("n3"), Some("nobody")] {
        assert_eq!(answer("n1", stranger), Err(Code::RenewalForeign));
    }
    assert_eq!(answer("n3", Some("n2")), Err(Code::CaMissing));
    // The agents go on talking with the new ones.
    cluster.wait_serving();
    for at in 0..3 {
        cluster.stop(at);
    }
}

/// Asks the agent of the first node with the certificates in a folder.
fn ask(cluster: &Declared, dir: &Path, path: &str) -> Option<String> {
    let at = |name: &str| dir.join(name).display().to_string();
    let url = format!("{}{path}", cluster.api_url(0));
    let mut curl = std::process::Command::new("curl");
    curl.args(["-s", "-S", "-k", "--cert", &at("agent.crt"), "--key", &at("agent.key"), "-w", "%{http_code}", &url]);
    let output = curl.output().unwrap();
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn a_node_that_was_off_for_longer_than_its_certificates_hold_renews_and_does_nothing_else() {
    let mut cluster = Declared::new("3.5.16", 3, Wire::Tls);
    let days_ago = |days: i64| Timestamp::now() - SignedDuration::from_hours(24 * days);
    let pki = |cluster: &Declared, name: &str| cluster.path(&format!("pki-{name}"));
    let ca = pki(&cluster, "n1");
    ensure_authorities(&ca, "t", None, days_ago(200)).unwrap();
    // That of the second node ended five days ago.
    for (name, at) in [("n1", days_ago(1)), ("n2", days_ago(95)), ("n3", days_ago(1))] {
        equip(&ca, &pki(&cluster, name), name, None, at);
    }
    let text = cluster.text();
    let tls = text.lines().find(|line| line.starts_with("tls: ")).unwrap();
    let dir = cluster.root.path().display().to_string();
    cluster.file_as("cluster.yaml", &text.replace(tls, &format!("tls: {{dir: \"{dir}/pki-{{name}}\"}}")));
    cluster.start_all();
    cluster.wait_serving();
    assert!(Role::ALL.iter().all(|role| days_left(&pki(&cluster, "n2"), *role) == 89), "{}", cluster.log(1));
    assert!(pki(&cluster, "n2").join("agent.crt.previous").exists(), "the pair from before is kept");

    let (ended, too_old) = (cluster.path("ended"), cluster.path("too-old"));
    let signed = equip(&ca, &ended, "n2", None, days_ago(95));
    record_issued(&ca, &signed, days_ago(95)).unwrap();
    // What is signed later does not take it off the record.
    record_issued(&ca, &equip(&ca, &cluster.path("fresh"), "n3", None, days_ago(1)), Timestamp::now()).unwrap();
    equip(&ca, &too_old, "n2", None, days_ago(185));
    for path in ["/v1/node", "/v1/status", "/openapi.json"] {
        let answer = ask(&cluster, &ended, path).unwrap();
        assert!(answer.contains("Q1430") && answer.ends_with("403"), "{path}: {answer}");
        assert_eq!(ask(&cluster, &too_old, path), None, "{path}: not even a handshake");
    }
    // One that ended too long ago does not get as far as asking for a renewal, and neither does one that was revoked, before it ended
    // or since.
    let renewal = "/v1/certificates";
    assert!(ask(&cluster, &ended, renewal).is_some_and(|answer| !answer.contains("Q1430")));
    assert_eq!(ask(&cluster, &too_old, renewal), None);
    let of_n2 = observe_issued(&ca, "n2", Timestamp::now()).unwrap();
    let serial = |one: &IssuedCertificate| one.what == "agent" && one.until < Timestamp::now();
    let revoked: Vec<IssuedCertificate> = of_n2.into_iter().filter(serial).collect();
    assert_eq!(revoked.len(), 1, "what ended and can be renewed with is still on record: {revoked:?}");
    ensure_revoked(&ca, &Authorities::open(&ca, None).unwrap(), &revoked, Timestamp::now()).unwrap();
    assert_eq!(ask(&cluster, &ended, renewal), None, "a revoked certificate is renewed with");
    let again = cluster.path("again");
    equip(&ca, &again, "n2", None, days_ago(95));
    assert!(ask(&cluster, &again, renewal).is_some(), "another one of the same node is not");
}

#[test]
fn a_node_renews_certificates_that_are_not_valid_yet_and_one_whose_clock_is_ahead_is_reported() {
    let mut cluster = Declared::new("3.5.16", 3, Wire::Tls);
    let hours = SignedDuration::from_hours;
    let pki = |cluster: &Declared, name: &str| cluster.path(&format!("pki-{name}"));
    let ca = pki(&cluster, "n1");
    ensure_authorities(&ca, "t", None, Timestamp::now() - hours(24)).unwrap();
    for name in ["n1", "n2"] {
        equip(&ca, &pki(&cluster, name), name, None, Timestamp::now() - hours(24));
    }
    // A clock was two months ahead when both pairs of the third node were signed.
    let future = pki(&cluster, "n3");
    for days in [60, 61] {
        equip(&ca, &future, "n3", None, Timestamp::now() + hours(24 * days));
    }
    let from = |name: &str| read_certificates(&future.join(name)).unwrap().remove(0).life.from;
    assert!(from("agent.crt") > Timestamp::now() && from("agent.crt.previous") > Timestamp::now());
    let text = cluster.text();
    let tls = text.lines().find(|line| line.starts_with("tls: ")).unwrap();
    let dir = cluster.root.path().display().to_string();
    cluster.file_as("cluster.yaml", &text.replace(tls, &format!("tls: {{dir: \"{dir}/pki-{{name}}\"}}")));
    cluster.start(0);
    // The clock of the second node, which has no issuing keys, is ten minutes ahead.
    let clock = quorate_testkit::FakeClock::new(cluster.root.path());
    clock.set(600);
    cluster.env = clock.env();
    cluster.start(1);
    cluster.env.clear();
    cluster.start(2);
    cluster.wait_serving();
    assert!(from("agent.crt") <= Timestamp::now(), "{}", cluster.log(2));
    assert!(!future.join("agent-ca.key").exists());
    let reported = cluster.wait_status(1, "the clock that is ahead", |status| status.to_string().contains("Q1431"));
    let warnings = reported["warnings"].to_string();
    assert!(warnings.contains("s ahead of that of `n"), "{warnings}");
    assert!(!cluster.status(0).to_string().contains("Q1431"), "{:#}", cluster.status(0));
    // With a certificate that is not valid yet, a node may renew and do nothing else.
    let other = cluster.path("future");
    equip(&ca, &other, "n2", None, Timestamp::now() + hours(48));
    for path in ["/v1/node", "/v1/status"] {
        let answer = ask(&cluster, &other, path).unwrap();
        assert!(answer.contains("Q1430") && answer.ends_with("403"), "{path}: {answer}");
    }
    assert!(ask(&cluster, &other, "/v1/certificates").is_some_and(|answer| !answer.contains("Q1430")));
}
