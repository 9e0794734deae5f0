//! Clusters by hand, on hosts of their own: one node that invites others, nodes that are killed while they join and leave, codes
//! that do not hold, and strangers.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod cluster_support;

use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

use cluster_support::end_all_below;
use quorate_plan::peering::JoinCode;
use quorate_testkit::{Hosts, Running, Tools, etcd, quorate, wait_until};
use serde_json::Value;

/// Two slow cores are what there may be.
const LIMIT: Duration = Duration::from_secs(150);

/// Nodes `n1` to `n<count>`, one on each host, and no file of anybody's.
struct ByHand {
    // Agents end before the hosts they run on.
    agents: Vec<Option<Running>>,
    hosts: Hosts,
    root: tempfile::TempDir,
    tools: Tools,
}

impl ByHand {
    fn new(count: u8) -> ByHand {
        let agents = (0..count).map(|_| None).collect();
        ByHand { agents, hosts: Hosts::new(count), root: tempfile::tempdir().unwrap(), tools: etcd("3.5.16") }
    }

    fn shown(&self, name: &str) -> String {
        self.root.path().join(name).display().to_string()
    }

    fn state(&self, at: usize) -> PathBuf {
        self.root.path().join(format!("state/n{}", at + 1))
    }

    fn data(&self, at: usize) -> PathBuf {
        self.root.path().join(format!("data-{}", at + 1))
    }

    /// Words that every command of a node takes.
    fn node(&self, at: usize) -> Vec<String> {
        vec!["--state-dir".into(), self.shown("state"), "--name".into(), format!("n{}", at + 1)]
    }

    /// Its own addresses and programs.
    fn own(&self, at: usize) -> Vec<String> {
        let address = self.hosts[at].address().to_string();
        let (data, binary) = (self.data(at).display().to_string(), self.tools.etcd.display().to_string());
        vec!["--listen".into(), address, "--data-dir".into(), data, "--etcd-binary".into(), binary]
    }

    fn start(&mut self, at: usize, more: &[String]) {
        let words: Vec<String> =
            ["run".to_owned()].into_iter().chain(self.node(at)).chain(more.iter().cloned()).collect();
        self.agents[at] = Some(self.hosts[at].start(&quorate(), &words, &[]));
    }

    fn standalone(&mut self, at: usize, join_timeout: &str) {
        let mut more = self.own(at);
        more.extend(
            ["--standalone", "--box", "off", "--join-timeout", join_timeout, "--glusterd-dir"].map(str::to_owned),
        );
        more.push(self.shown("glusterd"));
        self.start(at, &more);
        self.wait(at, "service", |status| status["phase"] == "serving");
    }

    /// SIGKILL to the agent alone.
    fn kill_agent(&mut self, at: usize) {
        if let Some(mut agent) = self.agents[at].take() {
            agent.kill();
        }
    }

    /// SIGKILL to agent, shim and etcd: the machine is off.
    fn power_off(&mut self, at: usize) {
        self.kill_agent(at);
        end_all_below(&self.state(at));
    }

    /// `quorate` on a host, with something on its stdin.
    fn quorate(&self, at: usize, args: &[&str], input: &str) -> Output {
        let mut command = self.hosts[at].command(quorate());
        command.args(args).args(self.node(at)).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // Whoever ends before it has read everything has read enough.
        let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
        child.wait_with_output().unwrap()
    }

    #[track_caller]
    fn done(&self, at: usize, args: &[&str], input: &str) -> String {
        let output = self.quorate(at, args, input);
        assert!(output.status.success(), "{args:?}: {}\n{}\n{}", output.status, said(&output), self.logs());
        String::from_utf8(output.stdout).unwrap()
    }

    /// Refused with this code, and what was said.
    #[track_caller]
    fn refused(&self, at: usize, args: &[&str], input: &str, code: &str) -> String {
        let output = self.quorate(at, args, input);
        let text = said(&output);
        assert!(
            !output.status.success() && text.contains(code),
            "{args:?}: {}\n{text}\n{}",
            output.status,
            self.logs()
        );
        text
    }

    fn invite(&self, at: usize, ttl: &str) -> String {
        let text = self.done(at, &["peer", "invite", "--ttl", ttl], "");
        text.lines().next().unwrap().to_owned()
    }

