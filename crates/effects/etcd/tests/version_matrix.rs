//! Data dirs that `quorate data init` founds, under every etcd release: they boot without a single `--initial-*` flag,
//! with every check etcd can make of its own files, and live a whole life.

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

mod matrix_support;

use std::path::Path;
use std::process::Command;

use quorate_etcd_formats::bolt::Db;
use quorate_etcd_formats::bolt::build::BoltWriter;
use quorate_etcd_formats::mvcc::{Revision, RevisionKey};
use quorate_testkit::{Cluster, Seat, Server, Tools, VERSIONS, etcd, fixtures_root};

use matrix_support::*;

fn one_member_lives_on(version: &str) {
    let tools = etcd(version);
    let root = tempfile::tempdir().unwrap();
    let seat = Seat::new("solo");
    let (members, said) = found_all(root.path(), "matrix", std::slice::from_ref(&seat));
    let dir = &members[0].1;
    verify(dir);

    let server = Server::start(&tools, &seat, dir);
    assert_eq!(member_list(&server), promised(&said));
    put_many(&server, "early", 250);
    server.stop();
    verify(dir);

    let server = Server::start(&tools, &seat, dir);
    assert_eq!(server.get("early-0").as_deref(), Some("early-value-0"));
    let status = save_snapshot(&server, &root.path().join("snapshot.db"));
    assert!(status["totalKey"].as_u64().unwrap() >= 250, "{status}");
    put_many(&server, "early", 250);
    compact_and_defragment(&server);
    put_many(&server, "late", 100);

    let second = join(&tools, "second", root.path(), &[&server]);
    assert_eq!(local_keys(&second), local_keys(&server), "a member added later has every key");
    assert_eq!(local_keys(&second).as_array().unwrap().len(), 350);
    agree(&[&server, &second]);
    drop(second);
    server.kill();
    verify(dir);
}

#[test]
fn one_member_lives_on_3_4_23() {
    one_member_lives_on("3.4.23");
}

#[test]
fn one_member_lives_on_3_5_16() {
    one_member_lives_on("3.5.16");
}

#[test]
fn one_member_lives_on_the_newest() {
    one_member_lives_on("sid");
}

fn three_members_live_on(version: &str) {
    let tools = etcd(version);
    let root = tempfile::tempdir().unwrap();
    let (members, said) = found_all(root.path(), "matrix-3", &Seat::many(3));

    let cluster = Cluster::start(&tools, &members);
    for (i, server) in cluster.servers.iter().enumerate() {
        assert_eq!(member_list(server), promised(&said));
        server.ctl(&["put", &format!("through-{i}"), "yes"]);
    }
    put_many(&cluster.servers[0], "key", 200);
    for server in &cluster.servers {
        assert_eq!(server.get("through-2").as_deref(), Some("yes"));
    }
    agree(&refs(&cluster));
    let leaders = cluster.ctl_json(&["endpoint", "status"]);
    let leaders: Vec<_> = leaders.as_array().unwrap().iter().map(|one| one["Status"]["leader"].clone()).collect();
    assert!(leaders[0].as_u64().unwrap() != 0 && leaders.iter().all(|one| *one == leaders[0]), "{leaders:?}");
    cluster.stop();
    members.iter().for_each(|(_, dir)| verify(dir));

    let cluster = Cluster::start(&tools, &members);
    save_snapshot(&cluster.servers[1], &root.path().join("snapshot.db"));
    put_many(&cluster.servers[2], "key", 200);
    compact_and_defragment(&cluster.servers[0]);

    let fourth = join(&tools, "n4", root.path(), &refs(&cluster));
    assert_eq!(local_keys(&fourth), local_keys(&cluster.servers[0]), "a member added later has every key");
    let mut all = refs(&cluster);
    all.push(&fourth);
    agree(&all);
}

#[test]
fn three_members_live_on_3_4_23() {
    three_members_live_on("3.4.23");
}

#[test]
fn three_members_live_on_3_5_16() {
    three_members_live_on("3.5.16");
}

#[test]
fn three_members_live_on_the_newest() {
    three_members_live_on("sid");
}

#[test]
fn one_data_dir_is_upgraded_through_every_release() {
    let root = tempfile::tempdir().unwrap();
    let seat = Seat::new("climber");
    let (members, said) = found_all(root.path(), "chain", std::slice::from_ref(&seat));
    let dir = &members[0].1;
    for (i, version) in VERSIONS.iter().enumerate() {
        let server = Server::start(&etcd(version), &seat, dir);
        assert_eq!(member_list(&server), promised(&said));
        for earlier in &VERSIONS[..i] {
            assert_eq!(server.get(&format!("written-by-{earlier}")).as_deref(), Some("here"));
        }
        server.ctl(&["put", &format!("written-by-{version}"), "here"]);
        put_many(&server, "churn", 100);
        compact_and_defragment(&server);
        server.stop();
        verify(dir);
    }
}

