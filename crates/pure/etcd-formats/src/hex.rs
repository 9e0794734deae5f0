//! Bytes as hex digits, and back: how hashes and digests are written in manifests, points and messages.
//!
//! **Rule:** always lower case and two digits a byte, so that texts can be compared instead of bytes.

use std::fmt::Write;

/// Bytes as lower-case hex digits.
pub fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        // Writing into a `String` cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// 64 hex digits as a SHA-256; upper case is read as well. Anything else is `None`.
pub fn unhex(text: &str) -> Option<[u8; 32]> {
    let (pairs, []) = text.as_bytes().as_chunks::<2>() else { return None };
    let mut bytes = [0; 32];
    if pairs.len() != bytes.len() {
        return None;
    }
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
        *byte = digit(*high)? << 4 | digit(*low)?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        let bytes: [u8; 32] = std::array::from_fn(|at| (at * 37) as u8);
        assert_eq!(unhex(&hex(&bytes)), Some(bytes));
        assert_eq!(unhex(&hex(&bytes).to_uppercase()), Some(bytes));
        assert_eq!(hex(&[0, 0x0f, 0xf0]), "000ff0");
    }

    #[test]
    fn other_texts_are_no_hash() {
        for text in ["", "00", &"0".repeat(63), &"0".repeat(65), &"+f".repeat(32), &"0g".repeat(32), &"é".repeat(32)] {
            assert_eq!(unhex(text), None, "{text}");
        }
    }
}
