//! What must be so before a node joins, as far as facts of both sides tell: all objections at once, and nothing changed.
//!
//! **Rule:** what is not known is an objection; nobody is let in for want of an answer.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::{Newcomer, Role};
use crate::certificates::is_host_name;
use crate::change::upgrade::Release;
use crate::spec::Spec;

/// The versions of the agents' API that this program speaks.
pub const API_VERSIONS: (u32, u32) = (1, 1);
/// How far two clocks may be apart: certificates and leases are judged by them.
pub const CLOCK_MAX_MS: u64 = 5_000;
/// How long one small synced write may take: etcd's heartbeat waits for them, and elections for heartbeats.
pub const FSYNC_MAX_MS: u64 = 500;

/// What one side tells of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Side {
    /// Which versions of the agents' API it speaks, first and last.
    pub api: (u32, u32),
    /// Its etcd; none: it was not found, or does not say.
    pub etcd: Option<String>,
    /// Its clock, in ms since 1970.
    pub now_ms: u64,
    /// The cluster that it belongs to.
    pub cluster: Option<String>,
    /// Where its agents keep their state.
    pub state_dir: String,
    /// Addresses that it would need and that somebody else listens on.
    #[serde(default)]
    pub taken: Vec<String>,
    /// What else is wrong there with what it would need, in its own words.
    #[serde(default)]
    pub unfit: Vec<String>,
    /// How long a synced write takes where its data will lie; none: it could not be tried.
    pub fsync_ms: Option<u64>,
    /// Why something that runs there objects.
    #[serde(default)]
    pub veto: Option<String>,
}

/// Everything that speaks against a new member. `host`: the cluster's side, with its present file; `guest`: who wants in.
pub fn objections(host: &Side, spec: &Spec, guest: &Side, newcomer: &Newcomer) -> Vec<String> {
    objections_to(Role::Server, host, spec, guest, newcomer)
}

/// The same for a newcomer of this role: a client runs no etcd, so neither its etcd nor its disk matters.
pub fn objections_to(role: Role, host: &Side, spec: &Spec, guest: &Side, newcomer: &Newcomer) -> Vec<String> {
    let client = role == Role::Client;
    let mut found = Vec::new();
    let (ours, theirs) = (host.api, guest.api);
    if theirs.0 > ours.1 || theirs.1 < ours.0 {
        found.push(format!(
            "the agents do not speak a common API: {} to {} here, {} to {} there",
            ours.0, ours.1, theirs.0, theirs.1
        ));
    }
    if !client && spec.external.is_none() {
        etcd(&mut found, host, guest);
    }
    if let Some(cluster) = &guest.cluster {
        let what = format!("it belongs to cluster `{cluster}`");
        found.push(match guest.cluster == host.cluster {
            true => format!("{what} already"),
            false => format!("{what}, and a node is in one cluster alone"),
        });
    }
    names(&mut found, spec, newcomer);
    if host.state_dir != guest.state_dir {
        found.push(format!(
            "its agent would keep its state in `{}`, and the others do in `{}`",
            guest.state_dir, host.state_dir
        ));
    }
    let needed = |at: &&String| !client || !at.ends_with(":2380");
    found.extend(guest.taken.iter().filter(needed).map(|at| format!("somebody else listens on `{at}` there")));
    found.extend(guest.unfit.iter().map(|why| format!("{why}, there")));
    let apart = host.now_ms.abs_diff(guest.now_ms);
    if apart > CLOCK_MAX_MS {
        found.push(format!("the clocks are {} s apart, and {} s are allowed", apart / 1000, CLOCK_MAX_MS / 1000));
    }
    match guest.fsync_ms {
        None => found.push(format!("nothing can be written durably where `{}` is to be", newcomer.data_dir)),
        Some(took) if took > FSYNC_MAX_MS && !client => {
            found.push(format!("its disk takes {took} ms for a synced write, and {FSYNC_MAX_MS} ms are allowed"));
        }
        Some(_) => {}
    }
    for (side, where_) in [(guest, "there"), (host, "here")] {
        found.extend(side.veto.iter().map(|why| format!("something that runs {where_} objects: {why}")));
    }
    found
}

/// What the file itself has on a node that is to leave or to be a client, and that would be left behind there.
pub fn workload(spec: &Spec, name: &str) -> Option<String> {
    let runs = spec.postgres.as_ref()?.nodes.iter().any(|node| node.name == name);
    runs.then(|| {
        format!(
            "the cluster file has a server of PostgreSQL there: `quorate pg detach {name}`, leave it out of the `nodes` of \
             `postgres`, and `quorate cluster apply` the file"
        )
    })
}

fn etcd(found: &mut Vec<String>, host: &Side, guest: &Side) {
    let release = |side: &Side| side.etcd.as_deref().and_then(Release::parse);
    match (release(host), release(guest)) {
        (None, _) => found.push("it is not known which etcd runs here".to_owned()),
        (_, None) => found.push("there is no etcd that can be used".to_owned()),
        (Some(ours), Some(theirs)) => {
            let minor = |release: Release| (release.major, release.minor);
            let next = (ours.major, ours.minor + 1);
            if minor(theirs) != minor(ours) && minor(theirs) != next {
                found.push(format!(
                    "its etcd is {theirs}, and {ours} runs here: at most one minor release newer is taken in"
                ));
            }
        }
    }
}

