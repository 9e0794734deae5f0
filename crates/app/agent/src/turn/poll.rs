//! Polls every member for its status, with or without a quorum.
//!
//! **Rule:** what is published as current was observed within seconds and carries its time. A member is the leader where a
//! quorum confirmed it, or where it reports so itself.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use quorate_etcd::client::Client;
use quorate_etcd::client::messages::{Member, StatusResponse};
use quorate_etcd_formats::membership::MemberId;
use quorate_faults::{Code, Fault};
use quorate_plan::change::corrupt_in;
use quorate_plan::ledger::{Ledger, LedgerSeen, State};
use quorate_plan::phase::Phase;
use quorate_plan::quorum::Count;
use quorate_plan::roster::names;
use quorate_plan::start::Halt;
use tokio::task::JoinSet;

use super::book::Book;
use super::data::in_words;
use super::node::Node;
use super::publish::{Shared, now_ms};
use super::status::{ClusterNow, MemberNow, Notice, Status};

/// An observation of this age answers a request without another poll.
const CURRENT: Duration = Duration::from_millis(500);
/// Without a survey that a quorum confirms, members are polled this often.
const POLL_EVERY: Duration = Duration::from_secs(3);
/// A read that succeeded proves a quorum for this long: reads are probed every two seconds.
const READ_HOLDS: Duration = Duration::from_secs(3);
/// How long a member may take: a request for the status waits for all of them.
const POLL_LIMIT: Duration = Duration::from_secs(1);

/// A member, and its status or why there is none.
type Polled = (Member, Result<StatusResponse, String>);

/// What the last polls found.
#[derive(Debug, Default)]
pub(super) struct Polls {
    known: Mutex<Known>,
    /// One poll at a time: requests that come meanwhile share its result.
    turn: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct Known {
    at: Option<Instant>,
    listed: Vec<Member>,
    answered: BTreeMap<String, Instant>,
}

impl Polls {
    fn age(&self) -> Option<Duration> {
        lock(&self.known).at.map(|at| at.elapsed())
    }

    /// Writes into a document how old its observations are.
    pub(super) fn date(&self, status: &mut Status) {
        let known = lock(&self.known);
        let ms = |since: &Instant| u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX);
        let Some(cluster) = &mut status.cluster else { return };
        cluster.age_ms = known.at.as_ref().map(ms);
        for member in cluster.members.iter_mut().filter(|member| !member.answers) {
            member.silent_ms = known.answered.get(&member.id).map(ms);
        }
        let own = cluster.members.iter().find(|member| Some(&member.id) == status.member_id.as_ref());
        let heard = |member: &MemberNow| known.answered.get(&member.id).is_some_and(|at| at.elapsed() < READ_HOLDS);
        if let (Some(etcd), Some(false)) = (&mut status.etcd, own.map(|own| own.answers || heard(own))) {
            // The process is there and does not answer: what it reported before is not how it is.
            (etcd.revision, etcd.db_bytes, etcd.db_used_bytes) = (None, None, None);
        }
    }
}

/// Polls, and what it polls with.
#[derive(Debug, Clone)]
pub(crate) struct Poll {
    node: Arc<Node>,
    book: Arc<Book>,
    shared: Arc<Shared>,
}

impl Poll {
    pub(crate) fn new(node: &Arc<Node>, book: &Arc<Book>, shared: &Arc<Shared>) -> Poll {
        Poll { node: Arc::clone(node), book: Arc::clone(book), shared: Arc::clone(shared) }
    }

    /// Polls whenever nothing else observes the members.
    pub(super) async fn run(self) {
        loop {
            tokio::time::sleep(POLL_EVERY).await;
            self.unless_younger(POLL_EVERY).await;
        }
    }

    /// Has observations that are current.
    pub(crate) async fn refresh(&self) {
        self.unless_younger(CURRENT).await;
    }

