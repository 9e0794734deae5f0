//! The real binary: help, output forms, errors and exit codes.

use std::fs::File;
use std::process::{Command, Output, Stdio};

use quorate_faults::Code;

fn quorate(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quorate"));
    command.args(words).env_remove("NO_COLOR").env_remove("CLICOLOR_FORCE").env_remove("COLUMNS").stdin(Stdio::null());
    command
}

fn run(words: &[&str]) -> Output {
    quorate(words).output().expect("the binary runs")
}

/// What a person sees: the exit code, then stdout, then stderr.
fn shown(words: &[&str]) -> String {
    let output = run(words);
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let code = output.status.code().expect("no signal ended it");
    let part = |name: &str, text: &str| if text.is_empty() { String::new() } else { format!("--- {name}\n{text}") };
    format!("exit {code}\n{}{}", part("stdout", &out), part("stderr", &err))
}

fn json(output: &Output) -> serde_json::Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
        panic!("stdout is not one JSON document ({error}): {}", String::from_utf8_lossy(&output.stdout))
    })
}

#[test]
fn help_shows_the_nouns_examples_and_exit_codes() {
    insta::assert_snapshot!(shown(&["--help"]));
}

#[test]
fn the_demo_explains_itself() {
    insta::assert_snapshot!(shown(&["demo", "--help"]));
    insta::assert_snapshot!(shown(&["demo", "stop", "--help"]));
}

#[test]
fn explain_and_completions_explain_themselves() {
    insta::assert_snapshot!(shown(&["explain", "--help"]));
    insta::assert_snapshot!(shown(&["completions", "--help"]));
}

#[test]
fn commands_for_clusters_explain_themselves() {
    for verb in ["adopt", "bootstrap", "check", "links", "schema", "status"] {
        insta::assert_snapshot!(format!("cluster_{verb}"), shown(&["cluster", verb, "--help"]));
    }
}

#[test]
fn commands_for_processes_and_boxes_explain_themselves() {
    for verb in ["ps", "pid", "logs", "trace", "shell", "exec", "ctl"] {
        insta::assert_snapshot!(format!("operate_{verb}"), shown(&[verb, "--help"]));
    }
    insta::assert_snapshot!("box", shown(&["box", "--help"]));
    for verb in ["run", "explain"] {
        insta::assert_snapshot!(format!("box_{verb}"), shown(&["box", verb, "--help"]));
    }
}

#[test]
fn commands_for_processes_and_boxes_have_pages_that_name_no_flag_that_is_not_there() {
    for verb in ["ps", "pid", "logs", "trace", "shell", "exec", "ctl", "box"] {
        let path = quorate_testkit::project_root().join(format!("docs/guide/commands/{verb}.md"));
        let page = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        for part in ["**Exit codes.**", "**JSON", "**Rights.**", "**Audit.**"] {
            assert!(page.contains(part), "{verb} does not say {part}");
        }
        let mut helps = if verb == "box" { vec![vec!["box", "run"], vec!["box", "explain"]] } else { vec![vec![verb]] };
        // Pages show what is on record.
        helps.push(vec!["audit"]);
        let help: String = helps.iter().map(|words| shown(&[words, &["--help"][..]].concat())).collect();
        let words = page.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-'));
        for flag in words.filter(|word| word.starts_with("--") && word.len() > 3) {
            assert!(help.contains(flag), "the page of {verb} names {flag}, its help does not");
        }
    }
}

/// The commands below one, as its own help lists them.
fn below(words: &[&str]) -> Vec<String> {
    let help = String::from_utf8(run(&[words, &["--help"]].concat()).stdout).expect("text");
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    // A description that is too long goes on below, further in.
    let names = listed.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    names.filter_map(|line| line.split_whitespace().next().map(str::to_owned)).filter(|name| name != "help").collect()
}

#[test]
fn every_command_has_help_that_fits_and_shows_how_it_is_used() {
    let mut left: Vec<Vec<String>> = below(&[]).into_iter().map(|name| vec![name]).collect();
    assert!(left.len() > 15, "{left:?}");
    let mut seen = 0;
    while let Some(words) = left.pop() {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let output = run(&[&words[..], &["--help"]].concat());
        let help = String::from_utf8(output.stdout).expect("text");
        assert!(output.status.success() && help.contains("Usage: "), "{words:?}: {help}");
        let further = below(&words);
        let line = help.lines().find(|line| line.chars().count() > 100);
        assert_eq!(line, None, "{words:?} has a line that no terminal shows whole");
        let examples = help.lines().skip_while(|line| !line.starts_with("Examples:")).skip(1);
        let examples: Vec<&str> = examples.take_while(|line| !line.is_empty()).collect();
        assert!(!further.is_empty() || examples.iter().any(|line| line.contains("quorate ")), "{words:?}: {help}");
        for example in examples {
            assert!(example.chars().count() <= 80, "{words:?}: `{example}`");
        }
        left.extend(
            further.into_iter().map(|name| words.iter().map(|word| (*word).to_owned()).chain([name]).collect()),
        );
        seen += 1;
    }
    assert!(seen > 50, "{seen}");
}

