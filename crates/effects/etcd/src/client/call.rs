//! One call: which endpoint, how long, and when another endpoint may be asked.
//!
//! **Rule:** only a read, or a request that never left this machine, or one that etcd turned down before looking at it,
//! is sent again.

use std::error::Error;
use std::time::Duration;

use futures_util::stream;
use http::uri::PathAndQuery;
use quorate_faults::Fault;
use tonic::metadata::AsciiMetadataValue;
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

use super::errors::{self, Failure};
use super::{Client, Peer};

/// Answers may be as large as etcd's request limit allows many times over; beyond this something is wrong.
pub(super) const MAX_ANSWER_BYTES: usize = 256 << 20;

/// One remote procedure.
#[derive(Debug, Clone, Copy)]
pub(super) struct Procedure {
    /// `/etcdserverpb.KV/Range`.
    pub(super) path: &'static str,
    /// What it does, for error messages: "read", "list members".
    pub(super) attempt: &'static str,
    /// Whether it changes nothing, so that it may be asked again.
    pub(super) read_only: bool,
    /// Whether etcd takes it as a stream of requests; ours holds one, and its first answer is the answer.
    pub(super) streamed: bool,
}

impl Procedure {
    pub(super) const fn read(path: &'static str, attempt: &'static str) -> Procedure {
        Procedure { path, attempt, read_only: true, streamed: false }
    }

    pub(super) const fn write(path: &'static str, attempt: &'static str) -> Procedure {
        Procedure { path, attempt, read_only: false, streamed: false }
    }

    /// A stream of one request and one answer, which does the same when it is asked again.
    pub(super) const fn exchange(path: &'static str, attempt: &'static str) -> Procedure {
        Procedure { path, attempt, read_only: true, streamed: true }
    }
}

impl Client {
    /// Sends a request to the first endpoint that takes it. Logs in again, once, when the token has expired.
    pub(super) async fn call<Req, Res>(&self, procedure: Procedure, request: Req) -> Result<Res, Fault>
    where
        Req: prost::Message + Clone + 'static,
        Res: prost::Message + Default + 'static,
    {
        match self.call_with_token(procedure, request.clone()).await {
            Err(failures) if self.has_credentials() && failures.last().is_some_and(Failure::is_stale_token) => {
                self.log_in().await?;
                self.call_with_token(procedure, request).await.map_err(|failures| errors::fault(procedure, failures))
            }
            answer => answer.map_err(|failures| errors::fault(procedure, failures)),
        }
    }

    /// Tries the endpoints in turn; the failures are those of all that were tried, in that order.
    pub(super) async fn call_with_token<Req, Res>(
        &self,
        procedure: Procedure,
        request: Req,
    ) -> Result<Res, Vec<Failure>>
    where
        Req: prost::Message + Clone + 'static,
        Res: prost::Message + Default + 'static,
    {
        let mut failures = Vec::new();
        for at in self.order() {
            let peer = &self.shared.peers[at];
            let mut answer = self.ask(peer, procedure, request.clone()).await;
            // A connection that ended unnoticed says nothing about the endpoint; a fresh one will tell.
            if answer.as_ref().is_err_and(|failure| failure.may_ask_again(procedure)) {
                answer = self.ask(peer, procedure, request.clone()).await;
            }
            let failure = match answer {
                Ok(answer) => {
                    self.prefer(at);
                    return Ok(answer);
                }
                Err(failure) => failure,
            };
            let next = failure.may_ask_another(procedure);
            failures.push(failure);
            if !next {
                break;
            }
        }
        Err(failures)
    }

    /// Asks one endpoint once.
    async fn ask<Req, Res>(&self, peer: &Peer, procedure: Procedure, message: Req) -> Result<Res, Failure>
    where
        Req: prost::Message + 'static,
        Res: prost::Message + Default + 'static,
    {
        let limit = self.timeout();
        let mut grpc = tonic::client::Grpc::new(peer.channel.clone()).max_decoding_message_size(MAX_ANSWER_BYTES);
        let path = PathAndQuery::from_static(procedure.path);
        let codec = ProstCodec::<Req, Res>::default();
        let exchange = async {
            grpc.ready().await.map_err(|error| Status::from_error(error.into()))?;
            if !procedure.streamed {
                return grpc.unary(self.dressed(message, limit), path, codec).await.map(Response::into_inner);
            }
            let asks = self.dressed(stream::iter([message]), limit);
            let answers = grpc.streaming(asks, path, codec).await?;
            let first = answers.into_inner().message().await?;
            first.ok_or_else(|| Status::unavailable("the stream ended without an answer"))
        };
        match tokio::time::timeout(limit, exchange).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(status)) => Err(Failure::answered(&peer.url, status)),
            Err(_) => Err(Failure::silent(&peer.url, limit)),
        }
    }

    /// A request with our token and its limit.
    fn dressed<Body>(&self, body: Body, limit: Duration) -> Request<Body> {
        let mut request = Request::new(body);
        // The server is told the limit as well, so that it stops working on what nobody waits for.
        request.set_timeout(limit);
        if let Some(token) = self.token().as_deref().and_then(|token| AsciiMetadataValue::try_from(token).ok()) {
            request.metadata_mut().insert("token", token);
        }
        request
    }
}

/// Whether the connection itself failed, so that the request was never sent.
pub(super) fn never_sent(status: &Status) -> bool {
    let mut next = status.source();
    while let Some(error) = next {
        if error.is::<tonic::ConnectError>() {
            return true;
        }
        next = error.source();
    }
    false
}
