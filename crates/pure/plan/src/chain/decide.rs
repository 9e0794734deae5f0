//! The decision itself.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::{Chain, Decision, EpochStart, Kind, Object, Span, State, Target, Use};

/// Decides which objects lead to the target. Objects may come in any order; duplicates and overlaps are expected.
pub fn decide(objects: &[Object], epochs: &[EpochStart], target: Target) -> Decision {
    let views: Vec<View<'_>> =
        objects.iter().enumerate().map(|(index, object)| View::new(index, object, epochs)).collect();
    let newest_claimed = objects.iter().map(|object| object.last).max().unwrap_or(0);
    let fulls: Vec<&View<'_>> = views.iter().filter(|view| view.is(Kind::Full)).collect();
    let mut deltas: Vec<&View<'_>> = views.iter().filter(|view| view.is(Kind::Delta)).collect();
    deltas.sort_by_key(|delta| delta.object.first);
    let whole: Vec<Chain> = fulls.iter().map(|full| extend(full, &deltas, None)).collect();
    let recoverable = merge(whole.iter().map(|chain| Span { from: views[chain.base].last, to: chain.reach }).collect());
    let best = fulls
        .iter()
        .filter(|full| full.may_begin(target))
        .map(|full| extend(full, &deltas, stop_at(target)))
        .filter(|chain| reaches(chain, target))
        .max_by_key(|chain| rank(chain, &views));
    let short = why_short(best.as_ref(), &views, target, newest_claimed);
    let replayed = best.as_ref().map(|chain| replayed(chain, &views)).unwrap_or_default();
    let uses = views.iter().map(|view| usage(view, best.as_ref(), &replayed, &views, target)).collect();
    Decision { chain: best, uses, recoverable, newest_claimed, short }
}

/// As far as deltas lead from each full that can be used.
pub(crate) fn chains(objects: &[Object], epochs: &[EpochStart]) -> Vec<Chain> {
    let views: Vec<View<'_>> =
        objects.iter().enumerate().map(|(index, object)| View::new(index, object, epochs)).collect();
    let mut deltas: Vec<&View<'_>> = views.iter().filter(|view| view.is(Kind::Delta)).collect();
    deltas.sort_by_key(|delta| delta.object.first);
    views.iter().filter(|view| view.is(Kind::Full)).map(|full| extend(full, &deltas, None)).collect()
}

/// Why an object does not count, as far as its epoch and what is known of it go.
pub(crate) fn unusable(object: &Object, epochs: &[EpochStart]) -> Option<String> {
    View::new(0, object, epochs).unusable
}

/// An object as far as its epoch lets it count.
struct View<'a> {
    index: usize,
    object: &'a Object,
    /// Last revision that counts.
    last: u64,
    /// Why it does not count at all.
    unusable: Option<String>,
}

