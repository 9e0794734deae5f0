//! The pages of the commands show what the commands say: every example of theirs is run, and compared line by line.
//!
//! **Rule:** numbers, times and widths of columns are the run's own; with `QUORATE_BLESS=1` the pages get what was said now.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod agent_support;
mod ops_support;

use std::path::Path;
use std::process::Command;

use agent_support::Place;
use ops_support::{file, put, rooted, script};
use quorate_testkit::{etcd, project_root, quorate};

/// What etcd's own dir is called on the pages.
const DATA: &str = "/var/lib/etcd";
/// Pages whose examples look the same for everybody, and those that show a strict box.
const OPEN: [&str; 2] = ["pid", "ctl"];
const STRICT: [&str; 4] = ["ps", "exec", "shell", "box"];

#[test]
fn the_pages_of_the_commands_show_what_the_commands_say() {
    let mut place = rooted("3.5.16");
    // A user that every machine has, or none has: what is shown is the same everywhere.
    let held = if is_root() { "box: {user: \"61079\", limits: {memory: 2GiB}}\n" } else { "" };
    place.raw = Some(format!("{}{held}", file(&place, "")));
    put(&place.path("etc/quorate/cluster.yaml"), place.raw.as_deref().unwrap());
    script(&place.path("bin/quorate"), &format!("#!/bin/sh\nexec {} \"$@\"\n", quorate().display()));
    let mut agent = place.start();
    place.wait_ready(&mut agent);
    let pages = OPEN.iter().chain(if is_root() { &STRICT[..] } else { &[] });
    let mut differ = Vec::new();
    for page in pages {
        let path = project_root().join(format!("docs/guide/commands/{page}.md"));
        let text = std::fs::read_to_string(&path).unwrap();
        let (shown, said) = (examples(&text), run_again(&place, &text));
        assert!(!shown.is_empty() && shown.len() == said.len(), "{page}: no examples");
        if std::env::var_os("QUORATE_BLESS").is_some() {
            bless(&path, &text, &said);
        } else if shown.iter().map(shape).ne(said.iter().map(shape)) {
            differ.push(format!("{}\n--- shown\n{}\n--- said\n{}", path.display(), told(&shown), told(&said)));
        }
    }
    agent.stop();
    assert!(differ.is_empty(), "QUORATE_BLESS=1 writes what was said into the pages:\n{}", differ.join("\n"));
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A line that is typed, and what is said to it.
struct Example {
    typed: String,
    said: String,
}

/// The examples of a page: those of its first block.
fn examples(page: &str) -> Vec<Example> {
    let mut examples: Vec<Example> = Vec::new();
    for line in page.split("```").nth(1).unwrap_or_default().lines() {
        match (line.strip_prefix("$ "), examples.last_mut()) {
            (Some(typed), _) => examples.push(Example { typed: typed.to_owned(), said: String::new() }),
            (None, Some(example)) => example.said += &format!("{line}\n"),
            (None, None) => {}
        }
    }
    examples
}

fn run_again(place: &Place, page: &str) -> Vec<Example> {
    let root = place.root.path().display().to_string();
    let path = format!("{root}/bin:{}:{}", tools_dir().display(), std::env::var("PATH").unwrap());
    let run = |Example { typed, .. }: Example| {
        // What would end it is shown, and not run.
        if typed.starts_with("kill ") {
            return Example { typed, said: String::new() };
        }
        let mut command = Command::new("/bin/sh");
        let line = typed.replace(DATA, &format!("{root}{DATA}"));
        command.args(["-c", &format!("({line}) 2>&1")]).current_dir("/").env("PATH", &path);
        command.envs(place.env.iter().map(|(name, value)| (name, value)));
        let said = aligned(&String::from_utf8(command.output().unwrap().stdout).unwrap().replace(&root, ""));
        Example { typed, said }
    };
    examples(page).into_iter().map(run).collect()
}

/// Tables with their columns one below the other, which the names of dirs here have moved.
fn aligned(text: &str) -> String {
    let cells = |line: &str| -> Vec<String> {
        line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).map(str::to_owned).collect()
    };
    let lines: Vec<Vec<String>> = text.lines().map(cells).collect();
    let mut aligned = String::new();
    for (at, line) in text.lines().enumerate() {
        let row = &lines[at];
        if row.len() < 3 {
            aligned += &format!("{line}\n");
            continue;
        }
        let table = lines.iter().filter(|other| other.len() == row.len());
        let width = |column: usize| table.clone().map(|other| other[column].chars().count()).max().unwrap_or(0);
        let padded: Vec<String> = row.iter().enumerate().map(|(n, cell)| format!("{cell:w$}", w = width(n))).collect();
        aligned += &format!("{}\n", padded.join("  ").trim_end());
    }
    aligned
}

/// Where etcdctl is.
fn tools_dir() -> std::path::PathBuf {
    etcd("3.5.16").etcdctl.parent().unwrap().to_owned()
}

/// What has to be the same: every word without a digit, and where the others are.
fn shape(example: &Example) -> (String, Vec<String>) {
    let explains = example.typed.contains("box explain");
    let line = |line: &str| {
        // What the kernel of this machine enforces is its own.
        let cells = line.split("  ").map(str::trim).filter(|cell| !cell.is_empty());
        let cells: Vec<&str> = if explains { cells.take(2).collect() } else { cells.collect() };
        let is_part = |c: char| c.is_alphanumeric();
        let mut words: Vec<String> = Vec::new();
        for word in cells.join(" ").split_whitespace() {
            let mut shaped = String::new();
            for part in word.split_inclusive(|c: char| !is_part(c)) {
                let end = part.chars().next_back().filter(|c| !is_part(*c));
                let body = part.trim_end_matches(|c: char| !is_part(c));
                shaped += if body.contains(|c: char| c.is_ascii_digit()) { "#" } else { body };
                shaped.extend(end);
            }
            words.push(if shaped == "-" { "#".to_owned() } else { shaped });
        }
        words.join(" ")
    };
    (example.typed.clone(), example.said.lines().map(line).collect())
}

fn told(examples: &[Example]) -> String {
    examples.iter().map(|example| format!("$ {}\n{}", example.typed, example.said)).collect()
}

fn bless(path: &Path, page: &str, said: &[Example]) {
    let mut parts: Vec<String> = page.split("```").map(str::to_owned).collect();
    parts[1] = format!("\n{}", told(said).trim_end_matches('\n').to_owned() + "\n");
    put(path, &parts.join("```"));
}
