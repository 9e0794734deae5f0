//! Users, roles and sources in the cluster file.

use super::*;
use crate::roster::Roster;

const HEAD: &str = "token: t\nmembers: [{name: n1, address: 10.0.0.1}]\ntls: {dir: /pki}\n";

const AUTH: &str = "\
auth:
  prune: true
  roles:
    - name: app
      permissions:
        - {prefix: /app/, access: readwrite}
        - {key: /motd}
        - {range: {from: /a, to: /b}, access: write}
        - {range: {from: /x}, access: read}
    - name: all
      permissions: [{prefix: '', access: readwrite}]
  users:
    - {name: alice, password-file: /pw/alice, roles: [app]}
    - {name: web.example.com, roles: app}
";

const SOURCE: &str = "\
token: t
bootstrap: {id: 1}
plaintext: true
source: {uri: 'consul:service/etcd', size: 2, token-file: /etc/q/token}
members:
  - {name: n2, data-dir: /srv/n2, listen-client-urls: ['http://0.0.0.0:2379']}
";

fn read(text: &str) -> Spec {
    Spec::parse(text.as_bytes(), "cluster.yaml").map_err(|mistakes| mistakes.render()).unwrap().0
}

fn mistakes(text: &str) -> String {
    Spec::parse(text.as_bytes(), "cluster.yaml").map(|_| ()).unwrap_err().render()
}

fn roster(members: &[(&str, &str)]) -> Roster {
    let raw = members.iter().map(|(name, url)| RawMember {
        name: (*name).to_owned(),
        peer_urls: vec![(*url).to_owned()],
        client_urls: Vec::new(),
    });
    Roster::build("consul:service/etcd", raw.collect()).unwrap()
}

#[test]
fn users_and_roles_are_read() {
    let auth = read(&format!("{HEAD}{AUTH}")).auth.unwrap();
    assert!(auth.enabled && auth.prune);
    assert_eq!(auth.agent_user.as_deref(), Some(ADMIN), "the name in the certificate that comes with the folder");
    let ranges: Vec<_> = auth.roles[0].permissions.iter().map(|permission| permission.keys.range()).collect();
    let pair = |from: &str, to: &str| (from.as_bytes().to_vec(), to.as_bytes().to_vec());
    assert_eq!(ranges, [pair("/app/", "/app0"), pair("/motd", ""), pair("/a", "/b"), pair("/x", "\0")]);
    assert_eq!(auth.roles[0].permissions[1].access, Access::Read, "reading alone unless more is asked for");
    assert_eq!(auth.roles[1].permissions[0].keys.range(), pair("\0", "\0"));
    assert_eq!(auth.users[0].password_file.as_deref(), Some("/pw/alice"));
    assert_eq!(auth.users[1], User { name: "web.example.com".into(), password_file: None, roles: vec!["app".into()] });
}

#[test]
fn users_and_sources_are_printed_as_they_are_read() {
    for text in [format!("{HEAD}{AUTH}"), SOURCE.to_owned()] {
        let spec = read(&text);
        let printed = serde_json::to_string_pretty(&spec).unwrap();
        assert_eq!(read(&printed), spec, "{printed}");
    }
}

#[test]
fn mistakes_about_users_are_found() {
    let said = |from: &str, to: &str| mistakes(&format!("{HEAD}{AUTH}").replace(from, to));
    assert!(said("roles: [app]", "roles: [appp]").contains("given role `appp`, which is not declared"));
    assert!(said("roles: [app]", "roles: [appp]").contains("did you mean `app`?"));
    assert!(said("name: web.example.com", "name: alice").contains("two users are named `alice`"));
    assert!(said("name: all", "name: root").contains("the role `root` is not declared"));
    assert!(said("{key: /motd}", "{key: /motd, prefix: /m}").contains("has one of `key`, `prefix` and `range`"));
    assert!(said("{key: /motd}", "{access: read}").contains("has one of `key`, `prefix` and `range`"));
    assert!(said("{key: /motd}", "{prefix: /app/}").contains("these keys are given twice"));
    assert!(said("to: /b", "to: /").contains("comes before its `from`"));
    assert!(said("access: write", "access: rw").contains("`rw` is no `access`"));
    assert!(said("/pw/alice", "alice").contains("not an absolute path"));
    let plain = mistakes(&format!("token: t\nplaintext: true\nmembers: [{{name: n1, address: 10.0.0.1}}]\n{AUTH}"));
    assert!(plain.contains("nothing says as whom the agent asks etcd"), "{plain}");
    let secret = said("password-file: /pw/alice", "password: hunter2");
    assert!(secret.contains("`password` means nothing") && !secret.contains("hunter2"), "{secret}");
}

