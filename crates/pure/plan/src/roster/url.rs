//! Peer and client URLs as etcd reads, compares and prints them.
//!
//! **Invariant:** an accepted URL is printed as Go's `url.URL.String()` prints it, because member ids are hashes of that
//! text: the scheme is lower-cased, everything else keeps its spelling (case of the host, default ports, IPv6 zeros).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use quorate_faults::{Code, Fault};

use super::quoted;

/// A URL that etcd accepts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckedUrl {
    /// As Go prints it.
    pub text: String,
    /// Where a connection to it would go: equal for two spellings of one place, whatever their schemes.
    pub place: String,
}

/// Why a URL is not accepted, and how to write it instead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UrlError {
    /// "it has no port".
    pub why: String,
    /// "write `http://10.0.0.1:2380`".
    pub way_out: String,
}

impl UrlError {
    fn new<T>(why: impl Into<String>, way_out: impl Into<String>) -> Result<T, UrlError> {
        Err(UrlError { why: why.into(), way_out: way_out.into() })
    }

    /// The same as a fault about one member of a list.
    pub(super) fn fault(self, kind: &str, text: &str, member: &str, provenance: &str) -> Fault {
        let attempt = format!(
            "cannot use {kind} {} of member {}: {}, in the list from {}",
            quoted(text),
            quoted(member),
            self.why,
            quoted(provenance)
        );
        Fault::new(Code::RosterBadUrl, attempt).hint(self.way_out)
    }
}

/// Reads one URL. Outer spaces are dropped, as etcd drops them.
pub fn check_url(text: &str) -> Result<CheckedUrl, UrlError> {
    let text = text.trim();
    if text.is_empty() {
        return UrlError::new("it is empty", "write it as `https://HOST:2380`");
    }
    if let Some(bad) = text.chars().find(|c| c.is_control() || c.is_whitespace()) {
        let bad = if bad == ' ' { "a space".to_owned() } else { quoted(&bad.to_string()) };
        return UrlError::new(format!("it contains {bad}"), "remove it");
    }
    let Some((scheme, rest)) = text.split_once("://") else {
        let way_out = format!("write {} or {}", quoted(&format!("https://{text}")), quoted(&format!("http://{text}")));
        return UrlError::new("it has no scheme", way_out);
    };
    if scheme.contains('=') {
        let way_out = "give each name its own `--member`, and separate the URLs of one member with `,`";
        return UrlError::new("it begins with another name", way_out);
    }
    let scheme = scheme.to_ascii_lowercase();
    match scheme.as_str() {
        "http" | "https" => check_network(&scheme, rest),
        "unix" | "unixs" => check_socket(&scheme, rest),
        _ => UrlError::new(
            format!("its scheme {} is not one that etcd knows", quoted(&scheme)),
            "use `http`, `https`, `unix` or `unixs`",
        ),
    }
}

fn check_network(scheme: &str, rest: &str) -> Result<CheckedUrl, UrlError> {
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, tail) = rest.split_at(end);
    if authority.contains('@') {
        let way_out = "remove what stands before `@`: peers prove who they are with certificates";
        return UrlError::new("it contains a user name or password", way_out);
    }
    let bare = format!("{scheme}://{authority}");
    match tail.chars().next() {
        Some('/') => return UrlError::new("it has a path", format!("write {}", quoted(&bare))),
        Some('?') => return UrlError::new("it has a query", format!("write {}", quoted(&bare))),
        Some(_) => return UrlError::new("it has a fragment", format!("write {}", quoted(&bare))),
        None => {}
    }
    let (host, port) = split_host_port(scheme, authority)?;
    let host = check_host(host)?;
    let port = check_port(scheme, authority, port)?;
    Ok(CheckedUrl { text: bare, place: format!("{host}:{port}") })
}

