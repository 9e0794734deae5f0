//! What the cluster itself remembers of its peers, in its own store: who they are, which file holds, and what is being changed.
//!
//! **Invariant:** one change of peers at a time in the whole cluster, which is there as a whole, so that any server can go on with
//! it; and a record is written in the transaction that closes the change which led to it.

use quorate_coordination::{Change, Compare, Outcome, Place, Revision, Scope, Settings, Store, Txn};
use quorate_etcd::client::Settings as ClientSettings;
use quorate_faults::{Code, Fault};
use quorate_plan::peering::{Kind, Newcomer, Operation, Outcome as Ended, Role, Step};
use quorate_plan::spec::Spec;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::turn::{Node, now_ms};

const OPERATION: &str = "operation";
const FILE: &str = "file";
const NODES: &str = "node/";
/// Of those who were taken out.
const GONE: &str = "gone/";
/// How changes ended, newest last.
const CLOSED: &str = "closed";
/// So many of them are remembered: who was away for longer finds out by the records what became of its own.
const CLOSED_MAX: usize = 64;
/// Files from before that are told apart from those that a person brought.
const EARLIER_MAX: usize = 64;

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

/// The file that the last change led to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FileRecord {
    pub(super) hash: String,
    pub(super) text: String,
    /// Hashes of those before it.
    pub(super) earlier: Vec<String>,
}

/// A node that was taken out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Gone {
    pub(super) name: String,
    /// Who took it out.
    pub(super) by: String,
    pub(super) at_ms: u64,
}

/// The right to change peers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Claimed {
    /// Who carries it out.
    pub(super) by: String,
    /// Who began it, where that is another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) from: Option<String>,
    pub(super) operation: Operation,
}

/// One that was closed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Closed {
    id: String,
    outcome: Ended,
}

