//! Nodes that are clients: they join, carry, change their role there and back, and go; whoever is killed meanwhile, a node ends as
//! one of the two.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod cluster_support;
mod scan_support;

use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use cluster_support::end_all_below;
use jiff::{SignedDuration, Timestamp};
use quorate_pki::{
    Authorities, Keys, NodeNames, Policy, Role, ensure_installed, ensure_requests, issue, read_certificates,
};
use quorate_testkit::{Hosts, Running, Tools, etcd, quorate, wait_until};
use serde_json::Value;

/// Two slow cores are what there may be.
const LIMIT: Duration = Duration::from_secs(150);

/// Nodes `n1` to `n<count>`, one on each host.
struct Net {
    agents: Vec<Option<Running>>,
    hosts: Arc<Hosts>,
    root: tempfile::TempDir,
    tools: Tools,
}

impl Net {
    /// The first `servers` are servers, by hand.
    fn new(count: u8, servers: usize) -> Net {
        let agents = (0..count).map(|_| None).collect();
        let hosts = Arc::new(Hosts::new(count));
        let mut net = Net { agents, hosts, root: tempfile::tempdir().unwrap(), tools: etcd("3.5.16") };
        let mut words = net.own(0);
        words.extend(["--standalone", "--box", "off", "--join-timeout", "2m", "--glusterd-dir"].map(str::to_owned));
        words.push(net.root.path().join("glusterd").display().to_string());
        net.start(0, &words, None);
        net.wait(0, "service", |status| status["phase"] == "serving");
        for at in 1..servers {
            net.join(at, "server");
            net.wait_operation(at, "joined");
        }
        net
    }

    fn state(&self, at: usize) -> PathBuf {
        self.root.path().join(format!("state/n{}", at + 1))
    }

    fn data(&self, at: usize) -> PathBuf {
        self.root.path().join(format!("data-{}", at + 1))
    }

    fn own(&self, at: usize) -> Vec<String> {
        let (data, binary) = (self.data(at).display().to_string(), self.tools.etcd.display().to_string());
        let address = self.hosts[at].address().to_string();
        ["--listen", &address, "--data-dir", &data, "--etcd-binary", &binary].map(str::to_owned).to_vec()
    }

    fn node(&self, at: usize) -> [String; 4] {
        let state = self.root.path().join("state").display().to_string();
        ["--state-dir".to_owned(), state, "--name".to_owned(), format!("n{}", at + 1)]
    }

    /// `point`: where it ends, as by SIGKILL.
    fn start(&mut self, at: usize, more: &[String], point: Option<&str>) {
        let words: Vec<String> =
            ["run".to_owned()].into_iter().chain(self.node(at)).chain(more.iter().cloned()).collect();
        let env: Vec<(String, String)> =
            point.map(|point| ("QUORATE_END_AT".to_owned(), point.to_owned())).into_iter().collect();
        self.agents[at] = Some(self.hosts[at].start(&quorate(), &words, &env));
    }

    fn kill_agent(&mut self, at: usize) {
        if let Some(mut agent) = self.agents[at].take() {
            agent.kill();
        }
    }

    fn power_off(&mut self, at: usize) {
        self.kill_agent(at);
        end_all_below(&self.state(at));
    }

    fn quorate(&self, at: usize, args: &[&str], input: &str) -> Output {
        let mut command = self.hosts[at].command(quorate());
        command.args(args).args(self.node(at)).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
        child.wait_with_output().unwrap()
    }

    #[track_caller]
    fn done(&self, at: usize, args: &[&str], input: &str) -> String {
        let output = self.quorate(at, args, input);
        assert!(output.status.success(), "{args:?}: {}\n{}\n{}", output.status, said(&output), self.logs());
        String::from_utf8(output.stdout).unwrap()
    }

    #[track_caller]
    fn refused(&self, at: usize, args: &[&str], code: &str) {
        let output = self.quorate(at, args, "");
        let text = said(&output);
        assert!(!output.status.success() && text.contains(code), "{args:?}: {text}\n{}", self.logs());
    }

