//! Finds addresses at which other machines could reach an agent in clear text.
//!
//! **Rule:** in clear text nobody proves who it is by a certificate, so such an agent is reachable from its own machine alone.

use std::net::IpAddr;

use super::{Member, Spec};
use crate::certificates::host_of;

/// An address of an agent that is in clear text and not on loopback.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExposedAgent {
    /// The key of the cluster file that gives the address.
    pub key: String,
    /// The address.
    pub url: String,
}

impl Spec {
    /// Every address of an agent that other machines could reach in clear text; none with TLS.
    pub fn exposed_agents(&self) -> Vec<ExposedAgent> {
        if !self.is_plaintext() {
            return Vec::new();
        }
        let of_member = |member: &Member| {
            let urls = [("listen-agent-url", &member.listen_agent_url), ("agent-url", &member.agent_url)];
            let name = member.name.clone();
            urls.map(|(key, url)| (format!("{key}` of `{name}"), url.clone()))
        };
        let of_members = self.members.iter().flat_map(of_member).filter_map(|(key, url)| Some((key, url?)));
        let of_all = ("agent.api-listen".to_owned(), self.agent.api_listen.clone());
        let exposed = |(key, url): (String, String)| (!is_loopback_url(&url)).then_some(ExposedAgent { key, url });
        std::iter::once(of_all).chain(of_members).filter_map(exposed).collect()
    }
}

/// Whether a URL names this machine's loopback.
pub fn is_loopback_url(url: &str) -> bool {
    let host = host_of(url).unwrap_or_default();
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exposed(text: &str) -> Vec<String> {
        let (spec, _) = Spec::parse(text.as_bytes(), "c.yaml").expect(text);
        spec.exposed_agents().into_iter().map(|ExposedAgent { key, url }| format!("`{key}`: {url}")).collect()
    }

    #[test]
    fn accepts_loopback_agents_whatever_the_addresses_of_etcd() {
        for url in ["http://127.0.0.1:1", "http://127.9.8.7:1", "http://[::1]:1", "http://localhost:1"] {
            let file = format!(
                "token: t\nplaintext: true\nmembers: [{{name: n1, address: 10.0.0.1, listen-agent-url: '{url}', agent-url: '{url}'}}]\n"
            );
            assert_eq!(exposed(&file), [] as [&str; 0], "{url}");
        }
        assert_eq!(exposed("token: t\nplaintext: true\nmembers: [{name: n1, address: 10.0.0.1}]\n"), [] as [&str; 0]);
    }

    #[test]
    fn reports_every_plaintext_agent_that_other_machines_reach() {
        let file = "token: t\nplaintext: true\nmembers:\n  - {name: n1, address: 127.0.0.1, agent-url: 'http://n1.example:1'}\n  \
                    - {name: n2, address: 127.0.0.1, listen-agent-url: 'http://0.0.0.0:2', data-dir: /b, peer-urls: ['http://10.0.0.2:3'], \
                    client-urls: ['http://10.0.0.2:4']}\nagent: {api-listen: 'http://[::]:5'}\n";
        let file = file.replace("address: 127.0.0.1, listen", "listen");
        assert_eq!(
            exposed(&file),
            [
                "`agent.api-listen`: http://[::]:5",
                "`agent-url` of `n1`: http://n1.example:1",
                "`listen-agent-url` of `n2`: http://0.0.0.0:2"
            ]
        );
    }

    #[test]
    fn does_not_take_other_spellings_for_loopback() {
        for url in [
            "http://127.0.0.1.evil.example:1",
            "http://[::ffff:127.0.0.1]:1",
            "http://128.0.0.1:1",
            "http://0.0.0.0:1",
            "http://",
            "",
        ] {
            assert!(!is_loopback_url(url), "{url}");
        }
    }

    #[test]
    fn asks_a_plaintext_agent_where_it_listens() {
        let file = "token: t\nplaintext: true\nmembers: [{name: n1, address: 10.0.0.1}]\n";
        let (spec, _) = Spec::parse(file.as_bytes(), "c.yaml").expect(file);
        assert_eq!(spec.agent_url_of(&spec.members[0]), "http://127.0.0.1:2382");
    }
}
