//! What the cluster itself remembers of its peers, in its own store: who they are, which file holds, and what is being changed.
//!
//! **Invariant:** one change of peers at a time in the whole cluster; and a record is written in the transaction that closes the
//! change which led to it.

use quorate_coordination::{Change, Compare, Outcome, Place, Scope, Settings, Store, Txn};
use quorate_etcd::client::Settings as ClientSettings;
use quorate_faults::{Code, Fault};
use quorate_plan::peering::{Kind, Newcomer, Operation, Role};
use quorate_plan::spec::Spec;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::turn::{Node, now_ms};

const OPERATION: &str = "operation";
const FILE: &str = "file";
const NODES: &str = "node/";
/// Of those who were taken out.
const GONE: &str = "gone/";
/// A change that nobody has closed so long after its deadline is taken over: whoever began it is gone.
const ABANDONED_MS: u64 = 120_000;
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

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Claimed {
    id: String,
    by: String,
    kind: String,
    name: String,
    deadline_ms: u64,
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
    pub(super) async fn claim(&self, operation: &Operation, now_ms: u64) -> Result<(), Fault> {
        let claim = Claimed {
            id: operation.id.clone(),
            by: self.me.clone(),
            kind: operation.kind.word().to_owned(),
            name: operation.kind.name().to_owned(),
            deadline_ms: operation.deadline_ms,
        };
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
            let Some(entry) = self.store.get(OPERATION).await? else { continue };
            let known: Claimed = parse(&entry.value)?;
            if known.id == claim.id {
                return Ok(());
            }
            // A node works on one change; an earlier one of its own is what a lost answer has left.
            if known.by != self.me && known.deadline_ms.saturating_add(ABANDONED_MS) > now_ms {
                let Claimed { by, kind, name, .. } = known;
                let what = format!("`{by}` is at work on another change: {kind} of `{name}`");
                return Err(Fault::new(Code::PeersBusy, what).hint("wait until it is done: `quorate peer status`"));
            }
            self.store.delete_unchanged(OPERATION, entry.revision).await?;
        }
        Err(Fault::new(Code::PeersBusy, "others change peers at this very moment").hint("try again"))
    }

    /// Closes it: the record of the node, the file, and the claim, in one transaction. One that was closed stays so.
    pub(super) async fn close(&self, operation: &Operation, node: &Entry, file: (&str, &str)) -> Result<(), Fault> {
        let Some(entry) = self.store.get(OPERATION).await? else { return Ok(()) };
        if parse::<Claimed>(&entry.value)?.id != operation.id {
            return Ok(());
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
        let (hash, text) = file;
        let mut earlier = vec![operation.before.clone()];
        if let Some(known) = self.file().await? {
            earlier = known.earlier.into_iter().chain([known.hash]).chain(earlier).collect();
        }
        earlier.retain(|known| known != hash);
        earlier.dedup();
        earlier.drain(..earlier.len().saturating_sub(EARLIER_MAX));
        let record = FileRecord { hash: hash.to_owned(), text: text.to_owned(), earlier };
        then.push(Change::Put(FILE.into(), bytes(&record)?));
        let when = vec![Compare::Unchanged(OPERATION.into(), entry.revision)];
        match self.store.txn(&Txn { when, then }).await? {
            Outcome::Committed(_) => Ok(()),
            Outcome::Conflict => {
                Err(Fault::new(Code::PeersBusy, "the record changed meanwhile").hint("it is tried again"))
            }
        }
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
            let claimed: Claimed = parse(&entry.value)?;
            if claimed.kind == Kind::TO_CLIENT && claimed.name == self.me {
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
