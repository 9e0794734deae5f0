//! Quorate's own deltas: what is written is read again, and nothing else is.

use proptest::prelude::*;
use quorate_etcd_formats::delta::quorate::{DeltaWriter, Name, QuorateDecoder};
use quorate_etcd_formats::delta::{Batch, Decoder, DeltaError, LeaseGrant, OwnedEvent};
use quorate_etcd_formats::mvcc::Revision;

fn encode(events: &[OwnedEvent], grants: &[LeaseGrant]) -> Vec<u8> {
    let mut writer = DeltaWriter::default();
    for grant in grants {
        writer.grant(*grant);
    }
    for event in events {
        writer.push(&event.lend()).expect("the history is in order");
    }
    writer.finish();
    writer.out
}

type Decoded = (Vec<OwnedEvent>, Vec<LeaseGrant>);

fn decode(bytes: &[u8], piece: usize) -> Result<Decoded, DeltaError> {
    let mut decoder = QuorateDecoder::default();
    let (mut events, mut grants) = (Vec::new(), Vec::new());
    let mut keep = |batch: &Batch| {
        events.extend(
            (0..batch.len()).map(|index| OwnedEvent::of(&batch.get(index).expect("a batch has what it counts"))),
        );
        grants.extend_from_slice(batch.grants());
    };
    for piece in bytes.chunks(piece) {
        decoder.feed(piece)?;
        while let Some(batch) = decoder.take(1) {
            keep(&batch);
        }
    }
    let (rest, _) = decoder.finish()?;
    keep(&rest);
    Ok((events, grants))
}

fn put(main: u64, sub: u64, key: &[u8], value: &[u8]) -> OwnedEvent {
    OwnedEvent {
        at: Revision { main, sub },
        key: key.to_vec(),
        value: value.to_vec(),
        create_revision: 2,
        version: 1,
        time_ms: Some(1_794_773_649_325),
        ..OwnedEvent::default()
    }
}

fn history() -> Vec<OwnedEvent> {
    let deleted =
        OwnedEvent { at: Revision { main: 8, sub: 0 }, tombstone: true, key: b"a".to_vec(), ..OwnedEvent::default() };
    let leased = OwnedEvent { lease: -7, ..put(9, 0, b"\0\xff", b"") };
    vec![put(7, 0, b"a", b"1"), put(7, 1, b"b", &[0xff; 300]), deleted, leased]
}

#[test]
fn what_is_written_is_read_again_whatever_the_pieces() {
    let grants = [LeaseGrant { id: -7, ttl: 60 }, LeaseGrant { id: 5, ttl: 1 }];
    let bytes = encode(&history(), &grants);
    for piece in [1, 3, 8, 50, bytes.len()] {
        assert_eq!(decode(&bytes, piece).unwrap(), (history(), grants.to_vec()), "{piece}");
    }
    assert_eq!(decode(&encode(&[], &[]), 9).unwrap(), (vec![], vec![]));
}

#[test]
fn a_value_larger_than_a_frame_is_one_frame() {
    let events = vec![put(3, 0, b"big", &vec![7; 3 << 20]), put(4, 0, b"next", b"x")];
    assert_eq!(decode(&encode(&events, &[]), 1 << 16).unwrap().0, events);
}

#[test]
fn every_cut_is_noticed() {
    let bytes = encode(&history(), &[]);
    for length in 0..bytes.len() {
        assert!(decode(&bytes[..length], 64).is_err(), "{length}");
    }
    assert_eq!(decode(&[&bytes[..], b"\0"].concat(), 64), Err(DeltaError::TooLong));
}

#[test]
fn every_flipped_bit_is_noticed() {
    let mut bytes = encode(&history(), &[LeaseGrant { id: 5, ttl: 1 }]);
    for at in 0..bytes.len() {
        for bit in 0..8 {
            bytes[at] ^= 1 << bit;
            assert!(decode(&bytes, 4096).is_err(), "{at} {bit}");
            bytes[at] ^= 1 << bit;
        }
    }
}