    fn join_words(&self, at: usize) -> Vec<String> {
        ["peer", "join"].map(str::to_owned).into_iter().chain(self.own(at)).collect()
    }

    #[track_caller]
    fn join(&self, at: usize, code: &str) {
        let words = self.join_words(at);
        self.done(at, &words.iter().map(String::as_str).collect::<Vec<_>>(), code);
    }

    #[track_caller]
    fn join_refused(&self, at: usize, code: &str, with: &str) -> String {
        let words = self.join_words(at);
        self.refused(at, &words.iter().map(String::as_str).collect::<Vec<_>>(), code, with)
    }

    fn status(&self, at: usize) -> Value {
        let (file, name) = (self.state(at).join("cluster.yaml").display().to_string(), format!("n{}", at + 1));
        let words = ["status", "--config", &file, "--name", &name, "--output", "json"];
        let output = self.hosts[at].command(quorate()).args(words).stdin(Stdio::null()).output().unwrap();
        serde_json::from_slice(&output.stdout).unwrap_or(Value::Null)
    }

    #[track_caller]
    fn wait(&self, at: usize, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let begun = Instant::now();
        loop {
            let status = self.status(at);
            if wanted(&status) {
                return status;
            }
            assert!(begun.elapsed() < LIMIT, "n{}: no {what}: {status:#}\n{}", at + 1, self.logs());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// What the agent of a node says of its peers.
    fn peers(&self, at: usize) -> Value {
        let output = self.quorate(at, &["peer", "status", "--output", "json"], "");
        serde_json::from_slice(&output.stdout).unwrap_or(Value::Null)
    }

    #[track_caller]
    fn wait_operation(&self, at: usize, name: &str, step: &str) {
        let begun = Instant::now();
        loop {
            let peers = self.peers(at);
            let operation = &peers["operation"];
            if operation["name"] == name && operation["step"] == step {
                return;
            }
            assert!(begun.elapsed() < LIMIT, "n{}: {name} is not {step}: {peers:#}\n{}", at + 1, self.logs());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn try_ctl(&self, at: usize, args: &[&str]) -> Result<String, String> {
        let file = |name: &str| self.state(at).join("pki").join(name).display().to_string();
        let mut command = self.hosts[at].command(&self.tools.etcdctl);
        command.env("ETCDCTL_API", "3").args(["--endpoints", &format!("https://{}:2379", self.hosts[at].address())]);
        command.args(["--cacert", &file("client-ca.crt"), "--cert", &file("admin.crt"), "--key", &file("admin.key")]);
        let output = command.args(args).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.success() { Ok(text) } else { Err(said(&output)) }
    }

    /// The names in etcd's own list, and who of them only learns.
    fn listed(&self, at: usize) -> BTreeMap<String, bool> {
        let text = self.try_ctl(at, &["member", "list"]).unwrap_or_default();
        let member = |line: &str| {
            let parts: Vec<&str> = line.split(", ").collect();
            Some(((*parts.get(2)?).to_owned(), *parts.last()? == "true"))
        };
        text.lines().filter_map(member).collect()
    }

    #[track_caller]
    fn assert_voters(&self, at: usize, members: &[usize]) {
        let wanted: BTreeMap<String, bool> = members.iter().map(|at| (format!("n{}", at + 1), false)).collect();
        assert_eq!(self.listed(at), wanted, "{}", self.logs());
        let listed: Value = serde_json::from_str(&self.done(at, &["peer", "list", "--output", "json"], "")).unwrap();
        let names: Vec<&str> =
            listed["nodes"].as_array().unwrap().iter().map(|node| node["name"].as_str().unwrap()).collect();
        assert_eq!(names, wanted.keys().map(String::as_str).collect::<Vec<_>>(), "{listed:#}");
    }

    fn leader(&self, members: &[usize]) -> usize {
        let begun = Instant::now();
        loop {
            for at in members {
                let text = self.try_ctl(*at, &["endpoint", "status", "--write-out=json"]).unwrap_or_default();
                let status: Value = serde_json::from_str(&text).unwrap_or(Value::Null);
                let status = &status[0]["Status"];
                if status["leader"].is_u64() && status["leader"] == status["header"]["member_id"] {
                    return *at;
                }
            }
            assert!(begun.elapsed() < LIMIT, "no leader\n{}", self.logs());
        }
    }

    fn role(&self, at: usize) -> String {
        let text = std::fs::read_to_string(self.state(at).join("node")).unwrap_or_default();
        let body: Value = text.lines().nth(1).and_then(|line| serde_json::from_str(line).ok()).unwrap_or(Value::Null);
        body["role"].as_str().unwrap_or_default().to_owned()
    }

    fn logs(&self) -> String {
        let log = |(at, agent): (usize, &Option<Running>)| {
            format!("--- n{}\n{}\n", at + 1, agent.as_ref().map(|agent| agent.log_tail(40)).unwrap_or_default())
        };
        self.agents.iter().enumerate().map(log).collect()
    }
}

impl Drop for ByHand {
    fn drop(&mut self) {
        for agent in self.agents.iter_mut().flatten() {
            agent.kill();
        }
        end_all_below(self.root.path());
    }
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// A program that is asked before changes.
fn write_hook(path: &Path, line: &str) {
    std::fs::File::create(path).unwrap().write_all(format!("#!/bin/sh\n{line}\n").as_bytes()).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// The same code with something else in it.
fn forged(code: &str, with: impl FnOnce(&mut JoinCode)) -> String {
    let mut code = JoinCode::decode(code).unwrap();
    with(&mut code);
    code.encode()
}

#[test]
fn from_one_node_to_three_by_hand_and_back_through_kills() {
    let mut net = ByHand::new(3);
    a_cluster_of_one_goes_on_after_a_kill(&mut net);
    net.try_ctl(0, &["put", "k", "v"]).unwrap();
    // 1 to 2: the classic way to stop all writes.
    let code = net.invite(0, "10m");
    net.join(1, &code);
    net.join(1, &code);
    net.start(1, &[]);
    net.wait_operation(0, "n2", "joined");
    net.assert_voters(0, &[0, 1]);
    assert_eq!((net.role(0), net.role(1)), ("server".to_owned(), "server".to_owned()));
    // A code lets one node in; while another holds, the door is open and says so.
    net.invite(0, "10m");
    let text = net.join_refused(2, &code, "Q1211");
    assert!(text.contains("used"), "{text}");
    joins_through_kills(&mut net);
    assert_eq!(net.try_ctl(2, &["get", "k", "--print-value-only"]).unwrap(), "v\n");
    detaches_and_takes_in_again(&mut net);
    a_dead_node_is_detached_by_force_and_comes_back_as_such(&mut net);
    // Down to one, and no further.
    let leader = net.leader(&[0, 1]);
    let other = 1 - leader;
    net.done(other, &["peer", "detach", &format!("n{}", leader + 1)], "");
    net.assert_voters(other, &[other]);
    net.refused(other, &["peer", "detach", &format!("n{}", other + 1)], "", "Q0955");
    assert_eq!(net.try_ctl(other, &["get", "k", "--print-value-only"]).unwrap(), "v\n");
}

fn a_cluster_of_one_goes_on_after_a_kill(net: &mut ByHand) {
    net.standalone(0, "2m");
    let first = net.status(0);
    net.power_off(0);
    // What the node is stands in its folder; no flag says it again.
    net.start(0, &[]);
    let again = net.wait(0, "service", |status| status["phase"] == "serving");
    assert_eq!((&first["cluster_id"], &first["member_id"]), (&again["cluster_id"], &again["member_id"]));
    net.refused(0, &["peer", "detach", "n1"], "", "Q0955");
    net.refused(0, &["peer", "detach", "n7"], "", "Q1221");
}

/// The inviter is killed right after it said yes, the newcomer while it learns, and the leader meanwhile.
fn joins_through_kills(net: &mut ByHand) {
    let code = net.invite(0, "10m");
    net.join(2, &code);
    net.kill_agent(0);
    net.start(2, &[]);
    net.start(0, &[]);
    wait_until("n3 was added", LIMIT, || {
        net.try_ctl(0, &["member", "list"]).is_ok_and(|list| list.lines().count() == 3)
    });
    net.power_off(2);
    let leader = net.leader(&[0, 1]);
    net.power_off(leader);
    net.start(leader, &[]);
    net.start(2, &[]);
    net.wait_operation(0, "n3", "joined");
    net.assert_voters(0, &[0, 1, 2]);
}

/// A node that something speaks for stays; then it goes, keeps its data aside, and may come again.
fn detaches_and_takes_in_again(net: &mut ByHand) {
    let hook = net.state(2).join("hooks/veto");
    std::fs::create_dir(hook.parent().unwrap()).unwrap();
    write_hook(&hook, "echo a brick is here; exit 1");
    let text = net.refused(0, &["peer", "detach", "n3"], "", "Q1219");
    assert!(text.contains("a brick is here"), "{text}");
    std::fs::set_permissions(&hook, std::fs::Permissions::from_mode(0o644)).unwrap();
    net.refused(0, &["peer", "detach", "n3"], "", "Q1219");
    write_hook(&hook, "exit 0");
    net.done(0, &["peer", "detach", "n3"], "");
    net.assert_voters(0, &[0, 1]);
    let status = net.wait(2, "tombstone", |status| status["ledger"] == "tombstone");
    assert!(status["etcd"].is_null(), "{status:#}");
    wait_until("its data is renamed", LIMIT, || !net.data(2).exists());
    wait_until("it knows that it is detached", LIMIT, || net.role(2) == "detached");
    net.refused(2, &["peer", "invite"], "", "Q1226");
    // While its agent runs, nothing is changed under it.
    let code = net.invite(0, "10m");
    net.join_refused(2, &code, "in use");
    net.kill_agent(2);
    is_probed(net);
    net.assert_voters(0, &[0, 1, 2]);
}

/// The other way round: the node waits and shows a code, and a server asks for it.
fn is_probed(net: &mut ByHand) {
    let words: Vec<String> = ["--accept-probe".to_owned()].into_iter().chain(net.own(2)).collect();
    net.start(2, &words);
    let shown = |net: &ByHand| {
        let log = net.agents[2].as_ref().unwrap().log();
        log.lines().find(|line| line.starts_with("quorate-join-")).map(str::to_owned)
    };
    wait_until("it shows a code", LIMIT, || shown(net).is_some());
    let code = shown(net).unwrap();
    let at = format!("{}:7700", net.hosts[2].address());
    net.refused(0, &["peer", "probe", &at], &forged(&code, |code| code.token = [0; 16]), "Q1211");
    let text = net.done(0, &["peer", "probe", &at, "--wait", "2m"], &code);
    assert!(text.contains("votes"), "{text}");
}

fn a_dead_node_is_detached_by_force_and_comes_back_as_such(net: &mut ByHand) {
    net.power_off(2);
    net.refused(0, &["peer", "detach", "n3"], "", "Q1220");
    net.done(0, &["peer", "detach", "n3", "--force"], "");
    net.assert_voters(0, &[0, 1]);
    net.start(2, &[]);
    wait_until("it knows that it is detached", LIMIT, || net.role(2) == "detached");
    let status = net.wait(2, "refusal", |status| status["phase"] == "refused");
    assert!(status["etcd"].is_null(), "{status:#}");
    let address = net.hosts[2].address();
    let silent = net.hosts[0].within(|| std::net::TcpStream::connect((address, 2379)).is_err());
    assert!(silent, "no empty cluster answers behind the old address");
    // Its agent still says what it is.
    assert_eq!(net.peers(2)["role"], "detached");
}

#[test]
fn codes_that_do_not_hold_let_nobody_in_and_strangers_learn_nothing() {
    let mut net = ByHand::new(3);
    net.standalone(0, "4s");
    strangers_learn_nothing(&net);
    let code = net.invite(0, "10m");
    // Not to be read as anything else.
    net.join_refused(1, "quorate-join-rubbish", "Q1210");
    let text = net.join_refused(1, &code[..code.len() - 3], "Q1210");
    assert!(!text.contains(&code[20..60]), "the code is not repeated: {text}");
    // Another authority than the pinned one is not believed, and gets nothing.
    net.join_refused(1, &forged(&code, |code| code.pin = [1; 32]), "Q1223");
    let brief = net.invite(0, "1s");
    let expires = JoinCode::decode(&brief).unwrap().expires_ms;
    wait_until("its time is over", LIMIT, || {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        now.as_millis() > u128::from(expires)
    });
    net.join_refused(1, &brief, "Q1211");
    let text = net.join_refused(1, &forged(&brief, |code| code.expires_ms = u64::MAX / 2), "Q1211");
    assert!(text.contains("over"), "{text}");
    // Wrong ones are counted for the address that they come from, and nobody else is shut out.
    for number in 0..5 {
        net.join_refused(2, &forged(&code, |code| code.token = [number; 16]), "Q1211");
    }
    net.join_refused(2, &code, "Q1212");
    everything_that_speaks_against_it_is_listed(&net, &code);
    assert_eq!(net.peers(0)["nodes"].as_array().unwrap().len(), 1);
    strangers_learn_nothing(&net);
    // Who has a place and does not come loses it, and the cluster is as before.
    net.join(1, &code);
    net.wait_operation(0, "n2", "undone");
    net.assert_voters(0, &[0]);
    net.try_ctl(0, &["put", "k", "v"]).unwrap();
    let fresh = net.invite(0, "10m");
    net.join_refused(1, &code, "Q1224");
    // With another code it has a place again.
    net.join(1, &fresh);
}

/// Ports in use and a veto, in one answer; and then nothing is there of the attempt.
fn everything_that_speaks_against_it_is_listed(net: &ByHand, code: &str) {
    let hooks = net.state(1).join("hooks");
    std::fs::create_dir_all(&hooks).unwrap();
    std::fs::set_permissions(net.state(1), std::fs::Permissions::from_mode(0o700)).unwrap();
    let hook = hooks.join("veto");
    write_hook(&hook, "echo two volumes are here; exit 1");
    let address = net.hosts[1].address();
    let taken = net.hosts[1].within(|| std::net::TcpListener::bind((address, 2380)).unwrap());
    let text = net.join_refused(1, code, "Q1213");
    assert!(text.contains("two volumes are here") && text.contains(":2380"), "{text}");
    assert!(!net.state(1).join("cluster.yaml").exists() && !net.state(1).join("pki").exists());
    drop(taken);
    write_hook(&hook, "exit 0");
}

/// Every port that listens on the node is asked without a certificate.
fn strangers_learn_nothing(net: &ByHand) {
    let ports = net.hosts[0].within(|| {
        let table = std::fs::read_to_string("/proc/thread-self/net/tcp").unwrap();
        let six = std::fs::read_to_string("/proc/thread-self/net/tcp6").unwrap_or_default();
        let listening = |line: &str| {
            let parts: Vec<&str> = line.split_whitespace().collect();
            let (place, state) = (parts.get(1)?, parts.get(3)?);
            let port = u16::from_str_radix(place.rsplit(':').next()?, 16).ok()?;
            (*state == "0A").then_some(port)
        };
        table.lines().chain(six.lines()).filter_map(listening).collect::<std::collections::BTreeSet<u16>>()
    });
    assert!(ports.is_superset(&[2379, 2380, 2382, 2383].into()), "{ports:?}");
    let authorities: Vec<reqwest::Certificate> = ["peer", "client", "agent"]
        .iter()
        .map(|which| std::fs::read(net.state(0).join(format!("pki/{which}-ca.crt"))).unwrap())
        .map(|pem| reqwest::Certificate::from_pem(&pem).unwrap())
        .collect();
    let address = net.hosts[0].address();
    let told = net.hosts[2].within(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let client = reqwest::Client::builder().tls_certs_only(authorities).timeout(Duration::from_secs(20));
            let client = client.build().unwrap();
            let mut told = Vec::new();
            let paths = [
                "/",
                "/v1/node",
                "/v1/status",
                "/v1/peers",
                "/v1/file",
                "/v1/join",
                "/v1/invite",
                "/health",
                "/readyz",
            ];
            for port in ports {
                for path in paths {
                    let asked = client.get(format!("https://{address}:{port}{path}")).send().await;
                    let Ok(answer) = asked else { continue };
                    let status = answer.status().as_u16();
                    let text = answer.text().await.unwrap_or_default();
                    if !text.is_empty() {
                        told.push((port, path, status, text));
                    }
                }
            }
            told
        })
    });
    let expected = (2383, "/readyz", 200, "{\"phase\":\"serving\"}".to_owned());
    assert_eq!(told, [expected]);
}
