//! Data on a file system of its own: one that is not mounted is waited for, another, empty one is a lost disk, and half a member
//! is neither absent nor whole.
//!
//! **Rule:** while the disk is away nothing is restored, removed or written in its place; once it is mounted the agent continues
//! by itself, with the last acknowledged write.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod agent_support;
mod cluster_support;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use agent_support::{LIMIT, Place};
use cluster_support::{Declared, Wire, members_in, said};
use quorate_etcd_formats::membership::ClusterId;
use quorate_plan::ledger::{Generation, Ledger};
use quorate_testkit::{run, wait_until};

const VERSION: &str = "3.5.16";

/// What lies below a mount point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Ext4,
    Xfs,
    /// A subvolume, not the whole file system.
    Btrfs,
    Bind,
    Overlay,
}

/// A disk and its mount point. Dropped, it is unmounted.
struct Disk {
    kind: Kind,
    image: PathBuf,
    at: PathBuf,
}

impl Disk {
    /// A new, empty disk, mounted at `at`.
    fn mounted(kind: Kind, image: PathBuf, at: &Path) -> Disk {
        std::fs::create_dir_all(at).unwrap();
        let disk = Disk { kind, image, at: at.to_owned() };
        disk.format();
        disk.mount();
        disk
    }

    fn format(&self) {
        let make = |program: &str, more: &[&str]| {
            // Sparse, and large enough for xfs and for two segments of a WAL.
            std::fs::File::create(&self.image).unwrap().set_len(512 << 20).unwrap();
            tool(program, more, &[&self.image]);
        };
        match self.kind {
            Kind::Ext4 => make("mkfs.ext4", &["-q"]),
            Kind::Xfs => make("mkfs.xfs", &["-q"]),
            Kind::Btrfs => {
                make("mkfs.btrfs", &["-q"]);
                run(Command::new("mount").args(["-o", "loop"]).args([&self.image, &self.at]));
                tool("btrfs", &["subvolume", "create"], &[&self.at.join("@etcd")]);
                self.unmount();
            }
            Kind::Bind => std::fs::create_dir(&self.image).unwrap(),
            Kind::Overlay => {
                for dir in ["lower", "upper", "work"] {
                    std::fs::create_dir_all(self.image.join(dir)).unwrap();
                }
            }
        }
    }

    fn mount(&self) {
        let mut command = Command::new("mount");
        let dir = self.image.display();
        match self.kind {
            Kind::Ext4 | Kind::Xfs => command.args(["-o", "loop"]).arg(&self.image),
            Kind::Btrfs => command.args(["-o", "loop,subvol=@etcd"]).arg(&self.image),
            Kind::Bind => command.arg("--bind").arg(&self.image),
            Kind::Overlay => {
                let dirs = format!("lowerdir={dir}/lower,upperdir={dir}/upper,workdir={dir}/work");
                command.args(["-t", "overlay", "overlay", "-o", &dirs])
            }
        };
        run(command.arg(&self.at));
    }

    fn unmount(&self) {
        run(Command::new("umount").arg(&self.at));
    }

    fn assert_nothing_below(&self) {
        let names: Vec<_> = std::fs::read_dir(&self.at).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, [""; 0], "{:?}: nothing is written where the disk belongs", self.kind);
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // A test that failed may have left something running on it.
        let _ = Command::new("umount").args(["--lazy", "--quiet"]).arg(&self.at).output();
    }
}

/// A program that makes file systems.
fn tool(program: &str, args: &[&str], paths: &[&Path]) {
    let sbin = Path::new("/usr/sbin").join(program);
    let found = if sbin.exists() { sbin } else { PathBuf::from(program) };
    let output = Command::new(found).args(args).args(paths).output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}; run `make tools`"));
    assert!(output.status.success(), "{program}: {}", said(&output));
}

/// A single member with backups whose data dir is `below` of the mount point, or the mount point itself.
fn place_on(kind: Kind, below: &str) -> (Place, Disk) {
    let mut place = Place::with_store(VERSION);
    let disk = Disk::mounted(kind, place.path("disk"), &place.path("data"));
    if !below.is_empty() {
        let text = std::fs::read_to_string(place.file()).unwrap();
        let data = format!("data-dir: {}", place.data().display());
        place.raw = Some(text.replace(&data, &format!("{data}/{below}")));
    }
    (place, disk)
}

