//! What goes on beside a running etcd because there are others: from learner to voter, the confirmed list, where peers reach us,
//! and whether all is as declared.
//!
//! **Rule:** what is found is written down or shown; nothing is repaired by guessing. A member list is believed only when a
//! quorum confirmed it just now.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quorate_etcd::client::Client;
use quorate_etcd::client::messages::{Member, StatusResponse};
use quorate_etcd_formats::membership::{ClusterId, MemberId};
use quorate_faults::{Code, Fault};
use quorate_plan::change::{Restart, note_learner};
use quorate_plan::ledger::{
    Confirmed, ConfirmedMember, Identity, IntentKind, Ledger, LedgerSeen, Origin, PendingAdd, State,
};
use quorate_plan::peers::{self, Told};
use quorate_plan::phase::Phase;
use quorate_plan::start::ListedMember;
use tokio::task::JoinSet;
use tracing::{debug, info, warn};

use super::book::Book;
use super::change::Took;
use super::cluster::{Heard, hear_all, listed_member, quorum_list};
use super::compare::{Compared, compare};
use super::data::in_words;
use super::drift;
use super::etcd::{self, Program, RESTART_PENDING, TAKEN_WITH_OTHERS};
use super::execute::halted;
use super::first_word::{self, FirstWord};
use super::fork;
use super::node::Node;
use super::publish::{Shared, now_ms};
use super::recovering;
use super::role::Leader;
use super::silent_leader::{Silent, observe_leader};
use super::status::Notice;
use super::talk::LogPosition;
use crate::peers::Peers;

/// Between two surveys of a cluster that serves.
const SURVEY_EVERY: Duration = Duration::from_secs(2);
/// Between two looks at a member that starts or learns.
const SOON: Duration = Duration::from_millis(100);
/// The same for one that joins, at first: somebody waits for it, and it has nothing else to do.
const NEWCOMER: Duration = Duration::from_millis(20);
/// How long another member may take to tell its status.
const STATUS_LIMIT: Duration = Duration::from_secs(2);
/// The time of a confirmed list is written anew no more often than this.
const CONFIRMED_AGE_MS: u64 = 10 * 60 * 1000;

/// The work, and what it works with.
pub(super) struct Beside {
    pub(super) node: Arc<Node>,
    pub(super) book: Arc<Book>,
    pub(super) peers: Arc<Peers>,
    pub(super) shared: Arc<Shared>,
    /// When it was last recorded how far members are.
    pub(super) recorded: Option<Instant>,
    /// When hashes were last compared.
    pub(super) hashed: Option<Instant>,
    /// The leader's agent, while it does not answer.
    pub(super) silent_leader: Option<Silent>,
    /// Other recovered clusters of this generation that were reported, and since when.
    pub(super) met: BTreeMap<ClusterId, Instant>,
    /// It is recorded in the cluster where its history begins.
    pub(super) began: bool,
    /// The learner that was last seen, and since when.
    pub(super) learner: Option<(MemberId, Instant)>,
    /// The program that the next start would take.
    program: Option<Program>,
    /// Since when this member knows no leader.
    pub(super) leaderless: Option<Instant>,
    /// The connection to this member, for as long as it answers.
    pub(super) client: Option<Client>,
    /// That of a newcomer may get lost.
    first_word: FirstWord,
    /// The connection of a newcomer to the others, for as long as they answer.
    pub(super) others: Option<Client>,
}

/// What one turn came to.
enum Turn {
    /// This member does not vote yet.
    Learns,
    /// All members were looked at, and this was done about it.
    Surveyed(Took),
}

/// One look at all members.
pub(super) struct Survey {
    pub(super) cluster: ClusterId,
    pub(super) me: MemberId,
    pub(super) leader: MemberId,
    /// The cluster's, at least: read after a quorum had confirmed the list.
    pub(super) revision: u64,
    pub(super) members: Vec<(Member, Result<StatusResponse, String>)>,
}

