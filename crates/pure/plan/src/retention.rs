//! Which objects of a store stay and which may go, each with its reason, and the order in which they go.
//!
//! **Invariant:** what stays is enough by itself: every full that stays can be restored, the newest state and every moment
//! of the history window too, whichever part of the removals has been done. The newest chain stays whole.

mod buckets;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::BTreeMap;

use serde::Serialize;

use crate::chain::{Chain, EpochStart, Kind, Object, State, Target, chains, decide, unusable};

/// What a newer epoch overruled stays this long: it is what there is if the new epoch was begun by mistake.
pub const OVERRULED_KEPT_MS: i64 = 30 * 86_400_000;

/// By a clock that is farther ahead than this nothing is removed: more than clocks differ that are kept by anyone, and far less than
/// any rule counts in.
pub const CLOCK_AHEAD_MAX_MS: i64 = 5 * 60_000;

/// What is to stay. Days, weeks (Monday to Sunday) and months are those of UTC; each counts those that have a backup.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Policy {
    /// The newest fulls.
    pub last: u32,
    /// The newest full of each of so many hours.
    pub hourly: u32,
    /// The newest full of each of so many days.
    pub daily: u32,
    /// The newest full of each of so many weeks.
    pub weekly: u32,
    /// The newest full of each of so many months.
    pub monthly: u32,
    /// Any moment of this time stays restorable, in milliseconds; 0: only fulls are kept of what is older than the
    /// newest chain.
    pub history_ms: i64,
}

impl Policy {
    /// The last three, a day of hours, a week of days, five weeks, a year of months, and every moment of the last day.
    pub const DEFAULT: Policy =
        Policy { last: 3, hourly: 24, daily: 7, weekly: 5, monthly: 12, history_ms: 86_400_000 };
}

/// What is known about a store.
#[derive(Debug, Clone, Copy)]
pub struct PruneSeen<'a> {
    /// Its objects.
    pub objects: &'a [Object],
    /// Those of them (as indexes) that a cluster was meant to end with.
    pub finals: &'a [usize],
    /// Who took over where.
    pub epochs: &'a [EpochStart],
    /// Milliseconds since 1970.
    pub now_ms: i64,
    /// The clocks that this one is compared with: the store's and the other agents'. Empty where nothing is going to be removed.
    pub others: &'a [OtherClock],
}

/// Another clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OtherClock {
    /// Milliseconds since 1970.
    At(i64),
    /// It could not be read.
    Unknown,
}

/// Why nothing is removed by this clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClockDoubt {
    /// It is ahead of another one by so many milliseconds.
    Ahead(i64),
    /// A clock that it has to be compared with could not be read.
    Unknown,
}

impl PruneSeen<'_> {
    fn clock_doubt(&self) -> Option<ClockDoubt> {
        let ahead = |other: &OtherClock| match other {
            OtherClock::At(ms) => Some(self.now_ms.saturating_sub(*ms)),
            OtherClock::Unknown => None,
        };
        let farthest = self.others.iter().filter_map(ahead).max();
        match farthest.filter(|ahead| *ahead > CLOCK_AHEAD_MAX_MS) {
            Some(ahead) => Some(ClockDoubt::Ahead(ahead)),
            None => self.others.contains(&OtherClock::Unknown).then_some(ClockDoubt::Unknown),
        }
    }
}

/// What becomes of one object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It stays, because.
    Keep(String),
    /// It goes, because.
    Remove(String),
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrunePlan {
    /// What becomes of each object, in their order.
    pub verdicts: Vec<Verdict>,
    /// What goes, as indexes, first one first: by stretch, the newest delta of a stretch first, its full last.
    pub removals: Vec<usize>,
    /// Bytes that this frees.
    pub bytes_freed: u64,
    /// The newest chain, which must be proven before anything goes; `None`: nothing can be restored, and nothing goes.
    pub newest: Option<Chain>,
    /// What is wrong with the clock, where that is why nothing goes.
    pub clock_doubt: Option<ClockDoubt>,
}

