//! What a running member needs: room, no stale alarm, and a warning before it is too late.
//!
//! **Rule:** a database is defragmented for the room that it gives, never because time has passed: the member serves nobody
//! meanwhile.

use quorate_faults::Code;

use crate::Warning;
use crate::spec::{Defrag, size_text};

/// The quota of etcd when none is set.
pub const QUOTA_DEFAULT: u64 = 2 << 30;

/// After a defragmentation that was no use the next one waits so long.
const AGAIN_AFTER_MS: u64 = 3600 * 1000;

/// What a member says about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpkeepSeen {
    /// Bytes of its db file.
    pub db_bytes: u64,
    /// Bytes of it in use.
    pub used_bytes: u64,
    /// Bytes that it may have.
    pub quota_bytes: u64,
    /// Whether it has raised NOSPACE.
    pub no_space: bool,
    /// When it was last defragmented, in ms since 1970.
    pub defragmented_ms: Option<u64>,
    /// Whether others would go on meanwhile, and it is not the leader or the last that needs it.
    pub may_pause: bool,
}

/// What is done about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Upkeep {
    /// Write the db anew without its free pages, and why.
    Defragment(String),
    /// Clear NOSPACE, and why.
    ClearNoSpace(String),
}

/// The steps, in their order, and what an operator should know.
pub fn plan_upkeep(limits: &Defrag, seen: &UpkeepSeen, now_ms: u64) -> (Vec<Upkeep>, Vec<Warning>) {
    let free = seen.db_bytes.saturating_sub(seen.used_bytes);
    let percent = percent(free, seen.db_bytes);
    let rested = seen.defragmented_ms.is_none_or(|then| now_ms.saturating_sub(then) >= AGAIN_AFTER_MS);
    // etcd compares its file with the quota, so free pages inside are room only once they are given back.
    let is_roomy = |bytes: u64| bytes < seen.quota_bytes / 10 * 9;
    let makes_room = seen.no_space && !is_roomy(seen.db_bytes) && is_roomy(seen.used_bytes);
    let passed = limits.free_percent > 0 && percent >= u64::from(limits.free_percent) && free >= limits.free_min;
    let mut steps = Vec::new();
    if makes_room && seen.may_pause {
        let why = format!("{} of {} are free pages, and etcd takes no writes", size(free), size(seen.db_bytes));
        steps.push(Upkeep::Defragment(why));
    } else if passed && rested && seen.may_pause {
        steps.push(Upkeep::Defragment(format!("{} of {} are free pages", size(free), size(seen.db_bytes))));
    }
    if seen.no_space && (is_roomy(seen.db_bytes) || makes_room && seen.may_pause) {
        let used = if makes_room { seen.used_bytes } else { seen.db_bytes };
        let why = format!("the database is back at {} of {}", size(used), size(seen.quota_bytes));
        steps.push(Upkeep::ClearNoSpace(why));
    }
    (steps, warnings(seen))
}

fn warnings(seen: &UpkeepSeen) -> Vec<Warning> {
    let (used, quota) = (size(seen.db_bytes), size(seen.quota_bytes));
    if seen.no_space {
        let text = format!("etcd takes no writes: its database has {used}, and its quota is {quota}");
        return vec![Warning { code: Code::NoSpace, text }];
    }
    if percent(seen.db_bytes, seen.quota_bytes) >= 80 {
        let text = format!("the database has {used} of its quota of {quota}; when it is full, etcd takes no writes");
        return vec![Warning { code: Code::QuotaNear, text }];
    }
    Vec::new()
}

fn percent(part: u64, whole: u64) -> u64 {
    u64::try_from(u128::from(part) * 100 / u128::from(whole.max(1))).unwrap_or(u64::MAX)
}

/// In MiB where it is large: nobody wants nine digits.
fn size(bytes: u64) -> String {
    if bytes >= 1 << 20 { format!("{}MiB", bytes >> 20) } else { size_text(bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn limits() -> Defrag {
        Defrag { free_percent: 45, free_min: 256 * MIB }
    }

    fn seen(db: u64, used: u64) -> UpkeepSeen {
        UpkeepSeen {
            db_bytes: db * MIB,
            used_bytes: used * MIB,
            quota_bytes: QUOTA_DEFAULT,
            no_space: false,
            defragmented_ms: None,
            may_pause: true,
        }
    }

    #[test]
    fn both_limits_must_be_passed_before_a_database_is_defragmented() {
        let steps = |db, used| plan_upkeep(&limits(), &seen(db, used), 0).0;
        assert_eq!(steps(1000, 500), [Upkeep::Defragment("500MiB of 1000MiB are free pages".into())]);
        assert_eq!(steps(1000, 600), [], "not enough of it is free");
        assert_eq!(steps(400, 200), [], "not enough is free");
        assert_eq!(plan_upkeep(&Defrag { free_percent: 0, free_min: 0 }, &seen(1000, 1), 0).0, [], "switched off");
        let busy = UpkeepSeen { may_pause: false, ..seen(1000, 500) };
        assert_eq!(plan_upkeep(&limits(), &busy, 0).0, []);
    }

    #[test]
    fn a_defragmentation_that_did_not_help_is_not_repeated_at_once() {
        let earlier = UpkeepSeen { defragmented_ms: Some(1000), ..seen(1000, 500) };
        assert_eq!(plan_upkeep(&limits(), &earlier, 2000).0, []);
        assert_eq!(plan_upkeep(&limits(), &earlier, 1000 + AGAIN_AFTER_MS).0.len(), 1);
    }

    #[test]
    fn no_space_is_cleared_only_when_there_is_space() {
        let full = UpkeepSeen { no_space: true, ..seen(2048, 2040) };
        let (steps, warnings) = plan_upkeep(&limits(), &full, 0);
        assert_eq!(steps, []);
        assert_eq!(warnings[0].code, Code::NoSpace);
        let compacted = UpkeepSeen { no_space: true, defragmented_ms: Some(0), ..seen(2048, 100) };
        let (steps, _) = plan_upkeep(&limits(), &compacted, 1);
        assert!(matches!(steps.as_slice(), [Upkeep::Defragment(_), Upkeep::ClearNoSpace(_)]), "{steps:?}");
        let roomy = UpkeepSeen { no_space: true, ..seen(300, 290) };
        assert!(matches!(plan_upkeep(&limits(), &roomy, 0).0.as_slice(), [Upkeep::ClearNoSpace(_)]));
    }

    #[test]
    fn a_quota_that_is_nearly_used_up_is_warned_of() {
        assert_eq!(plan_upkeep(&limits(), &seen(1700, 1690), 0).1[0].code, Code::QuotaNear);
        assert!(plan_upkeep(&limits(), &seen(1000, 990), 0).1.is_empty());
    }
}
