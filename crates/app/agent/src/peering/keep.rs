//! Keeps what was begun going: the door, the one operation, the role of this node, and the file that the cluster agreed on.
//!
//! **Rule:** look, decide (`plan/peering`), do one thing, look again; an operation that waits says for what.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quorate_etcd_formats::hex::hex;
use quorate_faults::{Code, Fault};
use quorate_plan::ledger::{LedgerSeen, State};
use quorate_plan::peering::{
    FileState, Kind, Next, Operation, Outcome, Role, Seen, Step, brought, next, without_member,
};
use serde_json::Value;
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::{debug, info, warn};

use super::client::{self, records};
use super::listing::FoundClaim;
use super::messages::OperationShown;
use super::pinned::fill_random;
use super::points::point;
use super::record::{Entry, Holds, NodeRecord, Records, Right};
use super::show::operation_shown;
use super::store::lock;
use super::{DOOR_PORT, adopt, countersign, door, keys, returned};
use crate::cluster_file;
use crate::peers::{Api, FileRequest, NodeAnswer, PeerError, Sender, take};
use crate::turn::{Wish, in_words, now_ms};

/// Between two looks while something goes on.
const SOON: Duration = Duration::from_millis(300);
/// And otherwise.
const IDLE: Duration = Duration::from_secs(2);
/// Between two looks at the file that the cluster agreed on.
const FILE_EVERY: Duration = Duration::from_secs(5);
/// A member list is believed for so long after a quorum confirmed it.
const LIST_MS: u64 = 10_000;

/// Whoever carries a change out and has not answered for so long is lost: another server goes on with it. Longer than an agent
/// needs to begin anew.
pub(super) const LOST: Duration = Duration::from_secs(15);

/// Goes on until told to stop.
pub(crate) async fn keep(api: Api, stop: CancellationToken) {
    let Some(_) = api.peering.local() else { return };
    let (mut door, mut looked): (Option<DropGuard>, Option<Instant>) = (None, None);
    let mut silent = None;
    api.peering.door.send_replace(false);
    loop {
        let news = api.peering.news.notified();
        tokio::pin!(news);
        news.as_mut().enable();
        mind_door(&api, &mut door).await;
        let due = looked.is_none_or(|at| at.elapsed() >= FILE_EVERY);
        if due {
            if let Err(fault) = client::mind_clients(&api).await {
                debug!(code = %fault.code(), "who the clients are was not read: {}", in_words(&fault));
            }
            if let Err(fault) = adopt::mind_claim(&api, &mut silent).await {
                debug!(code = %fault.code(), "who changes peers was not read: {}", in_words(&fault));
            }
        }
        client::know_clients(&api);
        if let Err(fault) = mind_role(&api, due).await {
            warn!(code = %fault.code(), "the role of this node was not written down: {fault}");
        }
        let active = api.peering.kept().active().is_some();
        if active {
            let waits = match drive(&api, due).await {
                Ok(waits) => waits,
                Err(fault) => Some(in_words(&fault)),
            };
            tell(&api, waits);
        } else if due {
            let looks = async {
                returned::mind_tombstone(&api).await?;
                follow_file(&api).await?;
                keys::ensure_keys(&api).await?;
                keys::ensure_no_keys(&api).await
            };
            if let Err(fault) = looks.await {
                debug!(code = %fault.code(), "what the others hold was not looked at: {}", in_words(&fault));
            }
        }
        if due {
            looked = Some(Instant::now());
        }
        // Who has just left the file is about to be something else.
        let soon = active || !api.node.is_declared() && client::may_still_serve(&api);
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(if soon { SOON } else { IDLE }) => {}
            () = news => {}
        }
    }
}

/// What the operation waits for, told once.
fn tell(api: &Api, waits: Option<String>) {
    let mut known = lock(&api.peering.waits);
    if let Some(text) = waits.as_ref().filter(|text| known.as_ref() != Some(text)) {
        info!("a change of peers waits for {text}");
    }
    *known = waits;
}

