//! A snapshot that is broken in any way, in pieces of any size: what is said does not depend on the pieces.
//!
//! The first byte is the size of the pieces, in steps of 37 bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use quorate_etcd_formats::passing::{Passed, Passing, PassingError};
use quorate_fuzz::seal_bolt;
use sha2::{Digest, Sha256};

const HASH_BYTES: usize = 32;

fuzz_target!(|data: &[u8]| {
    let Some((size, data)) = data.split_first() else { return };
    let size = usize::from(*size) * 37 + 1;
    check(data, size);
    // Once more with meta pages and a hash that hold, so that what lies behind them is reached too.
    let mut sealed = seal_bolt(data.get(..data.len().saturating_sub(HASH_BYTES)).unwrap_or_default().to_vec());
    let hash = Sha256::digest(&sealed);
    sealed.extend_from_slice(&hash);
    check(&sealed, size);
});

fn check(bytes: &[u8], size: usize) {
    assert_eq!(pass(bytes, size), pass(bytes, bytes.len().max(1)));
}

fn pass(bytes: &[u8], size: usize) -> Result<Passed, PassingError> {
    let mut passing = Passing::new();
    bytes.chunks(size).for_each(|piece| passing.push(piece));
    passing.finish()
}
