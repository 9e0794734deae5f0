//! A node that GlusterD 2 ran: its files are taken over once, its data as it is, and what cannot be understood changes nothing.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod cluster_support;

use std::io::Write;
use std::path::Path;
use std::process::{Output, Stdio};
use std::time::Duration;

use cluster_support::{end_all_below, said};
use quorate_testkit::{Hosts, Running, Tools, etcd, quorate, wait_until};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(150);

/// Two members as GlusterD 2 ran them, in the clear; the second one is to be taken over.
struct Before {
    members: [Option<Running>; 2],
    agent: Option<Running>,
    /// The one on the third host, which was a proxy.
    client: Option<Running>,
    hosts: Hosts,
    root: tempfile::TempDir,
    tools: Tools,
}

const NAMES: [&str; 2] = ["default", "ETCD_b"];

impl Before {
    fn new() -> Before {
        let (hosts, root) = (Hosts::new(3), tempfile::tempdir().unwrap());
        let mut before =
            Before { members: [None, None], agent: None, client: None, hosts, root, tools: etcd("3.5.16") };
        for dir in ["glusterd", "glusterd-proxy"] {
            std::fs::create_dir(before.root.path().join(dir)).unwrap();
        }
        for at in 0..NAMES.len() {
            before.launch(at);
        }
        wait_until("both answer", LIMIT, || (0..2).all(|at| before.ctl(at, &["put", "k", "v"]).is_ok()));
        before
    }

    fn launch(&mut self, at: usize) {
        let (address, data) = (self.hosts[at].address(), self.root.path().join(format!("data-{at}")));
        let words = [
            ("name", NAMES[at].to_owned()),
            ("data-dir", data.display().to_string()),
            ("listen-client-urls", format!("http://{address}:2379")),
            ("advertise-client-urls", format!("http://{address}:2379")),
            ("listen-peer-urls", format!("http://{address}:2380")),
            ("initial-advertise-peer-urls", format!("http://{address}:2380")),
            ("initial-cluster", self.initial_cluster(",")),
        ];
        let words: Vec<String> = words.iter().map(|(key, value)| format!("--{key}={value}")).collect();
        self.members[at] = Some(self.hosts[at].start(&self.tools.etcd, &words, &[]));
    }

    fn initial_cluster(&self, between: &str) -> String {
        let member = |at: usize| format!("{}=http://{}:2380", NAMES[at], self.hosts[at].address());
        [member(0), member(1)].join(between)
    }

    fn ctl(&self, at: usize, args: &[&str]) -> Result<String, String> {
        let mut command = self.hosts[at].command(&self.tools.etcdctl);
        command.env("ETCDCTL_API", "3").args(["--endpoints", &format!("http://{}:2379", self.hosts[at].address())]);
        let output = command.args(args).output().unwrap();
        if output.status.success() {
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        } else {
            Err(said(&output))
        }
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::File::create(self.root.path().join(name)).unwrap().write_all(text.as_bytes()).unwrap();
    }

    fn words(&self, more: &[&str]) -> Vec<String> {
        self.words_in("state", more)
    }

    fn words_in(&self, state: &str, more: &[&str]) -> Vec<String> {
        let shown = |name: &str| self.root.path().join(name).display().to_string();
        let words = [
            ("--state-dir", shown(state)),
            ("--data-dir", shown("data-1")),
            ("--glusterd-dir", shown("glusterd")),
            ("--etcd-binary", self.tools.etcd.display().to_string()),
        ];
        let words = words.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]);
        ["run", "--standalone", "--box", "off"]
            .map(str::to_owned)
            .into_iter()
            .chain(words)
            .chain(more.iter().map(|word| (*word).to_owned()))
            .collect()
    }

    #[track_caller]
    fn refused(&self, more: &[&str], code: &str) -> String {
        self.refused_as(&self.words(more), code)
    }

    #[track_caller]
    fn refused_as(&self, words: &[String], code: &str) -> String {
        let output: Output = self.hosts[1].command(quorate()).args(words).stdin(Stdio::null()).output().unwrap();
        let text = said(&output);
        assert!(!output.status.success() && text.contains(code), "{text}");
        assert!(!self.root.path().join("state").join(NAMES[1]).exists(), "nothing was changed");
        text
    }

    fn start(&mut self) {
        self.agent = Some(self.hosts[1].start(&quorate(), &self.words(&[]), &[]));
    }

    fn status(&self) -> Value {
        let file = self.root.path().join("state").join(NAMES[1]).join("cluster.yaml").display().to_string();
        let words = ["status", "--config", &file, "--name", NAMES[1], "--output", "json"];
        let output = self.hosts[1].command(quorate()).args(words).stdin(Stdio::null()).output().unwrap();
        serde_json::from_slice(&output.stdout).unwrap_or(Value::Null)
    }

    fn serves(&self) {
        wait_until("it serves", LIMIT, || self.status()["phase"] == "serving");
    }

    fn member_ids(&self) -> String {
        self.ctl(0, &["member", "list"]).unwrap()
    }
}

