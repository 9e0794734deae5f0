//! What a node is, in its file: no bytes make the reader panic, and what is read is written back so that it is read the same.
#![no_main]

use std::fmt::Write;

use libfuzzer_sys::fuzz_target;
use quorate_plan::peering::LocalState;
use sha2::{Digest, Sha256};

fuzz_target!(|data: &[u8]| {
    read(data);
    // Once more with a checksum that holds.
    let mut head = "quorate node 1 ".to_owned();
    Sha256::digest(data).iter().for_each(|byte| write!(head, "{byte:02x}").expect("text takes text"));
    read(&[head.as_bytes(), b"\n", data, b"\n"].concat());
});

fn read(data: &[u8]) {
    if let Ok(state) = LocalState::decode(data) {
        assert_eq!(LocalState::decode(state.encode().as_bytes()), Ok(state));
    }
}