impl Beside {
    pub(super) fn new(node: &Arc<Node>, book: &Arc<Book>, peers: &Arc<Peers>, shared: &Arc<Shared>) -> Beside {
        let (node, book) = (Arc::clone(node), Arc::clone(book));
        let first_word = FirstWord::new(&node, &book.read());
        Beside {
            first_word,
            node,
            book,
            peers: Arc::clone(peers),
            shared: Arc::clone(shared),
            recorded: None,
            hashed: None,
            silent_leader: None,
            met: BTreeMap::new(),
            began: false,
            learner: None,
            program: None,
            leaderless: None,
            client: None,
            others: None,
        }
    }

    /// Goes on until it is dropped.
    pub(super) async fn run(mut self) {
        let joins =
            matches!(self.book.read(), LedgerSeen::There(ledger) if matches!(ledger.state, State::PendingAdd(_)));
        let mut wait = if joins { NEWCOMER } else { SOON };
        loop {
            let turn = self.turn().await;
            if turn.is_err() {
                // Certificates and settings may be others by now.
                self.client = None;
            }
            match turn {
                Ok(Turn::Surveyed(took)) => {
                    wait = SOON;
                    let pause = match took {
                        Took::Nothing => SURVEY_EVERY,
                        Took::Step => SOON,
                        Took::Refused => SOON * 5,
                    };
                    self.shared.survey_pause(pause).await;
                    continue;
                }
                Ok(Turn::Learns) => {}
                // That reads fail is told by the phase; a user without the right to ask is a choice.
                Err(fault) => {
                    tracing::debug!(code = %fault.code(), "beside etcd: {}", in_words(&fault));
                    if self.first_word.is_lost() {
                        self.shared.order_restart(first_word::WHY);
                    }
                    self.heed_recovery().await;
                    self.heal_alone().await;
                    if joins {
                        // While etcd starts there is time for it, if it is short.
                        let _ = tokio::time::timeout(SOON * 3, self.others()).await;
                    }
                }
            }
            if self.first_word.waits() {
                wait = NEWCOMER;
            }
            // Soon at first, since most starts and most learners are quick.
            tokio::time::sleep(wait).await;
            wait = (wait * 5 / 4).min(SURVEY_EVERY);
        }
    }

    /// Without a quorum this may be the last member that has not heard of a recovery: the others have stopped.
    async fn heed_recovery(&mut self) {
        let heard = hear_all(&self.peers, &self.book.read()).await;
        self.heed(&heard).await;
    }

    /// Whether the cluster was recovered without this member, which stops then. That is written down first: whoever told it may be
    /// silent when it looks again.
    async fn heed(&mut self, heard: &Heard) -> bool {
        let ledger = self.book.read();
        self.note_rivals(heard, &ledger);
        let decided = recovering::told(heard, &ledger).filter(|told| match told {
            Told::Own(_) => true,
            Told::Newer(newer) => match fork::is_in_order(heard, &ledger, *newer) {
                Ok(()) => true,
                Err(why) => {
                    let text = format!("the verdict against another recovery is not followed: {why}");
                    self.shared.log(&Notice::new(Code::Internal, text));
                    false
                }
            },
        });
        let Some(told) = decided.or_else(|| self.late_verdict(heard, &ledger)) else { return false };
        let written = self.write(move |ledger| match told {
            Told::Own(number) => *ledger = ledger.of_generation(number),
            Told::Newer(newer) => *ledger = ledger.outdated_by(newer),
        });
        if let Err(fault) = written.await {
            warn!(code = %fault.code(), "cannot write down that there is a newer generation: {}", in_words(&fault));
        }
        let Told::Newer(newer) = told else { return false };
        self.shared.order_restart(format!("there is generation {} of this cluster, which wins", newer.number));
        true
    }

