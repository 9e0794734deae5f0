//! Asks other agents.
//!
//! **Rule:** every question has a limit in time and in size, certificates are read again when their files change, and a no is
//! told apart from silence.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use quorate_etcd::ledger::observe_ledger;
use quorate_faults::{Code, Fault};
use quorate_plan::ledger::{Generation, LedgerSeen};
use quorate_plan::spec::{Member, Spec, TlsFiles, for_member};
use reqwest::{Client, Method, RequestBuilder};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::task::JoinSet;

use super::http::{Files, Stamp, build, stamps};
use super::messages::{
    FileAnswer, FileRequest, FileTrial, FileTried, HandOverAnswer, IntentAnswer, IntentRequest, NodeAnswer, PlanAnswer,
    Refusal, StartedAnswer, StartedRequest,
};
use super::operator_files::OperatorFiles;
use super::plaintext::{Challenge, Tokens, prove_owner};
use super::{
    BODY_MAX, CLUSTER_HEADER, FROM_HEADER, GENERATION_HEADER, INSTANCE_HEADER, NO_GENERATION, OPERATOR, STATE_HEADER,
    TRIAL, UNNUMBERED,
};
use crate::turn::Status;

/// How long a question may take, of agents that answer from memory.
const ASK_LIMIT: Duration = Duration::from_secs(3);
/// How long a request may take that the other side writes down durably.
const TELL_LIMIT: Duration = Duration::from_secs(10);

/// Why there is no answer.
#[derive(Debug)]
pub enum PeerError {
    /// It did not answer, or not in a way that can be understood.
    Silent(Fault),
    /// It knows a newer generation of the cluster.
    Newer(Generation),
    /// It said no.
    Refused(Fault),
}

impl std::fmt::Display for PeerError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            PeerError::Silent(fault) | PeerError::Refused(fault) => fault.fmt(f),
            PeerError::Newer(newer) => {
                write!(f, "it knows generation {} of this cluster, which is newer", newer.number)
            }
        }
    }
}

impl PeerError {
    /// The same as a fault.
    pub fn fault(self, peer: &str) -> Fault {
        match self {
            PeerError::Silent(fault) | PeerError::Refused(fault) => fault,
            PeerError::Newer(newer) => {
                let attempt = format!("`{peer}` knows generation {} of this cluster, which is newer", newer.number);
                Fault::new(Code::PeerOutdated, attempt).hint("see `quorate explain Q0977`")
            }
        }
    }
}

/// The agents of a cluster, and how to reach them.
#[derive(Debug)]
pub struct Peers {
    token: String,
    /// Who asks.
    me: String,
    urls: BTreeMap<String, String>,
    /// Agents of members that an earlier file declared.
    leaving: BTreeMap<String, String>,
    /// Agents of nodes that are no members, as last read from the record.
    clients: Mutex<BTreeMap<String, String>>,
    files: Option<Files>,
    /// In clear text, what takes the place of certificates.
    tokens: Option<Tokens>,
    /// The files of an operator, for requests that change something.
    operator: Option<OperatorFiles>,
    /// The state dirs of agents, with `{name}`: an operator who may read one proves it to that agent.
    own: Option<String>,
    /// Where the generation of who asks is written down; operators have none, and name that of whom they ask.
    ledger: Option<PathBuf>,
    client: Mutex<Option<(Vec<Stamp>, Client)>>,
    operator_client: Mutex<Option<(Vec<Stamp>, Client)>>,
    /// How far we are.
    state: Mutex<&'static str>,
    /// Which machine asks, where an agent does.
    instance: Option<String>,
}

