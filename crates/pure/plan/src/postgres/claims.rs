//! The writes of a bootstrap, each as one transaction that the store makes only if nothing has changed that it depends on.
//!
//! **Invariant:** what a leader writes depends on the very record that made it leader; the group is only written where there
//! is none; the place of the write master is only taken where nobody has it, and its epoch grows each time.

use std::collections::{BTreeMap, BTreeSet};

use quorate_kv::{Change, Compare, LeaseId, Revision, Txn};
use serde::Serialize;

use super::records::{
    Candidate, Cutoff, Discard, Diverged, Floor, Group, Handover, Leader, Noted, Order, Records, SchemaNote,
    WriterNote, keys,
};

/// A transaction of ours.
pub type Write = Txn;

fn text(record: &impl Serialize) -> Vec<u8> {
    // Records are plain texts and numbers: they can always be written.
    serde_json::to_vec(record).unwrap_or_default()
}

fn key(name: &str) -> Vec<u8> {
    name.as_bytes().to_vec()
}

fn unchanged<T>(name: &str, record: Option<&(T, Revision)>) -> Compare {
    match record {
        Some((_, revision)) => Compare::Unchanged(key(name), *revision),
        None => Compare::Absent(key(name)),
    }
}

/// Makes a node the leader of an epoch, in place of the one that was seen. `lock`: the condition that the lock is still held.
pub fn take_lead(records: &Records, me: &str, epoch: u64, lock: Option<Compare>) -> Write {
    let leader = Leader { node: me.to_owned(), epoch };
    let when = [unchanged(keys::LEADER, records.leader.as_ref())].into_iter().chain(lock).collect();
    Txn { when, then: vec![Change::Put(key(keys::LEADER), text(&leader))] }
}

/// Writes the group down, if there is none and we still lead.
pub fn take_group(records: &Records, group: &Group) -> Write {
    let when = vec![unchanged(keys::LEADER, records.leader.as_ref()), Compare::Absent(key(keys::GROUP))];
    Txn { when, then: vec![Change::Put(key(keys::GROUP), text(group))] }
}

/// Notes that a node is bound to the group.
pub fn note_bound(records: &Records, me: &str, group: &str) -> Write {
    note(records, &format!("{}{me}", keys::BOUND), group)
}

/// Notes that a node is linked with every other.
pub fn note_joined(records: &Records, me: &str, group: &str) -> Write {
    note(records, &format!("{}{me}", keys::JOINED), group)
}

fn note(records: &Records, name: &str, group: &str) -> Write {
    let noted = Noted { group: group.to_owned() };
    let when = vec![unchanged(keys::GROUP, records.group.as_ref())];
    Txn { when, then: vec![Change::Put(key(name), text(&noted))] }
}

/// Notes that the schema is laid, if we still lead.
pub fn note_schema(records: &Records, note: &SchemaNote) -> Write {
    let when = vec![
        unchanged(keys::LEADER, records.leader.as_ref()),
        unchanged(keys::GROUP, records.group.as_ref()),
        unchanged(keys::SCHEMA, records.schema.as_ref()),
    ];
    Txn { when, then: vec![Change::Put(key(keys::SCHEMA), text(note))] }
}

/// Takes the place of the write master, if nobody has it and nobody had it since we looked. The cutoffs are recorded by the same
/// transaction: no writer opens its door without them.
pub fn take_writer(records: &Records, me: &str, lease: &LeaseId, cutoffs: &BTreeMap<String, Cutoff>) -> Write {
    let epoch = records.last_writer.as_ref().map_or(0, |(last, _)| last.epoch) + 1;
    let note = text(&WriterNote { node: me.to_owned(), epoch });
    let when = vec![
        Compare::Absent(key(keys::WRITER)),
        unchanged(keys::WRITER_EPOCH, records.last_writer.as_ref()),
        unchanged(keys::GROUP, records.group.as_ref()),
    ];
    let mut then = vec![
        Change::Hold(key(keys::WRITER), note.clone(), lease.clone()),
        Change::Put(key(keys::WRITER_EPOCH), note),
        Change::Delete(key(keys::HANDOVER)),
    ];
    then.extend(
        cutoffs.iter().map(|(node, cutoff)| Change::Put(key(&format!("{}{node}", keys::CUTOFFS)), text(cutoff))),
    );
    Txn { when, then }
}

/// Removes the cutoff of a node that has proven that it holds no more, if the cutoff is the one that it was proven for. By the same
/// transaction the position of the cutoff becomes a floor for every member but the node and the writer that recorded it.
pub fn clear_cutoff(records: &Records, me: &str) -> Option<Write> {
    let name = format!("{}{me}", keys::CUTOFFS);
    let kept = records.cutoffs.get(me)?;
    let (group, _) = records.group.as_ref()?;
    let others = group.nodes.iter().filter(|(node, _)| **node != me && **node != kept.0.writer);
    let waiting = others.map(|(_, id)| *id).collect();
    let floor = Floor { id: kept.0.id, epoch: kept.0.epoch, applied: kept.0.applied, waiting };
    let when = vec![unchanged(&name, Some(kept)), unchanged(keys::GROUP, records.group.as_ref())];
    Some(Txn { when, then: vec![Change::Delete(key(&name)), put_floor(me, &floor)] })
}

