//! Answers whoever changes a living cluster: another cluster file, what a node is to become, and leadership handed over.
//!
//! **Invariant:** a file is taken only in the place of the very file that it was meant for, after it was checked as strictly as
//! at a start; and what was said yes to is on disk.

use std::path::Path;
use std::sync::Arc;

use axum::extract::rejection::JsonRejection;
use axum::extract::{ConnectInfo, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use quorate_faults::{Code, Exit, Fault};
use quorate_plan::ledger::{Intent, IntentKind, Ledger, State as Progress};
use quorate_plan::spec::Spec;
use tracing::info;

use super::access::Caller;
use super::audited::caller;
use super::file_orders::{self, Sent};
use super::messages::{
    FileAnswer, FileRequest, FileTold, FileTrial, FileTried, HandOverAnswer, IntentAnswer, IntentRequest, NodeAnswer,
    RestartAnswer,
};
use super::plaintext::check_agent_addresses;
use super::server::{Api, No, refuse};
use crate::serve::Peer;
use crate::turn::{Node, Wish, hand_over_now, now_ms, restart_by, stamp};
use crate::{cluster_file, declared, peering};

/// Takes another cluster file over, or says why not.
pub(super) async fn file(
    State(api): State<Api>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    Extension(sender): Extension<Caller>,
    body: Result<Json<FileRequest>, JsonRejection>,
) -> Result<Json<FileAnswer>, No> {
    let Json(request) = body.map_err(|rejection| unread(&rejection))?;
    let who = caller(&api, &peer);
    let sender = sender_of(&api, &peer, &sender);
    if sender == Sender::Server && request.order.is_none() {
        peering::check_given(&api, &peer, &request).await.map_err(|fault| no(&fault))?;
    }
    let taken = take_async(&api, request, sender).await.map_err(|fault| no(&fault))?;
    if let Some(kept) = &taken.kept {
        let leaves = if taken.leaves { ", which does not declare this node: it leaves" } else { "" };
        info!("took over the cluster file of {who}{leaves}; the one from before is `{kept}`");
    }
    if taken.file != api.node.spec.hash() {
        api.wishes.send_modify(|wishes| wishes.push(Wish::reload(&who)));
    }
    Ok(Json(taken))
}

/// Tells what a file would mean here; nothing is changed.
pub(super) async fn trial(
    State(api): State<Api>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    Extension(sender): Extension<Caller>,
    body: Result<Json<FileTrial>, JsonRejection>,
) -> Result<Json<FileTried>, No> {
    let Json(FileTrial { text, order, will_be_sent }) = body.map_err(|rejection| unread(&rejection))?;
    let (node, shared) = (Arc::clone(&api.node), Arc::clone(&api.shared));
    let sender = sender_of(&api, &peer, &sender);
    let tried = blocking(move || {
        let (new, full) = read_sent(&node, &text)?;
        if will_be_sent && new.hash() != node.written {
            let sent = Sent { text: &text, order: order.as_ref(), sender, most_act_on_it: false };
            file_orders::check(&node, &sent, &new)?;
        }
        let leaves = full.member(node.name()).is_none();
        let restart = if leaves { None } else { restart_by(&node, &shared, full)? };
        Ok(FileTried { restart, leaves })
    });
    Ok(Json(tried.await?))
}

/// Returns the text of the file that this node acts on, without the variables of processes: those may be secrets. Operators read the
/// members in it.
/// Other members have it whole: they hold the same one, and compare its signature.
pub(super) async fn told(
    State(api): State<Api>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    Extension(sender): Extension<Caller>,
) -> Result<Json<FileTold>, No> {
    let file = api.node.spec.hash();
    let node = Arc::clone(&api.node);
    let followed =
        tokio::task::spawn_blocking(move || file_orders::followed(&node)).await.ok().and_then(Result::ok).flatten();
    let order = followed.filter(|followed| followed.file == api.node.written).map(|followed| followed.signed);
    let member = peer.node(&api.node.spec.token).is_some_and(|name| api.node.spec.member(&name).is_some());
    if sender == Caller::Certified && member {
        return Ok(Json(FileTold { text: api.node.text.to_string(), file, order }));
    }
    match without_variables(&api.node.text, &api.node.spec) {
        Some(text) => Ok(Json(FileTold { text, file, order })),
        None => {
            let why = "the file holds variables of processes, and cannot be shown without them";
            Err(refuse(StatusCode::FORBIDDEN, Code::NotAdmitted, why, None))
        }
    }
}

/// The text without `processes`, where one of them has `env`. `None`: the text is not in block form.
fn without_variables(text: &str, spec: &Spec) -> Option<String> {
    let has_none = |spec: &Spec| spec.processes.iter().all(|process| process.env.is_empty());
    if has_none(spec) {
        return Some(text.to_owned());
    }
    let mut inside = false;
    let mut kept = String::new();
    for line in text.split_inclusive('\n') {
        // A key at the left margin ends the section before it.
        if line.starts_with(|first: char| first.is_alphanumeric() || matches!(first, '"' | '\'' | '-' | '.')) {
            inside = ["processes:", "\"processes\":", "'processes':"].iter().any(|key| line.starts_with(key));
        }
        if !inside {
            kept.push_str(line);
        }
    }
    let (read, _) = cluster_file::parse(kept.as_bytes(), "the file without processes").ok()?;
    has_none(&read).then_some(kept)
}

/// Writes down what this node is to become.
pub(super) async fn intent(
    State(api): State<Api>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    body: Result<Json<IntentRequest>, JsonRejection>,
) -> Result<Json<IntentAnswer>, No> {
    own_etcd(&api)?;
    let Json(IntentRequest { intent, why }) = body.map_err(|rejection| unread(&rejection))?;
    let who = caller(&api, &peer);
    let (book, at_ms) = (Arc::clone(&api.book), now_ms());
    let ledger = blocking(move || {
        let mut objection = None;
        let written = book.change(|ledger| match may_intend(ledger, intent) {
            // What is asked again keeps the time at which it was first asked.
            Ok(()) if ledger.intent.as_ref().map(|known| known.kind) == intent => {}
            Ok(()) => ledger.intent = intent.map(|kind| Intent { kind, why, at_ms }),
            Err(fault) => objection = Some(fault),
        })?;
        objection.map_or(Ok(written), Err)
    })
    .await?;
    match &ledger.intent {
        Some(Intent { kind: IntentKind::Leave, why, .. }) => info!("{who} asks this node to leave: {why}"),
        Some(Intent { kind: IntentKind::Teardown, why, .. }) => info!("{who} tears the cluster down: {why}"),
        None => info!("{who} asks this node to stay"),
    }
    api.shared.wake();
    Ok(Json(IntentAnswer { intent: ledger.intent }))
}

/// Hands leadership over now.
pub(super) async fn hand_over(State(api): State<Api>) -> Result<Json<HandOverAnswer>, No> {
    own_etcd(&api)?;
    let handed = hand_over_now(&api.node).await;
    api.shared.expire_polls();
    match handed {
        Ok(to) => Ok(Json(HandOverAnswer { to })),
        Err(fault) => Err(no(&fault)),
    }
}

/// Has an etcd that was taken over restarted in its turn. Nothing is written down: until then the agent shows that it waits.
pub(super) async fn restart(
    State(api): State<Api>,
    ConnectInfo(peer): ConnectInfo<Peer>,
) -> Result<Json<RestartAnswer>, No> {
    own_etcd(&api)?;
    info!("{} asks for the restart that etcd waits for", caller(&api, &peer));
    let waits = api.shared.status().etcd.is_some_and(|etcd| !etcd.settings_current);
    api.shared.allow_restart();
    Ok(Json(RestartAnswer { waits }))
}

/// Members of an etcd that others run are theirs to change.
pub(super) fn own_etcd(api: &Api) -> Result<(), No> {
    match api.node.spec.external {
        None => Ok(()),
        Some(_) => Err(no(&Fault::new(Code::ExternalEtcd, "etcd is run by others here, and its members are theirs")
            .hint("ask whoever runs it; `quorate peer` changes who uses it"))),
    }
}

fn may_intend(ledger: &Ledger, intent: Option<IntentKind>) -> Result<(), Fault> {
    let alone = ledger.confirmed.as_ref().is_some_and(|confirmed| {
        let mine = ledger.ids().map(|(_, member)| member);
        confirmed.members.iter().all(|member| member.learner || Some(member.id) == mine)
    });
    match (intent, &ledger.state) {
        (Some(IntentKind::Leave), Progress::Started(_)) if alone => {
            Err(Fault::new(Code::LastMember, "the last member cannot leave: nothing of the cluster would be left")
                .hint("to end the cluster, `quorate cluster teardown`"))
        }
        (Some(IntentKind::Leave), Progress::Empty | Progress::Promised(_) | Progress::Inited(_)) => {
            Err(Fault::new(Code::ChangeRefused, "this node has never been a member, so it cannot leave")
                .hint("take it out of the cluster file"))
        }
        (Some(_) | None, _) => Ok(()),
    }
}

/// Reads a file that was sent, as it is written and with all its members, if it may take the place of this node's.
/// It is data: no source, program or path that only it names is used.
fn read_sent(node: &Node, text: &str) -> Result<(Spec, Spec), Fault> {
    let (new, _) = cluster_file::parse(text.as_bytes(), "the file that was sent")?;
    let full = declared::resolve_received(&new, &node.spec, node.name(), node.state_path())?;
    may_replace(node, &full)?;
    Ok((new, full))
}

/// Where a file comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sender {
    /// Whoever may read the state dir of this agent.
    Owner,
    /// A server of a peer-managed cluster, in a change of peers.
    Server,
    /// Any other machine.
    Remote,
}