impl Peers {
    /// The agents that a cluster file declares, asked as `me`: a member, or an operator with the files of member `files_of`.
    pub fn new(spec: &Spec, me: &str, files_of: &str) -> Peers {
        let files = spec.tls_files().map(|tls| {
            let TlsFiles { cert_file, key_file, trusted_ca_file } = tls.agent.as_ref().unwrap_or(&tls.peer);
            let path = |text: &str| PathBuf::from(for_member(text, files_of));
            Files { cert: path(cert_file), key: path(key_file), ca: path(trusted_ca_file) }
        });
        let urls = spec.members.iter().map(|member| {
            let url = spec.agent_url_of(member);
            (member.name.clone(), url.trim_end_matches('/').to_owned())
        });
        let (token, me, tokens) = (spec.token.clone(), me.to_owned(), Tokens::of(spec));
        let (urls, leaving) = (urls.collect(), BTreeMap::new());
        let clients = Mutex::default();
        let (client, state) = (Mutex::new(None), Mutex::new("none"));
        let (ledger, instance, operator, own, operator_client) = (None, None, None, None, Mutex::new(None));
        Peers {
            token,
            me,
            urls,
            leaving,
            clients,
            files,
            tokens,
            operator,
            own,
            ledger,
            client,
            operator_client,
            state,
            instance,
        }
    }

    /// The same, asked from this machine.
    #[must_use]
    pub fn with_instance(self, instance: Option<String>) -> Peers {
        Peers { instance, ..self }
    }

    /// Which machine asks.
    pub fn instance(&self) -> Option<&str> {
        self.instance.as_deref()
    }

    /// The same, asked by a node that has a ledger.
    #[must_use]
    pub fn with_ledger(self, ledger: PathBuf) -> Peers {
        Peers { ledger: Some(ledger), ..self }
    }

    /// The same, and the agents of members that an earlier file declared.
    #[must_use]
    pub fn and_leaving(mut self, spec: &Spec, leaving: &[Member]) -> Peers {
        let url = |member: &Member| spec.agent_url_of(member).trim_end_matches('/').to_owned();
        self.leaving = leaving.iter().map(|member| (member.name.clone(), url(member))).collect();
        self
    }

    /// The same, where the agent of this machine's node is asked on loopback if it listens nowhere else: in the clear, it does so.
    #[must_use]
    pub fn and_here(mut self, spec: &Spec, member: &Member) -> Peers {
        let listen = spec.api_listen_of(member);
        let host = quorate_plan::certificates::host_of(&listen).and_then(|host| host.parse::<std::net::IpAddr>().ok());
        if member.agent_url.is_none() && host.is_some_and(|ip| ip.is_loopback()) {
            self.urls.insert(member.name.clone(), listen.trim_end_matches('/').to_owned());
        }
        self
    }

    /// The same for an operator on this machine: with the files of `name`, or of the first member whose files can be read here.
    pub fn for_operator(spec: &Spec, name: Option<&str>) -> Peers {
        Peers::for_operator_with(spec, name).0
    }

    /// The same, and whose files they are.
    pub fn for_operator_with(spec: &Spec, name: Option<&str>) -> (Peers, String) {
        let readable = |member: &&Member| {
            spec.tls_files().is_none_or(|tls| {
                let files = tls.agent.as_ref().unwrap_or(&tls.peer);
                std::fs::File::open(for_member(&files.key_file, &member.name)).is_ok()
            })
        };
        let first = spec.members.iter().find(readable).or(spec.members.first());
        let files_of = name.or(first.map(|member| member.name.as_str())).unwrap_or_default();
        let mut peers = Peers::new(spec, OPERATOR, files_of);
        if !spec.is_plaintext() {
            peers.own = Some(spec.state_dir_of("{name}"));
        }
        (peers, files_of.to_owned())
    }

    /// The same, with the files of the operator who runs this.
    #[must_use]
    pub fn with_operator(self, operator: Option<OperatorFiles>) -> Peers {
        // A machine that is no node has no certificate of an agent.
        let readable = |files: &Files| std::fs::File::open(&files.key).is_ok();
        let files = match (self.files, &operator) {
            (Some(files), Some(own)) if !readable(&files) => {
                let ca = if own.agents.exists() { own.agents.clone() } else { files.ca };
                Some(Files { cert: own.cert.clone(), key: own.key.clone(), ca })
            }
            (files, _) => files,
        };
        Peers { files, operator, ..self }
    }