    async fn unless_younger(&self, than: Duration) {
        let _turn = self.shared.polls.turn.lock().await;
        if self.shared.polls.age().is_some_and(|age| age < than) {
            return;
        }
        let LedgerSeen::There(ledger) = self.book.read() else { return };
        let Some((_, me)) = ledger.ids().filter(|_| !matches!(ledger.state, State::Tombstone(_))) else { return };
        let members = self.members(&ledger, me);
        if members.is_empty() {
            return;
        }
        let mut asked = JoinSet::new();
        for member in members {
            let settings = match MemberId(member.id) == me {
                true => self.node.client(),
                false => self.node.client_at(member.client_urls.iter().take(1).cloned().collect()),
            };
            asked.spawn(async move {
                if member.client_urls.is_empty() {
                    return (member, Err(Fault::new(Code::EtcdUnreachable, "it has not started")));
                }
                let status = async {
                    let mut settings = settings?;
                    settings.timeout = settings.timeout.min(POLL_LIMIT);
                    Client::connect(&settings).await?.status().await
                };
                let status = match tokio::time::timeout(POLL_LIMIT, status).await {
                    Ok(status) => status,
                    Err(_) => {
                        Err(Fault::new(Code::EtcdUnreachable, format!("no answer within {} s", POLL_LIMIT.as_secs())))
                    }
                };
                (member, status)
            });
        }
        let (mut polled, mut refused) = (Vec::new(), Vec::new());
        while let Some(answer) = asked.join_next().await {
            let Ok((member, status)) = answer else { continue };
            // A refusal is an answer: where users are kept, an agent without one learns no more.
            if status.as_ref().is_err_and(|fault| fault.code() == Code::EtcdRefused) {
                refused.push(MemberId(member.id).to_string());
            }
            polled.push((member, status.map_err(|fault| in_words(&fault))));
        }
        polled.sort_by(|(a, _), (b, _)| a.name.cmp(&b.name));
        self.shared.publish(&polled, None);
        let now = Instant::now();
        lock(&self.shared.polls.known).answered.extend(refused.into_iter().map(|id| (id, now)));
    }

    /// The members: as a quorum last listed them to this agent, else as the ledger has them.
    fn members(&self, ledger: &Ledger, me: MemberId) -> Vec<Member> {
        let listed = lock(&self.shared.polls.known).listed.clone();
        // After a recovery this node has another id, and the list is another one.
        if listed.iter().any(|member| member.id == me.0) {
            return listed;
        }
        let confirmed = ledger.confirmed.iter().flat_map(|confirmed| &confirmed.members);
        let member = |member: &quorate_plan::ledger::ConfirmedMember| Member {
            id: member.id.0,
            name: member.name.clone(),
            peer_urls: member.peer_urls.clone(),
            client_urls: self.node.spec.member(&member.name).map(|known| known.client_urls.clone()).unwrap_or_default(),
            is_learner: member.learner,
        };
        confirmed.map(member).collect()
    }
}

impl Shared {
    /// A quorum has confirmed this list and this leader just now.
    pub(super) fn confirmed(&self, members: &[Polled], leader: MemberId) {
        lock(&self.polls.known).listed = members.iter().map(|(member, _)| member.clone()).collect();
        self.publish(members, Some(leader));
    }

    fn publish(&self, members: &[Polled], confirmed: Option<MemberId>) {
        let leads = |(member, status): &&Polled| status.as_ref().is_ok_and(|status| status.leader == member.id);
        let claims = members.iter().filter(leads);
        // An old leader that is cut off believes so for a moment: the higher term is right.
        let claimed = claims.max_by_key(|(_, status)| status.as_ref().map_or(0, |status| status.raft_term));
        let leader = confirmed.filter(|leader| leader.0 != 0).or(claimed.map(|(member, _)| MemberId(member.id)));
        let shown: Vec<MemberNow> = members_now(members, leader);
        {
            let (mut known, now) = (lock(&self.polls.known), Instant::now());
            known.at = Some(now);
            known.answered.retain(|id, _| shown.iter().any(|member| member.id == *id));
            known.answered.extend(shown.iter().filter(|member| member.answers).map(|member| (member.id.clone(), now)));
        }
        // Clients' addresses may be closed between nodes: while reads succeed, there is a quorum.
        let reads = confirmed.is_some() || self.read_age().is_some_and(|age| age < READ_HOLDS);
        let lost = quorum_lost(&shown).filter(|_| !reads);
        if let Some(notice) = lost.as_ref().filter(|_| self.readiness().0 == Phase::Serving) {
            self.read(false);
            self.halt(Phase::Waiting, &halt_of(notice));
        }
        let notices = [lost, corrupt(members)];
        let now = now_ms();
        self.change(|status| {
            let before = status.cluster.as_ref().map_or(0, |cluster| cluster.seen_ms);
            let seen_ms = if confirmed.is_some() { now } else { before };
            status.cluster = Some(ClusterNow { seen_ms, polled_ms: now, age_ms: None, members: shown });
        });
        self.warnings(&[Code::QuorumLost, Code::CorruptAlarm], notices.into_iter().flatten().collect());
    }