/// Open while someone is invited.
async fn mind_door(api: &Api, door: &mut Option<DropGuard>) {
    let kept = api.peering.kept();
    let open = kept.invitations.is_open(kept.active().is_some(), now_ms());
    match (open, door.is_some()) {
        (true, false) => match door::open(api).await {
            Ok(bound) => {
                let stop = CancellationToken::new();
                tokio::spawn(bound.serve(door::router(api), stop.clone()));
                info!("the door is open at port {DOOR_PORT} for those who were invited");
                *door = Some(stop.drop_guard());
                api.peering.door.send_replace(true);
            }
            // The life before may still hold the port.
            Err(fault) => debug!(code = %fault.code(), "the door stays shut: {}", in_words(&fault)),
        },
        (false, true) => {
            info!("the door is shut: nobody is invited any more");
            *door = None;
            api.peering.door.send_replace(false);
        }
        (true, true) | (false, false) => {}
    }
}

/// Whether this node is no member any more, by its own word or that of others.
pub(super) fn is_removed(api: &Api) -> bool {
    let removed = matches!(api.book.read(), LedgerSeen::There(ledger) if matches!(ledger.state, State::Tombstone(_)));
    // Who never was a member has no tombstone of its own, and is out by the file that was given to it.
    let status = api.shared.status();
    let refused = status.etcd.is_none() && status.code.as_deref() == Some(Code::StartRemoved.as_str());
    removed || (refused && !api.node.is_declared())
}

/// Who was removed is detached, unless it is to be a client; a cluster that grew has servers.
async fn mind_role(api: &Api, due: bool) -> Result<(), Fault> {
    if client::mind_role(api, due).await? {
        return Ok(());
    }
    let out = is_removed(api);
    let role = api.peering.local().map(|local| local.role);
    match role {
        Some(Role::Standalone | Role::Server | Role::External) if out => {
            info!("this node is detached: no etcd runs here");
            point("detached");
            api.peering.become_(Role::Detached)?;
            point("detached-written");
            Ok(())
        }
        Some(Role::Standalone) if api.node.spec.members.len() > 1 => api.peering.become_(Role::Server),
        _ => Ok(()),
    }
}

