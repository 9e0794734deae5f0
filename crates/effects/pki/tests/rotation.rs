//! Authorities are changed by orders that prove themselves, in phases that may be cut off, and certificates are called back.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod support;

use std::path::Path;

use quorate_faults::Code;
use quorate_pki::{
    Authorities, Authority, Keys, RevocationLists, Rotation, RotationPhase, TrustOrder, ensure_advanced,
    ensure_installed, ensure_lists, ensure_newer_lists, ensure_order_kept, ensure_revoked, ensure_rotation,
    ensure_trusted, observe_issued, observe_kept_order, observe_list, observe_rotation, observe_trust,
    read_certificates, read_known_lists, read_lists, read_order_after, record_issued, trust_hash, trusted_now,
    with_lists, with_trust,
};
use support::{Place, TOKEN};

fn order(place: &Place, rotation: &Rotation) -> TrustOrder {
    let trusted = trusted_now(&place.ca(), rotation).unwrap();
    TrustOrder::sign(&Authorities::open(&place.ca(), None).unwrap(), rotation.number, &trusted).unwrap()
}

fn begin(place: &Place) -> Rotation {
    ensure_rotation(&place.ca(), None, None, place.now).unwrap()
}

fn advance(place: &Place, rotation: &Rotation) -> Rotation {
    ensure_advanced(&place.ca(), rotation, None, place.now).unwrap()
}

fn trusted(dir: &Path) -> usize {
    read_certificates(&dir.join("peer-ca.crt")).unwrap().len()
}

#[test]
fn a_node_goes_from_one_authority_over_two_to_the_other() {
    let place = Place::new();
    let node = place.node("n1");
    place.install("n1", place.now);
    let first = observe_trust(&node);
    let rotation = begin(&place);
    let both = order(&place, &rotation);
    assert_eq!(ensure_trusted(&node, TOKEN, &both, place.now).unwrap().len(), 3);
    assert_eq!(trusted(&node), 2);
    // Again, also with another signature: nothing is left to be done.
    assert_eq!(ensure_trusted(&node, TOKEN, &order(&place, &rotation), place.now).unwrap(), []);
    let rotation = advance(&place, &rotation);
    assert_eq!(rotation.phase, RotationPhase::Issue);
    // To drop the old one now would lock this node out: it still shows what that one signed.
    let dropped = advance(&place, &rotation);
    let fault = ensure_trusted(&node, TOKEN, &order(&place, &dropped), place.now).unwrap_err();
    assert_eq!(fault.code(), Code::TrustRefused);
    assert!(fault.to_string().contains("would not be trusted"), "{fault}");
    place.install("n1", place.now);
    assert_eq!(ensure_trusted(&node, TOKEN, &order(&place, &dropped), place.now).unwrap().len(), 3);
    assert_eq!(trusted(&node), 1);
    let last = observe_trust(&node);
    assert!(last.trusts.iter().all(|(kind, prints)| prints.len() == 1 && first.trusts[kind] != *prints), "{last:?}");
    assert!(last.signed_by.iter().all(|(role, by)| by.is_some() && first.signed_by[role] != *by), "{last:?}");
    // The order from before, which would bring the old one back, is refused.
    assert_eq!(ensure_trusted(&node, TOKEN, &both, place.now).unwrap_err().code(), Code::TrustRefused);
    assert!(!advance(&place, &dropped).is_open());
}

