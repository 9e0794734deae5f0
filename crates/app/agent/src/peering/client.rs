//! Nodes that are no members: what they would be as members, when a node becomes one or ceases to be one, and its proxy.
//!
//! ```text
//!   server ── not in the file, not in the list, on record as a client ──► client ── in the file, and votes ──► server
//!                                                                          └── off the record ──► detached
//! ```
//!
//! **Invariant:** what a node is follows from what the cluster's store says of it and from the list that a quorum confirms, so it
//! comes to the same end whoever was killed meanwhile. The proxy holds the port for as long as no etcd of this node is to have it.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use quorate_etcd::client::{Client, Consistency, Settings};
use quorate_faults::{Code, Fault};
use quorate_plan::ledger::LedgerSeen;
use quorate_plan::peering::{GLUSTERD_TOKEN, LocalState, Newcomer, Role, member_of, with_member};
use quorate_plan::spec::{Member, Spec};
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::{debug, info, warn};

use super::keep::is_removed;
use super::listing::Look;
use super::place;
use super::points::point;
use super::record::{NodeRecord, Records};
use super::store::{Kept, lock, own_in};
use super::{countersign, vouch};
use crate::cluster_file;
use crate::peers::Api;
use crate::proxy::{Follow, Known};
use crate::turn::{Node, Wish, in_words, now_ms};

/// Where etcd answers clients while its node is still a client: until it votes, the proxy has the port that clients know.
pub(crate) const PASSING_PORT: u16 = 2381;
/// The last list of members, in the node's folder.
const MEMBERS: &str = "members.json";
/// Between two looks at whether the proxy is wanted.
const LOOK: Duration = Duration::from_millis(200);
/// How long members may take to confirm their list.
const LIST_LIMIT: Duration = Duration::from_secs(2);
/// How long the record may take: whoever asked waits for it.
const READ_LIMIT: Duration = Duration::from_secs(5);

/// What the node of a folder would be as a member, where it joined as a client. `text`: its cluster file.
pub(crate) fn own_member(text: &str, dir: &Path) -> Option<Member> {
    let own = own_in(dir)?;
    let edited = with_member(text, &own).ok()?;
    let (spec, _) = cluster_file::parse(edited.as_bytes(), "the file with this node").ok()?;
    spec.member(&own.name).cloned()
}

/// A member that is still a client listens elsewhere until it votes.
pub(crate) fn passing(spec: &Spec, member: Member) -> Member {
    let dir = spec.state_dir_of(&member.name);
    passing_from(Path::new(&dir), spec, member)
}

/// The same with the state dir of the node, whatever the file says of it.
pub(crate) fn passing_from(state: &Path, spec: &Spec, mut member: Member) -> Member {
    let client = place::read(state).ok().flatten().is_some_and(|local| local.role == Role::Client);
    if client && spec.member(&member.name).is_some() {
        let moved: Vec<String> = member.client_urls.iter().take(1).map(|url| with_port(url, PASSING_PORT)).collect();
        member.client_urls.clone_from(&moved);
        member.listen_client_urls = moved;
    }
    member
}

fn with_port(url: &str, port: u16) -> String {
    let url = url.trim_end_matches('/');
    match url.rsplit_once(':') {
        Some((head, old)) if old.parse::<u16>().is_ok() => format!("{head}:{port}"),
        _ => format!("{url}:{port}"),
    }
}

/// Clients, as members that they would be: for their names in certificates.
pub(crate) fn client_members(api: &Api) -> Vec<Member> {
    let members = api.peering.clients().into_iter().filter_map(|client| member_of(&api.node.text, &client).ok());
    members.collect()
}

/// Where the agent of a client is asked.
pub(super) fn agent_url(api: &Api, client: &Newcomer) -> Option<String> {
    let member = member_of(&api.node.text, client).ok()?;
    Some(api.node.spec.agent_url_of(&member).trim_end_matches('/').to_owned())
}

/// Reads the record, where this node can, and sees to it that servers vouch for it.
pub(super) async fn mind_clients(api: &Api) -> Result<(), Fault> {
    if !can_read(api) {
        return Ok(());
    }
    let look = read_record(api).await?;
    vouch::ensure_vouched(api, &look).await
}

/// Whether the record is within reach.
pub(super) fn can_read(api: &Api) -> bool {
    api.shared.readiness().1 || api.peering.role() == Some(Role::Client) && api.peering.proxy.serves()
}

/// Reads the record: everyone in it. Without an answer nobody knows who the clients are, and that is no answer.
pub(super) async fn read_clients(api: &Api) -> Result<Vec<NodeRecord>, Fault> {
    Ok(read_record(api).await?.nodes)
}

