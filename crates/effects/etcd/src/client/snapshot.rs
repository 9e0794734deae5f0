//! The whole database of one member as a stream: a bolt file, followed by its SHA-256.
//!
//! **Rule:** the wait for each piece has a limit, the whole has none. The end is reached only where the server says so.

use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use quorate_faults::Fault;

use super::Client;
use super::call::Procedure;
use super::errors::Failure;
use super::messages::{ResponseHeader, SnapshotRequest, SnapshotResponse};
use super::stream::Incoming;

const SNAPSHOT: Procedure = Procedure::read("/etcdserverpb.Maintenance/Snapshot", "take a snapshot");

/// How long a server may take over one piece. It reads from its disk, which may be busy, and commits before the first.
const PIECE_LIMIT: Duration = Duration::from_secs(30);

/// A snapshot on its way.
#[derive(Debug)]
pub struct SnapshotStream {
    incoming: Incoming<SnapshotResponse>,
    first: Option<SnapshotResponse>,
    remaining_bytes: u64,
    header: Option<ResponseHeader>,
    version: Option<String>,
}

impl Client {
    /// Takes a snapshot of one member. On a cluster with users that needs the role `root`.
    pub async fn snapshot(&self) -> Result<SnapshotStream, Fault> {
        let asks = || stream::iter([SnapshotRequest {}]);
        let (incoming, first) =
            self.open(SNAPSHOT, asks, |_, _: &SnapshotResponse| None, PIECE_LIMIT.max(self.timeout())).await?;
        let version = Some(first.version.clone()).filter(|version| !version.is_empty());
        Ok(SnapshotStream {
            incoming,
            remaining_bytes: first.remaining_bytes.saturating_add(first.blob.len() as u64),
            header: first.header,
            version,
            first: Some(first),
        })
    }
}

impl SnapshotStream {
    /// The next piece; none at the end. Dropping the stream ends it.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Fault> {
        let message = match self.first.take() {
            Some(first) => Some(first),
            None => self.incoming.next_within(PIECE_LIMIT).await.map_err(|failure| self.incoming.fault(failure))?,
        };
        match message {
            Some(message) => {
                self.remaining_bytes = message.remaining_bytes;
                Ok(Some(message.blob))
            }
            // The last message before the end says that nothing is missing.
            None if self.remaining_bytes == 0 => Ok(None),
            None => Err(self.incoming.fault(Failure::ended(self.incoming.url()))),
        }
    }

    /// Bytes of the database that are still to come, as the server says; the hash after it is not counted.
    pub fn remaining_bytes(&self) -> u64 {
        self.remaining_bytes
    }

    /// Who sends, if the server says so: since 3.6.
    pub fn header(&self) -> Option<ResponseHeader> {
        self.header
    }

    /// Version of the storage, if the server says so: since 3.6.
    pub fn version(&self) -> Option<&str> {
        self.version.as_deref()
    }

    /// The endpoint it comes from.
    pub fn endpoint(&self) -> &str {
        self.incoming.url()
    }
}
