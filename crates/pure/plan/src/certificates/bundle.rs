//! The text that requests and certificates of one node travel in: a first line with its kind and version, two headers, then
//! each part by its name and as a PEM block, so that `openssl` reads it too. Certificates may be followed by lists of revoked
//! ones, so that a node that is new knows whom to refuse.
//!
//! **Invariant:** no byte makes the reader panic or take more memory than the text; every part stands there exactly once and
//! in its order, and what was read is written back the same.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;

use super::{Authority, Role};

/// Longest text: seven certificates of some 1.5 KiB with dozens of names, and lists of a few thousand that are revoked. Agents send
/// each other no more than this.
pub const BYTES_MAX: usize = 256 * 1024;

const REQUESTS: &str = "quorate certificate requests 1";
const CERTIFICATES: &str = "quorate certificates 1";
const REQUEST_LABEL: &str = "CERTIFICATE REQUEST";
const CERTIFICATE_LABEL: &str = "CERTIFICATE";
/// The name of a part with the operators' authority.
const OPERATORS: &str = "operators";
const LIST_LABEL: &str = "X509 CRL";

/// Longest token and name; certificates hold no longer ones.
const HEADER_MAX: usize = 253;

/// Columns of a PEM block.
const COLUMNS: usize = 64;

/// What a node wants signed, as DER.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CsrBundle {
    /// The cluster's token.
    pub token: String,
    /// The member's name.
    pub name: String,
    requests: [Vec<u8>; 4],
}

/// What was signed, as DER.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignedBundle {
    /// The cluster's token.
    pub token: String,
    /// The member's name.
    pub name: String,
    authorities: [Vec<u8>; 3],
    certificates: [Vec<u8>; 4],
    lists: [Option<Vec<u8>>; 3],
    others: [Vec<Vec<u8>>; 3],
    operators: Vec<Vec<u8>>,
}

/// Why a text is no bundle.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BundleError {
    /// More than [`BYTES_MAX`].
    #[error("it is longer than {} KiB", BYTES_MAX / 1024)]
    TooLong,
    /// Not even text.
    #[error("it is not text")]
    NotText,
    /// Another first line.
    #[error("its first line is not `{0}`")]
    Head(&'static str),
    /// A line that should say something else.
    #[error("line {line}: `{wanted}` should stand here")]
    Expected {
        /// Counted from one.
        line: usize,
        /// What.
        wanted: String,
    },
    /// It ends early.
    #[error("it ends before `{0}`")]
    Short(String),
    /// A block that cannot be decoded.
    #[error("line {0}: a block that begins here cannot be decoded")]
    Block(usize),
    /// More than there should be.
    #[error("line {0}: more follows than should")]
    More(usize),
}

impl CsrBundle {
    /// A request for each role, as DER.
    pub fn new(token: &str, name: &str, request: impl FnMut(Role) -> Vec<u8>) -> CsrBundle {
        CsrBundle { token: token.to_owned(), name: name.to_owned(), requests: Role::ALL.map(request) }
    }

    /// The request for one certificate.
    pub fn request(&self, role: Role) -> &[u8] {
        let [peer, client, agent, admin] = &self.requests;
        of_role(role, peer, client, agent, admin)
    }

    /// The text.
    pub fn encode(&self) -> String {
        let mut text = head(REQUESTS, &self.token, &self.name);
        for role in Role::ALL {
            block(&mut text, role.word(), REQUEST_LABEL, self.request(role));
        }
        text
    }

    /// Reads the text.
    pub fn decode(bytes: &[u8]) -> Result<CsrBundle, BundleError> {
        let mut lines = Lines::new(bytes, REQUESTS)?;
        let (token, name) = (lines.header("token")?, lines.header("name")?);
        let mut requests: [Vec<u8>; 4] = Default::default();
        for (role, request) in Role::ALL.into_iter().zip(&mut requests) {
            *request = lines.block(role.word(), REQUEST_LABEL)?;
        }
        lines.end()?;
        Ok(CsrBundle { token, name, requests })
    }
}

impl SignedBundle {
    /// A certificate for each role and of each authority, as DER.
    pub fn new(
        token: &str,
        name: &str,
        authority: impl FnMut(Authority) -> Vec<u8>,
        certificates: [Vec<u8>; 4],
    ) -> SignedBundle {
        let authorities = Authority::ALL.map(authority);
        SignedBundle {
            token: token.to_owned(),
            name: name.to_owned(),
            authorities,
            certificates,
            lists: Default::default(),
            others: Default::default(),
            operators: Vec::new(),
        }
    }

