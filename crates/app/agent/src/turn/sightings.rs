//! Looks whether another machine runs as this node: by the leases of the nodes, at the URLs and the agent's address that the file
//! gives this node, and at every voter.
//!
//! **Rule:** everything is asked at once and within a limit; who does not answer is left out, and that is not the same as gone.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use quorate_etcd::client::{Client, Consistency, record_opened};
use quorate_etcd_formats::membership::{ClusterId, MemberId};
use quorate_faults::{Code, Fault};
use quorate_plan::ledger::LedgerSeen;
use quorate_plan::spec::{Security, TlsFiles, for_member};
use quorate_plan::start::{AgentSeen, Answering, ClusterSeen, Holder, LeasesSeen, Sightings, connected_in};
use serde::Deserialize;
use tokio::task::JoinSet;

use super::cluster::{Heard, ours};
use super::data::in_words;
use super::node::Node;
use super::node_lease::{holders, shown};
use crate::peers::{Peers, http_client};

/// How long each question may take: whoever lives answers in milliseconds.
const LIMIT: Duration = Duration::from_millis(1500);
/// The metrics of a member have 150 kB.
const METRICS_BYTES_MAX: usize = 8 << 20;
/// A member list of a peer.
const LIST_BYTES_MAX: usize = 1 << 20;

/// Looks at all of it but what the agents of the others say.
pub(super) async fn observe(node: &Arc<Node>, peers: &Arc<Peers>, ledger: &LedgerSeen) -> Sightings {
    let urls = node.member.peer_urls.clone();
    let (leases, agent, mut answering, at_peers, views) = tokio::join!(
        leases(node, peers, ledger),
        agent(node, peers),
        at_client_urls(node),
        at_peer_urls(node, urls),
        views(node),
    );
    answering.extend(at_peers);
    Sightings { leases, agent, answering, views }
}

/// Adds what is known by the list of members and by the agents of the others.
pub(super) async fn complete(mut seen: Sightings, node: &Arc<Node>, cluster: &ClusterSeen, heard: &Heard) -> Sightings {
    // Whoever tells by its etcd is nearer to it than its agent.
    for answer in heard.values().flatten() {
        if let (Some(voter), Some(sees)) = (answer.member, &answer.sees) {
            seen.views.entry(voter).or_insert_with(|| sees.iter().copied().collect());
        }
    }
    if let ClusterSeen::Confirmed { members, .. } = cluster {
        let own = &node.member.peer_urls;
        let earlier = members.iter().filter(|member| member.name == node.name()).flat_map(|member| &member.peer_urls);
        let earlier: Vec<String> = earlier.filter(|url| !own.contains(url)).cloned().collect();
        seen.answering.extend(at_peer_urls(node, earlier).await);
    }
    seen
}

/// Who holds the names of the nodes: the first member of this node's cluster that answers with a quorum.
async fn leases(node: &Arc<Node>, peers: &Arc<Peers>, ledger: &LedgerSeen) -> LeasesSeen {
    if !node.has_peers() {
        return LeasesSeen::Unknown("there is no other member".to_owned());
    }
    let mut asked = JoinSet::new();
    for member in node.spec.members.iter().filter(|member| member.name != node.name()) {
        let Some(url) = member.client_urls.first().cloned() else { continue };
        let (node, own) = (Arc::clone(node), peers.instance().map(str::to_owned));
        asked.spawn(limited(async move {
            let mut settings = node.client_at(vec![url])?;
            settings.timeout = settings.timeout.min(LIMIT);
            holders(&Client::connect(&settings).await?, &node.spec, own.as_deref()).await
        }));
    }
    let mut why = "no other member was asked".to_owned();
    while let Some(answer) = asked.join_next().await {
        match answer {
            Ok(Ok((cluster, held))) if ours(ledger).is_none_or(|ours| ours == cluster) => {
                return LeasesSeen::Held(held.into_iter().collect::<BTreeMap<String, Holder>>());
            }
            Ok(Ok((cluster, _))) => why = format!("the members that answer are cluster `{cluster}`"),
            Ok(Err(fault)) => why = in_words(&fault),
            Err(_) => {}
        }
    }
    LeasesSeen::Unknown(why)
}

/// The agent at this node's own address. This very agent answers there with its own instance.
async fn agent(node: &Arc<Node>, peers: &Arc<Peers>) -> AgentSeen {
    if !node.is_declared() {
        return AgentSeen::Silent("the cluster file does not declare this node".to_owned());
    }
    match tokio::time::timeout(LIMIT, peers.node(node.name(), None)).await {
        Ok(Ok(answer)) if answer.instance.as_deref() == peers.instance() => AgentSeen::ThisMachine,
        Ok(Ok(answer)) => {
            let url = peers.url(node.name()).unwrap_or_default();
            let machine = shown(answer.machine.as_deref().unwrap_or("an agent of an earlier release"));
            AgentSeen::Another(format!("{machine}, at `{url}`"))
        }
        Ok(Err(error)) => AgentSeen::Silent(error.to_string()),
        Err(_) => AgentSeen::Silent("it did not answer in time".to_owned()),
    }
}

/// Servers that answer at the client URLs that the file gives this node.
async fn at_client_urls(node: &Arc<Node>) -> Vec<Answering> {
    let mut asked = JoinSet::new();
    for url in node.member.client_urls.clone() {
        let node = Arc::clone(node);
        asked.spawn(limited(async move {
            let mut settings = node.client_at(vec![url.clone()])?;
            settings.timeout = settings.timeout.min(LIMIT);
            let client = Client::connect(&settings).await?;
            let status = client.status().await?;
            let list = client.member_list(Consistency::Local).await?;
            let header = status.header.unwrap_or_default();
            let own = list.members.into_iter().find(|member| member.id == header.member_id).unwrap_or_default();
            let (cluster, member) = (ClusterId(header.cluster_id), MemberId(header.member_id));
            Ok(Answering { url, cluster, member, name: own.name, peer_urls: own.peer_urls })
        }));
    }
    all(asked).await
}