/// Splits at the last colon, outside of the brackets of an IPv6 address.
fn split_host_port<'a>(scheme: &str, authority: &'a str) -> Result<(&'a str, Option<&'a str>), UrlError> {
    if authority.is_empty() {
        return UrlError::new("it has no host", format!("write it as `{scheme}://HOST:2380`"));
    }
    if authority.starts_with('[') {
        let Some(close) = authority.rfind(']') else {
            return UrlError::new(
                "the `[` of its IPv6 address is not closed",
                format!("write `{scheme}://[ADDRESS]:2380`"),
            );
        };
        let (host, port) = authority.split_at(close + 1);
        return match port.strip_prefix(':') {
            Some(port) => Ok((host, Some(port))),
            None if port.is_empty() => Ok((host, None)),
            None => UrlError::new("something follows the `]` of its IPv6 address", "write `:` and the port after `]`"),
        };
    }
    match authority.split_once(':') {
        None => Ok((authority, None)),
        Some((_, port)) if port.contains(':') => {
            let way_out = format!("write an IPv6 address in brackets: `{scheme}://[ADDRESS]:2380`");
            UrlError::new("it has more than one `:` after the scheme", way_out)
        }
        Some((host, port)) => Ok((host, Some(port))),
    }
}

fn check_port(scheme: &str, authority: &str, port: Option<&str>) -> Result<u16, UrlError> {
    let Some(port) = port.filter(|port| !port.is_empty()) else {
        let host = authority.trim_end_matches(':');
        let way_out = format!("write {}", quoted(&format!("{scheme}://{host}:2380")));
        return UrlError::new("it has no port", way_out);
    };
    // `02380` would be one port and another member id: one spelling only.
    let plain = port.bytes().all(|byte| byte.is_ascii_digit()) && !port.starts_with('0');
    match port.parse::<u16>() {
        Ok(number) if plain => Ok(number),
        _ => UrlError::new(
            format!("{} is not a port", quoted(port)),
            "use a number from 1 to 65535 without leading zeros",
        ),
    }
}

/// Accepts what can be resolved or dialled; returns the spelling under which two hosts are the same.
fn check_host(host: &str) -> Result<String, UrlError> {
    if let Some(inner) = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        return check_ipv6(inner);
    }
    if host.is_empty() {
        return UrlError::new("it has no host", "write the host's name or address before the port");
    }
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if let Some(bad) = host.chars().find(|c| !allowed(*c)) {
        let way_out = "use letters, digits, `-`, `_` and `.`; write international names in their `xn--` form";
        return UrlError::new(
            format!("its host contains {}, which cannot be resolved", quoted(&bad.to_string())),
            way_out,
        );
    }
    let name = host.strip_suffix('.').unwrap_or(host);
    if name.len() > 253 || name.split('.').any(|label| label.is_empty() || label.len() > 63) {
        let way_out = "use a DNS name: labels of 1 to 63 characters, separated by single dots";
        return UrlError::new(format!("its host {} cannot be resolved", quoted(host)), way_out);
    }
    if name.split('.').all(|label| label.bytes().all(|byte| byte.is_ascii_digit())) {
        return match name.parse::<Ipv4Addr>() {
            Ok(address) if name == host => Ok(address.to_string()),
            _ => UrlError::new(
                format!("its host {} is not an IPv4 address", quoted(host)),
                "write four numbers of 0 to 255",
            ),
        };
    }
    Ok(name.to_ascii_lowercase())
}

fn check_ipv6(inner: &str) -> Result<String, UrlError> {
    // In a URL the `%` before a zone is itself written `%25`.
    let (address, zone) = match inner.split_once("%25") {
        Some((address, zone)) => (address, Some(zone)),
        None => (inner, None),
    };
    let zone_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '~');
    match (address.parse::<Ipv6Addr>(), zone) {
        (Ok(address), None) => Ok(format!("[{}]", IpAddr::V6(address))),
        (Ok(address), Some(zone)) if !zone.is_empty() && zone.chars().all(zone_allowed) => {
            Ok(format!("[{}%{zone}]", IpAddr::V6(address)))
        }
        _ => UrlError::new(
            format!("{} is not an IPv6 address", quoted(inner)),
            "write it as `[2001:db8::1]`, and a zone as `[fe80::1%25eth0]`",
        ),
    }
}

