//! `inspect` and `verify` beside a real etcd: they tell that it runs, keep their hands off, and do not stand in its way.

#![expect(clippy::unwrap_used, reason = "what goes wrong in a test's helper fails the test")]

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use quorate_etcd::datadir::{self, Found, OpenDir};
use quorate_etcd::init::{Request, Target, ensure_member};
use quorate_etcd_formats::founding::{Form, Founding};
use quorate_etcd_formats::inspect::{self, Inspection};
use quorate_etcd_formats::verify::{self, Mode, Report};
use quorate_faults::{Code, Severity};
use quorate_host::durable::RealDisk;
use quorate_testkit::{Launch, Seat, Server, VERSIONS, etcd, wait_until};
use tempfile::TempDir;

/// A member alone in its cluster, founded and not started.
struct Member {
    _root: TempDir,
    seat: Seat,
    dir: PathBuf,
    founding: Founding,
}

impl Member {
    fn found() -> Member {
        let root = tempfile::tempdir().unwrap();
        let (seat, dir) = (Seat::new("n1"), root.path().join("data"));
        let founding = Founding::new(vec![(seat.name.clone(), vec![seat.peer_url()])], "running").unwrap();
        let request = Request { founding: &founding, local: &founding.members[0], form: Form::Any };
        ensure_member(&RealDisk, &Target::new(&dir, None).unwrap(), request).unwrap();
        Member { _root: root, seat, dir, founding }
    }

    fn start(&self, version: &str) -> Server {
        Server::start(&etcd(version), &self.seat, &self.dir)
    }

    fn open(&self) -> OpenDir {
        let Found::DataDir(dir) = datadir::open(&self.dir, None).unwrap() else { panic!("a data dir") };
        dir
    }

    fn verify(&self, mode: Mode) -> Report {
        verify_open(&self.open(), mode)
    }

    fn inspect(&self) -> Inspection {
        let progress = AtomicU64::new(0);
        inspect::data_dir(
            &self.open().view(),
            inspect::Settings { hash: None, count: true, workers: 2, progress: &progress },
        )
    }
}

fn verify_open(dir: &OpenDir, mode: Mode) -> Report {
    verify::data_dir(&dir.view(), &verify::Settings { mode, workers: 2, progress: &AtomicU64::new(0) })
}

/// Bytes and times of every file.
type Seen = BTreeMap<PathBuf, (Vec<u8>, i64, i64, u64)>;

fn see(dir: &Path) -> Seen {
    let folders = ["", "member", "member/snap", "member/wal"].map(|folder| dir.join(folder));
    let files = folders.iter().flat_map(|folder| std::fs::read_dir(folder).unwrap()).map(|file| file.unwrap().path());
    let look = |path: &PathBuf| {
        let meta = path.symlink_metadata().unwrap();
        let mut bytes = if meta.is_file() { std::fs::read(path).unwrap() } else { Vec::new() };
        // etcd prepares tens of megabytes of zeros.
        bytes.truncate(bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1));
        (bytes, meta.mtime(), meta.mtime_nsec(), meta.len())
    };
    files.chain([dir.to_owned()]).map(|path| (path.clone(), look(&path))).collect()
}

