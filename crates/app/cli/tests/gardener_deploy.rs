//! The files in `deploy/`: the unit as systemd reads it, the manifests by their form, and their flags by the programs that
//! take them. No systemd and no Kubernetes runs here.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use std::collections::BTreeSet;
use std::process::Command;

use quorate_agent::gardener::etcd_yaml::EtcdYaml;
use quorate_agent::gardener::{sidecar, wrap};
use quorate_testkit::{project_root, quorate};
use serde_json::Value;

#[test]
fn systemd_takes_the_unit_without_a_word() {
    let unit = std::fs::read_to_string(project_root().join("deploy/systemd/quorate@.service")).unwrap();
    for line in ["Type=notify", "KillMode=process", "NoNewPrivileges=true", "RestartPreventExitStatus=4 5 64"] {
        assert!(unit.lines().any(|other| other == line), "{line}");
    }
    // Only the program's place differs from what is installed: systemd looks whether it is there.
    let dir = tempfile::tempdir().unwrap();
    put(&dir.path().join("quorate@.service"), &unit.replace("/usr/bin/quorate", &quorate().display().to_string()));
    let said = verified(dir.path());
    assert!(said.is_empty(), "{said}");
    // The same with what makes its boxes strict. It is read: a word that systemd does not know would be named.
    let beside = "deploy/systemd/quorate@.service.d/strict.conf";
    let strict = std::fs::read_to_string(project_root().join(beside)).unwrap();
    std::fs::create_dir(dir.path().join("quorate@.service.d")).unwrap();
    let installed = dir.path().join("quorate@.service.d/strict.conf");
    put(&installed, &strict);
    let said = verified(dir.path());
    assert!(said.is_empty(), "{said}");
    put(&installed, &format!("{strict}NoSuchWord=1\n"));
    let said = verified(dir.path());
    assert!(said.contains("NoSuchWord"), "{said}");
}

fn put(path: &std::path::Path, text: &str) {
    #[expect(clippy::disallowed_methods, reason = "a test's own file")]
    std::fs::write(path, text).unwrap();
}

/// What systemd says about the unit.
fn verified(dir: &std::path::Path) -> String {
    let output =
        Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(dir.join("quorate@.service")).output();
    let output = output.unwrap_or_else(|error| panic!("`systemd-analyze` is missing: run `make tools` ({error})"));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() || !said.is_empty(), "{output:?}");
    said
}

fn manifests() -> Vec<Value> {
    let text = std::fs::read_to_string(project_root().join("deploy/kubernetes/etcd.yaml")).unwrap();
    // Each document by itself, as kubectl reads them.
    text.split("\n---\n").map(|document| serde_saphyr::from_str(document).unwrap()).collect()
}

fn of_kind(kind: &str) -> Value {
    manifests().into_iter().find(|manifest| manifest["kind"] == kind).unwrap_or_else(|| panic!("no {kind}"))
}

fn words(list: &Value) -> Vec<String> {
    list.as_array().unwrap().iter().map(|word| word.as_str().unwrap().to_owned()).collect()
}

/// Keys that the API knows at this place, and those that must be there.
#[track_caller]
fn has_form(place: &Value, known: &[&str], needed: &[&str]) {
    let keys: BTreeSet<&str> = place.as_object().unwrap().keys().map(String::as_str).collect();
    for key in &keys {
        assert!(known.contains(key) || needed.contains(key), "`{key}` is unknown in {place}");
    }
    for key in needed {
        assert!(keys.contains(key), "`{key}` is missing in {place}");
    }
}

