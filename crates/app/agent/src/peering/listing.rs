//! All records of the cluster as they are at one moment, judged: what this node acts on, and what it does not act on and why.
//!
//! **Invariant:** a record that does not count is never part of what is acted on. It is kept apart, so that it can be reported and replaced
//! by the next valid one.

use std::collections::BTreeMap;

use quorate_coordination::{Compare, Entry, Listing, Revision};
use quorate_faults::{Code, Fault};
use quorate_plan::peering::{
    Approval, Claimed, FileRecord, FileState, Reader, Signers, Unfit, digest_of, judge_claim, judge_file,
};
use quorate_plan::spec::Spec;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::record::{APPROVAL, CLOSED, Closed, FILE, GONE, Gone, NODES, NodeRecord, OPERATION};
use super::signing::Signing;
use super::store::HeldFile;
use crate::cluster_file;

/// So many records that do not count are named; a client of etcd can write any number.
const DOUBTS_MAX: usize = 16;

/// The file in the store.
pub(super) struct FoundFile {
    /// None: it cannot be read.
    pub(super) record: Option<FileRecord>,
    pub(super) raw: Value,
    pub(super) revision: Revision,
    pub(super) text: Option<Spec>,
    pub(super) state: FileState,
}

/// The claim in the store.
pub(super) struct FoundClaim {
    /// None: it cannot be read.
    pub(super) claimed: Option<Claimed>,
    pub(super) revision: Revision,
    /// Why it counts for nothing.
    pub(super) unfit: Option<Unfit>,
}

impl FoundClaim {
    /// The claim, if it counts.
    pub(super) fn valid(&self) -> Option<&Claimed> {
        self.claimed.as_ref().filter(|_| self.unfit.is_none())
    }

    /// The claim of this node for a change that it has written down, also if an earlier release made it without a signature.
    pub(super) fn own(&self, me: &str, id: &str) -> Option<&Claimed> {
        let usable = matches!(self.unfit, None | Some(Unfit::Unsigned));
        self.claimed.as_ref().filter(|claimed| usable && claimed.by == me && claimed.operation.id == id)
    }

    /// A claim of another declared server without a signature, as an earlier release writes them.
    pub(super) fn of_earlier_release(&self, own: &Spec, me: &str) -> Option<&Claimed> {
        let unsigned = matches!(self.unfit, Some(Unfit::Unsigned));
        self.claimed.as_ref().filter(|it| unsigned && it.by != me && own.member(&it.by).is_some())
    }
}

/// Everything.
pub(super) struct Look {
    pub(super) file: Option<FoundFile>,
    pub(super) claim: Option<FoundClaim>,
    /// An approval, whose signatures are judged by the reader.
    pub(super) approval: Option<(Approval, Value)>,
    pub(super) nodes: Vec<NodeRecord>,
    pub(super) gone: Vec<Gone>,
    pub(super) closed: Vec<Closed>,
    /// The records that hold, and what tells each from every other one.
    pub(super) pins: BTreeMap<String, String>,
    /// In words: what is not acted on.
    pub(super) doubts: Vec<(Code, String)>,
}

impl Look {
    /// The file that holds, if a declared server vouches for it.
    pub(super) fn valid_file(&self) -> Option<&FileRecord> {
        self.file.as_ref().filter(|file| file.state.is_valid()).and_then(|file| file.record.as_ref())
    }

    /// The serial of the next change.
    pub(super) fn next_serial(&self, held: &HeldFile) -> u64 {
        let there = self.valid_file().map_or(0, |file| file.serial);
        there.max(held.serial).saturating_add(1)
    }

    /// Holds while the file is the one that was read here.
    pub(super) fn same_file(&self) -> Compare {
        match &self.file {
            Some(file) => Compare::Unchanged(FILE.into(), file.revision),
            None => Compare::Absent(FILE.into()),
        }
    }

    /// Holds while the claim is the one that was read here.
    pub(super) fn same_claim(&self) -> Compare {
        match &self.claim {
            Some(claim) => Compare::Unchanged(OPERATION.into(), claim.revision),
            None => Compare::Absent(OPERATION.into()),
        }
    }
}

/// The node that looks.
pub(super) struct Looking<'a> {
    pub(super) own: &'a Spec,
    pub(super) held: &'a HeldFile,
    pub(super) signing: Option<&'a Signing>,
}

