//! The guides on machines of their own: the files and the commands exactly as they are printed, each where it says.
//!
//! **Rule:** a table names the document, the line and the machines; only the names of nodes, hashes and paths of copies are filled in.

#![expect(clippy::unwrap_used, reason = "a test that cannot continue names the place")]

mod guide_support;

use std::path::Path;
use std::time::Duration;

use guide_support::Guide;
use quorate_testkit::{Hosts, Machine, Running, Tools, etcd, quorate, wait_until};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair};

const LIMIT: Duration = Duration::from_secs(120);
/// The guides' own network.
const NETWORK: [u8; 3] = [10, 0, 0];

/// A printed line: the document, how the line begins, and on which machines it runs. `n1` becomes the machine's own node.
type Step = (&'static str, &'static str, &'static [usize]);

fn guide(name: &str) -> Guide {
    Guide::read(&format!("docs/guide/{name}.md"))
}

fn machines(hosts: &Hosts, root: &Path, tools: &Tools) -> Vec<Machine> {
    let named = hosts.iter().enumerate().map(|(at, host)| {
        let machine = Machine::named(host, &name(at), &root.join(host.name()));
        machine.install("quorate", &quorate());
        machine.install("etcd", &tools.etcd);
        machine.install("etcdctl", &tools.etcdctl);
        machine
    });
    named.collect()
}

fn name(at: usize) -> String {
    format!("n{}", at + 1)
}

/// Machines, the environment of an operator, and agents that run.
struct Site<'a> {
    machines: &'a [Machine],
    env: Vec<(String, String)>,
    agents: Vec<Running>,
}

impl Site<'_> {
    /// Runs the steps of a table, each line to its end. Returns what the last one printed.
    #[track_caller]
    fn run(&self, steps: &[Step]) -> String {
        let mut last = String::new();
        for (document, begins, at) in steps {
            let line = guide(document).line(begins);
            for at in *at {
                last = self.machines[*at].must(&line.replace("n1", &name(*at)), &self.env);
            }
        }
        last
    }

    /// Starts a line that runs on.
    #[track_caller]
    fn start(&mut self, (document, begins, at): Step) {
        let line = guide(document).line(begins);
        for at in at {
            self.agents.push(self.machines[*at].start(&line.replace("n1", &name(*at)), &self.env));
        }
    }

    /// Runs a line until it prints what is wanted.
    #[track_caller]
    fn wait(&self, (document, begins, at): Step, wanted: &str) {
        let line = guide(document).line(begins);
        let mut last = String::new();
        wait_until(wanted, LIMIT, || {
            at.iter().all(|at| {
                let output = self.machines[*at].run(&line.replace("n1", &name(*at)), &self.env);
                last = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
                last.contains(wanted)
            })
        });
    }

    /// `plan` of `new.yaml` by a document, which ends with this exit code, then `apply` of that plan.
    #[track_caller]
    fn apply(&self, document: &str, exit: i32) {
        let (guide, node) = (guide(document), &self.machines[0]);
        let line = guide.line("quorate cluster plan  new.yaml");
        let shown = node.run(&format!("{line} --output json"), &self.env);
        assert_eq!(shown.status.code(), Some(exit), "{shown:?}");
        let plan: serde_json::Value = serde_json::from_slice(&shown.stdout).unwrap();
        let hash: String = plan["change"]["hash"].as_str().unwrap().chars().take(8).collect();
        node.must(&guide.line("quorate cluster apply new.yaml --plan").replace("5f1c09ab", &hash), &self.env);
    }

    /// Keys, certificates and their way between a node and the machine with the authorities.
    #[track_caller]
    fn certify(&self, at: usize, office: usize) {
        let line = |begins: &str| guide("certificates").line(begins).replace("n1", &name(at));
        let (node, office) = (&self.machines[at], &self.machines[office]);
        node.must(&line("quorate ca csr"), &self.env);
        office.fetch(node, &format!("{}.csr", name(at)));
        office.must(&line("quorate ca issue"), &self.env);
        node.fetch(office, &format!("{}.bundle", name(at)));
        node.must(&line("quorate ca install"), &self.env);
    }
}

