//! An attacker in boxes of every level, in a container of runc and in none; the table in the guide is what came of it.
//!
//! **Rule:** the guide says what this test has seen: `QUORATE_BLESS=1` writes the table anew, everyone else compares.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod support;

use std::collections::BTreeMap;
use std::fmt::Write;

use quorate_plan::boxes::{BoxSpec, Escape, Level};
use quorate_testkit::project_root;
use support::{Arena, is_root, kernel, machine_gives_strict, runc, runc_version};

const FROM: &str = "<!-- attacks -->\n";
const TO: &str = "<!-- end -->\n";

/// What the unit in the guide would let through, by the manual; it was not run. `@system-service` holds `io_uring` and the
/// keyrings, files that all may read are read, and there is no directive about ports to connect to.
const ALLOWED_BY_SYSTEMD: &[&str] = &[
    "read another tenant's data",
    "list another tenant's directory",
    "connect to a port that it may not reach",
    "connect to an abstract socket outside",
    "use `io_uring`",
    "use the kernel's keyrings",
    "execute what it has written, from memory",
    BY_THE_LOADER,
];

/// Allowed to every program that has libraries, in every box: for the kernel it maps its own code. It gains no rights by it.
const BY_THE_LOADER: &str = "execute a file of the library directories, by the loader";

type Seen = BTreeMap<String, String>;

fn spec(arena: &Arena, level: Level) -> BoxSpec {
    let mut spec = BoxSpec::new(level);
    spec.writes = vec![arena.data()];
    spec.reads = vec![arena.copies()];
    spec.ports.bind = vec![arena.own_port()];
    spec.limits.memory_bytes = Some(128 << 20);
    spec.limits.pids = Some(64);
    spec
}

#[test]
fn every_attempt_is_denied_in_strict() {
    let arena = Arena::new();
    if !machine_gives_strict() {
        let (code, said) = arena.attack_boxed(&spec(&arena, Level::Strict), is_root());
        assert!(code == 124 && said.contains("refused"), "{said}");
        return;
    }
    let seen = parse(&arena.attack_boxed(&spec(&arena, Level::Strict), true).1);
    let allowed: Vec<_> = seen.iter().filter(|(_, came)| *came != "denied").map(|(name, _)| name).collect();
    assert!(allowed == [BY_THE_LOADER] && seen.len() > 30, "{allowed:?}\n{seen:?}");
}

#[test]
fn what_is_declared_is_allowed() {
    let arena = Arena::new();
    let level = if machine_gives_strict() { Level::Strict } else { Level::Basic };
    let mut open = spec(&arena, level);
    open.reads = vec![arena.foreign()];
    open.execs = vec!["/usr/bin".to_owned()];
    open.ports.bind.push(arena.other_port());
    open.ports.connect.push(arena.listening_port());
    let seen = parse(&arena.attack_boxed(&open, is_root()).1);
    let words = [
        "read another tenant's data",
        "list another tenant's directory",
        "execute another program",
        "listen on a port that is not its own",
        "connect to a port that it may not reach",
    ];
    for word in words {
        assert_eq!(seen[word], "allowed", "{word}: {seen:?}");
    }
    for word in [
        "write into another tenant's directory",
        "read `/etc/shadow`",
        "execute what it has written",
        "execute what it has written, from memory",
    ] {
        assert_eq!(seen[word], "denied", "{word}: {seen:?}");
    }
    open.escapes = vec![Escape::ExecutableData];
    let seen = parse(&arena.attack_boxed(&open, is_root()).1);
    for word in ["execute what it has written", "execute what it has written, from memory"] {
        assert_eq!(seen[word], "allowed", "{word}: {seen:?}");
    }
}

#[test]
fn the_guide_tells_what_was_seen() {
    let arena = Arena::new();
    let page = project_root().join("docs/guide/box.md");
    let text = std::fs::read_to_string(&page).unwrap();
    let (before, rest) = text.split_once(FROM).unwrap();
    let (table, after) = rest.split_once(TO).unwrap();
    // Without root only the columns of a normal user can be seen anew.
    let basic = parse(&arena.attack_boxed(&spec(&arena, Level::Basic), false).1);
    if !machine_gives_strict() {
        compare(table, 2, &basic);
        return;
    }
    let lower = parse(&arena.attack_boxed(&spec(&arena, Level::Basic), true).1);
    let strict = parse(&arena.attack_boxed(&spec(&arena, Level::Strict), true).1);
    let place = format!("Seen on Linux {} with runc {}:\n\n", kernel(), runc_version());
    if !table.starts_with(&place) && std::env::var_os("QUORATE_BLESS").is_none() {
        // Another kernel may let other things through where there is no box of ours.
        compare(table, 2, &basic);
        compare(table, 3, &lower);
        compare(table, 4, &strict);
        return;
    }
    let bare = arena.attack_bare();
    let columns = [parse(&bare), basic, lower, strict, parse(&runc(&arena))];
    let mut made = place
        + "| attempt | off, root | basic, normal user | basic, root | strict | runc, its default | systemd, on paper |\n";
    made += "| --- | --- | --- | --- | --- | --- | --- |\n";
    for name in bare.lines().filter_map(|line| line.split('\t').next()) {
        let systemd = if ALLOWED_BY_SYSTEMD.contains(&name) { "allowed" } else { "denied" };
        let cells = columns.iter().map(|column| column.get(name).map_or("?", String::as_str)).chain([systemd]);
        let cells: Vec<String> = cells.map(word).collect();
        writeln!(made, "| {name} | {} |", cells.join(" | ")).unwrap();
    }
    if std::env::var_os("QUORATE_BLESS").is_some() {
        support::write(&page, &format!("{before}{FROM}{made}{TO}{after}"));
        return;
    }
    assert_eq!(table, made, "run this test with QUORATE_BLESS=1 to write the table anew");
}

fn word(came: &str) -> String {
    if came == "allowed" { "**allowed**".to_owned() } else { came.to_owned() }
}

/// Compares one column of the page with what was seen.
fn compare(table: &str, column: usize, seen: &Seen) {
    let rows = table.lines().filter(|line| line.starts_with("| ")).skip(2);
    let mut count = 0;
    for row in rows.map(|line| line.trim_matches('|').split(" | ").map(str::trim).collect::<Vec<_>>()) {
        assert_eq!(row[column], word(&seen[row[0]]), "{row:?}");
        count += 1;
    }
    assert_eq!(count, seen.len());
}

fn parse(output: &str) -> Seen {
    let lines = output.lines().filter_map(|line| {
        let mut words = line.split('\t');
        Some((words.next()?.to_owned(), words.next()?.to_owned()))
    });
    lines.collect()
}
