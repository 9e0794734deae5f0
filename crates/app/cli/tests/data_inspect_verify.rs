//! `quorate data inspect` and `data verify` as their users run them: on good and bad data, and on what is no data at all.
//!
//! **Rule:** whatever they are pointed at, not a byte and not a time of it changes.

#![expect(clippy::disallowed_methods, clippy::unwrap_used, reason = "scenery in a directory that is thrown away")]

mod init_support;

use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use init_support::{NOBODY, Run, init_json, is_root, open_to_all, read, times};
use quorate_testkit::{copy_program, expected, fixture_dir, kill_hard, quorate, run, snapshot_bytes};
use serde_json::Value;
use tempfile::TempDir;

const DB: &str = "member/snap/db";
const VERBS: [&str; 2] = ["inspect", "verify"];

/// Runs a verb of `data` and shows that it left everything below `root` alone.
fn data(root: &Path, args: &[&str]) -> Run {
    let before = (read(root), times(root));
    let run = Run::of(Command::new(quorate()).current_dir(root).arg("data").args(args));
    assert!(before == (read(root), times(root)), "{args:?} changed something");
    run
}

fn data_json(root: &Path, args: &[&str]) -> (i32, Value) {
    let run = data(root, &[args, &["--output", "json"]].concat());
    let json = serde_json::from_str(&run.stdout);
    (run.exit, json.unwrap_or_else(|error| panic!("{args:?}: {error}: {}{}", run.stdout, run.stderr)))
}

fn codes(report: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let findings = report["findings"].as_array().unwrap_or_else(|| panic!("no findings in {report}"));
    findings.iter().map(|finding| (text(&finding["code"]), text(&finding["severity"]))).collect()
}

fn errors(report: &Value) -> Vec<String> {
    codes(report).into_iter().filter(|(_, severity)| severity == "error").map(|(code, _)| code).collect()
}

/// A directory with a founded member in `n1`.
fn founded() -> (TempDir, Value) {
    let root = tempfile::tempdir().unwrap();
    let said = init_json(root.path(), &["--data-dir", "n1"]);
    (root, said)
}

fn change(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = std::fs::read(path).unwrap();
    change(&mut bytes);
    std::fs::write(path, bytes).unwrap();
}

fn make_fifo(path: &Path) {
    run(Command::new("mkfifo").arg(path));
}

#[test]
fn a_founded_member_is_valid_and_tells_who_it_is() {
    let (root, said) = founded();
    let (exit, found) = data_json(root.path(), &["inspect", "n1", "--count"]);
    assert_eq!(exit, 0);
    for id in ["cluster_id", "member_id"] {
        assert_eq!(found[id], said[id]);
        assert!(found[id].as_str().unwrap().bytes().all(|byte| byte.is_ascii_hexdigit()));
    }
    assert_eq!(
        (&found["kind"], &found["running"], &found["name"]),
        (&"data_dir".into(), &false.into(), &"default".into())
    );
    assert_eq!((&found["revision"], &found["consistent_index"], &found["term"]), (&1.into(), &1.into(), &1.into()));
    assert_eq!((&found["keys"], &found["live_keys"], &found["auth_enabled"]), (&0.into(), &0.into(), &false.into()));
    assert_eq!(found["wal"]["segments"].as_array().unwrap().len(), 1);
    assert_eq!(found["raft_snapshot"]["voters"], serde_json::json!([said["member_id"]]));
    for mode in ["sanity", "full"] {
        let (exit, report) = data_json(root.path(), &["verify", "n1", "--mode", mode]);
        assert_eq!((exit, &report["valid"], &report["mode"]), (0, &true.into(), &mode.into()));
        assert_eq!(codes(&report), []);
    }
    let shown = data(root.path(), &["verify", "n1"]);
    assert!(shown.exit == 0 && shown.stdout.contains("`n1` is valid"), "{}", shown.stdout);
}

fn assert_snake_case(value: &Value, place: &str) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                let snake = key.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_'));
                assert!(snake, "`{key}` in {place}");
                assert_snake_case(value, &format!("{place}.{key}"));
            }
        }
        Value::Array(items) => items.iter().for_each(|item| assert_snake_case(item, place)),
        _ => {}
    }
}