fn names(found: &mut Vec<String>, spec: &Spec, newcomer: &Newcomer) {
    let Newcomer { name, address, data_dir } = newcomer;
    if !is_host_name(name) {
        found.push(format!("`{}` is no name for a node", name.escape_debug()));
    } else if spec.member(name).is_some() {
        found.push(format!("the name `{name}` is taken"));
    }
    let ip: Option<IpAddr> = address.parse().ok();
    if ip.is_none() && !is_host_name(address) {
        found.push(format!("`{}` is no address", address.escape_debug()));
    } else if ip.is_some_and(|ip| ip.is_unspecified()) || ip.is_some_and(|ip| ip.is_loopback()) {
        found.push(format!("others cannot reach it at `{address}`"));
    }
    let hosts = spec.members.iter().flat_map(|member| &member.peer_urls);
    if hosts.filter_map(|url| crate::certificates::host_of(url)).any(|host| host == address) {
        found.push(format!("the address `{address}` is taken"));
    }
    if !data_dir.starts_with('/') || data_dir.chars().any(char::is_control) {
        found.push(format!("`{}` is no absolute path for its data", data_dir.escape_debug()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_800_000_000_000;

    fn side(etcd: &str) -> Side {
        Side {
            api: API_VERSIONS,
            etcd: Some(etcd.to_owned()),
            now_ms: NOW,
            cluster: None,
            state_dir: "/s".to_owned(),
            taken: Vec::new(),
            unfit: Vec::new(),
            fsync_ms: Some(3),
            veto: None,
        }
    }

    fn spec() -> Spec {
        let text = "token: t\nmembers:\n  - {name: n1, address: 10.0.0.1}\ntls: {dir: /p}\n";
        Spec::parse(text.as_bytes(), "c").map_err(|mistakes| mistakes.render()).unwrap().0
    }

    fn newcomer() -> Newcomer {
        Newcomer { name: "n2".to_owned(), address: "10.0.0.2".to_owned(), data_dir: "/d".to_owned() }
    }

    fn host() -> Side {
        Side { cluster: Some("t".to_owned()), ..side("3.5.16") }
    }

    #[test]
    fn nothing_speaks_against_a_fresh_node() {
        assert_eq!(objections(&host(), &spec(), &side("3.5.16"), &newcomer()), Vec::<String>::new());
        assert_eq!(objections(&host(), &spec(), &side("3.6.1"), &newcomer()), Vec::<String>::new());
    }

    #[test]
    fn every_check_is_enforced_and_all_reasons_come_at_once() {
        let guest = Side {
            api: (2, 3),
            etcd: Some("3.4.23".to_owned()),
            now_ms: NOW + 60_000,
            cluster: Some("u".to_owned()),
            state_dir: "/other".to_owned(),
            taken: vec!["10.0.0.2:2380".to_owned()],
            unfit: vec!["`n2.example` has no address".to_owned()],
            fsync_ms: Some(900),
            veto: Some("volumes are here".to_owned()),
        };
        let newcomer = Newcomer { name: "n1".to_owned(), address: "10.0.0.1".to_owned(), data_dir: "d".to_owned() };
        let found = objections(&host(), &spec(), &guest, &newcomer);
        let words = [
            "common API",
            "3.4.23",
            "cluster `u`",
            "name `n1` is taken",
            "address `10.0.0.1` is taken",
            "absolute path",
            "`/other`",
            "2380",
            "n2.example",
            "60 s apart",
            "900 ms",
            "volumes are here",
        ];
        for word in words {
            assert!(found.iter().any(|reason| reason.contains(word)), "{word}: {found:#?}");
        }
        assert_eq!(found.len(), words.len(), "{found:#?}");
    }

    #[test]
    fn a_client_needs_no_etcd_and_no_fast_disk_and_the_rest_all_the_same() {
        let guest = Side { etcd: None, fsync_ms: Some(900), taken: vec!["10.0.0.2:2380".to_owned()], ..side("3.5.16") };
        assert_eq!(objections_to(Role::Client, &host(), &spec(), &guest, &newcomer()), Vec::<String>::new());
        assert_eq!(objections(&host(), &spec(), &guest, &newcomer()).len(), 3);
        let guest = Side { now_ms: NOW + 60_000, cluster: Some("u".to_owned()), ..guest };
        assert_eq!(objections_to(Role::Client, &host(), &spec(), &guest, &newcomer()).len(), 2);
    }

    #[test]
    fn a_node_with_a_server_of_postgresql_stays_what_it_is() {
        assert_eq!(workload(&spec(), "n1"), None);
        let text = "token: t\nmembers: [{name: n1, address: h1}, {name: n2, address: h2}]\ntls: {dir: /p}\n\
            postgres: {nodes: [{name: n2}], users: [{name: app, password-file: /s/app}]}\n";
        let (spec, _) = Spec::parse(text.as_bytes(), "c").map_err(|mistakes| mistakes.render()).unwrap();
        assert_eq!(workload(&spec, "n1"), None);
        assert!(workload(&spec, "n2").unwrap().contains("quorate pg detach n2"));
    }

    #[test]
    fn what_is_not_known_is_an_objection() {
        let guest = Side { etcd: None, fsync_ms: None, ..side("3.5.16") };
        assert_eq!(objections(&host(), &spec(), &guest, &newcomer()).len(), 2);
        let unknown = Side { etcd: None, ..host() };
        assert_eq!(objections(&unknown, &spec(), &side("3.5.16"), &newcomer()).len(), 1);
        let local = Newcomer { address: "127.0.0.1".to_owned(), ..newcomer() };
        assert_eq!(objections(&host(), &spec(), &side("3.5.16"), &local).len(), 1);
    }
}
