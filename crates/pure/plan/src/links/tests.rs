//! What consumers are told, in every form, and what they are never told.

use super::*;

const CERT: &str = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
const KEY: &str = "-----BEGIN EC PRIVATE KEY-----\nhunter2\n-----END EC PRIVATE KEY-----\n";

fn spec(more: &str) -> Spec {
    let text = format!(
        "token: Prod_1\nbootstrap: {{id: 1}}\nmembers:\n  - {{name: n1, address: 10.0.0.1}}\n  - {{name: n2, address: 10.0.0.2}}\n\
         {more}\n"
    );
    Spec::parse(text.as_bytes(), "f").map_err(|mistakes| mistakes.render()).unwrap().0
}

fn contents(key: bool) -> Contents {
    Contents { ca: CERT.into(), cert: CERT.into(), key: key.then(|| KEY.into()) }
}

#[test]
fn clients_get_what_etcdctl_takes() {
    let link = link(&spec("tls: {dir: /pki}"), Kind::Client, None).unwrap();
    insta::assert_snapshot!(render(&link, None, Format::Env, &Secret::default()), @r"
    ETCDCTL_ENDPOINTS=https://10.0.0.1:2379,https://10.0.0.2:2379
    ETCDCTL_CACERT=/pki/client-ca.crt
    ETCDCTL_CERT=/pki/admin.crt
    ETCDCTL_KEY=/pki/admin.key
    ");
    insta::assert_snapshot!(render(&link, None, Format::Yaml, &Secret::default()), @r#"
    cert-file: "/pki/admin.crt"
    cluster: "Prod_1"
    endpoints: ["https://10.0.0.1:2379","https://10.0.0.2:2379"]
    key-file: "/pki/admin.key"
    kind: "client"
    trusted-ca-file: "/pki/client-ca.crt"
    "#);
}

#[test]
fn peers_get_what_a_member_takes() {
    let link = link(&spec("tls: {dir: '/pki/{name}'}"), Kind::Peer, Some("n2")).unwrap();
    insta::assert_snapshot!(render(&link, None, Format::Env, &Secret::default()), @r"
    ETCD_INITIAL_CLUSTER=n1=https://10.0.0.1:2380,n2=https://10.0.0.2:2380
    ETCD_INITIAL_CLUSTER_TOKEN=Prod_1-b1
    ETCD_INITIAL_CLUSTER_STATE=existing
    ETCD_PEER_TRUSTED_CA_FILE=/pki/n2/peer-ca.crt
    ETCD_PEER_CERT_FILE=/pki/n2/peer.crt
    ETCD_PEER_KEY_FILE=/pki/n2/peer.key
    ETCD_PEER_CLIENT_CERT_AUTH=true
    ETCD_PEER_CERT_ALLOWED_HOSTNAME=peer.Prod_1.quorate.internal
    ");
    let fault = super::link(&spec("tls: {dir: '/pki/{name}'}"), Kind::Peer, None).unwrap_err();
    assert_eq!(fault.code(), Code::Usage);
}

#[test]
fn kubernetes_gets_a_secret_with_the_key_only_when_it_was_handed_in() {
    let link = link(&spec("tls: {dir: /pki}"), Kind::Client, None).unwrap();
    let secret = Secret { name: None, namespace: Some("web".into()) };
    insta::assert_snapshot!(render(&link, Some(&contents(true)), Format::KubernetesSecret, &secret), @r#"
    apiVersion: v1
    kind: Secret
    metadata:
      name: "prod-1-etcd-client"
      namespace: "web"
    type: Opaque
    stringData:
      ca.crt: |
        -----BEGIN CERTIFICATE-----
        AAAA
        -----END CERTIFICATE-----
      endpoints: "https://10.0.0.1:2379,https://10.0.0.2:2379"
      tls.crt: |
        -----BEGIN CERTIFICATE-----
        AAAA
        -----END CERTIFICATE-----
      tls.key: |
        -----BEGIN EC PRIVATE KEY-----
        hunter2
        -----END EC PRIVATE KEY-----
    "#);
    for format in [Format::Env, Format::Json, Format::Yaml, Format::KubernetesSecret] {
        assert!(!render(&link, Some(&contents(false)), format, &secret).contains("hunter2"));
        assert!(!format!("{:?}", contents(true)).contains("hunter2"));
    }
}

#[test]
fn every_form_but_the_shells_is_yaml_and_says_the_same() {
    for more in ["tls: {dir: /pki}", "plaintext: true"] {
        for kind in [Kind::Client, Kind::Peer] {
            let link = link(&spec(more), kind, None).unwrap();
            let given = (more != "plaintext: true").then(|| contents(true));
            let read = |format| {
                let text = render(&link, given.as_ref(), format, &Secret::default());
                serde_saphyr::from_str::<serde_json::Value>(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
            };
            assert_eq!(read(Format::Json), read(Format::Yaml));
            let secret = read(Format::KubernetesSecret);
            assert_eq!((&secret["kind"], &secret["type"]), (&"Secret".into(), &"Opaque".into()));
            assert_eq!(secret["stringData"]["endpoints"], link.endpoints.join(","));
            assert_eq!(secret["stringData"].get("tls.key").is_some(), given.is_some());
            assert_eq!(secret["stringData"]["tls.crt"].as_str(), given.as_ref().map(|given| given.cert.as_str()));
        }
    }
}

#[test]
fn only_the_wanted_blocks_of_a_file_are_taken() {
    let both = format!("# a comment\n{KEY}{CERT}subject=x\n{CERT}");
    assert_eq!(blocks(&both, Block::Certificate).unwrap(), format!("{CERT}{CERT}"));
    assert_eq!(blocks(&both, Block::PrivateKey).unwrap(), KEY);
    assert_eq!(blocks(KEY, Block::Certificate), None);
    assert_eq!(blocks("-----BEGIN CERTIFICATE-----\nAAAA\n", Block::Certificate), None, "cut off");
}

#[test]
fn values_never_mean_anything_to_a_shell() {
    let mut link = link(&spec("tls: {dir: /pki}"), Kind::Client, None).unwrap();
    link.files.as_mut().unwrap().cert_file = "/a b/$(touch x)/it's".into();
    let text = render(&link, None, Format::Env, &Secret::default());
    assert!(text.contains(r"ETCDCTL_CERT='/a b/$(touch x)/it'\''s'"), "{text}");
}
