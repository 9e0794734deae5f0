//! All writes from a revision on, in the order they happened.
//!
//! **Invariant:** what a watch hands out continues exactly where the wanted revision, or what it handed out last, left off;
//! when it cannot, it says so and hands out nothing more.

use futures_util::{Stream, StreamExt, stream};
use quorate_faults::{Code, Fault};
use tokio::sync::watch;

use super::Client;
use super::call::Procedure;
use super::errors::Failure;
use super::kv::prefix_end;
use super::messages::{Event, ResponseHeader, WatchAsk, WatchCreateRequest, WatchRequest, WatchResponse};
use super::stream::Incoming;

const WATCH: Procedure = Procedure::read("/etcdserverpb.Watch/Watch", "watch keys");

/// Where a watch begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WatchFrom {
    /// The first wanted revision.
    pub revision: i64,
    /// Ask to be told how far the watch is while nothing happens; etcd does so every ten minutes unless told otherwise.
    pub progress: bool,
}

/// Which keys a watch tells of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRange {
    key: Vec<u8>,
    end: Vec<u8>,
}

impl KeyRange {
    /// All keys.
    pub fn all() -> KeyRange {
        KeyRange::prefix(Vec::new())
    }

    /// One key.
    pub fn one(key: impl Into<Vec<u8>>) -> KeyRange {
        KeyRange { key: key.into(), end: Vec::new() }
    }

    /// All keys that begin so.
    pub fn prefix(prefix: impl Into<Vec<u8>>) -> KeyRange {
        let prefix = prefix.into();
        let end = prefix_end(&prefix);
        KeyRange { key: if prefix.is_empty() { vec![0] } else { prefix }, end }
    }

    /// The first key, and the first one after the range, as etcd wants them.
    pub fn bounds(self) -> (Vec<u8>, Vec<u8>) {
        (self.key, self.end)
    }
}

/// A running watch. Dropped, it ends.
#[derive(Debug)]
pub struct Watch {
    incoming: Incoming<WatchResponse>,
    /// Told before anything else: that the wanted revision is gone.
    first: Option<WatchResponse>,
    /// Who opened it, and the store's revision then.
    opened: ResponseHeader,
    /// The lowest revision that may come next.
    least: i64,
    /// Dropped with the watch: then our side of the stream ends too, and with it the connection.
    _open: watch::Sender<()>,
}

/// What a watch tells.
#[derive(Debug, Clone, PartialEq)]
pub enum WatchTurn {
    /// Writes, in order. Keys and values share one buffer, which lives as long as any of them.
    Events {
        /// The writes.
        events: Vec<Event>,
        /// The last transaction may go on in the next turn.
        more: bool,
        /// Who told, and the store's revision then.
        header: ResponseHeader,
    },
    /// Everything up to a revision has been handed out.
    Progress {
        /// The revision.
        revision: i64,
        /// Who told.
        header: ResponseHeader,
    },
    /// The wanted revision is gone. The watch has ended.
    Compacted {
        /// The oldest revision that can be watched.
        oldest: i64,
    },
}

impl Client {
    /// Watches all keys from a revision on, at one endpoint. A lost connection or a refusal is a fault: whoever wants to go
    /// on opens a new watch at the revision after the last whole one.
    pub async fn watch(&self, from: WatchFrom) -> Result<Watch, Fault> {
        self.watch_range(&KeyRange::all(), from).await
    }

    /// The same for some keys only.
    pub async fn watch_range(&self, keys: &KeyRange, from: WatchFrom) -> Result<Watch, Fault> {
        let (open, _) = watch::channel(());
        let asks = || create(keys.clone(), from, open.subscribe());
        let (incoming, first) = self.open(WATCH, asks, refused, self.timeout()).await?;
        let opened = first.header.unwrap_or_default();
        let first = first.canceled.then_some(first);
        Ok(Watch { incoming, first, opened, least: from.revision, _open: open })
    }
}

