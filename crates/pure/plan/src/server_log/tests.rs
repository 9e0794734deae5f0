//! Lines that real servers wrote.

use proptest::prelude::*;

use super::*;

fn utc(line: &Line) -> String {
    line.at.and_then(|at| at.in_zone(&TimeZone::UTC)).map(|at| at.to_string()).unwrap_or_default()
}

#[test]
fn json_of_every_release_is_read() {
    for (ts, expected) in [
        ("2026-11-16T02:14:36.051Z", "2026-11-16T02:14:36.051Z"),
        ("2026-11-16T02:14:36.120480Z", "2026-11-16T02:14:36.12048Z"),
        ("2026-11-16T03:14:36.120480+0100", "2026-11-16T02:14:36.12048Z"),
    ] {
        let line = format!(
            r#"{{"level":"warn","ts":"{ts}","caller":"etcdmain/etcd.go:176","msg":"failed to start etcd","name":"n1","urls":["a"],"error":"bind: address already in use"}}"#
        );
        let line = parse(&line).unwrap();
        assert_eq!((line.level, utc(&line).as_str()), (Level::Warn, expected));
        assert_eq!(line.text, "failed to start etcd: bind: address already in use");
        assert_eq!(line.fields, [("name".to_owned(), "n1".to_owned()), ("urls".to_owned(), r#"["a"]"#.to_owned())]);
    }
    let stack =
        r#"{"level":"panic","msg":"failed to create WAL","error":"no space left on device","stacktrace":"a\n\tb"}"#;
    let line = parse(stack).unwrap();
    assert_eq!((line.level, line.at, line.fields.len()), (Level::Fatal, None, 0));
}

#[test]
fn text_of_3_4_is_read_in_the_machines_own_time() {
    let line =
        parse("2026-11-16 02:14:36.089125 C | etcdmain: listen tcp 127.0.0.1:1: bind: address already in use").unwrap();
    assert_eq!((line.level, utc(&line).as_str()), (Level::Fatal, "2026-11-16T02:14:36.089125Z"));
    assert_eq!(line.text, "etcdmain: listen tcp 127.0.0.1:1: bind: address already in use");
    let east = TimeZone::fixed(jiff::tz::Offset::constant(1));
    assert_eq!(line.at.unwrap().in_zone(&east).unwrap().to_string(), "2026-11-16T01:14:36.089125Z");
    let line = parse("raft2026/11/16 02:14:58 INFO: e5e6da7bb27cce2c switched to configuration voters=(1)").unwrap();
    assert_eq!((line.level, utc(&line).as_str()), (Level::Info, "2026-11-16T02:14:58Z"));
    assert_eq!(line.text, "raft: e5e6da7bb27cce2c switched to configuration voters=(1)");
}

#[test]
fn crashes_are_grave_and_their_traces_belong_to_them() {
    for line in ["panic: failed to create WAL", "fatal error: out of memory", "flag provided but not defined: -x"] {
        assert_eq!(parse(line).unwrap().level, Level::Fatal, "{line}");
    }
    for line in
        ["goroutine 1 [running]:", "main.main()", "\tgo.etcd.io/etcd/main.go:28 +0x17", "", "{\"a\":1}", "Usage:"]
    {
        assert_eq!(parse(line), None, "{line}");
    }
}

#[test]
fn levels_have_an_order_and_words() {
    assert!(Level::Debug < Level::Info && Level::Warn < Level::Error && Level::Error < Level::Fatal);
    for (word, level) in Level::WORDS {
        assert_eq!((Level::parse(word), level.word()), (Some(level), word));
    }
    assert_eq!(Level::parse("dpanic"), Some(Level::Fatal));
    assert_eq!(Level::parse("loud"), None);
}

proptest! {
    #[test]
    fn no_line_panics(line in ".{0,80}", clock in "[0-9:./ -]{0,26}", level in "[A-Z]{1,5}") {
        let _ = parse(&line);
        let _ = parse(&format!("{clock} {level} | {line}"));
        let _ = parse(&format!("raft{clock} {level}: {line}"));
        let _ = parse(&format!(r#"{{"level":"info","ts":"{clock}","msg":"m"}}"#));
    }
}
