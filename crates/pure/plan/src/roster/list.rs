//! The member list as YAML or JSON, from a file, a web server, a program or a key of etcd.
//!
//! Three spellings: a list of members, a map from name to URLs, or either of them under the one key `members`.
//!
//! **Invariant:** a key that we do not know is an error, never skipped: it may be the one that mattered.

use quorate_faults::{Code, Fault, Result};

use super::tree::Node;
use super::{RawMember, Roster, nearest, quoted};

/// A list entry's keys: those we print first, then their other spellings.
const KEYS: [&str; 7] = ["name", "peer_urls", "peer_url", "peerURLs", "client_urls", "client_url", "clientURLs"];

/// What a list looks like, for those whose list does not.
const SHAPE: &str =
    "write a list of `{name: n1, peer_urls: [https://10.0.0.1:2380]}`, or a map of `n1: https://10.0.0.1:2380`";

/// Reads a whole document.
pub fn parse_list(bytes: &[u8], provenance: &str) -> Result<Roster> {
    let reader = Reader { provenance };
    let text = std::str::from_utf8(bytes)
        .map_err(|error| reader.not_a_list(format!("byte {} is not UTF-8 text", error.valid_up_to())))?;
    let node = Node::parse(text).map_err(|error| reader.not_a_list("it is neither YAML nor JSON").caused_by(error))?;
    let members = reader.document(node)?;
    Roster::build(provenance, members)
}

/// Reads what stands behind one name: a URL, several with commas, a list of them, or a map with `peer_urls`.
pub fn parse_member_value(name: &str, bytes: &[u8], provenance: &str) -> Result<RawMember> {
    let reader = Reader { provenance };
    let text = std::str::from_utf8(bytes)
        .map_err(|_| reader.not_a_list(format!("the value of member {} is not UTF-8 text", quoted(name))))?;
    let place = format!("member {}", quoted(name));
    match text.trim_start().starts_with(['{', '[']) {
        false => Ok(RawMember::new(name, split_urls(text.trim()))),
        true => {
            let node = Node::parse(text)
                .map_err(|error| reader.not_a_list(format!("{place} is neither a URL nor JSON")).caused_by(error))?;
            reader.named(name.to_owned(), node)
        }
    }
}

struct Reader<'a> {
    provenance: &'a str,
}

