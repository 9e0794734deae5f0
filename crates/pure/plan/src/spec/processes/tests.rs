//! What a declared process may and must say.

use std::time::Duration;

use super::*;
use crate::spec::Spec;

const START: &str =
    "token: t\nplaintext: true\nmembers: [{name: n1, address: 10.0.0.1}, {name: n2, address: 10.0.0.2}]\nprocesses:\n";

fn read(processes: &str) -> Result<Spec, String> {
    Spec::parse(format!("{START}{processes}").as_bytes(), "c").map(|(spec, _)| spec).map_err(|found| found.render())
}

const WHOLE: &str = "  proxy:
    executable: /usr/sbin/haproxy
    args: [-f, '/etc/haproxy/{name}.cfg']
    env: {TZ: UTC}
    members: [n1]
    user: haproxy
    box: strict
    limits: {memory: 512MiB, pids: 64}
    volumes: [{path: /etc/haproxy}, {path: /srv/proxy, access: write, create: true}]
    ports: {bind: [443], connect: [2379]}
    capabilities: [NET_BIND_SERVICE]
    unsafe: [all-syscalls]
    hooks: {pre-start: [/bin/sh, -c, 'test -d /srv/proxy'], timeout: 5s}
    after: [etcd]
    restart: {when: on-failure, first-wait: 2s, max-wait: 1m}
    health: {http: 'http://127.0.0.1:8080/healthz', every: 2s, failures: 5}
    stop: {term-timeout: 15s, dump-timeout: 2s}
    logs: {max-size: 1MiB, max-files: 3}
";

#[test]
fn a_whole_process_is_read() {
    let spec = read(WHOLE).unwrap();
    let process = &spec.processes[0];
    assert_eq!((process.name.as_str(), process.executable.as_str()), ("proxy", "/usr/sbin/haproxy"));
    assert_eq!(process.env, [("TZ".to_owned(), "UTC".to_owned())]);
    assert_eq!((process.level, process.limits.memory), (Some(Level::Strict), Some(512 << 20)));
    assert_eq!(process.volumes[0].access, VolumeAccess::Read);
    assert!(process.volumes[1].create);
    assert_eq!((&process.ports.bind, &process.ports.connect), (&vec![443], &vec![2379]));
    assert_eq!(process.restart.when, RestartWhen::OnFailure);
    let health = process.health.as_ref().unwrap();
    assert_eq!(health.check, Check::Http("http://127.0.0.1:8080/healthz".to_owned()));
    assert_eq!((health.failures, health.timeout), (5, Duration::from_secs(5)));
    assert_eq!((process.logs.max_files, process.stop.dump_timeout), (3, Duration::from_secs(2)));
    assert!(process.runs_at("n1") && !process.runs_at("n2"));
    // Its dirs move with the root, others stay.
    let text = WHOLE.replace("/srv/proxy", "/var/lib/quorate/proxy");
    let moved = read(&text).unwrap().below("/r");
    assert_eq!(moved.processes[0].volumes[1].path, "/r/var/lib/quorate/proxy");
    assert_eq!(moved.processes[0].executable, "/usr/sbin/haproxy");
}

#[test]
fn off_is_a_word_with_and_without_quotes() {
    for word in ["off", "'off'"] {
        let spec = read(&format!("  one: {{executable: /bin/one, box: {word}}}\n")).unwrap();
        assert_eq!(spec.processes[0].level, Some(Level::Off));
    }
}

#[test]
fn a_process_has_a_word_or_a_list_of_its_own_for_system_calls() {
    let own = |text: &str| read(&format!("  one: {{executable: /bin/one{text}}}\n")).unwrap();
    let calls = |text: &str| own(text).processes[0].syscalls.clone();
    assert_eq!(calls(", syscalls: enforce"), CallList::default());
    assert!(calls(", syscalls: audit").syscalls().audit);
    // A word stays a word, and what says nothing changes nothing.
    assert_eq!(serde_json::to_value(calls(", syscalls: audit")).unwrap(), "audit");
    assert_eq!(own("").hash(), own(", syscalls: {list: default}").hash());
    let found = calls(", syscalls: {list: etcd, allow: [wait4, execveat, wait4], deny: kill, mode: audit}").syscalls();
    assert_eq!((found.list, found.audit), (crate::boxes::List::Etcd, true));
    assert_eq!((found.allow, found.deny), (vec!["execveat".to_owned(), "wait4".into()], vec!["kill".to_owned()]));
    assert_ne!(own("").hash(), own(", syscalls: {deny: kill}").hash());
}

