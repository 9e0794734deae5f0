//! A data dir whose log is broken in any way: verify ends with findings, never with a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use quorate_fuzz::{Files, seal_wal};

fuzz_target!(|data: &[u8]| {
    Files { wal: data, ..Files::good() }.examine();
    // Once more with a checksum chain that holds, so that what the records carry is reached too.
    let sealed = seal_wal(data);
    Files { wal: &sealed, ..Files::good() }.examine();
});
