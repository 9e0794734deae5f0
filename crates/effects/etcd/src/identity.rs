//! Reads who a data dir belongs to: ids from the WAL, the name from the db or the WAL.

use std::path::Path;

use prost::Message;
use quorate_etcd_formats::ReadError;
use quorate_etcd_formats::bolt::Db;
use quorate_etcd_formats::membership::{ClusterId, Member, MemberId};
use quorate_etcd_formats::messages::{ConfChange, Entry};
use quorate_etcd_formats::wal::{self, RecordType, RecordView, SegmentReader, Step};
use quorate_host::locks;

use crate::datadir::FileSource;

/// Founders stand in the first records of a WAL; who is not there by then is not looked for.
const RECORDS_MAX: usize = 64;

/// What the beginning of a WAL says about its owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ids {
    pub(crate) cluster: ClusterId,
    pub(crate) member: MemberId,
    /// The member's name, if it was among the founders. A later rename is not known here.
    pub(crate) name: Option<String>,
}

/// Reads the first records of a WAL's first segment. `None`: they are not what every WAL begins with.
pub(crate) fn read_ids(segment: &FileSource) -> Result<Option<Ids>, ReadError> {
    let Some(metadata) = wal::head(segment)?.metadata else { return Ok(None) };
    let member = MemberId(metadata.node_id());
    let name = founder_name(segment, member)?;
    Ok(Some(Ids { cluster: ClusterId(metadata.cluster_id()), member, name }))
}

fn founder_name(segment: &FileSource, member: MemberId) -> Result<Option<String>, ReadError> {
    let mut reader = SegmentReader::new(segment, None, true);
    for _ in 0..RECORDS_MAX {
        let Step::Record { record, .. } = reader.step()? else { return Ok(None) };
        if let Some(founder) = founder(&record).filter(|founder| founder.id == member && !founder.name.is_empty()) {
            return Ok(Some(founder.name));
        }
    }
    Ok(None)
}

/// The member that an entry adds, if that is what it does.
fn founder(record: &RecordView<'_>) -> Option<Member> {
    const CONF_CHANGE: i32 = 1;
    if RecordType::of(record.kind) != Some(RecordType::Entry) {
        return None;
    }
    let entry = Entry::decode(record.data?).ok().filter(|entry| entry.r#type() == CONF_CHANGE)?;
    let change = ConfChange::decode(entry.data()).ok()?;
    Member::from_json(change.context()).ok()
}

/// The member's name from the db's member list, if it is there and no etcd is writing to it.
pub(crate) fn name_in_db(db: &Path, member: MemberId) -> Option<String> {
    let _lock = locks::share_lock(&std::fs::File::open(db).ok()?).ok()??;
    let source = FileSource::open(db).ok()?;
    let db = Db::open(&source).ok()?;
    let (_, members) = db.buckets().ok()?.into_iter().find(|(name, _)| name == b"members")?;
    let json = db.get(&members, member.to_string().as_bytes()).ok()??;
    Member::from_json(&json).ok().map(|member| member.name).filter(|name| !name.is_empty())
}
