//! An agent keeps users and roles as the cluster file declares them.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod agent_support;

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use agent_support::{LIMIT, Place};
use quorate_testkit::wait_until;

fn put(path: &Path, text: &str) {
    let mut open = std::fs::OpenOptions::new();
    open.create(true).truncate(true).write(true).mode(0o600).open(path).unwrap().write_all(text.as_bytes()).unwrap();
}

#[test]
fn declared_users_are_there_soon_and_what_an_operator_added_is_said() {
    let mut place = Place::new("3.5.16");
    let dir = place.root.path().display().to_string();
    put(&place.path("root"), "the root's own\n");
    put(&place.path("alice"), "alice's own\n");
    place.agent = format!("  etcd-user: root\n  etcd-password-file: {dir}/root\n");
    // The cheapest hash of passwords: none of these is worth more.
    place.more = format!(
        "etcd: {{heartbeat-interval: 10, election-timeout: 100, bcrypt-cost: 4}}\nauth:\n  roles: [{{name: app, permissions: \
         [{{prefix: /app/, access: readwrite}}]}}]\n  users: [{{name: root, password-file: {dir}/root, roles: [root]}}, {{name: \
         alice, password-file: {dir}/alice, roles: [app]}}]\n"
    );
    let mut agent = place.start();
    let alice = |words: &[&str]| {
        let all = [&["--user", "alice", "--password", "alice's own"], words].concat();
        place.tools.try_ctl(&place.seat.client_url(), &all)
    };
    let nobody = |words: &[&str]| place.tools.try_ctl(&place.seat.client_url(), words);
    wait_until("nobody may read without a name", LIMIT, || nobody(&["get", "/app/k"]).is_err());
    wait_until("alice may write below /app/", LIMIT, || alice(&["put", "/app/k", "v"]).is_ok());
    assert!(alice(&["put", "/other", "v"]).is_err(), "and nowhere else");
    let root = |words: &[&str]| {
        let all = [&["--user", "root", "--password", "the root's own"], words].concat();
        place.tools.try_ctl(&place.seat.client_url(), &all).unwrap()
    };
    root(&["user", "add", "mallory:x"]);
    root(&["role", "grant-permission", "app", "read", "/secret"]);
    // The next agent looks at once: what is more than was declared is taken back from roles, and users are only named.
    assert!(place.quorate(&["stop", "--keep-running"]).status.success());
    wait_until("the agent has ended", LIMIT, || agent.ended().is_some());
    let mut agent = place.start();
    wait_until("the user that nobody declared is named", LIMIT, || {
        let status = place.status();
        let warnings = status["warnings"].as_array().cloned().unwrap_or_default();
        warnings.iter().any(|warning| warning["text"].as_str().is_some_and(|text| text.contains("mallory")))
    });
    wait_until("the role is as declared", LIMIT, || !root(&["role", "get", "app"]).contains("/secret"));
    assert!(root(&["user", "list"]).contains("mallory"), "nobody is removed");
    assert_eq!(place.phase(), "serving");
    assert!(agent.stop().success());
    for secret in ["alice's own", "the root's own"] {
        assert!(!agent.log().contains(secret));
    }
}

#[test]
fn who_answers_is_known_where_auth_is_on_and_the_agent_is_nobody() {
    let mut place = Place::new("sid");
    place.more = "etcd: {heartbeat-interval: 10, election-timeout: 100, bcrypt-cost: 4}\n".to_owned();
    let mut agent = place.start();
    place.ctl(&["user", "add", "root:secret"]);
    place.ctl(&["user", "grant-role", "root", "root"]);
    place.ctl(&["auth", "enable"]);
    assert!(place.quorate(&["stop", "--keep-running"]).status.success());
    wait_until("the agent has ended", LIMIT, || agent.ended().is_some());
    let mut agent = place.start();
    assert!(place.tools.try_ctl(&place.seat.client_url(), &["get", "k"]).is_err(), "nobody may read");
    // The revision comes with the answer that names the member: without one, whoever answers would be believed.
    let status = place.status();
    assert!(status["etcd"]["adopted"] == true && status["etcd"]["revision"].as_u64() >= Some(1), "{status}");
    assert!(agent.stop().success());
}
