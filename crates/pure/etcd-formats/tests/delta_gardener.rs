//! Deltas of etcd-backup-restore: what the real tool wrote is read in full, and anything else is refused.

use proptest::prelude::*;
use quorate_etcd_formats::delta::gardener::{Compression, GardenerDecoder, Name};
use quorate_etcd_formats::delta::{Batch, Decoder, DeltaError, Disorder, OwnedEvent, Summary};
use sha2::{Digest, Sha256};

const REAL: &[u8] = include_bytes!("fixtures/gardener-34-66.delta");
const REAL_LATER: &[u8] = include_bytes!("fixtures/gardener-109-120.delta");

type Decoded = (Vec<OwnedEvent>, Option<Summary>);

fn decode(bytes: &[u8], piece: usize) -> Result<Decoded, DeltaError> {
    let mut decoder = GardenerDecoder::default();
    let mut events = Vec::new();
    let keep = |batch: &Batch, events: &mut Vec<OwnedEvent>| {
        events.extend(
            (0..batch.len()).map(|index| OwnedEvent::of(&batch.get(index).expect("a batch has what it counts"))),
        );
    };
    for piece in bytes.chunks(piece) {
        decoder.feed(piece)?;
        while let Some(batch) = decoder.take(1) {
            keep(&batch, &mut events);
        }
    }
    let (rest, summary) = decoder.finish()?;
    keep(&rest, &mut events);
    Ok((events, summary))
}

fn sealed(array: &str) -> Vec<u8> {
    let hash = Sha256::digest(array.as_bytes());
    [array.as_bytes(), hash.as_slice()].concat()
}

#[test]
fn what_the_real_tool_wrote_is_read_in_full() {
    let (events, summary) = decode(REAL, REAL.len()).unwrap();
    assert_eq!(summary, Some(Summary { first: 34, last: 66, events: events.len() as u64 }));
    // The last transaction puts two keys and deletes one.
    let last: Vec<_> = events.iter().filter(|event| event.at.main == 66).collect();
    let told: Vec<_> = last.iter().map(|event| (event.key.as_slice(), event.value.as_slice(), event.at.sub)).collect();
    assert_eq!(told, [(&b"txn-a"[..], &b"one"[..], 0), (b"txn-b", b"two", 1), (b"base-2", b"", 2)]);
    assert!(last[2].tombstone);
    assert_eq!(events[0].time_ms, Some(1_794_773_649_325));
    assert!(events.iter().any(|event| event.tombstone));
    let (_, later) = decode(REAL_LATER, 4096).unwrap();
    assert_eq!(later.map(|later| (later.first, later.last)), Some((109, 120)));
}

#[test]
fn the_size_of_the_pieces_does_not_matter() {
    let whole = decode(REAL, REAL.len()).unwrap();
    for piece in [1, 2, 3, 7, 31, 32, 33, 100, 1000] {
        assert_eq!(decode(REAL, piece).unwrap(), whole, "{piece}");
    }
}

#[test]
fn every_cut_is_noticed() {
    for length in 0..REAL.len() {
        assert!(decode(&REAL[..length], 512).is_err(), "{length}");
    }
    assert!(decode(&[REAL, b"x"].concat(), 512).is_err());
}

#[test]
fn every_flipped_bit_is_noticed() {
    let mut bytes = REAL.to_vec();
    for at in 0..bytes.len() {
        for bit in [0x01, 0x20, 0x80] {
            bytes[at] ^= bit;
            assert!(decode(&bytes, 4096).is_err(), "{at} {bit}");
            bytes[at] ^= bit;
        }
    }
}

#[test]
fn a_hole_in_the_revisions_is_told_from_damage() {
    let event = |revision: u64| {
        format!(
            r#"{{"etcdEvent":{{"kv":{{"key":"YQ==","create_revision":2,"mod_revision":{revision},"version":1}}}}}}"#
        )
    };
    let hole = sealed(&format!("[{},{}]", event(5), event(7)));
    assert_eq!(decode(&hole, 64), Err(DeltaError::Disorder(Disorder::Hole { after: 5, before: 7 })));
    let back = sealed(&format!("[{},{}]", event(5), event(4)));
    assert_eq!(decode(&back, 64), Err(DeltaError::Disorder(Disorder::Backwards { from: 5, to: 4 })));
}

