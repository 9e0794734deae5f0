//! `quorate data init` as its users run it: what it makes, what it says, what it refuses.

#![expect(clippy::disallowed_methods, reason = "scenery in a directory that is thrown away")]

mod init_support;

use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;

use init_support::*;

const THREE: [&str; 6] = [
    "--member",
    "n1=http://127.0.0.1:2380",
    "--member",
    "n2=http://127.0.0.1:2381",
    "--member",
    "n3=http://127.0.0.1:2382",
];

fn three<'a>(name: &'a str, dir: &'a str) -> Vec<&'a str> {
    [&["--name", name, "--data-dir", dir, "--token", "t"][..], &THREE].concat()
}

#[test]
fn with_nothing_but_a_data_dir_it_is_the_member_that_etcd_itself_would_found() {
    let root = tempfile::tempdir().unwrap();
    let done = init_json(root.path(), &["--data-dir", "n"]);
    assert_eq!(done["outcome"], "made");
    assert_eq!(done["name"], "default");
    // What every etcd that is started without flags shows.
    assert_eq!(done["cluster_id"], "cdf818194e3a8c32");
    assert_eq!(done["member_id"], "8e9e05c52164694d");
    assert_eq!(
        names(root.path()),
        [
            "n",
            "n/member",
            "n/member/snap",
            "n/member/snap/0000000000000001-0000000000000001.snap",
            "n/member/snap/db",
            "n/member/wal",
            "n/member/wal/0000000000000000-0000000000000000.wal",
        ]
    );
    for (path, node) in read(root.path()).into_iter().skip(1) {
        assert_eq!(node.mode, if node.bytes.is_some() { 0o600 } else { 0o700 }, "{}", path.display());
    }
}

#[test]
fn machines_that_know_nothing_of_each_other_agree() {
    let root = tempfile::tempdir().unwrap();
    let made: Vec<_> = ["n1", "n2", "n3"].map(|name| init_json(root.path(), &three(name, name))).into();
    assert!(made.iter().all(|one| one["cluster_id"] == made[0]["cluster_id"]));
    let ids = |one: &serde_json::Value| -> Vec<String> {
        one["members"].as_array().unwrap().iter().map(|member| member["id"].as_str().unwrap().to_owned()).collect()
    };
    assert!(made.iter().all(|one| ids(one) == ids(&made[0])));
    let own: std::collections::BTreeSet<_> = made.iter().map(|one| one["member_id"].to_string()).collect();
    assert_eq!(own.len(), 3);
    // All but the WAL, which says who one is, is the same on each.
    let db = |name: &str| std::fs::read(root.path().join(name).join("member/snap/db")).unwrap();
    assert_eq!(db("n1"), db("n2"));
}

#[test]
fn the_text_names_the_ids_the_members_and_the_next_command() {
    let root = tempfile::tempdir().unwrap();
    let run = init(root.path(), &three("n2", "d"));
    let dir = root.path().canonicalize().unwrap().join("d").display().to_string();
    insta::assert_snapshot!(run.stdout.replace(&dir, "/DIR"), @r"
    made `/DIR`: member `n2` of a cluster of 3

    cluster id    9536d33f34c1150c
    member id     be0508363396fb35
    token         t
    members from  --member

    ID                NAME  PEER URLS
    5b941b0d71c9917e  n1    http://127.0.0.1:2380
    be0508363396fb35  n2    http://127.0.0.1:2381  this one
    905ca0b1c449f153  n3    http://127.0.0.1:2382

    start it with:
      etcd --name n2 --data-dir /DIR --listen-peer-urls http://127.0.0.1:2381 --listen-client-urls http://127.0.0.1:2379 --advertise-client-urls http://127.0.0.1:2379
    ");
    let again = init(root.path(), &three("n2", "d"));
    assert_eq!(
        again.stdout.lines().next().unwrap_or_default(),
        format!("`{dir}` is already member `n2` of a cluster of 3; nothing was changed")
    );
}

#[test]
fn a_dry_run_lists_exactly_what_a_run_makes_and_writes_nothing() {
    for layout in [&["--data-dir", "a/n"][..], &["--data-dir", "e"], &["--data-dir", "a/n", "--wal-dir", "b/w"]] {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("e")).unwrap();
        let before = read(root.path());
        let planned = init_json(root.path(), &[layout, &["--dry-run"]].concat());
        assert_eq!(planned["outcome"], "would_make");
        assert_eq!(read(root.path()), before);
        init_json(root.path(), layout);
        let after = read(root.path());
        let mut made: Vec<(String, String, Option<u64>)> = after
            .iter()
            .filter(|(path, _)| !before.contains_key(*path))
            .map(|(path, node)| {
                let at = root.path().canonicalize().unwrap().join(path).display().to_string();
                (at, format!("{:04o}", node.mode), node.bytes.as_ref().map(|bytes| bytes.len() as u64))
            })
            .collect();
        let mut listed: Vec<(String, String, Option<u64>)> = planned["would_write"]
            .as_array()
            .unwrap()
            .iter()
            .map(|row| {
                let text = |key: &str| row[key].as_str().unwrap().to_owned();
                (text("path"), text("mode"), row["size"].as_u64())
            })
            .collect();
        made.sort();
        listed.sort();
        assert_eq!(listed, made);
    }
}

