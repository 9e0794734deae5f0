//! The etcd command line that starts a founded member.
//!
//! **Rule:** no `--initial-*` flag: the member knows its cluster already.

use quorate_etcd::init::Target;
use quorate_plan::roster::RosterMember;

/// etcd's own client port.
const CLIENT_PORT: u16 = 2379;

/// What to run next, word by word. Words in capitals are for the operator to fill in.
pub(super) fn start_line(target: &Target, local: &RosterMember) -> Vec<String> {
    let mut words = vec!["etcd".to_owned()];
    let mut flag = |name: &str, value: String| words.extend([format!("--{name}"), value]);
    flag("name", local.name.clone());
    flag("data-dir", target.data_dir().display().to_string());
    if let Some(wal) = target.wal_dir() {
        flag("wal-dir", wal.display().to_string());
    }
    let peers: Vec<String> = local.peer_urls.iter().map(|url| listen(url)).collect();
    flag("listen-peer-urls", distinct(peers).join(","));
    let advertised = match local.client_urls.as_slice() {
        [] => distinct(local.peer_urls.iter().map(|url| client_url(url)).collect()),
        given => given.to_vec(),
    };
    flag("listen-client-urls", distinct(advertised.iter().map(|url| listen(url)).collect()).join(","));
    flag("advertise-client-urls", advertised.join(","));
    if advertised.iter().any(|url| is_tls(url)) {
        flag("cert-file", "SERVER.crt".to_owned());
        flag("key-file", "SERVER.key".to_owned());
    }
    if local.peer_urls.iter().any(|url| is_tls(url)) {
        flag("peer-cert-file", "PEER.crt".to_owned());
        flag("peer-key-file", "PEER.key".to_owned());
        flag("peer-trusted-ca-file", "CA.crt".to_owned());
        words.push("--peer-client-cert-auth".to_owned());
    }
    words
}

fn is_tls(url: &str) -> bool {
    url.starts_with("https://") || url.starts_with("unixs://")
}

/// Scheme, host and port. Sockets have no port.
fn parts(url: &str) -> Option<(&str, &str, &str)> {
    let (scheme, rest) = url.split_once("://")?;
    let (host, port) = rest.rsplit_once(':')?;
    scheme.starts_with("http").then_some((scheme, host, port))
}

/// etcd binds to addresses and `localhost` only; a name is listened to on every address.
fn listen(url: &str) -> String {
    let Some((scheme, host, port)) = parts(url) else { return url.to_owned() };
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let bindable =
        host == "localhost" || bare.split('%').next().is_some_and(|ip| ip.parse::<std::net::IpAddr>().is_ok());
    if bindable { url.to_owned() } else { format!("{scheme}://0.0.0.0:{port}") }
}

/// Where clients of a member most likely come: the peer's host, on etcd's client port.
fn client_url(peer: &str) -> String {
    match parts(peer) {
        Some((scheme, host, _)) => format!("{scheme}://{host}:{CLIENT_PORT}"),
        None => format!("http://localhost:{CLIENT_PORT}"),
    }
}

fn distinct(urls: Vec<String>) -> Vec<String> {
    let mut kept: Vec<String> = Vec::new();
    for url in urls {
        if !kept.contains(&url) {
            kept.push(url);
        }
    }
    kept
}

/// The words as a shell takes them.
pub(super) fn for_shell(words: &[String]) -> String {
    words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ")
}

fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+=:,@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(name: &str, peer_urls: &[&str], client_urls: &[&str]) -> String {
        let strings = |urls: &[&str]| urls.iter().map(|url| (*url).to_owned()).collect();
        let local =
            RosterMember { name: name.into(), peer_urls: strings(peer_urls), client_urls: strings(client_urls) };
        let target = Target::new("/d".as_ref(), None).unwrap();
        for_shell(&start_line(&target, &local))
    }

    #[test]
    fn the_default_member_starts_on_etcds_own_addresses() {
        assert_eq!(
            line("default", &["http://localhost:2380"], &[]),
            "etcd --name default --data-dir /d --listen-peer-urls http://localhost:2380 \
             --listen-client-urls http://localhost:2379 --advertise-client-urls http://localhost:2379"
        );
    }

    #[test]
    fn names_are_listened_to_on_every_address_and_tls_asks_for_its_files() {
        assert_eq!(
            line("n1", &["https://n1.example.com:2380"], &[]),
            "etcd --name n1 --data-dir /d --listen-peer-urls https://0.0.0.0:2380 \
             --listen-client-urls https://0.0.0.0:2379 --advertise-client-urls https://n1.example.com:2379 \
             --cert-file SERVER.crt --key-file SERVER.key --peer-cert-file PEER.crt --peer-key-file PEER.key \
             --peer-trusted-ca-file CA.crt --peer-client-cert-auth"
        );
    }

    #[test]
    fn addresses_of_both_families_and_given_client_urls_are_kept() {
        assert_eq!(
            line("it's", &["http://[::1]:2380", "http://10.0.0.1:7001"], &["http://10.0.0.1:4001"]),
            r"etcd --name 'it'\''s' --data-dir /d --listen-peer-urls 'http://[::1]:2380,http://10.0.0.1:7001' --listen-client-urls http://10.0.0.1:4001 --advertise-client-urls http://10.0.0.1:4001"
        );
    }
}
