//! The client against clusters of three: who leads, who belongs to it, and whether a quorum serves.

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

use std::path::Path;
use std::time::{Duration, Instant};

use quorate_etcd::client::messages::Member;
use quorate_etcd::client::{Client, Consistency, Credentials, Joins, Settings};
use quorate_faults::Code;
use quorate_testkit::{Cluster, Launch, Seat, Server, Tools, VERSIONS, etcd, wait_until};
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(30);

/// How a member of a new cluster, or one that joins it, is started.
fn launch(tools: &Tools, dir: &Path, seat: &Seat, all: &[Seat], state: &str) -> Launch {
    let list: Vec<String> = all.iter().map(|seat| format!("{}={}", seat.name, seat.peer_url())).collect();
    Launch::new(tools, seat, &dir.join(&seat.name))
        .arg(format!("--initial-advertise-peer-urls={}", seat.peer_url()))
        .arg(format!("--initial-cluster={}", list.join(",")))
        .arg(format!("--initial-cluster-state={state}"))
        .arg("--auth-token-ttl=1")
        .arg("--bcrypt-cost=4")
        // Only then do all releases say that a token has expired.
        .arg("--logger=zap")
        .arg("--log-level=debug")
}

fn three(tools: &Tools, dir: &Path) -> (Cluster, Vec<Seat>) {
    let seats = Seat::many(3);
    let launches = seats.iter().map(|seat| launch(tools, dir, seat, &seats, "new"));
    (Cluster::launch(launches.collect()), seats)
}

async fn connect(seats: &[Seat], user: Option<&str>) -> Client {
    let credentials = user.map(|name| Credentials { name: name.to_owned(), password: "secret".to_owned() });
    let settings = Settings { credentials, ..Settings::new(seats.iter().map(Seat::client_url)) };
    Client::connect(&settings).await.unwrap()
}

async fn members(client: &Client) -> Vec<Member> {
    client.member_list(Consistency::Linearizable).await.unwrap().members
}

#[test]
fn clusters_of_every_release_change_as_asked_and_serve_only_with_a_quorum() {
    // Most of it is waiting for elections, so they run side by side.
    std::thread::scope(|scope| {
        for version in VERSIONS {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            scope.spawn(move || runtime.block_on(changes_as_asked_and_serves_only_with_a_quorum(version)));
        }
    });
}

/// One cluster for both: starting one takes longer than what is shown on it.
async fn changes_as_asked_and_serves_only_with_a_quorum(version: &str) {
    let (dir, tools) = (TempDir::new().unwrap(), etcd(version));
    let (cluster, seats) = three(&tools, dir.path());
    let client = connect(&seats, None).await;
    leader_moves(&client).await;
    member_comes_and_goes(&client, &tools, dir.path(), &seats).await;
    header_is_the_same_everywhere(&client).await;
    serves_only_with_a_quorum(cluster, &seats).await;
}

async fn leader_moves(client: &Client) {
    let (mut leads, mut follows) = (None, None);
    for one in client.each() {
        let status = one.status().await.unwrap();
        let id = status.header.unwrap().member_id;
        if status.leader == id { leads = Some((one, id)) } else { follows = Some((one, id)) }
    }
    let ((leader, old), (follower, new)) = (leads.unwrap(), follows.unwrap());
    let fault = follower.move_leader(new).await.unwrap_err();
    assert_eq!(fault.code(), Code::EtcdRefused, "only the leader can hand over");
    leader.move_leader(new).await.unwrap();
    let start = Instant::now();
    while leader.status().await.unwrap().leader != new {
        assert!(start.elapsed() < LIMIT, "{new:x} does not take over from {old:x}");
    }
    // Handing over to oneself changes nothing, and etcd takes it as done.
    follower.move_leader(new).await.unwrap();
    assert_eq!(follower.status().await.unwrap().leader, new);
}

