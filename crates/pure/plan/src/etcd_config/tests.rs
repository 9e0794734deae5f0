//! What each version is told, and what it is never told.

use super::*;
use crate::spec::{At, Spec};

fn setting(key: &str, value: Value) -> Setting {
    Setting { key: key.into(), value, at: At { line: 1, column: 1 } }
}

fn objection(key: &str, value: Value, version: Minor) -> String {
    let objection = check(&setting(key, value), Some(version)).unwrap_err();
    format!("{}: {}; {}", objection.code, objection.what, objection.hint.unwrap_or_default())
}

fn rendered(etcd: &str, version: Minor) -> String {
    let text = format!("token: t\nplaintext: true\nmembers: [{{name: n1, address: 10.0.0.1}}]\netcd:\n{etcd}");
    let (spec, _) = Spec::parse(text.as_bytes(), "c.yaml").map_err(|mistakes| mistakes.render()).unwrap();
    render(&EtcdConfig { spec: &spec, member: &spec.members[0], join: None }, version).unwrap()
}

#[test]
fn the_table_is_sorted_and_says_nothing_twice() {
    assert!(ROWS.windows(2).all(|pair| pair[0].0 < pair[1].0));
    assert!(ROWS.iter().all(|(key, first, last, _)| first <= last && OURS.iter().all(|(ours, _)| ours != key)));
    for (key, _) in GATES.iter().chain(RENAMED).chain(SOCKET) {
        assert!(ROWS.iter().any(|(name, ..)| name == key), "{key}");
    }
    assert!(SPELT.iter().all(|(_, key)| ROWS.iter().any(|(name, ..)| name == key)));
}

#[test]
fn the_table_has_every_key_and_flag_of_releases_that_no_test_starts() {
    // Of those that tests do start, the servers themselves are asked.
    for (version, names) in
        [(Minor::V3_6, include_str!("releases/3.6.txt")), (Minor::V3_7, include_str!("releases/3.7.txt"))]
    {
        assert!(names.lines().count() > 100, "the list of etcd {version} is whole");
        for name in names.lines() {
            let code = check(&setting(name, Value::Flag(true)), Some(version)).err().map(|objection| objection.code);
            let known = matches!(code, None | Some(Code::EtcdKeyOurs | Code::EtcdValueInvalid));
            assert!(known, "`{name}` of etcd {version}: {code:?}");
        }
    }
}

#[test]
fn options_of_sockets_stand_one_level_down() {
    let etcd = "  socket-reuse-port: true\n  socket-reuse-address: false\n";
    let text = rendered(etcd, Minor::V3_5);
    assert!(text.contains("socket-options: {\"reuse-address\":false,\"reuse-port\":true}\n"), "{text}");
    assert!(objection("socket-reuse-port", Value::Flag(true), Minor::V3_4).contains("it came with 3.5"));
}

#[test]
fn a_slip_is_recognised() {
    assert_eq!(
        objection("quota-backend-byte", Value::Number(1), Minor::V3_5),
        "Q0915: etcd has no setting `quota-backend-byte`; did you mean `quota-backend-bytes`?"
    );
}

#[test]
fn keys_of_ours_are_refused_with_where_they_belong() {
    assert_eq!(
        objection("initial-cluster", Value::Text("x".into()), Minor::V3_5),
        "Q0916: `initial-cluster` is not set under `etcd`; Quorate founds and joins clusters itself, from `members`, `token` and `bootstrap`"
    );
}

#[test]
fn a_version_without_the_setting_is_named() {
    assert_eq!(
        objection("max-learners", Value::Number(2), Minor::V3_5),
        "Q0917: etcd 3.5 has no setting `max-learners`; it came with 3.6"
    );
    assert_eq!(
        objection("enable-v2", Value::Flag(true), Minor::V3_6),
        "Q0917: etcd 3.6 has no setting `enable-v2`; it went after 3.5"
    );
}

#[test]
fn a_value_of_another_form_is_refused() {
    assert_eq!(
        objection("grpc-keepalive-timeout", Value::Number(5), Minor::V3_5),
        "Q0918: `grpc-keepalive-timeout` of etcd takes a time span such as `10s` or `5m`; "
    );
}

