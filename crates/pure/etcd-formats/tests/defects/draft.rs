//! A good member's data dir as parts that can be spoiled one by one, and the files that follow from them.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;

use prost::Message;
use quorate_etcd_formats::ReadAt;
use quorate_etcd_formats::bolt::build::{Item, small_db};
use quorate_etcd_formats::dir::{DB, DataDir, Entry as DirEntry, InUse, Kind, SNAP_DIR};
use quorate_etcd_formats::founding::{Form, Founding};
use quorate_etcd_formats::messages::{
    Entry, HardState, Lease, Metadata, RaftSnapshot, SnapEnvelope, User, WalSnapshot,
};
use quorate_etcd_formats::mvcc::{Revision, RevisionKey};
use quorate_etcd_formats::snap::{self, SnapName};
use quorate_etcd_formats::verify::{self, Mode, Settings};
use quorate_etcd_formats::wal::{RecordType, RecordView, SegmentName, SegmentReader, Step, WalWriter};
use quorate_faults::{Code, Severity};

/// Every form that a member can be founded in.
pub(crate) const FORMS: [Form; 5] = [Form::Any, Form::V3_4, Form::V3_5, Form::V3_6, Form::V3_7];

/// The directory of the WAL.
pub(crate) const WAL_DIR: &str = "member/wal";

/// The lease that exists.
pub(crate) const LEASE: i64 = 0x7f11;

/// A record of the log.
#[derive(Clone)]
pub(crate) enum Rec {
    Metadata(Metadata),
    Entry(Entry),
    State(HardState),
    Snapshot(WalSnapshot),
}

/// A member on paper: the first of three.
#[derive(Clone)]
pub(crate) struct Draft {
    pub(crate) founding: Founding,
    pub(crate) page_bytes: u32,
    pub(crate) buckets: BTreeMap<Vec<u8>, BTreeMap<Vec<u8>, Vec<u8>>>,
    pub(crate) snap: RaftSnapshot,
    pub(crate) segments: Vec<(SegmentName, Vec<Rec>)>,
}

/// A value of the `key` bucket, as etcd encodes it.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Kv {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) key: Vec<u8>,
    #[prost(int64, tag = "2")]
    pub(crate) create_revision: i64,
    #[prost(int64, tag = "3")]
    pub(crate) mod_revision: i64,
    #[prost(int64, tag = "4")]
    pub(crate) version: i64,
    #[prost(bytes = "vec", tag = "5")]
    pub(crate) value: Vec<u8>,
    #[prost(int64, tag = "6")]
    pub(crate) lease: i64,
}

impl Kv {
    /// The first version of a key, written at `main`.
    pub(crate) fn first(key: &str, main: i64) -> Kv {
        let (key, value) = (key.as_bytes().to_vec(), b"value".to_vec());
        Kv { key, create_revision: main, mod_revision: main, version: 1, value, lease: 0 }
    }

    pub(crate) fn with_lease(self, lease: i64) -> Kv {
        Kv { lease, ..self }
    }
}

/// A key of the `key` bucket.
pub(crate) fn revision(main: u64, sub: u64, tombstone: bool) -> Vec<u8> {
    RevisionKey { revision: Revision { main, sub }, tombstone }.encode()
}

impl Draft {
    /// A member as it is founded: no keys.
    pub(crate) fn blank(form: Form) -> Draft {
        let url = |port: u16| vec![format!("http://127.0.0.1:{port}")];
        let members = [("n1", 2380), ("n2", 2381), ("n3", 2382)].map(|(name, port)| (name.to_owned(), url(port)));
        let founding = Founding::new(members.to_vec(), "defects").unwrap();
        let files = founding.files(founding.member("n1").unwrap().id, form);
        let buckets = founding.buckets(form).into_iter();
        let envelope = SnapEnvelope::decode(files.snap.bytes.as_slice()).unwrap();
        Draft {
            page_bytes: 4096,
            buckets: buckets.map(|(name, items)| (name.to_vec(), items.into_iter().collect())).collect(),
            snap: RaftSnapshot::decode(envelope.data()).unwrap(),
            segments: vec![(SegmentName { sequence: 0, index: 0 }, records(&files.wal.bytes))],
            founding,
        }
    }

    /// The same with a handful of keys: written, overwritten, deleted, one with a lease, two in one transaction.
    pub(crate) fn good() -> Draft {
        Draft::populated(Form::Any)
    }

    pub(crate) fn populated(form: Form) -> Draft {
        let mut draft = Draft::blank(form);
        let again = Kv { version: 2, mod_revision: 4, ..Kv::first("a", 2) };
        draft.put(2, 0, &Kv::first("a", 2));
        draft.put(3, 0, &Kv::first("b", 3).with_lease(LEASE));
        draft.put(4, 0, &again);
        draft.delete(5, 0, "a");
        draft.put(6, 0, &Kv::first("c", 6));
        draft.put(6, 1, &Kv::first("d", 6));
        draft.lease(LEASE);
        draft
    }