fn wait_stored(place: &Place, revision: u64) {
    wait_until("it is stored", LIMIT, || place.status()["backup"]["stored_revision"].as_u64() >= Some(revision));
}

/// The only member: the newest backup is older than what is on the disk.
fn waits_and_continues(kind: Kind, below: &str) {
    let (place, disk) = place_on(kind, below);
    let mut agent = place.start();
    place.put("k", "stored");
    wait_stored(&place, 2);
    place.put("k", "last");
    agent.stop();
    disk.unmount();
    disk.assert_nothing_below();
    // Commands that need to see the data say the same.
    for verb in ["reset", "accept-empty"] {
        let refused = place.quorate(&["data", verb, "--yes"]);
        assert_eq!(refused.status.code(), Some(3), "{kind:?}: {}", said(&refused));
        assert!(said(&refused).contains("Q1401"), "{}", said(&refused));
    }
    let mut agent = place.run(&[]);
    let status = place.wait_phase("waiting");
    assert_eq!(status["code"], "Q1401", "{kind:?}: {status:#}");
    let named = format!("file system at `{}` is not mounted", disk.at.display());
    assert!(status["cause"].as_str().unwrap().contains(&named), "{kind:?}: {status:#}");
    disk.assert_nothing_below();
    disk.mount();
    place.wait_ready(&mut agent);
    place.assert_holds("k", "last");
    agent.stop();
}

#[test]
fn waits_for_the_recorded_mount() {
    let layouts =
        [(Kind::Ext4, ""), (Kind::Xfs, "n1"), (Kind::Btrfs, "n1"), (Kind::Bind, ""), (Kind::Overlay, "deep/n1")];
    std::thread::scope(|scope| {
        for (kind, below) in layouts {
            scope.spawn(move || waits_and_continues(kind, below));
        }
    });
}

#[test]
fn restores_the_only_member_on_another_disk_once_that_is_accepted() {
    let (place, disk) = place_on(Kind::Ext4, "");
    let mut agent = place.start();
    place.put("k", "stored");
    wait_stored(&place, 2);
    agent.stop();
    disk.unmount();
    let second = Disk::mounted(Kind::Bind, place.path("second"), &disk.at);
    let refuses = || {
        let mut agent = place.run(&[]);
        let status = place.wait_phase("refused");
        assert_eq!(status["code"], "Q1402", "{status:#}");
        agent.stop();
        second.assert_nothing_below();
    };
    refuses();
    // The right disk is taken as it is, whatever was there meanwhile.
    second.unmount();
    disk.mount();
    let mut agent = place.start();
    place.assert_holds("k", "stored");
    agent.stop();
    disk.unmount();
    second.mount();
    assert_eq!(place.quorate(&["data", "accept-empty"]).status.code(), Some(64), "not without `--yes`");
    refuses();
    let accepted = place.quorate(&["data", "accept-empty", "--yes"]);
    assert!(accepted.status.success(), "{}", said(&accepted));
    let mut agent = place.start();
    place.assert_holds("k", "stored");
    assert!(place.status()["done"].to_string().contains("restored revision"), "{:#}", place.status());
    agent.stop();
    let nothing = place.quorate(&["data", "accept-empty", "--yes"]);
    assert_eq!(nothing.status.code(), Some(1), "{}", said(&nothing));
    // It was accepted for that disk and that start.
    second.unmount();
    let third = Disk::mounted(Kind::Bind, place.path("third"), &disk.at);
    let _agent = place.run(&[]);
    assert_eq!(place.wait_phase("refused")["code"], "Q1402");
    third.assert_nothing_below();
    // The disk that was accepted is taken as it is.
    drop(third);
    second.mount();
    let status = place.wait_phase("serving");
    assert_ne!(status["cluster_id"], serde_json::Value::Null, "{status:#}");
}

