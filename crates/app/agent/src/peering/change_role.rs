//! Gives a node another role: a server becomes a client, a client a server.
//!
//! **Rule:** every check comes before the first change; then it is one change of the cluster file like any other, which the
//! agents carry out. Nobody changes its own role, since somebody has to see it through.

use std::path::Path;
use std::time::Duration;

use quorate_faults::{Code, Fault};
use quorate_plan::certificates::host_of;
use quorate_plan::peering::{
    API_VERSIONS, Kind, Newcomer, Role, Side, objections, with_member, without_member, workload,
};

use super::facts::{Guest, Ports, declared_state, guest};
use super::keep::{busy, start, take_back, unknown};
use super::messages::{OperationShown, RoleRequest, VetoAnswer, VetoRequest};
use super::pinned::refusal;
use super::show::operation_shown;
use super::{PASSING_PORT, TO_CLIENT, TO_SERVER, VETO, client, keys, veto};
use crate::cluster_file;
use crate::peers::{Api, PeerError};
use crate::turn::{Asked, may_remove, now_ms};

/// A newcomer's time, and as much again for what it is to let go of, but no more than this.
const MORE: Duration = Duration::from_secs(60);

/// Begins it, after every check.
pub(crate) async fn set_role(api: &Api, request: &RoleRequest) -> Result<OperationShown, Fault> {
    let local = api.peering.by_hand()?;
    let _one = api.peering.deciding.lock().await;
    let name = &request.name;
    if !matches!(local.role, Role::Standalone | Role::Server) {
        return Err(refused("this node is no server, and changes nobody's role", "ask a server: `quorate peer list`"));
    }
    if api.node.spec.external.is_some() {
        return Err(refused("etcd is run by others here, and nobody has a role in it", "see `quorate peer list`"));
    }
    if let Some(active) = api.peering.kept().active() {
        let to = match active.kind {
            Kind::ToClient(_) => Some(Role::Client),
            Kind::ToServer(_) => Some(Role::Server),
            _ => None,
        };
        return match to {
            Some(to) if active.kind.name() == name && to == request.role => Ok(operation_shown(api, active)),
            // What it is now was asked for: it stays that.
            Some(_) if active.kind.name() == name => take_back(api, active),
            _ => Err(busy(active)),
        };
    }
    if name == api.node.name() {
        let hint = format!("ask another server: `quorate peer set-role {name} {}` there", request.role);
        return Err(refused("a node does not change its own role", &hint));
    }
    let is_server = api.node.spec.member(name).is_some();
    if !is_server {
        client::read_clients(api).await?;
    }
    let is_client = api.peering.clients().into_iter().find(|client| client.name == *name);
    match (request.role, is_server, is_client) {
        (_, false, None) => Err(unknown(name)),
        (Role::Client, true, _) => to_client(api, name).await,
        (Role::Server, false, Some(client)) => to_server(api, client).await,
        (Role::Client | Role::Server, ..) => {
            Err(refused(&format!("`{name}` is a {} already", request.role), "see `quorate peer list`"))
        }
        (role, ..) => Err(refused(&format!("nobody can be made {role}"), "say `client` or `server`")),
    }
}

async fn to_client(api: &Api, name: &str) -> Result<OperationShown, Fault> {
    let spec = &api.node.spec;
    if spec.members.len() == 1 {
        return Err(Fault::new(
            Code::LastMember,
            "the last server stays one: a client needs somebody to be a client of",
        )
        .hint("invite another server first: `quorate peer invite`"));
    }
    let member = spec.member(name).ok_or_else(|| unknown(name))?;
    let address = member.peer_urls.first().and_then(|url| host_of(url)).unwrap_or_default().to_owned();
    let data_dir = cluster_file::declared_path(Path::new(&member.data_dir))?;
    let node = Newcomer { name: name.to_owned(), address, data_dir };
    if let Some(why) = workload(spec, name) {
        return Err(Fault::new(Code::DetachVetoed, format!("`{name}` is no node without work: {why}"))
            .hint("nothing was changed; see to it first"));
    }
    ask(api, TO_CLIENT, name).await?;
    may_remove(&api.node, name).await?;
    keys::ensure_kept(api, name).await?;
    let text = without_member(&api.node.text, name).map_err(|error| error.fault())?;
    cluster_file::parse(text.as_bytes(), "the file without the node")?;
    start(api, Kind::ToClient(node), text, limit_ms(api)).await
}

