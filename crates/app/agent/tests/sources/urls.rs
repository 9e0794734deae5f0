//! Our spelling of URLs against etcd's own: member ids are hashes of that text.

use std::process::Command;

use quorate_plan::roster::check_url;
use quorate_testkit::{etcd, snapshot};

/// What etcd makes of a peer URL when it founds a member from a snapshot, or its complaint.
fn as_etcd_has_it(url: &str) -> Result<String, String> {
    let dir = tempfile::tempdir().unwrap();
    let mut restore = Command::new(etcd("3.5.16").etcdutl);
    restore.args(["snapshot", "restore"]).arg(snapshot("3.5.16")).args(["--name", "n1"]);
    restore.args(["--initial-cluster", &format!("n1={url}"), "--initial-advertise-peer-urls", url]);
    restore.arg("--data-dir").arg(dir.path().join("data"));
    let output = restore.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    let added = said.split_once("\"added-peer-peer-urls\": [\"").and_then(|(_, rest)| rest.split_once("\"]"));
    match added {
        Some((url, _)) if output.status.success() => Ok(url.to_owned()),
        _ => Err(said),
    }
}

#[test]
fn every_url_that_we_accept_is_spelled_as_etcd_spells_it() {
    for url in [
        "HTTP://LOCALHOST:2380",
        "https://Node_A.Example.test:443",
        "http://127.0.0.1:80",
        "http://localhost.:2380",
        "http://[::1]:2380",
        "http://[0:0:0:0:0:0:0:1]:2380",
        "http://[FE80::1%25lo]:2380",
        "unix://localhost:2380",
        "UNIXS:///tmp/peer.sock",
    ] {
        let ours = check_url(url).map(|checked| checked.text).map_err(|error| error.why);
        assert_eq!(ours, Ok(as_etcd_has_it(url).unwrap()), "{url}");
    }
}

#[test]
fn every_url_that_etcd_refuses_is_refused_here() {
    for url in [
        "http://127.0.0.1",
        "http://127.0.0.1:2380/",
        "http://127.0.0.1:2380/path",
        "127.0.0.1:2380",
        "localhost:2380",
        "ftp://localhost:2380",
        "http://::1:2380",
        "http://[::1:2380",
        "http://[fe80::1%lo]:2380",
        "http://a b:2380",
        "http://a\\b:2380",
        "http://a%zz:2380",
        "http://localhost:port",
    ] {
        assert!(as_etcd_has_it(url).is_err(), "etcd accepts {url}");
        assert!(check_url(url).is_err(), "we accept {url}");
    }
}
