//! What a follower tells Prometheus: the text itself, over TLS, with a certificate that is renewed while it runs.

mod follow_support;

use follow_support::{LIMIT, Place, certificates, metrics, number, rename, revision, wait_log, write_some};
use quorate_testkit::wait_until;

/// Every metric: name, type, and how its help begins.
const ALL: [(&str, &str, &str); 27] = [
    ("quorate_backup_etcd_revision", "gauge", "Revision of the cluster"),
    ("quorate_backup_recorded_revision", "gauge", "Newest revision in the spool or the store"),
    ("quorate_backup_stored_revision", "gauge", "Newest revision that can be restored"),
    ("quorate_backup_lag_revisions", "gauge", "Revisions that the cluster has"),
    ("quorate_backup_spool_bytes", "gauge", "Size of the spool"),
    ("quorate_backup_spool_max_bytes", "gauge", "Size that the spool may have"),
    ("quorate_backup_lag_seconds", "gauge", "History that would be lost"),
    ("quorate_backup_last_full_timestamp_seconds", "gauge", "When the last full backup was made"),
    ("quorate_backup_last_full_age_seconds", "gauge", "Age of the last full backup"),
    ("quorate_backup_last_full_revision", "gauge", "Revision of the last full backup"),
    ("quorate_backup_last_delta_timestamp_seconds", "gauge", "When the last delta was made"),
    ("quorate_backup_last_delta_age_seconds", "gauge", "Age of the last delta"),
    ("quorate_backup_last_delta_revision", "gauge", "Revision of the last delta"),
    ("quorate_backup_last_drill_timestamp_seconds", "gauge", "When the last trial of a restore was made"),
    ("quorate_backup_last_drill_age_seconds", "gauge", "Age of the last trial of a restore"),
    ("quorate_backup_last_drill_revision", "gauge", "Revision of the last trial of a restore"),
    ("quorate_backup_last_drill_good", "gauge", "Whether the last trial of a restore went well"),
    ("quorate_build", "info", "The program"),
    ("quorate_backup_uploads", "counter", "Objects put into the store"),
    ("quorate_backup_failures", "counter", "Attempts that failed"),
    ("quorate_backup_uploaded_bytes", "counter", "Size of objects as stored"),
    ("quorate_backup_duration_seconds", "histogram", "Time from the start of an upload to its end"),
    ("quorate_backup_events", "counter", "Writes recorded in the spool"),
    ("quorate_backup_reconnects", "counter", "Watches opened again"),
    ("quorate_backup_leases_gone", "counter", "Leases that ended"),
    ("quorate_backup_connected", "gauge", "Whether a watch on etcd is open"),
    ("quorate_backup_paused", "gauge", "Whether recording waits"),
];

#[test]
fn metrics_have_names_units_helps_and_true_values() {
    let place = Place::new();
    let server = place.etcd("sid");
    let url = server.seat.client_url();
    let mut follower = place.follow(&url, "spool", &[]);
    wait_log(&follower, "stored a full backup and read it back");
    write_some(&server, "one");
    place.wait_stored(revision(&server));
    assert!(follower.stop().success());
    let etcd = server.tools.etcd.display().to_string();
    place.backup(&["verify", "--store", &place.store, "--drill", "--etcd", &etcd]).unwrap();
    let drilled = revision(&server) as f64;
    place.backup(&["verify", "--store", &place.store]).unwrap();
    let (ca, cert, key) = certificates(&place);
    let listen = ["--metrics-listen", "https://127.0.0.1:0", "--metrics-cert", &cert, "--metrics-key", &key];
    let mut follower = place.follow(&url, "spool", &listen);
    wait_log(&follower, "following into");
    write_some(&server, "two");
    wait_log(&follower, "stored a delta");
    place.wait_stored(revision(&server));
    let fetch = || metrics(&follower, &["--cacert", &ca]);
    wait_until("all of it is told", LIMIT, || {
        let text = fetch();
        text.contains("last_drill_good") && number(&text, "quorate_backup_lag_revisions") == 0.0
    });
    let text = fetch();
    for (name, kind, help) in ALL {
        assert!(text.contains(&format!("# HELP {name} {help}")), "{name}: {text}");
        assert!(text.contains(&format!("# TYPE {name} {kind}\n")), "{name}: {text}");
    }
    let told = text.lines().filter(|line| line.starts_with("# TYPE ")).count();
    assert_eq!(told, ALL.len(), "{text}");
    for unit in ["# UNIT quorate_backup_uploaded_bytes bytes", "# UNIT quorate_backup_duration_seconds seconds"] {
        assert!(text.contains(unit), "{text}");
    }
    let now = revision(&server) as f64;
    let of = |name: &str| number(&text, &format!("quorate_backup_{name}"));
    assert_eq!((of("etcd_revision"), of("recorded_revision"), of("stored_revision")), (now, now, now), "{text}");
    assert_eq!((of("last_delta_revision"), of("lag_seconds"), of("spool_bytes")), (now, 0.0, 0.0), "{text}");
    assert_eq!((of("last_drill_revision"), of("last_drill_good")), (drilled, 1.0), "{text}");
    assert!(of("last_drill_age_seconds") < 60.0 && of("last_full_age_seconds") < 60.0, "{text}");
    assert_eq!((of("connected"), of("paused"), of("spool_max_bytes")), (1.0, 0.0, 2147483648.0), "{text}");
    assert!(of("events_total") >= 8.0 && text.ends_with("# EOF\n"), "{text}");
    let stranger = metrics(&follower, &["--capath", "/nonexistent"]);
    assert!(stranger.contains("certificate"), "{stranger}");
    // Another authority, another certificate: whoever trusts the old one only is told so by TLS itself.
    rename(&place.path("ca.pem"), &place.path("old-ca.pem"));
    let (ca, _, _) = certificates(&place);
    wait_until("the new certificate is shown", LIMIT, || metrics(&follower, &["--cacert", &ca]).contains("# EOF"));
    let old = place.path("old-ca.pem").display().to_string();
    assert!(!metrics(&follower, &["--cacert", &old]).contains("# EOF"));
    assert!(follower.stop().success(), "{}", follower.log());
}
