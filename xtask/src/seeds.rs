//! Fills `fuzz/corpus` with good files to start from: what real etcd servers wrote, and well-formed member lists.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;

use anyhow::{Context, Result};
use quorate_testkit::{FIXTURE_VERSIONS, golden, golden_names, snapshot_bytes};

/// One roster of each shape that a source may answer with.
const ROSTERS: &[&str] = &[
    "n1=http://10.0.0.1:2380,n2=http://10.0.0.2:2380,n3=http://10.0.0.3:2380",
    "n1=https://10.0.0.1:2380,n1=https://[fd00::1]:2380,n2=https://node-2.example.org:2380",
    "- name: n1\n  peer_urls: [http://10.0.0.1:2380]\n- name: n2\n  peer_urls:\n    - http://10.0.0.2:2380\n",
    r#"[{"name":"n1","peer_urls":["http://10.0.0.1:2380"],"client_urls":["http://10.0.0.1:2379"]}]"#,
    r#"{"members":[{"name":"n1","peerURLs":["http://10.0.0.1:2380"]}]}"#,
];

/// What stands in ledgers, below their first line; the target writes that line itself.
const LEDGERS: &[&str] = &[
    r#"{"state":{"state":"empty"},"generation":0,"consumed":[1,2]}"#,
    r#"{"state":{"state":"inited","bootstrap":1,"declaration":"d","cluster":"c1","member":"a1"},"generation":3}"#,
    r#"{"state":{"state":"started","cluster":"c1","member":"a1","origin":"founded"},"generation":1,"was":["c0"],"backup":{"store":"s3://b","epoch":1,"revision":7},"confirmed":{"at_ms":1,"members":[{"id":"a1","name":"n1","peer_urls":["http://a:1"]}]}}"#,
];

/// Requests of a node as they travel, below their head; the target writes that itself.
const REQUESTS: &str = "\npeer:\n-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n\nclient:\n-----BEGIN \
                        CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n";

/// Files of GlusterD 2.
const GLUSTERD: &[&str] = &[
    "ETCD_NAME=ETCD_b\nETCD_INITIAL_CLUSTER=default=http://a:2380,ETCD_b=http://b:2380\nETCD_INITIAL_CLUSTER_STATE=existing\n",
    "ETCD_INITIAL_CLUSTER=a=http://10.0.0.1:2380, b=http://10.0.0.2:2380\n",
];

/// What a node is, without its first line, which the target makes.
const NODE_STATE: &str =
    r#"{"role":"server","name":"n1","cluster":"t","address":"10.0.0.1","since_ms":5,"notes":["x"]}"#;

/// A join code of nobody's.
const JOIN_CODE: &str = "quorate-join-AQEAAAGfzwAAAAcHBwcHBwcHBwcHBwcHBwcJCQkJ";
/// A short one, and the second secret of one.
const SHORT_CODES: [&str; 2] = ["KKSM-2XDA-9DRW-EE4D-D", "000G-40R4-0M30-E209-7"];

/// A transaction as a slot of PostgreSQL tells it: an insert, an update with the old key, and a delete.
const PG_CHANGES: &[&[u8]] = &[
    b"B\0\0\0\0\0\0\0\x20\0\0\0\0\0\0\0\0\0\0\0\0",
    b"O\0\0\0\0\0\0\0\x10mesh_1\0",
    b"R\0\0\0\x07shop\0u\0d\0\x02\x01id\0\0\0\0\x17\xff\xff\xff\xff\x00v\0\0\0\0\x19\xff\xff\xff\xff",
    b"I\0\0\0\x07N\0\x02t\0\0\0\x0242n",
    b"U\0\0\0\x07K\0\x02t\0\0\0\x011nN\0\x02t\0\0\0\x012u",
    b"D\0\0\0\x07K\0\x02t\0\0\0\x012n",
    b"C\0\0\0\0\0\0\0\0\x20\0\0\0\0\0\0\0\x28\0\0\0\0\0\0\0\0",
];

/// Lines of etcd's log in each of their forms.
const LOG_LINES: &[&str] = &[
    r#"{"level":"fatal","ts":"2026-11-16T02:14:36.120480Z","caller":"a.go:1","msg":"discovery failed","error":"bind: address already in use","n":[1]}"#,
    "2026-11-16 02:14:36.089125 C | etcdmain: cluster cannot be downgraded (current version: 3.4.23)",
    "raft2026/11/16 02:14:58 INFO: e5e6da7bb27cce2c switched to configuration voters=(1)",
    "panic: failed to create WAL\n\ngoroutine 1 [running]:\n",
];