/// Decides what stays and what goes.
pub fn plan_prune(seen: &PruneSeen<'_>, policy: &Policy) -> PrunePlan {
    let newest = decide(seen.objects, seen.epochs, Target::Newest).chain;
    let mut keeping = Keeping { seen, reasons: vec![Vec::new(); seen.objects.len()] };
    let chains = chains(seen.objects, seen.epochs);
    let clock_doubt = seen.clock_doubt();
    match &newest {
        _ if clock_doubt.is_some() => {
            (0..seen.objects.len()).for_each(|index| keeping.add(index, "the clock is not confirmed by others"));
        }
        None => (0..seen.objects.len()).for_each(|index| keeping.add(index, "nothing in the store can be restored")),
        Some(newest) => {
            keeping.newest(newest, &chains);
            keeping.fulls(policy, &chains);
            keeping.history(policy, &chains);
            keeping.unusable(policy, newest);
        }
    }
    let (base, unable) = (newest.as_ref().map(|chain| chain.base), keeping.why_unusable());
    let verdict = |(index, reasons): (usize, &Vec<String>)| match reasons.is_empty() {
        false => Verdict::Keep(reasons.join(", ")),
        true => Verdict::Remove(why_removed(&seen.objects[index], unable.get(&index))),
    };
    let verdicts: Vec<Verdict> = keeping.reasons.iter().enumerate().map(verdict).collect();
    let removals = order(seen.objects, &verdicts);
    debug_assert!(base.is_none_or(|base| !removals.contains(&base)));
    let bytes_freed = removals.iter().map(|index| seen.objects[*index].bytes).sum();
    PrunePlan { verdicts, removals, bytes_freed, newest, clock_doubt }
}

/// Why each object stays, as far as it is known.
struct Keeping<'a> {
    seen: &'a PruneSeen<'a>,
    reasons: Vec<Vec<String>>,
}