async fn member_comes_and_goes(client: &Client, tools: &Tools, dir: &Path, seats: &[Seat]) {
    let mut all = seats.to_vec();
    let seat = Seat::new("n4");
    all.push(seat.clone());
    let start = Instant::now();
    let added = loop {
        match client.member_add(vec![seat.peer_url()], Joins::Learning).await {
            Ok(added) => break added,
            Err(fault) => {
                let hint = fault.hint_text().unwrap();
                assert!(start.elapsed() < LIMIT && hint.starts_with("nothing was changed"), "{fault:?}");
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        }
    };
    let id = added.member.unwrap().id;
    assert_eq!(added.members.len(), 4);
    assert!(members(client).await.iter().any(|member| member.id == id && member.is_learner));
    let early = client.member_promote(id).await.unwrap_err();
    assert_eq!(early.code(), Code::EtcdRefused, "a learner that never ran is behind");

    let _joined: Server = launch(tools, dir, &seat, &all, "existing").spawn();
    let learner = connect(std::slice::from_ref(&seat), None).await.with_timeout(Duration::from_secs(1));
    let start = Instant::now();
    while let Err(fault) = client.member_promote(id).await {
        assert!(start.elapsed() < LIMIT, "the learner does not catch up: {fault:?}");
        // A learner turns reads of a quorum down, in whatever words.
        assert!(learner.serves().await.is_err() || members(client).await.iter().all(|one| !one.is_learner));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let promoted = members(client).await;
    assert!(promoted.len() == 4 && promoted.iter().all(|member| !member.is_learner), "{promoted:?}");
    let start = Instant::now();
    while let Err(fault) = learner.serves().await {
        assert!(start.elapsed() < LIMIT, "a voter serves: {fault:?}");
    }

    let elsewhere = "http://127.0.0.1:2".to_owned();
    let listed = client.member_update(id, vec![elsewhere.clone()]).await.unwrap().members;
    let updated = listed.iter().find(|member| member.id == id).unwrap();
    assert_eq!(updated.peer_urls, [elsewhere]);
    let left = client.member_remove(id).await.unwrap().members;
    assert!(left.len() == 3 && left.iter().all(|member| member.id != id), "{left:?}");
    assert_eq!(members(client).await.len(), 3);
    assert_eq!(client.member_remove(id).await.unwrap_err().code(), Code::EtcdRefused, "it is gone");
}

async fn header_is_the_same_everywhere(client: &Client) {
    let written = client.put("/k", "v").await.unwrap().header.unwrap();
    let mut answered = Vec::new();
    for one in client.each() {
        let header = one.header().await.unwrap();
        assert_eq!((header.cluster_id, header.revision), (written.cluster_id, written.revision));
        answered.push(header.member_id);
    }
    answered.sort_unstable();
    let mut listed: Vec<u64> = members(client).await.iter().map(|member| member.id).collect();
    listed.sort_unstable();
    assert_eq!(answered, listed, "each says its own id");
}

/// With users: nobody, a user without rights, and a token that has expired.
async fn serves_only_with_a_quorum(mut cluster: Cluster, seats: &[Seat]) {
    // 3.4 has no root role until it is added; later ones have it from the start.
    let _ = cluster.servers[0].try_ctl(&["role", "add", "root"]);
    for words in ["user add root:secret", "user grant-role root root", "user add stranger:secret", "auth enable"] {
        cluster.ctl(&words.split(' ').collect::<Vec<_>>());
    }
    let first = &seats[..1];
    let limit = Duration::from_millis(1500);
    let nobody = connect(first, None).await.with_timeout(limit);
    let stranger = connect(first, Some("stranger")).await.with_timeout(limit);
    let expired = connect(first, Some("root")).await.with_timeout(limit);
    expired.header().await.unwrap();
    assert_eq!(nobody.header().await.unwrap_err().code(), Code::EtcdRefused);
    assert_eq!(stranger.header().await.unwrap_err().code(), Code::EtcdRefused);
    token_is_gone(&cluster.servers[0]);
    let all_serve = |when: &'static str| {
        let clients = [&nobody, &stranger, &expired].map(Clone::clone);
        async move {
            for client in clients {
                client.serves().await.unwrap_or_else(|fault| panic!("{when}: {fault:?}"));
            }
        }
    };
    all_serve("with all three").await;

    for server in cluster.servers.drain(1..) {
        server.kill();
    }
    let probes = [&nobody, &stranger, &expired].map(Client::serves);
    for answer in futures_util::future::join_all(probes).await {
        assert_eq!(answer.unwrap_err().code(), Code::EtcdUnreachable, "one of three is no quorum");
    }
    let server = &cluster.servers[0];
    let dir = server.data_dir.parent().unwrap();
    let _second = launch(&server.tools, dir, &seats[1], seats, "existing").spawn();
    let start = Instant::now();
    while let Err(fault) = nobody.serves().await {
        assert!(start.elapsed() < LIMIT, "two of three are a quorum: {fault:?}");
    }
    all_serve("with two").await;
}

/// Waits until a server has forgotten the tokens it gave: their time is over.
fn token_is_gone(server: &Server) {
    wait_until("the tokens to expire", LIMIT, || {
        let log = server.running.log();
        ["root", "stranger"].iter().all(|user| {
            let user = format!(r#""user-name":"{user}""#);
            log.lines().any(|line| line.contains("deleted a simple token") && line.contains(&user))
        })
    });
}