/// What the store says of a change that is written down here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Right {
    /// It is this node's to carry out. `known`: files that the cluster has agreed on so far.
    Ours { known: Vec<String> },
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
        Ok(Records { store, me: me.to_owned() })
    }

    /// Claims the right to change peers; the same operation again finds its claim.
    pub(super) async fn claim(&self, operation: &Operation) -> Result<(), Fault> {
        let claim = Claimed { by: self.me.clone(), from: None, operation: operation.clone() };
        let value = bytes(&claim)?;
        // A few times, in case one ends just now.
        for _ in 0..3 {
            // Who is taken in is no longer one who was taken out.
            let mut then = vec![Change::Put(OPERATION.into(), value.clone())];
            if let Kind::Join(newcomer) | Kind::Enrol(newcomer) = &operation.kind {
                then.push(Change::Delete(format!("{GONE}{}", newcomer.name).into()));
            }
            let when = vec![Compare::Absent(OPERATION.into())];
            if let Outcome::Committed(_) = self.store.txn(&Txn { when, then }).await? {
                return Ok(());
            }
            let Some((known, revision)) = self.claimed().await? else { continue };
            if known.operation.id == operation.id && known.by == self.me {
                return Ok(());
            }
            if !self.is_forgotten(&known) {
                return Err(self.at_work(&known));
            }
            self.store.delete_unchanged(OPERATION, revision).await?;
        }
        Err(Fault::new(Code::PeersBusy, "others change peers at this very moment").hint("try again"))
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

    /// The change that goes on, and the revision that says so.
    pub(super) async fn claimed(&self) -> Result<Option<(Claimed, Revision)>, Fault> {
        let Some(entry) = self.store.get(OPERATION).await? else { return Ok(None) };
        Ok(Some((parse(&entry.value)?, entry.revision)))
    }

    /// Goes on with the change of another, where nobody was faster. Returns what is to be done.
    pub(super) async fn adopt(&self, claimed: &Claimed, revision: Revision) -> Result<Option<Operation>, Fault> {
        let from = claimed.from.clone().or_else(|| Some(claimed.by.clone()));
        let operation = Operation { taken: false, ..claimed.operation.clone() };
        let mine = Claimed { by: self.me.clone(), from, operation: operation.clone() };
        let then = vec![Change::Put(OPERATION.into(), bytes(&mine)?)];
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
        let (known, revision) = self.claimed().await?.ok_or_else(changed)?;
        if known.by != self.me || known.operation.id != operation.id {
            return Err(changed());
        }
        let then = vec![Change::Put(OPERATION.into(), bytes(&Claimed { operation: operation.clone(), ..known })?)];
        let when = vec![Compare::Unchanged(OPERATION.into(), revision)];
        match self.store.txn(&Txn { when, then }).await? {
            Outcome::Committed(_) => Ok(()),
            Outcome::Conflict => Err(changed()),
        }
    }

    /// Whose a change is that was written down here: all of it read at one moment.
    pub(super) async fn right(&self, operation: &Operation) -> Result<Right, Fault> {
        let listing = self.store.list(&Scope::Prefix(Vec::new())).await?;
        let find = |key: &str| listing.entries.iter().find(|entry| entry.key == key.as_bytes());
        let claimed = find(OPERATION).map(|entry| parse::<Claimed>(&entry.value)).transpose()?;
        match &claimed {
            Some(claimed) if claimed.operation.id != operation.id => {}
            Some(claimed) if claimed.by != self.me => return Ok(Right::Theirs { by: claimed.by.clone() }),
            Some(_) => {
                let file = find(FILE).map(|entry| parse::<FileRecord>(&entry.value)).transpose()?;
                let known = file.map(|file| file.earlier.into_iter().chain([file.hash]).collect());
                return Ok(Right::Ours { known: known.unwrap_or_default() });
            }
            None => {}
        }
        let closed = find(CLOSED).map(|entry| parse::<Vec<Closed>>(&entry.value)).transpose()?.unwrap_or_default();
        Ok(match closed.iter().find(|closed| closed.id == operation.id) {
            Some(closed) => Right::Closed(closed.outcome),
            None if operation.step == Step::Reserved => Right::Unclaimed,
            None => Right::Lost,
        })
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
        let (known, revision) = self.claimed().await?.ok_or_else(lost)?;
        if known.operation.id != operation.id || known.by != self.me {
            return Err(lost());
        }
        let mut then = vec![Change::Delete(OPERATION.into())];
        let key = format!("{NODES}{}", operation.kind.name());
        match node {
            Entry::Put(record) => then.push(Change::Put(key.into(), bytes(record)?)),
            Entry::Keep => {}
            Entry::Delete => {
                let (name, by) = (operation.kind.name().to_owned(), self.me.clone());
                let gone = Gone { name, by, at_ms: now_ms() };
                then.push(Change::Delete(key.into()));
                then.push(Change::Put(format!("{GONE}{}", operation.kind.name()).into(), bytes(&gone)?));
            }
        }
        for name in &operation.also {
            let gone = Gone { name: name.clone(), by: self.me.clone(), at_ms: now_ms() };
            then.push(Change::Delete(format!("{NODES}{name}").into()));
            then.push(Change::Put(format!("{GONE}{name}").into(), bytes(&gone)?));
        }
        then.extend(self.file_after(operation, file).await?);
        let closed = self.store.get(CLOSED).await?.map(|entry| parse::<Vec<Closed>>(&entry.value)).transpose()?;
        let mut closed = closed.unwrap_or_default();
        closed.push(Closed { id: operation.id.clone(), outcome });
        closed.drain(..closed.len().saturating_sub(CLOSED_MAX));
        then.push(Change::Put(CLOSED.into(), bytes(&closed)?));
        // Who has the claim is the only one that writes all of these.
        let when = vec![Compare::Unchanged(OPERATION.into(), revision)];
        match self.store.txn(&Txn { when, then }).await? {
            Outcome::Committed(_) => Ok(()),
            Outcome::Conflict => Err(lost()),
        }
    }

    async fn file_after(&self, operation: &Operation, file: &Holds<'_>) -> Result<Option<Change>, Fault> {
        let (Holds::Given(hash, text) | Holds::Here(hash, text)) = *file;
        let known = self.file().await?;
        let behind = |known: &FileRecord| known.earlier.iter().any(|earlier| earlier == hash);
        if matches!(file, Holds::Here(..)) && known.as_ref().is_some_and(behind) {
            return Ok(None);
        }
        let mut earlier: Vec<String> = operation.earlier.iter().chain([&operation.before]).cloned().collect();
        if let Some(known) = known {
            earlier = known.earlier.into_iter().chain([known.hash]).chain(earlier).collect();
        }
        earlier.retain(|known| known != hash);
        earlier.dedup();
        earlier.drain(..earlier.len().saturating_sub(EARLIER_MAX));
        let record = FileRecord { hash: hash.to_owned(), text: text.to_owned(), earlier };
        Ok(Some(Change::Put(FILE.into(), bytes(&record)?)))
    }

    /// What became of a change that nobody remembers, by the record of the node that it was about.
    pub(super) async fn outcome_of(&self, operation: &Operation) -> Result<Ended, Fault> {
        let name = operation.kind.name();
        let role = self.nodes().await?.into_iter().find(|node| node.name == name).map(|node| node.role);
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
        if let Some(entry) = self.store.get(OPERATION).await? {
            let Claimed { operation, .. } = parse(&entry.value)?;
            let goes = matches!(operation.kind, Kind::ToClient(_)) && operation.step == Step::Given;
            if goes && operation.kind.name() == self.me {
                return Ok(true);
            }
        }
        let record = self.store.get(format!("{NODES}{}", self.me)).await?;
        let record: Option<NodeRecord> = record.map(|entry| parse(&entry.value)).transpose()?;
        Ok(record.is_some_and(|record| record.role == Role::Client && record.address == address))
    }

    /// The tombstone of a node.
    pub(super) async fn gone(&self, name: &str) -> Result<Option<Gone>, Fault> {
        let entry = self.store.get(format!("{GONE}{name}")).await?;
        entry.map(|entry| parse(&entry.value)).transpose()
    }

    /// The file that the last change led to.
    pub(super) async fn file(&self) -> Result<Option<FileRecord>, Fault> {
        self.store.get(FILE).await?.map(|entry| parse(&entry.value)).transpose()
    }

    /// The file that holds, where no change goes on: both read at one moment, since a change that ends in between would make the
    /// file from before it look agreed.
    pub(super) async fn agreed(&self) -> Result<Option<FileRecord>, Fault> {
        let listing = self.store.list(&Scope::Prefix(Vec::new())).await?;
        let find = |key: &str| listing.entries.iter().find(|entry| entry.key == key.as_bytes());
        match find(OPERATION) {
            Some(_) => Ok(None),
            None => find(FILE).map(|entry| parse(&entry.value)).transpose(),
        }
    }

    /// The peers on record.
    pub(super) async fn nodes(&self) -> Result<Vec<NodeRecord>, Fault> {
        let listing = self.store.list(&Scope::Prefix(NODES.into())).await?;
        listing.entries.iter().map(|entry| parse(&entry.value)).collect()
    }
}

fn bytes(what: &impl Serialize) -> Result<Vec<u8>, Fault> {
    serde_json::to_vec(what).map_err(|error| Fault::new(Code::Internal, "cannot write a record").caused_by(error))
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Fault> {
    serde_json::from_slice(bytes).map_err(|error| {
        Fault::new(Code::NodeStateUnreadable, "a record of peers in etcd cannot be understood")
            .hint("see `quorate explain Q1216`")
            .caused_by(error)
    })
}