    /// Whether a member was seen with another release than this one.
    pub(super) fn another_release(&self, version: &str) -> bool {
        let own = self.status();
        let members = own.cluster.iter().flat_map(|cluster| &cluster.members);
        let others = members.filter(|member| Some(&member.id) != own.member_id.as_ref());
        others.filter_map(|member| member.version.as_deref()).any(|other| other != version)
    }

    /// What was observed is not how it is any more.
    pub(crate) fn expire_polls(&self) {
        lock(&self.polls.known).at = None;
    }

    /// Why there is no quorum, as observed within seconds.
    pub(super) fn quorum_lost(&self) -> Option<Notice> {
        let current = self.polls.age().is_some_and(|age| age < POLL_EVERY * 2);
        let cluster = self.status().cluster.filter(|_| current)?;
        quorum_lost(&cluster.members)
    }
}

fn halt_of(notice: &Notice) -> Halt {
    let way_out = notice.way_out.clone().unwrap_or_default();
    Halt { code: Code::QuorumLost, why: notice.text.clone(), way_out, lost: None }
}

fn members_now(members: &[Polled], leader: Option<MemberId>) -> Vec<MemberNow> {
    let number = |value: i64| u64::try_from(value).ok();
    let applied = |status: &StatusResponse| status.raft_applied_index.max(status.raft_index);
    let answers = members.iter().filter_map(|(_, status)| status.as_ref().ok());
    let furthest = answers.map(applied).max().unwrap_or(0);
    let one = |(member, status): &Polled| {
        let role = match () {
            () if Some(MemberId(member.id)) == leader => "leader",
            () if member.is_learner => "learner",
            () => "voter",
        };
        let now = MemberNow {
            id: MemberId(member.id).to_string(),
            name: member.name.clone(),
            role: role.to_owned(),
            takes_part: Some(status.as_ref().is_ok_and(|status| status.leader != 0)),
            ..MemberNow::default()
        };
        match status {
            Err(why) => MemberNow { why: Some(why.clone()), ..now },
            Ok(status) => MemberNow {
                answers: true,
                term: Some(status.raft_term),
                version: Some(status.version.clone()),
                revision: status.header.as_ref().and_then(|header| number(header.revision)),
                lag: Some(furthest.saturating_sub(applied(status))),
                db_bytes: number(status.db_size),
                ..now
            },
        }
    };
    members.iter().map(one).collect()
}

/// Fewer voters answer than a quorum needs. Voters that answer and see no leader may be about to elect one.
fn quorum_lost(members: &[MemberNow]) -> Option<Notice> {
    let voters: Vec<&MemberNow> = members.iter().filter(|member| member.role != "learner").collect();
    let (answer, silent): (Vec<&MemberNow>, Vec<_>) = voters.iter().copied().partition(|member| member.answers);
    let count = Count { voters: voters.len(), alive: answer.len() };
    // Of a member alone, its phase says all.
    if count.has_quorum() || voters.len() < 2 {
        return None;
    }
    let silent: Vec<&str> = silent.into_iter().map(|member| member.name.as_str()).collect();
    let (alive, all, needed) = (count.alive, count.voters, count.needed());
    let text = format!(
        "quorum lost: {alive} of {all} voters answer, {needed} are needed; silent: {}",
        names(silent.iter().copied())
    );
    Some(
        Notice::new(Code::QuorumLost, text)
            .way_out(format!("bring {} back; if that is impossible, run `quorate cluster recover`", one_of(&silent))),
    )
}

/// `n2 or n3`.
fn one_of(names: &[&str]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(" or ")
}

/// etcd's own checks have found that members hold other data than the others.
fn corrupt(members: &[Polled]) -> Option<Notice> {
    let answers = members.iter().filter_map(|(_, status)| status.as_ref().ok());
    let corrupt: std::collections::BTreeSet<MemberId> = answers.flat_map(|status| corrupt_in(&status.errors)).collect();
    if corrupt.is_empty() {
        return None;
    }
    let name = |id: &MemberId| match members.iter().find(|(member, _)| member.id == id.0) {
        Some((member, _)) => format!("`{}`", member.name),
        None => "a member that it does not name".to_owned(),
    };
    let whom = corrupt.iter().map(name).collect::<Vec<_>>().join(", ");
    let text = format!("etcd has raised the alarm CORRUPT for {whom}, and takes no writes until it is cleared");
    Some(
        Notice::new(Code::CorruptAlarm, text)
            .way_out("find the damaged member and replace its data: `quorate explain Q1442`"),
    )
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
