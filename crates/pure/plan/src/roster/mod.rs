//! The roster: who founds a cluster, as a source of truth names them.
//!
//! **Invariant:** names and URLs of a [`Roster`] that passed [`Roster::check`] are exactly those that etcd itself would
//! accept and store, so every node that reads the same list computes the same member and cluster ids.

mod check;
mod gather;
mod initial_cluster;
mod list;
mod member_flags;
mod name;
mod nearest;
mod shown;
mod tree;
mod url;

use quorate_faults::{Code, Fault, Result};
use serde::Serialize;

pub use gather::{Absent, Answer, Gathering, Next};
pub use initial_cluster::parse_initial_cluster;
pub use list::{parse_list, parse_member_value};
pub use member_flags::parse_member_flags;
pub use nearest::nearest;
pub use shown::{human, names, quoted};
pub use url::{CheckedUrl, UrlError, check_url};

/// The name etcd gives a member that was not given one.
pub const DEFAULT_NAME: &str = "default";

/// The peer URL that etcd advertises when it was not told another.
pub const DEFAULT_PEER_URL: &str = "http://localhost:2380";

/// The members of a cluster to be, in the order in which their source gave them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Roster {
    /// Who founds the cluster.
    pub members: Vec<RosterMember>,
    /// Where the list came from, fit to be shown: it holds no secret.
    pub provenance: String,
}

/// One member of a cluster to be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RosterMember {
    /// The member's name, as `etcd --name` has it.
    pub name: String,
    /// Where peers reach it: as Go prints URLs, sorted as etcd sorts them.
    pub peer_urls: Vec<String>,
    /// Where clients reach it, if the source says.
    pub client_urls: Vec<String>,
}

/// A member as a source spelled it, before its URLs are made canonical.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RawMember {
    /// The member's name.
    pub name: String,
    /// Peer URLs as written.
    pub peer_urls: Vec<String>,
    /// Client URLs as written.
    pub client_urls: Vec<String>,
}

impl Roster {
    /// Makes every URL canonical, or says which member has one that etcd would not accept.
    pub fn build(provenance: impl Into<String>, raw: Vec<RawMember>) -> Result<Roster> {
        let provenance = provenance.into();
        let members = raw.into_iter().map(|raw| raw.canonical(&provenance)).collect::<Result<Vec<_>>>()?;
        Ok(Roster { members, provenance })
    }

    /// The cluster of one that etcd founds when it is told nothing.
    pub fn of_one(name: Option<&str>) -> Roster {
        let member = RosterMember {
            name: name.unwrap_or(DEFAULT_NAME).to_owned(),
            peer_urls: vec![DEFAULT_PEER_URL.to_owned()],
            client_urls: Vec::new(),
        };
        Roster { members: vec![member], provenance: "etcd's defaults".to_owned() }
    }

    /// The member that this node is: the one with that name, or the only one there is.
    pub fn local(&self, name: Option<&str>) -> Result<&RosterMember> {
        let Some(name) = name else {
            return match self.members.as_slice() {
                [only] => Ok(only),
                [] => Err(self.empty_fault()),
                _ => Err(self.which_fault()),
            };
        };
        let mut found = self.members.iter().filter(|member| member.name == name);
        match (found.next(), found.next()) {
            (Some(member), None) => Ok(member),
            (Some(_), Some(_)) => Err(self.duplicate_name_fault(name)),
            (None, _) => Err(self.missing_fault(name)),
        }
    }

    /// The names, in the source's order.
    pub fn names(&self) -> Vec<&str> {
        self.members.iter().map(|member| member.name.as_str()).collect()
    }

    fn which_fault(&self) -> Fault {
        let names = names(self.names());
        let attempt =
            format!("cannot tell which of {names} is this node, in the list from {}", quoted(&self.provenance));
        Fault::new(Code::RosterSelfAmbiguous, attempt).hint("say which one with `--name NAME`")
    }

    fn missing_fault(&self, name: &str) -> Fault {
        let attempt = format!(
            "{} is not in the list from {}, which has {}",
            quoted(name),
            quoted(&self.provenance),
            names(self.names())
        );
        let hint = match nearest(name, self.names()) {
            Some(near) => format!("did you mean `--name {near}`?"),
            None => "give `--name` one of these names, or add this node to the list on every node".to_owned(),
        };
        Fault::new(Code::RosterSelfMissing, attempt).hint(hint)
    }
}

impl RosterMember {
    /// Whether peers reach this member over TLS alone.
    fn uses_tls(&self) -> bool {
        self.peer_urls.iter().all(|url| url.starts_with("https://") || url.starts_with("unixs://"))
    }
}

impl RawMember {
    /// A member with peer URLs alone.
    pub fn new(name: impl Into<String>, peer_urls: Vec<String>) -> RawMember {
        RawMember { name: name.into(), peer_urls, client_urls: Vec::new() }
    }

    fn canonical(self, provenance: &str) -> Result<RosterMember> {
        let canonical = |kind: &str, urls: &[String]| -> Result<Vec<String>> {
            let mut checked = Vec::with_capacity(urls.len());
            for text in urls {
                let url = check_url(text).map_err(|error| error.fault(kind, text, &self.name, provenance))?;
                checked.push(url.text);
            }
            // etcd sorts a member's URLs as it reads them, and stores them so.
            checked.sort();
            Ok(checked)
        };
        let peer_urls = canonical("peer URL", &self.peer_urls)?;
        let client_urls = canonical("client URL", &self.client_urls)?;
        Ok(RosterMember { name: self.name, peer_urls, client_urls })
    }
}

#[cfg(test)]
mod tests;
