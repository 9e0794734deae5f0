//! A watch on etcd that survives its connections.
//!
//! **Invariant:** a revision is told whole or not at all, so that going on after the last one told neither loses nor repeats.

use std::time::Duration;

use quorate_etcd::client::messages::{Event as EtcdEvent, RangeRequest};
use quorate_etcd::client::{Client, KeyRange, Watch, WatchFrom, WatchTurn};
use quorate_faults::{Code, Result};
use quorate_kv::{Entry, Event, LeaseId, Position, Revision};
use tokio::time::{Instant, sleep, timeout_at};

use super::{number, revision, translated};
use crate::errors::Attempt;
use crate::watch::Turn;

/// The pause after a failed attempt to open the watch: short, since etcd is often back within a second.
const PAUSE: Duration = Duration::from_millis(200);

/// A watch.
#[derive(Debug)]
pub(crate) struct EtcdWatch {
    client: Client,
    place: String,
    range: KeyRange,
    /// Everything up to here was told.
    told: Revision,
    /// The cluster that the revision is of, once it is known.
    cluster: Option<u64>,
    open: Option<Watch>,
    /// Events of a revision that may go on in the next message.
    pending: Vec<Event>,
    /// Once history is gone it stays gone.
    gone: Option<Option<Revision>>,
}

impl EtcdWatch {
    pub(super) fn new(client: Client, place: &str, range: KeyRange, told: Revision) -> EtcdWatch {
        let place = place.to_owned();
        EtcdWatch { client, place, range, told, cluster: None, open: None, pending: Vec::new(), gone: None }
    }

    pub(crate) fn position(&self) -> Position {
        Position::at(self.told)
    }

    pub(crate) async fn next(&mut self, limit: Duration) -> Result<Turn> {
        let end = Instant::now() + limit;
        loop {
            if let Some(oldest) = self.gone {
                return Ok(Turn::Compacted { oldest });
            }
            if self.open.is_none()
                && let Err(fault) = self.reopen().await
            {
                if fault.code() != Code::CoordinationSilent || Instant::now() + PAUSE >= end {
                    return Err(fault);
                }
                sleep(PAUSE).await;
                continue;
            }
            let Some(open) = &mut self.open else { continue };
            match timeout_at(end, open.next()).await {
                Err(_) => return Ok(Turn::Quiet),
                Ok(Ok(turn)) => {
                    if let Some(events) = self.take(turn) {
                        return Ok(Turn::Events(events));
                    }
                }
                Ok(Err(fault)) => {
                    self.open = None;
                    self.pending.clear();
                    if fault.code() != Code::EtcdUnreachable {
                        return Err(translated(Attempt::WATCH, &self.place, fault));
                    }
                }
            }
        }
    }

    /// Opens the watch after what was told. A store whose revision lies before that has another history than the one we saw.
    async fn reopen(&mut self) -> Result<()> {
        let from = WatchFrom { revision: number(self.told).saturating_add(1), progress: true };
        let opened = self.client.watch_range(&self.range, from).await;
        let opened = opened.map_err(|fault| translated(Attempt::WATCH, &self.place, fault))?;
        let header = opened.opened();
        let other = self.cluster.is_some_and(|cluster| cluster != header.cluster_id);
        // A member that lags behind will catch up; only a quorum tells that the history is another one.
        if other || (revision(header.revision) < self.told && self.newest().await? < self.told) {
            self.gone = Some(None);
        }
        self.cluster = Some(header.cluster_id);
        self.open = Some(opened);
        Ok(())
    }

    /// The store's revision, as a quorum knows it.
    async fn newest(&self) -> Result<Revision> {
        let (key, _) = self.range.clone().bounds();
        let answer = self.client.range(RangeRequest { key, count_only: true, ..RangeRequest::default() }).await;
        let answer = answer.map_err(|fault| translated(Attempt::WATCH, &self.place, fault))?;
        Ok(revision(answer.header.unwrap_or_default().revision))
    }

    /// What can be told of a turn.
    fn take(&mut self, turn: WatchTurn) -> Option<Vec<Event>> {
        match turn {
            WatchTurn::Compacted { oldest } => {
                self.gone = Some(Some(revision(oldest)));
                self.open = None;
                None
            }
            WatchTurn::Progress { revision: at, .. } => {
                self.told = self.told.max(revision(at));
                None
            }
            WatchTurn::Events { events, more, .. } => {
                self.pending.extend(events.into_iter().filter_map(event));
                let last = self.pending.last().map_or(self.told, Event::revision);
                let kept = match more {
                    true => self.pending.iter().position(|event| event.revision() == last),
                    false => None,
                };
                let rest = self.pending.split_off(kept.unwrap_or(self.pending.len()));
                let told = std::mem::replace(&mut self.pending, rest);
                self.told = told.last().map_or(self.told, Event::revision);
                (!told.is_empty()).then_some(told)
            }
        }
    }
}

/// Copied, because the client's share the buffer of a whole message.
fn event(event: EtcdEvent) -> Option<Event> {
    let deleted = event.is_delete();
    let kv = event.kv?;
    if deleted {
        return Some(Event::Delete { key: kv.key.to_vec(), revision: revision(kv.mod_revision) });
    }
    Some(Event::Put(Entry {
        key: kv.key.to_vec(),
        value: kv.value.to_vec(),
        created: revision(kv.create_revision),
        revision: revision(kv.mod_revision),
        lease: (kv.lease != 0).then(|| LeaseId(format!("{:x}", kv.lease))),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use quorate_etcd::client::Settings;
    use quorate_etcd::client::messages::{EventKv, ResponseHeader};

    fn write(key: &'static str, mod_revision: i64) -> EtcdEvent {
        let kv = EventKv { key: key.into(), mod_revision, create_revision: 1, version: 1, ..EventKv::default() };
        EtcdEvent { kind: 0, kv: Some(kv) }
    }

    fn turn(events: Vec<EtcdEvent>, more: bool) -> WatchTurn {
        WatchTurn::Events { events, more, header: ResponseHeader::default() }
    }

    #[tokio::test]
    async fn a_transaction_that_comes_in_pieces_is_told_whole() {
        let client = Client::connect(&Settings::new(["http://127.0.0.1:1"])).await.unwrap();
        let mut watch = EtcdWatch::new(client, "x", KeyRange::all(), Revision(4));
        let keys = |events: Option<Vec<Event>>| {
            events.map(|events| events.iter().map(|event| event.revision().0).collect::<Vec<_>>())
        };
        assert_eq!(keys(watch.take(turn(vec![write("a", 5), write("b", 6)], true))), Some(vec![5]));
        assert_eq!(watch.position().revision, Revision(5));
        assert_eq!(keys(watch.take(turn(vec![write("c", 6)], true))), None);
        assert_eq!(watch.position().revision, Revision(5));
        assert_eq!(keys(watch.take(turn(vec![write("d", 6), write("a", 7)], false))), Some(vec![6, 6, 6, 7]));
        assert_eq!(watch.position().revision, Revision(7));
    }
}
