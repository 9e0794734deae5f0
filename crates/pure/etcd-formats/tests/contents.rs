//! Counts and hashes against what etcd itself printed for the same files.

use std::sync::atomic::AtomicU64;

use quorate_etcd_formats::bolt::Db;
use quorate_etcd_formats::bolt::check::Run;
use quorate_etcd_formats::contents::{Compaction, Contents, Want, examine};
use quorate_etcd_formats::database::Facts;

fn contents(bytes: &[u8], hashes: bool) -> Contents {
    let db = Db::open(bytes).expect("a database");
    let buckets = db.buckets().expect("buckets");
    let compaction = Facts::read(&db, &buckets).expect("facts").compaction();
    assert_eq!(compaction, Compaction { revision: Some(4), finished: true });
    examine(
        &db,
        &buckets,
        compaction,
        &Want { hashes, run: Run { workers: 2, progress: &AtomicU64::new(0), go_on: None } },
    )
    .expect("contents")
}

#[test]
fn hashes_equal_what_etcd_printed() {
    let golden: [(&str, &[u8], u32, u32); 4] = [
        ("3.4.23", include_bytes!("../../../test/testkit/fixtures/golden/snapshot-3.4.23.db"), 2127204965, 607505784),
        ("3.5.16", include_bytes!("../../../test/testkit/fixtures/golden/snapshot-3.5.16.db"), 2116790111, 3587689781),
        ("3.5.30", include_bytes!("../../../test/testkit/fixtures/golden/snapshot-3.5.30.db"), 1463965815, 1480377627),
        ("3.6.14", include_bytes!("../../../test/testkit/fixtures/golden/snapshot-3.6.14.db"), 3845992787, 4112213887),
    ];
    for (version, bytes, status, hashkv) in golden {
        let hashes = contents(bytes, true).hashes.expect("hashes");
        assert_eq!(hashes.snapshot_status, status, "{version}");
        let variant = if version == "3.4.23" { hashes.hashkv[0] } else { hashes.hashkv[1] };
        assert_eq!(variant.hash, hashkv, "{version}");
        // Two ways of counting that share nothing must agree.
        let (by_key, by_generation) = (contents(bytes, true), contents(bytes, false));
        assert_eq!(by_key.live_keys, by_generation.live_keys, "{version}");
        assert!(by_key.live_keys > 0, "{version}");
    }
}