/// A floor that no member has to confirm is none.
fn put_floor(from: &str, floor: &Floor) -> Change {
    let name = key(&format!("{}{from}", keys::FLOORS));
    if floor.waiting.is_empty() { Change::Delete(name) } else { Change::Put(name, text(floor)) }
}

/// Confirms that a node holds all changes of a former writer below its floor. `None`: the node is not awaited.
pub fn confirm_floor(records: &Records, from: &str, me: &str) -> Option<Write> {
    let kept = records.floor(from)?;
    let (group, _) = records.group.as_ref()?;
    let me = records.number(me).filter(|me| kept.0.waiting.contains(me))?;
    // One that has left is not waited for.
    let waits = |id: &u16| *id != me && group.nodes.values().any(|member| member == id);
    let waiting = kept.0.waiting.iter().copied().filter(waits).collect();
    let when = vec![unchanged(&format!("{}{from}", keys::FLOORS), Some(kept))];
    Some(Txn { when, then: vec![put_floor(from, &Floor { waiting, ..kept.0.clone() })] })
}

/// Records what a node holds that the writer does not have.
pub fn note_diverged(records: &Records, me: &str, diverged: &Diverged) -> Write {
    let name = format!("{}{me}", keys::DIVERGED);
    let when = vec![unchanged(keys::GROUP, records.group.as_ref()), unchanged(&name, records.diverged.get(me))];
    Txn { when, then: vec![Change::Put(key(&name), text(diverged))] }
}

/// Says how far we are, for the next epoch.
pub fn note_candidate(me: &str, candidate: &Candidate) -> Write {
    let then = vec![Change::Put(key(&format!("{}{me}", keys::CANDIDATES)), text(candidate))];
    Txn { when: Vec::new(), then }
}

/// What members had not applied of the writer's log when it had stopped taking writes for a planned handover.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Unconfirmed {
    /// The position in the writer's log up to which the next writer has applied it.
    pub applied: u64,
    /// The numbers of the members that have not confirmed it.
    pub members: BTreeSet<u16>,
}

/// The floor of a writer that hands over: members that have not applied its log take the rows of the next writer. Those that an earlier
/// floor waits for are still awaited. `None`: every member has it.
pub fn handover_floor(records: &Records, to: &str, unconfirmed: &Unconfirmed) -> Option<Floor> {
    let (writer, _) = records.writer.as_ref()?;
    let (group, _) = records.group.as_ref()?;
    let id = records.number(&writer.node)?;
    let earlier = records.floor(&writer.node).map(|(floor, _)| floor);
    let awaited = earlier.iter().flat_map(|floor| &floor.waiting).chain(&unconfirmed.members).copied();
    let is_other =
        |id: &u16| group.nodes.iter().any(|(node, member)| member == id && *node != writer.node && node != to);
    let waiting: BTreeSet<u16> = awaited.filter(is_other).collect();
    let applied = unconfirmed.applied.max(earlier.map_or(0, |floor| floor.applied));
    (!waiting.is_empty()).then(|| Floor { id, epoch: writer.epoch + 1, applied, waiting })
}

/// Gives the place up in favour of a node. The order that asked for it is done with. The floor is recorded by the same transaction: no
/// next writer opens its door without it.
pub fn hand_over(records: &Records, to: &str, floor: Option<&Floor>) -> Option<Write> {
    let (writer, _) = records.writer.as_ref()?;
    let note = Handover { to: to.to_owned(), epoch: writer.epoch + 1 };
    let mut when = vec![unchanged(keys::WRITER, records.writer.as_ref())];
    let mut then = vec![
        Change::Delete(key(keys::WRITER)),
        Change::Put(key(keys::HANDOVER), text(&note)),
        Change::Delete(key(keys::ORDER)),
    ];
    if let Some(floor) = floor {
        let name = format!("{}{}", keys::FLOORS, writer.node);
        when.push(unchanged(&name, records.floors.get(&writer.node)));
        when.push(unchanged(keys::GROUP, records.group.as_ref()));
        then.push(put_floor(&writer.node, floor));
    }
    Some(Txn { when, then })
}

/// Asks the write master to hand over.
pub fn order(order: &Order) -> Write {
    Txn { when: Vec::new(), then: vec![Change::Put(key(keys::ORDER), text(order))] }
}

/// Writes the group down with other members, if it is as it was seen. Nothing is kept of those who are no longer in it.
pub fn change_group(records: &Records, group: &Group) -> Write {
    let when = vec![unchanged(keys::GROUP, records.group.as_ref())];
    let before = records.group.iter().flat_map(|(group, _)| group.nodes.keys());
    let gone = before.filter(|name| !group.nodes.contains_key(*name));
    let folders = [keys::BOUND, keys::JOINED, keys::CANDIDATES, keys::CUTOFFS, keys::FLOORS, keys::DIVERGED];
    let forget = gone.flat_map(|name| folders.map(|folder| Change::Delete(key(&format!("{folder}{name}")))));
    let come = records.discards.keys().filter(|name| group.nodes.contains_key(*name));
    let come = come.map(|name| Change::Delete(key(&format!("{}{name}", keys::DISCARDS))));
    let then = [Change::Put(key(keys::GROUP), text(group))].into_iter().chain(forget).chain(come).collect();
    Txn { when, then }
}

/// Has the agent of a node that is no member any more replace its data dir by an empty one.
pub fn order_discard(node: &str, discard: &Discard) -> Change {
    Change::Put(key(&format!("{}{node}", keys::DISCARDS)), text(discard))
}
