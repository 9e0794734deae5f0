//! From authorities to installed certificates, and everything on the way that is refused.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::os::unix::fs::PermissionsExt;

use jiff::Timestamp;
use quorate_faults::Code;
use quorate_pki::{
    Authorities, Authority, Certificate, CsrBundle, Keys, NodeNames, Policy, Role, SignedBundle, ensure_authorities,
    ensure_installed, ensure_requests, ensure_swaps_finished, issue, needs_passphrase, node_name, read_certificates,
};
use support::{Place, TOKEN, days, names, openssl, passphrase, put, read};

fn mode(path: &std::path::Path) -> u32 {
    path.metadata().unwrap().permissions().mode() & 0o777
}

#[test]
fn openssl_opens_the_keys_and_verifies_the_chains() {
    let dir = tempfile::tempdir().unwrap();
    let now = Timestamp::now();
    let ca = dir.path().join("ca");
    let made = ensure_authorities(&ca, TOKEN, Some(&passphrase()), now).unwrap();
    assert!(!made.already && made.encrypted && needs_passphrase(&ca).unwrap());
    assert!(ensure_authorities(&ca, TOKEN, None, now).unwrap().already);
    let node = dir.path().join("n1");
    let asked = ensure_requests(&node, &names("n1"), Keys::Keep).unwrap();
    let authorities = Authorities::open(&ca, Some(&passphrase())).unwrap();
    let allowed = names("n1");
    let signed = issue(&authorities, &asked.bundle, &Policy { days: 90, allowed: Some(&allowed) }, now).unwrap();
    let installed = ensure_installed(&node, &names("n1"), &signed, now).unwrap();
    assert_eq!(installed.replaced, Role::ALL);
    assert!(ensure_installed(&node, &names("n1"), &signed, now).unwrap().replaced.is_empty());
    for authority in Authority::ALL {
        let key = ca.join(authority.key_file());
        assert_eq!((mode(&key), mode(&ca)), (0o600, 0o700));
        let key = key.display().to_string();
        let opened =
            openssl(&["pkey", "-in", &key, "-passin", "pass:correct horse battery", "-noout", "-text"]).unwrap();
        assert!(opened.contains("prime256v1"), "{opened}");
        openssl(&["pkey", "-in", &key, "-passin", "pass:wrong", "-noout"]).unwrap_err();
    }
    for role in Role::ALL {
        let (cert, key) = (node.join(role.cert_file()), node.join(role.key_file()));
        assert_eq!((mode(&key), mode(&cert)), (0o600, 0o644));
        let trusted = node.join(role.authority().cert_file()).display().to_string();
        let cert = cert.display().to_string();
        let verify =
            |purpose: &str| openssl(&["verify", "-x509_strict", "-purpose", purpose, "-CAfile", &trusted, &cert]);
        verify("sslclient").unwrap();
        assert_eq!(verify("sslserver").is_ok(), role.serves(), "{role:?}");
        for other in Authority::ALL.into_iter().filter(|other| *other != role.authority()) {
            let other = node.join(other.cert_file()).display().to_string();
            openssl(&["verify", "-CAfile", &other, &cert]).unwrap_err();
        }
        let text = openssl(&["x509", "-in", &cert, "-noout", "-text"]).unwrap();
        assert_eq!(text.contains("DNS:peer.prod-1.quorate.internal"), role == Role::Peer, "{text}");
        assert_eq!(text.contains("DNS:n1.agent.prod-1.quorate.internal"), role == Role::Agent, "{text}");
        assert_eq!(text.contains("IP Address:127.0.0.1"), role.serves(), "{text}");
        assert_eq!(text.contains("CN = n1"), matches!(role, Role::Peer | Role::Agent), "{text}");
        assert_eq!(text.contains("CN = quorate-admin"), role == Role::Admin, "{text}");
    }
}

