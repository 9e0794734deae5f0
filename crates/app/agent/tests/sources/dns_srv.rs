//! SRV records, served by a real dnsmasq on a loopback port.

use std::net::UdpSocket;
use std::time::Duration;

use quorate_agent::sources::{SourceOptions, open};
use quorate_testkit::{Port, Running, dnsmasq, free_port, wait_until};

use super::{ask, expect, refusal, shown};

struct Dns {
    port: Port,
    _server: Running,
}

impl Dns {
    /// Serves `example.test` with these records; what is not listed there does not exist.
    fn start(records: &[&str]) -> Dns {
        Dns::start_with(&["--local=/example.test/"], records)
    }

    fn start_with(flags: &[&str], records: &[&str]) -> Dns {
        let port = free_port();
        let mut args: Vec<String> = ["--keep-in-foreground", "--no-resolv", "--no-hosts", "--conf-file=/dev/null"]
            .iter()
            .chain(["--bind-interfaces", "--listen-address=127.0.0.1", "--pid-file="].iter())
            .chain(flags)
            .chain(records)
            .map(|arg| (*arg).to_owned())
            .collect();
        args.push(format!("--port={port}"));
        args.push("--user=".to_owned());
        let server = Running::start(&dnsmasq(), &args, &[]);
        let dns = Dns { port, _server: server };
        wait_until("dnsmasq answers", Duration::from_secs(10), || dns.answers());
        dns
    }

    /// Any answer to any question will do.
    fn answers(&self) -> bool {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        let question = b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x04test\x00\x00\x01\x00\x01";
        let sent = socket.send_to(question, ("127.0.0.1", self.port.number()));
        sent.is_ok() && socket.recv(&mut [0; 512]).is_ok()
    }

    fn uri(&self, options: &str) -> String {
        format!("dns-srv:example.test?server=127.0.0.1:{}{options}", self.port)
    }
}

fn plain() -> SourceOptions {
    SourceOptions::default()
}

const HOSTS: [&str; 3] = [
    "--host-record=infra0.example.test,10.0.0.1",
    "--host-record=infra1.example.test,10.0.0.2",
    "--host-record=infra2.example.test,10.0.0.3,2001:db8::3",
];

fn three(service: &str) -> Vec<String> {
    let srv = |n| format!("--srv-host={service}._tcp.example.test,infra{n}.example.test,2380");
    [0, 1, 2].map(srv).into_iter().chain(HOSTS.map(str::to_owned)).collect()
}

fn borrowed(records: &[String]) -> Vec<&str> {
    records.iter().map(String::as_str).collect()
}

#[test]
fn plain_records_give_http_and_the_first_labels_as_names() {
    let dns = Dns::start(&borrowed(&three("_etcd-server")));
    let expected = "infra0=http://infra0.example.test:2380 infra1=http://infra1.example.test:2380 \
                    infra2=http://infra2.example.test:2380";
    for options in ["", "&ssl=false"] {
        let roster = ask(&dns.uri(options), &plain()).unwrap();
        assert_eq!(shown(&roster), expected);
        assert_eq!(roster.provenance, "dns-srv:example.test");
    }
    assert_eq!(
        refusal(ask(&dns.uri("&ssl=true"), &plain())),
        "Q0104 the list from `dns-srv:example.test` has no members -> \
         list every founding member, or say `--expect N` to wait for them"
    );
}

#[test]
fn tls_records_and_service_names_are_found_under_etcds_names() {
    let dns = Dns::start(&borrowed(&three("_etcd-server-ssl")));
    let shown_tls = shown(&ask(&dns.uri("&ssl=true"), &plain()).unwrap());
    assert!(shown_tls.starts_with("infra0=https://infra0.example.test:2380 infra1=https://"), "{shown_tls}");
    let dns = Dns::start(&borrowed(&three("_etcd-server-ssl-blue")));
    assert_eq!(shown(&ask(&dns.uri("&service-name=blue"), &plain()).unwrap()), shown_tls);
    let dns = Dns::start(&borrowed(&three("_etcd-server-blue")));
    assert!(shown(&ask(&dns.uri("&service-name=blue"), &plain()).unwrap()).starts_with("infra0=http://infra0"));
}

#[test]
fn a_server_that_refuses_to_speak_of_the_other_set_is_no_obstacle() {
    // Without `--local`, dnsmasq answers REFUSED for what it does not have.
    let dns = Dns::start_with(&[], &borrowed(&three("_etcd-server")));
    assert_eq!(ask(&dns.uri(""), &plain()).unwrap().members.len(), 3);
    let refused = refusal(ask(&dns.uri("&ssl=true"), &plain()));
    assert!(
        refused.starts_with(
            "Q0102 no list from `dns-srv:example.test`: no answer about `_etcd-server-ssl._tcp.example.test` <- "
        ),
        "{refused}"
    );
}

