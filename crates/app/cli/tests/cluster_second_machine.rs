//! A second machine that starts with the name, the file and the certificates of a member that runs: with and without its data, and a
//! new node that is declared at the address of a member.
//!
//! **Rule:** a member that is healthy is never removed, and no two machines run the same member; a disk that is really lost is replaced.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod change_support;
mod cluster_support;

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use change_support::{LIMIT, Net};
use cluster_support::{answered, end_all_below, said};
use quorate_testkit::{Running, quorate, run, wait_until};
use serde_json::Value;

/// How long a machine that is really lost may take to be replaced: the lease of the lost one ends first.
const REPLACED_WITHIN: Duration = Duration::from_secs(60);

/// Another machine, on the host of `n4`, which has state and data of its own.
struct Machine<'a> {
    net: &'a Net,
    name: &'static str,
    agent: Running,
}

/// Where it has them.
fn places(net: &Net) -> (PathBuf, PathBuf) {
    (net.path("second/state"), net.path("second/data"))
}

impl Machine<'_> {
    /// Starts it with this text as its file, in which state and data are its own.
    fn start<'a>(net: &'a Net, name: &'static str, text: &str, data: &str) -> Machine<'a> {
        Machine::start_with(net, name, text, data, &[])
    }

    fn start_with<'a>(
        net: &'a Net,
        name: &'static str,
        text: &str,
        data: &str,
        env: &[(String, String)],
    ) -> Machine<'a> {
        let (state, own) = places(net);
        let text = text.replace(
            &format!("state-dir: {}", net.path("state").display()),
            &format!("state-dir: {}", state.display()),
        );
        let text = text.replace(&format!("data-dir: {data}"), &format!("data-dir: {}", own.display()));
        run(Command::new("mkdir").arg("-p").arg(state.join(name)));
        let file = net.path("second.yaml");
        run(Command::new("sh").args(["-c", "printf %s \"$1\" > \"$2\"", "sh", &text]).arg(&file));
        let words = ["run", "--config", &net.shown("second.yaml"), "--name", name].map(str::to_owned);
        Machine { net, name, agent: net.hosts[3].start(&quorate(), &words, env) }
    }

    fn status(&self) -> Value {
        let words = ["status", "--config", &self.net.shown("second.yaml"), "--name", self.name, "--output", "json"];
        serde_json::from_slice(&self.net.quorate(3, &words).stdout).unwrap_or(Value::Null)
    }

    #[track_caller]
    fn wait(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let told = |status: &Value| format!("no {what}: {status:#}\n{}\n{}", self.agent.log_tail(60), self.net.logs());
        answered(LIMIT, || self.status(), wanted, told)
    }

    /// It waits, and names the machine that runs the member.
    #[track_caller]
    fn waits(&self, named: &str) {
        let status = self.wait("halt", |status| status["code"] == "Q1405" && status["phase"] == "waiting");
        let cause = status["cause"].as_str().unwrap();
        assert!(cause.contains(named), "{cause} does not name {named}");
        assert!(status["etcd"].is_null(), "{status:#}");
    }

    /// Waits until its agent has stopped itself.
    #[track_caller]
    fn waits_stopped(&self) {
        let state = format!("/proc/{}/stat", self.agent.pid());
        wait_until("the agent to stop itself", LIMIT, || {
            std::fs::read_to_string(&state).is_ok_and(|text| text.rsplit(") ").next().unwrap().starts_with('T'))
        });
    }

    /// All of it ends, and what it had is gone.
    fn end(mut self) {
        self.agent.kill();
        end_all_below(&self.net.path("second"));
        let from = self.net.path("second");
        run(Command::new("mv").arg(&from).arg(from.with_extension(format!("{}", self.agent.pid()))));
    }
}

/// Which members there are, with their ids.
fn members(net: &Net) -> String {
    let list = net.try_ctl(0, &["member", "list"]).unwrap();
    let ids = list.lines().map(|line| line.split(", ").take(3).collect::<Vec<_>>().join(" "));
    let mut ids: Vec<String> = ids.collect();
    ids.sort();
    ids.join("\n")
}

