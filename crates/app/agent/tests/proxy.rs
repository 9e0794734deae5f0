//! The proxy before a real cluster with TLS: clients watch, lease, write and take snapshots through it while members are killed,
//! started again, removed and added.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use quorate_agent::proxy::{Follow, Known, Proxy};
use quorate_etcd::client::{Client, Settings, Tls};
use quorate_pki::{
    Authorities, Keys, LEAF_DAYS, NodeNames, Policy, ensure_authorities, ensure_installed, ensure_requests, issue,
};
use quorate_plan::peering::Upstream;
use quorate_testkit::{Port, Running, Tools, etcd, free_port, run, wait_until};

/// Two slow cores are what there may be.
const LIMIT: Duration = Duration::from_secs(90);

/// Certificates for loopback, as every member of a cluster has them.
fn certificates(dir: &Path) {
    let names = NodeNames::new("t", "n", ["127.0.0.1"]).unwrap();
    let now = Timestamp::now();
    let requests = ensure_requests(dir, &names, Keys::Keep).unwrap().bundle;
    ensure_authorities(dir, "t", None, now).unwrap();
    let policy = Policy { days: LEAF_DAYS, allowed: Some(&names) };
    let signed = issue(&Authorities::open(dir, None).unwrap(), &requests, &policy, now).unwrap();
    ensure_installed(dir, &names, &signed, now).unwrap();
}

struct Seat {
    name: String,
    client: Port,
    peer: Port,
    running: Option<Running>,
}

/// Members on loopback with TLS, and a proxy before them.
struct World {
    seats: Vec<Seat>,
    dir: tempfile::TempDir,
    tools: Tools,
    port: Port,
    proxy: Arc<Proxy>,
    _runtime: tokio::runtime::Runtime,
}

impl World {
    fn new() -> World {
        let dir = tempfile::tempdir().unwrap();
        certificates(&dir.path().join("pki"));
        let seat =
            |number: u8| Seat { name: format!("n{number}"), client: free_port(), peer: free_port(), running: None };
        let seats: Vec<Seat> = (1..=4).map(seat).collect();
        let proxy = Arc::new(Proxy::default());
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let mut world = World { seats, dir, tools: etcd("3.5.16"), port: free_port(), proxy, _runtime: runtime };
        let list = world.list(&[0, 1, 2]);
        for at in 0..3 {
            world.start(at, &list, "new");
        }
        let known: Vec<Known> = (0..3)
            .map(|at| Known { name: world.seats[at].name.clone(), url: world.url(&world.seats[at].client) })
            .collect();
        let tls = world.tls();
        let ask = move |urls: Vec<String>| Ok(Settings { tls: tls.clone(), ..Settings::new(urls) });
        let follow = Follow::new(world.dir.path().join("members.json"), known, ask);
        let proxy = Arc::clone(&world.proxy);
        world._runtime.spawn(async move { follow.run(&proxy).await });
        world.proxy.listen(vec![world.at()]).unwrap();
        wait_until("a put through the proxy", LIMIT, || world.ctl(&["put", "first", "v"]).is_ok());
        world
    }

    fn url(&self, port: &Port) -> String {
        format!("https://127.0.0.1:{port}")
    }

    fn at(&self) -> SocketAddr {
        format!("127.0.0.1:{}", self.port).parse().unwrap()
    }

    fn pki(&self, name: &str) -> PathBuf {
        self.dir.path().join("pki").join(name)
    }

    fn tls(&self) -> Tls {
        let file = |name: &str| Some(self.pki(name));
        Tls { ca: file("client-ca.crt"), cert: file("admin.crt"), key: file("admin.key"), server_name: None }
    }

    fn list(&self, members: &[usize]) -> String {
        let one = |at: &usize| format!("{}={}", self.seats[*at].name, self.url(&self.seats[*at].peer));
        members.iter().map(one).collect::<Vec<_>>().join(",")
    }

