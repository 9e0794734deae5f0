//! The other way round: a node waits to be taken in, shows a code, and is handed an invitation by whoever was told that code.
//!
//! **Invariant:** a probe brings nothing but a join code. What the waiting node does with it is the join of `join.rs`, with all
//! checks of both sides; so there is one way into a cluster.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::extract::rejection::JsonRejection;
use axum::extract::{ConnectInfo, DefaultBodyLimit, State};
use axum::http::StatusCode;
use axum::routing::post;
use axum::{Json, Router};
use quorate_etcd::aside::ensure_file;
use quorate_etcd_formats::hex::hex;
use quorate_faults::{Code, Fault};
use quorate_host::durable::RealDisk;
use quorate_host::state::StateDir;
use quorate_pki::{Authority, NodeNames, read_certificates};
use quorate_plan::certificates::{Role as Certified, pem};
use quorate_plan::peering::{ApprovalSecret, Invitations, JoinCode, Role, Strikes, TOKEN_BYTES, TTL_MAX_MS, token_of};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::DOOR_PORT;
use super::door::{Away, away};
use super::facts::own_address;
use super::join::{JoinSettings, Joined, join};
use super::messages::Turn;
use super::pinned::{self, fill_random};
use super::place::{Place, checked, find, hostname};
use super::standalone::ensure_signed;
use super::store::lock;
use crate::serve::{self, Address, Peer};
use crate::turn::now_ms;

/// The one path.
const PROBE: &str = "/v1/probe";
/// A request holds one code.
const BODY_MAX: usize = 16 << 10;
/// Between two looks whether a second server has approved.
const AGAIN: Duration = Duration::from_secs(1);
/// The token of the authorities that are made for the wait alone.
const WAITING: &str = "probe";

/// How to wait.
#[derive(Debug, Clone)]
pub struct AcceptSettings {
    /// Where state is kept.
    pub state_dir: PathBuf,
    /// The node's name; by default the machine's.
    pub name: Option<String>,
    /// Where others reach it.
    pub address: Option<String>,
    /// Where the data will lie.
    pub data_dir: PathBuf,
    /// The etcd program, if not the one on the PATH.
    pub etcd_binary: Option<PathBuf>,
}

/// Brings an invitation.
#[derive(Clone, Serialize, Deserialize)]
struct Probe {
    /// The token of the code that the waiting node shows, in hex.
    token: String,
    /// A join code.
    code: String,
    /// The second secret that goes with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    secret: Option<String>,
}

/// It was taken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Probed {
    /// The node.
    pub name: String,
    /// The cluster that it belongs to now.
    pub cluster: String,
}

/// Hands an invitation to a node that waits. `shown`: the code that it shows; `address`: where it is; `invited`: the code and the secret.
/// The operator who does this is on a server, and has named the node by the code that it shows: that is its approval.
pub async fn probe(mut shown: JoinCode, address: &str, invited: (&str, Option<&str>)) -> Result<Probed, Fault> {
    address.clone_into(&mut shown.address);
    let (token, (code, secret)) = (hex(&shown.token), invited);
    let request = || Probe { token: token.clone(), code: code.to_owned(), secret: secret.map(str::to_owned) };
    pinned::ask(&shown, PROBE, request).await
}

struct Waiting {
    settings: AcceptSettings,
    name: String,
    address: String,
    invitations: Invitations,
    strikes: Mutex<Strikes>,
    joined: watch::Sender<Option<Joined>>,
    one: tokio::sync::Mutex<()>,
}

/// Waits to be taken in. `show` gets the code. A node that belongs to a cluster does not wait.
pub async fn accept_probe(settings: AcceptSettings, show: impl FnOnce(&str)) -> Result<Place, Fault> {
    let known = find(&settings.state_dir, settings.name.as_deref())?;
    if let Some((place, _)) = known.filter(|(_, local)| local.role != Role::Detached) {
        return Ok(place);
    }
    let name = match &settings.name {
        Some(name) => checked(name)?.to_owned(),
        None => hostname()?,
    };
    let unknown =
        || Fault::new(Code::Usage, "it is not known where others reach this node").hint("name it: `--listen`");
    let address =
        settings.address.clone().or_else(|| own_address(None).map(|ip| ip.to_string())).ok_or_else(unknown)?;
    let (bound, pin) = listen(&settings, &name, &address).await?;
    let mut token = [0_u8; TOKEN_BYTES];
    fill_random(&mut token)?;
    let expires_ms = now_ms().saturating_add(TTL_MAX_MS);
    let mut invitations = Invitations::default();
    invitations.add(&token, Role::Server, expires_ms, now_ms());
    let host = if address.contains(':') { format!("[{address}]") } else { address.clone() };
    let (cluster, inviter) = (WAITING.to_owned(), name.clone());
    let at = format!("{host}:{DOOR_PORT}");
    let code = JoinCode { address: at, cluster, inviter, role: Role::Server, token, pin, expires_ms, name: None };
    let (joined, mut told) = watch::channel(None);
    let (strikes, one) = (Mutex::default(), tokio::sync::Mutex::default());
    let waiting = Arc::new(Waiting { settings, name, address, invitations, strikes, joined, one });
    let router = Router::new().route(PROBE, post(taken)).fallback(|| async { StatusCode::NOT_FOUND });
    let router = router.layer(DefaultBodyLimit::max(BODY_MAX)).with_state(waiting);
    let stop = CancellationToken::new();
    let served = tokio::spawn(bound.serve(router, stop.clone()));
    show(&code.encode());
    let place = match told.wait_for(Option::is_some).await {
        Ok(joined) => joined.as_ref().map(|joined| joined.place.clone()),
        Err(_) => None,
    };
    // The answer is still to be heard.
    stop.cancel();
    let _ = served.await;
    place.ok_or_else(|| Fault::new(Code::Internal, "waiting for a probe came to a halt"))
}

