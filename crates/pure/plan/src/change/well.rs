//! Who answers and does not carry the cluster all the same: its data is damaged, differs from the others', or is far behind.
//!
//! **Rule:** such a member counts as one that is down, for everyone but itself: nobody else leaves or restarts meanwhile, and it
//! may be taken out, replaced and restarted, because that heals.

use std::collections::{BTreeMap, BTreeSet};

use quorate_etcd_formats::membership::MemberId;

use super::view::{ClusterView, is_up};
use crate::start::{Health, ListedMember};

/// A leader keeps this many entries for those who are behind: whoever is further behind needs a copy of everything.
pub const LAG_FAR: u64 = 5000;

/// An alarm that names nobody: etcd found that data differs, and not whose is wrong.
pub const NOBODY: MemberId = MemberId(0);

/// The members that etcd's own alarm CORRUPT is about, from the errors in the status of a member:
/// `memberID:10501334649042878790 alarm:CORRUPT`.
pub fn corrupt_in(errors: &[String]) -> BTreeSet<MemberId> {
    let one = |error: &String| {
        let mut words = error.split_whitespace();
        words.any(|word| word == "alarm:CORRUPT").then(|| {
            // One that has no number, or none that can be read, names nobody.
            let number = error.split_whitespace().find_map(|word| word.strip_prefix("memberID:")?.parse().ok());
            number.map_or(NOBODY, MemberId)
        })
    };
    errors.iter().filter_map(one).collect()
}

/// Members whose data is in doubt, where members hold different data at one revision. `rolled_back`: members that are known to run on
/// an older copy. A majority proves nothing: two of three members that were put back agree with each other. So every member is in
/// doubt, but for the only group without a rolled-back member, where there are rolled-back ones.
pub fn differing(groups: &[Vec<MemberId>], rolled_back: &BTreeSet<MemberId>) -> BTreeSet<MemberId> {
    if groups.len() < 2 {
        return BTreeSet::new();
    }
    let mut intact = groups.iter().enumerate().filter(|(_, group)| group.iter().all(|id| !rolled_back.contains(id)));
    let trusted = match (intact.next(), intact.next()) {
        (Some((at, _)), None) => Some(at),
        (None, _) | (Some(_), Some(_)) => None,
    };
    let doubted = groups.iter().enumerate().filter(|(at, _)| Some(*at) != trusted);
    doubted.flat_map(|(_, group)| group.iter().copied()).collect()
}

/// Members whose data is known to be damaged are not counted on; `but` is asked for its vote alone.
pub fn doubt_corrupt(members: &mut [ListedMember], corrupt: &BTreeSet<MemberId>, but: Option<MemberId>) {
    for member in members.iter_mut().filter(|member| is_up(member) && Some(member.id) != but) {
        if let Some(why) = corrupt_why(corrupt, member.id) {
            member.health = Health::Unhealthy(why);
        }
    }
}

/// Those who answer and are not well, and why.
pub(super) fn unwell(view: &ClusterView) -> BTreeMap<MemberId, String> {
    let members = view.members().map_or(&[][..], |(_, members)| members);
    let why = |member: &ListedMember| {
        let differs = || {
            let differs = view.differing.contains(&member.id);
            differs.then(|| "members hold different data at one revision".to_owned())
        };
        corrupt_why(&view.corrupt, member.id).or_else(differs).or_else(|| far_behind(view, member))
    };
    members.iter().filter(|member| is_up(member)).filter_map(|member| Some((member.id, why(member)?))).collect()
}

fn corrupt_why(corrupt: &BTreeSet<MemberId>, id: MemberId) -> Option<String> {
    match () {
        () if corrupt.contains(&id) => Some("etcd has raised the alarm CORRUPT for it".to_owned()),
        () if corrupt.contains(&NOBODY) => {
            Some("etcd has raised the alarm CORRUPT, and does not say for whom".to_owned())
        }
        () => None,
    }
}

/// A learner is behind because it learns.
fn far_behind(view: &ClusterView, member: &ListedMember) -> Option<String> {
    let leads = view.leader.and_then(|leader| view.indexes.get(&leader)).filter(|_| !member.learner)?;
    let behind = leads.saturating_sub(*view.applied.get(&member.id)?);
    (behind > LAG_FAR).then(|| format!("what it has applied is more than {LAG_FAR} entries behind"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(numbers: &[u64]) -> BTreeSet<MemberId> {
        numbers.iter().map(|number| MemberId(*number)).collect()
    }

    #[test]
    fn alarms_are_read_from_what_a_status_says() {
        let said = |errors: &[&str]| corrupt_in(&errors.iter().map(|error| (*error).to_owned()).collect::<Vec<_>>());
        assert_eq!(said(&["memberID:10501334649042878790 alarm:CORRUPT "]), ids(&[10_501_334_649_042_878_790]));
        assert_eq!(said(&["memberID:7  alarm:CORRUPT", "memberID:8 alarm:NOSPACE "]), ids(&[7]));
        assert_eq!(said(&["alarm:CORRUPT "]), ids(&[0]), "one without a number names nobody");
        assert_eq!(said(&["etcdserver: no leader"]), ids(&[]));
    }

    #[test]
    fn evidence_alone_tells_whose_data_is_wrong() {
        let group = |one: &&[u64]| one.iter().map(|id| MemberId(*id)).collect();
        let differing = |all: &[&[u64]], rolled_back: &[u64]| {
            differing(&all.iter().map(group).collect::<Vec<Vec<MemberId>>>(), &ids(rolled_back))
        };
        assert_eq!(differing(&[&[1, 3], &[2]], &[]), ids(&[1, 2, 3]), "a majority proves nothing");
        assert_eq!(differing(&[&[1], &[2]], &[]), ids(&[1, 2]));
        assert_eq!(differing(&[&[1, 3], &[2]], &[2]), ids(&[2]));
        assert_eq!(differing(&[&[1, 3], &[2]], &[1, 3]), ids(&[1, 3]), "most members were put back");
        assert_eq!(differing(&[&[1, 3], &[2]], &[1]), ids(&[1, 3]), "who holds the same is in doubt with it");
        assert_eq!(differing(&[&[1, 3], &[2]], &[1, 2]), ids(&[1, 2, 3]));
        assert_eq!(differing(&[&[1], &[2], &[3]], &[1]), ids(&[1, 2, 3]), "two groups are left");
        assert_eq!(differing(&[&[1, 2, 3]], &[1]), ids(&[]));
    }
}