impl Drop for Before {
    fn drop(&mut self) {
        for agent in [&mut self.agent, &mut self.client].into_iter().flatten() {
            agent.kill();
        }
        end_all_below(self.root.path());
    }
}

/// The words of a command with another value of one flag.
fn with(words: &[String], flag: &str, value: &str) -> Vec<String> {
    let mut words = words.to_vec();
    let at = words.iter().position(|word| word == flag).unwrap();
    words[at + 1] = value.to_owned();
    words
}

fn role(state: &Path) -> Value {
    let text = std::fs::read_to_string(state.join(NAMES[1]).join("node")).unwrap();
    serde_json::from_str(text.lines().nth(1).unwrap()).unwrap()
}

#[test]
fn what_glusterd_left_is_taken_over_once_and_its_member_goes_on() {
    let mut before = Before::new();
    let ids = before.member_ids();
    // Its etcd runs, and the other member does not: that is what is reported.
    let whole = format!(
        "ETCD_NAME=ETCD_b\nETCD_INITIAL_CLUSTER={}\nETCD_INITIAL_CLUSTER_STATE=existing\n",
        before.initial_cluster(",")
    );
    before.write("glusterd/etcdenv.conf", &whole);
    before.members[0].take().unwrap().stop();
    let words = before.words_in("trial", &[]);
    let output = before.hosts[1].command(quorate()).args(words).stdin(Stdio::null()).output().unwrap();
    let text = said(&output);
    assert!(!output.status.success() && text.contains("etcd runs on it"), "{text}");
    assert!(
        text.contains("no quorum confirms its members") && text.contains("start the etcd of the other members"),
        "{text}"
    );
    before.launch(0);
    wait_until("both answer again", LIMIT, || (0..2).all(|at| before.ctl(at, &["get", "k"]).is_ok()));
    std::fs::remove_file(before.root.path().join("glusterd/etcdenv.conf")).unwrap();
    before.members[1].take().unwrap().stop();
    let proxy = format!("ETCD_INITIAL_CLUSTER={}\n", before.initial_cluster(", "));
    // Over TLS it would have to say whom to trust.
    before.write("glusterd/proxy", &proxy.replace("http://", "https://"));
    let text = before.refused(&[], "Q1238");
    assert!(text.contains("--role client"), "{text}");
    // The environment comes first, and a torn one decides nothing.
    before.write("glusterd/proxy", &proxy);
    before.write("glusterd/etcdenv.conf", "ETCD_NAME=ETCD_b\nETCD_INITIAL_CLUSTER=default=http://");
    before.refused(&[], "Q1222");
    before.write("glusterd/etcdenv.conf", &whole);
    before.refused(&["--name", "n2"], "Q1222");
    // A flag that is wrong, or that the files leave no room for: nothing is written that a corrected command would find.
    let text = before.refused_as(&with(&before.words(&[]), "--etcd-binary", "/nowhere/etcd"), "/nowhere/etcd");
    assert!(text.contains("nothing was written"), "{text}");
    for more in [["--listen", "10.9.9.9"], ["--join-timeout", "7m"]] {
        let text = before.refused(&more, "the flags differ from what GlusterD 2 left");
        assert!(text.contains(&more.join(" ")), "{text}");
    }
    before.start();
    before.serves();
    let log = before.agent.as_ref().unwrap().log();
    assert!(log.contains("took over from GlusterD 2") && log.contains("took over its data"), "{log}");
    assert_eq!(before.member_ids(), ids, "the same members, none added and none removed");
    assert_eq!(before.ctl(1, &["get", "k", "--print-value-only"]).unwrap(), "v\n");
    let state = role(&before.root.path().join("state"));
    assert_eq!((state["role"].as_str(), state["name"].as_str()), (Some("server"), Some(NAMES[1])));
    assert!(state["notes"][0].as_str().unwrap().contains("GlusterD 2"), "{state:#}");
    // The files have been read, and are not read again.
    before.write("glusterd/etcdenv.conf", "rubbish");
    before.agent.as_mut().unwrap().kill();
    before.start();
    before.serves();
    assert_eq!(before.member_ids(), ids);
    a_proxy_goes_on_as_a_client(&mut before, &proxy);
}

