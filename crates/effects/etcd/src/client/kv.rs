//! Keys and values.

use quorate_faults::{Code, Fault};

use super::Client;
use super::call::Procedure;
use super::errors::{self, Failure};
use super::messages::{
    CompactionRequest, CompactionResponse, DeleteRangeRequest, DeleteRangeResponse, KeyValue, PutRequest, PutResponse,
    RangeRequest, RangeResponse, ResponseHeader, TxnRequest, TxnResponse,
};

const HEADER: Procedure = Procedure::read("/etcdserverpb.KV/Range", "ask for the revision");
const SERVES: Procedure = Procedure::read("/etcdserverpb.KV/Range", "ask whether reads are served");
const RANGE: Procedure = Procedure::read("/etcdserverpb.KV/Range", "read keys");
const PUT: Procedure = Procedure::write("/etcdserverpb.KV/Put", "write a key");
const DELETE: Procedure = Procedure::write("/etcdserverpb.KV/DeleteRange", "delete keys");
const TXN: Procedure = Procedure::write("/etcdserverpb.KV/Txn", "run a transaction");
const COMPACT: Procedure = Procedure::write("/etcdserverpb.KV/Compact", "compact the history");

/// Keys per page of a listing: small enough that a page of large values stays far below the message limit.
const PAGE_KEYS: i64 = 500;

/// All keys below a prefix, as they were at one revision.
#[derive(Debug, Clone, PartialEq)]
pub struct Listing {
    /// The revision.
    pub revision: i64,
    /// The keys in order.
    pub kvs: Vec<KeyValue>,
}

impl Client {
    /// Reads keys as the request says. Linearizable unless the request says `serializable`.
    pub async fn range(&self, request: RangeRequest) -> Result<RangeResponse, Fault> {
        self.call(RANGE, request).await
    }

    /// Cluster, answering member and revision, confirmed by a quorum. Every role that may read all keys may ask this; newer
    /// releases keep [`Client::status`] for root.
    pub async fn header(&self) -> Result<ResponseHeader, Fault> {
        let answer: RangeResponse = self.call(HEADER, first_key_count()).await?;
        answer.header.ok_or_else(|| {
            Fault::new(Code::EtcdRefused, "cannot ask for the revision: the answer does not say who gave it")
                .hint("what listens there is not etcd, or changes its answers on the way: use etcd's own client URL")
        })
    }

    /// Whether somebody answers reads that a quorum confirms, each endpoint being asked within the limit. Being turned down
    /// for who we are counts as yes: etcd confirms with a quorum first and looks at users after. So no user is needed.
    pub async fn serves(&self) -> Result<(), Fault> {
        match self.call_with_token::<_, RangeResponse>(SERVES, first_key_count()).await {
            Ok(_) => Ok(()),
            Err(failures) if failures.last().is_some_and(Failure::is_about_user) => Ok(()),
            Err(failures) => Err(errors::fault(SERVES, failures)),
        }
    }

    /// The newest value of one key.
    pub async fn get(&self, key: impl Into<Vec<u8>>) -> Result<Option<KeyValue>, Fault> {
        let answer = self.range(RangeRequest { key: key.into(), ..RangeRequest::default() }).await?;
        Ok(answer.kvs.into_iter().next())
    }

    /// Everything below a prefix, page by page, all at the revision of the first page.
    pub async fn list(&self, prefix: impl Into<Vec<u8>>) -> Result<Listing, Fault> {
        let prefix = prefix.into();
        let range_end = prefix_end(&prefix);
        let mut key = if prefix.is_empty() { vec![0] } else { prefix };
        let mut listing = Listing { revision: 0, kvs: Vec::new() };
        loop {
            let page = self
                .range(RangeRequest {
                    key: key.clone(),
                    range_end: range_end.clone(),
                    limit: PAGE_KEYS,
                    revision: listing.revision,
                    ..RangeRequest::default()
                })
                .await?;
            if listing.revision == 0 {
                listing.revision = page.header.unwrap_or_default().revision;
            }
            let last = page.kvs.last().map(|kv| kv.key.clone());
            listing.kvs.extend(page.kvs);
            match last {
                Some(last) if page.more => {
                    key = last;
                    key.push(0);
                }
                _ => return Ok(listing),
            }
        }
    }

    /// Writes one key.
    pub async fn put(&self, key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) -> Result<PutResponse, Fault> {
        self.put_with(PutRequest { key: key.into(), value: value.into(), ..PutRequest::default() }).await
    }

    /// Writes one key as the request says.
    pub async fn put_with(&self, request: PutRequest) -> Result<PutResponse, Fault> {
        self.call(PUT, request).await
    }

    /// Deletes one key; says how many were there.
    pub async fn delete(&self, key: impl Into<Vec<u8>>) -> Result<i64, Fault> {
        self.delete_range(DeleteRangeRequest { key: key.into(), ..DeleteRangeRequest::default() })
            .await
            .map(|answer| answer.deleted)
    }

    /// Deletes keys as the request says.
    pub async fn delete_range(&self, request: DeleteRangeRequest) -> Result<DeleteRangeResponse, Fault> {
        self.call(DELETE, request).await
    }

    /// Compares and changes in one step.
    pub async fn txn(&self, request: TxnRequest) -> Result<TxnResponse, Fault> {
        self.call(TXN, request).await
    }

    /// Forgets the history before a revision, and waits until that is done on disk.
    pub async fn compact(&self, revision: i64) -> Result<CompactionResponse, Fault> {
        self.call(COMPACT, CompactionRequest { revision, physical: true }).await
    }
}

/// The cheapest question that a quorum must confirm: whether the lowest of all keys is there, which hardly anybody writes.
fn first_key_count() -> RangeRequest {
    RangeRequest { key: vec![0], count_only: true, ..RangeRequest::default() }
}

/// The first key after all that begin with `prefix`; etcd takes a single zero byte as "no end".
pub(super) fn prefix_end(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if let Some(next) = last.checked_add(1) {
            end.push(next);
            return end;
        }
    }
    vec![0]
}

#[cfg(test)]
mod tests {
    use super::prefix_end;

    #[test]
    fn a_prefix_ends_before_the_next_possible_key() {
        assert_eq!(prefix_end(b"/a"), b"/b");
        assert_eq!(prefix_end(b"a\xff"), b"b");
        assert_eq!(prefix_end(b"\xff\xff"), b"\0");
        assert_eq!(prefix_end(b""), b"\0");
    }
}
