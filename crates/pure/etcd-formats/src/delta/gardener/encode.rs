//! Writes the body of a delta as etcd-backup-restore does, before compression.
//!
//! **Rule:** byte for byte what Go's encoder gives: no white space, zero and empty fields left out, revisions without
//! a hole.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use sha2::{Digest, Sha256};

use super::time::format_ms;
use crate::delta::Event;
use crate::delta::batch::{Disorder, Order, Summary};

/// Turns writes into the bytes of one delta. Drain [`GardenerWriter::out`] as often as you like.
#[derive(Default)]
pub struct GardenerWriter {
    /// Finished bytes.
    pub out: Vec<u8>,
    text: String,
    hasher: Sha256,
    order: Order,
}

impl GardenerWriter {
    /// Adds a write. Writes of one transaction follow each other, and transactions follow each other without a hole.
    pub fn push(&mut self, event: &Event<'_>) -> Result<(), Disorder> {
        let first = self.order.summary().is_none();
        self.order.place(event.kv.mod_revision)?;
        let kv = &event.kv;
        self.text.clear();
        self.text.push(if first { '[' } else { ',' });
        self.text.push_str(r#"{"etcdEvent":{"#);
        if event.tombstone {
            self.text.push_str(r#""type":1,"#);
        }
        self.text.push_str(r#""kv":{"key":""#);
        BASE64_STANDARD.encode_string(kv.key, &mut self.text);
        self.text.push('"');
        if !event.tombstone {
            self.number("create_revision", kv.create_revision);
        }
        self.number("mod_revision", kv.mod_revision);
        if !event.tombstone {
            self.number("version", kv.version);
            if !kv.value.is_empty() {
                self.text.push_str(r#","value":""#);
                BASE64_STANDARD.encode_string(kv.value, &mut self.text);
                self.text.push('"');
            }
            self.number("lease", kv.lease);
        }
        self.text.push_str(r#"}},"time":""#);
        self.text.push_str(&format_ms(event.time_ms));
        self.text.push_str("\"}");
        self.emit();
        Ok(())
    }

    /// Ends the array and adds its hash. The last bytes are in [`GardenerWriter::out`].
    pub fn finish(&mut self) -> Option<Summary> {
        let summary = self.order.summary();
        self.text.clear();
        self.text.push_str(if summary.is_none() { "[]" } else { "]" });
        self.emit();
        self.out.extend_from_slice(self.hasher.clone().finalize().as_slice());
        summary
    }

    fn number(&mut self, name: &str, value: i64) {
        if value != 0 {
            self.text.push_str(&format!(",\"{name}\":{value}"));
        }
    }

    fn emit(&mut self) {
        self.hasher.update(self.text.as_bytes());
        self.out.extend_from_slice(self.text.as_bytes());
    }
}