#[test]
fn machines_get_snake_case_and_etcds_own_numbers() {
    let dir = fixture_dir("3.5.30");
    let (exit, found) = data_json(dir.path(), &["inspect", ".", "--count", "--hash"]);
    assert_eq!(exit, 0);
    assert_snake_case(&found, "inspect");
    for key in
        ["cluster_id", "member_id", "members", "storage_version", "revision", "compact_revision", "hash", "hashkv"]
    {
        assert!(found.get(key).is_some(), "`{key}` is missing");
    }
    let status = expected("3.5.30", "status");
    let header = &status[0]["Status"]["header"];
    let hex = |value: &Value| format!("{:x}", value.as_u64().unwrap());
    assert_eq!(found["cluster_id"], hex(&header["cluster_id"]).as_str());
    assert_eq!(found["member_id"], hex(&header["member_id"]).as_str());
    let (exit, report) = data_json(dir.path(), &["verify", "."]);
    assert_eq!((exit, codes(&report)), (0, vec![]));
    assert_snake_case(&report, "verify");
}

#[test]
fn damage_is_exit_1_with_code_place_and_way_out_and_inspect_tells_what_is_left() {
    let (root, said) = founded();
    let wal = root.path().join("n1/member/wal/0000000000000000-0000000000000000.wal");
    change(&wal, |wal| wal[100] ^= 1);
    for mode in ["sanity", "full"] {
        let (exit, report) = data_json(root.path(), &["verify", "n1", "--mode", mode]);
        assert_eq!((exit, &report["valid"]), (1, &false.into()));
        assert_eq!(errors(&report), ["Q0332"]);
        let finding = &report["findings"][0];
        assert_eq!(finding["file"], "member/wal/0000000000000000-0000000000000000.wal");
        assert!(finding["offset"].is_u64() && finding["what"].is_string() && finding["remedy"].is_string());
        assert_snake_case(&report, "verify");
    }
    let shown = data(root.path(), &["verify", "n1"]);
    assert!(shown.exit == 1 && shown.stdout.contains("[Q0332]") && shown.stdout.contains("is not valid (1 error)"));
    let (exit, found) = data_json(root.path(), &["inspect", "n1"]);
    assert_eq!((exit, &found["cluster_id"]), (0, &said["cluster_id"]));
    assert_eq!(found["unread"].as_array().unwrap().len(), 1, "{found}");
}

#[test]
fn warnings_alone_are_exit_0() {
    let (root, _) = founded();
    std::fs::set_permissions(root.path().join("n1/member/snap"), std::fs::Permissions::from_mode(0o755)).unwrap();
    let (exit, report) = data_json(root.path(), &["verify", "n1"]);
    assert_eq!((exit, codes(&report)), (0, vec![("Q0303".to_owned(), "warning".to_owned())]));
    let shown = data(root.path(), &["verify", "n1"]);
    assert!(shown.stdout.contains("is valid (1 warning)"), "{}", shown.stdout);
}

#[test]
fn a_snapshot_file_is_valid_until_one_byte_of_it_changes() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("backup.db");
    std::fs::write(&path, snapshot_bytes("3.5.30")).unwrap();
    let (exit, found) = data_json(root.path(), &["inspect", "backup.db"]);
    assert_eq!((exit, &found["kind"], &found["running"]), (0, &"snapshot".into(), &Value::Null));
    assert_eq!(found["hash"], expected("3.5.30", "snapshot-status")["hash"]);
    for mode in ["sanity", "full"] {
        let (exit, report) = data_json(root.path(), &["verify", "backup.db", "--mode", mode]);
        assert_eq!((exit, codes(&report)), (0, vec![]));
    }
    change(&path, |bytes| {
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
    });
    assert_eq!(data(root.path(), &["verify", "backup.db", "--mode", "sanity"]).exit, 0);
    let (exit, report) = data_json(root.path(), &["verify", "backup.db"]);
    assert_eq!((exit, errors(&report)), (1, vec!["Q0360".to_owned()]));
    assert_eq!(report["findings"][0]["file"], "backup.db");
}

#[test]
fn a_database_without_a_hash_is_a_warning() {
    let (root, _) = founded();
    std::fs::copy(root.path().join("n1").join(DB), root.path().join("copy.db")).unwrap();
    let (exit, report) = data_json(root.path(), &["verify", "copy.db"]);
    assert_eq!((exit, codes(&report)), (0, vec![("Q0361".to_owned(), "warning".to_owned())]));
    let (exit, found) = data_json(root.path(), &["inspect", "copy.db"]);
    assert_eq!((exit, &found["kind"]), (0, &"database".into()));
}

