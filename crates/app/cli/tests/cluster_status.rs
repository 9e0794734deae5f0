//! `cluster status`, the page and `quorate status` show what was observed within seconds, and say what to do about it.

#![expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test that cannot go on says where")]

mod agent_support;
mod cluster_support;

use std::path::Path;
use std::process::Output;

use agent_support::Place;
use cluster_support::{Declared, LIMIT, Wire, leads, said};
use jiff::Timestamp;
use quorate_pki::{Authorities, Keys, NodeNames, Policy, ensure_authorities, ensure_installed, ensure_requests, issue};
use quorate_testkit::wait_until;

fn first_line(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).lines().next().unwrap_or_default().to_owned()
}

/// The row of a node in the table.
fn row<'a>(text: &'a str, name: &str) -> &'a str {
    text.lines().find(|line| line.starts_with(name)).unwrap_or_default()
}

/// An agent that has just taken another file listens again in a moment.
fn metrics(cluster: &Declared, at: usize) -> String {
    let mut text = String::new();
    wait_until("the metrics", LIMIT, || {
        text = read_metrics(cluster, at).unwrap_or_default();
        text.ends_with("# EOF\n")
    });
    text
}

fn read_metrics(cluster: &Declared, at: usize) -> std::io::Result<String> {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", cluster.members[at].health.number()))?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

/// The one leader that `cluster status` shows.
#[track_caller]
fn the_leader(cluster: &Declared, file: &str) -> String {
    let shown = cluster.json(&["cluster", "status", "--config", file]);
    let members = shown["members"].as_array().unwrap();
    let leaders: Vec<&str> =
        members.iter().filter(|one| one["role"] == "leader").filter_map(|one| one["name"].as_str()).collect();
    assert_eq!(leaders.len(), 1, "{shown:#}");
    leaders[0].to_owned()
}

#[test]
fn a_lost_quorum_is_the_first_line_with_the_command_to_run() {
    let mut cluster = Declared::new("sid", 3, Wire::Clear);
    cluster.start_all();
    cluster.wait_serving();
    let file = cluster.path("cluster.yaml").display().to_string();
    let shown = |cluster: &Declared| cluster.quorate(&["cluster", "status", "--config", &file]);
    wait_until("a healthy cluster", LIMIT, || shown(&cluster).status.success());
    let healthy = shown(&cluster);
    assert!(first_line(&healthy).ends_with(": healthy"), "{}", said(&healthy));
    assert_eq!(said(&healthy).matches(" leader ").count(), 1, "{}", said(&healthy));

    // The first status after a drain shows one leader, and the other one: every agent had observed the earlier one just before.
    for _ in 0..3 {
        let leader = the_leader(&cluster, &file);
        let drained = cluster.quorate(&["cluster", "drain", &leader, "--config", &file]);
        assert!(said(&drained).contains("handed leadership"), "{}", said(&drained));
        assert_ne!(the_leader(&cluster, &file), leader);
    }

    // Two machines lose their power, the leader's among them.
    let leader = (0..3).find(|at| leads(&cluster.ctl(*at, &["endpoint", "status", "--write-out=json"]))).unwrap();
    let other = (leader + 1) % 3;
    let left = (leader + 2) % 3;
    cluster.power_off(leader);
    cluster.power_off(other);
    wait_until("exit code 6", LIMIT, || shown(&cluster).status.code() == Some(6));
    let lost = shown(&cluster);
    let text = said(&lost);
    assert!(first_line(&lost).contains("QUORUM LOST: 1 of 3 voters answers, 2 are needed"), "{text}");
    let second: Vec<&str> = text.lines().skip(1).take(2).collect();
    assert!(second[0].starts_with("  do: bring n"), "{text}");
    assert_eq!(second[1].trim(), format!("quorate cluster recover --config {file}"), "{text}");
    // On a terminal the verdict is red, and nothing in the first line has another colour.
    let coloured = cluster.quorate(&["--color", "always", "cluster", "status", "--config", &file]);
    let line = first_line(&coloured);
    let (before, after) = line.split_once("QUORUM LOST").unwrap_or_default();
    assert!(before.contains("\x1b[31m") && after.starts_with("\x1b["), "{line:?}");
    assert!(!line.contains("\x1b[32m") && !line.contains("\x1b[33m"), "{line:?}");
    assert!(!first_line(&lost).contains('\x1b'), "{lost:?}");
    for dead in [leader, other] {
        let row = row(&text, &cluster.members[dead].name);
        assert!(row.contains(" voter ") && row.contains(" silent ") && !row.contains("3.5"), "{row}\n{text}");
        assert!(text.contains("last seen "), "{text}");
    }
    assert!(!text.contains(" leader "), "no member is shown as leader:\n{text}");

    // The page, the node's own status and its metrics say the same.
    let page = cluster.path("status.html");
    cluster.quorate(&["cluster", "page", "--config", &file, "--write", &page.display().to_string()]);
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains("class=\"pill bad\">quorum lost"), "{page}");
    assert!(page.contains("<pre>quorate cluster recover --config "), "{page}");
    let name = cluster.members[left].name.clone();
    let own = ["status", "--config", &file, "--name", &name];
    wait_until("its own status", LIMIT, || cluster.quorate(&own).status.code() == Some(6));
    let own = said(&cluster.quorate(&own));
    assert!(own.contains("[Q1440]") && own.contains("quorate cluster recover"), "{own}");
    let coloured = said(&cluster.quorate(&["--color", "always", "status", "--config", &file, "--name", &name]));
    assert!(coloured.lines().any(|line| line.contains("\x1b[31m") && line.contains("[Q1440]")), "{coloured:?}");
    assert!(metrics(&cluster, left).contains("quorate_degraded{reason=\"quorum_lost\"} 1"));

    // An agent that was started since knows it too, from its ledger; and one machine is enough to mend it.
    cluster.kill_agent(left);
    cluster.start(left);
    wait_until("the same after a restart", LIMIT, || first_line(&shown(&cluster)).contains("QUORUM LOST"));
    cluster.start(other);
    cluster.wait_phase(other, "serving");
    wait_until("a quorum", LIMIT, || shown(&cluster).status.code() == Some(3));
    let text = said(&shown(&cluster));
    assert!(text.contains("NOT ALL MEMBERS SERVE: 2 of 3 members serve"), "{text}");
    assert!(text.contains("2 of 3 voters answer, 2 are needed: tolerates 0 more failures"), "{text}");
    wait_until("its metrics", LIMIT, || metrics(&cluster, left).contains("{reason=\"quorum_lost\"} 0"));
}