/// Writes the seeds of every target and says how many there are.
pub(crate) fn run(root: &Path) -> Result<String> {
    let corpus = root.join("fuzz/corpus");
    let mut count = 0;
    for name in golden_names() {
        let Some(target) = target_of(&name) else { continue };
        plant(&corpus.join(target), &name, &golden(&name))?;
        count += 1;
        if target == "snapshot_file" {
            // The first byte is the size of the pieces that it is fed in.
            plant(&corpus.join("passing"), &name, &[&[110], golden(&name).as_slice()].concat())?;
            count += 1;
        }
    }
    for version in FIXTURE_VERSIONS {
        plant(&corpus.join("snapshot_file"), &format!("fixture-{version}.db"), &snapshot_bytes(version))?;
        count += 1;
    }
    for (index, roster) in ROSTERS.iter().enumerate() {
        plant(&corpus.join("roster"), &format!("roster-{index}"), roster.as_bytes())?;
        count += 1;
    }
    for (index, ledger) in LEDGERS.iter().enumerate() {
        plant(&corpus.join("ledger"), &format!("ledger-{index}"), ledger.as_bytes())?;
        count += 1;
    }
    for (index, line) in LOG_LINES.iter().enumerate() {
        plant(&corpus.join("server_log"), &format!("line-{index}"), line.as_bytes())?;
        count += 1;
    }
    for (index, file) in GLUSTERD.iter().enumerate() {
        plant(&corpus.join("glusterd"), &format!("file-{index}"), file.as_bytes())?;
        count += 1;
    }
    // Two bytes before each message say how long it is.
    let told = |message: &&[u8]| [(message.len() as u16).to_be_bytes().as_slice(), message].concat();
    plant(&corpus.join("pg_changes"), "transaction", &PG_CHANGES.iter().flat_map(told).collect::<Vec<u8>>())?;
    plant(&corpus.join("certificate_bundle"), "requests", REQUESTS.as_bytes())?;
    plant(&corpus.join("node_state"), "state", NODE_STATE.as_bytes())?;
    plant(&corpus.join("join_code"), "code", JOIN_CODE.as_bytes())?;
    for (name, text) in ["short", "secret"].into_iter().zip(SHORT_CODES) {
        plant(&corpus.join("join_code"), name, text.as_bytes())?;
    }
    count += 6;
    let guide = root.join("docs/guide/cluster-file.md");
    let guide = std::fs::read_to_string(&guide).with_context(|| format!("cannot read `{}`", guide.display()))?;
    for (index, part) in guide.split("```yaml\n").skip(1).enumerate() {
        let file = part.split("```").next().unwrap_or_default();
        plant(&corpus.join("cluster_file"), &format!("guide-{index}.yaml"), file.as_bytes())?;
        count += 1;
    }
    for name in ["gardener-34-66.delta", "gardener-109-120.delta"] {
        let path = root.join("crates/pure/etcd-formats/tests/fixtures").join(name);
        let delta = std::fs::read(&path).with_context(|| format!("cannot read `{}`", path.display()))?;
        // The first byte is the size of the pieces that it is fed in.
        plant(&corpus.join("delta_gardener"), name, &[&[255], delta.as_slice()].concat())?;
        count += 1;
    }
    Ok(format!("fuzz-seeds: {count} seeds are in fuzz/corpus"))
}

fn target_of(name: &str) -> Option<&'static str> {
    match Path::new(name).extension()?.to_str()? {
        "bolt" => Some("bolt"),
        "wal" => Some("wal"),
        "snap" => Some("snap"),
        "db" => Some("snapshot_file"),
        _ => None,
    }
}

fn plant(dir: &Path, name: &str, bytes: &[u8]) -> Result<()> {
    std::fs::create_dir_all(dir).with_context(|| format!("cannot create `{}`", dir.display()))?;
    let path = dir.join(name);
    let mut file = File::create(&path).with_context(|| format!("cannot create `{}`", path.display()))?;
    file.write_all(bytes).with_context(|| format!("cannot write `{}`", path.display()))
}
