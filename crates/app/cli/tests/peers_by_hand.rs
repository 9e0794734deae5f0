//! Clusters by hand, on hosts of their own: one node that invites others, nodes that are killed while they join and leave, codes
//! that do not hold, and strangers.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod change_support;
mod cluster_support;
mod peers_support;
mod scan_support;

use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::thread::JoinHandle;
use std::time::Duration;

use change_support::STALL_MAX;
use peers_support::{ByHand, LIMIT, forged, write_hook};
use quorate_plan::peering::JoinCode;
use quorate_testkit::wait_until;

#[test]
fn from_one_node_to_three_by_hand_and_back_through_kills() {
    let mut net = ByHand::new(3);
    a_cluster_of_one_goes_on_after_a_kill(&mut net);
    net.try_ctl(0, &["put", "k", "v"]).unwrap();
    grows_under_load(&mut net);
    detaches(&mut net);
    joins_through_kills(&mut net);
    assert_eq!(net.try_ctl(2, &["get", "k", "--print-value-only"]).unwrap(), "v\n");
    a_dead_node_is_detached_by_force_and_comes_back_as_such(&mut net);
    net.kill_agent(2);
    is_probed(&mut net);
    net.assert_voters(0, &[0, 1, 2]);
    the_first_node_is_lost_and_another_one_invites(&mut net);
    // A node asks to be taken out itself; another one does it.
    net.done(0, &["peer", "detach", "n1"], "");
    net.assert_voters(1, &[1, 2]);
    wait_until("it knows that it is detached", LIMIT, || net.role(0) == "detached");
    // Down to one, and no further.
    let leader = net.leader(&[1, 2]);
    let other = 3 - leader;
    net.done(other, &["peer", "detach", &format!("n{}", leader + 1)], "");
    net.assert_voters(other, &[other]);
    net.refused(other, &["peer", "detach", &format!("n{}", other + 1)], "", "Q0955");
    assert_eq!(net.try_ctl(other, &["get", "k", "--print-value-only"]).unwrap(), "v\n");
    // Who was detached begins anew when someone says so, and not before.
    wait_until("it knows that it is detached", LIMIT, || net.role(leader) == "detached");
    net.kill_agent(leader);
    net.standalone(leader, "2m");
    assert_eq!(net.role(leader), "standalone");
    assert_ne!(net.status(leader)["cluster_id"], net.status(other)["cluster_id"]);
    net.assert_voters(leader, &[leader]);
    // A place that nobody takes is taken back by hand, without waiting for its time.
    net.kill_agent(0);
    let code = net.invite(other, "10m");
    net.join(0, &code);
    net.done(other, &["peer", "detach", "n1"], "");
    assert_eq!(net.peers(other)["operation"]["step"], "undone");
    net.assert_voters(other, &[other]);
}

