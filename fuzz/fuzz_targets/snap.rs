//! A data dir whose raft snapshot is broken in any way: verify ends with findings, never with a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use quorate_fuzz::{Files, seal_snap};

fuzz_target!(|data: &[u8]| {
    Files { snap: data, ..Files::good() }.examine();
    // Once more with a checksum that holds, so that what it protects is reached too.
    if let Some(sealed) = seal_snap(data) {
        Files { snap: &sealed, ..Files::good() }.examine();
    }
});
