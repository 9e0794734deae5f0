//! Operators of a cluster under test, and what they sign.

#![allow(dead_code, reason = "not every test uses all of it")]

use std::io::Write;
use std::path::{Path, PathBuf};

use jiff::{SignedDuration, Timestamp};
use quorate_agent::peers::text_hash;
use quorate_pki::{OperatorRequest, ensure_operator_authority, ensure_operator_certificate, sign_order};
use quorate_plan::certificates::OperatorRole;
use quorate_plan::file_order::{FileOrder, HOLDS_MS, SignedFileOrder};
use serde_json::Value;

/// Where a cluster's authorities are kept, and its operators.
pub(crate) struct Office {
    pub(crate) dir: PathBuf,
}

impl Office {
    pub(crate) fn new(dir: PathBuf) -> Office {
        ensure_operator_authority(&dir, "t", None, Timestamp::now()).unwrap();
        Office { dir }
    }

    /// The files of an operator; `ago`: it was issued so many days ago, for one day.
    pub(crate) fn operator(&self, name: &str, role: OperatorRole, ago: i64) -> [PathBuf; 2] {
        let out = self.dir.join(name);
        let now = Timestamp::now() - SignedDuration::from_hours(24 * ago);
        let request = OperatorRequest { name, role, days: 1, out: &out };
        ensure_operator_certificate(&self.dir, None, &request, now).unwrap().files
    }

    /// Has every node know the authority, and whom it revoked. `root`: where its certificates are.
    pub(crate) fn install(&self, root: &Path) {
        for name in ["operators.crt", "operators.crl"] {
            if let Ok(bytes) = std::fs::read(self.dir.join(name)) {
                put(&root.join(name), &bytes);
            }
        }
    }
}

fn put(path: &Path, bytes: &[u8]) {
    std::fs::File::create(path).unwrap().write_all(bytes).unwrap();
}

/// An order for a text, in the place of what a node reports.
pub(crate) fn order_for(node: &Value, text: &str, serial: u64) -> FileOrder {
    let now = u64::try_from(Timestamp::now().as_millisecond()).unwrap();
    let id = node["founding"]["cluster"].clone();
    FileOrder {
        token: "t".to_owned(),
        cluster: serde_json::from_value(id).ok(),
        replaces: vec![node["file"].as_str().unwrap().to_owned()],
        serial,
        signed_ms: now,
        expires_ms: now + HOLDS_MS,
        text: text_hash(text),
    }
}

/// Signs it.
pub(crate) fn signed(files: &[PathBuf; 2], order: &FileOrder) -> SignedFileOrder {
    sign_order(&files[0], &files[1], order).unwrap()
}
