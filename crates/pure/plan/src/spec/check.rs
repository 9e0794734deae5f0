//! Checks the parts of the cluster file against each other.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::places::host_place;
use super::read::Reader;
use super::sections::Places;
use super::{At, Metrics, Spec, Value};

use crate::Warning;
use crate::certificates::host_of;
use crate::etcd_config;
use crate::roster::{check_url, quoted};

pub(super) fn whole(reader: &mut Reader<'_>, spec: &Spec, places: &Places) -> Vec<Warning> {
    names_and_urls(reader, spec, places);
    schemes(reader, spec, places);
    directories(reader, spec, places);
    agents(reader, spec, places);
    limits(reader, spec, places);
    if reader.has_mistakes() || !spec.is_resolved() {
        return Vec::new();
    }
    // The same rules as for every other list of members; what is left of them are warnings.
    match spec.roster("the cluster file").and_then(|roster| roster.check()) {
        Ok(warnings) => warnings,
        Err(fault) => {
            let at = places.members.first().map(|place| place.at).unwrap_or_default();
            reader.wrong(at, "members", fault.to_string(), fault.hint_text().map(ToOwned::to_owned));
            Vec::new()
        }
    }
}

fn names_and_urls(reader: &mut Reader<'_>, spec: &Spec, places: &Places) {
    let mut names: BTreeMap<&str, ()> = BTreeMap::new();
    let mut spots: BTreeMap<String, &str> = BTreeMap::new();
    for (member, place) in spec.members.iter().zip(&places.members) {
        if names.insert(&member.name, ()).is_some() && !member.name.is_empty() {
            let what = format!("two members are named {}", quoted(&member.name));
            reader.wrong(place.name, "members", what, Some("give each its own name".into()));
        }
        if member.name.contains(['/', '{', '}']) || matches!(member.name.as_str(), "." | "..") {
            let what = format!("member name {} cannot be part of a path", quoted(&member.name));
            reader.wrong(place.name, "members", what, Some("use letters, digits, `-` and `.`".into()));
        }
        for url in &member.peer_urls {
            let Ok(checked) = check_url(url) else { continue };
            if let Some(other) = spots.insert(checked.place, &member.name) {
                let what = format!("peer URL {} belongs to {} already", quoted(url), quoted(other));
                reader.wrong(place.urls, "members", what, Some("every peer URL belongs to one member".into()));
            }
        }
    }
}

/// With TLS everything is https; what is to be http is asked for by name.
fn schemes(reader: &mut Reader<'_>, spec: &Spec, places: &Places) {
    let plaintext = spec.is_plaintext();
    for (member, place) in spec.members.iter().zip(&places.members) {
        let urls = [&member.peer_urls, &member.client_urls, &member.listen_peer_urls, &member.listen_client_urls];
        let wrong = urls.into_iter().flatten().find(|url| is_tls(url) == plaintext);
        let Some(url) = wrong else { continue };
        let (what, hint) = match plaintext {
            true => ("is for TLS, and `plaintext: true` is asked for", "write `http://`, or give `tls:`"),
            false => ("is in the clear, and `tls` is given", "write `https://`"),
        };
        reader.wrong(place.urls, "members", format!("URL {} {what}", quoted(url)), Some(hint.into()));
    }
    for (member, place) in spec.members.iter().zip(&places.members) {
        let urls = [("agent-url", &member.agent_url), ("listen-agent-url", &member.listen_agent_url)];
        for (key, url) in urls {
            let wrong = url.as_ref().is_some_and(|url| is_tls(url) == plaintext);
            if wrong {
                scheme_of_agent(reader, key, place.agent, plaintext)
            }
        }
        if plaintext && member.listen_health_url.as_ref().is_some_and(|url| is_tls(url)) {
            scheme_of_agent(reader, "listen-health-url", place.agent, plaintext);
        }
    }
    if is_tls(&spec.agent.api_listen) == plaintext {
        scheme_of_agent(reader, "api-listen", places.agent, plaintext);
    }
    if plaintext && is_tls(&spec.agent.health_listen) {
        scheme_of_agent(reader, "health-listen", places.agent, plaintext);
    }
    if !plaintext && spec.agent.metrics == Metrics::Closed {
        in_the_clear(reader, spec, places);
    }
}

