//! What an agent is doing, in one word that every page, log line and metric uses.

use serde::Serialize;

/// The word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// Looking at data, ledger, peers and store.
    Observing,
    /// Checking the data before a start.
    Validating,
    /// Making the data dir from a backup.
    Restoring,
    /// etcd has been started and does not serve yet.
    Starting,
    /// Something has to happen elsewhere first.
    Waiting,
    /// etcd answers linearizable reads.
    Serving,
    /// Leadership is being handed over before a stop.
    Draining,
    /// etcd was stopped as asked.
    Stopped,
    /// It would not be safe to go on; a person has to decide.
    Refused,
}

impl Phase {
    /// Every phase, in the order of a life.
    pub const ALL: [Phase; 9] = [
        Phase::Observing,
        Phase::Validating,
        Phase::Restoring,
        Phase::Starting,
        Phase::Waiting,
        Phase::Serving,
        Phase::Draining,
        Phase::Stopped,
        Phase::Refused,
    ];

    /// The word, as printed.
    pub fn word(self) -> &'static str {
        match self {
            Phase::Observing => "observing",
            Phase::Validating => "validating",
            Phase::Restoring => "restoring",
            Phase::Starting => "starting",
            Phase::Waiting => "waiting",
            Phase::Serving => "serving",
            Phase::Draining => "draining",
            Phase::Stopped => "stopped",
            Phase::Refused => "refused",
        }
    }
}

impl std::fmt::Display for Phase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.word())
    }
}

/// A phase, why, and since when.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PhaseNow {
    /// The word.
    pub phase: Phase,
    /// Why, in a few words.
    pub cause: String,
    /// Since when, in ms since 1970.
    pub since_ms: u64,
}

impl PhaseNow {
    /// Moves on. The same phase for the same cause keeps its time.
    #[must_use]
    pub fn to(&self, phase: Phase, cause: impl Into<String>, now_ms: u64) -> PhaseNow {
        let cause = cause.into();
        let same = self.phase == phase && self.cause == cause;
        PhaseNow { phase, cause, since_ms: if same { self.since_ms } else { now_ms } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_phase_keeps_its_time_until_something_changes() {
        let waiting = PhaseNow { phase: Phase::Waiting, cause: "for n2".into(), since_ms: 5 };
        assert_eq!(waiting.to(Phase::Waiting, "for n2", 9), waiting);
        assert_eq!(waiting.to(Phase::Waiting, "for n3", 9).since_ms, 9);
        assert_eq!(waiting.to(Phase::Serving, "for n2", 9).since_ms, 9);
    }
}
