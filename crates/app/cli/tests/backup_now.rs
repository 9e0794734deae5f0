//! One full backup of a running cluster.

mod follow_support;

use follow_support::{Place, revision, write_some};
use quorate_testkit::{Launch, Seat, Server, VERSIONS, etcd};

#[test]
fn a_full_of_every_release_is_stored_read_back_and_restored_by_its_point() {
    for version in VERSIONS {
        let place = Place::new();
        let server = place.etcd(version);
        write_some(&server, "one");
        let url = server.seat.client_url();
        let said = place.backup(&["now", "--store", &place.store, "--endpoints", &url]).unwrap();
        assert_eq!(said["revision"].as_u64(), Some(revision(&server)), "{said}");
        assert_eq!(said["etcd_version"].as_str(), Some(server.tools.version.as_str()), "{said}");
        let (point, seat) = (said["restore_point"].as_str().unwrap(), Seat::new("r1"));
        let member = format!("r1={}", seat.peer_url());
        let args = ["restore", "--store", &place.store, "--restore-point", point, "--name", "r1", "--data-dir", "r1"];
        let restored = place.backup(&[&args[..], &["--member", &member]].concat()).unwrap();
        assert_eq!(restored["last_write_revision"], said["revision"], "{restored}");
        let restored = Launch::new(&server.tools, &seat, &place.path("r1")).start();
        assert_eq!(restored.get("one/0").as_deref(), Some("again"));
        // Another one joins the first, without another epoch.
        server.ctl(&["put", "two", "2"]);
        let again = place.backup(&["now", "--store", &place.store, "--endpoints", &url]).unwrap();
        assert_eq!((again["epoch"].as_u64(), place.fulls()), (said["epoch"].as_u64(), 2));
        place.assert_equals(&server, "r2");
    }
}

#[test]
fn a_store_of_another_cluster_is_refused_and_left_as_it_is() {
    let place = Place::new();
    let server = place.etcd("sid");
    write_some(&server, "one");
    let now =
        |server: &Server| place.backup(&["now", "--store", &place.store, "--endpoints", &server.seat.client_url()]);
    now(&server).unwrap();
    let seat = Seat::new("n2");
    let other = Launch::new(&etcd("sid"), &seat, &place.path("other"))
        .arg(format!("--initial-advertise-peer-urls={}", seat.peer_url()))
        .arg(format!("--initial-cluster=n2={}", seat.peer_url()))
        .start();
    let refused = now(&other).unwrap_err();
    assert!(refused.contains("Q0843"), "{refused}");
    assert_eq!(place.fulls(), 1);
}

#[test]
fn a_password_is_not_taken_from_the_command_line() {
    let place = Place::new();
    let args = ["now", "--store", &place.store, "--endpoints", "http://127.0.0.1:1", "--user", "root:secret"];
    let said = place.backup(&args).unwrap_err();
    assert!(said.contains("cannot take a password on the command line") && !said.contains("secret"), "{said}");
    let silent = place.backup(&["now", "--store", &place.store, "--endpoints", "http://127.0.0.1:1"]).unwrap_err();
    assert!(silent.contains("Q0601"), "{silent}");
}