#[test]
fn both_sets_are_combined_unless_they_contradict_each_other() {
    let tls = ["--srv-host=_etcd-server-ssl._tcp.example.test,infra0.example.test,2380"];
    let other = ["--srv-host=_etcd-server._tcp.example.test,infra1.example.test,2380"];
    let dns = Dns::start(&[&tls[..], &other[..], &HOSTS[..]].concat());
    assert_eq!(
        shown(&ask(&dns.uri(""), &plain()).unwrap()),
        "infra0=https://infra0.example.test:2380 infra1=http://infra1.example.test:2380"
    );
    let same = ["--srv-host=_etcd-server._tcp.example.test,infra0.example.test,2380"];
    let dns = Dns::start(&[&tls[..], &same[..], &HOSTS[..]].concat());
    assert_eq!(
        refusal(ask(&dns.uri(""), &plain())),
        "Q0103 `infra0.example.test` is a target of both `_etcd-server-ssl._tcp.example.test` and \
         `_etcd-server._tcp.example.test` -> say which one counts: `ssl=true` or `ssl=false`"
    );
    assert_eq!(shown(&ask(&dns.uri("&ssl=true"), &plain()).unwrap()), "infra0=https://infra0.example.test:2380");
}

#[test]
fn one_host_with_three_ports_gets_three_names() {
    let srv = |port| format!("--srv-host=_etcd-server._tcp.example.test,infra0.example.test,{port}");
    let records: Vec<String> = [2380, 2381, 2382].map(srv).into_iter().chain(HOSTS.map(str::to_owned)).collect();
    let dns = Dns::start(&borrowed(&records));
    let roster = ask(&dns.uri(""), &plain()).unwrap();
    assert_eq!(roster.names(), ["infra0.example.test-2380", "infra0.example.test-2381", "infra0.example.test-2382"]);
}

#[test]
fn the_local_name_goes_to_the_target_at_the_advertised_address() {
    let dns = Dns::start(&borrowed(&three("_etcd-server")));
    let named = SourceOptions { local_name: Some("blue".to_owned()), ..plain() };
    for advertise in ["http://10.0.0.2:2380", "http://infra1.example.test:2380"] {
        let roster = ask(&dns.uri(&format!("&advertise={advertise}")), &named).unwrap();
        assert_eq!(roster.names(), ["infra0", "blue", "infra2"]);
    }
    assert_eq!(
        ask(&dns.uri("&advertise=http://[2001:db8::3]:2380"), &named).unwrap().names(),
        ["infra0", "infra1", "blue"]
    );
    assert_eq!(
        refusal(ask(&dns.uri("&advertise=http://10.0.0.2:2381"), &named)),
        "Q0107 no record of `dns-srv:example.test` is at `http://10.0.0.2:2381` -> \
         add this node's record, or correct `advertise`"
    );
    assert_eq!(
        refusal(ask(&dns.uri("&advertise=https://10.0.0.2:2380"), &named)),
        "Q0103 option `advertise` is `https://10.0.0.2:2380`, but the records of `example.test` say \
         `http://infra1.example.test:2380` -> correct the scheme of either"
    );
}

#[test]
fn no_records_are_empty_but_no_answer_is_unreachable() {
    let dns = Dns::start(&HOSTS);
    assert_eq!(
        refusal(ask(&dns.uri(""), &plain())),
        "Q0104 the list from `dns-srv:example.test` has no members -> \
         list every founding member, or say `--expect N` to wait for them"
    );
    // Nobody listens there.
    let nobody = free_port();
    let silent = refusal(ask(&format!("dns-srv:example.test?server=127.0.0.1:{nobody}"), &plain()));
    assert!(silent.starts_with("Q0102 no list from `dns-srv:example.test`: "), "{silent}");
    // A server that knows of the zone's servers only, and none of those answers.
    let dead = free_port();
    let dns = Dns::start_with(&[&format!("--server=/example.test/127.0.0.1#{dead}")], &[]);
    let failed = refusal(ask(&dns.uri("&ssl=true"), &plain()));
    assert!(failed.starts_with("Q0102 no list from `dns-srv:example.test`: "), "{failed}");
}

#[test]
fn a_target_without_an_address_is_not_left_out() {
    let records = three("_etcd-server");
    let dns = Dns::start(&borrowed(&records[..5]));
    assert_eq!(
        refusal(ask(&dns.uri(""), &plain())),
        "Q0102 no list from `dns-srv:example.test`: its target `infra2.example.test` has no address -> \
         add its address record, or remove its SRV record; leaving it out would found another cluster"
    );
}

#[test]
fn many_records_come_over_tcp_when_they_do_not_fit() {
    let name = |n: u32| format!("a-rather-long-name-of-a-host-number-{n:02}.example.test");
    let srv = (0..60).map(|n| format!("--srv-host=_etcd-server._tcp.example.test,{},2380", name(n)));
    let host = (0..60).map(|n| format!("--host-record={},10.0.0.{}", name(n), n + 1));
    let records: Vec<String> = srv.chain(host).collect();
    let dns = Dns::start(&borrowed(&records));
    assert_eq!(ask(&dns.uri("&ssl=false"), &plain()).unwrap().members.len(), 60);
}

#[test]
fn waiting_for_records_names_who_is_there() {
    let dns = Dns::start(&["--srv-host=_etcd-server._tcp.example.test,infra0.example.test,2380", HOSTS[0]]);
    let source = open(&dns.uri(""), &plain()).unwrap();
    let (result, said) = expect(source.as_ref(), 3, Duration::from_millis(500));
    assert!(refusal(result).starts_with("Q0111 the list from `dns-srv:example.test` has 1 of 3 members after 500ms"));
    assert_eq!(said, ["1 of 3 members in `dns-srv:example.test`: 2 members not seen yet (have `infra0`)"]);
}