/// Certificates of `n1` in `dir`, by the authorities in `ca`.
fn equip(ca: &Path, dir: &Path) {
    let (names, now) = (NodeNames::new("t", "n1", ["127.0.0.1"]).unwrap(), Timestamp::now());
    ensure_authorities(ca, "t", None, now).unwrap();
    let bundle = ensure_requests(dir, &names, Keys::Keep).unwrap().bundle;
    let authorities = Authorities::open(ca, None).unwrap();
    let signed = issue(&authorities, &bundle, &Policy { days: 90, allowed: None }, now).unwrap();
    ensure_installed(dir, &names, &signed, now).unwrap();
}

#[test]
fn stopped_backups_and_certificates_that_nobody_renews_are_degraded_states() {
    let mut place = Place::with_store("sid");
    let (ca, pki) = (place.path("ca"), place.path("pki"));
    equip(&ca, &pki);
    let https = |url: String| url.replace("http://", "https://");
    let dir = place.root.path().display().to_string();
    place.raw = Some(format!(
        "token: t\nbootstrap: {{id: 1}}\ntls: {{dir: \"{dir}/pki\"}}\nmembers:\n  - {{name: n1, peer-urls: [\"{}\"], client-urls: \
         [\"{}\"], data-dir: {dir}/data}}\nagent:\n  health-listen: http://127.0.0.1:{}\n  api-listen: https://127.0.0.1:{}\n  \
         state-dir: {dir}/state\n  etcd-binary: {}\netcd: {{heartbeat-interval: 10, election-timeout: 100}}\n\
         backup: {{store: \"{}\", delta-period: 200ms}}\n",
        https(place.seat.peer_url()),
        https(place.seat.client_url()),
        place.health,
        place.api,
        place.tools.etcd.display(),
        place.store(),
    ));
    let mut agent = place.start();
    let status = || place.quorate(&["cluster", "status"]);
    let measured = |reason: &str| {
        let (_, text) = place.health("/metrics").unwrap_or_default();
        text.contains(&format!("quorate_degraded{{reason=\"{reason}\"}} 1"))
    };
    wait_until("it is told that nobody renews", LIMIT, || said(&status()).contains("[Q1443]"));
    let text = said(&status());
    assert_eq!(status().status.code(), Some(1), "{text}");
    assert!(text.contains("DEGRADED: all 1 members serve, but no node can renew the certificates"), "{text}");
    assert!(text.contains("  do: copy the issuing keys"), "{text}");
    assert!(measured("nobody_renews_certificates"));
    assert_eq!(place.quorate(&["status"]).status.code(), Some(1));

    // With the keys in place it is well within seconds, without a restart.
    for key in ["peer-ca.key", "client-ca.key", "agent-ca.key"] {
        std::fs::copy(ca.join(key), pki.join(key)).unwrap();
    }
    wait_until("a healthy cluster", LIMIT, || status().status.success());
    assert!(first_line(&status()).ends_with(": healthy"));

    // The store goes away below the agent, and with the next delta that is a degraded state, until it is back.
    std::fs::rename(place.path("store"), place.path("away")).unwrap();
    std::fs::File::create(place.path("store")).unwrap();
    let file = |name: &str| pki.join(name).display().to_string();
    let (ca, cert, key) = (file("client-ca.crt"), file("admin.crt"), file("admin.key"));
    let url = https(place.seat.client_url());
    place.tools.ctl(&url, &["--cacert", &ca, "--cert", &cert, "--key", &key, "put", "a", "1"]);
    wait_until("stopped backups", LIMIT, || status().status.code() == Some(1));
    let text = said(&status());
    assert!(text.contains("DEGRADED: all 1 members serve, but backups have stopped: "), "{text}");
    assert!(text.contains("degraded: backups have stopped: ") && text.contains("[Q0969]"), "{text}");
    assert!(measured("backups_stopped"));
    std::fs::remove_file(place.path("store")).unwrap();
    std::fs::rename(place.path("away"), place.path("store")).unwrap();
    wait_until("backups again", LIMIT, || status().status.success());
    assert!(agent.stop().success());
}

