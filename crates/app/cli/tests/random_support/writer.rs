//! Clients of the cluster that write whatever comes to their mind.
//!
//! **Rule:** what was acknowledged is remembered with its revision, so that the truth can be checked against it. What was
//! not acknowledged may or may not have happened; the watch knows.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use quorate_etcd::client::Client;
use quorate_etcd::client::messages::{Compare, DeleteRangeRequest, PutRequest, Request, RequestOp, TxnRequest};

use super::dice::Dice;

/// Keys of each kind.
const KEYS: u64 = 45;

/// A put that etcd said it has.
#[derive(Debug, Clone)]
pub(crate) struct Acknowledged {
    pub(crate) revision: u64,
    pub(crate) key: Vec<u8>,
    pub(crate) value_bytes: usize,
}

/// What all writers share.
#[derive(Default)]
pub(crate) struct Writers {
    pub(crate) acknowledged: Mutex<Vec<Acknowledged>>,
    pub(crate) unsure: AtomicU64,
    pub(crate) ended: AtomicBool,
}

struct Writer {
    shared: Arc<Writers>,
    client: Client,
    dice: Dice,
    leases: Vec<i64>,
}

/// Writes until the end.
pub(crate) async fn write(shared: Arc<Writers>, client: Client, dice: Dice) {
    let mut writer = Writer { shared, client: client.with_timeout(Duration::from_secs(2)), dice, leases: Vec::new() };
    while !writer.shared.ended.load(Ordering::SeqCst) {
        if !writer.step().await {
            writer.shared.unsure.fetch_add(1, Ordering::SeqCst);
        }
        let pause = writer.dice.below(30);
        tokio::time::sleep(Duration::from_millis(pause)).await;
    }
}

impl Writer {
    /// One request; `false`: it is not known what became of it.
    async fn step(&mut self) -> bool {
        match self.dice.weighted(&[45, 12, 4, 18, 10, 3, 2]) {
            0 => self.put(0).await,
            1 => {
                let key = self.key();
                self.client.delete(key).await.is_ok()
            }
            2 => {
                let (one, other) = (self.key(), self.key());
                let (key, range_end) = (one.clone().min(other.clone()), one.max(other));
                self.client.delete_range(DeleteRangeRequest { key, range_end, prev_kv: false }).await.is_ok()
            }
            3 => self.transaction().await,
            4 => {
                let lease = self.lease().await;
                self.put(lease).await
            }
            5 => match self.leases.pop() {
                Some(lease) => self.client.lease_revoke(lease).await.is_ok(),
                None => true,
            },
            _ => {
                // Several keys that die in one transaction, soon.
                let Ok(lease) = self.client.lease_grant(2, 0).await else { return false };
                let mut known = true;
                for _ in 0..self.dice.between(1, 5) {
                    known &= self.put(lease).await;
                }
                known
            }
        }
    }

    async fn put(&mut self, lease: i64) -> bool {
        let (key, value) = (self.key(), self.value());
        let value_bytes = value.len();
        let request = PutRequest { key: key.clone(), value, lease, ..PutRequest::default() };
        match self.client.put_with(request).await {
            Ok(answer) => {
                let revision = answer.header.unwrap_or_default().revision as u64;
                self.shared.acknowledged.lock().unwrap().push(Acknowledged { revision, key, value_bytes });
                true
            }
            Err(_) => false,
        }
    }

    async fn transaction(&mut self) -> bool {
        let keys: BTreeSet<Vec<u8>> = (0..self.dice.between(2, 14)).map(|_| self.key()).collect();
        let compare = if self.dice.chance(30) { vec![Compare::absent(self.key())] } else { Vec::new() };
        let operations = |dice: &mut Dice| -> Vec<RequestOp> {
            let one = |key: &Vec<u8>| match dice.chance(70) {
                true => {
                    let length = dice.below(300);
                    let value = dice.bytes(length);
                    Request::Put(PutRequest { key: key.clone(), value, ..PutRequest::default() }).into()
                }
                false => Request::DeleteRange(DeleteRangeRequest { key: key.clone(), ..DeleteRangeRequest::default() })
                    .into(),
            };
            keys.iter().map(one).collect()
        };
        let (success, failure) = (operations(&mut self.dice), operations(&mut self.dice));
        self.client.txn(TxnRequest { compare, success, failure }).await.is_ok()
    }

    /// A lease that lives longer than the test, or 0.
    async fn lease(&mut self) -> i64 {
        if self.leases.len() < 4
            && let Ok(lease) = self.client.lease_grant(600, 0).await
        {
            self.leases.push(lease);
        }
        let at = self.dice.below(self.leases.len() as u64) as usize;
        self.leases.get(at).copied().unwrap_or(0)
    }

    fn key(&mut self) -> Vec<u8> {
        let number = self.dice.below(KEYS);
        match self.dice.weighted(&[50, 20, 20, 10]) {
            0 => format!("/registry/pods/{number:03}").into_bytes(),
            1 => vec![0, number as u8],
            2 => vec![0xff, number as u8, 0, 0xff, b'\n'],
            _ => [vec![b'k'; 1 << 10], vec![number as u8]].concat(),
        }
    }

    fn value(&mut self) -> Vec<u8> {
        let length = match self.dice.weighted(&[80, 500, 340, 65, 8, 2]) {
            0 => 0,
            1 => self.dice.below(100),
            2 => self.dice.below(5_000),
            3 => self.dice.below(60_000),
            4 => self.dice.below(500_000),
            _ => self.dice.between(900_000, 1 << 20),
        };
        self.dice.bytes(length)
    }
}
