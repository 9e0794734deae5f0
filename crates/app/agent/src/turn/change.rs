//! Carries out this agent's part of a change of the cluster: one step, then look again.
//!
//! **Invariant:** a step is taken only if the decision (`plan/change`), its independent audit and a proof with what is seen this
//! very moment all agree to it; what it came to is seen at the next look, never remembered.

use std::collections::BTreeMap;

use quorate_etcd::client::{Client, Downgrade};
use quorate_etcd_formats::membership::MemberId;
use quorate_faults::{Code, Fault};
use quorate_plan::change::{
    Act, ChangePlan, ChangeStep, ClusterView, NodeNow, NodeSeen, Stage, Who, corrupt_in, next_for, plan_for_agents,
};
use quorate_plan::check::check_change;
use quorate_plan::etcd_config::Minor;
use quorate_plan::ledger::{Ledger, LedgerSeen};
use quorate_plan::quorum::Change;
use quorate_plan::start::{ClusterSeen, Health, ListedMember};
use tracing::info;

use super::beside::{Beside, Survey};
use super::cluster::{Heard, hear_all, listed_member};
use super::data::in_words;
use super::membership::{Through, prove, through};
use super::publish::now_ms;
use super::status::Notice;
use crate::peering::point;
use crate::peers::{PlanAnswer, Upkeep};

/// What etcd says when it is asked a second time.
const DOWNGRADE_BEGUN: &str = "downgrade job in progress";

/// What this agent did of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Took {
    /// There was nothing for it to do.
    Nothing,
    /// A step.
    Step,
    /// It tried, and was told no for now.
    Refused,
}

impl Beside {
    /// Decides what this agent does now for the whole cluster, and does it.
    pub(super) async fn change(&self, survey: &Survey, heard: &Heard) -> Took {
        let view = self.view(survey, heard);
        let plan = plan_for_agents(&view, &self.node.spec);
        self.tell(&plan);
        let Some(step) = next_for(&view, &self.node.spec, self.node.name()) else {
            self.waits(&plan, None);
            return Took::Nothing;
        };
        if step.act.is_wait() {
            self.waits(&plan, None);
            return Took::Nothing;
        }
        if let Err(broken) = check_change(&self.node.spec, &view, &plan) {
            let text = format!("a step was not taken: {}", broken.join("; "));
            self.shared.warnings(&[Code::PlanRefused], vec![Notice::new(Code::PlanRefused, text)]);
            return Took::Refused;
        }
        self.shared.warnings(&[Code::PlanRefused], Vec::new());
        match self.take(&step, survey, &view).await {
            Ok(took) => {
                self.waits(&plan, None);
                took
            }
            Err(fault) => {
                self.waits(&plan, Some((&step, &fault)));
                Took::Refused
            }
        }
    }

    /// The whole cluster, for the decision.
    fn view(&self, survey: &Survey, heard: &Heard) -> ClusterView {
        let one = |(member, status): &(quorate_etcd::client::messages::Member, Result<_, String>)| {
            let status: &Result<quorate_etcd::client::messages::StatusResponse, String> = status;
            let health = match status {
                Ok(status) if status.leader == 0 => Health::Unhealthy("it knows no leader".to_owned()),
                Ok(_) => Health::Healthy,
                Err(why) => Health::Unknown(why.clone()),
            };
            ListedMember { health, ..listed_member(member) }
        };
        let indexes = survey
            .members
            .iter()
            .filter_map(|(member, status)| status.as_ref().ok().map(|status| (MemberId(member.id), status.raft_index)));
        let answered =
            || survey.members.iter().filter_map(|(member, status)| Some((MemberId(member.id), status.as_ref().ok()?)));
        let applied = answered().map(|(id, status)| (id, status.raft_applied_index)).filter(|(_, index)| *index > 0);
        let corrupt = answered().flat_map(|(_, status)| corrupt_in(&status.errors));
        let differing = heard.values().flatten().flat_map(|answer| answer.differing.iter().copied());
        let ledger = self.ledger();
        let stored = heard.values().flatten().filter_map(|answer| answer.stored_revision);
        let mut nodes: BTreeMap<String, NodeSeen> = heard
            .iter()
            .map(|(name, answer)| {
                let seen = match answer {
                    Ok(answer) => NodeSeen::Answered(Box::new(answer.now())),
                    Err(error) => NodeSeen::Unknown(error.to_string()),
                };
                (name.clone(), seen)
            })
            .collect();
        nodes.insert(self.node.name().to_owned(), NodeSeen::Answered(Box::new(self.own(&ledger))));
        ClusterView {
            cluster: ClusterSeen::Confirmed {
                cluster: survey.cluster,
                members: survey.members.iter().map(one).collect(),
            },
            leader: (survey.leader.0 != 0).then_some(survey.leader),
            indexes: indexes.collect(),
            applied: applied.collect(),
            corrupt: corrupt.collect(),
            differing: differing.chain(self.shared.differing()).collect(),
            nodes,
            learner: ledger.learner,
            stored: stored.chain(self.shared.stored_revision()).max(),
            now_ms: now_ms(),
            learner_up_ms: u64::try_from(self.node.spec.maintenance.join_timeout.as_millis()).unwrap_or(u64::MAX),
        }
    }

