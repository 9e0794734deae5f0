//! What a sequence of records says: the entries that remain after overwrites, their terms, the hard state, snapshots.
//!
//! Entries are not kept. What is kept is bounded: runs of equal terms, changes of membership, snapshot marks.

#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use std::collections::VecDeque;

use prost::Message;

use super::problem::WalProblem;
use super::view::{EntryView, RecordType, RecordView};
use crate::fields::{Fields, NotProtobuf, Value};
use crate::messages::{ConfChange, ConfState, HardState, Metadata, RequestKind, RequestView, WalSnapshot};

/// Runs of equal terms that are kept: one per election.
const RUNS_MAX: usize = 1 << 16;
/// Changes of membership that are kept.
const CONF_CHANGES_MAX: usize = 1024;
/// The longest context (a member as JSON) that is kept.
const CONTEXT_MAX: usize = 16 << 10;
/// Snapshot marks that are kept, newest first to stay.
const SNAPSHOTS_MAX: usize = 4096;
/// Ids in a conf state that is kept.
const IDS_MAX: usize = 256;
/// Entries in the form of the v2 API whose indexes are kept, newest first to stay. There is one for each start of a member.
const V2_MAX: usize = 4096;
/// Jumps and undecodable entries that are kept.
const ODDITIES_MAX: usize = 1024;

/// Where a record is: segment by its place in the scan, and offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) segment: usize,
    pub(super) offset: u64,
}

/// A mark that a raft snapshot exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotPoint {
    /// The last entry in the snapshot.
    pub index: u64,
    /// That entry's term.
    pub term: u64,
    /// Who voted and learned; written since 3.5.
    pub conf_state: Option<ConfState>,
}

/// A change of membership in the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfChangeEntry {
    /// The entry's place in the log.
    pub index: u64,
    /// The entry's term.
    pub term: u64,
    /// The change: type, node id, context.
    pub change: ConfChange,
}

/// A place where the log goes on with a higher index than the next one: what a snapshot from the leader leaves behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Jump {
    /// The entry before.
    pub after: u64,
    /// The entry that follows.
    pub next: u64,
}

/// Everything the records so far have said.
#[derive(Debug, Default)]
pub(super) struct Log {
    /// Entries above this are checked for being decodable.
    pub(super) applied: Option<u64>,
    pub(super) metadata: Option<(Vec<u8>, Metadata)>,
    pub(super) snapshots: VecDeque<SnapshotPoint>,
    pub(super) snapshots_left_out: u64,
    pub(super) state: Option<(Place, HardState)>,
    pub(super) first: Option<(Place, u64)>,
    /// Index and term of the last entry.
    pub(super) last: Option<(u64, u64)>,
    pub(super) terms: TermRuns,
    pub(super) conf_changes: Vec<ConfChangeEntry>,
    pub(super) conf_changes_left_out: u64,
    pub(super) jumps: Vec<(Place, Jump)>,
    pub(super) undecodable: Vec<(Place, u64)>,
    /// Indexes of entries in the form of the v2 API, ascending.
    pub(super) v2: VecDeque<u64>,
}

impl Log {
    /// Takes in one record. Returns the entry's index if it was one.
    pub(super) fn take(
        &mut self,
        place: Place,
        record: &RecordView<'_>,
        problem: &mut impl FnMut(WalProblem),
    ) -> Option<u64> {
        if !record.regular {
            problem(WalProblem::IrregularRecord);
        }
        let data = record.data.unwrap_or_default();
        match RecordType::of(record.kind) {
            Some(RecordType::Entry) => {
                let Ok(entry) = EntryView::decode(record) else {
                    problem(WalProblem::BadContent);
                    return None;
                };
                if !entry.regular {
                    problem(WalProblem::IrregularRecord);
                }
                self.entry(place, &entry, problem);
                return Some(entry.index);
            }
            Some(RecordType::State) => self.state(place, data, problem),
            Some(RecordType::Metadata) => self.metadata(data, problem),
            Some(RecordType::Snapshot) => self.snapshot(data, problem),
            Some(RecordType::Crc) if record.data.is_some() => problem(WalProblem::IrregularRecord),
            Some(RecordType::Crc) => {}
            None => problem(WalProblem::UnknownRecordType(record.kind)),
        }
        None
    }

    fn metadata(&mut self, data: &[u8], problem: &mut impl FnMut(WalProblem)) {
        match &self.metadata {
            Some((known, _)) if known == data => {}
            Some(_) => problem(WalProblem::MetadataConflict),
            None => match Metadata::decode(data) {
                Ok(metadata) if data.len() <= 64 && metadata.node_id() != 0 => {
                    self.metadata = Some((data.to_vec(), metadata));
                }
                _ => problem(WalProblem::BadMetadata),
            },
        }
    }

