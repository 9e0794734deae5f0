//! Real etcd on what `data init` makes, in each place that it can be made, and on what an interrupted run leaves.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use quorate_etcd::init::{Outcome, Request, Target, ensure_member};
use quorate_etcd_formats::founding::{Form, Founding};
use quorate_faults::{Code, Fault};
use quorate_host::durable::RealDisk;
use quorate_testkit::{Cluster, Launch, Seat, VERSIONS, etcd, run, wait_until};

fn make(seat: &Seat, data: &Path, wal: Option<&Path>) -> Result<Outcome, Fault> {
    let founding = Founding::new(vec![(seat.name.clone(), vec![seat.peer_url()])], "boot").expect("a good list");
    let local = founding.member(&seat.name).expect("the only member");
    let target = Target::new(data, wal).expect("good paths");
    Ok(ensure_member(&RealDisk, &target, Request { founding: &founding, local, form: Form::Any })?.outcome)
}

#[test]
fn etcd_starts_wherever_the_member_was_made_and_still_counts_as_made() {
    for (version, at) in VERSIONS.into_iter().zip(["beside", "inside", "wal within"]) {
        let root = tempfile::tempdir().expect("a temporary directory");
        let data = root.path().join("data");
        let wal: Option<PathBuf> = match at {
            "beside" => Some(root.path().join("log/wal")),
            "inside" => None,
            _ => Some(data.join("wal")),
        };
        if at == "inside" {
            std::fs::create_dir(&data).expect("a fresh root");
        }
        let seat = Seat::new("n1");
        assert_eq!(make(&seat, &data, wal.as_deref()).expect("made"), Outcome::Made);
        let mut launch = Launch::new(&etcd(version), &seat, &data);
        if let Some(wal) = &wal {
            launch = launch.arg(format!("--wal-dir={}", wal.display()));
        }
        let server = launch.start();
        server.ctl(&["put", "key", "value"]);
        let again = make(&seat, &data, wal.as_deref()).expect("already");
        assert_eq!(again, Outcome::Already { other_name: None, running: true }, "{version}, {at}");
        server.stop();
        let again = make(&seat, &data, wal.as_deref()).expect("already");
        assert_eq!(again, Outcome::Already { other_name: None, running: false }, "{version}, {at}");
    }
}

/// What makes the order of the two renames right: this half is one that no etcd starts on, whatever its flags.
#[test]
fn etcd_refuses_a_separate_wal_whose_data_dir_is_not_there_yet() {
    for version in VERSIONS {
        let root = tempfile::tempdir().expect("a temporary directory");
        let (data, wal) = (root.path().join("data"), root.path().join("wal"));
        let seat = Seat::new("n1");
        make(&seat, &data, Some(&wal)).expect("made");
        run(Command::new("rm").arg("-r").arg(&data));
        let flag = format!("--wal-dir={}", wal.display());
        for bootstrap in [false, true] {
            let mut launch = Launch::new(&etcd(version), &seat, &data).arg(&flag);
            if bootstrap {
                launch = launch
                    .arg(format!("--initial-advertise-peer-urls={}", seat.peer_url()))
                    .arg(format!("--initial-cluster=n1={}", seat.peer_url()))
                    .arg("--initial-cluster-state=new");
            }
            let mut server = launch.spawn();
            wait_until("etcd gives up", Duration::from_secs(30), || server.running.ended().is_some());
            assert!(server.running.ended().is_some_and(|status| !status.success()), "{version}");
            let log = server.running.log();
            assert!(log.contains("state.commit 1 is out of range"), "{version}: {log}");
        }
        // It left an empty db behind. That is not taken for the member, and the way out is one.
        let fault = make(&seat, &data, Some(&wal)).expect_err("half a member");
        assert_eq!(fault.code(), Code::InitHalf, "{version}: {fault}");
        assert!(fault.to_string().contains("before an interrupted run was finished"), "{version}: {fault}");
        run(Command::new("mv").arg(&data).arg(root.path().join("data.old")));
        assert_eq!(make(&seat, &data, Some(&wal)).expect("finished"), Outcome::Finished);
        let server = Launch::new(&etcd(version), &seat, &data).arg(&flag).start();
        server.ctl(&["put", "key", "value"]);
    }
}

