//! Bad days of a group: locks that are lost, a store that is away, nodes that never come, commands that come twice, wrong
//! passwords, slots that are lost and disks that are full.

#![expect(clippy::disallowed_methods, clippy::unwrap_used, reason = "scenery that is thrown away")]

mod pg_support;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use pg_support::{Group, Load, POOLER, Setup, Store, WRITE, all_arrive, count, eventually, once, runtime, said};
use quorate_postgres::Secret;
use quorate_postgres::group::same_everywhere;
use quorate_postgres::sql::{Client, Limits};
use rustix::process::{Pid, Signal, kill_process};

const EVENT: &str = "INSERT INTO rdpg.events (host, key, msg) VALUES ('h', 'k', 'm')";
const EVENTS: &str = "SELECT count(*) FROM rdpg.events WHERE key = 'k'";

#[test]
fn who_is_missing_is_said_and_a_lost_lock_makes_no_second_leader() {
    let mut group = Group::new("leader-timeout: 60s");
    // One never comes: whoever asks is told who, and is not kept waiting for ever.
    group.start(0, &["--halt-before", "lead"]);
    group.start(1, &["--halt-before", "take-lock"]);
    group.wait("it waits for the one that is missing", |group| group.says(0, "waiting", "\"`n3`\""));
    let asked = group.pg(&["bootstrap", "--name", "n1", "--wait", "1s"]);
    assert_eq!(asked.status.code(), Some(3), "{asked:?}");
    assert!(said(&asked).contains("waiting for: `n3`"), "{asked:?}");
    let asked = group.pg(&["status"]);
    assert_eq!(asked.status.code(), Some(3), "{asked:?}");
    assert!(said(&asked).contains("the agent of `n3` does not answer"), "{asked:?}");

    // The holder of the lock loses it before it leads, without noticing that it stands still.
    group.start(2, &["--halt-before", "take-lock"]);
    group.wait("n1 has the lock", |group| group.log(0).contains("halted before this step"));
    let Store::Etcd(store) = &group.store else { panic!("no etcd") };
    let keys = store.ctl(&["get", "--prefix", "--keys-only", "quorate/pg/t/"]);
    let lock = keys.lines().find(|key| key.ends_with("/bootstrap")).unwrap_or_else(|| panic!("no lock: {keys}"));
    assert_eq!(store.ctl(&["del", lock]).trim(), "1");
    // What it tries now depends on the lock, and is refused; it is back before the same step.
    group.signal(0, Signal::USR2);
    group.wait("n1 is back", |group| group.log(0).matches("halted before this step").count() == 2);
    assert_eq!(group.leader(), None);
    // Lost once more, and this time somebody else is faster.
    store.ctl(&["del", lock]);
    for at in [1, 2] {
        group.kill_agent(at);
        group.start(at, &[]);
    }
    group.wait("somebody else leads", |group| group.leader().is_some_and(|(at, _)| at != 0));
    group.signal(0, Signal::USR2);
    group.wait_ready();
    let (leader, epoch) = group.leader().unwrap();
    assert!(leader != 0 && epoch == 1, "n{} leads epoch {epoch}", leader + 1);
    group.assert_one_group();
}

#[test]
fn commands_that_come_twice_and_a_store_that_goes_and_comes() {
    let group = Group::new("leader-timeout: 10s");
    let Store::Etcd(store) = &group.store else { panic!("no etcd") };
    let etcd = Pid::from_raw(i32::try_from(store.pid()).unwrap()).unwrap();
    // The password is not there yet: it is said which file, and the rest goes on when it is.
    let password = group.path("app.password");
    std::fs::rename(&password, group.path("later")).unwrap();
    // Each command twice, at once, while the store does not answer.
    kill_process(etcd, Signal::STOP).unwrap();
    let twice = |group: &Group, at: usize| {
        let name = group.nodes[at].name.clone();
        let begin = |_| {
            group
                .command(&["pg", "bootstrap", "--name", &name, "--wait", "110s"])
                .stdout(Stdio::null())
                .spawn()
                .unwrap()
        };
        (0..2).map(begin).collect::<Vec<_>>()
    };
    let mut commands: Vec<_> = (0..3).flat_map(|at| twice(&group, at)).collect();
    group.wait("the file is named", |group| (0..3).all(|at| group.says(at, "fault", "app.password")));
    std::fs::rename(group.path("later"), &password).unwrap();
    group.wait("the agents wait for the store", |group| (0..3).all(|at| group.says(at, "waiting", "the store")));
    kill_process(etcd, Signal::CONT).unwrap();
    for command in &mut commands {
        let ended = command.wait().unwrap();
        assert!(ended.success(), "{ended}: {:?}", group.overview());
    }
    group.assert_one_group();
    let runtime = runtime();
    runtime.block_on(async {
        eventually(&group.door(0, WRITE), EVENT).await;
        // A wrong password is refused at once, and as that.
        let mut wrong = group.door(0, POOLER);
        wrong.password = Some(Secret::new("guessed".to_owned()));
        let refused = once(&wrong, "SELECT 1").await.unwrap_err();
        assert!(refused.contains("authentication failed") || refused.contains("28P01"), "{refused}");
    });

    // The store goes away: nobody may write after the lease, reads go on, and it is said what is waited for.
    let writer = group.writer().unwrap();
    kill_process(etcd, Signal::STOP).unwrap();
    group.wait("the write master steps back", |group| group.says(writer, "door", "reader"));
    runtime.block_on(async {
        let refused = once(&group.door(writer, POOLER), EVENT).await.unwrap_err();
        assert!(refused.contains("25006"), "{refused}");
        eventually(&group.door(writer, POOLER), "SELECT count(*) FROM rdpg.events").await;
    });
    group.wait("it is said", |group| (0..3).all(|at| group.says(at, "waiting", "the store")));
    kill_process(etcd, Signal::CONT).unwrap();
    group.wait_ready();
    runtime.block_on(eventually(&group.door(0, WRITE), EVENT));
    group.assert_one_group();
    for at in 0..3 {
        let name = group.nodes[at].name.clone();
        assert!(group.pg(&["stop", "--name", &name]).status.success());
    }
}

