//! Steps that others take part in: telling them, and changing who is a member.
//!
//! **Invariant:** a change of members is sent once, after the ledger says what is wished, and only with a plan that an
//! independent check agrees to; whether it took effect is seen at the next look.

use std::sync::Arc;
use std::time::Duration;

use quorate_etcd::client::messages::MemberListResponse;
use quorate_etcd::client::{Client, Joins};
use quorate_etcd_formats::membership::{ClusterId, MemberId};
use quorate_faults::{Code, Fault};
use quorate_plan::check::check;
use quorate_plan::ledger::{LedgerSeen, PendingAdd, State};
use quorate_plan::phase::Phase;
use quorate_plan::quorum::{Change, Standing};
use quorate_plan::roster::names;
use quorate_plan::spec::Member;
use quorate_plan::start::{ClusterSeen, Halt, Observed, StartPlan, objection_to_removal};
use tokio::task::JoinSet;
use tracing::info;

use super::Agent;
use super::cluster::{hear, listed, ours, quorum_list};
use super::data::in_words;
use super::execute::{Did, halted};
use super::node::Node;
use super::sightings;
use crate::peering::point;
use crate::peers::{FoundingAnswer, NodeAnswer, StartedRequest};

/// How long the start of good data waits for its node's name: the plan has found nobody who runs it.
const NAME_LIMIT: Duration = Duration::from_secs(3);

impl Agent {
    /// Lets the plan be checked by whoever did not make it.
    pub(super) fn audit(&self, plan: &StartPlan, seen: &Observed) -> Result<(), Fault> {
        check(&self.node.spec, self.node.name(), seen, plan).map_err(|broken| {
            let attempt = format!("the plan was not carried out: {}", broken.join("; "));
            Fault::new(Code::PlanRefused, attempt).hint("nothing was changed; see `quorate explain Q0954`")
        })
    }

    /// Has every declared peer write down that this node is about to start.
    pub(super) async fn tell_peers(&mut self) -> Result<Option<Did>, Fault> {
        let (generation, ids, (promised, declaration)) = match self.book.read() {
            LedgerSeen::There(ledger) => {
                let promised = match &ledger.state {
                    State::Promised(promise) | State::Inited(promise) => {
                        (promise.members.clone(), Some(promise.declaration.clone()))
                    }
                    State::Empty | State::Started(_) | State::PendingAdd(_) | State::Tombstone(_) => (Vec::new(), None),
                };
                (ledger.generation, ledger.ids(), promised)
            }
            LedgerSeen::Absent | LedgerSeen::Unreadable(_) => (0, None, (Vec::new(), None)),
        };
        let Some((cluster, member)) = ids else {
            return Err(Fault::new(Code::Internal, "cannot tell peers of a start: the ledger names no member"));
        };
        self.shared.phase(Phase::Starting, "every peer writes down that this node starts");
        let request = Arc::new(StartedRequest { name: self.node.name().to_owned(), cluster, member, declaration });
        let mut told = JoinSet::new();
        for peer in self.peers.others().into_iter().filter(|peer| promised.is_empty() || promised.contains(peer)) {
            let (peers, request) = (Arc::clone(&self.peers), Arc::clone(&request));
            told.spawn(async move {
                let answer = peers.tell_started(&peer, generation, &request).await;
                answer.map_err(|error| (peer.clone(), error.fault(&peer)))
            });
        }
        let mut missing = Vec::new();
        while let Some(answer) = told.join_next().await {
            if let Err((peer, fault)) = answer.map_err(halted)? {
                missing.push((peer, in_words(&fault)));
            }
        }
        if missing.is_empty() {
            return Ok(None);
        }
        missing.sort();
        let who = names(missing.iter().map(|(peer, _)| peer.as_str()));
        let why = missing.iter().map(|(_, why)| why.as_str()).collect::<Vec<_>>().join("; ");
        Ok(Some(Did::Halted(
            Phase::Waiting,
            Halt {
                code: Code::StartWaiting,
                why: format!("waiting for {who} to write down that this node starts ({why})"),
                way_out: "start their agents; etcd starts when all have written it down".to_owned(),
                lost: None,
            },
        )))
    }

    /// Removes a member through the others.
    pub(super) async fn remove_member(&mut self, member: MemberId, seen: &Observed) -> Result<Option<Did>, Fault> {
        let Through { client, list } = self.others().await?;
        if !list.members.iter().any(|listed| listed.id == member.0) {
            return Ok(None);
        }
        // The name first: from here on another machine with it sees this one.
        if let Some(halt) = self.lease.claim_through(&client).await? {
            return Ok(Some(Did::Halted(Phase::Waiting, halt)));
        }
        point("before-removal");
        if let Some(halt) = self.runs_elsewhere(member, seen).await {
            return Ok(Some(Did::Halted(Phase::Waiting, halt)));
        }
        prove(&self.node, &list, Change::Remove(member), self.node.name()).await?;
        info!("removing member {member}, whose data is gone, so that it can be added anew");
        client.member_remove(member.0).await?;
        self.shared.done(format!("removed member {member} from the cluster, to be added anew"));
        Ok(None)
    }

