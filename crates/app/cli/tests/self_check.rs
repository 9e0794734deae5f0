//! `quorate self check` fails on what would stop a node, before its first start.

#![expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test that cannot continue names the place")]

mod agent_support;

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use agent_support::Place;
use jiff::Timestamp;
use quorate_pki::{
    Authorities, Keys, NodeNames, Passphrase, Policy, ensure_authorities, ensure_installed, ensure_requests, issue,
};
use quorate_testkit::quorate;
use serde_json::Value;

/// The exit code, and the first result of one kind of check that is not good (or is, where all are).
fn check(place: &Place, what: &str) -> (Option<i32>, Value) {
    found(&place.quorate(&["self", "check", "--output", "json"]), what)
}

fn found(output: &Output, what: &str) -> (Option<i32>, Value) {
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let of_it: Vec<&Value> = report["checks"].as_array().unwrap().iter().filter(|one| one["what"] == what).collect();
    let worst = of_it.iter().find(|one| one["state"] != "good").or(of_it.first());
    (output.status.code(), worst.map_or(Value::Null, |one| (*one).clone()))
}

/// The same by a machine that is prepared by other programs first.
fn check_below(place: &Place, program: &str, words: &[&str], what: &str) -> (Option<i32>, Value) {
    let mut command = Command::new(program);
    command.args(words).arg(quorate()).args(["self", "check", "--output", "json", "--config"]).arg(place.file());
    found(&command.output().unwrap(), what)
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// The same where nothing can be written in this directory.
fn check_read_only(place: &Place, dir: &Path, what: &str) -> (Option<i32>, Value) {
    if is_root() {
        // Root may write whatever the mode says, but not to a file system that is mounted read-only.
        let line = format!("mount -t tmpfs -o ro none {} && exec \"$@\"", dir.display());
        return check_below(place, "/usr/bin/unshare", &["--mount", "sh", "-c", &line, "sh"], what);
    }
    std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o555)).unwrap();
    let result = check(place, what);
    std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o755)).unwrap();
    result
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

#[test]
fn fails_where_data_or_state_cannot_be_written() {
    let mut place = Place::new("3.5.16");
    let text = std::fs::read_to_string(place.file()).unwrap();
    for name in ["data-disk", "state-disk"] {
        std::fs::create_dir(place.path(name)).unwrap();
    }
    std::fs::write(place.path("a-file"), "x").unwrap();
    let declared = |place: &mut Place, data: &str, state: &str| {
        let path = |name: &str| place.path(name).display().to_string();
        let moved = text.replace(&format!("data-dir: {}", path("data")), &format!("data-dir: {}", path(data)));
        place.raw = Some(moved.replace(&path("state"), &path(state)));
        place.file();
    };
    declared(&mut place, "data-disk/data", "state-disk/state");
    assert_eq!(check(&place, "disk").1["state"], "good");
    let (code, found) = check_read_only(&place, &place.path("data-disk"), "disk");
    assert_eq!((code, &found["state"], &found["code"]), (Some(1), &"failed".into(), &"Q0006".into()), "{found}");
    assert!(found["found"].as_str().unwrap().contains("data-disk") && found["way_out"].is_string(), "{found}");
    let (code, found) = check_read_only(&place, &place.path("state-disk"), "state dir");
    assert_eq!((code, &found["state"]), (Some(1), &"failed".into()), "{found}");
    assert!(found["found"].as_str().unwrap().contains("state-disk"), "{found}");
    // A file in the way is not overlooked.
    declared(&mut place, "a-file/data", "a-file/state");
    for what in ["disk", "state dir"] {
        let (code, found) = check(&place, what);
        assert_eq!((code, &found["state"]), (Some(1), &"failed".into()), "{found}");
        assert!(found["found"].as_str().unwrap().contains("a-file` is no directory"), "{found}");
    }
    // A directory that is there, open to others and full of other things is no state dir.
    declared(&mut place, "data", "state-disk");
    std::fs::create_dir_all(place.path("state-disk/n1/other")).unwrap();
    std::fs::set_permissions(place.path("state-disk/n1"), std::fs::Permissions::from_mode(0o755)).unwrap();
    let (code, found) = check(&place, "state dir");
    assert_eq!((code, &found["state"]), (Some(1), &"failed".into()), "{found}");
    assert!(found["found"].as_str().unwrap().contains("is no state dir"), "{found}");
}

#[test]
fn fails_where_the_declared_box_cannot_be_had() {
    let mut place = Place::new("3.5.16");
    place.more = "box: {level: strict}\n".to_owned();
    let rights = ["--no-new-privs", "--bounding-set", "-sys_admin", "--"];
    let (code, found) = check_below(&place, "/usr/bin/setpriv", if is_root() { &rights } else { &rights[..1] }, "box");
    assert_eq!((code, &found["state"], &found["code"]), (Some(1), &"failed".into(), &"Q1106".into()), "{found}");
    assert!(found["way_out"].as_str().unwrap().contains("`box: {level: basic}`"), "{found}");
    place.more = "box: {level: \"off\"}\n".to_owned();
    place.file();
    assert_eq!(check(&place, "box").1["state"], "good");
}

#[test]
fn warns_where_the_store_of_backups_does_not_answer() {
    let mut place = Place::with_store("3.5.16");
    place.file();
    let (code, found) = check(&place, "backups");
    assert_eq!((code, &found["state"]), (Some(0), &"good".into()), "{found}");
    std::fs::remove_dir(place.path("store")).unwrap();
    std::fs::write(place.path("store"), "x").unwrap();
    let (code, found) = check(&place, "backups");
    assert_eq!((code, &found["state"]), (Some(0), &"warning".into()), "{found}");
    assert!(found["code"].is_string() && found["way_out"].is_string(), "{found}");
    place.more = "backup: {store: \"file:///nowhere/at/all\"}\n".to_owned();
    place.file();
    assert_eq!(check(&place, "backups").1["state"], "warning");
}
