//! `quorate self check` fails on what would stop a node, before its first start.

#![expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test that cannot continue names the place")]

mod agent_support;

use std::net::TcpListener;
use std::path::Path;

use agent_support::Place;
use jiff::Timestamp;
use quorate_pki::{
    Authorities, Keys, NodeNames, Passphrase, Policy, ensure_authorities, ensure_installed, ensure_requests, issue,
};
use serde_json::Value;

/// The exit code, and the first result of one kind of check that is not good (or is, where all are).
fn check(place: &Place, what: &str) -> (Option<i32>, Value) {
    let output = place.quorate(&["self", "check", "--output", "json"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let of_it: Vec<&Value> = report["checks"].as_array().unwrap().iter().filter(|one| one["what"] == what).collect();
    let worst = of_it.iter().find(|one| one["state"] != "good").or(of_it.first());
    (output.status.code(), worst.map_or(Value::Null, |one| (*one).clone()))
}

/// A file with TLS, and certificates of the node by an authority that is in `pki` itself.
fn with_certificates(place: &mut Place, passphrase: Option<&Passphrase>) {
    let dir = place.path("pki");
    let text = std::fs::read_to_string(place.file()).unwrap();
    let tls = format!("tls: {{dir: \"{}\"}}\n", dir.display());
    place.raw = Some(text.replace("plaintext: true\n", &tls).replace("http://", "https://").replace(
        &format!("health-listen: https://127.0.0.1:{}", place.health),
        &format!("health-listen: http://127.0.0.1:{}", place.health),
    ));
    equip(&dir, passphrase);
    place.file();
}

fn equip(dir: &Path, passphrase: Option<&Passphrase>) {
    let now = Timestamp::now();
    ensure_authorities(dir, "t", passphrase, now).unwrap();
    let names = NodeNames::new("t", "n1", ["127.0.0.1"]).unwrap();
    let requests = ensure_requests(dir, &names, Keys::Keep).unwrap().bundle;
    let policy = Policy { days: 90, allowed: None };
    let signed = issue(&Authorities::open(dir, passphrase).unwrap(), &requests, &policy, now).unwrap();
    ensure_installed(dir, &names, &signed, now).unwrap();
}

#[test]
fn fails_without_etcd() {
    let mut place = Place::new("3.5.16");
    place.file();
    assert_eq!(check(&place, "etcd").0, Some(0));
    place.binary = place.path("no-etcd");
    place.file();
    let (code, found) = check(&place, "etcd");
    assert_eq!((code, &found["state"]), (Some(1), &"failed".into()), "{found}");
    assert!(found["found"].as_str().unwrap().contains("no-etcd") && found["way_out"].is_string(), "{found}");
    assert!(!place.path("state").exists(), "nothing is written");
}

#[test]
fn fails_where_a_port_is_taken() {
    let place = Place::new("3.5.16");
    place.file();
    assert_eq!(check(&place, "ports").0, Some(0));
    let port = place.api.number();
    let _taken = TcpListener::bind(("127.0.0.1", port)).unwrap();
    let (code, found) = check(&place, "ports");
    assert_eq!((code, &found["state"]), (Some(1), &"failed".into()), "{found}");
    assert!(found["found"].as_str().unwrap().contains(&format!("listens on `127.0.0.1:{port}`")), "{found}");
}

#[test]
fn fails_without_a_certificate() {
    let mut place = Place::new("3.5.16");
    with_certificates(&mut place, None);
    assert_eq!(check(&place, "certificates").0, Some(0), "{}", check(&place, "certificates").1);
    std::fs::rename(place.path("pki/peer.crt"), place.path("peer.crt")).unwrap();
    let (code, found) = check(&place, "certificates");
    assert_eq!((code, &found["state"]), (Some(1), &"failed".into()), "{found}");
    assert!(found["found"].as_str().unwrap().contains("peer.crt") && found["code"].is_string(), "{found}");
}

#[test]
fn warns_where_issuing_keys_cannot_be_opened() {
    let mut place = Place::new("3.5.16");
    let secret = "correct horse battery";
    with_certificates(&mut place, Some(&Passphrase::new(secret.to_owned().into()).unwrap()));
    let (code, found) = check(&place, "renewal");
    assert_eq!((code, &found["state"]), (Some(0), &"warning".into()), "{found}");
    assert!(found["found"].as_str().unwrap().contains("encrypted"), "{found}");
    let file = place.path("pass");
    std::io::Write::write_all(&mut std::fs::File::create(&file).unwrap(), secret.as_bytes()).unwrap();
    place.env.push(("QUORATE_CA_PASSPHRASE_FILE".to_owned(), file.display().to_string()));
    let (_, found) = check(&place, "renewal");
    assert_eq!(found["state"], "good", "{found}");
}
