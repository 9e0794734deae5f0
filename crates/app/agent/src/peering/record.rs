//! What the cluster itself remembers of its peers, in its own store: who they are, which file holds, and what is being changed.
//!
//! **Invariant:** one change of peers at a time in the whole cluster, which is there as a whole, so that any server can go on with
//! it; and a record is written in the transaction that closes the change which led to it. Whatever is written is signed by this node, and
//! what is read counts only as far as `listing.rs` says.

use std::collections::BTreeMap;

use quorate_coordination::{Change, Compare, Outcome, Place, Revision, Scope, Settings, Store, Txn};
use quorate_etcd::client::Settings as ClientSettings;
use quorate_faults::{Code, Fault};
use quorate_plan::peering::{
    Approval, Claimed, FileRecord, FileState, Kind, Newcomer, Operation, Outcome as Ended, Role, Step, digest_of,
    signatures_of, with_signatures,
};
use quorate_plan::spec::Spec;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tracing::{info, warn};

use super::listing::{FoundClaim, Look, Looking};
use super::signing::{Signing, signed};
use super::store::HeldFile;
use crate::turn::{Node, now_ms};

pub(super) const OPERATION: &str = "operation";
pub(super) const FILE: &str = "file";
pub(super) const NODES: &str = "node/";
/// Of those who were taken out.
pub(super) const GONE: &str = "gone/";
/// How changes ended, newest last.
pub(super) const CLOSED: &str = "closed";
/// The word of a second server for the change that goes on.
pub(super) const APPROVAL: &str = "approval";
/// So many of them are remembered: who was away for longer finds out by the records what became of its own.
const CLOSED_MAX: usize = 64;
/// Files from before that are told apart from those that a person brought.
const EARLIER_MAX: usize = 64;
/// A claim is tried so often: servers sign the file in between.
const CLAIMS: usize = 6;

/// A peer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct NodeRecord {
    pub(super) name: String,
    pub(super) role: Role,
    pub(super) address: String,
    pub(super) since_ms: u64,
    /// Where its data lies, or would.
    #[serde(default)]
    pub(super) data_dir: String,
}

impl NodeRecord {
    pub(super) fn new(node: &Newcomer, role: Role, since_ms: u64) -> NodeRecord {
        let Newcomer { name, address, data_dir } = node.clone();
        NodeRecord { name, role, address, since_ms, data_dir }
    }

    pub(super) fn newcomer(&self) -> Newcomer {
        Newcomer { name: self.name.clone(), address: self.address.clone(), data_dir: self.data_dir.clone() }
    }
}

/// What becomes of the record of a node.
pub(super) enum Entry {
    Put(NodeRecord),
    Delete,
    Keep,
}

/// Which file holds from here on.
pub(super) enum Holds<'a> {
    /// The one that was given to everybody: its hash and its text.
    Given(&'a str, &'a str),
    /// Nothing was given: the one of this node, unless the others have a later one.
    Here(&'a str, &'a str),
}

/// A node that was taken out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Gone {
    pub(super) name: String,
    /// Who took it out.
    pub(super) by: String,
    pub(super) at_ms: u64,
}

/// One that was closed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Closed {
    pub(super) id: String,
    pub(super) outcome: Ended,
}

/// What the store says of a change that is written down here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Right {
    /// It is this node's to carry out. `known`: files that the cluster has agreed on so far. `approval`: the word of a second server for
    /// it.
    Ours { known: Vec<String>, approval: Option<Value> },
    /// It was never claimed.
    Unclaimed,
    /// Another one goes on with it.
    Theirs { by: String },
    /// It is over.
    Closed(Ended),
    /// It had been begun, and nobody knows of it any more.
    Lost,
}

/// The store.
pub(crate) struct Records {
    store: Store,
    me: String,
    own: Spec,
    held: HeldFile,
    signing: Option<Signing>,
}

impl Records {
    /// Through this member, or through the etcd that others run.
    pub(crate) async fn open(node: &Node) -> Result<Records, Fault> {
        Records::at(&node.spec, node.name(), node.client()?).await
    }

    /// Through the other members.
    pub(super) async fn of_others(node: &Node) -> Result<Records, Fault> {
        Records::at(&node.spec, node.name(), node.client_of_others()?).await
    }

