//! What a node that invites has to remember: invitations and the one operation, in one file, and who was wrong lately.
//!
//! **Invariant:** a change is on disk when it returns, and two changes never overlap.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use quorate_etcd::aside::ensure_file;
use quorate_faults::{Code, Fault};
use quorate_host::durable::RealDisk;
use quorate_plan::peering::{Invitations, LocalState, Newcomer, Operation, Role, Step, Strikes};
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, watch};
use tracing::warn;

use super::approve::Waiting;
use super::messages::ApprovalShown;
use super::place;
use super::short_code::Challenges;
use crate::proxy::Proxy;

/// The file's name in the node's folder.
const FILE: &str = "peering.json";
/// Far more than it ever holds.
const BYTES_MAX: u64 = 4 << 20;

/// The newest file of the cluster's record that this node has held: an older record is old, whoever puts it back.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct HeldFile {
    /// The cluster's token.
    pub(super) cluster: String,
    pub(super) serial: u64,
    pub(super) hash: String,
    /// Hashes of the files before it.
    #[serde(default)]
    pub(super) earlier: Vec<String>,
    /// The other records that held with it.
    #[serde(default)]
    pub(super) pins: BTreeMap<String, String>,
}

/// What is kept.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Kept {
    #[serde(default)]
    pub(super) invitations: Invitations,
    /// The one that goes on, or the last one.
    #[serde(default)]
    pub(super) operation: Option<Operation>,
    /// What this node would be as a member, where it joined as a client: no file says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) own: Option<Newcomer>,
    /// Whether this client has seen itself on record; one that is not there any more is detached.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) enrolled: bool,
    /// The newest file of the cluster's record that this node has held.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) held: Option<HeldFile>,
}

impl Kept {
    /// The one that goes on.
    pub(super) fn active(&self) -> Option<&Operation> {
        self.operation.as_ref().filter(|operation| !matches!(operation.step, Step::Done(_)))
    }
}

/// This node's part in a cluster by hand.
#[derive(Debug)]
pub(crate) struct Peering {
    dir: PathBuf,
    /// None where a person's file declares the cluster.
    local: Mutex<Option<LocalState>>,
    kept: Mutex<Kept>,
    pub(super) strikes: Mutex<Strikes>,
    /// Nodes that wait for approval; they say so again and again.
    pub(super) waiting: Mutex<Waiting>,
    /// What was given out for proofs of short codes.
    pub(super) challenges: Mutex<Challenges>,
    /// One decision at a time.
    pub(super) deciding: tokio::sync::Mutex<()>,
    /// What the operation waits for.
    pub(super) waits: Mutex<Option<String>>,
    pub(super) news: Notify,
    /// Whether the door is open.
    pub(super) door: watch::Sender<bool>,
    /// What this node listens with where it is a client; it outlives every reading of the file.
    pub(crate) proxy: Proxy,
    /// Clients, as last read from the record.
    clients: Mutex<Vec<Newcomer>>,
    /// A node that waits for the word of this server, as last read from the record.
    pub(super) awaiting: Mutex<Option<ApprovalShown>>,
}

impl Peering {
    /// Reads what is there; what cannot be read leaves the cluster as it is and invites nobody.
    pub(crate) fn open(dir: &Path) -> Peering {
        let local = place::read(dir).and_then(|local| Ok((local, read(dir)?)));
        let (local, kept) = local.unwrap_or_else(|fault| {
            warn!(code = %fault.code(), "nobody can be invited or detached here: {fault}");
            (None, Kept::default())
        });
        Peering {
            dir: dir.to_owned(),
            local: Mutex::new(local),
            kept: Mutex::new(kept),
            strikes: Mutex::default(),
            waiting: Mutex::default(),
            challenges: Mutex::default(),
            deciding: tokio::sync::Mutex::default(),
            waits: Mutex::default(),
            news: Notify::new(),
            door: watch::Sender::new(false),
            proxy: Proxy::default(),
            clients: Mutex::default(),
            awaiting: Mutex::default(),
        }
    }

    /// What this node is, where its cluster is one by hand.
    pub(crate) fn role(&self) -> Option<Role> {
        lock(&self.local).as_ref().map(|local| local.role)
    }

    /// Clients, as last read from the record.
    pub(super) fn clients(&self) -> Vec<Newcomer> {
        lock(&self.clients).clone()
    }