#[test]
fn authorities_are_never_replaced_and_a_run_that_was_cut_off_is_finished() {
    let place = Place::new();
    let ca = place.ca();
    let before = read(&ca.join("peer-ca.crt"));
    assert!(ensure_authorities(&ca, TOKEN, None, place.now).unwrap().already);
    let other = ensure_authorities(&ca, "prod-2", None, place.now).unwrap_err();
    assert_eq!(other.code(), Code::CaOther);
    assert_eq!(read(&ca.join("peer-ca.crt")), before);
    // Killed before the last certificate, and amid a key.
    let key = read(&ca.join("agent-ca.key"));
    std::fs::remove_file(ca.join("agent-ca.crt")).unwrap();
    put(&ca.join("agent-ca.crt.partial-1"), "x");
    assert!(!ensure_authorities(&ca, TOKEN, None, place.now).unwrap().already);
    assert_eq!(read(&ca.join("agent-ca.key")), key, "the key that was there is used");
    assert!(!ca.join("agent-ca.crt.partial-1").exists());
    Authorities::open(&ca, None).unwrap();
    // A node's folder has no issuing keys and gets none.
    std::fs::remove_file(ca.join("client-ca.key")).unwrap();
    assert_eq!(ensure_authorities(&ca, TOKEN, None, place.now).unwrap_err().code(), Code::CaOther);
    assert_eq!(Authorities::open(&ca, None).unwrap_err().code(), Code::CaMissing);
    assert_eq!(ensure_authorities(&ca, "a b", None, place.now).unwrap_err().code(), Code::CertificateName);
    let weak = quorate_pki::Passphrase::new(String::from("short").into()).unwrap();
    let fault = ensure_authorities(&place.node("fresh"), TOKEN, Some(&weak), place.now).unwrap_err();
    assert_eq!(fault.code(), Code::CaPassphrase);
}

#[test]
fn nothing_is_signed_that_was_not_declared() {
    let place = Place::new();
    let authorities = Authorities::open(&place.ca(), None).unwrap();
    let asked = |token: &str, name: &str, hosts: &[&str]| {
        let names = NodeNames::new(token, name, hosts.iter().copied()).unwrap();
        ensure_requests(&place.node(name), &names, Keys::Keep).unwrap().bundle
    };
    let allowed = names("n1");
    let refusal = |bundle: &CsrBundle| {
        let policy = Policy { days: 90, allowed: Some(&allowed) };
        let fault = issue(&authorities, bundle, &policy, place.now).unwrap_err();
        assert_eq!(fault.code(), Code::RequestRefused);
        fault.to_string()
    };
    assert!(refusal(&asked("prod-2", "n1", &[])).contains("`prod-2`"));
    assert!(refusal(&asked(TOKEN, "n2", &[])).contains("the member is `n1`"));
    assert!(refusal(&asked(TOKEN, "n1", &["10.0.0.9", "evil.example"])).contains("`evil.example`, `10.0.0.9`"));
    // Fewer than declared is fine, and without a file someone was asked.
    let fewer = asked(TOKEN, "n1", &["127.0.0.1"]);
    issue(&authorities, &fewer, &Policy { days: 1, allowed: Some(&allowed) }, place.now).unwrap();
    issue(&authorities, &asked(TOKEN, "n2", &["x.y"]), &Policy { days: 1, allowed: None }, place.now).unwrap();
    for days in [0, 4000] {
        let fault = issue(&authorities, &fewer, &Policy { days, allowed: None }, place.now).unwrap_err();
        assert_eq!(fault.code(), Code::Usage);
    }
    // Requests that were swapped among each other: the name of a peer is for peers alone.
    let swapped = CsrBundle::new(TOKEN, "n1", |role| {
        fewer.request(if role == Role::Client { Role::Peer } else { role }).to_vec()
    });
    assert!(refusal(&swapped).contains("its client request"));
    // A changed byte: the signature does not hold.
    let mut forged = fewer.request(Role::Peer).to_vec();
    let at = forged.len() - 3;
    forged[at] ^= 1;
    let forged = CsrBundle::new(TOKEN, "n1", |role| match role {
        Role::Peer => forged.clone(),
        Role::Client | Role::Agent | Role::Admin => fewer.request(role).to_vec(),
    });
    assert!(refusal(&forged).contains("its peer request"));
}

#[test]
fn keys_of_another_kind_are_not_signed() {
    let place = Place::new();
    let authorities = Authorities::open(&place.ca(), None).unwrap();
    let bundle = ensure_requests(&place.node("n1"), &names("n1"), Keys::Keep).unwrap().bundle;
    for curve in ["secp384r1", "secp256k1"] {
        let out = place.dir.path().join("other.csr").display().to_string();
        let (key, option) = (place.dir.path().join("k").display().to_string(), format!("ec_paramgen_curve:{curve}"));
        let words = ["req", "-new", "-newkey", "ec", "-pkeyopt", &option, "-nodes", "-sha256", "-subj", "/O=prod-1"];
        openssl(&[&words[..], &["-keyout", &key, "-outform", "DER", "-out", &out]].concat()).unwrap();
        let other = std::fs::read(&out).unwrap();
        let mixed = CsrBundle::new(TOKEN, "n1", |role| match role {
            Role::Admin => other.clone(),
            Role::Peer | Role::Client | Role::Agent => bundle.request(role).to_vec(),
        });
        let fault = issue(&authorities, &mixed, &Policy { days: 1, allowed: None }, place.now).unwrap_err();
        assert_eq!(fault.code(), Code::RequestRefused, "{curve}: {fault}");
    }
}

