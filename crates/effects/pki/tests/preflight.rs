//! What is said before a start: each thing that can be wrong, by its code, its file and whom it fails.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use jiff::Timestamp;
use quorate_faults::Severity;
use quorate_pki::{
    Authorities, Keys, NodeNames, Policy, PreflightInput, ensure_installed, ensure_requests, issue,
    observe_authorities, observe_node, preflight,
};
use quorate_plan::etcd_config::Minor;
use quorate_plan::spec::Spec;
use support::{Place, days, put};

fn spec(tls: &str, more: &str) -> Spec {
    let text = format!(
        "token: prod-1\nmembers:\n  - {{name: n1, peer-urls: ['https://127.0.0.1:2380'], client-urls: \
         ['https://node.example:2379']{more}}}\ntls: {tls}\n"
    );
    Spec::parse(text.as_bytes(), "c.yaml").map_err(|mistakes| mistakes.render()).unwrap().0
}

fn found(spec: &Spec, etcd: Minor, now: Timestamp) -> Vec<String> {
    let input = PreflightInput { spec, member: &spec.members[0], etcd: Some(etcd) };
    let line = |finding: quorate_faults::Finding| {
        let file = Path::new(&finding.place.file).file_name().unwrap().to_string_lossy().into_owned();
        let severity = if finding.severity == Severity::Error { "error" } else { "warning" };
        format!("{} {severity} {file}", finding.code)
    };
    preflight(&input, now).into_iter().map(line).collect()
}

fn in_dir(place: &Place) -> Spec {
    spec(&format!("{{dir: '{}'}}", place.node("n1").display()), "")
}

#[test]
fn what_quorate_made_is_good_and_3_4_is_told_what_it_does_not_check() {
    let place = Place::new();
    place.install("n1", place.now);
    let spec = in_dir(&place);
    assert_eq!(found(&spec, Minor::V3_5, place.now), [""; 0]);
    assert_eq!(found(&spec, Minor::V3_4, place.now), ["Q1020 warning peer-ca.crt"]);
    let status = observe_node(&spec, &spec.members[0], place.now);
    let which: Vec<&str> = status.iter().map(|status| status.which.as_str()).collect();
    assert_eq!(which, ["peer", "client", "agent", "admin", "peer-ca", "client-ca", "agent-ca"]);
    assert!(status.iter().all(|status| status.problems.is_empty() && status.not_after.is_some()));
    assert_eq!(observe_authorities(&place.ca(), place.now).len(), 3);
}

#[test]
fn time_is_told_before_and_after_the_end() {
    let place = Place::new();
    place.install("n1", place.now);
    let spec = in_dir(&place);
    let all = |what: &str| ["peer", "client", "agent", "admin"].map(|file| format!("{what} {file}.crt")).to_vec();
    assert_eq!(found(&spec, Minor::V3_5, place.now + days(63)), [""; 0], "renewal is due, and nobody is warned yet");
    assert_eq!(found(&spec, Minor::V3_5, place.now + days(68)), all("Q1018 warning"));
    assert_eq!(found(&spec, Minor::V3_5, place.now + days(90)), all("Q1012 error"));
    let early = found(&spec, Minor::V3_5, place.now - days(1));
    assert_eq!(early.len(), 7, "the authorities too: {early:?}");
    assert!(early.iter().all(|line| line.starts_with("Q1012 error")), "{early:?}");
    let late = observe_authorities(&place.ca(), place.now + days(3625));
    assert!(late.iter().all(|status| status.problems.len() == 1));
}

#[test]
fn a_missing_a_foreign_and_an_open_file_are_named() {
    let place = Place::new();
    place.install("n1", place.now);
    place.install("n2", place.now);
    let (node, other, spec) = (place.node("n1"), place.node("n2"), in_dir(&place));
    let with = |change: &dyn Fn(), back: &[&str]| {
        let before: Vec<String> = back.iter().map(|file| support::read(&node.join(file))).collect();
        change();
        let found = found(&spec, Minor::V3_5, place.now);
        for (file, text) in back.iter().zip(before) {
            put(&node.join(file), &text);
        }
        found
    };
    let remove = |file: &str| std::fs::remove_file(node.join(file)).unwrap();
    assert_eq!(with(&|| remove("peer.crt"), &["peer.crt"]), ["Q1010 error peer.crt"]);
    // A new file is as open as the umask leaves it; the test is about the rest.
    let close = || std::fs::set_permissions(node.join("client.key"), PermissionsExt::from_mode(0o600)).unwrap();
    assert_eq!(with(&|| put(&node.join("client.key"), "x"), &["client.key"]), ["Q1010 error client.key"]);
    close();
    let ca = with(&|| put(&node.join("agent-ca.crt"), ""), &["agent-ca.crt"]);
    assert_eq!(ca, ["Q1010 error agent-ca.crt"]);
    let swap = |file: &str| put(&node.join(file), &support::read(&other.join(file)));
    assert_eq!(with(&|| swap("agent.key"), &["agent.key"]), ["Q1011 error agent.key"]);
    let stranger = Place::new();
    stranger.install("n1", place.now);
    let foreign = || {
        for file in ["admin.crt", "admin.key"] {
            put(&node.join(file), &support::read(&stranger.node("n1").join(file)));
        }
    };
    assert_eq!(with(&foreign, &["admin.crt", "admin.key"]), ["Q1013 error admin.crt"]);
    std::fs::set_permissions(node.join("peer.key"), PermissionsExt::from_mode(0o644)).unwrap();
    assert_eq!(found(&spec, Minor::V3_5, place.now), ["Q1017 warning peer.key"]);
}