impl<'a> View<'a> {
    fn new(index: usize, object: &'a Object, epochs: &[EpochStart]) -> View<'a> {
        let newer = epochs.iter().filter(|start| start.epoch > object.epoch).min_by_key(|start| start.begins_at);
        let end = newer.map_or(u64::MAX, |start| start.begins_at.saturating_sub(1));
        let fenced = newer.filter(|_| match object.kind {
            Kind::Full => object.last > end,
            Kind::Delta => object.first > end,
        });
        let unusable = match (&object.state, fenced) {
            (State::Bad(why), _) => Some(why.clone()),
            (State::Claimed | State::Proven, Some(start)) => Some(format!(
                "epoch {} began at revision {}; epoch {} is not believed from there on",
                start.epoch, start.begins_at, object.epoch
            )),
            (State::Claimed | State::Proven, None) => None,
        };
        View { index, object, last: object.last.min(end), unusable }
    }

    fn is(&self, kind: Kind) -> bool {
        self.object.kind == kind && self.unusable.is_none()
    }

    /// Whether a chain to the target may begin here.
    fn may_begin(&self, target: Target) -> bool {
        match target {
            Target::Newest => true,
            Target::Revision(revision) => self.last <= revision,
            Target::Time(time) => self.object.created_ms <= time,
        }
    }

    /// Whether both are from one cluster, as far as that is known.
    fn related(&self, other: &View<'_>) -> bool {
        let (mine, theirs) = (self.object.cluster_id, other.object.cluster_id);
        mine == theirs || mine == 0 || theirs == 0
    }
}

fn stop_at(target: Target) -> Option<u64> {
    match target {
        Target::Revision(revision) => Some(revision),
        Target::Newest | Target::Time(_) => None,
    }
}

fn reaches(chain: &Chain, target: Target) -> bool {
    match target {
        Target::Revision(revision) => chain.reach == revision,
        Target::Newest | Target::Time(_) => true,
    }
}

/// Farthest first; then the least to replay; then what was made last.
fn rank(chain: &Chain, views: &[View<'_>]) -> (u64, u64, i64, Reverse<usize>) {
    let base = &views[chain.base];
    (chain.reach, base.last, base.object.created_ms, Reverse(chain.base))
}

/// Goes from a full as far as deltas lead without a hole, taking the one that leads farthest each time.
/// `deltas` are sorted by their first revision, so that each is looked at once.
fn extend(full: &View<'_>, deltas: &[&View<'_>], stop: Option<u64>) -> Chain {
    let mut chain = Chain { base: full.index, deltas: Vec::new(), reach: full.last };
    let mut waiting = deltas.iter().filter(|delta| delta.related(full)).peekable();
    let mut farthest: Option<&View<'_>> = None;
    while stop.is_none_or(|stop| chain.reach < stop) {
        while let Some(delta) = waiting.next_if(|delta| delta.object.first <= chain.reach.saturating_add(1)) {
            farthest = farthest.into_iter().chain([*delta]).max_by_key(|delta| preference(delta));
        }
        let Some(next) = farthest.take_if(|next| next.last > chain.reach) else { break };
        let to = stop.map_or(next.last, |stop| next.last.min(stop));
        chain.deltas.push((next.index, to));
        chain.reach = to;
    }
    chain
}

/// Of two deltas that join, the one that leads farther; then the one that was made last.
fn preference(delta: &View<'_>) -> (u64, i64, Reverse<usize>) {
    (delta.last, delta.object.created_ms, Reverse(delta.index))
}

fn merge(mut spans: Vec<Span>) -> Vec<Span> {
    spans.sort_by_key(|span| (span.from, span.to));
    let mut merged: Vec<Span> = Vec::new();
    for span in spans {
        match merged.last_mut() {
            // A full is one state; only deltas join it to the next.
            Some(last) if span.from <= last.to => last.to = last.to.max(span.to),
            _ => merged.push(span),
        }
    }
    merged
}

/// What stops the chain, in words.
fn why_short(chain: Option<&Chain>, views: &[View<'_>], target: Target, newest: u64) -> Option<String> {
    let wanted = match target {
        Target::Revision(revision) => revision,
        Target::Newest => newest,
        Target::Time(time) => {
            let before = views.iter().filter(|view| view.object.created_ms <= time);
            before.map(|view| view.object.last).max().unwrap_or(0)
        }
    };
    let Some(chain) = chain else {
        return Some(if !views.iter().any(|view| view.is(Kind::Full)) {
            match views.iter().find(|view| view.object.kind == Kind::Full) {
                None => "there is no full backup in the store".to_owned(),
                Some(full) => {
                    format!("no full backup can be used; `{}`: {}", full.object.name, reason(full))
                }
            }
        } else {
            match target {
                Target::Newest => "no full backup can be used".to_owned(),
                Target::Revision(revision) => format!("no chain leads to revision {revision}"),
                Target::Time(_) => "every full backup that can be used was made after that time".to_owned(),
            }
        });
    };
    if chain.reach >= wanted {
        return None;
    }
    let missing = chain.reach.saturating_add(1);
    let damaged = views.iter().find(|view| {
        view.unusable.is_some()
            && view.object.kind == Kind::Delta
            && (view.object.first..=view.object.last).contains(&missing)
    });
    let text = match damaged {
        Some(view) => {
            format!("revision {missing} is in `{}`, which cannot be used: {}", view.object.name, reason(view))
        }
        None => {
            let later = views.iter().filter(|view| view.object.first > chain.reach).map(|view| view.object.first).min();
            match later {
                Some(later) if later > missing => {
                    format!("no usable object holds revisions {missing} to {}", later.saturating_sub(1))
                }
                _ => format!("no usable object holds revision {missing}"),
            }
        }
    };
    Some(text)
}

fn reason<'v>(view: &'v View<'_>) -> &'v str {
    view.unusable.as_deref().unwrap_or("it does not join the chain")
}

/// What is taken from which delta.
fn replayed(chain: &Chain, views: &[View<'_>]) -> BTreeMap<usize, Use> {
    let mut from = views[chain.base].last.saturating_add(1);
    let mut uses = BTreeMap::new();
    for (index, to) in &chain.deltas {
        uses.insert(*index, Use::Replayed { from, to: *to });
        from = to.saturating_add(1);
    }
    uses
}

/// What became of one object.
fn usage(
    view: &View<'_>,
    chain: Option<&Chain>,
    replayed: &BTreeMap<usize, Use>,
    views: &[View<'_>],
    target: Target,
) -> Use {
    let Some(chain) = chain else {
        return match &view.unusable {
            Some(why) => Use::Unusable(why.clone()),
            None => Use::NotNeeded("there is no chain that it could be part of".to_owned()),
        };
    };
    if chain.base == view.index {
        return Use::Base;
    }
    if let Some(replayed) = replayed.get(&view.index) {
        return replayed.clone();
    }
    if let Some(why) = &view.unusable {
        let needed = view.last > chain.reach || view.object.last > chain.reach;
        return if needed { Use::Unusable(why.clone()) } else { Use::NotNeeded(why.clone()) };
    }
    not_chosen(view, chain, views, target)
}

fn not_chosen(view: &View<'_>, chain: &Chain, views: &[View<'_>], target: Target) -> Use {
    let base = &views[chain.base];
    match view.object.kind {
        Kind::Full if !view.may_begin(target) => Use::NotNeeded("it is newer than what was asked for".to_owned()),
        Kind::Full if view.last > chain.reach => Use::NotNeeded("it is newer than what was asked for".to_owned()),
        Kind::Full if view.last == base.last => Use::NotNeeded(format!("same revision as `{}`", base.object.name)),
        Kind::Full if view.last < base.last => Use::NotNeeded(format!("older than `{}`", base.object.name)),
        Kind::Full => Use::NotNeeded(format!("the chain from `{}` leads farther", base.object.name)),
        Kind::Delta if view.last <= base.last => Use::NotNeeded(format!("`{}` holds it", base.object.name)),
        Kind::Delta if view.last <= chain.reach => Use::NotNeeded("other deltas hold the same revisions".to_owned()),
        Kind::Delta if stop_at(target).is_some_and(|stop| view.object.first > stop) => {
            Use::NotNeeded("it is newer than what was asked for".to_owned())
        }
        Kind::Delta if !view.related(base) => Use::Unusable(format!(
            "it is from cluster {:x}, the chain from cluster {:x}",
            view.object.cluster_id, base.object.cluster_id
        )),
        Kind::Delta => Use::Unusable(format!(
            "it begins at revision {}, and nothing leads from {} to there",
            view.object.first, chain.reach
        )),
    }
}
