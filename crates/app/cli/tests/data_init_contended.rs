//! `quorate data init` when it is not alone, and when the disk does not play along.

#![expect(clippy::disallowed_methods, reason = "scenery in a directory that is thrown away")]

mod init_support;

use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};

use quorate_testkit::{Launch, Seat, Server, etcd, quorate, strace};

use init_support::*;

fn args<'a>(dir: &'a str, token: &'a str) -> [&'a str; 8] {
    ["--data-dir", dir, "--token", token, "--name", "n1", "--member", "n1=http://127.0.0.1:2380"]
}

#[test]
fn a_left_over_is_reported_and_replaced() {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(root.path().join("d.partial-17/member/snap")).unwrap();
    std::fs::write(root.path().join("d.partial-17/member/snap/db"), b"half").unwrap();
    std::fs::create_dir_all(root.path().join("d.partial-mine")).unwrap();
    std::fs::create_dir_all(root.path().join("e/member.partial-18/wal")).unwrap();
    let planned = init(root.path(), &[&args("d", "t")[..], &["--dry-run"]].concat());
    assert!(planned.stderr.contains("Q0206"), "{}", planned.stderr);
    assert!(root.path().join("d.partial-17").exists());
    for dir in ["d", "e"] {
        let run = init(root.path(), &args(dir, "t"));
        assert_eq!(run.exit, 0, "{}", run.stderr);
        assert!(run.stderr.contains("Q0206"), "{}", run.stderr);
        assert_eq!(init(root.path(), &args(dir, "t")).stderr, "");
    }
    // What merely looks like one is not ours.
    assert!(root.path().join("d.partial-mine").exists());
    assert!(!root.path().join("d.partial-17").exists());
    assert!(!root.path().join("e/member.partial-18").exists());
}

#[test]
fn a_left_over_beside_a_whole_member_is_cleared_without_touching_the_member() {
    let root = tempfile::tempdir().unwrap();
    init_json(root.path(), &args("d", "t"));
    let before = times(&root.path().join("d"));
    std::fs::create_dir(root.path().join("d.partial-17")).unwrap();
    let run = init(root.path(), &args("d", "t"));
    assert_eq!(run.exit, 0, "{}", run.stderr);
    assert!(run.stderr.contains("Q0206"), "{}", run.stderr);
    assert!(!root.path().join("d.partial-17").exists());
    assert_eq!(times(&root.path().join("d")), before);
}

#[test]
fn a_partial_dir_that_somebody_works_on_is_left_to_them() {
    let root = tempfile::tempdir().unwrap();
    for (partial, dir) in [("d.partial-17", "d"), ("e/member.partial-17", "e")] {
        let partial = root.path().join(partial);
        std::fs::create_dir_all(&partial).unwrap();
        let held = File::open(&partial).unwrap();
        held.lock().unwrap();
        let run = init(root.path(), &args(dir, "t"));
        assert_eq!(run.exit, 75, "{}", run.stderr);
        assert!(run.stderr.contains("Q0207"), "{}", run.stderr);
        assert!(partial.exists());
        drop(held);
        assert_eq!(init(root.path(), &args(dir, "t")).exit, 0);
        assert!(!partial.exists());
    }
}

