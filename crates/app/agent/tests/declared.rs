//! Members of a cluster file that a source names: complete or not at all, and remembered for when the source is silent.

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use quorate_agent::cluster_file;
use quorate_agent::declared::{changed, kept_here, resolve, resolve_now};
use quorate_faults::Code;
use quorate_plan::spec::Spec;
use tempfile::TempDir;

const ONE: &str = "[{name: n1, peer_urls: [http://10.0.0.1:2380]}]";
const TWO: &str = "[{name: n1, peer_urls: [http://10.0.0.1:2380]}, {name: n2, peer_urls: [http://10.0.0.2:2380]}]";

fn spec(dir: &TempDir, size: usize) -> Spec {
    let path = dir.path().display();
    let text = format!(
        "token: t\nbootstrap: {{id: 1}}\nplaintext: true\nsource: {{uri: 'file:{path}/list', size: {size}}}\nagent: {{state-dir: \
         '{path}/state'}}\n"
    );
    Spec::parse(text.as_bytes(), "c.yaml").map_err(|mistakes| mistakes.render()).unwrap().0
}

fn list(dir: &TempDir, text: &str) {
    std::fs::File::create(dir.path().join("list")).unwrap().write_all(text.as_bytes()).unwrap();
}

#[tokio::test]
async fn a_list_is_used_when_it_is_complete_and_remembered_when_the_source_is_silent() {
    let dir = TempDir::new().unwrap();
    list(&dir, ONE);
    let fault = resolve(spec(&dir, 2), Some("n1"), Duration::ZERO).await.unwrap_err();
    assert_eq!(fault.code(), Code::RosterTooFew, "{fault}");

    list(&dir, TWO);
    let state = dir.path().join("state/n1");
    std::fs::create_dir_all(&state).unwrap();
    let (full, warnings) = resolve(spec(&dir, 2), Some("n1"), Duration::ZERO).await.unwrap();
    assert!(full.is_resolved() && warnings.is_empty());
    assert_eq!(full.members.len(), 2);
    let ids = full.founding_ids().unwrap();

    std::fs::remove_file(dir.path().join("list")).unwrap();
    let (again, warnings) = resolve(spec(&dir, 2), Some("n1"), Duration::from_secs(60)).await.unwrap();
    assert_eq!(again.founding_ids().unwrap(), ids);
    assert!(warnings[0].text.ends_with("the list from before is used"), "{}", warnings[0].text);
    // Another node has no such memory, and makes nothing up.
    let fault = resolve(spec(&dir, 2), Some("n2"), Duration::ZERO).await.unwrap_err();
    assert_eq!(fault.code(), Code::SourceUnreachable, "{fault}");
    // A memory of another size is no memory of this file.
    let fault = resolve(spec(&dir, 3), Some("n1"), Duration::ZERO).await.unwrap_err();
    assert_eq!(fault.code(), Code::SourceSize, "{fault}");
}

#[tokio::test]
async fn a_file_with_addresses_asks_nobody_and_a_runtime_may_be_running() {
    let text = "token: t\nplaintext: true\nmembers: [{name: n1, address: 127.0.0.1}]\n";
    let own = Spec::parse(text.as_bytes(), "c.yaml").unwrap().0;
    assert_eq!(resolve_now(own.clone(), None, Duration::ZERO).unwrap().0, own);
    let dir = TempDir::new().unwrap();
    list(&dir, ONE);
    assert!(resolve_now(spec(&dir, 1), None, Duration::ZERO).unwrap().0.is_resolved());
}

#[tokio::test]
async fn a_source_is_asked_again_while_nothing_is_founded_and_only_another_complete_list_is_news() {
    let dir = TempDir::new().unwrap();
    list(&dir, TWO);
    let file = dir.path().join("cluster.yaml");
    let path = dir.path().display();
    let text =
        format!("token: t\nbootstrap: {{id: 1}}\nplaintext: true\nsource: {{uri: 'file:{path}/list', size: 2}}\n");
    std::fs::File::create(&file).unwrap().write_all(text.as_bytes()).unwrap();
    let (full, _) = resolve(cluster_file::read(&file).unwrap().0, None, Duration::ZERO).await.unwrap();
    let waits = AtomicBool::new(true);
    let every = Duration::from_millis(5);
    let changed = changed(&file, &full, "n1", every, || waits.load(Ordering::Relaxed));
    tokio::pin!(changed);
    let quiet = Duration::from_millis(200);
    assert!(tokio::time::timeout(quiet, &mut changed).await.is_err(), "the same list is no news");
    for other in [ONE, "not a list"] {
        list(&dir, other);
        assert!(tokio::time::timeout(quiet, &mut changed).await.is_err(), "half a list is no list");
    }
    waits.store(false, Ordering::Relaxed);
    list(&dir, &TWO.replace("10.0.0.2", "10.0.0.3"));
    assert!(tokio::time::timeout(quiet, &mut changed).await.is_err(), "who is founded asks nobody");
    waits.store(true, Ordering::Relaxed);
    tokio::time::timeout(Duration::from_secs(60), changed).await.unwrap();
}

#[test]
fn members_that_remember_a_list_are_found_below_the_state_dir() {
    let dir = TempDir::new().unwrap();
    list(&dir, TWO);
    assert_eq!(kept_here(&spec(&dir, 2)), [""; 0]);
    std::fs::create_dir_all(dir.path().join("state/n2")).unwrap();
    resolve_now(spec(&dir, 2), Some("n2"), Duration::ZERO).unwrap();
    assert_eq!(kept_here(&spec(&dir, 2)), ["n2"]);
}