    async fn turn(&mut self) -> Result<Turn, Fault> {
        if self.is_torn_down() {
            // No quorum is asked: the last ones have none any more.
            self.shared.order_restart("the cluster is being torn down");
            return Ok(Turn::Surveyed(Took::Nothing));
        }
        let client = match self.client.take() {
            Some(client) => client,
            None => Client::connect(&self.node.client()?).await?,
        };
        self.client = Some(client.clone());
        let status = self.status(&client).await?;
        self.first_word.heard();
        self.leaderless = if status.leader == 0 { self.leaderless.or_else(|| Some(Instant::now())) } else { None };
        if status.is_learner {
            let promoted = self.promote(&status).await;
            if promoted.is_err() {
                self.others = None;
            }
            return promoted.map(|()| Turn::Learns);
        }
        self.finish_joining().await?;
        let storage = Some(status.storage_version.clone()).filter(|version| !version.is_empty());
        self.shared.set_storage(storage);
        self.notice_old_entries(&status.version).await;
        self.shared.saw_version(&status.version);
        let survey = self.survey(&client).await?;
        self.shared.saw_revision(status.header.as_ref().map_or(0, |header| header.revision));
        self.remember(&survey).await?;
        self.notice_settings().await;
        let takes_part = |(member, status): &(Member, Result<StatusResponse, String>)| {
            member.is_learner || status.as_ref().is_ok_and(|status| status.leader != 0)
        };
        self.shared.note_since(survey.revision, !survey.members.iter().all(takes_part));
        if let Err(fault) = self.learn_recovery(&client, &survey).await {
            debug!(code = %fault.code(), "where this recovered cluster begins is not recorded: {}", in_words(&fault));
        }
        let heard = hear_all(&self.peers, &self.book.read()).await;
        self.meet_forks(&client, &survey, &heard).await;
        if self.heed(&heard).await || self.heed_rollback(&survey, &heard).await {
            return Ok(Turn::Surveyed(Took::Nothing));
        }
        self.record_progress(&survey, &heard).await;
        self.finish_take_over(&survey, &heard).await;
        drift::look(self, &survey, &heard).await;
        observe_leader(self, &survey, &heard);
        // Once it serves again, others may.
        if self.shared.restarting() && self.shared.readiness().0 == Phase::Serving && self.shared.restart().is_none() {
            self.shared.set_restarting(false);
        }
        Ok(Turn::Surveyed(self.change(&survey, &heard).await))
    }

    /// The status of this member. A newcomer keeps who asks waiting until it serves.
    async fn status(&mut self, client: &Client) -> Result<StatusResponse, Fault> {
        if !self.first_word.waits() {
            return client.status().await;
        }
        tokio::select! {
            status = client.status() => status,
            () = self.first_word.lost() => {
                self.shared.order_restart(first_word::WHY);
                Err(Fault::new(Code::EtcdUnreachable, "etcd does not serve yet"))
            }
        }
    }

    /// A member that votes has joined.
    async fn finish_joining(&self) -> Result<(), Fault> {
        let LedgerSeen::There(ledger) = self.book.read() else { return Ok(()) };
        let State::PendingAdd(PendingAdd { cluster, member: Some(member), .. }) = ledger.state else { return Ok(()) };
        let identity = Identity { cluster, member, origin: Origin::Joined };
        self.write(move |ledger| *ledger = ledger.with(State::Started(identity))).await?;
        self.shared.change(|status| status.ledger = "started".to_owned());
        Ok(())
    }

    fn is_torn_down(&self) -> bool {
        let intent = match self.book.read() {
            LedgerSeen::There(ledger) => ledger.intent.map(|intent| intent.kind),
            LedgerSeen::Absent | LedgerSeen::Unreadable(_) => None,
        };
        intent == Some(IntentKind::Teardown)
    }