    /// The same with the authorities that are trusted beside those that signed, as DER: while they are rotated there are two.
    pub fn with_others(self, others: impl FnMut(Authority) -> Vec<Vec<u8>>) -> SignedBundle {
        SignedBundle { others: Authority::ALL.map(others), ..self }
    }

    /// The same with the operators' authority, as DER: for a node that is set up by hand.
    pub fn with_operators(self, operators: Vec<Vec<u8>>) -> SignedBundle {
        SignedBundle { operators, ..self }
    }

    /// The operators' authority, where it came along.
    pub fn operators(&self) -> &[Vec<u8>] {
        &self.operators
    }

    /// The authorities of one kind that are trusted beside the one that signed.
    pub fn others(&self, authority: Authority) -> &[Vec<u8>] {
        let [peer, client, agent] = &self.others;
        match authority {
            Authority::Peer => peer,
            Authority::Client => client,
            Authority::Agent => agent,
        }
    }

    /// The same with lists of revoked certificates, as DER, where an authority has one.
    pub fn with_lists(self, list: impl FnMut(Authority) -> Option<Vec<u8>>) -> SignedBundle {
        SignedBundle { lists: Authority::ALL.map(list), ..self }
    }

    /// The list of revoked certificates of one authority.
    pub fn list(&self, authority: Authority) -> Option<&[u8]> {
        let [peer, client, agent] = &self.lists;
        match authority {
            Authority::Peer => peer.as_deref(),
            Authority::Client => client.as_deref(),
            Authority::Agent => agent.as_deref(),
        }
    }

    /// One certificate.
    pub fn certificate(&self, role: Role) -> &[u8] {
        let [peer, client, agent, admin] = &self.certificates;
        of_role(role, peer, client, agent, admin)
    }

    /// The certificate of one authority.
    pub fn authority(&self, authority: Authority) -> &[u8] {
        let [peer, client, agent] = &self.authorities;
        match authority {
            Authority::Peer => peer,
            Authority::Client => client,
            Authority::Agent => agent,
        }
    }

    /// The text.
    pub fn encode(&self) -> String {
        let mut text = head(CERTIFICATES, &self.token, &self.name);
        for authority in Authority::ALL {
            block(&mut text, authority.word(), CERTIFICATE_LABEL, self.authority(authority));
        }
        for role in Role::ALL {
            block(&mut text, role.word(), CERTIFICATE_LABEL, self.certificate(role));
        }
        for authority in Authority::ALL {
            if let Some(list) = self.list(authority) {
                block(&mut text, &revoked(authority), LIST_LABEL, list);
            }
        }
        for authority in Authority::ALL {
            for other in self.others(authority) {
                block(&mut text, &trusted(authority), CERTIFICATE_LABEL, other);
            }
        }
        for operators in &self.operators {
            block(&mut text, OPERATORS, CERTIFICATE_LABEL, operators);
        }
        text
    }

    /// Reads the text.
    pub fn decode(bytes: &[u8]) -> Result<SignedBundle, BundleError> {
        let mut lines = Lines::new(bytes, CERTIFICATES)?;
        let (token, name) = (lines.header("token")?, lines.header("name")?);
        let (mut authorities, mut certificates): ([Vec<u8>; 3], [Vec<u8>; 4]) = Default::default();
        for (authority, found) in Authority::ALL.into_iter().zip(&mut authorities) {
            *found = lines.block(authority.word(), CERTIFICATE_LABEL)?;
        }
        for (role, found) in Role::ALL.into_iter().zip(&mut certificates) {
            *found = lines.block(role.word(), CERTIFICATE_LABEL)?;
        }
        let mut lists: [Option<Vec<u8>>; 3] = Default::default();
        for (authority, found) in Authority::ALL.into_iter().zip(&mut lists) {
            *found = lines.block_if_there(&revoked(authority), LIST_LABEL)?;
        }
        let mut others: [Vec<Vec<u8>>; 3] = Default::default();
        for (authority, found) in Authority::ALL.into_iter().zip(&mut others) {
            while let Some(other) = lines.block_if_there(&trusted(authority), CERTIFICATE_LABEL)? {
                found.push(other);
            }
        }
        let mut operators = Vec::new();
        while let Some(one) = lines.block_if_there(OPERATORS, CERTIFICATE_LABEL)? {
            operators.push(one);
        }
        lines.end()?;
        Ok(SignedBundle { token, name, authorities, certificates, lists, others, operators })
    }
}

fn of_role<T>(role: Role, peer: T, client: T, agent: T, admin: T) -> T {
    match role {
        Role::Peer => peer,
        Role::Client => client,
        Role::Agent => agent,
        Role::Admin => admin,
    }
}

