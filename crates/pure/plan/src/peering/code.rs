//! The join code: where to go, whom to believe there, and the one-time token, in one line that can be pasted.
//!
//! **Rule:** whatever was typed is either a whole code or a reason; a slip of the finger is told apart from a code that is not
//! valid any more.

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use quorate_faults::{Code, Fault};
use sha2::{Digest, Sha256};

use super::Role;

/// Bytes of a token: not to be guessed, whatever the limit of attempts is.
pub const TOKEN_BYTES: usize = 16;
/// What every code begins with.
pub(super) const PREFIX: &str = "quorate-join-";
/// Characters of the longest code; more is not looked at.
pub(super) const TEXT_MAX: usize = 1024;
/// Bytes that tell a slip of the finger.
const CHECK_BYTES: usize = 4;
const VERSION: u8 = 1;
/// Of codes that hold the name of the node that they are for.
const VERSION_NAMED: u8 = 2;

/// What a code says.
#[derive(Clone, PartialEq, Eq)]
pub struct JoinCode {
    /// `HOST:PORT` of whoever invites.
    pub address: String,
    /// The cluster's token, which is no secret.
    pub cluster: String,
    /// The node that invites.
    pub inviter: String,
    /// As what.
    pub role: Role,
    /// The one-time token.
    pub token: [u8; TOKEN_BYTES],
    /// SHA-256 of the certificate of the agents' authority.
    pub pin: [u8; 32],
    /// Until when, in ms since 1970.
    pub expires_ms: u64,
    /// The name of the node that the code is for, if it is for one alone. The inviting node enforces it.
    pub name: Option<String>,
}

impl std::fmt::Debug for JoinCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The token stays out of logs.
        f.debug_struct("JoinCode")
            .field("address", &self.address)
            .field("cluster", &self.cluster)
            .finish_non_exhaustive()
    }
}

/// Why a text is no code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CodeError {
    /// It is something else.
    #[error("it does not begin with `quorate-join-`, and a short one has digits and letters alone, without U")]
    Other,
    /// It is far too long.
    #[error("it is too long")]
    Long,
    /// A character was changed, or is missing.
    #[error("a part of it is missing or was changed")]
    Damaged,
    /// A newer program made it.
    #[error("it was made by a newer program")]
    Newer,
    /// A short text with a wrong character.
    #[error("a character of it is wrong, or two were exchanged")]
    Typo,
    /// A short text that is too short or too long.
    #[error("a short one has 17 characters, and this has {0}")]
    Characters(usize),
    /// An approval secret, where a code is wanted.
    #[error("it is the secret that goes with a code, and not the code")]
    Secret,
    /// A code, where an approval secret is wanted.
    #[error("it is a join code, and not the secret that goes with it")]
    Code,
}

impl CodeError {
    /// The same as a fault.
    pub fn fault(self) -> Fault {
        Fault::new(Code::JoinCodeInvalid, "this is no join code")
            .hint("copy the whole line that `quorate peer invite` printed")
            .caused_by(self)
    }
}

/// The token of a request, which is sent in hex.
pub fn token_of(text: &str) -> Option<[u8; TOKEN_BYTES]> {
    let mut token = [0; TOKEN_BYTES];
    if text.len() != TOKEN_BYTES * 2 || !text.is_ascii() {
        return None;
    }
    for (at, byte) in token.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(at * 2..at * 2 + 2)?, 16).ok()?;
    }
    Some(token)
}

impl JoinCode {
    /// The text.
    pub fn encode(&self) -> String {
        let version = if self.name.is_some() { VERSION_NAMED } else { VERSION };
        let mut bytes = vec![version, self.role.number()];
        bytes.extend(self.expires_ms.to_be_bytes());
        bytes.extend(self.token);
        bytes.extend(self.pin);
        for text in [&self.address, &self.cluster, &self.inviter].into_iter().chain(&self.name) {
            // Names and addresses have at most 253 characters; what is longer would not be read back, and is not made.
            let text = text.as_bytes();
            let length = u8::try_from(text.len()).unwrap_or(u8::MAX);
            bytes.push(length);
            bytes.extend(text.iter().take(usize::from(length)));
        }
        let check = Sha256::digest(&bytes);
        bytes.extend(check.iter().take(CHECK_BYTES));
        format!("{PREFIX}{}", BASE64_URL_SAFE_NO_PAD.encode(bytes))
    }

