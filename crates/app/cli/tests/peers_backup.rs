//! Where a store of backups is declared, nobody is taken in before all that was written is in it.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod change_support;
mod cluster_support;
mod peers_support;

use std::io::Write;

use peers_support::{ByHand, LIMIT};
use quorate_testkit::wait_until;

#[test]
fn a_newcomer_waits_until_what_was_written_is_backed_up() {
    let mut net = ByHand::new(2);
    net.standalone(0, "2m");
    net.try_ctl(0, &["put", "k", "v"]).unwrap();
    let (store, away) = (net.root.path().join("store"), net.root.path().join("away"));
    let file = net.state(0).join("cluster.yaml");
    let text = std::fs::read_to_string(&file).unwrap();
    let wanted = net.root.path().join("wanted.yaml");
    let more = format!("backup: {{store: 'file://{}', delta-period: 1s}}\n", store.display());
    std::fs::File::create(&wanted).unwrap().write_all(format!("{text}{more}").as_bytes()).unwrap();
    let words = ["cluster", "apply", &wanted.display().to_string(), "--yes", "--wait", "60s", "--name", "n1"];
    let applied = net.hosts[0].command(quorate_testkit::quorate()).args(words).output().unwrap();
    assert!(applied.status.success(), "{}", cluster_support::said(&applied));
    wait_until("the store is there", LIMIT, || net.status(0)["backup"]["stored_revision"].as_i64().unwrap_or(0) > 0);
    // The store goes away: who wants in waits, and is no member.
    let mv = |from: &std::path::Path, to: &std::path::Path| {
        quorate_testkit::run(std::process::Command::new("mv").arg(from).arg(to));
    };
    mv(&store, &away);
    std::fs::File::create(&store).unwrap().write_all(b"no folder").unwrap();
    net.try_ctl(0, &["put", "k", "w"]).unwrap();
    let code = net.invite(0, "10m");
    net.join(1, &code);
    net.start(1, &[]);
    wait_until("it waits for the backup", LIMIT, || {
        let operation = net.peers(0)["operation"].clone();
        operation["step"] == "reserved" && operation["waits"].as_str().is_some_and(|what| what.contains("backed up"))
    });
    net.assert_voters(0, &[0]);
    mv(&store, &net.root.path().join("none"));
    mv(&away, &store);
    net.wait_operation(0, "n2", "joined");
    net.assert_voters(0, &[0, 1]);
    changes_of_roles_wait_as_well(&mut net, &store);
}

/// What was written before a server becomes a client is in the store by then; and while the store is away, a client stays one.
fn changes_of_roles_wait_as_well(net: &mut ByHand, store: &std::path::Path) {
    let put = net.try_ctl(0, &["put", "k", "x", "--write-out=json"]).unwrap();
    let put: serde_json::Value = serde_json::from_str(&put).unwrap();
    net.done(0, &["peer", "set-role", "n2", "client"], "");
    let listing = ["backup", "list", "--store", &format!("file://{}", store.display()), "--output", "json"];
    let listing = net.hosts[0].command(quorate_testkit::quorate()).args(listing).output().unwrap();
    let stored: serde_json::Value = serde_json::from_slice(&listing.stdout).unwrap();
    let (stored, wanted) = (stored["newest_revision"].as_u64(), put["header"]["revision"].as_u64());
    assert!(wanted.is_some() && stored >= wanted, "{stored:?} of {wanted:?}\n{}", net.logs());
    assert_eq!((net.role(1).as_str(), net.listed(0).len()), ("client", 1));
    quorate_testkit::run(std::process::Command::new("mv").arg(store).arg(net.root.path().join("gone")));
    std::fs::File::create(store).unwrap().write_all(b"no folder").unwrap();
    net.try_ctl(0, &["put", "k", "y"]).unwrap();
    let waits = net.quorate(0, &["peer", "set-role", "n2", "server", "--wait", "2s"], "");
    let text = cluster_support::said(&waits);
    assert!(waits.status.code() == Some(3) && text.contains("backed up"), "{text}\n{}", net.logs());
    // Nobody has to wait for its end.
    net.done(0, &["peer", "set-role", "n2", "client"], "");
    assert_eq!(net.peers(0)["operation"]["step"], "undone");
    assert_eq!((net.role(1).as_str(), net.listed(0).len()), ("client", 1));
}
