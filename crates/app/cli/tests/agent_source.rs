//! An agent whose members a source names: what asks it, and what a list that changes later cannot change.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod agent_support;

use std::io::Write;

use agent_support::{LIMIT, Place};
use quorate_testkit::{Seat, wait_until};
use rustix::process::Signal;

fn list(place: &Place, seat: &Seat) {
    let text =
        format!("[{{name: n1, peer_urls: [\"{}\"], client_urls: [\"{}\"]}}]", seat.peer_url(), place.seat.client_url());
    std::fs::File::create(place.path("list")).unwrap().write_all(text.as_bytes()).unwrap();
}

#[test]
fn a_list_that_changes_later_founds_nothing_anew() {
    let mut place = Place::new("3.5.16");
    let (dir, tools) = (place.root.path().display().to_string(), place.tools.etcd.display().to_string());
    place.raw = Some(format!(
        "token: t\nbootstrap: {{id: 1}}\nplaintext: true\nsource: {{uri: \"file:{dir}/list\", size: 1}}\nmembers:\n  - {{name: n1, \
         data-dir: {dir}/data}}\nagent:\n  health-listen: http://127.0.0.1:{}\n  api-listen: http://127.0.0.1:{}\n  state-dir: \
         {dir}/state\n  etcd-binary: {tools}\netcd: {{heartbeat-interval: 10, election-timeout: 100}}\n",
        place.health, place.api,
    ));
    list(&place, &place.seat);
    let mut agent = place.start();
    place.put("k", "v");
    let cluster = place.status()["cluster_id"].clone();
    let file = place.path("cluster.yaml").display().to_string();
    let quorate = |args: &[&str]| {
        let output = std::process::Command::new(quorate_testkit::quorate()).args(args).output().unwrap();
        let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        // However its lines are broken.
        said.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    // Whoever reads the file asks the source as the agent does.
    let checked = quorate(&["cluster", "check", "--resolve", &file]);
    assert!(checked.contains("declares bootstrap 1 of a cluster"), "{checked}");
    let got = quorate(&["ctl", "--config", &file, "get", "k", "--print-value-only"]);
    assert_eq!(got.split(' ').next(), Some("v"), "{got}");
    // The list changes, and the file is read again: etcd gets its new address, and stays the member that it is.
    let moved = Seat::new("n1");
    list(&place, &moved);
    agent.signal(Signal::HUP);
    wait_until("the member is where the list says now", LIMIT, || {
        agent.log().contains(&format!("at `{}`", moved.peer_url()))
            && place.status()["etcd"]["settings_current"] == true
    });
    place.wait_ready(&mut agent);
    assert_eq!(place.status()["cluster_id"], cluster);
    place.assert_holds("k", "v");
    assert!(agent.stop().success());
    // Also another agent, and one that cannot ask, find the cluster that was founded.
    for answers in [true, false] {
        if !answers {
            std::fs::remove_file(place.path("list")).unwrap();
        }
        let mut agent = place.start();
        assert_eq!(place.status()["cluster_id"], cluster);
        place.assert_holds("k", "v");
        assert!(agent.stop().success());
    }
    let checked = quorate(&["cluster", "check", "--resolve", &file]);
    assert!(checked.contains("the members were not checked") && checked.contains("can be used"), "{checked}");
}