/// From 1 to 2, the classic way to stop all writes, and on to 3, while writes never pause.
fn grows_under_load(net: &mut ByHand) {
    let load = net.load(0, &[0]);
    let code = net.invite(0, "10m");
    net.join(1, &code);
    // etcd was asked for its version, and its agent need not ask again.
    assert!(net.state(1).join("etcd-version").exists());
    net.join(1, &code);
    net.start(1, &[]);
    net.wait_operation(0, "n2", "joined");
    net.assert_voters(0, &[0, 1]);
    assert_eq!((net.role(0), net.role(1)), ("server".to_owned(), "server".to_owned()));
    // A code lets one node in; while another holds, the door is open and says so.
    let next = net.invite(0, "10m");
    let text = net.join_refused(2, &code, "Q1211");
    assert!(text.contains("used"), "{text}");
    net.join(2, &next);
    net.start(2, &[]);
    net.wait_operation(0, "n3", "joined");
    net.assert_voters(0, &[0, 1, 2]);
    load.goes_on(20);
    let seen = load.finish();
    assert!(seen.longest < STALL_MAX, "writes stalled for {:?}", seen.longest);
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
    // While its agent runs, nothing is changed under it.
    let code = net.invite(0, "10m");
    net.join_refused(2, &code, "in use");
    net.kill_agent(2);
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

/// A node that something speaks for stays; then it goes, and keeps its data aside.
fn detaches(net: &mut ByHand) {
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
}

/// Every server can sign and invite; the one where all began is none that the others need.
fn the_first_node_is_lost_and_another_one_invites(net: &mut ByHand) {
    let keys = ["peer-ca.key", "client-ca.key", "agent-ca.key"].map(|name| net.state(1).join("pki").join(name));
    wait_until("n2 has the issuing keys", LIMIT, || keys.iter().all(|key| key.is_file()));
    for key in &keys {
        assert_eq!(key.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }
    net.power_off(0);
    for path in [net.state(0), net.data(0)] {
        let lost = path.with_extension("lost");
        quorate_testkit::run(std::process::Command::new("mv").arg(&path).arg(&lost));
    }
    net.detach_dead(1, "n1");
    let code = net.invite(1, "10m");
    net.join(0, &code);
    net.start(0, &[]);
    net.wait_operation(1, "n1", "joined");
    net.assert_voters(1, &[0, 1, 2]);
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
    net.detach_dead(0, "n3");
    net.assert_voters(0, &[0, 1]);
    assert!(net.data(2).exists());
    net.start(2, &[]);
    wait_until("it knows that it is detached", LIMIT, || net.role(2) == "detached");
    let status = net.wait(2, "its tombstone", |status| status["ledger"] == "tombstone" && status["phase"] == "refused");
    assert!(status["etcd"].is_null(), "{status:#}");
    wait_until("its data is renamed", LIMIT, || !net.data(2).exists());
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
    strangers_learn_nothing_from_one_that_waits(&mut net);
    metrics_are_for_those_who_may(&net);
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
    // Who has a place and does not come loses it, also if the inviter dies over that, and the cluster is as before.
    net.restart_to_end_at(0, "undoing");
    net.wait(0, "service", |status| status["phase"] == "serving");
    net.join(1, &code);
    net.wait_end(0);
    net.start(0, &[]);
    net.wait_operation(0, "n2", "undone");
    net.assert_voters(0, &[0]);
    // Who comes too late finds its tombstone, and does not add itself again.
    net.start(1, &[]);
    wait_until("it knows that it is out", LIMIT, || net.role(1) == "detached");
    net.assert_voters(0, &[0]);
    net.kill_agent(1);
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
    let service = a_service_that_objects(net, &hooks);
    let address = net.hosts[1].address();
    let taken = net.hosts[1].within(|| std::net::TcpListener::bind((address, 2380)).unwrap());
    let text = net.join_refused(1, code, "Q1213");
    for word in ["two volumes are here", ":2380", "bricks (join of n2: three bricks are here)"] {
        assert!(text.contains(word), "{word}: {text}");
    }
    assert!(!net.state(1).join("cluster.yaml").exists() && !net.state(1).join("pki").exists());
    drop(taken);
    write_hook(&hook, "exit 0");
    // With the hook at peace, the service alone is enough; and one that does not answer objects.
    let text = net.join_refused(1, code, "Q1213");
    assert!(text.contains("three bricks are here"), "{text}");
    service.join().unwrap();
    let text = net.join_refused(1, code, "Q1213");
    assert!(text.contains("does not answer"), "{text}");
    std::fs::remove_file(hooks.join("services/bricks")).unwrap();
}

/// A service on the newcomer's host that has registered, and says no twice.
fn a_service_that_objects(net: &ByHand, hooks: &Path) -> JoinHandle<()> {
    let listener = net.hosts[1].within(|| TcpListener::bind("127.0.0.1:0").unwrap());
    std::fs::create_dir(hooks.join("services")).unwrap();
    let registration = format!("{{\"ask\": \"http://{}/veto\"}}", listener.local_addr().unwrap());
    std::fs::File::create(hooks.join("services/bricks")).unwrap().write_all(registration.as_bytes()).unwrap();
    std::thread::spawn(move || {
        for _ in 0..2 {
            let (mut wire, _) = listener.accept().unwrap();
            let mut request = [0; 1024];
            let read = wire.read(&mut request).unwrap();
            let asked = String::from_utf8_lossy(&request[..read]).into_owned();
            assert!(asked.starts_with("GET /veto?change=join&node=n2 "), "{asked}");
            let body = "join of n2: three bricks are here";
            let head = format!("HTTP/1.1 409 Conflict\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", body.len());
            wire.write_all((head + body).as_bytes()).unwrap();
        }
    })
}

/// Every port that listens on the node is asked without a certificate.
fn strangers_learn_nothing(net: &ByHand) {
    let ports = scan_support::ports(&net.hosts, 0);
    assert!(ports.is_superset(&[2379, 2380, 2382, 2383].into()), "{ports:?}");
    let authorities = ["peer", "client", "agent"].map(|which| net.state(0).join(format!("pki/{which}-ca.crt")));
    let told = scan_support::told(&net.hosts, 0, 2, &authorities);
    scan_support::assert_only_the_phase(&told, "{\"phase\":\"serving\"}");
}

/// A node that waits to be taken in tells nobody anything.
fn strangers_learn_nothing_from_one_that_waits(net: &mut ByHand) {
    let words: Vec<String> = ["--accept-probe".to_owned()].into_iter().chain(net.own(1)).collect();
    net.start(1, &words);
    wait_until("it shows a code", LIMIT, || net.agents[1].as_ref().unwrap().log().contains("quorate-join-"));
    assert_eq!(scan_support::ports(&net.hosts, 1), [7700].into());
    let told = scan_support::told(&net.hosts, 1, 2, &[net.state(1).join("probe/agent-ca.crt")]);
    assert_eq!(told, []);
    net.kill_agent(1);
}

/// Metrics are for this machine, and for who has a certificate of the clients' authority.
fn metrics_are_for_those_who_may(net: &ByHand) {
    let file = |name: &str| std::fs::read(net.state(0).join("pki").join(name)).unwrap();
    let ca = reqwest::Certificate::from_pem(&file("client-ca.crt")).unwrap();
    let identity = reqwest::Identity::from_pem(&[file("admin.crt"), file("admin.key")].concat()).unwrap();
    let ask = |at: usize, host: String, identity: Option<reqwest::Identity>| {
        net.hosts[at].within(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let client = reqwest::Client::builder().tls_certs_only([ca.clone()]).timeout(Duration::from_secs(20));
                let client = identity.into_iter().fold(client, reqwest::ClientBuilder::identity);
                let answer = client.build().unwrap().get(format!("https://{host}:2383/metrics")).send().await.unwrap();
                (answer.status().as_u16(), answer.text().await.unwrap())
            })
        })
    };
    let address = net.hosts[0].address().to_string();
    assert_eq!(ask(2, address.clone(), None), (403, String::new()));
    for (status, text) in [ask(2, address, Some(identity)), ask(0, "127.0.0.1".to_owned(), None)] {
        assert_eq!(status, 200);
        assert!(text.contains("quorate_"), "{text}");
    }
}
