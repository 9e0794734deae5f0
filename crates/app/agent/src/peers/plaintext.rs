//! Agents in clear text: which addresses they may have, and the token that every request to them proves. With TLS the same token proves
//! that a caller may read the state dir of an agent, as its owner.
//!
//! ```text
//!   caller reads STATE/agent.token (0600) ── nonce, HMAC(request) ──► agent on loopback
//!                                         ◄── HMAC(nonce, response) ──
//! ```
//!
//! **Invariant:** a process without access to the state dir of an agent in clear text can neither send it a request nor answer in
//! its place. The token is never sent, and an agent that takes its port makes another one: what a process received that held the
//! port before is worth nothing.

use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::to_bytes;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use quorate_etcd::aside::ensure_file;
use quorate_faults::{Code, Fault};
use quorate_host::durable::RealDisk;
use quorate_pki::token::{AgentToken, nonce};
use quorate_plan::spec::{ExposedAgent, Spec, for_member, is_loopback_url};
use reqwest::{Method, RequestBuilder};
use rustix::fs::OFlags;
use tracing::warn;
use zeroize::Zeroizing;

use super::BODY_MAX;
use super::server::refuse;

/// The token file, in the state dir of the agent that it belongs to.
const FILE: &str = "agent.token";
/// It holds 64 hexadecimal digits.
const FILE_BYTES_MAX: u64 = 256;
/// A number of the caller that is used once.
const NONCE_HEADER: &str = "quorate-nonce";
/// The proof of the token, of a request and of its response.
const PROOF_HEADER: &str = "quorate-proof";
/// How long the rest of a request that is refused may take to arrive.
const DRAIN_LIMIT: Duration = Duration::from_secs(5);

/// Refuses a cluster file whose agents other machines could reach in clear text.
pub fn check_agent_addresses(spec: &Spec) -> Result<(), Fault> {
    match spec.exposed_agents().first() {
        None => Ok(()),
        Some(ExposedAgent { key, url }) => Err(exposed(&format!("`{key}` is `{url}`: {EXPOSED}"))),
    }
}

/// Refuses token files of this machine's agents that other users may read or replace. Those that cannot be examined are skipped:
/// the state dir is closed to this user.
pub fn check_agent_tokens(spec: &Spec) -> Result<(), Fault> {
    if !spec.is_plaintext() {
        return Ok(());
    }
    spec.members.iter().try_for_each(|member| check_token_file(Path::new(&spec.state_dir_of(&member.name))))
}

const EXPOSED: &str = "other machines could control an agent in clear text";

fn exposed(what: &str) -> Fault {
    Fault::new(Code::AgentExposed, what)
        .hint("give agents in clear text an address on loopback, such as `http://127.0.0.1:2382`, or give `tls:`")
}

/// The same for one agent.
pub(crate) fn check_token_file(state: &Path) -> Result<(), Fault> {
    let path = state.join(FILE);
    match std::fs::symlink_metadata(&path) {
        Ok(file) => is_private(&path, &file, state),
        Err(_) => Ok(()),
    }
}

fn is_private(path: &Path, file: &std::fs::Metadata, state: &Path) -> Result<(), Fault> {
    let unsafe_file = |why: String| {
        Fault::new(Code::AgentTokenUnsafe, format!("cannot use the token file `{}`: {why}", path.display())).hint(
            format!("`rm {}`; the agent makes another one when it starts: `quorate explain Q1471`", path.display()),
        )
    };
    let dir = std::fs::metadata(state).map_err(|error| unsafe_file(format!("its dir cannot be examined: {error}")))?;
    let owners = [dir.uid(), rustix::process::geteuid().as_raw(), 0];
    let why = match () {
        () if !file.is_file() => "it is not a regular file".to_owned(),
        () if file.mode() & 0o077 != 0 => format!("other users may access it (mode {:04o})", file.mode() & 0o7777),
        () if !owners.contains(&file.uid()) => format!("user {} owns it, who is not the agent's", file.uid()),
        () if dir.mode() & 0o022 != 0 => {
            format!("other users may replace it (its dir has mode {:04o})", dir.mode() & 0o7777)
        }
        () => return Ok(()),
    };
    Err(unsafe_file(why))
}