#[test]
fn manifests_have_the_form_that_kubernetes_asks_for() {
    for manifest in manifests() {
        has_form(&manifest, &["spec", "data"], &["apiVersion", "kind", "metadata"]);
        has_form(&manifest["metadata"], &["labels"], &["name"]);
        let version = match manifest["kind"].as_str().unwrap() {
            "ConfigMap" | "Service" => "v1",
            "StatefulSet" => "apps/v1",
            "PodDisruptionBudget" => "policy/v1",
            other => panic!("{other}"),
        };
        assert_eq!(manifest["apiVersion"], version);
    }
    let set = of_kind("StatefulSet");
    let spec = &set["spec"];
    has_form(
        spec,
        &["replicas", "podManagementPolicy", "volumeClaimTemplates"],
        &["selector", "serviceName", "template"],
    );
    assert_eq!(spec["selector"]["matchLabels"], spec["template"]["metadata"]["labels"]);
    let services: Vec<Value> = manifests().into_iter().filter(|manifest| manifest["kind"] == "Service").collect();
    assert!(services.iter().any(|service| service["metadata"]["name"] == spec["serviceName"]));
    for service in &services {
        assert_eq!(service["spec"]["selector"], spec["template"]["metadata"]["labels"]);
        has_form(&service["spec"], &["clusterIP", "publishNotReadyAddresses"], &["ports", "selector"]);
    }
    let pod = &spec["template"]["spec"];
    let known =
        ["automountServiceAccountToken", "terminationGracePeriodSeconds", "hostAliases", "securityContext", "volumes"];
    has_form(pod, &known, &["containers"]);
    let name = |value: &Value| value["name"].as_str().unwrap().to_owned();
    let volumes = pod["volumes"].as_array().unwrap().iter().map(name);
    let claims = spec["volumeClaimTemplates"].as_array().unwrap().iter().map(|claim| name(&claim["metadata"]));
    let volumes: BTreeSet<String> = volumes.chain(claims).collect();
    let mut used = BTreeSet::new();
    for container in pod["containers"].as_array().unwrap() {
        let known =
            ["args", "command", "env", "ports", "readinessProbe", "resources", "securityContext", "volumeMounts"];
        has_form(container, &known, &["name", "image"]);
        assert_eq!(container["securityContext"]["readOnlyRootFilesystem"], true);
        let mut places = BTreeSet::new();
        for mount in container["volumeMounts"].as_array().unwrap() {
            has_form(mount, &["readOnly"], &["name", "mountPath"]);
            assert!(volumes.contains(&name(mount)), "{mount}");
            assert!(places.insert(mount["mountPath"].to_string()), "{mount}");
            used.insert(name(mount));
        }
        for variable in container["env"].as_array().unwrap() {
            has_form(variable, &["value", "valueFrom"], &["name"]);
        }
    }
    assert_eq!(used, volumes, "every volume is mounted");
}

#[test]
fn the_hook_has_the_form_that_kubernetes_asks_for() {
    let text = std::fs::read_to_string(project_root().join("deploy/kubernetes/pre-stop.yaml")).unwrap();
    let container: Value = serde_saphyr::from_str(&text).unwrap();
    has_form(&container, &["env"], &["lifecycle"]);
    has_form(&container["lifecycle"], &[], &["preStop"]);
    has_form(&container["lifecycle"]["preStop"], &[], &["exec"]);
    has_form(&container["lifecycle"]["preStop"]["exec"], &[], &["command"]);
    let command = words(&container["lifecycle"]["preStop"]["exec"]["command"]);
    assert_eq!(command[..2], ["/usr/bin/quorate", "drain"]);
    // A variable in a command is one that the container has.
    for variable in container["env"].as_array().unwrap() {
        has_form(variable, &["value", "valueFrom"], &["name"]);
    }
    let known = |word: &str| container["env"].as_array().unwrap().iter().any(|one| one["name"] == word);
    for word in &command {
        if let Some(variable) = word.strip_prefix("$(").and_then(|word| word.strip_suffix(')')) {
            assert!(known(variable), "{variable}");
        }
    }
}

#[test]
fn the_flags_of_the_manifests_are_understood() {
    let set = of_kind("StatefulSet");
    let containers = &set["spec"]["template"]["spec"]["containers"];
    let environment = |container: &Value| {
        let pairs = container["env"].as_array().unwrap().iter();
        let pairs = pairs.filter_map(|one| Some((one["name"].as_str()?.to_owned(), one["value"].as_str()?.to_owned())));
        pairs.collect::<std::collections::BTreeMap<String, String>>()
    };
    let (wrapper, beside) = (&containers[0], &containers[1]);
    assert_eq!(words(&wrapper["command"])[1..], ["wrap", "start-etcd"]);
    let env = environment(wrapper);
    let read = wrap::Settings::read(&words(&wrapper["args"]), |name| env.get(name).cloned()).unwrap();
    assert_eq!(wrapper["readinessProbe"]["httpGet"]["port"].as_u64(), Some(read.port.into()));
    assert_eq!(words(&beside["command"])[1..], ["sidecar", "server"]);
    let env = environment(beside);
    let told = sidecar::Settings::read(&words(&beside["args"]), |name| env.get(name).cloned()).unwrap();
    assert!(told.notes.iter().all(|note| note.contains("not mounted")), "{:?}", told.notes);
    assert_eq!(told.store.unwrap().url, "s3://etcd-backups/etcd-main");
    // What etcd is told agrees with what is validated, and with the certificates of the probe.
    let config = of_kind("ConfigMap")["data"]["etcd.conf.yaml"].as_str().unwrap().to_owned();
    let config = EtcdYaml::parse(&config, "the manifest").unwrap();
    assert_eq!(config.data_dir(), Some(told.data_dir));
    assert!(config.client_tls());
    assert_eq!(wrapper["readinessProbe"]["httpGet"]["scheme"], "HTTPS");
}
