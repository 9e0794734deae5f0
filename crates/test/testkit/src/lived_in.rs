//! A snapshot of a real server that has lived: some MiB, with values over many pages, and with pages that are free again.

use std::sync::OnceLock;

use crate::etcd::{Launch, Seat, etcd};

/// Close to what one argument of a program may have.
const VALUE_BYTES: usize = 120 << 10;
const KEYS: usize = 24;

/// About 3 MiB, made once for each test program; over 2 MiB of it is content.
pub fn lived_in_snapshot() -> &'static [u8] {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    BYTES.get_or_init(make)
}

fn make() -> Vec<u8> {
    let (seat, dir) = (Seat::new("lived"), tempfile::tempdir().expect("a scratch dir can be made"));
    let server = Launch::new(&etcd("sid"), &seat, &dir.path().join("data"))
        .arg(format!("--initial-cluster={}={}", seat.name, seat.peer_url()))
        .arg(format!("--initial-advertise-peer-urls={}", seat.peer_url()))
        .start();
    for number in 0..KEYS {
        let letter = char::from(b'a' + (number % 26) as u8).to_string();
        // The last ones replace the first ones.
        server.ctl(&["put", &format!("key-{:02}", number % (KEYS - 4)), &letter.repeat(VALUE_BYTES)]);
    }
    let revision = server.ctl_json(&["get", "key-00"])["header"]["revision"].to_string();
    server.ctl(&["compact", "--physical", &revision]);
    // What was compacted is free once a later change is on disk.
    server.ctl(&["put", "after", "compaction"]);
    let path = dir.path().join("snapshot.db");
    server.ctl(&["snapshot", "save", &path.display().to_string()]);
    std::fs::read(&path).expect("`etcdctl snapshot save` wrote the file")
}
