//! Where the parts of a declared cluster are found: files, folders and addresses, with their defaults.

use super::{Member, Security, Spec, Tls, for_member, is_loopback_url, tls};
use crate::certificates::operator_files;
use crate::roster::check_url;

impl Spec {
    /// Where the agent of `name` keeps its ledger, exit records and logs: not on the data's disk, which may be lost.
    pub fn state_dir_of(&self, name: &str) -> String {
        if self.agent.state_dir.contains("{name}") {
            return for_member(&self.agent.state_dir, name);
        }
        format!("{}/{name}", self.agent.state_dir.trim_end_matches('/'))
    }

    /// The files of mutual TLS, with `dir` spelt out. `None`: plaintext.
    pub fn tls_files(&self) -> Option<&Tls> {
        match &self.security {
            Security::Tls(tls) => Some(tls),
            Security::Plaintext(_) => None,
        }
    }

    /// Where `name` has the operators' authority; the file need not be there. `None`: plaintext, or files of others without that key.
    pub fn operators_file_of(&self, name: &str) -> Option<String> {
        let tls = self.tls_files()?;
        let beside = || tls.dir.as_ref().map(|dir| format!("{dir}/{}", operator_files::CERTIFICATE));
        tls.operators.clone().or_else(beside).map(|path| for_member(&path, name))
    }

    /// Where other agents reach the agent of a member: by default on the host of its first peer URL, at the port on which the
    /// agent listens. In clear text it is where the agent listens, on loopback.
    pub fn agent_url_of(&self, member: &Member) -> String {
        if let Some(url) = &member.agent_url {
            return url.clone();
        }
        let listen = self.api_listen_of(member);
        if self.is_plaintext() && is_loopback_url(&listen) {
            return listen;
        }
        let (scheme, place) = listen.split_once("://").unwrap_or(("https", &listen));
        let port = place.rsplit_once(':').map_or("2382", |(_, port)| port);
        let host = member.peer_urls.first().map_or("localhost", |url| host_of(url));
        format!("{scheme}://{host}:{port}")
    }

    /// Where the agent of a member listens for agents and operators.
    pub fn api_listen_of(&self, member: &Member) -> String {
        member.listen_agent_url.clone().unwrap_or_else(|| self.agent.api_listen.clone())
    }

    /// Where the agent of a member serves health and metrics.
    pub fn health_listen_of(&self, member: &Member) -> String {
        member.listen_health_url.clone().unwrap_or_else(|| self.agent.health_listen.clone())
    }

    /// The name that peers' certificates must hold, where the operator asked for it. The name that comes with `tls.dir` is
    /// left out where a release of etcd does not know such names: the CA of peers signs nothing else.
    pub fn required_hostname(&self) -> Option<&str> {
        let tls = self.tls_files()?;
        let name = tls.peer_allowed_hostname.as_deref()?;
        let comes_along = tls.dir.is_some() && name == tls::default_hostname(&self.token);
        (!comes_along).then_some(name)
    }
}

/// The host of a URL as it was written, an IPv6 address in its brackets.
pub(super) fn host_of(url: &str) -> &str {
    let authority = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = authority.split('/').next().unwrap_or(authority);
    authority.rsplit_once(':').map_or(authority, |(host, _)| host)
}

/// Where a connection would go, without the port: equal for two spellings of one host.
pub(super) fn host_place(member: &Member) -> String {
    let place = member.peer_urls.first().and_then(|url| check_url(url).ok()).map(|url| url.place);
    place.and_then(|place| place.rsplit_once(':').map(|(host, _)| host.to_owned())).unwrap_or_default()
}
