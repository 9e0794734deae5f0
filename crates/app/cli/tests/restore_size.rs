//! Restored data is at most as large as what `etcdutl defrag` makes of the same snapshot.

#![expect(clippy::unwrap_used, reason = "a test that cannot continue names the place")]

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use quorate_etcd_formats::bolt::meta::MetaPages;
use quorate_testkit::{Seat, Server, etcd, quorate, run};

/// Bytes up to the high-water mark, behind which bbolt reserves room, and bytes of the file.
fn used(data_dir: &Path) -> (u64, u64) {
    let path = data_dir.join("member/snap/db");
    let bytes = quorate_etcd::datadir::FileSource::open(&path).unwrap();
    let meta = MetaPages::read(&bytes).unwrap().chosen().unwrap();
    (meta.hwm * u64::from(meta.page_size), path.metadata().unwrap().len())
}

/// Writes many values of one length, as many in a transaction as etcd takes.
fn fill(server: &Server, count: usize, length: usize) {
    let value = "x".repeat(length);
    let at_once = (1_000_000 / length).clamp(1, 100);
    for first in (0..count).step_by(at_once) {
        let puts: String = (first..count.min(first + at_once)).map(|at| format!("put k{at:06} {value}\n")).collect();
        let mut command = Command::new(&server.tools.etcdctl);
        command.env("ETCDCTL_API", "3").args(["--endpoints", &server.seat.client_url(), "txn"]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(format!("\n{puts}\n\n").as_bytes()).unwrap();
        assert!(child.wait().unwrap().success());
    }
}

#[test]
fn restored_values_take_no_more_than_etcdutl_needs() {
    for (length, count) in [(4500, 900), (9000, 450), (20_000, 150), (100_000, 30), (1_400_000, 4)] {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name).display().to_string();
        let server = Server::start(&etcd("sid"), &Seat::new("n1"), &root.path().join("first"));
        fill(&server, count, length);
        server.ctl(&["snapshot", "save", &at("snapshot.db")]);
        let (tools, member) = (server.tools.clone(), format!("n1={}", server.seat.peer_url()));
        let url = server.seat.peer_url();
        server.stop();
        let mut theirs = Command::new(&tools.etcdutl);
        theirs.args(["snapshot", "restore", &at("snapshot.db"), "--data-dir", &at("theirs"), "--name", "n1"]);
        run(theirs.args(["--initial-cluster", &member, "--initial-advertise-peer-urls", &url]));
        run(Command::new(&tools.etcdutl).args(["defrag", "--data-dir", &at("theirs")]));
        let mut ours = Command::new(quorate());
        ours.args(["data", "restore", "--snapshot", &at("snapshot.db"), "--data-dir", &at("ours"), "--name", "n1"]);
        run(ours.args(["--member", &member]));
        let (ours, theirs) = (used(&root.path().join("ours")), used(&root.path().join("theirs")));
        assert!(ours.0 <= theirs.0, "{count} values of {length} bytes: {} bytes, etcdutl {}", ours.0, theirs.0);
        assert!(ours.1 <= theirs.1, "{count} values of {length} bytes: a file of {}, etcdutl {}", ours.1, theirs.1);
    }
}