fn sender_of(api: &Api, peer: &Peer, caller: &Caller) -> Sender {
    let member = || peer.node(&api.node.spec.token).is_some_and(|name| api.node.spec.member(&name).is_some());
    match caller {
        Caller::Owner => Sender::Owner,
        Caller::Certified if api.peering.role().is_some() && member() => Sender::Server,
        Caller::Certified | Caller::Operator(_) | Caller::Refused(_) => Sender::Remote,
    }
}

/// The same, for async code. Where the node may have been away, the other members are asked which file they act on.
pub(super) async fn take_async(api: &Api, request: FileRequest, sender: Sender) -> Result<FileAnswer, Fault> {
    let halted = |_| Fault::new(Code::Internal, "taking a file came to a halt");
    let request = Arc::new(request);
    let attempt = |most_act_on_it: bool| {
        let (node, request) = (Arc::clone(&api.node), Arc::clone(&request));
        tokio::task::spawn_blocking(move || take(&node, &request, sender, most_act_on_it))
    };
    match attempt(false).await.map_err(halted)? {
        Err(fault) if request.order.is_some() && matches!(fault.code(), Code::FileStale | Code::FileSignature) => {
            match most_act_on(api, &request.text).await {
                true => attempt(true).await.map_err(halted)?,
                false => Err(fault),
            }
        }
        taken => taken,
    }
}

