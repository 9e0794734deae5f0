//! Takes a member over that others made, and lets one go: `cluster adopt` and `data reset`.
//!
//! **Rule:** a member is taken over only if it is beyond doubt the declared one, and nothing of a member that is let go is
//! deleted.

use std::path::PathBuf;

use quorate_etcd::aside::ensure_set_aside;
use quorate_etcd::client::{Client, Consistency};
use quorate_etcd::ledger::{ensure_ledger, observe_ledger};
use quorate_etcd_formats::membership::{ClusterId, MemberId};
use quorate_faults::{Code, Fault};
use quorate_host::durable::RealDisk;
use quorate_host::shim::{self, Adoption};
use quorate_host::state::StateDir;
use quorate_plan::ledger::{Identity, Ledger, LedgerSeen, Origin, State};
use quorate_plan::start::{DataSeen, PlaceState};
use quorate_plan::taken::Difference;
use serde::Serialize;

use super::data::{facts, observe_data};
use super::execute::stamp;
use super::in_place::{self, Holder, Ids};
use super::node::Node;
use super::place::{not_mounted, observe_place};

/// A member that was taken over.
#[derive(Debug, Clone, Serialize)]
pub struct Adopted {
    /// The cluster.
    pub cluster_id: String,
    /// The member.
    pub member_id: String,
    /// Whether it was ours already.
    pub already: bool,
    /// Whether an etcd runs on the data.
    pub running: bool,
    /// The process that the agent tends from now on, without a restart.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tended: Option<u32>,
    /// Why a running one is not tended: it has to be stopped before the agent can start its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_tended: Option<String>,
    /// What it runs with otherwise than the file says; its next start will change it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub differences: Vec<Difference>,
    /// The unit of systemd that started it, which would start it again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unit: Option<String>,
}

/// A member that was let go.
#[derive(Debug, Clone, Serialize)]
pub struct Reset {
    /// What was renamed, and to what.
    pub renamed: Vec<(PathBuf, PathBuf)>,
}

/// Checks the ids and the member list against the file, and writes the ledger. An etcd that runs is taken over as it is,
/// where that can be.
pub async fn adopt_member(node: &Node) -> Result<Adopted, Fault> {
    let state = node.state()?;
    let _lock = state.lock()?;
    let ledger = read_ledger(node)?;
    let seen = observe_data(&node.target, None);
    let (ids, client) = match seen {
        DataSeen::Absent => {
            let attempt = format!("cannot adopt `{}`: there is no data", node.target.data_dir().display());
            return Err(Fault::new(Code::NotFound, attempt)
                .hint("`quorate data init` or `quorate data restore` makes it; or declare `bootstrap`"));
        }
        DataSeen::There(data) => {
            let ids = data.ids.ok_or_else(|| mismatch(node, "its WAL does not say whose it is"))?;
            check_offline(node, ids.1)?;
            (ids, None)
        }
        // Held by an etcd, or not readable: only the running one can tell.
        DataSeen::Unknown(why) => {
            let (ids, client) = ask_running(node, &why).await?;
            (ids, Some(client))
        }
    };
    let holder = if client.is_some() { in_place::holder(node) } else { None };
    if holder.as_ref().and_then(|holder| holder.ids).is_some_and(|held| held != ids) {
        let url = node.member.client_urls.first().map_or("its client URL", String::as_str);
        return Err(mismatch(node, &format!("member {} answers at `{url}`, and the data is of another one", ids.1)));
    }
    let already = remember(node, ledger, ids)?;
    let mut adopted = Adopted {
        cluster_id: ids.0.to_string(),
        member_id: ids.1.to_string(),
        already,
        running: client.is_some(),
        tended: None,
        not_tended: None,
        differences: Vec::new(),
        unit: None,
    };
    if let Some(client) = client {
        tend(node, &state, holder, &client, &mut adopted).await?;
    }
    Ok(adopted)
}

/// Takes over the process, unless it is ours already.
async fn tend(
    node: &Node,
    state: &StateDir,
    holder: Option<Holder>,
    client: &Client,
    adopted: &mut Adopted,
) -> Result<(), Fault> {
    if let Adoption::Running(running) = shim::adopt(state)? {
        adopted.tended = Some(running.child().pid);
        return Ok(());
    }
    let Some(holder) = holder else {
        adopted.not_tended = Some("no process holds the lock on the data".to_owned());
        return Ok(());
    };
    match in_place::take_over(node, state, &holder, client).await? {
        Ok(tended) => {
            adopted.tended = Some(tended.pid);
            adopted.differences = tended.differences;
            adopted.unit = tended.unit;
        }
        Err(why) => adopted.not_tended = Some(why),
    }
    Ok(())
}

/// Writes the ids into the ledger. Returns whether they stood there.
fn remember(node: &Node, ledger: Ledger, ids: Ids) -> Result<bool, Fault> {
    if let Some(known) = ledger.ids() {
        if known != ids {
            let why = format!("this node is member {} of cluster {} already", known.1, known.0);
            return Err(mismatch(node, &why));
        }
        if matches!(ledger.state, State::Started(_)) {
            return Ok(true);
        }
    }
    let identity = Identity { cluster: ids.0, member: ids.1, origin: Origin::Adopted };
    let mut next = ledger.with(State::Started(identity));
    // What the file declares to found has been founded: it is this.
    if let Some(bootstrap) = node.spec.bootstrap
        && !next.consumed.contains(&bootstrap.id)
    {
        next.consumed.push(bootstrap.id);
    }
    next.spec_hash = Some(node.spec.hash());
    // Backups of its cluster may reach further: what is here is what the operator wants.
    next.taken_over = node.spec.backup.is_some();
    ensure_ledger(&RealDisk, &node.ledger(), &next)?;
    Ok(false)
}