    /// Many users and roles, so that two buckets are trees with a leaf of their own and `authUsers` has a branch.
    pub(crate) fn with_trees() -> Draft {
        let mut draft = Draft::good();
        for number in 0..400 {
            let name = format!("user-{number:04}").into_bytes();
            let user = User { name: Some(name.clone()), password: Some(vec![b'x'; 60]), roles: Vec::new() };
            draft.set("authUsers", &name, &user.encode_to_vec());
        }
        for number in 0..40 {
            let name = format!("role-{number:04}").into_bytes();
            draft.set("authRoles", &name, &[vec![0x0a, 9], name.clone()].concat());
        }
        draft
    }

    pub(crate) fn bucket(&mut self, name: &str) -> &mut BTreeMap<Vec<u8>, Vec<u8>> {
        self.buckets.get_mut(name.as_bytes()).unwrap()
    }

    pub(crate) fn set(&mut self, bucket: &str, key: &[u8], value: &[u8]) {
        self.bucket(bucket).insert(key.to_vec(), value.to_vec());
    }

    pub(crate) fn put(&mut self, main: u64, sub: u64, kv: &Kv) {
        self.set("key", &revision(main, sub, false), &kv.encode_to_vec());
    }

    pub(crate) fn delete(&mut self, main: u64, sub: u64, key: &str) {
        let bare = Kv { key: key.as_bytes().to_vec(), ..Kv::default() };
        self.set("key", &revision(main, sub, true), &bare.encode_to_vec());
    }

    pub(crate) fn lease(&mut self, id: i64) {
        self.set("lease", &id.to_be_bytes(), &Lease { id, ttl: 60, remaining_ttl: 0 }.encode_to_vec());
    }

    pub(crate) fn consistent_index(&mut self, index: u64) {
        self.set("meta", b"consistent_index", &index.to_be_bytes());
    }

    /// The records of the first segment.
    pub(crate) fn log(&mut self) -> &mut Vec<Rec> {
        &mut self.segments[0].1
    }

    /// Appends entries 4 to `last` of term 1 and a hard state that commits them all.
    pub(crate) fn run_on_to(&mut self, last: u64) {
        let entries: Vec<Rec> = (4..=last).map(entry).collect();
        self.log().extend(entries);
        self.log().push(Rec::State(state(last)));
    }

    /// Three segments: the founders' entries, entry 4 and entry 5.
    pub(crate) fn in_three_segments() -> Draft {
        let mut draft = Draft::good();
        let Some(Rec::Metadata(whose)) = draft.log().first().cloned() else { panic!("metadata comes first") };
        for number in [4, 5] {
            let name = SegmentName { sequence: number - 3, index: number };
            let head = [Rec::Metadata(whose), Rec::State(state(number - 1))];
            let records = head.into_iter().chain([entry(number), Rec::State(state(number))]);
            draft.segments.push((name, records.collect()));
        }
        draft
    }

    pub(crate) fn db(&self) -> Vec<u8> {
        let buckets: Vec<(&[u8], Vec<Item>)> =
            self.buckets.iter().map(|(name, items)| (name.as_slice(), items.clone().into_iter().collect())).collect();
        small_db(&buckets, self.page_bytes)
    }

    fn snap_name(&self) -> String {
        let metadata = self.snap.metadata.clone().unwrap_or_default();
        SnapName { term: metadata.term(), index: metadata.index() }.to_string()
    }

    pub(crate) fn snap_path(&self) -> String {
        format!("{SNAP_DIR}/{}", self.snap_name())
    }

    pub(crate) fn wal_path(&self, segment: usize) -> String {
        format!("{WAL_DIR}/{}", self.segments[segment].0)
    }

    /// The files.
    pub(crate) fn files(&self) -> Files {
        let mut files = Files::default();
        files.put(DB, self.db());
        files.put(&self.snap_path(), snap::encode(&self.snap));
        let mut crc = 0;
        for (name, records) in &self.segments {
            let mut wal = WalWriter::new(crc);
            for record in records {
                match record {
                    Rec::Metadata(metadata) => wal.metadata(metadata),
                    Rec::Entry(entry) => wal.entry(entry),
                    Rec::State(state) => wal.state(state),
                    Rec::Snapshot(mark) => wal.snapshot(mark),
                }
            }
            crc = wal.crc();
            files.put(&format!("{WAL_DIR}/{name}"), wal.finish());
        }
        files
    }
}