/// Has a server drop the log that nobody who is here needs.
async fn forget_log(client: &Client, away: u16) {
    let begun = std::time::Instant::now();
    let lost = format!(
        "SELECT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name LIKE 'mesh_n{away}_from%' AND wal_status = 'lost')"
    );
    while !client.value::<bool>(&lost, &[]).await.unwrap() {
        assert!(begun.elapsed() < pg_support::LIMIT, "the slot of the node that is away is not lost");
        // The next segment, and a mark from which those who are here may begin again.
        client.batch("SELECT pg_log_standby_snapshot(); SELECT pg_switch_wal()").await.unwrap();
        let behind = format!(
            "SELECT count(*) FROM pg_replication_slots WHERE slot_name NOT LIKE 'mesh_n{away}_from%' AND wal_status <> 'lost' \
             AND pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn) > 16777216"
        );
        while client.value::<i64>(&behind, &[]).await.unwrap() > 0 {
            assert!(begun.elapsed() < pg_support::LIMIT, "those who are here do not follow");
            let mark = "SELECT pg_log_standby_snapshot(); SELECT pg_logical_emit_message(true, 'test', 'x')";
            client.batch(mark).await.unwrap();
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        client.batch("CHECKPOINT").await.unwrap();
    }
}

#[test]
fn a_node_whose_slot_is_lost_says_so_and_joins_anew() {
    let mut group = Group::new("settings: {max_slot_wal_keep_size: 48MB, max_wal_size: 64MB}");
    group.start_all();
    group.wait_ready();
    let runtime = runtime();
    let writer = group.writer().unwrap();
    let away = (writer + 1) % 3;
    let (name, other) = (group.nodes[away].name.clone(), (writer + 2) % 3);
    group.kill_node(away);
    runtime.block_on(async {
        eventually(&group.door(other, WRITE), EVENT).await;
        let client = Client::connect(&group.inside(writer), Limits::default()).await.unwrap();
        forget_log(&client, u16::try_from(away + 1).unwrap()).await;
    });
    group.wait("the write master tells", |group| group.says(writer, "troubles", "Q1275"));
    // Back, it does not pretend: it lacks rows, so nobody is led to it, and it never becomes the write master.
    group.start(away, &[]);
    group.wait("it tells", |group| group.says(away, "fault", "Q1275"));
    let url = format!("http://127.0.0.1:{}/reader", group.nodes[away].ports[2]);
    let answer = runtime.block_on(async { reqwest::get(url).await.unwrap().status() });
    assert_eq!(answer.as_u16(), 503, "it takes no reads");
    let status = group.pg(&["status"]);
    assert!(status.status.code() == Some(3) && said(&status).contains("Q1275"), "{status:?}");

    // It does not forget that while nobody can tell: the one that lost its slot is away, and its own agent is another one.
    group.kill_node(writer);
    group.kill_agent(away);
    group.start(away, &[]);
    group.wait("it tells still", |group| group.says(away, "fault", "Q1275"));
    group.start(writer, &[]);
    group.wait("the other two are well", |group| [writer, other].iter().all(|at| group.is_ready(*at)));
    group.wait("somebody writes", |group| group.writer().is_some());

    // Let go, it joins anew with nothing.
    let gone = group.pg(&["detach", &name]);
    assert!(gone.status.success(), "{gone:?}");
    group.kill_agent(away);
    assert!(group.pg(&["stop", "--name", &name]).status.success());
    std::fs::rename(group.data_dir(away), group.path("old-data")).unwrap();
    group.start(away, &[]);
    group.wait("it is told to join", |group| group.says(away, "fault", "Q1303"));
    let joined = group.pg(&["join", &name]);
    assert!(joined.status.success() && said(&joined).contains("all rows are the same"), "{joined:?}");
    group.wait_ready();
    group.assert_one_group();
    assert_eq!(runtime.block_on(count(&group.inside(away), EVENTS)), 1);
    group.wait("all is well", |group| group.pg(&["status"]).status.success());
}

/// A disk of a few megabytes.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn new(megabytes: u32) -> SmallDisk {
        let dir = tempfile::tempdir().unwrap();
        let options = format!("size={megabytes}m,mode=0755");
        quorate_testkit::run(Command::new("mount").args(["-t", "tmpfs", "-o", &options, "none"]).arg(dir.path()));
        SmallDisk(dir)
    }

    fn filler(&self) -> PathBuf {
        self.0.path().join("filler")
    }

    /// Leaves nothing.
    fn fill(&self) {
        let mut file = std::fs::File::create(self.filler()).unwrap();
        let block = vec![0_u8; 64 << 10];
        while std::io::Write::write_all(&mut file, &block).is_ok() {}
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(self.0.path()).status();
    }
}