/// Takes the next step of the operation. `due`: the store is worth a look also while nothing is to be done. Returns what it waits
/// for.
async fn drive(api: &Api, due: bool) -> Result<Option<String>, Fault> {
    let active = || api.peering.kept().active().cloned();
    // Whoever begins one writes it down and then takes the right to it: in between it is nobody else's to go on with. And a detach by
    // force may add to it.
    let _one = api.peering.deciding.lock().await;
    let Some(mut operation) = active() else { return Ok(None) };
    let (spec, _) = cluster_file::parse(operation.text.as_bytes(), "the file of a change of peers")?;
    let hash = spec.hash();
    if !operation.taken && operation.step != Step::Reserved && api.node.spec.hash() == hash {
        operation.taken = true;
        write(api, &operation)?;
    }
    let heard = hear(api).await;
    let next = next(&operation, &observe(api, &operation, &hash, &heard));
    match next {
        Next::Nothing => return Ok(None),
        Next::Wait(what) if !due => return Ok(Some(what)),
        _ => {}
    }
    // Nothing is done without the right to it, which another one may have by now.
    let (records, right) = right(api, &operation).await?;
    let unclaimed = right == Right::Unclaimed;
    let (known, approval) = match right {
        Right::Ours { known, approval } => (known, approval),
        Right::Unclaimed => (Vec::new(), None),
        Right::Theirs { by } => return Ok(Some(format!("`{by}`, which goes on with it"))),
        Right::Closed(outcome) => return end_here(api, &operation, outcome).await.map(|()| None),
        Right::Lost => {
            let outcome = records.outcome_of(&operation).await?;
            return end_here(api, &operation, outcome).await.map(|()| None);
        }
    };
    let own = api.node.spec.hash();
    let held = heard.values().flatten().map(|answer| answer.file.as_str());
    if brought(&operation, &hash, [own.as_str()].into_iter().chain(held)).is_some() {
        return rebase(api, &records, operation, hash).await.map(|()| None);
    }
    match next {
        Next::Nothing => Ok(None),
        Next::Wait(what) => Ok(Some(what)),
        Next::Write(Step::Given) if countersign::is_missing(api, &operation, approval.as_ref()).await? => {
            Ok(Some(countersign::wanted(operation.kind.name())))
        }
        Next::Write(step) => {
            // Whoever was killed before it had the right to change peers takes it now.
            records.claim(&operation).await?;
            point("claimed");
            operation.step = step;
            records.advance(&operation).await?;
            write(api, &operation)?;
            point("given");
            Ok(None)
        }
        Next::Give => give(api, &operation, &hash, &heard, (&known, approval)).await,
        Next::Undo => {
            let name = operation.kind.name();
            let text = without_member(&operation.text, name).map_err(|error| error.fault())?;
            warn!(node = name, "the newcomer did not come in its time, and is taken out again");
            let operation = operation.turned_back(text, hash);
            records.advance(&operation).await?;
            write(api, &operation)?;
            point("undoing");
            Ok(None)
        }
        // The file that was taken over is not read yet: what is held is judged by the one before.
        Next::Close(_) if !is_current(api) => Ok(Some("this node to read its file again".to_owned())),
        // Nobody has heard of it.
        Next::Close(outcome) if unclaimed => end_here(api, &operation, outcome).await.map(|()| None),
        Next::Close(outcome) => close(api, &records, &operation, &hash, outcome).await.map(|()| None),
    }
}

/// Whether the file on disk is the one that this agent was begun with.
fn is_current(api: &Api) -> bool {
    cluster_file::text(&api.node.file).is_ok_and(|text| *text == *api.node.text)
}

/// Writes the operation down as it is now, unless it is over meanwhile.
pub(super) fn write(api: &Api, operation: &Operation) -> Result<(), Fault> {
    api.peering.change(|kept| {
        if let Some(known) = kept.operation.as_mut().filter(|known| known.id == operation.id) {
            // It may have been taken back in this very moment.
            let deadline_ms = known.deadline_ms.min(operation.deadline_ms);
            *known = Operation { deadline_ms, ..operation.clone() };
        }
    })
}

/// Whose the operation is, and the store that says so: through this member, or through the others.
async fn right(api: &Api, operation: &Operation) -> Result<(Records, Right), Fault> {
    let near = async {
        let records = records(api).await?;
        let right = records.right(operation).await?;
        Ok::<_, Fault>((records, right))
    };
    match near.await {
        Err(_) if api.node.has_peers() && api.node.spec.external.is_none() => {
            let records = Records::of_others(&api.node).await?.holding(api.peering.held(&api.node.spec.token));
            let right = records.right(operation).await?;
            Ok((records, right))
        }
        near => near,
    }
}

/// Everybody holds a file that somebody applied meanwhile, and that one holds.
async fn rebase(api: &Api, records: &Records, operation: Operation, hash: String) -> Result<(), Fault> {
    let name = operation.kind.name().to_owned();
    let declares = api.node.spec.member(&name).is_some();
    let word = if declares { "declares it" } else { "does not declare it" };
    info!(node = name, "another file was applied meanwhile, which {word}: the change goes on with that one");
    let operation = operation.rebased(api.node.text.to_string(), declares, hash);
    records.advance(&operation).await?;
    write(api, &operation)
}

/// It ended by the hand of another, or before anyone heard of it: the file that was agreed on is followed from here on.
async fn end_here(api: &Api, operation: &Operation, outcome: Outcome) -> Result<(), Fault> {
    write(api, &Operation { step: Step::Done(outcome), ..operation.clone() })?;
    if let Err(fault) = client::mind_clients(api).await {
        debug!(code = %fault.code(), "who the clients are was not read: {}", in_words(&fault));
    }
    tell_end(&operation.kind, outcome);
    Ok(())
}