    /// The files of the operator who runs this.
    pub fn operator(&self) -> Option<&OperatorFiles> {
        self.operator.as_ref()
    }

    /// Every declared member but `me`.
    pub fn others(&self) -> Vec<String> {
        self.urls.keys().filter(|name| **name != self.me).cloned().collect()
    }

    /// Every member that an earlier file declared, and the present one does not.
    pub fn leaving(&self) -> Vec<String> {
        self.leaving.keys().filter(|name| **name != self.me).cloned().collect()
    }

    /// Every other node that is no member.
    pub fn clients(&self) -> Vec<String> {
        let clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        let known = |name: &String| self.urls.contains_key(name) || self.leaving.contains_key(name);
        clients.keys().filter(|name| **name != self.me && !known(name)).cloned().collect()
    }

    /// Nodes that are no members, and where their agents are asked.
    pub fn set_clients(&self, clients: BTreeMap<String, String>) {
        *self.clients.lock().unwrap_or_else(PoisonError::into_inner) = clients;
    }

    /// Where the agent of a node is asked.
    pub fn url(&self, peer: &str) -> Option<String> {
        let client = || self.clients.lock().unwrap_or_else(PoisonError::into_inner).get(peer).cloned();
        self.urls.get(peer).or_else(|| self.leaving.get(peer)).cloned().or_else(client)
    }

    /// Says how far we are in each question from here on.
    pub fn say(&self, state: &'static str) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = state;
    }

    /// What a node tells of itself. `generation`: ours; `None`: we hold nothing.
    pub async fn node(&self, peer: &str, generation: Option<u64>) -> Result<NodeAnswer, PeerError> {
        let answer: NodeAnswer = self.ask(peer, "/v1/node", generation).await?;
        if answer.name == peer {
            return Ok(answer);
        }
        let why = format!("it is the agent of `{}`", answer.name);
        Err(PeerError::Silent(
            silent(peer, self.url(peer).as_deref(), why).hint("correct its `agent-url` in the cluster file"),
        ))
    }

    /// What its agent shows.
    pub async fn status(&self, peer: &str, generation: Option<u64>) -> Result<Status, PeerError> {
        self.ask(peer, "/v1/status", generation).await
    }

    /// What it decided last.
    pub async fn plan(&self, peer: &str, generation: Option<u64>) -> Result<PlanAnswer, PeerError> {
        self.ask(peer, "/v1/plan", generation).await
    }

    /// Has a peer write down that this node is about to start.
    pub async fn tell_started(&self, peer: &str, generation: u64, request: &StartedRequest) -> Result<(), PeerError> {
        let answer: StartedAnswer = self.tell(peer, "/v1/started", generation, request).await?;
        match answer.recorded {
            true => Ok(()),
            false => Err(PeerError::Refused(silent(peer, self.url(peer).as_deref(), "it did not write it down"))),
        }
    }

