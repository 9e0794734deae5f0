//! A writer that was lost with updates that no other node had: it stays out, is reported, and its data is replaced on request. One
//! that had sent everything takes part again by itself.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod pg_support;

use std::time::Duration;

use pg_support::{Group, POOLER, Part, WRITE, count, eventually, once, put, runtime, said, well};
use rustix::process::{Pid, Signal, kill_process};
use tokio::runtime::Runtime;

const TABLE: &str = "CREATE TABLE public.t (id int PRIMARY KEY, v int NOT NULL);\n\
                     GRANT SELECT, INSERT, UPDATE ON public.t TO quorate_apps;\n";
const VALUE: &str = "SELECT v::int8 FROM public.t WHERE id = 1";
const EVENT: &str = "INSERT INTO rdpg.events (host, key, msg) VALUES ('h', 'unsent', 'm')";
const EVENTS: &str = "SELECT count(*) FROM rdpg.events WHERE key = 'unsent'";

fn value(group: &Group, runtime: &Runtime, at: usize) -> i64 {
    runtime.block_on(count(&group.inside(at), VALUE))
}

/// A table without stamps, with two rows that every node has.
fn with_table(group: &mut Group, runtime: &Runtime) {
    group.start_all();
    group.wait_ready();
    let file = group.path("t.sql");
    put(&file, TABLE.as_bytes());
    well(&group.pg(&["ddl", "apply", &file.display().to_string()]));
    runtime.block_on(eventually(&group.door(0, WRITE), "INSERT INTO public.t VALUES (1, 0), (2, 0)"));
    let rows = "SELECT count(*) FROM public.t";
    group.wait("every node has the rows", |group| {
        (0..3).all(|at| runtime.block_on(count(&group.inside(at), rows)) == 2)
    });
}

/// Stops the processes of a node's server that send its changes, and says how many there are.
fn stop_senders(group: &Group, at: usize) -> usize {
    let data = group.data_dir(at).display().to_string();
    let mut stopped = 0;
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
        let words = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let dir = std::fs::read_link(entry.path().join("cwd")).unwrap_or_default();
        if dir.display().to_string() == data && String::from_utf8_lossy(&words).contains("walsender") {
            kill_process(Pid::from_raw(pid).unwrap(), Signal::STOP).unwrap();
            stopped += 1;
        }
    }
    stopped
}

/// The writer sends nothing any more, takes one more update, and dies with all that runs on its node. Returns who writes then.
fn lose_with_unsent(group: &mut Group, runtime: &Runtime, old: usize, sql: &str) -> usize {
    assert_eq!(stop_senders(group, old), 2, "one for each other node");
    runtime.block_on(once(&group.door(old, POOLER), sql)).unwrap();
    lose(group, old)
}

fn lose(group: &mut Group, old: usize) -> usize {
    group.kill_node(old);
    group.wait("another one writes", |group| group.writer().is_some_and(|at| at != old));
    group.writer().unwrap()
}

fn takes_reads(group: &Group, runtime: &Runtime, at: usize) -> bool {
    let url = format!("http://127.0.0.1:{}/reader", group.nodes[at].ports[2]);
    runtime.block_on(async { reqwest::get(url).await.is_ok_and(|answer| answer.status().is_success()) })
}