#[test]
fn a_full_disk_is_told_and_what_was_missed_comes_when_there_is_room() {
    let disk = SmallDisk::new(300);
    let mut group = Group::with(Setup { third: Some(disk.path()), ..Setup::default() });
    group.start_all();
    group.wait_ready();
    let runtime = runtime();
    let third = group.nodes[2].name.clone();
    if group.writer() == Some(2) {
        group.wait("another writes", |group| group.pg(&["switchover", "--to", "n1"]).status.success());
    }
    disk.fill();
    group.wait("it is told", |group| {
        let status = group.overview()["nodes"][2]["status"].clone();
        status["troubles"].to_string().contains("is full")
    });
    let status = group.pg(&["status"]);
    assert!(status.status.code() == Some(3), "{third}: {status:?}");
    // The others go on.
    let many =
        "INSERT INTO rdpg.events (host, key, msg) SELECT 'h', 'k', repeat('m', 1000) FROM generate_series(1, 20000)";
    runtime.block_on(async {
        eventually(&group.door(0, WRITE), many).await;
        assert_eq!(count(&group.inside(group.writer().unwrap()), EVENTS).await, 20_000);
    });
    std::fs::remove_file(disk.filler()).unwrap();
    group.wait_ready();
    runtime.block_on(async {
        same_everywhere(&group.seats().await, pg_support::LIMIT).await.unwrap();
        assert_eq!(count(&group.inside(2), EVENTS).await, 20_000);
    });
    group.wait("all is well", |group| group.pg(&["status"]).status.success());
}

#[test]
fn the_write_masters_full_disk_loses_nothing_that_was_acknowledged() {
    let disk = SmallDisk::new(300);
    let mut group = Group::with(Setup { third: Some(disk.path()), ..Setup::default() });
    group.start_all();
    group.wait_ready();
    let runtime = runtime();
    if group.writer() != Some(2) {
        group.wait("the small one writes", |group| group.pg(&["switchover", "--to", "n3"]).status.success());
    }
    group.wait("the small one writes", |group| group.writer() == Some(2));
    let load = Load::begin(&runtime, group.door(0, WRITE), false, 1_000_000);
    disk.fill();
    group.wait("it is told", |group| group.says(2, "troubles", "is full"));
    let status = group.pg(&["status"]);
    assert!(status.status.code() == Some(3) && said(&status).contains("is full"), "{status:?}");
    // Until it can take no more: a write is refused as that, or the server ends and another node takes the place.
    let many =
        "INSERT INTO rdpg.events (host, key, msg) SELECT 'h', 'k', repeat('m', 1000) FROM generate_series(1, 5000)";
    let mut taken = 0;
    group.wait("no more can be taken there", |group| {
        if group.writer() != Some(2) {
            return true;
        }
        match runtime.block_on(once(&group.door(2, POOLER), many)) {
            Ok(()) => {
                taken += 5000;
                false
            }
            Err(why) => why.contains("53100") || why.contains("No space left"),
        }
    });
    // Whoever reads goes on elsewhere.
    runtime.block_on(eventually(&group.door(0, POOLER), "SELECT count(*) FROM rdpg.events"));
    std::fs::remove_file(disk.filler()).unwrap();
    group.wait_ready();
    group.wait("somebody writes", |group| group.writer().is_some());
    runtime.block_on(eventually(&group.door(0, WRITE), EVENT));
    let (rows, _, _) = load.end(&runtime);
    assert!(!rows.is_empty());
    all_arrive(&group, &runtime, &rows);
    runtime.block_on(async {
        same_everywhere(&group.seats().await, pg_support::LIMIT).await.unwrap();
        assert!(count(&group.inside(1), EVENTS).await > taken, "each that was acknowledged");
    });
    group.wait("all is well", |group| group.pg(&["status"]).status.success());
}