#[test]
fn only_what_fits_this_node_is_installed() {
    let place = Place::new();
    let (now, node) = (place.now, place.node("n1"));
    let signed = place.sign("n1", Keys::Keep, now);
    let refusal = |names: &NodeNames, signed: &SignedBundle, at: Timestamp| {
        let fault = ensure_installed(&node, names, signed, at).unwrap_err();
        (fault.code(), fault.to_string())
    };
    let (code, text) = refusal(&names("n1"), &place.sign("n2", Keys::Keep, now), now);
    assert!(code == Code::InstallRefused && text.contains("`n2`"), "{text}");
    let (_, text) = refusal(&names("n1"), &signed, now + days(91));
    assert!(text.contains("ended at"), "{text}");
    let (_, text) = refusal(&names("n1"), &signed, now - days(1));
    assert!(text.contains("holds from"), "{text}");
    let wider = NodeNames::new(TOKEN, "n1", ["127.0.0.1", "node.example", "10.0.0.7"]).unwrap();
    let (_, text) = refusal(&wider, &signed, now);
    assert!(text.contains("does not name `10.0.0.7`"), "{text}");
    assert!(!node.join("peer.crt").exists(), "nothing was installed");
    ensure_installed(&node, &names("n1"), &signed, now).unwrap();
    // Keys of another request.
    let other = Place::new();
    let (code, text) = refusal(&names("n1"), &other.sign("n1", Keys::Keep, now), now);
    assert!(code == Code::InstallOtherCa && text.contains("peer-ca.crt"), "{text}");
    std::fs::remove_file(node.join("admin.key")).unwrap();
    ensure_requests(&node, &names("n1"), Keys::Keep).unwrap();
    let (_, text) = refusal(&names("n1"), &signed, now);
    assert!(text.contains("the admin certificate belongs to another key"), "{text}");
}

#[test]
fn a_renewal_keeps_the_key_and_new_keys_wait_for_their_certificates() {
    let now = Timestamp::now();
    let place = Place::began(now - days(60));
    let node = place.node("n1");
    place.install("n1", now - days(60));
    let key = read(&node.join("peer.key"));
    let before = read_certificates(&node.join("peer.crt")).unwrap().remove(0);
    place.install("n1", now);
    let after = read_certificates(&node.join("peer.crt")).unwrap().remove(0);
    assert_eq!(read(&node.join("peer.key")), key);
    assert_eq!(before.public_key, after.public_key);
    assert!(after.life.until > before.life.until && after.der != before.der);
    // New keys.
    let signed = place.sign("n1", Keys::Fresh, now);
    assert_eq!(read(&node.join("peer.key")), key, "the key in use is in use");
    assert_eq!(mode(&node.join("peer.key.next")), 0o600);
    ensure_installed(&node, &names("n1"), &signed, now).unwrap();
    assert_ne!(read(&node.join("peer.key")), key);
    assert_eq!(mode(&node.join("peer.key")), 0o600);
    let left = std::fs::read_dir(&node).unwrap().map(|entry| entry.unwrap().file_name());
    let left: Vec<_> = left.filter(|name| !name.to_string_lossy().ends_with(".previous")).collect();
    assert_eq!(left.len(), 11, "four pairs and three authorities: {left:?}");
    fits(&node);
}

fn fits(node: &std::path::Path) {
    for role in Role::ALL {
        let certificate = read_certificates(&node.join(role.cert_file())).unwrap().remove(0);
        let key = rcgen::KeyPair::from_pem(&read(&node.join(role.key_file()))).unwrap();
        let public = rcgen::PublicKeyData::subject_public_key_info(&key);
        assert_eq!(public, certificate.public_key, "{role:?}");
    }
}

