//! Any set of objects: a chain has no hole, and a restore point that can be read is written the same way again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use quorate_plan::chain::{EpochStart, Kind, Layout, Object, State, Target, decide};
use quorate_plan::restore_point::RestorePoint;

fuzz_target!(|data: &[u8]| {
    let objects: Vec<Object> = data.chunks_exact(6).take(64).map(object).collect();
    let epochs: Vec<EpochStart> = data
        .chunks_exact(5)
        .take(3)
        .map(|bytes| EpochStart { epoch: u64::from(bytes[0] % 4), begins_at: u64::from(bytes[1]) })
        .collect();
    let target = match data.first() {
        Some(byte) if byte % 3 == 0 => Target::Revision(u64::from(*byte)),
        Some(byte) if byte % 3 == 1 => Target::Time(i64::from(*byte)),
        _ => Target::Newest,
    };
    let decision = decide(&objects, &epochs, target);
    assert_eq!(decision.uses.len(), objects.len());
    if let Some(chain) = decision.chain {
        let mut reach = objects[chain.base].last;
        for (index, to) in chain.deltas {
            let delta = &objects[index];
            assert!(delta.first <= reach.saturating_add(1) && to > reach && to <= delta.last);
            reach = to;
        }
        assert_eq!(reach, chain.reach);
    }
    if let Ok(text) = std::str::from_utf8(data)
        && let Ok(point) = text.parse::<RestorePoint>()
    {
        assert_eq!(point.to_string(), text);
    }
});

fn object(bytes: &[u8]) -> Object {
    let kind = if bytes[0] % 3 == 0 { Kind::Full } else { Kind::Delta };
    let first = u64::from(bytes[1]);
    let last = if kind == Kind::Full { first } else { first + u64::from(bytes[2] % 32) };
    Object {
        name: String::new(),
        kind,
        layout: Layout::Quorate,
        first,
        last,
        created_ms: i64::from(bytes[3]),
        bytes: 0,
        epoch: u64::from(bytes[4] % 4),
        cluster_id: u64::from(bytes[5] % 3),
        state: if bytes[5] > 200 { State::Bad(String::new()) } else { State::Claimed },
    }
}