#[test]
fn white_space_unknown_fields_and_null_are_stepped_over() {
    let text = r#" [ { "later" : [1, {"a":"\"]}"}, null, true], "etcdEvent" : {"kv" : {"key":"YQ==", "value":null,
        "create_revision":3, "mod_revision": 3 , "version":1, "lease":-5}, "prev_kv":{}}, "time":"?"} ] "#;
    let bytes = sealed(text.trim_end());
    let (events, _) = decode(&bytes, 5).unwrap();
    assert_eq!((events[0].lease, events[0].time_ms, events[0].value.as_slice()), (-5, None, &b""[..]));
    assert_eq!(decode(&sealed("[]"), 1).unwrap(), (vec![], None));
}

#[test]
fn names_say_range_time_compression_and_part() {
    let name = Name::parse("shoot--a/v2/Full-00000000-00000033-1794773646.gz.final").unwrap();
    assert_eq!((name.full, name.last, name.created_s, name.is_final), (true, 33, 1_794_773_646, true));
    assert_eq!(name.compression, Compression::Gzip);
    let name = Name::parse("v2/Incr-00000034-123456789012-1794773650.Z/0000000003").unwrap();
    assert_eq!((name.first, name.last, name.chunk), (34, 123_456_789_012, Some(3)));
    assert_eq!(name.object, "v2/Incr-00000034-123456789012-1794773650.Z");
    let name = Name::parse("p/v1/Backup-1794773646/Incr-00000001-00000001-1.zlib").unwrap();
    assert_eq!((name.compression, name.chunk), (Compression::Zlib, None));
    let name = Name::parse("v1/Backup-1/Full-00000000-00000001-1/0000000001").unwrap();
    assert_eq!((name.object.as_str(), name.chunk), ("v1/Backup-1/Full-00000000-00000001-1", Some(1)));
    for not in ["", "v2", "v2/x", "v2/Full-1-2", "v2/Full-0-1-2.bz2", "v2/Incr-9-8-1", "x/Full-0-1-2", "v2/Incr-1-+2-3"]
    {
        assert_eq!(Name::parse(not), None, "{not}");
    }
}

proptest! {
    #[test]
    fn no_bytes_make_the_reader_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300), piece in 1usize..64) {
        let _ = decode(&bytes, piece);
    }

    #[test]
    fn no_changed_text_makes_the_reader_panic(at in 0usize..2000, with in "[\\[\\]{}\",:0-9a-z\\\\-]{0,12}", piece in 1usize..600) {
        let mut bytes = REAL.to_vec();
        bytes.splice(at..at + 3, with.bytes());
        let _ = decode(&bytes, piece);
    }
}

#[test]
fn what_the_real_tool_wrote_is_written_again_byte_for_byte_apart_from_fractions_of_times() {
    use quorate_etcd_formats::delta::gardener::GardenerWriter;
    for real in [REAL, REAL_LATER] {
        let (events, summary) = decode(real, real.len()).unwrap();
        let mut writer = GardenerWriter::default();
        events.iter().for_each(|event| writer.push(&event.lend()).unwrap());
        assert_eq!(writer.finish(), summary);
        let (array, hash) = writer.out.split_at(writer.out.len() - 32);
        assert_eq!(hash, Sha256::digest(array).as_slice());
        let without_times = |bytes: &[u8]| {
            let text = std::str::from_utf8(&bytes[..bytes.len() - 32]).unwrap();
            let mut parts = text.split("\"time\":\"");
            let first = parts.next().unwrap().to_owned();
            parts.fold(first, |text, part| text + "\"time\":" + part.split_once('"').unwrap().1)
        };
        assert_eq!(without_times(&writer.out), without_times(real));
        assert_eq!(decode(&writer.out, 100).unwrap().0, events);
    }
}

#[test]
fn a_writer_refuses_holes_and_steps_back() {
    use quorate_etcd_formats::delta::gardener::GardenerWriter;
    let (events, _) = decode(REAL, REAL.len()).unwrap();
    let at = |revision: u64| events.iter().find(|event| event.at.main == revision).unwrap();
    let mut writer = GardenerWriter::default();
    writer.push(&at(40).lend()).unwrap();
    assert!(matches!(writer.push(&at(42).lend()), Err(Disorder::Hole { .. })));
    assert!(matches!(writer.push(&at(39).lend()), Err(Disorder::Backwards { .. })));
    writer.push(&at(41).lend()).unwrap();
}
