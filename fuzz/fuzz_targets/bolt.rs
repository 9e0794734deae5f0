//! A data dir whose database is broken in any way: verify ends with findings, never with a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use quorate_fuzz::{Files, seal_bolt};

fuzz_target!(|data: &[u8]| {
    Files { db: data, ..Files::good() }.examine();
    // Once more with meta pages that pass their checksum, so that what lies behind them is reached too.
    let sealed = seal_bolt(data.to_vec());
    Files { db: &sealed, ..Files::good() }.examine();
});
