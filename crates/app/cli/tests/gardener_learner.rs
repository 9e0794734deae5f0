//! A pod of several: how its sidecar brings a member without usable data into the running cluster.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod gardener_support;

use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use gardener_support::Pod;
use quorate_testkit::{Cluster, Launch, Running, Seat, wait_until};

/// Adding is refused for five seconds after the others have connected, and promoting is tried every five seconds.
const LIMIT: Duration = Duration::from_secs(60);

/// Two members that run, and a pod that the configuration declares as the third.
struct Third {
    pod: Pod,
    others: Cluster,
}

impl Third {
    fn new(version: &str) -> Third {
        let pod = Pod::new(version);
        let seats = [Seat::new("etcd-main-0"), Seat::new("etcd-main-1")];
        let all: Vec<String> = seats.iter().map(|seat| format!("{}={}", seat.name, seat.peer_url())).collect();
        let launch = |seat: &Seat| {
            Launch::new(&pod.tools, seat, &pod.path(&seat.name))
                .arg(format!("--initial-advertise-peer-urls={}", seat.peer_url()))
                .arg(format!("--initial-cluster={}", all.join(",")))
        };
        let others = Cluster::launch(seats.iter().map(launch).collect());
        let (client, peer) = (pod.seat.client_url(), pod.seat.peer_url());
        let config = format!(
            "name: etcd-config\ndata-dir: {}\nlisten-client-urls: {client}\nlisten-peer-urls: {peer}\n\
             initial-cluster: {},etcd-main-2={peer}\ninitial-cluster-state: new\ninitial-cluster-token: etcd-cluster\n\
             initial-advertise-peer-urls:\n  etcd-main-2:\n  - {peer}\nadvertise-client-urls:\n  etcd-main-2:\n  - {client}\n",
            pod.data_dir().display(),
            all.join(","),
        );
        pod.write("etcd.conf.yaml", &config);
        Third { pod, others }
    }

    fn sidecar(&self) -> Running {
        let flags = [
            format!("--endpoints={}", self.pod.seat.client_url()),
            format!("--service-endpoints={}", self.others.endpoints()),
        ];
        let mut sidecar = self.pod.sidecar(&flags, &[("POD_NAME", "etcd-main-2")]);
        self.pod.wait_sidecar(&mut sidecar);
        sidecar
    }

    /// The id of the third member, once it votes. `former`: the one that it had before, and has no more.
    #[track_caller]
    fn wait_voter(&self, sidecar: &Running, former: Option<u64>) -> u64 {
        let start = Instant::now();
        loop {
            let listed = self.others.servers[0].ctl_json(&["member", "list"]);
            let members = listed["members"].as_array().unwrap();
            let third = members.iter().find(|member| member["name"] == "etcd-main-2" && member["isLearner"] != true);
            if let Some(id) = third.and_then(|third| third["ID"].as_u64()).filter(|id| Some(*id) != former) {
                assert_eq!(members.len(), 3, "{listed}");
                return id;
            }
            assert!(start.elapsed() < LIMIT, "it does not vote; the sidecar said:\n{}", sidecar.log_tail(20));
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// The member serves, with what the others had.
    #[track_caller]
    fn wait_serving(&self, wrap: &mut Running, sidecar: &Running, former: Option<u64>) -> u64 {
        let id = self.wait_voter(sidecar, former);
        self.pod.wait_ready(wrap);
        assert_eq!(self.pod.ctl(&["get", "--print-value-only", "before"]).trim(), "kept");
        id
    }

    fn stop(&self, wrap: &mut Running) {
        wrap.stop();
        let port = self.pod.client_port().parse().unwrap();
        wait_until("etcd ended with the wrapper", LIMIT, || std::net::TcpStream::connect(("127.0.0.1", port)).is_err());
    }

    fn metrics(&self) -> String {
        self.pod.ask("GET", "/metrics").unwrap().body
    }
}

#[track_caller]
fn says(metrics: &str, line: &str) {
    assert!(metrics.lines().any(|known| known == line), "no `{line}` in\n{metrics}");
}

#[test]
fn a_member_without_data_joins_as_a_learner_and_one_that_lost_or_broke_it_is_replaced() {
    let third = Third::new("3.5.16");
    third.others.ctl(&["put", "before", "kept"]);
    let mut sidecar = third.sidecar();
    let mut wrap = third.pod.wrap(&[]);
    let first = third.wait_serving(&mut wrap, &sidecar, None);
    let metrics = third.metrics();
    says(&metrics, "etcdbr_cluster_size 3");
    says(&metrics, "etcdbr_is_learner_count_total{succeeded=\"true\"} 1");
    says(&metrics, "etcdbr_member_promote_duration_seconds_count{succeeded=\"true\"} 1");
    says(&metrics, "etcdbr_member_remove_duration_seconds_count{succeeded=\"true\"} 0");
    // A restart on good data changes nothing.
    third.stop(&mut wrap);
    let mut wrap = third.pod.wrap(&[]);
    third.pod.wait_ready(&mut wrap);
    assert_eq!(third.wait_serving(&mut wrap, &sidecar, None), first);
    // The disk is lost, and with it all that the sidecar knew.
    third.stop(&mut wrap);
    sidecar.stop();
    #[expect(clippy::disallowed_methods, reason = "a test's own folder")]
    std::fs::rename(third.pod.data_dir(), third.pod.path("lost")).unwrap();
    let sidecar = third.sidecar();
    let mut wrap = third.pod.wrap(&[]);
    // A member that forgot its votes comes back as another one.
    let second = third.wait_serving(&mut wrap, &sidecar, Some(first));
    // The data is damaged, and is kept.
    third.stop(&mut wrap);
    std::fs::remove_file(third.pod.path("data/exit_code")).unwrap();
    let db = std::fs::OpenOptions::new().write(true).open(third.pod.data_dir().join("member/snap/db")).unwrap();
    db.write_all_at(&vec![0xa5; db.metadata().unwrap().len() as usize], 0).unwrap();
    drop(db);
    let mut wrap = third.pod.wrap(&[]);
    third.wait_serving(&mut wrap, &sidecar, Some(second));
    let kept = std::fs::read_dir(third.pod.path("data")).unwrap().flatten();
    let kept = kept.filter(|entry| entry.file_name().to_string_lossy().starts_with("new.etcd.replaced-")).count();
    assert_eq!(kept, 1, "{}", sidecar.log());
    let metrics = third.metrics();
    says(&metrics, "etcdbr_restoration_duration_seconds_count{restore=\"single_member\",succeeded=\"true\"} 2");
    says(&metrics, "etcdbr_validation_duration_seconds_count{succeeded=\"false\"} 1");
    says(&metrics, "etcdbr_is_learner 0");
    assert_eq!(third.others.servers[1].get("before").as_deref(), Some("kept"));
}

#[test]
fn the_oldest_release_with_learners_is_joined_the_same_way() {
    let third = Third::new("3.4.23");
    third.others.ctl(&["put", "before", "kept"]);
    let sidecar = third.sidecar();
    let mut wrap = third.pod.wrap(&[]);
    third.wait_serving(&mut wrap, &sidecar, None);
}
