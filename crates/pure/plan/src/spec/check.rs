//! Checks the parts of the cluster file against each other.

use std::collections::BTreeMap;

use super::read::Reader;
use super::sections::Places;
use super::{Member, Security, Spec};
use crate::Warning;
use crate::etcd_config;
use crate::roster::{check_url, quoted};

pub(super) fn whole(reader: &mut Reader<'_>, spec: &Spec, places: &Places) -> Vec<Warning> {
    names_and_urls(reader, spec, places);
    schemes(reader, spec, places);
    directories(reader, spec, places);
    limits(reader, spec, places);
    if reader.has_mistakes() {
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
    if is_tls(&spec.agent.api_listen) == plaintext {
        let (what, hint) = match plaintext {
            true => ("`api-listen` is for TLS, and `plaintext: true` is asked for", "write `http://`"),
            false => ("`api-listen` is in the clear, and `tls` is given", "write `https://`"),
        };
        reader.wrong(places.agent, "agent.api-listen", what, Some(hint.into()));
    }
    if plaintext && is_tls(&spec.agent.health_listen) {
        let what = "`health-listen` is for TLS, and `plaintext: true` is asked for";
        reader.wrong(places.agent, "agent.health-listen", what, Some("write `http://`".into()));
    }
}

/// Two members of one machine must not share a directory.
fn directories(reader: &mut Reader<'_>, spec: &Spec, places: &Places) {
    let mut taken: BTreeMap<(String, &str), &str> = BTreeMap::new();
    for (member, place) in spec.members.iter().zip(&places.members) {
        let dirs = std::iter::once(&member.data_dir).chain(&member.wal_dir);
        for dir in dirs {
            let Some(other) = taken.insert((host(member), dir.trim_end_matches('/')), &member.name) else { continue };
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
    if agent.health_listen == agent.api_listen {
        let what = "`health-listen` and `api-listen` are the same address";
        reader.wrong(
            places.agent,
            "agent",
            what,
            Some("health is served without client certificates: give it its own".into()),
        );
    }
    let named = match &spec.security {
        Security::Tls(tls) => tls.peer_allowed_hostname.is_some(),
        Security::Plaintext(_) => false,
    };
    if let Some(version) = &agent.etcd_version
        && named
        && !etcd_config::has_allowed_hostname(version)
    {
        let what = format!("the config file of etcd {version} has no `peer-allowed-hostname`");
        reader.wrong(places.agent, "tls.peer-allowed-hostname", what, Some(etcd_config::NO_HOSTNAME_HINT.into()));
    }
}

fn is_tls(url: &str) -> bool {
    url.starts_with("https://") || url.starts_with("unixs://")
}

fn host(member: &Member) -> String {
    let place = member.peer_urls.first().and_then(|url| check_url(url).ok()).map(|url| url.place);
    place.and_then(|place| place.rsplit_once(':').map(|(host, _)| host.to_owned())).unwrap_or_default()
}