/// Health and metrics may be told in the clear on this machine alone, but for metrics that are open to anyone.
fn in_the_clear(reader: &mut Reader<'_>, spec: &Spec, places: &Places) {
    let hint = "write `https://`, or listen on loopback; `agent: {metrics: open}` says that anyone may read them";
    let mut wrong = |at: At, path: &str, url: &str| {
        if is_tls(url) || is_of_this_machine(url) {
            return;
        }
        let what = format!("{} is in the clear for other machines, and `tls` is given", quoted(url));
        reader.wrong(at, path, what, Some(hint.into()));
    };
    wrong(places.agent, "agent.health-listen", &spec.agent.health_listen);
    for (member, place) in spec.members.iter().zip(&places.members) {
        if let Some(url) = &member.listen_health_url {
            wrong(place.agent, "members.listen-health-url", url);
        }
    }
    for setting in spec.etcd.iter().filter(|setting| setting.key == "listen-metrics-urls") {
        let urls: Vec<&str> = match &setting.value {
            Value::Text(text) => text.split(',').map(str::trim).collect(),
            Value::List(urls) => urls.iter().map(String::as_str).collect(),
            Value::Flag(_) | Value::Number(_) => Vec::new(),
        };
        urls.into_iter().for_each(|url| wrong(setting.at, "etcd.listen-metrics-urls", url));
    }
}

fn is_of_this_machine(url: &str) -> bool {
    let host = host_of(url).unwrap_or_default();
    url.starts_with("unix://") || host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

fn scheme_of_agent(reader: &mut Reader<'_>, key: &str, at: At, plaintext: bool) {
    let (what, hint) = match plaintext {
        true => ("is for TLS, and `plaintext: true` is asked for", "write `http://`"),
        false => ("is in the clear, and `tls` is given", "write `https://`"),
    };
    let path = if key.ends_with("url") { format!("members.{key}") } else { format!("agent.{key}") };
    reader.wrong(at, &path, format!("`{key}` {what}"), Some(hint.into()));
}

/// Two members of one machine must not share an address of their agents.
fn agents(reader: &mut Reader<'_>, spec: &Spec, places: &Places) {
    let mut taken: BTreeMap<(String, String), &str> = BTreeMap::new();
    for (member, place) in spec.members.iter().zip(&places.members) {
        let (api, health) = (spec.api_listen_of(member), spec.health_listen_of(member));
        let listens = [("listen-agent-url", api), ("listen-health-url", health)];
        for (key, url) in listens {
            let Ok(checked) = check_url(&url) else { continue };
            let Some(other) = taken.insert((host_place(member), checked.place), &member.name) else { continue };
            let (what, hint) = if other == member.name {
                let what = format!("health and API of {} are served at one address, {}", quoted(other), quoted(&url));
                (what, "health is served without client certificates: give it its own".to_owned())
            } else {
                let what = format!("{} on the same host has its agent at {} already", quoted(other), quoted(&url));
                (what, format!("give each member of one host its own `{key}`"))
            };
            reader.wrong(place.agent, "members", what, Some(hint));
        }
    }
}

/// Two members of one machine must not share a directory.
fn directories(reader: &mut Reader<'_>, spec: &Spec, places: &Places) {
    let mut taken: BTreeMap<(String, &str), &str> = BTreeMap::new();
    for (member, place) in spec.members.iter().zip(&places.members) {
        let dirs = std::iter::once(&member.data_dir).chain(&member.wal_dir);
        for dir in dirs {
            let Some(other) = taken.insert((host_place(member), dir.trim_end_matches('/')), &member.name) else {
                continue;
            };
            let what = format!("{} on the same host has directory {} already", quoted(other), quoted(dir));
            let hint = "give each member of one host its own, such as `/srv/etcd/{name}`".to_owned();
            reader.wrong(place.at, "members", what, Some(hint));
        }
    }
}

fn limits(reader: &mut Reader<'_>, spec: &Spec, places: &Places) {
    let agent = &spec.agent;
    if agent.etcd_user.is_some() != agent.etcd_password_file.is_some() {
        let what = "`etcd-user` and `etcd-password-file` are given together or not at all";
        reader.wrong(places.agent, "agent", what, None);
    }
    if let Some(version) = &agent.etcd_version
        && spec.required_hostname().is_some()
        && !etcd_config::has_allowed_hostname(version)
    {
        let what = format!("the config file of etcd {version} has no `peer-allowed-hostname`");
        reader.wrong(places.agent, "tls.peer-allowed-hostname", what, Some(etcd_config::NO_HOSTNAME_HINT.into()));
    }
}

fn is_tls(url: &str) -> bool {
    url.starts_with("https://") || url.starts_with("unixs://")
}