/// Who comes while authorities are rotated trusts both, and hears the last order from whoever has it.
#[test]
fn a_node_that_comes_in_the_midst_of_a_rotation_trusts_both_and_takes_the_last_order_from_another() {
    let place = Place::new();
    place.install("n1", place.now);
    let rotation = begin(&place);
    ensure_trusted(&place.node("n1"), TOKEN, &order(&place, &rotation), place.now).unwrap();
    // One that was prepared before, and is told nothing: what another node was told is enough.
    let late = place.node("n3");
    let before = place.sign("n3", Keys::Keep, place.now);
    ensure_installed(&late, &support::names("n3"), &before, place.now).unwrap();
    let rotation = advance(&place, &rotation);
    let handed_on = read_order_after(&place.node("n1"), observe_trust(&late).number).unwrap();
    assert_eq!(ensure_trusted(&late, TOKEN, &handed_on, place.now).unwrap().len(), 3);
    assert_eq!(read_order_after(&place.node("n1"), observe_trust(&late).number), None, "it has it now");
    let authorities = Authorities::open(&place.ca(), None).unwrap();
    let signed = with_trust(&place.ca(), &authorities, place.sign("n2", Keys::Keep, place.now)).unwrap();
    ensure_installed(&place.node("n2"), &support::names("n2"), &signed, place.now).unwrap();
    for node in ["n1", "n2", "n3"] {
        assert_eq!(trusted(&place.node(node)), 2, "{node}");
    }
    for node in ["n1", "n3"] {
        place.install(node, place.now);
    }
    let dropped = advance(&place, &rotation);
    ensure_trusted(&place.node("n1"), TOKEN, &order(&place, &dropped), place.now).unwrap();
    let handed_on = read_order_after(&place.node("n1"), observe_trust(&place.node("n2")).number).unwrap();
    // One that comes now may meet somebody who has not taken the last order yet.
    let authorities = Authorities::open(&place.ca(), None).unwrap();
    let signed = with_trust(&place.ca(), &authorities, place.sign("n4", Keys::Keep, place.now)).unwrap();
    ensure_installed(&place.node("n4"), &support::names("n4"), &signed, place.now).unwrap();
    assert_eq!(observe_trust(&place.node("n4")).trusts, observe_trust(&place.node("n3")).trusts);
    for node in ["n2", "n3", "n4"] {
        ensure_trusted(&place.node(node), TOKEN, &handed_on, place.now).unwrap();
        assert_eq!(trusted(&place.node(node)), 1, "{node}");
    }
    advance(&place, &dropped);
    let signed = with_trust(&place.ca(), &authorities, place.sign("n5", Keys::Keep, place.now)).unwrap();
    ensure_installed(&place.node("n5"), &support::names("n5"), &signed, place.now).unwrap();
    assert_eq!(trusted(&place.node("n5")), 1, "it is over");
}

/// Whoever comes after the first phase, when the old key signs no more, takes the order that the folder keeps.
#[test]
fn the_order_of_the_first_phase_is_kept_until_the_rotation_is_over() {
    let place = Place::new();
    for node in ["n1", "n2"] {
        place.install(node, place.now);
    }
    let rotation = begin(&place);
    assert_eq!(observe_kept_order(&place.ca(), &rotation), None);
    let both = order(&place, &rotation);
    ensure_order_kept(&place.ca(), &both).unwrap();
    let issuing = advance(&place, &rotation);
    for (node, phase) in [("n1", issuing.clone()), ("n2", advance(&place, &issuing))] {
        let new = order(&place, &phase);
        assert_eq!(ensure_trusted(&place.node(node), TOKEN, &new, place.now).unwrap_err().code(), Code::TrustRefused);
        let kept = observe_kept_order(&place.ca(), &phase).unwrap();
        assert_eq!(kept, both);
        assert_eq!(ensure_trusted(&place.node(node), TOKEN, &kept, place.now).unwrap().len(), 3);
        assert_eq!(trusted(&place.node(node)), 2);
    }
    let dropped = observe_rotation(&place.ca()).unwrap().unwrap();
    advance(&place, &dropped);
    assert_eq!(observe_kept_order(&place.ca(), &begin(&place)), None, "that was another rotation");
}

#[test]
fn only_the_holder_of_the_issuing_key_changes_trust() {
    let (place, stranger) = (Place::new(), Place::new());
    let node = place.node("n1");
    place.install("n1", place.now);
    let good = order(&place, &begin(&place));
    let foreign = order(&stranger, &begin(&stranger));
    let refused = |order: &TrustOrder| {
        let fault = ensure_trusted(&node, TOKEN, order, place.now).unwrap_err();
        assert_eq!(fault.code(), Code::TrustRefused, "{fault}");
    };
    refused(&foreign);
    refused(&TrustOrder { number: good.number + 1, ..good.clone() });
    refused(&TrustOrder { token: "other".into(), ..good.clone() });
    let mut swapped = good.clone();
    swapped.changes[0].certificates[1].clone_from(&foreign.changes[0].certificates[1]);
    refused(&swapped);
    let mut renamed = good.clone();
    renamed.changes[0].authority = "agent-ca".into();
    refused(&renamed);
    let mut none = good.clone();
    none.changes[0].certificates.clear();
    refused(&none);
    let mut odd = good.clone();
    odd.changes[0].signature = "!".into();
    refused(&odd);
    assert_eq!(trusted(&node), 1, "nothing was changed");
    ensure_trusted(&node, TOKEN, &good, place.now).unwrap();
}

