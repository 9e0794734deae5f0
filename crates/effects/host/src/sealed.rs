//! Small JSON files that say themselves whether they are whole: one line of JSON, and one with its CRC-32C.
//!
//! **Invariant:** what does not match its checksum is never read as if it did.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Longer files are not ours; it bounds what a reader takes into memory.
pub(crate) const SEALED_MAX: u64 = 1 << 20;

/// A value as the bytes of such a file.
pub(crate) fn seal<T: Serialize>(value: &T) -> Result<Vec<u8>, serde_json::Error> {
    let mut bytes = serde_json::to_vec(value)?;
    let sum = crc32c::crc32c(&bytes);
    bytes.extend_from_slice(format!("\ncrc32c {sum:08x}\n").as_bytes());
    Ok(bytes)
}

/// The value in the bytes of such a file, or why it cannot be had.
pub(crate) fn unseal<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    let at = bytes.iter().position(|byte| *byte == b'\n').ok_or("it ends before its checksum")?;
    let (json, seal) = bytes.split_at(at);
    if seal != format!("\ncrc32c {:08x}\n", crc32c::crc32c(json)).as_bytes() {
        return Err("its checksum does not match".to_owned());
    }
    serde_json::from_slice(json).map_err(|error| format!("its JSON is not understood: {error}"))
}

/// Reads a file of at most [`SEALED_MAX`] bytes; `None`: there is none.
pub(crate) fn read_small(path: &std::path::Path) -> std::io::Result<Option<Vec<u8>>> {
    use std::io::Read;
    let file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut bytes = Vec::new();
    file.take(SEALED_MAX).read_to_end(&mut bytes)?;
    Ok(Some(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_of_any_byte_is_noticed() {
        let whole = seal(&vec!["a", "b"]).unwrap();
        assert_eq!(unseal::<Vec<String>>(&whole).unwrap(), ["a", "b"]);
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            assert!(unseal::<Vec<String>>(&damaged).is_err(), "byte {at}");
            assert!(unseal::<Vec<String>>(&whole[..at]).is_err(), "cut at {at}");
        }
    }
}
