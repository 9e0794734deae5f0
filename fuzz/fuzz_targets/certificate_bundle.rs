//! Requests and certificates as they travel: no bytes make the readers panic, and what is read is written back so that it is read
//! the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use quorate_plan::certificates::{CsrBundle, SignedBundle};

fuzz_target!(|data: &[u8]| {
    read(data);
    // Once more behind first lines that hold.
    for head in ["quorate certificate requests 1\ntoken: t\nname: n1\n", "quorate certificates 1\ntoken: t\nname: n1\n"]
    {
        read(&[head.as_bytes(), data].concat());
    }
});

fn read(data: &[u8]) {
    if let Ok(bundle) = CsrBundle::decode(data) {
        assert_eq!(CsrBundle::decode(bundle.encode().as_bytes()), Ok(bundle));
    }
    if let Ok(bundle) = SignedBundle::decode(data) {
        assert_eq!(SignedBundle::decode(bundle.encode().as_bytes()), Ok(bundle));
    }
}