/// Whether more than half of the members of this node's file act on a file.
async fn most_act_on(api: &Api, text: &str) -> bool {
    let (node, text) = (Arc::clone(&api.node), text.to_owned());
    let hash = tokio::task::spawn_blocking(move || read_sent(&node, &text).map(|(_, full)| full.hash()));
    let Ok(Ok(hash)) = hash.await else { return false };
    let answers = api.peers.ask_all::<NodeAnswer>("/v1/node", None).await;
    let declared = |name: &String| api.node.spec.member(name).is_some();
    let act =
        answers.iter().filter(|(name, answer)| declared(name) && answer.as_ref().is_ok_and(|one| one.file == hash));
    2 * act.count() > api.node.spec.members.len()
}

/// Checks the file, and puts it in the place of the one that is there.
pub(crate) fn take(
    node: &Node,
    request: &FileRequest,
    sender: Sender,
    most_act_on_it: bool,
) -> Result<FileAnswer, Fault> {
    let (new, full) = read_sent(node, &request.text)?;
    let sent = Sent { text: &request.text, order: request.order.as_ref(), sender, most_act_on_it };
    let there = cluster_file::read(&node.file).map(|(there, _)| there);
    let there = there.as_ref().map_or_else(|_| node.written.clone(), Spec::hash);
    let (hash, leaves) = (new.hash(), full.member(node.name()).is_none());
    let file = full.hash();
    if hash != node.written {
        node.ensure_remembered()?;
    }
    // A signature that counts is recorded with the file that it brought, whoever sent it, and also where the file came before it.
    let counts = || file_orders::check(node, &Sent { sender: Sender::Remote, ..sent }, &new).is_ok();
    let signed = request.order.as_ref().filter(|_| counts());
    if there == hash {
        signed.map_or(Ok(()), |signed| file_orders::ensure_followed(node, signed, &hash))?;
        return Ok(FileAnswer { file, kept: None, leaves });
    }
    file_orders::check(node, &sent, &new)?;
    fits(node, request, &there, &hash)?;
    let kept = cluster_file::ensure_replaced(&node.file, request.text.as_bytes(), &stamp())?;
    signed.map_or(Ok(()), |signed| file_orders::ensure_followed(node, signed, &hash))?;
    Ok(FileAnswer { file, kept: Some(kept.display().to_string()), leaves })
}

fn fits(node: &Node, request: &FileRequest, there: &str, new: &str) -> Result<(), Fault> {
    // What the agent tells is the hash with its members filled in; it counts while the file is the one that it has read.
    let told = there == node.written && request.replaces == node.spec.hash();
    if told || request.replaces == there || request.replaces == new {
        return Ok(());
    }
    Err(Fault::new(Code::FileStale, "the file was meant to replace another one than this node has")
        .hint("see what differs with `quorate cluster plan`, and apply again"))
}

