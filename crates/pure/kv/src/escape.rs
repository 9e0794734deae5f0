//! Keys of any bytes as visible ASCII, for stores that only take text and put it into URLs.
//!
//! Letters, digits and `-._~/:@=+,` stay as they are; every other byte becomes `%` and two upper-case digits. So does a slash
//! or a dot at the beginning or after a slash: web servers take `//`, `/./` and `/../` for another place.
//!
//! **Invariant:** `a` begins with `b` exactly if the escaped `a` begins with the escaped `b`, and each key has one form.

/// A text that no key is escaped to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BadKey;

const DIGITS: &[u8; 16] = b"0123456789ABCDEF";

fn stays(byte: u8, before: u8) -> bool {
    let starts_segment = before == b'/';
    match byte {
        b'/' | b'.' => !starts_segment,
        _ => byte.is_ascii_alphanumeric() || b"-_~:@=+,".contains(&byte),
    }
}

/// A key as text.
pub fn escape(key: &[u8]) -> String {
    let mut text = String::with_capacity(key.len());
    let mut before = b'/';
    for byte in key {
        if stays(*byte, before) {
            text.push(char::from(*byte));
        } else {
            text.push('%');
            text.push(char::from(DIGITS[usize::from(byte >> 4)]));
            text.push(char::from(DIGITS[usize::from(byte & 15)]));
        }
        before = *byte;
    }
    text
}

/// The key of a text.
pub fn unescape(text: &str) -> Result<Vec<u8>, BadKey> {
    let mut key = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        let mut digit = || {
            let found = rest.next().and_then(|byte| DIGITS.iter().position(|digit| *digit == byte));
            found.and_then(|at| u8::try_from(at).ok()).ok_or(BadKey)
        };
        key.push(if byte == b'%' { digit()? << 4 | digit()? } else { byte });
    }
    // Other forms of the same key are somebody else's.
    if escape(&key) == text { Ok(key) } else { Err(BadKey) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn plain_keys_stay_readable_and_others_become_ascii() {
        assert_eq!(escape(b"peers/n1"), "peers/n1");
        assert_eq!(escape(b"a\xff%\0 b"), "a%FF%25%00%20b");
        assert_eq!(escape(b""), "");
        assert_eq!(escape(b"/a//b/../.c/d.e/"), "%2Fa/%2Fb/%2E./%2Ec/d.e/");
    }

    #[test]
    fn texts_that_no_key_has_are_refused() {
        for text in ["%", "%4", "%41", "%ff", "%zz", "a b", "\u{e9}", "%2", "a%", "\n", "/a", "a//b", "a/..", "."] {
            assert_eq!(unescape(text), Err(BadKey), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn every_key_comes_back_and_prefixes_stay_prefixes(key: Vec<u8>, other: Vec<u8>, cut: usize) {
            prop_assert_eq!(unescape(&escape(&key)), Ok(key.clone()));
            let prefix = &key[..cut % (key.len() + 1)];
            prop_assert!(escape(&key).starts_with(&escape(prefix)));
            prop_assert_eq!(escape(&key).starts_with(&escape(&other)), key.starts_with(&other));
        }

        #[test]
        fn a_text_that_is_taken_is_the_one_form_of_its_key(text: String) {
            if let Ok(key) = unescape(&text) {
                prop_assert_eq!(escape(&key), text);
            }
        }
    }
}
