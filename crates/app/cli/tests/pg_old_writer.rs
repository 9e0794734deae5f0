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

/// The processes of a node's server that send its changes, each with the number that the server itself sees: it runs in a namespace
/// of its own.
fn senders(group: &Group, at: usize) -> Vec<(Pid, i64)> {
    let data = group.data_dir(at).display().to_string();
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
        let words = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let dir = std::fs::read_link(entry.path().join("cwd")).unwrap_or_default();
        if dir.display().to_string() == data && String::from_utf8_lossy(&words).contains("walsender") {
            let status = std::fs::read_to_string(entry.path().join("status")).unwrap_or_default();
            let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap_or_default();
            let inside = numbers.split_whitespace().last().and_then(|number| number.parse().ok());
            found.push((Pid::from_raw(pid).unwrap(), inside.unwrap()));
        }
    }
    found
}

/// Stops the processes of a node's server that send its changes, and says how many there are.
fn stop_senders(group: &Group, at: usize) -> usize {
    let senders = senders(group, at);
    for (pid, _) in &senders {
        kill_process(*pid, Signal::STOP).unwrap();
    }
    senders.len()
}

/// Stops the process of a node's server that sends its changes to another node.
fn stop_sender(group: &Group, runtime: &Runtime, from: usize, to: usize) -> Pid {
    let link = format!("mesh_n{}_from_n{}", to + 1, from + 1);
    let sql = format!("SELECT pid::int8 FROM pg_stat_replication WHERE application_name = '{link}'");
    let inside = runtime.block_on(count(&group.inside(from), &sql));
    let (pid, _) = senders(group, from).into_iter().find(|(_, number)| *number == inside).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    pid
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

    let mut writer = new;
    if is_full() {
        what_only_it_had_in_a_table_with_stamps_is_merged(&mut group, &runtime, new, 3 - old - new);
        writer = group.writer().unwrap();
    }
    group.wait("all is well", |group| group.pg(&["status"]).status.success());
    stays_out_while_its_log_cannot_be_read(&mut group, &runtime, writer);
}