    /// The records of the cluster of a file, as node `me`.
    pub(super) async fn at(spec: &Spec, me: &str, client: ClientSettings) -> Result<Records, Fault> {
        let namespace = format!("{}peers/{}/", spec.namespace(), spec.token);
        let store = Store::open(&Settings::new(Place::Etcd(client), namespace)).await?;
        let signing = Signing::of(spec, me);
        Ok(Records { store, me: me.to_owned(), own: spec.clone(), held: HeldFile::default(), signing })
    }

    /// The same, for a node that has held this file.
    #[must_use]
    pub(super) fn holding(self, held: HeldFile) -> Records {
        Records { held, ..self }
    }

    /// Everything, read at one moment and judged.
    pub(super) async fn look(&self) -> Result<Look, Fault> {
        let listing = self.store.list(&Scope::Prefix(Vec::new())).await?;
        let looking = Looking { own: &self.own, held: &self.held, signing: self.signing.as_ref() };
        looking.judge(&listing).await
    }

    /// Claims the right to change peers; the same operation again finds its claim.
    pub(super) async fn claim(&self, operation: &Operation) -> Result<(), Fault> {
        // A few times, in case one ends just now.
        for _ in 0..CLAIMS {
            let look = self.look().await?;
            if let Some(found) = &look.claim {
                if found.own(&self.me, &operation.id).is_some() {
                    return Ok(());
                }
                match found.claimed.as_ref().filter(|_| self.is_taken(found)) {
                    Some(known) if !self.is_forgotten(known) => return Err(self.at_work(known)),
                    Some(_) => {}
                    None => warn!("replacing the record `{OPERATION}` of the cluster, which counts for nothing"),
                }
            }
            let value = self.claim_of(operation, None, look.next_serial(&self.held)).await?;
            let mut then = vec![Change::Put(OPERATION.into(), value), Change::Delete(APPROVAL.into())];
            // Who is taken in is no longer one who was taken out.
            if let Kind::Join(newcomer) | Kind::Enrol(newcomer) = &operation.kind {
                then.push(Change::Delete(format!("{GONE}{}", newcomer.name).into()));
            }
            let when = vec![look.same_claim(), look.same_file()];
            if let Outcome::Committed(_) = self.store.txn(&Txn { when, then }).await? {
                return Ok(());
            }
        }
        Err(Fault::new(Code::PeersBusy, "others change peers at this very moment").hint("try again"))
    }

    async fn claim_of(&self, operation: &Operation, from: Option<String>, serial: u64) -> Result<Vec<u8>, Fault> {
        let (by, operation, signatures) = (self.me.clone(), operation.clone(), Vec::new());
        let claim = Claimed { by, from, operation, serial, signatures };
        bytes(&signed(self.signing.as_ref(), OPERATION, &claim).await?)
    }

    /// Whether somebody has the right to change peers: by a claim that counts, or by one of an earlier release.
    fn is_taken(&self, found: &FoundClaim) -> bool {
        found.valid().or_else(|| found.of_earlier_release(&self.own, &self.me)).is_some()
    }

    /// Whether a claim is what a lost answer has left of a change that this node has forgotten: a node works on one, and nothing of
    /// this one was done.
    pub(super) fn is_forgotten(&self, claimed: &Claimed) -> bool {
        claimed.by == self.me && claimed.from.is_none() && claimed.operation.step == Step::Reserved
    }

    /// Another one has the right to change peers.
    pub(super) fn at_work(&self, claimed: &Claimed) -> Fault {
        let Claimed { by, operation, .. } = claimed;
        let what =
            format!("`{by}` is at work on another change: {} of `{}`", operation.kind.word(), operation.kind.name());
        Fault::new(Code::PeersBusy, what).hint(
            "wait until it is done: `quorate peer status` there; if that node is lost, another server goes on with it",
        )
    }

    /// Goes on with the change of another, where nobody was faster. Returns what is to be done.
    pub(super) async fn adopt(&self, claimed: &Claimed, revision: Revision) -> Result<Option<Operation>, Fault> {
        let from = claimed.from.clone().or_else(|| Some(claimed.by.clone()));
        let operation = Operation { taken: false, ..claimed.operation.clone() };
        let then = vec![Change::Put(OPERATION.into(), self.claim_of(&operation, from, claimed.serial).await?)];
        let when = vec![Compare::Unchanged(OPERATION.into(), revision)];
        let committed = matches!(self.store.txn(&Txn { when, then }).await?, Outcome::Committed(_));
        Ok(committed.then_some(operation))
    }

