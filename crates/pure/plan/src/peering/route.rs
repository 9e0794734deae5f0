//! Which member a connection of a client node goes to: whoever is well, of those whoever is near, of those whoever has the least
//! to carry.
//!
//! **Rule:** nobody on the list is left out, only asked later: what is known of a member's health is a moment old.

use serde::{Deserialize, Serialize};

/// Round trips that differ by less are the same: 2 ms are a busy moment and not a distance.
pub const SAME_RTT_US: u32 = 2_000;

/// A member, as a client node sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Upstream {
    /// Its name.
    pub name: String,
    /// Where clients reach it, as `HOST:PORT`.
    pub address: String,
    /// Whether it answered last, and knew a leader.
    #[serde(default)]
    pub healthy: bool,
    /// How long an answer takes, in µs; none: not known.
    #[serde(default)]
    pub rtt_us: Option<u32>,
}

/// The members in the order in which a connection tries them. `open`: connections that one carries now.
pub fn order(members: &[Upstream], open: impl Fn(&Upstream) -> usize) -> Vec<&Upstream> {
    let rtt = |member: &Upstream| member.rtt_us.unwrap_or(u32::MAX);
    let nearest = members.iter().filter(|member| member.healthy).map(rtt).min().unwrap_or(0);
    // Twice as far is as near on a small scale, and another place on a large one.
    let near = nearest.saturating_add(nearest.max(SAME_RTT_US));
    let mut sorted: Vec<&Upstream> = members.iter().collect();
    sorted.sort_by_cached_key(|member| {
        let distance = if rtt(member) <= near { 0 } else { rtt(member) };
        (!member.healthy, distance, open(member), member.name.clone())
    });
    sorted
}

/// What a member that stays on the list, or leaves it, means for the connections that it carries.
pub fn is_drained(members: &[Upstream], address: &str) -> bool {
    // Without anyone better, a connection is left where it is.
    let better = members.iter().any(|member| member.healthy && member.address != address);
    let well = members.iter().any(|member| member.healthy && member.address == address);
    let listed = members.iter().any(|member| member.address == address);
    !well && (better || !listed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(name: &str, healthy: bool, rtt_us: Option<u32>) -> Upstream {
        Upstream { name: name.to_owned(), address: format!("{name}:2379"), healthy, rtt_us }
    }

    fn names(members: &[Upstream], open: impl Fn(&Upstream) -> usize) -> Vec<String> {
        order(members, open).into_iter().map(|member| member.name.clone()).collect()
    }

    #[test]
    fn the_well_come_first_then_the_near_then_the_idle() {
        let members = [
            member("far", true, Some(40_000)),
            member("ill", false, Some(100)),
            member("near", true, Some(300)),
            member("also-near", true, Some(1_900)),
        ];
        assert_eq!(names(&members, |_| 0), ["also-near", "near", "far", "ill"]);
        let busy = |member: &Upstream| usize::from(member.name == "also-near") * 3;
        assert_eq!(names(&members, busy), ["near", "also-near", "far", "ill"]);
    }

    #[test]
    fn far_ones_are_balanced_among_each_other_only_when_they_are_as_far() {
        let members =
            [member("a", true, Some(90_000)), member("b", true, Some(50_000)), member("c", true, Some(60_000))];
        assert_eq!(names(&members, |_| 0), ["a", "b", "c"], "none is near, and all are within twice the nearest");
        let members = [member("a", true, Some(150_000)), member("b", true, Some(50_000))];
        assert_eq!(names(&members, |_| 0), ["b", "a"]);
    }

    #[test]
    fn nobody_is_left_out_when_nothing_is_known() {
        let members = [member("a", false, None), member("b", false, None)];
        let used = |member: &Upstream| usize::from(member.name == "a");
        assert_eq!(names(&members, used), ["b", "a"]);
        assert!(names(&[], |_| 0).is_empty());
    }

    #[test]
    fn connections_leave_who_is_ill_or_gone_while_there_is_somewhere_to_go() {
        let members = [member("a", true, None), member("b", false, None)];
        assert!(!is_drained(&members, "a:2379"));
        assert!(is_drained(&members, "b:2379"), "ill, and another is well");
        assert!(is_drained(&members, "c:2379"), "gone");
        let members = [member("b", false, None)];
        assert!(!is_drained(&members, "b:2379"), "ill, and nobody is better");
        assert!(is_drained(&members, "c:2379"), "gone, whoever is left");
    }
}
