//! Checks single files: how they open, how long they are, and words that have no place in them.

use super::Report;
use super::tree::SourceFile;

const LINES_WARN: usize = 500;
const LINES_MAX: usize = 800;

/// Marks of unfinished work. Spelled in pieces, so that this file does not find itself.
const UNFINISHED: &[&str] = &[
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("unimpl", "emented!"),
    concat!("to", "do!("),
    concat!("#[ign", "ore"),
];

/// Hosts that packages come from. Where they come from is the machine's business.
const REGISTRIES: &[&str] = &[
    concat!("crates", ".io"),
    concat!("deb.", "debian.org"),
    concat!("archive.", "ubuntu.com"),
    concat!("pypi", ".org"),
    concat!("npmjs", ".org"),
    concat!("proxy.", "golang.org"),
    concat!("docker", ".io"),
    concat!("ghcr", ".io"),
    concat!("gcr", ".io"),
];

/// Places that exist on one machine only.
const MACHINE_PATHS: &[&str] = &[concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/ho", "me/")];

pub(super) fn check(file: &SourceFile, report: &mut Report) {
    if file.has_extension("rs") {
        check_head_and_length(file, report);
    }
    // Written by cargo, and it names the registry by nature.
    if file.path.ends_with("Cargo.lock") {
        return;
    }
    let prose = file.has_extension("md");
    for (number, line) in file.lines() {
        let place = format!("{}:{number}", file.path);
        if let Some(word) = UNFINISHED.iter().find(|word| !prose && line.contains(**word)) {
            report.error(format!("{place}: `{word}`: finish it or leave it out"));
        }
        if let Some(host) = REGISTRIES.iter().find(|host| line.contains(**host)) {
            report.error(format!("{place}: names the package registry `{host}`; leave that to the machine's settings"));
        }
        if let Some(path) = MACHINE_PATHS.iter().find(|path| has_absolute(line, path)) {
            report.error(format!("{place}: a path below `{path}` exists on one machine only"));
        }
    }
}

fn check_head_and_length(file: &SourceFile, report: &mut Report) {
    if !file.text.starts_with("//!") {
        report.error(format!("{}:1: open the file with `//!` and its job", file.path));
    }
    let lines = file.text.lines().count();
    if lines > LINES_MAX {
        report.error(format!("{}: {lines} lines; at most {LINES_MAX}: two things live in it", file.path));
    } else if lines > LINES_WARN {
        report.warn(format!("{}: {lines} lines; over {LINES_WARN} is a sign that two things live in it", file.path));
    }
}

/// Whether `path` starts an absolute path in `line` (and is not the middle of a longer one).
fn has_absolute(line: &str, path: &str) -> bool {
    line.match_indices(path).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        before.is_none_or(|c| !(c.is_alphanumeric() || "._-*/}>".contains(c)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaints(path: &str, text: &str) -> usize {
        let mut report = Report::default();
        check(&SourceFile { path: path.to_owned(), text: text.to_owned() }, &mut report);
        report.errors.len()
    }

    #[test]
    fn a_source_file_opens_with_its_job() {
        assert_eq!(complaints("a.rs", "//! Adds.\n"), 0);
        assert_eq!(complaints("a.rs", "use std::fs;\n"), 1);
    }

    #[test]
    fn a_file_of_two_things_is_refused() {
        let long = format!("//! Long.\n{}", "\n".repeat(LINES_MAX));
        assert_eq!(complaints("a.rs", &long), 1);
    }

    #[test]
    fn unfinished_work_registries_and_machine_paths_are_found() {
        for word in UNFINISHED {
            assert_eq!(complaints("a.sh", &format!("# {word}\n")), 1, "{word}");
        }
        for host in REGISTRIES {
            assert_eq!(complaints("a.md", &format!("from {host}.\n")), 1, "{host}");
        }
        for path in MACHINE_PATHS {
            assert_eq!(complaints("a.md", &format!("in `{path}x`\n")), 1, "{path}");
            assert_eq!(complaints("a.md", &format!("in `bench{path}x`\n")), 0, "{path}");
        }
    }
}