    fn start(&mut self, at: usize, list: &str, state: &str) {
        let (seat, pki) = (&self.seats[at], |name: &str| self.pki(name).display().to_string());
        let args = [
            format!("--name={}", seat.name),
            format!("--data-dir={}", self.dir.path().join(&seat.name).display()),
            format!("--listen-client-urls={}", self.url(&seat.client)),
            format!("--advertise-client-urls={}", self.url(&seat.client)),
            format!("--listen-peer-urls={}", self.url(&seat.peer)),
            format!("--initial-advertise-peer-urls={}", self.url(&seat.peer)),
            format!("--initial-cluster={list}"),
            format!("--initial-cluster-state={state}"),
            "--client-cert-auth=true".to_owned(),
            format!("--trusted-ca-file={}", pki("client-ca.crt")),
            format!("--cert-file={}", pki("client.crt")),
            format!("--key-file={}", pki("client.key")),
            "--peer-client-cert-auth=true".to_owned(),
            format!("--peer-trusted-ca-file={}", pki("peer-ca.crt")),
            format!("--peer-cert-file={}", pki("peer.crt")),
            format!("--peer-key-file={}", pki("peer.key")),
        ];
        let env = [("ETCD_UNSUPPORTED_ARCH".to_owned(), std::env::consts::ARCH.replace("aarch64", "arm64"))];
        self.seats[at].running = Some(Running::start(&self.tools.etcd, &args, &env));
    }

    fn ctl_command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.tools.etcdctl);
        command.env("ETCDCTL_API", "3").args(["--endpoints", &self.url(&self.port)]);
        for (flag, file) in [("--cacert", "client-ca.crt"), ("--cert", "admin.crt"), ("--key", "admin.key")] {
            command.arg(flag).arg(self.pki(file));
        }
        command.args(["--dial-timeout=10s", "--command-timeout=15s"]).args(args);
        command
    }

    /// `etcdctl` through the proxy.
    fn ctl(&self, args: &[&str]) -> Result<String, String> {
        let output = self.ctl_command(args).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.success() { Ok(said) } else { Err(said + &String::from_utf8_lossy(&output.stderr)) }
    }

    /// `etcdctl` that stays.
    fn follow(&self, args: &[&str]) -> Running {
        let command = self.ctl_command(args);
        let words: Vec<String> = command.get_args().map(|arg| arg.to_string_lossy().into_owned()).collect();
        Running::start(&self.tools.etcdctl, &words, &[("ETCDCTL_API".to_owned(), "3".to_owned())])
    }

    /// Whom the proxy takes for well, by name.
    fn well(&self) -> Vec<String> {
        let members = self.proxy.members();
        members.iter().filter(|member| member.healthy).map(|member| member.name.clone()).collect()
    }

    #[track_caller]
    fn wait_well(&self, names: &[&str]) {
        wait_until(&format!("{names:?} are used"), LIMIT, || self.well() == names);
    }
}

/// Writes key after key through the proxy until it is told to stop; what was acknowledged is remembered with its revision.
struct Writer {
    stop: Arc<AtomicBool>,
    done: Arc<Mutex<BTreeMap<String, i64>>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Writer {
    fn start(world: &World) -> Writer {
        let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(BTreeMap::new())));
        let settings =
            Settings { tls: world.tls(), timeout: Duration::from_secs(3), ..Settings::new([world.url(&world.port)]) };
        let (ends, acknowledged) = (Arc::clone(&stop), Arc::clone(&done));
        let work = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let mut client = Client::connect(&settings).await.unwrap();
                let mut number = 0;
                while !ends.load(Ordering::Relaxed) {
                    number += 1;
                    let key = format!("w/{number:06}");
                    match client.put(key.clone(), "v").await {
                        Ok(answer) => {
                            acknowledged.lock().unwrap().insert(key, answer.header.unwrap().revision);
                            tokio::time::sleep(Duration::from_millis(5)).await;
                        }
                        // Nobody knows whether it was written.
                        Err(_) => client = Client::connect(&settings).await.unwrap(),
                    }
                }
            });
        };
        Writer { stop, done, thread: Some(std::thread::spawn(work)) }
    }

    fn count(&self) -> usize {
        self.done.lock().unwrap().len()
    }

    /// Waits until so many more were acknowledged: the cluster serves through the proxy.
    fn wait_more(&self, more: usize) {
        let before = self.count();
        wait_until("writes through the proxy", LIMIT, || self.count() >= before + more);
    }

    fn finish(mut self) -> BTreeMap<String, i64> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
        self.done.lock().unwrap().clone()
    }
}

