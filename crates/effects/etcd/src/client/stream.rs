//! Opening a stream: on a connection of its own, with pings, so that neither a slow reader nor a dead server goes unnoticed.
//!
//! **Rule:** a stream has no limit in time as a whole; its opening and the wait for each message have one.

use std::time::Duration;

use futures_util::Stream;
use http::uri::PathAndQuery;
use quorate_faults::Fault;
use tonic::metadata::AsciiMetadataValue;
use tonic::{Request, Status, Streaming};
use tonic_prost::ProstCodec;

use super::call::{MAX_ANSWER_BYTES, Procedure};
use super::errors::{self, Failure};
use super::{Client, Peer};

/// How often a silent server is asked whether it lives. etcd hangs up on those who ask more often than every 5 s.
const PING_EVERY: Duration = Duration::from_secs(6);
/// How long it may take to say so. With the above, a dead server is noticed within 9 s.
const PING_LIMIT: Duration = Duration::from_secs(3);

/// An open stream of messages from one endpoint.
#[derive(Debug)]
pub(super) struct Incoming<Res> {
    procedure: Procedure,
    url: String,
    messages: Streaming<Res>,
}

impl<Res> Incoming<Res> {
    /// The next message; none at the stream's end.
    pub(super) async fn next(&mut self) -> Result<Option<Res>, Failure> {
        self.messages.message().await.map_err(|status| Failure::answered(&self.url, status))
    }

    /// The same with a limit.
    pub(super) async fn next_within(&mut self, limit: Duration) -> Result<Option<Res>, Failure> {
        match tokio::time::timeout(limit, self.next()).await {
            Ok(next) => next,
            Err(_) => Err(Failure::silent(&self.url, limit)),
        }
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    pub(super) fn fault(&self, failure: Failure) -> Fault {
        errors::fault(self.procedure, vec![failure])
    }
}

impl Client {
    /// Opens a stream at the first endpoint that takes it and waits for its first message. `refused` looks at that message:
    /// some refusals come inside it. Logs in again, once, when the token has expired.
    pub(super) async fn open<Asks, Req, Res>(
        &self,
        procedure: Procedure,
        asks: impl Fn() -> Asks,
        refused: impl Fn(&str, &Res) -> Option<Failure>,
        first_limit: Duration,
    ) -> Result<(Incoming<Res>, Res), Fault>
    where
        Asks: Stream<Item = Req> + Send + 'static,
        Req: prost::Message + 'static,
        Res: prost::Message + Default + 'static,
    {
        let mut fresh_token = !self.has_credentials();
        loop {
            match self.open_once(procedure, &asks, &refused, first_limit).await {
                Err(failures) if !fresh_token && failures.last().is_some_and(Failure::may_be_stale_token) => {
                    fresh_token = true;
                    self.log_in().await?;
                }
                opened => return opened.map_err(|failures| errors::fault(procedure, failures)),
            }
        }
    }

    async fn open_once<Asks, Req, Res>(
        &self,
        procedure: Procedure,
        asks: &impl Fn() -> Asks,
        refused: &impl Fn(&str, &Res) -> Option<Failure>,
        first_limit: Duration,
    ) -> Result<(Incoming<Res>, Res), Vec<Failure>>
    where
        Asks: Stream<Item = Req> + Send + 'static,
        Req: prost::Message + 'static,
        Res: prost::Message + Default + 'static,
    {
        let mut failures = Vec::new();
        for at in self.order() {
            let peer = &self.shared.peers[at];
            let opening = self.open_at(peer, procedure, asks(), refused);
            let opened = match tokio::time::timeout(first_limit, opening).await {
                Ok(opened) => opened,
                Err(_) => Err(Failure::silent(&peer.url, first_limit)),
            };
            match opened {
                Ok(opened) => {
                    self.prefer(at);
                    return Ok(opened);
                }
                Err(failure) => {
                    let next = failure.may_ask_another(procedure);
                    failures.push(failure);
                    if !next {
                        break;
                    }
                }
            }
        }
        Err(failures)
    }

    async fn open_at<Asks, Req, Res>(
        &self,
        peer: &Peer,
        procedure: Procedure,
        asks: Asks,
        refused: &impl Fn(&str, &Res) -> Option<Failure>,
    ) -> Result<(Incoming<Res>, Res), Failure>
    where
        Asks: Stream<Item = Req> + Send + 'static,
        Req: prost::Message + 'static,
        Res: prost::Message + Default + 'static,
    {
        let answered = |status| Failure::answered(&peer.url, status);
        let mut request = Request::new(asks);
        if let Some(token) = self.token().as_deref().and_then(|token| AsciiMetadataValue::try_from(token).ok()) {
            request.metadata_mut().insert("token", token);
        }
        // The connection is this stream's alone: what it does not read in time holds up nobody else.
        let endpoint = peer.endpoint.clone().http2_keep_alive_interval(PING_EVERY).keep_alive_timeout(PING_LIMIT);
        let channel = endpoint.connect_with_connector_lazy(peer.connector.clone());
        let mut grpc = tonic::client::Grpc::new(channel).max_decoding_message_size(MAX_ANSWER_BYTES);
        grpc.ready().await.map_err(|error| answered(Status::from_error(error.into())))?;
        let path = PathAndQuery::from_static(procedure.path);
        let answer = grpc.streaming(request, path, ProstCodec::<Req, Res>::default()).await.map_err(answered)?;
        let mut incoming = Incoming { procedure, url: peer.url.clone(), messages: answer.into_inner() };
        let first = incoming.next().await?.ok_or_else(|| Failure::ended(&peer.url))?;
        match refused(&peer.url, &first) {
            Some(failure) => Err(failure),
            None => Ok((incoming, first)),
        }
    }
}