#[test]
fn little_is_enough() {
    let spec = read("  one: {executable: /bin/one}\n").unwrap();
    let process = &spec.processes[0];
    assert_eq!((process.level, process.restart.when), (None, RestartWhen::Always));
    assert_eq!(process.stop.term_timeout, Duration::from_secs(30));
    assert!(process.health.is_none() && process.runs_at("n2"));
}

#[test]
fn mistakes_are_told() {
    for (bad, said) in [
        ("  one: {}\n", "`one` has no `executable`"),
        ("  one: {executable: bin/one}\n", "is not an absolute path"),
        ("  etcd: {executable: /bin/one}\n", "no process may be called `etcd`"),
        ("  One: {executable: /bin/one}\n", "is no name for a process"),
        ("  -one: {executable: /bin/one}\n", "is no name for a process"),
        ("  one: {executable: /bin/one, arg: x}\n", "did you mean `args`?"),
        ("  one: {executable: /bin/one, box: off, user: nobody}\n", "without a box there is no other user"),
        ("  one: {executable: /bin/one, after: [etc]}\n", "did you mean `etcd`?"),
        ("  one: {executable: /bin/one, box: off, syscalls: {deny: kill}}\n", "without a box there is no other user"),
        ("  one: {executable: /bin/one, syscalls: {allow: [execvat]}}\n", "did you mean `execveat`?"),
        ("  one: {executable: /bin/one, syscalls: {allow: [mount]}}\n", "`unsafe: [all-syscalls]`"),
        ("  one: {executable: /bin/one, syscalls: {deny: [execve]}}\n", "the program itself could not be executed"),
        ("  one: {executable: /bin/one, syscalls: {allow: [kill], deny: kill}}\n", "is allowed and denied"),
        ("  one: {executable: /bin/one, syscalls: {lists: etcd}}\n", "did you mean `list`?"),
        ("  a: {executable: /a, after: [b]}\n  b: {executable: /b, after: [a]}\n", "wait for each other"),
        ("  a: {executable: /a, after: [a]}\n", "wait for each other"),
        ("  a: {executable: /a, members: [n3]}\n", "which is no member"),
        ("  a: {executable: /a, after: [b]}\n  b: {executable: /b, members: [n1]}\n", "does not run beside `n2`"),
        ("  a: {executable: /a, health: {every: 1s}}\n", "`health` asks one question"),
        ("  a: {executable: /a, health: {tcp: 'h:1', http: 'http://h'}}\n", "`health` asks one question"),
        ("  a: {executable: /a, health: {tcp: h}}\n", "is not `host:port`"),
        ("  a: {executable: /a, health: {http: 'https://h'}}\n", "is no plain HTTP URL"),
        ("  a: {executable: /a, health: {tcp: 'h:1', every: 0s}}\n", "longer than nothing"),
        ("  a: {executable: /a, hooks: {pre-start: [sh]}}\n", "is not an absolute path"),
        ("  a: {executable: /a, ports: {bind: [70000]}}\n", "is no port"),
        ("  a: {executable: /a, volumes: [{access: write}]}\n", "a volume has no `path`"),
        ("  a: {executable: /a, volumes: [{path: /v, create: true}]}\n", "need not be made"),
        ("  a: {executable: /a, env: {A: [b]}}\n", "not text"),
        ("  a: {executable: /a, unsafe: [all]}\n", "is no hole of a box"),
        ("  a: {executable: /a, restart: {when: sometimes}}\n", "is no `when`"),
        ("  a: {executable: /a, box: true}\n", "not text"),
    ] {
        let told = read(bad).unwrap_err();
        assert!(told.contains(said), "{bad}: {told}");
    }
}
