//! A cluster that was made by hand comes under agents, one node at a time, while it serves.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod cluster_support;

use cluster_support::{Declared, LIMIT, Wire};
use quorate_testkit::{Running, wait_until};
use serde_json::Value;

/// Three members as someone starts them from etcd's own documentation: a static list, and mutual TLS by files.
fn by_hand(cluster: &Declared) -> Vec<Running> {
    let list: Vec<String> = (0..3).map(|at| format!("{}={}", cluster.members[at].name, cluster.peer_url(at))).collect();
    let start = |at: usize| {
        let file = |name: &str| cluster.path(name).display().to_string();
        let name = &cluster.members[at].name;
        let settings = [
            ("name", name.clone()),
            ("data-dir", cluster.data(at).display().to_string()),
            ("initial-cluster", list.join(",")),
            ("initial-cluster-token", "made-by-hand".to_owned()),
            ("initial-advertise-peer-urls", cluster.peer_url(at)),
            ("listen-peer-urls", cluster.peer_url(at)),
            ("listen-client-urls", cluster.client_url(at)),
            ("advertise-client-urls", cluster.client_url(at)),
            ("heartbeat-interval", "50".to_owned()),
            ("election-timeout", "500".to_owned()),
            ("client-cert-auth", "true".to_owned()),
            ("peer-client-cert-auth", "true".to_owned()),
            ("cert-file", file(&format!("{name}.pem"))),
            ("key-file", file(&format!("{name}.key"))),
            ("trusted-ca-file", file("ca.pem")),
            ("peer-cert-file", file(&format!("{name}.pem"))),
            ("peer-key-file", file(&format!("{name}.key"))),
            ("peer-trusted-ca-file", file("ca.pem")),
        ];
        let args: Vec<String> = settings.iter().map(|(key, value)| format!("--{key}={value}")).collect();
        Running::start(&cluster.tools.etcd, &args, &[])
    };
    (0..3).map(start).collect()
}

fn member_ids(cluster: &Declared) -> Vec<String> {
    let list = cluster.ctl(0, &["member", "list"]);
    let mut ids: Vec<String> = list.lines().map(|line| line.split(',').next().unwrap().to_owned()).collect();
    ids.sort();
    ids
}

fn adopt(cluster: &Declared, at: usize) -> Value {
    let file = cluster.path("cluster.yaml").display().to_string();
    cluster.json(&["cluster", "adopt", "--config", &file, "--name", &cluster.members[at].name])
}

fn comes_under_agents(version: &str) {
    let mut cluster = Declared::new(version, 3, Wire::Tls);
    // Nothing is founded here, and nothing says so.
    cluster.bootstrap = 0;
    cluster.file();
    let mut etcds = by_hand(&cluster);
    cluster.put(0, "before", "kept");
    let before = member_ids(&cluster);
    for (at, etcd) in etcds.iter_mut().enumerate() {
        let pid = etcd.pid();
        if at == 2 {
            // The last one is taken over while it is stopped.
            etcd.stop();
        }
        let adopted = adopt(&cluster, at);
        let tended = if at == 2 { Value::Null } else { pid.into() };
        assert_eq!(adopted["tended"], tended, "{version} {at}: {adopted}");
        cluster.start(at);
        let status = cluster.wait_phase(at, "serving");
        if at < 2 {
            assert_eq!(status["etcd"]["pid"], pid, "without a restart: {status}");
        }
        cluster.put(at, &format!("under-{at}"), "written");
    }
    assert_eq!(member_ids(&cluster), before, "the same members");
    cluster.assert_all_hold("before", "kept");
    cluster.assert_one_cluster();
    let file = cluster.path("cluster.yaml").display().to_string();
    wait_until("all serve", LIMIT, || cluster.quorate(&["cluster", "status", "--config", &file]).status.success());
    // From its next start on, each is the agent's own.
    for (at, etcd) in etcds.iter_mut().enumerate() {
        cluster.stop(at);
        assert!(etcd.ended().is_some(), "the agent has stopped it");
        cluster.start(at);
        let status = cluster.wait_phase(at, "serving");
        assert_eq!(status["etcd"]["adopted"], false, "{status}");
    }
    assert_eq!(member_ids(&cluster), before);
    for at in 0..3 {
        cluster.assert_all_hold(&format!("under-{at}"), "written");
    }
}

#[test]
fn a_cluster_made_by_hand_comes_under_agents_one_node_at_a_time() {
    ["3.4.23", "sid"].into_iter().for_each(comes_under_agents);
}