/// Every member is what it was, and takes writes.
#[track_caller]
fn assert_untouched(net: &Net, before: &str) {
    assert_eq!(members(net), before, "{}", net.logs());
    let status = net.status(2);
    assert_eq!(status["phase"], "serving", "{status:#}\n{}", net.logs());
    net.try_ctl(2, &["put", "k", "v"]).unwrap();
}

#[test]
fn a_member_that_runs_is_not_removed_for_a_machine_with_its_name_and_no_data() {
    let mut net = Net::new("3.5.16", 4);
    net.found(&[0, 1, 2]);
    let before = members(&net);
    let (text, data) = (net.text(&[0, 1, 2]), net.data(2).display().to_string());
    let address = net.address(2).to_string();
    let second = Machine::start(&net, "n3", &text, &data);
    second.waits(&address);
    assert_untouched(&net, &before);
    // Both sides tell: the operator may ask either.
    let told = net.quorate(3, &["status", "--config", &net.shown("second.yaml"), "--name", "n3"]);
    assert!(said(&told).contains("Q1405"), "{}", said(&told));
    net.wait(2, "warning", |status| status["warnings"].to_string().contains("Q1406"));
    let told = net.quorate(0, &["cluster", "status", "--config", &net.shown("n1.yaml"), "--name", "n1"]);
    assert!(said(&told).contains("Q1406"), "{}", said(&told));
    second.end();

    // It reaches nothing of that machine: the lease and the other members tell.
    net.hosts.partition(3, &[2]);
    let second = Machine::start(&net, "n3", &text, &data);
    second.waits(&address);
    assert_untouched(&net, &before);
    second.end();

    // Its etcd is down, too: the lease alone tells, which its agent keeps through the other members.
    let database = net.data(2).join("member/snap/db").display().to_string();
    let locked = ["--no-fork", &database, "sleep", "600"].map(str::to_owned);
    let mut lock = Running::start(std::path::Path::new("flock"), &locked, &[]);
    net.kill_etcd(2);
    net.wait(2, "end of etcd", |status| status["phase"] != "serving");
    let second = Machine::start(&net, "n3", &text, &data);
    second.waits(&address);
    let cause = second.status()["cause"].to_string();
    assert!(cause.contains("holds the lease of this node"), "{cause}");
    assert_eq!(members(&net), before, "{}", net.logs());
    second.end();
    lock.kill();
    net.wait(2, "service", |status| status["phase"] == "serving");

    // Only the agent is dead: its lease ends, and the other members still see the member.
    net.kill_agent(2);
    let second = Machine::start(&net, "n3", &text, &data);
    let seen = |status: &Value| status["cause"].as_str().is_some_and(|cause| cause.contains("sees it"));
    second.wait("word of the others", seen);
    assert_eq!(members(&net), before);
    second.end();

    // The machine is off, and comes back right before its member would be removed.
    net.power_off(2);
    let stops = [("QUORATE_STOP_AT".to_owned(), "before-removal".to_owned())];
    let second = Machine::start_with(&net, "n3", &text, &data, &stops);
    second.waits_stopped();
    let words = ["run", "--config", &net.shown("n3.yaml"), "--name", "n3"].map(str::to_owned);
    let mut first = net.hosts[2].start(&quorate(), &words, &[]);
    let pid = net.wait(2, "service", |status| status["phase"] == "serving")["etcd"]["pid"].clone();
    run(Command::new("kill").args(["-CONT", &second.agent.pid().to_string()]));
    second.waits(&address);
    assert_eq!(members(&net), before, "{}", net.logs());
    second.end();
    first.kill();
    net.hosts.heal();

    // The agent finds its etcd again, and is not hindered by what the one before it wrote.
    let begun = Instant::now();
    net.start(2);
    net.wait(2, "service", |status| status["phase"] == "serving");
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    assert_eq!(net.status(2)["etcd"]["pid"], pid, "the same etcd");
    assert_untouched(&net, &before);

    // A machine that is off, with all that it had, is replaced by an empty one at its address.
    net.power_off(2);
    for dir in [net.data(2), net.state(2)] {
        run(Command::new("mv").arg(&dir).arg(dir.with_extension("gone")));
    }
    let begun = Instant::now();
    net.start(2);
    net.wait(2, "service", |status| status["phase"] == "serving" && status["ledger"] == "started");
    assert!(begun.elapsed() < REPLACED_WITHIN, "{:?}", begun.elapsed());
    net.assert_voters(&[0, 1, 2]);
    assert_ne!(members(&net), before);
}

