//! SCRAM-SHA-256 verifiers, made here: the server stores what proves a password, and never hears the password itself.
//!
//! **Invariant:** nothing that is returned or logged lets anyone log in.

use std::num::NonZeroU32;

use aws_lc_rs::{digest, hmac, pbkdf2, rand};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use quorate_faults::{Code, Fault};
use zeroize::Zeroizing;

use crate::Secret;

/// PostgreSQL's own number of rounds.
const ROUNDS: u32 = 4096;
/// More than this in a stored verifier would only cost time.
const ROUNDS_MAX: u32 = 1_000_000;
const SALT_BYTES: usize = 16;

/// A fresh verifier for a password.
pub(crate) fn verifier(password: &Secret) -> Result<String, Fault> {
    if !password.is_plain() {
        return Err(Fault::new(Code::PgPassword, "this password cannot be used")
            .hint("use visible ASCII characters without blanks: programs disagree about all others"));
    }
    let mut salt = [0; SALT_BYTES];
    rand::fill(&mut salt).map_err(|_| Fault::new(Code::Internal, "the system gives no random numbers"))?;
    Ok(with(password, &salt, ROUNDS))
}

/// Whether a stored verifier is one of this password.
pub(crate) fn fits(stored: &str, password: &Secret) -> bool {
    let read = || {
        let (rounds, rest) = stored.strip_prefix("SCRAM-SHA-256$")?.split_once(':')?;
        let salt = STANDARD.decode(rest.split_once('$')?.0).ok()?;
        let rounds: u32 = rounds.parse().ok().filter(|rounds| (1..=ROUNDS_MAX).contains(rounds))?;
        Some(with(password, &salt, rounds) == stored)
    };
    password.is_plain() && read().unwrap_or(false)
}

fn with(password: &Secret, salt: &[u8], rounds: u32) -> String {
    let mut salted = Zeroizing::new([0; digest::SHA256_OUTPUT_LEN]);
    let times = NonZeroU32::new(rounds).unwrap_or(NonZeroU32::MIN);
    pbkdf2::derive(pbkdf2::PBKDF2_HMAC_SHA256, times, salt, password.bytes(), &mut *salted);
    let key = hmac::Key::new(hmac::HMAC_SHA256, &*salted);
    let client = hmac::sign(&key, b"Client Key");
    let stored = digest::digest(&digest::SHA256, client.as_ref());
    let server = hmac::sign(&key, b"Server Key");
    let text = |bytes: &[u8]| STANDARD.encode(bytes);
    format!("SCRAM-SHA-256${rounds}:{}${}:{}", text(salt), text(stored.as_ref()), text(server.as_ref()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verifier_is_recognised_and_another_password_is_not() {
        let secret = |text: &str| Secret::new(text.to_owned());
        let made = verifier(&secret("pencil")).unwrap();
        assert!(made.starts_with("SCRAM-SHA-256$4096:") && !made.contains("pencil"));
        assert!(fits(&made, &secret("pencil")) && !fits(&made, &secret("pencils")));
        assert!(!fits("md5abc", &secret("pencil")) && !fits("SCRAM-SHA-256$0:x$y:z", &secret("pencil")));
        assert_eq!(verifier(&secret("with blank")).unwrap_err().code(), Code::PgPassword);
        assert_eq!(format!("{:?}", secret("pencil")), "Secret(…)");
    }

    /// The exchange of RFC 7677, chapter 3, with the keys computed from its salt.
    #[test]
    fn the_keys_are_those_of_the_standard() {
        let salt = STANDARD.decode("W22ZaJ0SNY7soEsUEjb6gQ==").unwrap();
        let made = with(&Secret::new("pencil".to_owned()), &salt, 4096);
        let expected = "WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU=";
        assert_eq!(made, format!("SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==${expected}"));
    }
}
