//! The README's cluster on three machines: the file and the commands exactly as they are printed, each where it says.

mod guide_support;

use std::time::{Duration, Instant};

use guide_support::{Guide, commands};
use quorate_testkit::{Hosts, Machine, Running, etcd, quorate, s3_on};

const LIMIT: Duration = Duration::from_secs(120);
const NODES: [&str; 3] = ["n1", "n2", "n3"];

fn find<'a>(lines: &'a [String], begins: &str) -> &'a str {
    lines.iter().find(|line| line.starts_with(begins)).unwrap_or_else(|| panic!("no line begins with `{begins}`"))
}

#[test]
fn three_machines_become_a_cluster_by_the_commands_of_the_readme() {
    let readme = Guide::read("README.md");
    let file = readme.block("```yaml\n# cluster.yaml");
    let lines = commands(&readme.block("```\nquorate ca init"));
    let root = tempfile::tempdir().unwrap();
    let hosts = Hosts::in_network([10, 0, 0], 4);
    let machines: Vec<Machine> = hosts.iter().map(|host| Machine::new(host, &root.path().join(host.name()))).collect();
    let (_store, mut env) = s3_on(&hosts[3], "bucket");
    let tools = etcd("sid");
    for machine in &machines {
        machine.install("quorate", &quorate());
        machine.install("etcd", &tools.etcd);
        machine.install("etcdctl", &tools.etcdctl);
        machine.write("cluster.yaml", file.as_bytes());
        machine.write("ca.pass", b"correct horse\n");
    }
    env.push(("QUORATE_CA_PASSPHRASE_FILE".to_owned(), "/etc/quorate/ca.pass".to_owned()));
    let (nodes, office) = (&machines[..3], &machines[3]);
    office.must(find(&lines, "quorate ca init"), &env);
    for (node, name) in nodes.iter().zip(NODES) {
        let line = |begins: &str| find(&lines, begins).replace("n1", name);
        node.must(&line("quorate ca csr"), &env);
        office.write(&format!("{name}.csr"), node.must(&format!("cat {name}.csr"), &[]).as_bytes());
        office.must(&line("quorate ca issue"), &env);
        node.write(&format!("{name}.bundle"), office.must(&format!("cat {name}.bundle"), &[]).as_bytes());
        node.must(&line("quorate ca install"), &env);
    }
    // The README has the issuing keys on one node.
    for key in ["peer-ca.key", "client-ca.key", "agent-ca.key"] {
        let text = office.must(&format!("cat prod-1-ca/{key}"), &[]);
        nodes[0].write(&format!("pki/{key}"), text.as_bytes());
    }
    nodes[0].must("chmod 600 pki/*-ca.key", &[]);
    let checked = nodes[1].must(&find(&lines, "quorate self check").replace("n1", "n2"), &env);
    assert!(checked.contains("`n2` can start") && checked.contains("no issuing keys"), "{checked}");
    let _agents: Vec<Running> = nodes
        .iter()
        .zip(NODES)
        .map(|(node, name)| node.start(&find(&lines, "quorate run").replace("n1", name), &env))
        .collect();
    for node in nodes {
        let said = node.must(find(&lines, "quorate cluster bootstrap"), &env);
        assert!(said.contains("every member serves"), "{said}");
    }
    let status = find(&lines, "quorate cluster status");
    let begun = Instant::now();
    loop {
        let output = nodes[2].run(status, &env);
        if output.status.success() {
            break;
        }
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(begun.elapsed() < LIMIT, "{}\n{said}", output.status);
        std::thread::sleep(Duration::from_millis(200));
    }
    // And the lines of the guide for clients of etcd.
    let lines = commands(&Guide::read("docs/guide/links.md").block("```\nquorate cluster links client"));
    let health = nodes[1].run(&lines.join("\n"), &env);
    let said = String::from_utf8_lossy(&[health.stdout, health.stderr].concat()).into_owned();
    assert!(health.status.success() && said.matches("is healthy").count() == 3, "{said}");
}
