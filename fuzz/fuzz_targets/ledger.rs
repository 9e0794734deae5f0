//! Ledgers: no bytes make the reader panic, and what is read is written back so that it is read the same.
#![no_main]

use std::fmt::Write;

use libfuzzer_sys::fuzz_target;
use quorate_plan::ledger::Ledger;
use sha2::{Digest, Sha256};

fuzz_target!(|data: &[u8]| {
    read(data);
    // Once more with a checksum that holds, of what follows the first line and of all of it.
    let below = data.iter().position(|byte| *byte == b'\n').map_or(data, |end| &data[end + 1..]);
    for body in [data, below] {
        let mut head = "quorate-ledger 1 sha256:".to_owned();
        Sha256::digest(body).iter().for_each(|byte| write!(head, "{byte:02x}").expect("text takes text"));
        read(&[head.as_bytes(), b"\n", body].concat());
    }
});

fn read(data: &[u8]) {
    if let Ok(ledger) = Ledger::decode(data) {
        assert_eq!(Ledger::decode(&ledger.encode()), Ok(ledger));
    }
}