    /// Reads what somebody typed or pasted; blanks and line ends do not matter.
    pub fn decode(text: &str) -> Result<JoinCode, CodeError> {
        if text.len() > TEXT_MAX * 4 {
            return Err(CodeError::Long);
        }
        let text: String = text.chars().filter(|c| !c.is_whitespace()).collect();
        if text.len() > TEXT_MAX {
            return Err(CodeError::Long);
        }
        let body = text.strip_prefix(PREFIX).ok_or(CodeError::Other)?;
        let bytes = BASE64_URL_SAFE_NO_PAD.decode(body).map_err(|_| CodeError::Damaged)?;
        let (content, check) =
            bytes.len().checked_sub(CHECK_BYTES).and_then(|at| bytes.split_at_checked(at)).ok_or(CodeError::Damaged)?;
        if !Sha256::digest(content).starts_with(check) {
            return Err(CodeError::Damaged);
        }
        let mut rest = Bytes(content);
        let version = rest.byte()?;
        if !matches!(version, VERSION | VERSION_NAMED) {
            return Err(CodeError::Newer);
        }
        let role = Role::of_number(rest.byte()?).ok_or(CodeError::Newer)?;
        let expires_ms = u64::from_be_bytes(rest.array()?);
        let (token, pin) = (rest.array()?, rest.array()?);
        let (address, cluster, inviter) = (rest.text()?, rest.text()?, rest.text()?);
        let name = if version == VERSION_NAMED { Some(rest.text()?) } else { None };
        if !rest.0.is_empty() {
            return Err(CodeError::Damaged);
        }
        Ok(JoinCode { address, cluster, inviter, role, token, pin, expires_ms, name })
    }
}

/// What is left to be read.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn byte(&mut self) -> Result<u8, CodeError> {
        let (first, rest) = self.0.split_first().ok_or(CodeError::Damaged)?;
        self.0 = rest;
        Ok(*first)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], CodeError> {
        let (first, rest) = self.0.split_first_chunk::<N>().ok_or(CodeError::Damaged)?;
        self.0 = rest;
        Ok(*first)
    }

    fn text(&mut self) -> Result<String, CodeError> {
        let length = usize::from(self.byte()?);
        let (text, rest) = self.0.split_at_checked(length).ok_or(CodeError::Damaged)?;
        self.0 = rest;
        String::from_utf8(text.to_vec()).map_err(|_| CodeError::Damaged)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code() -> JoinCode {
        JoinCode {
            address: "10.0.0.1:7700".to_owned(),
            cluster: "prod-1".to_owned(),
            inviter: "n1".to_owned(),
            role: Role::Server,
            token: [7; TOKEN_BYTES],
            pin: [9; 32],
            expires_ms: 1_800_000_000_000,
            name: None,
        }
    }

    #[test]
    fn a_code_is_read_back_also_when_it_was_wrapped_by_a_mail_program() {
        let text = code().encode();
        assert!(text.len() < 160, "{text}");
        assert_eq!(JoinCode::decode(&text), Ok(code()));
        let (head, tail) = text.split_at(40);
        assert_eq!(JoinCode::decode(&format!(" {head}\n  {tail}\r\n")), Ok(code()));
        assert!(!format!("{:?}", code()).contains("[7"), "the token is not shown");
    }

    #[test]
    fn reads_the_name_that_a_code_is_for_and_codes_of_releases_without_it() {
        let named = JoinCode { name: Some("n4".to_owned()), ..code() };
        assert_eq!(JoinCode::decode(&named.encode()), Ok(named));
        // Made by a release that had no names in codes.
        let old = "quorate-join-AQEAAAGjGFxQAAcHBwcHBwcHBwcHBwcHBwcJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQ0xMC4wLjAu\
            MTo3NzAwBnByb2QtMQJuMXSvX-w";
        assert_eq!(code().encode(), old);
        assert_eq!(JoinCode::decode(old), Ok(code()));
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_the_reader_panic(text: String, tail in "[A-Za-z0-9_-]{0,300}", bytes: Vec<u8>) {
            let _ = (JoinCode::decode(&text), token_of(&text), JoinCode::decode(&format!("{PREFIX}{tail}")));
            let mut whole = bytes;
            let check = Sha256::digest(&whole);
            whole.extend(check.iter().take(CHECK_BYTES));
            if let Ok(code) = JoinCode::decode(&format!("{PREFIX}{}", BASE64_URL_SAFE_NO_PAD.encode(whole))) {
                assert_eq!(JoinCode::decode(&code.encode()), Ok(code));
            }
        }
    }

    #[test]
    fn a_token_is_read_as_it_is_sent() {
        let text = quorate_etcd_formats::hex::hex(&code().token);
        assert_eq!(token_of(&text), Some(code().token));
        for bad in ["", "zz", "+7", &"é".repeat(16), &text[1..]] {
            assert_eq!(token_of(bad), None);
        }
    }

    #[test]
    fn every_slip_of_the_finger_is_noticed() {
        let text = code().encode();
        for at in 0..text.len() {
            for with in ["", "A", "_"] {
                let mut changed = text.clone();
                changed.replace_range(at..=at, with);
                let read = JoinCode::decode(&changed);
                assert!(read.is_err() || changed == text, "{changed}");
            }
        }
        assert_eq!(JoinCode::decode(""), Err(CodeError::Other));
        assert_eq!(JoinCode::decode(&"x".repeat(9000)), Err(CodeError::Long));
        assert_eq!(JoinCode::decode("quorate-join-"), Err(CodeError::Damaged));
    }
}