pub(super) type Heard = BTreeMap<String, Result<NodeAnswer, PeerError>>;

/// Every other node, those that leave and clients included.
pub(super) async fn hear(api: &Api) -> Heard {
    let mut asked = tokio::task::JoinSet::new();
    for peer in api.peers.leaving().into_iter().chain(api.peers.others()).chain(api.peers.clients()) {
        let peers = Arc::clone(&api.peers);
        asked.spawn(async move {
            let answer = peers.node(&peer, None).await;
            (peer, answer)
        });
    }
    asked.join_all().await.into_iter().collect()
}

fn observe(api: &Api, operation: &Operation, hash: &str, heard: &Heard) -> Seen {
    let (now, name) = (now_ms(), operation.kind.name());
    let answers = || heard.values().flatten();
    let cluster = api.shared.status().cluster.filter(|cluster| now.saturating_sub(cluster.seen_ms) < LIST_MS);
    let external = api.node.spec.external.is_some();
    let listed = if external {
        // There is no list but ours: who runs with the file belongs to it.
        let runs = |answer: &Result<NodeAnswer, PeerError>| answer.as_ref().is_ok_and(|answer| answer.file == hash);
        let joins = matches!(operation.kind, Kind::Join(_)) && operation.step == Step::Given;
        (joins && heard.get(name).is_some_and(runs)).then_some(true)
    } else {
        cluster.as_ref().and_then(|cluster| {
            // One that never started has no name yet, and may be this one.
            let found = cluster.members.iter().find(|member| member.name == name || member.name.is_empty())?;
            Some(found.name == name && found.role != "learner")
        })
    };
    let still = |name: &String| {
        cluster.as_ref().is_some_and(|cluster| cluster.members.iter().any(|member| member.name == *name))
    };
    let backups = answers().filter_map(|answer| answer.backed_up_ms).chain(api.shared.backed_up_ms());
    Seen {
        now_ms: now,
        held: api.node.spec.hash() == hash && answers().all(|answer| answer.file == hash),
        listed,
        also_out: !operation.also.iter().any(still),
        confirmed: cluster.is_some() || (external && api.shared.readiness().1),
        based: api.node.spec.hash() == operation.before,
        backed_up: api.node.spec.backup.is_none() || backups.max().is_some_and(|until| until >= operation.at_ms),
        role: heard.get(name).and_then(|answer| answer.as_ref().ok()?.role),
    }
}

/// Writes an operation down, and takes the right to change peers for it: what was written down is forgotten where another has
/// that right. `uses`: the token, and who uses it.
pub(super) async fn begin(api: &Api, operation: Operation, uses: Option<(&[u8], &str)>) -> Result<(), Fault> {
    let before = api.peering.kept().operation;
    api.peering.change(|kept| {
        if let Some((token, claim)) = uses {
            kept.invitations.use_up(token, claim);
        }
        kept.operation = Some(operation.clone());
    })?;
    point("reserved");
    let claimed = async { records(api).await?.claim(&operation).await };
    let Err(fault) = claimed.await else { return Ok(()) };
    let undone = api.peering.change(|kept| {
        let ours = |known: &Operation| known.id == operation.id && known.step == Step::Reserved;
        let undone = kept.operation.as_ref().is_some_and(ours);
        if undone {
            kept.operation = before;
            if let Some((_, claim)) = uses {
                kept.invitations.release(claim);
            }
        }
        undone
    })?;
    // It goes on where the right was taken meanwhile.
    if undone { Err(fault) } else { Ok(()) }
}

