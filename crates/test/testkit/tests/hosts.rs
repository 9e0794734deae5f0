//! Hosts of network namespaces are hosts: they reach each other, can be partitioned, and leave nothing behind.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on ends")]

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::time::Duration;

use quorate_testkit::{Host, Hosts, Running, etcd, run, wait_until};

/// Long enough for a first packet between two hosts of one machine, however busy it is.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long silence is listened to. A partition that leaks answers in less than a millisecond.
const SILENCE: Duration = Duration::from_millis(300);

/// Answers every connection with its greeting, until the test ends.
fn greet(host: &Host) -> SocketAddr {
    let listener = host.within(|| TcpListener::bind((host.address(), 0)).unwrap());
    let address = listener.local_addr().unwrap();
    let name = host.name().to_owned();
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            let _ = connection.unwrap().write_all(name.as_bytes());
        }
    });
    address
}

fn ask(from: &Host, to: SocketAddr, limit: Duration) -> std::io::Result<String> {
    from.within(|| {
        let mut connection = TcpStream::connect_timeout(&to, limit)?;
        connection.set_read_timeout(Some(limit))?;
        let mut text = String::new();
        connection.read_to_string(&mut text)?;
        Ok(text)
    })
}

#[test]
fn hosts_reach_each_other_until_they_are_partitioned_and_again_when_healed() {
    let hosts = Hosts::new(3);
    let places: Vec<SocketAddr> = hosts.iter().map(greet).collect();
    for from in hosts.iter() {
        for (to, place) in hosts.iter().zip(&places) {
            assert_eq!(ask(from, *place, PATIENCE).unwrap(), to.name());
        }
    }
    hosts.partition(0, &[1, 2]);
    for (from, to) in [(0, 1), (0, 2), (1, 0), (2, 0)] {
        let error = ask(&hosts[from], places[to], SILENCE).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::TimedOut, "packets vanish, nobody is told: {error}");
    }
    assert_eq!(ask(&hosts[1], places[2], PATIENCE).unwrap(), "h3", "the others still meet");
    assert_eq!(ask(&hosts[0], places[0], PATIENCE).unwrap(), "h1", "a host reaches itself");
    hosts.heal();
    for (from, to) in [(0, 1), (1, 0), (2, 0)] {
        assert_eq!(ask(&hosts[from], places[to], PATIENCE).unwrap(), hosts[to].name());
    }
}

#[test]
fn a_connection_that_stands_falls_silent_and_goes_on_after_healing() {
    let hosts = Hosts::new(2);
    let listener = hosts[1].within(|| TcpListener::bind((hosts[1].address(), 0)).unwrap());
    let place = listener.local_addr().unwrap();
    let mut here = hosts[0].within(|| TcpStream::connect_timeout(&place, PATIENCE).unwrap());
    let (mut there, _) = listener.accept().unwrap();
    let mut byte = [0];
    here.write_all(b"a").unwrap();
    there.read_exact(&mut byte).unwrap();
    hosts.cut(0, 1);
    there.set_read_timeout(Some(SILENCE)).unwrap();
    here.write_all(b"b").unwrap();
    assert!(there.read(&mut byte).is_err(), "what was sent is lost on the way");
    hosts.heal();
    there.set_read_timeout(Some(PATIENCE)).unwrap();
    there.read_exact(&mut byte).unwrap();
    assert_eq!(&byte, b"b", "TCP sends it again");
}

#[test]
fn hosts_of_two_tests_have_the_same_addresses_and_never_meet() {
    let (one, other) = (Hosts::new(2), Hosts::new(2));
    assert_eq!(one[1].address(), other[1].address());
    assert_eq!(one[1].address(), Ipv4Addr::new(10, 77, 0, 2));
    let place = greet(&one[1]);
    assert_eq!(ask(&one[0], place, PATIENCE).unwrap(), "h2");
    assert_eq!(ask(&other[0], place, PATIENCE).unwrap_err().kind(), std::io::ErrorKind::ConnectionRefused);
}

#[test]
fn programs_run_on_their_host_and_whatever_they_left_ends_with_it() {
    let hosts = Hosts::new(1);
    let addresses = run(hosts[0].command("ip").args(["-o", "-4", "address"]));
    assert!(addresses.contains("10.77.0.1/24") && addresses.contains("127.0.0.1/8"), "{addresses}");
    // A child that nobody waits for, as a shim's is.
    let pid = run(hosts[0].command("sh").args(["-c", "setsid sleep 600 >/dev/null 2>&1 & echo $!"]));
    let proc = format!("/proc/{}", pid.trim());
    assert!(Path::new(&proc).exists());
    drop(hosts);
    wait_until("the end of what ran on the host", PATIENCE, || {
        let stat = std::fs::read_to_string(format!("{proc}/stat")).unwrap_or_default();
        stat.is_empty() || stat.contains(") Z ")
    });
}

#[test]
fn what_a_killed_test_left_on_its_hosts_is_ended_by_the_next() {
    // A host whose link names a process that never is: ids end below 2^22. A test beside this one may be the one that ends it.
    let script = "ip link add q4194304n1 type veth peer name q4194304n2 && exec sleep 600";
    let args = ["--net", "--", "sh", "-c", script].map(str::to_owned);
    let mut left = Running::start(Path::new("/usr/bin/unshare"), &args, &[]);
    wait_until("the leftover", PATIENCE, || {
        let links = std::fs::read_to_string(format!("/proc/{}/net/dev", left.pid())).unwrap_or_default();
        links.contains("q4194304n1") || left.ended().is_some()
    });
    drop(Hosts::new(1));
    wait_until("the end of the leftover", PATIENCE, || left.ended().is_some());
    assert_eq!(left.ended().unwrap().signal(), Some(9));
}

#[test]
fn three_real_members_lose_and_find_each_other() {
    let hosts = Hosts::new(3);
    let tools = etcd("3.5.16");
    let root = tempfile::tempdir().unwrap();
    let url = |host: &Host, port: u16| format!("http://{}:{port}", host.address());
    let cluster: Vec<String> = hosts.iter().map(|host| format!("{}={}", host.name(), url(host, 2380))).collect();
    let members: Vec<Running> = hosts
        .iter()
        .map(|host| {
            let dir = root.path().join(host.name());
            let (client, peer) = (url(host, 2379), url(host, 2380));
            let flags = [
                ("name", host.name()),
                ("data-dir", dir.to_str().unwrap()),
                ("listen-client-urls", &client),
                ("advertise-client-urls", &client),
                ("listen-peer-urls", &peer),
                ("initial-advertise-peer-urls", &peer),
                ("initial-cluster", &cluster.join(",")),
                ("heartbeat-interval", "50"),
                ("election-timeout", "500"),
            ];
            let args = flags.map(|(flag, value)| format!("--{flag}={value}"));
            host.start(&tools.etcd, &args, &[])
        })
        .collect();
    let put = |at: usize, value: &str| {
        let mut ctl = hosts[at].command(&tools.etcdctl);
        ctl.env("ETCDCTL_API", "3").args(["--endpoints", &url(&hosts[at], 2379), "--command-timeout", "2s"]);
        ctl.args(["put", "key", value]).output().unwrap().status.success()
    };
    wait_until("a write through every member", PATIENCE, || (0..3).all(|at| put(at, "whole")));
    hosts.partition(0, &[1, 2]);
    wait_until("a write of the majority", PATIENCE, || put(1, "two"));
    assert!(!put(0, "one"), "a member alone has no quorum");
    hosts.heal();
    wait_until("a write through the member that was alone", PATIENCE, || put(0, "healed"));
    drop(members);
}