#[test]
fn renamed_settings_follow_the_version() {
    let line = |text: &str, key: &str| text.lines().find(|line| line.contains(key)).map(ToOwned::to_owned);
    for written in ["experimental-compaction-batch-limit", "compaction-batch-limit"] {
        let etcd = format!("  {written}: 500\n");
        let find = |version| line(&rendered(&etcd, version), "compaction-batch-limit").unwrap();
        assert_eq!(find(Minor::V3_4), "experimental-compaction-batch-limit: 500");
        assert_eq!(find(Minor::V3_5), "experimental-compaction-batch-limit: 500");
        assert_eq!(find(Minor::V3_6), "compaction-batch-limit: 500");
        assert_eq!(find(Minor::V3_7), "compaction-batch-limit: 500");
    }
    let gate = "  experimental-initial-corrupt-check: true\n";
    assert_eq!(line(&rendered(gate, Minor::V3_5), "corrupt").unwrap(), "experimental-initial-corrupt-check: true");
    assert_eq!(line(&rendered(gate, Minor::V3_7), "feature").unwrap(), "feature-gates: \"InitialCorruptCheck=true\"");
}

#[test]
fn data_is_compared_by_releases_whose_hashes_are_sound() {
    let checked = |etcd: &str, release: &str| {
        let text = format!("token: t\nplaintext: true\nmembers: [{{name: n1, address: 10.0.0.1}}]\netcd: {{{etcd}}}\n");
        let (spec, _) = Spec::parse(text.as_bytes(), "c.yaml").map_err(|mistakes| mistakes.render()).unwrap();
        let config = EtcdConfig { spec: &spec, member: &spec.members[0], join: None };
        let text = render_checked_for(&config, release, true).unwrap();
        let about = |line: &&str| line.contains("orrupt") || line.contains("ash-check") || line.contains("ashCheck");
        text.lines().filter(about).map(str::to_owned).collect::<Vec<_>>().join("; ")
    };
    let both = "experimental-compact-hash-check-enabled: true; experimental-initial-corrupt-check: true";
    let gates = "feature-gates: \"InitialCorruptCheck=true,CompactHashCheck=true\"";
    for (release, lines) in [
        ("3.4.23", ""),
        ("3.4.34", "experimental-initial-corrupt-check: true"),
        ("3.5.14", ""),
        ("3.5.15", both),
        ("3.5.30", both),
        ("3.6.4", gates),
        ("3.7.1", gates),
    ] {
        assert_eq!(checked("", release), lines, "{release}");
    }
    let (spec, _) = Spec::parse(b"token: t\nplaintext: true\nmembers: [{name: n1, address: 10.0.0.1}]\n", "c.yaml")
        .map_err(|mistakes| mistakes.render())
        .unwrap();
    let config = EtcdConfig { spec: &spec, member: &spec.members[0], join: None };
    let later = render_checked_for(&config, "3.5.30", false).unwrap();
    assert!(later.contains("compact-hash-check") && !later.contains("initial-corrupt-check"), "{later}");
    let off = "experimental-initial-corrupt-check: false";
    let compaction = "experimental-compact-hash-check-enabled: true";
    assert_eq!(checked(off, "3.5.30"), format!("{compaction}; {off}"));
    assert_eq!(checked(off, "3.6.4"), "feature-gates: \"InitialCorruptCheck=false,CompactHashCheck=true\"");
    let given = "feature-gates: 'CompactHashCheck=false, InitialCorruptCheck=true'";
    assert_eq!(checked(given, "3.6.4"), "feature-gates: \"CompactHashCheck=false, InitialCorruptCheck=true\"");
}

#[test]
fn spans_are_written_in_nanoseconds_as_etcds_file_wants_them() {
    assert!(rendered("  grpc-keepalive-timeout: 20s\n", Minor::V3_5).contains("grpc-keepalive-timeout: 20000000000\n"));
}

