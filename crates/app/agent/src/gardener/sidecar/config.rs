//! `/config`: the mounted configuration of all members, made that of one.
//!
//! **Rule:** it is a function of the file, of this pod's name, and of who lives; nothing is asked over the network when one
//! member is all there is.

use quorate_faults::{Code, Fault, Result};
use serde_json::Value;

use crate::gardener::etcd_yaml::EtcdYaml;

/// A member of the running cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Live {
    pub(super) id: u64,
    /// Empty before its first start.
    pub(super) name: String,
    pub(super) learner: bool,
    pub(super) peer_urls: Vec<String>,
    pub(super) client_urls: Vec<String>,
}

/// Names in `initial-cluster`, each once, in their order.
pub(super) fn declared(yaml: &EtcdYaml) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for entry in yaml.text("initial-cluster").unwrap_or_default().split(',') {
        let name = entry.split_once('=').map_or("", |(name, _)| name.trim());
        if !name.is_empty() && !names.iter().any(|known| known == name) {
            names.push(name.to_owned());
        }
    }
    names
}

/// The name of this member.
pub(super) fn name(yaml: &EtcdYaml, pod: Option<&str>) -> Result<String> {
    match (pod, yaml.text("member-name-prefix")) {
        (Some(pod), Some(prefix)) => Ok(format!("{prefix}-{pod}")),
        (Some(pod), None) => Ok(pod.to_owned()),
        (None, _) => yaml.text("name").ok_or_else(|| {
            Fault::new(Code::GardenerConfig, "cannot tell which member this is: POD_NAME is not set")
                .hint("set POD_NAME, or `name` in etcd's configuration")
        }),
    }
}

/// This member's peer URLs.
pub(super) fn peer_urls(yaml: &EtcdYaml, pod: Option<&str>) -> Result<Vec<String>> {
    let name = name(yaml, pod)?;
    let urls = urls(yaml, "initial-advertise-peer-urls", &name, pod)?.unwrap_or_default();
    Ok(urls.split(',').map(str::trim).filter(|url| !url.is_empty()).map(str::to_owned).collect())
}

/// The configuration of this member. `live`: who is in the running cluster, where that is known.
pub(super) fn merge(mut yaml: EtcdYaml, pod: Option<&str>, live: Option<&[Live]>) -> Result<EtcdYaml> {
    let name = name(&yaml, pod)?;
    for key in ["initial-advertise-peer-urls", "advertise-client-urls"] {
        if let Some(urls) = urls(&yaml, key, &name, pod)? {
            yaml.set(key, urls);
        }
    }
    let size = declared(&yaml).len();
    let live = live.unwrap_or_default();
    if live.len() > 1 {
        let stays = |entry: &&str| {
            let named = entry.split_once('=').map_or("", |(name, _)| name.trim());
            named == name || live.iter().any(|member| member.name == named)
        };
        let cluster = yaml.text("initial-cluster").unwrap_or_default();
        let kept: Vec<&str> = cluster.split(',').filter(stays).collect();
        yaml.set("initial-cluster", kept.join(","));
    }
    let joins = size > 1 && live.iter().any(|member| member.learner || member.name.is_empty());
    yaml.set("initial-cluster-state", if joins { "existing" } else { "new" });
    yaml.set("name", name);
    Ok(yaml)
}

