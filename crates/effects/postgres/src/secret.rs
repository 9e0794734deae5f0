//! A password.
//!
//! **Invariant:** it is never shown, and its memory is wiped.

use zeroize::Zeroizing;

/// A password: visible ASCII, so that every program agrees on its bytes.
#[derive(Clone)]
pub struct Secret(Zeroizing<String>);

impl Secret {
    /// Takes it over.
    pub fn new(text: String) -> Secret {
        Secret(Zeroizing::new(text))
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }

    /// Whether all programs read the same from it: other characters are normalised by some and not by others.
    pub(crate) fn is_plain(&self) -> bool {
        !self.0.is_empty() && self.0.bytes().all(|byte| (0x21..=0x7e).contains(&byte))
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(…)")
    }
}