#[test]
fn of_runs_at_the_same_time_one_wins_and_the_result_is_never_a_mix() {
    for round in 0..6 {
        let root = tempfile::tempdir().unwrap();
        if round % 2 == 1 {
            std::fs::create_dir(root.path().join("d")).unwrap();
        }
        let wal: &[&str] = if round % 3 == 2 { &["--wal-dir", "w"] } else { &[] };
        // Two clusters compete for one directory.
        let tokens = ["a", "b", "a", "b", "a", "b"];
        let children: Vec<_> = tokens
            .iter()
            .map(|token| {
                let mut command = Command::new(quorate());
                command.current_dir(root.path()).args(["data", "init"]).args(args("d", token)).args(wal);
                (token, command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap())
            })
            .collect();
        let ended: Vec<_> = children
            .into_iter()
            .map(|(token, child)| {
                let output = child.wait_with_output().unwrap();
                (*token, output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
            })
            .collect();
        let winners: std::collections::BTreeSet<_> =
            ended.iter().filter(|(_, code, _)| *code == Some(0)).map(|(token, ..)| *token).collect();
        assert_eq!(winners.len(), 1, "{ended:?}");
        assert!(ended.iter().all(|(_, code, _)| matches!(code, Some(0 | 5 | 75))), "{ended:?}");
        let winner = winners.first().unwrap();
        // The same as if the winner had been alone.
        let alone = tempfile::tempdir().unwrap();
        if round % 2 == 1 {
            std::fs::create_dir(alone.path().join("d")).unwrap();
        }
        init_json(alone.path(), &[&args("d", winner)[..], wal].concat());
        init_json(root.path(), &[&args("d", winner)[..], wal].concat());
        assert_eq!(read(root.path()), read(alone.path()), "{ended:?}");
    }
}

/// A run in which one system call fails.
fn failing(root: &Path, inject: &str, args: &[&str]) -> Run {
    let mut command = Command::new(strace());
    let name = inject.split(':').next().unwrap_or_default();
    command.current_dir(root).args(["-f", "-qq", "-o", "/dev/null", "-e", &format!("trace={name}")]);
    command.args(["-e", &format!("inject={inject}")]).arg(quorate()).args(["data", "init"]).args(args);
    Run::of(&mut command)
}

#[test]
fn a_full_or_failing_disk_is_named_and_nothing_half_made_remains() {
    let cases = [
        ("write:error=ENOSPC:when=1", 75, "Q0005"),
        ("write:error=ENOSPC:when=3", 75, "Q0005"),
        ("write:error=EDQUOT:when=2", 75, "Q0005"),
        ("fsync:error=EIO:when=2", 2, "Q0002"),
        ("fsync:error=EIO:when=5", 2, "Q0002"),
        ("?mkdir,?mkdirat:error=EROFS:when=1", 2, "Q0002"),
        ("?mkdir,?mkdirat:error=ENOSPC:when=2", 75, "Q0005"),
        ("?mkdir,?mkdirat:error=EACCES:when=1", 2, "Q0006"),
        ("?rename,?renameat2:error=EIO:when=1", 2, "Q0002"),
    ];
    for (inject, exit, code) in cases {
        for wal in [&[][..], &["--wal-dir", "w"]] {
            let root = tempfile::tempdir().unwrap();
            let run = failing(root.path(), inject, &[&args("d", "t")[..], wal].concat());
            assert_eq!(run.exit, exit, "{inject}: {}", run.stderr);
            assert!(run.stderr.contains(code), "{inject}: {}", run.stderr);
            assert!(run.stderr.contains(&root.path().canonicalize().unwrap().display().to_string()), "{}", run.stderr);
            assert_eq!(names(root.path()), [] as [&str; 0], "{inject}");
            assert_eq!(init(root.path(), &[&args("d", "t")[..], wal].concat()).exit, 0);
        }
    }
}

#[test]
fn a_file_system_that_cannot_rename_without_replacing_is_coped_with() {
    for (layout, wal) in [("d", &[][..]), ("e", &[]), ("e", &["--wal-dir", "f"])] {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("e")).unwrap();
        std::fs::create_dir(root.path().join("f")).unwrap();
        let run = failing(root.path(), "renameat2:error=EINVAL", &[&args(layout, "t")[..], wal].concat());
        assert_eq!(run.exit, 0, "{}", run.stderr);
        let again = init_json(root.path(), &[&args(layout, "t")[..], wal].concat());
        assert_eq!(again["outcome"], "already");
        assert!(names(root.path()).iter().all(|name| !name.contains(".partial-")));
    }
}

#[test]
fn with_members_given_no_thread_is_started_and_no_socket_is_opened() {
    let root = tempfile::tempdir().unwrap();
    let calls = "?clone,?clone3,?fork,?vfork,?socket,?connect,?epoll_create1,?io_uring_setup";
    let mut command = Command::new(strace());
    command.current_dir(root.path()).args(["-f", "-qq", "-o", "trace", "-e", &format!("trace={calls}")]);
    let run = Run::of(command.arg(quorate()).args(["data", "init"]).args(args("d", "t")));
    assert_eq!(run.exit, 0, "{}", run.stderr);
    assert_eq!(std::fs::read_to_string(root.path().join("trace")).unwrap(), "");
}

#[test]
fn a_running_etcd_is_recognised_and_left_alone() {
    let tools = etcd("3.5.16");
    let root = tempfile::tempdir().unwrap();
    let seat = Seat::new("n1");
    let member = format!("n1={}", seat.peer_url());
    for wal in [&[][..], &["--wal-dir", "w"]] {
        let dir = if wal.is_empty() { "d" } else { "e" };
        let with =
            |token| [&["--data-dir", dir, "--token", token, "--name", "n1", "--member", &member][..], wal].concat();
        init_json(root.path(), &with("t"));
        let mut launch = Launch::new(&tools, &seat, &root.path().join(dir));
        if !wal.is_empty() {
            launch = launch.arg(format!("--wal-dir={}", root.path().join("w").display()));
        }
        let server: Server = launch.start();
        assert_eq!(init_json(root.path(), &with("t"))["running"], true);
        let run = init(root.path(), &with("other"));
        assert_eq!(run.exit, 5, "{}", run.stderr);
        assert!(run.stderr.contains("Q0203"), "{}", run.stderr);
        if wal.is_empty() {
            assert!(run.stderr.contains(&format!("(process {})", server.pid())), "{}", run.stderr);
        }
        server.ctl(&["put", "still", "here"]);
        server.stop();
        // It has a history now, and is still this member.
        assert_eq!(init_json(root.path(), &with("t"))["outcome"], "already");
    }
    // With its data dir gone, the WAL's history keeps it from being founded again.
    std::fs::rename(root.path().join("e"), root.path().join("lost")).unwrap();
    let run =
        init(root.path(), &["--data-dir", "e", "--wal-dir", "w", "--token", "t", "--name", "n1", "--member", &member]);
    assert_eq!(run.exit, 5, "{}", run.stderr);
    assert!(run.stderr.contains("Q0208") && run.stderr.contains("has been written to since"), "{}", run.stderr);
    assert!(!root.path().join("e").exists());
}
