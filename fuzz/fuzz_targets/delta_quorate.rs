//! One of our own deltas, broken in any way and fed in pieces of any size: refused, never a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use quorate_etcd_formats::delta::Decoder;
use quorate_etcd_formats::delta::quorate::{Epoch, Manifest, Name, QuorateDecoder};

fuzz_target!(|data: &[u8]| {
    let Some((piece, data)) = data.split_first() else { return };
    let piece = usize::from(*piece).max(1);
    decode(data, piece);
    // Once more as a frame whose checksum holds, so that what lies behind it is reached too.
    let length = (data.len() as u32).to_le_bytes();
    let framed = [b"QRTDELT1".as_slice(), &length, &crc32c::crc32c(data).to_le_bytes(), data].concat();
    decode(&framed, piece);
    let _ = (Manifest::parse(data), Epoch::parse(data));
    if let Ok(text) = std::str::from_utf8(data) {
        let _ = Name::parse(text);
    }
});

fn decode(data: &[u8], piece: usize) {
    let mut decoder = QuorateDecoder::default();
    if data.chunks(piece).try_for_each(|piece| decoder.feed(piece)).is_ok() {
        let _ = decoder.finish();
    }
    // Whatever a cut left of a spool's segment: what is kept of it is a whole delta.
    if let Some(salvage) = decoder.salvage() {
        let kept = [&data[..salvage.bytes as usize], &salvage.end()].concat();
        let mut again = QuorateDecoder::default();
        again.feed(&kept).expect("what was read once is read again");
        let (_, summary) = again.finish().expect("it has an end");
        assert_eq!(summary, Some(salvage.summary));
    }
}