/// The data was on the root file system first, and moved to a disk of its own.
#[test]
fn a_marker_beside_a_mount_point_is_no_identity() {
    let place = Place::with_store(VERSION);
    let mut agent = place.start();
    place.put("k", "stored");
    wait_stored(&place, 2);
    agent.stop();
    let data = place.data();
    let beside = data.with_file_name(format!(".{}.quorate-marker", data.file_name().unwrap().to_str().unwrap()));
    assert!(beside.exists(), "the first marker is beside the data dir");
    let moved = data.with_extension("moved");
    mv(&data, &moved);
    let disk = Disk::mounted(Kind::Bind, place.path("disk"), &data);
    run(Command::new("cp").arg("-a").arg(moved.join(".")).arg(&disk.at));
    let mut agent = place.start();
    place.put("k", "last");
    agent.stop();
    assert!(data.join(".quorate-marker").exists() && beside.exists(), "the disk has one of its own");
    disk.unmount();
    let second = Disk::mounted(Kind::Bind, place.path("second"), &disk.at);
    let mut agent = place.run(&[]);
    let status = place.wait_phase("refused");
    assert_eq!(status["code"], "Q1402", "{status:#}");
    agent.stop();
    second.assert_nothing_below();
    second.unmount();
    disk.mount();
    let _agent = place.start();
    place.assert_holds("k", "last");
}

#[test]
fn keeps_a_member_of_three_until_its_disk_is_mounted_and_replaces_it_on_another() {
    let mut cluster = Declared::new(VERSION, 3, Wire::Clear);
    let disk = Disk::mounted(Kind::Ext4, cluster.path("disk"), &cluster.data(2));
    cluster.start_all();
    cluster.wait_serving();
    cluster.put(0, "k", "before");
    let ids = cluster.ids(2);
    cluster.stop(2);
    disk.unmount();
    cluster.put(0, "k", "meanwhile");
    cluster.start(2);
    let status = cluster.wait_status(2, "a wait for the mount", |status| status["code"] == "Q1401");
    assert_eq!(status["phase"], "waiting", "{status:#}");
    let list = cluster.ctl(0, &["member", "list"]);
    assert!(list.contains(&ids.1) && members_in(&list).len() == 3, "it stays a member: {list}");
    disk.assert_nothing_below();
    disk.mount();
    cluster.wait_phase(2, "serving");
    cluster.assert_all_hold("k", "meanwhile");
    assert_eq!(cluster.ids(2), ids, "the same member");
    cluster.stop(2);
    disk.unmount();
    let _empty = Disk::mounted(Kind::Bind, cluster.path("empty"), &cluster.data(2));
    cluster.start(2);
    let another = |status: &serde_json::Value| status["phase"] == "serving" && status["member_id"] != ids.1.as_str();
    cluster.wait_status(2, "a replacement", another);
    cluster.assert_all_hold("k", "meanwhile");
    wait_until("it votes", cluster_support::LIMIT, || {
        let list = members_in(&cluster.ctl(0, &["member", "list"]));
        list.len() == 3 && list.values().all(|learner| !learner)
    });
}

/// Where the data was is compared only while there is none: data that is there is started.
#[test]
fn starts_data_on_another_file_system_and_without_its_marker() {
    let (place, disk) = place_on(Kind::Bind, "");
    let mut agent = place.start();
    place.put("k", "last");
    agent.stop();
    let copy = place.path("copy");
    run(Command::new("cp").arg("-a").arg(&disk.at).arg(&copy));
    disk.unmount();
    disk.assert_nothing_below();
    // An operator copies the data into the mount point.
    run(Command::new("cp").arg("-a").arg(copy.join(".")).arg(&disk.at));
    let mut agent = place.start();
    place.assert_holds("k", "last");
    agent.stop();
    let names = |dir: &Path| std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect::<Vec<_>>();
    let parent = disk.at.parent().unwrap();
    let markers = [names(&disk.at), names(parent)].concat();
    let markers: Vec<PathBuf> =
        markers.into_iter().filter(|path| path.display().to_string().ends_with(".quorate-marker")).collect();
    assert!(!markers.is_empty(), "{:?}", names(&disk.at));
    std::fs::create_dir(place.path("markers")).unwrap();
    for (number, marker) in markers.iter().enumerate() {
        mv(marker, &place.path(&format!("markers/{number}")));
    }
    let mut agent = place.start();
    place.assert_holds("k", "last");
    agent.stop();
}

