//! Reads `members` of the cluster file.

use super::read::{Reader, Section};
use super::sections::secret_or_path;
use super::tree::{Kind, Node};
use super::{At, Member};
use crate::roster::{check_url, quoted};

/// The data dir of a member that was not given one.
const DATA_DIR: &str = "/var/lib/etcd";

/// Where the parts of a member stand.
#[derive(Clone, Default)]
pub(super) struct MemberPlace {
    pub(super) at: At,
    pub(super) name: At,
    pub(super) urls: At,
    pub(super) agent: At,
}

/// Where the addresses of members stand.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Addresses {
    /// In the file, without TLS.
    Plain,
    /// In the file, with TLS.
    Tls,
    /// A source has them.
    Elsewhere,
}

pub(super) fn section(
    reader: &mut Reader<'_>,
    file: &mut Section,
    addresses: Addresses,
) -> (Vec<Member>, Vec<MemberPlace>) {
    const SHAPE: &str = "write a list: `- {name: n1, address: 10.0.0.1}`, or name a `source`";
    let Some(node) = file.take("members") else {
        // A file may be for nodes of PostgreSQL alone, which agree in a store that is elsewhere.
        if addresses == Addresses::Elsewhere || file.has("postgres") {
            return Default::default();
        }
        reader.wrong(file.at, "members", "`members` is missing", Some(SHAPE.to_owned()));
        return Default::default();
    };
    let (what, at) = (node.kind(), node.at);
    let Kind::List(items) = node.kind else {
        reader.wrong(at, "members", format!("`members` is {what}, not a list"), Some(SHAPE.to_owned()));
        return Default::default();
    };
    if items.is_empty() {
        reader.wrong(at, "members", "`members` is empty", Some(SHAPE.to_owned()));
    }
    let read = items.into_iter().enumerate();
    read.filter_map(|(index, item)| member(reader, item, &format!("members[{}]", index + 1), addresses)).unzip()
}

fn member(reader: &mut Reader<'_>, item: Node, path: &str, addresses: Addresses) -> Option<(Member, MemberPlace)> {
    let mut section = Section::open(reader, item, path)?;
    let at = section.at;
    let name = section.text(reader, "name");
    if name.is_none() {
        reader.wrong(at, path, "a member has no `name`", Some("give it one, such as `name: n1`".into()));
    }
    let (name, name_at) = name.unwrap_or_default();
    let address = section.text(reader, "address");
    let scheme = if addresses == Addresses::Plain { "http" } else { "https" };
    let from_address = |port: u16| address.iter().map(|(host, at)| (url_of(scheme, host, port), *at)).collect();
    let peers = urls(reader, &mut section, "peer-urls", from_address(2380));
    let clients = urls(reader, &mut section, "client-urls", from_address(2379));
    let listen_peers = urls(reader, &mut section, "listen-peer-urls", peers.clone());
    let listen_clients = urls(reader, &mut section, "listen-client-urls", clients.clone());
    if addresses == Addresses::Elsewhere {
        if !peers.is_empty() {
            let hint = "leave `address` and `peer-urls` out, or the `source`".to_owned();
            reader.wrong(at, path, "the addresses of members come from `source`, and stand here as well", Some(hint));
        }
    } else if peers.is_empty() && address.is_none() {
        let hint = "give its `address: 10.0.0.1`, or `peer-urls` and `client-urls`".to_owned();
        reader.wrong(at, path, "a member has neither `address` nor `peer-urls`", Some(hint));
    } else if clients.is_empty() && address.is_none() {
        reader.wrong(at, path, "a member has no `client-urls`", Some("such as `https://10.0.0.1:2379`".into()));
    }
    let mut dir = |reader: &mut Reader<'_>, key: &'static str| {
        let (text, at) = section.text(reader, key)?;
        secret_or_path(reader, &section.below(key), &text, at);
        Some(super::for_member(&text, &name))
    };
    let data_dir = dir(reader, "data-dir").unwrap_or_else(|| DATA_DIR.to_owned());
    let wal_dir = dir(reader, "wal-dir");
    let mut agent_at = at;
    let mut agent_of = |reader: &mut Reader<'_>, key: &'static str| {
        let (text, at) = section.text(reader, key)?;
        agent_at = at;
        one_url(reader, &section.below(key), key, &text, at)
    };
    let agent_url = agent_of(reader, "agent-url");
    let listen_agent_url = agent_of(reader, "listen-agent-url");
    let listen_health_url = agent_of(reader, "listen-health-url");
    section.close(reader);
    let place = MemberPlace { at, name: name_at, agent: agent_at, urls: peers.first().map_or(at, |(_, at)| *at) };
    let bare = |urls: Vec<(String, At)>| urls.into_iter().map(|(text, _)| text).collect();
    let member = Member {
        name,
        peer_urls: bare(peers),
        client_urls: bare(clients),
        listen_peer_urls: bare(listen_peers),
        listen_client_urls: bare(listen_clients),
        data_dir,
        wal_dir,
        agent_url,
        listen_agent_url,
        listen_health_url,
    };
    Some((member, place))
}

fn url_of(scheme: &str, host: &str, port: u16) -> String {
    let bare_ipv6 = host.contains(':') && !host.starts_with('[');
    if bare_ipv6 { format!("{scheme}://[{host}]:{port}") } else { format!("{scheme}://{host}:{port}") }
}

/// URLs in the order in which etcd sorts them.
fn urls(
    reader: &mut Reader<'_>,
    section: &mut Section,
    key: &'static str,
    otherwise: Vec<(String, At)>,
) -> Vec<(String, At)> {
    let texts = section.texts(reader, key).unwrap_or(otherwise);
    let mut checked = Vec::new();
    for (text, at) in texts {
        match check_url(&text) {
            Ok(url) => checked.push((url.text, at)),
            Err(error) => {
                let what = format!("cannot use {} as one of `{key}`: {}", quoted(&text), error.why);
                reader.wrong(at, &section.below(key), what, Some(error.way_out));
            }
        }
    }
    checked.sort();
    checked
}

/// A member of which nothing but the name is known.
pub(super) fn bare(name: &str) -> Member {
    Member {
        name: name.to_owned(),
        peer_urls: Vec::new(),
        client_urls: Vec::new(),
        listen_peer_urls: Vec::new(),
        listen_client_urls: Vec::new(),
        data_dir: DATA_DIR.to_owned(),
        wal_dir: None,
        agent_url: None,
        listen_agent_url: None,
        listen_health_url: None,
    }
}

/// One URL of ours, or a mistake.
pub(super) fn one_url(reader: &mut Reader<'_>, path: &str, key: &str, text: &str, at: At) -> Option<String> {
    match check_url(text) {
        Ok(url) => Some(url.text),
        Err(error) => {
            let what = format!("cannot use {} as `{key}`: {}", quoted(text), error.why);
            reader.wrong(at, path, what, Some(error.way_out));
            None
        }
    }
}
