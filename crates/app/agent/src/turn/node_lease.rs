//! The lease by which this agent holds the name of its node in the cluster, so that another machine with that name can tell.
//!
//! A member that was started while no other one answered holds no name. Once it reaches the cluster, it takes the name if that is free; where
//! another machine keeps it, that one continues, and etcd is stopped here.
//!
//! **Invariant:** a name is taken only where it is free, and before anything is removed, added or started. An etcd that runs is stopped only
//! for a lease that was seen to be renewed: one that is left behind is waited for.

use std::sync::Arc;
use std::time::Duration;

use quorate_etcd::client::Client;
use quorate_etcd::client::messages::{Compare, KeyValue, PutRequest, RangeRequest, Request, TxnRequest};
use quorate_etcd::ledger::observe_ledger;
use quorate_etcd_formats::membership::ClusterId;
use quorate_faults::{Code, Fault};
use quorate_plan::ledger::{LedgerSeen, State};
use quorate_plan::phase::Phase;
use quorate_plan::spec::Spec;
use quorate_plan::start::{Halt, Holder, ObservedLease};
use serde::{Deserialize, Serialize};
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::data::in_words;
use super::node::Node;
use super::publish::Shared;

/// Short, so that a machine that is gone is soon replaced; elections are shorter.
const TTL_SECONDS: i64 = 6;
/// Three tries within it.
const KEPT_EVERY: Duration = Duration::from_millis(1800);
/// While it is not held yet.
const TRIED_EVERY: Duration = Duration::from_millis(250);
/// How long one request may take.
const LIMIT: Duration = Duration::from_secs(2);
/// A record is far shorter. What is longer was not written by an agent.
const RECORD_BYTES_MAX: usize = 4096;
/// How long the node that continues is told of the other machine.
const NOTE_TTL_SECONDS: i64 = 30;
/// No cluster has more nodes.
const NODES_MAX: i64 = 1000;

/// What stands under the name of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    /// The nonce of the machine and its state dir.
    instance: String,
    /// Its host name and address.
    #[serde(default)]
    machine: String,
}

/// The lease of this agent.
#[derive(Debug)]
pub(super) struct NodeLease {
    node: Arc<Node>,
    shared: Arc<Shared>,
    instance: String,
    /// Its id, while it is held.
    held: Mutex<Option<i64>>,
    /// The lease of another machine with this name, as it was last observed.
    rival: Mutex<Option<ObservedLease>>,
}

impl NodeLease {
    pub(super) fn new(node: &Arc<Node>, shared: &Arc<Shared>, instance: &str) -> Arc<NodeLease> {
        let (node, shared) = (Arc::clone(node), Arc::clone(shared));
        Arc::new(NodeLease {
            node,
            shared,
            instance: instance.to_owned(),
            held: Mutex::new(None),
            rival: Mutex::new(None),
        })
    }

    /// Takes the name of this node. Where another machine holds it, that one is named.
    async fn claim(&self, client: &Client) -> Result<Holder, Fault> {
        let mut held = self.held.lock().await;
        let key = self.key();
        // Each round that fails was overtaken by another write to the same key.
        for _ in 0..4 {
            let there = client.get(key.clone()).await?;
            if let Some(there) = &there
                && let Holder::Another(machine) = holder(there, Some(&self.instance))
                && is_kept(client, there).await?
            {
                return Ok(Holder::Another(machine));
            }
            let lease = match *held {
                Some(id) if client.lease_keep_alive(id).await?.is_some() => id,
                Some(_) | None => client.lease_grant(TTL_SECONDS, 0).await?,
            };
            *held = Some(lease);
            if there.as_ref().is_some_and(|there| there.lease == lease) {
                return Ok(Holder::ThisMachine);
            }
            let unchanged = match &there {
                None => Compare::absent(key.clone()),
                Some(there) => Compare::unchanged_since(key.clone(), there.mod_revision),
            };
            let put = PutRequest { key: key.clone(), value: self.record(), lease, ..PutRequest::default() };
            let txn = TxnRequest { compare: vec![unchanged], success: vec![Request::Put(put).into()], failure: vec![] };
            if client.txn(txn).await?.succeeded {
                return Ok(Holder::ThisMachine);
            }
        }
        Err(Fault::new(Code::EtcdUnreachable, "the lease of this node changes all the time")
            .hint("another machine may have the same name; see `quorate explain Q1405`"))
    }

    /// Takes the name through the other members, before this node changes anything among them.
    pub(super) async fn claim_through(&self, client: &Client) -> Result<Option<Halt>, Fault> {
        let taken = tokio::time::timeout(LIMIT, self.claim(&client.with_timeout(LIMIT))).await;
        let silent = || Fault::new(Code::EtcdUnreachable, "the lease of this node could not be taken in time");
        Ok(match taken.map_err(|_| silent())?? {
            Holder::ThisMachine => None,
            Holder::Another(machine) => Some(Halt {
                code: Code::AnotherMachine,
                why: format!("another machine runs as this node: it holds the lease of this node: {machine}"),
                way_out: "stop one of the two machines; nothing was removed or started".to_owned(),
                lost: None,
            }),
        })
    }