impl Keeping<'_> {
    fn add(&mut self, index: usize, why: impl Into<String>) {
        let why = why.into();
        if !self.reasons[index].contains(&why) {
            self.reasons[index].push(why);
        }
    }

    fn chain(&mut self, chain: &Chain, why: &str) {
        self.add(chain.base, why);
        for (index, _) in &chain.deltas {
            self.add(*index, why);
        }
    }

    fn kept(&self, index: usize) -> bool {
        !self.reasons[index].is_empty()
    }

    /// The chain that leads farthest, the one of the full that was made last, and whatever is as new as them.
    fn newest(&mut self, newest: &Chain, chains: &[Chain]) {
        let objects = self.seen.objects;
        self.chain(newest, "newest chain");
        let youngest = chains.iter().max_by_key(|chain| (objects[chain.base].created_ms, objects[chain.base].last));
        if let Some(youngest) = youngest {
            self.chain(youngest, "chain of the youngest full");
        }
        let base = &objects[newest.base];
        for (index, object) in objects.iter().enumerate() {
            if object.last >= base.last && (object.kind == Kind::Delta || object.last > base.last) && !self.kept(index)
            {
                self.add(index, "as new as the newest chain");
            }
        }
    }

    /// Fulls that the policy names, those that a cluster ended with, and those from the future.
    fn fulls(&mut self, policy: &Policy, chains: &[Chain]) {
        let objects = self.seen.objects;
        for index in self.seen.finals.iter().copied().filter(|index| *index < objects.len()) {
            self.add(index, "final");
        }
        let mut fulls: Vec<usize> = chains.iter().map(|chain| chain.base).collect();
        // Newest first; of two that were made at once, the one that holds more.
        fulls.sort_by_key(|index| Reverse((objects[*index].created_ms, objects[*index].last, Reverse(*index))));
        for index in fulls.iter().copied().filter(|index| objects[*index].created_ms > self.seen.now_ms) {
            self.add(index, "made in the future");
        }
        let past: Vec<usize> =
            fulls.into_iter().filter(|index| objects[*index].created_ms <= self.seen.now_ms).collect();
        for index in past.iter().take(policy.last as usize) {
            self.add(*index, "last");
        }
        for (name, count, bucket) in buckets::all(policy) {
            let mut seen: Vec<i64> = Vec::new();
            for index in &past {
                let bucket = bucket(objects[*index].created_ms);
                // They descend, so that a bucket's fulls are side by side, its newest first.
                if seen.last() != Some(&bucket) {
                    if seen.len() >= count as usize {
                        break;
                    }
                    seen.push(bucket);
                    self.add(*index, name);
                }
            }
        }
    }

    /// For every moment of the window, a chain that leads as far as any does.
    fn history(&mut self, policy: &Policy, chains: &[Chain]) {
        if policy.history_ms <= 0 {
            return;
        }
        let objects = self.seen.objects;
        let start = self.seen.now_ms.saturating_sub(policy.history_ms);
        let mut by_time: Vec<&Chain> = chains.iter().collect();
        by_time.sort_by_key(|chain| (objects[chain.base].created_ms, chain.base));
        let before = by_time.partition_point(|chain| objects[chain.base].created_ms <= start);
        // The window's first moment, and then each full that is made in it.
        let first = by_time.get(..before).unwrap_or_default();
        let mut held: Vec<&Chain> =
            first.iter().copied().max_by_key(|chain| rank(chain, objects)).into_iter().collect();
        held.extend(first.last().copied());
        for chain in by_time.get(before..).unwrap_or_default() {
            let base = &objects[chain.base];
            let covered = held.iter().any(|other| {
                let other_base = &objects[other.base];
                let kin = other_base.cluster_id == base.cluster_id;
                kin && other_base.last <= base.last && other.reach >= chain.reach
            });
            if !covered {
                held.push(chain);
            }
        }
        for chain in held {
            self.chain(chain, "history");
        }
        for (index, object) in objects.iter().enumerate() {
            if object.kind == Kind::Delta && object.created_ms >= start {
                self.add(index, "history");
            }
        }
    }

    /// What cannot be used stays while it is young enough to be asked for, or to be mended from another copy.
    fn unusable(&mut self, policy: &Policy, newest: &Chain) {
        let base = &self.seen.objects[newest.base];
        let history = self.seen.now_ms.saturating_sub(policy.history_ms.max(0));
        let overruled = self.seen.now_ms.saturating_sub(OVERRULED_KEPT_MS);
        for index in self.why_unusable().into_keys() {
            let object = &self.seen.objects[index];
            match object.state {
                State::Bad(_) if object.created_ms >= history.min(base.created_ms) => {
                    self.add(index, "damaged, but young enough to be mended");
                }
                State::Claimed | State::Proven if object.created_ms >= overruled => {
                    self.add(index, "overruled less than 30 days ago");
                }
                State::Bad(_) | State::Claimed | State::Proven => {}
            }
        }
    }

    fn why_unusable(&self) -> BTreeMap<usize, String> {
        let why = |(index, object): (usize, &Object)| Some((index, unusable(object, self.seen.epochs)?));
        self.seen.objects.iter().enumerate().filter_map(why).collect()
    }
}

/// Farthest first; then what was made last.
fn rank(chain: &Chain, objects: &[Object]) -> (u64, i64, usize) {
    (chain.reach, objects[chain.base].created_ms, chain.base)
}

fn why_removed(object: &Object, unusable: Option<&String>) -> String {
    match (unusable, object.kind) {
        (Some(why), _) => why.clone(),
        (None, Kind::Full) => "no rule keeps it".to_owned(),
        (None, Kind::Delta) => "older than the history that is kept".to_owned(),
    }
}

/// By stretch, oldest first; in a stretch the newest delta first, so that a part of it is still a chain; the full last.
fn order(objects: &[Object], verdicts: &[Verdict]) -> Vec<usize> {
    let gone = |index: &usize| matches!(verdicts[*index], Verdict::Remove(_));
    let mut fulls: Vec<u64> =
        objects.iter().filter(|object| object.kind == Kind::Full).map(|object| object.last).collect();
    fulls.sort_unstable();
    fulls.dedup();
    let mut removals: Vec<usize> = (0..objects.len()).filter(gone).collect();
    removals.sort_by_key(|index| {
        let object = &objects[*index];
        let stretch = match object.kind {
            Kind::Full => fulls.partition_point(|full| *full <= object.last),
            // A delta builds on the newest full before it.
            Kind::Delta => fulls.partition_point(|full| *full < object.first),
        };
        (stretch, object.kind == Kind::Full, Reverse((object.last, object.first, object.created_ms)), *index)
    });
    removals
}