/// The slot that would prove what it holds is gone: it is not taken for one that holds nothing.
#[expect(clippy::disallowed_methods, reason = "a test takes a slot away; nothing of it has to be durable")]
fn stays_out_while_its_log_cannot_be_read(group: &mut Group, runtime: &Runtime, old: usize) {
    let new = lose(group, old);
    let slot = format!("pg_replslot/mesh_n{}_from_n{}", new + 1, old + 1);
    std::fs::rename(group.data_dir(old).join(slot), group.path("slot")).unwrap();
    runtime.block_on(eventually(&group.door(new, WRITE), "UPDATE public.t SET v = 70 WHERE id = 1"));
    group.start(old, &[]);
    group.wait("it is reported", |group| group.says(old, "fault", "Q1446"));
    assert!(!takes_reads(group, runtime, old), "no proxy leads readers to it");
    assert!(group.records().contains_key(&format!("cutoffs/n{}", old + 1)), "nothing is cleared");
    let (name, status) = (group.nodes[old].name.clone(), group.pg(&["status"]));
    let text = said(&status);
    assert!(status.status.code() == Some(3) && text.contains("Q1446"), "{text}");
    well(&group.pg(&["rejoin", &name, "--discard"]));
    group.wait("all is well", |group| group.pg(&["status"]).status.success());
    assert_eq!(value(group, runtime, old), 70);
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

/// What an old writer has left: the value of the first row, and that of a row which it made, on a node.
fn rows(group: &Group, runtime: &Runtime, at: usize) -> (i64, i64) {
    let made = "SELECT coalesce(max(v), 0)::int8 FROM public.t WHERE id = 3";
    (value(group, runtime, at), runtime.block_on(count(&group.inside(at), made)))
}

fn write(group: &Group, runtime: &Runtime, at: usize, sql: &[&str]) {
    for sql in sql {
        runtime.block_on(eventually(&group.door(at, WRITE), sql));
    }
}

#[test]
fn a_node_that_lags_behind_a_new_writer_takes_its_rows_and_never_the_old_ones_late() {
    let mut group = Group::new("role: manager");
    let runtime = runtime();
    with_table(&mut group, &runtime);
    let old = group.writer().unwrap();
    let third = (0..3).rev().find(|at| *at != old).unwrap();
    let new = 3 - old - third;
    group.kill_agent(third);
    group.start(third, &["--halt-before", "take-rows"]);
    group.wait("the third one is ready", |group| group.is_ready(third));
    stop_sender(&group, &runtime, old, third);
    write(&group, &runtime, old, &["UPDATE public.t SET v = 5 WHERE id = 1", "INSERT INTO public.t VALUES (3, 30)"]);
    group.wait("one node has them", |group| rows(group, &runtime, new) == (5, 30));
    assert_eq!(lose(&mut group, old), new, "the one that has more takes over");
    write(
        &group,
        &runtime,
        new,
        &["UPDATE public.t SET v = 9 WHERE id = 1", "UPDATE public.t SET v = 31 WHERE id = 3"],
    );

    // What the third node has is not what the writer has, and that is reported while the old writer is away.
    group.wait("it halts", |group| group.log(third).contains("halted before this step"));
    group.wait("the newer update arrives", |group| value(group, &runtime, third) == 9);
    assert_eq!(rows(&group, &runtime, third), (9, 0), "it lacks a row");
    assert!(group.says(third, "waiting", "Q1448"), "{:?}", group.status(third));
    assert!(!takes_reads(&group, &runtime, third), "no proxy leads readers to it");
    let status = group.pg(&["status"]);
    assert!(status.status.code() == Some(3) && said(&status).contains("Q1448"), "{status:?}");

    group.wait("it has the rows of the writer, without the old one", |group| {
        group.signal(third, Signal::USR2);
        rows(group, &runtime, third) == (9, 31) && takes_reads(group, &runtime, third)
    });
    group.kill_agent(third);
    group.start(third, &[]);
    group.start(old, &[]);
    all_have(&group, &runtime, (9, 31));
    changed_while_its_agent_was_away(&mut group, &runtime, (new, old, third));
    applied_more_than_the_new_writer(&mut group, &runtime, (old, new, third));
}

/// Every node has these rows, takes part, and has nothing on record.
fn all_have(group: &Group, runtime: &Runtime, wanted: (i64, i64)) {
    group.wait_ready();
    group.wait("all is well", |group| group.pg(&["status"]).status.success());
    for at in 0..3 {
        assert_eq!(rows(group, runtime, at), wanted, "{at}");
    }
    group.assert_one_group();
    let records = group.records();
    let left = |key: &&String| ["cutoffs/", "floors/", "diverged/"].iter().any(|folder| key.starts_with(folder));
    assert_eq!(records.keys().find(left), None);
}

/// The writer changes, and the old one is back, while no agent of the third node runs that could stop anything.
fn changed_while_its_agent_was_away(group: &mut Group, runtime: &Runtime, (old, new, third): (usize, usize, usize)) {
    group.kill_agent(third);
    stop_sender(group, runtime, old, third);
    write(group, runtime, old, &["UPDATE public.t SET v = 50 WHERE id = 1"]);
    group.wait("one node has it", |group| value(group, runtime, new) == 50);
    assert_eq!(lose(group, old), new);
    write(group, runtime, new, &["UPDATE public.t SET v = 90 WHERE id = 1"]);
    group.wait("the newer one arrives", |group| value(group, runtime, third) == 90);
    group.start(old, &[]);
    group.wait("the old one is ready", |group| group.is_ready(old));
    assert!(group.records().contains_key(&format!("floors/n{}", old + 1)), "it is not known what the third one has");
    // Its server starts anew too: both logs would be applied side by side.
    group.kill_node(third);
    group.start(third, &[]);
    all_have(group, runtime, (90, 31));
}

/// A node that could not stand for the lease has more of the old writer than the one that took over.
fn applied_more_than_the_new_writer(group: &mut Group, runtime: &Runtime, (old, new, third): (usize, usize, usize)) {
    group.kill_agent(third);
    stop_sender(group, runtime, old, new);
    write(group, runtime, old, &["UPDATE public.t SET v = 7 WHERE id = 1"]);
    group.wait("one node has it", |group| value(group, runtime, third) == 7);
    assert_eq!(lose(group, old), new);
    group.start(third, &[]);
    group.wait("it is reported", |group| group.is_ready(third) && group.says(third, "troubles", "Q1447"));
    let status = group.pg(&["status"]);
    assert!(status.status.code() == Some(3) && said(&status).contains("Q1447"), "{status:?}");
    assert!(takes_reads(group, runtime, third), "it goes on as a reader");
    group.start(old, &[]);
    for at in [old, third] {
        group.wait("both stay out", |group| group.says(at, "fault", "Q1445"));
        assert_eq!(value(group, runtime, at), 7, "what only they have is there to be looked at");
        assert!(!takes_reads(group, runtime, at));
    }
    assert_eq!(value(group, runtime, new), 90);
}

/// Hands over as planned while a node lacks an update of the writer, and has the next writer change the same row.
fn switch_over(group: &Group, runtime: &Runtime, (old, new): (usize, usize), lacked: i64) {
    write(group, runtime, old, &[&format!("UPDATE public.t SET v = {lacked} WHERE id = 1")]);
    group.wait("the next writer has it", |group| value(group, runtime, new) == lacked);
    well(&group.pg(&["switchover", "--to", &group.nodes[new].name]));
    group.wait("it writes", |group| group.writer() == Some(new));
    write(group, runtime, new, &[&format!("UPDATE public.t SET v = {} WHERE id = 1", lacked + 1)]);
}

#[test]
fn a_node_that_lags_at_a_planned_switchover_takes_the_rows_of_the_next_writer() {
    let mut group = Group::new("role: manager");
    let runtime = runtime();
    with_table(&mut group, &runtime);
    let old = group.writer().unwrap();
    let third = (0..3).rev().find(|at| *at != old).unwrap();
    let new = 3 - old - third;

    // The old writer sends it nothing for a while.
    let sender = stop_sender(&group, &runtime, old, third);
    switch_over(&group, &runtime, (old, new), 20);
    group.wait("the newer update arrives", |group| value(group, &runtime, third) == 21);
    kill_process(sender, Signal::CONT).unwrap();
    group.wait("the rest of the old log has arrived or is skipped", |group| {
        takes_reads(group, &runtime, third) && !group.records().contains_key(&format!("floors/n{}", old + 1))
    });
    all_have(&group, &runtime, (21, 0));

    // It is down, and would get both logs when it is back.
    group.kill_node(third);
    switch_over(&group, &runtime, (new, old), 30);
    assert!(group.records().contains_key(&format!("floors/n{}", new + 1)), "it is not known what the third node lacks");
    group.start(third, &[]);
    all_have(&group, &runtime, (31, 0));
}