    /// Asks once more, right before a member is removed, whether it runs on another machine.
    async fn runs_elsewhere(&self, member: MemberId, seen: &Observed) -> Option<Halt> {
        let ledger = self.book.read();
        let (heard, now) =
            tokio::join!(hear(&self.peers, &ledger), sightings::observe(&self.node, &self.peers, &ledger));
        let sightings = sightings::complete(now, &self.node, &seen.cluster, &heard).await;
        let now = Observed { ledger, sightings, ..seen.clone() };
        objection_to_removal(&self.node.spec, self.node.name(), &now, member)
    }

    /// Takes the name of this node before etcd starts on its data, where the others have a quorum. Without one, etcd may be what
    /// makes it.
    pub(super) async fn hold_name(&self, seen: &Observed) -> Option<Did> {
        if !matches!(seen.cluster, ClusterSeen::Confirmed { .. }) {
            return None;
        }
        let claimed = async { self.lease.claim_through(&self.others().await?.client).await };
        match tokio::time::timeout(NAME_LIMIT, claimed).await {
            Ok(Ok(halt)) => halt.map(|halt| Did::Halted(Phase::Waiting, halt)),
            Ok(Err(fault)) => {
                info!(code = %fault.code(), "the name of this node is taken once etcd serves: {}", in_words(&fault));
                None
            }
            Err(_) => None,
        }
    }

    /// Adds this node as a learner, and writes the id that it is given into the ledger.
    pub(super) async fn add_learner(&mut self) -> Result<Option<Did>, Fault> {
        self.is_expected().await?;
        let Through { client, list } = self.others().await?;
        if let Some(halt) = self.lease.claim_through(&client).await? {
            return Ok(Some(Did::Halted(Phase::Waiting, halt)));
        }
        prove_by(&self.node, &list, Change::AddLearner, self.node.name(), &[&client]).await?;
        let urls = self.node.member.peer_urls.clone();
        let added = client.member_add(urls.clone(), Joins::Learning).await?;
        let (Some(header), Some(member)) = (added.header, added.member) else {
            // What came of it is seen at the next look.
            return Ok(Some(Did::Again));
        };
        let (cluster, member) = (ClusterId(header.cluster_id), MemberId(member.id));
        info!("added to cluster {cluster} as learner {member}");
        point("added");
        self.write(State::PendingAdd(PendingAdd {
            cluster,
            member: Some(member),
            peer_urls: urls,
            replaces: None,
            generation: 0,
        }))
        .await?;
        point("added-written");
        Ok(None)
    }

    /// Another member of this node's cluster.
    async fn others(&self) -> Result<Through, Fault> {
        let client = Client::connect(&self.node.client_of_others()?).await?;
        through(&client, &self.book.read()).await
    }

    /// Whether the others hold the file that declares this node: those who do not would take a newcomer out again. Who takes its
    /// own place anew was a member, and asks nobody.
    async fn is_expected(&self) -> Result<(), Fault> {
        let ledger = self.book.read();
        let LedgerSeen::There(known) = &ledger else { return Ok(()) };
        if !matches!(&known.state, State::PendingAdd(add) if add.replaces.is_none()) {
            return Ok(());
        }
        let (heard, hash) = (hear(&self.peers, &ledger).await, self.node.spec.hash());
        let founded = |answer: &NodeAnswer| matches!(answer.founding, FoundingAnswer::Founded { .. });
        let other = |answer: &NodeAnswer| founded(answer) && answer.file != hash;
        let others = heard.iter().filter(|(_, answer)| answer.as_ref().is_ok_and(other));
        let others: Vec<&str> = others.map(|(name, _)| name.as_str()).collect();
        if others.is_empty() {
            return Ok(());
        }
        let why = format!("waiting for {} to hold the cluster file that declares this node", names(others));
        Err(Fault::new(Code::FilesDiffer, why).hint("give it to them: `quorate cluster apply FILE`"))
    }

    /// `NAME=URL,…` of the cluster that this node joins.
    pub(super) async fn initial_cluster(&self) -> Result<String, Fault> {
        let mine = match self.book.read() {
            LedgerSeen::There(ledger) => ledger.ids().map(|(_, member)| member),
            LedgerSeen::Absent | LedgerSeen::Unreadable(_) => None,
        };
        let list = self.others().await?.list;
        let mut parts = Vec::new();
        for member in &list.members {
            // etcd compares URLs; one that never started has no name, and any will do.
            let name = match Some(MemberId(member.id)) == mine {
                true => self.node.name().to_owned(),
                false if member.name.is_empty() => MemberId(member.id).to_string(),
                false => member.name.clone(),
            };
            parts.extend(member.peer_urls.iter().map(|url| format!("{name}={url}")));
        }
        Ok(parts.join(","))
    }
}

/// One member of the cluster that a change is meant for, and the list that a quorum confirmed through it just now.
#[derive(Debug)]
pub(super) struct Through {
    /// Asks that member alone, so that a change goes where the list came from.
    pub(super) client: Client,
    pub(super) list: MemberListResponse,
}

