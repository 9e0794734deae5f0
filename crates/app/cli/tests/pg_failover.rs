//! The write master of a group: lost, moved, cut off. No insert is lost, and there is never a second one.

#![expect(clippy::print_stderr, clippy::unwrap_used, reason = "it says how long it took, and where it cannot go on")]

mod pg_support;

use std::time::{Duration, Instant};

use pg_support::{Group, LIMIT, Load, POOLER, Setup, WRITE, all_arrive, count, eventually, once, runtime};
use quorate_agent::pg::fence::{FenceSpec, Until, ensure_deadline};
use quorate_host::sandbox::observe_machine;
use quorate_plan::boxes::{BoxSpec, Level, plan_box};
use quorate_testkit::Running;
use rustix::process::{Pid, Signal, kill_process};

#[test]
fn the_write_master_is_lost_and_moved_and_no_insert_is_lost() {
    story(18);
}

#[test]
fn the_same_with_postgresql_17() {
    story(17);
}

/// A process of this machine of which this holds, by its command line. Servers in boxes know themselves by other numbers.
fn process_that(holds: impl Fn(i32, &[u8]) -> bool) -> Option<Pid> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let mut pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let pid = pids.find(|pid| holds(*pid, &std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default()));
    pid.and_then(Pid::from_raw)
}

/// The process that has these very words among its arguments.
fn process_with(wanted: &[&str]) -> Option<Pid> {
    process_that(|_, line| {
        let words: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
        wanted.iter().all(|one| words.contains(&one.as_bytes()))
    })
}

/// The process of a node's server that writes its log.
fn walwriter(group: &Group, at: usize) -> Option<Pid> {
    let parent = format!("PPid:\t{}\n", postmaster(group, at)?.as_raw_nonzero());
    process_that(|pid, line| {
        String::from_utf8_lossy(line).contains("walwriter")
            && std::fs::read_to_string(format!("/proc/{pid}/status")).is_ok_and(|status| status.contains(&parent))
    })
}

/// The first process of a node's server, which has its data dir in its command line.
fn postmaster(group: &Group, at: usize) -> Option<Pid> {
    process_with(&["-D", &group.data_dir(at).display().to_string()])
}

