//! Looks at the others: their agents, and the cluster as their etcd sees it.
//!
//! **Invariant:** whoever does not answer is Unknown, with why; a member list counts only if a quorum confirmed it just now.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use quorate_etcd::client::messages::{Member, MemberListResponse};
use quorate_etcd::client::{Client, Consistency};
use quorate_etcd_formats::membership::{ClusterId, MemberId};
use quorate_faults::{Code, Fault};
use quorate_plan::change::{corrupt_in, doubt_corrupt};
use quorate_plan::ledger::{LedgerSeen, State};
use quorate_plan::phase::Phase;
use quorate_plan::start::{ClusterSeen, Health, ListedMember, PeerAnswer, PeerFounding, PeerSeen};
use tokio::task::JoinSet;

use super::data::in_words;
use super::node::Node;
use crate::peers::{FoundingAnswer, NodeAnswer, PeerError, Peers};

/// How long the members may take to confirm their list: a linearizable read of a healthy cluster takes milliseconds.
const CONFIRM_LIMIT: Duration = Duration::from_secs(2);
/// How long each member of that list may take to say how it is. Less, so that one whose machine is silent does not take the list with it.
const HEALTH_LIMIT: Duration = Duration::from_millis(1200);

/// What the agents of others said, by name.
pub(super) type Heard = BTreeMap<String, Result<NodeAnswer, PeerError>>;

/// Our generation, as requests name it: who holds nothing has none.
pub(super) fn generation(ledger: &LedgerSeen) -> Option<u64> {
    match ledger {
        LedgerSeen::There(ledger) if ledger.state != State::Empty => Some(ledger.generation),
        LedgerSeen::There(_) | LedgerSeen::Absent | LedgerSeen::Unreadable(_) => None,
    }
}

/// Asks every other agent at once.
pub(super) async fn hear(peers: &Arc<Peers>, ledger: &LedgerSeen) -> Heard {
    ask(peers, ledger, peers.others()).await
}

/// The same, and the agents of members that the file does not declare any more, while the cluster lists them.
pub(super) async fn hear_all(peers: &Arc<Peers>, ledger: &LedgerSeen) -> Heard {
    let listed = |name: &String| match ledger {
        LedgerSeen::There(ledger) => {
            let confirmed = ledger.confirmed.iter().flat_map(|confirmed| &confirmed.members);
            confirmed.into_iter().any(|member| member.name == *name)
        }
        LedgerSeen::Absent | LedgerSeen::Unreadable(_) => false,
    };
    let whom = peers.others().into_iter().chain(peers.leaving().into_iter().filter(listed));
    ask(peers, ledger, whom.collect()).await
}

async fn ask(peers: &Arc<Peers>, ledger: &LedgerSeen, whom: Vec<String>) -> Heard {
    let generation = generation(ledger);
    peers.say(match ledger {
        LedgerSeen::There(ledger) => ledger.state.word(),
        LedgerSeen::Absent | LedgerSeen::Unreadable(_) => "empty",
    });
    let mut asked = JoinSet::new();
    for peer in whom {
        let peers = Arc::clone(peers);
        asked.spawn(async move {
            let answer = peers.node(&peer, generation).await;
            (peer, answer)
        });
    }
    let mut heard = Heard::new();
    while let Some(answer) = asked.join_next().await {
        // One that came to a halt is missing: unknown.
        if let Ok((peer, answer)) = answer {
            heard.insert(peer, answer);
        }
    }
    heard
}

/// The same for the planner.
pub(super) fn seen(heard: &Heard, me: &str, ledger: &LedgerSeen) -> BTreeMap<String, PeerSeen> {
    let mine = match ledger {
        LedgerSeen::There(ledger) => ledger.ids().map(|(_, member)| member),
        LedgerSeen::Absent | LedgerSeen::Unreadable(_) => None,
    };
    let one = |answer: &Result<NodeAnswer, PeerError>| match answer {
        Ok(answer) => PeerSeen::Answered(answer.seen_by(me, mine)),
        Err(PeerError::Silent(fault) | PeerError::Refused(fault)) => PeerSeen::Unknown(in_words(fault)),
        // It refuses to tell more to an older generation; that it is newer is what matters.
        Err(PeerError::Newer(newer)) => PeerSeen::Answered(PeerAnswer {
            founding: PeerFounding::Nothing,
            remembers_me_started: false,
            remembers_me_in: None,
            my_tombstone: false,
            generation: newer.number,
            generation_of: newer.cluster,
            forks: None,
            acknowledged: None,
            acknowledged_term: None,
            my_start: None,
            rolled_back: None,
            consumed: Vec::new(),
            dropped: Vec::new(),
            started: Vec::new(),
            seal: None,
        }),
    };
    heard.iter().map(|(name, answer)| (name.clone(), one(answer))).collect()
}