    fn state(&mut self, place: Place, data: &[u8], problem: &mut impl FnMut(WalProblem)) {
        let Ok((state, regular)) = hard_state(data) else { return problem(WalProblem::BadContent) };
        if !regular {
            problem(WalProblem::IrregularRecord);
        }
        let backwards =
            self.state.is_some_and(|(_, before)| state.term() < before.term() || state.commit() < before.commit());
        if backwards || state.term() == 0 {
            problem(WalProblem::StateBackwards { term: state.term(), commit: state.commit() });
        }
        self.state = Some((place, state));
    }

    fn snapshot(&mut self, data: &[u8], problem: &mut impl FnMut(WalProblem)) {
        let Ok(mark) = WalSnapshot::decode(data) else { return problem(WalProblem::BadContent) };
        if !only_fields(data, 3) {
            problem(WalProblem::IrregularRecord);
        }
        let point = SnapshotPoint { index: mark.index(), term: mark.term(), conf_state: mark.conf_state };
        if point.conf_state.as_ref().is_some_and(|state| state.ids() > IDS_MAX) {
            return problem(WalProblem::BadContent);
        }
        if self.snapshots.len() >= SNAPSHOTS_MAX {
            self.snapshots.pop_front();
            self.snapshots_left_out = self.snapshots_left_out.saturating_add(1);
        }
        self.snapshots.push_back(point);
    }

    fn entry(&mut self, place: Place, entry: &EntryView<'_>, problem: &mut impl FnMut(WalProblem)) {
        let EntryView { kind, term, index, .. } = *entry;
        if index == 0 || term == 0 {
            return problem(WalProblem::ImpossibleEntry { index, term });
        }
        if let Some((last, _)) = self.last {
            if index <= last {
                self.cut_back(index, problem);
            } else if index != last.saturating_add(1) && self.jumps.len() < ODDITIES_MAX {
                self.jumps.push((place, Jump { after: last, next: index }));
            }
        }
        if let Some(before) = self.terms.at(index.saturating_sub(1)).filter(|&before| before > term) {
            problem(WalProblem::TermDecreases { index, term, before });
        }
        self.terms.push(index, term);
        self.last = Some((index, term));
        if self.first.is_none_or(|(_, first)| index < first) {
            self.first = Some((place, index));
        }
        match kind {
            0 => self.normal(place, entry),
            1 if entry.data.is_empty() => problem(WalProblem::BadContent),
            1 => self.conf_change(place, entry),
            _ => problem(WalProblem::UnknownEntryType { index, kind }),
        }
    }

    /// An entry that was written again takes the place of the old one and of all that followed it.
    fn cut_back(&mut self, index: u64, problem: &mut impl FnMut(WalProblem)) {
        let commit = self.commit();
        if index <= commit {
            problem(WalProblem::CommittedOverwritten { index, commit });
        }
        self.terms.cut_back(index);
        let kept = self.conf_changes.partition_point(|change| change.index < index);
        self.conf_changes.truncate(kept);
        self.undecodable.retain(|&(_, bad)| bad < index);
        let kept = self.v2.partition_point(|old| *old < index);
        self.v2.truncate(kept);
        self.jumps.retain_mut(|(_, jump)| {
            jump.next = jump.next.min(index);
            jump.next > jump.after.saturating_add(1)
        });
    }

    fn normal(&mut self, place: Place, entry: &EntryView<'_>) {
        if is_v2(entry) {
            if self.v2.len() >= V2_MAX {
                self.v2.pop_front();
            }
            self.v2.push_back(entry.index);
        }
        if self.applied.is_none_or(|applied| entry.index <= applied) {
            return;
        }
        let view = if entry.whole { RequestView::decode(entry.data) } else { RequestView::decode_head(entry.data) };
        if view.is_none() {
            self.undecodable(place, entry.index);
        }
    }

    fn conf_change(&mut self, place: Place, entry: &EntryView<'_>) {
        match ConfChange::decode(entry.data) {
            Ok(change) if entry.whole => {
                let fits = self.conf_changes.len() < CONF_CHANGES_MAX && change.context().len() <= CONTEXT_MAX;
                if fits {
                    self.conf_changes.push(ConfChangeEntry { index: entry.index, term: entry.term, change });
                } else {
                    self.conf_changes_left_out = self.conf_changes_left_out.saturating_add(1);
                }
            }
            _ => self.undecodable(place, entry.index),
        }
    }

    fn undecodable(&mut self, place: Place, index: u64) {
        if self.undecodable.len() < ODDITIES_MAX {
            self.undecodable.push((place, index));
        }
    }

    pub(super) fn commit(&self) -> u64 {
        self.state.map_or(0, |(_, state)| state.commit())
    }

    /// The newest snapshot mark that etcd would start from: the last one that is committed.
    pub(super) fn start(&self) -> Option<&SnapshotPoint> {
        let commit = self.commit();
        self.snapshots.iter().rev().find(|point| point.index <= commit)
    }