async fn read_record(api: &Api) -> Result<Look, Fault> {
    let read = async { records(api).await?.look().await };
    let read = tokio::time::timeout(READ_LIMIT, read).await;
    let look = match read {
        Ok(Ok(look)) => look,
        Ok(Err(fault)) => return Err(unread().caused_by(fault)),
        Err(_) => return Err(unread()),
    };
    let clients = look.nodes.iter().filter(|node| node.role == Role::Client);
    api.peering.set_clients(clients.map(NodeRecord::newcomer).collect());
    know_clients(api);
    vouch::note(api, &look)?;
    *lock(&api.peering.awaiting) = countersign::awaiting(api, &look);
    Ok(look)
}

fn unread() -> Fault {
    Fault::new(Code::ClientsUnread, "who the clients are cannot be read from the cluster's store")
        .hint("see that a quorum of the servers is up: `quorate peer list`; then try again")
}

/// Lets this node's agent ask the agents of clients.
pub(super) fn know_clients(api: &Api) {
    let clients = api.peering.clients();
    let urls = clients.iter().filter_map(|client| Some((client.name.clone(), agent_url(api, client)?)));
    api.peers.set_clients(urls.collect::<BTreeMap<String, String>>());
}

/// The cluster's record: through this member, or through others where this node is none.
pub(super) async fn records(api: &Api) -> Result<Records, Fault> {
    let external = api.node.spec.external.is_some();
    let none =
        api.peering.role() == Some(Role::Client) || !api.node.is_declared() || is_removed(api) || is_refused(api);
    let none = none && !external;
    match none {
        true => Records::at(&api.node.spec, api.node.name(), others(api)?).await,
        false => Records::open(&api.node).await,
    }
    .map(|records| records.holding(api.peering.held(&api.node.spec.token)))
}

/// Every other member: those of the last list, and those of the file.
fn others(api: &Api) -> Result<Settings, Fault> {
    let scheme = if api.node.spec.is_plaintext() { "http" } else { "https" };
    let own: Vec<String> = api.node.listens();
    let used = api.peering.proxy.members();
    let mut urls: Vec<String> = used.iter().map(|member| format!("{scheme}://{}", member.address)).collect();
    let declared = api.node.spec.members.iter().filter(|member| member.name != api.node.name());
    urls.extend(declared.flat_map(|member| member.client_urls.iter().take(1).cloned()));
    urls.retain(|url| !own.contains(url));
    urls.sort();
    urls.dedup();
    let mut settings = api.node.client_at(urls)?;
    settings.timeout = settings.timeout.min(LIST_LIMIT);
    Ok(settings)
}

/// Whether this node left the file, and may still be in the list of members.
pub(super) fn may_still_serve(api: &Api) -> bool {
    matches!(api.peering.role(), Some(Role::Standalone | Role::Server))
}

/// Changes the role of this node where that is about being a client. `due`: the store is worth a look. Returns whether it did.
pub(super) async fn mind_role(api: &Api, due: bool) -> Result<bool, Fault> {
    let Some(local) = api.peering.local() else { return Ok(false) };
    let declared = api.node.is_declared();
    match local.role {
        Role::Standalone | Role::Server if !declared || is_removed(api) || due && is_refused(api) => {
            be_client(api, &local).await
        }
        Role::Detached if due => be_client(api, &local).await,
        Role::Client if declared && votes(api) => {
            info!("this node votes: it is a server from here on, and etcd takes the port over in its turn");
            point("server");
            api.peering.become_(Role::Server)?;
            point("server-written");
            api.wishes.send_modify(|wishes| wishes.push(Wish::reload("a change of role")));
            Ok(true)
        }
        Role::Client if !declared && due => discharged(api, &local).await,
        _ => Ok(false),
    }
}

/// Whether the others have told this node, which was away, that it is no member any more.
fn is_refused(api: &Api) -> bool {
    let status = api.shared.status();
    status.etcd.is_none() && status.code.as_deref() == Some(Code::StartRemoved.as_str())
}

/// Whoever is out of the list, and a client by the record or by the change that goes on, is one.
async fn be_client(api: &Api, local: &LocalState) -> Result<bool, Fault> {
    let asked = async {
        let client = records(api).await?.is_client(&local.address).await?;
        Ok::<bool, Fault>(client && (is_removed(api) || is_out(api).await?))
    };
    match asked.await {
        Ok(true) => {
            info!("this node is a client from here on: its proxy takes the port over");
            point("client");
            api.peering.become_(Role::Client)?;
            point("client-written");
            api.peering.change(|kept| kept.enrolled = false)?;
            api.shared.wake();
            Ok(true)
        }
        Ok(false) => Ok(false),
        Err(fault) => {
            debug!(code = %fault.code(), "whether this node is a client is not known: {}", in_words(&fault));
            Ok(false)
        }
    }
}

/// Whether a quorum of the others confirms that this member is none any more. Ids are never given twice.
async fn is_out(api: &Api) -> Result<bool, Fault> {
    let LedgerSeen::There(ledger) = api.book.read() else { return Ok(true) };
    let Some((cluster, me)) = ledger.ids() else { return Ok(true) };
    let client = Client::connect(&others(api)?).await?;
    client.serves().await?;
    let list = client.member_list(Consistency::Linearizable).await?;
    let same = list.header.is_some_and(|header| header.cluster_id == cluster.0);
    Ok(same && list.members.iter().all(|member| member.id != me.0))
}