/// Gives the file to whoever has another one: those that leave first, this node last. Replaced is what the change began with, what
/// was its own, and what the cluster had agreed on (`known`); what somebody else brought is not.
async fn give(
    api: &Api,
    operation: &Operation,
    hash: &str,
    heard: &Heard,
    (known, approval): (&[String], Option<Value>),
) -> Result<Option<String>, Fault> {
    let behind = heard.iter().filter_map(|(peer, answer)| Some((peer, answer.as_ref().ok()?)));
    let may_replace = |file: &String| operation.may_replace(file) || known.contains(file);
    let theirs = |peer: &str| format!("the file that somebody applied on `{peer}` to be applied on all");
    let mut waits = None;
    for (peer, answer) in behind.filter(|(_, answer)| answer.file != hash) {
        if !may_replace(&answer.file) {
            waits = Some(theirs(peer));
            continue;
        }
        let approvals = approval.iter().cloned().collect();
        let request = FileRequest { approvals, ..FileRequest::new(operation.text.clone(), answer.file.clone()) };
        match api.peers.put_file(peer, &request).await {
            Ok(_) => {
                info!("gave the file to `{peer}`");
                point("file-out");
            }
            Err(error) => waits = Some(format!("`{peer}` to take the file ({})", in_words(&error.fault(peer)))),
        }
    }
    if waits.is_some() || api.node.spec.hash() == hash {
        return Ok(waits);
    }
    let request = FileRequest::new(operation.text.clone(), api.node.spec.hash());
    if !may_replace(&request.replaces) {
        return Ok(Some(theirs(api.node.name())));
    }
    take_here(api, request).await?;
    point("file-here");
    Ok(None)
}

/// Takes a file over on this very node, as if another agent had sent it.
pub(super) async fn take_here(api: &Api, request: FileRequest) -> Result<(), Fault> {
    let node = Arc::clone(&api.node);
    let taken = tokio::task::spawn_blocking(move || take(&node, &request, Sender::Server, false)).await;
    let taken = taken.map_err(|_| Fault::new(Code::Internal, "taking a file came to a halt"))??;
    if taken.file != api.node.spec.hash() {
        api.wishes.send_modify(|wishes| wishes.push(Wish::reload("a change of peers")));
    }
    Ok(())
}

async fn close(api: &Api, records: &Records, operation: &Operation, hash: &str, outcome: Outcome) -> Result<(), Fault> {
    let record = match (&operation.kind, outcome) {
        (Kind::Join(node), Outcome::Joined) | (Kind::ToServer(node), Outcome::Changed) => {
            let role = if api.node.spec.external.is_some() { Role::External } else { Role::Server };
            Entry::Put(NodeRecord::new(node, role, now_ms()))
        }
        (Kind::Enrol(node), Outcome::Joined) | (Kind::ToClient(node), Outcome::Changed) => {
            Entry::Put(NodeRecord::new(node, Role::Client, now_ms()))
        }
        (Kind::ToServer(_) | Kind::ToClient(_), _) | (Kind::Detach { .. }, Outcome::Undone) => Entry::Keep,
        _ => Entry::Delete,
    };
    // What was never given is nobody's file: the one that is here holds on.
    let here = api.node.spec.hash();
    let file = match (operation.step, &operation.kind) {
        (Step::Reserved, _) | (_, Kind::Enrol(_) | Kind::Discharge { .. }) => Holds::Here(&here, &api.node.text),
        (Step::Given | Step::Undoing | Step::Done(_), _) => Holds::Given(hash, &operation.text),
    };
    point("closing");
    records.close(operation, outcome, &record, &file).await?;
    point("closed");
    end_here(api, operation, outcome).await
}

fn tell_end(kind: &Kind, outcome: Outcome) {
    let name = kind.name();
    match (kind, outcome) {
        (Kind::Enrol(_), _) => info!(node = name, "joined: it is on record as a client"),
        (Kind::Discharge { .. }, _) => info!(node = name, "detached: the client is off the record"),
        (kind, Outcome::Changed) => info!(node = name, "changed ({}), and on record as that", kind.word()),
        (Kind::ToServer(_) | Kind::ToClient(_), _) => warn!(node = name, "undone: it stays what it was"),
        (Kind::Detach { .. }, Outcome::Undone) => warn!(node = name, "undone: it stays, by a file that declares it"),
        (_, outcome) => tell_outcome(name, outcome),
    }
}

