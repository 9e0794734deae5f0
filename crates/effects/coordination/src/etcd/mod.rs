//! A store on etcd: its keys, transactions and leases are ours.
//!
//! **Invariant:** only keys of the namespace are asked for, so a role for that prefix is enough.

mod txn;
mod watch;

use std::error::Error;
use std::time::Duration;

use quorate_etcd::client::messages::{KeyValue, RangeRequest};
use quorate_etcd::client::{Client, KeyRange, Settings};
use quorate_faults::{Code, Fault, Result};
use quorate_kv::{Entry, LeaseId, Listing, Position, Revision, Scope};

use crate::errors::Attempt;
use crate::limits::{LISTING_BYTES_MAX, Limits};

pub(crate) use watch::EtcdWatch;

/// etcd refuses requests over 1.5 MiB, and ours may hold a value twice; and transactions of more than 128 operations.
pub(crate) const LIMITS: Limits = Limits { bytes_max: 512 << 10, operations_max: 100 };

/// Keys per page: with the largest values etcd takes, a page stays below the client's limit of one answer.
const PAGE_KEYS: i64 = 64;

/// How often a listing begins anew because its revision was compacted between two pages.
const LISTING_TRIES: usize = 5;

/// Limit of one attempt at one endpoint to renew a lease: short, since a member that hangs must not cost the lease.
const RENEW_LIMIT: Duration = Duration::from_secs(1);

/// An etcd cluster.
#[derive(Debug, Clone)]
pub(crate) struct Etcd {
    client: Client,
    place: String,
}

impl Etcd {
    /// `limit` is that of a whole call, so that every endpoint can be tried within it.
    pub(crate) async fn open(settings: &Settings, limit: Duration) -> Result<Etcd> {
        let place = settings.endpoints.join(",");
        let endpoints = u32::try_from(settings.endpoints.len()).unwrap_or(u32::MAX).max(1);
        let settings = Settings { timeout: settings.timeout.min(limit / endpoints), ..settings.clone() };
        let opened = Client::connect(&settings).await;
        let client = opened.map_err(|fault| match fault.code() {
            // Nothing was sent yet where there is nobody to log in.
            Code::EtcdUnreachable if settings.credentials.is_none() => {
                let attempt = format!("cannot use etcd at `{place}`");
                Fault::new(Code::CoordinationInvalid, attempt)
                    .hint(fault.hint_text().unwrap_or("check the address and the certificates").to_owned())
                    .caused_by(fault)
            }
            _ => translated(Attempt::LOOK, &place, fault),
        })?;
        Ok(Etcd { client, place })
    }

    pub(crate) fn place(&self) -> &str {
        &self.place
    }

    pub(crate) async fn look(&self, scope: &Scope) -> Result<Listing> {
        let mut tries = 0;
        loop {
            tries += 1;
            match self.look_once(scope).await {
                Err(fault) if tries < LISTING_TRIES && says(&fault, "revision has been compacted") => {}
                Err(fault) if fault.code() == Code::CoordinationTooMuch => return Err(fault),
                answer => return answer.map_err(|fault| translated(Attempt::LOOK, &self.place, fault)),
            }
        }
    }

    async fn look_once(&self, scope: &Scope) -> Result<Listing> {
        let (mut key, range_end) = range(scope).bounds();
        let mut listing = Listing { revision: Revision(0), entries: Vec::new() };
        let (mut at, mut bytes) = (0, 0);
        loop {
            let request = RangeRequest {
                key: key.clone(),
                range_end: range_end.clone(),
                limit: PAGE_KEYS,
                revision: at,
                ..RangeRequest::default()
            };
            let page = self.client.range(request).await?;
            if at == 0 {
                at = page.header.unwrap_or_default().revision;
                listing.revision = revision(at);
            }
            bytes += page.kvs.iter().map(|kv| kv.key.len() + kv.value.len()).sum::<usize>();
            if bytes > LISTING_BYTES_MAX {
                return Err(Attempt::LOOK.too_much(&self.place));
            }
            let last = page.kvs.last().map(|kv| kv.key.clone());
            listing.entries.extend(page.kvs.into_iter().map(entry));
            match last {
                Some(last) if page.more => {
                    key = last;
                    key.push(0);
                }
                _ => return Ok(listing),
            }
        }
    }

