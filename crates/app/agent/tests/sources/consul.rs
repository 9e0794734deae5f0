//! A real Consul agent.

use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use quorate_agent::sources::{Env, SourceOptions, open};
use quorate_testkit::{Port, Running, consul, free_port, run, wait_until};

use super::{ask, expect, refusal, shown};

struct Agent {
    port: Port,
    token: Option<&'static str>,
    _others: Vec<Port>,
    _server: Running,
}

impl Agent {
    fn start() -> Agent {
        Agent::start_with("", None)
    }

    fn start_with(config: &str, token: Option<&'static str>) -> Agent {
        let port = free_port();
        // `server` must follow `serf`, as all of them must be free.
        let others: Vec<Port> = (0..3).map(|_| free_port()).collect();
        let ports = format!(
            "ports {{ http = {port} dns = -1 grpc = -1 serf_lan = {} serf_wan = {} server = {} }}",
            others[0], others[1], others[2]
        );
        let args: Vec<String> = ["agent", "-dev", "-bind=127.0.0.1", "-node=node-a", "-log-level=warn", "-hcl"]
            .iter()
            .map(|arg| (*arg).to_owned())
            .chain([ports, "-hcl".to_owned(), config.to_owned()])
            .collect();
        let server = Running::start(&consul(), &args, &[]);
        let agent = Agent { port, token, _others: others, _server: server };
        wait_until("Consul has a leader", Duration::from_secs(30), || {
            agent
                .command(&["catalog", "nodes"])
                .output()
                .is_ok_and(|out| String::from_utf8_lossy(&out.stdout).contains("node-a"))
        });
        agent
    }

    fn address(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(consul());
        command.args(args).env("CONSUL_HTTP_ADDR", self.address());
        if let Some(token) = self.token {
            command.env("CONSUL_HTTP_TOKEN", token);
        }
        command
    }

    /// Registers a service from its HCL definition.
    fn register(&self, service: &str) {
        let mut file = tempfile::Builder::new().suffix(".hcl").tempfile().unwrap();
        write!(file, "service {{ {service} }}").unwrap();
        run(self.command(&["services", "register"]).arg(file.path()));
    }

    fn uri(&self, service: &str) -> String {
        format!("consul:{}/{service}", self.address())
    }
}

fn plain() -> SourceOptions {
    SourceOptions { env: Env(|_| None), ..SourceOptions::default() }
}