/// It holds what only it has, every other node holds what the writer has, and that is said.
fn assert_out(group: &Group, runtime: &Runtime, old: usize, new: i64) {
    group.wait("it is reported", |group| {
        group.says(old, "fault", "Q1445") && group.says(old, "fault", "rows that differ: public.t 1")
    });
    for at in (0..3).filter(|at| *at != old) {
        group.wait("the others have the newer update", |group| value(group, runtime, at) == new);
    }
    assert_eq!(value(group, runtime, old), -111, "its own row is still there to be looked at");
    assert!(!takes_reads(group, runtime, old), "no proxy leads readers to it");
    assert!(runtime.block_on(once(&group.door(old, POOLER), "SELECT 1")).is_err(), "its pooler is closed");
    assert_ne!(group.writer(), Some(old));
    let status = group.pg(&["status"]);
    let name = &group.nodes[old].name;
    assert_eq!(status.status.code(), Some(3), "{status:?}");
    let text = said(&status);
    assert!(text.contains("Q1445") && text.contains(&format!("quorate pg rejoin {name} --discard")), "{text}");
    assert!(!text.contains("-111"), "no value of a row is shown: {text}");
    let overview = group.overview();
    let out = &overview["nodes"][old]["out"];
    assert_eq!(out["changes"].to_string(), r#"{"public.t":1}"#, "{overview}");
    assert_eq!(out["rows"].to_string(), r#"{"public.t":1}"#, "{overview}");
}

/// The slower parts are for `QUORATE_SWEEP=full`.
fn is_full() -> bool {
    std::env::var("QUORATE_SWEEP").is_ok_and(|sweep| sweep == "full")
}

/// Killed again, while the agent of the node that never wrote does not run: nothing of it comes through.
fn killed_again(group: &mut Group, runtime: &Runtime, (old, new): (usize, usize), newest: i64) {
    let third = 3 - old - new;
    group.kill_node(old);
    group.kill_agent(third);
    group.start(old, &[]);
    group.wait("it is out again", |group| group.says(old, "fault", "Q1445"));
    group.start(third, &[]);
    group.wait("the third one is ready", |group| group.is_ready(third));
    let update = format!("UPDATE public.t SET v = {newest} WHERE id = 1");
    runtime.block_on(eventually(&group.door(new, WRITE), &update));
    assert_out(group, runtime, old, newest);
}

#[test]
fn an_old_writer_with_unreplicated_updates_stays_out_until_its_data_is_replaced() {
    stays_out_until_its_data_is_replaced(Group::new("role: manager"));
    if is_full() {
        stays_out_until_its_data_is_replaced(Group::on_consul("role: manager"));
    }
}

fn stays_out_until_its_data_is_replaced(mut group: Group) {
    let runtime = runtime();
    with_table(&mut group, &runtime);
    let old = group.writer().unwrap();
    let name = group.nodes[old].name.clone();
    let new = lose_with_unsent(&mut group, &runtime, old, "UPDATE public.t SET v = -111 WHERE id = 1");
    // The cutoff is there before the new writer takes a write.
    let overview = group.overview();
    assert_eq!(overview["nodes"][old]["cutoff"]["writer"], group.nodes[new].name.as_str(), "{overview}");
    runtime.block_on(eventually(&group.door(new, WRITE), "UPDATE public.t SET v = 999 WHERE id = 1"));
    group.start(old, &[]);
    assert_out(&group, &runtime, old, 999);

    let mut newest = 999;
    if is_full() {
        newest = 1000;
        killed_again(&mut group, &runtime, (old, new), newest);
    }

    // The way out that it names.
    assert_eq!(group.pg(&["rejoin", &name]).status.code(), Some(64), "not without a word about what is discarded");
    assert_eq!(group.pg(&["rejoin", &group.nodes[new].name, "--discard"]).status.code(), Some(5), "not the writer");
    let rejoined = well(&group.pg(&["rejoin", &name, "--discard"]));
    assert!(rejoined.contains("all rows are the same"), "{rejoined}");
    group.wait_ready();
    assert!((0..3).all(|at| value(&group, &runtime, at) == newest));
    let beside = std::fs::read_dir(group.path("pg")).unwrap().flatten().map(|entry| entry.file_name());
    let kept = beside.filter(|file| file.to_string_lossy().starts_with(&format!("{name}.replaced-"))).count();
    assert_eq!(kept, 1, "its old data is kept");
    group.wait("all is well", |group| group.pg(&["status"]).status.success());
    runtime.block_on(eventually(&group.door(old, WRITE), "UPDATE public.t SET v = 1001 WHERE id = 1"));
    group.wait("it follows", |group| value(group, &runtime, old) == 1001);
    group.assert_one_group();
}

#[test]
fn an_old_writer_that_had_sent_everything_takes_part_again_by_itself() {
    let mut group = Group::new("role: manager");
    let runtime = runtime();
    with_table(&mut group, &runtime);
    let old = group.writer().unwrap();
    let new = lose(&mut group, old);
    runtime.block_on(eventually(&group.door(new, WRITE), "UPDATE public.t SET v = 7 WHERE id = 1"));
    group.start(old, &[]);
    group.wait_ready();
    group.wait("it has the newer update", |group| value(group, &runtime, old) == 7);
    assert!(takes_reads(&group, &runtime, old));
    assert!(!group.records().keys().any(|key| key.starts_with("cutoffs/") || key.starts_with("diverged/")));

    if is_full() {
        what_only_it_had_in_a_table_with_stamps_is_merged(&mut group, &runtime, new, 3 - old - new);
    }
    group.wait("all is well", |group| group.pg(&["status"]).status.success());
}

/// As ever; its agent is killed after it has read its log, and before that is on record.
fn what_only_it_had_in_a_table_with_stamps_is_merged(group: &mut Group, runtime: &Runtime, old: usize, third: usize) {
    let new = lose_with_unsent(group, runtime, old, EVENT);
    assert_eq!(runtime.block_on(count(&group.inside(third), EVENTS)), 0);
    runtime.block_on(eventually(&group.door(new, WRITE), "UPDATE public.t SET v = 8 WHERE id = 1"));
    group.start(old, &["--halt-before", "clear-cutoff"]);
    group.wait("its log is read", |group| group.log(old).contains("halted before this step"));
    std::thread::sleep(Duration::from_millis(700));
    assert_eq!(runtime.block_on(count(&group.inside(third), EVENTS)), 0, "nothing comes before that is on record");
    group.kill_part(old, Part::Agent);
    group.kill_part(old, Part::Server);
    group.start(old, &[]);
    group.wait_ready();
    for at in 0..3 {
        group.wait("what only it had is everywhere", |group| {
            runtime.block_on(count(&group.inside(at), EVENTS)) == 1 && value(group, runtime, at) == 8
        });
    }
}
