//! `quorate sidecar` as etcd-wrapper and druid meet it: codes, bodies and keys to the letter, and what every state of data
//! and store leads to.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod gardener_support;

use std::time::Duration;

use gardener_support::{LIMIT, Pod};
use quorate_testkit::{S3Key, Server, wait_until};
use serde_json::Value;

const NEVER: &str = "--schedule=0 0 1 1 *";

/// Asks for an initialization and waits for its outcome, as a wrapper does.
#[track_caller]
fn initialize(pod: &Pod, mode: &str) -> String {
    let start = pod.ask("GET", &format!("/initialization/start?mode={mode}")).unwrap();
    assert_eq!((start.code, start.body.as_str()), (200, ""));
    let mut outcome = String::new();
    wait_until("the outcome", LIMIT, || {
        let status = pod.ask("GET", "/initialization/status").unwrap();
        assert_eq!(status.code, 200);
        outcome = status.body;
        outcome != "Progress"
    });
    assert_eq!(pod.ask("GET", "/initialization/status").unwrap().body, "New", "an outcome is used up by reading it");
    outcome
}

fn local_store(pod: &Pod) -> Vec<String> {
    std::fs::create_dir_all(pod.path("home-sidecar/bucket")).unwrap();
    ["--storage-provider=Local", "--store-prefix=etcd-main", NEVER].map(str::to_owned).to_vec()
}

#[test]
fn without_a_store_every_route_answers_as_the_original_does() {
    let pod = Pod::new("3.5.16");
    let (client, peer) = (pod.seat.client_url(), pod.seat.peer_url());
    pod.write(
        "etcd.conf.yaml",
        &format!(
            "name: etcd-config\ndata-dir: {}\nauto-compaction-retention: \"24\"\nquota-backend-bytes: 8589934592\n\
             initial-cluster: etcd-main-0={peer}\ninitial-cluster-state: existing\n\
             initial-advertise-peer-urls:\n  etcd-main-0:\n  - {peer}\nadvertise-client-urls:\n  etcd-main-0:\n  - {client}\n",
            pod.data_dir().display()
        ),
    );
    let mut sidecar = pod.sidecar(&[], &[]);
    pod.wait_sidecar(&mut sidecar);
    assert!(sidecar.log().contains("\"host\":\"127.0.0.1\""), "clear text is for this machine only");
    let said = |method: &str, path: &str| {
        let answer = pod.ask(method, path).unwrap();
        (answer.code, answer.body)
    };
    let is = |code: u16, body: &str| (code, body.to_owned());
    assert_eq!(said("GET", "/initialization/status"), is(200, "New"));
    assert_eq!(said("GET", "/healthz"), is(503, "{\"health\":false}"));
    let config = format!(
        "advertise-client-urls: \"{client}\"\nauto-compaction-retention: \"24\"\ndata-dir: \"{}\"\n\
         initial-advertise-peer-urls: \"{peer}\"\ninitial-cluster: \"etcd-main-0={peer}\"\ninitial-cluster-state: \"new\"\n\
         name: \"etcd-main-0\"\nquota-backend-bytes: 8589934592\n",
        pod.data_dir().display()
    );
    assert_eq!(said("GET", "/config"), is(200, &config));
    for path in ["/snapshot/full", "/snapshot/delta", "/snapshot/latest"] {
        assert_eq!(said("POST", path), is(405, ""), "no store is configured");
    }
    assert_eq!(said("PUT", "/initialization/start"), is(405, ""));
    assert_eq!(said("GET", "/no-such"), is(404, "404 page not found\n"));
    assert_eq!(said("GET", "/metrics").0, 200);
    // Looking changes nothing; asking does, once, and the outcome waits for whoever asked.
    assert_eq!(pod.ask("HEAD", "/initialization/start?mode=full").unwrap().code, 200);
    assert_eq!(said("GET", "/initialization/status"), is(200, "New"));
    assert_eq!(said("POST", "/initialization/start?mode=sanity"), is(200, ""));
    wait_until("the initialization to be over", LIMIT, || sidecar.log().contains("etcd may start"));
    assert_eq!(pod.ask("HEAD", "/initialization/status").unwrap().code, 200);
    wait_until("the outcome", LIMIT, || said("GET", "/initialization/status") == is(200, "Successful"));
    assert_eq!(said("GET", "/initialization/status"), is(200, "New"));
    // A configuration that cannot be used.
    pod.write("etcd.conf.yaml", "just words");
    assert_eq!(said("GET", "/config"), is(500, ""));
    assert_eq!(initialize(&pod, "full"), "Failed");
    assert_eq!(sidecar.stop().code(), Some(0));
}