/// The third host passed requests on: it does so again, is on record with the server that was taken over, and is let go there.
fn a_proxy_goes_on_as_a_client(before: &mut Before, proxy: &str) {
    before.write("glusterd-proxy/proxy", proxy);
    let shown = |name: &str| before.root.path().join(name).display().to_string();
    let (address, state) = (before.hosts[2].address().to_string(), shown("state"));
    let words = ["run", "--standalone", "--name", "p1", "--listen", &address, "--state-dir", &state];
    let words = words.into_iter().map(str::to_owned).chain(["--data-dir".to_owned(), shown("data-2")]);
    let words: Vec<String> = words.chain(["--glusterd-dir".to_owned(), shown("glusterd-proxy")]).collect();
    let refused = |words: &[String], text: &str| {
        let output = before.hosts[2].command(quorate()).args(words).stdin(Stdio::null()).output().unwrap();
        assert!(!output.status.success() && said(&output).contains(text), "{}", said(&output));
    };
    for more in [["--etcd-binary", "/nowhere/etcd"], ["--join-timeout", "7m"]] {
        let more = more.map(str::to_owned);
        refused(&[&words[..], &more[..]].concat(), &more[1]);
        assert!(!before.root.path().join("state/p1").exists(), "nothing was written");
    }
    before.client = Some(before.hosts[2].start(&quorate(), &words, &[]));
    wait_until("it carries", LIMIT, || before.ctl(2, &["put", "p", "v"]).is_ok());
    assert!(before.client.as_ref().unwrap().log().contains("took over from GlusterD 2"));
    // Once is enough: the file is not looked at again.
    before.write("glusterd-proxy/proxy", "rubbish");
    before.client.as_mut().unwrap().kill();
    let differs = |flag: &str, value: &str| {
        let words = with(&words, flag, value);
        let output = before.hosts[2].command(quorate()).args(words).stdin(Stdio::null()).output().unwrap();
        assert!(!output.status.success() && said(&output).contains("the flags differ from"), "{}", said(&output));
    };
    differs("--listen", "10.9.9.9");
    differs("--data-dir", "/nowhere/data");
    before.client = Some(before.hosts[2].start(&quorate(), &words, &[]));
    wait_until("it carries again", LIMIT, || before.ctl(2, &["get", "p"]).is_ok_and(|text| text == "p\nv\n"));
    let peer = |words: &[&str]| {
        let mut command = before.hosts[1].command(quorate());
        command.arg("peer").args(words).args(["--state-dir", &state, "--name", NAMES[1]]);
        command.stdin(Stdio::null()).output().unwrap()
    };
    wait_until("it is on record", LIMIT, || said(&peer(&["list"])).contains("p1"));
    // In the clear, agents listen to their own machine alone.
    assert!(said(&peer(&["detach", "p1"])).contains("Q1220"));
    let gone = peer(&["detach", "p1", "--force"]);
    assert!(gone.status.success(), "{}", said(&gone));
    wait_until("nobody listens there", LIMIT, || before.ctl(2, &["get", "p", "--command-timeout=2s"]).is_err());
}
