//! Makes invitations: a join code, and for a server the second secret that goes with it.
//!
//! **Invariant:** what an invitation requires is on disk before the code is shown; the code and the secret themselves are kept nowhere.

use std::net::IpAddr;
use std::time::Duration;

use quorate_etcd_formats::hex::hex;
use quorate_faults::{Code, Fault};
use quorate_plan::certificates::is_host_name;
use quorate_plan::peering::{
    ApprovalSecret, JoinCode, LocalState, Role, SHORT_BYTES, ShortCode, TOKEN_BYTES, TTL_MAX_MS, Terms,
};
use quorate_plan::spec::duration_text;
use sha2::{Digest, Sha256};
use tracing::info;

use super::messages::{InviteAnswer, InviteRequest};
use super::pinned::fill_random;
use super::{DOOR_PORT, door};
use crate::peers::Api;
use crate::turn::now_ms;

/// How long the door may take to open: an agent that begins anew opens it again.
const DOOR_LIMIT: Duration = Duration::from_secs(8);

/// Makes a join code, and answers when whoever gets it can come.
pub(crate) async fn invite(api: &Api, request: &InviteRequest) -> Result<InviteAnswer, Fault> {
    let answer = invitation(api, request)?;
    let mut open = api.peering.door.subscribe();
    let opened = tokio::time::timeout(DOOR_LIMIT, open.wait_for(|open| *open)).await;
    match opened {
        Ok(Ok(_)) => Ok(answer),
        Ok(Err(_)) | Err(_) => Err(Fault::new(Code::ListenFailed, format!("cannot open the door at port {DOOR_PORT}"))
            .hint(format!("see who listens there with `ss -ltnp sport = :{DOOR_PORT}`, and invite again"))),
    }
}

fn refused(what: &str, hint: &str) -> Fault {
    Fault::new(Code::PeersRefused, what).hint(hint.to_owned())
}

/// As what somebody can be invited here.
fn invited_as(local: Role, wanted: Role) -> Result<Role, Fault> {
    match (local, wanted) {
        (Role::Standalone | Role::Server, Role::Server) => Ok(Role::Server),
        (Role::Standalone | Role::Server, Role::Client) => Ok(Role::Client),
        // Where etcd is somebody else's, nobody becomes a member of it.
        (Role::External, Role::Server | Role::External) => Ok(Role::External),
        (Role::Detached | Role::Client, _) => {
            Err(refused("this node is no server, and invites nobody", "invite from a server: `quorate peer list`"))
        }
        (_, role) => Err(refused(&format!("nobody can be invited as {role}"), "invite as `server` or `client`")),
    }
}

/// What the invitation requires beside its token and secret.
fn bound(request: &InviteRequest) -> Result<Terms, Fault> {
    if let Some(name) = request.for_name.as_ref().filter(|name| !is_host_name(name)) {
        let what = format!("cannot bind a code to the name `{}`", name.escape_debug());
        return Err(refused(&what, "names of nodes are host names, such as `n4`"));
    }
    let address = request.for_address.as_ref().map(|text| {
        text.parse::<IpAddr>().map_err(|_| {
            let what = format!("cannot bind a code to the address `{}`", text.escape_debug());
            refused(&what, "name an IP address, such as `10.0.0.4`; for a node with a host name, bind the name alone")
        })
    });
    Ok(Terms { name: request.for_name.clone(), address: address.transpose()?, ..Terms::default() })
}

fn random<const N: usize>() -> Result<[u8; N], Fault> {
    let mut bytes = [0; N];
    fill_random(&mut bytes)?;
    Ok(bytes)
}

fn invitation(api: &Api, request: &InviteRequest) -> Result<InviteAnswer, Fault> {
    let local = api.peering.by_hand()?;
    let role = invited_as(local.role, request.role)?;
    if request.ttl_ms == 0 || request.ttl_ms > TTL_MAX_MS {
        let most = duration_text(Duration::from_millis(TTL_MAX_MS));
        return Err(refused(&format!("a code holds for at most {most}"), "ask for less, and invite again later"));
    }
    let terms = bound(request)?;
    let (_, issuer) = door::authority(&api.node)?;
    let secret = match role.is_server() && request.secret {
        true => Some(ApprovalSecret::new(random::<SHORT_BYTES>()?)),
        false => None,
    };
    let short = if request.short { Some(ShortCode::new(random::<SHORT_BYTES>()?)) } else { None };
    let token = match &short {
        Some(short) => short.token(),
        None => random::<TOKEN_BYTES>()?,
    };
    let now = now_ms();
    let expires_ms = now.saturating_add(request.ttl_ms);
    let address = door_address(&local, request.address.as_ref());
    let code = short.as_ref().map(ShortCode::encode).unwrap_or_else(|| {
        let (cluster, inviter, name) = (local.cluster.clone(), local.name.clone(), terms.name.clone());
        let pin = Sha256::digest(&issuer.der).into();
        JoinCode { address: address.clone(), cluster, inviter, role, token, pin, expires_ms, name }.encode()
    });
    let kept = Terms {
        secret: secret.as_ref().map(ApprovalSecret::hash),
        key: short.as_ref().map(|short| hex(&short.key())),
        ..terms.clone()
    };
    api.peering.change(|all| all.invitations.add_with(&token, role, kept, expires_ms, now))?;
    info!("invited a {role} for {}", duration_text(Duration::from_millis(request.ttl_ms)));
    Ok(InviteAnswer {
        code,
        secret: secret.as_ref().map(ApprovalSecret::encode),
        expires_ms,
        address: Some(address),
        for_name: terms.name,
        for_address: terms.address.map(|address| address.to_string()),
        short: request.short,
    })
}

/// Where whoever is invited reaches this node.
fn door_address(local: &LocalState, wanted: Option<&String>) -> String {
    let host = wanted.unwrap_or(&local.address);
    match host.contains(':') && !host.starts_with('[') {
        true => format!("[{host}]:{DOOR_PORT}"),
        false => format!("{host}:{DOOR_PORT}"),
    }
}
