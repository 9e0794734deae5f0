//! Keys as Consul lists them: no text makes the reader panic, each key has one text, and prefixes stay prefixes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use quorate_kv::{escape, unescape};

fuzz_target!(|data: &[u8]| {
    let text = escape(data);
    assert!(text.is_ascii());
    assert_eq!(unescape(&text).as_deref(), Ok(data));
    let (prefix, _) = data.split_at(data.len() / 2);
    assert!(text.starts_with(&escape(prefix)));
    let Ok(foreign) = std::str::from_utf8(data) else { return };
    if let Ok(key) = unescape(foreign) {
        assert_eq!(escape(&key), foreign);
    }
});
