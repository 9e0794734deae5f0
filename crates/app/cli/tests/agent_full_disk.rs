//! A disk that is full: at the start, while etcd serves, and while a backup is restored. Nothing is lost, it is said, and the
//! member comes back by itself when there is room.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod agent_support;

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use agent_support::Place;
use quorate_testkit::{Running, run, wait_until};

/// Waits between starts grow while there is no room, so that the last one may take a while.
const LIMIT: Duration = Duration::from_secs(120);

/// A member whose whole machine is a small disk: data, state and logs.
struct Small {
    place: Place,
}

impl Small {
    fn new(version: &str, mebibytes: u32) -> Small {
        let small = Small { place: Place::new(version) };
        run(Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={mebibytes}m"), "quorate-test"])
            .arg(small.place.root.path()));
        small
    }

    /// Takes all that is free but for so much.
    fn fill_but(&self, kibibytes: u64) {
        let disk = rustix::fs::statvfs(self.place.root.path()).unwrap();
        let bytes = (disk.f_bavail * disk.f_frsize).saturating_sub(kibibytes << 10);
        let mut ballast = std::fs::File::create(self.place.path("ballast")).unwrap();
        let piece = vec![0; 1 << 20];
        let mut left = bytes;
        while left > 0 {
            let next = left.min(piece.len() as u64);
            // Others write too, so there may be less by now.
            if ballast.write_all(&piece[..usize::try_from(next).unwrap()]).is_err() {
                break;
            }
            left -= next;
        }
    }

    fn free(&self) {
        run(Command::new("rm").arg(self.place.path("ballast")));
    }

    /// Waits until the agent says that there is no room, on its page and in its log.
    fn wait_full(&self, agent: &mut Running) {
        wait_until("it is said that the disk is full", LIMIT, || {
            assert!(agent.ended().is_none(), "{}", agent.log());
            self.place.status()["code"] == "Q0005"
        });
        assert!(agent.log().contains("Q0005"), "{}", agent.log());
        assert!(!self.place.is_ready());
    }

    fn wait_ready(&self, agent: &mut Running) {
        wait_until("it serves again", LIMIT, || {
            assert!(agent.ended().is_none(), "{}", agent.log());
            self.place.is_ready()
        });
    }

    /// Puts a value of so many bytes; whether etcd took it.
    fn put(&self, key: &str, bytes: usize) -> bool {
        let url = self.place.seat.client_url();
        let mut command = self.place.tools.ctl_command(&url, &["put", key]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(&vec![b'x'; bytes]).unwrap();
        child.wait().unwrap().success()
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = self.place.quorate(&["stop"]);
        let _ = Command::new("umount").arg("-l").arg(self.place.root.path()).status();
    }
}

#[test]
fn a_member_that_finds_no_room_waits_for_it() {
    for version in ["3.4.23", "sid"] {
        let small = Small::new(version, 400);
        small.place.file();
        // Enough to remember a promise, and nothing for data.
        small.fill_but(8);
        let mut agent = small.place.run(&[]);
        small.wait_full(&mut agent);
        small.free();
        small.wait_ready(&mut agent);
        small.place.put("k", "v");
        assert!(agent.stop().success(), "{}", agent.log());
    }
}

#[test]
fn an_etcd_that_runs_out_of_room_comes_back_with_all_it_took() {
    for version in ["3.4.23", "sid"] {
        let small = Small::new(version, 400);
        let mut agent = small.place.start();
        small.place.put("k", "v");
        small.fill_but(6 << 10);
        let mut taken = Vec::new();
        for n in 0..60 {
            let key = format!("large/{n:02}");
            if !small.put(&key, 500_000) {
                break;
            }
            taken.push(key);
        }
        assert!(taken.len() < 60, "{version}: there was room for everything");
        small.wait_full(&mut agent);
        small.free();
        small.wait_ready(&mut agent);
        small.place.assert_holds("k", "v");
        let keys = small.place.ctl(&["get", "--prefix", "--keys-only", "large/"]);
        for key in &taken {
            assert!(keys.contains(key.as_str()), "{version}: {key} was taken and is gone: {keys}");
        }
        assert!(small.put("after", 500_000));
        assert!(agent.stop().success(), "{}", agent.log());
    }
}

#[test]
fn a_restore_that_finds_no_room_changes_nothing_and_is_done_when_there_is() {
    let store = tempfile::tempdir().unwrap();
    let mut small = Small::new("sid", 400);
    small.place.more = format!("backup: {{store: \"file://{}\", delta-period: 200ms}}\n", store.path().display());
    let mut agent = small.place.start();
    for n in 0..20 {
        assert!(small.put(&format!("large/{n:02}"), 500_000));
    }
    wait_until("stored", LIMIT, || small.place.status()["backup"]["stored_revision"].as_u64().unwrap_or(0) >= 21);
    assert!(agent.stop().success(), "{}", agent.log());
    run(Command::new("rm").arg("-r").arg(small.place.data()));
    small.fill_but(4 << 10);
    let mut agent = small.place.run(&[]);
    small.wait_full(&mut agent);
    assert!(!small.place.data().join("member").exists());
    assert_eq!(left_over(&small.place.data()), [] as [String; 0]);
    small.free();
    small.wait_ready(&mut agent);
    let keys = small.place.ctl(&["get", "--prefix", "--keys-only", "large/"]);
    assert_eq!(keys.matches("large/").count(), 20, "{keys}");
    assert!(agent.stop().success(), "{}", agent.log());
}

/// What a restore that gave up left behind.
fn left_over(dir: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(dir) else { return Vec::new() };
    entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect()
}