#[test]
fn data_is_never_deleted_and_never_taken_from_somebody_else() {
    let pod = Pod::new("3.5.16");
    pod.write("etcd.conf.yaml", &pod.etcd_config());
    Server::start(&pod.tools, &pod.seat, &pod.data_dir()).stop();
    let db = pod.data_dir().join("member/snap/db");
    let mut bytes = std::fs::read(&db).unwrap();
    bytes[..16384].fill(0xAA);
    pod.write("data/new.etcd/member/snap/db", "");
    #[expect(clippy::disallowed_methods, reason = "a test's own file")]
    std::fs::write(&db, &bytes).unwrap();
    let mut sidecar = pod.sidecar(&[], &[]);
    pod.wait_sidecar(&mut sidecar);
    // Damaged, and nothing to restore from: every byte stays, however often it is asked for.
    for _ in 0..2 {
        assert_eq!(initialize(&pod, "full"), "Failed");
        assert_eq!(std::fs::read(&db).unwrap(), bytes);
    }
    assert!(sidecar.log().contains("Q0994"), "{}", sidecar.log());
    assert_eq!(std::fs::read_to_string(pod.path("data/safe_guard")).unwrap(), "shoot");
    drop(sidecar);
    // The volume of another pod of the same namespace.
    let mut sidecar = pod.sidecar(&[], &[("POD_NAME", "etcd-main-1")]);
    pod.wait_sidecar(&mut sidecar);
    assert_eq!(initialize(&pod, "sanity"), "Failed");
    assert!(sidecar.log().contains("Q0993"), "{}", sidecar.log());
    assert_eq!(std::fs::read(&db).unwrap(), bytes);
}

#[test]
fn a_local_store_whose_folder_is_missing_is_created() {
    let pod = Pod::new("3.5.16");
    pod.write("etcd.conf.yaml", &pod.etcd_config());
    let flags = ["--storage-provider=Local", "--store-prefix=etcd-main", NEVER].map(str::to_owned);
    let mut sidecar = pod.sidecar(&flags, &[("STORAGE_CONTAINER", "bucket")]);
    pod.wait_sidecar(&mut sidecar);
    assert_eq!(initialize(&pod, "full"), "Successful", "{}", sidecar.log());
    assert!(pod.path("home-sidecar/bucket/etcd-main").is_dir());
    assert_eq!(sidecar.stop().code(), Some(0));
}