    pub(super) fn set_clients(&self, clients: Vec<Newcomer>) {
        *lock(&self.clients) = clients;
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// What this node is, where its cluster is one by hand.
    pub(super) fn local(&self) -> Option<LocalState> {
        lock(&self.local).clone()
    }

    /// The same, or why nothing can be done here.
    pub(super) fn by_hand(&self) -> Result<LocalState, Fault> {
        self.local().ok_or_else(|| {
            Fault::new(Code::NotByHand, "this cluster is declared by a file that a person keeps")
                .hint("add or remove members there, and `quorate cluster apply FILE`")
        })
    }

    /// Another role, from here on.
    pub(super) fn become_(&self, role: Role) -> Result<(), Fault> {
        let mut local = lock(&self.local);
        let Some(known) = local.as_mut().filter(|known| known.role != role) else { return Ok(()) };
        let next = LocalState { role, ..known.clone() };
        place::write(&self.dir, &next)?;
        *known = next;
        drop(local);
        self.news.notify_waiters();
        Ok(())
    }

    pub(super) fn kept(&self) -> Kept {
        lock(&self.kept).clone()
    }

    /// The newest file of the record of this cluster that this node has held.
    pub(super) fn held(&self, cluster: &str) -> HeldFile {
        lock(&self.kept).held.clone().filter(|held| held.cluster == cluster).unwrap_or_default()
    }

    /// Changes it durably.
    pub(super) fn change<T>(&self, with: impl FnOnce(&mut Kept) -> T) -> Result<T, Fault> {
        let mut kept = lock(&self.kept);
        let mut next = kept.clone();
        let done = with(&mut next);
        if next != *kept {
            write(&self.dir, &next)?;
            *kept = next;
        }
        drop(kept);
        self.news.notify_waiters();
        Ok(done)
    }
}

/// What a node that joins as a client would be as a member, kept for the time when it is to be one.
pub(super) fn keep_own(dir: &Path, own: &Newcomer) -> Result<(), Fault> {
    let kept = Kept { own: Some(own.clone()), ..read(dir)? };
    write(dir, &kept)
}

/// The same, as it was kept.
pub(crate) fn own_in(dir: &Path) -> Option<Newcomer> {
    read(dir).ok()?.own
}

fn write(dir: &Path, kept: &Kept) -> Result<(), Fault> {
    let text = serde_json::to_vec_pretty(kept)
        .map_err(|error| Fault::new(Code::Internal, "cannot write what is kept of peers").caused_by(error))?;
    ensure_file(&RealDisk, &dir.join(FILE), &text)
}

fn read(dir: &Path) -> Result<Kept, Fault> {
    let path = dir.join(FILE);
    let file = match std::fs::File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Kept::default()),
        Err(error) => return Err(Fault::io(format!("cannot read `{}`", path.display()), error)),
    };
    let mut bytes = Vec::new();
    let read = file.take(BYTES_MAX).read_to_end(&mut bytes);
    read.map_err(|error| Fault::io(format!("cannot read `{}`", path.display()), error))?;
    serde_json::from_slice(&bytes).map_err(|error| {
        Fault::new(Code::NodeStateUnreadable, format!("cannot understand `{}`", path.display()))
            .hint("see `quorate explain Q1216`")
            .caused_by(error)
    })
}

/// What is behind a lock is replaced as a whole, so what a panicking thread left is as good as any.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use quorate_plan::peering::{Kind, Outcome};

    use super::*;

    #[test]
    fn what_was_begun_is_there_after_a_restart_and_what_is_over_is_not_active() {
        let dir = tempfile::tempdir().unwrap();
        let peering = Peering::open(dir.path());
        assert!(peering.by_hand().is_err());
        let operation = Operation {
            id: "x".to_owned(),
            kind: Kind::Detach { name: "n2".to_owned() },
            text: "t".to_owned(),
            before: "b".to_owned(),
            earlier: Vec::new(),
            taken: false,
            also: Vec::new(),
            at_ms: 1,
            deadline_ms: 2,
            step: Step::Given,
        };
        peering.change(|kept| kept.operation = Some(operation.clone())).unwrap();
        peering.change(|kept| kept.invitations.add(b"secret", Role::Server, 10, 1)).unwrap();
        let again = Peering::open(dir.path());
        assert_eq!(again.kept().active(), Some(&operation));
        assert!(again.kept().invitations.is_open(false, 5));
        let over = |kept: &mut Kept| kept.operation.as_mut().unwrap().step = Step::Done(Outcome::Detached);
        again.change(over).unwrap();
        assert_eq!(again.kept().active(), None);
        let text = std::fs::read_to_string(dir.path().join(FILE)).unwrap();
        assert!(!text.contains("secret"), "tokens are kept by their hashes");
    }
}
