//! New authorities are taken into use while the cluster serves, and certificates are called back.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod change_support;
mod cluster_support;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use change_support::{Load, Net, STALL_MAX};
use cluster_support::disk::Disk;
use cluster_support::{Declared, LIMIT, Wire};
use jiff::Timestamp;
use quorate_etcd::client::{Settings, Tls};
use quorate_pki::{
    Authorities, Keys, NodeNames, Policy, ensure_advanced, ensure_authorities, ensure_installed, ensure_requests,
    issue, observe_rotation, record_issued, with_trust,
};
use quorate_testkit::{Clocks, Running, VERSIONS, kill_hard, quorate, wait_until};

/// Certificates for `name` in `dir`, by the authorities in `ca`.
fn equip(ca: &Path, dir: &Path, name: &str) {
    equip_at(ca, dir, name, "127.0.0.1");
}

fn equip_at(ca: &Path, dir: &Path, name: &str, address: &str) {
    let (now, names) = (Timestamp::now(), NodeNames::new("t", name, [address, "127.0.0.1"]).unwrap());
    let bundle = ensure_requests(dir, &names, Keys::Keep).unwrap().bundle;
    let authorities = Authorities::open(ca, None).unwrap();
    let signed = issue(&authorities, &bundle, &Policy { days: 90, allowed: None }, now).unwrap();
    record_issued(ca, &signed, now).unwrap();
    let signed = with_trust(ca, &authorities, signed).unwrap();
    ensure_installed(dir, &names, &signed, now).unwrap();
}

/// A cluster that serves with certificates of `quorate ca`, whose authorities lie in `ca`.
fn serving(version: &str, count: usize) -> Declared {
    serving_by(version, count, |_| Vec::new())
}

/// The same, with agents that are started with variables that are made once there is a place for files.
fn serving_by(version: &str, count: usize, env: impl FnOnce(&Path) -> Vec<(String, String)>) -> Declared {
    serving_as(version, count, |cluster| cluster.env = env(cluster.root.path()))
}

/// The same, of a cluster that is prepared before its file is written.
fn serving_as(version: &str, count: usize, prepare: impl FnOnce(&mut Declared)) -> Declared {
    let mut cluster = Declared::new(version, count, Wire::Tls);
    prepare(&mut cluster);
    let ca = cluster.path("ca");
    ensure_authorities(&ca, "t", None, Timestamp::now()).unwrap();
    for at in 1..=count {
        equip(&ca, &cluster.path(&format!("pki-n{at}")), &format!("n{at}"));
    }
    let text = cluster.text();
    let tls = text.lines().find(|line| line.starts_with("tls: ")).unwrap();
    let dir = cluster.root.path().display().to_string();
    cluster.file_as("cluster.yaml", &text.replace(tls, &format!("tls: {{dir: \"{dir}/pki-{{name}}\"}}")));
    cluster.start_all();
    cluster.wait_serving();
    cluster
}

fn pki(cluster: &Declared, name: &str) -> PathBuf {
    cluster.path(&format!("pki-{name}"))
}

/// Keeps certificates as they are now.
fn keep_copy(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    copy_into(from, to);
}

