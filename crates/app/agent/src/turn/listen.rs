//! Answers questions: health and metrics for anyone, status and stop for whoever may enter the state dir.
//!
//! **Invariant:** whoever may only ask for health learns the phase and nothing else.

use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{ConnectInfo, Request, State};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use quorate_faults::{Code, Fault};
use quorate_host::state::StateDir;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::poll::Poll;
use super::publish::Shared;
use super::status::Status;
use crate::serve::{Peer, bind_unix};

/// The socket's name in the state dir.
const SOCKET: &str = "agent.sock";
/// How long an agent may take to answer: from memory, and after a poll of the members.
const PATIENCE: Duration = Duration::from_secs(5);
/// Answers are a few kilobytes.
const ANSWER_MAX: u64 = 1 << 20;

/// A request to end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wish {
    /// Who wants it.
    pub asked_by: String,
    /// Whether etcd goes on.
    pub keep_running: bool,
    /// Whether the agent goes on as well, with the cluster file as it is now.
    #[serde(skip)]
    pub reload: bool,
}

impl Wish {
    /// To go on with another cluster file.
    pub(crate) fn reload(asked_by: &str) -> Wish {
        Wish { asked_by: asked_by.to_owned(), keep_running: true, reload: true }
    }
}

/// Everything that was wished, in its order.
pub(crate) type Wishes = watch::Sender<Vec<Wish>>;

/// `/readyz` and `/livez` for anyone, and `/metrics`: for this machine, for who shows a certificate, or for anyone where that is
/// asked for.
pub(super) fn health(shared: &Arc<Shared>, open_metrics: bool) -> Router {
    async fn readyz(State(shared): State<Arc<Shared>>) -> (StatusCode, Json<Value>) {
        let (phase, ready) = shared.readiness();
        let postgres = shared.postgres();
        // A host is ready when all of it is.
        let ready = ready && postgres.as_ref().is_none_or(|now| now.ready);
        let code = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        let mut body = json!({ "phase": phase.word() });
        if let Some(now) = postgres {
            body["postgres"] = json!(now.door);
        }
        // Whoever balances load has to know that there is no member behind it.
        if shared.is_client() {
            body["role"] = json!("client");
        }
        (code, Json(body))
    }
    let live = || async { Json(json!({ "live": true })) };
    let health = Router::new().route("/readyz", get(readyz)).route("/livez", get(live));
    let metrics = shared.backups.router().route_layer(from_fn_with_state(open_metrics, may_measure));
    health.with_state(Arc::clone(shared)).merge(metrics)
}

async fn may_measure(
    State(open): State<bool>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    request: Request,
    next: Next,
) -> Response {
    match open || peer.certified || peer.is_loopback() {
        true => next.run(request).await,
        false => StatusCode::FORBIDDEN.into_response(),
    }
}

#[derive(Clone)]
struct Api {
    shared: Arc<Shared>,
    poll: Option<Poll>,
    wishes: Wishes,
}

/// Serves `/status` and `/stop` on a socket in the state dir.
pub(super) fn api(
    state: &StateDir,
    shared: &Arc<Shared>,
    poll: Option<Poll>,
    wishes: &Wishes,
    stop: CancellationToken,
) -> Result<(), Fault> {
    async fn status(State(api): State<Api>) -> Json<Status> {
        if let Some(poll) = &api.poll {
            poll.refresh().await;
        }
        Json(api.shared.status())
    }
    async fn end(State(api): State<Api>, Json(wish): Json<Wish>) -> Json<Status> {
        api.wishes.send_modify(|wishes| wishes.push(wish));
        Json(api.shared.status())
    }
    let fail = |error| Fault::io(format!("cannot listen in `{}`", state.path().display()), error);
    match rustix::fs::unlink(state.path().join(SOCKET)) {
        Ok(()) | Err(rustix::io::Errno::NOENT) => {}
        Err(errno) => return Err(fail(errno.into())),
    }
    let bound = through(state.path(), bind_unix).map_err(fail)?;
    let mode = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(state.path().join(SOCKET), mode).map_err(fail)?;
    let api = Api { shared: Arc::clone(shared), poll, wishes: wishes.clone() };
    let router = Router::new().route("/status", get(status)).route("/stop", post(end)).with_state(api);
    tokio::spawn(bound.serve(router, stop));
    Ok(())
}

/// Asks the agent of a state dir for its status. `None`: no agent listens there.
pub fn ask_status(state: &Path) -> Result<Option<Status>, Fault> {
    ask(state, "GET", "/status", &[])
}

/// Asks the agent of a state dir to end. `None`: no agent listens there.
pub fn ask_stop(state: &Path, wish: &Wish) -> Result<Option<Status>, Fault> {
    let body = serde_json::to_vec(wish)
        .map_err(|error| Fault::new(Code::Internal, "cannot write a request").caused_by(error))?;
    ask(state, "POST", "/stop", &body)
}

fn ask(state: &Path, method: &str, path: &str, body: &[u8]) -> Result<Option<Status>, Fault> {
    let silent = |cause: Box<dyn std::error::Error + Send + Sync>| {
        Fault::new(Code::NoAgent, format!("the agent of `{}` does not answer", state.display()))
            .hint("use the user that it runs as; see `quorate explain Q0973`")
            .caused_by(cause)
    };
    let stream = match through(state, |path| UnixStream::connect(path)) {
        Ok(stream) => stream,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
            return Ok(None);
        }
        Err(error) => return Err(silent(error.into())),
    };
    let answer = exchange(&stream, method, path, body).map_err(|error| silent(error.into()))?;
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n");
    let (head, content) = end.and_then(|end| answer.split_at_checked(end + 4)).unwrap_or((&answer, &[]));
    if !head.starts_with(b"HTTP/1.1 200 ") {
        let line = String::from_utf8_lossy(head).lines().next().unwrap_or_default().to_owned();
        return Err(silent(format!("it said `{line}`").into()));
    }
    serde_json::from_slice(content).map(Some).map_err(|error| silent(error.into()))
}

fn exchange(mut stream: &UnixStream, method: &str, path: &str, body: &[u8]) -> io::Result<Vec<u8>> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: agent\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body)?;
    let mut answer = Vec::new();
    stream.take(ANSWER_MAX).read_to_end(&mut answer)?;
    Ok(answer)
}

/// Through a descriptor of the directory, because a socket's name may only have 107 bytes.
fn through<T>(dir: &Path, with: impl FnOnce(&Path) -> io::Result<T>) -> io::Result<T> {
    let dir = std::fs::File::open(dir)?;
    with(Path::new(&format!("/proc/self/fd/{}/{SOCKET}", dir.as_raw_fd())))
}
