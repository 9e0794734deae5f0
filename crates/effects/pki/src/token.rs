//! The secret that a plaintext agent shares with callers on its machine, and proofs of it.
//!
//! **Rule:** the secret itself is never sent. A process that took over the port of a stopped agent would receive it otherwise.

use std::fmt;

use aws_lc_rs::{hmac, rand};
use quorate_faults::{Code, Fault};
use zeroize::Zeroizing;

/// 256 bits.
const BYTES: usize = 32;
/// A nonce has 128 bits.
const NONCE_BYTES: usize = 16;

/// The secret.
pub struct AgentToken(Zeroizing<[u8; BYTES]>);

impl fmt::Debug for AgentToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AgentToken(…)")
    }
}

impl AgentToken {
    /// A new one.
    pub fn random() -> Result<AgentToken, Fault> {
        let mut bytes = Zeroizing::new([0; BYTES]);
        fill(&mut *bytes)?;
        Ok(AgentToken(bytes))
    }

    /// Reads the text of a token file.
    pub fn parse(text: &str) -> Option<AgentToken> {
        let mut bytes = Zeroizing::new([0; BYTES]);
        decode(text.trim_end_matches('\n'), &mut *bytes).then_some(AgentToken(bytes))
    }

    /// The text of its file.
    pub fn text(&self) -> Zeroizing<String> {
        let mut text = Zeroizing::new(String::with_capacity(2 * BYTES + 1));
        push_hex(&mut text, &*self.0);
        text.push('\n');
        text
    }

    /// Proves that the caller has the token, for these words and no others.
    pub fn prove(&self, words: &[&str]) -> String {
        let mut proof = String::with_capacity(2 * BYTES);
        push_hex(&mut proof, hmac::sign(&self.key(), &message(words)).as_ref());
        proof
    }

    /// Whether a proof is of this token and these words; compared in constant time.
    pub fn accepts(&self, words: &[&str], proof: &str) -> bool {
        let mut bytes = [0; BYTES];
        decode(proof, &mut bytes) && hmac::verify(&self.key(), &message(words), &bytes).is_ok()
    }

    fn key(&self) -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, &*self.0)
    }
}

/// A number that is used once, in hexadecimal digits.
pub fn nonce() -> Result<String, Fault> {
    let mut bytes = [0; NONCE_BYTES];
    fill(&mut bytes)?;
    let mut text = String::with_capacity(2 * NONCE_BYTES);
    push_hex(&mut text, &bytes);
    Ok(text)
}

fn fill(bytes: &mut [u8]) -> Result<(), Fault> {
    rand::fill(bytes).map_err(|_| Fault::new(Code::Internal, "there are no random numbers"))
}

/// Each word with its length before it, so that no two lists of words have the same bytes.
fn message(words: &[&str]) -> Vec<u8> {
    let of = |word: &&str| [&u64::try_from(word.len()).unwrap_or(u64::MAX).to_be_bytes()[..], word.as_bytes()].concat();
    words.iter().flat_map(of).collect()
}

fn push_hex(text: &mut String, bytes: &[u8]) {
    for byte in bytes {
        for half in [byte >> 4, byte & 15] {
            text.push(char::from_digit(u32::from(half), 16).unwrap_or('0'));
        }
    }
}

fn decode(text: &str, bytes: &mut [u8]) -> bool {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    if !rest.is_empty() || pairs.len() != bytes.len() {
        return false;
    }
    bytes.iter_mut().zip(pairs).all(|(byte, [high, low])| match (digit(*high), digit(*low)) {
        (Some(high), Some(low)) => {
            *byte = high << 4 | low;
            true
        }
        (None, _) | (_, None) => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_only_proofs_of_the_same_token_and_words() {
        let token = AgentToken::random().unwrap();
        let words = ["GET", "/v1/node", "1"];
        let proof = token.prove(&words);
        assert!(token.accepts(&words, &proof));
        assert!(AgentToken::parse(&token.text()).unwrap().accepts(&words, &proof));
        assert!(!AgentToken::random().unwrap().accepts(&words, &proof));
        for other in [&["GET", "/v1/node1", ""][..], &["PUT", "/v1/node", "1"], &["GET", "/v1/node"], &[]] {
            assert!(!token.accepts(other, &proof), "{other:?}");
        }
        for wrong in ["", "0", &proof[2..], &format!("{proof}00"), &"é".repeat(32), &"0".repeat(64)] {
            assert!(!token.accepts(&words, wrong), "{wrong}");
        }
    }

    #[test]
    fn shows_no_token_and_reads_only_whole_ones() {
        let token = AgentToken::random().unwrap();
        let text = token.text();
        assert_eq!(text.len(), 65);
        assert!(!format!("{token:?}").contains(text.trim()));
        for wrong in ["", "abc", &text[2..], &text.replace('\n', "00\n"), &"g".repeat(64)] {
            assert!(AgentToken::parse(wrong).is_none(), "{wrong}");
        }
    }
}
