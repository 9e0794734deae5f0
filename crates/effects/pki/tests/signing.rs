//! Signatures of nodes: made with the keys of their agents, and refused for every other key, cluster, time and content.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use quorate_pki::{
    Authorities, Authority, IssuedCertificate, Role, Verifier, ensure_lists, ensure_revoked, is_signed_with,
    read_lists, sign_as_node,
};
use quorate_plan::peering::{Signature, Signers};
use support::{Place, TOKEN, days};

fn sign(place: &Place, name: &str, role: Role, bytes: &[u8]) -> Signature {
    let node = place.node(name);
    sign_as_node(&node.join(role.cert_file()), &node.join(role.key_file()), bytes).unwrap()
}

fn signers(place: &Place, token: &str, after: i64, bytes: &[u8], signature: &Signature) -> Signers {
    let authorities = place.node("n2").join(Authority::Agent.cert_file());
    let verifier = Verifier::read(&authorities, token, place.now + days(after)).unwrap();
    verifier.signers(bytes, std::slice::from_ref(signature))
}

#[test]
fn only_the_agent_key_of_a_node_of_this_cluster_signs_for_it() {
    let place = Place::new();
    for name in ["n1", "n2"] {
        place.install(name, place.now);
    }
    let made = sign(&place, "n1", Role::Agent, b"record");
    let names: Vec<String> = signers(&place, TOKEN, 0, b"record", &made).names.into_iter().collect();
    assert_eq!(names, ["n1"]);
    assert!(is_signed_with(&place.node("n1").join(Role::Agent.cert_file()), &made).unwrap());
    assert!(!is_signed_with(&place.node("n2").join(Role::Agent.cert_file()), &made).unwrap());
    let refused = |token: &str, after: i64, bytes: &[u8], signature: &Signature, word: &str| {
        let found = signers(&place, token, after, bytes, signature);
        assert!(found.names.is_empty() && found.unfit[0].contains(word), "{found:?}");
    };
    refused(TOKEN, 0, b"recorD", &made, "does not fit");
    refused("prod-2", 0, b"record", &made, "no node of this cluster");
    refused(TOKEN, 91, b"record", &made, "holds from");
    refused(TOKEN, -2, b"record", &made, "holds from");
    refused(TOKEN, 0, b"record", &sign(&place, "n1", Role::Admin, b"record"), "authority");
    refused(TOKEN, 0, b"record", &sign(&place, "n1", Role::Peer, b"record"), "authority");
    let other = Place::new();
    other.install("n1", other.now);
    refused(TOKEN, 0, b"record", &sign(&other, "n1", Role::Agent, b"record"), "authority");
    let swapped = Signature { certificate: sign(&place, "n2", Role::Agent, b"record").certificate, ..made.clone() };
    refused(TOKEN, 0, b"record", &swapped, "does not fit");
    for text in ["", "AAAA", "é", &"A".repeat(100_000)] {
        refused(TOKEN, 0, b"record", &Signature { certificate: text.to_owned(), ..made.clone() }, "read");
    }
    // A pair that does not fit, because it is just being replaced, signs nothing.
    let (n1, n2) = (place.node("n1"), place.node("n2"));
    sign_as_node(&n1.join(Role::Agent.cert_file()), &n2.join(Role::Agent.key_file()), b"record").unwrap_err();
}

#[test]
fn a_revoked_certificate_signs_nothing() {
    let place = Place::new();
    for name in ["n1", "n2"] {
        place.install(name, place.now);
    }
    let made = sign(&place, "n1", Role::Agent, b"record");
    let cert = quorate_pki::read_certificates(&place.node("n1").join(Role::Agent.cert_file())).unwrap();
    let authorities = place.node("n1").join(Authority::Agent.cert_file());
    let shown = quorate_pki::identity_of(&cert[0].der, TOKEN, &authorities);
    let one = IssuedCertificate {
        authority: Authority::Agent,
        serial: shown.serial.unwrap(),
        name: "n1".into(),
        what: "agent".into(),
        until: place.now + days(90),
    };
    let ca = Authorities::open(&place.ca(), None).unwrap();
    ensure_revoked(&place.ca(), &ca, &[one], place.now).unwrap();
    ensure_lists(&place.node("n2"), &read_lists(&place.ca()).unwrap().unwrap()).unwrap();
    let found = signers(&place, TOKEN, 0, b"record", &made);
    assert!(found.names.is_empty() && found.unfit[0].contains("revoked"), "{found:?}");
}
