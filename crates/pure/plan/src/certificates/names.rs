//! Which names and addresses the certificates of a node carry.
//!
//! **Invariant:** only peers' certificates carry the peers' name, and only the agent's the node's own, so that no certificate
//! can stand in for another kind.

use std::collections::BTreeSet;
use std::net::IpAddr;

use quorate_faults::{Code, Fault};

use super::Role;
use crate::spec::{Member, Spec};

/// Below which all made-up names lie; the suffix is reserved for private use.
pub(super) const SUFFIX: &str = "quorate.internal";

/// Longest host name.
const NAME_MAX: usize = 253;

/// Longest common name of a certificate, by the standard.
const COMMON_NAME_MAX: usize = 64;

/// What the certificates of one node are for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeNames {
    /// The cluster's token.
    pub token: String,
    /// The member's name.
    pub name: String,
    /// Host names of its URLs.
    pub dns: BTreeSet<String>,
    /// Addresses of its URLs.
    pub ips: BTreeSet<IpAddr>,
}

impl NodeNames {
    /// Names that can stand in a certificate; loopback is added to the addresses.
    pub fn new<'a>(token: &str, name: &str, hosts: impl IntoIterator<Item = &'a str>) -> Result<NodeNames, Fault> {
        for (what, text, made) in
            [("token", token, peer_hostname(token)), ("member name", name, agent_hostname(name, token))]
        {
            if !is_host_name(&made) || !is_host_name(text) || text.len() > COMMON_NAME_MAX {
                return Err(unfit(&format!("{what} `{}`", text.escape_debug())));
            }
        }
        let mut names = NodeNames {
            token: token.to_owned(),
            name: name.to_owned(),
            dns: BTreeSet::from(["localhost".to_owned()]),
            ips: BTreeSet::from([IpAddr::from([127, 0, 0, 1]), IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1])]),
        };
        for host in hosts {
            match host.parse::<IpAddr>() {
                // It stands for all addresses and is none that one connects to.
                Ok(ip) if ip.is_unspecified() => {}
                Ok(ip) => {
                    names.ips.insert(ip);
                }
                Err(_) if is_host_name(host) => {
                    names.dns.insert(host.to_ascii_lowercase());
                }
                Err(_) => return Err(unfit(&format!("host `{}`", host.escape_debug()))),
            }
        }
        Ok(names)
    }

    /// Those of a declared member: the hosts of all its URLs.
    pub fn of(spec: &Spec, member: &Member) -> Result<NodeNames, Fault> {
        let agent = [spec.agent_url_of(member), spec.api_listen_of(member), spec.health_listen_of(member)];
        let lists = [&member.peer_urls, &member.client_urls, &member.listen_peer_urls, &member.listen_client_urls];
        let urls = lists.into_iter().flatten().chain(&agent);
        NodeNames::new(&spec.token, &member.name, urls.filter_map(|url| host_of(url)))
    }

    /// The host names of one certificate.
    pub fn dns_of(&self, role: Role) -> BTreeSet<String> {
        let mut dns = if role.serves() { self.dns.clone() } else { BTreeSet::new() };
        match role {
            Role::Peer => dns.insert(peer_hostname(&self.token).to_ascii_lowercase()),
            Role::Agent => dns.insert(agent_hostname(&self.name, &self.token).to_ascii_lowercase()),
            Role::Client | Role::Admin => false,
        };
        dns
    }

    /// The addresses of one certificate.
    pub fn ips_of(&self, role: Role) -> BTreeSet<IpAddr> {
        if role.serves() { self.ips.clone() } else { BTreeSet::new() }
    }

    /// The common name of one certificate. etcd takes that of a client for a user, so the one it serves clients with, and
    /// dials itself with, has none.
    pub fn common_name(&self, role: Role) -> Option<&str> {
        match role {
            Role::Peer | Role::Agent => Some(&self.name),
            Role::Client => None,
            Role::Admin => Some("quorate-admin"),
        }
    }
}

/// The name that every peer's certificate carries, and no other.
pub fn peer_hostname(token: &str) -> String {
    format!("peer.{token}.{SUFFIX}")
}

