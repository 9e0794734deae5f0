//! A delta of etcd-backup-restore, broken in any way and fed in pieces of any size: refused, never a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use quorate_etcd_formats::delta::Decoder;
use quorate_etcd_formats::delta::gardener::{GardenerDecoder, Name, parse_ms};

fuzz_target!(|data: &[u8]| {
    let Some((piece, data)) = data.split_first() else { return };
    let mut decoder = GardenerDecoder::default();
    let fed = data.chunks(usize::from(*piece).max(1)).try_for_each(|piece| decoder.feed(piece));
    if fed.is_ok() {
        let _ = decoder.finish();
    }
    let _ = parse_ms(data);
    if let Ok(text) = std::str::from_utf8(data) {
        let _ = Name::parse(text);
    }
});
