//! Transactions on etcd.
//!
//! Writing a key that a lease holds is to keep the lease, but etcd lets go of it unless told not to, and may be told so only of
//! a key that is there. So a write says whether its key is there, as a condition of the transaction; a wrong guess is
//! corrected by what the failed transaction read. (Transactions within transactions would do in one step, but etcd does not
//! check rights within them.)
//!
//! **Rule:** only a condition of the caller's makes a conflict.

use std::collections::BTreeSet;

use quorate_etcd::client::messages::{
    Compare as EtcdCompare, CompareResult, CompareTarget, CompareWith, DeleteRangeRequest, PutRequest, RangeRequest,
    Request, RequestOp, Response, TxnRequest, TxnResponse,
};
use quorate_faults::Result;
use quorate_kv::{Change, Compare, LeaseId, Outcome, Revision, Txn};

use super::{Etcd, lease_number, number, revision, translated};
use crate::errors::Attempt;

/// How often a guess may be wrong: each time, somebody else made or deleted one of the keys in between.
const GUESSES: usize = 20;

/// What is taken for granted of the keys that are written, beside the caller's conditions.
#[derive(Debug, Default)]
struct Guess {
    /// Keys whose presence no condition of the caller's tells.
    open: Vec<Vec<u8>>,
    there: BTreeSet<Vec<u8>>,
}

impl Etcd {
    pub(crate) async fn txn(&self, txn: &Txn) -> Result<Outcome> {
        if let (true, [Change::Put(key, value)]) = (txn.when.is_empty(), txn.then.as_slice()) {
            // Either branch does it, so there is nothing to guess.
            let (there, absent) = (put(key, value, true), put(key, value, false));
            let request = TxnRequest { compare: vec![present(key)], success: vec![there], failure: vec![absent] };
            let answer = self.run(request).await?;
            return Ok(committed(&answer));
        }
        let mut guess = Guess::of(txn);
        for _ in 0..GUESSES {
            let answer = self.run(self.request(txn, &guess)?).await?;
            if answer.succeeded {
                return Ok(committed(&answer));
            }
            if !guess.corrected(&answer) {
                return Ok(Outcome::Conflict);
            }
        }
        Err(Attempt::TXN.silent(&self.place, "changes the same keys again and again"))
    }

    async fn run(&self, request: TxnRequest) -> Result<TxnResponse> {
        self.client.txn(request).await.map_err(|fault| translated(Attempt::TXN, &self.place, fault))
    }

    fn request(&self, txn: &Txn, guess: &Guess) -> Result<TxnRequest> {
        let conditions = txn.when.iter().map(|compare| match compare {
            Compare::Absent(key) => EtcdCompare::absent(key.clone()),
            // Of a key that is not there etcd says revision 0.
            Compare::Unchanged(key, Revision(0)) => EtcdCompare::unchanged_since(key.clone(), -1),
            Compare::Unchanged(key, revision) => EtcdCompare::unchanged_since(key.clone(), number(*revision)),
        });
        let holds = txn.then.iter().filter_map(|change| match change {
            Change::Hold(key, _, _) => Some(EtcdCompare::absent(key.clone())),
            Change::Put(..) | Change::Delete(_) => None,
        });
        let guesses = guess.open.iter().map(|key| match guess.there.contains(key) {
            true => present(key),
            false => EtcdCompare::absent(key.clone()),
        });
        let success = txn.then.iter().map(|change| match change {
            Change::Put(key, value) => Ok(put(key, value, guess.there.contains(key))),
            Change::Hold(key, value, lease) => self.hold(key, value, lease),
            Change::Delete(key) => {
                let request = DeleteRangeRequest { key: key.clone(), ..DeleteRangeRequest::default() };
                Ok(Request::DeleteRange(request).into())
            }
        });
        let look = |key: &Vec<u8>| {
            let request = RangeRequest { key: key.clone(), keys_only: true, ..RangeRequest::default() };
            RequestOp::from(Request::Range(request))
        };
        Ok(TxnRequest {
            compare: conditions.chain(holds).chain(guesses).collect(),
            success: success.collect::<Result<Vec<RequestOp>>>()?,
            failure: guess.open.iter().map(look).collect(),
        })
    }

    fn hold(&self, key: &[u8], value: &[u8], lease: &LeaseId) -> Result<RequestOp> {
        let lease = lease_number(lease).ok_or_else(|| Attempt::TXN.lease_gone(&self.place))?;
        let request = PutRequest { key: key.into(), value: value.into(), lease, ..PutRequest::default() };
        Ok(Request::Put(request).into())
    }
}

impl Guess {
    fn of(txn: &Txn) -> Guess {
        let mut guess = Guess::default();
        for change in &txn.then {
            let Change::Put(key, _) = change else { continue };
            match txn.when.iter().find(|compare| compare.key() == key) {
                Some(Compare::Unchanged(..)) => drop(guess.there.insert(key.clone())),
                Some(Compare::Absent(_)) => {}
                None => guess.open.push(key.clone()),
            }
        }
        guess
    }

    /// Takes over what a failed transaction read; says whether anything was guessed wrong.
    fn corrected(&mut self, answer: &TxnResponse) -> bool {
        let mut wrong = false;
        for (key, answer) in self.open.iter().zip(&answer.responses) {
            let Some(Response::Range(range)) = &answer.response else { continue };
            wrong |= match range.kvs.is_empty() {
                true => self.there.remove(key),
                false => self.there.insert(key.clone()),
            };
        }
        wrong
    }
}

fn present(key: &[u8]) -> EtcdCompare {
    EtcdCompare {
        result: CompareResult::Greater.into(),
        target: CompareTarget::Version.into(),
        key: key.to_vec(),
        with: Some(CompareWith::Version(0)),
        range_end: Vec::new(),
    }
}

fn put(key: &[u8], value: &[u8], keep_lease: bool) -> RequestOp {
    let request =
        PutRequest { key: key.into(), value: value.into(), ignore_lease: keep_lease, ..PutRequest::default() };
    Request::Put(request).into()
}

fn committed(answer: &TxnResponse) -> Outcome {
    Outcome::Committed(answer.header.map(|header| revision(header.revision)))
}