#[test]
fn junk_and_empty_files_are_no_databases() {
    let root = tempfile::tempdir().unwrap();
    let junk: Vec<u8> = (0..100_000u32).map(|number| (number.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    for (name, bytes) in
        [("junk", junk), ("empty", Vec::new()), ("zeros", vec![0; 65_536]), ("text", b"hello".to_vec())]
    {
        std::fs::write(root.path().join(name), bytes).unwrap();
        let (exit, fault) = data_json(root.path(), &["inspect", name]);
        assert_eq!((exit, &fault["error"]["code"]), (1, &"Q0401".into()), "{name}");
        for mode in ["sanity", "full"] {
            let (exit, report) = data_json(root.path(), &["verify", name, "--mode", mode]);
            assert_eq!(exit, 1, "{name}");
            assert!(errors(&report).iter().all(|code| code == "Q0310"), "{name}: {report}");
        }
    }
}

#[test]
fn what_is_not_there_or_is_no_data_dir_is_told_as_that() {
    let (root, _) = founded();
    std::fs::create_dir(root.path().join("other")).unwrap();
    for verb in VERBS {
        let (exit, fault) = data_json(root.path(), &[verb, "nowhere"]);
        assert_eq!((exit, &fault["error"]["code"]), (1, &"Q0402".into()));
        let (exit, fault) = data_json(root.path(), &[verb, "other"]);
        assert_eq!((exit, &fault["error"]["code"]), (1, &"Q0401".into()));
        let (_, fault) = data_json(root.path(), &[verb, "n1/member"]);
        let causes = fault["error"]["causes"].to_string();
        assert!(causes.contains("the data dir itself lies above it"), "{causes}");
    }
}

#[test]
fn a_data_dir_without_its_parts_is_told_part_by_part() {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(root.path().join("n1/member")).unwrap();
    std::fs::set_permissions(root.path().join("n1/member"), std::fs::Permissions::from_mode(0o700)).unwrap();
    let (exit, report) = data_json(root.path(), &["verify", "n1"]);
    assert_eq!((exit, errors(&report)), (1, vec!["Q0302".to_owned(); 2]));
    // There is nothing to tell, and a script must not take that for an answer.
    assert_eq!(data(root.path(), &["inspect", "n1"]).exit, 1);
}

#[test]
fn links_and_paths_with_spaces_lead_to_the_same() {
    let (root, said) = founded();
    std::fs::create_dir(root.path().join("a dir")).unwrap();
    std::fs::rename(root.path().join("n1"), root.path().join("a dir/n 1")).unwrap();
    symlink("a dir/n 1", root.path().join("link")).unwrap();
    symlink("a dir/n 1/member/snap/db", root.path().join("link.db")).unwrap();
    for path in ["a dir/n 1", "link", "link/", "./a dir/../link"] {
        let (exit, found) = data_json(root.path(), &["inspect", path]);
        assert_eq!((exit, &found["member_id"]), (0, &said["member_id"]), "{path}");
        let (exit, report) = data_json(root.path(), &["verify", path]);
        assert_eq!((exit, codes(&report)), (0, vec![]), "{path}");
    }
    assert_eq!(data(root.path(), &["inspect", "link.db"]).exit, 0);
    symlink("nowhere", root.path().join("dangling")).unwrap();
    let (exit, fault) = data_json(root.path(), &["verify", "dangling"]);
    assert_eq!((exit, &fault["error"]["code"]), (1, &"Q0402".into()));
}

#[test]
fn a_wal_elsewhere_is_found_where_it_is_named_and_missed_where_not() {
    let root = tempfile::tempdir().unwrap();
    let said = init_json(root.path(), &["--data-dir", "n1", "--wal-dir", "logs/my wal"]);
    let absolute = root.path().join("logs/my wal").display().to_string();
    for wal_dir in ["logs/my wal", "logs/my wal/", &absolute] {
        let (exit, report) = data_json(root.path(), &["verify", "n1", "--wal-dir", wal_dir]);
        assert_eq!((exit, codes(&report)), (0, vec![]), "{wal_dir}");
        let (exit, found) = data_json(root.path(), &["inspect", "n1", "--wal-dir", wal_dir]);
        assert_eq!((exit, &found["member_id"]), (0, &said["member_id"]), "{wal_dir}");
    }
    for args in [vec!["verify", "n1"], vec!["verify", "n1", "--wal-dir", "nowhere"]] {
        let (exit, report) = data_json(root.path(), &args);
        assert_eq!((exit, errors(&report)), (1, vec!["Q0302".to_owned()]), "{args:?}");
    }
}

/// Runs a verb with a limit: nobody writes into the FIFO, so whoever reads it waits for ever.
fn within_ten_seconds(root: &Path, args: &[&str]) -> (i32, String) {
    let mut command = Command::new(quorate());
    command.current_dir(root).arg("data").args(args).stdin(Stdio::null());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let start = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if start.elapsed() > Duration::from_secs(10) {
            kill_hard(child.id());
            panic!("{args:?} hangs");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let output = child.wait_with_output().unwrap();
    (output.status.code().unwrap_or(-1), String::from_utf8(output.stdout).unwrap())
}

#[test]
fn a_fifo_is_refused_and_not_waited_for() {
    let (root, _) = founded();
    make_fifo(&root.path().join("fifo"));
    for verb in VERBS {
        let (exit, said) = within_ten_seconds(root.path(), &[verb, "fifo", "--output", "json"]);
        assert_eq!(exit, 1);
        assert!(said.contains("Q0401"), "{said}");
        let (exit, said) = within_ten_seconds(root.path(), &[verb, "/dev/zero", "--output", "json"]);
        assert!(exit == 1 && said.contains("Q0401"), "{said}");
    }
    // In the place of each file of a data dir.
    let wal = root.path().join("n1/member/wal/0000000000000000-0000000000000000.wal");
    for (path, inspect_exit) in [(wal, 0), (root.path().join("n1").join(DB), 1)] {
        std::fs::remove_file(&path).unwrap();
        make_fifo(&path);
        let (exit, said) = within_ten_seconds(root.path(), &["verify", "n1", "--output", "json"]);
        let report: Value = serde_json::from_str(&said).unwrap();
        assert_eq!(exit, 1);
        assert!(errors(&report).iter().all(|code| code == "Q0002"), "{report}");
        // The database alone still tells something.
        assert_eq!(within_ten_seconds(root.path(), &["inspect", "n1"]).0, inspect_exit);
    }
}

/// Runs a verb as a user whom permission bits hold back; as the user we are, unless that is root.
fn data_as_nobody(root: &Path, args: &[&str]) -> Run {
    let place = tempfile::tempdir().unwrap();
    open_to_all(place.path());
    // The checkout may be closed to others.
    let program: PathBuf = place.path().join("quorate");
    copy_program(&quorate(), &program);
    let mut command = Command::new(&program);
    command.current_dir(root).arg("data").args(args);
    if is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    Run::of(&mut command)
}

#[test]
fn what_may_not_be_read_is_told_as_that() {
    let (root, _) = founded();
    for dir in ["", "n1", "n1/member", "n1/member/snap", "n1/member/wal"] {
        open_to_all(&root.path().join(dir));
    }
    let wal = "n1/member/wal/0000000000000000-0000000000000000.wal";
    let open = |path: &str, mode| {
        std::fs::set_permissions(root.path().join(path), std::fs::Permissions::from_mode(mode)).unwrap();
    };
    open("n1/member/snap/0000000000000001-0000000000000001.snap", 0o644);
    for (path, hidden) in [("n1/member/snap/db", wal), (wal, "n1/member/snap/db")] {
        open(path, 0o644);
        open(hidden, 0o000);
        let run = data_as_nobody(root.path(), &["verify", "n1", "--output", "json"]);
        let report: Value = serde_json::from_str(&run.stdout).unwrap();
        assert_eq!((run.exit, errors(&report)), (1, vec!["Q0002".to_owned()]), "{report}");
        assert!(run.stdout.contains("Permission denied"), "{report}");
        assert_eq!(data_as_nobody(root.path(), &["inspect", "n1"]).exit, 0);
    }
    let run = data_as_nobody(root.path(), &["verify", "n1/member/snap/db", "--output", "json"]);
    let fault: Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!((run.exit, &fault["error"]["code"]), (2, &"Q0006".into()));
}

#[test]
fn a_data_dir_that_may_not_be_entered_is_never_called_valid() {
    let (root, _) = founded();
    open_to_all(root.path());
    for verb in VERBS {
        let run = data_as_nobody(root.path(), &[verb, "n1", "--output", "json"]);
        assert_ne!(run.exit, 0, "{}", run.stdout);
    }
}
