//! Clusters by hand on hosts of their own: agents, commands, codes and questions.

#![allow(dead_code, clippy::unwrap_used, reason = "each test file uses its part; one that cannot go on says where")]

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use quorate_etcd::client::{Settings, Tls};
use quorate_plan::peering::JoinCode;
use quorate_testkit::{Hosts, Running, Tools, etcd, quorate};
use serde_json::Value;

use crate::change_support::Load;
use crate::cluster_support::{end_all_below, leads, logs_of, members_in, said};

/// Two slow cores are what there may be.
pub(crate) const LIMIT: Duration = Duration::from_secs(150);

/// Nodes `n1` to `n<count>`, one on each host, and no file of anybody's.
pub(crate) struct ByHand {
    // Agents end before the hosts they run on.
    pub(crate) agents: Vec<Option<Running>>,
    pub(crate) hosts: Arc<Hosts>,
    pub(crate) root: tempfile::TempDir,
    pub(crate) tools: Tools,
    /// What agents and commands of the next start are given.
    pub(crate) env: Vec<(String, String)>,
    /// Added to `run --standalone`.
    pub(crate) more: Vec<String>,
    /// Files with the second secrets of codes, for those who join with both.
    secrets: Mutex<BTreeMap<String, String>>,
    /// Where nodes are reached, if not at the addresses of their hosts.
    pub(crate) listen: Option<fn(usize) -> String>,
}

impl ByHand {
    pub(crate) fn new(count: u8) -> ByHand {
        let agents = (0..count).map(|_| None).collect();
        ByHand {
            agents,
            hosts: Arc::new(Hosts::new(count)),
            root: tempfile::tempdir().unwrap(),
            tools: etcd("3.5.16"),
            env: Vec::new(),
            more: Vec::new(),
            secrets: Mutex::default(),
            listen: None,
        }
    }

    pub(crate) fn shown(&self, name: &str) -> String {
        self.root.path().join(name).display().to_string()
    }

    pub(crate) fn state(&self, at: usize) -> PathBuf {
        self.root.path().join(format!("state/n{}", at + 1))
    }

    pub(crate) fn data(&self, at: usize) -> PathBuf {
        self.root.path().join(format!("data-{}", at + 1))
    }

    /// Words that every command of a node takes.
    pub(crate) fn node(&self, at: usize) -> Vec<String> {
        vec!["--state-dir".into(), self.shown("state"), "--name".into(), format!("n{}", at + 1)]
    }

    /// Its own addresses and programs.
    pub(crate) fn own(&self, at: usize) -> Vec<String> {
        let address = self.listen.map_or_else(|| self.hosts[at].address().to_string(), |listen| listen(at));
        let (data, binary) = (self.data(at).display().to_string(), self.tools.etcd.display().to_string());
        vec!["--listen".into(), address, "--data-dir".into(), data, "--etcd-binary".into(), binary]
    }

    pub(crate) fn start(&mut self, at: usize, more: &[String]) {
        let words: Vec<String> =
            ["run".to_owned()].into_iter().chain(self.node(at)).chain(more.iter().cloned()).collect();
        self.agents[at] = Some(self.hosts[at].start(&quorate(), &words, &self.env));
    }

    pub(crate) fn standalone(&mut self, at: usize, join_timeout: &str) {
        let mut more = self.own(at);
        more.extend(
            ["--standalone", "--box", "off", "--join-timeout", join_timeout, "--glusterd-dir"].map(str::to_owned),
        );
        more.push(self.shown("glusterd"));
        more.extend(self.more.iter().cloned());
        self.start(at, &more);
        self.wait(at, "service", |status| status["phase"] == "serving");
    }

    /// SIGKILL to the agent alone.
    pub(crate) fn kill_agent(&mut self, at: usize) {
        if let Some(mut agent) = self.agents[at].take() {
            agent.kill();
        }
    }

    /// Kills the agent, and starts one that ends, as by SIGKILL, at a named point of a change.
    pub(crate) fn restart_to_end_at(&mut self, at: usize, point: &str) {
        self.kill_agent(at);
        self.env = vec![("QUORATE_END_AT".to_owned(), point.to_owned())];
        self.start(at, &[]);
        self.env.clear();
    }

    /// Waits until the agent has come to its point.
    #[track_caller]
    pub(crate) fn wait_end(&mut self, at: usize) {
        let begun = Instant::now();
        while self.agents[at].as_mut().is_some_and(|agent| agent.ended().is_none()) {
            assert!(begun.elapsed() < LIMIT, "n{} goes on\n{}", at + 1, self.logs());
            std::thread::sleep(Duration::from_millis(20));
        }
        self.agents[at] = None;
    }

    /// SIGKILL to agent, shim and etcd: the machine is off.
    pub(crate) fn power_off(&mut self, at: usize) {
        self.kill_agent(at);
        end_all_below(&self.state(at));
    }