/// A normal entry of term 1 without data, such as a new leader writes.
pub(crate) fn entry(index: u64) -> Rec {
    Rec::Entry(Entry { r#type: Some(0), term: Some(1), index: Some(index), data: None })
}

/// A hard state of term 1.
pub(crate) fn state(commit: u64) -> HardState {
    HardState { term: Some(1), vote: Some(0), commit: Some(commit) }
}

fn records(wal: &[u8]) -> Vec<Rec> {
    let mut reader = SegmentReader::new(&wal, Some(0), true);
    let mut records = Vec::new();
    while let Step::Record { record, .. } = reader.step().unwrap() {
        records.extend(parse(&record));
    }
    records
}

fn parse(record: &RecordView<'_>) -> Option<Rec> {
    let data = record.data.unwrap_or_default();
    match RecordType::of(record.kind).unwrap() {
        RecordType::Metadata => Some(Rec::Metadata(Metadata::decode(data).unwrap())),
        RecordType::Entry => Some(Rec::Entry(Entry::decode(data).unwrap())),
        RecordType::State => Some(Rec::State(HardState::decode(data).unwrap())),
        RecordType::Snapshot => Some(Rec::Snapshot(WalSnapshot::decode(data).unwrap())),
        RecordType::Crc => None,
    }
}

/// A data dir in memory: bytes, modes and owners by path.
pub(crate) struct Files {
    pub(crate) dirs: Vec<(String, u32)>,
    pub(crate) files: BTreeMap<String, File>,
    pub(crate) in_use: InUse,
}

/// A file.
pub(crate) struct File {
    pub(crate) source: Box<dyn ReadAt>,
    pub(crate) bytes: Vec<u8>,
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) unreadable: bool,
}

impl Default for Files {
    fn default() -> Self {
        let dirs = ["member", SNAP_DIR, WAL_DIR].map(|path| (path.to_owned(), 0o700));
        Files { dirs: dirs.to_vec(), files: BTreeMap::new(), in_use: InUse::No }
    }
}

impl Files {
    pub(crate) fn put(&mut self, path: &str, bytes: Vec<u8>) {
        let source = Box::new(bytes.clone());
        self.files.insert(path.to_owned(), File { source, bytes, mode: 0o600, uid: 0, unreadable: false });
    }

    /// Changes a file's bytes.
    pub(crate) fn change(&mut self, path: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let mut bytes = self.bytes(path).to_vec();
        change(&mut bytes);
        self.put(path, bytes);
    }

    pub(crate) fn bytes(&self, path: &str) -> &[u8] {
        &self.files[path].bytes
    }

    pub(crate) fn file(&mut self, path: &str) -> &mut File {
        self.files.get_mut(path).unwrap()
    }

    pub(crate) fn remove(&mut self, path: &str) {
        self.files.remove(path).unwrap();
    }

    /// What a check of it finds, the gravest first.
    pub(crate) fn verify(&self, mode: Mode) -> Vec<(Code, Severity)> {
        self.report(mode).findings.iter().map(|finding| (finding.code, finding.severity)).collect()
    }

    pub(crate) fn report(&self, mode: Mode) -> verify::Report {
        let dirs =
            self.dirs.iter().map(|(path, mode)| DirEntry { path: path.clone(), mode: *mode, uid: 0, kind: Kind::Dir });
        let files = self.files.iter().map(|(path, file)| DirEntry {
            path: path.clone(),
            mode: file.mode,
            uid: file.uid,
            kind: if file.unreadable { Kind::Unreadable("no".to_owned()) } else { Kind::File(&*file.source) },
        });
        let entries = dirs.chain(files).collect();
        let dir = DataDir { entries, wal_dir: WAL_DIR.to_owned(), in_use: self.in_use.clone() };
        verify::data_dir(&dir, &settings(mode, &AtomicU64::new(0)))
    }
}

pub(crate) fn settings(mode: Mode, progress: &AtomicU64) -> Settings<'_> {
    Settings { mode, workers: 2, progress }
}

/// Shows that both modes find exactly this.
#[track_caller]
pub(crate) fn both(files: &Files, expected: &[(Code, Severity)]) {
    finds(files, Mode::Sanity, expected);
    finds(files, Mode::Full, expected);
}

/// Shows that the full check finds exactly this, and that it is beyond a quick look.
#[track_caller]
pub(crate) fn full_only(files: &Files, expected: &[(Code, Severity)]) {
    finds(files, Mode::Sanity, &[]);
    finds(files, Mode::Full, expected);
}

/// Shows that a check finds exactly this.
#[track_caller]
pub(crate) fn finds(files: &Files, mode: Mode, expected: &[(Code, Severity)]) {
    let report = files.report(mode);
    let mut found = files.verify(mode);
    let mut expected = expected.to_vec();
    let order = |(code, severity): &(Code, Severity)| (std::cmp::Reverse(*severity), code.to_string());
    found.sort_by_key(order);
    expected.sort_by_key(order);
    assert_eq!(found, expected, "{mode:?}: {:#?}", report.findings);
    assert_eq!(report.has_errors(), expected.iter().any(|(_, severity)| *severity == Severity::Error));
    for finding in &report.findings {
        assert!(!finding.remedy.is_empty() && !finding.place.file.is_empty(), "{finding:#?}");
    }
}
