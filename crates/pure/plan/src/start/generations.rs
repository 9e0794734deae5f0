//! The rows of a node whose cluster was recovered without it, or twice.
//!
//! **Rule:** what others report is recorded before it is acted on: whoever reported it may be silent next time.

use quorate_etcd_formats::membership::ClusterId;
use quorate_faults::Code;

use super::guards::{Guard, Guards};
use super::halts::refuse;
use super::rows::{Case, RESET};
use super::{DataSeen, Row, StartPlan, Step};
use crate::ledger::{Generation, State};
use crate::peers::{self, Told};

impl<G: Guards> Case<'_, G> {
    pub(super) fn newer_generation(&self) -> Option<StartPlan> {
        // A node that holds nothing and remembers nothing has no generation to be behind with.
        let blank = self.ledger.state == State::Empty && self.seen.data == DataSeen::Absent;
        if blank || !self.guards.hold(Guard::NewerGeneration) {
            return None;
        }
        let (ours, known) = (self.ledger.generation, self.ledger.newest().number);
        let told = self.answers().map(|(_, it)| it.report());
        let mut steps = Vec::new();
        let why = match peers::heed(self.ledger, told) {
            Some(Told::Own(number)) => {
                return Some(StartPlan::new(Row::OwnGeneration, vec![Step::WriteGeneration(number)]));
            }
            Some(Told::Newer(newer)) => {
                // Whoever told it may be silent next time.
                if self.ledger.outdated_by(newer) != *self.ledger {
                    steps.push(Step::WriteOutdated(newer));
                }
                let peer = self.answers().find(|(_, it)| it.generation == newer.number).map_or("", |(peer, _)| peer);
                let theirs = newer.number;
                match theirs == ours {
                    true => return Some(self.fork(steps, newer)),
                    false => format!("`{peer}` knows generation {theirs} of this cluster, and this node has {ours}"),
                }
            }
            None if known > ours => {
                format!("this node has heard of generation {known} of this cluster, and has {ours}")
            }
            None if self.ledger.is_outdated() => return Some(self.fork(steps, self.ledger.newest())),
            None => return None,
        };
        steps.extend(refuse(Code::StartOutdated, why, RESET));
        Some(StartPlan::new(Row::NewerGeneration, steps))
    }

    /// Two recoveries made the same generation, and this node is of the one that lost.
    fn fork(&self, mut steps: Vec<Step>, other: Generation) -> StartPlan {
        let id = |cluster: Option<ClusterId>| cluster.map_or_else(|| "?".to_owned(), |cluster| cluster.to_string());
        let why = format!(
            "two recoveries made generation {} of this cluster: `{}` wins, and this node belongs to `{}`",
            other.number,
            id(other.cluster),
            id(self.ledger.cluster())
        );
        let way_out =
            "its data is kept; take what is needed from it, then `quorate cluster resolve --yes` lets this node join";
        steps.extend(refuse(Code::GenerationsFork, why, way_out));
        StartPlan::new(Row::NewerGeneration, steps)
    }

    /// Whether a peer tells of another cluster of the same generation, which wins.
    pub(super) fn loses_to_a_peer(&self) -> bool {
        let told = peers::heed(self.ledger, self.answers().map(|(_, it)| it.report()));
        matches!(told, Some(Told::Newer(newer)) if newer.number == self.ledger.generation)
    }
}