/// The name of the part with the list of an authority.
fn revoked(authority: Authority) -> String {
    format!("{}-revoked", authority.word())
}

/// The name of a part with another authority that is trusted.
fn trusted(authority: Authority) -> String {
    format!("{}-trusted", authority.word())
}

fn head(kind: &str, token: &str, name: &str) -> String {
    format!("{kind}\ntoken: {token}\nname: {name}\n")
}

/// A certificate as a PEM file.
pub fn pem(der: &[u8]) -> String {
    let mut text = String::new();
    armour(&mut text, CERTIFICATE_LABEL, der);
    text
}

fn block(text: &mut String, part: &str, label: &str, der: &[u8]) {
    text.push_str(&format!("\n{part}:\n"));
    armour(text, label, der);
}

fn armour(text: &mut String, label: &str, der: &[u8]) {
    text.push_str(&format!("-----BEGIN {label}-----\n"));
    let encoded = BASE64_STANDARD.encode(der);
    let mut rest = encoded.as_str();
    while !rest.is_empty() {
        let (line, after) = rest.split_at(rest.len().min(COLUMNS));
        text.push_str(line);
        text.push('\n');
        rest = after;
    }
    text.push_str(&format!("-----END {label}-----\n"));
}

/// Lines with something on them, counted.
struct Lines<'a> {
    rest: std::iter::Enumerate<std::str::Lines<'a>>,
}

