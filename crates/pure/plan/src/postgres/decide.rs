//! Decides what a node of a group does next.
//!
//! **Invariant:** nothing depends on what was done before, only on what is seen now. A group is asked for only by the leader
//! of the newest epoch, and only where the store has none; a node that is bound to one group is never bound to another.

use std::collections::{BTreeMap, BTreeSet};

use quorate_faults::{Code, Fault};

use super::records::{Group, Leader};
use super::returning::must_be_isolated;
use super::seen::{DataNow, LockNow, Mine, Seen, StoreNow, StoreSeen};
use super::step::PgStep;
use crate::roster::names;
use crate::spec::PgSpec;

/// The schema that is laid first.
const FIRST_SCHEMA: u32 = 1;

/// What is to be done, and what is waited for.
#[derive(Debug, Default)]
pub struct PgPlan {
    /// In this order; only the first is taken, then it is looked again.
    pub steps: Vec<PgStep>,
    /// Whom or what this node waits for.
    pub waiting: Option<String>,
    /// Why it cannot go on without a person.
    pub refused: Option<Fault>,
}

impl PgPlan {
    pub(super) fn do_(steps: Vec<PgStep>) -> PgPlan {
        PgPlan { steps, ..PgPlan::default() }
    }

    pub(super) fn wait(why: impl Into<String>) -> PgPlan {
        PgPlan { waiting: Some(why.into()), ..PgPlan::default() }
    }

    pub(super) fn refuse(fault: Fault) -> PgPlan {
        PgPlan { refused: Some(fault), ..PgPlan::default() }
    }

    /// Whether there is nothing to do and nothing to wait for.
    pub fn is_done(&self) -> bool {
        self.steps.is_empty() && self.waiting.is_none() && self.refused.is_none()
    }

    /// The plan in words, a line each.
    pub fn render(&self) -> String {
        let mut lines: Vec<String> = self.steps.iter().map(|step| format!("{:<13} {step}", step.name())).collect();
        lines.extend(self.waiting.iter().map(|why| format!("waiting for   {why}")));
        lines.extend(self.refused.iter().map(|fault| format!("refused       {fault} [{}]", fault.code())));
        if lines.is_empty() {
            lines.push("nothing to do".to_owned());
        }
        lines.join("\n") + "\n"
    }
}

/// Decides what node `me` does next.
pub fn next(spec: &PgSpec, me: &str, seen: &Seen) -> PgPlan {
    if spec.node(me).is_none() {
        let attempt = format!("`{me}` is no node of group `{}`", spec.group);
        return PgPlan::refuse(Fault::new(Code::PgNotDeclared, attempt).hint("name one of `postgres.nodes`"));
    }
    let isolated = must_be_isolated(me, seen);
    let mut steps = match own_server(&seen.mine, isolated) {
        Ok(steps) => steps,
        Err(fault) => return PgPlan::refuse(*fault),
    };
    let store = match &seen.store {
        StoreNow::Known(store) => store,
        // The server is of use to others without the store.
        StoreNow::Unknown(_) if !steps.is_empty() => return PgPlan::do_(steps),
        StoreNow::Unknown(why) => return PgPlan::wait(format!("the store: {why}")),
    };
    if !store.registered.contains_key(me) {
        steps.push(PgStep::Register);
    }
    if !steps.is_empty() {
        return PgPlan::do_(steps);
    }
    let case = Case { spec, me, mine: &seen.mine, store };
    match &store.records.group {
        None => case.without_group(),
        Some((group, _)) => case.with_group(group),
    }
}

/// Data dir, server, users. `isolated`: the server may not connect to other nodes, nor they to it.
fn own_server(mine: &Mine, isolated: bool) -> Result<Vec<PgStep>, Box<Fault>> {
    let foreign = |what: &str, why: &str| {
        let hint = "nothing of it was changed; give the node another data dir, or move this one away";
        Err(Box::new(Fault::new(Code::PgDataRefused, format!("the data dir {what}: {why}")).hint(hint)))
    };
    match &mine.data {
        DataNow::Foreign(why) => return foreign("is not this node's", why),
        DataNow::Unknown(why) => return foreign("cannot be looked at", why),
        DataNow::Absent => return Ok(vec![PgStep::InitData, PgStep::StartServer, PgStep::Prepare]),
        DataNow::Ours => {}
    }
    Ok(match (mine.serves, mine.prepared) {
        (false, _) if isolated => vec![PgStep::StartIsolated],
        (false, _) => vec![PgStep::StartServer],
        (true, _) if mine.isolated && !isolated => vec![PgStep::EndIsolation],
        (true, false) => vec![PgStep::Prepare],
        (true, true) => Vec::new(),
    })
}