#[test]
fn an_address_or_name_that_is_not_covered_fails_whoever_uses_it() {
    let place = Place::new();
    let (node, now) = (place.node("n1"), place.now);
    // Issued before the member moved.
    let names = NodeNames::new("prod-1", "n1", ["10.0.0.1"]).unwrap();
    let bundle = ensure_requests(&node, &names, Keys::Keep).unwrap().bundle;
    let authorities = Authorities::open(&place.ca(), None).unwrap();
    let signed = issue(&authorities, &bundle, &Policy { days: 90, allowed: None }, now).unwrap();
    ensure_installed(&node, &names, &signed, now).unwrap();
    let dir = node.display();
    let moved = spec(&format!("{{dir: '{dir}'}}"), ", agent-url: 'https://10.0.0.2:2378'");
    assert_eq!(found(&moved, Minor::V3_5, now), ["Q1014 error client.crt", "Q1014 error agent.crt"]);
    let named =
        spec(&format!("{{dir: '{dir}', peer-allowed-hostname: peer.other}}"), ", agent-url: 'https://10.0.0.1:1'");
    assert_eq!(found(&named, Minor::V3_5, now), ["Q1014 error client.crt", "Q1014 error peer.crt"]);
}

#[test]
fn certificates_from_elsewhere_are_checked_alike() {
    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair};
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(rcgen::DnType::CommonName, "ours");
    let root = CertifiedIssuer::self_signed(params.clone(), KeyPair::generate().unwrap()).unwrap();
    params.distinguished_name.push(rcgen::DnType::CommonName, "between");
    let between = CertifiedIssuer::signed_by(params, KeyPair::generate().unwrap(), &root).unwrap();
    put(&at("ca.pem"), &root.pem());
    let named = |file: &str, common: &str, usage: Vec<ExtendedKeyUsagePurpose>, with_chain: bool| {
        let names = ["127.0.0.1", "*.example"].map(str::to_owned).to_vec();
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(rcgen::DnType::CommonName, common);
        params.extended_key_usages = usage;
        let key = KeyPair::generate().unwrap();
        let leaf = params.signed_by(&key, &between).unwrap().pem();
        put(&at(&format!("{file}.pem")), &if with_chain { leaf + &between.pem() } else { leaf });
        put(&at(&format!("{file}.key")), &key.serialize_pem());
        std::fs::set_permissions(at(&format!("{file}.key")), PermissionsExt::from_mode(0o600)).unwrap();
    };
    let issue =
        |file: &str, usage: Vec<ExtendedKeyUsagePurpose>, with_chain: bool| named(file, "n1", usage, with_chain);
    use ExtendedKeyUsagePurpose::{ClientAuth, ServerAuth};
    issue("peer", vec![ServerAuth, ClientAuth], true);
    issue("client", vec![ServerAuth], true);
    let files = |file: &str| {
        let dir = dir.path().display();
        format!("{{cert-file: '{dir}/{file}.pem', key-file: '{dir}/{file}.key', trusted-ca-file: '{dir}/ca.pem'}}")
    };
    let own = spec(&format!("{{peer: {}, client: {}}}", files("peer"), files("client")), "");
    let now = Timestamp::now();
    // One authority for peers, clients and agents, and a gateway that cannot dial.
    let shared = ["Q1015 warning client.pem", "Q1016 warning ca.pem", "Q1016 warning ca.pem"];
    assert_eq!(found(&own, Minor::V3_5, now), shared);
    // Names tell clients from members, or they do not.
    let pairs = [files("peer"), files("client"), files("admin")];
    let with_admin = spec(&format!("{{peer: {}, client: {}, admin: {}}}", pairs[0], pairs[1], pairs[2]), "");
    named("admin", "root", vec![ClientAuth], true);
    assert_eq!(found(&with_admin, Minor::V3_5, now), shared);
    named("admin", "n1", vec![ClientAuth], true);
    let errors = ["Q1015 warning client.pem", "Q1016 warning ca.pem", "Q1016 error admin.pem"];
    assert_eq!(found(&with_admin, Minor::V3_5, now), errors);
    named("peer", "n2", vec![ServerAuth, ClientAuth], true);
    assert!(found(&own, Minor::V3_5, now).contains(&"Q1035 warning peer.pem".to_owned()));
    issue("peer", vec![ClientAuth], true);
    issue("client", vec![], false);
    let broken = ["Q1015 error peer.pem", "Q1013 error client.pem", "Q1016 warning ca.pem", "Q1016 warning ca.pem"];
    assert_eq!(found(&own, Minor::V3_5, now), broken);
    // Nothing to look at without TLS.
    let text = "token: t\nplaintext: true\nmembers: [{name: n1, address: 127.0.0.1}]\n";
    let plain = Spec::parse(text.as_bytes(), "c").map_err(|mistakes| mistakes.render()).unwrap().0;
    assert_eq!(found(&plain, Minor::V3_5, now), [""; 0]);
}