/// The name that tells agents apart.
pub fn agent_hostname(name: &str, token: &str) -> String {
    format!("{name}.agent.{token}.{SUFFIX}")
}

/// The member whose agent carries `hostname`, if it is such a name.
pub fn node_of_hostname<'a>(hostname: &'a str, token: &str) -> Option<&'a str> {
    let rest = format!(".agent.{token}.{SUFFIX}").to_ascii_lowercase();
    let lower = hostname.to_ascii_lowercase();
    let end = lower.strip_suffix(&rest)?.len();
    hostname.get(..end).filter(|name| !name.is_empty())
}

/// The host of a URL with a port; none of a socket file.
pub fn host_of(url: &str) -> Option<&str> {
    let (scheme, rest) = url.split_once("://")?;
    if !matches!(scheme, "http" | "https") {
        return None;
    }
    let authority = rest.split('/').next()?;
    match authority.strip_prefix('[') {
        Some(rest) => rest.split_once(']').map(|(host, _)| host),
        None => Some(authority.rsplit_once(':').map_or(authority, |(host, _)| host)),
    }
    // A zone names an interface of one machine; certificates know none.
    .map(|host| host.split('%').next().unwrap_or(host))
    .filter(|host| !host.is_empty())
}

/// Whether it can be a host name in a certificate.
pub fn is_host_name(text: &str) -> bool {
    let label = |label: &str| {
        !label.is_empty()
            && label.len() <= 63
            && label.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_'))
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    text.len() <= NAME_MAX && text.split('.').all(label)
}

fn unfit(what: &str) -> Fault {
    Fault::new(Code::CertificateName, format!("cannot make a certificate for {what}"))
        .hint("use letters, digits, `-` and `_`, parted by dots, as in a host name, and not too many")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_address_of_a_member_is_named_once_and_loopback_always() {
        let text = "token: Prod-1\nmembers:\n  - {name: n1, peer-urls: ['https://10.0.0.1:2380', 'https://a.example:2380'], \
                    client-urls: ['https://[fd00::1]:2379'], listen-peer-urls: ['https://0.0.0.0:2380']}\ntls: {dir: /p}\n";
        let (spec, _) = Spec::parse(text.as_bytes(), "c").map_err(|mistakes| mistakes.render()).unwrap();
        let names = NodeNames::of(&spec, &spec.members[0]).unwrap();
        assert_eq!(Vec::from_iter(&names.dns), ["a.example", "localhost"]);
        let ips: Vec<String> = names.ips.iter().map(ToString::to_string).collect();
        assert_eq!(ips, ["10.0.0.1", "127.0.0.1", "::1", "fd00::1"]);
        assert!(names.dns_of(Role::Peer).contains("peer.prod-1.quorate.internal"));
        assert!(!names.dns_of(Role::Client).iter().any(|name| name.ends_with(SUFFIX)));
        assert_eq!(names.dns_of(Role::Admin), BTreeSet::new());
        let own = agent_hostname("n1", "Prod-1");
        assert_eq!(node_of_hostname(&own, "prod-1"), Some("n1"));
        assert_eq!(node_of_hostname(&own, "prod-2"), None);
        assert_eq!(node_of_hostname("peer.prod-1.quorate.internal", "prod-1"), None);
    }

    #[test]
    fn what_is_no_host_name_stands_in_no_certificate() {
        for (token, name, host) in [("a..b", "n1", "h"), ("t", "node one", "h"), ("t", "n1", "*.h"), ("t", "ä", "h")] {
            let fault = NodeNames::new(token, name, [host]).unwrap_err();
            assert_eq!(fault.code(), Code::CertificateName);
        }
        assert!(NodeNames::new("t", &"n".repeat(65), []).is_err());
        assert!(NodeNames::new("t_1.x", "n-1.rack", ["h_1"]).is_ok());
    }

    #[test]
    fn hosts_are_found_in_urls() {
        for (url, host) in [
            ("https://h:1", Some("h")),
            ("https://[::1]:2/", Some("::1")),
            ("https://[fe80::1%eth0]:2", Some("fe80::1")),
            ("unixs:///run/x", None),
            ("h:1", None),
            ("https://", None),
        ] {
            assert_eq!(host_of(url), host, "{url}");
        }
    }
}
