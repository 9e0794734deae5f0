//! A store on Consul: its keys with `ModifyIndex` as revision, its transactions, and sessions as leases.
//!
//! Keys are escaped (see `quorate_kv::escape`), because Consul's are text in URLs. A session deletes its keys when it ends; it
//! lives for 10 s at least, ends up to twice its time after it was last renewed, and depends on no health check. Writing the
//! value that a key already has changes nothing in Consul, not even its `ModifyIndex`.
//!
//! **Invariant:** an empty list is believed only of a Consul that lets us read the keys that are asked for.

mod services;
mod sessions;
mod token;
mod txn;
mod watch;
mod web;

use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use quorate_faults::Result;
use quorate_kv::{Entry, LeaseId, Listing, Position, Revision, Scope, escape, unescape};
use reqwest::StatusCode;
use serde::Deserialize;

use crate::errors::Attempt;
use crate::limits::{Limits, shown};
use crate::settings::ConsulSettings;
use web::{Answer, Web};

pub(crate) use watch::ConsulWatch;

/// Consul takes 512 KiB and 64 operations; values travel in base64, and keys escaped within JSON.
pub(crate) const LIMITS: Limits = Limits { bytes_max: 376 << 10, operations_max: 64 };

/// A Consul agent. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Consul {
    web: Arc<Web>,
    lock_delay: Duration,
}

/// Keys as Consul lists them.
struct Looked {
    /// Consul's index of the answer, to wait with.
    index: u64,
    listing: Listing,
}

impl Consul {
    pub(crate) fn open(settings: &ConsulSettings, limit: Duration) -> Result<Consul> {
        Ok(Consul { web: Arc::new(Web::open(settings, limit)?), lock_delay: settings.lock_delay })
    }

    pub(crate) fn place(&self) -> &str {
        self.web.place()
    }

    pub(crate) async fn look(&self, scope: &Scope) -> Result<Listing> {
        let (looked, ()) =
            tokio::try_join!(self.look_after(Attempt::LOOK, scope, None), self.readable(Attempt::LOOK, scope))?;
        Ok(looked.listing)
    }

    /// Keys as they are, at once; or once they have changed since an index, or the wait is over.
    async fn look_after(&self, attempt: Attempt, scope: &Scope, wait: Option<(u64, Duration)>) -> Result<Looked> {
        let mut query = vec![("consistent", String::new())];
        if let Scope::Prefix(_) = scope {
            query.push(("recurse", String::new()));
        }
        if let Some((index, wait)) = wait {
            query.push(("index", index.to_string()));
            query.push(("wait", format!("{}ms", wait.as_millis())));
        }
        let path = format!("kv/{}", escape(scope.bytes()));
        let answer = self.web.get(attempt, &path, &query, wait.map_or(Duration::ZERO, |(_, wait)| wait)).await?;
        let index = answer.index.ok_or_else(|| attempt.unreadable(self.place(), "it has no index"))?;
        let pairs: Vec<Pair> = match answer.status {
            StatusCode::NOT_FOUND => Vec::new(),
            _ => answer.json(attempt, self.place())?,
        };
        let entries = pairs.into_iter().map(|pair| self.entry(attempt, pair)).collect::<Result<Vec<Entry>>>()?;
        let mut entries: Vec<Entry> = entries.into_iter().filter(|entry| scope.contains(&entry.key)).collect();
        // Escaped keys have another order.
        entries.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        let newest = entries.iter().map(|entry| entry.revision.0).max().unwrap_or(0);
        Ok(Looked { index, listing: Listing { revision: Revision(index.max(newest)), entries } })
    }

    /// Consul leaves out of a list what the token may not read, and says nothing. For a single key it says so, also for one
    /// that is not there.
    async fn readable(&self, attempt: Attempt, scope: &Scope) -> Result<()> {
        let Scope::Prefix(prefix) = scope else { return Ok(()) };
        let beyond = [prefix.as_slice(), b"\0"].concat();
        let query = [("consistent", String::new())];
        let answer = self.web.get(attempt, &format!("kv/{}", escape(&beyond)), &query, Duration::ZERO).await?;
        answer.index.map(|_| ()).ok_or_else(|| attempt.unreadable(self.place(), "it has no index"))
    }

    fn entry(&self, attempt: Attempt, pair: Pair) -> Result<Entry> {
        let foreign = |what: &str| attempt.unreadable(self.place(), format!("{what} `{}`", shown(pair.key.as_bytes())));
        let key = unescape(&pair.key).map_err(|_| foreign("a key in another form than Quorate's:"))?;
        let value = STANDARD.decode(pair.value.as_deref().unwrap_or_default());
        Ok(Entry {
            key,
            value: value.map_err(|_| foreign("a value that is not base64, of key"))?,
            created: Revision(pair.create_index),
            revision: Revision(pair.modify_index),
            lease: pair.session.map(LeaseId),
        })
    }

    pub(crate) fn watch(&self, scope: Scope, position: Position) -> ConsulWatch {
        ConsulWatch::new(self.clone(), scope, position)
    }
}

/// One key, as Consul writes it.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Pair {
    key: String,
    value: Option<String>,
    create_index: u64,
    modify_index: u64,
    session: Option<String>,
}

impl Answer {
    fn json<T: serde::de::DeserializeOwned>(&self, attempt: Attempt, place: &str) -> Result<T> {
        serde_json::from_slice(&self.body)
            .map_err(|error| attempt.unreadable(place, "it is not what Consul answers").caused_by(error))
    }
}