/// Asks the etcd of others for a list that a quorum confirms. Members whose agents say that they do not serve are not asked, but by
/// who is of no cluster yet: the agent that invited it has just begun anew, and its etcd goes on meanwhile.
pub(super) async fn observe_cluster(node: &Arc<Node>, heard: &Heard, ledger: &LedgerSeen) -> ClusterSeen {
    let mut asked = JoinSet::new();
    for member in node.spec.members.iter().filter(|member| member.name != node.name()) {
        let serves = match heard.get(&member.name) {
            Some(Ok(answer)) => {
                let founded = matches!(answer.founding, FoundingAnswer::Founded { .. });
                answer.phase == Phase::Serving.word() || (founded && ours(ledger).is_none())
            }
            // etcd goes on without its agent.
            Some(Err(_)) | None => true,
        };
        if serves && let Some(url) = member.client_urls.first() {
            let (node, url, name) = (Arc::clone(node), url.clone(), member.name.clone());
            asked.spawn(async move { (name, confirm(&node, url).await) });
        }
    }
    if asked.is_empty() {
        return ClusterSeen::Unreachable("no other member serves".to_owned());
    }
    let (mut found, mut whys): (Vec<(String, ClusterSeen)>, Vec<String>) = (Vec::new(), Vec::new());
    while let Some(answer) = asked.join_next().await {
        match answer {
            Ok((name, Ok(confirmed))) => found.push((name, confirmed)),
            Ok((name, Err(fault))) => whys.push(format!("`{name}`: {}", in_words(&fault))),
            Err(_) => {}
        }
    }
    choose(found, whys, ledger)
}

/// The cluster of this node, where it answers. Otherwise the only one that answers: the planner refuses one that is not this node's,
/// and could not if it were reported as unreachable. Two that could be meant are none, and a removed node waits for its own.
fn choose(found: Vec<(String, ClusterSeen)>, mut whys: Vec<String>, ledger: &LedgerSeen) -> ClusterSeen {
    let ours = ours(ledger);
    let removed = matches!(ledger, LedgerSeen::There(ledger) if matches!(ledger.state, State::Tombstone(_)));
    let mut chosen: Option<(ClusterId, ClusterSeen)> = None;
    let mut two: Option<(ClusterId, ClusterId)> = None;
    for (name, seen) in found {
        let ClusterSeen::Confirmed { cluster, .. } = &seen else { continue };
        let cluster = *cluster;
        match &chosen {
            _ if ours == Some(cluster) => return seen,
            _ if removed => whys.push(format!("`{name}` serves cluster `{cluster}`")),
            Some((other, _)) if *other != cluster => two = Some((*other, cluster)),
            Some(_) => {}
            None => chosen = Some((cluster, seen)),
        }
    }
    match (two, chosen) {
        (Some((one, other)), _) => ClusterSeen::Unreachable(format!("two clusters answer, `{one}` and `{other}`")),
        (None, Some((_, seen))) => seen,
        (None, None) => ClusterSeen::Unreachable(whys.join("; ")),
    }
}

/// The cluster that this node is of, or is to join, by its ledger.
pub(super) fn ours(ledger: &LedgerSeen) -> Option<ClusterId> {
    let LedgerSeen::There(ledger) = ledger else { return None };
    match &ledger.state {
        State::Started(identity) => Some(identity.cluster),
        State::PendingAdd(add) => Some(add.cluster),
        State::Promised(promise) | State::Inited(promise) => promise.is_sealed().then_some(promise.cluster),
        State::Tombstone(stone) => Some(stone.cluster),
        State::Empty => None,
    }
}

async fn confirm(node: &Node, url: String) -> Result<ClusterSeen, Fault> {
    let mut settings = node.client_at(vec![url])?;
    settings.timeout = settings.timeout.min(CONFIRM_LIMIT);
    let ask = async {
        let client = Client::connect(&settings).await?;
        let list = quorum_list(&client).await?;
        let header = list.header;
        let cluster = header.map(|header| ClusterId(header.cluster_id)).ok_or_else(|| {
            Fault::new(Code::EtcdUnreachable, "a member list without a cluster").hint("see etcd's log")
        })?;
        Ok(ClusterSeen::Confirmed { cluster, members: listed(node, &list, &[&client], None).await })
    };
    match tokio::time::timeout(CONFIRM_LIMIT, ask).await {
        Ok(confirmed) => confirmed,
        Err(_) => Err(Fault::new(Code::EtcdUnreachable, "no quorum confirmed its list in time")),
    }
}

/// The member list, confirmed by a quorum. A read first: 3.4 answers lists from what it has, and has all that the read saw.
pub(super) async fn quorum_list(client: &Client) -> Result<MemberListResponse, Fault> {
    client.serves().await?;
    client.member_list(Consistency::Linearizable).await
}

