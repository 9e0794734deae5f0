//! Member lists, as any source may send them: no bytes make the readers panic, and what is read can be checked.
#![no_main]

use libfuzzer_sys::fuzz_target;
use quorate_plan::roster::{
    Roster, check_url, parse_initial_cluster, parse_list, parse_member_flags, parse_member_value,
};

fn examine(roster: &Roster) {
    let _ = roster.check();
    let _ = roster.local(None);
    let _ = roster.local(Some("n1"));
}

fuzz_target!(|data: &[u8]| {
    if let Ok(roster) = parse_list(data, "fuzz") {
        examine(&roster);
    }
    let _ = parse_member_value("n1", data, "fuzz");
    let Ok(text) = std::str::from_utf8(data) else { return };
    let _ = check_url(text);
    if let Ok(roster) = parse_initial_cluster(text, "fuzz") {
        examine(&roster);
    }
    let flags: Vec<&str> = text.lines().collect();
    if let Ok(roster) = parse_member_flags(&flags) {
        examine(&roster);
    }
});
