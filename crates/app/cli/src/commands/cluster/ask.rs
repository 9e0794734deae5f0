//! What the commands that ask a whole cluster have in common: which file, whose certificate, and one question to all agents.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use quorate_agent::cluster_file::{self, DEFAULT_FILE, DEFAULT_STATE};
use quorate_agent::peers::{OperatorFiles, Peers};
use quorate_agent::{declared, peering};
use quorate_faults::{Code, Fault};
use quorate_plan::spec::Spec;
use serde::de::DeserializeOwned;

use crate::commands::run::runtime;
use crate::printer::Printer;

/// Which cluster.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct ClusterArgs {
    /// The cluster file [default: /etc/quorate/cluster.yaml]
    #[arg(long, value_name = "FILE", env = "QUORATE_CONFIG")]
    config: Option<PathBuf>,

    /// Ask with this member's certificate [default: the first that can be read here]
    #[arg(long, env = "QUORATE_NAME")]
    pub(crate) name: Option<String>,
}

impl ClusterArgs {
    /// The cluster file.
    pub(crate) fn file(&self) -> Result<PathBuf, Fault> {
        file_or_default(self.config.as_deref(), self.name.as_deref())
    }
}

/// The file that was named, else the usual one, else that of the peer-managed node of this machine, by its name or because it is
/// the only one.
pub(crate) fn file_or_default(named: Option<&Path>, node: Option<&str>) -> Result<PathBuf, Fault> {
    if let Some(file) = named {
        return Ok(file.to_owned());
    }
    let usual = cluster_file::place(DEFAULT_FILE)?;
    if usual.exists() {
        return Ok(usual);
    }
    let state = cluster_file::place(DEFAULT_STATE)?;
    if let Some((place, _)) = peering::find(&state, node)? {
        return Ok(place.file());
    }
    let attempt = format!("there is no cluster file `{}`, and no node in `{}`", usual.display(), state.display());
    Err(Fault::new(Code::NoCluster, attempt).hint("give --config, or set QUORATE_CONFIG"))
}

/// The name of the peer-managed node that keeps this very file, where it is not given.
pub(crate) fn peer_managed(file: &Path, node: Option<&str>) -> Option<String> {
    let state = file.parent()?.parent()?;
    let (place, _) = peering::find(state, node).ok()??;
    (place.file() == file).then_some(place.name)
}

/// A cluster that can be asked.
pub(crate) struct Cluster {
    pub(crate) spec: Spec,
    pub(crate) file: PathBuf,
    peers: Arc<Peers>,
    runtime: tokio::runtime::Runtime,
}

impl Cluster {
    /// Reads the file; nobody is asked yet.
    pub(crate) fn open(file: &Path, name: Option<&str>, printer: &mut Printer) -> Result<Cluster, Fault> {
        let (spec, warnings) = cluster_file::read(file)?;
        let (spec, more) = declared::resolve_now(spec, name, declared::ASKED_WITHIN)?;
        for warning in warnings.into_iter().chain(more) {
            printer.warning(warning.code, &warning.text);
        }
        let operator = OperatorFiles::find(&spec.token)?;
        let peers = Arc::new(Peers::for_operator(&spec, name).with_operator(operator));
        Ok(Cluster { spec, file: file.to_owned(), peers, runtime: runtime()? })
    }

    /// Puts a question to every agent.
    pub(crate) fn ask<T: DeserializeOwned + Send + 'static>(
        &self,
        path: &'static str,
    ) -> BTreeMap<String, Result<T, Fault>> {
        self.runtime.block_on(self.peers.ask_all(path, None))
    }

    /// The same, while something else runs as well.
    pub(crate) async fn ask_now<T: DeserializeOwned + Send + 'static>(
        &self,
        path: &'static str,
    ) -> BTreeMap<String, Result<T, Fault>> {
        self.peers.ask_all(path, None).await
    }

    /// Has one agent change something.
    pub(crate) fn order<B: serde::Serialize, T: DeserializeOwned>(
        &self,
        node: &str,
        path: &str,
        body: &B,
    ) -> Result<T, Fault> {
        self.runtime.block_on(self.peers.order(node, path, body)).map_err(|error| error.fault(node))
    }

    /// Sends one request to several agents at once.
    pub(crate) fn order_all<B, T>(
        &self,
        nodes: &[String],
        path: &'static str,
        body: &B,
    ) -> BTreeMap<String, Result<T, Fault>>
    where
        B: serde::Serialize + Clone + Send + Sync + 'static,
        T: DeserializeOwned + Send + 'static,
    {
        self.runtime.block_on(async {
            let mut sent = tokio::task::JoinSet::new();
            for node in nodes {
                let (peers, node, body) = (Arc::clone(&self.peers), node.clone(), body.clone());
                sent.spawn(async move {
                    let answer = peers.order(&node, path, &body).await.map_err(|error| error.fault(&node));
                    (node, answer)
                });
            }
            sent.join_all().await.into_iter().collect()
        })
    }

    /// Runs what asks.
    pub(crate) fn block_on<T>(&self, work: impl Future<Output = T>) -> T {
        self.runtime.block_on(work)
    }

    /// Where the agent of a member is asked.
    pub(crate) fn url(&self, name: &str) -> String {
        self.peers.url(name).unwrap_or_default()
    }
}
