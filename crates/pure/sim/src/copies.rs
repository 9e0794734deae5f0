//! An operator wipes every node and bootstraps again with the same file; later an old copy of one machine, disk and ledger, takes its
//! place for a while.
//!
//! **Rule:** chance for copies has a stream of its own. What the copy displaces is put back as it was when the copy is removed.

use quorate_plan::ledger::{Ledger, State};

use crate::etcd::Data;
use crate::random::Random;
use crate::world::World;

/// How long an operator takes to find an old copy.
const FOUND_AFTER: u64 = 40;

/// A disk and its ledger.
#[derive(Debug)]
struct Machine {
    node: usize,
    data: Option<Data>,
    ledger: Option<Ledger>,
}

/// Old copies of nodes.
#[derive(Debug)]
pub(crate) struct Copies {
    chance: Random,
    /// Made before every node was wiped, and when it returns.
    old: Option<(Machine, u64)>,
    /// What the copy displaces, and until when.
    displaced: Option<(Machine, u64)>,
}

impl Copies {
    pub(crate) fn new(chance: Random) -> Copies {
        Copies { chance, old: None, displaced: None }
    }
}

impl World {
    /// Perhaps every node is wiped now, or an old copy returns or is removed.
    pub(crate) fn old_copies(&mut self) {
        if self.living || self.calm {
            return;
        }
        if self.copies.displaced.as_ref().is_some_and(|(_, until)| self.now >= *until) {
            return self.remove_old_copy();
        }
        match &self.copies.old {
            Some((_, at)) if self.now >= *at => self.return_old_copy(),
            Some(_) => {}
            None if self.wiped.is_empty() && self.copies.chance.permille(5) => self.wipe_every_node(),
            None => {}
        }
    }

    /// Nothing else may be wrong: what an operator wipes is a cluster that serves, and that has no backup.
    fn wipe_every_node(&mut self) {
        let node = self.copies.chance.below(self.nodes.len());
        let returns = self.now + 5 + self.copies.chance.below(160) as u64;
        let cluster = self.nodes[node].data.as_ref().filter(|_| self.nodes[node].runs).map(|data| data.cluster);
        let Some(cluster) = cluster.filter(|cluster| self.committed.contains_key(cluster)) else { return };
        let of_it = |it: &crate::world::Node| it.data.as_ref().is_none_or(|data| data.cluster == cluster);
        let whole = self.nodes.iter().all(|it| of_it(it) && !it.damaged && !it.detached && !it.ledger_unreadable);
        let alone = self.swapped.is_none() && self.recovered.is_none() && !self.restored && self.second.is_none();
        let known = matches!(self.state(node), State::Started(_)) && self.origins.contains_key(&cluster);
        let calm = self.hopeless.is_none() && self.store.held.is_empty();
        if !whole || !alone || !known || !calm || self.nodes.len() < 3 {
            return;
        }
        let (mut data, ledger) = (self.nodes[node].data.clone(), self.nodes[node].ledger.clone());
        if let Some(data) = &mut data {
            data.power_cut(false);
        }
        self.copies.old = Some((Machine { node, data, ledger }, returns));
        let file = self.origins.get(&cluster).copied().unwrap_or_default();
        for node in 0..self.nodes.len() {
            self.power_cut(node);
            self.forget(node);
            self.nodes[node].data_unreadable = false;
            self.give_file(node, file, "an operator");
            self.nodes[node].back_at = self.now + 1 + self.copies.chance.below(5) as u64;
        }
        self.wiped.extend(self.committed.keys().copied());
        self.foundings.clear();
        self.forgot_early = false;
        self.tell(None, "an operator wipes every node, and bootstraps again with the same file".to_owned());
    }

    /// Whether no cluster has written anything, but those that were wiped.
    pub(crate) fn is_blank(&self) -> bool {
        self.committed.keys().all(|cluster| self.wiped.contains(cluster))
    }

    /// Once every node runs: whose start was recorded by a node that a copy displaces is for an operator to find out.
    fn return_old_copy(&mut self) {
        let serves = self.nodes.iter().all(|it| it.runs) && !self.is_blank();
        let may = serves && self.swapped.is_none() && self.recovered.is_none();
        let Some((copy, _)) = self.copies.old.take_if(|_| may) else {
            return;
        };
        let node = copy.node;
        if self.nodes[node].ledger_unreadable || self.nodes[node].data_unreadable || self.nodes[node].detached {
            return;
        }
        self.power_cut(node);
        let it = &mut self.nodes[node];
        let displaced = Machine { node, data: it.data.take(), ledger: it.ledger.take() };
        (it.data, it.ledger) = (copy.data, copy.ledger);
        it.back_at = self.now + 1;
        self.copies.displaced = Some((displaced, self.now + FOUND_AFTER));
        self.quiet_until = self.now + FOUND_AFTER + 1;
        self.tell(Some(node), "an old copy of it returns, from before every node was wiped".to_owned());
    }

    /// The operator puts back what the copy displaced.
    pub(crate) fn remove_old_copy(&mut self) {
        self.copies.old = None;
        let Some((Machine { node, data, ledger }, _)) = self.copies.displaced.take() else { return };
        self.power_cut(node);
        let it = &mut self.nodes[node];
        (it.data, it.ledger, it.back_at) = (data, ledger, self.now + 1);
        self.tell(Some(node), "the old copy of it is removed".to_owned());
    }
}