impl Client {
    /// Cluster, member and revision of whoever answers, also for those who may read nothing: a watch is turned down inside a
    /// message, and that says who gives it. No quorum confirms it.
    pub async fn who(&self) -> Result<ResponseHeader, Fault> {
        let (open, _) = watch::channel(());
        let from = WatchFrom { revision: 0, progress: false };
        let asks = || create(KeyRange::one([0]), from, open.subscribe());
        let (_, first) = self.open(WATCH, asks, |_, _: &WatchResponse| None, self.timeout()).await?;
        first.header.ok_or_else(|| {
            Fault::new(Code::EtcdRefused, "cannot ask who answers: the answer does not say who gave it")
                .hint("what listens there is not etcd, or changes its answers on the way: use etcd's own client URL")
        })
    }
}

/// One request; the stream then stays open as long as the watch does, because its end would end the watch. Without an end
/// it would outlive the watch and hold the connection, and an etcd that is asked to stop waits for open connections.
fn create(
    keys: KeyRange,
    from: WatchFrom,
    mut open: watch::Receiver<()>,
) -> impl Stream<Item = WatchRequest> + Send + 'static {
    let create = WatchCreateRequest {
        key: keys.key,
        range_end: keys.end,
        start_revision: from.revision,
        progress_notify: from.progress,
        fragment: true,
    };
    let request = WatchRequest { ask: Some(WatchAsk::Create(create)) };
    // Nothing is ever sent, so it changes when it is closed.
    let closed = async move { while open.changed().await.is_ok() {} };
    stream::iter([request]).chain(stream::pending()).take_until(closed)
}

/// etcd says no inside a message. That the revision is gone is not a refusal.
fn refused(url: &str, message: &WatchResponse) -> Option<Failure> {
    (message.canceled && message.compact_revision == 0).then(|| Failure::refused(url, &message.cancel_reason))
}

impl Watch {
    /// Waits for the next turn, as long as the server lives. Can be dropped and called again without loss.
    pub async fn next(&mut self) -> Result<WatchTurn, Fault> {
        loop {
            let message = match self.first.take() {
                Some(first) => Ok(Some(first)),
                None => self.incoming.next().await,
            };
            let message = match message {
                Ok(Some(message)) => message,
                Ok(None) => return Err(self.incoming.fault(Failure::ended(self.incoming.url()))),
                Err(failure) => return Err(self.incoming.fault(failure)),
            };
            if let Some(turn) = self.turn(message)? {
                return Ok(turn);
            }
        }
    }

    /// The endpoint that is watched.
    pub fn endpoint(&self) -> &str {
        self.incoming.url()
    }

    /// Who opened it, and the store's revision then. One below the wanted revision tells that the store went back in time.
    pub fn opened(&self) -> ResponseHeader {
        self.opened
    }

    fn turn(&mut self, message: WatchResponse) -> Result<Option<WatchTurn>, Fault> {
        if message.compact_revision != 0 {
            return Ok(Some(WatchTurn::Compacted { oldest: message.compact_revision }));
        }
        if let Some(failure) = refused(self.incoming.url(), &message) {
            return Err(self.incoming.fault(failure));
        }
        let header = message.header.unwrap_or_default();
        if message.events.is_empty() {
            // A watch that has begun says so without events, and that says nothing about how far it is.
            let progress = !message.created && !message.fragment && header.revision > 0;
            return Ok(progress.then_some(WatchTurn::Progress { revision: header.revision, header }));
        }
        for event in &message.events {
            let revision = event.kv.as_ref().map_or(0, |kv| kv.mod_revision);
            if revision <= 0 || revision < self.least {
                return Err(self.went_back(revision));
            }
            self.least = revision;
        }
        // etcd tells a transaction whole; only the fragments of one answer divide it.
        if !message.fragment {
            self.least = self.least.saturating_add(1);
        }
        Ok(Some(WatchTurn::Events { events: message.events, more: message.fragment, header }))
    }

    fn went_back(&self, revision: i64) -> Fault {
        let (url, least) = (self.incoming.url(), self.least);
        Fault::new(Code::EtcdRefused, format!("cannot follow the watch of etcd at `{url}`: it went back"))
            .hint("open it anew; if that happens again, the member's data is damaged: see `quorate data verify`")
            .caused_by(format!("revision {revision} came where {least} or more was due"))
    }
}
