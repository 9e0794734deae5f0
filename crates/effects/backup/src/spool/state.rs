//! The spool's small state file: whose history it holds, and how far that is proven to be in the store.
//!
//! **Invariant:** what does not match its checksum is no state.

use quorate_plan::chain::Layout;
use serde::{Deserialize, Serialize};

/// The first word of the file, and its version.
const HEAD: &str = "quorate-spool/1";

/// What a spool knows beyond its segments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpoolState {
    /// The cluster that is recorded.
    pub cluster_id: u64,
    /// The writer's epoch.
    pub epoch: u64,
    /// How objects are written.
    pub layout: Layout,
    /// Everything up to this revision is proven to be in the store, or is not for this spool to record. The next write
    /// that belongs here has the revision after it.
    pub stored: u64,
}

#[derive(Serialize, Deserialize)]
struct Text {
    cluster_id: String,
    epoch: u64,
    layout: String,
    stored: u64,
}

impl SpoolState {
    /// The file's text: a line with the checksum of the second one.
    pub(super) fn to_text(&self) -> String {
        let layout = match self.layout {
            Layout::Quorate => "quorate",
            Layout::Gardener => "gardener",
        };
        let text = Text {
            cluster_id: format!("{:x}", self.cluster_id),
            epoch: self.epoch,
            layout: layout.to_owned(),
            stored: self.stored,
        };
        // Strings and numbers only: there is nothing that could fail to be written.
        let json = serde_json::to_string(&text).unwrap_or_default();
        format!("{HEAD} {:08x}\n{json}\n", crc32c::crc32c(json.as_bytes()))
    }

    /// Reads it. `None`: it is not one, or not whole.
    pub(super) fn parse(bytes: &[u8]) -> Option<SpoolState> {
        let (head, rest) = std::str::from_utf8(bytes).ok()?.split_once('\n')?;
        let json = rest.strip_suffix('\n')?;
        let sum = u32::from_str_radix(head.strip_prefix(HEAD)?.strip_prefix(' ')?, 16).ok()?;
        if crc32c::crc32c(json.as_bytes()) != sum {
            return None;
        }
        let text: Text = serde_json::from_str(json).ok()?;
        let layout = match text.layout.as_str() {
            "quorate" => Layout::Quorate,
            "gardener" => Layout::Gardener,
            _ => return None,
        };
        let cluster_id = u64::from_str_radix(&text.cluster_id, 16).ok()?;
        Some(SpoolState { cluster_id, epoch: text.epoch, layout, stored: text.stored })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_read_as_it_was_written_and_no_changed_byte_passes() {
        let state = SpoolState { cluster_id: u64::MAX, epoch: 3, layout: Layout::Gardener, stored: 120 };
        let text = state.to_text();
        assert_eq!(SpoolState::parse(text.as_bytes()), Some(state));
        for at in 0..text.len() {
            let mut bytes = text.clone().into_bytes();
            // The checksum is read in either case of its digits.
            bytes[at] ^= if bytes[at].is_ascii_alphabetic() { 1 } else { 4 };
            assert_eq!(SpoolState::parse(&bytes), None, "{at}");
            assert_eq!(SpoolState::parse(&text.as_bytes()[..at]), None, "{at}");
        }
    }
}