#[test]
fn the_agent_keeps_its_own_way_in() {
    let with = |users: &str| {
        format!(
            "token: t\nplaintext: true\nmembers: [{{name: n1, address: 10.0.0.1}}]\nagent: {{etcd-user: root, \
             etcd-password-file: /pw/root}}\nauth: {{users: [{users}]}}\n"
        )
    };
    for users in ["", "{name: root}", "{name: root, password-file: /pw/root}"] {
        let auth = read(&with(users)).auth.unwrap();
        assert_eq!(auth.agent_user.as_deref(), Some("root"));
        assert_eq!(auth.users[0].password_file.as_deref(), Some("/pw/root"), "{users}");
    }
    let other = mistakes(&with("{name: root, password-file: /pw/other}"));
    assert!(other.contains("the agent asks as `root`, with another password file"), "{other}");
}

#[test]
fn the_user_that_is_kept_for_the_agent_is_the_one_in_its_certificate() {
    let with = |tls: &str, user: &str| {
        let members = "members: [{name: n1, address: 10.0.0.1}]";
        format!("token: t\ntls: {{dir: /p{tls}}}\n{members}\nauth: {{agent-user: {user}}}\n")
    };
    let other = mistakes(&with("", "root"));
    assert!(other.contains("shows etcd a certificate of `quorate-admin`, and `root` is kept for it"), "{other}");
    read(&with("", ADMIN));
    read(&with(", admin: {cert-file: /a, key-file: /k, trusted-ca-file: /c}", "root"));
}

#[test]
fn a_source_fills_in_the_members_when_it_is_complete() {
    let spec = read(SOURCE);
    assert!(!spec.is_resolved());
    assert_eq!(spec.founding_ids(), None, "nothing is founded on a list that nobody has seen");
    let full = spec.with_roster(&roster(&[("n1", "http://10.0.0.1:2380"), ("n2", "http://10.0.0.2:2380")])).unwrap();
    let turned = spec.with_roster(&roster(&[("n2", "http://10.0.0.2:2380"), ("n1", "http://10.0.0.1:2380")])).unwrap();
    assert_eq!(full.hash(), turned.hash(), "the order of an answer means nothing");
    assert!(full.is_resolved() && full.founding_ids().is_some());
    let n2 = full.member("n2").unwrap();
    assert_eq!((n2.data_dir.as_str(), n2.client_urls[0].as_str()), ("/srv/n2", "http://10.0.0.2:2379"));
    assert_eq!(n2.listen_client_urls, ["http://0.0.0.0:2379"]);
    assert_eq!(full.member("n1").unwrap().listen_peer_urls, ["http://10.0.0.1:2380"]);
    let refused = |members: &[(&str, &str)]| spec.with_roster(&roster(members)).unwrap_err().to_string();
    let one = refused(&[("n2", "http://10.0.0.2:2380")]);
    assert!(one.contains("it has 1 members, and the cluster file says 2"), "{one}");
    let other = refused(&[("n1", "http://10.0.0.1:2380"), ("n3", "http://10.0.0.3:2380")]);
    assert!(other.contains("it has no member `n2`"), "{other}");
    let tls = refused(&[("n1", "https://10.0.0.1:2380"), ("n2", "http://10.0.0.2:2380")]);
    assert!(tls.contains("is for TLS, and `plaintext: true` is asked for"), "{tls}");
}

#[test]
fn mistakes_about_sources_are_found() {
    let said = |from: &str, to: &str| mistakes(&SOURCE.replace(from, to));
    assert!(said(", size: 2", "").contains("does not say how many members there are"));
    assert!(said("uri: 'consul:service/etcd', ", "").contains("`source` has no `uri`"));
    assert!(said("consul:service/etcd", "consul").contains("`consul` is no source"));
    assert!(said("{name: n2,", "{name: n2, address: 10.0.0.2,").contains("come from `source`, and stand here as well"));
    let secret = said("consul:service/etcd", "https://me:hunter2@host/list");
    assert!(secret.contains("holds a user name or password") && !secret.contains("hunter2"), "{secret}");
    assert!(mistakes("token: t\nplaintext: true\n").contains("`members` is missing"));
}
