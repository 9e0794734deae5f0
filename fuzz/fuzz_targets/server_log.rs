//! Lines of etcd's log: none makes the reader panic, and none that is not etcd's own message decides about a start.
#![no_main]

use libfuzzer_sys::fuzz_target;
use quorate_plan::server_log::{parse, parse_other};
use quorate_plan::start::{classify, hindrance};

fuzz_target!(|data: &[u8]| {
    let text = String::from_utf8_lossy(data);
    let _ = text.lines().filter_map(parse_other).count();
    let understood = text.lines().filter(|line| parse(line).is_some()).count();
    if classify(&text).is_some() || hindrance(&text).is_some() {
        assert!(understood > 0);
    }
});
