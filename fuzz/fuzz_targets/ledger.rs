//! Ledgers: no bytes make the reader panic, and what is read is written back so that it is read the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use quorate_plan::ledger::Ledger;

fuzz_target!(|data: &[u8]| {
    if let Ok(ledger) = Ledger::decode(data) {
        assert_eq!(Ledger::decode(&ledger.encode()), Ok(ledger));
    }
});
