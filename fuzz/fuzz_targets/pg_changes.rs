//! What a slot of PostgreSQL has for its subscriber: no bytes make the reader panic, and what is read is not older than asked.
//!
//! Two bytes before each message say how long it is.
#![no_main]

use libfuzzer_sys::fuzz_target;
use quorate_plan::postgres::{first_after, position_text};

const BEGIN: &[u8] = b"B\0\0\0\0\0\0\0\x20\0\0\0\0\0\0\0\0\0\0\0\0";
const RELATION: &[u8] = b"R\0\0\0\x07shop\0u\0d\0\x02\x01id\0\0\0\0\0\0\0\0\0\x00v\0\0\0\0\0\0\0\0\0";
const COMMIT: &[u8] = b"C";

fuzz_target!(|data: &[u8]| {
    let messages = messages(data);
    read(&messages);
    // Once more in a transaction that is begun, with a table that is told, and that ends.
    read(&[[BEGIN, RELATION].as_slice(), &messages, &[COMMIT]].concat());
    read(&[BEGIN, RELATION, data, COMMIT]);
});

fn messages(mut data: &[u8]) -> Vec<&[u8]> {
    let mut found = Vec::new();
    while let Some((length, rest)) = data.split_first_chunk::<2>() {
        let length = usize::from(u16::from_be_bytes(*length)).min(rest.len());
        let (message, rest) = rest.split_at(length);
        found.push(message);
        data = rest;
    }
    found
}

fn read(messages: &[&[u8]]) {
    for applied in [0, 0x20, u64::MAX] {
        if let Ok(Some(found)) = first_after(messages.iter().copied(), applied) {
            assert!(found.finish >= applied, "{}", position_text(found.finish));
        }
    }
}
