//! Peer-managed clusters on machines of their own, with the defaults that the guide relies on: no `--config`, no `--state-dir`.

#![expect(clippy::unwrap_used, reason = "a test that cannot continue names the place")]

use std::time::Duration;

use quorate_testkit::{Hosts, Machine, Running, etcd, quorate, wait_until};

const LIMIT: Duration = Duration::from_secs(150);

fn text(output: &std::process::Output) -> String {
    String::from_utf8_lossy(&[output.stdout.as_slice(), output.stderr.as_slice()].concat()).into_owned()
}

/// A machine with the programs, and a box that works in any container.
fn machine(hosts: &Hosts, at: usize, root: &std::path::Path) -> Machine {
    let machine = Machine::new(&hosts[at], &root.join(hosts[at].name()));
    machine.install("quorate", &quorate());
    machine.install("etcd", &etcd("3.5.16").etcd);
    machine
}

#[track_caller]
fn wait_for(machine: &Machine, line: &str, wanted: &str) {
    let mut last = String::new();
    let reached = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        wait_until(wanted, LIMIT, || {
            last = text(&machine.run(line, &[]));
            last.contains(wanted)
        });
    }));
    assert!(reached.is_ok(), "$ {line}\n{last}");
}

fn join(inviter: &Machine, node: &Machine, line: &str) {
    let code = inviter.must("quorate peer invite --ttl 1h", &[]);
    node.write("code", code.lines().next().unwrap().as_bytes());
    // As it is printed: the word before it does not matter.
    node.write("secret", code.lines().nth(1).unwrap().as_bytes());
    node.must(&format!("{line} --code-file code --secret-file secret"), &[]);
}

#[test]
fn compares_every_flag_of_an_external_etcd_and_needs_its_files() {
    let root = tempfile::tempdir().unwrap();
    let hosts = Hosts::in_network([10, 0, 0], 1);
    let n1 = machine(&hosts, 0, root.path());
    let base = "quorate run --standalone --once --name n1 --listen 10.0.0.1 --etcd-endpoints https://10.0.0.9:2379";
    for name in ["ca.pem", "other.pem", "own.pem", "own.key", "pass"] {
        n1.write(name, b"x\n");
    }
    for flags in [
        "--etcd-ca no.pem",
        "--etcd-ca ca.pem --etcd-cert no.pem --etcd-key own.key",
        "--etcd-ca ca.pem --etcd-user u --etcd-password-file no",
    ] {
        let missing = n1.run(&format!("{base} {flags}"), &[]);
        assert_eq!(missing.status.code(), Some(64), "{flags}: {}", text(&missing));
        assert!(text(&missing).contains("cannot be read; nothing was written"), "{}", text(&missing));
        assert!(!n1.run("test -e /var/lib/quorate/n1", &[]).status.success(), "{flags}: something was written");
    }
    let right = "--etcd-ca ca.pem --etcd-cert own.pem --etcd-key own.key --etcd-user u --etcd-password-file pass \
                 --etcd-namespace quorate/blue/";
    n1.run(&format!("timeout 10 {base} {right}"), &[]);
    n1.must("test -e /var/lib/quorate/n1/cluster.yaml", &[]);
    for (flag, from, to) in [
        ("--etcd-ca", "ca.pem", "other.pem"),
        ("--etcd-cert", "own.pem", "other.pem"),
        ("--etcd-key", "own.key", "other.pem"),
        ("--etcd-user", "u", "other"),
        ("--etcd-password-file", "pass", "other.pem"),
        ("--etcd-namespace", "quorate/blue/", "quorate/"),
    ] {
        let corrected = right.replace(&format!("{flag} {from}"), &format!("{flag} {to}"));
        let said = n1.run(&format!("{base} {corrected}"), &[]);
        assert_eq!(said.status.code(), Some(64), "{flag}: {}", text(&said));
        assert!(text(&said).contains(&format!("`{flag} ")), "{flag}: {}", text(&said));
    }
}

#[test]
fn rejoins_after_a_detach_and_writes_nothing_before_flags_are_valid() {
    let root = tempfile::tempdir().unwrap();
    let hosts = Hosts::in_network([10, 0, 0], 3);
    let machines: Vec<Machine> = (0..3).map(|at| machine(&hosts, at, root.path())).collect();
    let [n1, n2, n3] = &machines[..] else { panic!("three machines") };

    // Wrong flags leave nothing behind, and differing ones are named.
    let wrong = n1.run("quorate run --standalone --name n1 --listen 'no address'", &[]);
    assert!(!wrong.status.success(), "{}", text(&wrong));
    assert!(!n1.run("test -e /var/lib/quorate/n1", &[]).status.success(), "something was written");
    let missing = n1.run("quorate run --standalone --name n1 --listen 10.0.0.1 --etcd-binary /usr/bin/no-etcd", &[]);
    assert_eq!(missing.status.code(), Some(64), "{}", text(&missing));
    assert!(text(&missing).contains("`--etcd-binary /usr/bin/no-etcd` cannot be read"), "{}", text(&missing));
    assert!(!n1.run("test -e /var/lib/quorate/n1", &[]).status.success(), "something was written");
    let first = "quorate run --standalone --name n1 --listen 10.0.0.1 --box off";
    let agent = n1.start(first, &[]);
    wait_for(n1, "quorate status", "n1 serving");
    let differs = n1.run("quorate run --standalone --name n1 --listen 10.0.0.7", &[]);
    let said = text(&differs);
    assert_eq!(differs.status.code(), Some(64), "{said}");
    assert!(said.contains("--listen 10.0.0.7") && said.contains("10.0.0.1") && said.contains("cluster.yaml"), "{said}");

    let second = n1.run("quorate run --standalone --name other --listen 10.0.0.1", &[]);
    assert_eq!(second.status.code(), Some(64), "{}", text(&second));
    assert!(text(&second).contains("the node of this machine is `n1`"), "{}", text(&second));
    n1.must("quorate status", &[]);

    // A detach and a join again are one command each.
    let again = "quorate peer join --name n2 --listen 10.0.0.2";
    join(n1, n2, again);
    let mut second = n2.start("quorate run", &[]);
    wait_for(n1, "quorate peer list", "n2    server  voter");
    n1.must("quorate peer detach n2", &[]);
    wait_for(n2, "quorate status", "removed for good");
    let status = text(&n2.run("quorate status", &[]));
    assert!(status.contains("quorate peer join") && !status.contains("data reset"), "{status}");
    n2.must("quorate stop", &[]);
    second.stop();
    join(n1, n2, again);
    let _second: Running = n2.start("quorate run", &[]);
    wait_for(n2, "quorate peer list", "n2    server  voter");

    // A node whose dirs lie below another root joins the same cluster.
    let trial = "export QUORATE_ROOT=/var/lib/trial; quorate";
    join(n1, n3, &format!("{trial} peer join --name n3 --listen 10.0.0.3"));
    let _third = n3.start("env QUORATE_ROOT=/var/lib/trial quorate run", &[]);
    wait_for(n1, "quorate peer list", "n3    server  voter");
    n3.must("test -d /var/lib/trial/var/lib/etcd/member", &[]);
    drop(agent);
}