#[test]
fn clients_go_on_through_the_proxy_while_members_come_and_go() {
    let mut world = World::new();
    world.wait_well(&["n1", "n2", "n3"]);
    let watch = world.follow(&["watch", "--prefix", "w/", "--rev=1"]);
    let granted = world.ctl(&["lease", "grant", "30"]).unwrap();
    let lease = granted.split_whitespace().nth(1).unwrap().to_owned();
    world.ctl(&["put", "leased", "v", &format!("--lease={lease}")]).unwrap();
    let mut keeper = world.follow(&["lease", "keep-alive", &lease]);
    let writer = Writer::start(&world);
    writer.wait_more(50);

    // Each in turn is killed, and the proxy goes on with the others; then it is back and is used again.
    for at in 0..3 {
        world.seats[at].running.take().unwrap().kill();
        writer.wait_more(50);
        let gone = world.seats[at].name.clone();
        wait_until("the dead one is not used", LIMIT, || !world.well().contains(&gone));
        let list = world.list(&[0, 1, 2]);
        world.start(at, &list, "new");
        world.wait_well(&["n1", "n2", "n3"]);
        writer.wait_more(20);
    }

    // One leaves the list for good, another one comes.
    let members = world.ctl(&["member", "list"]).unwrap();
    let id = members.lines().find(|line| line.contains(" n2,")).unwrap().split(',').next().unwrap().to_owned();
    wait_until("etcd lets a member go", LIMIT, || world.ctl(&["member", "remove", &id]).is_ok());
    world.wait_well(&["n1", "n3"]);
    let peer = world.url(&world.seats[3].peer);
    wait_until("etcd takes a member in", LIMIT, || {
        world.ctl(&["member", "add", "n4", &format!("--peer-urls={peer}")]).is_ok()
    });
    let list = world.list(&[0, 2, 3]);
    world.start(3, &list, "existing");
    world.wait_well(&["n1", "n3", "n4"]);
    writer.wait_more(20);

    assert_eq!(world.ctl_txn(), "SUCCESS");
    let copy = world.dir.path().join("copy.db").display().to_string();
    world.ctl(&["snapshot", "save", &copy]).unwrap();
    run(Command::new(&world.tools.etcdutl).args(["snapshot", "status", &copy]));
    let acknowledged = writer.finish();
    let listed = world.ctl(&["get", "--prefix", "w/", "--keys-only"]).unwrap();
    let there: std::collections::BTreeSet<&str> = listed.lines().filter(|line| !line.is_empty()).collect();
    for key in acknowledged.keys() {
        assert!(there.contains(key.as_str()), "`{key}` was acknowledged, and is not there");
    }
    world.ctl(&["put", "w/end", "v"]).unwrap();
    wait_until("the watch is at its end", LIMIT, || watch.log().lines().any(|line| line == "w/end"));
    let log = watch.log();
    // One whose answer was lost may have been written after the next one.
    let mut told: Vec<&str> = log.lines().filter(|line| line.starts_with("w/")).collect();
    told.sort_unstable();
    let all: Vec<&str> = there.iter().copied().chain(["w/end"]).collect();
    assert_eq!(told, all, "each key once, and none is missing");
    assert!(keeper.ended().is_none(), "{}", keeper.log());
    assert!(world.ctl(&["get", "leased", "--print-value-only"]).unwrap().contains('v'));
}

