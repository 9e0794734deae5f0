//! Transactions on Consul: conditions are operations among the others.
//!
//! **Rule:** Consul says in words why it did not commit. Words that are not known to mean a conflict are a refusal.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use quorate_faults::Result;
use quorate_kv::{Change, Compare, Outcome, Revision, Txn, escape};
use reqwest::StatusCode;
use serde::{Deserialize, Serialize};

use super::{Consul, Pair, sessions};
use crate::errors::Attempt;

/// How Consul says that a condition did not hold.
const CONFLICTS: &[&str] = &[
    "failed index check",
    "exists",
    "does not exist",
    "doesn't exist",
    "lock is already held",
    "due to lock delay",
    "failed to lock key",
];

#[derive(Debug, Serialize)]
struct Operation {
    #[serde(rename = "KV")]
    kv: Kv,
}

#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "PascalCase")]
struct Kv {
    verb: &'static str,
    key: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    session: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Done {
    #[serde(default)]
    results: Option<Vec<OneDone>>,
    #[serde(default)]
    errors: Option<Vec<Failed>>,
}

#[derive(Debug, Deserialize)]
struct OneDone {
    #[serde(rename = "KV")]
    kv: Option<Pair>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Failed {
    what: String,
}

impl Consul {
    pub(crate) async fn txn(&self, txn: &Txn) -> Result<Outcome> {
        let attempt = Attempt::TXN;
        if txn.when.is_empty() && txn.then.is_empty() {
            return Ok(Outcome::Committed(None));
        }
        let unusable = |change: &Change| matches!(change, Change::Hold(_, _, lease) if !sessions::plain(&lease.0));
        if txn.then.iter().any(unusable) {
            return Err(attempt.lease_gone(self.place()));
        }
        let conditions = txn.when.iter().map(condition);
        let operations: Vec<Operation> = conditions.chain(txn.then.iter().flat_map(change)).collect();
        let body = serde_json::to_vec(&operations)
            .map_err(|error| attempt.unreadable(self.place(), "it cannot be asked").caused_by(error))?;
        let answer = self.web.put(attempt, "txn", Some(body)).await?;
        match answer.status {
            StatusCode::OK => {}
            StatusCode::CONFLICT => return self.conflict(attempt, answer.json(attempt, self.place())?),
            _ => return Err(attempt.unreadable(self.place(), "it knows no transactions")),
        }
        let done: Done = answer.json(attempt, self.place())?;
        let written: Vec<String> = txn
            .then
            .iter()
            .filter(|change| !matches!(change, Change::Delete(_)))
            .map(|change| escape(change.key()))
            .collect();
        let results = done.results.unwrap_or_default().into_iter().filter_map(|result| result.kv);
        let newest = results.filter(|pair| written.contains(&pair.key)).map(|pair| pair.modify_index).max();
        Ok(Outcome::Committed(newest.map(Revision)))
    }

    fn conflict(&self, attempt: Attempt, done: Done) -> Result<Outcome> {
        let errors = done.errors.unwrap_or_default();
        if errors.iter().any(|error| error.what.contains("invalid session")) {
            return Err(attempt.lease_gone(self.place()));
        }
        let known = |error: &Failed| CONFLICTS.iter().any(|words| error.what.contains(words));
        match errors.iter().find(|error| !known(error)) {
            Some(other) => Err(attempt.refused(self.place(), other.what.clone())),
            None if errors.is_empty() => Err(attempt.unreadable(self.place(), "a conflict without a reason")),
            None => Ok(Outcome::Conflict),
        }
    }
}

fn condition(compare: &Compare) -> Operation {
    let kv = match compare {
        Compare::Absent(key) => Kv { verb: "check-not-exists", key: escape(key), ..Kv::default() },
        Compare::Unchanged(key, revision) => {
            Kv { verb: "check-index", key: escape(key), index: Some(revision.0), ..Kv::default() }
        }
    };
    Operation { kv }
}

fn change(change: &Change) -> Vec<Operation> {
    let kvs = match change {
        Change::Put(key, value) => {
            vec![Kv { verb: "set", key: escape(key), value: Some(STANDARD.encode(value)), ..Kv::default() }]
        }
        Change::Hold(key, value, lease) => vec![
            Kv { verb: "check-not-exists", key: escape(key), ..Kv::default() },
            Kv {
                verb: "lock",
                key: escape(key),
                value: Some(STANDARD.encode(value)),
                session: Some(lease.0.clone()),
                ..Kv::default()
            },
        ],
        Change::Delete(key) => vec![Kv { verb: "delete", key: escape(key), ..Kv::default() }],
    };
    kvs.into_iter().map(|kv| Operation { kv }).collect()
}