#[test]
fn the_whole_file() {
    insta::assert_snapshot!(rendered("  quota-backend-bytes: 8589934592\n", Minor::V3_5), @r#"
    # Written by Quorate for etcd 3.5; changes here are lost. Edit the cluster file.
    advertise-client-urls: "http://10.0.0.1:2379"
    auto-compaction-mode: "periodic"
    auto-compaction-retention: "8h"
    data-dir: "/var/lib/etcd"
    initial-advertise-peer-urls: "http://10.0.0.1:2380"
    initial-cluster: "n1=http://10.0.0.1:2380"
    initial-cluster-state: "existing"
    listen-client-urls: "http://10.0.0.1:2379"
    listen-peer-urls: "http://10.0.0.1:2380"
    log-outputs: ["stderr"]
    logger: "zap"
    name: "n1"
    quota-backend-bytes: 8589934592
    strict-reconfig-check: true
    "#);
}

#[test]
fn a_release_that_would_pass_over_the_name_of_peers_is_not_started() {
    for (version, has) in [
        ("3.4.23", false),
        ("3.5.13", false),
        ("3.5.15", false),
        ("3.5.16", true),
        ("v3.5.30", true),
        ("3.5", true),
        ("3.6.0-rc.1", true),
        ("2.3.8", false),
        ("x", false),
    ] {
        assert_eq!(has_allowed_hostname(version), has, "{version}");
    }
    let files = "{cert-file: /c, key-file: /k, trusted-ca-file: /t}";
    let text = format!(
        "token: t\nmembers: [{{name: n1, address: 10.0.0.1}}]\ntls: {{peer: {files}, client: {files}, peer-allowed-hostname: p}}\n"
    );
    let (spec, _) = Spec::parse(text.as_bytes(), "c.yaml").map_err(|mistakes| mistakes.render()).unwrap();
    assert_eq!(check_release(&spec, "3.5.13").unwrap_err().code(), Code::EtcdKeyVersion);
    assert!(check_release(&spec, "3.5.16").is_ok());
    let pinned = format!("{text}agent: {{etcd-version: '3.5.9'}}\n");
    let mistakes = Spec::parse(pinned.as_bytes(), "c.yaml").map(|_| ()).unwrap_err().render();
    assert!(mistakes.contains("the config file of etcd 3.5.9 has no `peer-allowed-hostname`"), "{mistakes}");
}

#[test]
fn the_name_that_comes_with_a_folder_is_set_where_etcd_knows_such_names() {
    let text = "token: t\nmembers: [{name: n1, address: 10.0.0.1}]\ntls: {dir: '/pki/{name}'}\n";
    let (spec, _) = Spec::parse(text.as_bytes(), "c.yaml").map_err(|mistakes| mistakes.render()).unwrap();
    let file = |release| render_for(&EtcdConfig { spec: &spec, member: &spec.members[0], join: None }, release);
    for (release, named) in [("3.4.23", false), ("3.5.13", false), ("3.5.15", false), ("3.5.16", true), ("3.7.0", true)]
    {
        let text = file(release).unwrap();
        assert_eq!(text.contains("\"allowed-hostname\":[\"peer.t.quorate.internal\"]"), named, "{release}: {text}");
        assert!(text.contains("\"cert-file\":\"/pki/n1/peer.crt\"") && text.contains("\"client-cert-auth\":true"));
    }
    assert_eq!(file("3.9.1").unwrap_err().code(), Code::EtcdKeyVersion);
}

#[test]
fn what_the_file_does_not_say_is_chosen_and_what_it_says_holds() {
    let file = |etcd: &str| {
        let text = format!("token: t\nplaintext: true\nmembers: [{{name: n1, address: 10.0.0.1}}]\netcd: {{{etcd}}}\n");
        Spec::parse(text.as_bytes(), "c.yaml").map_err(|mistakes| mistakes.render()).unwrap().0
    };
    let text = |etcd: &str, release: &str| {
        let spec = file(etcd);
        render_for(&EtcdConfig { spec: &spec, member: &spec.members[0], join: None }, release).unwrap()
    };
    for release in ["3.4.23", "3.5.16", "3.6.14", "3.7.1"] {
        let chosen = text("", release);
        assert!(chosen.contains("auto-compaction-mode: \"periodic\"\nauto-compaction-retention: \"8h\"\n"), "{chosen}");
        assert_eq!(chosen.contains("pre-vote: true"), release.starts_with("3.4"), "{chosen}");
        let own = text("auto-compaction-mode: revision, auto-compaction-retention: '1000', pre-vote: false", release);
        assert!(own.contains("\"revision\"") && own.contains("\"1000\"") && own.contains("pre-vote: false"), "{own}");
        // Half of a pair is not filled up with the other half of ours.
        assert!(!text("auto-compaction-retention: '0'", release).contains("periodic"));
        let spec = file("");
        let plain =
            render_plain_for(&EtcdConfig { spec: &spec, member: &spec.members[0], join: None }, release).unwrap();
        assert!(CHOSEN.iter().all(|chosen| !plain.contains(chosen.key)), "{plain}");
    }
    let shown = crate::spec::default_values();
    for chosen in CHOSEN {
        let path = format!("etcd.{}", chosen.key);
        let row = shown.iter().find(|row| row.path == path).unwrap();
        assert_eq!(row.default.as_deref(), Some(chosen.value));
    }
}

#[test]
fn an_etcd_runs_on_data_of_its_own_version_and_of_any_earlier_one() {
    for data in ["3.0.0", "3.4.0", "3.5.0", "2.3.8"] {
        assert!(Minor::V3_5.reads(data), "{data}");
    }
    for data in ["3.6.0", "3.10.0", "4.0.0", "3", "", "three.five"] {
        assert!(!Minor::V3_5.reads(data), "{data}");
    }
    assert!(Minor::V3_6.reads("3.6.0") && Minor::V3_7.reads("3.6.0") && !Minor::V3_4.reads("3.5.0"));
}
