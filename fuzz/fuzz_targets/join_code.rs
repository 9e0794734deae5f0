//! Join codes, as anybody may type them: no text makes the reader panic, and what is read is written back the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use quorate_plan::peering::{JoinCode, token_of};

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let _ = token_of(text);
    for text in [text.to_owned(), format!("quorate-join-{text}")] {
        if let Ok(code) = JoinCode::decode(&text) {
            assert!(JoinCode::decode(&code.encode()).is_ok_and(|again| again == code));
        }
    }
});