/// Renames the data dir and the ledger; what is left of the ledger is which declarations were used.
pub fn reset_member(node: &Node) -> Result<Reset, Fault> {
    let state = node.state()?;
    let _lock = state.lock()?;
    let data = observe_data(&node.target, None);
    if let DataSeen::Unknown(why) = &data {
        let attempt = format!("cannot reset `{}`: {why}", node.target.data_dir().display());
        return Err(Fault::new(Code::DataInUse, attempt).hint("stop etcd first: `quorate stop`"));
    }
    let (stamp, mut renamed) = (stamp(), Vec::new());
    // The ledger's copy first: cut off here, the data is there and the ledger knows it.
    let ledger = observe_ledger(&node.ledger());
    if let PlaceState::NotMounted { mount_point, .. } = observe_place(node, &ledger, &data) {
        let attempt = format!("cannot reset `{}`", node.target.data_dir().display());
        return Err(not_mounted(attempt, &mount_point));
    }
    let dirs = std::iter::once(node.target.data_dir()).chain(node.target.wal_dir());
    for path in dirs.map(std::path::Path::to_owned).chain([node.ledger()]) {
        if let Some(new) = ensure_set_aside(&RealDisk, &path, &stamp)? {
            renamed.push((path, new));
        }
    }
    if let LedgerSeen::There(ledger) = ledger {
        let mut left = ledger.reset();
        // Also what this file declares: it must not be founded a second time by itself.
        if let (State::Started(_), Some(bootstrap)) = (&ledger.state, node.spec.bootstrap)
            && !left.consumed.contains(&bootstrap.id)
        {
            left.consumed.push(bootstrap.id);
        }
        ensure_ledger(&RealDisk, &node.ledger(), &left)?;
    }
    Ok(Reset { renamed })
}

fn read_ledger(node: &Node) -> Result<Ledger, Fault> {
    match observe_ledger(&node.ledger()) {
        LedgerSeen::There(ledger) => Ok(*ledger),
        LedgerSeen::Absent => Ok(Ledger::default()),
        LedgerSeen::Unreadable(why) => {
            let attempt = format!("cannot read the ledger `{}`", node.ledger().display());
            Err(Fault::new(Code::LedgerUnreadable, attempt).hint("see `quorate explain Q0935`").caused_by(why))
        }
    }
}

/// The member list in the database must be the file's.
fn check_offline(node: &Node, member: MemberId) -> Result<(), Fault> {
    let facts = facts(&node.target)?;
    let members: Vec<_> = facts.members.iter().map(|m| (m.id, m.name.clone(), m.peer_urls.clone())).collect();
    check_members(node, member, &members)
}

async fn ask_running(node: &Node, why: &str) -> Result<(Ids, Client), Fault> {
    let unknown = |fault: Fault| {
        Fault::new(fault.code(), format!("cannot adopt `{}`: {why}", node.target.data_dir().display()))
            .hint("if etcd runs on it, it must answer at the `client-urls` of the file; else stop it")
            .caused_by(fault)
    };
    let client = Client::connect(&node.client()?).await.map_err(unknown)?;
    let without_quorum = |fault: Fault| {
        let place = node.target.data_dir().display();
        let attempt = format!("cannot adopt `{place}`: etcd runs on it ({why}), and no quorum confirms its members");
        Fault::new(fault.code(), attempt)
            .hint("start the etcd of the other members, then run this again; etcd was left running as it is")
            .caused_by(fault)
    };
    let header = client.header().await.map_err(without_quorum)?;
    let listed = client.member_list(Consistency::Linearizable).await.map_err(without_quorum)?;
    let members: Vec<_> =
        listed.members.iter().map(|m| (MemberId(m.id), m.name.clone(), m.peer_urls.clone())).collect();
    let member = MemberId(header.member_id);
    check_members(node, member, &members)?;
    Ok(((ClusterId(header.cluster_id), member), client))
}

/// The member must be the declared one, and its cluster must have the declared members and no others.
fn check_members(node: &Node, member: MemberId, members: &[(MemberId, String, Vec<String>)]) -> Result<(), Fault> {
    let Some((_, name, urls)) = members.iter().find(|(id, ..)| *id == member) else {
        return Err(mismatch(node, &format!("it is member {member}, which its member list does not name")));
    };
    // A member that never started has no name in the list yet.
    if !name.is_empty() && name != node.name() {
        return Err(mismatch(node, &format!("its member is named `{name}`, and the file's `{}`", node.name())));
    }
    if sorted(urls) != sorted(&node.member.peer_urls) {
        let (its, ours) = (sorted(urls).join(","), sorted(&node.member.peer_urls).join(","));
        return Err(mismatch(node, &format!("its peer URLs are `{its}`, and the file's `{ours}`")));
    }
    let declared = &node.spec.members;
    if members.len() != declared.len() {
        let (has, declares) = (members.len(), declared.len());
        return Err(mismatch(node, &format!("its cluster has {has} members, and the file declares {declares}")));
    }
    for (id, _, urls) in members {
        if !declared.iter().any(|other| sorted(&other.peer_urls) == sorted(urls)) {
            let urls = sorted(urls).join(",");
            return Err(mismatch(node, &format!("its cluster has member {id} at `{urls}`, which the file has not")));
        }
    }
    Ok(())
}

fn sorted(urls: &[String]) -> Vec<&str> {
    let mut urls: Vec<&str> = urls.iter().map(String::as_str).collect();
    urls.sort_unstable();
    urls
}

fn mismatch(node: &Node, why: &str) -> Fault {
    let attempt = format!("cannot adopt `{}`: {why}", node.target.data_dir().display());
    Fault::new(Code::AdoptMismatch, attempt).hint("compare `quorate data inspect` with the cluster file")
}