/// Member lists of many shapes: one to seven members, several URLs each, IPv6, odd tokens, names in any order.
fn rosters() -> Vec<(String, Vec<Listed>)> {
    let tokens = ["etcd-cluster", "prod-1", "", "with space, comma=equals", "tök/✓"];
    let mut rosters = Vec::new();
    for (round, count) in [1_usize, 2, 3, 4, 5, 7, 3, 3].into_iter().enumerate() {
        let members = (0..count).map(|i| {
            let host = (round * 37 + i * 101) % 250 + 1;
            let mut urls = vec![format!("http://10.{round}.{i}.{host}:2380")];
            if i % 2 == 1 {
                urls.push(format!("https://[fd00:{round}::{host:x}]:{}", 2380 + i));
            }
            if round % 3 == 2 {
                urls.push(format!("http://127.0.0.1:{}", 12_380 + i));
            }
            (format!("node-{}", (i * 5 + round) % 11), urls)
        });
        rosters.push((tokens[round % tokens.len()].to_owned(), members.collect()));
    }
    rosters
}

/// What etcd's own restore makes of the list: the ids it logs, and the WAL it writes.
fn restore(tools: &Tools, root: &Path, token: &str, members: &[Listed]) -> (String, Vec<String>, Vec<u8>) {
    let snapshot = if tools.version.starts_with("3.4.") { "snapshot-3.4.23.db" } else { "snapshot-3.5.16.db" };
    let (name, urls) = &members[0];
    let pairs = members.iter().flat_map(|(name, urls)| urls.iter().map(move |url| format!("{name}={url}")));
    let dir = root.join("restored");
    let mut command = Command::new(&tools.etcdutl);
    command.env("ETCDCTL_API", "3").args(["snapshot", "restore"]).arg(fixtures_root().join("golden").join(snapshot));
    command.args(["--name", name, "--initial-cluster-token", token, "--initial-advertise-peer-urls", &urls.join(",")]);
    command.args(["--initial-cluster", &pairs.collect::<Vec<_>>().join(",")]).arg("--data-dir").arg(&dir);
    let output = command.output().unwrap();
    let log = String::from_utf8_lossy(&output.stderr).replace("\": \"", "\":\"");
    assert!(output.status.success(), "{log}");
    let field = |line: &str, name: &str| {
        let (_, after) = line.split_once(&format!("\"{name}\":\"")).unwrap_or_else(|| panic!("no {name} in {line}"));
        after.split('"').next().unwrap().to_owned()
    };
    let added: Vec<&str> = log.lines().filter(|line| line.contains("added-peer-id")).collect();
    let mut ids: Vec<String> = added.iter().map(|line| field(line, "added-peer-id")).collect();
    ids.sort();
    let wal = std::fs::read(dir.join("member/wal/0000000000000000-0000000000000000.wal")).unwrap();
    (field(added[0], "cluster-id"), ids, wal)
}

#[test]
fn ids_and_log_are_those_of_etcds_own_restore_to_the_last_bit() {
    for version in VERSIONS {
        let tools = etcd(version);
        let form = &tools.version[..3];
        for (token, members) in rosters() {
            let root = tempfile::tempdir().unwrap();
            let ours = root.path().join("ours");
            let said = found(&ours, &members[0].0, &token, &members, &["--etcd-version", form]);
            let (cluster, ids) = promised(&said);
            let (restored_cluster, restored_ids, restored_wal) = restore(&tools, root.path(), &token, &members);
            let case = format!("etcd {version}, token `{token}`, {members:?}");
            assert_eq!(cluster, restored_cluster, "{case}");
            assert_eq!(ids.into_keys().collect::<Vec<_>>(), restored_ids, "{case}");
            let wal = std::fs::read(ours.join("member/wal/0000000000000000-0000000000000000.wal")).unwrap();
            let (same, rest) = restored_wal.split_at(wal.len().min(restored_wal.len()));
            assert!(same == wal && rest.iter().all(|byte| *byte == 0), "the log differs: {case}");
        }
    }
}