    /// Keeps it until `stop`: from the first moment that the member serves here, and while its etcd is down.
    pub(super) async fn keep(self: Arc<Self>, stop: CancellationToken) {
        let mut client: Option<Client> = None;
        loop {
            let serves = self.shared.readiness().0 == Phase::Serving;
            let holds = *self.held.lock().await;
            let runs = serves || self.shared.status().etcd.is_some();
            let done = match holds.is_some() || runs {
                true => tokio::time::timeout(LIMIT * 2, self.kept(&mut client, serves, holds)).await,
                false => Ok(Ok(TRIED_EVERY)),
            };
            let pause = match done {
                Ok(Ok(pause)) => pause,
                Ok(Err(fault)) => {
                    debug!(code = %fault.code(), "the lease of this node is not kept: {}", in_words(&fault));
                    client = None;
                    TRIED_EVERY * 2
                }
                Err(_) => {
                    client = None;
                    TRIED_EVERY
                }
            };
            tokio::select! { () = tokio::time::sleep(pause) => {}, () = stop.cancelled() => return }
        }
    }

    /// Keeps it once, and returns when that is due again. Whoever serves takes it where it is free; whoever only runs etcd, or waits, keeps no
    /// more than it has.
    async fn kept(&self, client: &mut Option<Client>, serves: bool, holds: Option<i64>) -> Result<Duration, Fault> {
        let client = self.connected(client, serves || holds.is_some()).await?;
        if serves && self.claim(&client).await? == Holder::ThisMachine {
            *self.rival.lock().await = None;
            self.heed_note(&client).await?;
            return Ok(KEPT_EVERY);
        }
        let Some(id) = holds.filter(|_| !serves) else {
            // Where nobody holds the name, an etcd whose reads fail checks no more often than it would keep it.
            let rival = self.contest(&client).await?;
            return Ok(if rival || serves { TRIED_EVERY } else { KEPT_EVERY });
        };
        if self.is_done() {
            *self.held.lock().await = None;
            return client.lease_revoke(id).await.map(|_| TRIED_EVERY);
        }
        if client.lease_keep_alive(id).await?.is_some() {
            return Ok(KEPT_EVERY);
        }
        *self.held.lock().await = None;
        Ok(TRIED_EVERY)
    }

    /// Checks whether another machine keeps the name, and has etcd stopped here if it does: it held the name when this one was started
    /// without reaching anyone, or took it when this one had lost it. Returns whether there is one, kept or left behind.
    async fn contest(&self, client: &Client) -> Result<bool, Fault> {
        let mut rival = self.rival.lock().await;
        let Some((machine, look)) = self.observe_rival(client).await? else {
            *rival = None;
            return Ok(false);
        };
        let kept = rival.replace(look).is_some_and(|before| look.is_kept_since(&before));
        if !kept {
            return Ok(true);
        }
        *rival = None;
        if self.shared.status().etcd.is_some() {
            warn!(code = %Code::AnotherMachine, machine, "another machine keeps the lease of this node; etcd is stopped here");
            let why = format!("another machine runs as this node, and keeps its lease: {machine}");
            let noted = self.leave_note(client).await;
            self.shared.order_restart(why);
            noted?;
        }
        Ok(true)
    }

    /// The lease by which another machine holds the name, while it lives.
    async fn observe_rival(&self, client: &Client) -> Result<Option<(String, ObservedLease)>, Fault> {
        let look = || async {
            let range = client.range(RangeRequest { key: self.key(), ..RangeRequest::default() }).await?;
            let term = range.header.as_ref().map_or(0, |header| header.raft_term);
            Ok::<_, Fault>((range.kvs.into_iter().next(), term))
        };
        let (Some(there), term) = look().await? else { return Ok(None) };
        let Holder::Another(machine) = holder(&there, Some(&self.instance)) else { return Ok(None) };
        if there.lease == 0 {
            return Ok(None);
        }
        let Some(granted) = client.lease_time_to_live(there.lease).await? else { return Ok(None) };
        // A new leader in between would have let it live longer.
        let (_, after) = look().await?;
        let written = u64::try_from(there.mod_revision).unwrap_or(0);
        let look = ObservedLease { lease: there.lease, written, term, left: granted.left };
        Ok((after == term).then_some((machine, look)))
    }

    /// Records this machine for the one that continues, which may have no other way to learn of it.
    async fn leave_note(&self, client: &Client) -> Result<(), Fault> {
        let lease = client.lease_grant(NOTE_TTL_SECONDS, 0).await?;
        let put = PutRequest { key: self.note_key(), value: self.record(), lease, ..PutRequest::default() };
        let txn = TxnRequest { compare: vec![], success: vec![Request::Put(put).into()], failure: vec![] };
        client.txn(txn).await.map(drop)
    }