#[test]
fn run_again_it_says_so_and_touches_nothing() {
    for wal in [&[][..], &["--wal-dir", "w"]] {
        let root = tempfile::tempdir().unwrap();
        let args = [&three("n1", "d"), wal].concat();
        let first = init_json(root.path(), &args);
        let before = (read(root.path()), times(root.path()));
        for _ in 0..2 {
            let again = init_json(root.path(), &args);
            assert_eq!(again["outcome"], "already");
            assert_eq!(again["running"], false);
            assert_eq!(again["member_id"], first["member_id"]);
        }
        assert_eq!((read(root.path()), times(root.path())), before);
        let planned = init_json(root.path(), &[&args[..], &["--dry-run"]].concat());
        assert_eq!(planned["outcome"], "already");
    }
}

#[test]
fn every_other_target_is_refused_and_left_as_it_is() {
    let root = tempfile::tempdir().unwrap();
    let at = |name: &str| root.path().join(name);
    init_json(root.path(), &three("n1", "d"));
    init_json(root.path(), &[&three("n1", "s")[..], &["--wal-dir", "sw"]].concat());
    // A damaged WAL, a db without a WAL, a WAL without a db.
    for name in ["torn", "no-wal", "no-db"] {
        init_json(root.path(), &three("n1", name));
    }
    let segment = "member/wal/0000000000000000-0000000000000000.wal";
    std::fs::write(at("torn").join(segment), b"not a WAL").unwrap();
    std::fs::remove_file(at("no-wal").join(segment)).unwrap();
    std::fs::remove_file(at("no-db").join("member/snap/db")).unwrap();
    std::fs::write(at("file"), b"x").unwrap();
    std::fs::create_dir(at("notes")).unwrap();
    std::fs::write(at("notes/a.txt"), b"x").unwrap();
    symlink("nowhere", at("dangling")).unwrap();
    let member = at("d").join("member").display().to_string();
    let other_token = |dir| [&["--name", "n1", "--data-dir", dir, "--token", "other"][..], &THREE].concat();
    let with_wal = |mut args: Vec<&'static str>, wal| {
        args.extend(["--wal-dir", wal]);
        args
    };
    let before = read(root.path());
    let cases: [(Vec<&str>, &str, &str); 13] = [
        (other_token("d"), "Q0201", "of cluster `"),
        (three("n2", "d"), "Q0202", "(`n1`) of cluster"),
        (with_wal(three("n2", "s"), "sw"), "Q0202", "sw`"),
        (with_wal(other_token("new"), "sw"), "Q0201", "sw`"),
        (three("n1", "torn"), "Q0204", "cannot be understood"),
        (three("n1", "file"), "Q0205", "it is a file, not a directory"),
        (three("n1", "file/x"), "Q0205", "a part of its path is a file"),
        (three("n1", "notes"), "Q0205", "`a.txt`"),
        (three("n1", "dangling"), "Q0205", "leads nowhere"),
        (three("n1", &member), "Q0205", "give the directory above it"),
        (three("n1", "no-wal"), "Q0208", "a db without its WAL"),
        (three("n1", "no-db"), "Q0208", "`member/snap/db` is missing"),
        (three("n1", "s"), "Q0208", "a db without its WAL"),
    ];
    for (args, code, words) in cases {
        for dry in [&[][..], &["--dry-run"]] {
            let run = init(root.path(), &[&args[..], dry].concat());
            assert_eq!(run.exit, 5, "{args:?}: {}", run.stderr);
            assert!(run.stderr.contains(code) && run.stderr.contains(words), "{args:?}: {}", run.stderr);
            assert!(run.stderr.contains("hint: "), "{}", run.stderr);
        }
    }
    assert_eq!(read(root.path()), before);
}