    /// Drops what a lost answer has left.
    pub(super) async fn forget(&self, revision: Revision) -> Result<(), Fault> {
        self.store.delete_unchanged(OPERATION, revision).await.map(|_| ())
    }

    /// Writes the next step of a change into its claim, before it is taken: whoever adopts it knows what may have been done.
    pub(super) async fn advance(&self, operation: &Operation) -> Result<(), Fault> {
        let changed =
            || Fault::new(Code::PeersBusy, "another node goes on with this change").hint("it is looked at again");
        let look = self.look().await?;
        let found = look.claim.as_ref().ok_or_else(changed)?;
        let known = found.own(&self.me, &operation.id).ok_or_else(changed)?;
        let serial = if known.serial == 0 { look.next_serial(&self.held) } else { known.serial };
        let then = vec![Change::Put(OPERATION.into(), self.claim_of(operation, known.from.clone(), serial).await?)];
        match self.store.txn(&Txn { when: vec![look.same_claim()], then }).await? {
            Outcome::Committed(_) => Ok(()),
            Outcome::Conflict => Err(changed()),
        }
    }

    /// Whose a change is that was written down here: all of it read at one moment.
    pub(super) async fn right(&self, operation: &Operation) -> Result<Right, Fault> {
        let look = self.look().await?;
        let claim = look.claim.as_ref();
        let theirs = claim.filter(|found| self.is_taken(found)).and_then(|found| found.claimed.as_ref());
        if let Some(claimed) = theirs.filter(|it| it.operation.id == operation.id && it.by != self.me) {
            return Ok(Right::Theirs { by: claimed.by.clone() });
        }
        if claim.is_some_and(|found| found.own(&self.me, &operation.id).is_some()) {
            let of_this = |(approval, _): &&(Approval, Value)| approval.operation == operation.id;
            let approval = look.approval.as_ref().filter(of_this).map(|(_, raw)| raw.clone());
            return Ok(Right::Ours { known: self.known_files(&look), approval });
        }
        Ok(match look.closed.iter().find(|closed| closed.id == operation.id) {
            Some(closed) => Right::Closed(closed.outcome),
            None if operation.step == Step::Reserved => Right::Unclaimed,
            None => Right::Lost,
        })
    }

    /// Files that the cluster has agreed on: by the record, or by the last one that this node held.
    fn known_files(&self, look: &Look) -> Vec<String> {
        let held = (self.held.earlier.clone(), self.held.hash.clone());
        let (earlier, hash) = match look.valid_file() {
            Some(file) => (file.earlier.clone(), file.hash.clone()),
            // An earlier release wrote it, and this node has never held one.
            None if self.held.serial == 0 => match look.file.as_ref() {
                Some(found) if matches!(found.state, FileState::Unproven(_)) => {
                    found.record.clone().map_or(held, |file| (file.earlier, file.hash))
                }
                _ => held,
            },
            None => held,
        };
        earlier.into_iter().chain(Some(hash).filter(|hash| !hash.is_empty())).collect()
    }

    /// Closes it: the record of the node, the file, how it ended, and the claim, in one transaction.
    pub(super) async fn close(
        &self,
        operation: &Operation,
        outcome: Ended,
        node: &Entry,
        file: &Holds<'_>,
    ) -> Result<(), Fault> {
        let lost = || Fault::new(Code::PeersBusy, "the record changed meanwhile").hint("it is looked at again");
        let look = self.look().await?;
        let found = look.claim.as_ref().ok_or_else(lost)?;
        let known = found.own(&self.me, &operation.id).ok_or_else(lost)?;
        let serial = known.serial.max(look.next_serial(&self.held));
        let mut then = vec![Change::Delete(OPERATION.into()), Change::Delete(APPROVAL.into())];
        let mut pins = look.pins.clone();
        let mut put = |key: String, record: Value| -> Result<Change, Fault> {
            pins.insert(key.clone(), digest_of(&record));
            Ok(Change::Put(key.into(), bytes(&record)?))
        };
        let name = operation.kind.name();
        match node {
            Entry::Put(record) => then.push(put(format!("{NODES}{name}"), value(record)?)?),
            Entry::Keep | Entry::Delete => {}
        }
        let leaves = matches!(node, Entry::Delete).then_some(name);
        let leave: Vec<&str> = leaves.into_iter().chain(operation.also.iter().map(String::as_str)).collect();
        for name in &leave {
            let gone = Gone { name: (*name).to_owned(), by: self.me.clone(), at_ms: now_ms() };
            then.push(Change::Delete(format!("{NODES}{name}").into()));
            then.push(put(format!("{GONE}{name}"), value(&gone)?)?);
        }
        let mut closed = look.closed.clone();
        closed.push(Closed { id: operation.id.clone(), outcome });
        closed.drain(..closed.len().saturating_sub(CLOSED_MAX));
        then.push(put(CLOSED.to_owned(), value(&closed)?)?);
        for name in &leave {
            pins.remove(&format!("{NODES}{name}"));
        }
        if matches!(node, Entry::Put(_)) {
            pins.remove(&format!("{GONE}{name}"));
        }
        let file = self.file_after(&look, operation, file, serial, pins);
        then.push(self.put_file(&file).await?);
        // Who has the claim is the only one that writes all of these.
        match self.store.txn(&Txn { when: vec![look.same_claim()], then }).await? {
            Outcome::Committed(_) => Ok(()),
            Outcome::Conflict => Err(lost()),
        }
    }

