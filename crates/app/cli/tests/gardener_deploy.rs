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
    // What is stopped as asked (exit code 0) is not started again by systemd.
    for line in ["Type=notify", "KillMode=process", "NoNewPrivileges=true", "Restart=on-failure", "LimitCORE=0"] {
        assert!(unit.lines().any(|other| other == line), "{line}");
    }
    // The guide shows these very lines, and all that decide over etcd's life.
    let guide = std::fs::read_to_string(project_root().join("docs/guide/agent.md")).unwrap();
    let (_, shown) = guide.split_once("```ini\n").unwrap();
    let shown: Vec<&str> = shown.split_once("```").unwrap().0.lines().collect();
    for line in &shown {
        assert!(unit.lines().any(|other| other == *line), "the guide shows `{line}`, which the unit does not have");
    }
    let decides = ["Type=", "Exec", "Kill", "Timeout", "Restart"];
    for line in unit.lines().filter(|line| decides.iter().any(|word| line.starts_with(word))) {
        assert!(shown.contains(&line) || line.starts_with("Restrict"), "the guide does not show `{line}`");
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

/// Of each place in a manifest, the keys that Kubernetes' API reference has for it and that are used here, with what stands
/// behind them. `!` must be there, `:` may. `s`, `n`, `b`: text, number, truth; `p`: a port by number or name; `q`: a quantity; `m`:
/// any keys with texts or quantities; `o`: an object, `l`: a list of objects or texts, each with a row of its own.
const FORMS: &[(&str, &str)] = &[
    ("ConfigMap", "apiVersion!s kind!s metadata!o data:m"),
    ("ConfigMap.metadata", "name!s labels:m annotations:m namespace:s"),
    ("Service", "apiVersion!s kind!s metadata!o spec!o"),
    ("Service.metadata", "name!s labels:m annotations:m namespace:s"),
    ("Service.spec", "selector!m ports!l clusterIP:s publishNotReadyAddresses:b type:s"),
    ("Service.spec.ports[]", "name:s port!n targetPort:p protocol:s"),
    ("NetworkPolicy", "apiVersion!s kind!s metadata!o spec!o"),
    ("NetworkPolicy.metadata", "name!s labels:m annotations:m namespace:s"),
    ("NetworkPolicy.spec", "podSelector!o policyTypes!l ingress:l egress:l"),
    ("NetworkPolicy.spec.podSelector", "matchLabels!m"),
    ("NetworkPolicy.spec.ingress[]", "from!l ports!l"),
    ("NetworkPolicy.spec.ingress[].from[]", "podSelector:o namespaceSelector:o ipBlock:o"),
    ("NetworkPolicy.spec.ingress[].from[].podSelector", "matchLabels!m"),
    ("NetworkPolicy.spec.ingress[].ports[]", "port!p protocol!s"),
    ("NetworkPolicy.spec.egress[]", "to!l ports!l"),
    ("NetworkPolicy.spec.egress[].to[]", "podSelector:o namespaceSelector:o ipBlock:o"),
    ("NetworkPolicy.spec.egress[].to[].podSelector", "matchLabels!m"),
    ("NetworkPolicy.spec.egress[].to[].namespaceSelector", "matchLabels!m"),
    ("NetworkPolicy.spec.egress[].to[].ipBlock", "cidr!s except:l"),
    ("NetworkPolicy.spec.egress[].ports[]", "port!p protocol!s"),
    ("StatefulSet", "apiVersion!s kind!s metadata!o spec!o"),
    ("StatefulSet.metadata", "name!s labels:m annotations:m namespace:s"),
    (
        "StatefulSet.spec",
        "selector!o serviceName!s template!o replicas:n podManagementPolicy:s volumeClaimTemplates:l updateStrategy:o",
    ),
    ("StatefulSet.spec.selector", "matchLabels!m"),
    ("StatefulSet.spec.template", "metadata!o spec!o"),
    ("StatefulSet.spec.template.metadata", "labels!m annotations:m"),
    (
        "StatefulSet.spec.template.spec",
        "containers!l volumes:l securityContext:o hostAliases:l automountServiceAccountToken:b \
         terminationGracePeriodSeconds:n",
    ),
    ("StatefulSet.spec.template.spec.hostAliases[]", "ip!s hostnames!l"),
    (
        "StatefulSet.spec.template.spec.securityContext",
        "runAsNonRoot:b runAsUser:n runAsGroup:n fsGroup:n seccompProfile:o",
    ),
    ("StatefulSet.spec.template.spec.securityContext.seccompProfile", "type!s localhostProfile:s"),
    (
        "StatefulSet.spec.template.spec.containers[]",
        "name!s image!s imagePullPolicy:s command:l args:l env:l ports:l readinessProbe:o livenessProbe:o resources:o securityContext:o \
         volumeMounts:l lifecycle:o",
    ),
    ("StatefulSet.spec.template.spec.containers[].env[]", "name!s value:s valueFrom:o"),
    ("StatefulSet.spec.template.spec.containers[].env[].valueFrom", "fieldRef!o"),
    ("StatefulSet.spec.template.spec.containers[].env[].valueFrom.fieldRef", "fieldPath!s apiVersion:s"),
    ("StatefulSet.spec.template.spec.containers[].ports[]", "containerPort!n name:s protocol:s"),
    (
        "StatefulSet.spec.template.spec.containers[].readinessProbe",
        "httpGet!o initialDelaySeconds:n periodSeconds:n failureThreshold:n successThreshold:n timeoutSeconds:n",
    ),
    ("StatefulSet.spec.template.spec.containers[].readinessProbe.httpGet", "port!p path:s scheme:s host:s"),
    ("StatefulSet.spec.template.spec.containers[].resources", "requests:m limits:m"),
    (
        "StatefulSet.spec.template.spec.containers[].securityContext",
        "allowPrivilegeEscalation:b readOnlyRootFilesystem:b capabilities:o privileged:b runAsNonRoot:b seccompProfile:o",
    ),
    ("StatefulSet.spec.template.spec.containers[].securityContext.seccompProfile", "type!s localhostProfile:s"),
    ("StatefulSet.spec.template.spec.containers[].securityContext.capabilities", "drop:l add:l"),
    ("StatefulSet.spec.template.spec.containers[].volumeMounts[]", "name!s mountPath!s readOnly:b subPath:s"),
    ("StatefulSet.spec.template.spec.volumes[]", "name!s emptyDir:m configMap:o secret:o"),
    ("StatefulSet.spec.template.spec.volumes[].configMap", "name!s defaultMode:n optional:b"),
    ("StatefulSet.spec.template.spec.volumes[].secret", "secretName!s items:l defaultMode:n optional:b"),
    ("StatefulSet.spec.template.spec.volumes[].secret.items[]", "key!s path!s mode:n"),
    ("StatefulSet.spec.volumeClaimTemplates[]", "metadata!o spec!o"),
    ("StatefulSet.spec.volumeClaimTemplates[].metadata", "name!s labels:m"),
    ("StatefulSet.spec.volumeClaimTemplates[].spec", "accessModes!l resources!o storageClassName:s volumeMode:s"),
    ("StatefulSet.spec.volumeClaimTemplates[].spec.resources", "requests!m limits:m"),
    ("PodDisruptionBudget", "apiVersion!s kind!s metadata!o spec!o"),
    ("PodDisruptionBudget.metadata", "name!s labels:m annotations:m namespace:s"),
    ("PodDisruptionBudget.spec", "selector!o minAvailable:p maxUnavailable:p"),
    ("PodDisruptionBudget.spec.selector", "matchLabels!m"),
    ("Container", "env:l lifecycle!o"),
    ("Container.env[]", "name!s value:s valueFrom:o"),
    ("Container.env[].valueFrom", "fieldRef!o"),
    ("Container.env[].valueFrom.fieldRef", "fieldPath!s apiVersion:s"),
    ("Container.lifecycle", "preStop!o"),
    ("Container.lifecycle.preStop", "exec!o"),
    ("Container.lifecycle.preStop.exec", "command!l"),
];

/// What is wrong with the form of a manifest, at `place`.
fn complaints(place: &str, value: &Value, said: &mut Vec<String>) {
    let Some((_, form)) = FORMS.iter().find(|(at, _)| *at == place) else {
        return said.push(format!("`{place}` is not in the table"));
    };
    let Some(object) = value.as_object() else { return said.push(format!("`{place}` is no object: {value}")) };
    let row = |word: &str| {
        let at = word.find(['!', ':']).unwrap();
        (word[..at].to_owned(), word[at..].to_owned())
    };
    let rows: Vec<(String, String)> = form.split_whitespace().map(row).collect();
    for (key, kind) in &rows {
        if kind.starts_with('!') && !object.contains_key(key) {
            said.push(format!("`{place}.{key}` is missing"));
        }
    }
    for (key, value) in object {
        let at = format!("{place}.{key}");
        let Some((_, kind)) = rows.iter().find(|(name, _)| name == key) else {
            said.push(format!("`{at}` is unknown"));
            continue;
        };
        let fits = match &kind[1..] {
            "s" => value.is_string(),
            "n" => value.is_u64(),
            "b" => value.is_boolean(),
            "p" | "q" => value.is_u64() || value.is_string(),
            "m" => value.as_object().is_some_and(|map| map.values().all(|one| one.is_string() || one.is_u64())),
            "o" => {
                complaints(&at, value, said);
                true
            }
            "l" => {
                for one in value.as_array().into_iter().flatten().filter(|one| !one.is_string()) {
                    complaints(&format!("{at}[]"), one, said);
                }
                value.is_array()
            }
            other => panic!("{other}"),
        };
        if !fits {
            said.push(format!("`{at}` has the wrong form: {value}"));
        }
    }
}

fn complaints_about(manifest: &Value) -> Vec<String> {
    let mut said = Vec::new();
    complaints(manifest["kind"].as_str().unwrap_or("Container"), manifest, &mut said);
    said
}

/// The same with one key misspelt, for each key that is not the operator's own to choose.
fn misspelt(value: &Value) -> Vec<Value> {
    let with = |object: &serde_json::Map<String, Value>, key: &str, new: Value, name: &str| {
        let pairs = object.iter().filter(|(other, _)| *other != key);
        let pairs = pairs.map(|(name, value)| (name.clone(), value.clone()));
        Value::Object(pairs.chain([(name.to_owned(), new)]).collect())
    };
    match value {
        Value::Object(object) => {
            let mut all = Vec::new();
            for (key, inside) in object {
                all.push(with(object, key, inside.clone(), &format!("{}x", &key[..key.len() - 1])));
                let free = ["labels", "matchLabels", "data", "requests", "limits", "emptyDir"].contains(&key.as_str());
                let selects = key == "selector" && inside.get("matchLabels").is_none();
                if !free && !selects {
                    all.extend(misspelt(inside).into_iter().map(|inside| with(object, key, inside, key)));
                }
            }
            all
        }
        Value::Array(list) => {
            let one = |(at, inside): (usize, &Value)| {
                let replaced = move |new: Value| {
                    let mut list = list.clone();
                    list[at] = new;
                    Value::Array(list)
                };
                misspelt(inside).into_iter().map(replaced).collect::<Vec<_>>()
            };
            list.iter().enumerate().flat_map(one).collect()
        }
        _ => Vec::new(),
    }
}

#[test]
fn no_key_of_a_manifest_can_be_misspelt() {
    let (mut tried, hook) = (0, hook());
    for manifest in manifests().iter().chain([&hook]) {
        assert_eq!(complaints_about(manifest), [] as [&str; 0]);
        for wrong in misspelt(manifest) {
            tried += 1;
            // A kind that nobody knows is not looked at as one.
            let named = wrong.get("kind").is_some() || manifest.get("kind").is_none();
            assert!(!named || !complaints_about(&wrong).is_empty(), "{wrong}");
        }
    }
    assert!(tried > 200, "{tried}");
}

#[test]
fn manifests_have_the_form_that_kubernetes_asks_for() {
    for manifest in manifests() {
        let version = match manifest["kind"].as_str().unwrap() {
            "ConfigMap" | "Service" => "v1",
            "StatefulSet" => "apps/v1",
            "PodDisruptionBudget" => "policy/v1",
            "NetworkPolicy" => "networking.k8s.io/v1",
            other => panic!("{other}"),
        };
        assert_eq!(manifest["apiVersion"], version);
    }
    let set = of_kind("StatefulSet");
    let spec = &set["spec"];
    assert_eq!(spec["selector"]["matchLabels"], spec["template"]["metadata"]["labels"]);
    let services: Vec<Value> = manifests().into_iter().filter(|manifest| manifest["kind"] == "Service").collect();
    assert!(services.iter().any(|service| service["metadata"]["name"] == spec["serviceName"]));
    for service in &services {
        assert_eq!(service["spec"]["selector"], spec["template"]["metadata"]["labels"]);
    }
    let pod = &spec["template"]["spec"];
    let name = |value: &Value| value["name"].as_str().unwrap().to_owned();
    let volumes = pod["volumes"].as_array().unwrap().iter().map(name);
    let claims = spec["volumeClaimTemplates"].as_array().unwrap().iter().map(|claim| name(&claim["metadata"]));
    let volumes: BTreeSet<String> = volumes.chain(claims).collect();
    let mut used = BTreeSet::new();
    for container in pod["containers"].as_array().unwrap() {
        assert_eq!(container["securityContext"]["readOnlyRootFilesystem"], true);
        let mut places = BTreeSet::new();
        for mount in container["volumeMounts"].as_array().unwrap() {
            assert!(volumes.contains(&name(mount)), "{mount}");
            assert!(places.insert(mount["mountPath"].to_string()), "{mount}");
            used.insert(name(mount));
        }
    }
    assert_eq!(used, volumes, "every volume is mounted");
}

#[test]
fn an_image_is_pinned_and_its_container_has_no_rights_and_limited_resources() {
    let set = of_kind("StatefulSet");
    let pod = &set["spec"]["template"]["spec"];
    assert_eq!(pod["automountServiceAccountToken"], false);
    let whole = &pod["securityContext"];
    assert_eq!((&whole["runAsNonRoot"], &whole["seccompProfile"]["type"]), (&true.into(), &"RuntimeDefault".into()));
    assert!(whole["runAsUser"].as_u64() > Some(0) && whole["runAsGroup"].as_u64() > Some(0), "{whole}");
    for container in pod["containers"].as_array().unwrap() {
        let image = container["image"].as_str().unwrap();
        let digest = image.split_once("@sha256:").map(|(_, digest)| digest);
        let pinned = match digest {
            Some(digest) => digest.len() == 64 && digest.bytes().all(|byte| byte.is_ascii_hexdigit()),
            None => image.rsplit_once(':').is_some_and(|(_, tag)| tag == env!("CARGO_PKG_VERSION")),
        };
        assert!(pinned, "{image} is neither a digest nor the release that it came with");
        let locked = &container["securityContext"];
        for (key, value) in [
            ("allowPrivilegeEscalation", false),
            ("privileged", false),
            ("readOnlyRootFilesystem", true),
            ("runAsNonRoot", true),
        ] {
            assert_eq!(locked[key], value, "{key}: {container}");
        }
        assert_eq!(words(&locked["capabilities"]["drop"]), ["ALL"]);
        assert!(locked["capabilities"].get("add").is_none(), "{locked}");
        assert_eq!(locked["seccompProfile"]["type"], "RuntimeDefault");
        for kind in ["requests", "limits"] {
            for what in ["cpu", "memory"] {
                assert!(container["resources"][kind][what].is_string(), "no {kind} of {what}: {container}");
            }
        }
    }
    // Who reads the file learns how to pin a digest.
    let text = std::fs::read_to_string(project_root().join("deploy/kubernetes/etcd.yaml")).unwrap();
    assert!(text.contains("RepoDigests") && text.contains("@sha256:DIGEST") && !text.contains(":latest"));
}

#[test]
fn clients_peers_and_sidecar_have_authorities_of_their_own() {
    let set = of_kind("StatefulSet");
    let pod = &set["spec"]["template"]["spec"];
    let volumes = pod["volumes"].as_array().unwrap();
    // The secret behind a path of a container.
    let secret = |container: &Value, path: &std::path::Path| {
        let mounts = container["volumeMounts"].as_array().unwrap();
        let at = path.parent().unwrap().to_str().unwrap();
        let mount =
            mounts.iter().find(|mount| mount["mountPath"] == at).unwrap_or_else(|| panic!("{at} is not mounted"));
        assert_eq!(mount["readOnly"], true, "{mount}");
        let volume = volumes.iter().find(|volume| volume["name"] == mount["name"]).unwrap();
        volume["secret"]["secretName"].as_str().unwrap().to_owned()
    };
    let (wrapper, beside) = (&pod["containers"][0], &pod["containers"][1]);
    let flag = |container: &Value, name: &str| {
        let found = words(&container["args"]).into_iter().find_map(|word| Some(word.strip_prefix(name)?.to_owned()));
        std::path::PathBuf::from(found.unwrap_or_else(|| panic!("no {name}")))
    };
    let config = of_kind("ConfigMap")["data"]["etcd.conf.yaml"].as_str().unwrap().to_owned();
    let config = EtcdYaml::parse(&config, "the manifest").unwrap();
    let of_etcd = |section: &str| secret(wrapper, &config.certificates(section).ca.unwrap());
    let (client, peer) = (of_etcd("client-transport-security"), of_etcd("peer-transport-security"));
    let sidecar = secret(beside, &flag(beside, "--server-client-ca="));
    assert_eq!(BTreeSet::from([&client, &peer, &sidecar]).len(), 3, "{client} {peer} {sidecar}");
    assert_eq!(secret(beside, &flag(beside, "--cacert=")), client);
    assert_eq!(secret(wrapper, &flag(wrapper, "--backup-restore-ca-cert-bundle-path=")), sidecar);
    // The pod gets certificates of authorities and no keys of them; each kind of certificate requires its own name.
    for volume in volumes
        .iter()
        .filter(|volume| volume["secret"]["secretName"].as_str().is_some_and(|name| name.contains("-ca-")))
    {
        assert_eq!(volume["secret"]["items"], serde_json::json!([{ "key": "ca.crt", "path": "ca.crt" }]));
    }
    let names = ["client-transport-security", "peer-transport-security"].map(|section| {
        let section = config.get(section).unwrap();
        assert_eq!(section["client-cert-auth"], true);
        words(&section["allowed-hostname"])
    });
    assert!(names.iter().all(|names| names.len() == 1) && names[0] != names[1], "{names:?}");
}

#[test]
fn nobody_but_those_who_need_it_reaches_a_port() {
    let (policy, set) = (of_kind("NetworkPolicy"), of_kind("StatefulSet"));
    let labels = &set["spec"]["template"]["metadata"]["labels"];
    assert_eq!(&policy["spec"]["podSelector"]["matchLabels"], labels);
    assert_eq!(words(&policy["spec"]["policyTypes"]), ["Ingress", "Egress"]);
    let mut open = BTreeSet::new();
    for rule in policy["spec"]["ingress"].as_array().unwrap() {
        for from in rule["from"].as_array().unwrap() {
            // A rule without labels lets everyone in.
            let selected = from["podSelector"]["matchLabels"].as_object().unwrap();
            assert!(!selected.is_empty());
            for port in rule["ports"].as_array().unwrap() {
                open.insert((port["port"].as_u64().unwrap(), &from["podSelector"]["matchLabels"] == labels));
            }
        }
    }
    // Between members all of them; clients reach etcd and the sidecar, never the port of peers.
    assert_eq!(open, BTreeSet::from([(2379, true), (2380, true), (8080, true), (2379, false), (8080, false)]));
    for rule in policy["spec"]["egress"].as_array().unwrap() {
        assert!(!rule["to"].as_array().unwrap().is_empty() && !rule["ports"].as_array().unwrap().is_empty(), "{rule}");
    }
}

fn hook() -> Value {
    let text = std::fs::read_to_string(project_root().join("deploy/kubernetes/pre-stop.yaml")).unwrap();
    serde_saphyr::from_str(&text).unwrap()
}

#[test]
fn the_hook_has_the_form_that_kubernetes_asks_for() {
    let container = hook();
    let command = words(&container["lifecycle"]["preStop"]["exec"]["command"]);
    assert_eq!(command[..2], ["/usr/bin/quorate", "drain"]);
    // A variable in a command is one that the container has.
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