    pub(crate) async fn grant(&self, ttl: Duration) -> Result<(LeaseId, Duration)> {
        let granted = self.client.lease_grant_for(seconds(ttl), 0).await;
        let (id, ttl) = granted.map_err(|fault| translated(Attempt::GRANT, &self.place, fault))?;
        Ok((LeaseId(format!("{id:x}")), duration(ttl)))
    }

    pub(crate) async fn renew(&self, lease: &LeaseId) -> Result<Option<Duration>> {
        let Some(id) = lease_number(lease) else { return Ok(None) };
        match self.client.with_timeout(RENEW_LIMIT).lease_keep_alive(id).await {
            Ok(ttl) => Ok(ttl.map(duration)),
            Err(fault) if says(&fault, "requested lease not found") => Ok(None),
            Err(fault) => Err(translated(Attempt::RENEW, &self.place, fault)),
        }
    }

    pub(crate) async fn end(&self, lease: &LeaseId) -> Result<()> {
        let Some(id) = lease_number(lease) else { return Ok(()) };
        match self.client.lease_revoke(id).await {
            Ok(_) => Ok(()),
            Err(fault) if says(&fault, "requested lease not found") => Ok(()),
            Err(fault) => Err(translated(Attempt::END, &self.place, fault)),
        }
    }

    pub(crate) fn watch(&self, scope: &Scope, position: &Position) -> EtcdWatch {
        EtcdWatch::new(self.client.clone(), &self.place, range(scope), position.revision)
    }
}

fn range(scope: &Scope) -> KeyRange {
    match scope {
        Scope::Key(key) => KeyRange::one(key.clone()),
        Scope::Prefix(prefix) => KeyRange::prefix(prefix.clone()),
    }
}

fn entry(kv: KeyValue) -> Entry {
    Entry {
        key: kv.key,
        value: kv.value,
        created: revision(kv.create_revision),
        revision: revision(kv.mod_revision),
        lease: (kv.lease != 0).then(|| LeaseId(format!("{:x}", kv.lease))),
    }
}

fn revision(number: i64) -> Revision {
    Revision(u64::try_from(number).unwrap_or(0))
}

fn number(revision: Revision) -> i64 {
    i64::try_from(revision.0).unwrap_or(i64::MAX)
}

fn lease_number(lease: &LeaseId) -> Option<i64> {
    i64::from_str_radix(&lease.0, 16).ok().filter(|id| *id != 0)
}

/// Whole seconds, never fewer than asked for.
fn seconds(ttl: Duration) -> i64 {
    i64::try_from(ttl.as_millis().div_ceil(1000)).unwrap_or(i64::MAX).max(1)
}

fn duration(seconds: i64) -> Duration {
    Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
}

/// Whether etcd's own words, which are its only error codes, contain these.
fn says(fault: &Fault, words: &str) -> bool {
    fault.code() == Code::EtcdRefused && fault.source().is_some_and(|cause| cause.to_string().contains(words))
}

/// The client's fault as one of all stores.
fn translated(attempt: Attempt, place: &str, fault: Fault) -> Fault {
    let hint = fault.hint_text().map(str::to_owned);
    let said = fault.source().map(ToString::to_string).unwrap_or_default();
    let ours = match fault.code() {
        Code::EtcdUnreachable => attempt.silent(place, "did not answer").caused_by(fault),
        Code::EtcdRefused if said.contains("requested lease not found") => return attempt.lease_gone(place),
        Code::EtcdRefused if ["too large", "larger than max"].iter().any(|words| said.contains(words)) => {
            return attempt.too_large(place, said);
        }
        Code::EtcdRefused => attempt.refused(place, said),
        _ => return fault,
    };
    match hint {
        Some(hint) => ours.hint(hint),
        None => ours,
    }
}