/// Reads the token of an agent on this machine.
fn read(state: &Path) -> Result<AgentToken, Fault> {
    let path = state.join(FILE);
    let fail = |error: std::io::Error| {
        let what = format!("cannot read the token of an agent in clear text, `{}`", path.display());
        Fault::new(Code::AgentTokenRefused, what)
            .hint("run this as the user that the agent runs as, or as root")
            .caused_by(error)
    };
    let flags = i32::try_from((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits()).unwrap_or_default();
    let file = std::fs::File::options().read(true).custom_flags(flags).open(&path).map_err(fail)?;
    is_private(&path, &file.metadata().map_err(fail)?, state)?;
    let mut text = Zeroizing::new(String::new());
    file.take(FILE_BYTES_MAX).read_to_string(&mut text).map_err(fail)?;
    AgentToken::parse(&text).ok_or_else(|| fail(std::io::Error::other("it holds no token")))
}

/// Makes the token of an agent that has just taken its port. On a full disk the one from before is used, and without one
/// every request is refused.
pub(crate) fn renew(state: &Path) -> Result<AgentToken, Fault> {
    let token = AgentToken::random()?;
    match ensure_file(&RealDisk, &state.join(FILE), token.text().as_bytes()) {
        Ok(()) => Ok(token),
        Err(fault) => {
            warn!(code = %fault.code(), "cannot write a new agent token: {fault}");
            Ok(read(state).unwrap_or(token))
        }
    }
}

/// The token of an agent with TLS: the one that is there, else a new one. Proofs of it go over encrypted connections to that very agent, so that
/// one may hold for longer than a run; a caller that has read it is not refused because the agent has just started again.
pub(crate) fn keep(state: &Path) -> Result<AgentToken, Fault> {
    match read(state) {
        Ok(token) => Ok(token),
        Err(_) => renew(state),
    }
}

/// The same routes, for callers that prove the token.
pub(crate) fn require(token: AgentToken, router: Router) -> Router {
    router.layer(from_fn_with_state(Arc::new(token), verify))
}

/// Whether a request proves that its caller may read the state dir of this agent.
pub(super) fn proves(token: &AgentToken, request: &Request) -> bool {
    proven_nonce(token, request).is_some()
}

/// The nonce of a request that proves the token.
fn proven_nonce(token: &AgentToken, request: &Request) -> Option<String> {
    let text = |name: &str| request.headers().get(name).and_then(|value| value.to_str().ok());
    let (nonce, proof) = (text(NONCE_HEADER)?, text(PROOF_HEADER)?);
    let words = of_request(request.method().as_str(), request.uri().path(), nonce);
    token.accepts(&words, proof).then(|| nonce.to_owned())
}

async fn verify(State(token): State<Arc<AgentToken>>, request: Request, next: Next) -> Response {
    let Some(nonce) = proven_nonce(&token, &request) else {
        // As everywhere: a connection that is closed on unread bytes may lose the response.
        let _ = tokio::time::timeout(DRAIN_LIMIT, to_bytes(request.into_body(), BODY_MAX)).await;
        let why = "the request does not prove the token of this agent";
        return refuse(StatusCode::UNAUTHORIZED, Code::AgentTokenRefused, why, None).into_response();
    };
    let mut response = next.run(request).await;
    let proof = token.prove(&of_response(response.status(), &nonce));
    if let Ok(proof) = HeaderValue::try_from(proof) {
        response.headers_mut().insert(PROOF_HEADER, proof);
    }
    response
}

fn of_request<'a>(method: &'a str, path: &'a str, nonce: &'a str) -> [&'a str; 4] {
    ["quorate agent request 1", method, path, nonce]
}

fn of_response(status: StatusCode, nonce: &str) -> [&str; 3] {
    ["quorate agent response 1", if status.is_success() { "done" } else { "refused" }, nonce]
}

/// Proves to an agent of this machine that the caller may read its state dir; where it may not, the request stays as it is. With TLS the
/// response needs no proof.
pub(super) fn prove_owner(state: &Path, request: RequestBuilder, method: &Method, path: &str) -> RequestBuilder {
    let (Ok(token), Ok(nonce)) = (read(state), nonce()) else { return request };
    let proof = token.prove(&of_request(method.as_str(), path, &nonce));
    request.header(NONCE_HEADER, nonce).header(PROOF_HEADER, proof)
}

/// Where callers find the tokens of a cluster's agents; all of these run on this machine.
#[derive(Debug)]
pub(super) struct Tokens {
    /// The state dir, with `{name}` for the name of the node.
    state_dirs: String,
}

impl Tokens {
    /// `None`: with TLS there are certificates.
    pub(super) fn of(spec: &Spec) -> Option<Tokens> {
        spec.is_plaintext().then(|| Tokens { state_dirs: spec.state_dir_of("{name}") })
    }

    /// What a request to this agent has to prove.
    pub(super) fn challenge(&self, peer: &str, url: &str) -> Result<Challenge, Fault> {
        if !is_loopback_url(url) {
            return Err(exposed(&format!("the agent of `{peer}` is at `{url}`, and is not asked there: {EXPOSED}")));
        }
        if peer.contains('/') || matches!(peer, "" | "." | "..") {
            return Err(Fault::new(Code::AgentTokenRefused, format!("`{}` is no name of a node", peer.escape_debug())));
        }
        let state = PathBuf::from(for_member(&self.state_dirs, peer));
        let file = state.join(FILE);
        if std::fs::symlink_metadata(&file).is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound) {
            let why = format!("it has not written its token `{}`", file.display());
            return Err(Fault::new(
                Code::PeerSilent,
                format!("no answer from the agent of `{peer}` at `{url}`: {why}"),
            )
            .hint("start it with this release, on this machine: `quorate explain Q1472`"));
        }
        Ok(Challenge { token: read(&state)?, nonce: nonce()?, file })
    }
}

/// One request, and what proves its response.
#[derive(Debug)]
pub(super) struct Challenge {
    token: AgentToken,
    nonce: String,
    file: PathBuf,
}

impl Challenge {
    /// Adds the proof.
    pub(super) fn sign(&self, request: RequestBuilder, method: &Method, path: &str) -> RequestBuilder {
        let proof = self.token.prove(&of_request(method.as_str(), path, &self.nonce));
        request.header(NONCE_HEADER, &self.nonce).header(PROOF_HEADER, proof)
    }

    /// Checks that the agent with this very token responded.
    pub(super) fn check(&self, peer: &str, status: StatusCode, headers: &HeaderMap) -> Result<(), Fault> {
        let proof = headers.get(PROOF_HEADER).and_then(|value| value.to_str().ok()).unwrap_or_default();
        if self.token.accepts(&of_response(status, &self.nonce), proof) {
            return Ok(());
        }
        let file = self.file.display();
        Err(Fault::new(
            Code::AgentTokenRefused,
            format!("the response of `{peer}` does not prove the token in `{file}`"),
        )
        .hint("another program may listen at its address, or the agent has just started: `quorate explain Q1472`"))
    }
}