impl Reader<'_> {
    fn document(&self, node: Node) -> Result<Vec<RawMember>> {
        match node {
            Node::Nothing => Ok(Vec::new()),
            Node::List(items) => {
                items.into_iter().enumerate().map(|(index, item)| self.item(index + 1, item)).collect()
            }
            Node::Map(mut entries) if is_wrapped(&entries) => {
                if let Some((extra, _)) = entries.iter().find(|(key, _)| key != "members") {
                    return Err(self.not_a_list(format!("key {} stands beside `members`", quoted(extra))));
                }
                match (entries.pop(), entries.pop()) {
                    (Some((_, inner)), None) => self.document(inner),
                    _ => Err(self.not_a_list("key `members` appears twice")),
                }
            }
            Node::Map(entries) => self.by_name(entries),
            other @ (Node::Flag | Node::Number | Node::Text(_)) => {
                Err(self.not_a_list(format!("it is {}, not a list or a map", other.kind())))
            }
        }
    }

    fn by_name(&self, entries: Vec<(String, Node)>) -> Result<Vec<RawMember>> {
        // Nobody names a member `peer_urls`; somebody forgot that one member makes no list.
        if entries.iter().any(|(key, _)| key != "name" && KEYS.contains(&key.as_str())) {
            let fault = self.not_a_list("it is one member, not a list of members");
            return Err(fault.hint("put `- ` before it, or `[` and `]` around it"));
        }
        entries.into_iter().map(|(name, node)| self.named(name, node)).collect()
    }

    fn named(&self, name: String, node: Node) -> Result<RawMember> {
        let place = format!("member {}", quoted(&name));
        match node {
            Node::Map(entries) => {
                let member = self.fields(&place, entries)?;
                match member.name {
                    Some(other) if other != name => {
                        Err(self.not_a_list(format!("{place} says that its name is {}", quoted(&other))))
                    }
                    _ => Ok(RawMember { name, peer_urls: member.peer_urls, client_urls: member.client_urls }),
                }
            }
            urls @ (Node::Nothing | Node::Flag | Node::Number | Node::Text(_) | Node::List(_)) => {
                Ok(RawMember::new(name, self.urls(&place, urls)?))
            }
        }
    }

    fn item(&self, number: usize, node: Node) -> Result<RawMember> {
        let place = format!("member number {number}");
        let Node::Map(entries) = node else {
            return Err(self.not_a_list(format!("{place} is {}, not a map with `name` and `peer_urls`", node.kind())));
        };
        let member = self.fields(&place, entries)?;
        let Some(name) = member.name else {
            return Err(self.not_a_list(format!("{place} has no `name`")));
        };
        Ok(RawMember { name, peer_urls: member.peer_urls, client_urls: member.client_urls })
    }

    fn fields(&self, place: &str, entries: Vec<(String, Node)>) -> Result<Fields> {
        let mut fields = Fields::default();
        let (mut peer_key, mut client_key): (Option<String>, Option<String>) = (None, None);
        for (key, node) in entries {
            let at = || format!("{} of {place}", quoted(&key));
            match key.as_str() {
                "name" if fields.name.is_some() => return Err(self.not_a_list(format!("{place} has `name` twice"))),
                "name" => fields.name = Some(self.text(&at(), node)?),
                "peer_urls" | "peer_url" | "peerURLs" => {
                    self.once(place, &mut peer_key, &key)?;
                    fields.peer_urls = self.urls(&at(), node)?;
                }
                "client_urls" | "client_url" | "clientURLs" => {
                    self.once(place, &mut client_key, &key)?;
                    fields.client_urls = self.urls(&at(), node)?;
                }
                _ => return Err(self.unknown_key(place, &key)),
            }
        }
        match peer_key {
            Some(_) => Ok(fields),
            None => {
                let who = fields.name.map(|name| format!("member {}", quoted(&name))).unwrap_or(place.to_owned());
                Err(self.not_a_list(format!("{who} has no `peer_urls`")))
            }
        }
    }

    fn once(&self, place: &str, slot: &mut Option<String>, key: &str) -> Result<()> {
        match slot.replace(key.to_owned()) {
            None => Ok(()),
            Some(earlier) if earlier == key => Err(self.not_a_list(format!("{place} has {} twice", quoted(key)))),
            Some(earlier) => Err(self.not_a_list(format!("{place} has both {} and {}", quoted(&earlier), quoted(key)))),
        }
    }

    fn text(&self, at: &str, node: Node) -> Result<String> {
        match node {
            Node::Text(text) => Ok(text),
            other @ (Node::Flag | Node::Number) => {
                let fault = self.not_a_list(format!("{at} is {}, not text", other.kind()));
                Err(fault.hint("put it in quotes: `\"…\"`"))
            }
            other @ (Node::Nothing | Node::List(_) | Node::Map(_)) => {
                Err(self.not_a_list(format!("{at} is {}, not text", other.kind())))
            }
        }
    }

    fn urls(&self, at: &str, node: Node) -> Result<Vec<String>> {
        match node {
            Node::Text(text) => Ok(split_urls(&text)),
            Node::List(items) => items
                .into_iter()
                .map(|item| match item {
                    Node::Text(text) => Ok(text),
                    other @ (Node::Nothing | Node::Flag | Node::Number | Node::List(_) | Node::Map(_)) => {
                        Err(self.not_a_list(format!("{at} holds {}, not a URL", other.kind())))
                    }
                })
                .collect(),
            other @ (Node::Nothing | Node::Flag | Node::Number | Node::Map(_)) => {
                Err(self.not_a_list(format!("{at} is {}, not a URL or a list of URLs", other.kind())))
            }
        }
    }

    fn unknown_key(&self, place: &str, key: &str) -> Fault {
        let fault = self.not_a_list(format!("{place} has a key {} that means nothing here", quoted(key)));
        match nearest(key, KEYS) {
            Some(near) => fault.hint(format!("did you mean `{near}`?")),
            None => fault.hint("a member has `name`, `peer_urls` and, if you like, `client_urls`"),
        }
    }

    fn not_a_list(&self, why: impl std::fmt::Display) -> Fault {
        let attempt = format!("cannot read the list from {}: {why}", quoted(self.provenance));
        Fault::new(Code::SourceNotAList, attempt).hint(SHAPE)
    }
}

#[derive(Default)]
struct Fields {
    name: Option<String>,
    peer_urls: Vec<String>,
    client_urls: Vec<String>,
}

/// `members:` with a list or a map below it; a member that is named `members` has a URL there.
fn is_wrapped(entries: &[(String, Node)]) -> bool {
    entries.iter().any(|(key, node)| key == "members" && matches!(node, Node::List(_) | Node::Map(_) | Node::Nothing))
}

fn split_urls(text: &str) -> Vec<String> {
    text.split(',').map(|url| url.trim().to_owned()).collect()
}
