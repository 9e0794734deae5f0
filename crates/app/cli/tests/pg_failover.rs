//! The write master of a group: lost, moved, cut off. No insert is lost, and there is never a second one.

#![expect(clippy::print_stderr, clippy::unwrap_used, reason = "it says how long it took, and where it cannot go on")]

mod pg_support;

use std::time::{Duration, Instant};

use pg_support::{Group, LIMIT, Load, Setup, WRITE, all_arrive, count, once, runtime};

#[test]
fn the_write_master_is_lost_and_moved_and_no_insert_is_lost() {
    story(18);
}

#[test]
fn the_same_with_postgresql_17() {
    story(17);
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

    // An agent that is killed cannot hold its door open: the fence closes it before another takes the place.
    group.kill_agent(next);
    group.wait("another takes the place", |group| group.writer().is_some_and(|at| at != next));
    let said = runtime.block_on(once(&group.door(next, pg_support::POOLER), "SELECT 1"));
    assert!(said.is_err(), "the door of the last write master is closed");
    let apps = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'app'";
    assert_eq!(runtime.block_on(count(&group.inside(next), apps)), 0);
    group.start(next, &[]);
    group.wait_ready();
    assert!(runtime.block_on(once(&group.door(next, pg_support::POOLER), "SELECT 1")).is_ok());
}