/// URLs of this member under a key that holds a text, a list, or a map from names to lists.
fn urls(yaml: &EtcdYaml, key: &str, name: &str, pod: Option<&str>) -> Result<Option<String>> {
    let all = match yaml.get(key) {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::Object(members)) => {
            let own = members.get(name).or_else(|| members.get(pod?));
            own.ok_or_else(|| {
                let what = format!("cannot use `{key}` of etcd's configuration: it has no URLs for `{name}`");
                Fault::new(Code::GardenerConfig, what).hint("give every member its list")
            })?
        }
        Some(other) => other,
    };
    let text = match all {
        Value::String(text) => text.clone(),
        Value::Array(list) => list.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(","),
        _ => String::new(),
    };
    Ok(Some(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    const THREE: &str = "\
data-dir: /var/etcd/data/new.etcd
name: etcd-config
initial-cluster: etcd-0=https://a:2380,etcd-1=https://b:2380,etcd-2=https://c:2380
initial-cluster-state: new
initial-advertise-peer-urls:
  etcd-0: [https://a:2380]
  etcd-1: [https://b:2380, https://b2:2380]
  etcd-2: [https://c:2380]
advertise-client-urls:
  etcd-1: [https://b:2379]
snapshot-count: 75000
";

    fn merged(text: &str, pod: Option<&str>, live: Option<&[Live]>) -> Result<EtcdYaml> {
        merge(EtcdYaml::parse(text, "a test").unwrap(), pod, live)
    }

    fn live(names: &[(&str, bool)]) -> Vec<Live> {
        let member = |(name, learner): &(&str, bool)| Live {
            id: 1,
            name: (*name).to_owned(),
            learner: *learner,
            peer_urls: Vec::new(),
            client_urls: Vec::new(),
        };
        names.iter().map(member).collect()
    }

    #[test]
    fn the_lists_of_all_become_the_texts_of_one() {
        let yaml = merged(THREE, Some("etcd-1"), None).unwrap();
        assert_eq!(yaml.text("name").as_deref(), Some("etcd-1"));
        assert_eq!(yaml.text("initial-advertise-peer-urls").as_deref(), Some("https://b:2380,https://b2:2380"));
        assert_eq!(yaml.text("advertise-client-urls").as_deref(), Some("https://b:2379"));
        assert_eq!(yaml.text("initial-cluster-state").as_deref(), Some("new"));
        assert_eq!(yaml.text("snapshot-count").as_deref(), Some("75000"));
        assert_eq!(merged(THREE, Some("etcd-0"), None).unwrap_err().code(), Code::GardenerConfig);
    }

    #[test]
    fn a_prefix_comes_before_the_pods_name() {
        let text = "name: x\nmember-name-prefix: west\ninitial-cluster: west-etcd-0=http://a:2380\n\
                    initial-advertise-peer-urls: {west-etcd-0: [http://a:2380]}";
        let yaml = merged(text, Some("etcd-0"), None).unwrap();
        assert_eq!(yaml.text("name").as_deref(), Some("west-etcd-0"));
        assert_eq!(merged("name: x", None, None).unwrap().text("name").as_deref(), Some("x"));
        assert!(merged("data-dir: /x", None, None).is_err());
    }

    #[test]
    fn a_running_cluster_is_joined_by_those_that_are_in_it() {
        let there = live(&[("etcd-0", false), ("etcd-1", true)]);
        let yaml = merged(THREE, Some("etcd-1"), Some(&there)).unwrap();
        assert_eq!(yaml.text("initial-cluster").as_deref(), Some("etcd-0=https://a:2380,etcd-1=https://b:2380"));
        assert_eq!(yaml.text("initial-cluster-state").as_deref(), Some("existing"));
        let awaited = merged(THREE, Some("etcd-1"), Some(&live(&[("etcd-0", false), ("", true)]))).unwrap();
        assert_eq!(awaited.render(), yaml.render(), "a member has no name before its first start");
        // A list of one is no reason to leave anybody out.
        let yaml = merged(THREE, Some("etcd-1"), Some(&live(&[("etcd-0", false)]))).unwrap();
        assert!(yaml.text("initial-cluster").unwrap().contains("etcd-2"));
        assert_eq!(yaml.text("initial-cluster-state").as_deref(), Some("new"));
    }

    #[test]
    fn members_are_counted_by_name() {
        let yaml = EtcdYaml::parse(THREE, "a test").unwrap();
        assert_eq!(declared(&yaml), ["etcd-0", "etcd-1", "etcd-2"]);
        let twice = EtcdYaml::parse("initial-cluster: a=http://x:1,a=http://y:1", "a test").unwrap();
        assert_eq!(declared(&twice), ["a"]);
        assert_eq!(peer_urls(&yaml, Some("etcd-2")).unwrap(), ["https://c:2380"]);
    }
}