#[test]
fn frames_that_are_left_out_or_swapped_are_noticed() {
    // Big values close a frame each, so there are several with the same shape and valid checksums.
    let events: Vec<_> = (5..9).map(|main| put(main, 0, b"k", &vec![main as u8; 200 << 10])).collect();
    let bytes = encode(&events, &[]);
    let mut frames = Vec::new();
    let mut at = 8;
    while at < bytes.len() {
        let length = u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize + 8;
        frames.push(&bytes[at..at + length]);
        at += length;
    }
    assert!(frames.len() >= 5);
    for left_out in 0..frames.len() {
        let kept = frames.iter().enumerate().filter(|(index, _)| *index != left_out).map(|(_, frame)| *frame);
        let changed = [&bytes[..8]].into_iter().chain(kept).collect::<Vec<_>>().concat();
        assert!(decode(&changed, 1 << 16).is_err(), "{left_out}");
    }
    frames.swap(0, 1);
    assert!(decode(&[&[&bytes[..8]][..], &frames].concat().concat(), 1 << 16).is_err());
}

#[test]
fn a_writer_refuses_holes() {
    let mut writer = DeltaWriter::default();
    writer.push(&put(3, 0, b"a", b"").lend()).unwrap();
    assert!(writer.push(&put(5, 0, b"a", b"").lend()).is_err());
    assert!(writer.push(&put(2, 0, b"a", b"").lend()).is_err());
}

#[test]
fn names_round_trip_and_sort_by_revision() {
    let name = Name { first: Some(34), last: 66, epoch: 3, created_ms: 1_794_773_649_325 };
    assert_eq!(
        name.object(),
        "quorate-v1/delta/00000000000000000034-00000000000000000066-e00000003-01794773649325.zst"
    );
    assert_eq!(Name::parse(&format!("prefix/{}", name.object())), Some(name.clone()));
    let full = Name { first: None, ..name.clone() };
    assert_eq!(Name::parse(&full.object()), Some(full));
    let later = Name { first: Some(1000), last: 1000, ..name.clone() };
    assert!(name.object() < later.object());
    for not in [
        name.manifest(),
        "quorate-v1/delta/1-2.zst".into(),
        "delta/1-2-e1-1.zst".into(),
        "quorate-v1/full/x-e1-1.zst".into(),
    ] {
        assert_eq!(Name::parse(&not), None, "{not}");
    }
}

proptest! {
    #[test]
    fn no_bytes_make_the_reader_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300), piece in 1usize..64) {
        let _ = decode(&bytes, piece);
        let _ = decode(&[b"QRTDELT1".as_slice(), &bytes].concat(), piece);
    }

    #[test]
    fn no_valid_frame_of_any_payload_makes_the_reader_panic(payload in proptest::collection::vec(any::<u8>(), 0..200)) {
        let head = [(payload.len() as u32).to_le_bytes(), crc32c::crc32c(&payload).to_le_bytes()].concat();
        let _ = decode(&[b"QRTDELT1".as_slice(), &head, &payload].concat(), 4096);
    }

    #[test]
    fn any_history_round_trips(values in proptest::collection::vec((any::<Vec<u8>>(), 0u64..2, any::<bool>(), any::<i64>()), 1..40)) {
        let mut at = Revision { main: 1, sub: 0 };
        let events: Vec<_> = values.into_iter().map(|(value, step, tombstone, lease)| {
            at = if step == 0 { Revision { main: at.main, sub: at.sub + 1 } } else { Revision { main: at.main + 1, sub: 0 } };
            let at = Revision { main: at.main, sub: at.sub };
            if tombstone {
                OwnedEvent { at, tombstone, key: b"k".to_vec(), ..OwnedEvent::default() }
            } else {
                OwnedEvent { at, key: b"k".to_vec(), value, create_revision: 1, version: 1, lease, time_ms: Some(1), ..OwnedEvent::default() }
            }
        }).collect();
        // Places in the first transaction begin at 0.
        let first = events[0].at.main;
        let events: Vec<_> = events.into_iter().map(|mut event| {
            if event.at.main == first && first == 1 { event.at.sub -= 1; }
            event
        }).collect();
        prop_assert_eq!(decode(&encode(&events, &[]), 1000).unwrap().0, events);
    }
}
