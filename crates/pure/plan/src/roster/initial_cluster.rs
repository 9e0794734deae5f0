//! etcd's own way to write a member list: `n1=http://10.0.0.1:2380,n2=http://10.0.0.2:2380`.

use quorate_faults::{Code, Fault, Result};

use super::{RawMember, Roster, quoted};

/// Reads `--initial-cluster` syntax as etcd does: a repeated name adds a URL, empty entries are skipped.
pub fn parse_initial_cluster(text: &str, provenance: &str) -> Result<Roster> {
    let mut members: Vec<RawMember> = Vec::new();
    for entry in text.split(',').filter(|entry| !entry.trim().is_empty()) {
        let Some((name, url)) = entry.split_once('=') else {
            let attempt =
                format!("cannot read {} as `NAME=URL`, in the list from {}", quoted(entry), quoted(provenance));
            return Err(Fault::new(Code::SourceNotAList, attempt)
                .hint("write `n1=https://10.0.0.1:2380,n2=https://10.0.0.2:2380`; a repeated name adds a URL"));
        };
        match members.iter_mut().find(|member| member.name == name) {
            Some(member) => member.peer_urls.push(url.to_owned()),
            None => members.push(RawMember::new(name, vec![url.to_owned()])),
        }
    }
    Roster::build(provenance, members)
}
