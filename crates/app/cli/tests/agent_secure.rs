//! An agent where everything is encrypted and etcd asks who is there.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod agent_support;

use std::path::{Path, PathBuf};

use agent_support::{LIMIT, Place};
use quorate_testkit::{run, wait_until};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair};

fn put(path: &Path, text: &str) -> PathBuf {
    use std::io::Write;
    std::fs::File::create(path).unwrap().write_all(text.as_bytes()).unwrap();
    path.to_owned()
}

/// An authority, and a certificate for this machine.
fn certificates(dir: &Path) {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(rcgen::DnType::CommonName, "ca");
    let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    // No name in it: etcd would take it for a user.
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    let key = KeyPair::generate().unwrap();
    let cert = params.signed_by(&key, &ca).unwrap();
    put(&dir.join("ca.pem"), &ca.pem());
    put(&dir.join("n1.pem"), &cert.pem());
    put(&dir.join("n1.key"), &key.serialize_pem());
}

fn file(place: &Place, agent: &str) -> String {
    let dir = place.root.path().display();
    let files = format!(
        "{{cert-file: \"{dir}/{{name}}.pem\", key-file: \"{dir}/{{name}}.key\", trusted-ca-file: {dir}/ca.pem}}"
    );
    let https = |url: String| url.replace("http://", "https://");
    format!(
        "token: t\nbootstrap: {{id: 1}}\ntls: {{peer: {files}, client: {files}}}\nmembers:\n  - {{name: n1, peer-urls: \
         [\"{}\"], client-urls: [\"{}\"], data-dir: {dir}/data}}\nagent:\n  health-listen: https://127.0.0.1:{}\n  api-listen: \
         https://127.0.0.1:{}\n  state-dir: {dir}/state\n  etcd-binary: {}\n{agent}etcd: {{heartbeat-interval: 10, \
         election-timeout: 100}}\n",
        https(place.seat.peer_url()),
        https(place.seat.client_url()),
        place.health,
        place.api,
        place.tools.etcd.display(),
    )
}

fn readyz(place: &Place) -> Option<u16> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        // No certificate of ours: kubelets and load balancers have none.
        let ca = reqwest::Certificate::from_pem(&std::fs::read(place.path("ca.pem")).unwrap()).unwrap();
        let client = reqwest::Client::builder().tls_certs_only([ca]).build().unwrap();
        let answer = client.get(format!("https://127.0.0.1:{}/readyz", place.health)).send().await.ok()?;
        Some(answer.status().as_u16())
    })
}

#[test]
fn readiness_needs_no_right_to_read_and_health_no_certificate() {
    // The oldest and the newest: they differ most in what a user may ask.
    for version in ["3.4.23", "sid"] {
        let mut place = Place::new(version);
        certificates(place.root.path());
        place.raw = Some(file(&place, ""));
        let mut agent = place.run(&[]);
        place.wait_phase("serving");
        wait_until("200", LIMIT, || readyz(&place) == Some(200));
        let url = place.seat.client_url().replace("http://", "https://");
        let ctl = |words: &str| {
            let at = |name: &str| place.path(name).display().to_string();
            let (ca, cert, key) = (at("ca.pem"), at("n1.pem"), at("n1.key"));
            let mut args = vec!["--cacert", &ca, "--cert", &cert, "--key", &key];
            args.extend(words.split(' '));
            run(&mut place.tools.ctl_command(&url, &args))
        };
        for words in ["user add root:secret", "role add root", "user grant-role root root", "auth enable"] {
            ctl(words);
        }
        assert!(agent.stop().success(), "{}", agent.log());
        // Without a user it may read nothing, and still knows that reads work.
        let mut agent = place.run(&[]);
        place.wait_phase("serving");
        wait_until("200", LIMIT, || readyz(&place) == Some(200));
        assert!(agent.stop().success());
        let password = put(&place.path("password"), "secret\n");
        place.raw = Some(file(&place, &format!("  etcd-user: root\n  etcd-password-file: {}\n", password.display())));
        let mut agent = place.run(&[]);
        wait_until("it may ask for sizes", LIMIT, || place.status()["etcd"]["db_bytes"].as_u64() > Some(0));
        assert_eq!(place.phase(), "serving");
        assert!(agent.stop().success());
        assert!(!agent.log().contains("secret"));
    }
}