/// Whether this node is seen to vote.
fn votes(api: &Api) -> bool {
    let status = api.shared.status();
    let seen = status.cluster.as_ref().and_then(|seen| seen.members.iter().find(|one| one.name == api.node.name()));
    status.etcd.is_some() && seen.is_some_and(|seen| seen.role != "learner")
}

/// A client that was on record, and is not any more, is detached.
async fn discharged(api: &Api, local: &LocalState) -> Result<bool, Fault> {
    let Kept { enrolled, own, .. } = api.peering.kept();
    let asked = async {
        let records = records(api).await?;
        let look = records.look().await?;
        let busy = look.claim.as_ref().is_some_and(|claim| claim.valid().is_some());
        let there = look.nodes.iter().any(|node| node.name == api.node.name());
        let gone = !there && look.gone.iter().any(|gone| gone.name == api.node.name());
        if let Some(own) = own.filter(|_| !there && !gone && !enrolled && local.cluster == GLUSTERD_TOKEN) {
            records.enrol(&NodeRecord::new(&own, Role::Client, now_ms())).await?;
        }
        Ok::<(bool, bool, bool), Fault>((busy, there, gone))
    };
    let Ok((busy, there, gone)) = asked.await else { return Ok(false) };
    if there && !enrolled {
        api.peering.change(|kept| kept.enrolled = true)?;
    }
    // A record that is missing says nothing: nodes that are taken off have a tombstone.
    if there || !gone || busy {
        return Ok(false);
    }
    info!("this node is detached: it is off the record, and carries nothing any more");
    point("detached");
    api.peering.become_(Role::Detached)?;
    point("detached-written");
    api.shared.wake();
    Ok(true)
}

/// Keeps the proxy where this node is a client, until told to stop; the proxy itself goes on over that.
pub(crate) async fn tend_proxy(api: Api, stop: CancellationToken) {
    if api.peering.local().is_none() {
        return;
    }
    let registry = api.shared.registry();
    api.peering.proxy.register(&registry);
    let mut following: Option<DropGuard> = None;
    loop {
        let news = api.peering.news.notified();
        tokio::pin!(news);
        news.as_mut().enable();
        let wanted = is_wanted(&api);
        let at = if wanted { listen_at(&api.node).await } else { Vec::new() };
        if let Err(fault) = api.peering.proxy.listen(at) {
            warn!(code = %fault.code(), "{}", in_words(&fault));
        }
        match (wanted, following.is_some()) {
            (true, false) => following = Some(follow(&api)),
            (false, true) => following = None,
            (true, true) | (false, false) => {}
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(LOOK) => {}
            () = news => {}
        }
    }
}

/// Whether the port is the proxy's: of a client, and of a server whose etcd still answers elsewhere.
fn is_wanted(api: &Api) -> bool {
    match api.peering.role() {
        Some(Role::Client) => true,
        Some(Role::Server) => api.node.is_declared() && api.node.is_passing(),
        Some(Role::Standalone | Role::External | Role::Detached) | None => false,
    }
}

/// Where etcd of this node would listen, and loopback, which every certificate names.
async fn listen_at(node: &Node) -> Vec<SocketAddr> {
    let mut at = Vec::new();
    for url in node.listens() {
        let rest = url.split_once("://").map_or(url.as_str(), |(_, rest)| rest).trim_end_matches('/').to_owned();
        match tokio::net::lookup_host(rest.as_str()).await {
            Ok(found) => at.extend(found),
            Err(error) => debug!("`{rest}` is no address: {error}"),
        }
    }
    let all = at.iter().any(|at| at.ip().is_unspecified());
    if let Some(port) = at.first().map(SocketAddr::port).filter(|_| !all) {
        at.push(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port));
    }
    at.sort();
    at.dedup();
    at
}

fn follow(api: &Api) -> DropGuard {
    let declared = api.node.spec.members.iter().filter(|member| member.name != api.node.name());
    let declared = declared
        .filter_map(|member| Some(Known { name: member.name.clone(), url: member.client_urls.first()?.clone() }));
    let node = Arc::clone(&api.node);
    let follow =
        Follow::new(api.peering.dir().join(MEMBERS), declared.collect(), move |urls: Vec<String>| node.client_at(urls));
    let (stop, peering) = (CancellationToken::new(), Arc::clone(&api.peering));
    tokio::spawn(stop.clone().run_until_cancelled_owned(async move { follow.run(&peering.proxy).await }));
    stop.drop_guard()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_replaced_and_nothing_else() {
        assert_eq!(with_port("https://10.0.0.1:2379", 2381), "https://10.0.0.1:2381");
        assert_eq!(with_port("https://[fd00::1]:2379/", 2381), "https://[fd00::1]:2381");
    }
}