#[test]
fn what_may_not_be_read_is_not_taken_for_empty() {
    let root = tempfile::tempdir().unwrap();
    open_to_all(root.path());
    let locked = root.path().join("locked");
    std::fs::create_dir(&locked).unwrap();
    std::fs::set_permissions(&locked, std::os::unix::fs::PermissionsExt::from_mode(0o000)).unwrap();
    let run = init_as_nobody(root.path(), &three("n1", "locked"));
    assert_eq!(run.exit, 5, "{}", run.stderr);
    assert!(run.stderr.contains("Q0204") && run.stderr.contains("Permission denied"), "{}", run.stderr);
    // Below it, too.
    let run = init_as_nobody(root.path(), &three("n1", "locked/d"));
    assert_eq!(run.exit, 5, "{}", run.stderr);
    // And a parent that may not be written to is a plain failure, with nothing left.
    let closed = root.path().join("closed");
    std::fs::create_dir(&closed).unwrap();
    std::fs::set_permissions(&closed, std::os::unix::fs::PermissionsExt::from_mode(0o555)).unwrap();
    let run = init_as_nobody(root.path(), &three("n1", "closed/d"));
    assert_eq!(run.exit, 2, "{}", run.stderr);
    assert!(run.stderr.contains("Q0006"), "{}", run.stderr);
    assert_eq!(names(&closed), [] as [&str; 0]);
}

#[test]
fn paths_may_be_spelled_as_one_likes() {
    let root = tempfile::tempdir().unwrap();
    init_json(root.path(), &three("n1", "a/b/c/"));
    assert!(root.path().join("a/b/c/member/snap/db").exists());
    assert_eq!(root.path().join("a/b").metadata().unwrap().mode() & 0o7777, 0o700);
    assert_eq!(init_json(root.path(), &three("n1", "./a//b/./c"))["outcome"], "already");
    // A link to an empty dir is filled through the link.
    std::fs::create_dir(root.path().join("real")).unwrap();
    symlink("real", root.path().join("link")).unwrap();
    assert_eq!(init_json(root.path(), &three("n1", "link"))["outcome"], "made");
    assert!(root.path().join("link").symlink_metadata().unwrap().is_symlink());
    assert_eq!(init_json(root.path(), &three("n1", "real/"))["outcome"], "already");
    // The current directory itself.
    let here = root.path().join("here");
    std::fs::create_dir(&here).unwrap();
    assert_eq!(init_json(&here, &three("n1", "."))["outcome"], "made");
    assert!(here.join("member/snap/db").exists());
    // A mounted disk has a directory of its own.
    std::fs::create_dir_all(root.path().join("disk/lost+found")).unwrap();
    assert_eq!(init_json(root.path(), &three("n1", "disk"))["outcome"], "made");
    // Where etcd puts the WAL anyway, and a place beside it.
    init_json(root.path(), &[&three("n1", "w1")[..], &["--wal-dir", "w1/member/wal"]].concat());
    assert_eq!(init_json(root.path(), &three("n1", "w1"))["outcome"], "already");
    let inside = [&three("n1", "w2")[..], &["--wal-dir", "w2/wal"]].concat();
    init_json(root.path(), &inside);
    assert!(root.path().join("w2/wal/0000000000000000-0000000000000000.wal").exists());
    assert_eq!(init_json(root.path(), &inside)["outcome"], "already");
}

#[test]
fn an_empty_directory_keeps_its_owner_and_mode_and_its_files_get_the_owner() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("d");
    std::fs::create_dir(&dir).unwrap();
    std::fs::set_permissions(&dir, std::os::unix::fs::PermissionsExt::from_mode(0o750)).unwrap();
    if is_root() {
        std::os::unix::fs::chown(&dir, Some(NOBODY), Some(NOBODY)).unwrap();
    }
    let owner = |path: &Path| path.metadata().map(|meta| (meta.uid(), meta.gid())).unwrap();
    let of_dir = owner(&dir);
    init_json(root.path(), &three("n1", "d"));
    assert_eq!(dir.metadata().unwrap().mode() & 0o7777, 0o750);
    for path in names(&dir) {
        assert_eq!(owner(&dir.join(&path)), of_dir, "{path}");
    }
    // The same beside: in somebody's directory, a new data dir is theirs.
    init_json(root.path(), &three("n1", "d/sub/new"));
    assert_eq!(owner(&dir.join("sub/new/member/snap/db")), of_dir);
}