#[test]
fn a_pooler_dies_with_its_fence() {
    let dir = tempfile::tempdir().unwrap();
    let boxed = |level| plan_box(&BoxSpec::new(level), &observe_machine()).ok();
    // A normal user has no strict box.
    let strict = boxed(Level::Strict);
    assert!(strict.is_some() || quorate_testkit::unprivileged().is_none(), "root has a strict box");
    for (number, boxed) in [None, boxed(Level::Basic), strict].into_iter().enumerate() {
        // A number of seconds that nobody else waits for.
        let word = format!("1000.{}{number}", std::process::id());
        let (deadline, file) = (dir.path().join(format!("deadline-{number}")), dir.path().join("fence.json"));
        ensure_deadline(&deadline, "t", Until::Open).unwrap();
        let spec = FenceSpec {
            command: vec!["/bin/sleep".to_owned(), word.clone()],
            boxed,
            token: "t".to_owned(),
            deadline,
            socket_dir: dir.path().to_owned(),
            port: 5432,
            data_dir: dir.path().to_owned(),
        };
        pg_support::put(&file, &serde_json::to_vec(&spec).unwrap());
        let args = ["__fence".to_owned(), file.display().to_string()];
        let mut fence = Running::start(&pg_support::open_to_all(), &args, &[]);
        let begun = Instant::now();
        while process_with(&[&word]).is_none() {
            assert!(begun.elapsed() < LIMIT, "the fence does not start it: {}", fence.log());
            std::thread::sleep(Duration::from_millis(5));
        }
        fence.kill();
        while process_with(&[&word]).is_some() {
            assert!(begun.elapsed() < LIMIT, "it outlives its fence");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

const EVENT: &str = "INSERT INTO rdpg.events (host, key, msg) VALUES ('h', 'k', 'm')";

/// The next write master cannot get everything, since its link stands still, and meanwhile the lease is lost to somebody else.
fn a_move_that_fails_late_opens_nothing(group: &Group, runtime: &tokio::runtime::Runtime) {
    let first = group.writer().unwrap();
    let target = (first + 1) % 3;
    let link = format!("mesh_n{}_from_n{}", target + 1, first + 1);
    let to = group.nodes[target].name.clone();
    let told = |sql: String| runtime.block_on(once(&group.inside(target), &sql)).unwrap();
    told(format!("INSERT INTO mesh.paused VALUES ('{link}'); ALTER SUBSCRIPTION {link} DISABLE"));
    runtime.block_on(eventually(&group.door(first, POOLER), EVENT));
    // The place stays, and whoever waited goes on.
    assert_eq!(group.pg(&["switchover", "--to", &to]).status.code(), Some(75));
    runtime.block_on(eventually(&group.door(first, POOLER), EVENT));
    let before = group.log(first).matches("handing over").count();
    let mut command = group.command(&["pg", "switchover", "--to", &to]).spawn().unwrap();
    group.wait("it begins", |group| group.log(first).matches("handing over").count() > before);
    group.revoke_lease();
    group.wait("another takes the place", |group| group.writer().is_some_and(|at| at != first));
    // Whoever has the place now may do what was asked for.
    command.wait().unwrap();
    group.wait("nothing was handed over by it", |group| !group.says(first, "handover", "null"));
    let refused = runtime.block_on(once(&group.door(first, POOLER), EVENT)).unwrap_err();
    assert!(refused.contains("25006"), "who lost its lease takes no writes: {refused}");
    assert_eq!(runtime.block_on(count(&group.inside(first), "SELECT count(*) FROM mesh.gate WHERE open")), 0);
    runtime.block_on(eventually(&group.door(first, POOLER), "SELECT count(*) FROM rdpg.events"));
    told(format!("DELETE FROM mesh.paused; ALTER SUBSCRIPTION {link} ENABLE"));
    group.wait_ready();
}

/// Of two that are left the one takes the place that has more of what was written, although the other is declared first.
fn the_most_advanced_one_takes_the_place(group: &mut Group, runtime: &tokio::runtime::Runtime) {
    if group.writer() != Some(2) {
        group.wait("the last one writes", |group| group.pg(&["switchover", "--to", "n3"]).status.success());
    }
    group.wait_ready();
    group.wait("the last one writes", |group| group.writer() == Some(2));
    let behind = "mesh_n1_from_n3";
    let told = |group: &Group, sql: String| runtime.block_on(once(&group.inside(0), &sql)).unwrap();
    told(group, format!("INSERT INTO mesh.paused VALUES ('{behind}'); ALTER SUBSCRIPTION {behind} DISABLE"));
    let load = Load::begin(runtime, group.door(2, POOLER), true, 50_000_000);
    let numbers = "SELECT count(*) FROM backups.file_history WHERE file_name ~ '^5[0-9]{7}$'";
    let has = |group: &Group, at: usize| runtime.block_on(count(&group.inside(at), numbers));
    group.wait("one of them gets it", |group| has(group, 1) >= 20);
    let (rows, failed, _) = load.end(runtime);
    assert!(failed.is_empty(), "{failed:?}");
    let all = i64::try_from(rows.len()).unwrap();
    group.wait("one of them has it all", |group| has(group, 1) == all);
    assert_eq!(has(group, 0), 0, "the other has none of it");
    group.kill_node(2);
    group.wait("somebody takes the place", |group| group.writer().is_some_and(|at| at != 2));
    assert_eq!(group.writer(), Some(1), "the one that has all of it");
    runtime.block_on(eventually(&group.door(0, WRITE), EVENT));
    told(group, format!("DELETE FROM mesh.paused; ALTER SUBSCRIPTION {behind} ENABLE"));
    group.start(2, &[]);
    group.wait_ready();
    all_arrive(group, runtime, &rows);
}

/// One process of a server dies, as of the want of memory: the server forgets who may write, and is told again.
fn a_server_that_crashed_takes_writes_again(group: &Group, runtime: &tokio::runtime::Runtime) {
    let writer = group.writer().unwrap();
    let pid = walwriter(group, writer).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
    group.wait("it recovers", |group| walwriter(group, writer).is_some_and(|now| now != pid));
    runtime.block_on(eventually(&group.door(writer, WRITE), EVENT));
    // Through its own door, as long as it is the write master.
    group.wait("its door is open", |group| {
        group.writer() != Some(writer) || runtime.block_on(once(&group.door(writer, POOLER), EVENT)).is_ok()
    });
}

/// What others see of a node says how it is.
fn a_server_that_stands_still_is_not_offered(group: &Group) {
    let still = (group.writer().unwrap() + 1) % 3;
    let offered = |group: &Group| group.overview()["nodes"][still]["registered"] == true;
    assert!(offered(group));
    group.signal_server(still, Signal::STOP);
    group.wait("it is seen", |group| !offered(group));
    group.signal_server(still, Signal::CONT);
    group.wait("it is back", offered);
    group.wait_ready();
}

fn story(major: u32) {
    let mut group = Group::with(Setup { major, ..Setup::default() });
    group.start_all();
    group.wait_ready();
    assert!(group.says(0, "server", &format!("{major}.")));
    let runtime = runtime();
    let first = group.writer().unwrap();
    let other = (first + 1) % 3;

    // A planned move under load: no transaction fails, on connections that stay and on new ones.
    let loads = [true, true, false]
        .into_iter()
        .zip(1_u64..)
        .map(|(stays, number)| Load::begin(&runtime, group.door(other, WRITE), stays, number * 1_000_000));
    let loads: Vec<Load> = loads.collect();
    std::thread::sleep(Duration::from_millis(500));
    let target = group.nodes[other].name.clone();
    // Where the other node does not catch up in time the place stays; it is asked again.
    group.wait("the write master moves", |group| group.pg(&["switchover", "--to", &target]).status.success());
    std::thread::sleep(Duration::from_millis(500));
    let mut rows = Vec::new();
    for load in loads {
        let (acknowledged, failed, _) = load.end(&runtime);
        assert!(failed.is_empty(), "a planned move fails nothing: {failed:?}");
        rows.extend(acknowledged);
    }
    all_arrive(&group, &runtime, &rows);
    if major == 18 {
        a_move_that_fails_late_opens_nothing(&group, &runtime);
        a_server_that_crashed_takes_writes_again(&group, &runtime);
        a_server_that_stands_still_is_not_offered(&group);
        the_most_advanced_one_takes_the_place(&mut group, &runtime);
    }

    // All of the write master's node dies: another takes the place.
    let writer = group.writer().unwrap();
    let away = (0..3).find(|at| *at != writer).unwrap();
    let load = Load::begin(&runtime, group.door(away, WRITE), false, 10_000_000);
    std::thread::sleep(Duration::from_millis(500));
    group.kill_node(writer);
    let killed = Instant::now();
    let written = runtime.block_on(async {
        loop {
            let sql = "INSERT INTO backups.file_history (cluster_id, dbname, node, file_name, action, status) VALUES ('t', 'd', 'n', 'after', 'a', 's')";
            match once(&group.door(away, WRITE), sql).await {
                Ok(()) => return killed.elapsed(),
                Err(why) => assert!(killed.elapsed() < LIMIT, "nobody took the place: {why}"),
            }
        }
    });
    eprintln!("first write after the loss of the write master's node: {written:?}");
    let next = group.writer().unwrap();
    assert_ne!(next, writer);
    std::thread::sleep(Duration::from_millis(300));
    let (acknowledged, _, _) = load.end(&runtime);
    rows.extend(acknowledged);
    // It comes back, as a reader, and with it what nobody else had.
    group.start(writer, &[]);
    group.wait_ready();
    all_arrive(&group, &runtime, &rows);
    assert_ne!(group.status(writer).unwrap()["door"], "closed");
    let next = group.writer().unwrap();

    // An agent that is killed cannot hold its door open: the fence closes it before another takes the place. A server that
    // does not answer it is killed, so that no session is left.
    if major == 18 {
        kill_process(postmaster(&group, next).unwrap(), Signal::STOP).unwrap();
    }
    group.kill_agent(next);
    group.wait("another takes the place", |group| group.writer().is_some_and(|at| at != next));
    if major == 18 {
        group.wait("the fence kills the server", |group| postmaster(group, next).is_none());
        group.start(next, &[]);
        group.wait_ready();
        return;
    }
    let said = runtime.block_on(once(&group.door(next, POOLER), "SELECT 1"));
    assert!(said.is_err(), "the door of the last write master is closed");
    let apps = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'app'";
    assert_eq!(runtime.block_on(count(&group.inside(next), apps)), 0);
    group.start(next, &[]);
    group.wait_ready();
    assert!(runtime.block_on(once(&group.door(next, POOLER), "SELECT 1")).is_ok());
}
