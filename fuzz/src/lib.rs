//! What the targets share: a good data dir to put one broken file into, and checksums made to hold again.
//!
//! **Rule:** a target never judges what was found, only that something was said and that it came to an end.

use std::sync::atomic::AtomicU64;

use prost::Message;
use quorate_etcd_formats::ReadAt;
use quorate_etcd_formats::dir::{DataDir, Entry, InUse, Kind};
use quorate_etcd_formats::inspect;
use quorate_etcd_formats::messages::{Record, SnapEnvelope};
use quorate_etcd_formats::verify::{self, Mode, Settings};

const GOOD_DB: &[u8] = include_bytes!("../../crates/test/testkit/fixtures/golden/restored-3.5.16.bolt");
const GOOD_WAL: &[u8] = include_bytes!("../../crates/test/testkit/fixtures/golden/restored-3.5.16.wal");
const GOOD_SNAP: &[u8] =
    include_bytes!("../../crates/test/testkit/fixtures/golden/restored-3.5.16-0000000000000001-0000000000000003.snap");

/// The three files of a small data dir.
#[derive(Clone, Copy)]
pub struct Files<'a> {
    pub db: &'a [u8],
    pub wal: &'a [u8],
    pub snap: &'a [u8],
}

impl Files<'_> {
    /// Files that etcd's own restore wrote.
    pub fn good() -> Files<'static> {
        Files { db: GOOD_DB, wal: GOOD_WAL, snap: GOOD_SNAP }
    }

    /// Runs both modes of verify, and inspect.
    pub fn examine(&self) {
        let files: [(&str, &dyn ReadAt); 3] = [
            ("member/snap/db", &self.db),
            ("member/snap/0000000000000001-0000000000000003.snap", &self.snap),
            ("member/wal/0000000000000000-0000000000000000.wal", &self.wal),
        ];
        let dirs = ["member", "member/snap", "member/wal"].map(|path| entry(path, 0o700, Kind::Dir));
        let files = files.map(|(path, source)| entry(path, 0o600, Kind::File(source)));
        let entries = dirs.into_iter().chain(files).collect();
        let dir = DataDir { entries, wal_dir: "member/wal".to_owned(), in_use: InUse::No };
        for mode in [Mode::Sanity, Mode::Full] {
            verify::data_dir(&dir, &Settings { mode, workers: 1, progress: &AtomicU64::new(0) });
        }
        inspect::data_dir(&dir, everything(&AtomicU64::new(0)));
    }
}

/// Runs both modes of verify, and inspect, on a snapshot file.
pub fn examine_snapshot(bytes: &[u8]) {
    for mode in [Mode::Sanity, Mode::Full] {
        verify::snapshot("fuzz.db", &bytes, &Settings { mode, workers: 1, progress: &AtomicU64::new(0) });
    }
    // A file without a readable meta page is an error, and that is an answer too.
    let _ = inspect::file(&bytes, everything(&AtomicU64::new(0)));
}

fn everything(progress: &AtomicU64) -> inspect::Settings<'_> {
    inspect::Settings { hash: Some(true), count: true, workers: 1, progress }
}

fn entry<'a>(path: &str, mode: u32, kind: Kind<'a>) -> Entry<'a> {
    Entry { path: path.to_owned(), mode, uid: 0, kind }
}

/// Makes both meta pages (at 0 and at the page size that the first one names) pass their FNV-1a checksum.
pub fn seal_bolt(mut db: Vec<u8>) -> Vec<u8> {
    const META: usize = 16;
    const SUMMED: usize = 56;
    let page_size = db.get(META + 8..META + 12).map_or(4096, |b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]) as usize);
    for page in [0, page_size] {
        let Some(start) = page.checked_add(META) else { continue };
        let Some(summed) = db.get(start..start.saturating_add(SUMMED)) else { continue };
        let sum = summed
            .iter()
            .fold(0xcbf2_9ce4_8422_2325_u64, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3));
        if let Some(place) = db.get_mut(start + SUMMED..start + SUMMED + 8) {
            place.copy_from_slice(&sum.to_le_bytes());
        }
    }
    db
}

/// Writes every record that can be decoded again, with the checksum that the chain asks for.
pub fn seal_wal(wal: &[u8]) -> Vec<u8> {
    const CRC_RECORD: i64 = 4;
    let mut sealed = Vec::new();
    let mut rest = wal;
    let mut crc = 0;
    while let Some((frame, after)) = rest.split_first_chunk::<8>() {
        let length = u64::from_le_bytes(*frame);
        // The high byte tells how much padding follows; the low 56 bits are the record's length.
        let body = (length & ((1 << 56) - 1)) as usize;
        let padding = if length >> 63 == 1 { (length >> 56 & 7) as usize } else { 0 };
        let (Some(bytes), Some(next)) = (after.get(..body), after.get(body.saturating_add(padding)..)) else { break };
        let Ok(mut record) = Record::decode(bytes) else { break };
        if body == 0 {
            break;
        }
        if record.r#type != Some(CRC_RECORD) {
            crc = crc32c::crc32c_append(crc, record.data.as_deref().unwrap_or_default());
        }
        record.crc = Some(crc);
        put_frame(&mut sealed, &record.encode_to_vec());
        rest = next;
    }
    sealed.extend_from_slice(rest);
    sealed
}

fn put_frame(out: &mut Vec<u8>, body: &[u8]) {
    let padding = body.len().wrapping_neg() % 8;
    let mut length = body.len() as u64;
    if padding > 0 {
        length |= (0x80 | padding as u64) << 56;
    }
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(body);
    out.extend(std::iter::repeat_n(0, padding));
}

/// The same envelope with the checksum of what it holds; none if it is no envelope.
pub fn seal_snap(snap: &[u8]) -> Option<Vec<u8>> {
    let mut envelope = SnapEnvelope::decode(snap).ok()?;
    envelope.crc = Some(crc32c::crc32c(envelope.data.as_deref().unwrap_or_default()));
    Some(envelope.encode_to_vec())
}