impl World {
    fn ctl_txn(&self) -> String {
        let mut command = self.ctl_command(&["txn"]);
        command.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
        let mut child = command.spawn().unwrap();
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"value(\"first\") = \"v\"\n\nput t v\n\n\n\n")
            .unwrap();
        let output = child.wait_with_output().unwrap();
        String::from_utf8_lossy(&output.stdout).lines().next().unwrap_or_default().to_owned()
    }
}

/// Answers each connection with a word, until it is dropped.
fn echo(word: &'static str) -> (SocketAddr, Arc<AtomicBool>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let open = Arc::new(AtomicBool::new(true));
    let stays = Arc::clone(&open);
    std::thread::spawn(move || {
        let mut held = Vec::new();
        for stream in listener.incoming() {
            if !stays.load(Ordering::Relaxed) {
                return;
            }
            let mut stream = stream.unwrap();
            std::io::Write::write_all(&mut stream, word.as_bytes()).unwrap();
            held.push(stream);
        }
    });
    (at, open)
}

fn said(stream: &mut TcpStream) -> String {
    let mut bytes = [0; 3];
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    std::io::Read::read_exact(stream, &mut bytes).unwrap();
    String::from_utf8_lossy(&bytes).into_owned()
}

fn upstream(name: &str, at: SocketAddr, healthy: bool) -> Upstream {
    Upstream { name: name.to_owned(), address: at.to_string(), healthy, rtt_us: Some(100) }
}

#[test]
fn a_refused_connection_is_made_elsewhere_and_a_held_port_is_taken_when_it_is_free() {
    let (one, _) = echo("one");
    let (dead, held) = (free_port(), free_port());
    let at = |port: &Port| SocketAddr::from(([127, 0, 0, 1], port.number()));
    let (dead, at) = (at(&dead), at(&held));
    let proxy = Proxy::default();
    proxy.set_members(vec![upstream("a-dead", dead, true), upstream("b", one, true)]);
    let holder = TcpListener::bind(at).unwrap();
    proxy.listen(vec![at]).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    assert!(proxy.listening().is_empty(), "somebody holds it");
    drop(holder);
    wait_until("the port is taken", LIMIT, || proxy.listening() == [at]);
    let mut client = TcpStream::connect(at).unwrap();
    assert_eq!(said(&mut client), "one");
    assert_eq!(proxy.now().members[1].connections, 1);
    drop(client);
    wait_until("its end is noticed", LIMIT, || proxy.now().members[1].connections == 0);
}

#[test]
fn connections_leave_a_member_that_is_ill_or_gone_and_are_balanced_among_the_near() {
    let ((one, _), (two, _)) = (echo("one"), echo("two"));
    let proxy = Proxy::default();
    let both = |first: bool| vec![upstream("a", one, first), upstream("b", two, true)];
    proxy.set_members(both(true));
    let port = free_port();
    let at = SocketAddr::from(([127, 0, 0, 1], port.number()));
    proxy.listen(vec![at]).unwrap();
    wait_until("the proxy listens", LIMIT, || proxy.listening() == [at]);
    let connect = || {
        let mut stream = TcpStream::connect(at).unwrap();
        let word = said(&mut stream);
        (stream, word)
    };
    let (mut first, second) = (connect(), connect());
    assert_eq!((first.1.as_str(), second.1.as_str()), ("one", "two"), "balanced");
    let begun = Instant::now();
    proxy.set_members(both(false));
    assert_eq!(connect().1, "two", "no new ones");
    let mut byte = [0; 1];
    assert_eq!(std::io::Read::read(&mut first.0, &mut byte).unwrap(), 0, "and the old one is closed");
    assert!(begun.elapsed() > Duration::from_secs(1), "after a grace");
    proxy.set_members(vec![upstream("a", one, true)]);
    let mut gone = second.0;
    assert_eq!(std::io::Read::read(&mut gone, &mut byte).unwrap(), 0, "whoever left the list is left");
    // Whoever ends the proxy has the port at once.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(proxy.release(LIMIT));
    drop(TcpListener::bind(at).unwrap());
}