#[test]
fn a_cluster_is_bootstrapped_grows_shrinks_and_rotates_by_the_lines_of_the_guides() {
    let (root, tools, hosts) = (tempfile::tempdir().unwrap(), etcd("sid"), Hosts::in_network(NETWORK, 5));
    let machines = machines(&hosts, root.path(), &tools);
    let set = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    // The home of whoever works on a machine is its own, too.
    let env = vec![set("QUORATE_CA_PASSPHRASE_FILE", "/etc/quorate/ca.pass"), set("HOME", "/etc/quorate")];
    let mut site = Site { machines: &machines, env, agents: Vec::new() };
    let file = guide("found-a-cluster").block("```yaml\n# cluster.yaml");
    for machine in &machines {
        machine.write("ca.pass", b"correct horse\n");
        machine.write("cluster.yaml", file.as_bytes());
    }
    // The fifth machine has the authorities, and is no node.
    site.run(&[("certificates", "quorate ca init", &[4])]);
    (0..3).for_each(|at| site.certify(at, 4));
    let copied = guide("certificates").line("scp prod-1-ca/*-ca.key");
    assert_eq!(copied, "scp prod-1-ca/*-ca.key n1:/etc/quorate/pki/");
    for key in ["peer-ca.key", "client-ca.key", "agent-ca.key"] {
        machines[0].write(&format!("pki/{key}"), machines[4].must(&format!("cat prod-1-ca/{key}"), &[]).as_bytes());
    }
    machines[0].must("chmod 600 pki/*-ca.key", &[]);
    site.run(&[
        ("found-a-cluster", "quorate cluster check", &[0]),
        ("found-a-cluster", "quorate self check", &[0, 1, 2]),
    ]);
    site.start(("found-a-cluster", "quorate run", &[0, 1, 2]));
    let said = site.run(&[("found-a-cluster", "quorate cluster bootstrap", &[1])]);
    assert!(said.contains("every member serves"), "{said}");
    site.run(&[("certificates", "quorate ca status", &[0, 1, 2])]);
    // Who operates the cluster works on the first machine.
    site.run(&[("operators", "quorate ca issue --dir prod-1-ca --role admin", &[4])]);
    machines[0].must("install -d -m 700 .config/quorate/prod-1", &site.env);
    for file in ["operator.crt", "operator.key", "agent-ca.crt"] {
        machines[0].fetch(&machines[4], &format!(".config/quorate/prod-1/{file}"));
    }
    machines[0].must("chmod 600 .config/quorate/prod-1/operator.key", &[]);

    // A fourth node, by a file with one line more.
    let line = guide("grow").block("```yaml\nmembers:");
    let line = line.lines().find(|line| line.contains("n4")).unwrap().to_owned();
    let third = file.lines().find(|line| line.contains("name: n3")).unwrap();
    let new = file.replace(third, &format!("{third}\n{line}"));
    machines[0].write("new.yaml", new.as_bytes());
    [3, 4].into_iter().for_each(|at| machines[at].write("cluster.yaml", new.as_bytes()));
    site.certify(3, 4);
    site.run(&[("grow", "quorate cluster check new.yaml", &[0])]);
    // The certificate of a node is enough to read, and for nothing else on other nodes.
    machines[1].write("new.yaml", new.as_bytes());
    for (line, code) in
        [("cluster apply new.yaml --yes", "Q1501"), ("cluster drain n3 --leave --config cluster.yaml", "Q1500")]
    {
        let output = machines[1].run(&format!("quorate {line}"), &site.env);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(5) && said.contains(code), "{line}: {said}");
    }
    site.start(("grow", "quorate run --config /etc/quorate/cluster.yaml --name n4", &[3]));
    site.apply("grow", 0);
    let status = machines[1].must("quorate cluster status", &site.env);
    assert!(status.lines().next().unwrap().ends_with("healthy") && status.contains("n4"), "{status}");

    // The third one leaves, by name and then in the file.
    site.run(&[
        ("shrink", "quorate cluster drain n3 --config", &[0]),
        ("shrink", "quorate cluster drain n3 --stay", &[0]),
        ("shrink", "quorate cluster drain n3 --leave", &[0]),
    ]);
    assert!(site.agents[2].stop().success(), "{}", site.agents[2].log());
    let third = new.lines().find(|line| line.contains("name: n3")).unwrap();
    let new = new.replace(&format!("{third}\n"), "");
    machines[0].write("new.yaml", new.as_bytes());
    // The node that left does not answer any more.
    site.apply("shrink", 3);

    // The folder of authorities is brought to a node, and everything is signed anew; what the old keys signed is revoked.
    machines[0].must("install -d -m 700 prod-1-ca", &[]);
    for file in machines[4].must("ls prod-1-ca", &[]).lines() {
        machines[0].fetch(&machines[4], &format!("prod-1-ca/{file}"));
        machines[0].must(&format!("chmod 600 prod-1-ca/{file}"), &[]);
    }
    let said = site.run(&[("rotate", "quorate ca rotate --dir prod-1-ca --config cluster.yaml", &[0])]);
    assert!(said.contains("is done"), "{said}");
    machines[0].must("quorate ca rotate --dir prod-1-ca --status", &site.env);
    // Agents sign with the new keys from here on.
    site.run(&[("rotate", "rm prod-1-ca/", &[0]), ("rotate", "cp prod-1-ca/*-ca.key", &[0])]);
    site.run(&[("rotate", "quorate ca revoke n3", &[0])]);
    site.wait(("rotate", "quorate cluster status", &[1]), ": healthy");
}