    fn invite(&self, role: &str) -> String {
        let text = self.done(0, &["peer", "invite", "--role", role, "--ttl", "10m"], "");
        // A server needs the second secret; a client has none.
        let secret = text.lines().find_map(|line| line.strip_prefix("secret: "));
        assert_eq!(secret.is_some(), role == "server", "{text}");
        let mut file = std::fs::File::create(self.secret_file()).unwrap();
        file.write_all(secret.unwrap_or_default().as_bytes()).unwrap();
        text.lines().next().unwrap().to_owned()
    }

    fn secret_file(&self) -> PathBuf {
        self.root.path().join("secret")
    }

    fn join_words(&self, at: usize) -> Vec<String> {
        ["peer", "join"].map(str::to_owned).into_iter().chain(self.own(at)).collect()
    }

    fn join(&mut self, at: usize, role: &str) {
        let code = self.invite(role);
        let more = match role {
            "server" => vec!["--secret-file".to_owned(), self.secret_file().display().to_string()],
            _ => Vec::new(),
        };
        self.join_with(at, &code, &more);
        self.start(at, &[], None);
    }

    fn join_with(&self, at: usize, code: &str, more: &[String]) {
        let words = [&self.join_words(at), more].concat();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        self.done(at, &words, code);
        // Whoever did not hear the answer asks again.
        self.done(at, &words, code);
    }

    /// The certificates of a node as they are when two thirds of their time are over.
    fn age(&self, at: usize) {
        let (pki, past) = (self.state(at).join("pki"), Timestamp::now() - SignedDuration::from_hours(24 * 64));
        let (name, address) = (format!("n{}", at + 1), self.hosts[at].address().to_string());
        let authorities = Authorities::open(&self.state(0).join("pki"), None).unwrap();
        let names = NodeNames::new(authorities.token(), &name, [address.as_str(), "127.0.0.1"]).unwrap();
        let requests = ensure_requests(&pki, &names, Keys::Keep).unwrap().bundle;
        let signed = issue(&authorities, &requests, &Policy { days: 90, allowed: None }, past).unwrap();
        ensure_installed(&pki, &names, &signed, Timestamp::now()).unwrap();
        assert_eq!(self.days_left(at), 25);
    }

    /// The days that the certificates of a node still hold.
    fn days_left(&self, at: usize) -> i64 {
        let until = |role: &Role| {
            let path = self.state(at).join("pki").join(role.cert_file());
            read_certificates(&path).unwrap().remove(0).life.until.duration_since(Timestamp::now()).as_hours() / 24
        };
        Role::ALL.iter().map(until).min().unwrap()
    }

    fn has_issuing_keys(&self, at: usize) -> [bool; 3] {
        ["peer-ca.key", "client-ca.key", "agent-ca.key"].map(|name| self.state(at).join("pki").join(name).exists())
    }

    fn status(&self, at: usize) -> Value {
        let state = self.state(at).display().to_string();
        let words = ["status", "--state-dir", &state, "--output", "json"];
        let output = self.hosts[at].command(quorate()).args(words).stdin(Stdio::null()).output().unwrap();
        serde_json::from_slice(&output.stdout).unwrap_or(Value::Null)
    }

    #[track_caller]
    fn wait(&self, at: usize, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let told = |status: &Value| format!("n{}: no {what}: {status:#}\n{}", at + 1, self.logs());
        cluster_support::answered(LIMIT, || self.status(at), wanted, told)
    }

    fn operation(&self) -> Value {
        let output = self.quorate(0, &["peer", "status", "--output", "json"], "");
        let peers: Value = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
        peers["operation"].clone()
    }

