//! Cluster files: no bytes make the reader panic, and every mistake can be shown.
#![no_main]

use libfuzzer_sys::fuzz_target;
use quorate_plan::spec::Spec;

fuzz_target!(|data: &[u8]| match Spec::parse(data, "fuzz") {
    Ok((spec, _)) => {
        let _ = (spec.hash(), spec.founding_ids());
    }
    Err(mistakes) => {
        assert!(!mistakes.mistakes.is_empty());
        let _ = (mistakes.render(), mistakes.fault());
    }
});