#[test]
fn backups_on_demand_are_told_of_with_the_keys_of_the_original() {
    let pod = Pod::new("3.4.23");
    pod.write("etcd.conf.yaml", &pod.etcd_config());
    let server = Server::start(&pod.tools, &pod.seat, &pod.data_dir());
    let mut flags = local_store(&pod);
    flags.extend([format!("--endpoints={}", pod.seat.client_url()), "--delta-snapshot-period=10m".to_owned()]);
    let mut sidecar = pod.sidecar(&flags, &[("STORAGE_CONTAINER", "bucket")]);
    pod.wait_sidecar(&mut sidecar);
    wait_until("the sidecar to be healthy", LIMIT, || {
        pod.ask("GET", "/healthz")
            .is_some_and(|answer| (answer.code, answer.body.as_str()) == (200, "{\"health\":true}"))
    });
    let json = |method: &str, path: &str| -> Value {
        let answer = pod.ask(method, path).unwrap();
        assert_eq!(answer.code, 200, "{path}: {}", sidecar.log_tail(20));
        assert!(answer.head.contains("content-type: text/plain; charset=utf-8"), "{}", answer.head);
        serde_json::from_str(&answer.body).unwrap()
    };
    wait_until("the first full", LIMIT, || !json("GET", "/snapshot/latest")["fullSnapshot"].is_null());
    let first = json("GET", "/snapshot/latest");
    assert!(first["deltaSnapshots"].is_null(), "{first}");
    assert_eq!(pod.ask("GET", "/snapshot/delta").unwrap().body, "null", "there was no event");
    server.ctl(&["put", "a", "1"]);
    server.ctl(&["put", "a", "2"]);
    let delta = json("POST", "/snapshot/delta");
    let keys: Vec<&str> = delta.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(
        keys,
        [
            "compressionSuffix",
            "createdOn",
            "immutabilityExpriyTime",
            "isChunk",
            "isFinal",
            "kind",
            "lastRevision",
            "prefix",
            "snapDir",
            "snapName",
            "startRevision",
            "versionID"
        ]
    );
    assert_eq!((delta["kind"].as_str(), delta["lastRevision"].as_u64()), (Some("Incr"), Some(3)));
    assert_eq!(delta["prefix"], "etcd-main/v2");
    assert_eq!(json("GET", "/snapshot/latest")["deltaSnapshots"][0], delta);
    assert_eq!(pod.ask("GET", "/snapshot/full?final=maybe").unwrap().code, 400);
    let full = json("GET", "/snapshot/full?final=true");
    assert_eq!((full["kind"].as_str(), full["isFinal"].as_bool()), (Some("Full"), Some(true)));
    let name = full["snapName"].as_str().unwrap();
    assert!(name.ends_with(".gz.final"), "{name}");
    assert!(pod.path(&format!("home-sidecar/bucket/etcd-main/v2/{name}")).exists());
    // While etcd runs on it, the data is nobody else's to look at.
    assert_eq!(initialize(&pod, "full"), "Failed");
    assert_eq!(server.get("a").as_deref(), Some("2"));
    // What was recorded and not told of is in the store when it ends.
    wait_until("backups to go on", LIMIT, || pod.ask("GET", "/healthz").is_some_and(|answer| answer.code == 200));
    server.ctl(&["put", "b", "3"]);
    assert_eq!(sidecar.stop().code(), Some(0));
    let mut sidecar = pod.sidecar(&flags, &[("STORAGE_CONTAINER", "bucket")]);
    pod.wait_sidecar(&mut sidecar);
    let reaches = || {
        let latest = pod.ask("GET", "/snapshot/latest").unwrap().body;
        let latest: Value = serde_json::from_str(&latest).unwrap();
        let deltas = latest["deltaSnapshots"].as_array().cloned().unwrap_or_default();
        let all = deltas.iter().chain([&latest["fullSnapshot"]]);
        all.filter_map(|snapshot| snapshot["lastRevision"].as_u64()).max() >= Some(4)
    };
    wait_until("the last write to be in the store", Duration::from_secs(20), reaches);
}

#[test]
fn a_bucket_is_reached_with_the_files_that_gardener_mounts_and_rotates() {
    let (pod, strict) = (Pod::new("3.5.16"), quorate_testkit::s3_strict());
    pod.write("etcd.conf.yaml", &pod.etcd_config());
    let server = Server::start(&pod.tools, &pod.seat, &pod.data_dir());
    server.ctl(&["put", "a", "1"]);
    std::fs::create_dir(pod.path("backup")).unwrap();
    pod.write("backup/endpoint", &strict.s3.endpoint());
    let mount = |key: &S3Key| {
        pod.write("backup/accessKeyID", &key.id);
        pod.write("backup/secretAccessKey", &key.secret);
    };
    let (first, second) = (strict.key().clone(), strict.another_key());
    mount(&first);
    let flags = [
        "--storage-provider=S3".to_owned(),
        format!("--store-container={}", strict.s3.bucket),
        "--store-prefix=sidecar/etcd-main".to_owned(),
        NEVER.to_owned(),
        format!("--endpoints={}", pod.seat.client_url()),
    ];
    let mounted = pod.path("backup").display().to_string();
    let mut sidecar = pod.sidecar(&flags, &[("AWS_APPLICATION_CREDENTIALS", &mounted)]);
    pod.wait_sidecar(&mut sidecar);
    wait_until("a full in the bucket", LIMIT, || {
        pod.ask("GET", "/snapshot/latest")
            .is_some_and(|answer| answer.body.contains("\"prefix\":\"sidecar/etcd-main/v2\""))
    });
    mount(&second);
    strict.revoke(&first);
    server.ctl(&["put", "b", "2"]);
    let full = pod.ask("POST", "/snapshot/full").unwrap();
    assert!(full.code == 200 && full.body.contains("\"lastRevision\":3"), "{}", full.body);
    let (environ, command_line) =
        (format!("/proc/{}/environ", sidecar.pid()), format!("/proc/{}/cmdline", sidecar.pid()));
    for secret in [&first.secret, &second.secret] {
        assert!(!sidecar.log().contains(secret.as_str()));
        for place in [&environ, &command_line] {
            assert!(!String::from_utf8_lossy(&std::fs::read(place).unwrap()).contains(secret.as_str()), "{place}");
        }
    }
}