impl<'a> Lines<'a> {
    fn new(bytes: &'a [u8], kind: &'static str) -> Result<Lines<'a>, BundleError> {
        if bytes.len() > BYTES_MAX {
            return Err(BundleError::TooLong);
        }
        let text = std::str::from_utf8(bytes).map_err(|_| BundleError::NotText)?;
        let mut lines = Lines { rest: text.lines().enumerate() };
        match lines.next() {
            Some((_, line)) if line == kind => Ok(lines),
            _ => Err(BundleError::Head(kind)),
        }
    }

    /// The next line that is not empty. Blanks at ends come from mails and terminals and mean nothing.
    fn next(&mut self) -> Option<(usize, &'a str)> {
        self.rest.by_ref().map(|(at, line)| (at.saturating_add(1), line.trim())).find(|(_, line)| !line.is_empty())
    }

    fn expect(&mut self, wanted: &str) -> Result<usize, BundleError> {
        match self.next() {
            None => Err(BundleError::Short(wanted.to_owned())),
            Some((at, line)) if line == wanted => Ok(at),
            Some((line, _)) => Err(BundleError::Expected { line, wanted: wanted.to_owned() }),
        }
    }

    fn header(&mut self, key: &str) -> Result<String, BundleError> {
        let Some((at, line)) = self.next() else { return Err(BundleError::Short(format!("{key}:"))) };
        let value = line.strip_prefix(key).and_then(|rest| rest.strip_prefix(": ")).map(str::trim);
        match value {
            Some(value)
                if !value.is_empty() && value.len() <= HEADER_MAX && value.bytes().all(|b| b.is_ascii_graphic()) =>
            {
                Ok(value.to_owned())
            }
            _ => Err(BundleError::Expected { line: at, wanted: format!("{key}: …") }),
        }
    }

    fn block_if_there(&mut self, part: &str, label: &str) -> Result<Option<Vec<u8>>, BundleError> {
        let mut ahead = Lines { rest: self.rest.clone() };
        let there = ahead.next().is_some_and(|(_, line)| line.strip_suffix(':') == Some(part));
        there.then(|| self.block(part, label)).transpose()
    }

    fn block(&mut self, part: &str, label: &str) -> Result<Vec<u8>, BundleError> {
        self.expect(&format!("{part}:"))?;
        let begun = self.expect(&format!("-----BEGIN {label}-----"))?;
        let end = format!("-----END {label}-----");
        let mut encoded = String::new();
        loop {
            match self.next() {
                None => return Err(BundleError::Short(end)),
                Some((_, line)) if line == end => break,
                Some((_, line)) => encoded.push_str(line),
            }
        }
        let der = BASE64_STANDARD.decode(encoded).map_err(|_| BundleError::Block(begun))?;
        if der.is_empty() { Err(BundleError::Block(begun)) } else { Ok(der) }
    }

    fn end(&mut self) -> Result<(), BundleError> {
        self.next().map_or(Ok(()), |(at, _)| Err(BundleError::More(at)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn requests() -> CsrBundle {
        CsrBundle::new("prod-1", "n1", |role| role.word().repeat(40).into_bytes())
    }

    fn signed() -> SignedBundle {
        let parts = Role::ALL.map(|role| role.word().repeat(30).into_bytes());
        SignedBundle::new("prod-1", "n1", |authority| authority.word().as_bytes().to_vec(), parts)
    }

    #[test]
    fn what_is_written_is_read_also_after_a_mail() {
        let text = requests().encode();
        assert_eq!(CsrBundle::decode(text.as_bytes()), Ok(requests()));
        let mailed = format!("\r\n{}\r\n\r\n", text.replace('\n', "  \r\n"));
        assert_eq!(CsrBundle::decode(mailed.as_bytes()), Ok(requests()));
        assert_eq!(SignedBundle::decode(signed().encode().as_bytes()), Ok(signed()));
        assert_eq!(signed().certificate(Role::Admin), "admin".repeat(30).as_bytes());
        assert_eq!(signed().authority(Authority::Client), b"client-ca");
    }

    #[test]
    fn lists_of_revoked_certificates_travel_along_where_there_are_some() {
        let some =
            |authority: Authority| (authority != Authority::Client).then(|| authority.word().repeat(50).into_bytes());
        let listed = signed().with_lists(some);
        let text = listed.encode();
        assert!(text.starts_with(&signed().encode()), "a reader finds the rest as before");
        assert_eq!(SignedBundle::decode(text.as_bytes()), Ok(listed.clone()));
        assert_eq!((listed.list(Authority::Client), signed().list(Authority::Peer)), (None, None));
        let twice = format!("{text}{}", text.get(text.find("\nagent-ca-revoked").unwrap()..).unwrap());
        assert!(matches!(SignedBundle::decode(twice.as_bytes()), Err(BundleError::More(_))));
    }

    #[test]
    fn other_authorities_travel_along_while_there_are_some() {
        let other = |authority: Authority| match authority {
            Authority::Peer => vec![b"old".to_vec(), b"older".to_vec()],
            Authority::Client => Vec::new(),
            Authority::Agent => vec![b"old".to_vec()],
        };
        let bundle = signed().with_lists(|_| Some(b"list".to_vec())).with_others(other);
        assert_eq!(SignedBundle::decode(bundle.encode().as_bytes()), Ok(bundle.clone()));
        assert_eq!((bundle.others(Authority::Peer).len(), bundle.others(Authority::Client).len()), (2, 0));
    }

    #[test]
    fn no_line_may_be_missing_changed_or_too_many() {
        let text = signed().encode();
        assert_eq!(CsrBundle::decode(text.as_bytes()), Err(BundleError::Head(REQUESTS)));
        let lines: Vec<&str> = text.lines().filter(|line| !line.is_empty()).collect();
        for at in 0..lines.len() {
            let is_body = !lines[at].contains([':', ' ']);
            let mut without = lines.clone();
            without.remove(at);
            let read = SignedBundle::decode(without.join("\n").as_bytes());
            // A line of a block is missed by whoever verifies what it holds.
            assert!(is_body || read.is_err(), "without `{}`", lines[at]);
            let mut twice = lines.clone();
            twice.insert(at, lines[at]);
            assert!(is_body || SignedBundle::decode(twice.join("\n").as_bytes()).is_err(), "twice `{}`", lines[at]);
            let cut = lines[..at].join("\n");
            assert!(SignedBundle::decode(cut.as_bytes()).is_err(), "up to `{}`", lines[at]);
        }
        assert_eq!(SignedBundle::decode(format!("{text}x").as_bytes()), Err(BundleError::More(lines.len() + 8)));
        assert_eq!(SignedBundle::decode(&vec![b' '; BYTES_MAX + 1]), Err(BundleError::TooLong));
        assert_eq!(SignedBundle::decode(b"\xff"), Err(BundleError::NotText));
        let spoilt = text.replacen("name: n1", "name: n1 n2", 1);
        assert!(matches!(SignedBundle::decode(spoilt.as_bytes()), Err(BundleError::Expected { line: 3, .. })));
        let spoilt = text.replacen("cGVl", "c*Vl", 1);
        assert!(matches!(SignedBundle::decode(spoilt.as_bytes()), Err(BundleError::Block(_))));
    }

    proptest! {
        #[test]
        fn no_change_of_bytes_makes_the_reader_panic(at in 0usize..2000, to in any::<u8>(), cut in 0usize..2000) {
            let mut bytes = requests().encode().into_bytes();
            let length = bytes.len();
            bytes[at % length] = to;
            bytes.truncate(length.saturating_sub(cut % length));
            if let Ok(read) = CsrBundle::decode(&bytes) {
                prop_assert_eq!(CsrBundle::decode(read.encode().as_bytes()), Ok(read));
            }
        }
    }
}