/// Finds a member of the cluster that the ledger names. After a recovery, or behind an address that was given away, another
/// cluster may answer: nothing is ever changed there.
pub(super) async fn through(client: &Client, ledger: &LedgerSeen) -> Result<Through, Fault> {
    let Some(wished) = ours(ledger) else {
        return Err(Fault::new(Code::Internal, "cannot change members: the ledger names no cluster"));
    };
    let (mut others, mut silent) = (Vec::new(), None);
    for client in client.each() {
        match quorum_list(&client).await {
            Ok(list) => match list.header.as_ref().map(|header| ClusterId(header.cluster_id)) {
                Some(there) if there == wished => return Ok(Through { client, list }),
                there => {
                    let url = client.endpoints().next().unwrap_or_default();
                    let there = there.map_or_else(|| "of no name".to_owned(), |there| format!("`{there}`"));
                    others.push(format!("`{url}` serves cluster {there}"));
                }
            },
            Err(fault) => silent = Some(fault),
        }
    }
    match silent {
        Some(fault) if others.is_empty() => Err(fault),
        Some(_) | None => {
            let why = format!("the members are not changed now: this node is of `{wished}`, and {}", others.join("; "));
            Err(Fault::new(Code::UnsafeChange, why)
                .hint("see `quorate cluster status`: two clusters have the same name"))
        }
    }
}

/// Proves, with what was seen this very moment, that a change leaves a quorum. `who`: the node that it is about.
pub(super) async fn prove(node: &Node, list: &MemberListResponse, change: Change, who: &str) -> Result<(), Fault> {
    prove_by(node, list, change, who, &[]).await
}

/// The same; members to whom there is a connection are asked on it.
pub(super) async fn prove_by(
    node: &Node,
    list: &MemberListResponse,
    change: Change,
    who: &str,
    connected: &[&Client],
) -> Result<(), Fault> {
    let leaves = if let Change::Remove(id) = change { Some(id) } else { None };
    let mut members = listed(node, list, connected, leaves).await;
    // One that never started has no name in the list, and is known by its address.
    for member in members.iter_mut().filter(|member| member.name.is_empty()) {
        let at = |declared: &&Member| member.peer_urls.iter().any(|url| declared.peer_urls.contains(url));
        let declared = node.spec.members.iter().chain([&node.member]).find(at);
        if let Some(declared) = declared {
            declared.name.clone_into(&mut member.name);
        }
    }
    let proof = Standing::confirmed(&members).prove(change, who);
    match &proof.objection {
        None => Ok(()),
        Some(_) => Err(Fault::new(Code::UnsafeChange, format!("the members are not changed now: {proof}"))
            .hint("bring the other members back first; see `quorate cluster status`")),
    }
}

/// Proves, with what a quorum confirms this very moment, that the cluster goes on without a member.
pub(crate) async fn may_remove(node: &Node, name: &str) -> Result<(), Fault> {
    let client = Client::connect(&node.client()?).await?;
    let list = quorum_list(&client).await?;
    let found = list.members.iter().find(|member| member.name == name);
    match found {
        Some(member) => prove(node, &list, Change::Remove(MemberId(member.id)), name).await,
        // It was added, or is about to be, and never took part.
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use quorate_etcd::client::Settings;
    use quorate_plan::ledger::Ledger;
    use quorate_testkit::{Launch, Seat, Server, etcd};

    use super::*;

    fn wishing(cluster: ClusterId) -> LedgerSeen {
        let add = PendingAdd { cluster, member: None, peer_urls: Vec::new(), replaces: None, generation: 0 };
        LedgerSeen::There(Box::new(Ledger::default().with(State::PendingAdd(add))))
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn members_are_changed_in_the_wished_cluster_alone() {
        let place = tempfile::tempdir().unwrap();
        let start = |token: &str| {
            let launch = Launch::new(&etcd("3.5.16"), &Seat::new("n1"), &place.path().join(token));
            launch.arg(format!("--initial-cluster-token={token}")).start()
        };
        let servers: Vec<Server> = ["one", "other"].into_iter().map(start).collect();
        let urls: Vec<String> = servers.iter().map(|server| server.seat.client_url()).collect();
        let client = Client::connect(&Settings::new(urls.clone())).await.unwrap();
        let mut ids = Vec::new();
        for one in client.each() {
            ids.push(ClusterId(one.header().await.unwrap().cluster_id));
        }
        assert_ne!(ids[0], ids[1]);
        for (id, url) in ids.iter().zip(&urls) {
            let Through { client: one, list } = through(&client, &wishing(*id)).await.unwrap();
            assert_eq!(one.endpoints().collect::<Vec<_>>(), [url.as_str()], "the change goes to that one alone");
            assert_eq!(ClusterId(list.header.unwrap().cluster_id), *id);
        }
        let refused = through(&client, &wishing(ClusterId(7))).await.unwrap_err();
        assert_eq!(refused.code(), Code::UnsafeChange);
        for url in &urls {
            assert!(refused.to_string().contains(url.as_str()), "{refused}");
        }
        assert_eq!(through(&client, &LedgerSeen::Absent).await.unwrap_err().code(), Code::Internal);
    }
}