/// The members of a list, and how each of them is: whoever answers takes part, unless its data is known to be damaged; `but` has its
/// vote all the same. Those to whom there is a connection are asked on it.
pub(super) async fn listed(
    node: &Node,
    list: &MemberListResponse,
    connected: &[&Client],
    but: Option<MemberId>,
) -> Vec<ListedMember> {
    let mut asked = JoinSet::new();
    for (at, member) in list.members.iter().enumerate() {
        let Some(url) = member.client_urls.first().cloned() else { continue };
        let known =
            connected.iter().find(|client| client.endpoints().eq([url.as_str()])).map(|client| (*client).clone());
        let Ok(mut settings) = node.client_at(vec![url]) else { continue };
        settings.timeout = settings.timeout.min(HEALTH_LIMIT);
        asked.spawn(async move {
            let status = async {
                match known {
                    Some(client) => client.with_timeout(settings.timeout).status().await,
                    None => Client::connect(&settings).await?.status().await,
                }
            };
            let status = tokio::time::timeout(HEALTH_LIMIT, status).await;
            let late = |_| Err("it did not answer in time".to_owned());
            (at, status.map_or_else(late, |status| status.map_err(|fault| in_words(&fault))))
        });
    }
    let (mut health, mut corrupt) = (BTreeMap::<usize, Health>::new(), BTreeSet::new());
    while let Some(answer) = asked.join_next().await {
        let Ok((at, status)) = answer else { continue };
        let said = match status {
            Ok(status) if status.leader == 0 => Health::Unhealthy("it knows no leader".to_owned()),
            Ok(status) => {
                corrupt.extend(corrupt_in(&status.errors));
                Health::Healthy
            }
            Err(why) => Health::Unknown(why),
        };
        health.insert(at, said);
    }
    let one = |(at, member): (usize, &Member)| {
        let listed = listed_member(member);
        ListedMember { health: health.remove(&at).unwrap_or(listed.health), ..listed }
    };
    let mut members: Vec<ListedMember> = list.members.iter().enumerate().map(one).collect();
    doubt_corrupt(&mut members, &corrupt, but);
    members
}

/// A member of a list, without having asked it.
pub(super) fn listed_member(member: &Member) -> ListedMember {
    ListedMember {
        id: MemberId(member.id),
        name: member.name.clone(),
        peer_urls: member.peer_urls.clone(),
        // A founding member has its name from the beginning; client URLs come with its first start.
        started: !member.client_urls.is_empty(),
        learner: member.is_learner,
        health: Health::Unknown("it was not asked".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use quorate_plan::ledger::{Identity, Ledger, Origin, Tombstone};

    use super::*;

    fn confirmed(cluster: u64) -> ClusterSeen {
        ClusterSeen::Confirmed { cluster: ClusterId(cluster), members: Vec::new() }
    }

    fn chosen(state: State, clusters: &[u64]) -> ClusterSeen {
        let found = clusters.iter().map(|cluster| (format!("n{cluster}"), confirmed(*cluster))).collect();
        choose(found, vec!["`n9`: no answer".to_owned()], &LedgerSeen::There(Box::new(Ledger::default().with(state))))
    }

    /// An old copy of a member is refused by the planner, which has to see that the others are another cluster.
    #[test]
    fn reports_another_cluster_as_confirmed_unless_the_own_one_answers() {
        let identity = Identity { cluster: ClusterId(7), member: MemberId(1), origin: Origin::Founded };
        let started = || State::Started(identity.clone());
        assert_eq!(chosen(started(), &[8, 8]), confirmed(8));
        assert_eq!(chosen(started(), &[8, 7, 9]), confirmed(7));
        let two = "two clusters answer, `8` and `9`".to_owned();
        assert_eq!(chosen(started(), &[8, 9]), ClusterSeen::Unreachable(two.clone()));
        assert_eq!(chosen(State::Empty, &[8, 9]), ClusterSeen::Unreachable(two));
        assert_eq!(chosen(State::Empty, &[8]), confirmed(8));
        assert_eq!(chosen(started(), &[]), ClusterSeen::Unreachable("`n9`: no answer".to_owned()));
    }

    #[test]
    fn shows_a_removed_node_no_other_cluster_than_its_own() {
        let (cluster, member) = (ClusterId(7), MemberId(1));
        let stone = Tombstone { cluster, member, why: "drained".to_owned(), at_ms: 1, undeclared: true };
        assert_eq!(chosen(State::Tombstone(stone.clone()), &[7]), confirmed(7));
        assert!(matches!(chosen(State::Tombstone(stone), &[8]), ClusterSeen::Unreachable(_)));
    }
}