#[test]
fn a_missing_member_and_a_stuck_learner_are_degraded_states() {
    let mut cluster = Declared::new("sid", 2, Wire::Clear);
    let second = cluster.members.pop().unwrap();
    cluster.file();
    cluster.start_all();
    cluster.wait_serving();
    let file = cluster.path("cluster.yaml").display().to_string();
    let own = |cluster: &Declared| cluster.quorate(&["status", "--config", &file, "--name", "n1"]);
    assert!(own(&cluster).status.success(), "{}", said(&own(&cluster)));

    // The file declares a member whose machine is not there.
    cluster.members.push(second);
    cluster.bootstrap = 0;
    cluster.more += "maintenance: {join-timeout: 15s}\n";
    let new = cluster.file_as("new.yaml", &cluster.text()).display().to_string();
    let begun = cluster.quorate(&["cluster", "apply", &new, "--yes", "--wait", "0s", "--name", "n1"]);
    assert_eq!(begun.status.code(), Some(3), "{}", said(&begun));
    let measured = |cluster: &Declared, reason: &str| {
        metrics(cluster, 0).contains(&format!("quorate_degraded{{reason=\"{reason}\"}} 1"))
    };
    wait_until("members that differ from the file", LIMIT, || measured(&cluster, "members_unbalanced"));
    let shown = own(&cluster);
    assert_eq!(shown.status.code(), Some(1), "{}", said(&shown));
    for shown in [shown, cluster.quorate(&["cluster", "status", "--config", &file])] {
        let text = said(&shown);
        let line = text.lines().find(|line| line.contains("[Q0985]")).unwrap_or_default();
        assert!(line.contains("degraded: ") && line.contains("declared, and no members yet: `n2`"), "{text}");
        assert!(text.contains("quorate cluster apply"), "{text}");
        assert!(!shown.status.success(), "{text}");
    }
    assert!(!measured(&cluster, "learner_stuck"));

    // It is added and does not come up: that is a learner which does not become a voter, until it is taken out again.
    cluster.ctl(0, &["member", "add", "n2", "--learner", &format!("--peer-urls={}", cluster.peer_url(1))]);
    wait_until("a stuck learner", LIMIT, || measured(&cluster, "learner_stuck"));
    let shown = own(&cluster);
    assert_eq!(shown.status.code(), Some(1), "{}", said(&shown));
    for shown in [shown, cluster.quorate(&["cluster", "status", "--config", &file])] {
        let text = said(&shown);
        let line = text.lines().find(|line| line.contains("[Q1441]")).unwrap_or_default();
        assert!(line.contains("degraded: ") && line.contains("has not become a voter for 3s or more"), "{text}");
        assert!(!text.contains("[Q0985]") && !shown.status.success(), "{text}");
    }
    wait_until("it is taken out again", LIMIT, || !measured(&cluster, "learner_stuck"));
}