#[test]
fn three_nodes_are_joined_by_the_lines_of_the_guide() {
    let (root, tools, hosts) = (tempfile::tempdir().unwrap(), etcd("sid"), Hosts::in_network(NETWORK, 3));
    let machines = machines(&hosts, root.path(), &tools);
    // A node's address is the one towards the default route.
    machines.iter().for_each(|machine| drop(machine.must("ip route add default via 10.0.0.250", &[])));
    let mut site = Site { machines: &machines, env: Vec::new(), agents: Vec::new() };
    site.start(("peers", "quorate run --standalone", &[0]));
    site.wait(("peers", "quorate peer list", &[0]), "n1");
    wait_until("n1 to serve", LIMIT, || machines[0].run("quorate status", &[]).status.success());
    for at in [1, 2] {
        let invited = site.run(&[("peers", "quorate peer invite --ttl 1h", &[0])]);
        machines[at].write("code", invited.lines().next().unwrap().as_bytes());
        let secret = invited.lines().find_map(|line| line.strip_prefix("secret: ")).unwrap();
        machines[at].write("secret", secret.as_bytes());
        // The code comes by stdin, as a person types it.
        let line = format!("{} < code", guide("peers").line("quorate peer join"));
        let secret = ("QUORATE_JOIN_SECRET_FILE".to_owned(), "/etc/quorate/secret".to_owned());
        machines[at].must(&line, &[secret]);
        site.start(("peers", "quorate run", if at == 1 { &[1] } else { &[2] }));
        site.wait(("peers", "quorate peer list", &[0]), &format!("{}    server  voter", name(at)));
    }
    // The change is closed a moment after the node votes.
    wait_until("the join to be over", LIMIT, || machines[0].run("quorate peer status", &[]).status.success());
    let said = site.run(&[("peers", "quorate peer list", &[0, 1, 2]), ("peers", "quorate peer status", &[0])]);
    assert!(!said.is_empty());
    machines[0].must(&guide("peers").inline("quorate ctl --config"), &[]);
    machines[0].must(&guide("peers").line("quorate peer detach n3"), &[]);
    site.wait(("peers", "quorate peer list", &[0]), "n2    server  voter");
    assert!(!machines[0].must("quorate peer list", &[]).contains("n3    server"));
}