/// The members that stand at these peer URLs, where a server answers there.
async fn at_peer_urls(node: &Arc<Node>, urls: Vec<String>) -> Vec<Answering> {
    #[derive(Deserialize)]
    struct Listed {
        id: u64,
        #[serde(default)]
        name: String,
        #[serde(default, rename = "peerURLs")]
        peer_urls: Vec<String>,
    }
    let mut asked = JoinSet::new();
    for url in urls {
        let node = Arc::clone(node);
        asked.spawn(limited(async move {
            let files = if let Security::Tls(tls) = &node.spec.security { Some(&tls.peer) } else { None };
            let (head, body) =
                fetch(&node, files, &format!("{}/members", url.trim_end_matches('/')), LIST_BYTES_MAX).await?;
            let cluster = head.and_then(|id| u64::from_str_radix(&id, 16).ok()).map(ClusterId);
            let list: Vec<Listed> = serde_json::from_slice(&body).unwrap_or_default();
            let there = list.into_iter().find(|member| member.peer_urls.contains(&url));
            match (cluster, there) {
                (Some(cluster), Some(Listed { id, name, peer_urls })) => {
                    Ok(Answering { url, cluster, member: MemberId(id), name, peer_urls })
                }
                _ => Err(Fault::new(Code::EtcdUnreachable, "no member answers there")),
            }
        }));
    }
    all(asked).await
}

/// The members that each of the others is connected with, as its etcd has it.
async fn views(node: &Arc<Node>) -> BTreeMap<MemberId, BTreeSet<MemberId>> {
    let mut asked = JoinSet::new();
    for member in node.spec.members.iter().filter(|member| member.name != node.name()) {
        let Some(url) = member.client_urls.first().cloned() else { continue };
        let node = Arc::clone(node);
        asked.spawn(limited(async move {
            let files = match &node.spec.security {
                Security::Tls(tls) => Some(tls.admin.as_ref().unwrap_or(&tls.client)),
                Security::Plaintext(_) => None,
            };
            let (_, body) =
                fetch(&node, files, &format!("{}/metrics", url.trim_end_matches('/')), METRICS_BYTES_MAX).await?;
            connected_in(&String::from_utf8_lossy(&body))
                .ok_or_else(|| Fault::new(Code::EtcdUnreachable, "its metrics do not say whom it is connected with"))
        }));
    }
    all(asked).await.into_iter().collect()
}

async fn limited<T>(work: impl Future<Output = Result<T, Fault>>) -> Result<T, Fault> {
    tokio::time::timeout(LIMIT, work)
        .await
        .unwrap_or_else(|_| Err(Fault::new(Code::EtcdUnreachable, "it did not answer in time")))
}

async fn all<T: 'static>(mut asked: JoinSet<Result<T, Fault>>) -> Vec<T> {
    let mut answers = Vec::new();
    while let Some(answer) = asked.join_next().await {
        answers.extend(answer.ok().and_then(Result::ok));
    }
    answers
}

/// What is at an address of etcd, and the id of its cluster where it says so.
async fn fetch(
    node: &Node,
    files: Option<&TlsFiles>,
    url: &str,
    bytes_max: usize,
) -> Result<(Option<String>, Vec<u8>), Fault> {
    let paths = files.map(|TlsFiles { cert_file, key_file, trusted_ca_file }| {
        [cert_file, key_file, trusted_ca_file].map(|text| for_member(text, node.name()).into())
    });
    get(paths, url, bytes_max).await
}

/// The same with files of TLS by their paths. etcd's client port has this connection too: it is no client's.
async fn get(paths: Option<[PathBuf; 3]>, url: &str, bytes_max: usize) -> Result<(Option<String>, Vec<u8>), Fault> {
    let failed =
        |error: reqwest::Error| Fault::new(Code::EtcdUnreachable, format!("no answer at `{url}`")).caused_by(error);
    let mut response = http_client(paths)?.get(url).timeout(LIMIT).send().await.map_err(failed)?;
    record_opened(response.extensions());
    if !response.status().is_success() {
        return Err(Fault::new(Code::EtcdUnreachable, format!("`{url}` answered `{}`", response.status())));
    }
    let id = response.headers().get("x-etcd-cluster-id").and_then(|id| id.to_str().ok()).map(str::to_owned);
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(failed)? {
        body.extend_from_slice(&chunk);
        if body.len() > bytes_max {
            return Err(Fault::new(Code::EtcdUnreachable, format!("the answer at `{url}` is too long")));
        }
    }
    Ok((id, body))
}

#[cfg(test)]
mod tests {
    use quorate_etcd::client::recently_opened;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn a_connection_to_etcd_is_recorded_as_one_of_this_agent() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/metrics", listener.local_addr().unwrap());
        let server = tokio::spawn(async move {
            let (mut stream, from) = listener.accept().await.unwrap();
            // The request is longer than this; how much of it comes at once does not matter.
            stream.read_exact(&mut [0; 16]).await.unwrap();
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await.unwrap();
            from
        });
        assert_eq!(get(None, &url, 10).await.unwrap(), (None, b"ok".to_vec()));
        assert!(recently_opened(Duration::from_secs(60)).contains(&server.await.unwrap()));
    }
}