fn while_etcd_runs_it_is_told_and_left_alone(version: &str) {
    let member = Member::found();
    let server = member.start(version);
    for number in 0..20 {
        server.ctl(&["put", &format!("key-{number}"), "value"]);
    }
    let before = std::cell::RefCell::new(Seen::new());
    wait_until("etcd to write nothing for a while", Duration::from_secs(20), || {
        let now = see(&member.dir);
        let still = *before.borrow() == now;
        *before.borrow_mut() = now;
        if !still {
            std::thread::sleep(Duration::from_millis(500));
        }
        still
    });

    let found = member.inspect();
    assert_eq!((found.running, found.running_pid), (Some(true), Some(server.pid())), "{version}");
    assert_eq!(found.cluster_id, Some(member.founding.cluster_id), "{version}");
    assert_eq!(found.member_id, Some(member.founding.members[0].id), "{version}");
    let last = found.wal.as_ref().and_then(|wal| wal.last_index);
    assert!(last.is_some_and(|last| last > 20), "{version}: {last:?}");
    assert!(found.hard_state.as_ref().is_some_and(|state| state.commit > 20), "{version}");
    assert!(found.database.used_bytes.is_some() && found.database.transaction.is_some(), "{version}");
    // What changes underfoot is not shown at all.
    assert!(found.database.revision.is_none() && found.database.hash.is_none(), "{version}");
    assert_eq!(found.unread, Vec::<String>::new(), "{version}");

    for mode in [Mode::Sanity, Mode::Full] {
        let report = member.verify(mode);
        let told: Vec<_> = report.findings.iter().map(|finding| (finding.code, finding.severity)).collect();
        assert_eq!(told, [(Code::DataInUse, Severity::Error)], "{version}");
        assert!(report.findings[0].what.contains(&format!("(process {})", server.pid())), "{:?}", report.findings);
    }
    assert!(*before.borrow() == see(&member.dir), "{version}: somebody wrote");

    // etcd logs this change and refuses it when it applies it.
    let taken = format!("--peer-urls={}", member.seat.peer_url());
    assert!(server.try_ctl(&["member", "add", "n2", &taken]).is_err(), "{version}");
    server.ctl(&["put", "last", "value"]);
    server.stop();
    after_etcd_has_stopped_all_is_told(version, &member);
}

fn after_etcd_has_stopped_all_is_told(version: &str, member: &Member) {
    let before = see(&member.dir);
    let found = member.inspect();
    assert_eq!((found.running, found.running_pid), (Some(false), None), "{version}");
    assert_eq!(found.member_id, Some(member.founding.members[0].id), "{version}");
    assert_eq!(found.database.live_keys, Some(21), "{version}");
    assert_eq!(found.database.revision, Some(22), "{version}");
    for mode in [Mode::Sanity, Mode::Full] {
        let findings = member.verify(mode).findings;
        assert!(findings.iter().all(|finding| finding.severity == Severity::Info), "{version} {mode:?}: {findings:#?}");
    }
    assert!(before == see(&member.dir), "{version}: somebody wrote");
}

fn a_check_and_etcd_take_turns(version: &str) {
    let member = Member::found();
    let (first, second) = (member.open(), member.open());
    for open in [&first, &second] {
        assert!(verify_open(open, Mode::Full).findings.is_empty(), "{version}");
    }
    drop(first);
    let mut server = Launch::new(&etcd(version), &member.seat, &member.dir).spawn();
    // The second still reads, so etcd waits; it neither fails nor works beside it.
    std::thread::sleep(Duration::from_millis(1000));
    assert!(server.running.ended().is_none(), "{version}: {}", server.running.log_tail(20));
    assert!(server.try_ctl(&["--command-timeout=300ms", "get", "key"]).is_err(), "{version}");
    assert!(verify_open(&second, Mode::Full).findings.is_empty(), "{version}");
    drop(second);
    server.wait_ready();
    server.ctl(&["put", "key", "value"]);
    assert_eq!(server.get("key").as_deref(), Some("value"), "{version}");
}

#[test]
fn while_3_4_runs_it_is_told_and_left_alone() {
    while_etcd_runs_it_is_told_and_left_alone(VERSIONS[0]);
}

#[test]
fn while_3_5_runs_it_is_told_and_left_alone() {
    while_etcd_runs_it_is_told_and_left_alone(VERSIONS[1]);
}

#[test]
fn while_the_newest_runs_it_is_told_and_left_alone() {
    while_etcd_runs_it_is_told_and_left_alone(VERSIONS[2]);
}

#[test]
fn two_checks_go_on_at_once_and_etcd_starts_after_them() {
    for version in VERSIONS {
        a_check_and_etcd_take_turns(version);
    }
}