#[test]
fn healthy_instances_are_members_and_the_others_are_named() {
    let agent = Agent::start();
    agent.register(r#"name = "etcd" id = "n2" address = "10.0.0.2" port = 2380"#);
    agent.register(r#"name = "etcd" id = "n1" address = "10.0.0.1" port = 2380"#);
    agent.register(
        r#"name = "etcd" id = "n3" address = "10.0.0.3" port = 2380
           check { name = "peer port" ttl = "1h" status = "critical" }"#,
    );
    let roster = ask(&agent.uri("etcd"), &plain()).unwrap();
    assert_eq!(shown(&roster), "n1=http://10.0.0.1:2380 n2=http://10.0.0.2:2380");
    assert_eq!(roster.provenance, agent.uri("etcd"));
    let tls = ask(&agent.uri("etcd?scheme=https"), &plain()).unwrap();
    assert_eq!(shown(&tls), "n1=https://10.0.0.1:2380 n2=https://10.0.0.2:2380");
    let source = open(&agent.uri("etcd"), &plain()).unwrap();
    let (result, said) = expect(source.as_ref(), 3, Duration::from_millis(400));
    let uri = agent.uri("etcd");
    assert_eq!(
        refusal(result),
        format!(
            "Q0111 the list from `{uri}` has 2 of 3 members after 400ms: `n3` does not count (its check `peer port` is \
             `critical`) -> add who is missing, raise `--wait`, or correct `--expect` on every node"
        )
    );
    assert_eq!(said, [format!("2 of 3 members in `{uri}`: `n3` does not count (its check `peer port` is `critical`)")]);
}

#[test]
fn meta_says_what_the_catalogue_cannot() {
    let agent = Agent::start();
    agent.register(
        r#"name = "etcd" id = "x" port = 1
           meta { name = "n1" peer_urls = "https://n1:2380, https://10.0.0.1:2380" client_urls = "https://n1:2379" }"#,
    );
    let roster = ask(&agent.uri("etcd"), &plain()).unwrap();
    assert_eq!(shown(&roster), "n1=https://10.0.0.1:2380,https://n1:2380");
    assert_eq!(roster.members[0].client_urls, ["https://n1:2379"]);
    // One instance per node: its id is the service's name, so the node's name is the member's.
    agent.register(r#"name = "lone" port = 2380"#);
    assert_eq!(shown(&ask(&agent.uri("lone"), &plain()).unwrap()), "node-a=http://127.0.0.1:2380");
    agent.register(r#"name = "portless" id = "p1""#);
    assert_eq!(
        refusal(ask(&agent.uri("portless"), &plain())),
        format!(
            "Q0103 cannot read the list from `{}`: instance `p1` has no address or port -> \
             register it with its port, or with the meta `peer_urls`",
            agent.uri("portless")
        )
    );
    agent.register(r#"name = "tagged" id = "t1" port = 2380 tags = ["blue"]"#);
    agent.register(r#"name = "tagged" id = "t2" port = 2381 tags = ["green"]"#);
    assert_eq!(shown(&ask(&agent.uri("tagged?tag=blue"), &plain()).unwrap()), "t1=http://127.0.0.1:2380");
}

#[test]
fn an_unknown_service_is_empty_but_an_absent_consul_is_unreachable() {
    let agent = Agent::start();
    assert_eq!(
        refusal(ask(&agent.uri("nothing"), &plain())),
        format!(
            "Q0104 the list from `{}` has no members -> list every founding member, or say `--expect N` to wait for them",
            agent.uri("nothing")
        )
    );
    let unknown = refusal(ask(&agent.uri("etcd?dc=elsewhere"), &plain()));
    assert!(unknown.contains("it answered `500 Internal Server Error`"), "{unknown}");
    let nobody = free_port();
    let silent = refusal(ask(&format!("consul:127.0.0.1:{nobody}/etcd"), &plain()));
    assert!(
        silent.starts_with(&format!("Q0102 no list from `consul:127.0.0.1:{nobody}/etcd`: it cannot be reached <- ")),
        "{silent}"
    );
}

const MASTER: &str = "0b1f5a5c-7f2e-4d7b-9f57-2f3a6d8f5d11";

fn master_from_env(name: &str) -> Option<String> {
    (name == "CONSUL_HTTP_TOKEN").then(|| MASTER.to_owned())
}

#[test]
fn tokens_come_from_a_file_or_the_environment_and_are_never_shown() {
    let acl = format!(
        "acl {{ enabled = true default_policy = \"deny\" down_policy = \"extend-cache\" tokens {{ master = \"{MASTER}\" }} }}"
    );
    let agent = Agent::start_with(&acl, Some(MASTER));
    agent.register(r#"name = "etcd" id = "n1" address = "10.0.0.1" port = 2380"#);
    let dir = tempfile::tempdir().unwrap();
    let good = token_file(&dir.path().join("good"), &format!("{MASTER}\n"), "600");
    let with = |path: &Path| SourceOptions { token_file: Some(path.to_owned()), ..plain() };
    assert_eq!(shown(&ask(&agent.uri("etcd"), &with(&good)).unwrap()), "n1=http://10.0.0.1:2380");
    let env = SourceOptions { env: Env(master_from_env), ..plain() };
    assert_eq!(shown(&ask(&agent.uri("etcd"), &env).unwrap()), "n1=http://10.0.0.1:2380");
    let wrong = token_file(&dir.path().join("wrong"), "ffffffff-7f2e-4d7b-9f57-2f3a6d8f5d11", "644");
    let refused = refusal(ask(&agent.uri("etcd"), &with(&wrong)));
    assert_eq!(
        refused,
        format!(
            "Q0102 no list from `{}`: it answered `403 Forbidden` -> give a token with `--source-token-file`, or a \
             certificate with `--source-cert` and `--source-key`",
            agent.uri("etcd")
        )
    );
    let warnings = open(&agent.uri("etcd"), &with(&wrong)).unwrap().warnings();
    let path = wrong.display();
    assert_eq!(
        warnings.iter().map(|warning| format!("{} {}", warning.code, warning.text)).collect::<Vec<_>>(),
        [format!("Q0116 token file `{path}` is open to every user of this host: `chmod 600 {path}`")]
    );
    assert!(open(&agent.uri("etcd"), &with(&good)).unwrap().warnings().is_empty());
    let remote = open("consul:http://consul.example:8500/etcd", &with(&good)).unwrap().warnings();
    assert_eq!(
        remote[0].text,
        "the secret for `consul:http://consul.example:8500/etcd` is sent without encryption: use `https`"
    );
}

pub(crate) fn token_file(path: &Path, text: &str, mode: &str) -> std::path::PathBuf {
    let mut file = std::fs::File::create(path).unwrap();
    file.write_all(text.as_bytes()).unwrap();
    run(Command::new("chmod").arg(mode).arg(path));
    path.to_owned()
}