    /// `quorate` on a host, with something on its stdin.
    pub(crate) fn quorate(&self, at: usize, args: &[&str], input: &str) -> Output {
        let mut command = self.hosts[at].command(quorate());
        command
            .envs(self.env.iter().cloned())
            .args(args)
            .args(self.node(at))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // Whoever ends before it has read everything has read enough.
        let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
        child.wait_with_output().unwrap()
    }

    #[track_caller]
    pub(crate) fn done(&self, at: usize, args: &[&str], input: &str) -> String {
        let output = self.quorate(at, args, input);
        assert!(output.status.success(), "{args:?}: {}\n{}\n{}", output.status, said(&output), self.logs());
        String::from_utf8(output.stdout).unwrap()
    }

    /// Refused with this code, and what was said.
    #[track_caller]
    pub(crate) fn refused(&self, at: usize, args: &[&str], input: &str, code: &str) -> String {
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

    /// Takes a node out that does not answer. Whoever led may be that one: until another leads, nothing can be proven.
    #[track_caller]
    pub(crate) fn detach_dead(&self, at: usize, name: &str) {
        let begun = Instant::now();
        loop {
            let output = self.quorate(at, &["peer", "detach", name, "--force"], "");
            if output.status.success() {
                return;
            }
            assert!(begun.elapsed() < LIMIT, "{}\n{}", said(&output), self.logs());
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    pub(crate) fn invite(&self, at: usize, ttl: &str) -> String {
        self.invite_with(at, &["--ttl", ttl]).0
    }

    /// A code, and the second secret that goes with it; a join with that code gets both.
    pub(crate) fn invite_with(&self, at: usize, more: &[&str]) -> (String, Option<String>) {
        let text = self.done(at, &[&["peer", "invite"][..], more].concat(), "");
        let code = text.lines().next().unwrap().to_owned();
        let secret = text.lines().find_map(|line| line.strip_prefix("secret: ")).map(str::to_owned);
        if let Some(secret) = &secret {
            let mut known = self.secrets.lock().unwrap();
            let file = self.shown(&format!("secret-{}", known.len()));
            std::fs::File::create(&file).unwrap().write_all(secret.as_bytes()).unwrap();
            known.insert(code.clone(), file);
        }
        (code, secret)
    }

    /// With the code alone.
    pub(crate) fn join_alone(&self, at: usize) -> Vec<String> {
        ["peer", "join", "--wait", "0s"].map(str::to_owned).into_iter().chain(self.own(at)).collect()
    }

    /// With the second secret of the code, if it has one.
    pub(crate) fn join_words(&self, at: usize, code: &str) -> Vec<String> {
        let mut words = self.join_alone(at);
        let file = self.secrets.lock().unwrap().get(code).cloned();
        words.extend(file.into_iter().flat_map(|file| ["--secret-file".to_owned(), file]));
        words
    }

    /// Joins. Where that waits for a second server, the node is approved on one.
    #[track_caller]
    pub(crate) fn join(&self, at: usize, code: &str) {
        let (words, name) = (self.join_words(at, code), format!("n{}", at + 1));
        let (begun, mut approved) = (Instant::now(), false);
        std::thread::scope(|scope| {
            let join = scope.spawn(|| self.quorate(at, &words.iter().map(String::as_str).collect::<Vec<_>>(), code));
            while !join.is_finished() {
                assert!(begun.elapsed() < LIMIT, "{name} does not join\n{}", self.logs());
                std::thread::sleep(Duration::from_millis(100));
                approved = approved || self.approve_where_it_waits(&name);
            }
            let output = join.join().unwrap();
            assert!(output.status.success(), "{words:?}: {}\n{}\n{}", output.status, said(&output), self.logs());
        });
    }

    /// Approves a node on the first server that says that it waits.
    pub(crate) fn approve_where_it_waits(&self, name: &str) -> bool {
        let running = self.agents.iter().enumerate().filter(|(_, agent)| agent.is_some()).map(|(at, _)| at);
        let waits = |at: &usize| self.peers(*at)["approval"]["name"] == name;
        running
            .into_iter()
            .filter(waits)
            .any(|at| self.quorate(at, &["peer", "countersign", name], "").status.success())
    }

    #[track_caller]
    pub(crate) fn join_refused(&self, at: usize, code: &str, with: &str) -> String {
        let words = self.join_words(at, code);
        self.refused(at, &words.iter().map(String::as_str).collect::<Vec<_>>(), code, with)
    }

    pub(crate) fn status(&self, at: usize) -> Value {
        let (file, name) = (self.state(at).join("cluster.yaml").display().to_string(), format!("n{}", at + 1));
        let words = ["status", "--config", &file, "--name", &name, "--output", "json"];
        let output = self.hosts[at].command(quorate()).args(words).stdin(Stdio::null()).output().unwrap();
        serde_json::from_slice(&output.stdout).unwrap_or(Value::Null)
    }

    #[track_caller]
    pub(crate) fn wait(&self, at: usize, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let told = |status: &Value| format!("n{}: no {what}: {status:#}\n{}", at + 1, self.logs());
        crate::cluster_support::answered(LIMIT, || self.status(at), wanted, told)
    }

    /// What the agent of a node says of its peers.
    pub(crate) fn peers(&self, at: usize) -> Value {
        let output = self.quorate(at, &["peer", "status", "--output", "json"], "");
        serde_json::from_slice(&output.stdout).unwrap_or(Value::Null)
    }

    #[track_caller]
    pub(crate) fn wait_operation(&self, at: usize, name: &str, step: &str) {
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

    pub(crate) fn try_ctl(&self, at: usize, args: &[&str]) -> Result<String, String> {
        let file = |name: &str| self.state(at).join("pki").join(name).display().to_string();
        let mut command = self.hosts[at].command(&self.tools.etcdctl);
        command.env("ETCDCTL_API", "3").args(["--endpoints", &format!("https://{}:2379", self.hosts[at].address())]);
        command.args(["--cacert", &file("client-ca.crt"), "--cert", &file("admin.crt"), "--key", &file("admin.key")]);
        let output = command.args(args).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.success() { Ok(text) } else { Err(said(&output)) }
    }

    /// The names in etcd's own list, and who of them only learns.
    pub(crate) fn listed(&self, at: usize) -> BTreeMap<String, bool> {
        let text = self.try_ctl(at, &["member", "list"]).unwrap_or_default();
        members_in(&text)
    }

    #[track_caller]
    pub(crate) fn assert_voters(&self, at: usize, members: &[usize]) {
        let wanted: BTreeMap<String, bool> = members.iter().map(|at| (format!("n{}", at + 1), false)).collect();
        assert_eq!(self.listed(at), wanted, "{}", self.logs());
        let listed: Value = serde_json::from_str(&self.done(at, &["peer", "list", "--output", "json"], "")).unwrap();
        let names: BTreeSet<&str> =
            listed["nodes"].as_array().unwrap().iter().map(|node| node["name"].as_str().unwrap()).collect();
        assert_eq!(names, wanted.keys().map(String::as_str).collect(), "{listed:#}");
    }

    /// In etcd's own list, and nobody else.
    #[track_caller]
    pub(crate) fn assert_listed(&self, at: usize, members: &[usize]) {
        let wanted: BTreeMap<String, bool> = members.iter().map(|at| (format!("n{}", at + 1), false)).collect();
        assert_eq!(self.listed(at), wanted, "{}", self.logs());
    }

    pub(crate) fn leader(&self, members: &[usize]) -> usize {
        let begun = Instant::now();
        loop {
            for at in members {
                let text = self.try_ctl(*at, &["endpoint", "status", "--write-out=json"]).unwrap_or_default();
                if leads(&text) {
                    return *at;
                }
            }
            assert!(begun.elapsed() < LIMIT, "no leader\n{}", self.logs());
        }
    }

    /// Has a member lead, whoever does.
    #[track_caller]
    pub(crate) fn make_leader(&self, at: usize, members: &[usize]) {
        let begun = Instant::now();
        loop {
            let leader = self.leader(members);
            if leader == at {
                return;
            }
            let list = self.try_ctl(leader, &["member", "list"]).unwrap_or_default();
            let named = format!(", n{}, ", at + 1);
            if let Some(id) = list.lines().find(|line| line.contains(&named)).and_then(|line| line.split(',').next()) {
                let _ = self.try_ctl(leader, &["move-leader", id]);
            }
            assert!(begun.elapsed() < LIMIT, "n{} does not lead\n{}", at + 1, self.logs());
        }
    }

    pub(crate) fn role(&self, at: usize) -> String {
        let text = std::fs::read_to_string(self.state(at).join("node")).unwrap_or_default();
        let body: Value = text.lines().nth(1).and_then(|line| serde_json::from_str(line).ok()).unwrap_or(Value::Null);
        body["role"].as_str().unwrap_or_default().to_owned()
    }

    pub(crate) fn logs(&self) -> String {
        logs_of(&self.agents, 40)
    }

    /// Writes and watches from a host through these members, until it is asked for what it saw.
    pub(crate) fn load(&self, at: usize, through: &[usize]) -> Load {
        let file = |name: &str| Some(self.state(at).join("pki").join(name));
        let mut settings =
            Settings::new(through.iter().map(|at| format!("https://{}:2379", self.hosts[*at].address())));
        settings.tls =
            Tls { ca: file("client-ca.crt"), cert: file("admin.crt"), key: file("admin.key"), server_name: None };
        settings.timeout = Duration::from_secs(5);
        Load::start(Arc::clone(&self.hosts), at, settings, true)
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

/// A program that is asked before changes.
pub(crate) fn write_hook(path: &Path, line: &str) {
    std::fs::File::create(path).unwrap().write_all(format!("#!/bin/sh\n{line}\n").as_bytes()).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// The same code with something else in it.
pub(crate) fn forged(code: &str, with: impl FnOnce(&mut JoinCode)) -> String {
    let mut code = JoinCode::decode(code).unwrap();
    with(&mut code);
    code.encode()
}
