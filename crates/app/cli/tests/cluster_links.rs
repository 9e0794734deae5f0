//! `cluster links` hands out what consumers need, and no private key that nobody asked for.

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use rcgen::{CertificateParams, KeyPair};
use serde_json::Value;
use tempfile::TempDir;

/// A folder with a cluster file and certificates beside it.
struct Place {
    dir: TempDir,
    key: String,
}

fn put(path: &Path, text: &str) {
    std::fs::File::create(path).unwrap().write_all(text.as_bytes()).unwrap();
}

impl Place {
    fn new() -> Place {
        let dir = TempDir::new().unwrap();
        let pair = KeyPair::generate().unwrap();
        let cert = CertificateParams::new(vec!["n1".to_owned()]).unwrap().self_signed(&pair).unwrap();
        let path = |name: &str| dir.path().join(name);
        for name in ["peer-ca.crt", "client-ca.crt", "agent-ca.crt", "peer.crt", "client.crt", "agent.crt"] {
            put(&path(name), &cert.pem());
        }
        // Some people keep both in one file.
        put(&path("admin.crt"), &format!("{}{}", pair.serialize_pem(), cert.pem()));
        put(&path("admin.key"), &pair.serialize_pem());
        let text =
            format!("token: t\nmembers: [{{name: n1, address: 10.0.0.1}}]\ntls: {{dir: '{}'}}\n", dir.path().display());
        put(&path("cluster.yaml"), &text);
        let key = pair.serialize_pem().lines().nth(1).unwrap().to_owned();
        Place { dir, key }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn links(&self, args: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_quorate"));
        command.args(["cluster", "links"]).args(args).args(["--config", "cluster.yaml"]);
        command.current_dir(self.dir.path()).env_remove("QUORATE_CONFIG").env_remove("QUORATE_NAME");
        command.env_remove("QUORATE_ROOT").stdin(Stdio::null()).output().unwrap()
    }

    fn text(&self, args: &[&str]) -> String {
        let output = self.links(args);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
        text(&output.stdout)
    }
}

#[test]
fn no_form_holds_a_key_that_was_not_asked_for() {
    let place = Place::new();
    for kind in ["client", "peer"] {
        for form in ["env", "json", "yaml", "k8s-secret"] {
            for contents in [&[][..], &["--contents"][..]] {
                let text = place.text(&[&[kind, "--format", form], contents].concat());
                assert!(!text.contains(&place.key) && !text.contains("PRIVATE KEY"), "{kind} {form}: {text}");
                assert!(text.contains("10.0.0.1"), "{text}");
                let inside = form == "k8s-secret" || (form != "env" && !contents.is_empty());
                assert_eq!(text.contains("BEGIN CERTIFICATE"), inside, "{kind} {form} {contents:?}: {text}");
            }
        }
    }
}

#[test]
fn a_key_goes_into_a_file_of_ones_own_or_into_a_secret() {
    let place = Place::new();
    for args in
        [&["--format", "json"][..], &["--format", "yaml", "--contents"], &["--format", "env", "--out", "x"], &[]]
    {
        let output = place.links(&[&["client", "--with-key"], args].concat());
        assert_eq!(output.status.code(), Some(64), "{args:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("[Q1032]"), "{output:?}");
        assert!(output.stdout.is_empty() && !place.path("x").exists());
    }
    let text = place.text(&["client", "--format", "yaml", "--contents", "--with-key", "--out", "link.yaml"]);
    assert!(text.contains("link.yaml: written, with the private key") && !text.contains(&place.key), "{text}");
    let file = place.path("link.yaml");
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let link: Value = serde_saphyr::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!(link["key"].as_str().unwrap(), std::fs::read_to_string(place.path("admin.key")).unwrap());
    let secret = place.text(&["client", "--format", "k8s-secret", "--with-key", "--namespace", "web"]);
    let secret: Value = serde_saphyr::from_str(&secret).unwrap();
    assert_eq!(
        (&secret["apiVersion"], &secret["kind"], &secret["metadata"]["namespace"]),
        (&"v1".into(), &"Secret".into(), &"web".into())
    );
    assert!(secret["stringData"]["tls.key"].as_str().unwrap().contains(&place.key));
    assert!(!secret["stringData"]["tls.crt"].as_str().unwrap().contains("PRIVATE KEY"));
}

#[test]
fn a_shell_reads_the_lines_and_another_certificate_can_be_named() {
    let place = Place::new();
    let env = place.text(&["client", "--cert", "peer.crt", "--key", "admin.key"]);
    // At that variable etcdctl 3.6 and later warn on every call.
    assert!(!env.contains("ETCDCTL_API"), "{env}");
    put(&place.path("etcd.env"), &env);
    // By the line that the guide prints: what is started after it has the variables, too.
    let guide =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/guide/links.md")).unwrap();
    let line = guide.lines().find(|line| line.contains(". ./etcd.env")).unwrap();
    let mut shell = Command::new("sh");
    let child = "sh -c 'echo \"$ETCDCTL_ENDPOINTS $ETCDCTL_CERT\"'";
    shell.args(["-c", &format!("{line}; {child}")]).current_dir(place.dir.path());
    let said = String::from_utf8(shell.output().unwrap().stdout).unwrap();
    assert_eq!(said.trim(), format!("https://10.0.0.1:2379 {}", place.path("peer.crt").display()));
    let swapped =
        place.links(&["client", "--contents", "--format", "json", "--cert", "admin.key", "--key", "peer.crt"]);
    assert_eq!(swapped.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&swapped.stderr).contains("holds no certificate"), "{swapped:?}");
    let json: Value = serde_json::from_str(&place.text(&["client", "--output", "json"])).unwrap();
    assert_eq!(json["endpoints"][0], "https://10.0.0.1:2379");
    let missing = place.links(&["client", "--name", "n9"]);
    assert_eq!(missing.status.code(), Some(4));
}

#[test]
fn a_source_is_asked_for_the_members() {
    let place = Place::new();
    put(&place.path("members.yaml"), "[{name: n1, peer_urls: [http://10.0.0.7:2380]}]");
    let list = place.path("members.yaml");
    let text = format!("token: t\nplaintext: true\nsource: {{uri: 'file:{}', size: 1}}\n", list.display());
    put(&place.path("cluster.yaml"), &text);
    assert!(place.text(&["client"]).contains("ETCDCTL_ENDPOINTS=http://10.0.0.7:2379\n"));
}