    fn own(&self, ledger: &Ledger) -> NodeNow {
        NodeNow {
            generation: ledger.generation,
            file: self.node.spec.hash(),
            stage: Stage::of(ledger),
            member: ledger.ids().map(|(_, member)| member),
            etcd: self.shared.status().etcd.and_then(|etcd| etcd.version),
            storage: self.shared.storage(),
            v2_entries: self.shared.old_entries().map(|(count, _)| count),
            log: self.shared.old_entries().map(|(_, log)| log),
            restart: self.shared.restart(),
            intent: ledger.intent.as_ref().map(|intent| intent.kind),
            // Its own turn is no reason against taking it.
            pausing: self.shared.upkeep() == Upkeep::Running && !self.shared.restarting(),
            since: self.shared.since(),
        }
    }

    fn ledger(&self) -> Ledger {
        match self.book.read() {
            LedgerSeen::There(ledger) => *ledger,
            LedgerSeen::Absent | LedgerSeen::Unreadable(_) => Ledger::default(),
        }
    }

    async fn take(&self, step: &ChangeStep, survey: &Survey, view: &ClusterView) -> Result<Took, Fault> {
        match &step.act {
            Act::Promote(who) => self.member_step(who, Change::Promote, step).await,
            Act::Remove(who) | Act::UndoLearner(who) => {
                let Some(id) = who.id else { return Ok(Took::Nothing) };
                self.member_step(who, Change::Remove(id), step).await
            }
            Act::MoveLeader { from, to } => self.move_leader(from, to, survey).await,
            Act::ChangeUrls { who, urls } => {
                let Some(id) = who.id else { return Ok(Took::Nothing) };
                let client = Client::connect(&self.node.client()?).await?;
                let Through { client, .. } = through(&client, &self.book.read()).await?;
                client.member_update(id.0, urls.clone()).await?;
                let now = urls.join(",");
                self.shared.done(format!("told the cluster that peers reach {who} at `{now}`"));
                Ok(Took::Step)
            }
            Act::Backup => {
                // What came of it is seen by the revision that the store holds.
                if self.shared.order_backup(view.to_be_stored().unwrap_or(0)) {
                    info!("{} ({})", step.act, step.why);
                }
                Ok(Took::Nothing)
            }
            Act::SnapshotLog => self.snapshot_log(step).await,
            Act::EnableDowngrade(minor) => self.enable_downgrade(*minor, step).await,
            Act::Restart { who, .. } | Act::Stop(who) if who.node == self.node.name() => self.pause(step).await,
            // Done by a start, by another node, by an operator, or by waiting.
            Act::Restart { .. }
            | Act::Stop(_)
            | Act::Distribute { .. }
            | Act::AddLearner(_)
            | Act::WaitCaughtUp(_)
            | Act::WaitExit(_)
            | Act::Bury(_) => Ok(Took::Nothing),
        }
    }

    /// Promotes or removes a member: through another one, where it is this one that leaves.
    async fn member_step(&self, who: &Who, change: Change, step: &ChangeStep) -> Result<Took, Fault> {
        let Some(id) = who.id else { return Ok(Took::Nothing) };
        let mine = self.ledger().ids().is_some_and(|(_, member)| member == id);
        let settings = if mine { self.node.client_of_others()? } else { self.node.client()? };
        let Through { client, list } = through(&Client::connect(&settings).await?, &self.book.read()).await?;
        let Some(member) = list.members.iter().find(|member| member.id == id.0) else { return Ok(Took::Nothing) };
        let named = if member.name.is_empty() { who.node.clone() } else { member.name.clone() };
        prove(&self.node, &list, change, &named).await?;
        info!("{} ({})", step.act, step.why);
        match change {
            Change::Promote => {
                client.member_promote(id.0).await?;
                point("promoted");
            }
            _ => {
                client.member_remove(id.0).await?;
                point("removed");
            }
        }
        self.shared.done(format!("{} ({})", step.act, step.why));
        Ok(Took::Step)
    }