#[test]
fn a_copy_of_a_member_with_its_data_does_not_run_beside_it() {
    let mut net = Net::new("3.5.16", 4);
    net.found(&[0, 1, 2]);
    let before = members(&net);
    let (text, data) = (net.text(&[0, 1, 2]), net.data(2).display().to_string());
    let address = net.address(2).to_string();
    // Copied while it is off.
    assert!(net.agents[2].take().unwrap().stop().success());
    let copy = net.path("copy");
    run(Command::new("mkdir").arg("-p").arg(copy.join("state")));
    run(Command::new("cp").arg("-a").arg(net.state(2)).arg(copy.join("state/n3")));
    run(Command::new("cp").arg("-a").arg(net.data(2)).arg(copy.join("data")));
    let second = net.path("second");
    let clone = || run(Command::new("cp").arg("-a").arg(&copy).arg(&second));
    clone();
    net.start(2);
    net.wait(2, "service", |status| status["phase"] == "serving");
    let second = Machine::start(&net, "n3", &text, &data);
    second.waits(&address);
    assert_untouched(&net, &before);
    second.end();

    // It reaches the original alone, of which its agent tells, or its URLs.
    clone();
    net.hosts.partition(3, &[0, 1]);
    let second = Machine::start(&net, "n3", &text, &data);
    second.waits("its agent answers at");
    second.end();
    net.kill_agent(2);
    clone();
    let second = Machine::start(&net, "n3", &text, &data);
    second.waits("` answers at `");
    second.end();
    net.hosts.heal();
    net.start(2);
    net.wait(2, "service", |status| status["phase"] == "serving");
    assert_untouched(&net, &before);

    // It reaches nothing of the original.
    clone();
    net.hosts.partition(3, &[2]);
    let second = Machine::start(&net, "n3", &text, &data);
    second.waits(&address);
    assert_untouched(&net, &before);
    second.end();
    net.hosts.heal();

    // A new node at the address of a member that runs: by a file that not everybody has.
    let text = text.replace("{name: n3,", "{name: n4,");
    let second = Machine::start(&net, "n4", &text, &data);
    second.waits(&address);
    assert_untouched(&net, &before);
    second.end();
}

/// A clone of the whole machine, address included: each of the two takes that address for its own, and neither reaches the other.
#[test]
fn a_copy_that_was_started_while_it_reached_nobody_stops_once_it_reaches_the_cluster() {
    let mut net = Net::new("3.5.16", 4);
    net.found(&[0, 1, 2]);
    let before = members(&net);
    let (text, data) = (net.text(&[0, 1, 2]), net.data(2).display().to_string());
    assert!(net.agents[2].take().unwrap().stop().success());
    run(Command::new("mkdir").arg("-p").arg(net.path("second/state")));
    run(Command::new("cp").arg("-a").arg(net.state(2)).arg(net.path("second/state/n3")));
    run(Command::new("cp").arg("-a").arg(net.data(2)).arg(net.path("second/data")));
    net.start(2);
    let etcd = net.wait(2, "service", |status| status["phase"] == "serving")["etcd"]["pid"].clone();
    let address = format!("{}/32", net.address(2));
    run(net.hosts[3].command("ip").args(["address", "add", &address, "dev", "lo"]));
    run(net.hosts[3].command("sh").args(["-c", "echo 1 > /proc/sys/net/ipv4/conf/all/arp_ignore"]));
    net.hosts.partition(3, &[0, 1]);
    let second = Machine::start(&net, "n3", &text, &data);
    second.wait("etcd of its own", |status| status["etcd"].is_object());
    net.hosts.heal();
    second.waits(&net.hosts[2].address().to_string());
    net.wait(2, "warning", |status| status["warnings"].to_string().contains("Q1406"));
    let status = net.wait(2, "service", |status| status["phase"] == "serving");
    assert_eq!(status["etcd"]["pid"], etcd, "the one that held the name was not stopped");
    assert_untouched(&net, &before);
    second.end();
}