/// What a living member's file may not change.
fn may_replace(node: &Node, new: &Spec) -> Result<(), Fault> {
    let refused = |what: String, hint: &str| Err(Fault::new(Code::ChangeRefused, what).hint(hint));
    if new.token != node.spec.token {
        return Err(Fault::new(Code::PeerOtherCluster, "the file is of another cluster"));
    }
    if new.is_plaintext() != node.spec.is_plaintext() {
        let what = "a living cluster does not change between TLS and plaintext".to_owned();
        return refused(what, "back it up, and found another one from it");
    }
    check_agent_addresses(new)?;
    if new.external.is_some() != node.spec.external.is_some() {
        let what = "a living cluster does not change between an etcd of its own and one of others".to_owned();
        return refused(what, "begin another one, and bring the data over");
    }
    let Some(member) = new.member(node.name()) else { return Ok(()) };
    let moved = [
        ("data-dir", member.data_dir != node.member.data_dir),
        ("wal-dir", member.wal_dir != node.member.wal_dir),
        ("state-dir", Path::new(&new.state_dir_of(node.name())) != node.state_path()),
    ];
    match moved.iter().find(|(_, moved)| *moved) {
        None => Ok(()),
        Some((what, _)) => {
            let what = format!("the file gives `{}` another `{what}` while it lives", node.name());
            refused(what, "stop its agent, move the directory, change its file, and start it again")
        }
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T, Fault> + Send + 'static) -> Result<T, No> {
    match tokio::task::spawn_blocking(work).await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(fault)) => Err(no(&fault)),
        Err(_) => Err(refuse(StatusCode::SERVICE_UNAVAILABLE, Code::Internal, "it came to a halt", None)),
    }
}

pub(super) fn no(fault: &Fault) -> No {
    let status = match fault.code().exit() {
        Exit::Unreachable | Exit::Temporary | Exit::Failed => StatusCode::SERVICE_UNAVAILABLE,
        Exit::Done | Exit::CannotMeet | Exit::Waiting | Exit::ConfigInvalid | Exit::Refused | Exit::Usage => {
            StatusCode::CONFLICT
        }
    };
    let why = std::iter::successors(std::error::Error::source(fault), |cause| cause.source());
    let why = why.fold(fault.to_string(), |text, cause| format!("{text}: {cause}"));
    refuse(status, fault.code(), &why, None)
}

fn unread(rejection: &JsonRejection) -> No {
    refuse(StatusCode::BAD_REQUEST, Code::PeerRequest, &rejection.body_text(), None)
}

#[cfg(test)]
mod tests {
    use quorate_etcd_formats::membership::{ClusterId, MemberId};
    use quorate_plan::ledger::{Confirmed, ConfirmedMember, Identity, Origin};

    use super::*;

    fn member(id: u64, learner: bool) -> ConfirmedMember {
        ConfirmedMember { id: MemberId(id), name: format!("n{id}"), peer_urls: Vec::new(), learner }
    }

    #[test]
    fn variables_of_processes_are_in_no_answer() {
        let read = |text: &str| cluster_file::parse(text.as_bytes(), "c.yaml").unwrap().0;
        let before = "token: t\nplaintext: true\nmembers:\n  - {name: n1, address: 10.0.0.1}\n";
        let (env, after) = ("  a: {executable: /a, env: {PASSWORD: geheim}}\n", "agent: {state-dir: /d}\n");
        for (section, key) in [("processes:\n", "b"), ("\"processes\":\n# why\n\n", "c")] {
            let text = format!("{before}{section}{env}  {key}: {{executable: /b}}\n{after}");
            let shown = without_variables(&text, &read(&text)).unwrap();
            assert_eq!(shown, format!("{before}{after}"));
        }
        let flow = "{token: t, plaintext: true, members: [{name: n1, address: 10.0.0.1}],\n\
                    processes: {a: {executable: /a, env: {PASSWORD: geheim}}}}\n";
        let shown = without_variables(flow, &read(flow));
        assert!(shown.is_none_or(|text| !text.contains("geheim")));
        let plain = format!("{before}processes:\n  b: {{executable: /b}}\n");
        assert_eq!(without_variables(&plain, &read(&plain)), Some(plain.clone()));
    }

    #[test]
    fn the_last_voter_may_not_leave() {
        let identity = Identity { cluster: ClusterId(7), member: MemberId(1), origin: Origin::Founded };
        let list = |members: Vec<ConfirmedMember>| Ledger {
            confirmed: Some(Confirmed { at_ms: 1, members }),
            ..Ledger::default().with(Progress::Started(identity.clone()))
        };
        let leave = Some(IntentKind::Leave);
        let refused = |ledger: &Ledger| may_intend(ledger, leave).err().map(|fault| fault.code());
        assert_eq!(refused(&list(vec![member(1, false)])), Some(Code::LastMember));
        assert_eq!(refused(&list(vec![member(1, false), member(2, true)])), Some(Code::LastMember));
        assert_eq!(refused(&list(vec![member(1, false), member(2, false)])), None);
        assert_eq!(refused(&Ledger::default()), Some(Code::ChangeRefused));
        assert!(may_intend(&list(vec![member(1, false)]), None).is_ok());
    }
}