#[test]
fn a_command_line_that_is_not_understood_ends_with_64() {
    insta::assert_snapshot!(shown(&["data", "ini"]));
    insta::assert_snapshot!(shown(&["explain"]));
    insta::assert_snapshot!(shown(&["demo", "--base-port", "99999"]));
    insta::assert_snapshot!(shown(&["--output", "json", "dta"]));
    for words in [&[][..], &["data"], &["--no-such-flag"], &["explain", "Q0001", "--list"]] {
        let output = run(words);
        assert_eq!(output.status.code(), Some(64), "{words:?}");
        assert!(output.stdout.is_empty(), "{words:?}");
    }
}

#[test]
fn an_error_names_attempt_way_out_and_page() {
    insta::assert_snapshot!(shown(&["explain", "Q9999"]));
    insta::assert_snapshot!(shown(&["explain", "Q9999", "--output", "json"]));
}

#[test]
fn explain_renders_a_page_as_text() {
    insta::assert_snapshot!(shown(&["explain", "4"]));
}

#[test]
fn explain_lists_every_code_in_both_forms() {
    let text = String::from_utf8(run(&["explain", "--list"]).stdout).expect("text");
    assert_eq!(text.lines().count(), Code::ALL.len() + 1);
    let list = json(&run(&["explain", "--list", "--output", "json"]));
    let codes = list["codes"].as_array().expect("a list");
    assert_eq!(codes.len(), Code::ALL.len());
    assert!(codes.iter().all(|entry| entry["title"].as_str().is_some_and(|title| !title.is_empty())));
    for code in Code::ALL {
        let page = json(&run(&["explain", code.as_str(), "--output", "json"]));
        assert_eq!(page["code"], code.as_str());
        assert_eq!(page["exit"], code.exit() as u8);
    }
}

#[test]
fn the_version_is_printed() {
    assert_eq!(shown(&["--version"]), format!("exit 0\n--- stdout\nquorate {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn every_shell_gets_a_completion_script() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = run(&["completions", shell]);
        let script = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && script.contains("quorate") && script.contains("inspect"), "{shell}");
    }
    let bash = run(&["completions", "bash"]).stdout;
    let mut check = Command::new("bash").arg("-n").stdin(Stdio::piped()).spawn().expect("bash runs");
    std::io::Write::write_all(&mut check.stdin.take().expect("a pipe"), &bash).expect("bash reads");
    assert!(check.wait().expect("bash ends").success(), "bash does not accept its script");
    assert_eq!(json(&run(&["completions", "zsh", "--output", "json"]))["shell"], "zsh");
}

#[test]
fn colour_is_for_terminals_and_for_those_who_ask() {
    let escape = |output: &Output| output.stdout.contains(&0x1b) || output.stderr.contains(&0x1b);
    assert!(!escape(&run(&["explain", "Q0001"])));
    assert!(escape(&run(&["explain", "Q0001", "--color", "always"])));
    assert!(!escape(&run(&["explain", "Q9999"])));
    assert!(escape(&run(&["explain", "Q9999", "--color", "always"])));
    assert!(!escape(&run(&["explain", "Q0001", "--color", "never"])));
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let script = format!("'{}' explain --list | head -n 1; echo \"${{PIPESTATUS[0]}}\"", env!("CARGO_BIN_EXE_quorate"));
    let output = Command::new("bash").args(["-c", &script]).output().expect("bash runs");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "CODE   EXIT  TITLE\n0\n");
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    // The reader is gone before the first byte.
    let mut child = quorate(&["explain", "--list"]).stdout(Stdio::piped()).spawn().expect("the binary runs");
    drop(child.stdout.take());
    assert!(child.wait().expect("it ends").success());
}

#[test]
fn a_full_disk_under_stdout_is_an_error() {
    let full = File::options().write(true).open("/dev/full").expect("/dev/full");
    let output = quorate(&["explain", "--list"]).stdout(full).output().expect("the binary runs");
    assert_eq!(output.status.code(), Some(75));
    assert!(String::from_utf8_lossy(&output.stderr).starts_with("error: cannot write the result to stdout [Q0005]"));
}
