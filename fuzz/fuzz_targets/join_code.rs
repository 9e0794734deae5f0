//! Join codes, as anybody may type them: no text makes the readers panic, and what is read is written back the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use quorate_plan::peering::{ApprovalSecret, JoinCode, TypedCode, token_of};

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let _ = token_of(text);
    for text in [text.to_owned(), format!("quorate-join-{text}")] {
        if let Ok(code) = JoinCode::decode(&text) {
            assert!(JoinCode::decode(&code.encode()).is_ok_and(|again| again == code));
        }
        match TypedCode::read(&text) {
            Ok(TypedCode::Long(code)) => assert!(JoinCode::decode(&text).is_ok_and(|again| again == code)),
            Ok(TypedCode::Short(code)) => {
                assert!(TypedCode::read(&code.encode()).is_ok_and(|again| again == TypedCode::Short(code)));
                assert!(ApprovalSecret::read(&text).is_err(), "it is one of both");
            }
            Err(_) => {}
        }
    }
    if let Ok(secret) = ApprovalSecret::read(text) {
        assert!(ApprovalSecret::read(&secret.encode()).is_ok_and(|again| again == secret));
    }
});