    #[track_caller]
    fn wait_operation(&self, at: usize, step: &str) {
        let (name, begun) = (format!("n{}", at + 1), Instant::now());
        loop {
            let operation = self.operation();
            if operation["name"] == name.as_str() && operation["step"] == step {
                return;
            }
            assert!(begun.elapsed() < LIMIT, "{name} is not {step}: {operation:#}\n{}", self.logs());
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// `etcdctl` on a host, to loopback, which leads to etcd or to the proxy.
    fn ctl_command(&self, at: usize, args: &[&str]) -> Command {
        let file = |name: &str| self.state(at).join("pki").join(name).display().to_string();
        let mut command = self.hosts[at].command(&self.tools.etcdctl);
        command.env("ETCDCTL_API", "3").args(["--endpoints", "https://127.0.0.1:2379"]);
        command.args(["--cacert", &file("client-ca.crt"), "--cert", &file("admin.crt"), "--key", &file("admin.key")]);
        command.args(args);
        command
    }

    fn ctl(&self, at: usize, args: &[&str]) -> Result<String, String> {
        let output = self.ctl_command(at, args).output().unwrap();
        if output.status.success() {
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        } else {
            Err(said(&output))
        }
    }

    #[track_caller]
    fn wait_ctl(&self, at: usize, args: &[&str]) -> String {
        let begun = Instant::now();
        loop {
            match self.ctl(at, args) {
                Ok(text) => return text,
                Err(why) => assert!(begun.elapsed() < LIMIT, "{args:?} on n{}: {why}\n{}", at + 1, self.logs()),
            }
        }
    }

    /// The names of the voters, with their client URLs.
    fn voters(&self, at: usize) -> Vec<(String, String)> {
        let text = self.wait_ctl(at, &["member", "list"]);
        let member = |line: &str| {
            let parts: Vec<&str> = line.split(", ").collect();
            (*parts.last()? == "false").then_some(((*parts.get(2)?).to_owned(), (*parts.get(4)?).to_owned()))
        };
        let mut voters: Vec<(String, String)> = text.lines().filter_map(member).collect();
        voters.sort();
        voters
    }

    fn names(&self, at: usize) -> Vec<String> {
        self.voters(at).into_iter().map(|(name, _)| name).collect()
    }

    fn role(&self, at: usize) -> String {
        let text = std::fs::read_to_string(self.state(at).join("node")).unwrap_or_default();
        let body: Value = text.lines().nth(1).and_then(|line| serde_json::from_str(line).ok()).unwrap_or(Value::Null);
        body["role"].as_str().unwrap_or_default().to_owned()
    }

    #[track_caller]
    fn wait_role(&self, at: usize, role: &str) {
        let begun = Instant::now();
        while self.role(at) != role {
            assert!(begun.elapsed() < LIMIT, "n{} is {}, not {role}\n{}", at + 1, self.role(at), self.logs());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn logs(&self) -> String {
        let log = |(at, agent): (usize, &Option<Running>)| {
            format!("--- n{}\n{}\n", at + 1, agent.as_ref().map(|agent| agent.log_tail(40)).unwrap_or_default())
        };
        self.agents.iter().enumerate().map(log).collect()
    }
}

impl Drop for Net {
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

/// Connects again and again from the host itself, and knows the longest time in which nobody took it.
struct Knocking {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Duration>,
}

impl Knocking {
    fn start(net: &Net, at: usize) -> Knocking {
        let stop = Arc::new(AtomicBool::new(false));
        let (ends, hosts) = (Arc::clone(&stop), Arc::clone(&net.hosts));
        let address = SocketAddr::from((net.hosts[at].address(), 2379));
        let knock = move || {
            let (mut longest, mut taken) = (Duration::ZERO, Instant::now());
            while !ends.load(Ordering::Relaxed) {
                if TcpStream::connect_timeout(&address, Duration::from_secs(5)).is_ok() {
                    longest = longest.max(taken.elapsed());
                    taken = Instant::now();
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            longest.max(taken.elapsed())
        };
        Knocking { stop, thread: std::thread::spawn(move || hosts[at].within(knock)) }
    }

    /// The requirement is a second; a machine that is busy with other tests may hold everything up for longer.
    #[track_caller]
    fn finish(self, what: &str) {
        self.stop.store(true, Ordering::Relaxed);
        let longest = self.thread.join().unwrap();
        #[expect(clippy::print_stderr, reason = "a number worth knowing")]
        {
            eprintln!("{what}: nobody listened for at most {longest:?}");
        }
        assert!(longest < Duration::from_secs(10), "{what}: nobody listened for {longest:?}");
    }
}

#[test]
fn a_client_joins_carries_changes_its_role_there_and_back_and_goes() {
    let mut net = Net::new(4, 3);
    net.refused(0, &["peer", "set-role", "n1", "client"], "Q1226");
    net.refused(0, &["peer", "set-role", "n7", "client"], "Q1221");
    net.refused(0, &["peer", "set-role", "n2", "server"], "Q1226");
    a_node_that_waits_is_probed_and_is_a_client(&mut net);
    let used = a_client_joins_through_kills(&mut net);
    a_client_carries(&mut net);
    a_server_becomes_a_client(&mut net);
    a_change_to_a_server_that_fails_is_taken_back(&mut net);
    a_client_becomes_a_server(&mut net);
    a_client_is_let_go_through_kills(&mut net);
    // Its code was used, and lets nobody in any more: not even itself.
    net.kill_agent(3);
    let words = net.join_words(3);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let text = said(&net.quorate(3, &words, &used));
    assert!(text.contains("Q1211") && text.contains("used before"), "{text}");
    net.start(3, &[], None);
    wait_until("nobody listens there", LIMIT, || net.ctl(3, &["get", "k", "--command-timeout=2s"]).is_err());
    let listed = net.done(0, &["peer", "list"], "");
    assert!(!listed.contains("n4"), "{listed}");
    assert_eq!(net.wait_ctl(2, &["get", "k", "--print-value-only"]), "v\n");
}

/// The other way round: the node waits and shows a code; a server is told the code, and that it is to be a client.
fn a_node_that_waits_is_probed_and_is_a_client(net: &mut Net) {
    let words: Vec<String> = ["--accept-probe".to_owned()].into_iter().chain(net.own(3)).collect();
    net.start(3, &words, None);
    let shown = |net: &Net| {
        let log = net.agents[3].as_ref().unwrap().log();
        log.lines().find(|line| line.starts_with("quorate-join-")).map(str::to_owned)
    };
    wait_until("it shows a code", LIMIT, || shown(net).is_some());
    let (code, at) = (shown(net).unwrap(), format!("{}:7700", net.hosts[3].address()));
    let text = net.done(0, &["peer", "probe", &at, "--role", "client", "--wait", "2m"], &code);
    assert!(text.contains("`n4` is on record as a client"), "{text}");
    // The agent that waited goes on as that of a client.
    let status = net.wait(3, "service", |status| status["phase"] == "serving");
    assert!(status["etcd"].is_null() && status["client"]["members"].as_array().unwrap().len() == 3, "{status:#}");
    assert_eq!((net.role(3), net.data(3).exists()), ("client".to_owned(), false));
    assert_eq!(net.names(0), ["n1", "n2", "n3"]);
    net.wait_ctl(3, &["put", "probed", "v"]);
    // It goes as it came, and its code lets nobody in any more.
    net.done(0, &["peer", "detach", "n4"], "");
    net.wait_role(3, "detached");
    net.kill_agent(3);
}

/// Whoever invites dies at each of its points, and so does the command of the newcomer.
fn a_client_joins_through_kills(net: &mut Net) -> String {
    let (code, words) = (net.invite("client"), net.join_words(3));
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    restart_to_end_at(net, 0, RECORDER[0]);
    assert!(!net.quorate(3, &words, &code).status.success(), "its inviter was killed");
    dies_at_the_others(net);
    for point in ["join-claimed", "join-granted", "join-certified", "join-filed"] {
        let mut command = net.hosts[3].command(quorate());
        command.args(&words).args(net.node(3)).env("QUORATE_END_AT", point);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(code.as_bytes()).unwrap();
        let ended = child.wait_with_output().unwrap();
        assert_eq!(ended.status.code(), None, "{point}: it was killed: {}\n{}", said(&ended), net.logs());
    }
    net.join_with(3, &code, &[]);
    code
}

/// Points of whoever has only the record to change, in their order.
const RECORDER: [&str; 5] = ["reserved", "claimed", "given", "closing", "closed"];

/// It was begun, and whoever carries it out goes on each time from where it was killed.
fn dies_at_the_others(net: &mut Net) {
    wait_end(net, 0, RECORDER[0]);
    for point in &RECORDER[1..] {
        net.start(0, &[], Some(point));
        wait_end(net, 0, point);
    }
    net.start(0, &[], None);
    net.wait(0, "service", |status| status["phase"] == "serving");
}

/// A client that is away is let go by force, whoever is killed over it, and finds that out when it is back.
fn a_client_is_let_go_through_kills(net: &mut Net) {
    net.kill_agent(3);
    net.refused(0, &["peer", "detach", "n4"], "Q1220");
    restart_to_end_at(net, 0, RECORDER[0]);
    assert!(!net.quorate(0, &["peer", "detach", "n4", "--force"], "").status.success(), "it was killed");
    dies_at_the_others(net);
    net.wait_operation(3, "detached");
    for point in ["detached", "detached-written"] {
        net.start(3, &[], Some(point));
        wait_end(net, 3, point);
    }
    net.start(3, &[], None);
    net.wait_role(3, "detached");
}

fn a_client_carries(net: &mut Net) {
    net.age(3);
    net.start(3, &[], None);
    let status = net.wait(3, "service", |status| status["phase"] == "serving");
    assert!(status["etcd"].is_null() && status["client"]["members"].as_array().unwrap().len() == 3, "{status:#}");
    assert!(!net.data(3).exists(), "a client has no data");
    net.wait_ctl(3, &["put", "k", "v"]);
    net.wait_operation(3, "joined");
    let listed: Value = serde_json::from_str(&net.done(0, &["peer", "list", "--output", "json"], "")).unwrap();
    let node = listed["nodes"].as_array().unwrap().iter().find(|node| node["name"] == "n4").unwrap().clone();
    assert_eq!((node["role"].as_str(), node["answers"].as_bool()), (Some("client"), Some(true)), "{listed:#}");
    net.refused(3, &["peer", "invite"], "Q1226");
    let authorities = ["peer", "client", "agent"].map(|which| net.state(3).join(format!("pki/{which}-ca.crt")));
    assert!(scan_support::ports(&net.hosts, 3).is_superset(&[2379, 2382, 2383].into()));
    let strangers = scan_support::told(&net.hosts, 3, 1, &authorities);
    scan_support::assert_only_the_phase(&strangers, "{\"phase\":\"serving\",\"role\":\"client\"}");
    let told = net.done(0, &["peer", "status"], "");
    assert!(told.contains("programs on its own machine"), "{told}");
    // Its certificates were to end soon, and it has none of the keys: a server signs, while the proxy carries.
    wait_until("new certificates", LIMIT, || net.days_left(3) == 89);
    assert_eq!(net.has_issuing_keys(3), [false; 3]);
    net.wait_ctl(3, &["get", "k"]);
    // One server is off, the agent is killed, and it goes on with the list that it kept.
    net.power_off(1);
    net.wait_ctl(3, &["put", "k2", "v"]);
    net.kill_agent(3);
    net.start(3, &[], None);
    net.wait_ctl(3, &["put", "k3", "v"]);
    net.start(1, &[], None);
    net.wait(3, "all servers", |status| {
        status["client"]["members"].as_array().is_some_and(|all| all.iter().all(|one| one["healthy"] == true))
    });
}

fn a_server_becomes_a_client(net: &mut Net) {
    let words = net.ctl_command(2, &["watch", "--prefix", "w/", "--rev=1"]);
    let args: Vec<String> = words.get_args().map(|arg| arg.to_string_lossy().into_owned()).collect();
    let watch = Running::start(words.get_program().as_ref(), &args, &[("ETCDCTL_API".to_owned(), "3".to_owned())]);
    net.wait_ctl(2, &["put", "w/1", "v"]);
    let knocking = Knocking::start(net, 2);
    net.done(0, &["peer", "set-role", "n3", "client"], "");
    // Whoever asked can go on at once.
    assert_eq!(net.ctl(2, &["get", "w/1", "--print-value-only"]), Ok("v\n".to_owned()), "{}", net.logs());
    net.wait(2, "service", |status| status["phase"] == "serving" && !status["client"].is_null());
    knocking.finish("server to client");
    assert_eq!((net.role(2), net.names(0)), ("client".to_owned(), vec!["n1".to_owned(), "n2".to_owned()]));
    wait_until("who is no server has no issuing keys", LIMIT, || net.has_issuing_keys(2) == [false; 3]);
    assert_eq!(net.has_issuing_keys(0), [true; 3]);
    assert!(!net.data(2).exists(), "its data is set aside");
    let aside = std::fs::read_dir(net.root.path()).unwrap().flatten();
    assert!(aside.into_iter().any(|entry| entry.file_name().to_string_lossy().starts_with("data-3.replaced-")));
    net.wait_ctl(2, &["put", "w/2", "v"]);
    wait_until("the watch goes on through the proxy", LIMIT, || watch.log().lines().any(|line| line == "w/2"));
    net.refused(0, &["peer", "set-role", "n3", "client"], "Q1226");
}

/// Its port is taken once every check was passed: etcd does not start there. The node stays a client that carries, and nothing is
/// left of the attempt.
fn a_change_to_a_server_that_fails_is_taken_back(net: &mut Net) {
    restart_to_end_at(net, 0, "claimed");
    net.quorate(0, &["peer", "set-role", "n3", "server", "--wait", "1s"], "");
    wait_end(net, 0, "claimed");
    let address = net.hosts[2].address();
    let taken = net.hosts[2].within(|| TcpListener::bind((address, 2380)).unwrap());
    net.start(0, &[], None);
    wait_until("it is to learn, and cannot", LIMIT, || {
        net.ctl(0, &["member", "list"]).is_ok_and(|list| list.lines().count() == 3)
    });
    net.wait_ctl(2, &["put", "w/3", "v"]);
    net.done(0, &["peer", "set-role", "n3", "client"], "");
    assert_eq!(net.operation()["step"], "undone");
    assert_eq!(net.wait_ctl(0, &["member", "list"]).lines().count(), 2, "no learner is left");
    net.wait(2, "service", |status| status["phase"] == "serving" && !status["client"].is_null());
    assert_eq!((net.role(2).as_str(), net.data(2).exists()), ("client", false));
    net.wait_ctl(2, &["put", "w/4", "v"]);
    drop(taken);
}

fn a_client_becomes_a_server(net: &mut Net) {
    let knocking = Knocking::start(net, 2);
    net.done(0, &["peer", "set-role", "n3", "server"], "");
    assert_eq!(net.ctl(2, &["get", "w/2", "--print-value-only"]), Ok("v\n".to_owned()), "{}", net.logs());
    assert!(net.status(2)["etcd"].is_object(), "etcd itself answers");
    assert_eq!(
        (net.role(2), net.names(0)),
        ("server".to_owned(), vec!["n1", "n2", "n3"].into_iter().map(str::to_owned).collect())
    );
    let own = format!("https://{}:2379", net.hosts[2].address());
    wait_until("etcd has the port", LIMIT, || net.voters(0).contains(&("n3".to_owned(), own.clone())));
    net.wait(2, "service", |status| status["phase"] == "serving" && !status["etcd"].is_null());
    knocking.finish("client to server");
    wait_until("a server has the issuing keys", LIMIT, || net.has_issuing_keys(2) == [true; 3]);
}

/// Where whoever sees a change through is killed, and where the node that it is about.
const ORIGINATOR: [&str; 7] = ["reserved", "claimed", "given", "file-out", "file-here", "closing", "closed"];

#[test]
fn whoever_is_killed_while_a_role_changes_the_node_ends_as_one_of_the_two() {
    let mut net = Net::new(3, 3);
    net.wait_ctl(2, &["put", "k", "v"]);
    let full = std::env::var("QUORATE_SWEEP").is_ok_and(|sweep| sweep == "full");
    let changes: Vec<[&str; 2]> = match full {
        true => ORIGINATOR.map(|point| [point, point]).to_vec(),
        false => vec![["given", "closing"]],
    };
    for [to_client, to_server] in changes {
        killed_originator(&mut net, "client", to_client);
        killed_originator(&mut net, "server", to_server);
    }
    // The node itself: before and after it has written down what it is.
    killed_target(&mut net, "client", "client-written");
    killed_target(&mut net, "server", "server-written");
    if full {
        for (to_client, to_server) in
            [("client", "added"), ("client", "started"), ("client", "promoted"), ("client", "server")]
        {
            killed_target(&mut net, "client", to_client);
            killed_target(&mut net, "server", to_server);
        }
        killed_target(&mut net, "client", "client-written");
        killed_target(&mut net, "server", "port-released");
    }
    // Whoever removes it from the list, which is the leader, with its etcd.
    killed_remover(&mut net);
    killed_originator(&mut net, "server", "claimed");
    // The machine of another server is off meanwhile, which may be the leader's.
    net.done(0, &["peer", "set-role", "n3", "client"], "");
    net.wait(2, "service", |status| status["phase"] == "serving" && !status["client"].is_null());
    let mut change = net.hosts[0].command(quorate());
    let mut change = change.args(["peer", "set-role", "n3", "server"]).args(net.node(0)).spawn().unwrap();
    wait_until("it was begun", LIMIT, || net.operation()["kind"] == "to-server");
    net.power_off(1);
    net.start(1, &[], None);
    let _ = change.wait();
    settled(&net, "server");
    assert_eq!(net.wait_ctl(2, &["get", "k", "--print-value-only"]), "v\n");
}

fn restart_to_end_at(net: &mut Net, at: usize, point: &str) {
    net.kill_agent(at);
    net.start(at, &[], Some(point));
    net.wait(at, "service", |status| status["phase"] == "serving");
}

#[track_caller]
fn wait_end(net: &mut Net, at: usize, point: &str) {
    let begun = Instant::now();
    while net.agents[at].as_mut().is_some_and(|agent| agent.ended().is_none()) {
        assert!(begun.elapsed() < LIMIT, "{point}: the agent goes on\n{}", net.logs());
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn killed_originator(net: &mut Net, role: &str, point: &str) {
    restart_to_end_at(net, 0, point);
    net.quorate(0, &["peer", "set-role", "n3", role, "--wait", "1s"], "");
    wait_end(net, 0, point);
    net.start(0, &[], None);
    net.wait(0, "service", |status| status["phase"] == "serving");
    // It was killed before anyone had heard of it, or it is seen through.
    if net.role(2) != role && net.operation()["step"] == "undone" {
        net.done(0, &["peer", "set-role", "n3", role], "");
    }
    settled(net, role);
}

/// Who leads of the servers that stay.
#[track_caller]
fn leader(net: &Net) -> usize {
    let begun = Instant::now();
    loop {
        let leads = |at: &usize| {
            let status = net.ctl(*at, &["endpoint", "status", "--write-out=json"]).unwrap_or_default();
            cluster_support::leads(&status)
        };
        // The node itself may lead before it is removed; then there is no other to kill.
        if let Some(at) = [0, 1].into_iter().find(leads) {
            return at;
        }
        assert!(begun.elapsed() < LIMIT, "none of the two leads\n{}", net.logs());
    }
}

fn killed_target(net: &mut Net, role: &str, point: &str) {
    restart_to_end_at(net, 2, point);
    net.quorate(0, &["peer", "set-role", "n3", role, "--wait", "1s"], "");
    wait_end(net, 2, point);
    // The leader goes off with it, and both come back.
    let leader = leader(net);
    net.power_off(leader);
    net.start(leader, &[], None);
    net.start(2, &[], None);
    settled(net, role);
}

fn killed_remover(net: &mut Net) {
    for at in [0, 1] {
        restart_to_end_at(net, at, "removed");
    }
    net.quorate(0, &["peer", "set-role", "n3", "client", "--wait", "0s"], "");
    let mut removed = None;
    wait_until("somebody has removed it", LIMIT, || {
        removed = [0, 1].into_iter().find(|at| net.agents[*at].as_mut().unwrap().ended().is_some());
        removed.is_some()
    });
    net.power_off(removed.unwrap());
    for at in [0, 1] {
        net.kill_agent(at);
        net.start(at, &[], None);
    }
    settled(net, "client");
}

/// The node is what it was to be, by its own word, by the members' list, and to its clients.
#[track_caller]
fn settled(net: &Net, role: &str) {
    net.wait_operation(2, "changed");
    net.wait_role(2, role);
    let listed = |names: Vec<String>| names.iter().any(|name| name == "n3");
    assert_eq!(listed(net.names(0)), role == "server", "{}", net.logs());
    let status = net.wait(2, "service", |status| status["phase"] == "serving");
    assert_eq!(status["etcd"].is_null(), role == "client", "{status:#}");
    net.wait_ctl(2, &["put", "k", "v"]);
}