pub(super) struct Case<'a> {
    spec: &'a PgSpec,
    pub(super) me: &'a str,
    pub(super) mine: &'a Mine,
    pub(super) store: &'a StoreSeen,
}

impl Case<'_> {
    fn declared(&self) -> impl Iterator<Item = &str> {
        self.spec.nodes.iter().map(|node| node.name.as_str())
    }

    fn leader(&self) -> Option<&Leader> {
        self.store.records.leader.as_ref().map(|(leader, _)| leader)
    }

    /// Who has not come yet. A leader has: it leads because everybody was there.
    fn missing(&self) -> Option<String> {
        let leads = |name: &str| self.leader().is_some_and(|leader| leader.node == name);
        let here = |name: &str| self.store.registered.contains_key(name) || leads(name);
        let missing: Vec<&str> = self.declared().filter(|name| !here(name)).collect();
        (!missing.is_empty()).then(|| names(missing))
    }

    /// Whether somebody else leads and can be expected to go on.
    fn led_by_other(&self) -> Option<&Leader> {
        let leader = self.leader().filter(|leader| leader.node != self.me)?;
        let limit = u64::try_from(self.spec.leader_timeout.as_millis()).unwrap_or(u64::MAX);
        (self.store.registered.contains_key(&leader.node) && self.store.still_ms < limit).then_some(leader)
    }

    /// Nobody has written a group down yet.
    fn without_group(&self) -> PgPlan {
        if let Some(missing) = self.missing() {
            return PgPlan::wait(missing);
        }
        let bound: BTreeSet<&String> =
            self.store.registered.values().flatten().chain(self.mine.bound.as_ref()).collect();
        if bound.len() > 1 {
            let ids = names(bound.into_iter().map(String::as_str));
            let attempt = format!("the nodes are bound to different groups: {ids}");
            return PgPlan::refuse(
                Fault::new(Code::PgGroupsDiffer, attempt).hint("give the nodes of the wrong group empty data dirs"),
            );
        }
        if let Some(leader) = self.led_by_other() {
            let wait =
                PgPlan::wait(format!("{}, which leads epoch {}, to write the group down", leader.node, leader.epoch));
            return self.and_release(wait);
        }
        if self.store.lock == LockNow::NotMine {
            return PgPlan::do_(vec![PgStep::TakeLock]);
        }
        let nodes: BTreeMap<String, u16> = self.declared().map(str::to_owned).zip(1..).collect();
        let create =
            |epoch| PgStep::CreateGroup { epoch, id: bound.first().map(|id| (*id).clone()), nodes: nodes.clone() };
        match self.leader() {
            Some(leader) if leader.node == self.me => PgPlan::do_(vec![create(leader.epoch), PgStep::ReleaseLock]),
            other => {
                let epoch = other.map_or(0, |leader| leader.epoch) + 1;
                PgPlan::do_(vec![PgStep::Lead { epoch }, create(epoch), PgStep::ReleaseLock])
            }
        }
    }

    /// Nobody waits with the lock in hand.
    fn and_release(&self, plan: PgPlan) -> PgPlan {
        match self.store.lock {
            LockNow::Mine => PgPlan { steps: vec![PgStep::ReleaseLock], ..plan },
            LockNow::NotMine => plan,
        }
    }

    fn with_group(&self, group: &Group) -> PgPlan {
        if !group.nodes.contains_key(self.me) {
            let bound = self.mine.bound.as_ref() == Some(&group.id);
            if bound && self.store.records.discards.contains_key(self.me) {
                return PgPlan::do_(vec![PgStep::ReplaceData]);
            }
            let attempt = format!("group `{}` was written down without `{}`", self.spec.group, self.me);
            return PgPlan::refuse(Fault::new(Code::PgNotMember, attempt).hint("add it with `quorate pg join`"));
        }
        match &self.mine.bound {
            Some(bound) if *bound != group.id => {
                let attempt = format!("the database is bound to group {bound}, and the store has group {}", group.id);
                return PgPlan::refuse(
                    Fault::new(Code::PgGroupsDiffer, attempt)
                        .hint("give this node an empty data dir, or the right store"),
                );
            }
            Some(_) if self.store.records.bound.get(self.me).is_some_and(|noted| noted.group == group.id) => {}
            Some(_) | None => return PgPlan::do_(vec![PgStep::Bind { group: group.id.clone() }]),
        }
        if let Some(plan) = self.returning() {
            return plan;
        }
        let unlinked = self.unlinked(group);
        if self.store.lock == LockNow::Mine && !(self.must_lead() && unlinked.is_none()) {
            return PgPlan::do_(vec![PgStep::ReleaseLock]);
        }
        if !self.store.records.joined.contains_key(self.me) {
            return self.link(group);
        }
        match (&self.store.records.schema, unlinked) {
            (Some((schema, _)), _) => self.serve(schema.version),
            (None, Some(missing)) => PgPlan::wait(format!("{missing} to be linked")),
            (None, None) => self.lay_schema(),
        }
    }

    fn unlinked(&self, group: &Group) -> Option<String> {
        let joined = &self.store.records.joined;
        let missing: Vec<&str> =
            group.nodes.keys().map(String::as_str).filter(|name| !joined.contains_key(*name)).collect();
        (!missing.is_empty()).then(|| names(missing))
    }

    fn link(&self, group: &Group) -> PgPlan {
        if self.mine.linked {
            return PgPlan::do_(vec![PgStep::NoteLinked { group: group.id.clone() }]);
        }
        // Those who were there from the beginning were linked before there was a schema: this one came later, and rows have to be
        // copied for it.
        if self.store.records.schema.is_some() {
            return PgPlan::wait(format!("`quorate pg join {}`", self.me));
        }
        let missing: Vec<&str> = group
            .nodes
            .keys()
            .map(String::as_str)
            .filter(|name| !self.store.records.bound.contains_key(*name))
            .collect();
        if !missing.is_empty() {
            return PgPlan::wait(format!("{} to be bound to the group", names(missing)));
        }
        PgPlan::do_(vec![PgStep::Link { group: group.id.clone() }, PgStep::NoteLinked { group: group.id.clone() }])
    }

    /// Whether the schema is not laid, and the one who was to lay it cannot be expected to.
    fn must_lead(&self) -> bool {
        self.store.records.schema.is_none()
            && self.leader().is_none_or(|leader| leader.node != self.me)
            && self.led_by_other().is_none()
    }

    fn lay_schema(&self) -> PgPlan {
        match self.leader() {
            Some(leader) if leader.node == self.me => {
                PgPlan::do_(vec![PgStep::LaySchema { epoch: leader.epoch }, PgStep::ClaimWriter])
            }
            Some(leader) if !self.must_lead() => {
                PgPlan::wait(format!("{}, which leads epoch {}, to lay the schema", leader.node, leader.epoch))
            }
            other => {
                let epoch = other.map_or(0, |leader| leader.epoch) + 1;
                let lead = vec![PgStep::Lead { epoch }, PgStep::ReleaseLock, PgStep::LaySchema { epoch }];
                match self.store.lock {
                    LockNow::Mine => PgPlan::do_(lead),
                    LockNow::NotMine => PgPlan::do_([PgStep::TakeLock].into_iter().chain(lead).collect()),
                }
            }
        }
    }

    /// The group stands: this node takes its part.
    fn serve(&self, version: u32) -> PgPlan {
        let writer = self.store.records.writer.as_ref();
        // The write master has what matters; without it there would be none.
        if let Some(from) = self.mine.lost.as_ref().filter(|_| writer.is_none_or(|(writer, _)| writer.node != self.me))
        {
            let attempt = format!("`{from}` no longer keeps what this node has missed");
            let hint = format!("let it join anew, with an empty data dir: `quorate explain {}`", Code::PgSlotLost);
            return PgPlan::refuse(Fault::new(Code::PgSlotLost, attempt).hint(hint));
        }
        if self.mine.schema < version.min(FIRST_SCHEMA) {
            return PgPlan::wait("schema and first rows to arrive here".to_owned());
        }
        if self.store.records.last_writer.is_none() {
            return match self.leader() {
                Some(leader) if leader.node == self.me => PgPlan::do_(vec![PgStep::ClaimWriter]),
                // Whoever led may be gone for good; the place is free for all then.
                _ if self.led_by_other().is_none() => PgPlan::do_(vec![PgStep::ClaimWriter]),
                Some(leader) => PgPlan::wait(format!("{} to become the write master", leader.node)),
                None => PgPlan::wait("a write master".to_owned()),
            };
        }
        match (self.mine.configured, self.mine.offered) {
            (false, false) => PgPlan::do_(vec![PgStep::Configure, PgStep::Offer]),
            (false, true) => PgPlan::do_(vec![PgStep::Configure]),
            (true, false) => PgPlan::do_(vec![PgStep::Offer]),
            (true, true) => self.take_rows().unwrap_or_default(),
        }
    }
}