    /// Reports another machine that stopped for this one.
    async fn heed_note(&self, client: &Client) -> Result<(), Fault> {
        let Some(there) = client.get(self.note_key()).await? else { return Ok(()) };
        if let Holder::Another(machine) = holder(&there, Some(&self.instance))
            && is_kept(client, &there).await?
        {
            self.shared.saw_second_machine(&machine);
        }
        Ok(())
    }

    fn key(&self) -> Vec<u8> {
        format!("{}{}", prefix(&self.node.spec), self.node.name()).into_bytes()
    }

    fn note_key(&self) -> Vec<u8> {
        let spec = &self.node.spec;
        format!("{}second-machines/{}/{}", spec.namespace(), spec.token, self.node.name()).into_bytes()
    }

    /// This machine, as it stands under a name.
    fn record(&self) -> Vec<u8> {
        let record = Record { instance: self.instance.clone(), machine: self.shared.machine().unwrap_or_default() };
        serde_json::to_vec(&record).unwrap_or_default()
    }

    /// This node will not run its member any more, unless a person decides otherwise.
    fn is_done(&self) -> bool {
        let member = match observe_ledger(&self.node.ledger()) {
            LedgerSeen::There(ledger) => matches!(ledger.state, State::Started(_) | State::PendingAdd(_)),
            LedgerSeen::Absent => false,
            LedgerSeen::Unreadable(_) => true,
        };
        !member || self.shared.readiness().0 == Phase::Refused
    }

    /// Any member, this one first if its etcd may answer: while it is down, the others keep the lease.
    async fn connected(&self, known: &mut Option<Client>, itself: bool) -> Result<Client, Fault> {
        if let Some(client) = known {
            return Ok(client.clone());
        }
        let mut settings = self.node.client_of_others()?;
        if itself {
            let own = self.node.client()?;
            let others = std::mem::replace(&mut settings, own).endpoints;
            settings.endpoints.extend(others);
        }
        settings.timeout = settings.timeout.min(LIMIT / 2);
        let client = Client::connect(&settings).await?;
        *known = Some(client.clone());
        Ok(client)
    }

    /// Gives it back: etcd was stopped here, and another machine may take the place at once.
    pub(super) async fn release(&self) {
        let Some(id) = self.held.lock().await.take().filter(|_| self.node.has_peers()) else { return };
        let work = async {
            let mut settings = self.node.client_of_others()?;
            settings.timeout = settings.timeout.min(LIMIT / 4);
            Client::connect(&settings).await?.lease_revoke(id).await
        };
        if !matches!(tokio::time::timeout(LIMIT / 2, work).await, Ok(Ok(_))) {
            warn!("the lease of this node was not given back; it ends by itself in {TTL_SECONDS} s");
        }
    }
}

/// Where the names of nodes stand.
fn prefix(spec: &Spec) -> String {
    format!("{}nodes/{}/", spec.namespace(), spec.token)
}

/// Who holds the names of which nodes, and in which cluster that was read.
pub(super) async fn holders(
    client: &Client,
    spec: &Spec,
    own: Option<&str>,
) -> Result<(ClusterId, Vec<(String, Holder)>), Fault> {
    let key = prefix(spec).into_bytes();
    let (key, range_end) = quorate_etcd::client::KeyRange::prefix(key).bounds();
    let range = client.range(RangeRequest { key, range_end, limit: NODES_MAX, ..RangeRequest::default() }).await?;
    let cluster = range.header.as_ref().map_or(ClusterId(0), |header| ClusterId(header.cluster_id));
    let name = |there: &KeyValue| {
        let name = there.key.get(prefix(spec).len()..)?;
        std::str::from_utf8(name).ok().map(str::to_owned)
    };
    let mut held = Vec::new();
    for there in &range.kvs {
        let holder = holder(there, own);
        if let Some(name) = name(there)
            && (holder == Holder::ThisMachine || is_kept(client, there).await?)
        {
            held.push((name, holder));
        }
    }
    Ok((cluster, held))
}

/// Whether the lease of a record lives. A cluster that was restored may hold records without it, and nobody keeps them.
async fn is_kept(client: &Client, there: &KeyValue) -> Result<bool, Fault> {
    Ok(there.lease != 0 && client.lease_time_to_live(there.lease).await?.is_some())
}

/// Whose a record is. One that cannot be read is another's.
fn holder(there: &KeyValue, own: Option<&str>) -> Holder {
    let short = there.value.get(..).filter(|value| value.len() <= RECORD_BYTES_MAX);
    match short.and_then(|value| serde_json::from_slice::<Record>(value).ok()) {
        Some(record) if Some(record.instance.as_str()) == own => Holder::ThisMachine,
        Some(record) => Holder::Another(shown(&record.machine)),
        None => Holder::Another("it cannot be read which one".to_owned()),
    }
}

/// What another machine says of itself may be anything.
pub(super) fn shown(machine: &str) -> String {
    let text: String = machine.chars().filter(|c| !c.is_control()).take(120).collect();
    if text.is_empty() { "it does not say which one".to_owned() } else { text }
}