#[test]
fn a_recovery_counts_a_node_whose_disk_is_not_mounted_as_unknown() {
    let mut cluster = Declared::new(VERSION, 3, Wire::Clear);
    cluster.file_as("cluster.yaml", &cluster.text().replace("agent:\n", "agent:\n  ready-timeout: 2s\n"));
    let disk = Disk::mounted(Kind::Bind, cluster.path("disk"), &cluster.data(1));
    cluster.start_all();
    cluster.wait_serving();
    cluster.put(0, "k", "last");
    let ids = cluster.ids(1);
    cluster.stop(1);
    cluster.power_off(2);
    disk.unmount();
    cluster.start(1);
    cluster.wait_status(1, "a wait for the mount", |status| status["code"] == "Q1401");
    cluster.wait_phase(0, "waiting");
    let file = cluster.path("cluster.yaml").display().to_string();
    let output = cluster.quorate(&["cluster", "recover", "--config", &file, "--fenced", "n3", "--yes"]);
    assert_eq!(output.status.code(), Some(5), "{}", said(&output));
    assert!(said(&output).contains("Q1071") && said(&output).contains("--pass-over n2"), "{}", said(&output));
    disk.assert_nothing_below();
    disk.mount();
    for at in [0, 1] {
        cluster.wait_phase(at, "serving");
    }
    assert_eq!(cluster.ids(1), ids, "the same member of the same cluster");
    cluster.put(1, "k", "after");
}

/// An order that was taken before the machine booted without its disk.
#[test]
fn an_ordered_recovery_waits_for_the_recorded_mount() {
    let (place, disk) = place_on(Kind::Bind, "n1");
    let mut agent = place.start();
    place.put("k", "stored");
    wait_stored(&place, 2);
    place.put("k", "last");
    agent.stop();
    disk.unmount();
    let order = serde_json::json!({
        "order": {"generation": 1, "nonce": 7, "role": {"begin": {"backup": {"revision": 2}}}, "asked_by": "an operator"},
        "progress": {"state": "ordered"},
    });
    let file = std::fs::File::create(place.state().join("recovery.json"));
    file.and_then(|mut file| file.write_all(order.to_string().as_bytes())).unwrap();
    let _agent = place.run(&[]);
    let status = place.wait_phase("waiting");
    assert_eq!(status["code"], "Q1401", "{status:#}");
    disk.assert_nothing_below();
    disk.mount();
    let status = place.wait_phase("serving");
    assert!(status["done"].to_string().contains("recovered revision"), "{status:#}");
    assert_eq!(renamed(&disk.at.join("n1")), 1, "the data is kept on its disk");
}

/// What two isolated recoveries leave at the node that lost, on a disk that is not mounted.
#[test]
fn a_node_whose_disk_is_not_mounted_is_not_resolved() {
    let mut cluster = Declared::new(VERSION, 2, Wire::Clear);
    let disk = Disk::mounted(Kind::Bind, cluster.path("disk"), &cluster.data(1));
    cluster.start_all();
    cluster.wait_serving();
    cluster.stop(0);
    cluster.stop(1);
    let ledger = cluster.state(1).join("ledger");
    let mut lost = Ledger::decode(&std::fs::read(&ledger).unwrap()).unwrap();
    lost.generation = 1;
    lost.outdated_by = Some(Generation { number: 1, cluster: Some(ClusterId(1)) });
    std::fs::File::create(&ledger).and_then(|mut file| file.write_all(&lost.encode())).unwrap();
    disk.unmount();
    cluster.start(1);
    cluster.wait_status(1, "a halt", |status| status["code"].is_string());
    let file = cluster.path("cluster.yaml").display().to_string();
    let resolve = ["cluster", "resolve", "--config", &file, "--yes"];
    let refused = cluster.quorate(&resolve);
    assert_eq!(refused.status.code(), Some(3), "{}", said(&refused));
    assert!(said(&refused).contains("Q1401") && said(&refused).contains("n2"), "{}", said(&refused));
    let kept = Ledger::decode(&std::fs::read(&ledger).unwrap()).unwrap();
    assert_eq!((kept.cluster(), kept.places.is_some()), (lost.cluster(), true), "the node still has its ledger");
    disk.assert_nothing_below();
    disk.mount();
    let resolved = cluster.quorate(&resolve);
    assert!(resolved.status.success(), "{}", said(&resolved));
    wait_until("the node to give its data up", LIMIT, || {
        // The old one is renamed before there is another.
        let read = std::fs::read(&ledger);
        read.map_or(true, |bytes| Ledger::decode(&bytes).is_ok_and(|ledger| ledger.cluster().is_none()))
    });
}