/// Listens with a certificate of its own, whose authority the code pins.
async fn listen(settings: &AcceptSettings, name: &str, address: &str) -> Result<(serve::Bound, [u8; 32]), Fault> {
    let place = Place { state_dir: settings.state_dir.clone(), name: name.to_owned() };
    let state = StateDir::open(&place.dir())?;
    let lock = state.lock()?;
    let dir = place.dir().join("probe");
    ensure_signed(&dir, WAITING, &NodeNames::new(WAITING, name, [address])?)?;
    drop(lock);
    let missing = || Fault::new(Code::CaMissing, format!("there are no certificates in `{}`", dir.display()));
    let read = |file: String| read_certificates(&dir.join(file))?.into_iter().next().ok_or_else(missing);
    let (leaf, issuer) = (read(Certified::Agent.cert_file())?, read(Authority::Agent.cert_file())?);
    let chain = dir.join("door.crt");
    ensure_file(&RealDisk, &chain, format!("{}{}", pem(&leaf.der), pem(&issuer.der)).as_bytes())?;
    let key = dir.join(Certified::Agent.key_file());
    let tls = serve::TlsFiles { cert: chain, key, client_ca: None, operators: None };
    let bound =
        serve::bind(&Address::parse(&format!("https://0.0.0.0:{DOOR_PORT}"), Some(tls))?.of_both_kinds()).await?;
    Ok((bound, Sha256::digest(&issuer.der).into()))
}

async fn taken(
    State(waiting): State<Arc<Waiting>>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    body: Result<Json<Probe>, JsonRejection>,
) -> Result<Json<Probed>, Away> {
    let (from, now) = (peer.from.ip().to_canonical().to_string(), now_ms());
    if !lock(&waiting.strikes).is_heard(&from, now) {
        return Err(away(StatusCode::TOO_MANY_REQUESTS, Code::JoinTooOften, "too many wrong tokens from this address"));
    }
    let probe = body.ok().map(|Json(probe)| probe);
    let token = probe.as_ref().and_then(|probe| token_of(&probe.token)).unwrap_or_default();
    let Some(probe) = probe.filter(|_| waiting.invitations.find(&token, None, now).is_ok()) else {
        lock(&waiting.strikes).note(&from, now);
        return Err(away(StatusCode::FORBIDDEN, Code::JoinTurnedAway, "this token lets nobody in"));
    };
    let _one = waiting.one.lock().await;
    if let Some(joined) = waiting.joined.borrow().as_ref() {
        return Ok(Json(Probed { name: waiting.name.clone(), cluster: joined.local.cluster.clone() }));
    }
    let invalid = |error: quorate_plan::peering::CodeError| Away::from(error.fault());
    let AcceptSettings { state_dir, data_dir, etcd_binary, .. } = waiting.settings.clone();
    let settings = JoinSettings {
        code: JoinCode::decode(&probe.code).map_err(invalid)?,
        secret: probe.secret.as_deref().map(ApprovalSecret::read).transpose().map_err(invalid)?,
        state_dir,
        name: Some(waiting.name.clone()),
        address: Some(waiting.address.clone()),
        data_dir,
        etcd_binary,
    };
    info!("probed from {from}: joining");
    match join(&settings, |_| false).await {
        Ok(joined) => {
            let cluster = joined.local.cluster.clone();
            waiting.joined.send_replace(Some(joined));
            Ok(Json(Probed { name: waiting.name.clone(), cluster }))
        }
        Err(fault) => {
            if fault.code() == Code::ApprovalAwaited {
                tokio::spawn(join_once_approved(Arc::clone(&waiting), settings));
            }
            let (code, text) = (fault.code().as_str().to_owned(), fault.to_string());
            let mut lines = text.lines().map(|line| line.trim_start_matches([' ', '-']).to_owned());
            let why = lines.next().unwrap_or_default();
            Err(Away(StatusCode::CONFLICT, Turn { code, why, reasons: lines.collect() }))
        }
    }
}

/// Goes on with a join that waits for the word of a second server.
async fn join_once_approved(waiting: Arc<Waiting>, settings: JoinSettings) {
    let _one = waiting.one.lock().await;
    while waiting.joined.borrow().is_none() && now_ms() < settings.code.expires_ms {
        tokio::time::sleep(AGAIN).await;
        match join(&settings, |_| false).await {
            Ok(joined) => drop(waiting.joined.send_replace(Some(joined))),
            Err(fault) if fault.code() == Code::ApprovalAwaited => {}
            Err(fault) => {
                warn!(code = %fault.code(), "did not join: {}", crate::turn::in_words(&fault));
                return;
            }
        }
    }
}
