//! Founding a declared cluster: in any order, exactly once, or not at all and with a reason.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod cluster_support;

use cluster_support::{Declared, Wire};
use quorate_testkit::VERSIONS;

#[test]
fn three_nodes_found_one_cluster_with_mutual_tls_on_every_release() {
    for version in VERSIONS {
        let mut cluster = Declared::new(version, 3, Wire::Tls);
        cluster.start_all();
        cluster.wait_serving();
        cluster.put(0, "k", version);
        cluster.assert_all_hold("k", version);
        cluster.assert_one_cluster();
    }
}