fn copy_into(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap().flatten() {
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

/// etcdctl at a member with the administrator's certificate of `identity`, trusting what `trust` trusts.
fn ctl(cluster: &Declared, at: usize, identity: &Path, trust: &Path, args: &[&str]) -> Result<String, String> {
    let file = |dir: &Path, name: &str| dir.join(name).display().to_string();
    let (ca, cert, key) = (file(trust, "client-ca.crt"), file(identity, "admin.crt"), file(identity, "admin.key"));
    let words = [&["--cacert", &ca, "--cert", &cert, "--key", &key], args].concat();
    cluster.tools.try_ctl(&cluster.client_url(at), &words)
}

/// It is let in, as soon as the machine has time for it.
#[track_caller]
fn admits(cluster: &Declared, at: usize, identity: &Path, trust: &Path) {
    let mut last = Ok(String::new());
    wait_until("a read", LIMIT, || {
        last = ctl(cluster, at, identity, trust, &["get", "k"]);
        last.is_ok()
    });
}

fn rotate(cluster: &Declared, more: &[&str]) -> Command {
    let mut command = Command::new(quorate());
    command.args(["ca", "rotate", "--dir"]).arg(cluster.path("ca"));
    if !more.contains(&"--wait") {
        command.args(["--wait", "90s"]);
    }
    command.arg("--config").arg(cluster.path("cluster.yaml")).args(more);
    // What these tests connect with has both authorities, and loads its certificate at each connection.
    command.args(["--clients-updated", "--allow-old-connections"]);
    command
}

fn revoke(cluster: &Declared, words: &[&str]) -> Output {
    let (ca, config) = (cluster.path("ca").display().to_string(), cluster.path("cluster.yaml").display().to_string());
    let wait = if words.contains(&"--wait") { &[][..] } else { &["--wait", "90s"][..] };
    cluster.quorate(&[&["ca", "revoke", "--dir", &ca, "--config", &config], wait, words].concat())
}

#[track_caller]
fn succeeds(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{:?}: {text}", output.status);
    text
}

/// Whether the agent of a member lets in who shows the agent's certificate in `identity`.
fn agent_admits(cluster: &Declared, at: usize, identity: &Path, trust: &Path) -> bool {
    let text = std::fs::read_to_string(cluster.path("cluster.yaml")).unwrap();
    let tls = text.lines().find(|line| line.starts_with("tls: ")).unwrap();
    let file = |dir: &Path, name: &str| dir.join(name).display().to_string();
    let own = format!(
        "agent: {{cert-file: {}, key-file: {}, trusted-ca-file: {}}}}}",
        file(identity, "agent.crt"),
        file(identity, "agent.key"),
        file(trust, "agent-ca.crt")
    );
    let as_stranger = text.replace(tls, &format!("{}, {own}", tls.strip_suffix('}').unwrap()));
    let config = cluster.file_as("stranger.yaml", &as_stranger);
    let shown = cluster.json(&["cluster", "status", "--config", &config.display().to_string()]);
    shown["nodes"][at]["phase"] != "silent"
}

fn pids(cluster: &Declared) -> Vec<u64> {
    (0..cluster.members.len()).map(|at| cluster.status(at)["etcd"]["pid"].as_u64().unwrap_or(0)).collect()
}

/// How clients connect that have the certificates in a folder, as they are at each moment.
fn settings(urls: Vec<String>, dir: &Path) -> Settings {
    let file = |name: &str| Some(dir.join(name));
    let mut settings = Settings::new(urls);
    settings.timeout = Duration::from_secs(2);
    settings.tls =
        Tls { ca: file("client-ca.crt"), cert: file("admin.crt"), key: file("admin.key"), server_name: None };
    settings
}

fn load(cluster: &Declared) -> Load {
    let urls = (0..cluster.members.len()).map(|at| cluster.client_url(at)).collect();
    let load = Load::start_here(settings(urls, &pki(cluster, "n1")));
    load.goes_on(10);
    load
}

/// Nothing was lost, nobody was refused, and nobody waited for longer than for a few elections on a busy machine.
#[track_caller]
fn undisturbed(load: Load) {
    let seen = load.finish();
    assert!(seen.refusals.is_empty(), "no client tries again after these: {:#?}", seen.refusals);
    assert!(seen.longest < STALL_MAX, "no write was taken for {:?}", seen.longest);
}

/// The phase that the folder of authorities has written down.
fn phase(ca: &Path) -> String {
    let text = std::fs::read_to_string(ca.join("rotation.json")).unwrap_or_default();
    let value: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
    value["phase"].as_str().unwrap_or_default().to_owned()
}

fn wait_for_phase(ca: &Path, wanted: &str) {
    let (begun, reached) = (Instant::now(), || [wanted, "done"].contains(&phase(ca).as_str()));
    while !reached() {
        assert!(begun.elapsed() < LIMIT, "never in phase `{wanted}`, but `{}`", phase(ca));
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Rotates to the end. Before `drop` the command stops once more while clients are connected.
#[track_caller]
fn rotated(cluster: &Declared, more: &[&str]) -> String {
    let output = rotate(cluster, more).output().unwrap();
    match output.status.code() {
        Some(5) => succeeds(&rotate(cluster, more).output().unwrap()),
        _ => succeeds(&output),
    }
}

/// Rotates, and kills agents and members in both phases that restart members.
fn rotate_with_kills(cluster: &mut Declared, more: &[&str]) {
    let ca = cluster.path("ca");
    for (wanted, agent, etcd) in [("trust", 2, 1), ("drop", 1, 2)] {
        let command = rotate(cluster, more).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        wait_for_phase(&ca, wanted);
        cluster.kill_agent(agent);
        if let Some(pid) = cluster.status(etcd)["etcd"]["pid"].as_u64() {
            kill_hard(u32::try_from(pid).unwrap());
        }
        cluster.start(agent);
        let output = command.wait_with_output().unwrap();
        // The time that it was given may have passed while members were killed: the same command continues.
        if !output.status.success() && wanted == "drop" {
            succeeds(&rotate(cluster, more).output().unwrap());
        }
    }
    assert_eq!(phase(&ca), "done");
    cluster.wait_serving();
}

#[test]
fn new_authorities_are_taken_into_use_under_load_and_after_kills() {
    let mut cluster = serving("3.5.16", 3);
    let (old, new) = (cluster.path("old"), pki(&cluster, "n2"));
    keep_copy(&new, &old);
    let (before, load) = (pids(&cluster), load(&cluster));
    // Killed again and again, each time a little later.
    for after in [30, 300] {
        let mut command = rotate(&cluster, &[]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(after));
        command.kill().unwrap();
        command.wait().unwrap();
    }
    rotate_with_kills(&mut cluster, &[]);
    undisturbed(load);
    // Members were restarted, since etcd reads authorities only when it starts.
    assert!(pids(&cluster).iter().zip(&before).all(|(now, before)| now != before), "{before:?}");
    for at in 0..3 {
        admits(&cluster, at, &new, &new);
        let refused = ctl(&cluster, at, &old, &new, &["get", "k"]);
        assert!(refused.is_err(), "what the old authority signed is still taken: {refused:?}");
        assert!(ctl(&cluster, at, &new, &old, &["get", "k"]).is_err(), "the old authority signed the server");
        assert!(agent_admits(&cluster, at, &new, &new));
        assert!(!agent_admits(&cluster, at, &old, &new));
    }
    let shown = cluster.json(&["ca", "rotate", "--dir", &cluster.path("ca").display().to_string(), "--status"]);
    assert_eq!(shown["rotation"]["phase"], "done", "{shown}");
    // The old keys are kept, and found a second rotation by nobody.
    let names = std::fs::read_dir(cluster.path("ca")).unwrap().flatten().map(|entry| entry.file_name());
    let retired = names.filter(|name| name.to_string_lossy().contains(".retired-")).count();
    assert_eq!(retired, 6);
}

#[test]
fn the_authority_of_peers_or_of_clients_alone_is_changed_on_other_releases_too() {
    for (version, authority) in [("3.4.23", "peer"), ("3.5.30", "client")] {
        let mut cluster = serving(version, 3);
        let (old, new) = (cluster.path("old"), pki(&cluster, "n2"));
        keep_copy(&new, &old);
        let load = load(&cluster);
        rotate_with_kills(&mut cluster, &["--authority", authority]);
        undisturbed(load);
        for at in 0..3 {
            admits(&cluster, at, &new, &new);
            let client = ctl(&cluster, at, &old, &new, &["get", "k"]);
            assert_eq!(client.is_ok(), authority == "peer", "{version}: {client:?}");
        }
    }
}

/// The only member has no leader for two seconds after each start.
fn slow_elections(cluster: &mut Declared) {
    let slow = "heartbeat-interval: 200, election-timeout: 2000, initial-election-tick-advance: false";
    cluster.more += &format!("etcd: {{{slow}}}\n");
}

#[test]
fn a_rotation_stops_before_it_locks_out_a_client_that_is_connected() {
    let cluster = serving_as("3.5.30", 1, slow_elections);
    let (old, pki) = (cluster.path("old"), pki(&cluster, "n1"));
    keep_copy(&pki, &old);
    let (dir, config) = (cluster.path("ca").display().to_string(), cluster.path("cluster.yaml").display().to_string());
    let words = ["ca", "rotate", "--dir", &dir, "--config", &config, "--authority", "client", "--wait", "90s"];
    // A client as a control plane is one: connected all the time, with the authority that it read once.
    let file = |name: &str| old.join(name).display().to_string();
    let (ca, cert, key) = (file("client-ca.crt"), file("admin.crt"), file("admin.key"));
    let watch = ["--cacert", &ca, "--cert", &cert, "--key", &key, "watch", "k"].map(str::to_owned);
    let endpoint = ["--endpoints".to_owned(), cluster.client_url(0)];
    let client = Running::start(&cluster.tools.etcdctl, &[&endpoint[..], &watch[..]].concat(), &[]);
    wait_until("a watch", LIMIT, || {
        let _ = ctl(&cluster, 0, &old, &old, &["put", "k", "v"]);
        client.log().contains("PUT")
    });
    for exit in [3, 3] {
        let output = cluster.quorate(&words);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(output.status.code(), Some(exit), "{output:?}");
        assert!(said.contains("127.0.0.1  n1") && said.contains("--clients-updated"), "{said}");
        admits(&cluster, 0, &old, &old);
        // The member restarted to trust the new authority: the client is back before `issue` begins.
        let events = client.log().matches("PUT").count();
        wait_until("the watch after a restart", LIMIT, || {
            let _ = ctl(&cluster, 0, &old, &old, &["put", "k", "v"]);
            client.log().matches("PUT").count() > events
        });
    }
    // What is stated before `issue` does not cover `drop`: no client has a new certificate yet.
    for more in [&["--clients-updated"][..], &[]] {
        let refused = cluster.quorate(&[&words[..], more].concat());
        let said = String::from_utf8_lossy(&refused.stdout).into_owned();
        assert_eq!(refused.status.code(), Some(5), "{refused:?}");
        assert!(said.contains("stop working in the next phase") && said.contains("127.0.0.1  n1"), "{said}");
        assert_eq!(phase(&cluster.path("ca")), "drop");
        admits(&cluster, 0, &old, &pki);
    }
    // A client that is connected since before `issue` has the old certificate, whatever is stated.
    let refused = cluster.quorate(&[&words[..], &["--clients-updated"]].concat());
    let said = String::from_utf8_lossy(&refused.stdout).into_owned();
    assert_eq!(refused.status.code(), Some(5), "{refused:?}");
    assert!(said.contains("since before the end of `issue`") && said.contains("127.0.0.1  n1"), "{said}");
    assert!(said.contains("--allow-old-connections") && said.contains("every 10 s"), "{said}");
    assert_eq!(phase(&cluster.path("ca")), "drop");
    admits(&cluster, 0, &old, &pki);
    // It is restarted with a new certificate: another connection. What was connected is remembered for ten minutes.
    drop(client);
    let file = |name: &str| pki.join(name).display().to_string();
    let (ca, cert, key) = (file("client-ca.crt"), file("admin.crt"), file("admin.key"));
    let watch = ["--cacert", &ca, "--cert", &cert, "--key", &key, "watch", "k"].map(str::to_owned);
    let client = Running::start(&cluster.tools.etcdctl, &[&endpoint[..], &watch[..]].concat(), &[]);
    wait_until("a watch", LIMIT, || {
        let _ = ctl(&cluster, 0, &pki, &pki, &["put", "k", "v"]);
        client.log().contains("PUT")
    });
    // It is done when the last member serves with the new files, and not before.
    succeeds(&cluster.quorate(&[&words[..], &["--clients-updated"]].concat()));
    assert_eq!(cluster.status(0)["phase"], "serving", "{:#}", cluster.status(0));
    admits(&cluster, 0, &pki, &pki);
    assert!(ctl(&cluster, 0, &old, &pki, &["get", "k"]).is_err());
}

#[test]
fn a_rotation_completes_by_itself_where_only_agents_are_connected() {
    let cluster = serving("3.5.30", 3);
    let (dir, config) = (cluster.path("ca").display().to_string(), cluster.path("cluster.yaml").display().to_string());
    let words = ["ca", "rotate", "--dir", &dir, "--config", &config, "--authority", "client", "--wait", "90s"];
    succeeds(&cluster.quorate(&words));
    assert_eq!(phase(&cluster.path("ca")), "done");
}

#[test]
fn a_node_that_is_cut_off_in_a_rotation_is_waited_for_and_nobody_is_refused() {
    let mut net = Net::new("3.5.30", 3);
    let ca = net.path("ca");
    ensure_authorities(&ca, "t", None, Timestamp::now()).unwrap();
    for at in 0..3 {
        let address = net.hosts[at].address().to_string();
        equip_at(&ca, &net.path(&format!("pki-n{}", at + 1)), &format!("n{}", at + 1), &address);
    }
    let text = net.text(&[0, 1, 2]);
    let tls = text.lines().find(|line| line.starts_with("tls: ")).unwrap();
    let text = text.replace(tls, &format!("tls: {{dir: \"{}/pki-{{name}}\"}}", net.root.path().display()));
    for at in 0..3 {
        net.give_to(at, &text);
        net.start(at);
    }
    for at in 0..3 {
        net.wait(at, "serving", |status| status["phase"] == "serving");
    }
    let urls = [0, 1].map(|at| net.client_url(at)).to_vec();
    let load = Load::start(Arc::clone(&net.hosts), 0, settings(urls, &net.path("pki-n1")), true);
    load.goes_on(10);
    let (dir, config) = (net.shown("ca"), net.shown("n1.yaml"));
    let words = ["ca", "rotate", "--dir", &dir, "--config", &config, "--clients-updated", "--name", "n1", "--wait"];
    for phase in ["trust", "drop"] {
        net.hosts.partition(2, &[0, 1]);
        let output = net.quorate(0, &[&words[..], &["2s"]].concat());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(3), "{said}");
        assert!(said.contains("Q1023") && said.contains(&format!("in phase `{phase}`")), "{said}");
        load.goes_on(10);
        net.hosts.heal();
        let pause = if phase == "trust" {
            &["180s", "--pause-after", "issue"][..]
        } else {
            &["180s", "--allow-old-connections"][..]
        };
        net.done(0, &[&words[..], pause].concat());
    }
    load.goes_on(10);
    let seen = load.finish();
    assert!(seen.refusals.is_empty(), "no client tries again after these: {:#?}", seen.refusals);
    assert!(seen.longest < STALL_MAX, "no write was taken for {:?}", seen.longest);
    for at in 0..3 {
        net.wait(at, "serving", |status| status["phase"] == "serving");
    }
}

/// The rotation does not end a phase without a node that is down, and says so.
#[track_caller]
fn waits_for_n2(cluster: &Declared, which: &[&str], phase: &str) {
    let (ca, config) = (cluster.path("ca").display().to_string(), cluster.path("cluster.yaml").display().to_string());
    let words =
        ["ca", "rotate", "--dir", &ca, "--config", &config, "--clients-updated", "--name", "n1", "--wait", "1s"];
    let output = cluster.quorate(&[&words[..], which].concat());
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(3), "{text}");
    assert!(text.contains("Q1023") && text.contains(&format!("in phase `{phase}` for n2")), "{text}");
}

#[test]
fn one_authority_alone_pauses_where_it_is_asked_to_and_restarts_nobody_for_agents() {
    let mut cluster = serving("3.4.23", 3);
    let (old, new) = (cluster.path("old"), pki(&cluster, "n3"));
    keep_copy(&new, &old);
    let before = pids(&cluster);
    let agent = ["--authority", "agent"];
    // A node that is down is waited for, in every phase, and catches up once it is there again.
    cluster.power_off(1);
    waits_for_n2(&cluster, &agent, "trust");
    assert!(agent_admits(&cluster, 0, &old, &new), "who is there goes on with what it trusts");
    cluster.start(1);
    succeeds(&rotate(&cluster, &[&agent[..], &["--pause-after", "trust"]].concat()).output().unwrap());
    // Both are good in between, also the other way round.
    assert!(agent_admits(&cluster, 0, &old, &new) && agent_admits(&cluster, 1, &new, &new));
    let other = rotate(&cluster, &["--authority", "peer"]).output().unwrap();
    assert_eq!(other.status.code(), Some(5), "{}", String::from_utf8_lossy(&other.stderr));
    assert!(String::from_utf8_lossy(&other.stderr).contains("Q1024"));
    cluster.power_off(1);
    waits_for_n2(&cluster, &agent, "issue");
    cluster.start(1);
    rotated(&cluster, &[]);
    for at in 0..3 {
        assert!(agent_admits(&cluster, at, &new, &new) && !agent_admits(&cluster, at, &old, &new));
        // The authority of clients is the same.
        admits(&cluster, at, &old, &old);
    }
    cluster.wait_serving();
    let now = pids(&cluster);
    assert_eq!((now[0], now[2]), (before[0], before[2]), "no member was restarted");
}

/// Nobody else is there who could tell it, and the key that signed the first order signs no more.
#[test]
fn certificates_that_are_put_back_from_before_a_rotation_hear_of_it_from_the_command() {
    let mut cluster = serving("3.5.30", 1);
    let (old, own) = (cluster.path("old"), pki(&cluster, "n1"));
    keep_copy(&own, &old);
    succeeds(&rotate(&cluster, &["--pause-after", "trust"]).output().unwrap());
    std::fs::remove_file(own.join("trust.json")).unwrap();
    copy_into(&old, &own);
    rotated(&cluster, &[]);
    cluster.wait_serving();
    admits(&cluster, 0, &own, &own);
    assert!(ctl(&cluster, 0, &old, &own, &["get", "k"]).is_err());
}

/// It was passed over, as by a command of an earlier release, and the others show what its etcd does not trust yet. Nobody could
/// restart it by a plan, since to the others it is down.
#[test]
fn a_member_that_lets_nobody_in_any_more_starts_again_by_itself() {
    let mut cluster = serving("3.5.16", 3);
    let ca = cluster.path("ca");
    let before = pids(&cluster);
    cluster.kill_agent(2);
    let words = ["--authority", "peer", "--name", "n1", "--wait", "1s"];
    let trusted = |cluster: &Declared, at: usize| {
        let (status, now) = (cluster.status(at), pids(cluster)[at]);
        now != 0 && now != before[at] && status["phase"] == "serving"
    };
    wait_until("n1 and n2 to trust both", LIMIT, || {
        let waits = rotate(&cluster, &words).output().unwrap();
        assert_eq!(waits.status.code(), Some(3), "{}", String::from_utf8_lossy(&waits.stderr));
        trusted(&cluster, 0) && trusted(&cluster, 1)
    });
    let rotation = observe_rotation(&ca).unwrap().unwrap();
    ensure_advanced(&ca, &rotation, None, Timestamp::now()).unwrap();
    for (at, name) in ["n1", "n2"].into_iter().enumerate() {
        equip(&ca, &pki(&cluster, name), name);
        // Connections from before would go on.
        kill_hard(u32::try_from(pids(&cluster)[at]).unwrap());
    }
    for at in 0..2 {
        cluster.wait_phase(at, "serving");
    }
    let own = pki(&cluster, "n1");
    wait_until("a write", LIMIT, || ctl(&cluster, 0, &own, &own, &["put", "k", "meanwhile"]).is_ok());
    cluster.start(2);
    cluster.wait_status(2, "another etcd", |status| {
        status["phase"] == "serving" && status["etcd"]["pid"].as_u64() != Some(before[2])
    });
    let read = ctl(&cluster, 2, &own, &own, &["get", "k", "--print-value-only"]).unwrap();
    assert_eq!(read.trim(), "meanwhile");
    rotated(&cluster, &[]);
    cluster.wait_serving();
}

#[test]
fn what_was_called_back_is_let_in_nowhere_and_the_others_are() {
    for version in VERSIONS {
        let mut cluster = serving(version, 1);
        let (ca, own, stolen) = (cluster.path("ca"), pki(&cluster, "n1"), cluster.path("stolen"));
        equip(&ca, &stolen, "ghost");
        admits(&cluster, 0, &stolen, &own);
        assert!(agent_admits(&cluster, 0, &stolen, &own));
        let unknown = revoke(&cluster, &["nobody"]);
        assert_eq!(unknown.status.code(), Some(1), "{}", String::from_utf8_lossy(&unknown.stderr));
        let said = succeeds(&revoke(&cluster, &["ghost"]));
        assert!(said.contains("4 certificates of `ghost` are revoked"), "{said}");
        let refused = ctl(&cluster, 0, &stolen, &own, &["get", "k"]);
        assert!(refused.is_err(), "{version}: {refused:?}");
        assert!(!agent_admits(&cluster, 0, &stolen, &own), "{version}");
        assert!(agent_admits(&cluster, 0, &own, &own), "{version}");
        cluster.wait_serving();
        admits(&cluster, 0, &own, &own);
        // A second one is heeded without a restart of the file's name, and again the lists are never missing.
        equip(&ca, &cluster.path("lost"), "lost");
        admits(&cluster, 0, &cluster.path("lost"), &own);
        succeeds(&revoke(&cluster, &["lost"]));
        assert!(ctl(&cluster, 0, &cluster.path("lost"), &own, &["get", "k"]).is_err());
        assert!(ctl(&cluster, 0, &stolen, &own, &["get", "k"]).is_err());
        succeeds(&revoke(&cluster, &["--refresh"]));
        cluster.wait_serving();
    }
}

#[test]
fn lists_reach_who_was_away_and_nobody_goes_on_without_one_that_was_there() {
    let mut cluster = serving("3.5.16", 2);
    let (ca, own, stolen) = (cluster.path("ca"), pki(&cluster, "n1"), cluster.path("stolen"));
    equip(&ca, &stolen, "ghost");
    cluster.power_off(1);
    let away = revoke(&cluster, &["ghost", "--wait", "1s"]);
    assert_eq!(away.status.code(), Some(3), "{}", String::from_utf8_lossy(&away.stderr));
    let list = pki(&cluster, "n2").join("client-ca.crl");
    assert!(!list.exists());
    // Who was away hears of it from another agent, and nobody runs the command again.
    cluster.start(1);
    cluster.wait_serving();
    wait_until("the list", LIMIT, || list.exists());
    wait_until("n2 to refuse what was called back", LIMIT, || {
        ctl(&cluster, 1, &stolen, &own, &["get", "k"]).is_err() && ctl(&cluster, 1, &own, &own, &["get", "k"]).is_ok()
    });
    assert!(!agent_admits(&cluster, 1, &stolen, &own));
    // Nobody is there to bring it back: etcd is not started without it, and open to whom it was made for.
    for at in 0..2 {
        cluster.power_off(at);
    }
    std::fs::remove_file(&list).unwrap();
    cluster.start(1);
    let status = cluster.wait_status(1, "refusal", |status| status["code"] == "Q1073");
    assert!(status["etcd"].is_null(), "{status}");
    cluster.start(0);
    cluster.wait_serving();
    assert!(list.exists() && ctl(&cluster, 1, &stolen, &own, &["get", "k"]).is_err());
}

#[test]
fn new_authorities_are_taken_into_use_while_clocks_are_stepped() {
    let mut clocks = None;
    let mut cluster = serving_by("3.5.16", 3, |dir| clocks.insert(Clocks::new(dir, 1)).env(0));
    let load = load(&cluster);
    let (said, steps) = clocks.unwrap().stepped(|| rotated(&cluster, &[]));
    assert!(said.contains("is done") && steps > 1, "{steps} steps: {said}");
    // Clocks that jump make certificates end for a moment; what was acknowledged is there all the same.
    load.finish();
    let own = pki(&cluster, "n2");
    cluster.wait_serving();
    for at in 0..3 {
        admits(&cluster, at, &own, &own);
    }
}

#[test]
fn a_node_without_room_for_certificates_is_waited_for() {
    let mut disk = None;
    let mut cluster = serving_by("3.5.16", 3, |dir| {
        // Its certificates and requests, and nothing else, are on a disk of their own.
        disk = Some(Disk::new(&dir.join("pki-n2"), 1));
        Vec::new()
    });
    let disk = disk.unwrap();
    disk.kept_full(|| {
        let stopped = rotate(&cluster, &["--wait", "3s"]).output().unwrap();
        let text = String::from_utf8_lossy(&stopped.stderr).into_owned();
        assert!(!stopped.status.success(), "{text}");
        assert!(text.contains("n2"), "{text}");
        let own = pki(&cluster, "n1");
        admits(&cluster, 0, &own, &own);
    });
    disk.empty();
    let said = rotated(&cluster, &[]);
    assert!(said.contains("is done"), "{said}");
    cluster.wait_serving();
    let own = pki(&cluster, "n2");
    (0..3).for_each(|at| admits(&cluster, at, &own, &own));
    drop(cluster);
    drop(disk);
}