#[test]
fn a_rotation_that_was_cut_off_behind_any_file_goes_on() {
    // The journal is written first; whatever else is missing then is made by the next call.
    let place = Place::new();
    let first = begin(&place);
    assert_eq!(begin(&place), first, "the same one is found again");
    let other = ensure_rotation(&place.ca(), Some(&[Authority::Peer]), None, place.now).unwrap_err();
    assert_eq!(other.code(), Code::RotationOther);
    let kept: Vec<(String, Vec<u8>)> = std::fs::read_dir(place.ca())
        .unwrap()
        .flatten()
        .map(|entry| (entry.file_name().to_string_lossy().into_owned(), std::fs::read(entry.path()).unwrap()))
        .collect();
    // Cut off with the phase written down and the new key in place of some authorities only.
    let second = advance(&place, &first);
    for name in ["client-ca.key", "client-ca.crt", "agent-ca.key", "agent-ca.next.key"] {
        if let Some((_, bytes)) = kept.iter().find(|(known, _)| known == name) {
            std::io::Write::write_all(&mut std::fs::File::create(place.ca().join(name)).unwrap(), bytes).unwrap();
        }
    }
    let client_next = kept.iter().find(|(name, _)| name == "client-ca.next.key").unwrap();
    let path = place.ca().join("client-ca.next.key");
    std::io::Write::write_all(&mut std::fs::File::create(path).unwrap(), &client_next.1).unwrap();
    assert_eq!(begin(&place), second);
    let authorities = Authorities::open(&place.ca(), None).unwrap();
    assert_eq!(authorities.token(), TOKEN);
    // Every issuing key is the new one now: the certificate that stands first is its own, and no old one.
    for authority in Authority::ALL {
        let certificates = read_certificates(&place.ca().join(authority.cert_file())).unwrap();
        assert_eq!(certificates.len(), 2);
        let print = quorate_pki::fingerprint(&certificates[0].der);
        assert!(!second.old.contains(&print), "{}", authority.word());
        assert!(!place.ca().join(format!("{}.next.key", authority.word())).exists());
    }
    let third = advance(&place, &second);
    assert_eq!(begin(&place), third);
    assert_eq!(trusted(&place.ca()), 1);
    let done = advance(&place, &third);
    assert_eq!(observe_rotation(&place.ca()).unwrap(), Some(done.clone()));
    let again = begin(&place);
    assert!(again.is_open() && again.number > done.number);
}

