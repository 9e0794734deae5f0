//! The config file that we write for each etcd is one that it starts with, and every setting reaches it.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::time::Duration;

use quorate_etcd::init::{Request, Target, ensure_member};
use quorate_etcd_formats::founding::{Form, Founding};
use quorate_faults::Code;
use quorate_host::durable::RealDisk;
use quorate_plan::etcd_config::{EtcdConfig, Minor, check, render};
use quorate_plan::spec::{At, Setting, Spec, Value};
use quorate_testkit::{Running, Seat, VERSIONS, etcd, wait_until};

fn file_for(seat: &Seat, dir: &Path, version: Minor) -> String {
    let text = format!(
        "token: t\nplaintext: true\nmembers:\n  - name: n1\n    peer-urls: [{}]\n    client-urls: [{}]\n    data-dir: {}\n\
         etcd:\n  quota-backend-bytes: 123456789\n  grpc-keepalive-timeout: 7s\n  compaction-batch-limit: 77\n  \
         heartbeat-interval: 90\n  election-timeout: 900\n  log-level: info\n",
        seat.peer_url(),
        seat.client_url(),
        dir.join("data").display(),
    );
    let (spec, _) = Spec::parse(text.as_bytes(), "c.yaml").map_err(|mistakes| mistakes.render()).unwrap();
    render(&EtcdConfig { spec: &spec, member: &spec.members[0], join: None }, version).unwrap()
}

#[test]
fn every_etcd_starts_on_a_founded_dir_with_the_file_we_wrote() {
    for version in VERSIONS {
        let tools = etcd(version);
        let seat = Seat::new("n1");
        let dir = tempfile::tempdir().unwrap();
        let minor = Minor::parse(&tools.version).unwrap();
        let file = dir.path().join("etcd.yaml");
        #[expect(clippy::disallowed_methods, reason = "a test's own file need not last")]
        std::fs::write(&file, file_for(&seat, dir.path(), minor)).unwrap();
        let data = dir.path().join("data");
        let founding = Founding::new(vec![("n1".to_owned(), vec![seat.peer_url()])], "t-b1").unwrap();
        let local = founding.member("n1").unwrap();
        let target = Target::new(&data, None).unwrap();
        ensure_member(&RealDisk, &target, Request { founding: &founding, local, form: Form::Any }).unwrap();
        let args = vec![format!("--config-file={}", file.display())];
        let mut running = Running::start(&tools.etcd, &args, &[]);
        wait_until("etcd to answer", Duration::from_secs(60), || {
            assert!(running.ended().is_none(), "etcd {version} ended:\n{}", running.log_tail(30));
            tools.try_ctl(&seat.client_url(), &["endpoint", "health"]).is_ok()
        });
        let log = running.log_tail(2000);
        assert!(log.contains("123456789"), "etcd {version} did not take the quota:\n{log}");
        running.stop();
    }
}

#[test]
fn the_table_has_every_flag_that_a_server_has() {
    for version in VERSIONS {
        let tools = etcd(version);
        let minor = Minor::parse(&tools.version).unwrap();
        let help = std::process::Command::new(&tools.etcd).arg("--help").output().unwrap();
        // 3.4 prints it as an error, later ones as an answer.
        let text = [help.stdout, help.stderr].map(|bytes| String::from_utf8(bytes).unwrap()).concat();
        let flags = text.lines().filter_map(|line| line.trim().strip_prefix("--")?.split([' ', '=']).next());
        let flags: Vec<&str> = flags.filter(|flag| !flag.is_empty()).collect();
        assert!(flags.len() >= 80, "etcd {version} has {} flags:\n{text}", flags.len());
        for flag in flags {
            let setting = Setting { key: flag.to_owned(), value: Value::Flag(true), at: At::default() };
            let code = check(&setting, Some(minor)).err().map(|objection| objection.code);
            let known = matches!(code, None | Some(Code::EtcdKeyOurs | Code::EtcdValueInvalid));
            assert!(known, "`--{flag}` of etcd {}: {code:?}", tools.version);
        }
    }
}