#[test]
fn a_swap_of_keys_that_was_cut_off_anywhere_is_finished() {
    let place = Place::new();
    let (now, node) = (place.now, place.node("n1"));
    place.install("n1", now);
    let files = ["peer.key", "peer.crt"];
    let old = files.map(|file| read(&node.join(file)));
    let signed = place.sign("n1", Keys::Fresh, now);
    let fresh_key = read(&node.join("peer.key.next"));
    let fresh_cert = quorate_plan::certificates::pem(signed.certificate(Role::Peer));
    // As the steps come: both wait; the key is in place; both are; one left-over is gone.
    let states = [
        (&old[0], &old[1], true, true),
        (&fresh_key, &old[1], true, true),
        (&fresh_key, &fresh_cert, true, true),
        (&fresh_key, &fresh_cert, true, false),
    ];
    for (at, (key, cert, key_waits, cert_waits)) in states.into_iter().enumerate() {
        put(&node.join("peer.key"), key);
        put(&node.join("peer.crt"), cert);
        for (name, text, waits) in
            [("peer.key.next", &fresh_key, key_waits), ("peer.crt.next", &fresh_cert, cert_waits)]
        {
            let _ = std::fs::remove_file(node.join(name));
            if waits {
                put(&node.join(name), text);
            }
        }
        ensure_swaps_finished(&node).unwrap();
        assert_eq!(read(&node.join("peer.key")), fresh_key, "state {at}");
        assert_eq!(read(&node.join("peer.crt")), fresh_cert, "state {at}");
        assert!(!node.join("peer.key.next").exists() && !node.join("peer.crt.next").exists(), "state {at}");
    }
    // A request alone changes nothing.
    put(&node.join("peer.key.next"), &old[0]);
    ensure_swaps_finished(&node).unwrap();
    assert_eq!(read(&node.join("peer.key")), fresh_key);
    assert!(node.join("peer.key.next").exists());
}

#[test]
fn certificates_do_not_outlive_their_authority() {
    let now = Timestamp::now();
    let place = Place::began(now - days(3640));
    let signed = place.sign("n1", Keys::Keep, now);
    let leaf = Certificate::parse(signed.certificate(Role::Peer)).unwrap();
    let authority = Certificate::parse(signed.authority(Authority::Peer)).unwrap();
    assert_eq!(leaf.life.until, authority.life.until);
    let old = Place::began(now - days(3651));
    let bundle = ensure_requests(&old.node("n1"), &names("n1"), Keys::Keep).unwrap().bundle;
    let authorities = Authorities::open(&old.ca(), None).unwrap();
    let fault = issue(&authorities, &bundle, &Policy { days: 90, allowed: None }, now).unwrap_err();
    assert_eq!(fault.code(), Code::CertificateExpired);
}

#[test]
fn an_agent_is_known_by_its_certificate() {
    let place = Place::new();
    let name = "Node-1.rack";
    let names = NodeNames::new(TOKEN, name, []).unwrap();
    let bundle = ensure_requests(&place.node("x"), &names, Keys::Keep).unwrap().bundle;
    let authorities = Authorities::open(&place.ca(), None).unwrap();
    let signed = issue(&authorities, &bundle, &Policy { days: 1, allowed: None }, place.now).unwrap();
    assert_eq!(node_name(signed.certificate(Role::Agent), TOKEN).as_deref(), Some(name));
    assert_eq!(node_name(signed.certificate(Role::Client), TOKEN), None);
    assert_eq!(node_name(b"nonsense", TOKEN), None);
}

#[test]
fn no_changed_byte_changes_what_is_believed() {
    let place = Place::new();
    let signed = place.sign("n1", Keys::Keep, place.now);
    let authority = Certificate::parse(signed.authority(Authority::Peer)).unwrap();
    let der = signed.certificate(Role::Peer);
    let sound = Certificate { der: Vec::new(), ..Certificate::parse(der).unwrap() };
    for at in (0..der.len()).step_by(3) {
        let mut bytes = der.to_vec();
        bytes[at] ^= if at % 2 == 0 { 0x01 } else { 0x80 };
        let _ = Certificate::parse(&bytes[..at]);
        let Ok(changed) = Certificate::parse(&bytes) else { continue };
        // The outermost frame is not signed; what it holds is.
        let believed = changed.is_signed_by(&authority);
        assert!(!believed || Certificate { der: Vec::new(), ..changed } == sound, "byte {at}");
    }
    let bundle = ensure_requests(&place.node("n1"), &names("n1"), Keys::Keep).unwrap().bundle;
    let sound = quorate_pki::read_requests(&bundle).unwrap();
    for at in (0..bundle.request(Role::Peer).len()).step_by(7) {
        let changed = CsrBundle::new(TOKEN, "n1", |role| {
            let mut bytes = bundle.request(role).to_vec();
            if role == Role::Peer {
                bytes[at] ^= 0x01;
            }
            bytes
        });
        if let Ok(read) = quorate_pki::read_requests(&changed) {
            assert_eq!(read, sound, "byte {at}");
        }
    }
}