#[test]
fn lists_go_with_certificates_and_are_remembered() {
    let place = Place::new();
    place.install("n1", place.now);
    let authorities = Authorities::open(&place.ca(), None).unwrap();
    let with = |place: &Place| with_lists(&place.ca(), &authorities, place.sign("n2", Keys::Keep, place.now)).unwrap();
    assert_eq!(with(&place).list(Authority::Peer), None, "nothing was ever revoked");
    let peer_ca = |name: &str| place.node(name).join("peer-ca.crt");
    assert_eq!(observe_list(&peer_ca("n1")).unwrap(), None);
    ensure_revoked(&place.ca(), &authorities, &[], place.now).unwrap();
    let bundle = quorate_pki::SignedBundle::decode(with(&place).encode().as_bytes()).unwrap();
    ensure_installed(&place.node("n2"), &support::names("n2"), &bundle, place.now).unwrap();
    let list = observe_list(&peer_ca("n2")).unwrap().unwrap();
    assert_eq!(std::fs::read(&list).unwrap(), std::fs::read(place.ca().join("peer-ca.crl")).unwrap());
    // Another node takes them over once, and none that is not newer.
    let known = read_known_lists(&place.node("n2")).unwrap();
    assert_eq!(ensure_newer_lists(&place.node("n1"), &known).unwrap().len(), 3);
    assert_eq!(ensure_newer_lists(&place.node("n1"), &known).unwrap(), []);
    // Lists of authorities that nobody trusts here are passed over, and refused in a bundle.
    let stranger = Place::new();
    stranger.install("n1", place.now);
    assert_eq!(ensure_newer_lists(&stranger.node("n1"), &known).unwrap(), []);
    let foreign = place.sign("n2", Keys::Keep, place.now).with_lists(|_| Some(b"no list".to_vec()));
    let refused = ensure_installed(&place.node("n2"), &support::names("n2"), &foreign, place.now).unwrap_err();
    assert_eq!(refused.code(), Code::RevocationsUnusable);
    // One that was here is never done without.
    for name in ["n1", "n2"] {
        std::fs::remove_file(place.node(name).join("peer-ca.crl")).unwrap();
        assert_eq!(observe_list(&peer_ca(name)).unwrap_err().code(), Code::RevocationsMissing);
    }
    std::fs::create_dir(place.node("n1").join("peer-ca.crl")).unwrap();
    assert_eq!(observe_list(&peer_ca("n1")).unwrap_err().code(), Code::RevocationsMissing);
    assert_eq!(ensure_newer_lists(&place.node("n2"), &known).unwrap(), [Authority::Peer]);
    assert_eq!(observe_list(&peer_ca("n2")).unwrap(), Some(list));
}

#[test]
fn lists_prove_themselves_and_only_get_newer() {
    let (place, stranger) = (Place::new(), Place::new());
    let node = place.node("n1");
    place.install("n1", place.now);
    let signed = place.sign("n3", Keys::Keep, place.now);
    record_issued(&place.ca(), &signed, place.now).unwrap();
    record_issued(&place.ca(), &place.sign("n2", Keys::Keep, place.now), place.now).unwrap();
    let issued = observe_issued(&place.ca(), "n3", place.now).unwrap();
    assert_eq!(issued.len(), 4);
    assert_eq!(read_lists(&place.ca()).unwrap(), None);
    let lists = |place: &Place, at: jiff::Timestamp| -> RevocationLists {
        ensure_revoked(&place.ca(), &Authorities::open(&place.ca(), None).unwrap(), &issued, at).unwrap();
        read_lists(&place.ca()).unwrap().unwrap()
    };
    let older = lists(&place, place.now);
    let newer = lists(&place, place.now + jiff::SignedDuration::from_secs(5));
    assert_eq!(ensure_lists(&node, &newer).unwrap().len(), 3);
    assert_eq!(ensure_lists(&node, &newer).unwrap(), []);
    assert_eq!(ensure_lists(&node, &older).unwrap_err().code(), Code::TrustRefused);
    let foreign = lists(&stranger, place.now + jiff::SignedDuration::from_secs(9));
    assert_eq!(ensure_lists(&node, &foreign).unwrap_err().code(), Code::RevocationsUnusable);
    let mut short = newer.clone();
    short.lists.remove("peer-ca");
    assert_eq!(ensure_lists(&node, &short).unwrap_err().code(), Code::RevocationsUnusable);
    let text = String::from_utf8(
        std::process::Command::new("openssl")
            .args(["crl", "-inform", "DER", "-noout", "-text", "-in"])
            .arg(node.join("peer-ca.crl"))
            .output()
            .unwrap()
            .stdout,
    )
    .unwrap();
    assert_eq!(text.matches("Serial Number:").count(), 1, "{text}");
}

#[test]
fn the_order_of_authorities_means_nothing_and_their_number_does() {
    let place = Place::new();
    let file = place.ca().join("peer-ca.crt");
    let one = trust_hash([file.as_path()]);
    begin(&place);
    let two = trust_hash([file.as_path()]);
    assert_ne!(one, two);
    let certificates = read_certificates(&file).unwrap();
    let turned: String = certificates.iter().rev().map(|one| quorate_plan::certificates::pem(&one.der)).collect();
    std::io::Write::write_all(&mut std::fs::File::create(&file).unwrap(), turned.as_bytes()).unwrap();
    assert_eq!(trust_hash([file.as_path()]), two);
}