/// Gives a member a WAL dir of its own in the cluster file.
fn with_wal(text: &str, data: &Path, wal: &Path) -> String {
    let before = format!("data-dir: {}", data.display());
    assert!(text.contains(&before));
    // In a flow mapping and in a block alike.
    let more = if text.contains(&format!("{before},")) { ", " } else { "\n    " };
    // etcd makes its WAL beside its place: that takes a parent of its own in a box.
    text.replace(&before, &format!("{before}{more}wal-dir: {}", wal.display())) + "box: {level: off}\n"
}

fn mv(from: &Path, to: &Path) {
    run(Command::new("mv").arg(from).arg(to));
}

fn renamed(dir: &Path) -> usize {
    let name = format!("{}.replaced-", dir.file_name().unwrap().to_str().unwrap());
    let names = std::fs::read_dir(dir.parent().unwrap()).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter(|found| found.to_str().unwrap().starts_with(&name)).count()
}

#[test]
fn refuses_half_of_the_only_member() {
    let mut place = Place::with_store(VERSION);
    let (data, wal) = (place.data(), place.path("logs/wal"));
    let disk = Disk::mounted(Kind::Bind, place.path("disk"), &place.path("logs"));
    place.raw = Some(with_wal(&std::fs::read_to_string(place.file()).unwrap(), &data, &wal));
    let mut agent = place.start();
    place.put("k", "last");
    wait_stored(&place, 2);
    agent.stop();
    // The file system of the WAL is not mounted.
    disk.unmount();
    let mut agent = place.run(&[]);
    assert_eq!(place.wait_phase("waiting")["code"], "Q1401");
    disk.assert_nothing_below();
    disk.mount();
    place.wait_ready(&mut agent);
    agent.stop();
    for (lost, left) in [(&wal, &data), (&data, &wal)] {
        let away = lost.with_extension("away");
        mv(lost, &away);
        let mut agent = place.run(&[]);
        let status = place.wait_phase("refused");
        assert_eq!(status["code"], "Q1403", "{status:#}");
        let cause = status["cause"].as_str().unwrap();
        assert!(cause.contains(&format!("`{}` does", left.display())), "{cause}");
        assert_eq!((renamed(&data), renamed(&wal)), (0, 0), "nothing is renamed");
        mv(&away, lost);
        place.wait_ready(&mut agent);
        place.assert_holds("k", "last");
        agent.stop();
    }
}

#[test]
fn replaces_a_member_of_three_that_lost_half_of_its_data() {
    let mut cluster = Declared::new(VERSION, 3, Wire::Clear);
    let (data, wal) = (cluster.data(2), cluster.path("logs-n3/wal"));
    std::fs::create_dir(cluster.path("logs-n3")).unwrap();
    let text = with_wal(&cluster.text(), &data, &wal);
    cluster.file_as("cluster.yaml", &text);
    cluster.start_all();
    cluster.wait_serving();
    cluster.put(0, "k", "v");
    for (round, lost) in [&data, &wal].into_iter().enumerate() {
        let before = cluster.ids(2);
        cluster.stop(2);
        mv(lost, &lost.with_extension("away"));
        cluster.start(2);
        let another =
            |status: &serde_json::Value| status["phase"] == "serving" && status["member_id"] != before.1.as_str();
        cluster.wait_status(2, "a replacement", another);
        cluster.assert_all_hold("k", "v");
        assert_eq!(renamed(&wal), 1, "round {round}: the WAL that was left is kept");
        assert_eq!(renamed(&data), round, "round {round}: the data that was left is kept");
        wait_until("it votes", cluster_support::LIMIT, || {
            let list = members_in(&cluster.ctl(0, &["member", "list"]));
            list.len() == 3 && list.values().all(|learner| !learner)
        });
    }
    assert!(wal.exists() && data.join("member/snap/db").exists());
}