/// `unix://` names a socket: etcd takes host and path together as one name.
fn check_socket(scheme: &str, rest: &str) -> Result<CheckedUrl, UrlError> {
    if rest.is_empty() {
        return UrlError::new("it names no socket", format!("write `{scheme}://HOST:PORT` or `{scheme}:///PATH`"));
    }
    // Only characters that Go prints as they are: anything else would be escaped and change the id.
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '~' | '/' | ':');
    if let Some(bad) = rest.chars().find(|c| !allowed(*c)) {
        let way_out = "use letters, digits, `-`, `_`, `.`, `~`, `/` and `:`";
        return UrlError::new(format!("its socket name contains {}", quoted(&bad.to_string())), way_out);
    }
    let host = rest.split('/').next().unwrap_or_default();
    if let Some((name, port)) = host.split_once(':')
        && (name.is_empty() || port.is_empty() || !port.bytes().all(|byte| byte.is_ascii_digit()))
    {
        let way_out = format!("write `{scheme}://HOST:PORT` or `{scheme}:///PATH`");
        return UrlError::new(format!("{} is not `HOST:PORT`", quoted(host)), way_out);
    }
    Ok(CheckedUrl { text: format!("{scheme}://{rest}"), place: format!("unix {rest}") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_keep_the_spelling_that_go_prints() {
        // Left: as written. Right: what Go's url.Parse(…).String() gives, which is what etcd hashes.
        for (written, printed) in [
            ("http://127.0.0.1:2380", "http://127.0.0.1:2380"),
            ("  http://127.0.0.1:2380\n", "http://127.0.0.1:2380"),
            ("HTTP://Node-A.Example.COM:2380", "http://Node-A.Example.COM:2380"),
            ("https://a:443", "https://a:443"),
            ("http://a:80", "http://a:80"),
            ("https://[2001:DB8::1]:2380", "https://[2001:DB8::1]:2380"),
            ("https://[0:0:0:0:0:0:0:1]:2380", "https://[0:0:0:0:0:0:0:1]:2380"),
            ("https://[fe80::1%25eth0]:2380", "https://[fe80::1%25eth0]:2380"),
            ("http://etcd_0.svc:2380", "http://etcd_0.svc:2380"),
            ("http://n1.example.com.:2380", "http://n1.example.com.:2380"),
            ("unix://localhost:2380", "unix://localhost:2380"),
            ("UNIXS:///run/etcd/peer.sock", "unixs:///run/etcd/peer.sock"),
        ] {
            assert_eq!(check_url(written).map(|url| url.text), Ok(printed.to_owned()), "{written}");
        }
    }

    #[test]
    fn spellings_of_one_place_are_told_to_be_one() {
        for (left, right) in [
            ("http://A:1", "https://a:1"),
            ("http://a.b.:1", "http://A.B:1"),
            ("http://[::1]:1", "http://[0:0::1]:1"),
            ("http://[fe80::1%25e0]:1", "http://[FE80::1%25e0]:1"),
            ("unix://a:1", "unixs://a:1"),
        ] {
            assert_eq!(check_url(left).unwrap().place, check_url(right).unwrap().place, "{left} {right}");
        }
        assert_ne!(check_url("http://a:1").unwrap().place, check_url("http://a:2").unwrap().place);
        assert_ne!(check_url("http://[::1]:1").unwrap().place, check_url("http://[::2]:1").unwrap().place);
    }

    #[test]
    fn every_refusal_says_why_and_how_to_write_it() {
        for (written, why, way_out) in [
            ("", "it is empty", "write it as `https://HOST:2380`"),
            ("n1:2380", "it has no scheme", "write `https://n1:2380` or `http://n1:2380`"),
            ("http:/a:1", "it has no scheme", "write `https://http:/a:1` or `http://http:/a:1`"),
            ("ftp://a:1", "its scheme `ftp` is not one that etcd knows", "use `http`, `https`, `unix` or `unixs`"),
            ("http://", "it has no host", "write it as `http://HOST:2380`"),
            ("http://:2380", "it has no host", "write the host's name or address before the port"),
            ("http://10.0.0.1", "it has no port", "write `http://10.0.0.1:2380`"),
            ("http://10.0.0.1:", "it has no port", "write `http://10.0.0.1:2380`"),
            ("http://[::1]", "it has no port", "write `http://[::1]:2380`"),
            ("http://a:0", "`0` is not a port", "use a number from 1 to 65535 without leading zeros"),
            ("http://a:65536", "`65536` is not a port", "use a number from 1 to 65535 without leading zeros"),
            ("http://a:02380", "`02380` is not a port", "use a number from 1 to 65535 without leading zeros"),
            ("http://a:+1", "`+1` is not a port", "use a number from 1 to 65535 without leading zeros"),
            ("http://a:1/", "it has a path", "write `http://a:1`"),
            ("HTTP://a:1/x", "it has a path", "write `http://a:1`"),
            ("http://a:1?x=y", "it has a query", "write `http://a:1`"),
            ("http://a:1#x", "it has a fragment", "write `http://a:1`"),
            (
                "http://u:p@a:1",
                "it contains a user name or password",
                "remove what stands before `@`: peers prove who they are with certificates",
            ),
            (
                "http://::1:2380",
                "it has more than one `:` after the scheme",
                "write an IPv6 address in brackets: `http://[ADDRESS]:2380`",
            ),
            ("http://[::1:2380", "the `[` of its IPv6 address is not closed", "write `http://[ADDRESS]:2380`"),
            ("http://[::1]2380", "something follows the `]` of its IPv6 address", "write `:` and the port after `]`"),
            (
                "http://[fe80::1%eth0]:1",
                "`fe80::1%eth0` is not an IPv6 address",
                "write it as `[2001:db8::1]`, and a zone as `[fe80::1%25eth0]`",
            ),
            (
                "http://[127.0.0.1]:1",
                "`127.0.0.1` is not an IPv6 address",
                "write it as `[2001:db8::1]`, and a zone as `[fe80::1%25eth0]`",
            ),
            (
                "http://n\u{f6}de:1",
                "its host contains `\u{f6}`, which cannot be resolved",
                "use letters, digits, `-`, `_` and `.`; write international names in their `xn--` form",
            ),
            (
                "http://a%41:1",
                "its host contains `%`, which cannot be resolved",
                "use letters, digits, `-`, `_` and `.`; write international names in their `xn--` form",
            ),
            (
                "http://a..b:1",
                "its host `a..b` cannot be resolved",
                "use a DNS name: labels of 1 to 63 characters, separated by single dots",
            ),
            ("http://10.0.0.256:1", "its host `10.0.0.256` is not an IPv4 address", "write four numbers of 0 to 255"),
            ("http://10.0.1:1", "its host `10.0.1` is not an IPv4 address", "write four numbers of 0 to 255"),
            ("http://a b:1", "it contains a space", "remove it"),
            ("http://a\u{7}b:1", "it contains `\\u{7}`", "remove it"),
            (
                "n2=http://a:1",
                "it begins with another name",
                "give each name its own `--member`, and separate the URLs of one member with `,`",
            ),
            ("unix://", "it names no socket", "write `unix://HOST:PORT` or `unix:///PATH`"),
            ("unix:///a b", "it contains a space", "remove it"),
            ("unix:///a%20b", "its socket name contains `%`", "use letters, digits, `-`, `_`, `.`, `~`, `/` and `:`"),
            ("unix://a:x", "`a:x` is not `HOST:PORT`", "write `unix://HOST:PORT` or `unix:///PATH`"),
        ] {
            let error = check_url(written).expect_err(written);
            assert_eq!((error.why.as_str(), error.way_out.as_str()), (why, way_out), "{written:?}");
        }
    }
}