/// Fills the `key` bucket of a founded database with `count` revisions of 50 keys, two to a leaf page.
fn populate(db: &Path, count: u64) -> Vec<u8> {
    let founded = std::fs::read(db).unwrap();
    let reader = Db::open(&founded).unwrap();
    let mut writer = BoltWriter::new(Vec::new(), 4096).unwrap();
    for (name, bucket) in reader.buckets().unwrap() {
        let mut copy = writer.bucket(&name);
        if name == b"key" {
            for i in 0..count {
                let revision = Revision { main: i + 2, sub: 0 };
                let key = RevisionKey { revision, tombstone: false }.encode();
                copy.put(&key, &key_value(i)).unwrap();
            }
        } else {
            reader.for_each(&bucket, |key, value| copy.put(key, value).unwrap()).unwrap();
        }
        copy.finish().unwrap();
    }
    let bytes = writer.finish().unwrap();
    let mut file = std::fs::File::create(db).unwrap();
    std::io::Write::write_all(&mut file, &bytes).unwrap();
    bytes
}

/// How many pages say in their header that they are branches.
fn branches(db: &[u8]) -> usize {
    let pages = db.chunks(4096).enumerate();
    pages.filter(|(id, page)| page[..8] == (*id as u64).to_le_bytes() && page[8..10] == [1, 0]).count()
}

/// The stored form of the write number `i`: which key it was, when it was made, how often it was written.
fn key_value(i: u64) -> Vec<u8> {
    const KEYS: u64 = 50;
    let mut bytes = Vec::new();
    let field = |bytes: &mut Vec<u8>, tag: u8, value: &[u8]| {
        bytes.push(tag << 3 | 2);
        varint(bytes, value.len() as u64);
        bytes.extend_from_slice(value);
    };
    field(&mut bytes, 1, format!("bulk-{}", i % KEYS).as_bytes());
    for (tag, number) in [(2, i % KEYS + 2), (3, i + 2), (4, i / KEYS + 1)] {
        bytes.push(tag << 3);
        varint(&mut bytes, number);
    }
    field(&mut bytes, 5, &[b'x'; 1500]);
    bytes
}

fn varint(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

/// How many leaves of two values one branch page holds.
fn full_branch() -> u64 {
    let fits = |leaves: u64| {
        let root = tempfile::tempdir().unwrap();
        let (members, _) = found_all(root.path(), "bulk", &[Seat::new("bulk")]);
        branches(&populate(&members[0].1.join("member/snap/db"), leaves * 2)) == 1
    };
    (100_u64..200).take_while(|leaves| fits(*leaves)).last().unwrap()
}

/// A branch page with a single child boots and then kills etcd in some later compaction, so leaf counts around a full
/// branch are what must be tried; and a joiner that is fed the log instead of a snapshot would stay empty.
fn populated_database_survives_on(version: &str) {
    let tools = etcd(version);
    // One child more than a branch page holds is where a careless writer fails.
    let full = full_branch();
    for (leaves, expected_branches) in [(full, 1), (full + 1, 3), (2 * full + 1, 4)] {
        let root = tempfile::tempdir().unwrap();
        let seat = Seat::new("bulk");
        let (members, _) = found_all(root.path(), "bulk", std::slice::from_ref(&seat));
        let dir = &members[0].1;
        let count = leaves * 2;
        let db = populate(&dir.join("member/snap/db"), count);
        assert_eq!(branches(&db), expected_branches, "{leaves} leaves");
        verify(dir);

        let server = Server::start(&tools, &seat, dir);
        assert_eq!(local_keys(&server).as_array().unwrap().len(), 50);
        if leaves == full + 1 {
            let joiner = join(&tools, "joiner", root.path(), &[&server]);
            assert_eq!(local_keys(&joiner), local_keys(&server), "a member added later has every key");
            agree(&[&server, &joiner]);
            compactions(&server, count);
            agree(&[&server, &joiner]);
        } else {
            compactions(&server, count);
        }
    }
}

fn compactions(server: &Server, count: u64) {
    for step in 1..=8 {
        put_many(server, "between", 20);
        server.ctl(&["compact", "--physical", &(count * step / 8 + 1).to_string()]);
    }
    assert_eq!(server.get("between-0").as_deref(), Some("between-value-0"));
    server.ctl(&["--command-timeout=30s", "defrag"]);
    assert_eq!(local_keys(server).as_array().unwrap().len(), 70);
}

#[test]
fn a_populated_database_survives_compaction_and_joiners_on_3_4_23() {
    populated_database_survives_on("3.4.23");
}

#[test]
fn a_populated_database_survives_compaction_and_joiners_on_3_5_16() {
    populated_database_survives_on("3.5.16");
}

#[test]
fn a_populated_database_survives_compaction_and_joiners_on_the_newest() {
    populated_database_survives_on("sid");
}
