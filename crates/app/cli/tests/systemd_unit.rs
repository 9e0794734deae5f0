//! The agent with exactly what the systemd unit grants: its user, and a file system that is read-only but for its directories. No
//! systemd runs here; the namespace is made from the unit's own lines.

#![expect(clippy::unwrap_used, reason = "a test that cannot continue names the place")]

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use quorate_pki::{Authorities, CsrBundle, Policy, ensure_authorities, issue};
use quorate_testkit::{Hosts, Machine, etcd, project_root, quorate, wait_until};

const LIMIT: Duration = Duration::from_secs(120);

const FILE: &str =
    "token: prod-1\nbootstrap: {id: 1}\nmembers:\n  - {name: n1, address: 10.0.0.1}\ntls: {dir: /etc/quorate/pki}\n";

/// The values of a key in the unit, all lines together.
fn values(unit: &str, key: &str) -> Vec<String> {
    let lines = unit.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    lines.flat_map(str::split_whitespace).map(str::to_owned).collect()
}

/// A command line in a mount namespace with the grants of the unit, as its user.
fn confined(unit: &str) -> String {
    let user = &values(unit, "User")[0];
    let made: Vec<String> =
        [("StateDirectory", "/var/lib"), ("LogsDirectory", "/var/log"), ("RuntimeDirectory", "/run")]
            .iter()
            .flat_map(|(key, below)| values(unit, key).into_iter().map(move |name| format!("{below}/{name}")))
            .collect();
    let writable = [values(unit, "ReadWritePaths"), made.clone()].concat();
    assert_eq!(values(unit, "ProtectSystem"), ["strict"]);
    let command = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).unwrap().replace("%i", "n1");
    let kept: String = writable.iter().map(|dir| format!("{dir}|{dir}/*|")).collect();
    format!(
        "unshare --mount --propagation private sh -ec '\
         mount -t tmpfs tmpfs /var/log; install -d -o {user} -g {user} -m 700 {made}; \
         for dir in {writable}; do mount --bind $dir $dir; done; \
         cut -d \" \" -f 5 /proc/self/mountinfo | sort -u | while read at; do \
         case $at in {kept}/proc|/proc/*|/sys|/sys/*|/dev|/dev/*) ;; *) mount -o remount,bind,ro $at || : ;; esac; done; \
         for dir in / /etc /usr /var/lib /tmp; do if touch $dir/probe; then exit 99; fi; done; \
         exec setpriv --reuid {user} --regid {user} --clear-groups --no-new-privs --bounding-set=-all {command}'",
        made = made.join(" "),
        writable = writable.join(" "),
    )
}

#[test]
fn renews_and_takes_files_with_no_more_than_the_unit_grants() {
    let root = tempfile::tempdir().unwrap();
    let hosts = Hosts::in_network([10, 0, 0], 1);
    let node = Machine::new(&hosts[0], &root.path().join("n1"));
    let tools = etcd("sid");
    // Copies: another user may not be able to read where this project lies.
    for (name, program) in [("quorate", quorate()), ("etcd", tools.etcd.clone())] {
        node.must(&format!("install -m 755 {} /usr/bin/{name}", program.display()), &[]);
    }
    let guide = std::fs::read_to_string(project_root().join("docs/guide/agent.md")).unwrap();
    let line = |begins: &str| {
        let found = guide.lines().find(|line| line.starts_with(begins));
        found.unwrap_or_else(|| panic!("the guide has no line `{begins}`")).split("  #").next().unwrap().to_owned()
    };
    node.must(&line("useradd "), &[]);
    node.must(&line("install -d "), &[]);
    node.write("cluster.yaml", FILE.as_bytes());
    // A day after renewal became due.
    let began = Timestamp::now() - SignedDuration::from_hours(24 * 64);
    let ca = root.path().join("ca");
    ensure_authorities(&ca, "prod-1", None, began).unwrap();
    let requests = node.must("quorate ca csr --config cluster.yaml --name n1", &[]);
    let requests = CsrBundle::decode(requests.as_bytes()).unwrap();
    let policy = Policy { days: 90, allowed: None };
    let signed = issue(&Authorities::open(&ca, None).unwrap(), &requests, &policy, began).unwrap();
    node.write("n1.bundle", signed.encode().as_bytes());
    node.must("quorate ca install --config cluster.yaml --name n1 n1.bundle", &[]);
    node.must("mkdir prod-1-ca", &[]);
    for key in ["peer-ca.key", "client-ca.key", "agent-ca.key"] {
        node.write(&format!("prod-1-ca/{key}"), &std::fs::read(ca.join(key)).unwrap());
    }
    node.must(&line("install -o "), &[]);
    let before = node.must("cat pki/peer.crt", &[]);

    let unit = std::fs::read_to_string(project_root().join("deploy/systemd/quorate@.service")).unwrap();
    let mut agent = node.start(&confined(&unit), &[]);
    wait_until("the certificates are renewed", LIMIT, || {
        assert!(agent.ended().is_none(), "{}", agent.log());
        node.must("cat pki/peer.crt", &[]) != before
    });
    let status = "quorate status --config cluster.yaml --name n1";
    wait_until("the member serves", LIMIT, || node.run(status, &[]).status.success());
    node.write("next.yaml", format!("{FILE}etcd: {{snapshot-count: 20000}}\n").as_bytes());
    node.must("quorate cluster apply next.yaml --yes --name n1", &[]);
    wait_until("the agent replaces its file", LIMIT, || node.must("cat cluster.yaml", &[]).contains("snapshot-count"));
    let owners = node.must("find pki cluster.yaml -printf '%u\\n' | sort -u", &[]);
    assert_eq!(owners, "etcd\n", "what the agent writes and what root installs belongs to one user");
    for path in ["/var/lib/etcd", "/var/lib/quorate"] {
        assert_eq!(node.must(&format!("stat -c %U {path}"), &[]), "etcd\n");
    }
}