#[test]
fn an_interrupted_run_is_finished_on_the_wal_that_it_left() {
    let root = tempfile::tempdir().expect("a temporary directory");
    let (data, wal) = (root.path().join("data"), root.path().join("wal"));
    let seat = Seat::new("n1");
    make(&seat, &data, Some(&wal)).expect("made");
    run(Command::new("rm").arg("-r").arg(&data));
    assert_eq!(make(&seat, &data, Some(&wal)).expect("finished"), Outcome::Finished);
    let server = Launch::new(&etcd("3.5.16"), &seat, &data).arg(format!("--wal-dir={}", wal.display())).start();
    server.ctl(&["put", "key", "value"]);
    assert_eq!(server.get("key").as_deref(), Some("value"));
}

/// The separate WAL has no entries, so all that a new member learns must come from the raft snapshot.
fn three_members_with_separate_wals_agree_and_a_fourth_receives_everything(version: &str) {
    let tools = etcd(version);
    let root = tempfile::tempdir().expect("a temporary directory");
    let at = |kind: &str, name: &str| root.path().join(format!("{kind}-{name}"));
    let seats = Seat::many(3);
    let list = seats.iter().map(|seat| (seat.name.clone(), vec![seat.peer_url()])).collect();
    let founding = Founding::new(list, "boot").expect("a good list");
    let launch = |seat: &Seat| {
        let wal = format!("--wal-dir={}", at("wal", &seat.name).display());
        Launch::new(&tools, seat, &at("data", &seat.name)).arg(wal)
    };
    for seat in &seats {
        let local = founding.member(&seat.name).expect("a member");
        let target = Target::new(&at("data", &seat.name), Some(&at("wal", &seat.name))).expect("good paths");
        let request = Request { founding: &founding, local, form: Form::Any };
        ensure_member(&RealDisk, &target, request).expect("made");
    }
    let cluster = Cluster::launch(seats.iter().map(launch).collect());
    for (i, server) in cluster.servers.iter().enumerate() {
        server.ctl(&["put", &format!("key-{i}"), "value"]);
    }
    let fourth = Seat::new("n4");
    let peer = format!("--peer-urls={}", fourth.peer_url());
    // Right after a start the leader may not yet trust its peers enough to let one in.
    wait_until("the cluster to accept a member", Duration::from_secs(20), || {
        cluster.servers[0].try_ctl(&["member", "add", "n4", &peer]).is_ok()
    });
    let everyone: Vec<String> =
        seats.iter().chain([&fourth]).map(|seat| format!("{}={}", seat.name, seat.peer_url())).collect();
    let joined = launch(&fourth)
        .arg(format!("--initial-advertise-peer-urls={}", fourth.peer_url()))
        .arg(format!("--initial-cluster={}", everyone.join(",")))
        .arg("--initial-cluster-state=existing")
        .start();
    for i in 0..3 {
        let value = joined.ctl(&["get", "--consistency=s", "--print-value-only", &format!("key-{i}")]);
        assert_eq!(value, "value\n", "{version}");
    }
}

#[test]
fn separate_wals_carry_a_cluster_of_3_4() {
    three_members_with_separate_wals_agree_and_a_fourth_receives_everything(VERSIONS[0]);
}

#[test]
fn separate_wals_carry_a_cluster_of_3_5() {
    three_members_with_separate_wals_agree_and_a_fourth_receives_everything(VERSIONS[1]);
}

#[test]
fn separate_wals_carry_a_cluster_of_the_newest() {
    three_members_with_separate_wals_agree_and_a_fourth_receives_everything(VERSIONS[2]);
}