fn tell_outcome(name: &str, outcome: Outcome) {
    match outcome {
        Outcome::Joined | Outcome::Changed => info!(node = name, "joined: it votes, and is on record"),
        Outcome::Undone => warn!(node = name, "undone: it did not join, and nothing of it is left"),
        Outcome::Detached => info!(node = name, "detached: it is no member any more, and off the record"),
    }
}

/// A node that was away takes the file that the cluster agreed on meanwhile; one that a person brought stays.
async fn follow_file(api: &Api) -> Result<(), Fault> {
    if !api.shared.readiness().1 && api.peering.role() != Some(Role::Client) {
        return Ok(());
    }
    let look = records(api).await?.look().await?;
    let own = api.node.spec.hash();
    let Some(file) = look.valid_file() else { return Ok(()) };
    // While a change goes on, the file from before it looks agreed to a node that has its file already.
    let given = |claim: &FoundClaim| match &claim.claimed {
        Some(claimed) => {
            let parsed = cluster_file::parse(claimed.operation.text.as_bytes(), "the file of a change of peers");
            api.node.spec.is_plaintext() || parsed.is_ok_and(|(spec, _)| spec.hash() == own)
        }
        None => false,
    };
    if look.claim.as_ref().is_some_and(given) || !look.file.as_ref().is_some_and(|it| it.state == FileState::Follow) {
        return Ok(());
    }
    info!("the cluster agreed on another file meanwhile, and it is taken over");
    take_here(api, FileRequest::new(file.text.clone(), own)).await
}

/// Has the change that goes on end as if its time were over, where it can still be taken back.
pub(super) fn take_back(api: &Api, active: &Operation) -> Result<OperationShown, Fault> {
    if !active.can_be_taken_back() {
        return Err(busy(active));
    }
    let back = active.clone().taken_back(now_ms());
    info!(node = back.kind.name(), "a change is taken back: {}", back.kind.word());
    api.peering.change(|kept| {
        // It may have come further in this very moment; its time is over all the same.
        if let Some(known) = kept.operation.as_mut().filter(|known| known.id == back.id && known.can_be_taken_back()) {
            known.deadline_ms = back.deadline_ms;
        }
    })?;
    Ok(operation_shown(api, &back))
}

/// Another change is under way.
pub(super) fn busy(active: &Operation) -> Fault {
    let what = format!("another change goes on: that of `{}`", active.kind.name());
    Fault::new(Code::PeersBusy, what).hint("wait until it is done: `quorate peer status`")
}

/// Nobody has this name.
pub(super) fn unknown(name: &str) -> Fault {
    Fault::new(Code::PeerUnknown, format!("there is no peer `{}`", name.escape_debug()))
        .hint("see who there is: `quorate peer list`")
}

/// Begins a change that leads to the file `text`.
pub(super) async fn start(api: &Api, kind: Kind, text: String, limit_ms: u64) -> Result<OperationShown, Fault> {
    let mut random = [0_u8; 8];
    fill_random(&mut random)?;
    let (now, before) = (now_ms(), api.node.spec.hash());
    let deadline_ms = now.saturating_add(limit_ms);
    let (id, earlier, taken, also, step) = (hex(&random), Vec::new(), false, Vec::new(), Step::Reserved);
    let operation = Operation { id, kind, text, before, earlier, taken, also, at_ms: now, deadline_ms, step };
    begin(api, operation.clone(), None).await?;
    info!(node = operation.kind.name(), "a change was begun: {}", operation.kind.word());
    Ok(operation_shown(api, &operation))
}
