//! How a real etcd says that it cannot start, and what is read from that: whether another start can help, and why not.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::time::Duration;

use quorate_etcd::init::{Request, Target, ensure_member};
use quorate_etcd_formats::founding::{Form, Founding};
use quorate_faults::Code;
use quorate_host::durable::RealDisk;
use quorate_plan::start::{classify, hindrance};
use quorate_testkit::{Launch, Running, Seat, Tools, etcd, wait_until};
use tempfile::TempDir;

/// The releases and the forms of their logs. 3.5 and later have one form; 3.4 is the only one with text.
const FORMS: [(&str, &str); 3] = [("3.4.23", "zap"), ("3.4.23", "capnslog"), ("sid", "zap")];

type Read = (Option<Code>, Option<Code>);

fn read(log: &str) -> Read {
    (classify(log).map(|(code, _)| code), hindrance(log).map(|(code, _)| code))
}

fn flags(seat: &Seat, data: &Path, logger: &str, more: &[&str]) -> Vec<String> {
    let flags = [
        format!("--name={}", seat.name),
        format!("--data-dir={}", data.display()),
        format!("--listen-client-urls={}", seat.client_url()),
        format!("--advertise-client-urls={}", seat.client_url()),
        format!("--listen-peer-urls={}", seat.peer_url()),
        format!("--initial-advertise-peer-urls={}", seat.peer_url()),
        format!("--initial-cluster={}={}", seat.name, seat.peer_url()),
        format!("--logger={logger}"),
        "--log-outputs=stderr".to_owned(),
    ];
    flags.into_iter().chain(more.iter().map(ToString::to_string)).collect()
}

/// Starts it and waits for its end; gives its log.
fn end(program: &Path, args: &[String]) -> String {
    let mut running = Running::start(program, args, &[]);
    wait_until("etcd to end", Duration::from_secs(60), || running.ended().is_some());
    running.log_tail(500)
}

#[test]
fn settings_that_etcd_does_not_accept_are_permanent() {
    let wrong: [&[&str]; 7] = [
        &["--no-such-flag=1"],
        &["--heartbeat-interval=2000", "--election-timeout=1000"],
        &["--auto-compaction-retention=soon"],
        &["--auto-compaction-mode=sometimes"],
        &["--auth-token=foo"],
        &["--auth-token=jwt,sign-method=RS256"],
        &["--cipher-suites=NOPE"],
    ];
    for (version, logger) in FORMS {
        let tools = etcd(version);
        for more in wrong {
            let dir = TempDir::new().unwrap();
            let log = end(&tools.etcd, &flags(&Seat::new("n1"), &dir.path().join("d"), logger, more));
            assert_eq!(read(&log), (Some(Code::EtcdRefusedSettings), None), "{version} {logger} {more:?}:\n{log}");
        }
        // In a file, as we give it: 3.4 says so in text whatever logger the file asks for.
        for line in ["quota-backend-bytes: much", "log-level: loud", "max-wals: -1", "logger: paper"] {
            let dir = TempDir::new().unwrap();
            let file = dir.path().join("etcd.yaml");
            put(
                &file,
                &format!(
                    "name: n1\ndata-dir: {}/d\nlogger: {logger}\nlog-outputs: [stderr]\n{line}\n",
                    dir.path().display()
                ),
            );
            let log = end(&tools.etcd, &[format!("--config-file={}", file.display())]);
            let permanent = read(&log).0;
            // 3.4 in text does not know levels, and a key that is given twice counts once.
            let accepted = line == "log-level: loud" && logger == "capnslog";
            assert!(permanent == Some(Code::EtcdRefusedSettings) || accepted, "{version} {logger} {line}:\n{log}");
        }
    }
}

fn put(path: &Path, text: &str) {
    use std::io::Write;
    std::fs::File::create(path).unwrap().write_all(text.as_bytes()).unwrap();
}

#[test]
fn data_of_a_newer_etcd_is_permanent() {
    let (newer, older) = (etcd("sid"), etcd("3.4.23"));
    let dir = TempDir::new().unwrap();
    let (seat, data) = (Seat::new("n1"), dir.path().join("d"));
    let launch = Launch::new(&newer, &seat, &data).arg(format!("--initial-advertise-peer-urls={}", seat.peer_url()));
    let server = launch.arg(format!("--initial-cluster=n1={}", seat.peer_url())).start();
    wait_until("the cluster's version", Duration::from_secs(30), || {
        server.running.log_tail(500).contains("updated cluster version")
            || server.running.log_tail(500).contains("set initial cluster version")
            || server.running.log_tail(500).contains("cluster version is updated")
    });
    server.stop();
    for logger in ["zap", "capnslog"] {
        let log = end(&older.etcd, &flags(&seat, &data, logger, &[]));
        assert_eq!(read(&log), (Some(Code::EtcdOlder), None), "{logger}:\n{log}");
    }
}