    fn file_after(
        &self,
        look: &Look,
        operation: &Operation,
        file: &Holds<'_>,
        serial: u64,
        pins: BTreeMap<String, String>,
    ) -> FileRecord {
        let (Holds::Given(hash, text) | Holds::Here(hash, text)) = *file;
        let behind = |known: &&FileRecord| known.earlier.iter().any(|earlier| earlier == hash);
        if let Some(known) = look.valid_file().filter(behind).filter(|_| matches!(file, Holds::Here(..))) {
            return FileRecord { serial, pins: limited(pins), signatures: Vec::new(), ..known.clone() };
        }
        let own = operation.earlier.iter().chain([&operation.before]).cloned();
        let earlier = self.known_files(look).into_iter().chain(own).collect();
        self.record_of(hash, text, earlier, serial, pins)
    }

    fn record_of(
        &self,
        hash: &str,
        text: &str,
        mut earlier: Vec<String>,
        serial: u64,
        pins: BTreeMap<String, String>,
    ) -> FileRecord {
        earlier.retain(|known| known != hash);
        earlier.dedup();
        earlier.drain(..earlier.len().saturating_sub(EARLIER_MAX));
        let (hash, text, signatures) = (hash.to_owned(), text.to_owned(), Vec::new());
        FileRecord { hash, text, earlier, serial, pins: limited(pins), signatures }
    }

    async fn put_file(&self, file: &FileRecord) -> Result<Change, Fault> {
        let mut file = file.clone();
        if self.signing.is_none() {
            // Nothing is pinned by what nobody signs.
            file.pins.clear();
        }
        Ok(Change::Put(FILE.into(), bytes(&signed(self.signing.as_ref(), FILE, &file).await?)?))
    }

    /// Adds the signature of this node to the file in the store, which it holds. Returns whether it was missing.
    pub(super) async fn ensure_signed(&self, look: &Look) -> Result<bool, Fault> {
        let (Some(signing), Some(found)) = (&self.signing, &look.file) else { return Ok(false) };
        if !matches!(found.state, FileState::Held) || signing.is_own(&found.raw).await? {
            return Ok(false);
        }
        // Signatures that hold no more go: those with the last certificate of this node among them.
        let mut signatures = Vec::new();
        for one in signatures_of(&found.raw) {
            let alone = with_signatures(&found.raw, std::slice::from_ref(&one));
            let signers = signing.signers(FILE, &alone).await?;
            if signers.names.iter().any(|name| *name != self.me) {
                signatures.push(one);
            }
        }
        signatures.push(signing.sign(FILE, &found.raw).await?);
        let then = vec![Change::Put(FILE.into(), bytes(&with_signatures(&found.raw, &signatures))?)];
        self.store.txn(&Txn { when: vec![look.same_file()], then }).await.map(|_| true)
    }

    /// Writes the file that this node holds into the store, signed, in the place of a record that counts for nothing. Not while a change
    /// goes on. `text`: of the file of this node.
    pub(super) async fn ensure_file(&self, look: &Look, text: &str) -> Result<(), Fault> {
        if self.signing.is_none() || look.claim.as_ref().is_some_and(|found| self.is_taken(found)) {
            return Ok(());
        }
        let file = self.record_of(
            &self.own.hash(),
            text,
            self.known_files(look),
            look.next_serial(&self.held),
            look.pins.clone(),
        );
        let then = vec![self.put_file(&file).await?];
        let when = vec![look.same_file(), look.same_claim()];
        if let Outcome::Committed(_) = self.store.txn(&Txn { when, then }).await? {
            info!("wrote the record `{FILE}` of the cluster, signed, with the file that this node holds");
        }
        Ok(())
    }

