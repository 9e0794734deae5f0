//! A snapshot file that is broken in any way: verify ends with findings, never with a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use quorate_fuzz::{examine_snapshot, seal_bolt};

fuzz_target!(|data: &[u8]| {
    examine_snapshot(data);
    examine_snapshot(&seal_bolt(data.to_vec()));
});