impl Looking<'_> {
    /// Judges what was read at one moment.
    pub(super) async fn judge(&self, listing: &Listing) -> Result<Look, Fault> {
        let find = |key: &str| listing.entries.iter().find(|entry| entry.key == key.as_bytes());
        let mut doubts = Vec::new();
        let file = match find(FILE) {
            Some(entry) => Some(self.file(entry).await?),
            None => None,
        };
        if let Some(FoundFile { state: FileState::Refused(why), .. }) = &file {
            doubts.push((code_of(why), format!("the record `{FILE}` of the cluster is not acted on: {why}")));
        }
        let valid = file.as_ref().filter(|file| file.state.is_valid()).and_then(|file| file.record.as_ref());
        let claim = match find(OPERATION) {
            Some(entry) => Some(self.claim(entry, valid.map(|file| file.serial)).await?),
            None => None,
        };
        if let Some(why) = claim.as_ref().and_then(|claim| claim.unfit.as_ref()) {
            doubts
                .push((Code::RecordRefused, format!("the record `{OPERATION}` of the cluster is not acted on: {why}")));
        }
        let approval = find(APPROVAL).and_then(|entry| {
            let raw: Value = serde_json::from_slice(&entry.value).ok()?;
            Some((serde_json::from_value(raw.clone()).ok()?, raw))
        });
        let pins = self.pins(listing, file.as_ref(), valid);
        let (mut nodes, mut gone, mut closed) = (Vec::new(), Vec::new(), Vec::new());
        for entry in &listing.entries {
            let key = String::from_utf8_lossy(&entry.key).into_owned();
            let counts = pins.contains_key(&key);
            let read = match () {
                () if key == CLOSED => {
                    counts && put(read(&entry.value), &mut closed, |all: Vec<Closed>, into| into.extend(all))
                }
                () if key.starts_with(NODES) => {
                    counts && put(read(&entry.value), &mut nodes, |one, into| into.push(one))
                }
                () if key.starts_with(GONE) => counts && put(read(&entry.value), &mut gone, |one, into| into.push(one)),
                () => true,
            };
            if !read && doubts.len() < DOUBTS_MAX {
                let text = format!(
                    "the record `{}` of the cluster is not acted on: no server vouches for it",
                    key.escape_debug()
                );
                doubts.push((Code::RecordRefused, text));
            }
        }
        Ok(Look { file, claim, approval, nodes, gone, closed, pins, doubts })
    }

    async fn file(&self, entry: &Entry) -> Result<FoundFile, Fault> {
        let raw: Value = serde_json::from_slice(&entry.value).unwrap_or_default();
        let record: Option<FileRecord> = serde_json::from_value(raw.clone()).ok();
        let read = |record: &FileRecord| cluster_file::parse(record.text.as_bytes(), "the file in the store").ok();
        let text = record.as_ref().and_then(read).map(|(spec, _)| spec);
        let signers = self.signers(FILE, &raw).await?;
        let state = match &record {
            Some(record) => judge_file(record, text.as_ref(), signers.as_ref(), self.reader()),
            None => FileState::Refused(Unfit::Content),
        };
        Ok(FoundFile { record, raw, revision: entry.revision, text, state })
    }

    async fn claim(&self, entry: &Entry, file: Option<u64>) -> Result<FoundClaim, Fault> {
        let raw: Value = serde_json::from_slice(&entry.value).unwrap_or_default();
        let claimed: Option<Claimed> = serde_json::from_value(raw.clone()).ok();
        let signers = self.signers(OPERATION, &raw).await?;
        let unfit = match &claimed {
            Some(claimed) => judge_claim(claimed, signers.as_ref(), self.reader(), file).err(),
            None => Some(Unfit::Content),
        };
        Ok(FoundClaim { claimed, revision: entry.revision, unfit })
    }

    async fn signers(&self, key: &str, raw: &Value) -> Result<Option<Signers>, Fault> {
        match self.signing {
            None => Ok(None),
            Some(signing) => signing.signers(key, raw).await.map(Some),
        }
    }

    fn reader(&self) -> Reader<'_> {
        Reader { own: self.own, serial: self.held.serial }
    }

    /// The records that hold: those that the valid file pins, else those that the last file pinned that this node held. Where this node has
    /// never held a signed file, an earlier release wrote them: all of them but tombstones of declared servers. Where an earlier release has
    /// just written the file, tombstones of nodes that are neither servers nor clients are its own.
    fn pins(
        &self,
        listing: &Listing,
        file: Option<&FoundFile>,
        valid: Option<&FileRecord>,
    ) -> BTreeMap<String, String> {
        let digests = listing.entries.iter().filter_map(|entry| {
            let key = String::from_utf8(entry.key.clone()).ok()?;
            let pinned = key == CLOSED || key.starts_with(NODES) || key.starts_with(GONE);
            let value: Value = serde_json::from_slice(&entry.value).ok().filter(|_| pinned)?;
            Some((key, digest_of(&value)))
        });
        let declared = |key: &str| key.strip_prefix(GONE).is_some_and(|name| self.own.member(name).is_some());
        let begun = file.is_none_or(|file| matches!(file.state, FileState::Unproven(Unfit::Unsigned)));
        let known = valid.map_or(&self.held.pins, |file| &file.pins);
        let client = |key: &str| known.contains_key(&key.replacen(GONE, NODES, 1));
        let of_earlier_release = |key: &str| match self.held.serial {
            0 => begun && !declared(key),
            _ => begun && file.is_some() && key.starts_with(GONE) && !declared(key) && !client(key),
        };
        let holds = |(key, digest): &(String, String)| match self.signing {
            None => true,
            Some(_) => known.get(key) == Some(digest) || of_earlier_release(key),
        };
        digests.filter(holds).collect()
    }
}

fn code_of(why: &Unfit) -> Code {
    match why {
        Unfit::Other(_) => Code::FileOtherChange,
        Unfit::Uncountersigned(_) => Code::Uncountersigned,
        _ => Code::RecordRefused,
    }
}

fn read<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    serde_json::from_slice(bytes).ok()
}

fn put<T, V>(read: Option<T>, into: &mut Vec<V>, with: impl FnOnce(T, &mut Vec<V>)) -> bool {
    let there = read.is_some();
    if let Some(read) = read {
        with(read, into);
    }
    there
}