/// An authority, and what it signs: a file of etcd's own documentation each.
struct Signer(CertifiedIssuer<'static, KeyPair>);

impl Signer {
    fn new() -> Signer {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Signer(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// `NAME.crt` and `NAME.key` on a machine; without a common name for its addresses.
    fn sign(&self, machine: &Machine, name: &str, common_name: Option<&str>, addresses: &[String]) {
        let mut leaf = CertificateParams::new(addresses.to_vec()).unwrap();
        leaf.distinguished_name = rcgen::DistinguishedName::new();
        if let Some(name) = common_name {
            leaf.distinguished_name.push(DnType::CommonName, name);
        }
        leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().unwrap();
        machine.write(&format!("/etc/etcd/{name}.crt"), leaf.signed_by(&key, &self.0).unwrap().pem().as_bytes());
        machine.write(&format!("/etc/etcd/{name}.key"), key.serialize_pem().as_bytes());
        machine.must(&format!("chmod 600 /etc/etcd/{name}.key"), &[]);
    }
}

/// etcd as its own documentation starts it, with the files that the guide's cluster file names.
fn etcd_by_hand(machine: &Machine, at: usize) -> Running {
    let (own, url) = (format!("10.0.0.{}", at + 1), |at: usize, port: u16| format!("https://10.0.0.{}:{port}", at + 1));
    let list: Vec<String> = (0..3).map(|at| format!("{}={}", name(at), url(at, 2380))).collect();
    let line = format!(
        "etcd --name {} --data-dir /var/lib/etcd --initial-cluster {} --initial-advertise-peer-urls {peer} --listen-peer-urls \
         {peer} --listen-client-urls {client},https://127.0.0.1:2379 --advertise-client-urls {client} --client-cert-auth \
         --peer-client-cert-auth --cert-file /etc/etcd/server.crt --key-file /etc/etcd/server.key --trusted-ca-file \
         /etc/etcd/ca.crt --peer-cert-file /etc/etcd/peer.crt --peer-key-file /etc/etcd/peer.key --peer-trusted-ca-file \
         /etc/etcd/peer-ca.crt",
        name(at),
        list.join(","),
        peer = format!("https://{own}:2380"),
        client = format!("https://{own}:2379"),
    );
    machine.start(&line, &[])
}

#[test]
fn a_cluster_that_others_made_is_adopted_by_the_lines_of_the_guide() {
    let (root, tools, hosts) = (tempfile::tempdir().unwrap(), etcd("sid"), Hosts::in_network(NETWORK, 3));
    let machines = machines(&hosts, root.path(), &tools);
    let (peers, clients) = (Signer::new(), Signer::new());
    let file = guide("adopt").block("```yaml\ntoken: prod-1");
    for (at, machine) in machines.iter().enumerate() {
        machine.must("mkdir -p /etc/etcd", &[]);
        let addresses = [format!("10.0.0.{}", at + 1), "127.0.0.1".to_owned(), "localhost".to_owned()];
        peers.sign(machine, "peer", None, &addresses);
        clients.sign(machine, "server", None, &addresses);
        clients.sign(machine, "admin", Some("admin"), &[]);
        machine.write("/etc/etcd/peer-ca.crt", peers.0.pem().as_bytes());
        machine.write("/etc/etcd/ca.crt", clients.0.pem().as_bytes());
        machine.write("cluster.yaml", file.as_bytes());
    }
    let _members: Vec<Running> = machines.iter().enumerate().map(|(at, machine)| etcd_by_hand(machine, at)).collect();
    let own = "--cacert /etc/etcd/ca.crt --cert /etc/etcd/admin.crt --key /etc/etcd/admin.key";
    let put = format!("etcdctl --endpoints https://127.0.0.1:2379 {own} put k v");
    wait_until("a write", LIMIT, || machines[0].run(&put, &[]).status.success());
    let mut site = Site { machines: &machines, env: Vec::new(), agents: Vec::new() };
    site.run(&[("adopt", "quorate cluster check", &[0])]);
    for at in [&[0][..], &[1], &[2]] {
        site.run(&[("adopt", "quorate cluster adopt", at)]);
        site.start(("adopt", "quorate run", at));
        site.wait(("adopt", "quorate status", at), "serving");
    }
    let get = format!("etcdctl --endpoints https://127.0.0.1:2379 {own} get k --print-value-only");
    assert_eq!(machines[2].must(&get, &[]), "v\n");
}