#[test]
fn bad_command_lines_are_refused_before_anything_is_written() {
    let root = tempfile::tempdir().unwrap();
    let cases: [(&[&str], i32, &str); 10] = [
        (&["--data-dir", "d", "--wal-dir", "d"], 64, "it would mix with"),
        (&["--data-dir", "d", "--wal-dir", "d/member/x"], 64, "it would mix with"),
        (&["--data-dir", ""], 64, "a value is required"),
        (&["--data-dir", "/"], 64, "no name of its own"),
        (&["--data-dir", "d", "--etcd-version", "3.3"], 64, "3.4, 3.5, 3.6 or 3.7"),
        (
            &["--data-dir", "d", "--member", "a=http://h:1", "--source", "static:a=http://h:1"],
            64,
            "cannot be used with",
        ),
        (&["--data-dir", "d", "--source-cacert", "x"], 64, "--source"),
        (&["--data-dir", "d", "--member", "a=http://h:1", "--member", "b=http://i:1"], 4, "Q0108"),
        (&["--data-dir", "d", "--name", "c", "--member", "a=http://h:1"], 4, "Q0107"),
        (&["--data-dir", "d", "--name", "a", "--member", "a=http://h:1", "--expect", "3"], 3, "Q0111"),
    ];
    for (args, exit, words) in cases {
        let run = init(root.path(), args);
        assert_eq!(run.exit, exit, "{args:?}: {}", run.stderr);
        assert!(run.stderr.contains(words), "{args:?}: {}", run.stderr);
    }
    assert_eq!(names(root.path()), [] as [&str; 0]);
}

#[test]
fn a_source_gives_the_same_member_as_flags_do_and_a_silent_one_founds_nothing() {
    let root = tempfile::tempdir().unwrap();
    let flags = init_json(root.path(), &three("n2", "flags"));
    std::fs::write(
        root.path().join("members.yaml"),
        "- {name: n1, peer_urls: ['http://127.0.0.1:2380']}\n\
         - {name: n2, peer_urls: ['http://127.0.0.1:2381']}\n\
         - {name: n3, peer_urls: ['http://127.0.0.1:2382']}\n",
    )
    .unwrap();
    let sources = [
        "static:n1=http://127.0.0.1:2380,n2=http://127.0.0.1:2381,n3=http://127.0.0.1:2382",
        "file:members.yaml",
        "exec:cat members.yaml",
    ];
    for (at, source) in sources.into_iter().enumerate() {
        let dir = at.to_string();
        let with = |more: &[&'static str]| {
            let args = ["--name", "n2", "--data-dir", &dir, "--token", "t", "--source", source, "--expect", "3"];
            init_json(root.path(), &[&args[..], more].concat())
        };
        let made = with(&[]);
        assert_eq!((&made["cluster_id"], &made["member_id"]), (&flags["cluster_id"], &flags["member_id"]), "{source}");
        assert_eq!(read(&root.path().join(&dir)), read(&root.path().join("flags")), "{source}");
        assert_eq!(with(&["--dry-run"])["outcome"], "already");
    }
    let before = names(root.path());
    // Nobody listens on the discard port.
    let run = init(root.path(), &["--name", "n2", "--data-dir", "none", "--source", "http://127.0.0.1:9/members"]);
    assert_eq!(run.exit, 6, "{}", run.stderr);
    let run = init(root.path(), &["--name", "n2", "--data-dir", "none", "--source", "file:absent.yaml"]);
    assert_ne!(run.exit, 0, "{}", run.stderr);
    let short = ["--name", "n1", "--data-dir", "none", "--source", "exec:head -n 1 members.yaml", "--expect", "3"];
    let run = init(root.path(), &[&short[..], &["--wait", "1s"]].concat());
    assert_eq!(run.exit, 3, "{}", run.stderr);
    assert!(run.stderr.contains("Q0111"), "{}", run.stderr);
    assert_eq!(names(root.path()), before);
}