    /// Compares what etcd runs with, and what its next start would bring: files change under a running agent.
    pub(super) async fn notice_settings(&mut self) {
        let (node, before) = (Arc::clone(&self.node), self.program.take());
        let looked = tokio::task::spawn_blocking(move || {
            let program = Program::find(&node, before.as_ref())?;
            let config = etcd::config(&node, &program)?;
            Ok::<_, Fault>((program, config))
        });
        // What cannot be rendered now was refused or will be at the next start; it is no reason to doubt what runs.
        let Ok(Ok((program, config))) = looked.await else { return };
        let Compared { restart, awaits } = compare(&self.node, &program, &config, &self.shared);
        self.program = Some(program);
        let notice = restart.as_ref().map(|Restart { why, .. }| match awaits {
            true => Notice::new(Code::SettingsChanged, TAKEN_WITH_OTHERS).way_out(RESTART_PENDING),
            false => Notice::new(Code::SettingsChanged, format!("etcd is started again in its turn: {why}"))
                .way_out("nothing: its agent restarts it; whose turn it is: `quorate cluster plan`"),
        });
        self.shared.warnings(&[Code::SettingsChanged], notice.into_iter().collect());
        self.shared.change(|status| {
            if let Some(etcd) = &mut status.etcd {
                etcd.settings_current = restart.is_none();
            }
        });
        self.shared.set_restart(restart.filter(|_| !awaits));
    }

    /// Asks a quorum for the list, and every member for its status.
    pub(super) async fn survey(&self, client: &Client) -> Result<Survey, Fault> {
        let list = quorum_list(client).await?;
        let own = client.status().await?;
        let missing = || Fault::new(Code::EtcdUnreachable, "an answer of etcd without a header");
        let header = own.header.ok_or_else(missing)?;
        let mut asked = JoinSet::new();
        for mut member in list.members {
            // etcd 3.4 lists a voter without its name until that has told it; the file knows whose URL it is.
            if member.name.is_empty() && !member.is_learner {
                let mut declared = self.node.spec.members.iter();
                let its = declared.find(|one| one.peer_urls.iter().any(|url| member.peer_urls.contains(url)));
                member.name = its.map(|its| its.name.clone()).unwrap_or_default();
            }
            if member.id == header.member_id {
                let own = own.clone();
                asked.spawn(async move { (member, Ok(own)) });
                continue;
            }
            let settings = member.client_urls.first().cloned().map(|url| self.node.client_at(vec![url])).transpose()?;
            asked.spawn(async move {
                let Some(mut settings) = settings else { return (member, Err("it has not started".to_owned())) };
                settings.timeout = settings.timeout.min(STATUS_LIMIT);
                let status = async { Client::connect(&settings).await?.status().await };
                let status = status.await.map_err(|fault| in_words(&fault));
                (member, status)
            });
        }
        let mut members = Vec::new();
        while let Some(answer) = asked.join_next().await {
            members.push(answer.map_err(halted)?);
        }
        members.sort_by(|(a, _), (b, _)| a.name.cmp(&b.name));
        let survey = Survey {
            cluster: ClusterId(header.cluster_id),
            me: MemberId(header.member_id),
            leader: MemberId(own.leader),
            revision: u64::try_from(header.revision).unwrap_or(0),
            members,
        };
        self.shared.confirmed(&survey.members, survey.leader);
        let positions = survey.members.iter().map(|(member, status)| {
            let position = |status: &StatusResponse| LogPosition { index: status.raft_index, term: status.raft_term };
            (MemberId(member.id), status.as_ref().ok().map(position))
        });
        self.shared.saw_positions(&positions.collect::<Vec<_>>());
        let answered = survey.members.iter().filter(|(_, status)| status.is_ok());
        self.shared.saw_members(answered.map(|(member, _)| MemberId(member.id)).collect());
        let leader = survey.members.iter().find(|(member, _)| MemberId(member.id) == survey.leader);
        self.shared.saw_leader(match leader {
            Some((member, _)) if MemberId(member.id) == survey.me => Leader::Me,
            Some((member, _)) => Leader::Other(member.name.clone()),
            None => Leader::Unknown,
        });
        Ok(survey)
    }