#[test]
fn reports_stopped_backups_where_the_agent_of_the_leader_is_dead() {
    let mut cluster = Declared::new("sid", 3, Wire::Clear);
    std::fs::create_dir(cluster.path("store")).unwrap();
    cluster.more = format!("backup: {{store: \"file://{}\", delta-period: 200ms}}\n", cluster.path("store").display());
    cluster.file();
    cluster.start_all();
    cluster.wait_serving();
    cluster.put(0, "k", "1");
    cluster.wait_backed_up();
    let leader = (0..3).find(|at| leads(&cluster.ctl(*at, &["endpoint", "status", "--write-out=json"]))).unwrap();
    let others = [(leader + 1) % 3, (leader + 2) % 3];
    let stopped = |cluster: &Declared, at: usize| {
        let status = cluster.status(at);
        let warnings = status["warnings"].as_array().cloned().unwrap_or_default();
        warnings.into_iter().find(|one| one["code"] == "Q0969")
    };
    assert!(others.iter().all(|at| stopped(&cluster, *at).is_none()));
    cluster.kill_agent(leader);
    let name = cluster.members[leader].name.clone();
    for at in others {
        let mut warning = None;
        wait_until("stopped backups are reported", LIMIT, || {
            warning = stopped(&cluster, at);
            warning.is_some()
        });
        let text = warning.unwrap().to_string();
        assert!(text.contains(&format!("`{name}` leads the cluster, and its agent")), "{text}");
        assert!(text.contains(&format!("start the agent of `{name}`")), "{text}");
        assert!(metrics(&cluster, at).contains("quorate_degraded{reason=\"backups_stopped\"} 1"));
        let state = cluster.status(at)["backup"]["state"].as_str().unwrap().to_owned();
        assert!(state.starts_with("backups have stopped: "), "{state}");
    }
    assert!(leads(&cluster.ctl(leader, &["endpoint", "status", "--write-out=json"])), "etcd serves as before");
    cluster.start(leader);
    wait_until("the report ends", LIMIT, || others.iter().all(|at| stopped(&cluster, *at).is_none()));
    for at in others {
        assert!(metrics(&cluster, at).contains("quorate_degraded{reason=\"backups_stopped\"} 0"));
    }
}