    /// Writes the word of this node for a change that goes on.
    pub(super) async fn approve(&self, look: &Look, claimed: &Claimed, node: &Newcomer) -> Result<(), Fault> {
        let (operation, serial) = (claimed.operation.id.clone(), claimed.serial);
        let approval = Approval { operation, node: node.clone(), serial, signatures: Vec::new() };
        let value = signed(self.signing.as_ref(), APPROVAL, &approval).await?;
        let then = vec![Change::Put(APPROVAL.into(), bytes(&value)?)];
        // The carrier may write its step down in this very moment.
        match self.store.txn(&Txn { when: vec![look.same_claim()], then }).await? {
            Outcome::Committed(_) => Ok(()),
            Outcome::Conflict => {
                Err(Fault::new(Code::PeersBusy, "the change that waits has just moved on").hint("try again"))
            }
        }
    }

    /// What became of a change that nobody remembers, by the record of the node that it was about.
    pub(super) async fn outcome_of(&self, operation: &Operation) -> Result<Ended, Fault> {
        let name = operation.kind.name();
        let role = self.look().await?.nodes.into_iter().find(|node| node.name == name).map(|node| node.role);
        let server = matches!(role, Some(Role::Server | Role::Standalone | Role::External));
        Ok(match &operation.kind {
            Kind::Join(_) if server => Ended::Joined,
            Kind::Enrol(_) if role == Some(Role::Client) => Ended::Joined,
            Kind::ToServer(_) if server => Ended::Changed,
            Kind::ToClient(_) if role == Some(Role::Client) => Ended::Changed,
            Kind::Detach { .. } | Kind::Discharge { .. } if role.is_none() => Ended::Detached,
            Kind::Join(_) | Kind::Enrol(_) | Kind::ToServer(_) | Kind::ToClient(_) => Ended::Undone,
            Kind::Detach { .. } | Kind::Discharge { .. } => Ended::Undone,
        })
    }

    /// Puts a client on record whom nobody invited: GlusterD 2 ran it, and a cluster in the clear has no invitations. Not while a
    /// change goes on, and not against a tombstone.
    pub(super) async fn enrol(&self, record: &NodeRecord) -> Result<(), Fault> {
        let key = format!("{NODES}{}", record.name);
        let absent = [OPERATION.to_owned(), key.clone(), format!("{GONE}{}", record.name)];
        let when = absent.into_iter().map(|key| Compare::Absent(key.into())).collect();
        let then = vec![Change::Put(key.into(), bytes(record)?)];
        self.store.txn(&Txn { when, then }).await.map(|_| ())
    }

    /// Whether a change goes on, of whomever.
    pub(crate) async fn is_busy(&self) -> Result<bool, Fault> {
        Ok(self.store.get(OPERATION).await?.is_some())
    }

    /// Whether this node, which is at `address`, is a client, or is being made one.
    pub(super) async fn is_client(&self, address: &str) -> Result<bool, Fault> {
        let look = self.look().await?;
        if let Some(Claimed { operation, .. }) = look.claim.as_ref().and_then(FoundClaim::valid) {
            let goes = matches!(operation.kind, Kind::ToClient(_)) && operation.step == Step::Given;
            if goes && operation.kind.name() == self.me {
                return Ok(true);
            }
        }
        let mut own = look.nodes.iter().filter(|record| record.name == self.me);
        Ok(own.any(|record| record.role == Role::Client && record.address == address))
    }
}

/// Tombstones are the only records that nobody takes away: of those, so many are pinned.
const PINS_MAX: usize = 512;

fn limited(mut pins: BTreeMap<String, String>) -> BTreeMap<String, String> {
    let tombstones: Vec<String> = pins.keys().filter(|key| key.starts_with(GONE)).cloned().collect();
    for key in tombstones.iter().take(pins.len().saturating_sub(PINS_MAX)) {
        pins.remove(key);
    }
    pins
}

fn value(what: &impl Serialize) -> Result<Value, Fault> {
    serde_json::to_value(what).map_err(|error| Fault::new(Code::Internal, "cannot write a record").caused_by(error))
}

fn bytes(what: &impl Serialize) -> Result<Vec<u8>, Fault> {
    serde_json::to_vec(what).map_err(|error| Fault::new(Code::Internal, "cannot write a record").caused_by(error))
}