    /// Writes the confirmed list into the ledger, and who has started.
    async fn remember(&self, survey: &Survey) -> Result<(), Fault> {
        let members: Vec<ConfirmedMember> = survey
            .members
            .iter()
            .map(|(member, _)| ConfirmedMember {
                id: MemberId(member.id),
                name: member.name.clone(),
                peer_urls: member.peer_urls.clone(),
                learner: member.is_learner,
            })
            .collect();
        let listed: Vec<ListedMember> = survey.members.iter().map(|(member, _)| listed_member(member)).collect();
        let (now, cluster, me) = (now_ms(), survey.cluster, self.node.name().to_owned());
        let node = Arc::clone(&self.node);
        self.write(move |ledger| {
            // What another cluster says does not belong into this ledger.
            if ledger.ids().map(|(ours, _)| ours) != Some(cluster) {
                return;
            }
            let fresh = ledger.confirmed.as_ref().is_some_and(|confirmed| {
                confirmed.members == members && now.saturating_sub(confirmed.at_ms) < CONFIRMED_AGE_MS
            });
            if !fresh {
                ledger.confirmed = Some(Confirmed { at_ms: now, members });
            }
            *ledger = peers::remember(ledger, &me, &listed, []);
            *ledger = peers::bury(ledger, &node.spec, &listed);
            *ledger = note_learner(ledger, &listed, now);
        })
        .await
        .map(|_| ())
    }

    pub(super) async fn write(&self, with: impl FnOnce(&mut Ledger) + Send + 'static) -> Result<Ledger, Fault> {
        let book = Arc::clone(&self.book);
        tokio::task::spawn_blocking(move || book.change(with)).await.map_err(halted)?
    }
}

/// Hands leadership to the voter that is furthest, if this member leads. The stop goes on whatever comes of it.
pub(super) async fn hand_over(node: &Arc<Node>, shared: &Shared) {
    let limit = node.spec.maintenance.stop.move_leader_timeout;
    let why = match tokio::time::timeout(limit, move_leader(node)).await {
        Ok(Ok(None)) => return,
        Ok(Ok(Some(to))) => return info!("handed leadership to member {to}"),
        Ok(Err(fault)) => in_words(&fault),
        Err(_) => format!("nobody took it within {}", quorate_plan::spec::duration_text(limit)),
    };
    shared.change(|status| status.done.push(format!("leadership was not handed over: {why}")));
    warn!(code = %Code::StillLeads, "leadership could not be handed over: {why}");
}

/// Hands leadership over for whoever asks; `None`: this member does not lead.
pub(crate) async fn hand_over_now(node: &Arc<Node>) -> Result<Option<MemberId>, Fault> {
    let limit = node.spec.maintenance.stop.move_leader_timeout;
    tokio::time::timeout(limit, move_leader(node)).await.unwrap_or_else(|_| {
        Err(Fault::new(Code::StillLeads, "leadership could not be handed over in time")
            .hint("see `quorate cluster status`, and try again"))
    })
}

async fn move_leader(node: &Arc<Node>) -> Result<Option<MemberId>, Fault> {
    let client = Client::connect(&node.client()?).await?;
    let own = client.status().await?;
    let me = own.header.as_ref().map_or(0, |header| header.member_id);
    if own.leader != me || me == 0 {
        return Ok(None);
    }
    let list = client.member_list(quorate_etcd::client::Consistency::Local).await?;
    let mut asked = JoinSet::new();
    for member in list.members.into_iter().filter(|member| member.id != me && !member.is_learner) {
        let Some(url) = member.client_urls.first().cloned() else { continue };
        let mut settings = node.client_at(vec![url])?;
        settings.timeout = settings.timeout.min(STATUS_LIMIT);
        asked.spawn(async move {
            let status = async { Client::connect(&settings).await?.status().await };
            Ok::<_, Fault>((member.id, status.await?.raft_index))
        });
    }
    let mut furthest: Option<(u64, u64)> = None;
    while let Some(answer) = asked.join_next().await {
        if let Ok(Ok((id, index))) = answer
            && furthest.is_none_or(|(_, known)| index > known)
        {
            furthest = Some((id, index));
        }
    }
    let Some((to, _)) = furthest else {
        // Alone in the list there is nobody to hand it to; with others that are silent there is no quorum to lead.
        return Ok(None);
    };
    client.move_leader(to).await?;
    Ok(Some(MemberId(to)))
}