    /// What only the whole log can tell. `oldest` is missing when only a part of the log was read.
    pub(super) fn conclude(&self, problem: &mut impl FnMut(Option<Place>, WalProblem)) {
        let start = self.start().map_or(0, |point| point.index);
        for &(place, Jump { after, next }) in &self.jumps {
            if next.saturating_sub(1) > start {
                problem(Some(place), WalProblem::IndexGap { after, next });
            }
        }
        if let Some((place, first)) = self.first.filter(|&(_, first)| first.saturating_sub(1) > start) {
            problem(Some(place), WalProblem::LogStartsLate { first, start });
        }
    }

    /// What the end of the log can tell even when its beginning was not read.
    pub(super) fn conclude_end(&self, problem: &mut impl FnMut(Option<Place>, WalProblem)) {
        let state = self.state.map(|(_, state)| state).unwrap_or_default();
        let place = self.state.map(|(place, _)| place).or(self.first.map(|(place, _)| place));
        let (commit, term) = (state.commit(), state.term());
        let start = self.start().map_or(0, |point| point.index);
        if let Some((last, last_term)) = self.last {
            if commit > last.max(start) {
                problem(place, WalProblem::CommitBeyondLog { commit, last: last.max(start) });
            }
            if term < last_term {
                problem(place, WalProblem::StateTermBehind { term, last_term });
            }
        }
        for &(place, index) in self.undecodable.iter().filter(|&&(_, index)| index <= commit) {
            problem(Some(place), WalProblem::UndecodableEntry { index });
        }
    }
}

/// Whether a normal entry is in the form of the v2 API. Such a request begins with its id, or with the old request inside
/// a new one; others begin with what they ask for, so that the first byte spares nearly all of them the decoding.
#[inline]
fn is_v2(entry: &EntryView<'_>) -> bool {
    matches!(entry.data.first(), Some(0x08 | 0x12))
        && entry.whole
        && RequestView::decode(entry.data).is_some_and(|request| request.kind == RequestKind::V2)
}

/// A hard state, and whether etcd would have written it this way. By hand, since every second record is one.
fn hard_state(data: &[u8]) -> Result<(HardState, bool), NotProtobuf> {
    let (mut state, mut regular) = (HardState::default(), true);
    let mut fields = Fields::new(data);
    while let Some((field, value)) = fields.next()? {
        match (field, value) {
            (1, Value::Varint(term)) => state.term = Some(term),
            (2, Value::Varint(vote)) => state.vote = Some(vote),
            (3, Value::Varint(commit)) => state.commit = Some(commit),
            (1..=3, _) => return Err(NotProtobuf),
            _ => regular = false,
        }
    }
    Ok((state, regular))
}

/// Whether a message has only fields up to `last`, each at most once and in order.
fn only_fields(message: &[u8], last: u64) -> bool {
    let mut fields = Fields::new(message);
    let mut before = 0;
    while let Ok(Some((field, _))) = fields.next() {
        if field <= before || field > last {
            return false;
        }
        before = field;
    }
    true
}

/// The term of every entry, as runs of equal terms.
#[derive(Debug, Default, Clone)]
pub(super) struct TermRuns {
    /// First index and term of each run, ascending.
    runs: Vec<(u64, u64)>,
    last: u64,
}

impl TermRuns {
    #[inline]
    fn push(&mut self, index: u64, term: u64) {
        self.last = index;
        if self.runs.last().is_some_and(|&(_, known)| known == term) {
            return;
        }
        if self.runs.len() >= RUNS_MAX {
            self.runs.drain(..RUNS_MAX / 2);
        }
        self.runs.push((index, term));
    }

    fn cut_back(&mut self, index: u64) {
        let kept = self.runs.partition_point(|&(first, _)| first < index);
        self.runs.truncate(kept);
        self.last = index.saturating_sub(1);
    }

    #[inline]
    pub(super) fn at(&self, index: u64) -> Option<u64> {
        if index > self.last {
            return None;
        }
        // Nearly always the newest run is asked for.
        if let Some(&(_, term)) = self.runs.last().filter(|&&(first, _)| first <= index) {
            return Some(term);
        }
        let after = self.runs.partition_point(|&(first, _)| first <= index);
        let (_, term) = self.runs.get(after.checked_sub(1)?)?;
        Some(*term)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terms_are_found_after_overwrites() {
        let mut terms = TermRuns::default();
        for (index, term) in [(5, 1), (6, 1), (7, 2), (8, 2)] {
            terms.push(index, term);
        }
        assert_eq!([4, 5, 6, 7, 8, 9].map(|index| terms.at(index)), [None, Some(1), Some(1), Some(2), Some(2), None]);
        terms.cut_back(7);
        terms.push(7, 3);
        assert_eq!([6, 7, 8].map(|index| terms.at(index)), [Some(1), Some(3), None]);
    }
}
