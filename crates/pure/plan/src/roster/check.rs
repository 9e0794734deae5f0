//! Refuses lists that cannot become one cluster, and warns about those that will disappoint.

use std::collections::BTreeMap;

use quorate_faults::{Code, Fault, Result};

use super::name::check_name;
use super::url::check_url;
use super::{Roster, RosterMember, names, quoted};
use crate::Warning;

impl Roster {
    /// Refuses a list that etcd could not found a cluster from. What is merely unwise comes back as warnings.
    pub fn check(&self) -> Result<Vec<Warning>> {
        if self.members.is_empty() {
            return Err(self.empty_fault());
        }
        for member in &self.members {
            check_name(&member.name, &self.provenance)?;
        }
        self.check_names_differ()?;
        self.check_urls()?;
        Ok([self.warn_even(), self.warn_mixed()].into_iter().flatten().collect())
    }

    fn check_names_differ(&self) -> Result<()> {
        let mut sorted = self.names();
        sorted.sort_unstable();
        match sorted.windows(2).find(|pair| pair.first() == pair.last()) {
            Some(pair) => Err(self.duplicate_name_fault(pair.first().copied().unwrap_or_default())),
            None => Ok(()),
        }
    }

    fn check_urls(&self) -> Result<()> {
        let mut places: BTreeMap<String, (&RosterMember, &str)> = BTreeMap::new();
        for member in &self.members {
            if member.peer_urls.is_empty() {
                return Err(self.no_peer_url_fault(&member.name));
            }
            for url in &member.peer_urls {
                let place = self.check_one("peer URL", member, url)?;
                if let Some((other, earlier)) = places.insert(place, (member, url)) {
                    return Err(self.duplicate_url_fault(other, earlier, member, url));
                }
            }
            for url in &member.client_urls {
                self.check_one("client URL", member, url)?;
            }
        }
        Ok(())
    }

    fn check_one(&self, kind: &str, member: &RosterMember, url: &str) -> Result<String> {
        match check_url(url) {
            Ok(checked) if checked.text == url => Ok(checked.place),
            Ok(checked) => {
                let what = format!("{kind} {} of member {}", quoted(url), quoted(&member.name));
                Err(Fault::new(Code::RosterBadUrl, format!("cannot use {what}: it is not written as etcd writes it"))
                    .hint(format!("write {}", quoted(&checked.text))))
            }
            Err(error) => Err(error.fault(kind, url, &member.name, &self.provenance)),
        }
    }

    fn warn_even(&self) -> Option<Warning> {
        let count = self.members.len();
        if count % 2 == 1 {
            return None;
        }
        let text = match count {
            2 => "2 members survive no failure: losing either one stops the cluster; found 1 or 3".to_owned(),
            _ => {
                let (failures, fewer, more) = ((count - 1) / 2, count - 1, count + 1);
                format!("{count} members survive {failures} failures, no more than {fewer} do; found {fewer} or {more}")
                    .replace(" 1 failures", " 1 failure")
            }
        };
        Some(Warning::new(Code::RosterEven, text))
    }

    fn warn_mixed(&self) -> Option<Warning> {
        let (tls, plain): (Vec<_>, Vec<_>) = self.members.iter().partition(|member| member.uses_tls());
        if tls.is_empty() && plain.iter().all(|member| !member.peer_urls.iter().any(|url| is_tls(url)))
            || plain.is_empty()
        {
            return None;
        }
        let plain = names(plain.iter().map(|member| member.name.as_str()));
        let text = format!("peer URLs mix http and https: what is sent to {plain} can be read on the way");
        Some(Warning::new(Code::RosterMixedSchemes, text))
    }

    pub(super) fn empty_fault(&self) -> Fault {
        let attempt = format!("the list from {} has no members", quoted(&self.provenance));
        Fault::new(Code::RosterEmpty, attempt).hint("list every founding member, or say `--expect N` to wait for them")
    }

    pub(super) fn duplicate_name_fault(&self, name: &str) -> Fault {
        let attempt = format!("two members are named {}, in the list from {}", quoted(name), quoted(&self.provenance));
        Fault::new(Code::RosterDuplicateName, attempt)
            .hint("give each member its own name; write several URLs of one member as `NAME=URL,URL`")
    }

    fn no_peer_url_fault(&self, name: &str) -> Fault {
        let attempt = format!("member {} has no peer URL, in the list from {}", quoted(name), quoted(&self.provenance));
        Fault::new(Code::RosterBadUrl, attempt).hint("give it one, such as `https://HOST:2380`")
    }

    fn duplicate_url_fault(&self, first: &RosterMember, earlier: &str, second: &RosterMember, url: &str) -> Fault {
        let provenance = quoted(&self.provenance);
        let (one, two) = (quoted(&first.name), quoted(&second.name));
        let same_text = earlier == url;
        let (earlier, url) = (quoted(earlier), quoted(url));
        let attempt = match (std::ptr::eq(first, second), same_text) {
            (true, true) => format!("member {one} lists peer URL {url} twice, in the list from {provenance}"),
            (true, false) => {
                format!(
                    "peer URLs {earlier} and {url} of member {one} are the same place, in the list from {provenance}"
                )
            }
            (false, true) => format!("members {one} and {two} share peer URL {url}, in the list from {provenance}"),
            (false, false) => format!(
                "peer URLs {earlier} of member {one} and {url} of member {two} are the same place, in the list from {provenance}"
            ),
        };
        Fault::new(Code::RosterDuplicateUrl, attempt).hint("every peer URL belongs to one member and is listed once")
    }
}

fn is_tls(url: &str) -> bool {
    url.starts_with("https://") || url.starts_with("unixs://")
}
