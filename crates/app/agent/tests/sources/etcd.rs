//! A real etcd that holds the lists of clusters to be.

use std::time::Duration;

use quorate_agent::sources::{Env, SourceOptions, open};
use quorate_testkit::{Running, Seat, Server, etcd, free_port, run, wait_until};

use super::pki::Pki;
use super::{ask, expect, refusal, shown};

fn plain() -> SourceOptions {
    SourceOptions { env: Env(|_| None), ..SourceOptions::default() }
}

#[test]
fn keys_below_a_prefix_are_members() {
    let dir = tempfile::tempdir().unwrap();
    let seat = Seat::new("helper");
    let server = Server::start(&etcd("3.5.16"), &seat, &dir.path().join("data"));
    let url = seat.client_url();
    for (key, value) in [
        ("clusters/prod/n1", "https://10.0.0.1:2380"),
        ("clusters/prod/n2", "https://10.0.0.2:2380,https://n2:2380"),
        ("clusters/prod/n3", r#"{"peer_urls":["https://10.0.0.3:2380"],"client_urls":["https://10.0.0.3:2379"]}"#),
        ("clusters/prod2/other", "http://elsewhere:2380"),
        ("/rooted/n1", "http://a:2380"),
        ("both/n1", "http://a:2380"),
        ("/both/n1", "http://a:2380"),
        ("deep/n1/peer", "http://a:2380"),
        ("broken/n1", "{"),
    ] {
        server.ctl(&["put", "--", key, value]);
    }
    let prod = "n1=https://10.0.0.1:2380 n2=https://10.0.0.2:2380,https://n2:2380 n3=https://10.0.0.3:2380";
    for uri in ["/clusters/prod", "/clusters/prod/", "//clusters/prod"] {
        let roster = ask(&format!("etcd:{url}{uri}"), &plain()).unwrap();
        assert_eq!(shown(&roster), prod, "{uri}");
        assert_eq!(roster.members[2].client_urls, ["https://10.0.0.3:2379"]);
    }
    // An endpoint that is down is no obstacle while another answers.
    let nobody = free_port();
    let two = format!("etcd:http://127.0.0.1:{nobody},{url}/clusters/prod");
    assert_eq!(shown(&ask(&two, &plain()).unwrap()), prod);
    assert_eq!(shown(&ask(&format!("etcd:{url}/rooted"), &plain()).unwrap()), "n1=http://a:2380");

    let refused = |prefix: &str| refusal(ask(&format!("etcd:{url}/{prefix}"), &plain()));
    assert_eq!(
        refused("nothing"),
        format!(
            "Q0104 the list from `etcd:{url}/nothing` has no members -> \
             list every founding member, or say `--expect N` to wait for them"
        )
    );
    assert_eq!(
        refused("both"),
        format!(
            "Q0103 cannot read the list from `etcd:{url}/both`: there are keys below both `both/` and `/both/` -> \
             delete one of them, or choose another prefix"
        )
    );
    assert_eq!(
        refused("deep"),
        format!(
            "Q0103 cannot read the list from `etcd:{url}/deep`: key `deep/n1/peer` names no member -> \
             keep only keys of the form `deep/NAME` below `deep/`"
        )
    );
    assert!(refused("broken").starts_with(&format!(
        "Q0103 cannot read the list from `etcd:{url}/broken`: member `n1` is neither a URL nor JSON <- "
    )));

    let source = open(&format!("etcd:{url}/clusters/prod"), &plain()).unwrap();
    let (result, said) = expect(source.as_ref(), 4, Duration::from_millis(400));
    assert!(refusal(result).starts_with("Q0111 "));
    assert_eq!(
        said,
        [format!("3 of 4 members in `etcd:{url}/clusters/prod`: 1 member not seen yet (have `n1`, `n2` and `n3`)")]
    );
}

#[test]
fn an_etcd_that_is_down_is_unreachable() {
    let nobody = free_port();
    let silent = refusal(ask(&format!("etcd:http://127.0.0.1:{nobody}/prod"), &plain()));
    assert!(
        silent
            .starts_with(&format!("Q0102 no list from `etcd:http://127.0.0.1:{nobody}/prod`: etcd gave no answer <- ")),
        "{silent}"
    );
}

#[test]
fn a_cluster_that_asks_for_a_user_gets_one_from_a_file_or_the_environment() {
    let dir = tempfile::tempdir().unwrap();
    let seat = Seat::new("helper");
    let server = Server::start(&etcd("3.5.16"), &seat, &dir.path().join("data"));
    server.ctl(&["put", "prod/n1", "http://a:2380"]);
    server.ctl(&["user", "add", "root:pa:ss"]);
    server.ctl(&["user", "grant-role", "root", "root"]);
    server.ctl(&["auth", "enable"]);
    let uri = format!("etcd:{}/prod", seat.client_url());
    let refused = refusal(ask(&uri, &plain()));
    assert!(refused.starts_with(&format!("Q0102 no list from `{uri}`: etcd gave no answer <- ")), "{refused}");
    let file = super::consul::token_file(&dir.path().join("user"), "root:pa:ss\n", "600");
    let with_file = SourceOptions { token_file: Some(file), ..plain() };
    assert_eq!(shown(&ask(&uri, &with_file).unwrap()), "n1=http://a:2380");
    let with_env =
        SourceOptions { env: Env(|name| (name == "ETCDCTL_USER").then(|| "root:pa:ss".to_owned())), ..plain() };
    assert_eq!(shown(&ask(&uri, &with_env).unwrap()), "n1=http://a:2380");
    let wrong =
        SourceOptions { env: Env(|name| (name == "ETCDCTL_USER").then(|| "root:s3cret".to_owned())), ..plain() };
    let refused = refusal(ask(&uri, &wrong));
    assert!(refused.starts_with("Q0102 ") && !refused.contains("s3cret"), "{refused}");
}

#[test]
fn an_etcd_behind_mutual_tls_wants_our_certificate() {
    let (pki, tools) = (Pki::new(), etcd("3.5.16"));
    let (client, peer) = (free_port(), free_port());
    let url = format!("https://127.0.0.1:{client}");
    let file = |name: &str| pki.path(name).display().to_string();
    let args = [
        format!("--data-dir={}", file("data")),
        format!("--listen-client-urls={url}"),
        format!("--advertise-client-urls={url}"),
        format!("--listen-peer-urls=http://127.0.0.1:{peer}"),
        format!("--cert-file={}", file("server.pem")),
        format!("--key-file={}", file("server.key")),
        format!("--trusted-ca-file={}", file("ca.pem")),
        "--client-cert-auth".to_owned(),
    ];
    let _server = Running::start(&tools.etcd, &args, &[]);
    let ctl = || {
        let mut command = tools.ctl_command(&url, &["put", "prod/n1", "https://n1:2380"]);
        let files = [("CACERT", "ca.pem"), ("CERT", "client.pem"), ("KEY", "client.key")];
        command.envs(files.map(|(name, path)| (format!("ETCDCTL_{name}"), file(path))));
        command
    };
    let ready = || ctl().output().is_ok_and(|output| output.status.success());
    wait_until("etcd takes a write", Duration::from_secs(30), ready);
    run(&mut ctl());
    let uri = format!("etcd:{url}/prod");
    let with = SourceOptions { env: Env(|_| None), ..pki.options() };
    assert_eq!(shown(&ask(&uri, &with).unwrap()), "n1=https://n1:2380");
    let without = refusal(ask(&uri, &SourceOptions { cert: None, key: None, ..with }));
    assert!(without.starts_with(&format!("Q0102 no list from `{uri}`: etcd gave no answer <- ")), "{without}");
}