#[test]
fn a_taken_port_a_full_disk_and_missing_permissions_may_pass() {
    for (version, logger) in FORMS {
        let tools = etcd(version);
        let dir = TempDir::new().unwrap();
        let seat = Seat::new("n1");
        let holder = std::net::TcpListener::bind(seat.client_url().trim_start_matches("http://")).unwrap();
        let log = end(&tools.etcd, &flags(&seat, &dir.path().join("d"), logger, &[]));
        assert_eq!(read(&log), (None, Some(Code::ListenFailed)), "{version} {logger}:\n{log}");
        drop(holder);
        full_disk(&tools, logger);
        no_permission(&tools, logger);
    }
}

/// On a file system of one megabyte, of which etcd wants 64 for its WAL.
fn full_disk(tools: &Tools, logger: &str) {
    let dir = TempDir::new().unwrap();
    let small = SmallDisk::mount(dir.path());
    let log = end(&tools.etcd, &flags(&Seat::new("n1"), &small.0.join("d"), logger, &[]));
    assert_eq!(read(&log), (None, Some(Code::DiskFull)), "{} {logger}:\n{log}", tools.version);
}

struct SmallDisk(std::path::PathBuf);

impl SmallDisk {
    fn mount(at: &Path) -> SmallDisk {
        let mut mount = std::process::Command::new("mount");
        let done = mount.args(["-t", "tmpfs", "-o", "size=1M", "tmpfs"]).arg(at).status().unwrap();
        assert!(done.success(), "a small file system is needed here: run the tests as root");
        SmallDisk(at.to_owned())
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

/// A data dir of root's, and an etcd of nobody's.
fn no_permission(tools: &Tools, logger: &str) {
    let dir = TempDir::new().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let data = dir.path().join("d");
    std::fs::create_dir(&data).unwrap();
    std::fs::set_permissions(&data, std::fs::Permissions::from_mode(0o700)).unwrap();
    chown(&data, Some(0), Some(0)).unwrap();
    let args = ["--reuid=65534", "--regid=65534", "--clear-groups"].map(str::to_owned).into_iter();
    let args = args.chain([tools.etcd.display().to_string()]).chain(flags(&Seat::new("n1"), &data, logger, &[]));
    let log = end(Path::new("/usr/bin/setpriv"), &args.collect::<Vec<_>>());
    assert_eq!(read(&log), (None, Some(Code::NoPermission)), "{} {logger}:\n{log}", tools.version);
}

/// Two members founded offline; the second one is stopped, removed and started again, and its place is taken by one without data.
#[test]
fn a_removed_member_is_permanent_and_so_is_one_that_was_started_before() {
    for (version, logger) in FORMS {
        let tools = etcd(version);
        let dir = TempDir::new().unwrap();
        let seats = Seat::many(3);
        let all = seats.iter().map(|seat| (seat.name.clone(), vec![seat.peer_url()])).collect();
        let founding = Founding::new(all, "t").unwrap();
        let start = |seat: &Seat| {
            let data = dir.path().join(&seat.name);
            let target = Target::new(&data, None).unwrap();
            let local = founding.member(&seat.name).unwrap();
            ensure_member(&RealDisk, &target, Request { founding: &founding, local, form: Form::Any }).unwrap();
            Running::start(&tools.etcd, &flags(seat, &data, logger, &[]), &[])
        };
        let mut members: Vec<Running> = seats.iter().map(start).collect();
        let url = seats[0].client_url();
        wait_until("the cluster", Duration::from_secs(60), || tools.try_ctl(&url, &["endpoint", "health"]).is_ok());
        members[2].stop();
        let id = founding.member("n3").unwrap().id.to_string();
        wait_until("the removal", Duration::from_secs(30), || tools.try_ctl(&url, &["member", "remove", &id]).is_ok());
        let log = end(&tools.etcd, &flags(&seats[2], &dir.path().join("n3"), logger, &[]));
        assert_eq!(read(&log), (Some(Code::StartRemoved), None), "{version} {logger}:\n{log}");
        let peers = format!("--initial-cluster=n1={},n2={}", seats[0].peer_url(), seats[1].peer_url());
        members[1].stop();
        let log = end(
            &tools.etcd,
            &flags(&seats[1], &dir.path().join("fresh"), logger, &[&peers, "--initial-cluster-token=t"]),
        );
        assert_eq!(read(&log), (Some(Code::EtcdRefusedCluster), None), "{version} {logger}:\n{log}");
        let more = format!("{peers},n9=http://127.0.0.1:9");
        let args = flags(&seats[1], &dir.path().join("fresh2"), logger, &[&more, "--initial-cluster-state=existing"]);
        let log = end(&tools.etcd, &args);
        assert_eq!(read(&log), (None, Some(Code::EtcdRefusedCluster)), "{version} {logger}:\n{log}");
    }
}
