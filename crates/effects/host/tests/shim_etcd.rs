//! Real etcd below the shim: stopped, killed, left alone, adopted.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod shim_support;

use std::path::Path;
use std::process::{Command, Stdio};

use quorate_host::exit_record::Reason;
use quorate_host::shim::ETCD_STOPPING;
use quorate_host::shim::{Ended, Running, ShimSpec};
use quorate_testkit::{Seat, Tools, VERSIONS, etcd, kill_hard, wait_until};
use shim_support::{LIMIT, Place, alive, ended, patient, record};

struct Member {
    tools: Tools,
    seat: Seat,
    place: Place,
}

impl Member {
    fn new(version: &str) -> Member {
        Member { tools: etcd(version), seat: Seat::new("n1"), place: Place::new() }
    }

    fn spec(&self) -> ShimSpec {
        let flag = |name: &str, value: &str| format!("--{name}={value}");
        let data = self.place.dir.path().join("data");
        let mut spec = self.place.sh("");
        spec.program.clone_from(&self.tools.etcd);
        spec.args = vec![
            flag("name", "n1"),
            flag("data-dir", &data.display().to_string()),
            flag("listen-client-urls", &self.seat.client_url()),
            flag("advertise-client-urls", &self.seat.client_url()),
            flag("listen-peer-urls", &self.seat.peer_url()),
            flag("initial-advertise-peer-urls", &self.seat.peer_url()),
            flag("initial-cluster", &format!("n1={}", self.seat.peer_url())),
        ];
        spec.etcd_version.clone_from(&self.tools.version);
        spec.stopping_words = ETCD_STOPPING.map(str::to_owned).to_vec();
        spec
    }

    fn start(&self) -> Running {
        let running = self.place.start(&self.spec());
        self.wait_serving();
        running
    }

    fn wait_serving(&self) {
        wait_until("etcd to serve", LIMIT, || self.ctl(&["endpoint", "health"]).is_ok());
    }

    fn ctl(&self, args: &[&str]) -> Result<String, String> {
        self.tools.try_ctl(&self.seat.client_url(), args)
    }
}

#[test]
fn etcd_of_every_version_ends_cleanly_when_asked_and_not_otherwise() {
    for version in VERSIONS {
        let member = Member::new(version);
        let mut running = member.start();
        running.stop(&patient()).unwrap();
        let stopped = record(&mut running);
        assert_eq!((stopped.reason, stopped.clean), (Reason::Stopped, true), "{version}: {stopped:?}");
        assert_eq!(stopped.etcd_version, member.tools.version);
        let mut running = member.start();
        kill_hard(running.child().pid);
        let killed = record(&mut running);
        assert_eq!((killed.reason, killed.signal, killed.clean), (Reason::Signalled, Some(9), false), "{version}");
    }
}

#[test]
fn etcd_of_every_version_serves_on_when_its_shim_is_killed() {
    for version in VERSIONS {
        let member = Member::new(version);
        let running = member.start();
        kill_hard(running.shim().pid);
        wait_until("the shim to be gone", LIMIT, || !alive(running.shim().pid));
        // It logs now and then; make it do so: a request that it complains about.
        for number in 0..50 {
            member.ctl(&["put", "key", &number.to_string()]).unwrap();
        }
        let _ = member.ctl(&["snapshot", "save", &member.place.dir.path().join("s.db").display().to_string()]);
        let mut adopted = member.place.adopted();
        assert!(!adopted.is_kept() && adopted.child() == running.child(), "{version}");
        adopted.stop(&patient()).unwrap();
        assert!(matches!(ended(&mut adopted), Ended::NoRecord(_)), "{version}");
    }
}

#[test]
fn a_goroutine_dump_is_kept() {
    let member = Member::new("3.5.16");
    let mut running = member.start();
    running.dump("the test").unwrap();
    assert_eq!(record(&mut running).reason, Reason::Killed);
    let paths = std::fs::read_dir(member.place.log_dir()).unwrap().map(|entry| entry.unwrap().path());
    let dump = paths.into_iter().find(|path| path.to_string_lossy().contains("-dump-")).unwrap();
    let dump = std::fs::read_to_string(dump).unwrap();
    assert!(dump.contains("SIGQUIT: quit") && dump.matches("\ngoroutine ").count() > 20, "{dump}");
}

/// Started again as a process of its own by the test below, to be killed: it spawns etcd and hangs, as an agent would.
#[test]
fn agent_to_be_killed() {
    let Some(dir) = std::env::var_os("QUORATE_TEST_AGENT") else { return };
    let dir = Path::new(&dir);
    let state = quorate_host::state::StateDir::open(&dir.join("state")).unwrap();
    let _lock = state.lock().unwrap();
    let spec: Vec<u8> = std::fs::read(dir.join("spec")).unwrap();
    let spec: ShimSpec = serde_json::from_slice(&spec).unwrap();
    let _running = quorate_host::shim::spawn(&quorate_testkit::quorate(), &state, &spec).unwrap();
    std::fs::File::create(dir.join("up")).unwrap();
    loop {
        std::thread::park();
    }
}

#[test]
fn etcd_survives_the_agent_and_is_adopted_with_its_shim() {
    let member = Member::new("3.5.16");
    let dir = member.place.dir.path();
    serde_json::to_writer(std::fs::File::create(dir.join("spec")).unwrap(), &member.spec()).unwrap();
    let mut agent = Command::new(std::env::current_exe().unwrap());
    agent
        .args(["--exact", "agent_to_be_killed"])
        .env("QUORATE_TEST_AGENT", dir)
        .env("QUORATE_BIN", quorate_testkit::quorate());
    let mut agent = agent.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    wait_until("the agent to have started it", LIMIT, || dir.join("up").exists());
    member.wait_serving();
    let refused = member.place.state.lock().unwrap_err();
    assert!(refused.to_string().contains(&agent.id().to_string()), "{refused}");
    agent.kill().unwrap();
    agent.wait().unwrap();
    // The lock went with the agent, and nothing else did.
    let _lock = member.place.state.lock().unwrap();
    member.ctl(&["put", "after", "the agent"]).unwrap();
    let mut adopted = member.place.adopted();
    assert!(adopted.is_kept());
    member.place.wait_log("ready to serve client requests");
    adopted.stop(&patient()).unwrap();
    assert!(record(&mut adopted).clean);
}

#[test]
fn sigterm_while_etcd_is_still_starting_is_no_clean_end() {
    let member = Member::new("3.5.16");
    let mut running = member.place.start(&member.spec());
    running.stop(&patient()).unwrap();
    let record = record(&mut running);
    // etcd's orderly way out is open only once it serves; which of the two it was, its own words say.
    assert_eq!(record.clean, member.place.log().contains(ETCD_STOPPING[0]), "{record:?}");
}