    /// Has the cluster store its data as the earlier release reads it; the members do that by themselves, in their time.
    async fn enable_downgrade(&self, minor: Minor, step: &ChangeStep) -> Result<Took, Fault> {
        let client = Client::connect(&self.node.client()?).await?;
        let Through { client, .. } = through(&client, &self.book.read()).await?;
        match client.downgrade(Downgrade::Enable, &minor.to_string()).await {
            Ok(_) => {
                info!("{} ({})", step.act, step.why);
                self.shared.done(format!("{} ({})", step.act, step.why));
                Ok(Took::Step)
            }
            Err(fault) if in_words(&fault).contains(DOWNGRADE_BEGUN) => Ok(Took::Nothing),
            Err(fault) => Err(fault),
        }
    }

    /// Has the leader hand over; it takes this from anyone who administers it.
    async fn move_leader(&self, from: &Who, to: &Who, survey: &Survey) -> Result<Took, Fault> {
        let listed = |who: &Who| survey.members.iter().find(|(member, _)| Some(MemberId(member.id)) == who.id);
        let (Some((leader, _)), Some((next, _))) = (listed(from), listed(to)) else { return Ok(Took::Nothing) };
        let url = leader.client_urls.first().cloned().into_iter().collect();
        let client = Client::connect(&self.node.client_at(url)?).await?;
        let Through { client, .. } = through(&client, &self.book.read()).await?;
        client.move_leader(next.id).await?;
        point("handed-over");
        info!("handed leadership from {from} to {to}");
        Ok(Took::Step)
    }

    /// Stops this member, to be started again or not: one at a time, and only if the decision still holds once it is announced.
    async fn pause(&self, step: &ChangeStep) -> Result<Took, Fault> {
        self.shared.set_restarting(true);
        let ordered = self.still(step).await;
        match ordered {
            Ok(true) => {
                info!("{} ({})", step.act, step.why);
                self.shared.order_restart(step.why.clone());
                Ok(Took::Step)
            }
            Ok(false) | Err(_) => {
                self.shared.set_restarting(false);
                ordered.map(|_| Took::Nothing)
            }
        }
    }

    async fn still(&self, step: &ChangeStep) -> Result<bool, Fault> {
        let client = Client::connect(&self.node.client()?).await?;
        let survey = self.survey(&client).await?;
        let heard = hear_all(&self.peers, &self.book.read()).await;
        let view = self.view(&survey, &heard);
        let next = next_for(&view, &self.node.spec, self.node.name());
        let other = heard.values().flatten().any(|answer| answer.upkeep == Upkeep::Running);
        Ok(!other && next.is_some_and(|next| next.act == step.act))
    }

    /// Shows the plan to whoever asks.
    fn tell(&self, plan: &ChangePlan) {
        if plan.steps.is_empty() && plan.halt.is_none() {
            return self.shared.set_plan(PlanAnswer::default());
        }
        let shown = |step: &ChangeStep| match &step.proof {
            Some(proof) => format!("{step} ({proof})"),
            None => step.to_string(),
        };
        self.shared.set_plan(PlanAnswer {
            because: "the cluster is not as its file declares it".to_owned(),
            steps: plan.steps.iter().map(shown).collect(),
            waiting: plan.halt.as_ref().is_some_and(|halt| !halt.refused),
            refused: plan.halt.as_ref().is_some_and(|halt| halt.refused),
            ..PlanAnswer::default()
        });
    }

    /// Shows what a change waits for.
    fn waits(&self, plan: &ChangePlan, failed: Option<(&ChangeStep, &Fault)>) {
        let text = match (failed, &plan.halt) {
            (Some((step, fault)), _) => Some(format!("{}: not yet: {}", step.act, in_words(fault))),
            (None, Some(halt)) => Some(format!("a change of the cluster waits: {}", halt.halt.why)),
            (None, None) => None,
        };
        let notices = text.map(|text| Notice::new(Code::ChangeWaits, text));
        self.shared.warnings(&[Code::ChangeWaits], notices.into_iter().collect());
    }
}