async fn to_server(api: &Api, node: Newcomer) -> Result<OperationShown, Fault> {
    let spec = &api.node.spec;
    let begun = now_ms();
    let side = ask(api, TO_SERVER, &node.name).await?;
    let side = side.ok_or_else(|| {
        Fault::new(Code::RoleUnanswered, format!("`{}` does not say what it has to be a server with", node.name))
            .hint("bring its agent to the same version")
    })?;
    let host = Side {
        api: API_VERSIONS,
        etcd: api.shared.status().etcd.and_then(|etcd| etcd.version),
        // It looked at its clock at some moment since it was asked.
        now_ms: side.now_ms.clamp(begun, now_ms().max(begun)),
        cluster: Some(spec.token.clone()),
        state_dir: declared_state(spec),
        taken: Vec::new(),
        unfit: Vec::new(),
        fsync_ms: Some(0),
        veto: None,
    };
    let found = objections(&host, spec, &side, &node);
    if !found.is_empty() {
        return Err(refusal(Code::RoleObjections, &format!("`{}` cannot be a server", node.name), &found));
    }
    let text = with_member(&api.node.text, &node).map_err(|error| error.fault())?;
    cluster_file::parse(text.as_bytes(), "the file with the node")?;
    start(api, Kind::ToServer(node), text, limit_ms(api)).await
}

fn limit_ms(api: &Api) -> u64 {
    let join = api.node.spec.maintenance.join_timeout;
    let limit = join.saturating_add(join.min(MORE));
    u64::try_from(limit.as_millis()).unwrap_or(u64::MAX)
}

/// Asks here and there whether something objects, and what the node has.
async fn ask(api: &Api, what: &str, name: &str) -> Result<Option<Side>, Fault> {
    let objects = |place: &str, why: &str| {
        Fault::new(Code::DetachVetoed, format!("something that runs on {place} objects: {why}"))
            .hint("nothing was changed; see to it there first")
    };
    if let Some(why) = veto(api.peering.dir(), what, name).await {
        return Err(objects("this node", &why));
    }
    let asked = VetoRequest { what: what.to_owned(), name: name.to_owned() };
    let answer: Result<VetoAnswer, PeerError> = api.peers.order(name, VETO, &asked).await;
    match answer {
        Ok(VetoAnswer { objection: None, side }) => Ok(side),
        Ok(VetoAnswer { objection: Some(why), .. }) => Err(objects(&format!("`{name}`"), &why)),
        Err(error) => Err(Fault::new(Code::RoleUnanswered, format!("`{name}` does not answer, and keeps its role"))
            .hint("bring its agent back; a node that is gone for good is detached with `--force`")
            .caused_by(error.fault(name))),
    }
}

/// The answer of the node that it is about.
pub(crate) async fn answer_veto(api: &Api, request: &VetoRequest) -> VetoAnswer {
    let VetoRequest { what, name } = request;
    let objection = veto(api.node.state_path(), what, name).await;
    let side = if what == TO_SERVER { own_side(api).await } else { None };
    VetoAnswer { objection, side }
}

/// What this client has to be a server with. Its own agent and its proxy hold the other ports.
async fn own_side(api: &Api) -> Option<Side> {
    let (node, address) = (std::sync::Arc::clone(&api.node), api.peering.local()?.address);
    let looked = tokio::task::spawn_blocking(move || {
        let state_dir = node.spec.agent.state_dir.clone();
        let asked = Asked::find(node.spec.agent.etcd_binary.as_deref().map(Path::new));
        let side = guest(Guest {
            address: &address,
            data_dir: Path::new(&node.member.data_dir),
            state_dir: Path::new(&state_dir),
            etcd: asked.map(|asked| asked.version().to_owned()),
            is_member: true,
            cluster: None,
            veto: None,
        });
        let Ports { mut taken, unfit } = Ports::look(&address, &[2380, PASSING_PORT]);
        let data = node.target.data_dir();
        if data.join("member").exists() {
            taken.push(format!("{} (data of etcd)", data.display()));
        }
        // Where it cannot be a folder, nothing can be written.
        let fsync_ms = side.fsync_ms.filter(|_| data.is_dir() || !data.exists());
        Side { taken, unfit, fsync_ms, ..side }
    });
    looked.await.ok()
}

fn refused(what: &str, hint: &str) -> Fault {
    Fault::new(Code::PeersRefused, what.to_owned()).hint(hint.to_owned())
}