    /// Puts one question to every declared agent at once, by name.
    pub async fn ask_all<T: DeserializeOwned + Send + 'static>(
        self: &Arc<Self>,
        path: &'static str,
        generation: Option<u64>,
    ) -> BTreeMap<String, Result<T, Fault>> {
        let mut asked = JoinSet::new();
        for peer in self.others().into_iter().chain(self.leaving()) {
            let peers = Arc::clone(self);
            asked.spawn(async move {
                let answer = peers.ask(&peer, path, generation).await.map_err(|error| error.fault(&peer));
                (peer, answer)
            });
        }
        let mut answers = BTreeMap::new();
        while let Some(answer) = asked.join_next().await {
            if let Ok((peer, answer)) = answer {
                answers.insert(peer, answer);
            }
        }
        answers
    }

    /// Any question.
    pub async fn ask<T: DeserializeOwned>(
        &self,
        peer: &str,
        path: &str,
        generation: Option<u64>,
    ) -> Result<T, PeerError> {
        let (request, challenge) = self.request(peer, Method::GET, path, generation)?;
        self.exchange(peer, request.timeout(ASK_LIMIT), challenge).await
    }

    /// Any request that changes something at the other node.
    pub async fn tell<B: Serialize, T: DeserializeOwned>(
        &self,
        peer: &str,
        path: &str,
        generation: u64,
        body: &B,
    ) -> Result<T, PeerError> {
        self.send(peer, Method::POST, path, Some(generation), body).await
    }

    /// Any request that changes something at a node, in the generation of who asks; an operator, or a node that holds nothing,
    /// reads that of the node first.
    pub async fn order<B: Serialize, T: DeserializeOwned>(
        &self,
        peer: &str,
        path: &str,
        body: &B,
    ) -> Result<T, PeerError> {
        let generation = match UNNUMBERED.contains(&path) {
            true => None,
            false => Some(self.generation(peer).await?),
        };
        self.send(peer, Method::POST, path, generation, body).await
    }

    /// Has a node take another cluster file over.
    pub async fn put_file(&self, peer: &str, request: &FileRequest) -> Result<FileAnswer, PeerError> {
        let generation = self.generation(peer).await?;
        self.send(peer, Method::PUT, "/v1/file", Some(generation), request).await
    }

    /// Shows a cluster file to these nodes, all at once, and hears what it would mean for each.
    pub async fn try_file(
        self: &Arc<Self>,
        nodes: Vec<String>,
        trial: &FileTrial,
    ) -> BTreeMap<String, Result<FileTried, PeerError>> {
        let mut asked = JoinSet::new();
        for node in nodes {
            let (peers, trial) = (Arc::clone(self), trial.clone());
            asked.spawn(async move {
                let tried = peers.order(&node, TRIAL, &trial).await;
                (node, tried)
            });
        }
        let mut answers = BTreeMap::new();
        while let Some(answer) = asked.join_next().await {
            answers.extend(answer.ok());
        }
        answers
    }

    /// Has a node write down what it is to become.
    pub async fn tell_intent(&self, peer: &str, request: &IntentRequest) -> Result<IntentAnswer, PeerError> {
        self.order(peer, "/v1/intent", request).await
    }

    /// Has a node hand leadership over, if it leads.
    pub async fn hand_over(&self, peer: &str) -> Result<HandOverAnswer, PeerError> {
        self.order(peer, "/v1/hand-over", &()).await
    }

    async fn generation(&self, peer: &str) -> Result<u64, PeerError> {
        if let Some(path) = &self.ledger
            && let LedgerSeen::There(ledger) = observe_ledger(path)
        {
            return Ok(ledger.generation);
        }
        self.node(peer, None).await.map(|answer| answer.generation)
    }

    async fn send<B: Serialize, T: DeserializeOwned>(
        &self,
        peer: &str,
        method: Method,
        path: &str,
        generation: Option<u64>,
        body: &B,
    ) -> Result<T, PeerError> {
        let body = serde_json::to_vec(body)
            .map_err(|error| PeerError::Silent(silent(peer, None, "the request cannot be written").caused_by(error)))?;
        let (request, challenge) = self.request(peer, method, path, generation)?;
        let request = request.header("content-type", "application/json").body(body).timeout(TELL_LIMIT);
        self.exchange(peer, request, challenge).await
    }

    fn request(
        &self,
        peer: &str,
        method: Method,
        path: &str,
        generation: Option<u64>,
    ) -> Result<(RequestBuilder, Option<Challenge>), PeerError> {
        let Some(url) = self.url(peer) else {
            return Err(PeerError::Silent(silent(peer, None, "the cluster file does not declare it")));
        };
        let changes = method != Method::GET;
        let client = self.client(changes).map_err(PeerError::Silent)?;
        let generation = generation.map_or_else(|| NO_GENERATION.to_owned(), |number| number.to_string());
        let challenge = self.tokens.as_ref().map(|tokens| tokens.challenge(peer, &url)).transpose();
        let challenge = challenge.map_err(PeerError::Silent)?;
        let request = client.request(method.clone(), format!("{url}{path}"));
        let request = match (&challenge, &self.own) {
            (Some(challenge), _) => challenge.sign(request, &method, path),
            (None, Some(dirs)) if changes => {
                prove_owner(&PathBuf::from(for_member(dirs, peer)), request, &method, path)
            }
            (None, _) => request,
        };
        let request = match &self.instance {
            Some(instance) => request.header(INSTANCE_HEADER, instance),
            None => request,
        };
        let request = request
            .header(CLUSTER_HEADER, &self.token)
            .header(GENERATION_HEADER, generation)
            .header(FROM_HEADER, &self.me)
            .header(STATE_HEADER, *self.state.lock().unwrap_or_else(PoisonError::into_inner));
        Ok((request, challenge))
    }

    async fn exchange<T: DeserializeOwned>(
        &self,
        peer: &str,
        request: RequestBuilder,
        challenge: Option<Challenge>,
    ) -> Result<T, PeerError> {
        let url = self.url(peer);
        let url = url.as_deref();
        let broke = |error: reqwest::Error| PeerError::Silent(unreachable(peer, url, error));
        let mut response = request.send().await.map_err(broke)?;
        let status = response.status();
        if let Some(challenge) = challenge {
            challenge.check(peer, status, response.headers()).map_err(PeerError::Silent)?;
        }
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(broke)? {
            body.extend_from_slice(&chunk);
            if body.len() > BODY_MAX {
                return Err(PeerError::Silent(silent(peer, url, "its answer is too long")));
            }
        }
        if status.is_success() {
            return serde_json::from_slice(&body).map_err(|error| {
                PeerError::Silent(silent(peer, url, "its answer cannot be understood").caused_by(error))
            });
        }
        Err(match serde_json::from_slice::<Refusal>(&body) {
            Ok(Refusal { generation: Some(number), generation_of: cluster, .. }) => {
                PeerError::Newer(Generation { number, cluster })
            }
            Ok(refusal) => {
                let code = Code::parse(&refusal.code).unwrap_or(Code::PeerRequest);
                let attempt = format!("the agent of `{peer}` says no: {}", shown(&refusal.why));
                PeerError::Refused(Fault::new(code, attempt).hint(format!("see `quorate explain {code}`")))
            }
            Err(_) => PeerError::Silent(silent(peer, url, format!("it answered `{status}`"))),
        })
    }

    /// The client, made anew when certificates have changed.
    fn client(&self, changes: bool) -> Result<Client, Fault> {
        let of_operator = self
            .operator
            .as_ref()
            .zip(self.files.as_ref())
            .filter(|_| changes)
            .map(|(own, files)| Files { cert: own.cert.clone(), key: own.key.clone(), ca: files.ca.clone() });
        let (files, known) = match &of_operator {
            Some(files) => (Some(files), &self.operator_client),
            None => (self.files.as_ref(), &self.client),
        };
        let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
        let now = files.map(stamps).unwrap_or_default();
        if let Some((stamps, client)) = known.as_ref()
            && *stamps == now
        {
            return Ok(client.clone());
        }
        match build(files) {
            Ok(client) => {
                *known = Some((now, client.clone()));
                Ok(client)
            }
            // Files that are being replaced do not fit together for a moment.
            Err(fault) => known.as_ref().map(|(_, client)| client.clone()).ok_or(fault),
        }
    }
}

fn silent(peer: &str, url: Option<&str>, why: impl std::fmt::Display) -> Fault {
    let place = url.map(|url| format!(" at `{url}`")).unwrap_or_default();
    Fault::new(Code::PeerSilent, format!("no answer from the agent of `{peer}`{place}: {why}"))
        .hint("see that it runs and can be reached from here; see `quorate explain Q0975`")
}

fn unreachable(peer: &str, url: Option<&str>, error: reqwest::Error) -> Fault {
    let why = if error.is_timeout() {
        "it did not answer in time".to_owned()
    } else {
        // The innermost cause is the one that says something.
        let mut inner: &dyn std::error::Error = &error;
        while let Some(next) = inner.source() {
            inner = next;
        }
        shown(&inner.to_string())
    };
    silent(peer, url, why)
}

/// What others say may be long, and must not break our lines.
fn shown(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(300).collect()
}
