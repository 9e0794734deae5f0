//! What the cluster file may say, and the words for what it may not.

use std::time::Duration;

use proptest::prelude::*;

use super::*;

const SMALL: &str = "token: t\nplaintext: true\nmembers:\n  - {name: n1, address: 10.0.0.1}\n";

const WHOLE: &str = "\
token: prod-1
bootstrap: {id: 1}
members:
  - {name: n1, address: 10.0.0.1}
  - name: n2
    peer-urls: [https://n2.example.com:2380]
    client-urls: https://n2.example.com:2379
    listen-client-urls: [https://0.0.0.0:2379]
    data-dir: /srv/{name}/etcd
    wal-dir: /fast/{name}
    agent-url: https://n2.example.com:2382
  - {name: n3, address: '2001:db8::3'}
tls:
  peer: {cert-file: '/tls/{name}.crt', key-file: /tls/peer.key, trusted-ca-file: /tls/peer-ca.crt}
  client: {cert-file: /tls/c.crt, key-file: /tls/c.key, trusted-ca-file: /tls/client-ca.crt}
  peer-allowed-hostname: peer.prod-1.internal
etcd:
  quota-backend-bytes: 8589934592
  auto-compaction-retention: 1h
backup:
  store: s3://bucket/prefix
  layout: gardener
  delta-period: 20s
  full-schedule: 'every 6h'
  max-restore-time: 10m
  keep: {last: 5, history: 14d}
maintenance:
  validation: full
  validation-budget: 1m30s
  defrag: {free-percent: 30, free-min: 1GiB}
  stop: {term-timeout: 2m}
agent:
  health-listen: http://127.0.0.1:9000
  state-dir: /var/lib/q
  etcd-binary: /usr/bin/etcd
  etcd-version: '3.5'
  etcd-user: root
  etcd-password-file: /etc/q/password
  logs: {max-size: 10MiB, max-age: 7d, max-files: 3}
";

fn read(text: &str) -> Spec {
    Spec::parse(text.as_bytes(), "cluster.yaml").map_err(|mistakes| mistakes.render()).unwrap().0
}

fn mistakes(text: &str) -> String {
    Spec::parse(text.as_bytes(), "cluster.yaml").map(|_| ()).unwrap_err().render()
}

#[test]
fn a_small_file_gets_careful_defaults() {
    let spec = read(SMALL);
    let member = &spec.members[0];
    assert_eq!(member.peer_urls, ["http://10.0.0.1:2380"]);
    assert_eq!(member.listen_client_urls, ["http://10.0.0.1:2379"]);
    assert_eq!(member.data_dir, "/var/lib/etcd");
    assert_eq!(spec.state_dir_of("n1"), "/var/lib/quorate/n1");
    assert_eq!(spec.maintenance, Maintenance::default());
    assert_eq!(spec.agent.health_listen, "http://127.0.0.1:2383");
    assert_eq!(spec.founding_ids(), None, "nothing is founded that was not declared");
}

#[test]
fn a_whole_file_is_read() {
    let spec = read(WHOLE);
    let n2 = spec.member("n2").unwrap();
    assert_eq!((n2.data_dir.as_str(), n2.wal_dir.as_deref()), ("/srv/n2/etcd", Some("/fast/n2")));
    assert_eq!(n2.listen_peer_urls, n2.peer_urls);
    assert_eq!(spec.member("n3").unwrap().peer_urls, ["https://[2001:db8::3]:2380"]);
    let backup = spec.backup.as_ref().unwrap();
    assert_eq!((backup.layout, backup.delta_period), (Layout::Gardener, Duration::from_secs(20)));
    assert_eq!(backup.keep.history, Duration::from_secs(14 * 86400));
    assert_eq!(spec.maintenance.defrag, Defrag { free_percent: 30, free_min: 1 << 30 });
    assert_eq!(spec.etcd_token().as_deref(), Some("prod-1-b1"));
    assert_eq!(spec.local(Some("n3"), "f").unwrap().name, "n3");
    assert!(spec.local(None, "f").is_err());
}

#[test]
fn a_folder_of_certificates_stands_for_its_files() {
    let text = "token: prod\nmembers: [{name: n1, address: 10.0.0.1}]\ntls: {dir: '/etc/quorate/{name}/'}\n";
    let spec = read(text);
    let tls = spec.tls_files().unwrap();
    assert_eq!(tls.peer.cert_file, "/etc/quorate/{name}/peer.crt");
    assert_eq!(tls.agent.as_ref().unwrap().trusted_ca_file, "/etc/quorate/{name}/agent-ca.crt");
    let admin = tls.admin.as_ref().unwrap();
    assert_eq!(
        (admin.key_file.as_str(), admin.trusted_ca_file.as_str()),
        ("/etc/quorate/{name}/admin.key", "/etc/quorate/{name}/client-ca.crt")
    );
    assert_eq!(tls.peer_allowed_hostname.as_deref(), Some("peer.prod.quorate.internal"));
    assert_eq!(spec.required_hostname(), None, "an etcd that knows no such names is used without");
    let own = read(&text.replace("{name}/'}", "{name}/', client: {cert-file: /c, key-file: /k, trusted-ca-file: /t}}"));
    assert_eq!(own.tls_files().unwrap().client.cert_file, "/c");
    assert_eq!(own.tls_files().unwrap().peer, tls.peer);
    let named = read(&text.replace("{name}/'}", "{name}/', peer-allowed-hostname: p.internal}"));
    assert_eq!(named.required_hostname(), Some("p.internal"));
    let none = mistakes(&text.replace("dir: '/etc/quorate/{name}/'", ""));
    assert!(none.contains("neither `dir` nor `peer`") && none.contains("neither `dir` nor `client`"), "{none}");
    assert!(mistakes(&text.replace("'/etc", "'etc")).contains("not an absolute path"));
}

#[test]
fn agents_are_found_on_the_host_of_their_member() {
    let spec = read(WHOLE);
    let url = |name: &str| spec.agent_url_of(spec.member(name).unwrap());
    assert_eq!(url("n1"), "https://10.0.0.1:2382");
    assert_eq!(url("n2"), "https://n2.example.com:2382");
    assert_eq!(url("n3"), "https://[2001:db8::3]:2382");
    let two = |more: &str| {
        format!(
            "token: t\nplaintext: true\nmembers:\n  - {{name: a, address: 127.0.0.1, listen-agent-url: 'http://127.0.0.1:1', \
             listen-health-url: 'http://127.0.0.1:2'}}\n  - {{name: b, peer-urls: ['http://127.0.0.1:3'], client-urls: \
             ['http://127.0.0.1:4'], data-dir: /b{more}}}\n"
        )
    };
    let spec = read(&two(""));
    assert_eq!(spec.agent_url_of(&spec.members[0]), "http://127.0.0.1:1");
    assert_eq!(spec.health_listen_of(&spec.members[0]), "http://127.0.0.1:2");
    assert_eq!(spec.agent_url_of(&spec.members[1]), "http://127.0.0.1:2382");
    assert_eq!(spec.health_listen_of(&spec.members[1]), "http://127.0.0.1:2383");
    assert!(
        mistakes(&two(", listen-agent-url: 'http://127.0.0.1:1'")).contains("`a` on the same host has its agent at")
    );
    assert!(mistakes(&two(", listen-agent-url: 'http://127.0.0.1:2383'")).contains("served at one address"));
    assert!(mistakes(&two(", agent-url: 'https://b:1'")).contains("`agent-url` is for TLS"));
    assert!(mistakes(&two(", listen-agent-url: 'b:1'")).contains("it has no scheme"));
}

#[test]
fn what_is_printed_is_read_back_the_same() {
    let dir = WHOLE.replace("tls:\n", "tls:\n  dir: /etc/quorate\n");
    let dir =
        dir.lines().filter(|line| !line.contains("peer-allowed")).map(|line| format!("{line}\n")).collect::<String>();
    for text in [SMALL, WHOLE, &dir] {
        let spec = read(text);
        let printed = serde_json::to_string_pretty(&spec).unwrap();
        assert_eq!(read(&printed), spec, "{printed}");
        assert_eq!(read(&printed).hash(), spec.hash());
    }
}

#[test]
fn every_mistake_is_shown_with_its_line_at_once() {
    let text = "token: t\nplaintexxt: true\nplaintext: yes please\nmembers:\n  - nam: n1\n    address: 10.0.0.1\nmaintenance:\n  validation: fulll\n  validation-budget: soon\n";
    insta::assert_snapshot!(mistakes(text));
}

#[test]
fn plaintext_is_asked_for_by_name() {
    insta::assert_snapshot!(mistakes("token: t\nmembers: [{name: n1, address: 10.0.0.1}]\n"), @"
    cluster.yaml:1:1: neither `tls` nor `plaintext: true` is given
      1 | token: t
        | ^
      hint: give the certificates under `tls:`, or write `plaintext: true` where everyone who can connect may read and write everything
    ");
    let mixed = SMALL.replace("address: 10.0.0.1", "peer-urls: [https://a:1], client-urls: [http://a:2]");
    assert!(mistakes(&mixed).contains("URL `https://a:1` is for TLS, and `plaintext: true` is asked for"));
    let clear = WHOLE.replace("https://n2.example.com:2379", "http://n2.example.com:2379");
    assert!(mistakes(&clear).contains("is in the clear, and `tls` is given"));
}

#[test]
fn values_of_strange_keys_are_not_repeated() {
    for line in ["passwrod: hunter2", "backup: {store: 's3://key:hunter2@bucket'}", "tls: {hunter: hunter2}"] {
        let text = format!("{SMALL}{line}\n");
        assert!(!mistakes(&text).contains("hunter2"), "{}", mistakes(&text));
    }
    let inside = WHOLE.replace("key-file: /tls/c.key", "key-file: \"-----BEGIN EC KEY hunter2\"");
    assert!(mistakes(&inside).contains("holds a key or certificate itself"));
    assert!(!mistakes(&inside).contains("hunter2"));
}

#[test]
fn members_must_be_told_apart() {
    let two = |second: &str| format!("{SMALL}  - {second}\n");
    assert!(mistakes(&two("{name: n1, address: 10.0.0.2}")).contains("two members are named `n1`"));
    assert!(mistakes(&two("{name: n2, address: 10.0.0.1, data-dir: /d}")).contains("belongs to `n1` already"));
    let ports = "{name: n2, peer-urls: [http://10.0.0.1:3], client-urls: [http://10.0.0.1:4]}";
    assert!(mistakes(&two(ports)).contains("`n1` on the same host has directory `/var/lib/etcd` already"));
    assert!(mistakes(&two("{name: a/b, address: 10.0.0.2}")).contains("cannot be part of a path"));
}

#[test]
fn backups_are_checked_as_far_as_can_be_without_the_store() {
    let backup = |rest: &str| mistakes(&format!("{SMALL}backup: {{store: 'file:///b', {rest}}}\n"));
    assert!(backup("full-schedule: hourly").contains("cannot use the schedule `hourly`"));
    assert!(backup("full-schedule: '0 0 30 2 *'").contains("it never comes"));
    assert!(
        backup("keep: {last: 0, hourly: 0, daily: 0, weekly: 0, monthly: 0, history: 0s}").contains("keeps nothing")
    );
    assert!(backup("spool-max: 1MiB").contains("`spool-max` (`1MiB`) is smaller than `delta-size`"));
    assert!(backup("delta-period: 1ms").contains("shorter than 100ms"));
    for (store, why) in [
        ("s3://bucket?endpoint=hunter2", "options"),
        ("s3://hunter2@bucket/x", "user name or password"),
        ("s3:///prefix", "names no bucket"),
        ("s3://", "names no bucket"),
        ("gs://bucket/../x", "leads elsewhere"),
        ("file://relative", "absolute path"),
        ("file://", "absolute path"),
        ("/backups", "no store"),
        ("http://bucket", "no store"),
    ] {
        let text = mistakes(&format!("{SMALL}backup: {{store: '{store}'}}\n"));
        assert!(text.contains(why) && !text.contains("hunter2"), "{store}: {text}");
    }
    for store in ["s3://bucket", "s3://bucket/a/b", "gs://b/p", "az://container/p", "file:///srv/b"] {
        read(&format!("{SMALL}backup: {{store: '{store}'}}\n"));
    }
    assert_eq!(Keep::default().policy(), crate::retention::Policy::DEFAULT);
}

#[test]
fn with_tls_nothing_is_told_to_other_machines_in_the_clear() {
    let with = |rest: &str| format!("token: t\ntls: {{dir: /p}}\nmembers: [{{name: n1, address: 10.0.0.1}}]\n{rest}\n");
    for rest in [
        "agent: {health-listen: 'http://0.0.0.0:2383'}",
        "etcd: {listen-metrics-urls: 'http://0.0.0.0:2381'}",
        "etcd: {listen-metrics-urls: ['https://0.0.0.0:2381', 'http://10.0.0.1:2384']}",
    ] {
        let text = mistakes(&with(rest));
        assert!(text.contains("is in the clear for other machines, and `tls` is given"), "{rest}: {text}");
        // Asked for by name.
        let open = match rest.strip_prefix("agent: {") {
            Some(more) => format!("agent: {{metrics: open, {more}"),
            None => format!("agent: {{metrics: open}}\n{rest}"),
        };
        read(&with(&open));
    }
    for rest in [
        "agent: {health-listen: 'http://127.0.0.1:2383'}",
        "agent: {health-listen: 'http://[::1]:2383'}",
        "etcd: {listen-metrics-urls: 'https://0.0.0.0:2381,http://localhost:2384'}",
    ] {
        read(&with(rest));
    }
}

#[test]
fn an_even_number_of_members_is_a_warning() {
    let text = format!("{SMALL}  - {{name: n2, address: 10.0.0.2}}\n");
    let (_, warnings) = Spec::parse(text.as_bytes(), "f").unwrap();
    assert_eq!(warnings.len(), 1);
}

#[test]
fn what_is_not_yaml_says_where() {
    let text = mistakes("token: t\nmembers: [\n");
    assert!(text.starts_with("cluster.yaml:"), "{text}");
    assert!(mistakes("").contains("it is empty"));
    assert!(mistakes("- a\n").contains("the file is a list, not a map"));
    assert!(Spec::parse(&[0xff], "f").is_err());
}

#[test]
fn an_edit_elsewhere_keeps_the_declaration() {
    let (one, other) = (read(WHOLE), read(&WHOLE.replace("delta-period: 20s", "delta-period: 30s")));
    assert_eq!(one.declaration_hash(), other.declaration_hash());
    assert_ne!(one.hash(), other.hash());
    let founding = read(&WHOLE.replace("{id: 1}", "{id: 2}"));
    assert_ne!(one.declaration_hash(), founding.declaration_hash());
    assert_ne!(one.founding_ids().unwrap().cluster, founding.founding_ids().unwrap().cluster);
}

proptest! {
    #[test]
    fn spans_and_sizes_are_read_back(millis in 0_u64..300_000_000_000, bytes in any::<u64>()) {
        let span = Duration::from_millis(millis);
        prop_assert_eq!(parse_duration(&duration_text(span)), Some(span));
        prop_assert_eq!(parse_size(&size_text(bytes)), Some(bytes));
    }

    #[test]
    fn a_changed_file_never_panics(at in any::<prop::sample::Index>(), to in any::<char>()) {
        let mut chars: Vec<char> = WHOLE.chars().collect();
        let at = at.index(chars.len());
        chars[at] = to;
        let text: String = chars.into_iter().collect();
        if let Err(mistakes) = Spec::parse(text.as_bytes(), "f") {
            prop_assert!(!mistakes.mistakes.is_empty());
            let _ = (mistakes.render(), mistakes.fault());
        }
    }
}
